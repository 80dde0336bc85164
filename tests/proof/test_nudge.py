"""Integers that a rounding decides are no difference; all others are."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import rnn_lower
from rnn_lower.model.document import Document
from rnn_lower.proof import nudge

H = 16


def tagger(seed: int, op: str = "GRU", ids: bool = False) -> onnx.ModelProto:
    """Gives nothing but which of its states is the largest. ids: of numbers of words, not of features."""
    rng, gates = np.random.default_rng(seed), {"RNN": 1, "GRU": 3, "LSTM": 4}[op]
    shapes = {"W": (1, gates * H, 3), "R": (1, gates * H, H), "words": (9, 3)}
    tensors = [numpy_helper.from_array(rng.uniform(-1, 1, shape).astype(np.float32), n) for n, shape in shapes.items()]
    nodes = [
        helper.make_node(op, ["x", "W", "R"], ["y"], hidden_size=H),
        helper.make_node("ArgMax", ["y"], ["tags"], axis=-1),
    ]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [20, 4, 3])
    if ids:
        nodes.insert(0, helper.make_node("Gather", ["words", "ids"], ["x"]))
        given = helper.make_tensor_value_info("ids", TensorProto.INT64, [20, 4])
    tags = helper.make_tensor_value_info("tags", TensorProto.INT64, None)
    graph = helper.make_graph(nodes, "g", [given], [tags], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("ids", [False, True])
@pytest.mark.parametrize("op", ["GRU", "LSTM", "RNN"])
@pytest.mark.parametrize("seed", range(4))
def test_a_right_model_is_the_same(op, seed, ids):
    model = tagger(seed, op, ids)
    report = rnn_lower.check(model, rnn_lower.lower(model), exact=False)
    assert report.ok, report


@pytest.mark.parametrize("tensor", ["W", "R"])
@pytest.mark.parametrize("ids", [False, True])
def test_a_wrong_one_is_not(tensor, ids):
    """By a twentieth of a few weights, which moves few of the states past each other."""
    model, wrong = tagger(0, ids=ids), tagger(0, ids=ids)
    weights = next(one for one in wrong.graph.initializer if one.name == tensor)
    array = numpy_helper.to_array(weights).copy()
    array[0, :3] *= 1.05
    weights.CopyFrom(numpy_helper.from_array(array, tensor))
    assert not rnn_lower.check(model, rnn_lower.lower(wrong), exact=False).ok


def test_what_is_decided():
    """Of two states that are the same a rounding says which is larger; of two that are not it does not."""
    model = tagger(0)
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor).copy()
        if tensor.name != "words":
            array[:] = 0
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    bias = np.zeros((1, 6 * H), np.float32)
    bias[0, 2 * H :][:3] = (1.0, 1.0, 0.5)  # the first two states are alike
    model.graph.initializer.append(numpy_helper.from_array(bias, "B"))
    model.graph.node[0].input.append("B")
    feeds = {"x": np.zeros((20, 4, 3), np.float32)}
    first, second = np.zeros((20, 1, 4, 1), np.int64), np.ones((20, 1, 4, 1), np.int64)
    assert nudge.undecided(Document(model), feeds, [first], [first]) == {}
    assert nudge.undecided(Document(model), feeds, [first], [second])[0].all()
    bias[0, 2 * H] = 1.1
    model.graph.initializer[-1].CopyFrom(numpy_helper.from_array(bias, "B"))
    assert not nudge.undecided(Document(model), feeds, [first], [second])[0].any()
