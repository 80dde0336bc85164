"""A model of free sizes, as an exporter writes it, and the sizes that a model declares."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def two_layers(baked: int = 10) -> onnx.ModelProto:
    """As an exporter writes it: a Reshape to computed sizes between two layers, and an output of a traced length."""
    rng = np.random.default_rng(0)

    def weights(layer: int, size: int) -> list[onnx.TensorProto]:
        shapes = {f"W{layer}": (1, 18, size), f"R{layer}": (1, 18, 6)}
        return [numpy_helper.from_array(rng.normal(size=s).astype(np.float32), name) for name, s in shapes.items()]

    def declared(name: str, *sizes: int | str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes)

    nodes = [
        helper.make_node("Transpose", ["x"], ["xt"], perm=[1, 0, 2]),
        helper.make_node("GRU", ["xt", "W0", "R0"], ["y0"], "first", hidden_size=6),
        helper.make_node("Transpose", ["y0"], ["y0t"], perm=[0, 2, 1, 3]),
        helper.make_node("Shape", ["y0t"], ["s"]),
        helper.make_node("Slice", ["s", "b", "e"], ["s2"]),
        helper.make_node("Concat", ["s2", "rest"], ["s3"], axis=0),
        helper.make_node("Reshape", ["y0t", "s3"], ["x1"]),
        helper.make_node("GRU", ["x1", "W1", "R1"], ["y1"], "second", hidden_size=6),
        helper.make_node("Squeeze", ["y1", "one"], ["y1s"]),
        helper.make_node("Transpose", ["y1s"], ["out"], perm=[1, 0, 2]),
    ]
    numbers = {"b": [0], "e": [2], "rest": [-1], "one": [1]}
    graph = helper.make_graph(
        nodes, "g", [declared("x", "batch", "time", 4)], [declared("out", "batch", baked, 6)],
        [*weights(0, 4), *weights(1, 6), *(numpy_helper.from_array(np.array(v, np.int64), n) for n, v in numbers.items())],
        value_info=[declared("xt", "time", "batch", 4), declared("x1", "time", "batch", 6), declared("y1s", baked, 1, 6)],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def sizes(model: onnx.ModelProto, name: str) -> list[int | str | None]:
    infos = {info.name: info for info in (*model.graph.input, *model.graph.output, *model.graph.value_info)}
    dims = infos[name].type.tensor_type.shape.dim
    return [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in dims]
