"""The padding of convolutions and pools, also where `auto_pad` stands for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Pads = list[tuple[int, int]]


def pads_of(sizes: Sequence[int], extents: Sequence[int], strides: Sequence[int], pads: Any, auto_pad: Any) -> Pads:
    """The padding before and after each axis, negative to drop elements. extents: of a window, with its dilation."""
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        sums = [(-(-n // s) - 1) * s + r - n for n, r, s in zip(sizes, extents, strides, strict=True)]
        before = [int((n + (auto_pad == "SAME_LOWER")) / 2) for n in sums]
        return [(n, total - n) for n, total in zip(before, sums, strict=True)]
    numbers = [0] * 2 * len(sizes) if pads is None or auto_pad == "VALID" else list(pads)
    return list(zip(numbers[: len(sizes)], numbers[len(sizes) :], strict=True))
