"""Run the original and the lowered model, each on a runtime that supports it reliably."""

from __future__ import annotations

import contextlib
import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir

from rnn_lower.checking import guard, runtimes
from rnn_lower.checking.runners import ORT, REFERENCE, Run, open_onnxruntime, open_reference
from rnn_lower.checking.samples import Feeds, NoInputsError, first_result
from rnn_lower.driver.plan import inlined_document, read_document
from rnn_lower.errors import RnnLowerError, one_line
from rnn_lower.ir import protobuf
from rnn_lower.ir.schemas import FIRST_TODAY
from rnn_lower.ir.traits import DATA_MOVEMENT, PARTIAL
from rnn_lower.ir.walk import (
    content_key,
    known_tensor,
    nodes,
    opset_of,
    output_names,
    recurrent_nodes,
    subgraphs,
    upstream,
    with_bodies,
)
from rnn_lower.lowering.node import INPUTS, OPERATORS, RecurrentNode
from rnn_lower.modelio import files
from rnn_lower.modelio.document import Document
from rnn_lower.proving.model_inputs import required_inputs
from rnn_lower.proving.report import DIFFERENT, Proof
from rnn_lower.proving.whole.thresholds import Known, known_values
from rnn_lower.shapes.declared import can_agree, declaration
from rnn_lower.targeting.native_refusals import refused_by_onnxruntime
from rnn_lower.transforms.fold import dead_nodes, is_folded

Agree = Callable[[list[Any], list[Any]], bool]
"""Whether two lists of results are equal within the tolerance."""

INSTEAD = "use --prove, which needs no runtime"
"""The advice for models that onnxruntime cannot run."""

ROUNDED_RUNS = 4
"""How often the inputs are moved by rounding, to see how much the model amplifies this."""

COMPUTED = ("X", "initial_h", "initial_c")
"""The inputs of recurrent nodes that usually other nodes compute."""

NO_WEIGHTS = (ir.DataType.BOOL, ir.DataType.INT32, ir.DataType.INT64, ir.DataType.STRING)
"""The types of sizes, positions and choices."""

SELECTING = (*DATA_MOVEMENT, "Cast", "DequantizeLinear", "GatherElements", "GatherND", "If", "Where")
"""Operators that select, move or dequantize elements."""

OF_DATA = tuple(map(INPUTS.index, (*COMPUTED, "sequence_lens")))
"""The indices of X, sequence_lens and the initial states; the other inputs are weights."""


class OriginalFails(Exception):
    """The original does not run with these inputs."""


