"""Functions whose attributes have values by default, and functions of which only each call tells what they compute."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from judge import close, remaining, run_onnxruntime
from onnx import TensorProto, helper, numpy_helper
from streams import in_chunks

import rnn_lower
from rnn_lower.errors import UnsupportedError
from rnn_lower.transforms.inline import inlined

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
I, H = 3, 4


def recurrent(op: str, inputs: list[str], outputs: list[str]) -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs, name="cell", hidden_size=H)


def model_of(op: str, function: onnx.FunctionProto, nodes: list[onnx.NodeProto], opset: int) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.uniform(-1, 1, (1, GATES[op] * H, width)).astype(np.float32), name)
        for name, width in (("W", I), ("R", H))
    ]
    x = helper.make_tensor_value_info("X", TensorProto.FLOAT, ["T", 1, I])
    y = helper.make_tensor_value_info("Y", TensorProto.FLOAT, ["T", 1, 1, "units"])
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("own", 1)]
    return helper.make_model(
        helper.make_graph(nodes, "g", [x], [y], weights), opset_imports=opsets, functions=[function], ir_version=9
    )


def refers(name: str, attribute: str, kind: int) -> onnx.AttributeProto:
    return onnx.AttributeProto(name=name, ref_attr_name=attribute, type=kind)


def around(op: str, opset: int = 17, of: str = "LeakyRelu") -> onnx.ModelProto:
    """An operator in a function, called without its attribute and with it, before and behind a recurrent node."""
    node = helper.make_node(of, ["x"], ["y"])
    node.attribute.append(refers("alpha", "slope", onnx.AttributeProto.FLOAT))
    function = helper.make_function("own", "Leaky", ["x"], ["y"], [node], [helper.make_opsetid("", opset)])
    function.attribute_proto.append(helper.make_attribute("slope", 0.7))
    nodes = [
        helper.make_node("Leaky", ["X"], ["x"], domain="own"),
        recurrent(op, ["x", "W", "R"], ["y"]),
        helper.make_node("Leaky", ["y"], ["Y"], domain="own", slope=0.2),
    ]
    return model_of(op, function, nodes, opset)


def inside(op: str, deep: bool = False, opset: int = 17) -> onnx.ModelProto:
    """The recurrent node in a function with a clip of its own, by default, by a call, and through another function."""
    node = recurrent(op, ["x", "w", "r"], ["y"])
    node.attribute.append(refers("clip", "limit", onnx.AttributeProto.FLOAT))
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("own", 1)]
    function = helper.make_function("own", "Cell", ["x", "w", "r"], ["y"], [node], imports)
    function.attribute_proto.append(helper.make_attribute("limit", 0.05))
    nodes = [
        helper.make_node("Cell", ["X", "W", "R"], ["first"], domain="own"),
        helper.make_node("Cell", ["X", "W", "R"], ["second"], domain="own", limit=0.5),
        helper.make_node("Concat", ["first", "second"], ["Y"], axis=-1),
    ]
    model = model_of(op, function, nodes, opset)
    if deep:
        call = helper.make_node("Cell", ["x", "w", "r"], ["y"], domain="own")
        call.attribute.append(refers("limit", "outer", onnx.AttributeProto.FLOAT))
        outer = helper.make_function("own", "Outer", ["x", "w", "r"], ["y"], [call], imports)
        outer.attribute_proto.append(helper.make_attribute("outer", 0.3))
        model.functions.append(outer)
        model.graph.node[1].op_type = "Outer"
        del model.graph.node[1].attribute[:]
    return model


def feeds() -> dict[str, np.ndarray]:
    return {"X": np.random.default_rng(1).normal(0, 3, (6, 1, I)).astype(np.float32)}


def left_out(op: str, of: str = "") -> onnx.ModelProto:
    """A function passes on what its caller leaves out, to one with a default; another caller says it."""
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    if of:
        node, inputs = helper.make_node(of, ["x"], ["y"]), ["x"]
        node.attribute.append(refers("alpha", "limit", onnx.AttributeProto.FLOAT))
    else:
        node, inputs = recurrent(op, ["x", "w", "r"], ["y"]), ["x", "w", "r"]
        node.attribute.append(refers("clip", "limit", onnx.AttributeProto.FLOAT))
    inner = helper.make_function("own", "Inner", inputs, ["y"], [node], imports)
    inner.attribute_proto.append(helper.make_attribute("limit", 0.05))
    call = helper.make_node("Inner", inputs, ["y"], domain="own")
    call.attribute.append(refers("limit", "outer", onnx.AttributeProto.FLOAT))
    outer = helper.make_function("own", "Outer", inputs, ["y"], [call], imports, attributes=["outer"])
    arguments = ["X", "W", "R"][: len(inputs)]
    nodes = [
        helper.make_node("Outer", arguments, ["first"], domain="own"),
        helper.make_node("Outer", arguments, ["second"], domain="own", outer=0.5),
        helper.make_node("Inner", arguments, ["third"], domain="own"),
    ]
    if of:
        joined = helper.make_node("Sum", ["first", "second", "third"], ["sum"])
        nodes += [joined, recurrent(op, ["sum", "W", "R"], ["Y"])]
    else:
        nodes.append(helper.make_node("Concat", ["first", "second", "third"], ["Y"], axis=-1))
    model = model_of(op, inner, nodes, 17)
    model.functions.append(outer)
    return model


MODELS = {
    "left out": left_out,
    "left out, LeakyRelu": lambda op: left_out(op, of="LeakyRelu"),
    "around": around,
    "around, Elu": lambda op: around(op, of="Elu"),
    "inside": inside,
    "inside, deep": lambda op: inside(op, deep=True),
}


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("model", MODELS)
def test_what_attributes_are_by_default_stays(model, op):
    """onnx's inliner forgets it, so that the function would have the default of the operator."""
    original = MODELS[model](op)
    wanted = run_onnxruntime(original, feeds())
    close(run_onnxruntime(inlined(original), feeds()), wanted)
    folded = rnn_lower.lower(original, fold=True)
    assert not remaining(folded)
    close(run_onnxruntime(folded, feeds()), wanted)
    report = rnn_lower.check(original, folded)
    assert report.ok, report.verdict
    assert max(output.max_abs_error for output in report.outputs) < 1e-5
    assert rnn_lower.prove(original, folded).ok
    streamed = in_chunks(rnn_lower.stream(original, axis="T"), feeds(), [1, 3, 2])
    close([streamed["Y"]], wanted)


