"""Make native recurrent nodes fail on inputs without steps, rows or features, which would crash the process.

Before every X a few nodes pass it on, or make onnxruntime raise an error that contains NAME:

    empty = int(not bool(Size(X)));  X' = Reshape(X, Shape(X) + Gather([0], empty))      Gather([0], 1) is an error
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper

from rnn_lower.ir import protobuf
from rnn_lower.lowering.node import RecurrentNode
from rnn_lower.proving.model_diff import is_recurrent

NAME = "rnn_lower/guard"


def needed(nodes: Sequence[RecurrentNode]) -> bool:
    """Whether X of any recurrent node may be empty."""
    return not all(node.static_length and node.static_batch and node.input_size for node in nodes)


def add(model: onnx.ModelProto) -> onnx.ModelProto:
    """Guard every recurrent node of a model, in place."""
    for number, holder in enumerate(protobuf.holders(model)):
        if any(map(is_recurrent, holder.node)):
            copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in holder.node]
            del holder.node[:]
            for index, node in enumerate(copies):
                if is_recurrent(node) and node.input:
                    x, node.input[0] = node.input[0], f"{NAME}/{number}/{index}/x"
                    holder.node.extend(_checks(x, f"{NAME}/{number}/{index}"))
                holder.node.append(node)
    return model


def _checks(x: str, name: str) -> list[onnx.NodeProto]:
    zero = onnx.numpy_helper.from_array(np.zeros(1, np.float64))
    rows: list[tuple[str, list[str | None], str, dict[str, object]]] = [  # None stands for x
        ("Constant", [], "zeros_double", {"value": zero}),
        ("Cast", ["zeros_double"], "zeros", {"to": onnx.TensorProto.INT64}),  # opset 7 has no integer Constant
        ("Shape", [None], "shape", {}),
        ("Size", [None], "size", {}),
        ("Cast", ["size"], "some", {"to": onnx.TensorProto.BOOL}),
        ("Not", ["some"], "none", {}),
        ("Cast", ["none"], "empty", {"to": onnx.TensorProto.INT64}),
        ("Gather", ["zeros", "empty"], "zero", {}),
        ("Add", ["shape", "zero"], "same_shape", {}),
        ("Reshape", [None, "same_shape"], "x", {}),
    ]

    def full(part: str | None) -> str:
        return x if part is None else f"{name}/{part}"

    return [helper.make_node(op, [*map(full, parts)], [full(out)], full(out), **at) for op, parts, out, at in rows]
