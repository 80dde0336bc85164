"""What a node gave had a rank that inference knew, and others rely on it: what a Loop or a call gives has it too."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from judge import close, run_onnxruntime
from onnx import TensorProto, helper, numpy_helper

import rnn_lower
from rnn_lower.checking.compare import compare

RNG = np.random.default_rng(0)
WEIGHTS = [
    numpy_helper.from_array(RNG.uniform(-0.5, 0.5, shape).astype(np.float32), name)
    for name, shape in (("W", (1, 12, 3)), ("R", (1, 12, 4)))
]
FORMS = [
    {"form": "loop"},
    {"form": "scan"},
    {"as_function": True},
    {"as_function": True, "form": "loop"},
    {"target": "openvino"},
]


def _value(name: str, shape: list[object] | None = None, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def _gru(x: str, state: str) -> onnx.NodeProto:
    return helper.make_node("GRU", [x, "W", "R", "", "", state], ["Y", "Y_h"], hidden_size=4, name="node")


def _model(nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], outputs: list[str]) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "main", inputs, [_value(name) for name in outputs], WEIGHTS)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def inside() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """In the body of a Scan."""
    body = helper.make_graph([_gru("xs", "hs")], "body", [_value("hs"), _value("xs")], [_value("Y_h"), _value("Y")])
    node = helper.make_node("Scan", ["h", "x"], ["end", "all"], body=body, num_scan_inputs=1)
    model = _model([node], [_value("h", [1, "N", 4]), _value("x", ["K", "T", "N", 3])], ["end", "all"])
    return model, {"h": _random(1, 2, 4), "x": _random(3, 5, 2, 3)}


def called(deep: bool = False) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """In a function that the body of a Scan calls, or that another one calls."""
    model, feeds = inside()
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    body = model.graph.node[0].attribute[0].g
    names = ["xs", "W", "R", "hs"], ["Y", "Y_h"]
    model.functions.append(helper.make_function("own", "Gru", *names, list(body.node), opsets))
    if deep:
        call = helper.make_node("Gru", *names, domain="own")
        model.functions.append(helper.make_function("own", "Outer", *names, [call], opsets))
    del body.node[:]
    body.node.append(helper.make_node("Outer" if deep else "Gru", *names, domain="own"))
    model.opset_import.append(helper.make_opsetid("own", 1))
    return model, feeds


def before() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Before a Scan, which goes over what the node gives; one is an output too."""
    body = helper.make_graph(
        [helper.make_node("Add", ["a", "b"], ["c"])], "body", [_value("a"), _value("b")], [_value("c")]
    )
    node = helper.make_node("Scan", ["Y_h", "Y"], ["end"], body=body, num_scan_inputs=1)
    model = _model([_gru("x", "h"), node], [_value("h", [1, "N", 4]), _value("x", ["T", "N", 3])], ["end", "Y_h"])
    return model, {"h": _random(1, 2, 4), "x": _random(5, 2, 3)}


def in_loop(trips: int) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """In the body of a Loop, with a result of each trip, of which there may be none."""
    body = helper.make_graph(
        [_gru("x", "hs"), helper.make_node("Identity", ["c"], ["again"]), helper.make_node("Identity", ["Y"], ["each"])],
        "body", [_value("t", [], TensorProto.INT64), _value("c", [], TensorProto.BOOL), _value("hs")],
        [_value("again", [], TensorProto.BOOL), _value("Y_h"), _value("each")],
    )  # fmt: skip
    loop = helper.make_node("Loop", ["trips", "", "h"], ["end", "all"], body=body)
    inputs = [_value("trips", [], TensorProto.INT64), _value("h", [1, 2, 4]), _value("x", [5, 2, 3])]
    return _model([loop], inputs, ["end", "all"]), {
        "trips": np.array(trips), "h": _random(1, 2, 4), "x": _random(5, 2, 3),
    }  # fmt: skip


def _random(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


@pytest.mark.parametrize("options", FORMS, ids=str)
@pytest.mark.parametrize(
    "case",
    [inside, called, lambda: called(True), before, lambda: in_loop(0), lambda: in_loop(2)],
    ids=["inside", "called", "called deep", "before", "no trips", "trips"],
)
def test_ranks_are_known_as_before(case, options):
    model, feeds = case()
    wanted = run_onnxruntime(model, feeds)
    got = run_onnxruntime(rnn_lower.lower(model, **options), feeds)
    assert [array.ndim for array in got] == [array.ndim for array in wanted]
    for expected, actual in zip(wanted, got, strict=True):
        if expected.size:
            close([actual], [expected])
        else:
            assert compare("all", expected, actual, 0, 0).ok


def test_sizes_that_nobody_knows_are_no_difference_where_nothing_is():
    def ok(expected: tuple[int, ...], actual: tuple[int, ...], dtype: type = np.float32) -> bool:
        return compare("Y", np.zeros(expected, np.float32), np.zeros(actual, dtype), 0, 0).ok

    assert ok((0, 2, 0, 4), (0, 2, 3, 4))
    assert not ok((0, 2, 0, 4), (0, 3, 3, 4))
    assert not ok((0, 2, 0, 4), (0,))
    assert not ok((0, 2), (0, 2), np.float64)
    assert not ok((0, 2), (1, 2))


def test_sequences_of_one_step_are_compared():
    """An axis that a Squeeze takes away at one step alone."""
    model = _model([_gru("x", "h")], [_value("h", [1, 2, 4]), _value("x", ["T", 2, 3])], ["Y"])
    other = onnx.ModelProto()
    other.CopyFrom(model)
    other.graph.node[0].output[0] = "all"
    other.graph.initializer.append(numpy_helper.from_array(np.array([1]), "one"))
    other.graph.node.append(helper.make_node("Squeeze", ["all"], ["squeezed"]))
    other.graph.node.append(helper.make_node("Unsqueeze", ["squeezed", "one"], ["Y"]))
    feeds = {"h": _random(1, 2, 4), "x": _random(5, 2, 3)}
    close(run_onnxruntime(other, feeds), run_onnxruntime(model, feeds))
    assert not rnn_lower.check(model, other).ok
    assert rnn_lower.check(model, rnn_lower.lower(model)).ok
