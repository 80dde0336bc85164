"""Proof of a whole model, for loops that were unrolled or raised: no node of one model matches a node of the other.

Both models are evaluated from their inputs to their outputs (`whole_evaluator`).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeAlias

import ml_dtypes
import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common

from rnn_lower.ir.schemas import DEFAULT_DOMAINS, LOOPS
from rnn_lower.ir.walk import count_nodes, is_read, nodes, output_names, subgraphs
from rnn_lower.modelio.document import Document
from rnn_lower.options import OP_TYPES
from rnn_lower.proving import float_run
from rnn_lower.proving.exact.call import OutOfScopeError, UndefinedError, WrongError
from rnn_lower.proving.exact.field import Array, Field
from rnn_lower.proving.exact.interpreter import NoStepsError, check_time
from rnn_lower.proving.model_inputs import overridable_inputs, overrides, required_inputs
from rnn_lower.proving.new_faults import new_misdeclaration
from rnn_lower.proving.nodes.node_proof import FAILURE
from rnn_lower.proving.report import DIFFERENT, OUT_OF_SCOPE, PROVED, NodeProof, Proof
from rnn_lower.proving.whole.congruence import COLLISION, congruence_keys, incongruent_outputs
from rnn_lower.proving.whole.integer_flow import IntegerFlow
from rnn_lower.proving.whole.thresholds import MOST_COUNTED, TRIED_NUMBERS, compared_lists, compared_numbers
from rnn_lower.proving.whole.whole_evaluator import COMPARISONS, FEW, NotRunError, WholeEvaluator
from rnn_lower.proving.whole.whole_inputs import (
    SIZES,
    Trial,
    draw_inputs,
    large_integers,
    long_sizes,
    sizes_beyond_all,
    sizes_beyond_few,
    small_sizes,
)
from rnn_lower.proving.whole.whole_task import WholeTask, task_of
from rnn_lower.shapes.required_sizes import required_sizes
from rnn_lower.shapes.shape_info import symbol
from rnn_lower.transforms.inline import inlined

SCALES = (1.0, 1.0, 0.0, 1.0, 100.0)
"""Standard deviations of the inputs with which both models run in floats."""

FLOAT_DRAWS = 24
"""The most draws of inputs to find some with which the original runs in floats."""

INTEGER_DRAWS, LARGE_DRAWS, NUMBER_DRAWS = 12, 16, 8
"""The numbers of draws: of small integers and booleans for each set of sizes, of large integers, and per constant."""


FloatRun: TypeAlias = "tuple[Mapping[str, np.ndarray], list[np.ndarray]]"
"""Inputs, and the outputs of the original."""


def _repeating(model: ir.Model) -> set[tuple[str, tuple[str, ...]]]:
    """The recurrent nodes and the loops, by operator and outputs."""
    loops = [node for node, _ in nodes(model) if node.domain in DEFAULT_DOMAINS and node.op_type in LOOPS]
    return {*_recurrent(model), *((node.op_type, output_names(node)) for node in loops)}


def _recurrent(model: ir.Model) -> set[tuple[str, tuple[str, ...]]]:
    """The recurrent nodes whose results are read, by operator and outputs."""
    chosen = [node for node, _ in nodes(model) if node.domain in DEFAULT_DOMAINS and node.op_type in OP_TYPES]
    return {(node.op_type, output_names(node)) for node in chosen if any(map(is_read, node.outputs))}


def prove_whole(
    before: Document, after: Document, points: int, seed: int, deadline: float, exact_sizes: bool = False
) -> Proof:
    """The proof that two models of one opset compute the same outputs from the same inputs, as one step.

    exact_sizes: also try sizes beyond every number that a node counts to or compares with; out of scope if large.
    """
    documents = [Document(inlined(source.embedded())).in_order() for source in (before, after)]
    models = [document.model for document in documents]
    if changed := "; ".join(_interface(*models)):
        return Proof((), steps=(NodeProof("models", "", "", DIFFERENT, reason=changed),))
    compared = incongruent_outputs(*models)
    if wrong := new_misdeclaration(*(document.outline for document in documents)):
        verdict, reason, evaluations = DIFFERENT, wrong, 0
    elif not compared:
        verdict, reason, evaluations = PROVED, "", 0
    else:
        chosen = documents
        if len(compared) < len(models[0].graph.outputs):
            chosen = [document.changed(functools.partial(_restrict, indices=compared)) for document in documents]
        verdict, reason, evaluations = _compare(chosen, points, seed, deadline, exact_sizes)
    bound = min(1.0, FAILURE * max(1, count_nodes(models[1].graph))) ** points if verdict == PROVED else 1.0
    bound = bound if compared or wrong else COLLISION
    rows = _rows(*models)
    share = bound / max(1, len(rows))
    nodes = tuple(
        NodeProof(name, op_type, "", verdict, share, evaluations, reason, outputs)
        for name, op_type, outputs in rows
    )  # fmt: skip
    rest = bound if not rows or verdict != PROVED else 0.0
    return Proof(nodes, steps=(NodeProof("models", "", "", verdict, rest, evaluations, reason),))


def _compare(
    documents: Sequence[Document], points: int, seed: int, deadline: float, exact_sizes: bool
) -> tuple[str, str, int]:  # fmt: skip
    """The verdict about two models, its reason, and the number of evaluations."""
    ways = [(True, False), (False, False)]
    if _recurrent(documents[0].model) == _recurrent(documents[1].model):  # usually, they also read the same
        ways.insert(0, (True, True))  # and need no equations
    verdict, reason, evaluations = OUT_OF_SCOPE, "", 0
    try:
        task = task_of(documents, points, seed, deadline, exact_sizes)
    except OutOfScopeError as error:
        return OUT_OF_SCOPE, str(error), 0
    for folded, opaque in ways:
        comparison = _Comparison(task, folded, opaque)
        try:
            reason, evaluations = comparison.difference(), comparison.count
            if not reason:
                reason = comparison.difference_in_floats()
                return OUT_OF_SCOPE if reason else PROVED, reason, evaluations
            verdict = OUT_OF_SCOPE  # constants may have been summed in floats, too
        except OutOfScopeError as error:
            verdict, reason, evaluations = OUT_OF_SCOPE, str(error), 0
            if not opaque:
                break
        except WrongError as error:
            verdict, reason = DIFFERENT, str(error)
    return verdict, reason, evaluations


def _restrict(model: ir.Model, indices: Collection[int]) -> None:
    """Keep only these outputs of a model, and the nodes that compute them."""
    model.graph.outputs[:] = [model.graph.outputs[index] for index in indices]
    ir.passes.common.RemoveUnusedNodesPass()(model)


def _rows(before: ir.Model, after: ir.Model) -> list[tuple[str, str, tuple[str, ...]]]:
    """The loops and recurrent nodes that only one model has, the subjects of the proof: name, operator, outputs."""
    old_keys, new_keys = _repeating(before), _repeating(after)
    chosen = sorted(old_keys - new_keys) if old_keys - new_keys else sorted(new_keys - old_keys)
    names = {output_names(node): node.name for model in (before, after) for node, _ in nodes(model)}
    return [(names.get(outs) or next(filter(None, outs), op), op, outs) for op, outs in chosen]


def _interface(before: ir.Model, after: ir.Model) -> Iterator[str]:
    """The differences between the inputs and outputs of two models."""
    for what, old_values, new_values in (
        ("inputs", required_inputs(before), required_inputs(after)),
        ("inputs with defaults", overridable_inputs(before), overridable_inputs(after)),
        ("outputs", before.graph.outputs, after.graph.outputs),
    ):
        pairs = zip(old_values, new_values, strict=False)
        typed = all(None in (a.dtype, b.dtype) or a.dtype == b.dtype for a, b in pairs)
        if [value.name for value in old_values] != [value.name for value in new_values] or not typed:
            yield f"graph: the {what} differ"


def _values(model: ir.Model) -> Iterator[ir.Value]:
    """The values that the nodes of a model compute, also in bodies."""
    yield from (value for node, _ in nodes(model) for value in node.outputs)


def _is_equal(a: Array, b: Array) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and np.array_equal(a, b)


class _Comparison:
    """The evaluation of two models on the same inputs.

    folded: as in `ModelInterpreter`.  opaque: recurrent nodes are random functions of what they read.
    count: evaluations of both.  ran: sizes with which both ran.
    undefined: sizes with which a result was undefined.  kept: inputs that always had their default.
    empty: outputs that were always empty.  hollow: values of nodes that were.
    untested: of each model, bodies that never ran.
    branches: of an If in any model, those that never ran.  telling: inputs with which one ran for the first time.
    agreed: for each shared name, whether its values were always equal.
    """

    def __init__(self, task: WholeTask, folded: bool, opaque: bool) -> None:
        self.task, self.folded, self.opaque = task, folded, opaque
        self.count, self.ran = 0, list[Mapping[str, int]]()
        self.undefined: list[Mapping[str, int]] = []
        models = task.models
        self.empty = {str(value.name) for value in models[0].graph.outputs if 0 not in (value.shape or ())}
        self.hollow = {value for model in models for value in _values(model) if value.name}
        self.untested = [{body for node, _ in nodes(model) for _, body in subgraphs(node)} for model in models]
        owners = [node for model in models for node, _ in nodes(model) if node.op_type == "If"]
        self.branches = {body for node in owners for _, body in subgraphs(node)}
        self.telling = list[Mapping[str, Array]]()
        self.agreed = dict[str, bool]()
        self.kept = {str(value.name) for value in overridable_inputs(models[1])}

    def difference(self) -> str:
        """Return the first difference, or "". Raises OutOfScopeError."""
        for trial in self._trials():
            if reason := self._differ(trial):
                return reason
        if not self.count:
            raise OutOfScopeError("the prover found no input sizes for which both models run")
        if any(sizes not in self.ran for sizes in self.undefined):
            raise OutOfScopeError("for some input sizes, a node of the model divides by zero")
        if self.empty:
            raise OutOfScopeError(f"output '{min(self.empty)}' is empty for all input sizes for which both models run")
        if not self._usual_sizes():
            raise OutOfScopeError(
                f"both models run only if an input size ({', '.join(self.ran[0])}) is 0 or 1; set the sizes (--dim)"
            )
        self._check_untested()
        if self.kept:
            raise OutOfScopeError(f"both models run only with the default value of input '{min(self.kept)}'")
        return ""

    def _check_untested(self) -> None:
        """Raise OutOfScopeError if a body of the lowered model never ran, and is not congruent to one before."""
        if not self.untested[1]:
            return
        equal = {name for name, agreed in self.agreed.items() if agreed}
        old, new = (
            {keys[part]: part for part in parts}
            for parts, keys in zip(
                self.untested, (congruence_keys(model, equal).bodies for model in self.task.models), strict=True
            )
        )
        if new.keys() - old.keys():
            raise OutOfScopeError("a loop body or a branch that lowering changed ran in no comparison")

    def difference_in_floats(self) -> str:
        """The first difference of both models in floats, or ""."""
        rng = np.random.default_rng(self.task.seed)
        draws: list[Callable[[], FloatRun | None]] = [
            *(functools.partial(self._run_in_floats, rng, scale) for scale in SCALES),
            *(functools.partial(self._results_in_floats, rng, 1.0, inputs) for inputs in self.telling),
        ]
        for draw in draws:
            if reason := float_run.confirmed(functools.partial(self._differ_in_floats, draw)):
                return f"{reason} in floating-point arithmetic"
        return ""

    def _run_in_floats(self, rng: np.random.Generator, scale: float) -> FloatRun:
        """Random inputs of this scale with which the original runs, and its results."""
        for sizes in itertools.islice(itertools.cycle(self._usual_sizes()), FLOAT_DRAWS):
            drawn = draw_inputs(Field(self.task.seed), self.task.models[0], sizes, rng, False)
            if (results := self._results_in_floats(rng, scale, drawn)) is not None:
                return results
        raise OutOfScopeError("onnx's evaluator cannot run the original in floats")

    def _results_in_floats(
        self, rng: np.random.Generator, scale: float, drawn: Mapping[str, Array]
    ) -> FloatRun | None:  # fmt: skip
        """Random floats of this scale for field elements, and the results of the original; None if it does not run."""
        inputs = {
            name: (scale * rng.standard_normal(array.shape) if array.dtype == np.uint64 else array).astype(
                self.task.types[name]
            )
            for name, array in drawn.items() if name in self.task.types
        }  # fmt: skip
        with contextlib.suppress(Exception):  # the evaluator raises exceptions of any type
            return inputs, float_run.outputs(self.task.sources[0].proto, inputs)
        return None

    def _differ_in_floats(self, draw: Callable[[], FloatRun | None]) -> str:
        """The difference for drawn inputs, or ""."""
        if (drawn := draw()) is None:
            return ""
        inputs, old = drawn
        try:
            new = float_run.outputs(self.task.sources[1].proto, inputs)
        except Exception as error:
            raise OutOfScopeError(f"onnx's evaluator cannot run the lowered model: {error}") from None
        for value, a, b in zip(self.task.models[0].graph.outputs, old, new, strict=True):
            if text := float_run.difference_of_outputs(b, a):
                return f"output '{value.name}' {text}"
        return ""

    def _merges(self, sizes: Mapping[str, int]) -> bool:
        """Whether the lowered model declares sizes to be equal that are not, so that it may refuse them."""
        declared: dict[str | int, int] = {}
        for old, new in zip(*(required_inputs(model) for model in self.task.models), strict=True):
            for axis in range(min(len(old.shape or ()), len(new.shape or ()))):
                size = symbol(old, axis)
                size = size if isinstance(size, int) else sizes[size]
                if declared.setdefault(symbol(new, axis), size) != size:
                    return True
        return False

    def _usual_sizes(self) -> list[Mapping[str, int]]:
        """Sizes above 1 for which both models ran."""
        return [sizes for sizes in self.ran if all(size > 1 for size in sizes.values())]

    def _trials(self) -> Iterator[Trial]:
        """Yield the inputs to try, in order."""
        model = self.task.models[0]
        required = {name: sizes[0] for name, sizes in required_sizes(model).items()}
        cases, longer = list(small_sizes(model, required)), list(long_sizes(model, required))
        if self.task.exact_sizes and len(cases) > 1:
            cases += sizes_beyond_all(self.task.models, required)
        real = all(value.dtype is None or value.dtype.is_floating_point() for value in model.graph.inputs)
        draws = INTEGER_DRAWS if not real else 2 if self.kept else 1
        for index, sizes in enumerate(cases):
            count = draws if index < len(SIZES) else min(draws, 2)
            for draw in range(max(self.task.points, draws)) if index == 0 else range(index, index + count):
                yield Trial(index, sizes, draw)
        for sizes in longer if self.hollow or not self._usual_sizes() else ():
            yield from (Trial(len(cases), sizes, draw) for draw in range(max(self.task.points, draws)))
        for sizes in sizes_beyond_few(self.task.models, required) if self.hollow and not self.task.exact_sizes else ():
            yield Trial(len(cases), sizes, 0)
        for draw in range(LARGE_DRAWS if self.task.integers else 0):
            yield Trial(0, next(iter(self._usual_sizes()), cases[0]), draw, large=True)
        numbers = sorted(self._numbers_to_try())
        for number, name, draw in itertools.product(numbers, self.task.integers, range(NUMBER_DRAWS)):
            limits = ml_dtypes.iinfo(self.task.types[name])
            if not limits.min <= number <= limits.max or (draw and self.count and not self.untested[1]):
                continue
            others = [case for case in (*cases, *longer) if draw == 0 and case not in self.ran]
            untested = len(self.untested[1])
            for index, case in enumerate((*self.ran, *others)):
                count = self.count
                yield Trial(len(cases) + index, case, draw, {name: number})
                if self.count > count and len(self.untested[1]) == untested:
                    break

    def _numbers_to_try(self) -> set[int]:
        """The constants with which a model compares what depends on integers of the caller, and their neighbours."""
        dependent = set[ir.Value | None]().union(*(flow.elements for flow in self.task.flows))
        numbers = set[int]()
        comparing = [[node for node, _ in nodes(model) if node.op_type in COMPARISONS] for model in self.task.models]
        both = set.intersection(*itertools.starmap(compared_lists, zip(comparing, self.task.known, strict=True)))
        for some, known in zip(comparing, self.task.known, strict=True):
            reading = [node for node in some if not dependent.isdisjoint(node.inputs)]
            numbers.update(compared_numbers(reading, known, both))
        if len(numbers) > TRIED_NUMBERS:
            raise OutOfScopeError(f"the models compare integers with constants that make {len(numbers)} trials")
        return numbers

    def _drawn(self, trial: Trial, field: Field) -> tuple[dict[str, Array], dict[str, Array]]:
        """All inputs of a trial, and those of them that override a default."""
        rng = np.random.default_rng((self.task.seed, trial.draw, trial.index))
        inputs = draw_inputs(field, self.task.models[0], trial.sizes, rng, self.task.exact_sizes or trial.draw % 2 == 1)
        overridden = {} if trial.draw % 2 == 0 else overrides(field, self.task.models[1], rng)
        for name, number in trial.numbers.items():
            if (default := self.task.models[1].graph.initializers.get(name)) is None:
                inputs[name] = np.full(inputs[name].shape, number)
            else:
                overridden[name] = np.full(default.const_value.shape.numpy(), number)  # type: ignore[union-attr]
        inputs |= overridden
        if trial.large:
            inputs |= large_integers(self.task.models[1], inputs, rng)
        return inputs, overridden

    def _evaluator(self, document: Document, flow: IntegerFlow, field: Field, trial: Trial) -> WholeEvaluator:
        """The evaluator of one model for a trial."""
        evaluator = WholeEvaluator(field, document, self.folded, self.task.limits, self.task.deadline, flow)
        evaluator.narrow, evaluator.refuses_counters = self.task.narrow, self.task.exact_sizes
        evaluator.opaque, evaluator.of_sizes = self.opaque, self.task.of_sizes
        evaluator.trusted = None if document is self.task.documents[0] else self.task.declared
        if trial.large:
            evaluator.most_passes, evaluator.most_elements = MOST_COUNTED, 4 * FEW
        return evaluator

    def _differ(self, trial: Trial) -> str:
        """Return the difference for one trial, or "" if there is none or the original does not run."""
        field = Field(self.task.seed * 1000 + trial.draw % self.task.points)
        try:
            inputs, overridden = self._drawn(trial, field)
        except NotRunError:
            return ""
        results, symbols, computed = list[list[Array]](), list[set[str]](), list[dict[str, Array]]()
        executed = set[ir.Graph]()
        for document, flow in zip(self.task.documents, self.task.flows, strict=True):
            field.symbols.clear()
            evaluator = self._evaluator(document, flow, field, trial)
            try:
                results.append(evaluator.outputs(inputs))
            except NoStepsError:
                return ""
            except (WrongError, NotRunError):
                if results and not self._merges(trial.sizes):
                    raise
                return ""
            except OutOfScopeError as error:
                is_empty = 0 in trial.sizes.values()
                undefined = isinstance(error, UndefinedError) and not results and (is_empty or bool(self.task.integers))
                if not trial.large and not undefined:
                    raise
                if not (trial.large or is_empty) and trial.sizes not in self.undefined:
                    self.undefined.append(trial.sizes)
                return ""  # the size of an integer, or its being zero, may be why
            symbols.append(set(field.symbols))
            computed.append(evaluator.named(self.task.shared))
            executed |= evaluator.executed
            for parts in self.untested:
                parts.difference_update(evaluator.executed)
            self.hollow -= evaluator.filled
        self.count += 1
        if self.branches & executed and not trial.large and 0 not in trial.sizes.values():
            self.branches -= executed
            self.telling.append(inputs)
        if trial.sizes not in self.ran:
            self.ran.append(trial.sizes)
        self.kept -= overridden.keys()
        for name in computed[0].keys() & computed[1].keys():
            same = _is_equal(computed[0][name], computed[1][name]) and self.agreed.get(name, True)
            if not same or computed[0][name].size:
                self.agreed[name] = same
        if symbols[0] != symbols[1]:
            what = min(symbols[0] ^ symbols[1]).partition(" (")[0]
            raise OutOfScopeError(f"only one of the models uses the constant or operation '{what}'")
        for value, a, b in zip(self.task.models[0].graph.outputs, *results, strict=True):
            # Without trips, a Loop does not know the sizes of its steps.
            empty = a.size == b.size == 0 and a.ndim == b.ndim
            self.empty -= set() if empty else {str(value.name)}
            if not empty and not _is_equal(a, b):
                shapes = {name: array.shape for name, array in inputs.items()}
                return f"output '{value.name}' differs in exact arithmetic for inputs of shapes {shapes}"
        check_time(self.task.deadline)
        return ""
