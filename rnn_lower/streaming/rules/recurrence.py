"""Rules for RNN, GRU and LSTM, over the stream or over another axis, for Scan and for If."""

from __future__ import annotations

import functools

from rnn_lower.ir.schemas import DEFAULT_DOMAINS
from rnn_lower.ir.traits import RANDOM
from rnn_lower.lowering.node import RecurrentNode, read_node
from rnn_lower.options import OP_TYPES
from rnn_lower.shapes.sizes import ONE, size
from rnn_lower.streaming.axis_info import AxisInfo, RuleContext, along
from rnn_lower.streaming.rules.reshaping import equal_row, same_frames
from rnn_lower.streaming.states.delays import held
from rnn_lower.streaming.states.node_edits import repeat_row
from rnn_lower.streaming.states.recurrent_states import Recurrence, tell_length
from rnn_lower.streaming.states.state_caches import Steps


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
        raise ctx.refuse("it sums over the frames of the stream, because its feature axis is the time axis")
    return infos[: len(ctx.node.outputs)]


def _over_time(ctx: RuleContext, read: RecurrentNode, x: AxisInfo, batch: int) -> list[AxisInfo]:
    if read.direction != "forward":
        raise ctx.refuse(f"its direction is {read.direction}, so its first result depends on the whole stream")
    if not x.is_plain:
        raise ctx.refuse("its sequence axis consists of the time axis of the stream and other axes")
    states = ctx.inputs[4:7]
    if any(state is not None and (state.is_timed or state.last or state.opening) for state in states):
        raise ctx.refuse("its sequence_lens or its initial state depends on the stream")
    if len(states) > 0 and states[0] is not None and x.every != 1:
        raise ctx.refuse("its sequence_lens was computed at a frame rate that differs from the frame rate of its input")
    rows, units = x.sizes[batch], size(read.hidden_size)
    if x.late and ctx.analysis.step is not None:
        if len(states) > 0 and states[0] is not None:
            raise ctx.refuse("its frames are delayed, but the lengths in its sequence_lens do not include the delay")
        if more := -x.late % max(1, int(ctx.analysis.step / x.every)):  # a state is kept for whole chunks
            ctx.carry(held(ctx, x, more + 1, crop=0))
            x = x.changed(late=x.late + more, cut=True)
    ctx.carry(Recurrence(read, rows, x.every, x.late))
    y = (rows, x.frames, ONE, units) if read.layout else (x.frames, ONE, rows, units)
    state = x.ended([rows, ONE, units] if read.layout else [ONE, rows, units])
    return [x.moved(1 if read.layout else 0, y), state, state]


def _over_another_axis(ctx: RuleContext, read: RecurrentNode, x: AxisInfo, time: int) -> list[AxisInfo]:
    """A recurrent node whose batch contains the frames: each frame is a separate sequence."""
    directions, units = size(read.num_directions), size(read.hidden_size)
    batch, steps, rows = along(ctx, x), x.sizes[time], x.sizes[along(ctx, x)]
    for index, axis in {4: 0, 5: batch, 6: batch}.items():
        info = ctx.optional(index)
        if info is None or (info.axis == axis and info.sizes[axis] == rows):
            continue
        row = None if info.is_timed else equal_row(ctx, index, axis, rows)
        if row is None:
            raise ctx.refuse(f"its {'sequence_lens' if index == 4 else 'initial states'} differ from frame to frame")
        ctx.edit(repeat_row, index, row, batch)
    if steps.number is not None:
        ctx.carry(functools.partial(tell_length, read=read, steps=steps.number))
    y = (rows, steps, directions, units) if read.layout else (steps, directions, rows, units)
    state = (rows, directions, units) if read.layout else (directions, rows, units)
    final = x.moved(0 if read.layout else 1, state)
    return [x.moved(0 if read.layout else 2, y), final, final]


