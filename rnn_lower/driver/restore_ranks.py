"""Declare ranks and sizes of results that inference no longer finds, such as those of a Loop or a call.

Others rely on inference: onnxruntime takes no body of a Scan that gives something of unknown rank, and what a Loop of
no trips gives has the shape that was inferred. A function declares no shapes, and may be called in such a body; there
a Reshape to the same sizes tells the rank.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from rnn_lower.builder.names import Names
from rnn_lower.builder.versions import takes_integers
from rnn_lower.ir.walk import Scope
from rnn_lower.lowering.node import RecurrentNode


def with_ranks(
    emitted: list[ir.Node], outputs: Mapping[str, ir.Value], node: RecurrentNode, scope: Scope, names: Names
) -> dict[str, ir.Value]:
    """The results by name, with the shapes that the node knows; nodes needed for this are added to `emitted`."""

    def emit(name: str, op_type: str, *inputs: ir.Value, **attributes: ir.Attr) -> ir.Value:
        name = names.unique(f"{node.name}/{name}")
        emitted.append(ir.Node("", op_type, inputs, attributes.values(), name=name, outputs=[ir.Value(name=name)]))
        emitted[-1].metadata_props.update(node.origin)
        return emitted[-1].outputs[0]

    def result(name: str, new: ir.Value) -> ir.Value:
        old, sizes = node.outputs[name], node.known_shape(name)
        if scope.in_function and takes_integers("Constant", scope.opset):  # from when there are bodies of a Scan, too
            same = ir.AttrTensor("value", ir.tensor(np.zeros(len(sizes), np.int64)))  # 0 keeps the size at its axis
            shape = emit(f"{name}/same_sizes", "Constant", value=same)
            return emit(f"{name}/of_known_rank", "Reshape", new, shape)
        if old.shape is not None:
            return new
        new.type, new.shape = ir.TensorType(node.dtype), ir.Shape(sizes)
        if not _is_declared_without(old, scope):
            return new
        return emit(f"{name}/of_known_rank", "Identity", new)

    return {name: result(name, new) for name, new in outputs.items()}


def _is_declared_without(value: ir.Value, scope: Scope) -> bool:
    """Whether a graph output declares this value without a shape, so that another value must carry the shape."""
    inside = scope.graph is not scope.root or bool(value.uses())
    return value.is_graph_output() and inside and not scope.in_function
