"""Rules for values that count frames: each chunk continues where the previous chunk ended."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from rnn_lower.shapes.sizes import ONE, TIME, Size, frames, linear, size
from rnn_lower.streaming.axis_info import AxisInfo, RuleContext, along
from rnn_lower.streaming.rules import slicing
from rnn_lower.streaming.states.delays import held
from rnn_lower.streaming.states.node_edits import take_each, take_windows
from rnn_lower.streaming.states.position_state import KEEPS_INDICES, Position
from rnn_lower.transforms.evaluate import evaluate_node


def index_offsets(ctx: RuleContext, info: AxisInfo) -> np.ndarray | None:
    """The offset of an output from the index of each frame, or None if it is anything else."""
    indices = [index for index, each in enumerate(ctx.inputs) if each is not None and each.offsets is not None]
    if ctx.node.op_type == "Range":
        return info.offsets
    if ctx.node.op_type not in KEEPS_INDICES or len(indices) != 1 or (ctx.node.op_type == "Sub" and indices != [0]):
        return None
    operands = [
        ctx.known(index) if each is None or each.offsets is None else each.offsets
        for index, each in enumerate(ctx.inputs)
    ]
    if any(operand is None for operand in operands):
        return None
    try:
        result = np.asarray(evaluate_node(ctx.node, operands, ctx.opset)[0])
    except Exception:  # then the result stays unknown
        return None
    stays = result.dtype.kind == "i" and result.ndim == info.rank and result.shape[along(ctx, info)] == 1
    return result if stays else None


def gather(ctx: RuleContext) -> list[AxisInfo]:
    """A Gather of windows, by frame indices plus constants; else `slicing.gather`."""
    x, indices = ctx.input(0), _freed(ctx)
    offsets, axis = indices.offsets, indices.axis
    if x.axis is None or offsets is None or axis is None or ctx.axis(0, x.rank) != x.axis:
        return slicing.gather(ctx)
    if offsets.min() < 0:
        raise ctx.refuse(
            "it uses negative indices, which select frames from the end of the stream; in the model, "
            "pad the start of the stream instead"
        )
    if not x.is_unmerged or indices.outer != ONE or x.every != indices.every:
        raise ctx.refuse("it selects frames of one stream with indices from another stream")
    reach = max(int(offsets.max()), x.lead, indices.late - x.late + x.lead)
    late = x.late + reach - x.lead
    if indices.late < late and not ctx.analysis.delay:
        raise ctx.refuse(f"its windows of {reach + 1} frames contain future frames; pass --delay to delay the outputs")
    ctx.analysis.numbered.add(ctx.node)
    if not reach and offsets.size == 1:
        ctx.edit(take_each, [x.axis + k for k in range(indices.rank) if k != axis])
    else:
        if ctx.analysis.step is None:
            ctx.require_opset(11, "selecting windows of frames without a fixed chunk length (--step)")
        if late > x.late:
            ctx.carry(held(ctx, x, reach + 1, lead=x.lead, output_axis=x.axis + axis))
        ctx.edit(take_windows, x, offsets, axis, reach)
    shape = (*x.sizes[: x.axis], *indices.sizes, *x.sizes[x.axis + 1 :])
    return [x.moved(x.axis + axis, shape).changed(lead=0, late=late, cut=x.cut or indices.cut or indices.late < late)]


def _freed(ctx: RuleContext) -> AxisInfo:
    """The indices of a Gather; constant ones that count the export's frames become those of all frames."""
    x, indices, chosen = ctx.input(0), ctx.input(1), ctx.known(1)
    if chosen is None or ctx.analysis.baked is None or not x.is_unmerged:
        return indices
    found = []
    for axis, length in enumerate(chosen.shape):
        offsets, column = chosen.take([0], axis), [-1 if k == axis else 1 for k in range(chosen.ndim)]
        if length == ctx.analysis.baked / x.every and (chosen - offsets == np.arange(length).reshape(column)).all():
            found.append((axis, offsets))
    if len(found) != 1:
        return indices
    axis, offsets = found[0]
    shape = tuple(Size(1 / x.every, (TIME,)) if k == axis else size(n) for k, n in enumerate(chosen.shape))
    return AxisInfo(shape, axis, every=x.every, offsets=offsets)


def _frames(ctx: RuleContext, index: int) -> Size | None:
    """The number of frames, at some rate, that an input contains."""
    content = ctx.content(index)
    if content is None or len(content) != 1 or content[0].of != (TIME,):
        return None
    return content[0] if 1 in (content[0].times.numerator, content[0].times.denominator) else None


def _number(ctx: RuleContext, index: int) -> Size | None:
    """The number or size that an input contains, integer or float."""
    array, content = ctx.known(index), ctx.content(index)
    if array is None or content is not None:
        return content[0] if content is not None and len(content) == 1 else None
    number = float(array.ravel()[0])
    return size(int(number)) if array.size == 1 and number.is_integer() else None


def range_(ctx: RuleContext) -> list[AxisInfo]:
    """A Range over the frames, with any start and step."""
    start, limit, delta = (_number(ctx, index) for index in range(3))
    line = None if limit is None else linear(limit, in_stream=True)
    first, step = (None if number is None else number.number for number in (start, delta))
    if limit is None or line is None or first is None or step is None or step < 1:
        raise ctx.refuse("the range of indices must contain exactly one index for each frame")
    (times, more), count = line, Size(line[0] / step, (TIME,))
    rounded = count.times.denominator == 1 and -step < more - first <= 0
    late, trail = max(0, first - more) if not rounded else 0, max(0, math.ceil((more - first) / step))
    is_countable = 1 in (count.times.numerator, count.times.denominator) and times > 0
    if not is_countable or (trail and count.times.denominator > 1) or (late and step > 1):
        raise ctx.refuse("the range of indices must contain exactly one index for each frame")
    source = next(iter(ctx.analysis.streams.items()))
    ctx.carry(Position(ctx.node, ctx.dtype(0), ctx.analysis.numbered, source, count, first, step))
    offsets = np.array([first]) if step == 1 and ctx.dtype(0).is_integer() and not trail else None
    length = frames(count.times, -late, cut=limit.is_cut)
    return [AxisInfo((length,), 0, every=1 / count.times, trail=trail, late=late, cut=limit.is_cut, offsets=offsets)]


def slice_(ctx: RuleContext) -> list[AxisInfo]:
    """A Slice of as many rows of a table as there are frames; else `slicing.slice_`."""
    table, frames = ctx.input(0), _frames(ctx, 2)
    if table.is_timed or frames is None:
        return slicing.slice_(ctx)
    axes = ctx.integers(3, "axes", 10)
    steps = ctx.integers(4, "steps", 10) or [1]
    if table.shape is None or axes is None or steps != [1] or ctx.content(1) != (size(0),) or table.last:
        raise ctx.refuse("it must select exactly one row of a table for each frame")
    axis = axes[0] % table.rank
    if table.shape[axis] == ONE:
        raise ctx.refuse("its table has only one row, which the model uses for all frames")
    ctx.carry(Position(ctx.node, ir.DataType.INT64, ctx.analysis.numbered))
    shape = [frames if index == axis else dim for index, dim in enumerate(table.shape)]
    return [AxisInfo(tuple(shape), axis, every=1 / frames.times)]
