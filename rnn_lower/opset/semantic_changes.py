"""Operators whose semantics changed without a change of signature; converters miss them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

import numpy as np
import onnx_ir as ir

from rnn_lower.ir.walk import constant, get_attribute, integers, is_read, known_tensor, subgraphs
from rnn_lower.lowering.node import Dim
from rnn_lower.shapes.shape_info import ShapeInfo

Attributes = dict[str, ir.Attr]

Rule = Callable[[ir.Node, int, ShapeInfo], "Attributes | str"]
"""(node, new opset) -> attributes that preserve the semantics of the converted node, or why none can."""


@dataclasses.dataclass(frozen=True)
class Change:
    """since: the opset that changed the semantics.  up, down: how to convert across it, None for no change."""

    op_types: tuple[str, ...]
    since: int
    up: Rule | None = None
    down: Rule | None = None


def semantic_change(node: ir.Node, current: int, opset: int, shape_info: ShapeInfo) -> Attributes | str:
    """Attributes that a converted node needs beyond the work of converters, or why it cannot be converted."""
    attributes: Attributes = {}
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        return attributes  # these cannot be converted
    for change in CHANGES:
        if node.op_type not in change.op_types or (current < change.since) == (opset < change.since):
            continue
        rule = change.up if current < opset else change.down
        changes = {} if rule is None else rule(node, opset, shape_info)
        if isinstance(changes, str):
            return changes
        attributes |= changes
    return attributes


VALUES = {
    ("Resize", "coordinate_transformation_mode", "half_pixel_symmetric"): 19,
    ("Pad", "mode", "wrap"): 19,
    ("ScatterElements", "reduction", "max"): 18, ("ScatterElements", "reduction", "min"): 18,
    ("ScatterND", "reduction", "max"): 18, ("ScatterND", "reduction", "min"): 18,
}  # fmt: skip
"""Newer values of an attribute -> the version of the operator that introduced them."""


VANISHED = {
    ("Resize", "coordinate_transformation_mode", "tf_half_pixel_for_nn"): 13,
    ("Upsample", "mode", "bilinear"): 7,
}
"""Attribute values that were removed, with the first version of the operator without them."""


def unknown_value(node: ir.Node, version: int) -> str:
    """The reason why a version of the operator does not accept an attribute value of the node, or nothing."""
    unknown = [key for key, since in VALUES.items() if version < since]
    unknown += [key for key, until in VANISHED.items() if version >= until]
    for op_type, name, value in unknown:
        changes = node.attributes.get(name) if node.op_type == op_type else None
        if changes is not None and not changes.is_ref() and changes.value == value:
            return f"its attribute '{name}' is {value}, which version {version} of the operator does not accept"
    return ""


def _last_axis(node: ir.Node, opset: int, shape_info: ShapeInfo) -> Attributes | str:
    """Convert the axis of a Softmax: version 12 merges all axes from `axis` on, version 13 uses one axis."""
    shape = shape_info.verified_shape(node.inputs[0]) if node.inputs and node.inputs[0] is not None else None
    axis_attribute = node.attributes.get("axis")
    axis = axis_attribute.as_int() if axis_attribute is not None else 1 if opset >= 13 else -1
    last = axis == -1 if shape is None else axis in (-1, len(shape) - 1)
    if not last:
        return (
            "before opset 13, it normalizes over `axis` and all later axes, so it can be converted "
            "only if `axis` is the last axis"
        )
    if shape is None and opset < 11:
        return f"opset {opset} does not allow a negative `axis`, and the rank of the node's input is unknown"
    return {"axis": ir.AttrInt64("axis", -1 if shape is None else len(shape) - 1)}


def _from_start(node: ir.Node, opset: int, shape_info: ShapeInfo) -> Attributes | str:
    """Count negative axes from the start, which onnx's converter does not."""
    name = "axis" if node.op_type == "Flatten" else "axes"
    whole = node.outputs[0] if node.op_type == "Unsqueeze" else node.inputs[0] if node.inputs else None
    shape = None if whole is None else shape_info.verified_shape(whole)
    axis = get_attribute(node, "axis", ir.AttributeType.INT, 0)
    axes = integers(node, "axes", 1, constant) if name == "axes" else [axis]
    if min(axes or (), default=0) >= 0:
        return {}
    if shape is None:
        return f"opset {opset} does not allow negative {name}, and the rank of the node's input is unknown"
    counted = [axis % len(shape) for axis in axes or ()]
    return {name: ir.AttrInt64(name, counted[0]) if name == "axis" else ir.AttrInt64s(name, counted)}


