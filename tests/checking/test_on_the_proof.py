"""The check proves first, runs what is not proved with lengths that matter, and says what it has compared."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from judge import check_by_running, run_onnxruntime
from onenode import Case, build
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import Fail
from paths import ROOT

import rnn_lower
from rnn_lower import api, cli
from rnn_lower.checking.compare import Comparison, compare
from rnn_lower.ir import protobuf

HIDDEN = 400
"""The weights are larger than 2 MB."""


def with_lengths(nodes: list[onnx.NodeProto], given: onnx.ValueInfoProto, hidden: int = HIDDEN) -> onnx.ModelProto:
    """A GRU whose lengths come from nodes as an int64 `lengths`, by way of a Cast."""
    rng = np.random.default_rng(0)
    weights = {"W": rng.normal(0, 0.05, (1, 3 * hidden, 4)), "R": rng.normal(0, 0.05, (1, 3 * hidden, hidden))}
    tensors = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()]
    tensors += [numpy_helper.from_array(np.array([1]), "one"), numpy_helper.from_array(np.array([3]), "rows")]
    gru = helper.make_node("GRU", ["X", "W", "R", "", "lens"], ["", "Y_h"], name="gru", hidden_size=hidden)
    cast = helper.make_node("Cast", ["lengths"], ["lens"], to=TensorProto.INT32)
    graph = helper.make_graph(
        [*nodes, cast, gru], "g", [helper.make_tensor_value_info("X", 1, ["T", 3, 4]), given],
        [helper.make_tensor_value_info("Y_h", 1, None)], tensors,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def vector(dtype: int = TensorProto.INT64) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info("len", dtype, [3])


def mask(dtype: int = TensorProto.INT64) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info("len", dtype, [3, "T"])


ROWS = helper.make_node("Constant", [], ["order"], value=numpy_helper.from_array(np.array([2, 0, 1])))
WAYS = {
    "TopK": ([helper.make_node("TopK", ["len", "rows"], ["lengths", "order"])], vector()),
    "Gather": ([ROWS, helper.make_node("Gather", ["len", "order"], ["lengths"])], vector()),
    "TopK, Gather": (
        [
            helper.make_node("TopK", ["len", "rows"], ["sorted", "order"]),
            helper.make_node("Gather", ["len", "order"], ["lengths"]),
        ],
        vector(),
    ),
    "Min": ([
        helper.make_node("Shape", ["X"], ["shape"], end=1),
        helper.make_node("Min", ["len", "shape"], ["lengths"]),
    ], vector()),
    "ReduceSum": ([helper.make_node("ReduceSum", ["len", "one"], ["lengths"], keepdims=0)], mask()),
    "ReduceSum of a Cast": ([
        helper.make_node("Cast", ["len"], ["whole"], to=TensorProto.INT64),
        helper.make_node("ReduceSum", ["whole", "one"], ["lengths"], keepdims=0),
    ], mask(TensorProto.BOOL)),
    "ReduceSum of floats": ([
        helper.make_node("ReduceSum", ["len", "one"], ["sum"], keepdims=0),
        helper.make_node("Cast", ["sum"], ["lengths"], to=TensorProto.INT64),
    ], mask(TensorProto.FLOAT)),
    "ScatterElements": ([
        helper.make_node("Constant", [], ["zeros"], value=numpy_helper.from_array(np.zeros(3, np.int64))),
        ROWS,
        helper.make_node("ScatterElements", ["zeros", "order", "len"], ["lengths"]),
    ], vector()),
}  # fmt: skip


def replace_recurrent_weights(lowered: onnx.ModelProto) -> None:
    """Every constant as large as a part of R."""
    changed = 0
    for tensor in protobuf.tensors(lowered):
        if tensor.data_type == TensorProto.FLOAT and len(tensor.dims) == 2 and tensor.dims[0] > 4:
            tensor.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(tensor), tensor.name))
            changed += 1
    assert changed


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_replaced_weights_are_seen_whatever_computes_the_lengths(way, exact):
    nodes, given = WAYS[way]
    model = with_lengths(list(nodes), given, HIDDEN if exact else 8)
    lowered = rnn_lower.lower(model)
    right = check_by_running(model, lowered, exact=exact)
    assert right.ok, right.verdict
    assert right.proved == (("gru",) if exact else ())
    replace_recurrent_weights(lowered)
    wrong = check_by_running(model, lowered, exact=exact)
    assert not wrong.ok
    if not exact:
        assert not wrong.outputs[0].ok, "rows of several steps have run"


def test_nodes_in_branches_that_are_folded_away_are_found_again():
    """Folding renames what it takes out of a branch; what it drops cannot run."""
    model, _ = build(Case("GRU", 17, place="if"))
    (choice,) = [node for node in model.graph.node if node.op_type == "If"]
    model.graph.node.insert(0, helper.make_node("Equal", ["zero", "zero"], ["chosen"]))
    model.graph.initializer.append(numpy_helper.from_array(np.array(0), "zero"))
    choice.input[0] = "chosen"
    model.graph.node.append(helper.make_node("NonZero", ["X"], ["places"]))  # whose size no proof of the whole knows
    model.graph.output.append(helper.make_tensor_value_info("places", TensorProto.INT64, None))
    lowered = rnn_lower.lower(model, fold=True)
    assert not any(node.op_type == "If" for node in lowered.graph.node), "the branch is in the main graph"
    report = rnn_lower.check(model, lowered)
    assert report.ok, report.verdict
    assert report.runs_of_unproved == (), "each node is proved"


def test_copies_of_an_unrolled_node_count_for_no_other_node():
    """The node of a branch that no sample reaches is out of scope, and has other weights."""
    weights = {"W": (1, 9, 3), "R": (1, 9, 3), "W2": (1, 9, 3), "R2": (1, 9, 3)}
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]> g (float[4,2,3] X) => (float[4,2,3] Z)
        <int64 trips = {2}, bool yes = {1}, int64[1] one = {1}, float limit = {1e9}> {
        L = Loop (trips, yes, X) <body = body (int64 i, bool c, float[4,2,3] s) => (bool d, float[4,2,3] u) {
            Y = GRU <hidden_size = 3> (s, W, R) u = Squeeze (Y, one) d = Identity (c) }>
        most = ReduceMax <keepdims = 0> (X) is_large = Greater (most, limit)
        Z = If (is_large) <then_branch = t () => (float[4,2,3] a) { Y2 = GRU <hidden_size = 3> (L, W2, R2) a = Squeeze (Y2, one) },
                           else_branch = e () => (float[4,2,3] b) { b = Identity (L) }> }""")
    rng = np.random.default_rng(0)
    model.graph.initializer.extend(
        numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name) for name, shape in weights.items()
    )
    lowered = rnn_lower.lower(model, fold=True, loops=True, form="scan")
    assert rnn_lower.prove(model, lowered)
    branch = next(node for node in lowered.graph.node if node.op_type == "If").attribute[0].g
    index, scan = next((k, node) for k, node in enumerate(branch.node) if node.op_type == "Scan")
    floor = helper.make_node("Floor", [scan.input[-1]], ["floor"])
    floor.metadata_props.extend(scan.metadata_props)
    scan.input[-1] = "floor"
    branch.node.insert(index, floor)
    report = rnn_lower.check(model, lowered)
    assert not report.ok
    assert report.verdict.startswith("NOTHING COMPARED")


