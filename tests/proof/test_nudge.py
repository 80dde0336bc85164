"""Integers that a rounding decides are no difference; all others are."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import rnn_lower
from rnn_lower.checking import perturbation
from rnn_lower.checking.runners import open_onnxruntime
from rnn_lower.modelio.document import Document

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
        if tensor.name != "words":
            tensor.CopyFrom(numpy_helper.from_array(np.zeros(tensor.dims, np.float32), tensor.name))
    bias = np.zeros((1, 6 * H), np.float32)
    bias[0, 2 * H :][:3] = (1.0, 1.0, 0.5)  # the first two states are alike
    model.graph.initializer.append(numpy_helper.from_array(bias, "B"))
    model.graph.node[0].input.append("B")
    tags = [np.full((20, 1, 4, 1), number) for number in range(3)]
    assert explained(model, tags[0], tags[1]).all()
    assert not explained(model, tags[0], tags[2]).any()
    bias[0, 2 * H] = 1.1
    model.graph.initializer[-1].CopyFrom(numpy_helper.from_array(bias, "B"))
    assert not explained(model, tags[0], tags[1]).any()


def explained(model: onnx.ModelProto, expected: np.ndarray, actual: np.ndarray) -> np.ndarray:
    nudged = onnx.ModelProto.FromString(model.SerializeToString())
    perturbation.add(nudged)
    run = open_onnxruntime(Document(nudged))
    feeds = {"x": np.zeros((20, 4, 3), np.float32)}
    return perturbation.undecided(lambda: run(feeds), [0], [expected], [actual])[0]


def test_large_integers_of_other_weights_are_a_difference():
    """A rounding moves them all, and never to where other weights would."""
    model, wrong = large_integers(0), large_integers(1)
    assert not rnn_lower.check(model, rnn_lower.lower(wrong), exact=False).ok


def large_integers(seed: int) -> onnx.ModelProto:
    model = tagger(seed)
    model.graph.initializer.append(numpy_helper.from_array(np.float32(2**27), "large"))
    del model.graph.node[-1]
    model.graph.node.append(helper.make_node("Mul", ["y", "large"], ["product"]))
    model.graph.node.append(helper.make_node("Cast", ["product"], ["tags"], to=TensorProto.INT64))
    return model


def test_outputs_that_are_sequences():
    model = tagger(0)
    del model.graph.node[-1]
    model.graph.initializer.append(numpy_helper.from_array(np.array([5, 15]), "parts"))
    model.graph.node.append(helper.make_node("SplitToSequence", ["y", "parts"], ["tags"], axis=0))
    model.graph.output[0].CopyFrom(helper.make_tensor_sequence_value_info("tags", TensorProto.FLOAT, None))
    assert rnn_lower.check(model, rnn_lower.lower(model), exact=False).ok


def test_nothing_is_nudged_where_it_would_end_the_process():
    """A GRU without steps ends onnxruntime."""
    model = tagger(0)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "T"
    wrong = rnn_lower.lower(tagger_of_ones(model))
    assert not rnn_lower.check(model, wrong, exact=False).ok
    report = rnn_lower.check(model, wrong, exact=False, inputs={"x": np.zeros((0, 4, 3), np.float32)})
    assert report.nothing_compared


def tagger_of_ones(model: onnx.ModelProto) -> onnx.ModelProto:
    other = onnx.ModelProto.FromString(model.SerializeToString())
    for tensor in other.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(np.ones(tensor.dims, np.float32), tensor.name))
    return other
