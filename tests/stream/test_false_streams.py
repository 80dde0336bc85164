"""Streaming models that were changed by hand are neither proved nor found to be the same; onnxruntime is the judge."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnxruntime
import pytest
from judge import run_onnxruntime
from layers import Stack, late_conv, lstm
from onenode import Case, build
from onnx import TensorProto, helper, numpy_helper

import rnn_lower
from rnn_lower import api

KEY = "rnn_lower.stream"
X = np.random.default_rng(5).standard_normal((2, 100, 6)).astype(np.float32)


def stack_of(*layers) -> onnx.ModelProto:
    s = Stack(np.random.default_rng(3))
    for layer in layers:
        layer(s)
    model = s.model()
    model.graph.node.append(helper.make_node("Relu", ["x"], ["r"]))
    model.graph.output.append(helper.make_tensor_value_info("r", TensorProto.FLOAT, ["B", "T", 6]))
    return model


def copied(model: onnx.ModelProto) -> onnx.ModelProto:
    return onnx.ModelProto.FromString(model.SerializeToString())


def behind_y(model: onnx.ModelProto, *nodes: onnx.NodeProto, **constants) -> onnx.ModelProto:
    """A copy in which these nodes compute output y from y0."""
    made = copied(model)
    for node in made.graph.node:
        node.output[:] = ["y0" if name == "y" else name for name in node.output]
        node.input[:] = ["y0" if name == "y" else name for name in node.input]
    made.graph.node.extend(nodes)
    made.graph.initializer.extend(numpy_helper.from_array(np.array(v), name) for name, v in constants.items())
    return made


def with_plan(model: onnx.ModelProto, **entries) -> onnx.ModelProto:
    made = copied(model)
    prop = next(prop for prop in made.metadata_props if prop.key == KEY)
    prop.value = json.dumps(json.loads(prop.value) | entries)
    return made


def first_frames(count: int):
    return lambda model: behind_y(
        model, helper.make_node("Slice", ["y0", "s0", "s1", "s2"], ["y"]), s0=[0], s1=[count], s2=[1]
    )


def cast_to(kind: int):
    nodes = [helper.make_node("Cast", ["y0"], ["c"], to=kind), helper.make_node("Cast", ["c"], ["y"], to=1)]
    return lambda model: behind_y(model, *nodes)


def cancelled(model: onnx.ModelProto) -> onnx.ModelProto:
    nodes = [helper.make_node("Add", ["y0", "big"], ["c"]), helper.make_node("Sub", ["c", "big"], ["y"])]
    return behind_y(model, *nodes, big=np.float32(1e9))


def outputs_in_chunks(model: onnx.ModelProto, length: int) -> list[np.ndarray]:
    session = rnn_lower.StreamingSession(model)
    parts = [session.run({"x": X[:, k : k + length]}) for k in range(0, X.shape[1], length)]
    return [np.concatenate([part[name] for part in parts], 1) for name in ("y", "r")]


@pytest.mark.parametrize(
    "change",
    [first_frames(20), cancelled, cast_to(TensorProto.FLOAT16), cast_to(TensorProto.BFLOAT16)],
    ids=["first frames", "cancelled", "float16", "bfloat16"],
)
def test_other_results_are_not_proved(change):
    model = stack_of(lstm)
    stream = rnn_lower.stream(model, axis="T")
    assert rnn_lower.prove_streaming(model, stream)
    wrong, (wanted, _) = change(stream), run_onnxruntime(model, {"x": X})
    found, _ = outputs_in_chunks(wrong, 50)
    assert found.shape != wanted.shape or np.abs(found - wanted).max() > 1e-4
    assert not rnn_lower.prove_streaming(model, wrong)


@pytest.mark.parametrize("comparison", ["Greater", "Equal", "GreaterOrEqual"])
@pytest.mark.parametrize(("axis", "limit"), [(0, 1), (0, 6), (0, 60), (1, 700), (1, 1999), (1, 2001)])
def test_sizes_at_which_a_stream_changes_are_compared(axis, limit, comparison):
    """A model that doubles y for batches or chunks of some size."""
    nodes = [
        helper.make_node("Shape", ["x"], ["size"], start=axis, end=axis + 1),
        helper.make_node(comparison, ["size", "limit"], ["larger"]),
        helper.make_node("Where", ["larger", "two", "one"], ["factor"]),
        helper.make_node("Mul", ["y0", "factor"], ["y"]),
    ]
    model = stack_of(lstm)
    made = behind_y(rnn_lower.stream(model), *nodes, limit=np.array([limit]), one=np.float32(1), two=np.float32(2))
    made.opset_import[0].version = max(15, made.opset_import[0].version)
    whole = np.random.default_rng(0).standard_normal((limit + 1, 3, 6) if axis == 0 else (2, limit + 1, 6))
    sizes = [limit, limit + 1]
    rows = [whole[:size] if axis == 0 else whole[:, :size] for size in sizes]
    chunks = [
        rnn_lower.StreamingSession(made).run(x.astype(np.float32))["y"]
        for x in map(np.ascontiguousarray, map(np.float32, rows))
    ]
    wanted = [run_onnxruntime(model, {"x": x.astype(np.float32)})[0] for x in rows]
    assert not all(np.allclose(a, b, atol=1e-5) for a, b in zip(chunks, wanted, strict=True))
    assert not rnn_lower.prove_streaming(model, made).ok


def with_positions() -> tuple[onnx.ModelProto, onnx.ModelProto, str]:
    """A model that adds the number of each frame, its stream, and the stream's input that counts the frames."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]> g (float[B,T,6] x) => (float[B,T,6] y)
        <int64 zero = {0}, int64 one = {1}, int64[1] at = {0}, int64[1] last = {1}> {
        s = Shape <start = 1, end = 2> (x) n = Squeeze (s, at) [steps] r = Range (zero, n, one) f = Cast <to = 1> (r)
        c = Unsqueeze (f, last) y = Add (x, c) }""")
    streamed = rnn_lower.stream(model, axis="T")
    (position,) = (value.name for value in streamed.graph.input if value.name.endswith("position_in"))
    return model, streamed, position


@pytest.mark.parametrize(
    ("comparison", "limit"), [("Greater", 500), ("GreaterOrEqual", 1500), ("Equal", 700), ("Greater", 0)]
)
def test_positions_at_which_a_stream_changes_are_compared(comparison, limit):
    """A model that doubles y in chunks that begin behind some frame."""
    model, streamed, position = with_positions()
    assert rnn_lower.prove_streaming(model, streamed).ok
    nodes = [
        helper.make_node(comparison, [position, "limit"], ["later"]),
        helper.make_node("Where", ["later", "two", "single"], ["factor"]),
        helper.make_node("Mul", ["y0", "factor"], ["y"]),
    ]
    made = behind_y(streamed, *nodes, limit=np.array([limit]), single=np.float32(1), two=np.float32(2))
    session, x = rnn_lower.StreamingSession(made), np.ones((1, limit + 200, 6), np.float32)
    parts = [session.run({"x": x[:, start : start + 100]})["y"] for start in range(0, limit + 200, 100)]
    assert not np.allclose(np.concatenate(parts, 1), run_onnxruntime(model, {"x": x})[0])
    assert not rnn_lower.prove_streaming(model, made).ok


@pytest.mark.parametrize("limits", [[900], [[[900, 901, 902, 903, 904, 905]]]])
def test_a_position_that_counts_late(limits):
    """The numbers 1000 and 900 together are the position at which the stream changes."""
    model, streamed, position = with_positions()
    nodes = [
        helper.make_node("Min", [position, "late"], ["at_most"]),
        helper.make_node("Sub", [position, "at_most"], ["beyond"]),
        helper.make_node("Greater", ["beyond", "limits"], ["there"]),
        helper.make_node("Where", ["there", "two", "single"], ["times"]),
        helper.make_node("Mul", ["y0", "times"], ["y"]),
    ]
    constants = {"late": np.array([1000]), "limits": np.array(limits), "single": np.float32(1), "two": np.float32(2)}
    made = behind_y(streamed, *nodes, **constants)
    sessions, x = [rnn_lower.StreamingSession(each) for each in (streamed, made)], np.ones((1, 100, 6), np.float32)
    same = [np.allclose(*(session.run({"x": x})["y"] for session in sessions)) for _ in range(21)]
    assert same == [True] * 20 + [False]
    assert not rnn_lower.prove_streaming(model, made).ok


@pytest.mark.parametrize(("dtype", "kind"), [(np.int64, TensorProto.INT64), (np.int32, TensorProto.INT32)])
def test_a_multiple_of_a_position_that_wraps_around(dtype, kind):
    """A factor whose product with 5001, and with no smaller number, is 3."""
    model, streamed, position = with_positions()
    bits = np.iinfo(dtype).bits
    factor = pow(5001, -1, 1 << bits) * 3 % (1 << bits)
    factor = np.array([factor - (1 << bits) * (factor >> (bits - 1))], dtype)
    nodes = [
        helper.make_node("Cast", [position], ["number"], to=kind),
        helper.make_node("Mul", ["number", "factor"], ["scaled"]),
        helper.make_node("Equal", ["scaled", "limit"], ["there"]),
        helper.make_node("Where", ["there", "two", "single"], ["times"]),
        helper.make_node("Mul", ["y0", "times"], ["y"]),
    ]
    constants = {"limit": np.array([3], dtype), "factor": factor, "single": np.float32(1), "two": np.float32(2)}
    made = behind_y(streamed, *nodes, **constants)
    sessions, x = [rnn_lower.StreamingSession(each) for each in (streamed, made)], np.ones((1, 3, 6), np.float32)
    assert any(not np.allclose(*(session.run({"x": x})["y"] for session in sessions)) for _ in range(1668))
    assert not rnn_lower.prove_streaming(model, made).ok


@pytest.mark.parametrize(("numbers", "comparison"), [(range(1000, 1010), "Equal"), (range(9, 9000, 1000), "Less")])
def test_a_counter_that_is_compared_with_many_numbers(numbers, comparison):
    """A model of chunks of 8 frames, the number of which it compares with a constant of ten."""
    model = stack_of(late_conv, lstm)
    streamed = rnn_lower.stream(model, axis="T", delay=True, step=8)
    assert rnn_lower.prove_streaming(model, streamed).ok
    (seen,) = (value.name for value in streamed.graph.input if value.name.endswith("frames_in"))
    nodes = [
        helper.make_node("Mul", [seen, "three"], ["scaled"]),
        helper.make_node(comparison, ["scaled", "limits"], ["at"]),
        helper.make_node("Cast", ["at"], ["number"], to=1),
        helper.make_node("ReduceMax", ["number"], ["any"], keepdims=0),
        helper.make_node("Mul", ["y0", "any"], ["z"]),
        helper.make_node("Sub", ["y0", "z"], ["y"]),
    ]
    made = behind_y(streamed, *nodes, limits=np.array(numbers), three=np.array([3]))
    session, x = rnn_lower.StreamingSession(made), np.ones((1, 400 if comparison == "Equal" else 3200, 6), np.float32)
    y = np.concatenate([session.run({"x": x[:, k : k + 8]})["y"] for k in range(0, x.shape[1], 8)], 1)
    wanted = run_onnxruntime(model, {"x": x})[0][:, : y.shape[1]]
    assert not np.allclose(y, wanted, atol=1e-4)
    assert np.allclose(y[:, :100], wanted[:, :100], atol=1e-4) == (comparison == "Equal")
    assert not rnn_lower.prove_streaming(model, made).ok


ROUNDED_SIZES = (
    "f = Cast <to = 1> (size) g = Sub (f, most) k = Relu (g)", "f = Cast <to = 1> (size) g = Sub (most, f) a = Abs (g) k = Sub (a, g)",
    "f = Cast <to = 1> (size) g = Mul (f, small) k = Floor (g)", "g = Div (size, many) k = Cast <to = 1> (g)",
    "e = Add (size, size) g = Greater (e, thrice) k = Cast <to = 1> (g)", "e = Mul (size, three) g = Greater (e, thrice) k = Cast <to = 1> (g)",
    "e = Mul (size, three) g = Greater (e, thrice) l = Not (g) k = Where (g, most, small)", "i = Div (size, fifty) k = Gather (table, i)",
    "b = Cast <to = 3> (size) e = Cast <to = 7> (b) g = Equal (e, size) o = Not (g) k = Cast <to = 1> (o)",
)  # fmt: skip
"""Factors of an output that change where a size or position is above 200 or 300."""


@pytest.mark.parametrize("axis", [0, 1, None])
@pytest.mark.parametrize("text", ROUNDED_SIZES)
def test_arithmetic_with_sizes_at_which_a_stream_changes(text, axis):
    """axis: of the size; None for the position in the stream."""
    model, streamed, position = with_positions()
    begin = (
        f"size = Reshape ({position}, whole)"
        if axis is None
        else f"size = Shape <start = {axis}, end = {axis + 1}> (x)"
    )
    change = onnx.parser.parse_graph(f"""g () => () <float most = {{200}}, float small = {{0.005}}, int64[5] many = {{200, 200, 200, 200, 200}},
        int64[1] thrice = {{600}}, int64[1] three = {{3}}, int64[1] fifty = {{50}}, float[20] table = {{{",".join("0000" + "1" * 16)}}},
        int64[1] whole = {{1}}> {{ {begin.replace(position, "position")} {text} c_k = ReduceMax <keepdims = 0> (k) p = Mul (y0, c_k) y = Add (y0, p) }}""")
    for node in change.node:
        node.input[:] = [position if name == "position" else name for name in node.input]
    prefixed = {name for node in change.node for name in node.output if name != "y"} | {
        t.name for t in change.initializer
    }
    for names in [names for node in change.node for names in (node.input, node.output)]:
        names[:] = [f"changed/{name}" if name in prefixed else name for name in names]
    constants = {f"changed/{tensor.name}": numpy_helper.to_array(tensor) for tensor in change.initializer}
    made = behind_y(streamed, *change.node, **constants)
    chunk, frames = (400, 400) if axis == 1 else (200, 800)
    x = np.ones((400 if axis == 0 else 2, frames, 6), np.float32)
    session = rnn_lower.StreamingSession(made)
    parts = [session.run({"x": x[:, start : start + chunk]})["y"] for start in range(0, frames, chunk)]
    assert not np.allclose(np.concatenate(parts, 1), run_onnxruntime(model, {"x": x})[0])
    assert rnn_lower.prove_streaming(model, streamed).ok
    assert not rnn_lower.prove_streaming(model, made).ok


@pytest.mark.parametrize("second", ["Shape <start = 1, end = 2> (x)", "Reshape (position, whole)"])
def test_sizes_that_are_large_together(second):
    """A model that doubles y if the batch and the chunk, or the position, are larger than 20."""
    model, streamed, position = with_positions()
    change = onnx.parser.parse_graph(f"""g () => () {{ k1 = Shape <start = 0, end = 1> (x) k2 = {second}
        g1 = Greater (k1, limit) g2 = Greater (k2, limit) k3 = And (g1, g2) k4 = Cast <to = 1> (k3) k5 = Mul (y0, k4) y = Add (y0, k5) }}""")
    for node in change.node:
        node.input[:] = [position if name == "position" else name for name in node.input]
    made = behind_y(streamed, *change.node, limit=np.array([20]), whole=np.array([1]))
    session, x = rnn_lower.StreamingSession(made), np.ones((30, 120, 6), np.float32)
    parts = [session.run({"x": x[:, start : start + 30]})["y"] for start in range(0, 120, 30)]
    assert not np.allclose(np.concatenate(parts, 1), run_onnxruntime(model, {"x": x})[0])
    assert not rnn_lower.prove_streaming(model, made).ok


def test_a_number_at_which_the_original_changes_nothing():
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]> g (float[B,T,6] x) => (float[B,T,6] y)
        <int64[1] many = {60}, int64 axis = {1}> { c = CumSum (x, axis) d = Add (c, c)
        size = Shape <start = 0, end = 1> (x) few = Less (size, many) y = Where (few, c, c) }""")
    streamed = rnn_lower.stream(model, axis="T")
    assert rnn_lower.prove_streaming(model, streamed).ok
    (where,) = (node for node in streamed.graph.node if node.op_type == "Where")
    where.input[2] = "d"
    x = np.ones((60, 4, 6), np.float32)
    assert not np.allclose(rnn_lower.StreamingSession(streamed).run({"x": x})["y"], run_onnxruntime(model, {"x": x})[0])
    assert not rnn_lower.prove_streaming(model, streamed).ok


