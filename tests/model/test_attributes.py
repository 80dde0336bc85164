"""Attributes of other nodes that are read: of another type than their operator's, missing, or those of a function."""

from __future__ import annotations

import contextlib
import faulthandler
import itertools
import os
import warnings

import numpy as np
import onnx
import pytest
from judge import close, run_onnxruntime
from onenode import Case, build
from onnx import TensorProto, helper, numpy_helper

import rnn_lower
from rnn_lower.errors import RnnLowerError, UnsupportedError
from rnn_lower.ir import protobuf

BODY = helper.make_graph(
    [helper.make_node("Identity", ["x"], ["given"])], "branch", [], [helper.make_tensor_value_info("given", 1, None)]
)
VALUES = {
    "missing": None, "INT": 3, "FLOAT": 1.5, "STRING": "text", "INTS": [1, 0, 5], "FLOATS": [2.0, 1.0], "STRINGS": ["a"],
    "TENSOR": numpy_helper.from_array(np.zeros(2, np.int64)), "GRAPH": BODY,
}  # fmt: skip
NODES = {
    "Transpose": (["x"], ["perm"], {}),
    "Reshape": (["x", "sizes"], ["allowzero"], {}),
    "Softmax": (["x"], ["axis"], {}),
    "Hardmax": (["x"], ["axis"], {}),
    "Mod": (["x", "x"], ["fmod"], {}),
    "Resize": (["x", "", "scales"], ["mode", "nearest_mode"], {}),
    "Gather": (["x", "one"], ["axis"], {}),
    "Cast": (["x"], ["to"], {}),
    "If": (["yes"], ["then_branch", "else_branch", "activations"], {"then_branch": BODY, "else_branch": BODY}),
    "Slice": (["x", "zero", "one"], ["axes"], {}),
    "Concat": (["x", "x"], ["axis"], {}),
}
OPTIONS = [
    {},
    {"opset": 7},
    {"opset": 22},
    {"fuse_directions": True},
    {"fold": True},
    {"form": "unroll"},
    {"target": "openvino"},
]


def model_of(op_type: str, inputs: list[str], attributes: dict[str, object]) -> onnx.ModelProto:
    """A node between two of a stack, and its size among what sizes are computed from."""
    lower, _ = build(Case("GRU", 14, T=4, N=2, I=5, H=5))
    model = onnx.ModelProto()
    model.CopyFrom(lower)
    (first,) = lower.graph.node
    del model.graph.node[:]
    one = onnx.NodeProto()
    one.CopyFrom(first)
    del one.output[:]
    one.output.append("all")
    model.graph.node.extend([
        one, helper.make_node("Squeeze", ["all", "one"], ["x"]), helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node(op_type, inputs, ["moved"], name="odd", **attributes),
        helper.make_node("Reshape", ["moved", "sizes"], ["again"]), first,
    ])  # fmt: skip
    first.input[0] = "again"
    model.graph.node[-1].CopyFrom(first)
    for name, value in (("one", [1]), ("zero", [0]), ("scales", np.ones(3, np.float32)), ("yes", True)):
        model.graph.initializer.append(numpy_helper.from_array(np.array(value), name))
    return model


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize(
    ("op_type", "name"), [(op_type, name) for op_type, (_, names, _) in NODES.items() for name in names]
)
def test_an_attribute_of_another_type_is_no_traceback(op_type, name, kind):
    inputs, _, others = NODES[op_type]
    said = {**others, name: VALUES[kind]}
    model = model_of(op_type, inputs, {key: value for key, value in said.items() if value is not None})
    _lowered_or_refused(model)


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize(
    ("op_type", "name"),
    [(op_type, name) for op_type, (_, names, _) in NODES.items() for name in names] + [("Upsample", "scales")],
)
def test_conversion_of_an_attribute_of_another_type_is_no_traceback(op_type, name, kind):
    inputs, _, others = NODES.get(op_type, (["x"], [], {"mode": "nearest"}))
    said = {**others, name: VALUES[kind]}
    node = helper.make_node(op_type, inputs, ["moved"], **{key: one for key, one in said.items() if one is not None})
    for opset in (8, 12, 17):
        model, _ = build(Case("GRU", min(opset, 14), T=4, N=2, I=5, H=5))
        model.opset_import[0].version = opset
        node.input[:] = ["X" if one == "x" else one for one in inputs]
        model.graph.node.append(node)
        model.graph.output.append(helper.make_tensor_value_info("moved", TensorProto.FLOAT, None))
        for key, value in (
            ("one", [1]),
            ("zero", [0]),
            ("scales", np.ones(3, np.float32)),
            ("yes", True),
            ("sizes", [8, 5]),
        ):
            model.graph.initializer.append(numpy_helper.from_array(np.array(value), key))
        for to in {7, 10, 12, 14, 22} - {opset}:
            try:
                rnn_lower.lower(model, opset=to)
            except RnnLowerError:
                continue


def die(*_: object) -> None:
    faulthandler.disable()  # which pytest has turned on, and which would say so here
    os.abort()


