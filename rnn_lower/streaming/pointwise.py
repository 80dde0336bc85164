"""Rules of operators that compute each frame on its own: element by element, by rows, over other axes."""

from __future__ import annotations

import numpy as np

from rnn_lower.streaming.axis_info import Look, Track, along
from rnn_lower.streaming.delays import Accumulated, Masked, Reduced
from rnn_lower.streaming.shapes import same_frames
from rnn_lower.streaming.sizes import ONE, Size, broadcast, size


def elementwise(look: Look) -> list[Track]:
    """Inputs broadcast; one without the stream must not have frames of its own along time."""
    tracks = [track for track in look.inputs if track is not None]
    one = same_frames(look, tracks)
    back = along(look, one) - one.rank  # counted from the end, as broadcasting does
    for index, track in enumerate(tracks):
        if track.shape is None:
            raise look.refuse(f"the rank of input {index} is unknown")
        if track.axis is not None:
            if track.axis - track.rank != back:
                raise look.refuse("the stream is along different axes of its inputs")
            if track.sizes[track.axis] != one.sizes[along(look, one)]:
                raise look.refuse("its inputs have the stream among other axes in different ways")
        elif track.is_timed:
            raise look.refuse("it computes with the length of the stream")
        elif track.rank >= -back and track.sizes[back] != ONE:
            raise look.refuse(f"input {index} has values of its own for the frames of the stream")
    shape = joined(look, tracks)
    shape[back] = one.sizes[along(look, one)]
    return [one.moved(len(shape) + back, shape)]


def dropout(look: Look) -> list[Track]:
    """Nothing at all, unless it is told to train."""
    if len(look.inputs) > 2 and look.inputs[2] is not None:
        training = look.known(2)
        if training is None or training.any():
            raise look.refuse("it drops values at random (training_mode)")
    return [look.x()]


def joined(look: Look, tracks: list[Track]) -> list[Size]:
    """The shape to which shapes are broadcast."""
    rank = max(track.rank for track in tracks)
    columns = [[track.sizes[back] for track in tracks if track.rank >= -back] for back in range(-rank, 0)]
    return [broadcast(column, look.fresh(axis)) for axis, column in enumerate(columns)]


def matmul(look: Look) -> list[Track]:
    """The frames are rows of one side, or matrices of both; products that add frames up are not."""
    a, b = look.input(0), look.input(1)
    if a.shape is None or b.shape is None:
        raise look.refuse("the rank of an input is unknown")
    if min(a.rank, b.rank) < 2:
        if b.rank != 1 or a.rank < 2 or b.is_timed or along(look, a) == a.rank - 1:
            raise look.refuse("it adds frames of the stream up")
        return [a.moved(along(look, a), a.sizes[:-1])]
    one = same_frames(look, [a, b])
    if a.axis == a.rank - 1 or b.axis == b.rank - 2:
        raise look.refuse("it adds frames of the stream up")
    heads = [Track(a.sizes[:-2], a.axis), Track(b.sizes[:-2], b.axis)]
    shape = [*joined(look, heads), a.sizes[-2], b.sizes[-1]]
    back = along(look, one) - one.rank
    if back >= -2:  # rows of a, or columns of b
        if a.axis is not None and b.axis is not None:
            raise look.refuse("it multiplies frames of the stream with each other")
        return [one.moved(len(shape) + back, shape)]
    for track in (a, b):
        if track.axis is not None and track.axis - track.rank != back:
            raise look.refuse("it multiplies frames of the stream with each other")
        if track.axis is None and track.rank >= -back and track.sizes[back] != ONE:
            raise look.refuse("an input has values of its own for the frames of the stream")
    shape[back] = one.sizes[along(look, one)]
    return [one.moved(len(shape) + back, shape)]


