"""One command on several models: each by itself, in a process of its own where several run at once."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from rnn_lower.cli import printing
from rnn_lower.cli.arguments import BAD, Command
from rnn_lower.errors import RnnLowerError
from rnn_lower.stopping import stopped_as_by_ctrl_c, was_stopped


@dataclasses.dataclass(frozen=True)
class End:
    """How the work on one model ended: exit code, what it printed, and its error."""

    model: str
    code: int
    printed: str
    error: str


def on_several(work: Command, arguments: argparse.Namespace) -> int:
    """Do `work` for each of arguments.models, with output in arguments.out_dir; the worst exit code of all.

    An error of one model does not keep the others from being done. Raises RnnLowerError, before any of them, when two
    would have the same output or there can be no such folder.
    """
    each = [
        argparse.Namespace(**{**vars(arguments), "model": model, "output": output})
        for model, output in zip(arguments.models, _outputs(arguments), strict=True)
    ]
    ends = []
    with printing.progress(arguments.quiet, "models") as advance:
        for end in _ends(work, each, arguments.jobs):
            ends.append(end)
            if advance:
                advance(end.model, len(ends), len(each))
            if not arguments.json:
                sys.stdout.write(end.printed)
            if end.error:
                print(f"rnn-lower: error: {' '.join(end.error.split())}", file=sys.stderr)
    if arguments.json:
        printing.print_json({"schema": printing.SCHEMA, "files": [_told(end) for end in ends]})
    return max(end.code for end in ends)


def _told(end: End) -> dict[str, object]:
    printed = json.loads(end.printed) if end.printed else {"error": end.error}
    return {"input": end.model, "exit": end.code, **printed}


def _outputs(arguments: argparse.Namespace) -> list[str]:
    if arguments.jobs < 1:
        raise RnnLowerError(f"--jobs is {arguments.jobs}; at least 1 model is worked on at once")
    folder = Path(arguments.out_dir)
    taken: dict[str, str] = {}
    for model in arguments.models:
        output = str(folder / Path(model).name)
        if output in taken:
            told = f"{taken[output]} and {model} would both be written to {output}"
            raise RnnLowerError(f"{told}; lower one of them by itself, with -o OUT.onnx")
        taken[output] = model
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RnnLowerError(f"--out-dir {folder}: {error.strerror or error}; name a folder") from None
    _check_files(arguments.models, list(taken))
    return list(taken)


def _check_files(models: Sequence[str], outputs: Sequence[str]) -> None:
    """Raise where two outputs are one file, by links or by spelling, or an output is the input of another model."""
    inputs = {_identity(model): model for model in reversed(models)}
    written: dict[object, str] = {}
    for model, output in zip(models, outputs, strict=True):
        file = _identity(output)
        if file in written:
            told = f"{written[file]} and {model} would both be written to {output}, which are one file"
            raise RnnLowerError(f"{told}; lower one of them by itself, with -o OUT.onnx")
        if file in inputs and _identity(model) != file:
            told = f"{output} is the same file as {inputs[file]}, and {model} would be written there"
            raise RnnLowerError(f"{told}; name another folder")
        written[file] = model


def _identity(path: str) -> object:
    """Equal for paths of one file: by device and number where it exists, else by its folder's and its name."""
    real = os.path.realpath(path)
    try:
        status = os.stat(real)
    except OSError:
        with contextlib.suppress(OSError):
            status = os.stat(os.path.dirname(real))
            return status.st_dev, status.st_ino, os.path.basename(real)
        return real
    return (status.st_dev, status.st_ino) if os.path.isfile(real) else real


def _ends(work: Command, each: Sequence[argparse.Namespace], jobs: int) -> Iterator[End]:
    if jobs == 1:
        yield from (_one(work, arguments) for arguments in each)
        return
    spawn = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
    with futures.ProcessPoolExecutor(jobs, spawn, _end_with_parent) as pool:
        try:
            yield from pool.map(_in_worker, [work] * len(each), each)
        except (KeyboardInterrupt, GeneratorExit):
            for worker in multiprocessing.active_children():  # or it would wait for what they are at
                worker.terminate()
            raise
        except BrokenProcessPool:
            told = "a process was ended from outside, perhaps for want of memory, and not all is written"
            raise RnnLowerError(f"--jobs {jobs}: {told}; take --jobs 1") from None


def _end_with_parent() -> None:
    """A worker whose parent was killed would wait for work for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)  # heard by the main thread, which tidies up if there is anything

    threading.Thread(target=watch, daemon=True).start()


def _in_worker(work: Command, arguments: argparse.Namespace) -> End:
    """As `_one`; the pool ends its workers by SIGTERM when one of them has died."""
    try:
        with stopped_as_by_ctrl_c():
            return _one(work, arguments)
    except BaseException as error:
        if was_stopped(error):
            os._exit(BAD)  # raised, it would end this model alone, and the worker would wait for another
        raise


def _one(work: Command, arguments: argparse.Namespace) -> End:
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            return End(arguments.model, work(arguments), printed.getvalue(), "")
    except RnnLowerError as error:
        return End(arguments.model, BAD, "", str(error))