def _one_size(node: ir.Node, opset: int, shape_info: ShapeInfo) -> Attributes | str:
    shapes = {None if value is None else shape_info.verified_shape(value) for value in node.inputs}
    is_known = not any(shape is None or None in shape for shape in shapes)
    if len(set(node.inputs)) == 1 or (len(shapes) == 1 and is_known):
        return {}
    reason = "" if is_known else ", but the shapes of its inputs are not all known"
    return f"before opset 8, all its inputs must have the same shape{reason}"


def _asymmetric(node: ir.Node, opset: int, shape_info: ShapeInfo) -> Attributes | str:
    """Convert the coordinates of a Resize: asymmetric and rounded down before opset 11, half pixels since then."""
    attributes = {"coordinate_transformation_mode": ir.AttrString("coordinate_transformation_mode", "asymmetric")}
    mode = node.attributes.get("mode")
    if mode is not None and mode.as_string() != "nearest":
        return attributes
    scales = _scales(node)
    if scales is None or np.min(scales, initial=1) < 1:
        return "before opset 11, Resize does not define which of two equally near neighbors it picks when downsampling"
    return attributes | {"nearest_mode": ir.AttrString("nearest_mode", "floor")}


def _scales(node: ir.Node) -> np.ndarray | None:
    """The scales of an Upsample or Resize, if known."""
    if "scales" in node.attributes:
        return np.asarray(node.attributes["scales"].as_floats())
    tensor = known_tensor(node.inputs[1]) if len(node.inputs) > 1 else None
    return tensor.numpy() if tensor is not None and tensor.dtype.is_floating_point() else None


def _by_channel(node: ir.Node, opset: int, shape_info: ShapeInfo) -> str:
    return "opset 21 changed the scale and bias of GroupNormalization from one value per group to one value per channel"


def _whole_numbers(node: ir.Node, opset: int, shape_info: ShapeInfo) -> Attributes | str:
    fmod = node.attributes.get("fmod")
    dtype = shape_info.dtype(node.inputs[0]) if node.inputs and node.inputs[0] is not None else None
    if dtype is not None and dtype.is_floating_point() and (fmod is None or not fmod.as_int()):
        return "before opset 28, it accepts floating-point numbers only with fmod = 1"
    return {}


def _mask(node: ir.Node, opset: int, shape_info: ShapeInfo) -> Attributes | str:
    if any(map(is_read, node.outputs[1:2])):
        return (
            "before opset 12, the specification does not define the mask output of Dropout when no element is dropped"
        )
    return {}


def _type_of_mask(node: ir.Node, opset: int, shape_info: ShapeInfo) -> Attributes | str:
    return "opset 10 changed the type of its mask" if any(map(is_read, node.outputs[1:2])) else {}


def _one_shape(node: ir.Node, opset: int, shape_info: ShapeInfo) -> Attributes | str:
    branches = [branch.outputs for _, branch in subgraphs(node)]
    for pair in zip(*branches, strict=False):
        shapes = [shape for value in pair if (shape := shape_info.verified_shape(value)) is not None]
        if len({len(shape) for shape in shapes}) > 1 or any(map(_differ, zip(*shapes, strict=False))):
            return "before opset 11, both branches must return the same shape"
    return {}


def _differ(sizes: Iterable[Dim]) -> bool:
    return len({size for size in sizes if isinstance(size, int)}) > 1


def _without_scores(node: ir.Node, opset: int, shape_info: ShapeInfo) -> Attributes | str:
    """Attention returns masked scores as the lowest float below opset 25, and as -infinity from then on."""
    scores = "its masked scores, the fourth output, have another value at the new opset"
    return scores if any(map(is_read, node.outputs[3:4])) else {}


CHANGES = (
    Change(("If",), 11, down=_one_shape),
    Change(("Max", "Mean", "Min", "Sum"), 8, down=_one_size),
    Change(("Flatten", "Squeeze", "Unsqueeze"), 11, down=_from_start),
    Change(("Dropout",), 10, up=_type_of_mask, down=_type_of_mask),
    Change(("Dropout",), 12, up=_mask, down=_mask),
    Change(("Softmax", "LogSoftmax"), 13, down=_last_axis),  # onnx's converter flattens on the way up
    Change(("Hardmax",), 13, up=_last_axis),  # onnx has no converter for the way down
    Change(("Upsample", "Resize"), 11, up=_asymmetric),
    Change(("GroupNormalization",), 21, up=_by_channel, down=_by_channel),
    Change(("Attention",), 25, up=_without_scores, down=_without_scores),
    Change(("Mod",), 28, down=_whole_numbers),
)
