"""What a runtime takes of a whole model, and which recurrent nodes are left as they are."""

from __future__ import annotations

import contextlib
import json

import numpy as np
import onnx
import pytest
from dynamic import two_layers
from features import FEATURES
from judge import every_node, expected, run_onnxruntime, run_reference
from onenode import OPTIONAL, Case, build
from onnx import helper, numpy_helper
from paths import ROOT
from runners import RUNNERS, missing
from strategies import random_case

import rnn_lower
from rnn_lower import RnnLowerError, cli
from rnn_lower.options import OP_TYPES
from rnn_lower.targeting import TARGETS, find_target, lint, native_support

MEASURED = json.loads((ROOT / "docs" / "runtimes.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", MEASURED)
def test_the_table_of_a_target_is_what_was_measured(name):
    rows = MEASURED[name]["fused"]
    for op in OP_TYPES:
        told = TARGETS[name].fused.get(op, native_support.Measured(frozenset(), frozenset()))
        for kind, names in (("right", told.right), ("wrong", told.wrong)):
            assert names == {
                row.partition(" ")[2] for row, found in rows.items() if found[0] == kind and row.startswith(op)
            }
    assert MEASURED[name]["version"].partition(".post")[0] in TARGETS[name].source


@pytest.mark.parametrize("name", MEASURED)
@pytest.mark.parametrize("feature", FEATURES)
def test_a_measured_node_is_known_for_what_it_is(name, feature):
    """Right only where it was measured right; what was measured wrong is never said to be right."""
    (node,) = rnn_lower.inspect(build(FEATURES[feature])[0])
    found, measured = TARGETS[name].verdict(node), MEASURED[name]["fused"].get(feature, ["unknown"])[0]
    assert measured != "unknown" or found.kind in (native_support.UNKNOWN, native_support.NOT_TAKEN)
    assert found.kind != native_support.RIGHT or measured == "right"
    assert "saturated" in feature or measured != "wrong" or found.kind != native_support.RIGHT
    if measured == "wrong" and feature.split(" ", 1)[1] not in ("saturated", "Softplus saturated", "everything"):
        assert found.kind == native_support.WRONG, found.why


@pytest.mark.parametrize(
    "name", [name for name in ("openvino", "tract", "opencv", "onnx-reference") if name in RUNNERS]
)
@pytest.mark.parametrize("feature", FEATURES)
def test_what_is_kept_is_right_there(name, feature):
    """With keep_native every feature is right on the runtime, and some nodes are left as they are."""
    if missing(name):
        pytest.skip(missing(name))
    case = FEATURES[feature]
    model, feeds = build(case)
    mixed = rnn_lower.lower(model, target=name, keep_native=True)
    for got, wanted in zip(RUNNERS[name][1](mixed, feeds), expected(case), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-4)
    kept = any(node.op_type == case.op for node in every_node(mixed))
    (node,) = rnn_lower.inspect(model)
    assert kept == TARGETS[name].keeps(node)
    assert not kept or TARGETS[name].verdict(node).kind == native_support.RIGHT


@pytest.mark.parametrize("activations", [("Softplus", "Tanh"), ("Tanh", "Softplus"), ("Relu", "Softplus")])
def test_an_activation_of_either_direction_counts(activations):
    (node,) = rnn_lower.inspect(build(Case("RNN", 17, "bidirectional", activations=activations))[0])
    assert TARGETS["onnxruntime-web"].verdict(node).kind == native_support.WRONG


@pytest.mark.parametrize(
    ("target", "op", "N", "kept"),
    [
        ("openvino", "GRU", 1, False), ("openvino", "LSTM", 8, True), ("opencv", "LSTM", 1, True),
        ("opencv", "LSTM", 2, False), ("opencv", "GRU", 1, False), ("tract", "GRU", 1, False), ("tract", "RNN", 8, True),
    ],
)  # fmt: skip
def test_what_is_faster_lowered_is_not_kept(target, op, N, kept, tmp_path, capsys):
    """It is right as it is, and `inspect` says why it is lowered all the same."""
    model = build(Case(op, 17, N=N, optional=("B",)))[0]
    onnx.save(model, tmp_path / "in.onnx")
    lowered = rnn_lower.lower(model, target=target, keep_native=True)
    assert any(node.op_type == op for node in every_node(lowered)) == kept
    assert cli.main(["inspect", str(tmp_path / "in.onnx"), "--target", target, "--json"]) == cli.DONE
    (row,) = json.loads(capsys.readouterr().out)["nodes"]
    assert row["native"] == native_support.RIGHT
    assert ("the lowered node ran faster in tests" in row["why"]) == (not kept)


def test_what_was_not_measured_is_not_said_to_be_missing(tmp_path):
    path = tmp_path / "half.toml"
    path.write_text('summary = "s"\nstatus = "measured"\nsource = "s"\nforms = ["scan"]\nfused = "not measured"\n')
    (node,) = rnn_lower.inspect(build(Case("LSTM", 17, optional=("B",)))[0])
    found = find_target(str(path)).verdict(node)
    assert found.kind == native_support.UNKNOWN
    assert "the features of this node were not tested" in found.why


def test_only_what_needs_it_is_lowered(tmp_path, capsys):
    """Of two nodes the one with peepholes; `inspect` says why."""
    plain, _ = build(Case("LSTM", 17, optional=("B",), outputs=("Y_h",)))
    other, _ = build(Case("LSTM", 17, optional=("B", "P"), outputs=("Y_h",)))
    both = onnx.compose.merge_models(
        onnx.compose.add_prefix(plain, "a_"), onnx.compose.add_prefix(other, "b_"), io_map=[]
    )
    onnx.save(both, tmp_path / "in.onnx")
    lowered = rnn_lower.lower(both, target="openvino", keep_native=True)
    assert [node.name for node in every_node(lowered) if node.op_type == "LSTM"] == ["a_node"]
    assert cli.main(["inspect", str(tmp_path / "in.onnx"), "--target", "openvino", "--json"]) == cli.DONE
    rows = json.loads(capsys.readouterr().out)["nodes"]
    assert [row["native"] for row in rows] == [native_support.RIGHT, native_support.WRONG]
    assert rows[1]["why"].startswith("openvino (OpenVINO")
    assert "silently returns wrong results for feature 'peepholes' of LSTM" in rows[1]["why"]
    arguments = ["lower", str(tmp_path / "in.onnx"), "-o", str(tmp_path / "out.onnx"), "--target", "openvino"]
    assert cli.main([*arguments, "--keep-native", "--check"]) == cli.DONE
    kept = [node.name for node in every_node(onnx.load(tmp_path / "out.onnx")) if node.op_type == "LSTM"]
    assert kept == ["a_node"]
    told = capsys.readouterr().err
    assert "LSTM 'b_node' in main graph: not kept as a native node: openvino (OpenVINO" in told
    assert "silently returns wrong results for feature 'peepholes' of LSTM" in told


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dtype": "float16"}, "element type FLOAT16"),
        ({"dynamic": True}, "an unknown size"),
        ({"weights": "input"}, "a computed weight"),
        ({"opset": 13}, "version 7 of LSTM"),
        ({"activations": ("Relu", "Tanh", "Tanh")}, "the combination of activations of this node"),
        ({"hidden_size": False}, "without hidden_size"),
        ({"outputs": ("Y_c",)}, "Y_c as the only output"),
        ({"optional": ("B", "initial_h")}, "with only one of initial_h and initial_c"),
        ({"weights": "constant"}, "a weight in a Constant node"),
        ({"clip": 0.0}, "clip 0"),
        ({"H": 1}, "hidden_size 1"),
        ({"activations": ("sigmoid", "Tanh", "tanh")}, "the spelling of an activation name of this node"),
        ({"activations": ("Sigmoid", "Tanh", "Tanh"), "alpha": (0.5,)}, "an unused alpha or beta"),
        (
            {"optional": OPTIONAL["LSTM"][:2], "direction": "reverse"},
            "the combination of reverse and sequence_lens input",
        ),
    ],
)
def test_what_was_not_measured_is_lowered(changes, words):
    (node,) = rnn_lower.inspect(build(Case("LSTM", 17, optional=("B",)).replace(**changes))[0])
    found = TARGETS["openvino"].verdict(node)
    assert found.kind in (native_support.UNKNOWN, native_support.NOT_TAKEN)
    assert words in found.why or "everything" in found.why or "activations" in found.why


