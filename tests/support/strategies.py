"""Random one-node models: fields with their choices, drawn by hypothesis (tests) or by numpy (the soak)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st
from onenode import OPTIONAL, OUTPUTS, Case

from rnn_lower.targeting import TARGETS

ACTIVATIONS = (
    "Relu", "Tanh", "Sigmoid", "Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu", "Softsign",
    "Softplus",
)  # fmt: skip
PER_DIRECTION = {"RNN": 1, "GRU": 2, "LSTM": 3}
FORMS = ("scan", "loop", "unroll")
MEASURED = [name for name, target in TARGETS.items() if target.status == "measured"]
"""Targets that take whatever their forms and opsets take; tests/test_documented.py looks at the others."""

Pick = Callable[[Sequence[Any]], Any]
"""Chooses one of several values; the simplest is first, which is what shrinking goes to."""


def make(pick: Pick) -> tuple[Case, str]:
    """A case and a form for it, every field chosen by `pick`."""
    op = pick(("RNN", "GRU", "LSTM"))
    opset = pick((14, 7, 8, 9, 10, 11, 12, 13, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26))
    forms = [form for form in FORMS if form != "scan" or opset >= 9]
    form = pick(forms)
    direction = pick((None, "forward", "reverse", "bidirectional"))
    directions = 2 if direction == "bidirectional" else 1
    dtype = pick(("float", "float", "float", "float16", "double"))
    place = pick(
        ("main", "main", "main", "if", "loop" if opset >= 11 else "main", "function" if opset >= 14 else "main")
    )
    layout = pick((0, 0, 0, 1)) if opset >= 14 else 0
    if place == "loop" and (dtype == "double" or layout):
        place = "main"  # no judge runs it: onnx.reference joins what a Loop stacks
    if place == "function" and form == "unroll":
        place = "main"  # a function declares no sizes
    names = None
    if pick((False, False, True)):
        names = tuple(pick(ACTIVATIONS) for _ in range(PER_DIRECTION[op] * directions))
    numbers = (0.1, 0.25, 0.5, 0.75, 1.0)
    optional = tuple(name for name in OPTIONAL[op] if pick((False, True)))
    outputs = tuple(name for name in OUTPUTS[op] if pick((True, True, False))) or OUTPUTS[op][-1:]
    return Case(
        op=op, opset=opset, direction=direction, dtype=dtype, place=place, layout=layout, activations=names,
        T=pick((2, 1, 3, 5, 8)), N=pick((1, 2, 3, 5)), I=pick((1, 2, 4, 7)), H=pick((1, 2, 3, 8, 16)),
        alpha=tuple(pick(numbers) for _ in range(pick((0, 1, 3, 7)))) if names and pick((False, True)) else None,
        beta=tuple(pick(numbers) for _ in range(pick((0, 1, 3, 7)))) if names and pick((False, True)) else None,
        clip=pick((None, None, 0.05, 0.3, 1.0, 50.0)),
        lbr=pick((None, 0, 1, 1)) if op == "GRU" else None,
        input_forget=pick((None, 0, 1)) if op == "LSTM" else None,
        optional=optional, outputs=outputs,
        lengths_as=pick(("input", "initializer")),
        weights=pick(("initializer", "initializer", "input", "constant", "computed", "moved")),
        dynamic=pick((False, True)) and form != "unroll",
        seed=pick(range(1000)),
    ), form  # fmt: skip


@st.composite
def cases(draw: st.DrawFn) -> tuple[Case, str]:
    return make(lambda choices: draw(st.sampled_from(list(choices))))


def random_case(rng: np.random.Generator) -> tuple[Case, str]:
    return make(lambda choices: choices[int(rng.integers(len(choices)))])
