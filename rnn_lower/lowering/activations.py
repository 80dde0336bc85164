"""The activations of RNN, GRU and LSTM: what alpha and beta mean, their defaults, how each is emitted.

Source: the ONNX text of RNN, GRU, LSTM (the eleven names are the same in every version) and onnxruntime for the
defaults that the text leaves open. Names are compared without regard to case.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir

from rnn_lower.errors import InvalidNodeError

if TYPE_CHECKING:  # whoever reads a node needs no more than names and numbers of this page
    from rnn_lower.builder.masks import Emitter
    from rnn_lower.builder.writer import Operand


@dataclasses.dataclass(frozen=True)
class Activation:
    """One activation of one direction. alpha, beta: None where the function has no such parameter."""

    name: str
    alpha: float | None = None
    beta: float | None = None

    @property
    def bounded(self) -> bool:
        """Whether the result is finite for every pre-activation but NaN."""
        return ACTIVATIONS[self.name].bounded

    def emit(self, e: Emitter, x: Operand, name: str) -> Operand:
        """The activation of x, as the operator of that name where it serves, else by its equation."""
        kind = ACTIVATIONS[self.name]
        # Apart from Sigmoid, Tanh and Relu, onnxruntime has these operators in float32 only.
        if kind.operator and (kind.equation is None or (e.has(kind.operator) and e.dtype == ir.DataType.FLOAT)):
            parameters = {"alpha": self.alpha, "beta": self.beta}
            given = {key: value for key, value in parameters.items() if value is not None}
            return e.unary(kind.operator, x, name, **given)
        assert kind.equation is not None
        with e.scope(name):
            return kind.equation(e, x, self.alpha or 0.0, self.beta or 0.0)


Equation = Callable[["Emitter", "Operand", float, float], "Operand"]


@dataclasses.dataclass(frozen=True)
class Kind:
    """alpha, beta: the default when the node lists no value, None where the function takes none.

    operator: the ONNX operator that computes it.  equation: the same by simpler operators.
    bounded: |f(x)| stays below a constant.
    """

    alpha: float | None = None
    beta: float | None = None
    operator: str | None = None
    equation: Equation | None = None
    bounded: bool = False


def _relu(e: Emitter, x: Operand) -> Operand:
    return e.unary("Relu", x)


def _below_zero(e: Emitter, x: Operand) -> Operand:
    """max(0, -x)"""
    return e.unary("Relu", e.mul(x, e.scalar(-1.0), "minus_x"), "below_zero")


def _affine(e: Emitter, x: Operand, a: float, b: float) -> Operand:
    """a x + b"""
    return e.add(e.mul(x, e.scalar(a), "scaled"), e.scalar(b), "affine")


def _leaky_relu(e: Emitter, x: Operand, a: float, b: float) -> Operand:
    """x >= 0 ? x : a x"""
    return e.sub(_relu(e, x), e.mul(_below_zero(e, x), e.scalar(a)), "leaky_relu")


def _thresholded_relu(e: Emitter, x: Operand, a: float, b: float) -> Operand:
    """x > a ? x : 0"""
    above = e.less(e.scalar(a), x, "above")
    if e.has("Where"):
        return e.select(above, x, None, "thresholded_relu")
    return e.mul(e.cast(above, ir.DataType.BOOL, e.dtype), x, "thresholded_relu")


def _scaled_tanh(e: Emitter, x: Operand, a: float, b: float) -> Operand:
    """a tanh(b x)"""
    return e.mul(e.unary("Tanh", e.mul(x, e.scalar(b), "scaled")), e.scalar(a), "scaled_tanh")


def _hard_sigmoid(e: Emitter, x: Operand, a: float, b: float) -> Operand:
    """min(1, max(0, a x + b))"""
    return e.clip(_affine(e, x, a, b), 0.0, 1.0, "hard_sigmoid")


def _elu(e: Emitter, x: Operand, a: float, b: float) -> Operand:
    """x >= 0 ? x : a (e^x - 1)"""
    low = e.unary("Exp", e.mul(_below_zero(e, x), e.scalar(-1.0), "min_x_0"))
    return e.add(_relu(e, x), e.mul(e.add(low, e.scalar(-1.0)), e.scalar(a)), "elu")


def _softsign(e: Emitter, x: Operand, a: float, b: float) -> Operand:
    """x / (1 + |x|)"""
    return e.div(x, e.add(e.unary("Abs", x), e.scalar(1.0)), "softsign")


def _softplus(e: Emitter, x: Operand, a: float, b: float) -> Operand:
    """log(1 + e^x) = max(0, x) + log(1 + e^-|x|), which does not overflow"""
    small = e.unary("Exp", e.mul(e.unary("Abs", x), e.scalar(-1.0), "minus_abs"))
    return e.add(_relu(e, x), e.unary("Log", e.add(small, e.scalar(1.0))), "softplus")


ACTIVATIONS: dict[str, Kind] = {
    "Relu": Kind(operator="Relu"),
    "Tanh": Kind(operator="Tanh", bounded=True),
    "Sigmoid": Kind(operator="Sigmoid", bounded=True),
    "Affine": Kind(alpha=0.0, beta=0.0, equation=_affine),
    "LeakyRelu": Kind(alpha=0.01, operator="LeakyRelu", equation=_leaky_relu),
    "ThresholdedRelu": Kind(alpha=0.0, operator="ThresholdedRelu", equation=_thresholded_relu),
    "ScaledTanh": Kind(alpha=0.0, beta=0.0, equation=_scaled_tanh, bounded=True),
    "HardSigmoid": Kind(alpha=0.2, beta=0.5, operator="HardSigmoid", equation=_hard_sigmoid, bounded=True),
    "Elu": Kind(alpha=1.0, operator="Elu", equation=_elu),
    "Softsign": Kind(operator="Softsign", equation=_softsign, bounded=True),
    "Softplus": Kind(operator="Softplus", equation=_softplus),
}

_BY_LOWER_CASE = {name.lower(): name for name in ACTIVATIONS}


def assign(
    names: Sequence[str], alphas: Iterable[float], betas: Iterable[float]
) -> tuple[tuple[Activation, ...], list[str]]:
    """Give each named activation its alpha and beta; also returns notes about surprising defaults.

    alpha and beta are two queues over the whole node: only an activation that has the parameter takes a value. Values
    left over are ignored; when a queue is empty the default holds.
    """
    alpha_queue, beta_queue = iter(alphas), iter(betas)
    result, notes = [], []
    for given in names:
        name = _BY_LOWER_CASE.get(given.lower())
        if name is None:
            raise InvalidNodeError(f"unknown activation '{given}'; known are {', '.join(ACTIVATIONS)}")
        kind = ACTIVATIONS[name]
        alpha = None if kind.alpha is None else next(alpha_queue, None)
        beta = None if kind.beta is None else next(beta_queue, None)
        if name == "ThresholdedRelu" and alpha is None:
            notes.append("ThresholdedRelu without alpha uses 0 as onnxruntime does; the ONNX text implies 1.0")
        result.append(Activation(name, kind.alpha if alpha is None else alpha, kind.beta if beta is None else beta))
    return tuple(result), notes
