"""Rules of operators that rearrange: where the frames are afterwards."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from fractions import Fraction

from rnn_lower.errors import UnsupportedError
from rnn_lower.streaming.axis_info import Look, Track, along, with_lead
from rnn_lower.streaming.delays import Arguments, Guessed, Sizes, cropped, settled
from rnn_lower.streaming.sizes import ONE, TIME, UNKNOWN, Size, broadcast, product, size, total

WHOLE = 2**31 - 1
"""Ends of slices from here on mean the end of the axis."""


def transpose(look: Look) -> list[Track]:
    x = look.x()
    order = list(look.attribute("perm", range(x.rank)[::-1]))
    return [x.moved(order.index(along(look, x)), [x.sizes[axis] for axis in order])]


def reshape(look: Look) -> list[Track]:
    x = look.input(0)
    target = look.inputs[1].content if len(look.inputs) > 1 and look.inputs[1] is not None else None
    if look.opset < 5:
        target = tuple(map(size, look.attribute("shape", ())))
    if target is None:
        raise look.refuse("the shape that it makes is not known")
    if look.attribute("allowzero", 0) and size(0) in target:
        raise look.refuse("it makes an axis of size 0 (allowzero)")
    unknown = [k for k, one in enumerate(target) if any(symbol.startswith(UNKNOWN) for symbol in one.of)]
    if len(unknown) == 1 and size(-1) not in target:
        stays = unknown[0] == x.axis and x.is_plain
        if look.may_lack_frames(x) and not stays:
            raise look.refuse(
                "its frames come late, and the shape that it makes is computed from the length of the stream"
            )
        look.carry(Guessed(look.node, unknown[0], len(target), 0 if stays else -1))
        target = tuple(size(0 if stays else -1) if k == unknown[0] else one for k, one in enumerate(target))
    if len([one for one in target if one == size(-1)]) > 1:
        raise look.refuse("its shape has more than one -1")
    copied = [x.sizes[k] if one == size(0) and k < x.rank else one for k, one in enumerate(target)]
    if (freed := _freed(look, x, copied)) is not None:
        return [freed]
    rest = product(one for one in copied if one != size(-1))
    guess = product(x.sizes).over(rest)
    if size(-1) in copied and guess is None:
        raise look.refuse("what -1 stands for in its shape is not known")
    made = _regrouped(look, x, [guess if one == size(-1) and guess else one for one in copied])
    if look.may_lack_frames(x) and size(-1) in copied and copied.index(size(-1)) != made.axis:
        guessed = (guess if one == size(-1) and guess else one for one in target)
        same = [k < x.rank and one == x.sizes[k] for k, one in enumerate(copied)]
        sizes = tuple(size(0) if one.is_timed and same[k] else one for k, one in enumerate(guessed))
        if any(one.is_timed for one in sizes):
            raise look.refuse("its frames come late, and its shape has -1 for another size")
        look.carry(Sizes(look.node, sizes))
    return [made]


def _freed(look: Look, x: Track, shape: list[Size]) -> Track | None:
    """With the stream's length in place of the one that the export has fixed, where that is the only reading of it."""
    if look.baked is None or any(one.is_timed for one in shape):
        return None
    found = []
    for axis, one in enumerate(shape):
        share = size(one.number or 0).over(size(look.baked))
        if share is None or not share.number:
            continue
        made = [share * size(TIME) if k == axis else each for k, each in enumerate(shape)]
        guess = product(x.sizes).over(product(each for each in made if each != size(-1)))
        made = [guess if each == size(-1) and guess else each for each in made]
        try:
            track = _regrouped(look, x, made)
        except UnsupportedError:
            continue
        numbers = [-1 if k == axis else each.number for k, each in enumerate(made)]
        if track.axis == axis and None not in numbers:
            found.append((track, tuple(n for n in numbers if n is not None)))
    if len(found) != 1:
        return None
    look.carry(Arguments(look.node, {1: found[0][1]}, ("shape",), 5))
    return found[0][0]


def flatten(look: Look) -> list[Track]:
    x, axis = look.x(), look.attribute("axis", 1)
    axis = axis + look.x().rank if axis < 0 else axis
    return [_regrouped(look, x, [product(x.sizes[:axis]), product(x.sizes[axis:])])]


