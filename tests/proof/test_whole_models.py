"""Proofs of whole models whose sizes, branches or element types hide a difference; onnxruntime shows it."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnxruntime
import pytest
from judge import close, proved_as_wholes, remaining, run_onnxruntime
from onenode import Case, build
from onnx import TensorProto, helper, numpy_helper

import rnn_lower
from rnn_lower.modelio.document import Document
from rnn_lower.proving.whole.whole_proof import prove_whole
from rnn_lower.transforms.evaluate import evaluate

RNG = np.random.default_rng(0)
INFO = helper.make_tensor_value_info

TWO_SIZES = "(float[T,4] x, float[N,4] z) => (float[?,?] y)"
ONE_SIZE = "(float[T,4] x) => (float[T,4] y)"
FLIP = "<int64[1] s = {-1}, int64[1] e = {-9999999999}, int64[1] a = {0}>"
SQUARE = "(float[T,B,4] x) => (float[?,?,?] y, int64[1] size)"
ZERO_POINT = "<float[64] sc = {%s}, %s[64] zp = {%s}>"
QUANTIZED = "n = Neg(x) q = QuantizeLinear<axis = 1>(n, sc, zp) y = DequantizeLinear<axis = 1>(q, sc, zp)"
BRANCH = (
    "n = Neg(x) t = Shape(n) k = Gather(t, a) c = Greater(k, lim) "
    "y = If(c) <then_branch = one () => (o1) {o1 = Mul(n, two)}, else_branch = other () => (o2) {o2 = Identity(n)}>"
)
LIMIT = "<int64 lim = {20}, float two = {2.0}, int64 a = {0}>"
POOLED = "(float[B,2,T] x) => (float[B,2,T] y, float[B,2,1] g)"


def zero_points(kind: str) -> str:
    return ZERO_POINT % (", ".join(["100.0"] * 64), kind, ", ".join(["100"] * 64))


PAIRS = {
    "one row": (
        "(float[T,B,4] x) => (float[T,B,4] y)", "<int64 i = {1}>", "n = Neg(x) y = Sigmoid(n)",
        "n = Neg(x) s = Shape(x) k = Gather(s, i) c = Equal(k, i) m = Sigmoid(n) z = Exp(n) y = Where(c, z, m)",
    ),
    "two names for one size": (
        TWO_SIZES, "", "n = Neg(x) c = Concat<axis = 1>(n, z) y = Sigmoid(c)", "n = Neg(x) c = Concat<axis = 1>(n, z) y = Exp(c)",
    ),
    "broadcast at one step": (
        TWO_SIZES, FLIP, "n = Neg(x) r = Slice(n, s, e, a, s) y = Add(r, z)", "n = Neg(x) y = Add(n, z)",
    ),
    "the smaller of two sizes": (
        TWO_SIZES, "<int64[1] o = {0}>",
        "n = Neg(x) k = Shape<end = 1>(n) l = Shape<end = 1>(z) m = Min(k, l) y = Slice(n, o, m)", "n = Neg(x) y = Identity(n)",
    ),
    "a size by another name": (
        SQUARE, "", "y = Neg(x) size = Shape<start = 0, end = 1>(y)", "y = Neg(x) size = Shape<start = 1, end = 2>(y)",
    ),
    "zero points of another type": ("(float[T,64] x) => (float[T,64] y)", zero_points("uint8"), QUANTIZED, QUANTIZED),
    "a branch for long sequences": (ONE_SIZE, LIMIT, BRANCH, "n = Neg(x) y = Identity(n)"),
    "an operator that onnx's evaluator lacks": (
        POOLED, "<float big = {1000000000.0}>", "n = Neg(x) g = GlobalLpPool(x) y = Identity(n)",
        "n = Neg(x) g = GlobalLpPool(x) c = Add(n, big) y = Sub(c, big)",
    ),
    "the largest elements in any order": (
        "(float[T,4] x) => (float[T,2] y)", "<int64[1] k = {2}, int64[1] l = {3}, int64[1] o = {0}, int64[1] a = {1}>",
        "n = Neg(x) y, i = TopK<axis = 1, sorted = 0>(n, k)",
        "n = Neg(x) q, i = TopK<axis = 1, sorted = 0>(n, l) y = Slice(q, o, k, a)",
    ),
}  # fmt: skip
"""By what hides the difference: the interface, the constants, the nodes of the original, and those of another model."""


def parsed(interface: str, constants: str, nodes: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]> g {interface} {constants} {{{nodes}}}')


@pytest.mark.parametrize("name", PAIRS)
def test_what_the_compared_sizes_hide(name):
    interface, constants, nodes, others = PAIRS[name]
    original, other = parsed(interface, constants, nodes), parsed(interface, constants, others)
    if name == "zero points of another type":
        other = parsed(interface, zero_points("int8"), others)
    if name == "a size by another name":
        other.graph.input[0].CopyFrom(INFO("x", TensorProto.FLOAT, ["N", "N", 4]))
    steps = 40 if "long" in name else 5
    feeds = {"x": 1e4 * RNG.standard_normal((steps, 64 if "zero points" in name else 4)).astype(np.float32)}
    if len(original.graph.input) > 1:
        feeds["z"] = RNG.standard_normal((3 if "smaller" in name else steps, 4)).astype(np.float32)
    if len(original.graph.input[0].type.tensor_type.shape.dim) == 3:
        feeds["x"] = RNG.standard_normal((3, 1 if name == "one row" else 2, 4)).astype(np.float32)
    results = zip(run_onnxruntime(original, feeds), run_onnxruntime(other, feeds), strict=True)
    assert any(a.shape != b.shape or not np.allclose(a, b, 1e-2, 1e-2) for a, b in results)
    assert not proved_as_wholes(original, other).ok


SAME = {
    "two free sizes": (TWO_SIZES, "", "n = Neg(x) c = Concat<axis = 0>(n, z) y = Sigmoid(c)"),
    "sizes that must be equal": (TWO_SIZES, "", "n = Neg(x) c = Concat<axis = 1>(n, z) y = Sigmoid(c)"),
    "frames of samples": (
        "(float[S] x) => (float[?,160] y)", "<int64[2] shape = {-1, 160}>", "n = Neg(x) f = Reshape(n, shape) y = Sin(f)",
    ),
    "a branch": (ONE_SIZE, LIMIT, BRANCH),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_equal_models_stay_proved(name):
    interface, constants, nodes = SAME[name]
    original = parsed(interface, constants, nodes)
    other = parsed(interface, constants, nodes.replace("n = Neg(x)", "m = Neg(x) k1 = Neg(m) n = Neg(k1)"))
    proof = proved_as_wholes(original, other)
    assert proof.ok, (proof.reasons, proof.changed)


def masked_loop(backwards: str, mask: str) -> onnx.ModelProto:
    """A hand-written RNN that runs backwards; a mask or lengths select the steps that change its state."""
    node, units, features = helper.make_node, 3, 4
    nodes = [node("MatMul", ["x", "W"], ["p"]), node("Shape", ["x"], ["k"], end=1), node("Squeeze", ["k"], ["t"])]
    if backwards == "Gather":
        nodes += [
            node("Range", ["zero", "t", "one"], ["positions"]), node("Sub", ["t", "one"], ["last"]),
            node("Sub", ["last", "positions"], ["back"]), node("Gather", ["p", "back"], ["q"]),
        ]  # fmt: skip
    else:
        nodes.append(node("Slice", ["p", "start", "end", "axis", "start"], ["q"]))
    body = [
        node("Gather", ["q", "i"], ["xt"]), node("MatMul", ["h", "R"], ["hr"]), node("Add", ["xt", "hr"], ["z"]),
        node("Tanh", ["z"], ["new"]),
    ]  # fmt: skip
    body.append(node("Gather", ["mask", "i"], ["m"]) if mask == "mask" else node("Less", ["i", "lengths"], ["m"]))
    body += [
        node("Where", ["m", "new", "h"], ["next"]),
        node("Identity", ["next"], ["o"]),
        node("Identity", ["c"], ["d"]),
    ]
    i, c, h = (
        INFO("i", TensorProto.INT64, []),
        INFO("c", TensorProto.BOOL, []),
        INFO("h", TensorProto.FLOAT, [None, units]),
    )
    outputs = [
        INFO("d", TensorProto.BOOL, []),
        *(INFO(name, TensorProto.FLOAT, [None, units]) for name in ("next", "o")),
    ]
    graph = helper.make_graph(body, "body", [i, c, h], outputs)
    nodes.append(node("Loop", ["t", "true", "h0"], ["hT", "y"], body=graph, name="loop"))
    inputs = [INFO("x", TensorProto.FLOAT, ["T", "B", features]), INFO("h0", TensorProto.FLOAT, ["B", units])]
    inputs.append(
        INFO("mask", TensorProto.BOOL, ["T", "B", 1])
        if mask == "mask"
        else INFO("lengths", TensorProto.INT64, ["B", 1])
    )
    ends = [INFO("y", TensorProto.FLOAT, ["T", "B", units]), INFO("hT", TensorProto.FLOAT, ["B", units])]
    constants = {
        "W": RNG.standard_normal((features, units)).astype(np.float32), "zero": np.int64(0), "one": np.int64(1),
        "R": RNG.standard_normal((units, units)).astype(np.float32), "true": np.array(True),
        "start": np.array([-1]), "end": np.array([-(2**40)]), "axis": np.array([0]),
    }  # fmt: skip
    weights = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(helper.make_graph(nodes, "g", inputs, ends, weights), opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize("mask", ["mask", "lengths"])
@pytest.mark.parametrize("backwards", ["Gather", "Slice"])
def test_a_mask_of_a_raised_loop_is_kept(backwards, mask):
    """Where the states and the sequence had sizes of different names, only the empty input ran."""
    model = masked_loop(backwards, mask)
    feeds = {
        "x": RNG.standard_normal((5, 3, 4)).astype(np.float32), "h0": RNG.standard_normal((3, 3)).astype(np.float32),
        "mask": RNG.random((5, 3, 1)) > 0.4, "lengths": np.array([[5], [2], [3]]),
    }  # fmt: skip
    feeds = {value.name: feeds[value.name] for value in model.graph.input}
    close(run_onnxruntime(rnn_lower.raise_loops(model), feeds), run_onnxruntime(model, feeds))
    close(run_onnxruntime(rnn_lower.lower(model, raise_loops=True), feeds), run_onnxruntime(model, feeds))


LIMITS = {
    "product": "a = Mul(ten, ten) most = Add(a, one)", "cast": "most = Cast<to = 7>(hundred)",
    "size": "most = Size(table)", "shape": "s = Shape(table) most = Squeeze(s)",
}  # fmt: skip


@pytest.mark.parametrize("how", LIMITS)
def test_a_limit_of_steps_that_nodes_compute_is_kept(how):
    """The loop runs at most about 100 steps, which no recurrent node does."""
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 17]> g (float[T,B,3] x, float[B,3] h0) => (float[?,B,3] y, float[B,3] hT)
        <int64 ten = {10}, int64 one = {1}, float hundred = {100.0}, int64 zero = {0}, bool yes = {1}> {
        k = Shape(x) t = Gather(k, zero) LIMIT trip = Min(t, most)
        hT, y = Loop(trip, yes, h0) <body = b (int64 i, bool c, float[?,3] h) => (bool d, float[?,3] next, float[?,3] o)
        {xt = Gather(x, i) hr = MatMul(h, R) z = Add(xt, hr) next = Tanh(z) o = Identity(next) d = Identity(c)}>}
        """.replace("LIMIT", LIMITS[how])
    )
    rng = np.random.default_rng(1)
    for name, array in (("R", rng.standard_normal((3, 3))), ("table", rng.standard_normal(100))):
        model.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    feeds = {"x": rng.standard_normal((120, 2, 3)).astype(np.float32), "h0": np.zeros((2, 3), np.float32)}
    wanted = run_onnxruntime(model, feeds)
    assert len(wanted[0]) < 120
    close(run_onnxruntime(rnn_lower.raise_loops(model), feeds), wanted)


