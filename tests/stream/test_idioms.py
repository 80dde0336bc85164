"""What exporters and public models write: chunks with random borders are the whole run, no frame late."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from judge import close, run_onnxruntime
from layers import (
    COMPUTED,
    PADDED,
    Stack,
    causal_conv,
    centred,
    conditioned,
    grouped,
    halved_and_repeated,
    late_windows,
    lstm,
    padded_behind,
    resized,
    running_sum,
    windows_ahead,
    windows_by_index,
)
from runners import RUNNERS, missing
from streams import same_in_chunks

import rnn_lower
from rnn_lower import api, cli


def same_at_random_borders(build: Callable[[Stack], None], seed: int, late: int = 0, **options: object) -> None:
    """Raise unless random chunks, single frames and the whole give the same, so many frames late."""
    s = Stack(np.random.default_rng([7, seed]))
    build(s)
    model = s.model()
    feeds = {"x": s.rng.uniform(-1, 1, (2, 13, 6)).astype(np.float32)}
    for lengths in (None, None, [1] * 13, [13], [1, 2, 3, 7]):
        same_in_chunks(model, feeds, "T", s.rng, lengths, **options)
    made = rnn_lower.stream(model, axis="T", **options)
    assert dict(rnn_lower.StreamingSession(made).plan.late) == ({"y": late} if late else {})
    if not late:
        same_in_chunks(model, feeds, "T", s.rng, [1] * 13, step=1, **options)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "layer", [grouped, running_sum, conditioned, resized, *PADDED, *COMPUTED], ids=lambda one: one.__name__
)
def test_layers(layer, seed):
    same_at_random_borders(layer, seed)


EQUATIONS = ("ntf,gf->ntg", "gf,ntf->ntg", "ntf,ntf->ntf", "ntf,fg", "ntf,ntg,gf->ntf", "f,ntf->ntf", "ntf,n->ntf")


@pytest.mark.parametrize("equation", EQUATIONS)
def test_equations(equation):
    def build(s: Stack) -> None:
        weights = {"gf": (6, 6), "fg": (6, 6), "f": (6,), "n": (2,)}
        terms = equation.split("->")[0].split(",")
        x = s.value
        s.add("Einsum", *(s.weight(*weights[term]) if term in weights else x for term in terms), equation=equation)

    same_at_random_borders(build, 0)


@pytest.mark.parametrize("seed", range(3))
def test_padding_behind(seed):
    s = Stack(np.random.default_rng([7, seed]))
    padded_behind(s)
    with pytest.raises(
        rnn_lower.UnsupportedError,
        match=r"Pad 'Pad1' in main graph cannot run chunk by chunk: .*future frames?.*after the end.*delay",
    ):
        rnn_lower.stream(s.model(), axis="T")
    same_at_random_borders(padded_behind, seed, s.ahead, delay=True)


@pytest.mark.parametrize("seed", range(4))
def test_windows_of_a_padded_stream_that_look_ahead(seed):
    """As deep filtering has them."""
    s = Stack(np.random.default_rng([7, seed]))
    windows_ahead(s)
    model = s.model()
    with pytest.raises(rnn_lower.UnsupportedError, match=r"it needs \d future frames?, because .*; delay"):
        rnn_lower.stream(model, axis="T")
    same_at_random_borders(windows_ahead, seed, s.ahead, delay=True)
    for step in (1, 4):
        feeds = {"x": s.rng.uniform(-1, 1, (2, 16, 6)).astype(np.float32)}
        same_in_chunks(model, feeds, "T", s.rng, [step] * (16 // step), delay=True, step=step)


@pytest.mark.parametrize("seed", range(12))
def test_windows_that_are_late(seed):
    """With padding behind only where that is requested; as many frames late as the windows look ahead."""
    s = Stack(np.random.default_rng([7, seed]))
    late_windows(s)
    model = s.model()
    if s.cut:
        with pytest.raises(
            rnn_lower.UnsupportedError,
            match=r"Pad 'Pad\d' in main graph cannot run chunk by chunk: .*future frames?.*after the end",
        ):
            rnn_lower.stream(model, axis="T")
    same_at_random_borders(late_windows, seed, s.ahead, **({"delay": True} if s.cut else {}))
    for step in (1, 2):
        feeds = {"x": s.rng.uniform(-1, 1, (2, 12, 6)).astype(np.float32)}
        same_in_chunks(model, feeds, "T", s.rng, [step] * (12 // step), step=step, delay=s.cut)


@pytest.mark.parametrize("between", [1, 2])
def test_padding_in_front_passes_convolutions_of_one_frame(between):
    """What stands before the stream is none of what comes after it, also with a bias."""
    s = Stack(np.random.default_rng(1))
    s.add("Transpose", "x", perm=[0, 2, 1])
    s.add("Pad", s.value, s.ints(0, 0, 2, 0, 0, 0))
    for _ in range(between):
        s.add("Conv", s.value, s.weight(6, 6, 1), s.weight(6), kernel_shape=[1])
    s.add("Conv", s.value, s.weight(6, 6, 3), kernel_shape=[3])
    s.add("Transpose", s.value, perm=[0, 2, 1])
    model, rng = s.model(), np.random.default_rng(0)
    for options in ({}, {"step": 1}):
        same_in_chunks(model, {"x": rng.uniform(-1, 1, (2, 7, 6)).astype(np.float32)}, "T", rng, [1] * 7, **options)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("scale", [2, 3])
def test_fewer_frames_are_repeated_to_as_many(scale, late):
    """The rate comes back, so that what went in is added, as UNets over time have it; with --step also if delayed."""
    s = Stack(np.random.default_rng(scale))
    s.add("Transpose", "x", perm=[0, 2, 1])
    before, front = s.value, 0 if late else 2
    s.add("Conv", before, s.weight(6, 6, scale), kernel_shape=[scale], strides=[scale])
    s.add("Conv", s.value, s.weight(6, 6, 3), kernel_shape=[3], pads=[front, 2 - front])
    s.add("Resize", s.value, "", s.const(np.array([1, 1, scale], np.float32)))
    s.add("Conv", s.add("Add", s.value, before), s.weight(6, 6, 3), kernel_shape=[3], pads=[2, 0])
    s.add("Transpose", s.value, perm=[0, 2, 1])
    model, feeds = s.model(), {"x": s.rng.uniform(-1, 1, (2, 24, 6)).astype(np.float32)}
    same_in_chunks(model, feeds, "T", s.rng, [scale] * (24 // scale), step=scale, delay=late)
    streaming = rnn_lower.stream(model, axis="T", step=scale, delay=late)
    assert rnn_lower.prove_streaming(model, streaming)
    assert rnn_lower.StreamingSession(streaming).plan.warm_up == ({"y": 2 * scale} if late else {})
    if late:
        with pytest.raises(
            rnn_lower.UnsupportedError,
            match=r"Resize 'Resize3' in main graph cannot run chunk by chunk: .*set a fixed chunk length",
        ):
            rnn_lower.stream(model, axis="T", delay=True)
    else:
        same_in_chunks(model, feeds, "T", s.rng, [scale, 24 - scale])


def test_half_of_the_frames_repeated():
    """Half of the length is a size where chunks have an even number of frames."""
    s = Stack(np.random.default_rng(0))
    halved_and_repeated(s)
    model, feeds = s.model(), {"x": s.rng.uniform(-1, 1, (2, 12, 6)).astype(np.float32)}
    for lengths, options in (([2, 4, 6], {}), ([2] * 6, {"step": 2})):
        same_in_chunks(model, feeds, "T", s.rng, lengths, **options)


def test_the_last_frames_are_those_of_the_padding_too():
    """As a cache that a model returns: the last frames of a stream with zeros in front."""
    s = Stack(np.random.default_rng(0))
    s.add("Slice", s.add("Pad", "x", s.ints(0, 3, 0, 0, 0, 0)), s.ints(-3), s.ints(2**62), s.ints(1))
    model, x = s.model(), s.rng.uniform(-1, 1, (2, 7, 6)).astype(np.float32)
    for lengths in ([1] * 7, [1, 1], [2, 5]):
        same_in_chunks(model, {"x": x[:, : sum(lengths)]}, "T", s.rng, lengths)


def test_sizes_of_what_is_padded_behind_are_those_of_the_whole():
    """A run over the whole has two frames more there than the stream, which sizes are computed from."""
    s = Stack(np.random.default_rng(0))
    padded = s.add("Tanh", s.add("Pad", "x", s.ints(0, 0, 0, 0, 2, 0)))
    frames = [s.add("Slice", s.add("Shape", value), s.ints(1), s.ints(2)) for value in (padded, "x")]
    s.add("Slice", padded, s.add("Sub", *frames), s.ints(2**62), s.ints(1))
    model, feeds = s.model(), {"x": s.rng.uniform(-1, 1, (2, 7, 6)).astype(np.float32)}
    for options in ({}, {"step": 1}):
        same_in_chunks(model, feeds, "T", s.rng, [1] * 7, delay=True, **options)


def test_states_with_equal_first_values_are_written_back():
    """Each state of the whole model has a name of its own, though equal nodes are one."""
    s = Stack(np.random.default_rng(0))
    for _ in range(2):
        causal_conv(s)
    model = s.model()
    whole = rnn_lower.unstream(rnn_lower.stream(model, axis="T"))
    feeds = {"x": s.rng.uniform(-1, 1, (2, 7, 6)).astype(np.float32)}
    close(run_onnxruntime(whole, feeds), run_onnxruntime(model, feeds))


def test_a_freed_shape_without_zeros_that_stay():
    """As newer exporters write each Reshape (allowzero)."""
    s = Stack(np.random.default_rng(0))
    s.add("Reshape", s.value, s.ints(-1, 12, 2, 3), allowzero=1)
    s.add("Reshape", s.value, s.ints(-1, 12, 6), allowzero=1)
    causal_conv(s)
    model, x = s.model(), s.rng.uniform(-1, 1, (2, 12, 6)).astype(np.float32)
    session = rnn_lower.StreamingSession(rnn_lower.stream(model, axis="x[1]", dims={"T": 12}))
    got = [session.run(x[:, k : k + 3])["y"] for k in range(0, 12, 3)]
    close([np.concatenate(got, 1)], run_onnxruntime(model, {"x": x}))


def test_steps_after_a_shape_without_zeros_that_stay():
    """The length of a recurrent node is known then, so that it is unrolled."""
    s = Stack(np.random.default_rng(0))
    rows = s.add("Slice", s.add("Shape", "x"), s.ints(0), s.ints(2))
    s.add("Reshape", "x", s.add("Concat", rows, s.ints(2, 3), axis=0), allowzero=1)
    s.add("Reshape", s.value, s.add("Concat", rows, s.ints(6), axis=0), allowzero=1)
    lstm(s)
    model, feeds = s.model(), {"x": s.rng.uniform(-1, 1, (2, 12, 6)).astype(np.float32)}
    x = next(node.input[0] for node in model.graph.node if node.op_type == "LSTM")
    model.graph.value_info.append(onnx.helper.make_tensor_value_info(x, onnx.TensorProto.FLOAT, ["T", "N", 6]))
    same_in_chunks(model, feeds, "T", s.rng, [2] * 6, step=2)


@pytest.mark.parametrize("step", [None, 1])
def test_windows_of_delayed_frames(step):
    """Behind a convolution that looks ahead, whose frames are fewer than those of a whole run."""
    s = Stack(np.random.default_rng(2))
    centred(s)
    windows_by_index(s)
    model, feeds = s.model(), {"x": s.rng.uniform(-1, 1, (2, 12, 6)).astype(np.float32)}
    options = {"delay": True} | ({} if step is None else {"step": step})
    same_in_chunks(model, feeds, "T", s.rng, [1] * 12, **options)
    assert rnn_lower.prove_streaming(model, rnn_lower.stream(model, axis="T", **options))


def test_a_delayed_shape_without_zeros_that_stay():
    s = Stack(np.random.default_rng(0))
    x = s.add("Slice", "x", s.ints(2), s.ints(2**62), s.ints(1))
    rows = s.add("Slice", s.add("Shape", x), s.ints(0), s.ints(2))
    s.add("Reshape", x, s.add("Concat", rows, s.ints(2, 3), axis=0))
    s.add("Reshape", s.value, s.add("Concat", rows, s.ints(-1), axis=0), allowzero=1)
    model, feeds = s.model(), {"x": s.rng.uniform(-1, 1, (2, 12, 6)).astype(np.float32)}
    for lengths, options in (([1] * 12, {}), ([5, 1, 6], {}), ([1] * 12, {"step": 1})):
        same_in_chunks(model, feeds, "T", s.rng, lengths, **options)


@pytest.mark.parametrize("indices", [False, True])
def test_a_length_that_only_a_reshape_has_is_freed(indices):
    """As an exporter writes one beside an input whose length is free."""
    s = Stack(np.random.default_rng(0))
    s.add("Reshape", s.value, s.ints(0, 12, 6))
    if indices:
        s.add("Squeeze", s.add("Gather", s.value, s.const(np.arange(12)[None]), axis=1), s.ints(1))
    causal_conv(s)
    model, feeds = s.model(), {"x": s.rng.uniform(-1, 1, (2, 12, 6)).astype(np.float32)}
    for lengths, options in (([5, 1, 6], {}), ([1] * 12, {"step": 1})):
        same_in_chunks(model, feeds, "T", s.rng, lengths, **options)


@pytest.mark.parametrize("opset", [10, 17])
@pytest.mark.parametrize("layout", [(12, 1), (1, 12)], ids=["frames first", "windows first"])
def test_windows_that_an_export_has_fixed(layout, opset):
    """Their indices are constants, where it knew the length."""
    s = Stack(np.random.default_rng(0), opset)
    windows = np.arange(12).reshape(layout) + np.arange(3).reshape((1, 3) if layout[0] == 12 else (3, 1))
    front = s.const(np.zeros((2, 2, 6), np.float32))
    s.add("Gather", s.add("Concat", front, "x", axis=1), s.const(windows), axis=1)
    s.add("ReduceSum", s.value, *([s.ints(layout.index(1) + 1)] if opset > 12 else []), keepdims=0,
          **({} if opset > 12 else {"axes": [layout.index(1) + 1]}))  # fmt: skip
    model, x = s.model(), s.rng.uniform(-1, 1, (2, 12, 6)).astype(np.float32)
    if opset < 11:
        with pytest.raises(rnn_lower.UnsupportedError, match=r"Gather 'Gather1' .*step\) needs opset 11 or newer, "):
            rnn_lower.stream(model, axis="x[1]", dims={"T": 12})
    for step in (None, 2) if opset > 10 else (2,):
        streaming = rnn_lower.stream(model, axis="x[1]", dims={"T": 12}, step=step)
        session = rnn_lower.StreamingSession(streaming)
        got = [session.run(x[:, k : k + 2])["y"] for k in range(0, 12, 2)]
        close([np.concatenate(got, 1)], run_onnxruntime(model, {"x": x}))


@pytest.mark.parametrize("sizes", [np.array(4), np.array([1, 5])], ids=["of a size", "of sizes"])
def test_a_sequence_of_parts(sizes):
    """As an exporter writes a split where it knows no sizes."""
    s = Stack(np.random.default_rng(0))
    parts = s.add("SplitToSequence", "x", s.const(sizes), axis=-1)
    first, second = (s.add("SequenceAt", parts, s.const(np.array(k))) for k in range(2))
    s.add("Concat", second, first, axis=-1)
    causal_conv(s)
    model, feeds = s.model(), {"x": s.rng.uniform(-1, 1, (2, 7, 6)).astype(np.float32)}
    session = rnn_lower.StreamingSession(rnn_lower.stream(model, axis="T"))
    got = [session.run(feeds["x"][:, k : k + 1])["y"] for k in range(7)]
    close([np.concatenate(got, 1)], run_onnxruntime(model, feeds))


@pytest.mark.parametrize("step", [None, 1])
def test_nodes_that_wait_for_the_same_frames_have_one_state(step):
    """As the products of a complex number have them."""
    s = Stack(np.random.default_rng(0))
    centred(s)
    ahead, late = s.ahead, s.value
    s.add("Add", s.add("Mul", "x", late), s.add("Sub", late, "x"))
    model, feeds = s.model(), {"x": s.rng.uniform(-1, 1, (2, 12, 6)).astype(np.float32)}
    options = {"delay": True} | ({} if step is None else {"step": step})
    same_in_chunks(model, feeds, "T", s.rng, [1] * 12, **options)
    plan = rnn_lower.StreamingSession(rnn_lower.stream(model, axis="T", **options)).plan
    held = [state.input for state in plan.states if state.input.endswith("held_in")]
    assert (len(held), plan.late) == (2, {"y": ahead})


def test_a_strided_convolution_padded_on_both_sides():
    """Whose end is cut off: half of the frames, computed from the length."""
    s = Stack(np.random.default_rng(0))
    half = s.add("Div", s.add("Slice", s.add("Shape", "x"), s.ints(1), s.ints(2)), s.ints(2))
    x = s.add("Transpose", "x", perm=[0, 2, 1])
    s.add("Conv", x, s.weight(6, 6, 4), s.weight(6), pads=[2, 2], strides=[2])
    s.add("Transpose", s.add("Slice", s.value, s.ints(0), half, s.ints(2)), perm=[0, 2, 1])
    model, feeds = s.model(), {"x": s.rng.uniform(-1, 1, (2, 12, 6)).astype(np.float32)}
    for lengths, options in (([2, 6, 4], {}), ([2] * 6, {"step": 2})):
        same_in_chunks(model, feeds, "T", s.rng, lengths, **options)
    assert rnn_lower.prove_streaming(model, rnn_lower.stream(model, axis="T"))


@pytest.mark.parametrize("step", [None, 1])
@pytest.mark.parametrize("reset", [False, True])
def test_the_first_frame_repeated_in_front(step, reset):
    """As a replication padding has it, or a moving average."""
    s = Stack(np.random.default_rng(0))
    x = s.add("Pad", s.add("Transpose", "x", perm=[0, 2, 1]), s.ints(0, 1, 4, 0, 1, 0), mode="edge")
    s.add("Transpose", s.add("Conv", x, s.weight(6, 8, 5)), perm=[0, 2, 1])
    model, feeds = s.model(), {"x": s.rng.uniform(-1, 1, (2, 7, 6)).astype(np.float32)}
    for lengths in ([1] * 7, *([[2, 5], [7]] if step is None else [])):
        same_in_chunks(model, feeds, "T", s.rng, lengths, step=step, reset=reset)
    made = rnn_lower.stream(model, axis="T", step=step, reset=reset)
    assert reset or rnn_lower.prove_streaming(model, made)
    if reset:
        session = rnn_lower.StreamingSession(made)
        session.run(feeds["x"][:, :1])
        session.reset(rows=[1])
        again = session.run(feeds["x"][:, :1])["y"]
        close([again[1:]], [run_onnxruntime(model, {"x": feeds["x"][:, :1]})[0][1:]])


@pytest.mark.parametrize("step", [None, 1])
@pytest.mark.parametrize("reset", [False, True])
def test_steps_of_any_kind(step, reset):
    """A selective state space or a gated sum, as exporters write a scan."""
    s = Stack(np.random.default_rng(0))
    gate = s.add("Sigmoid", s.add("MatMul", s.value, s.weight(6, 6)))
    kinds = [(name, onnx.TensorProto.FLOAT, ["N", 6]) for name in ("state", "value", "gate", "next", "out")]
    values = [onnx.helper.make_tensor_value_info(*kind) for kind in kinds]
    nodes = [("Mul", "state", "gate", "kept"), ("Add", "kept", "value", "next"), ("Tanh", "next", "out")]
    body = onnx.helper.make_graph(
        [onnx.helper.make_node(op, inputs, [output]) for op, *inputs, output in nodes],
        "step", values[:3], values[3:],
    )  # fmt: skip
    rows = s.add("Slice", s.add("Shape", "x"), s.ints(0), s.ints(1))
    first = s.add("Expand", s.weight(1, 6), s.add("Concat", rows, s.ints(6), axis=0))
    s.add("Scan", first, "x", gate, count=2, body=body, num_scan_inputs=2, scan_input_axes=[1, 1], scan_output_axes=[1])
    s.value = s.nodes[-1].output[1]
    model, feeds = s.model(), {"x": s.rng.uniform(-1, 1, (2, 7, 6)).astype(np.float32)}
    for lengths in ([1] * 7, *([[2, 5], [7]] if step is None else [])):
        same_in_chunks(model, feeds, "T", s.rng, lengths, step=step, reset=reset)
    assert reset or rnn_lower.prove_streaming(model, rnn_lower.stream(model, axis="T", step=step))


def test_the_largest_of_each_frame():
    def build(s: Stack) -> None:
        values = s.add("TopK", s.value, s.ints(3), count=2, axis=-1)
        s.add("Concat", values, s.add("Cast", values.replace("_0", "_1"), to=onnx.TensorProto.FLOAT), axis=-1)

    same_at_random_borders(build, 0)


@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("best", [False, True])
def test_numbers_of_each_frame_as_vectors(axis, best):
    """Ids of skills or actions before a recurrent layer, or the best class of each frame."""
    s = Stack(np.random.default_rng(0))
    ids = s.add("ArgMax", s.value, axis=-1, keepdims=0) if best else s.add("Cast", "ids", to=onnx.TensorProto.INT64)
    vectors = s.add("OneHot", ids, s.const(np.array(6)), s.const(np.array([0, 1], np.float32)), axis=axis)
    s.value = vectors if axis == -1 else s.add("Transpose", vectors, perm=[0, 2, 1])
    lstm(s)
    model, feeds = s.model(), {"x": s.rng.uniform(-1, 1, (2, 7, 6)).astype(np.float32)}
    if not best:
        model.graph.input.append(onnx.helper.make_tensor_value_info("ids", onnx.TensorProto.INT32, ["N", "T"]))
        feeds["ids"] = s.rng.integers(-6, 6, (2, 7)).astype(np.int32)
    same_in_chunks(model, feeds, "T", s.rng, [2, 4, 1])
    assert rnn_lower.prove_streaming(model, rnn_lower.stream(model, axis="T"))


def test_rows_of_a_mask_are_those_of_the_batch():
    """Where lengths of rows are an input of their own, and frames are padded behind the mask."""
    s = Stack(np.random.default_rng(0))
    count = s.add("Squeeze", s.add("Slice", s.add("Shape", "x"), s.ints(1), s.ints(2)), s.ints(0))
    numbers = s.add("Unsqueeze", s.add("Range", s.const(np.array(0)), count, s.const(np.array(1))), s.ints(0))
    mask = s.add("Cast", s.add("Less", numbers, s.add("Unsqueeze", "lengths", s.ints(1))), to=onnx.TensorProto.FLOAT)
    x = s.add("Transpose", s.add("Mul", "x", s.add("Unsqueeze", mask, s.ints(2))), perm=[0, 2, 1])
    s.add("Conv", s.add("Pad", x, s.ints(0, 0, 2, 0, 0, 0)), s.weight(6, 6, 3))
    s.add("Transpose", s.value, perm=[0, 2, 1])
    model = s.model()
    model.graph.input.append(onnx.helper.make_tensor_value_info("lengths", onnx.TensorProto.INT64, ["N"]))
    assert rnn_lower.prove_streaming(model, rnn_lower.stream(model, axis="T"))


def uniform(s: Stack) -> None:
    """Zeros of all frames that are added, and as first states of rows that are frames."""
    s.add("Add", s.value, s.const(np.ones((1, 12, 6), np.float32)))
    rows = s.add("Reshape", s.value, s.ints(12, 6, 1))
    shape = s.add("Concat", s.ints(1), s.add("Slice", s.add("Shape", rows), s.ints(0), s.ints(1)), s.ints(6), axis=0)
    first = s.add("Expand", s.const(np.zeros((1, 12, 6), np.float32)), shape)
    rows = s.add("Transpose", rows, perm=[1, 0, 2])
    s.add("GRU", rows, s.weight(1, 18, 1), s.weight(1, 18, 6), "", "", first, hidden_size=6, count=2)
    s.add("Reshape", s.value.replace("_0", "_1"), s.ints(1, 12, 6))


def chomped(s: Stack) -> None:
    x = s.add("Transpose", s.value, perm=[0, 2, 1])
    x = s.add("Slice", s.add("Conv", x, s.weight(6, 6, 3), pads=[2, 2]), s.ints(0), s.ints(12), s.ints(2))
    s.add("Transpose", x, perm=[0, 2, 1])


def unpadded(s: Stack) -> None:
    x = s.add("Conv", s.add("Transpose", s.value, perm=[0, 2, 1]), s.weight(6, 6, 3))
    s.add("Reshape", s.add("Transpose", x, perm=[0, 2, 1]), s.ints(1, 10, 6))


@pytest.mark.parametrize("layer", [uniform, chomped, unpadded], ids=lambda one: one.__name__)
def test_what_an_export_has_fixed(layer):
    s = Stack(np.random.default_rng(0))
    layer(s)
    model, x = s.model(), s.rng.uniform(-1, 1, (1, 12, 6)).astype(np.float32)
    session = rnn_lower.StreamingSession(rnn_lower.stream(model, axis="x[1]", dims={"T": 12, "N": 1}))
    got = [session.run(x[:, k : k + 3])["y"] for k in range(0, 12, 3)]
    close([np.concatenate(got, 1)], run_onnxruntime(model, {"x": x}))


def test_a_length_of_several_inputs_that_an_export_has_fixed():
    s = Stack(np.random.default_rng(0))
    s.add("Mul", "x", s.add("Transpose", "z", perm=[1, 0, 2]))
    causal_conv(s)
    model = s.model()
    model.graph.input.append(onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, ["T", "N", 6]))
    made = rnn_lower.stream(model, axis="x[1],z[0]", dims={"T": 12})
    assert rnn_lower.StreamingSession(made).plan.inputs == {"x": 1, "z": 0}
    assert rnn_lower.prove_streaming(model, made)
    with pytest.raises(rnn_lower.RnnLowerError, match="must have the same fixed size"):
        rnn_lower.stream(model, axis="x[1],z[2]", dims={"T": 12})


@pytest.mark.parametrize("target", ["openvino", "tract"])
def test_counting_frames_elsewhere(target):
    """A state that counts, where each chunk has one frame."""
    if why := missing(target):
        pytest.skip(why)
    s, one = Stack(np.random.default_rng(0)), np.array(1)
    count = s.add("Squeeze", s.add("Slice", s.add("Shape", "x"), s.ints(1), s.ints(2)), s.ints(0))
    numbers = s.add("Range", s.const(one), s.add("Add", count, s.const(one)), s.const(one))
    s.add("Div", "x", s.add("Unsqueeze", s.add("Cast", numbers, to=onnx.TensorProto.FLOAT), s.ints(1)))
    made = rnn_lower.stream(s.model(), axis="T", step=1, target=target, dims={"N": 2})
    sessions = [
        rnn_lower.StreamingSession(made),
        rnn_lower.StreamingSession(made, run=lambda feeds: RUNNERS[target][1](made, feeds)),
    ]
    for _ in range(4):
        frame = s.rng.uniform(-1, 1, (2, 1, 6)).astype(np.float32)
        wanted, got = (session.run(frame)["y"] for session in sessions)
        close([got], [wanted])


FIRST = {
    "differences": "l = Slice (x, i, e, i) b = Slice (x, z, m, i) d = Sub (l, b) y = Concat <axis = 1> (f, d)",
    "differences of padding": "l = Slice (x, i, e, i) b = Slice (x, z, m, i) d = Sub (l, b) y = Pad (d, p)",
    "repeated": "b = Slice (x, z, m, i) c = Concat <axis = 1> (f, b) y = Sub (x, c)",
    "repeated in front": "c = Concat <axis = 1> (f, x) l = Slice (c, i, e, i) b = Slice (c, z, m, i) y = Mul (l, b)",
    "subtracted": "y = Sub (x, f)",
}  # fmt: skip
"""What becomes of frames x and the first one, f."""


@pytest.mark.parametrize("kind", FIRST)
def test_the_first_frame_counts_also_after_chunks_without_frames(kind):
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        main (float[N, T, 3] x) => (float[N, T, 3] y) <
            int64[1] z = {{0}}, int64[1] i = {{1}}, int64[1] m = {{-1}}, int64[1] e = {{9223372036854775807}},
            int64[6] p = {{0, 1, 0, 0, 0, 0}}
        > {{ f = Slice (x, z, i, i) {FIRST[kind]} }}
    """)
    made = rnn_lower.stream(model, axis="T")
    assert rnn_lower.prove_streaming(model, made)
    x = np.random.default_rng(0).uniform(-1, 1, (2, 5, 3)).astype(np.float32)
    session = rnn_lower.StreamingSession(made)
    chunks = [session.run(x[:, begin:end])["y"] for begin, end in ((0, 0), (0, 1), (1, 1), (1, 3), (3, 3), (3, 5))]
    close([np.concatenate(chunks, 1)], run_onnxruntime(model, {"x": x}))


