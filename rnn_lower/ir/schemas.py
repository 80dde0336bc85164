"""The schemas of the default domain in onnx: the versions of operators and the requirements on attributes."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

DEFAULT_DOMAINS = ("", "ai.onnx")
"""Both names of the domain of ONNX's own operators."""

FIRST_TODAY = 7
"""The first opset with today's broadcasting, which onnx's evaluator supports."""

LITERALS = {
    "value_float": (ir.AttributeType.FLOAT, ir.DataType.FLOAT),
    "value_floats": (ir.AttributeType.FLOATS, ir.DataType.FLOAT),
    "value_int": (ir.AttributeType.INT, ir.DataType.INT64),
    "value_ints": (ir.AttributeType.INTS, ir.DataType.INT64),
}
"""Attributes of a Constant that contain numbers, with their type and the element type of the result."""

LOOPS = ("Loop", "Scan")
WITH_BODIES = ("If", *LOOPS)


def newest_opset() -> int:
    """The newest opset of the installed onnx."""
    return int(onnx.defs.onnx_opset_version())


def literal_of(attribute: ir.Attr) -> np.ndarray | None:
    """The numbers in an attribute of a Constant, or None."""
    kind, dtype = LITERALS.get(attribute.name, (None, None))
    if dtype is None or attribute.type != kind or attribute.is_ref():
        return None
    return np.asarray(attribute.value, dtype.numpy())


def schema_of(op_type: str, opset: int) -> onnx.defs.OpSchema | None:
    """The schema of an operator at an opset, or the newest one beyond the installed onnx; None if there is none."""
    try:
        return onnx.defs.get_schema(op_type, min(opset, newest_opset()), "")
    except onnx.defs.SchemaError:
        return None


def signature_of(schema: onnx.defs.OpSchema) -> object:
    """The attributes, inputs and outputs of a version of an operator, without its types."""
    attributes = {
        name: (a.type, a.required, a.default_value.SerializeToString()) for name, a in schema.attributes.items()
    }
    return attributes, *([(value.name, value.option) for value in side] for side in (schema.inputs, schema.outputs))


def version_of(op_type: str, opset: int) -> int:
    """The version of an operator in an opset, or 0 if there is none."""
    schema = schema_of(op_type, opset)
    return 0 if schema is None else int(schema.since_version)


def of_another_type(node: ir.Node, schema: onnx.defs.OpSchema) -> str:
    """The first attribute of a node with another type than in the schema, in words, or nothing."""
    for name, attribute in node.attributes.items():
        known = schema.attributes.get(name)
        if known is not None and attribute.type != (wanted := ir.AttributeType(known.type.value)):
            return f"its attribute '{name}' has type {attribute.type.name}; the operator accepts only {wanted.name}"
    return ""


def unfit(node: ir.Node, opset: int) -> str:
    """Why a node does not fit the schema of its operator at an opset, in words, or ""; runtimes refuse such nodes."""
    schema = schema_of(node.op_type, opset) if node.domain in DEFAULT_DOMAINS else None
    if schema is None:
        return ""
    if unknown := node.attributes.keys() - schema.attributes.keys():
        return f"opset {opset} does not allow attribute '{min(unknown)}'"
    inputs, outputs = len(node.inputs), len(node.outputs)
    if schema.min_input <= inputs <= schema.max_input and schema.min_output <= outputs <= schema.max_output:
        required = onnx.defs.OpSchema.FormalParameterOption.Single
        empty = [
            f.name for f, value in zip(schema.inputs, node.inputs, strict=False) if f.option == required and not value
        ]
        return f"its required input {empty[0]} is empty" if empty else malformed(node, opset)
    return f"opset {opset} does not allow {inputs} inputs and {outputs} output{'s' * (outputs != 1)}"


def malformed(node: ir.Node, opset: int) -> str:
    """The first attribute of a node that is missing or has a wrong type, in words, or nothing."""
    schema = schema_of(node.op_type, opset)
    if schema is None:
        return ""
    fill = node.attributes.get("value") if node.op_type == "ConstantOfShape" else None
    if fill is not None and fill.type == ir.AttributeType.TENSOR and fill.as_tensor().size != 1:
        return "its attribute 'value' must have one element"
    missing = [
        name for name, attribute in schema.attributes.items() if attribute.required and name not in node.attributes
    ]
    return f"the required attribute '{missing[0]}' of the node is missing" if missing else of_another_type(node, schema)
