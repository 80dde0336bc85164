"""The proof accepts what is right, rejects planted faults, and says by name what it does not know."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import streamfaults
from layers import CAUSAL, FEATURES, LATE, Stack, lstm

import rnn_lower
from rnn_lower import cli


def stack_of(*layers, seed: int = 0) -> Stack:
    s = Stack(np.random.default_rng([3, seed]))
    for layer in layers:
        layer(s)
    return s


@pytest.mark.parametrize("layer", [*CAUSAL, *LATE], ids=lambda one: one.__name__)
@pytest.mark.parametrize("how", [{}, {"keep_native": True}, {"step": 4}], ids=["lowered", "native", "step"])
def test_each_layer_is_proved(layer, how):
    for seed in range(2):
        s = stack_of(layer, seed=seed)
        if s.ahead and "keep_native" in how:
            how = {"form": "loop"}
        if "step" in how:
            how = {"step": 4 * s.every}
        model = s.model()
        made = rnn_lower.stream(model, axis="T", delay=s.cut, **how)
        proof = rnn_lower.prove_streaming(model, made, points=1)
        assert proof, proof.verdict
        assert proof.borders > 1


def test_planted_faults_are_rejected():
    """tests/soak/streamfaults.py runs for long."""
    found = [streamfaults.one_fault(np.random.default_rng([4, number])) for number in range(16)]
    planted = [one for one in found if one is not None]
    assert len(planted) > 8
    assert all(by_proof for _, by_proof, _ in planted), planted
    assert sum(by_check for *_, by_check in planted) >= 0.95 * len(planted), planted


def quantized(dtype: type = np.uint8, scales: int = 1) -> onnx.ModelProto:
    """A layer with quantized weights, between roundings to 8 bits with one scale or one for each feature."""
    s = Stack(np.random.default_rng(7))
    scale = s.const(np.linspace(0.05, 0.1, scales).astype(np.float32) if scales > 1 else np.array(0.05, np.float32))
    zero = s.const(np.full(scales if scales > 1 else (), 3, dtype))
    weights = s.const(s.rng.integers(-100, 100, (FEATURES, FEATURES)).astype(np.int8))
    for _ in range(2):
        s.add("DequantizeLinear", s.add("QuantizeLinear", s.value, scale, zero, axis=-1), scale, zero, axis=-1)
        before = s.value
        kernel = s.add("DequantizeLinear", weights, s.const(np.array(0.01, np.float32)), axis=0)
        s.add("MatMul", before, kernel)
    lstm(s)
    return s.model()


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("scales", [1, FEATURES])
def test_quantization_is_a_function_of_each_element(dtype, scales):
    model = quantized(dtype, scales)
    streaming = rnn_lower.stream(model, axis="T")
    proof = rnn_lower.prove_streaming(model, streaming)
    assert proof, proof.verdict
    for number, op in enumerate(("QuantizeLinear", "DequantizeLinear", "zero point", "type")):
        other = onnx.ModelProto()
        other.CopyFrom(streaming)
        if op == "type":
            twin = quantized(np.int8 if dtype == np.uint8 else np.uint8, scales)
            other = rnn_lower.stream(twin, axis="T")
        else:
            index = 2 if op == "zero point" else 1
            node = next(node for node in other.graph.node if node.op_type in (op, "QuantizeLinear"))
            (old,) = (tensor for tensor in other.graph.initializer if tensor.name == node.input[index])
            array = onnx.numpy_helper.to_array(old)
            array = array + 1 if index == 2 else np.nextafter(array, np.float32(1))
            other.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(array.dtype), f"new{number}"))
            node.input[index] = f"new{number}"
        assert rnn_lower.prove_streaming(model, other).result == "not equal", op


@pytest.mark.parametrize(
    "wraps", ["s = Add (q, q) y = Cast <to = 1> (s)", "s = Div (q, two) t = Mul (s, two) y = Cast <to = 1> (t)"]
)
def test_integers_that_wrap_or_truncate_are_out_of_scope(wraps):
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[T,N,3] x) => (float[T,N,3] y) <float scale = {0.1}, uint8 zero = {3}, uint8 two = {2}>
        { q = QuantizeLinear (x, scale, zero) %s }"""
    plain = onnx.parser.parse_model(text % "c = Cast <to = 1> (q) y = Add (c, c)")
    other = onnx.parser.parse_model(text % wraps)
    for one, another in ((plain, other), (other, plain)):
        assert rnn_lower.prove_streaming(one, rnn_lower.stream(another, axis="T")).result != "proved"


