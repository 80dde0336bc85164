"""Comparing two models: judges, inputs, and what is said about differences."""

from __future__ import annotations

import subprocess
import sys

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from judge import check_by_running, close, run_onnxruntime, run_reference
from mutants import run
from onenode import DTYPES, OPTIONAL, Case, build

import rnn_lower
from rnn_lower.checking import compare, runners, samples
from rnn_lower.modelio import files


@pytest.mark.parametrize(
    ("case", "judge"),
    [
        (Case("LSTM", 14, dynamic=True, optional=OPTIONAL["LSTM"]), "onnxruntime"),
        (Case("GRU", 14, layout=1, dynamic=True, optional=OPTIONAL["GRU"]), "layout 1"),
        (Case("LSTM", 14, dtype="double"), "double"),
        (Case("GRU", 22, dtype="bfloat16", optional=("B",)), "bfloat16"),
        (Case("GRU", 14, dtype="float16", optional=("B",)), "onnxruntime"),
        (Case("GRU", 14, T=0), "empty"),
        (Case("LSTM", 14, N=0), "empty"),
        (Case("RNN", 14, hidden_size=False), "hidden_size missing"),
        (Case("GRU", 14, clip=0.0), "clip 0"),
        (Case("GRU", 3, output_sequence=1), "GRU version 3"),
    ],
)
def test_judges(case, judge):
    model, _ = build(case)
    if case.opset < 7:
        report = rnn_lower.check(model, rnn_lower.lower(model, opset=17))
    else:
        report = rnn_lower.check(model, rnn_lower.lower(model))
    if 0 in (case.T, case.N):  # a proof needs no run; without one there is nothing
        assert report.ok
        report = check_by_running(model, rnn_lower.lower(model))
        assert not report.ok
        assert report.nothing_compared
    else:
        assert report.ok
        assert bool(report)
    assert all(output.ok for output in report.outputs)
    assert judge in report.judge
    assert report.runner.startswith("onnxruntime")
    assert report.max_abs_error < 1e-2


def test_check_samples_lengths_and_sizes():
    model, _ = build(Case("LSTM", dynamic=True, optional=OPTIONAL["LSTM"], N=2))
    shapes = set()
    for index in range(6):
        feeds = next(samples.Samples(ir.from_proto(model)).candidates(index))
        T, N = feeds["X"].shape[:2]
        shapes.add((T, N))
        assert feeds["sequence_lens"].shape == (N,)
        assert feeds["sequence_lens"].max() <= T
        assert feeds["initial_h"].shape[1] == N
    assert len(shapes) > 2


def test_check_never_hands_an_empty_sequence_to_the_fused_operator():
    """A Slice that leaves no steps: onnxruntime would end the process on the fused GRU."""
    model, _ = build(Case("GRU", 14, dynamic=True, outputs=("Y_h",)))
    model.graph.node[0].input[0] = "cut"
    model.graph.node.insert(0, onnx.helper.make_node("Slice", ["X", "zero", "zero", "zero"], ["cut"]))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0]), "zero"))
    report = check_by_running(model, rnn_lower.lower(model, target="onnxruntime"))
    assert all(output.ok for output in report.outputs)
    assert "the same in all runs" in report.nothing_compared
    assert "empty" in report.judge


def test_check_reports_what_differs():
    a = build(Case("RNN", outputs=("Y_h",)))[0]
    b = build(Case("RNN", outputs=("Y_h",), seed=1))[0]
    report = rnn_lower.check(a, b)
    assert not report.ok
    assert report.max_abs_error > 1e-3
    assert "values differ" in report.outputs[0].reason
    b = build(Case("RNN", outputs=("Y_h",), H=5))[0]
    assert "expected" in rnn_lower.check(a, b).outputs[0].reason
    with pytest.raises(rnn_lower.RnnLowerError, match="different outputs"):
        rnn_lower.check(a, build(Case("LSTM"))[0])


def test_check_asks_for_inputs_when_none_work():
    nodes = [onnx.helper.make_node("Split", ["x", "s"], ["y", "z"])]
    graph = onnx.helper.make_graph(
        nodes, "g", [onnx.helper.make_tensor_value_info("x", 1, [977]), onnx.helper.make_tensor_value_info("s", 7, [2])],
        [onnx.helper.make_tensor_value_info("y", 1, None)],
    )  # fmt: skip
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 14)], ir_version=8)
    with pytest.raises(rnn_lower.RnnLowerError, match="inputs"):
        rnn_lower.check(model, model)
    assert rnn_lower.check(model, model, inputs={"x": np.zeros(977, np.float32), "s": np.array([970, 7])}).ok


