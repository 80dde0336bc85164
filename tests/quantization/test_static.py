"""onnxruntime's static quantizer on unrolled models and one-step streams, with what it has to know of states."""

from __future__ import annotations

import logging

import numpy as np
import onnx
import pytest
from cpu import exact_products
from onnx import TensorProto, helper
from onnxruntime.quantization import QuantType, quantize_static
from quantized_models import difference, matrices, products, recurrent, run, samples

import rnn_lower

KINDS = [(d, lengths) for d in ("forward", "reverse", "bidirectional") for lengths in (False, True)]


def static(tmp_path, lowered, inputs, operators=("MatMul",), activations=QuantType.QUInt8, kept=(), **options):
    """Quantized by onnxruntime, which is handed our overrides and our reader. kept: whose results stay in floats."""
    onnx.save(lowered, tmp_path / "float.onnx")
    overrides = rnn_lower.quantization_overrides(lowered, **options)
    extra = {"TensorQuantOverrides": overrides, "OpTypesToExcludeOutputQuantization": list(kept)}
    quantize_static(
        tmp_path / "float.onnx", tmp_path / "int8.onnx", rnn_lower.calibration_reader(lowered, inputs),
        op_types_to_quantize=operators and list(operators), weight_type=QuantType.QInt8, activation_type=activations,
        extra_options=extra,
    )  # fmt: skip
    return onnx.load(tmp_path / "int8.onnx")


@exact_products
@pytest.mark.parametrize(("direction", "lengths"), KINDS)
@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_every_product_takes_integers(tmp_path, caplog, op, direction, lengths):
    lowered = rnn_lower.lower(recurrent(op, direction=direction, lengths=lengths), form="unroll")
    inputs = samples(lowered)
    with caplog.at_level(logging.WARNING):
        quantized = static(tmp_path, lowered, inputs, calibration=inputs)
    total, floats = products(quantized)
    assert total == products(lowered)[0]
    assert not floats
    assert {t.data_type for t in matrices(quantized)} == {TensorProto.INT8}
    assert len(matrices(quantized)) == len(matrices(lowered)), "a weight of all steps is one initializer"
    assert not [one for one in caplog.messages if "bias" in one.lower()]
    assert difference(lowered, quantized, samples(lowered, 4, 2)) < (0.1 if op == "RNN" else 0.05)


@exact_products
@pytest.mark.parametrize("operators", [("MatMul",), None], ids=["products", "all"])
@pytest.mark.parametrize("activations", [QuantType.QUInt8, QuantType.QInt8, QuantType.QUInt16], ids=str)
@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_one_step_of_a_stream(tmp_path, op, activations, operators):
    step = rnn_lower.stream(recurrent(op, T="time"), axis="time", step=1)
    inputs = samples(step)
    quantized = static(tmp_path, step, inputs, operators, activations, calibration=inputs)
    assert products(quantized) == (products(step)[0], 0)
    assert difference(step, quantized, samples(step, 4, 2)) < 0.05
    assert rnn_lower.compact(quantized).ByteSize() <= 0.3 * step.ByteSize()


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_states_share_a_scale(tmp_path, op, per_channel):
    """All operators, as for an accelerator; the cell in 16 bits."""
    lowered = rnn_lower.lower(recurrent(op, H=32, I=8, T=6), form="unroll")
    inputs = samples(lowered)
    quantized = static(tmp_path, lowered, inputs, None, calibration=inputs, per_channel=per_channel)
    values = {t.name: onnx.numpy_helper.to_array(t) for t in quantized.graph.initializer}
    of = {
        n.input[0]: [values[name] for name in n.input[1:]] for n in quantized.graph.node if "QuantizeLin" in n.op_type
    }
    h = [of[f"rnn/forward/t{t}/H"] for t in range(1, 5)]
    assert len({(float(scale), int(zero)) for scale, zero in h}) == 1
    assert h[0][0] == pytest.approx(2 / 255)
    if op == "LSTM":
        c = [of[f"rnn/forward/t{t}/C"] for t in range(1, 6)]
        assert len({(float(scale), int(zero)) for scale, zero in c}) == 1
        assert c[0][1].dtype == np.uint16
    scales = [n.input[1] for n in quantized.graph.node if n.input and n.input[0].startswith("rnn/forward/R")]
    assert all(values[name].ndim == per_channel for name in scales if name in values)


