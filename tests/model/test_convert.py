"""Conversion to another opset means the same, or is refused: by the operators' own test cases, and where meaning changed."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from judge import close, run_onnxruntime
from onnx import TensorProto, helper, numpy_helper

import rnn_lower
from rnn_lower.driver import lower_pass
from rnn_lower.ir.walk import default_opset
from rnn_lower.options import OP_TYPES

PARTS = 12
"""Of which the suite takes every second."""

OPSETS = (11, 12, 17, 21)

Trial = tuple[str, onnx.ModelProto, dict[str, Any]]


@functools.cache
def trials() -> list[Trial]:
    """onnx's test cases of single nodes, each also with its smaller inputs as initializers."""
    from onnx.backend.test.case.node import collect_testcases

    found: list[Trial] = []
    for case in collect_testcases(None):
        model = case.model
        if model is None or case.name.endswith("_expanded") or any(n.op_type in OP_TYPES for n in model.graph.node):
            continue
        given = case.data_sets[0][0]
        feeds = {value.name: array for value, array in zip(model.graph.input, given, strict=False)}
        found.append((case.name, model, feeds))
        known = [name for name in list(feeds)[1:] if isinstance(feeds[name], np.ndarray) and np.size(feeds[name]) <= 64]
        if known:
            copy = onnx.ModelProto.FromString(model.SerializeToString())
            kept = [value for value in copy.graph.input if value.name not in known]
            copy.graph.initializer.extend(numpy_helper.from_array(feeds[name], name) for name in known)
            del copy.graph.input[:]
            copy.graph.input.extend(kept)
            found.append((f"{case.name}, known", copy, {k: v for k, v in feeds.items() if k not in known}))
    return found


@pytest.mark.parametrize("part", range(0, PARTS, 2))
@pytest.mark.filterwarnings("ignore")
def test_the_operators_own_cases(part, monkeypatch):
    monkeypatch.setenv("ALLOW_RELEASED_ONNX_OPSET_ONLY", "0")  # or onnxruntime leaves out those of the newest opset
    monkeypatch.setattr(
        lower_pass, "advised", lambda work, *_: work()
    )  # a refusal is enough, without what would mend it
    compared, wrong = 0, []
    for name, model, feeds in trials()[part::PARTS]:
        try:
            wanted = run(model, feeds)
        except Exception:  # not every case runs there
            continue
        for opset in OPSETS:
            if opset == default_opset({entry.domain: entry.version for entry in model.opset_import}):
                continue
            try:
                converted = rnn_lower.lower(model, opset=opset)
            except rnn_lower.RnnLowerError:
                continue
            problem = difference(converted, feeds, wanted)
            compared += problem is not None
            wrong += [f"{name} at {opset}: {problem}"] if problem else []
    assert wrong == []
    assert compared > 50


