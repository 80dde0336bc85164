"""What exports of Keras, jax and TorchScript have that the other models here have not, each in small."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import rnn_lower
from rnn_lower import cli
from rnn_lower.errors import UnsupportedError

RNN = """hT, Y = Loop (t, yes, h0) <body: graph = body (int64 i, bool c, float[M,4] h) => (bool d, float[M,4] hn, float[M,4] y) {
    x = Gather <axis = AXIS> (X, i) a = MatMul (x, W) b = MatMul (h, R) sum = Add (a, b) hn = Tanh (sum)
    y = Identity (hn) d = Identity (c)
}>"""


def model_of(inputs, nodes, axis=0, opset=17):
    """A Loop over the rows of X, by what comes before it."""
    rng = np.random.default_rng(0)
    text = f"""<ir_version: 8, opset_import: ["": {opset}]> g ({inputs}) => (float[A,B,C] Y, float[D,E] hT) {{
        yes = Constant <value = bool {{1}}> () z = Constant <value_int = 0> () u = Constant <value_int = 1> () {nodes}
        {RNN.replace("AXIS", str(axis))}
    }}"""
    model = onnx.parser.parse_model(text)
    for name, array in (("W", rng.normal(size=(3, 4))), ("R", rng.normal(size=(4, 4)))):
        model.graph.initializer.append(numpy_helper.from_array(array.astype("f4"), name))
    return model


def run(model, **feeds):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feeds)


def rows(*shape):
    return np.random.default_rng(1).normal(size=shape).astype("f4")


def recurrent(model):
    return [node.op_type for node in model.graph.node if node.op_type in ("Loop", "RNN")]


def same(model, other, **feeds):
    return all(np.allclose(a, b, atol=1e-5) for a, b in zip(run(model, **feeds), run(other, **feeds), strict=True))


def test_a_state_of_the_caller_gets_the_batch_of_x(tmp_path):
    """A loop broadcasts them, a node does not: the inputs declare it, so that a check draws no other sizes."""
    model = model_of("float[T,N,3] X, float[M,4] h0", "s = Shape (X) t = Gather (s, z)")
    raised = rnn_lower.raise_loops(model)
    assert recurrent(raised) == ["RNN"]
    assert [dim.dim_param for dim in raised.graph.input[1].type.tensor_type.shape.dim[:1]] == ["N"]
    assert same(model, raised, X=rows(5, 2, 3), h0=rows(2, 4))
    onnx.save(model, tmp_path / "in.onnx")
    assert cli.main(["lower", str(tmp_path / "in.onnx"), str(tmp_path / "out.onnx"), "--raise-loops", "--check"]) == 0


STATE = (
    "n = Gather (s, AXIS) n1 = Reshape (n, one) w = Constant <value_ints = [4]> () one = Constant <value_ints = [1]> ()"
    " hs = Concat <axis = 0> (n1, w) fill = Constant <value_float = 0.0> () h0 = Expand (fill, hs)"
)


def test_a_loop_over_the_second_axis_is_raised():
    """As TorchScript writes `for t in range(x.size(1)): x[:, t]`."""
    model = model_of("float[N,T,3] X", "s = Shape (X) t = Gather (s, u) " + STATE.replace("AXIS", "z"), axis=1)
    raised = rnn_lower.raise_loops(model)
    assert recurrent(raised) == ["RNN"]
    assert same(model, raised, X=rows(2, 5, 3))


def test_a_default_domain_that_is_not_written_stays_so():
    model = model_of("float[N,T,3] X", "s = Shape (X) t = Gather (s, u) " + STATE.replace("AXIS", "z"), axis=1)
    model.opset_import[0].ClearField("domain")
    raised = rnn_lower.raise_loops(model)
    assert recurrent(raised) == ["RNN"]
    assert list(raised.opset_import) == list(model.opset_import)
    assert rnn_lower.prove(model, raised).ok
    assert rnn_lower.prove(model, rnn_lower.lower(model, raise_loops=True)).ok


def test_what_comes_before_x_is_no_part_of_the_proof():
    """The sizes of states are those of the value that is transposed to X; a limit there is no length."""
    before = "low = Constant <value_float = -1000000000.0> () cut = Max (V, low) X = Transpose <perm = [1, 0, 2]> (cut)"
    model = model_of("float[N,T,3] V", f"{before} s = Shape (cut) t = Gather (s, u) " + STATE.replace("AXIS", "z"))
    raised = rnn_lower.raise_loops(model)
    assert recurrent(raised) == ["RNN"]
    assert same(model, raised, V=rows(2, 5, 3))


def test_a_trip_count_from_a_split_of_sizes():
    """As tf2onnx writes a TimeDistributed layer of a free length."""
    model = model_of(
        "float[T,N,3] X", "s = Shape (X) t1, n2, f1 = Split (s) t = Squeeze (t1) " + STATE.replace("AXIS", "u")
    )
    lowered = rnn_lower.lower(model, loops=True, dims={"T": 5, "N": 2})
    assert not recurrent(lowered)
    assert same(model, lowered, X=rows(5, 2, 3))
    assert rnn_lower.prove(model, lowered).ok


def test_raising_without_a_loop_writes_nothing(tmp_path, capsys):
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (float[N] y) { y = Abs (x) }'
    )
    onnx.save(model, tmp_path / "in.onnx")
    assert cli.main(["raise", str(tmp_path / "in.onnx"), str(tmp_path / "out.onnx")]) == cli.DIFFERENT
    assert not (tmp_path / "out.onnx").exists()
    assert "nothing was written: the model contains no loops" in capsys.readouterr().out


def test_states_are_listed_by_the_names_of_their_sizes(tmp_path, capsys):
    onnx.save(model_of("float[T,N,3] X, float[M,4] h0", "s = Shape (X) t = Gather (s, z)"), tmp_path / "in.onnx")
    assert cli.main(["inspect", str(tmp_path / "in.onnx")]) == 0
    assert "states h0 [M, 4]; RNN\n" in capsys.readouterr().out


def test_legalized_nodes_are_proved_without_recurrent_ones(tmp_path):
    """Nothing was unrolled, and no node replaced; the whole models are compared."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]> g (float[2,4] x) => (float[2,2] y) {
        a, b = Split <axis = 1> (x) y = Add (a, b)
    }""")
    onnx.save(model, tmp_path / "in.onnx")
    out = str(tmp_path / "out.onnx")
    assert (
        cli.main(
            ["lower", str(tmp_path / "in.onnx"), out, "--target", "opencv@4", "--legalize-all", "--prove", "--check"]
        )
        == 0
    )
    assert [node.op_type for node in onnx.load(out).graph.node] == ["Slice", "Slice", "Add"]


@pytest.mark.parametrize("condition", ["Less (n, five)", "And (d5, hot)"])
def test_a_loop_that_only_its_condition_ends(condition):
    """As jax's while_loop and fori_loop become a Loop of 2**63 - 1 trips."""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]> g (float[2,3] x) => (float[2,3] y)
        <int64 most = {{9223372036854775807}}, bool yes = {{1}}, int64 five = {{5}}, int64 one = {{1}}, float big = {{1000}}> {{
        y = Loop (most, yes, x) <body: graph = body (int64 i, bool c, float[2,3] h) => (bool d, float[2,3] hn) {{
            hn = Tanh (h) n = Add (i, one) d5 = Less (n, five) sum = ReduceSum <keepdims = 0> (hn) hot = Less (sum, big)
            d = {condition}
        }}>
    }}""")
    if "hot" in condition:
        with pytest.raises(UnsupportedError, match="depends on input values"):
            rnn_lower.lower(model, loops=True)
    else:
        lowered = rnn_lower.lower(model, loops=True)
        assert sum(node.op_type == "Tanh" for node in lowered.graph.node) == 5
        assert same(model, lowered, x=rows(2, 3))


@pytest.mark.parametrize(
    "nodes", ["v = Slice (W, s, e, a) w = Slice (W, s, e, a)", "v = Reshape (x, as) w = Reshape (x, as)"]
)
def test_a_node_that_is_legalized_to_a_constant_or_to_what_it_reads(nodes):
    """Two of them may be one value, which then has neither name."""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]> g (float[4,4] x) => (float[4,C] y, float[4,D] w)
        <int64[1] s = {{0}}, int64[1] e = {{2}}, int64[1] a = {{1}}, int64[2] as = {{4, 4}}> {{
        {nodes} p = MatMul (x, v) q = MatMul (x, w) y = Add (p, q)
    }}""")
    model.graph.initializer.append(numpy_helper.from_array(rows(4, 4), "W"))
    lowered = rnn_lower.lower(model, target="tidl", legalize_all=True)
    assert same(model, lowered, x=rows(4, 4))
    assert rnn_lower.prove(model, lowered).ok


