"""How each kind of node carries what it has to remember from one chunk to the next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from rnn_lower.errors import UnsupportedError
from rnn_lower.lowering.node import display_name
from rnn_lower.streaming.data_flow import gives_back, inputs_of, is_part_of_input, outputs_of
from rnn_lower.streaming.delays import Accumulated, Arguments, Changed, DelayBuffer, Guessed, Masked, Reduced, Sizes
from rnn_lower.streaming.graph_editor import GraphEditor, put
from rnn_lower.streaming.initial_states import FromInput
from rnn_lower.streaming.lengths import count_down
from rnn_lower.streaming.plan import State
from rnn_lower.streaming.positions import Numbered, Position
from rnn_lower.streaming.recurrence import Length, Recurrence
from rnn_lower.streaming.sizes import GROWS, ONE, Size, size
from rnn_lower.streaming.windows import Cache, Joined, Overlap

END = 2**63 - 1
STATES = {"h": (5, 1), "c": (6, 2)}
"""Input and output of a recurrent node, by state."""


def carry_recurrence(work: GraphEditor, one: Recurrence) -> None:
    read = one.read
    message = work.document.message(read.node)
    free = {dim.dim_param for value in work.graph.input for dim in value.type.tensor_type.shape.dim}
    if work.step is not None and read.seq_length not in free:
        tell_length(work, Length(read, int(work.step / one.every)))
    ended = count_down(work, one, message) if "sequence_lens" in read.inputs else None
    if one.late and work.step is not None:
        ended = work.is_before(message, one.late, one.every)
    for letter in read.operator.states:
        place, result = STATES[letter]
        initial = read.inputs.get(f"initial_{letter}")
        shape: tuple[Size, ...]
        shape = (one.batch, ONE, size(read.hidden_size)) if read.layout else (ONE, one.batch, size(read.hidden_size))
        if (
            initial is not None
            and initial.is_graph_input()
            and initial.name not in work.document.model.graph.initializers
        ):
            source = _callers(work, one, initial)
            first = None
        else:
            try:
                first, shape = work.first(read.describe(), initial, shape, read.dtype)
            except FromInput as error:
                _left(work, one, str(error))
                continue
            source = work.names.unique(f"{read.name}/{letter}_in")
        current = source
        if first is not None:
            work.add_input(source, read.dtype, shape)
            current = work.resettable(message, source, first, shape, 0 if read.layout else 1)
        put(message.input, place, current)
        if initial is not None:
            work.replaced[read.node, place] = initial
        _result(work, one, message, (letter, result), (source, current), first, shape, ended)


def tell_length(work: GraphEditor, one: Length) -> None:
    """Where inference does not find the length of a sequence, a Reshape says it."""
    read, message = one.read, work.document.message(one.read.node)
    if work.step is None or read.static_length is not None:
        return
    name, known = work.names.unique(f"{read.name}/X"), work.infos[read.inputs["X"]].sizes
    sizes = [each.number or 0 for each in known]  # 0: as it is
    sizes[1 if read.layout else 0] = one.steps
    shape = work.constant(message, np.array(sizes, np.int64), f"{name}/shape")
    work.ahead(message, helper.make_node("Reshape", [message.input[0], shape], [name]))
    message.input[0] = name


def _result(
    work: GraphEditor, one: Recurrence, message: onnx.NodeProto, what: tuple[str, int], names: tuple[str, str],
    first: np.ndarray | None, shape: tuple[Size, ...], ended: str | None,
) -> None:  # fmt: skip
    """The final state as an output; a row whose sequence had ended before keeps what it had."""
    read, (letter, place), (source, current) = one.read, what, names
    old = message.output[place] if place < len(message.output) else ""
    plain = not old and ended is None and not work.is_nested(message)
    held = old or work.names.unique(f"{read.name}/{letter}_{'out' if plain else 'last'}")
    if ended is not None:
        raw = work.names.unique(f"{held}/raw")
        put(message.output, place, raw)
        work.after(message, helper.make_node("Where", [ended, current, raw], [held]))
    elif not old:
        put(message.output, place, held)
    outputs = {value.name for value in work.graph.output}
    if held in outputs and first is None:
        name = held
    elif any(state.input == source for state in work.states):  # shared with the other branch
        work.surface(message, held, "", source, read.dtype, shape)
        return
    else:
        name = held if plain else work.names.unique(f"{read.name}/{letter}_out")
        work.surface(message, held, name, source, read.dtype, shape)
    rows = 0 if read.layout else 1
    work.states.append(State(source, name, shape, read.dtype.name, read.describe(), rows, first))


def _callers(work: GraphEditor, one: Recurrence, initial: ir.Value) -> str:
    """An initial state that is an input already: it stays one."""
    node = one.read.node
    here = next(place for user, place in initial.uses() if user is node)
    for user, place in initial.uses():
        same = user is node or work.are_alternatives(work.document.message(node), work.document.message(user))
        if not same or place != here or initial.is_graph_output():
            raise UnsupportedError(
                f"{one.read.describe()}: its initial state '{initial.name}' is used elsewhere too; give the node its"
                " own input"
            )
    work.notes.append(f"{one.read.describe()}: its state is input '{initial.name}' already, which stays")
    return str(initial.name)


def _left(work: GraphEditor, one: Recurrence, reason: str) -> None:
    """A state that the model takes from an input and gives back in ways of its own."""
    read = one.read
    if "sequence_lens" in read.inputs:
        raise UnsupportedError(f"{read.describe()}: {reason}, which sequence_lens do not allow")
    model = work.document.model
    for letter in read.operator.states:
        start, final = read.inputs.get(f"initial_{letter}"), read.outputs.get(f"Y_{letter}")
        initial = None if start is None else _reshaped_input(start)
        if initial is not None and (final is None or not gives_back(model, final)):
            _given_back(work, one, letter, initial)
            continue
        if start is None or final is None or not is_part_of_input(model, start) or not gives_back(model, final):
            raise UnsupportedError(
                f"{read.describe()}: {reason}, and its state is not returned unchanged; give the node an initial state"
                " that is an input of its own, or fix it (--set INPUT=VALUE)"
            )
        back = {str(out.name) for out in outputs_of(model, final)}
        for initial in inputs_of(model, start):
            work.left.add(str(initial.name))
            work.back.setdefault(str(initial.name), (set(), read.describe()))[0].update(back)
    work.notes.append(f"{read.describe()}: {reason}, so the caller has to feed it back, as in the original")


def _reshaped_input(value: ir.Value) -> ir.Value | None:
    """The input of which a value is all elements in another shape, if that serves nothing else."""
    node = value.producer()
    while node is not None and node.op_type in ("Identity", "Reshape", "Squeeze", "Unsqueeze") and node.inputs[0]:
        if len(value.uses()) != 1:
            return None
        value = node.inputs[0]
        node = value.producer()
    alone = len(value.uses()) == 1 and not value.is_graph_output()
    return value if value.is_graph_input() and not value.is_initializer() and alone else None


def _given_back(work: GraphEditor, one: Recurrence, letter: str, initial: ir.Value) -> None:
    """The final state as an output in the shape of the input that the first one comes from."""
    read, (_, place), source = one.read, STATES[letter], str(initial.name)
    message = work.document.message(read.node)
    if work.is_nested(message) or initial.dtype is None:
        raise UnsupportedError(f"{read.describe()}: its state in a branch is not an output; make it one")
    final = message.output[place] if place < len(message.output) else ""
    if not final:
        final = work.names.unique(f"{read.name}/{letter}_last")
        put(message.output, place, final)
    shape, result = work.names.unique(f"{source}/shape"), work.names.unique(f"{read.name}/{letter}_out")
    work.after(message, helper.make_node("Shape", [source], [shape]))
    work.after(message, helper.make_node("Reshape", [final, shape], [result]))
    value = next(value for value in work.graph.input if value.name == source)
    work.graph.output.append(onnx.ValueInfoProto())
    work.graph.output[-1].CopyFrom(value)
    work.graph.output[-1].name = result
    work.states.append(State(source, result, (), initial.dtype.name, read.describe(), None))


def carry_cache(work: GraphEditor, one: Cache) -> None:
    message = work.document.message(one.node)
    text, name = f"{one.node.op_type} '{display_name(one.node)}'", display_name(one.node)
    first = np.full([n.number or 1 for n in one.shape], lowest(one.fill, one.dtype), one.dtype.numpy())
    work.check_sizes(text, one.shape)
    source, result = (work.names.unique(f"{name}/cache_{end}") for end in ("in", "out"))
    state = State(source, result, one.shape, one.dtype.name, text, one.rows, first)
    current = work.take_state(message, state)
    if one.after:
        raw, joined = work.names.unique(f"{message.output[0]}/chunk"), message.output[0]
        message.output[0] = raw
        add = work.after
    else:
        raw, joined = message.input[0], work.names.unique(f"{name}/with_cache")
        message.input[0] = joined
        add = work.ahead
    whole = work.names.unique(f"{name}/with_cache") if one.crop else joined
    add(message, helper.make_node("Concat", [current, raw], [whole], axis=one.axis))
    if one.crop:
        ends = [work.constant(message, np.array([n], np.int64), f"{name}/crop") for n in (0, -one.crop, one.axis)]
        add(message, helper.make_node("Slice", [whole, *ends], [joined]))
    kept, joined = work.names.unique(f"{name}/cache"), whole
    for node in _tail(work, joined, kept, one.axis, one.length):
        add(message, node)
    _change(message, one.attributes)
    if one.pads is not None:
        message.input[1] = work.constant(message, np.array(one.pads, np.int64), f"{name}/pads")
    work.hand_on(message, kept, state)


def carry_joined(work: GraphEditor, one: Joined) -> None:
    """What stands in front of the stream is the first state."""
    message, name = work.document.message(one.node), display_name(one.node)
    described = f"{one.node.op_type} '{name}'"
    try:
        first, shape = work.first(described, one.front, one.shape, one.dtype)
    except FromInput as error:
        raise UnsupportedError(f"{described}: what it joins to the start of the stream: {error}") from None
    source, result = (work.names.unique(f"{name}/cache_{end}") for end in ("in", "out"))
    state = State(source, result, shape, one.dtype.name, described, _rows(shape, one.axis), first)
    message.input[0] = work.take_state(message, state)
    work.replaced[one.node, 0] = one.front
    kept = work.names.unique(f"{name}/cache")
    for node in _tail(work, message.output[0], kept, one.axis, one.length):
        work.after(message, node)
    work.hand_on(message, kept, state)


def _rows(shape: tuple[Size, ...], stream: int) -> int | None:
    """The axis of the batch: the one whose size is free, or the first where none is and it is not the stream's."""
    free = [axis for axis, each in enumerate(shape) if each.of]
    return free[0] if len(free) == 1 else 0 if stream and not free else None