def run(model: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    """With one thread: starting more takes longer than any of these nodes."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def difference(model: onnx.ModelProto, feeds: dict[str, Any], wanted: list[Any]) -> str | None:
    """What is wrong, or nothing; None where onnxruntime has no kernel for an older version."""
    try:
        found = run(model, feeds)
    except Exception as error:
        return None if "NOT_IMPLEMENTED" in str(error) else str(error)[:200]
    return "" if all(map(alike, wanted, found)) else "other values"


def alike(wanted: Any, found: Any) -> bool:
    if isinstance(wanted, list):
        return len(wanted) == len(found) and all(map(alike, wanted, found))
    a, b = np.asarray(wanted), np.asarray(found)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return bool(np.allclose(a, b, 1e-4, 1e-4, equal_nan=True)) if a.dtype.kind in "fc" else bool(np.array_equal(a, b))


def one(op: str, opset: int, inputs: tuple[np.ndarray, ...] = (), ranked: bool = True, **attributes: Any) -> Trial:
    """One node whose first input is [2, 3, 4, 5], given at run time."""
    names = [f"c{place}" for place in range(len(inputs))]
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["r"]), helper.make_node(op, ["r", *names], ["y"], **attributes)], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 4, 5] if ranked else None)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], list(map(numpy_helper.from_array, inputs, names)),
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=7)
    return op, model, {"x": np.random.default_rng(2).standard_normal((2, 3, 4, 5)).astype(np.float32)}


def means_the_same(trial: Trial, opset: int, **options: Any) -> None:
    _, model, feeds = trial
    converted = rnn_lower.lower(model, opset=opset, **options)
    assert difference(converted, feeds, run(model, feeds)) == ""


FLATTENING = ("Softmax", "LogSoftmax", "Hardmax")


@pytest.mark.parametrize("op", FLATTENING)
@pytest.mark.parametrize("axis", [None, 0, 1, 2, 3])
@pytest.mark.parametrize(("before", "after"), [(7, 13), (12, 17), (13, 12), (17, 11), (22, 8)])
def test_the_axis_of_a_softmax(op, axis, before, after):
    """Up to opset 12 all axes from it on, from 13 on it alone."""
    trial = one(op, before, **({} if axis is None else {"axis": axis}))
    is_last = axis == 3 or (axis is None and before >= 13)
    if op == "Hardmax" and before >= 13:
        with pytest.raises(rnn_lower.UnsupportedError, match="onnx has no converter for it"):
            rnn_lower.lower(trial[1], opset=after)
    elif is_last or (before < 13 and op != "Hardmax"):
        means_the_same(trial, after)
    else:
        with pytest.raises(
            rnn_lower.UnsupportedError, match="before opset 13, it normalizes over `axis` and all later axes"
        ):
            rnn_lower.lower(trial[1], opset=after)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_the_last_axis_of_an_unknown_rank(op):
    trial = one(op, 13, ranked=False, axis=-1)
    means_the_same(trial, 12)
    with pytest.raises(rnn_lower.UnsupportedError, match="rank of the node's input is unknown"):
        rnn_lower.lower(trial[1], opset=10)


SCALES = {"twice": [1, 1, 2, 2], "broken": [1, 1, 1.5, 1.7], "smaller": [1, 1, 0.6, 0.5]}
UNSCALED = {"Upsample": ("smaller",), "Resize": ()}
"""What an operator's text rules out."""


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(
    ("op", "before", "scales"),
    [
        (op, v, s)
        for op, v in (("Upsample", 7), ("Upsample", 9), ("Resize", 10))
        for s in SCALES
        if s not in UNSCALED[op]
    ],
)
@pytest.mark.parametrize("after", [11, 13, 18, 21])
def test_where_a_resized_pixel_comes_from(op, before, scales, mode, after):
    """Before opset 11 places were divided by the scale, since then half pixels are the default."""
    numbers = np.array(SCALES[scales], np.float32)
    trial = (
        one(op, before, mode=mode, scales=numbers.tolist()) if before == 7 else one(op, before, (numbers,), mode=mode)
    )
    if mode == "nearest" and scales == "smaller":
        with pytest.raises(
            rnn_lower.UnsupportedError, match="does not define which of two equally near neighbors it picks"
        ):
            rnn_lower.lower(trial[1], opset=after)
    else:
        means_the_same(trial, after)


def test_group_normalization_by_group_and_by_channel():
    trial = one("GroupNormalization", 18, (np.ones(1, np.float32), np.zeros(1, np.float32)), num_groups=1)
    means_the_same(trial, 20)
    with pytest.raises(rnn_lower.UnsupportedError, match="from one value per group to one value per channel"):
        rnn_lower.lower(trial[1], opset=21)


@pytest.mark.parametrize(
    ("op", "before", "after", "attributes"),
    [
        ("AveragePool", 19, 17, {"kernel_shape": [2, 2], "dilations": [2, 1]}),
        ("ReduceMax", 18, 17, {"noop_with_empty_axes": 1}),
        ("ReduceSum", 13, 12, {"noop_with_empty_axes": 1}),
    ],
)
def test_what_an_older_version_cannot_say(op, before, after, attributes):
    _, model, _ = one(op, before, **attributes)
    with pytest.raises(
        rnn_lower.UnsupportedError, match=rf"version \d+ of the operator has no attribute '{list(attributes)[-1]}'"
    ):
        rnn_lower.lower(model, opset=after)
    if op != "AveragePool":
        means_the_same(one(op, before, noop_with_empty_axes=0), after)  # which goes without saying


@pytest.mark.parametrize(
    ("op", "before", "after", "inputs", "attributes"),
    [
        ("Resize", 19, 18, [np.zeros(0, np.float32), np.array([1, 1, 2, 2], np.float32)], {"coordinate_transformation_mode": "half_pixel_symmetric"}),
        ("ScatterND", 18, 16, [np.zeros((1, 1), np.int64), np.ones((1, 3, 4, 5), np.float32)], {"reduction": "max"}),
    ],
)  # fmt: skip
def test_values_that_an_older_version_does_not_know(op, before, after, inputs, attributes):
    _, model, _ = one(op, before, tuple(inputs), **attributes)
    with pytest.raises(rnn_lower.UnsupportedError, match=next(iter(attributes.values()))):
        rnn_lower.lower(model, opset=after)


@pytest.mark.parametrize("axis", [-1, -2, -4, 1])
def test_negative_axes_before_opset_11(axis):
    means_the_same(one("Flatten", 13, axis=axis), 10)
    means_the_same(one("Flatten", 11, axis=axis), 9)
    means_the_same(one("Gather", 13, (np.array([1, 0]),), axis=axis), 10)


def test_types_that_an_older_version_does_not_take():
    nodes = [
        helper.make_node("SequenceConstruct", ["x"], ["s"]),
        helper.make_node("Identity", ["s"], ["t"]),
        helper.make_node("ConcatFromSequence", ["t"], ["y"], axis=0),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xy")
    model = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y]), opset_imports=[helper.make_opsetid("", 14)], ir_version=7
    )
    onnxruntime.InferenceSession(model.SerializeToString())
    with pytest.raises(rnn_lower.UnsupportedError, match="Identity"):
        rnn_lower.lower(model, opset=13)


