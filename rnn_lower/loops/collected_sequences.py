"""Replace sequences in which a Loop collects a tensor per step, and which are stacked behind it, with scan outputs.

TorchScript exports `outputs.append(h)` in a loop and `torch.stack(outputs)` like this.
"""

from __future__ import annotations

import contextlib

import onnx
import onnx_ir as ir

from rnn_lower.builder.names import Names
from rnn_lower.builder.tensor_info import TensorInfo
from rnn_lower.ir.walk import consumed_values, get_attribute, is_read, nodes, used_names, with_bodies
from rnn_lower.shapes.shape_info import ShapeInfo
from rnn_lower.transforms.strip_weights import sizes_of


def collects(model: ir.Model) -> bool:
    """Whether a Loop may collect a sequence."""
    return any(node.op_type == "SequenceInsert" for node, _ in nodes(model))


def as_scan_outputs(model: ir.Model) -> None:
    """Replace the sequences that Loops collect from nothing, if they are only stacked."""
    shape_info, names = ShapeInfo(model).inferred_now(), Names(used_names(model))
    for node, scope in list(nodes(model)):
        if node.op_type != "Loop" or node.domain != "":
            continue
        for index in reversed(range(2, len(node.inputs))):
            element = _collected(node, index)
            kind = None if element is None else _kind(node, element, shape_info, scope.opset)
            if element is not None and kind is not None:
                node = _with_scan_output(node, index, element, kind, names)


def _kind(node: ir.Node, element: ir.Value, shape_info: ShapeInfo, opset: int) -> TensorInfo | None:
    """The element type and sizes of a value in the body of a Loop, or None if inference does not find the rank.

    This assumes that the states keep their shapes; onnx itself infers nothing from them, because these may change.
    """
    body = node.attributes["body"].as_graph()
    inside = {value for inner in with_bodies(body) for value in inner.outputs}
    captured = {value for inner in with_bodies(body) for value in consumed_values(inner)} - inside - {*body.inputs}
    shapes = {value: shape_info.shape(value) for value in captured}
    begin = {value: shape_info.shape(first) for value, first in zip(body.inputs, node.inputs, strict=False) if first}
    graph = ir.to_proto(body)
    del graph.input[:], graph.output[:]
    for value, shape in {**shapes, **begin, body.inputs[0]: ()}.items():
        dtype = shape_info.dtype(value)
        if dtype is not None and shape is not None and not value.is_initializer():
            known = [size if isinstance(size, int) else None for size in shape]
            graph.input.append(onnx.helper.make_tensor_value_info(str(value.name), dtype.value, known))
    graph.initializer.extend(ir.to_proto(tensor) for value in captured if (tensor := value.const_value) is not None)
    graph.node.append(onnx.helper.make_node("Identity", [str(element.name)], [f"{element.name}/copy"]))
    graph.output.append(onnx.ValueInfoProto(name=f"{element.name}/copy"))
    opsets = [onnx.helper.make_opsetid("", opset)]
    with contextlib.suppress(Exception):  # inference raises exceptions of any type
        (found,) = onnx.shape_inference.infer_shapes(onnx.helper.make_model(graph, opset_imports=opsets)).graph.output
        sizes, dtype = sizes_of(found), ir.DataType(found.type.tensor_type.elem_type)
        return None if sizes is None else TensorInfo(tuple(sizes), dtype)
    return None


def _collected(node: ir.Node, index: int) -> ir.Value | None:
    """The tensor that each step of a Loop appends to this state, or None if the state is anything else."""
    body, first = node.attributes["body"].as_graph(), node.inputs[index]
    if len(node.outputs) < index - 1 or len(body.outputs) < index or len(body.inputs) <= index:
        return None  # an invalid Loop
    state, result, last = body.inputs[index], body.outputs[index - 1], node.outputs[index - 2]
    insert = result.producer()
    empty = None if first is None else first.producer()
    if empty is None or empty.op_type != "SequenceEmpty":
        return None
    if insert is None or insert.op_type != "SequenceInsert" or len(insert.inputs) != 2:
        return None
    grows = insert.inputs[0] is state and len(state.uses()) == 1 and not state.is_graph_output()
    grows &= not result.uses() and sum(value is result for value in body.outputs) == 1
    readers = [user for user, _ in last.uses()]
    stacks = bool(readers) and all(
        user.op_type == "ConcatFromSequence" and get_attribute(user, "new_axis", ir.AttributeType.INT, 0)
        for user in readers
    )
    return insert.inputs[1] if grows and stacks and not last.is_graph_output() else None


def _with_scan_output(node: ir.Node, index: int, element: ir.Value, kind: TensorInfo, names: Names) -> ir.Node:
    """The Loop with the appended tensors as its last output, which is moved to the axis of each stack. kind: of one."""
    sizes = kind.shape or ()
    body, graph, last = node.attributes["body"].as_graph(), node.graph, node.outputs[index - 2]
    assert graph is not None
    insert = body.outputs[index - 1].producer()
    assert insert is not None
    copy = ir.node("Identity", [element], name=insert.name)
    copy.outputs[0].name, copy.outputs[0].shape = names.unique(f"{last.name}/step"), ir.Shape(sizes)
    copy.outputs[0].type = None if kind.dtype is None else ir.TensorType(kind.dtype)
    body.insert_before(insert, copy)
    del body.inputs[index], body.outputs[index - 1]
    body.outputs.append(copy.outputs[0])
    body.remove(insert, safe=True)
    stacked = ir.Value(name=names.unique(f"{last.name}/stacked"))
    kept = [value for value in node.outputs if value is not last]
    values = [ir.Value(name=value.name, type=value.type, shape=value.shape) for value in kept]
    inputs = [value for position, value in enumerate(node.inputs) if position != index]
    new = ir.Node("", "Loop", inputs, node.attributes.values(), outputs=[*values, stacked], name=node.name)
    graph.insert_before(node, new)
    for old, value in zip(kept, values, strict=True):
        old.replace_all_uses_with(value, replace_graph_outputs=True)
    for user, _ in list(last.uses()):
        axis = (get_attribute(user, "axis", ir.AttributeType.INT, 0) or 0) % (len(sizes) + 1)
        perm = [*range(1, axis + 1), 0, *range(axis + 1, len(sizes) + 1)]
        moved, output = ir.node("Transpose", [stacked], {"perm": perm}, name=user.name), user.outputs[0]
        moved.outputs[0].name, moved.outputs[0].type, moved.outputs[0].shape = output.name, output.type, output.shape
        output.replace_all_uses_with(moved.outputs[0], replace_graph_outputs=True)
        assert user.graph is not None
        user.graph.insert_before(user, moved)
        user.graph.remove(user, safe=True)
    begin = node.inputs[index]
    empty = None if begin is None else begin.producer()
    graph.remove(node, safe=True)
    if empty is not None and empty.graph is not None and not is_read(empty.outputs[0]):
        empty.graph.remove(empty, safe=True)
    return new
