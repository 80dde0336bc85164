"""Replace sequences of tensor parts, which exporters emit for splits of unknown sizes, with slices."""

from __future__ import annotations

import itertools

import numpy as np
import onnx_ir as ir

from rnn_lower.ir.walk import get_attribute, known_tensor, nodes


def has_sequences(model: ir.Model) -> bool:
    return any(node.op_type == "SplitToSequence" for node, _ in nodes(model))


def without_sequences(model: ir.Model) -> None:
    """Replace reads of a SplitToSequence with Slices, if all indices and sizes are constant."""
    for node in [node for node, _ in nodes(model) if node.op_type == "SplitToSequence"]:
        users = [user for user, _ in node.outputs[0].uses()]
        sizes = known_tensor(node.inputs[1]) if len(node.inputs) > 1 else None
        indices = [known_tensor(user.inputs[1]) if user.op_type == "SequenceAt" else None for user in users]
        if node.graph is None or sizes is None or None in indices or node.outputs[0].is_graph_output():
            continue
        axis = get_attribute(node, "axis", ir.AttributeType.INT, 0)
        for user, index in zip(users, indices, strict=True):
            number = -1 if index is None else int(index.numpy())
            start, end = _bounds(sizes.numpy(), number)
            if start < 0 or user.graph is None:
                break
            bounds = [
                ir.node("Constant", [], {"value": ir.tensor(np.array([n], np.int64))}) for n in (start, end, axis)
            ]
            for part, name in zip(bounds, ("start", "end", "axis"), strict=True):
                part.outputs[0].name = f"{user.outputs[0].name}/{name}"
            piece = ir.node("Slice", [node.inputs[0], *(part.outputs[0] for part in bounds)], name=user.name)
            output, piece.outputs[0].name = user.outputs[0], user.outputs[0].name
            piece.outputs[0].type = output.type
            output.replace_all_uses_with(piece.outputs[0], replace_graph_outputs=True)
            user.graph.insert_before(user, [*bounds, piece])
            user.graph.remove(user, safe=True)
        if not node.outputs[0].uses():
            node.graph.remove(node, safe=True)


def _bounds(sizes: np.ndarray, index: int) -> tuple[int, int]:
    """The start and end of a part; negative if counted from the end."""
    if not sizes.ndim:
        return index * int(sizes), (index + 1) * int(sizes)
    edges = [0, *itertools.accumulate(map(int, sizes))]
    return (edges[index], edges[index + 1]) if 0 <= index < len(sizes) else (-1, -1)
