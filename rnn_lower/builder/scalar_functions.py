"""Emit scalar functions that have their own operator with simpler operators.

`alpha` and `beta` are the parameters of the ONNX operator of the same name. Used if an opset or a target lacks the
operator, or if onnxruntime has it in float32 only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import onnx_ir as ir

from rnn_lower.builder.constants import largest_at_most
from rnn_lower.builder.graph_builder import GraphBuilder, Operand
from rnn_lower.builder.versions import exists

Equation: TypeAlias = Callable[[GraphBuilder, Operand, float, float], Operand]


def _below_zero(b: GraphBuilder, x: Operand) -> Operand:
    """max(0, -x)"""
    return b.op("Relu", b.mul(x, b.scalar(-1.0), "minus_x"), name="below_zero")


def affine(b: GraphBuilder, x: Operand, alpha: float, beta: float) -> Operand:
    """alpha x + beta"""
    return b.add(b.mul(x, b.scalar(alpha), "scaled"), b.scalar(beta), "affine")


def leaky_relu(b: GraphBuilder, x: Operand, alpha: float, beta: float) -> Operand:
    """x >= 0 ? x : alpha x"""
    return b.sub(b.op("Relu", x), b.mul(_below_zero(b, x), b.scalar(alpha)), "leaky_relu")


def thresholded_relu(b: GraphBuilder, x: Operand, alpha: float, beta: float) -> Operand:
    """x > alpha ? x : 0"""
    # Rounded up, the limit would no longer be below the element that it was rounded to.
    above = b.less(b.scalar(float(largest_at_most(alpha, b.dtype))), x, "above")
    if exists("Where", b.opset):
        return b.op("Where", above, x, b.scalar(0.0), name="thresholded_relu")
    return b.mul(b.cast(above, ir.DataType.BOOL, b.dtype), x, "thresholded_relu")


def scaled_tanh(b: GraphBuilder, x: Operand, alpha: float, beta: float) -> Operand:
    """alpha tanh(beta x)"""
    return b.mul(b.op("Tanh", b.mul(x, b.scalar(beta), "scaled")), b.scalar(alpha), "scaled_tanh")


def hard_sigmoid(b: GraphBuilder, x: Operand, alpha: float, beta: float) -> Operand:
    """min(1, max(0, alpha x + beta))"""
    return b.clip(affine(b, x, alpha, beta), 0.0, 1.0, "hard_sigmoid")


def elu(b: GraphBuilder, x: Operand, alpha: float, beta: float) -> Operand:
    """x >= 0 ? x : alpha (e^x - 1)"""
    low = b.op("Exp", b.mul(_below_zero(b, x), b.scalar(-1.0), "min_x_0"))
    return b.add(b.op("Relu", x), b.mul(b.add(low, b.scalar(-1.0)), b.scalar(alpha)), "elu")


def softsign(b: GraphBuilder, x: Operand, alpha: float, beta: float) -> Operand:
    """x / (1 + |x|)"""
    return b.div(x, b.add(b.op("Abs", x), b.scalar(1.0)), "softsign")


def softplus(b: GraphBuilder, x: Operand, alpha: float, beta: float) -> Operand:
    """log(1 + e^x) = max(0, x) + log(1 + e^-|x|), which does not overflow"""
    small = b.op("Exp", b.mul(b.op("Abs", x), b.scalar(-1.0), "minus_abs"))
    return b.add(b.op("Relu", x), b.op("Log", b.add(small, b.scalar(1.0))), "softplus")


EQUATIONS: Mapping[str, Equation] = {
    "Elu": elu,
    "HardSigmoid": hard_sigmoid,
    "LeakyRelu": leaky_relu,
    "Softplus": softplus,
    "Softsign": softsign,
    "ThresholdedRelu": thresholded_relu,
}
"""By operator."""