def carry_held(work: GraphEditor, one: DelayBuffer) -> None:
    """Put what is held back in front of the input, use what is ready of it, and hold back the rest."""
    message = work.document.message(one.node)
    text, name = f"{one.node.op_type} '{display_name(one.node)}'", display_name(one.node)
    if work.reset is not None:
        raise UnsupportedError(f"{text}: its frames are delayed, so single rows cannot be reset; drop --reset")
    if work.step is not None:
        _carry_delayed(work, one, text)
        return
    shape, rank = one.shape, len(one.shape)
    work.check_sizes(text, [each for each in shape if GROWS not in each.of])
    source, result = (work.names.unique(f"{name}/held_{way}") for way in ("in", "out"))
    first = np.full(
        [one.before if axis == one.axis else each.number or 1 for axis, each in enumerate(shape)],
        lowest(one.fill, one.dtype), one.dtype.numpy(),
    )  # fmt: skip
    state = State(source, result, shape, one.dtype.name, text, None, first)
    current = work.take_state(message, state)

    def number(what: str, *values: int) -> str:
        return work.constant(message, np.array(values, np.int64), f"{name}/{what}")

    def step(op: str, *inputs: str, what: str, **attributes: Any) -> str:
        made = work.names.unique(f"{name}/{what}")
        work.ahead(message, helper.make_node(op, inputs, [made], **attributes))
        return made

    def above_zero(value: str, what: str) -> str:
        return step("Where", step("Less", value, zero, what=f"{what}_below"), zero, value, what=what)

    axis, zero, stride = number("axis", one.axis), number("zero", 0), number("stride", one.stride)
    joined = step("Concat", current, message.input[one.place], what="with_held", axis=one.axis)
    frames = step("Gather", step("Shape", joined, what="shape"), axis, what="frames", axis=0)
    surplus = step("Sub", frames, number("needed", one.reach - one.stride), what="spare")
    ready = step("Div", above_zero(surplus, "enough"), stride, what="ready")
    end = number("end", -one.lead if one.lead else END)
    kept = step("Slice", joined, step("Mul", ready, stride, what="used"), end, axis, what="held")
    if one.crop is not None:
        begin = number("first", one.crop)
        part = step("Slice", joined, begin, step("Add", ready, begin, what="last"), axis, what="ready_frames")
        message.input[one.place] = part
        if one.gone:
            message.op_type = "Identity"
            del message.input[1:]
            del message.attribute[:]
    else:
        lacking = above_zero(step("Sub", number("reach", one.reach), frames, what="missing"), "lacking")
        others = number("ahead", *[0] * (rank + one.axis)), number("behind", *[0] * (rank - one.axis - 1))
        pads = step("Concat", others[0], lacking, others[1], what="pads", axis=0)
        message.input[one.place] = step("Pad", joined, pads, what="whole")
        raw, output = work.names.unique(f"{message.output[0]}/made"), message.output[0]
        message.output[0] = raw
        work.after(message, helper.make_node("Slice", [raw, zero, ready, axis], [output]))
    _change(message, one.attributes)
    work.hand_on(message, kept, state)


