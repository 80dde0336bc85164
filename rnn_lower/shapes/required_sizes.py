"""Sizes of inputs that declarations leave open, but that weights and constant shapes require."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lower.ir.schemas import DEFAULT_DOMAINS
from rnn_lower.ir.walk import constant, is_quantized
from rnn_lower.lowering.node import Dim
from rnn_lower.shapes.expressions import names_in, solution
from rnn_lower.shapes.shape_info import ShapeInfo, Symbol, symbol
from rnn_lower.transforms.strip_weights import outline_of

_RECURRENT = ((0, -1, 1, -1), (5, -1, 2, -1), (6, -1, 2, -1))

EQUAL: dict[str, tuple[tuple[int, int, int, int], ...]] = {
    "BatchNormalization": ((0, 1, 1, 0),), "ConvTranspose": ((0, 1, 1, 0),), "DynamicQuantizeLSTM": ((0, -1, 1, 1),),
    "GRU": _RECURRENT, "InstanceNormalization": ((0, 1, 1, 0),), "LSTM": _RECURRENT, "MatMul": ((0, -1, 1, -2),),
    "MatMulInteger": ((0, -1, 1, -2),), "RNN": _RECURRENT,
}  # fmt: skip
"""Axes of equal size: index of an operand, its axis, and those of another operand."""

BROADCASTING = ("Add", "Div", "LayerNormalization", "Mul", "Sub")
"""Operators whose first two operands have equal sizes, or one has size 1."""

Shapes = Sequence[tuple[Dim, ...] | None]


def required_sizes(model: ir.Model) -> Mapping[str, tuple[int, ...]]:
    """By symbol of an input, the sizes that the main graph allows: one, or also 1 if it is broadcast.

    As far as inference carries the symbols. Bodies do not count, because a branch may be for other sizes.
    """
    outline = _named_outline(model)
    if outline is None:
        return {}
    named: ir.Model = ir.from_proto(outline)
    shape_info, required, broadcast = ShapeInfo(named, outline), dict[str, int](), dict[str, int]()
    for node in named.graph:
        if node.domain in DEFAULT_DOMAINS or is_quantized(node):
            shapes = [None if value is None else shape_info.shape(value) for value in node.inputs]
            for sizes, pairs in ((required, _equal(node, shapes)), (broadcast, _aligned(node, shapes))):
                for name, number in (both for a, b in pairs for both in ((a, b), (b, a))):
                    if isinstance(name, str) and isinstance(number, int):
                        sizes.setdefault(name, number)
    solved = {part: solution(name, part, number) for name, number in required.items() for part in names_in(name)}
    required = {**{part: number for part, number in solved.items() if number is not None}, **required}
    return {**{name: (n, 1) for name, n in broadcast.items() if n > 1}, **{name: (n,) for name, n in required.items()}}


def exported_sizes(model: ir.Model) -> Mapping[Symbol, int]:
    """The sizes that a Reshape to constant sizes gives to axes which declarations leave open.

    Exporters write the sizes of their example so; the model may run with no others.
    """
    sizes = dict[Symbol, int]()
    for node, target in _targets(model):
        value = node.outputs[0]
        if target.shape == (len(value.shape or ()),):
            sizes |= {symbol(value, axis): int(target[axis]) for axis in range(target.size) if target[axis] > 0}
    for name, number in _same_axes(model):
        for part in names_in(name):
            if (size := solution(name, part, number)) is not None:
                sizes.setdefault(part, size)
        sizes.setdefault(name, number)
    return sizes


def _same_axes(model: ir.Model) -> Iterator[tuple[str, int]]:
    """The free sizes of what a Reshape reads, and the constant sizes that it gives to the same axes."""
    outline = _named_outline(model)
    if outline is None:
        return
    named: ir.Model = ir.from_proto(outline)
    shape_info = ShapeInfo(named, outline)
    for node, target in _targets(named):
        shape = None if node.inputs[0] is None else shape_info.shape(node.inputs[0])
        for name, number in zip(shape or (), target.ravel().tolist(), strict=False):
            if isinstance(name, str) and number > 0:
                yield name, number


def _targets(model: ir.Model) -> Iterator[tuple[ir.Node, np.ndarray]]:
    """Each Reshape to constant sizes, and these sizes."""
    shaped = ((node, constant(node.inputs[1])) for node in model.graph if _has_target(node))
    yield from ((node, target) for node, target in shaped if target is not None)


def _has_target(node: ir.Node) -> bool:
    return node.op_type == "Reshape" and node.domain in DEFAULT_DOMAINS and len(node.inputs) > 1


def _named_outline(model: ir.Model) -> onnx.ModelProto | None:
    """The model without weights, in which all free sizes of the inputs have names; None if there are none."""
    axes = [(value, axis) for value in model.graph.inputs for axis in range(len(value.shape or ()))]
    if all(isinstance(symbol(value, axis), int) for value, axis in axes):
        return None
    outline = outline_of(model)
    for value, info in zip(model.graph.inputs, outline.graph.input, strict=True):
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            if isinstance(name := symbol(value, axis), str):
                dim.dim_param = name
    return outline


def _equal(node: ir.Node, shapes: Shapes) -> Iterator[tuple[Dim, Dim]]:
    """The pairs of sizes that a node requires to be equal."""

    def size(operand: int, axis: int) -> Dim:
        shape = shapes[operand] if operand < len(shapes) else None
        return shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None

    if node.op_type in ("Conv", "ConvInteger"):
        channels = size(1, 1)
        yield size(0, 1), channels * node.attributes.get_int("group", 1) if isinstance(channels, int) else None
    elif node.op_type == "Gemm":
        yield size(0, 1 - node.attributes.get_int("transA", 0)), size(1, node.attributes.get_int("transB", 0))
    elif _has_target(node):
        yield from _reshaped(shapes[0], constant(node.inputs[1]))
    for operand, axis, other, its_axis in EQUAL.get(node.op_type, ()):
        yield size(operand, axis), size(other, its_axis)


def _reshaped(shape: tuple[Dim, ...] | None, target: np.ndarray | None) -> Iterator[tuple[Dim, Dim]]:
    """The only free size of the input of a Reshape to constant sizes, and its number."""
    free = [size for size in shape or () if not isinstance(size, int)]
    others = math.prod(size for size in shape or () if isinstance(size, int))
    if len(free) == 1 and others and target is not None and (target > 0).all():
        size, rest = divmod(math.prod(target.tolist()), others)
        if not rest:
            yield free[0], size


def _aligned(node: ir.Node, shapes: Shapes) -> Iterator[tuple[Dim, Dim]]:
    """The pairs of sizes that a node requires to be equal unless one is 1."""
    a, b = [*shapes, None, None][:2] if node.op_type in BROADCASTING else (None, None)
    return zip((a or ())[::-1], (b or ())[::-1], strict=False)