def transposed() -> tuple[list[onnx.NodeProto], onnx.AttributeProto]:
    """By default as it is; without that, the other way round."""
    node = helper.make_node("Transpose", ["x"], ["y"])
    node.attribute.append(refers("perm", "given", onnx.AttributeProto.INTS))
    return [node], helper.make_attribute("given", [0, 1, 2])


def cut() -> tuple[list[onnx.NodeProto], onnx.AttributeProto]:
    """From the second step on."""
    start = helper.make_node("Constant", [], ["start"])
    start.attribute.append(refers("value_ints", "given", onnx.AttributeProto.INTS))
    end = helper.make_node("Constant", [], ["end"], value_ints=[99])
    return [start, end, helper.make_node("Slice", ["x", "start", "end"], ["y"])], helper.make_attribute("given", [1])


def normalized() -> tuple[list[onnx.NodeProto], onnx.AttributeProto]:
    """A softmax over time, which stands for what tells no sizes."""
    node = helper.make_node("Softmax", ["x"], ["y"])
    node.attribute.append(refers("axis", "given", onnx.AttributeProto.INT))
    return [node], helper.make_attribute("given", 0)


@pytest.mark.parametrize(
    "options", [{"form": "loop"}, {"form": "scan"}, {"target": "openvino"}, {"fold": True}], ids=str
)
@pytest.mark.parametrize("shaping", [transposed, cut, normalized])
@pytest.mark.parametrize("op", GATES)
def test_sizes_behind_a_function_are_those_of_its_defaults(op, shaping, options):
    """In form loop, three steps were taken for the length: the last axis of X, which Transpose makes the first."""
    nodes, default = shaping()
    function = helper.make_function("own", "F", ["x"], ["y"], nodes, [helper.make_opsetid("", 17)])
    function.attribute_proto.append(default)
    calls = [helper.make_node("F", ["X"], ["x"], domain="own"), recurrent(op, ["x", "W", "R"], ["Y"])]
    original = model_of(op, function, calls, 17)
    lowered = rnn_lower.lower(original, **options)
    assert not remaining(lowered)
    close(run_onnxruntime(lowered, feeds()), run_onnxruntime(original, feeds()))
    with pytest.raises(UnsupportedError, match="needs a known sequence length"):
        rnn_lower.lower(original, form="unroll")


