"""Proofs: what is lowered is proved, what is changed is not, and what is told of it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from judge import emitted
from onenode import OPTIONAL, Case, build
from onnx import TensorProto, helper, numpy_helper
from paths import own_models
from proofs import run

import rnn_lower
from rnn_lower.ir import protobuf
from rnn_lower.proving.exact import algebraic_patterns
from rnn_lower.proving.nodes.node_proof import FAILURE

FORMS = ("scan", "loop", "unroll")
EVERYTHING = Case("LSTM", 14, optional=OPTIONAL["LSTM"], direction="bidirectional", T=3, N=2, I=2, H=3)


def proof(case: Case, form: str = "auto", **options: object) -> rnn_lower.Proof:
    model, _ = build(case)
    return rnn_lower.prove(model, rnn_lower.lower(model, form=form, **options))


def change(model: onnx.ModelProto, name: str, place: int, by: float | None = None) -> None:
    """An element of a constant becomes the next float, or is increased."""
    tensor = next(tensor for tensor in protobuf.tensors(model) if all(part in tensor.name for part in name.split()))
    array = numpy_helper.to_array(tensor).copy()
    old = array.flat[place]
    array.flat[place] = np.nextafter(old, old.dtype.type(np.inf)) if by is None else old + by
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


# -- what is proved -------------------------------------------------------------------------------------------------


def test_random_nodes_in_every_form():
    assert run(30, 0).keys() == {"proved"}


def test_random_nodes_for_every_target():
    assert run(12, 1, targets=True).keys() == {"proved"}


@pytest.mark.parametrize(
    "opset", [1, 3, 5, 6, 7, 8, 9, 10, 11, 13, 14, 18, 21, 22, 24, min(28, onnx.defs.onnx_opset_version())]
)
@pytest.mark.parametrize("form", FORMS)
def test_every_opset(opset, form):
    if form == "scan" and opset < 9:
        pytest.skip("there is no such Scan")
    case = Case(
        "GRU", opset, T=3, optional=OPTIONAL["GRU"], clip=0.5, lbr=1 if opset >= 3 else None, direction="reverse"
    )
    case = case.replace(output_sequence=1) if opset < 7 else case
    assert proof(case, form).ok


@pytest.mark.parametrize("dtype", ["float", "double", "float16", "bfloat16"])
@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_element_types(op, dtype):
    found = proof(Case(op, 22, dtype=dtype, optional=OPTIONAL[op], dynamic=True))
    assert found.ok
    assert found.nodes[0].verdict == "proved"
    assert found.bound == FAILURE**2 < 1e-8


@pytest.mark.parametrize("opset", [7, 9, 12])
@pytest.mark.parametrize("target", ["onnxruntime", "opencv@4"])
@pytest.mark.parametrize("clip", [None, 0.3, 50.0])
def test_doubles_are_clipped_without_clip(opset, target, clip):
    names = ("HardSigmoid", "Tanh")
    case = Case("GRU", opset, dtype="double", activations=names, clip=clip, T=2)
    assert proof(case, "unroll", target=target).ok


def test_opset_and_sizes_that_were_changed_on_the_way():
    assert proof(EVERYTHING.replace(opset=8, dynamic=True), "scan", opset=17, dims={"T": 4, "N": 2}).ok


def test_one_value_may_be_two_inputs():
    model, _ = build(Case("LSTM", optional=("initial_h", "initial_c")))
    model.graph.node[0].input[6] = "initial_h"
    del model.graph.input[2]
    assert rnn_lower.prove(model, rnn_lower.lower(model)).ok


@pytest.mark.parametrize("path", own_models(), ids=lambda path: path.stem)
@pytest.mark.parametrize("form", FORMS)
def test_own_models(path, form):
    try:
        lowered = rnn_lower.lower(path, form=form)
    except rnn_lower.UnsupportedError:
        pytest.skip("the length is not known")
    assert rnn_lower.prove(path, lowered).ok


@pytest.mark.parametrize("form", FORMS)
def test_models_of_others(shared, form):
    proved = 0
    for path in sorted((shared / "models").glob("*.onnx")):
        try:
            lowered = rnn_lower.lower(path, form=form)
        except rnn_lower.UnsupportedError:
            continue
        found = rnn_lower.prove(path, lowered)
        assert found.ok, (path.name, found)
        proved += len(found.nodes)
    assert proved >= 18


def test_weights_in_files(tmp_path):
    onnx.save(build(EVERYTHING)[0], tmp_path / "a.onnx", save_as_external_data=True, location="w", size_threshold=0)
    rnn_lower.lower_file(tmp_path / "a.onnx", tmp_path / "b.onnx")
    assert rnn_lower.prove(tmp_path / "a.onnx", tmp_path / "b.onnx").ok


@pytest.mark.parametrize("how", ["as before", "link inside", "link outside", "unknown key"])
def test_new_weights_are_in_files_that_runtimes_read(how, tmp_path):
    (folder := tmp_path / "model").mkdir()
    original, feeds = build(Case("GRU"))
    lowered = rnn_lower.lower(original)
    onnx.save(original, folder / "a.onnx")
    onnx.save(lowered, folder / "b.onnx", save_as_external_data=True, location="w", size_threshold=64)
    if "link" in how:
        place = folder / "moved" if how == "link inside" else tmp_path / "moved"
        (folder / "w").rename(place)
        (folder / "w").symlink_to(place)
    elif how == "unknown key":
        changed = onnx.load(folder / "b.onnx", load_external_data=False)
        changed.graph.initializer[0].external_data.add(key="flavour", value="1")
        (folder / "b.onnx").write_bytes(changed.SerializeToString())
    try:
        loads = bool(onnxruntime.InferenceSession(str(folder / "b.onnx")).run(None, feeds))
    except Exception:  # of onnxruntime
        loads = False
    assert loads == rnn_lower.prove(folder / "a.onnx", folder / "b.onnx").ok == (how in ("as before", "link inside"))


def test_nodes_that_are_left_are_not_proved_but_compared():
    model, _ = build(EVERYTHING)
    assert rnn_lower.prove(model, model).nodes == ()
    assert rnn_lower.prove(model, model).ok


def test_a_sum_of_biases_may_also_be_left_to_the_runtime():
    model, _ = build(Case("RNN", optional=("B",), weights="computed"))
    lowered = rnn_lower.lower(model)
    known, _ = build(Case("RNN", optional=("B",)))
    kept = [node for node in lowered.graph.node if node.metadata_props]
    del lowered.graph.node[:]
    lowered.graph.node.extend(kept)
    del lowered.graph.initializer[:3]
    lowered.graph.initializer.extend(known.graph.initializer)
    assert rnn_lower.prove(known, lowered).nodes[0].verdict == "proved"


# -- what is not ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", range(12))
def test_one_unit_in_one_bias_is_found_in_its_gate(place):
    model, _ = build(Case("LSTM", optional=("B", "initial_h", "initial_c"), H=3, N=2, T=4))
    lowered = rnn_lower.lower(model)
    (bias,) = [tensor.name for tensor in lowered.graph.initializer if "bias" in tensor.name]
    change(lowered, bias, place)
    (node,) = rnn_lower.prove(model, lowered).nodes
    assert node.verdict == "not equal"
    assert not node.ok
    assert (
        f"'Y' first differs in gate {'iofc'[place // 3]} at step 0 of the forward direction, with seq_length 4"
        in node.reason
    )


@pytest.mark.parametrize("form", FORMS)
def test_the_reverse_direction_parts_at_its_first_step(form):
    model, _ = build(Case("GRU", direction="bidirectional", optional=("B",), T=4, H=2))
    lowered = rnn_lower.lower(model, form=form)
    change(lowered, "reverse R_zr", 0)
    (node,) = rnn_lower.prove(model, lowered).nodes
    assert "gate z at step 2 of the backward direction" in node.reason  # at step 3 there is no state yet


def test_a_step_that_is_taken_from_another_row_is_put_together_otherwise():
    model, _ = build(Case("RNN", T=3, outputs=("Y",)))
    lowered = rnn_lower.lower(model, form="unroll")
    rows = emitted(lowered, "Concat")
    rows.input[0], rows.input[1] = rows.input[1], rows.input[0]
    assert (
        "has the correct values, but its steps are in the wrong order"
        in rnn_lower.prove(model, lowered).nodes[0].reason
    )


def test_something_else_has_changed():
    model, _ = build(Case("RNN", weights="computed"))
    lowered = rnn_lower.lower(model)
    lowered.graph.node[0].name = "other"
    found = rnn_lower.prove(model, lowered)
    assert found.nodes[0].ok
    assert not found.ok
    assert "name has changed" in found.changed[0]


def test_what_reads_something_else_is_wrong():
    model, _ = build(Case("LSTM", optional=("initial_h", "initial_c")))
    model.graph.node.append(helper.make_node("Neg", ["initial_h"], ["minus"]))
    model.graph.output.append(helper.make_tensor_value_info("minus", TensorProto.FLOAT, None))
    lowered = rnn_lower.lower(model)
    for node in lowered.graph.node:
        node.input[:] = ["minus" if name == "initial_h" and node.metadata_props else name for name in node.input]
    (node,) = rnn_lower.prove(model, lowered).nodes
    assert (node.verdict, node.reason) == (
        "not equal",
        "the lowered node reads 'minus', which is not an input of the original node",
    )


def test_what_nothing_computes_is_wrong():
    model, _ = build(Case("RNN", outputs=("Y", "Y_h")))
    lowered = rnn_lower.lower(model)
    for node in lowered.graph.node:
        node.output[:] = ["gone" if name == "Y_h" else name for name in node.output]
    lowered.graph.output.pop()
    assert rnn_lower.prove(model, lowered).nodes[0].reason == "no lowered node computes 'Y_h'"


@pytest.mark.parametrize(
    ("attribute", "told"),
    [({"axes": [0]}, "does not allow attribute 'axes'"), ({}, "opset 14 does not allow 3 inputs")],
)
def test_nodes_that_their_opset_does_not_have_are_wrong(attribute, told):
    model, _ = build(Case("RNN", 14, T=1))
    lowered = rnn_lower.lower(model)
    node = emitted(lowered, "Squeeze")
    node.attribute.extend(helper.make_attribute(name, value) for name, value in attribute.items())
    if not attribute:
        node.input.append(node.input[0])
    assert told in rnn_lower.prove(model, lowered).nodes[0].reason


def test_a_size_below_minus_one_is_wrong():
    model, _ = build(Case("LSTM", N=3, optional=("B", "sequence_lens"), direction="reverse"))
    lowered = rnn_lower.lower(model, form="unroll")
    shape = emitted(lowered, "Reshape").input[1]
    change(lowered, shape, 1, -1)
    (sizes,) = (numpy_helper.to_array(tensor) for tensor in lowered.graph.initializer if tensor.name == shape)
    assert sizes[1] == -2
    assert rnn_lower.prove(model, lowered).nodes[0].verdict == "not equal"


def test_other_operators_are_out_of_scope():
    model, _ = build(Case("RNN", T=1))
    lowered = rnn_lower.lower(model)
    emitted(lowered, "Tanh").op_type = "Sin"
    found = rnn_lower.prove(model, lowered)
    assert (found.nodes[0].verdict, found.nodes[0].reason) == (
        "out of scope",
        "the proof does not support operator Sin",
    )
    assert not found.ok
    assert found.nodes[0].bound == found.bound == 1.0


def test_a_limit_of_lengths_beyond_those_compared_is_noticed():
    model, _ = build(Case("RNN", dynamic=True, optional=("sequence_lens",), N=2))
    for limit in (40, 4000):
        lowered = rnn_lower.lower(model)
        less = emitted(lowered, "Less")
        least = helper.make_node("Min", ["sequence_lens", "limit"], ["at_most"])
        least.metadata_props.extend(less.metadata_props)
        lowered.graph.node.insert(0, least)
        lowered.graph.initializer.append(numpy_helper.from_array(np.array([limit], np.int32), "limit"))
        for node in lowered.graph.node[1:]:
            node.input[:] = ["at_most" if name == "sequence_lens" else name for name in node.input]
        assert rnn_lower.prove(model, lowered).nodes[0].verdict == "out of scope"


def wraps() -> list[onnx.NodeProto]:
    return [
        helper.make_node("Cast", ["sequence_lens"], ["narrow"], to=TensorProto.INT8),
        helper.make_node("Cast", ["narrow"], ["other"], to=TensorProto.INT32),
    ]


def is_nothing_at(limit: str, to: int) -> list[onnx.NodeProto]:
    """Lengths, but for one that is 0."""
    return [
        helper.make_node("Cast", ["sequence_lens"], ["lengths"], to=to),
        helper.make_node("Sub", ["lengths", limit], ["less"]),
        helper.make_node("Cast", ["less"], ["is_other"], to=TensorProto.BOOL),
        helper.make_node("Cast", ["is_other"], ["one"], to=TensorProto.INT32),
        helper.make_node("Mul", ["sequence_lens", "one"], ["other"]),
    ]


@pytest.mark.parametrize(
    "nodes",
    [wraps(), is_nothing_at("whole", TensorProto.INT32), is_nothing_at("float", TensorProto.FLOAT)],
    ids=["wraps", "integers", "floats"],
)
def test_what_is_otherwise_at_lengths_beyond_those_compared_is_noticed(nodes):
    model, _ = build(Case("RNN", dynamic=True, optional=("sequence_lens",), N=2))
    lowered = rnn_lower.lower(model)
    for node in lowered.graph.node:
        node.input[:] = ["other" if name == "sequence_lens" else name for name in node.input]
    for index, node in enumerate(nodes):
        node = onnx.NodeProto.FromString(node.SerializeToString())
        node.metadata_props.extend(emitted(lowered, "Less").metadata_props)
        lowered.graph.node.insert(index, node)
    for name, dtype in (("whole", np.int32), ("float", np.float32)):
        if any(name in node.input for node in nodes):
            lowered.graph.initializer.append(numpy_helper.from_array(np.array([4000], dtype), name))
    assert rnn_lower.prove(model, lowered).nodes[0].verdict == "out of scope"


def test_a_part_beyond_the_end_is_not_looked_at():
    model, _ = build(Case("RNN", dynamic=True))
    lowered = rnn_lower.lower(model)
    cut = helper.make_node("Slice", ["X", "from", "to", "from"], ["cut"])
    emitted_node = emitted(lowered, "MatMul")
    cut.metadata_props.extend(emitted_node.metadata_props)
    lowered.graph.node.insert(0, cut)
    for name, value in (("from", 0), ("to", 100)):
        lowered.graph.initializer.append(numpy_helper.from_array(np.array([value]), name))
    for node in lowered.graph.node[1:]:
        node.input[:] = ["cut" if name == "X" else name for name in node.input]
    (node,) = rnn_lower.prove(model, lowered).nodes
    assert node.verdict == "out of scope"
    assert "Slice" in node.reason


def test_a_very_long_sequence_is_out_of_scope():
    (node,) = proof(Case("RNN", T=20_000, N=1, I=1, H=1)).nodes
    assert (node.verdict, node.reason) == (
        "out of scope",
        "the sequence has 20000 steps, but the proof supports at most 10000",
    )


@pytest.mark.parametrize("T", [1, 6, 9, 14])
@pytest.mark.parametrize("N", [1, 2, 5])
def test_a_position_that_is_off_by_one_shows_at_some_length(T, N):
    """Where each step chooses by its position."""
    model, _ = build(Case("RNN", T=T, N=N, optional=("sequence_lens", "initial_h")))
    lowered = rnn_lower.lower(model, form="scan")
    for place in range(T):
        mutant = onnx.ModelProto()
        mutant.CopyFrom(lowered)
        positions = next(t for t in mutant.graph.initializer if "column" in t.name and list(t.dims) == [T, 1, 1])
        array = numpy_helper.to_array(positions).copy()
        array[place] += 1
        positions.CopyFrom(numpy_helper.from_array(array, positions.name))
        assert rnn_lower.prove(model, mutant).nodes[0].verdict == "not equal"


@pytest.mark.parametrize("sizes", [{"T": 0}, {"N": 0}, {"I": 0}, {"T": 0, "N": 0, "I": 0}])
@pytest.mark.parametrize("dynamic", [False, True])
def test_nothing_to_compute(sizes, dynamic):
    case = Case("LSTM", 17, optional=OPTIONAL["LSTM"], dynamic=dynamic, **sizes)
    assert all(proof(case, form).ok for form in FORMS if form != "unroll" or not dynamic)


def test_a_scan_of_no_steps_is_told():
    model, _ = build(Case("RNN", dynamic=True))
    lowered = rnn_lower.lower(model, form="scan", target="onnx-reference")
    (node,) = rnn_lower.prove(model, lowered).nodes
    assert node.ok
    assert "the proof does not cover a Scan over an empty sequence" in node.reason


def test_bad_nodes_are_refused():
    model, _ = build(Case("RNN"))
    lowered = rnn_lower.lower(model)
    model.graph.node[0].attribute.append(helper.make_attribute("direction", "sideways"))
    with pytest.raises(rnn_lower.InvalidNodeError, match="unknown direction"):
        rnn_lower.prove(model, lowered)


def test_it_needs_no_runtime():
    code = (
        "import sys; sys.path[:0] = ['tests/support']\n"
        "from onenode import Case, build; import rnn_lower\n"
        "model, _ = build(Case())\n"
        "assert rnn_lower.prove(model, rnn_lower.lower(model)).ok\n"
        "assert 'onnxruntime' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# -- groups of nodes that are one function -------------------------------------------------------------------------


def tanh_of_clip(low: float, high: float) -> ir.Value:
    x = ir.Value(name="x")
    bounds = [ir.Value(name=str(bound), const_value=ir.tensor(np.float32(bound))) for bound in (low, high)]
    clip = ir.Node("", "Clip", (x, *bounds), outputs=(ir.Value(name="y"),))
    return clip.outputs[0]


def test_only_limits_beyond_which_tanh_is_one_are_dropped():
    assert algebraic_patterns.unlimited(tanh_of_clip(-20, 20), ()).name == "x"
    assert algebraic_patterns.unlimited(tanh_of_clip(-19, 19), ()) is None
    assert algebraic_patterns.unlimited(tanh_of_clip(-20, 30), ()) is None
    assert algebraic_patterns.unlimited(tanh_of_clip(-20, 20), (20.0,)) is None
    assert float(np.tanh(np.float64(algebraic_patterns.TANH_IS_ONE))) == 1.0
    assert algebraic_patterns.clip_of(tanh_of_clip(1, -1)) is None


@pytest.mark.parametrize("op", ["GRU", "LSTM"])
def test_a_mistake_at_no_steps_alone(op):
    """In the branch that a guarded Scan leaves to sequences of no steps: the final states."""
    model, _ = build(Case(op, 14, optional=("initial_h",), dynamic=True, T=3, N=2, I=2, H=3))
    lowered = rnn_lower.lower(model, form="scan", target="onnxruntime")
    branch = next(attribute.g for attribute in emitted(lowered, "If").attribute if attribute.name == "else_branch")
    for node in branch.node:
        if node.op_type == "Identity":
            node.op_type = "Neg"
    assert not rnn_lower.prove(model, lowered).ok
    assert not rnn_lower.check(model, lowered).ok


@pytest.mark.parametrize("opset", [8, 9, 13, 21])
@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_a_layout_is_proved_at_an_opset_that_has_none(op, opset):
    model, _ = build(Case(op, 14, "bidirectional", layout=1, optional=("B", "initial_h", "sequence_lens")))
    lowered = rnn_lower.lower(model, opset=opset, form="loop" if opset < 9 else "scan")
    proof = rnn_lower.prove(model, lowered)
    assert proof.ok, proof.lines()
    assert rnn_lower.check(model, lowered, runs=1).ok


@pytest.mark.parametrize("limit", [50.0, 0.05])
def test_a_clip_by_reciprocals_divides_by_zero_inside(limit):
    """At opset 7 float64 has no Clip, Min or Max: the quotients within are part of one function, and none stands alone."""
    case = Case("GRU", 7, T=1, N=3, I=1, H=16, optional=("B",), clip=limit, dtype="double", dynamic=True, seed=375)
    for seed in (375, 628, 1, 2):
        model, _ = build(case.replace(seed=seed))
        result = rnn_lower.prove(model, rnn_lower.lower(model, form="loop"))
        assert result.ok, result.lines()


def test_a_name_that_is_longer_than_its_tensor():
    model, _ = build(Case("GRU", 17))
    model.graph.node[0].name = "n" * 30_000
    lowered = rnn_lower.lower(model, target="onnxruntime")
    assert rnn_lower.prove(model, lowered)


def test_inference_that_finds_less_at_another_opset_hides_no_size():
    """Before opset 11, onnx infers nothing from a Concat along a negative axis, so that the name of N would be new."""
    model, _ = build(Case("LSTM", 17, I=3, optional=("B",), dynamic=True))
    x = next(value for value in model.graph.input if value.name == "X")
    x.type.tensor_type.shape.dim[2].dim_value = 1
    x.name = "left"
    model.graph.input.append(onnx.helper.make_tensor_value_info("right", onnx.TensorProto.FLOAT, ["T", "N", 2]))
    model.graph.node.insert(0, onnx.helper.make_node("Concat", ["left", "right"], ["X"], axis=-1))
    lowered = rnn_lower.lower(model, opset=10)
    assert any("N" in str(value) for value in lowered.graph.value_info)
    assert rnn_lower.prove(model, lowered)
