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

from rnn_lower.proving.exact.call import OutOfScopeError
from rnn_lower.proving.exact.equations import TraceEntry
from rnn_lower.proving.exact.field import Array

Slot = tuple[ir.Node, int]
"""A loop, and the index of a state that it carries."""

Carried = Mapping[Slot, Sequence[Array]]
"""What loops carry after each of their steps."""

States = Mapping[str, Array]
"""h and c [D, N, H] by "H" and "C"."""

Selection = tuple[str, int | str]
"""H or C, and a direction, STACKED or JOINED."""

STACKED, JOINED = "stacked", "joined"


def states_of(entries: Iterable[TraceEntry]) -> list[States]:
    """The states of the node after each step of its directions."""
    found: dict[str, dict[bool, list[Array]]] = {name: collections.defaultdict(list) for name in ("H", "C")}
    for entry in entries:
        found[entry.name.removeprefix("state ")][entry.reverse].append(entry.values)
    directions = {name: [steps for _, steps in sorted(each.items())] for name, each in found.items()}
    count = len(directions["H"][0]) if directions["H"] else 0
    return [{name: np.stack([steps[k] for steps in each]) for name, each in directions.items()} for k in range(count)]


def select(states: States, selection: Selection) -> Array:
    """The part of the states of the node that a loop carries."""
    name, which = selection
    state = states[name]
    return state if which == STACKED else np.concatenate(state, axis=-1) if which == JOINED else state[which]


Fitting = dict[Slot, list[Selection]]
"""What each loop may carry."""


def narrow(fitting: Fitting, carried: Carried, states: Sequence[States]) -> None:
    """Remove what loops cannot carry, because it differs from what they carry in one run. states: of the node."""
    for slot, steps in carried.items():
        names = ("H", "C") if slot[1] == 0 else ("C", "H")  # h is carried before c
        directions = len(states[0]["H"]) if states else 0
        every = [(name, which) for name in names for which in (*range(directions), STACKED, JOINED)]
        fitting[slot] = [each for each in fitting.get(slot, every) if not _differ(steps, states, each)]


def carried_states(fitting: Fitting, last_first: bool) -> dict[Slot, Selection]:
    """Which states of the node each loop carries; if several fit, the first that no other loop carries.

    last_first: begin with the last loop.  Raises OutOfScopeError for a state that is none of the node.
    """
    found = dict[Slot, Selection]()
    for slot in [*fitting][::-1] if last_first else fitting:
        if not fitting[slot]:
            raise OutOfScopeError(_no_state(slot))
        found[slot] = next((each for each in fitting[slot] if each not in found.values()), fitting[slot][0])
    return found


def differing(carried: Carried, states: Sequence[States], selections: Mapping[Slot, Selection]) -> str | None:
    """The loop that carries something else than these states of the node after some step, in words, or None."""
    for slot, steps in carried.items():
        if slot not in selections or _differ(steps, states, selections[slot]):
            return _no_state(slot)
    return None


def _no_state(slot: Slot) -> str:
    node, index = slot
    return f"state {index} of {node.op_type} '{node.name}' is no state of the recurrent node"


def _differ(steps: Sequence[Array], states: Sequence[States], selection: Selection) -> bool:
    wanted = (select(each, selection) for each in states)
    return len(steps) > len(states) or not all(map(np.array_equal, steps, wanted))
