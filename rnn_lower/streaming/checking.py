"""Does a streaming model, chunk by chunk, give what the original gives for the whole? Random chunks show."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rnn_lower.checking import samples
from rnn_lower.checking.checker import OriginalFails, Pair
from rnn_lower.checking.compare import Comparison
from rnn_lower.errors import RnnLowerError
from rnn_lower.modelio import files
from rnn_lower.modelio.document import Document
from rnn_lower.proving import prover
from rnn_lower.proving.model_inputs import fixed_sizes
from rnn_lower.proving.report import CheckReport
from rnn_lower.streaming.plan import LAST, Plan
from rnn_lower.streaming.session import Feeds, StreamingSession
from rnn_lower.validation import check_numbers

LENGTHS = (5, 12, 1, 23, 40)
"""Chunks of the least length that make a whole run."""

LONGEST = 600
"""Steps up to which a run is made longer than what is remembered."""


def check_streaming(
    original: Document, fused: Document, made: Any, plan: Plan, runs: int, seed: int, rtol: float, atol: float
) -> CheckReport:  # fmt: skip
    """Compare whole runs of the original with runs chunk by chunk, of random lengths, of what was made of it.

    fused: the streaming form before its nodes were lowered; these are compared in exact arithmetic where that is cheap.
    Raises RnnLowerError when no inputs are found with which the original runs.
    """
    check_numbers(seed=seed, runs=runs, rtol=rtol, atol=atol)
    if plan.left:
        raise RnnLowerError(
            f"input '{plan.left[0]}' carries a state, and --check does not know which output to feed"
            " back; drop --check, and compare with StreamingSession(..., states=...)"
        )
    document, _ = files.open_model(made)
    if not plan.inputs:
        return _check_calls(original, fused, document, plan, (runs, seed, rtol, atol))
    judge, runner = Pair(original, original), Pair(document, document)
    comparison, names = Comparison(rtol, atol), list(plan.outputs)
    step, chunks, borders = least_step(document, plan), 0, 0
    for index in range(runs):
        more = max(LENGTHS[index % len(LENGTHS)], remembered(plan, step) + index)
        frames = whole_length(original, plan, step, unready(plan, step) + more)
        feeds, whole = _sampled(judge, plan, frames, seed, index, document)
        rng = np.random.default_rng([seed, index])
        for lengths in _chunkings(rng, frames_of(plan, feeds), step, fixed_step(document, plan) is not None):
            session = StreamingSession(document, run=runner.original_results)
            chunks, borders = chunks + len(lengths), borders + len(lengths) - 1
            try:
                results = stream_through(session, feeds, lengths)
            except OriginalFails as error:
                raise RnnLowerError(f"the streaming model does not run chunk by chunk: {error}") from None
            wanted = [whole[judge.output_names.index(name)] for name in names]
            comparison.add(names, [begun(plan, *pair) for pair in zip(names, wanted, results, strict=True)], results)
    located = prover.differing_nodes(fused, document)
    nothing = comparison.nothing_compared(set(names), True) or ("" if borders else "no run had more than one chunk")
    return CheckReport(
        comparison.reports(), judge.judge, runner.judge, runs, rtol, atol, nothing, located=located,
        chunks=chunks, borders=borders,
    )  # fmt: skip


CALLS = 6
"""Runs, one after another, of a model of which each is one step."""


def _check_calls(
    original: Document, fused: Document, made: Document, plan: Plan, tolerances: tuple[int, int, float, float]
) -> CheckReport:
    """Compare runs one after another, and the first of them with the original, which begins anew each time."""
    runs, seed, rtol, atol = tolerances
    judge, whole, runner = Pair(original, original), Pair(fused, fused), Pair(made, made)
    comparison, names = Comparison(rtol, atol), list(plan.outputs)
    for index in range(runs):
        sessions = [StreamingSession(one.original, run=one.original_results) for one in (whole, runner)]
        for feeds in calls(original, made, seed, index):
            wanted, results = ([session.run(feeds)[name] for name in names] for session in sessions)
            comparison.add(names, wanted, results)
        feeds = next(calls(original, made, seed, index))
        sessions[1].reset()
        first = sessions[1].run(feeds)
        found = dict(zip(judge.output_names, judge.original_results(feeds), strict=True))
        comparison.add(names, [found[name] for name in names], [first[name] for name in names])
    located = prover.differing_nodes(fused, made)
    nothing = comparison.nothing_compared(set(names), True) or (
        "" if plan.states else "no state was carried from chunk to chunk"
    )
    return CheckReport(
        comparison.reports(), judge.judge, runner.judge, runs, rtol, atol, nothing, located=located,
        chunks=runs * (CALLS + 1), borders=runs * (CALLS - 1),
    )  # fmt: skip


def calls(original: Document, made: Document, seed: int, index: int) -> Iterator[Feeds]:
    """Inputs for runs one after another, of the same shapes; the callers' states come with the first."""
    fixed, rng = fixed_sizes(original.model, made.proto), np.random.default_rng([seed, index])
    feeds = next(samples.Samples(original.model, seed, fixed).candidates(index))
    plan = StreamingSession(made, run=lambda _: []).plan
    theirs = {state.input for state in plan.states if state.first is None}
    for number in range(CALLS):
        yield {name: array for name, array in feeds.items() if not number or name not in theirs}
        feeds = {
            name: rng.uniform(-1, 1, array.shape).astype(array.dtype) if array.dtype.kind in "fV" else array
            for name, array in feeds.items()
        }


