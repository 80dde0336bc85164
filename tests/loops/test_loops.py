"""Loops of exporters, in small: unrolled, raised, listed, refused; and real exports where the exporters are installed."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from judge import close, proved_as_wholes, run_onnxruntime
from onenode import Case, build
from onnx import TensorProto, helper

import rnn_lower
from rnn_lower import cli
from rnn_lower.errors import UnsupportedError
from rnn_lower.ir import protobuf

FLOAT, INT32, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL
TARGETS = ("rknn", "tidl", "ethos-u", "opencv@4")
H, I = 4, 3


def info(name, kind=FLOAT, shape=None):
    return helper.make_tensor_value_info(name, kind, shape)


def constants(**arrays):
    return [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]


def keras_gru(after=True, steps="T", batch="N", mask=False, hard=False, seed=0):
    """A Keras GRU as tf2onnx writes it: weights carried as states, two conditions, a Gather for each step."""
    rng = np.random.default_rng(seed)
    weights = constants(
        W=rng.normal(0, 0.5, (I, 3 * H)).astype("f4"), R=rng.normal(0, 0.5, (H, 3 * H)).astype("f4"),
        bias=rng.normal(0, 0.5, (2, 3 * H)).astype("f4"), zero=np.float32(0), width=np.array([H], "i4"), i0=np.array(0, "i4"),
        first=np.array([0], "i8"), second=np.array([1], "i8"), inside=np.array(True),
    )  # fmt: skip
    main = [
        helper.make_node("Transpose", ["x"], ["xt"], perm=[1, 0, 2]),
        helper.make_node("Shape", ["xt"], ["sizes"]), helper.make_node("Cast", ["sizes"], ["sizes32"], to=INT32),
        helper.make_node("Slice", ["sizes32", "first", "second", "first"], ["steps1"]),
        helper.make_node("Squeeze", ["steps1", "first"], ["steps32"]),
        helper.make_node("Cast", ["steps32"], ["trips"], to=INT64),
        helper.make_node("Slice", ["sizes32", "second", "two", "first"], ["rows1"]),
        helper.make_node("Concat", ["rows1", "width"], ["shape32"], axis=0),
        helper.make_node("Cast", ["shape32"], ["shape"], to=INT64), helper.make_node("Expand", ["zero", "shape"], ["h0"]),
    ]  # fmt: skip
    weights += constants(two=np.array([2], "i8"))
    node, nodes = helper.make_node, []
    nodes += [
        node("Split", ["bias_in"], ["b0", "b1"], axis=0), node("Squeeze", ["b0", "axis0"], ["wb"]),
        node("Squeeze", ["b1", "axis0"], ["rb"]), node("Gather", ["xt", "i"], ["row"], axis=0),
        node("MatMul", ["row", "W_in"], ["xw"]), node("Add", ["xw", "wb"], ["xb"]),
        node("Split", ["xb"], ["xz", "xr", "xh"], axis=-1),
    ]  # fmt: skip
    if after:
        nodes += [node("MatMul", ["h", "R_in"], ["hw"]), node("Add", ["hw", "rb"], ["hb"])]
        for name, start in (("hz", 0), ("hr", 1), ("hh", 2)):
            weights_of = (f"s{start}", f"e{start}", "both")
            nodes.append(node("Slice", ["hb", *weights_of], [name]))
    else:
        nodes += [node("Slice", ["R_in", f"s{k}", f"e{k}", "both"], [f"R{k}"]) for k in range(3)]
        nodes += [node("MatMul", ["h", f"R{k}"], [name]) for k, name in ((0, "hz"), (1, "hr"))]
    nodes += [node("Add", ["xz", "hz"], ["az"]), node("Add", ["xr", "hr"], ["ar"])]
    if hard:
        for gate in "zr":
            nodes += [node("Add", [f"a{gate}", "three"], [f"u{gate}"]), node("Clip", [f"u{gate}", "low", "six"], [f"k{gate}"]),
                      node("Mul", [f"k{gate}", "sixth"], [gate])]  # fmt: skip
    else:
        nodes += [node("Sigmoid", ["az"], ["z"]), node("Sigmoid", ["ar"], ["r"])]
    if after:
        nodes.append(node("Mul", ["r", "hh"], ["reset"]))
    else:
        nodes += [node("Mul", ["r", "h"], ["rh"]), node("MatMul", ["rh", "R2"], ["reset"])]
    nodes += [
        node("Add", ["xh", "reset"], ["ah"]), node("Tanh", ["ah"], ["n"]), node("Sub", ["one", "z"], ["rest"]),
        node("Mul", ["rest", "n"], ["new"]), node("Mul", ["z", "h"], ["kept"]), node("Add", ["kept", "new"], ["sum"]),
    ]  # fmt: skip
    if mask:
        nodes += [node("Gather", ["mask", "i"], ["m"], axis=0), node("Where", ["m", "sum", "h"], ["h_out"])]
    else:
        nodes.append(node("Identity", ["sum"], ["h_out"]))
    nodes += [
        node("Add", ["i", "one32"], ["i_out"]), node("Cast", ["i_out"], ["if"], to=FLOAT),
        node("Cast", ["steps_in"], ["tf"], to=FLOAT), node("Less", ["if", "tf"], ["l1"]),
        node("Cast", ["trip"], ["cf"], to=FLOAT), node("Less", ["cf", "tf"], ["l2"]), node("And", ["l1", "l2"], ["go_out"]),
        node("Identity", ["h_out"], ["y"]),
    ]  # fmt: skip
    most = np.iinfo("i4").max
    inner = constants(
        one=np.float32(1), one32=np.array(1, "i4"), axis0=np.array([0], "i8"), both=np.array([0, 1], "i8"),
        three=np.float32(3), low=np.float32(0), six=np.float32(6), sixth=np.float32(1 / 6),
        **{f"s{k}": np.array([0, k * H], "i8") for k in range(3)},
        **{f"e{k}": np.array([most, (k + 1) * H], "i8") for k in range(3)},
    )  # fmt: skip
    passed = ["steps_in", "W_in", "R_in", "bias_in"]
    ins = [info("trip", INT64, []), info("go", BOOL, []), info("i", INT32, []), info("h", FLOAT, [None, H])]
    ins += [info("steps_in", INT32, []), *(info(name) for name in passed[1:])]
    outs = [info("go_out", BOOL, []), info("i_out", INT32, []), info("h_out", FLOAT, [None, H])]
    outs += [info("steps_in", INT32, []), *(info(name) for name in passed[1:]), info("y", FLOAT, [None, H])]
    body = helper.make_graph(nodes, "body", ins, outs, inner)
    main += [
        helper.make_node(
            "Loop", ["trips", "inside", "i0", "h0", "steps32", "W", "R", "bias"],
            ["i_end", "last", "o1", "o2", "o3", "o4", "all"], name="loop", body=body,
        ),
        helper.make_node("Transpose", ["all"], ["Y"], perm=[1, 0, 2]),
    ]  # fmt: skip
    inputs = [info("x", FLOAT, [batch, steps, I])]
    inputs += [info("mask", BOOL, [steps, batch, 1])] if mask else []
    graph = helper.make_graph(main, "g", inputs, [info("Y"), info("last")], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def run(model, feeds):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feeds)


def feeds_of(model, seed=0):
    rng = np.random.default_rng(seed)
    feeds = {}
    for value in model.graph.input:
        shape = [dim.dim_value or {"N": 2, "T": 5}[dim.dim_param] for dim in value.type.tensor_type.shape.dim]
        is_bool = value.type.tensor_type.elem_type == BOOL
        feeds[value.name] = rng.random(shape) < 0.6 if is_bool else rng.normal(size=shape).astype("f4")
    return feeds


def same(one, other, feeds):
    return all(np.allclose(a, b, atol=1e-5) for a, b in zip(run(one, feeds), run(other, feeds), strict=True))


def operators(graph):
    """Of the nodes of a graph, and of those in its bodies."""
    found = {node.op_type for node in graph.node}
    return found.union(
        *(operators(a.g) for node in graph.node for a in node.attribute if a.type == onnx.AttributeProto.GRAPH)
    )


def loops_of(model):
    return [node.name for node in model.graph.node if node.op_type in ("Loop", "Scan")]


VARIANTS = [{}, {"after": False}, {"mask": True}, {"hard": True}]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("target", TARGETS)
def test_unrolled_for_a_target_it_is_right_and_taken(variant, target):
    model = keras_gru(**variant)
    lowered = rnn_lower.lower(model, target=target, dims={"N": 2, "T": 5})
    assert not loops_of(lowered)
    assert same(model, lowered, feeds_of(model))
    before = {(one.op, one.rule) for one in rnn_lower.lint(model, target, dims={"N": 2, "T": 5}).findings}
    assert {(one.op, one.rule) for one in rnn_lower.lint(lowered, target).findings} <= before
    assert rnn_lower.prove(model, lowered).ok


def test_a_step_takes_few_nodes():
    def count(steps):
        return len(rnn_lower.lower(keras_gru(), loops=True, dims={"N": 2, "T": steps}).graph.node)

    def of_node(steps):
        return len(
            rnn_lower.lower(rnn_lower.raise_loops(keras_gru()), form="unroll", dims={"N": 2, "T": steps}).graph.node
        )

    assert (count(30) - count(10)) <= 1.3 * (of_node(30) - of_node(10))


@pytest.mark.parametrize("after", [True, False])
def test_a_gru_is_raised_and_lowered_from_there(after, tmp_path):
    model = keras_gru(after)
    raised = rnn_lower.raise_loops(model)
    assert [node.op_type for node in raised.graph.node if node.op_type in ("Loop", "GRU")] == ["GRU"]
    assert same(model, raised, feeds_of(model))
    assert rnn_lower.prove(model, raised).ok
    onnx.save(model, tmp_path / "in.onnx")
    out = tmp_path / "out.onnx"
    assert cli.main(["lower", str(tmp_path / "in.onnx"), "-o", str(out), "--raise-loops", "--prove", "--check"]) == 0
    assert same(model, onnx.load(out), feeds_of(model))
    assert not [node for node in onnx.load(out).graph.node if node.op_type in ("Loop", "GRU")]


@pytest.mark.parametrize("variant", [{"mask": True}, {"hard": True}], ids=str)
def test_what_no_node_computes_stays(variant, tmp_path, capsys):
    """A mask may have holes, and 6 times a sixth is not 1 in float32."""
    onnx.save(keras_gru(**variant), tmp_path / "in.onnx")
    assert cli.main(["raise", str(tmp_path / "in.onnx"), str(tmp_path / "out.onnx")]) == cli.DIFFERENT
    assert not (tmp_path / "out.onnx").exists()
    assert "nothing was written" in capsys.readouterr().out


def _changed(index):
    """A GRU of a loop of which one thing is another."""
    model = keras_gru()
    body = next(node for node in model.graph.node if node.op_type == "Loop").attribute[0].g
    nodes = {node.output[0]: node for node in body.node}
    if index == 0:
        nodes["rest"].input[:] = ["z", "one"]  # z - 1
    elif index == 1:
        nodes["reset"].input[:] = ["xr", "hh"]
    elif index == 2:
        nodes["kept"].input[:] = ["r", "h"]
    elif index == 3:
        nodes["new"].input[:] = ["z", "n"]
    elif index == 4:
        nodes["ah"].input[:] = ["xh", "hh"]
    elif index == 5:
        nodes["row"].input[:] = ["xt", "i_never"]
        body.node.insert(0, helper.make_node("Mul", ["i", "one32"], ["i_never"]))
        nodes["h_out"].op_type = "Neg"
    return model


@pytest.mark.parametrize("index", range(6))
def test_a_near_miss_is_not_raised(index):
    model = _changed(index)
    raised = rnn_lower.raise_loops(model)
    assert loops_of(raised) == ["loop"]


def test_a_loop_that_stops_at_a_hundred_steps_is_not_raised():
    model = keras_gru()
    model.graph.initializer.extend(constants(most=np.array(100, "i8")))
    loop = next(node for node in model.graph.node if node.op_type == "Loop")
    at = list(model.graph.node).index(loop)
    model.graph.node.insert(at, helper.make_node("Min", ["trips", "most"], ["few"]))
    next(node for node in model.graph.node if node.op_type == "Loop").input[0] = "few"
    assert loops_of(rnn_lower.raise_loops(model)) == ["loop"]


def _counts(kind):
    """Nodes that count steps in the states b0 ... without integers and stop after 128 or 200; their type, and names."""
    if kind == "digits":
        digits = (
            "up = Add (b0, one) over = Sub (up, nine) carry = Relu (over) tens = Mul (carry, ten) d0 = Sub (up, tens)"
        )
        return f"{digits} d1 = Add (b1, carry) go = Less (d1, twenty)", "float", 2
    carried = ["b0", *(f"a{k}" for k in range(1, 7))]
    bits = (f"d{k} = Xor (b{k}, {carried[k - 1]}) a{k} = And (b{k}, {carried[k - 1]})" for k in range(1, 7))
    return " ".join(["d0 = Not (b0)", *bits, "go = Not (a6)"]), "bool", 7


@pytest.mark.parametrize(("function", "raised"), [("Softplus", False), ("Softsign", True)])
def test_an_activation_that_overflows_in_the_node_stays_in_the_loop(function, raised):
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]> g (float[T,2,3] x, float[2,3] s) => (float[2,3] last)
        <float[3] b = {{0.5, 0.25, -0.5}}> {{ last = Scan <num_scan_inputs = 1, body = b (float[2,3] h, float[2,3] e) => (float[2,3] n)
        {{ a = Add (e, b) n = {function} (a) }}> (s, x) }}""")
    made = rnn_lower.raise_loops(model)
    assert (loops_of(made) == []) == raised
    feeds = {"x": np.full((4, 2, 3), 300, np.float32), "s": np.zeros((2, 3), np.float32)}
    close(run_onnxruntime(made, feeds), run_onnxruntime(model, feeds))


