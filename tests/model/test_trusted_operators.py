"""Onnx's evaluator computes constants only with operators for which it agrees with onnxruntime, and windows correctly."""

from __future__ import annotations

import itertools
from collections import defaultdict

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from judge import run_onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.case.node import collect_testcases

import rnn_lower
from rnn_lower.transforms.certainty import is_certain
from rnn_lower.transforms.evaluate import TRUSTED, evaluator


@pytest.fixture(scope="module")
def own_cases():
    """The test cases of onnx, by operator."""
    cases = defaultdict(list)
    for case in collect_testcases(None):
        if case.model is not None and len(case.model.graph.node) == 1 and case.model.graph.node[0].domain == "":
            cases[case.model.graph.node[0].op_type].append(case)
    return cases


@pytest.mark.parametrize("op", sorted(TRUSTED))
def test_trusted_operators_compute_what_onnxruntime_does(op, own_cases):
    """On the cases that onnx has for them, of which there is at least one."""
    compared = 0
    for case, opset in itertools.product(own_cases[op], (None, 21, 13)):  # onnxruntime does not run the newest opsets
        names, operands = (value.name for value in case.model.graph.input), case.data_sets[0][0]
        feeds = {
            name: numpy_helper.to_array(x) if isinstance(x, onnx.TensorProto) else np.asarray(x)
            for name, x in zip(names, operands, strict=True)
        }
        case.model.opset_import[0].version = opset or case.model.opset_import[0].version
        case.model.ir_version = 8 if opset else case.model.ir_version
        try:
            wanted = run_onnxruntime(case.model, feeds)
        except Exception:  # there is no kernel for these types, or another version of the operator
            continue
        found = evaluator(case.model).run(None, feeds)
        for a, b in zip(wanted, found, strict=True):
            b = np.asarray(b)
            b = b if a.dtype.kind == b.dtype.kind or a.dtype != np.uint8 else b.view(np.uint8)  # of 8-bit floats
            np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5, err_msg=case.name)
        compared += 1
    assert compared


WINDOWS = ("MaxPool", "AveragePool", "LpPool", "GlobalMaxPool", "GlobalLpPool", "ConvTranspose")


def window_model(op, rng):
    """A random pool or transposed convolution, without uses where onnxruntime does not follow ONNX."""
    rank, opset = int(rng.integers(1, 4)), int(rng.choice([11, 13, 18, 19, 21, 22]))
    x = rng.integers(-9, 10, (int(rng.integers(1, 3)), 4, *rng.integers(5, 9, rank))).astype(np.float32)
    kernel, feeds = [int(n) for n in rng.integers(1, 4, rank)], {"x": x}
    content = {} if op.startswith("Global") else {"strides": [int(rng.integers(1, k + 2)) for k in kernel]}
    has_dilations = {"MaxPool": 11, "ConvTranspose": 11, "AveragePool": 19, "LpPool": 18}.get(op, 99) <= opset
    if op.endswith("Pool") and not op.startswith("Global"):
        content["kernel_shape"] = kernel
        if rng.integers(2) and (op != "LpPool" or opset >= 18):
            content["ceil_mode"] = 1
    if has_dilations and rng.integers(2):
        content["dilations"] = [int(n) for n in rng.integers(1, 3, rank)]
    elif not op.startswith("Global") and rng.integers(2):
        content["auto_pad"] = str(rng.choice(["SAME_UPPER", "SAME_LOWER", "VALID"]))
    if not op.startswith("Global") and "auto_pad" not in content:
        content["pads"] = [int(rng.integers(0, k)) for k in (*kernel, *kernel)]
    if op == "AveragePool":
        content["count_include_pad"] = int(rng.integers(2))
    if op == "ConvTranspose" and "auto_pad" not in content and rng.integers(2):
        content["output_padding"] = [int(rng.integers(0, s)) for s in content["strides"]]
    if op == "LpPool":
        content["p"] = int(rng.integers(1, 4))
    if op == "ConvTranspose":
        content["group"] = int(rng.choice([1, 2]))
        feeds["w"] = rng.integers(-3, 4, (4, int(rng.integers(1, 3)), *kernel)).astype(np.float32)
        feeds["b"] = rng.integers(-9, 10, feeds["w"].shape[1] * content["group"]).astype(np.float32)
    outputs = ["y", "i"] if op == "MaxPool" and rng.integers(2) else ["y"]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape) for name, array in feeds.items()]
    types = {"y": TensorProto.FLOAT, "i": TensorProto.INT64}
    graph = helper.make_graph(
        [helper.make_node(op, list(feeds), outputs, **content)], "g", ends,
        [helper.make_tensor_value_info(name, types[name], None) for name in outputs],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), feeds


@pytest.mark.parametrize("op", WINDOWS)
def test_windows_are_those_of_onnxruntime(op):
    rng, compared = np.random.default_rng(7), 0
    for _ in range(60):
        model, feeds = window_model(op, rng)
        try:
            wanted = run_onnxruntime(model, feeds)
        except Exception:  # a pool of nothing but padding, or of other sizes than onnxruntime supports
            continue
        for a, b in zip(wanted, evaluator(model).run(None, feeds), strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-4, err_msg=str(model.graph.node[0]))
        compared += 1
    assert compared > 40


@pytest.mark.parametrize("op", WINDOWS)
def test_windows_of_constants_are_not_folded(op):
    rng = np.random.default_rng(3)
    for _ in range(4):
        model, feeds = window_model(op, rng)
        del model.graph.input[:]
        model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in feeds.items())
        weights = {"W": (1, 3, 2), "R": (1, 3, 3)}
        model.graph.initializer.extend(
            numpy_helper.from_array(rng.uniform(-1, 1, shape).astype(np.float32), name)
            for name, shape in weights.items()
        )
        model.graph.node.append(helper.make_node("RNN", ["X", "W", "R"], ["Y"], hidden_size=3, name="rnn"))
        for side, name, shape in ((model.graph.input, "X", (2, 1, 2)), (model.graph.output, "Y", (2, 1, 1, 3))):
            side.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        lowered = rnn_lower.lower(model, fold=True)
        assert op in {node.op_type for node in lowered.graph.node}
        x = {"X": rng.uniform(-1, 1, (2, 1, 2)).astype(np.float32)}
        try:
            wanted = run_onnxruntime(model, x)
        except Exception:  # it does not support every version of the operator
            continue
        for a, b in zip(wanted, run_onnxruntime(lowered, x), strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-5)
        assert rnn_lower.prove(model, lowered)


@pytest.mark.parametrize(
    ("op", "inputs", "attributes"),
    [("Cast", 1, {}), ("Cast", 1, {"to": 99}), ("CastLike", 1, {}), ("DequantizeLinear", 1, {}), ("Slice", 5, {})],
)
def test_invalid_nodes_are_uncertain(op, inputs, attributes):
    node = ir.node(op, [ir.Value(name=f"x{k}") for k in range(inputs)], attributes)
    operands = [np.ones(1, np.int8), *(np.array([number]) for number in (7, -9, 5, -1))]
    assert not is_certain(node, operands[:inputs])
