"""The states of a recurrent node that loops carry, so that a step can be compared from any state, not only from those
that a few steps reach.

A graph may carry only the states of the node: h or c of one direction [N, H], of all [D, N, H], or side by side
[N, D * H]. If both sides then compute the same from random states, they do so after any number of steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from rnn_lower.proving.call import OutOfScopeError
from rnn_lower.proving.equations import TraceEntry
from rnn_lower.proving.field import Array

Slot = tuple[ir.Node, int]
"""A loop, and the index of a state that it carries."""

States = Mapping[str, Array]
"""h and c [D, N, H] by "H" and "C"."""

Selection = tuple[str, int | str]
"""H or C, and a direction, STACKED or JOINED."""

STACKED, JOINED = "stacked", "joined"


def first_states(trace: Sequence[TraceEntry], lengths: Array, steps: int) -> States:
    """The states after the first step of each direction, of the rows whose sequences have all steps."""
    found: dict[str, dict[bool, Array]] = {"H": {}, "C": {}}
    for entry in trace:
        kind, _, name = entry.name.partition(" ")
        if kind == "state" and entry.reverse not in found[name]:
            found[name][entry.reverse] = entry.values[lengths[lengths > entry.step] == steps]
    return {name: np.stack([values for _, values in sorted(each.items())]) for name, each in found.items()}


def select(states: States, selection: Selection) -> Array:
    """What a loop carries of the states of the node."""
    name, which = selection
    state = states[name]
    return state if which == STACKED else np.concatenate(state, axis=-1) if which == JOINED else state[which]


def carried_states(carried: Iterable[tuple[Slot, Array]], first: States, rows: Array) -> dict[Slot, Selection]:
    """What each loop carries, by its states after the first step; of equal ones, the first that no other loop has.

    first: the states of the node.  rows: of the batch, with these states.
    Raises OutOfScopeError for a state that is none of the node.
    """
    found = dict[Slot, Selection]()
    for (node, index), state in carried:
        names = sorted(first, reverse=not index)  # h is carried before c
        choices = [(name, which) for name in names for which in (*range(len(first[name])), STACKED, JOINED)]
        fitting = [choice for choice in choices if _is_equal(state, rows, select(first, choice))]
        if not fitting:
            raise OutOfScopeError(f"state {index} of {node.op_type} '{node.name}' is no state of the recurrent node")
        found[node, index] = next((choice for choice in fitting if choice not in found.values()), fitting[0])
    return found


def _is_equal(state: Array, rows: Array, first: Array) -> bool:
    return state.ndim == first.ndim and np.array_equal(state[..., rows, :], first)