CUT = {
    "columns of the first frame": (
        "f = Slice (x, a, c, j) s = Shape (f) k = Gather (s, w) n = Shape (x) t = Gather (n, i)"
        " e2 = Concat <axis = 0> (t, k) y = Slice (x, a, e2, j)"
    ),
    "frames that are late, in the batch and back": (
        "l = Slice (x, i, e, i) b = Slice (x, z, m, i) d = Sub (l, b) r = Reshape (d, q) h = Tanh (r) s = Shape (d)"
        " u = Reshape (h, s) y = Pad (u, p)"
    ),
}


@pytest.mark.parametrize("kind", CUT)
def test_sizes_of_what_is_cut(kind):
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        main (float[N, T, 3] x) => (float[N, T, K] y) <
            int64[1] z = {{0}}, int64[1] i = {{1}}, int64[1] m = {{-1}}, int64[1] e = {{9223372036854775807}},
            int64[1] w = {{2}}, int64[2] a = {{0, 0}}, int64[2] c = {{1, 2}}, int64[2] j = {{1, 2}},
            int64[2] q = {{-1, 3}}, int64[6] p = {{0, 1, 0, 0, 0, 0}}
        > {{ {CUT[kind]} }}
    """)
    made = rnn_lower.stream(model, axis="T")
    assert rnn_lower.prove_streaming(model, made)
    x = np.random.default_rng(0).uniform(-1, 1, (2, 5, 3)).astype(np.float32)
    session = rnn_lower.StreamingSession(made)
    chunks = [session.run(x[:, begin:end])["y"] for begin, end in ((0, 1), (1, 2), (2, 5))]
    close([np.concatenate(chunks, 1)], run_onnxruntime(model, {"x": x}))


@pytest.mark.parametrize("keep_native", [False, True])
@pytest.mark.parametrize("opset", [7, 9, 10])
def test_an_older_opset_is_converted_first(opset, keep_native):
    """What the rules need may be missing from the opset of the model; `opset` makes the model new enough for them."""
    s = Stack(np.random.default_rng(opset), opset)
    padded = s.add("Pad", s.add("Transpose", "x", perm=[0, 2, 1]), pads=[0, 0, 2, 0, 0, 0], mode="constant", value=0.5)
    x = s.add("Transpose", s.add("Conv", padded, s.weight(6, 6, 3)), perm=[2, 0, 1])
    s.add("LSTM", x, s.weight(1, 24, 6), s.weight(1, 24, 6), hidden_size=6)
    s.add("Transpose", s.add("Squeeze", s.value, axes=[1]), perm=[1, 0, 2])
    model, feeds = s.model(), {"x": s.rng.uniform(-1, 1, (2, 13, 6)).astype(np.float32)}
    with pytest.raises(rnn_lower.UnsupportedError, match=f"Pad .* but the model has opset {opset}; add opset=17"):
        rnn_lower.stream(model, axis="T")
    for lengths in (None, [1] * 13):
        same_in_chunks(model, feeds, "T", s.rng, lengths, opset=17, keep_native=keep_native)


OF_FEW_FRAMES = {
    "ReduceMin over channels": "c = Conv <kernel_shape = [3]> (x, w) y = ReduceMin <axes = [1]> (c)",
    "ReduceMax over channels": "c = Conv <kernel_shape = [3]> (x, w) y = ReduceMax <axes = [1]> (c)",
    "ReduceProd over channels": "c = Conv <kernel_shape = [3]> (x, w) y = ReduceProd <axes = [1]> (c)",
    "LpPool of p = 1": "y = LpPool <kernel_shape = [3], pads = [2, 0], p = 1> (x)",
    "LpPool of p = 3": "y = LpPool <kernel_shape = [3], pads = [1, 0], p = 3> (x)",
    "groups of a ConvTranspose": (
        "c = ConvTranspose <kernel_shape = [3], group = 2, strides = [2]> (x, v, b) y = Slice (c, z, m, t)"
    ),
}


@pytest.mark.parametrize("kind", OF_FEW_FRAMES)
def test_of_chunks_that_may_be_empty(kind):
    """The first chunk of one frame has none behind a Conv without padding."""
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        main (float[N, 2, T] x) => (float[N, C, U] y)
        <float[2, 2, 3] w = {{{", ".join(f"{n / 8}" for n in range(-5, 7))}}}, float[2] b = {{1.0, 2.0}},
         float[2, 1, 3] v = {{0.5, -1.0, 1.5, 2.0, -0.5, 1.0}}, int64[1] z = {{0}}, int64[1] m = {{-1}}, int64[1] t = {{2}}>
        {{ {OF_FEW_FRAMES[kind]} }}
    """)
    made = rnn_lower.stream(model, axis="T")
    proof = rnn_lower.prove_streaming(model, made)
    assert proof, proof.verdict
    x = np.random.default_rng(0).uniform(-1, 1, (2, 2, 9)).astype(np.float32)
    (wanted,) = run_onnxruntime(model, {"x": x})
    session = rnn_lower.StreamingSession(made)
    got = np.concatenate([session.run(x[..., k : k + 1])["y"] for k in range(9)], 2)
    close([got], [wanted[..., : got.shape[2]]])


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("way", ["Concat", "Expand"])
def test_as_many_zeros_as_the_first_frames(count, way):
    """As torch.zeros_like(x[:, :2]) is exported; a chunk may have fewer frames."""
    last = "y = Concat <axis = 1> (o, k)" if way == "Concat" else "g = Expand (h, s) r = ReduceSum (g) y = Add (x, r)"
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        main (float[N, T, 3] x) => (float[N, T, 3] y)
        <int64[1] z = {{0}}, int64[1] c = {{{count}}}, int64[1] m = {{-{count}}}, int64[1] i = {{1}},
         float[1, 1, 1] h = {{0.5}}>
        {{ f = Slice (x, z, c, i) s = Shape (f) o = ConstantOfShape (s) k = Slice (x, z, m, i) {last} }}
    """)
    if way == "Expand":
        for node in [node for node in model.graph.node if node.output[0] in ("o", "k")]:
            model.graph.node.remove(node)
    made = rnn_lower.stream(model, axis="T")
    proof = rnn_lower.prove_streaming(model, made)
    assert proof, proof.verdict
    x = np.random.default_rng(0).uniform(-1, 1, (1, 7, 3)).astype(np.float32)
    session = rnn_lower.StreamingSession(made)
    got = np.concatenate([session.run(x[:, k : k + 1])["y"] for k in range(7)], 1)
    close([got], run_onnxruntime(model, {"x": x}))


def with_gru(text: str, imports: int = 17) -> onnx.ModelProto:
    """A model whose text uses W [1, 9, 3] and R [1, 9, 3]."""
    rng = np.random.default_rng(5)
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {imports}]> {text}')
    weights = [rng.standard_normal((1, 9, 3)).astype(np.float32) for _ in "WR"]
    model.graph.initializer.extend(map(onnx.numpy_helper.from_array, weights, "WR"))
    return model


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("first", ["Gather <axis = 0> (a, z)", "Slice (a, o, i, o)"])
def test_an_initial_state_in_the_shape_of_the_first_frame(first, reset):
    """As torch.zeros_like(x[0]) is exported: only the shape of the frame counts, so it is no state."""
    model = with_gru(f"""
        main (float[T, N, 3] x) => (float[T, 1, N, 3] y)
        <int64 z = {{0}}, int64[1] o = {{0}}, int64[1] i = {{1}}, float h = {{0.5}}, int64[3] s = {{1, -1, 3}}> {{
            a = Sigmoid (x) f = {first} k = Shape (f) e = Expand (h, k) c = Reshape (e, s)
            y = GRU <hidden_size = 3> (a, W, R, , , c)
        }}""")
    made = rnn_lower.stream(model, axis="T", reset=reset)
    proof = rnn_lower.prove_streaming(model, made)
    assert proof, proof.verdict
    assert len(rnn_lower.StreamingSession(made).plan.states) == 1
    x = np.random.default_rng(0).uniform(-1, 1, (7, 2, 3)).astype(np.float32)
    session = rnn_lower.StreamingSession(made)
    close([np.concatenate([session.run(x[k : k + 1])["y"] for k in range(7)])], run_onnxruntime(model, {"x": x}))


REPEATED = {
    "a constant": "h = Identity (k)",
    "a part of a constant": "p, q = Split <axis = 2, num_outputs = 2> (w) h = Slice (p, z, i, z)",
    "one row": "r = Slice (k, z, i, i) h = Expand (r, e)",
    "zeros": "h = ConstantOfShape (e)",
}
"""Initial states of a GRU whose batch has the 30 frames of an export. k [1, 30, 3] and w [1, 30, 6] are constants."""


@pytest.mark.parametrize("step", [None, 1])
@pytest.mark.parametrize("kind", REPEATED)
def test_an_initial_state_that_is_the_same_for_each_frame(kind, step):
    """As exporters with a fixed length write that of a recurrent node over frequencies."""
    model = with_gru(f"""
        main (float[2, 30, 3] x) => (float[2, 1, 30, 3] y)
        <int64[1] z = {{0}}, int64[1] i = {{1}}, int64[3] e = {{1, 30, 3}}>
        {{ {REPEATED[kind]} g = GRU <hidden_size = 3> (x, W, R, , l, h) y = Tanh (g) }}""", 18)  # fmt: skip
    row, lengths = np.array([0.5, -1, 2, 0, 1, 1], np.float32), np.full(30, 1, np.int32)
    k, w = (np.tile(row[:size], (1, 30, 1)) for size in (3, 6))
    model.graph.initializer.extend(map(onnx.numpy_helper.from_array, (k, w, lengths), "kwl"))
    made = rnn_lower.stream(model, axis="x[1]", step=step)
    assert "Split" not in [node.op_type for node in made.graph.node if "w" in node.input]
    proof = rnn_lower.prove_streaming(model, made)
    assert proof, proof.verdict
    x = np.random.default_rng(0).uniform(-1, 1, (2, 30, 3)).astype(np.float32)
    session, ends = rnn_lower.StreamingSession(made), range(31) if step else (0, 1, 9, 30)
    got = [session.run(x[:, a:b])["y"] for a, b in itertools.pairwise(ends)]
    close([np.concatenate(got, 2)], run_onnxruntime(model, {"x": x}))


def test_an_initial_state_that_differs_between_frames_is_refused():
    model = with_gru(
        "main (float[2, 30, 3] x) => (float[2, 1, 30, 3] y) { y = GRU <hidden_size = 3> (x, W, R, , , k) }"
    )
    k = np.zeros((1, 30, 3), np.float32)
    k[0, 29, 2] = 1
    model.graph.initializer.append(onnx.numpy_helper.from_array(k, "k"))
    with pytest.raises(rnn_lower.UnsupportedError, match="its initial states differ from frame to frame"):
        rnn_lower.stream(model, axis="x[1]")


@pytest.mark.parametrize("step", [None, 2])
def test_an_output_whose_frames_have_a_row_for_each_sequence(step, tmp_path):
    """As language models have it: decoded = linear(y).view(-1, words), time first."""
    model = with_gru("""
        main (float[T, N, 3] x) => (float[R, 3] y) <int64[2] s = {-1, 3}> {
            r = GRU <hidden_size = 3> (x, W, R) y = Reshape (r, s)
        }""")
    onnx.save(model, tmp_path / "in.onnx")
    result = api.stream_file(tmp_path / "in.onnx", tmp_path / "out.onnx", axis="T", step=step)
    made = onnx.load(tmp_path / "out.onnx")
    proof = rnn_lower.prove_streaming(model, made)
    assert proof, proof.verdict
    report = api.check_streaming(result, made)
    assert report.ok, report
    x = np.random.default_rng(0).uniform(-1, 1, (6, 4, 3)).astype(np.float32)
    session = rnn_lower.StreamingSession(made)
    close([np.concatenate([session.run(x[k : k + 2])["y"] for k in (0, 2, 4)])], run_onnxruntime(model, {"x": x}))
    node = next(node for node in made.graph.node if node.op_type == "Reshape" and "y" in node.output)
    node.output[0] = "whole"
    made.graph.node.append(onnx.helper.make_node("Slice", ["whole", "from", "until"], ["y"], name="lost"))
    limits = [onnx.numpy_helper.from_array(np.array([n]), name) for n, name in ((1, "from"), (1 << 60, "until"))]
    made.graph.initializer.extend(limits)
    assert not rnn_lower.prove_streaming(model, made)
    assert not api.check_streaming(result, made).ok


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_half_precision_is_proved(op):
    """Nothing declares the type of what the node reads."""
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[op]
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        main (float16[N, T, 3] x) => (float16[T, 1, N, 3] y) {{
            t = Transpose <perm = [1, 0, 2]> (x) y = {op} <hidden_size = 3> (t, W, R)
        }}""")
    rng = np.random.default_rng(5)
    weights = [rng.standard_normal((1, 3 * gates, 3)).astype(np.float16) for _ in "WR"]
    model.graph.initializer.extend(map(onnx.numpy_helper.from_array, weights, "WR"))
    proof = rnn_lower.prove_streaming(model, rnn_lower.stream(model, axis="T"))
    assert proof, proof.verdict