def test_a_loop_whose_steps_a_table_counts_is_not_raised():
    table = np.arange(300)
    table[80:280] -= 1
    model = keras_gru()
    model.graph.initializer.extend(constants(table=table))
    at = [node.op_type for node in model.graph.node].index("Loop")
    model.graph.node[at].input[0] = "few"
    model.graph.node.insert(at, helper.make_node("Gather", ["table", "trips"], ["few"]))
    assert loops_of(rnn_lower.raise_loops(model)) == ["loop"]


TRIPS = [
    "b = Cast <to = 2> (trips) few = Cast <to = 7> (b)", "b = Cast <to = 10> (trips) few = Cast <to = 7> (b)",
    """e = Equal (trips, numbers) e7 = Cast <to = 7> (e) any = ReduceMax <axes = [0], keepdims = 0> (e7) c = Cast <to = 9> (any)
       few = Where (c, fewer, trips)""",
    """e = Equal (mode, numbers) e7 = Cast <to = 7> (e) any = ReduceMax <axes = [0], keepdims = 0> (e7) c = Cast <to = 9> (any)
       few = Where (c, fewer, trips)""",
    """one = Constant <value_ints = [1]> () u = Reshape (trips, one) part = Slice (long, from0, u, from0) size = Shape (part)
       few = Reshape (size, none)""",
    """one = Constant <value_ints = [1]> () m = Reshape (mode, one) m1 = Add (m, one) part = Slice (late, m, m1, from0)
       p = Reshape (part, none) few = Sub (trips, p)""",
]  # fmt: skip
"""Numbers of steps that are another one than `trips` if it is 256, 2049, 301 or 3500, or an input 301 or 1500."""


@pytest.mark.parametrize("text", TRIPS)
def test_a_loop_whose_steps_are_limited_where_no_size_is_tried_is_not_raised(text):
    model = keras_gru()
    late = np.zeros(1600, "i8")
    late[1500] = 2
    model.graph.initializer.extend(constants(
        numbers=np.arange(300, 306), fewer=np.array(3), long=np.zeros(3000, "f4"), from0=np.array([0]), late=late,
        none=np.zeros(0, "i8"),
    ))  # fmt: skip
    model.graph.input.append(info("mode", INT64, []))
    at = [node.op_type for node in model.graph.node].index("Loop")
    model.graph.node[at].input[0] = "few"
    for node in reversed(onnx.parser.parse_graph(f"g () => () {{ {text} }}").node):
        model.graph.node.insert(at, node)
    assert loops_of(rnn_lower.raise_loops(model)) == ["loop"]


def test_a_loop_behind_an_embedding_is_raised():
    """The number of steps is a size of what a table gives, which is that of the indices."""
    model = keras_gru()
    (x,) = [value for value in model.graph.input if value.name == "x"]
    features = x.type.tensor_type.shape.dim[2].dim_value
    model.graph.initializer.extend(constants(embedding=np.ones((500, features), "f4")))
    model.graph.input.remove(x)
    model.graph.input.insert(0, info("ids", INT64, ["N", "T"]))
    model.graph.node.insert(0, helper.make_node("Gather", ["embedding", "ids"], ["x"]))
    raised = rnn_lower.raise_loops(model)
    assert loops_of(raised) == []
    assert rnn_lower.prove(model, raised)


