"""Chunk by chunk is the same as all at once: random models, forms, states, resets, lengths, branches."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from judge import close, remaining, run_onnxruntime
from layers import Stack, lstm
from onenode import Case, build
from onnx import TensorProto, helper, numpy_helper
from streams import in_chunks, one_node, one_stack, same_in_chunks

import rnn_lower
from rnn_lower import api
from rnn_lower.modelio import files
from rnn_lower.options import Options
from rnn_lower.streaming import stream_model


@pytest.mark.parametrize("seed", range(12))
def test_random_nodes(seed):
    compared = sum(one_node(np.random.default_rng([100, seed, number])) for number in range(16))
    assert compared > 2


@pytest.mark.parametrize("seed", range(8))
def test_random_stacks(seed):
    compared = sum(one_stack(np.random.default_rng([101, seed, number])) for number in range(12))
    assert compared > 2


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize(
    "options", [{"keep_native": True}, {"form": "scan"}, {"form": "loop"}, {"step": 1}, {"step": 3}]
)
@pytest.mark.parametrize("case", [
    Case(optional=("B",)), Case(optional=("B", "initial_h")), Case(optional=("sequence_lens",)),
    Case(optional=("B", "sequence_lens"), lengths_as="initializer", lengths=(4, 0)), Case(layout=1, optional=("B",)),
    Case(place="if"), Case(place="if", optional=("initial_h",)), Case(place="function"), Case(dtype="double"),
    Case(outputs=("Y",), dynamic=True), Case(outputs=("Y_h",)), Case(opset=7), Case(opset=9, optional=("sequence_lens",)),
    Case(weights="input"),
])  # fmt: skip
def test_features(case, op, options):
    case = case.replace(op=op, T=6, dynamic=True)
    model, feeds = build(case)
    rng = np.random.default_rng(0)
    if case.place == "function" and "step" in options:
        feeds = {name: array[:, :1] if name == "X" else array for name, array in feeds.items()}
    if options.get("form") == "scan" and case.opset < 9:
        with pytest.raises(rnn_lower.UnsupportedError, match="form scan needs opset 9"):
            rnn_lower.stream(model, axis="T", **options)
        return
    if not options.get("keep_native"):
        assert not remaining(rnn_lower.stream(model, axis="T", **options))
    step = options.get("step")
    same_in_chunks(model, feeds, "T", rng, [step] * (6 // step) if step else None, **options)


def test_a_row_that_ended_keeps_its_final_state():
    """Row 0 ends within the first chunk, row 1 with the second, row 2 has nothing: zeros, whatever it began with."""
    model, feeds = build(Case(N=3, T=6, dynamic=True, optional=("sequence_lens", "initial_h"), lengths=(1, 4, 0)))
    for options in ({}, {"keep_native": True}, {"form": "loop"}):
        same_in_chunks(model, feeds, "T", np.random.default_rng(0), [2, 2, 2], **options)
    assert not np.any(run_onnxruntime(model, feeds)[1][:, 2])


def test_lengths_in_another_type():
    """The Cast in front of the node stays: what is left is counted behind it."""
    model, feeds = build(Case(T=6, dynamic=True, optional=("sequence_lens",), lengths=(5, 2)))
    given = next(value for value in model.graph.input if value.name == "sequence_lens")
    given.name, given.type.tensor_type.elem_type = "lengths", TensorProto.INT64
    model.graph.node.insert(0, helper.make_node("Cast", ["lengths"], ["sequence_lens"], to=TensorProto.INT32))
    feeds["lengths"] = feeds.pop("sequence_lens").astype(np.int64)
    for options in ({}, {"keep_native": True}):
        same_in_chunks(model, feeds, "T", np.random.default_rng(0), [2, 4], **options)


def test_constant_lengths_are_checked_with_sequences_that_are_long_enough(tmp_path):
    model, _ = build(Case(T=6, dynamic=True, optional=("sequence_lens",), lengths_as="initializer", lengths=(9, 13)))
    onnx.save(model, tmp_path / "in.onnx")
    made = api.stream_file(tmp_path / "in.onnx", tmp_path / "out.onnx", axis="T")
    assert api.check_streaming(made, tmp_path / "out.onnx").ok


@pytest.mark.parametrize("used", ["cast", "output", "itself"])
def test_lengths_that_serve_something_else_too(used):
    """What is left of them would be something else there."""
    model, _ = build(Case(T=6, dynamic=True, optional=("sequence_lens",)))
    source = {"cast": "wide", "output": "wide", "itself": "sequence_lens"}[used]
    if used != "itself":
        model.graph.node.append(helper.make_node("Cast", ["sequence_lens"], ["wide"], to=TensorProto.FLOAT))
    if used != "output":
        model.graph.node.append(helper.make_node("Neg", [source], ["less"], name="negative"))
    elem = TensorProto.INT32 if used == "itself" else TensorProto.FLOAT
    model.graph.output.append(helper.make_tensor_value_info("wide" if used == "output" else "less", elem, ["N"]))
    with pytest.raises(rnn_lower.UnsupportedError, match="with the number of remaining steps, so"):
        rnn_lower.stream(model, axis="T")


def test_one_step_is_a_straight_line():
    for name in ("denoiser", "keyword_spotter", "language_model"):
        model = rnn_lower.stream(onnx.load(f"models/torch_{name}.onnx"), axis="time", step=1)
        assert not {node.op_type for node in model.graph.node} & {"Loop", "Scan", "If", "LSTM", "GRU"}


def test_states_have_names_and_sizes():
    model, _ = build(Case(N=3, H=4, T=6, dynamic=True))
    shapes = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in rnn_lower.stream(model, axis="T").graph.input
    }
    assert shapes == {"X": ["T", "N", 3], "node/h_in": [1, "N", 4], "node/c_in": [1, "N", 4]}
    assert [out.name for out in rnn_lower.stream(model, axis="T").graph.output][-2:] == ["node/h_out", "node/c_out"]


def test_the_model_itself_stays_as_it_was():
    model, _ = build(Case(dynamic=True))
    before = model.SerializeToString(deterministic=True)
    rnn_lower.stream(model, axis="T")
    assert model.SerializeToString(deterministic=True) == before


def test_a_state_of_the_callers_stays_one(caplog):
    model, feeds = build(Case("GRU", dynamic=True, optional=("initial_h",)))
    caplog.set_level("INFO", "rnn_lower")
    made = rnn_lower.stream(model, axis="T")
    assert "its state is already an input of the model, 'initial_h', and stays an input" in caplog.text
    assert [value.name for value in made.graph.input] == ["X", "initial_h"]
    close(list(in_chunks(made, feeds, [2, 1, 2]).values()), run_onnxruntime(model, feeds))


def stacked(computed: bool) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Two GRUs whose initial states are halves of one input, as PyTorch exports them; or the second's is computed."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.uniform(-1, 1, (1, 12, 4)).astype(np.float32), name)
        for name in ("W", "R", "V", "S")
    ]
    weights += [
        numpy_helper.from_array(np.array(numbers, np.int64), name)
        for name, numbers in (("parts", [1, 1]), ("one", [1]))
    ]
    nodes = [
        helper.make_node("Split", ["h", "parts"], ["h1", "h2"], axis=0),
        helper.make_node("GRU", ["x", "W", "R", "", "", "h1"], ["Y", "n1"], name="first", hidden_size=4),
        helper.make_node("Squeeze", ["Y", "one"], ["middle"]),
        helper.make_node("Tanh" if computed else "Identity", ["h2"], ["begin"]),
        helper.make_node("GRU", ["middle", "V", "S", "", "", "begin"], ["y", "n2"], name="second", hidden_size=4),
        helper.make_node("Concat", ["n1", "n2"], ["n"], axis=0),
    ]
    floats = TensorProto.FLOAT
    inputs = [
        helper.make_tensor_value_info("x", floats, ["T", "N", 4]),
        helper.make_tensor_value_info("h", floats, [2, "N", 4]),
    ]
    outputs = [
        helper.make_tensor_value_info("y", floats, [None] * 4),
        helper.make_tensor_value_info("n", floats, [None] * 3),
    ]
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    feeds = {name: rng.uniform(-1, 1, shape).astype(np.float32) for name, shape in (("x", (6, 3, 4)), ("h", (2, 3, 4)))}
    return model, feeds


def test_parts_of_a_state_are_the_callers(caplog):
    caplog.set_level("INFO", "rnn_lower")
    model, feeds = stacked(computed=False)
    session = rnn_lower.StreamingSession(rnn_lower.stream(model, axis="T"), states={"h": "n"})
    assert "so the caller must feed the state back, as with the original model" in caplog.text
    parts = [session.run({"x": feeds["x"][:2], "h": feeds["h"]})["y"], session.run({"x": feeds["x"][2:]})["y"]]
    close([np.concatenate(parts)], run_onnxruntime(model, feeds)[:1])


def test_parts_of_a_state_are_handed_on():
    """Where one output gives them back, a session knows it; where two do, it is told which."""
    model, _ = stacked(computed=False)
    made = rnn_lower.stream(model, axis="T")
    assert rnn_lower.prove_streaming(model, made)
    assert [state.output for state in rnn_lower.StreamingSession(made).plan.states] == ["n"]
    model.graph.node.append(helper.make_node("Identity", ["n"], ["again"]))
    model.graph.output.append(helper.make_tensor_value_info("again", 1, None))
    with pytest.raises(rnn_lower.RnnLowerError, match=r"input 'h' is a state.*\(states=\{\"h\": \"OUTPUT\"\}\)"):
        rnn_lower.StreamingSession(rnn_lower.stream(model, axis="T"))


SHAPES_OF_STATES = {
    "of the same shape": ("N,4", "Unsqueeze (s, zero)", "last = Squeeze (h, zero)", "N,4", "last"),
    "of another rank": ("N,4", "Unsqueeze (s, zero)", "last = Identity (h)", "1,N,4", "y/h_out"),
    "moved back": ("N,1,4", "Transpose <perm = [1, 0, 2]> (s)", "last = Transpose <perm = [1, 0, 2]> (h)", "N,1,4", "last"),
    "not moved back": ("N,1,4", "Transpose <perm = [1, 0, 2]> (s)", "last = Identity (h)", "1,N,4", None),
}  # fmt: skip


@pytest.mark.parametrize("kind", SHAPES_OF_STATES)
def test_an_output_that_cannot_be_the_next_state_is_none(kind):
    """The caller's state and the final state that the model returns may differ in their shapes."""
    given, first, last, returned, output = SHAPES_OF_STATES[kind]
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]> g (float[T,N,4] x, float[{given}] s)
        => (float[T,1,N,4] y, float[{returned}] last) <int64[1] zero = {{0}}> {{
            b = {first} y, h = GRU <hidden_size = 4> (x, W, R, , , b) {last} }}""")
    for name in "WR":
        weights = np.random.default_rng(1).uniform(-1, 1, (1, 12, 4)).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weights, name))
    made = rnn_lower.stream(model, axis="T")
    if output is None:
        with pytest.raises(rnn_lower.RnnLowerError, match="input 's' is a state"):
            rnn_lower.StreamingSession(made)
        return
    assert [state.output for state in rnn_lower.StreamingSession(made).plan.states] == [output]
    assert rnn_lower.prove_streaming(model, made).ok


FIRST = {
    "of a speaker": ("float[N,5] s", "e = MatMul (s, E) h = Unsqueeze (e, zero) Y = GRU <hidden_size = 4> (x, W, R, , , h)"),
    "moved": ("float[N,4] s", "h = Unsqueeze (s, zero) Y = GRU <hidden_size = 4> (x, W, R, , , h) z = Neg (s)"),
    "of an encoder": ("float[3,N,4] s", """_, h = GRU <hidden_size = 4> (s, W, R) Y = GRU <hidden_size = 4> (x, W, R, , , h)"""),
    "of a Scan": ("float[N,4] s", """h = Tanh (s) last, Y = Scan <num_scan_inputs = 1, body = step
        (float[N,4] a, float[N,4] b) => (float[N,4] c, float[N,4] d) { m = MatMul (a, C) k = Add (m, b) c = Tanh (k) d = Identity (c) }>
        (h, x)"""),
}  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [{}, {"step": 2}, {"reset": True}, {"states": "packed"}, {"keep_native": True}, {"form": "loop"}],
    ids=str,
)
@pytest.mark.parametrize("kind", FIRST)
def test_an_initial_state_that_is_computed_from_an_input(kind, options):
    """It is that of the first chunk; later ones do not count."""
    other, nodes = FIRST[kind]
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]> g (float[T,N,4] x, {other})
        => (float[U,V,N,4] y) <int64[1] zero = {{0}}> {{ {nodes} y = Relu (Y) }}""")
    if kind == "of a Scan":
        model.graph.output[0].type.tensor_type.shape.dim.pop(1)
    if kind == "moved":
        model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, ["N", 4]))
    rng = np.random.default_rng(4)
    shapes = {"W": (1, 12, 4), "R": (1, 12, 4), "E": (5, 4), "C": (4, 4)}
    weights = {name: rng.uniform(-1, 1, shape).astype(np.float32) for name, shape in shapes.items() if name in nodes}
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    made = rnn_lower.stream(model, axis="T", **options)
    assert rnn_lower.prove_streaming(model, made, points=1)
    shape = [dim.dim_value or 2 for dim in model.graph.input[1].type.tensor_type.shape.dim]
    feeds = {"x": rng.standard_normal((6, 2, 4)), "s": rng.standard_normal(shape)}
    feeds = {name: array.astype(np.float32) for name, array in feeds.items()}
    session = rnn_lower.StreamingSession(made)
    parts = [session.run({"x": feeds["x"][k : k + 2], "s": feeds["s"] + np.float32(k)})["y"] for k in (0, 2, 4)]
    (whole, *_) = run_onnxruntime(model, feeds)
    close([np.concatenate(parts)], [whole])
    if "reset" in options:
        chunk = {"x": feeds["x"][4:], "s": feeds["s"]}
        (anew, *_) = run_onnxruntime(model, chunk)
        found = session.run({**chunk, "reset": np.array([True, False])})["y"]
        close([found[..., :1, :]], [anew[..., :1, :]])
        assert np.abs(found[..., 1:, :] - anew[..., 1:, :]).max() > 0.01