def _carry_delayed(work: GraphEditor, one: DelayBuffer, owner: str) -> None:
    """The same where chunks are of one length: as many frames come as there are, and the first mean nothing."""
    message, name = work.document.message(one.node), display_name(one.node)
    if one.crop is not None:
        length = one.reach - 1 - one.crop
    else:
        late = (one.late + max(0, one.reach - 1 - one.before - one.lead)) // one.stride
        length = late * one.stride + one.before - one.late
        if length < 0:
            raise UnsupportedError(f"{owner}: its delay is less than its stride; drop --step")
    joined = message.input[one.place]
    if length:
        shape = tuple(size(length) if axis == one.axis else each for axis, each in enumerate(one.shape))
        work.check_sizes(owner, shape)
        source, result = (work.names.unique(f"{name}/held_{end}") for end in ("in", "out"))
        first = np.full([n.number or 1 for n in shape], lowest(one.fill, one.dtype), one.dtype.numpy())
        state = State(source, result, shape, one.dtype.name, owner, None, first)
        current = work.take_state(message, state)
        whole, kept = work.names.unique(f"{name}/with_held"), work.names.unique(f"{name}/held")
        work.ahead(message, helper.make_node("Concat", [current, joined], [whole], axis=one.axis))
        whole_tail = kept if not one.lead else work.names.unique(f"{name}/held_with_lead")
        for node in _tail(work, whole, whole_tail, one.axis, length + one.lead):
            work.ahead(message, node)
        if one.lead:  # which the next chunk has again
            ends = [work.constant(message, np.array([n], np.int64), f"{name}/lead") for n in (0, -one.lead, one.axis)]
            work.ahead(message, helper.make_node("Slice", [whole_tail, *ends], [kept]))
        work.hand_on(message, kept, state)
        joined = whole
        if one.crop is not None:
            joined = work.names.unique(f"{name}/delayed")
            ends = [work.constant(message, np.array([n], np.int64), f"{name}/delay") for n in (0, -length, one.axis)]
            work.ahead(message, helper.make_node("Slice", [whole, *ends], [joined]))
    message.input[one.place] = joined
    if one.gone:
        message.op_type = "Identity"
        del message.input[1:]
        del message.attribute[:]
    _change(message, one.attributes)
    work.warm_up(message)


