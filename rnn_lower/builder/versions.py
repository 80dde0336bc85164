"""The version of each operator in an opset, and the attributes and inputs it accepts, from the schemas of onnx.

This module defines only what no schema contains: versions that are never emitted, and rules of broadcasting and types.
"""

from __future__ import annotations

import functools
import logging

import onnx

from rnn_lower.errors import UnsupportedError
from rnn_lower.ir.schemas import newest_opset, schema_of, version_of

logger = logging.getLogger("rnn_lower")

NEWEST_REVIEWED_OPSET = 28
"""The newest reviewed opset. Newer opsets are accepted as long as no emitted operator has changed."""

FIRST_EMITTED = {"Scan": 9, "Tile": 6}
"""Scan-8 has an additional batch axis, and Tile-1 has different inputs; neither is emitted."""

BROADCASTS_BY_RULE = 7
"""From this opset on, binary operators broadcast like numpy; before, only with broadcast=1 and B's shape a suffix."""

CAST_TAKES_ENUM = 6
"""In older opsets, the target type of Cast is a string."""

CLIP_TAKES_DOUBLE = 12
"""In older opsets, onnxruntime's Clip supports float32 only."""

MAX_BROADCASTS = 8
"""In older opsets, Max and Min need operands of equal shape, and onnxruntime supports only float32."""

EMITTED = (
    "Abs", "Add", "Cast", "Clip", "Concat", "Constant", "ConstantOfShape", "Conv", "Div", "DynamicQuantizeLinear",
    "Elu", "Exp", "Expand", "Gather", "GatherElements", "Gemm", "Greater", "HardSigmoid", "Identity", "If",
    "LeakyRelu", "Less", "Log", "Loop", "MatMul", "MatMulInteger", "Max", "Min", "Mul", "Neg", "NonZero", "Range",
    "Reciprocal", "ReduceMax", "Relu", "Reshape", "Scan", "Shape", "Sigmoid", "Slice", "Softplus", "Softsign",
    "Split", "Squeeze", "Sub", "Tanh", "ThresholdedRelu", "Tile", "Transpose", "Unsqueeze", "Where",
)  # fmt: skip
"""Every operator that lowering, tuning and legalization write."""


@functools.cache
def first_opset(op_type: str) -> int:
    """Return the first opset with the operator in an emitted version."""
    schemas = onnx.defs.get_all_schemas_with_history()
    since: int = min(schema.since_version for schema in schemas if schema.name == op_type and schema.domain == "")
    return max(since, FIRST_EMITTED.get(op_type, 1))


def exists(op_type: str, opset: int) -> bool:
    """Whether the opset has the operator in an emitted version."""
    return first_opset(op_type) <= opset


@functools.cache
def takes_integers(op_type: str, opset: int) -> bool:
    """Whether the version of an operator in an opset accepts INT64 tensors."""
    schema = schema_of(op_type, opset)
    return schema is not None and any("tensor(int64)" in kind.allowed_type_strs for kind in schema.type_constraints)


def check_reviewed(opset: int) -> None:
    """Raise UnsupportedError if an emitted operator changed after the newest reviewed opset.

    Log a warning for an opset that the installed onnx does not know.
    """
    for op_type in EMITTED if opset > NEWEST_REVIEWED_OPSET else ():
        if (version := version_of(op_type, opset)) > NEWEST_REVIEWED_OPSET:
            raise UnsupportedError(
                f"{op_type} has version {version} at opset {opset}, but the newest opset that rnn_lower supports is "
                f"{NEWEST_REVIEWED_OPSET}; convert the model to opset {NEWEST_REVIEWED_OPSET}, or update rnn_lower"
            )
    if opset > (newest := newest_opset()):
        text = (
            "opset %d is newer than the newest opset of the installed onnx (%d); lowering assumes that no"
            " operator has changed since then"
        )
        logger.warning(text, opset, newest)


@functools.cache
def input_names(op_type: str, opset: int) -> tuple[str, ...]:
    """Return the names of the operator's inputs, in order."""
    schema = schema_of(op_type, opset)
    return () if schema is None else tuple(formal.name for formal in schema.inputs)


def input_index(op_type: str, opset: int, parameter: str) -> int | None:
    """Return the input index of a parameter at this opset, or None if it is an attribute.

    Raises UnsupportedError if the opset lacks the operator.
    """
    if not exists(op_type, opset):
        since = first_opset(op_type)
        raise UnsupportedError(f"{op_type} needs opset {since} or newer, but the model has opset {opset}")
    names = _parameter_names(op_type, min(opset, newest_opset()))
    return names.index(parameter) if parameter in names else None


@functools.cache
def _parameter_names(op_type: str, opset: int) -> tuple[str, ...]:
    """Return the names of the inputs, empty for those that are also an attribute."""
    schema = schema_of(op_type, opset)
    attributes = () if schema is None else schema.attributes
    return tuple("" if name in attributes else name for name in input_names(op_type, opset))


@functools.cache
def same_signature(op_type: str, one: int, other: int) -> bool:
    """Whether a node of the operator emitted at one opset is equivalent at another.

    It is not if broadcasting differs, or if an attribute became an input between them.
    """
    first, last = sorted((one, other))
    if not exists(op_type, first) or first < BROADCASTS_BY_RULE <= last:
        return False
    schema = schema_of(op_type, first)
    attributes = set() if schema is None else set(schema.attributes)
    return not attributes & set(_parameter_names(op_type, last))