def test_what_is_not_proved_has_to_run_three_steps():
    """Rows of one length say nothing of lengths."""
    model, feeds = build(Case("GRU", 17, T=5, N=2, optional=("sequence_lens",), lengths_as="input"))
    feeds["sequence_lens"] = np.array([5, 5], np.int32)
    broken, lowered = onnx.ModelProto.FromString(model.SerializeToString()), rnn_lower.lower(model)
    ones = np.ones(5, np.int32)
    for one in (broken, lowered):
        one.graph.initializer.append(numpy_helper.from_array(ones[:2] * 2, "two"))
    report = check_by_running(model, rnn_lower.lower(model), inputs=feeds)
    assert report.ok, "further inputs are sampled"
    assert "sequence_lens" in " ".join(report.runs_of_unproved)


def constant_lengths() -> onnx.ModelProto:
    """Every row has two steps, whatever the input says: Min(len, 2), Max(2)."""
    nodes = [
        helper.make_node("Constant", [], ["two"], value=numpy_helper.from_array(np.array([2]))),
        helper.make_node("Max", ["len", "two"], ["longer"]),
        helper.make_node("Min", ["longer", "two"], ["lengths"]),
    ]
    return with_lengths(nodes, vector(), 8)


def test_nodes_of_an_unrolled_loop_are_those_that_are_proved():
    """A decoder of beams: the proof does not follow the Gather of states, and each run of the cell has one step."""
    body = """b (int64 i, bool c, float[1,2,4] h, float[1,2,4] x) => (bool c, float[1,2,4] new, float[1,2,4] next)
        { all, last = GRU <hidden_size = 4> (x, W, R, , , h) s = ReduceSum <keepdims = 0> (last, ends)
          best, order = TopK (s, two) new = Gather <axis = 1> (last, order) next = Tanh (new) }"""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]> g (float[1,2,4] start, float[1,2,4] h0)
        => (float[1,2,4] h) <int64 n = {{5}}, bool on = {{1}}, int64[2] ends = {{0, 2}}, int64[1] two = {{2}}> {{
        h, last = Loop (n, on, h0, start) <body = {body}> }}""")
    rng = np.random.default_rng(0)
    for name in ("W", "R"):
        array = rng.standard_normal((1, 12, 4)).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    lowered = rnn_lower.lower(model, loops=True)
    assert not rnn_lower.prove(model, lowered)
    report = rnn_lower.check(model, lowered)
    assert report, report.verdict
    assert len(report.proved) == 5
    gate = next(node for node in lowered.graph.node if node.op_type == "Sigmoid")
    gate.op_type = "Tanh"
    assert not rnn_lower.check(model, lowered)


def test_independent_steps_of_a_loop_are_no_test_of_a_recurrence():
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]> g (float[5,T,1,4] x, float[1,1,4] h) => (float[5,1,1,4] y)
        { y = Scan <num_scan_inputs = 1, body = b (float[T,1,4] part) => (float[1,1,4] last)
          { all, last = GRU <hidden_size = 4> (part, W, R, , , h) }> (x) }""")
    rng = np.random.default_rng(0)
    for name in ("W", "R"):
        array = rng.standard_normal((1, 12, 4)).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    lowered = rnn_lower.lower(model)
    outer = next(node for node in lowered.graph.node if node.op_type == "Scan").attribute
    inner = next(node for node in next(each.g for each in outer if each.name == "body").node if node.op_type == "Scan")
    body = next(each.g for each in inner.attribute if each.name == "body")
    body.node.append(helper.make_node("Identity", [body.input[0].name], ["kept"]))
    body.output[0].name = "kept"
    feeds = {"x": rng.standard_normal((5, 1, 1, 4)), "h": rng.standard_normal((1, 1, 4))}
    report = check_by_running(model, lowered, inputs={name: array.astype(np.float32) for name, array in feeds.items()})
    assert not report


def test_nothing_is_compared_where_rows_never_differ():
    model = constant_lengths()
    lowered = rnn_lower.lower(model)
    assert rnn_lower.check(model, lowered).ok, "the node is proved"
    report = check_by_running(model, lowered)
    assert not report.ok
    assert "NOTHING COMPARED" in report.verdict


def test_a_counterexample_shows_the_difference_again(tmp_path):
    model, _ = build(Case("LSTM", 17, dynamic=True))
    lowered = rnn_lower.lower(model)
    replace_nothing = rnn_lower.check(model, lowered, counterexample=tmp_path / "none.npz")
    assert (replace_nothing.ok, replace_nothing.counterexample) == (True, "")
    assert not (tmp_path / "none.npz").exists()
    for tensor in lowered.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT and tensor.dims:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * 2, tensor.name))
    for name, command in (("check.npz", rnn_lower.check), ("prove.npz", rnn_lower.prove)):
        report = command(model, lowered, counterexample=tmp_path / name)
        assert not report.ok
        assert report.counterexample == str(tmp_path / name)
        again = check_by_running(model, lowered, inputs=tmp_path / name)
        assert not all(output.ok for output in again.outputs)


