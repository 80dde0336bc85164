"""Rewrite nodes without a state: new arguments, shapes that are valid for chunks, masked frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from rnn_lower.builder.constants import constant
from rnn_lower.builder.graph_builder import Operand
from rnn_lower.shapes.sizes import Size
from rnn_lower.streaming.axis_info import AxisInfo
from rnn_lower.streaming.states.graph_editor import INT64, GraphEditor, Site, computed_size
from rnn_lower.streaming.states.state_caches import END


def change_attributes(_: GraphEditor, site: Site, attributes: Mapping[str, Any]) -> None:
    site.change(attributes)


def replace_arguments(
    work: GraphEditor, site: Site, inputs: Mapping[int, Sequence[int]], attributes: Sequence[str] = (), since: int = 0
) -> None:
    """Set integer inputs of a node, or attributes of these names below the opset `since`."""
    if work.opset < since:
        site.change(dict(zip(attributes, map(list, inputs.values()), strict=True)))
        return
    for index, numbers in inputs.items():
        work.replace_input(site, index, constant(numbers, INT64, "argument"))


def list_axes(work: GraphEditor, site: Site, axes: Sequence[int]) -> None:
    """Give the axes to a Squeeze that lists none."""
    if axes:
        replace_arguments(work, site, {1: axes}, ("axes",), since=13)
    else:
        site.replace("Identity")


def replace_constant(work: GraphEditor, site: Site, index: int, array: np.ndarray) -> None:
    work.replace_input(site, index, constant(array, ir.DataType.from_numpy(array.dtype), "constant"))


def repeat_row(work: GraphEditor, site: Site, index: int, row: np.ndarray, batch: int) -> None:
    """Set sequence_lens or an initial state to a constant, repeated over the batch, axis `batch` of X."""
    b, is_state = site.before, index > 4
    if is_state and not row.any():  # the default
        work.replace_input(site, index, None)
        return
    axis, rows = batch if is_state else 0, b.size(site.input(), batch, 3, "rows")
    repeats = b.concat([rows if k == axis else _numbers([1]) for k in range(row.ndim)], 0, "repeats")
    repeated = b.op("Tile", constant(row, ir.DataType.from_numpy(row.dtype), "row"), repeats, name="repeated")
    work.replace_input(site, index, repeated)


def mask(work: GraphEditor, site: Site, x: AxisInfo, fill: np.ndarray) -> None:
    """Replace the meaningless frames of the first input with the left padding."""
    early = work.are_early(site, x)
    filling = constant(fill, ir.DataType.from_numpy(fill.dtype), "fill")
    site.feed(0, site.before.op("Where", early, filling, site.input(), name="masked"))


def never_empty(_: GraphEditor, site: Site, axis: int, rank: int, stride: int) -> None:
    """Put a frame of zeros before the input of a ConvTranspose, because runtimes refuse one without frames."""
    pads = constant([int(k == axis) for k in range(2 * rank)], INT64, "pads")
    site.feed(0, site.before.op("Pad", site.input(), pads, name="with_zeros"))
    output = str(site.output().name)
    site.rename(site.behind.slice(site.divert("from_zeros"), axis, stride, END, "frames"), output)


def copy_zeros(_: GraphEditor, site: Site) -> None:
    """Make 0 in the shape of a Reshape copy the input's size."""
    if "allowzero" in site.node.attributes:
        site.change({"allowzero": 0})


def tell_sizes(work: GraphEditor, site: Site, sizes: Sequence[Size]) -> None:
    """Compute the shape of a Reshape without -1, which is undefined for chunks without frames.

    Batch sizes are read from the inputs. The shape is a sum, because onnxruntime puts -1 into concatenated shapes.
    """
    work.check_sizes(site.owner, sizes)
    b, shape = site.before, _numbers(each.number or 0 for each in sizes)
    for index, each in enumerate(sizes):
        if each.number is None:
            here = _numbers(int(index == axis) for axis in range(len(sizes)))
            shape = b.add(shape, b.mul(here, computed_size(b, each, work.symbols)))
    site.feed(1, shape)
    copy_zeros(work, site)


def _numbers(numbers: Any) -> Operand:
    return constant(list(numbers), INT64, "numbers")


def take_the_rest(work: GraphEditor, site: Site, index: int, rank: int, number: int) -> None:
    """Set the size at an index of a Reshape's shape to a number, to 0, the size of the input, or to -1."""
    here, rest = constant(np.arange(rank) == index, ir.DataType.BOOL, "here"), constant(number, INT64, "rest")
    site.feed(1, site.before.op("Where", here, rest, site.input(1), name="shape"))
    copy_zeros(work, site)


def take_each(work: GraphEditor, site: Site, axes: Sequence[int]) -> None:
    """Replace a Gather that selects every frame in order with the frames themselves, with added axes."""
    numbers = site.node.inputs[1]
    assert numbers is not None
    work.replaced[site.node, 1] = numbers
    site.replace("Unsqueeze" if axes else "Identity")
    if axes and work.opset < 13:
        site.change({"axes": list(axes)})
    elif axes:
        site.feed(1, _numbers(axes))


def take_windows(work: GraphEditor, site: Site, x: AxisInfo, offsets: np.ndarray, index_axis: int, reach: int) -> None:
    """Make a Gather select the windows of a chunk, which has `reach` more frames than windows."""
    b, along_frames = site.before, [-1 if axis == index_axis else 1 for axis in range(offsets.ndim)]
    if work.step is not None:
        numbers = np.arange(int(work.step / x.every)).reshape(along_frames)
        indices: Operand = constant(numbers + offsets, INT64, "indices")
    else:
        assert x.axis is not None
        count = b.sub(b.size(site.input(), x.axis, x.rank), _numbers([reach]), "windows")
        zero, one = (constant(number, INT64, "number") for number in (0, 1))
        frames = b.reshape(b.op("Range", zero, b.squeeze(count, [0]), one, name="first"), along_frames)
        indices = b.add(frames, constant(offsets, INT64, "offsets"), "indices")
    work.replace_input(site, 1, indices)


def repeat_frame(_: GraphEditor, site: Site, axis: int, rank: int, count: int) -> None:
    """Repeat the output of a node, one frame, because only its size counts, and a chunk may have fewer frames."""
    output, repeats = str(site.output().name), _numbers(count if k == axis else 1 for k in range(rank))
    site.rename(site.behind.op("Tile", site.divert("frame"), repeats, name="frames"), output)


def keep_reduced(_: GraphEditor, site: Site, axes: Sequence[int], keepdims: bool) -> None:
    """Keep only the first element of each reduced axis, and drop the axis unless `keepdims`.

    onnxruntime (1.31) does not reduce axes of an empty input.
    """
    b, output, count = site.behind, str(site.output().name), len(axes)
    site.change({"keepdims": 1})
    reduced = b.op("Slice", site.divert("reduced"), name="kept", starts=[0] * count, ends=[1] * count, axes=list(axes))
    site.rename(reduced if keepdims else b.squeeze(reduced, axes), output)
