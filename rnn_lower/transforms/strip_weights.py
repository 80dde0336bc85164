"""A protobuf model without weights and without parts that onnx_ir cannot read, as input for lowering."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
import onnx.checker
import onnx.shape_inference
import onnx_ir as ir

from rnn_lower.errors import RnnLowerError
from rnn_lower.ir import protobuf
from rnn_lower.ir.schemas import DEFAULT_DOMAINS
from rnn_lower.ir.walk import is_quantized, opset_of
from rnn_lower.options import OP_TYPES
from rnn_lower.sandbox.resource_limits import run_with_limits
from rnn_lower.transforms.unverified_shapes import hide_unverified

SHOWN, SHOWN_INTEGERS = 4096, 1 << 18
"""The maximum size, in bytes, of tensors that keep their data, and of lists of integers: shape inference reads axes and
sizes from them, such as the sizes of a Split into many steps."""

NO_FILE = "rnn_lower.stripped/no/file"
"""The external location of larger tensors in a model without weights; this file is never read."""

UNSEEN = "rnn_lower.unseen"
"""The metadata key of nodes without a required attribute; only their own NodeProto can represent them."""

FOLLOWING = {"seconds": 5, "size": 1 << 29}
"""Limits for following shape data: onnx 1.23 counts sizes one by one, however large they are."""

Shapes = Mapping[str, "tuple[int, Sequence[int | str | None]]"]
"""The element type and the sizes of the axes of each value, by name."""

_A = onnx.AttributeProto
_UNSEEN = (_A.SPARSE_TENSOR, _A.SPARSE_TENSORS, _A.TYPE_PROTO, _A.TYPE_PROTOS)
"""Attributes that lowering does not need and that onnx_ir cannot always read."""


def outline(proto: onnx.ModelProto, folder: Path | None = None) -> onnx.ModelProto:
    """The outline of a model, with nodes, bodies and initializers in the same order. folder: of external data."""
    view = onnx.ModelProto(ir_version=proto.ir_version)
    view.opset_import.extend(proto.opset_import)
    view.metadata_props.extend(proto.metadata_props)
    graph = view.graph
    graph.name = proto.graph.name
    graph.node.extend(proto.graph.node)
    for field in ("input", "output", "value_info"):
        getattr(graph, field).extend(getattr(proto.graph, field))
    graph.initializer.extend(_outlined_initializers(proto.graph, folder))
    _strip(graph, folder)
    view.functions.extend(proto.functions)
    for function in view.functions:
        protobuf.remove_if(
            function.attribute_proto, lambda attribute: _is_unseen(attribute) or attribute.type in (_A.GRAPH, _A.GRAPHS)
        )
        _strip(function, folder)
    return view


def outline_of(model: ir.Model) -> onnx.ModelProto:
    """The outline of a copy of an onnx_ir model."""
    copy = model.clone()
    for graph in copy.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is None or tensor.dtype == ir.DataType.STRING:
                continue
            if tensor.nbytes > _most_shown(tensor.dtype, len(tensor.shape)):
                shape, dtype = ir.Shape(tensor.shape.numpy()), tensor.dtype
                value.const_value = ir.ExternalTensor(NO_FILE, 0, 0, dtype, shape=shape, name=value.name or "")
    proto = ir.serde.serialize_model(copy)
    _strip(proto.graph, None)
    return proto


def without_annotations(proto: onnx.ModelProto, hints: Shapes | None = None) -> onnx.ModelProto:
    """A copy in which only inputs and initializers of the main graph and functions declare shapes.

    The number of a Loop's step keeps rank 0; another rank, which runtimes read differently, counts as unknown.
    Initializers that a caller may override are removed, because their content is not certain. hints: certain shapes.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    inputs = {value.name for value in copy.graph.input} if copy.ir_version >= 4 else set()
    protobuf.remove_if(copy.graph.initializer, lambda tensor: tensor.name in inputs)
    types = {info.name: info.type.tensor_type.elem_type for info in (*copy.graph.value_info, *copy.graph.output)}
    for holder in protobuf.holders(copy):
        holder.ClearField("value_info")
        bodies = [(node.op_type, body.input) for node in holder.node for body in protobuf.graphs_of(node)]
        declared = [values[op_type == "Loop" and _is_scalar(values) :] for op_type, values in bodies]
        for value in itertools.chain(*declared, holder.output if isinstance(holder, onnx.GraphProto) else ()):
            if value.type.HasField("tensor_type"):
                value.type.tensor_type.ClearField("shape")
    for holder in protobuf.holders(copy):
        for node in filter(is_quantized, holder.node):
            node.op_type, node.domain = "LSTM", ""  # whose sizes inference knows; it reads X and hidden_size
            del node.input[8:]
    _replace_layouts(copy)
    _show_to_bodies(copy.graph, {})
    outputs = {info.name: info for info in copy.graph.output}
    for name, (dtype, shape) in (hints or {}).items():
        text = onnx.helper.make_tensor_value_info(name, types.get(name) or dtype, shape)
        outputs[name].CopyFrom(text) if name in outputs else copy.graph.value_info.append(text)
    return copy