def _regrouped(look: Look, x: Track, shape: list[Size]) -> Track:
    """The frames after the elements were grouped into other axes, their order being the same."""
    before = product(x.sizes[: along(look, x)]) * x.outer
    if product(shape) != product(x.sizes):
        raise look.refuse("the shape that it makes does not follow from that of its input")
    for axis, one in enumerate(shape):
        outer = before.over(product(shape[:axis]))
        if outer is None or not one.is_timed:
            continue
        inner = one.over(outer * x.frames)
        if inner is not None and not inner.is_timed:
            return x.moved(axis, shape, outer=outer)
        grouped = (outer * x.frames).over(one)
        if grouped is not None and grouped.number and x.late:
            raise look.refuse("it makes one frame of several, which come late")
        if grouped is not None and grouped.number:  # several frames become one
            return x.moved(axis, shape, outer=outer, every=x.every * grouped.number)
    raise look.refuse("it mixes frames of the stream with each other")


def squeeze(look: Look) -> list[Track]:
    x = look.x()
    axes = look.integers(1, "axes", 13)
    if axes is None:
        raise look.refuse("it names no axes, so that a stream of one frame would lose its axis")
    gone = {axis % x.rank for axis in axes}
    if along(look, x) in gone:
        raise look.refuse("it removes the axis of the stream")
    kept = [axis for axis in range(x.rank) if axis not in gone]
    return [x.moved(kept.index(along(look, x)), [x.sizes[axis] for axis in kept])]


def unsqueeze(look: Look) -> list[Track]:
    x = look.x()
    axes = look.integers(1, "axes", 13)
    if axes is None:
        raise look.refuse("input 1 is missing")
    rank = x.rank + len(axes)
    new = {axis % rank for axis in axes}
    old = [axis for axis in range(rank) if axis not in new]
    shape = [ONE if axis in new else x.sizes[old.index(axis)] for axis in range(rank)]
    return [x.moved(old[along(look, x)], shape)]


def split(look: Look) -> list[Track]:
    x = look.x()
    axis = look.axis(0, x.rank)
    if axis == along(look, x):
        raise look.refuse("it splits the stream over time")
    results = []
    for place in range(len(look.node.outputs)):
        shape = list(x.sizes)
        shape[axis] = look.sizes(x.rank, place)[axis]
        results.append(x.moved(along(look, x), shape))
    return results


def concat(look: Look) -> list[Track]:
    tracks = [track for track in look.inputs if track is not None]
    first = same_frames(look, tracks)
    axis = look.axis(1, first.rank)
    if axis == along(look, first):
        raise look.refuse("it joins frames over time")
    for track in tracks:
        if track.axis is None:
            raise look.refuse("it joins the stream with what has a fixed number of frames")
    if len({track.axis for track in tracks}) > 1:
        raise look.refuse("the stream is along different axes of its inputs")
    shape = list(first.sizes)
    shape[axis] = total((track.sizes[axis] for track in tracks), look.fresh(axis))
    return [first.moved(along(look, first), shape)]


def same_frames(look: Look, tracks: list[Track]) -> Track:
    """One of several values that carry the stream, which have to do so in the same way."""
    found = {dataclasses.replace(track, shape=None, axis=0) for track in tracks if track.axis is not None}
    if not found:
        raise look.refuse("it computes with the length of the stream")
    if len({track.every for track in found}) > 1:
        raise look.refuse("its inputs have different rates over time")
    if len({track.lead for track in found}) > 1:
        raise look.refuse("its inputs are padded by different numbers of frames")
    if len(found) > 1:
        raise look.refuse("its inputs have the stream among other axes in different ways")
    return next(track for track in tracks if track.axis is not None)


