"""Time nodes whose sequences end early, by sequence_lens; `speed.py` runs it."""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from habits import with_habits  # noqa: E402
from onenode import Case, build  # noqa: E402
from report import Report  # noqa: E402
from timing import ratios, session  # noqa: E402

import rnn_lower  # noqa: E402

HEADING = "Sequences that end early: T = 64, I = H"
ABOUT = """Time over that of the fused node, of which all steps are valid for all rows or, of each row, the first quarter.
"a choice" lets each step choose between the new and the old state, as was done before: a Where takes onnxruntime 0.65 us at the least,
where a product of elements takes 0.18. "as lowered" makes no choice, and takes as many steps as the longest row, as the
fused kernels do (`recurrent/ragged.py`)."""


def early(report: Report, threads: Sequence[int], seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        choosing = with_habits(Path(folder) / "choosing.toml", lengths_around_loop=False)
        columns = [f"{what}, {n}" for n in threads for what in ("fused, us", "a choice", "as lowered")]
        report.table(
            HEADING, ("operator", "direction", "N", "H", "steps", *columns), list(_rows(choosing, threads, seconds)), ABOUT
        )  # fmt: skip


def _rows(choosing: str, threads: Sequence[int], seconds: float) -> Iterator[list[str]]:
    sizes = ((1, 32), (1, 128), (8, 64), (8, 256))
    for op, direction, (N, H) in itertools.product(("LSTM", "GRU", "RNN"), (None, "bidirectional"), sizes):
        case = Case(op, opset=17, T=64, N=N, I=H, H=H, direction=direction, optional=("B", "sequence_lens"))
        model, feeds = build(case)
        models = {
            "fused": model,
            "a choice": rnn_lower.lower(model, target=choosing),
            "lowered": rnn_lower.lower(model),
        }
        for steps in (64, 16):
            given = feeds | {"sequence_lens": np.full(N, steps, np.int32)}
            row = [op, direction or "forward", str(N), str(H), str(steps)]
            for count in threads:
                found = ratios({name: session(one, count) for name, one in models.items()}, given, seconds)
                row += [f"{found['fused'][0]:.0f}", *(f"{found[name][1]:.2f}" for name in ("a choice", "lowered"))]
            yield row
