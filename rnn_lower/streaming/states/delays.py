"""Delayed values: frames that need later frames are held back for the next chunks.

If a value is `late` by L frames, it has m / every - L frames after chunks with m input frames in total. Windows of
`reach` frames with a stride of `stride` frames and `before` frames of left padding turn n frames into

    max(0, (n + before - reach) // stride + 1),

and the frames from `stride` times that number on are held back. This is correct for any chunk length, so delayed values
may be read by strided nodes, other windows and recurrent nodes; only the number of frames varies from chunk to chunk.

If all chunks have one length, so do delayed values: the first L frames are invalid, and the caller drops them. No state
may depend on invalid frames, so recurrent nodes keep their states until the first valid frame, and for sums, padding
and similar nodes the frames that precede the stream replace the invalid ones.
"""

from __future__ import annotations

from typing import Any

from rnn_lower.errors import UnsupportedError
from rnn_lower.ir.traits import ELEMENTWISE
from rnn_lower.streaming.axis_info import AxisInfo, RuleContext
from rnn_lower.streaming.states.delay_buffer import DelayBuffer
from rnn_lower.streaming.states.graph_editor import filled
from rnn_lower.streaming.states.node_edits import mask


def held(ctx: RuleContext, x: AxisInfo, reach: int, index: int = 0, **changes: Any) -> DelayBuffer:
    """A delay buffer for the last frames of an input. Raises UnsupportedError if it cannot be emitted."""
    ctx.require_opset(11, "delaying its frames")
    if not x.is_unmerged or x.lead != changes.get("lead", 0):
        raise ctx.refuse(
            "its frames are delayed, and in addition the frames are padded or the time axis is merged with other axes"
        )
    return DelayBuffer(ctx.node, x, reach, ctx.dtype(index), index=index, **changes)


def settled(x: AxisInfo, delay: bool) -> AxisInfo:
    """A value without the frames that depend on the future. Raises UnsupportedError unless `delay` allows for them."""
    if x.trail < 0 or (x.trail and not delay):
        raise UnsupportedError(
            x.blame
            or (
                f"its output is longer than the stream by {x.trail} frame{'s' * (x.trail != 1)}; pass "
                "--delay to delay the outputs"
            )
        )
    return x.changed(trail=0, cut=True) if x.trail else x


def settle(ctx: RuleContext, passes: bool) -> None:
    """`settle` the inputs, unless the operator works frame by frame and all inputs have the same trail.

    Only a Slice may have an input that is delayed, too, because it crops both ends.
    """
    hold_back_ends(ctx)
    timed = [info for info in ctx.inputs if info is not None and info.axis is not None]
    if ctx.node.op_type not in (*ELEMENTWISE, "Concat") and any(info.trail < 0 for info in timed):
        passes = False
    may_be_late = ctx.node.op_type == "Slice" or not any(info.late for info in timed)
    alike = len({info.trail for info in timed}) < 2 and may_be_late
    if not passes or not alike:
        ctx.inputs[:] = [None if info is None else settled(info, ctx.analysis.delay) for info in ctx.inputs]


def hold_back_ends(ctx: RuleContext) -> None:
    """Delay inputs whose last frames were cut off, if they meet an input that is delayed by as many frames."""
    late = {info.late for info in ctx.inputs if info is not None and info.late}
    for index, info in enumerate(ctx.inputs):
        if info is not None and info.trail < 0 and late == {-info.trail}:
            ctx.carry(held(ctx, info, 1 - info.trail, index, crop=0))
            ctx.inputs[index] = info.changed(late=-info.trail, trail=0)


def wait_for_each_other(ctx: RuleContext) -> None:
    """Hold back the earlier inputs of a node if its inputs have different delays."""
    timed = {index: info for index, info in enumerate(ctx.inputs) if info is not None and info.axis is not None}
    if ctx.node.op_type == "Gather" and len(timed) > 1:  # its indices are replaced by windows
        return
    late, cut = max((x.late for x in timed.values()), default=0), any(x.cut for x in timed.values())
    dropped = min((x.dropped for x in timed.values()), default=0)
    for index, info in timed.items():
        if info.late < late:
            if any(x.every != info.every for x in timed.values()):
                raise ctx.refuse("its inputs have different frame rates")
            ctx.carry(held(ctx, info, late - info.late + 1, index, crop=0))
        if (info.late, info.cut, info.dropped) != (late, cut, dropped):
            ctx.inputs[index] = info.changed(late=late, cut=cut, dropped=dropped)


def mask_early(ctx: RuleContext, x: AxisInfo, fill: Any) -> None:
    """Replace the meaningless first frames of a delayed value with the left padding."""
    if x.late and ctx.analysis.step is not None:
        ctx.edit(mask, x, filled((), fill, ctx.dtype(0)))


def cropped(ctx: RuleContext, x: AxisInfo, first: int, behind: int, gone: bool = True) -> AxisInfo:
    """A value without its first and last frames; the first ones include all left padding."""
    ctx.carry(held(ctx, x, first + behind + 1, crop=first, gone=gone, lead=x.lead))
    ahead = first - x.lead
    return x.changed(lead=0, late=x.late + ahead + behind, dropped=x.dropped + ahead)