@pytest.mark.parametrize(("before", "after"), [(7, 10), (9, 12), (7, 13), (11, 9)])
def test_the_mask_of_a_dropout_changed_its_type(before, after):
    """A mask that nothing reads is left out; one that is read cannot be converted."""
    trial = one("Dropout", before)
    graph = trial[1].graph
    graph.node[1].output.append("mask")
    mask = helper.make_tensor_value_info("mask", TensorProto.FLOAT if before < 10 else TensorProto.BOOL, [2, 3, 4, 5])
    graph.value_info.append(mask)
    means_the_same(trial, after)
    graph.output.append(mask)
    with pytest.raises(rnn_lower.UnsupportedError, match="mask"):
        rnn_lower.lower(trial[1], opset=after)
    del graph.value_info[:], graph.output[1]
    graph.node.append(helper.make_node("Cast", ["mask"], ["number"], to=TensorProto.FLOAT))
    graph.output.append(helper.make_tensor_value_info("number", TensorProto.FLOAT, None))
    with pytest.raises(rnn_lower.UnsupportedError, match="mask"):
        rnn_lower.lower(trial[1], opset=after)


def test_an_unread_mask_in_a_function_stays():
    """Its node refers to an attribute of the function, so that it cannot be converted."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 9, "own" : 1]> g (float[2] x) => (float[2] y) { y = own.f<r = 0.5>(x) }
        <opset_import: ["" : 9], domain: "own"> f <r> (a) => (b) { b, m = Dropout<ratio: float = @r>(a) }""")
    lowered = rnn_lower.lower(model, opset=10)
    close(run_onnxruntime(lowered, {"x": np.ones(2, np.float32)}), [np.ones(2, np.float32)])


