"""Fold nodes that only move constant weights: exporters concatenate, slice and transpose weights stored in parts.

torch's dynamo exporter emits W, R and B as Slice, Concat and Unsqueeze of its parameters if these are large, and models
that store weights in float16 widen them by a Cast. The results are constants too: a body can contain them, runtimes can
prepack them, and runtimes that require constant weights accept them. Nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from rnn_lower.builder import constants
from rnn_lower.builder.constants import Constant, fold, from_tensor
from rnn_lower.ir import walk
from rnn_lower.ir.schemas import DEFAULT_DOMAINS
from rnn_lower.ir.walk import known_tensor

DEEPEST = 12
"""The maximum number of producers to follow."""

NAME = "weight"
"""The suggested name of the results."""

Move = Callable[..., "Constant | None"]
"""(node, output index, *data) -> the result, or None if this is not supported. The node's parameters are known."""


def _integers(node: ir.Node, name: str, index: int = 99) -> list[int] | None:
    """Return a parameter that is an attribute or an input, or None if it is absent."""
    return walk.integers(node, name, index, walk.constant)


def _identity(node: ir.Node, _: int, x: Constant) -> Constant:
    return fold(("identity",), lambda array: array, x, name=NAME)


def _squeeze(node: ir.Node, _: int, x: Constant) -> Constant:
    # onnxruntime treats an empty list of axes like a missing one and removes all axes of size 1.
    axes = _integers(node, "axes", 1) or [axis for axis, size in enumerate(x.shape) if size == 1]
    return constants.squeeze(x, axes, NAME)


def _unsqueeze(node: ir.Node, _: int, x: Constant) -> Constant | None:
    axes = _integers(node, "axes", 1)
    return None if axes is None else constants.unsqueeze(x, axes, NAME)


def _transpose(node: ir.Node, _: int, x: Constant) -> Constant:
    return constants.transpose(x, _integers(node, "perm") or range(len(x.shape))[::-1], NAME)


def _concat(node: ir.Node, _: int, *parts: Constant) -> Constant | None:
    if len({part.dtype for part in parts}) > 1:  # invalid ONNX; the runtime reports it
        return None
    return constants.concat(parts, node.attributes.get_int("axis", 1), NAME)  # version 1 has a default


def _slice(node: ir.Node, _: int, x: Constant) -> Constant | None:
    starts, ends, axes, steps = (
        _integers(node, name, index) for index, name in enumerate(("starts", "ends", "axes", "steps"), 1)
    )
    if starts is None or ends is None:
        return None
    for k, axis in enumerate(range(len(starts)) if axes is None else axes):
        bounds = slice(starts[k], ends[k], 1 if steps is None else steps[k])
        x = constants.slice_of(x, axis % len(x.shape), bounds, NAME)
    return x


def _reshape(node: ir.Node, _: int, x: Constant) -> Constant | None:
    shape = _integers(node, "shape", 1)
    if shape is None or node.attributes.get_int("allowzero", 0) != 0:
        return None
    return constants.reshape(x, [x.shape[axis] if size == 0 else size for axis, size in enumerate(shape)], NAME)


def _split(node: ir.Node, which: int, x: Constant) -> Constant | None:
    axis, sizes = node.attributes.get_int("axis", 0), _integers(node, "split", 1)
    if sizes is None:  # equal parts, whose number depends on the operator version
        return None
    start = sum(sizes[:which])
    return constants.slice_of(x, axis % len(x.shape), slice(start, start + sizes[which]), NAME)


def _cast(node: ir.Node, _: int, x: Constant) -> Constant | None:
    dtype = ir.DataType(node.attributes.get_int("to"))
    return constants.cast(x, dtype, NAME) if np.can_cast(x.dtype.numpy(), dtype.numpy(), "safe") else None


MOVEMENTS: dict[str, tuple[int | None, Move]] = {
    "Cast": (1, _cast),
    "Concat": (None, _concat),
    "Identity": (1, _identity),
    "Reshape": (1, _reshape),
    "Slice": (1, _slice),
    "Split": (1, _split),
    "Squeeze": (1, _squeeze),
    "Transpose": (1, _transpose),
    "Unsqueeze": (1, _unsqueeze),
}
"""By operator: the number of data inputs (None: all inputs; otherwise the rest are parameters), and the movement."""


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
    count, move = MOVEMENTS.get(node.op_type, (0, None))
    if move is None or any(attribute.is_ref() for attribute in node.attributes.values()):
        return None
    data: list[Constant] = []
    for operand in node.inputs[:count]:
        constant = _known(operand, depth - 1, seen)
        if constant is None:  # the common case, so return early
            return None
        data.append(constant)
    for operand in node.inputs[len(data) :]:
        tensor = known_tensor(operand)
        if operand is not None and (tensor is None or not tensor.dtype.is_integer()):
            return None  # a parameter is known at run time only
    try:
        return move(node, node.outputs.index(value), *data) if data else None
    except (IndexError, KeyError, TypeError, ValueError, ZeroDivisionError):
        return None  # the node is invalid, and other code reports it


def operand_of(value: ir.Value) -> Constant | ir.Value:
    """Return a constant if the content of the value is known, else the value."""
    return known(value) or value