@pytest.mark.parametrize("mix", ["a = Mul (z, n) b = Mul (rest, h)", "a = Mul (rest, n) b = Mul (z, h)"])
def test_a_gru_whose_gate_is_the_share_of_the_new_state(mix):
    """As Cho et al., Haiku and many an own cell write it: 1 - sigmoid(x) is sigmoid(-x)."""
    step = f"""x = Gather (X, i) xz = MatMul (x, W) xr = MatMul (x, W1) xn = MatMul (x, W2) hz = MatMul (h, R) hr = MatMul (h, R1)
        az = Add (xz, hz) ar = Add (xr, hr) z = Sigmoid (az) r = Sigmoid (ar) rh = Mul (r, h) hn = MatMul (rh, R2)
        an = Add (xn, hn) n = Tanh (an) rest = Sub (one, z) {mix} new = Add (a, b) y = Identity (new) d = Identity (c)"""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]> g (float[T,N,3] X, float[N,4] h0)
        => (float[A,B,C] Y, float[D,E] hT) <float one = {{1}}, bool yes = {{1}}, int64 first = {{0}}> {{
        s = Shape (X) t = Gather (s, first)
        hT, Y = Loop (t, yes, h0) <body: graph = body (int64 i, bool c, float[N,4] h) => (bool d, float[N,4] new, float[N,4] y) {{ {step} }}>
    }}""")
    for index, name in enumerate(("W", "W1", "W2", "R", "R1", "R2")):
        array = np.random.default_rng(index).normal(size=(3 if "W" in name else 4, 4)).astype("f4")
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    raised = rnn_lower.raise_loops(model)
    assert [node.op_type for node in raised.graph.node if node.op_type in ("Loop", "GRU")] == ["GRU"]
    assert same(model, raised, X=rows(5, 2, 3), h0=rows(2, 4))


@pytest.mark.parametrize("condition", ["big = Greater (n, one)", "big = Greater (h, zero)"])
def test_a_choice_between_a_number_and_nan_is_no_sum(condition):
    """As jax writes the variance of a layer normalization in a step; a sum of both would be NaN everywhere."""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]> g (float[2,3] x) => (float[2,3] y)
        <int64 trips = {{3}}, bool yes = {{1}}, float one = {{1}}, float n = {{3}}, float zero = {{0}}> {{
        y = Loop (trips, yes, x) <body: graph = body (int64 i, bool c, float[2,3] h) => (bool d, float[2,3] hn) {{
            {condition} a = Abs (h) picked = Where (big, a, nan) hn = Add (picked, one) d = Identity (c)
        }}>
    }}""")
    model.graph.initializer.append(numpy_helper.from_array(np.float32(np.nan), "nan"))
    lowered = rnn_lower.lower(model, target="tidl")
    assert "Loop" not in recurrent(lowered)
    assert all(
        np.array_equal(a, b, equal_nan=True)
        for a, b in zip(run(model, x=rows(2, 3)), run(lowered, x=rows(2, 3)), strict=True)
    )