RANDOM = ("openvino", "tract", "opencv", "onnx-reference", "onnxruntime")


@pytest.mark.parametrize("name", RANDOM)
def test_random_nodes_that_are_kept_are_right_there(name):
    """Whatever outputs, inputs and attributes a node has: what is said to be right is right on the runtime itself."""
    if missing(name):
        pytest.skip(missing(name))
    rng, kept, tried = np.random.default_rng(11), 0, 0
    while kept < 12:
        tried += 1
        case, _ = random_case(rng)
        case = case.replace(opset=17, dtype="float", dynamic=False, weights="initializer", layout=0, place="main")
        if tried % 2:
            case = case.replace(
                activations=None, alpha=None, beta=None, clip=None, direction="forward", input_forget=None
            )
        model, feeds = build(case)
        (node,) = rnn_lower.inspect(model)
        if TARGETS[name].verdict(node).kind != native_support.RIGHT:
            continue
        kept += 1
        got, wanted = RUNNERS[name][1](model, feeds), expected(case)
        assert [value.shape for value in got] == [value.shape for value in wanted], case
        for a, b in zip(got, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-4, err_msg=str(case))


@pytest.mark.parametrize("name", ["tract", "opencv", "opencv@4", "opencv@classic", "openvino"])
@pytest.mark.parametrize("dtype", ["float", "double", "float16", "bfloat16"])
@pytest.mark.parametrize("op", OP_TYPES)
def test_an_element_type_is_refused_or_right_there(op, dtype, name):
    """`lower` and `lint` agree, and name the type that the runtime lacks."""
    case = Case(op, 22, N=2, dtype=dtype, optional=("B",), outputs=("Y",))
    model, feeds = build(case)
    if dtype.upper() in TARGETS[name].constraints.avoid_types:
        words = f"does not support the element type {dtype.upper()}"
        with pytest.raises(RnnLowerError, match=words):
            rnn_lower.lower(model, target=name)
        (finding,) = rnn_lower.lint(model, name).findings
        assert words in finding.mend
        return
    lowered = rnn_lower.lower(model, target=name)
    assert rnn_lower.lint(lowered, name).ok
    if missing(name) or (name, dtype) == ("openvino", "bfloat16"):  # numpy takes its bfloat16 for float16
        return
    for got, wanted in zip(RUNNERS[name][1](lowered, feeds), expected(case), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-3 if dtype == "float16" else 1e-5)


