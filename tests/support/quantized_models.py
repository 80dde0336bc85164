"""Recurrent models of fixed sizes, and what is left in floats once they are quantized."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def recurrent(
    op: str, H: int = 128, I: int = 32, T: int | str = 20, direction: str = "forward", lengths: bool = False,
    opset: int = 21, **attributes: object,
) -> onnx.ModelProto:  # fmt: skip
    """A model of one node with weights as trained ones are large."""
    rng, D, rows = np.random.default_rng(0), 1 + (direction == "bidirectional"), GATES[op] * H
    sizes = {"W": (D, rows, I), "R": (D, rows, H), "B": (D, 2 * rows)}
    held = {name: rng.normal(0, H**-0.5, size).astype(np.float32) for name, size in sizes.items()}
    outputs = {"Y": [T, D, 1, H], "Y_h": [D, 1, H], "Y_c": [D, 1, H]}
    if op != "LSTM":
        del outputs["Y_c"]
    node = helper.make_node(
        op, ["x", *held, *(["lens"] if lengths else [])], list(outputs), "rnn", hidden_size=H, direction=direction,
        **attributes,
    )  # fmt: skip
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [T, 1, I])]
    if lengths:
        inputs.append(helper.make_tensor_value_info("lens", TensorProto.INT32, [1]))
    graph = helper.make_graph(
        [node], "recurrent", inputs,
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in held.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def samples(model: onnx.ModelProto, count: int = 16, seed: int = 1) -> dict[str, np.ndarray]:
    """Inputs stacked in front; lengths from 1 to that of x."""
    rng, found = np.random.default_rng(seed), {}
    for value in model.graph.input:
        shape = [count, *(dim.dim_value for dim in value.type.tensor_type.shape.dim)]
        if value.type.tensor_type.elem_type == TensorProto.INT32:
            found[value.name] = rng.integers(1, found["x"].shape[1] + 1, shape).astype(np.int32)
        else:
            found[value.name] = rng.uniform(-1, 1, shape).astype(np.float32)
    return found


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feeds)


def difference(model: onnx.ModelProto, quantized: onnx.ModelProto, stacked: dict[str, np.ndarray]) -> float:
    """The largest between two models, over samples."""
    count = len(next(iter(stacked.values())))
    each = [{name: array[i] for name, array in stacked.items()} for i in range(count)]
    pairs = [zip(run(model, one), run(quantized, one), strict=True) for one in each]
    return max(float(np.abs(a - b).max()) for pair in pairs for a, b in pair)


def products(model: onnx.ModelProto) -> tuple[int, int]:
    """How many products there are, and how many of them have an operand that is no DequantizeLinear's."""
    graphs, total, floats = [model.graph], 0, 0
    while graphs:
        graph = graphs.pop()
        makers = {output: node.op_type for node in graph.node for output in node.output}
        for node in graph.node:
            graphs += [attribute.g for attribute in node.attribute if attribute.HasField("g")]
            if node.op_type in ("MatMul", "Gemm"):
                total += 1
                floats += any(makers.get(name) != "DequantizeLinear" for name in node.input[:2])
    return total, floats


def matrices(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    """Initializers that are weights of products; a first state is a row."""
    return [tensor for tensor in model.graph.initializer if len(tensor.dims) == 2 and tensor.dims[0] > 1]
