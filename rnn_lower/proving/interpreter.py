"""Running an emitted subgraph on field elements: the right side of a proof, read from the file that was written."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from rnn_lower.ir.schemas import DEFAULT_DOMAINS, WITH_BODIES
from rnn_lower.proving import algebraic_patterns, scalar_functions
from rnn_lower.proving.field import Array, Field
from rnn_lower.proving.operators import OPERATORS, Call, Operator, OutOfScopeError, WrongError, known
from rnn_lower.proving.program import Graph

MOST_PASSES = 100_000
"""Through bodies, in one run; nodes of up to 10,000 steps make fewer than half as many."""

MOST_ELEMENTS, FEW = 1 << 28, 1 << 13
"""Of one value; and so few that no two values make too many."""

ELEMENTWISE = ("Add", "Sub", "Mul", "Div", "Sigmoid", "Tanh", "Where", "MatMul", "Less", "Min", "Max")
"""Operators that are found in every step."""


class NoStepsError(Exception):
    """A Scan of no steps, of which no shape is known and which onnxruntime refuses."""


@dataclasses.dataclass(frozen=True)
class Group:
    """Nodes that are together one function of one number (`algebraic_patterns`)."""

    function: Callable[[Array], Array]
    argument: ir.Value


class Interpreter:
    """Runs programs over a field. Constants are turned into field elements once.

    limit: of the node's clip.  deadline: of this thread's CPU time, after which OutOfScopeError is raised.
    recorded: when it is a list, every array of field elements that is computed is added to it.
    """

    operators: Mapping[str, Operator] = OPERATORS

    def __init__(self, field: Field, limit: float | None = None, deadline: float = math.inf) -> None:
        self.field, self._limit, self._deadline = field, limit, deadline
        self.recorded: list[Array] | None = None
        self._constants: dict[ir.Value, Array] = {}
        self._values: dict[ir.Value, Array] = {}
        self._groups: dict[ir.Node, Group | None] = {}
        self._sizes: dict[str, int] = {}
        self._program: Graph | None = None
        self._opset = self._passes = 0

    def run(self, program: Graph, inputs: Mapping[ir.Value, Array]) -> list[Array]:
        """The wanted values. inputs: what the replaced node reads at run time."""
        self._values, self._opset, self._passes, self._program = dict(inputs), program.opset, 0, program
        self._sizes = _symbol_sizes(inputs)
        for node in program.nodes:
            self._execute(node)
        return [self._value(value) for value in program.wanted]

    def _value(self, value: ir.Value) -> Array:
        if value in self._values:
            return self._values[value]
        if value not in self._constants:
            self._constants[value] = known(self.field, algebraic_patterns.constant(value))
        return self._constants[value]

    def _execute(self, node: ir.Node) -> None:
        try:
            results = self._results(node)
        except (OutOfScopeError, WrongError, NoStepsError, MemoryError):
            raise
        except Exception as error:  # whatever numpy says of shapes that do not fit
            raise WrongError(f"{node.op_type} '{node.name}' cannot run: {error}") from None
        for value, result in zip(node.outputs, results, strict=False):
            self._compare_shape(value, result)
            self._values[value] = result
            if self.recorded is not None and result.dtype == np.uint64:
                self.recorded.append(result)

    def _compare_shape(self, value: ir.Value, array: Array) -> None:
        """Raise WrongError where a value is not of the shape that is declared of it.

        What takes the place of the node's outputs is declared as before, which the model diff looks at.
        """
        assert self._program is not None
        if value.shape is None or any(value is wanted for wanted in self._program.wanted):
            return
        declared = [dim if isinstance(dim, int) else self._sizes.get(str(dim.value)) for dim in value.shape]
        pairs = zip(declared, array.shape, strict=False)
        if len(declared) != array.ndim or (array.size and any(size not in (None, real) for size, real in pairs)):
            raise WrongError(f"'{value.name}' of shape {list(array.shape)} is declared as {value.shape}")

    def _results(self, node: ir.Node) -> Sequence[Array]:
        if node.op_type == "Constant":
            return [known(self.field, algebraic_patterns.constant(node.outputs[0]))]
        if node.op_type == "If":
            return self._if(node)
        if node.op_type in WITH_BODIES:
            return self._loop(node) if node.op_type == "Loop" else self._scan(node)
        operands = [None if value is None else self._value(value) for value in node.inputs]
        if node not in self._groups:  # a body is run many times
            self._groups[node] = self._group(node)
        group = self._groups[node]
        if group is not None:
            return [group.function(self._argument(group.argument, operands))]
        call = Call(self.field, node, operands, self._opset)
        if size_of_result(call) > MOST_ELEMENTS:
            raise OutOfScopeError(f"{node.op_type} of more than {MOST_ELEMENTS} elements")
        if node.op_type in ("Div", "Reciprocal"):
            self._divides(node, call[-1])
        if node.domain not in DEFAULT_DOMAINS or node.op_type not in self.operators:
            raise OutOfScopeError(f"operator {node.domain and node.domain + '.'}{node.op_type}")
        made = self.operators[node.op_type](call)
        return made if isinstance(made, list) else [made]

    def _divides(self, node: ir.Node, divisor: Array) -> None:
        if not divisor.all() and not self._is_inside_group(node):
            raise WrongError(f"{node.op_type} '{node.name}' divides by zero")

    def _group(self, node: ir.Node) -> Group | None:
        """What a node ends, if it ends one function of one number."""
        if node.op_type in algebraic_patterns.SHAPING:
            return None
        clipped = algebraic_patterns.clip_of(node.outputs[0], self._limit)
        if clipped is not None:
            low, high = (self.field.number(bound) for bound in clipped[1:])
            return Group(lambda x: scalar_functions.clip(self.field, x, low, high), clipped[0])
        argument = algebraic_patterns.sigmoid_of(node.outputs[0])
        if argument is not None:
            return Group(functools.partial(self.field.function, "sigmoid"), argument)
        argument = algebraic_patterns.unlimited(node.inputs[0], self._limit) if node.op_type == "Tanh" else None
        return None if argument is None else Group(functools.partial(scalar_functions.tanh, self.field), argument)

    def _is_inside_group(self, node: ir.Node) -> bool:
        """Whether a node's result goes into nothing but what is known as one function of one number."""
        assert self._program is not None
        nodes, inside = list(self._program.all_nodes), set[ir.Node]()
        for end in nodes:
            group = self._group(end) if end.inputs and end.op_type in OPERATORS else None
            waiting = [] if group is None else [end]
            while waiting:
                inside.add(node_inside := waiting.pop())
                values = [value for value in node_inside.inputs if value is not None and value is not group.argument]  # type: ignore[union-attr]
                waiting += [made for value in values if (made := value.producer()) in nodes and made not in inside]
        users = [user for value in node.outputs for user, _ in value.uses()]
        return node in inside and all(user in inside for user in users)

    def _argument(self, value: ir.Value, operands: Sequence[Array | None]) -> Array:
        """What a group of nodes is a function of, in the shape in which its last node works."""
        shape = np.broadcast_shapes(*(np.shape(operand) for operand in operands if operand is not None))
        return self._value(value).reshape(shape)

    # -- operators with bodies -------------------------------------------------------------------------------------

    def _body(self, body: ir.Graph, arguments: Sequence[Array]) -> list[Array]:
        """One pass through a body."""
        if len(arguments) != len(body.inputs):
            raise WrongError(f"a body of {len(body.inputs)} inputs gets {len(arguments)}")
        self._passes += 1
        if self._passes > MOST_PASSES:
            raise OutOfScopeError(f"more than {MOST_PASSES} steps, all bodies together")
        check_time(self._deadline)
        for value, argument in zip(body.inputs, arguments, strict=True):
            self._compare_shape(value, argument)
        self._values.update(zip(body.inputs, arguments, strict=True))
        for node in body:
            self._execute(node)
        return [self._value(value) for value in body.outputs]

    def _operands(self, node: ir.Node) -> list[Array]:
        if None in node.inputs:
            raise OutOfScopeError(f"{node.op_type} without a middle input")
        return [self._value(value) for value in node.inputs if value is not None]

    def _if(self, node: ir.Node) -> list[Array]:
        """Where floats decide, both branches have to come to the same."""
        (condition,) = self._operands(node)
        branches = [node.attributes[name].as_graph() for name in ("then_branch", "else_branch")]
        if condition.dtype == np.int64 or condition.size != 1:
            raise OutOfScopeError("If with a condition that is not a boolean")
        if condition.dtype == np.bool_:
            return self._body(branches[0 if condition.all() else 1], [])
        one, other = (self._body(branch, []) for branch in branches)
        if len(one) != len(other) or not all(map(np.array_equal, one, other)):
            raise OutOfScopeError("If with a condition that depends on floats")
        return one

    def _loop(self, node: ir.Node) -> list[Array]:
        trips, condition, *states = self._operands(node)
        body = node.attributes["body"].as_graph()
        stacked: list[list[Array]] = [[] for _ in body.outputs[1 + len(states) :]]
        if trips.dtype != np.int64 or trips.size != 1:
            raise OutOfScopeError("a Loop with an unknown number of trips")
        for trip in range(int(trips.reshape(()))):
            if condition.dtype != np.bool_:
                raise OutOfScopeError("a Loop with a condition that depends on floats")
            if not condition.all():
                break
            condition, *results = self._body(body, [np.array(trip, np.int64), condition, *states])
            states, outputs = results[: len(states)], results[len(states) :]
            for rows, output in zip(stacked, outputs, strict=True):
                rows.append(output)
        kinds = body.outputs[1 + len(states) :]
        return [
            *states,
            *(np.stack(rows) if rows else _nothing(kind) for rows, kind in zip(stacked, kinds, strict=True)),
        ]

    def _scan(self, node: ir.Node) -> list[Array]:
        """Scan from version 9 on; version 8, with its batch axis, is not emitted."""
        operands, body = self._operands(node), node.attributes["body"].as_graph()
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        if "directions" in attributes or attributes["num_scan_inputs"] < 1:
            raise OutOfScopeError("a Scan of version 8, or without a sequence")
        count = len(operands) - attributes["num_scan_inputs"]
        states, sequences = operands[:count], operands[count:]
        axes = attributes.get("scan_input_axes", [0] * len(sequences))
        back = attributes.get("scan_input_directions", [0] * len(sequences))
        sequences = [
            np.moveaxis(sequence, axis, 0)[:: -1 if backwards else 1]
            for sequence, axis, backwards in zip(sequences, axes, back, strict=True)
        ]
        if len({len(sequence) for sequence in sequences}) != 1:
            raise WrongError("a Scan of sequences of different lengths")
        kept = len(body.outputs) - count
        stacked: list[list[Array]] = [[] for _ in range(kept)]
        for step in zip(*sequences, strict=True):
            results = self._body(body, [*states, *step])
            states = results[:count]
            for rows, output in zip(stacked, results[count:], strict=True):
                rows.append(output)
        if not len(sequences[0]):
            raise NoStepsError
        out_axes = attributes.get("scan_output_axes", [0] * kept)
        out_back = attributes.get("scan_output_directions", [0] * kept)
        results = [
            np.moveaxis(np.stack(rows[:: -1 if backwards else 1]), 0, axis)
            for rows, axis, backwards in zip(stacked, out_axes, out_back, strict=True)
        ]
        return [*states, *results]