@pytest.mark.parametrize("name", ["tract", "opencv", "openvino", "onnxruntime"])
@pytest.mark.parametrize("is_explicit", [False, True])
def test_a_default_that_the_runtime_does_not_know_is_written(is_explicit, name):
    model, feeds = build(Case("GRU", 17, N=2, optional=("B", "initial_h"), outputs=("Y",)))
    inputs = [value for value in model.graph.input if value.name != "initial_h"]
    model.graph.ClearField("input")
    model.graph.input.extend(inputs)
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, 2, 4]), "sizes"))
    zero = {"value": numpy_helper.from_array(np.zeros(1, np.float32))} if is_explicit else {}
    model.graph.node.insert(0, helper.make_node("ConstantOfShape", ["sizes"], ["initial_h"], name="zeros", **zero))
    del feeds["initial_h"]
    lacks = not is_explicit and name in ("tract", "opencv")
    found = {one.node: one for one in rnn_lower.lint(model, name).findings}
    assert ("zeros" in found) == lacks
    if lacks:
        assert "only with explicit attribute value, but this node omits value" in found["zeros"].rule
    lowered = rnn_lower.lower(model, target=name, legalize_all=True)
    assert any(node.op_type == "ConstantOfShape" and not node.attribute for node in lowered.graph.node) == (
        not is_explicit and not lacks
    )
    assert rnn_lower.prove(model, lowered).ok
    if not missing(name):
        (wanted,) = run_onnxruntime(model, feeds)
        np.testing.assert_allclose(RUNNERS[name][1](lowered, feeds)[0], wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("opset", [1, 3, 5, 6])
def test_old_models_get_an_opset_that_openvino_runs(opset):
    model, feeds = build(Case("GRU", opset, N=2, optional=("B",), outputs=("Y",)))
    lowered = rnn_lower.lower(model, target="openvino")
    assert lowered.opset_import[0].version == max(opset, 6)
    if not missing("openvino"):
        (wanted,) = run_reference(model, feeds)
        np.testing.assert_allclose(RUNNERS["openvino"][1](lowered, feeds)[0], wanted, rtol=0, atol=1e-5)


def test_lint_names_node_rule_and_source(tmp_path, capsys):
    model, _ = build(Case("GRU", 17, N=1, outputs=("Y_h",)))
    model.graph.node.append(helper.make_node("Erf", ["Y_h"], ["erf"], name="an_erf"))
    model.graph.node.append(helper.make_node("Gelu", ["erf"], ["gelu"], name="foreign", domain="com.microsoft"))
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    model.graph.output[0].name = "erf"
    before = model.SerializeToString(deterministic=True)
    report = rnn_lower.lint(model, "tidl")
    assert model.SerializeToString(deterministic=True) == before
    found = {finding.node: finding for finding in report.findings}
    assert not report.ok
    assert set(found) == {"node", "an_erf", "foreign"}
    assert found["node"].lowering_mends
    assert "does not support operator GRU" in found["node"].rule
    assert "does not list this operator" in found["an_erf"].rule
    lowered = rnn_lower.lower(model, target="tidl")
    assert {finding.node for finding in rnn_lower.lint(lowered, "tidl").findings} == {"an_erf", "foreign"}
    onnx.save(model, tmp_path / "in.onnx")
    assert cli.main(["lint", str(tmp_path / "in.onnx"), "--target", "tidl"]) == cli.DIFFERENT
    assert (
        "tidl (documented) does not support 3 of 3 nodes; lowering replaces 1 of these nodes" in capsys.readouterr().out
    )
    assert cli.main(["lint", str(tmp_path / "in.onnx"), "--target", "tidl", "--json"]) == cli.DIFFERENT
    told = json.loads(capsys.readouterr().out)
    assert (told["schema"], told["ok"], len(told["findings"])) == (1, False, 3)


LISTS = """<ir_version: 8, opset_import: ["" : 17]> g (float[4,3] x) => (float[N,3] y)
    <int64 zero = {0}, bool yes = {1}> {
    start = Gather <axis = 0> (x, zero) some = SequenceConstruct (start) none = SequenceEmpty <dtype = 1> ()
    size = Shape (x) steps = Gather (size, zero)
    grown = Loop <body = step (int64 i, bool go, seq(float[3]) held) => (bool on, seq(float[3]) more) {
        on = Identity (go) row = Gather <axis = 0> (x, i) more = SequenceInsert (held, row) }> (steps, yes, FIRST)
    y = ConcatFromSequence <axis = 0, new_axis = 1> (grown) }"""

BRANCHES = """<ir_version: 8, opset_import: ["" : 14]> g (float[2,16,6] x, int64[1] rate) => (float[2,96] y)
    <float[16,16,3] k, int64[2] shape = {2, 96}, int64[1] high = {16000}> {
    c = Equal (rate, high)
    r = If <then_branch = a () => (float[2,16,6] t) { w = Conv <kernel_shape = [3], pads = [1, 1]> (x, k) t = LAST (w) },
            else_branch = b () => (float[2,16,6] e) { e = Sigmoid (x) }> (c)
    y = Reshape (r, shape) }"""


@pytest.mark.parametrize(
    ("name", "text", "good", "bad"),
    [("openvino", LISTS, ("FIRST", "none"), ("FIRST", "some")),
     ("opencv", BRANCHES, ("LAST", "Identity"), ("LAST", "Relu"))],
)  # fmt: skip
def test_bodies_that_a_runtime_computes_wrongly_are_named(name, text, good, bad):
    """The runtime is right where lint says nothing, and wrong where it does, without an error."""
    rng = np.random.default_rng(0)
    k, rows, frames = (rng.standard_normal(n).astype(np.float32) for n in ((16, 16, 3), (4, 3), (2, 16, 6)))
    is_list = name == "openvino"
    feeds = {"x": rows} if is_list else {"x": frames, "rate": np.array([16000])}
    models = [onnx.parser.parse_model(text.replace(old, new)) for old, new in (good, bad)]
    for model in models:
        model.graph.initializer.extend([] if is_list else [numpy_helper.from_array(k, "k")])
    rules = [[finding.rule for finding in rnn_lower.lint(model, name).findings] for model in models]
    assert [any("with lists" in rule or "branches" in rule for rule in each) for each in rules] == [False, True]
    if missing(name):
        pytest.skip(missing(name))
    results = [(*run_onnxruntime(model, feeds), *RUNNERS[name][1](model, feeds)) for model in models]
    assert [a.shape == b.shape and np.allclose(a, b, atol=1e-4) for a, b in results] == [True, False]


@pytest.mark.parametrize("zero_point", [0, 3])
def test_zero_points_that_openvino_drops_are_named(zero_point):
    """Those of a bias, if the model also has a QuantizeLinear."""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 13]> g (float[T,2,4] x) => (float[T,1,2,3] y)
        <float scale = {{0.01}}, int8 zero = {{{zero_point}}}, float step = {{0.03}}, uint8 half = {{128}}> {{
        q = QuantizeLinear (x, step, half) d = DequantizeLinear (q, step, half) B = DequantizeLinear (b, scale, zero)
        h = LSTM <hidden_size = 3> (d, W, R, B)
        r = QuantizeLinear (h, step, half) e = DequantizeLinear (r, step, half) y = Relu (e) }}""")
    rng = np.random.default_rng(8)
    tensors = {"b": rng.integers(-90, 90, (1, 24)).astype(np.int8)}
    tensors |= {name: rng.normal(0, 0.5, (1, 12, n)).astype(np.float32) for name, n in (("W", 4), ("R", 3))}
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in tensors.items())
    lowered = rnn_lower.lower(model, target="openvino")
    rules = [finding.rule for finding in rnn_lower.lint(lowered, "openvino").findings]
    assert [("zero point" in rule) for rule in rules] == [True] * bool(zero_point)
    if missing("openvino"):
        pytest.skip(missing("openvino"))
    feeds = {"x": 2 * rng.standard_normal((12, 2, 4)).astype(np.float32)}
    wanted, found = run_onnxruntime(lowered, feeds)[0], RUNNERS["openvino"][1](lowered, feeds)[0]
    assert (np.abs(wanted - found).max() > 0.1) == bool(zero_point)


def dual_path(steps: int | str) -> onnx.ModelProto:
    """A Scan over time, whose body runs a GRU over frequencies and carries a mean."""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 15]>
        g (float[4,{steps},2,3] x, float[{steps},1,2,4] m) => (float[{steps},1,2,4] n, float[4,{steps},1,2,4] y) {{
        n, y = Scan <num_scan_inputs = 1, body = b (float[{steps},1,2,4] s, float[{steps},2,3] f)
            => (float[{steps},1,2,4] t, float[{steps},1,2,4] u) {{
            h = GRU <hidden_size = 4> (f, W, R) a = Add (s, h) t = Mul (a, half) u = Identity (t) }}> (m, x) }}""")
    rng, half = np.random.default_rng(0), numpy_helper.from_array(np.float32(0.5), "half")
    tensors = {name: rng.normal(0, 0.5, (1, 12, n)).astype(np.float32) for name, n in (("W", 3), ("R", 4))}
    model.graph.initializer.extend([*(numpy_helper.from_array(a, name) for name, a in tensors.items()), half])
    return model