def whole_length(original: Document, plan: Plan, step: int, steps: int) -> int:
    """Frames of a whole run of so many steps; those of the original, where its length is fixed."""
    fixed = fixed_step(original, plan)
    if fixed is not None and fixed % step:
        raise RnnLowerError(
            f"the model has {fixed} frames, which is not a multiple of {step}, so chunks cannot cover a whole run"
        )
    return fixed or steps * step


def unready(plan: Plan, step: int) -> int:
    """So many steps give nothing yet, or what means nothing."""
    return -(-max([*plan.late.values(), *plan.warm_up.values()], default=0) // step)


def remembered(plan: Plan, step: int) -> int:
    """So many steps an output looks back at, so that less would show some of the first states only."""
    return min(-(-plan.reach // step), LONGEST)


def begun(plan: Plan, name: str, whole: Any, result: Any) -> Any:
    """What a run over the whole gives, without the frames that come when the stream goes on."""
    axis = plan.outputs[name]
    return np.take(whole, range(result.shape[axis]), axis) if name in plan.cut and isinstance(axis, int) else whole


def stream_through(session: StreamingSession, feeds: Feeds, lengths: Sequence[int]) -> list[Any]:
    """The outputs of a whole run, made chunk by chunk."""
    plan, begin, parts = session.plan, 0, []
    from_caller = {state.input for state in plan.states if state.first is None}
    for length in lengths:
        chunk = {name: array for name, array in feeds.items() if begin == 0 or name not in from_caller}
        for name, axis in plan.inputs.items():
            chunk[name] = np.take(feeds[name], range(begin, begin + length), axis)
        parts.append(session.run(chunk))
        begin += length
    found = []
    for name, what in plan.outputs.items():
        pieces = [part[name] for part in parts]
        found.append(
            pieces[-1] if what == LAST else pieces[0] if isinstance(what, str) else np.concatenate(pieces, what)
        )
    return found


def _sampled(judge: Pair, plan: Plan, frames: int, seed: int, index: int, made: Document) -> tuple[Feeds, list[Any]]:
    """Inputs for a whole run that the original takes, and what it makes of them."""
    fixed = {**fixed_sizes(judge.original.model, made.proto), **dict.fromkeys(plan.inputs.items(), frames)}
    why = ""
    for feeds in samples.Samples(judge.original.model, seed, fixed, judge.nodes).candidates(index):
        try:
            return feeds, judge.original_results(feeds)
        except OriginalFails as error:
            why = why or str(error)
    raise RnnLowerError(f"the original model does not run with the sampled inputs: {why}")


def frames_of(plan: Plan, feeds: Feeds) -> int:
    name, axis = next(iter(plan.inputs.items()))
    return int(feeds[name].shape[axis])


def fixed_step(document: Document, plan: Plan) -> int | None:
    """The only length of a chunk, None where it is free."""
    name, axis = next(iter(plan.inputs.items()))
    value = next(value for value in document.proto.graph.input if value.name == name)
    dim = value.type.tensor_type.shape.dim[axis]
    return dim.dim_value if dim.HasField("dim_value") else None


def least_step(document: Document, plan: Plan) -> int:
    """What chunks are a multiple of."""
    return fixed_step(document, plan) or plan.every


def _chunkings(rng: np.random.Generator, frames: int, step: int, is_fixed: bool) -> Iterator[list[int]]:
    """Lengths of chunks: all of the least length, two random ones, and the whole."""
    count = frames // step
    yield [step] * count
    if is_fixed:
        return
    for _ in range(2):
        cuts = np.flatnonzero(rng.integers(0, 3, count - 1) == 0) + 1
        edges = [0, *(int(cut) for cut in cuts), count]
        yield [step * (b - a) for a, b in itertools.pairwise(edges)]
    yield [frames]
