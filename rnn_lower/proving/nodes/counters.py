"""Sizes, lengths and positions, with which a graph may behave differently at sizes that the proof does not compare.

Lowering needs few of them: it compares positions with lengths, sizes and lengths with 0, and counts positions from the
end. So each integer, or float that is cast from one, must be a sum of these that is known to be harmless.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from rnn_lower.ir.traits import MEASURING
from rnn_lower.ir.walk import known_tensor, subgraphs
from rnn_lower.proving.exact.call import OutOfScopeError
from rnn_lower.proving.exact.element_types import WIDE_INTEGERS
from rnn_lower.proving.exact.field import Array
from rnn_lower.proving.nodes.emitted_uses import POSITIONS
from rnn_lower.proving.nodes.program import Program


class Sum(NamedTuple):
    """How often a value contains the length of X, a length, a position and another size, and the number added to them.

    nan stands for several: the elements of the value differ.
    """

    sizes: float = 0
    lengths: float = 0
    positions: float = 0
    others: float = 0
    number: float = 0

    @property
    def counts(self) -> bool:
        """Whether it is more than a number."""
        return any(self[:4])

    def plus(self, other: Sum, factor: float = 1) -> Sum:
        """This sum and a multiple of another one."""
        return Sum(*(a + factor * b for a, b in zip(self, other, strict=True)))


SIZE, LENGTH, POSITION, OTHER, ZERO, ONE, PICKED = (
    Sum(sizes=1), Sum(lengths=1), Sum(positions=1), Sum(others=1), Sum(), Sum(number=1), Sum(positions=math.nan)
)  # fmt: skip


def joined(parts: Sequence[Sum]) -> Sum:
    """The sum of elements with these sums; nan where they differ, and for positions where one is no plain size."""
    merged = Sum(*(column[0] if len({*column}) == 1 else math.nan for column in zip(*parts, strict=True)))
    is_plain = all(not part.counts or not (part.number in (-1, 1) or part.lengths or part.positions) for part in parts)
    return merged if is_plain or len({*parts}) == 1 else merged._replace(positions=math.nan)


LAST = Sum(sizes=1, number=-1)
FROM_END = LAST.plus(POSITION, -1)

HARMLESS = {SIZE, LENGTH, LENGTH.plus(POSITION, -1), LENGTH.plus(FROM_END, -1)}
"""The sums that may be compared with 0: sizes, lengths, and a length minus a position, from the start or the end."""

COMPARED = HARMLESS | {OTHER} | {found.plus(ONE, -1) for found in HARMLESS if found.positions}
"""The same, and those that may be compared with 1, which for integers is the same comparison."""

SUMS = {
    *HARMLESS,
    LAST,
    FROM_END,
    SIZE.plus(POSITION, -1),
    *(ZERO.plus(x, -1) for x in (SIZE, LENGTH, POSITION, FROM_END)),
}
"""The sums that lowering computes. Others, such as the difference of two sizes, may be any number."""

SELECTED = {POSITION, FROM_END}
"""The positions that may be selected."""

MOVED = ("Cast", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze")
"""Operators whose results are elements of their first operand."""

SHAPED = ("Add", "Cast", "Concat", "Identity", "Mul", "Split", "Transpose")
"""Operators whose results may have the shape of their first operand, except for the last axis."""

FEATURES = 2
"""The axis of X that counts its features."""

LARGE = 1 << 30
"""The least number whose sum with a length may not fit 32 bits."""

LIMITS: dict[str, tuple[Sum | None, Sum | None]] = {
    "Clip": (ZERO, ONE), "Max": (ZERO, None), "Min": (None, ONE), "Relu": (ZERO, None),
}  # fmt: skip
"""Operators that make a mask of a number: the lower and the upper bound."""


class Counters:
    """The sizes, lengths and positions of a program, and the sums of them.

    x, time_axis: the value of X, and its axis of time.
    lengths: the value of sequence_lens, if it is computed.  constant_lengths: its content, if it is known.
    compares_all: whether the length of X is known, so that all lengths are compared.
    sums: by value that is computed.  copies: products of matrices that must not sum.
    largest: the largest constant length, or size of a constant from which positions are selected.
    measured: by Shape, the axis that must have the length of X.
    refusal: the first use that is out of scope, or None; comparisons come before, to find a difference instead.
    """

    def __init__(
        self, program: Program, x: ir.Value | None, time_axis: int, lengths: ir.Value | None,
        constant_lengths: Array | None, compares_all: bool,
    ) -> None:  # fmt: skip
        self._known, self._dtypes, self._x, self._time_axis = program.constants, program.dtypes, x, time_axis
        self._lengths, self._compares_all = constant_lengths, compares_all
        self.sums: dict[ir.Value | None, Sum] = {} if lengths is None else {lengths: LENGTH}
        self._elements: dict[ir.Value | None, list[Sum]] = {}
        self._steps = set[ir.Value | None]()
        self._limits: dict[ir.Value, tuple[Sum, int]] = {}
        self.measured: dict[ir.Node, int] = {}
        self.copies: set[ir.Node] = set()
        self.largest = 0
        self.refusal: OutOfScopeError | None = None
        try:
            self._follow_all(program.nodes)
        except OutOfScopeError as error:
            self.refusal = error

    def _follow_all(self, nodes: Iterable[ir.Node]) -> None:
        for node in nodes:
            try:
                self._follow(node)
            except OutOfScopeError:
                raise
            except Exception as error:  # of a node that may not run, which the comparisons show
                raise OutOfScopeError(
                    f"the sizes that {node.op_type} '{node.name}' computes are unknown: {error}"
                ) from None

    def _constant(self, value: ir.Value | None) -> np.ndarray | None:
        tensor = known_tensor(value)
        return self._known.get(value) if tensor is None else tensor.numpy()

    def _counts(self, value: ir.Value | None) -> bool:
        """Whether a value is a size, a length or a position, or a sum of them."""
        return self.sums.get(value, ZERO).counts

    def _sums_of(self, value: ir.Value | None) -> list[Sum]:
        """The possible sums of a value: a constant is a number, and may be the lengths of the node."""
        if value in self.sums:
            return [self.sums[value]]
        array = self._constant(value)
        if array is None or array.dtype.kind not in "iuf":
            return []
        if not array.size:
            return [ZERO]
        first = array.ravel()[0]
        several = math.nan if np.abs(array.astype(np.float64)).max() < LARGE else math.inf
        found = [Sum(number=float(first) if np.all(array == first) else several)]
        if self._lengths is not None and np.array_equal(array.ravel(), self._lengths.ravel()):
            found.append(LENGTH)
            self.largest = max(self.largest, int(self._lengths.max(initial=0)))
        return found

    def _set(self, values: Iterable[ir.Value], found: Sum) -> None:
        self.sums.update(dict.fromkeys(values, found))

    def _follow(self, node: ir.Node) -> None:
        """Find the sums that a node computes."""
        op = node.op_type
        if any(subgraphs(node)):
            self._follow_bodies(node)
        elif op in MEASURING:
            self._measure(node)
        elif op == "NonZero":
            if self._sums_of(node.inputs[0]) != [ONE] or node.inputs[0] not in self._steps:
                raise OutOfScopeError(f"NonZero '{node.name}' counts other elements than steps")
            self._set(node.outputs, POSITION)
        elif op == "ConstantOfShape":
            value = node.attributes.get("value")
            self._check_shape(node, node.inputs[0])
            self._set(node.outputs, Sum(number=0 if value is None else float(value.as_tensor().numpy().ravel()[0])))
            self._steps.update(node.outputs if self._sums_of(node.inputs[0]) == [SIZE] else ())
        elif op in POSITIONS and any(
            v is not None and v not in self.sums and self._constant(v) is None for v in node.inputs[1:]
        ):
            raise OutOfScopeError(f"{op} '{node.name}' selects a position that lowering never selects")
        elif not any(value in self.sums for value in node.inputs):
            return
        elif op in ("Less", "Greater"):
            self._compare(node, *node.inputs)
        elif op in ("Add", "Sub", "Neg"):
            self._add(node)
        elif op in ("Mul", "MatMul"):
            self._multiply(node)
        elif op in ("Concat", "Where"):
            self._join(node, node.inputs[op == "Where" :])
        elif op in MOVED:
            self._move(node)
        elif any(map(self._counts, node.inputs)):
            if op in LIMITS:
                self._limit(node)
            elif op == "Range" and all(
                wanted in self._sums_of(value) for value, wanted in zip(node.inputs, (ZERO, SIZE, ONE), strict=True)
            ):
                self._set(node.outputs, POSITION)
            else:
                raise OutOfScopeError(f"{op} '{node.name}' computes with a size, a length or a position")

    def _compare(self, node: ir.Node, a: ir.Value | None, b: ir.Value | None = None) -> None:
        """Raise OutOfScopeError unless comparing two values, or one with 0 and 1, is the same at all sizes."""
        self._check_compared(node, self._sums_of(a), [ZERO] if b is None else self._sums_of(b))

    def _check_compared(self, node: ir.Node, some: Sequence[Sum], others: Sequence[Sum]) -> None:
        for one, other in itertools.product(some, others):
            found = one.plus(other, -1)
            is_number = not one.counts and not other.counts
            if is_number or self._is_compared(found) or {found, ZERO.plus(found, -1)} & COMPARED:
                return
        raise OutOfScopeError(
            f"{node.op_type} '{node.name}' compares otherwise than positions with lengths, and sizes and lengths with 0"
        )

    def _is_compared(self, found: Sum) -> bool:
        """Whether the proof compares all values of a sum: of a length and a number, if the length of X is known."""
        is_length = found[:4] in ((0, 1, 0, 0), (0, -1, 0, 0))
        return self._compares_all and is_length and not abs(found.number) >= LARGE

    def _limit(self, node: ir.Node) -> None:
        """A number that is limited to 0 and 1 is compared with one of them, and becomes a mask."""
        (x, *others) = sorted(filter(None, node.inputs), key=self._counts, reverse=True)
        bounds = [self._sums_of(value)[:1] for value in others]
        bounds += [[Sum(number=a.as_float())] for name, a in node.attributes.items() if name in ("min", "max")]
        limits = LIMITS[node.op_type]
        if bounds != [[bound] for bound in limits if bound is not None and node.op_type != "Relu"]:
            raise OutOfScopeError(f"{node.op_type} '{node.name}' limits a size, a length or a position")
        found, before = self._limits.get(x, (self.sums[x], None))
        self._check_compared(node, [found], [ZERO])
        if None in limits and before in (None, limits.index(None)):  # the other limit is missing
            self._set(node.outputs, PICKED)
            self._limits.update(dict.fromkeys(node.outputs, (found, limits.index(None))))

    def _check_shape(self, node: ir.Node, value: ir.Value | None) -> None:
        """Raise OutOfScopeError if a shape may contain something else than sizes and numbers."""
        found = self.sums.get(value, ZERO)
        if found.positions or found.lengths or (found.counts and found.number > 0) or found.number < 0:
            raise OutOfScopeError(f"{node.op_type} '{node.name}' reads a shape that lowering never computes")

    def _measure(self, node: ir.Node) -> None:
        """Find the sizes that a Shape or a Size returns: those of X, also of a product of it, but for its last axis."""
        x, time_axis = node.inputs[0], self._time_axis
        while x is not None and x is not self._x and (producer := x.producer()) is not None:
            perm = list(producer.attributes.get_ints("perm", (0, 1, FEATURES)))
            axis = producer.attributes.get_int("axis", 0) if producer.op_type == "Split" else FEATURES
            constants = [self._constant(value) for value in producer.inputs[1:]]
            is_copy = producer.op_type != "Concat" or not constants
            is_copy &= all(array is not None and array.size == 1 and array.ndim <= FEATURES for array in constants)
            is_shaped = producer.op_type in ("Add", "MatMul", "Split") or (producer.op_type in SHAPED and is_copy)
            if not is_shaped or perm not in ([0, 1, FEATURES], [1, 0, FEATURES]) or axis not in (-1, FEATURES):
                break
            time_axis ^= perm[0]
            x = producer.inputs[0]
        if node.op_type == "Size" or x is not self._x:
            self._set(node.outputs, OTHER)
            return
        self.measured[node] = time_axis
        sizes = [SIZE if axis == time_axis else OTHER for axis in range(3)]
        start, end = (node.attributes.get_int(name, default) for name, default in (("start", 0), ("end", 3)))
        self._set_elements(node.outputs[0], sizes[start:end])

    def _set_elements(self, value: ir.Value, elements: Sequence[Sum]) -> None:
        self._elements[value] = [*elements]
        self.sums[value] = joined(elements)

    def _select(self, node: ir.Node, elements: Sequence[Sum]) -> None:
        """Find the sums of some elements of a shape, by position."""
        arrays = [self._constant(value) for value in node.inputs[1:]]
        if node.op_type == "Split":
            sizes = list(arrays[0]) if arrays and arrays[0] is not None else list(node.attributes.get_ints("split", ()))
            sizes = sizes or [len(elements) // len(node.outputs)] * len(node.outputs)
            for value, size, end in zip(node.outputs, sizes, itertools.accumulate(sizes), strict=True):
                self._set_elements(value, elements[end - size : end])
        elif node.op_type == "Gather":
            indices = [] if arrays[0] is None else [int(index) for index in arrays[0].ravel()]
            self._set_elements(node.outputs[0], [elements[index] for index in indices] or [PICKED])
        else:
            bounds = [node.attributes.get_ints(name, ()) for name in ("starts", "ends")]
            bounds = bounds if all(bounds) else [() if array is None else tuple(array) for array in arrays[:2]]
            is_simple = all(len(bound) == 1 for bound in bounds) and len(arrays) < 4
            self._set_elements(
                node.outputs[0], elements[int(bounds[0][0]) : int(bounds[1][0])] if is_simple else [PICKED]
            )

    def _is_integer(self, node: ir.Node) -> bool:
        return self._dtypes.get(node.outputs[0]) in WIDE_INTEGERS

    def _add(self, node: ir.Node) -> None:
        parts = [self._sums_of(value) for value in node.inputs]
        if all(parts):
            (first, *others) = (part[0] for part in parts)
            factor = 1 if node.op_type == "Add" else -1
            found = first.plus(others[0], factor) if others else ZERO.plus(first, -1)
            if any(map(self._counts, node.inputs)) and found not in SUMS and not self._is_compared(found):
                raise OutOfScopeError(f"{node.op_type} '{node.name}' computes a sum of sizes that lowering never does")
            self._set(node.outputs, found)
        elif any(map(self._counts, node.inputs)) or self._is_integer(node):
            raise OutOfScopeError(f"{node.op_type} '{node.name}' adds something else to a size, a length or a position")

    def _multiply(self, node: ir.Node) -> None:
        """A product with -1, 0 or 1; a MatMul copies numbers along an axis, or makes zeros."""
        parts = [part[0] for part in map(self._sums_of, node.inputs) if part]
        numbers = [part.number for part in parts if not part.counts]
        if len(parts) == len(numbers):
            if 0 in numbers or len(numbers) == 2:
                self.copies.update([node] if node.op_type == "MatMul" and 0 not in numbers else ())
                self._set(node.outputs, Sum(number=math.prod(numbers)))
        elif len(numbers) == 1 and abs(numbers[0]) in (0, 1):
            self.copies.update([node] if node.op_type == "MatMul" else ())
            found = ZERO.plus(next(part for part in parts if part.counts), numbers[0])
            self._set(node.outputs, found if numbers[0] else ZERO)
        else:
            raise OutOfScopeError(f"{node.op_type} '{node.name}' multiplies a size, a length or a position")

    def _join(self, node: ir.Node, values: Iterable[ir.Value | None]) -> None:
        """A Concat or a Where: the sum of all operands, if it is the same."""
        parts = [(self._sums_of(value) or [PICKED])[0] for value in values]
        if any(map(self._counts, node.inputs)):
            self._set(node.outputs, joined(parts))

    def _move(self, node: ir.Node) -> None:
        """Elements of the first operand; only some positions may be selected."""
        x, *others = node.inputs
        if node.op_type == "Cast" and self._dtypes.get(node.outputs[0]) == ir.DataType.BOOL:
            self._compare(node, x)
            return
        selects = SELECTED if node.op_type == "Gather" else ()
        if node.op_type in POSITIONS and any(self._counts(v) and self.sums[v] not in selects for v in others):
            raise OutOfScopeError(f"{node.op_type} '{node.name}' selects a position that lowering never selects")
        if node.op_type in ("Reshape", "Tile"):
            self._check_shape(node, others[0] if others else None)
        array = self._constant(x)
        if array is not None and node.op_type == "Gather":
            self.largest = max(self.largest, array.shape[node.attributes.get_int("axis", 0)])
        if x in self._elements and node.op_type in POSITIONS:
            self._select(node, self._elements[x])
        elif x in self.sums or self._is_integer(node):
            found = next(iter(self._sums_of(x)), PICKED)
            self._set(node.outputs, PICKED if found.positions and node.op_type in POSITIONS else found)
            if x in self._elements and node.op_type in ("Cast", "Identity"):
                self._elements[node.outputs[0]] = self._elements[x]
            self._steps.update(node.outputs if x in self._steps and node.op_type in ("Cast", "Identity") else ())

    def _follow_bodies(self, node: ir.Node) -> None:
        """Follow the bodies of an If, a Loop or a Scan. Raises OutOfScopeError if a state counts steps."""
        is_loop = node.op_type == "Loop"
        trips = self.sums.get(node.inputs[0], SIZE)
        if is_loop and trips not in (SIZE, OTHER):
            raise OutOfScopeError(f"Loop '{node.name}' makes another number of steps than the sequence has")
        operands, results = node.inputs[2 if is_loop else 0 :], list[list[Sum]]()
        for _, body in subgraphs(node):
            self._set(body.inputs[:1] if is_loop else (), POSITION if trips == SIZE else PICKED)
            inputs, outputs = body.inputs[2 if is_loop else 0 :], body.outputs[1 if is_loop else 0 :]
            for inner, outer in zip(inputs, operands, strict=False):
                if self._counts(outer):
                    self._set([inner], self.sums[outer])
            self._follow_all(body)
            states = len(inputs) - (node.attributes.get_int("num_scan_inputs") if node.op_type == "Scan" else 0)
            for before, after in zip(inputs[:states], outputs, strict=False):
                if self._counts(after) and self.sums[after] != self.sums.get(before):
                    raise OutOfScopeError(f"a state of {node.op_type} '{node.name}' counts")
            results.append([self.sums.get(value, ZERO) for value in outputs])
        for outer, *found in zip(node.outputs, *results, strict=False):
            if any(part.counts for part in found):
                self._set([outer], joined(found))
