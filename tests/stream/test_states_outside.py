"""A state that is an input already says nothing of what else is to be carried: that has to be analysed to the end."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import onnx
import pytest
from layers import FEATURES, Stack
from onnx import TensorProto, defs, helper
from paths import ROOT

import rnn_lower
from rnn_lower import api, cli
from rnn_lower.modelio.document import Document
from rnn_lower.options import Options
from rnn_lower.shapes.size_values import RULES as SIZES
from rnn_lower.streaming import stream_model
from rnn_lower.streaming.rules.table import RULES

F = FEATURES
WITHOUT_RULE = sorted(
    {schema.name for schema in defs.get_all_schemas() if not schema.domain and schema.min_input}
    - set(RULES)
    - {"Shape", *SIZES}
)


def beside(op: str, inputs: int, free: str | int = "T", padded: bool = True, outside: bool = True) -> onnx.ModelProto:
    """Pad, Conv, Transpose, an operator, and a GRU whose state is an input and an output."""
    s = Stack(np.random.default_rng(0), 17)
    s.add("Transpose", "x", perm=[0, 2, 1])
    if padded:
        s.add("Pad", s.value, s.ints(0, 0, 2, 0, 0, 0))
        s.add("Conv", s.value, s.weight(F, F, 3), kernel_shape=[3])
    s.add("Transpose", s.value, perm=[2, 0, 1])
    if op:
        s.nodes.append(helper.make_node(op, [s.value] * inputs, ["unknown"], name="culprit"))
    state = "h" if outside else s.weight(1, 1, F)
    weights = s.weight(1, 3 * F, F), s.weight(1, 3 * F, F)
    s.nodes.append(helper.make_node("GRU", [s.value, *weights, "", "", state], ["Y", "hn"], name="gru", hidden_size=F))
    s.nodes.append(helper.make_node("Squeeze", ["Y", s.ints(1)], ["y"], name="squeeze"))
    floats = TensorProto.FLOAT
    state_in = [helper.make_tensor_value_info("h", floats, [1, 1, F])] if outside else []
    graph = helper.make_graph(
        s.nodes, "beside", [helper.make_tensor_value_info("x", floats, [1, free, F]), *state_in],
        [helper.make_tensor_value_info(name, floats, None) for name in ("y", "hn", *["unknown"][: bool(op)])], s.weights,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def run(tmp_path, model: onnx.ModelProto, *options: str) -> int:
    (tmp_path / "in.onnx").write_bytes(model.SerializeToString())
    return cli.main(["stream", str(tmp_path / "in.onnx"), "-o", str(tmp_path / "out.onnx"), *options])


@pytest.mark.parametrize("op", WITHOUT_RULE)
@pytest.mark.parametrize("outside", [True, False], ids=["outside", "inside"])
def test_what_has_no_rule_is_refused(op, outside, tmp_path, capsys):
    """With and without a time axis, by its name, and nothing is written."""
    schema = defs.get_schema(op, 17) if defs.has(op) and _is_there(op) else None
    model = beside(op, schema.min_input if schema else 1, outside=outside)
    for options in ([], ["--time", "T"], ["--keep-native"], ["--check"]):
        code = run(tmp_path, model, *options)
        out, err = capsys.readouterr()
        assert (code, out) == (2, ""), err
        assert re.search(
            rf"{op} 'culprit' in main graph(?: cannot run chunk by chunk)?: |'Pad1' in main graph cannot run chunk by chunk: ",
            err,
        ), err
        assert err.count("\n") == 1
        assert [path.name for path in tmp_path.iterdir()] == ["in.onnx"]


@pytest.mark.parametrize("free", [1, 16])
@pytest.mark.parametrize("op", WITHOUT_RULE)
def test_what_has_no_rule_is_refused_at_fixed_sizes(op, free, tmp_path, capsys):
    schema = defs.get_schema(op, 17) if defs.has(op) and _is_there(op) else None
    for outside in (True, False):
        model = beside(op, schema.min_input if schema else 1, free, outside=outside)
        for options in ([], ["--time", "x[1]"], ["--step", "1"], ["--keep-native"], ["--check"], ["--prove"]):
            code = run(tmp_path, model, *options)
            out, err = capsys.readouterr()
            assert (code, out) == (2, ""), err
            assert err.count("\n") == 1
            assert [path.name for path in tmp_path.iterdir()] == ["in.onnx"]


def _is_there(op: str) -> bool:
    try:
        defs.get_schema(op, 17)
    except defs.SchemaError:
        return False
    return True


def test_there_are_many():
    assert len(WITHOUT_RULE) > 60


def test_a_foreign_operator_is_refused(tmp_path, capsys):
    model = beside("Odd", 1)
    model.graph.node[4].domain = "com.example"
    model.opset_import.append(helper.make_opsetid("com.example", 1))
    assert run(tmp_path, model) == 2
    assert "'culprit'" in capsys.readouterr().err
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize("free", ["T", 1, 16])
def test_a_convolution_beside_the_state_is_carried(free):
    """Where the size is fixed, the axis is asked for; where it is free, it is that one."""
    model = beside("", 1, free)
    if free != "T":
        with pytest.raises(rnn_lower.RnnLowerError, match=r"Pad 'Pad1' also needs state; pass axis=.x\[1\]. to"):
            rnn_lower.stream(model)
    made = rnn_lower.stream(model, axis=None if free == "T" else "x[1]")
    assert [value.name for value in made.graph.input] == ["x", "h", "Pad1/cache_in"]


@pytest.mark.parametrize("free", ["T", 1, 16])
def test_nothing_else_to_carry_is_left(free):
    made = rnn_lower.stream(beside("", 1, free, padded=False))
    assert [value.name for value in made.graph.input] == ["x", "h"]


@pytest.mark.parametrize("free", ["T", 16])
def test_what_is_left_is_compared_in_chunks(free, tmp_path, capsys):
    assert run(tmp_path, beside("", 1, free, padded=False), "--check", "--prove") == 0
    assert capsys.readouterr().out.count("chunk boundaries") == 2


def test_a_check_of_no_chunks_fails():
    made = stream_model.make(Document(beside("", 1, padded=False)), stream_model.StreamOptions(), Options())
    alone = dataclasses.replace(made.plan, states=(), inputs={})
    wrong = dataclasses.replace(made, streamed=dataclasses.replace(made.streamed, plan=alone))
    report = api.check_streaming(wrong, made.document.proto, runs=1)
    assert not report
    assert "no run carried a state from one chunk to the next" in report.verdict


def test_sizes_that_the_original_refuses_are_not_sampled(shared, tmp_path, capsys):
    """A model of one step per run whose sizes are free, but must have certain values."""
    path, out = str(shared / "models" / "silero_vad.onnx"), str(tmp_path / "o.onnx")
    assert cli.main(["stream", path, out, "--set", "sr=16000", "--check", "--prove", "--runs", "1"]) == cli.DONE
    printed = capsys.readouterr()
    assert printed.err.count("the caller must feed the state back") == 1
    assert cli.main(["stream", path, out]) == cli.BAD
    assert "or the input that selects the branch (--set sr=VALUE)" in capsys.readouterr().err


def test_a_model_that_runs_with_no_sample(tmp_path, capsys):
    """Its input must have 999 rows, which no sample has, because the first axis of its Reshape has size 1."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        main (float[K, 1, 1] x, float[1, 1, 4] h) => (float[1, 1, 1, 4] y, float[1, 1, 4] z)
        <float[1, 4, 999] w = {0}, float[1, 4, 4] r = {0}, int64[3] s = {1, -1, 999}>
        { u = Reshape (x, s) y, z = RNN <hidden_size = 4> (u, w, r, , , h) }
    """)
    for tensor in model.graph.initializer:
        if tensor.name in "wr":
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.zeros(tensor.dims, np.float32), tensor.name))
    path, out = str(tmp_path / "m.onnx"), str(tmp_path / "o.onnx")
    onnx.save(model, path)
    assert cli.main(["stream", path, out, "--step", "1", "--check"]) == cli.BAD
    assert "; set the sizes of its inputs (--dim NAME=SIZE)" in capsys.readouterr().err
    assert cli.main(["stream", path, out, "--step", "1", "--prove"]) == cli.DIFFERENT
    assert "out of scope: the original model cannot be evaluated with sampled inputs" in capsys.readouterr().out
    assert cli.main(["stream", path, out, "--step", "1", "--check", "--prove", "--dim", "K=999"]) == cli.DONE


@pytest.mark.parametrize(("options", "length"), [((), "any"), (("--step", "4"), "4 frames")])
def test_the_chunk_length_is_printed(options, length, tmp_path, capsys):
    command = ["stream", str(ROOT / "models" / "torch_denoiser.onnx"), str(tmp_path / "o.onnx"), *options]
    assert cli.main(command) == cli.DONE
    assert f"chunk length: {length}\n" in capsys.readouterr().out


def test_streams_are_legalized_and_raised(tmp_path, capsys):
    path, out = str(ROOT / "models" / "torch_denoiser.onnx"), str(tmp_path / "o.onnx")
    target = ("--step", "1", "--target", "ethos-u", "--dim", "batch=1")
    assert cli.main(["stream", path, out, *target]) == cli.DONE
    assert "--legalize-all" in capsys.readouterr().err
    assert cli.main(["stream", path, out, *target, "--legalize-all", "--prove"]) == cli.DONE
    assert "--legalize-all" not in capsys.readouterr().err
    loops = rnn_lower.lower(onnx.load(path), form="loop")
    made = rnn_lower.stream(loops, axis="time", raise_loops=True)
    assert rnn_lower.prove_streaming(onnx.load(path), made)


@pytest.mark.parametrize("node", ["Dropout (c)", "ReduceSumSquare <axes = [0]> (c)", "Softmax <axis = 1> (c)"])
def test_an_initial_state_that_a_node_computes(node):
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]> main (float[T, 1, 2] x) => (float[T, 1, 1, 3] y)
        <float[1, 1, 3] c = {{0.5, -0.25, 1.0}}, float[1, 3, 2] w = {{{", ".join(["0.5"] * 6)}}},
         float[1, 3, 3] r = {{{", ".join(["0.25"] * 9)}}}>
        {{ h = {node} y = RNN <hidden_size = 3> (x, w, r, , , h) }}
    """)
    assert rnn_lower.prove_streaming(model, rnn_lower.stream(model, axis="T"))