def test_an_initial_state_that_is_computed_needs_opset_9():
    model = onnx.parser.parse_model("""<ir_version: 3, opset_import: ["" : 8]> g (float[T,N,4] x, float[1,N,4] s) => (float[T,1,N,4] y)
        { h = Tanh (s) y = GRU <hidden_size = 4> (x, W, R, , , h) }""")
    for name in "WR":
        model.graph.initializer.append(numpy_helper.from_array(np.ones((1, 12, 4), np.float32), name))
        model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 12, 4]))
    with pytest.raises(
        rnn_lower.UnsupportedError, match=r"GRU 'y': a state that begins with the stream needs opset 9 .* opset=17"
    ):
        rnn_lower.stream(model, axis="T")


def test_a_state_that_is_computed_from_an_input_is_refused():
    """The model returns the final state, so that the caller may carry it."""
    with pytest.raises(
        rnn_lower.UnsupportedError,
        match=r"GRU 'second' in main graph: its initial state is computed from input 'h'; use a separate input",
    ):
        rnn_lower.stream(stacked(computed=True)[0], axis="T")


def test_one_input_for_both_states():
    model, _ = build(Case("LSTM", dynamic=True, optional=("initial_h", "initial_c")))
    model.graph.node[0].input[6] = "initial_h"
    del model.graph.input[2]
    with pytest.raises(rnn_lower.UnsupportedError, match="is also read by other nodes or returned as an output"):
        rnn_lower.stream(model, axis="T")


