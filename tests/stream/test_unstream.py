"""A streaming model becomes one over whole sequences, which gives what the original gave."""

from __future__ import annotations

import json
import re

import numpy as np
import onnx
import pytest
from judge import close, run_onnxruntime
from layers import Stack, causal_conv, conv, counted, dual_path, encoded, late_conv, lstm, pool, running_sum
from onenode import Case, build
from onnx import TensorProto, helper, numpy_helper
from paths import ROOT

import rnn_lower
from rnn_lower import cli
from rnn_lower.cli.arguments import one_value_each


def stack_of(*layers) -> onnx.ModelProto:
    s = Stack(np.random.default_rng(3))
    for layer in layers:
        layer(s)
    return s.model()


WAYS = [{}, {"step": 6}, {"step": 12, "keep_native": True}, {"keep_native": True}, {"step": 6, "states": "packed"}]


@pytest.mark.parametrize("how", WAYS, ids=str)
@pytest.mark.parametrize(
    "layers", [(lstm, causal_conv, running_sum), (conv, pool, lstm), (late_conv, lstm), (counted, encoded, lstm)]
)
def test_there_and_back(layers, how, tmp_path, capsys):
    model = stack_of(*layers)
    if layers[0] is late_conv and "step" not in how:
        how = {**how, "keep_native": False}
    onnx.save(rnn_lower.stream(model, axis="T", delay=True, **how), tmp_path / "chunks.onnx")
    command = ["unstream", str(tmp_path / "chunks.onnx"), "-o", str(tmp_path / "whole.onnx"), "--check", "--prove"]
    assert cli.main(command) == 0, capsys.readouterr()
    whole = onnx.load(tmp_path / "whole.onnx")
    onnx.checker.check_model(whole, full_check=True)
    assert [value.name for value in (*whole.graph.input, *whole.graph.output)] == ["x", "y"]
    x = np.random.default_rng(0).uniform(-1, 1, (2, 48, 6)).astype(np.float32)
    (got,), (wanted,) = run_onnxruntime(whole, {"x": x}), run_onnxruntime(model, {"x": x})
    close([got], [wanted[:, : got.shape[1]]])


@pytest.mark.parametrize("opset", [11, 13, 14, 18])
@pytest.mark.parametrize("how", [{"step": 6}, {"keep_native": True}], ids=str)
def test_there_and_back_at_other_opsets(opset, how):
    """Sizes are read off the inputs by Shape, Slice and Split, whose versions differ."""
    model = rnn_lower.lower(stack_of(lstm, causal_conv, running_sum), opset=opset, select=lambda node: False)
    whole = rnn_lower.unstream(rnn_lower.stream(model, axis="T", **how))
    x = np.random.default_rng(0).uniform(-1, 1, (2, 24, 6)).astype(np.float32)
    close(run_onnxruntime(whole, {"x": x}), run_onnxruntime(model, {"x": x}))


def test_a_logarithm_is_checked_on_positive_inputs(tmp_path, capsys):
    s = Stack(np.random.default_rng(3))
    s.add("Log", "x")
    lstm(s)
    onnx.save(rnn_lower.stream(s.model(), axis="T"), tmp_path / "chunks.onnx")
    command = ["unstream", str(tmp_path / "chunks.onnx"), "-o", str(tmp_path / "whole.onnx"), "--check"]
    assert cli.main(command) == 0, capsys.readouterr()
    assert "NOTHING COMPARED" not in capsys.readouterr().out


def test_a_batch_with_features_in_it():
    model = stack_of(dual_path)
    whole = rnn_lower.unstream(rnn_lower.stream(model, axis="T", step=2))
    x = np.random.default_rng(0).uniform(-1, 1, (3, 8, 6)).astype(np.float32)
    close(run_onnxruntime(whole, {"x": x}), run_onnxruntime(model, {"x": x}))


def test_recurrent_nodes_of_one_step_get_a_free_length():
    """Their states are inputs and outputs already, so nothing but a size changes."""
    model, feeds = build(
        Case("LSTM", T=1, N=2, I=3, H=4, optional=("initial_h", "initial_c"), outputs=("Y", "Y_h", "Y_c"))
    )
    whole = rnn_lower.unstream(model, states={"initial_h": "Y_h", "initial_c": "Y_c"}, axis="X[0]")
    assert [node.op_type for node in whole.graph.node] == [node.op_type for node in model.graph.node]
    feeds["X"] = np.random.default_rng(0).uniform(-1, 1, (7, 2, 3)).astype(np.float32)
    session = rnn_lower.StreamingSession(model, states={"initial_h": "Y_h", "initial_c": "Y_c"})
    parts = [session.run({**(feeds if k == 0 else {}), "X": feeds["X"][k : k + 1]})["Y"] for k in range(7)]
    close(run_onnxruntime(whole, feeds)[:1], [np.concatenate(parts)])


