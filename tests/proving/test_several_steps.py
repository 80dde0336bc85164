"""Models that are lowered in several steps are proved."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onenode import Case, build
from onnx import TensorProto, helper, numpy_helper

import rnn_lower
from rnn_lower.proving import prover

STEPS = [{}, {"fold": True}, {"form": "loop"}, {"opset": 18}, {"fold": True, "opset": 18}, {"fuse_directions": True}]


def two_nodes() -> onnx.ModelProto:
    model, _ = build(Case("LSTM", 13, T=5, N=2, I=4, H=3, outputs=("Y",), weights="initializer", dynamic=True))
    second, _ = build(Case("LSTM", 13, T=5, N=2, I=3, H=3, outputs=("Y",), weights="initializer", dynamic=True, seed=1))
    for tensor in second.graph.initializer:
        tensor.name = f"{tensor.name} of second"
        model.graph.initializer.append(tensor)
    (node,) = second.graph.node
    node.name, node.input[:], node.output[:] = (
        "second",
        ["rows", *(f"{name} of second" for name in node.input[1:])],
        ["Z"],
    )
    model.graph.node[0].name = "first"
    axes = numpy_helper.from_array(np.array([1]), "axes")
    model.graph.initializer.append(axes)
    model.graph.node.append(helper.make_node("Squeeze", ["Y", "axes"], ["rows"]))
    model.graph.node.append(node)
    model.graph.output.append(helper.make_tensor_value_info("Z", TensorProto.FLOAT, None))
    return model


@pytest.mark.parametrize("options", STEPS, ids=str)
def test_nodes_that_an_earlier_step_lowered(options):
    """Nodes are lowered one after the other: those that the original has from before are compared as they are."""
    model = two_nodes()
    first = rnn_lower.lower(model, select=lambda node: node.name == "first", **options)
    both = rnn_lower.lower(first, **options)
    assert [node.name for node in first.graph.node if node.op_type == "LSTM"] == ["second"]
    for before, after in ((model, first), (first, both), (model, both), (first, first), (both, both)):
        copy = onnx.ModelProto.FromString(after.SerializeToString())
        assert rnn_lower.prove(before, copy)
    changed = onnx.ModelProto.FromString(both.SerializeToString())
    node = next(node for node in changed.graph.node if node.op_type == "MatMul" and node.name.startswith("first"))
    node.input[:] = list(node.input)[::-1]
    assert not rnn_lower.prove(first, changed)


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_nothing_else_changes_after_folding(step):
    """A model that was folded before is not folded again to compare it."""
    first = rnn_lower.lower(two_nodes(), select=lambda node: node.name == "first", fold=True)
    assert not prover.changes(first, rnn_lower.lower(first, **step))


@pytest.mark.parametrize("form", ["scan", "loop", "unroll"])
@pytest.mark.parametrize("again", [{}, {"form": "loop"}, {"form": "unroll"}, {"fold": True}, {"opset": 18}], ids=str)
def test_a_raised_loop_that_is_lowered_again(form, again):
    """The new loop may have the names of the one that was raised."""
    sizes = {"X[0]": 5} if "unroll" in (form, again.get("form")) else {}
    first = rnn_lower.lower(two_nodes(), select=lambda node: node.name == "first", form=form, dims=sizes)
    both = rnn_lower.lower(first, raise_loops=True, **again)
    assert not any(node.op_type == "LSTM" for node in both.graph.node)
    assert rnn_lower.prove(first, both)
    assert rnn_lower.check(first, both)
    node = next(node for node in both.graph.node if node.op_type == "MatMul" and node.name.startswith("second"))
    node.input[:] = list(node.input)[::-1]
    assert not rnn_lower.prove(first, both)
