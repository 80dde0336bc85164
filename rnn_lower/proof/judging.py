"""Run two models side by side, each on a runtime that can be trusted with it, and compare what comes out."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.inliner
import onnx_ir as ir
import onnxruntime
from onnx.reference import ReferenceEvaluator

from rnn_lower.errors import RnnLowerError, one_line
from rnn_lower.model import files, tensors
from rnn_lower.model.document import Document
from rnn_lower.model.scopes import default_opset, recurrent_nodes, subgraphs
from rnn_lower.model.session import read_nodes
from rnn_lower.proof import guard, proving, reference, samples
from rnn_lower.proof.coverage import Coverage
from rnn_lower.proof.report import CheckReport, OutputReport
from rnn_lower.proof.samples import Feeds
from rnn_lower.recurrent.node import RecurrentNode

ORT = f"onnxruntime {onnxruntime.__version__}"
REFERENCE = "onnx.reference with rnn_lower.proof.reference"

Run = Callable[[Feeds], list[Any]]


def compare_models(
    original: Any, lowered: Any, inputs: Any, runs: int, seed: int, rtol: float, atol: float
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
    comparison, coverage = Comparison(rtol, atol), Coverage(models.original)
    runs = 1 if given else runs
    sampled = None if given else samples.Samples(models.original.model, seed, fixed, models.original.outline)
    sets = 1 if sampled is None else sampled.sets_in_a_run
    for index, part in itertools.product(range(runs), range(sets)):
        feeds = iter(given) if sampled is None else sampled.candidates(index, part)
        comparison.add(models.output_names, *models.run(feeds))
        coverage.add(models.feeds)
    varied = bool(given) or runs * sets == 1 or not samples.required_inputs(models.original.model)
    nothing = comparison.nothing_compared(_touched(models.original.model), varied)
    reports = comparison.reports()
    located = () if all(report.ok for report in reports) else proving.located(original, lowered)
    return CheckReport(
        reports, models.judge, models.runner, runs, rtol, atol, nothing, located=located, missed=coverage.missed()
    )


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
            self._nodes = read_nodes(self.original.model, self.original.outline)
        except RnnLowerError as error:
            raise type(error)(f"{_named(self._original_path)}{error}") from None
        self.judge, self.runner = ORT, ORT
        self.feeds: Feeds = {}
        self._run_original: Run | None = None
        self._run_lowered: Run | None = None
        refused = next((reason for node in self._nodes if (reason := refused_by_onnxruntime(node))), None)
        if refused:
            self.judge = f"{REFERENCE} ({refused})"

    def run(self, candidates: Iterable[Feeds]) -> tuple[list[Any], list[Any]]:
        """Results of both for the first inputs that the original takes."""
        first_error, overflowed = "", None
        for feeds in candidates:
            try:
                expected = self._original_results(feeds)
                self.feeds = feeds
            except _OriginalFails as failure:
                first_error = first_error or str(failure)
                continue
            # Where values overflow, fused kernels go ways of their own; tamer inputs tell more.
            if all(map(_is_finite, expected)) or not all(map(_is_finite, feeds.values())):
                return expected, self._lowered_results(feeds)
            overflowed = overflowed or (expected, feeds)
        if overflowed is not None:
            self.feeds = overflowed[1]
            return overflowed[0], self._lowered_results(overflowed[1])
        told = f"the original model does not run with the inputs: {first_error}; give others (--inputs X.npz)"
        raise RnnLowerError(f"{_named(self._original_path)}{told}")

    def _original_results(self, feeds: Feeds) -> list[Any]:
        try:
            if self._run_original is None:
                self._run_original = self._open_original()
            try:
                return self._run_original(feeds)
            except Exception as error:
                if guard.NAME not in str(error):
                    raise
                self.judge = f"{REFERENCE} (an empty sequence or batch)"
                self._run_original = open_reference(self.original)
                return self._run_original(feeds)
        except Exception as error:  # runtimes raise whatever they raise
            raise _OriginalFails(one_line(error)) from None

    def _open_original(self) -> Run:
        if self.judge != ORT:
            return open_reference(self.original)
        try:
            return open_onnxruntime(self.original, self._original_path, guarded=True)
        except Exception as error:
            self.judge = f"{REFERENCE} (onnxruntime: {one_line(error)[:120]})"
            return open_reference(self.original)

    def _lowered_results(self, feeds: Feeds) -> list[Any]:
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


def open_onnxruntime(document: Document, path: str | None = None, guarded: bool = False) -> Run:
    """A runner on onnxruntime's CPU. guarded: recurrent nodes fail, rather than end the process, without steps."""
    external = any(map(tensors.is_external, tensors.tensors(document.proto)))
    if path is not None and external and not (guarded and guard.needed(document)):
        session = _session(path)
    else:
        proto = onnx.ModelProto()
        proto.CopyFrom(document.proto)
        folder = _one_folder(proto, document.folder) if external else None
        session = _session(_bridged(guard.add(proto) if guarded else proto).SerializeToString(), folder)
    names = {value.name for value in (*session.get_inputs(), *session.get_overridable_initializers())}
    wanted = [value.type.tensor_type.elem_type for value in document.proto.graph.output]

    def run(feeds: Feeds) -> list[Any]:
        passed = {f"{k}/float": v.astype(np.float32) if _is_bfloat16(v) else v for k, v in feeds.items()}
        passed = {name: value for name, value in {**feeds, **passed}.items() if name in names}
        results = session.run(None, passed)
        bfloat16 = onnx.TensorProto.BFLOAT16
        return [
            r.astype(ml_dtypes.bfloat16) if dtype == bfloat16 else r for r, dtype in zip(results, wanted, strict=True)
        ]

    return run


