"""What RNN, GRU and LSTM compute, in a field: the left side of a proof, written from the ONNX text.

It shares no code with the lowering. Sequences are taken as they are: at each step only the rows that still have one
are computed, so there is no mask that could be wrong in the same way on both sides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from rnn_lower.checking.reference import ACTIVATIONS, DEFAULTS
from rnn_lower.proving.field import Array, Field
from rnn_lower.proving.scalar_functions import ONE, SCALARS, clip

INPUTS = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
OUTPUTS = ("Y", "Y_h", "Y_c")
GATES = {"RNN": ("h",), "GRU": ("z", "r", "h"), "LSTM": ("i", "o", "f", "c")}
BACKWARDS = {"reverse": (True,), "bidirectional": (False, True)}

Function = tuple[str, float, float]
"""Name in lower case, alpha, beta."""


@dataclasses.dataclass(frozen=True)
class Seen:
    """Something that a step computed for the rows that have it: when, in which direction, and what it is."""

    step: int
    reverse: bool
    what: str
    values: Array


@dataclasses.dataclass(frozen=True)
class Recurrence:
    """One node as the ONNX text reads it.

    backwards: one entry per direction.  functions: f, g, h per direction.  limit: of clip, None when off.
    reset_after: linear_before_reset.  coupled: input_forget.
    inputs, outputs: by the names of the text, what is present.  arithmetic: the type that is computed in.
    """

    op: str
    hidden_size: int | None
    backwards: tuple[bool, ...]
    functions: tuple[tuple[Function, ...], ...]
    limit: float | None
    reset_after: bool
    coupled: bool
    layout: int
    inputs: Mapping[str, ir.Value]
    outputs: Mapping[str, ir.Value]
    arithmetic: np.dtype[Any]

    @property
    def gates(self) -> tuple[str, ...]:
        return GATES[self.op]


def read(node: ir.Node, dtype: ir.DataType) -> Recurrence:
    """Read a valid node. dtype: of X; 16-bit types are computed in float32."""
    given = {name: attribute.value for name, attribute in node.attributes.items()}
    backwards = BACKWARDS.get(given.get("direction", ""), (False,))
    arithmetic = np.dtype(np.float64 if dtype == ir.DataType.DOUBLE else np.float32)
    limit = given.get("clip")
    on = limit is not None and np.isfinite(limit) and (limit >= 0 if node.op_type == "RNN" else limit > 0)
    named = zip(INPUTS, node.inputs, strict=False)
    wanted = zip(OUTPUTS, node.outputs, strict=False)
    return Recurrence(
        node.op_type, given.get("hidden_size"), backwards, _functions(node.op_type, len(backwards), given, arithmetic),
        limit if on else None, bool(given.get("linear_before_reset")), bool(given.get("input_forget")),
        given.get("layout", 0),
        {name: value for name, value in named if value is not None and value.name},
        {name: value for name, value in wanted if value.uses() or value.is_graph_output()},
        arithmetic,
    )  # fmt: skip


def _functions(
    op: str, directions: int, given: Mapping[str, Any], arithmetic: np.dtype[Any]
) -> tuple[tuple[Function, ...], ...]:
    """alpha and beta are queues over the whole node; a default is the text's decimal in the type computed in."""
    per = len(DEFAULTS[op])
    names = [name.lower() for name in given.get("activations", ())] or DEFAULTS[op] * directions
    alphas, betas = iter(given.get("activation_alpha", ())), iter(given.get("activation_beta", ()))
    made: list[Function] = []
    for name in names[: per * directions]:
        takes_alpha, takes_beta, alpha, beta, _ = ACTIVATIONS[name]
        a = next(alphas, arithmetic.type(alpha)) if takes_alpha else 0.0
        b = next(betas, arithmetic.type(beta)) if takes_beta else 0.0
        made.append((name, float(a), float(b)))
    return tuple(tuple(made[start : start + per]) for start in range(0, per * directions, per))


def bias(field: Field, B: Array, arithmetic: np.dtype[Any], folded: bool) -> tuple[Array, Array, Array]:
    """Wb, Rb and their sum of known numbers B [num_directions, 2 * gates * hidden_size].

    folded: the sum is rounded to the nearest, as it is where it is a constant of the lowered graph.
    """
    Wb, Rb = np.split(B.astype(arithmetic), 2, axis=1)
    with np.errstate(all="ignore"):
        total = field.embed(Wb + Rb) if folded else field.add(field.embed(Wb), field.embed(Rb))
    return field.embed(Wb), field.embed(Rb), total


def halves(field: Field, B: Array) -> tuple[Array, Array, Array]:
    """The same of field elements, which nothing has folded."""
    Wb, Rb = np.split(B, 2, axis=1)
    return Wb, Rb, field.add(Wb, Rb)