def mask(work: GraphEditor, one: Masked) -> None:
    """Put what stands in front of the stream in place of frames that mean nothing."""
    message, name = work.document.message(one.node), display_name(one.node)
    assert work.step is not None
    rank = work.infos[one.node.inputs[one.place]].rank  # type: ignore[index]
    frames = np.arange(int(work.step / one.every)).reshape(-1, *[1] * (rank - 1 - one.axis))
    early = work.is_before(message, one.late, one.every, frames)
    fill = work.constant(message, np.array(lowest(one.fill, one.dtype), one.dtype.numpy()), f"{name}/fill")
    masked = work.names.unique(f"{name}/masked")
    work.ahead(message, helper.make_node("Where", [early, fill, message.input[one.place]], [masked]))
    message.input[one.place] = masked


def carry_overlap(work: GraphEditor, one: Overlap) -> None:
    """Add what the last chunk made beyond its end to the first frames, and keep what this one does."""
    message, name = work.document.message(one.node), display_name(one.node)
    text = f"{one.node.op_type} '{name}'"
    work.check_sizes(text, one.shape)
    source, result = (work.names.unique(f"{name}/tail_{end}") for end in ("in", "out"))
    first = np.zeros([n.number or 1 for n in one.shape], one.dtype.numpy())
    state = State(source, result, one.shape, one.dtype.name, text, 0, first)
    current, output = work.take_state(message, state), message.output[0]
    message.output[0] = work.names.unique(f"{name}/frames")

    def number(value: int) -> str:
        return work.constant(message, np.array([value], np.int64), f"{name}/number")

    def step(op: str, *inputs: str, what: str, **attributes: Any) -> str:
        made = work.names.unique(f"{name}/{what}")
        work.after(message, helper.make_node(op, inputs, [made], **attributes))
        return made

    start, length, end, axis = number(0), number(one.length), number(END), number(one.axis)
    begun = step("Slice", message.output[0], start, length, axis, what="begun")
    rest = step("Slice", message.output[0], length, end, axis, what="rest")
    whole = step("Concat", step("Add", begun, current, what="added"), rest, what="whole", axis=one.axis)
    tail = step("Slice", whole, number(-one.length), end, axis, what="tail")
    ready = step("Slice", whole, start, number(-one.length), axis, what="ready")
    if len(message.input) > 2 and message.input[2]:  # once for each frame, not once for each chunk
        each = work.constant(message, np.array([-1, *[1] * (len(one.shape) - 2)], np.int64), f"{name}/each")
        ready = step("Add", ready, step("Reshape", message.input[2], each, what="bias"), what="biased")
        message.input[2] = ""
    work.after(message, helper.make_node("Identity", [ready], [output]))
    work.hand_on(message, tail, state)


