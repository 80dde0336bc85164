"""Run two models side by side, each on a runtime that can be trusted with it, and compare what comes out."""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime

from rnn_lower.asked import check_numbers, check_texts
from rnn_lower.checking import execution_probe, guard, perturbation, runtimes, samples
from rnn_lower.checking.compare import Comparison
from rnn_lower.checking.coverage import Coverage
from rnn_lower.checking.runners import ORT, REFERENCE, Change, Run, open_onnxruntime, open_reference
from rnn_lower.checking.samples import Feeds
from rnn_lower.driver.plan import read_nodes
from rnn_lower.errors import RnnLowerError, UnsupportedError, one_line
from rnn_lower.ir.walk import default_opset, recurrent_nodes, subgraphs
from rnn_lower.lowering.node import RecurrentNode
from rnn_lower.modelio import external_data, files
from rnn_lower.modelio.document import Document
from rnn_lower.proving import prover
from rnn_lower.proving.report import CheckReport
from rnn_lower.shapes.shape_info import plain_dim
from rnn_lower.transforms.fold import dead_nodes
from rnn_lower.transforms.inline import inlined

FURTHER_TRIES = 5
"""How often all kinds of inputs are tried for recurrent nodes that have not run."""

INSTEAD = "--prove does without"
"""What compares models that onnxruntime cannot run."""


def compare_models(
    original: Any,
    lowered: Any,
    inputs: Any,
    runs: int,
    seed: int,
    rtol: float,
    atol: float,
    allow_unreached: bool,
    exact: bool,
    on: str | None = None,
) -> CheckReport:
    """See `rnn_lower.check`."""
    check_numbers(seed=seed, runs=runs, rtol=rtol, atol=atol)
    check_texts(on=on)
    models = Pair(original, lowered, on)
    fixed = samples.fixed_sizes(models.original.model, models.lowered.proto)
    given = [] if inputs is None else [samples.load_inputs(inputs, models.original.model)]
    comparison, coverage = Comparison(rtol, atol), Coverage(models.original)
    runs = 1 if given else runs
    sampled = samples.Samples(models.original.model, seed, fixed, models.nodes)
    sets = 1 if given else sampled.sets_in_a_run

    def took(feeds: Feeds) -> None:
        sampled.keep(feeds)
        coverage.add(feeds)

    for index, part in itertools.product(range(runs), range(sets)):
        models.add_to(comparison, *models.run(given or sampled.candidates(index, part), took))
    _reach_more(models, sampled, comparison, runs)
    touched = _touched(models.original.model)
    # What depends on no input is the same in all runs, and all there is to compare.
    varied = bool(given) or runs * sets == 1 or not (touched or set(models.output_names)) & _fed(models.original.model)
    nothing = comparison.nothing_compared(touched, varied)
    if nothing and (empty := [value.name for value in models.original.model.graph.inputs if _is_empty(value)]):
        nothing += f"; input '{empty[0]}' declares a size of 0, which onnxruntime takes at its word"
    reports = comparison.reports()
    same = all(report.ok for report in reports)
    prove = not same or (exact and prover.is_cheap(models.original))
    return CheckReport(
        reports, models.judge, models.runner, runs, rtol, atol, nothing,
        unreached=tuple(node.describe() for node in models.unreached()), allow_unreached=allow_unreached,
        located=prover.located(models.original, models.lowered, fresh=same) if prove else (),
        missed=coverage.missed(),
    )  # fmt: skip


def _is_empty(value: ir.Value) -> bool:
    return 0 in map(plain_dim, value.shape or ())


def _reach_more(models: Pair, sampled: samples.Samples, comparison: Comparison, runs: int) -> None:
    """Try further inputs for nodes that have not run, and compare those that make more of them run."""
    tries = itertools.chain.from_iterable(sampled.candidates(index) for index in range(runs, runs + FURTHER_TRIES))
    before = models.unreached()
    while before and (feeds := next(tries, None)) is not None:
        with contextlib.suppress(OriginalFails):
            expected = models.original_results(feeds)
            after = models.unreached()
            if len(after) < len(before):
                models.add_to(comparison, feeds, expected, models.lowered_results(feeds))
            before = after