@pytest.mark.parametrize("kind", ["bits", "digits"])
def test_a_loop_that_counts_its_steps_without_integers_is_not_raised(kind):
    nodes, dtype, count = _counts(kind)
    before, after = ([f"{letter}{k}" for k in range(count)] for letter in "bd")
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]> g (float[T,2,3] x, float[2,3] s) => (float[2,3] last)
        <int64 zero = {{0}}, bool yes = {{1}}, bool none_bool = {{0}}, float none_float = {{0}}, float one = {{1}},
         float nine = {{9}}, float ten = {{10}}, float twenty = {{20}}> {{
        sizes = Shape (x) steps = Gather (sizes, zero)
        last, {", ".join(f"end{k}" for k in range(count))} = Loop (steps, yes, s{f", none_{dtype}" * count}) <body = b
            (int64 i, bool c, float[2,3] h, {", ".join(f"{dtype} {name}" for name in before)}) =>
            (bool go, float[2,3] new, {", ".join(f"{dtype} {name}" for name in after)}) {{
            row = Gather (x, i) sum = Add (row, h) new = Tanh (sum) {nodes} }}> }}""")
    onnx.checker.check_model(model, full_check=True)
    feeds = {"x": np.random.default_rng(0).normal(size=(300, 2, 3)).astype("f4"), "s": np.zeros((2, 3), "f4")}
    raised = rnn_lower.raise_loops(model)
    assert same(model, raised, feeds)
    assert loops_of(raised) == [""]


@pytest.mark.parametrize(
    ("before", "inside"),
    [
        ("s = Shape(x) n = Slice(s, zero, end) few = Less(n, most)", ""),
        ("", "left = Sub(next, limit) late = Relu(left) few = Less(late, one)"),
    ],
)
def test_a_mask_that_no_input_decides_is_not_dropped(before, inside):
    """The state stays from some length or step on, which the compared inputs need not show."""
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        g (float[T,2,4] x) => (float[2,4] y)
        <float[4,4] W = {{1,2,3,4,5,6,7,8,9,8,7,6,5,4,3,2}}, float[2,4] h0 = {{0,0,0,0,0,0,0,0}}, float c0 = {{0}},
         float one = {{1}}, float limit = {{100}}, int64[1] zero = {{0}}, int64[1] end = {{1}}, int64[1] most = {{100}}> {{
            {before} p = MatMul(x, W)
            y, c = Scan <num_scan_inputs = 1, body = b (float[2,4] h, float c, float[2,4] q) => (float[2,4] new, float next) {{
                next = Add(c, one) a = MatMul(h, W) sum = Add(a, q) t = Tanh(sum) {inside} new = Where(few, t, h)
            }}> (h0, c0, p)
        }}""")
    onnx.checker.check_model(model)
    assert loops_of(rnn_lower.raise_loops(model)) != []


TF_CELLS = {
    "GRU": """xh = Concat <axis = 1> (x, h) k = MatMul (xh, K) kb = Add (k, b) g = Sigmoid (kb) r, u = Split <axis = 1> (g, halves)
        rh = Mul (r, h) xr = Concat <axis = 1> (x, rh) c = MatMul (xr, L) cb = Add (c, a) n = Tanh (cb)
        v = Sub (one, u) old = Mul (u, h) new = Mul (v, n) h2 = Add (old, new) c2 = Identity (s)""",
    "LSTM": """xh = Concat <axis = 1> (x, h) k = MatMul (xh, K) kb = Add (k, b) g = Sigmoid (kb) f, o = Split <axis = 1> (g, halves)
        n = MatMul (xh, L) nb = Add (n, a) t = Tanh (nb) i = Sub (one, f) old = Mul (f, s) new = Mul (i, t)
        c2 = Add (old, new) ct = Tanh (c2) h2 = Mul (o, ct)""",
}  # fmt: skip


@pytest.mark.parametrize("op", TF_CELLS)
def test_cells_of_tensorflow_are_raised(op):
    """GRUCell multiplies Concat(x, r * h) by one matrix; CoupledInputForgetGateLSTMCell has 1 - f as its input gate."""
    numbers = [",".join(str((index * step % 11 - 5) / 7) for index in range(24)) for step in (3, 5)]
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]> g (float[T,N,3] X, float[N,3] h0, float[N,3] s0) => (float[T,N,3] y)
        <float[6,6] K = {{{numbers[0]},{",".join(numbers[1].split(",")[:12])}}}, float[6,3] L = {{{",".join(numbers[1].split(",")[:18])}}},
         float[6] b = {{0.1, 0.2, 0.3, -0.1, -0.2, -0.3}}, float[3] a = {{0.3, 0.2, 0.1}}, float one = {{1}}, int64[2] halves = {{3, 3}}> {{
        [scan] hT, sT, y = Scan <num_scan_inputs = 1, body = body (float[N,3] h, float[N,3] s, float[N,3] x)
            => (float[N,3] h2, float[N,3] c2, float[N,3] out) {{ {TF_CELLS[op]} out = Identity (h2) }}> (h0, s0, X) }}""")
    raised = rnn_lower.raise_loops(model)
    assert [node.op_type for node in raised.graph.node if node.op_type in ("GRU", "LSTM", "Scan")] == [op]
    assert rnn_lower.prove(model, raised)
    rng = np.random.default_rng(0)
    shapes = {"X": (5, 2, 3), "h0": (2, 3), "s0": (2, 3)}
    assert same(model, raised, {name: rng.normal(size=shape).astype("f4") for name, shape in shapes.items()})
    (scan,) = (node for node in model.graph.node if node.op_type == "Scan")
    (mul,) = (node for node in scan.attribute[1].g.node if node.output[0] == "new")
    mul.input[0] = mul.input[1]
    assert loops_of(rnn_lower.raise_loops(model)) == ["scan"]


ROUNDED_SIZES = (
    "large = Greater (size, many) k = Cast <to = 1> (large)", "f = Cast <to = 1> (size) g = Mul (f, small) k = Floor (g)",
    "f = Cast <to = 1> (size) g = Div (f, most) i = Cast <to = 7> (g) k = Cast <to = 1> (i)",
    "f = Cast <to = 1> (size) g = Sub (f, most) e = Mul (g, tenth) o = Greater (e, one) k = Cast <to = 1> (o)",
    "f = Cast <to = 1> (size) g = Sub (f, most) k = Relu (g)", "f = Cast <to = 1> (size) g = Sub (f, most) k = HardSigmoid (g)",
    "g = Max (size, many) e = Sub (g, many) k = Cast <to = 1> (e)", "g = Div (size, many) k = Cast <to = 1> (g)",
    "f = Cast <to = 1> (size) g = Sqrt (f) e = Mul (g, tenth) h2 = Mul (e, tenth) o = Mul (h2, most) q = Div (o, most) v = Add (q, q) k = Floor (v)",
    "e = Add (size, size) g = Equal (e, many) k = Cast <to = 1> (g)", "g = Mod (size, many) e = Equal (g, size) o = Not (e) k = Cast <to = 1> (o)",
    "h2 = Cast <to = 3> (size) e = Cast <to = 7> (h2) g = Equal (e, size) o = Not (g) k = Cast <to = 1> (o)",
    "k = Gather (table, size)", "e = Slice (table, size, end) f = Shape (e) g = Equal (f, least) k = Cast <to = 1> (g)",
)  # fmt: skip


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("nodes", ROUNDED_SIZES)
@pytest.mark.parametrize("reduce", ["ReduceMax <keepdims = 0> (k)", "Gather <axis = 0> (k, first)"])
def test_a_loop_that_changes_at_a_size_is_not_raised(nodes, axis, reduce):
    """Elements above 1 keep the state if an axis has more than about 200 elements."""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]> g (float[T,N,2] x) => (float[T,N,2] y)
        <float[2,2] W = {{0.1, 0.2, 0.3, 0.4}}, float[2,2] R = {{0.5, -0.6, 0.7, 0.8}}, int64[5] many = {{200, 200, 200, 200, 200}},
         float small = {{0.005}}, float tenth = {{0.1}}, float most = {{200}}, float one = {{1}}, int64[1] two = {{2}},
         int64 first = {{0}}, int64[1] end = {{2000}}, int64[1] least = {{1700}}, float[1900] table = {{{",".join(["0"] * 200 + ["1"] * 1700)}}}> {{
        size = Shape <start = {axis}, end = {axis + 1}> (x) {nodes} one_k = {reduce}
        p = MatMul (x, W) m = Mul (p, one_k)
        n = Shape <start = 1, end = 2> (x) shape = Concat <axis = 0> (n, two) h = ConstantOfShape (shape)
        [scan] last, y = Scan <num_scan_inputs = 2, body = b (float[N,2] s, float[N,2] row, float[N,2] mask) => (float[N,2] r, float[N,2] out) {{
            a = MatMul (s, R) t = Add (row, a) new = Tanh (t) keep = Less (mask, one) r = Where (keep, new, s) out = Identity (r) }}> (h, p, m) }}""")
    onnx.checker.check_model(model, full_check=True)
    assert loops_of(rnn_lower.raise_loops(model)) == ["scan"]
    scan = next(node for node in model.graph.node if node.op_type == "Scan")
    (where,) = (node for node in scan.attribute[1].g.node if node.op_type == "Where")
    where.op_type, where.input[:] = "Identity", ["new"]
    assert loops_of(rnn_lower.raise_loops(model)) == []


