"""What a model computes from sizes alone: a proof that tries some sizes takes it for a random function of them.

Otherwise, a graph could change at a size that no trial has: Floor(size * 0.005) is 0 in all of them. Integers stay what
they are, because graphs compute shapes with them, and so do comparisons of plain sizes and positions with constants,
beyond which the proof tries sizes (`thresholds`).
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from rnn_lower.ir.traits import DATA_MOVEMENT, ELEMENTWISE, MEASURING
from rnn_lower.ir.walk import constant, known_tensor, nodes, subgraphs
from rnn_lower.modelio.document import Document
from rnn_lower.options import OP_TYPES
from rnn_lower.proving.exact.call import attributes_key
from rnn_lower.proving.whole.counting_states import least_large
from rnn_lower.proving.whole.thresholds import FEW, WIDE, Known
from rnn_lower.proving.whole.whole_evaluator import COMPARE, COMPARISONS, digest

FILLING = ("ConstantOfShape", "Expand", "Tile")
"""Operators that repeat elements of a constant as often as sizes say."""

WITH_STATES = ("AveragePool", "Conv", "CumSum", "MaxPool", "Pad")
"""Operators that a stream computes with states, which do not depend on sizes alone."""

RELATING = ("Add", "Div", "Max", "Min", "Mod", "Sub")
"""Operators whose integers may change at any size, unless their operands are plain."""

SELECTING = ("Abs", "And", "Clip", "Max", "Min", "Neg", "Not", "Or", "Where", *COMPARISONS)
"""Operators whose results are plain if their operands are, and constants have few elements."""


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The values that depend on sizes and constants alone, and the names of those that are random functions of them.

    swept: numbers of steps after which counters have passed all numbers that they are compared with, if these are
    added to others, or, in chunks of one length, more than a few.
    relating: the nodes whose integers may change at numbers that are no constants, by what they compute from sizes.
    quotients: sizes at which quotients of sizes reach constants.
    """

    values: Set[ir.Value | None]
    functions: Mapping[ir.Value, str]
    swept: Set[int] = frozenset()
    relating: Mapping[str, ir.Node] = dataclasses.field(default_factory=dict)
    quotients: Set[int] = frozenset()


NO_SIZES = Sizes(frozenset(), {})


def sizes_in(
    document: Document, known: Known, counters: Collection[str] | None = None, one_length: bool = False
) -> Sizes:  # fmt: skip
    """What depends on sizes alone. Its floats and conditions are random functions, except for plain ones.

    Operators that select or move elements of a constant are one function of the elements, as models may do it in other
    ways. Conditions are left out if only what depends on sizes alone reads them, and values if they lead to integers.
    known: what constants determine.
    counters: the inputs of a stream that count its frames; they are sizes, too. None for models that are no streams.
    one_length: whether all its chunks have one length, so that a long run shows each value of a counter.
    """
    inputs = [value for value in document.model.graph.inputs if value.name in (counters or ())]
    states = [] if counters is None else list(_integer_states(document, known))
    while True:  # until all states that count are found
        counting = [*inputs, *(state for _, state, _ in states)]
        found = _sizes_from(document, known, counting, counters is not None, inputs if one_length else ())
        kept = [each for each in states if each[2] in found.values and each[0] in (None, *found.values)]
        if kept == states:
            return found
        states = kept


def _integer_states(document: Document, known: Known) -> Iterator[tuple[ir.Value | None, ir.Value, ir.Value]]:
    """The integer states of Scans: what they begin with, None for a number, and the values before and after a step."""
    for node, _ in nodes(document.model):
        for _, body in subgraphs(node) if node.op_type == "Scan" else ():
            count = len(body.inputs) - node.attributes.get_int("num_scan_inputs", 0)
            for begin, state, result in zip(node.inputs[:count], body.inputs, body.outputs, strict=False):
                array, dtype = known.get(begin, constant(begin)), document.dtype_of(state)
                if dtype is not None and dtype.is_integer():
                    yield None if array is not None else begin, state, result


class Growth(NamedTuple):
    """How a value grows with a size or counter: how fast at least and at most, and the numbers added on the way.

    constant: the largest constant among its elements.  divisor: the product of the numbers that divided it.
    """

    least: float = 1
    most: float = 1
    added: float = 0
    constant: float = 0
    divisor: float = 1


