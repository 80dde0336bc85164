"""Rules for operators that rearrange elements: they compute the axis of the frames afterwards."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from rnn_lower.errors import UnsupportedError
from rnn_lower.shapes.fixed_dims import axis_name
from rnn_lower.shapes.shape_info import plain_dim
from rnn_lower.shapes.sizes import ONE, TIME, UNKNOWN, Size, broadcast, product, size
from rnn_lower.streaming.axis_info import AxisInfo, RuleContext, along
from rnn_lower.streaming.states.node_edits import (
    change_attributes,
    copy_zeros,
    list_axes,
    replace_constant,
    take_the_rest,
    tell_sizes,
)

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
        if axis is not None and info.sizes[axis] != ONE and not one_for_all(ctx, index, axis, length):
            raise ctx.refuse(f"input {index} has different values for each frame of the stream")
    columns = [
        [info.sizes[k] for info, term in pairs for k, each in enumerate(term) if each == label] for label in result
    ]
    shape = [broadcast(column, ctx.fresh(axis)) for axis, column in enumerate(columns)]
    shape[result.index(stream)] = length
    return x.moved(result.index(stream), shape)


def one_for_all(ctx: RuleContext, index: int, axis: int, length: Size) -> bool:
    """Replace a constant with one equal row for each of the export's frames by a single row."""
    if (row := equal_row(ctx, index, axis, length)) is None:
        return False
    ctx.edit(replace_constant, index, row)
    return True


def equal_row(ctx: RuleContext, index: int, axis: int, length: Size) -> np.ndarray | None:
    """The first row of a constant with one equal row for each of the export's frames, else None."""
    number = ctx.exported(length)
    if number is None or ctx.input(index).sizes[axis] != size(number):
        return None
    array = ctx.analysis.constants.computed(ctx.node.inputs[index], ctx.scope)
    return None if array is None or (array != array.take([0], axis)).any() else array.take([0], axis)


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
        stays = x.is_plain and unknown[0] == x.axis and others == product(x.sized(ONE))
        ctx.edit(take_the_rest, unknown[0], len(target), 0 if stays else -1)
        target = tuple(size(0 if stays else -1) if k == unknown[0] else dim for k, dim in enumerate(target))
    if len([dim for dim in target if dim == size(-1)]) > 1:
        raise ctx.refuse("its input 'shape' contains -1 more than once")
    copied = [x.sizes[k] if dim == size(0) and k < x.rank else dim for k, dim in enumerate(target)]
    if (freed := _freed(ctx, x, copied)) is not None:
        return [freed]
    resolved = _resolved(x, copied)
    if resolved is None:
        raise ctx.refuse("the size that replaces -1 in its shape is unknown")
    _refuse_fixed(ctx, x, resolved)
    try:
        info = _regrouped(ctx, x, resolved)
        grouped = info.outer != ONE and info.every != x.every
    except UnsupportedError as error:
        _refuse_fixed(ctx, x, _declared(ctx, len(target)))
        raise UnsupportedError(f"{error}{_advice(ctx, x, copied)}") from None
    if grouped:  # unless the export took -1 for the batch
        _refuse_fixed(ctx, x, ctx.sizes(len(target)))
    if ctx.may_lack_frames(x) and target[info.axis or 0].is_timed and not {size(0), size(-1)} & {*target}:
        if info.axis != x.axis:
            ctx.require_opset(14, "its frames are delayed, so a chunk may be empty, and a Reshape of empty tensors")
        if ctx.opset >= 14:
            ctx.edit(change_attributes, {"allowzero": 1})
    if ctx.may_lack_frames(x) and size(-1) in copied and copied.index(size(-1)) != info.axis:
        guessed = (resolved[k] if dim == size(-1) else dim for k, dim in enumerate(target))
        same = [k < x.rank and dim == x.sizes[k] for k, dim in enumerate(copied)]
        sizes = tuple(size(0) if dim.is_timed and same[k] else dim for k, dim in enumerate(guessed))
        rest = copied.index(size(-1))
        if not any(dim.is_timed for dim in sizes):
            ctx.edit(tell_sizes, sizes)
        elif (number := resolved[rest].number) is not None and ctx.opset >= 14 and size(0) not in target:
            ctx.edit(take_the_rest, rest, len(target), number)
            ctx.edit(change_attributes, {"allowzero": 1})
        else:
            raise ctx.refuse("its frames are delayed, but the -1 in its shape stands for an axis other than time")
    return [info]


