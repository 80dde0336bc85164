"""Up to how many steps a node is a straight line without being asked: rows of a target's file, the first that fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rnn_lower.builder.writer import Habits
from rnn_lower.lowering.both import way_of
from rnn_lower.lowering.node import RecurrentNode
from rnn_lower.lowering.sequence_lens import is_whole
from rnn_lower.options import OP_TYPES

Row = Mapping[str, Any]
"""steps, and what a node has to be for them: op_types, and any of CONDITIONS, each to hold or not."""


CONDITIONS: Mapping[str, Callable[[RecurrentNode, int, Habits], bool]] = {
    "sequence_lens": lambda node, opset, habits: not is_whole(node),
    "initial_states": lambda node, opset, habits: any(name.startswith("initial") for name in node.inputs),
    "known_batch": lambda node, opset, habits: node.static_batch is not None,
    "one_loop": lambda node, opset, habits: way_of(node, opset, habits) is not None,
}


def are_rows(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_row, value))


def _is_row(value: Any) -> bool:
    if not isinstance(value, dict) or type(value.get("steps")) is not int or value["steps"] < 1:
        return False
    op_types = value.get("op_types", list(OP_TYPES))
    flags = {name: flag for name, flag in value.items() if name not in ("steps", "op_types")}
    known = (
        isinstance(op_types, list)
        and len(op_types) > 0
        and all(one in OP_TYPES for one in op_types)
        and flags.keys() <= CONDITIONS.keys()
    )
    return known and all(isinstance(flag, bool) for flag in flags.values())


def steps_for(node: RecurrentNode, opset: int, habits: Habits, rows: Sequence[Row], otherwise: int) -> int:
    """Up to how many steps, where no row fits `otherwise`."""
    return next((row["steps"] for row in rows if _fits(row, node, opset, habits)), otherwise)


def _fits(row: Row, node: RecurrentNode, opset: int, habits: Habits) -> bool:
    return node.op_type in row.get("op_types", OP_TYPES) and all(
        holds(node, opset, habits) == row[name] for name, holds in CONDITIONS.items() if name in row
    )
