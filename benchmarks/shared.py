"""Time nodes that share a loop (`--fuse-stacks`) against each in a loop of its own; `speed.py` runs it."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from beside import beside  # noqa: E402
from report import Report  # noqa: E402
from stacks import WIDTHS, any_size, stack  # noqa: E402
from timing import ratios, session  # noqa: E402

import rnn_lower  # noqa: E402

LARGEST = 256
"""Units in all, beyond which states end to end are not measured: R has their square."""

STACKS = "Stacks: T = 64, N = 1, I = H"
ABOUT_STACKS = """Time over that of the fused nodes: each layer in a Scan of its own, and all in one (`--fuse-stacks`), as one cell whose W
and R stand in blocks. Up to 192 units in all one is faster on every size here; higher stacks are cut into several. With states on an
axis of their own instead, and products of a batch of matrices, three layers of 8 to 64 took 0.72 to 0.96 of the time of the layers
apart. A mask in every step instead of a loop for the first steps costs 20 to 25 % more."""


def stacks(report: Report, threads: Sequence[int], seconds: float) -> None:
    def rows() -> Iterator[list[str]]:
        for op, layers, H in itertools.product(("RNN", "GRU", "LSTM"), (2, 3, 4, 6), (8, 16, 32, 64)):
            model = stack(op, T=64, layers=layers, bidirectional=False, H=H)
            feeds = {"X": np.random.default_rng(0).standard_normal((64, 1, H)).astype(np.float32)}
            models = {"apart": rnn_lower.lower(model), "one loop": rnn_lower.lower(model, fuse_stacks=True)}
            yield [op, str(layers), str(H), *_measured(model, models, feeds, threads, seconds)]

    columns = _columns(("apart", "one loop"), threads)
    report.table(STACKS, ("operator", "layers", "H", *columns), list(rows()), ABOUT_STACKS)


PARALLEL = "Nodes beside each other: T = 64, N = 1, I = H"
ABOUT_PARALLEL = """Time over that of the fused nodes: each of the nodes, which read nothing of each other, in a Scan of its own, and
all in one (`--fuse-stacks`), as grouped layers have them: with their states end to end, as one wide cell, or side by side, on an axis of
their own. One wide cell is the fastest up to 128 units in all, of LSTM up
to 96; beyond, two LSTM or four GRU and more go side by side. Larger nodes stay apart."""


def parallel(report: Report, threads: Sequence[int], seconds: float) -> None:
    def rows() -> Iterator[list[str]]:
        for op, nodes, H in itertools.product(("RNN", "GRU", "LSTM"), (2, 4, 8), (8, 16, 32, 64)):
            model, feeds = beside(op, nodes, T=64, I=H, H=H)
            models: dict[str, onnx.ModelProto | None] = {"apart": rnn_lower.lower(model)}
            for name, limit in WIDTHS.items():
                with any_size(limit):
                    measured = not limit or nodes * H <= LARGEST
                    models[name] = rnn_lower.lower(model, fuse_stacks=True) if measured else None
            yield [op, str(nodes), str(H), *_measured(model, models, feeds, threads, seconds)]

    columns = _columns(("apart", *WIDTHS), threads)
    report.table(PARALLEL, ("operator", "nodes", "H", *columns), list(rows()), ABOUT_PARALLEL)


def _columns(models: Sequence[str], threads: Sequence[int]) -> list[str]:
    return [f"{what}, {count}" for count in threads for what in ("fused, us", *models)]


def _measured(
    model: onnx.ModelProto, models: Mapping[str, onnx.ModelProto | None], feeds: Mapping[str, np.ndarray],
    threads: Sequence[int], seconds: float,
) -> list[str]:  # fmt: skip
    """By the number of threads, the time of the fused model in us, and that of each of the others over it."""
    row = []
    for count in threads:
        sessions = {name: session(one, count) for name, one in models.items() if one is not None}
        found = ratios({"fused": session(model, count)} | sessions, feeds, seconds)
        row += [f"{found['fused'][0]:.0f}", *(f"{found[k][1]:.2f}" if k in found else "" for k in models)]
    return row
