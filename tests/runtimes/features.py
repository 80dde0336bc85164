"""The features that are tried on every runtime, as cases that the tests can change further."""

from __future__ import annotations

import dataclasses

from onenode import Case

from rnn_lower.targeting.probe import features

FEATURES = {name: Case(**dataclasses.asdict(case)) for name, case in features.FEATURES.items()}

REFUSED_FEATURES = {
    "ncnn": (
        "LSTM sequence_lens input", "GRU sequence_lens input", "RNN sequence_lens input", "LSTM everything",
        "GRU everything", "RNN ThresholdedRelu",
    ),
}  # fmt: skip
"""By target, those that take operators which the runtime has in no way."""
