"""Replace sequences of tensor parts, which exporters emit for splits of unknown sizes, with slices."""

from __future__ import annotations

import itertools

import numpy as np
import onnx_ir as ir

from rnn_lower.builder.names import Names
from rnn_lower.ir.walk import get_attribute, known_tensor, nodes, used_names

SEQUENCES = ("ConcatFromSequence", "SequenceAt", "SequenceConstruct", "SplitToSequence")
"""Operators that make or read sequences."""

END = 2**63 - 1


def has_sequences(model: ir.Model) -> bool:
    return any(node.op_type == "SplitToSequence" for node, _ in nodes(model))


def without_sequences(model: ir.Model) -> int:
    """Replace reads of a SplitToSequence with Slices or Gathers, if all indices and sizes are constant.

    Returns the number of replaced nodes.
    """
    count, names = 0, Names(used_names(model))
    for node in [node for node, _ in nodes(model) if node.op_type == "SplitToSequence"]:
        users = [user for user, _ in node.outputs[0].uses()]
        indices = [known_tensor(user.inputs[1]) if user.op_type == "SequenceAt" else None for user in users]
        numbers = [int(index.numpy().item()) for index in indices if index is not None and index.size == 1]
        if node.graph is None or len(numbers) < len(users) or node.outputs[0].is_graph_output():
            continue
        parts = [_part(node, user, number, names) for user, number in zip(users, numbers, strict=True)]
        for user, made in zip(users, parts, strict=True) if all(parts) else ():
            assert user.graph is not None
            output, part = user.outputs[0], made[-1].outputs[0]
            part.name, part.type, part.shape = output.name, output.type, output.shape
            output.replace_all_uses_with(part, replace_graph_outputs=True)
            user.graph.insert_before(user, made)
            user.graph.remove(user, safe=True)
        if all(parts):
            node.graph.remove(node, safe=True)
            count += 1 + len(users)
    return count


def _part(node: ir.Node, user: ir.Node, index: int, names: Names) -> list[ir.Node]:
    """The nodes that compute one part, the part last; none if its bounds are unknown."""
    x, axis = node.inputs[0], get_attribute(node, "axis", ir.AttributeType.INT, 0)
    prefix, given = user.outputs[0].name, node.inputs[1] if len(node.inputs) > 1 else None
    sizes = known_tensor(given)
    if given is None and not get_attribute(node, "keepdims", ir.AttributeType.INT, 1):
        position = _constant(index, names.unique(f"{prefix}/index"))
        return [position, ir.node("Gather", [x, position.outputs[0]], {"axis": axis}, name=user.name)]
    if given is not None and sizes is None:
        return []
    bounds = (index, index + 1 or END) if sizes is None else _bounds(sizes.numpy(), index)
    if bounds is None:
        return []
    numbers = zip(("start", "end", "axis"), (*bounds, axis), strict=True)
    parts = [_constant([number], names.unique(f"{prefix}/{what}")) for what, number in numbers]
    return [*parts, ir.node("Slice", [x, *(part.outputs[0] for part in parts)], name=user.name)]


def _constant(content: int | list[int], name: str) -> ir.Node:
    node = ir.node("Constant", [], {"value": ir.tensor(np.array(content, np.int64))})
    node.outputs[0].name = name
    return node


def _bounds(sizes: np.ndarray, index: int) -> tuple[int, int] | None:
    """The start and end of a part, or None if it is counted from the end."""
    if not sizes.ndim:
        return (index * int(sizes), (index + 1) * int(sizes)) if index >= 0 else None
    edges = [0, *itertools.accumulate(map(int, sizes))]
    index += len(sizes) if index < 0 else 0
    return (edges[index], edges[index + 1]) if 0 <= index < len(sizes) else None
