"""The rules of RNN, GRU and LSTM, over the stream or over another axis, and of If."""

from __future__ import annotations

import functools

from rnn_lower.lowering.node import RecurrentNode, read_node
from rnn_lower.shapes.sizes import ONE, size
from rnn_lower.streaming.axis_info import AxisInfo, RuleContext, along
from rnn_lower.streaming.delays import held
from rnn_lower.streaming.recurrent_states import Recurrence, tell_length


def recurrent(ctx: RuleContext) -> list[AxisInfo]:
    read, x = read_node(ctx.node, ctx.opset, ctx.scope.path, ctx.analysis.shape_info), ctx.input(0)
    time, batch = (1, 0) if read.layout else (0, 1)
    for index in (1, 2, 3, 7):
        if (info := ctx.optional(index)) is not None and info.is_timed:
            raise ctx.refuse("its weights depend on the stream")
    if along(ctx, x) == time:
        infos = _over_time(ctx, read, x, batch)
    elif x.axis == batch:
        infos = _over_another_axis(ctx, read, x, time)
    else:
        raise ctx.refuse("it sums over frames of the stream, which are its features")
    return infos[: len(ctx.node.outputs)]


def _over_time(ctx: RuleContext, read: RecurrentNode, x: AxisInfo, batch: int) -> list[AxisInfo]:
    if read.direction != "forward":
        raise ctx.refuse(f"it is {read.direction} over time, so its first result needs the whole stream")
    if not x.is_plain:
        raise ctx.refuse("its sequence is the stream merged with other axes")
    states = ctx.inputs[4:7]
    if any(state is not None and (state.is_timed or state.last) for state in states):
        raise ctx.refuse("its lengths or its initial state depend on the stream")
    if len(states) > 0 and states[0] is not None and x.every != 1:
        raise ctx.refuse("its sequence_lens count frames at another rate than the input's")
    rows, units = x.sizes[batch], size(read.hidden_size)
    if x.late and ctx.analysis.step is not None:
        if len(states) > 0 and states[0] is not None:
            raise ctx.refuse("its frames are delayed, but its sequence_lens count from the first chunk")
        if more := -x.late % max(1, int(ctx.analysis.step / x.every)):  # a state is held for whole chunks
            ctx.carry(held(ctx, x, more + 1, crop=0))
            x = x.changed(late=x.late + more, cut=True)
    ctx.carry(Recurrence(read, rows, x.every, x.late))
    y = (rows, x.frames, ONE, units) if read.layout else (x.frames, ONE, rows, units)
    state = x.ended([rows, ONE, units] if read.layout else [ONE, rows, units])
    return [x.moved(1 if read.layout else 0, y), state, state]


def _over_another_axis(ctx: RuleContext, read: RecurrentNode, x: AxisInfo, time: int) -> list[AxisInfo]:
    """Each frame is a sequence of its own, one row of the batch."""
    axes = {4: 0, 5: 0 if read.layout else 1, 6: 0 if read.layout else 1}
    for index, axis in axes.items():
        info = ctx.optional(index)
        if info is not None and (info.axis != axis or info.sizes[axis] != x.sizes[along(ctx, x)]):
            raise ctx.refuse(f"its {'lengths' if index == 4 else 'initial states'} differ from frame to frame")
    directions, units = size(read.num_directions), size(read.hidden_size)
    steps, rows = x.sizes[time], x.sizes[along(ctx, x)]
    if steps.number is not None:
        ctx.carry(functools.partial(tell_length, read=read, steps=steps.number))
    y = (rows, steps, directions, units) if read.layout else (steps, directions, rows, units)
    state = (rows, directions, units) if read.layout else (directions, rows, units)
    final = x.moved(0 if read.layout else 1, state)
    return [x.moved(0 if read.layout else 2, y), final, final]


def choice(ctx: RuleContext) -> list[AxisInfo]:
    """One branch or the other, the same for the whole stream; both must give the stream in the same way."""
    condition = ctx.input(0)
    if condition.is_timed or condition.last:
        raise ctx.refuse("its condition depends on the stream")
    names = ["then_branch", "else_branch"]
    if condition.content is not None and len(condition.content) == 1 and condition.content[0].number is not None:
        names = names[:1] if condition.content[0].number else names[1:]  # the other one never runs
        return ctx.analysis.branch(ctx.scope, ctx.node.attributes[names[0]].as_graph())
    then, otherwise = (ctx.analysis.branch(ctx.scope, ctx.node.attributes[name].as_graph()) for name in names)
    return [_agreed(ctx, a, b) for a, b in zip(then, otherwise, strict=True)]


def _agreed(ctx: RuleContext, a: AxisInfo, b: AxisInfo) -> AxisInfo:
    if not a.is_timed and not b.is_timed:
        shape = a.shape if a.shape == b.shape else None
        return AxisInfo(shape, last=a.last or b.last, cut=a.cut or b.cut)
    if a != b:
        raise ctx.refuse(
            "its branches return the stream in different forms (sizes, axis or padding); make the condition constant"
            " (--set INPUT=VALUE, or --dim NAME=SIZE)"
        )
    return a
