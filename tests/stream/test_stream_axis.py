"""Which axis is the stream: named, found where there is one only, opened where its size is fixed; never guessed."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from judge import close, run_onnxruntime
from layers import Stack
from onenode import Case, build
from streams import in_chunks

import rnn_lower


def sized(model: onnx.ModelProto, **inputs: tuple[int | str, ...]) -> onnx.ModelProto:
    """With these sizes of its inputs."""
    for value in model.graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, inputs.get(value.name, ()), strict=False):
            dim.Clear()
            setattr(dim, "dim_value" if isinstance(size, int) else "dim_param", size)
    return model


def half_outside(cached: bool) -> onnx.ModelProto:
    """A GRU with its state outside, and a GRU or a causal convolution that has it nowhere. [N, T, 6]"""
    s = Stack(np.random.default_rng(0))
    s.add("Transpose", "x", perm=[0, 2, 1])
    if cached:
        s.add("Conv", s.value, s.weight(6, 6, 3), kernel_shape=[3], pads=[2, 0])
    x = s.add("Transpose", s.value, perm=[2, 0, 1])
    y, last = s.add("GRU", x, s.weight(1, 18, 6), s.weight(1, 18, 6), "", "", "h", count=2, hidden_size=6), ""
    last = s.nodes[-1].output[1]
    s.add("Squeeze", y, s.ints(1))
    if not cached:
        s.add("GRU", s.value, s.weight(1, 18, 6), s.weight(1, 18, 6), hidden_size=6)
        s.add("Squeeze", s.value, s.ints(1))
    s.add("Transpose", s.value, perm=[1, 0, 2])
    model = s.model()
    floats = onnx.TensorProto.FLOAT
    model.graph.input.append(onnx.helper.make_tensor_value_info("h", floats, [1, "N", 6]))
    model.graph.output.append(onnx.helper.make_tensor_value_info(last, floats, [1, "N", 6]))
    return model


@pytest.mark.parametrize("cached", [True, False])
def test_one_state_outside_is_not_all(cached):
    """The other one would be lost. Of several free sizes, that which the nodes run over is the stream."""
    rng = np.random.default_rng(1)
    feeds = {"x": rng.uniform(-1, 1, (2, 7, 6)).astype(np.float32), "h": np.zeros((1, 2, 6), np.float32)}
    for model in (half_outside(cached), sized(half_outside(cached), x=(2, "T", 6), h=(1, 2, 6))):
        got = in_chunks(rnn_lower.stream(model), feeds, [3, 1, 3])
        close([got["y"]], run_onnxruntime(model, feeds)[:1])


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_the_batch_is_not_taken_for_the_stream(direction):
    """It is the only size that is symbolic in many an export; every model runs row by row over it, and forgets."""
    model, _ = build(Case("GRU", T=6, direction=direction, dynamic=True))
    model = sized(model, X=(6, "N", 3))
    with pytest.raises(rnn_lower.RnnLowerError, match=r"no recurrent node runs along 'N'.*it may be the batch"):
        rnn_lower.stream(model)


@pytest.mark.parametrize("options", [{}, {"keep_native": True}, {"step": 1}])
def test_a_streaming_model_is_not_streamed_again(options):
    model, _ = build(Case("GRU", dynamic=True))
    made = rnn_lower.stream(model, axis="T", **options)
    for axis in (None, "T", "N"):
        with pytest.raises(rnn_lower.RnnLowerError, match="the model is already a streaming model"):
            rnn_lower.stream(made, axis=axis)


@pytest.mark.parametrize("options", [{}, {"keep_native": True}, {"step": 1}, {"form": "loop"}])
@pytest.mark.parametrize("op", ["GRU", "LSTM"])
def test_an_axis_of_a_fixed_size_is_opened(op, options):
    model, feeds = build(Case(op, T=6, N=2))
    lengths = [1] * 6 if "step" in options else [2, 3, 1]
    got = in_chunks(rnn_lower.stream(model, axis="X[0]", **options), feeds, lengths)
    close(list(got.values()), run_onnxruntime(model, feeds))


@pytest.mark.parametrize("shapes", [((2, 9, 3, 2), (2, 9, 6)), ((18, 6), (2, 9, 6)), ((2, 9, -1, 2), (-1, 9, 6))])
def test_a_length_that_the_exporter_has_fixed_is_freed(shapes):
    s = Stack(np.random.default_rng(0))
    for shape in shapes:
        s.add("Reshape", s.value, s.ints(*shape))
    s.add("Slice", s.value, s.ints(0), s.ints(9), s.ints(1))
    model = sized(s.model(), x=(2, 9, 6))
    made = rnn_lower.stream(model, axis="x[1]")
    assert rnn_lower.prove_streaming(model, made)
    session = rnn_lower.StreamingSession(made)
    assert session.run(np.zeros((2, 4, 6), np.float32))["y"].shape == (2, 4, 6)


def test_a_length_that_may_be_another_size_stays():
    s = Stack(np.random.default_rng(0))
    s.add("Reshape", "x", s.ints(9, 2, 6))
    with pytest.raises(rnn_lower.UnsupportedError):
        rnn_lower.stream(sized(s.model(), x=(2, 9, 6)), axis="x[1]")


@pytest.mark.parametrize("axis", ["x[1],z[0]", "A,z[0]", "A,B", "x[1],B"])
@pytest.mark.parametrize("names", ["AB", "A?", "A-", "?B", "??", "--", "AA"])
def test_two_inputs_whose_sizes_have_other_names(names, axis):
    """The caller says that both axes are the stream; "?" is no name, and "-" is no size at all."""
    s = Stack(np.random.default_rng(0))
    s.add("Mul", "x", s.add("Transpose", "z", perm=[1, 0, 2]))
    s.add("GRU", s.add("Transpose", s.value, perm=[1, 0, 2]), s.weight(1, 18, 6), s.weight(1, 18, 6), hidden_size=6)
    s.add("Transpose", s.add("Squeeze", s.value, s.ints(1)), perm=[1, 0, 2])
    model = s.model()
    model.graph.input.append(onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, ["B", "N", 6]))
    for value, place, name in zip(model.graph.input, (1, 0), names, strict=True):
        dim = value.type.tensor_type.shape.dim[place]
        dim.dim_param = name
        if name == "-":
            dim.Clear()
    if missing := [name for name in axis.split(",") if "[" not in name and name not in names]:
        with pytest.raises(rnn_lower.RnnLowerError, match=f'axis="{missing[0]}": no input'):
            rnn_lower.stream(model, axis=axis)
        return
    made = rnn_lower.stream(model, axis=axis)
    assert rnn_lower.StreamingSession(made).plan.inputs == {"x": 1, "z": 0}
    proof = rnn_lower.prove_streaming(model, made)
    assert proof, proof.verdict
    feeds = {
        name: s.rng.uniform(-1, 1, shape).astype(np.float32) for name, shape in (("x", (2, 9, 6)), ("z", (9, 2, 6)))
    }
    session, ends = rnn_lower.StreamingSession(made), (0, 1, 4, 9)
    chunks = [session.run({"x": feeds["x"][:, a:b], "z": feeds["z"][a:b]})["y"] for a, b in itertools.pairwise(ends)]
    close([np.concatenate(chunks, 1)], run_onnxruntime(model, feeds))
