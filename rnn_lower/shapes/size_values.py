"""Arithmetic with sizes: the nodes that compute shapes. Lowering and streaming share this table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import onnx_ir as ir

from rnn_lower.ir.walk import get_attribute
from rnn_lower.shapes.sizes import ONE, UNKNOWN, Size, computed, linear, size

LONGEST = 64
"""The maximum number of elements of an integer tensor that may contain sizes."""

_INT, _INTS = ir.AttributeType.INT, ir.AttributeType.INTS


@dataclasses.dataclass(frozen=True)
class SizeValue:
    """An integer tensor of rank 0 or 1 that contains sizes."""

    rank: int
    elements: tuple[Size, ...]

    @property
    def numbers(self) -> list[int] | None:
        """The elements, if all are known."""
        numbers = [element.number for element in self.elements if element.number is not None]
        return numbers if len(numbers) == len(self.elements) else None


Operands = Sequence[SizeValue | None]
Rule = Callable[[ir.Node, Sequence[SizeValue]], SizeValue | None]


def constant_sizes(array: np.ndarray) -> SizeValue | None:
    """The sizes in a constant, or None; 8-bit integers, which wrap around at 128, are no sizes."""
    if array.dtype not in (np.int32, np.int64, np.bool_) or array.ndim > 1 or array.size > LONGEST:
        return None
    return SizeValue(array.ndim, tuple(size(int(number)) for number in array.ravel()))


def computed_sizes(node: ir.Node, operands: Operands, unknown: Callable[[int], Size] | None = None) -> SizeValue | None:
    """The sizes that a node computes from sizes, or None.

    unknown: a symbol of its own for what arithmetic cannot tell, without which the whole is not known then.
    """
    absent = SizeValue(1, ())
    pairs = zip(node.inputs, operands, strict=True)
    known = [operand or absent for value, operand in pairs if value is None or operand is not None]
    rule = RULES.get(node.op_type)
    if rule is None or len(known) < len(operands) or not known:
        return None
    try:
        result = rule(node, known)
    except (IndexError, ValueError, ZeroDivisionError):  # what is not there, or has other sizes
        return None
    if result is None and unknown is not None and node.op_type in ARITHMETIC:
        count = max(len(operand.elements) for operand in known)
        result = SizeValue(max(operand.rank for operand in known), tuple(map(unknown, range(count))))
    return result if result is not None and len(result.elements) <= LONGEST else None


def shape_sizes(node: ir.Node, shape: Sequence[Size]) -> SizeValue:
    """The result of a Shape node."""
    start, end = (get_attribute(node, name, _INT, default) for name, default in (("start", 0), ("end", None)))
    return SizeValue(1, tuple(shape[slice(start, end)]))


def _cast(node: ir.Node, operands: Sequence[SizeValue]) -> SizeValue | None:
    to = get_attribute(node, "to", _INT, None)
    fits = all(element.number is None or abs(element.number) < 2**31 for element in operands[0].elements)
    return operands[0] if to == ir.DataType.INT64 or (to == ir.DataType.INT32 and fits) else None


def _unsqueezed(_: ir.Node, operands: Sequence[SizeValue]) -> SizeValue | None:
    """A scalar as a list; None for a list."""
    return None if operands[0].rank else SizeValue(1, operands[0].elements)


def _squeezed(_: ir.Node, operands: Sequence[SizeValue]) -> SizeValue | None:
    return SizeValue(0, operands[0].elements) if len(operands[0].elements) == 1 else None


def _reshaped(node: ir.Node, operands: Sequence[SizeValue]) -> SizeValue | None:
    """A Reshape of a scalar or list of sizes."""
    data = operands[0].elements
    target = operands[1].numbers if len(operands) > 1 else get_attribute(node, "shape", _INTS, None)
    if operands[0].rank and target in ([-1], [len(data)]):
        return operands[0]
    if target is None or len(data) != 1 or len(target) > 1 or any(number not in (1, -1) for number in target):
        return None
    return SizeValue(len(target), data)


def _gathered(_: ir.Node, operands: Sequence[SizeValue]) -> SizeValue | None:
    (data, chosen), indices = operands, operands[1].numbers
    if indices is None or not data.rank:
        return None
    return SizeValue(chosen.rank, tuple(data.elements[index] for index in indices))


def _joined(_: ir.Node, operands: Sequence[SizeValue]) -> SizeValue:
    return SizeValue(1, tuple(element for operand in operands for element in operand.elements))


def _sliced(node: ir.Node, operands: Sequence[SizeValue]) -> SizeValue | None:
    if len(operands) > 1:
        bounds = [operand.numbers for operand in operands[1:]]
    else:
        bounds = [get_attribute(node, name, _INTS, None) for name in ("starts", "ends")]
    step = bounds[3] if len(bounds) > 3 else [1]
    if len(bounds) < 2 or not bounds[0] or not bounds[1] or not step or step[0] < 1:
        return None
    return SizeValue(1, operands[0].elements[bounds[0][0] : bounds[1][0] : step[0]])


def _broadcast(operands: Sequence[SizeValue]) -> tuple[int, Iterable[tuple[Size, ...]]]:
    """The rank, and tuples of elements. Raises ValueError if the lengths do not match."""
    counts = {len(operand.elements) for operand in operands}
    count = next(iter(counts - {1}), 1)
    columns = (operand.elements * (count if len(operand.elements) == 1 else 1) for operand in operands)
    return max(operand.rank for operand in operands), zip(*columns, strict=True)


def _elementwise(function: Callable[..., Size | None], inputs: int = 2) -> Rule:
    """An elementwise function of broadcast operands; None if unknown for one element."""

    def computed(_: ir.Node, operands: Sequence[SizeValue]) -> SizeValue | None:
        rank, columns = _broadcast(operands)
        elements = [function(*column) for column in columns] if len(operands) == inputs else [None]
        known = tuple(element for element in elements if element is not None)
        return SizeValue(rank, known) if len(known) == len(elements) else None

    return computed


def _add(a: Size, b: Size) -> Size | None:
    if 0 in (a.number, b.number):
        return b if a.number == 0 else a
    x, y = linear(a), linear(b)
    return None if x is None or y is None else computed(x[0] + y[0], x[1] + y[1])


def _subtract(a: Size, b: Size) -> Size | None:
    if a == b and not a.is_cut:
        return size(0)
    return a if b.number == 0 else _add(a, _negated(b))


def _negated(a: Size) -> Size:
    return size(-1) * a


def _extreme(smallest: bool) -> Callable[[Size, Size], Size | None]:
    """The minimum or maximum of two sizes with the same growth."""

    def choose(a: Size, b: Size) -> Size | None:
        cut = a.is_cut or b.is_cut
        x, y = linear(a, cut), linear(b, cut)
        if x is None or y is None or x[0] != y[0] or (cut and not smallest):
            return None
        if cut:
            return computed(x[0], min(x[1], y[1]), cut)
        return a if (x[1] <= y[1]) == smallest else b

    return choose


def _divide(a: Size, b: Size) -> Size | None:
    if a.number is not None and b.number:
        quotient = abs(a.number) // abs(b.number)  # the operator truncates
        return size(quotient if (a.number < 0) == (b.number < 0) else -quotient)
    ratio = a.over(b)
    if ratio is None or ratio.times < 0 or ratio.times.denominator > a.times.denominator:
        return None  # the operator rounds
    return ratio


def _modulo(node: ir.Node, operands: Sequence[SizeValue]) -> SizeValue | None:
    whole = get_attribute(node, "fmod", _INT, 0) == 0
    return _elementwise(_remainder)(node, operands) if whole else None


def _remainder(a: Size, b: Size) -> Size | None:
    return None if a.number is None or b.number is None else size(a.number % b.number)


def _equal(a: Size, b: Size) -> Size | None:
    """Equality of sizes; an unknown size is at least 0."""
    if a == b and not a.is_cut:
        return ONE
    if a.is_cut or b.is_cut or any(symbol.startswith(UNKNOWN) for operand in (a, b) for symbol in operand.of):
        return None
    if a.number is not None and b.number is not None:
        return size(0)
    return size(0) if min(a.times, b.times) < 0 < max(a.times, b.times) and None in (a.number, b.number) else None


def _choose(which: Size, yes: Size, no: Size) -> Size | None:
    return None if which.number is None else yes if which.number else no


def _filled(node: ir.Node, operands: Sequence[SizeValue]) -> SizeValue | None:
    """A list of one number, with a constant length."""
    count, value = operands[0].numbers, get_attribute(node, "value", ir.AttributeType.TENSOR, None)
    if count is None or len(count) != 1 or count[0] > LONGEST:
        return None
    if value is None or value.dtype not in (ir.DataType.INT32, ir.DataType.INT64):
        return None
    return SizeValue(1, (size(int(value.numpy().ravel()[0])),) * count[0])


RULES: dict[str, Rule] = {
    "Identity": lambda _, operands: operands[0], "Cast": _cast, "Gather": _gathered, "Concat": _joined,
    "Slice": _sliced, "Unsqueeze": _unsqueezed, "Squeeze": _squeezed, "Reshape": _reshaped,
    "Mul": _elementwise(lambda a, b: a * b), "Div": _elementwise(_divide), "Add": _elementwise(_add),
    "Sub": _elementwise(_subtract), "Equal": _elementwise(_equal), "Where": _elementwise(_choose, 3),
    "ConstantOfShape": _filled, "Mod": _modulo, "Min": _elementwise(_extreme(True)),
    "Max": _elementwise(_extreme(False)), "Neg": _elementwise(_negated, 1),
}  # fmt: skip
"""The rules of operators that compute with sizes; a Shape is the source of sizes."""

ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Mod", "Min", "Max")
