"""Interpret a graph on field elements, node by node, including bodies."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np
import onnx_ir as ir

from rnn_lower.ir.schemas import DEFAULT_DOMAINS, WITH_BODIES
from rnn_lower.ir.walk import constant, in_declared_rank, with_bodies
from rnn_lower.proving.exact import algebraic_patterns, scalar_functions
from rnn_lower.proving.exact.call import (
    Call,
    DivisionByZeroError,
    OutOfScopeError,
    UndefinedError,
    WrongError,
    check_attributes,
    known,
)
from rnn_lower.proving.exact.elementwise import ELEMENTWISE, between
from rnn_lower.proving.exact.field import Array, Field
from rnn_lower.proving.exact.movement import MOVEMENT
from rnn_lower.proving.exact.products import PRODUCTS
from rnn_lower.proving.exact.reductions import REDUCTIONS
from rnn_lower.proving.exact.windows import WINDOWS

T = TypeVar("T")

OPERATORS = {**ELEMENTWISE, **PRODUCTS, **MOVEMENT, **REDUCTIONS, **WINDOWS}
"""All operators but Constant, recurrent operators, and operators with bodies."""

MOST_PASSES = 100_000
"""Limit on the body executions of one run; nodes of up to 10,000 steps need fewer than half as many."""

MOST_ELEMENTS, FEW = 1 << 28, 1 << 13
"""The most elements of one value, and a size so small that no operator on two such values exceeds that limit."""

FREQUENT = ("Add", "Sub", "Mul", "Div", "Sigmoid", "Tanh", "Where", "MatMul", "Less", "Min", "Max")
"""Operators that occur in every step, for which `size_of_result` has a fast path."""


class NoStepsError(Exception):
    """A Scan without steps: its output shapes are unknown, and onnxruntime refuses it."""


@dataclasses.dataclass
class Graph:
    """The nodes to run, in order, and the values to return.

    declared: wanted values whose declared shapes were compared elsewhere.
    folded: values that nodes compute from constants alone, as far as known.
    """

    nodes: Sequence[ir.Node]
    wanted: Sequence[ir.Value]
    opset: int
    declared: Sequence[ir.Value] = ()
    folded: Collection[ir.Value | None] = ()

    @property
    def all_nodes(self) -> Iterator[ir.Node]:
        """The nodes, including those of their bodies."""
        return with_bodies(self.nodes)


FIRST_RESHAPE = 5
"""The first opset that can restore the other sizes of an empty sequence, which a Loop without steps does not know."""


@dataclasses.dataclass(frozen=True)
class Group:
    """Nodes that together compute one function of one number (`algebraic_patterns`)."""

    function: Callable[[Array], Array]
    argument: ir.Value


class Interpreter:
    """Evaluates graphs over a field, and converts each constant to field elements once.

    limits: clip limits of recurrent nodes.  deadline: CPU time of this thread, after which OutOfScopeError is raised.
    executed: the bodies that ran.  weighs: whether both branches of an If ran, because floats decide.
    """

    most_passes, most_elements = MOST_PASSES, MOST_ELEMENTS

    def __init__(self, field: Field, limits: Collection[float] = (), deadline: float = math.inf) -> None:
        self.field, self._limits, self._deadline = field, limits, deadline
        self._constants: dict[ir.Value, Array] = {}
        self._values: dict[ir.Value, Array] = {}
        self._undefined: dict[int, tuple[Array, ir.Node]] = {}
        self._groups: dict[ir.Node, Group | None] = {}
        self._graph = Graph((), (), 0)
        self._passes = self._count = 0
        self.executed: set[ir.Graph] = set()
        self.weighs = False

    def run(self, graph: Graph, inputs: Mapping[ir.Value, Array]) -> list[Array]:
        """The wanted values. inputs: the values that are only known at run time."""
        self._values, self._graph, self._passes, self._undefined = dict(inputs), graph, 0, {}
        for node in graph.nodes:
            self._execute(node)
        return self._defined([self._value(value) for value in graph.wanted])

    def _defined(self, arrays: list[T]) -> list[T]:
        """The same arrays. Raises UndefinedError if one of them results from a division by zero."""
        if divisor := self._divisor_of(arrays):
            raise UndefinedError(divisor)
        return arrays

    def _divisor_of(self, arrays: Sequence[object]) -> ir.Node | None:
        """The node that divided by zero what one of these arrays results from, or None."""
        return next((self._undefined[id(array)][1] for array in arrays if id(array) in self._undefined), None)

    def named(self, names: Collection[str]) -> dict[str, Array]:
        """The values with these names that the last run computed; those of a body have their last ones."""
        return {str(value.name): array for value, array in self._values.items() if value.name in names}

    def _value(self, value: ir.Value) -> Array:
        if value in self._values:
            return self._values[value]
        return self._constant(value)

    def _constant(self, value: ir.Value) -> Array:
        if value not in self._constants:
            self._constants[value] = self._known(constant(value))
        return self._constants[value]

    def _known(self, numbers: np.ndarray | None) -> Array:
        return known(self.field, numbers)

    def _bind(self, value: ir.Value, array: Array) -> None:
        self._values[value] = array

    def _execute(self, node: ir.Node) -> Sequence[Array]:
        self._count += 1
        if self._count % 64 == 0:  # reading the clock may take longer than a node
            check_time(self._deadline)
        try:
            results = self._results(node)
        except (OutOfScopeError, WrongError, NoStepsError, MemoryError):
            raise
        except Exception as error:  # numpy raises various exceptions for incompatible shapes
            raise WrongError(f"{node.op_type} '{node.name}' cannot run: {error}") from None
        for value, result in zip(node.outputs, results, strict=False):
            self._bind(value, result)
        return results

    def _results(self, node: ir.Node) -> Sequence[Array]:
        own = node.domain in DEFAULT_DOMAINS
        if own and node.op_type == "Constant":
            return [self._constant(node.outputs[0])]
        if own and node.op_type in WITH_BODIES:
            self._defined(self._operands(node))
            return {"If": self._if, "Loop": self._loop, "Scan": self._scan}[node.op_type](node)
        operands = self._operands(node)
        if node not in self._groups:  # cached, because a body runs many times
            self._groups[node] = self._group(node)
        group = self._groups[node]
        if group is not None:
            return [group.function(self._argument(group.argument, operands))]
        self._limit_size(node, operands)
        try:
            results = self._compute(Call(self.field, node, operands, self._graph.opset))
        except DivisionByZeroError as error:  # harmless if the node is inside a group, which replaces it
            self._undefined[id(error.result)] = error.result, node
            return [error.result]
        if divisor := self._divisor_of(operands):
            self._undefined |= {id(result): (result, divisor) for result in results}
        return results

    def _limit_size(self, node: ir.Node, operands: Sequence[Array | None]) -> int:
        """The most elements of the result. Raises OutOfScopeError if there are too many."""
        size = size_of_result(Call(self.field, node, operands, self._graph.opset))
        check_size(node, size, self.most_elements)
        return size

    def _operands(self, node: ir.Node) -> list[Array | None]:
        return [None if value is None else self._value(value) for value in node.inputs]

    def _compute(self, call: Call) -> Sequence[Array]:
        """The results of one operator."""
        node = call.node
        if node.domain not in DEFAULT_DOMAINS or node.op_type not in OPERATORS:
            raise OutOfScopeError(
                f"the proof does not support operator {node.domain and node.domain + '.'}{node.op_type}"
            )
        result = OPERATORS[node.op_type](call)
        check_attributes(call)
        return result if isinstance(result, list) else [result]

    def _group(self, node: ir.Node) -> Group | None:
        """The group that a node completes, or None if it completes no algebraic pattern."""
        if node.domain not in DEFAULT_DOMAINS or node.op_type in algebraic_patterns.SHAPING:
            return None
        clipped = algebraic_patterns.clip_of(node.outputs[0], self._limits)
        if clipped is not None:
            low, high = (self.field.number(bound) for bound in clipped[1:])
            return Group(lambda x: scalar_functions.clip(self.field, x, low, high), clipped[0])
        argument = algebraic_patterns.sigmoid_of(node.outputs[0])
        if argument is not None:
            return Group(self.field.sigmoid, argument)
        argument = algebraic_patterns.unlimited(node.inputs[0], self._limits) if node.op_type == "Tanh" else None
        return None if argument is None else Group(functools.partial(scalar_functions.tanh, self.field), argument)

    def _argument(self, value: ir.Value, operands: Sequence[Array | None]) -> Array:
        """The argument of a group of nodes, in the shape of the operands of its last node."""
        shape = np.broadcast_shapes(*(np.shape(operand) for operand in operands if operand is not None))
        (argument,) = self._defined([self._value(value)])
        return argument.reshape(shape)

    # -- operators with bodies -------------------------------------------------------------------------------------

    def _body(self, body: ir.Graph, arguments: Sequence[Array]) -> list[Array]:
        """The outputs of a body for these arguments."""
        if len(arguments) != len(body.inputs):
            raise WrongError(f"a body has {len(body.inputs)} inputs, but its node passes {len(arguments)} values to it")
        self.executed.add(body)
        self._passes += 1
        if self._passes > self.most_passes:
            raise OutOfScopeError(
                f"the loop bodies run more than {self.most_passes} times in total, which is the limit of the proof"
            )
        for value, argument in zip(body.inputs, arguments, strict=True):
            self._bind(value, argument)
        for node in body:
            self._execute(node)
        return self._defined([self._value(value) for value in body.outputs])

    def _if(self, node: ir.Node) -> list[Array]:
        """The outputs of one branch, or a weighted mean of both if floats decide."""
        condition = self._operands(node)[0]
        if condition is None or condition.dtype == np.int64 or condition.size != 1:
            raise OutOfScopeError(f"the condition of If '{node.name}' is not a boolean")
        if condition.dtype == np.bool_:
            return self._body(node.attributes["then_branch" if condition.all() else "else_branch"].as_graph(), [])
        then, orelse = (self._body(node.attributes[name].as_graph(), []) for name in ("then_branch", "else_branch"))
        if len(then) != len(orelse) or any(a.shape != b.shape for a, b in zip(then, orelse, strict=False)):
            text = f"the condition of If '{node.name}' depends on floating-point values, and its branches"
            raise OutOfScopeError(f"{text} return different numbers of outputs, or outputs of different shapes")
        self.weighs = True
        pairs = ([self._as_element(a), self._as_element(b)] for a, b in zip(then, orelse, strict=True))
        return [between(self.field, condition.reshape(()), a, b) for a, b in pairs]

    def _as_element(self, array: Array) -> Array:
        return array if array.dtype == np.uint64 else self.field.integers(array)

    def _loop(self, node: ir.Node) -> list[Array]:
        """The results of a Loop; a missing condition counts as true."""
        trips, condition, *states = self._operands(node)
        trips = np.array(2**31) if trips is None else trips
        condition = np.array(True) if condition is None else condition
        body = node.attributes["body"].as_graph()
        steps: list[Sequence[Array]] = []
        if trips.dtype != np.int64 or trips.size != 1 or any(state is None for state in states):
            raise OutOfScopeError(f"Loop '{node.name}' has an unknown trip count or an omitted initial state")
        states = [*self._initial(node, states)]  # type: ignore[arg-type]
        for trip in range(int(trips.reshape(()))):
            if condition.dtype != np.bool_:
                raise OutOfScopeError(f"the condition of Loop '{node.name}' depends on floating-point values")
            if not condition.all():
                break
            number = in_declared_rank(np.array(trip, np.int64), body.inputs[0]) if body.inputs else np.array(trip)
            condition, *results = self._body(body, [number, condition, *states])  # type: ignore[list-item]
            for index, (before, after) in enumerate(zip(states, results, strict=False)):
                self._check_state(node, index, before, after)  # type: ignore[arg-type]
            states = [*results[: len(states)]]
            steps.append(results[len(states) :])
        stacked = body.outputs[1 + len(states) :]
        if not steps and self._graph.opset < FIRST_RESHAPE and not all(map(_is_sized, stacked)):
            raise NoStepsError
        return [*states, *_stacked(steps, stacked)]  # type: ignore[list-item]

    def _initial(self, node: ir.Node, states: Sequence[Array]) -> Sequence[Array]:
        """The states with which a Loop or a Scan begins."""
        return states

    def _check_state(self, node: ir.Node, index: int, before: Array, after: Array) -> None:
        """Check a state before and after a step of a Loop or a Scan."""

    def _scan(self, node: ir.Node) -> list[Array]:
        """The results of a Scan of version 9 or newer; version 8, with its batch axis, is never emitted."""
        operands = [array for array in self._operands(node) if array is not None]
        body = node.attributes["body"].as_graph()
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        is_old = self._graph.opset < 9
        if is_old or attributes["num_scan_inputs"] < 1 or len(operands) < len(node.inputs):
            raise OutOfScopeError(f"Scan '{node.name}' is of version 8 or has no scan input")
        count = len(operands) - attributes["num_scan_inputs"]
        states, sequences = self._initial(node, operands[:count]), operands[count:]
        if {*attributes.get("scan_input_directions", ()), *attributes.get("scan_output_directions", ())} - {0, 1}:
            raise WrongError(f"Scan '{node.name}' has a direction other than 0 or 1")
        axes, backwards = _axes(attributes, "scan_input", len(sequences))
        slices = [
            self._slices(sequence, axis)[:: -1 if back else 1]
            for sequence, axis, back in zip(sequences, axes, backwards, strict=True)
        ]
        if len({len(each) for each in slices}) != 1:
            raise WrongError(f"the sequences of Scan '{node.name}' have different lengths")
        steps = []
        for step in zip(*slices, strict=True):
            results = self._body(body, [*states, *step])
            if any(new.shape != old.shape for new, old in zip(results, states, strict=False)):
                raise WrongError(f"a state of Scan '{node.name}' changes its shape")
            for index, (before, after) in enumerate(zip(states, results, strict=False)):
                self._check_state(node, index, before, after)
            states = results[:count]
            steps.append(results[count:])
        if not steps:
            raise NoStepsError
        axes, backwards = _axes(attributes, "scan_output", len(body.outputs) - count)
        rows = zip(_stacked(steps, body.outputs[count:]), axes, backwards, strict=True)
        return [*states, *(np.moveaxis(row[:: -1 if back else 1], 0, axis) for row, axis, back in rows)]

    def _slices(self, sequence: Array, axis: int) -> list[Array]:
        """The elements of a sequence, one for each step of a Scan."""
        return list(np.moveaxis(sequence, axis, 0))


def _axes(attributes: Mapping[str, Sequence[int]], name: str, count: int) -> list[Sequence[int]]:
    """The axes and directions of a Scan's inputs or outputs."""
    return [attributes.get(f"{name}_{what}", [0] * count) for what in ("axes", "directions")]