@pytest.mark.parametrize("target", ["tract", "openvino"])
def test_a_scan_in_the_body_of_a_scan(target):
    """tract runs it with wrong numbers, and OpenVINO does not load it."""
    model, rng = dual_path(5), np.random.default_rng(1)
    nested = rnn_lower.lower(model, form="scan")
    (finding,) = rnn_lower.lint(nested, target).findings
    assert "without another one in its body" in finding.rule
    with pytest.raises(RnnLowerError, match="does not support a Scan in the body of another one"):
        rnn_lower.lower(model, target=target, form="scan")
    if target == "tract":
        with pytest.raises(RnnLowerError, match=r"needs a known sequence length.*dims="):
            rnn_lower.lower(dual_path("F"), target=target)
    lowered = rnn_lower.lower(model, target=target)
    assert not rnn_lower.lint(lowered, target).findings
    assert rnn_lower.prove(model, lowered)
    if missing(target):
        pytest.skip(missing(target))
    feeds = {"x": rng.normal(size=(4, 5, 2, 3)), "m": rng.normal(size=(5, 1, 2, 4))}
    feeds = {name: array.astype(np.float32) for name, array in feeds.items()}
    wanted = run_onnxruntime(model, feeds)
    for a, b in zip(wanted, RUNNERS[target][1](lowered, feeds), strict=True):
        assert np.allclose(a, b, atol=1e-5)
    try:
        wrong = RUNNERS[target][1](nested, feeds)
    except Exception:  # each runtime has its own
        wrong = [np.full_like(each, np.inf) for each in wanted]
    assert np.abs(wanted[1] - wrong[1]).max() > 1e-3


