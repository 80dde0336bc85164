"""Nodes of the model under --legalize-all: what is replaced computes the same, what cannot be read stays."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import onnx
import pytest
from judge import close, every_node, proved_as_wholes, run_onnxruntime
from onenode import Case, build
from onnx import helper, numpy_helper

import rnn_lower
from rnn_lower.driver.legalize_rest import LEGALIZED
from rnn_lower.targeting import TARGETS, find_target

FLOATS = np.linspace(-3, 3, 24, dtype=np.float32).reshape(2, 3, 4)
WHOLE = np.arange(-12, 12, dtype=np.int64).reshape(2, 3, 4)


def whole(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


CASES = {
    "Slice": (FLOATS, {"starts": whole(0, -3), "ends": whole(2, 2**31 - 1), "axes": whole(0, -1)}, {}),
    "Slice of all": (FLOATS, {"starts": whole(0), "ends": whole(2**31 - 1), "axes": whole(1)}, {}),
    "Slice of nothing": (FLOATS, {"starts": whole(2), "ends": whole(1), "axes": whole(1)}, {}),
    "Slice of two axes": (FLOATS, {"starts": whole(1, 1), "ends": whole(2, -1)}, {}),
    "Split": (FLOATS, {"split": whole(1, 3)}, {"axis": 2, "outputs": 2}),
    "Split with an empty part": (FLOATS, {"split": whole(0, 4)}, {"axis": 2, "outputs": 2}),
    "Squeeze": (FLOATS[:1], {"axes": whole(0)}, {}),
    "Squeeze of every 1": (FLOATS[:1, :1], {}, {}),
    "Unsqueeze": (FLOATS, {"axes": whole(-1)}, {}),
    "Unsqueeze by a number": (FLOATS, {"axes": np.int64(-1)}, {}),
    "Clip": (FLOATS, {"min": np.float32(-1), "max": np.float32(1)}, {}),
    "Clip above": (FLOATS, {"": None, "max": np.float32(1)}, {}),
    "Clip by lists": (FLOATS, {"min": np.float32([-1]), "max": np.float32([1])}, {}),
    "Clip below": (FLOATS, {"min": np.float32(-1)}, {}),
    "Clip far from zero": (FLOATS, {"min": np.float32(1), "max": np.float32(2)}, {}),
    "Clip of integers": (WHOLE, {"min": np.int64(-1), "max": np.int64(1)}, {}),
    "Add": (WHOLE, {"right": WHOLE[::-1].copy()}, {}),
    "Sub": (WHOLE, {"right": WHOLE[::-1].copy()}, {}),
    "Mul": (WHOLE, {"right": WHOLE[::-1].copy()}, {}),
    "Div": (WHOLE, {"right": np.abs(WHOLE) + 1}, {}),
    "Abs": (WHOLE, {}, {}),
    "MatMul": (WHOLE, {"right": WHOLE.reshape(2, 4, 3)}, {}),
    "Gemm": (FLOATS[0], {"right": FLOATS[1].T.copy(), "more": FLOATS[0, :1, :3]}, {}),
    "Gemm transposed": (FLOATS[0].T.copy(), {"right": FLOATS[1]}, {"transA": 1, "transB": 1, "alpha": 0.5}),
    "Gemm with a part": (FLOATS[0], {"right": FLOATS[1], "more": FLOATS[0, :3, :1]}, {"transB": 1, "alpha": 2.0, "beta": 3.0}),
    "Less": (WHOLE, {"right": WHOLE[::-1].copy()}, {}),
    "Cast": (WHOLE, {}, {"to": 1}),
    "Gather": (FLOATS, {"indices": whole(-1, 0)}, {"axis": 2}),
    "Reshape": (FLOATS, {"shape": whole(0, -1)}, {}),
}  # fmt: skip


def one_node(name: str, computed: bool) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A node whose other inputs are initializers, or inputs of the model where they are computed."""
    x, others, attributes = CASES[name]
    count = attributes.get("outputs", 1)
    given = {key: np.asarray(value) for key, value in others.items() if value is not None}
    results = [f"y{index}" for index in range(count)]
    kept = {key: value for key, value in attributes.items() if key != "outputs"}
    node = helper.make_node(name.partition(" ")[0], ["x", *others], results, name="n", **kept)
    inputs = {"x": x, **(given if computed else {})}
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info(key, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for key, value in inputs.items()
        ],
        [helper.make_empty_tensor_value_info(result) for result in results],
        [] if computed else [numpy_helper.from_array(value, key) for key, value in given.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    model.graph.ClearField("output")
    model.graph.output.extend(inferred.graph.output)
    return model, inputs


@pytest.mark.parametrize("computed", [False, True], ids=["constants", "computed"])
@pytest.mark.parametrize("name", CASES)
def test_replaced_nodes_compute_the_same(name, computed):
    """For every target, whether the parameters are constants or known at run time only."""
    model, feeds = one_node(name, computed)
    want, seen = run_onnxruntime(model, feeds), {model.SerializeToString()}
    for target in TARGETS:
        try:
            lowered = rnn_lower.lower(model, target=target, legalize_all=True)
        except rnn_lower.UnsupportedError:
            continue
        if lowered.SerializeToString() not in seen:
            seen.add(lowered.SerializeToString())
            close(run_onnxruntime(lowered, feeds), want)


def test_a_result_that_is_an_input_or_another_result_gets_its_own_node(tmp_path):
    """A Slice of everything is no node at all, but an output of the model has one."""
    model, feeds = one_node("Slice of all", computed=False)
    model.graph.node.append(model.graph.node[0])
    model.graph.node[1].name, model.graph.node[1].output[0] = "m", "z"
    model.graph.output.append(model.graph.output[0])
    model.graph.output[1].name = "z"
    path = tmp_path / "mine.toml"
    path.write_text(
        'summary = "for a test"\nstatus = "documented"\nsource = "nowhere"\nforms = ["unroll"]\n'
        'unroll_up_to = "always"\navoid = ["Slice", "Split"]\n',
        encoding="utf-8",
    )
    lowered = rnn_lower.lower(model, target=str(path), legalize_all=True)
    assert "Slice" not in {node.op_type for node in lowered.graph.node}
    close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))