def _is_sized(value: ir.Value) -> bool:
    return value.shape is not None and value.shape.is_static()


def _stacked(steps: Sequence[Sequence[Array]], outputs: Sequence[ir.Value]) -> list[Array]:
    """The stacked results of the steps of a loop; without steps, sizes that the body does not declare are 0."""
    if steps:
        return [np.stack(rows) for rows in zip(*steps, strict=True)]
    shapes = [[size if isinstance(size, int) else 0 for size in value.shape or ()] for value in outputs]
    floats = [value.dtype is None or value.dtype.is_floating_point() for value in outputs]
    return [np.zeros((0, *shape), np.uint64 if real else np.int64) for shape, real in zip(shapes, floats, strict=True)]


def size_of_result(call: Call) -> int:
    """An upper bound on the elements of an operator's result; 64 multiplications of a matrix product count as one."""
    arrays = call.operands
    if call.node.op_type in FREQUENT and all(array.size <= FEW for array in arrays):
        return FEW  # an underestimate, but even FEW squared is within the limit
    if call.node.op_type in ("ConstantOfShape", "OneHot", "Tile"):
        repeated, counts = (1, arrays[0]) if call.node.op_type == "ConstantOfShape" else (arrays[0].size, arrays[1])
        return int(repeated) * math.prod(int(size) for size in counts.ravel())
    if call.node.op_type == "Pad" and len(arrays) > 1:
        pads, axes = arrays[1].ravel(), call.optional(3)
        return math.prod(_padded(arrays[0].shape, pads, range(arrays[0].ndim) if axes is None else axes.ravel()))
    if call.node.op_type == "Range":
        start, limit, delta = (int(array) for array in arrays)
        return max(0, limit - start) // max(1, abs(delta)) if delta > 0 else abs(start - limit)
    if call.node.op_type == "Gather":
        rows: int = max(1, call[0].shape[call.attribute("axis", 0)])
        return int(arrays[0].size) // rows * max(1, arrays[1].size)
    if call.node.op_type == "Gemm":
        summed = int(max(1, call[0].shape[0 if call.attribute("transA", 0) else -1]))
        size = int(arrays[0].size // summed) * int(arrays[1].size // summed)
        return max(size, size * summed >> 6)
    if call.node.op_type == "Conv":
        return _size_of_conv(call, *arrays[:2])
    if call.node.op_type in ("Reshape", "Slice", "Split", "Squeeze", "Unsqueeze", "Transpose"):
        return arrays[0].size
    try:
        shapes = [array.shape for array in arrays]
        if call.node.op_type == "MatMul" and min(map(len, shapes)) > 1:
            batches = math.prod(np.broadcast_shapes(*(shape[:-2] for shape in shapes)))
            size = int(batches * shapes[0][-2] * shapes[1][-1])
            return max(size, size * int(shapes[0][-1]) >> 6)
        if call.node.op_type == "Expand":
            shapes[1] = tuple(int(size) for size in arrays[1])
        return math.prod(np.broadcast_shapes(*shapes))
    except ValueError:  # not elementwise
        return sum(int(array.size) for array in arrays)


def _size_of_conv(call: Call, x: Array, weights: Array) -> int:
    """An upper bound on the elements of all windows and of the result, counting 64 products as one element."""
    axes = range(x.ndim - 2)
    wide = _padded(x.shape[2:], call.attribute("pads") or [0] * 2 * len(axes), axes)
    strides = call.attribute("strides") or [1] * len(axes)
    windows = len(x) * math.prod(size // max(1, step) + 1 for size, step in zip(wide, strides, strict=False))
    return int(windows * max(x.shape[1] * math.prod(weights.shape[2:]), len(weights), weights.size >> 6))


def _padded(shape: Sequence[int], pads: Sequence[int] | Array, axes: Iterable[int] | Array) -> list[int]:
    """The sizes after padding these axes; the second half of `pads` is added behind."""
    sizes, half = list(shape), len(pads) // 2
    for axis, before, behind in zip(axes, pads[:half], pads[half:], strict=False):
        if -len(sizes) <= axis < len(sizes):
            sizes[int(axis)] = max(0, sizes[int(axis)] + int(before) + int(behind))
    return sizes


def check_shape(value: ir.Value, array: Array, symbols: Mapping[str, int | None]) -> None:
    """Raise WrongError if an array does not have the declared shape of a value. symbols: sizes by name."""
    declared = [dim if isinstance(dim, int) else symbols.get(str(dim.value)) for dim in value.shape or ()]
    pairs = zip(declared, array.shape, strict=False)
    if len(declared) != array.ndim or (array.size and any(size not in (None, real) for size, real in pairs)):
        raise WrongError(f"'{value.name}' has shape {list(array.shape)}, but its declared shape is {value.shape}")


def check_size(node: ir.Node, size: int, most: int) -> None:
    """Raise OutOfScopeError if a node computes too many elements."""
    if size > most:
        text = f"{node.op_type} '{node.name}' computes more than {most} elements, the limit of the proof"
        raise OutOfScopeError(f"{text}; smaller sizes need fewer")


def check_time(deadline: float) -> None:
    """Raise OutOfScopeError after the deadline."""
    if time.thread_time() > deadline:
        raise OutOfScopeError("the proof took longer than its time limit")
