"""Both directions of a small node in one loop, for which onnxruntime runs half as many kernels.

The smallest go end to end (`wide.py`), others side by side (`directions.py`). End to end, a NaN in the state of one
direction is one in that of the other from the next step on, so that both last states have it. Where they do, both
directions are computed again side by side, where each keeps to itself:

    Y, h = end_to_end(X)
    if isnan(sum(h)):
        Y, h = side_by_side(X)
"""

from __future__ import annotations

from collections.abc import Sequence

from rnn_lower.builder.constants import Constant
from rnn_lower.builder.masks import Emitter
from rnn_lower.builder.moved import operand_of
from rnn_lower.builder.versions import BROADCASTS_BY_RULE
from rnn_lower.builder.writer import Habits, Operand, declare
from rnn_lower.lowering.cells import CELLS, State
from rnn_lower.lowering.directions import Carried, Direction, side_by_side
from rnn_lower.lowering.forms import Span, carry, known_size
from rnn_lower.lowering.node import RecurrentNode
from rnn_lower.lowering.sequence_lens import is_whole
from rnn_lower.lowering.wide import UNITS, wide

END_TO_END, SIDE_BY_SIDE = "end to end", "side by side"

SIDE_BY_SIDE_UP_TO = {"LSTM": 128}
"""Hidden sizes up to which two loops take longer than both directions side by side. Time over that of two loops, N = 1,
for H = 16, 32, 64, 128: LSTM 0.71, 0.76, 0.75, 0.90 with one thread and 0.91, 0.84, 0.90, 0.87 with two (256: 1.20).
GRU, with two products in a row, 0.81 to 0.91 with one thread, but 1.08 to 1.25 with two, which share each product of a
batch. RNN, whose step is one fused kernel: 1.2 and more. With N = 8 LSTM 0.86 and 1.11 for H = 32 and 64. End to end,
up to UNITS: RNN 0.58 to 0.82, GRU 0.54 to 0.74, and LSTM 0.73 to 0.88 of the time side by side."""

KEEP_NAN = ("Sigmoid", "Tanh")
"""Bounded, and NaN for NaN on onnxruntime, which its kernels (mlas/lib/logistic.cpp and tanh.cpp) take care of."""

NEEDED = ("If", "IsNaN", "ReduceSum")
"""Operators with which NaN is seen."""


def way_of(node: RecurrentNode, opset: int, habits: Habits, masked: bool | None = None) -> str | None:
    """How both directions of this node are to share a Scan or Loop; None if each has one of its own.

    masked: whether each step looks at sequence_lens; without, what the target's habits say.
    """
    alike = node.num_directions == 2 and node.activations[0] == node.activations[1]
    small = node.static_batch == 1 and node.static_length != 0
    if not (habits.directions_side_by_side and alike and small and opset >= BROADCASTS_BY_RULE):
        return None
    if masked is None:
        masked = not is_whole(node) and not habits.lengths_around_loop
    if habits.directions_end_to_end and not masked and _may_be_wide(node, opset, habits):
        return END_TO_END
    return SIDE_BY_SIDE if node.hidden_size <= SIDE_BY_SIDE_UP_TO.get(node.op_type, 0) else None


def _may_be_wide(node: RecurrentNode, opset: int, habits: Habits) -> bool:
    """Whether one wide cell is the fastest, and no NaN of it remains unseen."""
    return (
        2 * node.hidden_size <= UNITS[node.op_type]
        and all(activation.name in KEEP_NAN for activation in node.activations[0])
        and node.clip is None
        and isinstance(operand_of(node.inputs["R"]), Constant)
        and all(habits.rules.has(op_type, opset) for op_type in NEEDED)
    )


def end_to_end(e: Emitter, node: RecurrentNode, form: str, directions: Sequence[Direction], span: Span) -> Carried:
    """What both directions come to in one loop; they have no masks, and the batch size is 1."""
    kind, states, H = CELLS[node.op_type], node.operator.states, node.hidden_size
    stacked = (0,) if "Y" in node.outputs else ()
    wanted = [place for place, state in enumerate(states) if f"Y_{state}" in node.outputs]

    def run(e: Emitter, track: Direction, span: Span) -> tuple[State, State]:
        with e.scope(track.name):
            return carry(form, e, track.track(kind, states, stacked), span)

    def again(inside: Emitter) -> list[Operand]:
        finals, every = run(inside, side_by_side(inside, directions, span), span)
        return [*(finals[place] for place in wanted), *every]

    finals, every = run(e, *wide(e, directions, span))
    last = [e.reshape(finals[place], [2, 1, H], "last") for place in wanted]
    y = [e.reshape(each, [0, 2, 1, H], "Y") for each in every]
    spoilt = e.op("IsNaN", e.op("ReduceSum", finals[0], keepdims=0, name="sum"), name="spoilt")
    names = [*(f"last_{states[place]}" for place in wanted), *("Y" for _ in stacked)]
    results = e.when(spoilt, again, lambda _: [*last, *y], names)
    ends = dict(zip(wanted, results[: len(wanted)], strict=True))
    for end in ends.values():
        declare(end, e.dtype, [2, 1, H])
    for of_step in results[len(wanted) :]:
        declare(of_step, e.dtype, [known_size(span.seq_length()), 2, 1, H])
    return Carried(tuple(map(ends.get, range(len(states)))), results[-1] if stacked else None, of_all=True)
