"""Run two models side by side, each on a runtime that can be trusted with it, and compare what comes out."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.inliner
import onnx_ir as ir
import onnxruntime
from onnx.reference import ReferenceEvaluator

from rnn_lower.errors import RnnLowerError
from rnn_lower.model import files
from rnn_lower.model.scopes import default_opset
from rnn_lower.model.session import Session
from rnn_lower.options import Options
from rnn_lower.proof import reference, samples
from rnn_lower.proof.report import CheckReport, OutputReport
from rnn_lower.proof.samples import Feeds
from rnn_lower.recurrent.node import RecurrentNode

ORT = f"onnxruntime {onnxruntime.__version__}"
REFERENCE = "onnx.reference with rnn_lower.proof.reference"
PROTO_LIMIT = 1_800_000_000

Run = Callable[[Feeds], list[Any]]


def compare_models(
    original: Any, lowered: Any, inputs: Any, runs: int, seed: int, rtol: float, atol: float
) -> CheckReport:
    """See `rnn_lower.check`."""
    models = Pair(original, lowered)
    fixed = samples.fixed_sizes(models.original, models.lowered)
    given = [] if inputs is None else [samples.load_inputs(inputs, models.original)]
    comparison = Comparison(rtol, atol)
    runs = 1 if given else max(1, runs)
    for index in range(runs):
        feeds = iter(given) if given else samples.candidates(models.original, seed, index, fixed)
        comparison.add(models.output_names, *models.run(feeds))
    return CheckReport(comparison.reports(), models.judge, models.runner, runs, rtol, atol)


class Pair:
    """The original and the lowered model; `judge` and `runner` name what runs them."""

    def __init__(self, original: Any, lowered: Any) -> None:
        self.original, self._original_path = files.open_model(original)
        self.lowered, self._lowered_path = files.open_model(lowered)
        self.output_names = [str(value.name) for value in self.original.graph.outputs]
        theirs = [str(value.name) for value in self.lowered.graph.outputs]
        if self.output_names != theirs:
            raise RnnLowerError(f"the models have different outputs: {self.output_names} and {theirs}")
        self._nodes = [place.node for place in Session(self.original, Options()).places]
        self.judge, self.runner = ORT, ORT
        self._run_original: Run | None = None
        self._run_lowered: Run | None = None
        refused = next((reason for node in self._nodes if (reason := refused_by_onnxruntime(node))), None)
        if refused:
            self.judge = f"{REFERENCE} ({refused})"

    def run(self, candidates: Iterable[Feeds]) -> tuple[list[Any], list[Any]]:
        """Results of both for the first inputs that the original takes."""
        first_error, feeds = "", None
        for feeds in candidates:
            try:
                return self._original_results(feeds), self._lowered_results(feeds)
            except _OriginalFails as failure:
                first_error = first_error or str(failure)
        raise RnnLowerError(
            f"the original model does not run with the inputs: {first_error}; give others (--inputs X.npz)"
        )

    def _original_results(self, feeds: Feeds) -> list[Any]:
        if self.judge == ORT and self._would_abort(feeds):
            self.judge, self._run_original = f"{REFERENCE} (an empty sequence or batch)", None
        try:
            if self._run_original is None:
                self._run_original = self._open_original()
            return self._run_original(feeds)
        except Exception as error:  # runtimes raise whatever they raise
            raise _OriginalFails(_one_line(error)) from None

    def _open_original(self) -> Run:
        if self.judge != ORT:
            return open_reference(self.original, self._original_path)
        try:
            return open_onnxruntime(self.original, self._original_path)
        except Exception as error:
            self.judge = f"{REFERENCE} (onnxruntime: {_one_line(error)[:120]})"
            return open_reference(self.original, self._original_path)

    def _lowered_results(self, feeds: Feeds) -> list[Any]:
        if self._run_lowered is None:
            try:
                self._run_lowered = open_onnxruntime(self.lowered, self._lowered_path)
            except Exception as error:
                if (default_opset(self.lowered.opset_imports) or 0) >= 7:
                    raise RnnLowerError(f"the lowered model does not load on {ORT}: {_one_line(error)}") from None
                self.runner = REFERENCE
                self._run_lowered = open_reference(self.lowered, self._lowered_path)
        try:
            return self._run_lowered(feeds)
        except Exception as error:
            raise RnnLowerError(f"the lowered model does not run: {_one_line(error)}") from None

    def _would_abort(self, feeds: Feeds) -> bool:
        """onnxruntime ends the process on a fused GRU or LSTM without steps or rows, so ask the lowered model first.

        It can be run safely; the inputs X of the recurrent nodes of the main graph become outputs of a copy of it.
        """
        risky = [node for node in self._nodes if node.op_type in ("GRU", "LSTM")]
        if not risky:
            return False
        if any(array.size == 0 for array in feeds.values()):
            return True
        known = all(node.static_length and node.static_batch for node in risky)
        names = {value.name for value in self.lowered.graph.inputs}
        inside = [str(node.inputs["X"].name) for node in risky if node.path == "main graph"]
        wanted = [name for name in inside if name not in names and self._names_in_lowered(name)]
        if known or not wanted or files.has_external_data(self.lowered):
            return False
        probe = ir.to_proto(self.lowered)
        del probe.graph.output[:]
        probe.graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted)
        try:
            results = _session(probe.SerializeToString()).run(None, feeds)
        except Exception:
            return False  # the same failure awaits the original, before its recurrent nodes
        return any(result.size == 0 for result in results)

    def _names_in_lowered(self, name: str) -> bool:
        return any(out.name == name for node in self.lowered.graph for out in node.outputs)


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


def open_onnxruntime(model: ir.Model, path: str | None) -> Run:
    """A runner on onnxruntime's CPU; large models are opened from their file."""
    if files.has_external_data(model) or files.bytes_of_initializers(model) > PROTO_LIMIT:
        if path is None:
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "model.onnx")
                files.save(model, path)
                session = _session(path)
        else:
            session = _session(path)
    else:
        session = _session(_bridged(ir.to_proto(model)).SerializeToString())
    names = {value.name for value in session.get_inputs()}

    def run(feeds: Feeds) -> list[Any]:
        passed = {f"{k}/float": v.astype(np.float32) if _is_bfloat16(v) else v for k, v in feeds.items()}
        passed = {name: value for name, value in {**feeds, **passed}.items() if name in names}
        results = session.run(None, passed)
        wanted = [value.dtype for value in model.graph.outputs]
        return [r.astype(d.numpy()) if d == ir.DataType.BFLOAT16 else r for r, d in zip(results, wanted, strict=True)]

    return run


