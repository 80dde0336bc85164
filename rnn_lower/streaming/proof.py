"""Prove that a streaming model, chunk by chunk, is the same function as the original on whole sequences.

Both models run on random elements of a field, without rounding. Recurrent nodes follow the ONNX specification, and
functions that are not polynomials are modeled as random functions. All outputs must be equal, and so must the final
states after chunks of different lengths.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from rnn_lower.driver.plan import inlined_document
from rnn_lower.errors import RnnLowerError
from rnn_lower.modelio.document import Document
from rnn_lower.proving.field import Array, Field
from rnn_lower.proving.interpreter import NoStepsError
from rnn_lower.proving.model_inputs import overrides
from rnn_lower.proving.operators import OutOfScopeError, WrongError, known
from rnn_lower.proving.report import DIFFERENT, OUT_OF_SCOPE, PROVED, number_of
from rnn_lower.proving.whole_model import ModelInterpreter, limits_of
from rnn_lower.streaming.chunked_runs import ChunkedRuns
from rnn_lower.streaming.plan import Plan
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
            return f"NOT PROVED: {self.result}: {self.reason or 'no chunk boundary was compared'}"
        return (
            f"proved: {number_of(len(self.outputs), 'output')} and {number_of(len(self.states), 'state')}, compared "
            f"over {self.chunks} chunks and {self.borders} chunk boundaries; the probability of error is below "
            f"{FAILURE**self.points:.1g}"
        )

    def __bool__(self) -> bool:
        return self.ok


def prove_streaming(
    original: Document, streaming: Document, plan: Plan, points: int = 2, seed: int = 0, seconds: float = 300.0
) -> StreamProof:
    """Compare whole runs of the original with chunks of a streaming model at random points.

    seconds: CPU time of this thread, after which the result is "out of scope".
    """
    check_numbers(points=points, seed=seed)
    original, streaming = inlined_document(original), inlined_document(streaming)
    deadline, reason = time.thread_time() + seconds, ""
    outputs, states = tuple(plan.outputs), tuple(state.output for state in plan.states)

    def verdict(result: str, why: str) -> StreamProof:
        return StreamProof(result, why, outputs, states, points, chunked.chunks, chunked.borders)

    for folded in (True, False):  # a constant sum of biases is rounded if the lowered graph contains it
        chunked = ChunkedRuns(original, streaming, plan, seed)
        try:
            difference = None
            for point in range(points):
                field = Field(seed * 1000 + point)
                limits = limits_of(original)
                models = [
                    ModelInterpreter(field, document, folded, limits, deadline) for document in (original, streaming)
                ]
                compare = _difference if plan.inputs else _difference_of_calls
                difference = difference or compare(chunked, point, field, models)
        except (OutOfScopeError, NoStepsError, MemoryError) as error:
            return verdict(OUT_OF_SCOPE, str(error) or "a Scan runs on an empty sequence")
        if difference is None:
            return verdict(PROVED, "")
        reason = reason or difference
    return verdict(DIFFERENT, reason)


def _difference(runs: ChunkedRuns, index: int, field: Field, models: Sequence[ModelInterpreter]) -> str | None:
    """The first difference between chunks and the whole sequence, or None."""
    original, streaming = models

    listed = {value.name for value in runs.made.proto.graph.input}
    drawn = overrides(field, runs.original.model, np.random.default_rng([runs.seed, index])) if index % 2 else {}
    instead = {name: array for name, array in drawn.items() if name in listed and array.dtype == np.uint64}

    def whole(feeds: Feeds) -> tuple[Feeds, dict[str, Array]]:
        chunk = _random_elements(field, feeds) | instead
        return chunk, dict(zip(_output_names(runs), original.outputs(chunk), strict=True))

    sampled = runs.sampled(index, runs.remembered + MORE, whole, WrongError)
    if isinstance(sampled, str):
        raise OutOfScopeError(f"the original model cannot be evaluated with sampled inputs: {sampled}")
    (feeds, wanted), end = sampled, Feeds()
    for lengths in runs.chunkings(feeds, index, sizes=(1, 2, 3), mixed=1):
        session = StreamingSession(runs.made.proto, run=lambda chunk: streaming.outputs(_elements(field, chunk)))
        try:
            results = runs.stream_through(session, feeds, lengths)
        except (WrongError, RnnLowerError) as error:
            return f"in chunks of {_shown(lengths)}: {error}"
        for name, result in zip(runs.plan.outputs, results, strict=True):
            if why := _parts(runs.begun(name, wanted[name], result), result):
                return f"with chunks of {_shown(lengths)} frames, output '{name}' {why}"
        held = _elements(field, session.state)
        for name, state in held.items():
            if why := _parts(end.get(name, state), state):
                return (
                    f"state '{name}' depends on the chunk lengths: after chunks of {_shown(lengths)} frames, it {why}"
                )
        end = held
    return None


def _difference_of_calls(runs: ChunkedRuns, index: int, field: Field, models: Sequence[ModelInterpreter]) -> str | None:
    """The first difference between consecutive runs and those of the original, whose nodes remember their states."""
    original, streaming = models
    original.held = {}
    session = StreamingSession(runs.made.proto, run=lambda chunk: streaming.outputs(_elements(field, chunk)))
    for number, feeds in enumerate(runs.calls(index)):
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