def carry_position(work: GraphEditor, one: Position) -> None:
    """Count on from the number of frames before the chunk."""
    message, name = work.document.message(one.node), display_name(one.node)
    text = f"{one.node.op_type} '{name}'"
    if work.reset is not None:
        raise UnsupportedError(
            f"{text}: it counts frames for all rows together, so single rows cannot be reset; drop --reset"
        )
    source, result = (work.names.unique(f"{name}/position_{end}") for end in ("in", "out"))
    state = State(source, result, (ONE,), "INT64", text, None, np.zeros(1, np.int64))
    current = work.take_state(message, state)
    total = work.names.unique(f"{name}/total")
    if one.node.op_type == "Slice":
        begin, end = (work.names.unique(f"{name}/{what}") for what in ("begin", "end"))
        rows = message.input[2]
        work.ahead(message, helper.make_node("Add", [current, message.input[1]], [begin]))
        work.ahead(message, helper.make_node("Add", [current, rows], [end]))
        message.input[1], message.input[2] = begin, end
        work.after(message, helper.make_node("Identity", [end], [total]))
    else:
        output, offset, frames = message.output[0], current, work.names.unique(f"{name}/frames")
        message.output[0] = work.names.unique(f"{name}/numbers")
        if one.dtype != ir.DataType.INT64:
            offset = work.names.unique(f"{name}/offset")
            work.after(message, helper.make_node("Cast", [current], [offset], to=int(one.dtype)))
        work.after(message, helper.make_node("Add", [message.output[0], offset], [output]))
        work.after(message, helper.make_node("Shape", [message.output[0]], [frames]))
        work.after(message, helper.make_node("Add", [current, frames], [total]))
    work.hand_on(message, total, state)