def open_reference(model: ir.Model, path: str | None) -> Run:
    """A runner on onnx.reference, with this project's recurrent operators in place of onnx's own."""
    proto = onnx.load(path) if path is not None else ir.to_proto(model)
    if proto.functions:  # the evaluator does not pass its operators on to functions
        proto = onnx.inliner.inline_local_functions(proto)
    evaluator = ReferenceEvaluator(proto, new_ops=list(reference.OPERATORS))
    return lambda feeds: list(evaluator.run(None, feeds))


def _session(model: bytes | str) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _is_bfloat16(array: Any) -> bool:
    return bool(getattr(array, "dtype", None) == ir.DataType.BFLOAT16.numpy())


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

    def add(self, names: Sequence[str], expected: Sequence[Any], actual: Sequence[Any]) -> None:
        for name, wanted, got in zip(names, expected, actual, strict=True):
            new = compare(name, wanted, got, self._rtol, self._atol)
            old = self._reports.get(name, new)
            self._reports[name] = OutputReport(
                name, new.shape, max(old.max_abs_error, new.max_abs_error), max(old.max_rel_error, new.max_rel_error),
                old.ok and new.ok, old.reason or new.reason,
            )  # fmt: skip

    def reports(self) -> tuple[OutputReport, ...]:
        return tuple(self._reports.values())


def compare(name: str, expected: Any, actual: Any, rtol: float, atol: float) -> OutputReport:
    """One output of one run."""
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
    if a.dtype.kind in "fV":  # V: the narrow types that numpy does not know
        rtol = max(rtol, float(ml_dtypes.finfo(a.dtype).eps))
    x, y = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(all="ignore"):
        same_special = (np.isnan(x) & np.isnan(y)) | (x == y)
        difference = np.where(same_special, 0.0, np.abs(x - y))
        difference = np.where(np.isnan(difference), np.inf, difference)
        relative = np.where(difference == 0, 0.0, difference / np.maximum(np.abs(x), np.finfo(np.float32).tiny))
        within = (difference <= atol + rtol * np.abs(x)) & ((difference < np.inf) | same_special)
    ok = bool(np.all(within))
    reason = "" if ok else f"{int(np.sum(~within))} of {x.size} values differ"
    return OutputReport(name, b.shape, float(difference.max()), float(relative.max()), ok, reason)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
