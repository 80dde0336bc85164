"""Operators that onnx's evaluator computes wrongly are corrected, and never folded; onnxruntime is the judge."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from judge import run_onnxruntime
from onnx import TensorProto, helper, numpy_helper

import rnn_lower
from rnn_lower.transforms import evaluate, reference_operators
from rnn_lower.transforms.evaluate import evaluator

A = np.random.default_rng(1).standard_normal((2, 3, 4)).astype(np.float32) * 2
IMAGE = np.random.default_rng(2).standard_normal((2, 9, 2, 3)).astype(np.float32)
CHANNELS = {name: np.array([0.5, 2.0, 1.5], np.float32) for name in ("scale", "bias", "mean", "var")}

CASES = [
    *((op, opset, A, {} if axis is None else {"axis": axis}, {})
      for op in ("Softmax", "LogSoftmax", "Hardmax")
      for opset, axes in ((7, (None, 0, 1, 2)), (11, (None, 0, 1, -1)), (12, (None, 2, -2)), (13, (None, 0, 1, -1)))
      for axis in axes),
    *(("BatchNormalization", opset, A, {"epsilon": 0.1}, CHANNELS) for opset in (7, 9, 11, 13, 14, 15, 17)),
    *(("LpNormalization", opset, A, {"p": p, "axis": axis}, {})
      for opset in (7, 17) for p in (1, 2) for axis in (0, 1, -1)),
    *(("LRN", opset, IMAGE, {"size": size, "alpha": 0.3, "beta": 0.6, "bias": 1.1}, {})
      for opset in (7, 13) for size in (1, 3, 5)),
]  # fmt: skip


def model_of(op: str, opset: int, x: np.ndarray, attributes: dict, more: dict) -> onnx.ModelProto:
    node = helper.make_node(op, ["x", *more], ["y"], **attributes)
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, v.shape) for n, v in {"x": x, **more}.items()]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph([node], "g", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=7)


@pytest.mark.parametrize(("op", "opset", "x", "attributes", "more"), CASES)
def test_the_evaluator_equals_onnxruntime(op, opset, x, attributes, more):
    model = model_of(op, opset, x, attributes, more)
    (wanted,) = run_onnxruntime(model, {"x": x, **more})
    (found,) = evaluator(model).run(None, {"x": x, **more})
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("op", "opset", "attributes", "more"),
    [
        ("Softmax", 11, {}, {}), ("LogSoftmax", 12, {"axis": 0}, {}), ("Hardmax", 11, {}, {}),
        ("BatchNormalization", 13, {}, CHANNELS), ("LpNormalization", 17, {"p": 1, "axis": 1}, {}),
    ],
)  # fmt: skip
def test_constants_through_them_keep_their_values(op, opset, attributes, more):
    rng = np.random.default_rng(0)
    weights = {"a": A, **more, "W": rng.standard_normal((1, 3, 4)), "R": rng.standard_normal((1, 3, 3))}
    nodes = [
        helper.make_node(op, ["a", *more], ["k"], **attributes),
        helper.make_node("Add", ["x", "k"], ["sum"]),
        helper.make_node("RNN", ["sum", "W", "R"], ["Y"], hidden_size=3),
    ]
    initializers = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()]
    ends = [[helper.make_tensor_value_info(n, TensorProto.FLOAT, s)] for n, s in (("x", A.shape), ("Y", (2, 1, 3, 3)))]
    graph = helper.make_graph(nodes, "g", *ends, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=7)
    lowered = rnn_lower.lower(model, fold=True)
    for scale in (0.0, 1.0):
        (wanted,), (found,) = (run_onnxruntime(each, {"x": A * np.float32(scale)}) for each in (model, lowered))
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    assert rnn_lower.prove(model, lowered)


@pytest.mark.parametrize("pads", [(1, 0, 2, 0, 1, 0), (-1, 0, 0, 0, -1, 0), (0, 1, -1, 1, 0, -1)])
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
@pytest.mark.parametrize("opset", [2, 11, 18])
def test_pad_equals_onnxruntime(opset, mode, pads):
    more = {} if opset < 11 else {"pads": np.array(pads)}
    attributes = {"pads": list(pads)} if opset < 11 else {}
    node = helper.make_node("Pad", ["x", *more], ["y"], mode=mode, **attributes)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, A.shape)]
    inputs += [helper.make_tensor_value_info("pads", TensorProto.INT64, [6])] if more else []
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=7)
    (wanted,), (found,) = run_onnxruntime(model, {"x": A, **more}), evaluator(model).run(None, {"x": A, **more})
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("axis", [None, 0, 1, -2])
@pytest.mark.parametrize("values", [(0, 1), (-np.inf, 0), (-1e30, 0.5)])
@pytest.mark.parametrize("opset", [9, 11, 17])
def test_one_hot_equals_onnxruntime(opset, values, axis):
    feeds = {"i": np.array([[0, 2, -1], [1, -3, 5]]), "d": np.array(3), "v": np.array(values, np.float32)}
    node = helper.make_node("OneHot", [*feeds], ["y"], **({} if axis is None else {"axis": axis}))
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for n, v in feeds.items()
    ]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=7)
    (wanted,), (found,) = run_onnxruntime(model, feeds), evaluator(model).run(None, feeds)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("shape", [(2, 3, 5), (1, 2, 3), (2, 3, 40)])
@pytest.mark.parametrize("axis", [None, 0, -1])
def test_gather_elements_equals_onnxruntime(axis, shape):
    x = np.random.default_rng(5).standard_normal((40, 3, 40) if axis is None else (2, 3, 40)).astype(np.float32)
    size = x.shape[axis or 0]
    feeds = {"x": x, "i": np.random.default_rng(6).integers(-size, size, shape)}
    node = helper.make_node("GatherElements", [*feeds], ["y"], **({} if axis is None else {"axis": axis}))
    ends = [helper.make_tensor_value_info(n, t, v.shape) for (n, v), t in zip(feeds.items(), (1, 7), strict=True)]
    graph = helper.make_graph([node], "g", ends, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=7)
    (wanted,), (found,) = run_onnxruntime(model, feeds), evaluator(model).run(None, feeds)
    np.testing.assert_array_equal(found, wanted)
    with pytest.raises(IndexError):  # at once
        evaluator(model).run(None, {**feeds, "i": feeds["i"] + 2**40})


FOLDED = {
    "OneHot": ("<int64[3] i = {1, 0, 2}, int64 d = {3}, float[2] v = {-1e30, 0.5}>", "k = OneHot <axis = -1> (i, d, v)"),
    "ReduceMean": ("<float[0] e = {}, float[3] f = {1.0, 2.0, 3.0}>", "m = ReduceMean <keepdims = 0> (e) k = Add (f, m)"),
    "ReduceSum": (
        "<int32[3] e = {1073741824, 1073741824, 1073741824}>", "s = ReduceSum <keepdims = 0> (e) k = Cast <to = 1> (s)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("op", FOLDED)
def test_constants_that_the_evaluator_gets_wrong_keep_their_values(op):
    constants, nodes = FOLDED[op]
    weights = f"float[1,3,3] W = {{{', '.join(['0.5'] * 9)}}}, float[1,3,3] R = {{{', '.join(['0.25'] * 9)}}}"
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]> g (float[2,3,3] x) => (float[2,1,3,3] Y)
        {constants.replace(">", f", {weights}>")} {{ {nodes} sum = Max (x, k) Y = RNN <hidden_size = 3> (sum, W, R) }}""")
    lowered = rnn_lower.lower(model, fold=True)
    feeds = {"x": A[:, :, :3]}
    (wanted,), (found,) = (run_onnxruntime(each, feeds) for each in (model, lowered))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    assert rnn_lower.prove(model, lowered)