def _refuse_fixed(ctx: RuleContext, x: AxisInfo, shape: Sequence[Size]) -> None:
    """Raise FixedLengthError if a shape has as many elements as the input only at one length of the stream."""
    one_frame = product(x.sizes).over(size(TIME)) if ctx.analysis.baked is None else None
    fixed = None if one_frame is None else product(shape).over(one_frame)
    if fixed is not None and fixed.number and x.axis is not None:
        why = (
            f"its output shape contains the fixed length {fixed.number}, although the length of the stream is variable"
        )
        raise FixedLengthError(ctx.refuse(why), fixed.number)


def _declared(ctx: RuleContext, rank: int) -> list[Size]:
    """The inferred sizes of the output; declared numbers, which are those of the export, replace unknown ones."""
    sizes, dims = ctx.sizes(rank), [*map(plain_dim, ctx.node.outputs[0].shape or ())]
    if len(dims) != rank:
        return sizes
    return [size(n) if isinstance(n, int) and dim.number is None else dim for dim, n in zip(sizes, dims, strict=True)]


def _advice(ctx: RuleContext, x: AxisInfo, shape: Sequence[Size]) -> str:
    """What to do if a number in a shape with -1 is the length of the export's example, or "" if none or several may be.

    Such a shape fits other lengths too, so it does not tell.
    """
    if ctx.analysis.baked is not None or size(-1) not in shape or len(ctx.analysis.streams) != 1:
        return ""
    pairs = [(axis, dim.number) for axis, dim in enumerate(shape) if dim.number is not None and dim.number > 1]
    numbers = [number for axis, number in pairs if _with_frames(ctx, x, shape, axis, x.length)]
    if len(numbers) != 1:
        return ""
    (time,) = itertools.starmap(axis_name, ctx.analysis.streams.items())
    return f"; if the export fixed the number of frames, pass --dim {time}={numbers[0]} --time {time}"


def _with_frames(
    ctx: RuleContext, x: AxisInfo, shape: Sequence[Size], axis: int, length: Size
) -> tuple[AxisInfo, list[Size]] | None:
    """The output with this size of an axis, and its shape, if the frames are then along this axis."""
    resolved = _resolved(x, [length if k == axis else dim for k, dim in enumerate(shape)])
    try:
        info = None if resolved is None else _regrouped(ctx, x, resolved)
    except UnsupportedError:
        return None
    return None if info is None or resolved is None or info.axis != axis else (info, resolved)


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
    candidates = dict[int, tuple[AxisInfo, tuple[Size, ...]]]()
    for (axis, dim), length in itertools.product(enumerate(shape), (x.length, size(TIME))):
        share = size(dim.number or 0).over(size(ctx.exported(length) or 0))
        found = _with_frames(ctx, x, shape, axis, share * length) if share is not None and share.number else None
        if found is not None:
            info, resolved = found
            same = [k < x.rank and each == x.sizes[k] and bool(each.of) for k, each in enumerate(resolved)]
            pairs = enumerate(resolved)
            candidates[axis] = info, tuple(size(-1) if k == axis else size(0) if same[k] else n for k, n in pairs)
    if len(candidates) != 1:
        return None
    info, chosen = next(iter(candidates.values()))
    ctx.edit(tell_sizes, chosen)
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
    if axes is None:  # it would also remove the time axis of a chunk of one frame
        others = [axis for axis in range(x.rank) if axis != along(ctx, x)]
        if any(x.sizes[axis].number is None for axis in others):
            raise ctx.refuse("it lists no axes, and some of its sizes are unknown; list the axes in the model")
        axes = [axis for axis in others if x.sizes[axis] == ONE]
        declared = ctx.node.outputs[0].shape
        if declared is not None and len(declared) != x.rank - len(axes):
            raise ctx.refuse("it lists no axes, and removes the time axis of the export, which had one frame")
        ctx.edit(list_axes, axes)
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
