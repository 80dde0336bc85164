"""A model as protobuf, and its onnx_ir view, which is lowered.

onnx_ir does not represent everything in a protobuf model, and need not: the view contains what lowering reads, and
`write_back` writes the changes into the protobuf. Messages that lowering does not change stay identical.
"""

from __future__ import annotations

import collections
import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import google.protobuf.message
import onnx
import onnx_ir as ir

from rnn_lower.errors import InvalidNodeError, RnnLowerError, UnsupportedError, first_cause, one_line
from rnn_lower.ir import protobuf
from rnn_lower.ir.schemas import DEFAULT_DOMAINS
from rnn_lower.ir.uncollected import uncollected
from rnn_lower.ir.walk import SPARSE, TRAINED, default_opset, owner_of, roots, subgraphs, with_bodies
from rnn_lower.modelio import validate
from rnn_lower.options import Dims
from rnn_lower.shapes.fixed_dims import fix_dims, fix_proto_dims
from rnn_lower.shapes.shape_info import VERIFIED_SHAPES, ShapeInfo
from rnn_lower.shapes.stale_shapes import verified_fixed_shapes
from rnn_lower.transforms.strip_weights import outline, outline_of

MAX_NESTING = 29
"""The maximum nesting depth of graphs: protobuf reads messages up to 100 levels deep, and each graph takes three."""

DEEP = MAX_NESTING - 5
"""From this depth on, the content of the innermost graph decides whether the model is readable: a shape takes five."""


