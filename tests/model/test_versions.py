"""Every version of the operators at every opset, and what is converted on request."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from judge import close, expected, lowered, refused, remaining, run_onnxruntime, run_reference
from oldops import run_old
from onenode import OPTIONAL, Case, build

import rnn_lower
from rnn_lower.node import VERSIONS
from rnn_lower.primitives import NEWEST_REVIEWED_OPSET, TABLE

ONNXRUNTIME = range(7, 27)
"""Opsets that onnxruntime runs."""


def cases(op: str, opset: int) -> list[Case]:
    old = {"output_sequence": 1} if opset < 7 else {}
    rich = {"clip": 0.3, "optional": OPTIONAL[op], **old}
    found = [Case(op, opset, **old)]
    found += [Case(op, opset, direction, **rich) for direction in ("forward", "reverse", "bidirectional")]
    found += [Case(op, opset, "bidirectional", dynamic=True, **rich)]
    if op == "GRU" and opset >= 3:
        found += [Case(op, opset, lbr=1, **rich)]
    if opset >= 14:
        found += [Case(op, opset, "bidirectional", layout=1, **rich)]
    return found


def restamped(case: Case) -> Case:
    """The same node as version 7, or 14 where layout needs it: what a runtime knows."""
    return case.replace(opset=14 if case.layout else 7, output_sequence=None)


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray], opset: int) -> list[np.ndarray]:
    if opset in ONNXRUNTIME:
        return run_onnxruntime(model, feeds)
    return run_old(model, feeds) if opset < 7 else run_reference(model, feeds)


@pytest.mark.parametrize("opset", range(1, 29))
@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_every_opset_in_every_form(op, opset):
    if opset > onnx.defs.onnx_opset_version():
        pytest.skip(f"the installed onnx ends at opset {onnx.defs.onnx_opset_version()}")
    for case in cases(op, opset):
        wanted = expected(restamped(case))
        for form in ("auto", "loop", "unroll"):
            if form == "unroll" and case.dynamic:
                continue
            backwards = case.direction in ("reverse", "bidirectional")
            options = {}
            if opset not in ONNXRUNTIME and opset >= 9 and form == "auto" and backwards:
                options = {"target": "onnx-reference"}  # it has no backward scan directions
            model, feeds = lowered(case, form, **options)
            close(run(model, feeds, opset), wanted)


@pytest.mark.parametrize("opset", range(9, 29))
def test_auto_is_scan_from_opset_9(opset):
    """So that the test above has Scan at each of these opsets."""
    if opset > onnx.defs.onnx_opset_version():
        pytest.skip(f"the installed onnx ends at opset {onnx.defs.onnx_opset_version()}")
    model, _ = build(Case("LSTM", opset, "bidirectional", clip=0.3, optional=OPTIONAL["LSTM"]))
    auto, scan = (rnn_lower.lower(model, form=form).SerializeToString(deterministic=True) for form in ("auto", "scan"))
    assert auto == scan


@pytest.mark.parametrize("opset", [*range(1, 7), 12, 20, 27, 28])
@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_converted_to_opset_17(op, opset):
    """The recurrent nodes wait aside while the converters do the rest, so old and very new models end on a runtime."""
    if opset > onnx.defs.onnx_opset_version():
        pytest.skip(f"the installed onnx ends at opset {onnx.defs.onnx_opset_version()}")
    for case in cases(op, opset):
        for form in ("auto", "loop"):
            model, feeds = lowered(case, form, opset=17)
            assert [o.version for o in model.opset_import if o.domain == ""] == [17]
            close(run_onnxruntime(model, feeds), expected(restamped(case)))


def test_layout_survives_a_conversion_below_its_version():
    case = Case("LSTM", 14, layout=1, optional=("B",))
    model, feeds = lowered(case, "unroll", opset=13)
    close(run_onnxruntime(model, feeds), expected(case))


def test_conversion_reaches_into_bodies():
    """An If body at opset 9 with operators that change form by 13."""
    model, feeds = build(Case("GRU", 9, place="if", optional=("B",), outputs=("Y_h",)))
    wanted = run_onnxruntime(model, feeds)
    close(run_onnxruntime(rnn_lower.lower(model, opset=17), feeds), wanted)


@pytest.mark.parametrize(
    ("opset", "ir_version", "target"), [(7, 3, 17), (9, 4, 17), (13, 7, 17), (17, 8, 13), (17, 8, 22), (22, 10, 15)]
)
def test_conversion_keeps_the_rest(opset, ir_version, target):
    """Large weights pass by the converter, which is given protobuf; documentation and metadata survive it."""
    model, feeds = build(Case("LSTM", opset, I=32, H=40, optional=("B",)))
    weights = np.random.default_rng(0).normal(size=(40, 60)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "dense"))
    model.graph.node.append(onnx.helper.make_node("MatMul", ["Y", "dense"], ["Z"], name="after", doc_string="told"))
    model.graph.output.append(onnx.helper.make_tensor_value_info("Z", onnx.TensorProto.FLOAT, None))
    model.ir_version = ir_version
    if ir_version < 4:  # every initializer had to be an input too
        for tensor in model.graph.initializer:
            model.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    for notes in (model.metadata_props, model.graph.metadata_props, model.graph.node[-1].metadata_props):
        notes.add(key="kept", value="yes")
    result = rnn_lower.lower(model, opset=target)
    assert not remaining(result)
    close(run_onnxruntime(result, feeds), run_onnxruntime(model, feeds))
    (after,) = [node for node in result.graph.node if node.name == "after"]
    assert (after.op_type, after.input[1], after.doc_string) == ("MatMul", "dense", "told")
    for notes in (result.metadata_props, result.graph.metadata_props, after.metadata_props):
        assert {entry.key: entry.value for entry in notes} == {"kept": "yes"}
    (dense,) = [tensor for tensor in result.graph.initializer if tensor.name == "dense"]
    assert np.array_equal(onnx.numpy_helper.to_array(dense), weights)
    assert [value.name for value in result.graph.input] == ["X"]


def test_a_failing_converter_is_passed_on_in_one_line():
    model, _ = build(Case("RNN", 14))
    model.graph.node.append(onnx.helper.make_node("Trilu", ["X"], ["upper"]))
    with pytest.raises(rnn_lower.UnsupportedError, match=r"opset 14 -> 7: .*Trilu") as caught:
        rnn_lower.lower(model, opset=7)
    assert "\n" not in str(caught.value)
    with pytest.raises(rnn_lower.UnsupportedError, match="opset 99 is unknown"):
        rnn_lower.lower(model, opset=99)


def test_foward_of_gru_1_is_forward():
    model, feeds = build(Case("GRU", 1, "foward", output_sequence=1))
    close(run_old(rnn_lower.lower(model), feeds), expected(Case("GRU", 7)))
    close(run_onnxruntime(rnn_lower.lower(model, opset=13), feeds), expected(Case("GRU", 7)))


def test_output_sequence_may_be_absent_or_zero():
    for value in (None, 0, 1):
        for outputs in (("Y_h",), ("Y", "Y_h")):
            case = Case("LSTM", 5, output_sequence=value, outputs=outputs)
            model, feeds = lowered(case, "loop")
            close(run_old(model, feeds), expected(restamped(case)))


def test_initializers_that_are_inputs_stay_inputs():
    """IR 3: the inputs are untouched, the weights stay, and nothing is added to the initializers."""
    model, _ = build(Case("LSTM", 6, optional=("B",)))
    result, _ = lowered(Case("LSTM", 6, optional=("B",)), "loop")
    assert [value.name for value in result.graph.input] == [value.name for value in model.graph.input]
    assert [tensor.name for tensor in result.graph.initializer] == [tensor.name for tensor in model.graph.initializer]


def test_an_overridable_weight_stays_overridable():
    model, feeds = build(Case("GRU", 14))
    model.graph.input.append(onnx.helper.make_tensor_value_info("R", 1, [1, 12, 4]))
    result = rnn_lower.lower(model)
    feeds["R"] = np.random.default_rng(1).uniform(-0.5, 0.5, (1, 12, 4)).astype(np.float32)
    close(run_onnxruntime(result, feeds), run_onnxruntime(model, feeds))


@pytest.mark.parametrize("name", ["opset_01", "opset_03", "opset_07", "opset_14", "opset_22"])
def test_models_of_old_opsets(shared, name):
    model = onnx.load(shared / "models" / f"{name}.onnx")
    result = rnn_lower.lower(model)
    assert not remaining(result)
    kept = [node for node in model.graph.node if node.op_type not in ("RNN", "GRU", "LSTM")]
    there = {node.name: node for node in result.graph.node}
    for node in kept:
        assert there[node.name] == node


def test_opset_3_runs_after_conversion(shared):
    model = onnx.load(shared / "models" / "opset_03.onnx")
    result = rnn_lower.lower(model, opset=17)
    twin = onnx.ModelProto()
    twin.CopyFrom(model)
    twin.opset_import[0].version, twin.ir_version = 7, 8
    assert refused(twin) is None
    feeds = {"gru_input": np.random.default_rng(0).uniform(-1, 1, (1, 2, 3)).astype(np.float32)}
    close(run_onnxruntime(result, feeds), run_onnxruntime(twin, feeds))


# -- versions to come -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op_type", TABLE)
def test_no_emitted_operator_has_an_unreviewed_version(op_type):
    """Fails when the installed onnx brings a new version: read its changelog, then raise `reviewed` in TABLE."""
    assert onnx.defs.get_schema(op_type, onnx.defs.onnx_opset_version(), "").since_version <= TABLE[op_type].reviewed


@pytest.mark.parametrize("op_type", TABLE)
def test_the_table_is_true_to_the_schemas(op_type):
    row = TABLE[op_type]
    versions = {
        s.since_version: s for s in onnx.defs.get_all_schemas_with_history() if (s.name, s.domain) == (op_type, "")
    }
    if op_type == "Scan":
        versions.pop(8)  # another operator by the same name
    if op_type == "Tile":
        versions.pop(1)  # counts along one axis only; not emitted
    assert min(versions) == row.since
    for version, schema in versions.items():
        for parameter, since in row.inputs.items():
            assert (parameter in schema.attributes) == (version < since)


def test_no_recurrent_version_is_unknown():
    for op, known in VERSIONS.items():
        found = {s.since_version for s in onnx.defs.get_all_schemas_with_history() if (s.name, s.domain) == (op, "")}
        assert found == set(known)


def test_an_opset_of_tomorrow(monkeypatch, caplog):
    model, _ = build(Case("LSTM", 22))
    model.opset_import[0].version = onnx.defs.onnx_opset_version() + 1
    with caplog.at_level("WARNING", "rnn_lower"):
        assert not remaining(rnn_lower.lower(model))
    assert "newer than the installed onnx" in caplog.text
    assert onnx.defs.onnx_opset_version() >= NEWEST_REVIEWED_OPSET
    row = TABLE["MatMul"]
    monkeypatch.setitem(TABLE, "MatMul", type(row)(row.since, 9, row.inputs))  # as if 13 had appeared since
    with pytest.raises(rnn_lower.UnsupportedError, match=r"MatMul has a version 13 .* convert the model"):
        rnn_lower.lower(build(Case("LSTM", 22))[0])


def test_opset_zero_is_refused():
    model, _ = build(Case("LSTM", 14))
    model.opset_import[0].version = 0
    with pytest.raises(rnn_lower.UnsupportedError, match="opset 0"):
        rnn_lower.lower(model)


def test_combinations_are_many():
    assert sum(len(cases(op, opset)) for op, opset in itertools.product(VERSIONS, range(1, 29))) > 300