def test_bounds_without_samples():
    """What the equations say: a cell state of a zero state grows by one a step; GRU stays where it is."""
    lstm = rnn_lower.quantization_overrides(rnn_lower.lower(recurrent("LSTM", H=4, T=5), form="unroll"))
    assert {one["rmax"] for (one,) in lstm.values() if "quant_type" in one} == {5.0}
    for lbr in (0, 1):
        lowered = rnn_lower.lower(recurrent("GRU", H=4, T=5, linear_before_reset=lbr), form="unroll")
        gru = rnn_lower.quantization_overrides(lowered)
        assert gru
        assert all(one == {"rmin": -1.0, "rmax": 1.0} for (one,) in gru.values())
    relu = recurrent("RNN", H=4, T=5, activations=["Relu"])
    assert rnn_lower.quantization_overrides(rnn_lower.lower(relu, form="unroll")) == {}


@pytest.mark.parametrize(("direction", "lengths"), KINDS)
@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_compact_is_small_and_the_same(tmp_path, op, direction, lengths):
    model = recurrent(op, direction=direction, lengths=lengths)
    lowered = rnn_lower.lower(model, form="unroll")
    inputs = samples(lowered)
    quantized = static(tmp_path, lowered, inputs, kept=["MatMul"], calibration=inputs)
    small = rnn_lower.compact(quantized)
    assert products(small) == (products(lowered)[0], 0)
    assert difference(quantized, small, samples(lowered, 4, 2)) == 0
    assert small.ByteSize() <= 0.27 * lowered.ByteSize()
    if op != "RNN" or not lengths:  # its Where and Less at each step cost 0.02
        assert small.ByteSize() <= 0.3 * model.ByteSize()


@pytest.mark.parametrize("form", ["scan", "loop", "unroll"])
def test_compact_of_every_form(form):
    lowered = rnn_lower.lower(recurrent("LSTM", H=8, I=4, direction="bidirectional", lengths=True), form=form)
    small = rnn_lower.compact(lowered)
    assert difference(lowered, small, samples(lowered)) == 0
    again = rnn_lower.compact(small)  # whose names are such as it chooses
    assert difference(lowered, again, samples(lowered)) == 0
    assert small.ByteSize() < lowered.ByteSize()