class ModelPair:
    """The original and the lowered model; `judge` and `runner` name their runtimes.

    on: the runtime of the lowered model.  load_error: why onnxruntime did not load the original, or "".
    is_proved: whether a proof found the models equal.
    """

    def __init__(self, original: Any, lowered: Any, on: str | None = None) -> None:
        self.original, self._original_path = files.open_model(original)
        self.lowered, self._lowered_path = files.open_model(lowered)
        for document in (self.original, self.lowered):
            document.check_data()
        self.output_names = [value.name for value in self.original.proto.graph.output]
        lowered_names = [value.name for value in self.lowered.proto.graph.output]
        if self.output_names != lowered_names:
            text = f"the models have different outputs: {self.output_names} and {lowered_names}"
            raise RnnLowerError(f"{_named(self._lowered_path)}{text}")
        try:
            original, self.nodes = read_document(self.original)
        except RnnLowerError as error:
            raise type(error)(f"{_named(self._original_path)}{error}") from None
        try:
            self._compare_inputs()
        except RnnLowerError as error:
            raise type(error)(f"{_named(self._lowered_path)}{error}") from None
        if original is not self.original:
            self.original, self._original_path = original, None
        self.judge, self.runner = ORT, ORT
        self._run_original: Run | None = None
        self._run_lowered: Run | None = None
        self._run_read: Run | None = None
        self.is_proved = False
        self._is_bare = False
        self._on = on
        if on is not None:
            self._run_lowered = runtimes.open_runtime(on, self.lowered)
            self.runner = f"{on} {runtimes.version(on)}"
        self.load_error = ""
        self._unknown = ""
        self._refused = ""
        refused = next((reason for node in self.nodes if (reason := refused_by_onnxruntime(node))), None)
        if refused:
            self.judge = f"{REFERENCE} ({refused})"

    @property
    def needs_sizes(self) -> str:
        """Why the runtime of the lowered model runs it only with fixed sizes, or ""."""
        return self._run_lowered.refusal if isinstance(self._run_lowered, runtimes.Runtime) else ""

    def _compare_inputs(self) -> None:
        """Raise RnnLowerError if an input of the models cannot have one type and shape in both, or one lacks it."""
        inputs = {value.name: value for value in self.original.model.graph.inputs}
        there = {value.name for value in self.lowered.model.graph.inputs}
        for value in self.lowered.model.graph.inputs:
            if value.name in inputs and not can_agree(inputs[value.name], value):
                both = f"{declaration(inputs[value.name])} and {declaration(value)}"
                raise RnnLowerError(f"the models have different inputs: '{value.name}' is {both}")
        for value in required_inputs(self.original.model):
            if value.name not in there:
                raise RnnLowerError(f"the models have different inputs: only the original has '{value.name}'")

    def run(
        self, candidates: Iterable[Feeds], keep: Callable[[Feeds], None] = lambda _: None,
        agree: Agree = lambda *_: True,
    ) -> tuple[Feeds, list[Any], list[Any]]:  # fmt: skip
        """Inputs with which the original runs, and both results; calls `keep` with all such inputs."""

        def both(feeds: Feeds) -> tuple[Feeds, list[Any], list[Any]]:
            expected, actual = self.results(feeds, agree)
            keep(feeds)
            return feeds, expected, actual

        touched = self.touched or set(self.output_names)

        def is_useful(run: tuple[Feeds, list[Any], list[Any]]) -> bool:
            """Whether nothing behind a recurrent node overflows, as native kernels then differ from each other."""
            feeds, expected, _ = run
            read = (value for name, value in zip(self.output_names, expected, strict=True) if name in touched)
            return all(map(_is_finite, read)) or not all(map(_is_finite, feeds.values()))

        try:
            return first_result(candidates, both, OriginalFails, is_useful)
        except NoInputsError as error:
            raise RnnLowerError(f"{_named(self._original_path)}{self._why_not(str(error))}") from None

    def results(self, feeds: Feeds, agree: Agree) -> tuple[list[Any], list[Any]]:
        """The results of both. Raises OriginalFails if the original does not run or, where both differ, must not.

        onnxruntime's Concat accepts empty parts of any shape, for example, and leaves elements undefined.
        """
        expected, actual = self.original_results(feeds), self.lowered_results(feeds)
        if self.judge == ORT and not agree(expected, actual):
            why = self.reads_nan(feeds) or (self.is_proved and self._refused_by_reference(feeds))
            if why:
                raise OriginalFails(why)
        return expected, actual

    def reads_nan(self, feeds: Feeds) -> str:
        """The recurrent node of the original that reads NaN or infinity, although the inputs are finite, or "".

        Native kernels do not pass all of them on, so that such inputs are no evidence.
        """
        own = [node for node in self.nodes if node.path == "main graph"]
        read = {node.inputs[name].name: node for node in own for name in COMPUTED if name in node.inputs}
        weights = self.original.model.graph.initializers
        nodes = {name: node for name, node in read.items() if name not in {*feeds, *self.output_names, *weights}}
        may_read = self.is_proved or any(node.op_type in PARTIAL for node in self.original.proto.graph.node)
        if self.judge != ORT or not nodes or not may_read or not all(map(_is_finite, feeds.values())):
            return ""
        if self._run_read is None:
            shown = self.original.copied(functools.partial(_return_values, nodes))
            self._run_read = open_onnxruntime(shown, change=self._change if self._is_bare else None)
        for node, x in zip(nodes.values(), self._run_read(feeds)[len(self.output_names) :], strict=True):
            if not np.isfinite(x.astype(np.float64)).all():
                return f"{node.describe()} reads NaN or infinity"
        return ""

    def _refused_by_reference(self, feeds: Feeds) -> str:
        """Why onnx's evaluator, which has all operators of the original, does not run it with these inputs, or ""."""
        try:
            run = open_reference(self.original)
        except Exception:
            return ""
        try:
            run(feeds)
        except Exception as error:
            return f"onnx's evaluator refuses them: {one_line(error)}"
        return ""

    def _why_not(self, error: str) -> str:
        if self._unknown:
            return f"{ORT} has no operator {self._unknown}, so the original model can be neither run nor checked"
        if "No corresponding Numpy type" in error:
            return f"{ORT} does not accept the type of an input or output of this model; {INSTEAD}"
        if self._refused and "Issues with types" in error:  # about the operator, not about the inputs
            text = f"{ORT} cannot load the original model ({self._refused})"
            return f"{text}, nor can onnx's evaluator run it; use `rnn-lower prove`, which runs neither model"
        wanted = "; ".join(f"{value.name}: {declaration(value)}" for value in required_inputs(self.original.model))
        text = f"the original model does not run with these inputs: {error}; provide other inputs"
        return f"{text} (--inputs X.npz with {wanted})"

    def unproved(self, proof: Proof | None) -> list[int]:
        """The nodes that are neither proved nor known to be kept, and that some inputs may reach.

        Nodes in loops that were unrolled count as proved if their copies are: the outputs show whether the unrolling is
        right, even if it is out of scope for the proof.
        """
        is_rewritten = proof is not None and (proof.steps or is_folded(self.lowered.proto))  # which renames nodes
        if proof is not None and is_rewritten and _proves_nodes(proof):
            return []
        done = Counter(() if proof is None else ((node.path, node.outputs) for node in proof.counted))
        before = {(node.path, output_names(node.node)): node.node for node in self.nodes}
        for node, scope in recurrent_nodes(self.lowered.model) if proof is None or not proof.changed else ():
            key = scope.path, output_names(node)
            done[key] += int(proof is not None or _is_same(node, before.get(key)))
        keys = [(node.path, output_names(node.node)) for node in self.nodes]
        wanted = Counter(keys)  # two branches may have one name
        indices = [
            index for index, (node, key) in enumerate(zip(self.nodes, keys, strict=True))
            if node.outputs and done[key] < wanted[key]
        ]  # fmt: skip
        return [index for index in indices if index not in self._dead] if indices else []

    def selects_others(self, number: int) -> bool:
        """Whether inputs select the weights of a node, and the lowered model does not have all that they may select.

        A few runs need not select each of them.
        """
        inputs = self.nodes[number].node.inputs
        weights = [value for index, value in enumerate(inputs) if index not in OF_DATA and value is not None]
        computed = [value for value in weights if known_tensor(value) is None]
        selected = [value for value in computed if value not in self._known]
        return bool(selected) and not self._constants_of_lowered.issuperset(_constants_behind(selected))

    @functools.cached_property
    def _known(self) -> Known:
        """What constants determine in the original."""
        return known_values(self.original.model)

    @functools.cached_property
    def _constants_of_lowered(self) -> set[Any]:
        return {*_contents(value for node, _ in nodes(self.lowered.model) for value in node.inputs)}

    @functools.cached_property
    def _plain(self) -> ir.Model:
        """The original with functions inlined."""
        return inlined_document(self.original).model

    @functools.cached_property
    def touched(self) -> set[str]:
        """The names of outputs that depend on a recurrent node."""
        recurrent = {node for node, _ in recurrent_nodes(self._plain)}
        return _downstream(self._plain, set(), recurrent)

    def is_constant(self) -> bool:
        """Whether the compared outputs depend on no input, so that they are the same in all runs."""
        fed = _downstream(self._plain, set(required_inputs(self._plain)), set())
        return not (self.touched or set(self.output_names)) & fed

    @functools.cached_property
    def _dead(self) -> set[int]:
        """The nodes in branches that never run."""
        return dead_nodes(self.original.outline)

    def original_results(self, feeds: Feeds) -> list[Any]:
        """The results of the original. Raises OriginalFails if it does not run with these inputs."""
        try:
            if self._run_original is None:
                self._run_original = self._open_original()
            try:
                return self._run_original(feeds)
            except Exception as error:
                if guard.NAME not in str(error):
                    return self._bare_results(feeds, error)
                self.judge = f"{REFERENCE} (an empty sequence or batch)"
                self._run_original = open_reference(self.original)
                return self._run_original(feeds)
        except Exception as error:  # runtimes raise exceptions of any type
            raise OriginalFails(one_line(error)) from None

    def _bare_results(self, feeds: Feeds, error: Exception) -> list[Any]:
        """The results of the original without its declared shapes, which onnxruntime trusts even if they are wrong.

        Later runs go without them, too. Raises `error`, with which the original failed, if it fails without them.
        """
        if self.judge != ORT or self._is_bare or not _declares(self.original):
            raise error
        try:
            self._is_bare = True
            run = open_onnxruntime(self.original, self._original_path, self._change)
            results = run(feeds)
        except Exception:
            self._is_bare = False
            raise error from None
        self._run_original, self._run_read = run, None
        return results

    def _change(self, model: onnx.ModelProto) -> None:
        """Change a copy of the original so that onnxruntime runs it."""
        if self._is_bare:
            _undeclare(model)
        if guard.needed(self.nodes):
            guard.add(model)

    def moved_results(self, feeds: Feeds) -> list[list[Any]]:
        """Results of the original where each float of the inputs moves by one unit, as far as it runs then.

        Empty if another difference than rounding is possible: of models that are not proved, or of runtimes.
        """
        results, rng = list[list[Any]](), np.random.default_rng(0)
        with contextlib.suppress(OriginalFails):
            while self.is_proved and self._on is None and len(results) < ROUNDED_RUNS:
                results.append(self.original_results({name: _moved(array, rng) for name, array in feeds.items()}))
        return results

    def _open_original(self) -> Run:
        if self.judge != ORT:
            return open_reference(self.original)
        change = self._change if guard.needed(self.nodes) else None
        try:
            return open_onnxruntime(self.original, self._original_path, change)
        except Exception as error:
            self._refused = " ".join(str(error).split()).rpartition(", Error ")[2][:200]
            self._unknown = self._unknown or _unknown_operator(error)
            self.load_error = one_line(error)[:120]
            self.judge = f"{REFERENCE} (onnxruntime: {self.load_error})"
            return open_reference(self.original)

    def lowered_results(self, feeds: Feeds) -> list[Any]:
        if self._run_lowered is None:
            try:
                self._run_lowered = open_onnxruntime(self.lowered, self._lowered_path)
            except Exception as error:
                if (opset_of(self.lowered.proto) or 0) >= FIRST_TODAY:
                    text = f"{ORT} cannot load the lowered model: {one_line(error)}"
                    if self._refused:
                        text = (
                            f"{ORT} can load neither the original nor the lowered model: {one_line(error)}; {INSTEAD}"
                        )
                    raise RnnLowerError(f"{_named(self._lowered_path)}{text}") from None
                self.runner = REFERENCE
                self._run_lowered = open_reference(self.lowered)
        try:
            return self._run_lowered(feeds)
        except Exception as error:
            with contextlib.suppress(Exception):  # declared shapes of a proved model are those of the original
                if self.is_proved and self._on is None and self.runner == ORT and _declares(self.lowered):
                    run = open_onnxruntime(self.lowered, self._lowered_path, _undeclare)
                    results = run(feeds)
                    self._run_lowered = run
                    return results
            where = "" if self._on is None else f" on {self.runner}"
            message = f"the lowered model does not run{where}: {one_line(error)}"
            if "running Scan" in str(error) and "Dimension 0 is 0" in str(error):
                message += "; its Scan cannot run on an empty sequence; lower the model with"
                message += " --form loop or --target onnxruntime"
            raise RnnLowerError(f"{_named(self._lowered_path)}{message}") from None


