"""Q/DQ around products of bodies, which no stock quantizer reaches."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from cpu import exact_products
from judge import close, run_onnxruntime
from onenode import Case, build
from onnx import TensorProto, helper
from paths import ROOT
from quantized_models import difference, matrices, products, recurrent, run, samples

import rnn_lower
from rnn_lower.checking.samples import Samples

FORMS = ["scan", "loop", "unroll"]


@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form(form, op, direction, lengths):
    lowered = rnn_lower.lower(recurrent(op, direction=direction, lengths=lengths), form=form)
    quantized = rnn_lower.quantize(lowered, samples(lowered))
    onnx.checker.check_model(quantized)
    assert products(quantized) == (products(lowered)[0], 0)
    assert {tensor.data_type for tensor in matrices(quantized)} == {TensorProto.INT8}
    assert len(matrices(quantized)) == len(matrices(lowered))
    assert difference(lowered, quantized, samples(lowered, 4, 2)) < (0.1 if op == "RNN" else 0.05)
    if form != "unroll":
        assert quantized.ByteSize() < 0.35 * lowered.ByteSize()


@pytest.mark.parametrize("form", FORMS)
def test_types(form):
    """Finer ones come closer."""
    lowered = rnn_lower.lower(recurrent("LSTM"), form=form)
    inputs, others = samples(lowered), samples(lowered, 4, 2)

    def error(*types, **options):
        quantized = rnn_lower.quantize(lowered, inputs, *types, **options)
        return difference(lowered, quantized, others)

    assert error("int8", "uint16", None, per_channel=True) < error("int8", "uint8", None)
    assert error("int8", "uint8", "uint16") < error("int8", "uint8", "uint8") + 1e-3
    assert error("uint8", "int16", "int16") < 0.05


@pytest.mark.parametrize("opset", [12, 17, 20])
def test_sixteen_bits_need_an_opset(opset):
    lowered = rnn_lower.lower(recurrent("LSTM", H=16, I=4, opset=opset))
    with pytest.raises(rnn_lower.UnsupportedError, match="cell='uint16' needs opset 21; lower the model with opset=21"):
        rnn_lower.quantize(lowered, samples(lowered))
    for cell in ("uint8", None):
        quantized = rnn_lower.quantize(lowered, samples(lowered), cell=cell)
        assert difference(lowered, quantized, samples(lowered, 4, 2)) < 0.2
    gru = rnn_lower.lower(recurrent("GRU", H=16, I=4, opset=opset))
    rnn_lower.quantize(gru, samples(gru))  # has no cell state


def test_int8_activations():
    for opset in (17, 20):
        lowered = rnn_lower.lower(recurrent("LSTM", opset=opset))
        quantized = rnn_lower.quantize(lowered, samples(lowered), activations="int8", cell="int8")
        assert difference(lowered, quantized, samples(lowered, 4, 2)) < 0.1
    with pytest.raises(rnn_lower.UnsupportedError, match="opset=20"):
        rnn_lower.quantize(rnn_lower.lower(recurrent("LSTM")), samples(lowered), activations="int8")


def test_what_cannot_be():
    model = recurrent("GRU", H=16, I=4)
    lowered = rnn_lower.lower(model)
    with pytest.raises(rnn_lower.RnnLowerError, match="activations must be one of"):
        rnn_lower.quantize(lowered, samples(model), activations="int4")
    with pytest.raises(rnn_lower.RnnLowerError, match="weights must be one of int8, uint8, not 'int16'"):
        rnn_lower.quantize(lowered, samples(model), weights="int16")
    with pytest.raises(rnn_lower.UnsupportedError, match="lower the float32 model first"):
        rnn_lower.quantize(model, samples(model))
    with pytest.raises(rnn_lower.UnsupportedError, match="without as_function"):
        rnn_lower.quantize(rnn_lower.lower(model, as_function=True), samples(model))
    with pytest.raises(rnn_lower.UnsupportedError, match="needs opset 10"):
        rnn_lower.quantize(rnn_lower.lower(recurrent("GRU", H=16, I=4, opset=9)), samples(model))
    with pytest.raises(rnn_lower.UnsupportedError, match="infinite or NaN"):
        rnn_lower.quantize(lowered, {"x": np.full((20, 1, 4), np.nan, np.float32)})
    trained = onnx.ModelProto.FromString(lowered.SerializeToString())
    trained.training_info.add().update_binding.add(key="R", value="R_new")
    for work in (rnn_lower.compact, lambda model: rnn_lower.quantize(model, samples(model))):
        with pytest.raises(rnn_lower.UnsupportedError, match="the model has training_info"):
            work(trained)
    reader = rnn_lower.calibration_reader(lowered, samples(model))
    rnn_lower.quantize(lowered, reader)
    with pytest.raises(rnn_lower.RnnLowerError, match="rewind"):
        rnn_lower.quantize(lowered, reader)
    with pytest.raises(rnn_lower.RnnLowerError, match="does not run on a calibration sample"):
        rnn_lower.quantize(lowered, {"x": np.zeros((20, 1, 5), np.float32)})


def test_in_a_branch():
    inner = rnn_lower.lower(recurrent("GRU", H=16, I=4)).graph
    del inner.input[:]
    other = helper.make_graph(
        [helper.make_node("Constant", [], [o.name + "_0"], value=helper.make_tensor("v", 1, [1], [0.0])) for o in inner.output],
        "other", [], [helper.make_tensor_value_info(o.name + "_0", TensorProto.FLOAT, None) for o in inner.output],
    )  # fmt: skip
    node = helper.make_node("If", ["yes"], ["a", "b"], then_branch=inner, else_branch=other)
    graph = helper.make_graph(
        [node], "branches",
        [helper.make_tensor_value_info("yes", TensorProto.BOOL, []), helper.make_tensor_value_info("x", 1, [20, 1, 4])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "ab"],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with pytest.raises(rnn_lower.UnsupportedError, match="branch of an If"):
        rnn_lower.quantize(model, {"yes": np.array(True), "x": np.zeros((20, 1, 4), np.float32)})


def test_a_loop_around_a_scan():
    """Ranges are seen through both."""
    scan = rnn_lower.lower(recurrent("LSTM", H=16, I=4), form="scan").graph
    body = helper.make_graph(
        [*scan.node, helper.make_node("Identity", ["going"], ["still"]), helper.make_node("Identity", ["x"], ["same"])],
        "again", [helper.make_tensor_value_info("i", TensorProto.INT64, []), helper.make_tensor_value_info("going", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("still", TensorProto.BOOL, []), scan.output[1]],
    )  # fmt: skip
    del body.node[-1]
    graph = helper.make_graph(
        [helper.make_node("Loop", ["three", "yes"], ["all"], body=body)], "outer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [20, 1, 4])],
        [helper.make_tensor_value_info("all", TensorProto.FLOAT, [3, 1, 1, 16])],
        [*scan.initializer, helper.make_tensor("three", TensorProto.INT64, [], [3]),
         helper.make_tensor("yes", TensorProto.BOOL, [], [True])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    quantized = rnn_lower.quantize(model, samples(model))
    assert products(quantized) == (2, 0)
    assert difference(model, quantized, samples(model, 4, 2)) < 0.05


@exact_products
@pytest.mark.parametrize("name", ["keras_gru_lstm", "torch_lstm_tagger", "torch_rnn_bidirectional"])
def test_exported_models(name):
    lowered = rnn_lower.lower(ROOT / "models" / f"{name}.onnx", opset=21, fold=True, raise_loops=True)
    feeds = next(Samples(ir.from_proto(lowered)).candidates(0))
    quantized = rnn_lower.quantize(lowered, feeds)
    assert products(quantized)[1] == 0
    for a, b in zip(run(lowered, feeds), run(quantized, feeds), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=0.02)


@exact_products
@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_streams(op):
    for step in (None, 1):
        model = rnn_lower.stream(recurrent(op, T="time", I=8, H=32), axis="time", step=step)
        rng = np.random.default_rng(0)
        shapes = {v.name: [d.dim_value or 5 for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
        inputs = {name: rng.uniform(-1, 1, (8, *shape)).astype(np.float32) for name, shape in shapes.items()}
        quantized = rnn_lower.quantize(model, inputs)
        assert products(quantized) == (products(model)[0], 0)
        assert difference(model, quantized, inputs) < 0.06
        session = rnn_lower.StreamingSession(quantized)
        assert session is not None


def test_samples_of_different_lengths():
    """As a list, since arrays of several lengths cannot be stacked."""
    lowered = rnn_lower.lower(recurrent("GRU", T="T"), form="scan")
    (x,) = lowered.graph.input
    features = x.type.tensor_type.shape.dim[2].dim_value
    rng = np.random.default_rng(0)
    listed = [{x.name: rng.normal(size=(steps, 1, features)).astype(np.float32)} for steps in (3, 9, 1, 12, 7, 7)]
    quantized = rnn_lower.quantize(lowered, listed)
    for feeds in listed:
        for got, want in zip(run(quantized, feeds), run(lowered, feeds), strict=True):
            np.testing.assert_allclose(got, want, rtol=0, atol=0.05)
    with pytest.raises(rnn_lower.RnnLowerError, match="no calibration sample"):
        rnn_lower.quantize(lowered, [])


@pytest.mark.parametrize("per_channel", [False, True])
def test_one_weight_along_two_axes(per_channel):
    """A MatMul scales its columns, and a Gemm in a body with transB its rows."""
    rng = np.random.default_rng(1)
    w = (np.diag([1, 0.5, 0.02, 0.01]) @ rng.uniform(-1, 1, (4, 4))).astype(np.float32)
    declared = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Gemm", ["s", "w"], ["t"], transB=1)], "b",
        [declared("s", TensorProto.FLOAT, [2, 4])], [declared("t", TensorProto.FLOAT, [2, 4])],
    )  # fmt: skip
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Scan", ["x"], ["y"], body=body, num_scan_inputs=1),
    ]
    shape = [3, 2, 4]
    graph = helper.make_graph(
        nodes, "g", [declared("x", TensorProto.FLOAT, shape)],
        [declared(name, TensorProto.FLOAT, shape) for name in "ay"], [onnx.numpy_helper.from_array(w, "w")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    x = rng.uniform(-1, 1, (50, *shape)).astype(np.float32)
    made = rnn_lower.quantize(model, {"x": x}, per_channel=per_channel)
    for wanted, found in zip(run(model, {"x": x[0]}), run(made, {"x": x[0]}), strict=True):
        assert np.abs(wanted - found).max() < 0.02


@exact_products
def test_one_weight_for_inputs_of_two_ranges():
    rng = np.random.default_rng(2)
    declared = helper.make_tensor_value_info
    nodes = [helper.make_node("MatMul", [x, "w"], [y]) for x, y in ("xa", "zb")]
    graph = helper.make_graph(
        nodes, "g", [declared(name, TensorProto.FLOAT, [2, 4]) for name in "xz"],
        [declared(name, TensorProto.FLOAT, [2, 4]) for name in "ab"],
        [onnx.numpy_helper.from_array(rng.uniform(-1, 1, (4, 4)).astype(np.float32), "w")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    x = rng.uniform(-1, 1, (50, 2, 4)).astype(np.float32)
    made, feeds = rnn_lower.quantize(model, {"x": x, "z": x * 1000}), {"x": x[0], "z": x[0] * 1000}
    for wanted, found in zip(run(model, feeds), run(made, feeds), strict=True):
        assert np.abs(wanted - found).max() < 0.03 * np.abs(wanted).max()


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_recurrent_weights_that_nodes_compute(op):
    """The loop then has no product to quantize, but the states of an LSTM are measured."""
    model, feeds = build(Case(op, 21, weights="initializer", outputs=("Y",)))
    weight = next(tensor for tensor in model.graph.initializer if tensor.name == "R")
    weight.name = "R_before"
    model.graph.node.insert(0, helper.make_node("Sin", ["R_before"], ["R"]))
    lowered = rnn_lower.lower(model)
    quantized = rnn_lower.quantize(lowered, [feeds])
    assert "DequantizeLinear" in {node.op_type for node in quantized.graph.node}
    close(run_onnxruntime(quantized, feeds), run_onnxruntime(lowered, feeds), rtol=0.1, atol=0.05)
