"""The directions of a node: each a track of its own, or both side by side in one.

Each on its own, onnxruntime computes a product with its sum and activation in one kernel, with weights that it packed.
Side by side, states are [2, batch_size, hidden_size] and one batched product [2, N, H] x [2, H, G * H] serves both:
half as many kernel calls, but neither fused nor packed. The direction that walks backwards reads its streams flipped,
and what it gives is flipped back. Two steps in one body that do not share their kernels gain little (LSTM 8 to 14 % at
N = 1) and drive each other's weights out of the cache where these are large.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence

from rnn_lower.builder.constants import filled
from rnn_lower.builder.masks import Emitter
from rnn_lower.builder.writer import Operand, declare
from rnn_lower.lowering.cells import Cell, CellKind, State, Terms, Weights
from rnn_lower.lowering.forms import Span, Stream, Track, known_size


@dataclasses.dataclass(frozen=True)
class Direction:
    """A cell, what it reads, and its first states (None: zeros).  masked: the last stream says where a step counts."""

    name: str
    reverse: bool
    cell: Cell
    streams: Sequence[Stream]
    initial: State
    masked: bool = False
    lead: tuple[int, ...] = ()

    def track(self, kind: CellKind, states: Sequence[str], stacked: tuple[int, ...]) -> Track:
        step: Step = functools.partial(kind.advance, self.cell)
        if self.masked:
            step = masked(step)
        return Track(self.name, step, kind.last, self.streams, self.initial, states, self.reverse, stacked, self.lead)


@dataclasses.dataclass(frozen=True)
class Carried:
    """What one direction came to, or the loop that all share.

    finals: [batch_size, hidden_size] for each state, or [num_directions, batch_size, hidden_size] of all.
    y: [seq_length, 1 or num_directions, batch_size, hidden_size]; of all, each in the order of its own steps.
    of_all: whether it is of all directions.
    """

    finals: State
    y: Operand
    of_all: bool = False


Step = Callable[[Emitter, Sequence[Operand], State], tuple[State, Terms]]


def masked(step: Step) -> Step:
    """Keep the state where the sequence has not begun (reverse) or is over (forward); Y is nobody's there."""

    def masked_step(e: Emitter, inputs: Sequence[Operand], state: State) -> tuple[State, Terms]:
        *projected, mask = inputs
        new_state, terms = step(e, projected, state)
        return tuple(e.select(mask, new, old) for new, old in zip(new_state, state, strict=True)), terms

    return masked_step


def side_by_side(e: Emitter, directions: Sequence[Direction], span: Span) -> Direction:
    """One direction that holds all of them; every value has a new axis before the batch. The batch size is known."""
    first = directions[0]
    lead = (len(directions),)
    cells = [direction.cell for direction in directions]
    with e.scope("together"):
        streams = [_stream(e, directions, place, span) for place in range(len(first.streams))]
        cell = beside(e, cells)
        zeros = filled(0.0, (span.static_batch or 0, span.hidden_size), e.dtype)
        initial = [
            on_new_axis(e, [zeros if state is None else state for state in states], [0], "initial")
            for states in zip(*(direction.initial for direction in directions), strict=True)
        ]
    return Direction("together", False, cell, streams, tuple(initial), first.masked, lead)


def _stream(e: Emitter, directions: Sequence[Direction], place: int, span: Span) -> Stream:
    parts = [e.unsqueeze(values, [1], "direction") for values in by_step(e, directions, place, span)]
    stream = directions[0].streams[place]
    return joined_stream(e.concat(parts, 1, "step_by_step"), (len(directions), *stream.shape), stream, span)


def by_step(e: Emitter, directions: Sequence[Direction], place: int, span: Span) -> Iterator[Operand]:
    """What one stream of each direction holds, in the order of its own steps."""
    for direction in directions:
        values = direction.streams[place].values
        yield e.flip(values, span.seq_length()) if direction.reverse else values


def joined_stream(values: Operand, shape: tuple[int | None, ...], one: Stream, span: Span) -> Stream:
    """The stream of all directions, of which there is one."""
    declare(values, one.dtype, [known_size(span.seq_length()), *shape])
    return Stream(values, one.dtype, shape)


def beside(e: Emitter, cells: Sequence[Cell]) -> Cell:
    """One cell for all: states and sums have a new axis before the batch, each product is of a batch of matrices."""
    all_weights = [cell.weights for cell in cells]
    weights = Weights(
        [on_new_axis(e, parts, [0], "R") for parts in zip(*(one.recurrent for one in all_weights), strict=True)],
        on_new_axis(e, [one.reset_bias for one in all_weights], [0, 1], "Rbh"),
        [on_new_axis(e, parts, [0, 1], "P") for parts in zip(*(one.peepholes for one in all_weights), strict=True)],
    )
    return dataclasses.replace(cells[0], weights=weights, gate_axis=cells[0].gate_axis + 1)


def on_new_axis(e: Emitter, parts: Sequence[Operand], axes: Sequence[int], name: str) -> Operand:
    """All of them on a new first axis; nothing of what none of them has."""
    if parts[0] is None:
        return None
    return e.concat([e.unsqueeze(part, axes, name) for part in parts], 0, name)


def apart(e: Emitter, y: Operand, reverse: Sequence[bool], span: Span) -> list[Operand]:
    """What a shared track stacked, [seq_length, 1, batch_size, hidden_size] for each direction, times in order."""
    parts = e.split(y, 1, [1] * len(reverse), ["Y_by_step"] * len(reverse))
    return [
        e.flip(part, span.seq_length(), "Y_in_order") if backwards else part
        for part, backwards in zip(parts, reverse, strict=True)
    ]