def _sizes_from(
    document: Document, known: Known, counters: Sequence[ir.Value], streams: bool, sweeping: Sequence[ir.Value]
) -> Sizes:  # fmt: skip
    """See `sizes_in`. counters: inputs and states that count, and are sizes, too.  sweeping: inputs of `one_length`."""
    ends, counting = (WITH_STATES, ("Range",)) if streams else ((), ())
    sizes, plain, filled, swept_by = (set[ir.Value | None](each) for each in (counters, counters, (), sweeping))
    functions, swept, growths = dict[ir.Value, str](), set[int](), dict[ir.Value | None, Growth]()
    quotients, relating, keys = set[int](), dict[str, ir.Node](), {value: str(value.name) for value in counters}
    for node, _ in nodes(document.model):
        read = () if node.op_type in MEASURING else node.inputs
        computed = {v for v in read if v is not None and v not in known and known_tensor(v) is None}
        if not (computed or node.op_type in MEASURING) or not sizes >= computed or node.op_type in ends:
            continue
        if any(subgraphs(node)):  # bodies may read anything
            continue
        sizes.update(node.outputs)
        dtype = document.dtype_of(node.outputs[0])
        arrays = [None if value in computed else known.get(value, constant(value)) for value in node.inputs]
        of = [keys.get(value) for value in (node.inputs if read else ()) if value in computed]
        keys.update(dict.fromkeys(node.outputs, digest(f"{node.op_type} {attributes_key(node)} {of}", arrays)))
        read_growths = [growths.get(value, Growth()) for value in computed]
        growth = _growth(node, read_growths, arrays)
        quotients |= _quotients(node, read_growths, arrays)
        growths.update(dict.fromkeys(node.outputs, growth))
        passed = math.ceil(min(growth.added, sys.maxsize) / growth.least)
        from_plain = plain >= computed or node.op_type in counting
        if node.op_type in MEASURING:
            plain.update(node.outputs if node.inputs[0] in plain or node.inputs[0] not in sizes else ())
        elif from_plain and not _wraps(growth, dtype) and _is_plain(node, arrays, dtype, streams):
            plain.update(node.outputs)
            swept_by.update(node.outputs if swept_by >= computed else ())
            if node.op_type in COMPARISONS and growth.added > sum(map(_largest, arrays)) + FEW:
                swept.add(passed)
        elif swept_by >= computed and len(computed) == 1 and node.op_type in COMPARISONS:
            plain.update(node.outputs)
            swept.add(passed)
        elif _is_filled(node, computed, filled):
            filled.update(node.outputs)
        elif _relates(node, computed, [None if node.inputs[0] is None else document.dtype_of(node.inputs[0]), dtype]):
            relating[keys[node.outputs[0]]] = node
        elif node.op_type not in DATA_MOVEMENT:
            key = digest(f"{node.op_type} {attributes_key(node)}", arrays)
            functions.update(dict.fromkeys(node.outputs, key))
        elif arrays[0] is not None:
            functions.update(dict.fromkeys(node.outputs, digest("elements", arrays[:1])))
    of_integers = _of_integers(document, sizes)
    kept = (
        value for value in functions
        if value in of_integers or (document.dtype_of(value) == ir.DataType.BOOL and _selects_sizes(value, sizes))
    )  # fmt: skip
    for value in [*kept]:
        del functions[value]
    return Sizes(sizes, functions, swept, relating, quotients)


def _quotients(node: ir.Node, growths: Sequence[Growth], arrays: Sequence[np.ndarray | None]) -> set[int]:
    """Sizes at which quotients have passed the constants that a node divides them by or compares them with.

    growths: of the computed operands.  arrays: the constant ones.
    """
    number = max(map(_largest, arrays), default=0)
    if node.op_type not in ("Add", "Div", "Sub", *COMPARE) or not number:
        return set()
    passed = (each.divisor * (each.added + number) for each in growths if each.divisor > 1)
    return {math.ceil(min(each, sys.maxsize)) for each in passed}


def _relates(node: ir.Node, computed: Collection[ir.Value], types: Sequence[ir.DataType | None]) -> bool:
    """Whether a node computes an integer of several integers from sizes, other than their product, or a narrower one.

    types: of its first operand and of its result.
    """
    if types[1] is None or not types[1].is_integer():
        return False
    narrows = node.op_type == "Cast" and types[1] not in WIDE and types[0] not in (types[1], ir.DataType.BOOL)
    return narrows or (node.op_type in RELATING and sum(value in computed for value in node.inputs) > 1)


