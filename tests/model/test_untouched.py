"""Nothing else in the model changes: compared node by node with a plain load and save by onnx_ir."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
from judge import FUSED, every_node, remaining, run_onnxruntime
from onenode import OPTIONAL, Case, build
from paths import SHARED, own_models

import rnn_lower

MODELS = own_models() + sorted((SHARED / "models").glob("*.onnx"))
FORMS = ("auto", "scan", "loop")


def plain(model: onnx.ModelProto) -> onnx.ModelProto:
    return ir.to_proto(ir.from_proto(model))


def rest(graph: onnx.GraphProto, replaced: set[str]) -> list[tuple]:
    """The nodes that are not recurrent and not emitted for one that was, in order, with bodies treated alike."""
    found = []
    for node in graph.node:
        if node.op_type in FUSED or any(prop.key == "rnn_lower.node" for prop in node.metadata_props):
            continue
        if node.op_type == "Constant" and node.output[0] not in replaced:
            continue
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        bodies = []
        for attribute in copy.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                bodies.append(compared(attribute.g, replaced))
                attribute.ClearField("g")
        found.append((copy.SerializeToString(deterministic=True), bodies))
    return found


def compared(graph: onnx.GraphProto, replaced: set[str]) -> dict:
    return {
        "nodes": rest(graph, replaced),
        "inputs": [value.SerializeToString(deterministic=True) for value in graph.input],
        "outputs": [value.SerializeToString(deterministic=True) for value in graph.output],
        "name": (graph.name, graph.doc_string),
        "metadata": [(prop.key, prop.value) for prop in graph.metadata_props],
    }


def used(model: onnx.ModelProto) -> set[str]:
    """Names that something other than a recurrent node uses."""
    names = {value.name for value in model.graph.output}
    for node in every_node(model):
        if node.op_type not in FUSED:
            names.update(node.input)
    return names


def assert_untouched(model: onnx.ModelProto, result: onnx.ModelProto) -> None:
    before = plain(model)
    kept = used(before)
    assert compared(before.graph, kept) == compared(result.graph, kept)
    for field in ("ir_version", "producer_name", "producer_version", "domain", "model_version", "doc_string"):
        assert getattr(before, field) == getattr(result, field)
    assert [p.SerializeToString() for p in before.metadata_props] == [
        p.SerializeToString() for p in result.metadata_props
    ]
    assert [o.SerializeToString() for o in before.opset_import] == [o.SerializeToString() for o in result.opset_import]
    ours = {t.name: t.SerializeToString(deterministic=True) for t in result.graph.initializer}
    for tensor in before.graph.initializer:
        if tensor.name in kept:
            assert ours[tensor.name] == tensor.SerializeToString(deterministic=True)
    infos = {v.name: v.SerializeToString(deterministic=True) for v in result.graph.value_info}
    there = {name for node in result.graph.node for name in node.output}
    for value in before.graph.value_info:
        if value.name in there:
            assert infos[value.name] == value.SerializeToString(deterministic=True)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_models(path, form):
    model = onnx.load(path)
    if form == "scan" and model.opset_import[0].version < 9:
        with pytest.raises(rnn_lower.UnsupportedError, match="form scan needs opset 9"):
            rnn_lower.lower(model, form=form)
        return
    before = model.SerializeToString(deterministic=True)
    result = rnn_lower.lower(model, form=form)
    assert model.SerializeToString(deterministic=True) == before
    assert not remaining(result)
    assert_untouched(model, result)
    again = rnn_lower.lower(result, form=form)
    assert again.SerializeToString(deterministic=True) == result.SerializeToString(deterministic=True)
    twice = rnn_lower.lower(model, form=form)
    assert twice.SerializeToString(deterministic=True) == result.SerializeToString(deterministic=True)


@pytest.mark.parametrize(
    "name", ["silero_vad", "dtln_model_1", "silero_vad_v3", "gtcrn_stream", "cntk_rnn_bidirectional_relu"]
)
def test_shared_models_agree(shared, name):
    model = onnx.load(shared / "models" / f"{name}.onnx")
    forms = {
        "silero_vad": ("auto", "loop"),
        "cntk_rnn_bidirectional_relu": ("auto", "loop"),
        "dtln_model_1": ("auto", "scan", "loop", "unroll"),
    }
    for form in forms.get(name, FORMS):
        result = rnn_lower.lower(model, form=form)
        assert not remaining(result)
        report = rnn_lower.check(model, result, inputs=shared / "models" / f"{name}.inputs.npz")
        assert report.ok, report


@pytest.mark.parametrize("path", own_models(), ids=lambda path: path.stem)
def test_own_models_agree(path):
    model = onnx.load(path)
    for form in FORMS:
        result = rnn_lower.lower(model, form=form)
        onnx.checker.check_model(result, full_check=True)
        report = rnn_lower.check(model, result)
        assert report.ok, report
        assert report.judge.startswith("onnxruntime")


def rich_model() -> onnx.ModelProto:
    """Doc strings, metadata, value_info, a function, another domain, an attribute of every kind."""
    model, _ = build(Case("LSTM", 18, optional=OPTIONAL["LSTM"]))
    model.producer_name, model.doc_string = "someone", "about the model"
    model.metadata_props.add(key="k", value="v")
    model.graph.doc_string = "about the graph"
    model.graph.node[0].doc_string = "about the node"
    model.graph.node.append(
        onnx.helper.make_node("Strange", ["Y_h"], ["s"], domain="odd", name="odd", a=1, b=[1.5], c="x", d=["p", "q"])
    )
    model.graph.node[-1].metadata_props.add(key="kept", value="yes")
    model.graph.node.append(onnx.helper.make_node("LSTM", ["X"], ["foreign"], domain="odd", name="not_ours"))
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("s", 1, ["N", 3]))
    model.graph.initializer.append(onnx.helper.make_tensor("unused", 1, [2], [1.0, 2.0]))
    model.opset_import.append(onnx.helper.make_opsetid("odd", 3))
    return model


def test_all_kinds_of_annotations():
    model = rich_model()
    result = rnn_lower.lower(model)
    assert [t.name for t in result.graph.initializer][:1] == ["unused"]
    assert [node.op_type for node in result.graph.node if node.domain == "odd"] == ["Strange", "LSTM"]
    before, kept = plain(model), used(plain(model))
    for graph in (before.graph, result.graph):
        foreign = [node for node in graph.node if node.domain == "odd"]
        assert [node.metadata_props for node in foreign] == [
            n.metadata_props for n in before.graph.node if n.domain == "odd"
        ]
    assert compared(before.graph, kept)["outputs"] == compared(result.graph, kept)["outputs"]
    infos = {v.name: v for v in result.graph.value_info}
    assert infos["s"] == next(v for v in before.graph.value_info if v.name == "s")


def test_provenance_and_names():
    model, _ = build(Case("GRU", 14, optional=("B",)))
    result = rnn_lower.lower(model, form="scan")
    for node in every_node(result):
        assert {p.key: p.value for p in node.metadata_props} == {
            "rnn_lower.op": "GRU", "rnn_lower.version": "14", "rnn_lower.node": "node",
        }  # fmt: skip
        assert node.name.startswith("node/")
    names = [name for node in every_node(result) for name in node.output]
    assert len(names) == len(set(names))
    assert set(OPTIONAL) == {"RNN", "GRU", "LSTM"}


def test_names_avoid_those_that_are_taken():
    model, feeds = build(Case("RNN", 14))
    model.graph.node.append(onnx.helper.make_node("Identity", ["Y_h"], ["node/X_W"], name="node/forward/H"))
    model.graph.output.append(onnx.helper.make_tensor_value_info("node/X_W", 1, [1, 2, 4]))
    result = rnn_lower.lower(model)
    onnx.checker.check_model(result, full_check=True)
    assert run_onnxruntime(result, feeds)[2].shape == (1, 2, 4)


def test_selection():
    model, _ = build(Case("LSTM", 14))
    other = onnx.NodeProto()
    other.CopyFrom(model.graph.node[0])
    other.name, other.output[:] = "other", ["A", "B", "C"]
    model.graph.node.append(other)
    model.graph.output.append(onnx.helper.make_tensor_value_info("A", 1, None))
    assert remaining(rnn_lower.lower(model, select=lambda node: node.name == "other")) == ["LSTM"]
    assert remaining(rnn_lower.lower(model, op_types=("GRU",))) == ["LSTM", "LSTM"]
    kept = rnn_lower.lower(model, select=lambda node: False)
    assert kept.SerializeToString(deterministic=True) == plain(model).SerializeToString(deterministic=True)


def test_model_without_recurrent_nodes_is_as_it_was():
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Relu", ["x"], ["y"])], "g",
        [onnx.helper.make_tensor_value_info("x", 1, [2])], [onnx.helper.make_tensor_value_info("y", 1, [2])],
    )  # fmt: skip
    model = onnx.helper.make_model(graph)
    assert rnn_lower.lower(model) == plain(model)