@pytest.mark.parametrize("many", ["And (more, longer)", "Greater (fewest, limit)"])
def test_a_loop_that_changes_where_two_sizes_are_large_is_not_raised(many):
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]> g (float[T,N,2] x) => (float[T,N,2] y)
        <float[2,2] W = {{0.1, 0.2, 0.3, 0.4}}, float[2,2] R = {{0.5, -0.6, 0.7, 0.8}}, int64[1] limit = {{20}}, float one = {{1}}, int64[1] two = {{2}}> {{
        t = Shape <start = 0, end = 1> (x) n = Shape <start = 1, end = 2> (x) longer = Greater (t, limit) more = Greater (n, limit)
        fewest = Min (t, n) many = {many} k = Cast <to = 1> (many) p = MatMul (x, W) m = Mul (p, k) shape = Concat <axis = 0> (n, two) h = ConstantOfShape (shape)
        [scan] last, y = Scan <num_scan_inputs = 2, body = b (float[N,2] s, float[N,2] row, float[N,2] mask) => (float[N,2] r, float[N,2] out) {{
            a = MatMul (s, R) u = Add (row, a) new = Tanh (u) keep = Less (mask, one) r = Where (keep, new, s) out = Identity (r) }}> (h, p, m) }}""")
    onnx.checker.check_model(model, full_check=True)
    assert loops_of(rnn_lower.raise_loops(model)) == ["scan"]


@pytest.mark.parametrize("number", [40, 5000])
@pytest.mark.parametrize("op_type", ["Mod", "Min"])
def test_a_loop_that_reads_other_steps_from_some_length_on_is_not_raised(op_type, number):
    model = keras_gru()
    body = next(node for node in model.graph.node if node.op_type == "Loop").attribute[0].g
    body.initializer.extend(constants(number=np.array(number, "i4")))
    row = next(node for node in body.node if node.output[0] == "row")
    row.input[1] = "other"
    body.node.insert(list(body.node).index(row), helper.make_node(op_type, ["i", "number"], ["other"]))
    assert loops_of(rnn_lower.raise_loops(model)) == ["loop"]


def _loop(nodes, states, trips, **inits):
    """A Loop of states [2, 3] over nodes that name the trip `i`, the condition `g`, and a state s as s2 when it is new."""
    made = [helper.make_node("Identity", ["g"], ["g2"])] if not any("g2" in node.output for node in nodes) else []
    body = helper.make_graph(
        [*nodes, *made], "body", [info("i", INT64, []), info("g", BOOL, []), *states],
        [info("g2", BOOL, []), *(onnx.ValueInfoProto(name=f"{state.name}2", type=state.type) for state in states)],
        constants(**inits),
    )  # fmt: skip
    weights = constants(yes=np.array(True)) + ([] if trips is None else constants(trips=np.array(trips, "i8")))
    starts = ["x" if state.type.HasField("tensor_type") else "nothing" for state in states]
    main = [helper.make_node("SequenceEmpty", [], ["nothing"])] if "nothing" in starts else []
    outs = [f"y{k}" for k in range(len(states))]
    main.append(
        helper.make_node("Loop", ["trips" if trips is not None else "", "yes", *starts], outs, name="L", body=body)
    )
    results = [onnx.ValueInfoProto(name=name, type=state.type) for name, state in zip(outs, states, strict=True)]
    graph = helper.make_graph(main, "g", [info("x", FLOAT, [2, 3])], results, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_loop_without_a_limit_ends_by_its_condition():
    nodes = [
        helper.make_node("Neg", ["s"], ["s2"]), helper.make_node("Add", ["i", "one"], ["n"]),
        helper.make_node("Less", ["n", "five"], ["g2"]),
    ]  # fmt: skip
    model = _loop(nodes, [info("s", FLOAT, [2, 3])], None, one=np.int64(1), five=np.int64(5))
    lowered = rnn_lower.lower(model, loops=True)
    assert sum(node.op_type == "Neg" for node in lowered.graph.node) == 5
    assert same(model, lowered, feeds_of(model))
    assert rnn_lower.prove(model, lowered).ok


NAMED = {
    "a sequence": (
        "SequenceInsert",
        helper.make_tensor_sequence_value_info("s", FLOAT, None),
        3,
        "an ONNX sequence instead of a tensor",
    ),
    "no end": ("Neg", info("s", FLOAT, [2, 3]), 2**62, "more nodes are allowed"),
}


@pytest.mark.parametrize("what", NAMED)
def test_other_refusals_are_named(what):
    op_type, state, trips, told = NAMED[what]
    node = helper.make_node(op_type, ["s", "x"] if op_type == "SequenceInsert" else ["s"], ["s2"])
    with pytest.raises(UnsupportedError, match=f"Loop 'L'.*{told}"):
        rnn_lower.lower(_loop([node], [state], trips), loops=True)


def test_random_numbers_are_drawn_at_each_step():
    nodes = [helper.make_node("RandomNormalLike", ["s"], ["s2"])]
    lowered = rnn_lower.lower(_loop(nodes, [info("s", FLOAT, [2, 3])], 3), loops=True)
    assert operators(lowered.graph) >= {"RandomNormalLike"}
    assert not rnn_lower.prove(_loop(nodes, [info("s", FLOAT, [2, 3])], 3), lowered).ok


def test_a_changed_unrolled_model_is_not_proved():
    model = keras_gru()
    lowered = rnn_lower.lower(model, loops=True, dims={"N": 2, "T": 3})
    assert rnn_lower.prove(model, lowered).ok
    for node in [node for node in lowered.graph.node if node.op_type in ("Sub", "Tanh", "Split")][::3]:
        other = onnx.ModelProto.FromString(lowered.SerializeToString())
        twin = next(one for one in other.graph.node if one.output == node.output)
        if twin.op_type == "Split":
            twin.output[:] = [*twin.output[1:], twin.output[0]]
        elif twin.op_type == "Sub":
            twin.input[:] = twin.input[::-1]
        else:
            twin.op_type = "Sigmoid"
        assert not rnn_lower.prove(model, other).ok


REFUSED = {
    "open": ("its trip count is unknown", {}, {}),
    "many": ("more nodes are allowed", {"max_nodes": 20}, {"N": 2, "T": 5}),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused_by_name_with_what_works(what):
    told, options, dims = REFUSED[what]
    with pytest.raises(UnsupportedError, match=told) as found:
        rnn_lower.lower(keras_gru(), loops=True, dims=dims or None, **options)
    assert "Loop 'loop'" in str(found.value)
    assert "dims=" in str(found.value) or "max_nodes=" in str(found.value)


def test_a_trip_count_that_an_input_decides_is_no_matter_of_the_condition():
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        main (float[2] x, int64 count) => (float[2] y) <bool go = {1}, int64 most = {4}> {
            y = Loop (count, go, x) <body = step (int64 i, bool on, float[2] s) => (bool more, float[2] t) {
                t = Tanh (s) more = Less (i, most)
            }>
        }""")
    with pytest.raises(UnsupportedError, match=r"trip count is unknown, because it depends on .* input 'count'"):
        rnn_lower.lower(model, loops=True)