def test_check_of_texts_sequences_and_integers():
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("SplitToSequence", ["x"], ["parts"]),
            onnx.helper.make_node("Identity", ["t"], ["u"]),
            onnx.helper.make_node("Identity", ["b"], ["c"]),
        ],
        "g",
        [onnx.helper.make_tensor_value_info(n, e, [2]) for n, e in (("x", 1), ("t", 8), ("b", 9))],
        [
            onnx.helper.make_tensor_sequence_value_info("parts", 1, None),
            onnx.helper.make_tensor_value_info("u", 8, [2]),
            onnx.helper.make_tensor_value_info("c", 9, [2]),
        ],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 14)], ir_version=8)
    feeds = {"x": np.ones(2, np.float32), "t": np.array(["a", "b"], object), "b": np.array([True, False])}
    assert rnn_lower.check(model, model, inputs=feeds).ok
    with pytest.raises(rnn_lower.RnnLowerError, match="string inputs"):
        rnn_lower.check(model, model)


# -- the oracle agrees with others ------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_oracle_agrees_with_the_fused_operator(op):
    for direction in ("forward", "reverse", "bidirectional"):
        for variant in (
            {},
            {"clip": 0.2},
            {"lbr": 1} if op == "GRU" else {"clip": 0.1},
            {"input_forget": 1} if op == "LSTM" else {},
        ):
            model, feeds = build(Case(op, 14, direction, optional=OPTIONAL[op], **variant))
            close(run_reference(model, feeds), run_onnxruntime(model, feeds))


def test_lengths_without_names_and_with_the_batch_first():
    """Sizes carry no names and differ: lengths are held against the time axis, whichever that is."""
    for layout in (0, 1):
        case = Case("LSTM", 14, layout=layout, dynamic=True, optional=("sequence_lens",))
        model, _ = build(case)
        for value in model.graph.input:
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_param:
                    dim.ClearField("dim_param")
        largest = 0.0
        for index in range(40):
            feeds = next(samples.Samples(ir.from_proto(model)).candidates(index))
            length = feeds["X"].shape[layout]
            assert feeds["sequence_lens"].max(initial=0) <= length
            largest = max(largest, feeds["sequence_lens"].max(initial=0) / length)
        assert largest == 1.0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_coarse_types_get_one_unit_in_the_last_place(dtype):
    for value, ok in ((1.0, True), (1.0 + 3 * 2.0**-7, False)):
        numpy_type = DTYPES[dtype][1]
        unit = ml_dtypes.finfo(numpy_type).eps
        a = np.array([1.0], numpy_type)
        b = np.array([value + float(unit)], numpy_type)
        assert compare.compare("y", a, b, rtol=1e-6, atol=0.0).ok == ok


@pytest.mark.parametrize("ending", ["onnx", "onnxjson", "onnxtxt", "textproto", "model"])
def test_the_judge_is_the_same_for_every_way_to_write_a_model(ending, tmp_path):
    path = tmp_path / f"m.{ending}"
    onnx.save(build(Case("GRU", 17))[0], path, save_as_external_data=True, location="w", size_threshold=0)
    rnn_lower.lower_file(path, tmp_path / "lowered.onnx")
    report = rnn_lower.check(path, tmp_path / "lowered.onnx")
    assert report.ok
    assert report.judge == runners.ORT


def test_bfloat16_beside_external_data(tmp_path):
    """onnxruntime's Python interface does not take it, wherever the weights are."""
    weight = onnx.numpy_helper.from_array(np.array([1.0, 2.0], np.float32), "weight")
    nodes = [
        onnx.helper.make_node("Cast", ["x"], ["wide"], to=onnx.TensorProto.FLOAT),
        onnx.helper.make_node("Add", ["wide", "weight"], ["sum"]),
        onnx.helper.make_node("Cast", ["sum"], ["y"], to=onnx.TensorProto.BFLOAT16),
    ]
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.BFLOAT16, [2]) for name in "xy")
    graph = onnx.helper.make_graph(nodes, "g", [x], [y], [weight])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="m.data", size_threshold=0)
    feeds = {"x": np.array([1.0, 2.0], ml_dtypes.bfloat16)}
    (got,) = runners.open_onnxruntime(files.load(path), str(path))(feeds)
    close([got], [np.array([2.0, 4.0], ml_dtypes.bfloat16)])


