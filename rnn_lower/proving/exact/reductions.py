"""Sums, means, maxima and normalization on field elements and integers.

ArgMax, ArgMin, TopK and Hardmax are random functions of all the elements that they compare.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rnn_lower.proving.exact import scalar_functions
from rnn_lower.proving.exact.call import Call, DivisionByZeroError, Operator, OutOfScopeError
from rnn_lower.proving.exact.field import Array, Field

Reduce = Callable[[Field, Array, tuple[int, ...], bool], Array]
"""(field, x, axes, keepdims) -> array"""


def average(field: Field, x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    count = math.prod(x.shape[axis] for axis in axes)
    return field.multiply(field.total(x, axes, keepdims), field.inverse(field.integers(np.array(count))))


def _along(function: Callable[[Field, Array, Array], Array]) -> Reduce:
    """A reduction that applies a binary function from element to element."""

    def reduce(field: Field, x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
        rest = [axis for axis in range(x.ndim) if axis not in axes]
        count = math.prod(x.shape[axis] for axis in axes)
        rows = x.transpose([*axes, *rest]).reshape(count, *(x.shape[axis] for axis in rest))
        result = functools.reduce(functools.partial(function, field), rows)
        return np.expand_dims(result, axes) if keepdims else result

    return reduce


def _larger(field: Field, a: Array, b: Array) -> Array:
    """The larger element; the symbol for minus infinity never is."""
    nothing = field.symbol(-np.inf)
    return np.where(b == nothing, a, np.where(a == nothing, b, scalar_functions.maximum(field, a, b)))


largest = _along(_larger)


def _square(field: Field, x: Array) -> Array:
    return field.multiply(x, x)


def _exp(field: Field, x: Array) -> Array:
    return field.function("exp", x)


Pointwise = Callable[[Field, Array], Array]
_REDUCTIONS: dict[str, tuple[Pointwise | None, Reduce, str, Any]] = {
    "ReduceSum": (None, Field.total, "", np.sum), "ReduceMean": (None, average, "", None),
    "ReduceMax": (None, largest, "", np.max), "ReduceMin": (None, _along(scalar_functions.minimum), "", np.min),
    "ReduceProd": (None, _along(Field.multiply), "", np.prod),
    "ReduceL1": (scalar_functions.absolute, Field.total, "", None), "ReduceL2": (_square, Field.total, "sqrt", None),
    "ReduceLogSum": (None, Field.total, "log", None), "ReduceLogSumExp": (_exp, Field.total, "log", None),
    "ReduceSumSquare": (_square, Field.total, "", None),
}  # fmt: skip
"""By operator: the function before the reduction, the reduction, the function after it, the reduction of integers."""


def _reduction(call: Call) -> Array:
    before, reduce, after, whole = _REDUCTIONS[call.node.op_type]
    x, axes = call[0], call.parameter("axes", 1)
    if call.attribute("noop_with_empty_axes", 0) and not axes:
        return x
    positions = tuple(axis % x.ndim for axis in axes or range(x.ndim))
    keepdims = bool(call.attribute("keepdims", 1))
    if x.dtype != np.uint64:
        if whole is None:
            raise OutOfScopeError(f"{call.label} reduces values of type {x.dtype}, which the proof does not support")
        return np.asarray(whole(x, axis=positions, keepdims=keepdims))
    result = reduce(call.field, x if before is None else before(call.field, x), positions, keepdims)
    if after == "log" and not np.all(result):
        raise DivisionByZeroError(result)
    return call.field.function(after, result) if after else result


def _normalized(call: Call, x: Array, axes: tuple[int, ...], centred: bool = True) -> Array:
    """x normalized to mean 0 and variance 1 along axes."""
    field = call.field
    if centred:
        x = field.subtract(x, average(field, x, axes, True))
    variance = field.add(average(field, _square(field, x), axes, True), call.number("epsilon", 1e-5))
    return field.multiply(x, field.inverse(field.function("sqrt", variance)))


def _scaled(call: Call, x: Array, shape: Sequence[int] | None = None) -> Array:
    """Return x times input 1 plus input 2."""
    for index, function in ((1, call.field.multiply), (2, call.field.add)):
        operand = call.optional(index)
        if operand is not None:
            x = function(x, operand if shape is None else operand.reshape(shape))
    return x


def _for_each_channel(x: Array) -> tuple[int, ...]:
    return (-1, *[1] * (x.ndim - 2))


def _layer_norm(call: Call) -> Array:
    x = call.real(0)
    axes = tuple(range(call.attribute("axis", -1) % x.ndim, x.ndim))
    return _scaled(call, _normalized(call, x, axes, call.node.op_type == "LayerNormalization"))


def _batch_norm(call: Call) -> Array:
    x, field = call.real(0), call.field
    if call.attribute("training_mode", 0) or (call.opset < 7 and not call.attribute("is_test", 0)):
        raise OutOfScopeError(f"{call.label} is in training mode, which the proof does not support")
    scale, shift, mean, variance = (call.real(index).reshape(_for_each_channel(x)) for index in range(1, 5))
    root = field.function("sqrt", field.add(variance, call.number("epsilon", 1e-5)))
    return field.add(field.multiply(field.multiply(field.subtract(x, mean), field.inverse(root)), scale), shift)


def _group_norm(call: Call) -> Array:
    """Normalization in groups of channels; InstanceNormalization has one group per channel."""
    x = call.real(0)
    groups = call.attribute("num_groups", x.shape[1])
    if call[1].shape != (x.shape[1],):
        raise OutOfScopeError(f"{call.label} has one scale for each group, which the proof does not support")
    normalized = _normalized(call, x.reshape(len(x), groups, -1), (2,)).reshape(x.shape)
    return _scaled(call, normalized, _for_each_channel(x))


def _softmax_axes(call: Call) -> tuple[int, ...]:
    rank = call[0].ndim
    if call.opset >= 13:
        return (call.attribute("axis", -1) % rank,)
    return tuple(range(call.attribute("axis", 1) % max(rank, 1), rank))


def _softmax(call: Call) -> Array:
    grown = _exp(call.field, call.real(0))
    total = call.field.total(grown, _softmax_axes(call), True)
    result = call.field.multiply(grown, call.field.inverse(total))
    return result if call.node.op_type == "Softmax" else call.field.function("log", result)


def _lp_norm(call: Call) -> Array:
    x, axes = call.real(0), (call.attribute("axis", -1) % call[0].ndim,)
    if call.attribute("p", 2) == 1:
        size = call.field.total(scalar_functions.absolute(call.field, x), axes, True)
    else:
        size = call.field.function("sqrt", call.field.total(_square(call.field, x), axes, True))
    return call.field.multiply(x, call.field.inverse(size))


def _arg(call: Call) -> Array:
    """The index of the largest element, or a random function of all elements for floats."""
    x, axis = call[0], call.attribute("axis", 0)
    if call.attribute("select_last_index", 0):
        raise OutOfScopeError(f"{call.label} sets the attribute 'select_last_index', which the proof does not support")
    if x.dtype == np.uint64:
        index = _mixed(call, axis)
    else:
        index = (np.argmax if call.node.op_type == "ArgMax" else np.argmin)(x, axis)
    return np.expand_dims(index, axis) if call.attribute("keepdims", 1) else np.asarray(index)


def _top(call: Call) -> list[Array]:
    """Random functions of all elements and of the rank, for each sort order."""
    if call[0].dtype != np.uint64:
        raise OutOfScopeError(f"{call.label} sorts integers, which the proof does not support")
    axis = call.attribute("axis", -1) % call[0].ndim
    count = int(call.attribute("k", 0) or call.integers(1).ravel()[0])
    best = np.expand_dims(_mixed(call, axis), axis)
    order = [call.attribute(name, 1) for name in ("largest", "sorted")]
    order += [] if order[1] else [count]  # without an order, the first elements may be others for another count
    places = np.arange(count).reshape([-1 if k == axis else 1 for k in range(call[0].ndim)])
    mixed = call.field.add(best, call.field.integers(places))
    return [call.field.function(f"TopK {order} {what}", mixed) for what in ("values", "indices")]


def _hardmax(call: Call) -> Array:
    """Return a random function of all elements and the index."""
    axis, *others = _softmax_axes(call)
    if others:
        raise OutOfScopeError(f"{call.label} operates along several axes, which the proof does not support")
    best = np.expand_dims(_mixed(call, axis), axis)
    indices = np.arange(call[0].shape[axis]).reshape([-1 if k == axis else 1 for k in range(call[0].ndim)])
    return call.field.function("hardmax at", call.field.add(best, call.field.integers(indices)))


def _mixed(call: Call, axis: int) -> Array:
    """Return a random function of all elements along an axis."""

    def mix(mixed: Array, row: Array) -> Array:
        return call.field.function(call.node.op_type, call.field.add(call.field.function("next", mixed), row))

    rows = np.moveaxis(call.real(0), axis, 0)
    return functools.reduce(mix, rows, np.zeros(rows.shape[1:], np.uint64))


def _cumulative_sum(call: Call) -> Array:
    x, axis = call[0], int(call[1].ravel()[0])
    x = np.flip(x, axis) if call.attribute("reverse", 0) else x
    sums = np.cumsum(x, axis, dtype=x.dtype)
    sums = sums - x if call.attribute("exclusive", 0) else sums
    sums = sums % np.uint64(call.field.prime) if x.dtype == np.uint64 else sums
    return np.flip(sums, axis) if call.attribute("reverse", 0) else sums


REDUCTIONS: dict[str, Operator] = {
    **dict.fromkeys(_REDUCTIONS, _reduction), "ArgMax": _arg, "ArgMin": _arg, "BatchNormalization": _batch_norm,
    "CumSum": _cumulative_sum, "GroupNormalization": _group_norm, "Hardmax": _hardmax,
    "InstanceNormalization": _group_norm, "LayerNormalization": _layer_norm, "LogSoftmax": _softmax,
    "LpNormalization": _lp_norm, "RMSNormalization": _layer_norm, "Softmax": _softmax,
    "TopK": _top,
}  # fmt: skip