def _nothing(declared: ir.Value) -> Array:
    """What a Loop has stacked after no trip: every size that its body does not declare is 0."""
    sizes = [size if isinstance(size, int) else 0 for size in declared.shape or ()]
    floats = declared.dtype is None or declared.dtype.is_floating_point()
    return np.zeros((0, *sizes), np.uint64 if floats else np.int64)


def size_of_result(call: Call) -> int:
    """How many elements an operator makes, or more."""
    arrays = [array for array in call.inputs if array is not None]
    if call.node.op_type in ELEMENTWISE and all(array.size <= FEW for array in arrays):
        return FEW  # or the square of it, which is below the limit as well
    if call.node.op_type in ("ConstantOfShape", "Tile"):
        repeated = 1 if call.node.op_type == "ConstantOfShape" else arrays[0].size
        return int(repeated) * math.prod(int(size) for size in arrays[-1].ravel())
    if call.node.op_type == "Range":
        start, limit, delta = (int(array) for array in arrays)
        return max(0, limit - start) // max(1, abs(delta)) if delta > 0 else abs(start - limit)
    if call.node.op_type == "Gather":
        return int(arrays[0].size) * max(1, arrays[1].size)
    if call.node.op_type in ("MatMul", "Gemm", "Conv"):
        return int(arrays[0].size // max(1, call[0].shape[-1]) * arrays[1].size)
    if call.node.op_type in ("Reshape", "Slice", "Split", "Squeeze", "Unsqueeze", "Transpose"):
        return arrays[0].size
    try:
        return math.prod(np.broadcast_shapes(*(array.shape for array in arrays)))
    except ValueError:  # not elementwise
        return sum(int(array.size) for array in arrays)


def check_time(deadline: float) -> None:
    """Raise OutOfScopeError after the deadline."""
    if time.thread_time() > deadline:
        raise OutOfScopeError("the time limit for proofs is reached")


def _symbol_sizes(inputs: Mapping[ir.Value, Array]) -> dict[str, int]:
    """Sizes by the names that inputs declare for them; none for a name that stands for several."""
    found: dict[str, set[int]] = {}
    for value, array in inputs.items():
        for dim, size in zip(value.shape or (), array.shape, strict=False):
            if isinstance(dim, ir.SymbolicDim) and dim.value:
                found.setdefault(str(dim.value), set()).add(size)
    return {name: next(iter(sizes)) for name, sizes in found.items() if len(sizes) == 1}
