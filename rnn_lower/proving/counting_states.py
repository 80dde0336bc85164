"""States that neither data nor the caller decides, such as the number of steps so far: a model may change when they
reach a number, so that a proof that tries some lengths supports only those that count by adding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

import onnx_ir as ir

from rnn_lower.ir.traits import ELEMENTWISE, MEASURING
from rnn_lower.ir.walk import constant, integers
from rnn_lower.proving.call import OutOfScopeError, cast_type
from rnn_lower.proving.element_types import WIDE_INTEGERS
from rnn_lower.proving.program import read_by

MOVING = ("Abs", "Expand", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze")
"""Operators that may select or move elements of a state, or drop its sign, as some runtimes need."""

CHANGING = ("Add", "And", "Max", "Min", "Mul", "Or", "Sub")
"""Operators that may change a state by what does not depend on it."""

States = Mapping[ir.Value, ir.Value]
"""By value before a step, the value after it."""


def counting(graph: ir.Graph, states: States, given: Iterable[ir.Value]) -> dict[ir.Value, ir.Value]:
    """The states that only constants, sizes and such states determine. given: what data or the caller decides."""
    found, given = dict(states), list(given)
    while True:
        of_data = _dependent(graph, [*given, *(before for before in states if before not in found)], MEASURING)
        kept = {before: after for before, after in found.items() if after not in of_data}
        if len(kept) == len(found):
            return found
        found = kept


def parts(before: ir.Value, after: ir.Value) -> dict[ir.Value, ir.Value]:
    """The states that one tensor contains side by side: the values that are sliced from it and joined again."""
    join, readers = after.producer(), [node for node, _ in before.uses()]
    starts = [(integers(node, "starts", 1, constant) or [0])[0] for node in readers if node.op_type == "Slice"]
    if join is None or join.op_type != "Concat" or not len(readers) == len(starts) == len(join.inputs):
        return {before: after}
    ordered = [node for _, node in sorted(zip(starts, readers, strict=True), key=lambda pair: pair[0])]
    return {node.outputs[0]: value for node, value in zip(ordered, join.inputs, strict=True) if value is not None}


def _dependent(graph: ir.Graph, values: Iterable[ir.Value], ends: Iterable[str] = ()) -> set[ir.Value]:
    """These values and all that is computed from them, except by the operators `ends`."""
    found = set(values)
    for node in graph:
        if node.op_type not in ends and not found.isdisjoint(read_by(node)):
            found.update(node.outputs)
    return found


def check_counting(graph: ir.Graph, states: States) -> None:
    """Raise OutOfScopeError if a state may come back, as the digits of a number do: if it decides how it changes."""
    dependent = {before: _dependent(graph, [before]) for before in states}
    changes = {before: {other for other in states if states[other] in dependent[before]} for before in states}
    for before in states:
        later, waiting = set[ir.Value](), list(changes[before] - {before})
        while waiting:
            other = waiting.pop()
            later.add(other)
            waiting += changes[other] - later - {before}
        if back := [other for other in later if before in changes[other]]:
            raise OutOfScopeError(f"states '{before.name}' and '{back[0].name}' change each other")
        is_alone = not later and all(before not in changes[other] for other in states if other != before)
        _check_steps(before, states[before], dependent[before], before.dtype == ir.DataType.BOOL and is_alone)


def _check_steps(before: ir.Value, after: ir.Value, dependent: Set[ir.Value], is_bit: bool) -> None:
    """Check the nodes that lead from the value of a state to its next one.

    dependent: what depends on it.  is_bit: whether it has two values, and is independent of other states.
    """
    waiting, seen = [after], {before}
    while waiting:
        value = waiting.pop()
        if value in seen or value not in dependent or (node := value.producer()) is None:
            continue
        seen.add(value)
        if _holds(node, before, dependent):
            continue
        if not _counts(node, before, dependent) and not (is_bit and node.op_type in ELEMENTWISE):
            text = f"{node.op_type} '{node.name}' changes state '{before.name}'"
            raise OutOfScopeError(f"{text}, which may count otherwise than by adding")
        waiting += read_by(node)


def _holds(node: ir.Node, before: ir.Value, dependent: Set[ir.Value]) -> bool:
    """Whether a node selects the state as it was before the step, but where it begins anew."""
    if node.op_type != "Where":
        return False
    branches = [value for value in node.inputs[1:] if value in dependent]
    maker = branches[0].producer() if len(branches) == 1 and branches[0] is not None else None
    again = maker is not None and maker.op_type == "Where" and maker.inputs[0] not in dependent
    return branches == [before] or (again and maker is not None and _holds(maker, before, dependent))


def _counts(node: ir.Node, before: ir.Value, dependent: Set[ir.Value]) -> bool:
    """Whether a node moves a state, or changes it by what does not depend on it."""
    places = [index for index, value in enumerate(node.inputs) if value in dependent]
    if node.op_type == "Cast":
        return cast_type(node.attributes["to"].value) in (*WIDE_INTEGERS, ir.DataType.FLOAT, ir.DataType.DOUBLE)
    if node.op_type == "Where":
        return 0 not in places
    if node.op_type == "Concat":  # of a register that loses its oldest element, or of sums
        axis, shape = node.attributes.get_int("axis", 1), before.shape
        is_one = shape is not None and -len(shape) <= axis < len(shape) and shape[axis] == 1
        return is_one or len(places) < len(node.inputs)
    return places == [0] if node.op_type in (*MOVING, "Sub") else node.op_type in CHANGING and len(places) == 1