def test_an_attempt_that_failed_leaves_no_initializer():
    """Tanh of an unknown rank: its operand is limited first, and then it is not supported after all."""
    nodes = [helper.make_node("Loop", ["n", "", "x"], ["y"], name="loop", body=body_of_tanh())]
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, None)
    count = helper.make_tensor_value_info("n", onnx.TensorProto.INT64, [])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x, count], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    for target in TARGETS:
        lowered = rnn_lower.lower(model, target=target, legalize_all=True)
        read = {name for node in every_node(lowered) for name in node.input}
        assert {tensor.name for tensor in lowered.graph.initializer} <= read, target


def body_of_tanh() -> onnx.GraphProto:
    values = [
        helper.make_tensor_value_info(name, kind, shape)
        for name, kind, shape in (("i", 7, []), ("on", 9, []), ("s", 1, None), ("on2", 9, []), ("s2", 1, None))
    ]
    nodes = [helper.make_node("Identity", ["on"], ["on2"]), helper.make_node("Tanh", ["s"], ["s2"], name="tanh")]
    return helper.make_graph(nodes, "body", values[:3], values[3:])


def with_lengths_of_floats() -> onnx.ModelProto:
    """As Keras masks: the lengths are the numbers of rows that are not 0, and Where sets the others to 0."""
    model, _ = build(Case("GRU", 17, T=4, N=1, optional=("sequence_lens",), outputs=("Y",)))
    graph = model.graph
    graph.input.remove(next(value for value in graph.input if value.name == "sequence_lens"))
    constants = {"axis": np.array([2]), "first": np.array([0]), "four": np.array([0, 1]), "zero": np.float32(0)}
    graph.initializer.extend(numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items())
    node = helper.make_node
    nodes = [
        node("ReduceMax", ["X"], ["most"], axes=[2], keepdims=0), node("Equal", ["most", "zero"], ["is_zero"]),
        node("Not", ["is_zero"], ["mask"]), node("Cast", ["mask"], ["ones"], to=onnx.TensorProto.INT32),
        node("ReduceSum", ["ones", "first"], ["sequence_lens"], keepdims=0),
        node("Reshape", ["mask", "mask_shape"], ["mask4"]), node("Where", ["mask4", "Y", "zero"], ["Z"]),
    ]  # fmt: skip
    graph.initializer.append(numpy_helper.from_array(np.array([4, 1, 1, 1]), "mask_shape"))
    for index, each in enumerate(nodes[:5]):
        graph.node.insert(index, each)
    graph.node.extend(nodes[5:])
    graph.output[0].CopyFrom(helper.make_tensor_value_info("Z", onnx.TensorProto.FLOAT, [4, 1, 1, 4]))
    return model


