"""Programs of the folder examples run, with the tools that are installed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from judge import close, remaining, run_onnxruntime
from onenode import Case, build
from paths import ROOT

import rnn_lower


def example(name: str, *arguments: object, cwd: Path) -> str:
    """Run a program of the folder; what it prints."""
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", ROOT / "examples" / name, *map(str, arguments)], cwd=cwd,
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


SCRIPTS = [path for folder in ("benchmarks", "docs", "tests/soak") for path in sorted((ROOT / folder).glob("*.py"))]


@pytest.mark.parametrize(
    "path", [path for path in SCRIPTS if "__main__" in path.read_text()], ids=lambda path: path.name
)
def test_a_script_starts(path, tmp_path):
    for extra in ("matplotlib", "torch", "psutil"):
        if f"import {extra}" in path.read_text() and importlib.util.find_spec(extra) is None:
            pytest.skip(f"{extra} is not installed")
    done = subprocess.run([sys.executable, path, "--help"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage:")


@pytest.mark.soak
def test_export_torch(tmp_path):
    pytest.importorskip("torch")
    path = tmp_path / "lowered.onnx"
    told = example("export_torch.py", "--out", path, cwd=tmp_path)
    assert told.count("same: largest difference") == 3
    assert "LSTM" in told.partition("lowered:")[0]
    assert not remaining(onnx.load(path))


@pytest.mark.soak
def test_olive(tmp_path):
    if importlib.util.find_spec("olive") is None:  # imported in a process of its own
        pytest.skip("olive is not installed")
    source = ROOT / "models" / "torch_keyword_spotter.onnx"
    example("olive_lower.py", source, "--out", "lowered", cwd=tmp_path)
    lowered = tmp_path / "lowered" / "model.onnx"
    assert not remaining(onnx.load(lowered))
    assert rnn_lower.check(source, lowered).ok


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