def test_loops_are_listed(tmp_path, capsys):
    (loop,) = rnn_lower.inspect_loops(keras_gru())
    assert (loop.node, loop.op, loop.recognized) == ("loop", "Loop", "GRU")
    (loop,) = rnn_lower.inspect_loops(keras_gru(mask=True, steps=5, batch=2))
    assert not loop.recognized
    assert loop.unrolls
    assert "--loops" in loop.mend
    onnx.save(keras_gru(), tmp_path / "in.onnx")
    assert cli.main(["inspect", str(tmp_path / "in.onnx"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["loops"][0]["recognized"] == "GRU"
    findings = rnn_lower.lint(keras_gru(), "rknn").findings
    assert [one.mend for one in findings if one.op == "Loop"] == [
        "rnn-lower raise replaces this loop with one GRU node, which is proved equivalent to the loop"
    ]


def test_an_ir_model_is_unrolled_in_place_or_left():
    model = ir.serde.deserialize_model(keras_gru(steps=4, batch=2))
    assert rnn_lower.lower(model, loops=True) is model
    assert not [node for node in model.graph if node.op_type == "Loop"]
    open_ = ir.serde.deserialize_model(keras_gru())
    with pytest.raises(UnsupportedError):
        rnn_lower.lower(open_, loops=True)
    assert [node.op_type for node in open_.graph if node.op_type == "Loop"] == ["Loop"]


def test_a_loop_in_a_branch_is_unrolled():
    model = keras_gru(steps=3, batch=2)
    inner = [onnx.NodeProto.FromString(node.SerializeToString()) for node in model.graph.node]
    branch = helper.make_graph(inner, "then", [], [info("Y")])
    other = helper.make_graph([helper.make_node("Constant", [], ["none"], value=constants(v=np.zeros((2, 3, H), "f4"))[0])],
                              "else", [], [info("none")])  # fmt: skip
    del model.graph.node[:]
    model.graph.node.append(helper.make_node("If", ["chosen"], ["Z"], then_branch=branch, else_branch=other))
    model.graph.input.append(info("chosen", BOOL, []))
    del model.graph.output[:]
    model.graph.output.append(info("Z"))
    lowered = rnn_lower.lower(model, loops=True)
    assert "Loop" not in operators(lowered.graph)
    for chosen in (True, False):
        assert same(model, lowered, {**feeds_of(keras_gru(steps=3, batch=2)), "chosen": np.array(chosen)})
    assert rnn_lower.prove(model, lowered).ok


def test_a_loop_in_a_function_is_unrolled():
    model = keras_gru(steps=3, batch=2)
    names = [tensor.name for tensor in model.graph.initializer]
    function = helper.make_function(
        "own", "Layer", ["x", *names], ["Y"], list(model.graph.node), [helper.make_opsetid("", 17)]
    )
    del model.graph.node[:]
    model.graph.node.append(helper.make_node("Layer", ["x", *names], ["Y"], domain="own"))
    del model.graph.output[1:]
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("own", 1))
    lowered = rnn_lower.lower(model, loops=True)
    assert "Loop" not in operators(lowered.graph)
    assert same(model, lowered, feeds_of(model))


def test_a_target_says_why_a_loop_stays(caplog):
    with caplog.at_level("WARNING", "rnn_lower"):
        lowered = rnn_lower.lower(keras_gru(), target="rknn")
    assert loops_of(lowered) == ["loop"]
    told = " ".join(record.message for record in caplog.records)
    assert "Loop 'loop'" in told
    assert "--dim N=N, --dim T=N" in told or "--dim" in told


def test_a_trip_count_that_an_input_contains_is_told_with_the_input():
    """No size helps there, and neither does unrolling."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]> g (float[T,N,2] x, int64 n) => (float[T,N,2] y)
        <bool yes = {1}, float[1,2,2] W = {0.1, 0.2, 0.3, 0.4}, float[1,2,2] R = {0.5, -0.6, 0.7, 0.8}, int64[1] one = {1}> {
        [loop] y = Loop (n, yes, x) <body = b (int64 i, bool go, float[T,N,2] s) => (bool on, float[T,N,2] r) {
            on = Identity (go) h = RNN <hidden_size = 2> (s, W, R) r = Squeeze (h, one) }> }""")
    with pytest.raises(
        rnn_lower.UnsupportedError, match="it depends on the value of input 'n'; make this input a constant"
    ):
        rnn_lower.lower(model, loops=True, dims={"T": 3, "N": 1})
    with pytest.raises(rnn_lower.UnsupportedError) as refused:
        rnn_lower.lower(model, target="tidl", dims={"T": 3, "N": 1})
    assert "--loops" not in str(refused.value)


def test_a_loop_that_stays_keeps_its_body():
    """Folding is proved, with no step too: a body's output whose Cast is gone still has its rank."""
    nodes = [helper.make_node("Gemm", ["s", "w", "b"], ["p"], name="gemm", transB=1),
             helper.make_node("Cast", ["p"], ["s2"], to=FLOAT), helper.make_node("Cast", ["s2"], ["row"], to=FLOAT)]  # fmt: skip
    model = _loop(nodes, [info("s", FLOAT, [2, 3])], None, w=np.eye(3, dtype="f4"), b=np.ones(3, "f4"))
    (node,) = model.graph.node
    node.input[0], node.attribute[0].g.output[1].name = "trips", "s2"
    node.attribute[0].g.output.append(info("row", FLOAT, ["a", "b"]))
    node.output.append("rows")
    model.graph.node.append(helper.make_node("Transpose", ["rows"], ["turned"], perm=[1, 0, 2]))
    model.graph.output.append(info("turned", FLOAT, None))
    model.graph.input.append(info("steps", FLOAT, ["T"]))
    model.graph.node.insert(0, helper.make_node("Size", ["steps"], ["trips"]))
    lowered = rnn_lower.lower(model, target="tidl", fold=True)
    body = next(node for node in lowered.graph.node if node.op_type == "Loop").attribute[0].g
    assert [node.op_type for node in body.node if node.op_type != "Identity"] == ["Gemm"]
    for steps in (0, 2):
        feeds = {"x": np.ones((2, 3), "f4"), "steps": np.zeros(steps, "f4")}
        assert same(model, lowered, feeds)
    assert rnn_lower.prove(model, lowered).ok


def test_rows_that_are_looked_up_are_no_constants():
    """Their products are proved without rounding, so that one of all steps is equal to one of each."""
    nodes = [helper.make_node("Gather", ["rows", "i"], ["row"]), helper.make_node("Gemm", ["row", "w", "s"], ["s2"])]  # fmt: skip
    rng = np.random.default_rng(0)
    model = _loop(nodes, [info("s", FLOAT, [2, 3])], 4, w=rng.normal(size=(7, 3)).astype("f4"))
    model.graph.initializer.extend(constants(table=rng.normal(size=(9, 7)).astype("f4")))
    model.graph.input.append(info("ids", INT32, [4, 2]))
    model.graph.node.insert(0, helper.make_node("Neg", ["ids"], ["back"]))
    model.graph.node.insert(1, helper.make_node("Gather", ["table", "back"], ["rows"]))
    lowered = rnn_lower.lower(model, loops=True)
    assert [node.op_type for node in lowered.graph.node].count("MatMul") == 1
    proof = rnn_lower.prove(model, lowered)
    assert proof.ok, proof.lines()


@pytest.mark.parametrize("last", [9, 1])
def test_a_nan_that_no_step_chooses_is_proved_away(last):
    """As exporters write where a count could be 0; one that some step chooses is the same in both models."""
    nodes = [
        helper.make_node("Less", ["i", "last"], ["few"]), helper.make_node("Cast", ["nothing"], ["nan"], to=FLOAT),
        helper.make_node("Where", ["few", "s", "nan"], ["t"]), helper.make_node("Neg", ["t"], ["s2"]),
    ]  # fmt: skip
    model = _loop(nodes, [info("s", FLOAT, [2, 3])], 4, last=np.int64(last), nothing=np.float64("nan"))
    lowered = rnn_lower.lower(model, loops=True)
    for got, want in zip(*(run_onnxruntime(each, feeds_of(model)) for each in (lowered, model)), strict=True):
        np.testing.assert_array_equal(got, want)
    proof = rnn_lower.prove(model, lowered)
    assert proof.ok, proof.lines()


EXPORTERS = Path(os.environ.get("RNN_LOWER_EXPORTERS", "/nowhere"))
"""The Python of an environment with keras, tensorflow and tf2onnx, or jax and jax2onnx."""

EXPORT = """
import os, sys; os.environ["KERAS_BACKEND"], os.environ["TF_CPP_MIN_LOG_LEVEL"] = "tensorflow", "3"
import keras, tensorflow as tf, tf2onnx
from keras import layers as L
layers = {layers}
i = keras.Input((5, 3)); x = i
for one in layers: x = one(x)
model = keras.Model(i, x)
for w in model.trainable_weights: w.assign(tf.random.normal(w.shape, stddev=0.4, seed=1))
spec = (tf.TensorSpec((None, 5, 3), tf.float32, name="x"),)
tf2onnx.convert.from_function(tf.function(lambda x: model(x), input_signature=spec), input_signature=spec, opset=17, output_path=sys.argv[1])
"""

KERAS = {
    "GRU": ("[L.GRU(4, return_sequences=True)]", 1), "GRU before": ("[L.GRU(4, reset_after=False)]", 1),
    "Bidirectional": ("[L.Bidirectional(L.GRU(4, return_sequences=True))]", 2),
    "stacked": ("[L.GRU(4, return_sequences=True), L.GRU(4)]", 2), "masked": ("[L.Masking(), L.GRU(4)]", 0),
    "SimpleRNN": ("[L.SimpleRNN(4, go_backwards=True)]", 1),
    "hard": ("[L.LSTM(4, recurrent_activation='hard_sigmoid')]", 0),
}  # fmt: skip


@pytest.mark.skipif(not EXPORTERS.exists(), reason="RNN_LOWER_EXPORTERS names no Python with keras and tf2onnx")
@pytest.mark.parametrize("name", KERAS)
def test_keras(name, tmp_path):
    layers, raised = KERAS[name]
    path = tmp_path / "m.onnx"
    subprocess.run([EXPORTERS, "-c", EXPORT.format(layers=layers), path], check=True, capture_output=True)
    model = onnx.load(path)
    dims = {model.graph.input[0].type.tensor_type.shape.dim[0].dim_param: 1}
    feeds = {"x": np.random.default_rng(0).normal(size=(1, 5, 3)).astype("f4")}
    for target in TARGETS:
        lowered = rnn_lower.lower(model, target=target, dims=dims)
        assert not loops_of(lowered)
        assert same(model, lowered, feeds)
    back = rnn_lower.raise_loops(model)
    assert sum(node.op_type in ("GRU", "RNN", "LSTM") for node in back.graph.node) == raised
    assert same(model, back, feeds)


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("weights", ["computed", "moved", "constant", "input"])
def test_a_recurrent_node_in_a_loop_is_lowered_and_proved(op, weights):
    """Its bias may be the sum of two halves that other nodes make of constants."""
    case = Case(op, 17, T=2, N=3, place="loop", weights=weights, optional=("B", "initial_h"), outputs=("Y_h",))
    model, feeds = build(case)
    lowered = rnn_lower.lower(model, form="unroll", loops=True)
    assert rnn_lower.prove(model, lowered).ok
    close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))