DEFAULTS = {"steps": {"steps": np.array(3)}, "R": {"R": np.eye(3, dtype=np.float32)}}


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_default_that_the_caller_may_override_is_no_constant(name):
    """Neither the number of steps nor the weights of a recurrent node come from the caller."""
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 17]> g (float[5,2,3] x, float[2,3] h0) => (y, hT)
        <int64 steps = {5}, bool yes = {1}> {
        hT, y = Loop(steps, yes, h0) <body = b (int64 i, bool c, float[2,3] h) => (bool d, float[2,3] next, float[2,3] o)
        {xt = Gather(x, i) hr = MatMul(h, R) z = Add(xt, hr) next = Tanh(z) o = Identity(next) d = Identity(c)}>}
        """
    )
    weights = RNG.standard_normal((3, 3)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "R"))
    assert "RNN" in {node.op_type for node in rnn_lower.raise_loops(model).graph.node}
    default = DEFAULTS[name][name]
    kind = TensorProto.INT64 if default.dtype == np.int64 else TensorProto.FLOAT
    model.graph.input.append(INFO(name, kind, default.shape))
    feeds = {"x": RNG.standard_normal((5, 2, 3)).astype(np.float32), "h0": np.zeros((2, 3), np.float32)}
    raised = rnn_lower.raise_loops(model)
    close(run_onnxruntime(raised, feeds | DEFAULTS[name]), run_onnxruntime(model, feeds | DEFAULTS[name]))


def test_weights_that_training_updates():
    """Training may update a weight that the other model reads no more."""
    original, other = (
        parsed(ONE_SIZE, f"<float[1] {name} = {{1.0}}>", f"n = Neg(x) y = Mul(n, {name})") for name in "WV"
    )
    for model in (original, other):
        training = model.training_info.add()
        training.algorithm.name = "step"
        training.algorithm.node.append(helper.make_node("Identity", ["W"], ["next"]))
        training.algorithm.output.append(INFO("next", TensorProto.FLOAT, [1]))
        training.update_binding.add(key="W", value="next")
    assert not proved_as_wholes(original, other).ok


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_large_nodes(op):
    """Of nodes with many weights, fewer steps are compared, on which a wrong weight shows as well."""
    model, _ = build(Case(op, 17, dynamic=True, H=600, I=5))
    lowered = rnn_lower.lower(model)
    assert not remaining(lowered)
    assert rnn_lower.prove(model, lowered).ok
    weight = max(lowered.graph.initializer, key=lambda tensor: len(tensor.raw_data))
    array = numpy_helper.to_array(weight).copy()
    array[-1, -1] += 0.5
    weight.CopyFrom(numpy_helper.from_array(array, weight.name))
    assert not rnn_lower.prove(model, lowered).ok


@pytest.mark.parametrize("node", ["m = Div(s, ten)", "f = Cast<to = 1>(i) m = Mul(f, small)"])
def test_a_step_that_reads_its_number_is_kept(node):
    """From step 150 on, the state stays, which shows only in long runs."""
    less = "keep = Less(m, fifteen)" if "Div" in node else "keep = Less(m, half)"
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 17]> g (float[T,B,3] x, float[B,3] h0) => (float[T,B,3] y, float[B,3] hT)
        <int64 ten = {10}, int64 fifteen = {15}, float small = {0.01}, float half = {1.5}, int64 zero = {0}, bool yes = {1}> {
        k = Shape(x) t = Gather(k, zero)
        hT, y = Loop(t, yes, h0) <body = b (int64 i, bool c, float[?,3] h) => (bool d, float[?,3] next, float[?,3] o)
        {s = Identity(i) NODE LESS g1 = Cast<to = 1>(keep) xt = Gather(x, i) hr = MatMul(h, R) z = Add(xt, hr) n = Tanh(z)
        a = Sub(n, h) q = Mul(g1, a) next = Add(h, q) o = Identity(next) d = Identity(c)}>}
        """.replace("NODE", node).replace("LESS", less)
    )
    model.graph.initializer.append(numpy_helper.from_array(RNG.standard_normal((3, 3)).astype(np.float32), "R"))
    feeds = {"x": RNG.standard_normal((170, 2, 3)).astype(np.float32), "h0": np.zeros((2, 3), np.float32)}
    close(run_onnxruntime(rnn_lower.raise_loops(model), feeds), run_onnxruntime(model, feeds))


