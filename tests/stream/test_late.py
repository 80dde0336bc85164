"""Frames that come late: windows without padding in front, and with padding behind."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from judge import run_onnxruntime
from layers import FEATURES, LATE, Stack, centred, dense, dual_path, gated, lstm, over_features
from streams import chunk_lengths, in_chunks

import rnn_lower

Layer = Callable[[Stack], object]


def conv(kernel: int, stride: int = 1, pads: tuple[int, int] = (0, 0), dilation: int = 1) -> Layer:
    def layer(s: Stack) -> None:
        s.add("Transpose", s.value, perm=[0, 2, 1])
        s.add("Conv", s.value, s.weight(FEATURES, FEATURES, kernel), s.weight(FEATURES), kernel_shape=[kernel],
              strides=[stride], pads=list(pads), dilations=[dilation])  # fmt: skip
        s.add("Transpose", s.value, perm=[0, 2, 1])
        s.every *= stride

    return layer


def transposed(kernel: int, stride: int, pads: tuple[int, int] = (0, 0)) -> Layer:
    def layer(s: Stack) -> None:
        s.add("Transpose", s.value, perm=[0, 2, 1])
        s.add("ConvTranspose", s.value, s.weight(FEATURES, FEATURES, kernel), s.weight(FEATURES), strides=[stride],
              pads=list(pads))  # fmt: skip
        s.add("Transpose", s.value, perm=[0, 2, 1])

    return layer


def without_first(s: Stack) -> None:
    s.add("Slice", s.value, s.ints(1), s.ints(2**63 - 1), s.ints(1))


def average(s: Stack) -> None:
    """A norm over the features as older exports have it."""
    s.add("Sub", s.value, s.add("ReduceMean", s.value, axes=[-1], keepdims=1))


def maximum(s: Stack) -> None:
    before = s.value
    s.add("ReduceMax", before, axes=[-1], keepdims=0)
    s.add("Div", before, s.add("Unsqueeze", s.value, s.ints(-1)))


def stack(*layers: Layer, opset: int = 17) -> onnx.ModelProto:
    made = Stack(np.random.default_rng(0), opset)
    for layer in layers:
        layer(made)
    return made.model()


def compared(model: onnx.ModelProto, frames: int = 24, **options: object) -> tuple[int, int, int]:
    """Random chunks and single frames against the whole; frames of the whole, frames in chunks, frames late."""
    x = np.random.default_rng(1).uniform(-1, 1, (2, frames, FEATURES)).astype(np.float32)
    streaming = rnn_lower.stream(model, axis="T", **options)
    onnx.checker.check_model(streaming, full_check=True)
    plan = rnn_lower.StreamingSession(streaming).plan
    whole, count = run_onnxruntime(model, {"x": x})[0], 0
    rng = np.random.default_rng(2)
    for lengths in ([plan.every] * (frames // plan.every), *(chunk_lengths(rng, frames, plan.every) for _ in range(3))):
        got = in_chunks(streaming, {"x": x}, lengths)["y"]
        count = got.shape[1]
        assert count, "nothing was compared"
        np.testing.assert_allclose(got, whole[:, :count], rtol=1e-4, atol=1e-5)
    return whole.shape[1], count, plan.late.get("y", 0)


@pytest.mark.parametrize("form", ["scan", "loop"])
@pytest.mark.parametrize(
    "behind", [lstm, over_features, dual_path, average, maximum, gated], ids=lambda one: one.__name__
)
def test_what_comes_after_it_gets_the_same_frames(behind, form):
    """Also chunks of no frames at all, which some operators of onnxruntime answer in ways of their own."""
    assert compared(stack(dense, conv(3), behind, dense), form=form) == (22, 22, 2)


@pytest.mark.parametrize(
    ("layers", "frames"),
    [
        ([conv(3)], (22, 22, 2)),
        ([conv(4, 2), conv(3, 2), lstm], (5, 5, 4)),  # as front ends of speech models have it
        ([conv(3, dilation=3), conv(2)], (17, 17, 7)),
        ([conv(5, pads=(2, 0)), conv(3, pads=(2, 0))], (22, 22, 2)),
        ([conv(3, 3), conv(2, 2)], (4, 4, 0)),  # windows that do not overlap: nothing is late
        ([conv(3, 2, pads=(1, 1)), conv(3, 2, pads=(1, 1))], (6, 6, 0)),  # padding behind that no chunk reaches
    ],
)
def test_windows_without_padding(layers, frames):
    assert compared(stack(*layers)) == frames


@pytest.mark.parametrize(
    ("layers", "frames"),
    [
        ([conv(3, pads=(1, 1))], (24, 23, 1)),
        ([centred, lstm, centred], None),
        ([conv(5, pads=(1, 2)), conv(4, 2, pads=(1, 1)), lstm, conv(3, pads=(1, 1))], None),
    ],
)
def test_padding_behind_has_to_be_asked_for(layers, frames):
    model = stack(*layers)
    with pytest.raises(rnn_lower.UnsupportedError, match=r"needs . future frames?, because .* to delay the outputs"):
        rnn_lower.stream(model, axis="T")
    found = compared(stack(*layers), delay=True)
    assert found == frames or (frames is None and found[0] > found[1] > found[0] - found[2] - 1)


@pytest.mark.parametrize("layer", LATE)
@pytest.mark.parametrize("seed", range(8))
def test_random_windows(layer, seed):
    made = Stack(np.random.default_rng(seed))
    for one in (dense, layer, lstm, layer):
        one(made)
    frames = made.every * (8 + made.ahead)
    compared(made.model(), frames, delay=True)


DECODERS = {
    "one stage": ([transposed(2, 1), without_first, lstm], 24, 23),
    "three stages": ([transposed(2, 1), without_first, dense, transposed(3, 1), without_first, transposed(2, 1)], 26, 22),
    "one row": ([conv(3, pads=(1, 1)), transposed(1, 1), lstm], 24, 23),
    "cropped": ([conv(3, pads=(1, 1)), transposed(3, 1, pads=(1, 1)), lstm], 24, 22),
    "strided": ([conv(3, pads=(1, 1)), transposed(2, 2), conv(3, pads=(1, 1)), transposed(3, 3)], 144, 135),
    "overlapping": ([conv(3, pads=(1, 1)), transposed(4, 2, pads=(1, 1)), conv(3, pads=(1, 1)), transposed(5, 2)], 99, 88),
}  # fmt: skip
"""Decoders of speech enhancement (DCCRN), and upsampling as in vocoders: frames of the whole, and in chunks."""


@pytest.mark.parametrize(("layers", "whole", "count"), DECODERS.values(), ids=DECODERS)
def test_transposed_convolutions_behind_a_delay(layers, whole, count):
    """Chunks of single frames give the first nodes no frames at all."""
    assert compared(stack(*layers), delay=True)[:2] == (whole, count)
    for options in ({}, {"step": 3}):
        made = rnn_lower.stream(stack(*layers), axis="T", delay=True, **options)
        assert rnn_lower.prove_streaming(stack(*layers), made).ok


@pytest.mark.parametrize("step", [4, 5])
def test_the_frames_before_a_delay_in_chunks_of_one_length(step):
    """A constant lists the frames of a chunk, and the number of frames so far is compared with it."""
    model = stack(conv(3, pads=(1, 1)), lstm, conv(4, 2, pads=(2, 1)), conv(3, pads=(1, 1)))
    step *= 2
    assert rnn_lower.prove_streaming(model, rnn_lower.stream(model, axis="T", delay=True, step=step)).ok


@pytest.mark.parametrize("step", [None, 3])
@pytest.mark.parametrize(("first", "more", "by"), [(1, 3, 1), (3, 7, 3), (2, 6, 2)])
def test_positions_of_a_padded_stream(first, more, by, step):
    """As FullSubNet has it: two frames behind, a running mean, and the first two frames removed."""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]> g (float[1,T,4] x) => (float[1,T,4] y)
        <int64[6] pads = {{0, 0, 0, 0, 2, 0}}, int64 axis = {{1}}, int64 first = {{{first}}}, int64 by = {{{by}}},
         int64 more = {{{more - 2 * by}}}, int64[1] two = {{2}}, int64[1] end = {{9223372036854775807}}, int64[1] one = {{1}},
         int64[2] around = {{0, 2}}> {{
        p = Pad (x, pads) s = CumSum (p, axis) n = Shape <start = 1, end = 2> (p) l = Squeeze (n) t = Mul (l, by)
        limit = Add (t, more) r = Range (first, limit, by) f = Cast <to = 1> (r) d = Unsqueeze (f, around)
        m = Div (s, d) z = Sub (p, m) y = Slice (z, two, end, one) }}""")
    made = rnn_lower.stream(model, axis="T", delay=True, step=step)
    assert rnn_lower.prove_streaming(model, made).ok
    x = np.random.default_rng(1).standard_normal((1, 24, 4)).astype(np.float32)
    got, (wanted,) = in_chunks(made, {"x": x}, [3] * 8)["y"], run_onnxruntime(model, {"x": x})
    assert got.shape[1] == 22
    np.testing.assert_allclose(got, wanted[:, :22], rtol=1e-4, atol=1e-5)


