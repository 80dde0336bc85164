"""Match groups of nodes that compute one scalar function, which the laws of a field alone do not imply.

    min(max(x, low), high)                              Clip, for a runtime that lacks it
    high - max(0, high - low - max(0, x - low))         Clip, for a runtime that has neither Min nor Max
    below(x, high) - below(-x, -low)                    Clip of doubles before opset 8, with
    below(x, l) = 1 / (max(0, 1 / |max(0, x)| - 1 / l) + 1 / l)
    1 / (e^-x + 1)                                      sigmoid, for a runtime that has neither it nor tanh
    tanh(clip(x, -l, l)) with l >= 20                   tanh, because 1 is the nearest float and double beyond 20

Patterns match the structure of the graph and the exact values of the bounds. If a runtime supports an operator at one
rank only, shape-only nodes lie between the others; matching skips them.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from rnn_lower.ir.walk import constant, known_tensor

TANH_IS_ONE = 20.0
"""1 - tanh(20) is below half a unit in the last place of a double; from 19.07 on, tanh rounds to 1."""


SHAPING = ("Reshape", "Squeeze", "Unsqueeze", "Identity")
"""Operators that keep the elements and their order."""


def clip_of(value: ir.Value | None, limits: Collection[float] = ()) -> tuple[ir.Value, float, float] | None:
    """(x, low, high) if a value is x clipped between two constants with low <= high, else None.

    limits: the clip limits of recurrent nodes; a graph may contain only the rounded inverse of one.
    """
    node = _producer(value, "Clip", "Min", "Sub", "Add")
    if node is None:
        return None
    plain = {"Clip": _clip, "Min": _min_of_max}.get(node.op_type)
    clip = _sum(node, limits) if plain is None else plain(node)
    return clip if clip is not None and clip[1] <= clip[2] else None


def sigmoid_of(value: ir.Value | None) -> ir.Value | None:
    """x if a value is 1 / (e^-x + 1), else None."""
    grown, addend = _plus(_inverted(value))
    return _minus(_operand(_producer(grown, "Exp"))) if addend == 1.0 else None


def unlimited(value: ir.Value | None, limits: Collection[float]) -> ir.Value | None:
    """x if a value is clip(x, -l, l) and tanh is 1 beyond l, else None. limits: clips of recurrent nodes, to keep."""
    clip = clip_of(value, limits)
    if clip is None or not -clip[1] == clip[2] >= TANH_IS_ONE:
        return None
    inner = clip_of(clip[0], limits)
    return clip[0] if clip[2] not in limits or (inner is not None and inner[1:] == clip[1:]) else None


def _producer(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    value = _bare(value)
    node = None if value is None else value.producer()
    return node if node is not None and node.domain == "" and node.op_type in op_types else None


def _bare(value: ir.Value | None) -> ir.Value | None:
    """The value that this one is a reshaped copy of."""
    node = None if value is None else value.producer()
    while node is not None and node.domain == "" and node.op_type in SHAPING:
        value = node.inputs[0]
        node = None if value is None else value.producer()
    return value


def _number(value: ir.Value | None) -> float | None:
    array = constant(value)
    return float(array.reshape(())) if array is not None and array.size == 1 and array.dtype.kind in "fV" else None


def _operand(node: ir.Node | None, index: int = 0) -> ir.Value | None:
    return node.inputs[index] if node is not None and index < len(node.inputs) else None


def _clip(node: ir.Node) -> tuple[ir.Value, float, float] | None:
    bounds = []
    for index, name in enumerate(("min", "max"), 1):
        attribute, operand = node.attributes.get(name), known_tensor(_operand(node, index))
        if operand is not None and len(operand.shape) > 1:  # which onnxruntime refuses
            return None
        bounds.append(_number(_operand(node, index)) if attribute is None else float(attribute.value))
    return _clip_bounds(_operand(node), *bounds)


def _min_of_max(node: ir.Node) -> tuple[ir.Value, float, float] | None:
    inner = _producer(_operand(node), "Max")
    if inner is None or len(node.inputs) != 2 or len(inner.inputs) != 2:
        return None
    return _clip_bounds(_operand(inner), _number(inner.inputs[1]), _number(node.inputs[1]))


def _two_sides(
    positive: ir.Value | None, negative: ir.Value | None, limits: Collection[float]
) -> tuple[ir.Value, float, float] | None:
    """Match min(x, high) for the part above zero minus the same for -x."""
    (above, high), (below, low) = _at_most(positive, limits), _at_most(negative, limits)
    x, mirrored = _positive(above, high), _minus(_positive(below, low))
    return _clip_bounds(x, None if low is None else -low, high) if _bare(x) is _bare(mirrored) else None


def _sum(node: ir.Node, limits: Collection[float]) -> tuple[ir.Value, float, float] | None:
    """Match high - max(0, width - max(0, x - low)) or the difference of both sides of zero; also written as sums."""
    rest, high = _plus(node.outputs[0])
    if high is None:
        first, second = node.inputs[0], _operand(node, 1)
        if node.op_type == "Sub":
            return _two_sides(first, second, limits)
        return _two_sides(second, _minus(first), limits) or _two_sides(first, _minus(second), limits)
    minus, width = _plus(_above_zero(_minus(rest)))
    x = _above_zero(_minus(minus))
    if width is None or x is None:
        return None
    inner, negative = _plus(x)
    if negative is not None and width in (high + negative, float(np.float32(high + negative))):
        return _clip_bounds(inner, -negative, high)
    return _clip_bounds(x, 0.0, high) if width == high else None


def _positive(value: ir.Value | None, limit: float | None) -> ir.Value | None:
    """x if a value is max(0, x), else None; -0 is allowed only if the limit is 0, where no division follows."""
    inner = _absolute(value)
    return _above_zero(value if inner is None and limit == 0.0 else inner)


def _absolute(value: ir.Value | None) -> ir.Value | None:
    """x if a value is |x|, also as the sum of max(0, x) and max(0, -x), which is not -0 either; else None."""
    node = _producer(value, "Abs", "Add")
    if node is None or node.op_type == "Abs":
        return _operand(node)
    first, second = map(_above_zero, node.inputs)
    pairs = ((first, second), (second, first))
    return next((x for x, minus in pairs if x is not None and _bare(_minus(minus)) is _bare(x)), None)


def _above_zero(value: ir.Value | None) -> ir.Value | None:
    """x if a value is max(0, x), else None."""
    node = _producer(value, "Relu", "Max", "Clip")
    if node is None or node.op_type == "Relu":
        return _operand(node)
    if node.op_type == "Clip" and "min" in node.attributes:
        only = node.attributes.keys() == {"min"} and float(node.attributes["min"].value) == 0.0
        return _operand(node) if only else None
    return _operand(node) if len(node.inputs) == 2 and _number(node.inputs[1]) == 0.0 else None


def _at_most(value: ir.Value | None, limits: Collection[float]) -> tuple[ir.Value | None, float | None]:
    """(x, l) if a value is min(x, l) for x >= 0, else None."""
    nothing = _minus(_above_zero(value))
    if _positive(nothing, 0.0) is not None:
        return nothing, 0.0
    outer, inverse = _plus(_inverted(value))
    inner, negative = _plus(_above_zero(outer))
    if inverse is None or negative != -inverse or inverse <= 0:
        return None, None
    nearest = [limit for limit in (*limits, float(np.float32(1.0 / inverse))) if limit]
    candidates = (limit for limit in nearest if inverse in (1.0 / limit, float(np.float32(1.0 / limit))))
    return _inverted(inner), next(candidates, None)


def _inverted(value: ir.Value | None) -> ir.Value | None:
    """x if a value is 1 / x, else None."""
    node = _producer(value, "Reciprocal", "Div")
    if node is None or node.op_type == "Reciprocal":
        return _operand(node)
    return _operand(node, 1) if _number(_operand(node)) == 1.0 else None


def _plus(value: ir.Value | None) -> tuple[ir.Value | None, float | None]:
    """(x, c) if a value is x + c, else None."""
    node = _producer(value, "Add", "Sub")
    number = _number(_operand(node, 1))
    return _operand(node), -number if number is not None and node is not None and node.op_type == "Sub" else number


def _minus(value: ir.Value | None) -> ir.Value | None:
    """x if a value is -x, else None."""
    node = _producer(value, "Mul", "Neg", "Sub")
    if node is None or node.op_type == "Neg":
        return _operand(node)
    if node.op_type == "Sub":
        return _operand(node, 1) if _number(_operand(node)) == 0.0 else None
    return _operand(node) if _number(_operand(node, 1)) == -1.0 else None


def _clip_bounds(x: ir.Value | None, low: float | None, high: float | None) -> tuple[ir.Value, float, float] | None:
    return None if x is None or low is None or high is None else (x, low, high)
