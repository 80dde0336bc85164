"""The states of recurrent nodes over the stream: the final states of a chunk are the initial states of the next."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import onnx_ir as ir

from rnn_lower.errors import UnsupportedError
from rnn_lower.lowering.node import RecurrentNode
from rnn_lower.shapes.sizes import ONE, Size, size
from rnn_lower.streaming.data_flow import inputs_of, may_feed, outputs_of
from rnn_lower.streaming.plan import State
from rnn_lower.streaming.states.graph_editor import GraphEditor, Site, put
from rnn_lower.streaming.states.initial_states import FromInput, is_computable, is_set_once
from rnn_lower.streaming.states.lengths import count_down

STATES = {"h": (5, 1), "c": (6, 2)}
"""The input and the output of a recurrent node, by state."""


@dataclasses.dataclass(frozen=True)
class Recurrence:
    """A recurrent node over the stream.

    batch: its batch size.  every: input frames per step.  late: the delay of its steps.
    """

    read: RecurrentNode
    batch: Size
    every: Fraction
    late: int

    def __call__(self, work: GraphEditor) -> None:
        read, site = self.read, work.at(self.read.node)
        free = {dim.dim_param for value in work.graph.input for dim in value.type.tensor_type.shape.dim}
        if work.step is not None and (self.late or read.seq_length not in free):
            tell_length(work, read, int(work.step / self.every))
        ended = count_down(work, read, self.batch) if "sequence_lens" in read.inputs else None
        if self.late and work.step is not None:
            ended = work.is_before(site, self.late, self.every)
        for letter in read.operator.states:
            self._carry(work, site, letter, ended)

    def _carry(self, work: GraphEditor, site: Site, letter: str, ended: ir.Value | None) -> None:
        """Carry one state of the node. ended: the rows that keep their state."""
        read, rows = self.read, 0 if self.read.layout else 1
        initial, (index, _) = read.inputs.get(f"initial_{letter}"), STATES[letter]
        shape: tuple[Size, ...] = (ONE, self.batch, size(read.hidden_size))
        if read.layout:
            shape = (self.batch, ONE, size(read.hidden_size))
        if initial is not None and initial.is_graph_input() and not initial.is_initializer():
            _check_callers(work, read, initial)
            result = work.names.unique(f"{site.name}/{letter}_out")
            state = State(str(initial.name), result, shape, read.dtype.name, site.owner, rows)
            current = ir.Value(name=initial.name)
        else:
            try:
                first, shape = work.first(read.describe(), initial, shape, read.dtype)
            except FromInput as error:
                final = read.outputs.get(f"Y_{letter}")
                is_once = initial is not None and is_set_once(work.document, work.infos, initial, final)
                if initial is None or not is_once or _reshaped_input(initial) is not None:
                    _leave_to_caller(work, read, letter, ended, str(error))
                    return
                work.notes.append(f"{error}, as that input is in the first chunk")
                state, current = work.take_computed_state(site, letter, index, shape, read.dtype, rows)
            else:
                state, current = work.take_state(site, letter, first, shape, rows)
        work.replace_input(site, index, current)
        _hand_on(work, site, letter, dataclasses.replace(state, node=read.describe()), current, ended)


def tell_length(work: GraphEditor, read: RecurrentNode, steps: int) -> None:
    """Insert a Reshape if inference cannot find the length of a sequence."""
    if work.step is None or read.static_length is not None:
        return
    site = work.at(read.node)
    sizes = [each.number or 0 for each in work.infos[read.inputs["X"]].sizes]  # 0 copies the size
    sizes[1 if read.layout else 0] = steps
    site.feed(0, site.before.reshape(site.input(), sizes, "X"))


def _hand_on(
    work: GraphEditor, site: Site, letter: str, state: State, current: ir.Value, ended: ir.Value | None
) -> None:
    """Make the final state an output; rows that ended before keep their state."""
    outputs, index = site.message.output, STATES[letter][1]
    old = outputs[index] if index < len(outputs) else ""
    new = work.names.unique(f"{site.name}/{letter}_last") if work.is_nested(site) else state.output
    final = ir.Value(name=old or new)
    if ended is not None:
        raw = site.divert(f"{letter}_raw", index)
        final = _held(site, letter, ended, current, raw)
        site.rename(final, old or new)
    elif not old:
        put(outputs, index, new)
    if any(existing.input == state.input for existing in work.states):  # shared with the other branch
        work.surface(site, final, state)
    elif state.first is None and old in {value.name for value in work.graph.output}:
        work.states.append(dataclasses.replace(state, output=old))
    else:
        work.hand_on(site, final, state)


def _held(site: Site, letter: str, ended: ir.Value, current: ir.Value, raw: ir.Value) -> ir.Value:
    """The final state: the current one in rows that ended before, and what the node computes, `raw`, in the others."""
    return site.behind.op("Where", ended, current, raw, name=f"{letter}_held")


def _check_callers(work: GraphEditor, read: RecurrentNode, initial: ir.Value) -> None:
    """Keep an initial state that is an input. Raises UnsupportedError if another node reads this input, too."""
    index = next(index for user, index in initial.uses() if user is read.node)
    for user, position in initial.uses():
        same = user is read.node or work.are_alternatives(read.node, user)
        if not same or position != index or initial.is_graph_output():
            raise UnsupportedError(
                f"{read.describe()}: its initial state '{initial.name}' is also read by other nodes or "
                "returned as an output; add a separate input for the node"
            )
    work.notes.append(
        f"{read.describe()}: its state is already an input of the model, '{initial.name}', and stays an input"
    )


def _leave_to_caller(
    work: GraphEditor, read: RecurrentNode, letter: str, ended: ir.Value | None, reason: str
) -> None:  # fmt: skip
    """Leave a state to the caller if the model reads and returns it after other operators. reason: names the node.

    ended: the rows that keep their state.
    """
    if "sequence_lens" in read.inputs:
        raise UnsupportedError(f"{reason}, which streaming does not support for a node with sequence_lens")
    model, site = work.document.model, work.at(read.node)
    start, final = read.inputs[f"initial_{letter}"], read.outputs.get(f"Y_{letter}")
    initial = _reshaped_input(start)
    returned = set() if final is None else outputs_of(model, final)
    fits = any(initial is not None and may_feed(value, initial) for value in returned)
    if initial is not None and not fits and not (returned and work.is_nested(site)):
        _add_final_output(work, read, letter, initial, ended)
        work.notes.append(f"{reason}, so the caller must feed the state back, as with the original model")
        return
    if start.is_graph_input() and start.is_initializer():
        raise UnsupportedError(f"{reason}, which has a default; remove its initializer, or make it a constant (--set)")
    if final is None or not returned or not inputs_of(model, start):
        fixed = ", or replace the input with a constant (--set INPUT=VALUE)" if is_computable(start) else ""
        lost = "" if returned else ", and the model does not return the final state of the node unchanged"
        raise UnsupportedError(f"{reason}{lost}; use a separate input as the initial state of the node{fixed}")
    if ended is not None:
        first, index = STATES[letter]
        old, raw = site.message.output[index], site.divert(f"{letter}_raw", index)
        site.rename(_held(site, letter, ended, site.input(first), raw), old)
    back = {str(value.name) for value in returned}
    for initial in inputs_of(model, start):
        work.left.add(str(initial.name))
        work.back.setdefault(str(initial.name), (set(), read.describe()))[0].update(back)
    work.notes.append(f"{reason}, so the caller must feed the state back, as with the original model")


def _reshaped_input(value: ir.Value) -> ir.Value | None:
    """The input that a value reshapes, if the input has no other use."""
    node = value.producer()
    while node is not None and node.op_type in ("Identity", "Reshape", "Squeeze", "Unsqueeze") and node.inputs[0]:
        if len(value.uses()) != 1:
            return None
        value = node.inputs[0]
        node = value.producer()
    alone = len(value.uses()) == 1 and not value.is_graph_output()
    return value if value.is_graph_input() and not value.is_initializer() and alone else None


def _add_final_output(
    work: GraphEditor, read: RecurrentNode, letter: str, initial: ir.Value, ended: ir.Value | None
) -> None:  # fmt: skip
    """Return the final state as an output in the shape of the input of the initial state.

    ended: the rows that keep their state.
    """
    site, (first, index), source = work.at(read.node), STATES[letter], str(initial.name)
    if work.is_nested(site) or initial.dtype is None:
        raise UnsupportedError(
            f"{read.describe()}: the node is in a branch, and its final state is not an output; make the"
            " final state an output of the model"
        )
    has_output = index < len(site.message.output) and site.message.output[index]
    final = site.output(index) if has_output else site.divert(f"{letter}_last", index)
    if ended is not None:
        final = _held(site, letter, ended, site.input(first), final)
    shape = site.behind.op("Shape", ir.Value(name=source), name="shape")
    result = work.names.unique(f"{read.name}/{letter}_out")
    site.rename(site.behind.op("Reshape", final, shape, name="state"), result)
    value = next(value for value in work.graph.input if value.name == source)
    work.graph.output.add().CopyFrom(value)
    work.graph.output[-1].name = result
    work.states.append(State(source, result, (), initial.dtype.name, read.describe(), None))
