"""Nodes of new opsets as older ones have them: what they compute stays, and what cannot be is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from judge import close, run_onnxruntime
from onnx import helper

import rnn_lower
from rnn_lower.opset.convert import convert_opset

X = np.random.default_rng(0).normal(size=(2, 4, 6)).astype(np.float32)


def model(op_type: str, opset: int, constants: dict[str, Any], outputs: int = 1, **attributes: Any) -> onnx.ModelProto:
    """A model of one node; constants: further inputs by name, None for one that is left out."""
    names = [name if value is not None else "" for name, value in constants.items()]
    results = [f"y{k}" for k in range(outputs)]
    node = helper.make_node(op_type, ["x", *names], results, "node", **attributes)
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", 1, X.shape)],
        [helper.make_tensor_value_info(name, 7 if op_type in ("Shape", "ArgMax") else 1, None) for name in results],
        [onnx.numpy_helper.from_array(value, name) for name, value in constants.items() if value is not None],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


ONES = np.array([1, 2, 3, 4], np.float32)
SERVES = [
    ("Reshape", 17, {"shape": ints(0, -1)}, {}),
    ("Reshape", 21, {"shape": ints(0, -1)}, {"allowzero": 0}),
    ("Reshape", 17, {"shape": ints(X.size // 6, 6)}, {"allowzero": 1}),
    ("Shape", 17, {}, {}),
    ("Shape", 21, {}, {"start": 0}),
    ("Shape", 17, {}, {"start": 1}),
    ("Shape", 21, {}, {"end": -1}),
    ("Shape", 17, {}, {"start": -9, "end": 2}),
    ("Shape", 18, {}, {"start": 5}),
    ("Pad", 18, {"pads": ints(0, 0, 1, 0, 2, 0)}, {}),
    ("Pad", 18, {"pads": ints(1, 2), "value": np.float32(3), "axes": ints(-1)}, {}),
    ("Pad", 19, {"pads": ints(1, 2, 3, 1), "value": None, "axes": ints(2, 1)}, {"mode": "reflect"}),
    ("Split", 18, {}, {"num_outputs": 2, "axis": 2}),
    ("ReduceMean", 18, {"axes": ints(1)}, {"keepdims": 0}),
    ("ReduceMax", 20, {}, {}),
    ("BatchNormalization", 15, {"s": ONES, "b": ONES, "m": ONES, "v": ONES}, {}),
    ("AveragePool", 19, {}, {"kernel_shape": [2]}),
    ("ArgMax", 13, {}, {"axis": 1}),
    ("ScatterND", 18, {"i": ints(1).reshape(1, 1), "u": X[:1]}, {}),
    ("Resize", 18, {"roi": None, "scales": np.array([1, 1, 2], np.float32)}, {"mode": "nearest"}),
]
REFUSED = [
    ("Reshape", 17, {"shape": ints(0, 6)}, {"allowzero": 1}),
    ("Split", 18, {}, {"num_outputs": 4, "axis": -1}),
    ("Pad", 19, {"pads": ints(0, 0, 1, 0, 0, 1)}, {"mode": "wrap"}),
]


@pytest.mark.parametrize("opset", [9, 11, 13])
@pytest.mark.parametrize(("op_type", "current", "constants", "attributes"), SERVES)
def test_the_older_node_computes_the_same(op_type, current, constants, attributes, opset):
    first = {
        "Shape": 10 if attributes.get("start", "end" in attributes) else 9,
        "Pad": 11,
        "Resize": 13,
        "ScatterND": 11,
        "Split": 11,
    }.get(op_type, 9)
    original = model(op_type, current, constants, attributes.get("num_outputs", 1), **attributes)
    view = ir.from_proto(original)
    if opset < first:
        with pytest.raises(rnn_lower.UnsupportedError):
            convert_opset(view, opset)
        return
    convert_opset(view, opset)
    converted = ir.to_proto(view)
    assert converted.opset_import[0].version == opset
    close(run_onnxruntime(converted, {"x": X}), run_onnxruntime(original, {"x": X}))


LITERALS = {
    "value_float": (2.0, "Mul"), "value_floats": ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "Mul"),
    "value_int": (1, "Gather"), "value_ints": ([-1, 2], "Reshape"),
}  # fmt: skip


@pytest.mark.parametrize("opset", [7, 8, 9, 11])
@pytest.mark.parametrize("name", LITERALS)
def test_the_numbers_of_a_constant_become_a_tensor(name, opset):
    """Exporters write numbers into attributes, which Constant has only since opset 12."""
    content, reader = LITERALS[name]
    nodes = [helper.make_node("Constant", [], ["c"], **{name: content}), helper.make_node(reader, ["x", "c"], ["y"])]
    ends = [[helper.make_tensor_value_info(n, 1, s)] for n, s in (("x", X.shape), ("y", None))]
    graph = helper.make_graph(nodes, "g", *ends)
    original = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    view = ir.from_proto(original)
    if opset < 9 and "int" in name:  # whose Constant has no integers
        with pytest.raises(rnn_lower.UnsupportedError, match="does not accept at the new opset"):
            convert_opset(view, opset)
        return
    convert_opset(view, opset)
    converted = ir.to_proto(view)
    assert [attribute.name for attribute in converted.graph.node[0].attribute] == ["value"]
    close(run_onnxruntime(converted, {"x": X}), run_onnxruntime(original, {"x": X}))


@pytest.mark.parametrize(("op_type", "current", "constants", "attributes"), REFUSED)
def test_what_no_older_version_says_is_refused(op_type, current, constants, attributes):
    view = ir.from_proto(model(op_type, current, constants, attributes.get("num_outputs", 1), **attributes))
    before = ir.to_proto(view)
    with pytest.raises(rnn_lower.UnsupportedError, match=f"{op_type} 'node'"):
        convert_opset(view, 13)
    assert ir.to_proto(view) == before


@pytest.mark.parametrize("opset", [13, 17, 19])
def test_a_value_that_vanished_is_not_carried_along(opset):
    scales = {"roi": np.zeros(0, np.float32), "scales": np.array([1, 1, 2], np.float32)}
    old = model("Resize", 11, scales, coordinate_transformation_mode="tf_half_pixel_for_nn", mode="nearest")
    with pytest.raises(
        rnn_lower.UnsupportedError, match=r"tf_half_pixel_for_nn, which version \d+ of the operator does not accept"
    ):
        convert_opset(ir.from_proto(old), opset)