def carry_sum(work: GraphEditor, one: Accumulated) -> None:
    """Add what the chunks before came to; the last frame of the result is what the next chunk goes on from."""
    message, name = work.document.message(one.node), display_name(one.node)
    described = f"{one.node.op_type} '{name}'"
    work.check_sizes(described, one.shape)
    source, result = (work.names.unique(f"{name}/sum_{end}") for end in ("in", "out"))
    first = np.zeros([each.number or 1 for each in one.shape], one.dtype.numpy())
    state = State(source, result, one.shape, one.dtype.name, described, _rows(one.shape, one.axis), first)
    current = work.take_state(message, state)
    output, raw = message.output[0], work.names.unique(f"{name}/chunk")
    message.output[0] = raw
    work.after(message, helper.make_node("Add", [raw, current], [output]))
    total = output
    if one.exclusive:
        total = work.names.unique(f"{name}/inclusive")
        work.after(message, helper.make_node("Add", [output, message.input[0]], [total]))
    joined, kept = work.names.unique(f"{name}/sums"), work.names.unique(f"{name}/sum")
    work.after(message, helper.make_node("Concat", [current, total], [joined], axis=one.axis))
    for node in _tail(work, joined, kept, one.axis, 1):
        work.after(message, node)
    work.hand_on(message, kept, state)


def change_attributes(work: GraphEditor, one: Changed) -> None:
    _change(work.document.message(one.node), one.attributes)


def replace_arguments(work: GraphEditor, one: Arguments) -> None:
    message, name = work.document.message(one.node), display_name(one.node)
    if work.opset < one.since:
        _change(message, dict(zip(one.attributes, map(list, one.inputs.values()), strict=True)))
        return
    for place, numbers in one.inputs.items():
        put(message.input, place, work.constant(message, np.array(numbers, np.int64), f"{name}/input"))


def tell_sizes(work: GraphEditor, one: Sizes) -> None:
    """Sizes of the batch are read off the inputs. A sum: onnxruntime puts -1 into shapes that are concatenated."""
    message, name = work.document.message(one.node), display_name(one.node)
    work.check_sizes(f"{one.node.op_type} '{name}'", one.sizes)

    def step(op: str, *inputs: str, **attributes: Any) -> str:
        made = work.names.unique(f"{name}/size")
        work.ahead(message, helper.make_node(op, inputs, [made], **attributes))
        return made

    def known(*numbers: int) -> str:
        return work.constant(message, np.array(numbers, np.int64), f"{name}/number")

    found = known(*(each.number or 0 for each in one.sizes))
    for place, each in enumerate(one.sizes):
        if each.number is not None:
            continue
        part = known(each.times.numerator)
        for symbol in each.of:
            source, axis = work.symbols[symbol]
            part = step("Mul", part, step("Gather", step("Shape", source), known(axis), axis=0))
        if each.times.denominator > 1:
            part = step("Div", part, known(each.times.denominator))
        here = known(*(int(place == other) for other in range(len(one.sizes))))
        found = step("Add", found, step("Mul", here, part))
    message.input[1] = found


