"""Rewrite of products whose operand is repeated."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from rnn_lower.builder.graph_builder import GraphBuilder, as_value
from rnn_lower.ir.walk import comes_from

REPEATING = ("Expand", "Tile")


def copy_broadcast(b: GraphBuilder, nodes: Sequence[ir.Node]) -> dict[ir.Value, ir.Value]:
    """Copy an operand that an Expand or a Tile has repeated before it enters a MatMul; Max(x, x) is x, also for NaN.

    tract 0.23 multiplies what was repeated, and then forgets to repeat the product: its numbers are wrong.
    """
    for node in nodes:
        x = node.inputs[0] if node.op_type == "MatMul" else None
        if x is not None and comes_from(x, REPEATING):
            node.replace_input_with(0, as_value(b.op("Max", x, x, name="copy")))
    return {}