def test_zeros_that_others_use_too_stay():
    """One constant begins a GRU over the stream and another, which has nothing to do with it."""
    model, feeds = build(Case("GRU", T=6, N=2, dynamic=True, optional=("initial_h",), weights="initializer"))
    model.graph.initializer.append(numpy_helper.from_array(feeds.pop("initial_h"), "initial_h"))
    del model.graph.input[1]
    feeds["z"] = feeds["X"][:2]
    model.graph.node.append(
        helper.make_node("GRU", ["z", "W", "R", "", "", "initial_h"], ["other"], name="other", hidden_size=4)
    )
    model.graph.input.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [2, 2, 3]))
    model.graph.output.append(helper.make_tensor_value_info("other", TensorProto.FLOAT, [None] * 4))
    for options in ({}, {"keep_native": True}):
        same_in_chunks(model, feeds, "T", np.random.default_rng(0), [2, 4], **options)


def test_computed_first_states():
    """What is computed by Shape and Expand is the first value; the nodes that computed it go."""
    s = Stack(np.random.default_rng(3))
    while "Expand" not in [node.op_type for node in s.nodes]:
        s = Stack(s.rng)
        lstm(s)
    model = s.model()
    made = rnn_lower.stream(model, axis="T")
    assert not {"Expand", "Shape"} & {
        node.op_type for node in rnn_lower.stream(model, axis="T", keep_native=True).graph.node
    }
    first = rnn_lower.StreamingSession(made).plan.states[0].first
    assert first.shape == (1, 1, 6)
    assert np.any(first)
    feeds = {"x": s.rng.uniform(-1, 1, (3, 7, 6)).astype(np.float32)}
    same_in_chunks(model, feeds, "T", np.random.default_rng(0), [3, 4])
    assert made.graph.input[1].type.tensor_type.shape.dim[1].dim_param == "N"


