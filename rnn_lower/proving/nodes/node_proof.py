"""Compare a recurrent node with the subgraph that replaces it, at a choice of sizes, lengths and points."""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from rnn_lower.ir.schemas import LOOPS, schema_of
from rnn_lower.ir.walk import constant, is_quantized, known_tensor, output_names, subgraphs
from rnn_lower.proving import float_run
from rnn_lower.proving.exact import equations
from rnn_lower.proving.exact.call import OutOfScopeError, WrongError, element_type
from rnn_lower.proving.exact.field import Array, Field
from rnn_lower.proving.exact.interpreter import FIRST_RESHAPE, NoStepsError, check_time
from rnn_lower.proving.exact.scalar_functions import arithmetic
from rnn_lower.proving.nodes.cases import LENGTHS, Case, Known, choose_cases
from rnn_lower.proving.nodes.constant_inputs import content
from rnn_lower.proving.nodes.counters import Counters
from rnn_lower.proving.nodes.emitted import NODE, EmittedInterpreter, Observed, symbol_sizes
from rnn_lower.proving.nodes.induction import (
    Fitting,
    Selection,
    Slot,
    States,
    carried_states,
    differing,
    narrow,
    select,
    states_of,
)
from rnn_lower.proving.nodes.program import Program
from rnn_lower.proving.report import DIFFERENT, OUT_OF_SCOPE, PROVED, NodeProof
from rnn_lower.shapes.shape_info import ShapeInfo

FAILURE = (32 * 33 / 2 * 64) / 2**30 + (4500 / 30) / 4.8e7
"""The probability that one point does not distinguish two different steps.

A step of one unit consists of fewer than 32 scalar functions, each of a quotient of polynomials in the results of the
previous ones: the numerator of the difference of two arguments has a degree below 64. By the Schwartz-Zippel lemma two
different arguments agree at a random point with a probability of at most 64 / 2^30; this is counted for each pair.
A difference of constants, an integer of fewer than 4500 bits times a power of two, has fewer than 150 prime factors of
31 bits, among 4.8 * 10^7 such primes.
"""

MOST_HELD = 1 << 26
"""The most elements of the inputs that are not constant, the gates and the states of one run."""

MOST_WORK, MOST_TIMES, MOST_NODES = 1 << 31, 64, 256
"""The most work of a graph: a constant, a multiple of the node's own products, and nodes in each of its steps."""

SCALES = (1.0, 100.0, 0.0)
"""Standard deviations of the inputs with which both sides run in floats."""


@dataclasses.dataclass(frozen=True)
class Task:
    """One question: do the values `replaced` of the lowered model equal the used outputs of `node`?

    counterparts: by ONNX input name, the lowered model's values for the node's inputs, if they exist.
    visible: the names in the enclosing scopes.  unread: results of emitted nodes that no node reads.
    deadline: CPU time of this thread, after which the node is out of scope.
    declared_sizes: the new names of sizes that the emitted nodes of all tasks declare, with the replaced node.
    """

    node: ir.Node
    name: str
    path: str
    shape_info: ShapeInfo
    counterparts: Mapping[str, ir.Value]
    replaced: Sequence[ir.Value]
    opset: int
    visible: frozenset[str] = frozenset()
    unread: Sequence[ir.Value] = ()
    deadline: float = math.inf
    declared_sizes: dict[str, ir.Node] = dataclasses.field(default_factory=dict)


def prove_node(task: Task, points: int, seed: int) -> NodeProof:
    """The verdict about one node; never raises, whatever the lowered graph contains."""
    if is_quantized(task.node):
        reason = (
            "the operands of its matrix products are rounded to 8 bits, which exact arithmetic does "
            "not model; use --check"
        )
        return NodeProof(
            task.name, task.node.op_type, task.path, OUT_OF_SCOPE, reason=reason, outputs=output_names(task.node)
        )
    proof = _verdict(task, points, seed, {})
    if not proof.ok:  # the sizes may never occur: folding may know more of them
        layout = task.node.attributes.get("layout")
        sizes = task.shape_info.folded_sizes(task.node, 0 if layout is None else int(layout.as_int()))
        again = _verdict(task, points, seed, sizes) if sizes else proof
        return proof if again.verdict == OUT_OF_SCOPE else again
    return proof


