"""Run the subgraph that replaces a recurrent node, with strict checks, because only some sizes are compared.

It accepts only what lowering emits: uses of operators that `emitted_uses` lists, and values with their declared shapes.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from rnn_lower.ir.schemas import WITH_BODIES
from rnn_lower.ir.walk import known_tensor
from rnn_lower.lowering.node import Dim
from rnn_lower.proving.call import Call, DivisionByZeroError, OutOfScopeError, UndefinedError, WrongError
from rnn_lower.proving.counters import FloatCounters
from rnn_lower.proving.emitted_uses import BOUNDS, COMPARE, POSITIONS, USES, may_divide_by_zero
from rnn_lower.proving.field import SMALL, Array, Field
from rnn_lower.proving.interpreter import Graph, Interpreter, check_shape

AT_AN_END = (-1, 0, 1)
"""Starts and ends of a Slice of the first or the last position, and indices of a Gather of them."""


MOST_OBSERVED = 400
"""The maximum number of evaluations of a node that are searched for counters."""

ELEMENT = 32
"""The work of one element of a result, in products; it takes as much time, and its memory."""


class Observed:
    """What nodes did in all comparisons.

    margins: by comparison of two computed integers, their differences.
    positions: by node and axis, the sizes of the axis, and computed positions in it.
    """

    def __init__(self) -> None:
        self.margins: dict[ir.Node, set[int]] = collections.defaultdict(set)
        self.positions: dict[tuple[ir.Node, int], set[tuple[int, int]]] = collections.defaultdict(set)

    def check(self) -> None:
        """Raise OutOfScopeError if a node may do at other sizes what it did in no comparison."""
        for node, seen in self.margins.items():
            if len(seen) > 1 and not (0 in seen and seen & {-1, 1}):
                text = f"{node.op_type} '{node.name}' compares integers"
                raise OutOfScopeError(f"{text} that were never equal and never differed by 1")
        for (node, axis), pairs in self.positions.items():
            sizes, most = {size for size, _ in pairs}, max(position for _, position in pairs)
            if len(sizes) == 1 and most < max(sizes) - 1:
                text = f"{node.op_type} '{node.name}' selects from axis {axis} of size {max(sizes)}"
                raise OutOfScopeError(f"{text} at computed positions, at most at {most}")


class EmittedInterpreter(Interpreter):
    """Evaluates emitted nodes on field elements.

    longest: the largest length that is compared, if the model leaves a size open.  knows_length: that of sequences.
    symbols: the sizes by symbolic name, or None for ambiguous names.
    most_work: the most products and elements to compute in one run.
    most_carried: the most floats that all loops together may carry from step to step: the states of the node.
    observed: what nodes did in all comparisons; interpreters may share it.
    recorded: None, or a list to which every computed array of field elements is appended.
    """

    longest: int | None = None
    knows_length = False
    most_work = 1 << 40
    most_carried = 0
    recorded: list[Array] | None = None

    def __init__(self, field: Field, limits: Collection[float] = (), deadline: float = math.inf) -> None:
        super().__init__(field, limits, deadline)
        self.counters: FloatCounters | None = None
        self.symbols: dict[str, int | None] = {}
        self._bounds: dict[ir.Node, list[int]] = {}
        self._counting: dict[ir.Node, list[int]] = {}
        self._sizes: dict[ir.Node, tuple[int, ...]] = {}
        self.observed, self._work = Observed(), 0

    def run(self, graph: Graph, inputs: Mapping[ir.Value, Array]) -> list[Array]:
        self._carried = self._work = self.field.products = 0
        if self.longest is not None:
            self.counters = FloatCounters(self.field, self._is_constant, inputs if self.knows_length else None)
        try:
            return super().run(graph, inputs)
        except UndefinedError as error:
            raise WrongError(f"{error.node.op_type} '{error.node.name}' may divide by zero") from None

    def _bind(self, value: ir.Value, array: Array) -> None:
        if value.shape is not None and all(value is not known for known in self._graph.declared):
            for dim, size in zip(value.shape, array.shape, strict=False):
                if isinstance(dim, ir.SymbolicDim) and dim.value:
                    self.symbols.setdefault(dim.value, size)  # lowering may name sizes, too
            check_shape(value, array, self.symbols)
        super()._bind(value, array)

    def _execute(self, node: ir.Node) -> Sequence[Array]:
        results = super()._execute(node)
        self._work += ELEMENT * sum(result.size for result in results)
        if self._work + self.field.products > self.most_work:
            raise OutOfScopeError(f"the graph computes more than {self.most_work} products")
        if node.op_type in ("Add", "Sub") and results[0].dtype == np.int64:
            self._check_sum(node, results[0])
        elif node.op_type in ("Add", "Sub", "Gemm", "MatMul") and self.longest is not None:
            self._note(node, self.longest + 2, results[0])
        if self.counters is not None and self.counters.concerns(node):
            self.counters.follow(node, self._operands(node))
        if node.op_type in WITH_BODIES and len(results) != len(node.outputs):
            raise WrongError(f"{node.op_type} '{node.name}' has {len(node.outputs)} outputs instead of {len(results)}")
        if self.recorded is not None:
            self.recorded += [result for result in results if result.dtype == np.uint64]
        return results

    def _results(self, node: ir.Node) -> Sequence[Array]:
        if node.op_type in ("Loop", "Scan"):
            self._check_carried(node)
            if self.counters is not None:
                self.counters.enter(node, self._operands(node))
        return super()._results(node)

    def _check_state(self, node: ir.Node, before: Array, after: Array) -> None:
        """Raise OutOfScopeError if a state of a Loop grows, so that it may carry more than the node."""
        if before.shape != after.shape:
            raise OutOfScopeError(f"a state of {node.op_type} '{node.name}' changes its shape")

    def _check_carried(self, node: ir.Node) -> None:
        """Raise OutOfScopeError if loops carry more floats than the node, which may matter at other lengths."""
        scanned = 0 if node.op_type == "Loop" else node.attributes.get_int("num_scan_inputs", 0)
        states = self._operands(node)[2 if node.op_type == "Loop" else 0 : len(node.inputs) - scanned]
        self._carried += sum(state.size for state in states if state is not None and state.dtype == np.uint64)
        if self._carried > self.most_carried:
            raise OutOfScopeError(
                f"the loops carry {self._carried} floats from step to step, but the states of the node have only "
                f"{self.most_carried} elements"
            )

    def _compute(self, call: Call) -> Sequence[Array]:
        node = call.node
        check = USES.get(node.op_type)
        why = "" if check is None else check(call)
        if why:
            raise OutOfScopeError(why)
        if node.op_type in POSITIONS:
            self._check_positions(call)
        if self.longest is not None and node.op_type in COMPARE and call[0].dtype == np.uint64:
            self._check_bound(call, self.longest)
        elif self.longest is not None and node.op_type in BOUNDS:
            self._check_integers(call, self.longest + 1)  # a length may exceed the number of steps by 1
            if not any(map(self._is_constant, node.inputs)):  # of constants, all lengths up to them are compared
                self.observed.margins[node] |= {*np.unique(call[0] - call[1]).tolist()}
        results = super()._compute(call)
        if may_divide_by_zero(call):
            raise DivisionByZeroError(results[0])
        return results

    def _check_positions(self, call: Call) -> None:
        """Raise OutOfScopeError if constant positions select from an axis whose size differs between cases."""
        sizes = self._sizes.setdefault(call.node, call[0].shape)
        for axis, operand, position in POSITIONS[call.node.op_type](call):
            is_constant = operand >= len(call.node.inputs) or self._is_constant(call.node.inputs[operand])
            if self.longest is not None and not is_constant:
                self.observed.positions[call.node, axis] |= {(call[0].shape[axis], abs(position))}
            is_beyond = position not in AT_AN_END and abs(position) < (1 << 31) - 1
            if is_constant and is_beyond and sizes[axis] != call[0].shape[axis]:
                raise OutOfScopeError(
                    f"{call.label} reads position {position} of an axis of variable size; of such an axis the proof "
                    "supports only the first and the last position"
                )

    def _is_constant(self, value: ir.Value | None) -> bool:
        return value is None or value in self._graph.folded or known_tensor(value) is not None

    def _check_integers(self, call: Call, most: int) -> None:
        """Raise OutOfScopeError if integers are compared with one beyond the compared lengths."""
        for array in (call[0], call[1]):
            if np.abs(array).max(initial=0) > most:
                text = f"{call.label} compares integers with {np.abs(array).max()}"
                raise OutOfScopeError(f"{text}, but the longest sequence of the proof has {most - 1} steps")

    def _check_sum(self, node: ir.Node, total: Array) -> None:
        """Raise OutOfScopeError if integers are far beyond the compared lengths."""
        most = int(np.abs(total).max(initial=0))
        if most >> 31 or (self.longest is not None and most > self.longest + 2):
            raise OutOfScopeError(
                f"{node.op_type} '{node.name}' computes the integer {most}, which exceeds all sizes in the proof"
            )

    def _check_bound(self, call: Call, longest: int) -> None:
        """Note floats that are combined with a number beyond the compared lengths, and whether they seem to count."""
        if call.node not in self._bounds:
            known = list(map(self._is_constant, call.node.inputs))
            numbers = [self.field.small(call[index]) if known[index] else None for index in (0, 1)]
            self._bounds[call.node] = [
                0 if not is_known else SMALL if array is None else int(np.abs(array).max(initial=0))
                for is_known, array in zip(known, numbers, strict=True)
            ]
        for most, count in zip(self._bounds[call.node], (call[1], call[0]), strict=True):
            if most > longest:
                self._note(call.node, 0, count, most)

    def _note(self, node: ir.Node, longest: int, floats: Array, most: int = 0) -> None:
        """Note whether floats of a node are small integers above `longest`, so that they may count.

        most: the number with which they are combined; by default their own largest.
        """
        noted = self._counting.setdefault(node, [0, 0, 0])
        if noted[1] < MOST_OBSERVED and floats.any():
            small = self.field.small(floats)
            largest = 0 if small is None else int(np.abs(small).max())
            noted[1] += 1
            if largest > longest:
                noted[0], noted[2] = noted[0] + 1, most or largest

    def check_counting(self) -> None:
        """Raise OutOfScopeError if floats count to a number beyond the compared lengths.

        By chance, a random element may be a small integer, too, but rarely.
        """
        for node, (count, total, most) in self._counting.items():
            if count >= min(2, total) and count * 10 >= total > 0:
                raise OutOfScopeError(
                    f"{node.op_type} '{node.name}' counts with the number {most}, but the longest sequence in the "
                    f"proof has only {self.longest} steps"
                )


def symbol_sizes(shapes: Iterable[tuple[Sequence[Dim] | None, tuple[int, ...]]]) -> dict[str, int | None]:
    """The sizes by symbolic name, from declared and actual shapes; None for a name that stands for several sizes."""
    sizes: dict[str, int | None] = {}
    for declared, actual in shapes:
        for dim, size in zip(declared or (), actual, strict=False):
            if isinstance(dim, str):
                sizes[dim] = size if sizes.get(dim, size) == size else None
    return sizes
