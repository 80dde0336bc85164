"""Nodes that read nothing of each other, in one loop instead of one each: as both directions of one node may go.

    for step in range(seq_length):                               # each node, each direction, in the order of its steps
        h, c = step_of_the_cell(X_1[step] * W_1, X_2[step] * W_2 ..., h, c)
        Y[step] = h

States are [tracks, batch_size, hidden_size], where a node has a track for each of its directions.
"""

from __future__ import annotations

from collections.abc import Sequence

from rnn_lower.emit.constants import ConstantPool
from rnn_lower.emit.masks import Emitter
from rnn_lower.emit.names import Names
from rnn_lower.emit.writer import Habits, Operand
from rnn_lower.recurrent.cells import CELLS
from rnn_lower.recurrent.directions import Direction, side_by_side
from rnn_lower.recurrent.forms import carry
from rnn_lower.recurrent.lowering import (
    InputSequence,
    direction_of,
    outputs_of,
    own_value,
    read_sequence,
)
from rnn_lower.recurrent.node import RecurrentNode
from rnn_lower.recurrent.shared import LoweredGroup, Paying, emitter_of, is_whole, kind_of

PAYS = {"LSTM": Paying(2, 64), "GRU": Paying(4, 64)}
"""Time over that of the nodes apart, T = 64, N = 1, with one thread and with two: two LSTM 0.76 and 0.94 at most, four
0.52 and 0.58, eight 0.43; two GRU 0.83, but 1.29 with two threads, which share each product, four 0.61 and 0.77."""


def fits(one: RecurrentNode, other: RecurrentNode) -> bool:
    """Whether two nodes can share a loop as far as their sizes tell; a name is no size, unless both read one X."""
    same_length = isinstance(one.seq_length, int) and one.seq_length == other.seq_length
    return (
        kind_of(one) == kind_of(other)
        and all(set(node.activations) == {one.activations[0]} for node in (one, other))
        and (same_length or (one.inputs["X"] is other.inputs["X"] and one.layout == other.layout))
        and one.static_batch is not None
        and is_whole(one)
        and is_whole(other)
    )


def lower_parallel(
    nodes: Sequence[RecurrentNode], form: str, opset: int, names: Names, pool: ConstantPool, habits: Habits,
    max_nodes: int | None = None,
) -> LoweredGroup:  # fmt: skip
    """Emit one loop for nodes that fit, at an opset; every node gives what it gave.

    Raises UnsupportedError as `lower_node`.
    """
    first, kind = nodes[0], CELLS[nodes[0].op_type]
    e = emitter_of(nodes, "parallel", opset, names, pool, habits, max_nodes)
    sequences: list[InputSequence] = []
    tracks: list[Direction] = []
    for place, node in enumerate(nodes):
        with e.scope(f"node{place}"):
            sequences.append(read_sequence(e, node, single=False))
            tracks += [direction_of(e, node, sequences[-1], d, kind.fewest) for d in range(node.num_directions)]
    together, span = side_by_side(e, tracks, sequences[0].span), sequences[0].span
    stacked = any("Y" in node.outputs for node in nodes)
    finals, y = carry(form, e, together.track(kind, first.operator.states, stacked), span)
    sizes = [node.num_directions for node in nodes]
    ys = e.split(y, 1, sizes, ["Y"] * len(nodes)) if stacked else [None] * len(nodes)
    ends = zip(
        *(_parts(e, nodes, sizes, final, name) for final, name in zip(finals, first.operator.outputs[1:], strict=True)),
        strict=True,
    )
    outputs = [
        {name: own_value(e, value, name) for name, value in outputs_of(e, node, sequence, [(together, own)]).items()}
        for node, sequence, own in zip(nodes, sequences, zip(ends, ys, strict=True), strict=True)
    ]
    return LoweredGroup(e.nodes, outputs)


def _parts(
    e: Emitter, nodes: Sequence[RecurrentNode], sizes: Sequence[int], final: Operand, name: str
) -> list[Operand]:
    """A final state of each node, where any of them gives it."""
    if any(name in node.outputs for node in nodes):
        return e.split(final, 0, sizes, [name] * len(nodes))
    return [None] * len(nodes)