def _is_scalar(values: Sequence[onnx.ValueInfoProto]) -> bool:
    """Whether the first of these values declares rank 0."""
    kind = values[0].type.tensor_type if values else None
    return kind is not None and kind.HasField("shape") and not kind.shape.dim


def _show_to_bodies(graph: onnx.GraphProto, outer: Mapping[str, onnx.TensorProto]) -> None:
    """Copy integers into the bodies that read them from outside, where inference does not find them."""
    here = {tensor.name: tensor for tensor in graph.initializer if tensor.data_type == onnx.TensorProto.INT64}
    held = {**outer, **{name: tensor for name, tensor in here.items() if not protobuf.is_external(tensor)}}
    for body in (body for node in graph.node if held for body in protobuf.graphs_of(node)):
        own = {*(value.name for value in body.input), *(tensor.name for tensor in body.initializer)}
        own.update(name for node in body.node for name in node.output)
        read = {name for node in body.node for name in node.input}
        _show_to_bodies(body, {name: tensor for name, tensor in held.items() if name not in own})
        body.initializer.extend(held[name] for name in sorted(read & held.keys() - own))


def _replace_layouts(model: onnx.ModelProto) -> None:
    """Replace layouts below opset 14, where inference ignores them."""
    for root in (model, *model.functions):
        if (opset_of(root) or 14) < 14:
            for holder in protobuf.graphs_in(model.graph if root is model else root):
                _without_layout(holder)


def _without_layout(holder: protobuf.Holder) -> None:
    """Transpose X and the outputs of recurrent nodes instead of a layout."""
    if not any(map(_has_layout, holder.node)):
        return
    new: list[onnx.NodeProto] = []
    for node in holder.node:
        if not _has_layout(node):
            new.append(node)
            continue
        names = [f"{name}/time_first" if name else "" for name in node.output]
        x = f"{next(filter(None, names), '')}/X"
        twin = onnx.helper.make_node(node.op_type, [x, *node.input[1:3]], names)
        twin.attribute.extend(attribute for attribute in node.attribute if attribute.name != "layout")
        new += [onnx.helper.make_node("Transpose", [node.input[0]], [x], perm=[1, 0, 2]), twin]
        perms = ([2, 0, 1, 3], [1, 0, 2], [1, 0, 2])
        pairs = zip(names, node.output, perms, strict=False)
        new += [onnx.helper.make_node("Transpose", [a], [b], perm=perm) for a, b, perm in pairs if b]
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in new]
    del holder.node[:]
    holder.node.extend(copies)


def _has_layout(node: onnx.NodeProto) -> bool:
    return node.op_type in OP_TYPES and any(each.name == "layout" and each.i for each in node.attribute)


def inferred(proto: onnx.ModelProto, follow: bool = False, hints: Shapes | None = None) -> onnx.ModelProto:
    """The results of shape inference on a model without annotations.

    Only nodes with bodies remain, in order. follow: also propagate the values of shapes, which finds more, but has been
    wrong before. Raises RnnLowerError if inference fails.
    """
    limits = FOLLOWING if follow else {}
    return onnx.ModelProto.FromString(run_with_limits(_shape_inference, proto, follow, hints, **limits))


def _shape_inference(proto: onnx.ModelProto, follow: bool, hints: Shapes | None) -> onnx.ModelProto:
    inferred_model, _ = _inferred(without_annotations(proto, hints), follow)
    del inferred_model.functions[:]
    for graph in protobuf.graphs_in(inferred_model.graph):
        graph.ClearField("initializer")
        protobuf.remove_if(graph.node, lambda node: not any(True for _ in protobuf.graphs_of(node)))
    return inferred_model


def _inferred(plain: onnx.ModelProto, follow: bool) -> tuple[onnx.ModelProto, set[str]]:
    """A model with inferred shapes, and the names of values for which runtimes may compute others."""
    unverified = set[str]()
    while True:
        model: onnx.ModelProto = onnx.shape_inference.infer_shapes(plain, data_prop=follow)
        hidden = hide_unverified(plain, model)
        unverified |= hidden
        if not hidden:
            return model, unverified


def unverified_values(proto: onnx.ModelProto) -> set[str]:
    """The names of values of an outline for which runtimes may compute other shapes than onnx infers."""
    return {*json.loads(run_with_limits(_unverified_values, proto))}


def _unverified_values(proto: onnx.ModelProto) -> bytes:
    return json.dumps([*_inferred(without_annotations(proto), False)[1]]).encode()