def by_chunks(length: int | str, nodes: str, lengths: str = "") -> onnx.ModelProto:
    """A GRU that carries its state from chunk to chunk, and what depends on more than single frames."""
    model = onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["" : 17]>
        g (float[{length},2,3] x, float[1,2,3] h) => (o, hn) <int32[2] ends = {{1, 2}}, int64 zero = {{0}}> {{
            y, hn = GRU <hidden_size = 3> (x, W, R, , {lengths}, h)
            {nodes}
        }}""")
    rng = np.random.default_rng(2)
    model.graph.initializer.extend(
        numpy_helper.from_array(rng.uniform(-1, 1, (1, 9, 3)).astype(np.float32), name) for name in "WR"
    )
    return onnx.shape_inference.infer_shapes(model)


DEPENDENT = {
    "what reads the state": "o = Add(y, h)",
    "what the state decides": """
        sum = ReduceSum<keepdims = 0>(h) none = CastLike(zero, sum) more = Greater(sum, none)
        o = If(more) <then_branch = a () => (float[S,1,2,3] a1) { a1 = Tanh(y) },
                      else_branch = b () => (float[S,1,2,3] b1) { b1 = Neg(y) }>""",
    "a sum over the chunk": "o = CumSum(y, zero)",
    "lengths": "o = Identity(y)",
}


@pytest.mark.parametrize(
    ("length", "name"), [(2, name) for name in DEPENDENT] + [("T", name) for name in DEPENDENT if name != "lengths"]
)
def test_what_depends_on_its_chunk_is_run_by_chunks(name, length, tmp_path, capsys):
    """A state that is the first one of the sequence for all frames, or lengths of the whole sequence, are others."""
    model = by_chunks(length, DEPENDENT[name], "ends" if name == "lengths" else "")
    onnx.save(model, tmp_path / "chunks.onnx")
    command = ["unstream", str(tmp_path / "chunks.onnx"), "-o", str(tmp_path / "whole.onnx"), "--state", "h=hn"]
    assert cli.main([*command, "--time", "x[0]", "--check"]) == cli.DONE
    assert ("in chunks of 1 frame, because" in capsys.readouterr().out) == (length == "T")
    assert cli.main([*command, "--time", "x[0]", "--json"]) == cli.DONE
    assert json.loads(capsys.readouterr().out)["chunk"] == (1 if length == "T" else None)
    rng, step = np.random.default_rng(0), 2 if length == 2 else 1
    x, h = rng.uniform(-1, 1, (6, 2, 3)).astype(np.float32), rng.uniform(-1, 1, (1, 2, 3)).astype(np.float32)
    session = rnn_lower.StreamingSession(model, states={"h": "hn"})
    parts = [session.run({"x": x[k : k + step], **({"h": h} if k == 0 else {})})["o"] for k in range(0, 6, step)]
    results = run_onnxruntime(onnx.load(tmp_path / "whole.onnx"), {"x": x, "h": h})
    close(results, [np.concatenate(parts), session.state["h"]])


def test_states_in_one_input_are_proved_not_to_depend_on_chunks():
    """As PyTorch exports several layers; each node reads a part of the state."""
    model = by_chunks("T", "o = Tanh(y)")
    graph = onnx.parser.parse_graph("""
        g (float[T,2,3] x, float[2,2,3] h) => (o, hn) <int64 zero = {0}, int64[2] parts = {1, 1}, int64[1] one = {1}> {
            a, b = Split <axis = 0> (h, parts)
            y, an = GRU <hidden_size = 3> (x, W, R, , , a)
            z = Squeeze (y, one)
            o, bn = GRU <hidden_size = 3> (z, W, R, , , b)
            hn = Concat <axis = 0> (an, bn)
        }""")
    graph.initializer.extend(tensor for tensor in model.graph.initializer if tensor.name in "WR")
    model.graph.CopyFrom(graph)
    whole = rnn_lower.unstream(model, states={"h": "hn"}, axis="x[0]")
    assert [node.op_type for node in whole.graph.node] == [node.op_type for node in model.graph.node]


@pytest.mark.parametrize("end", ["o = Tanh(y)", "o = Add(y, h)"])
@pytest.mark.parametrize("packed", [False, True])
def test_strides_need_several_frames(packed, end):
    """Half of the frames go on; a chunk of one frame gives none."""
    split, rows = ("a, b = Split <axis = 0> (s, parts)", 2) if packed else ("a = Identity(s)", 1)
    last = "y, bn = GRU <hidden_size = 3> (z, W, R, , , b) hn = Concat <axis = 0> (an, bn)" if packed else ""
    name = "hn" if not packed else "an"
    model = onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["" : 17]>
        g (float[2,3,T] x, float[{rows},2,3] s) => (float[?,1,2,3] o, float[{rows},2,3] hn)
        <int64[2] parts = {{1, 1}}, int64[1] one = {{1}}, int64 zero = {{0}}> {{
            p = AveragePool <kernel_shape = [2], strides = [2]> (x)
            xt = Transpose <perm = [2, 0, 1]> (p)
            {split} h = Gather <axis = 0> (s, one_row)
            w, {name} = GRU <hidden_size = 3> (xt, W, R, , , a)
            z = Squeeze (w, one) {last or "y = Identity(w)"} {end}
        }}""")
    rng = np.random.default_rng(2)
    weights = {name: rng.uniform(-1, 1, (1, 9, 3)).astype(np.float32) for name in "WR"} | {"one_row": np.array([0])}
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    whole = rnn_lower.unstream(model, states={"s": "hn"}, axis="x[2]")
    x, state = (rng.uniform(-1, 1, shape).astype(np.float32) for shape in ((2, 3, 6), (rows, 2, 3)))
    session = rnn_lower.StreamingSession(model, states={"s": "hn"})
    parts = [session.run({"x": x[:, :, k : k + 2], **({"s": state} if k == 0 else {})})["o"] for k in (0, 2, 4)]
    close(run_onnxruntime(whole, {"x": x, "s": state}), [np.concatenate(parts), session.state["s"]])