def slice_(look: Look) -> list[Track]:
    x = look.x()
    starts, ends = look.integers(1, "starts", 10), look.integers(2, "ends", 10)
    if starts is None or ends is None:
        raise look.refuse("it has no starts or ends")
    axes = look.integers(3, "axes", 10) or list(range(len(starts)))
    steps = (look.integers(4, "steps", 10) if look.opset >= 10 else None) or [1] * len(starts)
    time, shape = along(look, x), look.sizes(x.rank)
    cut = {axis % x.rank: (start, end, step) for axis, start, end, step in zip(axes, starts, ends, steps, strict=True)}
    sizes = [shape[axis] if axis in cut else x.sizes[axis] for axis in range(x.rank)]
    start, end, step = cut.get(time, (0, WHOLE, 1))
    if look.baked is not None and x.is_plain and end > 0 and end * x.every >= look.baked:
        end = WHOLE
        _keep_ranges(look, {**cut, time: (start, end, step)})
    if step > 1 and 0 <= start < step and end >= WHOLE:
        return [_thinned(look, x, step, sizes)]
    if start < 0:
        x = settled(x, look.delay)
    if (start, step) == (-1, 1) and end >= WHOLE and x.is_plain:  # the last frame so far
        sizes[time] = ONE
        return [x.ended(sizes)]
    behind = -end if end < 0 else 0 if end >= WHOLE else None
    padded = x.lead or (x.trail and not start and not (look.delay and (behind or 0) > x.trail))
    if step == 1 and start >= 0 and behind is not None and padded:
        return [_trimmed(look, x, (start, behind), cut, sizes)]
    if step == 1 and start >= 0 and behind is not None and (start or behind):
        return [_shortened(look, x, (start, behind), cut, sizes)]
    x = settled(x, look.delay)
    if start != 0 or end < WHOLE or step != 1:
        raise look.refuse(f"it takes frames {start} to {end} by {step} of the stream")
    sizes[time] = x.sizes[time]
    return [x.moved(time, sizes)]


def _thinned(look: Look, x: Track, step: int, sizes: list[Size]) -> Track:
    """One of so many frames, where chunks are a multiple of them."""
    x, time = settled(x, look.delay), along(look, x)
    if not x.is_plain or x.outer != ONE or x.late:
        raise look.refuse("it takes some of the frames of what is padded, merged with other axes, or comes late")
    found = dataclasses.replace(x, every=x.every * step)
    sizes[time] = found.frames
    return found.moved(time, sizes)


def _trimmed(
    look: Look, x: Track, off: tuple[int, int], cut: Mapping[int, tuple[int, int, int]], sizes: list[Size]
) -> Track:
    """Frames are cut off what is padded in front of and behind the stream.

    Behind, a chunk has none of the padding, so that less is cut off; what is cut off beyond it shifts the stream, whose
    padding in front becomes shorter.
    """
    (start, behind), time = off, along(look, x)
    end = max(0, behind - x.trail)
    lead = x.lead - start - end
    if lead < 0:
        raise look.refuse(f"it takes frames {start} to {-behind} of the stream, of which {x.lead} are padded in front")
    if x.outer != ONE or x.sizes[time] != with_lead(x.frames, x.lead):
        raise look.refuse("it cuts frames off axes that are merged with the stream")
    if end != behind:
        _keep_ranges(look, {**cut, time: (start, -end if end else WHOLE, 1)})
    sizes[time] = with_lead(x.frames, lead)
    return dataclasses.replace(x, lead=lead, trail=max(0, x.trail - behind)).moved(time, sizes)


def _shortened(
    look: Look, x: Track, off: tuple[int, int], cut: Mapping[int, tuple[int, int, int]], sizes: list[Size]
) -> Track:
    """The frames but for the first and the last ones; what is padded behind is not there anyway."""
    (start, behind), time = off, along(look, x)
    end, trail = max(0, behind - x.trail), max(0, x.trail - behind)
    if end and not look.delay:
        raise look.refuse(
            f"it takes frames {start} to {-behind} of the stream, of which the last {end} are not known to be the last;"
            f" let them come {start + end} late (--delay)"
        )
    if trail:
        x, trail = settled(x, look.delay), 0
    if len(cut) > 1:
        _keep_ranges(look, {axis: range_ for axis, range_ in cut.items() if axis != time})
    late = dataclasses.replace(cropped(look, x, start, end, gone=len(cut) == 1), trail=trail)
    return late.moved(time, [late.sizes[time] if axis == time else one for axis, one in enumerate(sizes)])


def _keep_ranges(look: Look, ranges: Mapping[int, tuple[int, int, int]]) -> None:
    """Let a Slice take these ranges."""
    columns = [tuple(each[place] for each in ranges.values()) for place in range(3)]
    given = {1: columns[0], 2: columns[1], 3: tuple(ranges)}
    if look.opset >= 10:
        given[4] = columns[2]
    look.carry(Arguments(look.node, given, ("starts", "ends", "axes"), 10))


