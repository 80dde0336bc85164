"""Weights that the model's own nodes only move are constants, and those nodes go with them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from judge import close, expected, lowered, run_onnxruntime
from onenode import OPTIONAL, Case, build
from onnx import helper, numpy_helper

import rnn_lower
from rnn_lower.builder.constant_operands import MOVEMENTS, known
from rnn_lower.modelio.document import Document
from rnn_lower.proving import model_diff


def moved_by(*nodes: onnx.NodeProto, opset: int = 17, **tensors: np.ndarray) -> np.ndarray | None:
    """What the first output of the last node is known to hold."""
    graph = helper.make_graph(
        list(nodes), "g", [], [onnx.ValueInfoProto(name=nodes[-1].output[0])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in tensors.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    constant = known(Document(model).model.graph.outputs[0])
    if constant is None:
        return None
    assert constant.shape == constant.load().shape
    (judged,) = run_onnxruntime(model, {})
    np.testing.assert_array_equal(constant.load(), judged)
    return judged


A = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
BIG = np.iinfo(np.int64).max
SLICES = [
    ([1], [2], [0], [1]), ([-2], [BIG], [-1], [1]), ([0, 1], [9, 3], [1, 2], [1, 2]), ([BIG], [-BIG], [2], [-1]),
    ([3], [0], [2], [-2]), ([1], [-1], [1], [1]), ([5], [9], [0], [1]), ([-9], [1], [1], [1]),
    ([-9], [-BIG], [2], [-1]), ([-4], [-9], [1], [-2]),
]  # fmt: skip
MOVED = {
    "Cast": [({"to": onnx.TensorProto.FLOAT}, ["half"]), ({"to": onnx.TensorProto.DOUBLE}, ["A"])],
    "Concat": [({"axis": 0}, ["A", "A"]), ({"axis": -1}, ["A", "A", "A"])],
    "Identity": [({}, ["A"])],
    "Reshape": [({}, ["A", [4, 6]]), ({}, ["A", [0, -1]]), ({}, ["A", [-1]])],
    "Slice": [({}, ["A", *parts]) for parts in SLICES] + [({}, ["A", [1, 1], [2, 2]])],
    "Split": [({"axis": 1}, ["A", [1, 2]]), ({"axis": -1}, ["A", [2, 2]])],
    "Squeeze": [({}, ["one", [0]]), ({}, ["one", np.zeros(0, np.int64)]), ({}, ["one"]), ({}, ["one", [-2]])],
    "Transpose": [({}, ["A"]), ({"perm": [1, 0, 2]}, ["A"])],
    "Unsqueeze": [({}, ["A", [0]]), ({}, ["A", [1, -1]])],
}


@pytest.mark.parametrize("op_type", MOVEMENTS)
def test_each_operator_as_onnxruntime_has_it(op_type):
    for attributes, inputs in MOVED[op_type]:
        tensors = {"A": A, "one": A[:1, :1], "half": A.astype(np.float16) / 7}
        names = [one if isinstance(one, str) else f"p{k}" for k, one in enumerate(inputs)]
        tensors |= {name: np.array(one) for name, one in zip(names, inputs, strict=True) if not isinstance(one, str)}
        outputs = ["out", "rest"] if op_type == "Split" else ["out"]
        node = helper.make_node(op_type, names, outputs, **attributes)
        assert moved_by(node, **{name: tensors[name] for name in dict.fromkeys(names)}) is not None


@pytest.mark.parametrize(
    "node",
    [
        helper.make_node("Squeeze", ["A"], ["out"], axes=[0]),
        helper.make_node("Unsqueeze", ["A"], ["out"], axes=[0, 3]),
        helper.make_node("Slice", ["A"], ["out"], starts=[0, -2], ends=[1, 100], axes=[0, 2]),
        helper.make_node("Split", ["A"], ["out", "rest"], axis=2, split=[1, 3]),
    ],
    ids=lambda node: node.op_type,
)
def test_parameters_that_were_attributes(node):
    assert moved_by(node, opset=9, A=A[:1]) is not None


def test_what_is_not_followed():
    slice_of = helper.make_node("Slice", ["A", "starts", "ends"], ["out"])
    starts = helper.make_node("Add", ["zero", "zero"], ["starts"])
    assert moved_by(starts, slice_of, A=A, zero=np.array([0]), ends=np.array([1])) is None
    assert moved_by(helper.make_node("Add", ["A", "A"], ["out"]), A=A) is None
    deep = [helper.make_node("Identity", [f"v{k}" if k else "A"], [f"v{k + 1}"]) for k in range(2000)]
    assert moved_by(*deep, A=A) is None
    assert moved_by(helper.make_node("Split", ["A"], ["out", "rest"]), A=A) is None
    assert moved_by(helper.make_node("Cast", ["A"], ["out"], to=onnx.TensorProto.FLOAT16), A=A) is None  # it rounds


def test_the_check_knows_the_same_operators():
    assert set(model_diff.WEIGHT_PATH) == set(MOVEMENTS)


@pytest.mark.parametrize("place", ["main", "if", "loop", "function"])
@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_they_lie_where_other_constants_lie(op, place):
    """In the body, with no node left of what moved them; and all of it is proved."""
    case = Case(op, 17, "bidirectional", optional=OPTIONAL[op], weights="moved", place=place)
    model, feeds = lowered(case, "scan")
    close(run_onnxruntime(model, feeds), expected(case))
    original, _ = build(case)
    if place == "function":  # which has no initializers, so what it is given stays outside
        return
    assert not {f"{name}_0" for name in "WRBP"} & {tensor.name for tensor in model.graph.initializer}
    assert {node.op_type for node in model.graph.node} == {
        node.op_type for node in lowered(case.replace(weights="initializer"), "scan")[0].graph.node
    }
    assert model_diff.only_recurrent_nodes_changed((original, None), (model, None)) == []
    assert rnn_lower.prove(original, model).ok


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_weights_that_are_stored_in_float16(op):
    """As converters leave them before a node that stays in float32."""
    model, feeds = build(Case(op, 17, optional=("B",), weights="initializer"))
    for tensor in model.graph.initializer:
        narrow = numpy_helper.to_array(tensor).astype(np.float16)
        model.graph.node.insert(0, helper.make_node("Cast", [f"{tensor.name}_half"], [tensor.name], to=1))
        tensor.CopyFrom(numpy_helper.from_array(narrow, f"{tensor.name}_half"))
    result = rnn_lower.lower(model, form="scan")
    assert "Cast" not in {node.op_type for node in result.graph.node}
    assert not any(tensor.name.endswith("_half") for tensor in result.graph.initializer)
    close(run_onnxruntime(result, feeds), run_onnxruntime(model, feeds))
    assert model_diff.only_recurrent_nodes_changed((model, None), (result, None)) == []
    assert rnn_lower.prove(model, result).ok


def test_what_others_use_stays():
    model, _ = build(Case("LSTM", 17, weights="moved"))
    model.graph.node.append(helper.make_node("Neg", ["W"], ["minus"]))
    model.graph.output.append(helper.make_tensor_value_info("minus", 1, None))
    result = rnn_lower.lower(model)
    assert [node.name for node in result.graph.node if node.op_type == "Concat" and not node.metadata_props] == [""]
    assert "W_0" in {tensor.name for tensor in result.graph.initializer}
    assert "R_0" not in {tensor.name for tensor in result.graph.initializer}
    assert model_diff.only_recurrent_nodes_changed((model, None), (result, None)) == []


def test_a_node_that_is_gone_and_was_not_for_a_recurrent_one_is_seen():
    model, _ = build(Case("LSTM", 17, weights="moved"))
    model.graph.node.insert(0, helper.make_node("Identity", ["X"], ["unused"]))
    result = rnn_lower.lower(model)
    assert "unused" in {node.output[0] for node in result.graph.node}
    del result.graph.node[[node.output[0] for node in result.graph.node].index("unused")]
    assert model_diff.only_recurrent_nodes_changed((model, None), (result, None))


def test_a_change_in_what_is_moved_is_found():
    model, _ = build(Case("LSTM", 17, weights="moved", optional=("B",)))
    result = rnn_lower.lower(model)
    tensor = next(tensor for tensor in result.graph.initializer if "bias" in tensor.name)
    array = numpy_helper.to_array(tensor).copy()
    array.flat[0] = np.nextafter(array.flat[0], np.float32(9))
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    assert not rnn_lower.prove(model, result).ok


@pytest.mark.parametrize("form", ["scan", "loop", "unroll"])
def test_moved_to_a_shape_that_does_not_fit(form):
    """Whether inference can tell or not, what is known of a weight is its shape."""
    model, _ = build(Case("LSTM", 17, weights="moved"))
    joined = next(node for node in model.graph.node if node.output[0] == "R")
    joined.input.append(joined.input[0])
    with pytest.raises(rnn_lower.InvalidNodeError, match="num_directions"):
        rnn_lower.lower(model, form=form)