def einsum(look: Look) -> list[Track]:
    """The stream is one label, which the output has too; operands without the stream must not have it."""
    equation = look.attribute("equation", "")
    equation = (equation.decode() if isinstance(equation, bytes) else str(equation)).replace(" ", "")
    if "." in equation:
        raise look.refuse("its equation has an ellipsis")
    left, arrow, made = equation.partition("->")
    terms = left.split(",")
    if not arrow:
        made = "".join(sorted(label for label in set(left) - {","} if left.count(label) == 1))
    tracks = [look.input(index) for index in range(len(look.inputs))]
    if len(terms) != len(tracks) or any(track.rank != len(term) for track, term in zip(tracks, terms, strict=True)):
        raise look.refuse("the ranks of its inputs are not those of its equation")
    one = same_frames(look, tracks)
    pairs = list(zip(tracks, terms, strict=True))
    labels = {term[track.axis] for track, term in pairs if track.axis is not None}
    if len(labels) > 1:
        raise look.refuse("it multiplies frames of the stream with each other")
    stream = labels.pop()
    if any(stream in term for track, term in pairs if track.axis is None):
        raise look.refuse("an input has values of its own for the frames of the stream")
    if any(term.count(stream) > 1 for term in terms):
        raise look.refuse("it takes a diagonal of the stream")
    if made.count(stream) != 1:
        raise look.refuse(f"it sums over label '{stream}', which is the stream")
    sizes = {track.sizes[track.axis] for track in tracks if track.axis is not None}
    if len(sizes) > 1:
        raise look.refuse("its inputs have the stream among other axes in different ways")
    columns = {
        label: [t.sizes[k] for t, term in pairs for k, each in enumerate(term) if each == label] for label in left
    }
    shape = [broadcast(columns[label], look.fresh(axis)) for axis, label in enumerate(made)]
    shape[made.index(stream)] = sizes.pop()
    return [one.moved(made.index(stream), shape)]


def cumulative_sum(look: Look) -> list[Track]:
    """Over time, the sum so far is a state."""
    x, axis = look.x(), look.known(1)
    if axis is None:
        raise look.refuse("its axis is computed")
    time = along(look, x)
    if int(axis.ravel()[0]) % x.rank != time:
        return [x.moved(time, x.sizes)]
    if look.attribute("reverse", 0):
        raise look.refuse("it sums from the end of the stream (reverse)")
    if not x.is_plain:
        raise look.refuse("its input has padded frames in front of the stream, or is merged with other axes")
    if look.opset < 11:
        raise look.refuse(f"it needs opset 11; the model is at opset {look.opset}")
    shape = (*x.sizes[:time], ONE, *x.sizes[time + 1 :])
    if x.late and look.step is not None:
        look.carry(Masked(look.node, 0, time, x.late, x.every, 0, look.dtype(0)))
    look.carry(Accumulated(look.node, shape, time, look.dtype(0), bool(look.attribute("exclusive", 0))))
    return [x.moved(time, x.sizes)]


IDENTITIES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric")
"""How Resize maps coordinates: each of these leaves an axis as it is whose scale is 1."""