@pytest.mark.parametrize(("op", "before", "after"), [("Erf", 12, 13), ("ReduceLogSum", 18, 28)])
def test_types_that_a_newer_version_does_not_take(op, before, after):
    _, model, _ = one(op, before)
    model.graph.node[0].op_type = "Identity"
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.INT64
    with pytest.raises(rnn_lower.UnsupportedError, match=rf"opset {before} -> {after}: {op} .*[Oo]pset"):
        rnn_lower.lower(model, opset=after)


def test_the_remainder_of_floating_point_numbers():
    """Before opset 28 that takes fmod = 1."""
    _, model, _ = one("Mod", 28, (np.ones(1, np.float32),))
    with pytest.raises(rnn_lower.UnsupportedError, match="floating-point numbers only with fmod = 1"):
        rnn_lower.lower(model, opset=21)
    assert rnn_lower.lower(one("Mod", 28, (np.ones(1, np.float32),), fmod=1)[1], opset=21)


@pytest.mark.parametrize("other", [(2,), (2, 4), (1, 3), (2, 3)])
def test_branches_of_two_shapes(other):
    """From opset 11 on those of an If may give two."""

    def branch(name: str, shape: tuple[int, ...]) -> onnx.GraphProto:
        value = numpy_helper.from_array(np.full(shape, len(name), np.float32))
        given = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        return helper.make_graph([helper.make_node("Constant", [], [name], value=value)], name, [], [given])

    node = helper.make_node("If", ["c"], ["y"], then_branch=branch("then", (2, 3)), else_branch=branch("or", other))
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("c", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=7)
    if other != (2, 3):
        with pytest.raises(rnn_lower.UnsupportedError, match="both branches must return the same shape"):
            rnn_lower.lower(model, opset=10)
    for taken in (True, False):
        wanted = run_onnxruntime(model, {"c": np.array(taken)})
        converted = rnn_lower.lower(model, opset=10 if other == (2, 3) else 11)
        close(run_onnxruntime(converted, {"c": np.array(taken)}), wanted)


def test_texts_that_are_known():
    words = numpy_helper.from_array(np.array(["a", "b"], object), "words")
    graph = helper.make_graph(
        [helper.make_node("Equal", ["x", "words"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.STRING, [2])],
        [helper.make_tensor_value_info("y", TensorProto.BOOL, [2])], [words],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    with pytest.raises(rnn_lower.UnsupportedError, match="Equal"):
        rnn_lower.lower(model, opset=17)


@pytest.mark.parametrize("op", ["Max", "Mean", "Min", "Sum"])
@pytest.mark.parametrize("shapes", [([2, 3], [1, 3]), (["p", "q"], ["s", "q"])], ids=str)
def test_broadcasting_before_opset_8(op, shapes):
    def made(*shapes):
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, s) for name, s in zip("ab", shapes, strict=True)]
        graph = helper.make_graph(
            [helper.make_node(op, ["a", "b"], ["y"])], "g", ends,
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        )  # fmt: skip
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)

    with pytest.raises(rnn_lower.UnsupportedError, match="before opset 8, all its inputs must have the same shape"):
        rnn_lower.lower(made(*shapes), opset=7)
    alike = rnn_lower.lower(made([2, 3], [2, 3]), opset=7)
    feeds = {name: np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32) for name in "ab"}
    np.testing.assert_array_equal(*(run(each, feeds)[0] for each in (made([2, 3], [2, 3]), alike)))


