"""Run the subgraph that replaces a recurrent node, with strict checks, because only some sizes are compared.

It accepts only what lowering emits: operator uses that behave the same at lengths that are not compared, and values
with their declared shapes.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from rnn_lower.ir.schemas import WITH_BODIES
from rnn_lower.ir.walk import constant, known_tensor
from rnn_lower.lowering.node import Dim
from rnn_lower.proving.call import Call, OutOfScopeError, UndefinedError, WrongError, cast_type, element_type
from rnn_lower.proving.elementwise import bounds_of
from rnn_lower.proving.field import SMALL, Array, Field
from rnn_lower.proving.interpreter import Graph, Interpreter, check_shape

COMPARE = ("Less", "Greater", "Max", "Min", "Add", "Sub")
"""Operators that can make a graph behave differently beyond some length."""

COPIES = ("Cast", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
"""Operators whose results are elements of their first input."""

AT_AN_END = (-1, 0, 1)
"""Starts and ends of a Slice of the first or the last position, and indices of a Gather of them."""

MOST_OBSERVED = 400
"""The maximum number of evaluations of a node that are searched for counters."""


def _binary(call: Call) -> str:
    """A binary operator on two floats or two integers."""
    if len(call.node.inputs) != 2:
        return f"{call.label} has {len(call.node.inputs)} operands, but the proof supports only 2"
    a, b = call[0], call[1]
    if a.dtype != b.dtype:
        raise WrongError(f"the operands of {call.label} have different types, {element_type(a)} and {element_type(b)}")
    if call.node.op_type == "Div" and a.dtype == np.uint64:
        return _reciprocal(call)
    # A quotient may first differ, and a product may first wrap, at a longer length.
    longer = call.node.op_type in ("Div", "Mul") and a.dtype == np.int64
    unsupported = a.dtype == np.bool_ or longer
    return (
        f"{call.label} has operands of type {element_type(a)}, which the proof does not support" if unsupported else ""
    )


def _reciprocal(call: Call) -> str:
    """A division of floats, which random elements never divide by zero."""
    divisor = call.node.inputs[-1]
    array = constant(divisor)
    never_zero = bool(np.all(array)) if array is not None else _is_positive(divisor)
    return "" if never_zero else f"{call.label} divides by a number that may be zero"


def _is_positive(value: ir.Value | None, least: float = 1e-30) -> bool:
    """Whether a value is never below `least`, by the operators that compute it."""
    array = constant(value)
    node = None if value is None else value.producer()
    if array is not None:
        return bool(np.all(array >= least))
    if node is None:
        return False
    if node.op_type in ("Abs", "Exp", "Relu", "Sigmoid"):
        return not least
    if node.op_type == "Add":
        a, b = node.inputs
        return any(_is_positive(x, least) and _is_positive(y, 0) for x, y in ((a, b), (b, a)))
    if node.op_type == "Max":
        return any(_is_positive(operand, least) for operand in node.inputs)
    return node.op_type in COPIES and _is_positive(node.inputs[0], least)


def _float(call: Call) -> str:
    call.real(0)
    return ""


def _clip(call: Call) -> str:
    if None not in bounds_of(call):  # constant bounds with min <= max were matched by `algebraic_patterns`
        raise WrongError(f"a bound of {call.label} is not a constant, or min is greater than max")
    if any(bound.ndim for bound in bounds_of(call) if bound is not None):
        raise WrongError(f"a bound of {call.label} is not a scalar")
    return _float(call)


def _cast(call: Call) -> str:
    """A Cast; narrow integers are out of scope, because they may wrap around."""
    dtype = cast_type(call.attribute("to"))
    exact = dtype in (ir.DataType.INT32, ir.DataType.INT64, ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.BOOL)
    return (
        ""
        if exact or call[0].dtype == np.uint64
        else f"{call.label} casts integers to {dtype.name}, which the proof does not support"
    )


def _conv(call: Call) -> str:
    """A Conv with a kernel of size 1: a product over the channels at each position."""
    unusual = call.node.attributes.keys() - {"kernel_shape", "group"} or call.attribute("group", 1) != 1
    plain = call[0].ndim == call[1].ndim == 4 and call[1].shape[2:] == (1, 1) and len(call.inputs) == 2
    return "" if plain and not unusual else f"{call.label} is not a 1 x 1 convolution"


def _matmul(call: Call) -> str:
    a, b = call[0], call[1]
    same_batch = min(a.ndim, b.ndim) > 1 and (b.ndim == 2 or a.shape[:-2] == b.shape[:-2])
    what = "the proof supports only matrices, and stacks of matrices whose leading sizes are equal"
    return "" if same_batch else f"{call.label} has operands of shapes {a.shape} and {b.shape}, but {what}"


def _slice(call: Call) -> str:
    """A Slice; one that ends beyond its input is out of scope, because a longer sequence would give other elements.

    A flip reads all elements of any length, backwards.
    """
    starts, ends, axes, steps = (
        call.parameter(name, k) for k, name in enumerate(("starts", "ends", "axes", "steps"), 1)
    )
    lists = [numbers for numbers in (starts, ends, axes, steps) if numbers is not None]
    on_axes = {axis % call[0].ndim for axis in axes or ()}
    if len(set(map(len, lists))) != 1 or len(on_axes) != len(axes or ()):
        raise WrongError(
            f"the starts, ends, axes and steps of {call.label} have different lengths, or its axes "
            "contain an axis twice"
        )
    if (starts, steps) == ([-1], [-1]) and ends is not None and max(ends) <= -(1 << 31):
        return ""
    for index, axis in enumerate(range(len(starts or ())) if axes is None else axes):
        size, start, end = call[0].shape[axis], (starts or ())[index], (ends or ())[index]
        if not (-size <= start <= size and -size <= end <= size):
            return f"{call.label} slices from {start} to {end}, but the size of the axis is only {size}"
    return f"{call.label} has the input 'steps', which the proof does not support" if steps is not None else ""


def _transpose(call: Call) -> str:
    perm = call.attribute("perm")
    if perm is not None and sorted(perm) != [*range(call[0].ndim)]:
        raise WrongError(f"the perm of {call.label} is {list(perm)}, which is not a permutation of {call[0].ndim} axes")
    return ""


def _constant_of_shape(call: Call) -> str:
    value = call.attribute("value")
    if value is not None and list(value.shape) != [1]:
        raise WrongError(f"attribute 'value' of {call.label} has shape {list(value.shape)} instead of [1]")
    return ""


def _tile(call: Call) -> str:
    if call[1].size != call[0].ndim:
        raise WrongError(
            f"input 'repeats' of {call.label} has length {call[1].size}, but the repeated tensor has "
            f"rank {call[0].ndim}"
        )
    return ""


def _where(call: Call) -> str:
    """A Where of numbers; onnxruntime has none of truth values."""
    return f"{call.label} selects truth values, which the proof does not support" if call[1].dtype == np.bool_ else ""


def _range(call: Call) -> str:
    """A Range; steps other than 1 and -1 divide, so that a longer sequence may give other sizes."""
    return (
        ""
        if abs(int(call[2])) == 1
        else f"{call.label} has a step other than 1 and -1, which the proof does not support"
    )


USES: dict[str, Callable[[Call], str]] = {
    **dict.fromkeys(("Add", "Div", "Greater", "Less", "Max", "Min", "Mul", "Sub"), _binary),
    "Abs": _float, "Cast": _cast, "Clip": _clip, "Conv": _conv, "MatMul": _matmul, "Neg": _float,
    "Range": _range, "Slice": _slice, "Tile": _tile, "Transpose": _transpose, "ConstantOfShape": _constant_of_shape,
    "Reciprocal": _reciprocal, "Where": _where,
}  # fmt: skip
"""Checks that return the reason why a use is out of scope, or "". They raise WrongError if no runtime supports it."""


def _sliced(call: Call) -> list[tuple[int, int, int]]:
    """The axis, the operand and the number of each start and end of a Slice."""
    starts, ends, axes = (call.parameter(name, k) or [] for k, name in enumerate(("starts", "ends", "axes"), 1))
    bounds = list(zip(axes or range(len(starts)), starts, ends, strict=True))
    return [*((axis, 1, start) for axis, start, _ in bounds), *((axis, 2, end) for axis, _, end in bounds)]


def _gathered(call: Call) -> list[tuple[int, int, int]]:
    """The axis, the operand and the number of each index of a Gather."""
    indices = call[1].ravel() if call[1].dtype == np.int64 else ()
    return [(call.attribute("axis", 0), 1, int(index)) for index in indices]


def _divided(call: Call) -> list[tuple[int, int, int]]:
    """The axis of a Split, with a position inside it, given by no operand."""
    return [(call.attribute("axis", 0), len(call.node.inputs), 2)]


POSITIONS = {"Gather": _gathered, "Slice": _sliced, "Split": _divided}
"""Functions that return where an operator selects: axis, operand that gives the position, position."""

EMITTED = {
    *USES, *WITH_BODIES, "Concat", "Constant", "Elu", "Exp", "Gather", "Gemm",
    "HardSigmoid", "Identity", "LeakyRelu", "Log", "NonZero", "Relu",
    "Reshape", "Shape", "Sigmoid", "Softplus", "Softsign", "Split", "Squeeze", "Tanh", "ThresholdedRelu",
    "Unsqueeze",
}  # fmt: skip
"""The operators that lowering may emit."""


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
                raise OutOfScopeError(f"{text} at computed positions, of which the largest was {most}")


class EmittedInterpreter(Interpreter):
    """Evaluates emitted nodes on field elements.

    longest: the largest length that is compared, if the model leaves a size open.
    symbols: the sizes by symbolic name, or None for ambiguous names.
    most_work: the most products and elements to compute in one run.
    most_carried: the most floats that all loops together may carry from step to step: the states of the node.
    observed: what nodes did in all comparisons; interpreters may share it.
    recorded: None, or a list to which every computed array of field elements is appended.
    """

    longest: int | None = None
    most_work = 1 << 40
    most_carried = 0
    recorded: list[Array] | None = None

    def __init__(self, field: Field, limits: Collection[float] = (), deadline: float = math.inf) -> None:
        super().__init__(field, limits, deadline)
        self.symbols: dict[str, int | None] = {}
        self._bounds: dict[ir.Node, list[int]] = {}
        self._counting: dict[ir.Node, list[int]] = {}
        self._sizes: dict[ir.Node, tuple[int, ...]] = {}
        self.observed, self._work = Observed(), 0

    def run(self, graph: Graph, inputs: Mapping[ir.Value, Array]) -> list[Array]:
        self._carried = self._work = self.field.products = 0
        try:
            return super().run(graph, inputs)
        except UndefinedError as error:
            raise WrongError(f"{error.node.op_type} '{error.node.name}' divides by zero") from None

    def _bind(self, value: ir.Value, array: Array) -> None:
        if value.shape is not None and all(value is not known for known in self._graph.declared):
            for dim, size in zip(value.shape, array.shape, strict=False):
                if isinstance(dim, ir.SymbolicDim) and dim.value:
                    self.symbols.setdefault(dim.value, size)  # lowering may name sizes, too
            check_shape(value, array, self.symbols)
        super()._bind(value, array)

    def _execute(self, node: ir.Node) -> Sequence[Array]:
        results = super()._execute(node)
        self._work += sum(result.size for result in results)
        if self._work + self.field.products > self.most_work:
            raise OutOfScopeError(f"the graph computes more than {self.most_work} products and elements")
        if node.op_type in ("Add", "Sub") and results[0].dtype != np.bool_:
            self._check_sum(node, results[0])
        if node.op_type in WITH_BODIES and len(results) != len(node.outputs):
            raise WrongError(f"{node.op_type} '{node.name}' has {len(node.outputs)} outputs instead of {len(results)}")
        if self.recorded is not None:
            self.recorded += [result for result in results if result.dtype == np.uint64]
        return results

    def _results(self, node: ir.Node) -> Sequence[Array]:
        if node.op_type in ("Loop", "Scan"):
            self._check_carried(node)
        return super()._results(node)

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
        if self.longest is not None and node.op_type in COMPARE:
            if call[0].dtype == np.uint64:
                self._check_bound(call, self.longest)
            elif node.op_type not in ("Add", "Sub"):
                self._check_integers(call, self.longest + 1)  # a length may exceed the number of steps by 1
                if not any(map(self._is_constant, node.inputs)):  # of constants, all lengths up to them are compared
                    self.observed.margins[node] |= {*np.unique(call[0] - call[1]).tolist()}
        return super()._compute(call)

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
        """Raise OutOfScopeError if integers are far beyond the compared lengths, or note floats that seem to be."""
        if total.dtype == np.int64:
            most = int(np.abs(total).max(initial=0))
            if most >> 31 or (self.longest is not None and most > self.longest + 2):
                raise OutOfScopeError(
                    f"{node.op_type} '{node.name}' computes the integer {most}, which exceeds all sizes in the proof"
                )
        elif self.longest is not None:
            self._note(node, self.longest + 2, total)

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