@pytest.mark.parametrize(
    ("kernel", "groups", "channels"),
    [((9,), 1, 4), ((1, 9), 1, 4), ((3, 3), 1, 4), ((7,), 1, 4), ((9,), 4, 4), ((9,), 1, 1)],
)
def test_kernels_that_opencv_computes_wrongly(kernel, groups, channels):
    """It seems to take kernels of nine elements for 3 x 3, unless each channel is on its own."""
    rank, rng = len(kernel), np.random.default_rng(0)
    size, pads = [1, channels, *[20] * rank], [*(k // 2 for k in kernel)] * 2
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=pads, group=groups)
    weight = rng.normal(size=(4, channels // groups, *kernel)).astype(np.float32)
    result = helper.make_tensor_value_info("y", 1, [1, 4, *size[2:]])
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", 1, size)], [result], [numpy_helper.from_array(weight, "w")]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    is_wrong = np.prod(kernel) == 9 and kernel != (3, 3) and groups == 1
    assert bool(rnn_lower.lint(model, "opencv").findings) == is_wrong
    if missing("opencv"):
        pytest.skip(missing("opencv"))
    feeds = {"x": rng.normal(size=size).astype(np.float32)}
    (wanted,), (found,) = run_onnxruntime(model, feeds), RUNNERS["opencv"][1](model, feeds)
    assert np.allclose(wanted, found, atol=1e-4) != is_wrong


def test_lint_says_why_lowering_does_not_mend(tmp_path):
    report = rnn_lower.lint(build(Case("LSTM", 17, dynamic=True))[0], "tidl")
    (finding,) = report.findings
    assert not finding.lowering_mends
    assert "needs a known sequence length" in finding.mend


def counting(trips: onnx.TensorProto | None, ends_early: bool = False, told: bool = True) -> onnx.ModelProto:
    """A Loop that stacks its trips, an input or a constant, beside a GRU. told: whether the first condition is a constant."""
    model, _ = build(Case("GRU", 17, T=2, N=1, outputs=("Y_h",)))
    boolean, integer = onnx.TensorProto.BOOL, onnx.TensorProto.INT64
    nodes = [helper.make_node("Identity", ["t"], ["row"], name="count")]
    if ends_early:
        nodes.append(helper.make_node("Less", ["t", "two"], ["still"], name="ends"))
    else:
        nodes.append(helper.make_node("Identity", ["go"], ["still"], name="goes_on"))
    body = helper.make_graph(
        nodes, "body", [helper.make_tensor_value_info("t", integer, []), helper.make_tensor_value_info("go", boolean, [])],
        [helper.make_tensor_value_info("still", boolean, []), helper.make_tensor_value_info("row", integer, [])],
    )  # fmt: skip
    model.graph.initializer.append(helper.make_tensor("two", integer, [], [2]))
    if trips is None:
        model.graph.input.append(helper.make_tensor_value_info("trips", integer, []))
    else:
        trips.name = "trips"
        model.graph.initializer.append(trips)
    if told:
        model.graph.initializer.append(helper.make_tensor("first", boolean, [], [True]))
    else:
        model.graph.input.append(helper.make_tensor_value_info("first", boolean, []))
    model.graph.node.append(helper.make_node("Loop", ["trips", "first"], ["rows"], name="loop", body=body))
    model.graph.node.append(helper.make_node("Neg", ["rows"], ["Z"], name="reads"))
    model.graph.output.append(helper.make_tensor_value_info("Z", integer, None))
    return model


@pytest.fixture
def static(tmp_path):
    path = tmp_path / "static.toml"
    path.write_text(
        'summary = "known sizes"\nstatus = "documented"\nsource = "page 1"\nforms = ["scan", "loop"]\nstatic = true\n'
    )
    return str(path)


@pytest.mark.parametrize(
    ("ends_early", "told", "found"),
    [(False, True, set()), (True, True, {"loop", "reads"}), (False, False, {"loop", "reads"})],
)
def test_a_loop_is_as_long_as_it_has_trips_where_nothing_else_ends_it(ends_early, told, found, static):
    model = counting(helper.make_tensor("", onnx.TensorProto.INT64, [], [4]), ends_early, told)
    report = rnn_lower.lint(model, static)
    assert {finding.node for finding in report.findings} - {"node"} == found


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("FLOAT", np.nan),
        ("FLOAT", np.inf),
        ("FLOAT", 4.0),
        ("STRING", "a"),
        ("COMPLEX64", 1j),
        ("INT32", 4),
        ("INT4", 4),
    ],
)
def test_trips_of_another_type_are_no_number_of_them(kind, value, static):
    model = counting(helper.make_tensor("", getattr(onnx.TensorProto, kind), [], [value]))
    assert "loop" in {finding.node for finding in rnn_lower.lint(model, static).findings}


@pytest.mark.parametrize("name", ["value_float", "value_floats", "value_int", "value_ints"])
@pytest.mark.parametrize(
    "held", [{"s": b"a"}, {"strings": [b"a"]}, {"f": 1.5}, {"floats": [1.5]}], ids=lambda one: next(iter(one))
)
def test_a_constant_of_another_kind_than_its_name_says_is_none(name, held, static):
    model, _ = build(Case("GRU", 17, T=2, N=1, outputs=("Y_h",)))
    constant = helper.make_node("Constant", [], ["sizes"], name="constant")
    kinds = {"s": "STRING", "strings": "STRINGS", "f": "FLOAT", "floats": "FLOATS"}
    constant.attribute.append(onnx.AttributeProto(name=name, type=kinds[next(iter(held))], **held))
    model.graph.node.extend([constant, helper.make_node("Reshape", ["Y_h", "sizes"], ["Z"], name="reads")])
    model.graph.output.append(helper.make_tensor_value_info("Z", 1, None))
    for work in (rnn_lower.lower, rnn_lower.inspect, lambda model: rnn_lower.lint(model, static), rnn_lower.stream):
        with contextlib.suppress(RnnLowerError):
            work(model)


@pytest.mark.parametrize("feature", ["LSTM everything", "GRU plain", "RNN Elu"])
def test_what_was_lowered_passes(feature, tmp_path, capsys):
    case = FEATURES[feature].replace(N=1, lengths=None)
    model, feeds = build(case)
    path = tmp_path / "mine.toml"
    path.write_text(
        'summary = "a straight line"\nstatus = "documented"\nsource = "page 1"\nforms = ["unroll"]\nstatic = true\n'
        'avoid = ["Split", "Squeeze", "Where"]\nrank = 4\n', encoding="utf-8"
    )  # fmt: skip
    lowered = rnn_lower.lower(model, target=str(path))
    assert rnn_lower.lint(lowered, str(path)).ok
    assert [finding.op for finding in rnn_lower.lint(model, str(path)).findings] == [case.op]
    onnx.save(lowered, tmp_path / "out.onnx")
    assert cli.main(["lint", str(tmp_path / "out.onnx"), "--target", str(path)]) == cli.DONE
    assert "all " in capsys.readouterr().out
    run_onnxruntime(lowered, feeds)


@pytest.mark.parametrize(
    ("target", "named"), [("onnxruntime", False), ("tidl", True), ("rknn", True), ("opencv", True)]
)
def test_a_loop_of_the_model_is_named(target, named, caplog, tmp_path, capsys):
    """A target that runs no Loop cannot run one whose trips are counted by an input, whatever is lowered."""
    model = counting(None)
    findings = rnn_lower.lint(model, target).findings
    assert [one.node for one in findings if one.op == "Loop"] == (["loop"] if named else [])
    with caplog.at_level("WARNING", "rnn_lower"):
        rnn_lower.lower(model, target=target, select=lambda node: False)
    lines = [record.message for record in caplog.records if "does not support" in record.message]
    assert len(lines) == named
    assert all("Loop 'loop'" in line and f"target {target}" in line for line in lines)
    assert [one.message for one in caplog.records if "trip count is unknown" in one.message] or not named


@pytest.mark.parametrize("target", ["tidl", "rknn", "opencv"])
def test_a_loop_whose_steps_are_counted_is_unrolled(target):
    model = counting(helper.make_tensor("", onnx.TensorProto.INT64, [], [4]))
    lowered = rnn_lower.lower(model, target=target)
    assert not [node for node in lowered.graph.node if node.op_type == "Loop"]
    assert rnn_lower.prove(model, lowered).ok


@pytest.mark.parametrize("target", ["tract", "openvino", "opencv", "onnxruntime", None])
@pytest.mark.parametrize("name", ["W", "R"])
def test_nodes_that_read_a_sparse_initializer_are_named(name, target, caplog):
    model, feeds = build(Case("GRU", 17, N=2, optional=("B",), outputs=("Y",)))
    (dense,) = [tensor for tensor in model.graph.initializer if tensor.name == name]
    model.graph.initializer.remove(dense)
    numbers = numpy_helper.to_array(dense)
    values = numpy_helper.from_array(numbers.ravel(), name)
    places = numpy_helper.from_array(np.arange(numbers.size))
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, numbers.shape))
    with caplog.at_level("WARNING", "rnn_lower"):
        lowered = rnn_lower.lower(model, target=target)
    (wanted,), (actual,) = run_onnxruntime(model, feeds), run_onnxruntime(lowered, feeds)
    np.testing.assert_allclose(actual, wanted, rtol=0, atol=1e-5)
    lacks = target is not None and not TARGETS[target].sparse
    assert ("does not support 1 remaining node" in caplog.text) == lacks
    if target is not None:
        for each in (model, lowered):
            rules = [one.rule for one in rnn_lower.lint(each, target).findings]
            assert any("runs sparse initializers, of which this node reads one" in rule for rule in rules) == lacks


