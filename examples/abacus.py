"""An imaginary runtime, for docs/new-target.md: onnxruntime, but it has no Scan, and its Softsign is wrong.

    python abacus.py MODEL INPUTS OUTPUTS

This is also what a runner for `rnn-lower kit-report --run` looks like: it reads INPUTS/NAME.npy for each input of the
model, runs the model once, and writes OUTPUTS/NAME.npy for each output.
"""  # fmt: skip

import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    spoil(model.graph)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def spoil(graph: onnx.GraphProto) -> None:
    """Make the operators of this imaginary runtime fail or compute wrong values."""
    for node in graph.node:
        if node.op_type in ("Scan", "RNN", "GRU", "LSTM"):
            raise SystemExit(f"abacus: unknown operator {node.op_type}")
        if node.op_type == "Softsign":
            node.op_type = "Tanh"
        for attribute in node.attribute:
            spoil(attribute.g)


if __name__ == "__main__":
    model, inputs, outputs = onnx.load(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    feeds = {value.name: np.load(inputs / f"{value.name}.npy") for value in model.graph.input}
    for name, array in run(model, feeds).items():
        np.save(outputs / f"{name}.npy", array)