def test_a_difference_counts_beside_a_number_that_is_too_large():
    model = stack_of(lstm)
    nodes = [
        helper.make_node("Shape", ["x"], ["size"], start=1, end=2),
        helper.make_node("Greater", ["size", "limit"], ["larger"]),
        helper.make_node("Where", ["larger", "two", "one"], ["factor"]),
        helper.make_node("Mul", ["y0", "factor"], ["y1"]),
        helper.make_node("Add", ["y1", "one"], ["y"]),
    ]
    made = behind_y(rnn_lower.stream(model), *nodes, limit=np.array([5000]), one=np.float32(1), two=np.float32(2))
    assert rnn_lower.prove_streaming(model, made).result == "not equal"


def test_a_cast_that_the_original_has_is_proved():
    model = cast_to(TensorProto.FLOAT16)(stack_of(lstm))
    assert rnn_lower.prove_streaming(model, rnn_lower.stream(model, axis="T"))


@pytest.mark.parametrize("count", [0, 20])
def test_delayed_frames_that_never_come(count, tmp_path):
    """With a second output, which has frames."""
    onnx.save(model := stack_of(late_conv, lstm), tmp_path / "in.onnx")
    verdicts = []

    def accept(path, result):
        right = onnx.load(path)
        onnx.save(wrong := first_frames(count)(right), path)
        assert outputs_in_chunks(wrong, 50)[0].shape[1] < outputs_in_chunks(right, 50)[0].shape[1]
        verdicts.extend([rnn_lower.prove_streaming(model, wrong), api.check_streaming(result, path)])
        return False

    api.stream_file(tmp_path / "in.onnx", tmp_path / "out.onnx", axis="T", delay=True, accept=accept)
    assert not any(verdicts)
    assert verdicts[1].verdict.startswith("NOTHING COMPARED (output 'y' is always empty" if not count else "DIFFERENT")