ONCE = """<ir_version: 8, opset_import: ["": 17, "own": 1]> one (float[2,3] x) => (float[2,3] y)
    <float low = {-20}, float high = {20}, int64 once = {1}, bool yes = {1}> { %s }"""
LOOP = """y = Loop (once, yes, x) <body: graph = body (int64 i, bool c, float[2,3] s) => (bool d, float[2,3] t) {
    d = Identity (c)
    k = Clip (s, low, high)
    t = Tanh (k)
}>"""


@pytest.mark.parametrize("domain", ["", "own."])
def test_an_operator_of_another_domain_is_another_one(domain):
    original, unrolled = (
        onnx.parser.parse_model(ONCE % text) for text in (LOOP, f"k = Clip (x, low, high) y = {domain}Tanh (k)")
    )
    assert proved_as_wholes(original, unrolled).ok == (not domain)


@pytest.mark.parametrize(("row", "same"), [("", True), ("f = Gather (x, zero) g = Mul (f, nothing)", False)])
def test_a_model_that_needs_a_row_is_another_one(row, same):
    """Where there is none the original runs, and the other does not."""
    header = """<ir_version: 8, opset_import: ["": 17]> one (float[N] x) => (float[N] y)
        <float nothing = {0}, int64 zero = {0}, int64 once = {1}, bool yes = {1}>"""
    body = "<body: graph = body (int64 i, bool c, float[N] s) => (bool d, float[N] t) { d = Identity (c) t = Abs (s) }>"
    original = onnx.parser.parse_model(f"{header} {{ y = Loop (once, yes, x) {body} }}")
    last = "y = Abs (x)" if same else "h = Abs (x) y = Add (h, g)"
    assert proved_as_wholes(original, onnx.parser.parse_model(f"{header} {{ {row} {last} }}")).ok == same


@pytest.mark.parametrize(("kind", "number"), [("step", 5), ("step", 12), ("step", 20), ("table", 3000)])
def test_a_loop_that_does_otherwise_at_one_step_stays(kind, number):
    """Where it does is no size that is tried anyway, and may be written in a table."""
    rng = np.random.default_rng(0)
    table = np.ones(number, bool)
    table[50:] = False
    if kind == "step":
        parts, weights = "eq = Equal (t, k) on = Not (eq)", {"k": np.int64(number)}
    else:
        parts, weights = "on = Gather (table, i)", {"table": table}
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 14]> g (float[T,2,3] X) => (float[A,B,C] Y) {{
        s = Shape (X) z = Constant <value_int = 0> () t = Gather (s, z) yes = Constant <value = bool {{1}}> ()
        hT, Y = Loop (t, yes, h0) <body: graph = body (int64 i, bool c, float[2,4] h) => (bool d, float[2,4] hn, float[2,4] y) {{
            x = Gather (X, i) a = MatMul (x, W) b = MatMul (h, R) sum = Add (a, b) raw = Tanh (sum)
            {parts} hn = Where (on, raw, zero) y = Identity (hn) d = Identity (c)
        }}>
    }}""")
    weights |= {
        "W": rng.normal(size=(3, 4)), "R": rng.normal(size=(4, 4)), "zero": np.zeros(()), "h0": np.zeros((2, 4))
    }  # fmt: skip
    for name, array in weights.items():
        array = array.astype(np.float32) if array.dtype == np.float64 else array
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    assert "RNN" not in {node.op_type for node in rnn_lower.raise_loops(model).graph.node}


def test_a_false_declaration_between_unrolled_nodes_is_not_proved():
    model = keras_gru()
    lowered = rnn_lower.lower(model, loops=True, dims={"N": 2, "T": 3})
    assert rnn_lower.prove(model, lowered).ok
    declared = [each for each in lowered.graph.value_info if each.type.tensor_type.shape.dim]
    assert len(declared) > 10
    for each in declared[::8]:
        dim = each.type.tensor_type.shape.dim[0]
        size, dim.dim_value = dim.dim_value, 77
        assert not rnn_lower.prove(model, lowered).ok
        dim.dim_value = size


def scanned() -> onnx.ModelProto:
    """A Scan that lowering emitted for an RNN, without its marks."""
    model = rnn_lower.lower(build(Case("RNN", 17, outputs=("Y",), dynamic=True))[0], form="scan")
    for holder in protobuf.holders(model):
        for node in holder.node:
            del node.metadata_props[:]
    return model


def test_a_loop_that_repeats_a_row_is_not_raised():
    """The initial state has as many rows as there are units, which one row of X is repeated for."""
    model = scanned()
    assert loops_of(rnn_lower.raise_loops(model)) == []
    size = next(node for node in model.graph.node if node.op_type == "Shape" and "batch_size" in node.output[0])
    size.input[0] = next(t.name for t in model.graph.initializer if t.name.endswith("R_transposed"))
    feeds = {"X": np.ones((3, 1, 3), np.float32)}
    assert run_onnxruntime(model, feeds)[0].shape[2] == 4
    assert loops_of(rnn_lower.raise_loops(model)) != []


def test_a_loop_that_repeats_its_initial_row_keeps_its_batch_size():
    """A recurrent node needs as many rows in its state as in X, so this would allow only a batch of 1."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]> g (float[T,N,2] x, float[1,2] h) => (float[T,N,2] y)
        <float[2,2] W = {0.1, 0.2, 0.3, 0.4}, float[2,2] R = {0.5, -0.6, 0.7, 0.8}> { p = MatMul (x, W)
        [scan] last, y = Scan <num_scan_inputs = 1, body = b (float[N,2] s, float[N,2] row) => (float[N,2] r, float[N,2] out) {
            m = MatMul (s, R) t = Add (row, m) r = Tanh (t) out = Identity (r) }> (h, p) }""")
    assert rnn_lower.raise_loops(model) == model
    raised = rnn_lower.raise_loops(model, dims={"N": 1})
    assert [node.op_type for node in raised.graph.node if node.op_type == "RNN"]


def test_a_loop_that_lowering_emitted_is_unrolled_and_proved():
    model, _ = build(Case("GRU", 17, T=4, N=2, outputs=("Y",)))
    scan = rnn_lower.lower(model, form="scan")
    unrolled = rnn_lower.lower(scan, loops=True)
    assert loops_of(unrolled) == []
    assert rnn_lower.prove(scan, unrolled).ok
    weight = next(tensor for tensor in unrolled.graph.initializer if tensor.name.endswith("R_h"))
    weight.CopyFrom(onnx.numpy_helper.from_array(2 * onnx.numpy_helper.to_array(weight), weight.name))
    assert not rnn_lower.prove(scan, unrolled).ok


def test_a_loop_that_reads_no_steps_is_left():
    model = scanned()
    body = next(a.g for node in model.graph.node if node.op_type == "Scan" for a in node.attribute if a.name == "body")
    step = body.input[1].name
    for node in body.node:
        node.input[:] = [
            next(n.output[0] for n in model.graph.node if n.op_type == "Concat") if name == step else name
            for name in node.input
        ]
    assert loops_of(rnn_lower.raise_loops(model)) != []


@pytest.mark.parametrize("turned", [[0, 0], [1, 0], [0, 1], [1, 1]])
def test_a_scan_over_either_axis_is_raised(turned):
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]> g (float[3,3,2] x) => (float[A,B,C] y, float[3,4] hT) {{
        hT, y = Scan (h0, x) <num_scan_inputs = 1, scan_input_axes = [{turned[0]}], scan_output_axes = [{turned[1]}],
            body: graph = body (float[3,4] h, float[3,2] xt) => (float[3,4] next, float[3,4] out) {{
            a = MatMul (xt, W) b = MatMul (h, R) sum = Add (a, b) next = Tanh (sum) out = Identity (next) }}>
    }}""")
    rng = np.random.default_rng(0)
    for name, shape in {"W": (2, 4), "R": (4, 4), "h0": (3, 4)}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name))
    raised = rnn_lower.raise_loops(model)
    assert loops_of(raised) == []
    feeds = {"x": rng.normal(size=(3, 3, 2)).astype(np.float32)}
    close(run_onnxruntime(raised, feeds), run_onnxruntime(model, feeds))


def test_fields_of_the_model_that_are_empty_stay():
    """onnxslim writes the name of the producer so."""
    model = keras_gru()
    model.producer_name = model.producer_version = ""
    lowered = rnn_lower.lower(model, loops=True, dims={"N": 2, "T": 3})
    assert lowered.HasField("producer_name")
    assert rnn_lower.prove(model, lowered).ok


