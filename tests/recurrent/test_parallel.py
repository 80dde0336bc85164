"""Nodes that read nothing of each other in one loop (fuse_stacks): against the fused operators, or the oracle."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
import soakstacks
from beside import beside
from judge import close, every_node, judged, loops, run_onnxruntime
from onnx import TensorProto, helper, numpy_helper
from stacks import GATES, TYPES, VARIANTS, WIDTHS, any_size, given_weights

import rnn_lower
from rnn_lower.lowering import shared
from rnn_lower.proving.model_diff import only_recurrent_nodes_changed

FORMS = ("scan", "loop")


def right(model: onnx.ModelProto, feeds: dict[str, np.ndarray], loops_left: int, form: str = "scan") -> onnx.ModelProto:
    """It is right, changes nothing else, and has so many loops."""
    lowered = rnn_lower.lower(model, form=form, fuse_stacks=True)
    close(run_onnxruntime(lowered, feeds), judged(model, feeds))
    assert only_recurrent_nodes_changed((model, None), (lowered, None)) == []
    assert loops(lowered) == loops_left
    return lowered


@pytest.fixture(params=WIDTHS)
def sizes(request):
    with any_size(WIDTHS[request.param]):
        yield


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("op", "variant"), [(op, variant) for op, many in VARIANTS.items() for variant in many])
def test_variants(op, variant, form):
    right(*beside(op, 3, N=2, **variant), 1, form)


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize(
    "directions", [("reverse",), ("bidirectional",), ("forward", "reverse"), ("bidirectional", "forward", "reverse")]
)
def test_directions(op, directions, form):
    names = ("Y", "Y_h", "Y_c")[: 2 + (op == "LSTM")]
    right(*beside(op, 3, directions=directions, states=(0, 2), outputs=names), 1, form)


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("outputs", [("Y_h",), ("Y_c",), ("Y", "Y_c"), ("Y_h", "Y_c")])
def test_outputs(outputs):
    right(*beside("LSTM", 2, outputs=outputs, states=(1,)), 1)


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", GATES)
def test_blocks_of_them(op, form):
    """Between the nodes of a block stands what reads them; each block needs all of the one before."""
    right(*beside(op, 2, blocks=3), 3, form)


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("opset", [9, 11, 13, 14, 17, 21])
def test_opsets(opset, form):
    if opset < 13:  # before which Split and ReduceSum are written otherwise
        right(*beside("GRU", 3, one_x=True, opset=opset), 1, form)
    else:
        right(*beside("GRU", 3, blocks=2, opset=opset), 2, form)


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("op", GATES)
def test_types(op, dtype):
    right(*beside(op, 3, dtype=dtype, states=(1,)), 1)


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("one_x", "loops_left"), [(True, 1), (False, 2)])
def test_a_length_that_is_a_name(one_x, loops_left, form):
    """What two sizes of one name are at run time is known where both are sizes of one value."""
    lowered = right(*beside("LSTM", 2, one_x=one_x, dynamic=True, directions=("forward", "reverse")), loops_left, form)
    _, feeds = beside("LSTM", 2, T=9, one_x=one_x, dynamic=True, directions=("forward", "reverse"))
    assert run_onnxruntime(lowered, feeds)[0].shape[0] == 9


def again(graph: onnx.GraphProto, nodes: list[onnx.NodeProto]) -> None:
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("what", ["reads it", "reads it in a body", "other length", "other clip", "lengths", "graph"])
def test_nodes_that_stay_apart(what):
    model, feeds = beside("LSTM", 2, N=2, one_x=True)
    graph, last = model.graph, model.graph.node[-1]
    reads = (
        helper.make_node("ReduceMax", ["Y0_0"], ["small"], keepdims=0),
        helper.make_node("Add", ["X", "small"], ["x"]),
    )
    if what == "reads it":
        last.input[0] = "x"
        again(graph, [graph.node[0], *reads, last])
    elif what == "reads it in a body":
        last.input[0] = "x"
        body = helper.make_graph(reads, "b", [], [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)])
        graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
        choice = helper.make_node("If", ["yes"], ["x"], then_branch=body, else_branch=body)
        again(graph, [graph.node[0], choice, last])
    elif what == "other length":
        graph.initializer.extend([numpy_helper.from_array(np.array([n]), f"int{n}") for n in (0, 4)])
        last.input[0] = "x"
        again(graph, [graph.node[0], helper.make_node("Slice", ["X", "int0", "int4", "int0"], ["x"]), last])
    elif what == "other clip":
        last.attribute.append(helper.make_attribute("clip", 0.5))
    elif what == "lengths":
        last.input.append("lengths")
        graph.initializer.append(numpy_helper.from_array(np.array([5, 3], np.int32), "lengths"))
    elif what == "graph":
        moved = onnx.NodeProto.FromString(last.SerializeToString())
        body = helper.make_graph([moved], "b", [], [helper.make_tensor_value_info("Y0_1", TensorProto.FLOAT, None)])
        graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
        del graph.node[-1]
        graph.node.append(helper.make_node("If", ["yes"], ["Y0_1"], then_branch=body, else_branch=body))
    right(model, feeds, 3 if what == "graph" else 2)


@pytest.mark.usefixtures("sizes")
def test_groups_that_would_need_each_other():
    """a and d alike, b and c alike, c reads a and d reads b: one pair may share a loop, not both."""
    model, feeds = beside("GRU", 4, one_x=True)
    nodes = [*model.graph.node]
    for place, reads in ((2, 0), (3, 1)):
        nodes[place].input[0] = f"x{place}"
        sums = helper.make_node("ReduceMax", [f"Y0_{reads}"], [f"max{place}"], keepdims=0)
        nodes += [sums, helper.make_node("Add", ["X", f"max{place}"], [f"x{place}"])]
    for place in (1, 2):
        nodes[place].attribute.append(helper.make_attribute("clip", 0.5))
    again(model.graph, [*nodes[:2], *nodes[4:], *nodes[2:4]])
    right(model, feeds, 3)


@pytest.mark.usefixtures("sizes")
def test_inside_of_bodies():
    model, feeds = beside("GRU", 3, one_x=True)
    inner = onnx.GraphProto(name="inner", node=model.graph.node, output=model.graph.output)
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    del model.graph.node[:]
    model.graph.node.append(
        helper.make_node("If", ["yes"], [o.name for o in inner.output], then_branch=inner, else_branch=inner)
    )
    for name in ("then_branch", "else_branch"):
        graph = next(attribute for attribute in model.graph.node[0].attribute if attribute.name == name).g
        for value in graph.output:
            graph.node.append(helper.make_node("Identity", [value.name], [f"{name}_{value.name}"]))
            value.name = f"{name}_{value.name}"
        for node in graph.node:
            node.input[:] = [f"{name}_{i}" if i.startswith("x0") else i for i in node.input]
            node.output[:] = [f"{name}_{o}" if o.startswith("x0") else o for o in node.output]
    right(model, feeds, 2)


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", GATES)
def test_weights_that_are_not_known(op, form):
    """The blocks of the wide cell are put together when the model runs."""
    model, feeds = given_weights(*beside(op, 3, directions=("forward", "reverse")))
    right(model, feeds, 1, form)


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("seed", range(30))
def test_random_groups(seed):
    case, form = soakstacks.drawn_beside(np.random.default_rng(seed))
    assert soakstacks.compare(case, form)


@pytest.mark.parametrize(
    ("op", "nodes", "H", "loops_left"),
    [("LSTM", 2, 4, 1), ("GRU", 2, 4, 1), ("RNN", 2, 4, 1), ("LSTM", 2, 64, 1), ("GRU", 3, 64, 2), ("GRU", 4, 64, 1),
     ("RNN", 4, 64, 2)],
)  # fmt: skip
def test_where_it_pays(op, nodes, H, loops_left):
    right(*beside(op, nodes, H=H), loops_left)
    assert loops(rnn_lower.lower(beside(op, nodes)[0], form="scan")) == nodes


@pytest.mark.parametrize(
    ("op", "H", "directions", "loops_left"),
    [("RNN", 32, ("bidirectional",), 3), ("RNN", 64, ("forward",), 2), ("GRU", 48, ("bidirectional", "forward"), 3)],
)
def test_where_it_pays_for_parts(op, H, directions, loops_left):
    """A node with both directions that is left alone has two loops, of which the second is for NaN."""
    right(*beside(op, 3 if len(directions) == 1 else 2, H=H, directions=directions), loops_left)


def test_where_it_pays_for_rows():
    right(*beside("LSTM", 2, N=2), 2)


@pytest.mark.parametrize(("op", "activations"), [("GRU", ["Sigmoid", "Relu"]), ("RNN", ["Relu"])])
def test_where_it_pays_for_what_may_be_infinite(op, activations):
    right(*beside(op, 2, activations=activations), 2)


@pytest.mark.parametrize("variant", [{}, {"clip": 0.3}])
@pytest.mark.parametrize("op", GATES)
def test_the_directions_of_a_node_alone_keep_to_themselves(op, variant):
    """And are proved."""
    model, feeds = beside(op, 1, T=6, directions=("bidirectional",), **variant)
    lowered = right(model, feeds, 1 if op == "LSTM" and variant else 2)
    assert rnn_lower.prove(model, lowered).ok
    feeds["X"][2] = np.nan
    spoilt = np.isnan(run_onnxruntime(lowered, feeds)[0]).any((2, 3))
    assert spoilt[:, 0].tolist() == [False, False, True, True, True, True]
    assert spoilt[:, 1].tolist() == [True, True, True, False, False, False]


@pytest.mark.usefixtures("sizes")
def test_nothing_is_emitted_for_what_nobody_wants():
    model, feeds = beside("LSTM", 3)
    for node in (node for node in model.graph.node if node.op_type == "LSTM"):
        if node.name != "node0_0":
            node.output[0] = f"unwanted_{node.name}"
    del model.graph.output[1:]
    lowered = right(model, feeds, 1)
    assert not any(entry.key == shared.MEMBERS for node in lowered.graph.node for entry in node.metadata_props)
    lowered = rnn_lower.lower(beside("LSTM", 3)[0], fuse_stacks=True)
    used = {name for node in lowered.graph.node for name in node.input} | {one.name for one in lowered.graph.output}
    assert all(used & set(node.output) for node in lowered.graph.node if node.op_type == "Split")


@pytest.mark.usefixtures("sizes")
def test_names_records_and_proof(tmp_path):
    model, _ = beside("LSTM", 3)
    onnx.save(model, tmp_path / "m.onnx")
    records = rnn_lower.lower_file(tmp_path / "m.onnx", tmp_path / "out.onnx", fuse_stacks=True)
    assert [record.why for record in records] == [*["in the loop of 'node0_2'"] * 2, "one loop with 2 others alike"]
    lowered = onnx.load(tmp_path / "out.onnx")
    members = {e.value for node in every_node(lowered) for e in node.metadata_props if e.key == shared.MEMBERS}
    assert list(map(json.loads, members)) == [["node0_0", "node0_1", "node0_2"]]
    assert {node.verdict for node in rnn_lower.prove(model, lowered).nodes} == {"out of scope"}


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("wrong", ["W0_1", "R0_0", "B0_1"])
def test_the_check_notices_a_wrong_node(wrong):
    model, _ = beside("LSTM", 2, directions=("forward", "reverse"))
    lowered = rnn_lower.lower(model, fuse_stacks=True)
    assert rnn_lower.check(model, lowered).ok
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == wrong)
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * 1.1, wrong))
    assert not rnn_lower.check(model, lowered).ok