class Document:
    """A protobuf model with its view.

    proto: owned, and changed only by `write_back`.  model: the view to be lowered, created on first use.
    outline: the protobuf without weights from which the view was created.
    folder: the folder of external data, or None.  notes: messages to log after lowering.
    Raises RnnLowerError for an invalid model.
    """

    def __init__(self, proto: onnx.ModelProto, folder: Path | None = None) -> None:
        self.proto, self.folder = proto, folder
        self.notes: list[str] = []
        self._origin: dict[ir.Node, onnx.NodeProto] = {}
        self._has_fixed_dims = False
        self._pairs: list[tuple[ir.Graph | ir.Function, onnx.GraphProto | onnx.FunctionProto]] = []
        with _as_no_model():
            self._in_order = validate.check(proto, folder)

    def again(self) -> Document:
        """Another document of the same protobuf, before anything is written back."""
        return Document(self.proto, self.folder)

    def copied(self, change: Callable[[onnx.ModelProto], None] = lambda _: None) -> Document:
        """A document with a changed copy of the protobuf."""
        proto = onnx.ModelProto()
        proto.CopyFrom(self.proto)
        change(proto)
        return Document(proto, self.folder)

    def embedded(self) -> onnx.ModelProto:
        """A copy of the protobuf with all external data embedded."""
        proto = onnx.ModelProto()
        proto.CopyFrom(self.proto)
        if self.folder is not None:
            protobuf.embed(proto, self.folder)
        return proto

    def check_data(self) -> None:
        """Raise RnnLowerError if weights are in files whose folder is unknown."""
        if self.folder is None and any(map(protobuf.is_external, protobuf.tensors(self.proto))):
            raise RnnLowerError("the weights are in files whose folder is unknown; pass the path of the model")

    def in_order(self) -> Document:
        """The document with sorted nodes; see `changed`."""
        return self if self._in_order else self.changed(lambda _: None)

    def changed(self, change: Callable[[ir.Model], object]) -> Document:
        """The model after a function that may change anything; parts that do not affect results may be lost.

        Raises UnsupportedError if onnx_ir does not represent a part of the model that affects results.
        """
        if any(
            isinstance(holder, onnx.GraphProto) and holder.sparse_initializer for holder in protobuf.holders(self.proto)
        ):
            raise _not_carried("a sparse initializer")
        try:
            model = _read(self.proto)
        except MemoryError:
            raise
        except Exception as error:  # onnx_ir wraps errors of every kind
            raise _not_carried(f"this model: {one_line(first_cause(error))}") from None
        if self.folder is not None:
            for graph in (model.graph, *(function.graph for function in model.functions.values())):
                ir.external_data.set_base_dir(graph, self.folder)
        if not self._in_order:
            _sort(model)
        change(model)
        try:
            proto: onnx.ModelProto = ir.serde.serialize_model(model)
        except ir.serde.SerdeError as error:
            raise _not_carried(f"this model: {one_line(first_cause(error))}") from None
        for tensor in protobuf.tensors(proto):  # onnx_ir writes the metadata of its file once more
            metadata = {entry.key: entry.value for entry in tensor.metadata_props}
            if len(metadata) < len(tensor.metadata_props):
                del tensor.metadata_props[:]
                for key, text in metadata.items():
                    tensor.metadata_props.add(key=key, value=text)
        inputs, declared = {v.name for v in proto.graph.input}, {info.name: info for info in self.proto.graph.output}
        before = {info.name for graph in protobuf.graphs_in(self.proto.graph) for info in graph.value_info}
        graphs = [*protobuf.graphs_in(proto.graph)]
        weights = {tensor.name for graph in graphs for tensor in graph.initializer} - before  # they state their types
        for graph in graphs:
            protobuf.remove_if(graph.value_info, lambda info: info.name in weights)
        for output in proto.graph.output:
            if output.name in inputs & declared.keys():  # a declaration that does not describe the input
                output.CopyFrom(declared[output.name])
        for field in ("producer_name", "producer_version", "domain", "model_version", "doc_string"):
            if self.proto.HasField(field):  # also if it is empty
                setattr(proto, field, getattr(self.proto, field))
        imports = {(entry.domain, entry.version): entry for entry in self.proto.opset_import}
        for entry in proto.opset_import:  # in which an absent domain stays absent
            entry.CopyFrom(imports.get((entry.domain, entry.version), entry))
        return Document(proto, self.folder)

    def fixed(self, sizes: Dims) -> Document:
        """The document with fixed input sizes, without sizes that became unverified; do not use this one afterwards."""
        fix_dims(self.model, sizes)
        fix_proto_dims(self.outline, sizes)
        for value, shape in verified_fixed_shapes(self.model, self.shape_info).items():
            owner = owner_of(value)
            if isinstance(owner, ir.Graph):
                owner.meta.setdefault(VERIFIED_SHAPES, {})[value.name] = shape
        return Document(self.write_back(sizes), self.folder)

    @functools.cached_property
    def outline(self) -> onnx.ModelProto:
        return outline(self.proto, self.folder)

    @functools.cached_property
    def shape_info(self) -> ShapeInfo:
        """Information about the view in its current state; it is not valid after changes."""
        return ShapeInfo(self.model, self.outline)

    @functools.cached_property
    def dtype_of(self) -> Callable[[ir.Value], ir.DataType | None]:
        """The element type of a value of the view in its current state, or None if unknown; found once."""
        return functools.cache(self.shape_info.dtype)

    @functools.cached_property
    @uncollected()
    def model(self) -> ir.Model:
        with _as_no_model():
            model = _read(self.outline)
        self._pair(model.graph, self.proto.graph)
        for ours, function in zip(model.functions.values(), self.proto.functions, strict=True):
            self._pair(ours, function)
        read, updated = protobuf.named_by_training(self.proto), protobuf.trained_weights(self.proto)
        computed = (value for node in model.graph for value in node.outputs if value.name in read)
        weights = (value for name, value in model.graph.initializers.items() if name in updated)
        for value in (*computed, *weights):
            value.meta[TRAINED] = True
        self._nesting_before = max(_nesting(scope.graph) for scope in roots(model))
        if not self._in_order:
            _sort(model)
            self.outline = outline_of(model)  # in the order of the sorted view
        return model

    def _pair(self, graph: ir.Graph | ir.Function, proto: onnx.GraphProto | onnx.FunctionProto) -> None:
        """Remember which message each graph and node of the view came from, and attach the weights."""
        for node, message in zip(graph, proto.node, strict=True):
            self._origin[node] = message
            if not message.attribute:
                continue
            for (_, inner), body in zip(subgraphs(node), protobuf.graphs_of(message), strict=True):
                self._pair(inner, body)
            for attribute in message.attribute:
                if protobuf.is_external(attribute.t):
                    held = protobuf.as_ir(attribute.t, self.folder)
                    if held is None:  # onnx_ir would look for it in the working folder
                        raise RnnLowerError(
                            f"the data of tensor '{attribute.t.name}' of {node.op_type} '{node.name}' is in a"
                            " file whose folder is unknown; pass the path of the model"
                        )
                    node.attributes[attribute.name] = ir.AttrTensor(attribute.name, held)
        if isinstance(graph, ir.Graph):
            for tensor in proto.initializer:  # None means known only at run time: its folder is unknown
                graph.initializers[tensor.name].const_value = protobuf.as_ir(tensor, self.folder)
            for sparse in proto.sparse_initializer:
                value = graph.initializers[sparse.values.name]
                value.const_value, value.meta[SPARSE] = None, True
        self._pairs.append((graph, proto))  # bodies before their graphs

    def message(self, node: ir.Node) -> onnx.NodeProto:
        """The protobuf message that a node of the view was read from."""
        return self._origin[node]

    # -- back into the protobuf ----------------------------------------------------------------------------------------

    @uncollected()
    def write_back(
        self, dims: Dims | None = None, keep: Callable[[ir.Value], ir.TensorProtocol] | None = None
    ) -> onnx.ModelProto:
        """Write the changes of the view back to the protobuf, and return it.

        dims: sizes that were fixed.  keep: maps each new weight to the tensor to write.
        Raises UnsupportedError if the result would be invalid because of its depth.
        """
        nesting = self.check_nesting()
        self.__dict__.pop("outline", None)  # it is outdated, and large
        self._has_fixed_dims = bool(dims)
        if dims:  # first, so that unverified sizes of values are dropped, too
            fix_proto_dims(self.proto, dims)
        try:
            for graph, proto in self._pairs:
                self._write_graph(graph, proto, keep)
        except ir.serde.SerdeError as error:
            raise RnnLowerError(f"the lowered model cannot be serialized: {error.__cause__ or error}") from None
        self._write_imports()
        self._write_metadata()
        if self.proto.functions:  # a function for a node is one more level
            try:
                validate.check_functions(self.proto)
            except RnnLowerError as error:
                raise UnsupportedError(f"the lowered model would not be valid: {error}; drop --as-function") from None
        if nesting > DEEP and not _is_readable(self.proto):
            raise _too_deep("no other form helps, because form unroll already has the fewest nested graphs")
        return self.proto

    def check_nesting(self) -> int:
        """The depth of nested graphs. Raises UnsupportedError if it is too large to be read."""
        nesting = max(_nesting(scope.graph) for scope in roots(self.model))
        if nesting > max(MAX_NESTING, self._nesting_before):
            raise _too_deep("use --form unroll")
        return nesting

    def _write_graph(
        self, graph: ir.Graph | ir.Function, proto: onnx.GraphProto | onnx.FunctionProto,
        keep: Callable[[ir.Value], ir.TensorProtocol] | None,
    ) -> None:  # fmt: skip
        new = [node for node in graph if node not in self._origin]
        if keep is not None:
            for value in _weights_of(new):
                value.const_value = keep(value)
        nodes = [self._proto_of(node) for node in graph]
        if len(nodes) != len(proto.node) or any(a is not b for a, b in zip(nodes, proto.node, strict=True)):
            before = _defined(proto)
            del proto.node[:]
            proto.node.extend(nodes)
            gone = before - _defined(proto) - ({*graph.initializers} if isinstance(graph, ir.Graph) else set())
            protobuf.remove_if(proto.value_info, lambda info: info.name in gone)
        if isinstance(graph, ir.Graph):
            self._write_values(graph, proto, new, keep)
        if new:
            _check_unique(proto)

    def _proto_of(self, node: ir.Node) -> onnx.NodeProto:
        """The protobuf of a node: the message of the file, if any, with the current input names."""
        if node not in self._origin:
            return ir.serde.serialize_node(node)
        proto, names = self._origin[node], ["" if value is None else value.name or "" for value in node.inputs]
        if list(proto.input) != names:
            proto.input[:] = names
        return proto

    def _write_values(
        self, graph: ir.Graph, proto: onnx.GraphProto, new: list[ir.Node],
        keep: Callable[[ir.Value], ir.TensorProtocol] | None,
    ) -> None:  # fmt: skip
        inputs = {value.name for value in graph.inputs}
        names = {*graph.initializers, *protobuf.named_by_training(self.proto)}
        unused = {tensor.name for tensor in proto.initializer} - names
        for entries in (proto.initializer, proto.value_info):
            protobuf.remove_if(entries, lambda entry: entry.name in unused)
        protobuf.remove_if(proto.input, lambda value: value.name not in inputs)
        there = {tensor.name for tensor in proto.initializer}
        for name, value in graph.initializers.items():
            if name not in there and value.const_value is not None:
                tensor = value.const_value if keep is None else keep(value)
                proto.initializer.append(ir.serde.serialize_tensor(tensor))
        verified = graph.meta.get(VERIFIED_SHAPES, {})
        for info in (*proto.value_info, *proto.output, *(() if graph is self.model.graph else proto.input)):
            if info.name in verified:
                _redeclare(info, verified[info.name], self._has_fixed_dims)
        described = {info.name for info in (*proto.value_info, *proto.output)}
        for node in new:
            for value in node.outputs:
                if value.name not in described and value.type is not None:
                    proto.value_info.append(ir.serde.serialize_value(value))

    def _write_metadata(self) -> None:
        """Write the metadata of the model, such as what was legalized."""
        there = {entry.key: entry for entry in self.proto.metadata_props}
        for key, text in self.model.metadata_props.items():
            if key not in there:
                self.proto.metadata_props.add(key=key, value=text)
            elif there[key].value != text:
                there[key].value = text

    def _write_imports(self) -> None:
        self.proto.ir_version = self.model.ir_version
        functions = list(self.model.functions.values())
        own = [self.model.opset_imports, *(function.opset_imports for function in functions)]
        for imports, proto in zip(own, (self.proto, *self.proto.functions), strict=False):
            for entry in proto.opset_import:
                if entry.domain in DEFAULT_DOMAINS:
                    entry.version = default_opset(imports)
            there = {entry.domain for entry in proto.opset_import}
            for domain in imports.keys() - there - set(DEFAULT_DOMAINS):  # the domains of functions that lowering added
                proto.opset_import.add(domain=domain, version=imports[domain])
        for function in functions[len(self.proto.functions) :]:
            self.proto.functions.append(ir.serde.serialize_function(function))


