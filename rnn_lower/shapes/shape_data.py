"""The sizes that a model computes at run time, such as exporters emit for a Reshape.

onnx's inference follows such numbers too, but has been wrong with too much; this follows only what stands here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir

from rnn_lower.ir.schemas import DEFAULT_DOMAINS
from rnn_lower.ir.walk import get_attribute, known_tensor
from rnn_lower.lowering.node import Dim
from rnn_lower.options import OP_TYPES
from rnn_lower.shapes.size_values import LONGEST, SizeValue, computed_sizes, constant_sizes, shape_sizes
from rnn_lower.shapes.sizes import ONE, UNKNOWN, Size, product, size

if TYPE_CHECKING:
    from rnn_lower.shapes.shape_info import ShapeInfo

DEEPEST = 100
"""The maximum length of a chain of nodes to follow; each layer of a model takes about ten."""

NESTED = 8
"""The maximum length of a chain of nodes that computes one size; exporters need about five."""

_INT, _INTS = ir.AttributeType.INT, ir.AttributeType.INTS

_NAMELESS = "\0size"
"""The prefix of symbols for sizes without a name."""


def computed_shape(value: ir.Value, shape_info: ShapeInfo) -> Sequence[Dim] | None:
    """The shape of a value from inference and computed sizes; None if not even the rank is known."""
    known: dict[ir.Value, list[Size] | None] = {}  # each worked out once: every size of a Reshape asks again

    def shape(value: ir.Value, depth: int) -> list[Size] | None:
        if value not in known:
            dims = shape_info.verified_shape(value)  # names of sizes that are only declared do not count
            known[value] = _followed(value, dims, lambda source: shape(source, depth + 1), depth)
        return known[value]

    sizes = shape(value, 0)
    return None if sizes is None else list(map(_dim, sizes))


Shape = Callable[[ir.Value], "list[Size] | None"]


def _dim(length: Size) -> Dim:
    if length.number is not None:
        return length.number
    return length.of[0] if len(length.of) == 1 and length.times == 1 and not length.of[0].startswith("\0") else None


def _followed(value: ir.Value, dims: Sequence[Dim] | None, shape: Shape, depth: int) -> list[Size] | None:
    producer = value.producer()
    found: InferredShape | None = None if dims is None else [None if dim is None else size(dim) for dim in dims]
    follow = None if producer is None or producer.domain not in DEFAULT_DOMAINS else SHAPES.get(producer.op_type)
    if follow is not None and producer is not None and depth <= DEEPEST and (found is None or None in found):
        inferred = follow(producer, value.index() or 0, shape)
        if found is None:
            found = inferred
        elif inferred is not None and len(inferred) == len(found):
            found = [new if old is None else old for old, new in zip(found, inferred, strict=True)]
    if found is None:
        return None
    return [size(f"{_NAMELESS}{value.name}#{axis}") if dim is None else dim for axis, dim in enumerate(found)]


InferredShape = Sequence["Size | None"]


def _reshape(node: ir.Node, _: int, shape: Shape) -> InferredShape | None:
    target = _target(node, 1, shape)
    if target is None or (size(0) in target and get_attribute(node, "allowzero", _INT, 0) != 0):
        return None
    have = _data(node, shape) if {size(0), size(-1)} & {*target} else []
    if size(0) in target and (have is None or any(dim == size(0) for dim in target[len(have) :])):
        return None
    copied = [have[axis] if dim == size(0) and have else dim for axis, dim in enumerate(target)]
    divisor = product(dim for dim in copied if dim != size(-1))
    rest = None if have is None else product(have).over(divisor)
    return [rest if dim == size(-1) else dim for dim in copied]


def _transpose(node: ir.Node, _: int, shape: Shape) -> InferredShape | None:
    have = _data(node, shape)
    if have is None:
        return None
    perm = get_attribute(node, "perm", _INTS, range(len(have))[::-1])
    return [have[axis] for axis in perm] if perm and sorted(perm) == list(range(len(have))) else None


def _recurrent(node: ir.Node, index: int, shape: Shape) -> InferredShape | None:
    """Y [T, num_directions, N, hidden_size] or the final states [num_directions, N, hidden_size]; layout 1: N first.

    onnx infers them from opset 7 on, but for T and N only if both are numbers.
    """
    have, layout = _data(node, shape), get_attribute(node, "layout", _INT, 0)
    direction = get_attribute(node, "direction", ir.AttributeType.STRING, "forward")
    if have is None or len(have) != 3 or None in (layout, direction):
        return None
    count, units = size(2 if direction == "bidirectional" else 1), get_attribute(node, "hidden_size", _INT, 0)
    time, batch = have[1::-1] if layout else have[:2]
    state = [batch, count] if layout else [count, batch]
    sequence = [batch, time, count] if layout else [time, count, batch]
    return [*(state if index else sequence), size(units) if units else None]


def _expand(node: ir.Node, _: int, shape: Shape) -> InferredShape | None:
    have, target = _data(node, shape), _target(node, 1, shape)
    if have is None or target is None:
        return None
    count = max(len(have), len(target))
    pairs = zip(*([ONE] * (count - len(sizes)) + list(sizes) for sizes in (have, target)), strict=True)
    return [b if a == ONE else a if b in (ONE, a) or (a.number or 0) > 1 else None for a, b in pairs]


def _slice(node: ir.Node, _: int, shape: Shape) -> InferredShape | None:
    """The shape of a Slice whose bounds are computed, as exporters emit for chunks; other axes stay as they are."""
    have, columns = _data(node, shape), [_target(node, index, shape) for index in range(1, 5)]
    count = len(columns[0] or ())
    for index, default in ((3, range(count)), (4, (1,) * count)):
        if len(node.inputs) <= index or node.inputs[index] is None:
            columns[index - 1] = list(map(size, default))
    bounds = [column for column in columns if column is not None and len(column) == count]
    if have is None or len(bounds) < len(columns):
        return None
    result: list[Size | None] = list(have)
    for start, end, axis, step in zip(*bounds, strict=True):
        if axis.number is None or not -len(have) <= axis.number < len(have):
            return None
        numbers = [n for n in (have[axis.number].number, start.number, end.number, step.number) if n is not None]
        known = len(numbers) == 4 and step.number
        result[axis.number] = size(len(range(numbers[0])[slice(*numbers[1:])])) if known else None
    return result


def _top_k(node: ir.Node, _: int, shape: Shape) -> InferredShape | None:
    """The shape of a TopK whose k is an input, as in exports that sort sequences by length."""
    have, count, axis = _data(node, shape), _target(node, 1, shape), get_attribute(node, "axis", _INT, -1)
    if have is None or count is None or len(count) != 1 or not -len(have) <= axis < len(have):
        return None
    return [count[0] if k == axis % len(have) else dim for k, dim in enumerate(have)]


SHAPES: dict[str, Callable[[ir.Node, int, Shape], InferredShape | None]] = {
    "Reshape": _reshape, "Transpose": _transpose, "Expand": _expand, "Slice": _slice,
    "ConstantOfShape": lambda node, _, shape: _target(node, 0, shape), "TopK": _top_k,
    **dict.fromkeys(OP_TYPES, _recurrent),
}  # fmt: skip


def _data(node: ir.Node, shape: Shape) -> Sequence[Size] | None:
    """The shape of the first input."""
    value = next(iter(node.inputs), None)
    return None if value is None else shape(value)


def _target(node: ir.Node, index: int, shape: Shape) -> Sequence[Size] | None:
    """The sizes that an input contains; None if not even their number is known."""
    value = node.inputs[index] if index < len(node.inputs) else None
    content = None if value is None else _value(value, shape, 0)
    return None if content is None else content.elements


def _value(value: ir.Value, shape: Shape, depth: int) -> SizeValue | None:
    tensor, node = known_tensor(value), value.producer()
    if tensor is not None:
        return constant_sizes(tensor.numpy()) if tensor.size <= LONGEST else None
    if node is None or node.domain not in DEFAULT_DOMAINS or depth > NESTED:
        return None
    if node.op_type == "Shape":
        sizes = None if node.inputs[0] is None else shape(node.inputs[0])
        return None if sizes is None else shape_sizes(node, sizes)
    operands = [None if operand is None else _value(operand, shape, depth + 1) for operand in node.inputs]
    return computed_sizes(node, operands, lambda index: size(f"{UNKNOWN}{value.name}#{index}"))