def test_legalization_beside_lengths_that_floats_decide_is_proved():
    model = with_lengths_of_floats()
    lowered = rnn_lower.lower(model, target="opencv@4", legalize_all=True)
    assert [entry.value for entry in lowered.metadata_props if entry.key == LEGALIZED] == ["opencv@4 --legalize-all"]
    assert rnn_lower.prove(model, lowered).ok
    assert rnn_lower.check(model, lowered).ok
    lowered.graph.node.append(helper.make_node("Neg", ["X"], ["dead"]))
    assert not rnn_lower.prove(model, lowered).ok


@pytest.mark.parametrize(("unselected", "number"), [
    ("d = Sub (X, k) e = Mod <fmod = 1> (X, d)", 3), ("d = Sub (X, k) e = my.F (d)", 3), ("e = Add (X, low)", 3),
    ("h = Cast <to = 10> (X) e = Cast <to = 1> (h)", 70000), ("d = Mul (X, X) e = Cosh (d)", 200),
    ("d = Sub (X, k) e = Reciprocal (d)", 3), ("d = Pad (X, pads, low) e = Slice (d, zeros, twos)", 3),
    ("d = Sub (X, k) l = Log (d) n = Unsqueeze (l, zero) a, f = GRU <hidden_size = 2> (n, v, v) e = Squeeze (f, zero)", 3),
    ("e = LayerNormalization <epsilon = 0.0> (X, scale)", 3),
])  # fmt: skip
def test_a_where_that_keeps_nan_out_is_no_sum(unselected, number):
    """NaN and infinity of the operand that is not selected would reach a sum."""
    model, lowered = legalized_where(unselected)
    feeds = {"X": np.full((2, 2), number, np.float32)}
    close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))
    assert "Where" in {node.op_type for node in lowered.graph.node}


@pytest.mark.parametrize("unselected", [
    "e = Sub (X, k)", "h = Cast <to = 11> (X) e = Mul (X, k)", "d = MatMul (X, w) e = Tanh (d)", "e = LogSoftmax (X)",
    "a, at = TopK (X, one) e = GatherElements <axis = 1> (X, at)", "e = CumSum (X, one_scalar)", "e = Trilu (X)",
    "e = LayerNormalization (X, scale)", "e, q = Dropout (X)",
])  # fmt: skip
def test_a_where_of_finite_numbers_is_a_sum(unselected):
    model, lowered = legalized_where(unselected)
    feeds = {"X": np.array([[1, 2], [3, 4]], np.float32)}
    close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))
    assert "Where" not in {node.op_type for node in lowered.graph.node}


