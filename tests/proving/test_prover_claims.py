"""Lowered files that were changed by hand so that they compute something else or do not load: none of them is proved."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from judge import every_node, marked
from onenode import Case, build
from onnx import TensorProto, helper, numpy_helper

import rnn_lower
from rnn_lower.ir import protobuf

Change = Callable[[onnx.ModelProto], None]


def body_of(model: onnx.ModelProto) -> tuple[onnx.NodeProto, onnx.GraphProto]:
    """The first Scan or Loop, wherever it is, and its body."""
    node = next(node for node in every_node(model) if node.op_type in ("Scan", "Loop"))
    return node, next(attribute.g for attribute in node.attribute if attribute.HasField("g"))


def nodes_in(body: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Those of a body and of the bodies in it."""
    return [node for graph in protobuf.graphs_in(body) for node in graph.node]


def behind(model: onnx.ModelProto, output: str = "Y") -> str:
    """Let an emitted node that is yet to come compute an output: what has computed it gets another name."""
    node = next(node for node in model.graph.node if output in node.output)
    node.output[list(node.output).index(output)] = "before"
    return "before"


def initializer(model: onnx.ModelProto, name: str, value: object) -> str:
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return name


def clip_with_min_above_max(model: onnx.ModelProto) -> None:
    bounds = [initializer(model, name, np.float32(value)) for name, value in (("high", 2.0), ("low", -2.0))]
    model.graph.node.append(marked("Clip", [behind(model), *bounds], ["clipped"]))
    zero = initializer(model, "zero", np.float32(0))
    model.graph.node.append(marked("Mul", ["clipped", zero], ["nothing"]))
    model.graph.node.append(marked("Add", ["before", "nothing"], ["Y"]))


def clip_in_place_of_clip(model: onnx.ModelProto) -> None:
    """The node's own clip with its bounds exchanged."""
    for node in (node for node in every_node(model) if node.op_type == "Clip"):
        node.input[1], node.input[2] = node.input[2], node.input[1]


def body_input_with_an_outer_name(model: onnx.ModelProto) -> None:
    _, body = body_of(model)
    old = body.input[len(body.input) - 1].name
    body.input[len(body.input) - 1].name = "X"
    for node in nodes_in(body):
        node.input[:] = ["X" if name == old else name for name in node.input]


def body_value_with_an_outer_name(model: onnx.ModelProto) -> None:
    _, body = body_of(model)
    node = body.node[0]
    old, node.output[0] = node.output[0], "node"
    initializer(model, "node", np.float32(0))
    for inner in nodes_in(body):
        inner.input[:] = ["node" if name == old else name for name in inner.input]


def sparse_initializer_in_a_body(model: onnx.ModelProto) -> None:
    _, body = body_of(model)
    values = numpy_helper.from_array(np.ones(1, np.float32), body.input[0].name)
    indices = numpy_helper.from_array(np.zeros((1, 2), np.int64), "indices")
    body.sparse_initializer.append(onnx.SparseTensorProto(values=values, indices=indices, dims=[1, 4]))


def initializer_called_like_an_input(model: onnx.ModelProto) -> None:
    initializer(model, "X", np.ones((4, 2, 3), np.float32))


def initializer_called_like_a_body_input(model: onnx.ModelProto) -> None:
    _, body = body_of(model)
    body.initializer.append(numpy_helper.from_array(np.ones((2, 4), np.float32), body.input[0].name))


def cast_to_float16(model: onnx.ModelProto) -> None:
    model.graph.node.append(marked("Cast", [behind(model)], ["Y"], to=TensorProto.FLOAT16))


def cast_to_float16_and_back(model: onnx.ModelProto) -> None:
    model.graph.node.append(marked("Cast", [behind(model)], ["half"], to=TensorProto.FLOAT16))
    model.graph.node.append(marked("Cast", ["half"], ["Y"], to=TensorProto.FLOAT))


def cast_to_double(model: onnx.ModelProto) -> None:
    model.graph.node.append(marked("Cast", [behind(model)], ["Y"], to=TensorProto.DOUBLE))


def nothing_over_nothing(model: onnx.ModelProto) -> None:
    zero = initializer(model, "zero", np.float32(0))
    model.graph.node.append(marked("Div", [zero, zero], ["nan"]))
    model.graph.node.append(marked("Add", [behind(model), "nan"], ["Y"]))