@pytest.mark.parametrize("op", ["Add", "Div", "Mul", "Pow", "Sub"])
@pytest.mark.parametrize(("before", "axis"), [(1, None), (5, None), (6, None), (6, 2), (6, -1)])
def test_broadcasting_of_unknown_sizes_before_opset_7(op, before, axis):
    """If the last axes are aligned, it is today's; onnx's converter needs all sizes."""
    aligned = {} if axis is None else {"axis": axis}
    row = numpy_helper.from_array(np.array([1, 2, 3, 4], np.float32), "row")
    inputs = [helper.make_tensor_value_info("a", TensorProto.FLOAT, ["T", "N", 4])]
    nodes = [
        helper.make_node("Abs", ["a"], ["b"]), helper.make_node(op, ["b", "row"], ["y"], broadcast=1, **aligned),
        helper.make_node(op, ["y", "b"], ["z"]),
    ]  # fmt: skip
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)], [row])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", before)], ir_version=8)
    lowered = rnn_lower.lower(model, opset=13)
    a = np.random.default_rng(0).uniform(0.5, 1, (3, 2, 4)).astype(np.float32)
    function = {"Add": np.add, "Div": np.divide, "Mul": np.multiply, "Pow": np.power, "Sub": np.subtract}[op]
    wanted = function(function(a, np.arange(1, 5, dtype=np.float32)), a)
    np.testing.assert_allclose(run(lowered, {"a": a})[0], wanted, rtol=1e-5)
    assert rnn_lower.prove(model, lowered).ok


@pytest.mark.parametrize(("op", "shape"), [("Unsqueeze", [2, 3]), ("Squeeze", [2, 1])])
@pytest.mark.parametrize(("before", "after"), [(13, 9), (12, 9), (12, 10)])
def test_axes_from_the_end_before_opset_11(op, shape, before, after):
    axes = [numpy_helper.from_array(np.array([-1]), "axes")] if before >= 13 else []
    node = helper.make_node(op, ["x", "axes"], ["y"]) if axes else helper.make_node(op, ["x"], ["y"], axes=[-1])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", [x], [y], axes)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", before)], ir_version=8)
    lowered = rnn_lower.lower(model, opset=after)
    (found,) = (each for each in lowered.graph.node if each.op_type == op)
    assert min(axis for attribute in found.attribute for axis in attribute.ints) >= 0
    feeds = {"x": np.zeros(shape, np.float32)}
    assert [a.shape for a in run(model, feeds)] == [a.shape for a in run(lowered, feeds)]


def test_squeezes_without_axes_before_opset_13():
    for operands, axes in ((["x"], []), (["x", "a"], [numpy_helper.from_array(np.array([], np.int64), "a")])):
        ends = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 1])]
        graph = helper.make_graph(
            [helper.make_node("Squeeze", operands, ["y"])], "g", ends,
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], axes,
        )  # fmt: skip
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
        try:
            lowered = rnn_lower.lower(model, opset=11)
        except rnn_lower.UnsupportedError:
            continue
        feeds = {"x": np.zeros((2, 1), np.float32)}
        assert [a.shape for a in run(model, feeds)] == [a.shape for a in run(lowered, feeds)]


@pytest.mark.parametrize(("before", "after"), [(17, 11), (14, 12)])
def test_a_converted_node_of_a_function_declares_no_type(before, after):
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : {before}, "own" : 1]>
        g (float[4,2,3] X, float[1,2,3] W, float[1,2,2] R) => (float[4,1,2,2] Y) {{ Y = own.Encoder (X, W, R) }}
        <domain: "own", opset_import: ["" : {before}]> Encoder (x, w, r) => (y) {{
        one = Constant <value_ints = [1]> () u = Unsqueeze (x, one) s = Squeeze (u, one) y = RNN <hidden_size = 2> (s, w, r) }}""")
    lowered = rnn_lower.lower(model, opset=after)
    assert rnn_lower.prove(model, lowered)


def test_integers_in_functions_below_opset_9_are_refused():
    """No Constant can contain them, and functions have no initializers."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17, "my" : 1]> g (float[2,6] x) => (float[3,4] y)
        { y = my.f (x) } <domain: "my", opset_import: ["" : 17]> f (a) => (b) {
            s = Constant <value = int64[2] {3, 4}> () b = Reshape (a, s) }""")
    assert rnn_lower.lower(model, opset=9).opset_import[0].version == 9
    with pytest.raises(rnn_lower.UnsupportedError, match="functions have no initializers"):
        rnn_lower.lower(model, opset=8)
