"""Inputs for evaluating whole models: sizes, random field elements, small and large integers."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from rnn_lower.ir.schemas import LOOPS
from rnn_lower.ir.traits import MEASURING
from rnn_lower.ir.walk import Scope, constant, nodes, subgraphs
from rnn_lower.proving.call import OutOfScopeError, cast_type
from rnn_lower.proving.element_types import WIDE_INTEGERS
from rnn_lower.proving.field import Array, Field
from rnn_lower.proving.model_inputs import required_inputs
from rnn_lower.proving.whole_evaluator import COMPARE, COMPARISONS, NotRunError
from rnn_lower.shapes.expressions import evaluated, names_in
from rnn_lower.shapes.shape_info import symbol
from rnn_lower.transforms.evaluate import computed_constants

SIZES = (3, 1, 2, 4, 7, 13, 0)
"""Values for the first free size; each further size is one larger. A model need not run with all of them."""

LONG_SIZES = (64, 640)
"""Values for the last free size of each input, for models that need many frames or audio samples."""

SHAPES = ("Concat", "ConstantOfShape", "Expand", "Reshape", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze")

TABLES = ("Gather", "GatherElements", "GatherND")
"""Operators that look up rows of their first input by index."""

POSITIONS = (*TABLES, "Scatter", "ScatterElements", "ScatterND", "Slice")
"""Operators that select or replace elements at the positions that all but their first input give."""

OF_STEPS = ("Add", "Cast", "Concat", "Identity", "Neg", "Reshape", "Squeeze", "Sub", "Unsqueeze", "Where")
"""Operators that may compute with the number of a step: they add to it, or compare it with constants that are tried."""

OF_SIZES = (*OF_STEPS, *COMPARISONS, *MEASURING, "And", "Expand", "Gather", "Not", "Or", "ReduceMax", "Slice", "Split")
"""Operators that may compute what a loop adds to the number of a step, or compares it with."""

WIDE = (*WIDE_INTEGERS, ir.DataType.FLOAT, ir.DataType.DOUBLE)
"""The types that represent every number of a step; others wrap around or round."""

MOST_COUNTED = 2000
"""The largest constant beyond which sizes are tried. A graph may change its behaviour at any integer that an operator
reads, except the operators of SHAPES, and at any float that one of COMPARE reads."""

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


def compared_numbers(comparisons: Iterable[ir.Node]) -> Iterator[int]:
    """Yield the constants that comparisons read, and their neighbours."""
    for array in (constant(value) for node in comparisons for value in node.inputs):
        if array is not None and array.size <= 4:
            yield from (int(n) + more for n in array.ravel() if abs(n) < 2**31 for more in (-1, 0, 1))


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


Known = Mapping[ir.Value | None, np.ndarray]
"""The values that constants alone determine."""


def _counted(node: ir.Node, scope: Scope, known: Known) -> Iterator[int]:
    """Yield constants that a node compares with, counts with or slices at, except for columns in loop bodies."""
    arrays = [known.get(value, constant(value)) for value in node.inputs]
    if node.op_type in TABLES and scope.outer is not None and arrays and arrays[0] is not None:
        yield from arrays[0].shape  # a step may look up its position in a table of this size
    axes = arrays[3] if node.op_type == "Slice" and len(arrays) > 3 else None
    for index, array in enumerate(arrays):
        kinds = "" if node.op_type in SHAPES else "iuf" if node.op_type in COMPARE else "iu"
        if array is None or array.size > 4 or array.dtype.kind not in kinds:
            continue
        if axes is not None and scope.outer is not None and index in (1, 2):
            array = array[np.ravel(axes)[: array.size] == 0]
        yield from _numbers(array)


def _known_values(model: ir.Model) -> Known:
    return computed_constants((node, scope.opset) for node, scope in nodes(model))


def _counted_numbers(model: ir.Model, known: Known) -> Iterator[int]:
    """The constants that a node compares with or a loop counts to."""
    return (number for node, scope in nodes(model) for number in _counted(node, scope, known))


def sizes_beyond_few(models: Sequence[ir.Model], required: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Yield sizes beyond a few of the constants that a node compares with or a loop counts to."""
    numbers = sorted({number for model in models for number in _counted_numbers(model, _known_values(model))})
    few = [number for number in numbers if max(SIZES) < number <= FEW_COUNTED]
    names = _free_names(models[0], required)
    for number, name in itertools.product(few[-FEW_LIMITS:], names):
        yield {**required, **dict.fromkeys(names, 2), name: number + 1}


