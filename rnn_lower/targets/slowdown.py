"""What lowering costs on onnxruntime, by what was measured: docs/speed.md, CPU provider, one thread, form auto.

A test holds this against the page.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rnn_lower.recurrent.node import RecurrentNode

HIDDEN = (32, 128, 256, 512)

RATIOS: dict[str, dict[int, dict[int, tuple[float, ...]]]] = {
    "LSTM": {
        1: {1: (1.02, 0.88, 0.70, 0.56), 8: (0.94, 0.74, 0.63, 0.55), 32: (0.81, 0.64, 0.57, 0.55)},
        64: {1: (5.81, 1.78, 1.30, 1.10), 8: (2.10, 1.25, 1.12, 1.05), 32: (1.22, 1.13, 1.07, 1.02)},
    },
    "GRU": {
        1: {1: (1.04, 0.87, 0.73, 0.57), 8: (0.90, 0.68, 0.58, 0.53), 32: (0.67, 0.53, 0.52, 0.52)},
        64: {1: (5.21, 1.76, 1.31, 1.11), 8: (1.66, 1.12, 1.05, 1.02), 32: (0.94, 0.99, 1.00, 0.99)},
    },
    "RNN": {
        1: {1: (1.02, 0.93, 0.86, 0.85), 8: (0.86, 0.61, 0.51, 0.52), 32: (0.60, 0.44, 0.48, 0.57)},
        64: {1: (1.82, 0.96, 0.85, 0.82), 8: (0.62, 0.36, 0.45, 0.54), 32: (0.23, 0.34, 0.48, 0.60)},
    },
}  # fmt: skip
"""Time of the lowered node over that of the fused one, by operator, seq_length, batch_size and, in a row, HIDDEN."""


def expected(node: RecurrentNode) -> float:
    """How many times as long the lowered node takes as the fused one, at the nearest sizes that were measured.

    What is not known counts as 1 row, and as more than one step.
    """
    length, batch = node.static_length or 64, node.static_batch or 1
    by_length = RATIOS[node.op_type]
    by_batch = by_length[1 if length == 1 else max(by_length)]
    row = by_batch[_nearest(batch, by_batch)]
    return row[HIDDEN.index(_nearest(node.hidden_size, HIDDEN))]


def _nearest(size: int, sizes: Iterable[int]) -> int:
    """By ratio."""
    return min(sizes, key=lambda known: abs(math.log(size / known)))