def test_a_loop_whose_result_is_an_output_behind_an_identity_is_raised():
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 17]> g (float[T,B,3] x, float[B,3] h0) => (float[T,B,3] y)
        <int64 zero = {0}, bool yes = {1}> {
        k = Shape(x) t = Gather(k, zero)
        [loop] hT, r = Loop(t, yes, h0) <body = b (int64 i, bool c, float[?,3] h) => (bool d, float[?,3] next, float[?,3] o)
        {xt = Gather(x, i) hr = MatMul(h, R) z = Add(xt, hr) next = Tanh(z) o = Identity(next) d = Identity(c)}>
        y = Identity(r)}
        """
    )
    model.graph.initializer.append(numpy_helper.from_array(RNG.standard_normal((3, 3)).astype(np.float32), "R"))
    raised = rnn_lower.raise_loops(model)
    assert len(remaining(raised)) == 1
    feeds = {"x": RNG.standard_normal((7, 2, 3)).astype(np.float32), "h0": np.ones((2, 3), np.float32)}
    close(run_onnxruntime(raised, feeds), run_onnxruntime(model, feeds))


def test_folding_removes_what_the_new_opset_lacks():
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 18]> main (float[3, 1, 2] x) => (float[3, 1, 2] z, float[3, 1, 1, 3] y)
        <int64 a = {{7}}, int64 b = {{3}}, float[1, 3, 2] w = {{{", ".join(["0.5"] * 6)}}},
         float[1, 3, 3] r = {{{", ".join(["0.25"] * 9)}}}>
        {{ c = BitwiseAnd (a, b) f = Cast <to = 1> (c) z = Mul (x, f) y = RNN <hidden_size = 3> (x, w, r) }}
    """)
    lowered = rnn_lower.lower(model, opset=11, fold=True)
    assert rnn_lower.prove(model, lowered)
    lowered.graph.node[0].op_type = {"Mul": "Add"}.get(lowered.graph.node[0].op_type, "Identity")
    assert not rnn_lower.prove(model, lowered)