def test_one_large_unit_hides_no_other():
    wanted = np.ones((3, 760), np.float32)
    wanted[:, 0] = 1e6
    other = wanted.copy()
    other[:, 1:] += 1
    assert not compare("Y", wanted, other, 1e-3, 1e-5).ok
    assert compare("Y", wanted, wanted * np.float32(1 + 1e-6), 1e-3, 1e-5).ok


@pytest.mark.parametrize("large", [np.s_[:, 1:], np.s_[1:], np.s_[:, 300:]])
def test_many_large_numbers_hide_no_small_ones(large):
    wanted = np.full((3, 760), 0.5, np.float32)
    wanted[large] = 1e6
    other = wanted.copy()
    other[0, 0] = -0.5
    assert not compare("Y", wanted, other, 1e-3, 1e-5).ok
    assert not compare("Y", wanted.ravel(), other.ravel(), 1e-3, 1e-5).ok
    assert compare("Y", wanted, wanted * np.float32(1 + 1e-6), 1e-3, 1e-5).ok
    cancelled = np.where(np.arange(760) == 0, wanted + np.float32(1e-2), wanted)
    assert compare("Y", wanted, cancelled, 1e-3, 1e-5, rounding=True).ok


def test_a_saturated_function_may_be_zero_on_a_runtime():
    """onnxruntime's Sigmoid of -33 is 0; only if all is proved, this can be nothing else."""
    wanted, found = np.array([3.45e-15, 0], np.float32), np.zeros(2, np.float32)
    assert compare("Y", wanted, found, 1e-3, 1e-5, rounding=True).ok
    assert not compare("Y", wanted, found, 1e-3, 1e-5).ok
    assert not compare("Y", wanted, found + np.float32(1e-6), 1e-3, 1e-5, rounding=True).ok


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_run_of_small_numbers_is_held_against_the_largest_of_all_runs(order):
    """As of a voice detector that hears nothing, on a runtime whose Sigmoid has an absolute error."""
    runs = [(np.float32([[7e-12]]), np.float32([[6e-8]])), (np.float32([[0.65]]), np.float32([[0.65]]))]
    comparison = Comparison(1e-3, 1e-5)
    comparison.add(["Y"], *([value] for value in runs[0]))
    assert not comparison.ok
    comparison = Comparison(1e-3, 1e-5)
    for index in order:
        comparison.add(["Y"], *([value] for value in runs[index]))
    assert comparison.ok
    (report,) = comparison.reports()
    assert report.max_abs_error == pytest.approx(6e-8, rel=0.01)
    comparison.add(["Y"], [runs[0][0]], [np.float32([[1e-4]])])
    assert not comparison.ok


def pair_of_nodes(shown: str) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Two nodes, of which `shown` makes the second output, and the same with other recurrent weights of the second."""
    weights = ", ".join(f"float[1,4,{n}] {name} = {{{', '.join(['0.3'] * 4 * n)}}}" for name, n in (("W", 3), ("R", 4)))
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[T,N,3] x, float gate) => (float[T,1,N,4] y, float[U,1,N,4] z)
        <{weights}, float[1,4,4] Q = {{{", ".join(["0.3"] * 16)}}}, int64[1] a = {{60}}, int64[1] e = {{900}},
         int64[1] t = {{0}}, float high = {{1e30}}, float none = {{0.0}}>
        {{ y = RNN <hidden_size = 4> (x, W, R) q = RNN <hidden_size = 4> (x, W, Q) {shown} }}""")
    other = rnn_lower.lower(model)
    for node in other.graph.node:
        del node.metadata_props[:]
    found = [t for t in other.graph.initializer if "R_" in t.name or t.name.endswith("/R")]
    found[-1].CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(found[-1]), found[-1].name))
    return model, other


@pytest.mark.parametrize(
    ("shown", "verdict"),
    [
        ("z = Identity (q)", "DIFFERENT"), ("z = Slice (q, a, e, t)", "DIFFERENT"),
        ("c = Greater (gate, high) z = Where (c, q, none)", "no output shows"),
    ],
)  # fmt: skip
def test_a_node_that_no_output_shows_is_not_compared(shown, verdict):
    report = rnn_lower.check(*pair_of_nodes(shown))
    assert not report.ok
    assert verdict in report.verdict


@pytest.mark.parametrize("hidden", ["direction", "digits"])
def test_one_direction_or_digit_vouches_for_no_other(hidden):
    """Only the first direction shows, or every difference is within the tolerance."""
    model, _ = build(Case("GRU", 17, "bidirectional", T=5, N=3, outputs=("Y",)))
    names = {"first": np.array([0]), "one": np.array([1]), "small": np.float32(1e-5), "ten": np.float32(10)}
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in names.items())
    nodes = [helper.make_node("Slice", ["Y", "first", "one", "one"], ["o"])]
    if hidden == "digits":
        nodes = [helper.make_node("Mul", ["Y", "small"], ["s"]), helper.make_node("Add", ["s", "ten"], ["o"])]
    model.graph.node.extend(nodes)
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("o", TensorProto.FLOAT, None))
    lowered = rnn_lower.lower(model)
    for node in lowered.graph.node:
        del node.metadata_props[:]
    report = rnn_lower.check(model, lowered)
    assert "no output shows" in report.verdict


@pytest.mark.parametrize(("least", "is_seen"), [(50, True), (1e9, False)])
def test_the_weights_of_the_input_have_to_show_as_those_of_the_state(least, is_seen):
    """The node reads zeros unless inputs are large, so most runs do not test W."""
    model, _ = build(Case("GRU", 17, T=5, N=3, outputs=("Y",)))
    gate = [helper.make_node("Sub", ["X", "least"], ["rest"]), helper.make_node("Relu", ["rest"], ["read"])]
    model.graph.node[0].input[0] = "read"
    nodes = [*gate, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.graph.initializer.append(numpy_helper.from_array(np.float32(least), "least"))
    right = rnn_lower.lower(model)
    for node in right.graph.node:
        del node.metadata_props[:]
    assert rnn_lower.check(model, right).ok == is_seen
    wrong = onnx.ModelProto.FromString(right.SerializeToString())
    weights = next(tensor for tensor in wrong.graph.initializer if "W" in tensor.name)
    weights.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(weights), weights.name))
    assert not rnn_lower.check(model, wrong).ok


