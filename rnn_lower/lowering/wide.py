"""Several cells as one wide one: states lie end to end, and weights are block-diagonal, a block for each cell.

    [h_1 h_2] * [R_1  0 ]  =  [h_1 * R_1   h_2 * R_2]
                [ 0  R_2]

A step then costs what one of a larger hidden size does: one product, fused with its sum and activation, of weights that
are packed, where a batch of products is neither. The zeros are multiplied too, so this is for small cells; and since
0 * NaN is NaN, a NaN in a state of one reaches the others. An infinite state would do so as well, so activations have
to be bounded; a first state that is infinite does so.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from rnn_lower.builder.constants import filled
from rnn_lower.builder.masks import Emitter
from rnn_lower.builder.writer import Operand
from rnn_lower.lowering.cells import Cell, Weights
from rnn_lower.lowering.directions import Direction, by_step, joined_stream
from rnn_lower.lowering.forms import Span, Stream

UNITS = {"RNN": 128, "GRU": 128, "LSTM": 96}
"""Up to so many units in all one wide cell is faster. Time over that of loops apart, T = 64, N = 1, one thread, of two
directions of 8 to 64 units: RNN 0.57 to 0.86, GRU 0.53 to 0.76, LSTM (of 8 to 32) 0.53 to 0.62."""


def blocks(
    e: Emitter, parts: Mapping[tuple[int, int], Operand], count: int, gates: int, hidden_size: int, name: str = "R"
) -> Operand:
    """[count * H, gates * count * H] of parts [H, gates * H], by row and column, H = hidden_size; elsewhere zeros."""
    zeros = [filled(0.0, (hidden_size, hidden_size), e.dtype)] * gates
    cut = {place: e.split(part, 1, [hidden_size] * gates, [f"{name}_gate"] * gates) for place, part in parts.items()}
    rows = [[cut.get((row, column), zeros) for column in range(count)] for row in range(count)]
    return e.concat([e.concat(gate_by_gate(cells), 1, name) for cells in rows], 0, name)


def by_gates(e: Emitter, parts: Sequence[Operand], gates: int, hidden_size: int, axis: int, name: str) -> Operand:
    """What cells have side by side on an axis, gates * H each, as the wide cell has it: gate by gate."""
    if parts[0] is None:
        return None
    cut = [e.split(part, axis, [hidden_size] * gates, [f"{name}_gate"] * gates) for part in parts]
    return e.concat(gate_by_gate(cut), axis, name)


def gate_by_gate(cells: Sequence[Sequence[Operand]]) -> list[Operand]:
    """The gates of cells as the wide cell has them: all of one kind in a row."""
    return [of_cell for gate in zip(*cells, strict=True) for of_cell in gate]


def wide_cell(e: Emitter, cells: Sequence[Cell], recurrent: Sequence[Operand]) -> Cell:
    """One cell for all that do not read each other, or do so by what `recurrent` says."""
    H, weights = cells[0].hidden_size, [cell.weights for cell in cells]
    reset_bias = by_gates(e, [one.reset_bias for one in weights], 1, H, 0, "Rbh")
    peepholes = [by_gates(e, all_P, 1, H, 0, "P") for all_P in zip(*(one.peepholes for one in weights), strict=True)]
    return dataclasses.replace(cells[0], hidden_size=len(cells) * H, weights=Weights(recurrent, reset_bias, peepholes))


def wide_initial(e: Emitter, states: Sequence[Sequence[Operand]], shape: tuple[int, int]) -> tuple[Operand, ...]:
    """First states [batch_size, count * H] of those of each, [batch_size, H] or None for zeros."""
    zeros = filled(0.0, shape, e.dtype)
    return tuple(
        e.concat([zeros if state is None else state for state in of_all], 1, "initial")
        if any(state is not None for state in of_all) else None
        for of_all in zip(*states, strict=True)
    )  # fmt: skip


def wide(e: Emitter, directions: Sequence[Direction], span: Span) -> tuple[Direction, Span]:
    """One direction that holds all, each in the order of its own steps, with states [batch_size, count * hidden_size].

    None is masked; the batch size is known.
    """
    first, count, H, batch = directions[0], len(directions), span.hidden_size, span.static_batch or 0
    cells = [direction.cell for direction in directions]
    with e.scope("wide"):
        streams = [_stream(e, directions, place, span) for place in range(len(first.streams))]
        recurrent = []
        for place, stream in enumerate(first.streams):
            parts = {(k, k): cell.weights.recurrent[place] for k, cell in enumerate(cells)}
            recurrent.append(blocks(e, parts, count, (stream.shape[-1] or 0) // H, H))
        cell = wide_cell(e, cells, recurrent)
        initial = wide_initial(e, [direction.initial for direction in directions], (batch, H))
    return Direction("wide", False, cell, streams, initial), dataclasses.replace(span, hidden_size=count * H)


def _stream(e: Emitter, directions: Sequence[Direction], place: int, span: Span) -> Stream:
    stream, H = directions[0].streams[place], span.hidden_size
    columns = stream.shape[-1] or 0
    values = by_gates(e, list(by_step(e, directions, place, span)), columns // H, H, 2, "step_by_step")
    return joined_stream(values, (*stream.shape[:-1], len(directions) * columns), stream, span)