@pytest.mark.parametrize("same", ["QuantizeLinear (x, scale)", "QuantizeLinear <saturate = 1> (x, scale, none)"])
def test_defaults_of_quantization(same):
    text = """<ir_version: 9, opset_import: ["" : 19]> g (float[T,N,3] x) => (float[T,N,3] y) <float scale = {0.1}, uint8 none = {0}>
        { q = %s y = DequantizeLinear (q, scale) }"""
    model = onnx.parser.parse_model(text % "QuantizeLinear (x, scale, none)")
    assert rnn_lower.prove_streaming(model, rnn_lower.stream(onnx.parser.parse_model(text % same), axis="T"))


def computed_weights(number: int) -> onnx.ModelProto:
    """A layer and an LSTM, one of whose weights, by number, is a product of constants."""
    s = Stack(np.random.default_rng(number))
    shapes = [(1, 4 * FEATURES, FEATURES), (1, 4 * FEATURES, FEATURES), (1, 8 * FEATURES), (FEATURES, FEATURES)]
    weights = [s.weight(*shape) for shape in shapes]
    weights[number] = s.add("Mul", weights[number], s.weight(*shapes[number][:-1], 1))
    s.add("Transpose", s.add("MatMul", "x", weights[3]), perm=[1, 0, 2])
    s.add("LSTM", s.value, *weights[:3], hidden_size=FEATURES)
    s.add("Transpose", s.add("Squeeze", s.value, s.ints(1)), perm=[1, 0, 2])
    return s.model()


@pytest.mark.parametrize(
    "how", [{}, {"fold": True}, {"fold": True, "keep_native": True}, {"target": "opencv", "step": 4}]
)
@pytest.mark.parametrize("number", range(4))
def test_folded_weights_may_be_rounded(number, how):
    model = computed_weights(number)
    streaming = rnn_lower.stream(model, axis="T", dims={"N": 1} if "target" in how else None, **how)
    proof = rnn_lower.prove_streaming(model, streaming)
    assert proof, proof.verdict
    weights = [tensor for tensor in streaming.graph.initializer if len(tensor.dims) > 1]
    largest = max(weights, key=lambda tensor: int(np.prod(tensor.dims)))
    array = onnx.numpy_helper.to_array(largest)
    largest.CopyFrom(onnx.numpy_helper.from_array(np.nextafter(array, np.float32(2)), largest.name))
    assert rnn_lower.prove_streaming(model, streaming).result == "not equal"


def last_of_the_largest() -> onnx.ModelProto:
    s = stack_of(CAUSAL[0])
    s.add("Cast", s.add("ArgMax", s.value, axis=-1, select_last_index=1), to=onnx.TensorProto.FLOAT)
    return s.model()


def test_what_is_unknown_is_named(tmp_path, capsys):
    model, why = last_of_the_largest(), "sets the attribute 'select_last_index', which the proof does not support"
    proof = rnn_lower.prove_streaming(model, rnn_lower.stream(model, axis="T"))
    assert not proof.ok
    assert proof.reason.endswith(why)
    onnx.save(model, tmp_path / "in.onnx")
    code = cli.main(["stream", str(tmp_path / "in.onnx"), "-o", str(tmp_path / "out.onnx"), "--time", "T", "--prove"])
    assert code == 1
    out = capsys.readouterr().out
    assert "NOT PROVED: out of scope" in out
    assert why in out
    assert not (tmp_path / "out.onnx").exists()


def test_chunks_and_borders_are_told(tmp_path, capsys):
    onnx.save(stack_of(CAUSAL[9]).model(), tmp_path / "in.onnx")
    command = ["stream", str(tmp_path / "in.onnx"), "-o", str(tmp_path / "out.onnx"), "--time", "T"]
    assert cli.main([*command, "--check", "--prove"]) == 0
    told = capsys.readouterr().out
    assert "3 runs, divided into " in told
    assert "proved: 1 output and 2 states, compared over " in told
    assert told.count(" chunk boundaries") == 2


