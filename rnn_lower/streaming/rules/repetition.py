"""Rules for operators that repeat values over the frames or over other axes."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from fractions import Fraction

from rnn_lower.ir.traits import ELEMENTWISE
from rnn_lower.shapes.sizes import ONE, Size, broadcast
from rnn_lower.streaming.axis_info import AxisInfo, RuleContext
from rnn_lower.streaming.rules.reshaping import one_for_all


def filled_shape(ctx: RuleContext) -> tuple[Size, ...] | None:
    """The output shape of a ConstantOfShape or Expand, or of a value derived from the first frame, if known."""
    if ctx.node.op_type == "ConstantOfShape":
        return ctx.content(0)
    if any(info is not None and info.opening for info in ctx.inputs):
        return _of_first(ctx)
    x, target = ctx.optional(0), ctx.content(1)
    if ctx.node.op_type != "Expand" or x is None or x.shape is None or target is None:
        return None
    have, want = ([ONE] * (len(other) - len(own)) + [*own] for own, other in ((x.shape, target), (target, x.shape)))
    return tuple(broadcast(pair, ctx.fresh(axis)) for axis, pair in enumerate(zip(have, want, strict=True)))


def _of_first(ctx: RuleContext) -> tuple[Size, ...] | None:
    """The shape of a value derived from the first frame, even if inference does not know it."""
    shapes = [info.shape for info in ctx.inputs if info is not None and info.shape is not None]
    if ctx.node.op_type in ELEMENTWISE and len(shapes) == len(ctx.inputs):
        columns = itertools.zip_longest(*(shape[::-1] for shape in shapes), fillvalue=ONE)
        return tuple(broadcast(column, ctx.fresh(axis)) for axis, column in enumerate(columns))[::-1]
    if ctx.node.op_type == "Unsqueeze" and (axes := ctx.integers(1, "axes", 13)) is not None and shapes:
        sizes, rank = iter(shapes[0]), len(shapes[0]) + len(axes)
        new = {axis % rank for axis in axes}
        return tuple(ONE if axis in new else next(sizes) for axis in range(rank))
    return None


def expand(ctx: RuleContext) -> list[AxisInfo]:
    """An Expand, also of values without the stream over the frames, as exporters emit for initial states."""
    x, target, filled = ctx.input(0), ctx.content(1), filled_shape(ctx)
    if filled is None or target is None:
        raise ctx.refuse("the rank of its input is unknown" if target else "its output shape is unknown")
    shape = list(filled)
    have, want = ([ONE] * (len(shape) - len(sizes)) + [*sizes] for sizes in (x.sizes, target))
    if x.axis is None:
        for axis, (own, wanted) in enumerate(zip(have, want, strict=True)):
            if wanted.is_timed and own != ONE and one_for_all(ctx, 0, axis - len(shape) + x.rank, wanted):
                shape[axis], have[axis] = wanted, ONE
        return [_spread(ctx, x, shape, have)]
    time = x.axis + len(shape) - x.rank
    dims = [dim for axis, dim in enumerate(want) if axis != time]
    if want[time] not in (ONE, have[time]) or any(dim.is_timed for dim in dims):
        raise ctx.refuse("it repeats the frames of the stream by broadcasting along the time axis")
    shape[time] = have[time]
    return [x.moved(time, shape)]


def constant_of_shape(ctx: RuleContext) -> list[AxisInfo]:
    shape = ctx.input(0).content
    if shape is None:
        raise ctx.refuse("its output shape is unknown")
    return [_spread(ctx, AxisInfo(()), shape, [ONE] * len(shape))]


def _spread(ctx: RuleContext, x: AxisInfo, shape: Sequence[Size], have: Sequence[Size]) -> AxisInfo:
    """A value repeated for every frame."""
    if x.is_timed:
        raise ctx.refuse("its result depends on the length of the stream")
    timed = [axis for axis, dim in enumerate(shape) if dim.is_timed]
    if len(timed) != 1 or have[timed[0]] != ONE:
        raise ctx.refuse("it creates a shape from the length of the stream")
    info = AxisInfo(tuple(shape), timed[0], every=Fraction(shape[timed[0]].times.denominator))
    if shape[timed[0]].over(info.frames) is None:
        raise ctx.refuse("it creates a shape from the length of a stream with another frame rate")
    return dataclasses.replace(info, outer=shape[timed[0]].over(info.frames) or ONE)


def tile(ctx: RuleContext) -> list[AxisInfo]:
    """A Tile of other axes, or of one row over all frames."""
    x, repeats = ctx.input(0), ctx.input(1).content if ctx.opset >= 6 else None
    if repeats is None or x.shape is None or len(repeats) != x.rank:
        raise ctx.refuse("its number of repeats is unknown")
    shape = [dim * times for dim, times in zip(x.shape, repeats, strict=True)]
    if x.axis is None:
        return [_spread(ctx, x, shape, x.shape)]
    if repeats[x.axis] != ONE or any(dim.is_timed for dim in repeats):
        raise ctx.refuse("it repeats the stream along the time axis")
    return [x.moved(x.axis, shape)]
