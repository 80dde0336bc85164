"""Running a whole model on field elements, recurrent nodes by the ONNX text."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from rnn_lower.ir.walk import opset_of, recurrent_nodes, with_bodies
from rnn_lower.modelio.document import Document
from rnn_lower.options import OP_TYPES
from rnn_lower.proving import algebraic_patterns, equations
from rnn_lower.proving.constant_inputs import content
from rnn_lower.proving.field import Array, Field
from rnn_lower.proving.interpreter import Group, Interpreter, check_time
from rnn_lower.proving.model_operators import MODEL_OPERATORS
from rnn_lower.proving.operators import OutOfScopeError, known
from rnn_lower.proving.scalar_functions import FieldArithmetic
from rnn_lower.transforms.inline import inlined


@dataclasses.dataclass(frozen=True)
class _Graph:
    """What an interpreter reads of a program."""

    nodes: Sequence[ir.Node]
    wanted: Sequence[ir.Value]
    opset: int

    @property
    def all_nodes(self) -> Iterator[ir.Node]:
        return with_bodies(self.nodes)


def inlined_document(document: Document) -> Document:
    """The same without functions."""
    return Document(inlined(document.proto), document.folder) if document.proto.functions else document


def limits_of(document: Document) -> set[float]:
    """The limits of the clips of all recurrent nodes."""
    nodes = (equations.read(node, ir.DataType.FLOAT) for node, _ in recurrent_nodes(document.model))
    return {read.limit for read in nodes if read.limit is not None}


class ModelInterpreter(Interpreter):
    """Runs a model over a field.

    folded: whether the two halves of a constant B are added in floats, as where they are a constant of a lowered graph.
    limits: of the clips of all nodes, which stay clips where they are large.
    """

    operators = MODEL_OPERATORS
    held: dict[str, Array] | None = None
    """The states that recurrent nodes end with, and begin with the next time, where they remember them."""

    def __init__(
        self, field: Field, document: Document, folded: bool, limits: Collection[float], deadline: float
    ) -> None:  # fmt: skip
        super().__init__(field, deadline=deadline)
        self._document, self._folded, self._limits = document, folded, limits  # alive, since its values are keys
        self._graph = _Graph(list(document.model.graph), document.model.graph.outputs, opset_of(document.proto) or 0)

    def outputs(self, feeds: Mapping[str, Array]) -> list[Array]:
        """The outputs of the model, in order. feeds: field elements, integers and truth values by input."""
        inputs = {}
        for value in self._document.model.graph.inputs:
            if value.name in feeds:
                inputs[value] = feeds[str(value.name)]
            elif value.const_value is not None:
                inputs[value] = known(self.field, value.const_value.numpy())
        return self.run(self._graph, inputs)

    def _group(self, node: ir.Node) -> Group | None:
        found = algebraic_patterns.clip_of(node.inputs[0]) if node.op_type == "Tanh" else None
        self._limit = found[2] if found is not None and found[2] in self._limits else None
        return super()._group(node)

    def _compare_shape(self, value: ir.Value, array: Array) -> None:
        """What a model declares of its values binds nobody."""

    def _divides(self, node: ir.Node, divisor: Array) -> None:
        """Where floats divide by zero, both models do."""

    def _execute(self, node: ir.Node) -> None:
        check_time(self._deadline)
        super()._execute(node)

    def _results(self, node: ir.Node) -> Sequence[Array]:
        if node.domain in ("", "ai.onnx") and node.op_type in OP_TYPES:
            return self._recurrent(node)
        return super()._results(node)

    def _content(self, value: ir.Value, array: Array) -> np.ndarray | None:
        """The numbers of a value where they are known."""
        return content(value, self._opset) if value.producer() else algebraic_patterns.constant(value)

    def _recurrent(self, node: ir.Node) -> list[Array]:
        dtype = node.inputs[0].dtype if node.inputs[0] is not None else None
        read = equations.read(node, dtype or ir.DataType.FLOAT)
        arrays: dict[str, Any] = {}
        for name, value in zip(equations.INPUTS, node.inputs, strict=False):
            if value is None or not value.name:
                continue
            arrays[name] = self._value(value)
            if name == "B":
                constant = self._content(value, arrays[name])
                arrays[name] = (
                    equations.halves(FieldArithmetic(self.field), arrays[name]) if constant is None
                    else equations.bias(self.field, constant, read.dtype, self._folded)
                )  # fmt: skip
        lengths = arrays.pop("sequence_lens", None)
        if lengths is not None and lengths.dtype != np.int64:
            raise OutOfScopeError("sequence_lens that are computed from floats")
        held, keys = self.held or {}, {state: f"{id(node)} {state}" for state in ("h", "c")}
        arrays |= {f"initial_{state}": held[key] for state, key in keys.items() if key in held}
        found = equations.evaluate(FieldArithmetic(self.field), read, arrays, lengths)
        if self.held is not None:
            self.held |= {key: found[f"Y_{state}"] for state, key in keys.items()}
        return [found[name] for name, _ in zip(equations.OUTPUTS, node.outputs, strict=False) if name in found]