def scan(ctx: RuleContext) -> list[AxisInfo]:
    """A Scan over the frames with any body: its final states start the next chunk."""
    count, body = len(ctx.inputs) - ctx.attribute("num_scan_inputs", 0), ctx.attribute("body")
    states, sequences = [ctx.input(k) for k in range(count)], [ctx.input(k) for k in range(count, len(ctx.inputs))]
    x, axes = same_frames(ctx, sequences), ctx.attribute("scan_input_axes", [0] * len(sequences))
    ctx.require_opset(9)
    if any(ctx.attribute("scan_input_directions", ())):
        raise ctx.refuse("it runs backward from the end of the stream")
    if any(info.axis != axis % info.rank for info, axis in zip(sequences, axes, strict=True)):
        raise ctx.refuse("it scans its inputs along an axis other than the axis of the stream")
    if any(info.is_timed or info.last for info in (*states, *ctx.analysis.captured(ctx.node))):
        raise ctx.refuse("its body uses initial states or other values that depend on the stream")
    if not x.is_plain or x.outer != ONE or x.late:
        raise ctx.refuse("its input is padded or delayed, or the time axis of its input is merged with other axes")
    for node in body.all_nodes():
        if node.op_type in (*OP_TYPES, *RANDOM) or node.domain not in DEFAULT_DOMAINS:
            raise ctx.refuse(f"its body contains {node.op_type}, which rnn-lower stream does not support")
    free = any(dim.number is None for info in sequences for k, dim in enumerate(info.sizes) if k != info.axis)
    for info, value in zip(states, body.outputs, strict=False):
        after = ctx.analysis.shape_info.shape(value) or (None,) * info.rank
        grows = (dim == ONE and n != 1 and (free or n is not None) for dim, n in zip(info.sizes, after, strict=False))
        if len(after) != info.rank or any(grows):  # the state would be broadcast to the rows of a sequence
            raise ctx.refuse("the shape of a state may change from step to step")
    shapes, dtypes = tuple(info.sizes for info in states), tuple(ctx.dtype(k) for k in range(count))
    ctx.carry(Steps(ctx.node, shapes, dtypes))
    results = [info.ended(info.sizes) for info in states]
    backwards = ctx.attribute("scan_output_directions", ())
    for index, axis in enumerate(ctx.attribute("scan_output_axes", [0] * (len(ctx.node.outputs) - count))):
        inferred = ctx.analysis.shape_info.shape(ctx.node.outputs[count + index])
        step = ctx.analysis.shape_info.shape(body.outputs[count + index])
        if inferred is None and step is not None:
            inferred = (*step, None)
        if inferred is None or any(backwards):
            raise ctx.refuse("the rank of its output is unknown" if inferred is None else "it reverses its output")
        shape, time = ctx.sizes(len(inferred), count + index), axis % len(inferred)
        results.append(x.moved(time, [*shape[:time], x.frames, *shape[time + 1 :]]))
    return results


def choice(ctx: RuleContext) -> list[AxisInfo]:
    """An If with the same condition for the whole stream; both branches must treat the stream alike."""
    condition = ctx.input(0)
    if condition.is_timed or condition.last:
        raise ctx.refuse("its condition depends on the stream")
    names = ["then_branch", "else_branch"]
    if condition.content is not None and len(condition.content) == 1 and condition.content[0].number is not None:
        names = names[:1] if condition.content[0].number else names[1:]  # the other branch never runs
        return ctx.analysis.branch(ctx.scope, ctx.node.attributes[names[0]].as_graph())
    then, otherwise = (ctx.analysis.branch(ctx.scope, ctx.node.attributes[name].as_graph()) for name in names)
    return [_agreed(ctx, a, b) for a, b in zip(then, otherwise, strict=True)]


def _agreed(ctx: RuleContext, a: AxisInfo, b: AxisInfo) -> AxisInfo:
    if not a.is_timed and not b.is_timed:
        shape = a.shape if a.shape == b.shape else None
        return AxisInfo(shape, last=a.last or b.last, cut=a.cut or b.cut)
    if a != b:
        raise ctx.refuse(
            "its branches return frames with different sizes, axes or padding; make the condition "
            "constant (--set INPUT=VALUE, or --dim NAME=SIZE)"
        )
    return a
