"""Inputs for evaluating whole models: sizes, random field elements, small and large integers."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from rnn_lower.proving.exact.call import OutOfScopeError
from rnn_lower.proving.exact.field import Array, Field
from rnn_lower.proving.model_inputs import chosen_inputs, required_inputs
from rnn_lower.proving.whole.thresholds import all_thresholds, check_counted, counted_numbers
from rnn_lower.proving.whole.whole_evaluator import NotRunError
from rnn_lower.shapes.expressions import evaluated, names_in
from rnn_lower.shapes.shape_info import symbol

SIZES = (3, 1, 2, 4, 7, 13, 0)
"""Values for the first free size; each further size is one larger. A model need not run with all of them."""

LONG_SIZES = (64, 640)
"""Values for the last free size of each input, for models that need many frames or audio samples."""

FEW_COUNTED, FEW_LIMITS = 256, 4
"""Likewise if only a few are tried: the largest constant, and the number of constants."""

ANY_COUNT, MOST_LIMITS = 67, 12
"""A size to try because a float may count, too, and the number of large constants beyond which sizes are tried."""

MOST_ELEMENTS = 1 << 28
"""The most elements of an input."""

INTEGERS = 4
"""The exclusive upper bound of small integers, which is below the sizes of most models."""

LARGE = 31
"""Bits of large integers. Models rarely run with such an integer as a size or an index."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """One set of inputs.

    index, draw: seeds.  sizes: by name of the free size.  numbers: fixed values by input.  large: draw large integers.
    """

    index: int
    sizes: Mapping[str, int]
    draw: int
    numbers: Mapping[str, int] = dataclasses.field(default_factory=dict)
    large: bool = False


def _free(model: ir.Model, required: Mapping[str, int]) -> list[list[str]]:
    """The names of the sizes to choose of each input: neither required nor expressions of others."""
    columns = [[symbol(value, axis) for axis in range(len(value.shape or ()))] for value in model.graph.inputs]
    names = {name for column in columns for name in column if isinstance(name, str)}
    chosen = {name for name in names - required.keys() if not names_in(name) or not names_in(name) <= names}
    return [[name for name in column if isinstance(name, str) and name in chosen] for column in columns]


def _free_names(model: ir.Model, required: Mapping[str, int]) -> list[str]:
    """The names of the sizes to choose, each once."""
    return list(dict.fromkeys(itertools.chain(*_free(model, required))))


def small_sizes(model: ir.Model, required: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Yield small values for the free sizes of the inputs, by name: growing, equal, falling, and with another one.

    required: sizes that the model seems to require, with which the first ones come.
    """
    for held in (required, {}) if required else ({},):
        free = _free_names(model, held)
        for size in SIZES if free else SIZES[:1]:
            yield {**held, **{name: size + index if size else 0 for index, name in enumerate(free)}}
        for size in SIZES[:1] if len(free) > 1 else ():
            yield {**held, **dict.fromkeys(free, size)}
            yield {**held, **{name: size + index for index, name in enumerate(reversed(free))}}
            yield from ({**held, **dict.fromkeys(free, 2), name: other} for name in free for other in (4, 1))