def difference_over_itself(model: onnx.ModelProto) -> None:
    before = behind(model)
    model.graph.node.append(marked("Sub", [before, before], ["none"]))
    model.graph.node.append(marked("Div", ["none", "none"], ["nan"]))
    model.graph.node.append(marked("Add", [before, "nan"], ["Y"]))


def infinity_less_infinity(model: onnx.ModelProto) -> None:
    infinite = initializer(model, "infinite", np.float32(np.inf))
    model.graph.node.append(marked("Sub", [infinite, infinite], ["nan"]))
    model.graph.node.append(marked("Add", [behind(model), "nan"], ["Y"]))


def overflow_of_constants(model: onnx.ModelProto) -> None:
    large = initializer(model, "large", np.float32(3e38))
    model.graph.node.append(marked("Add", [large, large], ["infinite"]))
    model.graph.node.append(marked("Sub", ["infinite", large], ["still"]))
    model.graph.node.append(marked("Sub", ["still", large], ["zero"]))
    model.graph.node.append(marked("Add", [behind(model), "zero"], ["Y"]))


def false_rank(model: onnx.ModelProto) -> None:
    model.graph.value_info.append(
        helper.make_tensor_value_info(emitted_value(model), TensorProto.FLOAT, [7, 7, 7, 7, 7])
    )


def false_size(model: onnx.ModelProto) -> None:
    shape = [None, None, 99]
    model.graph.value_info.append(helper.make_tensor_value_info(emitted_value(model), TensorProto.FLOAT, shape))


def false_type(model: onnx.ModelProto) -> None:
    model.graph.value_info.append(helper.make_tensor_value_info(emitted_value(model), TensorProto.INT64, None))


def emitted_value(model: onnx.ModelProto) -> str:
    """A value of three axes that an emitted node makes, no output of the model."""
    name = "widened"
    model.graph.node.append(marked("Identity", ["X"], [name]))
    zero = initializer(model, "zero", np.float32(0))
    model.graph.node.append(marked("Mul", [first_element(model, name), zero], ["nothing"]))
    model.graph.node.append(marked("Add", [behind(model), "nothing"], ["Y"]))
    return name


def first_element(model: onnx.ModelProto, value: str) -> str:
    """The first element of a value, by emitted nodes."""
    for name, number in (("flat", -1), ("begin", 0), ("end", 1)):
        initializer(model, name, np.array([number]))
    model.graph.node.append(marked("Reshape", [value, "flat"], ["elements"]))
    model.graph.node.append(marked("Slice", ["elements", "begin", "end"], ["first"]))
    return "first"


def false_type_in_a_body(model: onnx.ModelProto) -> None:
    _, body = body_of(model)
    body.input[len(body.input) - 1].type.tensor_type.elem_type = TensorProto.DOUBLE


def unread_node_of_no_operator(model: onnx.ModelProto) -> None:
    model.graph.node.append(marked("Nonsense", ["X"], ["unread"]))


def unread_node_that_cannot_run(model: onnx.ModelProto) -> None:
    sizes = initializer(model, "sizes", np.array([5, -1]))
    model.graph.node.append(marked("Split", ["X", sizes], ["one", "other"], axis=0))


def unread_node_of_another_value(model: onnx.ModelProto) -> None:
    model.graph.node.append(marked("Relu", ["Z"], ["unread"]))


def split_into_less_than_nothing(model: onnx.ModelProto) -> None:
    sizes = initializer(model, "sizes", np.array([5, -1]))
    model.graph.node.append(marked("Split", [behind(model), sizes], ["Y", "rest"], axis=0))


def complex_constant(model: onnx.ModelProto) -> None:
    number = initializer(model, "number", np.complex64(0))
    model.graph.node.append(marked("Add", [behind(model), number], ["Y"]))


def huge_constant(model: onnx.ModelProto) -> None:
    sizes = initializer(model, "sizes", np.array([10**6, 10**6]))
    model.graph.node.append(marked("ConstantOfShape", [sizes], ["zeros"]))
    model.graph.node.append(marked("Add", [behind(model), first_element(model, "zeros")], ["Y"]))


def huge_sum(model: onnx.ModelProto) -> None:
    for name, shape in (("row", [1, 10**6]), ("column", [10**6, 1])):
        sizes = initializer(model, f"{name}_sizes", np.array(shape))
        model.graph.node.append(marked("ConstantOfShape", [sizes], [name]))
    model.graph.node.append(marked("Add", ["row", "column"], ["zeros"]))
    model.graph.node.append(marked("Add", [behind(model), first_element(model, "zeros")], ["Y"]))


