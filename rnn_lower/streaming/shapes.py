"""Rules for operators that rearrange elements: they compute the axis of the frames afterwards."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from fractions import Fraction

import onnx_ir as ir

from rnn_lower.errors import UnsupportedError
from rnn_lower.ir.traits import ELEMENTWISE
from rnn_lower.ir.walk import get_attribute
from rnn_lower.shapes.sizes import ONE, TIME, UNKNOWN, Size, broadcast, linear, product, size
from rnn_lower.streaming.axis_info import AxisInfo, RuleContext, along
from rnn_lower.streaming.delays import cropped, settled
from rnn_lower.streaming.node_edits import (
    change_attributes,
    copy_zeros,
    replace_arguments,
    replace_constant,
    take_the_rest,
    tell_sizes,
)
from rnn_lower.streaming.state_caches import First

WHOLE = 2**31 - 1
"""Ends of slices from this number on mean the end of the axis."""

ATTENTION = (
    "; attention can be streamed if the graph first gathers the frames into windows of fixed length (Tensor.unfold)"
)


class FixedLengthError(UnsupportedError):
    """A Reshape contains the stream length of the export's example."""

    def __init__(self, error: UnsupportedError, length: int) -> None:
        super().__init__(str(error))
        self.length = length


def mapped(ctx: RuleContext, terms: Sequence[Sequence[object]], result: Sequence[object], lost: str) -> AxisInfo:
    """The output of an operator whose axes correspond to input axes by label.

    terms: labels of each input's axes; axes with one label have the same size, or size 1.  result: labels of the
    output's axes, None for a new axis of size 1.  lost: why a `result` without the stream's label is refused.
    Raises ValueError for labels that no input has.
    """
    pairs = [(info, term) for info, term in zip(ctx.inputs, terms, strict=False) if info is not None]
    x = same_frames(ctx, [info for info, _ in pairs])
    labels = {term[info.axis] for info, term in pairs if info.axis is not None}
    stream, length = labels.pop(), x.sizes[along(ctx, x)]
    if any(term.count(stream) > 1 for _, term in pairs):
        raise ctx.refuse("it selects a diagonal along the axis of the stream")
    if lost and not {stream, *labels} <= set(result):
        raise ctx.refuse(lost.format(stream))
    if not set(result) <= {None, *(label for _, term in pairs for label in term)}:
        raise ValueError
    if labels:
        if lost:
            raise ctx.refuse(f"it multiplies frames of the stream with each other{ATTENTION}")
        compared = all(info.offsets is not None for info, _ in pairs)
        text = f"it compares frames of the stream with each other, for example to compute a mask{ATTENTION}"
        raise ctx.refuse(text if compared else "the time axis of the stream is a different axis in each of its inputs")
    if any(info.axis is not None and info.sizes[info.axis] != length for info, _ in pairs):
        raise ctx.refuse("the time axis is merged with other axes in different ways in its inputs")
    for index, (info, term) in enumerate(zip(ctx.inputs, terms, strict=False)):
        if info is None or info.axis is not None:
            continue
        if info.is_timed:
            raise ctx.refuse("its result depends on the length of the stream")
        axis = term.index(stream) if stream in term else None
        if axis is not None and info.sizes[axis] != ONE and not _one_for_all(ctx, index, axis, length):
            raise ctx.refuse(f"input {index} has different values for each frame of the stream")
    columns = [
        [info.sizes[k] for info, term in pairs for k, each in enumerate(term) if each == label] for label in result
    ]
    shape = [broadcast(column, ctx.fresh(axis)) for axis, column in enumerate(columns)]
    shape[result.index(stream)] = length
    return x.moved(result.index(stream), shape)


def _one_for_all(ctx: RuleContext, index: int, axis: int, length: Size) -> bool:
    """Replace a constant with one equal row for each of the export's frames by a single row."""
    array = ctx.known(index)
    if array is None or array.shape[axis] != ctx.exported(length) or (array != array.take([0], axis)).any():
        return False
    ctx.edit(replace_constant, index, array.take([0], axis))
    return True


def transpose(ctx: RuleContext) -> list[AxisInfo]:
    rank = ctx.x().rank
    return [mapped(ctx, [range(rank)], list(ctx.attribute("perm", range(rank)[::-1])), "")]


