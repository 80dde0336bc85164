"""Operators that compute each element by itself, on field elements, integers and booleans, at every opset.

Casts between float types are the identity, because proofs ignore rounding. A comparison of floats returns a field
element unless both sides represent small integers: a random function of the difference, which Where and Cast use as a
weight between 0 and 1. A pointwise function that is not a polynomial is a random function keyed by its operator and
attributes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from rnn_lower.ir.walk import known_tensor
from rnn_lower.proving.exact import scalar_functions
from rnn_lower.proving.exact.call import (
    Call,
    DivisionByZeroError,
    Operator,
    OutOfScopeError,
    WrongError,
    attributes_key,
    cast_type,
    element_type,
)
from rnn_lower.proving.exact.field import Array, Field

BROADCASTS_BY_RULE, MAX_BROADCASTS = 7, 8
"""The first opsets at which binary and variadic operators broadcast without an attribute."""

OF_ANY_NUMBER = ("Max", "Mean", "Min", "Sum")


def pointwise(call: Call) -> Array:
    """Return a random function of the elements at each position."""
    call.all_attributes()  # marks them as read
    return _mixed(call.field, f"{call.node.op_type} {attributes_key(call.node)}", call.elements())


def _mixed(field: Field, name: str, operands: Sequence[Array]) -> Array:
    """A random function with this name of the elements of several operands at each position."""
    result = field.function(name, operands[0])
    for operand in operands[1:]:
        result = field.function(name, field.add(field.function("next", result), operand))
    return result


def _quantized(call: Call) -> tuple[Array, Array, Array]:
    """The first operand, the scale and the zero point of a QuantizeLinear or DequantizeLinear, along its axis."""
    x, *others = call.elements()
    if any(array.ndim > 1 for array in others):
        raise OutOfScopeError(f"{call.label} has a scale for each block, which the proof does not support")
    axis = call.attribute("axis", 1) % max(1, x.ndim)
    along = [-1 if k == axis else 1 for k in range(x.ndim)]
    scale, zero = (array.reshape(along if array.size > 1 else ()) for array in (*others, np.zeros(1, np.uint64))[:2])
    return x, scale, zero


def _quantize(call: Call) -> Array:
    """A random function of the element, its scale and its zero point, for each type and way of rounding."""
    zero = call.node.inputs[2] if call.optional(2) is not None else None
    tensor, others = known_tensor(zero), call.all_attributes()
    dtype = tensor.dtype if tensor is not None else None if zero is None else zero.dtype
    if zero is None:
        dtype = ir.DataType(others.get("output_dtype") or ir.DataType.UINT8)
    if dtype is None:
        raise OutOfScopeError(f"the type of the zero point of {call.label} is unknown")
    kept = sorted((name, value) for name, value in others.items() if name not in ("axis", "output_dtype"))
    kept = [each for each in kept if each != ("saturate", 1)]  # the default
    return _mixed(call.field, f"QuantizeLinear to {dtype} {kept}", _quantized(call))


def _dequantize(call: Call) -> Array:
    call.attribute("output_dtype")
    x, scale, zero = _quantized(call)
    return call.field.multiply(call.field.subtract(x, zero), scale)


def _elementwise(real: Callable[[Field, Array, Array], Array] | None, whole: Callable[..., Any]) -> Operator:
    """A binary operator, applied from the left to any number of operands.

    real: the function over the field, or None for a random one.  whole: the function of integers and booleans.
    """

    def run(call: Call) -> Array:
        _check_broadcast(call)
        if all(array.dtype != np.uint64 for array in call.operands):
            return np.asarray(functools.reduce(whole, call.operands))
        if real is None:
            return pointwise(call)
        return functools.reduce(functools.partial(real, call.field), call.elements())

    return run


def _check_broadcast(call: Call) -> None:
    """Raise WrongError for shapes that this opset does not broadcast."""
    if call.opset >= (MAX_BROADCASTS if call.node.op_type in OF_ANY_NUMBER else BROADCASTS_BY_RULE):
        return
    shapes = [array.shape for array in call.operands]
    if all(shape == shapes[0] for shape in shapes):
        return
    on_request = len(shapes) == 2 and call.attribute("broadcast", 0) and call.attribute("axis") is None
    if not on_request or shapes[0][len(shapes[0]) - len(shapes[1]) :] != shapes[1]:
        text = f"{call.label} cannot broadcast the shapes {' and '.join(map(str, shapes))}"
        raise WrongError(f"{text} at opset {call.opset}")


def _unary(real: Callable[[Field, Array], Array], whole: Callable[..., Any]) -> Operator:
    """A unary operator on field elements, or on integers and booleans."""
    return lambda call: real(call.field, call[0]) if call[0].dtype == np.uint64 else np.asarray(whole(call[0]))


def _activation(name: str, alpha: float = 0.0, beta: float = 0.0) -> Operator:
    """Return an activation operator with the defaults of its attributes."""
    scalar = scalar_functions.SCALARS[name]
    return lambda call: scalar(call.field, call.real(0), call.factor("alpha", alpha), call.factor("beta", beta))


def _function(name: str) -> Operator:
    return lambda call: call.field.function(name, call.real(0))


def _log(call: Call) -> Array:
    x = call.real(0)
    if not np.all(x):
        raise DivisionByZeroError(x)  # 0 has no finite logarithm
    return call.field.function("log", x)


def _truncated(a: Array, b: Array) -> Array:
    if not np.all(b):
        raise WrongError("a Div divides an integer by zero")
    quotient = np.abs(a) // np.abs(b)
    return np.asarray(np.where((a < 0) == (b < 0), quotient, -quotient), np.int64)


def _inverse(field: Field, x: Array) -> Array:
    if not np.all(x):
        raise DivisionByZeroError(field.inverse(x))
    return field.inverse(x)


def _quotient(field: Field, a: Array, b: Array) -> Array:
    try:
        return field.multiply(a, _inverse(field, b))
    except DivisionByZeroError as error:
        raise DivisionByZeroError(field.multiply(a, error.result)) from None


def _or(field: Field, a: Array, b: Array) -> Array:
    return field.subtract(field.add(a, b), field.multiply(a, b))


def _not(field: Field, a: Array) -> Array:
    return field.subtract(scalar_functions.ONE, a)


def _less(field: Field, a: Array, b: Array) -> Array:
    return field.above_zero(field.subtract(b, a))


def _at_most(field: Field, a: Array, b: Array) -> Array:
    above = _less(field, b, a)
    return ~above if above.dtype == np.bool_ else _not(field, above)


def _mod(call: Call) -> Array:
    return _elementwise(None, np.fmod if call.attribute("fmod", 0) else np.mod)(call)  # type: ignore[no-any-return]


def _mean(call: Call) -> Array:
    _check_broadcast(call)
    total = functools.reduce(call.field.add, call.elements())
    return call.field.multiply(total, call.field.inverse(call.field.integers(np.array(len(call.inputs)))))


EXACT = {ir.DataType.FLOAT16: 1 << 11, ir.DataType.BFLOAT16: 1 << 8, ir.DataType.DOUBLE: 1 << 53}
"""The largest magnitude up to which a type represents every integer; 2^24 for FLOAT."""


def _cast(call: Call) -> Array:
    x, dtype = call[0], cast_type(call.attribute("to"))
    if dtype.is_floating_point():
        if x.dtype == np.uint64:
            return x
        if np.abs(x.astype(np.int64)).max(initial=0) > EXACT.get(dtype, 1 << 24):
            raise OutOfScopeError(f"{call.label} casts integers to {dtype.name}, which cannot represent them exactly")
        return call.field.integers(x)
    whole = call.field.small(x) if x.dtype == np.uint64 else x.astype(np.int64)
    if whole is None or not (dtype.is_integer() or dtype == ir.DataType.BOOL):
        raise OutOfScopeError(
            f"{call.label} casts computed floating-point values to {dtype.name}, which the proof does not support"
        )
    if not dtype.is_integer():
        return np.asarray(whole != 0)
    return np.asarray(whole.astype(dtype.numpy()).astype(np.int64))  # a narrow type wraps


def _cast_like(call: Call) -> Array:
    if call[0].dtype != call[1].dtype:
        raise OutOfScopeError(f"{call.label} casts {element_type(call[0])} to {element_type(call[1])}")
    return call[0]


def _where(call: Call) -> Array:
    condition, a, b = call[0], call[1], call[2]
    if a.dtype != b.dtype:
        raise WrongError(f"the values of {call.label} have different types, {element_type(a)} and {element_type(b)}")
    if condition.dtype == np.bool_:
        return np.where(condition, a, b)
    if condition.dtype != np.uint64 or a.dtype != np.uint64:
        why = "depends on floats" if condition.dtype == np.uint64 else f"has type {element_type(condition)}"
        raise OutOfScopeError(
            f"the condition of {call.label} {why}, but the values it selects have type {element_type(a)}"
        )
    return between(call.field, condition, a, b)


def between(field: Field, condition: Array, a: Array, b: Array) -> Array:
    """a if the condition is 1, b if it is 0, and a weighted mean for any other element."""
    return field.add(field.multiply(condition, a), field.multiply(_not(field, condition), b))


def bounds_of(call: Call) -> list[Array | None]:
    """Return the bounds of a Clip, which are attributes at some opsets and inputs at others."""
    return [
        call.optional(index) if call.attribute(name) is None else call.number(name, 0.0)
        for index, name in enumerate(("min", "max"), 1)
    ]


def _clip(call: Call) -> Array:
    """The clipped elements; if min is greater than max, all are max."""
    x, (low, high) = call[0], bounds_of(call)
    if x.dtype == np.int64:
        return np.asarray(np.clip(x, low, high))
    if any(bound is not None and np.any(bound == call.field.symbol(np.nan)) for bound in (low, high)):
        raise OutOfScopeError(f"a bound of {call.label} is NaN, which some runtimes ignore")
    x = call.real(0) if low is None else scalar_functions.maximum(call.field, x, low)
    return x if high is None else scalar_functions.minimum(call.field, x, high)


POINTWISE = (
    "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr",
    "BitwiseXor", "Ceil", "Celu", "Cos", "Cosh", "Erf", "Floor", "Gelu", "HardSwish", "IsInf", "Mish", "Pow", "PRelu",
    "Round", "Selu", "Shrink", "Sign", "Sin", "Sinh", "Sqrt", "Swish", "Tan", "Xor",
)  # fmt: skip

ELEMENTWISE: dict[str, Operator] = {
    **dict.fromkeys(POINTWISE, pointwise), "Abs": _unary(scalar_functions.absolute, np.abs),
    "Add": _elementwise(Field.add, np.add), "And": _elementwise(Field.multiply, np.logical_and), "Cast": _cast,
    "CastLike": _cast_like, "Clip": _clip, "DequantizeLinear": _dequantize,
    "Div": _elementwise(_quotient, _truncated), "Elu": _activation("elu", 1.0),
    "Equal": _elementwise(None, np.equal), "Exp": _function("exp"),
    "Greater": _elementwise(lambda field, a, b: _less(field, b, a), np.greater),
    "GreaterOrEqual": _elementwise(lambda field, a, b: _at_most(field, b, a), np.greater_equal),
    "HardSigmoid": _activation("hardsigmoid", 0.2, 0.5), "IsNaN": _function("is nan"),
    "LeakyRelu": _activation("leakyrelu", 0.01), "Less": _elementwise(_less, np.less),
    "LessOrEqual": _elementwise(_at_most, np.less_equal), "Log": _log,
    "Max": _elementwise(scalar_functions.maximum, np.maximum), "Mean": _mean,
    "Min": _elementwise(scalar_functions.minimum, np.minimum), "Mod": _mod,
    "Mul": _elementwise(Field.multiply, np.multiply), "Neg": _unary(Field.negative, np.negative),
    "Not": _unary(_not, np.logical_not), "Or": _elementwise(_or, np.logical_or), "QuantizeLinear": _quantize,
    "Reciprocal": lambda call: _inverse(call.field, call.real(0)), "Relu": _activation("relu"),
    "Sigmoid": _activation("sigmoid"), "Softplus": _activation("softplus"), "Softsign": _activation("softsign"),
    "Sub": _elementwise(Field.subtract, np.subtract), "Sum": _elementwise(Field.add, np.add),
    "Tanh": _activation("tanh"), "ThresholdedRelu": _activation("thresholdedrelu", 1.0), "Where": _where,
}  # fmt: skip
