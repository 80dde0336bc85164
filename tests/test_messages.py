"""What `lower` tells beside the nodes: sizes before and after, why a form, what to expect on onnxruntime."""

from __future__ import annotations

import json

import onnx
import pytest
from judge import every_node
from onenode import Case, build

from rnn_lower import cli


def lowered(case: Case, folder, capsys, *options: str) -> str:
    onnx.save(build(case)[0], folder / "in.onnx")
    command = ["lower", str(folder / "in.onnx"), "-o", str(folder / "out.onnx"), *options]
    assert cli.main(command) == cli.DONE
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "case", "why"),
    [
        ([], Case("GRU", T=7), "canonical"),
        (["--target", "onnxruntime"], Case("GRU", T=7), "the fastest form on onnxruntime"),
        (
            ["--target", "onnxruntime"],
            Case("GRU", T=3),
            "the sequence has only 3 steps; rnn_lower unrolls sequences of up to 3 steps",
        ),
        ([], Case("GRU", T=1), "one step"),
        ([], Case("GRU", 8, T=7), "form scan cannot be used for this node"),
        (["--form", "loop"], Case("GRU"), "requested"),
        (["--target", "opencv"], Case("GRU"), "opencv supports no other form"),
        (
            ["--target", "openvino"],
            Case("GRU"),
            "the sequence has only 5 steps; rnn_lower unrolls sequences of up to 16 steps",
        ),
        (["--target", "tract"], Case("GRU"), "the fastest form on tract"),
    ],
    ids=str,
)
def test_why_this_form(options, case, why, tmp_path, capsys):
    assert json.loads(lowered(case, tmp_path, capsys, "--json", *options))["nodes"][0]["why"] == why


@pytest.mark.parametrize("form", ["scan", "unroll"])
def test_nodes_and_bytes_before_and_after(form, tmp_path, capsys):
    told = json.loads(lowered(Case("LSTM", place="if"), tmp_path, capsys, "--json", "--form", form))
    for key, name in (("before", "in.onnx"), ("after", "out.onnx")):
        operators = [node.op_type for node in every_node(onnx.load(tmp_path / name))]
        assert told[key]["operators"] == {op: operators.count(op) for op in operators}
        assert told[key]["size"] == (tmp_path / name).stat().st_size
    out = lowered(Case("LSTM", place="if"), tmp_path, capsys, "--form", form)
    assert f"3 -> {sum(told['after']['operators'].values()):,} nodes, {told['before']['size'] / 1000:.3g} kB -> " in out


def test_bytes_of_external_data_count(tmp_path, capsys):
    model, _ = build(Case("LSTM", H=64))
    onnx.save(model, tmp_path / "big.onnx", save_as_external_data=True, location="big.data", size_threshold=1024)
    assert cli.main(["lower", str(tmp_path / "big.onnx"), "-o", str(tmp_path / "out.onnx"), "--json"]) == cli.DONE
    told = json.loads(capsys.readouterr().out)
    there = sum((tmp_path / name).stat().st_size for name in ("big.onnx", "big.data"))
    assert told["before"]["size"] == pytest.approx(there, rel=0.02)