def reshape(ctx: RuleContext) -> list[AxisInfo]:
    x = ctx.input(0)
    target = ctx.content(1)
    if ctx.opset < 5:
        target = tuple(map(size, ctx.attribute("shape", ())))
    if target is None:
        raise ctx.refuse("its output shape is unknown")
    if ctx.attribute("allowzero", 0) and size(0) in target:
        raise ctx.refuse("its output has an axis of size 0 (allowzero)")
    if ctx.analysis.step is not None:  # no size is 0, and shape inference knows all sizes
        ctx.edit(copy_zeros)
    unknown = [
        k for k, dim in enumerate(target)
        if any(symbol.startswith(UNKNOWN) for symbol in dim.of) or (x.cut and dim.is_timed and dim != x.length)
    ]  # fmt: skip
    if len(unknown) == 1 and size(-1) not in target:
        others = product(x.sizes[k] if dim == size(0) else dim for k, dim in enumerate(target) if k != unknown[0])
        alone = x.is_plain and others == product(x.sized(ONE))
        stays, may_lack = alone and unknown[0] == x.axis, ctx.may_lack_frames(x)
        counted = may_lack and alone and not stays and ctx.opset >= 14 and size(0) not in target
        if may_lack and not (stays or counted):
            raise ctx.refuse("its frames are delayed, but its output shape is computed from the length of the stream")
        ctx.edit(take_the_rest, x, unknown[0], len(target), 0 if stays else None if counted else -1)
        rest = x.length if alone else size(-1)
        target = tuple(rest if k == unknown[0] else dim for k, dim in enumerate(target))
    if len([dim for dim in target if dim == size(-1)]) > 1:
        raise ctx.refuse("its input 'shape' contains -1 more than once")
    copied = [x.sizes[k] if dim == size(0) and k < x.rank else dim for k, dim in enumerate(target)]
    if (freed := _freed(ctx, x, copied)) is not None:
        return [freed]
    resolved = _resolved(x, copied)
    if resolved is None:
        raise ctx.refuse("the size that replaces -1 in its shape is unknown")
    one_frame = product(x.sizes).over(size(TIME)) if ctx.analysis.baked is None else None
    fixed = None if one_frame is None else product(resolved).over(one_frame)
    if fixed is not None and fixed.number and x.axis is not None:
        why = (
            f"its output shape contains the fixed length {fixed.number}, although the length of the stream is variable"
        )
        raise FixedLengthError(ctx.refuse(why), fixed.number)
    info = _regrouped(ctx, x, resolved)
    if ctx.may_lack_frames(x) and target[info.axis or 0].is_timed and not {size(0), size(-1)} & {*target}:
        if info.axis != x.axis:
            ctx.require_opset(14, "its frames are delayed, so a chunk may be empty, and a Reshape of empty tensors")
        if ctx.opset >= 14:
            ctx.edit(change_attributes, {"allowzero": 1})
    if ctx.may_lack_frames(x) and size(-1) in copied and copied.index(size(-1)) != info.axis:
        guessed = (resolved[k] if dim == size(-1) else dim for k, dim in enumerate(target))
        same = [k < x.rank and dim == x.sizes[k] for k, dim in enumerate(copied)]
        sizes = tuple(size(0) if dim.is_timed and same[k] else dim for k, dim in enumerate(guessed))
        if any(dim.is_timed for dim in sizes):
            raise ctx.refuse("its frames are delayed, but the -1 in its shape stands for an axis other than time")
        ctx.edit(tell_sizes, sizes)
    return [info]


def _resolved(x: AxisInfo, shape: Sequence[Size]) -> list[Size] | None:
    """A shape with -1 resolved, or None if unknown."""
    rest = product(x.sizes).over(product(dim for dim in shape if dim != size(-1)))
    if rest is None:
        return None if size(-1) in shape else list(shape)
    return [rest if dim == size(-1) else dim for dim in shape]


def _freed(ctx: RuleContext, x: AxisInfo, shape: list[Size]) -> AxisInfo | None:
    """The shape with the stream length in place of the export's fixed one, if unambiguous."""
    if ctx.analysis.baked is None or any(dim.is_timed for dim in shape):
        return None
    candidates = dict[int, tuple[AxisInfo, tuple[int, ...]]]()
    for (axis, dim), length in itertools.product(enumerate(shape), (x.length, size(TIME))):
        share = size(dim.number or 0).over(size(ctx.exported(length) or 0))
        if share is None or not share.number:
            continue
        resolved = _resolved(x, [share * length if k == axis else each for k, each in enumerate(shape)])
        if resolved is None:
            continue
        try:
            info = _regrouped(ctx, x, resolved)
        except UnsupportedError:
            continue
        same = [k < x.rank and each == x.sizes[k] and bool(each.of) for k, each in enumerate(resolved)]
        numbers = [-1 if k == axis else 0 if same[k] else each.number for k, each in enumerate(resolved)]
        if info.axis == axis and None not in numbers:
            candidates[axis] = info, tuple(n for n in numbers if n is not None)
    if len(candidates) != 1:
        return None
    info, chosen = next(iter(candidates.values()))
    ctx.edit(replace_arguments, {1: chosen}, ("shape",), 5)
    ctx.edit(copy_zeros)
    return info


def flatten(ctx: RuleContext) -> list[AxisInfo]:
    x, axis = ctx.x(), ctx.attribute("axis", 1)
    axis = axis + ctx.x().rank if axis < 0 else axis
    return [_regrouped(ctx, x, [product(x.sizes[:axis]), product(x.sizes[axis:])])]


