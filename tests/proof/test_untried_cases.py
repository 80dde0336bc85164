"""Files that differ only where no comparison came: large batches, late positions, branches that never run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
import pytest
from judge import marked, proved_as_wholes, run_onnxruntime
from onenode import Case, build
from onnx import TensorProto, helper, numpy_helper

import rnn_lower
from rnn_lower.driver.legalize_rest import LEGALIZED
from rnn_lower.proving.exact import field
from rnn_lower.proving.nodes.cases import Known, choose_cases

INFO = helper.make_tensor_value_info


def behind(model: onnx.ModelProto, output: str = "Y") -> str:
    """Rename the computed output, so that other nodes can compute it; return the new name."""
    producer = next(node for node in model.graph.node if output in node.output)
    producer.output[list(producer.output).index(output)] = "before"
    return "before"


def add(model: onnx.ModelProto, op: str, inputs: list[str], output: str, **attributes: object) -> None:
    model.graph.node.append(marked(op, inputs, [output], **attributes))


def constants(model: onnx.ModelProto, **values: object) -> None:
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in values.items())


def negated_beyond(model: onnx.ModelProto, axis: int, limit: int) -> None:
    """Negate Y where an axis of X has at least this size."""
    before = behind(model)
    constants(model, axis=axis, limit=limit)
    add(model, "Shape", ["X"], "shape")
    add(model, "Gather", ["shape", "axis"], "size")
    add(model, "Less", ["size", "limit"], "small")
    add(model, "Neg", [before], "minus")
    add(model, "Where", ["small", before, "minus"], "Y")


def free(model: onnx.ModelProto, axis: int) -> onnx.ModelProto:
    """The model with one size of X, and of what follows, left open."""
    model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = "free"
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    return model


@pytest.mark.parametrize("limit", [4, 6, 30])
@pytest.mark.parametrize("lengths", [(), ("sequence_lens",)])
def test_a_batch_beyond_the_compared_ones(limit, lengths):
    model, feeds = build(Case("LSTM", 17, T=5, N=2, outputs=("Y",), optional=lengths, lengths_as="input"))
    free(model, 1)
    for value in model.graph.input[1:]:
        value.type.tensor_type.shape.dim[0].dim_param = "free"
    lowered = rnn_lower.lower(model)
    assert rnn_lower.prove(model, lowered).ok
    negated_beyond(lowered, 1, limit)
    wide = {name: np.repeat(array, 20, 0 if name == "sequence_lens" else 1) for name, array in feeds.items()}
    (wanted,), (actual,) = run_onnxruntime(model, wide), run_onnxruntime(lowered, wide)
    assert not np.allclose(wanted, actual, atol=1e-3)
    assert not rnn_lower.prove(model, lowered).ok


@pytest.mark.parametrize("how", ["Slice", "Gather"])
@pytest.mark.parametrize("computed", [False, True])
def test_a_late_position_of_the_sequence(how, computed):
    """Of 45 zeros and the sequence, position 44 is zero up to 44 steps, if the sequence comes first."""
    model, feeds = build(Case("RNN", 17, T=5, N=2, outputs=("Y",)))
    free(model, 0)
    lowered = rnn_lower.lower(model)
    before, units = behind(lowered), 4
    constants(
        lowered, zeros=np.zeros((60, 1, 2, units), np.float32), k=[44], end=[45], first=[0], one=[1], more=[43], go=[0]
    )
    add(lowered, "Concat", [before, "zeros"], "long", axis=0)
    k = "sum" if computed else "k"
    if computed:
        add(lowered, "Add", ["more", "one"], "sum")
    if how == "Slice":
        add(lowered, "Slice", ["long", k, "end", "first"], "late")
    else:
        add(lowered, "Gather", ["long", k], "late", axis=0)
    add(lowered, "Add", [before, "late"], "Y")
    assert lowered.graph.output[0].name == "Y"
    assert np.shape(feeds["X"])[0] == 5
    long = {"X": np.random.default_rng(0).standard_normal((50, 2, feeds["X"].shape[2])).astype(np.float32)}
    (wanted,), (actual,) = run_onnxruntime(model, long), run_onnxruntime(lowered, long)
    assert not np.allclose(wanted, actual, atol=1e-3)
    (wanted,), (actual,) = run_onnxruntime(model, feeds), run_onnxruntime(lowered, feeds)
    assert np.allclose(wanted, actual, atol=1e-6)
    assert not rnn_lower.prove(model, lowered).ok


UNTAKEN = {
    "MatMul": (["before", "square"], {}), "Transpose": (["before"], {"perm": [0, 0, 1, 2]}),
    "Concat": (["before", "square"], {"axis": 7}), "Neg": (["before"], {}),
}  # fmt: skip


@pytest.mark.parametrize("op", UNTAKEN)
def test_a_branch_that_never_runs(op):
    model, _ = build(Case("LSTM", 17, T=5, N=2, outputs=("Y",)))
    lowered = rnn_lower.lower(model)
    behind(lowered)
    constants(lowered, yes=True, square=np.zeros((99, 99), np.float32))
    inputs, attributes = UNTAKEN[op]
    branches = (
        helper.make_graph([marked("Identity", ["before"], ["then"])], "a", [], [INFO("then", TensorProto.FLOAT, None)]),
        helper.make_graph(
            [marked(op, inputs, ["else"], **attributes)], "b", [], [INFO("else", TensorProto.FLOAT, None)]
        ),
    )
    add(lowered, "If", ["yes"], "Y", then_branch=branches[0], else_branch=branches[1])
    proof = rnn_lower.prove(model, lowered)
    assert not proof.ok
    assert "else_branch of If" in proof.reasons[-1]


def with_own_loop() -> onnx.ModelProto:
    """An LSTM, and a Loop that is not lowered."""
    model, _ = build(Case("LSTM", 17, T=5, N=2, outputs=("Y",)))
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Add", ["s", "s"], ["s2"])], "body",
        [INFO("trip", 7, []), INFO("go", 9, []), INFO("s", 1, [2])], [INFO("on", 9, []), INFO("s2", 1, [2])],
    )  # fmt: skip
    constants(model, trips=3, yes=True)
    model.graph.input.append(INFO("q", TensorProto.FLOAT, [2]))
    model.graph.node.append(helper.make_node("Loop", ["trips", "yes", "q"], ["Q"], body=body, name="own"))
    model.graph.output.append(INFO("Q", TensorProto.FLOAT, [2]))
    return model


@pytest.mark.parametrize("form", ["scan", "loop"])
@pytest.mark.parametrize("index", [0, 1])
def test_a_loop_declares_what_onnxruntime_requires(form, index):
    model = with_own_loop()
    lowered = rnn_lower.lower(model, form=form)
    assert rnn_lower.prove(model, lowered).ok
    for node in lowered.graph.node:
        if node.op_type == "Loop":
            changed = onnx.ModelProto.FromString(lowered.SerializeToString())
            twin = next(other for other in changed.graph.node if other.output == node.output)
            body = next(attribute.g for attribute in twin.attribute if attribute.name == "body")
            body.input[index].type.tensor_type.ClearField("shape")
            assert not rnn_lower.prove(model, changed).ok


def test_a_mark_does_not_choose_the_proof_of_a_node():
    model, feeds = build(Case("LSTM", 17, T=5, N=2, outputs=("Y",)))
    free(model, 0)
    lowered = rnn_lower.lower(model)
    negated_beyond(lowered, 0, 30)
    del lowered.graph.node[-1].metadata_props[:]
    lowered.metadata_props.add(key=LEGALIZED, value="opencv --legalize-all")
    long = {"X": np.repeat(feeds["X"], 9, 0)}
    (wanted,), (actual,) = run_onnxruntime(model, long), run_onnxruntime(lowered, long)
    assert not np.allclose(wanted, actual, atol=1e-3)
    assert not rnn_lower.prove(model, lowered).ok


def test_positions_of_the_largest_are_compared_in_floats():
    model = with_own_loop()
    model.graph.node.append(helper.make_node("ArgMax", ["q"], ["first"], axis=0))
    model.graph.output.append(INFO("first", TensorProto.INT64, [1]))
    lowered = rnn_lower.lower(model, loops=True)
    proof = rnn_lower.prove(model, lowered)
    assert proof.ok
    assert proof.steps
    next(node for node in lowered.graph.node if node.op_type == "ArgMax").input[0] = "rounded"
    constants(lowered, large=np.float32(1e8))
    lowered.graph.node.insert(0, marked("Sub", ["sum", "large"], ["rounded"]))
    lowered.graph.node.insert(0, marked("Add", ["q", "large"], ["sum"]))
    assert not proved_as_wholes(model, lowered).ok


@pytest.mark.parametrize("dtype", [np.float64, np.int64])
def test_false_declarations_of_the_original_hide_no_type_error(dtype):
    model = with_own_loop()
    model.graph.node.append(helper.make_node("Neg", ["q"], ["minus"]))
    model.graph.node.append(helper.make_node("Neg", ["minus"], ["plus"]))
    model.graph.output.append(INFO("plus", TensorProto.FLOAT, [2]))
    model.graph.value_info.append(INFO("minus", TensorProto.FLOAT, [3]))
    lowered = rnn_lower.lower(model, loops=True)
    assert rnn_lower.prove(model, lowered).ok
    before = behind(lowered, "Q")
    constants(lowered, zero=np.zeros(1, dtype))
    add(lowered, "Add", [before, "zero"], "Q")
    assert not proved_as_wholes(model, lowered).ok


@pytest.mark.parametrize("options", [{"form": "scan"}, {"form": "loop"}, {"form": "unroll"}, {"as_function": True}])
def test_nodes_in_any_order_are_proved(options):
    """onnxruntime sorts the main graph, and so does lowering."""
    model, feeds = build(Case("GRU", 17, T=5, N=2, outputs=("Y",)))
    model.graph.node.insert(0, helper.make_node("Identity", ["minus"], ["Z"]))
    model.graph.node.append(helper.make_node("Neg", ["X"], ["minus"]))
    model.graph.output.append(INFO("Z", TensorProto.FLOAT, feeds["X"].shape))
    lowered = rnn_lower.lower(model, **options)
    assert rnn_lower.prove(model, lowered).ok
    next(node for node in lowered.graph.node if node.op_type == "Neg").op_type = "Abs"
    assert not rnn_lower.prove(model, lowered).ok


def test_a_random_element_that_is_small_by_chance_is_no_counter(monkeypatch):
    """Of elements modulo a prime of 31 bits, one in eight is below 2^27, here instead of one in 8,192 below 2^17."""
    monkeypatch.setattr(field, "SMALL", 1 << 27)
    model, _ = build(Case("GRU", 17, T=5, N=2, H=1, I=1, optional=("B",), lbr=1, dynamic=True, outputs=("Y",)))
    assert rnn_lower.prove(model, rnn_lower.lower(model, form="scan"), points=1).ok


def test_sums_of_biases_inside_and_outside_of_functions():
    """Lowering adds constant biases once, but those that a function reads at run time."""
    model = with_own_loop()
    second, _ = build(Case("GRU", 17, T=5, N=2, I=4, H=3, outputs=("Y",), optional=("B",)))
    for tensor in second.graph.initializer:
        tensor.name = f"second_{tensor.name}"
        model.graph.initializer.append(tensor)
    numbers = np.random.default_rng(3).uniform(-1, 1, (2, 1, 18)).astype(np.float32)
    constants(model, sizes=[0, 0, -1], turned=numbers[0].T.copy(), plain=numbers[1])
    inner = helper.make_node("GRU", ["x", "w", "r", "b"], ["y"], hidden_size=3)
    model.functions.append(helper.make_function("own", "F", list("xwrb"), ["y"], [inner], model.opset_import[:1]))
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.graph.node.extend([
        helper.make_node("Squeeze", ["Y", "second_axis"], ["flat"]),
        helper.make_node("Transpose", ["turned"], ["moved"], perm=[1, 0]),
        helper.make_node("F", ["flat", "second_W", "second_R", "moved"], ["called"], domain="own"),
        helper.make_node("GRU", ["flat", "second_W", "second_R", "plain"], ["direct"], hidden_size=3),
    ])  # fmt: skip
    constants(model, second_axis=[1])
    model.graph.output.extend(INFO(name, TensorProto.FLOAT, None) for name in ("called", "direct"))
    lowered = rnn_lower.lower(model, loops=True)
    proof = rnn_lower.prove(model, lowered)
    assert proof.steps
    assert proof.ok, proof.reasons


def size_of(model: onnx.ModelProto, axis: int, to: int | None = None) -> str:
    """A marked node that computes the size of an axis of X, as an integer or cast to another type."""
    constants(model, which=axis)
    add(model, "Shape", ["X"], "shape_of_X")
    add(model, "Gather", ["shape_of_X", "which"], "size_as_integer")
    if to is not None:
        add(model, "Cast", ["size_as_integer"], "size_as_number", to=to)
    return "size_as_integer" if to is None else "size_as_number"


def added(model: onnx.ModelProto, *steps: tuple[str, list[str]]) -> None:
    """Compute Y as the sum of its former value and the result of these nodes."""
    before, names = behind(model), [f"step{k}" for k in range(len(steps))]
    for (op, inputs), name in zip(steps, names, strict=True):
        add(model, op, inputs, name)
    add(model, "Add", [before, names[-1]], "Y")


def table(model: onnx.ModelProto) -> None:
    """The 46th of 500 numbers is not 0; Identity hides the table."""
    size = size_of(model, 0)
    constants(model, numbers=np.eye(1, 500, 45, dtype=np.float32)[0])
    added(model, ("Identity", ["numbers"]), ("Gather", ["step0", size]))


def table_on_another_axis(model: onnx.ModelProto) -> None:
    before, size = behind(model), size_of(model, 0)
    constants(model, numbers=np.eye(1, 500, 45, dtype=np.float32))
    add(model, "Gather", ["numbers", size], "number", axis=1)
    add(model, "Add", [before, "number"], "Y")


def floats_in_two_steps(model: onnx.ModelProto) -> None:
    size = size_of(model, 0, TensorProto.FLOAT)
    constants(model, limit=np.float32(22))
    added(model, ("Sub", [size, "limit"]), ("Sub", ["step0", "limit"]), ("Relu", ["step1"]))


def integers_in_two_steps(model: onnx.ModelProto) -> None:
    before, size = behind(model), size_of(model, 0)
    constants(model, limit=22, zero=0)
    add(model, "Sub", [size, "limit"], "less")
    add(model, "Sub", ["less", "limit"], "least")
    add(model, "Max", ["least", "zero"], "beyond")
    add(model, "Cast", ["beyond"], "number", to=TensorProto.FLOAT)
    add(model, "Add", [before, "number"], "Y")


def rows_as_floats(model: onnx.ModelProto) -> None:
    size = size_of(model, 1, TensorProto.FLOAT)
    constants(model, limit=np.float32(10))
    added(model, ("Sub", [size, "limit"]), ("Relu", ["step0"]))


def bent(op: str, **attributes: float) -> Callable[[onnx.ModelProto], None]:
    """Add an operator of the length, in floats, that changes what it does beyond 45 steps."""

    def change(model: onnx.ModelProto) -> None:
        before, size = behind(model), size_of(model, 0, TensorProto.FLOAT)
        add(model, op, [size], "bent", **attributes)
        if op == "Clip":
            constants(model, low=np.float32(0), high=np.float32(45))
            next(node for node in model.graph.node if node.op_type == "Clip").input.extend(["low", "high"])
            add(model, "Sub", [size, "bent"], "more")
        add(model, "Add", [before, "more" if op == "Clip" else "bent"], "Y")

    return change


def product_of_the_length(model: onnx.ModelProto) -> None:
    """[1, T, 1] times [-45] and so on, which a Relu cuts."""
    size = size_of(model, 0, TensorProto.FLOAT)
    constants(
        model, small=np.full((1, 1), 1 / 64, np.float32), scalar=[1, 1], less=np.full((1, 1), 45 / 64, np.float32)
    )
    added(
        model,
        ("Reshape", [size, "scalar"]),
        ("MatMul", ["step0", "small"]),
        ("Sub", ["step1", "less"]),
        ("Relu", ["step2"]),
    )


def counted(model: onnx.ModelProto, limit: int) -> None:
    """Add to Y by how much the sum of the value `ones` exceeds a limit."""
    before = behind(model)
    constants(model, row=[1, -1], column=[-1, 1], limit=np.float32(limit))
    for shape in ("row", "column"):
        add(model, "Reshape", ["ones", shape], f"ones_{shape}")
    add(model, "MatMul", ["ones_row", "ones_column"], "count")
    add(model, "Sub", ["count", "limit"], "beyond")
    add(model, "Relu", ["beyond"], "more")
    add(model, "Add", [before, "more"], "Y")


def ones_of_the_length(model: onnx.ModelProto) -> None:
    """As many ones as there are steps."""
    constants(model, vector=[1])
    add(model, "Reshape", [size_of(model, 0), "vector"], "shape_of_ones")
    add(model, "ConstantOfShape", ["shape_of_ones"], "ones", value=numpy_helper.from_array(np.ones(1, np.float32)))
    counted(model, 45)


def ones_of_inputs(model: onnx.ModelProto) -> None:
    """X - X + 1: a one for each step, row and feature."""
    constants(model, one=np.float32(1))
    add(model, "Sub", ["X", "X"], "zeros")
    add(model, "Add", ["zeros", "one"], "ones")
    counted(model, 45 * 36)


def narrow_integers(model: onnx.ModelProto) -> None:
    """0 - 1 is 255 in 8 bits, from 46 steps on."""
    before, size = behind(model), size_of(model, 0)
    constants(model, limit=45, nothing=np.zeros((), np.uint8))
    add(model, "Less", ["limit", size], "long")
    add(model, "Cast", ["long"], "one", to=TensorProto.UINT8)
    add(model, "Sub", ["nothing", "one"], "wrapped")
    add(model, "Cast", ["wrapped"], "number", to=TensorProto.FLOAT)
    add(model, "Relu", ["number"], "positive")
    add(model, "Add", [before, "positive"], "Y")


def narrow_constants(model: onnx.ModelProto) -> None:
    before, size = behind(model), size_of(model, 0)
    constants(model, limit=45, nothing=np.zeros((), np.uint8), single=np.ones((), np.uint8))
    add(model, "Less", ["limit", size], "long")
    add(model, "Where", ["long", "single", "nothing"], "one")
    add(model, "Sub", ["nothing", "one"], "wrapped")
    add(model, "Cast", ["wrapped"], "number", to=TensorProto.FLOAT)
    add(model, "Relu", ["number"], "positive")
    add(model, "Add", [before, "positive"], "Y")


def hidden_constant(model: onnx.ModelProto) -> None:
    before, size = behind(model), size_of(model, 0, TensorProto.FLOAT)
    constants(model, limit=np.float32(45))
    add(model, "Identity", ["limit"], "hidden")
    add(model, "Less", ["hidden", size], "long")
    add(model, "Neg", [before], "minus")
    add(model, "Where", ["long", "minus", before], "Y")


def start_with_computed_end(model: onnx.ModelProto) -> None:
    """Of the sequence and 60 zeros, what begins at position 45; there are only zeros up to 45 steps."""
    before, units = behind(model), 4
    size_of(model, 0)
    constants(model, more=[60], late=[45], first=[0], one=[1], units=[units], row=[2], direction=[1])
    add(model, "Slice", ["shape_of_X", "one", "row"], "rows")
    add(model, "Concat", ["more", "direction", "rows", "units"], "padding_shape", axis=0)
    add(model, "ConstantOfShape", ["padding_shape"], "padding")
    add(model, "Concat", [before, "padding"], "long", axis=0)
    add(model, "Shape", ["long"], "long_shape")
    add(model, "Slice", ["long_shape", "first", "one"], "end")
    add(model, "Slice", ["long", "late", "end", "first"], "rest")
    add(model, "Gather", ["rest", "first"], "number", axis=0)
    add(model, "Add", [before, "number"], "Y")


BEYOND = [
    table, table_on_another_axis, floats_in_two_steps, integers_in_two_steps, rows_as_floats, narrow_integers,
    narrow_constants, hidden_constant, start_with_computed_end, product_of_the_length, ones_of_the_length,
    ones_of_inputs,
    bent("Clip"), bent("HardSigmoid", alpha=1.0, beta=-45.0), bent("ThresholdedRelu", alpha=45.0),
]  # fmt: skip


@pytest.mark.parametrize("change", BEYOND)
def test_numbers_beyond_the_compared_sizes(change):
    model, feeds = build(Case("GRU", 17, T=5, N=2, outputs=("Y",)))
    free(free(model, 0), 1)
    lowered = rnn_lower.lower(model)
    change(lowered)
    long = {"X": np.resize(feeds["X"], (45 + (change is not table and change is not table_on_another_axis), 12, 3))}
    (wanted,), (actual,) = run_onnxruntime(model, long), run_onnxruntime(lowered, long)
    assert not np.allclose(wanted, actual, atol=1e-3)
    (wanted,), (actual,) = run_onnxruntime(model, feeds), run_onnxruntime(lowered, feeds)
    assert np.allclose(wanted, actual, atol=1e-6)
    assert not rnn_lower.prove(model, lowered).ok


def test_a_size_of_other_inputs_is_not_that_of_an_emitted_value():
    """onnxruntime plans one buffer for values whose sizes have one name."""
    model, _ = build(Case("GRU", 17, T=5, N=2, outputs=("Y_h",)))
    free(free(model, 0), 1)
    model.graph.input.append(INFO("Z", TensorProto.FLOAT, ["K", 4]))
    model.graph.output.append(INFO("Z_abs", TensorProto.FLOAT, ["K", 4]))
    model.graph.node.append(helper.make_node("Abs", ["Z"], ["Z_abs"]))
    lowered = rnn_lower.lower(model)
    before = behind(lowered, "Y_h")
    constants(lowered, first=[0])
    add(lowered, "Squeeze", [before, "first"], "rows")
    add(lowered, "Neg", ["rows"], "minus")
    add(lowered, "Neg", ["minus"], "plus")
    add(lowered, "Unsqueeze", ["plus", "first"], "Y_h")
    assert rnn_lower.prove(model, lowered).ok
    lowered.graph.value_info.append(INFO("minus", TensorProto.FLOAT, ["K", 4]))
    assert not rnn_lower.prove(model, lowered).ok


@pytest.mark.parametrize("axis", [0, 1])
def test_sizes_that_are_equal_in_no_comparison(axis):
    """The graph negates Y if there are as many steps or rows as 13 features, which no constant says."""
    model, feeds = build(Case("GRU", 17, T=13, N=13, I=13, outputs=("Y",), dynamic=True))
    lowered = rnn_lower.lower(model)
    before = behind(lowered)
    constants(lowered, axis=axis, last=2)
    add(lowered, "Shape", ["X"], "sizes")
    add(lowered, "Gather", ["sizes", "axis"], "steps")
    add(lowered, "Gather", ["sizes", "last"], "features")
    add(lowered, "Less", ["steps", "features"], "fewer")
    add(lowered, "Greater", ["steps", "features"], "more")
    add(lowered, "Neg", [before], "negated")
    add(lowered, "Where", ["more", before, "negated"], "some")
    add(lowered, "Where", ["fewer", before, "some"], "Y")
    (wanted,), (actual,) = run_onnxruntime(model, feeds), run_onnxruntime(lowered, feeds)
    assert np.allclose(wanted, -actual, atol=1e-6)
    assert not rnn_lower.prove(model, lowered).ok


def wrong_split(model: onnx.ModelProto) -> None:
    before = behind(model)
    add(model, "Split", [before], "first", axis=0, num_outputs=3)
    model.graph.node[-1].output.append("second")
    add(model, "Concat", ["first", "second"], "Y", axis=0)


def empty_axes(model: onnx.ModelProto) -> None:
    before = behind(model)
    constants(model, none=np.zeros(0, np.int64))
    add(model, "Squeeze", [before, "none"], "Y")


def scalar_axis(model: onnx.ModelProto) -> None:
    before = behind(model)
    constants(model, list=np.zeros(1, np.int64), number=np.zeros((), np.int64))
    add(model, "Unsqueeze", [before, "list"], "higher")
    add(model, "Squeeze", ["higher", "number"], "Y")


def high_bounds(model: onnx.ModelProto) -> None:
    before = behind(model)
    constants(model, low=np.full((1, 1), -2, np.float32), high=np.full((1, 1), 2, np.float32))
    add(model, "Clip", [before, "low", "high"], "Y")


def chosen_truth(model: onnx.ModelProto) -> None:
    constants(model, yes=np.array([True]))
    add(model, "Where", ["yes", "yes", "yes"], "unread")


@pytest.mark.parametrize("change", [wrong_split, empty_axes, scalar_axis, high_bounds, chosen_truth])
def test_operands_that_onnxruntime_refuses_or_takes_otherwise(change):
    model, feeds = build(Case("GRU", 18, T=6, N=2, outputs=("Y",)))
    lowered = rnn_lower.lower(model)
    change(lowered)
    assert not rnn_lower.prove(model, lowered).ok
    try:
        (actual,) = run_onnxruntime(lowered, feeds)
    except Exception:  # of onnxruntime
        return
    (wanted,) = run_onnxruntime(model, feeds)
    assert wanted.shape != actual.shape


def negated_rows(model: onnx.ModelProto, first: int, count: int) -> str:
    """The name of Y with `count` rows negated from `first` on; the output takes it where `chosen` is true."""
    before = behind(model)
    constants(model, begin=[first], end=[first + count], rows=[2], none=[0], many=[2**31 - 1])
    add(model, "Slice", [before, "none", "begin", "rows"], "left")
    add(model, "Slice", [before, "begin", "end", "rows"], "some")
    add(model, "Slice", [before, "end", "many", "rows"], "right")
    add(model, "Neg", ["some"], "negated")
    add(model, "Concat", ["left", "negated", "right"], "other", axis=2)
    return before


def test_two_steps_of_a_large_node_are_compared_with_several_rows():
    model, feeds = build(Case("LSTM", 17, T=2, N=3, I=2, H=320, outputs=("Y",), dynamic=True))
    lowered = rnn_lower.lower(model)
    before = negated_rows(lowered, 1, 2)
    constants(lowered, axis=0, one=1, three=3)
    add(lowered, "Shape", ["X"], "sizes")
    add(lowered, "Gather", ["sizes", "axis"], "steps")
    add(lowered, "Greater", ["steps", "one"], "more")
    add(lowered, "Less", ["steps", "three"], "fewer")
    add(lowered, "Where", ["more", "other", before], "long")
    add(lowered, "Where", ["fewer", "long", before], "Y")
    (wanted,), (actual,) = run_onnxruntime(model, feeds), run_onnxruntime(lowered, feeds)
    assert np.abs(wanted - actual).max() > 0.01
    assert not rnn_lower.prove(model, lowered).ok


def test_each_row_has_each_length():
    """The graph negates the first row if its length is 2, of four steps."""
    case = Case("GRU", 17, T=4, N=2, optional=("sequence_lens",), outputs=("Y",), dynamic=True)
    model, feeds = build(case.replace(lengths=(2, 4)))
    lowered = rnn_lower.lower(model)
    before = negated_rows(lowered, 0, 1)
    limits = {"one": 1, "three": 3, "zero": 0}
    constants(lowered, axis=0, four=3, five=5, **{name: np.array([n], np.int32) for name, n in limits.items()})
    add(lowered, "Shape", ["X"], "sizes")
    add(lowered, "Gather", ["sizes", "axis"], "steps")
    add(lowered, "Gather", ["sequence_lens", "axis"], "length")
    conditions = (
        ("Greater", "length", "one"),
        ("Less", "length", "three"),
        ("Greater", "steps", "four"),
        ("Less", "steps", "five"),
    )
    value = "other"
    for number, (op, operand, limit) in enumerate(conditions):
        add(lowered, op, [operand, limit], f"is_{number}")
        result = "Y" if number == 3 else f"chosen_{number}"
        add(lowered, "Where", [f"is_{number}", value, before], result)
        value = result
    (wanted,), (actual,) = run_onnxruntime(model, feeds), run_onnxruntime(lowered, feeds)
    assert not np.allclose(wanted, actual, atol=1e-3)
    assert not rnn_lower.prove(model, lowered).ok


def test_a_graph_that_computes_too_much_is_out_of_scope():
    model, _ = build(Case("GRU", 17, T=6, N=2, outputs=("Y",)))
    lowered = rnn_lower.lower(model)
    constants(lowered, trips=90_000, yes=True, square=np.eye(700, dtype=np.float32))
    body = helper.make_graph(
        [marked("Identity", ["going"], ["still"]), marked("MatMul", ["square", "square"], ["product"])], "body",
        [INFO("trip", TensorProto.INT64, []), INFO("going", TensorProto.BOOL, [])],
        [INFO("still", TensorProto.BOOL, []), INFO("product", TensorProto.FLOAT, [700, 700])],
    )  # fmt: skip
    add(lowered, "Loop", ["trips", "yes"], "unread", body=body)
    assert "computes more than" in str(rnn_lower.prove(model, lowered))


def test_a_scan_returns_no_input_of_its_body():
    """Of unknown size, onnxruntime does not copy such an input."""
    model, feeds = build(Case("GRU", 17, T=5, N=2, outputs=("Y",), dynamic=True))
    lowered = rnn_lower.lower(model, form="scan")
    scan = next(node for node in lowered.graph.node if node.op_type == "Scan")
    body = next(each.g for each in scan.attribute if each.name == "body")
    assert rnn_lower.prove(model, lowered).ok
    body.output.append(body.input[0])
    scan.output.append("unread")
    assert not rnn_lower.prove(model, lowered).ok
    with pytest.raises(Exception, match="Scan"):
        run_onnxruntime(lowered, feeds)


def test_a_range_from_a_constant_on_compares_the_length():
    """Its size is 0 up to 50 steps, and so is the sum of its elements."""
    model, _ = build(Case("GRU", 17, T=5, N=2, outputs=("Y",), dynamic=True))
    lowered = rnn_lower.lower(model)
    before = behind(lowered)
    constants(lowered, axis=0, fifty=50, one=1)
    add(lowered, "Shape", ["X"], "sizes")
    add(lowered, "Gather", ["sizes", "axis"], "steps")
    add(lowered, "Range", ["fifty", "steps", "one"], "late")
    add(lowered, "Shape", ["late"], "count")
    add(lowered, "Cast", ["count"], "more", to=TensorProto.FLOAT)
    add(lowered, "Add", [before, "more"], "Y")
    feeds = {"X": np.ones((55, 2, 3), np.float32)}
    (wanted,), (actual,) = run_onnxruntime(model, feeds), run_onnxruntime(lowered, feeds)
    assert np.allclose(wanted + 5, actual, atol=1e-5)
    assert not rnn_lower.prove(model, lowered).ok


def nan_at_one_step(model: onnx.ModelProto) -> None:
    """The graph returns NaN for sequences of less than 2 steps, which the field takes for a number."""
    before = behind(model)
    constants(model, axis=0, two=2, minus=np.float32(-1), zero=np.float32(0))
    add(model, "Shape", ["X"], "sizes")
    add(model, "Gather", ["sizes", "axis"], "steps")
    add(model, "Less", ["steps", "two"], "short")
    add(model, "Log", ["minus"], "nan")
    add(model, "Mul", ["nan", "zero"], "none")
    add(model, "Add", [before, "none"], "wrong")
    add(model, "Where", ["short", "wrong", before], "Y")


def divided_by_inputs(model: onnx.ModelProto) -> None:
    """The graph returns NaN where the sequence is 0: x / x is 1 in the field, and for random floats."""
    before = behind(model)
    constants(model, axis=0, first=[0], one=[1], last=[2], list=[1])
    add(model, "Slice", ["X", "first", "one", "last"], "column")
    add(model, "Div", ["column", "column"], "ones")
    add(model, "Unsqueeze", ["ones", "list"], "shaped")
    add(model, "Mul", [before, "shaped"], "Y")


@pytest.mark.parametrize(("change", "feeds"), [
    (nan_at_one_step, np.ones((1, 2, 3), np.float32)), (divided_by_inputs, np.zeros((4, 2, 3), np.float32)),
])  # fmt: skip
def test_what_only_some_floats_or_lengths_show(change, feeds):
    model, _ = build(Case("GRU", 17, T=6, N=2, outputs=("Y",), dynamic=True))
    lowered = rnn_lower.lower(model)
    change(lowered)
    (wanted,), (actual,) = run_onnxruntime(model, {"X": feeds}), run_onnxruntime(lowered, {"X": feeds})
    assert np.isnan(actual).all() != np.isnan(wanted).all()
    assert not rnn_lower.prove(model, lowered).ok


@pytest.mark.parametrize("kind", ["computed", "rounded"])
def test_a_node_of_half_floats_computes_in_float(kind):
    model, _ = build(Case("LSTM", 17, T=6, N=2, outputs=("Y",), dtype="float16"))
    lowered = rnn_lower.lower(model, form="scan")
    scan = next(node for node in lowered.graph.node if node.op_type == "Scan")
    body = next(each.g for each in scan.attribute if each.name == "body")
    if kind == "computed":
        before = behind(lowered)
        constants(lowered, one=np.float16(1))
        add(lowered, "Mul", [before, "one"], "Y")
    else:
        state = body.input[0].name
        for node in body.node:
            node.input[:] = ["wide" if name == state else name for name in node.input]
        casts = [marked("Cast", [state], ["half"], to=TensorProto.FLOAT16), marked("Cast", ["half"], ["wide"], to=1)]
        kept = list(body.node)
        del body.node[:]
        body.node.extend([*casts, *kept])
    proof = rnn_lower.prove(model, lowered)
    assert not proof.ok
    assert "float16" in str(proof)


@pytest.mark.parametrize("op", ["Elu", "HardSigmoid", "Softplus", "Softsign", "ThresholdedRelu"])
def test_a_node_of_floats_computes_nothing_in_double(op):
    model, _ = build(Case("GRU", 17, T=6, N=2, outputs=("Y",)))
    lowered = rnn_lower.lower(model)
    add(lowered, "Cast", ["X"], "wide", to=TensorProto.DOUBLE)
    add(lowered, op, ["wide"], "unread")
    assert not rnn_lower.prove(model, lowered).ok
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    with pytest.raises(Exception, match="Could not find an implementation"):
        onnxruntime.InferenceSession(lowered.SerializeToString(), options)


def test_a_scan_of_version_9_is_no_scan_of_version_8():
    model, _ = build(Case("GRU", 9, T=5, N=2, outputs=("Y",)))
    lowered = rnn_lower.lower(model, form="scan")
    for changed in (model, lowered):
        changed.opset_import[0].version = 8
    assert not rnn_lower.prove(model, lowered).ok


def test_an_attribute_of_an_emitted_node_refers_to_nothing():
    model, _ = build(Case("GRU", 17, T=5, N=2, outputs=("Y",), place="function"))
    model.functions[0].attribute.append("number")
    lowered = rnn_lower.lower(model)
    assert rnn_lower.prove(model, lowered).ok
    node = next(node for function in lowered.functions for node in function.node if node.op_type == "Constant")
    attribute = onnx.AttributeProto(name=node.attribute[0].name, type=node.attribute[0].type, ref_attr_name="number")
    node.attribute[0].CopyFrom(attribute)
    assert not rnn_lower.prove(model, lowered).ok


def test_a_lowered_model_that_takes_no_steps_is_not_proved():
    model, _ = build(Case("GRU", 17, T=5, N=2, outputs=("Y",)))
    lowered = rnn_lower.lower(free(model, 0))
    lowered.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 0
    assert not rnn_lower.prove(model, lowered).ok


def test_a_body_of_a_function_redefines_nothing():
    model, _ = build(Case("RNN", 17, "bidirectional", T=5, N=2, outputs=("Y", "Y_h")))
    lowered = rnn_lower.lower(model, form="scan", as_function=True)
    assert rnn_lower.prove(model, lowered).ok
    (function,) = lowered.functions
    scan = next(node for node in function.node if node.op_type == "Scan")
    body = next(attribute.g for attribute in scan.attribute if attribute.name == "body")
    old, new = body.node[0].output[0], function.node[-1].output[0]
    for node in body.node:
        node.input[:] = [new if name == old else name for name in node.input]
        node.output[:] = [new if name == old else name for name in node.output]
    assert not rnn_lower.prove(model, lowered).ok


@pytest.mark.parametrize("op", ["GRU", "LSTM"])
def test_a_branch_for_the_empty_sequence_beside_constant_lengths(op):
    """The target's graph guards against sequences without steps, which lengths above 0 exclude."""
    case = Case(op, 17, "bidirectional", T=3, N=2, optional=("sequence_lens",), outputs=("Y",), dynamic=True)
    model, _ = build(case.replace(lengths=(1, 3), lengths_as="initializer"))
    lowered = rnn_lower.lower(model, target="onnxruntime")
    assert "If" in {node.op_type for node in lowered.graph.node}
    assert rnn_lower.prove(model, lowered).ok


