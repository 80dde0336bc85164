"""The state of a node that reads later frames: it holds frames back, which delays the output."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from rnn_lower.builder.constants import constant
from rnn_lower.builder.graph_builder import Operand
from rnn_lower.errors import UnsupportedError
from rnn_lower.shapes.sizes import GROWS, size
from rnn_lower.streaming.states.graph_editor import INT64, GraphEditor, Site, filled
from rnn_lower.streaming.states.state_caches import END, Frames, last_frames


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
