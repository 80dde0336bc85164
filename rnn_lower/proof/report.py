"""Run a model and its lowered twin on the same inputs and compare every output."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


@dataclasses.dataclass(frozen=True)
class OutputReport:
    """One output over all runs: shape of the last run, largest differences, whether all were within tolerance."""

    name: str
    shape: tuple[int, ...]
    max_abs_error: float
    max_rel_error: float
    ok: bool
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class CheckReport:
    """The verdict. judge, runner: what ran the original and the lowered model; runs: how often."""

    outputs: tuple[OutputReport, ...]
    judge: str
    runner: str
    runs: int
    rtol: float
    atol: float

    @property
    def ok(self) -> bool:
        """Whether all outputs of all runs agree in shape, type and value."""
        return all(output.ok for output in self.outputs)

    @property
    def max_abs_error(self) -> float:
        """The largest absolute difference of any output; inf where shapes, types or non-finite values differ."""
        return max((output.max_abs_error for output in self.outputs), default=0.0)

    def __bool__(self) -> bool:
        return self.ok


def check(
    original: Any, lowered: Any, *, inputs: Mapping[str, np.ndarray] | str | os.PathLike[str] | None = None,
    runs: int = 3, seed: int = 0, rtol: float = 1e-3, atol: float = 1e-5,
) -> CheckReport:  # fmt: skip
    """Compare two models, each an onnx.ModelProto, an onnx_ir.Model or the path of a file.

    inputs: arrays by input name, or an .npz file of such; they are used for one run. Without, `runs` sets of inputs
    are made from `seed`: symbolic sizes are sampled per name unless the lowered model fixes them, an input that feeds
    sequence_lens lies in [0, T].
    An output agrees when |lowered - original| <= atol + rtol * |original|; NaN agrees with NaN; in a type that is
    coarser than rtol one unit in the last place is allowed.

    Both run on onnxruntime. Where it cannot run the fused operators (double, bfloat16, layout 1, opsets below 7,
    empty sequences or batches) the original runs on onnx.reference with rnn_lower.reference; the report says so.
    Raises RnnLowerError when a model cannot be read, or when no inputs were found with which the original runs.
    """
    from rnn_lower import judging, samples

    models = judging.Pair(original, lowered)
    fixed = samples.fixed_sizes(models.original, models.lowered)
    given = [] if inputs is None else [samples.load_inputs(inputs, models.original)]
    comparison = judging.Comparison(rtol, atol)
    for index in range(1 if given else max(1, runs)):
        feeds = iter(given) if given else samples.candidates(models.original, seed, index, fixed)
        expected, actual = models.run(feeds)
        comparison.add(models.output_names, expected, actual)
    return CheckReport(comparison.reports(), models.judge, models.runner, 1 if given else max(1, runs), rtol, atol)
