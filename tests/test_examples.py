"""Programs of the folder examples run, with the tools that are installed."""

from __future__ import annotations

import os
import subprocess
import sys

import onnx
import onnx_ir as ir
import pytest
from judge import close, remaining, run_onnxruntime
from onenode import Case, build
from paths import ROOT

import rnn_lower


def test_export_torch(tmp_path):
    pytest.importorskip("torch")
    path = tmp_path / "lowered.onnx"
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", ROOT / "examples" / "export_torch.py", "--out", path],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("same: rtol") == 3
    assert "LSTM" in done.stdout.partition("lowered:")[0]
    assert not remaining(onnx.load(path))


class Program:
    """What torch.onnx.export answers holds an onnx_ir model under this name."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model


def test_a_program_is_lowered_in_place():
    proto, feeds = build(Case("GRU", optional=("B",)))
    program = Program(ir.from_proto(proto))
    assert rnn_lower.lower(program, form="loop") is program
    lowered = ir.to_proto(program.model)
    assert not remaining(lowered)
    close(run_onnxruntime(lowered, feeds), run_onnxruntime(proto, feeds))
