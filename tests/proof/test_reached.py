"""The check knows which recurrent nodes have run, makes them run where it can, and says which have not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from judge import check_by_running
from onenode import Case, build
from onnx import TensorProto, helper, numpy_helper

import rnn_lower
from rnn_lower.ir.protobuf import holders

T, N, I, H = 3, 2, 2, 2
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def info(name: str, dtype: int = FLOAT, shape: object = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def constant(name: str, array: np.ndarray) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array))


def rnn(name: str, x: str = "X", out: str = "") -> onnx.NodeProto:
    return helper.make_node("RNN", [x, "W", "R"], ["", out or f"{name}_out"], name=name, hidden_size=H)


def body(name: str, node: onnx.NodeProto, inputs: Sequence[onnx.ValueInfoProto] = (), first: Sequence[onnx.NodeProto] = (),
         outputs: Sequence[onnx.ValueInfoProto] = ()) -> onnx.GraphProto:  # fmt: skip
    return helper.make_graph([*first, node], name, inputs, [*outputs, info(node.output[1])])


def branches(name: str, condition: str, one: str, other: str) -> onnx.NodeProto:
    bodies = {"then_branch": body("then", rnn(one)), "else_branch": body("else", rnn(other))}
    return helper.make_node("If", [condition], [f"{name}_out"], name=name, **bodies)


def model_of(nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], outputs: list[str],
             functions: Sequence[onnx.FunctionProto] = (), opset: int = 17) -> onnx.ModelProto:  # fmt: skip
    rng = np.random.default_rng(3)
    weights = [
        numpy_helper.from_array(rng.normal(size=(1, H, k)).astype(np.float32), n) for n, k in (("W", I), ("R", H))
    ]
    graph = helper.make_graph(
        nodes, "g", [info("X", FLOAT, [T, N, I]), *inputs], [info(out) for out in outputs], weights
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, opset_imports=imports, functions=list(functions), ir_version=8)


def equal(rate: int) -> list[onnx.NodeProto]:
    return [constant("rate", np.array(rate)), helper.make_node("Equal", ["sr", "rate"], ["is_rate"])]


def looped(trips: str = "trips") -> list[onnx.NodeProto]:
    """A Loop that hands on a state of shape [1, N, H]; it may run no time at all."""
    inner = body(
        "body", rnn("in_loop", out="h"), [info("trip", INT64, []), info("going", BOOL, []), info("before")],
        [helper.make_node("Identity", ["going"], ["still"])], [info("still", BOOL, [])],
    )  # fmt: skip
    zeros = constant("zeros", np.zeros((1, N, H), np.float32))
    return [
        zeros,
        constant("yes", np.array(True)),
        helper.make_node("Loop", [trips, "yes", "zeros"], ["looped"], body=inner),
    ]


def function() -> onnx.FunctionProto:
    imports = [helper.make_opsetid("", 17)]
    node = helper.make_node("RNN", ["x", "w", "r"], ["", "y"], name="in_function", hidden_size=H)
    return helper.make_function("local", "Recurrent", ["x", "w", "r"], ["y"], [node], imports)


def everywhere() -> onnx.ModelProto:
    """Nodes in both branches of an If on an integer, in a Loop, and in a function that is called in a branch."""
    call = helper.make_node("Recurrent", ["X", "W", "R"], ["called"], name="call", domain="local")
    other = helper.make_node("ReduceMax", ["X"], ["greatest"], axes=[0], keepdims=1)
    chosen = helper.make_node(
        "If", ["wanted"], ["chosen"], name="chosen",
        then_branch=helper.make_graph([call], "then", [], [info("called")]),
        else_branch=helper.make_graph([other], "else", [], [info("greatest")]),
    )  # fmt: skip
    nodes = [rnn("plain"), *equal(16000), branches("rated", "is_rate", "fast", "slow"), *looped(), chosen]
    inputs = [info("sr", INT64, []), info("trips", INT64, []), info("wanted", BOOL, [])]
    return model_of(nodes, inputs, ["plain_out", "rated_out", "looped", "chosen"], [function()])


NAMES = ["plain", "slow", "fast", "in_loop", "in_function"]


def broken(lowered: onnx.ModelProto, name: str) -> bool:
    """Exchange the activation that was emitted for a node; whether there was one."""
    waiting = [lowered.graph.node, *(f.node for f in lowered.functions)]
    found = False
    while waiting:
        for node in waiting.pop():
            waiting += [attribute.g.node for attribute in node.attribute if attribute.HasField("g")]
            origin = {entry.key: entry.value for entry in node.metadata_props}.get("rnn_lower.node")
            if node.op_type == "Tanh" and origin == name:
                node.op_type, found = "Sin", True
    return found


@pytest.mark.parametrize("form", ["scan", "loop", "unroll"])
@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_node_is_caught_wherever_it_is(name, form):
    model = everywhere()
    assert [node.name for node in rnn_lower.inspect(model)] == NAMES
    try:
        lowered = rnn_lower.lower(model, form=form)
    except rnn_lower.UnsupportedError:  # functions declare no shapes, so there is no straight line in them
        lowered = rnn_lower.lower(model, form=form, select=lambda node: node.name != "in_function")
    right = rnn_lower.check(model, lowered)
    assert (right.ok, right.unreached) == (True, ())
    if broken(lowered, name):
        assert not rnn_lower.check(model, lowered).ok
    else:
        assert (form, name) == ("unroll", "in_function")


def never() -> onnx.ModelProto:
    """No square leaves 3 when it is divided by 7, which no folding finds out."""
    nodes = [
        helper.make_node("Mul", ["sr", "sr"], ["square"]), constant("seven", np.array(7)),
        helper.make_node("Mod", ["square", "seven"], ["rest"]), constant("three", np.array(3)),
        helper.make_node("Equal", ["rest", "three"], ["is_three"]), branches("odd", "is_three", "silent", "heard"),
    ]  # fmt: skip
    return model_of(nodes, [info("sr", INT64, [])], ["odd_out"])


def test_what_did_not_run_is_a_verdict_of_its_own():
    model = never()
    assert rnn_lower.check(model, rnn_lower.lower(model)).ok, "what is proved need not have run"
    report = check_by_running(model, rnn_lower.lower(model))
    assert (report.ok, len(report.unreached)) == (False, 1)
    assert "RNN 'silent' in main graph/then_branch of If 'odd'" in report.unreached[0]
    assert any("not proved and not tested enough: RNN 'silent'" in line for line in report.lines())
    assert "NOTHING COMPARED for 1 node without a proof" in report.verdict
    kept = rnn_lower.lower(model, select=lambda node: node.name != "silent")
    assert check_by_running(model, kept).unreached == (), "what was left as it is cannot be wrong"


def test_a_kept_node_with_other_weights_must_run():
    model = never()
    kept = rnn_lower.lower(model, select=lambda node: node.name != "silent")
    (silent,) = (node for holder in holders(kept) for node in holder.node if node.name == "silent")
    silent.attribute.append(helper.make_attribute("activations", ["Relu"]))
    assert len(check_by_running(model, kept).unreached) == 1


@pytest.mark.parametrize("kind", ["quantized", "default"])
def test_a_proved_node_whose_weights_have_changed_must_run(kind):
    """The weights are computed outside of the branch, so that the proof of the node does not see them."""
    model = never()
    wide = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    if kind == "quantized":
        del model.graph.initializer[:]
        bits = {name: np.round(array * 50).astype(np.int8) for name, array in wide.items()}
        model.graph.initializer.extend(numpy_helper.from_array(array, f"{name}q") for name, array in bits.items())
        model.graph.initializer.append(numpy_helper.from_array(np.array(0.02, np.float32), "scale"))
        for name in reversed(bits):
            model.graph.node.insert(0, helper.make_node("DequantizeLinear", [f"{name}q", "scale"], [name]))
    else:
        model.graph.input.extend(info(name, FLOAT, array.shape) for name, array in wide.items())
    lowered = rnn_lower.lower(model)
    assert rnn_lower.check(model, lowered).ok
    other = onnx.ModelProto.FromString(lowered.SerializeToString())
    for tensor in other.graph.initializer:
        if tensor.name in ("Wq", "Rq", "W", "R"):
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor)[:, ::-1] // 2, tensor.name))
    report = rnn_lower.check(model, other)
    assert not report.ok
    assert "1 of 2" not in report.verdict


def test_given_inputs_are_not_all_that_is_tried(tmp_path):
    model = everywhere()
    x = np.ones((T, N, I), np.float32)
    feeds = {"X": x, "sr": np.array(16000), "trips": np.array(0), "wanted": np.array(False)}
    report = rnn_lower.check(model, rnn_lower.lower(model), inputs=feeds)
    assert (report.ok, report.unreached) == (True, ()), "further ones were tried for what these do not reach"
    wrong = rnn_lower.lower(model)
    assert broken(wrong, "slow")
    assert not check_by_running(model, wrong, inputs=feeds).ok
    silent = check_by_running(never(), rnn_lower.lower(never()), inputs={"X": x, "sr": np.array(3)})
    assert [line.split("'")[1] for line in silent.unreached] == ["silent"]


def test_branches_that_are_never_taken_are_not_asked_for():
    """A condition that is constant, or that follows from declared sizes."""
    shape = [helper.make_node("Shape", ["X"], ["sizes"]), constant("first", np.array(0))]
    shape += [helper.make_node("Gather", ["sizes", "first"], ["steps"]), constant("three", np.array(T))]
    shape += [
        helper.make_node("Equal", ["steps", "three"], ["is_three"]),
        branches("sized", "is_three", "taken", "left"),
    ]
    fixed = [constant("no", np.array(False)), branches("fixed", "no", "never", "ever")]
    model = model_of([*shape, *fixed], [], ["sized_out", "fixed_out"])
    report = rnn_lower.check(model, rnn_lower.lower(model))
    assert (report.ok, report.unreached) == (True, ())


def test_a_node_in_a_scan_that_is_in_a_branch():
    inner = helper.make_graph(
        [helper.make_node("Identity", ["before"], ["after"]), rnn("in_scan", "x3", "h"),
         helper.make_node("Unsqueeze", ["x"], ["x3"], axes=[0])][::-1],
        "body", [info("before"), info("x")], [info("after"), info("h")],
    )  # fmt: skip
    scan = helper.make_node("Scan", ["zero", "X"], ["last", "hs"], name="scan", body=inner, num_scan_inputs=1)
    then = helper.make_graph([constant("zero", np.zeros(1, np.float32)), scan], "then", [], [info("hs")])
    other = helper.make_graph([constant("nothing", np.zeros((T, 1, N, H), np.float32))], "else", [], [info("nothing")])
    node = helper.make_node("If", ["wanted"], ["out"], name="if", then_branch=then, else_branch=other)
    model = model_of([node], [info("wanted", BOOL, [])], ["out"], opset=12)
    report = rnn_lower.check(model, rnn_lower.lower(model))
    assert (report.ok, report.unreached) == (True, ())
    wrong = rnn_lower.lower(model)
    assert broken(wrong, "in_scan")
    assert not rnn_lower.check(model, wrong).ok


@pytest.mark.parametrize("dims", [None, {"T": 2}])
def test_a_node_that_nobody_reads_need_not_run(dims):
    model, _ = build(Case("LSTM", 17, T=5, N=2, outputs=("Y",), dynamic=True))
    model.graph.node.append(helper.make_node("Neg", ["X"], ["Z"]))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("Z", TensorProto.FLOAT, None))
    lowered = rnn_lower.lower(model, dims=dims)
    assert rnn_lower.check(model, lowered).ok
    lowered.graph.node[-1].op_type = "Abs"
    assert not rnn_lower.check(model, lowered).ok
