"""The page: all of it is there, nothing of it comes from elsewhere, and what it tells is what was found."""

from __future__ import annotations

import html.parser
import json
import stat
import sys

import numpy as np
import onnx
import pytest
from judge import run_onnxruntime
from onenode import OPTIONAL, Case, build
from onnx import numpy_helper
from paths import ROOT
from test_drawing import HOSTILE

import rnn_lower
from rnn_lower import cli
from rnn_lower.reporting import steps
from rnn_lower.reporting.gathering import Report
from rnn_lower.targeting import TARGETS, find_target

SPOTTER = ROOT / "models" / "torch_keyword_spotter.onnx"
VOID = {"meta", "br", "img", "hr", "input"}


class Page(html.parser.HTMLParser):
    """Elements, attributes and text of a page, whose tags have to close each other."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.text += data


def page_of(report: Report) -> Page:
    return Page(report.html)


@pytest.fixture(scope="module")
def spotter() -> Report:
    return rnn_lower.report(SPOTTER)


def test_page_is_self_contained(spotter):
    page = page_of(spotter)
    assert not page.tags & {"script", "link", "img", "iframe", "object", "embed", "base", "form", "a"}
    assert not [
        pair for pair in page.attributes if pair[0] in ("src", "href", "xlink:href") or pair[0].startswith("on")
    ]
    assert "url(" not in spotter.html
    assert "@import" not in spotter.html
    assert "prefers-color-scheme: dark" in spotter.html


def test_page_tells_what_was_found(spotter):
    text = page_of(spotter).text
    assert spotter.ok
    assert spotter.check.verdict in text
    assert spotter.proof.verdict in text
    for node in rnn_lower.inspect(SPOTTER):
        assert node.name in text
        assert f"H = {node.hidden_size}" in text
    for name in TARGETS:
        assert name in text
    assert "Scan, once per step" in text


def test_verdicts_are_those_of_inspect_and_prove(spotter):
    nodes = {node.name: node for node in rnn_lower.inspect(SPOTTER)}
    proof = rnn_lower.prove(SPOTTER, rnn_lower.lower(SPOTTER))
    assert {one.node.name: one.proof.verdict for kind in spotter.kinds for one in kind.ones} == {
        node.name: node.verdict for node in proof.nodes
    }
    for kind in spotter.kinds:
        for runtime in kind.runtimes:
            assert runtime.native == find_target(runtime.name).verdict(nodes[kind.node.name]).kind


def test_lowering_for_a_runtime_is_what_lowering_for_it_gives(spotter, tmp_path):
    tried = 0
    for runtime in spotter.kinds[0].runtimes:
        if not runtime.lowers:  # finding out what would work takes long
            continue
        path = tmp_path / f"{runtime.name}.onnx"
        record = rnn_lower.lower_file(SPOTTER, path, target=runtime.name)[0]
        assert runtime.lowered == f"{record.emitted} nodes, {record.form}"
        tried += 1
    assert 0 < tried < len(TARGETS)
    refused = {runtime.name: runtime.lowered for runtime in spotter.kinds[0].runtimes if not runtime.lowers}
    assert "needs a known batch size" in refused["opencv"]
    assert refused["opencv"].endswith("; add --dim batch=1 --dim time=16")


def test_counts(spotter):
    lowered = rnn_lower.lower(SPOTTER)
    assert spotter.before.operators["GRU"] == 2
    assert "GRU" not in spotter.after.operators
    assert spotter.after.size == lowered.ByteSize()
    assert sum(spotter.kinds[0].operators.values()) == spotter.kinds[0].record.emitted


def test_alike_nodes_share_a_section():
    model, _ = build(Case("GRU", place="if"))
    report = rnn_lower.report(model)
    assert [len(kind.ones) for kind in report.kinds] == [2]
    assert page_of(report).text.count("2 equivalent GRU nodes") == 1


@pytest.mark.parametrize("place", ["loop", "function"])
@pytest.mark.parametrize("form", ["scan", "unroll"])
def test_nodes_anywhere(place, form):
    report = rnn_lower.report(build(Case("LSTM", optional=OPTIONAL["LSTM"], place=place, T=3))[0], form=form, runs=1)
    assert report.ok
    assert report.kinds[0].record.form == form
    page_of(report)


def test_nothing_to_lower():
    report = rnn_lower.report(rnn_lower.lower(build(Case())[0]))
    assert "There is no RNN, GRU or LSTM node in this model." in page_of(report).text


def test_nodes_that_are_left():
    report = rnn_lower.report(build(Case("GRU"))[0], op_types="LSTM")
    assert [node.op_type for node in report.kept] == ["GRU"]
    assert "Kept nodes" in page_of(report).text


def test_what_cannot_be_run_is_told():
    model, _ = build(Case("GRU", dtype="float"))
    model.graph.node.append(onnx.helper.make_node("Strange", ["Y"], ["Z"], domain="odd"))
    model.graph.output.append(onnx.helper.make_tensor_value_info("Z", 1, None))
    model.opset_import.append(onnx.helper.make_opsetid("odd", 1))
    report = rnn_lower.report(model)
    text = page_of(report).text
    assert "Not checked: " in text
    assert "proved: 1 node" in text


@pytest.mark.parametrize("name", HOSTILE[:5])
def test_names_are_only_ever_text(name):
    model, _ = build(Case("GRU", optional=("B",), dynamic=True))
    model.graph.node[0].name = name
    model.graph.node[0].output[0] = model.graph.output[0].name = f"Y{name}"
    model.graph.name = name
    for dim in model.graph.input[0].type.tensor_type.shape.dim:
        dim.dim_param = f"{dim.dim_param}{name}" if dim.dim_param else ""
    page = page_of(rnn_lower.report(model))
    assert not page.tags & {"script", "img"}
    assert not [pair for pair in page.attributes if pair[0].startswith("on")]
    assert name in page.text


# -- differences over time -------------------------------------------------------------------------------------------


def test_steps_are_differences_of_two_runs(tmp_path):
    """Of a lowered model in which one weight is another, against both models run here."""
    model, feeds = build(Case("LSTM", T=6, outputs=("Y", "Y_h")))
    lowered = rnn_lower.lower(model, form="unroll")
    weight = next(one for one in lowered.graph.initializer if one.name.endswith("/R_transposed"))
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * np.float32(1.5), weight.name))
    paths = [tmp_path / "a.onnx", tmp_path / "b.onnx"]
    for path, one in zip(paths, (model, lowered), strict=True):
        onnx.save(one, path)
    found = steps.by_time_step(*paths, inputs=feeds).nodes["node", "main graph"]
    a, b = run_onnxruntime(model, feeds)[0], run_onnxruntime(lowered, feeds)[0]
    assert found.errors == tuple(float(np.abs(a[t].astype(np.float64) - b[t]).max()) for t in range(6))
    assert found.errors[0] == 0 < found.errors[1]
    assert found.largest == float(np.abs(a).max())


def test_steps_of_batch_major_nodes(tmp_path):
    model, feeds = build(Case("GRU", T=6, N=2, layout=1))
    paths = [tmp_path / "a.onnx", tmp_path / "b.onnx"]
    onnx.save(model, paths[0])
    onnx.save(rnn_lower.lower(model), paths[1])
    assert len(steps.by_time_step(*paths, inputs=feeds).nodes["node", "main graph"].errors) == 6


def test_steps_of_outputs_with_a_time_axis():
    report = rnn_lower.report(ROOT / "models" / "torch_lstm_tagger.onnx", runs=1)
    assert [(one.value, len(one.errors)) for one in report.outputs] == [("scores", 40)]


def test_not_finite_on_one_side_only_is_infinitely_wrong():
    a, b = np.zeros((3, 2), np.float32), np.zeros((3, 2), np.float32)
    a[0, 0] = b[0, 0] = np.nan
    a[1, 0] = b[1, 0] = np.inf
    a[2, 1] = np.inf
    assert steps._steps("x", a, b, 0).errors == (0.0, 0.0, np.inf)


# -- the command -----------------------------------------------------------------------------------------------------


def test_command_writes_a_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["report", str(SPOTTER), "--runs", "1"]) == cli.DONE
    assert capsys.readouterr().out.endswith("wrote report.html\n")
    assert "/bands/GRU" in Page((tmp_path / "report.html").read_text(encoding="utf-8")).text
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_command_draws_one_node(tmp_path, capsys):
    path = tmp_path / "node.svg"
    assert cli.main(["report", str(SPOTTER), "--svg", "--node", "/time/GRU", "-o", str(path), "--json"]) == cli.DONE
    assert json.loads(capsys.readouterr().out) == {"schema": 1, "output": str(path)}
    assert path.read_text(encoding="utf-8") == rnn_lower.draw(SPOTTER, "/time/GRU")


def test_command_writes_to_stdout(capsys):
    assert cli.main(["report", str(SPOTTER), "--svg", "--node", "/time/GRU", "-o", "-"]) == cli.DONE
    assert capsys.readouterr().out == rnn_lower.draw(SPOTTER, "/time/GRU")


def test_json_holds_what_the_page_tells(tmp_path, capsys):
    path = tmp_path / "r.html"
    assert (
        cli.main(["report", str(SPOTTER), "-o", str(path), "--json", "--target", "openvino", "--runs", "1"]) == cli.DONE
    )
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == 1
    assert told["ok"] is True
    assert told["target"] == "openvino"
    assert [one["node"] for kind in told["kinds"] for one in kind["alike"]] == ["/bands/GRU", "/time/GRU"]
    assert {runtime["name"] for runtime in told["kinds"][0]["runtimes"]} == set(TARGETS)
    assert told["check"]["ok"]
    assert told["prove"]["ok"]


def test_as_many_runs_as_requested():
    assert [rnn_lower.report(SPOTTER, runs=runs).check.runs for runs in (1, 2)] == [1, 2]


def test_read_only_page_is_kept(tmp_path, capsys):
    path = tmp_path / "node.svg"
    path.write_text("<svg>precious</svg>")
    path.chmod(stat.S_IRUSR)
    command = ["report", str(SPOTTER), "--svg", "--node", "/time/GRU", "-o", str(path)]
    assert cli.main(command) == cli.BAD
    assert "make it writable" in capsys.readouterr().err
    assert path.read_text() == "<svg>precious</svg>"


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(rnn_lower.RnnLowerError, match=r"pip install 'rnn_lower\[report\]'"):
        rnn_lower.report(build(Case())[0], runs=1).html  # noqa: B018