def legalized_where(unselected: str) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """A model that chooses e, which these nodes compute, where X < 3, and its form for a target without Where."""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17, "my" : 1]> g (float[2,2] X) => (float[2,2] y)
        <float k = {{3}}, float[2,2] w = {{1, 2, 3, 4}}, float low = {{-inf}}, int64[4] pads = {{0, 0, 0, 1}},
         int64[2] zeros = {{0, 0}}, int64[2] twos = {{2, 2}}, int64[1] zero = {{0}}, int64[1] one = {{1}},
         int64 one_scalar = {{1}}, float[1,6,2] v = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}}, float[2] scale = {{1, 2}}> {{
        {unselected} m = Less (X, k) y = Where (m, e, k) }}
        <domain: "my", opset_import: ["" : 17]> F (x) => (y) {{ y = Reciprocal (x) }}""")
    return model, rnn_lower.lower(model, target="aidge", legalize_all=True)


@pytest.mark.parametrize("alpha", [0.1, 0.3])
def test_a_limit_in_bfloat16(alpha):
    """The element of bfloat16 that is nearest to the limit stays on its side."""
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 22]> g (bfloat16[2] x) => (bfloat16[2] y)
        {{ y = ThresholdedRelu <alpha = {alpha}> (x) }}""")
    lowered = rnn_lower.lower(model, target="axera", legalize_all=True)
    assert rnn_lower.prove(model, lowered)
    numbers = [numpy_helper.to_array(tensor) for tensor in lowered.graph.initializer]
    (limit,) = (float(array) for array in numbers if array.size == 1 and 0 < float(array) < 1)
    near = np.array(alpha, ml_dtypes.bfloat16)
    assert (limit < float(near)) == (np.float32(alpha) < float(near))


@pytest.mark.parametrize("target", ["portable", "rknn", "k230", "onnx2torch"])
@pytest.mark.parametrize("node", [
    "HardSigmoid <alpha = 0.16666667> (x)", "LeakyRelu <alpha = 0.1> (x)", "Elu <alpha = 0.3> (x)",
    "ThresholdedRelu <alpha = 0.3> (x)", "ThresholdedRelu <alpha = 0.1> (x)",  # rounded up, and down
    "Gemm <alpha = 0.3, beta = 0.7> (x, x, x)",
])  # fmt: skip
def test_attributes_of_narrow_floats(node, target):
    """A constant of float16 replaces an attribute of float32; no element of float16 may change its side of a limit."""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]> g (float16[4,4] x) => (float16[4,4] y)
        {{ y = {node} }}""")
    limits = np.array([0.1, 0.3], np.float16)
    near = np.concatenate([limits, -limits, np.nextafter(limits, np.float16(1)), np.nextafter(limits, np.float16(0))])
    feeds = {"x": np.concatenate([near, 4 * near]).reshape(4, 4)}
    lowered = rnn_lower.lower(model, target=target, legalize_all=True)
    close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds), 2e-3)
    assert rnn_lower.prove(model, lowered)


@pytest.mark.parametrize("bound", ["low", "high"])
def test_a_bound_that_is_nan_is_not_taken_for_a_number(bound):
    """onnxruntime's Clip ignores it, and its Max and Min return it."""
    bounds = {"low": -1, "high": 1, bound: np.nan}

    def model(nodes):
        made = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
            g (float[4] x) => (float[4] y) {{ {nodes} }}""")
        made.graph.initializer.extend(numpy_helper.from_array(np.float32(bounds[name]), name) for name in bounds)
        return made

    clip = model("y = Clip (x, low, high)")
    lowered = rnn_lower.lower(clip, target="jaxonnxruntime", legalize_all=True)
    assert [node.op_type for node in lowered.graph.node] == ["Clip"]
    assert not proved_as_wholes(clip, model("a = Max (x, low) y = Min (a, high)"))


@pytest.mark.parametrize(("sizes", "shape", "is_kept"), [
    ("2,2,3", "3, 4", False), ("2,2,3", "-1, 6", False), ("n,2,3", "-1, 6", False), ("0,2,3", "0, 5", True),
])  # fmt: skip
def test_allowzero_without_effect_is_dropped(sizes, shape, is_kept):
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]> g (float[{sizes}] x) => (float[a,b] y)
        <int64[2] s = {{{shape}}}> {{ y = Reshape <allowzero = 1> (x, s) }}""")
    lowered = rnn_lower.lower(model, target="onnx2torch", legalize_all=True)
    feeds = {"x": np.ones([int(size.replace("n", "4")) for size in sizes.split(",")], np.float32)}
    close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))
    assert any(each.name == "allowzero" for each in lowered.graph.node[0].attribute) == is_kept
    assert rnn_lower.lint(lowered, target="onnx2torch").ok == (not is_kept)


