"""Steps down from one version of an operator to the one before, where onnx has no converter and none is hard."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lower.ir import protobuf
from rnn_lower.ir.schemas import schema_of, signature_of
from rnn_lower.ir.walk import known_tensor
from rnn_lower.shapes.shape_info import ShapeInfo


@dataclasses.dataclass(frozen=True)
class Restated:
    """A node as an older version of its operator has it. constants: new inputs by name."""

    proto: onnx.NodeProto
    opset: int
    constants: dict[str, np.ndarray]


Step = Callable[[ir.Node, onnx.NodeProto, "dict[str, np.ndarray]", ShapeInfo], bool]
"""Changes the message of a node, adds constants, and answers whether the older version computes the same."""


def stepped_down(node: ir.Node, proto: onnx.NodeProto, current: int, opset: int, shape_info: ShapeInfo) -> Restated:
    """The node stepped down from its opset towards another, as far as the table leads."""
    constants: dict[str, np.ndarray] = {}
    while current > opset:
        schema = schema_of(node.op_type, current)
        since = 0 if schema is None else schema.since_version
        step = STEPS.get((node.op_type, since)) or _only_types(node.op_type, since)
        changed = onnx.NodeProto()
        changed.CopyFrom(proto)
        if step is None or since <= opset or not step(node, changed, constants, shape_info):
            break
        proto, current = changed, since - 1
    return Restated(proto, current, constants)


def _only_types(op_type: str, since: int) -> Step | None:
    """Nothing to change where a version differs from the one before by the types that it supports."""
    schema, older = schema_of(op_type, since), schema_of(op_type, since - 1)
    same = since > 8 and schema is not None and older is not None and signature_of(schema) == signature_of(older)
    return _without() if same else None


def _without(**defaults: int | bytes) -> Step:
    """A step that only drops attributes, each of which must be absent or have this value."""

    def step(node: ir.Node, proto: onnx.NodeProto, constants: dict[str, np.ndarray], shape_info: ShapeInfo) -> bool:
        attributes = []
        for attribute in proto.attribute:
            if attribute.name not in defaults:
                attributes.append(attribute)
                continue
            value = onnx.helper.get_attribute_value(attribute)
            values = value if isinstance(value, list) else [value]
            if attribute.ref_attr_name or any(held != defaults[attribute.name] for held in values):
                return False
        copies = onnx.NodeProto(attribute=attributes)
        del proto.attribute[:]
        proto.attribute.extend(copies.attribute)
        return True

    return step


def _reshape(node: ir.Node, proto: onnx.NodeProto, constants: dict[str, np.ndarray], shape_info: ShapeInfo) -> bool:
    """Without allowzero a 0 copies the size of the input: no change where no size is 0, or where it is that size."""
    x, sizes = node.inputs[0], None if node.inputs[1] is None else known_tensor(node.inputs[1])
    before, after = (None if v is None else shape_info.verified_shape(v) for v in (x, node.outputs[0]))
    copied = None not in (before, after) and all(
        size not in (0, None) and (isinstance(size, int) or size == old)
        for size, old in itertools.zip_longest(after or (), (before or ())[: len(after or ())])
    )
    if copied or (sizes is not None and bool(np.all(sizes.numpy()))):
        protobuf.remove_if(proto.attribute, lambda attribute: attribute.name == "allowzero")
        return True
    return _without(allowzero=0)(node, proto, constants, shape_info)


def _shape(node: ir.Node, proto: onnx.NodeProto, constants: dict[str, np.ndarray], shape_info: ShapeInfo) -> bool:
    return "end" not in node.attributes and _without(start=0)(node, proto, constants, shape_info)


def _batch_normalization(
    node: ir.Node, proto: onnx.NodeProto, constants: dict[str, np.ndarray], shape_info: ShapeInfo
) -> bool:
    return len(node.outputs) == 1 and _without(training_mode=0)(node, proto, constants, shape_info)


def _pad(node: ir.Node, proto: onnx.NodeProto, constants: dict[str, np.ndarray], shape_info: ShapeInfo) -> bool:
    """Pads of all axes, where those of some are given."""
    if len(node.inputs) < 4 or node.inputs[3] is None:
        del proto.input[3:]
        return True
    known = [None if value is None else known_tensor(value) for value in (node.inputs[1], node.inputs[3])]
    shape = shape_info.shape(node.inputs[0]) if node.inputs[0] is not None else None
    if shape is None or known[0] is None or known[1] is None:
        return False
    pads, axes = known[0].numpy().ravel(), known[1].numpy().ravel()
    if len(pads) != 2 * len(axes):
        return False
    full = np.zeros((2, len(shape)), np.int64)
    full[:, axes] = pads.reshape(2, -1)
    name = f"{proto.output[0]}/pads"
    constants[name] = full.ravel()
    del proto.input[3:]
    proto.input[1] = name
    return True


def _reduce(node: ir.Node, proto: onnx.NodeProto, constants: dict[str, np.ndarray], shape_info: ShapeInfo) -> bool:
    """The axes as an attribute."""
    if not _without(noop_with_empty_axes=0)(node, proto, constants, shape_info):
        return False
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        known = known_tensor(node.inputs[1])
        if known is None or not known.size:
            return False
        proto.attribute.append(onnx.helper.make_attribute("axes", [int(axis) for axis in known.numpy().ravel()]))
    del proto.input[1:]
    return True


REDUCE = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")


def _split(node: ir.Node, proto: onnx.NodeProto, constants: dict[str, np.ndarray], shape_info: ShapeInfo) -> bool:
    """Without num_outputs an older Split makes equal parts."""
    if "num_outputs" not in node.attributes:
        return True
    shape = shape_info.shape(node.inputs[0]) if node.inputs[0] is not None else None
    axis_attribute = node.attributes.get("axis")
    axis = 0 if axis_attribute is None else axis_attribute.as_int()
    size = None if shape is None or not -len(shape) <= axis < len(shape) else shape[axis]
    count = node.attributes["num_outputs"].as_int()
    if not isinstance(size, int) or count != len(node.outputs) or size % count:
        return False
    return _without(num_outputs=count)(node, proto, constants, shape_info)


STEPS: dict[tuple[str, int], Step] = {
    ("Reshape", 14): _reshape,
    ("Shape", 15): _shape,
    ("Pad", 18): _pad,
    ("Split", 18): _split,
    ("BatchNormalization", 14): _batch_normalization,
    ("AveragePool", 19): _without(dilations=1),
    ("AveragePool", 10): _without(ceil_mode=0),
    ("MaxPool", 10): _without(ceil_mode=0, dilations=1),
    ("ArgMax", 12): _without(select_last_index=0),
    ("ArgMin", 12): _without(select_last_index=0),
    ("GatherND", 12): _without(batch_dims=0),
    ("ScatterElements", 16): _without(reduction=b"none"),
    ("ScatterND", 16): _without(reduction=b"none"),
    ("Cast", 24): _without(),
    ("Cast", 19): _without(saturate=1),
    **{(f"Reduce{name}", 18): _reduce for name in REDUCE},
}
