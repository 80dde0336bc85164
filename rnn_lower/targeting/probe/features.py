"""The features that are tested on every runtime, with one small model for each."""

from __future__ import annotations

from typing import Any

from rnn_lower.lowering.activations import ACTIVATIONS
from rnn_lower.lowering.node import OPERATORS
from rnn_lower.targeting import Target
from rnn_lower.targeting.probe.onenode import Case

SMALL: dict[str, Any] = {"opset": 17, "T": 5, "N": 2, "I": 3, "H": 4}


def _cases() -> dict[str, Case]:
    cases: dict[str, Case] = {}
    for op in ("LSTM", "GRU", "RNN"):
        base = Case(op, optional=("B",), **SMALL)
        states = tuple(name for name in OPERATORS[op].inputs if name.startswith("initial"))
        cases[f"{op} plain"] = base
        cases[f"{op} no bias"] = base.replace(optional=())
        cases[f"{op} initial states"] = base.replace(optional=("B", *states))
        cases[f"{op} reverse"] = base.replace(direction="reverse")
        cases[f"{op} bidirectional"] = base.replace(direction="bidirectional")
        cases[f"{op} sequence_lens"] = base.replace(
            optional=("B", "sequence_lens"), lengths=(5, 3), lengths_as="initializer"
        )
        cases[f"{op} sequence_lens input"] = base.replace(optional=("B", "sequence_lens"), lengths=(5, 3))
        cases[f"{op} clip"] = base.replace(clip=0.2)
        cases[f"{op} layout 1"] = base.replace(layout=1)
        cases[f"{op} last state only"] = base.replace(outputs=("Y_h",))
        cases[f"{op} sequence only"] = base.replace(outputs=("Y",))
        cases[f"{op} named activations"] = base.replace(activations=OPERATORS[op].activations)
        cases[f"{op} saturated"] = base.replace(scale=1000.0)
        cases[f"{op} one step"] = base.replace(T=1, optional=("B", *states))
    lstm, gru, rnn = (Case(op, optional=("B",), **SMALL) for op in ("LSTM", "GRU", "RNN"))
    cases["LSTM peepholes"] = lstm.replace(optional=("B", "P"))
    cases["LSTM input_forget"] = lstm.replace(input_forget=1)
    cases["LSTM activations"] = lstm.replace(activations=("HardSigmoid", "Relu", "Softsign"))
    cases["LSTM everything"] = lstm.replace(
        direction="bidirectional", optional=OPERATORS["LSTM"].inputs[3:], lengths=(2, 5), clip=0.3
    )
    cases["GRU linear_before_reset"] = gru.replace(lbr=1)
    cases["GRU activations"] = gru.replace(activations=("HardSigmoid", "LeakyRelu"), alpha=(0.3, 0.1), beta=(0.4,))
    cases["GRU everything"] = gru.replace(
        direction="bidirectional", optional=OPERATORS["GRU"].inputs[3:], lengths=(2, 5), lbr=1, clip=0.3
    )
    for name in (name for name in ACTIVATIONS if name != "Tanh"):
        cases[f"RNN {name}"] = rnn.replace(activations=(name,), alpha=(0.4,), beta=(0.3,))
    cases["RNN Softplus saturated"] = rnn.replace(activations=("Softplus",), scale=200.0)
    return cases


FEATURES = _cases()


def suited(case: Case, target: Target) -> Case | None:
    """Return the case with the opset and batch size that a target supports, or None if there are none."""
    first, last = target.opsets
    if case.layout and last < 14:  # the first version with this attribute
        return None
    changes: dict[str, Any] = {"opset": min(max(case.opset, first), last)}
    if target.single_batch:
        changes.update(N=1, lengths=None if case.lengths is None else case.lengths[1:])
    return case.replace(**changes)
