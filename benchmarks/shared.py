"""Time nodes that share a loop (`--fuse-stacks`) against each in a loop of its own; `speed.py` runs it."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import numpy as np
import onnx

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from beside import beside  # noqa: E402
from report import Report  # noqa: E402
from stacks import stack  # noqa: E402
from timing import ratios, session  # noqa: E402

import rnn_lower  # noqa: E402
from rnn_lower.recurrent import parallel as in_parallel  # noqa: E402
from rnn_lower.recurrent.shared import Paying  # noqa: E402

STACKS = "Stacks: T = 64, N = 1, I = H, one thread"
ABOUT_STACKS = """Time over that of the fused nodes: each layer in a Scan of its own, and all in one (`--fuse-stacks`). From three
layers on, up to H = 64, one is faster on every size here; two layers, and larger ones, whose products in the loop cost more than the nodes
that are saved, stay apart. A mask in every step instead of a loop for the first steps costs 20 to 25 % more, the products with W and R
as one of joined inputs nothing less."""


def stacks(report: Report, seconds: float) -> None:
    rows = []
    for op, layers, H in itertools.product(("LSTM", "GRU"), (3, 4, 6, 14), (8, 16, 32, 64)):
        model = stack(op, T=64, layers=layers, bidirectional=False, H=H)
        models = {"fused": model, "apart": rnn_lower.lower(model), "one": rnn_lower.lower(model, fuse_stacks=True)}
        feeds = {"X": np.random.default_rng(0).standard_normal((64, 1, H)).astype(np.float32)}
        found = ratios({key: session(one, 1) for key, one in models.items()}, feeds, seconds)
        apart, one = found["apart"][1], found["one"][1]
        rows.append(
            [op, str(layers), str(H), f"{found['fused'][0]:.0f}", f"{apart:.2f}", f"{one:.2f}", f"{one / apart:.2f}"]
        )
    report.table(
        STACKS, ("operator", "layers", "H", "fused, us", "apart", "one loop", "one / apart"), rows, ABOUT_STACKS
    )


PARALLEL = "Nodes beside each other: T = 64, N = 1, I = H"
ABOUT_PARALLEL = """Time over that of the fused nodes: each of the nodes, which read nothing of each other, in a Scan of its own, and
all in one (`--fuse-stacks`), as grouped layers have them; a node of two directions counts as two. One is faster on every size here but
for two GRU with two threads, which therefore stay apart, as do RNN nodes, whose step is one fused kernel, larger ones, and batches."""


def parallel(report: Report, threads: Sequence[int], seconds: float) -> None:
    rows = []
    for op, nodes, H in itertools.product(("LSTM", "GRU"), (2, 4, 8), (8, 16, 32, 64)):
        model, feeds = beside(op, nodes, T=64, I=H, H=H)
        models = {"fused": model, "apart": rnn_lower.lower(model), "one": _together(model)}
        row = [op, str(nodes), str(H)]
        for count in threads:
            found = ratios({key: session(one, count) for key, one in models.items()}, feeds, seconds)
            apart, one = found["apart"][1], found["one"][1]
            row += [f"{found['fused'][0]:.0f}", f"{apart:.2f}", f"{one:.2f}", f"{one / apart:.2f}"]
        rows.append(row)
    columns = [f"{what}, {n}" for n in threads for what in ("fused, us", "apart", "one loop", "one / apart")]
    report.table(PARALLEL, ("operator", "nodes", "H", *columns), rows, ABOUT_PARALLEL)


def _together(model: onnx.ModelProto) -> onnx.ModelProto:
    """In one loop, whether that pays or not."""
    with mock.patch.dict(in_parallel.PAYS, {"LSTM": Paying(2, 512, 64), "GRU": Paying(2, 512, 64)}):
        return rnn_lower.lower(model, fuse_stacks=True)
