"""Arithmetic with sizes: what nodes do that compute the shapes for others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lower.streaming.axis_info import AxisInfo, Content, RuleContext
from rnn_lower.streaming.sizes import ONE, UNKNOWN, Size, size

LONGEST = 64
"""Elements up to which a tensor of integers may hold sizes."""


def content_of(ctx: RuleContext) -> AxisInfo | None:
    """What a node makes of sizes, where it is known."""
    function = CONTENTS.get(ctx.node.op_type)
    found = None if function is None else function(ctx)
    if found is None and ctx.node.op_type in ("Add", "Sub", "Mul", "Div", "Mod"):
        found = _unknown(ctx)
    if found is None or len(found[1]) > LONGEST:
        return None
    rank, content = found
    inferred = ctx.inferred(ctx.node.outputs[0])
    if inferred is not None and len(inferred) != rank:
        return None
    return AxisInfo((size(len(content)),) if rank else (), content=content)


def constant_content(array: object) -> AxisInfo:
    """A constant; integers of rank 0 or 1 may be sizes, which those are not that wrap around at 128."""
    numbers = np.asarray(array)
    held = None
    if numbers.dtype in (np.int32, np.int64, np.bool_) and numbers.ndim <= 1 and numbers.size <= LONGEST:
        held = tuple(size(int(number)) for number in numbers.ravel())
    return AxisInfo(tuple(map(size, numbers.shape)), content=held)


Found = tuple[int, Content] | None
"""Rank, 0 or 1, and elements."""


def _given(ctx: RuleContext, index: int) -> Found:
    info = ctx.inputs[index] if index < len(ctx.inputs) else None
    return None if info is None or info.content is None else (info.rank, info.content)


def _unknown(ctx: RuleContext) -> Found:
    """A number that depends on the length of the stream in a way that is not followed; a Reshape may tell it."""
    parts = [_given(ctx, 0), _given(ctx, 1)]
    if any(part is None or len(part[1]) != 1 for part in parts):
        return None
    known = [part for part in parts if part is not None]
    if not any(one.is_timed for _, (one,) in known):
        return None
    return max(rank for rank, _ in known), (size(f"{UNKNOWN}{ctx.fresh(0)}"),)


def _shape(ctx: RuleContext) -> Found:
    x = ctx.inputs[0]
    if x is None or x.shape is None:
        return None
    start, end = ctx.attribute("start", 0), ctx.attribute("end", None)
    return 1, x.shape[slice(start, end)]


def _same(ctx: RuleContext) -> Found:
    return _given(ctx, 0)


def _cast(ctx: RuleContext) -> Found:
    given, to = _given(ctx, 0), ctx.attribute("to")
    if given is None or to not in (onnx.TensorProto.INT32, onnx.TensorProto.INT64):
        return None
    fits = all(one.number is None or abs(one.number) < 2**31 for one in given[1])
    return given if fits or to == onnx.TensorProto.INT64 else None


def _as_list(ctx: RuleContext) -> Found:
    """One number as a list; a list in a list is no list of sizes."""
    given = _given(ctx, 0)
    return None if given is None or given[0] else (1, given[1])


def _reshaped(ctx: RuleContext) -> Found:
    """One number as it is, or as a list."""
    given, target = _given(ctx, 0), ctx.known(1)
    if given is None or target is None or len(given[1]) != 1 or any(n not in (1, -1) for n in target.ravel()):
        return None
    return (1, given[1]) if target.size == 1 else (0, given[1]) if not target.size else None


def _squeezed(ctx: RuleContext) -> Found:
    given = _given(ctx, 0)
    return (0, given[1]) if given is not None and len(given[1]) == 1 else None


def _gathered(ctx: RuleContext) -> Found:
    given, chosen = _given(ctx, 0), ctx.known(1)
    if given is None or chosen is None or chosen.ndim > 1 or not given[0]:
        return None
    if any(not -len(given[1]) <= index < len(given[1]) for index in chosen.ravel()):
        return None
    return chosen.ndim, tuple(given[1][int(index)] for index in chosen.ravel())


def _joined(ctx: RuleContext) -> Found:
    parts = [_given(ctx, index) for index in range(len(ctx.inputs))]
    return None if any(part is None for part in parts) else (1, tuple(one for part in parts if part for one in part[1]))


def _sliced(ctx: RuleContext) -> Found:
    given = _given(ctx, 0)
    if given is None:
        return None
    starts, ends = ctx.integers(1, "starts", 10), ctx.integers(2, "ends", 10)
    steps = (ctx.integers(4, "steps", 10) if ctx.opset >= 10 else None) or [1]
    if starts is None or ends is None or steps[0] < 1:
        return None
    return 1, given[1][starts[0] : ends[0] : steps[0]]


def _pairwise(function: Callable[[Size, Size], Size | None]) -> Callable[[RuleContext], Found]:
    def computed(ctx: RuleContext) -> Found:
        a, b = _given(ctx, 0), _given(ctx, 1)
        if a is None or b is None or (len(a[1]) != len(b[1]) and 1 not in (len(a[1]), len(b[1]))):
            return None
        count = max(len(a[1]), len(b[1])) if a[1] and b[1] else 0
        pairs = zip(a[1] * (count // max(len(a[1]), 1)), b[1] * (count // max(len(b[1]), 1)), strict=True)
        results = [function(one, other) for one, other in pairs]
        found = tuple(one for one in results if one is not None)
        return (max(a[0], b[0]), found) if len(found) == len(results) else None

    return computed


def _add(a: Size, b: Size) -> Size | None:
    x, y = a.number, b.number
    if 0 in (x, y):
        return b if x == 0 else a
    return None if x is None or y is None else size(x + y)


def _subtract(a: Size, b: Size) -> Size | None:
    x, y = a.number, b.number
    if y == 0 or a == b:
        return a if y == 0 else size(0)
    return None if x is None or y is None else size(x - y)


def _divide(a: Size, b: Size) -> Size | None:
    if a.number is not None and b.number:
        quotient = abs(a.number) // abs(b.number)  # the operator truncates
        return size(quotient if (a.number < 0) == (b.number < 0) else -quotient)
    found = a.over(b)
    if found is None or found.times < 0 or found.times.denominator > a.times.denominator:
        return None  # the operator rounds
    return found


def _numbers(function: Callable[[int, int], int]) -> Callable[[Size, Size], Size | None]:
    """Arithmetic with numbers alone."""

    def compute(a: Size, b: Size) -> Size | None:
        x, y = a.number, b.number
        return None if x is None or y is None else size(function(x, y))

    return compute


def _modulo(ctx: RuleContext) -> Found:
    divisor = _given(ctx, 1)
    if ctx.attribute("fmod", 0) or divisor is None or size(0) in divisor[1]:
        return None
    return _pairwise(_numbers(lambda a, b: a % b))(ctx)


def _extreme(function: Callable[[int, int], int]) -> Callable[[RuleContext], Found]:
    pairwise = _pairwise(_numbers(function))
    return lambda ctx: pairwise(ctx) if len(ctx.inputs) == 2 else None


def _equal(a: Size, b: Size) -> Size | None:
    """A size that is not known is not negative, and may be anything else."""
    if a == b:
        return ONE
    if any(symbol.startswith(UNKNOWN) for one in (a, b) for symbol in one.of):
        return None
    if a.number is not None and b.number is not None:
        return size(0)
    return size(0) if min(a.times, b.times) < 0 < max(a.times, b.times) and None in (a.number, b.number) else None


def _where(ctx: RuleContext) -> Found:
    parts = [_given(ctx, index) for index in range(3)]
    count = max((len(part[1]) for part in parts if part), default=0)
    if any(part is None or len(part[1]) not in (1, count) for part in parts):
        return None
    which, yes, no = (part[1] * (count // len(part[1])) for part in parts if part)
    if any(one.number is None for one in which):
        return None
    return max(part[0] for part in parts if part), tuple(
        a if test.number else b for test, a, b in zip(which, yes, no, strict=True)
    )


def _filled(ctx: RuleContext) -> Found:
    """As many of one number as a constant says."""
    count, value = _given(ctx, 0), ctx.attribute("value")
    if count is None or len(count[1]) != 1 or count[1][0].number is None or count[1][0].number > LONGEST:
        return None
    if value is None or value.dtype not in (ir.DataType.INT32, ir.DataType.INT64):
        return None
    return 1, (size(int(value.numpy().ravel()[0])),) * count[1][0].number


CONTENTS: dict[str, Callable[[RuleContext], Found]] = {
    "Shape": _shape, "Identity": _same, "Cast": _cast, "Gather": _gathered, "Concat": _joined, "Slice": _sliced,
    "Unsqueeze": _as_list, "Squeeze": _squeezed, "Reshape": _reshaped, "Mul": _pairwise(lambda a, b: a * b),
    "Div": _pairwise(_divide), "Add": _pairwise(_add), "Sub": _pairwise(_subtract), "Equal": _pairwise(_equal),
    "Where": _where, "ConstantOfShape": _filled, "Mod": _modulo, "Min": _extreme(min), "Max": _extreme(max),
}  # fmt: skip