@pytest.mark.parametrize("op", GATES)
def test_converted(op):
    original = around(op, opset=15)
    close(run_onnxruntime(rnn_lower.lower(original, opset=18), feeds()), run_onnxruntime(original, feeds()))


@pytest.mark.parametrize("op", GATES)
def test_without_folding_it_is_refused(op):
    original = inside(op)
    before = original.SerializeToString(deterministic=True)
    with pytest.raises(UnsupportedError, match="lower the model with fold, which inlines the function"):
        rnn_lower.lower(original)
    assert {node.op_type for node in rnn_lower.inspect(original)} == {op}
    assert rnn_lower.check(original, original).ok
    assert original.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("options", [{}, {"legalize_all": True}], ids=str)
@pytest.mark.parametrize("target", ["dla", "tinygrad"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("op", GATES)
def test_targets_that_need_sizes_get_them_from_the_calls(op, model, target, options):
    original = MODELS[model](op)
    lowered = rnn_lower.lower(original, target=target, dims={"T": 6}, fold=True, **options)
    assert not remaining(lowered)
    close(run_onnxruntime(lowered, feeds()), run_onnxruntime(original, feeds()))
    proof = rnn_lower.prove(original, lowered)
    assert proof.ok, (proof.reasons, proof.changed)
    assert rnn_lower.lint(original, target, dims={"T": 6}).findings is not None


@pytest.mark.parametrize("op", GATES)
def test_two_element_types(op):
    """Each call has its body; onnxruntime runs it in both types."""
    node = recurrent(op, ["x", "w", "r"], ["y"])
    function = helper.make_function("own", "Cell", ["x", "w", "r"], ["y"], [node], [helper.make_opsetid("", 17)])
    casts = [helper.make_node("Cast", [name], [f"{name}/double"], to=TensorProto.DOUBLE) for name in ("X", "W", "R")]
    nodes = [
        *casts,
        helper.make_node("Cell", ["X", "W", "R"], ["first"], domain="own"),
        helper.make_node("Cell", [cast.output[0] for cast in casts], ["second/double"], domain="own"),
        helper.make_node("Cast", ["second/double"], ["second"], to=TensorProto.FLOAT),
        helper.make_node("Concat", ["first", "second"], ["Y"], axis=-1),
    ]
    original = model_of(op, function, nodes, 17)
    with pytest.raises(UnsupportedError, match=r"of different types \(DOUBLE and FLOAT\).*pass fold to inline"):
        rnn_lower.lower(original)
    folded = rnn_lower.lower(original, fold=True)
    assert not remaining(folded)
    (y,) = run_onnxruntime(folded, feeds())
    np.testing.assert_allclose(y[..., :H], y[..., H:], rtol=1e-4, atol=1e-5)
    assert rnn_lower.check(original, folded).ok


def hiding() -> onnx.ModelProto:
    """A function with a body that reads `t` of the function, where `t` and names made of it are taken already."""
    body_inputs = [
        helper.make_tensor_value_info("t_2", TensorProto.INT64, []),
        helper.make_tensor_value_info("t_3", TensorProto.BOOL, []),
        helper.make_tensor_value_info("t_4", TensorProto.FLOAT, None),
    ]
    body_nodes = [
        helper.make_node("Identity", ["t_3"], ["t_5"]),
        helper.make_node("Add", ["t_4", "t"], ["t_6"]),
    ]
    body_outputs = [
        helper.make_tensor_value_info("t_5", TensorProto.BOOL, []),
        helper.make_tensor_value_info("t_6", TensorProto.FLOAT, None),
    ]
    three = helper.make_node("Constant", [], ["trips"], value=numpy_helper.from_array(np.int64(3)))
    cell = recurrent("GRU", ["looped", "w", "r"], ["y"])
    cell.attribute.append(refers("clip", "limit", onnx.AttributeProto.FLOAT))
    nodes = [
        helper.make_node("Neg", ["x"], ["t"]),
        three,
        helper.make_node(
            "Loop", ["trips", "", "x"], ["looped"], body=helper.make_graph(body_nodes, "b", body_inputs, body_outputs)
        ),
        cell,
    ]
    function = helper.make_function("own", "Cell", ["x", "w", "r"], ["y"], nodes, [helper.make_opsetid("", 17)])
    function.attribute_proto.append(helper.make_attribute("limit", 0.5))
    calls = [
        helper.make_node("Tanh", ["X"], ["t"]),
        helper.make_node("Cell", ["t", "W", "R"], ["first"], domain="own"),
        helper.make_node("Cell", ["X", "W", "R"], ["second"], domain="own"),
        helper.make_node("Concat", ["first", "second"], ["Y"], axis=-1),
    ]
    return model_of("GRU", function, calls, 17)


def test_names_of_bodies_hide_nothing():
    original = hiding()
    wanted = run_onnxruntime(original, feeds())
    for lowered in (rnn_lower.lower(original, fold=True), inlined(original)):
        close(run_onnxruntime(lowered, feeds()), wanted)


def test_functions_that_nobody_calls_go():
    original = inside("LSTM", deep=True)
    original.graph.node[1].op_type = "Cell"
    folded = rnn_lower.lower(original, fold=True)
    assert not folded.functions
    close(run_onnxruntime(folded, feeds()), run_onnxruntime(original, feeds()))


def in_opsets(model: int, alias: str, function: int, caller: int | None = None) -> onnx.ModelProto:
    """Softmax, which opset 13 changed, before a node whose clip is the call's. caller: of a function around the call."""
    cell = recurrent("GRU", ["s", "w", "r"], ["y"])
    cell.attribute.append(refers("clip", "limit", onnx.AttributeProto.FLOAT))
    nodes = [helper.make_node("Softmax", ["x"], ["s"]), cell]
    body = helper.make_function("own", "Cell", ["x", "w", "r"], ["y"], nodes, [helper.make_opsetid("", function)])
    body.attribute_proto.append(helper.make_attribute("limit", 0.5))
    name = "Cell" if caller is None else "Outer"
    calls = [helper.make_node(name, ["X", "W", "R"], ["y"], domain="own")]
    made = model_of("GRU", body, [*calls, helper.make_node("Softmax", ["y"], ["Y"])], model)
    made.opset_import[0].domain = alias
    if caller is not None:
        imports = [helper.make_opsetid("", caller), helper.make_opsetid("own", 1)]
        nodes = [
            helper.make_node("Softmax", ["x"], ["t"]),
            helper.make_node("Cell", ["t", "w", "r"], ["y"], domain="own"),
        ]
        made.functions.append(helper.make_function("own", "Outer", ["x", "w", "r"], ["y"], nodes, imports))
    return made


@pytest.mark.parametrize("alias", ["", "ai.onnx"])
@pytest.mark.parametrize(
    ("model", "function", "caller", "same"),
    [
        (13, 13, None, True), (12, 12, None, True), (13, 12, None, False), (12, 13, None, False), (13, 13, 13, True),
        (13, 13, 12, False), (13, 12, 13, False),
    ],
)  # fmt: skip
def test_nodes_come_to_no_other_opset(model, alias, function, caller, same):
    original = in_opsets(model, alias, function, caller)
    if same:
        close(run_onnxruntime(rnn_lower.lower(original, fold=True), feeds()), run_onnxruntime(original, feeds()))
        return
    with pytest.raises(rnn_lower.RnnLowerError, match=r"imports opset .*, but the model imports .*; drop fold"):
        rnn_lower.lower(original, fold=True)
    for work in (lambda: rnn_lower.stream(original, axis="T"), lambda: rnn_lower.check(original, original)):
        with pytest.raises(
            rnn_lower.RnnLowerError, match=r"a different opset than the model|needs the whole|of the function"
        ):
            work()


@pytest.mark.parametrize("outputs", [["y", "x"], ["y", "y"]], ids=str)
def test_outputs_that_are_something_else_too(outputs):
    """onnxruntime takes no such function, so the judge is what it says by itself, and the model without it."""
    cell = recurrent("GRU", ["x", "w", "r"], ["y"])
    cell.attribute.append(refers("clip", "limit", onnx.AttributeProto.FLOAT))
    function = helper.make_function("own", "Cell", ["x", "w", "r"], outputs, [cell], [helper.make_opsetid("", 17)])
    function.attribute_proto.append(helper.make_attribute("limit", 0.5))
    calls = [helper.make_node("Cell", ["X", "W", "R"], ["y", "z"], domain="own"), helper.make_node("Neg", ["y"], ["Y"])]
    original = model_of("GRU", function, calls, 17)
    original.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, None))
    plain = recurrent("GRU", ["X", "W", "R"], ["y"])
    plain.attribute.append(helper.make_attribute("clip", 0.5))
    by_hand = model_of(
        "GRU", function, [plain, calls[1], helper.make_node("Identity", [{"x": "X"}.get(*outputs[1:] * 2)], ["z"])], 17
    )
    by_hand.graph.output.append(original.graph.output[1])
    del by_hand.functions[:]
    wanted = run_onnxruntime(by_hand, feeds())
    for lowered in (rnn_lower.lower(original, fold=True), inlined(original)):
        assert [value.name for value in lowered.graph.input] == ["X"]
        close(run_onnxruntime(lowered, feeds()), wanted)


