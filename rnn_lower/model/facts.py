"""What is known of a value: its own annotation first, shape inference on a copy only when that is not enough."""

from __future__ import annotations

import functools

import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from rnn_lower.model.scopes import nodes, values
from rnn_lower.recurrent.node import Dim


def infer_shapes(model: ir.Model) -> None:
    """Shape inference in place, without the names that it makes up for sizes it cannot tell."""
    known = {dim for value in values(model) for dim in map(plain_dim, value.shape or ())}
    ShapeInferencePass(check_type=False, strict_mode=False)(model)
    for value in values(model):
        dims = [plain_dim(dim) for dim in value.shape or ()]
        if any(isinstance(dim, str) and dim not in known for dim in dims):
            value.shape = ir.Shape([dim if isinstance(dim, int) or dim in known else None for dim in dims])


class Facts:
    """Shapes and element types of the values of a model, which is left as it is."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self.infer = False

    def shape(self, value: ir.Value) -> tuple[Dim, ...] | None:
        """Sizes of the axes: an int, the name of a symbolic size, or None; None when even the rank is unknown."""
        own: tuple[Dim, ...] | None = None
        if value.shape is not None:
            own = tuple(plain_dim(dim) for dim in value.shape)
        elif value.const_value is not None:
            own = tuple(value.const_value.shape.numpy())
        if not self.infer or (own is not None and all(isinstance(dim, int) for dim in own)):
            return own
        inferred = self._inferred.get(value)
        if inferred is None or inferred.shape is None:
            return own
        found = tuple(plain_dim(dim) for dim in inferred.shape)
        if own is None or len(own) != len(found):
            return own or found
        return tuple(new if isinstance(new, int) or old is None else old for old, new in zip(own, found, strict=True))

    def dtype(self, value: ir.Value) -> ir.DataType | None:
        """Element type, or None when unknown."""
        if value.dtype is None and value.const_value is not None:
            return value.const_value.dtype
        if value.dtype is None and value.is_graph_input():
            return self._argument_dtype(value)
        if value.dtype is None and self.infer and value in self._inferred:
            return self._inferred[value].dtype
        return value.dtype

    def _argument_dtype(self, value: ir.Value) -> ir.DataType | None:
        """Functions declare no types: look at what their first caller passes."""
        for argument in self._arguments.get(value, ()):
            return self.dtype(argument)
        return None

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
        infer_shapes(copy)
        pairs = zip(self._model.graph.all_nodes(), copy.graph.all_nodes(), strict=True)
        return {ours: theirs for a, b in pairs for ours, theirs in zip(a.outputs, b.outputs, strict=True)}


def plain_dim(dim: int | ir.SymbolicDim) -> Dim:
    """An int, the name of a symbolic size, or None."""
    return dim if isinstance(dim, int) else dim.value
