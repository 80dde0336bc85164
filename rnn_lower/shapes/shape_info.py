"""Information about values: declarations of inputs and initializers, and what follows from them.

An annotation of any other value may be out of date, and nothing would tell. So it counts only where shape inference,
which is given no annotation, comes to the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import TypeAlias

import onnx
import onnx_ir as ir

from rnn_lower.builder.constant_operands import known
from rnn_lower.builder.tensor_info import TensorInfo
from rnn_lower.errors import RnnLowerError, UnsupportedError
from rnn_lower.ir import protobuf
from rnn_lower.ir.schemas import DEFAULT_DOMAINS
from rnn_lower.ir.walk import nodes, owner_of, recurrent_nodes, subgraphs, values
from rnn_lower.lowering.node import Dim
from rnn_lower.shapes.shape_data import SHAPES, computed_shape
from rnn_lower.transforms.strip_weights import Shapes, inferred, outline_of, sizes_of

_Inferred: TypeAlias = "dict[ir.Graph | ir.Function | None, dict[str | None, onnx.ValueInfoProto]]"

Symbol = int | str
"""A known size, or the name of an unknown one."""

VERIFIED_SHAPES = "rnn_lower.verified_shapes"
"""The metadata key of verified shapes, by name, of values whose declared shapes were dropped."""

RESHAPES = ("Reshape", "Squeeze", "Unsqueeze")
"""Operators that change only the shape of a value."""

ROUNDS = 6
"""The maximum number of inference rounds with newly computed sizes; a layer of a model may take one round."""

NO_NAMES = ("?", "None", "none", "unknown", "-1")
"""Names that exporters write for every unknown size, so that equal names do not mean equal sizes."""


class ShapeInfo:
    """Shapes and element types of the values of a model, which stays unchanged.

    outline: the model as protobuf without its weights, where there is one already; conversion to another opset may
    have come after it, which changes no shape.
    """

    def __init__(self, model: ir.Model, outline: onnx.ModelProto | None = None) -> None:
        self._model, self._given = model, outline
        self._inputs = set(model.graph.inputs)
        self._found: _Inferred | None = None

    @functools.cached_property
    def _outline(self) -> onnx.ModelProto:
        return outline_of(self._model) if self._given is None else self._given

    def inferred_now(self) -> ShapeInfo:
        """A ShapeInfo with inference done, so that it stays valid for existing values while the model changes."""
        _ = self._free, self._inferred
        return self

    def verified_shape(self, value: ir.Value) -> tuple[Dim, ...] | None:
        """The shape without symbolic names that are only declared."""
        if known(value) is not None or value in self._inputs or value.is_initializer():
            return self.shape(value)
        return self._inferred_shape(value)

    def shape(self, value: ir.Value) -> tuple[Dim, ...] | None:
        """The shape: an int, a symbolic name, or None per axis; None if the rank is unknown."""
        constant = known(value)
        if constant is not None:  # before what is declared of it, which may be something else
            return constant.shape
        dims = None if value.shape is None else map(plain_dim, value.shape)
        declared = None if dims is None else tuple(None if dim in NO_NAMES else dim for dim in dims)
        if value in self._inputs or (declared is not None and value.is_initializer()):
            return declared
        inferred = self._inferred_shape(value)
        names = None if declared is None else tuple(dim if isinstance(dim, str) else None for dim in declared)
        if inferred is None or names is None or len(names) != len(inferred):
            return names if inferred is None else inferred
        return tuple(name if new is None else new for new, name in zip(inferred, names, strict=True))

    def verified_dims(self, value: ir.Value) -> tuple[Dim, ...]:
        """The inferred sizes, else the declared ones without unverified numbers."""
        declared = tuple(map(plain_dim, value.shape or ()))
        verified = self.verified_shape(value)
        if verified is not None and len(verified) != len(declared):
            return verified
        inferred = (None,) * len(declared) if verified is None else verified
        open_axes = {axis for axis, dim in enumerate(declared) if isinstance(dim, int) and inferred[axis] is None}
        further = self._followed_sizes(value) if open_axes else None  # which takes its time
        if further is not None and len(further) == len(declared):
            open_axes -= {axis for axis in open_axes if further[axis] == declared[axis]}
        sizes = []
        for axis, (old, new) in enumerate(zip(declared, inferred, strict=True)):
            same_kind = new is None or (isinstance(old, str) and isinstance(new, str))
            sizes.append(None if axis in open_axes else old if same_kind else new)
        return tuple(sizes)

    def _followed_sizes(self, value: ir.Value) -> Sequence[Dim] | None:
        info = self._followed.get(owner_of(value), {}).get(value.name)
        return None if info is None else sizes_of(info)

    def conflicting_values(self) -> Iterator[ir.Value]:
        """The values with impossible declared sizes or ranks."""
        for graph, proto in _same_graphs(self._model.graph, self._outline.graph):
            infos = self._inferred.get(graph, {})
            open_ = [info for info in proto.value_info if info != infos.get(info.name)]
            verdicts = {info.name: _verdict(info, infos.get(info.name), self._free) for info in open_}
            if None in verdicts.values():  # following the numbers of shapes through the graph tells more
                infos = self._followed.get(graph, {})
                unclear = [info for info in open_ if verdicts[info.name] is None]
                verdicts |= {info.name: _verdict(info, infos.get(info.name), self._free) for info in unclear}
            wrong = {name for name, verdict in verdicts.items() if verdict is False}
            yield from (value for node in (graph if wrong else ()) for value in node.outputs if value.name in wrong)

    def is_verified(self, value: ir.Value) -> bool:
        """Whether inference finds all declared sizes of a value, also symbolic ones."""
        declared, verified = value.shape, self.verified_shape(value)
        if declared is None or verified is None or len(declared) != len(verified):
            return declared is None
        return all(size in (None, found) for size, found in zip(map(plain_dim, declared), verified, strict=True))

    @functools.cached_property
    def symbols(self) -> set[str]:
        """The names of all symbolic sizes in the model."""
        return _names(values(self._model))

    @functools.cached_property
    def _free(self) -> set[str]:
        """The names of sizes that the inputs leave open."""
        return _names(self._inputs)

    def folded_sizes(self, node: ir.Node, layout: int) -> dict[str, int]:
        """seq_length and batch_size of a recurrent node from constant folding, which is slow."""
        shape = self._folded.get(node)
        if shape is None:
            return {}
        time, batch = (shape[1], shape[0]) if layout else shape[:2]
        sizes = {"seq_length": time, "batch_size": batch}
        return {name: size for name, size in sizes.items() if size is not None}

    @functools.cached_property
    def _folded(self) -> dict[ir.Node, tuple[int | None, ...] | None]:
        from rnn_lower.transforms.fold import folded_shapes  # imports onnxscript's optimizer

        try:
            shapes = folded_shapes(self._outline)
        except ir.serde.SerdeError:  # as where inference fails on it
            return {}
        ours = [node for node, _ in recurrent_nodes(self._model)]
        return dict(zip(ours, shapes, strict=True)) if len(ours) == len(shapes) else {}

    def dtype(self, value: ir.Value) -> ir.DataType | None:
        """The element type, or None if unknown."""
        constant = known(value)
        if constant is not None or value.dtype is not None:
            return value.dtype if constant is None else constant.dtype
        if value.const_value is not None:
            return value.const_value.dtype
        if value in self._arguments:
            return self._argument_dtype(value)
        inferred = self._inferred_dtype(value)
        return ir.DataType(inferred) if inferred else None

    def kind(self, value: ir.Value) -> str | None:
        """The type in the notation of schemas, such as tensor(float) or seq(tensor(int64)); None if unknown."""
        if value.type is not None and not isinstance(value.type, ir.TensorType):
            return _kind_of(ir.serde.serialize_type(value.type))
        dtype = self.dtype(value)
        if dtype is not None:
            return _kind_of(onnx.helper.make_tensor_type_proto(dtype.value, None))
        info = self._inferred_info(value)
        return None if info is None else _kind_of(info.type)

    def is_provided(self, value: ir.Value) -> bool:
        """Whether the callers of a function pass a parameter; true for other values."""
        if value not in self._arguments:
            return True
        passed = {argument is not None and self.is_provided(argument) for argument in self._arguments[value]}
        if len(passed) > 1:
            raise UnsupportedError(
                f"a function is called both with and without '{value.name}', so its nodes cannot be "
                "lowered in the same way for all calls; pass --fold to inline the function"
            )
        return passed != {False}

    def _argument_dtype(self, value: ir.Value) -> ir.DataType | None:
        """The element type of a function parameter: that of the arguments, which must be the same at every call."""
        dtypes = {self.dtype(argument) for argument in self._arguments[value] if argument is not None} - {None}
        if len(dtypes) > 1:
            names = " and ".join(sorted(dtype.name for dtype in dtypes if dtype is not None))
            raise UnsupportedError(
                f"a function is called with '{value.name}' of different types ({names}), so its nodes "
                "cannot be lowered in the same way for all calls; pass --fold to inline the function"
            )
        return next(iter(dtypes), None)

    @functools.cached_property
    def _arguments(self) -> dict[ir.Value, list[ir.Value | None]]:
        """The arguments of each call by function parameter; None for absent ones."""
        arguments: dict[ir.Value, list[ir.Value | None]] = {}
        for node, _ in nodes(self._model):
            function = self._model.functions.get(node.op_identifier())
            for index, parameter in enumerate(function.inputs if function else ()):
                argument = node.inputs[index] if index < len(node.inputs) else None
                arguments.setdefault(parameter, []).append(argument)
        return arguments

    def _inferred_shape(self, value: ir.Value) -> tuple[Dim, ...] | None:
        """The inferred shape, without the names that inference invents for unknown sizes.

        The model may declare these names elsewhere, as shape inference wrote them before.
        """
        info = self._inferred_info(value)
        dims = None if info is None else protobuf.dims_of(info)
        if dims is None:
            return None
        return tuple(dim if isinstance(dim, int) or dim in self._free else None for dim in dims)

    def _inferred_dtype(self, value: ir.Value) -> int:
        """The number of the element type, or 0."""
        info = self._inferred_info(value)
        return 0 if info is None else info.type.tensor_type.elem_type

    def _inferred_info(self, value: ir.Value) -> onnx.ValueInfoProto | None:
        return self._inferred.get(owner_of(value), {}).get(value.name)

    @property
    def _inferred(self) -> _Inferred:
        """The inferred values by graph and name; inference ignores annotations, except sizes that are computed here.

        onnx's inference stops where a model computes the sizes of a Reshape itself. These are computed here from what
        inference has found so far, and inference goes on from there.
        """
        if self._found is None:
            self._found = self._infer(follow=False)
            hints: dict[str, tuple[int, Sequence[Dim]]] = {}
            for _ in range(ROUNDS):
                more = self._hints()
                if hints | more == hints:
                    break
                hints |= more
                self._found = self._infer(False, hints)
        return self._found

    def _hints(self) -> dict[str, tuple[int, Sequence[Dim]]]:
        """Shapes that inference misses although the numbers that determine them are known."""
        hints: dict[str, tuple[int, Sequence[Dim]]] = {}
        for node in self._model.graph:
            if node.op_type not in SHAPES or node.domain not in DEFAULT_DOMAINS:
                continue
            for value in node.outputs:
                dtype, known = self._inferred_dtype(value), self._inferred_shape(value)
                if not value.name or not dtype or (known is not None and None not in known):
                    continue
                shape = computed_shape(value, self)
                if shape is not None and (known is None or list(shape) != list(known)):
                    hints[value.name] = dtype, shape
        return hints

    @functools.cached_property
    def _followed(self) -> _Inferred:
        """Inference with data propagation, which has been wrong too often to count as verified."""
        return self._infer(follow=True)

    def _infer(self, follow: bool, hints: Shapes | None = None) -> _Inferred:
        try:
            model = inferred(self._outline, follow, hints)
        except (RnnLowerError, ir.serde.SerdeError):  # what inference fails on is unknown
            return {}
        pairs = _same_graphs(self._model.graph, model.graph)
        return {
            graph: {info.name: info for info in (*proto.value_info, *proto.input, *proto.output)}
            for graph, proto in pairs
        }


def _kind_of(proto: onnx.TypeProto) -> str | None:
    held = proto.WhichOneof("value")
    if held == "tensor_type":
        elem_type = proto.tensor_type.elem_type
        return f"tensor({ir.DataType(elem_type).name.lower()})" if elem_type else None
    if held not in ("sequence_type", "optional_type"):
        return None
    inner = _kind_of(getattr(proto, held).elem_type)
    return inner and f"{'seq' if held == 'sequence_type' else 'optional'}({inner})"


def _same_graphs(graph: ir.Graph, proto: onnx.GraphProto) -> Iterator[tuple[ir.Graph, onnx.GraphProto]]:
    """The pairs of corresponding graphs of two forms of a graph; nodes with bodies have the same order in both."""
    yield graph, proto
    ours = [body for node in graph for _, body in subgraphs(node)]
    theirs = [body for node in proto.node for body in protobuf.graphs_of(node)]
    if len(ours) == len(theirs):
        for one, message in zip(ours, theirs, strict=True):
            yield from _same_graphs(one, message)


def _verdict(
    declared: onnx.ValueInfoProto, inferred: onnx.ValueInfoProto | None, free: Container[str]
) -> bool | None:  # fmt: skip
    """Whether the declared sizes equal the inferred ones; None if one is not inferred. free: sizes of the inputs."""
    stated, known = sizes_of(declared), None if inferred is None else protobuf.dims_of(inferred)
    if stated is None or not any(size is not None for size in stated):
        return True
    if known is None:
        return None
    pairs = [(a, b) for a, b in zip(stated, known, strict=False) if a is not None]
    if len(stated) != len(known) or any(a != b for a, b in pairs if isinstance(b, int) or b in free):
        return False
    return None if any(not isinstance(b, int) for _, b in pairs) else True


def _names(values: Iterable[ir.Value]) -> set[str]:
    """The names of sizes that values declare."""
    dims = (plain_dim(dim) for value in values for dim in value.shape or ())
    return {dim for dim in dims if isinstance(dim, str)} - {*NO_NAMES}


def plain_dim(dim: int | ir.SymbolicDim) -> Dim:
    """An int, a symbolic name, or None; negative sizes count as unknown."""
    if isinstance(dim, int):
        return dim if dim >= 0 else None
    return dim.value


def symbol(value: ir.Value, axis: int) -> Symbol:
    """The size of an axis, its symbolic name, or, if it has neither, its input and axis."""
    dim = None if value.shape is None else plain_dim(value.shape[axis])
    return f"{value.name}/{axis}" if dim is None or dim in NO_NAMES else dim


def declared_by(shape_info: ShapeInfo) -> Callable[[ir.Value], TensorInfo | None]:
    """The facts about a value that constraints read."""

    def declared(value: ir.Value) -> TensorInfo | None:
        shape = shape_info.shape(value)
        if shape is None:
            return None
        return TensorInfo(tuple(size if isinstance(size, int) else None for size in shape), shape_info.dtype(value))

    return declared