def misdeclared(proto: onnx.ModelProto) -> str:
    """The first error that strict inference finds in an outline, in one line, or ""."""
    try:
        run_with_limits(_strict_inference, proto)
    except RnnLowerError as error:
        return " ".join(str(error).split())
    return ""


def _strict_inference(proto: onnx.ModelProto) -> bytes:
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    _replace_layouts(copy)
    _show_to_bodies(copy.graph, {})
    for node in (node for holder in protobuf.holders(copy) for node in holder.node):
        if node.op_type == "MeanVarianceNormalization" and node.domain in DEFAULT_DOMAINS:
            node.op_type = "Identity"  # of the same type and shape; onnx's own function of it is invalid
            del node.attribute[:]
    content = copy.SerializeToString()
    return onnx.shape_inference.infer_shapes(content, check_type=True, strict_mode=True) and b""


def malformed(proto: onnx.ModelProto) -> str:
    """The first error that onnx's checker finds in an outline, in one line, or ""; it infers no shapes."""
    try:
        if not any(map(protobuf.is_external, protobuf.tensors(proto))):
            onnx.checker.check_model(proto)
            return ""
        with tempfile.TemporaryDirectory(prefix="rnn_lower_") as folder:
            data = Path(folder, NO_FILE)
            data.parent.mkdir(parents=True)
            data.touch()  # the checker only looks whether the file exists
            path = Path(folder, "outline.onnx")
            path.write_bytes(proto.SerializeToString())
            onnx.checker.check_model(str(path))
    except onnx.checker.ValidationError as error:
        return " ".join(str(error).split())
    return ""


def sizes_of(info: onnx.ValueInfoProto) -> list[int | None] | None:
    """The sizes of a value that are numbers, None for others; None if the rank is unknown."""
    dims = protobuf.dims_of(info)
    return None if dims is None else [dim if isinstance(dim, int) else None for dim in dims]


def _outlined_initializers(graph: onnx.GraphProto, folder: Path | None) -> list[onnx.TensorProto]:
    sparse = [_outline(each.values.name, each.values.data_type, each.dims) for each in graph.sparse_initializer]
    return [*(_outlined(tensor, folder) for tensor in graph.initializer), *sparse]


def _outlined(tensor: onnx.TensorProto, folder: Path | None) -> onnx.TensorProto:
    most = _most_shown(tensor.data_type, len(tensor.dims))
    if not protobuf.is_external(tensor) and tensor.ByteSize() - len(tensor.name) - len(tensor.doc_string) <= most:
        return tensor
    if protobuf.is_external(tensor) and folder is not None and (protobuf.size_of(tensor) or 0) <= most:
        data = protobuf.read(tensor, folder)
        return onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, raw_data=data)
    return _outline(tensor.name, tensor.data_type, tensor.dims)


def _most_shown(data_type: int, rank: int) -> int:
    return SHOWN_INTEGERS if data_type == onnx.TensorProto.INT64 and rank == 1 else SHOWN


def _outline(name: str, data_type: int, dims: Sequence[int]) -> onnx.TensorProto:
    """A tensor with shape and type but without data."""
    text = onnx.TensorProto(name=name, data_type=data_type, dims=dims, data_location=protobuf.EXTERNAL)
    text.external_data.add(key="location", value=NO_FILE)
    return text


def _strip(view: onnx.GraphProto | onnx.FunctionProto, folder: Path | None) -> None:
    """Remove parts of a copy that lowering does not read; `Document.write_back` never reads them either."""
    values = [*view.value_info, *([] if isinstance(view, onnx.FunctionProto) else [*view.input, *view.output])]
    for value in values:
        if protobuf.innermost(value.type).WhichOneof("value") in ("map_type", "opaque_type", "sparse_tensor_type"):
            value.ClearField("type")
        for dim in value.type.tensor_type.shape.dim if value.type.HasField("tensor_type") else ():
            if dim.HasField("dim_value") and dim.dim_value < 0:
                dim.ClearField("dim_value")  # a negative size means an unknown size
    for node in view.node:
        node.ClearField("device_configurations")
        if protobuf.remove_if(node.attribute, _is_unseen):
            node.metadata_props.add(key=UNSEEN, value="yes")
        for attribute in node.attribute:
            if folder is not None and protobuf.is_external(
                attribute.t
            ):  # or onnx would look for it in the working folder
                attribute.t.CopyFrom(_outlined(attribute.t, folder))
        for body in protobuf.graphs_of(node):
            outlined = _outlined_initializers(body, folder)
            for field in ("initializer", "sparse_initializer", "quantization_annotation"):
                body.ClearField(field)
            body.initializer.extend(outlined)
            _strip(body, folder)


def _is_unseen(attribute: onnx.AttributeProto) -> bool:
    """Whether onnx_ir may fail to read an attribute: certain types, or invalid text."""
    try:
        for text in (attribute.s, *attribute.strings):
            text.decode()
    except UnicodeDecodeError:
        return True
    return attribute.type in _UNSEEN
