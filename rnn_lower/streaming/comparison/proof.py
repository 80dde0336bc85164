"""Prove that a streaming model, chunk by chunk, is the same function as the original on whole sequences.

Both models run on random elements of a field, without rounding. Recurrent nodes follow the ONNX specification, and
functions that are not polynomials are modeled as random functions. All outputs must be equal, and so must the final
states after chunks of different lengths.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lower.checking.samples import NoInputsError, first_result
from rnn_lower.driver.plan import document_without_sequences, inlined_document, read_nodes
from rnn_lower.errors import RnnLowerError
from rnn_lower.ir.walk import constant
from rnn_lower.modelio.document import Document
from rnn_lower.proving.exact.call import OutOfScopeError, WrongError, known
from rnn_lower.proving.exact.field import Array, Field
from rnn_lower.proving.exact.interpreter import NoStepsError
from rnn_lower.proving.model_inputs import fixed_sizes, overrides
from rnn_lower.proving.new_faults import new_faults
from rnn_lower.proving.report import DIFFERENT, OUT_OF_SCOPE, PROVED, number_of
from rnn_lower.proving.whole.whole_model import ModelInterpreter, limits_of, shapes_of, types_of
from rnn_lower.streaming.comparison.change_points import change_points_of
from rnn_lower.streaming.comparison.chunked_runs import CHUNKS, LONGEST, SET_SIZES, ChunkedRuns, Trial
from rnn_lower.streaming.comparison.floats import Rounding, difference_in_floats
from rnn_lower.streaming.data_flow import has_one_step
from rnn_lower.streaming.plan import Plan, fixed_step
from rnn_lower.streaming.rewriting import with_reach
from rnn_lower.streaming.session import Feeds, StreamingSession
from rnn_lower.validation import check_numbers

MORE = 7
"""Steps of a run in addition to the remembered ones."""

FAILURE = 1e-7
"""The probability that two different functions agree at one point: polynomials modulo a prime above 2^30."""


@dataclasses.dataclass(frozen=True)
class StreamProof:
    """The result ("proved", "not equal" or "out of scope"), its reason, and the numbers of chunks and borders."""

    result: str
    reason: str = ""
    outputs: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    points: int = 0
    chunks: int = 0
    borders: int = 0

    kind: ClassVar[str] = "prove"

    @property
    def ok(self) -> bool:
        """Whether all outputs and states are equal, across at least one border of chunks."""
        return self.result == PROVED and self.borders > 0

    @property
    def summary(self) -> dict[str, Any]:
        """The entries that precede the dataclass fields in the JSON output."""
        return {"bound": FAILURE**self.points if self.ok else 1.0}

    def lines(self, verbose: bool = False) -> list[str]:
        """The lines before the verdict: none, because one comparison covers all outputs and states."""
        return []

    @property
    def verdict(self) -> str:
        """The final line."""
        if not self.ok:
            nothing = "no chunk boundary was compared" if self.result == PROVED else self.result
            return f"NOT PROVED: {nothing}{self.reason and ': '}{self.reason}"
        return (
            f"proved: {number_of(len(self.outputs), 'output')} and {number_of(len(self.states), 'state')}, compared "
            f"over {self.chunks} chunks and {self.borders} chunk boundaries; the probability of error is below "
            f"{FAILURE**self.points:.1g}{self.reason and '; '}{self.reason}"
        )

    def __bool__(self) -> bool:
        return self.ok


def prove_streaming(
    original: Document, streaming: Document, plan: Plan, points: int = 2, seed: int = 0, seconds: float = 300.0,
    whole_is_new: bool = False,
) -> StreamProof:  # fmt: skip
    """Compare whole runs of the original with chunks of a streaming model at random points, and once in floats.

    seconds: CPU time of this thread, after which the result is "out of scope".
    whole_is_new: whether `original` was made from the streaming model, by `unstream`.
    """
    check_numbers(points=points, seed=seed)
    faults = _faults(original, streaming, plan, whole_is_new)
    original, streaming = (document_without_sequences(inlined_document(each)) for each in (original, streaming))
    plan = with_reach(plan, original)
    deadline, reason, weighs = time.thread_time() + seconds, "", False
    outputs, states = tuple(plan.outputs), tuple(state.output for state in plan.states)
    chunked = ChunkedRuns(original, streaming, plan, seed)

    def verdict(result: str, why: str) -> StreamProof:
        return StreamProof(result, why, outputs, states, points, chunked.chunks, chunked.borders)

    if faults:
        return verdict(DIFFERENT, faults[0])
    clips, declared = limits_of(original), shapes_of(original)
    narrow = types_of(original)
    if whole_is_new:  # its recurrent nodes may be lowered
        narrow |= {ir.DataType[state.dtype] for state in plan.states if state.dtype}
    try:
        changes = change_points_of(original, streaming, plan)
    except OutOfScopeError as error:
        return verdict(OUT_OF_SCOPE, str(error))
    for folded in (True, False):  # constants that were computed before, such as sums of biases, are rounded
        chunked = ChunkedRuns(original, streaming, plan, seed, changes)
        try:
            difference = ""
            for point in range(points):
                field = Field(seed * 1000 + point)
                models = [Rounding(field, document, folded, clips, deadline) for document in (original, streaming)]
                for model in models:
                    model.narrow, model.of_sizes = narrow, changes.functions
                    model.rounded = changes.known if folded else {}
                models[1].trusted = declared
                compare = _difference if plan.inputs else _difference_of_calls
                if difference := compare(chunked, point, field, models) or "":
                    break
            if not (difference := difference or chunked.uneven()):
                difference, left_out = difference_in_floats(chunked)
                limits = "; ".join(_limits(chunked, left_out))
                return verdict(OUT_OF_SCOPE, difference) if difference else verdict(PROVED, limits)
        except (OutOfScopeError, NoStepsError, MemoryError) as error:
            return verdict(OUT_OF_SCOPE, str(error) or "a Scan runs on an empty sequence")
        reason, weighs = reason or difference, weighs or any(model.weighs for model in models)
    if weighs:  # the mean of both branches, although only one of them updates its states
        return verdict(OUT_OF_SCOPE, "floats decide which branch of an If runs, and with it which states change")
    return verdict(DIFFERENT, reason)


def _faults(original: Document, streaming: Document, plan: Plan, whole_is_new: bool) -> list[str]:
    """Differences that no run shows: of outputs and their types, and faults of the model that is to be proved."""
    wholes, made = ({value.name: value for value in each.proto.graph.output} for each in (original, streaming))
    fed = {state.output for state in plan.states}
    faults = [f"the plan lists no output '{name}'" for name in wholes if name not in plan.outputs.keys() | fed]
    faults += [f"the original has no output '{name}'" for name in plan.outputs if name not in wholes]
    faults += [] if plan.outputs else ["the plan lists no outputs"]
    if not plan.inputs and not all(map(has_one_step, read_nodes(original.model, original.shape_info))):
        faults.append("the plan names no stream axis, but a recurrent node has several steps in a run")
    for name in wholes.keys() & made.keys():
        types = [each[name].type.tensor_type.elem_type for each in (made, wholes)]
        if types[0] != types[1]:
            named = map(onnx.TensorProto.DataType.Name, types)
            faults.append(f"output '{name}' has type {' instead of '.join(named)}")
    weights = original.model.graph.initializers
    for name, value in streaming.model.graph.initializers.items():  # no run reads all rows of a table
        there, here = constant(weights.get(name)), constant(value)
        if there is not None and here is not None and there.shape == here.shape and there.tobytes() != here.tobytes():
            faults.append(f"initializer '{name}' has changed")
    pair = (streaming, original) if whole_is_new else (original, streaming)
    return faults + new_faults(*pair)


def _limits(runs: ChunkedRuns, left_out: str) -> Iterator[str]:
    """What a proof does not cover."""
    if runs.plan.reach > LONGEST * runs.step:
        yield f"only for the last {LONGEST * runs.step} of {runs.plan.reach} frames on which an output depends"
    if left_out:
        yield left_out
    for (name, axis), size in fixed_sizes(runs.original.model, runs.made.proto).items():
        if name not in runs.plan.inputs or runs.plan.inputs[name] != axis:
            yield f"only for size {size} of axis {axis} of input '{name}', which the streaming model fixes"


def _difference(runs: ChunkedRuns, index: int, field: Field, models: Sequence[ModelInterpreter]) -> str | None:
    """The first difference between chunks and the whole sequence, or None; some runs of point 0 are long."""
    trials = [Trial(runs.remembered + MORE, CHUNKS, mixed=1)]
    further = (runs.short_trials, runs.long_trials, runs.trials_beyond, runs.trials_of_numbers) if index == 0 else ()
    for trial in itertools.chain(trials, *(make() for make in further)):
        try:
            feeds = _sampled(runs, index, trial, field, models[0])
        except NoInputsError as error:
            if trial.is_long:
                continue
            raise _not_sampled(error) from None
        if why := _difference_of_chunks(runs, field, models[1], feeds, runs.chunkings(feeds[0], index, trial)):
            return why
        if not trial.is_long and (why := _late(runs, field, models[0], *feeds)):
            return why
        if (trial.others or not trial.is_long) and (why := _no_reset(runs, field, models[1], feeds[0])):
            return why
    return None


def _sampled(
    runs: ChunkedRuns, index: int, trial: Trial, field: Field, original: ModelInterpreter
) -> tuple[Feeds, Feeds]:  # fmt: skip
    """Random inputs of a trial and the outputs of the original. Raises NoInputsError if it does not run."""
    there = {value.name for value in runs.made.proto.graph.input}
    listed = {value.name: value for value in runs.original.model.graph.inputs if value.name in there}
    drawn = overrides(field, runs.original.model, np.random.default_rng([runs.seed, index])) if index % 2 else {}
    instead = {name: array for name, array in drawn.items() if name in listed}
    floats = {name: array for name, array in instead.items() if array.dtype == np.uint64}

    def whole(drawn: tuple[Feeds, Feeds]) -> tuple[Feeds, Feeds]:
        chunk = _random_elements(field, drawn[0]) | drawn[1]
        for name, number in trial.numbers.items():
            shape = (chunk[name] if name in chunk else listed[name].const_value.numpy()).shape  # type: ignore[union-attr]
            chunk[name] = np.full(shape, number, bool if listed[name].dtype == ir.DataType.BOOL else np.int64)
        return chunk, dict(zip(_output_names(runs), original.outputs(chunk), strict=True))

    samples = runs.samples(index, trial.steps, others=trial.others)
    return first_result(((feeds, each) for feeds in samples for each in (instead, floats)), whole, WrongError)


def _difference_of_chunks(
    runs: ChunkedRuns, field: Field, streaming: ModelInterpreter, sampled: tuple[Feeds, Feeds],
    chunkings: Iterable[list[int]],
) -> str | None:  # fmt: skip
    """The first difference of outputs and final states, or None."""
    (feeds, wanted), end, last = sampled, Feeds(), {state.output: state.input for state in runs.plan.states}
    for lengths in chunkings:
        session = _session(runs, field, streaming)
        try:
            results = runs.stream_through(session, feeds, lengths)
        except (WrongError, RnnLowerError) as error:
            return f"in chunks of {_shown(lengths)}: {error}"
        for name, result in zip(runs.plan.outputs, results, strict=True):
            if why := _parts(runs.begun(name, sum(lengths), wanted[name], result), result):
                return f"with chunks of {_shown(lengths)} frames, output '{name}' {why}"
        held = _elements(field, session.state)
        for name in wanted.keys() & last.keys() - runs.plan.outputs.keys():
            if why := _parts(wanted[name], held[last[name]]):
                return f"with chunks of {_shown(lengths)} frames, the final value of state '{name}' {why}"
        for name, state in held.items():
            if why := _parts(end.get(name, state), state):
                return (
                    f"state '{name}' depends on the chunk lengths: after chunks of {_shown(lengths)} frames, it {why}"
                )
        end = held
    return None


def _late(runs: ChunkedRuns, field: Field, original: ModelInterpreter, feeds: Feeds, wanted: Feeds) -> str:
    """An output that is later than the plan declares, or "": a missing frame depends on no later input frame."""
    if not any(runs.missing.values()) or fixed_step(runs.original.proto, runs.plan) is not None:
        return ""
    after = {name: field.random(feeds[name].shape) for name in runs.plan.inputs if feeds[name].dtype == np.uint64}
    longer = {
        name: np.concatenate([feeds[name], after.get(name, np.flip(feeds[name], axis))], axis)
        for name, axis in runs.plan.inputs.items()
    }
    try:
        more = dict(zip(_output_names(runs), original.outputs(feeds | longer), strict=True))
    except WrongError:  # too long for it
        return ""
    for name, missing in runs.missing.items():
        axis = int(runs.plan.outputs[name])
        first = wanted[name].shape[axis] + (runs.plan.late.get(name, 0) - missing) * runs.rows[name]
        there = first < wanted[name].shape[axis]
        if there and np.array_equal(wanted[name].take(first, axis), more[name].take(first, axis)):
            return f"output '{name}' lacks frame {first}, which depends on no later input frame"
    return ""


def _no_reset(runs: ChunkedRuns, field: Field, streaming: ModelInterpreter, feeds: Feeds) -> str:
    """How rows that the input `reset` resets differ from rows that start anew, or ""."""
    if runs.plan.reset is None:
        return ""
    for wanted, results in runs.reset_results(lambda: _session(runs, field, streaming), feeds):
        for name, array in _elements(field, wanted).items():
            if why := _parts(array, _elements(field, results)[name]):
                return f"after input '{runs.plan.reset}' has reset rows, '{name}' {why}"
    return ""


def _session(runs: ChunkedRuns, field: Field, streaming: ModelInterpreter) -> StreamingSession:
    """A session on field elements, also of the initial states."""
    session = StreamingSession(runs.made.proto, run=lambda chunk: streaming.outputs(_elements(field, chunk)))
    states = (
        state if state.first is None else dataclasses.replace(state, first=_elements(field, {"": state.first})[""])
        for state in session.plan.states
    )
    session.plan = dataclasses.replace(session.plan, states=tuple(states))
    return session


def _difference_of_calls(runs: ChunkedRuns, index: int, field: Field, models: Sequence[ModelInterpreter]) -> str | None:
    """The first difference between consecutive runs and those of the original, whose nodes remember their states."""
    original, streaming = models

    def one_run(feeds: Feeds) -> Feeds:
        original.outputs(_random_elements(field, feeds))
        return feeds

    try:
        sampled = first_result(runs.samples(index, 0), one_run, WrongError)
    except NoInputsError as error:
        raise _not_sampled(error) from None
    original.held = {}
    session = _session(runs, field, streaming)
    for number, feeds in enumerate(runs.calls(sampled, index)):
        chunk, held = _random_elements(field, feeds), _elements(field, session.state)
        try:
            results = session.run(chunk)
            wanted = dict(zip(_output_names(runs), original.outputs({**held, **chunk}), strict=True))
        except (WrongError, RnnLowerError) as error:
            return f"in run {number}: {error}"
        runs.chunks, runs.borders = runs.chunks + 1, runs.borders + (number > 0)
        for name in runs.plan.outputs:
            if why := _parts(wanted[name], results[name]):
                return f"output '{name}' of run {number} {why}"
    for state in runs.plan.states:
        if state.shape and not any(
            np.array_equal(session.state[state.input], array) for array in original.held.values()
        ):
            return f"the value of state '{state.input}' is not equal to any state of a node in the original model"
    return None


def _not_sampled(why: NoInputsError) -> OutOfScopeError:
    return OutOfScopeError(f"the original model cannot be evaluated with sampled inputs: {why}; {SET_SIZES}")


def _output_names(runs: ChunkedRuns) -> list[str]:
    return [str(value.name) for value in runs.original.model.graph.outputs]


def _shown(lengths: Sequence[int]) -> str:
    text = ", ".join(map(str, lengths[:6]))
    return text + (" ..." if len(lengths) > 6 else "")


def _parts(expected: Array, result: Array) -> str:
    """The difference of two arrays in words, or nothing."""
    if expected.shape != result.shape:
        return f"has shape {list(result.shape)} instead of {list(expected.shape)}"
    indices = np.argwhere(expected != result)
    return f"differs from the expected value at index {indices[0].tolist()}" if len(indices) else ""


def _elements(field: Field, chunk: Mapping[str, Any]) -> Feeds:
    """The arrays of a session as field elements, integers and booleans."""
    arrays = {name: np.asarray(array) for name, array in chunk.items()}
    return {name: array if array.dtype == np.uint64 else known(field, array) for name, array in arrays.items()}


def _random_elements(field: Field, feeds: Feeds) -> Feeds:
    """Replace the floats of sampled inputs by random field elements."""
    return {
        name: field.random(array.shape) if array.dtype.kind in "fV" else _elements(field, {name: array})[name]
        for name, array in feeds.items()
    }
