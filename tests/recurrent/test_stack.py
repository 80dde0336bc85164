"""Stacks in one loop (fuse_stacks): against the fused operators, or the oracle, and where layers must stay apart."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
import soakstacks
from judge import close, judged, loops, run_onnxruntime
from onnx import TensorProto, helper, numpy_helper
from paths import ROOT
from stacks import BETWEEN, GATES, TYPES, VARIANTS, any_size, chain, given_weights

import rnn_lower
from rnn_lower.lowering import shared
from rnn_lower.proving.model_diff import only_recurrent_nodes_changed

FORMS = ("scan", "loop")


def right(model: onnx.ModelProto, feeds: dict[str, np.ndarray], form: str = "scan", together: bool = True) -> None:
    lowered = rnn_lower.lower(model, form=form, fuse_stacks=True)
    members = [entry for node in lowered.graph.node for entry in node.metadata_props if entry.key == shared.MEMBERS]
    assert bool(members) == together
    wanted = judged(model, feeds)
    close(run_onnxruntime(lowered, feeds), wanted)
    assert only_recurrent_nodes_changed((model, None), (lowered, None)) == []


@pytest.fixture
def sizes():
    with any_size():
        yield


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("op", "variant"), [(op, variant) for op, many in VARIANTS.items() for variant in many])
def test_variants(op, variant, form):
    together = "Relu" not in variant.get("activations", ())  # an infinity would reach the other layers
    right(*chain(op, 3, **variant), form, together)


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("layers", [2, 4])
@pytest.mark.parametrize("T", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("finals", [(), (0, 2)])
def test_lengths(op, T, layers, dynamic, form, finals):
    """Shorter than the stack is high, and longer."""
    names = ("Y", "Y_h", "Y_c")[: 2 + (op == "LSTM")]
    right(*chain(op, layers, T, dynamic=dynamic, states=(0, 1), outputs=names, finals=finals), form)


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", GATES)
def test_no_steps_at_all(op, form):
    names = ("Y", "Y_h", "Y_c")[: 2 + (op == "LSTM")]
    model, feeds = chain(op, 3, 0, dynamic=True, states=(0, 2), outputs=names, finals=(0,))
    lowered = rnn_lower.lower(model, form=form, fuse_stacks=True)
    tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    y, *finals = run_onnxruntime(lowered, feeds)
    assert y.shape == (0, 1, 1, 4)
    close(finals, [tensors[f"{name}{k}"] for k in (2, 0) for name in "hc"[: len(finals) // 2]])


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("opset", [9, 11, 13, 14, 17, 21])
@pytest.mark.parametrize("op", GATES)
def test_opsets(op, opset, form):
    right(*chain(op, 3, N=2, dynamic=True, opset=opset, between="reshape"), form)


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("op", GATES)
def test_types(op, dtype):
    model, feeds = chain(op, 3, N=3, dtype=dtype, states=(1,))
    lowered = rnn_lower.lower(model, fuse_stacks=True)
    assert loops(lowered) == 2
    wanted = judged(model, feeds)
    loose = {"rtol": 4e-3, "atol": 2e-3} if dtype == "float16" else {}  # the layers apart round Y between them
    close(run_onnxruntime(lowered, feeds), wanted, **loose)


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("between", BETWEEN)
def test_what_exporters_put_between(between):
    right(*chain("GRU", 3, between=between))


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("what", ["used", "output", "reverse", "lengths", "other clip", "turned"])
def test_layers_that_stay_apart(what):
    """Where another reads what lies between, the loop of both would have to give it too."""
    model, feeds = chain("LSTM", 2, N=2, between="turned" if what == "turned" else "squeeze")
    graph, last = model.graph, model.graph.node[-1]
    if what == "used":
        graph.node.append(helper.make_node("Relu", ["x0_0"], ["seen"]))
        graph.output.append(helper.make_tensor_value_info("seen", TensorProto.FLOAT, None))
    elif what == "output":
        graph.output.append(helper.make_tensor_value_info("y0", TensorProto.FLOAT, None))
    elif what == "reverse":
        last.attribute.append(helper.make_attribute("direction", "reverse"))
    elif what == "lengths":
        graph.node[0].input.append("lengths")
        graph.initializer.append(numpy_helper.from_array(np.array([5, 3], np.int32), "lengths"))
    elif what == "other clip":
        last.attribute.append(helper.make_attribute("clip", 0.5))
    right(model, feeds, together=what == "turned")


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("wanted", [False, True])
def test_a_shape_between_that_is_computed(wanted):
    """As torch's newer exporter writes it: the Reshape has its sizes from what it reshapes. Nobody else may want them."""
    model, feeds = chain("LSTM", 2, dynamic=True, between="turned")
    graph = model.graph
    places = {
        name: numpy_helper.from_array(np.array(value), name) for name, value in (("two", [2]), ("end", [9]), ("H", [4]))
    }
    graph.initializer.extend(places.values())
    graph.initializer.append(numpy_helper.from_array(np.array([0]), "start"))
    reshape = graph.node[2]
    assert reshape.op_type == "Reshape"
    reshape.input[1] = "shape"
    extra = [
        helper.make_node("Shape", ["x0_0"], ["sizes"]), helper.make_node("Slice", ["sizes", "start", "two"], ["front"]),
        helper.make_node("Concat", ["front", "H"], ["shape"], axis=0),
    ]  # fmt: skip
    nodes = [*graph.node[:2], *extra, *graph.node[2:]]
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)
    if wanted:
        graph.output.append(helper.make_tensor_value_info("front", TensorProto.INT64, [2]))
    right(model, feeds, together=not wanted)
    if not wanted:
        kept = {node.op_type for node in rnn_lower.lower(model, fuse_stacks=True).graph.node if node.name == ""}
        assert not kept, "what computed the shape goes with it"