def test_frames_that_are_later_than_declared_are_not_proved():
    """A stream that holds back frames of r, although these depend on no later input frame."""
    model = stack_of(late_conv)
    waiting = copied(model)
    waiting.graph.initializer.append(numpy_helper.from_array(np.zeros((), np.float32), "zero"))
    waiting.graph.node[-1].output[:] = ["r0"]
    waiting.graph.node.append(helper.make_node("ReduceMean", ["y"], ["mean"], axes=[2]))
    waiting.graph.node.append(helper.make_node("Mul", ["mean", "zero"], ["none"]))
    waiting.graph.node.append(helper.make_node("Add", ["r0", "none"], ["r"]))
    stream = rnn_lower.stream(waiting, axis="T", delay=True)
    assert outputs_in_chunks(stream, 50)[1].shape[1] < 100
    assert rnn_lower.prove_streaming(model, with_plan(stream, cut=["r"]))
    proof = rnn_lower.prove_streaming(model, with_plan(stream, cut=["r"], late={}))
    assert "output 'r' lacks frame" in proof.verdict


@pytest.mark.parametrize("outputs", [{"y": 1}, {}])
def test_outputs_that_the_plan_does_not_list_are_not_proved(outputs):
    model = stack_of(lstm)
    proof = rnn_lower.prove_streaming(model, with_plan(rnn_lower.stream(model, axis="T"), outputs=outputs))
    assert not proof
    assert "the plan lists no output" in proof.verdict


