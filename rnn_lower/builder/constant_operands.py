"""Constants that nodes of the model only move: exporters concatenate, slice and transpose weights that are in parts.

torch's dynamo exporter leaves W, R and B as Slice, Concat and Unsqueeze of its parameters when these are large, and
models whose weights are stored in float16 widen them by a Cast. What such nodes make of constants is a constant too, so
that it can lie in a body, prepacked, and serves runtimes that take no others. Nothing is rounded.
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
"""So many nodes in a row are followed."""

Parameters = Callable[[str, int], Any]
"""A parameter by its name as an attribute and its place as an input; None when it is not given."""


@dataclasses.dataclass(frozen=True)
class Moved:
    """What a node does, as `fold` takes it.

    what: its name and parameters.  dtype: None for that of the data.  shape: None where views of the data tell it.
    """

    what: tuple[Any, ...]
    compute: Callable[..., np.ndarray]
    dtype: ir.DataType | None = None
    shape: tuple[int, ...] | None = None


Move = Callable[[Parameters, int, "list[Constant]"], "Moved | None"]
"""(parameters, which output, data) -> what is done; None: not followed."""


def _axes(parameter: Parameters, rank: int) -> tuple[int, ...] | None:
    axes = parameter("axes", 1)
    return None if axes is None else tuple(axis % rank for axis in axes)


def _squeeze(parameter: Parameters, _: int, data: list[Constant]) -> Moved | None:
    # onnxruntime takes no axes at all as if none were given: all of size 1 go.
    axes = _axes(parameter, len(data[0].shape)) or None
    return Moved(("squeeze", *(axes or ("all",))), lambda x: np.squeeze(x, axes))


def _unsqueeze(parameter: Parameters, _: int, data: list[Constant]) -> Moved | None:
    axes = _axes(parameter, len(data[0].shape) + len(parameter("axes", 1)))
    return Moved(("unsqueeze", *(axes or ())), lambda x: np.expand_dims(x, axes or ()))


def _transpose(parameter: Parameters, _: int, data: list[Constant]) -> Moved | None:
    perm = parameter("perm", 9) or tuple(reversed(range(len(data[0].shape))))
    return Moved(("transpose", *perm), lambda x: np.transpose(x, perm))


def _concat(parameter: Parameters, _: int, data: list[Constant]) -> Moved | None:
    if len({constant.dtype for constant in data}) > 1:  # no model of ONNX; whoever runs it says so
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
    if sizes is None:  # equal parts, whose number versions tell in different ways
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
"""By operator: how many of its inputs are data, None for all, and what it does. The others are parameters."""


def known(value: ir.Value | None) -> Constant | None:
    """The constant that a value holds when it is known now: a tensor, or what nodes that move data make of tensors."""
    return _known(value, DEEPEST, {})


def _known(value: ir.Value | None, depth: int, seen: dict[ir.Value, Constant | None]) -> Constant | None:
    """As `known`, each value once."""
    if value is None:
        return None
    if value not in seen:
        tensor = known_tensor(value)
        seen[value] = _computed(value, depth, seen) if tensor is None else from_tensor(tensor)
    return seen[value]


def _computed(value: ir.Value, depth: int, seen: dict[ir.Value, Constant | None]) -> Constant | None:
    """The constant that the producer of a value makes of constants."""
    node = None if value.is_graph_input() else value.producer()
    if node is None or depth == 0 or node.domain not in DEFAULT_DOMAINS:
        return None
    count, move = MOVEMENTS.get(node.op_type, (0, None))
    if move is None or any(attribute.is_ref() for attribute in node.attributes.values()):
        return None
    data: list[Constant] = []
    for operand in node.inputs[:count]:
        constant = _known(operand, depth - 1, seen)
        if constant is None:  # as most are: nothing more has to be looked at
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
        return None  # the node contradicts itself, and it is not for us to report it


class _UnknownError(ValueError):
    """A parameter is there, and known at run time only."""


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
    """A constant when the content of the value is known now, else the value."""
    return known(value) or value