def test_a_pooling_that_names_the_order_of_its_indices_is_proved():
    model = with_gru("""
        main (float[T, N, 3] x) => (float[T, 1, N, 3] y) {
            p = MaxPool <kernel_shape = [3], pads = [1, 1], storage_order = 0> (x) y = GRU <hidden_size = 3> (p, W, R)
        }""")
    proof = rnn_lower.prove_streaming(model, rnn_lower.stream(model, axis="T"))
    assert proof, proof.verdict


VIEWS = {
    "of the input's length": "q = Concat <axis = 0> (n, t, f) y = Reshape <allowzero = 1> (c, q)",
    "of the input's length, 0 copies": "q = Concat <axis = 0> (n, t, f) y = Reshape (c, q)",
    "of its own length": "k = Shape <start = 1, end = 2> (c) q = Concat <axis = 0> (n, k, f) y = Reshape (c, q)",
    "merged and back, -1 columns": (
        "k = Shape <start = 1, end = 2> (c) b = Mul (n, k) q = Concat <axis = 0> (b, m) d = Reshape (c, q) h = Tanh (d)"
        " p = Concat <axis = 0> (n, k, m) y = Reshape (h, p)"
    ),
    "merged and back": (
        "b = Mul (n, t) q = Concat <axis = 0> (b, f) d = Reshape <allowzero = 1> (c, q) h = Tanh (d)"
        " p = Concat <axis = 0> (n, t, f) y = Reshape <allowzero = 1> (h, p)"
    ),
}
"""What becomes of frames c [N, frames, 2, 2] behind a Conv, with the sizes n, t and f that the shape should have."""


