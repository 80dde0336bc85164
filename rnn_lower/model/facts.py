"""What is known of a value: what the model's inputs and initializers declare, and what follows from them.

An annotation of any other value may be out of date, and nothing would tell. So it counts only where shape inference,
which is given no annotation, comes to the same.
"""

from __future__ import annotations

import functools

import onnx
import onnx.shape_inference
import onnx_ir as ir

from rnn_lower.emit.constants import known_tensor
from rnn_lower.errors import UnsupportedError
from rnn_lower.model.isolated import isolated
from rnn_lower.model.scopes import nodes, values
from rnn_lower.recurrent.node import Dim

SHOWN_TO_INFERENCE = 4096
"""Tensors up to this many bytes are given to shape inference, which reads axes and shapes from them."""


class Facts:
    """Shapes and element types of the values of a model, which is left as it is."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._inputs = set(model.graph.inputs)

    def shape(self, value: ir.Value) -> tuple[Dim, ...] | None:
        """Sizes of the axes: an int, the name of a symbolic size, or None; None when even the rank is unknown."""
        declared = None if value.shape is None else tuple(map(plain_dim, value.shape))
        if value in self._inputs or (declared is not None and value.is_initializer()):
            return declared
        tensor = known_tensor(value)
        if tensor is not None:
            return tuple(tensor.shape.numpy())
        found = self._inferred.get(value)
        names = None if declared is None else tuple(dim if isinstance(dim, str) else None for dim in declared)
        if found is None or found.shape is None:
            return names
        inferred = tuple(self._told(plain_dim(dim)) for dim in found.shape)
        if names is None or len(names) != len(inferred):
            return inferred
        return tuple(name if new is None else new for new, name in zip(inferred, names, strict=True))

    def _told(self, dim: Dim) -> Dim:
        """A size without the names that inference makes up for what it cannot tell."""
        return dim if isinstance(dim, int) or dim in self._symbols else None

    @functools.cached_property
    def _symbols(self) -> set[Dim]:
        return {plain_dim(dim) for value in values(self._model) for dim in value.shape or ()}

    def dtype(self, value: ir.Value) -> ir.DataType | None:
        """Element type, or None when unknown."""
        if value.dtype is not None:
            return value.dtype
        if value.const_value is not None:
            return value.const_value.dtype
        if value in self._arguments:
            return self._argument_dtype(value)
        return self._inferred[value].dtype if value in self._inferred else None

    def _argument_dtype(self, value: ir.Value) -> ir.DataType | None:
        """Functions declare no types: they have those of what is passed, which must be the same at every call."""
        found = {self.dtype(argument) for argument in self._arguments[value]} - {None}
        if len(found) > 1:
            names = " and ".join(sorted(dtype.name for dtype in found if dtype is not None))
            raise UnsupportedError(
                f"a function is called with '{value.name}' of type {names}, and one body cannot serve both;"
                " inline the function first (onnx.inliner)"
            )
        return next(iter(found), None)

    @functools.cached_property
    def _arguments(self) -> dict[ir.Value, list[ir.Value]]:
        found: dict[ir.Value, list[ir.Value]] = {}
        for node, _ in nodes(self._model):
            function = self._model.functions.get(node.op_identifier())
            for parameter, argument in zip(function.inputs if function else (), node.inputs, strict=False):
                if argument is not None:
                    found.setdefault(parameter, []).append(argument)
        return found

    @functools.cached_property
    def _inferred(self) -> dict[ir.Value, ir.Value]:
        """Values of the main graph and its subgraphs -> the same values after shape inference on a copy."""
        copy = self._model.clone()
        inputs = set(copy.graph.inputs)
        for value in values(copy):
            if value.const_value is not None and value.const_value.nbytes > SHOWN_TO_INFERENCE:
                value.const_value = _outline(value.const_value)
            if value not in inputs and value.const_value is None:
                value.shape = None
            elif value.shape is not None:
                value.shape = ir.Shape(map(plain_dim, value.shape))
        try:
            serialized = ir.serde.serialize_model(copy).SerializeToString()
            inferred = onnx.ModelProto.FromString(isolated(onnx.shape_inference.infer_shapes, serialized))
            result = ir.serde.deserialize_model(inferred)
        except Exception:  # whatever inference stumbles over, what it could have told is unknown then
            return {}
        pairs = zip(self._model.graph.all_nodes(), result.graph.all_nodes(), strict=True)
        return {ours: theirs for a, b in pairs for ours, theirs in zip(a.outputs, b.outputs, strict=True)}


def _outline(tensor: ir.TensorProtocol) -> ir.ExternalTensor:
    """A tensor of which only shape and type are told."""
    shape = ir.Shape(tensor.shape.numpy())
    return ir.ExternalTensor("weights", 0, tensor.nbytes, tensor.dtype, shape=shape, name=tensor.name or "")


def plain_dim(dim: int | ir.SymbolicDim) -> Dim:
    """An int, the name of a symbolic size, or None. A negative size is a way of saying that it is unknown."""
    if isinstance(dim, int):
        return dim if dim >= 0 else None
    return dim.value