def test_a_converter_that_dies_is_a_refusal(monkeypatch):
    """Of hostile nodes onnx's does."""
    model, _ = build(Case("GRU", 14, T=4))
    model.opset_import[0].version = 12
    model.graph.node.append(helper.make_node("Softmax", ["X"], ["moved"], name="odd", axis=2))
    monkeypatch.setattr(onnx.version_converter, "convert_version", die)
    with pytest.raises(UnsupportedError, match="Softmax 'odd': die failed"):
        rnn_lower.lower(model, opset=14)


@pytest.mark.parametrize("op_type", NODES)
def test_a_node_without_inputs_is_no_traceback(op_type):
    _lowered_or_refused(model_of(op_type, [], NODES[op_type][2]))


def _lowered_or_refused(model: onnx.ModelProto) -> None:
    for options in OPTIONS:
        try:
            lowered = rnn_lower.lower(model, **options)
        except RnnLowerError:
            continue
        assert not any(node.op_type == "GRU" for node in lowered.graph.node)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "T"
    others = (lambda one: rnn_lower.check(one, one), lambda one: rnn_lower.lint(one, "openvino"))
    for work in (rnn_lower.stream, rnn_lower.inspect, *others):
        try:
            work(model)
        except RnnLowerError:
            continue


@pytest.mark.parametrize(("said", "why"), [
    ({"perm": "text"}, "its attribute 'perm' has type STRING; the operator accepts only INTS"),
    ({"perm": [1, 2]}, "the number or the sizes of its inputs do not fit its attributes"),
])  # fmt: skip
def test_a_stream_tells_what_is_wrong_with_an_attribute(said, why):
    model = model_of("Transpose", ["x"], said)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "T"
    with pytest.raises(UnsupportedError, match=f"Transpose 'odd' in main graph cannot run chunk by chunk: {why}"):
        rnn_lower.stream(model)


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.float32, np.bool_, np.complex64])
def test_starts_that_are_no_integers_move_no_weights(dtype):
    """They would have been cut off, with a warning of numpy's."""
    model, _ = build(Case("GRU", 14, T=4))
    weight = next(tensor for tensor in model.graph.initializer if tensor.name == "W")
    weight.name = "stored"
    model.graph.node.insert(0, helper.make_node("Slice", ["stored", "begin", "end"], ["W"]))
    for name, value in (("begin", [0]), ("end", [1])):
        model.graph.initializer.append(numpy_helper.from_array(np.array(value, dtype), name))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lowered = rnn_lower.lower(model)
    moved = any(node.op_type == "Slice" and node.input[0] == "stored" for node in lowered.graph.node)
    assert moved == (dtype not in (np.int64, np.int32))


READ = [
    ("Transpose", ["x"], {"perm": [1, 0, 2]}, "INTS"),
    ("Transpose", ["x"], {"perm": [0, 1, 2]}, "INTS"),
    ("Shape", ["x"], {"start": 1}, "INT"),
    ("Shape", ["x"], {"end": 1}, "INT"),
    ("Reshape", ["x", "kept"], {"allowzero": 0}, "INT"),
    ("Softmax", ["x"], {"axis": 0}, "INT"),
    ("Gather", ["x", "order"], {"axis": 0}, "INT"),
]


@pytest.mark.parametrize(("read", "options"), itertools.product(READ, OPTIONS[:6]), ids=str)
def test_what_a_caller_tells_a_function_is_not_taken_for_the_default(read, options):
    """The attribute of a node in a function is that of the call, and not known where the function is lowered."""
    model, feeds = _called(*read)
    try:
        lowered = rnn_lower.lower(model, **options)
    except RnnLowerError:
        return
    for steps in (4, 6):
        feeds = {"x": np.random.default_rng(steps).normal(size=(steps, 2, 4)).astype(np.float32)}
        close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))