@pytest.mark.parametrize("target", ["opencv", "tract", "openvino", "onnx2torch"])
@pytest.mark.parametrize("parts", ["<axis = 0, keepdims = 0> (x)", "<axis = 1> (x, two)", "<axis = 1> (x, sizes)"])
def test_parts_of_a_sequence_are_slices(parts, target):
    """As the exporter of PyTorch unrolls an nn.RNN."""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]> g (float[6,4,2] x) => (float[u,v] y, float[6,1,4,2] Y)
        <int64 one = {{1}}, int64 zero = {{0}}, int64 two = {{2}}, int64[2] sizes = {{2, 2}}> {{
        s = SplitToSequence {parts} a = SequenceAt (s, one) b = SequenceAt (s, zero) c = Sub (a, b)
        y = Flatten (c) Y = RNN <hidden_size = 2> (x, W, R) }}""")
    rng = np.random.default_rng(0)
    for name in "WR":
        model.graph.initializer.append(numpy_helper.from_array(rng.uniform(-1, 1, (1, 2, 2)).astype(np.float32), name))
    lowered = rnn_lower.lower(model, target=target, legalize_all=True)
    feeds = {"x": rng.uniform(-1, 1, (6, 4, 2)).astype(np.float32)}
    close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))
    assert not {node.op_type for node in lowered.graph.node} & {"SplitToSequence", "SequenceAt"}
    assert rnn_lower.lint(lowered, target=target).ok
    assert rnn_lower.prove(model, lowered)


def test_the_index_of_a_part_may_be_a_list_of_one():
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]> g (float[6,4] x) => (float[u,4] y)
        <int64[1] one = {1}, int64 three = {3}> { s = SplitToSequence <axis = 0> (x, three) y = SequenceAt (s, one) }""")
    lowered = rnn_lower.lower(model, target="tract", legalize_all=True)
    assert {node.op_type for node in lowered.graph.node} == {"Constant", "Slice"}
    feeds = {"x": np.arange(24, dtype=np.float32).reshape(6, 4)}
    close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))


def test_allowzero_of_a_computed_shape_without_zeros_is_dropped():
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]> g (float[2,2,3] x, float[3,4] z) => (float[3,4] y)
        { s = Shape (z) y = Reshape <allowzero = 1> (x, s) }""")
    lowered = rnn_lower.lower(model, target="onnx2torch", legalize_all=True)
    feeds = {"x": np.arange(12, dtype=np.float32).reshape(2, 2, 3), "z": np.ones((3, 4), np.float32)}
    close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))
    assert rnn_lower.lint(lowered, target="onnx2torch").ok


@pytest.mark.parametrize("target", ["aidge", "horizon-rdk", "portable", "k230"])
@pytest.mark.parametrize("node", ["Where (m, one_zero, X)", "Where (m, X, one_zero)", "Mul (X, minus)"])
@pytest.mark.parametrize("shape", [[], [1], [1, 1], [1, 1, 1]], ids=str)
def test_a_number_that_adds_axes_is_kept(target, node, shape):
    numbers = {"one_zero": 0, "minus": -1}
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]> g (float[2,2] X) => (float[a] y) <float k = {{0}}>
        {{ m = Less (X, k) z = {node} y = Squeeze (z, axes) }}""")
    axes = list(range(max(0, len(shape) - 2)))
    model.graph.initializer.append(numpy_helper.from_array(np.array(axes, np.int64), "axes"))
    if not axes:
        model.graph.node[-1].op_type = "Identity"
        del model.graph.node[-1].input[1:]
    for name, number in numbers.items():
        model.graph.initializer.append(numpy_helper.from_array(np.full(shape, number, np.float32), name))
    model.graph.output[0].type.tensor_type.ClearField("shape")
    feeds = {"X": np.array([[1, -2], [-3, 4]], np.float32)}
    lowered = rnn_lower.lower(model, target=target, legalize_all=True)
    close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))