def gather(look: Look) -> list[Track]:
    """Rows of a table by indices that carry the stream, or the same rows of every frame."""
    data, indices = look.input(0), look.input(1)
    if data.axis is not None and indices.is_timed:
        raise look.refuse("both its data and its indices carry the stream")
    if data.axis is None:
        if data.is_timed:
            raise look.refuse("it computes with the length of the stream")
        if data.shape is None:
            raise look.refuse("the rank of its data is unknown")
        axis = look.axis(0, data.rank)
        shape = (*data.shape[:axis], *indices.sizes, *data.shape[axis + 1 :])
        return [indices.moved(axis + along(look, indices), shape)]
    axis, time = look.axis(0, data.rank), along(look, data)
    chosen = look.known(1)
    if axis == time:
        if chosen is None or chosen.ravel().tolist() != [-1] or not data.is_plain:
            text = "computed" if chosen is None else str(chosen.ravel().tolist()[:4])
            raise look.refuse(f"it takes fixed frames of the stream: {text}")
        if data.late:
            raise look.refuse("it takes the last frame of what comes late; use Slice ([-1:])")
        middle = (ONE,) * chosen.ndim
        return [data.ended([*data.sizes[:axis], *middle, *data.sizes[axis + 1 :]])]
    if indices.shape is None:
        raise look.refuse("the rank of its indices is unknown")
    shape = (*data.sizes[:axis], *indices.shape, *data.sizes[axis + 1 :])
    return [data.moved(time if time < axis else time + indices.rank - 1, shape)]


def expand(look: Look) -> list[Track]:
    """Also what has no time is spread over it, as exporters make initial states of rows that are frames."""
    x, target = look.input(0), look.input(1).content
    if target is None:
        raise look.refuse("the shape that it makes is not known")
    if x.shape is None:
        raise look.refuse("the rank of its input is unknown")
    if x.axis is None and x.is_timed:
        raise look.refuse("it computes with the length of the stream")
    rank = max(x.rank, len(target))
    have = [ONE] * (rank - x.rank) + list(x.shape)
    want = [ONE] * (rank - len(target)) + list(target)
    shape = [broadcast(pair, look.fresh(axis)) for axis, pair in enumerate(zip(have, want, strict=True))]
    if x.axis is None:
        return [_spread(look, shape, have)]
    time = x.axis + rank - x.rank
    others = [one for axis, one in enumerate(want) if axis != time]
    if want[time] not in (ONE, have[time]) or any(one.is_timed for one in others):
        raise look.refuse("it spreads the stream over time")
    shape[time] = have[time]
    return [x.moved(time, shape)]


def constant_of_shape(look: Look) -> list[Track]:
    shape = look.input(0).content
    if shape is None:
        raise look.refuse("the shape that it makes is not known")
    return [_spread(look, list(shape), [ONE] * len(shape))]


def _spread(look: Look, shape: list[Size], have: list[Size]) -> Track:
    """The same values in every frame."""
    timed = [axis for axis, one in enumerate(shape) if one.is_timed]
    if len(timed) != 1 or have[timed[0]] != ONE:
        raise look.refuse("it makes a shape of the length of the stream")
    track = Track(tuple(shape), timed[0], every=Fraction(shape[timed[0]].times.denominator))
    if shape[timed[0]].over(track.frames) is None:
        raise look.refuse("it makes a shape of the length of the stream at another rate")
    return dataclasses.replace(track, outer=shape[timed[0]].over(track.frames) or ONE)


def tile(look: Look) -> list[Track]:
    """Other axes are repeated; one row for all frames is spread over them."""
    x, repeats = look.input(0), look.input(1).content if look.opset >= 6 else None
    if repeats is None or x.shape is None or len(repeats) != x.rank:
        raise look.refuse("how often it repeats its input is not known")
    if x.axis is None and x.is_timed:
        raise look.refuse("it computes with the length of the stream")
    shape = [one * times for one, times in zip(x.shape, repeats, strict=True)]
    if x.axis is None:
        return [_spread(look, shape, list(x.shape))]
    if repeats[x.axis] != ONE or any(one.is_timed for one in repeats):
        raise look.refuse("it repeats the stream over time")
    return [x.moved(x.axis, shape)]
