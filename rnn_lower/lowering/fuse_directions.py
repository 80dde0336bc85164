"""Compute both directions of a small node as one cell: states are concatenated, weights are block-diagonal.

    [h_1 h_2] * [R_1  0 ]  =  [h_1 * R_1   h_2 * R_2]
                [ 0  R_2]

One loop then computes both, with half as many kernel calls. The reverse direction reads its input flipped. Since 0 *
NaN is NaN, a NaN or an infinity in a state of one direction reaches the other: the one caveat of `--fuse-directions`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rnn_lower.builder.constants import filled
from rnn_lower.builder.graph_builder import GraphBuilder, Operand, declare
from rnn_lower.builder.versions import BROADCASTS_BY_RULE
from rnn_lower.lowering.cells import PRODUCTS, Cell
from rnn_lower.lowering.forms import Extent, Recurrence, Result, ScanInput, carry
from rnn_lower.lowering.node import RecurrentNode

LARGEST = 64
"""The largest hidden size for which one loop (64 steps, batch size 1) was faster than two (docs/speed.md)."""


def can_fuse(node: RecurrentNode, opset: int) -> bool:
    """Whether both directions of a node without masks can share one cell: equal except for the weights, and small."""
    return (
        node.num_directions == 2
        and node.activations[0] == node.activations[1]
        and node.hidden_size <= LARGEST
        and node.static_length != 0
        and opset >= BROADCASTS_BY_RULE
    )


def carry_fused(
    b: GraphBuilder, form: str, op_type: str, directions: Sequence[Recurrence], cells: Sequence[Cell], extent: Extent
) -> list[Result]:
    """Emit one recurrence of both directions, each in its own order of steps; return the results of the two."""
    first, H = directions[0], extent.hidden_size
    with b.scope("fused"):
        inputs = [_input(b, directions, k, extent) for k in range(len(first.inputs))]
        initial = tuple(
            _initial(b, states, extent)
            for states in zip(*(recurrence.initial for recurrence in directions), strict=True)
        )
        matrices = zip(*(cell.R for cell in cells), strict=True)
        cell = dataclasses.replace(
            cells[0],
            hidden_size=2 * H,
            R=[_block_diagonal(b, pair, H, gates) for pair, gates in zip(matrices, PRODUCTS[op_type], strict=True)],
            Rbh=_end_to_end(b, [cell.Rbh for cell in cells], 0, H, 1),
            P=[_end_to_end(b, pair, 0, H, 1) for pair in zip(*(cell.P for cell in cells), strict=True)],
        )
    fused = Recurrence("fused", cell.step, inputs, initial, first.state_names, False, first.every)
    finals, y = carry(form, b, fused, dataclasses.replace(extent, hidden_size=2 * H))
    of_states = [b.split(final, 1, [H, H], ["final_forward", "final_reverse"]) for final in finals]
    of_y: list[Operand] = [None, None]
    if y is not None:
        of_y = b.split(y, 3, [H, H], ["Y_forward", "Y_by_step"])
        of_y[1] = b.flip(of_y[1], extent.seq_length(), "Y_reverse")
    return [(tuple(parts[k] for parts in of_states), of_y[k]) for k in range(2)]


def _input(b: GraphBuilder, directions: Sequence[Recurrence], k: int, extent: Extent) -> ScanInput:
    """Return input k of both directions, interleaved gate by gate."""
    forward, reverse = (recurrence.inputs[k] for recurrence in directions)
    width, H = forward.shape[-1] or 0, extent.hidden_size
    flipped = reverse.values() if forward.single else b.flip(reverse.values(), extent.seq_length(), "by_step")
    values = _end_to_end(b, [forward.values(), flipped], 1 if forward.single else 2, H, width // H)
    length = extent.seq_length()
    time = [] if forward.single else [length if isinstance(length, int) else None]
    declare(values, b.dtype, [*time, extent.batch, 2 * width])
    return dataclasses.replace(forward, values=lambda: values, shape=(forward.shape[0], 2 * width))


def _initial(b: GraphBuilder, states: Sequence[Operand], extent: Extent) -> Operand:
    if all(state is None for state in states):
        return None
    joined = b.concat([extent.materialize(b, state) for state in states], 1, "initial")
    declare(joined, b.dtype, [extent.batch, 2 * extent.hidden_size])
    return joined


def _end_to_end(b: GraphBuilder, parts: Sequence[Operand], axis: int, H: int, gates: int) -> Operand:
    """Concatenate the parts of both directions (gates * H each) on an axis, interleaved gate by gate."""
    if parts[0] is None:
        return None
    of_gates = [b.split(part, axis, [H] * gates, [f"gate_{g}" for g in range(gates)]) for part in parts]
    return b.concat([part for gate in zip(*of_gates, strict=True) for part in gate], axis, "end_to_end")


def _block_diagonal(b: GraphBuilder, pair: Sequence[Operand], H: int, gates: int) -> Operand:
    """Return [2 * H, gates * 2 * H] from two matrices [H, gates * H], gate by gate."""
    zeros = filled(0.0, (H, gates * H), b.dtype)
    rows = [_end_to_end(b, row, 1, H, gates) for row in ([pair[0], zeros], [zeros, pair[1]])]
    return b.concat(rows, 0, "R_block_diagonal")