def test_another_model_is_not_proved():
    made = rnn_lower.stream(stack_of(CAUSAL[9]).model(), axis="T")
    assert not rnn_lower.prove_streaming(stack_of(CAUSAL[9], seed=1).model(), made)


def test_a_model_that_says_nothing_of_its_states():
    model = stack_of(CAUSAL[9]).model()
    with pytest.raises(rnn_lower.RnnLowerError, match="not a streaming model"):
        rnn_lower.prove_streaming(model, model)


def test_more_frames_than_the_whole_are_not_proved():
    """Of an output that a stream has fewer frames of."""
    s = Stack(np.random.default_rng(0))
    s.add("Slice", s.add("Pad", "x", s.ints(0, 0, 0, 0, 2, 0)), s.ints(2), s.ints(2**62), s.ints(1))
    model = s.model()
    wrong = rnn_lower.stream(model, axis="T", delay=True)
    again = onnx.helper.make_node("Concat", ["y/once", "y/once"], ["y"], axis=1)
    for node in wrong.graph.node:
        node.output[:] = ["y/once" if name == "y" else name for name in node.output]
    wrong.graph.node.append(again)
    proof = rnn_lower.prove_streaming(model, wrong)
    assert not proof.ok
    assert "has shape" in proof.reason


def test_what_a_caller_may_give_instead_of_a_default_counts():
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        m (float[1, T, 3] x, float[3] s) => (float[1, T, 3] y) <float[3] s = {1.0, 2.0, 3.0}> {
            a = Mul (x, s) f = Constant <value = int64[6] {0, 1, 0, 0, 0, 0}> () b = Pad (a, f)
            z = Constant <value = int64[1] {0}> () e = Constant <value = int64[1] {-1}> ()
            t = Constant <value = int64[1] {1}> () c = Slice (b, z, e, t) y = Add (c, a)
        }
    """)
    streaming = rnn_lower.stream(model, axis="T")
    assert rnn_lower.prove_streaming(model, streaming)
    streaming.graph.initializer.append(onnx.helper.make_tensor("by default", 1, [3], [1.0, 2.0, 3.0]))
    next(node for node in streaming.graph.node if node.op_type == "Mul").input[1] = "by default"
    assert not rnn_lower.prove_streaming(model, streaming)


def test_states_of_branches_that_floats_choose_are_out_of_scope():
    """The proof runs both branches and weighs them, although only one of them continues its state."""
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal((1, 3, 3)).astype("f4") for name in "WR"}
    outputs = [onnx.helper.make_tensor_value_info(f"y{k}", onnx.TensorProto.FLOAT, None) for k in range(2)]
    branches = [
        onnx.helper.make_graph(
            [onnx.helper.make_node("RNN", ["x", "W", "R"], [f"y{k}"], hidden_size=3, activations=[name])],
            f"b{k}",
            [],
            [out],
        )
        for k, (name, out) in enumerate(zip(("Tanh", "Relu"), outputs, strict=True))
    ]
    nodes = [
        onnx.helper.make_node("Greater", ["gain", "zero"], ["is_loud"]),
        onnx.helper.make_node("If", ["is_loud"], ["y"], then_branch=branches[0], else_branch=branches[1]),
    ]
    inputs = [
        onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["T", 1, 3]),
        onnx.helper.make_tensor_value_info("gain", onnx.TensorProto.FLOAT, []),
    ]
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in (weights | {"zero": np.float32(0)}).items()]
    result = [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["T", 1, 1, 3])]
    graph = onnx.helper.make_graph(nodes, "choice", inputs, result, tensors)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    stream = rnn_lower.stream(model, axis="T")
    assert "out of scope: floats decide which branch of an If runs" in rnn_lower.prove_streaming(model, stream).verdict


def test_windows_of_long_frames_are_proved():
    """As in a spectrum: each frame has 576 samples, padded by 128 on both sides, and 258 windows of 256 samples."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 16]> g (float[T,576] x) => (float[T,258,N] z)
        <int64[4] pads = {0, 128, 0, 128}, int64[1] one = {1}, int64 time = {0}> {
        p = Pad <mode = "reflect"> (x, pads) u = Unsqueeze (p, one) y = Conv <kernel_shape = [256], strides = [128]> (u, W)
        z = CumSum (y, time) }""")
    weights = np.random.default_rng(0).standard_normal((258, 1, 256)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "W"))
    assert rnn_lower.prove_streaming(model, rnn_lower.stream(model, axis="T")).ok


POSITIONS = (
    "k = ConstantOfShape <value = float[1] {1}> (s) r = CumSum (k, at) e = Unsqueeze (r, wide)",
    "k = ConstantOfShape <value = float[1] {1}> (s) r = CumSum <exclusive = 1> (k, at) v = Unsqueeze (r, wide) e = Sin (v)",
    "n = Squeeze (s) r = Range (at, n, one) f = Cast <to = 1> (r) v = Unsqueeze (f, wide) e = Cos (v)",
    "n = Squeeze (s) r = Range (at, n, one) f = Cast <to = 1> (r) v = Unsqueeze (f, wide) w = Sin (v) p = Pad (w, front) e = Slice (p, at1, end, at1)",
    "n = Squeeze (s) r = Range (at, n, one) m = Mod (r, seven) f = Cast <to = 1> (m) e = Unsqueeze (f, wide)",
    "n = Squeeze (s) r = Range (at, n, one) l = Less (r, seven) f = Cast <to = 1> (l) e = Unsqueeze (f, wide)",
)  # fmt: skip
"""The position of each frame [T, 1, 1], computed in several ways."""


@pytest.mark.parametrize("nodes", POSITIONS)
def test_positions_are_proved(nodes, tmp_path):
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]> g (float[T,N,3] x) => (float[T,N,3] y)
        <int64 at = {{0}}, int64[1] at1 = {{0}}, int64 one = {{1}}, int64[2] wide = {{1, 2}}, int64[1] end = {{-4}},
         int64 seven = {{7}}, int64[6] front = {{4, 0, 0, 0, 0, 0}}> {{
        s = Shape <start = 0, end = 1> (x) {nodes} y = Add (x, e) }}""")
    streamed = rnn_lower.stream(model, axis="T")
    assert rnn_lower.prove_streaming(model, streamed).ok
    onnx.save(streamed, tmp_path / "stream.onnx")
    assert (
        cli.main(["unstream", str(tmp_path / "stream.onnx"), "-o", str(tmp_path / "whole.onnx"), "--prove"]) == cli.DONE
    )


