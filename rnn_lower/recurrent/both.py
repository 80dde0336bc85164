"""Both directions of a small node in one loop, for which onnxruntime runs half as many kernels.

The smallest go end to end (`wide.py`), others side by side (`directions.py`). End to end, a NaN in the state of one
direction is one in that of the other from the next step on, so that both last states have it. Where they do, both
directions are computed again side by side, where each keeps to itself:

    Y, h = end_to_end(X)
    if isnan(sum(h)):
        Y, h = side_by_side(X)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rnn_lower.emit.constants import Constant
from rnn_lower.emit.masks import Emitter
from rnn_lower.emit.moved import given
from rnn_lower.emit.writer import Habits, Operand, declare
from rnn_lower.recurrent.cells import CELLS, State
from rnn_lower.recurrent.directions import Direction, side_by_side
from rnn_lower.recurrent.forms import Span, carry, known_size
from rnn_lower.recurrent.node import RecurrentNode
from rnn_lower.recurrent.ragged import is_whole
from rnn_lower.recurrent.wide import UNITS, wide

SIDE_BY_SIDE = {"LSTM": 128}
"""Up to this hidden size both directions of one row go side by side. Time over that of two tracks, N = 1, for H = 16,
32, 64, 128: LSTM 0.71, 0.76, 0.75, 0.90 with one thread and 0.91, 0.84, 0.90, 0.87 with two (256: 1.20). GRU, with two
products in a row, 0.81 to 0.91 with one thread, but 1.08 to 1.25 with two, which share each product of a batch. RNN,
whose step is one fused kernel: 1.2 and more. With N = 8 LSTM 0.86 and 1.11 for H = 32 and 64."""

KEEP_NAN = ("Sigmoid", "Tanh")
"""Bounded functions of which onnxruntime says in its code that NaN stays NaN."""


def may_share(node: RecurrentNode, habits: Habits) -> bool:
    """Whether both directions of this node are small enough for one Scan or Loop."""
    return (
        habits.directions_side_by_side
        and node.num_directions == 2
        and node.activations[0] == node.activations[1]
        and node.static_batch == 1
        and (node.hidden_size <= SIDE_BY_SIDE.get(node.op_type, 0) or may_be_wide(node, habits))
    )


def may_be_wide(node: RecurrentNode, habits: Habits) -> bool:
    """Whether one wide cell is the fastest for this node that may share, and no NaN of it remains unseen."""
    return (
        habits.directions_end_to_end
        and 2 * node.hidden_size <= UNITS[node.op_type]
        and all(activation.name in KEEP_NAN for activation in node.activations[0])
        and node.clip is None
        and isinstance(given(node.inputs["R"]), Constant)
        and (is_whole(node) or habits.lengths_around_loop)
    )


def end_to_end(
    e: Emitter, node: RecurrentNode, form: str, directions: Sequence[Direction], span: Span
) -> tuple[Direction, tuple[State, Operand]]:
    """What the track that both directions share comes to, of which `lead` says that they have an axis of their own.

    Directions without masks, of one row.
    """
    kind, states, H = CELLS[node.op_type], node.operator.states, node.hidden_size
    stacked = (0,) if "Y" in node.outputs else ()
    wanted = [place for place, state in enumerate(states) if f"Y_{state}" in node.outputs]
    names = [*(f"last_{states[place]}" for place in wanted), *["Y"][: len(stacked)]]

    def carried(e: Emitter, track: Direction, span: Span) -> tuple[State, State]:
        with e.scope(track.name):
            return carry(form, e, track.track(kind, states, stacked), span)

    def again(inside: Emitter) -> list[Operand]:
        finals, every = carried(inside, side_by_side(inside, directions, span), span)
        return [*(finals[place] for place in wanted), *every]

    one, whole = wide(e, directions, span)
    finals, every = carried(e, one, whole)
    parted = [e.reshape(finals[place], [2, 1, H], "last") for place in wanted]
    parted += [e.reshape(y, [0, 2, 1, H], "Y") for y in every]
    spoilt = e.op("IsNaN", e.op("ReduceSum", finals[0], keepdims=0, name="sum"), name="spoilt")
    results = e.when(spoilt, again, lambda inside: parted, names)
    for name, value in zip(names, results, strict=True):
        declare(value, e.dtype, [*([known_size(span.seq_length())] if name == "Y" else []), 2, 1, H])
    ends = dict(zip(wanted, results, strict=False))
    last = tuple(ends.get(place) for place in range(len(states)))
    return dataclasses.replace(one, lead=(2,)), (last, results[-1] if stacked else None)