def another_unknown_field(model: onnx.ModelProto) -> None:
    """Field 999, a number, in the node that nothing has replaced."""
    node = next(node for node in model.graph.node if node.op_type == "Neg")
    node.MergeFromString(bytes([0xB8, 0x3E, 0x07]))


def unknown_field_of_the_graph(model: onnx.ModelProto) -> None:
    model.graph.MergeFromString(bytes([0xB8, 0x3E, 0x07]))


CHANGES = [
    clip_with_min_above_max, body_input_with_an_outer_name,
    sparse_initializer_in_a_body, initializer_called_like_an_input, initializer_called_like_a_body_input,
    cast_to_float16, cast_to_float16_and_back, cast_to_double, nothing_over_nothing, difference_over_itself,
    infinity_less_infinity, overflow_of_constants, false_rank, false_size, false_type, false_type_in_a_body,
    unread_node_of_no_operator, unread_node_that_cannot_run, unread_node_of_another_value,
    split_into_less_than_nothing, complex_constant, huge_constant, huge_sum, another_unknown_field,
    unknown_field_of_the_graph,
]  # fmt: skip


def original(op: str = "LSTM", **details: object) -> onnx.ModelProto:
    model, _ = build(Case(op, 17, T=5, N=2, **details))
    model.graph.node.append(helper.make_node("Neg", ["X"], ["Z"]))
    model.graph.output.append(helper.make_tensor_value_info("Z", TensorProto.FLOAT, None))
    return model


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("form", ["scan", "loop"])
def test_what_computes_something_else_is_not_proved(change: Change, form: str):
    model = original()
    lowered = rnn_lower.lower(model, form=form)
    assert rnn_lower.prove(model, lowered).ok
    change(lowered)
    proof = rnn_lower.prove(model, lowered)
    assert not proof.ok
    assert proof.changed or any(not node.ok for node in proof.nodes)


def test_a_clip_with_its_bounds_exchanged_is_not_proved():
    model = original(clip=0.5)
    lowered = rnn_lower.lower(model)
    assert rnn_lower.prove(model, lowered).ok
    clip_in_place_of_clip(lowered)
    assert not rnn_lower.prove(model, lowered).ok


def test_unread_nodes_that_run_change_nothing():
    model = original()
    lowered = rnn_lower.lower(model)
    lowered.graph.node.append(marked("Relu", ["X"], ["unread"]))
    assert rnn_lower.prove(model, lowered).ok


def test_true_value_info_is_no_difference():
    model = original()
    lowered = rnn_lower.lower(model)
    lowered.graph.value_info.append(helper.make_tensor_value_info(emitted_value(lowered), TensorProto.FLOAT, [5, 2, 3]))
    assert rnn_lower.prove(model, lowered).ok


def renamed(model: onnx.ModelProto, old: str, new: str) -> onnx.ModelProto:
    """A copy in which one value has another's name, in every scope."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())

    def of_graph(graph: onnx.GraphProto) -> None:
        for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
            value.name = new if value.name == old else value.name
        for node in graph.node:
            for names in (node.input, node.output):
                names[:] = [new if name == old else name for name in names]
            for attribute in node.attribute:
                of_graph(attribute.g)

    of_graph(copy.graph)
    return copy


@pytest.mark.parametrize("form", ["scan", "loop", "unroll"])
def test_a_value_with_the_name_of_another_is_not_proved(form):
    """Unless the file stays the same, or is refused as a model."""
    model = original("GRU", optional=("B", "initial_h"), hidden_size=True)
    lowered = rnn_lower.lower(model, form=form)
    graphs = [lowered.graph, *(a.g for node in every_node(lowered) for a in node.attribute if a.HasField("g"))]
    names = [name for graph in graphs for name in (
        *(value.name for value in graph.input), *(tensor.name for tensor in graph.initializer),
        *(name for node in graph.node for name in node.output if name),
    )]  # fmt: skip
    names = list(dict.fromkeys(names))
    rng = np.random.default_rng(0)
    for _ in range(150):
        old, new = (str(name) for name in rng.choice(names, 2, replace=False))
        mutant = renamed(lowered, old, new)
        try:
            proof = rnn_lower.prove(model, mutant)
        except rnn_lower.RnnLowerError:
            continue
        assert not proof.ok, (old, new)