@pytest.mark.parametrize("more", [[], ["Abs"]], ids=str)
@pytest.mark.parametrize(("low", "high"), [(-100, 100), (0, 256), (-512, 0), (-1e4, 50)])
def test_a_clip_by_reciprocals_at_zero(more, low, high, tmp_path):
    """The reciprocal of -0 is -infinity; Relu keeps -0 on onnxruntime."""
    path = tmp_path / "mine.toml"
    path.write_text(
        'summary = "for a test"\nstatus = "documented"\nsource = "nowhere"\nforms = ["scan"]\n'
        f"avoid = {json.dumps(['Clip', 'Max', 'Min', *more])}\n",
        encoding="utf-8",
    )
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]> g (float[4,1,2] x) => (float[a,b,c] y, float[d,e,f,g] z)
        <float low = {{{low}}}, float high = {{{high}}}, float[1,2,2] W = {{1, 2, -3, 4}}, float[1,2,2] R = {{0.5, 0, 0, 1}}> {{
        y = Clip (x, low, high) z = RNN <hidden_size = 2, clip = 200.0> (x, W, R) }}""")
    lowered = rnn_lower.lower(model, target=str(path), legalize_all=True)
    assert not {node.op_type for node in every_node(lowered)} & {"Clip", "Max", "Min"}
    assert rnn_lower.prove(model, lowered)
    for numbers in ([0] * 8, [-0.0] * 8, [0, -0.0, 1, -1, 150, -150, 1e5, -1e5]):
        feeds = {"x": np.array(numbers, np.float32).reshape(4, 1, 2)}
        close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))
    if not more:
        for node in (node for node in every_node(lowered) if node.op_type == "Abs"):
            node.op_type = "Identity"
        assert not rnn_lower.prove(model, lowered)


@pytest.mark.parametrize("size", [5, 6, 7])
@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize(("op", "width"), [("Conv", 3), ("MaxPool", 3), ("AveragePool", 3), ("AveragePool", 1)])
@pytest.mark.parametrize("more", ["strides = [2, 3]", "strides = [1, 2]"])
def test_pads_are_written_out(size, mode, op, width, more):
    weights = ",".join(str(index % 7 / 7) for index in range(27))
    kernel = "" if op == "Conv" else f", kernel_shape = [{width}, {width}]"
    opset = 19 if op == "AveragePool" else 17
    model = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["" : {opset}]> g (float[1,3,{size},6] x) => (float[a,b,c,d] y)
        <float[1,3,3,3] w = {{{weights}}}> {{
        y = {op} <auto_pad = "{mode}", {more}{kernel}> ({"x, w" if op == "Conv" else "x"}) }}""")
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 3, size, 6)).astype(np.float32)}
    lowered = rnn_lower.lower(model, target="opencv", legalize_all=True)
    assert ("auto_pad" in {each.name for each in lowered.graph.node[0].attribute}) == (width == 1)
    close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))
    assert rnn_lower.prove(model, lowered)


@pytest.mark.parametrize("target", ["tidl", "dla"])
def test_a_node_in_front_of_a_recurrent_node_that_is_dropped(target):
    """A Split into one part is its input, which the recurrent node then reads."""
    model, _ = build(Case("GRU", 17, T=4, N=1, outputs=("Y",)))
    model.graph.initializer.append(numpy_helper.from_array(np.array([4]), "sizes"))
    model.graph.node.insert(0, helper.make_node("Split", ["X", "sizes"], ["part"], axis=0))
    model.graph.node[1].input[0] = "part"
    lowered = rnn_lower.lower(model, target=target, legalize_all=True)
    assert "part" not in {name for node in lowered.graph.node for name in node.input}
    assert rnn_lower.prove(model, lowered).ok


@pytest.mark.parametrize("target", ["onnx2torch", "portable"])
def test_outputs_of_legalized_nodes_get_the_sizes_that_are_set(target):
    model, _ = build(Case("GRU", 17, T=4, N=2, outputs=("Y",), dynamic=True))
    model.graph.node.append(helper.make_node("Softplus", ["Y"], ["Z"]))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("Z", onnx.TensorProto.FLOAT, ["a", 1, "b", 4]))
    sizes = {f"X[{axis}]": size for axis, size in enumerate((4, 2))}
    lowered = rnn_lower.lower(model, target=target, legalize_all=True, dims=sizes)
    assert [dim.dim_value for dim in lowered.graph.output[0].type.tensor_type.shape.dim] == [4, 1, 2, 4]
    assert rnn_lower.prove(model, lowered).ok