def test_check_compares_what_has_come(tmp_path):
    path, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(stack(conv(3, pads=(1, 1)), lstm), path)
    made = rnn_lower.api.stream_file(path, out, axis="T", delay=True)
    report = rnn_lower.api.check_streaming(made, out)
    assert report.ok
    assert (made.plan.late, made.plan.cut) == ({"y": 1}, ("y",))


def test_all_rows_begin_anew():
    session = rnn_lower.StreamingSession(rnn_lower.stream(stack(conv(3), lstm), axis="T"))
    x = np.random.default_rng(3).uniform(-1, 1, (2, 9, FEATURES)).astype(np.float32)
    first = session.run(x)["y"]
    saved = session.state
    more = session.run(x)["y"]
    assert (first.shape[1], more.shape[1]) == (7, 9)
    session.state = saved
    np.testing.assert_array_equal(session.run(x)["y"], more)
    session.reset()
    np.testing.assert_array_equal(session.run(x)["y"], first)


def test_a_transposed_conv_that_cuts_off_both_ends():
    """As vocoders have it: nothing waits for what is cut off in front; what is cut off behind has to be asked for."""

    def upsampled(s: Stack) -> None:
        s.add("Transpose", s.value, perm=[0, 2, 1])
        s.add("ConvTranspose", s.value, s.weight(FEATURES, FEATURES, 4), s.weight(FEATURES), strides=[2], pads=[1, 1])
        s.add("Transpose", s.value, perm=[0, 2, 1])

    model = stack(dense, upsampled, lstm)
    with pytest.raises(rnn_lower.UnsupportedError, match=r"outputs 2 frames beyond the end .* delay the outputs"):
        rnn_lower.stream(model, axis="T")
    assert compared(model, delay=True) == (48, 47, 0)


