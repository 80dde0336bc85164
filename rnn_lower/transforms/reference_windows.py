"""Pools and transposed convolutions by the ONNX text, which onnx's reference evaluator computes differently or refuses.

Onnx 1.23 is wrong for SAME_LOWER, `ceil_mode`, dilations, groups with a bias, and GlobalMaxPool of three axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from onnx.reference.op_run import OpRun

Pads = list[tuple[int, int]]

EVERYTHING = (slice(None), slice(None))
"""Slices for the batch and the channels."""


class Windows(NamedTuple):
    """The windows of a pool: their elements [N, C, positions ..., kernel ...], and which of these belong to the input.

    counted: whether they belong to the input or to its padding, but not to what `ceil_mode` adds behind it.
    """

    elements: Any
    inside: Any
    counted: Any


Find = Callable[[Any, Any], Windows]
"""Return the windows of an array that is padded with a value."""


def pads_of(sizes: Sequence[int], extents: Sequence[int], strides: Sequence[int], pads: Any, auto_pad: Any) -> Pads:
    """The padding before and after each axis, negative to drop elements. extents: of a window, with its dilation."""
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        sums = [(-(-n // s) - 1) * s + r - n for n, r, s in zip(sizes, extents, strides, strict=True)]
        before = [int((n + (auto_pad == "SAME_LOWER")) / 2) for n in sums]
        return [(n, total - n) for n, total in zip(before, sums, strict=True)]
    numbers = [0] * 2 * len(sizes) if pads is None or auto_pad == "VALID" else list(pads)
    return list(zip(numbers[: len(sizes)], numbers[len(sizes) :], strict=True))


def padded(x: Any, pads: Pads, fill: Any) -> Any:
    """An array with padding around its positions, or without as many of them where the padding is negative."""
    kept = (slice(max(0, -a), n - max(0, -b)) for n, (a, b) in zip(x.shape[2:], pads, strict=True))
    around = [(0, 0), (0, 0), *((max(0, a), max(0, b)) for a, b in pads)]
    return np.pad(x[(*EVERYTHING, *kept)], around, constant_values=fill)


def extents_of(kernel: Sequence[int], dilations: Sequence[int]) -> list[int]:
    return [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]


def sliding(x: Any, extents: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> Any:
    """The windows [N, C, positions ..., kernel ...]. Raises ValueError for a window that is larger than the input."""
    windows = np.lib.stride_tricks.sliding_window_view(x, extents, tuple(range(2, x.ndim)))
    return windows[(*EVERYTHING, *(slice(None, None, step) for step in (*strides, *dilations)))]


def windows_of(
    x: Any, kernel: Sequence[int], fill: Any, *, strides: Any, dilations: Any, pads: Any, auto_pad: Any, ceil_mode: Any
) -> Windows:
    """The windows of a pool or convolution. fill: the value of the padding."""
    sizes, ones = x.shape[2:], [1] * len(kernel)
    strides, dilations = strides or ones, dilations or ones
    extents, behind = extents_of(kernel, dilations), [(0, 0)] * len(kernel)
    around = pads_of(sizes, extents, strides, pads, auto_pad)
    if ceil_mode and auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        for axis, (n, r, s, (before, after)) in enumerate(zip(sizes, extents, strides, around, strict=True)):
            count = -(-(n + before + after - r) // s) + 1
            count -= (count - 1) * s >= n + before  # a window must begin in the input or before it
            behind[axis] = (0, max(0, (count - 1) * s + r - n - before - after))
    there = np.ones((1, 1, *sizes), bool)
    arrays = (
        padded(padded(x, around, fill), behind, fill),
        padded(padded(there, around, False), behind, False),
        padded(padded(there, around, True), behind, False),
    )
    return Windows(*(sliding(array, extents, strides, dilations) for array in arrays))


class _Pool(OpRun):  # type: ignore[misc]  # onnx gives it no types
    """A pool: what becomes of its windows is up to `pooled`."""

    def _run(
        self, x: Any, auto_pad: Any = None, ceil_mode: Any = None, dilations: Any = None, kernel_shape: Any = None,
        pads: Any = None, strides: Any = None, **others: Any,
    ) -> tuple[Any, ...]:  # fmt: skip
        def find(array: Any, fill: Any) -> Windows:
            return windows_of(
                array, kernel_shape, fill, strides=strides, dilations=dilations, pads=pads, auto_pad=auto_pad,
                ceil_mode=ceil_mode,
            )  # fmt: skip

        axes = tuple(range(x.ndim, 2 * x.ndim - 2))
        return tuple(result.astype(dtype) for result, dtype in self.pooled(x, find, axes, **others))

    def pooled(self, x: Any, find: Find, axes: tuple[int, ...], **others: Any) -> list[tuple[Any, Any]]:
        """The results with their types. axes: of a window."""
        raise NotImplementedError


class MaxPool(_Pool):
    """MaxPool, with the output Indices."""

    def pooled(self, x: Any, find: Find, axes: tuple[int, ...], **others: Any) -> list[tuple[Any, Any]]:
        """The maxima and, if requested, their positions in the input."""
        elements = find(x, np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf).elements
        best = elements.max(axes)
        if len(self.onnx_node.output) < 2:
            return [(best, x.dtype)]
        if others.get("storage_order"):
            raise NotImplementedError("MaxPool with storage_order 1")
        places = find(np.arange(x.size).reshape(x.shape), -1).elements.reshape(*best.shape, -1)
        first = elements.reshape(*best.shape, -1).argmax(-1)[..., None]
        return [(best, x.dtype), (np.take_along_axis(places, first, -1)[..., 0], np.int64)]


class AveragePool(_Pool):
    """AveragePool; `count_include_pad` counts the padding, but nothing behind it."""

    def pooled(self, x: Any, find: Find, axes: tuple[int, ...], **others: Any) -> list[tuple[Any, Any]]:
        """The means."""
        found = find(x, 0)
        counts = (found.counted if others.get("count_include_pad") else found.inside).sum(axes)
        return [(found.elements.sum(axes) / counts, x.dtype)]


class LpPool(_Pool):
    """LpPool."""

    def pooled(self, x: Any, find: Find, axes: tuple[int, ...], **others: Any) -> list[tuple[Any, Any]]:
        """The norms."""
        p = others.get("p") or 2
        return [((np.abs(find(x, 0).elements) ** p).sum(axes) ** (1 / p), x.dtype)]


class GlobalMaxPool(OpRun):  # type: ignore[misc]
    """GlobalMaxPool of any rank."""

    def _run(self, x: Any) -> tuple[Any, ...]:
        return (x.max(tuple(range(2, x.ndim)), keepdims=True),)


class GlobalLpPool(OpRun):  # type: ignore[misc]
    """GlobalLpPool, which onnx 1.23 does not have."""

    def _run(self, x: Any, p: Any = None) -> tuple[Any, ...]:
        sums = (np.abs(x) ** (p or 2)).sum(tuple(range(2, x.ndim)), keepdims=True)
        return ((sums ** (1 / (p or 2))).astype(x.dtype),)


class ConvTranspose(OpRun):  # type: ignore[misc]
    """ConvTranspose with groups, `output_shape` and `auto_pad`."""

    def _run(
        self, x: Any, w: Any, b: Any = None, auto_pad: Any = None, dilations: Any = None, group: Any = None,
        kernel_shape: Any = None, output_padding: Any = None, output_shape: Any = None, pads: Any = None,
        strides: Any = None,
    ) -> tuple[Any, ...]:  # fmt: skip
        sizes, kernel, ones, groups = x.shape[2:], w.shape[2:], [1] * (x.ndim - 2), group or 1
        strides, dilations, extra = strides or ones, dilations or ones, output_padding or [0] * len(ones)
        if auto_pad in ("SAME_UPPER", "SAME_LOWER") and output_shape is None:
            output_shape = [n * s for n, s in zip(sizes, strides, strict=True)]
        whole = [(n - 1) * s + r for n, s, r in zip(sizes, strides, extents_of(kernel, dilations), strict=True)]
        around = pads_of(sizes, whole, strides, pads, None if output_shape is None else "VALID")
        if output_shape is not None:
            sums = [r + e - o for r, e, o in zip(whole, extra, list(output_shape)[-len(ones) :], strict=True)]
            around = [(n // 2, n - n // 2) if auto_pad == "SAME_UPPER" else (n - n // 2, n // 2) for n in sums]
        y = np.zeros((len(x), w.shape[1] * groups, *(r + e for r, e in zip(whole, extra, strict=True))), x.dtype)
        parts = zip(np.split(x, groups, 1), np.split(w, groups), np.split(y, groups, 1), strict=True)
        for inputs, weights, outputs in parts:
            for place in np.ndindex(*kernel):
                added = np.einsum("nc...,cm->nm...", inputs, weights[(*EVERYTHING, *place)])
                ways = zip(place, dilations, strides, sizes, strict=True)
                at = (slice(k * d, k * d + (n - 1) * s + 1, s) for k, d, s, n in ways)
                outputs[(*EVERYTHING, *at)] += added
        y = padded(y, [(-before, -after) for before, after in around], 0)
        return (y if b is None else y + b.reshape(-1, *ones),)


WINDOWS = (MaxPool, AveragePool, LpPool, GlobalMaxPool, GlobalLpPool, ConvTranspose)
"""For `onnx.reference.ReferenceEvaluator(model, new_ops=WINDOWS)`."""
