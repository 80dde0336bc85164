"""The sizes that a model computes itself, as exporters have it compute those of a Reshape.

onnx's inference follows such numbers too, but has been wrong with too much; this follows only what stands here.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir

from rnn_lower.builder.constants import known_tensor
from rnn_lower.ir.schemas import DEFAULT_DOMAINS
from rnn_lower.ir.walk import get_attribute
from rnn_lower.lowering.node import Dim
from rnn_lower.options import OP_TYPES

if TYPE_CHECKING:
    from rnn_lower.shapes.shape_info import Facts

DEEPEST = 100
"""How many nodes in a row are followed; each layer of a model takes about ten."""

NESTED = 8
"""The same for what computes one size; exporters need about five."""

Numbers = list[Dim]

_INT, _INTS = ir.AttributeType.INT, ir.AttributeType.INTS


def counted_shape(value: ir.Value, facts: Facts, inferred_only: bool = False) -> Sequence[Dim] | None:
    """The shape of a value as far as facts and computed sizes tell it; None where not even the rank is known.

    inferred_only: names of sizes that are only declared do not count.
    """
    known: dict[ir.Value, Sequence[Dim] | None] = {}  # each worked out once: every size of a Reshape asks again

    text = facts.verified_shape if inferred_only else facts.shape

    def shape(value: ir.Value, depth: int) -> Sequence[Dim] | None:
        if value not in known:
            known[value] = _followed(value, text(value), lambda one: shape(one, depth + 1), depth)
        return known[value]

    return shape(value, 0)


Shape = Callable[[ir.Value], Sequence[Dim] | None]


def _followed(value: ir.Value, known: Sequence[Dim] | None, shape: Shape, depth: int) -> Sequence[Dim] | None:
    producer = value.producer()
    follow = None if producer is None or producer.domain not in DEFAULT_DOMAINS else SHAPES.get(producer.op_type)
    if (known is not None and None not in known) or follow is None or producer is None or depth > DEEPEST:
        return known
    found = follow(producer, value.index() or 0, shape)
    if found is None or (known is not None and len(known) != len(found)):
        return known
    return [new if old is None else old for old, new in zip(known or [None] * len(found), found, strict=True)]


def _reshape(node: ir.Node, _: int, shape: Shape) -> Numbers | None:
    x, target = _input(node, 0), _input(node, 1)
    sizes = None if target is None else numbers(target, shape)
    if x is None or sizes is None or get_attribute(node, "allowzero", _INT, 0) != 0:
        return None
    input_shape = shape(x) if 0 in sizes or -1 in sizes else ()
    if 0 in sizes and (
        input_shape is None or any(size == 0 and axis >= len(input_shape) for axis, size in enumerate(sizes))
    ):
        return None
    kept = [input_shape[axis] if size == 0 and input_shape else size for axis, size in enumerate(sizes)]
    return [_rest(input_shape, kept) if size == -1 else size for size in kept]


def _rest(input_shape: Sequence[Dim] | None, sizes: Sequence[Dim]) -> Dim:
    """The size that -1 stands for: what the other sizes, numbers or names, leave of the elements."""
    if input_shape is None:
        return None
    before, after = list(input_shape), [size for size in sizes if size != -1]
    for size in [one for one in after if isinstance(one, str)]:
        if size in before:
            before.remove(size)
            after.remove(size)
    if len(before) == 1 and not [size for size in after if size != 1]:
        return before[0]
    numbers_before = [one for one in before if isinstance(one, int)]
    numbers_after = [one for one in after if isinstance(one, int)]
    names = [one for one in before if not isinstance(one, int)]
    if len(numbers_after) < len(after) or 0 in numbers_after:
        return None
    left, rest = divmod(math.prod(numbers_before), math.prod(numbers_after))
    if not names:
        return left if not rest else None
    return names[0] if len(names) == 1 and left == 1 and not rest else None


def _transpose(node: ir.Node, _: int, shape: Shape) -> Numbers | None:
    x = _input(node, 0)
    input_shape = None if x is None else shape(x)
    if input_shape is None:
        return None
    perm = get_attribute(node, "perm", _INTS, range(len(input_shape))[::-1])
    return [input_shape[axis] for axis in perm] if perm and sorted(perm) == list(range(len(input_shape))) else None


def _recurrent(node: ir.Node, place: int, shape: Shape) -> Numbers | None:
    """Y [T, num_directions, N, hidden_size], of layout 0; the rest stands in the facts."""
    x = _input(node, 0)
    input_shape = None if x is None else shape(x)
    if input_shape is None or len(input_shape) != 3 or place != 0 or get_attribute(node, "layout", _INT, 0) != 0:
        return None
    return [input_shape[0], None, input_shape[1], None]


def _constant_of_shape(node: ir.Node, _: int, shape: Shape) -> Numbers | None:
    target = _input(node, 0)
    return None if target is None else numbers(target, shape)


def _expand(node: ir.Node, _: int, shape: Shape) -> Numbers | None:
    x, target = _input(node, 0), _input(node, 1)
    input_shape = None if x is None else shape(x)
    sizes = None if target is None else numbers(target, shape)
    if input_shape is None or sizes is None:
        return None
    count = max(len(input_shape), len(sizes))
    one: Numbers = [1]
    pairs = zip(*(one * (count - len(dims)) + list(dims) for dims in (input_shape, sizes)), strict=True)
    return [b if a == 1 else a if b in (1, a) or (isinstance(a, int) and a > 1) else None for a, b in pairs]


def _input(node: ir.Node, place: int) -> ir.Value | None:
    return node.inputs[place] if place < len(node.inputs) else None


SHAPES: dict[str, Callable[[ir.Node, int, Shape], Numbers | None]] = {
    "Reshape": _reshape, "Transpose": _transpose, "Expand": _expand,
    "ConstantOfShape": _constant_of_shape, **dict.fromkeys(OP_TYPES, _recurrent),
}  # fmt: skip


def numbers(value: ir.Value, shape: Shape, depth: int = 0) -> Numbers | None:
    """The integers of a vector as far as they are known, sizes by name included; None where not even their count is.

    A single number is a vector of one.
    """
    tensor = known_tensor(value)
    if tensor is not None:
        plain = tensor.dtype.is_integer() and len(tensor.shape) <= 1
        return [int(number) for number in tensor.numpy().ravel()] if plain else None
    node = value.producer()
    if node is None or node.domain not in DEFAULT_DOMAINS or None in node.inputs or not node.inputs or depth > NESTED:
        return None
    operands = [one for one in node.inputs if one is not None]
    if node.op_type == "Shape":
        found = shape(operands[0])
        start, end = (get_attribute(node, name, _INT, at) for name, at in (("start", 0), ("end", sys.maxsize)))
        return None if found is None or start is None or end is None else list(found)[start:end]
    if node.op_type in ("Squeeze", "Unsqueeze", "Cast"):
        return _alike(node, operands[0], shape, depth)
    count = VECTORS.get(node.op_type)
    vectors = [numbers(one, shape, depth + 1) for one in operands] if count is not None else []
    known = [one for one in vectors if one is not None]
    return None if count is None or len(known) < len(vectors) else count(known)


def _alike(node: ir.Node, value: ir.Value, shape: Shape, depth: int) -> Numbers | None:
    """The numbers of what only changes its rank, between a number and a vector of one, or its integer type."""
    found = numbers(value, shape, depth + 1)
    if node.op_type == "Cast":
        to = get_attribute(node, "to", _INT, None)
        return found if to in (ir.DataType.INT64, ir.DataType.INT32) else None
    return found if found is not None and len(found) == 1 else None


def _slice(vectors: Sequence[Numbers]) -> Numbers | None:
    """Of one axis, with no steps."""
    places = [one[0] for one in vectors[1:] if len(one) == 1]
    if not 3 <= len(vectors) <= 4 or len(places) < len(vectors) - 1 or any(place != 0 for place in places[2:]):
        return None
    start, end = places[:2]
    return vectors[0][start:end] if isinstance(start, int) and isinstance(end, int) else None


def _product(vectors: Sequence[Numbers]) -> Numbers | None:
    """Of two vectors of one number."""
    if any(len(one) != 1 for one in vectors):
        return None
    rest = [one[0] for one in vectors if one[0] != 1]
    if all(isinstance(one, int) for one in rest):
        return [math.prod(one for one in rest if isinstance(one, int))]
    return [rest[0] if len(rest) == 1 else None]


def _gather(vectors: Sequence[Numbers]) -> Numbers | None:
    """Of a vector, by known places."""
    found, places = vectors
    if not all(isinstance(place, int) and -len(found) <= place < len(found) for place in places):
        return None
    return [found[place] for place in places if isinstance(place, int)]


def _arithmetic(operation: Callable[[int, int], int]) -> Callable[[Sequence[Numbers]], Numbers | None]:
    def of(vectors: Sequence[Numbers]) -> Numbers | None:
        if len(vectors) != 2 or any(len(one) != 1 for one in vectors):
            return None
        a, b = vectors[0][0], vectors[1][0]
        return [operation(a, b) if isinstance(a, int) and isinstance(b, int) else None]

    return of


def _quotient(a: int, b: int) -> int:
    """Rounded to zero; what is divided by 0 never runs."""
    return 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _first(vectors: Sequence[Numbers]) -> Numbers:
    return vectors[0]


def _as_vector(vectors: Sequence[Numbers]) -> Numbers | None:
    return vectors[0] if len(vectors[0]) == 1 and vectors[1] in ([-1], [1]) else None


VECTORS: dict[str, Callable[[Sequence[Numbers]], Numbers | None]] = {
    "Concat": lambda vectors: [number for one in vectors for number in one],
    "Mul": _product,
    "Reshape": _as_vector,
    "Slice": _slice,
    "Gather": _gather,
    "Add": _arithmetic(operator.add),
    "Sub": _arithmetic(operator.sub),
    "Div": _arithmetic(_quotient),
    "Identity": _first,
}
"""What nodes make of vectors of integers."""