class Pair:
    """The original and the lowered model; `judge` and `runner` name what runs them. on: the runtime of the lowered."""

    def __init__(self, original: Any, lowered: Any, on: str | None = None) -> None:
        self.original, self._original_path = files.open_model(original)
        self.lowered, self._lowered_path = files.open_model(lowered)
        for document in (self.original, self.lowered):
            if document.folder is None and any(map(external_data.is_external, external_data.tensors(document.proto))):
                raise RnnLowerError("the weights are in files, and the folder is unknown; give the path of the model")
        self.output_names = [value.name for value in self.original.proto.graph.output]
        theirs = [value.name for value in self.lowered.proto.graph.output]
        if self.output_names != theirs:
            told = f"the models have different outputs: {self.output_names} and {theirs}"
            raise RnnLowerError(f"{_named(self._lowered_path)}{told}")
        try:
            self.nodes = self._read_nodes()
        except RnnLowerError as error:
            raise type(error)(f"{_named(self._original_path)}{error}") from None
        self.judge, self.runner = ORT, ORT
        self._run_original: Run | None = None
        self._run_lowered: Run | None = None
        self._run_nudged: Run | None = None
        self._on = on
        if on is not None:
            self._run_lowered = runtimes.open_runtime(on, self.lowered)
            self.runner = f"{on} {runtimes.version(on)}"
        self._unknown = ""
        self._refused = False
        self._flags: dict[int, str] = {}
        self._flagged: set[int] = set()
        refused = next((reason for node in self.nodes if (reason := refused_by_onnxruntime(node))), None)
        if refused:
            self.judge = f"{REFERENCE} ({refused})"

    def _read_nodes(self) -> list[RecurrentNode]:
        """Of the original; one with functions of which only each call tells what they compute runs inlined."""
        try:
            return read_nodes(self.original.model, self.original.facts)
        except UnsupportedError:
            if not self.original.proto.functions:
                raise
        self.original, self._original_path = Document(inlined(self.original.proto), self.original.folder), None
        return read_nodes(self.original.model, self.original.facts)

    def run(
        self, candidates: Iterable[Feeds], keep: Callable[[Feeds], None] = lambda _: None
    ) -> tuple[Feeds, list[Any], list[Any]]:
        """The first inputs that the original takes, and the results of both; `keep` is called with what it takes."""
        first_error, overflowed = "", None
        for feeds in candidates:
            try:
                expected = self.original_results(feeds)
            except OriginalFails as failure:
                first_error = first_error or str(failure)
                continue
            keep(feeds)
            # Where values overflow, fused kernels go ways of their own; tamer inputs tell more.
            if all(map(_is_finite, expected)) or not all(map(_is_finite, feeds.values())):
                return feeds, expected, self.lowered_results(feeds)
            overflowed = overflowed or (feeds, expected)
        if overflowed is not None:
            return *overflowed, self.lowered_results(overflowed[0])
        raise RnnLowerError(f"{_named(self._original_path)}{self._why_not(first_error)}")

    def add_to(self, comparison: Comparison, feeds: Feeds, expected: list[Any], actual: list[Any]) -> None:
        """One run; what a rounding decides is no difference."""
        places, undecided = perturbation.differing(expected, actual), {}
        if places and self.judge == ORT:
            with contextlib.suppress(Exception):  # runtimes raise whatever they raise, and then nothing is excused
                self._run_nudged = self._run_nudged or self._open_nudged()
                run = functools.partial(self._run_nudged, feeds)
                undecided = perturbation.undecided(run, places, expected, actual)
        comparison.add(self.output_names, expected, actual, undecided)

    def _open_nudged(self) -> Run:
        def change(proto: onnx.ModelProto) -> None:
            if guard.needed(self.nodes):
                guard.add(proto)
            perturbation.add(proto)

        return open_onnxruntime(self.original, change=change)

    def _why_not(self, error: str) -> str:
        if self._unknown:
            return (
                f"{ORT} does not know the operator {self._unknown}; the original model can be neither run nor checked"
            )
        if "No corresponding Numpy type" in error:
            return f"{ORT} cannot hand over an input or output of this type to be compared; {INSTEAD}"
        wanted = "; ".join(map(_declaration, samples.required_inputs(self.original.model)))
        return f"the original model does not run with the inputs: {error}; give others (--inputs X.npz with {wanted})"

    def unreached(self) -> list[RecurrentNode]:
        """Nodes that have run with no inputs so far although some might make them; those left as they are not."""
        silent = sorted(set(self._flags) - self._flagged)
        if not silent:
            return []
        left = {name for node, _ in recurrent_nodes(self.lowered.model) for name in _results(node)}
        nodes = [self.nodes[index] for index in silent if index not in self._dead]
        return [node for node in nodes if not left & set(_results(node.node))]

    @functools.cached_property
    def _dead(self) -> set[int]:
        """Nodes in branches that are never taken, whatever the inputs."""
        return dead_nodes(self.original.outline)

    def original_results(self, feeds: Feeds) -> list[Any]:
        """Raises OriginalFails when the original does not run with these inputs."""
        try:
            if self._run_original is None:
                self._run_original = self._open_original()
            try:
                results = self._run_original(feeds)
            except Exception as error:
                if guard.NAME not in str(error):
                    raise
                self.judge = f"{REFERENCE} (an empty sequence or batch)"
                self._run_original = open_reference(self.original, self._probe)
                results = self._run_original(feeds)
        except Exception as error:  # runtimes raise whatever they raise
            raise OriginalFails(one_line(error)) from None
        count = len(self.output_names)
        for index, flag in zip(self._flags, results[count:], strict=True):
            self._flagged |= {index} if np.any(flag) else set()
        return results[:count]

    def _probe(self, proto: onnx.ModelProto) -> None:
        self._flags = execution_probe.add(proto)

    def _open_original(self) -> Run:
        if self.judge != ORT:
            return open_reference(self.original, self._probe)
        changes: list[Change] = [guard.add] if guard.needed(self.nodes) else []
        changes += [self._probe] if execution_probe.nested(self.original.proto) else []

        def change(proto: onnx.ModelProto) -> None:
            for one in changes:
                one(proto)

        try:
            return open_onnxruntime(self.original, self._original_path, change if changes else None)
        except Exception as error:
            self._refused = True
            self._unknown = self._unknown or _unknown_operator(error)
            self.judge = f"{REFERENCE} (onnxruntime: {one_line(error)[:120]})"
            return open_reference(self.original, self._probe)

    def lowered_results(self, feeds: Feeds) -> list[Any]:
        if self._run_lowered is None:
            try:
                self._run_lowered = open_onnxruntime(self.lowered, self._lowered_path)
            except Exception as error:
                if (default_opset({e.domain: e.version for e in self.lowered.proto.opset_import}) or 0) >= 7:
                    told = f"the lowered model does not load on {ORT}: {one_line(error)}"
                    if self._refused:
                        told = f"{ORT} loads neither the original nor the lowered model: {one_line(error)}; {INSTEAD}"
                    raise RnnLowerError(f"{_named(self._lowered_path)}{told}") from None
                self.runner = REFERENCE
                self._run_lowered = open_reference(self.lowered)
        try:
            return self._run_lowered(feeds)
        except Exception as error:
            where = "" if self._on is None else f" on {self.runner}"
            told = f"the lowered model does not run{where}: {one_line(error)}"
            raise RnnLowerError(f"{_named(self._lowered_path)}{told}") from None


