"""Nothing else in the model changes, field by field of the protobuf."""

from __future__ import annotations

import copy

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from fullmodel import full_model
from judge import every_node, remaining, run_onnxruntime
from onenode import OPTIONAL, Case, build
from onnx import helper
from paths import SHARED, own_models

import rnn_lower
from rnn_lower.proving.model_diff import only_recurrent_nodes_changed

MODELS = own_models() + sorted((SHARED / "models").glob("*.onnx"))
FORMS = ("auto", "scan", "loop")


def unchanged(model: onnx.ModelProto, **options: object) -> onnx.ModelProto:
    """Lower; the argument is as it was and nothing else has changed."""
    before = model.SerializeToString(deterministic=True)
    result = rnn_lower.lower(model, **options)
    assert model.SerializeToString(deterministic=True) == before
    assert rnn_lower.prove(model, result).changed == ()
    return result


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_models(path, form):
    model = onnx.load(path)
    if form == "scan" and model.opset_import[0].version < 9:
        with pytest.raises(rnn_lower.UnsupportedError, match="form scan needs opset 9"):
            rnn_lower.lower(model, form=form)
        return
    result = unchanged(model, form=form)
    assert not remaining(result)
    assert rnn_lower.lower(result, form=form) == result
    assert rnn_lower.lower(model, form=form) == result


@pytest.mark.parametrize("opset", [17, 22])
@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_models_converted(path, opset):
    model = onnx.load(path)
    try:
        result = unchanged(model, opset=opset)
    except rnn_lower.UnsupportedError:  # the converters' own limits; test_versions looks at what is said then
        return
    assert not remaining(result)


@pytest.mark.parametrize("opset", [None, 17, 22])
@pytest.mark.parametrize("place", ["main", "if", "loop", "function"])
def test_every_field_is_kept(place, opset):
    model = full_model(18, place)
    options = {} if opset is None else {"opset": opset}
    result = unchanged(model, **options)
    assert not remaining(result)
    if opset is None:
        assert result.training_info == model.training_info
        assert result.graph.sparse_initializer == model.graph.sparse_initializer
        assert result.configuration == model.configuration


def test_every_field_is_kept_in_files(tmp_path):
    """Some of the weights, also of Constant nodes and sparse ones, lie in files."""
    model = full_model()
    model.graph.node.insert(
        0, onnx.helper.make_node("Constant", [], ["big"], value=onnx.numpy_helper.from_array(np.arange(999.0), "big"))
    )
    path, out = tmp_path / "in.onnx", tmp_path / "sub" / "out.onnx"
    out.parent.mkdir()
    onnx.save(
        copy.deepcopy(model), path, save_as_external_data=True, location="w", size_threshold=0, convert_attribute=True
    )
    rnn_lower.lower_file(path, out)
    before, after = (onnx.load(file, load_external_data=False) for file in (path, out))
    assert only_recurrent_nodes_changed((before, tmp_path), (after, out.parent)) == []
    assert only_recurrent_nodes_changed((model, None), (after, out.parent)) == []


def test_the_comparison_sees_every_field():
    """Change or drop any single field of the lowered model that does not belong to an emitted node: it is noticed."""
    model = full_model()
    result = rnn_lower.lower(model)
    missed = []
    for path in list(fields(result)):
        changed = onnx.ModelProto()
        changed.CopyFrom(result)
        clear(changed, path)
        if not only_recurrent_nodes_changed((model, None), (changed, None)):
            missed.append(path)
    assert missed == []
    assert len(list(fields(result))) > 300


def fields(message: object, path: tuple = ()):
    """Paths of all fields that are set, but for emitted nodes, their weights and what is told of their values."""
    for field, value in message.ListFields():
        if not field.message_type:
            yield (*path, field.name)
        elif field.is_repeated:
            for index, one in enumerate(value):
                if str(getattr(one, "name", "")).startswith("node/"):
                    continue
                yield from fields(one, (*path, field.name, index))
        else:
            yield from fields(value, (*path, field.name))


def clear(message: object, path: tuple) -> None:
    for step in path[:-1]:
        message = message[step] if isinstance(step, int) else getattr(message, step)
    message.ClearField(path[-1])


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
    assert remaining(unchanged(model, select=lambda node: node.name == "other")) == ["LSTM"]
    assert remaining(unchanged(model, op_types=("GRU",))) == ["LSTM", "LSTM"]
    assert unchanged(model, select=lambda node: False) == model


def test_model_without_recurrent_nodes_is_as_it_was():
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Relu", ["x"], ["y"])], "g",
        [onnx.helper.make_tensor_value_info("x", 1, [2])], [onnx.helper.make_tensor_value_info("y", 1, [2])],
    )  # fmt: skip
    model = onnx.helper.make_model(graph)
    assert rnn_lower.lower(model) == model
    assert rnn_lower.lower(ir.from_proto(model)).graph.name == "g"


def test_declarations_of_weights_go_with_the_weights():
    """torch declares them; onnx_ir drops their declarations, and lowering of a file does the same."""
    model, _ = build(Case("LSTM", 17, outputs=("Y",), weights="initializer"))
    for tensor in model.graph.initializer:
        model.graph.value_info.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    lowered = rnn_lower.lower(model)
    known = {tensor.name for tensor in lowered.graph.initializer}
    assert not {info.name for info in lowered.graph.value_info} & (
        {info.name for info in model.graph.value_info} - known
    )
    assert rnn_lower.prove(model, lowered).ok
    by_ir = ir.to_proto(rnn_lower.lower(ir.from_proto(model)))
    assert rnn_lower.prove(model, by_ir).ok


def test_a_size_of_minus_1_stays():
    """Paddle's exporter writes it for unknown sizes, and inference repeats it."""
    model, _ = build(Case("LSTM", 17, outputs=("Y",), dynamic=True))
    model.graph.node.append(helper.make_node("Neg", ["Y"], ["Z"]))
    model.graph.node.append(helper.make_node("Neg", ["Z"], ["Q"]))
    for infos in (model.graph.input, model.graph.output):
        infos[0].type.tensor_type.shape.dim[0].dim_value = -1
    model.graph.output[0].name = "Q"
    info = model.graph.value_info.add()
    info.CopyFrom(model.graph.output[0])
    info.name = "Z"
    lowered = rnn_lower.lower(model)
    assert next(each for each in lowered.graph.value_info if each.name == "Z") == info
    assert rnn_lower.prove(model, lowered).ok


@pytest.mark.parametrize("options", [{}, {"opset": 17}, {"target": "portable", "legalize_all": True}], ids=str)
def test_metadata_of_values_is_kept_through_onnx_ir(options):
    """torch describes each output so."""
    model, _ = build(Case("LSTM", 18, T=3, N=2, outputs=("Y", "Y_h")))
    axes = helper.make_node("Constant", [], ["axes"], value_ints=[0])
    model.graph.node.extend([axes, helper.make_node("ReduceMean", ["Y"], ["mean"], keepdims=0)])
    model.graph.node[-1].input.append("axes")
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("mean", onnx.TensorProto.FLOAT, [1, 2, 4]))
    for output in model.graph.output:
        output.metadata_props.add(key="kind", value=output.name)
    lowered = ir.to_proto(rnn_lower.lower(ir.from_proto(model), **options))
    assert [list(output.metadata_props) for output in lowered.graph.output] == [
        list(output.metadata_props) for output in model.graph.output
    ]
    assert rnn_lower.prove(model, lowered).ok