@pytest.mark.parametrize("target", ["opencv", "tract"])
@pytest.mark.parametrize("rank", [None, 3])
def test_outputs_that_opencv_does_not_load(rank, target, caplog):
    model, _ = build(Case("GRU", 17, N=2, outputs=("Y_h",)))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("Y_h", onnx.TensorProto.FLOAT, None))
    if rank is not None:
        model.graph.output[0].CopyFrom(helper.make_tensor_value_info("Y_h", onnx.TensorProto.FLOAT, [None] * rank))
    with caplog.at_level("WARNING", "rnn_lower"):
        lowered = rnn_lower.lower(model, target=target)
    rules = " ".join(finding.rule for finding in rnn_lower.lint(lowered, target).findings)
    named = target == "opencv" and rank is None
    assert ("loads no model whose output 'Y_h' declares no shape" in rules) == named
    assert ("does not support 1 remaining node" in caplog.text) == named


def test_outputs_of_branches_that_opencv_does_not_load(caplog):
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]> g (float[4,1,2] x, bool c) => (float[4,1,1,2] y)
        <float[1,2,2] W = {0.1, 0.2, 0.3, 0.4}, float[1,2,2] R = {0.5, -0.6, 0.7, 0.8}, int64[1] one = {1}> {
        y = If (c) <then_branch = t () => (float[4,1,1,2] a) { a = RNN <hidden_size = 2> (x, W, R) },
                    else_branch = e () => (float[4,1,1,2] b) { b = Unsqueeze (x, one) }> }""")
    assert rnn_lower.lint(rnn_lower.lower(model, target="opencv"), "opencv").ok
    for attribute in model.graph.node[0].attribute:
        attribute.g.output[0].type.tensor_type.ClearField("shape")
    rules = {finding.rule for finding in rnn_lower.lint(model, "opencv").findings}
    assert "opencv loads no model whose output 'b' declares no shape" in rules


@pytest.mark.parametrize(
    ("target", "node"),
    [
        ("onnx2torch", "QuantizeLinear (x, scale, zero)"), ("onnx2torch", "Reshape <allowzero = 1> (x, shape)"),
        ("opencv", 'Resize <mode = "nearest"> (x, none, factors)'), ("opencv", "MatMul (pages, cubes)"),
        ("opencv", "MatMul (x, line)"), ("opencv", 'Conv <auto_pad = "SAME_LOWER"> (x, kernel)'),
        ("opencv", "ReverseSequence <time_axis = 2, batch_axis = 1> (x, lengths)"),
        ("tract", "ReverseSequence <time_axis = 2, batch_axis = 1> (x, lengths)"), ("tract", "Pad (x, crop)"),
        ("openvino", "ReduceL1 <axes = [2]> (x)"), ("openvino", "ReduceLogSumExp <axes = [2]> (x)"),
        ("openvino", "SplitToSequence <axis = 2> (x)"), ("opencv", "PRelu (x, slope)"), ("tract", "TopK (x, count)"),
        ("opencv", 'Conv <auto_pad = "SAME_UPPER", strides = [2]> (x, kernel)'), ("tract", "Celu <alpha = 0.5> (x)"),
        ("opencv", 'MaxPool <auto_pad = "SAME_LOWER", kernel_shape = [3], strides = [2]> (x)'),
        ("onnx2torch", 'Conv <auto_pad = "SAME_UPPER"> (x, kernel)'), ("onnx2torch", "CumSum (x, one)"),
        ("openvino", 'LRN <size = 3, bias = 1.5> (page)'),
    ],
)  # fmt: skip
def test_nodes_that_these_runtimes_lack(target, node):
    """Some fail, some compute other numbers."""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]> g (float[1,2,4] x, float[2,4,5,3] pages, float[4] slope, int64[1] count,
        float[1,2,3,4] page) => (y)
        <float scale = {{1}}, uint8 zero = {{0}}, int64[3] shape = {{1, 4, 2}}, float[0] none = {{}},
         float[3] factors = {{1, 1, 2}}, float[4] line = {{1, 2, 3, 4}}, float[1,2,2] kernel = {{1, 2, 3, 4}},
         int64[2] lengths = {{3, 4}}, int64 one = {{1}}, int64[6] crop = {{0, 0, 0, 0, 0, -1}}, float[4,3,1] cubes =
         {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}}> {{ y = {node} }}""")
    (finding,) = (each for each in rnn_lower.lint(model, target).findings if "declares no shape" not in each.rule)
    assert finding.op == node.split()[0]