@pytest.mark.parametrize("step", [None, 2])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("kind", VIEWS)
def test_a_reshape_behind_a_conv_whose_frames_are_late(kind, padded, stride, step):
    """As view(batch, frames, -1) of Conv2dSubsampling is exported: the number of frames comes from the input."""
    pads = "[1, 0, 1, 0]" if padded else "[0, 0, 0, 0]"
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        main (float[N, T, 4] x) => (float[N, U, 4] y)
        <float[2, 1, 3, 3] w = {{{", ".join(f"{n / 8}" for n in range(-9, 9))}}}, int64[1] f = {{4}}, int64[1] a = {{1}}, int64[1] m = {{-1}},
         int64[1] s = {{{stride}}}, int64[1] less = {{{1 if padded else 3}}}>
        {{ n = Shape <start = 0, end = 1> (x) l = Shape <start = 1, end = 2> (x) r = Sub (l, less) i = Div (r, s)
           t = Add (i, a) u = Unsqueeze (x, a) v = Conv <strides = [{stride}, 1], pads = {pads}> (u, w)
           c = Transpose <perm = [0, 2, 1, 3]> (v) {VIEWS[kind]} }}
    """)
    made = rnn_lower.stream(model, axis="T", delay=padded, step=None if step is None else step * stride)
    proof = rnn_lower.prove_streaming(model, made)
    assert proof, proof.verdict
    x = np.random.default_rng(0).uniform(-1, 1, (2, 12, 4)).astype(np.float32)
    (wanted,) = run_onnxruntime(model, {"x": x})
    for lengths in ([2 * stride] * (6 // stride),) if step else ([stride] * (12 // stride), [4, 2, 2, 4]):
        session, ends = rnn_lower.StreamingSession(made), np.cumsum([0, *lengths])
        got = np.concatenate([session.run(x[:, a:b])["y"] for a, b in itertools.pairwise(ends)], 1)
        assert got.shape[1] >= wanted.shape[1] - padded
        close([got], [wanted[:, : got.shape[1]]])


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize("twice", [False, True])
def test_a_squeeze_without_axes_keeps_the_axis_of_time(opset, twice):
    """As beat trackers are exported, whose batch size is 1; a chunk of one frame has one more axis of size 1."""
    unsqueezed = "u = Unsqueeze <axes = [1]> (x)" if opset < 13 else "u = Unsqueeze (x, i)"
    squeezed = "s = Squeeze (g) y = Squeeze (s)" if twice else "y = Squeeze (g)"
    model = with_gru(f"""
        main (float[T, 3] x) => (float[T, 3] y) <int64[1] i = {{1}}> {{
            {unsqueezed} g = GRU <hidden_size = 3> (u, W, R) {squeezed}
        }}""", opset)  # fmt: skip
    made = rnn_lower.stream(model, axis="T")
    assert rnn_lower.prove_streaming(model, made)
    x = np.random.default_rng(0).uniform(-1, 1, (9, 3)).astype(np.float32)
    session = rnn_lower.StreamingSession(made)
    got = np.concatenate([session.run({"x": x[a:b]})["y"] for a, b in itertools.pairwise([0, 1, 2, 5, 9])])
    close([got], run_onnxruntime(model, {"x": x}))


def test_a_squeeze_without_axes_of_a_single_frame_is_refused():
    """The model itself removes the axis of time."""
    model = with_gru("""
        main (float[1, 1, 3] x) => (float[3] y) { g = GRU <hidden_size = 3> (x, W, R) y = Squeeze (g) }""")
    with pytest.raises(rnn_lower.UnsupportedError, match="it lists no axes, and removes the time axis of the export"):
        rnn_lower.stream(model, axis="x[0]")


def test_an_initial_state_with_a_default_is_refused():
    model = with_gru("""
        main (float[T, 2, 3] x, float[1, 2, 3] h = {0, 0, 0, 0, 0, 0}) => (float[T, 1, 2, 3] y, float[1, 2, 3] z)
        { y, z = GRU <hidden_size = 3> (x, W, R, , , h) }""")  # fmt: skip
    with pytest.raises(rnn_lower.UnsupportedError, match="which has a default; remove its initializer"):
        rnn_lower.stream(model, axis="T")


def test_the_last_frame_of_a_delayed_value():
    """As keyword spotters take it behind a Conv without padding: y[:, -1]; with a step, no chunk lacks frames."""
    model = with_gru("""
        main (float[T, 1, 3] x) => (float[1, 1, 3] y) <int64[1] two = {2}, int64[1] zero = {0}, int64[1] end = {9223372036854775807},
        int64 last = {-1}> {
            late = Slice (x, two, end, zero) g = GRU <hidden_size = 3> (late, W, R) y = Gather <axis = 0> (g, last)
        }""")
    with pytest.raises(rnn_lower.UnsupportedError, match="which a chunk may lack; pass step"):
        rnn_lower.stream(model, axis="T")
    session = rnn_lower.StreamingSession(rnn_lower.stream(model, axis="T", step=1))
    x = np.random.default_rng(0).uniform(-1, 1, (9, 1, 3)).astype(np.float32)
    got = [session.run({"x": x[k : k + 1]})["y"] for k in range(9)][-1]
    close([got], run_onnxruntime(model, {"x": x}))


@pytest.mark.parametrize("length", [2, 3, 4])
def test_a_stream_of_a_model_of_few_frames_is_proved(length):
    model = with_gru(f"""
        main (float[{length}, 2, 3] x) => (float[{length}, 1, 2, 3] y) {{ y = GRU <hidden_size = 3> (x, W, R) }}
        """, 17)  # fmt: skip
    assert rnn_lower.prove_streaming(model, rnn_lower.stream(model, axis="x[0]"))


HALVES = {
    "halves of the columns": "k = Gather <axis = 0> (s, m) h = Div (k, two) a = Slice (f, z, h, m) b = Slice (f, h, k, m)",
    "every second one": (
        "k = Gather <axis = 0> (s, m) h = Sub (k, i) a = Slice (f, z, h, m, two) b = Slice (f, h, n, m, back)"
    ),
}


@pytest.mark.parametrize("step", [None, 3])
@pytest.mark.parametrize("opset", [11, 13, 17])
@pytest.mark.parametrize("kind", HALVES)
def test_gains_that_are_the_same_for_all_frames(kind, opset, step):
    """As FiLM is exported: gain, bias = linear(e).unsqueeze(1).chunk(2, -1), where the bounds of chunk are computed."""
    unsqueezed = "f = Unsqueeze <axes = [1]> (g)" if opset < 13 else "f = Unsqueeze (g, i)"
    weights = np.random.default_rng(3).uniform(-1, 1, 18).round(2)
    model = with_gru(f"""
        main (float[N, T, 3] x, float[N, 3] e) => (float[T, 1, N, 3] y)
        <float[3, 6] v = {{{", ".join(map(str, weights))}}}, int64[1] z = {{0}}, int64[1] i = {{1}}, int64[1] m = {{-1}},
         int64[1] two = {{2}}, int64[1] back = {{-2}}, int64[1] n = {{-9223372036854775808}}> {{
            g = Gemm (e, v) {unsqueezed} s = Shape (f) {HALVES[kind]}
            q = Mul (x, a) r = Add (q, b) t = Transpose <perm = [1, 0, 2]> (r) y = GRU <hidden_size = 3> (t, W, R)
        }}""", opset)  # fmt: skip
    made = rnn_lower.stream(model, axis="T", step=step)
    proof = rnn_lower.prove_streaming(model, made)
    assert proof, proof.verdict
    rng = np.random.default_rng(0)
    x, e = (rng.uniform(-1, 1, shape).astype(np.float32) for shape in ((2, 9, 3), (2, 3)))
    session, ends = rnn_lower.StreamingSession(made), [0, 3, 6, 9] if step else [0, 1, 4, 9]
    got = np.concatenate([session.run({"x": x[:, a:b], "e": e})["y"] for a, b in itertools.pairwise(ends)])
    close([got], run_onnxruntime(model, {"x": x, "e": e}))


BAKED = {
    "time first": ("7, B, 3", "t = Transpose <perm = [1, 0, 2]> (x) g = GRU <hidden_size = 3> (t, W, R)", "g, a"),
    "each frame becomes three": ("B, 21, 1", "", "x, b"),
    "sequences of rows": (
        "B, 3, 7, 1",
        "t = Transpose <perm = [0, 2, 1]> (x) k = Shape <start = 1, end = 2> (x) q = Concat <axis = 0> (m, k, i)"
        " r = Reshape (t, q) h = Tanh (r)",
        "h, c",
    ),
}
"""The declared shape of y, what becomes of frames x [N, T, 3], and the Reshape in which T is fixed as 7, and -1 is N."""


@pytest.mark.parametrize("declared", ["N", "M"])
@pytest.mark.parametrize("kind", BAKED)
def test_a_length_that_an_export_has_fixed_where_its_input_is_free(kind, declared):
    """With -1 the shape fits other lengths too, but the export tells that -1 is the batch size there."""
    shape, before, operands = BAKED[kind]
    model = with_gru(f"""
        main (float[N, T, 3] x) => (float[{shape.replace("B", declared)}] y)
        <int64[3] a = {{7, -1, 3}}, int64[3] b = {{-1, 21, 1}}, int64[4] c = {{-1, 3, 7, 1}}, int64[1] m = {{-1}},
         int64[1] i = {{1}}> {{ {before} y = Reshape <allowzero = 1> ({operands}) }}
    """)
    if declared == "M":
        with pytest.raises(rnn_lower.UnsupportedError, match=r"merges|mixes"):
            rnn_lower.stream(model, axis="T")
        return
    made = rnn_lower.stream(model, axis="T")
    for rows in (1, 2):
        x, session = np.ones((rows, 7, 3), np.float32).cumsum(1), rnn_lower.StreamingSession(made)
        got = [session.run(x[:, a:b])["y"] for a, b in itertools.pairwise((0, 1, 4, 5, 7))]
        close([np.concatenate(got, session.plan.outputs["y"])], run_onnxruntime(model, {"x": x}))
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 7
    proof = rnn_lower.prove_streaming(model, made)
    assert proof, proof.verdict


@pytest.mark.parametrize("rest", ["3", "M", "6"])
def test_a_length_that_an_export_has_fixed_beside_a_rest(rest):
    """As x.view(b, t, groups, -1) is exported: the shape fits other lengths too, unless the export tells what -1 is."""
    model = with_gru(f"""
        main (float[1, T, 6] x) => (float[1, S, 6] y)
        <int64[4] a = {{1, 9, 2, -1}}, int64[3] b = {{1, 9, 6}}, float[1, 9, 2, {rest}] r>
        {{ r = Reshape (x, a) h = Tanh (r) y = Reshape (h, b) }}""")
    options = {"axis": "T"} if rest == "3" else {"axis": "x[1]", "dims": {"x[1]": 9}}
    if rest != "3":
        advice = (
            r'; if the export fixed .*, pass dims={"x\[1\]": 9} axis="x\[1\]"' if rest == "M" else "it mixes frames"
        )
        with pytest.raises(rnn_lower.UnsupportedError, match=advice):
            rnn_lower.stream(model, axis="T")
    session, x = (
        rnn_lower.StreamingSession(rnn_lower.stream(model, **options)),
        np.ones((1, 9, 6), np.float32).cumsum(1),
    )
    got = [session.run(x[:, a:b])["y"] for a, b in itertools.pairwise((0, 1, 4, 9))]
    close([np.concatenate(got, 1)], run_onnxruntime(model, {"x": x}))


@pytest.mark.parametrize("view", ["n, t", "n, m"])
def test_a_recurrent_node_behind_a_reshape_is_unrolled(view):
    """The Reshape [batch, frames, columns] of late frames does not tell that a chunk has K of them."""
    model = with_gru(f"""
        main (float[N, T, 3] x) => (float[T, 1, N, 3] y)
        <float[3, 3, 3] w = {{{", ".join(f"{n / 16}" for n in range(-13, 14))}}}, int64[1] m = {{-1}}, int64[1] f = {{3}}>
        {{ n = Shape <start = 0, end = 1> (x) t = Shape <start = 1, end = 2> (x) b = Mul (n, t)
           u = Transpose <perm = [0, 2, 1]> (x) v = Conv <pads = [1, 1]> (u, w) c = Transpose <perm = [0, 2, 1]> (v)
           q = Concat <axis = 0> (b, f) d = Reshape (c, q) h = Tanh (d)
           p = Concat <axis = 0> ({view}, f) r = Reshape (h, p) s = Transpose <perm = [1, 0, 2]> (r)
           y = GRU <hidden_size = 3> (s, W, R) }}
    """)
    made = rnn_lower.stream(model, axis="T", step=2, delay=True)
    assert not {node.op_type for node in made.graph.node} & {"GRU", "Scan", "Loop"}
    proof = rnn_lower.prove_streaming(model, made)
    assert proof, proof.verdict
    x = np.random.default_rng(0).uniform(-1, 1, (2, 12, 3)).astype(np.float32)
    session = rnn_lower.StreamingSession(made)
    got = np.concatenate([session.run(x[:, k : k + 2])["y"] for k in range(0, 12, 2)])
    assert len(got) >= 10
    close([got], [run_onnxruntime(model, {"x": x})[0][: len(got)]])


def test_a_scan_of_which_only_the_body_declares_the_rank(tmp_path):
    """Inference gives up at a Split whose sizes an outer graph holds, and the output of the model has no shape."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 16]> g (float[T,N,4] x) => (float[T,N,2] y)
        <int64[2] halves = {2, 2}, float[1,2] h0 = {0.5, -0.5}> {
        hT, y = Scan (h, x) <num_scan_inputs = 1, body: graph = b (float[N,2] s, float[N,4] xt) => (float[N,2] t, float[N,2] o) {
            first, second = Split <axis = -1> (xt, halves) sum = Add (first, s) bent = Tanh (sum) t = Mul (bent, second)
            o = Identity (t) }> }""")
    scan = model.graph.node[0]
    shape = onnx.helper.make_node("Expand", ["h0", "rows"], ["h"])
    nodes = [
        onnx.helper.make_node("Shape", ["x"], ["batch"], start=1, end=2),
        onnx.helper.make_node("Concat", ["batch", "two"], ["rows"], axis=0), shape, scan,
    ]  # fmt: skip
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([2]), "two"))
    model.graph.output[0].type.tensor_type.ClearField("shape")
    path, out = str(tmp_path / "in.onnx"), str(tmp_path / "out.onnx")
    onnx.save(model, path)
    assert cli.main(["stream", path, out, "--time", "T", "--check", "--prove"]) == cli.DONE
