"""The states of nodes that need earlier frames, and how each node is rewritten to read and return its state."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from rnn_lower.builder.constants import constant
from rnn_lower.builder.graph_builder import GraphBuilder, Operand
from rnn_lower.errors import UnsupportedError
from rnn_lower.shapes.sizes import GROWS, ONE, TIME, Size, size
from rnn_lower.streaming.axis_info import AxisInfo
from rnn_lower.streaming.plan import State
from rnn_lower.streaming.states.graph_editor import INT64, YES, GraphEditor, Site, computed_size, filled
from rnn_lower.streaming.states.initial_states import FromInput, is_set_once

END = 2**63 - 1


def last_frames(b: GraphBuilder, value: Operand, axis: int, length: int, name: str) -> Operand:
    return b.slice(value, axis, -length, END, name)


def batch_axis(shape: tuple[Size, ...], stream: int) -> int | None:
    """The batch axis: the axis of free size, or else the first axis unless it is the stream axis."""
    free = [axis for axis, each in enumerate(shape) if each.of]
    return free[0] if len(free) == 1 else 0 if stream and not free else None


class Carried:
    """An edit that adds states other than those of recurrent nodes."""

    node: ir.Node


@dataclasses.dataclass(frozen=True)
class Frames(Carried):
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
        begins: Operand = YES
        if work.step is None:
            no = constant(0, INT64, "no")
            frames = b.size(chunk, self.axis, len(self.shape), "frames")
            begins = b.op("Where", b.less(no, frames), YES, no, name="begins")
        return b.op("Where", work.has_begun(site, b, self.shape, rows, begins), held, first, name="front")

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
            first, shape = _in_front(work, site, self, self.front)
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
                first, shape = _in_front(work, site, self, self.front)
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


def _in_front(
    work: GraphEditor, site: Site, frames: Frames, front: ir.Value
) -> tuple[np.ndarray, tuple[Size, ...]]:  # fmt: skip
    """The frames that a Concat puts in front of the stream, and their shape."""
    owner = f"{site.owner}, which prepends frames to the stream"
    try:
        return work.first(owner, front, frames.shape, frames.dtype)
    except FromInput as error:
        raise UnsupportedError(
            f"{owner}: these frames come from input '{error.source}'; if the model already has all its states as inputs"
            " and outputs, lower it instead (rnn-lower lower)"
        ) from None


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
class Steps(Carried):
    """The states of a Scan over the frames. shapes: of the initial values."""

    node: ir.Node
    shapes: tuple[tuple[Size, ...], ...]
    dtypes: tuple[ir.DataType, ...]

    def __call__(self, work: GraphEditor) -> None:
        site = work.at(self.node)
        for index, (shape, dtype) in enumerate(zip(self.shapes, self.dtypes, strict=True)):
            initial, what = self.node.inputs[index], f"state{index}"
            try:
                first, shape = work.first(site.owner, initial, shape, dtype)
                state, current = work.take_state(site, what, first, shape, batch_axis(shape, 1))
            except FromInput as error:
                final = self.node.outputs[index]
                if initial is None or not is_set_once(work.document, work.infos, initial, final):
                    raise UnsupportedError(f"{error}; replace the input with a constant (--set INPUT=VALUE)") from None
                work.notes.append(f"{error}, as that input is in the first chunk")
                state, current = work.take_computed_state(site, what, index, shape, dtype, batch_axis(shape, 1))
            work.replace_input(site, index, current)
            final = site.output(index) if site.message.output[index] else site.divert("last", index)
            work.hand_on(site, final, state)
