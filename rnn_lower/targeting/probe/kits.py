"""Write a kit, and tell what a runtime made of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rnn_lower.errors import RnnLowerError, public
from rnn_lower.modelio.files import Progress
from rnn_lower.targeting import find_target
from rnn_lower.targeting.probe import results as judging
from rnn_lower.targeting.probe import writing
from rnn_lower.targeting.probe.manifest import Manifest, read_manifest
from rnn_lower.targeting.probe.report import KitReport, make_report


@public
def write_kit(
    folder: str | os.PathLike[str], target: str, *, only: Sequence[str] = (), limit: float = 1e-4
) -> Manifest:
    """Write what shows how a runtime takes recurrent models to a new folder, for runtimes that Python cannot reach.

    There are small models for every feature of RNN, GRU and LSTM, as they are and lowered for a target in each of its
    forms, their inputs, what has to come out by onnxruntime's fused operators or else the reference implementation,
    and manifest.json, which names them all. Arrays are .npy files, and .npz. docs/new-target.md shows the use.
    target: a name (see rnn_lower.targets), or the path of a .toml file.  only: patterns of features, such as "LSTM *".
    limit: the largest absolute difference that counts as right; 0.01 suits devices that compute in float16.
    Raises RnnLowerError for an unknown target, a pattern that no feature matches, and a folder that holds something or
    cannot be written.
    """
    return writing.write(Path(folder), find_target(target), only, limit)


@public
def report_kit(
    folder: str | os.PathLike[str], results: str | os.PathLike[str] | None = None, *, run: str | None = None,
    timeout: float = 60.0, progress: Progress | None = None,
) -> KitReport:  # fmt: skip
    """What a runtime made of a kit: each feature right, silently wrong or an error, and a target's file that follows.

    results: a folder with CASE/NAME.npy for each output, or CASE.npz; what is not there counts as an error.
    run: a command that is run for each case, without a shell, with {model}, {inputs} and {outputs} replaced by the
        model, a folder with NAME.npy of each input, and an empty folder for the outputs; these stay in `results` if it
        is given.  timeout: seconds for each case.
    Raises RnnLowerError when there is no kit, no result at all, or a command that cannot be started.
    """
    kit, results_folder = Path(folder), None if results is None else Path(results)
    known = read_manifest(kit)
    if run is not None:
        outcomes = judging.run_all(kit, known, run, results_folder, timeout, progress)
    elif results_folder is not None:
        outcomes = judging.read_results(kit, known, results_folder)
    else:
        raise RnnLowerError("provide results or a command to run: --results FOLDER or --run COMMAND")
    return make_report(kit, known, outcomes)
