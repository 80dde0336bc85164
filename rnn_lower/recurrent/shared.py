"""What nodes have in common that share a loop, as a stack or side by side."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from rnn_lower.emit.constants import ConstantPool
from rnn_lower.emit.masks import Emitter
from rnn_lower.emit.names import Names
from rnn_lower.emit.versions import TABLE
from rnn_lower.emit.writer import Habits
from rnn_lower.recurrent.lowering import ARITHMETIC, given, given_outlines, is_full
from rnn_lower.recurrent.node import RecurrentNode

MEMBERS = "rnn_lower.together"
"""Metadata of the emitted nodes: the names of the nodes that share the loop, as JSON."""


@dataclasses.dataclass(frozen=True)
class LoweredGroup:
    """What replaces several recurrent nodes: nodes, and for each of the several its outputs by name."""

    nodes: list[ir.Node]
    outputs: Sequence[Mapping[str, ir.Value]]


@dataclasses.dataclass(frozen=True)
class Paying:
    """From how many directions of nodes on, and up to which hidden and batch size, one loop was seen to be faster."""

    directions: int
    hidden_size: int
    batch_size: int = 1


def may_pay(node: RecurrentNode, measured: Paying | None, form: str, opset: int, habits: Habits) -> bool:
    """Whether a node is one of those for which a loop with enough others is faster."""
    return (
        measured is not None
        and habits.directions_side_by_side
        and form != "unroll"
        and opset >= TABLE["Where"].since
        and node.static_batch is not None
        and 0 < node.static_batch <= measured.batch_size
        and node.hidden_size <= measured.hidden_size
    )


def are_enough(nodes: Sequence[RecurrentNode], measured: Paying) -> bool:
    """Whether there are as many as it takes, each direction counting by itself."""
    return sum(node.num_directions for node in nodes) >= measured.directions


def kind_of(node: RecurrentNode) -> tuple[object, ...]:
    """What has to be the same for one step to serve two nodes."""
    flags = (node.clip, node.linear_before_reset, node.input_forget, "P" in node.inputs, "B" in node.inputs)
    return (node.op_type, node.dtype, node.hidden_size, node.batch_size, node.activations[0], *flags)


def is_whole(node: RecurrentNode) -> bool:
    """Whether all sequences are as long as X."""
    lengths = node.inputs.get("sequence_lens")
    return lengths is None or is_full(given(lengths), node.seq_length)


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