def evaluate(
    field: Field, node: Recurrence, arrays: Mapping[str, Any], lengths: Array | None, seen: list[Seen] | None = None
) -> dict[str, Array]:
    """Y, Y_h and for LSTM Y_c of a node.

    arrays: field elements by the names of the text, B as the three parts of `bias`.  lengths: sequence_lens.
    seen: filled with what every step computes, in order.
    """
    batch_first = node.layout == 1
    X = arrays["X"].swapaxes(0, 1) if batch_first else arrays["X"]
    T, N, H, D = X.shape[0], X.shape[1], arrays["R"].shape[-1], len(node.backwards)
    valid = np.full(N, T) if lengths is None else np.clip(lengths, 0, T)
    Y = np.zeros((T, D, N, H), np.uint64)
    finals = {"Y_h": np.zeros((D, N, H), np.uint64), "Y_c": np.zeros((D, N, H), np.uint64)}
    for d, backwards in enumerate(node.backwards):
        step = _Step(field, node, d, arrays, H)
        inputs = field.matmul(X, arrays["W"][d].T)
        h, c = (_initial(arrays.get(name), batch_first, d, (N, H)) for name in ("initial_h", "initial_c"))
        if lengths is not None:
            h[valid == 0], c[valid == 0] = 0, 0
        for t in reversed(range(T)) if backwards else range(T):
            rows = np.flatnonzero(valid > t)
            step.seen = None if seen is None else _Recorder(seen, t, backwards)
            h[rows], c[rows] = step(inputs[t, rows], h[rows], c[rows])
            Y[t, d, rows] = h[rows]
        finals["Y_h"][d], finals["Y_c"][d] = h, c
    if batch_first:
        Y = Y.transpose(2, 0, 1, 3)
        finals = {name: value.swapaxes(0, 1) for name, value in finals.items()}
    return {"Y": Y, **finals}


def _initial(given: Array | None, batch_first: bool, direction: int, shape: tuple[int, int]) -> Array:
    if given is None:
        return np.zeros(shape, np.uint64)
    return np.array(given[:, direction] if batch_first else given[direction])


@dataclasses.dataclass(frozen=True)
class _Recorder:
    seen: list[Seen]
    step: int
    reverse: bool

    def __call__(self, what: str, values: Array) -> None:
        self.seen.append(Seen(self.step, self.reverse, what, values))


class _Step:
    """One step of one direction: (X_t W^T [rows, gates * H], h [rows, H], c [rows, H]) -> (h, c)."""

    def __init__(self, field: Field, node: Recurrence, d: int, arrays: Mapping[str, Any], H: int) -> None:
        self.field, self.node, self.H = field, node, H
        self.R = arrays["R"][d]
        zeros = np.zeros(len(node.gates) * H, np.uint64)
        parts: list[Array] = [part[d] for part in arrays["B"]] if "B" in arrays else [zeros, zeros, zeros]
        self.Wb, self.Rb, self.b = parts
        P = arrays["P"][d] if "P" in arrays else np.zeros(3 * H, np.uint64)
        self.P = dict(zip("iof", np.split(P, 3), strict=True))
        self.functions = [(name, field.number(alpha), field.number(beta)) for name, alpha, beta in node.functions[d]]
        self.seen: _Recorder | None = None
        steps: dict[str, Callable[..., tuple[Array, Array]]] = {"RNN": self._rnn, "GRU": self._gru, "LSTM": self._lstm}
        self.step = steps[node.op]

    def __call__(self, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
        h, c = self.step(x, h, c)
        self._see("state C", c)
        self._see("state H", h)
        return h, c

    def _see(self, what: str, values: Array) -> None:
        if self.seen is not None:
            self.seen(what, values)

    def _of(self, gate: str, parts: Array) -> Array:
        """The part of a gate in the last axis of a bias or of what is projected."""
        start = self.node.gates.index(gate) * self.H
        return parts[..., start : start + self.H]

    def _recurrent(self, gate: str, h: Array) -> Array:
        """h R^T of one gate"""
        start = self.node.gates.index(gate) * self.H
        return self.field.matmul(h, self.R[start : start + self.H].T)

    def _sum(self, gate: str, x: Array, h: Array) -> Array:
        add = self.field.add
        return add(add(self._of(gate, x), self._recurrent(gate, h)), self._of(gate, self.b))

    def _active(self, gate: str, function: int, x: Array, bounded: bool = True) -> Array:
        """The gate's function of its pre-activation, after clip."""
        if self.node.limit is not None and bounded:
            high = self.field.number(self.node.limit)
            x = clip(self.field, x, self.field.negative(high), high)
        name, alpha, beta = self.functions[function]
        result = SCALARS[name](self.field, x, alpha, beta)
        self._see(f"gate {gate}" if bounded else "h(C)", result)
        return result

    def _rnn(self, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
        return self._active("h", 0, self._sum("h", x, h)), c

    def _gru(self, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
        add, multiply = self.field.add, self.field.multiply
        z = self._active("z", 0, self._sum("z", x, h))
        r = self._active("r", 0, self._sum("r", x, h))
        if self.node.reset_after:
            inner = multiply(r, add(self._recurrent("h", h), self._of("h", self.Rb)))
            inner = add(add(self._of("h", x), inner), self._of("h", self.Wb))
        else:
            inner = self._sum("h", x, multiply(r, h))
        candidate = self._active("h", 1, inner)
        return add(multiply(self.field.subtract(ONE, z), candidate), multiply(z, h)), c

    def _lstm(self, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
        add, multiply = self.field.add, self.field.multiply
        i = self._active("i", 0, add(self._sum("i", x, h), multiply(self.P["i"], c)))
        if self.node.coupled:
            f = self.field.subtract(ONE, i)
        else:
            f = self._active("f", 0, add(self._sum("f", x, h), multiply(self.P["f"], c)))
        new_c = add(multiply(f, c), multiply(i, self._active("c", 1, self._sum("c", x, h))))
        o = self._active("o", 0, add(self._sum("o", x, h), multiply(self.P["o"], new_c)))
        return multiply(o, self._active("h", 2, new_c, bounded=False)), new_c
