"""check --on: the lowered model on another runtime, against the fused one on onnxruntime."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onenode import Case, build
from paths import ROOT
from runners import RUNNERS, here

import rnn_lower
from rnn_lower import cli
from rnn_lower.checking import runtimes
from rnn_lower.sandbox import child_process

QUICK = ("onnxruntime", "onnx-reference", "openvino", "tract", "opencv", "onnx2torch")


@pytest.mark.parametrize("name", QUICK)
def test_lowered_for_a_runtime_it_agrees_there(name):
    model, _ = build(Case("LSTM", 17, optional=("B",), direction="reverse"))
    lowered = rnn_lower.lower(model, target=here(name))
    report = rnn_lower.check(model, lowered, on=name, runs=1)
    assert report.ok, report
    assert report.runner.startswith(f"{name} ")
    assert report.judge.startswith("onnxruntime")


@pytest.mark.parametrize("name", ["onnx-reference", "openvino"])
def test_free_sizes_are_those_of_the_inputs(name):
    model, _ = build(Case("GRU", 17, optional=("B",), dynamic=True))
    assert rnn_lower.check(model, rnn_lower.lower(model, target=here(name)), on=name, runs=2).ok


def test_openvino_returns_bfloat16_in_arrays_of_float16():
    model, _ = build(Case("GRU", 17, optional=("B",), dtype="bfloat16"))
    report = rnn_lower.check(model, rnn_lower.lower(model, target=here("openvino")), on="openvino", runs=1)
    assert report.ok, report


def test_what_is_silently_wrong_there_is_seen():
    """OpenCV ignores the direction of a reverse GRU."""
    model, _ = build(Case("GRU", 17, optional=("B",), direction="reverse"))
    report = rnn_lower.check(model, model, on=here("opencv"), runs=1)
    assert not report.ok
    assert report.max_abs_error > 0.01


def test_external_weights_go_along(tmp_path):
    model, _ = build(Case("LSTM", 17, H=64))
    onnx.save(model, tmp_path / "a.onnx", save_as_external_data=True, location="a.data", size_threshold=1024)
    rnn_lower.lower_file(tmp_path / "a.onnx", tmp_path / "b.onnx", target="onnx-reference")
    assert rnn_lower.check(tmp_path / "a.onnx", tmp_path / "b.onnx", on="onnx-reference", runs=1).ok


def test_the_model_that_is_run_is_the_one_that_was_lowered(monkeypatch):
    """And with the inputs of the original: what a runner gets, and what becomes of what it answers."""
    model, _ = build(Case("GRU", 17, dynamic=True))
    lowered, seen = rnn_lower.lower(model), []

    def runner(given, feeds):
        seen.append((given, feeds))
        return [np.zeros(1, np.float32)] * len(given.graph.output)

    monkeypatch.setitem(runtimes.RUNNERS, "opencv", ("onnx", runner))
    monkeypatch.setattr(runtimes, "missing", lambda _: None)
    monkeypatch.setattr(child_process, "may_fork", lambda: False)  # or a child would see it
    assert not rnn_lower.check(model, lowered, on="opencv", runs=1).ok
    given, feeds = seen[0]
    assert [node.op_type for node in given.graph.node] == [node.op_type for node in lowered.graph.node]
    dims = given.graph.input[0].type.tensor_type.shape.dim
    assert tuple(dim.dim_value for dim in dims) == feeds["X"].shape


@pytest.mark.parametrize("target", ["tract", "opencv"])
def test_a_model_that_runs_only_with_fixed_sizes_is_reported(monkeypatch, target):
    model, _ = build(Case("GRU", 17, dynamic=True))
    _, reference = runtimes.RUNNERS["onnx-reference"]

    def runner(given, feeds):
        if any(not dim.dim_value for value in given.graph.input for dim in value.type.tensor_type.shape.dim):
            raise ValueError("Sym(T) is unknown")
        return reference(given, feeds)

    monkeypatch.setitem(runtimes.RUNNERS, target, ("onnx", runner))
    monkeypatch.setattr(runtimes, "missing", lambda _: None)
    monkeypatch.setattr(child_process, "may_fork", lambda: False)
    report = rnn_lower.check(model, rnn_lower.lower(model, target="onnx-reference"), on=target)
    assert report.ok
    takes_free_sizes = target == "tract"
    assert report.needs_sizes == ("Sym(T) is unknown" if takes_free_sizes else "")
    assert any("only with fixed input sizes (--dim)" in line for line in report.lines()) == takes_free_sizes


def test_on_the_command_line(tmp_path, capsys):
    source = ROOT / "models" / "torch_gru_streaming.onnx"
    path = tmp_path / "out.onnx"
    command = ["lower", str(source), "-o", str(path), "--check", "--on", "onnx-reference", "--runs", "1", "--json"]
    assert cli.main(command) == cli.DONE
    assert json.loads(capsys.readouterr().out)["check"]["runner"].startswith("onnx-reference ")
    assert cli.main(["check", str(source), str(path), "--on", "onnx-reference", "--runs", "1"]) == cli.DONE


def test_every_runner_is_of_a_target():
    assert runtimes.RUNNERS.items() <= RUNNERS.items()
    assert set(RUNNERS) <= set(rnn_lower.targeting.TARGETS)


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_the_joint_network_of_a_transducer_loads(op, direction, tmp_path):
    """tract moved axes through two Scans forever, whose results meet in a sum of all pairs."""
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[op]
    matrix = ",".join(str(index % 7 / 7 - 0.4) for index in range(gates * 12))
    node = f'{op} <hidden_size = 4, direction = "{direction}">'
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[6,2,3] x, float[3,2,3] u) => (float[2,6,3,5] y)
        <float[1,{gates * 4},3] W = {{{matrix}}}, float[1,{gates * 4},4] R = {{{matrix},{",".join(["0.1"] * gates * 4)}}}, int64[1] one = {{1}},
         int64[1] two = {{2}}, float[4,5] O = {{{",".join(str(index / 20) for index in range(20))}}}> {{
        a = {node} (x, W, R) sa = Squeeze (a, one) ta = Transpose <perm = [1, 0, 2]> (sa) ua = Unsqueeze (ta, two)
        b = {node} (u, W, R) sb = Squeeze (b, one) tb = Transpose <perm = [1, 0, 2]> (sb) ub = Unsqueeze (tb, one)
        j = Add (ua, ub) y = MatMul (j, O) }}""")
    before, after = tmp_path / "a.onnx", tmp_path / "b.onnx"
    onnx.save(model, before)
    assert cli.main(["lower", str(before), "-o", str(after), "--target", here("tract"), "--prove"]) == cli.DONE
    command = [sys.executable, "-m", "rnn_lower", "check", str(before), str(after), "--on", "tract"]
    subprocess.run(command, check=True, timeout=60)


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("opset", [1, 7, 9, 10, 11])
def test_lengths_of_unknown_sequences_on_tract(op, opset):
    """Below opset 11, NonZero counts the steps; for tract, their number is another one than that of X."""
    model, feeds = build(Case(op, opset, optional=("sequence_lens",), dynamic=True, weights="initializer"))
    options = {}
    if opset < 11:
        with pytest.raises(rnn_lower.UnsupportedError, match=r"needs opset 11 for sequence_lens .* add opset=17$"):
            rnn_lower.lower(model, target=here("tract"))
        options = {"opset": 17}
    lowered = rnn_lower.lower(model, target=here("tract"), **options)
    assert rnn_lower.check(model, lowered, on="tract", inputs=feeds).ok


@pytest.mark.parametrize("name", ["openvino", "opencv"])
def test_other_runtimes_take_defaults_for_constants(name):
    model, _ = build(Case("GRU", 17, T=5, N=2, weights="initializer"))
    kinds = {tensor.name: tensor for tensor in model.graph.initializer}
    model.graph.input.extend(onnx.helper.make_tensor_value_info(k, v.data_type, v.dims) for k, v in kinds.items())
    lowered = rnn_lower.lower(model, target=here(name))
    assert rnn_lower.check(model, lowered, on=name).ok