def _verdict(task: Task, points: int, seed: int, sizes: Mapping[str, int]) -> NodeProof:
    proof = NodeProof(task.name, task.node.op_type, task.path, OUT_OF_SCOPE, outputs=output_names(task.node))
    beyond = ""
    try:
        comparison = _Comparison(task, points, seed, sizes)
        # A constant sum Wb + Rb is rounded if folded, and exact if the graph computes it.
        for folded in comparison.folds:
            try:
                reason = comparison.difference(folded)
                if reason is None:
                    reason = comparison.difference_in_floats()
            except OutOfScopeError as error:
                beyond = beyond or str(error)
                continue
            if reason is None:
                bound, count = FAILURE**comparison.points, comparison.evaluations
                left_out = "; ".join(sorted(comparison.left_out))
                return dataclasses.replace(proof, verdict=PROVED, bound=bound, evaluations=count, reason=left_out)
            if proof.verdict != DIFFERENT:
                count = comparison.evaluations
                proof = dataclasses.replace(proof, verdict=DIFFERENT, reason=reason, evaluations=count)
    except OutOfScopeError as error:
        return dataclasses.replace(proof, reason=str(error))
    except WrongError as error:
        return dataclasses.replace(proof, verdict=DIFFERENT, reason=str(error))
    return dataclasses.replace(proof, verdict=OUT_OF_SCOPE, reason=beyond) if beyond else proof


NO_SIZE = -1
"""The size of symbols that no input of the node declares; runtimes take values of one symbol to have one size."""


