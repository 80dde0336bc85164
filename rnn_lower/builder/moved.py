"""Constants that nodes of the model only move: exporters join, cut and turn the weights that they have in pieces.

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

from rnn_lower.builder.constants import Constant, fold, from_tensor, known_tensor
from rnn_lower.ir.schemas import DEFAULT_DOMAINS

DEEPEST = 12
"""So many nodes in a row are followed."""

Parameters = Callable[[str, int], Any]
"""A parameter by its name as an attribute and its place as an input; None when it is not given."""


@dataclasses.dataclass(frozen=True)
class Done:
    """What a node does, as `fold` takes it. what: its name and parameters.  dtype: None for that of the data."""

    what: tuple[Any, ...]
    compute: Callable[..., np.ndarray]
    dtype: ir.DataType | None = None


Move = Callable[[Parameters, int, "list[Constant]"], "Done | None"]
"""(parameters, which output, data) -> what is done; None: not followed."""


def _axes(given: Parameters, rank: int) -> tuple[int, ...] | None:
    axes = given("axes", 1)
    return None if axes is None else tuple(axis % rank for axis in axes)


def _squeeze(given: Parameters, _: int, data: list[Constant]) -> Done | None:
    # onnxruntime takes no axes at all as if none were given: all of size 1 go.
    axes = _axes(given, len(data[0].shape)) or None
    return Done(("squeeze", *(axes or ("all",))), lambda x: np.squeeze(x, axes))


def _unsqueeze(given: Parameters, _: int, data: list[Constant]) -> Done | None:
    axes = _axes(given, len(data[0].shape) + len(given("axes", 1)))
    return Done(("unsqueeze", *(axes or ())), lambda x: np.expand_dims(x, axes or ()))


def _transpose(given: Parameters, _: int, data: list[Constant]) -> Done | None:
    perm = given("perm", 9) or tuple(reversed(range(len(data[0].shape))))
    return Done(("transpose", *perm), lambda x: np.transpose(x, perm))


def _concat(given: Parameters, _: int, data: list[Constant]) -> Done | None:
    if len({one.dtype for one in data}) > 1:  # no model of ONNX; whoever runs it says so
        return None
    axis = given("axis", 99)
    axis = (1 if axis is None else axis) % len(data[0].shape)  # version 1 has a default
    return Done(("concat", axis), lambda *parts: np.concatenate(parts, axis))


def _slice(given: Parameters, _: int, data: list[Constant]) -> Done | None:
    starts, ends, axes, steps = (
        given(name, place) for place, name in enumerate(("starts", "ends", "axes", "steps"), 1)
    )
    index = [slice(None)] * len(data[0].shape)
    for k, axis in enumerate(range(len(starts)) if axes is None else axes):
        index[axis] = slice(starts[k], ends[k], 1 if steps is None else steps[k])
    what = tuple((one.start, one.stop, one.step) for one in index)
    return Done(("move slice", what), lambda x: x[tuple(index)])


def _reshape(given: Parameters, _: int, data: list[Constant]) -> Done | None:
    shape = given("shape", 1)
    if given("allowzero", 99):
        return None
    sizes = [data[0].shape[k] if size == 0 else size for k, size in enumerate(shape)]
    return Done(("reshape", *sizes), lambda x: np.reshape(x, sizes))


def _split(given: Parameters, which: int, data: list[Constant]) -> Done | None:
    axis, sizes = given("axis", 99) or 0, given("split", 1)
    if sizes is None:  # equal parts, whose number versions tell in different ways
        return None
    end = sum(sizes[: which + 1])
    index = [slice(None)] * len(data[0].shape)
    index[axis] = slice(end - sizes[which], end)
    return Done(("split", axis, end, sizes[which]), lambda x: x[tuple(index)])


def _cast(given: Parameters, _: int, data: list[Constant]) -> Done | None:
    dtype = ir.DataType(given("to", 99))
    if not np.can_cast(data[0].dtype.numpy(), dtype.numpy(), "safe"):
        return None
    return Done(("cast", dtype), lambda x: x.astype(dtype.numpy()), dtype)


MOVES: dict[str, tuple[int | None, Move]] = {
    "Cast": (1, _cast),
    "Concat": (None, _concat),
    "Identity": (1, lambda *_: Done(("identity",), lambda x: x)),
    "Reshape": (1, _reshape),
    "Slice": (1, _slice),
    "Split": (1, _split),
    "Squeeze": (1, _squeeze),
    "Transpose": (1, _transpose),
    "Unsqueeze": (1, _unsqueeze),
}
"""By operator: how many of its inputs are data, None for all, and what it does. The others are parameters."""


def known(value: ir.Value | None, depth: int = DEEPEST) -> Constant | None:
    """What a value holds when that is known now: a constant, or constants that nodes have moved."""
    tensor = known_tensor(value)
    if tensor is not None:
        return from_tensor(tensor)
    node = None if value is None or value.is_graph_input() else value.producer()
    if value is None or node is None or depth == 0 or node.domain not in DEFAULT_DOMAINS:
        return None
    count, move = MOVES.get(node.op_type, (0, None))
    if move is None or any(attribute.is_ref() for attribute in node.attributes.values()):
        return None
    data: list[Constant] = []
    for one in node.inputs[:count]:
        held = known(one, depth - 1)
        if held is None:  # as most are: nothing more has to be looked at
            return None
        data.append(held)
    if not data:
        return None
    try:
        done = move(_parameters(node), node.outputs.index(value), data)
        return None if done is None else fold(done.what, done.compute, *data, name="weight", dtype=done.dtype)
    except (IndexError, KeyError, TypeError, ValueError, ZeroDivisionError):
        return None  # the node contradicts itself, and it is not for us to say so


class _UnknownError(ValueError):
    """A parameter is there, and known at run time only."""


def _parameters(node: ir.Node) -> Parameters:
    def given(name: str, place: int) -> Any:
        attribute = node.attributes.get(name)
        if attribute is not None:
            content = attribute.value
            return tuple(content) if isinstance(content, Sequence) else content
        value = node.inputs[place] if place < len(node.inputs) else None
        if value is None:
            return None
        tensor = known_tensor(value)
        if tensor is None:
            raise _UnknownError(name)
        if not tensor.dtype.is_integer():
            raise TypeError(name)
        return tuple(int(number) for number in tensor.numpy().ravel())

    return given


def operand_of(value: ir.Value) -> Constant | ir.Value:
    """A constant when the content of the value is known now, else the value."""
    return known(value) or value
