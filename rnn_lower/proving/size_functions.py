"""What a model computes from sizes alone: a proof that tries some sizes takes it for a random function of them.

Otherwise, a graph could change at a size that no trial has: Floor(size * 0.005) is 0 in all of them. Integers stay what
they are, because graphs compute shapes with them, and so do comparisons of plain sizes and positions with constants,
beyond which the proof tries sizes (`thresholds`).
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from rnn_lower.ir.traits import DATA_MOVEMENT, ELEMENTWISE, MEASURING
from rnn_lower.ir.walk import constant, known_tensor, nodes, subgraphs
from rnn_lower.proving.call import attributes_key, cast_type
from rnn_lower.proving.thresholds import FEW, WIDE
from rnn_lower.proving.whole_evaluator import COMPARISONS, digest

FILLING = ("ConstantOfShape", "Expand", "Tile")
"""Operators that repeat elements of a constant as often as sizes say."""

PLAIN = (*DATA_MOVEMENT, *COMPARISONS, "Add", "And", "Cast", "Neg", "Not", "Or", "Range", "Sub")
"""Operators whose results may be plain: sizes and positions, one more or less, and comparisons of them."""


def size_functions(model: ir.Model) -> dict[ir.Value, str]:
    """The values that depend on sizes and constants alone, with a text that tells how, except for plain ones."""
    keys, plain, filled = dict[ir.Value | None, str](), set[ir.Value | None](), set[ir.Value | None]()
    for node, _ in nodes(model):
        computed = {value for value in node.inputs if value is not None and known_tensor(value) is None}
        arrays, sources = list[np.ndarray | None](), [str(value.name) for value in computed]
        if node.op_type in MEASURING:
            plain.update(node.outputs if keys.keys().isdisjoint(computed) else ())
        elif computed and keys.keys() >= computed and not any(subgraphs(node)):  # bodies may read anything
            arrays, sources = list(map(constant, node.inputs)), [keys.get(value, "") for value in node.inputs]
            if _is_filled(node, computed, filled):
                filled.update(node.outputs)
            elif node.op_type in PLAIN and plain.issuperset(computed) and _is_plain(node, arrays):
                plain.update(node.outputs)
        else:
            continue
        key = digest(" ".join([node.op_type, attributes_key(node), *sources]), arrays)
        keys.update({value: f"{key} {index}" for index, value in enumerate(node.outputs)})
    return {value: key for value, key in keys.items() if value is not None and value not in plain | filled}


def _is_filled(node: ir.Node, computed: Collection[ir.Value], filled: Collection[ir.Value | None]) -> bool:
    """Whether a node repeats constants, so that only the number of elements depends on sizes. filled: such values."""
    if node.op_type in (*ELEMENTWISE, *DATA_MOVEMENT) and all(value in filled for value in computed):
        return True
    return node.op_type == "ConstantOfShape" or (node.op_type in FILLING and node.inputs[0] not in computed)


def _is_plain(node: ir.Node, arrays: list[np.ndarray | None]) -> bool:
    """Whether the result of an operator of PLAIN is plain if its computed operands are. arrays: its constants."""
    numbers = [array for array in arrays if array is not None]
    if node.op_type in COMPARISONS:
        return all(array.size <= FEW for array in numbers)
    if node.op_type in ("Add", "Sub", "Range"):
        small = all(np.all(np.abs(array.astype(np.float64)) <= 1) for array in numbers)
        return small and len(numbers) == len(arrays) - 1
    if node.op_type == "Cast":
        to = cast_type(node.attributes["to"].value)
        return to in WIDE or to == ir.DataType.BOOL
    return node.op_type not in DATA_MOVEMENT or node.op_type == "Concat" or arrays[0] is None