@pytest.mark.parametrize("form", ["scan", "loop"])
def test_a_loop_that_was_raised_and_lowered_is_proved(form):
    model = scanned()
    lowered = rnn_lower.lower(model, raise_loops=True, form=form)
    assert any(node.metadata_props for node in lowered.graph.node)
    assert rnn_lower.prove(model, lowered).ok
    weight = next(tensor for tensor in lowered.graph.initializer if tensor.name.endswith("R_transposed"))
    weight.CopyFrom(onnx.numpy_helper.from_array(2 * onnx.numpy_helper.to_array(weight), weight.name))
    assert not rnn_lower.prove(model, lowered).ok


@pytest.mark.parametrize("what", ["a node", "a node of doubles", "bounds of rank 2"])
def test_what_is_added_to_an_unrolled_model_is_a_change(what):
    """Runtimes have no kernel for some of these nodes, which onnx's checker accepts."""
    model = keras_gru()
    lowered = rnn_lower.lower(model, loops=True, dims={"N": 2, "T": 3})
    assert rnn_lower.prove(model, lowered).ok
    x, marks = lowered.graph.input[0].name, [each for node in lowered.graph.node for each in node.metadata_props]
    more = {
        "a node": [helper.make_node("Identity", [x], ["dead"])],
        "a node of doubles": [helper.make_node("Cast", [x], ["d"], to=TensorProto.DOUBLE), helper.make_node("Softplus", ["d"], ["dead"])],
        "bounds of rank 2": [helper.make_node("Clip", [x, "low", "low"], ["dead"])],
    }[what]  # fmt: skip
    lowered.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((1, 1), np.float32), "low"))
    for node in more:
        node.metadata_props.append(marks[0])
        lowered.graph.node.append(node)
    assert not rnn_lower.prove(model, lowered).ok


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize(("opset", "form"), [(9, "loop"), (11, "scan"), (13, "loop"), (14, "scan"), (17, "scan")])
def test_what_lowering_emits_is_raised(op, opset, form):
    """Also before opset 15, where only the body of the loop tells the size of a state of a free batch."""
    model, feeds = build(Case(op, opset, dynamic=True, outputs=("Y", "Y_h")))
    raised = rnn_lower.raise_loops(rnn_lower.lower(model, form=form))
    assert [node.op_type for node in raised.graph.node if node.op_type in ("RNN", "GRU", "LSTM", "Scan", "Loop")] == [
        op
    ]
    close(run_onnxruntime(raised, feeds), run_onnxruntime(model, feeds))


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("form", ["scan", "loop"])
@pytest.mark.parametrize(("direction", "layout"), [(None, 0), ("bidirectional", 0), ("bidirectional", 1)])
def test_constant_initial_states_are_raised(op, form, direction, layout):
    states = ("initial_h", "initial_c") if op == "LSTM" else ("initial_h",)
    case = Case(op, 17, direction=direction, layout=layout, N=2, T=5, optional=states, outputs=("Y", "Y_h"))
    model, _ = build(case)
    rng = np.random.default_rng(0)
    for value in [value for value in model.graph.input if value.name in states]:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        array = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, value.name))
        model.graph.input.remove(value)
    lowered = rnn_lower.lower(model, form=form)
    raised = rnn_lower.raise_loops(lowered)
    assert [node.op_type for node in raised.graph.node if node.op_type in (op, "Scan", "Loop")] == [op]
    assert rnn_lower.prove(lowered, raised)


DIVIDED = [
    helper.make_node("Div", ["i", "ten"], ["tens"]), helper.make_node("Div", ["tens", "ten"], ["hundreds"]),
    helper.make_node("Mul", ["hundreds", "five"], ["back"]), helper.make_node("Sub", ["i", "back"], ["at"]),
]  # fmt: skip
"""i - 5 * (i / 10 / 10)"""

SUMMED = [
    *(helper.make_node("Sub", [f"d{k}" if k else "i", "thirty"], [f"d{k + 1}"]) for k in range(3)),
    helper.make_node("Less", ["d3", "none"], ["early"]), helper.make_node("Sub", ["i", "five"], ["before"]),
    helper.make_node("Where", ["early", "i", "before"], ["at"]),
]  # fmt: skip
"""i where i - 30 - 30 - 30 is negative, else i - 5"""

DOUBLED = [
    helper.make_node("Sub", ["i", "thirty"], ["d1"]), helper.make_node("Add", ["d1", "d1"], ["twice"]),
    helper.make_node("Add", ["twice", "twice"], ["often"]),
    *(helper.make_node("Sub", [f"r{k}" if k else "often", "i"], [f"r{k + 1}"]) for k in range(3)),
    helper.make_node("Less", ["r3", "none"], ["early"]), helper.make_node("Sub", ["i", "five"], ["before"]),
    helper.make_node("Where", ["early", "i", "before"], ["at"]),
]  # fmt: skip
"""i where 4 * (i - 30) - 3 * i is negative, else i - 5"""


TABLE = [
    helper.make_node("Greater", ["i", "table"], ["later"]), helper.make_node("Cast", ["later"], ["ones"], to=7),
    helper.make_node("ReduceSum", ["ones"], ["count"], keepdims=0), helper.make_node("Sub", ["i", "count"], ["at"]),
]  # fmt: skip
"""i minus the number of elements of a table, of which the first is 100, that are below i"""

OF_LENGTH = [
    helper.make_node("Div", ["trips", "ten"], ["tens"]), helper.make_node("Div", ["tens", "ten"], ["hundreds"]),
    helper.make_node("Sub", ["i", "hundreds"], ["at"]),
]  # fmt: skip
"""i - T / 10 / 10"""


@pytest.mark.parametrize("gather", [DIVIDED, SUMMED, DOUBLED, TABLE, OF_LENGTH])
@pytest.mark.parametrize("steps", [5, 125])
def test_a_position_that_differs_from_the_step_only_later_is_not_raised(gather, steps):
    """The position is the step until 90, 100 or 120, and no constant tells so."""
    rng = np.random.default_rng(0)
    step = [
        helper.make_node("Gather", ["frames", "at"], ["row"]), helper.make_node("MatMul", ["row", "w"], ["xw"]),
        helper.make_node("MatMul", ["s", "r"], ["hr"]), helper.make_node("Add", ["xw", "hr"], ["sum"]),
        helper.make_node("Tanh", ["sum"], ["s2"]),
    ]  # fmt: skip
    numbers = {"w": rng.normal(size=(3, 3)).astype("f4"), "r": rng.normal(size=(3, 3)).astype("f4")}
    counts = {name: np.int64(number) for name, number in (("none", 0), ("five", 5), ("ten", 10), ("thirty", 30))}
    counts["table"] = np.arange(100, 108)

    def raised_from(nodes):
        model = _loop(nodes, [info("s", FLOAT, [2, 3])], None, **counts, **numbers)
        (node,) = model.graph.node
        node.input[0] = "trips"
        model.graph.input.append(info("frames", FLOAT, ["T", 2, 3]))
        model.graph.node.insert(0, helper.make_node("Gather", ["sizes", "zero"], ["trips"]))
        model.graph.node.insert(0, helper.make_node("Shape", ["frames"], ["sizes"]))
        model.graph.initializer.extend(constants(zero=np.int64(0)))
        return model, rnn_lower.raise_loops(model)

    model, raised = raised_from(gather + step)
    assert "RNN" not in {node.op_type for node in raised.graph.node}
    feeds = {"x": np.ones((2, 3), "f4"), "frames": rng.normal(size=(steps, 2, 3)).astype("f4")}
    assert same(model, raised, feeds)
    plain, result = raised_from([helper.make_node("Identity", ["i"], ["at"]), *step])
    assert "RNN" in {node.op_type for node in result.graph.node}
    assert same(plain, result, feeds)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("output", ["i", "g", "c"])