def test_nodes_of_the_model_are_no_nodes_of_a_stream_by_their_names():
    model, _ = build(Case("GRU", 17, T=4, N=2, outputs=("Y",)))
    model.graph.node.append(helper.make_node("Softplus", ["Y"], ["Z"], name="stream/softplus"))
    model.graph.output[0].name = "Z"
    lowered = rnn_lower.lower(model, target="onnx2torch")
    assert lowered.graph.node[-1] == model.graph.node[-1]


@pytest.mark.parametrize("target", ["aidge", "k230", "opencv@classic"])
@pytest.mark.parametrize(("op", "limit"), [("Log", 0.0), ("Exp", 90.0), ("Tanh", 0.0)])
def test_a_branch_that_is_not_selected_may_be_no_number(target, op, limit):
    """Products with a mask of 0 and 1 would select NaN."""
    model, feeds = build(Case("RNN", 13, T=3, N=1, outputs=("Y",)))
    tensors = {"limit": np.float32(limit), "other": np.float32(-1), "hundred": np.float32(100)}
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in tensors.items())
    compare = "Greater" if op == "Log" else "Less"
    model.graph.node.extend([
        helper.make_node("Mul", ["Y", "hundred"], ["wide"]), helper.make_node(compare, ["wide", "limit"], ["mask"]),
        helper.make_node(op, ["wide"], ["some"]), helper.make_node("Where", ["mask", "some", "other"], ["Z"]),
    ])  # fmt: skip
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("Z", onnx.TensorProto.FLOAT, [3, 1, 1, 4]))
    lowered = rnn_lower.lower(model, target=target, legalize_all=True)
    assert ("Where" in {node.op_type for node in lowered.graph.node}) == (op != "Tanh")
    (wanted,), (actual,) = run_onnxruntime(model, feeds), run_onnxruntime(lowered, feeds)
    assert np.allclose(wanted, actual, rtol=1e-2)


def test_a_model_knows_its_target_without_the_file(tmp_path, monkeypatch):
    """A proof reads no file that a lowered model names."""
    path = tmp_path / "mine.toml"
    path.write_text('summary = "mine"\nstatus = "documented"\nsource = "me"\nforms = ["scan"]\navoid = ["Softplus"]\n')
    model, _ = build(Case("GRU", 17, outputs=("Y",)))
    model.graph.node.append(helper.make_node("Softplus", ["Y"], ["Z"]))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("Z", onnx.TensorProto.FLOAT, None))
    monkeypatch.chdir(tmp_path)
    lowered = rnn_lower.lower(model, target="./mine.toml", legalize_all=True)
    assert "Softplus" not in {node.op_type for node in lowered.graph.node}
    path.unlink()
    assert rnn_lower.prove(model, lowered).ok
    entry = next(entry for entry in lowered.metadata_props if entry.key == LEGALIZED)
    for text in ("mine.toml", str(path), 'mine{"summary": 1}', "mine{", "mine{" + '{"a":' * 10_000):
        path.write_text("forms = 1")
        entry.value = text + " --legalize-all"
        proof = rnn_lower.prove(model, lowered)
        assert not proof.ok
        assert "this step fails now" in proof.changed[0]


def test_emitted_nodes_are_not_said_to_remain(caplog):
    """Nobody knows the sizes of what another node reads from them, but they are held against the constraints."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 13]>
        g (float[5,3,4] x) => (float[?,?] y) <float scale = {0.01}, int8 zero = {0}> {
            q = QuantizeLinear (x, scale, zero)
            d = DequantizeLinear (q, scale, zero)
            W = Constant <value = float[1,4,4] {1,2,3,4,5,6,7,8,9,8,7,6,5,4,3,2}> ()
            r = RNN <hidden_size = 4> (d, W, W)
            y = Squeeze (r)
        }
    """)
    rnn_lower.lower(model, target="emx-onnx-cgen")
    assert "remaining" not in caplog.text


