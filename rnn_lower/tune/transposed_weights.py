"""Rewrites of the nodes that prepare computed weights."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from rnn_lower.builder.graph_builder import GraphBuilder, as_value
from rnn_lower.ir.traits import DATA_MOVEMENT
from rnn_lower.ir.walk import constant, integers, upstream


def transpose_before_squeeze(b: GraphBuilder, nodes: Sequence[ir.Node]) -> dict[ir.Value, ir.Value]:
    """Transpose a computed weight before its axis of directions is removed, not after that.

    OpenVINO 2026.4 refuses a model in which it fuses DequantizeLinear with one scale for each channel, Squeeze,
    Transpose and MatMul: it confuses the sizes of the matrix.
    """
    for node in nodes:
        squeeze = node.inputs[0].producer() if node.op_type == "Transpose" and node.inputs[0] is not None else None
        if squeeze is None or squeeze.op_type != "Squeeze" or integers(squeeze, "axes", 1, constant) != [0]:
            continue
        if list(node.attributes["perm"].as_ints()) == [1, 0]:
            name = str(node.outputs[0].name).rpartition("/")[2]
            turned = b.transpose(squeeze.inputs[0], [0, 2, 1], f"{name}_of_direction")
            node.outputs[0].replace_all_uses_with(as_value(b.squeeze(turned, [0], name)))
    return {}


def separate_dequantized(b: GraphBuilder, nodes: Sequence[ir.Node]) -> dict[ir.Value, ir.Value]:
    """Take the maximum of the left operand of each product of two dequantized values and itself, which it is.

    OpenVINO 2026.4 otherwise multiplies the integers; on CPUs without VNNI, sums of two products of 8 bits saturate
    then, with errors of up to half of the largest output. Its own recurrent nodes compute with floats. It removes
    other operators without effect.
    """
    for node in nodes:
        if node.op_type == "MatMul" and all(map(_is_dequantized, node.inputs)):
            left = node.inputs[0]
            node.replace_input_with(0, as_value(b.op("Max", left, left, name="dequantized")))
    return {}


def _is_dequantized(value: ir.Value | None) -> bool:
    """Whether a value is the result of a DequantizeLinear, or data movement of one."""
    moved = upstream([value], lambda maker, _: maker.inputs[:1] if maker.op_type in DATA_MOVEMENT else ())
    return any(maker.op_type == "DequantizeLinear" for each in moved if (maker := each.producer()) is not None)
