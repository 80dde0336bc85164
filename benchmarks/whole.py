"""Whole models, lowered over original: those of the project and beside it, and public ones rebuilt in shape.

    python benchmarks/whole.py [--seconds 2] [--threads 1 2]

prints the table alone; `benchmarks/speed.py` makes it a section of docs/speed.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from byhand import floor  # noqa: E402
from onenode import Case  # noqa: E402
from paths import SHARED, own_models  # noqa: E402
from report import Report  # noqa: E402
from stacks import stack  # noqa: E402
from timing import mean, ratios, session  # noqa: E402

import rnn_lower  # noqa: E402

HEADING = "Whole models"
REBUILT: dict[str, dict[str, Any]] = {
    "text to phonemes: 4 LSTM of 64, T = 32": {"op": "LSTM", "T": 32, "layers": 4, "bidirectional": False, "H": 64},
    "diacritics: 6 GRU of 48, both directions, T = 100": {"op": "GRU", "T": 100, "layers": 6, "H": 48},
    "noise suppressor: 14 GRU of 16, T = 64": {"op": "GRU", "T": 64, "layers": 14, "bidirectional": False, "H": 16},
    "bytes: 2 LSTM of 128, T = 64": {"op": "LSTM", "T": 64, "layers": 2, "bidirectional": False, "H": 128},
    "text lines: 2 LSTM of 256, both directions, T = 40": {"op": "LSTM", "T": 40, "layers": 2, "H": 256},
    "speech detector: LSTM of 128, T = 32": {"op": "LSTM", "T": 32, "layers": 1, "bidirectional": False, "H": 128},
    "sensor: LSTM of 20, T = 2,048": {"op": "LSTM", "T": 2048, "layers": 1, "bidirectional": False, "H": 20},
}
PREFIX, WAYS = "rebuilt, ", ("lowered", "stacked", "floor")
COLUMNS = ("fused, us", "lowered / fused", "with `--fuse-stacks`", "floor")
ABOUT = """Form auto, over the original; then with `--fuse-stacks`. The rebuilt models have the recurrent layers of
public models, on random weights and with nothing between the layers but what exporters write there; the rest of a
model, which lowering does not change, is left out, so that these ratios are worse than those of the models themselves.
Their floor: the products of each layer alone, in a loop of its own, with no more inputs than units; only layers that
share a loop can be faster.
The others are run as they are, with the inputs that came with them or one row of 64 steps."""


def models() -> Iterator[tuple[str, onnx.ModelProto, dict[str, np.ndarray]]]:
    rng = np.random.default_rng(0)
    for name, shape in REBUILT.items():
        H, T = shape["H"], shape["T"]
        yield f"{PREFIX}{name}", stack(**shape), {"X": rng.standard_normal((T, 1, H)).astype(np.float32)}
    for path in own_models():
        model = onnx.load(path)
        yield path.stem, model, {value.name: _sample(value, rng) for value in model.graph.input}
    for path in sorted((SHARED / "models").glob("*.inputs.npz")):
        name = path.name.removesuffix(".inputs.npz")
        yield name, onnx.load(path.with_name(f"{name}.onnx")), dict(np.load(path))


def _sample(value: onnx.ValueInfoProto, rng: np.random.Generator) -> np.ndarray:
    """One row of 64 steps where the sizes are open, all of them valid."""
    dims = value.type.tensor_type.shape.dim
    shape = [dim.dim_value or (1 if dim.dim_param in ("batch", "unk__438") else 64) for dim in dims]
    if value.type.tensor_type.elem_type == onnx.TensorProto.INT64:
        return np.full(shape, 64 if value.name == "lengths" else 1)
    return rng.standard_normal(shape).astype(np.float32)


def rows(threads: list[int], seconds: float) -> Iterator[list[str]]:
    found: dict[tuple[int, str], list[float]] = {}
    for name, model, feeds in models():
        row = [name, str(len(rnn_lower.inspect(model)))]
        ways = {"lowered": rnn_lower.lower(model), "stacked": rnn_lower.lower(model, fuse_stacks=True)}
        shape = REBUILT.get(name.removeprefix(PREFIX))
        if shape is not None:
            ways["floor"] = floor(_layer(shape))
        for count in threads:
            sessions = {"fused": session(model, count), **{way: session(one, count) for way, one in ways.items()}}
            measured = ratios(sessions, feeds, seconds)
            times = {way: ratio for way, (_, ratio) in measured.items()}
            if shape is not None:
                times["floor"] *= shape["layers"]
                for way in WAYS:
                    found.setdefault((count, way), []).append(times[way])
            row += [f"{measured['fused'][0]:.0f}", *(f"{times[way]:.2f}" if way in times else "" for way in WAYS)]
        yield row
    yield ["geometric mean of the rebuilt ones", ""] + [
        text for n in threads for text in ("", *(f"{mean(found[n, way]):.2f}" for way in WAYS))
    ]


def _layer(shape: Mapping[str, Any]) -> Case:
    """One of a rebuilt model, as `stack` makes it, with as many inputs as units."""
    op, T, H = shape["op"], shape["T"], shape["H"]
    direction = "bidirectional" if shape.get("bidirectional", True) else None
    return Case(op, lbr=1 if op == "GRU" else None, T=T, N=1, I=H, H=H, direction=direction)


def section(report: Report, threads: list[int], seconds: float) -> None:
    columns = [f"{what}, {n} thread{'s' * (n > 1)}" for n in threads for what in COLUMNS]
    report.table(HEADING, ("model", "nodes", *columns), list(rows(threads, seconds)), ABOUT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=2.0, help="per model")
    arguments = parser.parse_args()
    section(Report("", ""), arguments.threads, arguments.seconds)


if __name__ == "__main__":
    main()