@pytest.mark.parametrize("hidden", [1, 2])
def test_constants_that_only_a_dropped_node_read_are_written_for_the_next(hidden):
    """In a function, constants are nodes, which equal constants share."""
    imports = [helper.make_opsetid("", 14)]
    weights = np.random.default_rng(0).standard_normal
    tensors = {
        "W1": weights((1, 3 * hidden, 1)), "R1": weights((1, 3 * hidden, hidden)), "W2": weights((1, 4 * hidden, hidden)),
        "R2": weights((1, 4 * hidden, hidden)), "axis": np.array([1]),
    }  # fmt: skip
    held = [
        helper.make_node("Constant", [], [name], value=numpy_helper.from_array(a.astype(np.int64 if name == "axis" else np.float32)))
        for name, a in tensors.items()
    ]  # fmt: skip
    nodes = [
        *held, helper.make_node("GRU", ["X", "W1", "R1", "", "", "h"], ["Y1"], "one", hidden_size=hidden, linear_before_reset=1),
        helper.make_node("Squeeze", ["Y1", "axis"], ["S"]),
        helper.make_node("LSTM", ["S", "W2", "R2", "", "lens"], ["Y"], "other", hidden_size=hidden),
    ]  # fmt: skip
    function = helper.make_function("local", "F", ["X", "lens", "h"], ["Y"], nodes, imports)
    inputs = [
        helper.make_tensor_value_info("X", 1, [3, 2, 1]), helper.make_tensor_value_info("lens", 6, [2]),
        helper.make_tensor_value_info("h", 1, [1, 2, hidden]),
    ]  # fmt: skip
    graph = helper.make_graph(
        [helper.make_node("F", ["X", "lens", "h"], ["Y"], domain="local")], "g", inputs,
        [helper.make_tensor_value_info("Y", 1, [3, 1, 2, hidden])],
    )  # fmt: skip
    imports = [*imports, helper.make_opsetid("local", 1)]
    model = helper.make_model(graph, opset_imports=imports, functions=[function], ir_version=8)
    data = {
        "X": np.float32(weights((3, 2, 1))),
        "lens": np.array([3, 2], np.int32),
        "h": np.float32(weights((1, 2, hidden))),
    }
    for form in ("auto", "loop", "unroll"):
        lowered = (
            rnn_lower.lower(model, form=form) if form != "unroll" else rnn_lower.lower(model, form=form, fold=True)
        )
        (wanted,), (actual,) = run_onnxruntime(model, data), run_onnxruntime(lowered, data)
        assert np.allclose(wanted, actual, atol=1e-5)
        assert rnn_lower.prove(model, lowered).ok


