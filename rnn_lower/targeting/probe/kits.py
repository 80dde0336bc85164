"""Write a kit of test models, and report the results of a runtime for it."""

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
    """Write a kit of small models that show what a runtime supports, even if Python cannot call the runtime.

    The kit is written to a new folder. It contains a small model for every feature of RNN, GRU and LSTM, both unchanged
    and lowered for a target in each of its forms, as well as their inputs, the expected outputs (from onnxruntime's
    fused operators or the reference implementation) and manifest.json, which lists everything. Arrays are stored as
    .npy and .npz files. docs/new-target.md explains the use.

    target: a name (see rnn_lower.targets) or the path of a .toml file.  only: patterns of features, such as "LSTM *".
    limit: the largest absolute difference that counts as correct; 0.01 is suitable for devices that compute in float16.

    Raises RnnLowerError for an unknown target, a pattern that matches no feature, and a folder that is not empty or
    cannot be written.
    """
    return writing.write(Path(folder), find_target(target), only, limit)


@public
def report_kit(
    folder: str | os.PathLike[str], results: str | os.PathLike[str] | None = None, *, run: str | None = None,
    timeout: float = 60.0, progress: Progress | None = None,
) -> KitReport:  # fmt: skip
    """Evaluate the results of a runtime for a kit, feature by feature, and propose a target file.

    Each feature is right, silently wrong or an error.

    results: a folder with CASE/NAME.npy for each output, or with CASE.npz; a missing output counts as an error.
    run: a command that is run for each case, without a shell. {model}, {inputs} and {outputs} are replaced by the
        model, a folder with NAME.npy for each input, and an empty folder for the outputs. The outputs are kept in
        `results` if it is provided.  timeout: the time limit in seconds for each case.

    Raises RnnLowerError if there is no kit, there are no results, or the command cannot be started.
    """
    kit, results_folder = Path(folder), None if results is None else Path(results)
    known = read_manifest(kit)
    if run is not None:
        outcomes = judging.run_all(kit, known, run, results_folder, timeout, progress)
    elif results_folder is not None:
        outcomes = judging.read_results(kit, known, results_folder)
    else:
        raise RnnLowerError("pass either --results FOLDER or --run COMMAND")
    return make_report(kit, known, outcomes)