def test_an_input_that_one_model_lacks():
    model, _ = build(Case("GRU", 17))
    model.graph.input.append(helper.make_tensor_value_info("unused", 1, [2]))
    lowered = rnn_lower.lower(model)
    del lowered.graph.input[-1]
    with pytest.raises(rnn_lower.RnnLowerError, match="only the original has 'unused'"):
        rnn_lower.check(model, lowered)


def test_the_shape_that_is_told_is_where_it_was_worst():
    comparison = Comparison(1e-3, 1e-5)
    comparison.add(["Y"], [np.ones(2, np.float32)], [np.full(2, 1.5, np.float32)])
    comparison.add(["Y"], [np.ones(3, np.float32)], [np.ones(3, np.float32)])
    (report,) = comparison.reports()
    assert (report.ok, report.shape) == (False, (2,))


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("opset", range(1, 7))
def test_below_opset_seven(op, opset):
    model, _ = build(Case(op, opset, output_sequence=1))
    lowered = rnn_lower.lower(model)
    for exact in (True, False):
        report = check_by_running(model, lowered, exact=exact)
        assert report.ok, report.verdict


def test_what_only_checks_use_needs_a_check(tmp_path, capsys):
    onnx.save(build(Case("LSTM", 17))[0], tmp_path / "m.onnx")
    for flags in (
        ["--on", "tract"],
        ["--runs", "0"],
        ["--rtol", "-5"],
        ["--atol", "1"],
        ["--seed", "3"],
    ):
        assert cli.main(["lower", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "o.onnx"), *flags]) == cli.BAD
        assert f"{flags[0]} needs --check" in capsys.readouterr().err


def test_a_function_of_another_opset_is_told():
    model, _ = build(Case("LSTM", 17))
    lowered = rnn_lower.lower(model, as_function=True)
    for entry in lowered.functions[0].opset_import:
        entry.version = 13
    assert "imports version 13" in rnn_lower.prove(model, lowered).changed[0]
    rnn_lower.check(model, lowered)


def test_nested_functions_count_as_recurrent():
    model, _ = build(Case("LSTM", 17, place="function"))
    outer = helper.make_function(
        "local", "outer", list(model.functions[0].input), list(model.functions[0].output),
        [helper.make_node(model.functions[0].name, model.functions[0].input, model.functions[0].output, domain="local")],
        [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)],
    )  # fmt: skip
    call = next(node for node in model.graph.node if node.op_type == model.functions[0].name)
    call.op_type = "outer"
    model.functions.append(outer)
    from rnn_lower.checking.model_pair import ModelPair

    assert ModelPair(model, model).touched == {value.name for value in model.graph.output}


def test_an_empty_sequence_in_a_canonical_scan_is_answered_with_what_serves():
    model, feeds = build(Case("LSTM", 17, dynamic=True))
    feeds = {**feeds, "X": feeds["X"][:0]}
    with pytest.raises(
        rnn_lower.RnnLowerError, match="cannot run on an empty sequence; lower the model with --form loop or --target"
    ):
        check_by_running(model, rnn_lower.lower(model), inputs=feeds)
    assert check_by_running(model, rnn_lower.lower(model, form="loop"), inputs=feeds)


@pytest.mark.parametrize("name", ["in.onnx", "out.onnx", "inputs.npz"])
def test_a_counterexample_replaces_no_file_of_another_kind(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    model, feeds = build(Case("GRU", 17, T=4))
    onnx.save(model, "in.onnx")
    onnx.save(rnn_lower.lower(model), "out.onnx")
    np.savez("inputs.npz", **feeds)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    options = ["--inputs", "inputs.npz", "--rtol", "0", "--atol", "0", "--counterexample", name]
    assert cli.main(["check", "in.onnx", "out.onnx", *options]) == cli.BAD
    assert f"{name}: " in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.BFLOAT16, TensorProto.FLOAT16])
@pytest.mark.parametrize("name", ["file", "allow_pickle", "x/y"])
def test_counterexamples_of_any_name_and_type(name, dtype, tmp_path):
    def add(number):
        nodes = [
            helper.make_node("Cast", [name], ["f"], to=TensorProto.FLOAT),
            helper.make_node("Add", ["f", "n"], ["y"]),
        ]
        inputs = [helper.make_tensor_value_info(name, dtype, [2, 3])]
        outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])]
        weights = [numpy_helper.from_array(np.float32(number), "n")]
        graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    path = tmp_path / "c.npz"
    report = rnn_lower.check(add(0), add(1), counterexample=path)
    assert (report.ok, report.counterexample) == (False, str(path))
    assert not rnn_lower.check(add(0), add(1), inputs=path).ok