def _declares(document: Document) -> bool:
    """Whether a model declares the types of values, which onnxruntime trusts even if they are wrong."""
    return any(holder.value_info for holder in protobuf.holders(document.proto))


def _undeclare(model: onnx.ModelProto) -> None:
    """Remove the declared types of values."""
    for holder in protobuf.holders(model):
        holder.ClearField("value_info")


def _moved(array: Any, rng: np.random.Generator) -> Any:
    """An array with each float moved by about one unit in the last place, up or down; a sequence as it is."""
    if isinstance(array, list):
        return array
    array = np.asarray(array)
    if array.dtype == object or not ir.DataType.from_numpy(array.dtype).is_floating_point():
        return array
    eps = float(ml_dtypes.finfo(array.dtype).eps)
    return (array.astype(np.float64) * (1 + eps * rng.choice((-1, 1), array.shape))).astype(array.dtype)


def _proves_nodes(proof: Proof) -> bool:
    """Whether every recurrent node is proved, and nothing is known to differ."""
    rows = [node for node in proof.nodes if node.op_type in OPERATORS]
    differs = proof.changed or any(each.verdict == DIFFERENT for each in (*proof.steps, *proof.nodes))
    return proof.ok or (bool(rows) and all(node.ok for node in rows) and not differs)


def _is_same(node: ir.Node, other: ir.Node | None) -> bool:
    """Whether two nodes read the same names and constants, or weights of the caller, and have the same attributes."""
    if other is None or ir.to_proto(node) != ir.to_proto(other):
        return False
    for index, pair in enumerate(zip(node.inputs, other.inputs, strict=True)):
        old, new = map(known_tensor, pair)
        if old is None or new is None:
            is_provided = all(value is None or value.is_graph_input() for value in pair)
            same = old is new and (is_provided or index in OF_DATA)
        else:
            same = old is new or content_key(old.numpy()) == content_key(new.numpy())
        if not same:
            return False
    return True