def test_no_corrected_operator_is_folded_by_onnxscript():
    corrected = {operator.__name__ for operator in reference_operators.OPERATORS}
    # Of Slice, Squeeze, Unsqueeze and Pad, only uses that are right are folded; onnxscript never folds DequantizeLinear.
    assert corrected & evaluate.TRUSTED == {"Slice", "Squeeze", "Unsqueeze", "DequantizeLinear", "Pad"}
    assert corrected >= evaluate.CORRECTED


QUANTIZED = np.random.default_rng(4).integers(-128, 128, (2, 8, 3))


@pytest.mark.parametrize(
    ("opset", "per_axis"), [*((opset, False) for opset in (10, 11, 17, 23)), *((opset, True) for opset in (13, 19, 21))]
)
@pytest.mark.parametrize("kind", ["int8", "uint8", "int32"])
def test_dequantize_linear_equals_onnxruntime_at_every_opset(opset, kind, per_axis):
    x = QUANTIZED.astype(kind)
    scale = np.linspace(0.01, 0.03, 8).astype(np.float32) if per_axis else np.array(0.02, np.float32)
    feeds = {"x": x, "scale": scale, "zero": np.full(scale.shape, 0 if kind == "int32" else 3, kind)}
    node = helper.make_node("DequantizeLinear", [*feeds], ["y"], **({"axis": -2} if per_axis else {}))
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for n, v in feeds.items()
    ]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, x.shape)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=7)
    (wanted,), (found,) = run_onnxruntime(model, feeds), evaluator(model).run(None, feeds)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize("opset", [11, 17, 21])
@pytest.mark.parametrize(
    "options", [{"fold": True}, {"fold": True, "target": "tract"}, {"legalize_all": True}], ids=str
)
def test_quantization_does_not_keep_a_model_from_its_proof(opset, options):
    """Narrow integers reach the evaluator and shape inference in their own type."""
    rng = np.random.default_rng(5)
    constants = {
        "K8": np.array([[[1]], [[-2]]], np.int8).repeat(2, 1),
        "W8": rng.integers(-128, 128, (1, 16, 3)).astype(np.int8), "scale": np.float32(0.01), "zero": np.int8(0),
        "R32": rng.standard_normal((1, 16, 4)).astype(np.float32) * 2,  # some of it saturates
    }  # fmt: skip
    nodes = [
        helper.make_node("DequantizeLinear", ["W8", "scale", "zero"], ["W"]),
        helper.make_node("QuantizeLinear", ["R32", "scale", "zero"], ["R8"]),
        helper.make_node("DequantizeLinear", ["R8", "scale", "zero"], ["R"]),
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["x8"]),
        helper.make_node("DequantizeLinear", ["x8", "scale", "zero"], ["rounded"]),
        helper.make_node("ConvInteger", ["x8", "K8", "zero"], ["sums"]),
        helper.make_node("Cast", ["sums"], ["more"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["rounded", "more"], ["input"]),
        helper.make_node("LSTM", ["input", "W", "R"], ["Y"], hidden_size=4),
    ]
    ends = [
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s)] for n, s in (("x", (5, 2, 3)), ("Y", (5, 1, 2, 4)))
    ]
    graph = helper.make_graph(
        nodes, "g", *ends, [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=7)
    target = {"target": "onnxruntime"} if "legalize_all" in options else {}
    lowered = rnn_lower.lower(model, **options, **target)
    x = rng.standard_normal((5, 2, 3)).astype(np.float32)
    (wanted,), (found,) = (run_onnxruntime(each, {"x": x}) for each in (model, lowered))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    assert rnn_lower.prove(model, lowered)
