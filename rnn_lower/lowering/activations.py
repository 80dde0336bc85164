"""The activations of RNN, GRU and LSTM: the meaning of alpha and beta, and their defaults.

Source: the ONNX specification of RNN, GRU, LSTM (the eleven names are the same in every version) and onnxruntime for
the defaults that the specification leaves open. Names are case-insensitive.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from rnn_lower.errors import InvalidNodeError


@dataclasses.dataclass(frozen=True)
class Activation:
    """One activation of one direction. alpha, beta: None if the function has no such parameter."""

    name: str
    alpha: float | None = None
    beta: float | None = None

    @property
    def bounded(self) -> bool:
        """Whether the result is finite for every pre-activation but NaN."""
        return ACTIVATIONS[self.name].bounded


@dataclasses.dataclass(frozen=True)
class Kind:
    """alpha, beta: the default if the node lists no value, None if the function has no such parameter.

    bounded: |f(x)| stays below a constant.
    """

    alpha: float | None = None
    beta: float | None = None
    bounded: bool = False


ACTIVATIONS: dict[str, Kind] = {
    "Relu": Kind(),
    "Tanh": Kind(bounded=True),
    "Sigmoid": Kind(bounded=True),
    "Affine": Kind(alpha=0.0, beta=0.0),
    "LeakyRelu": Kind(alpha=0.01),
    "ThresholdedRelu": Kind(alpha=0.0),
    "ScaledTanh": Kind(alpha=0.0, beta=0.0, bounded=True),
    "HardSigmoid": Kind(alpha=0.2, beta=0.5, bounded=True),
    "Elu": Kind(alpha=1.0),
    "Softsign": Kind(bounded=True),
    "Softplus": Kind(),
}

_BY_LOWER_CASE = {name.lower(): name for name in ACTIVATIONS}


def assign(
    names: Sequence[str], alphas: Iterable[float], betas: Iterable[float]
) -> tuple[tuple[Activation, ...], list[str]]:
    """Assign alpha and beta to each activation; also return notes about surprising defaults.

    alpha and beta are two queues over the whole node: only an activation that has the parameter consumes a value.
    Surplus values are ignored; when a queue is empty, the default applies.
    """
    alpha_queue, beta_queue = iter(alphas), iter(betas)
    result, notes = [], []
    for spelling in names:
        name = _BY_LOWER_CASE.get(spelling.lower())
        if name is None:
            raise InvalidNodeError(f"unknown activation '{spelling}'; known activations: {', '.join(ACTIVATIONS)}")
        kind = ACTIVATIONS[name]
        alpha = None if kind.alpha is None else next(alpha_queue, None)
        beta = None if kind.beta is None else next(beta_queue, None)
        if name == "ThresholdedRelu" and alpha is None:
            notes.append(
                "ThresholdedRelu has no alpha; the lowered model uses 0, as onnxruntime does, although "
                "the ONNX specification implies 1.0"
            )
        result.append(Activation(name, kind.alpha if alpha is None else alpha, kind.beta if beta is None else beta))
    return tuple(result), notes
