"""The states of nodes that need earlier frames, and how each node is rewritten to read and return its state."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
import onnx_ir as ir

from rnn_lower.builder.constants import constant
from rnn_lower.builder.graph_builder import GraphBuilder, Operand
from rnn_lower.errors import UnsupportedError
from rnn_lower.shapes.sizes import GROWS, ONE, TIME, Size, size
from rnn_lower.streaming.axis_info import AxisInfo
from rnn_lower.streaming.graph_editor import INT64, GraphEditor, Site, computed_size, filled
from rnn_lower.streaming.initial_states import FromInput
from rnn_lower.streaming.plan import State

END = 2**63 - 1


def last_frames(b: GraphBuilder, value: Operand, axis: int, length: int, name: str) -> Operand:
    return b.slice(value, axis, -length, END, name)


def batch_axis(shape: tuple[Size, ...], stream: int) -> int | None:
    """The batch axis: the axis of free size, or else the first axis unless it is the stream axis."""
    free = [axis for axis, each in enumerate(shape) if each.of]
    return free[0] if len(free) == 1 else 0 if stream and not free else None


@dataclasses.dataclass(frozen=True)
class Frames:
    """A state of `length` frames of a value."""

    node: ir.Node
    x: AxisInfo
    length: int
    dtype: ir.DataType

    @property
    def axis(self) -> int:
        assert self.x.axis is not None
        return self.x.axis

    @property
    def shape(self) -> tuple[Size, ...]:
        return self.x.sized(size(self.length))

    def begin(self, work: GraphEditor, what: str, rows: int | None, fill: Any = 0) -> tuple[Site, State, ir.Value]:
        """The site of the node, and a state filled with one initial value."""
        site = work.at(self.node)
        work.check_sizes(site.owner, self.shape)
        return site, *work.take_state(site, what, filled(self.shape, fill, self.dtype), self.shape, rows)

    def or_first(
        self, work: GraphEditor, site: Site, b: GraphBuilder, held: ir.Value, first: Operand, chunk: ir.Value,
        rows: int | None,
    ) -> ir.Value:  # fmt: skip
        """A state, or another value until a chunk has frames; tracked for each row."""
        shape = tuple(dim if axis == rows else ONE for axis, dim in enumerate(self.shape))
        state, begun = work.take_state(site, "begun", filled(shape, 0, INT64), shape, rows)
        no, yes = constant(0, INT64, "no"), constant(1, INT64, "yes")
        has_begun = b.less(no, begun)
        begins: Operand = yes
        if work.step is None:
            frames = b.size(chunk, self.axis, len(self.shape), "frames")
            begins = b.op("Where", b.less(no, frames), yes, no, name="begins")
        work.hand_on(site, b.op("Where", has_begun, begun, begins, name="begun"), state)
        return b.op("Where", has_begun, held, first, name="front")

    def first_frame(self, work: GraphEditor, b: GraphBuilder, held: ir.Value, chunk: ir.Value) -> Operand:
        """The first frame of a chunk, or the last held one if the chunk has no frames."""
        first = b.slice(chunk, self.axis, 0, 1, "first")
        return last_frames(b, b.concat([held, first], self.axis), self.axis, 1, "first") if work.step is None else first


@dataclasses.dataclass(frozen=True)
class Cache(Frames):
    """A convolution cache: the last frames of a chunk precede those of the next one.

    after: whether they are the node's padding and precede its output.  attributes: of the node that change.
    fill: their value before the first chunk.  edge: whether the first frame replaces `fill`.
    pads: the new input 1, or None.  crop: frames to drop at the end.
    """

    fill: Any = 0.0
    after: bool = False
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    pads: tuple[int, ...] | None = None
    crop: int = 0
    edge: bool = False

    def __call__(self, work: GraphEditor) -> None:
        rows = batch_axis(self.shape, self.axis) if self.after else 0
        site, state, cache = self.begin(work, "cache", rows, self.fill)
        b = site.behind if self.after else site.before
        output = str(site.output().name)
        chunk = site.divert() if self.after else site.input()
        if self.edge:
            cache = self.or_first(work, site, b, cache, self.first_frame(work, b, cache, chunk), chunk, rows)
        whole = b.concat([cache, chunk], self.axis, "with_cache")
        ready = b.slice(whole, self.axis, 0, -self.crop, "cropped") if self.crop else whole
        work.hand_on(site, last_frames(b, whole, self.axis, self.length, "cache"), state)
        if self.after:
            site.rename(ready, output)
        else:
            site.feed(0, ready)
        if self.pads is not None:
            site.feed(1, constant(self.pads, INT64, "pads"))
        site.change(self.attributes)


@dataclasses.dataclass(frozen=True)
class First(Frames):
    """The first frame of the stream, for a Slice or Gather that selects it."""

    def __call__(self, work: GraphEditor) -> None:
        rows = batch_axis(self.shape, self.axis)
        site, state, held = self.begin(work, "first", rows)
        b, chunk = site.before, site.input(0)
        frame = self.or_first(work, site, b, held, self.first_frame(work, b, held, chunk), chunk, rows)
        work.hand_on(site, frame, state)
        site.feed(0, frame)


@dataclasses.dataclass(frozen=True)
class Joined(Frames):
    """The `front` that a Concat puts before the stream, as the initial state; `crop` frames are cut off at the end.

    opening: whether the front is computed from the first frame of the stream.
    """

    front: ir.Value
    crop: int = 0
    opening: bool = False

    def __call__(self, work: GraphEditor) -> None:
        site = work.at(self.node)
        if self.opening:
            rows = batch_axis(self.shape, self.axis)
            _, state, cache = self.begin(work, "cache", rows)
            site.feed(0, self.or_first(work, site, site.before, cache, site.input(0), site.input(1), rows))
        else:
            first, shape = work.first(_prepending(site), self.front, self.shape, self.dtype)
            state, cache = work.take_state(site, "cache", first, shape, batch_axis(shape, self.axis))
            work.replace_input(site, 0, cache)
        output, b = str(site.output().name), site.behind
        whole = site.divert("with_cache") if self.crop else site.output()
        if self.crop:
            site.rename(b.slice(whole, self.axis, 0, -self.crop, "cropped"), output)
        work.hand_on(site, last_frames(b, whole, self.axis, self.length, "cache"), state)


@dataclasses.dataclass(frozen=True)
class Begun(Frames):
    """The frames that a Concat or Pad puts before a stream with an equal delay, so that the result has no delay.

    front: the other input of a Concat; None for a Pad, with `fill`.  opening: whether it depends on the first frame.
    pads: of the other axes.  source: an input of the model and its stream axis.
    """

    source: tuple[str, int]
    front: ir.Value | None = None
    opening: bool = False
    fill: Any = 0.0
    pads: tuple[int, ...] = ()

    def __call__(self, work: GraphEditor) -> None:
        site = work.at(self.node)
        if work.reset is not None:
            raise UnsupportedError(
                f"{site.owner}: this node prepends frames to all batch rows at once, so individual rows "
                "cannot be reset; drop --reset"
            )
        first, shape = filled(self.shape, self.fill, self.dtype), self.shape
        live = site.input(0) if self.opening else None
        if self.front is None:
            site.feed(1, constant(self.pads, INT64, "pads"))
        else:
            if live is None:
                first, shape = work.first(_prepending(site), self.front, self.shape, self.dtype)
            work.replace_input(site, 0, site.input(1))
            site.replace("Identity")
        if work.step is None:
            self._fill_up(work, site, live, first, shape)
        else:
            self._replace_early(work, site, live, first)

    def _fill_up(
        self, work: GraphEditor, site: Site, live: ir.Value | None, first: np.ndarray, shape: tuple[Size, ...]
    ) -> None:  # fmt: skip
        """Prepend the rest of the front to the chunk, and keep the excess frames."""
        b, axis, output = site.behind, self.axis, str(site.output().name)
        shape = tuple(size(GROWS) if k == axis else dim for k, dim in enumerate(shape))
        state, left = work.take_state(site, "front", first, shape, None)
        count = computed_size(b, Size(1 / self.x.every, (TIME,)), {TIME: self.source})
        if live is not None:
            flag, begun = work.take_state(site, "begun", np.zeros(1, bool), (ONE,), None)
            left = b.op("Where", begun, left, live, name="front")
            has_frames = b.less(constant([0], INT64, "no"), count)
            work.hand_on(site, b.op("Or", begun, has_frames, name="begun"), flag)
        whole = b.concat([left, site.divert()], axis, "with_front")
        begin, end, axes = (constant([number], INT64, "number") for number in (0, END, axis))
        work.hand_on(site, b.op("Slice", whole, count, end, axes, name="left"), state)
        site.rename(b.op("Slice", whole, begin, count, axes, name="ready"), output)

    def _replace_early(self, work: GraphEditor, site: Site, live: ir.Value | None, first: np.ndarray) -> None:
        """Replace the meaningless frames with the front."""
        one, b, output = first.take([0], self.axis), site.behind, str(site.output().name)
        if (first != one).any():
            raise UnsupportedError(
                f"{site.owner}: the frames that this node prepends to the stream are not all equal, which "
                "--step does not support; drop --step"
            )
        front = constant(one, self.dtype, "front") if live is None else live
        early = work.are_early(site, self.x)
        site.rename(b.op("Where", early, front, site.divert(), name="with_front"), output)


def _prepending(site: Site) -> str:
    return f"{site.owner}, which prepends frames to the stream"


@dataclasses.dataclass(frozen=True)
class Overlap(Frames):
    """The output of a ConvTranspose beyond the chunk, to which the next chunk adds."""

    def __call__(self, work: GraphEditor) -> None:
        axis, length = self.axis, self.length
        site, state, tail = self.begin(work, "tail", 0)
        b, output = site.behind, str(site.output().name)
        frames = site.divert("frames")
        begun = b.add(b.slice(frames, axis, 0, length, "begun"), tail, "added")
        whole = b.concat([begun, b.slice(frames, axis, length, END, "rest")], axis, "whole")
        ready = b.slice(whole, axis, 0, -length, "ready")
        if len(site.message.input) > 2 and site.message.input[2]:  # once per frame instead of once per chunk
            bias = b.reshape(site.input(2), [-1, *[1] * (len(self.shape) - 2)], "bias")
            ready = b.add(ready, bias, "biased")
            site.feed(2, None)
        site.rename(ready, output)
        work.hand_on(site, last_frames(b, whole, axis, length, "tail"), state)


@dataclasses.dataclass(frozen=True)
class Accumulated(Frames):
    """The last frame of a running sum, which the next chunk continues."""

    exclusive: bool

    def __call__(self, work: GraphEditor) -> None:
        site, state, before = self.begin(work, "sum", batch_axis(self.shape, self.axis))
        b, output = site.behind, str(site.output().name)
        result = b.add(site.divert(), before, "sums")
        inclusive = b.add(result, site.input(), "inclusive") if self.exclusive else result
        sums = b.concat([before, inclusive], self.axis, "all_sums")  # without new sums, the last stays
        site.rename(result, output)
        work.hand_on(site, last_frames(b, sums, self.axis, 1, "sum"), state)


@dataclasses.dataclass(frozen=True)
class Steps:
    """The states of a Scan over the frames. shapes: of the initial values."""

    node: ir.Node
    shapes: tuple[tuple[Size, ...], ...]
    dtypes: tuple[ir.DataType, ...]

    def __call__(self, work: GraphEditor) -> None:
        site = work.at(self.node)
        for index, (shape, dtype) in enumerate(zip(self.shapes, self.dtypes, strict=True)):
            try:
                first, shape = work.first(site.owner, self.node.inputs[index], shape, dtype)
            except FromInput as error:
                raise UnsupportedError(f"{error}; replace the input with a constant (--set INPUT=VALUE)") from None
            state, current = work.take_state(site, f"state{index}", first, shape, batch_axis(shape, 1))
            work.replace_input(site, index, current)
            final = site.output(index) if site.message.output[index] else site.divert("last", index)
            work.hand_on(site, final, state)


KEEPS_INDICES = ("Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape", "Transpose", "Add", "Sub")
"""Operators that compute frame indices plus constants if their inputs are frame indices plus constants."""


@dataclasses.dataclass(frozen=True)
class Position:
    """The position in the stream, for a Range over the frames or a Slice of a table by frame.

    dtype: of the Range.  numbered: nodes that use indices only to select each frame, for which counting is unnecessary.
    source: an input of the model and its stream axis.  count, first, delta: length, start and step of a Range.
    """

    node: ir.Node
    dtype: ir.DataType
    numbered: AbstractSet[ir.Node]
    source: tuple[str, int] = ("", 0)
    count: Size = ONE
    first: int = 0
    delta: int = 1

    def __call__(self, work: GraphEditor) -> None:
        """Add the number of frames before the chunk."""
        site = work.at(self.node)
        if self.node.op_type == "Range" and not self._is_read(self.node.outputs[0]):
            return
        if work.infos[self.node.outputs[0]].late:
            raise UnsupportedError(
                f"{site.owner}: its count does not include all frames; streaming supports this only if a "
                "Gather uses the result along the time axis"
            )
        if work.reset is not None:
            raise UnsupportedError(
                f"{site.owner}: it keeps one frame count for the whole batch, so individual rows cannot be reset; drop"
                " --reset"
            )
        state, before = work.take_state(site, "position", np.zeros(1, np.int64), (ONE,), None)
        b, output = site.behind, str(site.output().name)
        if self.node.op_type == "Slice":
            total = site.before.add(before, site.input(2), "end")
            site.feed(1, site.before.add(before, site.input(1), "begin"))
            site.feed(2, total)
        else:
            self._end_with_chunk(work, site)
            numbers, skipped = site.divert("numbers"), b.mul(before, constant([self.delta], INT64), "skipped")
            frames: Operand = b.op("Shape", numbers, name="frames")
            if work.step is not None:  # a constant, because tract does not return values computed from a shape
                frames = constant([int(work.step / work.infos[self.node.outputs[0]].every)], INT64, "frames")
            total = b.add(before, frames, "total")
            site.rename(b.add(numbers, b.cast(skipped, INT64, self.dtype, "offset"), "positions"), output)
        work.hand_on(site, total, state)

    def _end_with_chunk(self, work: GraphEditor, site: Site) -> None:
        """Recompute the limit of a Range from the frames of the chunk."""
        limit, b = self.node.inputs[1], site.before
        if limit is None or work.infos[limit].content == (self.count,):
            return
        frames = b.mul(computed_size(b, self.count, {TIME: self.source}), constant([self.delta], INT64), "span")
        end = b.squeeze(b.add(frames, constant([self.first], INT64), "end"), [0], "limit")
        work.replace_input(site, 1, b.cast(end, INT64, self.dtype, "limit"))

    def _is_read(self, value: ir.Value) -> bool:
        """Whether a node other than a frame-by-frame Gather reads the Range."""
        users = [user for user, index in value.uses() if user not in self.numbered or index != 1]
        return value.is_graph_output() or any(
            user.op_type not in KEEPS_INDICES or any(map(self._is_read, user.outputs)) for user in users
        )


@dataclasses.dataclass(frozen=True)
class DelayBuffer(Frames):
    """A delay buffer: frames held back until a whole window of `length` frames is available.

    index: the input of the node.  lead: the input's left padding.
    before, fill: the number of frames before the first chunk, and their value.
    crop: return single frames of the input, each this far from the start of its window; None if the node reads windows.
    gone: whether the node only cropped, so that an Identity replaces it.  attributes: of the node that change.
    output_axis: the axis of the frames in the node's output, if it differs from `axis`.
    """

    index: int = 0
    stride: int = 1
    before: int = 0
    fill: Any = 0.0
    crop: int | None = None
    gone: bool = False
    lead: int = 0
    output_axis: int | None = None
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __call__(self, work: GraphEditor) -> None:
        site = work.at(self.node)
        if work.reset is not None:
            raise UnsupportedError(
                f"{site.owner}: its frames are delayed, so individual rows cannot be reset; drop --reset"
            )
        key = str(site.input(self.index).name), self.axis, self.length, self.crop
        shared = self.crop is not None and not work.is_nested(site)
        if shared and key in work.delayed:
            site.feed(self.index, work.delayed[key])
        elif work.step is None:
            self._hold_back(work, site)
        else:
            self._delay(work, site)
            work.warm_up()
        if shared:
            work.delayed[key] = site.input(self.index)
        if self.gone:
            site.replace("Identity")
        site.change(self.attributes)

    def _hold_back(self, work: GraphEditor, site: Site) -> None:
        """Prepend the held frames to the input, pass on the complete windows, and hold back the rest."""
        work.check_sizes(site.owner, self.shape)
        first = filled(self.x.sized(size(self.before)), self.fill, self.dtype)
        state, held = work.take_state(site, "held", first, self.x.sized(size(GROWS)), None)
        b, rank = site.before, self.x.rank

        def number(value: int) -> Operand:
            return constant([value], INT64, "number")

        def above_zero(value: Operand, name: str) -> ir.Value:
            return b.op("Where", b.less(value, number(0)), number(0), value, name=name)

        joined = b.concat([held, site.input(self.index)], self.axis, "with_held")
        frames = b.size(joined, self.axis, rank, "frames")
        enough = above_zero(b.sub(frames, number(self.length - self.stride), "surplus"), "enough")
        ready = b.div(enough, number(self.stride), "ready")
        used, end = b.mul(ready, number(self.stride), "used"), number(-self.lead if self.lead else END)
        buffered = b.op("Slice", joined, used, end, number(self.axis), name="held")
        if self.crop is not None:
            last = b.add(ready, number(self.crop), "last")
            part = b.op("Slice", joined, number(self.crop), last, number(self.axis), name="ready_frames")
            site.feed(self.index, part)
        else:
            lacking = above_zero(b.sub(number(self.length), frames, "missing"), "lacking")
            none = [constant([0] * count, INT64) for count in (rank + self.axis, rank - self.axis - 1) if count]
            pads = b.concat([none[0], lacking, *none[1:]], 0, "pads")
            site.feed(self.index, b.op("Pad", joined, pads, name="whole"))
            output = str(site.output().name)
            result, axis = site.divert("made"), self.axis if self.output_axis is None else self.output_axis
            site.rename(site.behind.op("Slice", result, number(0), ready, number(axis), name="complete"), output)
        work.hand_on(site, buffered, state)

    def _delay(self, work: GraphEditor, site: Site) -> None:
        """The delay for chunks of one length: outputs have as many frames, and the first ones are meaningless."""
        b, axis = site.before, self.axis
        if self.crop is not None:
            length = self.length - 1 - self.crop
        else:
            late = (self.x.late + max(0, self.length - 1 - self.before - self.lead)) // self.stride
            length = late * self.stride + self.before - self.x.late
        if length < 0:
            raise UnsupportedError(
                f"{site.owner}: its input is delayed by fewer frames than its stride, which --step does "
                "not support; drop --step"
            )
        if not length:
            if self.lead and self.crop is not None:
                site.feed(self.index, b.slice(site.input(self.index), axis, self.lead, END, "without_lead"))
            return
        shape = self.x.sized(size(length))
        work.check_sizes(site.owner, shape)
        state, held = work.take_state(site, "held", filled(shape, self.fill, self.dtype), shape, None)
        whole = b.concat([held, site.input(self.index)], axis, "with_held")
        buffered = last_frames(b, whole, axis, length + self.lead, "held")
        if self.lead:  # the next chunk has it again
            buffered = b.slice(buffered, axis, 0, -self.lead, "held_without_lead")
        work.hand_on(site, buffered, state)
        site.feed(self.index, whole if self.crop is None else b.slice(whole, axis, self.lead, -length, "delayed"))


CARRIED = (Cache, First, Joined, Begun, Overlap, Accumulated, Steps, Position, DelayBuffer)
"""Edits that add states other than those of recurrent nodes."""
