"""Running an emitted subgraph on field elements: the right side of a proof, read from the file that was written."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from rnn_lower.ir.schemas import WITH_BODIES, schema_of
from rnn_lower.proving import algebraic_patterns, scalar_functions
from rnn_lower.proving.field import Array, Field
from rnn_lower.proving.operators import OPERATORS, Call, OutOfScopeError, WrongError, known

MARK = "rnn_lower.node"
"""The metadata by which emitted nodes are known."""

MOST_PASSES = 100_000
"""Through bodies, in one run; nodes of up to 10,000 steps make fewer than half as many."""
COMPARE = ("Less", "Greater", "Max", "Min")


class NoStepsError(Exception):
    """A Scan of no steps, of which no shape is known and which onnxruntime refuses."""


class Program:
    """The nodes that some values of a graph are computed by, in order, up to given values and constants.

    given: names of the inputs of the node that was replaced.
    largest_compared: the largest integer that is a constant and compared with something.
    Raises WrongError where something else is read, OutOfScopeError for operators that are not known here.
    """

    def __init__(self, wanted: Sequence[ir.Value], given: Collection[str], opset: int) -> None:
        self.wanted, self.opset, self._given = wanted, opset, frozenset(given)
        self.nodes: list[ir.Node] = []
        self.largest_compared = 0
        done: set[ir.Node] = set()
        waiting: list[tuple[ir.Value, bool]] = [(value, True) for value in reversed(wanted)]
        while waiting:
            value, first = waiting.pop()
            node = self._producer(value)
            if node is None or node in done:
                continue
            if first:
                self._check(node)
                waiting.append((value, False))
                waiting += [(needed, True) for needed in _read_by(node)]
            else:
                done.add(node)
                self.nodes.append(node)

    def _producer(self, value: ir.Value) -> ir.Node | None:
        """The emitted node that computes a value; None for what is given or constant."""
        if value.name in self._given or algebraic_patterns.is_constant(value):
            return None
        node = value.producer()
        if node is not None and MARK not in node.metadata_props and value in self.wanted:
            raise OutOfScopeError("the node in its place carries no mark: something else has rewritten it")
        if node is None or MARK not in node.metadata_props:
            raise WrongError(f"it reads '{value.name}', which is no input of the node")
        return node

    def _check(self, node: ir.Node) -> None:
        """Whether the operator is known here, and has at this opset what the node says."""
        if node.domain != "" or node.op_type not in {*OPERATORS, *WITH_BODIES, "Constant"}:
            raise OutOfScopeError(f"operator {node.domain and node.domain + '.'}{node.op_type}")
        schema = schema_of(node.op_type, self.opset)
        if schema is None:
            raise WrongError(f"opset {self.opset} has no {node.op_type}")
        unknown = sorted(node.attributes.keys() - schema.attributes.keys())
        if unknown or not schema.min_input <= len(node.inputs) <= schema.max_input:
            told = f"attribute '{unknown[0]}'" if unknown else f"{len(node.inputs)} inputs"
            raise WrongError(f"{node.op_type} at opset {self.opset} does not take {told}")
        if node.op_type in COMPARE:
            found = [
                known
                for known in map(algebraic_patterns.constant, node.inputs)
                if known is not None and known.dtype.kind in "iu"
            ]
            self.largest_compared = max(self.largest_compared, *(int(known.max(initial=0)) for known in found), 0)
        for body in _bodies(node):
            for inner in body:
                self._check(inner)


def _bodies(node: ir.Node) -> Iterator[ir.Graph]:
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()


def _read_by(node: ir.Node) -> Iterator[ir.Value]:
    """What a node reads, its bodies included, of what lies outside of it."""
    yield from (value for value in node.inputs if value is not None)
    for body in _bodies(node):
        inside = {*body.inputs, *body.initializers.values(), *(out for one in body for out in one.outputs)}
        yield from (value for one in body for value in _read_by(one) if value not in inside)
        yield from (value for value in body.outputs if value not in inside)


@dataclasses.dataclass(frozen=True)
class _Group:
    """Nodes that are together one function of one number (`idioms`)."""

    function: Callable[[Array], Array]
    argument: ir.Value


class Interpreter:
    """Runs programs over a field. Constants are turned into field elements once.

    limit: of the node's clip.
    recorded: when it is a list, every array of field elements that is computed is added to it.
    """

    def __init__(self, field: Field, limit: float | None = None) -> None:
        self.field, self._limit = field, limit
        self.recorded: list[Array] | None = None
        self._constants: dict[ir.Value, Array] = {}
        self._given: Mapping[str, Array] = {}
        self._values: dict[ir.Value, Array] = {}
        self._groups: dict[ir.Node, _Group | None] = {}
        self._opset = self._passes = 0

    def run(self, program: Program, given: Mapping[str, Array]) -> list[Array]:
        """The wanted values. given: the inputs of the node, by name."""
        self._values, self._given, self._opset, self._passes = {}, given, program.opset, 0
        for node in program.nodes:
            self._execute(node)
        return [self._value(value) for value in program.wanted]

    def _value(self, value: ir.Value) -> Array:
        if value in self._values:
            return self._values[value]
        if value.name in self._given:
            return self._given[str(value.name)]
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
            self._values[value] = result
            if self.recorded is not None and result.dtype == np.uint64:
                self.recorded.append(result)

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
        made = OPERATORS[node.op_type](Call(self.field, node, operands, self._opset))
        return made if isinstance(made, list) else [made]

    def _group(self, node: ir.Node) -> _Group | None:
        """What a node ends, if it ends one function of one number."""
        if node.op_type in algebraic_patterns.SHAPING:
            return None
        clipped = algebraic_patterns.clip_of(node.outputs[0], self._limit)
        if clipped is not None:
            low, high = (self.field.number(bound) for bound in clipped[1:])
            return _Group(lambda x: scalar_functions.clip(self.field, x, low, high), clipped[0])
        argument = algebraic_patterns.sigmoid_of(node.outputs[0])
        if argument is not None:
            return _Group(functools.partial(self.field.function, "sigmoid"), argument)
        argument = algebraic_patterns.unlimited(node.inputs[0], self._limit) if node.op_type == "Tanh" else None
        return None if argument is None else _Group(functools.partial(scalar_functions.tanh, self.field), argument)

    def _argument(self, value: ir.Value, operands: Sequence[Array | None]) -> Array:
        """What a group of nodes is a function of, in the shape in which its last node works."""
        shape = np.broadcast_shapes(*(np.shape(operand) for operand in operands if operand is not None))
        return self._value(value).reshape(shape)

    # -- operators with bodies -------------------------------------------------------------------------------------

    def _body(self, body: ir.Graph, arguments: Sequence[Array]) -> list[Array]:
        """One pass through a body. Names of values are unique, so one table holds those of all bodies."""
        if len(arguments) != len(body.inputs):
            raise WrongError(f"a body of {len(body.inputs)} inputs gets {len(arguments)}")
        self._passes += 1
        if self._passes > MOST_PASSES:
            raise OutOfScopeError(f"more than {MOST_PASSES} steps, all bodies together")
        self._values.update(zip(body.inputs, arguments, strict=True))
        for node in body:
            self._execute(node)
        return [self._value(value) for value in body.outputs]

    def _operands(self, node: ir.Node) -> list[Array]:
        if None in node.inputs:
            raise OutOfScopeError(f"{node.op_type} that leaves an input out")
        return [self._value(value) for value in node.inputs if value is not None]

    def _if(self, node: ir.Node) -> list[Array]:
        """Where floats decide, both branches have to come to the same."""
        (condition,) = self._operands(node)
        branches = [node.attributes[name].as_graph() for name in ("then_branch", "else_branch")]
        if condition.dtype == np.int64 or condition.size != 1:
            raise OutOfScopeError("If on what is no truth value")
        if condition.dtype == np.bool_:
            return self._body(branches[0 if condition.all() else 1], [])
        one, other = (self._body(branch, []) for branch in branches)
        if len(one) != len(other) or not all(map(np.array_equal, one, other)):
            raise OutOfScopeError("If on what floats decide")
        return one

    def _loop(self, node: ir.Node) -> list[Array]:
        trips, condition, *states = self._operands(node)
        body = node.attributes["body"].as_graph()
        stacked: list[list[Array]] = [[] for _ in body.outputs[1 + len(states) :]]
        if trips.dtype != np.int64 or trips.size != 1:
            raise OutOfScopeError("a Loop of a number of trips that is not known")
        for trip in range(int(trips.reshape(()))):
            if condition.dtype != np.bool_:
                raise OutOfScopeError("a Loop that floats end")
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
        given = {name: attribute.value for name, attribute in node.attributes.items()}
        if "directions" in given or "num_scan_inputs" not in given or given["num_scan_inputs"] < 1:
            raise OutOfScopeError("a Scan of version 8, or of no sequence")
        count = len(operands) - given["num_scan_inputs"]
        states, sequences = operands[:count], operands[count:]
        axes = given.get("scan_input_axes", [0] * len(sequences))
        back = given.get("scan_input_directions", [0] * len(sequences))
        sequences = [
            np.moveaxis(sequence, axis, 0)[:: -1 if backwards else 1]
            for sequence, axis, backwards in zip(sequences, axes, back, strict=True)
        ]
        if len({len(sequence) for sequence in sequences}) != 1:
            raise WrongError("a Scan of sequences of several lengths")
        kept = len(body.outputs) - count
        stacked: list[list[Array]] = [[] for _ in range(kept)]
        for step in zip(*sequences, strict=True):
            results = self._body(body, [*states, *step])
            states = results[:count]
            for rows, output in zip(stacked, results[count:], strict=True):
                rows.append(output)
        if not len(sequences[0]):
            raise NoStepsError
        out_axes = given.get("scan_output_axes", [0] * kept)
        out_back = given.get("scan_output_directions", [0] * kept)
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