def upsampled(s: Stack) -> None:
    s.add("Transpose", s.value, perm=[0, 2, 1])
    s.add("ConvTranspose", s.value, s.weight(FEATURES, FEATURES, 4), s.weight(FEATURES), strides=[2])
    s.add("Transpose", s.value, perm=[0, 2, 1])


@pytest.mark.parametrize("encoder", [[conv(4, 2)], [conv(4, 2), conv(3, pads=(1, 1))]], ids=["unpadded", "centred"])
def test_the_message_names_the_option_that_is_enough(encoder):
    """As Demucs has it: an encoder without padding, and a decoder with overlaps that nothing crops."""
    model = stack(*encoder, lstm, upsampled)
    with pytest.raises(rnn_lower.UnsupportedError, match=r"\(delay\)|pass delay to delay the outputs"):
        rnn_lower.stream(model, axis="T")
    whole, count, _ = compared(model, delay=True)
    assert whole > count > 8


@pytest.mark.parametrize("behind", [0, 1, 2, -1])
@pytest.mark.parametrize("before", [-1, -2])
def test_a_pad_that_removes_the_first_frames(before, behind):
    """As DeepFilterNet has it: ConstantPad2d((0, 0, -lookahead, lookahead), 0)."""

    def shifted(s: Stack) -> None:
        s.add("Pad", s.value, s.ints(0, before, 1, 0, behind, -1), s.const(np.array(0.5, np.float32)))

    model = stack(dense, shifted, lstm)
    assert compared(model, delay=True)[:2] == (24 + before + behind, 24 + before + min(behind, 0))
    for step in (1, 3):
        assert rnn_lower.prove_streaming(model, rnn_lower.stream(model, axis="T", delay=True, step=step))


def test_no_delay_is_advised_where_it_does_not_help():
    """As ECAPA-TDNN has it: a centred convolution, and later statistics over all frames."""

    def pooled(s: Stack) -> None:
        s.add("ReduceMean", s.value, axes=[1], keepdims=0)

    for delay in (False, True):
        with pytest.raises(rnn_lower.UnsupportedError, match=r"ReduceMean .* reduces over time"):
            rnn_lower.stream(stack(centred, pooled), axis="T", delay=delay)
