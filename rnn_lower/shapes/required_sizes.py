"""Sizes of inputs that declarations leave open, but that weights require."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from rnn_lower.ir.walk import constant
from rnn_lower.lowering.node import Dim
from rnn_lower.shapes.expressions import names_in, solution
from rnn_lower.shapes.shape_info import ShapeInfo, symbol
from rnn_lower.transforms.strip_weights import outline_of

_RECURRENT = ((0, -1, 1, -1), (5, -1, 2, -1), (6, -1, 2, -1))

EQUAL: dict[str, tuple[tuple[int, int, int, int], ...]] = {
    "BatchNormalization": ((0, 1, 1, 0),), "ConvTranspose": ((0, 1, 1, 0),), "DynamicQuantizeLSTM": ((0, -1, 1, 1),),
    "GRU": _RECURRENT, "InstanceNormalization": ((0, 1, 1, 0),), "LSTM": _RECURRENT,
    "LayerNormalization": ((0, -1, 1, -1),), "MatMul": ((0, -1, 1, -2),), "MatMulInteger": ((0, -1, 1, -2),),
    "RNN": _RECURRENT,
}  # fmt: skip
"""Axes of equal size: index of an operand, its axis, and those of another operand."""

BROADCASTING = ("Add", "Div", "Mul", "Sub")


def required_sizes(model: ir.Model) -> dict[str, int]:
    """The numbers that nodes of the main graph require of symbols of the inputs, as far as inference carries these."""
    outline = outline_of(model)
    for value, info in zip(model.graph.inputs, outline.graph.input, strict=True):
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            if isinstance(name := symbol(value, axis), str):
                dim.dim_param = name
    named = ir.from_proto(outline)
    shape_info, required = ShapeInfo(named, outline), dict[str, int]()
    for node in named.graph:  # not in bodies, because a branch may be for other sizes
        shapes = [None if value is None else shape_info.shape(value) for value in node.inputs]
        for pair in _equal(node, shapes):
            names = [size for size in pair if isinstance(size, str)]
            numbers = [size for size in pair if isinstance(size, int)]
            required |= {name: number for name in names for number in numbers if name not in required}
    solved = {part: solution(name, part, number) for name, number in required.items() for part in names_in(name)}
    return {**{part: number for part, number in solved.items() if number is not None}, **required}


def _equal(node: ir.Node, shapes: Sequence[tuple[Dim, ...] | None]) -> Iterator[tuple[Dim, Dim]]:
    """The pairs of sizes that a node requires to be equal."""

    def size(operand: int, axis: int) -> Dim:
        shape = shapes[operand] if operand < len(shapes) else None
        return shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None

    if node.op_type in ("Conv", "ConvInteger"):
        channels = size(1, 1)
        yield size(0, 1), channels * node.attributes.get_int("group", 1) if isinstance(channels, int) else None
    elif node.op_type == "Gemm":
        yield size(0, 1 - node.attributes.get_int("transA", 0)), size(1, node.attributes.get_int("transB", 0))
    elif node.op_type == "Reshape" and len(node.inputs) > 1:
        yield from _reshaped(shapes[0], constant(node.inputs[1]))
    elif node.op_type in BROADCASTING:
        pairs = ((size(0, -k), size(1, -k)) for k in range(1, 1 + max(len(shape or ()) for shape in shapes)))
        yield from (pair for pair in pairs if 1 not in pair)
    for operand, axis, other, its_axis in EQUAL.get(node.op_type, ()):
        yield size(operand, axis), size(other, its_axis)


def _reshaped(shape: tuple[Dim, ...] | None, target: np.ndarray | None) -> Iterator[tuple[Dim, Dim]]:
    """The only free size of what a Reshape to constant sizes reads, and its number."""
    free = [size for size in shape or () if not isinstance(size, int)]
    others = math.prod(size for size in shape or () if isinstance(size, int))
    if len(free) == 1 and others and target is not None and (target > 0).all():
        yield free[0], math.prod(target.tolist()) // others