def test_a_model_without_recurrent_nodes_gets_an_opset_of_the_target():
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]> g (float[2,3] x) => (float[2,3] y) { t = Tanh (x) y = Mul (t, x) }
    """)
    last = find_target("horizon-rdk").opsets[1]
    assert last < 17
    lowered = rnn_lower.lower(model, target="horizon-rdk", legalize_all=True)
    assert lowered.opset_import[0].version == last
    assert rnn_lower.prove(model, lowered).ok


@pytest.mark.parametrize("target", [name for name in TARGETS if not TARGETS[name].constraints.silent])
@pytest.mark.parametrize("holder", ["If", "SequenceMap", "Scan"])
def test_bodies_of_nodes_that_a_target_lacks_stay(holder, target):
    """Looking for replacements must not take the nodes of a body."""
    model = onnx.parser.parse_model({
        "If": """<ir_version: 8, opset_import: ["" : 17]> g (float[2] x, bool c) => (float[2] y) {
            y = If (c) <then_branch = a () => (float[2] r) { s = Mul (x, x) r = Abs (s) }, else_branch = b () => (float[2] r) { r = Neg (x) }> }""",
        "SequenceMap": """<ir_version: 8, opset_import: ["" : 17]> g (float[2,2] x) => (float[n,2] y) { s = SplitToSequence (x)
            m = SequenceMap (s) <body = a (float[1,2] e) => (float[1,2] r) { s2 = Mul (e, e) r = Abs (s2) }> y = ConcatFromSequence <axis = 0> (m) }""",
        "Scan": """<ir_version: 8, opset_import: ["" : 17]> g (float[2,2] x, float[2] h) => (float[2] l, float[2,2] y) {
            l, y = Scan <num_scan_inputs = 1, body = a (float[2] p, float[2] e) => (float[2] q, float[2] r) { q = Mul (p, e) r = Abs (q) }> (h, x) }""",
    }[holder])  # fmt: skip
    for options in ({}, {"legalize_all": True}):
        try:
            lowered = rnn_lower.lower(model, target=target, **options)
        except rnn_lower.UnsupportedError:  # it has another opset, or no loops
            continue
        onnx.checker.check_model(lowered, full_check=True)
        feeds = {
            value.name: np.ones([dim.dim_value for dim in value.type.tensor_type.shape.dim], np.float32)
            for value in model.graph.input
        }
        feeds |= {"c": np.array(True)} if holder == "If" else {}
        close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))


def test_operands_that_nothing_reads_any_more_go():
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]> g (float[2,4] x) => (float[2,1] y, float[2,3] z, int64[2] kept)
        <int64[2] sizes = {1, 3}, int64[2] kept = {1, 3}> { y, z = Split <axis = 1> (x, sizes) }""")
    lowered = rnn_lower.lower(model, target="opencv@4", legalize_all=True)
    read = {name for node in lowered.graph.node for name in node.input} | {"kept"}
    assert {tensor.name for tensor in lowered.graph.initializer} <= read
    feeds = {"x": FLOATS[0, :2]}
    close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))
    assert rnn_lower.prove(model, lowered)


@pytest.mark.parametrize(("target", "op", "text"), [
    ("aidge", "Where", "s = Shape(x) fill = ConstantOfShape<value = float[1] {-inf}>(s) m = Less(x, z) y = Where(m, x, fill)"),
    ("portable", "LeakyRelu", "y = LeakyRelu<alpha = inf>(x)"), ("rknn", "LeakyRelu", "y = LeakyRelu<alpha = inf>(x)"),
])  # fmt: skip
def test_infinite_attributes_stay_out_of_products(target, op, text):
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]> g (float[2, 3] x) => (float[2, 3] y)
        <float z = {{0}}> {{ {text.replace("inf", "9999.0")} }}""")
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.FLOAT:
                attribute.f *= np.inf
            elif attribute.type == onnx.AttributeProto.TENSOR:
                attribute.t.float_data[:] = [number * np.inf for number in attribute.t.float_data]
    lowered = rnn_lower.lower(model, target=target, legalize_all=True)
    assert op in {node.op_type for node in lowered.graph.node}
    feeds = {"x": np.array([[1, -2, 3], [0, -5, 6]], np.float32)}
    close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))