def _constants_behind(values: Iterable[ir.Value]) -> set[Any]:
    """The contents of the constants from which values are selected or dequantized, also in branches."""

    def operands(node: ir.Node, _: int) -> list[ir.Value | None]:
        results = (result for _, body in subgraphs(node) for result in body.outputs)
        return [*node.inputs, *results] if node.op_type in SELECTING else []

    return {*_contents(upstream(values, operands))}


def _contents(values: Iterable[ir.Value | None]) -> Iterator[Any]:
    """The contents of those of these values that are constants of floats or 8-bit integers, as weights are."""
    tensors = (tensor for value in values if (tensor := known_tensor(value)) is not None)
    yield from (content_key(tensor.numpy()) for tensor in tensors if tensor.dtype not in NO_WEIGHTS)


def _return_values(nodes: Mapping[str | None, RecurrentNode], model: onnx.ModelProto) -> None:
    """Make the values that these nodes read outputs of a model."""
    for name, node in nodes.items():
        model.graph.output.append(onnx.helper.make_tensor_value_info(str(name), node.dtype.value, None))


def _unknown_operator(error: Exception) -> str:
    """The operator that onnxruntime reports as unknown, or nothing."""
    match = re.search(r"(\w+)\(-?\d+\) is not a registered function/op|No Op registered for (\w+)", str(error))
    return "" if match is None else match[1] or match[2]


def _named(path: str | None) -> str:
    return "" if path is None else f"{path}: "


def _downstream(model: ir.Model, values: set[ir.Value], nodes: set[ir.Node]) -> set[str]:
    """The names of outputs that depend on these values or nodes."""
    dependent = set(values)
    for node in model.graph:
        inside = list(with_bodies([node]))
        if not nodes.isdisjoint(inside) or any(not dependent.isdisjoint(inner.inputs) for inner in inside):
            dependent |= set(node.outputs)
    return {str(value.name) for value in model.graph.outputs if value in dependent}


def _is_finite(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_finite, value))
    array = np.asarray(value)
    return array.dtype.kind not in "fcV" or bool(np.all(np.abs(array.astype(np.complex128)) < 1e30))
