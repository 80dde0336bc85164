"""What nodes have in common that share a loop, as a stack or side by side."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from rnn_lower.builder.constants import ConstantPool
from rnn_lower.builder.masks import Emitter
from rnn_lower.builder.names import Names
from rnn_lower.builder.versions import TABLE
from rnn_lower.builder.writer import Habits
from rnn_lower.lowering.lowering import ARITHMETIC, given_outlines
from rnn_lower.lowering.node import RecurrentNode

MEMBERS = "rnn_lower.together"
"""Metadata of the emitted nodes: the names of the nodes that share the loop, as JSON."""


COUNTS = ("Shape", "Gather", "Mul", "Add", "Sub")
"""What computes, with what only moves values, the sizes of a Reshape between layers; it goes with them."""


@dataclasses.dataclass(frozen=True)
class LoweredGroup:
    """What replaces several recurrent nodes: nodes, and for each of the several its outputs by name."""

    nodes: list[ir.Node]
    outputs: Sequence[Mapping[str, ir.Value]]


HIDDEN_SIZE, BATCH_SIZE = 64, 1
"""Up to which sizes of a node one loop with others was seen to be faster."""


def may_pay(node: RecurrentNode, form: str, opset: int, habits: Habits) -> bool:
    """Whether a node is one of those for which a loop with enough others is faster."""
    return (
        habits.directions_side_by_side
        and form != "unroll"
        and opset >= TABLE["Where"].since
        and node.static_batch is not None
        and 0 < node.static_batch <= BATCH_SIZE
        and node.hidden_size <= HIDDEN_SIZE
    )


@dataclasses.dataclass(frozen=True)
class Paying:
    """When one loop was seen to be faster than loops apart.

    units: as one wide cell, up to so many hidden units in all.  directions: with an axis for them, from so many on.
    """

    units: int
    directions: float = math.inf

    def is_wide(self, nodes: Sequence[RecurrentNode]) -> bool:
        """Whether nodes that share a loop do so as one wide cell."""
        units = sum(node.num_directions * node.hidden_size for node in nodes)
        return units <= self.units and all(activation.bounded for activation in nodes[0].activations[0])

    def pays(self, nodes: Sequence[RecurrentNode]) -> bool:
        directions = sum(node.num_directions for node in nodes)
        return len(nodes) > 1 and (self.is_wide(nodes) or directions >= self.directions)


def kind_of(node: RecurrentNode) -> tuple[object, ...]:
    """What has to be the same for one step to serve two nodes."""
    flags = (node.clip, node.linear_before_reset, node.input_forget, "P" in node.inputs, "B" in node.inputs)
    return (node.op_type, node.dtype, node.hidden_size, node.batch_size, node.activations[0], *flags)


def emitter_of(
    nodes: Sequence[RecurrentNode], what: str, opset: int, names: Names, pool: ConstantPool, habits: Habits,
    max_nodes: int | None,
) -> Emitter:  # fmt: skip
    """For what all of them become; names begin with that of the last one and what they share a loop as."""
    first, members = nodes[0], [node.name for node in nodes]
    origin = {**first.origin, "rnn_lower.node": ", ".join(members), MEMBERS: json.dumps(members)}
    dtype = ARITHMETIC.get(first.dtype, first.dtype)
    e = Emitter(opset, dtype, names, pool, f"{members[-1]}/{what}", origin, habits, max_nodes)
    for node in nodes:
        e.search.outlines.update(given_outlines(node))
    return e