@pytest.mark.parametrize(("count", "length"), [(1, 40), (4, 50), (0, 0)])
def test_compact_merges_only_equal_strings(count, length):
    words = [[chr(97 + k % 5) * length + str(i) for i in range(count)] for k in range(10)]
    tensors = [
        helper.make_tensor(f"s{k}", TensorProto.STRING, [count], [word.encode() for word in row])
        for k, row in enumerate(words)
    ]
    nodes = [helper.make_node("Where", ["c", f"s{k}", f"s{9 - k}"], [f"y{k}"]) for k in range(10)]
    ends = [
        [helper.make_tensor_value_info("c", TensorProto.BOOL, [count])],
        [helper.make_tensor_value_info(f"y{k}", TensorProto.STRING, [count]) for k in range(10)],
    ]
    graph = helper.make_graph(nodes, "g", *ends, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    small = rnn_lower.compact(model)
    assert len(small.graph.initializer) == (5 if count else 1)
    for condition in (np.ones(count, bool), np.zeros(count, bool)):
        wanted, found = (run(each, {"c": condition}) for each in (model, small))
        assert [each.tolist() for each in found] == [each.tolist() for each in wanted]


def test_reader(tmp_path):
    model = recurrent("GRU", H=4, T=3, lengths=True)
    x = np.zeros((5, 3, 1, 32), np.float32)
    np.savez(tmp_path / "inputs.npz", x=x, lens=np.array([2], np.int32))
    reader = rnn_lower.calibration_reader(model, tmp_path / "inputs.npz")
    for _ in range(2):
        read = list(iter(reader.get_next, None))
        assert [one["x"].shape for one in read] == [(3, 1, 32)] * 5
        assert all(run(model, one)[0].shape == (3, 1, 1, 4) for one in read)
        reader.rewind()
    several = rnn_lower.calibration_reader(model, [{"x": x, "lens": np.array([2], np.int32)}] * 2)
    assert len(several) == 10
    with pytest.raises(rnn_lower.RnnLowerError, match="5 of 'x', 2 of 'lens'"):
        rnn_lower.calibration_reader(model, {"x": x, "lens": np.ones((2, 1), np.int32)})
    with pytest.raises(rnn_lower.RnnLowerError, match="3 axes"):
        rnn_lower.calibration_reader(model, {"x": x[0, 0], "lens": np.ones((2, 1), np.int32)})
    with pytest.raises(rnn_lower.RnnLowerError, match="lens"):
        rnn_lower.calibration_reader(model, {"x": x})


def test_samples_of_a_scalar_input_are_arrays():
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]> g (float[2] x, int64 n) => (float[2] y)
        { m = Cast <to = 1> (n) y = Mul (x, m) }""")
    reader = rnn_lower.calibration_reader(model, {"x": np.ones((3, 2), np.float32), "n": np.array([4, 5, 6])})
    assert [run(model, one)[0][0] for one in iter(reader.get_next, None)] == [4, 5, 6]


@pytest.mark.parametrize("form", ["scan", "loop"])
def test_bodies_are_out_of_reach(form):
    lowered = rnn_lower.lower(recurrent("GRU", H=4, T=3), form=form)
    with pytest.raises(rnn_lower.UnsupportedError, match="lower the model with form='unroll', or use"):
        rnn_lower.quantization_overrides(lowered)


def test_a_first_state_of_the_caller_has_a_range_of_its_own():
    model = recurrent("LSTM", H=4, T=3)
    model.graph.node[0].input.extend(["", "h0"])
    model.graph.input.append(onnx.helper.make_tensor_value_info("h0", TensorProto.FLOAT, [1, 1, 4]))
    lowered = rnn_lower.lower(model, form="unroll")
    bounds = rnn_lower.quantization_overrides(lowered, cell=None)
    assert {one["rmax"] for name, (one,) in bounds.items() if name.endswith("/H")} == {1.0}
    assert not [name for name in bounds if "initial" in name]
    inputs = samples(lowered) | {"h0": np.full((1, 1, 4), 3, np.float32)}
    observed = rnn_lower.quantization_overrides(lowered, calibration=inputs)
    assert {one["rmax"] for name, (one,) in observed.items() if name.endswith("/H")} == {3.0}


def test_sixteen_bits_below_opset_21(tmp_path):
    """The quantizer raises the model to opset 21, or takes operators of com.microsoft."""
    lowered = rnn_lower.lower(recurrent("LSTM", T=4, opset=17), form="unroll")
    inputs = samples(lowered)
    quantized = static(tmp_path, lowered, inputs, None, calibration=inputs)
    domains = {n.domain for n in quantized.graph.node if n.op_type == "QuantizeLinear"}
    assert domains == {"com.microsoft"} or quantized.opset_import[0].version == 21
    assert difference(lowered, quantized, samples(lowered, 4, 2)) < 0.05
    quantized = static(tmp_path, lowered, inputs, None, calibration=inputs, cell="uint8")
    assert quantized.opset_import[0].version == 17
    assert not any(node.domain for node in quantized.graph.node)


def test_nothing_to_quantize():
    with pytest.raises(rnn_lower.UnsupportedError, match="lower the float32 model first"):
        rnn_lower.quantization_overrides(recurrent("GRU", H=4))
