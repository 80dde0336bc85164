"""Both directions of a small node as one block-diagonal cell."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from judge import agrees, every_node, loops, lowered
from onenode import OPTIONAL, Case, build
from onnx import helper, numpy_helper

import rnn_lower

FORMS = ("scan", "loop", "unroll")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", OPTIONAL)
@pytest.mark.parametrize("opset", [7, 9, 11, 14, 22])
def test_every_input_layout_and_form(op, opset, form):
    if form == "scan" and opset < 9:
        pytest.skip("there is no such Scan")
    states = tuple(name for name in OPTIONAL[op] if name != "sequence_lens")
    for optional in ((), ("B",), states):
        for dynamic in (False, True) if form != "unroll" else (False,):
            for layout in (0, 1) if opset >= 14 else (0,):
                case = Case(op, opset, "bidirectional", optional=optional, dynamic=dynamic, layout=layout)
                agrees(case, form, fuse_directions=True)


@pytest.mark.parametrize("op", OPTIONAL)
def test_one_loop_serves_both_and_is_proved(op):
    case = Case(op, 17, "bidirectional", optional=("B",), lbr=1 if op == "GRU" else None)
    model, _ = lowered(case, "scan", fuse_directions=True)
    assert loops(model) == 1
    assert rnn_lower.prove(build(case)[0], model).ok


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("op", "functions"), [("LSTM", ("Relu",) * 6), ("GRU", ("Relu",) * 4), ("RNN", ("Relu",) * 2)])
def test_states_that_overflow_are_proved(op, functions, form):
    """Zero times the infinity of one direction is NaN in the other."""
    case = Case(op, 17, "bidirectional", T=8, activations=functions, weights="initializer", optional=("B",))
    original = build(case)[0]
    for tensor in original.graph.initializer:
        if tensor.name == "R":
            tensor.CopyFrom(numpy_helper.from_array(9 * numpy_helper.to_array(tensor), "R"))
    model = rnn_lower.lower(original, form=form, fuse_directions=True)
    assert rnn_lower.prove(original, model).ok
    nan = onnx.ModelProto.FromString(model.SerializeToString())
    for node in nan.graph.node:
        node.input[:] = ["too_large" if name == "X" else name for name in node.input]
    scale = "rnn_lower.node", next(p.value for p in model.graph.node[0].metadata_props if p.key == "rnn_lower.node")
    for index, (factor, name, result) in enumerate(((2.0**122, "X", "scaled"), (2.0**-122, "scaled", "too_large"))):
        nan.graph.initializer.append(numpy_helper.from_array(np.float32(factor), f"factor_{index}"))
        nan.graph.node.insert(index, helper.make_node("Mul", [name, f"factor_{index}"], [result]))
        nan.graph.node[index].metadata_props.add(key=scale[0], value=scale[1])
    assert not rnn_lower.prove(original, nan).ok
    weights = next(t for t in model.graph.initializer if t.dims and t.data_type == 1 and "R" in t.name)
    weights.CopyFrom(numpy_helper.from_array(1.01 * numpy_helper.to_array(weights), weights.name))
    assert not rnn_lower.prove(original, model).ok


@pytest.mark.parametrize(
    "case",
    [
        Case("GRU", 17, "forward"),
        Case("GRU", 17, "bidirectional", optional=("sequence_lens",)),
        Case("GRU", 17, "bidirectional", activations=("Sigmoid", "Tanh", "Tanh", "Tanh")),
        Case("GRU", 17, "bidirectional", H=130),
    ],
)
def test_nodes_that_have_loops_of_their_own(case):
    with_option, _ = lowered(case, "scan", fuse_directions=True)
    assert loops(with_option) == loops(lowered(case, "scan")[0])


def test_the_caveat_holds_for_nan_only():
    """A NaN of one direction reaches the other; without the option it does not."""
    case = Case("RNN", 17, "bidirectional", T=3, N=1, weights="input")
    model, feeds = build(case)
    feeds = {name: value.copy() for name, value in feeds.items()}
    feeds["W"][0, 0, 0] = np.nan
    import onnxruntime

    def y(**options: object) -> np.ndarray:
        proto = rnn_lower.lower(model, form="scan", **options)
        session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        return session.run(None, feeds)[0]

    assert not np.isnan(y()[:, 1]).any()
    assert np.isnan(y(fuse_directions=True)[:, 1]).any()
    assert every_node(model)
