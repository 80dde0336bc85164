"""The states of a recurrent node that loops carry, so that a step can be compared from any state, not only from those
that a few steps reach.

A graph may carry only the states of the node: h or c of one direction [N, H], of all [D, N, H], or side by side
[N, D * H]. If they equal the states of the node after each step from random states, they do so after any number of
steps.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from rnn_lower.proving.call import OutOfScopeError
from rnn_lower.proving.equations import TraceEntry
from rnn_lower.proving.field import Array

Slot = tuple[ir.Node, int]
"""A loop, and the index of a state that it carries."""

Carried = Mapping[Slot, Sequence[Array]]
"""What loops carry after each of their steps."""

States = Mapping[str, Array]
"""h and c [D, N, H] by "H" and "C"."""

Selection = tuple[str, int | str]
"""H or C, and a direction, STACKED or JOINED."""

STACKED, JOINED = "stacked", "joined"


def states_of(trace: Iterable[TraceEntry]) -> list[States]:
    """The states of the node after each step of its directions."""
    found: dict[str, dict[bool, list[Array]]] = {name: collections.defaultdict(list) for name in ("H", "C")}
    for entry in trace:
        kind, _, name = entry.name.partition(" ")
        if kind == "state":
            found[name][entry.reverse].append(entry.values)
    directions = {name: [steps for _, steps in sorted(each.items())] for name, each in found.items()}
    count = len(directions["H"][0]) if directions["H"] else 0
    return [{name: np.stack([steps[k] for steps in each]) for name, each in directions.items()} for k in range(count)]


def select(states: States, selection: Selection) -> Array:
    """The part of the states of the node that a loop carries."""
    name, which = selection
    state = states[name]
    return state if which == STACKED else np.concatenate(state, axis=-1) if which == JOINED else state[which]


def carried_states(carried: Iterable[tuple[Slot, Sequence[Array]]], states: Sequence[States]) -> dict[Slot, Selection]:
    """Which states of the node each loop carries; if several fit, the first that no other loop carries.

    Raises OutOfScopeError for a state that is none of the node.
    """
    found = dict[Slot, Selection]()
    for slot, steps in carried:
        names = sorted(states[0], reverse=not slot[1])  # h is carried before c
        choices = [(name, which) for name in names for which in (*range(len(states[0][name])), STACKED, JOINED)]
        fitting = [choice for choice in choices if not _differ(steps, states, choice)]
        if not fitting:
            raise _refusal(slot)
        found[slot] = next((choice for choice in fitting if choice not in found.values()), fitting[0])
    return found


def check_carried(
    carried: Carried, states: Sequence[States], selections: Mapping[Slot, Selection]
) -> None:  # fmt: skip
    """Raise OutOfScopeError if a loop carries something else than these states of the node after some step."""
    for slot, steps in carried.items():
        if slot not in selections or _differ(steps, states, selections[slot]):
            raise _refusal(slot)


def _differ(steps: Sequence[Array], states: Sequence[States], selection: Selection) -> bool:
    wanted = (select(each, selection) for each in states)
    return len(steps) > len(states) or not all(map(np.array_equal, steps, wanted))


def _refusal(slot: Slot) -> OutOfScopeError:
    node, index = slot
    return OutOfScopeError(f"state {index} of {node.op_type} '{node.name}' is no state of the recurrent node")
