"""Legalization patterns for operators that only move elements; all of them are exact."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from rnn_lower.builder.constants import Constant, constant
from rnn_lower.builder.graph_builder import Operand
from rnn_lower.legalize.call import Call, PatternBuilder, Results, result_sizes

MOST_PARTS = 64
"""The maximum number of slices to emit for a Transpose."""


def by_reshape(b: PatternBuilder, call: Call) -> Results:
    """Replace Squeeze, Unsqueeze, Identity, or a Transpose that moves only axes of size 1, with Reshape."""
    sizes, shape = result_sizes(call), b.info(call.x).shape
    if sizes is None or shape is None:
        return None
    if call.op_type == "Transpose":
        moved = [axis for axis in call.parameters["perm"] if shape[axis] != 1]
        if moved != sorted(moved):
            return None
    return [b.op("Reshape", call.x, name=call.name, shape=sizes)]


def reshape_without_zero(b: PatternBuilder, call: Call) -> Results:
    """Drop allowzero from a Reshape to a shape that is known to have no 0, where it has no effect."""
    shape = call.parameters.get("shape") or result_sizes(call)
    if not call.parameters.get("allowzero") or shape is None or 0 in shape:
        return None
    return [b.op("Reshape", call.x, name=call.name, shape=list(shape))]


def reshape_by_ones(b: PatternBuilder, call: Call) -> Results:
    """Replace a Reshape that only adds or removes axes of size 1 with Unsqueeze or Squeeze."""
    before, after = b.info(call.x).sizes, result_sizes(call)
    if before is None or after is None or -1 in after:
        return None
    if len(after) > len(before):
        added = _added_ones(before, after)
        return None if added is None else [b.op("Unsqueeze", call.x, name=call.name, axes=added)]
    removed = _added_ones(tuple(after), list(before))
    return None if not removed else [b.op("Squeeze", call.x, name=call.name, axes=removed)]


def _added_ones(few: Sequence[int], many: Sequence[int]) -> list[int] | None:
    """Return the indices of the ones to insert into `few` to get `many`, or None."""
    for axes in itertools.combinations([k for k, size in enumerate(many) if size == 1], len(many) - len(few)):
        if [size for k, size in enumerate(many) if k not in axes] == list(few):
            return list(axes)
    return None


def reshape_by_parts(b: PatternBuilder, call: Call) -> Results:
    """Replace Reshape from [T, N, C] to [T * N, C], or back to it or [T, 1, N, C], with T Slices and a Concat."""
    before, after = b.info(call.x).sizes, result_sizes(call)
    if before is None or after is None or 0 in (*before, *after):
        return None
    joins = len(before) == 3 and len(after) == 2 and before[2] == after[1]
    parts = len(after) in (3, 4) and len(before) == 2 and before[1] == after[-1] and after[1:-2] in ([], [1])
    if not joins and not parts:
        return None
    T, N, added = after[0], after[-2], list(range(len(after) - 2))
    if joins:
        T, N, _ = before
    size = 1 if joins else N
    slabs = [b.slice(call.x, 0, t * size, (t + 1) * size, "slab") for t in range(T)]
    rows = [b.squeeze(slab, [0], "row") if joins else b.unsqueeze(slab, added, "row") for slab in slabs]
    return [b.concat(rows, 0, call.name)]


def squeeze_by_gather(b: PatternBuilder, call: Call) -> Results:
    """Replace Squeeze of one axis with Gather of index 0."""
    axes = call.parameters.get("axes") or []
    if len(axes) != 1:
        return None
    return [b.op("Gather", call.x, constant(0, ir.DataType.INT64, "first"), name=call.name, axis=axes[0])]


def transpose_by_parts(b: PatternBuilder, call: Call) -> Results:
    """Replace a Transpose that moves one axis to the front with one Slice per index and a Concat."""
    sizes, (axis, *rest) = b.info(call.x).sizes, call.parameters["perm"]
    if sizes is None or rest != sorted(rest) or not 0 < sizes[axis] <= MOST_PARTS:
        return None
    shape = [1, *(sizes[k] for k in rest)]
    parts = [b.reshape(b.slice(call.x, axis, k, k + 1, "part"), shape, "moved") for k in range(sizes[axis])]
    return [b.concat(parts, 0, call.name)]


def split_by_slices(b: PatternBuilder, call: Call) -> Results:
    if "split" not in call.parameters:  # the size to divide is unknown
        return None
    ends = np.cumsum(call.parameters["split"]).tolist()
    starts, axis = [0, *ends[:-1]], call.parameters["axis"]
    return [b.slice(call.x, axis, *part) for part in zip(starts, ends, call.names, strict=True)]


def one_slice(b: PatternBuilder, call: Call) -> tuple[int, int, int, int] | None:
    """Return (axis, start, end, size) of a Slice of one axis of known size."""
    shape, params = b.info(call.x).shape, call.parameters
    if shape is None or len(params.get("axes") or ()) != 1 or "steps" in params:
        return None
    axis, size = params["axes"][0], shape[params["axes"][0]]
    return None if size is None else (axis, params["starts"][0], min(params["ends"][0], size), size)


def slice_by_split(b: PatternBuilder, call: Call) -> Results:
    bounds = one_slice(b, call)
    if bounds is None or not 0 <= bounds[1] < bounds[2]:
        return None
    axis, start, end, size = bounds
    parts = [("before", start), (call.name, end - start), ("after", size - end)]
    names = [name for name, length in parts if length]
    if len(names) == 1:
        return [call.x]
    lengths = [length for _, length in parts if length]
    return [b.op_multi("Split", [call.x], names, axis=axis, split=lengths)[names.index(call.name)]]


def slice_by_gather(b: PatternBuilder, call: Call) -> Results:
    bounds = one_slice(b, call)
    if bounds is None:
        return None
    axis, start, end, _ = bounds
    positions = constant(list(range(start, end)), ir.DataType.INT64, "positions")
    return [b.op("Gather", call.x, positions, name=call.name, axis=axis)]


def gather_by_slices(b: PatternBuilder, call: Call) -> Results:
    """Replace Gather of constant indices with a Slice for each run of consecutive indices."""
    x, index = call.inputs
    axis, shape = call.parameters["axis"], b.info(x).shape
    if not isinstance(index, Constant) or len(index.shape) > 1 or shape is None:
        return None
    size = shape[axis]
    if size is None or index.size == 0:
        return None
    rows = [int(row) % size for row in index.load().ravel()]
    if not index.shape:
        return [b.squeeze(b.slice(x, axis, rows[0], rows[0] + 1, "place"), [axis], call.name)]
    runs: list[list[int]] = []
    for row in rows:
        if runs and runs[-1][1] == row:
            runs[-1][1] = row + 1
        else:
            runs.append([row, row + 1])
    return [b.concat([b.slice(x, axis, start, end, "run") for start, end in runs], axis, call.name)]


def concat_of_one(b: PatternBuilder, call: Call) -> Results:
    """Replace Concat of one operand with the operand."""
    return [call.x] if len(call.inputs) == 1 else None


def concat_of_concats(most: int, b: PatternBuilder, call: Call) -> Results:
    """Replace a Concat with a tree of Concats of at most `most` inputs."""
    if len(call.inputs) <= most:
        return None
    joined, axis = list(call.inputs), call.parameters["axis"]
    while len(joined) > most:
        groups = [joined[k : k + most] for k in range(0, len(joined), most)]
        joined = [b.op("Concat", *group, name="group", axis=axis) if len(group) > 1 else group[0] for group in groups]
    return [b.op("Concat", *joined, name=call.name, axis=axis)]


def _block(sizes: Sequence[int], axis: int) -> list[int]:
    """[1, product of the sizes before the axis, size of the axis, product of the sizes after it]"""
    return [1, math.prod(sizes[:axis]), sizes[axis], math.prod(sizes[axis + 1 :])]


def in_block(b: PatternBuilder, call: Call, channels: bool = False) -> Results:
    """Replace Slice, Split or Concat with one in rank 4: [1, before, axis, after], or [1, axis, before, after]."""
    shapes, results = [b.info(x).sizes for x in call.inputs], [result.sizes for result in call.results]
    params = dict(call.parameters)
    axis, before = params.get("axis", (params.get("axes") or [0])[0]), [shape for shape in shapes if shape is not None]
    after = [shape for shape in results if shape is not None]
    if (
        len(before) < len(shapes)
        or len(after) < len(results)
        or any(0 in shape for shape in (*before, *after))  # Reshape interprets 0 as the size of its input
        or len(params.get("axes") or [0]) != 1
        or "steps" in params
    ):
        return None
    if all(_block(shape, axis) == list(shape) and not channels for shape in before):
        return None  # already in this form
    target_axis = 1 if channels else 2
    params.update({"axis": target_axis} if "axis" in params else {"axes": [target_axis]})
    inputs = [b.reshape(x, _block(sizes, axis), "block") for x, sizes in zip(call.inputs, before, strict=True)]
    if channels:
        inputs = [_swapped(b, x, _block(sizes, axis)) for x, sizes in zip(inputs, before, strict=True)]
    parts: list[Operand] = list(b.op_multi(call.op_type, inputs, [f"{name}_block" for name in call.names], **params))
    if channels:
        blocks = [_block(sizes, axis) for sizes in after]
        parts = [_swapped(b, x, [n[0], n[2], n[1], n[3]]) for x, n in zip(parts, blocks, strict=True)]
    return [b.reshape(x, list(sizes), name) for x, sizes, name in zip(parts, after, call.names, strict=True)]


def _swapped(b: PatternBuilder, x: Operand, sizes: Sequence[int]) -> Operand:
    """Return x with axes 1 and 2 exchanged."""
    if 1 in sizes[1:3]:
        return b.reshape(x, [sizes[0], sizes[2], sizes[1], sizes[3]], "swapped")
    return b.transpose(x, [0, 2, 1, 3], "swapped")


def slice_of_all_axes(b: PatternBuilder, call: Call) -> Results:
    """Replace a Slice of one axis with a Slice that lists the bounds of all axes."""
    sizes, bounds = b.info(call.x).sizes, one_slice(b, call)
    if sizes is None or bounds is None or len(sizes) < 2:
        return None
    axis, start, end, _ = bounds
    starts = [start if k == axis else 0 for k in range(len(sizes))]
    ends = [end if k == axis else size for k, size in enumerate(sizes)]
    return [b.op("Slice", call.x, name=call.name, starts=starts, ends=ends, axes=list(range(len(sizes))))]


def in_rank_four(b: PatternBuilder, call: Call, direct: bool = True) -> Results:
    """Prepend axes of size 1 to get rank 4; for elementwise operators and Transpose.

    direct: whether the target must support the operator, else it is legalized in rank 4.
    """
    shapes, result = [b.info(x).sizes for x in call.inputs], result_sizes(call)
    if result is None or -1 in result or len(result) > 3:
        return None
    params = dict(call.parameters)
    if "perm" in params:
        more = 4 - len(result)
        params["perm"] = [*range(more), *(axis + more for axis in params["perm"])]
    inputs = []
    for x, sizes in zip(call.inputs, shapes, strict=True):
        if sizes is None:
            return None
        inputs.append(b.reshape(x, [1] * (4 - len(sizes)) + list(sizes), "of_rank_4"))
    emit = b.op_direct if direct else b.op
    same = emit(call.op_type, *inputs, name=f"{call.name}_of_rank_4", **params)
    return [b.reshape(same, result, call.name)]
