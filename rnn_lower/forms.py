"""Many steps: carry a step over time as Scan, Loop or a straight line. No gates, no weights.

A form takes `Track`s, one per direction, and gives back for each its final states and, when wanted, the first state
of every step stacked over time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import onnx_ir as ir

from rnn_lower.constants import constant
from rnn_lower.emitter import Operand
from rnn_lower.errors import UnsupportedError
from rnn_lower.primitives import Emitter

State = tuple[Operand, ...]
Size = int | ir.Value


@dataclasses.dataclass(frozen=True)
class Stream:
    """What one step reads: values [seq_length, *shape]. single: the time axis (of length 1) is already gone."""

    values: Operand
    dtype: ir.DataType
    shape: tuple[int | None, ...]
    single: bool = False


@dataclasses.dataclass(frozen=True)
class Track:
    """One direction: `step` maps what it reads at one time and its states to its new states.

    initial: [batch_size, hidden_size] per state; None is the zero state.
    reverse: time runs from seq_length - 1 to 0; results still lie at the times they belong to.
    stacked: whether the first state of every step is wanted.
    """

    name: str
    step: Callable[[Emitter, Sequence[Operand], State], State]
    streams: Sequence[Stream]
    initial: State
    state_names: Sequence[str]
    reverse: bool
    stacked: bool


@dataclasses.dataclass(frozen=True)
class Span:
    """How long and wide the sequences are; run-time sizes are emitted only when a form asks for them.

    static_batch: the batch size when it is known, else None.
    """

    seq_length: Callable[[], Size]
    batch_size: Callable[[], Size]
    static_batch: int | None
    hidden_size: int

    @property
    def state_shape(self) -> tuple[int | None, int]:
        """As a body declares it: known sizes or nothing, since symbolic names in bodies confuse some runtimes."""
        return (self.static_batch, self.hidden_size)

    def states(self, e: Emitter, track: Track) -> list[Operand]:
        """The initial states with zeros where nothing was given."""
        return [e.zeros(self.batch_size(), self.hidden_size) if state is None else state for state in track.initial]


Result = tuple[State, Operand]
"""Final states [batch_size, hidden_size], stacked first states [seq_length, batch_size, hidden_size] or None."""

Form = Callable[[Emitter, Sequence[Track], Span], list[Result]]


def scan(e: Emitter, tracks: Sequence[Track], span: Span) -> list[Result]:
    """All tracks in one Scan (opset 9 and up); reverse tracks by the scan directions.

    onnxruntime's Scan refuses a sequence without steps, so where that can happen it is not reached.
    """
    if e.habits.scan_per_direction and len(tracks) > 1:
        return [result for track in tracks for result in scan(e, [track], span)]
    length = span.seq_length()
    if length == 0:
        return unroll(e, tracks, span)
    if isinstance(length, int) or not e.habits.guard_empty_scan:
        return _scan(e, tracks, span)
    names = _result_names(tracks)
    some = e.op("Less", constant(0, ir.DataType.INT64), length, name="has_steps")
    span.batch_size()  # asked for outside of the branches
    values = e.when(
        some,
        lambda inside: _in_order(_scan(inside, tracks, span)),
        lambda inside: _in_order([_no_steps(inside, track, span) for track in tracks]),
        names,
    )
    return _results(tracks, values)


def _scan(e: Emitter, tracks: Sequence[Track], span: Span) -> list[Result]:
    backwards = [track.reverse and not e.habits.flip_outside_scan for track in tracks]
    inside = e.body()
    states, steps = _inputs(inside, tracks, span)
    new_states, stacked = _run(inside, tracks, steps, states)
    initial = [state for track in tracks for state in span.states(e, track)]
    streams = [
        _flipped(e, stream.values, track, span, track.reverse and not backward)
        for track, backward in zip(tracks, backwards, strict=True)
        for stream in track.streams
    ]
    directions = {
        "scan_input_directions": [int(b) for b, track in zip(backwards, tracks, strict=True) for _ in track.streams],
        "scan_output_directions": [int(b) for b, track in zip(backwards, tracks, strict=True) if track.stacked],
    }
    body = _graph(
        e, [*_flat(states), *_flat(steps)], [*_flat(new_states), *(y for y in stacked if y is not None)], inside, span
    )
    results = e.op_multi(
        "Scan", [*initial, *streams], _result_names(tracks), body=body, num_scan_inputs=len(streams),
        **{name: value for name, value in directions.items() if any(value)},
    )  # fmt: skip
    return [
        (finals, _flipped(e, y, track, span, track.reverse and not backward))
        for (finals, y), track, backward in zip(_results(tracks, results), tracks, backwards, strict=True)
    ]


def loop(e: Emitter, tracks: Sequence[Track], span: Span) -> list[Result]:
    """All tracks in one Loop (every opset); reverse tracks read flipped sequences."""
    sources = [[_flipped(e, stream.values, track, span, track.reverse) for stream in track.streams] for track in tracks]
    inside = e.body()
    trip = inside.new_value("trip", ir.DataType.INT64, [])
    going_on = inside.new_value("going_on", ir.DataType.BOOL, [])
    states = [_state_inputs(inside, track, span) for track in tracks]
    steps = []
    for track, values in zip(tracks, sources, strict=True):
        with inside.scope(track.name):
            steps.append([inside.gather(value, trip, "step") for value in values])
    new_states, stacked = _run(inside, tracks, steps, states)
    still_going_on = inside.op("Identity", going_on, name="still_going_on")
    body = _graph(
        e, [trip, going_on, *_flat(states)], [*_flat(new_states), *(y for y in stacked if y is not None)],
        inside, span, first_output=still_going_on,
    )  # fmt: skip
    length = span.seq_length()
    count = constant(length, ir.DataType.INT64) if isinstance(length, int) else length
    initial = [state for track in tracks for state in span.states(e, track)]
    results = e.op_multi(
        "Loop", [count, constant(True, ir.DataType.BOOL), *initial], _result_names(tracks), body=body
    )  # fmt: skip
    return [
        (finals, _flipped(e, _shaped(e, y, span), track, span, track.reverse))
        for (finals, y), track in zip(_results(tracks, results), tracks, strict=True)
    ]


def unroll(e: Emitter, tracks: Sequence[Track], span: Span) -> list[Result]:
    """A straight line of seq_length steps; the first step of a zero state needs no recurrent product."""
    seq_length = span.seq_length()
    assert isinstance(seq_length, int)
    results: list[Result] = []
    for track in tracks:
        with e.scope(track.name):
            results.append(_unroll_track(e, track, span, seq_length))
    return results


def _unroll_track(e: Emitter, track: Track, span: Span, seq_length: int) -> Result:
    if seq_length == 0:
        return _no_steps(e, track, span)
    state = track.initial
    stacked: list[Operand] = []
    counts: list[int] = []
    for t in reversed(range(seq_length)) if track.reverse else range(seq_length):
        with e.scope(f"t{t}"):
            index = constant(t, ir.DataType.INT64)
            step = [s.values if s.single else e.gather(s.values, index, "step") for s in track.streams]
            state = track.step(e, step, state)
            stacked.append(state[0])
        counts.append(len(e.nodes))
        if len(counts) == 2:
            _check_count(e, counts, seq_length)
    if not track.stacked:
        return state, None
    if track.reverse:
        stacked.reverse()
    rows = e.concat(stacked, 0, "rows")
    batch_size = -1 if span.static_batch is None else span.static_batch
    return state, e.reshape(rows, [seq_length, batch_size, span.hidden_size], "Y")


def _no_steps(e: Emitter, track: Track, span: Span) -> Result:
    """The streams are as empty as the result has to be, and at least as wide."""
    empty = e.slice(track.streams[0].values, 2, 0, span.hidden_size, "empty") if track.stacked else None
    return tuple(span.states(e, track)), empty


def _check_count(e: Emitter, counts: Sequence[int], seq_length: int) -> None:
    """All steps but the first are alike, so that two of them tell how many nodes there will be."""
    expected = counts[1] + (seq_length - 2) * (counts[1] - counts[0])
    if e.max_nodes is not None and expected > e.max_nodes:
        raise UnsupportedError(
            f"unrolling {seq_length} steps takes {expected} nodes, {e.max_nodes} are left of the limit;"
            " use form scan or loop, or raise the limit (--max-nodes)"
        )


FORMS: dict[str, Form] = {"scan": scan, "loop": loop, "unroll": unroll}


def _inputs(inside: Emitter, tracks: Sequence[Track], span: Span) -> tuple[list[list[ir.Value]], list[list[ir.Value]]]:
    """Body inputs of a Scan: states of all tracks, what one step reads of all tracks."""
    steps = []
    for track in tracks:
        with inside.scope(track.name):
            steps.append([inside.new_value("step", stream.dtype, stream.shape) for stream in track.streams])
    return [_state_inputs(inside, track, span) for track in tracks], steps


def _state_inputs(inside: Emitter, track: Track, span: Span) -> list[ir.Value]:
    with inside.scope(track.name):
        return [inside.new_value(f"previous_{name}", inside.dtype, span.state_shape) for name in track.state_names]


def _run(
    inside: Emitter, tracks: Sequence[Track], steps: Sequence[Sequence[Operand]], states: Sequence[Sequence[Operand]]
) -> tuple[list[State], list[Operand]]:
    """The steps of all tracks inside a body. A value must not be two outputs of one graph, hence Identity for Y."""
    new_states: list[State] = []
    stacked: list[Operand] = []
    for track, step, state in zip(tracks, steps, states, strict=True):
        with inside.scope(track.name):
            new_states.append(track.step(inside, step, tuple(state)))
            stacked.append(inside.op("Identity", new_states[-1][0], name="Y") if track.stacked else None)
    return new_states, stacked


def _graph(
    e: Emitter, inputs: Sequence[ir.Value], outputs: Sequence[Operand], inside: Emitter, span: Span,
    first_output: ir.Value | None = None,
) -> ir.Graph:  # fmt: skip
    values = [value for value in outputs if isinstance(value, ir.Value)]
    for value in values:
        value.type, value.shape = ir.TensorType(e.dtype), ir.Shape(span.state_shape)
    if first_output is not None:
        first_output.type, first_output.shape = ir.TensorType(ir.DataType.BOOL), ir.Shape([])
        values.insert(0, first_output)
    return e.graph(inputs, values, inside, "body")


def _flat(lists: Sequence[Sequence[Operand]]) -> list[ir.Value]:
    return [value for values in lists for value in values if isinstance(value, ir.Value)]


def _result_names(tracks: Sequence[Track]) -> list[str]:
    finals = [f"{track.name}/final_{name}" for track in tracks for name in track.state_names]
    return finals + [f"{track.name}/Y" for track in tracks if track.stacked]


def _in_order(results: Sequence[Result]) -> list[Operand]:
    """The outputs of a Scan or Loop: states of all tracks, then stacked values; the inverse of `_results`."""
    finals = [state for states, _ in results for state in states]
    return finals + [y for _, y in results if y is not None]


def _results(tracks: Sequence[Track], values: Sequence[ir.Value]) -> list[Result]:
    """Sort such outputs by track."""
    rest = iter(values)
    finals = [tuple(next(rest) for _ in track.state_names) for track in tracks]
    return [(final, next(rest) if track.stacked else None) for final, track in zip(finals, tracks, strict=True)]


def _flipped(e: Emitter, values: Operand, track: Track, span: Span, flip: bool) -> Operand:
    if not flip or values is None:
        return values
    with e.scope(track.name):
        return e.flip(values, span.seq_length())


def _shaped(e: Emitter, y: Operand, span: Span) -> Operand:
    """State the shape of what a Loop has stacked.

    After no trip at all every unknown size comes out as 0; and onnx's ReferenceEvaluator joins steps along their first
    axis instead of a new one. The elements are the same, in the same order.
    """
    seq_length, batch_size = span.seq_length(), span.static_batch
    if y is None:
        return None
    if batch_size is None and not isinstance(seq_length, int):
        if not e.takes_runtime_shapes:
            return y
        return e.reshape_to(y, [seq_length, span.batch_size(), span.hidden_size], "Y_shaped")
    rows = -1 if batch_size is None else batch_size
    return e.reshape(y, [seq_length if isinstance(seq_length, int) else -1, rows, span.hidden_size], "Y_shaped")