def _unknown_operator(error: Exception) -> str:
    """The operator that onnxruntime says it does not have, or nothing."""
    found = re.search(r"(\w+)\(-?\d+\) is not a registered function/op|No Op registered for (\w+)", str(error))
    return "" if found is None else found[1] or found[2]


def _results(node: ir.Node) -> tuple[str, ...]:
    return tuple(str(value.name) for value in node.outputs if value.name)


def _declaration(value: ir.Value) -> str:
    """An input for people: name, type and shape."""
    if not isinstance(value.type, ir.TensorType):
        return f"{value.name}: no tensor"
    shape = " of any shape" if value.shape is None else f"[{', '.join(_shown(dim) for dim in value.shape)}]"
    return f"{value.name}: {value.type.dtype.name.lower()}{shape}"


def _shown(dim: int | ir.SymbolicDim) -> str:
    known = plain_dim(dim)
    return "?" if known is None else str(known)


def _named(path: str | None) -> str:
    return "" if path is None else f"{path}: "


class OriginalFails(Exception):
    """The original does not run with these inputs; others may do."""


def refused_by_onnxruntime(node: RecurrentNode) -> str | None:
    """Why onnxruntime cannot run the fused node, or None. Some of these end the process rather than fail."""
    if node.version < 7:
        return f"{node.op_type} version {node.version}"
    if node.layout:
        return "layout 1"
    if node.dtype in (ir.DataType.DOUBLE, ir.DataType.BFLOAT16):
        return node.dtype.name.lower()
    if 0 in (node.seq_length, node.batch_size, node.input_size):
        return "an empty sequence, batch or input"
    attributes = node.node.attributes
    if node.op_type == "RNN" and "sequence_lens" in node.inputs and _before(1, 26):
        return "sequence_lens of an RNN, which onnxruntime gets wrong for length 0 before version 1.26"
    if node.op_type == "RNN" and _before(1, 29) and _needs_defaults(node):
        return "an RNN activation without its alpha or beta, whose defaults onnxruntime gets wrong before version 1.29"
    if "hidden_size" not in attributes:
        return "hidden_size missing"
    if node.op_type != "RNN" and "clip" in attributes and node.clip is None:
        return "clip 0"
    return None


