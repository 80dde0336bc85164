"""Run two models, each on a runtime that supports it reliably, and compare their outputs."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from collections.abc import Sequence
from typing import Any

from rnn_lower.checking import input_files, samples
from rnn_lower.checking.compare import Comparison
from rnn_lower.checking.model_pair import ModelPair, OriginalFails
from rnn_lower.checking.node_runs import NodeRuns
from rnn_lower.checking.samples import Feeds
from rnn_lower.proving import prover
from rnn_lower.proving.model_inputs import fixed_sizes, required_inputs
from rnn_lower.proving.report import CheckReport, Proof
from rnn_lower.proving.whole.thresholds import counted_numbers
from rnn_lower.raising.raise_loops import raised_document
from rnn_lower.shapes.shape_info import plain_dim
from rnn_lower.validation import check_numbers, check_texts

FURTHER_TRIES = 5
"""Additional rounds of sampled inputs for recurrent nodes that are neither proved nor tested enough."""

PROOF_SECONDS = 10.0
"""CPU time for the proofs before the runs."""


def compare_models(
    original: Any, lowered: Any, inputs: Any, runs: int, seed: int, rtol: float, atol: float, exact: bool | Proof,
    on: str | None = None, counterexample: str | os.PathLike[str] | None = None,
) -> CheckReport:  # fmt: skip
    """The check of two models; see `rnn_lower.check`. exact: whether to prove first, or an existing proof."""
    check_numbers(seed=seed, runs=runs, rtol=rtol, atol=atol)
    check_texts(on=on)
    if counterexample is not None:
        input_files.check_counterexample(counterexample, inputs)
    models = ModelPair(original, lowered, on)
    proof = exact if isinstance(exact, Proof) else None
    if exact is True:
        proof = prover.quick_proof(models.original, models.lowered, PROOF_SECONDS, raised_document)
    provided = [] if inputs is None else [input_files.load_inputs(inputs, models.original.model)]
    models.is_proved = is_same = proof is not None and bool(proof.nodes) and proof.ok
    comparison = Comparison(rtol, atol, rounding=is_same)
    agree = functools.partial(comparison.agrees, models.output_names)
    node_runs = NodeRuns(models.original, models.nodes, agree)
    runs = 1 if provided else runs
    sampled = _sampled(models, seed, is_same, on)
    unproved = models.unproved(proof)
    selecting = [index for index in unproved if models.selects_others(index)]
    count, differing = 0, list[Feeds]()

    def unreached() -> list[int]:
        return [index for index in unproved if index in selecting or not node_runs.is_enough(index)]

    def compare(feeds: Feeds, expected: list[Any], actual: list[Any]) -> None:
        nonlocal count
        count += 1
        moved = models.moved_results(feeds) if rtol > 0 and not agree(expected, actual) else ()
        comparison.add(models.output_names, expected, actual, moved)
        if unreached():  # the evaluator may take minutes for a large model
            node_runs.observe(feeds)
        differing[:] = [] if comparison.ok else [*differing, feeds][:1]

    for index in range(runs):
        compare(*models.run(provided or sampled.candidates(index), sampled.keep, agree))

    tries = itertools.chain.from_iterable(sampled.candidates(index) for index in range(runs, runs + FURTHER_TRIES))

    def is_done() -> bool:
        return {*unreached()} == {*selecting} and (not unproved or comparison.shows_differences(models.touched))

    while not is_done() and (feeds := next(tries, None)) is not None:
        with contextlib.suppress(OriginalFails):
            compare(feeds, *models.results(feeds, agree))
    varied = is_same or bool(provided) or count == 1 or models.is_constant()
    computed = proof is not None and bool(proof.changed) and comparison.ok  # another tool may have moved nodes since
    return CheckReport(
        comparison.reports(), models.judge, models.runner, runs, rtol, atol,
        "" if is_same else _nothing(comparison, models, varied),
        unreached=tuple(models.nodes[index].describe() for index in unreached()),
        located=() if proof is None else proof.differing(computed),
        unseen=proof.changed if proof is not None and comparison.ok else (),
        proved=() if proof is None or proof.changed else proof.proved,
        runs_of_unproved=tuple(f"{models.nodes[index].describe()}: {node_runs.describe(index)}" for index in unproved),
        counterexample=_saved(counterexample, differing), needs_sizes=models.needs_sizes,
    )  # fmt: skip


def _saved(counterexample: str | os.PathLike[str] | None, differing: Sequence[Feeds]) -> str:
    """The path to which this saved the first inputs with which the models differ, or "" if it saved none."""
    if counterexample is None or not differing:
        return ""
    input_files.save_inputs(counterexample, differing[0])
    return os.fspath(counterexample)


def _nothing(comparison: Comparison, models: ModelPair, varied: bool) -> str:
    """Why agreement would be meaningless, or "". varied: outputs may be the same in all runs."""
    nothing = comparison.nothing_compared(models.touched, varied)
    empty = [value.name for value in models.original.model.graph.inputs if 0 in map(plain_dim, value.shape or ())]
    if nothing and empty:
        nothing += f"; input '{empty[0]}' declares a size of 0, which onnxruntime takes as the actual size"
        nothing += "; declare the size as unknown"
    return nothing


def _sampled(models: ModelPair, seed: int, is_same: bool, on: str | None) -> samples.Samples:
    """Inputs for both models. is_same: whether they are proved to compute the same at any length."""
    old, new = models.original.model, models.lowered.model
    fixed = fixed_sizes(old, models.lowered.proto)
    sampled = samples.Samples(old, seed, fixed, models.nodes, required_inputs(new))
    if on is not None:  # other runtimes take initializers for constants
        sampled.defaults.clear()
    if not is_same:
        sampled.reach_beyond(counted_numbers(new).keys() - counted_numbers(old).keys())
    return sampled