def test_false_declarations_are_not_proved():
    model = stack_of(lstm)
    stream, inner = rnn_lower.stream(model, axis="T"), rnn_lower.stream(model, axis="T")
    next(value for value in stream.graph.output if value.name == "r").type.tensor_type.elem_type = TensorProto.DOUBLE
    name = next(node.output[0] for node in inner.graph.node if node.op_type == "MatMul")
    inner.graph.value_info.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [7, 7, 7, 7, 7]))
    for wrong in (stream, inner):
        with pytest.raises((onnx.checker.ValidationError, onnx.shape_inference.InferenceError)):
            onnx.checker.check_model(wrong, full_check=True)
        assert not rnn_lower.prove_streaming(model, wrong)


def test_an_output_that_becomes_double_is_not_proved():
    model = stack_of(lstm)
    stream = behind_y(rnn_lower.stream(model, axis="T"), helper.make_node("Cast", ["y0"], ["y"], to=TensorProto.DOUBLE))
    next(value for value in stream.graph.output if value.name == "y").type.tensor_type.elem_type = TensorProto.DOUBLE
    assert outputs_in_chunks(stream, 50)[0].dtype == np.float64
    assert "output 'y' has type DOUBLE instead of FLOAT" in rnn_lower.prove_streaming(model, stream).verdict


@pytest.mark.parametrize("states", ["each", "packed"])
def test_a_reset_without_effect_is_found(states, tmp_path):
    model = stack_of(lstm)
    onnx.save(model, tmp_path / "in.onnx")
    made = api.stream_file(tmp_path / "in.onnx", tmp_path / "out.onnx", axis="T", reset=True, states=states)
    stream = onnx.load(tmp_path / "out.onnx")
    assert rnn_lower.prove_streaming(model, stream)
    wrong = copied(stream)
    for node in wrong.graph.node:
        node.input[:] = ["never" if name == "reset" else name for name in node.input]
    wrong.graph.initializer.append(numpy_helper.from_array(np.zeros(1, bool), "never"))
    session = rnn_lower.StreamingSession(wrong)
    first, again = session.run({"x": X}), session.run({"x": X, "reset": np.ones(2, bool)})
    assert np.abs(first["y"] - again["y"]).max() > 1e-3
    assert "after input 'reset' has reset rows" in rnn_lower.prove_streaming(model, wrong).verdict
    assert api.check_streaming(made, stream).ok
    assert not api.check_streaming(made, wrong).ok


def test_a_size_that_the_stream_fixes_is_named():
    model = stack_of(lstm)
    stream = rnn_lower.stream(model, axis="T")
    dim = stream.graph.input[0].type.tensor_type.shape.dim[0]
    dim.Clear()
    dim.dim_value = 1
    with pytest.raises(rnn_lower.RnnLowerError, match="invalid dimensions"):
        outputs_in_chunks(stream, 50)
    assert "only for size 1 of axis 0 of input 'x'" in rnn_lower.prove_streaming(model, stream).verdict


def misdeclared(model: onnx.ModelProto) -> onnx.ModelProto:
    name = model.graph.node[0].output[0]
    model.graph.value_info.append(helper.make_tensor_value_info(name, TensorProto.DOUBLE, [7]))
    return model


@pytest.mark.parametrize("change", [first_frames(60), misdeclared], ids=["first frames", "misdeclared"])
def test_a_false_whole_model_is_found(change, tmp_path):
    onnx.save(rnn_lower.stream(stack_of(lstm), axis="T"), tmp_path / "in.onnx")

    def accept(path, result):
        onnx.save(wrong := change(onnx.load(path)), path)
        if change is misdeclared:
            with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.Fail):
                run_onnxruntime(wrong, {"x": X})
            with pytest.raises(rnn_lower.RnnLowerError, match="onnxruntime runs the model that was converted, but not"):
                api.compare_whole(result, path, True, False)
        else:
            assert run_onnxruntime(wrong, {"x": X})[0].shape[1] == 60
            assert not any(api.compare_whole(result, path, True, False))
        assert not any(api.compare_whole(result, path, False, True))
        return False

    api.unstream_file(tmp_path / "in.onnx", tmp_path / "out.onnx", accept=accept)