@pytest.mark.parametrize(("target", "op"), [
    ("opencv", "Softmax"), ("opencv", "LogSoftmax"), ("opencv", "Hardmax"), ("openvino", "Softmax"), ("tract", "Softmax"),
])  # fmt: skip
@pytest.mark.parametrize(("opset", "axis"), [(11, ""), (11, "<axis = 0>"), (11, "<axis = 2>"), (11, "<axis = -1>"),
                                             (13, "<axis = 1>")])  # fmt: skip
def test_softmax_over_several_axes(target, op, opset, axis):
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : {opset}]> g (float[1,2,4] x) => (float[1,2,4] y)
        {{ y = {op} {axis} (x) }}""")
    lacks = target != "tract" and axis in ("", "<axis = 0>")
    assert rnn_lower.lint(model, target).ok != lacks
    if target in RUNNERS and not missing(target) and not lacks:
        feeds = {"x": np.array([[[1, 2, 3, 4], [4, 3, 2, 0]]], np.float32)}
        (wanted,) = run_onnxruntime(model, feeds)
        np.testing.assert_allclose(RUNNERS[target][1](model, feeds)[0], wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("body", "is_right"), [
    ("m = Mul (a, h) n = Add (m, b)", False), ("m = Mul (h, a) n = Add (m, b)", True),
    ("m = Mul (a, b) n = Add (h, m)", False), ("k = Identity (a) n = Max (k, h)", False),
    ("m = Sub (a, b) n = Add (m, h)", False), ("n = Sub (a, h)", True), ("m = Tanh (a) n = Add (m, h)", True),
    ("m = Sigmoid (a) k = Mul (m, h) n = Add (k, b)", True),
])  # fmt: skip
def test_a_scan_that_openvino_overwrites(body, is_right):
    """Linear recurrences, as in Mamba, which it computes wrongly if a product begins with an element of the sequence."""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]> g (float[5,2,3] A, float[5,2,3] B) => (float[2,3] last, float[5,2,3] Y)
        <float[2,3] zero = {{0, 0, 0, 0, 0, 0}}> {{ last, Y = Scan <num_scan_inputs = 2, body = step (float[2,3] h, float[2,3] a, float[2,3] b)
        => (float[2,3] n, float[2,3] y) {{ {body} y = Identity (n) }}> (zero, A, B) }}""")
    assert rnn_lower.lint(model, target="openvino").ok == is_right
    straight = rnn_lower.lower(model, target="openvino", loops=True)
    for each in [model] if is_right else [straight]:
        assert rnn_lower.lint(each, target="openvino").ok
        if not missing("openvino"):
            feeds = {name: np.random.default_rng(0).uniform(0.5, 1.5, (5, 2, 3)).astype(np.float32) for name in "AB"}
            for found, wanted in zip(RUNNERS["openvino"][1](each, feeds), run_onnxruntime(model, feeds), strict=True):
                np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)


def test_a_node_that_could_be_replaced_changes_no_declaration():
    """`lower` tries out which nodes `--legalize-all` would replace."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]> g (float[4,1,3] x, float[4,1,3] z) => (float[4,1,1,3] Y, float[4,1,3] y)
        <float[1,3,3] W = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9}, int64[1] one = {1}> {
        Y = RNN <hidden_size = 3> (x, W, W) s = Squeeze (z, one) u = Unsqueeze (s, one) y = Identity (u) }""")
    lowered = rnn_lower.lower(model, target="horizon-rdk")
    assert not {value.name for value in lowered.graph.value_info if value.type.tensor_type.HasField("shape")} & {
        "s",
        "u",
    }
    assert rnn_lower.prove(model, lowered)


@pytest.mark.parametrize(("size", "named"), [("T", False), ("?", True), (None, True), (4, False)])
def test_inputs_of_sizes_without_a_name(size, named):
    model, _ = build(Case("GRU", 17, T=4, N=2, outputs=("Y",)))
    dim = model.graph.input[0].type.tensor_type.shape.dim[0]
    dim.Clear()
    if size is not None:
        setattr(dim, "dim_value" if isinstance(size, int) else "dim_param", size)
    for target in ("tract", "openvino"):
        findings = rnn_lower.lint(rnn_lower.lower(model, target=target), target).findings
        assert ["has a free size without a name" in finding.rule for finding in findings] == [True] * (
            named and target == "tract"
        )


def test_nothing_is_said_without_a_target(caplog):
    with caplog.at_level("WARNING", "rnn_lower"):
        rnn_lower.lower(counting(helper.make_tensor("", onnx.TensorProto.INT64, [], [4])))
    assert not caplog.records


@pytest.mark.parametrize("target", ["rknn", "portable", "openvino", "opencv"])
def test_what_lower_wrote_for_a_target_passes(target, tmp_path, capsys):
    """A dynamic model is refused by both alike; with its sizes both serve, computed sizes of Reshapes included."""
    source, out = tmp_path / "m.onnx", tmp_path / "out.onnx"
    onnx.save(two_layers(), source)
    sizes = ["--dim", "time=3", "--dim", "batch=1"]
    dynamic = ["rknn", "portable", "opencv"]
    assert cli.main(["lint", str(source), "--target", target]) == (1 if target in dynamic else 0)
    assert cli.main(["lower", str(source), "-o", str(out), "--target", target]) == (2 if target in dynamic else 0)
    assert cli.main(["lower", str(source), "-o", str(out), "--target", target, *sizes]) == 0
    assert cli.main(["lint", str(out), "--target", target]) == 0
    capsys.readouterr()
    assert cli.main(["lint", str(source), "--target", target, *sizes, "--json"]) in (0, 1)
    told = json.loads(capsys.readouterr().out)
    assert all(one["lowering_mends"] for one in told["findings"])


