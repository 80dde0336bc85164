"""Values whose frames come late: they need later ones, so what is not ready is held back for the next chunks.

Of a value that is `late` by L frames, chunks that come to m frames have made m / every - L. Windows of `reach` frames
that are moved by `stride` frames and have `before` frames padded in front turn n frames into

    max(0, (n + before - reach) // stride + 1),

and the frames from `stride` times that number on are held back. That is right for any number of frames a chunk, so what
comes late may meet strides, other windows and recurrent nodes; only the number of frames is another each time.

Where chunks are of one length, they keep it: the first L frames mean nothing, and whoever runs the model drops them.
Nothing that remembers may take them for frames, so recurrent nodes hold their states until then, and sums, padding and
the like find in their place what stands in front of the stream.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import onnx_ir as ir

from rnn_lower.errors import UnsupportedError
from rnn_lower.streaming.axis_info import AxisInfo, RuleContext, along, with_lead
from rnn_lower.streaming.sizes import GROWS, ONE, Size, size


@dataclasses.dataclass(frozen=True)
class DelayBuffer:
    """Frames that are held back in front of a node until all of its window is there.

    place: which input of the node.  shape: of what is held back, which grows along `axis`.
    before, fill: how many frames it has before the first chunk, and what they are.
    crop: frames of the input are what is wanted, each being so many behind the first of its window; None where the node
    goes over the windows itself.  gone: whether the node did nothing but crop.  attributes: of the node that change.
    late: how late the frames of the input come.  lead: how many frames before the chunk it has in front.
    """

    node: ir.Node
    place: int
    shape: tuple[Size, ...]
    axis: int
    dtype: ir.DataType
    reach: int
    late: int
    stride: int = 1
    before: int = 0
    fill: Any = 0.0
    crop: int | None = None
    gone: bool = False
    lead: int = 0
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Masked:
    """An input whose first `late` frames mean nothing, which are to be `fill`."""

    node: ir.Node
    place: int
    axis: int
    late: int
    every: Fraction
    fill: Any
    dtype: ir.DataType


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The shape that a Reshape is to make, without -1, which stands for nothing where there are no frames."""

    node: ir.Node
    sizes: tuple[Size, ...]


@dataclasses.dataclass(frozen=True)
class Guessed:
    """A Reshape whose size at a place is 0 or -1, whatever it computes: no other is possible."""

    node: ir.Node
    place: int
    rank: int
    size: int


@dataclasses.dataclass(frozen=True)
class Reduced:
    """A node that reduces axes; onnxruntime (1.31) leaves them as they are where there is nothing in its input."""

    node: ir.Node
    axes: tuple[int, ...]
    keepdims: bool


@dataclasses.dataclass(frozen=True)
class Changed:
    """Attributes that a node has in place of its own."""

    node: ir.Node
    attributes: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Inputs of integers, or attributes before an opset, that a node has in place of its own; None: as it is.

    inputs: by place.  attributes: what they were called before the opset of `since`.
    """

    node: ir.Node
    inputs: Mapping[int, tuple[int, ...]]
    attributes: tuple[str, ...] = ()
    since: int = 0


@dataclasses.dataclass(frozen=True)
class Accumulated:
    """A sum over time, which goes on from the last chunk's; shape: of one frame of it."""

    node: ir.Node
    shape: tuple[Size, ...]
    axis: int
    dtype: ir.DataType
    exclusive: bool


def held(ctx: RuleContext, x: AxisInfo, reach: int, place: int = 0, **changes: Any) -> DelayBuffer:
    """What a node holds back of an input. Raises UnsupportedError where that cannot be written."""
    axis = along(ctx, x)
    if ctx.opset < 11:
        raise ctx.refuse(f"its frames are delayed, which needs opset 11; the model is at opset {ctx.opset}")
    if (x.outer, x.sizes[axis]) != (ONE, with_lead(x.frames, x.lead)) or x.lead != changes.get("lead", 0):
        raise ctx.refuse("its frames are delayed, and merged with other axes or padded")
    shape = (*x.sizes[:axis], size(GROWS), *x.sizes[axis + 1 :])
    return DelayBuffer(ctx.node, place, shape, axis, ctx.dtype(place), reach, x.late, **changes)


def later(x: AxisInfo, late: int, **changes: Any) -> AxisInfo:
    """The same value, its frames coming later."""
    assert x.axis is not None
    found = dataclasses.replace(x, late=late, content=None, **changes)
    return found.moved(x.axis, [*x.sizes[: x.axis], found.frames, *x.sizes[x.axis + 1 :]])


def settled(x: AxisInfo, delay: bool) -> AxisInfo:
    """A value without its trail: that is what comes when the stream goes on. Raises UnsupportedError unless `delay`."""
    if x.trail and not delay:
        raise UnsupportedError(x.blame)
    return dataclasses.replace(x, trail=0, cut=True) if x.trail else x


def settle(ctx: RuleContext, passes: bool) -> None:
    """Settle the inputs unless the operator passes each frame on, and all inputs have the same trail."""
    timed = [info for info in ctx.inputs if info is not None and info.axis is not None]
    alike = len({info.trail for info in timed}) < 2 and not any(info.late for info in timed)
    if not passes or not alike:
        ctx.inputs[:] = [None if info is None else settled(info, ctx.delay) for info in ctx.inputs]


def wait_for_each_other(ctx: RuleContext) -> None:
    """Where inputs of a node come late by different numbers of frames, the earlier ones are held back."""
    timed = {place: info for place, info in enumerate(ctx.inputs) if info is not None and info.axis is not None}
    late, cut = max((one.late for one in timed.values()), default=0), any(one.cut for one in timed.values())
    dropped = min((one.dropped for one in timed.values()), default=0)
    for place, info in timed.items():
        if info.late < late:
            if any(one.every != info.every for one in timed.values()):
                raise ctx.refuse("its inputs have different rates over time")
            ctx.carry(held(ctx, info, late - info.late + 1, place, crop=0))
        if (info.late, info.cut, info.dropped) != (late, cut, dropped):
            ctx.inputs[place] = later(info, late, cut=cut, dropped=dropped)


def cropped(ctx: RuleContext, x: AxisInfo, first: int, behind: int, gone: bool = True) -> AxisInfo:
    """The frames of a value but for the first and the last ones."""
    ctx.carry(held(ctx, x, first + behind + 1, crop=first, gone=gone))
    return later(x, x.late + first + behind, dropped=x.dropped + first)
