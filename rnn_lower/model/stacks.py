"""Which of a model's recurrent nodes are a stack: each reads what the one before gives, and nobody else does."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir

from rnn_lower.model.facts import RESHAPES, Facts
from rnn_lower.recurrent.node import RecurrentNode
from rnn_lower.recurrent.stack import fits

KEEPS_ORDER = (*RESHAPES, "Identity", "Transpose")
"""What exporters put between layers. A Transpose is one of them as long as it moves axes of size 1 only."""


@dataclasses.dataclass(frozen=True)
class Stack:
    """layers: the first one first.  between: the nodes that lie between them, which go with them."""

    layers: tuple[RecurrentNode, ...]
    between: tuple[ir.Node, ...] = ()


def stacks(nodes: Sequence[RecurrentNode], facts: Facts) -> Iterator[Stack]:
    """All stacks of two and more layers. Nothing else depends on the lower ones, so all can be where the last is."""
    given = {node.outputs["Y"]: node for node in nodes if list(node.outputs) == ["Y"]}
    below = {id(node): found for node in nodes if (found := _below(node, given, facts)) is not None}
    lower = {id(found.layers[0]) for found in below.values()}
    for node in nodes:
        if id(node) in lower or id(node) not in below:
            continue
        layers, between = [node], list[ir.Node]()
        while id(layers[0]) in below:
            found = below[id(layers[0])]
            layers.insert(0, found.layers[0])
            between += found.between
        yield Stack(tuple(layers), tuple(between))


def _below(node: RecurrentNode, given: Mapping[ir.Value, RecurrentNode], facts: Facts) -> Stack | None:
    """The layer that a node reads, and what lies between."""
    value, between = node.inputs["X"], list[ir.Node]()
    while value not in given:
        producer = value.producer()
        source = None if producer is None or not _is_private(value) else _in_order(producer, facts)
        if producer is None or source is None:
            return None
        between.append(producer)
        value = source
    layer = given[value]
    if not _is_private(value) or layer.node.graph is not node.node.graph or not fits(layer, node):
        return None
    return Stack((layer,), tuple(between))


def _is_private(value: ir.Value) -> bool:
    return len(value.uses()) == 1 and not value.is_graph_output()


def _in_order(node: ir.Node, facts: Facts) -> ir.Value | None:
    """The input whose elements a node gives in their order."""
    if node.domain != "" or node.op_type not in KEEPS_ORDER or node.inputs[0] is None:
        return None
    if node.op_type != "Transpose":
        return node.inputs[0]
    shape = facts.shape(node.inputs[0])
    if shape is None:
        return None
    perm = node.attributes["perm"].as_ints() if "perm" in node.attributes else reversed(range(len(shape)))
    kept = [axis for axis in perm if shape[axis] != 1]
    return node.inputs[0] if kept == sorted(kept) else None