def _defined(proto: onnx.GraphProto | onnx.FunctionProto) -> set[str]:
    """The names of the values that the nodes of a graph compute."""
    return {name for node in proto.node for name in node.output}


def _check_unique(proto: protobuf.Holder) -> None:
    """Raise RnnLowerError if two values of a graph have one name, so that a node would read the wrong one."""
    names = collections.Counter(name for node in proto.node for name in node.output if name)
    if isinstance(proto, onnx.FunctionProto):
        names.update(proto.input)
    else:
        names.update({*(value.name for value in proto.input), *(tensor.name for tensor in proto.initializer)})
    if twice := [name for name, count in names.items() if count > 1]:
        raise RnnLowerError(f"the new model would give two values the name '{twice[0]}'; rename that of the original")


def _read(proto: onnx.ModelProto) -> ir.Model:
    """The onnx_ir model of a protobuf; an input that is also an output keeps the input's declaration."""
    model: ir.Model = ir.serde.deserialize_model(proto)
    for value, declared in zip(model.graph.inputs, proto.graph.input, strict=True):
        if value.is_graph_output():
            alone = ir.serde.deserialize_value_info_proto(declared, None)
            value.type, value.shape = alone.type, alone.shape
    return model


def _too_deep(suggestion: str) -> UnsupportedError:
    text = f"the graphs in the lowered model are nested more than {MAX_NESTING} levels deep, too deep for protobuf"
    return UnsupportedError(f"{text}; {suggestion}")


