"""What a model says of sizes in places where nothing holds it to: outputs that are inputs, and what bodies take."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from judge import close, run_onnxruntime
from onenode import Case, build
from onnx import TensorProto, helper, numpy_helper

import rnn_lower

FORMS = ("scan", "loop")


def info(name: str, shape: list[int | str] | None, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def shape_of(declared: onnx.ValueInfoProto) -> list[int | str]:
    return [dim.dim_param or dim.dim_value for dim in declared.type.tensor_type.shape.dim]


@pytest.mark.parametrize("options", [{"form": "scan"}, {"form": "loop"}, {"fold": True}], ids=str)
@pytest.mark.parametrize("claimed", [[5, "N", 3], [5, 1, 3], None])
def test_an_input_that_is_an_output_too(claimed, options):
    """What the output declares is nothing that a caller is held to."""
    model, _ = build(Case("LSTM", 17, dynamic=True, T=7, N=2))
    _, feeds = build(Case("LSTM", 17, T=7, N=2))
    model.graph.output.append(info("X", claimed))
    lowered = rnn_lower.lower(model, **options)
    close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))
    assert lowered.graph.input[0] == model.graph.input[0]
    assert lowered.graph.output[-1] == model.graph.output[-1]
    assert rnn_lower.check(model, lowered).ok
    with pytest.raises(
        rnn_lower.UnsupportedError,
        match="form unroll needs a known sequence length, but the sequence length of this node is 'T'",
    ):
        rnn_lower.lower(model, form="unroll")
    assert rnn_lower.lower(model, form="unroll", dims={"T": 7}).graph.input[0].type.tensor_type.shape.dim[0].dim_value


def growing(claimed: list[int | str] | None, axis: int) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A Loop whose body doubles, in each trip, the steps or the rows of what a recurrent node reads."""
    rng = np.random.default_rng(0)
    weights = {"W": rng.normal(size=(1, 3, 3)), "R": rng.normal(size=(1, 3, 3))}
    tensors = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()]
    tensors += [numpy_helper.from_array(np.array(v), n) for n, v in (("trips", 3), ("yes", True), ("one", [1]))]
    nodes = [
        helper.make_node("Identity", ["going"], ["still"]),
        helper.make_node("RNN", ["x", "W", "R"], ["y"], hidden_size=3, name="node"),
        helper.make_node("Squeeze", ["y", "one"], ["narrow"]),
        helper.make_node("Concat", ["x", "narrow"], ["more"], axis=axis),
    ]
    body = helper.make_graph(
        nodes, "body", [info("trip", [], TensorProto.INT64), info("going", [], TensorProto.BOOL), info("x", claimed)],
        [info("still", [], TensorProto.BOOL), info("more", None)],
    )  # fmt: skip
    loop = helper.make_node("Loop", ["trips", "yes", "X"], ["Y"], body=body)
    graph = helper.make_graph([loop], "g", [info("X", [5, 1, 3])], [info("Y", None)], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model, {"X": rng.normal(size=(5, 1, 3)).astype(np.float32)}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("claimed", [[5, 1, 3], [5, "N", 3], None])
@pytest.mark.parametrize("axis", [0, 1])
def test_what_grows_in_a_loop(axis, claimed, form):
    """What the body declares of its inputs is so in the first trip alone."""
    model, feeds = growing(claimed, axis)
    close(run_onnxruntime(rnn_lower.lower(model, form=form), feeds), run_onnxruntime(model, feeds))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("where", ["inner", "outer"])
@pytest.mark.parametrize("passed_on", [False, True])
def test_what_a_body_says_of_what_it_takes_from_outside(where, depth, form, passed_on):
    model, feeds = build(Case("GRU", 17, T=7, outputs=("Y_h",)))
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    nodes = [helper.make_node("Compress", ["X", "keep"], ["x"], axis=0)]
    recurrent = model.graph.node[0]
    own = [helper.make_node("Identity", ["x"], ["same"])] if passed_on else []
    recurrent.input[0] = "same" if passed_on else "x"
    inner = onnx.GraphProto(name="inner", node=[*own, recurrent], output=model.graph.output)
    for level in range(depth):
        ends = [f"{value.name}_{level}" for value in model.graph.output]
        choice = helper.make_node("If", ["yes"], ends, then_branch=inner, else_branch=inner)
        outer = onnx.GraphProto(name=f"outer{level}", node=[choice], output=[info(name, None) for name in ends])
        if level == depth - 1:
            for attribute in choice.attribute:
                told = attribute.g if depth == 1 or where == "outer" else attribute.g.node[0].attribute[0].g
                told.value_info.append(info("x", [5, 2, 3]))
            nodes.append(onnx.NodeProto.FromString(choice.SerializeToString()))
        inner = outer
    del model.graph.node[:], model.graph.output[:]
    model.graph.node.extend(nodes)
    model.graph.output.extend(inner.output)
    model.graph.input.extend([info("keep", [7], TensorProto.BOOL), info("yes", [], TensorProto.BOOL)])
    feeds |= {"keep": np.ones(7, bool), "yes": np.array(True)}
    close(run_onnxruntime(rnn_lower.lower(model, form=form), feeds), run_onnxruntime(model, feeds))


@pytest.mark.parametrize("form", FORMS)
def test_a_name_that_becomes_a_number(form):
    """What a value is said to have the name of was no claim that a runtime could believe, before it was a size."""
    model, _ = build(Case("LSTM", 17, dynamic=True, T=5))
    _, feeds = build(Case("LSTM", 17, T=5))
    model.graph.node[0].input[0] = "x"
    model.graph.node.insert(0, helper.make_node("Compress", ["twice", "keep"], ["x"], axis=0))
    model.graph.node.insert(0, helper.make_node("Concat", ["X", "X"], ["twice"], axis=0))
    model.graph.input[0].CopyFrom(info("X", ["T", 2, 3]))
    model.graph.input.append(info("keep", ["K"], TensorProto.BOOL))
    model.graph.value_info.append(info("x", ["T", 2, 3]))
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    feeds["keep"] = np.ones(10, bool)
    lowered = rnn_lower.lower(model, form=form, dims={"T": 5})
    assert shape_of(lowered.graph.input[0])[0] == 5
    close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))


@pytest.mark.parametrize("claimed", [[None, None, 5], [None, 1, 3], [2, None, 3]])
@pytest.mark.parametrize("form", FORMS)
def test_what_is_said_of_what_bodies_take_on_the_way_to_a_node(form, claimed):
    model, _ = build(Case("RNN", 17, dynamic=True, T=5))
    _, feeds = build(Case("RNN", 17, T=5))
    branches = {
        name: helper.make_graph([helper.make_node(op, ["all"], [op])], op, [], [info(op, None)])
        for name, op in (("then_branch", "Neg"), ("else_branch", "Relu"))
    }
    model.graph.node[0].input[0] = "x"
    model.graph.node.insert(0, helper.make_node("If", ["yes"], ["x"], **branches))
    model.graph.node.insert(0, helper.make_node("Slice", ["X", "start", "end"], ["all"]))
    model.graph.initializer.append(numpy_helper.from_array(np.array([0]), "start"))
    model.graph.input.extend([info("end", [1], TensorProto.INT64), info("yes", [], TensorProto.BOOL)])
    model.graph.value_info.append(info("all", claimed))
    feeds |= {"yes": np.array(True), "end": np.array([5])}
    if form == "unroll":
        with pytest.raises(rnn_lower.UnsupportedError):
            rnn_lower.lower(model, form=form)
        return
    close(run_onnxruntime(rnn_lower.lower(model, form=form), feeds), run_onnxruntime(model, feeds))