def test_a_step_has_the_rank_that_the_body_declares(rank, output):
    """Old exporters declare the number of a step and the condition as [1], and onnxruntime passes them in this shape."""
    dims = "[1]" if rank else ""
    made = {"i": "o = Identity (i)", "g": "o = Gather (q, i)", "c": "o = Cast <to = 7> (c)"}[output]
    kind = {"i": "int64", "g": "float", "c": "int64"}[output]
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]> g (float[5,3] q, float[1,3] s) => (float[1,3] last, {kind} all)
        <int64 M = {{2}}, bool{dims} yes = {{1}}> {{
        last, all = Loop (M, yes, s) <body = b (int64{dims} i, bool{dims} c, float[1,3] h) => (bool{dims} go, float[1,3] new, {kind} o) {{
            r = Gather (q, i) sum = ReduceSum <keepdims = 0> (r) new = Add (h, sum) go = Identity (c) {made} }}> }}""")
    for value in (model.graph.output[1], model.graph.node[0].attribute[0].g.output[2]):
        value.type.tensor_type.ClearField("shape")
    feeds = {"q": np.arange(15, dtype="f4").reshape(5, 3), "s": np.zeros((1, 3), "f4")}
    unrolled = rnn_lower.lower(model, loops=True)
    assert loops_of(unrolled) == []
    assert same(model, unrolled, feeds)
    assert rnn_lower.prove(model, unrolled)


def collected(axis=1, cell="GRU"):
    """A loop that appends each state to a list, which is stacked behind it, as TorchScript exports it."""
    rng = np.random.default_rng(5)
    gates = 3 if cell == "GRU" else 1
    arrays = {"W": (I, gates * H), "R": (H, gates * H), "b": (gates * H,), "c": (gates * H,)}
    weights = constants(**{k: rng.uniform(-0.7, 0.7, shape).astype(np.float32) for k, shape in arrays.items()})
    step = {
        "GRU": """zx, rx, nx = Split <axis = 1> (p) zh, rh, nh = Split <axis = 1> (q) zs = Add (zx, zh) z = Sigmoid (zs)
            rs = Add (rx, rh) r = Sigmoid (rs) m = Mul (r, nh) ns = Add (nx, m) n = Tanh (ns)
            d = Sub (h, n) e = Mul (z, d) k = Add (n, e)""",
        "RNN": "s = Add (p, q) k = Tanh (s)",
        "other": "s = Add (p, q) t = Tanh (s) u = Mul (t, h) k = Add (u, s)",
    }[cell]
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]> g (float[N,T,3] x) => (float[a,b,4] y)
        <int64 one = {{1}}, int64[1] zeros = {{0}}, int64[1] ones = {{1}}, int64[1] four = {{4}}, bool yes = {{1}}> {{
        sizes = Shape (x) T1 = Gather (sizes, one) N1 = Slice (sizes, zeros, ones) NH = Concat <axis = 0> (N1, four)
        first = ConstantOfShape (NH) none = SequenceEmpty ()
        last, all = Loop (T1, yes, first, none) <body = body (int64 i, bool go, h, seq(float) s0) => (bool on, k, seq(float) s1) {{
            on = Identity (go) v = Gather <axis = 1> (x, i) vW = MatMul (v, W) p = Add (vW, b) hR = MatMul (h, R) q = Add (hR, c)
            {step} s1 = SequenceInsert (s0, k) }}>
        y = ConcatFromSequence <axis = {axis}, new_axis = 1> (all) }}""")
    model.graph.initializer.extend(weights)
    return model


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("cell", ["GRU", "RNN", "other"])
def test_a_list_of_states_is_a_scan_output(cell, axis):
    model = collected(axis, cell)
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 5, I)).astype(np.float32)}
    lowered = rnn_lower.lower(model, loops=True, dims={"N": 2, "T": 5})
    assert not operators(lowered.graph) & {"Loop", "SequenceEmpty", "SequenceInsert", "ConcatFromSequence"}
    close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))
    assert rnn_lower.prove(model, lowered)
    raised = rnn_lower.raise_loops(model)
    if cell == "other":
        assert raised == model
        return
    assert [node.op_type for node in raised.graph.node if node.op_type in ("GRU", "RNN", "Loop")] == [cell]
    close(run_onnxruntime(raised, feeds), run_onnxruntime(model, feeds))
    assert rnn_lower.prove(model, raised)
    if axis == 1:
        streaming = rnn_lower.stream(model, axis="T", raise_loops=True)
        assert rnn_lower.prove_streaming(raised, streaming)


def test_a_list_that_is_read_otherwise_stays():
    model = collected()
    model.graph.node.append(helper.make_node("SequenceLength", ["all"], ["count"]))
    model.graph.output.append(info("count", INT64, []))
    assert rnn_lower.raise_loops(model) == model
    with pytest.raises(UnsupportedError, match="an ONNX sequence instead of a tensor"):
        rnn_lower.lower(model, loops=True, dims={"N": 2, "T": 5})


def test_a_list_that_nobody_reads_stays():
    """Its tensors may have other shapes in each step."""
    model = collected()
    del model.graph.node[-1]
    model.graph.node.append(helper.make_node("Unsqueeze", ["last", "ones"], ["y"]))
    with pytest.raises(UnsupportedError, match="an ONNX sequence instead of a tensor"):
        rnn_lower.lower(model, loops=True, dims={"N": 2, "T": 5})


def test_states_before_their_update_are_collected():
    model = collected(cell="RNN")
    body = next(node for node in model.graph.node if node.op_type == "Loop").attribute[0].g
    next(node for node in body.node if node.op_type == "SequenceInsert").input[1] = "h"
    lowered = rnn_lower.lower(model, loops=True, dims={"N": 2, "T": 5})
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 5, I)).astype(np.float32)}
    close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))
    assert rnn_lower.prove(model, lowered)


@pytest.mark.parametrize("step", [
    "l = Cast<to = 1>(low) h = Cast<to = 1>(high) q = Clip(a, l, h)",
    "l = Cast<to = 1>(low) h = Cast<to = 1>(high) m = Max(a, l) q = Min(m, h)",
    "l = Cast<to = 1>(low) h = Neg(l) q = Clip(a, l, h)",
])  # fmt: skip
def test_bounds_that_constants_compute_are_proved(step):
    """TorchScript exports torch.clamp with bounds that are constants of type double and are cast in each step."""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[T, 2, 3] x) => (float[U, 2, 3] y) <double low = {{-0.3}}, double high = {{0.3}}, bool on = {{1}}> {{
            zero = Constant<value_int = 0>() sizes = Shape(x) n = Gather(sizes, zero)
            shape = Constant<value_ints = [2, 3]>() p0 = ConstantOfShape(shape)
            last, y = Loop(n, on, p0) <body = b (int64 t, bool go, float[2, 3] p) => (bool go2, float[2, 3] q, float[2, 3] r) {{
                row = Gather(x, t) a = Add(row, p) {step} r = Identity(q) go2 = Identity(on)
            }}>
        }}""")
    unrolled = rnn_lower.lower(model, loops=True, dims={"T": 3})
    proof = rnn_lower.prove(model, unrolled)
    assert proof.ok, proof.nodes
    numbers = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in unrolled.graph.initializer}
    bound = next(tensor for tensor in unrolled.graph.initializer if numbers[tensor.name].ravel()[0] == np.float32(0.3))
    bound.CopyFrom(onnx.numpy_helper.from_array(numbers[bound.name] * np.float32(1.01), bound.name))
    assert not rnn_lower.prove(model, unrolled).ok


@pytest.mark.parametrize(
    ("step", "axis"), [("w = Tanh (e)", 0), ("n = Neg (e) w = Max (e, n)", 0), ("w = Mul (e, e)", 1)]
)
def test_a_scan_over_a_constant_is_folded_and_proved(step, axis):
    numbers = ", ".join(map(str, np.random.default_rng(0).standard_normal(18).round(3)))
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[3] h) => (float[3] last, float[U, 3] all) <float[{"6, 3" if axis == 0 else "3, 6"}] q = {{{numbers}}}> {{
            last, all = Scan <num_scan_inputs = 1, scan_input_axes = [{axis}], scan_input_directions = [1], body = b
                (float[3] s, float[3] e) => (float[3] t, float[3] u) {{ {step} a = Add (w, s) t = Tanh (a) u = Identity (t) }}> (h, q)
        }}""")
    unrolled = rnn_lower.lower(model, loops=True)
    assert loops_of(unrolled) == []
    assert rnn_lower.prove(model, unrolled)
    (tensor, *_) = (tensor for tensor in unrolled.graph.initializer if tensor.data_type == FLOAT)
    tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor) * np.float32(1.01), tensor.name))
    assert not rnn_lower.prove(model, unrolled)


def test_a_cell_that_is_a_recurrent_node_is_raised_once_it_is_lowered(tmp_path, capsys):
    """As TorchScript exports an nn.RNNCell in a loop."""
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[T, N, 3] x, float[N, 4] h) => (float[T, N, 4] y) <int64 zero = {0}, int64[1] first = {0}, bool on = {1}> {
            sizes = Shape(x) n = Gather(sizes, zero)
            last, y = Loop(n, on, h) <body = b (int64 t, bool go, float[N, 4] s) => (bool go2, float[N, 4] q, float[N, 4] r) {
                row = Gather(x, t) rows = Unsqueeze(row, first) states = Unsqueeze(s, first)
                unread, hn = RNN<hidden_size = 4>(rows, W, R, , , states)
                q = Squeeze(hn, first) r = Identity(q) go2 = Identity(on)
            }>
        }""")
    for name, columns in (("W", 3), ("R", 4)):
        array = rng.uniform(-1, 1, (1, 4, columns)).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.save(model, tmp_path / "cell.onnx")
    assert cli.main(["raise", str(tmp_path / "cell.onnx"), "-o", str(tmp_path / "out.onnx")]) == cli.DIFFERENT
    assert "contain a node RNN; lower the model first" in capsys.readouterr().out
    raised = rnn_lower.raise_loops(rnn_lower.lower(model))
    assert [node.op_type for node in raised.graph.node].count("RNN") == 1
    assert same(
        model, raised, {"x": rng.normal(size=(5, 2, 3)).astype("f4"), "h": rng.normal(size=(2, 4)).astype("f4")}
    )
