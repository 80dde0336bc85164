"""Rules of values that count frames: a chunk goes on counting where the last one ended."""

from __future__ import annotations

import onnx_ir as ir

from rnn_lower.shapes.sizes import ONE, TIME, Size, linear, size
from rnn_lower.streaming import shapes
from rnn_lower.streaming.axis_info import AxisInfo, RuleContext
from rnn_lower.streaming.node_edits import take_each
from rnn_lower.streaming.state_caches import KEEPS_NUMBERS, Position


def keeps_numbers(ctx: RuleContext) -> bool:
    """Whether a value that holds the numbers of its frames still does."""
    if ctx.node.op_type == "Add":
        constants = [
            ctx.known(index) for index, info in enumerate(ctx.inputs) if info is not None and info.axis is None
        ]
        return len(constants) == 1 and constants[0] is not None and not constants[0].any()
    return ctx.node.op_type in KEEPS_NUMBERS


def gather(ctx: RuleContext) -> list[AxisInfo]:
    """Each frame by its number; else as `shapes.gather`."""
    data, indices = ctx.input(0), _freed(ctx)
    if data.axis is None or not indices.counts or ctx.axis(0, data.rank) != data.axis or indices.axis is None:
        return shapes.gather(ctx)
    dims = [dim for axis, dim in enumerate(indices.sizes) if axis != indices.axis]
    if not data.is_plain or data.outer != ONE or indices.sizes[indices.axis] != data.frames or set(dims) - {ONE}:
        raise ctx.refuse("it selects frames by the indices of another stream")
    ctx.analysis.numbered.add(ctx.node)
    ctx.edit(take_each, [data.axis + k for k in range(indices.rank) if k != indices.axis])
    shape = (*data.sizes[: data.axis], *indices.sizes, *data.sizes[data.axis + 1 :])
    return [data.moved(data.axis + indices.axis, shape)]


def _freed(ctx: RuleContext) -> AxisInfo:
    """The indices of a Gather, which are those of all frames where they are all that the export had."""
    data, indices, chosen = ctx.input(0), ctx.input(1), ctx.known(1)
    count = None if ctx.analysis.baked is None or not data.is_plain else ctx.analysis.baked / data.every
    if chosen is None or chosen.size != count or chosen.ravel().tolist() != list(range(chosen.size)):
        return indices
    long = [axis for axis, length in enumerate(chosen.shape) if length == chosen.size]
    if len(long) != 1:
        return indices
    return AxisInfo(tuple(data.frames if axis in long else ONE for axis in range(chosen.ndim)), long[0], counts=True)


def _frames(ctx: RuleContext, index: int) -> Size | None:
    """An input that is the number of frames, at some rate."""
    content = ctx.content(index)
    if content is None or len(content) != 1 or content[0].of != (TIME,):
        return None
    return content[0] if 1 in (content[0].times.numerator, content[0].times.denominator) else None


def _number(ctx: RuleContext, index: int) -> Size | None:
    """A number or size that an input is, be it a float."""
    array, content = ctx.known(index), ctx.content(index)
    if array is None or content is not None:
        return content[0] if content is not None and len(content) == 1 else None
    number = float(array.ravel()[0])
    return size(int(number)) if array.size == 1 and number.is_integer() else None


def range_(ctx: RuleContext) -> list[AxisInfo]:
    """The numbers of the frames, or others with the same distances."""
    start, limit, delta = (_number(ctx, index) for index in range(3))
    line = None if limit is None else linear(limit)
    if start is None or line is None or start.number is None or delta is None or (delta.number or 0) < 1:
        raise ctx.refuse("it does not count all frames")
    (times, more), first, step = line, start.number, delta.number or 1
    count = Size(times / step, (TIME,))
    rounded = count.times.denominator == 1 and -step < more - first <= 0
    if times <= 0 or 1 not in (count.times.numerator, count.times.denominator) or not (rounded or more == first):
        raise ctx.refuse("it does not count all frames")
    source = next(iter(ctx.analysis.streams.items()))
    ctx.carry(Position(ctx.node, ctx.dtype(0), ctx.analysis.numbered, source, count, first, step))
    return [AxisInfo((count,), 0, every=1 / count.times, counts=(first, step) == (0, 1))]


def slice_(ctx: RuleContext) -> list[AxisInfo]:
    """The first rows of a table, as many as there are frames; else as `shapes.slice_`."""
    table, frames = ctx.input(0), _frames(ctx, 2)
    if table.is_timed or frames is None:
        return shapes.slice_(ctx)
    axes = ctx.integers(3, "axes", 10)
    steps = ctx.integers(4, "steps", 10) or [1]
    if table.shape is None or axes is None or steps != [1] or ctx.content(1) != (size(0),) or table.last:
        raise ctx.refuse("it does not select one row of a table for each frame")
    axis = axes[0] % table.rank
    ctx.carry(Position(ctx.node, ir.DataType.INT64, ctx.analysis.numbered))
    shape = [frames if index == axis else dim for index, dim in enumerate(table.shape)]
    return [AxisInfo(tuple(shape), axis, every=1 / frames.times)]
