"""Convert an operator to its previous version, in simple cases for which onnx has no converter."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lower.ir import protobuf
from rnn_lower.ir.schemas import literal_of, schema_of, signature_of
from rnn_lower.ir.walk import constant, get_attribute, known_tensor
from rnn_lower.shapes.shape_info import ShapeInfo


@dataclasses.dataclass(frozen=True)
class Restated:
    """A node and its protobuf for an older version of its operator. constants: new inputs by name.

    behind: nodes that compute its outputs from those of the older version.
    """

    node: ir.Node
    proto: onnx.NodeProto
    opset: int
    shape_info: ShapeInfo
    constants: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    behind: list[onnx.NodeProto] = dataclasses.field(default_factory=list)


Step = Callable[[Restated], bool]
"""Changes a NodeProto, adds constants, and returns whether the older version computes the same values."""


def stepped_down(node: ir.Node, proto: onnx.NodeProto, current: int, opset: int, shape_info: ShapeInfo) -> Restated:
    """The node stepped down from its opset towards another, as far as the table allows."""
    done = Restated(node, proto, current, shape_info)
    while done.opset > opset and (schema := schema_of(node.op_type, done.opset)) is not None:
        since = schema.since_version
        if since <= opset:  # the other opset has the same version
            return dataclasses.replace(done, opset=opset)
        step = STEPS.get((node.op_type, since)) or _only_types(node.op_type, since)
        older = dataclasses.replace(done, proto=onnx.NodeProto(), opset=since - 1)
        older.proto.CopyFrom(done.proto)
        if step is None or not step(older):
            break
        done = older
    return done


def _only_types(op_type: str, since: int) -> Step | None:
    """A step between versions that differ only in the supported types."""
    schema, older = schema_of(op_type, since), schema_of(op_type, since - 1)
    same = since > 8 and schema is not None and older is not None and signature_of(schema) == signature_of(older)
    return _without() if same else None


def _without(**defaults: int | bytes) -> Step:
    """A step that only drops attributes, each of which must be absent or have this value."""

    def step(older: Restated) -> bool:
        for attribute in older.proto.attribute:
            if attribute.name in defaults:
                value = onnx.helper.get_attribute_value(attribute)
                values = value if isinstance(value, list) else [value]
                if any(held != defaults[attribute.name] for held in values):
                    return False
        protobuf.remove_if(older.proto.attribute, lambda attribute: attribute.name in defaults)
        return True

    return step


def _reshape(older: Restated) -> bool:
    """Drop allowzero from a Reshape if no size is 0, or if each 0 equals the input's size."""
    x, sizes = older.node.inputs[0], known_tensor(older.node.inputs[1])
    before, after = (None if v is None else older.shape_info.verified_shape(v) for v in (x, older.node.outputs[0]))
    copied = None not in (before, after) and all(
        size not in (0, None) and (isinstance(size, int) or size == old)
        for size, old in itertools.zip_longest(after or (), (before or ())[: len(after or ())])
    )
    if copied or (sizes is not None and bool(np.all(sizes.numpy()))):
        protobuf.remove_if(older.proto.attribute, lambda attribute: attribute.name == "allowzero")
        return True
    return _without(allowzero=0)(older)


def _axes(older: Restated) -> bool:
    """Turn constant axes into an attribute."""
    if len(older.node.inputs) > 1 and older.node.inputs[1] is not None:
        axes = constant(older.node.inputs[1])
        if axes is None or axes.dtype.kind not in "iu" or not axes.size:
            return False
        older.proto.attribute.append(onnx.helper.make_attribute("axes", [int(axis) for axis in axes.ravel()]))
    del older.proto.input[1:]
    return True


def _shape(older: Restated) -> bool:
    """Slice the sizes of all axes."""
    if "end" not in older.node.attributes and _without(start=0)(older):
        return True
    start = get_attribute(older.node, "start", ir.AttributeType.INT, 0)
    end = get_attribute(older.node, "end", ir.AttributeType.INT, np.iinfo(np.int64).max)
    del older.proto.attribute[:]
    (result,) = older.proto.output
    sizes, *bounds = (f"{result}/{name}" for name in ("sizes", "start", "end"))
    older.constants.update(zip(bounds, (np.array([start]), np.array([end])), strict=True))
    older.proto.output[:] = [sizes]
    older.behind.append(onnx.helper.make_node("Slice", [sizes, *bounds], [result], f"{older.proto.name}/slice"))
    return True


def _batch_normalization(older: Restated) -> bool:
    return len(older.node.outputs) == 1 and _without(training_mode=0)(older)


def _pad(older: Restated) -> bool:
    """Expand the pads of some axes to all axes."""
    if len(older.node.inputs) < 4 or older.node.inputs[3] is None:
        del older.proto.input[3:]
        return True
    pads, axes = (constant(older.node.inputs[index]) for index in (1, 3))
    shape = older.shape_info.verified_shape(older.node.inputs[0]) if older.node.inputs[0] is not None else None
    if shape is None or pads is None or axes is None or pads.size != 2 * axes.size:
        return False
    full = np.zeros((2, len(shape)), np.int64)
    full[:, axes.ravel()] = pads.reshape(2, -1)
    name = f"{older.proto.output[0]}/pads"
    older.constants[name] = full.ravel()
    del older.proto.input[3:]
    older.proto.input[1] = name
    return True


def _reduce(older: Restated) -> bool:
    return _without(noop_with_empty_axes=0)(older) and _axes(older)


REDUCE = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")


def _split(older: Restated) -> bool:
    """Drop num_outputs from a Split with equal parts."""
    if "num_outputs" not in older.node.attributes:
        return True
    shape = older.shape_info.verified_shape(older.node.inputs[0]) if older.node.inputs[0] is not None else None
    axis = get_attribute(older.node, "axis", ir.AttributeType.INT, 0)
    size = None if shape is None or not -len(shape) <= axis < len(shape) else shape[axis]
    count = older.node.attributes["num_outputs"].as_int()
    if not isinstance(size, int) or count != len(older.node.outputs) or size % count:
        return False
    return _without(num_outputs=count)(older)


def _literal(older: Restated) -> bool:
    """Move the numbers of a Constant to a tensor."""
    (attribute,) = older.node.attributes.values()
    if (array := literal_of(attribute)) is not None:
        del older.proto.attribute[:]
        older.proto.attribute.append(onnx.helper.make_attribute("value", onnx.numpy_helper.from_array(array)))
    return array is not None or attribute.name in ("value", "sparse_value")


STEPS: dict[tuple[str, int], Step] = {
    ("Squeeze", 13): _axes,
    ("Unsqueeze", 13): _axes,
    ("Constant", 12): _literal,
    ("Constant", 11): lambda older: "sparse_value" not in older.node.attributes,
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
