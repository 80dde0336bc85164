"""Networks in published shapes stream as torch exports them, with no hand edit, and are proved."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402
from architectures import ARCHITECTURES, exported  # noqa: E402
from judge import close  # noqa: E402
from runners import RUNNERS, missing  # noqa: E402

import rnn_lower  # noqa: E402

STRIDES = {"icefall LSTM": 2, "Demucs": 2}
LATE = {"RNNoise": 4, "PercepNet": 2, "icefall LSTM": 4}


@pytest.mark.parametrize("batch", [False, True], ids=["rows fixed", "rows free"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_is_proved(name, batch):
    if batch and name == "DeepFilterNet encoder":
        pytest.skip("this exporter fixes its rows")
    model = exported(name, dynamo=False, batch=batch)
    _, _, axes, options = ARCHITECTURES[name]
    every = STRIDES.get(name, 1)
    for more in ({}, {"step": every}):
        made = rnn_lower.stream(model, axis=f"x0[{axes[0]}]", **more, **options)
        proof = rnn_lower.prove_streaming(model, made, points=1)
        assert proof, f"{more}: {proof.verdict}"
        assert set(rnn_lower.StreamingSession(made).plan.late.values()) == {LATE[name]} if name in LATE else not set()


@pytest.mark.parametrize("target", ["openvino", "tract"])
@pytest.mark.parametrize("name", ["TCN", "gated convolutions", "policy", "UL-UNAS"])
def test_runs_step_by_step_elsewhere(name, target):
    if why := missing(target):
        pytest.skip(why)
    model, (_, shapes, axes, _) = exported(name, dynamo=False), ARCHITECTURES[name]
    made = rnn_lower.stream(model, axis=f"x0[{axes[0]}]", step=1, target=target)
    x = np.random.default_rng(0).uniform(-1, 1, shapes[0]).astype(np.float32)
    sessions = [
        rnn_lower.StreamingSession(made),
        rnn_lower.StreamingSession(made, run=lambda feeds: RUNNERS[target][1](made, feeds)),
    ]
    for k in range(4):
        frame = np.take(x, range(k, k + 1), axes[0])
        wanted, got = (next(iter(session.run(frame).values())) for session in sessions)
        close([got], [wanted])