def _regrouped(ctx: RuleContext, x: AxisInfo, shape: list[Size]) -> AxisInfo:
    """The output of a Reshape that regroups axes without changing the order of elements."""
    before = product(x.sizes[: along(ctx, x)]) * x.outer
    if product(shape) != product(x.sizes):
        raise ctx.refuse("its output shape does not have as many elements as its input")
    for axis, dim in enumerate(shape):
        outer = before.over(product(shape[:axis]))
        if outer is None or not dim.is_timed:
            continue
        inner = dim.over(outer * x.length)
        if inner is not None and not inner.is_timed:
            if outer == ONE and inner.number and not (x.late or x.cut or x.lead or x.trail):
                return x.moved(axis, shape, outer=ONE, every=x.every / inner.number)  # each frame becomes several
            return x.moved(axis, shape, outer=outer)
        grouped = None if x.lead or x.trail else (outer * x.frames).over(dim)
        if grouped is not None and grouped.number and x.late:
            raise ctx.refuse("it merges several delayed frames into one")
        if grouped is not None and grouped.number:  # several frames become one
            return x.moved(axis, shape, outer=outer, every=x.every * grouped.number)
    raise ctx.refuse("it mixes frames of the stream with each other")


def squeeze(ctx: RuleContext) -> list[AxisInfo]:
    x = ctx.x()
    axes = ctx.integers(1, "axes", 13)
    if axes is None:
        raise ctx.refuse("it lists no axes, so it would remove the time axis of a chunk of one frame")
    result = [axis for axis in range(x.rank) if axis not in {axis % x.rank for axis in axes}]
    return [mapped(ctx, [range(x.rank)], result, "it removes the axis of the stream")]


def unsqueeze(ctx: RuleContext) -> list[AxisInfo]:
    x = ctx.x()
    axes = ctx.integers(1, "axes", 13)
    if axes is None:
        raise ctx.refuse("input 1 is missing")
    rank = x.rank + len(axes)
    new = {axis % rank for axis in axes}
    old = [axis for axis in range(rank) if axis not in new]
    return [mapped(ctx, [range(x.rank)], [None if axis in new else old.index(axis) for axis in range(rank)], "")]


def split(ctx: RuleContext) -> list[AxisInfo]:
    x = ctx.x()
    axis = ctx.axis(0, x.rank)
    if axis == along(ctx, x):
        raise ctx.refuse("it splits the stream along the time axis")
    ctx.integers(1, "split", 13)  # raises if they are not constant
    return [x.moved(along(ctx, x), ctx.resized(x, [axis], index)) for index in range(len(ctx.node.outputs))]


def concat(ctx: RuleContext) -> list[AxisInfo]:
    infos = [info for info in ctx.inputs if info is not None]
    first = same_frames(ctx, infos)
    axis = ctx.axis(1, first.rank)
    if axis == along(ctx, first):
        raise ctx.refuse("it concatenates frames along the time axis")
    for info in infos:
        if info.axis is None:
            raise ctx.refuse("it concatenates the stream with a fixed number of frames")
    if len({info.axis for info in infos}) > 1:
        raise ctx.refuse("the time axis of the stream is a different axis in each of its inputs")
    return [first.moved(along(ctx, first), ctx.resized(first, [axis]))]


def same_frames(ctx: RuleContext, infos: list[AxisInfo]) -> AxisInfo:
    """The common info of several values that carry the stream in the same way."""
    kinds = {dataclasses.replace(info, shape=None, axis=0) for info in infos if info.axis is not None}
    if not kinds:
        raise ctx.refuse("its result depends on the length of the stream")
    if len({info.every for info in kinds}) > 1:
        raise ctx.refuse("its inputs have different frame rates")
    if len({info.lead for info in kinds}) > 1:
        raise ctx.refuse("its inputs are padded by different numbers of frames")
    if len(kinds) > 1:
        raise ctx.refuse("the time axis is merged with other axes in different ways in its inputs")
    return next(info for info in infos if info.axis is not None)


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
    for axis, first, last, step in zip((axis % x.rank for axis in axes), *columns, steps, strict=True):
        if axis == x.axis and last.number is None and last.is_cut:
            x = settled(x, ctx.analysis.delay).changed(cut=True)
        cut[axis] = start, end, step = _position(ctx, x, axis, first), _position(ctx, x, axis, last, True), step
        if (have := sizes[axis].number) is not None and axis != time:
            sizes[axis] = size(len(range(have)[start:end:step]))
        elif axis != time and cut[axis] != (0, WHOLE, 1):
            sizes[axis] = ctx.sizes(x.rank)[axis]
    start, end, step = cut.get(time, (0, WHOLE, 1))
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
    if (start, end, step) == (0, 1, 1) and not x.late and x.is_plain:
        sizes[time] = ONE
        if _is_used_by(ctx, "Shape"):
            return [AxisInfo(tuple(sizes))]
        if ctx.opset >= 9 and x.outer == ONE:
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
        if data.late:
            raise ctx.refuse(
                "it selects the last frame of a delayed value; this can be streamed only if the operator "
                "is a Slice ([-1:])"
            )
        return [data.ended(shape)]
    rows, labels = range(data.rank), [f"index {k}" for k in range(indices.rank)]
    return [mapped(ctx, [rows, labels], [*rows[:axis], *labels, *rows[axis + 1 :]], "")]


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
            if wanted.is_timed and own != ONE and _one_for_all(ctx, 0, axis - len(shape) + x.rank, wanted):
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
