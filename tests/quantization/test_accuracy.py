"""Models that are trained here, in floats and in 8 bits."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from paths import ROOT
from quantized_models import products

pytest.importorskip("torch")
sys.path.append(str(ROOT / "examples"))
import quantize as example

POINTS = 1.0
"""Of 100 that 8 bits may cost, with a cell state in 16."""


def digits(count, seed):
    """Pictures [count, 8, 8] of handwritten digits, and which each is: 1,297 to train with, or the other 500."""
    held = pytest.importorskip("sklearn.datasets").load_digits()
    part = slice(500) if seed else slice(500, None)
    return (held.images[part][:count] / 16).astype(np.float32), held.target[part][:count]


OPERATORS, TASKS = ("LSTM", "GRU", "RNN"), (example.shapes, digits, example.sines)
CASES = [
    pytest.param(op, task, 1000, id=f"{op}-{task.__name__}", marks=pytest.mark.soak if i == k == 1 else pytest.mark.grid)
    for i, op in enumerate(OPERATORS) for k, task in enumerate(TASKS)
]  # fmt: skip


@pytest.mark.parametrize(("op", "task", "samples"), [pytest.param("LSTM", example.shapes, 200, id="few"), *CASES])
def test_as_good_as_floats(op, task, samples, capsys):
    x, y = task(3000, 0)
    epochs = 30 if task is digits else 12 if op == "RNN" else 8
    model = example.train(op, x, y, hidden=64, epochs=epochs)
    made = example.variants(model, {"x": x[:samples, :, None]})
    scores = {name: example.score(one, *task(500, 1)) for name, one in made.items()}
    with capsys.disabled():
        print(f"\n{op} {task.__name__}:", *(f"  {score:6.2f} {name}" for name, score in scores.items()), sep="\n")
    floats = scores.pop("float, fused")
    assert floats > 80, "it has learnt something"
    for name, score in scores.items():
        if "untied" not in name:
            assert score > floats - POINTS, name
    assert not any(products(one)[1] for name, one in made.items() if "rnn_lower.quantize" in name or "static" in name)
