"""Fold nodes that only move constant weights: exporters concatenate, slice and transpose weights stored in parts.

torch's dynamo exporter emits W, R and B as Slice, Concat and Unsqueeze of its parameters if these are large, and models
that store weights in float16 widen them by a Cast. The results are constants too: a body can contain them, runtimes can
prepack them, and runtimes that require constant weights accept them. Nothing is rounded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from rnn_lower.builder.constants import Constant, fold, from_tensor
from rnn_lower.ir.schemas import DEFAULT_DOMAINS
from rnn_lower.ir.walk import known_tensor

DEEPEST = 12
"""The maximum number of producers to follow."""

Parameters = Callable[[str, int], Any]
"""Returns a parameter by its attribute name and its input index, or None if it is absent."""


@dataclasses.dataclass(frozen=True)
class Moved:
    """The result of a data-movement node, as arguments of `fold`.

    what: its name and parameters.  dtype: None for that of the data.  shape: None if it can be computed from views.
    """

    what: tuple[Any, ...]
    compute: Callable[..., np.ndarray]
    dtype: ir.DataType | None = None
    shape: tuple[int, ...] | None = None


Move = Callable[[Parameters, int, "list[Constant]"], "Moved | None"]
"""(parameters, output index, data) -> the movement, or None if it is not supported."""


def _axes(parameter: Parameters, rank: int) -> tuple[int, ...] | None:
    axes = parameter("axes", 1)
    return None if axes is None else tuple(axis % rank for axis in axes)


def _squeeze(parameter: Parameters, _: int, data: list[Constant]) -> Moved | None:
    # onnxruntime treats an empty list of axes like a missing one and removes all axes of size 1.
    axes = _axes(parameter, len(data[0].shape)) or None
    return Moved(("squeeze", *(axes or ("all",))), lambda x: np.squeeze(x, axes))


def _unsqueeze(parameter: Parameters, _: int, data: list[Constant]) -> Moved | None:
    axes = _axes(parameter, len(data[0].shape) + len(parameter("axes", 1)))
    return Moved(("unsqueeze", *(axes or ())), lambda x: np.expand_dims(x, axes or ()))


def _transpose(parameter: Parameters, _: int, data: list[Constant]) -> Moved | None:
    perm = parameter("perm", 9) or tuple(reversed(range(len(data[0].shape))))
    return Moved(("transpose", *perm), lambda x: np.transpose(x, perm))


def _concat(parameter: Parameters, _: int, data: list[Constant]) -> Moved | None:
    if len({constant.dtype for constant in data}) > 1:  # invalid ONNX; the runtime reports it
        return None
    axis = parameter("axis", 99)
    axis = (1 if axis is None else axis) % len(data[0].shape)  # version 1 has a default
    shape = list(data[0].shape)
    shape[axis] = sum(part.shape[axis] for part in data)
    return Moved(("concat", axis), lambda *parts: np.concatenate(parts, axis), shape=tuple(shape))


def _slice(parameter: Parameters, _: int, data: list[Constant]) -> Moved | None:
    starts, ends, axes, steps = (
        parameter(name, position) for position, name in enumerate(("starts", "ends", "axes", "steps"), 1)
    )
    index = [slice(None)] * len(data[0].shape)
    for k, axis in enumerate(range(len(starts)) if axes is None else axes):
        index[axis] = slice(starts[k], ends[k], 1 if steps is None else steps[k])
    what = tuple((part.start, part.stop, part.step) for part in index)
    return Moved(("move slice", what), lambda x: x[tuple(index)])


def _reshape(parameter: Parameters, _: int, data: list[Constant]) -> Moved | None:
    shape = parameter("shape", 1)
    if parameter("allowzero", 99):
        return None
    sizes = [data[0].shape[k] if size == 0 else size for k, size in enumerate(shape)]
    return Moved(("reshape", *sizes), lambda x: np.reshape(x, sizes))


def _split(parameter: Parameters, which: int, data: list[Constant]) -> Moved | None:
    axis, sizes = parameter("axis", 99) or 0, parameter("split", 1)
    if sizes is None:  # equal parts, whose number depends on the operator version
        return None
    end = sum(sizes[: which + 1])
    index = [slice(None)] * len(data[0].shape)
    index[axis] = slice(end - sizes[which], end)
    return Moved(("split", axis, end, sizes[which]), lambda x: x[tuple(index)])


def _cast(parameter: Parameters, _: int, data: list[Constant]) -> Moved | None:
    dtype = ir.DataType(parameter("to", 99))
    if not np.can_cast(data[0].dtype.numpy(), dtype.numpy(), "safe"):
        return None
    return Moved(("cast", dtype), lambda x: x.astype(dtype.numpy()), dtype, data[0].shape)


MOVEMENTS: dict[str, tuple[int | None, Move]] = {
    "Cast": (1, _cast),
    "Concat": (None, _concat),
    "Identity": (1, lambda *_: Moved(("identity",), lambda x: x)),
    "Reshape": (1, _reshape),
    "Slice": (1, _slice),
    "Split": (1, _split),
    "Squeeze": (1, _squeeze),
    "Transpose": (1, _transpose),
    "Unsqueeze": (1, _unsqueeze),
}
"""By operator: the number of data inputs (None for all; the others are parameters), and the movement."""


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
    if not data:
        return None
    try:
        moved = move(_parameters(node), node.outputs.index(value), data)
        if moved is None:
            return None
        shape = (
            moved.shape
            or moved.compute(*(np.broadcast_to(np.int8(0), operand_constant.shape) for operand_constant in data)).shape
        )
        return fold(moved.what, moved.compute, *data, shape=shape, name="weight", dtype=moved.dtype)
    except (IndexError, KeyError, TypeError, ValueError, ZeroDivisionError):
        return None  # the node is invalid, and other code reports it


class _UnknownError(ValueError):
    """A parameter exists but is known at run time only."""


def _parameters(node: ir.Node) -> Parameters:
    def parameter(name: str, index: int) -> Any:
        attribute = node.attributes.get(name)
        if attribute is not None:
            content = attribute.value
            return tuple(content) if isinstance(content, Sequence) else content
        value = node.inputs[index] if index < len(node.inputs) else None
        if value is None:
            return None
        tensor = known_tensor(value)
        if tensor is None:
            raise _UnknownError(name)
        if not tensor.dtype.is_integer():
            raise TypeError(name)
        return tuple(int(number) for number in tensor.numpy().ravel())

    return parameter


def operand_of(value: ir.Value) -> Constant | ir.Value:
    """Return a constant if the content of the value is known, else the value."""
    return known(value) or value
