"""Inputs for a model: sampled from its declared inputs, or read from a file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from rnn_lower.errors import RnnLowerError
from rnn_lower.model.facts import Facts, plain_dim
from rnn_lower.model.scopes import recurrent_nodes

Feeds = dict[str, np.ndarray]

SIZES = (3, 1, 2, 5, 4, 7, 8, 16, 32, 64)
"""Sizes for symbolic dimensions, the likely ones first."""

ATTEMPTS = 12
INTEGER_LIMITS = (2, 1, 6, 100)


def load_inputs(source: Mapping[str, Any] | str | os.PathLike[str], model: ir.Model) -> Feeds:
    """Arrays by input name; every input without a default must be there."""
    if isinstance(source, Mapping):
        feeds = {name: np.asarray(array) for name, array in source.items()}
    else:
        try:
            with np.load(source, allow_pickle=False) as archive:
                feeds = {name: archive[name] for name in archive.files}
        except Exception as error:  # zip, pickle and numpy each raise their own
            raise RnnLowerError(f"{os.fspath(source)}: cannot be read as .npz: {error}") from None
    missing = [value.name for value in required_inputs(model) if value.name not in feeds]
    if missing:
        raise RnnLowerError(f"inputs lack {', '.join(map(str, missing))}; they hold {', '.join(feeds) or 'nothing'}")
    return feeds


def required_inputs(model: ir.Model) -> list[ir.Value]:
    return [value for value in model.graph.inputs if not value.is_initializer()]


def fixed_sizes(original: ir.Model, lowered: ir.Model) -> dict[str, int]:
    """Sizes that are symbolic in the inputs of the original and known in those of the lowered model."""
    known = {value.name: value.shape or () for value in lowered.graph.inputs}
    return {
        _symbol(value, axis): size
        for value in required_inputs(original)
        for axis, (dim, size) in enumerate(zip(value.shape or (), known.get(value.name, ()), strict=False))
        if not isinstance(dim, int) and isinstance(size, int)
    }


def _symbol(value: ir.Value, axis: int) -> str:
    """What a size that is not known goes by: its own name, or the place where it is."""
    assert value.shape is not None
    return str(plain_dim(value.shape[axis]) or f"{value.name}/{axis}")


def candidates(model: ir.Model, seed: int, index: int, fixed: Mapping[str, int] = {}) -> Iterator[Feeds]:
    """Sets of inputs for run number `index`, to be tried until the original takes one. fixed: sizes by symbol."""
    limits = _length_limits(model)
    for attempt in range(ATTEMPTS):
        rng = np.random.default_rng([seed, index, attempt])
        sizes = dict(fixed)
        # Later attempts also try equal sizes everywhere, which suits models that tie dimensions without saying so.
        common = SIZES[(index + attempt) % len(SIZES)] if attempt % 2 else None

        def size(name: str, rng: np.random.Generator = rng, sizes: dict[str, int] = sizes, common: int | None = common) -> int:  # fmt: skip  # noqa: E501
            if name not in sizes:
                sizes[name] = common or int(rng.choice(SIZES[: 6 + index]))
            return sizes[name]

        feeds: Feeds = {}
        for value in required_inputs(model):
            if value.dtype is None or not isinstance(value.type, ir.TensorType):
                raise RnnLowerError(f"input '{value.name}' is no tensor of a known type; give inputs (--inputs X.npz)")
            shape = [
                dim if isinstance(dim, int) else size(_symbol(value, axis))
                for axis, dim in enumerate(value.shape or ())
            ]
            upper = limits.get(str(value.name))
            if upper is not None:
                length = upper if isinstance(upper, int) else size(upper)
                feeds[str(value.name)] = rng.integers(0, length + 1, shape).astype(np.int32)
            else:
                feeds[str(value.name)] = _array(rng, value.dtype, shape, INTEGER_LIMITS[attempt % len(INTEGER_LIMITS)])
        yield feeds


def _length_limits(model: ir.Model) -> dict[str, int | str]:
    """Inputs that feed sequence_lens -> the sequence length, or the name of its symbol."""
    facts, limits = Facts(model), {}
    for node, _ in recurrent_nodes(model):
        lengths = node.inputs[4] if len(node.inputs) > 4 else None
        if lengths is None or not lengths.is_graph_input() or node.inputs[0] is None:
            continue
        layout = node.attributes.get("layout")
        time_axis = 0 if layout is None else layout.as_int()
        shape = facts.shape(node.inputs[0])
        length = shape[time_axis] if shape else None
        limits[str(lengths.name)] = length if length is not None else f"{node.inputs[0].name}/{time_axis}"
    return limits


def _array(rng: np.random.Generator, dtype: ir.DataType, shape: list[int], limit: int) -> np.ndarray:
    if dtype == ir.DataType.BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    if dtype == ir.DataType.STRING:
        raise RnnLowerError("the model has string inputs; give inputs (--inputs X.npz)")
    if dtype.is_integer():
        return rng.integers(0, limit, shape).astype(dtype.numpy())
    return rng.uniform(-1, 1, shape).astype(dtype.numpy())
