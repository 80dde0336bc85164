"""Which constants every runtime computes as onnx's evaluator does, but for rounding; and which operators jump with it.

Kernels differ at the edges of element types: they compute 16-bit floats in 32 bits and integers in doubles, and do not
agree on NaN. Code that replaces a node by its result must leave such nodes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from rnn_lower.builder.constants import ends_behind
from rnn_lower.ir.traits import DATA_MOVEMENT, MEASURING
from rnn_lower.ir.walk import integers

MOVING = frozenset((
    *DATA_MOVEMENT, "Compress", "ConstantOfShape", "DepthToSpace", "EyeLike", "GatherElements", "GatherND", "NonZero",
    "OneHot", "Pad", "ReverseSequence", "ScatterElements", "ScatterND", "Shape", "Size", "SpaceToDepth", "Tile",
    "Trilu", "Where",
))  # fmt: skip
"""Operators whose results are elements of their operands, or count them; they compute no numbers."""

OF_INTEGERS = frozenset((
    "Abs", "Add", "And", "ArgMax", "ArgMin", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Clip", "CumSum",
    "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or",
    "Range", "ReduceMax", "ReduceMin", "Sign", "Sub", "Sum", "TopK", "Xor",
))  # fmt: skip
"""Operators that compute integers in integers, which wrap around; others compute in floats or in other orders."""

EXACT = MOVING | {
    "Abs", "Add", "Cast", "CastLike", "Ceil", "Clip", "Constant", "Div", "Equal", "Floor", "Greater", "GreaterOrEqual",
    "Less", "LessOrEqual", "Max", "Min", "Mul", "Neg", "ReduceMax", "ReduceMin", "Relu", "Round", "Sign", "Sqrt", "Sub",
}  # fmt: skip
"""Operators whose results in float32 and float64 are the same on all runtimes, to the last digit."""

JUMPING = frozenset((
    "ArgMax", "ArgMin", "CastLike", "Ceil", "DynamicQuantizeLinear", "Equal", "Floor", "Greater", "GreaterOrEqual",
    "Hardmax", "IsInf", "IsNaN", "Less", "LessOrEqual", "Mod", "NonMaxSuppression", "NonZero", "OneHot",
    "QuantizeLinear", "Range", "Resize", "Round", "Shrink", "Sign", "ThresholdedRelu", "TopK", "Unique", "Upsample",
))  # fmt: skip
"""Operators that may compute something else if one of their operands is rounded differently, and do not round."""

SUMMED = ("ReduceL1", "ReduceMean", "ReduceSum")
"""Operators that sum int64 in doubles on onnxruntime; other integers may wrap around."""

QUANTIZED = ("MatMulInteger", "QuantizeLinear")
"""Operators that are certain for 8-bit integers only."""

USUAL = ("bool", "float32", "float64", "int32", "int64")
"""The element types in which runtimes compute; 16-bit floats become wider in between."""

CAST = (*USUAL, "bfloat16", "float16", "int16", "int8", "uint16", "uint32", "uint64", "uint8")
"""The element types to which casts are defined alike."""

LARGEST_EXACT = 2.0**53
"""The limit of the integers that all have a double."""


def is_certain(node: ir.Node, operands: Sequence[np.ndarray | None]) -> bool:
    """Whether runtimes compute from these constants what the evaluator computes. operands: None for absent ones."""
    try:
        return _agrees(node, operands)
    except (IndexError, KeyError, TypeError, ValueError):  # of an invalid node, which a run reports
        return False


def rounds(node: ir.Node, operands: Sequence[np.ndarray | None]) -> bool:
    """Whether runtimes may round what a node computes from these floats in different ways."""
    floats = [array for array in operands if array is not None and array.dtype.kind in "fV"]
    if node.op_type == "Pow":
        return not all(bool((np.trunc(wide := array.astype(np.float64)) == wide).all()) for array in floats)
    return bool(floats) and node.op_type not in EXACT | JUMPING


def passes_rounding(node: ir.Node) -> bool:
    """Whether a node passes on how its operands are rounded; a node that jumps depends on it in another way."""
    return node.op_type not in MEASURING and not jumps(node)


def jumps(node: ir.Node) -> bool:
    """Whether a node may compute something else if one of its operands is rounded differently."""
    if node.op_type != "Cast":
        return node.op_type in JUMPING
    try:
        return not ir.DataType.from_numpy(_numpy_type(node.attributes["to"].value)).is_floating_point()
    except (KeyError, TypeError, ValueError):  # of an invalid node, or an attribute of a function
        return False


def _numpy_type(to: int | str) -> np.dtype[Any]:
    """The type to which a Cast casts; before opset 6, a word names it."""
    return np.dtype((ir.DataType[to] if isinstance(to, str) else ir.DataType(to)).numpy())


def _agrees(node: ir.Node, operands: Sequence[np.ndarray | None]) -> bool:
    op, arrays = node.op_type, [array for array in operands if array is not None]
    if any(array.dtype.kind in "OSU" for array in arrays):
        return False
    if op in MOVING:
        return _moves_alike(node, operands)
    if not arrays:  # such as a Constant
        return True
    if not all(map(_is_finite, arrays)):
        return False
    if op in ("Cast", "CastLike"):
        return _casts_alike(node, arrays)
    types = {str(array.dtype) for array in arrays}
    if op in QUANTIZED:
        return types <= {"float32", "int8", "uint8"}
    x = arrays[0]
    if op == "DequantizeLinear":
        return str(x.dtype) not in USUAL and str(arrays[1].dtype) == "float32"
    if op.startswith("Reduce") and not x.size:
        return False
    is_whole = x.dtype.kind in "bi"
    if is_whole and op in SUMMED:
        return x.dtype == np.int64 and float(np.abs(x.astype(np.float64)).sum()) < LARGEST_EXACT
    return types <= {*USUAL} and (not is_whole or op in OF_INTEGERS)


def _is_finite(array: np.ndarray) -> bool:
    return array.dtype.kind not in "fV" or bool(np.isfinite(array.astype(np.float64)).all())


def _moves_alike(node: ir.Node, operands: Sequence[np.ndarray | None]) -> bool:
    """Whether runtimes agree on where elements go."""
    x, arrays = operands[0] if operands else None, dict(zip(node.inputs, operands, strict=False))
    if node.op_type == "NonZero":
        return x is None or x.ndim > 0
    if node.op_type == "Unsqueeze":
        axes = integers(node, "axes", 1, arrays.get) or []
        return axes == sorted(axes) and (len(axes) < 2 or axes[0] >= 0)
    if node.op_type.startswith("Scatter"):
        return node.attributes.get_string("reduction", "none") == "none"
    return node.op_type != "Slice" or x is None or not _is_backwards(node, x, arrays.get)


def _is_backwards(node: ir.Node, x: np.ndarray, array_of: Callable[[ir.Value], np.ndarray | None]) -> bool:
    """Whether a Slice with a negative step begins before the first element, or ends behind the last one."""
    names = ("starts", "ends", "axes", "steps")
    starts, ends, axes, steps = (integers(node, name, k, array_of) for k, name in enumerate(names, 1))
    if starts is None or ends is None or steps is None:
        return False
    bounds = zip(axes or range(len(starts)), starts, steps, strict=False)
    begins_before = any(step < 0 and start < -x.shape[axis] for axis, start, step in bounds)
    return begins_before or ends_behind(x.shape, ends, axes, steps)


def _casts_alike(node: ir.Node, arrays: Sequence[np.ndarray]) -> bool:
    """Whether runtimes agree on a cast; they round doubles to 16 bits in one or in two steps."""
    x = arrays[0]
    goal = arrays[1].dtype if node.op_type == "CastLike" else _numpy_type(node.attributes["to"].value)
    if str(goal) not in (CAST if str(x.dtype) in CAST else USUAL):
        return False
    if str(goal) in ("bfloat16", "float16"):
        return str(x.dtype) in ("bfloat16", "bool", "float16", "float32")
    if goal.kind not in "iu" or x.dtype.kind not in "fV":
        return True
    bounds, numbers = ml_dtypes.iinfo(goal), x.astype(np.float64)
    return bool((np.trunc(numbers) >= bounds.min).all() and (numbers < float(bounds.max) + 1).all())
