"""Run the subgraph that replaces a recurrent node, with strict checks, because only some sizes are compared.

It accepts only what lowering emits: uses of operators that `emitted_uses` lists, and values with their declared shapes.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from rnn_lower.ir.schemas import WITH_BODIES
from rnn_lower.ir.walk import known_tensor
from rnn_lower.lowering.node import Dim
from rnn_lower.proving.exact.call import Call, DivisionByZeroError, OutOfScopeError, UndefinedError, WrongError
from rnn_lower.proving.exact.field import Array, Field
from rnn_lower.proving.exact.interpreter import Graph, Interpreter, check_shape
from rnn_lower.proving.nodes.emitted_uses import POSITIONS, USES, may_divide_by_zero
from rnn_lower.proving.nodes.induction import Slot

AT_AN_END = (-1, 0, 1)
"""Starts and ends of a Slice of the first or the last position, and indices of a Gather of them."""

SUMMED = ("Conv", "Gemm", "MatMul")
"""Operators that sum products over an axis of their first operand."""

ELEMENT, NODE = 32, 1 << 13
"""The work of one element of a result and of one node, in products, which take as much time."""


class Observed:
    """What nodes did in all comparisons.

    positions: by node and axis, the sizes of the axis, and computed positions in it.
    steps: by loop that carries floats, its numbers of steps.  induced: loops that also ran from random states.
    joined: by Concat, operand and size of the features of X, the size of the operand along the axis.
    summed: by product of matrices and size of the features of X, the number of products that it sums.
    sliced: by Slice and axis, the sizes of the axis before and after it.
    ends: by node and axis, if it selects the first or last position: size of the axis, length and batch size.
    """

    def __init__(self) -> None:
        self.steps: dict[ir.Node, set[int]] = collections.defaultdict(set)
        self.induced: set[ir.Node] = set()
        self.joined: dict[tuple[ir.Node, int, int], int] = {}
        self.summed: dict[tuple[ir.Node, int], int] = {}
        self.ends: dict[tuple[ir.Node, int], set[tuple[int, int, int]]] = collections.defaultdict(set)
        self.sliced: dict[tuple[ir.Node, int], set[tuple[int, int]]] = collections.defaultdict(set)
        self.positions: dict[tuple[ir.Node, int], set[tuple[int, int]]] = collections.defaultdict(set)

    def check(self, knows_length: bool) -> None:
        """Raise OutOfScopeError if a node may do at other sizes what it did in no comparison."""
        for node, counts in self.steps.items():
            if knows_length and len(counts) > 1:
                text = f"{node.op_type} '{node.name}' carries floats in a variable number of steps"
                raise OutOfScopeError(f"{text}, although the length of the sequence is known")
        for (node, _), seen in self.ends.items():
            is_batch, is_time = (all(each[0] == each[k] for each in seen) for k in (2, 1))
            if is_batch and not is_time and len({size for size, *_ in seen}) > 1:
                raise OutOfScopeError(f"{node.op_type} '{node.name}' selects a row of the batch")
        for (node, axis), pairs in self.sliced.items():
            if len({size for size, _ in pairs}) > 1 and len({rest for _, rest in pairs}) > 1:
                raise OutOfScopeError(f"{node.op_type} '{node.name}' shortens axis {axis}, which has a variable size")
        for (node, axis), pairs in self.positions.items():
            sizes, most = {size for size, _ in pairs}, max(position for _, position in pairs)
            if len(sizes) == 1 and (most < max(sizes) - 1 or not knows_length):
                text = f"{node.op_type} '{node.name}' selects from axis {axis} of size {max(sizes)}"
                raise OutOfScopeError(f"{text} at computed positions, at most at {most}")


class EmittedInterpreter(Interpreter):
    """Evaluates emitted nodes on field elements.

    is_open: whether some length or batch size is not compared.  features: the size of those of X.
    symbols: the sizes by symbolic name, or None for ambiguous names.
    most_work: the most products and elements to compute in one run.
    carried: the floats that loops carry, after each step.  initial: those with which they begin, if not their own.
    sizes: the length of the sequence and the batch size.  is_own: whether a name of a size is a new one of the node.
    observed: what nodes did in all comparisons; interpreters may share it.
    copies: products of matrices that must not sum.  measured: as in `Counters`.
    recorded: None, or a list to which every computed array of field elements is appended.
    """

    is_open = False
    features, sizes = 0, (0, 0)
    is_own: Callable[[str], bool] = staticmethod(lambda _: False)
    most_work = 1 << 40
    copies: Collection[ir.Node] = ()
    measured: Mapping[ir.Node, int] = {}
    recorded: list[Array] | None = None

    def __init__(self, field: Field, limits: Collection[float] = (), deadline: float = math.inf) -> None:
        super().__init__(field, limits, deadline)
        self.symbols: dict[str, int | None] = {}
        self._sizes: dict[ir.Node, tuple[int, ...]] = {}
        self.observed, self._work = Observed(), 0
        self._steps: dict[ir.Node, int] = {}
        self.carried: dict[Slot, list[Array]] = collections.defaultdict(list)
        self.initial: dict[Slot, Array] = {}

    def run(self, graph: Graph, inputs: Mapping[ir.Value, Array]) -> list[Array]:
        self._work = self.field.products = 0
        self.carried = collections.defaultdict(list)
        try:
            return super().run(graph, inputs)
        except UndefinedError as error:
            raise WrongError(f"{error.node.op_type} '{error.node.name}' may divide by zero") from None

    def _bind(self, value: ir.Value, array: Array) -> None:
        if value.shape is not None and all(value is not known for known in self._graph.declared):
            for dim, size in zip(value.shape, array.shape, strict=False):
                name = "" if isinstance(dim, int) else str(dim.value or "")
                if name and self.is_own(name):
                    self.symbols.setdefault(name, size)
                elif name and self.symbols.get(name) is None:
                    raise WrongError(f"'{value.name}' declares a size '{name}', which is new or has several values")
            check_shape(value, array, self.symbols)
        super()._bind(value, array)

    def _execute(self, node: ir.Node) -> Sequence[Array]:
        results = super()._execute(node)
        self._work += NODE + ELEMENT * sum(result.size for result in results)
        self._check_work(0)
        if node.op_type in WITH_BODIES and len(results) != len(node.outputs):
            raise WrongError(f"{node.op_type} '{node.name}' has {len(node.outputs)} outputs instead of {len(results)}")
        if self.recorded is not None:
            self.recorded += [result for result in results if result.dtype == np.uint64]
        return results

    def _check_work(self, elements: int) -> None:
        """Raise OutOfScopeError if the work exceeds the limit, including a result with this number of elements."""
        if self._work + ELEMENT * elements + self.field.products > self.most_work:
            raise OutOfScopeError(f"the graph computes more than {self.most_work} products")

    def _limit_size(self, node: ir.Node, operands: Sequence[Array | None]) -> int:
        size = super()._limit_size(node, operands)
        self._check_work(size)
        return size

    def _results(self, node: ir.Node) -> Sequence[Array]:
        if node.op_type not in ("Loop", "Scan"):
            return super()._results(node)
        self._steps[node] = 0
        results = super()._results(node)
        if any(array.dtype == np.uint64 for array in self._states(node)):
            self.observed.steps[node].add(self._steps[node])
        return results

    def _states(self, node: ir.Node) -> list[Array]:
        """The initial states of a Loop or a Scan."""
        scanned = 0 if node.op_type == "Loop" else node.attributes.get_int("num_scan_inputs", 0)
        states = self._operands(node)[2 if node.op_type == "Loop" else 0 : len(node.inputs) - scanned]
        return [state for state in states if state is not None]

    def _initial(self, node: ir.Node, states: Sequence[Array]) -> Sequence[Array]:
        return [self.initial.get((node, index), state) for index, state in enumerate(states)]

    def _check_state(self, node: ir.Node, index: int, before: Array, after: Array) -> None:
        """Raise OutOfScopeError if a state grows, so that it may carry more than the node."""
        if before.shape != after.shape:
            raise OutOfScopeError(f"a state of {node.op_type} '{node.name}' changes its shape")
        self._steps[node] += index == 0
        if after.dtype == np.uint64:
            self.carried[node, index].append(after)

    def _compute(self, call: Call) -> Sequence[Array]:
        node = call.node
        check = USES.get(node.op_type)
        why = "" if check is None else check(call)
        if why:
            raise OutOfScopeError(why)
        if node.op_type in POSITIONS:
            self._check_positions(call)
        if node in self.measured and (call[0].ndim != 3 or call[0].shape[self.measured[node]] != self.sizes[0]):
            raise OutOfScopeError(f"{call.label} reads a size that is not that of X")
        if node.op_type in SUMMED:
            self._check_products(call)
        elif node.op_type == "Concat" and self.is_open:
            self._check_joined(call)
        results = super()._compute(call)
        if node.op_type == "Slice":
            for axis, sizes in enumerate(zip(call[0].shape, results[0].shape, strict=True)):
                if sizes[0] != sizes[1] or (node, axis) in self.observed.sliced:
                    self.observed.sliced[node, axis].add(sizes)
        if may_divide_by_zero(call):
            raise DivisionByZeroError(results[0])
        return results

    def _check_positions(self, call: Call) -> None:
        """Raise OutOfScopeError if constant positions select from an axis whose size differs between cases."""
        sizes = self._sizes.setdefault(call.node, call[0].shape)
        for axis, operand, position in POSITIONS[call.node.op_type](call):
            is_constant = operand >= len(call.node.inputs) or self._is_constant(call.node.inputs[operand])
            if self.is_open and not is_constant:
                self.observed.positions[call.node, axis] |= {(call[0].shape[axis], abs(position))}
            if is_constant and self.is_open:
                self.observed.ends[call.node, axis].add((call[0].shape[axis], *self.sizes))
            is_beyond = position not in AT_AN_END and abs(position) < (1 << 31) - 1
            if is_constant and is_beyond and sizes[axis] != call[0].shape[axis]:
                raise OutOfScopeError(
                    f"{call.label} reads position {position} of an axis of variable size; of such an axis the proof "
                    "supports only the first and the last position"
                )

    def _is_constant(self, value: ir.Value | None) -> bool:
        return value is None or value in self._graph.folded or known_tensor(value) is not None

    def _check_joined(self, call: Call) -> None:
        """Raise OutOfScopeError if a Concat joins parts of fixed and of variable size, which shifts positions."""
        sizes = [array.shape[call.attribute("axis", 1)] for array in call.operands]
        if len({*sizes}) <= 1:
            return
        for index, size in enumerate(sizes):
            if self.observed.joined.setdefault((call.node, index, self.features), size) != size:
                raise OutOfScopeError(f"{call.label} joins parts whose size depends on that of the sequence or batch")

    def _check_products(self, call: Call) -> None:
        """Raise OutOfScopeError if a node sums products over an axis of variable size, and so may count."""
        axis = {"Conv": 1, "Gemm": -2 if call.node.attributes.get_int("transA", 0) else -1}.get(call.node.op_type, -1)
        size = call[0].shape[axis]
        if call.node in self.copies and size != 1:
            raise OutOfScopeError(f"{call.label} sums {size} sizes or positions")
        if self.observed.summed.setdefault((call.node, self.features), size) != size and self.is_open:
            raise OutOfScopeError(f"{call.label} sums over an axis whose size depends on that of the sequence or batch")


def symbol_sizes(shapes: Iterable[tuple[Sequence[Dim] | None, tuple[int, ...]]]) -> dict[str, int | None]:
    """The sizes by symbolic name, from declared and actual shapes; None for a name that stands for several sizes."""
    sizes: dict[str, int | None] = {}
    for declared, actual in shapes:
        for dim, size in zip(declared or (), actual, strict=False):
            if isinstance(dim, str):
                sizes[dim] = size if sizes.get(dim, size) == size else None
    return sizes
