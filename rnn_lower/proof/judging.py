"""Run two models side by side, each on a runtime that can be trusted with it, and compare what comes out."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir

from rnn_lower.errors import RnnLowerError, one_line
from rnn_lower.model import files, tensors
from rnn_lower.model.facts import plain_dim
from rnn_lower.model.folding import dead_nodes
from rnn_lower.model.scopes import default_opset, recurrent_nodes, subgraphs
from rnn_lower.model.session import read_nodes
from rnn_lower.proof import guard, reached, samples
from rnn_lower.proof.report import CheckReport, OutputReport
from rnn_lower.proof.runners import ORT, REFERENCE, Change, Run, open_onnxruntime, open_reference
from rnn_lower.proof.samples import Feeds
from rnn_lower.recurrent.node import RecurrentNode

FURTHER_TRIES = 30
"""Sets of inputs that are tried for recurrent nodes that have not run."""


def compare_models(
    original: Any, lowered: Any, inputs: Any, runs: int, seed: int, rtol: float, atol: float, allow_unreached: bool
) -> CheckReport:
    """See `rnn_lower.check`."""
    for name, number, least in (("seed", seed, 0), ("runs", runs, 1), ("rtol", rtol, 0), ("atol", atol, 0)):
        if not isinstance(number, (int, float)) or (name in ("seed", "runs") and not isinstance(number, int)):
            raise RnnLowerError(f"{name} is {number!r}; it must be a number")
        if not number >= least:
            raise RnnLowerError(f"{name} is {number:g}; it must be {least} or more")
    models = Pair(original, lowered)
    fixed = samples.fixed_sizes(models.original.model, models.lowered.proto)
    given = [] if inputs is None else [samples.load_inputs(inputs, models.original.model)]
    comparison = Comparison(rtol, atol)
    runs = 1 if given else runs
    if given:
        comparison.add(models.output_names, *models.run(given))
        sets = 1
    else:
        sampled = samples.Samples(models.original.model, seed, fixed, models.nodes)
        sets = sampled.sets_in_a_run
        for index, part in itertools.product(range(runs), range(sets)):
            comparison.add(models.output_names, *models.run(sampled.candidates(index, part), sampled.keep))
        _reach_more(models, sampled, comparison, runs)
    touched = _touched(models.original.model)
    # What depends on no input is the same in all runs, and all there is to compare.
    varied = bool(given) or runs * sets == 1 or not (touched or set(models.output_names)) & _fed(models.original.model)
    nothing = comparison.nothing_compared(touched, varied)
    if nothing and (empty := [value.name for value in models.original.model.graph.inputs if _is_empty(value)]):
        nothing += f"; input '{empty[0]}' declares a size of 0, which onnxruntime takes at its word"
    return CheckReport(
        comparison.reports(), models.judge, models.runner, runs, rtol, atol, nothing,
        unreached=tuple(node.describe() for node in models.unreached()), allow_unreached=allow_unreached,
    )  # fmt: skip


def _is_empty(value: ir.Value) -> bool:
    return 0 in map(plain_dim, value.shape or ())


def _reach_more(models: Pair, sampled: samples.Samples, comparison: Comparison, runs: int) -> None:
    """Try further inputs for nodes that have not run, and compare those that make more of them run."""
    for index in range(runs, runs + FURTHER_TRIES):
        before = models.unreached()
        if not before:
            return
        for feeds in itertools.islice(sampled.candidates(index), 2):
            with contextlib.suppress(_OriginalFails):
                expected = models.original_results(feeds)
                if len(models.unreached()) < len(before):
                    comparison.add(models.output_names, expected, models.lowered_results(feeds))
                break


class Pair:
    """The original and the lowered model; `judge` and `runner` name what runs them."""

    def __init__(self, original: Any, lowered: Any) -> None:
        self.original, self._original_path = files.open_model(original)
        self.lowered, self._lowered_path = files.open_model(lowered)
        for document in (self.original, self.lowered):
            if document.folder is None and any(map(tensors.is_external, tensors.tensors(document.proto))):
                raise RnnLowerError("the weights are in files, and the folder is unknown; give the path of the model")
        self.output_names = [value.name for value in self.original.proto.graph.output]
        theirs = [value.name for value in self.lowered.proto.graph.output]
        if self.output_names != theirs:
            told = f"the models have different outputs: {self.output_names} and {theirs}"
            raise RnnLowerError(f"{_named(self._lowered_path)}{told}")
        try:
            self.nodes = read_nodes(self.original.model, self.original.outline)
        except RnnLowerError as error:
            raise type(error)(f"{_named(self._original_path)}{error}") from None
        self.judge, self.runner = ORT, ORT
        self._run_original: Run | None = None
        self._run_lowered: Run | None = None
        self._unknown = ""
        self._flags: dict[int, str] = {}
        self._flagged: set[int] = set()
        refused = next((reason for node in self.nodes if (reason := refused_by_onnxruntime(node))), None)
        if refused:
            self.judge = f"{REFERENCE} ({refused})"

    def run(
        self, candidates: Iterable[Feeds], keep: Callable[[Feeds], None] = lambda _: None
    ) -> tuple[list[Any], list[Any]]:
        """Results of both for the first inputs that the original takes, which `keep` is called with."""
        first_error, overflowed = "", None
        for feeds in candidates:
            try:
                expected = self.original_results(feeds)
            except _OriginalFails as failure:
                first_error = first_error or str(failure)
                continue
            keep(feeds)
            # Where values overflow, fused kernels go ways of their own; tamer inputs tell more.
            if all(map(_is_finite, expected)) or not all(map(_is_finite, feeds.values())):
                return expected, self.lowered_results(feeds)
            overflowed = overflowed or (expected, feeds)
        if overflowed is not None:
            return overflowed[0], self.lowered_results(overflowed[1])
        raise RnnLowerError(f"{_named(self._original_path)}{self._why_not(first_error)}")

    def _why_not(self, error: str) -> str:
        if self._unknown:
            return (
                f"{ORT} does not know the operator {self._unknown}; the original model can be neither run nor checked"
            )
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
        """Raises _OriginalFails when the original does not run with these inputs."""
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
            raise _OriginalFails(one_line(error)) from None
        count = len(self.output_names)
        for index, flag in zip(self._flags, results[count:], strict=True):
            self._flagged |= {index} if np.any(flag) else set()
        return results[:count]

    def _probe(self, proto: onnx.ModelProto) -> None:
        self._flags = reached.add(proto)

    def _open_original(self) -> Run:
        if self.judge != ORT:
            return open_reference(self.original, self._probe)
        changes: list[Change] = [guard.add] if guard.needed(self.nodes) else []
        changes += [self._probe] if reached.nested(self.original.proto) else []

        def change(proto: onnx.ModelProto) -> None:
            for one in changes:
                one(proto)

        try:
            return open_onnxruntime(self.original, self._original_path, change if changes else None)
        except Exception as error:
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
                    raise RnnLowerError(f"{_named(self._lowered_path)}{told}") from None
                self.runner = REFERENCE
                self._run_lowered = open_reference(self.lowered)
        try:
            return self._run_lowered(feeds)
        except Exception as error:
            told = f"the lowered model does not run: {one_line(error)}"
            raise RnnLowerError(f"{_named(self._lowered_path)}{told}") from None


def _unknown_operator(error: Exception) -> str:
    """The operator that onnxruntime says it does not have, or nothing."""
    found = re.search(r"(\w+)\(-?\d+\) is not a registered function/op|No Op registered for (\w+)", str(error))
    return "" if found is None else found[1] or found[2]


def _results(node: ir.Node) -> tuple[str, ...]:
    return tuple(str(value.name) for value in node.outputs if value.name)


def _declaration(value: ir.Value) -> str:
    """An input for people: name, type and shape."""
    dtype = "" if value.dtype is None else value.dtype.name.lower()
    shape = "of any shape" if value.shape is None else f"[{', '.join(_shown(dim) for dim in value.shape)}]"
    return f"{value.name}: {dtype}{shape}"


def _shown(dim: int | ir.SymbolicDim) -> str:
    known = plain_dim(dim)
    return "?" if known is None else str(known)


def _named(path: str | None) -> str:
    return "" if path is None else f"{path}: "


class _OriginalFails(Exception):
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
    if "hidden_size" not in attributes:
        return "hidden_size missing"
    if node.op_type != "RNN" and "clip" in attributes and node.clip is None:
        return "clip 0"
    return None


class Comparison:
    """Collects the differences per output over several runs."""

    def __init__(self, rtol: float, atol: float) -> None:
        self._rtol, self._atol = rtol, atol
        self._reports: dict[str, OutputReport] = {}
        self._first: dict[str, Any] = {}
        self._filled: set[str] = set()
        self._varied: set[str] = set()

    def nothing_compared(self, touched: set[str], varied: bool) -> str:
        """Why agreement would say nothing, or nothing.

        touched: outputs that recurrent nodes have a part in.  varied: outputs need not differ from run to run.
        """
        names = touched & self._reports.keys() or self._reports.keys()
        told = "every output" if names == self._reports.keys() else "every output of a recurrent node"
        if names and not self._filled & names:
            return f"{told} is empty, or holds no finite number"
        if names and not varied and not self._varied & names:
            return f"{told} is the same in all runs, whatever the inputs"
        return ""

    def add(self, names: Sequence[str], expected: Sequence[Any], actual: Sequence[Any]) -> None:
        for name, wanted, got in zip(names, expected, actual, strict=True):
            new = compare(name, wanted, got, self._rtol, self._atol)
            self._filled |= {name} if _has_content(wanted) else set()
            first = self._first.setdefault(name, wanted)
            self._varied |= set() if _identical(first, wanted) else {name}
            old = self._reports.get(name, new)
            self._reports[name] = dataclasses.replace(
                new,
                max_abs_error=max(old.max_abs_error, new.max_abs_error),
                max_rel_error=max(old.max_rel_error, new.max_rel_error),
                ok=old.ok and new.ok,
                reason=old.reason or new.reason,
            )

    def reports(self) -> tuple[OutputReport, ...]:
        return tuple(self._reports.values())


def _identical(a: Any, b: Any) -> bool:
    if isinstance(a, list):
        return len(a) == len(b) and all(map(_identical, a, b))
    return np.shape(a) == np.shape(b) and np.asarray(a).tobytes() == np.asarray(b).tobytes()


def _has_content(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_has_content, value))
    array = np.asarray(value)
    return array.size > 0 and (array.dtype.kind not in "fcV" or bool(np.any(np.isfinite(array.astype(np.complex128)))))


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


def compare(name: str, expected: Any, actual: Any, rtol: float, atol: float) -> OutputReport:
    """One output of one run: floating-point numbers within tolerance, everything else equal."""
    if isinstance(expected, list) != isinstance(actual, list):
        return OutputReport(name, (), float("inf"), float("inf"), False, "one is a sequence")
    if isinstance(expected, list):  # a sequence
        parts = [compare(name, e, a, rtol, atol) for e, a in zip(expected, actual, strict=False)]
        same = len(expected) == len(actual) and all(part.ok for part in parts)
        worst = max((part.max_abs_error for part in parts), default=0.0)
        return OutputReport(name, (len(expected),), worst, 0.0, same, "" if same else "sequences differ")
    a, b = np.asarray(expected), np.asarray(actual)
    if a.shape != b.shape or a.dtype != b.dtype:
        reason = f"{a.dtype}{list(a.shape)} expected, {b.dtype}{list(b.shape)} found"
        return OutputReport(name, b.shape, float("inf"), float("inf"), False, reason)
    if a.dtype.kind in "OSU":
        same = bool(np.array_equal(a, b))
        return OutputReport(name, b.shape, 0.0 if same else float("inf"), 0.0, same, "" if same else "texts differ")
    if a.size == 0:
        return OutputReport(name, b.shape, 0.0, 0.0, True)
    if a.dtype.kind in "fcV":  # V: the narrow types that numpy does not know
        rtol = max(rtol, float(ml_dtypes.finfo(a.dtype).eps) if a.dtype.kind != "c" else 0.0)
    else:
        rtol = atol = 0.0
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    x, y = a.astype(wide), b.astype(wide)
    finite = np.abs(x[np.isfinite(x)])
    atol *= float(finite.max(initial=0.0))  # by the size of the output: what is small everywhere must agree as well
    with np.errstate(all="ignore"):
        same_special = (np.isnan(x) & np.isnan(y)) | (a == b)
        difference = np.where(same_special, 0.0, np.abs(x - y))
        difference = np.where(np.isnan(difference), np.inf, difference)
        relative = np.where(difference == 0, 0.0, difference / np.maximum(np.abs(x), np.finfo(np.float32).tiny))
        within = same_special | ((difference <= atol + rtol * np.abs(x)) & (difference < np.inf))
    if not rtol:
        within = same_special
    ok = bool(np.all(within))
    reason = "" if ok else f"{int(np.sum(~within))} of {x.size} values differ"
    return OutputReport(name, b.shape, float(difference.max()), float(relative.max()), ok, reason)