def test_comparing_leaves_the_logger_of_onnxruntime_alone():
    code = (
        "import onnxruntime, unittest.mock as mock\n"
        "with mock.patch('onnxruntime.set_default_logger_severity') as silence:\n"
        "    import rnn_lower.checking.checker\n"
        "assert not silence.called"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("place", ["main", "if", "loop", "function"])
@pytest.mark.parametrize("external", [False, True])
def test_an_empty_sequence_does_not_end_the_process(place, external, tmp_path):
    """Wherever the fused GRU is, in a child, so that a failure of this test is no crash of the suite."""
    model, feeds = build(Case("GRU", 18, dynamic=True, outputs=("Y_h",), place=place, H=16, I=3))
    onnx.save(model, tmp_path / "a.onnx", save_as_external_data=external, location="w", size_threshold=0)
    rnn_lower.lower_file(tmp_path / "a.onnx", tmp_path / "b.onnx", target="onnxruntime")
    np.savez(tmp_path / "x.npz", **{**feeds, "X": feeds["X"][:0]})
    code = f"import rnn_lower; print(rnn_lower.check(r'{tmp_path}/a.onnx', r'{tmp_path}/b.onnx', inputs=r'{tmp_path}/x.npz'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if place == "loop":  # the reference evaluator joins what a Loop stacks, so nobody can judge; but it is told
        assert done.returncode in (0, 1)
    else:
        assert done.returncode == 0, done.stderr
        assert "an empty sequence" in done.stdout


def identity_model(dtype: int, node: str = "Identity", **attributes: object) -> onnx.ModelProto:
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(node, ["x"], ["y"], **attributes)], "g",
        [onnx.helper.make_tensor_value_info("x", dtype, [None])], [onnx.helper.make_tensor_value_info("y", dtype, [None])],
    )  # fmt: skip
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 14)], ir_version=8)


def test_integers_are_equal_or_not():
    assert compare.compare("ids", np.array([5000]), np.array([5004]), rtol=1e-3, atol=1e-5).ok is False
    assert compare.compare("ids", np.array([5000]), np.array([5000]), rtol=1e-3, atol=1e-5).ok
    large = np.array([2**62]), np.array([2**62 + 1])
    assert compare.compare("ids", *large, rtol=1e-3, atol=1e-5).ok is False
    assert compare.compare("flags", np.array([True]), np.array([False]), rtol=1e-3, atol=1e-5).ok is False


def test_nan_agrees_with_nan_only():
    nan, one = np.array([np.nan, 1.0]), np.array([1.0, 1.0])
    assert compare.compare("y", nan, nan.copy(), rtol=1e-3, atol=1e-5).ok
    assert not compare.compare("y", nan, one, rtol=1e-3, atol=1e-5).ok
    assert not compare.compare("y", one, nan, rtol=1e-3, atol=1e-5).ok
    inf = np.array([np.inf, 1.0])
    assert compare.compare("y", inf, inf.copy(), rtol=1e-3, atol=1e-5).ok
    assert not compare.compare("y", inf, -inf, rtol=1e-3, atol=1e-5).ok


def test_small_outputs_are_compared_by_their_own_size():
    a = np.full(4, 1e-7, np.float32)
    assert not compare.compare("y", a, a * np.float32(1.01), rtol=1e-3, atol=1e-5).ok
    assert compare.compare("y", a, a * np.float32(1.0001), rtol=1e-3, atol=1e-5).ok


def test_nothing_compared_is_no_agreement():
    constant = identity_model(1, "Shape")
    constant.graph.output[0].type.tensor_type.elem_type = 7
    for dims, words in ((3, "the same in all runs"), (0, "is empty")):
        model = identity_model(1) if dims == 0 else constant
        for value in (*model.graph.input, *(model.graph.output if dims == 0 else ())):
            value.type.tensor_type.shape.dim[0].dim_value = dims
        report = rnn_lower.check(model, model)
        assert not report.ok
        assert words in report.nothing_compared


def test_integer_inputs_reach_every_row_and_constant():
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("Gather", ["table", "ids"], ["row"]),
            onnx.helper.make_node("Equal", ["rate", "sixteen"], ["fast"]),
        ],
        "g",
        [onnx.helper.make_tensor_value_info("ids", 7, [64]), onnx.helper.make_tensor_value_info("rate", 7, [])],
        [onnx.helper.make_tensor_value_info("row", 1, None), onnx.helper.make_tensor_value_info("fast", 9, None)],
        [
            onnx.numpy_helper.from_array(np.zeros((50, 2), np.float32), "table"),
            onnx.numpy_helper.from_array(np.array(16000), "sixteen"),
        ],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 14)], ir_version=8)
    sampled = samples.Samples(ir.from_proto(model))
    sets = [next(sampled.candidates(index)) for index in range(12)]
    ids = np.concatenate([feeds["ids"] for feeds in sets])
    assert set(ids) == set(range(50))
    assert 16000 in {int(feeds["rate"]) for feeds in sets}