def take_the_rest(work: GraphEditor, one: Guessed) -> None:
    message, name = work.document.message(one.node), display_name(one.node)
    here = work.constant(message, np.arange(one.rank) == one.place, f"{name}/here")
    rest, shape = (
        work.constant(message, np.array(one.size, np.int64), f"{name}/rest"),
        work.names.unique(f"{name}/shape"),
    )
    work.ahead(message, helper.make_node("Where", [here, rest, message.input[1]], [shape]))
    message.input[1] = shape
    if "allowzero" in one.node.attributes:  # by which 0 would be no size that stays
        _change(message, {"allowzero": 0})


def take_each(work: GraphEditor, one: Numbered) -> None:
    """The frames as they are, with more axes."""
    message, name = work.document.message(one.node), display_name(one.node)
    initial = one.node.inputs[1]
    assert initial is not None
    work.replaced[one.node, 1] = initial
    axes = list(one.axes)
    del message.attribute[:]
    del message.input[1:]
    message.op_type = "Unsqueeze" if axes else "Identity"
    if axes and work.opset < 13:
        _change(message, {"axes": axes})
    elif axes:
        message.input.append(work.constant(message, np.array(axes, np.int64), f"{name}/axes"))


def keep_reduced(work: GraphEditor, one: Reduced) -> None:
    """The first of each reduced axis is all that there is of it, or nothing."""
    message, name = work.document.message(one.node), display_name(one.node)
    _change(message, {"keepdims": 1})
    output = message.output[0]
    message.output[0] = work.names.unique(f"{output}/reduced")
    axes, count = work.constant(message, np.array(one.axes, np.int64), f"{name}/reduced_axes"), len(one.axes)
    ends = [work.constant(message, np.full(count, n, np.int64), f"{name}/ends") for n in (0, 1)]
    sliced = output if one.keepdims else work.names.unique(f"{output}/kept")
    work.after(message, helper.make_node("Slice", [message.output[0], *ends, axes], [sliced]))
    if not one.keepdims:
        squeezed = helper.make_node("Squeeze", [sliced, axes], [output])
        if work.opset < 13:
            squeezed = helper.make_node("Squeeze", [sliced], [output], axes=list(one.axes))
        work.after(message, squeezed)


def _change(message: onnx.NodeProto, attributes: Mapping[str, Any]) -> None:
    for key, value in attributes.items():
        there = next((one for one in message.attribute if one.name == key), None) or message.attribute.add()
        there.CopyFrom(helper.make_attribute(key, value))


def _tail(work: GraphEditor, value: str, name: str, axis: int, length: int) -> list[onnx.NodeProto]:
    """The last frames."""
    if work.opset < 10:
        return [helper.make_node("Slice", [value], [name], starts=[-length], ends=[END], axes=[axis])]
    parts = [work.names.unique(f"{name}/{what}") for what in ("starts", "ends", "axes")]
    arrays = [np.array([number], np.int64) for number in (-length, END, axis)]
    made = [
        helper.make_node("Constant", [], [part], value=numpy_helper.from_array(array))
        for part, array in zip(parts, arrays, strict=True)
    ]
    return [*made, helper.make_node("Slice", [value, *parts], [name])]


def lowest(fill: Any, dtype: ir.DataType) -> Any:
    """Pooling takes the largest value, so nothing may be larger than what was not there."""
    if fill == -np.inf and dtype.is_integer():
        return np.iinfo(dtype.numpy()).min
    return fill
