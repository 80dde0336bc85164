"""Time of lowered graphs on onnxruntime, side by side in one run: docs/speed.csv.

    python benchmarks/speed.py [--threads N] [--docs FOLDER]

Per size: the fused operator, the canonical graph, the graph tuned for `--target onnxruntime`, with `--fuse-directions`
where there are two, a Scan written by hand (LSTM), and the matrix products alone.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / "support"), str(Path(__file__).parent)]

from byhand import floor, naive  # noqa: E402
from onenode import Case, build  # noqa: E402
from timing import ratios, session  # noqa: E402

import rnn_lower  # noqa: E402

SIZES = ((1, 16), (1, 64), (1, 128), (1, 256), (8, 64), (8, 256), (32, 128))
"""Batch size and hidden size; T = 64, as many inputs as units."""
COLUMNS = ("canonical", "tuned", "fuse-directions", "by hand", "products")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.0, help="per row")
    parser.add_argument("--docs", type=Path, help="write speed.csv there")
    arguments = parser.parse_args()
    rows = [["operator", "direction", "N", "H", "fused (us)", *COLUMNS]]
    for op, direction, (N, H) in itertools.product(("LSTM", "GRU", "RNN"), ("forward", "bidirectional"), SIZES):
        rows.append(row(Case(op, 17, direction, T=64, N=N, I=H, H=H, optional=("B",), dynamic=True), arguments))
        print(*rows[-1], sep=", ", flush=True)
    if arguments.docs is not None:
        with (arguments.docs / "speed.csv").open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)
    return 0


def row(case: Case, arguments: argparse.Namespace) -> list[str]:
    """One row of the table."""
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
    return [case.op, case.direction, str(case.N), str(case.H), f"{measured['fused'][0]:.0f}", *cells]


if __name__ == "__main__":
    sys.exit(main())
