"""Every version of the operators at every opset, and what is converted on request."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from judge import close, every_node, expected, lowered, refused, remaining, run_onnxruntime, run_reference
from oldops import run_old
from onenode import OPTIONAL, Case, build
from onnx import TensorProto, helper, numpy_helper

import rnn_lower
from rnn_lower.options import OP_TYPES

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
        for tensor in model.graph.initializer[-1:]:
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
    assert rnn_lower.prove(model, result).ok


def test_a_model_that_no_runtime_runs_is_named_as_such(shared):
    model = onnx.load(shared / "models" / "opset_07.onnx")
    with pytest.raises(rnn_lower.RnnLowerError, match=r"cannot load the original model \(Unrecognized attribute"):
        rnn_lower.check(model, rnn_lower.lower(model))


def test_opset_3_runs_after_conversion(shared):
    model = onnx.load(shared / "models" / "opset_03.onnx")
    result = rnn_lower.lower(model, opset=17)
    twin = onnx.ModelProto()
    twin.CopyFrom(model)
    twin.opset_import[0].version, twin.ir_version = 7, 8
    assert refused(twin) is None
    feeds = {"gru_input": np.random.default_rng(0).uniform(-1, 1, (1, 2, 3)).astype(np.float32)}
    close(run_onnxruntime(result, feeds), run_onnxruntime(twin, feeds))


def test_opset_zero_is_refused():
    model, _ = build(Case("LSTM", 14))
    model.opset_import[0].version = 0
    with pytest.raises(rnn_lower.UnsupportedError, match="opset 0"):
        rnn_lower.lower(model)


def test_combinations_are_many():
    assert sum(len(cases(op, opset)) for op, opset in itertools.product(OP_TYPES, range(1, 29))) > 300


# -- functions, and the other name of the default domain ------------------------------------------------------------------


@pytest.mark.parametrize("place", ["main", "if", "loop", "function"])
@pytest.mark.parametrize(("opset", "target"), [(14, 17), (11, 17), (18, 22), (14, 12), (20, 18)])
def test_conversion_reaches_every_scope(place, opset, target):
    """With an operator beside the recurrent node that is written otherwise at the target (axes of ReduceSum, Squeeze)."""
    if place == "function" and opset < 14:
        pytest.skip("functions came with IR version 8")
    case = Case("GRU", opset, place=place, optional=("B",), outputs=("Y_h",))
    model, feeds = build(case)
    model.ir_version = max(model.ir_version, 8)
    graph = model.functions[0] if place == "function" else model.graph
    if place in ("if", "loop"):
        graph = next(a.g for node in graph.node for a in node.attribute if a.type == onnx.AttributeProto.GRAPH)
    inner = next(node for node in graph.node if node.op_type == "GRU")
    name, inner.output[1] = inner.output[1], "state"
    axes = {"axes": [0]} if opset < 13 else {}
    if not axes:
        constant = onnx.helper.make_node("Constant", [], ["axes"], value=onnx.numpy_helper.from_array(np.array([0])))
        graph.node.append(constant)
    squeeze = onnx.helper.make_node(
        "Squeeze", ["state"] if axes else ["state", "axes"], ["squeezed"], "squeeze", **axes
    )
    squeeze.doc_string = "told"
    squeeze.metadata_props.add(key="kept", value="yes")
    graph.node.extend([squeeze, onnx.helper.make_node("Add", ["squeezed", "state"], [name], "last")])
    wanted = run_onnxruntime(model, feeds)
    before = model.SerializeToString(deterministic=True)
    result = rnn_lower.lower(model, opset=target)
    assert model.SerializeToString(deterministic=True) == before
    assert not remaining(result)
    assert {i.version for m in (result, *result.functions) for i in m.opset_import if i.domain == ""} == {target}
    assert len(result.functions) == len(model.functions)
    (found,) = [node for node in every_node(result) if node.name == "squeeze"]
    assert (found.doc_string, found.metadata_props[0].key) == ("told", "kept")
    close(run_onnxruntime(result, feeds), wanted)


def test_a_function_whose_attributes_must_be_converted_is_refused():
    model, _ = build(Case("GRU", 14, place="function", outputs=("Y_h",)))
    function = model.functions[0]
    function.attribute.append("where")
    split = onnx.helper.make_node("LogSoftmax", ["X"], ["parts"], name="by_attribute")
    split.attribute.add(name="axis", ref_attr_name="where", type=onnx.AttributeProto.INT)
    function.node.append(split)
    graph = ir.from_proto(model)
    before = ir.to_proto(graph)
    with pytest.raises(rnn_lower.UnsupportedError, match=r"LogSoftmax 'by_attribute': .* inline"):
        rnn_lower.lower(graph, opset=12)
    assert ir.to_proto(graph) == before


def test_the_default_domain_by_its_other_name():
    model, feeds = build(Case("LSTM", 11, optional=("B",)))
    model.opset_import[0].domain = "ai.onnx"
    for result, version in ((rnn_lower.lower(model), 11), (rnn_lower.lower(model, opset=17), 17)):
        assert [(o.domain, o.version) for o in result.opset_import] == [("ai.onnx", version)]
        close(run_onnxruntime(result, feeds), expected(Case("LSTM", 11, optional=("B",))))


def test_constants_are_restamped_not_converted(tmp_path):
    """With what onnx_ir does not read, and with data in a file."""
    model, feeds = build(Case("GRU", 11, outputs=("Y_h",), optional=("B",)))
    sparse = onnx.helper.make_sparse_tensor(
        onnx.numpy_helper.from_array(np.array([1.5], np.float32), "v"), onnx.numpy_helper.from_array(np.array([1])), [4]
    )
    big = onnx.numpy_helper.from_array(np.arange(999, dtype=np.float32), "big")
    model.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["odd"], "odd", sparse_value=sparse))
    model.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["large"], "large", value=big))
    wanted = list(model.graph.node[:2])
    result = rnn_lower.lower(model, opset=13)
    assert list(result.graph.node[:2]) == wanted
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="w", size_threshold=0, convert_attribute=True)
    rnn_lower.lower_file(path, tmp_path / "out.onnx", opset=13)
    loaded = onnx.load(tmp_path / "out.onnx")
    assert onnx.numpy_helper.to_array(loaded.graph.node[0].attribute[0].t)[998] == 998
    assert feeds


def test_deprecated_operators_are_converted():
    model, feeds = build(Case("GRU", 9, outputs=("Y_h",), optional=("B",)))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1, 1, 2], np.float32), "scales"))
    model.graph.node.append(onnx.helper.make_node("Upsample", ["Y_h", "scales"], ["wide"], "wide"))
    model.graph.output.append(onnx.helper.make_tensor_value_info("wide", 1, [None] * 3))
    result = rnn_lower.lower(model, opset=13)
    assert "Upsample" not in {node.op_type for node in result.graph.node}
    close(run_onnxruntime(result, feeds), run_onnxruntime(model, feeds))


def test_both_names_of_the_default_domain_at_once():
    model, feeds = build(Case("LSTM", 11, optional=("B",)))
    model.opset_import.append(onnx.helper.make_opsetid("ai.onnx", 11))
    result = rnn_lower.lower(model, opset=13)
    assert {entry.version for entry in result.opset_import} == {13}
    assert feeds


@pytest.mark.parametrize("entries", itertools.permutations([("", 11), ("ai.onnx", 13)]))
@pytest.mark.parametrize("in_function", [False, True])
def test_two_opsets_of_the_default_domain_are_refused(entries, in_function):
    """onnxruntime takes the last, of either name; rewriting one would change what a Softmax beside it computes."""
    model, _ = build(Case("LSTM", 13, optional=("B",)))
    holder = model
    if in_function:
        holder = model.functions.add(domain="own", name="f", output=["c"])
        holder.node.append(onnx.helper.make_node("Constant", [], ["c"], value_float=1.0))
    del holder.opset_import[:]
    holder.opset_import.extend(onnx.helper.make_opsetid(*entry) for entry in entries)
    told = r"imports opsets \d+ and \d+ of the default domain"
    with pytest.raises(rnn_lower.RnnLowerError, match=told):
        rnn_lower.lower(model, opset=17)
    with pytest.raises(rnn_lower.RnnLowerError, match=told):
        rnn_lower.lower(ir.from_proto(model))


@pytest.mark.parametrize("opset", range(1, 9))
def test_a_target_converts_to_its_first_opset(opset):
    """Without a target the opset stays, whatever runs it."""
    case = Case("LSTM", opset, output_sequence=1 if opset < 7 else None, optional=("B",))
    original, feeds = build(case)
    model = rnn_lower.lower(original, target="onnxruntime")
    assert model.opset_import[0].version == max(7, opset)
    close(run_onnxruntime(model, feeds), expected(restamped(case)))
    assert rnn_lower.lower(original).opset_import[0].version == opset


@pytest.mark.parametrize("name", ["", "shape", "other"])
@pytest.mark.parametrize("opset", [5, 6, 7, 8])
def test_integers_of_constants_become_initializers_below_opset_9(opset, name):
    model, feeds = build(Case("GRU", 13, outputs=("Y",)))
    shape = numpy_helper.from_array(np.array([0, -1]), name)
    model.graph.node.append(helper.make_node("Constant", [], ["shape"], value=shape))
    model.graph.value_info.append(helper.make_tensor_value_info("shape", TensorProto.INT64, [2]))
    model.graph.node.append(helper.make_node("Reshape", ["Y", "shape"], ["flat"]))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("flat", TensorProto.FLOAT, None))
    lowered = rnn_lower.lower(model, opset=opset)
    assert not [node for node in lowered.graph.node if node.output[0] == "shape"]
    assert "shape" in {info.name for info in lowered.graph.value_info}
    assert rnn_lower.prove(model, lowered).ok
    close(run_reference(lowered, feeds), run_onnxruntime(model, feeds))


def test_a_constant_that_a_branch_returns_stays_a_node():
    model, feeds = build(Case("GRU", 13, outputs=("Y",)))
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.array([size]), ""))],
            name, [], [helper.make_tensor_value_info(name, TensorProto.INT64, [1])],
        )
        for name, size in (("then", 3), ("else", 4))
    }  # fmt: skip
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    model.graph.node.append(helper.make_node("If", ["yes"], ["size"], **branches))
    model.graph.output.append(helper.make_tensor_value_info("size", TensorProto.INT64, [1]))
    lowered = rnn_lower.lower(model, opset=8)
    assert rnn_lower.prove(model, lowered).ok
    close(run_onnxruntime(lowered, feeds)[:1], run_onnxruntime(model, feeds)[:1])
    assert run_onnxruntime(lowered, feeds)[1].tolist() == [3]


@pytest.mark.parametrize(
    ("op", "opset", "to", "attributes"),
    [("Softmax", 11, 13, {}), ("LogSoftmax", 13, 11, {"axis": 1}), ("Flatten", 11, 9, {"axis": -1})],
)
def test_a_rank_that_is_only_declared_decides_no_conversion(op, opset, to, attributes):
    """It may be false, and the runtime does not care: the sizes of the Reshape are an input."""
    model = build(Case("RNN", opset, T=3, N=2, outputs=("Y",)))[0]
    model.graph.input.append(helper.make_tensor_value_info("sizes", TensorProto.INT64, ["k"]))
    model.graph.value_info.append(helper.make_tensor_value_info("shaped", TensorProto.FLOAT, ["a", "b"]))
    nodes = [
        helper.make_node("Reshape", ["Y", "sizes"], ["shaped"]),
        helper.make_node(op, ["shaped"], ["Z"], **attributes),
    ]
    model.graph.node.extend(nodes)
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("Z", TensorProto.FLOAT, None))
    try:
        lowered = rnn_lower.lower(model, opset=to)
    except rnn_lower.UnsupportedError:
        assert op != "Softmax"  # whose conversion needs no rank
        return
    rng = np.random.default_rng(0)
    feeds = {"X": rng.standard_normal([each.dim_value for each in model.graph.input[0].type.tensor_type.shape.dim])}
    feeds = {"X": feeds["X"].astype(np.float32), "sizes": np.array([2, 3, -1])}
    close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))
