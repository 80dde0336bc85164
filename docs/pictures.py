"""Draw docs/before_after.svg: a model of one LSTM node, and what it is lowered to.

    python docs/pictures.py [--docs docs]
"""  # fmt: skip

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT)]

import rnn_lower  # noqa: E402


def one_lstm(T: int = 20, N: int = 1, I: int = 16, H: int = 32) -> onnx.ModelProto:  # noqa: E741
    rng = np.random.default_rng(0)
    shapes = {"W": (1, 4 * H, I), "R": (1, 4 * H, H), "B": (1, 8 * H)}
    weights = [numpy_helper.from_array(rng.normal(size=s).astype(np.float32), name) for name, s in shapes.items()]
    outputs = {"Y": (T, 1, N, H), "Y_h": (1, N, H), "Y_c": (1, N, H)}
    graph = helper.make_graph(
        [helper.make_node("LSTM", ["X", *shapes], list(outputs), name="lstm", hidden_size=H)], "one_lstm",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, (T, N, I))],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()], weights,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", type=Path, default=ROOT / "docs")
    (parser.parse_args().docs / "before_after.svg").write_text(rnn_lower.draw(one_lstm(), form="scan"), "utf-8")


if __name__ == "__main__":
    main()