def _one_folder(model: onnx.ModelProto, folder: Path | None) -> Path:
    """Name the data files of a copy by where they really are, links followed, since onnxruntime goes by that."""
    assert folder is not None
    found = set()
    for tensor in filter(tensors.is_external, tensors.tensors(model)):
        place = tensors.locate(tensor, folder)
        found.add(place.path.parent)
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = place.path.name
    if len(found) > 1:
        raise RnnLowerError(f"the weights lie in {len(found)} folders; put them in one to have them compared")
    return found.pop()


def open_reference(document: Document) -> Run:
    """A runner on onnx.reference, with this project's recurrent operators in place of onnx's own."""
    proto = onnx.ModelProto()
    proto.CopyFrom(document.proto)
    if document.folder is not None:
        tensors.embed(proto, document.folder)
    if proto.functions:  # the evaluator does not pass its operators on to functions
        proto = onnx.inliner.inline_local_functions(proto)
    evaluator = ReferenceEvaluator(proto, new_ops=list(reference.OPERATORS))
    return lambda feeds: list(evaluator.run(None, feeds))


def _session(model: bytes | str, folder: str | os.PathLike[str] | None = None) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if folder is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", os.fspath(folder))
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _is_bfloat16(array: Any) -> bool:
    return bool(getattr(array, "dtype", None) == ml_dtypes.bfloat16)


def _bridged(model: onnx.ModelProto) -> onnx.ModelProto:
    """onnxruntime's Python interface has no bfloat16: such inputs and outputs are passed as float32 through a Cast."""
    bfloat16, graph = onnx.TensorProto.BFLOAT16, model.graph
    casts = []
    for value in graph.input:
        if value.type.tensor_type.elem_type == bfloat16:
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
            casts.append(onnx.helper.make_node("Cast", [f"{value.name}/float"], [value.name], to=bfloat16))
            value.name += "/float"
    count = len(casts)
    for value in graph.output:
        if value.type.tensor_type.elem_type == bfloat16:
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
            casts.append(
                onnx.helper.make_node("Cast", [value.name], [f"{value.name}/float"], to=onnx.TensorProto.FLOAT)
            )
            value.name += "/float"
    nodes = [*casts[:count], *graph.node, *casts[count:]]
    if casts:
        del graph.node[:]
        graph.node.extend(nodes)
    return model


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
                max_ulp_error=max(old.max_ulp_error, new.max_ulp_error),
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
    touched: set[ir.Value] = set()
    for node in model.graph:
        inside = {node, *(inner for _, body in subgraphs(node) for inner in body.all_nodes())}
        used = {value for one in inside for value in one.inputs}
        if inside & recurrent or used & touched or any(one.op_identifier() in calls for one in inside):
            touched |= set(node.outputs)
    return {str(value.name) for value in model.graph.outputs if value in touched}


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
    ulp = _in_ulp(difference, x, a.dtype)
    return OutputReport(name, b.shape, float(difference.max()), float(relative.max()), ok, reason, ulp)


def _in_ulp(difference: np.ndarray, x: np.ndarray, dtype: np.dtype[Any]) -> float:
    """The largest difference in units in the last place of what was expected; 0 for what is no real number."""
    if dtype.kind not in "fV":
        return 0.0
    limits = ml_dtypes.finfo(dtype)
    _, exponents = np.frexp(np.where(np.isfinite(x), x, float(limits.max)))
    units = np.maximum(np.ldexp(float(limits.eps), exponents - 1), float(limits.smallest_subnormal))
    with np.errstate(all="ignore"):
        return float(np.max(difference / units))