def test_weights_of_a_function_that_are_cast_constants_tell_their_sizes():
    imports = [helper.make_opsetid("", 17)]
    W, R = np.random.default_rng(0).standard_normal((2, 1, 2, 2))
    nodes = [
        helper.make_node("Constant", [], ["W64"], value=numpy_helper.from_array(W)),
        helper.make_node("Cast", ["W64"], ["W"], to=1), helper.make_node("RNN", ["X", "W", "R"], ["Y"], hidden_size=2),
    ]  # fmt: skip
    function = helper.make_function("local", "F", ["X", "R"], ["Y"], nodes, imports)
    graph = helper.make_graph(
        [helper.make_node("F", ["X", "R"], ["Y"], domain="local")], "g", [helper.make_tensor_value_info("X", 1, ["T", "N", 2])],
        [helper.make_tensor_value_info("Y", 1, ["T", 1, "N", 2])], [numpy_helper.from_array(R.astype(np.float32), "R")],
    )  # fmt: skip
    model = helper.make_model(
        graph, opset_imports=[*imports, helper.make_opsetid("local", 1)], functions=[function], ir_version=8
    )
    assert rnn_lower.prove(model, rnn_lower.lower(model)).ok
    assert rnn_lower.check(model, rnn_lower.lower(model)).ok