def chosen() -> onnx.ModelProto:
    """An If on an input: an LSTM in one branch, a dense layer in the other."""
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array(rng.uniform(-1, 1, shape).astype(np.float32), name) for name, shape in
               (("W", (1, 16, 4)), ("R", (1, 16, 4)), ("M", (4, 4)))]  # fmt: skip
    axes = numpy_helper.from_array(np.array([1], np.int64), "axes")
    out = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("a", "b")]
    then = helper.make_graph(
        [helper.make_node("LSTM", ["x", "W", "R"], ["Y"], name="inner", hidden_size=4), helper.make_node("Squeeze", ["Y", "axes"], ["a"])],
        "then", [], out[:1],
    )  # fmt: skip
    other = helper.make_graph([helper.make_node("MatMul", ["x", "M"], ["b"])], "other", [], out[1:])
    rate = numpy_helper.from_array(np.array(16000, np.int64), "rate")
    nodes = [
        helper.make_node("Equal", ["sr", "rate"], ["is"]),
        helper.make_node("If", ["is"], ["y"], name="if", then_branch=then, else_branch=other),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["T", "N", 4]),
        helper.make_tensor_value_info("sr", TensorProto.INT64, []),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        inputs,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["T", "N", 4])],
        [*weights, axes, rate],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("rate", [16000, 8000])
