"""Lowered layers as int8 TensorFlow Lite models without an operator in floats."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from paths import ROOT
from quantized_models import recurrent, samples

import rnn_lower

PYTHON = Path(os.environ.get("ONNX2TF_PYTHON", "none"))
SLOW = pytest.mark.soak
KINDS = [
    pytest.param("step", id="step"), pytest.param("forward", id="20 steps"), pytest.param("reverse", marks=SLOW),
    pytest.param("bidirectional", marks=SLOW), pytest.param("lengths", marks=SLOW),
]  # fmt: skip


def lowered(op: str, kind: str) -> onnx.ModelProto:
    """For Arm's Ethos-U, whose compiler takes these TFLite models; it supports no comparison, which lengths need."""
    if kind == "step":
        return rnn_lower.stream(recurrent(op, T="time"), axis="time", step=1, target="ethos-u")
    if kind == "lengths":
        return rnn_lower.lower(recurrent(op, lengths=True), target="onnx2tf")
    return rnn_lower.lower(recurrent(op, direction=kind), target="ethos-u")


@pytest.mark.skipif(not PYTHON.exists(), reason="ONNX2TF_PYTHON names no Python")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", ["GRU", "LSTM", "RNN"])
def test_no_float_operator_is_left(op, kind, tmp_path):
    model = lowered(op, kind)
    onnx.save(model, tmp_path / "model.onnx")
    np.savez(tmp_path / "samples.npz", **samples(model, 50))
    command = [PYTHON, ROOT / "examples" / "tflite.py", "model.onnx", "samples.npz", "int8.tflite"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    summary = re.search(
        r"^(\d+) operators in floats, \d+ bytes, largest difference ([\d.]+)$", done.stdout, re.MULTILINE
    )
    assert summary is not None, done.stdout
    assert summary[1] == "0"
    assert float(summary[2]) < (0.2 if op == "RNN" else 0.15)
    assert (tmp_path / "int8.tflite").stat().st_size < 0.6 * (tmp_path / "model.onnx").stat().st_size