def test_where_the_batch_size_is_not_known_it_is_told_how_to_say_it(caplog):
    model = onnx.load(ROOT / "models" / "torch_language_model.onnx")
    with caplog.at_level("WARNING", "rnn_lower"):
        assert loops(rnn_lower.lower(model, fuse_stacks=True)) == 2
    assert caplog.messages[-1].endswith("the batch size of 'node_LSTM_68' is not known: add --dim batch=1")
    lowered = rnn_lower.lower(model, fuse_stacks=True, dims={"batch": 1})
    assert {entry.value for node in lowered.graph.node for entry in node.metadata_props if entry.key == shared.MEMBERS}
    assert rnn_lower.check(model, lowered).ok


def test_a_first_state_that_comes_from_the_layer_below():
    """Both read Y of the first layer, so it is not the stack's alone."""
    model, feeds = chain("GRU", 2, T=1, N=1)
    model.graph.node[-1].input.extend(["", "y_as_state"])
    model.graph.node.insert(1, helper.make_node("Squeeze", ["y0", "places0_0"], ["y_as_state"]))
    right(model, feeds, together=False)


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("across", [False, True])
def test_a_last_state_that_another_layer_begins_with(across):
    """As an encoder gives it to a decoder: that is no one loop, be it by way of another stack."""
    model, feeds = chain("GRU", 2, finals=(0,))
    graph = model.graph
    if across:
        for node in list(graph.node):
            again = onnx.NodeProto.FromString(node.SerializeToString())
            again.name += "_2"
            again.output[:] = [name and f"{name}_2" for name in node.output]
            again.input[0] = "X" if node.input[0] == "X" else f"{node.input[0]}_2"
            graph.node.append(again)
        graph.output.append(helper.make_tensor_value_info("Y_2", TensorProto.FLOAT, None))
        graph.node[-1].input.extend(["", "Y_h0"])
        graph.node[2].input.extend(["", "Y_h0_2"])
        ordered = [graph.node[place] for place in (0, 1, 3, 4, 2, 5)]
        copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in ordered]
        del graph.node[:]
        graph.node.extend(copies)
        right(model, feeds)  # one of both stacks
        assert loops(rnn_lower.lower(model, form="scan", fuse_stacks=True)) == 3 + 2
    else:
        graph.node[-1].input.extend(["", "Y_h0"])
        right(model, feeds, together=False)


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", GATES)
def test_weights_that_are_not_known(op, form):
    """The blocks of the wide cell are put together when the model runs."""
    model, feeds = given_weights(*chain(op, 3))
    right(model, feeds, form)


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("seed", range(40))
def test_random_stacks(seed):
    case, form = soakstacks.drawn(np.random.default_rng(seed))
    assert soakstacks.compare(case, form)


@pytest.mark.parametrize(("op", "layers", "together"), [("LSTM", 2, True), ("LSTM", 3, True), ("RNN", 3, True)])
def test_where_it_pays(op, layers, together):
    right(*chain(op, layers), together=together)
    assert loops(rnn_lower.lower(chain(op, layers)[0], form="scan")) == layers


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("op", GATES)
def test_an_infinity_in_the_input(op, dynamic):
    """Zeros of the wide cell are never multiplied with X: that would be a NaN in every layer, of earlier steps too."""
    model, feeds = chain(op, 3, T=6, dynamic=dynamic)
    feeds["X"][2, 0, 0] = -np.inf
    (y,) = run_onnxruntime(rnn_lower.lower(model, fuse_stacks=True), feeds)
    assert np.isfinite(y).all()
    close([y], run_onnxruntime(model, feeds))


def test_nothing_is_left_of_what_was_between():
    lowered = rnn_lower.lower(chain("LSTM", 3)[0], fuse_stacks=True)
    taken = {name for node in lowered.graph.node for name in node.input}
    assert {tensor.name for tensor in lowered.graph.initializer} <= taken


def test_a_high_stack_is_cut():
    """As one wide cell it would multiply too many zeros."""
    lowered = rnn_lower.lower(chain("LSTM", 5, H=64)[0], fuse_stacks=True)
    told = {entry.value for node in lowered.graph.node for entry in node.metadata_props if entry.key == shared.MEMBERS}
    assert sorted(map(json.loads, told)) == [["layer0", "layer1"], ["layer2", "layer3", "layer4"]]
    right(*chain("LSTM", 5, H=64))


def test_names_and_provenance():
    lowered = rnn_lower.lower(chain("LSTM", 3)[0], fuse_stacks=True)
    for node in lowered.graph.node:
        told = {entry.key: entry.value for entry in node.metadata_props}
        assert json.loads(told[shared.MEMBERS]) == ["layer0", "layer1", "layer2"]
        assert told["rnn_lower.node"] == "layer0, layer1, layer2"
        assert node.name.startswith("layer2/")


def test_the_proof_says_that_it_does_not_follow():
    model, _ = chain("LSTM", 3)
    proof = rnn_lower.prove(model, rnn_lower.lower(model, fuse_stacks=True))
    assert {node.verdict for node in proof.nodes} == {"out of scope"}
    assert all("shares a loop" in node.reason for node in proof.nodes)


def test_the_check_notices_a_wrong_layer():
    model, _ = chain("LSTM", 3)
    lowered = rnn_lower.lower(model, fuse_stacks=True)
    assert rnn_lower.check(model, lowered).ok
    weights = numpy_helper.to_array(model.graph.initializer[1])
    model.graph.initializer[1].CopyFrom(numpy_helper.from_array(weights * 1.1, "R0"))
    assert not rnn_lower.check(model, lowered).ok
