"""Operators whose results on the items of a step are known without a node, from their effect on the rows of axis 0."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from rnn_lower.loops.items import Item, Items, Row, Table

UNARY = (
    "Abs", "Cast", "Elu", "Erf", "Exp", "HardSigmoid", "LeakyRelu", "Log", "Neg", "Not", "Reciprocal", "Relu",
    "Sigmoid", "Softplus", "Softsign", "Sqrt", "Tanh", "ThresholdedRelu",
)  # fmt: skip
BINARY = ("Add", "Sub", "Mul", "Div", "And", "Or", "Less", "Greater", "Equal")
BROADCASTS = 7
"""The first opset in which binary operators always broadcast."""


class Call:
    """A node with its items; parameters are attributes or inputs, depending on the version."""

    def __init__(self, node: ir.Node, inputs: Sequence[Item], items: Items) -> None:
        self.node, self.inputs, self.items = node, inputs, items

    def attribute(self, name: str, default: Any) -> Any:
        attribute = self.node.attributes.get(name)
        return default if attribute is None else attribute.value

    def integers(self, name: str, index: int) -> list[int] | None:
        if name in self.node.attributes:
            return list(self.node.attributes[name].value)
        array = self.items.array(self.inputs[index]) if index < len(self.inputs) else None
        return None if array is None else [int(number) for number in np.ravel(array)]

    def has(self, index: int) -> bool:
        return index < len(self.inputs) and self.inputs[index] is not None


def _unsqueeze(call: Call) -> Item:
    return Table((call.inputs[0],)) if call.integers("axes", 1) == [0] else None


def _squeeze(call: Call) -> Item:
    x = call.inputs[0]
    single = isinstance(x, Table) and len(x.rows) == 1 and call.integers("axes", 1) == [0]
    return x.rows[0] if single else None  # type: ignore[union-attr]


def _gather(call: Call) -> Item:
    x, index = call.inputs[0], call.items.array(call.inputs[1])
    rows = call.items.rows(x) if index is not None and index.ndim < 2 else None
    if index is None or rows is None or call.attribute("axis", 0) != 0 or (index.ndim and not index.size):
        return None
    if not all(-len(rows) <= row < len(rows) for row in np.ravel(index)):
        return None
    return Table(tuple(rows[row] for row in index)) if index.ndim else rows[int(index)]


def _slice(call: Call) -> Item:
    x, rows = call.inputs[0], call.items.rows(call.inputs[0])
    starts, ends, axes = call.integers("starts", 1), call.integers("ends", 2), call.integers("axes", 3)
    steps = call.integers("steps", 4) if call.has(4) else [1]
    if rows is None or starts is None or ends is None or len(starts) != 1 or steps != [1]:
        return None
    if (axes is None and ("axes" in call.node.attributes or call.has(3))) or axes not in (None, [0]):
        return None
    chosen = rows[starts[0] : ends[0]]
    return Table(chosen) if chosen and (isinstance(x, Table) or len(chosen) == 1) else None


def _concat(call: Call) -> Item:
    if call.attribute("axis", 1) != 0 or not any(isinstance(item, Table) for item in call.inputs):
        return None
    parts = [call.items.rows(item) for item in call.inputs]
    known = [part for part in parts if part is not None]
    return Table(tuple(row for part in known for row in part)) if len(known) == len(parts) else None


def _scatter_nd(call: Call) -> Item:
    index = call.items.array(call.inputs[1])
    plain = index is not None and index.ndim == 2 and index.shape[1] == 1
    return _replaced(call, np.ravel(index)) if plain and index is not None else None


def _scatter_elements(call: Call) -> Item:
    index, data = call.items.array(call.inputs[1]), call.items.shape(call.inputs[0])
    if index is None or call.attribute("axis", 0) != 0 or index.ndim < 1 or not index.size:
        return None
    flat = index.reshape(len(index), -1)
    whole = data is not None and index.shape[1:] == data[1:] and bool((flat == flat[:, :1]).all())
    return _replaced(call, flat[:, 0]) if whole else None


def _replaced(call: Call, indices: np.ndarray) -> Item:
    """A table with some rows replaced."""
    rows, updates = call.items.rows(call.inputs[0]), call.items.rows(call.inputs[2])
    if rows is None or updates is None or len(updates) != len(indices):
        return None
    if call.attribute("reduction", "none") != "none" or len(set(indices % len(rows))) < len(indices):
        return None
    new = dict(zip((int(index) % len(rows) for index in indices), updates, strict=True))
    return Table(tuple(new.get(index, row) for index, row in enumerate(rows)))


def _shape(call: Call) -> Item:
    shape = call.items.shape(call.inputs[0])
    if shape is None:
        return None
    return np.array(shape[call.attribute("start", 0) : call.attribute("end", len(shape))], np.int64)


RULES: dict[str, Callable[[Call], Item]] = {
    "Identity": lambda call: call.inputs[0], "Unsqueeze": _unsqueeze, "Squeeze": _squeeze, "Gather": _gather,
    "Slice": _slice, "Concat": _concat, "ScatterND": _scatter_nd, "ScatterElements": _scatter_elements,
    "Shape": _shape,
}  # fmt: skip
"""The rules by operator; a rule returns None if a node has to compute the result."""


def of_all_rows(call: Call, steps: int, opset: int) -> list[Item] | None:
    """The rows that a node computes from rows with the same index, for all indices at once; None if impossible.

    steps: the number of rows that are needed; a much longer sequence is cut first.
    """
    rows = [item for item in call.inputs if isinstance(item, Row)]
    if not rows or len({(row.index, row.count) for row in rows}) > 1 or rows[0].count > 2 * steps:
        return None
    ranks = {call.items.rank(row) for row in rows}
    if None in ranks or len(ranks) > 1 or not all(isinstance(i, Row) or call.items.is_constant(i) for i in call.inputs):
        return None
    (rank,) = ranks
    assert rank is not None
    attributes = _shifted(call, rank, opset)
    if attributes is None:
        return None
    inputs = [item.source if isinstance(item, Row) else call.items.value(item) for item in call.inputs]
    names = [str(value.name) for value in call.node.outputs]
    values = call.items.b.op_multi(call.node.op_type, inputs, names, **attributes)
    for value, old in zip(values, call.node.outputs, strict=True):
        call.items.ranks[value], value.type = rank + 1, old.type
    return [Row(value, rows[0].index, rows[0].count) for value in values]


def _shifted(call: Call, rank: int, opset: int) -> dict[str, Any] | None:
    """The attributes with which the node computes all rows as it computes one row of this rank."""
    op_type, operands = call.node.op_type, [item for item in call.inputs if not isinstance(item, Row)]
    own = {name: attribute.value for name, attribute in call.node.attributes.items()}
    if op_type in UNARY:
        return own
    if op_type in BINARY and opset >= BROADCASTS:
        return own if all((call.items.rank(item) or 0) <= rank for item in operands) else None
    if op_type == "MatMul" and rank >= 2 and isinstance(call.inputs[0], Row) and len(operands) == 1:
        return own if call.items.rank(operands[0]) == 2 else None
    if op_type == "Split" and rank and isinstance(call.inputs[0], Row):
        axis = own.get("axis", 0)
        return {**own, "axis": axis + 1 if axis >= 0 else axis} if len(operands) < 2 else None
    return None