def sizes_beyond_all(models: Sequence[ir.Model], required: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Yield sizes beyond the constants that a node compares with or a loop counts to.

    Raises OutOfScopeError if one is too large, or if a loop may count otherwise.
    """
    counted = set[int]()
    for model in models:
        known = _known_values(model)
        counted.update(_counted_numbers(model, known), [_most_steps(model, known)])
    numbers = sorted(counted)
    large = [number for number in numbers if number > max(SIZES)]
    if large and large[-1] > MOST_COUNTED:
        raise OutOfScopeError(
            f"a node compares a size with the constant {large[-1]}; the proof supports constants up to {MOST_COUNTED}"
        )
    near = {number + more for number in numbers if 0 < number <= max(SIZES) for more in (0, 1)}
    beyond = [number + more for number in large[-MOST_LIMITS:] for more in (0, 2)]
    yield from _new_sizes(models[0], required, [*sorted(near), *beyond, ANY_COUNT])


def _most_steps(model: ir.Model, known: Known) -> int:
    """The largest step that a loop body can tell from the ones before it: the sum of what it adds or compares.

    Raises OutOfScopeError if a body computes otherwise with the integers that it receives, such as its step, or with
    sizes. The position i - 5 * (i / 100), for example, differs from i at no size that is tried.
    """
    loops = [node for node, _ in nodes(model) if node.op_type in LOOPS]
    inputs = [value for node in loops for _, body in subgraphs(node) for value in body.inputs]
    waiting = [value for value in inputs if _is_integer(value)]
    seen, read = set(waiting), list[ir.Value | None]()
    while waiting:
        for node, index in waiting.pop().uses():
            is_position = node.op_type in POSITIONS and index > 0
            if is_position or any(subgraphs(node)):
                continue
            read += node.inputs
            if node.op_type in COMPARISONS:
                continue
            to = cast_type(node.attributes["to"].value) if node.op_type == "Cast" else ir.DataType.INT64
            multiplies = node.op_type in ("Add", "Sub") and seen.issuperset(node.inputs)
            if node.op_type not in OF_STEPS or to not in WIDE or multiplies:
                raise OutOfScopeError(f"{node.op_type} '{node.name}' computes with the number of a step")
            waiting += [value for value in node.outputs if value not in seen]
            seen.update(node.outputs)
    for loop in loops:
        read += [value for value in loop.inputs if value is not None and (_is_integer(value) or value in known)]
        read += loop.inputs[:1] if loop.op_type == "Loop" else ()
    return _sum_of_numbers(read, known, seen)


def _is_integer(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.is_integer()


def _sum_of_numbers(read: list[ir.Value | None], known: Known, seen: set[ir.Value]) -> int:
    """The sum of all constants from which values are computed, other than the numbers of steps that were `seen`.

    Raises OutOfScopeError for an operator that computes otherwise with sizes than by adding, comparing and selecting.
    """
    total = 0
    while read:
        value = read.pop()
        array = None if value is None else known.get(value, constant(value))
        if array is not None:
            total += max(map(abs, _numbers(array)), default=0)
        elif value is not None and value not in seen and (node := value.producer()) is not None:
            if node.op_type not in OF_SIZES:
                raise OutOfScopeError(f"{node.op_type} '{node.name}' computes what a loop adds to the number of a step")
            seen.add(value)
            read += () if node.op_type in MEASURING else node.inputs
    return total


def _numbers(array: np.ndarray) -> list[int]:
    """The numbers of a constant, without those that stand for no limit."""
    numbers = np.ravel(array) if array.dtype.kind in "iuf" else ()
    return [int(number) for number in numbers if np.isfinite(number) and abs(number) < 2**31 - 1]


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
    """Return integers of any magnitude for a random choice of the integer inputs."""
    feeds = {}
    for value in required_inputs(model):
        if value.dtype is not None and value.dtype.is_integer() and rng.integers(2):
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
