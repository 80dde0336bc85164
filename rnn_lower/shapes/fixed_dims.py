"""Fix the sizes of a model's inputs, both in its onnx_ir form and in the protobuf."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence

import onnx
import onnx_ir as ir

from rnn_lower.errors import RnnLowerError
from rnn_lower.ir.protobuf import dims_of, graphs_in
from rnn_lower.ir.walk import values
from rnn_lower.lowering.node import LARGEST_SIZE, Dim
from rnn_lower.options import Dims
from rnn_lower.shapes.expressions import evaluated
from rnn_lower.shapes.shape_info import NO_NAMES, plain_dim

FIXED = "rnn_lower.fixed"
"""The metadata key of the values, other than inputs, whose declared sizes may become wrong when inputs are fixed."""

Shapes = Mapping[str, Sequence[Dim] | None]
"""The declared shapes of the inputs, by name; None if an input declares no shape."""


@dataclasses.dataclass(frozen=True)
class _Fixed:
    """The fixed sizes, by symbol for the whole model, and by input and axis."""

    symbols: dict[str, int]
    places: dict[tuple[str, int], int]

    def axes(self, owner: str) -> int:
        """The number of axes of an input that are fixed by index."""
        return sum(1 for name, _ in self.places if name == owner)

    def size(self, owner: str | None, axis: int, dim: Dim) -> Dim:
        """The size of an axis of a value. owner: its name, for an input."""
        place = (owner or "", axis)
        if place in self.places or not isinstance(dim, str):
            return self.places.get(place, dim)
        number = self.symbols[dim] if dim in self.symbols else evaluated(dim, self.symbols)
        return dim if number is None else number


def declared_shapes(model: ir.Model) -> Shapes:
    """The declared shapes of the inputs of a model."""
    return {str(v.name): None if v.shape is None else list(map(plain_dim, v.shape)) for v in model.graph.inputs}


def axis_name(name: str, axis: int) -> str:
    """The name of an input axis that has no symbolic name."""
    return f"{name}[{axis}]"


def free_dims(inputs: Shapes) -> Iterator[tuple[str, int, str]]:
    """Each free axis of the inputs, with its symbol or INPUT[AXIS]."""
    for name, shape in inputs.items():
        for axis, dim in enumerate(shape or ()):
            if not isinstance(dim, int):
                vague = dim is None or dim in NO_NAMES or list(shape or ()).count(dim) > 1
                yield name, axis, axis_name(name, axis) if vague else str(dim)


def fix_dims(model: ir.Model, dims: Dims) -> None:
    """Fix sizes of inputs in place; a symbol gets its value in the whole model.

    All axes of an input that declares no shape give it one. Raises RnnLowerError for what no graph input has.
    """
    fixed = _resolve(declared_shapes(model), dims)
    inputs = set(model.graph.inputs)
    for value in model.graph.inputs:
        if value.shape is None and fixed.axes(str(value.name)):
            value.shape = ir.Shape([None] * fixed.axes(str(value.name)))
    for value in values(model):
        if value.shape is not None:
            owner = value.name if value in inputs else None
            declared = value.shape
            sizes = [fixed.size(owner, k, plain_dim(dim)) for k, dim in enumerate(declared)]
            value.shape = ir.Shape(sizes, [declared.get_denotation(k) for k in range(len(declared))])
            if owner is None and not value.is_initializer():
                model.meta.setdefault(FIXED, {})[value] = None


def fix_proto_dims(model: onnx.ModelProto, dims: Dims) -> None:
    """Fix the sizes in a protobuf model, as far as its values declare them."""
    fixed = _resolve({value.name: dims_of(value) for value in model.graph.input}, dims)
    for value in model.graph.input:
        if value.type.HasField("tensor_type") and dims_of(value) is None:
            for _ in range(fixed.axes(value.name)):
                value.type.tensor_type.shape.dim.add()
    for graph in graphs_in(model.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            owner = value.name if graph is model.graph else None
            for axis, dim in enumerate(value.type.tensor_type.shape.dim):
                size = fixed.size(owner, axis, dim.dim_param or None)
                if isinstance(size, int):
                    dim.dim_value = size


def free_proto_dim(model: onnx.ModelProto, owner: str, axis: int, symbol: str = "") -> str:
    """Make a fixed size of an input symbolic in a protobuf model; returns the symbol.

    What was declared of other values with this size in mind is taken back, for inference to find it again.
    """
    graph, symbol = model.graph, symbol or _unused_symbol(model)
    fixed_dim = next(value for value in graph.input if value.name == owner).type.tensor_type.shape.dim[axis]
    size = fixed_dim.dim_value
    fixed_dim.dim_param = symbol
    for holder in graphs_in(graph):
        del holder.value_info[:]
        for value in holder.output:
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_value == size:
                    dim.Clear()
    return symbol


def join_proto_dims(model: onnx.ModelProto, axes: Sequence[tuple[str, int]]) -> str:
    """Give free axes of inputs one symbol in a protobuf model, also where their own symbols appear; returns it."""
    shapes = {value.name: value.type.tensor_type.shape.dim for value in model.graph.input}
    dims = [shapes[name][axis] for name, axis in axes]
    joined = [dim.dim_param for dim in dims if dim.dim_param and dim.dim_param not in NO_NAMES]
    symbol = joined[0] if joined else _unused_symbol(model)
    for graph in graphs_in(model.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            dims += [dim for dim in value.type.tensor_type.shape.dim if dim.dim_param in joined]
    for dim in dims:
        dim.dim_param = symbol
    return symbol


def _unused_symbol(model: onnx.ModelProto) -> str:
    """A symbol for the time axis that no input has."""
    used = {dim.dim_param for value in model.graph.input for dim in value.type.tensor_type.shape.dim}
    return next(name for name in ("time", *(f"time_{k}" for k in range(len(used) + 1))) if name not in used)


def _resolve(inputs: Shapes, dims: Dims) -> _Fixed:
    symbols = {dim for shape in inputs.values() for dim in shape or () if isinstance(dim, str)}
    fixed = _Fixed({}, {})
    for name, size in one_by_one(inputs, dims):
        if size < 0:
            raise RnnLowerError(f"size {size} of '{name}' must not be negative")
        if size > LARGEST_SIZE:
            raise RnnLowerError(f"size {size} of '{name}' is too large; the maximum is {LARGEST_SIZE}")
        if name in symbols:
            fixed.symbols[name] = size
        else:
            key, dim = _parse_axis(inputs, name, size)
            if fixed.places.setdefault(key, size) != size:
                raise RnnLowerError(f"'{name}' is set to two different sizes, {fixed.places[key]} and {size}")
            if isinstance(dim, str) and dim not in NO_NAMES and list(inputs[key[0]] or ()).count(dim) == 1:
                fixed.symbols.setdefault(dim, size)  # it tells what it stands for, so it is that size elsewhere too
    for (owner, axis), size in fixed.places.items():
        shape = inputs[owner]
        symbol = None if shape is None else shape[axis]
        if isinstance(symbol, str) and fixed.symbols.get(symbol, size) != size:
            text = (
                f"'{axis_name(owner, axis)}' contradicts size {fixed.symbols[symbol]} of '{symbol}', "
                "which is the symbolic size of this axis"
            )
            raise RnnLowerError(f"size {size} of {text}; set the axis and the symbolic size to the same value")
    for symbol in symbols - fixed.symbols.keys():
        if (number := evaluated(symbol, fixed.symbols)) is not None:
            fixed.symbols[symbol] = number
    for owner, shape in inputs.items():
        missing = set(range(fixed.axes(owner))) - {axis for name, axis in fixed.places if name == owner}
        if shape is None and missing:
            text = f"the model declares no shape for input '{owner}'; set the sizes of all its axes"
            raise RnnLowerError(
                f"{text}, including {axis_name(owner, min(missing))} (--input-shape {owner}:SIZE,SIZE...)"
            )
    return fixed


def one_by_one(inputs: Shapes, dims: Dims) -> Iterator[tuple[str, int]]:
    """The fixed sizes, by symbol or as INPUT[AXIS]."""
    for name, size in dims.items():
        if isinstance(size, int):
            yield name, size
            continue
        if name not in inputs:
            raise RnnLowerError(f"no input is named '{name}'; inputs: {', '.join(inputs) or 'none'}")
        shape, text = inputs[name], ",".join(map(str, size))
        if shape is not None and len(shape) != len(size):
            raise RnnLowerError(f"input '{name}' has {len(shape)} axes, but {name}:{text} sets {len(size)} sizes")
        yield from ((axis_name(name, axis), each) for axis, each in enumerate(size))


def _parse_axis(inputs: Shapes, name: str, size: int) -> tuple[tuple[str, int], Dim]:
    """The input and axis that INPUT[AXIS] names, and their declared size."""
    match = re.fullmatch(r"(.+)\[(\d{1,9})\]", name, re.DOTALL)
    if match is None or match[1] not in inputs:
        known = ", ".join(dict.fromkeys(symbol for *_, symbol in free_dims(inputs))) or "none"
        several = "; write several sizes as --dim A=1 B=2" if "=" in name else ""
        raise RnnLowerError(f"no input has a symbolic size '{name}'; symbolic sizes of the inputs: {known}{several}")
    owner, axis = match[1], int(match[2])
    shape = inputs[owner]
    if shape is None:
        return (owner, axis), None
    if axis >= len(shape):
        raise RnnLowerError(f"input '{owner}' has {len(shape)} axes, so '{name}' does not exist")
    if isinstance(shape[axis], int) and shape[axis] != size:
        raise RnnLowerError(
            f"size {size} of '{name}' contradicts the model, which declares size {shape[axis]} for this axis"
        )
    return (owner, axis), shape[axis]
