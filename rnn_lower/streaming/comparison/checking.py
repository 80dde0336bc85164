"""Compare a streaming model in random chunks with the original on whole sequences."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from rnn_lower.checking.compare import Comparison, has_content
from rnn_lower.checking.model_pair import ModelPair, OriginalFails
from rnn_lower.checking.runners import ORT
from rnn_lower.checking.samples import NoInputsError, first_result
from rnn_lower.errors import RnnLowerError
from rnn_lower.modelio import files
from rnn_lower.modelio.document import Document
from rnn_lower.proving import prover
from rnn_lower.proving.report import CheckReport
from rnn_lower.streaming.comparison.chunked_runs import CALLS, SET_SIZES, ChunkedRuns, Trial
from rnn_lower.streaming.comparison.floats import difference
from rnn_lower.streaming.plan import Plan
from rnn_lower.streaming.session import Feeds, StreamingSession
from rnn_lower.validation import check_numbers

LENGTHS = (5, 12, 1, 23, 40)
"""The lengths of whole runs, in chunks of minimal length."""

OTHERS = 60
"""The distance to the number of other inputs of the same kind: samples of these have the same scales and choices."""

Compared: TypeAlias = "tuple[Sequence[str], Sequence[Any], Sequence[Any]]"
"""The names of outputs, the expected values and the values found."""

PROOF_SECONDS = 5.0
"""CPU time for the proof of the lowered nodes."""


def check_streaming(
    original: Document, fused: Document, model: Any, plan: Plan, runs: int, seed: int, rtol: float, atol: float,
    whole_is_new: bool = False,
) -> CheckReport:  # fmt: skip
    """Compare whole runs of the original with runs of its streaming model in chunks of random length.

    fused: the streaming model before lowering; a short proof compares its nodes with the lowered ones.
    whole_is_new: whether `original` was made from the streaming model, by `unstream`.

    Raises RnnLowerError if the original does not run with sampled inputs, or if onnxruntime loads only the old model.
    """
    check_numbers(seed=seed, runs=runs, rtol=rtol, atol=atol)
    if plan.left:
        raise RnnLowerError(
            f"input '{plan.left[0]}' carries a state, but --check cannot determine which output returns it;"
            " drop --check, and compare with StreamingSession(..., states=...)"
        )
    document, _ = files.open_model(model)
    judge, runner = ModelPair(original, original), ModelPair(document, document)
    comparison, chunked = Comparison(rtol, atol), ChunkedRuns(original, document, plan, seed)
    try:
        for index in range(runs):
            if plan.inputs:
                trial = Trial(max(LENGTHS[index % len(LENGTHS)], chunked.remembered + index), (1,), mixed=2)
                compare(functools.partial(_in_chunks, chunked, index, trial, judge, runner), index, comparison)
            else:
                calls = functools.partial(_in_calls, chunked, judge, runner, ModelPair(fused, fused))
                compare(calls, index, comparison)
        for index, trial in enumerate(chunked.long_trials() if plan.inputs else (), runs):
            compare(functools.partial(_in_chunks, chunked, index, trial, judge, runner), index, comparison)
    except NoInputsError as error:
        whole = "new" if whole_is_new else "original"
        remedy = "" if whole_is_new else f"; {SET_SIZES}"
        raise RnnLowerError(f"the {whole} model does not run with the sampled inputs: {error}{remedy}") from None
    except OriginalFails as error:
        raise RnnLowerError(f"the streaming model does not run chunk by chunk: {error}") from None
    old, new = (runner, judge) if whole_is_new else (judge, runner)
    if old.judge == ORT and new.load_error:
        raise RnnLowerError(f"onnxruntime runs the model that was converted, but not the new one: {new.load_error}")
    proof = prover.quick_proof(fused, document, PROOF_SECONDS)
    nothing = comparison.nothing_compared({*plan.outputs}, True) or chunked.empty()
    located = () if proof is None else proof.differing(bool(proof.changed))  # folding, for example, moves nodes
    located += () if not (uneven := chunked.uneven()) else (uneven,)
    halves = sorted({state.dtype for state in plan.states} & {"FLOAT16", "BFLOAT16"})
    if halves and not comparison.ok:
        located += (f"each chunk boundary rounds states to {halves[0].lower()}; use --rtol and --atol to allow for it",)
    if not plan.inputs and not plan.states:
        nothing = nothing or "no run carried a state from one chunk to the next"
    elif not chunked.borders:
        nothing = nothing or "no run had more than one chunk"
    return CheckReport(
        comparison.reports(), judge.judge, runner.judge, runs, rtol, atol, nothing, located=located,
        chunks=chunked.chunks, borders=chunked.borders,
    )  # fmt: skip


def compare(draw: Callable[[int], list[Compared]], number: int, comparison: Comparison) -> None:
    """Add the results of `draw` for inputs with this number.

    Some operators amplify rounding, such as cos(atan2(y, x)), and it depends on the position of an element in a chunk.
    So a difference that may be rounding counts only if other inputs of the same kind show one, too.
    """
    results = draw(number)
    if not all(comparison.agrees(*each) for each in results) and not any(itertools.starmap(_differ, results)):
        with contextlib.suppress(NoInputsError):
            others = draw(number + OTHERS)
            results = others if others and all(comparison.agrees(*each) for each in others) else results
    for each in results:
        comparison.add(*each)


def _differ(_: Sequence[str], wanted: Sequence[Any], found: Sequence[Any]) -> bool:
    """Whether the difference of any output is more than rounding."""
    pairs = zip(wanted, found, strict=True)
    return any(isinstance(a, list) or difference(np.asarray(a), np.asarray(b)) for a, b in pairs)


def _in_chunks(
    chunked: ChunkedRuns, index: int, trial: Trial, judge: ModelPair, runner: ModelPair, number: int
) -> list[Compared]:
    """The results of a whole run and of chunks, for inputs with this number."""

    def whole_run(feeds: Feeds) -> tuple[Feeds, list[Any]]:
        results = judge.original_results(feeds)
        if why := judge.reads_nan(feeds):
            raise OriginalFails(why)
        return feeds, results

    candidates = chunked.samples(number, trial.steps, judge.nodes)
    try:
        feeds, results = first_result(candidates, whole_run, OriginalFails, lambda run: has_content(run[1]))
    except NoInputsError:
        if trial.is_long:
            return []
        raise
    names, compared = list(chunked.plan.outputs), list[Compared]()
    whole = dict(zip(judge.output_names, results, strict=True))
    for lengths in chunked.chunkings(feeds, index, trial):
        session = StreamingSession(chunked.made, run=runner.original_results)
        outputs = chunked.stream_through(session, feeds, lengths)
        pairs = zip(names, outputs, strict=True)
        wanted = [chunked.begun(name, sum(lengths), whole[name], result) for name, result in pairs]
        compared.append((names, wanted, outputs))
    if chunked.plan.reset is not None and not trial.is_long:
        reset = chunked.reset_results(lambda: StreamingSession(chunked.made, run=runner.original_results), feeds)
        for by_session, by_input in reset:
            compared.append(([*by_session], [*by_session.values()], [by_input[name] for name in by_session]))
    return compared


def _in_calls(
    chunked: ChunkedRuns, judge: ModelPair, runner: ModelPair, fused: ModelPair, number: int
) -> list[Compared]:
    """The results of consecutive runs, the first of them with the original, which forgets its states after each run."""
    candidates = chunked.samples(number, 0)
    feeds, expected = first_result(candidates, lambda feeds: (feeds, judge.original_results(feeds)), OriginalFails)
    names, compared = list(chunked.plan.outputs), list[Compared]()
    sessions = [StreamingSession(pair.original, run=pair.original_results) for pair in (fused, runner)]
    for chunk in chunked.calls(feeds, number):
        wanted, results = ([session.run(chunk)[name] for name in names] for session in sessions)
        compared.append((names, wanted, results))
    sessions[1].reset()
    first, whole = sessions[1].run(feeds), dict(zip(judge.output_names, expected, strict=True))
    compared.append((names, [whole[name] for name in names], [first[name] for name in names]))
    chunked.chunks, chunked.borders = chunked.chunks + CALLS + 1, chunked.borders + CALLS - 1
    return compared
