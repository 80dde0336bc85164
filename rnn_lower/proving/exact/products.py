"""Sums of products on field elements."""

from __future__ import annotations

import functools

import numpy as np

from rnn_lower.proving.exact.call import Call, Operator, OutOfScopeError, WrongError
from rnn_lower.proving.exact.field import Array


def _matmul(call: Call) -> Array:
    """A MatMul of any ranks."""
    field, a, b = call.field, call.real(0), call.real(1)
    rows, columns = a.ndim == 1, b.ndim == 1
    a, b = a[None] if rows else a, b[:, None] if columns else b
    if a.shape[-1] != b.shape[-2]:
        raise WrongError(f"{call.label} has operands of incompatible shapes {a.shape} and {b.shape}")
    if b.ndim == 2:
        product = field.matmul(a, b)
    else:
        heads = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        a, b = np.broadcast_to(a, (*heads, *a.shape[-2:])), np.broadcast_to(b, (*heads, *b.shape[-2:]))
        parts = [field.matmul(a[index], b[index]) for index in np.ndindex(heads)]
        product = np.array(parts, np.uint64).reshape(*heads, a.shape[-2], b.shape[-1])
    product = product[..., 0, :] if rows else product
    return product[..., 0] if columns else product


def _gemm(call: Call) -> Array:
    a, b = (x.T if call.attribute(flag, 0) else x for x, flag in ((call.real(0), "transA"), (call.real(1), "transB")))
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise WrongError(f"{call.label} has operands of incompatible shapes {a.shape} and {b.shape}")
    field = call.field
    alpha, beta = call.factor("alpha", 1.0), call.factor("beta", 1.0)
    product = field.multiply(alpha, field.matmul(a, b))
    if call.optional(2) is None:
        return product
    result = field.add(product, field.multiply(beta, call.real(2)))
    if result.shape != product.shape:
        raise WrongError(f"{call.label} cannot broadcast C of shape {call[2].shape} to shape {product.shape}")
    return result


def _einsum(call: Call) -> Array:
    equation = call.attribute("equation")
    equation = (equation.decode() if isinstance(equation, bytes) else str(equation)).replace(" ", "")
    inputs, arrow, result = equation.partition("->")
    terms, labels = inputs.split(","), sorted(set(inputs) - {","})
    if "." in equation or any(len(set(term)) < len(term) for term in terms):
        raise OutOfScopeError(
            f"the equation of {call.label} contains an ellipsis or repeats an index within an "
            "operand, which the proof does not support"
        )
    if not arrow:
        result = "".join(label for label in labels if inputs.count(label) == 1)
    labels = [*result, *(label for label in labels if label not in result)]
    factors = []
    for index, term in enumerate(terms):
        x = call.real(index).transpose([term.index(label) for label in labels if label in term])
        factors.append(np.expand_dims(x, [axis for axis, label in enumerate(labels) if label not in term]))
    product = functools.reduce(call.field.multiply, factors)
    return call.field.total(product, tuple(range(len(result), len(labels))))


PRODUCTS: dict[str, Operator] = {"Einsum": _einsum, "Gemm": _gemm, "MatMul": _matmul}
