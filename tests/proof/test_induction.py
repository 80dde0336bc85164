"""A step is compared from any states of the node, so that no state can count the steps unseen."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from judge import marked, run_onnxruntime
from onenode import Case, build
from onnx import numpy_helper

import rnn_lower

HIDDEN = 4


def counting(op: str = "RNN", activations: tuple[str, ...] = ("Relu",), **more) -> onnx.ModelProto:
    """A node whose units count the steps themselves: X has no weights, and each unit adds its bias to itself."""
    more = {"optional": ("B",), **more}
    case = Case(op, 17, dynamic=True, outputs=("Y",), H=HIDDEN, activations=activations, **more)
    model, _ = build(case)
    for tensor in model.graph.initializer:
        shape = numpy_helper.to_array(tensor).shape
        held = {
            "W": np.zeros(shape),
            "R": np.resize(np.eye(HIDDEN), shape),
            "B": np.resize([1] * HIDDEN + [0] * HIDDEN, shape),
        }
        tensor.CopyFrom(numpy_helper.from_array(held[tensor.name].astype(np.float32), tensor.name))
    return model


@pytest.mark.parametrize("form", ["scan", "loop"])
@pytest.mark.parametrize(
    "more",
    [
        {}, {"activations": ("Affine",), "alpha": (1.0,), "beta": (1.0,)}, {"direction": "bidirectional", "activations": ("Relu", "Relu")},
        {"optional": ("B", "sequence_lens"), "lengths_as": "input"},
    ],
)  # fmt: skip
def test_a_node_may_count_steps(form, more):
    model = counting(**more)
    assert rnn_lower.prove(model, rnn_lower.lower(model, form=form)).ok


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("fuse", [False, True])
def test_equal_states_are_told_apart(op, direction, fuse):
    """Without weights and biases, h and c of all directions are zero at every step."""
    model, _ = build(Case(op, 17, dynamic=True, outputs=("Y",), direction=direction))
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        tensor.CopyFrom(numpy_helper.from_array(np.zeros_like(array), tensor.name))
    assert rnn_lower.prove(model, rnn_lower.lower(model, fuse_directions=fuse)).ok


@pytest.mark.parametrize("form", ["scan", "loop"])
def test_what_a_counting_unit_decides_is_not_proved(form):
    model = counting()
    lowered = rnn_lower.lower(model, form=form)
    producer = next(each for each in lowered.graph.node if "Y" in each.output)
    producer.output[list(producer.output).index("Y")] = "right"
    lowered.graph.initializer.append(numpy_helper.from_array(np.float32(45), "limit"))
    lowered.graph.node.extend([
        marked("Sub", ["right", "limit"], ["left"]), marked("Relu", ["left"], ["late"]), marked("Add", ["right", "late"], ["Y"]),
    ])  # fmt: skip
    feeds = {"X": np.zeros((60, 2, model.graph.input[0].type.tensor_type.shape.dim[2].dim_value), np.float32)}
    (wanted,), (found,) = run_onnxruntime(model, feeds), run_onnxruntime(lowered, feeds)
    assert np.array_equal(wanted[:45], found[:45])
    assert not np.allclose(wanted, found)
    assert "random states" in str(rnn_lower.prove(model, lowered).reasons)


def with_other_state(lowered: onnx.ModelProto, begin: str, after: list[onnx.NodeProto]) -> onnx.NodeProto:
    """Let the Scan carry "other", which becomes "next" by these nodes; returns the last node of its body."""
    scan = next(node for node in lowered.graph.node if node.op_type == "Scan")
    body = next(attribute.g for attribute in scan.attribute if attribute.name == "body")
    info = onnx.helper.make_tensor_value_info
    body.input.insert(1, info("other", onnx.TensorProto.FLOAT, [None, HIDDEN]))
    body.output.insert(1, info("next", onnx.TensorProto.FLOAT, [None, HIDDEN]))
    last = body.node.pop()
    body.node.extend([*after, last])
    scan.input.insert(1, begin)
    scan.output.insert(1, "other/end")
    return body.node[-1]


def test_a_state_that_follows_another_one_with_a_growing_distance():
    """It begins one below h, and grows by one more than h, so that it equals h only after the first step."""
    model, _ = build(Case("RNN", 17, dynamic=True, outputs=("Y",), H=HIDDEN))
    lowered = rnn_lower.lower(model)
    scan = next(node for node in lowered.graph.node if node.op_type == "Scan")
    body = next(attribute.g for attribute in scan.attribute if attribute.name == "body")
    h, new, zeros = body.input[0].name, body.output[0].name, scan.input[0]
    place = next(place for place, node in enumerate(lowered.graph.node) if zeros in node.output)
    below = marked("Sub", [zeros, "one"], ["below"])
    after = [
        marked("Sub", ["other", h], ["distance"]), marked("Add", ["distance", "one"], ["count"]), marked("Add", [new, "count"], ["next"]),
        marked("Sub", ["count", "limit"], ["left"]), marked("Relu", ["left"], ["late"]), marked("Add", [new, "late"], ["seen"]),
    ]  # fmt: skip
    with_other_state(lowered, "below", after).input[0] = "seen"
    lowered.graph.node.insert(place + 1, below)
    numbers = {"one": np.float32(1), "limit": np.float32(20)}
    lowered.graph.initializer.extend(numpy_helper.from_array(number, name) for name, number in numbers.items())
    feeds = {"X": np.ones((30, 2, model.graph.input[0].type.tensor_type.shape.dim[2].dim_value), np.float32)}
    (wanted,), (found,) = run_onnxruntime(model, feeds), run_onnxruntime(lowered, feeds)
    assert np.allclose(wanted[:20], found[:20], atol=1e-4)
    assert not np.allclose(wanted, found, atol=1e-1)
    assert "no state of the recurrent node" in str(rnn_lower.prove(model, lowered).reasons)


@pytest.mark.parametrize("free", [True, False])
def test_a_state_that_counts_in_rows_that_have_ended(free):
    case = Case(
        "RNN", 17, N=1, dynamic=free, outputs=("Y_h",), H=HIDDEN, optional=("sequence_lens",), lengths_as="input"
    )
    model, _ = build(case)
    if not free:
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "T"
    lowered = rnn_lower.lower(model)
    assert rnn_lower.prove(model, lowered).ok
    scan = next(node for node in lowered.graph.node if node.op_type == "Scan")
    body = next(attribute.g for attribute in scan.attribute if attribute.name == "body")
    kept = next(node for node in body.node if body.output[0].name in node.output)
    assert kept.op_type == "Where"
    after = [
        marked("Add", ["other", "one"], ["more"]),
        marked("Where", [kept.input[0], kept.input[1], "more"], ["next"]),
    ]
    with_other_state(lowered, scan.input[0], after)
    lowered.graph.initializer.append(numpy_helper.from_array(np.float32(1), "one"))
    assert "no state of the recurrent node" in str(rnn_lower.prove(model, lowered).reasons)
