"""Replace sequences of tensor parts, which exporters emit for splits of unknown sizes, with slices."""

from __future__ import annotations

import itertools

import numpy as np
import onnx_ir as ir

from rnn_lower.builder.graph_builder import detach
from rnn_lower.builder.names import Names
from rnn_lower.ir.walk import get_attribute, known_tensor, nodes, used_names

SEQUENCES = ("ConcatFromSequence", "SequenceAt", "SequenceConstruct", "SequenceLength", "SplitToSequence")
"""Operators that make or read sequences."""

END = 2**63 - 1


def has_sequences(model: ir.Model) -> bool:
    return any(node.op_type == "SplitToSequence" for node, _ in nodes(model))


def without_sequences(model: ir.Model) -> int:
    """Replace reads of a SplitToSequence with Slices or Gathers, if indices and sizes are constant or sizes are 1.

    Returns the number of replaced nodes.
    """
    count, names = 0, Names(used_names(model))
    for node in [node for node, _ in nodes(model) if node.op_type == "SplitToSequence"]:
        users = [user for user, _ in node.outputs[0].uses()]
        if node.graph is None or node.outputs[0].is_graph_output():
            continue
        parts = [_read(node, user, names) for user in users]
        if not all(parts):
            detach([*itertools.chain(*parts)])
            continue
        for user, made in zip(users, parts, strict=True):
            assert user.graph is not None
            output, part = user.outputs[0], made[-1].outputs[0]
            part.name, part.type, part.shape = output.name, output.type, output.shape
            output.replace_all_uses_with(part, replace_graph_outputs=True)
            user.graph.insert_before(user, made)
            user.graph.remove(user, safe=True)
        node.graph.remove(node, safe=True)
        count += 1 + len(users)
    return count


def _read(node: ir.Node, user: ir.Node, names: Names) -> list[ir.Node]:
    """The nodes that compute what a node reads of the sequence, the result last; none if that is unknown."""
    given = node.inputs[1] if len(node.inputs) > 1 else None
    tensor, squeezes = known_tensor(given), not get_attribute(node, "keepdims", ir.AttributeType.INT, 1)
    if given is not None and (tensor is None or (squeezes and not tensor.shape)):
        return []  # with one size for all parts, onnxruntime obeys keepdims, which the specification ignores
    sizes, squeezes = np.array(1) if tensor is None else tensor.numpy(), squeezes and given is None
    is_single = sizes.ndim == 0 and sizes == 1
    if user.op_type == "SequenceLength" and is_single:
        return _length(node, user, names)
    index = known_tensor(user.inputs[1]) if user.op_type == "SequenceAt" else None
    if user.op_type != "SequenceAt" or (index is not None and index.size != 1):
        return []
    if is_single and (squeezes or index is None):
        return _single(node, user, squeezes, names)
    bounds = None if index is None else _bounds(sizes, int(index.numpy().item()))
    return [] if bounds is None else _part(node, user, bounds, names)


def _length(node: ir.Node, user: ir.Node, names: Names) -> list[ir.Node]:
    """The nodes that compute how many parts of size 1 there are."""
    prefix, axis = user.outputs[0].name, get_attribute(node, "axis", ir.AttributeType.INT, 0)
    shape, place = ir.node("Shape", [node.inputs[0]]), _constant(axis or 0, names.unique(f"{prefix}/axis"))
    shape.outputs[0].name = names.unique(f"{prefix}/shape")
    return [shape, place, ir.node("Gather", [shape.outputs[0], place.outputs[0]], name=user.name)]


def _single(node: ir.Node, user: ir.Node, squeezes: bool, names: Names) -> list[ir.Node]:
    """The nodes that compute a part of size 1, squeezed or not, at any index."""
    index, made, prefix = user.inputs[1], list[ir.Node](), user.outputs[0].name
    if (known := known_tensor(index)) is not None:
        number = int(known.numpy().item())
        made = [_constant(number if squeezes else [number], names.unique(f"{prefix}/index"))]
        index = made[0].outputs[0]
    elif not squeezes or index is None or index.shape is None or len(index.shape):
        shape = _constant([] if squeezes else [1], names.unique(f"{prefix}/shape"))
        made = [shape, ir.node("Reshape", [index, shape.outputs[0]])]
        index = made[-1].outputs[0]
        index.name = names.unique(f"{prefix}/index")
    axis = get_attribute(node, "axis", ir.AttributeType.INT, 0)
    return [*made, ir.node("Gather", [node.inputs[0], index], {"axis": axis}, name=user.name)]


def _part(node: ir.Node, user: ir.Node, bounds: tuple[int, int], names: Names) -> list[ir.Node]:
    """The nodes that compute the part between these bounds, the part last."""
    prefix, axis = user.outputs[0].name, get_attribute(node, "axis", ir.AttributeType.INT, 0)
    numbers = zip(("start", "end", "axis"), (*bounds, axis), strict=True)
    parts = [_constant([number], names.unique(f"{prefix}/{what}")) for what, number in numbers]
    return [*parts, ir.node("Slice", [node.inputs[0], *(part.outputs[0] for part in parts)], name=user.name)]


def _constant(content: int | list[int], name: str) -> ir.Node:
    node = ir.node("Constant", [], {"value": ir.tensor(np.array(content, np.int64))})
    node.outputs[0].name = name
    return node


def _bounds(sizes: np.ndarray, index: int) -> tuple[int, int] | None:
    """The start and end of a part, or None if it is counted from the end of parts that may differ in size."""
    if not sizes.ndim:
        size = int(sizes)
        return (index * size, (index + 1) * size or END) if index >= 0 or size == 1 else None
    edges = [0, *itertools.accumulate(map(int, sizes))]
    index += len(sizes) if index < 0 else 0
    return (edges[index], edges[index + 1]) if 0 <= index < len(sizes) else None
