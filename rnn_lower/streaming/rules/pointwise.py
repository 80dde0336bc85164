"""Rules for operators that compute each frame separately: by element, by row, or over other axes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rnn_lower.ir.walk import is_read
from rnn_lower.shapes.sizes import ONE, Size, size
from rnn_lower.streaming.axis_info import AxisInfo, RuleContext, along
from rnn_lower.streaming.rules.reshaping import mapped
from rnn_lower.streaming.states.delays import mask_early, settled
from rnn_lower.streaming.states.node_edits import keep_reduced
from rnn_lower.streaming.states.state_caches import Accumulated


def elementwise(ctx: RuleContext) -> list[AxisInfo]:
    """Broadcast inputs; an input without the stream must have size 1 along the stream axis."""
    terms = [range(0 if info is None else -_rank(ctx, index), 0) for index, info in enumerate(ctx.inputs)]
    return [mapped(ctx, terms, max(terms, key=len), "")]


def _rank(ctx: RuleContext, index: int) -> int:
    info = ctx.input(index)
    if info.shape is None:
        raise ctx.refuse(f"the rank of input {index} is unknown")
    return info.rank


def dropout(ctx: RuleContext) -> list[AxisInfo]:
    """A Dropout outside of training is the identity."""
    if ctx.optional(2) is not None:
        training = ctx.known(2)
        if training is None or training.any():
            raise ctx.refuse("it drops values at random (training_mode)")
    return [ctx.x()]


def matmul(ctx: RuleContext) -> list[AxisInfo]:
    """A MatMul with the frames as rows of one operand, or as matrices of both; a sum over frames is refused."""
    a, b = _rank(ctx, 0), _rank(ctx, 1)
    if a < 2:
        raise ctx.refuse("it sums over the frames of the stream")
    left, right = [*range(-a, -2), "row", "inner"], [*range(-b, -2), "inner", "column"][-max(b, 2) :]
    right = right if b > 1 else ["inner"]
    result = [*range(-max(a, b), -2), "row", *right[-1:]] if b > 1 else left[:-1]
    return [mapped(ctx, [left, right], result, "it sums over the frames of the stream")]


def gemm(ctx: RuleContext) -> list[AxisInfo]:
    ctx.x()
    left, right = ["row", "inner"], ["inner", "column"]
    terms = [left[::-1] if ctx.attribute("transA", 0) else left, right[::-1] if ctx.attribute("transB", 0) else right]
    result = ["row", "column"]
    added = [] if ctx.optional(2) is None else [result[2 - _rank(ctx, 2) :]]
    _rank(ctx, 1)
    return [mapped(ctx, [*terms, *added], result, "it sums over the frames of the stream")]


def einsum(ctx: RuleContext) -> list[AxisInfo]:
    """An Einsum whose stream label is in the output; operands without the stream must not have this label."""
    equation = ctx.attribute("equation", "")
    equation = (equation.decode() if isinstance(equation, bytes) else str(equation)).replace(" ", "")
    if "." in equation:
        raise ctx.refuse("its equation has an ellipsis")
    inputs, arrow, result = equation.partition("->")
    terms = inputs.split(",")
    if not arrow:
        result = "".join(sorted(label for label in set(inputs) - {","} if inputs.count(label) == 1))
    if [ctx.input(index).rank for index in range(len(ctx.inputs))] != list(map(len, terms)):
        raise ctx.refuse("the ranks of its inputs do not match its equation")
    return [
        mapped(ctx, terms, result, "it sums over label '{}' of its equation, which stands for the axis of the stream")
    ]


def cumulative_sum(ctx: RuleContext) -> list[AxisInfo]:
    """A CumSum; over time, the running sum is a state."""
    x, axis = ctx.x(), ctx.known(1)
    if axis is None:
        raise ctx.refuse("its axis must be constant")
    time = along(ctx, x)
    if int(axis.ravel()[0]) % x.rank != time:
        return [x.moved(time, x.sizes)]
    if ctx.attribute("reverse", 0):
        raise ctx.refuse("its attribute 'reverse' is set, so it sums from the end of the stream")
    if not x.is_plain:
        raise ctx.refuse("its input has left padding, or the time axis of its input is merged with other axes")
    ctx.require_opset(11)
    mask_early(ctx, x, 0)
    exclusive = bool(ctx.attribute("exclusive", 0))
    ctx.carry(Accumulated(ctx.node, x, 1, ctx.dtype(0), exclusive))
    return [x.moved(time, x.sizes)]


IDENTITIES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric")
"""Coordinate transformations that keep an axis unchanged if its scale is 1."""


def resize(ctx: RuleContext) -> list[AxisInfo]:
    """A Resize with scale 1 along the stream, or one that repeats frames."""
    x = ctx.input(0)
    time, mode = along(ctx, x), ctx.attribute("coordinate_transformation_mode", "half_pixel")
    ctx.require_opset(11)
    if mode not in IDENTITIES or ctx.attribute("antialias", 0):
        raise ctx.refuse(
            f"its result depends on the length of the stream, because its attribute 'mode' is {mode} "
            "or its attribute 'antialias' is set"
        )
    if ctx.attribute("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise ctx.refuse("its keep_aspect_ratio_policy must be 'stretch'")
    axes = [int(axis) % x.rank for axis in ctx.attribute("axes", range(x.rank))]
    shape = ctx.resized(x, axes)
    for index, axis in enumerate(axes):
        resized = _resized(ctx, x.sizes[axis], index, len(axes))
        if axis == time and resized != x.sizes[time]:
            x = _repeated(ctx, x, resized)
            shape[time] = x.sizes[time]
            continue
        if resized is not None and (resized.number is not None or resized == x.sizes[axis]):
            shape[axis] = resized
    if ctx.may_lack_frames(x):
        raise ctx.refuse(
            "it resizes delayed frames, so a chunk of its output may be empty; set a fixed chunk length (--step)"
        )
    return [x.moved(time, shape)]


REPEATS = {("asymmetric", "floor")} | {
    (coordinates, f"round_prefer_{side}")
    for coordinates in ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel")
    for side in ("floor", "ceil")
}
"""Pairs of coordinate transformation and rounding that repeat each frame if the scale is an integer."""


def _repeated(ctx: RuleContext, x: AxisInfo, resized: Size | None) -> AxisInfo:
    """A Resize that repeats each frame by an integer factor."""
    ratio = None if resized is None else resized.over(x.sizes[along(ctx, x)])
    times = None if ratio is None else ratio.number
    coordinates, rounding = (
        ctx.attribute(name, default)
        for name, default in (("coordinate_transformation_mode", "half_pixel"), ("nearest_mode", "round_prefer_floor"))
    )
    nearest = ctx.attribute("mode", "nearest") == "nearest" and (coordinates, rounding) in REPEATS
    if not nearest or not times:
        raise ctx.refuse(
            "along the time axis, it must only repeat frames; this needs mode 'nearest' and an integer scale"
        )
    x = settled(x, ctx.analysis.delay)
    if not x.is_plain or x.outer != ONE:
        raise ctx.refuse(
            "it repeats frames, but its input is padded, or the time axis of its input is merged with other axes"
        )
    return x.changed(every=x.every / times, late=x.late * times, dropped=x.dropped * times)


def _resized(ctx: RuleContext, dim: Size, index: int, count: int) -> Size | None:
    """The size of an axis after a Resize."""
    if ctx.optional(3) is not None:
        sizes = ctx.content(3)
        return None if sizes is None else sizes[index]
    scales = ctx.known(2)
    if scales is None or scales.size != count:
        return None
    if scales[index] % 1 == 0:
        return dim * size(int(scales[index]))
    return None if dim.number is None else size(int(np.floor(dim.number * scales[index])))


def not_channels(ctx: RuleContext) -> list[AxisInfo]:
    """Normalization with constant statistics per channel (axis 1)."""
    x = ctx.x()
    if ctx.attribute("training_mode", 0) or len([out for out in ctx.node.outputs if out.name]) > 1:
        raise ctx.refuse("it normalizes with statistics over time")
    if along(ctx, x) == 1:
        raise ctx.refuse("its parameters differ from frame to frame")
    scale = ctx.input(1)
    if scale.shape is None or scale.rank != 1:  # spatial=0, before opset 9
        raise ctx.refuse("it must have exactly one mean and one variance for each channel")
    return [x]


def other_axis(ctx: RuleContext) -> list[AxisInfo]:
    """An operator along one axis, which must not be the stream axis."""
    x, older = ctx.x(), ctx.opset < 13 and ctx.node.op_type != "LpNormalization"  # all axes from there on, as one
    axis = ctx.axis(1 if older else -1, x.rank)
    return _normalized(ctx, x, range(axis, x.rank if older else axis + 1))


def later_axes(ctx: RuleContext) -> list[AxisInfo]:
    """Normalization over an axis and all later ones."""
    x = ctx.x()
    infos = _normalized(ctx, x, range(ctx.axis(-1, x.rank), x.rank))
    for index, info in enumerate(ctx.inputs[1:], 1):  # scale and bias broadcast to the input
        if info is not None and (info.shape is None or info.rank > x.rank):
            raise ctx.refuse(f"the shape of input {index} does not match the shape of the first input")
        back = along(ctx, x) - x.rank
        if info is not None and info.rank >= -back and info.sizes[back] != ONE:
            raise ctx.refuse(f"input {index} has different values for each frame of the stream")
    if any(map(is_read, ctx.node.outputs[1:])):
        raise ctx.refuse("its outputs Mean and InvStdDev are used, but streaming supports only its first output")
    return infos + [AxisInfo((), None) for _ in ctx.node.outputs[1:]]


def only_batch(ctx: RuleContext) -> list[AxisInfo]:
    """An operator over all axes except the first, so the frames must be in the batch."""
    x = ctx.x()
    return _normalized(ctx, x, range(1, x.rank))


def _normalized(ctx: RuleContext, x: AxisInfo, axes: Sequence[int]) -> list[AxisInfo]:
    if along(ctx, x) in axes:
        raise ctx.refuse("it normalizes over time")
    return [x]


def reduce(ctx: RuleContext) -> list[AxisInfo]:
    x = ctx.x()
    until = 13 if ctx.node.op_type == "ReduceSum" else 18
    axes = ctx.integers(1, "axes", until)
    if not axes:
        if ctx.attribute("noop_with_empty_axes", 0):
            return [x]
        raise ctx.refuse("it reduces over all axes, including time")
    return _reduced(ctx, x, {axis % x.rank for axis in axes})


def arg_reduce(ctx: RuleContext) -> list[AxisInfo]:
    x = ctx.x()
    return _reduced(ctx, x, {ctx.axis(0, x.rank)})


def top(ctx: RuleContext) -> list[AxisInfo]:
    """A TopK along an axis other than the stream axis."""
    x, count = ctx.x(), ctx.content(1) if ctx.opset >= 10 else (size(int(ctx.attribute("k", 1))),)
    axis = ctx.axis(-1, x.rank)
    if axis == along(ctx, x):
        raise ctx.refuse("it selects frames by their values")
    kept = size(ctx.fresh(axis)) if count is None else count[0]
    return [x.moved(along(ctx, x), [kept if k == axis else dim for k, dim in enumerate(x.sizes)])] * 2


def one_hot(ctx: RuleContext) -> list[AxisInfo]:
    """A OneHot of each frame; its depth and its values must not depend on the length of the stream."""
    x, depth = ctx.x(), ctx.content(1)
    if any(info is not None and info.is_timed for info in ctx.inputs[1:]):
        raise ctx.refuse("its result depends on the length of the stream")
    axis = ctx.attribute("axis", -1) % (x.rank + 1)
    found = mapped(ctx, [range(x.rank)], [*range(axis), None, *range(axis, x.rank)], "")
    new = size(ctx.fresh(axis)) if depth is None else depth[0]
    return [found.moved(along(ctx, found), [new if k == axis else dim for k, dim in enumerate(found.sizes)])]


def _reduced(ctx: RuleContext, x: AxisInfo, axes: set[int]) -> list[AxisInfo]:
    keepdims = bool(ctx.attribute("keepdims", 1))
    if ctx.may_lack_frames(x) and x.axis not in axes:
        ctx.edit(keep_reduced, sorted(axes), keepdims)
    result = [None if axis in axes else axis for axis in range(x.rank) if keepdims or axis not in axes]
    return [mapped(ctx, [range(x.rank)], result, "it reduces over time")]


def quantize(ctx: RuleContext) -> list[AxisInfo]:
    """Quantization with one scale, or one per index of an axis other than the stream axis."""
    x, scale = ctx.x(), ctx.input(1)
    if scale.shape is None or (scale.rank and scale.sizes != (size(1),) and ctx.axis(1, x.rank) == along(ctx, x)):
        raise ctx.refuse("its scales differ from frame to frame")
    if scale.rank > 1:
        raise ctx.refuse("it uses blocked quantization")
    return [x]
