"""Stacks in one loop (fuse_stacks): against the fused operators, or the oracle, and where layers must stay apart."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
import soakstacks
from judge import close, judged, loops, run_onnxruntime
from onnx import TensorProto, helper, numpy_helper
from stacks import BETWEEN, GATES, TYPES, VARIANTS, any_size, chain, given_weights

import rnn_lower
from rnn_lower.proof.untouched import only_recurrent_nodes_changed
from rnn_lower.recurrent import shared

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
def test_lengths(op, T, layers, dynamic, form):
    """Shorter than the stack is high, and longer."""
    names = ("Y", "Y_h", "Y_c")[: 2 + (op == "LSTM")]
    right(*chain(op, layers, T, dynamic=dynamic, states=(0, 1), outputs=names), form)


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", GATES)
def test_no_steps_at_all(op, form):
    names = ("Y", "Y_h", "Y_c")[: 2 + (op == "LSTM")]
    model, feeds = chain(op, 3, 0, dynamic=True, states=(0, 2), outputs=names)
    lowered = rnn_lower.lower(model, form=form, fuse_stacks=True)
    tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    y, *finals = run_onnxruntime(lowered, feeds)
    assert y.shape == (0, 1, 1, 4)
    close(finals, [tensors[f"{name}2"] for name in "hc"[: len(finals)]])


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
@pytest.mark.parametrize("what", ["used", "output", "reverse", "final", "lengths", "other clip", "turned"])
def test_layers_that_stay_apart(what):
    """Where another reads what lies between, the loop of both would have to give it too."""
    model, feeds = chain("LSTM", 2, N=2, between="turned" if what == "turned" else "squeeze")
    graph, first, last = model.graph, model.graph.node[0], model.graph.node[-1]
    if what == "used":
        graph.node.append(helper.make_node("Relu", ["x0_0"], ["seen"]))
        graph.output.append(helper.make_tensor_value_info("seen", TensorProto.FLOAT, None))
    elif what == "output":
        graph.output.append(helper.make_tensor_value_info("y0", TensorProto.FLOAT, None))
    elif what == "reverse":
        last.attribute.append(helper.make_attribute("direction", "reverse"))
    elif what == "final":
        first.output.append("final")
        graph.output.append(helper.make_tensor_value_info("final", TensorProto.FLOAT, None))
    elif what == "lengths":
        first.input.append("lengths")
        graph.initializer.append(numpy_helper.from_array(np.array([5, 3], np.int32), "lengths"))
    elif what == "other clip":
        last.attribute.append(helper.make_attribute("clip", 0.5))
    right(model, feeds, together=what == "turned")


def test_a_first_state_that_comes_from_the_layer_below():
    """Both read Y of the first layer, so it is not the stack's alone."""
    model, feeds = chain("GRU", 2, T=1, N=1)
    model.graph.node[-1].input.extend(["", "y_as_state"])
    model.graph.node.insert(1, helper.make_node("Squeeze", ["y0", "places0_0"], ["y_as_state"]))
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
    assert loops(rnn_lower.lower(chain(op, layers)[0])) == layers


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