def resize(look: Look) -> list[Track]:
    """Each axis is resized on its own, so that one of scale 1 stays as it is."""
    x = look.input(0)
    time, mode = along(look, x), look.attribute("coordinate_transformation_mode", "half_pixel")
    if look.opset < 11:
        raise look.refuse(f"its rule is for opset 11 and up; the model is at opset {look.opset}")
    if mode not in IDENTITIES or look.attribute("antialias", 0):
        raise look.refuse(f"how it resizes depends on the length of the stream ({mode}, antialias)")
    if look.attribute("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise look.refuse("it keeps the aspect ratio")
    axes = [int(axis) % x.rank for axis in look.attribute("axes", range(x.rank))]
    sizes = look.inputs[3] if len(look.inputs) > 3 else None
    shape = look.sizes(x.rank)
    shape = [shape[axis] if axis in axes else one for axis, one in enumerate(x.sizes)]
    scales = look.known(2)
    for place, axis in enumerate(axes):
        have = x.sizes[axis].number
        if sizes is not None and sizes.content is not None and sizes.content[place].number is not None:
            shape[axis] = sizes.content[place]
        elif sizes is None and scales is not None and scales.size == len(axes):
            if scales[place] == 1:
                shape[axis] = x.sizes[axis]
            elif have is not None:
                shape[axis] = size(int(np.floor(have * scales[place])))
    if time in axes:
        if sizes is not None:
            same = sizes.content is not None and sizes.content[axes.index(time)] == x.sizes[time]
        else:
            same = scales is not None and scales.size == len(axes) and scales[axes.index(time)] == 1
        if not same:
            raise look.refuse("it resizes the stream over time")
    if look.may_lack_frames(x):
        raise look.refuse("it resizes frames that come late, of which a chunk may have none")
    shape[time] = x.sizes[time]
    return [x.moved(time, shape)]


def gemm(look: Look) -> list[Track]:
    a, b = look.x(), look.input(1)
    rows = 1 if look.attribute("transA", 0) else 0
    if along(look, a) != rows:
        raise look.refuse("it adds frames of the stream up")
    c = look.inputs[2] if len(look.inputs) > 2 else None
    if c is not None and (c.shape is None or (c.rank > 1 and c.sizes[0] != ONE)):
        raise look.refuse("input 2 has values of its own for the frames of the stream")
    if b.shape is None:
        raise look.refuse("the rank of input 1 is unknown")
    columns = b.sizes[0] if look.attribute("transB", 0) else b.sizes[1]
    return [a.moved(0, [a.sizes[rows], columns])]


def not_channels(look: Look) -> list[Track]:
    """Normalization by statistics that are known: each channel, axis 1, has its own numbers."""
    x = look.x()
    if look.attribute("training_mode", 0) or len([out for out in look.node.outputs if out.name]) > 1:
        raise look.refuse("it normalizes by statistics of its input, over time")
    if along(look, x) == 1:
        raise look.refuse("each frame of the stream has numbers of its own in it")
    scale = look.input(1)
    if scale.shape is None or scale.rank != 1:  # as spatial=0 had it
        raise look.refuse("its statistics are not one for each channel")
    return [x]


def other_axis(look: Look) -> list[Track]:
    """Works along one axis, which must not be the stream's."""
    x = look.x()
    default = -1 if look.opset >= 13 or look.node.op_type == "LpNormalization" else 1
    axis = look.axis(default, x.rank)
    older = look.opset < 13 and look.node.op_type != "LpNormalization"  # all axes from there on, as one
    if axis == along(look, x) or (older and axis < along(look, x)):
        raise look.refuse("it normalizes over time")
    return [x.moved(along(look, x), x.sizes)]


def later_axes(look: Look) -> list[Track]:
    """Normalizes over an axis and all behind it."""
    x = look.x()
    if look.axis(-1, x.rank) <= along(look, x):
        raise look.refuse("it normalizes over time")
    for index, given in enumerate(look.inputs[1:], 1):  # they are broadcast to all of the input
        if given is not None and (given.shape is None or given.rank > x.rank):
            raise look.refuse(f"the shape of input {index} does not follow from that of its input")
        back = along(look, x) - x.rank
        if given is not None and given.rank >= -back and given.sizes[back] != ONE:
            raise look.refuse(f"input {index} has values of its own for the frames of the stream")
    rest = [Track((), None) for _ in look.node.outputs[1:]]
    if any(out.uses() or out.is_graph_output() for out in look.node.outputs[1:]):
        raise look.refuse("its mean and deviation are used")
    return [x, *rest]


def only_batch(look: Look) -> list[Track]:
    """Works over all axes but the first, so the frames must lie in the batch."""
    x = look.x()
    if along(look, x):
        raise look.refuse("it normalizes over time")
    return [x]


def reduce(look: Look) -> list[Track]:
    x = look.x()
    until = 13 if look.node.op_type == "ReduceSum" else 18
    axes = look.integers(1, "axes", until)
    if not axes:
        if look.attribute("noop_with_empty_axes", 0):
            return [x]
        raise look.refuse("it reduces over all axes, time among them")
    return _reduced(look, x, {axis % x.rank for axis in axes})


def arg_reduce(look: Look) -> list[Track]:
    x = look.x()
    return _reduced(look, x, {look.axis(0, x.rank)})


def _reduced(look: Look, x: Track, axes: set[int]) -> list[Track]:
    time = along(look, x)
    if time in axes:
        raise look.refuse("it reduces over time")
    if look.may_lack_frames(x):
        look.carry(Reduced(look.node, tuple(sorted(axes)), bool(look.attribute("keepdims", 1))))
    if look.attribute("keepdims", 1):
        return [x.moved(time, [ONE if axis in axes else one for axis, one in enumerate(x.sizes)])]
    kept = [axis for axis in range(x.rank) if axis not in axes]
    return [x.moved(kept.index(time), [x.sizes[axis] for axis in kept])]


def quantize(look: Look) -> list[Track]:
    """One scale for all, or one for each row of another axis."""
    x, scale = look.x(), look.input(1)
    if scale.shape is None or (scale.rank and scale.sizes != (size(1),) and look.axis(1, x.rank) == along(look, x)):
        raise look.refuse("each frame of the stream has a scale of its own")
    if scale.rank > 1:
        raise look.refuse("its scales are of blocks")
    return [x]