def _before(*version: int) -> bool:
    """Python 3.10 has older versions of onnxruntime only."""
    return tuple(map(int, onnxruntime.__version__.split(".")[:2])) < version


def _needs_defaults(node: RecurrentNode) -> bool:
    """Whether a function of an RNN that takes alpha or beta is not given it."""
    said = node.node.attributes
    names = {name.lower() for name in said["activations"].value} if "activations" in said else set()
    alpha = names & {"elu", "hardsigmoid", "leakyrelu"} and "activation_alpha" not in said
    return bool(alpha or (names & {"hardsigmoid"} and "activation_beta" not in said))


def _touched(model: ir.Model) -> set[str]:
    """Names of outputs that depend on a recurrent node of the main graph or of a body in it."""
    recurrent = {node for node, _ in recurrent_nodes(model)}
    calls = {key for key, function in model.functions.items() if recurrent & set(function.all_nodes())}
    return _downstream(model, set(), lambda node: node in recurrent or node.op_identifier() in calls)


def _fed(model: ir.Model) -> set[str]:
    """Names of outputs that depend on an input that has to be given."""
    return _downstream(model, set(samples.required_inputs(model)), lambda _: False)


def _downstream(model: ir.Model, values: set[ir.Value], counts: Callable[[ir.Node], bool]) -> set[str]:
    """Names of outputs that depend on some of these values, or on a node that counts."""
    found = set(values)
    for node in model.graph:
        inside = [node, *(inner for _, body in subgraphs(node) for inner in body.all_nodes())]
        if any(counts(one) or not found.isdisjoint(one.inputs) for one in inside):
            found |= set(node.outputs)
    return {str(value.name) for value in model.graph.outputs if value in found}


def _is_finite(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_finite, value))
    array = np.asarray(value)
    return array.dtype.kind not in "fcV" or bool(np.all(np.abs(array.astype(np.complex128)) < 1e30))