def test_a_recurrent_node_in_a_loop_beside_the_stream():
    """As in a decoder that does not run along the stream of the encoder."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]> g (float[T,1,3] x, float[1,1,3] z) => (float[T,1,3] y, float[1,1,3] h)
        <int64 time = {0}, int64 trips = {2}, float[1,12,3] W = {0}, float[1,12,3] R = {0}> {
        y = CumSum (x, time) h = Loop <body = body (int64 i, bool c, float[1,1,3] s) => (bool d, float[1,1,3] t) {
            u = Add (z, s) n, t = LSTM <hidden_size = 3> (u, W, R, , , s) d = Identity (c) }> (trips, , z) }""")
    for tensor in model.graph.initializer[2:]:
        array = np.random.default_rng(0).standard_normal(tensor.dims).astype(np.float32)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    made = rnn_lower.stream(model, axis="T")
    assert rnn_lower.prove_streaming(model, made).ok


def test_a_network_that_begins_with_zeros_for_each_row():
    """As a decoder does, whose first frame is zero. Lowered, it computes with nodes that the original does not have."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]> g (float[1,N,3] x) => (float[1,N,3] y)
        <float[3,3] V = {0}, float[1,12,3] W = {0}, float[1,12,3] R = {0}, int64[1] at = {0}, int64[1] three = {3}> {
        n = Shape <start = 1, end = 2> (x) s = Concat <axis = 0> (n, three) o = ConstantOfShape (s) v = Gemm (o, V)
        r = Sigmoid (v) u = Unsqueeze (r, at) a, h = LSTM <hidden_size = 3> (u, W, R) y = Add (x, h) }""")
    for tensor in model.graph.initializer[:3]:
        array = np.random.default_rng(0).standard_normal(tensor.dims).astype(np.float32)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    assert rnn_lower.prove_streaming(model, rnn_lower.stream(model, axis="N")).ok
