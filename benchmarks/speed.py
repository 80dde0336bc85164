"""Time of lowered graphs on onnxruntime, side by side in one run: docs/speed.md.

    python benchmarks/speed.py [--threads N] [--docs FOLDER]

Per size: the fused operator, the canonical graph, the graph tuned for `--target onnxruntime`, with `--fuse-directions`
where there are two, a Scan written by hand (LSTM), and the matrix products alone.
"""

from __future__ import annotations

import argparse
import itertools
import platform
import sys
from importlib.metadata import version
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "tests"), str(Path(__file__).parent)]

from byhand import floor, naive  # noqa: E402
from onenode import Case, build  # noqa: E402
from timing import ratios, session  # noqa: E402

import rnn_lower  # noqa: E402

SIZES = ((1, 16), (1, 64), (1, 128), (1, 256), (8, 64), (8, 256), (32, 128))
"""Batch size and hidden size; T = 64, as many inputs as units."""
COLUMNS = ("canonical", "tuned", "fuse-directions", "by hand", "products")
INTRODUCTION = """# Speed

`benchmarks/speed.py` wrote this page (the extra `bench` installs what it needs). onnxruntime's CPU has the fused operators, so
whoever wants its best speed keeps them: `--target onnxruntime --keep-native`. The table says what lowering costs there: the time
of each graph over that of the fused operator, all run in turn in one process, float32, T = 64, as many inputs as hidden units,
sequence length and batch size free.

- canonical: what `lower` writes without a target.  tuned: with `--target onnxruntime`.
- fuse-directions: tuned, both directions of the node in one loop (hidden size up to 64).
- by hand: a Scan with a product per gate and input (LSTM forward).  products: the matrix products alone, which no Scan beats.

Small layers cost most: each node of a body takes 0.2 to 0.4 us per step on this machine, however little it computes.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.0, help="per row")
    parser.add_argument("--docs", type=Path, help="write speed.md there")
    arguments = parser.parse_args()
    machine = f"{platform.machine()}, onnxruntime {version('onnxruntime')}, {arguments.threads} thread(s)"
    lines = [INTRODUCTION, f"Measured on {machine}.", ""]
    lines += [
        f"| operator | direction | N | H | fused, us | {' | '.join(COLUMNS)} |",
        f"|{' --- |' * (5 + len(COLUMNS))}",
    ]
    for op, direction, (N, H) in itertools.product(("LSTM", "GRU", "RNN"), ("forward", "bidirectional"), SIZES):
        lines.append(row(Case(op, 17, direction, T=64, N=N, I=H, H=H, optional=("B",), dynamic=True), arguments))
        print(lines[-1], flush=True)
    if arguments.docs is not None:
        (arguments.docs / "speed.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


def row(case: Case, arguments: argparse.Namespace) -> str:
    """One line of the table."""
    model, feeds = build(case)
    graphs = {
        "fused": model,
        "canonical": rnn_lower.lower(model),
        "tuned": rnn_lower.lower(model, target="onnxruntime"),
    }
    if case.direction == "bidirectional" and case.H <= 64:
        graphs["fuse-directions"] = rnn_lower.lower(model, target="onnxruntime", fuse_directions=True)
    if (case.op, case.direction) == ("LSTM", "forward"):
        graphs["by hand"] = naive(case)
    graphs["products"] = floor(case)
    sessions = {name: session(graph, arguments.threads) for name, graph in graphs.items()}
    measured = ratios(sessions, feeds, arguments.seconds)
    cells = [f"{measured[name][1]:.2f}" if name in measured else "" for name in COLUMNS]
    return f"| {case.op} | {case.direction} | {case.N} | {case.H} | {measured['fused'][0]:.0f} | {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
