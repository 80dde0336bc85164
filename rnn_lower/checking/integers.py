"""Find the integers that matter to a model: table rows, positions in a sequence, values in comparisons."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from rnn_lower.ir.walk import get_attribute, known_tensor, nodes
from rnn_lower.options import OP_TYPES
from rnn_lower.proving.whole.whole_evaluator import COMPARISONS
from rnn_lower.shapes.shape_info import plain_dim

PASS_ON = (
    "Abs", "Add", "Cast", "Clip", "Div", "Expand", "Flatten", "Identity", "Max", "Min", "Mod", "Mul", "Neg", "Relu",
    "Reshape", "Squeeze", "Sub", "Transpose", "Unsqueeze", "Where",
)  # fmt: skip
"""Operators between an integer input and the node whose behavior depends on the integer."""

POSITIONS = (*range(10), 15, 20, 30, 40)
"""Values for integers that select from, or are compared with, computed values: mostly positions in a sequence."""

MOST_ROWS, MOST_COMPARED = 1 << 16, 64


def ranges(model: ir.Model, inputs: Sequence[ir.Value]) -> dict[str, np.ndarray]:
    """The integers to try, by input; none beyond the smallest table that the input indexes."""
    source = {value: str(value.name) for value in inputs}
    numbers_of: dict[str, set[int]] = {}
    rows: dict[str, int] = {}
    for node, _ in nodes(model):
        read = [value for value in node.inputs if value in source] if not node.domain else []
        if node.op_type in PASS_ON and read:
            source[node.outputs[0]] = source[read[0]]  # type: ignore[index]
        for value in read:
            name, numbers = source[value], _significant_values(node, node.inputs.index(value))  # type: ignore[index]
            numbers_of.setdefault(name, set()).update(POSITIONS if numbers is None else numbers)
            if node.op_type == "Gather" and value is node.inputs[1] and numbers:
                rows[name] = min(rows.get(name, sys.maxsize), len(numbers))
    chosen = ((name, [n for n in sorted(all_) if -rows.get(name, n + 1) <= n < rows.get(name, n + 1)])
              for name, all_ in numbers_of.items())  # fmt: skip
    return {name: np.array(numbers) for name, numbers in chosen if numbers}


def _significant_values(node: ir.Node, index: int) -> Sequence[int] | None:
    """The integers that a node distinguishes in an input; None if unknown."""
    if node.op_type == "Gather" and index == 1:
        return _rows(node.inputs[0], get_attribute(node, "axis", ir.AttributeType.INT, 0))
    if node.op_type == "OneHot" and index == 0:
        depth = known_tensor(node.inputs[1])
        is_number = depth is not None and depth.size == 1 and depth.dtype != ir.DataType.STRING
        return _up_to(float(depth.numpy().ravel()[0])) if is_number and depth is not None else None
    if node.op_type in COMPARISONS:
        return _compared_with(known_tensor(node.inputs[1 - index]))
    return None if node.op_type in OP_TYPES and index == 4 else ()


def _rows(table: ir.Value | None, axis: int | None) -> Sequence[int] | None:
    """The row numbers of the table of a Gather."""
    shape = () if table is None or table.shape is None else tuple(map(plain_dim, table.shape))
    rows = shape[axis] if axis is not None and -len(shape) <= axis < len(shape) else None
    return _up_to(rows) if isinstance(rows, int) and rows else None


def _up_to(count: float) -> Sequence[int] | None:
    return range(int(min(count, MOST_ROWS))) if math.isfinite(count) else None


def _compared_with(tensor: ir.TensorProtocol | None) -> Sequence[int] | None:
    """The integers that a comparison with constants distinguishes."""
    if tensor is None:
        return None
    if not tensor.dtype.is_integer() or tensor.size > MOST_COMPARED:
        return ()
    return [int(number) + near for number in tensor.numpy().ravel() for near in (-1, 0, 1)]