def test_an_output_that_is_declared_without_its_time_axis():
    model = by_chunks(2, "o = Tanh(y)")
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    with pytest.raises(rnn_lower.RnnLowerError, match="'o' is declared with a rank of 0, but its time axis is 0"):
        rnn_lower.unstream(model, states={"h": "hn"}, axis="x[0]")


def policy() -> onnx.ModelProto:
    """Each run is one step, and what goes out of it is not what the node has: it is halved."""
    s = Stack(np.random.default_rng(1))
    s.add("Unsqueeze", "x", s.ints(0))
    weights = s.weight(1, 12, 6), s.weight(1, 12, 4)
    s.nodes.append(helper.make_node("GRU", [s.value, *weights, "", "", "h"], ["", "last"], hidden_size=4))
    s.nodes.append(helper.make_node("Squeeze", ["last", s.ints(0)], ["y"]))
    s.nodes.append(helper.make_node("Mul", ["last", s.const(np.array(0.5, np.float32))], ["hn"]))
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", ["B", 6]), ("h", [1, "B", 4]), ("y", ["B", 4]), ("hn", [1, "B", 4]))
    ]
    graph = helper.make_graph(s.nodes, "policy", values[:2], values[2:], s.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("how", [{}, {"states": "packed"}, {"step": 2}])
def test_half_precision_is_proved_although_chunks_round_states(how, tmp_path, capsys):
    model, _ = build(Case("GRU", 17, dtype="float16", outputs=("Y",), dynamic=True))
    onnx.save(rnn_lower.stream(model, axis="T", **how), tmp_path / "chunks.onnx")
    command = ["unstream", str(tmp_path / "chunks.onnx"), "-o", str(tmp_path / "whole.onnx"), "--prove"]
    assert cli.main(command) == 0, capsys.readouterr()


def test_a_cell_without_other_outputs_than_its_state(tmp_path, capsys):
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]> g (float[N,3] x, float[N,3] h) => (float[N,3] hn)
        { s = Add (x, h) hn = Tanh (s) }""")
    onnx.save(model, tmp_path / "cell.onnx")
    assert cli.main(["unstream", str(tmp_path / "cell.onnx"), str(tmp_path / "whole.onnx"), "--state", "h=hn"]) == 0
    x, h = np.ones((4, 2, 3), np.float32), np.zeros((2, 3), np.float32)
    for frame in x:
        h = np.tanh(frame + h)
    (found,) = run_onnxruntime(onnx.load(tmp_path / "whole.onnx"), {"x": x, "h": np.zeros((2, 3), np.float32)})
    assert np.allclose(found, h, atol=1e-6)


def test_runs_of_one_step(tmp_path, capsys):
    onnx.save(policy(), tmp_path / "step.onnx")
    command = ["unstream", str(tmp_path / "step.onnx"), "-o", str(tmp_path / "whole.onnx"), "--state", "h=hn"]
    assert cli.main([*command, "--check", "--prove"]) == 0, capsys.readouterr()
    whole, rng = onnx.load(tmp_path / "whole.onnx"), np.random.default_rng(0)
    feeds = {"x": rng.uniform(-1, 1, (5, 2, 6)).astype(np.float32), "h": np.ones((1, 2, 4), np.float32)}
    session = rnn_lower.StreamingSession(policy(), states={"h": "hn"})
    parts = [session.run({"x": feeds["x"][k], **({"h": feeds["h"]} if k == 0 else {})}) for k in range(5)]
    y, hn = run_onnxruntime(whole, feeds)
    close([y, hn], [np.stack([part["y"] for part in parts]), session.state["h"]])


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        (lambda: stack_of(lstm), {}, "not a streaming model"),
        (lambda: stack_of(lstm), {"states": {}}, "the model has no state; declare"),
        (
            lambda: rnn_lower.stream(stack_of(lstm), axis="T"),
            {"axis": "x[0]"},
            "the metadata of the model names other time axes",
        ),
        (policy, {"states": {"h": "nothing"}}, "the model has no input 'h' or no output 'nothing'"),
    ],
)
def test_is_refused(model, options, words):
    with pytest.raises(rnn_lower.RnnLowerError, match=words):
        rnn_lower.unstream(model(), **options)


def test_the_axis_of_the_metadata_may_be_named():
    streamed = rnn_lower.stream(stack_of(lstm), axis="T")
    assert rnn_lower.unstream(streamed, axis="x[1]") == rnn_lower.unstream(streamed)


def merged() -> onnx.ModelProto:
    """As language models have it: the output has the frames and the batch on one axis."""
    s, state = Stack(np.random.default_rng(1)), (1, "batch", 2)
    s.add("Transpose", "x", perm=[1, 0, 2])
    s.nodes.append(helper.make_node(
        "LSTM", [s.value, s.weight(1, 8, 6), s.weight(1, 8, 2), "", "", "h", "c"], ["o", "hn", "cn"], hidden_size=2
    ))  # fmt: skip
    s.nodes.append(helper.make_node("Reshape", [s.add("Transpose", "o", perm=[2, 0, 1, 3]), s.ints(-1, 2)], ["y"]))
    shapes = {"x": ("batch", "time", 6), "h": state, "c": state, "y": ("M", 2), "hn": state, "cn": state}
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    graph = helper.make_graph(s.nodes, "merged", values[:3], values[3:], s.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_frames_that_the_output_merges_with_the_batch(tmp_path, capsys):
    """The message names what works: each run is one step, whatever the chunk. Both states follow one --state."""
    chunks, whole = tmp_path / "chunks.onnx", tmp_path / "whole.onnx"
    onnx.save(merged(), chunks)
    command = ["unstream", str(chunks), str(whole), "--check", "--state", "h=hn", "c=cn"]
    assert cli.main([*command, "--time", "x[1]"]) == cli.BAD
    assert re.search(r"time axis is unknown, because .*'y' merges the frames .*omit --time", capsys.readouterr().err)
    assert cli.main(command) == cli.DONE, capsys.readouterr()
    dims = [dim.dim_param for dim in onnx.load(whole).graph.input[0].type.tensor_type.shape.dim]
    assert len(set(dims[:3])) == 3, "the new axis has a name of its own"


def test_weights_in_a_file(tmp_path, capsys):
    chunks, whole = tmp_path / "chunks.onnx", tmp_path / "whole.onnx"
    streaming = rnn_lower.stream(stack_of(lstm, causal_conv), axis="T")
    onnx.save(streaming, chunks, save_as_external_data=True, location="chunks.data", size_threshold=0)
    assert cli.main(["unstream", str(chunks), "-o", str(whole), "--check", "--prove"]) == 0, capsys.readouterr()


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        ("h=y", "input 'h' is float[1, batch, 24], but output 'y' is float[batch, 5, 24]"),
        ("x=y", "input 'x' is float[batch, 5, 12], but output 'y' is float[batch, 5, 24]"),
        ("h", "write INPUT=OUTPUT"),
        ("h=", "write INPUT=OUTPUT"),
    ],
)
def test_states_that_cannot_be_fed_back(pair, words, tmp_path, capsys):
    command = ["unstream", str(ROOT / "models" / "torch_gru_streaming.onnx"), str(tmp_path / "o.onnx"), "--state", pair]
    assert cli.main(command) == cli.BAD
    assert words in capsys.readouterr().err
    assert not (tmp_path / "o.onnx").exists()


def test_several_states_after_one_option():
    command = ["unstream", "in.onnx", "--state", "h=hn", "c=cn", "a=1.onnx"]  # the last is a file
    assert one_value_each(command) == [*command[:4], "--state", *command[4:]]
