"""Writing nodes: names, scopes, bodies and where constants go. Knows no operator and no opset rule."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import onnx_ir as ir
from typing_extensions import Self

from rnn_lower.builder.constants import Constant, ConstantPool
from rnn_lower.builder.constraints import Rules
from rnn_lower.builder.names import Names

Operand: TypeAlias = "ir.Value | Constant | None"
"""Known at run time only; known now and materialized when a node uses it; known to be zero."""


@dataclasses.dataclass(frozen=True)
class Habits:
    """What a target runtime wants emitted differently (rows live in targets/).

    rules: what the runtime takes; what it does not is said otherwise.
    saturates: operators that overflow although their result no longer changes, with the size from which it does not.
    flip_outside_scan: reverse sequences before and after a Scan instead of by its scan directions.
    pass_condition: let a Loop body give its condition back as it came, without a node.
    constants_in_body: keep weights that only a Scan or Loop body uses in it, where onnxruntime multiplies 8 to 13 %
        faster (LSTM, N = 1, H = 128 and 256) than with weights captured from outside.
    guard_empty_scan: put a Scan of unknown length into an If that leaves it out when there are no steps.
    directions_side_by_side: let both directions of a small node share one Scan or Loop.
    directions_end_to_end: with that, let the directions of the smallest nodes be one cell, and an If compute them again
        where one of them comes to NaN.
    product_per_gate: a product for each gate, where the runtime computes it with the sum and the activation.
    stack_terms: stack the terms of the last equation of each step and compute Y of all at once, instead of copying the
        state in each step.
    lengths_around_loop: give rows that end early their due before and after the loop, instead of choosing between the
        new and the old state in each step.
    name_batch: in the main graph, name a batch size of which nothing is known, so that the values of a node are seen to
        be of one size.
    """

    rules: Rules = Rules()
    saturates: Mapping[str, float] = dataclasses.field(default_factory=dict)
    flip_outside_scan: bool = False
    pass_condition: bool = False
    constants_in_body: bool = False
    guard_empty_scan: bool = False
    directions_side_by_side: bool = False
    directions_end_to_end: bool = False
    product_per_gate: bool = False
    stack_terms: bool = False
    lengths_around_loop: bool = False
    name_batch: bool = False


class NodeWriter:
    """Appends nodes to `nodes`, each valid at `opset`, named after the recurrent node they replace."""

    def __init__(
        self, opset: int, dtype: ir.DataType, names: Names, pool: ConstantPool, scope: str,
        origin: Mapping[str, str], habits: Habits = Habits(), max_nodes: int | None = None,
    ) -> None:  # fmt: skip
        self.opset, self.dtype, self.habits, self.max_nodes = opset, dtype, habits, max_nodes
        self.nodes: list[ir.Node] = []
        self._names, self._pool, self._scope, self._origin = names, pool, scope, origin
        self._outermost = self
        self._constants_scope = ""

    # -- nodes, names and constants --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Names emitted inside start with `name` too."""
        outer, self._scope = self._scope, f"{self._scope}/{name}"
        yield
        self._scope = outer

    @contextlib.contextmanager
    def shared_constants(self) -> Iterator[None]:
        """For step after step in a straight line: the constants that they share are named after none of them."""
        self._constants_scope = self._scope
        yield
        self._constants_scope = ""

    def body(self, own_constants: bool = False) -> Self:
        """A writer for a body: same names, its own nodes and, if asked for, its own initializers."""
        pool = self._pool.inner() if own_constants else self._pool
        inner = type(self)(self.opset, self.dtype, self._names, pool, self._scope, self._origin, self.habits)
        inner._outermost = self._outermost
        return inner

    def unique_name(self, name: str) -> str:
        return self._names.unique(f"{self._scope}/{name}")

    def new_value(
        self, name: str, dtype: ir.DataType | None = None, shape: Sequence[int | None] | None = None
    ) -> ir.Value:
        """A value with a name of its own; type and shape are given only where a body's input needs them."""
        return ir.Value(
            name=self.unique_name(name),
            type=None if dtype is None else ir.TensorType(dtype),
            shape=None if shape is None else ir.Shape(shape),
        )

    def add_node(self, node: ir.Node) -> None:
        node.metadata_props.update(self._origin)
        self.nodes.append(node)

    def write(
        self, op_type: str, inputs: Sequence[ir.Value | None], attributes: Mapping[str, Any], names: Sequence[str]
    ) -> list[ir.Value]:
        """Append one node with an output for each of `names`; it is named after the output, or after what it is."""
        outputs = [self.new_value(name) for name in names]
        attrs = [_attribute(name, content) for name, content in attributes.items()]
        name = outputs[0].name if len(outputs) == 1 else self.unique_name(op_type.lower())
        self.add_node(ir.Node("", op_type, inputs, attrs, outputs=outputs, name=name))
        return outputs

    def graph(self, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value], body: NodeWriter, name: str) -> ir.Graph:
        """A subgraph out of what `body` emitted."""
        initializers = [] if body._pool is self._pool else body._pool.initializers
        name = self._names.unique(f"{self._scope}/{name}")
        return ir.Graph(inputs, outputs, nodes=body.nodes, initializers=initializers, name=name)


def declare(operand: Operand, dtype: ir.DataType, shape: Sequence[int | str | None]) -> None:
    """Say what is certain of an emitted value; a constant tells it by itself."""
    if isinstance(operand, ir.Value):
        operand.type, operand.shape = ir.TensorType(dtype), ir.Shape(shape)


def _attribute(name: str, content: Any) -> ir.Attr:
    if isinstance(content, str):
        return ir.AttrString(name, content)
    if isinstance(content, ir.Graph):
        return ir.AttrGraph(name, content)
    if isinstance(content, list):
        return ir.AttrInt64s(name, content)
    if isinstance(content, float):
        return ir.AttrFloat32(name, content)
    if isinstance(content, int):
        return ir.AttrInt64(name, content)
    return ir.AttrTensor(name, content)
