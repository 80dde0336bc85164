"""Rewrite of products whose operand is repeated."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from rnn_lower.builder.graph_builder import GraphBuilder, as_value
from rnn_lower.ir.traits import DATA_MOVEMENT, ELEMENTWISE
from rnn_lower.ir.walk import known_tensor

REPEATING = ("Expand", "Tile")


def copy_broadcast(b: GraphBuilder, nodes: Sequence[ir.Node]) -> dict[ir.Value, ir.Value]:
    """Copy an operand that an Expand or a Tile has repeated before it enters a MatMul; Max(x, x) is x, also for NaN.

    tract 0.23 multiplies what was repeated, and then forgets to repeat the product: its numbers are wrong.
    """
    for node in nodes:
        x = node.inputs[0] if node.op_type == "MatMul" else None
        if x is not None and _is_repeated(x):
            node.replace_input_with(0, as_value(b.op("Max", x, x, name="copy")))
    return {}


def _is_repeated(x: ir.Value) -> bool:
    """Whether elements of a value are copies; nodes that read no other values keep them so."""
    value: ir.Value | None = x
    while value is not None and (node := value.producer()) is not None:
        if node.op_type in REPEATING:
            return True
        read = [operand for operand in node.inputs if operand is not None and known_tensor(operand) is None]
        moves = node.op_type in DATA_MOVEMENT and node.op_type != "Concat"
        if not moves and (node.op_type not in ELEMENTWISE or len(read) != 1):
            return False
        value = node.inputs[0] if moves else read[0]
    return False