@pytest.mark.parametrize(
    "entries",
    [
        {"every": 10**19}, {"late": {"y": -1000}}, {"reach": -50}, {"inputs": {"x": 7}}, {"outputs": {"y": 9, "r": 1}},
        {"symbols": {}}, {"states": [{"shape": [["1/0", []]]}]}, {"states": [{"shape": [["1e9999999", []]]}]}, {"warm_up": {"y": 3}}, {"seen": "nothing"},
        {"inputs": {}}, {"reset": "x"}, {"late": [["y", 1]]}, {"symbols": {"N": ["LSTM5/h_in", 1]}},
    ],
    ids=str,
)  # fmt: skip
def test_a_damaged_plan_is_named(entries):
    model = stack_of(lstm)
    stream = rnn_lower.stream(model, axis="T")
    if "states" in entries:
        states = json.loads(next(prop.value for prop in stream.metadata_props if prop.key == KEY))["states"]
        entries = {"states": [states[0] | entries["states"][0], *states[1:]]}
    with pytest.raises(rnn_lower.RnnLowerError, match=r"metadata entry 'rnn_lower\.stream' of the model is damaged"):
        rnn_lower.prove_streaming(model, with_plan(stream, **entries))


def test_a_plan_without_a_stream_axis_is_no_plan_of_several_steps():
    """Such a plan is one of calls, whose other states are not compared: here, the frames before a convolution."""
    weights = {"W": (1, 9, 2), "R": (1, 9, 3), "K": (2, 2, 3)}
    rng = np.random.default_rng(0)
    tensors = [numpy_helper.from_array(rng.normal(size=s).astype(np.float32), n) for n, s in weights.items()]
    gru = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]> g (float[T,2,2] p) => (float[T,1,2,3] y)
        { y = GRU <hidden_size = 3> (p, W, R) }""")
    gru.graph.initializer.extend(tensors[:2])
    convolution = onnx.parser.parse_graph("""g () => () { t = Transpose <perm = [1, 2, 0]> (x) v = Conv <pads = [2, 0]> (t, K)
        p = Transpose <perm = [2, 0, 1]> (v) }""").node
    model, made = copied(gru), rnn_lower.stream(gru, axis="T")
    for each in (model, made):
        nodes = [*convolution, *each.graph.node]
        del each.graph.node[:]
        each.graph.node.extend(nodes)
        each.graph.initializer.append(tensors[2])
        each.graph.input[0].name = "x"
    symbols = {
        name: ["x", axis]
        for name, (_, axis) in json.loads(next(p.value for p in made.metadata_props if p.key == KEY))["symbols"].items()
    }
    for entries in ({"inputs": {"x": 0}}, {"inputs": {}, "outputs": {"y": "last"}}):
        assert not rnn_lower.prove_streaming(model, with_plan(made, symbols=symbols, **entries)).ok


@pytest.mark.parametrize("entries", [{"late": {"y": 10**6}}, {"every": 10**8}], ids=str)
def test_a_plan_that_is_too_long_to_compare(entries):
    model = stack_of(lstm)
    with pytest.raises(rnn_lower.RnnLowerError, match=r"at most 10000000 frames, 600 chunks late, are supported"):
        rnn_lower.prove_streaming(model, with_plan(rnn_lower.stream(model, axis="T"), **entries))


@pytest.mark.parametrize("times", ["-5", str(10**30)])
def test_a_plan_with_states_of_impossible_sizes(times):
    stream = rnn_lower.stream(stack_of(lstm), axis="T")
    states = json.loads(next(prop.value for prop in stream.metadata_props if prop.key == KEY))["states"]
    for dim in states[0]["shape"]:
        dim[0] = times if dim[1] else dim[0]
    with pytest.raises(rnn_lower.RnnLowerError, match="is damaged"):
        rnn_lower.StreamingSession(with_plan(stream, states=states))


@pytest.mark.parametrize("name", ["table", "another"])
def test_a_row_of_a_table_that_no_run_reads(name):
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]> g (int64[T,2] ids) => (float[T,2,3] y)
        <int64 time = {0}> { e = Gather (table, ids) y = CumSum (e, time) }""")
    table = np.random.default_rng(0).standard_normal((30000, 3)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(table, "table"))
    made = rnn_lower.stream(model, axis="T")
    assert rnn_lower.prove_streaming(model, made).ok
    table[29999] = 0
    made.graph.initializer[[tensor.name for tensor in made.graph.initializer].index("table")].CopyFrom(
        numpy_helper.from_array(table, name)
    )
    for node in made.graph.node:
        node.input[:] = [name if each == "table" else each for each in node.input]
    assert not rnn_lower.prove_streaming(model, made).ok


