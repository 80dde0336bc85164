"""StreamingSession: states are held, saved, restored and set back; models of others have theirs named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from judge import close, run_onnxruntime
from layers import Stack, causal_conv, conv, counted, encoded, lstm, pool, running_sum
from onenode import Case, build
from onnx import helper, numpy_helper
from paths import ROOT
from runners import RUNNERS, missing
from streams import in_chunks

import rnn_lower

DENOISER = ROOT / "models" / "torch_denoiser.onnx"
MODELS = {"torch_denoiser": 16, "torch_keyword_spotter": 20, "torch_language_model": 0}


def frames(name: str, rows: int, count: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    width = MODELS[name]
    return rng.uniform(-1, 1, (rows, count, width)).astype(np.float32) if width else rng.integers(0, 30, (rows, count))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "options", [{}, {"form": "loop"}, {"keep_native": True}, {"step": 1}, {"step": 3}, {"reset": True}]
)
def test_exported_models(name, options):
    model, x = onnx.load(ROOT / "models" / f"{name}.onnx"), frames(name, 3, 12)
    made = rnn_lower.stream(model, axis="time", **options)
    lengths = [options["step"]] * (12 // options["step"]) if "step" in options else [1, 5, 4, 2]
    (got,) = in_chunks(made, {"x": x}, lengths).values()
    close([got], run_onnxruntime(model, {"x": x}))


@pytest.mark.parametrize("target", ["openvino", "tract", "opencv", "tinygrad"])
@pytest.mark.parametrize("name", MODELS)
def test_one_step_on_other_runtimes(name, target):
    if why := missing(target):
        pytest.skip(why)
    model, x = onnx.load(ROOT / "models" / f"{name}.onnx"), frames(name, 1, 4)
    made = rnn_lower.stream(model, axis="time", step=1, target=target, dims={"batch": 1})
    session = rnn_lower.StreamingSession(made, run=lambda feeds: RUNNERS[target][1](made, feeds))
    got = np.concatenate([next(iter(session.run(x[:, k : k + 1]).values())) for k in range(4)], 1)
    close([got], run_onnxruntime(model, {"x": x}))


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_one_step_at_an_opset_of_the_target(op):
    model, feeds = build(Case(op, 21, T=4, N=1, optional=("B",)))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "time"
    made = rnn_lower.stream(model, axis="time", step=1, target="ethos-u")
    assert made.opset_import[0].version == 17
    assert rnn_lower.lint(made, "ethos-u").ok
    close(list(in_chunks(made, feeds, [1] * 4).values()), run_onnxruntime(model, feeds))


def test_state_is_saved_and_restored():
    session, x = (
        rnn_lower.StreamingSession(rnn_lower.stream(ROOT / "models" / "torch_denoiser.onnx", axis="time")),
        frames("torch_denoiser", 2, 9),
    )
    assert session.state == {}
    session.run(x[:, :5])
    saved = session.state
    once, again = session.run(x[:, 5:])["y"], None
    session.state = saved
    again = session.run({"x": x[:, 5:]})["y"]
    np.testing.assert_array_equal(once, again)
    saved[next(iter(saved))][:] = 7  # a copy
    assert not np.any(session.state[next(iter(saved))] == 7)


@pytest.mark.parametrize("rows", [[1], np.array([False, True])])
def test_rows_are_set_back(rows):
    model, x = onnx.load(ROOT / "models" / "torch_denoiser.onnx"), frames("torch_denoiser", 2, 9)
    session = rnn_lower.StreamingSession(rnn_lower.stream(model, axis="time"))
    session.run(x[:, :5])
    session.reset(rows)
    got = session.run(x[:, 5:])["y"]
    whole, anew = run_onnxruntime(model, {"x": x})[0], run_onnxruntime(model, {"x": x[:, 5:]})[0]
    close([got[0], got[1]], [whole[0, 5:], anew[1]])
    session.reset()
    close([session.run(x)["y"]], [whole])


def test_rows_of_a_restored_state_are_set_back():
    session = rnn_lower.StreamingSession(rnn_lower.stream(DENOISER, axis="time"))
    session.run(frames("torch_denoiser", 2, 5))
    again = rnn_lower.StreamingSession(rnn_lower.stream(DENOISER, axis="time"))
    again.state = session.state
    session.reset([1])
    again.reset([1])
    assert again.state
    for name, array in session.state.items():
        np.testing.assert_array_equal(again.state[name], array)


@pytest.mark.parametrize("order", ["TNF", "NTF", "FNT"])
@pytest.mark.parametrize("by", ["session", "input"])
def test_rows_of_a_padded_stream(order, by):
    """The batch may be any axis of what is padded."""
    s = Stack(np.random.default_rng(0))
    perm, back = [["NTF".index(axis) for axis in order], [order.index(axis) for axis in "NFT"]]
    pads = [2 * (axis == "T") for axis in order] + [0, 0, 0]
    s.add("Transpose", s.add("Pad", s.add("Transpose", "x", perm=perm), s.ints(*pads)), perm=back)
    s.add("Conv", s.value, s.weight(6, 6, 3), kernel_shape=[3])
    s.add("Transpose", s.value, perm=[0, 2, 1])
    model, x = s.model(), s.rng.uniform(-1, 1, (3, 7, 6)).astype(np.float32)
    session = rnn_lower.StreamingSession(rnn_lower.stream(model, axis="T", reset=by == "input"))
    session.run(x[:, :4])
    if by == "session":
        session.reset([1])
    which = {} if by == "session" else {"reset": np.array([False, True, False])}
    got = session.run({"x": x[:, 4:], **which})["y"]
    whole, anew = run_onnxruntime(model, {"x": x})[0][:, 4:], run_onnxruntime(model, {"x": x[:, 4:]})[0]
    close(list(got), [whole[0], anew[1], whole[2]])


@pytest.mark.parametrize("options", [{}, {"states": "packed"}, {"step": 2}, {"keep_native": True}], ids=str)
@pytest.mark.parametrize("position", [counted, encoded])
def test_the_position_of_one_row_is_reset(position, options):
    s = Stack(np.random.default_rng(3))
    position(s)
    lstm(s)
    model, x = s.model(), s.rng.uniform(-1, 1, (1, 10, 6)).astype(np.float32)
    with pytest.raises(rnn_lower.UnsupportedError, match=r"set the batch size to 1 \(dims\)"):
        rnn_lower.stream(model, axis="T", reset=True)
    made = rnn_lower.stream(model, axis="T", reset=True, dims={"N": 1}, **options)
    assert rnn_lower.prove_streaming(model, made)
    session = rnn_lower.StreamingSession(made)
    got = [session.run(x[:, first : first + 2])["y"] for first in (0, 2)]
    got += [session.run({"x": x[:, 4:6], "reset": np.array([True])})["y"]]
    got += [session.run(x[:, first : first + 2])["y"] for first in (6, 8)]
    wanted = [run_onnxruntime(model, {"x": part})[0] for part in (x[:, :4], x[:, 4:])]
    close([np.concatenate(got, 1)], [np.concatenate(wanted, 1)])
    session.reset(rows=[0]) if "states" not in options else session.reset()
    close([session.run(x[:, :2])["y"]], [wanted[0][:, :2]])
    for node in made.graph.node:  # the position goes on
        if node.op_type == "Where" and node.input[2].endswith("position_in"):
            node.op_type, node.input[:] = "Identity", node.input[2:]
    if "states" not in options:
        assert not rnn_lower.prove_streaming(model, made)


def test_a_batch_of_another_size_is_not_broadcast():
    session = rnn_lower.StreamingSession(rnn_lower.stream(DENOISER, axis="time"))
    session.run(frames("torch_denoiser", 3, 5))
    for rows in (1, 2, 4):
        with pytest.raises(rnn_lower.RnnLowerError, match=r"has shape \[3, .*but this chunk needs .*start over"):
            session.run(frames("torch_denoiser", rows, 5))
    session.reset()
    session.run(frames("torch_denoiser", 1, 5))


def test_inputs_of_different_lengths_are_not_broadcast():
    s = Stack(np.random.default_rng(0))
    s.add("Add", "x", "z")
    model = s.model()
    model.graph.input.append(onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, ["N", "T", 6]))
    session = rnn_lower.StreamingSession(rnn_lower.stream(model, axis="T"))
    with pytest.raises(rnn_lower.RnnLowerError, match="the same number of frames"):
        session.run({"x": np.ones((1, 3, 6), np.float32), "z": np.ones((1, 1, 6), np.float32)})


@pytest.mark.parametrize(("chunk", "told"), [
    ({}, "the chunk has no array for x; pass an array for every input"),
    ({"x": np.zeros((1, 2, 16), np.float32), "z": 1}, "the model has no input 'z'; inputs: x, "),
    (np.zeros(16, np.float32), r"input 'x' has shape \[16\], which has no axis 1"),
    (None, r"input 'x' has shape \[\], which has no axis"),
])  # fmt: skip
def test_chunks_that_are_none(chunk, told):
    with pytest.raises(rnn_lower.RnnLowerError, match=told):
        rnn_lower.StreamingSession(rnn_lower.stream(DENOISER, axis="time")).run(chunk)


@pytest.mark.parametrize("rows", [[2], "x", [[0.5]], np.array([True])])
def test_rows_that_are_none(rows):
    session = rnn_lower.StreamingSession(rnn_lower.stream(DENOISER, axis="time"))
    session.run(frames("torch_denoiser", 2, 5))
    before = session.state
    with pytest.raises(rnn_lower.RnnLowerError, match=r"rows .* of state"):
        session.reset(rows)
    assert all(np.array_equal(array, before[name]) for name, array in session.state.items())


def test_states_of_another_model_are_named():
    model, feeds = build(Case("GRU", T=6, optional=("initial_h",)))
    model, _ = build(Case("GRU", T=2, optional=("initial_h",)))
    session = rnn_lower.StreamingSession(model, states={"initial_h": "Y_h"})
    parts = [session.run({"X": feeds["X"][:2], "initial_h": feeds["initial_h"]})["Y"]]
    parts += [session.run(feeds["X"][k : k + 2])["Y"] for k in (2, 4)]
    whole = run_onnxruntime(build(Case("GRU", T=6, optional=("initial_h",)))[0], feeds)[0]
    close([np.concatenate(parts)], [whole])


@pytest.mark.parametrize(("name", "states", "options"), [
    ("silero_vad", {"state": "stateN"}, {"set_inputs": {"sr": 16000}}),
    ("dtln_model_1", {"input_3": "tf_op_layer_stack_2"}, {}),
])  # fmt: skip
def test_models_with_their_states_outside_are_left_so(name, states, options, shared, caplog):
    path = shared / "models" / f"{name}.onnx"
    caplog.set_level("INFO", "rnn_lower")
    made = rnn_lower.stream(path, **options)
    assert "so the caller must feed the state back, as with the original model" in caplog.text
    assert [out.name for out in made.graph.output] == [out.name for out in onnx.load(path).graph.output]
    same_with_states(made, path, states)


def test_a_state_outside_is_not_taken_for_all_there_is(shared):
    """Nothing tells whether its convolutions need a cache, so it is not called a stream; lowered it serves."""
    path = shared / "models" / "gtcrn_stream.onnx"
    with pytest.raises(
        rnn_lower.UnsupportedError,
        match=r"if only the recurrent nodes need state, and the model already has this state as inputs, lower the model",
    ):
        rnn_lower.stream(path)
    states = {name: f"{name}_out" for name in ("conv_cache", "tra_cache", "inter_cache")}
    same_with_states(rnn_lower.lower(onnx.load(path)), path, states)


def same_with_states(made: onnx.ModelProto, path: Path, states: dict[str, str]) -> None:
    """Six chunks of the model as of the original, each with its states fed back."""
    with np.load(path.with_name(f"{path.stem}.inputs.npz")) as archive:
        feeds = dict(archive)
    (first,) = (one for one in feeds if one not in states and one != "sr")
    left, right = (rnn_lower.StreamingSession(model, states=states) for model in (onnx.load(path), made))
    rng = np.random.default_rng(0)
    for index in range(6):
        chunk = {k: v for k, v in feeds.items() if index == 0 or k not in states}
        chunk[first] = rng.uniform(-0.1, 0.1, feeds[first].shape).astype(np.float32)
        wanted = left.run(chunk)
        got = right.run({k: v for k, v in chunk.items() if k != "sr"})
        close(list(got.values()), list(wanted.values()), 1e-3)


def test_the_example_runs(tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "stream_denoiser.py"], capture_output=True, text=True, check=True
    )
    assert float(done.stdout.split(": ")[1]) < 1e-5


def merged() -> onnx.ModelProto:
    """A GRU over time for each of three frequencies of each row: its batch is the batch times the frequencies."""
    rng = np.random.default_rng(0)
    weights = {"W": rng.uniform(-1, 1, (1, 12, 5)), "R": rng.uniform(-1, 1, (1, 12, 4))}
    held = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()]
    sizes = {"merged": [0, -1, 5], "unmerged": [0, -1, 3, 4], "directions": [1]}
    held += [numpy_helper.from_array(np.array(numbers), name) for name, numbers in sizes.items()]
    nodes = [
        helper.make_node("Transpose", ["x"], ["time_first"], perm=[1, 0, 2, 3]),
        helper.make_node("Reshape", ["time_first", "merged"], ["rows"]),
        helper.make_node("GRU", ["rows", "W", "R"], ["states"], hidden_size=4, name="gru"),
        helper.make_node("Squeeze", ["states", "directions"], ["squeezed"]),
        helper.make_node("Reshape", ["squeezed", "unmerged"], ["y"]),
    ]
    declared = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [declared("x", 1, ["b", "t", 3, 5])], [declared("y", 1, ["t", "b", 3, 4])], held
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("dims", [None, {"b": 1}, {"b": 2}])
def test_rows_of_a_merged_batch_are_not_reset_alone(dims, tmp_path):
    model, rows = merged(), 2 if dims is None else dims["b"]
    session = rnn_lower.StreamingSession(rnn_lower.stream(model, axis="t", dims=dims))
    x = np.random.default_rng(1).standard_normal((rows, 6, 3, 5)).astype(np.float32)
    first = session.run(x[:, :3])["y"]
    with pytest.raises(rnn_lower.RnnLowerError, match="merged with other axes"):
        session.reset(rows=[0])
    close([np.concatenate([first, session.run(x[:, 3:])["y"]])], run_onnxruntime(model, {"x": x}))
    for states in ("each", "packed"):
        with pytest.raises(rnn_lower.RnnLowerError, match=r"drop reset|set the other sizes"):
            rnn_lower.stream(model, axis="t", dims=dims, reset=True, states=states)


def test_the_states_in_the_file_are_those_of_one_row(tmp_path):
    onnx.save(merged(), tmp_path / "model.onnx")
    rnn_lower.stream_file(tmp_path / "model.onnx", tmp_path / "out.onnx", axis="t")
    states = dict(np.load(tmp_path / "out.state.npz"))
    assert [array.shape for array in states.values()] == [(1, 3, 4)]
    results = run_onnxruntime(onnx.load(tmp_path / "out.onnx"), {"x": np.ones((1, 2, 3, 5), np.float32), **states})
    assert (2, 1, 3, 4) in [result.shape for result in results]


@pytest.mark.parametrize("axis", ["t", "x[1]", "x[1],gain[1]", "gain[1],x[1]"])
def test_axes_of_several_inputs_with_one_name(axis):
    model = merged()
    model.graph.input.append(helper.make_tensor_value_info("gain", 1, ["b", "t", 3, 5]))
    model.graph.node.insert(0, helper.make_node("Mul", ["x", "gain"], ["louder"]))
    model.graph.node[1].input[0] = "louder"
    rng = np.random.default_rng(2)
    feeds = {name: rng.standard_normal((2, 6, 3, 5)).astype(np.float32) for name in ("x", "gain")}
    session = rnn_lower.StreamingSession(rnn_lower.stream(model, axis=axis))
    parts = [session.run({name: array[:, k : k + 3] for name, array in feeds.items()})["y"] for k in (0, 3)]
    close([np.concatenate(parts)], run_onnxruntime(model, feeds))


@pytest.mark.parametrize("packed", ["each", "packed"])
def test_a_stream_without_a_batch_axis_can_be_reset(packed):
    """Frames of 40 features: the first axis that does not count frames is not the batch."""
    rng = np.random.default_rng(0)
    shapes = {"W": (1, 12, 40), "R": (1, 12, 4)}
    held = [numpy_helper.from_array(rng.uniform(-1, 1, s).astype(np.float32), name) for name, s in shapes.items()]
    held.append(numpy_helper.from_array(np.array([1]), "axis"))
    nodes = [
        helper.make_node("Unsqueeze", ["x", "axis"], ["rows"]),
        helper.make_node("GRU", ["rows", "W", "R"], ["y"], hidden_size=4),
    ]
    declared = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "g", [declared("x", 1, ["t", 40])], [declared("y", 1, ["t", 1, 1, 4])], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = rnn_lower.StreamingSession(rnn_lower.stream(model, axis="t", reset=True, states=packed))
    x = rng.standard_normal((6, 40)).astype(np.float32)
    session.run({"x": x[:3]})
    y = session.run({"x": x[3:], session.plan.reset: np.array([True])})["y"]
    close([y], run_onnxruntime(model, {"x": x[3:]}))
    if packed == "each":
        session.run({"x": x[:3]})
        session.reset(rows=[0])
        close([session.run({"x": x[3:]})["y"]], run_onnxruntime(model, {"x": x[3:]}))


def test_an_empty_chunk_has_no_last_frame():
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]> main (float[1, T, 3] x) => (float[1, 1, 3] y)
        <int64[1] b = {-1}, int64[1] e = {9223372036854775807}, int64[1] a = {1}> { y = Slice (x, b, e, a) }
    """)
    session = rnn_lower.StreamingSession(rnn_lower.stream(model, axis="T"))
    with pytest.raises(rnn_lower.RnnLowerError, match="the chunk is empty"):
        session.run(np.zeros((1, 0, 3), np.float32))


@pytest.mark.parametrize("layers", [(pool, lstm), (conv,), (lstm,), (causal_conv, running_sum)])
def test_an_empty_chunk_is_refused(layers):
    """A pool of stride 2 would make a frame of its state alone."""
    s = Stack(np.random.default_rng(3))
    for layer in layers:
        layer(s)
    model = s.model()
    session = rnn_lower.StreamingSession(rnn_lower.stream(model, axis="T", delay=True))
    x = np.random.default_rng(0).uniform(-1, 1, (2, 12, 6)).astype(np.float32)
    results = []
    for start, end in ((0, 0), (0, 6), (6, 6), (6, 12), (12, 12)):
        if start == end:
            with pytest.raises(rnn_lower.RnnLowerError, match="the chunk is empty"):
                session.run(x[:, start:end])
        else:
            results.append(session.run(x[:, start:end])["y"])
    (wanted,) = run_onnxruntime(model, {"x": x})
    got = np.concatenate(results, 1)
    close([got], [wanted[:, : got.shape[1]]])