def test_an_input_that_is_named_like_the_file_of_another(tmp_path):
    models = [
        onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
            main (float[2] x, float[3] "x.npy") => (float[2] y) <float n = {{{n}}}> {{
                sum = ReduceSum <keepdims = 0> ("x.npy") more = Add (sum, n) y = Mul (x, more)
            }}""")
        for n in ("0.0", "1.0")
    ]  # fmt: skip
    assert not rnn_lower.check(*models, counterexample=tmp_path / "c.npz").ok
    assert not rnn_lower.check(*models, inputs=tmp_path / "c.npz").ok


def test_a_full_disk_keeps_the_old_counterexample(tmp_path, monkeypatch, capsys):
    model, _ = build(Case("GRU", 17, T=4))
    onnx.save(model, tmp_path / "a.onnx")
    next(t for t in model.graph.initializer if t.name == "R").CopyFrom(
        numpy_helper.from_array(np.ones((1, 12, 4), "f4"), "R")
    )
    onnx.save(model, tmp_path / "b.onnx")
    path = tmp_path / "c.npz"
    command = ["check", str(tmp_path / "a.onnx"), str(tmp_path / "b.onnx"), "--counterexample", str(path)]
    path.write_bytes(b"old")
    path.chmod(0o444)
    assert cli.main(command) == 2
    assert "read-only" in capsys.readouterr().err
    path.chmod(0o644)

    def fail(file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rnn_lower.modelio.files.sync", fail)
    assert cli.main(command) == 2
    assert "No space left" in capsys.readouterr().err
    assert path.read_bytes() == b"old"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.onnx", "b.onnx", "c.npz"]


def test_no_counterexample_is_said(tmp_path, capsys):
    """A weight that differs by less than the tolerance: the proof sees it, and no run does."""
    model, _ = build(Case("LSTM", 17))
    lowered = rnn_lower.lower(model)
    weight = max(lowered.graph.initializer, key=lambda tensor: len(tensor.raw_data))
    numbers = numpy_helper.to_array(weight) * np.float32(1 + 2**-22)
    weight.CopyFrom(numpy_helper.from_array(numbers, weight.name))
    for name, each in (("a", model), ("b", lowered)):
        onnx.save(each, tmp_path / f"{name}.onnx")
    pair = [str(tmp_path / "a.onnx"), str(tmp_path / "b.onnx"), "--counterexample", str(tmp_path / "c.npz")]
    for command in ("check", "prove"):
        assert cli.main([command, *pair]) == cli.DIFFERENT
        assert "no inputs were found for which the outputs differ" in capsys.readouterr().out
    assert not (tmp_path / "c.npz").exists()


def test_models_of_different_inputs(capsys):
    pair = [str(ROOT / "models" / f"torch_{name}.onnx") for name in ("lstm_tagger", "keyword_spotter")]
    assert cli.main(["check", *pair]) == cli.BAD
    assert "the models have different inputs: 'x' is float[time, batch, 16] and float[batch, time, 20]" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("kind", ["bool f", "int64 f"])
@pytest.mark.parametrize("seed", range(4))
def test_both_branches_are_compared(kind, seed):
    """An input of one element takes another value in each run."""
    condition = "f" if kind.startswith("bool") else "e"
    compare = "" if condition == "f" else "e = Equal (f, k)"
    models = [
        onnx.parser.parse_model(f"""
            <ir_version: 8, opset_import: ["": 17]> main ({kind}, float[N, 3] x) => (float[N, 3] y)
            <float a = {{{a}.0}}, float b = {{{b}.0}}, int64 k = {{16000}}> {{
                {compare} y = If ({condition}) <then_branch = t () => (float[N, 3] u) {{ u = Mul (x, a) }},
                                               else_branch = e () => (float[N, 3] v) {{ v = Mul (x, b) }}>
            }}
        """)
        for a, b in ((1, 2), (1, 3), (2, 2))
    ]
    assert not rnn_lower.check(models[0], models[1], seed=seed)
    assert not rnn_lower.check(models[0], models[2], seed=seed)


def test_the_output_replaces_no_inputs(tmp_path, capsys):
    model, feeds = build(Case("LSTM", 17))
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", **feeds)
    before = (tmp_path / "x.npz").read_bytes()
    command = ["lower", str(tmp_path / "m.onnx"), str(tmp_path / "x.npz"), "--check"]
    assert cli.main([*command, "--inputs", str(tmp_path / "x.npz")]) == cli.BAD
    assert "--inputs names the same file as the output" in capsys.readouterr().err
    assert (tmp_path / "x.npz").read_bytes() == before


def test_inputs_for_which_the_original_repeats_its_results():
    """A sequence of one frame has no odd frames; onnxruntime's Concat leaves them undefined instead of failing."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]> g (float[T, N, 3] x) => (float[?, 1, N, 3] y)
        <int64[1] z = {0}, int64[1] i = {1}, int64[1] k = {2}, int64[1] e = {9223372036854775807}> {
            a = Slice (x, z, e, z, k) b = Slice (x, i, e, z, k) c = Concat <axis = 2> (a, b)
            y = GRU <hidden_size = 3> (c, W, R)
        }""")
    rng = np.random.default_rng(0)
    weights = {"W": (1, 9, 6), "R": (1, 9, 3)}
    for name, shape in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name))
    lowered = rnn_lower.lower(model)
    for seed in range(4):
        assert rnn_lower.check(model, lowered, seed=seed).ok
    weight = next(tensor for tensor in lowered.graph.initializer if tensor.dims == [6, 9])
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * 1.5, weight.name))
    assert not rnn_lower.check(model, lowered).ok


@pytest.mark.parametrize("stream", [False, True])
def test_a_node_that_reads_nan_is_no_evidence(stream, tmp_path):
    """Logarithms of magnitudes: onnxruntime's LSTM with a bias does not pass on the NaN of a negative one."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]> g (float[T, N, 3] x) => (float[T, 1, N, 4] y) {
            l = Log (x) y = LSTM <hidden_size = 4> (l, W, R, B)
        }""")
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal(shape).astype(np.float32) for shape in ((1, 16, 3), (1, 16, 4), (1, 32))]
    model.graph.initializer.extend(map(numpy_helper.from_array, weights, "WRB"))
    if stream:
        onnx.save(model, tmp_path / "in.onnx")
        result = api.stream_file(tmp_path / "in.onnx", tmp_path / "out.onnx", axis="T")
        assert api.check_streaming(result, onnx.load(tmp_path / "out.onnx")).ok
        return
    lowered = rnn_lower.lower(model)
    assert rnn_lower.check(model, lowered).ok
    weight = next(tensor for tensor in lowered.graph.initializer if tensor.dims == [3, 16])
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * 1.5, weight.name))
    assert not rnn_lower.check(model, lowered).ok
    negative = np.full((2, 1, 3), 0.5, np.float32)
    negative[0, 0, 0] = -1
    with pytest.raises(rnn_lower.RnnLowerError, match="reads NaN or infinity"):
        rnn_lower.check(model, lowered, inputs={"x": negative})


@pytest.mark.parametrize("steps", [30, 45, 60])
def test_a_proved_node_that_reads_what_overflowed_is_no_evidence(steps):
    """States of a Relu grow eightfold in each step, and onnxruntime's LSTM does not pass on infinities."""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[{steps},2,2] x) => (float[{steps},1,2,1] z)
        <float[1,2,2] W = {{1, 0.5, 0.25, 1}}, float[1,2,2] R = {{8, 0, 0, -8}}, int64[1] one = {{1}},
         float[1,4,2] V = {{-1, 1, 1, -1, 1, 1, -1, -0.5}}, float[1,4,1] Q = {{0.1, 0.2, 0.3, 0.4}}> {{
        y = RNN <hidden_size = 2, activations = ["Relu"]> (x, W, R) s = Squeeze (y, one)
        z = LSTM <hidden_size = 1> (s, V, Q) }}""")
    if steps < 60:
        assert rnn_lower.check(model, rnn_lower.lower(model)).ok
        return
    with pytest.raises(rnn_lower.RnnLowerError, match="reads NaN or infinity"):  # all inputs overflow
        rnn_lower.check(model, rnn_lower.lower(model))


def chaotic(hidden: int) -> onnx.ModelProto:
    """Large random weights amplify rounding in each step."""
    rng = np.random.default_rng(0)
    model, _ = build(Case("GRU", 17, I=20, H=hidden, T=40, N=2, outputs=("Y",), weights="initializer", dynamic=True))
    for tensor in model.graph.initializer:
        array = rng.normal(size=tensor.dims).astype(np.float32) * np.float32(1.5)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return model


def test_rounding_that_a_proved_model_amplifies_is_no_difference():
    model = chaotic(64)
    lowered = rnn_lower.lower(model)
    report = rnn_lower.check(model, lowered)
    assert report.ok
    assert any("because the model amplifies rounding" in output.reason for output in report.outputs)
    weight = max(lowered.graph.initializer, key=lambda tensor: np.prod(tensor.dims))
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * np.float32(1.001), weight.name))
    assert not rnn_lower.check(model, lowered).ok


def test_a_node_that_reads_huge_numbers_is_evidence():
    """A mask may be a huge number, whose weights are zero."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]> g (float[T, N, 3] x) => (float[T, 1, N, 4] y) <float tiny = {1e-30}> {
            h = Div (x, tiny) y = RNN <hidden_size = 4> (h, W, R, B)
        }""")
    weights = np.zeros((1, 4, 3)), np.full((1, 4, 4), 0.2), np.full((1, 8), 0.1)
    model.graph.initializer.extend(
        numpy_helper.from_array(w.astype(np.float32), n) for w, n in zip(weights, "WRB", strict=True)
    )
    lowered = rnn_lower.lower(model)
    for node in lowered.graph.node:
        del node.metadata_props[:]
    bias = next(tensor for tensor in lowered.graph.initializer if "bias" in tensor.name)
    bias.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(bias), bias.name))
    report = rnn_lower.check(model, lowered, inputs={"x": np.full((4, 2, 3), 20, np.float32)})
    assert report.verdict.startswith("DIFFERENT")


def two_nodes(first: str, second: str, outputs: list[str]) -> onnx.ModelProto:
    """Two LSTMs; the second one shows only where X is above 2e6."""
    rng = np.random.default_rng(0)
    weights = {f"{name}{k}": rng.normal(0, 0.6, (1, 8, size)) for k in (1, 2) for name, size in (("W", 3), ("R", 2))}
    weights |= {"limit": np.array(2e6), "zero": np.zeros((1, 1, 2))}
    node, info = helper.make_node, helper.make_tensor_value_info
    nodes = [
        node("LSTM", ["X", "W1", "R1"], ["Y"], hidden_size=2, name=first),
        node("LSTM", ["X", "W2", "R2"], outputs, hidden_size=2, name=second),
        node("ReduceMax", ["X"], ["most"], keepdims=0), node("Greater", ["most", "limit"], ["is_large"]),
        node("Where", ["is_large", outputs[-1], "zero"], ["out"]),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "g", [info("X", 1, ["T", "N", 3])], [info("Y", 1, None), info("out", 1, None)],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def with_other_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    other = onnx.ModelProto.FromString(model.SerializeToString())
    weight = next(tensor for tensor in other.graph.initializer if tensor.name == "R2")
    weight.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(weight), "R2"))
    return other


@pytest.mark.parametrize(("first", "second"), [("a", "b"), ("a", "a"), ("Y_h", ""), ("", "")])
def test_a_proof_of_one_node_is_none_of_another_of_its_name(first, second):
    model = two_nodes(first, second, ["", "Y_h"])
    assert rnn_lower.check(model, rnn_lower.lower(model)).ok
    other = rnn_lower.lower(with_other_weights(model))
    needed = {"Y_h"}  # its nodes lose their marks, as in another optimizer
    for node in reversed(other.graph.node):
        if needed & set(node.output):
            inner = [each for attribute in node.attribute for each in attribute.g.node]
            needed.update(node.input, *(each.input for each in inner))
            for each in (node, *inner):
                del each.metadata_props[:]
    assert not rnn_lower.check(model, other).ok


def test_a_node_is_proved_whose_first_output_nobody_reads():
    model = two_nodes("", "", ["first", "", "Y_c"])
    report = rnn_lower.check(model, rnn_lower.lower(model))
    assert report.ok
    assert not report.runs_of_unproved


@pytest.mark.parametrize("lowers", [False, True])
def test_a_node_that_is_kept_with_other_weights_must_show(lowers):
    model = two_nodes("a", "b", ["", "Y_h"])
    other = with_other_weights(model)
    if lowers:
        other = rnn_lower.lower(other, select=lambda node: node.name == "a")
    assert not rnn_lower.check(model, other).ok


def test_weights_of_bfloat16_that_are_inputs_with_a_default():
    model, _ = build(Case("LSTM", 22, dtype="bfloat16", weights="initializer", optional=("B",)))
    for tensor in model.graph.initializer:
        model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    assert rnn_lower.check(model, rnn_lower.lower(model)).ok


def test_what_no_run_shows_is_said():
    """One row of a table of 5000 differs, which the sampled indices do not read."""
    rng = np.random.default_rng(0)
    model, _ = build(Case("GRU", 17, T=4, N=2, I=3, outputs=("Y",)))
    table = rng.standard_normal((5000, 3)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(table, "table"))
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, [4, 2]))
    model.graph.node.insert(0, helper.make_node("Gather", ["table", "ids"], ["X"]))
    lowered = rnn_lower.lower(model)
    assert rnn_lower.check(model, lowered).unseen == ()
    table[4321] += 5
    changed = next(tensor for tensor in lowered.graph.initializer if tensor.name == "table")
    changed.CopyFrom(numpy_helper.from_array(table, "table"))
    report = rnn_lower.check(model, lowered)
    assert report.ok
    assert report.unseen == ("graph: initializer 'table' has changed",)
    assert "no run shows it" in report.lines()[0]


@pytest.mark.parametrize("sizes", [(1, 7), (7, 5)], ids=str)
def test_sizes_of_the_exporters_example_do_not_matter(sizes):
    """onnxruntime trusts the declared shapes of values, which torch.onnx.export takes from the example."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]> g (float[N,T,4] x) => (float[N,T,3] y)
        <int64[1] one = {1}, float[3] b = {1, 2, 3}> { a = Abs (x) r = Sqrt (a)
        t = Transpose <perm = [1, 0, 2]> (r) Y = GRU <hidden_size = 4> (t, W, R) s = Squeeze (Y, one)
        u = Transpose <perm = [1, 0, 2]> (s) p = MatMul (u, V) y = Add (p, b) }""")
    rng = np.random.default_rng(0)
    for name, shape in {"W": (1, 12, 4), "R": (1, 12, 4), "V": (4, 3)}.items():
        model.graph.initializer.append(numpy_helper.from_array(rng.uniform(-1, 1, shape).astype(np.float32), name))
    for name, width in {"u": 4, "p": 3}.items():
        model.graph.value_info.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [*sizes, width]))
    with pytest.raises(Fail, match="cannot be reshaped"):
        run_onnxruntime(model, {"x": np.ones((2, 5, 4), np.float32)})
    lowered = rnn_lower.lower(model)
    assert rnn_lower.check(model, lowered, runs=6)
    lowered.graph.node[-1].op_type = "Sub"
    assert not rnn_lower.check(model, lowered, runs=6)


def test_an_output_that_is_not_finite_hides_no_other_one():
    """Sqrt of negative inputs is NaN; without negative inputs, Relu and Abs are the same."""
    models = []
    for op in ("Relu", "Abs"):
        model, _ = build(Case("LSTM", 17, optional=("B",), dynamic=True))
        for name, made in (("s", "Sqrt"), ("z", op)):
            model.graph.node.append(helper.make_node(made, ["X"], [name]))
            model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["T", "N", 3]))
        models.append(model)
    original, other = models
    assert rnn_lower.check(original, rnn_lower.lower(original)).ok
    assert not rnn_lower.check(original, rnn_lower.lower(other)).ok


@pytest.mark.parametrize(("changed", "ok"), [(1, True), (2, True), (40, False)])
def test_rounding_excuses_few_other_integers(changed, ok):
    """Of 200; rounding of the inputs, which the model may amplify, tells how many more."""
    wanted = np.zeros(200, np.int64)
    found = wanted + (np.arange(200) < changed)
    for moved, excused in (((), ok), ([[wanted + (np.arange(200) < 20)]], True)):
        comparison = Comparison(1e-4, 1e-6, rounding=True)
        comparison.add(["index"], [wanted], [found], moved)
        assert comparison.ok == excused


@pytest.mark.parametrize("steps", [2, 4])
def test_sizes_that_an_exporter_fixed_by_a_reshape_need_not_hold_in_the_runs(steps):
    """Where they do not, the declared shapes are wrong, and onnxruntime refuses to reuse memory of other sizes."""
    rng, node, info = np.random.default_rng(0), helper.make_node, helper.make_tensor_value_info
    weights = {"W": (1, 24, 4), "R": (1, 24, 6), "O": (6, 5)}
    tensors = [numpy_helper.from_array(rng.normal(0, 1, shape).astype(np.float32), k) for k, shape in weights.items()]
    tensors += [numpy_helper.from_array(np.array(k), name) for name, k in (("shape", [steps, -1, 6]), ("last", -1))]
    nodes = [
        node("LSTM", ["X", "W", "R"], ["Y"], hidden_size=6), node("Transpose", ["Y"], ["t"], perm=[0, 2, 1, 3]),
        node("Reshape", ["t", "shape"], ["r"]), node("Gather", ["r", "last"], ["g"], axis=0),
        node("MatMul", ["g", "O"], ["m"]), node("Softmax", ["m"], ["p"], axis=-1),
    ]  # fmt: skip
    declared = [info("r", 1, [steps, "N", 6]), info("g", 1, ["N", 6]), info("m", 1, ["N", 5])]
    graph = helper.make_graph(
        nodes, "g", [info("X", 1, ["T", "N", 4])], [info("p", 1, ["N", 5])], tensors, value_info=declared
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    report = rnn_lower.check(model, rnn_lower.lower(model))
    assert report.ok
    assert len(report.proved) == 1


def in_branches(opset: int, computed: bool, factor: float = 1.0) -> onnx.ModelProto:
    """An LSTM in each branch of an If, of which only quiet inputs reach the first; both results have one name.

    computed: whether a node computes R.  factor: of R in the first branch.
    """
    rng, node, info = np.random.default_rng(1), helper.make_node, helper.make_tensor_value_info
    tensors = {"quiet": np.array(0.05), "one": np.array(1)}
    branches = list[onnx.GraphProto]()
    for k in range(2):
        tensors |= {f"W{k}": rng.normal(0, 0.5, (1, 12, 2)), f"R{k}": rng.normal(0, 1, (1, 12, 3))}
        lstm = node("LSTM", ["X", f"W{k}", f"S{k}" if computed else f"R{k}"], ["h"], name=f"rnn{k}", hidden_size=3)
        branches.append(
            helper.make_graph([lstm, node("ReduceSum", ["h"], ["y"], keepdims=0)], f"b{k}", [], [info("y", 1, [])])
        )
    tensors["R0"] *= factor
    nodes = [node("Mul", [f"R{k}", "one"], [f"S{k}"]) for k in range(2 * computed)]
    nodes += [
        node("Abs", ["X"], ["a"]), node("ReduceMax", ["a"], ["m"], keepdims=0), node("Less", ["m", "quiet"], ["q"]),
        node("If", ["q"], ["Y"], then_branch=branches[0], else_branch=branches[1], name="cond"),
    ]  # fmt: skip
    if computed:  # which has no conversion from opset 12 to 13, so that nothing can be proved
        hard = [node("Hardmax", ["X"], ["P"], axis=1)]
        if opset > 12:
            hard = [
                node("Flatten", ["X"], ["f"]), node("Hardmax", ["f"], ["p"]), node("Shape", ["X"], ["s"]),
                node("Reshape", ["p", "s"], ["P"]),
            ]  # fmt: skip
        nodes += hard
    graph = helper.make_graph(
        nodes, "g", [info("X", 1, ["T", "N", 2])], [info("Y", 1, []), *([info("P", 1, None)] if computed else [])],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in tensors.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def test_a_kept_node_whose_weights_are_computed_must_run_where_nothing_can_be_proved():
    report = rnn_lower.check(in_branches(12, True), in_branches(13, True, -4))
    assert not report.ok
    assert "NOTHING COMPARED for 1 node" in report.verdict


def test_a_node_that_is_kept_is_none_of_another_branch():
    model = in_branches(17, False)
    other = rnn_lower.lower(in_branches(17, False, -4), form="loop", select=lambda node: node.name == "rnn0")
    inner = [node for branch in other.graph.node[-1].attribute for node in branch.g.node]
    loops = [attribute.g for node in inner for attribute in node.attribute if attribute.HasField("g")]
    added = next(node for graph in loops for node in graph.node if node.op_type == "Add")
    added.op_type = "Sum"  # the same function, but no operator of lowering
    assert not rnn_lower.check(model, other).ok


@pytest.mark.parametrize("change", ["none", "zero", "transposed"])
def test_many_labels_are_compared_if_there_is_nothing_else(change):
    rng, node, info = np.random.default_rng(19), helper.make_node, helper.make_tensor_value_info
    shapes = {"W": (1, 32, 4), "R": (1, 32, 8), "B": (1, 64), "L": (8, 5), "b": (5,)}
    weights = {name: (rng.uniform(-1, 1, shape) / np.sqrt(8)).astype(np.float32) for name, shape in shapes.items()}
    nodes = [
        node("LSTM", ["X", "W", "R", "B"], ["", "h"], hidden_size=8), node("Squeeze", ["h", "first"], ["s"]),
        node("Gemm", ["s", "L", "b"], ["z"]), node("ArgMax", ["z"], ["Y"], axis=1, keepdims=0),
    ]  # fmt: skip

    def made(R: np.ndarray) -> onnx.ModelProto:
        tensors = [numpy_helper.from_array(array, name) for name, array in (weights | {"R": R}).items()]
        graph = helper.make_graph(
            nodes, "g", [info("X", 1, ["T", "N", 4])], [info("Y", TensorProto.INT64, ["N"])],
            [*tensors, numpy_helper.from_array(np.array([0]), "first")],
        )  # fmt: skip
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    R = weights["R"]
    transposed = np.concatenate([part.transpose(0, 2, 1) for part in np.split(R, 4, 1)], 1)
    other = made({"none": R, "zero": 0 * R, "transposed": transposed}[change])
    assert rnn_lower.check(made(R), other).ok == (change == "none")


@pytest.mark.parametrize("op", ["RNN", "GRU"])
def test_inputs_that_are_cast_to_float16_are_sampled_as_such(op):
    """onnxruntime drops such a Cast in front of a node, which it computes in float32, and so does not round."""
    gates = {"RNN": 1, "GRU": 3}[op]
    rng, half = np.random.default_rng(0), TensorProto.FLOAT16
    nodes = [
        helper.make_node("Cast", ["x"], ["X"], to=half), helper.make_node("Cast", ["h"], ["H"], to=half),
        helper.make_node(op, ["X", "W", "R", "", "", "H"], ["Y"], hidden_size=3),
        helper.make_node("Cast", ["Y"], ["y"], to=1),
    ]  # fmt: skip
    weights = {"W": (1, gates * 3, 4), "R": (1, gates * 3, 3)}
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 1, ["T", "N", 4]), helper.make_tensor_value_info("h", 1, [1, "N", 3])],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(rng.normal(0, 0.5, shape).astype(np.float16), name) for name, shape in weights.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=7)
    lowered = rnn_lower.lower(model)
    assert all(rnn_lower.check(model, lowered, seed=seed).ok for seed in range(3))


def selecting(kind: str, factor: float) -> onnx.ModelProto:
    """An LSTM with recurrent weights that the inputs select. factor: of weights that no sampled input selects."""
    rng, node, info = np.random.default_rng(1), helper.make_node, helper.make_tensor_value_info
    W, R = rng.normal(0, 0.7, (1, 12, 2)).astype(np.float32), rng.normal(0, 0.7, (40, 1, 12, 3)).astype(np.float32)
    R[1 if kind == "branch" else 7] *= factor
    tensors, inputs = {"W": W, "low": np.float32(0.05)}, [info("X", 1, ["T", "N", 2])]
    if kind == "branch":
        held = [node("Constant", [], ["r"], value=numpy_helper.from_array(each)) for each in R[:2]]
        branches = [helper.make_graph([each], f"b{k}", [], [info("r", 1, [1, 12, 3])]) for k, each in enumerate(held)]
        nodes = [
            node("Abs", ["X"], ["a"]), node("ReduceMax", ["a"], ["m"], keepdims=0), node("Less", ["m", "low"], ["q"]),
            node("If", ["q"], ["R"], then_branch=branches[1], else_branch=branches[0]),
        ]  # fmt: skip
    else:
        tensors["all"] = R
        inputs.append(info("lang", TensorProto.INT64, []))
        nodes = [node("Gather", ["all", "lang"], ["R"], axis=0)]
    graph = helper.make_graph(
        [*nodes, node("LSTM", ["X", "W", "R"], ["Y"], hidden_size=3)], "g", inputs, [info("Y", 1, None)],
        [numpy_helper.from_array(array, name) for name, array in tensors.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("lowers", [False, True])
@pytest.mark.parametrize("kind", ["branch", "row"])
def test_weights_that_no_sampled_input_selects(kind, lowers):
    made = [selecting(kind, factor) for factor in (1, -3)]
    right, wrong = map(rnn_lower.lower, made) if lowers else made
    assert rnn_lower.check(made[0], right).ok
    assert not rnn_lower.check(made[0], wrong).ok
