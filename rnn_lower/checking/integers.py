"""Which integers make a difference to a model: rows of tables, places in a sequence, what they are compared with."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterable, Sequence

import numpy as np
import onnx_ir as ir

from rnn_lower.builder.constants import known_tensor
from rnn_lower.ir.walk import get_attribute, nodes
from rnn_lower.options import OP_TYPES
from rnn_lower.shapes.shape_info import plain_dim

PASS_ON = ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose")
"""What hands on its first input, each number as it is."""

ALTER = ("Abs", "Add", "Clip", "Div", "Expand", "Max", "Min", "Mod", "Mul", "Neg", "Relu", "Sub", "Where")
"""What integers go through as well on their way to where they make a difference, perhaps as other ones."""

COMPARE = ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")

POSITIONS = (*range(10), 15, 20, 30, 40)
"""For integers that pick of, or are compared with, what is known at run time only: places in a sequence, mostly."""

MOST_ROWS, MOST_COMPARED = 1 << 16, 64


@dataclasses.dataclass
class Range:
    """Numbers for an input.

    rows: of the smallest table that it picks of as it is.  is_known: whether the model should take all of them.
    """

    found: set[int] = dataclasses.field(default_factory=set)
    rows: int = sys.maxsize
    is_known: bool = True

    @property
    def numbers(self) -> np.ndarray:
        return np.array(sorted(number for number in self.found if -self.rows <= number < self.rows))


def ranges(model: ir.Model, inputs: Sequence[ir.Value]) -> dict[str, Range]:
    """By the names of those inputs that show one."""
    found: dict[str, Range] = {}
    source = {value: (str(value.name), True) for value in inputs}

    def say(value: ir.Value, numbers: Iterable[int] | None) -> None:
        """numbers: None where nobody knows them."""
        if value in source:
            name, as_it_is = source[value]
            own = found.setdefault(name, Range())
            own.found.update(POSITIONS if numbers is None else numbers)
            own.is_known &= as_it_is and numbers is not None

    for node, _ in nodes(model):
        taken = [value for value in node.inputs if value is not None]
        if node.domain or not taken:
            continue
        if node.op_type in PASS_ON and taken[0] in source:
            source[node.outputs[0]] = source[taken[0]]
        elif node.op_type in ALTER and (through := [value for value in taken if value in source]):
            source[node.outputs[0]] = (source[through[0]][0], False)
        elif node.op_type == "Gather" and len(taken) == 2:
            rows = _rows(taken[0], node)
            say(taken[1], None if rows is None else range(min(rows, MOST_ROWS)))
            if rows is not None and source.get(taken[1], ("", False))[1]:
                own = found[source[taken[1]][0]]
                own.rows = min(own.rows, rows)
        elif node.op_type == "OneHot" and len(taken) == 3:
            say(taken[0], _up_to(known_tensor(taken[1])))
        elif node.op_type in COMPARE and len(taken) == 2:
            for value, other in (taken, reversed(taken)):
                say(value, _beside(known_tensor(other)))
        elif node.op_type in OP_TYPES and len(node.inputs) > 4 and (lengths := node.inputs[4]) is not None:
            say(lengths, None)
    return {name: one for name, one in found.items() if one.numbers.size}


def _rows(table: ir.Value, node: ir.Node) -> int | None:
    """How many there are of what a Gather picks."""
    shape = () if table.shape is None else tuple(map(plain_dim, table.shape))
    place = get_attribute(node, "axis", ir.AttributeType.INT, 0)
    rows = shape[place] if place is not None and -len(shape) <= place < len(shape) else None
    return rows if isinstance(rows, int) and rows else None


def _up_to(depth: ir.TensorProtocol | None) -> Iterable[int] | None:
    if depth is None or depth.size != 1 or not (depth.dtype.is_integer() or depth.dtype.is_floating_point()):
        return None
    rows = float(depth.numpy().ravel()[0])  # of four bits in four bits, else
    return range(int(min(rows, MOST_ROWS))) if math.isfinite(rows) else None


def _beside(tensor: ir.TensorProtocol | None) -> Iterable[int] | None:
    """The integers that a comparison with constants tells apart."""
    if tensor is None:
        return None
    if not tensor.dtype.is_integer() or tensor.size > MOST_COMPARED:
        return ()
    return {int(number) + near for number in tensor.numpy().ravel() for near in (-1, 0, 1)}
