"""What tells of the stream's end, or of its length, is known for it behind whatever nodes come after."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import rnn_lower
from rnn_lower import RnnLowerError

H = 3
RNG = np.random.default_rng(0)
CONSTANTS = {
    "W": RNG.uniform(-0.5, 0.5, (1, 3 * H, H)).astype(np.float32),
    "R": RNG.uniform(-0.5, 0.5, (1, 3 * H, H)).astype(np.float32),
    "K": RNG.uniform(-0.5, 0.5, (H, H, 3)).astype(np.float32),
    "K_of_two": RNG.uniform(-0.5, 0.5, (H, H, 2)).astype(np.float32),
    "zero": np.array(0), "one": np.array(1), "last": np.array(-1), "zeros": np.array([0]), "ones": np.array([1]),
    "minus": np.array([-1]), "far": np.array([2**31 - 1]), "two_zeros": np.array([[0]]),
}  # fmt: skip


def node(op: str, inputs: str, outputs: str, **attributes: object) -> onnx.NodeProto:
    named = {"name": f"{op}_{outputs.split()[-1]}", **attributes}
    return helper.make_node(op, inputs.split(), [out.strip("-") for out in outputs.split()], **named)


def model(nodes: list[onnx.NodeProto], x: list[object], condition: bool = False) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)]
    inputs += [helper.make_tensor_value_info("c", TensorProto.BOOL, [])] * condition
    weights = [numpy_helper.from_array(array, name) for name, array in CONSTANTS.items()]
    graph = helper.make_graph(
        nodes, "g", inputs, [helper.make_tensor_value_info("Z", TensorProto.FLOAT, None)], weights
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


LISTED = {
    "gather": [node("Gather", "u zero", "g", axis=0)],
    "slice": [node("Slice", "u zeros ones zeros", "s"), node("Squeeze", "s zeros", "g")],
    "concat": [node("Concat", "u u", "s", axis=0), node("Gather", "s one", "g", axis=0)],
}


@pytest.mark.parametrize("way", LISTED)
def test_a_list_of_sizes_in_a_list_is_none_of_sizes(way):
    before = [node("Transpose", "x", "X", perm=[1, 0, 2]), node("Shape", "x", "n"), node("Unsqueeze", "n zeros", "u")]
    after = [node("Cast", "g", "f", to=1), node("GRU", "X W R", "Y", hidden_size=H), node("Add", "Y f", "Z")]
    with pytest.raises(RnnLowerError, match="length of the stream"):
        rnn_lower.stream(model([*before, *LISTED[way], *after], [2, "T", H]))


def gru(last: str, name: str) -> onnx.NodeProto:
    return node("GRU", "X W R", f"- {last}", hidden_size=H, name=name)


def branch(last: str, name: str) -> onnx.GraphProto:
    return helper.make_graph([gru(last, name)], name, [], [helper.make_tensor_value_info(last, 1, None)])


ENDS = {
    "final state": ([gru("Z", "gru")], False),
    "final state, in branches": (
        [node("If", "c", "Z", then_branch=branch("a", "yes"), else_branch=branch("b", "no"))],
        True,
    ),
    "a slice": ([node("GRU", "X W R", "Y", hidden_size=H), node("Slice", "Y minus far zeros", "Z")], False),
    "what is gathered": ([node("GRU", "X W R", "Y", hidden_size=H), node("Gather", "Y last", "Z", axis=0)], False),
    "through more": ([gru("h", "gru"), node("Squeeze", "h zeros", "q"), node("Neg", "q", "Z")], False),
}


@pytest.mark.parametrize("pads", [[1, 1], [0, 2]], ids=["centred", "behind"])
@pytest.mark.parametrize("way", ENDS)
def test_the_end_of_a_stream_that_lacks_frames_is_refused(way, pads):
    nodes, condition = ENDS[way]
    # With two and padding behind no frame comes late, and the last one is another.
    kernel, strides = ("K", [1]) if pads[0] else ("K_of_two", [2])
    before = [node("Conv", f"x {kernel}", "k", pads=pads, strides=strides), node("Transpose", "k", "X", perm=[2, 0, 1])]
    with pytest.raises(RnnLowerError, match=r"look ahead|delayed"):
        rnn_lower.stream(model([*before, *nodes], [1, H, "T"], condition), delay=True)


@pytest.mark.parametrize("op", ["Squeeze", "Unsqueeze", "ReduceSum", "Tile", "Slice", "Pad"])
def test_axes_that_are_no_list_are_refused(op):
    inputs = {"Slice": "x two_zeros two_zeros", "Tile": "x two_zeros", "Pad": "x two_zeros"}.get(op, "x two_zeros")
    nodes = [node(op, inputs, "y"), node("Transpose", "x", "X", perm=[1, 0, 2]), gru("h", "gru"), node("Neg", "h", "Z")]
    with pytest.raises(RnnLowerError):
        rnn_lower.stream(model([*nodes, node("Neg", "y", "Q")], [2, "T", H]))


PLANS = ["5", '"x"', "[]", '{"schema": 1, "states": [], "symbols": []}', "[" * 100_000, "null", "{}"]


@pytest.mark.parametrize("text", PLANS, ids=[text[:12] for text in PLANS])
def test_a_damaged_plan_is_told(text):
    made = rnn_lower.stream(model([node("Transpose", "x", "X", perm=[1, 0, 2]), gru("Z", "gru")], [2, "T", H]))
    next(one for one in made.metadata_props if one.key == "rnn_lower.stream").value = text
    with pytest.raises(RnnLowerError, match=r"is damaged|another version"):
        rnn_lower.StreamingSession(made)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"every": 1', '"every": 0'),
        ('"every": 1', '"every": "1"'),
        ('"x": 1', '"z": 1'),
        ('"first": {"shape": [1, 1, ', '"first": {"shape": [1, 3, '),
    ],
)
def test_a_plan_of_another_model_is_told(old, new):
    made = rnn_lower.stream(model([node("Transpose", "x", "X", perm=[1, 0, 2]), gru("Z", "gru")], ["N", "T", H]))
    entry = next(one for one in made.metadata_props if one.key == "rnn_lower.stream")
    assert old in entry.value
    entry.value = entry.value.replace(old, new)
    with pytest.raises(RnnLowerError, match="is damaged"):
        rnn_lower.StreamingSession(made)