@pytest.mark.parametrize("form", ["unroll", "loop"])
@pytest.mark.parametrize("opset", [4, 6, 7, 8])
def test_lengths_in_floats_are_proved(opset, form):
    """Below opset 9, Less takes only floats; below opset 7, masks are broadcast by products with rows of ones."""
    for T, optional in ((4, ("sequence_lens",)), ("T", ("sequence_lens", "initial_h")))[: 1 + (opset > 4)]:
        case = Case("GRU", opset, T=4, N=2, optional=optional, outputs=("Y",), output_sequence=1 if opset < 7 else None)
        model, _ = build(case)
        for value in model.graph.input:
            axis = {"X": 1, "sequence_lens": 0, "initial_h": 1}.get(value.name)
            if axis is not None:
                value.type.tensor_type.shape.dim[axis].dim_param = "N"
            if value.name == "X" and T == "T":
                value.type.tensor_type.shape.dim[0].dim_param = "T"
        lowered = rnn_lower.lower(model, form="loop" if T == "T" else form)
        proof = rnn_lower.prove(model, lowered)
        assert proof.ok, proof.reasons


@pytest.mark.parametrize("weights", [1, 1_000_000])
@pytest.mark.parametrize("steps", [5, 9])
def test_a_known_length_is_compared_with_two_batch_sizes(steps, weights):
    known = Known(T=steps, N=None, has_lengths=False, lengths=None, weights=weights, compared=0)
    cases, _ = choose_cases(known, 2)
    assert {case.T for case in cases} == {steps}
    assert {1, 3} <= {case.N for case in cases}


@pytest.mark.parametrize("batch", [2, "N"])
def test_a_number_of_features_that_weights_of_the_caller_leave_open(batch):
    shapes = {"X": [4, batch, "F"], "W": [1, 12, "F"], "R": [1, 12, 3]}
    node = helper.make_node("LSTM", [*shapes], ["Y"], hidden_size=3)
    inputs = [INFO(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    graph = helper.make_graph([node], "g", inputs, [INFO("Y", TensorProto.FLOAT, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    lowered = rnn_lower.lower(model, form="loop")
    assert rnn_lower.prove(model, lowered)
    for node in lowered.graph.node:  # it reads only the first features of both
        node.input[:] = [{"X": "X3", "W": "W3"}.get(name, name) for name in node.input]
    constants(lowered, k0=[0], k3=[3], k2=[2])
    first = [marked("Slice", [name, "k0", "k3", "k2"], [f"{name}3"]) for name in ("X", "W")]
    nodes = [*first, *lowered.graph.node]
    del lowered.graph.node[:]
    lowered.graph.node.extend(nodes)
    assert not rnn_lower.prove(model, lowered)
