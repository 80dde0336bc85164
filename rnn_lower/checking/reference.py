"""The oracle: RNN, GRU and LSTM of every version in numpy, float64, written from the ONNX text and onnxruntime's edges.

It shares no code with the lowering. `OPERATORS` are classes for `onnx.reference.ReferenceEvaluator(..., new_ops=...)`;
`run` computes one node from arrays. Where onnxruntime computes a well-defined result this gives the same; elsewhere
the ONNX text holds: layout 1, double, bfloat16, and sequences without steps (final state = initial state).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.helper
from onnx.reference.op_run import OpRun

Array = np.ndarray
Function = Callable[[Array], Array]


def _sigmoid(x: Array) -> Array:
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * x)))


ACTIVATIONS: dict[str, tuple[bool, bool, float, float, Callable[..., Array]]] = {
    "relu": (False, False, 0, 0, lambda x, a, b: np.maximum(x, 0)),
    "tanh": (False, False, 0, 0, lambda x, a, b: np.tanh(x)),
    "sigmoid": (False, False, 0, 0, lambda x, a, b: _sigmoid(x)),
    "affine": (True, True, 0, 0, lambda x, a, b: a * x + b),
    "leakyrelu": (True, False, 0.01, 0, lambda x, a, b: np.where(x >= 0, x, a * x)),
    "thresholdedrelu": (True, False, 0, 0, lambda x, a, b: np.where(x > a, x, 0)),
    "scaledtanh": (True, True, 0, 0, lambda x, a, b: a * np.tanh(b * x)),
    "hardsigmoid": (True, True, 0.2, 0.5, lambda x, a, b: np.minimum(1, np.maximum(0, a * x + b))),
    "elu": (True, False, 1.0, 0, lambda x, a, b: np.where(x >= 0, x, a * np.expm1(np.minimum(x, 0)))),
    "softsign": (False, False, 0, 0, lambda x, a, b: x / (1 + np.abs(x))),
    "softplus": (False, False, 0, 0, lambda x, a, b: np.logaddexp(0, x)),
}
"""By name in lower case: takes alpha, takes beta, their defaults, the function of x, alpha, beta."""

DEFAULTS = {"RNN": ["tanh"], "GRU": ["sigmoid", "tanh"], "LSTM": ["sigmoid", "tanh", "tanh"]}


def _functions(op: str, directions: int, names: Sequence[str] | None, alpha: Any, beta: Any) -> list[list[Function]]:
    """f, g, h per direction; alpha and beta are consumed in order by those that take them."""
    per = len(DEFAULTS[op])
    names = [name.lower() for name in names or ()] or DEFAULTS[op] * directions
    if op == "RNN" and directions == 1:
        names = names[:1]
    alphas, betas = iter(alpha or ()), iter(beta or ())
    made: list[Function] = []
    for name in names:
        takes_alpha, takes_beta, a, b, function = ACTIVATIONS[name]
        # onnxruntime holds these parameters in float32
        a = float(np.float32(next(alphas, a))) if takes_alpha else 0.0
        b = float(np.float32(next(betas, b))) if takes_beta else 0.0
        made.append(functools.partial(function, a=a, b=b))
    return [made[start : start + per] for start in range(0, per * directions, per)]


def run(op: str, inputs: Sequence[Array | None], attributes: dict[str, Any]) -> list[Array]:
    """Compute one node: inputs and attributes as in the ONNX text, None for absent ones.

    Answers Y [T, D, N, H], Y_h [D, N, H] and for LSTM Y_c [D, N, H] (layout 1: Y [N, T, D, H], Y_h and Y_c [N, D, H]),
    in X's element type, all computed in float64.
    """
    padded: list[Any] = [*inputs, *[None] * (8 - len(inputs))]
    dtype, lens = padded[0].dtype, padded[4]
    wide: list[Any] = [None if a is None else a.astype(np.float64) for a in padded]
    X, W, R, B, _, h0, c0, P = wide
    if attributes.get("layout"):
        X = X.swapaxes(0, 1)
        h0, c0 = (None if s is None else s.swapaxes(0, 1) for s in (h0, c0))
    T, N, D, H = X.shape[0], X.shape[1], R.shape[0], R.shape[-1]
    lengths = np.full(N, T) if lens is None else np.clip(np.asarray(lens), 0, T)
    direction = attributes.get("direction") or "forward"
    functions = _functions(
        op, D, attributes.get("activations"), attributes.get("activation_alpha"), attributes.get("activation_beta"),
    )  # fmt: skip
    Y, Yh, Yc = np.zeros((T, D, N, H)), np.zeros((D, N, H)), np.zeros((D, N, H))
    for d in range(D):
        parts = [None if a is None else a[d] for a in (W, R, B, P)]
        step = _Step(op, H, parts, functions[d], attributes)
        for n in range(N):  # one sequence at a time: no masks, nothing to get wrong
            h = np.zeros(H) if h0 is None else h0[d, n]
            c = np.zeros(H) if c0 is None else c0[d, n]
            length = int(lengths[n])
            if length == 0 and lens is not None:  # the initial state is dropped
                continue
            backwards = direction == "reverse" or d == 1
            for t in range(length - 1, -1, -1) if backwards else range(length):
                h, c = step(X[t, n], h, c)
                Y[t, d, n] = h
            Yh[d, n], Yc[d, n] = h, c
    if attributes.get("layout"):
        Y, Yh, Yc = Y.transpose(2, 0, 1, 3), Yh.swapaxes(0, 1), Yc.swapaxes(0, 1)
    results = [Y, Yh, Yc] if op == "LSTM" else [Y, Yh]
    return [np.ascontiguousarray(a).astype(dtype) for a in results]


class _Step:
    """One step of one sequence of one direction: (x [I], h [H], c [H]) -> (h, c)."""

    def __init__(
        self, op: str, H: int, parts: Sequence[Array | None], functions: list[Function], attributes: dict[str, Any],
    ) -> None:  # fmt: skip
        gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[op]
        W, R, B, P = parts
        assert W is not None
        assert R is not None
        B = np.zeros(2 * gates * H) if B is None else B
        self.W, self.R = W.reshape(gates, H, -1), R.reshape(gates, H, H)
        self.Wb, self.Rb = B[: gates * H].reshape(gates, H), B[gates * H :].reshape(gates, H)
        self.P = np.zeros((3, H)) if P is None else P.reshape(3, H)
        self.functions = functions
        self.reset_after = bool(attributes.get("linear_before_reset"))
        self.coupled = bool(attributes.get("input_forget"))
        clip = attributes.get("clip")
        on = clip is not None and (clip >= 0 if op == "RNN" else clip > 0)
        self.limit = float(np.float32(clip)) if on else np.inf
        self.step = {"RNN": self._rnn, "GRU": self._gru, "LSTM": self._lstm}[op]

    def __call__(self, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
        with np.errstate(all="ignore"):
            return self.step(x, h, c)

    def _clip(self, a: Array) -> Array:
        return np.asarray(np.clip(a, -self.limit, self.limit))

    def _sum(self, gate: int, x: Array, h: Array) -> Array:
        return np.asarray(self.W[gate] @ x + self.R[gate] @ h + self.Wb[gate] + self.Rb[gate])

    def _rnn(self, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
        return self.functions[0](self._clip(self._sum(0, x, h))), c

    def _gru(self, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
        f, g = self.functions
        z = f(self._clip(self._sum(0, x, h)))
        r = f(self._clip(self._sum(1, x, h)))
        if self.reset_after:
            inner = self.W[2] @ x + r * (self.R[2] @ h + self.Rb[2]) + self.Wb[2]
        else:
            inner = self.W[2] @ x + self.R[2] @ (r * h) + self.Rb[2] + self.Wb[2]
        return (1 - z) * g(self._clip(inner)) + z * h, c

    def _lstm(self, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
        f, g, activation_h = self.functions
        i = f(self._clip(self._sum(0, x, h) + self.P[0] * c))
        forget = 1 - i if self.coupled else f(self._clip(self._sum(2, x, h) + self.P[2] * c))
        new_c = forget * c + i * g(self._clip(self._sum(3, x, h)))
        o = f(self._clip(self._sum(1, x, h) + self.P[1] * new_c))
        return o * activation_h(new_c), new_c


Record = Callable[[onnx.NodeProto, Array, Array | None], None]
"""Called with a node, its X and its sequence_lens."""


def _operator(op: str, record: Record | None = None) -> type[OpRun]:
    attributes = (
        "activation_alpha", "activation_beta", "activations", "clip", "direction", "hidden_size", "input_forget",
        "layout", "linear_before_reset",
    )  # fmt: skip

    class Operator(OpRun):  # type: ignore[misc]
        op_domain = ""

        def _run(self, *inputs: Array | None, **_: Any) -> tuple[Array, ...]:
            given = {attribute.name: attribute for attribute in self.onnx_node.attribute}
            values = {name: _value(given[name]) for name in attributes if name in given}
            if record is not None:
                record(self.onnx_node, inputs[0], inputs[4] if len(inputs) > 4 else None)  # type: ignore[arg-type]
            results = run(op, list(inputs), values)
            return tuple(results[: len(self.onnx_node.output)])

    Operator.__name__ = op
    return Operator


def _value(attribute: Any) -> Any:
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], bytes):
        return [item.decode() for item in value]
    return value


def operators(record: Record | None = None) -> tuple[type[OpRun], ...]:
    """The operators for `onnx.reference.ReferenceEvaluator(model, new_ops=...)`. record: see `Record`."""
    return tuple(_operator(op, record) for op in ("RNN", "GRU", "LSTM"))


OPERATORS: tuple[type[OpRun], ...] = operators()
"""For `onnx.reference.ReferenceEvaluator(model, new_ops=OPERATORS)`."""
