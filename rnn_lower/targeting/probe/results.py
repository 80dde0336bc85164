"""The results of a runtime for a kit: read them, or run the cases; each result is right, wrong or an error."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rnn_lower.errors import RnnLowerError
from rnn_lower.modelio.arrays import read_arrays
from rnn_lower.targeting.probe.manifest import KitCase, Manifest, Tensor

RIGHT, WRONG, ERROR = "right", "wrong", "error"

Outcome = tuple[str, str]
"""An outcome with details: the difference for WRONG, the reason for ERROR."""


def outcome(got: Sequence[Any], wanted: Sequence[np.ndarray], limit: float) -> Outcome:
    """Compare results: right if number and shapes agree and no difference exceeds the limit; NaN is wrong."""
    if [np.shape(array) for array in got] != [array.shape for array in wanted]:
        return WRONG, "shape"
    error = largest_difference(got, wanted)
    return (RIGHT, "") if error <= limit else (WRONG, f"{error:.2g}")


def largest_difference(got: Sequence[Any], wanted: Sequence[np.ndarray]) -> float:
    """Return the largest absolute difference; NaN if there is a NaN."""
    pairs = zip(got, wanted, strict=True)
    return float(np.max([np.max(np.abs(np.asarray(a, np.float64) - b), initial=0.0) for a, b in pairs]))


def read_results(folder: Path, manifest: Manifest, results: Path) -> dict[str, Outcome]:
    """Return the outcomes by case, from RESULTS/CASE/NAME.npy for each output, or RESULTS/CASE.npz.

    Raises RnnLowerError if the folder has no result of any case.
    """
    if not any(_is_there(results, case) for case in manifest.cases):
        example = manifest.cases[0]
        names = f"{example.outputs[0].name}.npy"
        text = f"{results / example.case / names} or {results / example.case}.npz"
        raise RnnLowerError(f"{results}: no results found; store the outputs of each test model as {text}")
    return {case.case: _judged(folder, case, results) for case in manifest.cases}


def run_all(
    folder: Path, manifest: Manifest, command: str, results: Path | None, seconds: float,
    advance: Callable[[str, int, int], None] | None = None,
) -> dict[str, Outcome]:  # fmt: skip
    """Run a command for each case, without a shell, and return the outcomes by case; a timeout is an error.

    command: {model} is replaced by the model, {inputs} by a folder with NAME.npy of each input ({inputs}.npz contains
    all of them), {outputs} by an empty folder for NAME.npy of each output, or {outputs}.npz.
    results: the folder for the outputs; None deletes them.
    Raises RnnLowerError for a command that cannot be started, or that has no {model} or {outputs}.
    """
    words = _words(command)
    if not seconds > 0:
        raise RnnLowerError(f"--timeout is {seconds:g}; it must be more than 0 seconds")
    with contextlib.ExitStack() as stack:
        results_folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) if results is None else results
        outcomes = {}
        for index, case in enumerate(manifest.cases, 1):
            failure = _run(words, folder.absolute(), case, results_folder.absolute(), seconds)
            outcomes[case.case] = _judged(folder, case, results_folder) if failure is None else (ERROR, failure)
            if advance is not None:
                advance(case.case, index, len(manifest.cases))
    return outcomes


def _words(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise RnnLowerError(
            f"--run {command}: {str(error).lower()}; quote the words of the command as in a shell"
        ) from None
    for placeholder in ("{model}", "{outputs}"):
        if not any(placeholder in word for word in words):
            raise RnnLowerError(
                f"--run {command}: {placeholder} is missing; write, for example, --run 'python run.py"
                " {model} {inputs} {outputs}'"
            )
    if shutil.which(words[0]) is None:
        raise RnnLowerError(f"--run {words[0]}: program not found")
    return words


def _run(words: list[str], folder: Path, case: KitCase, results: Path, seconds: float) -> str | None:
    """Return the reason why a case did not run, or None."""
    outputs = results / case.case
    paths = {"{model}": folder / case.model, "{inputs}": (folder / case.inputs[0].file).parent, "{outputs}": outputs}
    try:
        outputs.mkdir(parents=True)
    except OSError as error:
        why = f"{error.strerror or error}; choose a new or empty folder for --results"
        raise RnnLowerError(f"{outputs}: cannot be written: {why}") from None
    with tempfile.TemporaryFile() as text:
        try:
            process = subprocess.Popen(
                [_filled(word, paths) for word in words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=text, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise RnnLowerError(f"--run {words[0]}: cannot be started: {error.strerror or error}") from None
        try:
            code = process.wait(seconds)
        except BaseException as error:
            _kill(process)
            if isinstance(error, subprocess.TimeoutExpired):
                return f"took longer than {seconds:g} s"
            raise
        text.seek(0)
        lines = text.read().decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return None if code == 0 else f"ended with exit code {code}{': ' if last else ''}{last[:200]}"


def _filled(word: str, paths: Mapping[str, Path]) -> str:
    for placeholder, path in paths.items():
        word = word.replace(placeholder, str(path))
    return word


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and its children."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()


def _is_there(results: Path, case: KitCase) -> bool:
    return _archive(results, case).is_file() or any((results / case.case).glob("*.npy"))


def _archive(results: Path, case: KitCase) -> Path:
    return results / f"{case.case}.npz"


def _judged(folder: Path, case: KitCase, results: Path) -> Outcome:
    if not _is_there(results, case):
        return ERROR, "no result"
    wanted = [np.load(folder / tensor.file, allow_pickle=False) for tensor in case.outputs]
    try:
        return outcome([_result(results, case, tensor) for tensor in case.outputs], wanted, case.limit)
    except Exception as error:  # files of an unknown writer may raise anything
        return ERROR, " ".join(str(error).split())[:200] or type(error).__name__


def _result(results: Path, case: KitCase, output: Tensor) -> np.ndarray:
    path = _archive(results, case)
    if not path.is_file():
        return np.asarray(np.load(results / case.case / f"{output.name}.npy", allow_pickle=False))
    return np.asarray(read_arrays(path)[output.name])
