"""Rules of values that count frames: a chunk goes on counting where the last one ended."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from rnn_lower.streaming import shapes
from rnn_lower.streaming.sizes import TIME, Size, size
from rnn_lower.streaming.track import Look, Track


@dataclasses.dataclass(frozen=True)
class Position:
    """A Range over the frames, or a Slice of as many rows of a table as there are frames; dtype: of what it counts."""

    node: ir.Node
    dtype: ir.DataType


def _frames(look: Look, index: int) -> Size | None:
    """An input that is the number of frames, at some rate."""
    track = look.inputs[index] if index < len(look.inputs) else None
    content = None if track is None else track.content
    if content is None or len(content) != 1 or content[0].of != (TIME,):
        return None
    return content[0] if 1 in (content[0].times.numerator, content[0].times.denominator) else None


def _is_number(look: Look, index: int, number: int) -> bool:
    track = look.inputs[index] if index < len(look.inputs) else None
    return track is not None and track.content == (size(number),)


def range_(look: Look) -> list[Track]:
    """The numbers of the frames."""
    frames = _frames(look, 1)
    if frames is None or not _is_number(look, 0, 0) or not _is_number(look, 2, 1):
        raise look.refuse("it counts something else than all frames from 0 on")
    look.carry(Position(look.node, look.dtype(0)))
    return [Track((frames,), 0, every=1 / frames.times)]


def slice_(look: Look) -> list[Track]:
    """The first rows of a table, as many as there are frames; else as `shapes.slice_`."""
    table, frames = look.input(0), _frames(look, 2)
    if table.is_timed or frames is None:
        return shapes.slice_(look)
    axes = look.integers(3, "axes", 10)
    steps = look.integers(4, "steps", 10) or [1]
    if table.shape is None or axes is None or steps != [1] or not _is_number(look, 1, 0) or table.last:
        raise look.refuse("it takes rows of a table in another way than one for each frame")
    axis = axes[0] % table.rank
    look.carry(Position(look.node, ir.DataType.INT64))
    shape = [frames if place == axis else one for place, one in enumerate(table.shape)]
    return [Track(tuple(shape), axis, every=1 / frames.times)]
