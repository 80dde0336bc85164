"""Pools and transposed convolutions by the ONNX text, which onnx's reference evaluator computes differently or refuses.

Onnx 1.23 is wrong for SAME_LOWER, `ceil_mode`, dilations, groups with a bias, and GlobalMaxPool of three axes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

from rnn_lower.ir.padding import Pads, pads_of

EVERYTHING = (slice(None), slice(None))
"""Slices for the batch and the channels."""


Find = Callable[..., Any]
"""Return the windows of an array; see `windows_of`."""


def padded(x: Any, pads: Pads, fill: Any) -> Any:
    """An array with padding around its positions, or without as many of them where the padding is negative."""
    if not any(n for pair in pads for n in pair):
        return x
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
    x: Any, kernel: Sequence[int], fill: Any, behind: Any = None, *, strides: Any, dilations: Any, pads: Any,
    auto_pad: Any, ceil_mode: Any,
) -> Any:  # fmt: skip
    """The windows [N, C, positions ..., kernel ...] of a pool or convolution.

    fill: the value of the padding.  behind: of what `ceil_mode` adds behind the padding, by default `fill`.
    Raises ValueError for a window that is larger than the input.
    """
    sizes, ones = x.shape[2:], [1] * len(kernel)
    strides, dilations = strides or ones, dilations or ones
    extents, more = extents_of(kernel, dilations), [(0, 0)] * len(kernel)
    around = pads_of(sizes, extents, strides, pads, auto_pad)
    if ceil_mode and auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        for axis, (n, r, s, (before, after)) in enumerate(zip(sizes, extents, strides, around, strict=True)):
            count = -(-(n + before + after - r) // s) + 1
            count -= (count - 1) * s >= n + before  # a window must begin in the input or before it
            more[axis] = (0, max(0, (count - 1) * s + r - n - before - after))
    wide = padded(padded(x, around, fill), more, fill if behind is None else behind)
    return sliding(wide, extents, strides, dilations)


class _Pool(OpRun):  # type: ignore[misc]  # onnx gives it no types
    """A pool: what becomes of its windows is up to `pooled`."""

    def _run(
        self, x: Any, auto_pad: Any = None, ceil_mode: Any = None, dilations: Any = None, kernel_shape: Any = None,
        pads: Any = None, strides: Any = None, **others: Any,
    ) -> tuple[Any, ...]:  # fmt: skip
        find = functools.partial(
            windows_of, kernel=kernel_shape, strides=strides, dilations=dilations, pads=pads, auto_pad=auto_pad,
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
        elements = find(x, fill=np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf)
        best = elements.max(axes)
        if len(self.onnx_node.output) < 2:
            return [(best, x.dtype)]
        if others.get("storage_order"):
            raise NotImplementedError("MaxPool with storage_order 1")
        places = find(np.arange(x.size).reshape(x.shape), fill=-1).reshape(*best.shape, -1)
        is_best = (elements.reshape(*best.shape, -1) == best[..., None]) & (places >= 0)
        return [(best, x.dtype), (np.take_along_axis(places, is_best.argmax(-1)[..., None], -1)[..., 0], np.int64)]


class AveragePool(_Pool):
    """AveragePool; `count_include_pad` counts the padding, but nothing behind it."""

    def pooled(self, x: Any, find: Find, axes: tuple[int, ...], **others: Any) -> list[tuple[Any, Any]]:
        """The means."""
        counts = find(np.ones((1, 1, *x.shape[2:]), bool), fill=bool(others.get("count_include_pad")), behind=False)
        return [(find(x, fill=0).sum(axes) / counts.sum(axes), x.dtype)]


class LpPool(_Pool):
    """LpPool."""

    def pooled(self, x: Any, find: Find, axes: tuple[int, ...], **others: Any) -> list[tuple[Any, Any]]:
        """The norms."""
        p = others.get("p") or 2
        return [((np.abs(find(x, fill=0)) ** p).sum(axes) ** (1 / p), x.dtype)]


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
        whole = [(n - 1) * s + r for n, s, r in zip(sizes, strides, extents_of(kernel, dilations), strict=True)]
        lacking = [0] * len(ones)
        if output_shape is None and auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
            around = pads_of(sizes, whole, strides, pads, auto_pad)
        else:
            natural = [r + e for r, e in zip(whole, extra, strict=True)]
            goal = [n * s for n, s in zip(sizes, strides, strict=True)] if output_shape is None else list(output_shape)
            sums = [max(0, n - o) for n, o in zip(natural, goal[-len(ones) :], strict=True)]
            around = [(n // 2, n - n // 2) if auto_pad == "SAME_UPPER" else (n - n // 2, n // 2) for n in sums]
            if output_shape is not None:
                lacking = [max(0, o - n) for n, o in zip(natural, goal[-len(ones) :], strict=True)]
        y = np.zeros((len(x), w.shape[1] * groups, *(r + e for r, e in zip(whole, extra, strict=True))), x.dtype)
        parts = zip(np.split(x, groups, 1), np.split(w, groups), np.split(y, groups, 1), strict=True)
        for inputs, weights, outputs in parts:
            for place in np.ndindex(*kernel):
                added = np.einsum("nc...,cm->nm...", inputs, weights[(*EVERYTHING, *place)])
                ways = zip(place, dilations, strides, sizes, strict=True)
                at = (slice(k * d, k * d + (n - 1) * s + 1, s) for k, d, s, n in ways)
                outputs[(*EVERYTHING, *at)] += added
        y = padded(y, [(-before, more - after) for (before, after), more in zip(around, lacking, strict=True)], 0)
        return (y if b is None else y + b.reshape(-1, *ones),)


WINDOWS = (MaxPool, AveragePool, LpPool, GlobalMaxPool, GlobalLpPool, ConvTranspose)
"""For `onnx.reference.ReferenceEvaluator(model, new_ops=WINDOWS)`."""
