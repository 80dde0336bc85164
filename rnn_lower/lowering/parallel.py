"""Nodes that read nothing of each other, in one loop instead of one each.

    for step in range(seq_length):                               # each node, each direction, in the order of its steps
        h, c = step_of_the_cell(X_1[step] * W_1, X_2[step] * W_2 ..., h, c)
        Y[step] = h

A node has a track for each of its directions. Where these are small their states lie end to end (`wide.py`), else on an
axis of their own (`directions.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from rnn_lower.builder.constants import ConstantPool
from rnn_lower.builder.masks import Emitter
from rnn_lower.builder.names import Names
from rnn_lower.builder.writer import Habits
from rnn_lower.lowering.cells import CELLS, State
from rnn_lower.lowering.directions import Carried, Direction, side_by_side
from rnn_lower.lowering.forms import Span, carry
from rnn_lower.lowering.lowering import (
    InputSequence,
    direction_of,
    outputs_of,
    own_value,
    parts_of,
    read_sequence,
)
from rnn_lower.lowering.node import RecurrentNode
from rnn_lower.lowering.sequence_lens import is_whole
from rnn_lower.lowering.shared import LoweredGroup, Paying, emitter_of, kind_of
from rnn_lower.lowering.wide import UNITS, wide

PAYS = {"RNN": Paying(UNITS["RNN"]), "GRU": Paying(UNITS["GRU"], 4), "LSTM": Paying(UNITS["LSTM"], 2)}
"""Time over that of loops apart, T = 64, N = 1, one thread, with an axis for all directions: two LSTM 0.70 to 0.76,
four 0.37 to 0.52; four GRU 0.44 to 0.61, and two 0.83, but 1.29 with two threads, which share each product."""


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
    first, kind, as_one = nodes[0], CELLS[nodes[0].op_type], PAYS[nodes[0].op_type].is_wide(nodes)
    e = emitter_of(nodes, "parallel", opset, names, pool, habits, max_nodes)
    parts = parts_of(e, first, 0, together=not as_one)
    sequences: list[InputSequence] = []
    tracks: list[Direction] = []
    for place, node in enumerate(nodes):
        with e.scope(f"node{place}"):
            sequences.append(read_sequence(e, node, form))
            tracks += [direction_of(e, node, sequences[-1], d, parts) for d in range(node.num_directions)]
    span, stacked = sequences[0].span, (0,) if any("Y" in node.outputs for node in nodes) else ()

    def carried(direction: Direction, span: Span) -> Carried:
        finals, every = carry(form, e, direction.track(kind, first.operator.states, stacked), span)
        return Carried(finals, every[0] if every else None)

    results = (_end_to_end if as_one else _side_by_side)(e, nodes, tracks, span, carried)
    outputs = [
        {name: own_value(e, value, name) for name, value in outputs_of(e, node, sequence, own).items()}
        for node, sequence, own in zip(nodes, sequences, results, strict=True)
    ]
    return LoweredGroup(e.nodes, outputs)


Carry = Callable[[Direction, Span], Carried]
Results = list[list[Carried]]
"""Of each node, what its directions, or the loop that they share, came to."""


def _end_to_end(
    e: Emitter, nodes: Sequence[RecurrentNode], tracks: Sequence[Direction], span: Span, carried: Carry
) -> Results:
    one, sizes = carried(*wide(e, tracks, span)), [span.hidden_size] * len(tracks)
    ys = [None] * len(tracks) if one.y is None else e.split(one.y, 3, sizes, ["Y_by_step"] * len(tracks))
    each = zip(tracks, _ends(e, nodes, 1, sizes, one.finals), ys, strict=True)
    found: Results = []
    for node in nodes:
        own = itertools.islice(each, node.num_directions)
        flips = "Y" in node.outputs
        found.append([
            Carried(end, e.flip(y, span.seq_length(), "Y_in_order") if flips and track.reverse else y)
            for track, end, y in own
        ])  # fmt: skip
    return found


def _side_by_side(
    e: Emitter, nodes: Sequence[RecurrentNode], tracks: Sequence[Direction], span: Span, carried: Carry
) -> Results:
    one, sizes = carried(side_by_side(e, tracks, span), span), [node.num_directions for node in nodes]
    ys = [None] * len(nodes) if one.y is None else e.split(one.y, 1, sizes, ["Y"] * len(nodes))
    return [[Carried(end, y, of_all=True)] for end, y in zip(_ends(e, nodes, 0, sizes, one.finals), ys, strict=True)]


def _ends(e: Emitter, nodes: Sequence[RecurrentNode], axis: int, sizes: Sequence[int], finals: State) -> list[State]:
    """The final states of each part of an axis, as far as any of the nodes gives them."""
    split = [
        e.split(final, axis, sizes, [name] * len(sizes)) if any(name in node.outputs for node in nodes)
        else [None] * len(sizes)
        for final, name in zip(finals, nodes[0].operator.outputs[1:], strict=True)
    ]  # fmt: skip
    return list(zip(*split, strict=True))
