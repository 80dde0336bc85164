"""The scalar functions of recurrent operators over a field, each defined by one equation.

Both sides of a proof use these definitions: the node's activations, and the operators of the lowered graph. They are
composed of field operations: polynomials, `relu`, `sigmoid`, and the random functions exp and log; tanh(x) is
2 sigmoid(2 x) - 1. tests/soak/activations.py measures, over every float32, how close the floats that operators compute
are to the real functions.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rnn_lower.proving.exact.equations import Arithmetic
from rnn_lower.proving.exact.field import Array, Field

ONE = np.ones((), np.uint64)


def arithmetic(field: Field) -> Arithmetic:
    """The arithmetic of the recurrent equations over a field."""

    def clipped(x: Array, limit: float) -> Array:
        high = field.number(limit)
        return clip(field, x, field.negative(high), high)

    return Arithmetic(
        lambda shape: np.zeros(shape, np.uint64), field.number, field.add, field.subtract, field.multiply, field.matmul,
        clipped, lambda name, x, alpha, beta: SCALARS[name](field, x, alpha, beta),
    )  # fmt: skip


def absolute(field: Field, x: Array) -> Array:
    return field.add(field.relu(x), field.relu(field.negative(x)))


def maximum(field: Field, a: Array, b: Array) -> Array:
    return field.add(b, field.relu(field.subtract(a, b)))


def minimum(field: Field, a: Array, b: Array) -> Array:
    return field.subtract(a, field.relu(field.subtract(a, b)))


def clip(field: Field, x: Array, low: Array, high: Array) -> Array:
    """x clipped to [low, high], for low <= high."""
    above, below = field.relu(field.subtract(x, high)), field.relu(field.subtract(low, x))
    return field.add(field.subtract(x, above), below)


def tanh(field: Field, x: Array) -> Array:
    s = field.sigmoid(field.add(x, x))
    return field.subtract(field.add(s, s), ONE)


def affine(field: Field, x: Array, alpha: Array, beta: Array) -> Array:
    return field.add(field.multiply(alpha, x), beta)


def _leaky_relu(field: Field, x: Array, alpha: Array, _: Array) -> Array:
    return field.subtract(field.relu(x), field.multiply(alpha, field.relu(field.negative(x))))


def _thresholded_relu(field: Field, x: Array, alpha: Array, _: Array) -> Array:
    above = field.above_zero(field.subtract(x, alpha))
    return field.multiply(x, above.astype(np.uint64))


def _hard_sigmoid(field: Field, x: Array, alpha: Array, beta: Array) -> Array:
    return clip(field, affine(field, x, alpha, beta), np.zeros((), np.uint64), ONE)


def _elu(field: Field, x: Array, alpha: Array, _: Array) -> Array:
    below = field.negative(field.relu(field.negative(x)))
    low = field.subtract(field.function("exp", below), ONE)
    return field.add(field.relu(x), field.multiply(alpha, low))


def _softsign(field: Field, x: Array, *_: Array) -> Array:
    return field.multiply(x, field.inverse(field.add(absolute(field, x), ONE)))


def _softplus(field: Field, x: Array, *_: Array) -> Array:
    small = field.function("exp", field.negative(absolute(field, x)))
    return field.add(field.relu(x), field.function("log", field.add(small, ONE)))


def _scaled_tanh(field: Field, x: Array, alpha: Array, beta: Array) -> Array:
    return field.multiply(alpha, tanh(field, field.multiply(beta, x)))


Scalar = Callable[[Field, Array, Array, Array], Array]
"""(field, x, alpha, beta) -> f(x)"""

SCALARS: dict[str, Scalar] = {
    "relu": lambda field, x, alpha, beta: field.relu(x),
    "tanh": lambda field, x, alpha, beta: tanh(field, x),
    "sigmoid": lambda field, x, alpha, beta: field.sigmoid(x),
    "affine": affine,
    "leakyrelu": _leaky_relu,
    "thresholdedrelu": _thresholded_relu,
    "scaledtanh": _scaled_tanh,
    "hardsigmoid": _hard_sigmoid,
    "elu": _elu,
    "softsign": _softsign,
    "softplus": _softplus,
}
"""The activations by lower-case name."""
