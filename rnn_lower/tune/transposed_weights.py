"""Rewrite of the nodes that prepare computed weights."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from rnn_lower.builder.graph_builder import GraphBuilder, as_value
from rnn_lower.ir.walk import constant, integers


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