@pytest.mark.parametrize(
    ("inputs", "nodes"),
    [
        ("", "i = Cast <to = 7> (x) s = Shape (i) n = Cast <to = 1> (s) z = ReduceSum (n)"),
        ("", "i = Cast <to = 7> (x) s = Size (i) z = Cast <to = 1> (s)"),
        ("", "z = CastLike (a, x)"), ("", "z = CastLike (half, x)"), (", int64[2] k", "z = CastLike (k, x)"),
        ("", "i = CastLike (x, a) z = Cast <to = 1> (i)"),
    ],
)  # fmt: skip
def test_folded_sizes_and_types_of_what_is_cast_are_proved(inputs, nodes):
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 18]> main (float[3, 1, 2] x{inputs}) => (z, float[3, 1, 1, 3] y)
        <int64 a = {{7}}, double half = {{0.5}}, float[1, 3, 2] w = {{{", ".join(["0.5"] * 6)}}},
         float[1, 3, 3] r = {{{", ".join(["0.25"] * 9)}}}>
        {{ {nodes} y = RNN <hidden_size = 3> (x, w, r) }}
    """)
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    lowered = rnn_lower.lower(model, fold=True)
    kept = {node.op_type for node in lowered.graph.node}
    assert not kept & {"CastLike", "Shape", "Size"}
    assert rnn_lower.prove(model, lowered)


RANK = (
    "r = Shape(x) k = Size(r) c = Equal(k, four) u = Add(one, one) n = Mul(x, u) "
    "y = If(c) <then_branch = never () => (o3) {v = Add(u, three) o1 = Mul(n, v) p, q = Split<axis = 1>(n) "
    "s = ReduceSum(p) o3 = Add(o1, s)}, else_branch = always () => (o2) {o2 = Identity(n)}>"
)
OTHERS = {
    "another number": ("v = Add(u, three)", "v = Add(u, one)"),
    "another operator": ("o1 = Mul(n, v)", "o1 = Add(n, v)"),
    "another value": ("o1 = Mul(n, v)", "o1 = Mul(x, v)"),
    "a value by the same name": ("u = Add(one, one) n = Mul(x, u)", "u = Add(one, three) n = Add(x, x)"),
    "more parts": ("p, q = Split", "p, q, r1, r2 = Split"),
    "another declaration": ("never () => (o3)", "never () => (float[99, 4] o3)"),
}
"""By what differs in a branch that never runs: the text of the folded model, and what replaces it."""


def _ranked(nodes: str) -> Document:
    return Document(parsed(ONE_SIZE, "<int64 four = {4}, float one = {1.0}, float three = {3.0}>", nodes))


@pytest.mark.parametrize("name", OTHERS)
def test_a_branch_that_never_runs_is_compared_by_its_structure(name):
    folded = RANK.replace("u = Add(one, one)", "u = Sum(one, one)").replace("v = Add(u, three)", "v = Sum(u, three)")
    original, same, other = map(_ranked, (RANK, folded, RANK.replace(*OTHERS[name])))
    assert prove_whole(original, same, 1, 0, math.inf).ok
    assert "ran in no comparison" in str(prove_whole(original, other, 1, 0, math.inf))


def test_folding_in_branches_that_never_run_is_proved(shared):
    model = onnx.load(shared / "models" / "silero_vad.onnx")
    assert rnn_lower.prove(model, rnn_lower.lower(model, fold=True))


@pytest.mark.parametrize("opset", [12, 13, 18])
def test_mean_variance_normalization_is_converted_and_proved(opset):
    """From opset 13 on, onnx itself has an invalid function of it, which strict inference reports for any model."""
    model, _ = build(Case("GRU", 9))
    model.graph.node.append(helper.make_node("MeanVarianceNormalization", ["X"], ["m"], axes=[0, 1]))
    model.graph.output.append(INFO("m", TensorProto.FLOAT, None))
    lowered = rnn_lower.lower(model, opset=opset)
    proof = rnn_lower.prove(model, lowered)
    assert proof.ok, proof
    next(value for value in lowered.graph.output if value.name == "m").type.tensor_type.elem_type = TensorProto.DOUBLE
    assert not rnn_lower.prove(model, lowered).ok


CELL = "r = RNN <hidden_size = 4> (n, W, R) y = Squeeze (r, a)"
RECURRENT = "(float[T,2,4] x) => (float[T,2,4] y)"
WEIGHTS = (
    f"<float[1,4,4] W = {{{', '.join(['0.3'] * 16)}}}, float[1,4,4] R = {{{', '.join(['0.2'] * 16)}}}, int64[1] a = {{1}},"
    " int64[4] fours = {1, 1, 1, 1}, int64[6] nothing = {0, 0, 0, 0, 0, 0}, int64[6] much = {0, 0, 0, 0, 2, 0},"
    " float two = {2.0},"
    f" float[1,12,4] W3 = {{{', '.join(['0.3'] * 48)}}}, float[1,12,4] R3 = {{{', '.join(['0.2'] * 48)}}}>"
)
GATES = CELL.replace("RNN", "GRU").replace("W, R", "W3, R3")


@pytest.mark.parametrize(
    ("nodes", "others"),
    [
        (CELL, CELL.replace("size = 4", 'size = 4, activations = ["TANH"]')),
        (GATES, GATES.replace("size = 4", "size = 4, clip = 0.0")),
        (
            CELL,
            CELL.replace("(n, W, R)", "(v, W, R)").replace(
                "r = RNN", "v = ReverseSequence<time_axis = 0, batch_axis = 2>(n, fours) r = RNN"
            ),
        ),
        (CELL, CELL.replace("y =", 'p = Pad<mode = "symmetric">(x, nothing) y =')),
        (CELL, CELL.replace("y =", 'p = Pad<mode = "reflect">(x, much) y =')),
        (CELL, CELL.replace("y =", "p, q = Dropout(x, two) y =")),
        (CELL, CELL.replace("y =", "p = MaxPool<kernel_shape = [2], pads = [2, 2]>(x) y =")),
        (CELL, CELL.replace("y =", "s = Shape(x) o = Sub(s, s) dead = Div(s, o) y =")),
    ],
)
def test_what_onnxruntime_refuses_is_not_proved(nodes, others):
    original, other = (parsed(RECURRENT, WEIGHTS, f"n = Neg(x) {text}") for text in (nodes, others))
    feeds = {"x": RNG.standard_normal((3, 2, 4)).astype(np.float32)}
    run_onnxruntime(original, feeds)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        onnxruntime.InferenceSession(other.SerializeToString(), options).run(None, feeds)
    assert not proved_as_wholes(original, other).ok


def test_rows_of_tables_of_other_shapes_differ():
    numbers = f"float[4,2] wide = {{{', '.join(map(str, range(8)))}}}"
    constants = f"<{numbers}, {numbers.replace('[4,2] wide', '[8,1] long')}, int64[1] s = {{0}}, int64[1] e = {{1}}>"
    nodes = "n = Neg(x) i = ArgMax<axis = 1, keepdims = 0>(n) r = Gather(wide, i) y = Slice(r, s, e, e)"
    interface = "(float[T,4] x) => (float[T,1] y)"
    original, same, other = (
        parsed(interface, constants, text)
        for text in (nodes, nodes.replace("n = Neg(x)", "m = Neg(x) n = Identity(m)"), nodes.replace("wide", "long"))
    )
    assert prove_whole(Document(original), Document(same), 1, 0, math.inf).ok
    assert not prove_whole(Document(original), Document(other), 1, 0, math.inf).ok


@pytest.mark.parametrize(("scale", "is_product"), [("2.0", True), ("1.2", False)])
def test_a_resize_is_a_product_only_if_all_runtimes_agree(scale, is_product):
    interface = "(float[T,4] x) => (float[T,?] y)"
    node = onnx.helper.make_node("Resize", ["x", "", "s"], ["y"], mode="linear")
    matrix = evaluate(
        [node], {"x": np.eye(4, dtype=np.float32), "s": np.array([1, float(scale)], np.float32)}, ["y"],
        [onnx.helper.make_opsetid("", 17)], also=["Resize"],
    )[0]  # fmt: skip
    columns = matrix.shape[1]
    numbers = ", ".join(map(str, matrix.ravel().tolist()))
    constants = f"<float[2] s = {{1.0, {scale}}}, float[4,{columns}] m = {{{numbers}}}>"
    resized = 'n = Neg(x) y = Resize<mode = "linear">(n, , s)'
    original, same, other = (
        Document(parsed(interface, constants, text))
        for text in (resized, f"k = Size(x) {resized}", "n = Neg(x) y = MatMul(n, m)")
    )
    assert prove_whole(original, same, 1, 0, math.inf).ok
    assert prove_whole(original, other, 1, 0, math.inf).ok == is_product


def test_integers_that_were_computed_from_floats_stand_beside_known_ones():
    """As in a quantized cell, whose first state is a constant."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]> g (float[1,3] x) => (float[1,3] y, float[1,3] z)
        <float scale = {0.1}, int8 zero = {0}, int8[1,3] first = {1, 2, 3}, int64[2] sizes = {1, 1}> {
        q = QuantizeLinear (x, scale, zero) c = Concat <axis = 0> (first, q) d = DequantizeLinear (c, scale, zero)
        y, z = Split (d, sizes) }""")
    lowered = rnn_lower.lower(model, target="onnx2torch", legalize_all=True)
    assert "Split" not in [node.op_type for node in lowered.graph.node]
    assert rnn_lower.prove(model, lowered).ok
