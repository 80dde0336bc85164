"""Run a whole model on field elements, with recurrent nodes by the ONNX specification."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from rnn_lower.ir.schemas import DEFAULT_DOMAINS
from rnn_lower.ir.walk import NODE_MARK, opset_of, recurrent_nodes, values
from rnn_lower.modelio.document import Document
from rnn_lower.options import OP_TYPES
from rnn_lower.proving.exact import equations
from rnn_lower.proving.exact.call import Call, OutOfScopeError, cast_type, known
from rnn_lower.proving.exact.element_types import is_exact
from rnn_lower.proving.exact.field import Array, Field
from rnn_lower.proving.exact.interpreter import Graph, Interpreter, check_shape
from rnn_lower.proving.exact.scalar_functions import arithmetic
from rnn_lower.proving.nodes.constant_inputs import content


def limits_of(document: Document) -> set[float]:
    """Return the clip limits of all recurrent nodes."""
    nodes = (node for node, _ in recurrent_nodes(document.model) if node.op_type in OP_TYPES)
    limits = (equations.read(node, ir.DataType.FLOAT).limit for node in nodes)
    return {limit for limit in limits if limit is not None}


def types_of(document: Document) -> set[ir.DataType]:
    """The element types of all recurrent nodes, as far as they are known."""
    inputs = (node.inputs[0] for node, _ in recurrent_nodes(document.model))
    return {dtype for x in inputs if x is not None and (dtype := document.dtype_of(x)) is not None}


def shapes_of(document: Document) -> dict[str, ir.Shape]:
    """The declared shapes of a model, by name."""
    return {str(value.name): value.shape for value in values(document.model) if value.shape is not None}


CASTS = ("Cast", "CastLike")


class ModelInterpreter(Interpreter):
    """Evaluates a model over a field.

    folded: compute with constants in floats, as folding does: sums of biases, and steps of loops from constant states.
    limits: clip limits of all nodes; clips at these limits are never dropped as having no effect.
    trusted: the declared shapes that need not be compared with actual ones, by name; None for all.
    narrow: 16-bit types of recurrent nodes; nodes that rnn_lower emitted may cast float32 back to them.
    of_sizes: values that are random functions of sizes, with the name of the function (`size_functions`).
    """

    trusted: Mapping[str, ir.Shape] | None = None
    narrow: Collection[ir.DataType | None] = ()
    of_sizes: Mapping[ir.Value, str] = {}

    held: dict[str, Array] | None = None
    """By node and state, the final states of the last run, where the next one starts; None if runs are independent."""

    def __init__(
        self, field: Field, document: Document, folded: bool, limits: Collection[float], deadline: float
    ) -> None:  # fmt: skip
        super().__init__(field, limits, deadline)
        self._document, self._folded = document, folded  # the document is kept alive because its values are dict keys
        graph = document.model.graph
        self._graph = Graph(list(graph), graph.outputs, opset_of(document.proto) or 0)

    def outputs(self, feeds: Mapping[str, Array]) -> list[Array]:
        """The outputs of the model, in order. feeds: field elements, integers and booleans by input."""
        inputs = {}
        for value in self._document.model.graph.inputs:
            if value.name in feeds:
                inputs[value] = feeds[str(value.name)]
                self._check_declared(value, inputs[value])
            elif value.const_value is not None:
                inputs[value] = known(self.field, value.const_value.numpy())
        return self.run(self._graph, inputs)

    def _check_declared(self, value: ir.Value, array: Array) -> None:
        """Raise WrongError if an array does not have the declared shape of a value, unless that is trusted."""
        if self.trusted is not None and value.shape is not None and value.shape != self.trusted.get(str(value.name)):
            check_shape(value, array, {})

    def _goal(self, node: ir.Node) -> ir.DataType | None:
        """Return the target type of a Cast or CastLike, if known."""
        if node.op_type == "Cast":
            return cast_type(node.attributes["to"].value)
        return None if node.inputs[1] is None else self._document.dtype_of(node.inputs[1])

    def _rounds(self, node: ir.Node, operand: Array | None) -> bool:
        """Whether a Cast or CastLike rounds computed floats."""
        if operand is None or operand.dtype != np.uint64 or node.inputs[0] is None:
            return False
        source, narrow = self._document.dtype_of(node.inputs[0]), NODE_MARK in node.metadata_props
        return not is_exact(source, self._goal(node), self.narrow if narrow else ())

    def _bind(self, value: ir.Value, array: Array) -> None:
        self._check_declared(value, array)
        if value in self.of_sizes and array.dtype != np.int64:
            array = self.field.function(f"of sizes {self.of_sizes[value]}", self._as_element(array))
        super()._bind(value, array)

    def _results(self, node: ir.Node) -> Sequence[Array]:
        own = node.domain in DEFAULT_DOMAINS and node.op_type in OP_TYPES
        return self._recurrent(node) if own else super()._results(node)

    def _compute(self, call: Call) -> Sequence[Array]:
        x = call.node.inputs[0] if call.node.inputs else None
        dtype = None if x is None else self._document.dtype_of(x)
        if dtype is not None and dtype.is_floating_point() and dtype.bitwidth == 16:
            call = dataclasses.replace(call, dtype=dtype)
        return super()._compute(call)

    def _content(self, value: ir.Value | None, array: Array) -> np.ndarray | None:
        """The numbers of a value, if they are known."""
        return content(value, self._graph.opset)

    def _recurrent(self, node: ir.Node) -> list[Array]:
        self._defined(self._operands(node))
        dtype = None if node.inputs[0] is None else self._document.dtype_of(node.inputs[0])
        read, over = equations.read(node, dtype or ir.DataType.FLOAT), arithmetic(self.field)
        named = zip(equations.INPUTS, node.inputs, strict=False)
        arrays: dict[str, Any] = {name: self._value(value) for name, value in named if value is not None and value.name}
        if "B" in arrays:
            constant = self._content(node.inputs[3], arrays["B"])
            arrays["B"] = (
                equations.halves(over, arrays["B"]) if constant is None
                else equations.bias(self.field, constant, read.dtype, self._folded)
            )  # fmt: skip
        lengths = arrays.pop("sequence_lens", None)
        if lengths is not None and lengths.dtype.kind != "i":
            raise OutOfScopeError(
                f"input 'sequence_lens' of {node.op_type} '{node.name}' is computed from floating-point values"
            )
        held, keys = self.held or {}, {state: f"{id(node)} {state}" for state in ("h", "c")}
        arrays |= {f"initial_{state}": held[key] for state, key in keys.items() if key in held}
        results = equations.evaluate(over, read, arrays, lengths)
        if self.held is not None:
            self.held |= {key: results[f"Y_{state}"] for state, key in keys.items()}
        return [results[name] for name, _ in zip(equations.OUTPUTS, node.outputs, strict=False)]
