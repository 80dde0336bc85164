"""Files that were changed after they were lowered, in ways that a proof has to see."""

from __future__ import annotations

import numpy as np
import onnx
from onenode import Case, build
from onnx import helper, numpy_helper

import rnn_lower


def test_a_converted_node_is_compared_with_the_converted_original():
    model, _ = build(Case("LSTM", 13))
    model.graph.node.append(helper.make_node("Relu", ["Y"], ["Z"]))
    model.graph.output.append(helper.make_tensor_value_info("Z", 1, None))
    lowered = rnn_lower.lower(model, opset=17)
    assert rnn_lower.prove(model, lowered).ok
    next(node for node in lowered.graph.node if node.output[0] == "Z").op_type = "Neg"
    assert not rnn_lower.prove(model, lowered).ok


def test_a_marked_node_of_the_same_operator_is_not_the_one_that_was_kept():
    model, _ = build(Case("LSTM", 17))
    changed = onnx.ModelProto.FromString(model.SerializeToString())
    node = changed.graph.node[0]
    node.metadata_props.add(key="rnn_lower.node", value="node")
    del node.output[1:], changed.graph.output[1:]
    del model.graph.output[1:]
    node.attribute.append(helper.make_attribute("direction", "reverse"))
    assert not rnn_lower.prove(model, changed).ok


def test_a_maximum_of_three_is_no_maximum_of_two():
    model, _ = build(Case("RNN", 17, activations=("Relu",)))
    lowered = rnn_lower.lower(model, form="unroll")
    for name, number in (("zero", 0.0), ("hundred", 100.0)):
        lowered.graph.initializer.append(numpy_helper.from_array(np.array(number, np.float32), name))
    for node in lowered.graph.node:
        if node.op_type == "Relu":
            node.op_type, node.input[:] = "Max", [node.input[0], "zero", "hundred"]
    assert not rnn_lower.prove(model, lowered).ok
