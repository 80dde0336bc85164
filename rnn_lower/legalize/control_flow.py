"""Legalization patterns for nodes with bodies."""

from __future__ import annotations

import onnx_ir as ir

from rnn_lower.builder.graph_builder import Operand
from rnn_lower.legalize.call import Call, PatternBuilder, Results


def scan_between_flips(b: PatternBuilder, call: Call) -> Results:
    """Replace a Scan that runs backward along first axes with a forward Scan between flips."""
    axes = ("scan_input_axes", "scan_output_axes")
    if any(any(call.parameters.get(name) or ()) for name in axes):
        return None
    count, body = call.parameters["num_scan_inputs"], call.parameters["body"]
    states = len(call.inputs) - count
    inputs = list(call.inputs)
    backwards = call.parameters.get("scan_input_directions") or [0] * count
    sequence, shape = inputs[states], b.info(inputs[states]).shape
    if not shape:
        return None
    length = b.size(sequence, 0, len(shape), "length") if shape[0] is None else shape[0]
    for k, backward in enumerate(backwards):
        if backward:
            inputs[states + k] = b.flip(inputs[states + k], length)
    # A graph can belong to one node only, so detach the body first.
    call.node.attributes.pop("body")
    results: list[Operand] = list(b.op_multi("Scan", inputs, call.names, body=body, num_scan_inputs=count))
    for k, backward in enumerate(call.parameters.get("scan_output_directions") or ()):
        if backward:
            results[states + k] = b.flip(results[states + k], length, call.names[states + k])
    assert isinstance(body, ir.Graph)
    return results