@pytest.mark.parametrize("dilation", [250, 400])
def test_frames_far_back_count_whatever_the_plan_states(dilation):
    """A stream that ignores the frame of 2 * dilation frames ago."""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]> g (float[1,1,T] x) => (float[1,1,T] y)
        <float[1,1,3] K = {{0.5, 0.25, 1}}> {{ y = Conv <pads = [{2 * dilation}, 0], dilations = [{dilation}]> (x, K) }}""")
    made = rnn_lower.stream(model, axis="T")
    assert ("only for the last 600 of 800" in rnn_lower.prove_streaming(model, made).verdict) == (dilation == 400)
    for node in made.graph.node:
        node.input[:] = ["J" if name == "K" else name for name in node.input]
    made.graph.initializer.append(numpy_helper.from_array(np.array([[[0, 0.25, 1]]], np.float32), "J"))
    proof = rnn_lower.prove_streaming(model, with_plan(made, reach=0))
    assert not proof.ok or "only for the last" in proof.verdict


def with_other_reset(stream: onnx.ModelProto, text: str, **numbers: int) -> onnx.ModelProto:
    """A copy in which `reset` resets a row only where `on` is true, which these nodes compute."""
    made = copied(stream)
    for node in made.graph.node:
        node.input[:] = ["some" if name == "reset" else name for name in node.input]
    inputs = ["float[N,T,6] x", "bool[N] reset", *(f"int64 {name}" for name in numbers)]
    graph = f"g ({', '.join(inputs)}) => (bool[N] some) {{ {text} some = And(reset, on) }}"
    nodes = [*onnx.parser.parse_graph(graph).node, *made.graph.node]
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    made.graph.initializer.extend(numpy_helper.from_array(np.array(n), name) for name, n in numbers.items())
    return made


@pytest.mark.parametrize("rows", ["all", "later ones"])
def test_a_reset_that_some_rows_ignore_is_found(rows):
    """If all are reset, or the first one is not."""
    model = stack_of(lstm)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 2
    stream = rnn_lower.stream(model, axis="T", reset=True)
    assert rnn_lower.prove_streaming(model, stream)
    text = {
        "all": "one = Constant<value_int = 1>() b = Gather(reset, one) every = And(a, b) on = Not(every)",
        "later ones": "on = Identity(a)",
    }[rows]
    wrong = with_other_reset(stream, f"a = Gather(reset, zero) {text}", zero=0)
    mask = np.array([rows == "all", True])
    results = [rnn_lower.StreamingSession(each) for each in (stream, wrong)]
    for session in results:
        session.run({"x": X})
    wanted, found = (session.run({"x": X, "reset": mask})["y"] for session in results)
    assert np.abs(wanted - found).max() > 1e-3
    assert "after input 'reset' has reset rows" in rnn_lower.prove_streaming(model, wrong).verdict


def with_counter(
    stream: onnx.ModelProto, output: str, text: str, names: str = "k", kind: str = "int64"
) -> onnx.ModelProto:
    """A copy with states of one number (`k`), in which these nodes compute `output` from `true` and `k_out` from `k`."""
    made = copied(stream)
    for node in made.graph.node:
        node.output[:] = ["true" if name == output else name for name in node.output]
        node.input[:] = ["true" if name == output else name for name in node.input]
    ins, outs = (", ".join(f"{kind}[1] {name}{end}" for name in names) for end in ("", "_out"))
    graph = onnx.parser.parse_graph(f"g ({ins}, float[T, N, I] X) => ({outs}) {{ {text} }}")
    made.graph.node.extend(graph.node)
    made.graph.input.extend(graph.input[:-1])
    made.graph.output.extend(graph.output)
    states = json.loads(next(prop.value for prop in made.metadata_props if prop.key == KEY))["states"]
    for name in names:
        new = {
            "input": name, "output": f"{name}_out", "dtype": kind.upper(), "shape": [["1", []]], "rows": None,
            "node": "counter", "first": {"shape": [1], "npy": None},
        }  # fmt: skip
        states.append(states[0] | new)
    return with_plan(made, states=states)


ONE, LONG = "one = Constant<value_ints = [1]>() zero = Sub(one, one)", 1300
TABLE = ", ".join(map(str, [*range(1, LONG - 50), 0]))
COUNTERS = {
    "digits": ("kl", "int64", f"""{ONE} m = Constant<value_ints = [60]>() a = Add(k, one) full = Equal(a, m)
        k_out = Where(full, zero, a) f = Cast<to = 7>(full) l_out = Add(l, f) h = Constant<value_ints = [20]>() on = Less(l, h)"""),
    "floats": ("kl", "float", """one = Constant<value_floats = [1.0]>() m = Constant<value_floats = [59.0]>()
        n = Constant<value_floats = [60.0]>() a = Add(k, one) o = Sub(a, m) c = Relu(o) t = Mul(c, n) k_out = Sub(a, t)
        l_out = Add(l, c) h = Constant<value_floats = [20.0]>() on = Less(l, h)"""),
    "bits": ("abcdefghijk", "bool", """a_out = Not(a) b_out = Xor(b, a) b1 = And(a, b) c_out = Xor(c, b1) c1 = And(b1, c)
        d_out = Xor(d, c1) d1 = And(c1, d) e_out = Xor(e, d1) e1 = And(d1, e) f_out = Xor(f, e1) f1 = And(e1, f)
        g_out = Xor(g, f1) g1 = And(f1, g) h_out = Xor(h, g1) h1 = And(g1, h) i_out = Xor(i, h1) i1 = And(h1, i)
        j_out = Xor(j, i1) j1 = And(i1, j) k_out = Or(k, j1) on = Not(k)"""),
    "a table": ("k", "int64", f"""t = Constant<value_ints = [{TABLE}]>() k_out = Gather(t, k) e = Sub(k, k_out)
         u = Constant<value_ints = [5]>() on = Less(e, u)"""),
    "another counter": ("kl", "int64", f"""{ONE} m = Constant<value_ints = [60]>() k_out = Add(k, one) r = Mod(k, m)
        full = Equal(r, zero) f = Cast<to = 7>(full) l_out = Add(l, f) h = Constant<value_ints = [20]>() on = LessOrEqual(l, h)"""),
    "a sum that wraps": ("k", "int64", """c = Constant<value = int64[1] {9007199254740992}>() k_out = Add(k, c) z = Sub(c, c)
        n = Less(k, z) on = Not(n)"""),
    "a loop that ends early": ("kl", "int64", """one = Constant<value_ints = [1]>() zero = Sub(one, one)
        i0 = Constant<value_int = 1>() yes = Equal(i0, i0) most = Constant<value_int = 100>() q = Squeeze(k)
        r = Loop<body = b (int64 i, bool go) => (bool more, int64 w) { more = Less(i, q) w = Identity(i) }>(most, yes)
        s = Shape(r) m = Constant<value_ints = [60]>() full = Greater(s, m) k_out = Where(full, zero, s)
        f = Cast<to = 7>(full) l_out = Add(l, f) h = Constant<value_ints = [18]>() on = Less(l, h)"""),
    "a narrow sum that wraps": ("k", "int32", f"""c = Constant<value = int32[1] {{{pow(1201, -1, 1 << 32) * 3 % (1 << 32)}}}>()
        k_out = Add(k, c) t = Constant<value = int32[1] {{3}}>() there = Equal(k_out, t) on = Not(there)"""),
}  # fmt: skip
"""States that count steps otherwise than by adding: names, type, and the nodes that compute them and whether it is early."""


@pytest.mark.parametrize("kind", COUNTERS)
def test_states_that_count_otherwise_than_by_adding_are_not_proved(kind):
    names, dtype, text = COUNTERS[kind]
    model, _ = build(Case("RNN", 17, outputs=("Y",), dynamic=True))
    stream = rnn_lower.stream(model, axis="T", step=1)
    wrong = with_counter(stream, "Y", f"{text} none = Neg(true) Y = Where(on, true, none)", names, dtype)
    frame = {"X": np.ones((1, 2, 3), np.float32)}
    sessions = [rnn_lower.StreamingSession(each) for each in (stream, wrong)]
    runs = ((session.run(frame)["Y"] for session in sessions) for _ in range(LONG))
    assert any(not np.allclose(*results) for results in runs)
    assert "may count otherwise" in rnn_lower.prove_streaming(model, wrong).verdict


def test_states_that_count_by_adding_or_begin_anew_are_proved():
    model, _ = build(Case("RNN", 17, outputs=("Y",), dynamic=True))
    text = """one = Constant<value_ints = [1]>() a = Add(k, one) k_out = Abs(a) zero = Sub(one, one) has = Less(zero, l)
        l_out = Where(has, l, one) f = Sub(l, l) g = Sub(k, k) h = Add(f, g) c = Cast<to = 1>(h) Y = Add(true, c)"""
    same = with_counter(rnn_lower.stream(model, axis="T", step=1), "Y", text, "kl")
    assert rnn_lower.prove_streaming(model, same)


def test_two_nodes_that_count_frames_are_proved():
    """Running means before and behind a GRU, which Fast-FullSubNet has: the length is no matter of the first count."""

    def running_mean(x: str, y: str) -> str:
        return f"""{y}n = Shape <start = 1, end = 2> ({x}) {y}l = Squeeze ({y}n) {y}e = Add ({y}l, one)
            {y}r = Range (one, {y}e, one) {y}f = Cast <to = 1> ({y}r) {y}d = Unsqueeze ({y}f, last)
            {y}s = CumSum ({x}, one) {y} = Div ({y}s, {y}d)"""

    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]> g (float[B,T,6] x) => (float[B,T,6] y)
        <int64 one = {{1}}, int64[1] last = {{1}}> {{ {running_mean("x", "a")}
        p = Transpose <perm = [1, 0, 2]> (a) g = GRU <hidden_size = 6> (p, W, R) q = Squeeze (g, last)
        h = Transpose <perm = [1, 0, 2]> (q) {running_mean("h", "y")} }}""")
    weights = {"W": rng.standard_normal((1, 18, 6)), "R": rng.standard_normal((1, 18, 6))}
    model.graph.initializer.extend(numpy_helper.from_array(v.astype(np.float32), k) for k, v in weights.items())
    assert rnn_lower.prove_streaming(model, rnn_lower.stream(model, axis="T")).ok


