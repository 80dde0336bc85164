"""Train a recurrent classifier and a forecaster, lower and quantize them in each form, and print accuracy and size.

    python examples/quantize.py [--op LSTM]     needs torch; a minute

The classifier reads ten shapes of 12 x 12 pixels row by row, shifted and in noise; the forecaster continues sums of
sines.
"""  # fmt: skip

from __future__ import annotations

import argparse
import logging
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic, quantize_static

import rnn_lower

GATES = {"GRU": [1, 0, 2], "LSTM": [0, 3, 1, 2], "RNN": [0]}
"""The positions in torch of the gates in the order of ONNX."""


def shapes(count: int, seed: int, size: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Pictures [count, size, size] and the class of each, one of ten shapes."""
    templates = np.random.default_rng(7).normal(size=(10, size, size))
    for axis in (1, 2):
        templates = (templates + np.roll(templates, 1, axis) + np.roll(templates, -1, axis)) / 2
    rng = np.random.default_rng(seed)
    labels, shifts = rng.integers(0, 10, count), rng.integers(-1, 2, (count, 2))
    pictures = [np.roll(templates[a], tuple(s), (0, 1)) for a, s in zip(labels, shifts, strict=True)]
    return (np.stack(pictures) + rng.normal(0, 1.2, (count, size, size))).astype(np.float32), labels


def sines(count: int, seed: int, length: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """Sums of two sines [count, length, 1], and the next value of each."""
    rng = np.random.default_rng(seed)
    time, parts = np.arange(length + 1), rng.uniform([0.2, 0, 0.3], [1.2, 6.3, 1], (count, 2, 3))
    waves = (parts[..., 2:] * np.sin(parts[..., :1] * time + parts[..., 1:2])).sum(1).astype(np.float32)
    return waves[:, :-1, None], waves[:, -1:]


def train(op: str, x: np.ndarray, y: np.ndarray, hidden: int = 128, epochs: int = 8) -> onnx.ModelProto:
    """A recurrent layer and a linear layer on its last state, trained with cross-entropy or (floats) squares."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    classes = 10 if y.dtype.kind == "i" else 1
    layer, head = getattr(torch.nn, op)(x.shape[2], hidden), torch.nn.Linear(hidden, classes)
    loss = torch.nn.CrossEntropyLoss() if classes > 1 else torch.nn.MSELoss()
    adam = torch.optim.Adam([*layer.parameters(), *head.parameters()], lr=2e-3)
    inputs, targets = torch.from_numpy(x.transpose(1, 0, 2).copy()), torch.from_numpy(y)
    for _ in range(epochs):
        for part in torch.randperm(len(x)).split(64):
            adam.zero_grad()
            loss(head(layer(inputs[:, part])[0][-1]), targets[part]).backward()
            adam.step()
    return as_onnx(op, layer, head, x.shape[1])


def as_onnx(op: str, layer: torch.nn.Module, head: torch.nn.Module, length: int) -> onnx.ModelProto:
    """The model for one sequence x [length, 1, features]."""

    def gates(name: str) -> np.ndarray:
        array = getattr(layer, name).detach().numpy()
        return np.concatenate([np.split(array, len(GATES[op]))[gate] for gate in GATES[op]])

    weights = {
        "W": gates("weight_ih_l0")[None], "R": gates("weight_hh_l0")[None],
        "B": np.concatenate([gates("bias_ih_l0"), gates("bias_hh_l0")])[None],
        "head": head.weight.detach().numpy().T.copy(), "bias": head.bias.detach().numpy(), "axes": np.array([0]),
    }  # fmt: skip
    more = {"linear_before_reset": 1} if op == "GRU" else {}
    nodes = [
        helper.make_node(op, ["x", "W", "R", "B"], ["", "h"], "layer", hidden_size=weights["R"].shape[2], **more),
        helper.make_node("Squeeze", ["h", "axes"], ["last"], "last"),
        helper.make_node("MatMul", ["last", "head"], ["product"], "head"),
        helper.make_node("Add", ["product", "bias"], ["y"], "biased"),
    ]
    shape = [length, 1, weights["W"].shape[2]]
    graph = helper.make_graph(
        nodes, "trained", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, weights["head"].shape[1]])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def score(model: onnx.ModelProto, x: np.ndarray, y: np.ndarray) -> float:
    """The percentage of correct classes, or of explained variance."""
    session = onnxruntime.InferenceSession(model.SerializeToString())
    found = np.concatenate([session.run(None, {"x": one[:, None]})[0] for one in x])
    if y.dtype.kind == "i":
        return float(100 * np.mean(found.argmax(1) == y))
    return float(100 * (1 - np.mean((found - y) ** 2) / np.var(y)))