@pytest.mark.parametrize("seed", [3, 5])
def test_wrong_lowerings_are_caught(seed):
    """A few of what tests/soak/mutants.py makes by the thousand: prove rejects all, check most that floats can show."""
    rows = run(40, seed)
    assert [row.kind for row in rows if not row.proof_right] == []
    shown = [row for row in rows if "one unit" not in row.kind]
    missed = [row.kind for row in shown if not row.check_right]
    assert len(missed) <= 1, missed
    assert len(shown) >= 30


@pytest.mark.parametrize("seed", [4, 6, 7])
def test_no_wrong_lowering_is_proved(seed):
    rows = run(50, seed, checks=False)
    assert [row.kind for row in rows if not row.proof_right] == []
    assert {"one unit", "equal"} <= {row.kind for row in rows}
    assert any(row.kind.startswith("original") for row in rows)


def test_lengths_that_come_through_a_cast_are_sampled_as_lengths():
    case = Case("RNN", 14, optional=("B", "sequence_lens"), lengths_as="input", outputs=("Y_h",), T=5, N=3)
    models = []
    for seed in (0, 1):
        model, _ = build(case.replace(seed=0))
        if seed:  # another R, which shows only from the second step on
            weight = next(tensor for tensor in model.graph.initializer if tensor.name == "R")
            weight.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight) * 2, "R"))
        model.graph.node[0].input[4] = "narrow"
        model.graph.node.insert(0, onnx.helper.make_node("Cast", ["sequence_lens"], ["narrow"], to=6))
        next(v for v in model.graph.input if v.name == "sequence_lens").type.tensor_type.elem_type = 7
        models.append(model)
    assert rnn_lower.check(models[0], models[0]).ok
    assert not rnn_lower.check(*models).ok


def test_an_empty_recurrent_output_beside_a_live_one_is_no_agreement():
    model, _ = build(Case("RNN", 14, T=0, outputs=("Y",)))
    model.graph.input.append(onnx.helper.make_tensor_value_info("z", 1, [3]))
    model.graph.node.append(onnx.helper.make_node("Relu", ["z"], ["positive"]))
    model.graph.output.append(onnx.helper.make_tensor_value_info("positive", 1, [3]))
    report = rnn_lower.check(model, model)
    assert not report.ok
    assert "of a recurrent node is empty" in report.nothing_compared


@pytest.mark.parametrize(
    "wrong",
    [{"runs": "3"}, {"runs": 1.5}, {"seed": 0.5}, {"seed": -1}, {"inputs": 3}, {"rtol": float("nan")}, {"atol": None}],
)
def test_wrong_arguments_are_told(wrong):
    model, _ = build(Case("RNN"))
    with pytest.raises(rnn_lower.RnnLowerError):
        rnn_lower.check(model, model, **wrong)


def test_a_difference_is_located_in_its_node_step_and_gate():
    model, _ = build(Case("LSTM", optional=("B", "initial_h", "initial_c"), H=3, T=4, N=2))
    lowered = rnn_lower.lower(model)
    bias = next(tensor for tensor in lowered.graph.initializer if "bias" in tensor.name)
    array = onnx.numpy_helper.to_array(bias).copy()
    array[7] += 1  # the second unit of gate f
    bias.CopyFrom(onnx.numpy_helper.from_array(array, bias.name))
    report = rnn_lower.check(model, lowered)
    assert not report.ok
    assert len(report.located) == 1
    assert report.located[0].startswith("node: 'Y' first differs in gate f at step 0 of the forward direction,")


def test_nothing_is_located_where_models_agree_or_were_never_lowered():
    model, _ = build(Case("RNN"))
    other, _ = build(Case("RNN", seed=1))
    assert rnn_lower.check(model, rnn_lower.lower(model)).located == ()
    report = rnn_lower.check(model, other)
    assert (report.ok, report.located) == (False, ())


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_errors_in_units_in_the_last_place(dtype):
    info = ml_dtypes.finfo(dtype)
    numbers = np.array([1.0, -3.0, 1e-3, 0.0, float(info.smallest_subnormal)], dtype)
    above = np.nextafter(numbers, dtype(np.inf))
    assert compare.compare("y", numbers, above, 1e-3, 1e-5).max_ulp_error == 1.0
    assert compare.compare("y", numbers, numbers, 1e-3, 1e-5).max_ulp_error == 0.0
    assert compare.compare("y", np.array([1]), np.array([2]), 1e-3, 1e-5).max_ulp_error == 0.0


