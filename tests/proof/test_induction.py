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
