"""Many steps: carry a step over time as Scan, Loop or a straight line. No gates, no weights.

A form takes a `Track`, one direction of a node or both side by side, and gives back its final states and, where they
are wanted, the states of every step stacked over time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import onnx_ir as ir

from rnn_lower.builder.constants import constant
from rnn_lower.builder.masks import Emitter
from rnn_lower.builder.writer import Operand, declare
from rnn_lower.errors import Lack, UnmetError
from rnn_lower.lowering.cells import Last, State, Terms

Size = int | ir.Value


def known_size(size: Size) -> int | None:
    return size if isinstance(size, int) else None


def as_operand(size: Size) -> Operand:
    """As int64 scalar."""
    return constant(size, ir.DataType.INT64) if isinstance(size, int) else size


@dataclasses.dataclass(frozen=True)
class Stream:
    """What one step reads: values [seq_length, *shape]. single: the time axis (of length 1) is already gone."""

    values: Operand
    dtype: ir.DataType
    shape: tuple[int | None, ...]
    single: bool = False


@dataclasses.dataclass(frozen=True)
class Track:
    """One sequence of steps: `step` maps what it reads at one time and its states to its new states and to the terms
    of the last equation of the first state.

    last: that equation, for the terms of one step or, stacked, for those of all.
    initial: [*lead, batch_size, hidden_size] per state; None is the zero state.
    reverse: time runs from seq_length - 1 to 0; results still lie at the times they belong to.
    stacked: the places of the states that are wanted of every step.
    lead: sizes of the axes before the batch, if any; the batch size is known then.
    """

    name: str
    step: Callable[[Emitter, Sequence[Operand], State], tuple[State, Terms]]
    last: Last
    streams: Sequence[Stream]
    initial: State
    state_names: Sequence[str]
    reverse: bool
    stacked: tuple[int, ...]
    lead: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Span:
    """How long and wide the sequences are; run-time sizes are emitted only when a form asks for them.

    batch: the batch size when it is known, its name when it is symbolic, else None.
    has_steps: whether a run-time length is certain to be above 0.
    """

    seq_length: Callable[[], Size]
    batch_size: Callable[[], Size]
    batch: int | str | None
    hidden_size: int
    has_steps: bool = False

    @property
    def certain(self) -> bool:
        """Whether there is at least one step."""
        length = self.seq_length()
        return length > 0 if isinstance(length, int) else self.has_steps

    @property
    def static_batch(self) -> int | None:
        return self.batch if isinstance(self.batch, int) else None

    def state_shape(self, lead: tuple[int, ...] = ()) -> tuple[int | None, ...]:
        """As a body declares it: known sizes or nothing, since symbolic names in bodies confuse some runtimes."""
        return (*lead, self.static_batch, self.hidden_size)

    def states(self, e: Emitter, track: Track) -> list[Operand]:
        """The initial states with zeros where nothing was given."""
        return [self._zeros(e) if state is None else state for state in track.initial]

    def _zeros(self, e: Emitter) -> Operand:
        zeros = e.zeros([self.batch_size(), self.hidden_size])
        # With the name, onnxruntime finds product and input of a step in a Scan to be of one shape, and fuses them
        # with the activation: LSTM 2 %, GRU 3 to 15 %, RNN 5 to 50 % less time, the more the smaller.
        declare(zeros, e.dtype, [self.batch, self.hidden_size])
        return zeros


Result = tuple[State, State]
"""Final states [*lead, batch_size, hidden_size], and over time those of the states that `Track.stacked` names:
[seq_length, *lead, batch_size, hidden_size], where no lead counts as one of size 1."""

Form = Callable[[Emitter, Track, Span], Result]


def scan(e: Emitter, track: Track, span: Span) -> Result:
    """A Scan (opset 9 and up); a reverse track by the scan directions.

    onnxruntime's Scan refuses a sequence without steps, so where that can happen it is not reached.
    """
    length = span.seq_length()
    if isinstance(length, int) or span.certain or not e.habits.guard_empty_scan:
        return _with_lead(e, track, _scan(e, track, span))
    some = e.op("Less", constant(0, ir.DataType.INT64), length, name="has_steps")
    if None in track.initial:
        span.batch_size()  # asked for outside of the branches, which both need it
    results = e.when(
        some,
        lambda inside: _flat(_scan(inside, track, span)),
        lambda inside: _flat(_no_steps(inside, track, span)),
        _result_names(track),
    )
    return _with_lead(e, track, _parted(track, results))


def _scan(e: Emitter, track: Track, span: Span) -> Result:
    flip = track.reverse and e.habits.flip_outside_scan
    inside = e.body(own_constants=e.habits.constants_in_body)
    states = _state_inputs(inside, track, span)
    steps = [inside.new_value("step", stream.dtype, stream.shape) for stream in track.streams]
    outputs = _run(inside, track, steps, states, span)
    streams = [e.flip(stream.values, span.seq_length()) if flip else stream.values for stream in track.streams]
    directions = {}
    if track.reverse and not flip:
        directions["scan_input_directions"] = [1] * len(streams)
        if track.stacked:
            directions["scan_output_directions"] = [1] * (len(outputs) - len(states))
    results = e.op_multi(
        "Scan", [*span.states(e, track), *streams], _names_of(track, outputs),
        body=e.graph([*states, *steps], outputs, inside, "body"), num_scan_inputs=len(streams), **directions,
    )  # fmt: skip
    finals, every = _emitted(e, track, results)
    return finals, tuple(e.flip(each, span.seq_length()) for each in every) if flip else every


def loop(e: Emitter, track: Track, span: Span) -> Result:
    """A Loop (every opset); a reverse track reads its sequences flipped."""
    length = span.seq_length()
    sources = [e.flip(stream.values, length) if track.reverse else stream.values for stream in track.streams]
    inside = e.body(own_constants=e.habits.constants_in_body)
    trip = inside.new_value("trip", ir.DataType.INT64, [])
    going_on = inside.new_value("going_on", ir.DataType.BOOL, [])
    states = _state_inputs(inside, track, span)
    steps = [inside.gather(values, trip, "step") for values in sources]
    outputs = _run(inside, track, steps, states, span)
    still_going_on = going_on
    if not e.habits.pass_condition:
        still_going_on = inside.op("Identity", going_on, name="still_going_on")
        still_going_on.type, still_going_on.shape = going_on.type, going_on.shape
    results = e.op_multi(
        "Loop",
        [
            as_operand(length),
            constant(True, ir.DataType.BOOL),
            *span.states(e, track),
        ],
        _names_of(track, outputs),
        body=e.graph([trip, going_on, *states], [still_going_on, *outputs], inside, "body"),
    )
    finals, every = _emitted(e, track, results)
    every = tuple(_shaped(e, each, track, span) for each in every)
    return finals, tuple(e.flip(each, length) for each in every) if track.reverse else every


def unroll(e: Emitter, track: Track, span: Span) -> Result:
    """A straight line of seq_length steps; the first step of a zero state needs no recurrent product."""
    seq_length = span.seq_length()
    assert isinstance(seq_length, int)
    _check_count(e, seq_length, seq_length, "more than ")
    state = track.initial
    states: list[State] = []
    counts: list[int] = []
    with e.shared_constants():
        steps = [_each_step(e, stream, seq_length, span) for stream in track.streams]
        for t in reversed(range(seq_length)) if track.reverse else range(seq_length):
            with e.scope(f"t{t}"):
                state, _ = track.step(e, [at(t) for at in steps], state)
                states.append(state)
            counts.append(len(e.nodes))
            if len(counts) == 2:  # all steps but the first are alike
                _check_count(e, seq_length, counts[1] + (seq_length - 2) * (counts[1] - counts[0]))
    in_order = states[::-1] if track.reverse else states
    return state, tuple(
        _joined(e, [at_step[place] for at_step in in_order], name, span)
        for place, name in zip(track.stacked, _names_of_every(track), strict=True)
    )


def _joined(e: Emitter, states: Sequence[Operand], name: str, span: Span) -> Operand:
    """Those of all steps of a straight line."""
    rows = e.concat(states, 0, "rows")
    batch_size = -1 if span.static_batch is None else span.static_batch
    every = e.reshape(rows, [len(states), 1, batch_size, span.hidden_size], name)
    declare(every, e.dtype, [len(states), 1, span.batch, span.hidden_size])
    return every


def _each_step(e: Emitter, stream: Stream, seq_length: int, span: Span) -> Callable[[int], Operand]:
    """What a stream holds at time t [batch_size, columns].

    With a known batch size one Split serves all steps, which is 2 to 8 % faster in all than a Gather in each. Else the
    time axis must be taken off each part, which onnxruntime still loads sooner than a Gather in each.
    """
    if stream.single:
        return lambda t: stream.values
    if not span.static_batch:
        if not e.has("Split"):
            return lambda t: e.gather(stream.values, constant(t, ir.DataType.INT64), "step")
        slabs = e.split(stream.values, 0, [1] * seq_length, [f"t{t}/slab" for t in range(seq_length)])
        return lambda t: e.squeeze(slabs[t], [0], "step")
    rows = e.reshape(stream.values, [seq_length * span.static_batch, -1], "rows")
    parts = e.split(rows, 0, [span.static_batch] * seq_length, [f"t{t}/step" for t in range(seq_length)])
    return lambda t: parts[t]


def _no_steps(e: Emitter, track: Track, span: Span) -> Result:
    """The streams are as empty as the result has to be, and at least as wide."""
    if not track.stacked:
        return tuple(span.states(e, track)), ()
    empty = e.slice(track.streams[0].values, 2 + len(track.lead), 0, span.hidden_size, "empty")
    return tuple(span.states(e, track)), (empty,) * len(track.stacked)


def _check_count(e: Emitter, seq_length: int, nodes: int, about: str = "") -> None:
    if e.max_nodes is not None and nodes > e.max_nodes:
        what = f"unrolling {seq_length} steps takes {about}{nodes} nodes, {e.max_nodes} are left of the limit"
        raise UnmetError(what, [Lack(what, forms=("scan", "loop"), nodes=True)])


FORMS: dict[str, Form] = {"scan": scan, "loop": loop, "unroll": unroll}


def carry(form: str, e: Emitter, track: Track, span: Span) -> Result:
    """All steps of one direction, in a form of FORMS; a sequence that is known to be empty needs none."""
    if span.seq_length() == 0:
        return _with_lead(e, track, _no_steps(e, track, span))
    return FORMS[form](e, track, span)


def _state_inputs(inside: Emitter, track: Track, span: Span) -> list[ir.Value]:
    return [
        inside.new_value(f"previous_{name}", inside.dtype, span.state_shape(track.lead)) for name in track.state_names
    ]


def _run(
    inside: Emitter, track: Track, steps: Sequence[Operand], states: Sequence[Operand], span: Span
) -> list[ir.Value]:
    """The step inside a body: its new states and, when wanted, what is stacked of it.

    A value must not be two outputs of one graph, hence an Identity for every state that is stacked, but where the terms
    of the first one are.
    """
    new_states, terms = track.step(inside, steps, tuple(states))
    outputs = [state for state in new_states if isinstance(state, ir.Value)]
    own = [term for term in terms if isinstance(term, ir.Value) and term.producer() in inside.nodes]
    whole = inside.habits.stack_terms and len({*own, *outputs}) == len(terms) + len(outputs)
    for place, name in zip(track.stacked, _names_of_every(track), strict=True):
        outputs += own if whole and place == 0 else [inside.op("Identity", new_states[place], name=name)]
    for value in outputs:
        value.type, value.shape = ir.TensorType(inside.dtype), ir.Shape(span.state_shape(track.lead))
    return outputs


def _names_of(track: Track, outputs: Sequence[ir.Value]) -> list[str]:
    """For the results of a Scan or Loop whose body gives these."""
    names = _result_names(track)
    terms = 1 + len(outputs) - len(names)
    if terms > 1:
        first = len(track.state_names)
        names[first : first + 1] = ["Y_term"] * terms
    return names


def _emitted(e: Emitter, track: Track, results: Sequence[ir.Value]) -> Result:
    """Final states and what is stacked, of the results of a Scan or Loop."""
    finals, stacked = _parted(track, results)
    terms = 1 + len(stacked) - len(track.stacked)
    if terms > 1:
        stacked = (track.last(e, stacked[:terms], "Y"), *stacked[terms:])
    return finals, stacked


def _names_of_every(track: Track) -> list[str]:
    """For what is stacked of every step."""
    return ["Y" if place == 0 else f"every_{track.state_names[place]}" for place in track.stacked]


def _result_names(track: Track) -> list[str]:
    return [*(f"final_{name}" for name in track.state_names), *_names_of_every(track)]


def _flat(result: Result) -> list[Operand]:
    """Final states, then what is stacked: the order of the outputs of a Scan or Loop."""
    return [*result[0], *result[1]]


def _parted(track: Track, values: Sequence[Operand]) -> Result:
    """The inverse of `_flat`."""
    count = len(track.state_names)
    return tuple(values[:count]), tuple(values[count:])


def _with_lead(e: Emitter, track: Track, result: Result) -> Result:
    finals, every = result
    return finals, every if track.lead else tuple(e.unsqueeze(each, [1], "Y_direction") for each in every)


def _shaped(e: Emitter, y: Operand, track: Track, span: Span) -> Operand:
    """State the shape of what a Loop has stacked.

    After no trip at all every unknown size comes out as 0; and onnx's ReferenceEvaluator joins steps along their first
    axis instead of a new one. The elements are the same, in the same order. One Reshape says it all: onnxruntime makes
    one out of two in a row, and believes for it what the model declares of its output, true or not.
    """
    seq_length, batch_size = span.seq_length(), span.static_batch
    if batch_size is None and not isinstance(seq_length, int):
        if e.takes_runtime_shapes:  # a size of 0 keeps the one at its place, so no axis may come in between
            y = e.reshape_to(y, [seq_length, span.batch_size(), span.hidden_size], "Y_shaped")
        return e.unsqueeze(y, [1], "Y_direction")
    steps, rows = seq_length if isinstance(seq_length, int) else -1, -1 if batch_size is None else batch_size
    return e.reshape(y, [steps, *(track.lead or (1,)), rows, span.hidden_size], "Y_shaped")