CALLERS = {
    "unsqueezed": """(float[N,4,T] x, float[N,5] h, float[N,5] c) => (float[U,N,5] z) {
        h0 = Unsqueeze (h, zero) c0 = Unsqueeze (c, zero)
        y4, yh, yc = LSTM <hidden_size = 5> (t, W, R, "", "", h0, c0) z = Squeeze (y4, one) }""",
    "stacked": """(float[N,4,T] x, float[2,N,5] h, float[2,N,5] c) => (float[U,N,5] z, float[2,N,5] hn, float[2,N,5] cn) {
        h0 = Slice (h, zero, one, zero) h1 = Slice (h, one, two, zero)
        c0 = Slice (c, zero, one, zero) c1 = Slice (c, one, two, zero)
        y4, yh, yc = LSTM <hidden_size = 5> (t, W, R, "", "", h0, c0) y = Squeeze (y4, one)
        z4, zh, zc = LSTM <hidden_size = 5> (y, W2, R, "", "", h1, c1) z = Squeeze (z4, one)
        hn = Concat <axis = 0> (yh, zh) cn = Concat <axis = 0> (yc, zc) }""",
}


@pytest.mark.parametrize("step", [None, 1, 2])
@pytest.mark.parametrize("kind", CALLERS)
def test_states_of_the_caller_begin_after_the_warm_up(kind, step, tmp_path):
    """A convolution without padding delays the node, so that a chunk of the warm-up must not change its states."""
    head, _, tail = CALLERS[kind].partition("{")
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]> g {head}
        <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}}> {{
        v = Conv <kernel_shape = [3]> (x, K) t = Transpose <perm = [2, 0, 1]> (v) {tail}""")
    rng = np.random.default_rng(0)
    for name, shape in {"K": (4, 4, 3), "W": (1, 20, 4), "W2": (1, 20, 5), "R": (1, 20, 5)}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name))
    onnx.save(model, tmp_path / "in.onnx")
    result = api.stream_file(tmp_path / "in.onnx", tmp_path / "out.onnx", axis="T", step=step)
    made = onnx.load(tmp_path / "out.onnx")
    own = 1 + (step is not None)  # of the convolution, and the number of frames
    returned = 3 if kind == "stacked" else 1 + 2
    assert len(made.graph.output) == returned + own
    assert api.check_streaming(result, made).ok
    assert rnn_lower.prove_streaming(model, made).ok