def test_an_output_that_changes_after_the_first_chunk_or_of_few_frames_is_found():
    model, _ = build(Case("RNN", 17, outputs=("Y", "Y_h"), dynamic=True, N=2))
    next(value for value in model.graph.input if value.name == "X").type.tensor_type.shape.dim[1].dim_value = 2
    model.graph.input.append(helper.make_tensor_value_info("c", TensorProto.FLOAT, [3]))
    model.graph.node.append(helper.make_node("Neg", ["c"], ["z"]))
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [3]))
    stream = rnn_lower.stream(model, axis="T")
    assert rnn_lower.prove_streaming(model, stream)
    later = with_counter(stream, "z", """one = Constant<value_ints = [1]>() m = Add(k, one) k_out = Min(m, one)
        f = Cast<to = 1>(k) z = Add(true, f)""")  # fmt: skip
    short = with_counter(stream, "Y_h", """seven = Constant<value_ints = [7]>() n = Shape<start = 0, end = 1>(X)
        k_out = Add(k, n) few = Less(k_out, seven) no = Neg(true) Y_h = Where(few, no, true)""")  # fmt: skip
    for wrong, output in ((later, "z"), (short, "Y_h")):
        session = rnn_lower.StreamingSession(wrong)
        assert session.run({"X": np.ones((6, 2, 3), np.float32), "c": np.ones(3, np.float32)})
        assert f"output '{output}' differs" in rnn_lower.prove_streaming(model, wrong).verdict


SQUARE = """
    s = Shape(x) n = Gather(s, zero) t = Gather(s, one) f = Gather(s, two) ff = Mul(f, f)
"""


@pytest.mark.parametrize(
    "numbers",
    [
        "q = Div(n, ff)", "d = Sub(n, ff) e = Max(d, zero) q = Min(e, one)", "p = Mul(n, f) q = Div(p, ff)",
    ],
)  # fmt: skip
def test_numbers_that_follow_from_sizes_are_thresholds(numbers):
    """A stream without a result for batches of 36 rows and more, where 36 is the square of the number of features."""
    stream = rnn_lower.stream(stack_of(lstm), axis="T")
    text = f"""g (float[N,T,6] x, float[N,T,6] y0, int64 zero, int64 one, int64 two) => (float[N,T,6] y) {{
        {SQUARE} {numbers} c = Min(q, one)
        none = Sub(y0, y0) both = Concat<axis = 1>(y0, none) first = Mul(c, t) all = Range(zero, t, one)
        rows = Add(all, first) y = Gather<axis = 1>(both, rows) }}"""
    made = behind_y(stream, *onnx.parser.parse_graph(text).node, zero=0, one=1, two=2)
    large = np.concatenate([X[:1]] * 40)
    wanted, found = (rnn_lower.StreamingSession(model).run({"x": large})["y"] for model in (stream, made))
    assert np.any(wanted != found)
    assert not rnn_lower.prove_streaming(stack_of(lstm), made).ok


QUOTIENTS = {
    "e = Div(n, six) q = Div(e, six)": 36, "d = Div(n, six) e = Sub(d, many) q = Div(e, six)": 252,
    "b = Cast<to = 2>(n) e = Cast<to = 7>(b) m = Min(e, one) q = Sub(one, m)": 256,
}  # fmt: skip
"""By the text of an integer: the number of rows from which it is 1; for a smaller batch, it is 0."""