class _Comparison:
    """Both sides of a task. sizes: seq_length and batch_size if known to folding but not to shape inference."""

    def __init__(self, task: Task, points: int, seed: int, sizes: Mapping[str, int]) -> None:
        shape_info, node = task.shape_info, task.node
        self._seed, self.points, self._folded, self._deadline = seed, points, sizes, task.deadline
        inputs = {
            name: value
            for name, value in zip(equations.INPUTS, node.inputs, strict=False)
            if value is not None and value.name and shape_info.is_provided(value)
        }
        dtypes = {name: shape_info.dtype(value) for name, value in inputs.items()}
        floats = (dtype for name, dtype in dtypes.items() if name != "sequence_lens")
        dtype = next((dtype for dtype in floats if dtype is not None), None)
        unknown = {name: ir.DataType.INT32 if name == "sequence_lens" else dtype for name in dtypes}
        self._dtypes = {name: known or unknown[name] for name, known in dtypes.items()}
        self._node = equations.read(node, dtype or ir.DataType.FLOAT)
        self._inputs = inputs
        self._shapes = {name: shape_info.shape(value) for name, value in inputs.items()}
        computed = {name: value for name, value in inputs.items() if known_tensor(value) is None}
        self._moved = {name: content(value, task.opset) for name, value in computed.items()}
        self._shapes |= {name: array.shape for name, array in self._moved.items() if array is not None}
        self._counterparts = {name: task.counterparts[name] for name in computed if name in task.counterparts}
        types = {value: self._dtypes[name] for name, value in self._counterparts.items()}
        self._task = task
        self._program = Program(task.replaced, types, task.opset, dtype, task.visible, task.unread)
        declared = {value.name for value in node.outputs if value.shape is not None}
        self._program.declared = [value for value in task.replaced if value.name in declared]
        self._counters = Counters(
            self._program, self._counterparts.get("X"), self._node.layout, self._counterparts.get("sequence_lens"),
            self._constant("sequence_lens"), self._length is not None,
        )  # fmt: skip
        names = {value.name: name for name, value in zip(equations.OUTPUTS, node.outputs, strict=False)}
        self._wanted = [(str(value.name), names[value.name]) for value in task.replaced]
        self.folds = (True, False) if self._constant("B") is not None else (False,)
        self._other_sizes = dict.fromkeys(shape_info.symbols, NO_SIZE)
        self.evaluations = 0
        self._first: dict[ir.Graph, Case] = {}  # by body, the first case in which it ran
        self._cases, self.left_out = choose_cases(self._known, points)

    def _is_constant(self, what: str) -> bool:
        return self._moved.get(what) is not None or known_tensor(self._inputs.get(what)) is not None

    def _constant(self, what: str) -> Array | None:
        """The constant content of an input, or None; kept, because each reading may copy it."""
        if what not in self._moved:
            self._moved[what] = constant(self._inputs.get(what))
        return self._moved[what]

    # -- sizes ---------------------------------------------------------------------------------------------------------

    def _size(self, *input_axes: tuple[str, int]) -> int | None:
        """The first known size among these axes of inputs."""
        for name, axis in input_axes:
            shape = self._shapes.get(name)
            if shape is not None and isinstance(size := shape[axis], int):
                return size
        return None

    @property
    def _length(self) -> int | None:
        size = self._size(("X", 1 if self._node.layout else 0))
        return self._folded.get("seq_length") if size is None else size

    @functools.cached_property
    def _known(self) -> Known:
        """What is known of the node's sizes."""
        second, states = 0 if self._node.layout else 1, ("initial_h", "initial_c")
        N = self._size(("X", second), ("sequence_lens", 0), *((name, 1 - self._node.layout) for name in states))
        return Known(
            self._length, self._folded.get("batch_size") if N is None else N,
            "sequence_lens" in self._inputs, self._constant("sequence_lens"),
            math.prod(filter(None, (self._size(("R", axis)) for axis in range(3)))), self._counters.largest,
            self._features is not None,
        )  # fmt: skip

    @property
    def _features(self) -> int | None:
        return self._size(("W", 2), ("X", 2))

    def _shapes_at(self, case: Case) -> dict[str, tuple[int, ...]]:
        """The shapes of the inputs of floats, by their ONNX names."""
        H = self._node.hidden_size or self._size(("R", 2))
        if H is None:
            raise OutOfScopeError("hidden_size is unknown; add the attribute hidden_size")
        D, G, first = len(self._node.backwards), len(self._node.gates), self._node.layout
        I = self._features  # noqa: E741
        if I is None:
            I = (3 + case.T % 2 if self._known.longer > case.T else case.T) + case.more  # noqa: E741
        state = (case.N, D, H) if first else (D, case.N, H)
        return {
            "X": (case.N, case.T, I) if first else (case.T, case.N, I), "W": (D, G * H, I), "R": (D, G * H, H),
            "B": (D, 2 * G * H), "P": (D, 3 * H), "initial_h": state, "initial_c": state,
        }  # fmt: skip

    def _inputs_at(
        self, case: Case, random: Callable[[str, tuple[int, ...]], Array], image: Callable[[str], Array]
    ) -> tuple[dict[str, Array], dict[ir.Value, Array]]:
        """The inputs by ONNX name, and by value for the graph: images of constants, and random arrays for others."""
        shapes = self._shapes_at(case)
        arrays: dict[str, Array] = {}
        values: dict[ir.Value, Array] = {}
        held = sum(math.prod(shapes[name]) for name in self._inputs if name in shapes and not self._is_constant(name))
        held += case.T * case.N * (math.prod(shapes["R"][:2]) + math.prod(shapes["R"][::2]))
        if held > MOST_HELD:
            text = f"the inputs, gates and states of the node have {held} elements"
            raise OutOfScopeError(f"{text}, but the proof supports at most {MOST_HELD}")
        drawn: dict[ir.Value, Array] = {}  # one value may be used for two inputs
        for name, value in self._inputs.items():
            if name == "sequence_lens":
                array = np.array(case.lengths, np.int64)
            elif self._is_constant(name):
                array = image(name)
            else:
                array = drawn.setdefault(value, random(name, shapes[name]))
                if array.shape != shapes[name]:
                    raise OutOfScopeError(f"one value is read as inputs of different sizes, '{name}' and another one")
            arrays[name] = array
            if name in self._counterparts:
                values.setdefault(self._counterparts[name], array)
        return arrays, values

    def _biases(self, field: Field, B: Array, folded: bool) -> tuple[Array, Array, Array]:
        """Wb, Rb and their sum as field elements. B: elements, if no constant is known."""
        known = self._constant("B")
        if known is None:
            return equations.halves(arithmetic(field), B)
        return equations.bias(field, known, self._node.dtype, folded)

    def _image(self, field: Field, name: str) -> Array:
        """The image of a weight, computed once for each field."""
        if name not in self._images:
            self._images[name] = field.embed(self._constant(name))
        return self._images[name]

    # -- comparing -----------------------------------------------------------------------------------------------------

    def difference(self, folded: bool) -> str | None:
        """The first difference between the two sides, or None."""
        cases: dict[int, list[Case]] = collections.defaultdict(list)
        observed, starts, refusal = Observed(), self._random_starts(), self._counters.refusal
        for case in self._cases:
            cases[case.point].append(case)
        for point in range(self.points):
            self._images: dict[str, Array] = {}
            field = Field(self._seed * 1000 + point)
            limits = () if self._node.limit is None else (self._node.limit,)
            interpreter = EmittedInterpreter(field, limits, self._deadline)
            interpreter.is_open, interpreter.observed = self._known.is_open, observed
            interpreter.copies, interpreter.is_own = self._counters.copies, self._is_own
            interpreter.measured = self._counters.measured
            fitting = Fitting()
            for case in (*starts, *cases[point]):
                check_time(self._deadline)
                entries: list[equations.TraceEntry] | None = [] if starts else None
                reason = self._compare(interpreter, case, folded, entries=entries)
                if reason is not None:
                    return reason
                self._first.update(dict.fromkeys(interpreter.executed - self._first.keys(), case))
                if entries:
                    narrow(fitting, interpreter.carried, states_of(entries))
            try:
                if fitting:
                    self._start_at_random(interpreter, starts, folded, fitting)
            except OutOfScopeError as error:  # later points may still find a difference
                refusal = refusal or error
        alone = [loop for loop, counts in observed.steps.items() if any(counts) and loop not in observed.induced]
        if starts and alone:
            text = f"{alone[0].op_type} '{alone[0].name}' runs only at some lengths"
            refusal = refusal or OutOfScopeError(text)
        if refusal is not None:
            raise refusal
        observed.check(self._length is not None)
        # Constant lengths leave the empty sequence out, for which a branch may be meant.
        lengths = {case.T for case in self._cases}
        is_complete = self._length is not None or 0 in lengths
        for node in self._program.all_nodes if self.evaluations and any(lengths) and is_complete else ():
            for name, body in subgraphs(node):
                if body not in self._first:
                    raise OutOfScopeError(f"the {name} of {node.op_type} '{node.name}' ran in no comparison")
        return None

    def _is_own(self, size: str) -> bool:
        """Whether a declared size is a new one of this node alone; runtimes may give values of one size one buffer."""
        task = self._task
        return size.startswith(f"{task.name}/") and task.declared_sizes.setdefault(size, task.node) is task.node

    def _random_starts(self) -> list[Case]:
        """The cases in which loops also begin with random states; none if all lengths are compared."""
        known, is_large = self._known, self._known.is_large
        few, rows = (2, 2) if is_large else (3, 4)
        steps = known.T if known.T is not None else few
        if known.lengths is not None:
            rows = known.lengths.size
            steps = int(known.lengths.max(initial=0)) + 2 if known.T is None else steps
        elif known.N is not None:
            rows = known.N
        if not steps or not rows or (known.T is not None and (known.lengths is not None or not known.has_lengths)):
            return []
        vectors = [known.lengths]
        if known.lengths is None and known.has_lengths:  # rows end after different steps, one before the first
            vectors = [(steps - np.arange(rows) - later) % (steps + 1) for later in range(1 + (not is_large))]
        return [Case(steps, rows, None if each is None else tuple(map(int, each)), 0) for each in vectors]

    def _start_at_random(
        self, interpreter: EmittedInterpreter, starts: Sequence[Case], folded: bool, fitting: Fitting
    ) -> None:
        """Compare runs in which loops begin with random states of the node. fitting: what they may carry.

        Raises OutOfScopeError for a difference, because no run of the node begins in this way.
        """
        for last_first in (False, True):  # two loops may carry equal states
            selections = carried_states(fitting, last_first)
            reasons = (self._differ_from_random(interpreter, case, folded, selections) for case in starts)
            reason = next(filter(None, reasons), None)
            if reason is None:
                interpreter.observed.induced |= {node for node, _ in selections}
                return
        raise OutOfScopeError(f"{reason}, if loops begin with random states")

    def _differ_from_random(
        self, interpreter: EmittedInterpreter, case: Case, folded: bool, selections: Mapping[Slot, Selection]
    ) -> str | None:  # fmt: skip
        """The first difference in one case if loops begin with random states, or None."""
        (directions, _, units), entries = self._shapes_at(case)["R"], list[equations.TraceEntry]()
        initial = {name: interpreter.field.random((directions, case.N, units)) for name in ("H", "C")}
        for state in initial.values():
            state[:, [length == 0 for length in case.lengths or ()]] = 0  # as the operator does
        interpreter.initial = {slot: select(initial, selection) for slot, selection in selections.items()}
        reason = self._compare(interpreter, case, folded, initial, entries)
        interpreter.initial = {}
        return reason or differing(interpreter.carried, states_of(entries), selections)

    def _compare(
        self, interpreter: EmittedInterpreter, case: Case, folded: bool, initial: States | None = None,
        entries: list[equations.TraceEntry] | None = None,
    ) -> str | None:  # fmt: skip
        """The first difference in one case, or None.

        initial: the states of the node, instead of its own.  entries: filled with its states after each step.
        """
        field = interpreter.field
        arrays, values = self._inputs_at(
            case, lambda _, shape: field.random(shape), lambda name: self._image(field, name)
        )
        text: dict[str, Any] = dict(arrays)
        if "B" in text:
            text["B"] = self._biases(field, arrays["B"], folded)
        for name, state in (initial or {}).items():
            text[f"initial_{name.lower()}"] = state.swapaxes(0, 1) if self._node.layout else state
        own = set(field.symbols)
        own_sizes = symbol_sizes((self._shapes[name], array.shape) for name, array in arrays.items())
        interpreter.symbols = {**self._other_sizes, **own_sizes}
        hidden_size = arrays["R"].shape[-1]
        interpreter.sizes = case.T, case.N
        interpreter.features, weights = arrays["X"].shape[-1], arrays["R"].size // hidden_size
        products = case.T * case.N * (interpreter.features + hidden_size) * weights
        interpreter.most_work = MOST_WORK + MOST_TIMES * products + MOST_NODES * NODE * case.T
        try:
            right = interpreter.run(self._program, values)
        except NoStepsError:
            self.left_out.add(_without_steps(self._program.opset))
            return None
        except WrongError as error:
            return f"{error}, {case}"
        if interpreter.field.symbols - own:
            new = min(interpreter.field.symbols - own)
            return f"the lowered node uses the constant {new}, which the original node does not use"
        expected = equations.evaluate(arithmetic(interpreter.field), self._node, text, case.vector, states=entries)
        self.evaluations += 1
        for (name, output), actual in zip(self._wanted, right, strict=True):
            wanted = expected[output]
            if actual.shape != wanted.shape and not (self._program.has_loop and _both_empty(wanted, actual)):
                return f"{case}, '{name}' has shape {list(actual.shape)} instead of {list(wanted.shape)}"
            if actual.dtype != np.uint64:
                return f"{case}, '{name}' has type {element_type(actual)} instead of a floating-point type"
            if wanted.size and not np.array_equal(actual, wanted):
                steps = list[equations.TraceEntry]()
                equations.evaluate(arithmetic(interpreter.field), self._node, text, case.vector, steps)
                return f"'{name}' {self._where(interpreter, values, steps)}, {case}"
        return None

    def difference_in_floats(self) -> str | None:
        """The first difference between the two sides in floats, or None."""
        cases = self._float_cases()
        if not cases:
            return None
        rng = np.random.default_rng(self._seed)
        runs = [*((cases[0], scale) for scale in SCALES), *((case, SCALES[0]) for case in cases[1:])]
        try:
            run = float_run.runner(self._program, self._counterparts.values())
            for case, scale in runs:
                differ = functools.partial(self._differ_in_floats, run, case, rng, scale)
                if reason := float_run.confirmed(differ):
                    return f"{reason} in floating-point arithmetic, {case}"
        except Exception as error:  # the evaluator raises exceptions of any type
            raise OutOfScopeError(f"onnx's evaluator cannot run the lowered node: {error}") from None
        return None

    def _float_cases(self) -> list[Case]:
        """The cases to run in floats, the one with the most different lengths first; [] if no case has steps and rows.

        All sizes, unless the weights are large, and the first case in which each body ran. If the length is known, a
        graph may branch on the lengths of rows, so all of these run.
        """
        cases = [case for case in self._cases if case.T and case.N]
        short = [case for case in cases if case.T < LENGTHS] or cases[:1]
        if not short:
            return []
        varied = max(short, key=lambda case: (len({*(case.lengths or ())}), case.T))
        full, long = max(short, key=lambda case: (case.T, sum(case.lengths or ()))), max(cases, key=lambda case: case.T)
        is_free = self._length is None
        sized = {(case.T, case.N, None if is_free else case.lengths): case for case in self._cases}
        others = [] if is_free and self._known.is_large else sized.values()
        return [*dict.fromkeys((varied, full, long, *self._first.values(), *others))]

    def _differ_in_floats(
        self, run: float_run.Run, case: Case, rng: np.random.Generator, scale: float, only: int | None = None
    ) -> str:
        """The difference for random inputs with this standard deviation, or "".

        only: all states begin with 0, and X is 0 but for this step of this row, so that states overflow less often.
        """

        def random(name: str, shape: tuple[int, ...]) -> Array:
            numbers = scale * rng.standard_normal(shape)
            if only is not None and name in ("X", "initial_h", "initial_c"):
                kept, numbers = numbers, np.zeros(shape)
                if name == "X":  # [T, N, I] or, with layout 1, [N, T, I]
                    place = only % shape[0], only % shape[1]
                    numbers[place] = kept[place]
            return np.asarray(numbers).astype((self._dtypes[name] or ir.DataType.FLOAT).numpy())

        arrays, values = self._inputs_at(case, random, lambda name: np.asarray(self._constant(name)))
        lengths = arrays.pop("sequence_lens", None)
        values = {value: array.astype(np.int32) if array is lengths else array for value, array in values.items()}
        exact, rounded = float_run.expected(self._node, arrays, lengths)
        try:
            results = run(values)
        except Exception:  # as of a Scan without steps, which runtimes refuse too
            if case.T and case.N:
                raise
            return ""
        together = len(self._node.functions) > 1 and sum(node.op_type in LOOPS for node in self._program.nodes) < 2
        multiplies = together or schema_of("Where", self._program.opset) is None
        overflows = multiplies and not all(np.isfinite(array).all() for array in rounded.values())
        for step in (0, case.T // 2, -1) if overflows and only is None else ():
            if text := self._differ_in_floats(run, case, rng, scale, step):
                return text
        for (name, output), array in zip(self._wanted, results, strict=True):
            if overflows:  # 0 times infinity reaches both directions in one loop, and the rows that a mask multiplies
                with np.errstate(over="ignore"):
                    array = np.where(np.isnan(array), exact[output].astype(array.dtype), array)
            if exact[output].size and (
                text := float_run.difference(array, exact[output], rounded[output], by_unit=True)
            ):
                return f"'{name}' {text}"
        return ""

    def _where(
        self, interpreter: EmittedInterpreter, values: Mapping[ir.Value, Array], trace: Sequence[equations.TraceEntry]
    ) -> str:  # fmt: skip
        """The first intermediate result of the node that the graph does not compute, found by value."""
        interpreter.recorded = []
        interpreter.run(self._program, values)
        there = np.unique(np.concatenate([np.zeros(1, np.uint64), *(part.ravel() for part in interpreter.recorded)]))
        interpreter.recorded = None
        for entry in trace:
            if not _all_in(entry.values, there):
                direction = "backward" if entry.reverse else "forward"
                return f"first differs in {entry.name} at step {entry.step} of the {direction} direction"
        return "has the correct values, but its steps are in the wrong order"


def _without_steps(opset: int) -> str:
    """What a proof leaves out if a loop cannot run without steps."""
    if opset < FIRST_RESHAPE:
        return f"the proof does not cover empty sequences, because opset {opset} cannot restore their other sizes"
    return (
        "the proof does not cover a Scan over an empty sequence, because runtimes are not required to run such a Scan"
    )


def _both_empty(expected: Array, actual: Array) -> bool:
    """Whether both arrays are empty, and their sizes differ only if one is 0, as after a Loop without trips."""
    sizes = zip(expected.shape, actual.shape, strict=False)
    compatible = expected.ndim == actual.ndim and all(a == b or 0 in (a, b) for a, b in sizes)
    return compatible and expected.size == actual.size == 0


def _all_in(values: Array, ordered: Array) -> bool:
    """Whether all values are in a sorted array; np.isin would sort it at each call."""
    indices = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    return bool(np.all(ordered[indices] == values))