def _is_readable(proto: onnx.ModelProto) -> bool:
    try:
        onnx.ModelProto.FromString(proto.SerializeToString())
    except google.protobuf.message.DecodeError:
        return False
    return True


@contextlib.contextmanager
def _as_no_model() -> Iterator[None]:
    """Report every error of a reader as an invalid model."""
    try:
        yield
    except (RnnLowerError, MemoryError):
        raise
    except UnicodeDecodeError:
        raise RnnLowerError("not an ONNX model: a name is not valid UTF-8") from None
    except Exception as error:  # onnx_ir wraps errors of every kind
        raise RnnLowerError(f"not an ONNX model: {one_line(error)}") from None


def _not_carried(what: str) -> UnsupportedError:
    return UnsupportedError(
        f"--fold and --set use the package onnx_ir, which does not support {what}; drop these options"
    )


def _sort(model: ir.Model) -> None:
    """Sort the nodes; onnxruntime accepts any order, but the traversal of a model does not."""
    try:
        for scope in roots(model):
            scope.graph.sort()
    except ValueError:
        raise InvalidNodeError("the nodes of the graph form a cycle; export the model again") from None


def _redeclare(info: onnx.ValueInfoProto, shape: ir.Shape, everywhere: bool) -> None:
    """Drop declared sizes that the view no longer declares. everywhere: also declare all that it does."""
    tensor = info.type.tensor_type
    if not info.type.HasField("tensor_type") or not tensor.HasField("shape"):
        return
    if len(tensor.shape.dim) != len(shape):
        tensor.ClearField("shape")
        return
    for dim, known in zip(tensor.shape.dim, shape, strict=True):
        if isinstance(known, int) and everywhere:
            dim.dim_value = known
        elif dim.HasField("dim_value") and known != dim.dim_value and dim.dim_value >= 0:  # -1 is no size
            dim.ClearField("dim_value")
            if everywhere and isinstance(known, ir.SymbolicDim) and known.value is not None:
                dim.dim_param = known.value
        elif isinstance(known, ir.SymbolicDim) and known.value is None:
            dim.ClearField("dim_param")


def _weights_of(nodes: list[ir.Node]) -> Iterator[ir.Value]:
    """The initializers of the bodies of new nodes."""
    for node in with_bodies(nodes):
        for _, body in subgraphs(node):
            yield from body.initializers.values()


def _nesting(graph: ir.Graph | ir.Function) -> int:
    return 1 + max((_nesting(body) for node in graph for _, body in subgraphs(node)), default=0)
