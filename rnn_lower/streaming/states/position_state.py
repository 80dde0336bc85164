"""The state of a node that reads the position in the stream: the number of frames so far."""

from __future__ import annotations

import dataclasses
from collections.abc import Set as AbstractSet

import numpy as np
import onnx_ir as ir

from rnn_lower.builder.constants import constant
from rnn_lower.builder.graph_builder import Operand
from rnn_lower.errors import UnsupportedError
from rnn_lower.shapes.sizes import ONE, TIME, Size
from rnn_lower.streaming.states.graph_editor import INT64, GraphEditor, Site, computed_size
from rnn_lower.streaming.states.state_caches import Carried

KEEPS_INDICES = ("Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape", "Transpose", "Add", "Sub")
"""Operators that compute frame indices plus constants if their inputs are frame indices plus constants."""


@dataclasses.dataclass(frozen=True)
class Position(Carried):
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
        if work.reset is not None and work.batch != 1:
            raise UnsupportedError(
                f"{site.owner}: it keeps one frame count for the whole batch, so individual rows cannot be reset; set"
                " the batch size to 1 (--dim), or drop --reset"
            )
        row = None if work.reset is None else 0
        state, before = work.take_state(site, "position", np.zeros(1, np.int64), (ONE,), row)
        b, output = site.behind, str(site.output().name)
        if self.node.op_type == "Slice":
            total = site.before.add(before, site.input(2), "end")
            site.feed(1, site.before.add(before, site.input(1), "begin"))
            site.feed(2, total)
        else:
            self._end_with_chunk(work, site)
            numbers, skipped = site.divert("numbers"), b.mul(before, constant([self.delta], INT64), "skipped")
            frames: Operand = b.op("Shape", numbers, name="frames")
            if work.step is not None:
                frames = constant([int(work.step / work.infos[self.node.outputs[0]].every)], INT64, "frames")
            total = b.add(before, frames, "total")
            site.rename(b.add(numbers, b.cast(skipped, INT64, self.dtype, "offset"), "positions"), output)
        # tract returns no result that is only a sum of sizes and inputs; none of them is negative
        work.hand_on(site, total if work.step is not None else b.op("Abs", total, name="position"), state)

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