def long_sizes(model: ir.Model, required: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Yield large values for the last free size of each input, by name; an input of one free size may have a batch."""
    free = [names for names in _free(model, required) if names]
    long = {names[-1] for names in free if len(names) > 1} or {names[-1] for names in free}
    for size, other in itertools.product(LONG_SIZES if free else (), (2, 1)):
        yield {**required, **{name: size if name in long else other for names in free for name in names}}


def sizes_beyond_few(models: Sequence[ir.Model], required: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Yield sizes beyond a few of the constants that a node compares with or a loop counts to."""
    numbers = sorted(set().union(*map(counted_numbers, models)))
    few = [number for number in numbers if max(SIZES) < number <= FEW_COUNTED]
    names = _free_names(models[0], required)
    for number, name in itertools.product(few[-FEW_LIMITS:], names):
        yield {**required, **dict.fromkeys(names, 2), name: number + 1}


TOGETHER = 1 << 16
"""The largest product of sizes that are beyond a threshold together."""


def sizes_beyond_all(models: Sequence[ir.Model], required: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Yield sizes beyond all thresholds.

    Raises OutOfScopeError if one is too large, or if a loop may count otherwise.
    """
    numbers = sorted(set().union(*map(all_thresholds, models)))
    large = [number for number in numbers if number > max(SIZES)]
    check_counted(large)
    near = {number + more for number in numbers if 0 < number <= max(SIZES) for more in (0, 1)}
    beyond = [number + more for number in large[-MOST_LIMITS:] for more in (0, 2)]
    yield from _new_sizes(models[0], required, [*sorted(near), *beyond, ANY_COUNT])
    names = _free_names(models[0], required)
    together = [number + 1 for number in numbers if 0 < number < TOGETHER ** (1 / max(1, len(names)))]
    if together and len(names) > 1:
        yield {**required, **dict.fromkeys(names, together[-1])}


def _new_sizes(model: ir.Model, required: Mapping[str, int], numbers: Iterable[int]) -> Iterator[dict[str, int]]:
    """Yield sizes in which one name has a number that the small sizes lack for it, and all others are 2."""
    tried, names = list(small_sizes(model, required)), _free_names(model, required)
    for number, name in itertools.product(numbers, names):
        if number not in {sizes[name] for sizes in tried}:
            yield {**required, **dict.fromkeys(names, 2), name: number}


def _sized(value: ir.Value, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape of an input, with its free sizes filled in."""
    symbols = [symbol(value, axis) for axis in range(len(value.shape or ()))]
    numbers = [
        name if isinstance(name, int) else sizes[name] if name in sizes else evaluated(name, sizes) for name in symbols
    ]
    if None in numbers:
        raise NotRunError(f"input '{value.name}' has no shape for these sizes")
    return tuple(number for number in numbers if number is not None)


def large_integers(model: ir.Model, inputs: Mapping[str, Array], rng: np.random.Generator) -> dict[str, Array]:
    """Return integers of any magnitude for a random choice of the integers among the inputs."""
    feeds = {}
    for value in chosen_inputs(model):
        if str(value.name) in inputs and value.dtype is not None and value.dtype.is_integer() and rng.integers(2):
            bits, size = value.dtype.itemsize * 8, 1 << min(LARGE, int(rng.integers(2 * LARGE)))
            most = 1 << int(bits - value.dtype.is_signed())
            low, high = max(-most if value.dtype.is_signed() else 0, -size), min(most, size) - 1
            feeds[str(value.name)] = rng.integers(low, high, inputs[str(value.name)].shape, endpoint=True)
    return feeds


def draw_inputs(
    field: Field, model: ir.Model, sizes: Mapping[str, int], rng: np.random.Generator, lengths: bool
) -> dict[str, Array]:
    """Return random inputs. lengths: draw integers from -1 to the largest size plus 1, as sequence lengths."""
    feeds: dict[str, Array] = {}
    steps = [size for value in model.graph.inputs for size in _sized(value, sizes)]
    most = max(steps, default=0) + 2 if all(steps) else 1  # an empty sequence has no valid index
    low, high = (-1, most) if lengths else (0, 1 if most == 1 else rng.choice((2, INTEGERS)))  # 2: masks
    for value in required_inputs(model):
        if value.shape is None or value.dtype is None:
            raise OutOfScopeError(
                f"input '{value.name}' declares no {'shape' if value.shape is None else 'element type'}"
            )
        shape = _sized(value, sizes)
        if math.prod(shape) > MOST_ELEMENTS:
            raise OutOfScopeError(
                f"input '{value.name}' has {math.prod(shape)} elements, the proof at most {MOST_ELEMENTS}"
            )
        if value.dtype.is_floating_point():
            feeds[str(value.name)] = field.random(shape)
        elif value.dtype == ir.DataType.BOOL:
            feeds[str(value.name)] = rng.integers(0, 2, shape).astype(bool)
        elif value.dtype.is_integer():
            feeds[str(value.name)] = rng.integers(low, high, shape).astype(np.int64)
        else:
            raise OutOfScopeError(f"input '{value.name}' has the unsupported element type {value.dtype.name}")
    return feeds