@pytest.mark.parametrize("target", ["tract", "openvino", "opencv", "tidl", "onnxruntime", "onnx-reference", None])
def test_functions_with_recurrent_nodes_are_inlined_where_no_test_ran_a_call(target, caplog):
    model, feeds = build(Case("GRU", 17, N=1, place="function", outputs=("Y",)))
    runs = target is None or TARGETS[target].functions
    with caplog.at_level("WARNING", "rnn_lower"):
        lowered = rnn_lower.lower(model, target=target)
    assert ("inlined functions" in caplog.text) == (not runs)
    assert bool(lowered.functions) == runs
    assert rnn_lower.prove(model, lowered).ok
    if target is None:
        return
    (finding,) = [one for one in rnn_lower.lint(model, target).findings if one.op not in OP_TYPES] or [None]
    assert (finding is None) == runs
    assert finding is None or (finding.mend, finding.lowering_mends) == (lint.INLINED, True)
    assert rnn_lower.lint(lowered, target).ok
    if target in RUNNERS and not missing(target):
        (wanted,) = run_onnxruntime(model, feeds)
        np.testing.assert_allclose(RUNNERS[target][1](lowered, feeds)[0], wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("inner", [
    "h = own.Inner (x, w, r)",
    "c = Constant <value = bool {1}> () h = If (c) <then_branch = one () => (a) {a = RNN <hidden_size = 3> (x, w, r)},"
    " else_branch = other () => (b) {b = RNN <hidden_size = 3> (x, w, r)}>",
])  # fmt: skip
def test_functions_with_recurrent_nodes_further_inside_are_inlined(inner):
    model = onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["": 17, "own": 1]>
        g (float[2,1,3] X, float[1,3,3] W) => (float[2,1,1,3] Y) {{ Y = own.Outer (X, W, W) }}
        <domain: "own", opset_import: ["": 17]> Inner (x, w, r) => (y) {{ y = RNN <hidden_size = 3> (x, w, r) }}
        <domain: "own", opset_import: ["": 17, "own": 1]> Outer (x, w, r) => (h) {{ {inner} }}
    """)
    findings = [one for one in rnn_lower.lint(model, "tract").findings if one.op == "Outer"]
    assert [(one.mend, one.lowering_mends) for one in findings] == [(lint.INLINED, True)]
    assert not any(node.op_type == "Outer" for node in rnn_lower.lower(model, target="tract").graph.node)


def test_calls_of_other_functions_are_named_where_no_test_ran_one(caplog):
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["": 17, "own": 1]>
        g (float[2,3] X) => (float[2,3] Y) { Y = own.Twice (X) }
        <domain: "own", opset_import: ["": 17]> Twice (x) => (y) { y = Add (x, x) }
    """)
    with caplog.at_level("WARNING", "rnn_lower"):
        lowered = rnn_lower.lower(model, target="tract")
    assert "does not support 1 remaining node: 1 Twice" in caplog.text
    (finding,) = rnn_lower.lint(lowered, "tract").findings
    assert finding.mend == "onnx.inliner.inline_local_functions inlines it"
    assert rnn_lower.lint(onnx.inliner.inline_local_functions(model), "tract").ok


@pytest.mark.parametrize(
    ("nodes", "named"),
    [
        ("v, y = TopK (x, one)", ["TopK"]), ("v, i = TopK (x, one) y = Identity (i)", []),
        ("l, y, h = LSTM <hidden_size = 1> (x3, w, r)", ["LSTM"]), ("z = Relu (x)", ["input"]),
    ],
)  # fmt: skip
def test_outputs_that_onnx2torch_does_not_return(nodes, named):
    """It returns all outputs of a node as one."""
    output = "x" if named == ["input"] else "y"
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]> g (float[2,4] x, float[1,1,4] x3) => ({output})
        <int64[1] one = {{1}}, float[1,4,4] w = {{1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4}}, float[1,4,1] r = {{1, 2, 3, 4}}> {{ {nodes} }}""")
    findings = rnn_lower.lint(model, target="onnx2torch").findings
    assert [finding.op for finding in findings] == named
    assert named in ([], ["LSTM"]) or findings[0].rule.startswith(f"onnx2torch does not return output '{output}'")


@pytest.mark.parametrize(
    ("nodes", "is_lost"),
    [
        ("y = Shape (x)", True), ("s = Shape (x) y = Add (s, l)", True), ("s = Shape (x) y = Abs (s)", False),
        ("y = Add (l, l)", False), ("s = Shape (x) c = Cast <to = 6> (s) y = Cast <to = 7> (c)", True),
    ],
)  # fmt: skip
def test_outputs_that_tract_does_not_return(nodes, is_lost):
    """It computes with sizes in a type of its own, which its interface does not give to callers."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]> g (float[n,4] x, int64[2] l) => (int64[2] y) {{ {nodes} }}"""
    )
    assert rnn_lower.lint(model, target="tract").ok != is_lost
    if missing("tract") is None and not is_lost:
        feeds = {"x": np.ones((3, 4), np.float32), "l": np.array([1, 2])}
        (found,) = RUNNERS["tract"][1](model, feeds)
        np.testing.assert_array_equal(found, run_onnxruntime(model, feeds)[0])


@pytest.mark.parametrize("node", ["ConvTranspose (x, kernel)", "Slice (x, last, first, axis, back)"])
def test_nodes_that_the_classic_engine_of_opencv_lacks(node):
    """Transposed convolutions of rank 3 compute something else; what runs backwards is not loaded."""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]> g (float[1,2,4] x) => (float[1,A,B] y)
        <float[2,1,2] kernel = {{1, 2, 3, 4}}, int64[1] last = {{-1}}, int64[1] first = {{-9}}, int64[1] axis = {{2}},
         int64[1] back = {{-1}}> {{ y = {node} }}""")
    (finding,) = rnn_lower.lint(model, "opencv@classic").findings
    assert finding.op == node.split()[0]