@pytest.mark.parametrize("numbers", ["q = Identity(zero)", *QUOTIENTS])
def test_integers_of_one_size_that_change_at_no_constant(numbers):
    """A stream with zeros instead of its result where such a number is 1; the first number is always 0."""
    stream = rnn_lower.stream(stack_of(lstm), axis="T")
    text = f"""g (float[N,T,6] x, float[N,T,6] y0, int64 zero, int64 one, int64 six, int64 many, int64[1] first) => (float[N,T,6] y) {{
        s = Shape(x) n = Gather(s, zero) {numbers}
        none = Sub(y0, y0) u = Unsqueeze(y0, first) v = Unsqueeze(none, first) both = Concat<axis = 0>(u, v)
        y = Gather<axis = 0>(both, q) }}"""
    nodes = onnx.parser.parse_graph(text).node
    made = behind_y(stream, *nodes, zero=0, one=1, six=6, many=36, first=[0])
    if (rows := QUOTIENTS.get(numbers)) is not None:
        large = np.concatenate([X[:1]] * rows)
        wanted, found = (rnn_lower.StreamingSession(model).run({"x": large})["y"] for model in (stream, made))
        assert np.any(wanted != found)
    assert rnn_lower.prove_streaming(stack_of(lstm), made).ok == (rows is None)


def of_caller(text: str, kind: str, default: int | None = None) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[T,2,3] x, {kind} mode) => (float[T,2,3] y) <int64 time = {{0}}> {{ c = CumSum(x, time) {text} }}""")
    if default is not None:
        kind = model.graph.input[1].type.tensor_type.elem_type
        model.graph.initializer.append(helper.make_tensor("mode", kind, [], [default]))
    return model


@pytest.mark.parametrize(
    ("kind", "default", "right", "wrong"),
    [
        ("int64", 1, "m = Cast<to = 1>(mode) y = Mul(c, m)", "y = Identity(c)"),
        ("bool", 1, "n = Neg(c) y = Where(mode, c, n)", "y = Identity(c)"),
        ("int64", None, "m = Cast<to = 1>(mode) y = Mul(c, m)",
         "s = Constant<value_int = 7>() z = Sub(c, c) e = Equal(mode, s) m = Cast<to = 1>(mode) p = Mul(c, m) y = Where(e, z, p)"),
        ("int64", None, "t = Constant<value_floats = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]>() m = Gather(t, mode) y = Mul(c, m)",
         "t = Constant<value_floats = [1.0, 2.0, 3.0, 4.0, 5.0, 7.0]>() m = Gather(t, mode) y = Mul(c, m)"),
        ("int64", None, "m = Cast<to = 1>(mode) y = Mul(c, m)",
         """s = Constant<value_ints = [777, 778, 779, 780, 781, 782]>() z = Sub(c, c) e = Equal(mode, s) n = Cast<to = 1>(e)
            any = ReduceMax<keepdims = 0>(n) b = Cast<to = 9>(any) m = Cast<to = 1>(mode) p = Mul(c, m) y = Where(b, z, p)"""),
        ("int64", None, "m = Cast<to = 1>(mode) y = Mul(c, m)",
         f"""t = Constant<value_floats = [{", ".join(["0.0"] * 99 + ["1.0"])}]>() one = Constant<value_ints = [1]>() f = Reshape(mode, one)
             none = Constant<value_ints = [0]>() l = Add(f, one) r = Slice(t, f, l, none) m = Cast<to = 1>(mode) p = Mul(c, m) y = Add(p, r)"""),
    ],
    ids=["default of integers", "default of booleans", "a comparison", "a row of a table", "a list", "a slice of a table"],
)  # fmt: skip
def test_integers_of_the_caller_are_tried(kind, default, right, wrong):
    model = of_caller(right, kind, default)
    assert rnn_lower.prove_streaming(model, rnn_lower.stream(model, axis="T")).ok
    assert not rnn_lower.prove_streaming(model, rnn_lower.stream(of_caller(wrong, kind, default), axis="T")).ok


@pytest.mark.parametrize("where", ["chunks of one frame", "batches of one row", "later rows"])
def test_a_reset_that_works_only_sometimes_is_found(where):
    model = stack_of(lstm)
    stream = rnn_lower.stream(model, axis="T", reset=True)
    assert rnn_lower.prove_streaming(model, stream)
    text = {
        "chunks of one frame": "t = Gather(s, one) on = Greater(t, one)",
        "batches of one row": "n = Gather(s, zero) on = Greater(n, one)",
        "later rows": "n = Gather(s, zero) all = Range(zero, n, one) on = Less(all, two)",
    }[where]
    wrong = with_other_reset(stream, f"s = Shape(x) {text}", zero=0, one=1, two=2)
    assert not rnn_lower.prove_streaming(model, wrong).ok


@pytest.mark.parametrize(
    "text",
    ["r = Sqrt(f) y = Div(c, r)", "k = Mul(b, b) m = Max(k, b) n = Sub(m, b) g = Cast<to = 1>(n) y = Mul(c, g)"],
    ids=["a float", "an integer of two"],
)
def test_a_size_that_only_the_stream_fixes_is_no_difference(text):
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]> g (float[T,B,3] x) => (float[T,B,3] y)
        <int64 time = {{0}}, int64 one = {{1}}> {{
        c = CumSum(x, time) s = Shape(c) b = Gather(s, one) f = Cast<to = 1>(b) {text} }}""")
    assert rnn_lower.prove_streaming(model, rnn_lower.stream(model, axis="T", dims={"B": 2})).ok


def test_an_input_that_the_stream_lacks_is_no_key_error():
    model = of_caller("m = Cast<to = 1>(mode) y = Mul(c, m)", "int64", 1)
    proofs = [
        rnn_lower.prove_streaming(model, rnn_lower.stream(model, axis="T", set_inputs={"mode": k})) for k in (1, 2)
    ]
    assert "mode" in proofs[0].verdict or proofs[0].ok
    assert not proofs[1].ok
