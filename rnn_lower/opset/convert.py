"""Convert a model to another opset.

Each node whose operator changed goes through onnx's converter in a model of its own. Nothing else changes, in any
graph, and no weights pass through the converter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir import convenience

from rnn_lower.builder.names import Names
from rnn_lower.errors import ConversionError, RnnLowerError, UnsupportedError
from rnn_lower.ir import protobuf
from rnn_lower.ir.replacing import substitute
from rnn_lower.ir.schemas import (
    DEFAULT_DOMAINS,
    FIRST_TODAY,
    LITERALS,
    newest_opset,
    of_another_type,
    schema_of,
    signature_of,
)
from rnn_lower.ir.walk import (
    Scope,
    is_read,
    known_tensor,
    nodes,
    recurrent_nodes,
    roots,
    subgraphs,
    used_names,
)
from rnn_lower.lowering.node import display_name, version_at
from rnn_lower.modelio.document import Document
from rnn_lower.opset.semantic_changes import semantic_change, unknown_value
from rnn_lower.opset.step_down import stepped_down
from rnn_lower.sandbox.resource_limits import run_with_limits
from rnn_lower.shapes.fixed_dims import FIXED
from rnn_lower.shapes.shape_info import ShapeInfo
from rnn_lower.transforms.strip_weights import SHOWN, UNSEEN


def convert_opset(model: ir.Model, opset: int, outline: onnx.ModelProto | None = None) -> None:
    """Convert a model, its bodies and functions to an opset, in place; recurrent nodes keep their version.

    They are lowered afterwards at the new opset, or restamped by `restamp_rest`. outline: as in `ShapeInfo`.
    Raises UnsupportedError that names the node if an operator cannot be converted.
    """
    newest = newest_opset()
    if not 1 <= opset <= newest:
        raise UnsupportedError(f"opset {opset} is unknown; the installed onnx supports opsets 1 to {newest}")
    if all(root.opset == opset for root in roots(model)):
        return
    raise_ir_version(model, ir_version_of(opset))
    recurrent = dict(recurrent_nodes(model))
    shape_info, names = ShapeInfo(model, outline), Names(used_names(model))
    changes = []
    for node, scope in nodes(model):
        if node in recurrent or node.op_identifier() in model.functions:
            continue
        if _without_mask(node, scope.opset, opset) or _differs(node, scope, opset, shape_info):
            changes.append((node, _converted(node, scope.opset, opset, shape_info)))
    for node, scope in recurrent.items():
        node.version = version_at(node.op_type, node.version or scope.opset)
    fixed = model.meta.get(FIXED, {})
    for node, new in changes:
        for old_value, new_value in _put_in_place(node, new, names):
            if old_value in fixed:
                fixed[new_value] = fixed.pop(old_value)
    for imports in (model.opset_imports, *(function.opset_imports for function in model.functions.values())):
        for domain in DEFAULT_DOMAINS:
            if domain in imports:
                imports[domain] = opset
    called = {node.op_identifier() for node, _ in nodes(model)}
    for node, scope in [*nodes(model)]:
        if node.op_type == "Constant" and node.domain == "" and _lacks_type(node, opset):
            if isinstance(scope.graph, ir.Function) and scope.graph.identifier() not in called:
                continue
            if not isinstance(scope.graph, ir.Graph):
                text = f"opset {opset} has no Constant of the type of '{node.outputs[0].name}' in {scope.path}"
                raise UnsupportedError(f"{text}, and functions have no initializers; convert to opset 9 or newer")
            _move_constant(node, scope.graph, names)


def converted(document: Document, opset: int) -> Document:
    """A copy at another opset, including recurrent nodes; a layout is kept even if the opset does not define it."""
    copy = document.copied()
    outline = copy.outline  # inference may find less at another opset
    convert_opset(copy.model, opset, outline)
    restamp_rest(copy.model, keep_layout=True)
    result = Document(copy.write_back(), document.folder)
    result.shape_info = ShapeInfo(result.model, outline)
    return result


def restamp_rest(model: ir.Model, keep_layout: bool = False) -> None:
    """Set the opset of recurrent nodes that were not lowered to that of the model. Raises if this is impossible.

    keep_layout: whether nodes may have a layout before opset 14, because no runtime will load them.
    """
    for node, scope in recurrent_nodes(model):
        if node.domain != "":
            continue
        if not keep_layout and version_at(node.op_type, scope.opset) < 14 and "layout" in node.attributes:
            raise UnsupportedError(
                f"{node.op_type} '{display_name(node)}' in {scope.path} has the attribute 'layout', which "
                f"opset {scope.opset} does not have; lower this node too, or convert the model to opset "
                "14 or newer"
            )
        node.version = None
        if scope.opset >= 7:
            node.attributes.pop("output_sequence", None)
        direction = node.attributes.get("direction")
        if direction is not None and direction.value == "foward":  # the spelling in the schema of GRU-1
            node.attributes["direction"] = ir.AttrString("direction", "forward")


def take_over(model: ir.Model, other: ir.Model) -> None:
    """Turn a model into its changed copy."""
    model.graph, model.ir_version = other.graph, other.ir_version
    model.metadata_props.update(other.metadata_props)
    model.functions.clear()
    model.functions.update(other.functions)


# -- one node ---------------------------------------------------------------------------------------------------------


def _without_mask(node: ir.Node, current: int, opset: int) -> bool:
    """Whether this removed the mask of a Dropout, whose type opset 10 changed, because nothing reads it."""
    if node.op_identifier() != ("", "Dropout", "") or (current < 10) == (opset < 10):
        return False
    if len(node.outputs) < 2 or is_read(node.outputs[1]) or any(a.is_ref() for a in node.attributes.values()):
        return False  # a function declares no type
    node.resize_outputs(1)
    return True


def _differs(node: ir.Node, scope: Scope, opset: int, shape_info: ShapeInfo) -> bool:
    """Whether the node must be converted for the new opset."""
    old, new = (schema_of(node.op_type, version) for version in (scope.opset, opset))
    if node.domain != "" or old is None:
        return False
    if new is None:
        raise _refusal(node, scope.opset, opset, "the operator does not exist at the new opset")
    if old.since_version == new.since_version:
        return False
    if why := _misread(node, old):
        raise _refusal(node, scope.opset, opset, why)
    if semantic_change(node, scope.opset, opset, shape_info):  # `semantic_changes` converts it, or refuses
        return True
    if node.op_type == "Constant":  # its versions accept different attributes
        held = set(node.attributes) or {"sparse_value"}
        is_known = held <= set(new.attributes)
        if not is_known and held.isdisjoint(LITERALS):
            raise _refusal(
                node, scope.opset, opset, f"it has the attribute '{min(held)}', which does not exist at the new opset"
            )
        return not is_known
    if any(subgraphs(node)):  # newer versions accept more types; bodies are converted separately
        if opset < scope.opset and (why := _wrong(node, new, shape_info.kind)):
            raise _refusal(node, scope.opset, opset, why)
        if node.op_type == "Scan" and min(old.since_version, new.since_version) < 9:
            raise _refusal(
                node, scope.opset, opset, "at opset 8, the inputs and outputs of a Scan have an additional batch axis"
            )
        if node.op_type == "Loop" and new.since_version < 11 and len(node.inputs) < 3:
            raise _refusal(node, scope.opset, opset, "before opset 11, a Loop must have at least one state")
        return False
    if signature_of(old) != signature_of(new) or scope.opset < 7 or new.deprecated:
        return True
    # Since opset 7, operators with an unchanged signature only gained broadcasting (8), negative axes (11), attribute
    # values and types, but Dropout (10), Erf (13), and ReduceLogSum and ReduceLogSumExp (28) also lost types. The
    # specifications of OneHot and ConvTranspose (11) differ in rare cases, but runtimes do not.
    if opset > scope.opset:
        return bool(_wrong(node, new, shape_info.kind))
    return opset < 8 or not _accepts(new, node, shape_info)


def _accepts(schema: onnx.defs.OpSchema, node: ir.Node, shape_info: ShapeInfo) -> bool:
    """Whether an older version of the operator accepts the node, as far as types are known."""
    if _wrong(node, schema, shape_info.kind):
        return False
    numbers = [number for a in node.attributes.values() for number in np.ravel(a.value if _is_int(a) else 0)]
    return schema.since_version >= 11 or min(numbers, default=0) >= 0


def _wrong(node: ir.Node, schema: onnx.defs.OpSchema, kind: Callable[[ir.Value], str | None]) -> str:
    """The reason why a version of its operator does not accept a node, or "". kind: as in `ShapeInfo`."""
    if why := _misread(node, schema):
        return why
    if len(node.inputs) > schema.max_input or len(node.outputs) > schema.max_output:
        return "it has more inputs or outputs than the operator allows"
    if text := unknown_value(node, schema.since_version):
        return text
    for values, formals in ((node.inputs, schema.inputs), (node.outputs, schema.outputs)):
        for index, value in enumerate(values):
            kind_of_value = None if value is None else kind(value)
            formal = formals[min(index, len(formals) - 1)]  # the last one may be variadic
            if kind_of_value is not None and kind_of_value not in formal.types:
                return (
                    f"its {formal.name} has type {kind_of_value}, which the operator does not accept at the new opset"
                )
    return ""


def _misread(node: ir.Node, schema: onnx.defs.OpSchema) -> str:
    """The first attribute with an unknown name or wrong type for a version of the operator, in words, or nothing."""
    unknown = set(node.attributes) - set(schema.attributes)
    if unknown:
        return f"version {schema.since_version} of the operator has no attribute '{min(unknown)}'"
    return of_another_type(node, schema)


def _is_int(attribute: ir.Attr) -> bool:
    return attribute.type in (ir.AttributeType.INT, ir.AttributeType.INTS) and not attribute.is_ref()


def _refusal(node: ir.Node, current: int, opset: int, why: object) -> ConversionError:
    return ConversionError(f"opset {current} -> {opset}: {node.op_type} '{display_name(node)}': {_reason(why)}")


def _reason(why: object) -> str:
    """The message of a converter, without the location in its source code."""
    text = " ".join(str(why).split())
    if "No Adapter" in text:
        return "onnx has no converter for it between these opsets"
    return re.sub(r"^.*?Assertion `.*?` failed: ", "", text)[:300]


def _converted(node: ir.Node, current: int, opset: int, shape_info: ShapeInfo) -> ir.Graph:
    """The node at the new opset: a graph with inputs, outputs and constants under the names that the node uses."""
    if UNSEEN in node.metadata_props:
        raise _refusal(node, current, opset, "it has an attribute that onnx's version converter does not support")
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        text = (
            "its attributes refer to attributes of the function; inline the function (onnx_ir.passes.common.InlinePass)"
        )
        raise _refusal(node, current, opset, text)
    changed = semantic_change(node, current, opset, shape_info)
    if isinstance(changed, str):
        raise _refusal(node, current, opset, changed)
    alone, at = _alone(node, current, opset, shape_info)
    try:
        model = ir.serde.deserialize_model(alone) if at == opset else _with_onnx(alone, opset)
    except Exception as error:  # converters may raise anything
        raise _refusal(node, current, opset, error) from None
    kinds = {value.name: shape_info.kind(value) for value in (*node.inputs, *node.outputs) if value is not None}
    for why in (_wrong_at(new, opset, kinds) for new in model.graph):
        if why:
            raise _refusal(node, current, opset, why)
    for new in model.graph:
        new.attributes.update(changed if new.op_type in (node.op_type, "Resize") else {})
    return model.graph


def _wrong_at(node: ir.Node, opset: int, kinds: Mapping[str | None, str | None]) -> str:
    schema = schema_of(node.op_type, opset)
    return (
        f"{node.op_type} does not exist at the new opset"
        if schema is None
        else _wrong(node, schema, lambda v: kinds.get(v.name))
    )


def _with_onnx(model: onnx.ModelProto, opset: int) -> ir.Model:
    try:
        # in a child, because some nodes crash the converter
        content = run_with_limits(onnx.version_converter.convert_version, model, opset)
    except RnnLowerError as error:
        raise ConversionError(str(error).removeprefix("convert_version failed: ")) from None
    return ir.serde.deserialize_model(onnx.ModelProto.FromString(content))


def _alone(node: ir.Node, current: int, opset: int, shape_info: ShapeInfo) -> tuple[onnx.ModelProto, int]:
    """A model of one node, stepped down as far as possible, with known types and shapes; and its opset."""
    inputs, initializers = {}, {}
    for value in node.inputs:
        tensor = known_tensor(value)
        if tensor is not None and value is not None and tensor.dtype != ir.DataType.STRING and tensor.nbytes <= SHOWN:
            initializers[value.name] = ir.serde.serialize_tensor(ir.Tensor(tensor.numpy(), name=value.name))
        elif value is not None:
            inputs[value.name] = _value_info(value, shape_info)
    outputs = [_value_info(value, shape_info) for value in node.outputs if value.name]
    stepped = stepped_down(node, ir.serde.serialize_node(node), current, opset, shape_info)
    shapes = [None if value is None else shape_info.verified_shape(value) for value in node.inputs]
    ranks = [None if shape is None else len(shape) for shape in shapes]
    at = _with_broadcasting(stepped.proto, stepped.opset, opset, ranks)
    proto = _without_idle(stepped.proto, at, opset)
    inputs = {name: info for name, info in inputs.items() if name in proto.input}
    initializers = {name: tensor for name, tensor in initializers.items() if name in proto.input}
    for name, content in stepped.constants.items():
        initializers[name] = onnx.numpy_helper.from_array(content, name)
    nodes = [proto, *stepped.behind]
    graph = onnx.helper.make_graph(nodes, "one", list(inputs.values()), outputs, list(initializers.values()))
    imports = [onnx.helper.make_opsetid("", at)]
    return onnx.helper.make_model(graph, opset_imports=imports, ir_version=10), at


def _with_broadcasting(proto: onnx.NodeProto, current: int, opset: int, ranks: Sequence[int | None]) -> int:
    """The opset of a node without its older broadcasting attributes, or `current` if it does not align the last axes.

    onnx's converter would need the shapes. proto: loses these attributes.  ranks: of the inputs.
    """
    schema = schema_of(proto.op_type, current)
    is_old = current < FIRST_TODAY <= opset and schema is not None and "broadcast" in schema.attributes
    axis = next((attribute.i for attribute in proto.attribute if attribute.name == "axis"), None)
    first, second = [*ranks, None, None][:2]
    is_last = axis is None or (first is not None and second is not None and axis in (first - second, -second))
    if not is_old or not is_last:
        return current
    protobuf.remove_if(proto.attribute, lambda attribute: attribute.name in ("axis", "broadcast", "consumed_inputs"))
    return FIRST_TODAY


def _without_idle(proto: onnx.NodeProto, current: int, opset: int) -> onnx.NodeProto:
    """The node without attributes that are unknown at the new opset and have the default meaning."""
    old, new = (schema_of(proto.op_type, version) for version in (current, opset))
    if old is not None and new is not None:
        content = onnx.helper.get_attribute_value
        gone = {name: a.default_value for name, a in old.attributes.items() if name not in new.attributes}
        idle = {name: content(default) for name, default in gone.items() if default.name}
        protobuf.remove_if(proto.attribute, lambda a: a.name in idle and content(a) == idle[a.name])
    return proto


def _value_info(value: ir.Value, shape_info: ShapeInfo) -> onnx.ValueInfoProto:
    dtype, shape = shape_info.dtype(value), shape_info.verified_shape(value)
    return onnx.helper.make_tensor_value_info(value.name, dtype or ir.DataType.UNDEFINED, shape)


def _put_in_place(
    node: ir.Node, converted: ir.Graph, names: Names
) -> list[tuple[ir.Value, ir.Value]]:  # fmt: skip
    """Replace a node by its converted form; returns its outputs, old and new.

    Constants that an adapter has added become Constant nodes before it.
    """
    ours = {value.name: value for value in (*node.inputs, *node.outputs) if value is not None and value.name}
    new = [*_constants(converted, ours), *converted]
    converted.outputs.clear()
    converted.remove(list(converted))
    for replacement in new:
        for index, value in enumerate(replacement.inputs):
            if value is not None and value.producer() is None:
                replacement.replace_input_with(index, ours[value.name])
        replacement.name = (
            node.name
            if replacement.op_type == node.op_type
            else names.unique(f"{display_name(node)}/{replacement.op_type}")
        )
        replacement.doc_string = replacement.doc_string or node.doc_string
        replacement.metadata_props.update(node.metadata_props)
    made_values = {value.name: value for replacement in new for value in replacement.outputs}
    for name, value in made_values.items():
        if name not in ours:
            value.name = names.unique(f"{display_name(node)}/{name}")
        value.shape = ours[name].shape if name in ours else None  # inference of one node invents names of sizes
        if value.dtype == ir.DataType.UNDEFINED:  # in a function
            value.type = None
    old_values = [value for value in node.outputs if value.name]
    new_values = [made_values[value.name] for value in old_values]
    substitute([node], new, old_values, new_values)
    return list(zip(old_values, new_values, strict=True))


def _lacks_type(node: ir.Node, opset: int) -> bool:
    """Whether an opset has no Constant of the type of this one, such as integers before 9."""
    tensor, schema = known_tensor(node.outputs[0]), schema_of("Constant", opset)
    if tensor is None or schema is None:
        return False
    return f"tensor({tensor.dtype.name.lower()})" not in schema.outputs[0].types


def _move_constant(node: ir.Node, graph: ir.Graph, names: Names) -> None:
    """Replace a Constant with an initializer."""
    old, tensor = node.outputs[0], known_tensor(node.outputs[0])
    assert tensor is not None
    named = ir.tensor(tensor.numpy(), tensor.dtype, name=old.name)
    new = ir.Value(name=old.name, type=old.type, shape=ir.Shape(tensor.shape.numpy()), const_value=named)
    if old.is_graph_output():  # which an initializer must not be
        new.name = named.name = names.unique(f"{old.name}/constant")
        copy = ir.Node("", "Identity", [new], name=node.name)
        substitute([node], [copy], [old], copy.outputs)
    else:
        old.replace_all_uses_with(new)
        graph.remove(node, safe=True)
    graph.register_initializer(new)


def _constants(converted: ir.Graph, ours: Mapping[str, ir.Value]) -> Iterator[ir.Node]:
    for name, value in list(converted.initializers.items()):
        if name not in ours and value.const_value is not None:
            node = ir.Node("", "Constant", (), (ir.AttrTensor("value", value.const_value),))
            convenience.replace_all_uses_with(value, node.outputs[0])
            node.outputs[0].name = name
            yield node


def raise_ir_version(model: ir.Model, version: int) -> None:
    """Raise the IR version of a model to at least this one.

    Before IR version 4, every initializer was also an input, yet a constant. Later, callers may override such inputs,
    so they are removed.
    """
    if (model.ir_version or 0) >= version:
        return
    if model.ir_version < 4:
        inputs = [value for value in model.graph.inputs if value.name not in model.graph.initializers]
        model.graph.inputs[:] = inputs
    model.ir_version = version


def ir_version_of(opset: int) -> int:
    """The IR version that a model is raised to at an opset, at least 4."""
    # onnx's table has no row for opsets 2 to 4, which came with IR version 3.
    return 4 if opset < 7 else max(4, onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", opset)]))
