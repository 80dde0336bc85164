"""What `lower` tells beside the nodes: sizes before and after, why a form, what to expect on onnxruntime."""

from __future__ import annotations

import json
import re

import onnx
import pytest
from judge import every_node
from onenode import Case, build
from paths import ROOT

import rnn_lower
from rnn_lower import cli
from rnn_lower.targets import cost


def lowered(case: Case, folder, capsys, *options: str) -> str:
    onnx.save(build(case)[0], folder / "in.onnx")
    command = ["lower", str(folder / "in.onnx"), "-o", str(folder / "out.onnx"), *options]
    assert cli.main(command) == cli.DONE
    return capsys.readouterr().out


@pytest.mark.parametrize("op", cost.RATIOS)
def test_figures_are_those_of_the_page(op):
    page = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    table = re.search(rf"^## {op}, forward, 1 thread, I = H\n\n(.*?)\n\n", page, re.DOTALL | re.MULTILINE)
    assert table is not None
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table[1].splitlines()]
    auto = rows[0].index("auto")
    there = {tuple(map(int, row[:3])): float(row[auto]) for row in rows[2:]}
    ours = {
        (T, N, H): ratio
        for T, by_batch in cost.RATIOS[op].items()
        for N, row in by_batch.items()
        for H, ratio in zip(cost.HIDDEN, row, strict=True)
    }
    assert len(ours) == 24
    assert ours == {sizes: there[sizes] for sizes in ours}


@pytest.mark.parametrize(
    ("case", "sizes"),
    [
        (Case("LSTM", T=64, N=1, H=20), (64, 1, 0)),
        (Case("LSTM", T=9, N=1, H=150), (64, 1, 1)),
        (Case("GRU", T=1, N=6, H=1000), (1, 8, 3)),
        (Case("RNN", dynamic=True, H=4), (64, 1, 0)),
    ],
    ids=str,
)
def test_nearest_sizes_count(case, sizes):
    (node,) = rnn_lower.inspect(build(case)[0])
    T, N, place = sizes
    assert cost.expected(node) == cost.RATIOS[case.op][T][N][place]


def test_slowdown_is_told_where_it_is_large(tmp_path, capsys):
    told = "times the fused nodes' time on onnxruntime"
    ratio = cost.RATIOS["LSTM"][64][1][0]
    assert f"expect about {ratio:.1f} {told}" in lowered(Case("LSTM", T=64, N=1, H=16), tmp_path, capsys)
    assert told not in lowered(Case("RNN", T=64, N=8, H=128), tmp_path, capsys)
    assert told not in lowered(Case("LSTM", T=6, N=1, H=16), tmp_path, capsys, "--target", "opencv")


@pytest.mark.parametrize(
    ("options", "case", "why"),
    [
        ([], Case("GRU", T=7), "canonical"),
        (["--target", "onnxruntime"], Case("GRU", T=7), "the fastest on onnxruntime"),
        (["--target", "onnxruntime"], Case("GRU", T=3), "3 steps, few for onnxruntime"),
        ([], Case("GRU", T=1), "one step"),
        ([], Case("GRU", 8, T=7), "scan does not serve here"),
        (["--form", "loop"], Case("GRU"), "requested"),
        (["--target", "opencv"], Case("GRU"), "opencv takes no other"),
        (["--target", "openvino"], Case("GRU"), "5 steps, few for openvino"),
        (["--target", "tract"], Case("GRU"), "the fastest on tract"),
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
    assert f"3 nodes, {told['before']['size'] / 1000:.3g} kB -> " in out


def test_bytes_of_external_data_count(tmp_path, capsys):
    model, _ = build(Case("LSTM", H=64))
    onnx.save(model, tmp_path / "big.onnx", save_as_external_data=True, location="big.data", size_threshold=1024)
    assert cli.main(["lower", str(tmp_path / "big.onnx"), "-o", str(tmp_path / "out.onnx"), "--json"]) == cli.DONE
    told = json.loads(capsys.readouterr().out)
    there = sum((tmp_path / name).stat().st_size for name in ("big.onnx", "big.data"))
    assert told["before"]["size"] == pytest.approx(there, rel=0.02)
