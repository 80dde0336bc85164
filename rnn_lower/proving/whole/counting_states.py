"""States that neither data nor the caller decides, such as the number of steps so far: a model may change when they
reach a number, so that a proof that tries some lengths supports only those that count by adding.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set

import numpy as np
import onnx_ir as ir

from rnn_lower.ir.schemas import DEFAULT_DOMAINS
from rnn_lower.ir.traits import ELEMENTWISE, MEASURING, SIZED_BY
from rnn_lower.ir.walk import constant, integers, known_tensor, subgraphs, upstream, with_bodies
from rnn_lower.options import OP_TYPES
from rnn_lower.proving.exact.call import OutOfScopeError, cast_type
from rnn_lower.proving.exact.element_types import WIDE_INTEGERS
from rnn_lower.proving.nodes.program import read_by

MOVING = ("Abs", "Expand", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze")
"""Operators that may select or move elements of a state, or drop its sign, as some runtimes need."""

CHANGING = ("Add", "And", "Clip", "Max", "Min", "Or", "Sub")
"""Operators that may change a state by what does not depend on it."""

SMOOTH = (*OP_TYPES, "Elu", "Erf", "Exp", "Gelu", "Sigmoid", "Softplus", "Softsign", "Tanh")
"""Functions that the proof takes for random ones: no state comes back, or counts, behind one of them."""

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
    found = [integers(node, "starts", 1, constant) for node in readers if node.op_type == "Slice"]
    starts = [each[0] for each in found if each is not None and len(each) == 1 and each[0] >= 0]
    if join is None or join.op_type != "Concat" or not len(readers) == len(starts) == len(join.inputs):
        return {before: after}
    ordered = [node for _, node in sorted(zip(starts, readers, strict=True), key=lambda pair: pair[0])]
    return {node.outputs[0]: value for node, value in zip(ordered, join.inputs, strict=True) if value is not None}


def _dependent(graph: ir.Graph, values: Iterable[ir.Value], ends: Iterable[str] = ()) -> set[ir.Value]:
    """These values and all that is computed from them, except by the operators `ends`; sizes, if they may depend."""
    found, sized = set(values), set[ir.Value]()
    for node in graph:
        read = set(read_by(node))
        source = sized if node.op_type in MEASURING else found
        if node.op_type in ends or source.isdisjoint(read):
            continue
        found.update(node.outputs)
        if node.op_type in ELEMENTWISE:  # as large as its largest operand
            grows = sized >= {value for value in read if known_tensor(value) is None}
        else:
            grows = _decides_size(node, found) or not sized.isdisjoint(read)
        sized.update(node.outputs if grows else ())
    return found


def _decides_size(node: ir.Node, found: Set[ir.Value]) -> bool:
    """Whether the elements of some values may decide how large the results of a node are."""
    bodies = [body for _, body in subgraphs(node)]
    if node.domain not in DEFAULT_DOMAINS or (node.op_type == "Loop" and not _runs_all_trips(bodies[0])):
        return True
    inner = [each for body in bodies for each in with_bodies(body)]
    if any(value is not None and known_tensor(value) is None for each in inner for value in _deciding(each)):
        return True
    return not found.isdisjoint(_deciding(node))


def _runs_all_trips(body: ir.Graph) -> bool:
    """Whether the body of a Loop hands on the condition that it receives, or a constant."""
    condition = body.outputs[0]
    maker = condition.producer()
    handed_on = maker is not None and maker.op_type == "Identity" and maker.inputs[0] is body.inputs[1]
    return handed_on or condition is body.inputs[1] or known_tensor(condition) is not None


def _deciding(node: ir.Node) -> list[ir.Value | None]:
    """The operands whose elements decide how large the results of a node are."""
    return [node.inputs[index] for index in SIZED_BY.get(node.op_type, ()) if index < len(node.inputs)]


def check_counting(graph: ir.Graph, states: States) -> None:
    """Raise OutOfScopeError if a state may come back, as the digits of a number do: if states decide how it changes.

    A boolean may change in any way that other states do not notice.
    """
    dependent = {before: _dependent(graph, [before]) for before in states}
    changed = {before: {other for other in states if states[other] in dependent[before]} for before in states}
    later = {before: _all_later(before, changed) for before in states}
    for before, after in states.items():
        if before not in later[before]:
            continue  # it is a function of other states
        is_bit = before.dtype == ir.DataType.BOOL and changed[before] == {before}
        _check_steps(before, after, dependent[before], ELEMENTWISE if is_bit else ())
        other = next((other for other in states if other != before and before in later[other]), None)
        if other is not None and not is_bit:
            raise OutOfScopeError(f"state '{other.name}' changes state '{before.name}', which may count otherwise")


def _all_later(before: ir.Value, changed: Mapping[ir.Value, set[ir.Value]]) -> set[ir.Value]:
    """The states that a state changes, at once or later. changed: at once."""
    found, waiting = set[ir.Value](), [before]
    while waiting:
        new = changed[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def _check_steps(
    before: ir.Value, after: ir.Value, dependent: Set[ir.Value], allowed: Collection[str] = ()
) -> None:  # fmt: skip
    """Check the nodes that lead from the value of a state to its next one. dependent: what depends on it."""
    waiting, seen = [after], {before}
    while waiting:
        value = waiting.pop()
        if value in seen or value not in dependent or (node := value.producer()) is None:
            continue
        seen.add(value)
        if _holds(node, before, dependent):
            continue
        if not _counts(node, before, dependent) and node.op_type not in allowed:
            text = f"{node.op_type} '{node.name}' changes state '{before.name}'"
            raise OutOfScopeError(f"{text}, which may count otherwise than by adding")
        waiting += read_by(node)


def is_smooth(graph: ir.Graph, before: ir.Value, after: ir.Value) -> bool:
    """Whether a state of floats changes by a function that no state comes back from."""
    if before.dtype is None or not before.dtype.is_floating_point():
        return False
    dependent = _dependent(graph, [before])

    def leading(node: ir.Node, _: int) -> list[ir.Value]:
        return [value for value in read_by(node) if value in dependent and value is not before]

    makers = [node for value in upstream([after], leading) if value in dependent and (node := value.producer())]
    return any(node.op_type in SMOOTH for node in with_bodies(makers))


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
    if node.op_type == "Add" and any(_is_large(value) for value in node.inputs):
        return False
    return places == [0] if node.op_type in (*MOVING, "Sub") else node.op_type in CHANGING and len(places) == 1


def _is_large(value: ir.Value | None) -> bool:
    """Whether a value is a constant so large that sums wrap around soon."""
    array = constant(value)
    if array is None or array.dtype.kind not in "iuf":
        return False
    bits = 64 if array.dtype.kind == "f" else 8 * array.dtype.itemsize
    return bool(np.any(np.abs(array.astype(np.float64)) >= least_large(bits)))


def least_large(bits: int) -> int:
    """The least number whose multiples wrap around, in integers of this many bits, at a step that a run may reach."""
    return 1 << (bits // 2 - 1)
