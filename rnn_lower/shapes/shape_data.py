"""The sizes that a model computes itself, as exporters have it compute those of a Reshape.

onnx's inference follows such numbers too, but has been wrong with too much; this follows only what stands here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import onnx_ir as ir

from rnn_lower.builder.constants import known_tensor
from rnn_lower.ir.schemas import DEFAULT_DOMAINS
from rnn_lower.ir.walk import said
from rnn_lower.lowering.node import Dim, RecurrentNode
from rnn_lower.options import OP_TYPES
from rnn_lower.shapes.shape_info import Facts

DEEPEST = 100
"""How many nodes in a row are followed; each layer of a model takes about ten."""

NESTED = 8
"""The same for what computes one size; exporters need about five."""

Numbers = list[Dim]

_INT, _INTS = ir.AttributeType.INT, ir.AttributeType.INTS


def counted_sizes(node: RecurrentNode, facts: Facts) -> dict[str, int]:
    """seq_length and batch_size of a recurrent node as far as computed sizes tell them."""
    shape = counted_shape(node.inputs["X"], facts)
    if shape is None or len(shape) != 3:
        return {}
    found = {"seq_length": shape[node.layout], "batch_size": shape[1 - node.layout]}
    return {name: size for name, size in found.items() if isinstance(size, int)}


def counted_shape(value: ir.Value, facts: Facts) -> Sequence[Dim] | None:
    """The shape of a value as far as facts and computed sizes tell it; None where not even the rank is known."""
    known: dict[ir.Value, Sequence[Dim] | None] = {}  # each worked out once: every size of a Reshape asks again

    def shape(value: ir.Value, depth: int) -> Sequence[Dim] | None:
        if value not in known:
            known[value] = _followed(value, facts.shape(value), lambda one: shape(one, depth + 1), depth)
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
    if x is None or sizes is None or said(node, "allowzero", _INT, 0) != 0:
        return None
    given = shape(x) if 0 in sizes else ()
    if given is None or any(size == 0 and place >= len(given) for place, size in enumerate(sizes)):
        return None
    return [given[place] if size == 0 else None if size == -1 else size for place, size in enumerate(sizes)]


def _transpose(node: ir.Node, _: int, shape: Shape) -> Numbers | None:
    x = _input(node, 0)
    given = None if x is None else shape(x)
    if given is None:
        return None
    perm = said(node, "perm", _INTS, range(len(given))[::-1])
    return [given[axis] for axis in perm] if perm and sorted(perm) == list(range(len(given))) else None


def _recurrent(node: ir.Node, place: int, shape: Shape) -> Numbers | None:
    """Y [T, num_directions, N, hidden_size], of layout 0; the rest stands in the facts."""
    x = _input(node, 0)
    given = None if x is None else shape(x)
    if given is None or len(given) != 3 or place != 0 or said(node, "layout", _INT, 0) != 0:
        return None
    return [given[0], None, given[1], None]


def _input(node: ir.Node, place: int) -> ir.Value | None:
    return node.inputs[place] if place < len(node.inputs) else None


SHAPES: dict[str, Callable[[ir.Node, int, Shape], Numbers | None]] = {
    "Reshape": _reshape, "Transpose": _transpose, **dict.fromkeys(OP_TYPES, _recurrent),
}  # fmt: skip


def numbers(value: ir.Value, shape: Shape, depth: int = 0) -> Numbers | None:
    """The integers of a vector as far as they are known, sizes by name included; None where not even their count is."""
    tensor = known_tensor(value)
    if tensor is not None:
        plain = tensor.dtype.is_integer() and len(tensor.shape) == 1
        return [int(number) for number in tensor.numpy()] if plain else None
    node = value.producer()
    if node is None or node.domain not in DEFAULT_DOMAINS or None in node.inputs or not node.inputs or depth > NESTED:
        return None
    taken = [one for one in node.inputs if one is not None]
    if node.op_type == "Shape":
        found = shape(taken[0])
        start, end = (said(node, name, _INT, at) for name, at in (("start", 0), ("end", sys.maxsize)))
        return None if found is None or start is None or end is None else list(found)[start:end]
    count = VECTORS.get(node.op_type)
    vectors = [numbers(one, shape, depth + 1) for one in taken] if count is not None else []
    known = [one for one in vectors if one is not None]
    return None if count is None or len(known) < len(vectors) else count(known)


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
    return [rest[0] if len(rest) == 1 else 1 if not rest else None]


def _as_vector(vectors: Sequence[Numbers]) -> Numbers | None:
    return vectors[0] if len(vectors[0]) == 1 and vectors[1] in ([-1], [1]) else None


VECTORS: dict[str, Callable[[Sequence[Numbers]], Numbers | None]] = {
    "Concat": lambda vectors: [number for one in vectors for number in one],
    "Mul": _product,
    "Reshape": _as_vector,
    "Slice": _slice,
}
"""What nodes make of vectors of integers."""