def _growth(node: ir.Node, growths: Sequence[Growth], arrays: Sequence[np.ndarray | None]) -> Growth:
    """How a result grows. growths: of the computed operands.  arrays: the constant ones."""
    least, most, number = 1.0, max((each.most for each in growths), default=1), sum(map(_largest, arrays))
    if len(growths) == 1:  # the difference of two values may grow as slowly as by one
        least = growths[0].least
    divisor = max((each.divisor for each in growths), default=1)
    divisor *= max(1.0, number) if node.op_type == "Div" else 1
    if node.op_type in DATA_MOVEMENT:  # of other operands than those of a Concat, only the first one is data
        numbers = [_largest(array) for array in (arrays if node.op_type == "Concat" else arrays[:1])]
        largest = max([*numbers, *(each.constant for each in growths)], default=0)
        return Growth(least, most, max((each.added for each in growths), default=0), largest, divisor)
    if node.op_type == "Mul":
        factors = [np.abs(array.astype(np.float64)) for array in arrays if array is not None and array.size]
        times = math.prod(max(1.0, float(array.max())) for array in factors)
        added = math.prod(1 + each.added + each.constant for each in growths) * times
        least = math.prod([*(each.least for each in growths), *(max(1, int(array.min())) for array in factors)])
        return Growth(least, math.prod(each.most for each in growths) * times, added, divisor=divisor)
    compares = node.op_type in COMPARISONS and any(array is not None for array in arrays)
    added = number + sum(each.added + (0 if compares else each.constant) for each in growths)
    return Growth(least, sum(each.most for each in growths) if len(growths) > 1 else most, added, divisor=divisor)


def _largest(array: np.ndarray | None) -> float:
    """The largest magnitude of the finite numbers of a constant."""
    numbers = np.abs(array.astype(np.float64)) if array is not None and array.dtype.kind in "iuf" else np.zeros(0)
    return float(numbers[np.isfinite(numbers)].max(initial=0))


def _wraps(growth: Growth, dtype: ir.DataType | None) -> bool:
    """Whether a multiple of a size may wrap around, and so be any number, at a size that no run reaches."""
    return dtype is not None and dtype.is_integer() and growth.most >= least_large(dtype.bitwidth)


def _of_integers(document: Document, sizes: Set[ir.Value | None]) -> set[ir.Value]:
    """The values that only lead to integers or bounds of a Range, as positions at opsets that lack operators."""
    found = set[ir.Value]()
    for node in reversed([node for node, _ in nodes(document.model)]):
        for value in node.outputs:
            readers = [reader for reader, _ in value.uses()]
            read = {output for reader in readers if reader.op_type != "Range" for output in reader.outputs}
            dtypes = [document.dtype_of(output) for output in read - found if output in sizes]
            whole = all(dtype is not None and dtype.is_integer() for dtype in dtypes)
            if readers and whole and sizes >= read and not value.is_graph_output():
                found.add(value)
    return found


def _selects_sizes(condition: ir.Value, sizes: Set[ir.Value | None]) -> bool:
    """Whether all that reads a condition computes with it what depends on sizes alone."""
    readers = [node for node, _ in condition.uses()]
    computing = all(node.op_type not in DATA_MOVEMENT and sizes >= set(node.outputs) for node in readers)
    return bool(readers) and computing and not condition.is_graph_output()


def _is_filled(node: ir.Node, computed: Collection[ir.Value], filled: Set[ir.Value | None]) -> bool:
    """Whether a node repeats constants, so that only the number of elements depends on sizes. filled: such values."""
    if node.op_type in ("Gemm", "MatMul") and node.inputs[1] in computed:
        return False  # the size that is summed over may be one of the model, not of a constant
    if node.op_type in (*ELEMENTWISE, *DATA_MOVEMENT, *OP_TYPES, "Gemm", "MatMul") and filled >= {*computed}:
        return True
    return node.op_type == "ConstantOfShape" or (node.op_type in FILLING and node.inputs[0] not in computed)


def _is_plain(
    node: ir.Node, arrays: Sequence[np.ndarray | None], dtype: ir.DataType | None, streams: bool
) -> bool:  # fmt: skip
    """Whether a result is a size or position, one more or less, or a comparison of them, as the computed operands are.

    arrays: the constant operands.  dtype: of the result.  streams: whether it may also be a sum or multiple of them, as
    the number of a frame is in a chunk.
    """
    numbers = [array for array in arrays if array is not None]
    alone, ones = len(numbers) == len(arrays) - 1, all(np.all(np.abs(a.astype(np.float64)) <= 1) for a in numbers)
    if node.op_type == "Cast":
        return dtype in (*WIDE, ir.DataType.BOOL)
    if node.op_type in DATA_MOVEMENT:
        return node.op_type == "Concat" or arrays[0] is None
    if node.op_type in ("Mul", "Div"):
        whole = streams and node.op_type == "Mul" and dtype is not None and dtype.is_integer()
        return alone and (whole or bool(np.all(numbers[0] == 1)))
    if node.op_type == "Range":
        return streams or (alone and ones)
    if node.op_type in ("Add", "Sub"):
        return ones and (streams or alone)
    return node.op_type in SELECTING and all(array.size <= FEW for array in numbers)