def test_strings_among_the_initializers():
    model, _ = build(Case("GRU", 17, optional=("B",), outputs=("Y_h",)))
    model.graph.initializer.append(onnx.helper.make_tensor("a", onnx.TensorProto.STRING, [1], [b"a"]))
    model.graph.initializer.append(onnx.helper.make_tensor("b", onnx.TensorProto.STRING, [1], [b"b"]))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(0), "zero"))
    model.graph.node.append(onnx.helper.make_node("Greater", ["Y_h", "zero"], ["positive"]))
    model.graph.node.append(onnx.helper.make_node("Where", ["positive", "a", "b"], ["said"]))
    model.graph.output.append(onnx.helper.make_tensor_value_info("said", onnx.TensorProto.STRING, None))
    assert rnn_lower.check(model, rnn_lower.lower(model)).ok


@pytest.mark.parametrize("bound", [5.0, 6.0])
def test_an_output_that_is_one_value_in_all_shapes_says_nothing(bound):
    model, _ = build(Case("GRU", 17, optional=("B",), outputs=("Y_h",), dynamic=True))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(bound), "bound"))
    model.graph.node.append(onnx.helper.make_node("Greater", ["Y_h", "bound"], ["large"]))
    model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("large", onnx.TensorProto.BOOL, None))
    lowered = rnn_lower.lower(model)
    report = check_by_running(model, lowered)
    assert not report.ok
    assert "the same in all runs" in report.nothing_compared
    assert rnn_lower.check(model, lowered).ok, "the node is proved"


def test_an_infinite_clip_is_none():
    model, _ = build(Case("GRU", 17, optional=("B",), clip=float("inf")))
    assert rnn_lower.check(model, rnn_lower.lower(model)).ok


LOOPS = {
    "a condition": "(int64 M, bool go, float[2,3] s) => (float[2,3] e, float[M,2,3] a, float[M] b) { e, a, b = Loop (M, go, s) ",
    "none": "(int64 M, float[2,3] s) => (float[2,3] e, float[M,2,3] a, float[M] b) { e, a, b = Loop (M, , s) ",
}
BODY = """<body: graph = body (int64 i, bool c, float[2,3] x) => (bool again, float[2,3] y, float[2,3] z, float n) {
    again = Identity (c)
    f = Cast <to: int = 1> (i)
    y = Add (x, f)
    z = Mul (y, y)
    n = ReduceSum <keepdims: int = 0> (z)
}>"""


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("trips", [1, 3])
def test_what_a_loop_gives_is_stacked(loop, trips):
    """onnx's evaluator strings it together, and takes an absent condition for a false one."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> one {LOOPS[loop]} {BODY} }}')
    feeds = {"M": np.array(trips), "go": np.array(True), "s": np.arange(6, dtype=np.float32).reshape(2, 3)}
    feeds = {value.name: feeds[value.name] for value in model.graph.input}
    for actual, expected in zip(run_reference(model, feeds), run_onnxruntime(model, feeds), strict=True):
        np.testing.assert_array_equal(actual, expected, strict=True)


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_what_one_node_does_not_want_reaches_no_other(op):
    """onnx's evaluator keeps unwanted outputs under no name, and an input without a name is one that is not given."""
    model, feeds = build(Case(op, 17, outputs=("Y",), dtype="double"))
    (first,) = (node for node in model.graph.node if node.op_type == op)
    first.output.append("")
    second = onnx.NodeProto.FromString(first.SerializeToString())
    second.output[0], second.name = "again", "second"
    second.input.extend([""] * (5 - len(second.input)))
    model.graph.node.append(second)
    model.graph.output.append(onnx.helper.make_tensor_value_info("again", onnx.TensorProto.DOUBLE, None))
    one, other = run_reference(model, feeds)
    np.testing.assert_array_equal(one, other)
    assert rnn_lower.check(model, rnn_lower.lower(model)).ok


@pytest.mark.parametrize("name", ["shape", "size", "zero", "zeros", "some", "none", "x", "empty"])
def test_whatever_a_sequence_is_called_the_judge_is_the_same(name):
    model, _ = build(Case("GRU", 14, dynamic=True))
    model.graph.input[0].name = model.graph.node[0].input[0] = name
    report = rnn_lower.check(model, rnn_lower.lower(model))
    assert report.ok
    assert report.judge.startswith("onnxruntime")
