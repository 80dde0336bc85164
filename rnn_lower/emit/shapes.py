"""What is certain of the type and shape of an emitted value, from those of the operands.

Runtimes infer shapes too, but not everywhere (a size that two operands name differently is unknown to them), and some
plan by them: onnxruntime searches all buffers that are free when the size of a new one is unknown, and never uses them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir

Dims = tuple[int | str | None, ...]
"""A size is known, or the same as every other of that name, or unknown."""


@dataclasses.dataclass(frozen=True)
class Outline:
    """dims: None when even the rank is unknown."""

    dtype: ir.DataType | None = None
    dims: Dims | None = None


UNKNOWN = Outline()

Rule = Callable[[Sequence[Dims], Mapping[str, Any]], Sequence[Dims | None]]
"""Shapes of the operands, all of known rank, and parameters -> shapes of the outputs."""


def outlines(op_type: str, operands: Sequence[Outline], parameters: Mapping[str, Any], count: int) -> list[Outline]:
    """What is certain of the `count` outputs of a node. Parameters are those of `Emitter.op`."""
    rule, shapes = _RULES.get(op_type), [operand.dims for operand in operands if operand.dims is not None]
    found: Sequence[Dims | None] = (None,) * count
    if rule is not None and len(shapes) == len(operands):
        found = rule(shapes, parameters)
    dtype = _DTYPES.get(op_type)
    if dtype is None and rule is not None:
        dtype = operands[1 if op_type == "Where" else 0].dtype
    return [Outline(dtype, dims) for dims in found]


def _same(shapes: Sequence[Dims], parameters: Mapping[str, Any]) -> list[Dims]:
    return [shapes[0]]


def _broadcast(shapes: Sequence[Dims], parameters: Mapping[str, Any]) -> list[Dims]:
    rank = max(map(len, shapes))
    columns = zip(*((1,) * (rank - len(dims)) + dims for dims in shapes), strict=True)
    return [tuple(map(_broadcast_size, columns))]


def _broadcast_size(sizes: Sequence[int | str | None]) -> int | str | None:
    others = {size for size in sizes if size != 1}
    if len(others) <= 1:
        return next(iter(others), 1)
    return next((size for size in others if isinstance(size, int)), None)  # what is unknown is that or 1


def _matmul(shapes: Sequence[Dims], parameters: Mapping[str, Any]) -> list[Dims | None]:
    a, b = shapes
    return [(*a[:-1], b[1]) if len(a) >= 2 and len(b) == 2 else None]


def _transpose(shapes: Sequence[Dims], parameters: Mapping[str, Any]) -> list[Dims]:
    return [tuple(shapes[0][axis] for axis in parameters["perm"])]


def _squeeze(shapes: Sequence[Dims], parameters: Mapping[str, Any]) -> list[Dims]:
    return [tuple(size for axis, size in enumerate(shapes[0]) if axis not in parameters["axes"])]


def _unsqueeze(shapes: Sequence[Dims], parameters: Mapping[str, Any]) -> list[Dims]:
    dims = list(shapes[0])
    for axis in parameters["axes"]:
        dims.insert(axis, 1)
    return [tuple(dims)]


def _slice(shapes: Sequence[Dims], parameters: Mapping[str, Any]) -> list[Dims]:
    (start,), (end,), (axis,), dims = parameters["starts"], parameters["ends"], parameters["axes"], shapes[0]
    size = dims[axis]
    return [_at(dims, axis, max(0, min(end, size) - start) if isinstance(size, int) else None)]


def _split(shapes: Sequence[Dims], parameters: Mapping[str, Any]) -> list[Dims]:
    return [_at(shapes[0], parameters["axis"], size) for size in parameters["split"]]


def _concat(shapes: Sequence[Dims], parameters: Mapping[str, Any]) -> list[Dims]:
    axis = parameters["axis"]
    sizes = [dims[axis] for dims in shapes]
    known = [size for size in sizes if isinstance(size, int)]
    others = zip(*(_at(dims, axis, None) for dims in shapes), strict=True)
    same = tuple(next((size for size in column if size is not None), None) for column in others)
    return [_at(same, axis, sum(known) if len(known) == len(sizes) else None)]


def _gather(shapes: Sequence[Dims], parameters: Mapping[str, Any]) -> list[Dims]:
    data, index = shapes
    return [(*index, *data[1:])]


def _reshape(shapes: Sequence[Dims], parameters: Mapping[str, Any]) -> list[Dims | None]:
    if "shape" not in parameters:  # computed at run time
        return [None]
    wanted = [shapes[0][axis] if size == 0 else size for axis, size in enumerate(parameters["shape"])]
    all_elements, others = _product(shapes[0]), _product([size for size in wanted if size != -1])
    rest = all_elements // others if all_elements is not None and others else None
    return [tuple(rest if size == -1 else size for size in wanted)]


def _product(sizes: Sequence[int | str | None]) -> int | None:
    known = [size for size in sizes if isinstance(size, int)]
    return math.prod(known) if len(known) == len(sizes) else None


def _rank(shapes: Sequence[Dims], parameters: Mapping[str, Any]) -> list[Dims]:
    return [(len(shapes[0]),)]


def _at(dims: Dims, axis: int, size: int | str | None) -> Dims:
    return (*dims[:axis], size, *dims[axis + 1 :])


_UNARY = (
    "Abs", "Cast", "Clip", "Elu", "Exp", "HardSigmoid", "Identity", "LeakyRelu", "Log", "Reciprocal", "Relu",
    "Sigmoid", "Softplus", "Softsign", "Tanh", "ThresholdedRelu",
)  # fmt: skip

_RULES: dict[str, Rule] = {
    **dict.fromkeys(_UNARY, _same),
    **dict.fromkeys(("Add", "Div", "Less", "Max", "Min", "Mul", "Sub", "Where"), _broadcast),
    "Concat": _concat,
    "Gather": _gather,
    "MatMul": _matmul,
    "Reshape": _reshape,
    "Shape": _rank,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}

_DTYPES = {"Less": ir.DataType.BOOL, "Shape": ir.DataType.INT64}
"""Where the element type is not that of the data."""
