"""Is a streaming model, chunk by chunk, the same function as the original over the whole? Exact arithmetic shows.

Both run on random elements of a field, where nothing is rounded: recurrent nodes by the ONNX text, functions that are
no polynomials as random ones. Every output has to be equal, and the states that chunks of other lengths end with.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from rnn_lower.checking import samples
from rnn_lower.errors import RnnLowerError
from rnn_lower.modelio.document import Document
from rnn_lower.proving.field import Array, Field
from rnn_lower.proving.interpreter import NoStepsError
from rnn_lower.proving.model_inputs import fixed_sizes
from rnn_lower.proving.operators import OutOfScopeError, WrongError, known
from rnn_lower.proving.report import DIFFERENT, OUT_OF_SCOPE, PROVED
from rnn_lower.proving.whole_model import ModelInterpreter, inlined_document, limits_of
from rnn_lower.streaming.checking import (
    begun,
    calls,
    fixed_step,
    frames_of,
    least_step,
    remembered,
    stream_through,
    unready,
    whole_length,
)
from rnn_lower.streaming.plan import Plan
from rnn_lower.streaming.session import Feeds, StreamingSession
from rnn_lower.validation import check_numbers

MORE = 7
"""Steps beyond all that is remembered."""

FAILURE = 1e-7
"""The chance that two functions that differ agree at one point: values of polynomials modulo a prime above 2^30."""


@dataclasses.dataclass(frozen=True)
class StreamProof:
    """The verdict: "proved", "not equal" or "out of scope", and why; how many chunks and borders were compared."""

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
        """Whether all outputs and states were compared, at a border of chunks at least, and are equal."""
        return self.result == PROVED and self.borders > 0

    @property
    def summary(self) -> dict[str, Any]:
        """What stands first in JSON, beside the fields."""
        return {"bound": FAILURE**self.points if self.ok else 1.0}

    def lines(self, verbose: bool = False) -> list[str]:
        """What to read before the verdict: nothing, since all outputs and states are one comparison."""
        return []

    @property
    def verdict(self) -> str:
        """One line to end with."""
        if not self.ok:
            return f"NOT PROVED: {self.result}: {self.reason or 'no border of chunks was compared'}"
        return (
            f"proved: {len(self.outputs)} output(s) and {len(self.states)} state(s) in {self.chunks} chunks with"
            f" {self.borders} borders, with a probability of error below {FAILURE**self.points:.1g}"
        )

    def __bool__(self) -> bool:
        return self.ok


@dataclasses.dataclass
class _Count:
    chunks: int = 0
    borders: int = 0


def prove_streaming(
    original: Document, made: Document, plan: Plan, points: int = 2, seed: int = 0, seconds: float = 300.0
) -> StreamProof:
    """Compare whole runs of the original with chunks of a streaming model at random points.

    seconds: of this thread, after which what is not proved is out of scope.
    """
    check_numbers(points=points, seed=seed)
    original, made = inlined_document(original), inlined_document(made)
    deadline, reason = time.thread_time() + seconds, ""
    outputs, states = tuple(plan.outputs), tuple(state.output for state in plan.states)
    for folded in (True, False):  # a constant sum of biases is rounded where the lowered graph holds it
        count = _Count()
        try:
            found = None
            for point in range(points):
                found = found or _difference(original, made, plan, (point, seed, folded, deadline), count)
        except (OutOfScopeError, NoStepsError, MemoryError) as error:
            text = str(error) or "a Scan of no steps"
            return StreamProof(OUT_OF_SCOPE, text, outputs, states, points, count.chunks, count.borders)
        if found is None:
            return StreamProof(PROVED, "", outputs, states, points, count.chunks, count.borders)
        reason = reason or found
    return StreamProof(DIFFERENT, reason, outputs, states, points, count.chunks, count.borders)


def _difference(
    original: Document, made: Document, plan: Plan, point: tuple[int, int, bool, float], count: _Count
) -> str | None:
    """Where chunks and the whole part, or None."""
    index, seed, folded, deadline = point
    field = Field(seed * 1000 + index)
    limits = limits_of(original)
    whole, chunked = (ModelInterpreter(field, one, folded, limits, deadline) for one in (original, made))
    if not plan.inputs:
        return _difference_of_calls(whole, chunked, field, (original, made, plan), (seed, index), count)
    feeds, wanted = _sampled(whole, field, original, made, plan, index, seed)
    if wanted is None:
        raise OutOfScopeError(f"the original cannot be computed with the sampled inputs: {feeds}")
    names = [str(value.name) for value in original.model.graph.outputs]
    step, end = least_step(made, plan), Feeds()
    for lengths in chunkings(
        np.random.default_rng([seed, index]), frames_of(plan, feeds), step, fixed_step(made, plan)
    ):
        session = StreamingSession(made.proto, run=lambda chunk: chunked.outputs(_elements(field, chunk)))
        try:
            results = stream_through(session, feeds, lengths)
        except (WrongError, RnnLowerError) as error:
            return f"in chunks of {_shown(lengths)}: {error}"
        count.chunks, count.borders = count.chunks + len(lengths), count.borders + len(lengths) - 1
        for name, result in zip(plan.outputs, results, strict=True):
            if why := _parts(begun(plan, name, wanted[names.index(name)], result), result):
                return f"output '{name}' in chunks of {_shown(lengths)} {why}"
        held = _elements(field, session.state)
        for name, state in held.items():
            if why := _parts(end.get(name, state), state):
                return f"state '{name}' after chunks of {_shown(lengths)} {why} after others"
        end = held
    return None


def _difference_of_calls(
    whole: ModelInterpreter, chunked: ModelInterpreter, field: Field, models: tuple[Document, Document, Plan],
    seeds: tuple[int, int], count: _Count,
) -> str | None:  # fmt: skip
    """Where runs one after another part from those of the original, whose nodes remember their states."""
    original, made, plan = models
    whole.held = {}
    session = StreamingSession(made.proto, run=lambda chunk: chunked.outputs(_elements(field, chunk)))
    names = [str(value.name) for value in original.model.graph.outputs]
    for number, feeds in enumerate(calls(original, made, *seeds)):
        chunk = {
            name: field.random(array.shape) if array.dtype.kind in "fV" else _elements(field, {name: array})[name]
            for name, array in feeds.items()
        }
        held = _elements(field, session.state)
        try:
            found = session.run(chunk)
            wanted = dict(zip(names, whole.outputs({**held, **chunk}), strict=True))
        except (WrongError, RnnLowerError) as error:
            return f"in run {number}: {error}"
        count.chunks, count.borders = count.chunks + 1, count.borders + (number > 0)
        for name in plan.outputs:
            if why := _parts(wanted[name], found[name]):
                return f"output '{name}' of run {number} {why}"
    for state in plan.states:
        if state.shape and not any(np.array_equal(session.state[state.input], one) for one in whole.held.values()):
            return f"state '{state.input}' belongs to no node"
    return None


def _shown(lengths: Sequence[int]) -> str:
    text = ", ".join(map(str, lengths[:6]))
    return text + (" ..." if len(lengths) > 6 else "")


def _parts(expected: Array, result: Array) -> str:
    """How two arrays differ, or nothing."""
    if expected.shape != result.shape:
        return f"is of shape {list(result.shape)}, and {list(expected.shape)}"
    places = np.argwhere(expected != result)
    return f"differs at {places[0].tolist()} from what it is" if len(places) else ""


def _elements(field: Field, chunk: Mapping[str, Any]) -> Feeds:
    """Arrays of a session as what the interpreter computes with; elements are as they are."""
    arrays = {name: np.asarray(array) for name, array in chunk.items()}
    return {name: array if array.dtype == np.uint64 else known(field, array) for name, array in arrays.items()}


def _sampled(
    whole: ModelInterpreter, field: Field, original: Document, made: Document, plan: Plan, index: int, seed: int
) -> tuple[Any, list[Array] | None]:
    """Inputs with random elements in place of floats, and what the original makes of them."""
    step = least_step(made, plan)
    frames = whole_length(original, plan, step, unready(plan, step) + remembered(plan, step) + MORE)
    fixed = {**fixed_sizes(original.model, made.proto), **dict.fromkeys(plan.inputs.items(), frames)}
    why = ""
    for feeds in samples.Samples(original.model, seed, fixed).candidates(index):
        chunk = {
            name: field.random(array.shape) if array.dtype.kind in "fV" else _elements(field, {name: array})[name]
            for name, array in feeds.items()
        }
        try:
            return chunk, whole.outputs(chunk)
        except WrongError as error:
            why = why or str(error)
    return why, None


def chunkings(rng: np.random.Generator, frames: int, step: int, only: int | None) -> Iterator[list[int]]:
    """Lengths of chunks: all of one, two and three steps, mixed ones, and the whole."""
    count = frames // step
    if only is not None:
        yield [only] * (frames // only)
        return
    for size in (1, 2, 3):
        yield [step * n for n in [size] * (count // size) + [count % size] * (count % size > 0)]
    cuts = np.flatnonzero(rng.integers(0, 2, count - 1) == 0) + 1
    edges = [0, *(int(cut) for cut in cuts), count]
    yield [step * (b - a) for a, b in itertools.pairwise(edges)]
    yield [frames]
