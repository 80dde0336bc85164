"""Rules for operators over several frames (convolution, pooling, padding), with the frames they look back at as state.

A window of `reach` frames with a stride of `stride` frames needs between reach - stride and reach - 1 frames of left
padding: then a chunk of a multiple of `stride` frames produces all outputs that depend on it and none that depend on
later frames. With less left padding, outputs are delayed (`late`); right padding never occurs in a chunk.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from rnn_lower.builder.names import Names
from rnn_lower.errors import UnsupportedError
from rnn_lower.ir.walk import used_names
from rnn_lower.shapes.sizes import ONE, Size
from rnn_lower.streaming.axis_info import AxisInfo, RuleContext, along
from rnn_lower.streaming.rules import reshaping
from rnn_lower.streaming.states.delay_buffer import DelayBuffer
from rnn_lower.streaming.states.delays import held, mask_early, settled
from rnn_lower.streaming.states.node_edits import change_attributes, never_empty, replace_arguments
from rnn_lower.streaming.states.state_caches import Begun, Cache, Joined, Overlap


class PaddedError(UnsupportedError):
    """A node crops frames, which a Slice must do instead. split: moves the cropping to a Slice."""

    def __init__(self, node: ir.Node, split: Callable[..., None], *arguments: Any) -> None:
        super().__init__(f"{node.op_type} '{node.name}' crops frames")
        self._name, self._split, self._arguments = str(node.outputs[0].name), split, arguments

    def split(self, model: ir.Model) -> None:
        node = next(node for node in model.graph.all_nodes() if node.outputs[0].name == self._name)
        self._split(node, Names(used_names(model)), *self._arguments)


def _constants(name: str, names: Names, *lists: Sequence[int]) -> list[ir.Node]:
    """A Constant node for each list of integers; their outputs are called after the value `name`."""
    outputs = [ir.Value(name=names.unique(f"{name}/cut_{k}")) for k in range(len(lists))]
    tensors = [ir.tensor(np.array(each, np.int64)) for each in lists]
    pairs = zip(tensors, outputs, strict=True)
    return [ir.node("Constant", [], {"value": tensor}, outputs=[output]) for tensor, output in pairs]


def _cut_before(node: ir.Node, names: Names, axis: int, pads: Sequence[int]) -> None:
    """Move the cropping of a Pad to a Slice before it."""
    x, name, behind = node.inputs[0], str(node.outputs[0].name), axis + len(pads) // 2
    left = [max(n, 0) if k in (axis, behind) else n for k, n in enumerate(pads)]
    numbers = _constants(name, names, [max(-pads[axis], 0)], [min(pads[behind], 0) or 2**63 - 1], [axis], left)
    ends = [number.outputs[0] for number in numbers]
    cut = ir.node(
        "Slice", [x, *ends[:3]], name=f"{node.name}/cut", outputs=[ir.Value(name=names.unique(f"{name}/rest"))]
    )
    node.replace_input_with(0, cut.outputs[0])
    node.replace_input_with(1, ends[3])
    if len(node.inputs) > 3:
        node.replace_input_with(3, None)
    assert node.graph is not None
    node.graph.insert_before(node, [*numbers, cut])


def _cut_behind(node: ir.Node, names: Names, axis: int) -> None:
    """Move the cropping of a ConvTranspose to a Slice after it."""
    name = str(node.outputs[0].name)
    pads = list(node.attributes["pads"].as_ints())
    index, count = axis - 2, len(pads) // 2
    ends = pads[index], -pads[index + count] or 2**63 - 1, axis
    pads[index] = pads[index + count] = 0
    node.attributes["pads"] = ir.AttrInt64s("pads", pads)
    output, whole = node.outputs[0], ir.Value(name=names.unique(f"{name}/whole"), type=node.outputs[0].type)
    numbers = _constants(name, names, *([n] for n in ends))
    cut = ir.node("Slice", [whole, *(number.outputs[0] for number in numbers)], name=f"{node.name}/cut")
    output.replace_all_uses_with(cut.outputs[0], replace_graph_outputs=True)
    cut.outputs[0].name, output.name, cut.outputs[0].type = name, whole.name, output.type
    cut.replace_input_with(0, output)
    assert node.graph is not None
    node.graph.insert_after(node, [*numbers, cut])


@dataclasses.dataclass(frozen=True)
class _Window:
    """The window of an operator along one axis."""

    reach: int
    stride: int
    before: int
    behind: int


def convolution(ctx: RuleContext) -> list[AxisInfo]:
    return _over_batch(ctx) or _windowed(ctx, ctx.x(), 0.0)


def _over_batch(ctx: RuleContext) -> list[AxisInfo] | None:
    """The output of a convolution with the frames in the batch; None if its windows cover frames."""
    x = ctx.x()
    if along(ctx, x) == 1:
        raise ctx.refuse("it sums over the frames of the stream, because its channel axis is the time axis")
    return None if x.axis else [x.moved(0, ctx.resized(x, range(1, x.rank)))]


def pooling(ctx: RuleContext) -> list[AxisInfo]:
    x = ctx.x()
    if along(ctx, x) < 2:
        return [x.moved(along(ctx, x), ctx.resized(x, range(2, x.rank)))]
    if len(ctx.node.outputs) > 1:
        raise ctx.refuse("it also returns the positions of the maxima in the whole input")
    if (
        ctx.node.op_type == "AveragePool"
        and not ctx.attribute("count_include_pad", 0)
        and _window(ctx, x, along(ctx, x)).before
    ):
        raise ctx.refuse("its first output frames are averages of fewer values, because count_include_pad is 0")
    return _windowed(ctx, x, -np.inf if ctx.node.op_type == "MaxPool" else 0.0)


def global_pooling(ctx: RuleContext) -> list[AxisInfo]:
    rank = ctx.x().rank
    return [reshaping.mapped(ctx, [range(rank)], [0, 1, *[None] * (rank - 2)], "it reduces over time")]


def transposed_convolution(ctx: RuleContext) -> list[AxisInfo]:
    """A ConvTranspose; windows longer than the stride overlap the next frames."""
    if (infos := _over_batch(ctx)) is not None:
        return infos
    x = settled(ctx.x(), ctx.analysis.delay)
    window, axis = _window(ctx, x, along(ctx, x)), along(ctx, x)
    if ctx.attribute("output_shape"):
        raise ctx.refuse("its padding along the time axis depends on the length of the stream (output_shape)")
    shape = ctx.resized(x, range(1, x.rank))
    shape[axis] = x.sizes[axis]
    if window == _Window(1, 1, 0, 0) and not ctx.may_lack_frames(x):
        return [x.moved(axis, shape)]
    extra = ctx.attribute("output_padding", [0] * (x.rank - 2))[axis - 2]
    if window.stride > 1 or extra or ctx.may_lack_frames(x):
        return [_overlapping(ctx, x, window, extra, shape)]
    if not x.is_unmerged or (x.late and x.lead):
        raise ctx.refuse("its input is delayed and padded, or its time axis is merged with other axes")
    if x.late and window.before:
        raise PaddedError(ctx.node, _cut_behind, axis)
    before, trail = window.reach - 1, window.reach - 1 - window.behind
    if trail < 0:
        raise ctx.refuse("it removes frames from the stream")
    attributes = _without_padding(ctx, x, axis)
    attributes["pads"][axis - 2] = attributes["pads"][axis - 2 + x.rank - 2] = before
    if window.before == before and before <= x.lead:  # the lead contains these frames
        ctx.edit(change_attributes, attributes)
        lead = x.lead - before
    elif not window.before and not x.lead:
        mask_early(ctx, x, 0)
        ctx.carry(Cache(ctx.node, x, before, ctx.dtype(0), attributes=attributes))
        lead = 0
    else:
        if window.before > x.lead:
            raise ctx.refuse(
                f"it needs {window.before} frame{'s' * (window.before != 1)} from the future, but its "
                f"input has only {x.lead} frame{'s' * (x.lead != 1)} of left padding"
            )
        raise ctx.refuse(
            f"its input has left padding, but the node removes only {window.before} "
            f"frame{'s' * (window.before != 1)} at the start of the stream; the length of the padding "
            f"and the number of removed frames must each be at least {before}"
        )
    return [x.changed(shape, lead=lead, trail=trail, blame=_beyond(ctx, trail))]


def _beyond(ctx: RuleContext, frames: int) -> str:
    text = (
        f"it outputs {frames} frame{'s' * (frames != 1)} beyond the end of the stream; crop the output, or delay the"
        " outputs (--delay)"
    )
    return str(ctx.refuse(text))


def _overlapping(ctx: RuleContext, x: AxisInfo, window: _Window, extra: int, shape: list[Size]) -> AxisInfo:
    """A ConvTranspose whose outputs overlap; the part beyond the chunk becomes a state."""
    axis, rest = along(ctx, x), window.reach + extra - window.stride
    if not x.is_plain or x.outer != ONE:
        raise ctx.refuse("its input is padded, or its time axis is merged with other axes")
    if rest < 0:
        raise ctx.refuse("it leaves gaps between its output frames")
    if window.before or window.behind:
        raise PaddedError(ctx.node, _cut_behind, axis)
    mask_early(ctx, x, 0)
    info = x.changed(
        shape, every=x.every / window.stride, late=x.late * window.stride, dropped=x.dropped * window.stride,
        trail=rest, blame=_beyond(ctx, rest) if rest else x.blame,
    )  # fmt: skip
    if rest:
        ctx.carry(Overlap(ctx.node, info, rest, ctx.dtype(0)))
    if ctx.may_lack_frames(x):
        ctx.require_opset(11)
        ctx.edit(never_empty, axis, x.rank, window.stride)
    return info


def _window(ctx: RuleContext, x: AxisInfo, axis: int) -> _Window:
    index, count = axis - 2, x.rank - 2
    kernel = ctx.attribute("kernel_shape")
    if kernel is None:
        weights = ctx.input(1)
        if weights.shape is None or weights.sizes[index + 2].number is None:
            raise ctx.refuse("the size of its kernel is unknown")
        kernel = [dim.number for dim in weights.sizes[2:]]
    if ctx.attribute("ceil_mode", 0):
        raise ctx.refuse("it rounds up the number of output frames (ceil_mode)")
    auto = ctx.attribute("auto_pad", "NOTSET") or "NOTSET"
    pads = ctx.attribute("pads", [0] * 2 * count) if auto == "NOTSET" else [0] * 2 * count
    reach = (kernel[index] - 1) * ctx.attribute("dilations", [1] * count)[index] + 1
    stride = ctx.attribute("strides", [1] * count)[index]
    if auto in ("SAME_UPPER", "SAME_LOWER") and "Pool" in ctx.node.op_type and reach > kernel[index]:
        # onnxruntime pads dilated pools as if they were not dilated, in contrast to ONNX.
        raise ctx.refuse(f"runtimes disagree on the padding of a pool with dilations and auto_pad {auto}; set its pads")
    if auto in ("SAME_UPPER", "SAME_LOWER") and stride == 1 and count == 1:
        less = (reach - 1) // 2
        more = reach - 1 - less
        return _Window(reach, 1, *((less, more) if auto == "SAME_UPPER" else (more, less)))
    if auto not in ("NOTSET", "VALID") and (reach, stride) != (1, 1):
        raise ctx.refuse(f"its padding along the time axis depends on the length of the stream (auto_pad {auto})")
    return _Window(reach, stride, pads[index], pads[index + count])


def _windowed(ctx: RuleContext, x: AxisInfo, fill: Any) -> list[AxisInfo]:
    window, axis = _window(ctx, x, along(ctx, x)), along(ctx, x)
    if x.lead and window.before:
        raise ctx.refuse("it pads a stream that is already padded")
    if not x.is_unmerged:
        raise ctx.refuse("its windows extend over axes that are merged with the time axis")
    before, lead = x.lead + window.before, 0
    if before > window.reach - 1:
        lead = before - (window.reach - 1)
        if window.stride > 1:
            raise ctx.refuse("it adds more frames of padding before the stream than its window contains")
    late = (x.late + max(0, window.reach - 1 - before)) // window.stride
    if x.trail and (late or window.stride > 1):
        x = settled(x, ctx.analysis.delay)
    behind = window.behind + x.trail
    made_up = window.behind if x.late else (before + behind - window.reach) // window.stride + 1 + late - lead
    trail, blame = 0, x.blame
    if made_up > 0 and not late and not x.late and fill == 0:
        trail, made_up = made_up, 0
    if (made_up > 0 and not ctx.analysis.delay) or (trail and window.behind):
        error = ctx.refuse(
            f"it needs {window.behind} future frame{'s' * (window.behind != 1)}, because it has padding of "
            f"{window.before} before and {window.behind} after the stream; change the padding to "
            f"{window.before + window.behind} before and 0 after the stream, or pass --delay to delay the outputs"
        )
        if not trail:
            raise error
        blame = str(error)
    if window.before:
        mask_early(ctx, x, fill)
    if late or x.late:
        ctx.carry(_held_back(ctx, x, window, fill))
    elif window.before:  # the cache before the input replaces the padding
        attributes = _without_padding(ctx, x, axis)
        ctx.carry(Cache(ctx.node, x, window.before, ctx.dtype(0), fill, attributes=attributes))
    elif window.behind:
        ctx.edit(change_attributes, _without_padding(ctx, x, axis))
    channels = () if "Pool" in ctx.node.op_type else (1,)
    return [x.changed(
        ctx.resized(x, [*channels, *range(2, x.rank)]), every=x.every * window.stride, lead=lead, trail=trail,
        blame=blame, late=late, cut=x.cut or made_up > 0, dropped=x.dropped // window.stride,
    )]  # fmt: skip


def _held_back(ctx: RuleContext, x: AxisInfo, window: _Window, fill: Any) -> DelayBuffer:
    if window.stride > window.reach:
        raise ctx.refuse("its input is delayed, so the node must not skip frames of this input")
    attributes = _without_padding(ctx, x, along(ctx, x))
    return held(
        ctx, x, window.reach, stride=window.stride, before=window.before, fill=fill, attributes=attributes, lead=x.lead
    )  # fmt: skip


def _without_padding(ctx: RuleContext, x: AxisInfo, axis: int) -> dict[str, Any]:
    """The attributes of the node without padding along the stream."""
    count, auto = x.rank - 2, ctx.attribute("auto_pad", "NOTSET")
    pads = list(ctx.attribute("pads", None) or [0] * 2 * count) if auto == "NOTSET" else [0] * 2 * count
    pads[axis - 2] = pads[axis - 2 + count] = 0
    return {"pads": pads} | ({} if auto == "NOTSET" else {"auto_pad": "NOTSET"})


def pad(ctx: RuleContext) -> list[AxisInfo]:
    """A Pad; padding before the stream becomes the initial state."""
    x, mode = ctx.x(), ctx.attribute("mode", "constant")
    axis, pads = along(ctx, x), ctx.integers(1, "pads", 11)
    if pads is None:
        pads = [int(number) for number in ctx.attribute("paddings", ())]  # its name at opset 1
    if ctx.optional(3) is not None:
        axes = ctx.known(3)
        if axes is None:
            raise ctx.refuse("its axes must be constant")
        full = [0] * 2 * x.rank
        for position, padded_axis in enumerate(axes):
            full[padded_axis % x.rank], full[padded_axis % x.rank + x.rank] = pads[position], pads[position + len(axes)]
        pads = full
    shape = ctx.resized(x, [k for k in range(x.rank) if pads[k] or pads[k + x.rank]])
    before, behind = pads[axis], pads[axis + x.rank]
    blame, end = x.blame, max(0, -(x.trail + behind))
    if behind > 0:
        text = (
            f"it needs {behind} future frame{'s' * (behind != 1)}, because it adds as many frames of "
            "padding after the end of the stream"
        )
        blame = str(ctx.refuse(f"{text}; delay the outputs (--delay)"))
    if before < 0 and ctx.opset >= 11 and mode == "constant":
        raise PaddedError(ctx.node, _cut_before, axis, pads)
    if before < 0 or end > x.lead + before:
        raise ctx.refuse("it removes frames from the stream")
    if not before and not behind:
        shape[axis] = x.sizes[axis]
        return [x.moved(axis, shape)]
    value = np.zeros(()) if ctx.optional(2) is None else ctx.known(2)
    fill = value.ravel()[0] if value is not None and value.size else 0
    edge = mode == "edge" and not (behind or x.late or x.trail)
    if mode != "constant" and not edge:
        raise ctx.refuse(f"its padding values depend on the stream (mode {mode})")
    if (x.lead and (before or end)) or not x.is_unmerged:
        raise ctx.refuse("it pads an axis that is merged with the time axis, or its input already has left padding")
    ctx.require_opset(11)
    if ctx.optional(3) is not None:
        raise ctx.refuse("its input 'axes' is not supported; it must have 'pads' for every axis")
    if value is None:
        raise ctx.refuse("its padding value must be constant")
    remaining_pads = tuple(0 if position in (axis, axis + x.rank) else number for position, number in enumerate(pads))
    if before and not behind and _fills_up(x, before):
        return [_begun(ctx, x.changed(shape), before, ctx.selected_dtype(0), fill=fill, pads=remaining_pads)]
    info = x.changed(shape, lead=x.lead + before - end, trail=max(0, x.trail + behind), blame=blame)
    if before:
        mask_early(ctx, x, fill)
        ctx.carry(
            Cache(ctx.node, info, before, ctx.dtype(0), fill, after=True, pads=remaining_pads, crop=end, edge=edge)
        )
    else:
        ctx.edit(replace_arguments, {1: remaining_pads})
    return [info]


def joined_in_front(ctx: RuleContext) -> list[AxisInfo] | None:
    """A Concat that puts frames before the stream, which become the initial state; else None."""
    front, x = ctx.inputs[0], ctx.inputs[1] if len(ctx.inputs) == 2 else None
    value = ctx.node.inputs[0]
    if front is None or value is None or front.is_timed or front.last or x is None or x.axis != ctx.axis(1, x.rank):
        return None
    length, crop = front.sizes[x.axis].number, max(0, -x.trail)
    if length and _fills_up(x, length) and (length == 1 or not front.opening):
        return [_begun(ctx, x, length, ctx.selected_dtype(1), front=value, opening=front.opening)]
    if length is None or x.lead or not x.is_unmerged or x.late:
        raise ctx.refuse(
            "it prepends frames to an input that is padded or delayed, or whose time axis is merged with other axes"
        )
    if crop > length:
        raise ctx.refuse("it prepends fewer frames than an earlier node removes at the end of the stream")
    ctx.carry(Joined(ctx.node, x, length, ctx.dtype(1), value, crop, front.opening))
    return [x.changed(lead=length - crop, trail=max(0, x.trail))]


def _fills_up(x: AxisInfo, length: int) -> bool:
    """Whether this many frames in front restore the length of the stream, also over the whole sequence."""
    return length == x.late and not (x.lead or x.trail or x.cut)


def _begun(ctx: RuleContext, x: AxisInfo, length: int, dtype: ir.DataType, **details: Any) -> AxisInfo:
    """A value whose delay equals the number of frames in front, so that it has no delay."""
    source = next(iter(ctx.analysis.streams.items()))
    ctx.carry(Begun(ctx.node, x, length, dtype, source, **details))
    return x.changed(late=0, dropped=0)


def concat(ctx: RuleContext) -> list[AxisInfo]:
    """A Concat over time with a constant in front, or over other axes."""
    return joined_in_front(ctx) or reshaping.concat(ctx)
