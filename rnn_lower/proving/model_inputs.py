"""The inputs that a caller has to provide, and their sizes that another model fixes."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lower.proving.exact.field import Array, Field
from rnn_lower.shapes.shape_info import symbol

SMALL_INTEGERS = 4
"""Exclusive upper bound of the random integers that override defaults."""


def required_inputs(model: ir.Model) -> list[ir.Value]:
    """The inputs without a default value."""
    return [value for value in model.graph.inputs if not value.is_initializer()]


def overridable_inputs(model: ir.Model) -> list[ir.Value]:
    """The inputs whose default value a caller may override; before IR 4, defaults are constants."""
    return [value for value in model.graph.inputs if value.is_initializer() and (model.ir_version or 0) >= 4]


def chosen_inputs(model: ir.Model) -> list[ir.Value]:
    """The inputs whose values a caller may choose, those without a default value first."""
    return [*required_inputs(model), *overridable_inputs(model)]


def overrides(field: Field, model: ir.Model, rng: np.random.Generator) -> dict[str, Array]:
    """Random values for inputs with defaults: floats for all, small integers for a random choice of the others."""
    feeds: dict[str, Array] = {}
    for value in overridable_inputs(model):
        default = np.asarray(value.const_value.numpy())  # type: ignore[union-attr]
        if default.dtype.kind in "fV":
            feeds[str(value.name)] = field.random(default.shape)
        elif rng.integers(2):
            drawn = rng.integers(0, 2 if default.dtype == bool else SMALL_INTEGERS, default.shape)
            feeds[str(value.name)] = drawn.astype(bool if default.dtype == bool else np.int64)
    return feeds


def fixed_sizes(original: ir.Model, lowered: onnx.ModelProto) -> dict[tuple[str, int], int]:
    """The sizes that are free in the original's inputs and fixed in the lowered model's, by input and axis."""
    known = {value.name: value.type.tensor_type.shape.dim for value in lowered.graph.input}
    pairs = ((value, known.get(value.name, ())) for value in required_inputs(original))
    return {
        (str(value.name), axis): dim.dim_value
        for value, dims in pairs for axis, dim in enumerate(dims if has_rank(value, len(dims)) else ())
        if dim.HasField("dim_value") and dim.dim_value > 0 and not isinstance(symbol(value, axis), int)
    }  # fmt: skip


def has_rank(value: ir.Value, rank: int) -> bool:
    """Whether a value may have this rank."""
    return value.shape is None or len(value.shape) == rank
