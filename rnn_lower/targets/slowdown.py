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
        1: {1: (1.07, 0.89, 0.72, 0.57), 8: (1.00, 0.76, 0.64, 0.55), 32: (0.84, 0.65, 0.58, 0.54)},
        64: {1: (7.68, 2.01, 1.35, 1.11), 8: (2.51, 1.26, 1.13, 1.06), 32: (1.38, 1.12, 1.07, 1.03)},
    },
    "GRU": {
        1: {1: (1.03, 0.88, 0.72, 0.58), 8: (0.90, 0.66, 0.57, 0.55), 32: (0.64, 0.53, 0.50, 0.51)},
        64: {1: (6.12, 1.92, 1.33, 1.09), 8: (1.86, 1.08, 1.03, 1.02), 32: (0.97, 0.97, 0.99, 0.99)},
    },
    "RNN": {
        1: {1: (1.03, 0.94, 0.87, 0.84), 8: (0.85, 0.59, 0.50, 0.51), 32: (0.58, 0.43, 0.48, 0.56)},
        64: {1: (1.90, 0.96, 0.83, 0.80), 8: (0.60, 0.35, 0.45, 0.53), 32: (0.22, 0.33, 0.45, 0.59)},
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
