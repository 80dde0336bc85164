"""Lowered graphs that behave differently at sizes, lengths and positions beyond those that a proof compares."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from judge import marked, run_onnxruntime
from onenode import Case, build
from onnx import TensorProto, helper, numpy_helper

import rnn_lower

Graph = tuple[list[onnx.NodeProto], dict[str, object]]


def node(op: str, inputs: Sequence[str], output: str, **attributes: object) -> onnx.NodeProto:
    return marked(op, list(inputs), [output], **attributes)


def size(axis: int, name: str) -> list[onnx.NodeProto]:
    return [node("Shape", ["X"], "shape"), node("Gather", ["shape", f"axis_{axis}"], name, axis=0)]


def float_size(name: str) -> list[onnx.NodeProto]:
    return [*size(0, "steps"), node("Cast", ["steps"], name, to=TensorProto.FLOAT)]


ONES = [
    node("Slice", ["X", "axis_0", "axis_1", "axis_1"], "row"), node("Slice", ["row", "axis_0", "axis_1", "axis_2"], "element"),
    node("Sub", ["element", "element"], "zero"), node("Add", ["zero", "float_1"], "ones"),
    node("Squeeze", ["ones", "axis_2"], "column"), node("Transpose", ["column"], "line", perm=[1, 0]),
    node("MatMul", ["line", "column"], "count"),
]  # fmt: skip

WRONG: dict[str, tuple[list[onnx.NodeProto], tuple[int, int], tuple[int, ...] | None]] = {
    "two constants": (
        [*size(0, "steps"), node("Sub", ["steps", "int_20"], "left"), node("Less", ["left", "int_30"], "good")],
        (50, 2), None,
    ),
    "doubled constants": (
        [
            *size(0, "steps"), node("Sub", ["steps", "int_20"], "left"), node("Add", ["left", "left"], "twice"),
            node("Sub", ["twice", "steps"], "less"), node("Less", ["less", "int_20"], "good"),
        ],
        (60, 2), None,
    ),
    "a size beside a constant": (
        [
            *size(0, "steps"), node("Unsqueeze", ["steps", "axis_0"], "one"), node("Concat", ["one", "many"], "both", axis=0),
            node("Gather", ["both", "axis_0"], "first", axis=0), node("Gather", ["both", "axis_1"], "second", axis=0),
            node("Sub", ["first", "second"], "left"), node("Less", ["left", "int_30"], "good"),
        ],
        (50, 2), None,
    ),
    "length and batch size": (
        [
            *size(0, "steps"), *size(1, "rows")[1:], node("Less", ["steps", "int_4"], "short"),
            node("Less", ["rows", "int_6"], "few"), node("Cast", ["short"], "a", to=1), node("Cast", ["few"], "b", to=1),
            node("Add", ["a", "b"], "any"), node("Cast", ["any"], "good", to=TensorProto.BOOL),
        ],
        (10, 8), None,
    ),
    "lengths of two rows": (
        [
            *size(0, "steps"), node("Gather", ["sequence_lens", "axis_0"], "one"), node("Gather", ["sequence_lens", "last"], "other"),
            node("Less", ["one", "other"], "longer"), node("Not", ["longer"], "good"),
        ],
        (6, 2), (4, 6),
    ),
    "counted ones": (
        [
            *ONES, node("Gather", ["column", "axis_0"], "first"), node("Mul", ["first", "float_30"], "thirty"),
            node("Mul", ["thirty", "float_2"], "sixty"), node("Less", ["count", "sixty"], "good"),
        ],
        (60, 2), None,
    ),
    "a sum of many ones": (
        [
            *float_size("sum_0"), *(node("Sub", [f"sum_{k}", "float_1"], f"sum_{k + 1}") for k in range(45)),
            node("Less", ["sum_45", "float_1"], "good"),
        ],
        (50, 2), None,
    ),
    "a number without bits": (
        [*float_size("steps_f"), node("Sub", ["steps_f", "float_45"], "left"), node("Relu", ["left"], "more"),
         node("Less", ["more", "float_1"], "good")],
        (50, 2), None,
    ),
    "a boolean of a sum": (
        [*size(0, "steps"), node("Sub", ["steps", "int_50"], "left"), node("Cast", ["left"], "good", to=TensorProto.BOOL)],
        (50, 2), None,
    ),
    "the difference of two sizes": (
        [
            *size(0, "steps"), node("MatMul", ["X", "wide"], "other"), node("Shape", ["other"], "wide_shape"),
            node("Gather", ["wide_shape", "axis_2"], "much", axis=0), node("Sub", ["steps", "much"], "left"),
            node("Less", ["left", "axis_0"], "good"),
        ],
        (50, 2), None,
    ),
    "the difference of two positions": (
        [
            *size(0, "steps"), node("Squeeze", ["steps", "axis_0"], "count"), node("Range", ["no_step", "count", "a_step"], "positions"),
            node("Gather", ["positions", "axis_0"], "first"), node("Sub", ["positions", "first"], "left"),
            node("Less", ["left", "int_50"], "row"), node("Reshape", ["row", "as_column"], "good"),
        ],
        (55, 2), None,
    ),
    "a limit on one side": (
        [*float_size("steps_f"), node("Clip", ["steps_f", "float_0"], "more"), node("Less", ["more", "float_45"], "good")],
        (50, 2), None,
    ),
    "rows behind many zeros": (
        [
            *size(0, "steps"), node("ConstantOfShape", ["steps"], "ones", value=helper.make_tensor("v", 1, [1], [1.0])),
            node("Concat", ["zeros", "ones"], "long", axis=0), node("Slice", ["long", "axis_0", "steps", "axis_0"], "late"),
            node("Reshape", ["late", "as_column"], "shown"), node("Less", ["shown", "float_1"], "good"),
        ],
        (60, 2), None,
    ),
    "a repeated pattern": (
        [
            *size(0, "steps"), node("Tile", ["pattern", "steps"], "repeated"), node("Slice", ["repeated", "axis_0", "steps", "axis_0"], "late"),
            node("Reshape", ["late", "as_column"], "shown"), node("Less", ["shown", "float_1"], "good"),
        ],
        (60, 2), None,
    ),
}  # fmt: skip


def test_a_logarithm_of_zero():
    """Random numbers make no operand zero, but an input may."""
    model, _ = build(Case("RNN", 17, dynamic=True, outputs=("Y",), H=3))
    lowered = rnn_lower.lower(model)
    producer = next(each for each in lowered.graph.node if "Y" in each.output)
    producer.output[list(producer.output).index("Y")] = "right"
    numbers = {"three": np.float32(3), "none": np.float32(0), "axis": np.array([1])}
    lowered.graph.initializer.extend(numpy_helper.from_array(np.asarray(n), k) for k, n in numbers.items())
    lowered.graph.node.extend([
        node("Sub", ["X", "three"], "x"), node("Abs", ["x"], "distance"), node("Log", ["distance"], "log"),
        node("Mul", ["log", "none"], "zero"), node("Unsqueeze", ["zero", "axis"], "zeros"), node("Add", ["right", "zeros"], "Y"),
    ])  # fmt: skip
    feeds = {"X": np.full((2, 2, 3), 3, np.float32)}
    assert np.isnan(run_onnxruntime(lowered, feeds)[0]).any()
    assert not rnn_lower.prove(model, lowered).ok


def with_other_end(
    model: onnx.ModelProto, lowered: onnx.ModelProto, nodes: list[onnx.NodeProto], **numbers: object
) -> None:
    """Add "other" to Y, which the nodes compute."""
    producer = next(each for each in lowered.graph.node if "Y" in each.output)
    producer.output[list(producer.output).index("Y")] = "right"
    lowered.graph.initializer.extend(numpy_helper.from_array(np.asarray(n), k) for k, n in numbers.items())
    lowered.graph.node.extend([*nodes, node("Cast", ["other"], "number", to=1), node("Add", ["right", "number"], "Y")])


def test_a_length_that_wraps_around():
    """At run time, 2^31 is a negative number of 32 bits, and all other sums are positive."""
    case = Case("RNN", 17, T=7, N=1, outputs=("Y_h",), optional=("sequence_lens",), lengths_as="input")
    model, feeds = build(case)
    lowered = rnn_lower.lower(model)
    producer = next(each for each in lowered.graph.node if "Y_h" in each.output)
    producer.output[list(producer.output).index("Y_h")] = "right"
    numbers = {
        "much": np.array([2**31 - 4], np.int32),
        "hundred": np.array([100], np.int32),
        "column": np.array([1, -1, 1]),
    }
    lowered.graph.initializer.extend(numpy_helper.from_array(n, k) for k, n in numbers.items())
    lowered.graph.node.extend([
        node("Add", ["sequence_lens", "much"], "sum"), node("Greater", ["sum", "hundred"], "row"), node("Reshape", ["row", "column"], "good"),
        node("Neg", ["right"], "wrong"), node("Where", ["good", "right", "wrong"], "Y_h"),
    ])  # fmt: skip
    feeds["sequence_lens"] = np.array([5], np.int32)
    assert not np.allclose(run_onnxruntime(model, feeds)[0], run_onnxruntime(lowered, feeds)[0])
    assert not rnn_lower.prove(model, lowered).ok


def test_positions_of_constant_ones():
    """They look like steps, and tell whether a length is above one of them."""
    case = Case("RNN", 17, dynamic=True, outputs=("Y",), optional=("sequence_lens",), lengths_as="input")
    model, _ = build(case)
    lowered = rnn_lower.lower(model)
    producer = next(each for each in lowered.graph.node if "Y" in each.output)
    producer.output[list(producer.output).index("Y")] = "right"
    one_hot = np.zeros((41, 1), np.float32)
    one_hot[20] = 1
    numbers = {
        "ones": np.ones(41, np.int64),
        "line": np.array([-1]),
        "column": np.array([-1, 1]),
        "some": np.float32(0.5),
        "one_hot": one_hot,
    }
    lowered.graph.initializer.extend(numpy_helper.from_array(np.asarray(n), k) for k, n in numbers.items())
    lowered.graph.node.extend([
        node("NonZero", ["ones"], "places"), node("Reshape", ["places", "line"], "wide"), node("Cast", ["wide"], "at", to=TensorProto.INT32),
        node("Reshape", ["sequence_lens", "column"], "lengths"), node("Greater", ["lengths", "at"], "above"),
        node("Cast", ["above"], "mask", to=TensorProto.FLOAT), node("MatMul", ["mask", "one_hot"], "picked"), node("Less", ["picked", "some"], "good"),
        node("Neg", ["right"], "wrong"), node("Where", ["good", "right", "wrong"], "Y"),
    ])  # fmt: skip
    features = model.graph.input[0].type.tensor_type.shape.dim[2].dim_value
    feeds = {"X": np.ones((30, 1, features), np.float32), "sequence_lens": np.array([30], np.int32)}
    assert not np.allclose(run_onnxruntime(model, feeds)[0], run_onnxruntime(lowered, feeds)[0])
    assert not rnn_lower.prove(model, lowered).ok


def test_new_names_of_sizes_are_of_the_node():
    """With the target onnxruntime, an unnamed batch gets a name."""
    model, _ = build(Case("RNN", 17, dynamic=True, outputs=("Y",)))
    model.graph.input[0].type.tensor_type.shape.dim[1].ClearField("dim_param")
    assert rnn_lower.prove(model, rnn_lower.lower(model, target="onnxruntime")).ok


def test_a_chain_of_branches_shortens_nothing():
    """Each branch removes a step; the rest of a sequence of 21 steps, but of no shorter one, has a size."""
    model, _ = build(Case("RNN", 17, dynamic=True, outputs=("Y",)))
    lowered = rnn_lower.lower(model)
    nodes: list[onnx.NodeProto] = []
    for k in range(21):
        x = f"rest_{k}" if k else "X"
        nodes += [
            node("Shape", [x], f"shape_{k}"),
            node("Gather", [f"shape_{k}", "none"], f"size_{k}"),
            node("Greater", [f"size_{k}", "none"], f"more_{k}"),
        ]
        then, other = (
            helper.make_graph([made], made.output[0], [], [helper.make_tensor_value_info(made.output[0], 1, None)])
            for made in (node("Slice", [x, "first", "last", "first"], f"then_{k}"), node("Identity", [x], f"else_{k}"))
        )
        nodes.append(node("If", [f"more_{k}"], f"rest_{k + 1}", then_branch=then, else_branch=other))
    nodes.append(node("Identity", ["more_20"], "other"))
    with_other_end(model, lowered, nodes, none=0, first=[0], last=[-1])
    feeds = {"X": np.random.default_rng(0).standard_normal((21, 2, 2)).astype(np.float32)}
    feeds["X"] = np.resize(feeds["X"], (21, 2, model.graph.input[0].type.tensor_type.shape.dim[2].dim_value))
    assert not np.allclose(run_onnxruntime(model, feeds)[0], run_onnxruntime(lowered, feeds)[0])
    assert "variable size" in str(rnn_lower.prove(model, lowered).reasons)


def test_the_number_of_rows_of_a_length_decides_nothing():
    model, _ = build(Case("RNN", 17, dynamic=True, outputs=("Y",), optional=("sequence_lens",), lengths_as="input"))
    lowered = rnn_lower.lower(model)
    nodes = [
        node("Greater", ["sequence_lens", "none"], "some"), node("Cast", ["some"], "numbers", to=1), node("NonZero", ["numbers"], "places"),
        node("Shape", ["places"], "shape"), node("Gather", ["shape", "one"], "count"), node("Less", ["count", "one"], "other"),
    ]  # fmt: skip
    with_other_end(model, lowered, nodes, none=np.int32(0), one=1)
    assert not rnn_lower.prove(model, lowered).ok


@pytest.mark.parametrize(
    "nodes",
    [
        [node("Shape", ["X"], "s"), node("ConstantOfShape", ["s"], "c", value=helper.make_tensor("v", TensorProto.STRING, [1], [b"x"]))],
        [*size(0, "n"), node("Range", ["zero", "n", "one"], "at"), node("Gather", ["table", "at"], "rows", axis=7)],
        [node("Exp", ["X"], "v0"), *(node("Add", [f"v{k}", f"v{k}"], f"v{k + 1}") for k in range(60)), node("Reciprocal", ["v60"], "end")],
    ],
)  # fmt: skip
def test_unread_nodes_of_any_kind_end_in_a_verdict(nodes):
    model, _ = build(Case("RNN", 17, dynamic=True, outputs=("Y",)))
    lowered = rnn_lower.lower(model)
    numbers = {"zero": 0, "one": 1, "axis_0": 0, "table": np.zeros((3, 3), np.float32)}
    read = {name for each in nodes for name in each.input}
    lowered.graph.initializer.extend(numpy_helper.from_array(np.asarray(n), k) for k, n in numbers.items() if k in read)
    lowered.graph.node.extend(nodes)
    assert rnn_lower.prove(model, lowered).ok == (nodes[-1].op_type == "Reciprocal")


@pytest.mark.parametrize("name", WRONG)
def test_a_graph_that_is_wrong_beyond_the_compared_sizes(name):
    nodes, (steps, rows), lengths = WRONG[name]
    optional = () if lengths is None else ("sequence_lens",)
    model, _ = build(Case("RNN", 17, dynamic=True, outputs=("Y",), optional=optional, lengths_as="input", I=3))
    lowered = rnn_lower.lower(model)
    producer = next(each for each in lowered.graph.node if "Y" in each.output)
    producer.output[list(producer.output).index("Y")] = "right"
    numbers = {f"int_{k}": np.int64(k) for k in (4, 6, 20, 30, 50)} | {
        f"float_{k}": np.float32(k) for k in (1, 2, 30, 45)
    }
    numbers |= {f"axis_{k}": np.array([k]) for k in range(3)} | {"many": np.array([20]), "last": np.array([-1])}
    numbers |= {"wide": np.ones((3, 50), np.float32), "as_column": np.array([-1, 1, 1, 1]), "float_0": np.float32(0)}
    numbers |= {"zeros": np.zeros(45, np.float32), "pattern": np.eye(45, dtype=np.float32)[42]}
    numbers |= {"no_step": np.array(0), "a_step": np.array(1)}
    numbers |= {f"axis_{k}": np.array(k) for k in range(2) if name in ("a size beside a constant",)} | {
        "axis_00": np.array([0])
    }
    nodes = [onnx.NodeProto.FromString(each.SerializeToString()) for each in nodes]
    for each in nodes if name == "a size beside a constant" else ():
        each.input[:] = ["axis_00" if each.op_type == "Unsqueeze" and k else text for k, text in enumerate(each.input)]
    read = {text for each in nodes for text in each.input}
    lowered.graph.initializer.extend(numpy_helper.from_array(np.asarray(n), k) for k, n in numbers.items() if k in read)
    lowered.graph.node.extend([*nodes, node("Neg", ["right"], "wrong"), node("Where", ["good", "right", "wrong"], "Y")])
    feeds = {"X": np.random.default_rng(0).standard_normal((steps, rows, 3)).astype(np.float32)}
    feeds |= {} if lengths is None else {"sequence_lens": np.array(lengths, np.int32)}
    (wanted,), (actual,) = run_onnxruntime(model, feeds), run_onnxruntime(lowered, feeds)
    assert not np.allclose(wanted, actual, atol=1e-3)
    assert not rnn_lower.prove(model, lowered).ok


def test_a_free_input_size():
    """Weights that are inputs leave the size of the features open."""
    model, _ = build(Case("RNN", 17, dynamic=True, outputs=("Y",), weights="input"))
    for value in model.graph.input:
        if value.name in ("X", "W"):
            value.type.tensor_type.shape.dim[2].dim_param = "I"
    lowered = rnn_lower.lower(model)
    assert rnn_lower.prove(model, lowered).ok
    producer = next(each for each in lowered.graph.node if "Y" in each.output)
    producer.output[list(producer.output).index("Y")] = "right"
    lowered.graph.initializer.extend(numpy_helper.from_array(np.array([k]), f"{k}") for k in (2, 5))
    lowered.graph.node.extend([
        node("Shape", ["X"], "shape"), node("Gather", ["shape", "2"], "I", axis=0), node("Less", ["I", "5"], "good"),
        node("Neg", ["right"], "wrong"), node("Where", ["good", "right", "wrong"], "Y"),
    ])  # fmt: skip
    assert not rnn_lower.prove(model, lowered).ok


@pytest.mark.parametrize(("opset", "form"), [(4, "loop"), (6, "unroll"), (8, "loop"), (17, "scan"), (17, "loop")])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_lengths_of_every_opset_are_proved(opset, form, direction):
    dynamic = form != "unroll"
    case = Case(
        "GRU", opset, T=3, N=2, direction=direction, optional=("sequence_lens", "initial_h"), lengths_as="input"
    )
    model, _ = build(case.replace(dynamic=dynamic, outputs=("Y", "Y_h"), output_sequence=1 if opset < 7 else None))
    for target in (None, "openvino", "onnxruntime") if form == "loop" else (None,):
        proof = rnn_lower.prove(model, rnn_lower.lower(model, form=form, target=target))
        assert proof.ok, proof.reasons
        if target is None:
            assert ("does not cover empty sequences" in proof.nodes[0].reason) == (opset == 4)


def test_a_new_name_of_a_size_may_stand_for_two_sizes():
    """onnxruntime reuses the memory of values with one declared shape."""
    model, _ = build(Case("RNN", 17, dynamic=True, outputs=("Y",)))
    lowered = rnn_lower.lower(model)
    producer = next(each for each in lowered.graph.node if "Y" in each.output)
    producer.output[list(producer.output).index("Y")] = "before"
    lowered.graph.node.extend([node("Neg", ["before"], "minus"), node("Neg", ["minus"], "Y")])
    assert rnn_lower.prove(model, lowered).ok
    lowered.graph.value_info.append(helper.make_tensor_value_info("minus", 1, ["q", 1, None, 4]))
    assert "a size 'q', which is new" in str(rnn_lower.prove(model, lowered))


@pytest.mark.parametrize("scale", [1.0, 200003.0])
@pytest.mark.parametrize("form", ["scan", "loop"])
def test_a_state_without_weights_counts_no_steps(form, scale):
    """A unit whose weights are 0 leaves room for a number in the state."""
    model, _ = build(Case("RNN", 17, dynamic=True, outputs=("Y",), I=3, H=4))
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor).copy()
        array[0, 3, :] = 0
        if tensor.name == "R":
            array[0, :, 3] = 0
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    lowered = rnn_lower.lower(model, form=form)
    assert rnn_lower.prove(model, lowered).ok
    (loop,) = (each for each in lowered.graph.node if each.op_type == form.capitalize())
    body = next(attribute.g for attribute in loop.attribute if attribute.name == "body")
    numbers = {
        "three": [3],
        "four": [4],
        "zero": [0],
        "last": [1],
        "much": np.float32([scale]),
        "limit": np.float32([45]),
    }
    lowered.graph.initializer.extend(numpy_helper.from_array(np.asarray(n), k) for k, n in numbers.items())
    before = next(value.name for value in body.input if "previous" in value.name)
    state = next(each for each in body.node if each.op_type == "Tanh")
    after, state.output[0] = state.output[0], "all"
    place = list(body.node).index(state) + 1
    added = [
        node("Slice", ["all", "zero", "three", "last"], "units"), node("Slice", [before, "three", "four", "last"], "steps"),
        node("Add", ["steps", "much"], "more"), node("Concat", ["units", "more"], after, axis=1),
        node("Div", ["more", "much"], "count"), node("Sub", ["count", "limit"], "late"), node("Relu", ["late"], "wrong"),
        node("Slice", ["all", "three", "four", "last"], "dead"), node("Add", ["dead", "wrong"], "other"),
        node("Concat", ["units", "other"], "seen", axis=1),
    ]  # fmt: skip
    rest = [onnx.NodeProto.FromString(each.SerializeToString()) for each in body.node[place:]]
    for each in rest:
        each.input[:] = ["seen" if name == after else name for name in each.input]
    del body.node[place:]
    body.node.extend([*added, *rest])
    feeds = {"X": np.random.default_rng(0).standard_normal((50, 2, 3)).astype(np.float32)}
    (wanted,), (actual,) = run_onnxruntime(model, feeds), run_onnxruntime(lowered, feeds)
    assert np.allclose(wanted[:45], actual[:45], atol=1e-5)
    assert not np.allclose(wanted, actual, atol=1e-3)
    assert "no state of the recurrent node" in str(rnn_lower.prove(model, lowered))
