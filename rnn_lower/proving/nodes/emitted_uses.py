"""The operators that lowering may emit, the uses of them that a proof covers, and where they select elements.

Only some sizes are compared, so a use must behave the same at lengths that are not.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from rnn_lower.ir.schemas import WITH_BODIES
from rnn_lower.ir.walk import constant
from rnn_lower.proving.exact.call import Call, WrongError, cast_type, element_type
from rnn_lower.proving.exact.elementwise import bounds_of

COPIES = ("Cast", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
"""Operators whose results are elements of their first input."""


def _binary(call: Call) -> str:
    """A binary operator on two floats or two integers."""
    if len(call.node.inputs) != 2:
        return f"{call.label} has {len(call.node.inputs)} operands, but the proof supports only 2"
    a, b = call[0], call[1]
    if a.dtype != b.dtype:
        raise WrongError(f"the operands of {call.label} have different types, {element_type(a)} and {element_type(b)}")
    # A quotient may first differ, and a product may first wrap, at a longer length.
    longer = call.node.op_type in ("Div", "Mul") and a.dtype == np.int64
    unsupported = a.dtype == np.bool_ or longer
    return (
        f"{call.label} has operands of type {element_type(a)}, which the proof does not support" if unsupported else ""
    )


def may_divide_by_zero(call: Call) -> bool:
    """Whether some inputs make the divisor of floats zero, or the operand of a Log; random elements never do."""
    divisor = call.node.inputs[-1]
    if call.node.op_type not in ("Div", "Log", "Reciprocal") or call[0].dtype != np.uint64:
        return False
    array = constant(divisor)
    return not (_is_positive(divisor) if array is None else np.all(array))


def _is_positive(value: ir.Value | None, least: float = 1e-30, depth: int = 5) -> bool:
    """Whether a value is never below `least`, by the operators that compute it, the last of `depth`."""
    array = constant(value)
    node = None if value is None else value.producer()
    if array is not None:
        return bool(np.all(array >= least))
    if node is None or not depth:
        return False
    if node.op_type in ("Abs", "Exp", "Relu", "Sigmoid"):
        return not least
    if node.op_type == "Add":
        a, b = node.inputs
        return any(_is_positive(x, least, depth - 1) and _is_positive(y, 0, depth - 1) for x, y in ((a, b), (b, a)))
    if node.op_type == "Max":
        return any(_is_positive(operand, least, depth - 1) for operand in node.inputs)
    return node.op_type in COPIES and _is_positive(node.inputs[0], least, depth - 1)


def _float(call: Call) -> str:
    call.real(0)
    return ""


def _clip(call: Call) -> str:
    if None not in bounds_of(call):  # constant bounds with min <= max were matched by `algebraic_patterns`
        raise WrongError(f"a bound of {call.label} is not a constant, or min is greater than max")
    if any(bound.ndim for bound in bounds_of(call) if bound is not None):
        raise WrongError(f"a bound of {call.label} is not a scalar")
    return _float(call)


def _cast(call: Call) -> str:
    """A Cast; narrow integers are out of scope, because they may wrap around."""
    dtype = cast_type(call.attribute("to"))
    exact = dtype in (ir.DataType.INT32, ir.DataType.INT64, ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.BOOL)
    return (
        ""
        if exact or call[0].dtype == np.uint64
        else f"{call.label} casts integers to {dtype.name}, which the proof does not support"
    )


def _conv(call: Call) -> str:
    """A Conv with a kernel of size 1: a product over the channels at each position."""
    unusual = call.node.attributes.keys() - {"kernel_shape", "group"} or call.attribute("group", 1) != 1
    plain = call[0].ndim == call[1].ndim == 4 and call[1].shape[2:] == (1, 1) and len(call.inputs) == 2
    return "" if plain and not unusual else f"{call.label} is not a 1 x 1 convolution"


def _matmul(call: Call) -> str:
    a, b = call[0], call[1]
    same_batch = min(a.ndim, b.ndim) > 1 and (b.ndim == 2 or a.shape[:-2] == b.shape[:-2])
    what = "the proof supports only matrices, and stacks of matrices whose leading sizes are equal"
    return "" if same_batch else f"{call.label} has operands of shapes {a.shape} and {b.shape}, but {what}"


def _slice(call: Call) -> str:
    """A Slice; one that ends beyond its input is out of scope, because a longer sequence would give other elements.

    A flip reads all elements of any length, backwards.
    """
    starts, ends, axes, steps = (
        call.parameter(name, k) for k, name in enumerate(("starts", "ends", "axes", "steps"), 1)
    )
    lists = [numbers for numbers in (starts, ends, axes, steps) if numbers is not None]
    on_axes = {axis % call[0].ndim for axis in axes or ()}
    if len(set(map(len, lists))) != 1 or len(on_axes) != len(axes or ()):
        raise WrongError(
            f"the starts, ends, axes and steps of {call.label} have different lengths, or its axes "
            "contain an axis twice"
        )
    if (starts, steps) == ([-1], [-1]) and ends is not None and max(ends) <= -(1 << 31):
        return ""
    for index, axis in enumerate(range(len(starts or ())) if axes is None else axes):
        size, start, end = call[0].shape[axis], (starts or ())[index], (ends or ())[index]
        if not (-size <= start <= size and -size <= end <= size):
            return f"{call.label} slices from {start} to {end}, but the size of the axis is only {size}"
    return f"{call.label} has the input 'steps', which the proof does not support" if steps is not None else ""


def _transpose(call: Call) -> str:
    perm = call.attribute("perm")
    if perm is not None and sorted(perm) != [*range(call[0].ndim)]:
        raise WrongError(f"the perm of {call.label} is {list(perm)}, which is not a permutation of {call[0].ndim} axes")
    return ""


def _constant_of_shape(call: Call) -> str:
    value = call.attribute("value")
    if value is not None and list(value.shape) != [1]:
        raise WrongError(f"attribute 'value' of {call.label} has shape {list(value.shape)} instead of [1]")
    return ""


def _tile(call: Call) -> str:
    if call[1].size != call[0].ndim:
        raise WrongError(
            f"input 'repeats' of {call.label} has length {call[1].size}, but the repeated tensor has "
            f"rank {call[0].ndim}"
        )
    is_row = all(size == 1 or count == 1 for size, count in zip(call[0].shape, call[1].ravel(), strict=True))
    return "" if is_row else f"{call.label} repeats more than one element"


def _where(call: Call) -> str:
    """A Where of numbers; onnxruntime has none of truth values."""
    return f"{call.label} selects truth values, which the proof does not support" if call[1].dtype == np.bool_ else ""


def _range(call: Call) -> str:
    """A Range; steps other than 1 and -1 divide, so that a longer sequence may give other sizes."""
    return (
        ""
        if abs(int(call[2])) == 1
        else f"{call.label} has a step other than 1 and -1, which the proof does not support"
    )


USES: dict[str, Callable[[Call], str]] = {
    **dict.fromkeys(("Add", "Div", "Greater", "Less", "Max", "Min", "Mul", "Sub"), _binary),
    "Abs": _float, "Cast": _cast, "Clip": _clip, "Conv": _conv, "MatMul": _matmul, "Neg": _float,
    "Range": _range, "Slice": _slice, "Tile": _tile, "Transpose": _transpose, "ConstantOfShape": _constant_of_shape,
    "Where": _where,
}  # fmt: skip
"""Checks that return the reason why a use is out of scope, or "". They raise WrongError if no runtime supports it."""


def _sliced(call: Call) -> list[tuple[int, int, int]]:
    """The axis, the operand and the number of each start and end of a Slice."""
    starts, ends, axes = (call.parameter(name, k) or [] for k, name in enumerate(("starts", "ends", "axes"), 1))
    bounds = list(zip(axes or range(len(starts)), starts, ends, strict=True))
    return [*((axis, 1, start) for axis, start, _ in bounds), *((axis, 2, end) for axis, _, end in bounds)]


def _gathered(call: Call) -> list[tuple[int, int, int]]:
    """The axis, the operand and the number of each index of a Gather."""
    indices = call[1].ravel() if call[1].dtype == np.int64 else ()
    return [(call.attribute("axis", 0), 1, int(index)) for index in indices]


def _divided(call: Call) -> list[tuple[int, int, int]]:
    """The axis of a Split, with a position inside it, given by no operand."""
    return [(call.attribute("axis", 0), len(call.node.inputs), 2)]


POSITIONS = {"Gather": _gathered, "Slice": _sliced, "Split": _divided}
"""Functions that return where an operator selects: axis, operand that gives the position, position."""

EMITTED = {
    *USES, *WITH_BODIES, "Concat", "Constant", "Elu", "Exp", "Gather", "Gemm",
    "HardSigmoid", "Identity", "LeakyRelu", "Log", "NonZero", "Reciprocal", "Relu",
    "Reshape", "Shape", "Sigmoid", "Softplus", "Softsign", "Split", "Squeeze", "Tanh", "ThresholdedRelu",
    "Unsqueeze",
}  # fmt: skip
"""The operators that lowering may emit."""