@pytest.mark.parametrize("options", [{}, {"keep_native": True}, {"form": "loop"}])
def test_a_state_in_one_branch(rate, options):
    x = np.random.default_rng(1).uniform(-1, 1, (7, 2, 4)).astype(np.float32)
    same_in_chunks(chosen(), {"x": x, "sr": np.array(rate)}, "T", np.random.default_rng(0), [3, 1, 3], **options)


@pytest.mark.parametrize("rate", [16000, 8000])
def test_set_inputs_fold_branches_away(rate):
    made = rnn_lower.stream(chosen(), axis="T", set_inputs={"sr": rate})
    fused = rnn_lower.stream(chosen(), axis="T", set_inputs={"sr": rate}, keep_native=True)
    assert "If" not in {node.op_type for node in fused.graph.node}
    assert [value.name for value in made.graph.input][:1] == ["x"]
    assert len(made.graph.input) == (3 if rate == 16000 else 1)
    x = np.random.default_rng(1).uniform(-1, 1, (7, 2, 4)).astype(np.float32)
    close(list(in_chunks(made, {"x": x}, [3, 4]).values()), run_onnxruntime(chosen(), {"x": x, "sr": np.array(rate)}))


def test_reset_as_an_input():
    model = onnx.load("models/torch_denoiser.onnx")
    made = rnn_lower.stream(model, axis="time", reset=True)
    session, x = (
        rnn_lower.StreamingSession(made),
        np.random.default_rng(0).uniform(-1, 1, (2, 8, 16)).astype(np.float32),
    )
    session.run(x[:, :4])
    got = session.run({"x": x[:, 4:], "reset": np.array([True, False])})["y"]
    anew, whole = run_onnxruntime(model, {"x": x[:, 4:]})[0], run_onnxruntime(model, {"x": x})[0]
    close([got[0], got[1]], [anew[0], whole[1, 4:]])


def test_a_first_state_that_depends_on_how_many_rows_there_are():
    """It is the same for one row and for two, but not for three."""
    s = Stack(np.random.default_rng(0))
    rows = s.add("Slice", s.add("Shape", "x"), s.ints(0), s.ints(1))
    many = s.add("Cast", s.add("Greater", rows, s.ints(2)), to=TensorProto.FLOAT)
    spread = s.add("Expand", s.weight(1, 1, 6), s.add("Concat", s.ints(1), rows, s.ints(6), axis=0))
    first = s.add("Mul", spread, many)
    frames = s.add("Transpose", "x", perm=[1, 0, 2])
    s.add("GRU", frames, s.weight(1, 18, 6), s.weight(1, 18, 6), "", "", first, hidden_size=6)
    s.add("Squeeze", s.value, s.ints(1))
    with pytest.raises(rnn_lower.UnsupportedError, match="its initial state differs between the rows of the batch"):
        rnn_lower.stream(s.model(), axis="T")