def static(
    lowered: onnx.ModelProto, inputs: dict[str, np.ndarray], tied: bool, *kept: str, **options: object
) -> onnx.ModelProto:  # fmt: skip
    """Quantized by onnxruntime, with or without the overrides. kept: operators whose results stay in floats."""
    overrides = rnn_lower.quantization_overrides(lowered, calibration=inputs) if tied else {}
    extra = {"TensorQuantOverrides": overrides, "OpTypesToExcludeOutputQuantization": list(kept)}
    with tempfile.TemporaryDirectory() as folder:
        source, destination = Path(folder, "float.onnx"), Path(folder, "int8.onnx")
        onnx.save(lowered, source)
        reader = rnn_lower.calibration_reader(lowered, inputs)
        types = {"weight_type": QuantType.QInt8, "activation_type": QuantType.QUInt8}
        quantize_static(source, destination, reader, extra_options=extra, **{**types, **options})
        return rnn_lower.compact(onnx.load(destination))


def dynamic(lowered: onnx.ModelProto) -> onnx.ModelProto:
    """Quantized dynamically by onnxruntime, including bodies."""
    with tempfile.TemporaryDirectory() as folder:
        source, destination = Path(folder, "float.onnx"), Path(folder, "int8.onnx")
        onnx.save(lowered, source)
        quantize_dynamic(source, destination, weight_type=QuantType.QInt8, extra_options={"EnableSubgraph": True})
        return onnx.load(destination)


def variants(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> dict[str, onnx.ModelProto]:
    """The model, and the result of each kind of quantization."""
    scan, unrolled = (rnn_lower.lower(model, form=form) for form in ("scan", "unroll"))
    products, wide = {"op_types_to_quantize": ["MatMul"]}, {"activation_type": QuantType.QUInt16}
    return {
        "float, fused": model,
        "float, Scan": scan,
        "quantize_dynamic, Scan": dynamic(scan),
        "rnn_lower.quantize, Scan": rnn_lower.quantize(scan, inputs),
        "rnn_lower.quantize, Scan, per channel": rnn_lower.quantize(scan, inputs, per_channel=True),
        "rnn_lower.quantize, Loop": rnn_lower.quantize(rnn_lower.lower(model, form="loop"), inputs),
        "rnn_lower.quantize, unrolled": rnn_lower.compact(rnn_lower.quantize(unrolled, inputs)),
        "quantize_static, operands of products, tied": static(unrolled, inputs, True, "MatMul", **products),
        "quantize_static, operands of products, untied": static(unrolled, inputs, False, "MatMul", **products),
        "quantize_static, products, tied": static(unrolled, inputs, True, **products),
        "quantize_static, products, untied": static(unrolled, inputs, False, **products),
        "quantize_static, all operators, tied, cell in 16 bits": static(unrolled, inputs, True),
        "quantize_static, all operators, untied": static(unrolled, inputs, False),
        "quantize_static, all operators, tied, activations in 16 bits": static(unrolled, inputs, True, **wide),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--op", choices=sorted(GATES), default="LSTM")
    op = parser.parse_args().op
    logging.disable(logging.WARNING)
    tables = []
    for task in (shapes, sines):
        x, y = task(4000, 0)
        model = train(op, x, y)
        made = variants(model, {"x": x[:1000, :, None]})
        tables.append({name: (score(one, *task(1000, 1)), one.ByteSize()) for name, one in made.items()})
    print(f"| {op}, 128 units | shapes, % right | sines, % of variance | kB |")
    print("|---|---|---|---|")
    for name, (right, size) in tables[0].items():
        print(f"| {name} | {right:.1f} | {tables[1][name][0]:.2f} | {size / 1000:.0f} |")


if __name__ == "__main__":
    main()
