"""Inputs for a model: sampled so that they reach every part of what recurrent nodes compute, or read from a file.

The first set lies in [-1, 1] and is short; later ones are longer and reach from small values to those that saturate
every gate, clip and threshold. Integers go over the range that their consumers show.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lower.emit.constants import known_tensor
from rnn_lower.errors import RnnLowerError
from rnn_lower.model.facts import Facts, plain_dim
from rnn_lower.model.scopes import nodes, recurrent_nodes, values

Feeds = dict[str, np.ndarray]

SIZES = (3, 1, 2, 5, 4, 7, 8, 16, 32, 64)
"""Sizes for symbolic dimensions, the likely ones first."""

LENGTHS = (5, 40, 19)
"""Sizes for those that are the length of a sequence, by run."""

SCALES = ((1.0,), (0.1, 1.0, 10.0), (1.0, 10.0, 100.0, 1e4))
"""What numbers in [-1, 1] are multiplied with, each step or element with one of these, by run."""

FACTORS = (1.0, 0.3, 3.0, 0.1, 1.0, 0.03, 10.0, 1.0)
"""What all are multiplied with, by set, in models so small that a run takes several sets of inputs."""

CHEAP_WEIGHTS, CHEAP_INPUTS, CHEAP_NODES = 1_000_000, 20_000, 100
"""Bytes of weights, elements of inputs, and nodes up to which a run takes next to no time beside loading the model."""

ATTEMPTS = 12
INTEGER_LIMITS = (2, 1, 6, 100)
LARGEST_FLOAT16 = 6e4


def load_inputs(source: Mapping[str, Any] | str | os.PathLike[str], model: ir.Model) -> Feeds:
    """Arrays by input name; every input without a default must be there."""
    if not isinstance(source, (Mapping, str, os.PathLike)):
        raise RnnLowerError(f"inputs must be arrays by name or the path of an .npz file, not {type(source).__name__}")
    if isinstance(source, Mapping):
        feeds = {name: np.asarray(array) for name, array in source.items()}
    else:
        try:
            with np.load(source, allow_pickle=False) as archive:
                feeds = {name: archive[name] for name in archive.files}
        except OSError as error:
            raise RnnLowerError(f"{os.fspath(source)}: cannot be read as .npz: {error.strerror or error}") from None
        except Exception:  # zip, pickle and numpy each raise their own
            told = "it is no archive of plain arrays, as np.savez writes it"
            raise RnnLowerError(f"{os.fspath(source)}: cannot be read as .npz: {told}") from None
    missing = [value.name for value in required_inputs(model) if value.name not in feeds]
    if missing:
        raise RnnLowerError(f"inputs lack {', '.join(map(str, missing))}; they hold {', '.join(feeds) or 'nothing'}")
    return feeds


def required_inputs(model: ir.Model) -> list[ir.Value]:
    return [value for value in model.graph.inputs if not value.is_initializer()]


def fixed_sizes(original: ir.Model, lowered: onnx.ModelProto) -> dict[str, int]:
    """Sizes that are symbolic in the inputs of the original and known in those of the lowered model."""
    known = {value.name: value.type.tensor_type.shape.dim for value in lowered.graph.input}
    return {
        _symbol(value, axis): size
        for value in required_inputs(original)
        for axis, (dim, given) in enumerate(zip(value.shape or (), known.get(value.name, ()), strict=False))
        if not isinstance(plain_dim(dim), int) and given.HasField("dim_value") and (size := given.dim_value) >= 0
    }


def _symbol(value: ir.Value, axis: int) -> str:
    """What a size that is not known goes by: its own name, or the place where it is."""
    assert value.shape is not None
    return str(plain_dim(value.shape[axis]) or f"{value.name}/{axis}")


class Samples:
    """Sets of inputs for a model. fixed: sizes by symbol.  outline: as in `Facts`."""

    def __init__(
        self, model: ir.Model, seed: int = 0, fixed: Mapping[str, int] = {}, outline: onnx.ModelProto | None = None
    ) -> None:
        self._seed, self._fixed, self._inputs = seed, fixed, required_inputs(model)
        facts = Facts(model, outline)
        self._limits, self._ranges = _length_limits(model, facts), _ranges(model)
        self._times = {limit for limit in self._limits.values() if isinstance(limit, str)}
        self._times |= _time_symbols(model, facts)
        weights = sum(value.const_value.nbytes for value in values(model) if value.const_value is not None)
        shapes = (map(plain_dim, value.shape or ()) for value in self._inputs)
        sizes = (math.prod(dim if isinstance(dim, int) else 64 for dim in shape) for shape in shapes)
        cheap = weights <= CHEAP_WEIGHTS and sum(sizes) <= CHEAP_INPUTS and sum(1 for _ in nodes(model)) <= CHEAP_NODES
        self.sets_in_a_run = len(FACTORS) if cheap else 1

    def candidates(self, index: int, part: int = 0) -> Iterator[Feeds]:
        """Sets of inputs to be tried until the model takes one, for run number `index`, set `part` of that run."""
        for attempt in range(ATTEMPTS):
            rng = np.random.default_rng([self._seed, index, attempt, part])
            sizes = _Sizes(rng, index, attempt, self._times, dict(self._fixed))
            # Later attempts fall back to tame values, in case it was these that the model did not take.
            scales = SCALES[index % len(SCALES)] if attempt < 4 else SCALES[0]
            scaled = [FACTORS[part] * scale for scale in scales]
            limit_of_integers = INTEGER_LIMITS[attempt % len(INTEGER_LIMITS)]
            yield {
                str(value.name): self._sample(value, rng, sizes, scaled, limit_of_integers, index + part)
                for value in self._inputs
            }

    def _sample(
        self, value: ir.Value, rng: np.random.Generator, sizes: _Sizes, scales: list[float], limit: int, turn: int
    ) -> np.ndarray:
        name = str(value.name)
        if value.dtype is None or not isinstance(value.type, ir.TensorType):
            raise RnnLowerError(f"input '{name}' is no tensor of a known type; give inputs (--inputs X.npz)")
        shape = [sizes.of(value, axis) for axis in range(len(value.shape or ()))]
        if name in self._limits:
            longest = self._limits[name]
            length = longest if isinstance(longest, int) else sizes.named(longest)
            return _lengths(rng, shape, length, turn).astype(value.dtype.numpy())
        if value.dtype.is_integer() and name in self._ranges:
            return np.asarray(rng.choice(self._ranges[name], shape).astype(value.dtype.numpy()))
        return _array(rng, value.dtype, shape, limit, scales)


class _Sizes:
    """Sizes of one set of inputs, one for each symbol."""

    def __init__(
        self, rng: np.random.Generator, index: int, attempt: int, times: set[str], known: dict[str, int]
    ) -> None:
        self._rng, self._index, self._times, self._known = rng, index, times, known
        # Later attempts also try equal sizes everywhere, which suits models that tie dimensions without saying so.
        self._common = SIZES[(index + attempt) % len(SIZES)] if attempt % 2 else None

    def of(self, value: ir.Value, axis: int) -> int:
        assert value.shape is not None
        dim = plain_dim(value.shape[axis])
        return dim if isinstance(dim, int) else self.named(_symbol(value, axis))

    def named(self, symbol: str) -> int:
        if symbol not in self._known:
            drawn = int(self._rng.choice(SIZES[: 6 + self._index]))
            length = LENGTHS[self._index % len(LENGTHS)] if symbol in self._times else drawn
            self._known[symbol] = self._common or length
        return self._known[symbol]


def _lengths(rng: np.random.Generator, shape: list[int], length: int, index: int) -> np.ndarray:
    """Lengths of sequences: some random one, the whole and none, each in some row or, with one row, in some run."""
    result = rng.integers(0, length + 1, shape).astype(np.int32)
    for place, special in enumerate((length, 0, max(0, length - 1))):
        row = (place + index) % 3 if result.size < 3 else place
        if row < result.size:
            result.flat[row] = special
    return result


def _length_limits(model: ir.Model, facts: Facts) -> dict[str, int | str]:
    """Inputs that feed sequence_lens -> the sequence length, or the name of its symbol."""
    limits: dict[str, int | str] = {}
    for node, _ in recurrent_nodes(model):
        lengths = _source(node.inputs[4]) if len(node.inputs) > 4 else None
        if lengths is None or not lengths.is_graph_input() or node.inputs[0] is None:
            continue
        time_axis = _time_axis(node)
        shape = facts.shape(node.inputs[0])
        length = shape[time_axis] if shape else None
        limits[str(lengths.name)] = length if length is not None else f"{node.inputs[0].name}/{time_axis}"
    return limits


def _source(value: ir.Value | None) -> ir.Value | None:
    """Where a value comes from through nodes that pass it on."""
    while value is not None and (node := value.producer()) is not None and node.op_type in _PASS_ON and node.inputs:
        value = node.inputs[0]
    return value


def _time_symbols(model: ir.Model, facts: Facts) -> set[str]:
    """Symbols of inputs that are the sequence length of a recurrent node."""
    found = set()
    for node, _ in recurrent_nodes(model):
        x = node.inputs[0] if node.inputs else None
        shape = None if x is None else facts.shape(x)
        if x is not None and shape and len(shape) == 3 and not isinstance(shape[_time_axis(node)], int):
            found.add(str(shape[_time_axis(node)] or f"{x.name}/{_time_axis(node)}"))
    return found


def _time_axis(node: ir.Node) -> int:
    layout = node.attributes.get("layout")
    return 0 if layout is None or layout.type != ir.AttributeType.INT else int(layout.as_int() == 1)


_PASS_ON = ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose")
_COMPARE = ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")


def _ranges(model: ir.Model) -> dict[str, np.ndarray]:
    """Integer inputs -> the values that make a difference to what takes them: rows of tables, compared constants."""
    found: dict[str, set[int]] = {}
    source = {value: str(value.name) for value in required_inputs(model)}
    for node, _ in nodes(model):
        first = node.inputs[0] if node.inputs else None
        if node.op_type in _PASS_ON and first in source:
            source[node.outputs[0]] = source[first]  # type: ignore[index]
        elif node.op_type == "Gather" and len(node.inputs) == 2 and node.inputs[1] in source and first is not None:
            axis = node.attributes.get("axis")
            shape = () if first.shape is None else tuple(map(plain_dim, first.shape))
            place = 0 if axis is None else axis.as_int()
            rows = shape[place] if -len(shape) <= place < len(shape) else None
            if isinstance(rows, int) and rows:
                found.setdefault(source[node.inputs[1]], set()).update(range(min(rows, 1 << 16)))
        elif node.op_type in _COMPARE and node.domain == "" and len(node.inputs) == 2:
            for value, other in ((first, node.inputs[1]), (node.inputs[1], first)):
                tensor = known_tensor(other)
                if value in source and tensor is not None and tensor.dtype.is_integer() and tensor.size <= 64:
                    numbers = {int(number) for number in tensor.numpy().ravel()}
                    found.setdefault(source[value], set()).update(numbers | {n + 1 for n in numbers})  # type: ignore[index]
    return {name: np.array(sorted(numbers)) for name, numbers in found.items()}


def _array(
    rng: np.random.Generator, dtype: ir.DataType, shape: list[int], limit: int, scales: list[float]
) -> np.ndarray:
    if dtype == ir.DataType.BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    if dtype == ir.DataType.STRING:
        raise RnnLowerError("the model has string inputs; give inputs (--inputs X.npz)")
    if dtype.is_integer():
        return rng.integers(0, limit, shape).astype(dtype.numpy())
    # Whole steps share a scale most of the time, so that a large element does not drown the small ones everywhere.
    together = [*shape[:-1], 1] if shape and rng.integers(4) else shape
    numbers = rng.uniform(-1, 1, shape) * rng.choice(scales, together)
    largest = LARGEST_FLOAT16 if dtype == ir.DataType.FLOAT16 else math.inf
    return np.asarray(np.clip(numbers, -largest, largest).astype(dtype.numpy()))