def test_numbers_that_wrap_around_are_no_sizes():
    """100 * 3 is 44 in eight bits, so the branch is the one that runs."""
    model, rate = chosen(), np.array(44, np.int8)
    del model.graph.input[1], model.graph.node[0]
    for name, number in (("hundred", 100), ("three", 3), ("wrapped", rate)):
        model.graph.initializer.append(numpy_helper.from_array(np.array(number, np.int8), name))
    model.graph.node.insert(0, helper.make_node("Mul", ["hundred", "three"], ["product"]))
    model.graph.node.insert(1, helper.make_node("Equal", ["product", "wrapped"], ["is"]))
    x = np.random.default_rng(1).uniform(-1, 1, (7, 2, 4)).astype(np.float32)
    same_in_chunks(model, {"x": x}, "T", np.random.default_rng(0), [3, 1, 3], keep_native=True)


def test_statistics_of_each_place():
    """Before opset 9 they could be those of each frame (spatial=0)."""
    s = Stack(np.random.default_rng(0), 7)
    s.add("Transpose", "x", perm=[0, 2, 1])
    s.add("BatchNormalization", s.value, *(s.weight(6, 9) for _ in range(4)), spatial=0)
    with pytest.raises(
        rnn_lower.UnsupportedError,
        match=r"BatchNormalization1.*must have exactly one mean and one variance for each channel",
    ):
        rnn_lower.stream(s.model(), axis="T")


def test_check_finds_a_state_that_is_lost():
    """A streaming model whose state comes back as it went in is not the same."""
    model, _ = build(Case("GRU", dynamic=True))
    made = stream_model.make(files.open_model(model)[0], stream_model.StreamOptions("T"), Options())
    proto = made.document.write_back(made.dims)
    assert api.check_streaming(made, proto).ok
    for node in proto.graph.node:
        if "node/h_out" in node.output:
            node.output[list(node.output).index("node/h_out")] = "lost"
    proto.graph.node.append(helper.make_node("Identity", ["node/h_in"], ["node/h_out"]))
    report = api.check_streaming(made, proto)
    assert not report.ok
    assert report.max_abs_error > 1e-3


def test_check_finds_a_changed_node():
    """A weight that matters to no sampled input by more than the tolerance is found in exact arithmetic."""
    model, _ = build(Case("GRU", dynamic=True))
    made = stream_model.make(files.open_model(model)[0], stream_model.StreamOptions("T"), Options())
    proto = made.document.write_back(made.dims)
    weight = next(t for t in proto.graph.initializer if t.name.endswith("W_transposed"))
    array = onnx.numpy_helper.to_array(weight).copy()
    array.flat[3] *= 1 + 1e-6
    weight.CopyFrom(onnx.numpy_helper.from_array(array, weight.name))
    assert api.check_streaming(made, proto).located


def test_strides_ask_for_multiples():
    s = Stack(np.random.default_rng(0))
    s.add("Transpose", s.value, perm=[0, 2, 1])
    s.add("Conv", s.value, s.weight(6, 6, 4), kernel_shape=[4], strides=[2], pads=[3, 0])
    s.add("Transpose", s.value, perm=[0, 2, 1])
    model = s.model()
    session = rnn_lower.StreamingSession(rnn_lower.stream(model, axis="T"))
    assert session.plan.every == 2
    with pytest.raises(rnn_lower.RnnLowerError, match="the number of frames in a chunk must be a multiple of 2"):
        session.run(np.zeros((1, 3, 6), np.float32))
    with pytest.raises(
        rnn_lower.UnsupportedError,
        match=r"step=3: operators of the model have strides along the time axis, .* a multiple of 2",
    ):
        rnn_lower.stream(model, axis="T", step=3)


def test_no_node_ends_with_an_empty_input():
    """Some runtimes count it: the bias of a ConvTranspose is added once per frame, so the node has none."""
    s = Stack(np.random.default_rng(0))
    s.add("Transpose", "x", perm=[0, 2, 1])
    s.add("ConvTranspose", s.value, s.weight(6, 6, 3), s.weight(6), kernel_shape=[3], strides=[2])
    s.add("Slice", s.value, s.ints(0), s.ints(-1), s.ints(2))
    s.add("Transpose", s.value, perm=[0, 2, 1])
    model, x = s.model(), np.random.default_rng(0).uniform(-1, 1, (2, 8, 6)).astype(np.float32)
    streamed = rnn_lower.stream(model, axis="T", step=4)
    (node,) = (node for node in streamed.graph.node if node.op_type == "ConvTranspose")
    assert len(node.input) == 2
    close([in_chunks(streamed, {"x": x}, [4, 4])["y"]], run_onnxruntime(model, {"x": x}))
