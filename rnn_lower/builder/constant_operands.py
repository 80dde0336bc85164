"""Fold nodes that only move constant weights: exporters concatenate, slice and transpose weights stored in parts.

torch's dynamo exporter emits W, R and B as Slice, Concat and Unsqueeze of its parameters if these are large, and models
that store weights in float16 widen them by a Cast. The results are constants too: a body can contain them, runtimes can
prepack them, and runtimes that require constant weights accept them. Nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from rnn_lower.builder import constants
from rnn_lower.builder.constants import Constant, from_tensor, moved
from rnn_lower.ir import walk
from rnn_lower.ir.schemas import DEFAULT_DOMAINS
from rnn_lower.ir.walk import known_tensor

DEEPEST = 12
"""The maximum number of producers to follow."""

NAME = "weight"
"""The suggested name of the results."""

MOVEMENTS: dict[str, tuple[str, ...]] = {
    "Cast": (),
    "Concat": (),
    "Identity": (),
    "Reshape": ("shape",),
    "Slice": ("starts", "ends", "axes", "steps"),
    "Split": ("split",),
    "Squeeze": ("axes",),
    "Transpose": ("perm",),
    "Unsqueeze": ("axes",),
}
"""By operator: its parameters that are lists of integers, in the order in which they are inputs at some versions."""


def _result(node: ir.Node, which: int, data: Sequence[Constant]) -> Constant | None:
    """Return output `which` of a node with these data inputs, or None if it is not supported."""
    op_type, x, number = node.op_type, data[0], node.attributes.get_int
    parameters = {}
    for index, name in enumerate(MOVEMENTS[op_type], 1):
        if (numbers := walk.integers(node, name, index, walk.constant)) is not None:
            parameters[name] = numbers
    if op_type == "Cast":
        dtype = ir.DataType(number("to"))
        return constants.cast(x, dtype, NAME) if np.can_cast(x.dtype.numpy(), dtype.numpy(), "safe") else None
    if op_type == "Concat":
        same = len({part.dtype for part in data}) == 1  # else it is invalid ONNX, which the runtime reports
        return moved(op_type, *data, name=NAME, axis=number("axis", 1)) if same else None  # version 1 has a default
    if op_type == "Split":  # without sizes, the number of equal parts depends on the operator version
        sizes = parameters["split"]
        start, axis = sum(sizes[:which]), number("axis", 0)
        return moved("Slice", x, name=NAME, starts=[start], ends=[start + sizes[which]], axes=[axis])
    if op_type == "Squeeze" and not parameters.get("axes"):
        # onnxruntime treats an empty list of axes like a missing one and removes all axes of size 1.
        parameters["axes"] = [axis for axis, size in enumerate(x.shape) if size == 1]
    if number("allowzero", 0):
        return None
    return moved(op_type, x, name=NAME, **parameters)


def known(value: ir.Value | None) -> Constant | None:
    """Return the constant content of a value: a tensor, or the result of nodes that move tensors; else None."""
    return _known(value, DEEPEST, {})


def _known(value: ir.Value | None, depth: int, seen: dict[ir.Value, Constant | None]) -> Constant | None:
    """Like `known`, but each value is computed once."""
    if value is None:
        return None
    if value not in seen:
        tensor = known_tensor(value)
        seen[value] = _computed(value, depth, seen) if tensor is None else from_tensor(tensor)
    return seen[value]


def _computed(value: ir.Value, depth: int, seen: dict[ir.Value, Constant | None]) -> Constant | None:
    """Return the constant that the producer of a value computes from constants, or None."""
    node = None if value.is_graph_input() else value.producer()
    if node is None or depth == 0 or node.domain not in DEFAULT_DOMAINS:
        return None
    if node.op_type not in MOVEMENTS or any(attribute.is_ref() for attribute in node.attributes.values()):
        return None
    data: list[Constant] = []
    for operand in node.inputs if node.op_type == "Concat" else node.inputs[:1]:
        constant = _known(operand, depth - 1, seen)
        if constant is None:  # the common case, so return early
            return None
        data.append(constant)
    for operand in node.inputs[len(data) :]:
        tensor = known_tensor(operand)
        if operand is not None and (tensor is None or not tensor.dtype.is_integer()):
            return None  # a parameter is known at run time only
    try:
        return _result(node, node.outputs.index(value), data) if data else None
    except (IndexError, KeyError, TypeError, ValueError, ZeroDivisionError):
        return None  # the node is invalid, and other code reports it


def operand_of(value: ir.Value) -> Constant | ir.Value:
    """Return a constant if the content of the value is known, else the value."""
    return known(value) or value
