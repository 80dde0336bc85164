"""Lowered, raised and streaming models that no runtime loads are not proved; onnxruntime is the judge."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from judge import proved_as_wholes, run_onnxruntime
from onenode import Case, build
from onnx import TensorProto, helper, numpy_helper

import rnn_lower

Change = Callable[[onnx.ModelProto], None]


def unmarked(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model as if another program had written its loops."""
    for node in model.graph.node:
        del node.metadata_props[:]
        for attribute in node.attribute:
            for inner in attribute.g.node:
                del inner.metadata_props[:]
    return model


def recurrent(model: onnx.ModelProto) -> onnx.NodeProto:
    return next(node for node in model.graph.node if node.op_type in ("RNN", "GRU", "LSTM"))


def attribute(name: str, value: object = None) -> Change:
    """Set an attribute of the recurrent node, or remove it."""

    def change(model: onnx.ModelProto) -> None:
        node = recurrent(model)
        kept = [each for each in node.attribute if each.name != name]
        del node.attribute[:]
        node.attribute.extend(kept if value is None else [*kept, helper.make_attribute(name, value)])

    return change


def doubled(index: int, axis: int) -> Change:
    """Repeat a weight of the recurrent node along an axis."""

    def change(model: onnx.ModelProto) -> None:
        name = recurrent(model).input[index]
        tensor = next(tensor for tensor in model.graph.initializer if tensor.name == name)
        array = numpy_helper.to_array(tensor)
        tensor.CopyFrom(numpy_helper.from_array(np.concatenate([array, array], axis), name))

    return change


INVALID = {
    "direction": attribute("direction", "FORWARD"), "no hidden_size": attribute("hidden_size"),
    "hidden_size 0": attribute("hidden_size", 0), "layout 2": attribute("layout", 2),
    "unknown activation": attribute("activations", ["Foo"] * 3), "many activations": attribute("activations", ["Tanh"] * 9),
    "W of two directions": doubled(1, 0), "R of twice the rows": doubled(2, 1), "B of two directions": doubled(3, 0),
}  # fmt: skip


def does_not_run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> bool:
    try:
        run_onnxruntime(model, feeds)
    except Exception:  # of onnxruntime
        return True
    return False


@pytest.mark.parametrize("fault", INVALID)
@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_an_invalid_recurrent_node_that_replaces_a_loop(op, fault):
    model, feeds = build(Case(op, 17, T=5, N=2, optional=("B",), outputs=("Y",), weights="initializer", dynamic=True))
    loop = unmarked(rnn_lower.lower(model, form="scan"))
    raised = rnn_lower.raise_loops(loop)
    assert rnn_lower.prove(loop, raised)
    INVALID[fault](raised)
    assert does_not_run(raised, feeds)
    assert not rnn_lower.prove(loop, raised)


@pytest.mark.parametrize("fault", INVALID)
def test_an_invalid_recurrent_node_in_a_stream(fault):
    model, _ = build(Case("LSTM", 17, T=5, N=2, optional=("B",), outputs=("Y",), weights="initializer", dynamic=True))
    stream = rnn_lower.stream(model, axis="T", keep_native=True)
    assert rnn_lower.prove_streaming(model, stream)
    INVALID[fault](stream)
    assert not rnn_lower.prove_streaming(model, stream)


def declared(name: str, axis: int, size: int) -> Change:
    def change(model: onnx.ModelProto) -> None:
        value = next(value for value in model.graph.input if value.name == name)
        value.type.tensor_type.shape.dim[axis].dim_value = size

    return change


def an_unknown_opset(model: onnx.ModelProto) -> None:
    model.opset_import[0].version = 99


@pytest.mark.parametrize("keep_native", [True, False])
@pytest.mark.parametrize(
    "change", [declared("X", 2, 11), declared("LSTM/h_in", 2, 5), declared("LSTM/c_in", 0, 2), an_unknown_opset]
)
def test_a_stream_that_onnxruntime_does_not_load(keep_native, change):
    model, feeds = build(Case("LSTM", 17, T=5, N=2, outputs=("Y",), weights="initializer", dynamic=True))
    recurrent(model).name = "LSTM"
    stream = rnn_lower.stream(model, axis="T", keep_native=keep_native)
    assert rnn_lower.prove_streaming(model, stream)
    change(stream)
    with pytest.raises(Exception, match=r"(?s)."):  # of onnxruntime
        rnn_lower.StreamingSession(stream).run({"X": feeds["X"]})
    assert not rnn_lower.prove_streaming(model, stream)


