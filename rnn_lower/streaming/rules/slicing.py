"""Rules for Slice and Gather: which frames of the stream they select, or which rows of every frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from rnn_lower.ir.walk import get_attribute
from rnn_lower.shapes.sizes import ONE, Size, linear, size
from rnn_lower.streaming.axis_info import AxisInfo, RuleContext, along
from rnn_lower.streaming.rules.reshaping import mapped
from rnn_lower.streaming.states.delays import cropped, settled
from rnn_lower.streaming.states.node_edits import repeat_frame, replace_arguments
from rnn_lower.streaming.states.state_caches import First

DELAYED_BOUNDS = (
    "its slice bounds are computed from the length of a delayed value; in the model, compute them from the length of "
    "an input, which is the same"
)

WHOLE = 2**31 - 1
"""Ends of slices from this number on mean the end of the axis."""


def slice_(ctx: RuleContext) -> list[AxisInfo]:
    x, columns = ctx.input(0), [_positions(ctx, index, name) for index, name in ((1, "starts"), (2, "ends"))]
    axes = ctx.integers(3, "axes", 10) or list(range(len(columns[0])))
    steps = (ctx.integers(4, "steps", 10) if ctx.opset >= 10 else None) or [1] * len(axes)
    time, sizes = along(ctx, x), list(x.sizes)
    if x.lead or x.trail:  # the export fixed the length without padding
        pairs = list(zip(axes, columns[1], strict=True))
        same = [axis % x.rank == time and end.number == (ctx.exported(x.frames) or "") for axis, end in pairs]
        columns[1] = tuple(x.frames if whole else end for whole, (_, end) in zip(same, pairs, strict=True))
    cut = dict[int, tuple[int, int, int]]()
    places = [axis % x.rank for axis in axes]
    is_shorter = any(axis == x.axis and last.is_cut for axis, last in zip(places, columns[1], strict=False))
    if is_shorter:
        is_shorter, x = not x.cut, settled(x, ctx.analysis.delay).changed(cut=True)
    for axis, first, last, step in zip(places, *columns, steps, strict=True):
        cut[axis] = start, end, step = _position(ctx, x, axis, first), _position(ctx, x, axis, last, True), step
        if (have := sizes[axis].number) is not None and axis != time:
            sizes[axis] = size(len(range(have)[start:end:step]))
        elif axis != time and cut[axis] != (0, WHOLE, 1):
            sizes[axis] = ctx.sizes(x.rank)[axis]
    start, end, step = cut.get(time, (0, WHOLE, 1))
    if is_shorter and end < 0 and start - end > x.lead > 0:
        raise ctx.refuse(DELAYED_BOUNDS)
    if any(position.number is None for column in columns for position in column):
        _keep_ranges(ctx, cut)
    sizes[time] = ctx.sizes(x.rank)[time] if time in cut else sizes[time]
    if ctx.analysis.baked is not None and x.is_plain and end > 0 and end * x.every >= ctx.analysis.baked:
        end = WHOLE
        _keep_ranges(ctx, {**cut, time: (start, end, step)})
    if step > 1 and 0 <= start < step and end >= WHOLE:
        return [_thinned(ctx, x, step, sizes)]
    if start < 0:
        x = settled(x, ctx.analysis.delay)
    if start < 0 and step == 1 and end >= WHOLE and _always_has(x, -start):  # the last frames so far
        sizes[time] = size(-start)
        return [x.ended(sizes)]
    behind = -end if end < 0 else 0 if end >= WHOLE else None
    if step == 1 and start >= 0 and behind is not None and (start or behind or x.lead or x.trail):
        return [_trimmed(ctx, x, (start, behind), cut, sizes)]
    x = settled(x, ctx.analysis.delay)
    if (start, step) == (0, 1) and 0 < end < WHOLE and not x.late and x.is_plain:
        if _is_used_by(ctx, "Shape") and (end == 1 or x.outer == ONE):
            if end > 1:
                _keep_ranges(ctx, {**cut, time: (0, 1, 1)})
                ctx.edit(repeat_frame, time, x.rank, end)
            sizes[time] = size(end)
            return [AxisInfo(tuple(sizes))]
        if end == 1 and ctx.opset >= 9 and x.outer == ONE:
            sizes[time] = ONE
            return [_first(ctx, x, sizes)]
    if step < 0:
        raise ctx.refuse("it reads the stream backward")
    if start != 0 or end < WHOLE or step != 1:
        until = "the end" if end >= WHOLE else end
        raise ctx.refuse(
            f"it selects frames {start} to {until} of the stream{f' in steps of {step}' if step > 1 else ''}; a "
            "streaming model can select only the first frame ([:1]), the last frame ([-1:]), every k-th frame "
            "([::k]), or all frames except a few at the start or end"
        )
    sizes[time] = x.sizes[time]
    return [x.moved(time, sizes)]


def _first(ctx: RuleContext, x: AxisInfo, shape: Sequence[Size]) -> AxisInfo:
    """The first frame of the stream, as a state."""
    ctx.carry(First(ctx.node, x, 1, ctx.selected_dtype(0)))
    return AxisInfo(tuple(shape), opening=True)


def _positions(ctx: RuleContext, index: int, name: str) -> tuple[Size, ...]:
    """The start or end of a Slice by axis."""
    if ctx.opset >= 10 and (content := ctx.content(index)) is not None:
        return content
    numbers = ctx.integers(index, name, 10)
    if numbers is None:
        raise ctx.refuse("its starts or ends are missing")
    return tuple(map(size, numbers))


def _position(ctx: RuleContext, x: AxisInfo, axis: int, position: Size, is_end: bool = False) -> int:
    """A position along an axis, counted from either end, that is valid for the whole sequence and for chunks.

    If the whole run has more frames than the chunks, an end selects the first frames in both.
    """
    if position.number is not None:
        return min(position.number, WHOLE)
    if position == x.sizes[axis] and not (axis == x.axis and x.trail):
        return WHOLE
    line = linear(position, in_stream=is_end and x.cut)
    if axis != x.axis or line is None or not x.is_unmerged or (x.cut and not is_end):
        raise ctx.refuse("its slice bounds are not computed from the size of the sliced axis")
    (times, more), behind = line, x.lead - x.late + x.trail
    if times * x.every == 1:
        return more - behind if more < behind else WHOLE
    if times * x.every == -1 and not x.cut:
        return max(0, more + behind)
    raise ctx.refuse("its slice bounds are computed from the length of a value with another frame rate than the input")


def _is_used_by(ctx: RuleContext, operator: str, position: int = 0, axis: int | None = None) -> bool:
    """Whether only nodes of one operator read the output, as this input and along this axis from the end."""
    output = ctx.node.outputs[0]
    rank = ctx.input(0).rank
    for user, index in output.uses():
        along_axis = axis is None or get_attribute(user, "axis", ir.AttributeType.INT, 0) in (axis, axis + rank)
        if (user.op_type, index) != (operator, position) or not along_axis:
            return False
    return bool(output.uses()) and not output.is_graph_output()


def _always_has(x: AxisInfo, count: int) -> bool:
    """Whether each chunk of a value has at least this many frames, including the left padding."""
    return x.is_unmerged and count <= x.lead + (not x.late or not x.lead)


def _thinned(ctx: RuleContext, x: AxisInfo, step: int, sizes: list[Size]) -> AxisInfo:
    """Every k-th frame, for chunks of a multiple of k frames."""
    x = settled(x, ctx.analysis.delay)
    if not x.is_plain or x.outer != ONE or x.late:
        raise ctx.refuse(
            "it selects frames of a value that is padded or delayed, or whose time axis is merged with other axes"
        )
    return x.changed(sizes, every=x.every * step)


def _trimmed(
    ctx: RuleContext, x: AxisInfo, off: tuple[int, int], cut: Mapping[int, tuple[int, int, int]], sizes: list[Size]
) -> AxisInfo:
    """The frames without the first and the last ones.

    Chunks lack the trail, so fewer frames are removed at the end. Frames removed beyond it shift the stream, which
    shortens its left padding; if there is too little, the result is delayed.
    """
    (start, behind), time = off, along(ctx, x)
    end, trail = max(0, behind - x.trail), max(0, x.trail - behind)
    lead = x.lead - start - end
    if (x.lead or x.trail) and not x.is_unmerged:
        raise ctx.refuse("it slices the time axis, which is merged with other axes")
    if lead >= 0:
        if end != behind:
            _keep_ranges(ctx, {**cut, time: (start, -end if end else WHOLE, 1)})
        return x.changed(sizes, lead=lead, trail=trail)
    if x.lead and start <= x.lead:
        raise ctx.refuse(
            f"it removes {start} frames at the start and {behind} frames at the end of a stream that has {x.lead} "
            f"frames of left padding; it may remove at most {max(0, x.lead + x.trail)} frames in total"
        )
    joined = _is_used_by(ctx, "Concat", 1, time - x.rank)
    if end and (joined or not ctx.analysis.delay):
        why = ctx.refuse(
            f"it selects frames {start} to {-behind} of the stream, but within a chunk, the end of the stream is "
            f"unknown; delay the outputs by {start - x.lead + end} frame{'s' * (start - x.lead + end != 1)} (--delay)"
        )
        if start or not x.is_plain or x.late:
            raise why
        _keep_ranges(ctx, {**cut, time: (0, WHOLE, 1)})
        return x.changed(sizes, trail=-end, blame=str(why))
    if trail:
        x, trail = settled(x, ctx.analysis.delay), 0
    if len(cut) > 1:
        _keep_ranges(ctx, {axis: range_ for axis, range_ in cut.items() if axis != time})
    return cropped(ctx, x, start, end, gone=len(cut) == 1).changed(sizes, trail=trail)


def _keep_ranges(ctx: RuleContext, ranges: Mapping[int, tuple[int, int, int]]) -> None:
    """Set the ranges of a Slice."""
    columns = [tuple(each[index] for each in ranges.values()) for index in range(3)]
    arguments = {1: columns[0], 2: columns[1], 3: tuple(ranges)}
    if ctx.opset >= 10:
        arguments[4] = columns[2]
    ctx.edit(replace_arguments, arguments, ("starts", "ends", "axes"), 10)


def gather(ctx: RuleContext) -> list[AxisInfo]:
    """A Gather of table rows by indices that carry the stream, or of the same rows of every frame."""
    data, indices = ctx.input(0), ctx.input(1)
    if data.axis is not None and indices.is_timed:
        raise ctx.refuse("both its data and its indices depend on the stream")
    if data.shape is None or indices.shape is None:
        raise ctx.refuse(f"the rank of its {'data' if data.shape is None else 'indices'} is unknown")
    axis, chosen = ctx.axis(0, data.rank), ctx.known(1)
    if axis == data.axis:
        shape = [*data.sizes[:axis], *(ONE,) * (0 if chosen is None else chosen.ndim), *data.sizes[axis + 1 :]]
        is_first = chosen is not None and chosen.ravel().tolist() == [0] and not data.late and data.outer == ONE
        if is_first and data.is_plain and ctx.opset >= 9:
            return [_first(ctx, data, shape)]
        if chosen is None or chosen.ravel().tolist() != [-1] or not data.is_plain:
            text = "computed indices" if chosen is None else f"fixed indices, {chosen.ravel().tolist()[:4]}"
            raise ctx.refuse(f"it selects frames of the stream by {text}")
        if ctx.may_lack_frames(data):
            raise ctx.refuse(
                "it selects the last frame of a delayed value, which a chunk may lack; pass --step, or use a Slice "
                "([-1:]) in the model"
            )
        return [data.ended(shape)]
    rows, labels = range(data.rank), [f"index {k}" for k in range(indices.rank)]
    return [mapped(ctx, [rows, labels], [*rows[:axis], *labels, *rows[axis + 1 :]], "")]
