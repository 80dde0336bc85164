"""DynamicQuantizeLSTM of onnxruntime: the same numbers as its kernel, or floats where requested."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import onnxruntime.quantization
import pytest
from cpu import exact_products
from onnx import TensorProto, helper, numpy_helper
from quantized import FORMS, Quantized, build, difference, random_case, run

import rnn_lower
from rnn_lower import cli
from rnn_lower.proving.exact import reference

PLAIN = Quantized(0)


@pytest.mark.parametrize("seed", range(60))
def test_random_nodes_equal_the_kernel(seed):
    assert difference(random_case(seed), FORMS[seed % 3]) <= 1e-5


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("outputs", [("Y",), ("Y_h", "Y_c")], ids=str)
def test_rows_of_different_lengths(form, outputs):
    """A row that has ended, or is reversed within its length, changes the scale of the others."""
    for direction in ("forward", "reverse", "bidirectional"):
        case = dataclasses.replace(PLAIN, N=4, T=7, lengths=True, direction=direction, outputs=outputs, seed=3)
        assert difference(case, form) <= 1e-5


def two_layers(tmp_path, input_size: int = 16) -> onnx.ModelProto:
    """A model of two LSTM nodes, quantized by onnxruntime, whose nodes share zero points."""
    rng = np.random.default_rng(0)
    H, held, nodes = 12, {}, []
    for layer, (source, size) in enumerate((("x", input_size), ("y0", H))):
        shapes = {"W": (1, 4 * H, size), "R": (1, 4 * H, H), "B": (1, 8 * H)}
        held.update({f"{k}{layer}": rng.normal(0, 0.3, s).astype(np.float32) for k, s in shapes.items()})
        outputs = [f"all{layer}", f"h{layer}", f"c{layer}"]
        inputs = [source, *(f"{name}{layer}" for name in "WRB")]
        nodes.append(helper.make_node("LSTM", inputs, outputs, name=f"lstm{layer}", hidden_size=H))
        nodes.append(helper.make_node("Squeeze", [f"all{layer}", "one"], [f"y{layer}"], name=f"squeeze{layer}"))
    held["one"] = np.array([1])
    graph = helper.make_graph(
        nodes, "layers", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["T", "N", input_size])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y1", "h0", "c1")],
        [numpy_helper.from_array(array, name) for name, array in held.items()],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "f.onnx")
    onnxruntime.quantization.quantize_dynamic(tmp_path / "f.onnx", tmp_path / "q.onnx")
    model = onnx.load(tmp_path / "q.onnx")
    quantized = [node for node in model.graph.node if node.op_type == "DynamicQuantizeLSTM"]
    assert len(quantized) == 2
    for node in quantized:  # as other tools write them: one zero point for all
        node.input[9] = node.input[11] = quantized[0].input[9]
    return model


@exact_products
@pytest.mark.parametrize("form", ["scan", "loop"])
def test_two_layers_with_a_shared_zero_point(tmp_path, form):
    model = two_layers(tmp_path)
    lowered = rnn_lower.lower(model, form=form)
    assert not any(node.domain for node in lowered.graph.node)
    feeds = {"x": np.random.default_rng(1).normal(size=(9, 3, 16)).astype(np.float32)}
    for a, b in zip(run(model, feeds), run(lowered, feeds), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)
    int8 = [t for t in lowered.graph.initializer if t.data_type == TensorProto.INT8 and len(t.dims) > 1]
    assert len(int8) == 4, "the weights stay integers"
    evaluated = onnx.reference.ReferenceEvaluator(lowered).run(None, feeds)
    for a, b in zip(run(model, feeds), evaluated, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)


def test_on_openvino(tmp_path):
    openvino = pytest.importorskip("openvino")
    model = two_layers(tmp_path)
    lowered = rnn_lower.lower(model, target="openvino")
    feeds = {"x": np.random.default_rng(1).normal(size=(9, 3, 16)).astype(np.float32)}
    onnx.save(lowered, tmp_path / "l.onnx")
    results = openvino.Core().compile_model(tmp_path / "l.onnx", "CPU")(feeds)
    for a, b in zip(run(model, feeds), results.values(), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=0.01)  # it rounds otherwise: a step of 8 bits is 0.024


@pytest.mark.parametrize("seed", range(12))
def test_dequantized_is_the_lstm_of_the_weights_as_floats(seed):
    case = dataclasses.replace(random_case(seed), opset=17)
    model, feeds = build(case)
    lowered = rnn_lower.lower(model, dequantize=True)
    assert not {node.op_type for node in lowered.graph.node} & {"MatMulInteger", "DynamicQuantizeLinear"}
    expected = onnx.reference.ReferenceEvaluator(model, new_ops=reference.OPERATORS).run(None, feeds)
    for a, b in zip(expected, run(lowered, feeds), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@exact_products
@pytest.mark.parametrize("target", ["tract", "onnx2torch"])
def test_a_target_without_its_operators_gets_floats_on_request(target):
    model, feeds = build(PLAIN)
    with pytest.raises(rnn_lower.UnsupportedError, match="add dequantize, which computes with the weights as floats"):
        rnn_lower.lower(model, target=target)
    lowered = rnn_lower.lower(model, target=target, dequantize=True)
    assert not {node.op_type for node in lowered.graph.node} & {"MatMulInteger", "DynamicQuantizeLinear"}
    for a, b in zip(run(model, feeds), run(lowered, feeds), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=0.05)  # a step of 8 bits is 0.024


def test_what_was_dequantized_is_raised(tmp_path):
    lowered = rnn_lower.lower(two_layers(tmp_path), dequantize=True)
    raised = rnn_lower.raise_loops(lowered)
    assert [node.op_type for node in raised.graph.node if node.op_type in ("LSTM", "Scan", "Loop")] == ["LSTM", "LSTM"]


def test_the_check_runs_the_kernel_and_a_proof_is_out_of_scope(tmp_path, capsys):
    onnx.save(two_layers(tmp_path), tmp_path / "m.onnx")
    command = ["lower", str(tmp_path / "m.onnx"), str(tmp_path / "o.onnx")]
    assert cli.main([*command, "--check"]) == cli.DONE
    assert "0 of 2 replaced nodes proved" in capsys.readouterr().out
    assert cli.main([*command, "--prove"]) == cli.DIFFERENT
    assert "out of scope: the operands of its matrix products are rounded to 8 bits" in capsys.readouterr().out


def test_what_is_impossible_is_refused(tmp_path):
    model, _ = build(dataclasses.replace(PLAIN, opset=10))
    with pytest.raises(rnn_lower.UnsupportedError, match="opset 10 has no DynamicQuantizeLinear"):
        rnn_lower.lower(model)
    assert rnn_lower.lower(model, dequantize=True)
    with pytest.raises(rnn_lower.UnsupportedError, match="as_function does not support DynamicQuantizeLSTM"):
        rnn_lower.lower(build(PLAIN)[0], as_function=True)
    del model.graph.node[0].input[8:]
    with pytest.raises(rnn_lower.InvalidNodeError, match="input W_scale is missing"):
        rnn_lower.lower(model)


def test_onnxruntime_keeps_its_own_operator():
    kept = rnn_lower.lower(build(PLAIN)[0], target="onnxruntime", keep_native=True)
    assert [node.op_type for node in kept.graph.node] == ["DynamicQuantizeLSTM"]


def test_a_report_shows_a_quantized_node(tmp_path):
    model, _ = build(Quantized(0))
    onnx.save(model, tmp_path / "model.onnx")
    assert cli.main(["report", str(tmp_path / "model.onnx"), "-o", str(tmp_path / "page.html")]) in (
        cli.DONE,
        cli.DIFFERENT,
    )
    assert "DynamicQuantizeLSTM" in (tmp_path / "page.html").read_text()