H, I = 3, 4


def unrolled_scan() -> tuple[onnx.ModelProto, onnx.ModelProto, dict[str, np.ndarray]]:
    """A model with a Scan of its own, the model with the Scan unrolled, and inputs."""
    rng = np.random.default_rng(5)
    weights = {"W": rng.standard_normal((I, H)) / 2, "R": rng.standard_normal((H, H)) / 2}
    nodes = [
        helper.make_node("MatMul", ["x_t", "W"], ["a"]), helper.make_node("MatMul", ["h", "R"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["sum"]), helper.make_node("Tanh", ["sum"], ["next"]),
        helper.make_node("Identity", ["next"], ["out"]),
    ]  # fmt: skip
    info, kind = helper.make_tensor_value_info, TensorProto.FLOAT
    body = helper.make_graph(
        nodes, "body", [info("h", kind, [2, H]), info("x_t", kind, [2, I])],
        [info("next", kind, [2, H]), info("out", kind, [2, H])],
    )  # fmt: skip
    graph = helper.make_graph(
        [helper.make_node("Scan", ["h0", "x"], ["last", "y"], body=body, num_scan_inputs=1, name="loop")], "g",
        [info("x", kind, [5, 2, I]), info("h0", kind, [2, H])], [info("y", kind, None), info("last", kind, [2, H])],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    feeds = {"x": rng.standard_normal((5, 2, I)).astype(np.float32), "h0": np.zeros((2, H), np.float32)}
    return model, rnn_lower.lower(model, loops=True), feeds


def behind_x(model: onnx.ModelProto, nodes: list[onnx.NodeProto], **constants: object) -> onnx.ModelProto:
    """A copy in which these nodes compute x2 from x, and everything else reads x2."""
    made = copy.deepcopy(model)
    for node in made.graph.node:
        node.input[:] = ["x2" if name == "x" else name for name in node.input]
    for index, node in enumerate(nodes):
        made.graph.node.insert(index, node)
    made.graph.initializer.extend(numpy_helper.from_array(np.array(v), name) for name, v in constants.items())
    return made


N = helper.make_node
DETOURS = {
    "scalar starts": ([N("Slice", ["x", "s", "e"], ["x2"])], {"s": 0, "e": 5}),
    "starts of rank 2": ([N("Slice", ["x", "s", "e"], ["x2"])], {"s": [[0]], "e": [[5]]}),
    "reversed beyond the end": ([N("ReverseSequence", ["x", "l"], ["q"]), N("ReverseSequence", ["q", "l"], ["x2"])], {"l": [3, 9]}),
    "unknown auto_pad": (
        [N("Transpose", ["x"], ["q"], perm=[1, 2, 0]), N("Conv", ["q", "k"], ["r"], auto_pad="FOO"),
         N("Transpose", ["r"], ["x2"], perm=[2, 0, 1])],
        {"k": np.eye(4, dtype=np.float32)[:, :, None]}),
    "unknown attribute": ([N("Identity", ["x"], ["x2"], axis=0)], {}),
    "too many inputs": ([N("Identity", ["x", "h0"], ["x2"])], {}),
}  # fmt: skip


@pytest.mark.parametrize("fault", DETOURS)
def test_an_invalid_node_in_a_model_that_is_proved_as_a_whole(fault):
    """Its original declares no shape for an output, which onnx's checker refuses, too."""
    model, lowered, feeds = unrolled_scan()
    valid = behind_x(lowered, [N("Slice", ["x", "s", "e"], ["x2"])], s=[0], e=[5])
    assert proved_as_wholes(model, valid)
    nodes, constants = DETOURS[fault]
    wrong = behind_x(lowered, nodes, **constants)
    assert does_not_run(wrong, feeds)
    assert not proved_as_wholes(model, wrong)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape", [[3, 2, 4, 4], [2, 4], []], ids=str)
def test_an_input_of_another_rank(shape, dynamic):
    model, _ = build(Case("LSTM", 17, T=3, N=2, I=4, outputs=("Y",), dynamic=dynamic))
    lowered = rnn_lower.lower(model)
    lowered.graph.input[0].CopyFrom(helper.make_tensor_value_info("X", TensorProto.FLOAT, shape))
    assert not rnn_lower.prove(model, lowered)
    with pytest.raises(rnn_lower.RnnLowerError, match="the models have different inputs: 'X' is float"):
        rnn_lower.check(model, lowered)
