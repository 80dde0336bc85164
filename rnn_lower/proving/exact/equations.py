"""The equations of RNN, GRU and LSTM over any arithmetic, written from the ONNX specification: the only reference.

Over field elements they are the left side of a proof; over float64 they are the reference that models are compared
with. They share no code with the lowering. At each step only the rows whose sequence has not ended are computed, so no
mask can be wrong in the same way on both sides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from rnn_lower.errors import UnsupportedError
from rnn_lower.proving.exact.field import Array, Field

INPUTS = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
OUTPUTS = ("Y", "Y_h", "Y_c")
GATES = {"RNN": ("h",), "GRU": ("z", "r", "h"), "LSTM": ("i", "o", "f", "c")}
BACKWARDS = {"reverse": (True,), "bidirectional": (False, True)}
DEFAULTS = {"RNN": ["tanh"], "GRU": ["sigmoid", "tanh"], "LSTM": ["sigmoid", "tanh", "tanh"]}

PARAMETERS: dict[str, tuple[float | None, float | None]] = {
    "relu": (None, None), "tanh": (None, None), "sigmoid": (None, None), "affine": (0.0, 0.0),
    "leakyrelu": (0.01, None), "thresholdedrelu": (0.0, None), "scaledtanh": (0.0, 0.0), "hardsigmoid": (0.2, 0.5),
    "elu": (1.0, None), "softsign": (None, None), "softplus": (None, None),
}  # fmt: skip
"""The defaults of alpha and beta by lower-case activation name; None if the activation lacks the parameter."""

Function = tuple[str, float, float]
"""Name in lower case, alpha, beta."""


@dataclasses.dataclass(frozen=True)
class Arithmetic:
    """The operations that the equations use, on arrays of field elements or of floats.

    clip: (x, limit) -> x between -limit and limit.  activation: (name, x, alpha, beta) -> array.
    """

    zeros: Callable[[tuple[int, ...]], Array]
    number: Callable[[float], Array]
    add: Callable[[Array, Array], Array]
    subtract: Callable[[Array, Array], Array]
    multiply: Callable[[Array, Array], Array]
    matmul: Callable[[Array, Array], Array]
    clip: Callable[[Array, float], Array]
    activation: Callable[[str, Array, Array, Array], Array]


@dataclasses.dataclass(frozen=True)
class TraceEntry:
    """One intermediate result: time, direction, name, and the values of the rows that run; of states, of all rows."""

    step: int
    reverse: bool
    name: str
    values: Array


@dataclasses.dataclass(frozen=True)
class Recurrence:
    """One recurrent node with all defaults filled in, as the ONNX text defines them.

    backwards: one entry per direction.  functions: f, g, h per direction.  limit: of clip, None when off.
    reset_after: linear_before_reset.  coupled: input_forget.  dtype: the type of the arithmetic.
    """

    op: str
    hidden_size: int | None
    backwards: tuple[bool, ...]
    functions: tuple[tuple[Function, ...], ...]
    limit: float | None
    reset_after: bool
    coupled: bool
    layout: int
    dtype: np.dtype[Any]

    @property
    def gates(self) -> tuple[str, ...]:
        return GATES[self.op]


def read(node: ir.Node, dtype: ir.DataType) -> Recurrence:
    """The `Recurrence` of a valid node. dtype: the type of X; 16-bit types are computed in float32.

    Raises UnsupportedError for an unknown activation.
    """
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    return recurrence(node.op_type, attributes, np.dtype(np.float64 if dtype == ir.DataType.DOUBLE else np.float32))


def recurrence(op: str, attributes: Mapping[str, Any], dtype: np.dtype[Any]) -> Recurrence:
    """The `Recurrence` of an operator with these attributes."""
    backwards = BACKWARDS.get(attributes.get("direction") or "", (False,))
    limit = attributes.get("clip")
    on = limit is not None and np.isfinite(limit) and (limit >= 0 if op == "RNN" else limit > 0)
    return Recurrence(
        op, attributes.get("hidden_size"), backwards, _functions(op, len(backwards), attributes, dtype),
        float(np.float32(limit)) if on else None, bool(attributes.get("linear_before_reset")),
        bool(attributes.get("input_forget")), attributes.get("layout") or 0, dtype,
    )  # fmt: skip


def _functions(
    op: str, directions: int, attributes: Mapping[str, Any], dtype: np.dtype[Any]
) -> tuple[tuple[Function, ...], ...]:
    """The activation functions. The whole node consumes alpha and beta in order; defaults have the compute type."""
    per = len(DEFAULTS[op])
    names = [name.lower() for name in attributes.get("activations") or ()] or DEFAULTS[op] * directions
    queues = [iter(attributes.get(name) or ()) for name in ("activation_alpha", "activation_beta")]
    functions: list[Function] = []
    for name in names[: per * directions]:
        if name not in PARAMETERS:
            raise UnsupportedError(f"the activation '{name}' of {op} is unknown")
        alpha, beta = (
            0.0 if default is None else float(np.float32(number)) if (number := next(queue, None)) is not None
            else float(dtype.type(default))
            for queue, default in zip(queues, PARAMETERS[name], strict=True)
        )  # fmt: skip
        functions.append((name, alpha, beta))
    return tuple(tuple(functions[start : start + per]) for start in range(0, per * directions, per))


def bias(field: Field, B: Array, dtype: np.dtype[Any], folded: bool) -> tuple[Array, Array, Array]:
    """Wb, Rb and their sum, for known B [num_directions, 2 * gates * hidden_size].

    folded: the sum is rounded to nearest, as if the lowered graph contains it as a constant.
    """
    Wb, Rb = np.split(B.astype(dtype), 2, axis=1)
    with np.errstate(all="ignore"):
        total = field.embed(Wb + Rb) if folded else field.add(field.embed(Wb), field.embed(Rb))
    return field.embed(Wb), field.embed(Rb), total


def halves(arithmetic: Arithmetic, B: Array) -> tuple[Array, Array, Array]:
    """Wb, Rb and their sum, for elements of the arithmetic that no constant folding has rounded."""
    Wb, Rb = np.split(B, 2, axis=1)
    return Wb, Rb, arithmetic.add(Wb, Rb)


def evaluate(
    arithmetic: Arithmetic, node: Recurrence, arrays: Mapping[str, Any], lengths: Array | None,
    trace: list[TraceEntry] | None = None, states: list[TraceEntry] | None = None,
) -> dict[str, Array]:  # fmt: skip
    """The outputs of a node: Y, Y_h and, for LSTM, Y_c.

    arrays: elements by ONNX input name, B as the three parts of `bias`.  lengths: sequence_lens.
    trace: filled with the results of every step, in order.  states: filled with h and c alone.
    """
    batch_first = node.layout == 1
    X = arrays["X"].swapaxes(0, 1) if batch_first else arrays["X"]
    T, N, H, D = X.shape[0], X.shape[1], arrays["R"].shape[-1], len(node.backwards)
    valid = np.full(N, T) if lengths is None else np.clip(lengths, 0, T)
    Y = arithmetic.zeros((T, D, N, H))
    finals = {"Y_h": arithmetic.zeros((D, N, H)), "Y_c": arithmetic.zeros((D, N, H))}
    for d, backwards in enumerate(node.backwards):
        step = _Step(arithmetic, node, d, arrays, trace)
        projected = arithmetic.matmul(X, arrays["W"][d].T)
        h, c = (
            _initial(arrays.get(name), batch_first, d, arithmetic.zeros((N, H))) for name in ("initial_h", "initial_c")
        )
        if lengths is not None:
            h[valid == 0], c[valid == 0] = 0, 0
        for t in reversed(range(T)) if backwards else range(T):
            rows = np.flatnonzero(valid > t)
            h[rows], c[rows] = step(t, projected[t, rows], h[rows], c[rows])
            for entries in (trace, states):
                if entries is not None:
                    entries += [TraceEntry(t, backwards, f"state {k}", each.copy()) for k, each in (("C", c), ("H", h))]
            Y[t, d, rows] = h[rows]
        finals["Y_h"][d], finals["Y_c"][d] = h, c
    if batch_first:
        Y = Y.transpose(2, 0, 1, 3)
        finals = {name: value.swapaxes(0, 1) for name, value in finals.items()}
    return {"Y": Y, **finals}


def _initial(state: Array | None, batch_first: bool, direction: int, zeros: Array) -> Array:
    return zeros if state is None else np.array(state[:, direction] if batch_first else state[direction])


class _Step:
    """The steps of one direction: (t, X_t W^T [rows, gates * H], h [rows, H], c [rows, H]) -> (h, c)."""

    def __init__(
        self, arithmetic: Arithmetic, node: Recurrence, d: int, arrays: Mapping[str, Any],
        trace: list[TraceEntry] | None,
    ) -> None:  # fmt: skip
        self.arithmetic, self.node, self.reverse, self.trace, self.t = arithmetic, node, node.backwards[d], trace, 0
        self.R, self.functions, self.one = arrays["R"][d], node.functions[d], arithmetic.number(1.0)
        self.H = self.R.shape[-1]
        zeros = arithmetic.zeros((len(node.gates) * self.H,))
        self.Wb, self.Rb, self.b = [part[d] for part in arrays["B"]] if "B" in arrays else [zeros, zeros, zeros]
        P = arrays["P"][d] if "P" in arrays else arithmetic.zeros((3 * self.H,))
        self.P = dict(zip("iof", np.split(P, 3), strict=True))
        self.step = {"RNN": self._rnn, "GRU": self._gru, "LSTM": self._lstm}[node.op]

    def __call__(self, t: int, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
        self.t = t
        return self.step(x, h, c)

    def _record(self, name: str, values: Array) -> None:
        if self.trace is not None:
            self.trace.append(TraceEntry(self.t, self.reverse, name, values))

    def _columns(self, gate: str) -> slice:
        """The columns of a gate in weights, biases and projections."""
        start = self.node.gates.index(gate) * self.H
        return slice(start, start + self.H)

    def _recurrent(self, gate: str, h: Array) -> Array:
        """Return h R^T of one gate."""
        return self.arithmetic.matmul(h, self.R[self._columns(gate)].T)

    def _sum(self, gate: str, x: Array, h: Array) -> Array:
        add, columns = self.arithmetic.add, self._columns(gate)
        return add(add(x[..., columns], self._recurrent(gate, h)), self.b[columns])

    def _active(self, gate: str, function: int, x: Array) -> Array:
        """The activation of a gate's clipped pre-activation, or of the unclipped cell state."""
        if self.node.limit is not None and gate:
            x = self.arithmetic.clip(x, self.node.limit)
        name, alpha, beta = self.functions[function]
        result = self.arithmetic.activation(name, x, self.arithmetic.number(alpha), self.arithmetic.number(beta))
        self._record(f"gate {gate}" if gate else "h(C)", result)
        return result

    def _rnn(self, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
        return self._active("h", 0, self._sum("h", x, h)), c

    def _gru(self, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
        add, multiply, columns = self.arithmetic.add, self.arithmetic.multiply, self._columns("h")
        z = self._active("z", 0, self._sum("z", x, h))
        r = self._active("r", 0, self._sum("r", x, h))
        if self.node.reset_after:
            inner = multiply(r, add(self._recurrent("h", h), self.Rb[columns]))
            inner = add(add(x[..., columns], inner), self.Wb[columns])
        else:
            inner = self._sum("h", x, multiply(r, h))
        candidate = self._active("h", 1, inner)
        return add(multiply(self.arithmetic.subtract(self.one, z), candidate), multiply(z, h)), c

    def _lstm(self, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
        add, multiply = self.arithmetic.add, self.arithmetic.multiply
        i = self._active("i", 0, add(self._sum("i", x, h), multiply(self.P["i"], c)))
        if self.node.coupled:
            f = self.arithmetic.subtract(self.one, i)
        else:
            f = self._active("f", 0, add(self._sum("f", x, h), multiply(self.P["f"], c)))
        new_c = add(multiply(f, c), multiply(i, self._active("c", 1, self._sum("c", x, h))))
        o = self._active("o", 0, add(self._sum("o", x, h), multiply(self.P["o"], new_c)))
        return multiply(o, self._active("", 2, new_c)), new_c
