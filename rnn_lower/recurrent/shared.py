"""What nodes have in common that share a loop, as a stack or side by side."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from rnn_lower.emit.versions import TABLE
from rnn_lower.emit.writer import Habits
from rnn_lower.recurrent.lowering import given, is_full
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


def origin_of(nodes: Sequence[RecurrentNode]) -> Mapping[str, str]:
    """The metadata of what is emitted for all of them."""
    names = [node.name for node in nodes]
    return {**nodes[0].origin, "rnn_lower.node": ", ".join(names), MEMBERS: json.dumps(names)}