def _called(
    op_type: str, inputs: list[str], told: dict[str, object], kind: str
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model that calls a function of two layers, with the node between them."""
    (name,) = told
    rng = np.random.default_rng(0)
    odd = helper.make_node(op_type, inputs, ["given"])
    odd.attribute.append(onnx.AttributeProto(name=name, ref_attr_name="told", type=getattr(onnx.AttributeProto, kind)))
    constants = [
        helper.make_node("Constant", [], [key], value=numpy_helper.from_array(np.array(value, dtype), key))
        for key, value, dtype in (
            ("one", [1], np.int64), ("kept", [0, 0, -1], np.int64), ("order", [1, 0], np.int64),
            ("W", rng.uniform(-0.5, 0.5, (1, 12, 4)), np.float32), ("R", rng.uniform(-0.5, 0.5, (1, 12, 4)), np.float32),
        )
    ]  # fmt: skip
    layers = [
        helper.make_node("GRU", [x, "W", "R"], [y], hidden_size=4, name=y) for x, y in (("in", "below"), ("next", "Y"))
    ]
    squeeze = helper.make_node("Squeeze", ["below", "one"], ["x"])
    if op_type == "Shape":
        between = [odd, helper.make_node("Shape", ["x"], ["whole"]), helper.make_node("Reshape", ["x", "whole"], ["next"]),
                   helper.make_node("ReduceProd", ["given"], ["size"], keepdims=0)]  # fmt: skip
    else:
        between = [
            odd,
            helper.make_node("Reshape", ["given", "sizes"], ["next"]),
            helper.make_node("Size", ["x"], ["size"]),
        ]
        between.insert(0, helper.make_node("Shape", ["x"], ["sizes"]))
    if op_type == "Gather":
        between[2] = helper.make_node("Identity", ["given"], ["next"])
    function = helper.make_function(
        "own", "layers", ["in"], ["Y", "size"], [*constants, layers[0], squeeze, *between, layers[1]],
        [helper.make_opsetid("", 17)], ["told"],
    )  # fmt: skip
    graph = helper.make_graph(
        [helper.make_node("layers", ["x"], ["y", "size"], domain="own", told=told[name])], "main",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["T", 2, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None), helper.make_tensor_value_info("size", TensorProto.INT64, None)],
    )  # fmt: skip
    model = helper.make_model(
        graph,
        functions=[function],
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("own", 1)],
        ir_version=8,
    )
    return model, {"x": rng.normal(size=(4, 2, 4)).astype(np.float32)}


ODD_CONSTANTS = {
    "texts": numpy_helper.from_array(np.array(["a"], object)),
    "list in a list": numpy_helper.from_array(np.array([[0]])),
    "complex": numpy_helper.from_array(np.array([1j], np.complex64)),
    "four bits": helper.make_tensor("", TensorProto.INT4, [1], [3]),
    "no number": numpy_helper.from_array(np.array([np.nan], np.float32)),
    "half": numpy_helper.from_array(np.array([3], np.float16)),
    "truth": numpy_helper.from_array(np.array([True])),
}
WITH_PARAMETERS = [
    ("OneHot", ["ids", "odd", "pair"]), ("Gather", ["odd", "ids"]), ("Slice", ["X", "odd", "odd"]),
    ("Reshape", ["X", "odd"]), ("Expand", ["X", "odd"]), ("Tile", ["X", "odd"]), ("Resize", ["X", "", "odd"]),
    ("Upsample", ["X", "odd"]), ("Unsqueeze", ["X", "odd"]), ("Squeeze", ["X", "odd"]), ("TopK", ["X", "odd"]),
    ("Pad", ["X", "odd"]), ("Split", ["X", "odd"]), ("ReduceSum", ["X", "odd"]), ("Range", ["odd", "odd", "odd"]),
    ("ConstantOfShape", ["odd"]), ("Equal", ["ids", "odd"]), ("Clip", ["X", "odd", "odd"]), ("CumSum", ["X", "odd"]),
]  # fmt: skip


@pytest.mark.parametrize("opset", [9, 17])
@pytest.mark.parametrize(("op_type", "inputs"), WITH_PARAMETERS)
def test_a_constant_of_another_type_is_no_traceback(op_type, inputs, opset):
    for kind in list(ODD_CONSTANTS)[:: 1 if op_type in ("OneHot", "Upsample", "Slice") else 4]:
        model, _ = build(Case("GRU", min(opset, 14), T=4, N=2, I=5, H=5))
        model.opset_import[0].version = opset
        model.graph.input.append(helper.make_tensor_value_info("ids", TensorProto.INT64, [3]))
        model.graph.initializer.add().CopyFrom(ODD_CONSTANTS[kind])
        model.graph.initializer[-1].name = "odd"
        model.graph.initializer.append(numpy_helper.from_array(np.array([0, 1], np.float32), "pair"))
        model.graph.node.append(helper.make_node(op_type, inputs, ["moved"]))
        model.graph.output.append(helper.make_tensor_value_info("moved", TensorProto.FLOAT, None))
        free = onnx.ModelProto()
        free.CopyFrom(model)
        free.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "T"
        for work in (
            lambda model=model: rnn_lower.lower(model, opset=8), lambda model=model: rnn_lower.lower(model, opset=20),
            lambda model=model: rnn_lower.lint(model, "openvino"), lambda free=free: rnn_lower.stream(free),
            lambda model=model: rnn_lower.check(model, model, runs=1),
        ):  # fmt: skip
            with contextlib.suppress(RnnLowerError):
                work()


def test_tensors_of_default_attributes_of_functions_are_found():
    """They may have their data in files, as all others."""
    held = helper.make_tensor("held", onnx.TensorProto.FLOAT, [1], [1.0])
    body = helper.make_graph([helper.make_node("Constant", [], ["c"], value=held)], "body", [], [])
    model = onnx.ModelProto()
    function = model.functions.add(name="F", domain="d")
    function.attribute_proto.append(helper.make_attribute("body", body))
    function.attribute_proto.append(helper.make_attribute("weights", held))
    assert [tensor.name for tensor in protobuf.tensors(model)] == ["held", "held"]
