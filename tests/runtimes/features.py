"""The features that are tried on every runtime, as cases that the tests can change further."""

from __future__ import annotations

import dataclasses

from onenode import Case

from rnn_lower.kit import features

FEATURES = {name: Case(**dataclasses.asdict(case)) for name, case in features.FEATURES.items()}
