"""What lowering costs on onnxruntime, by what was measured: docs/speed.md, CPU provider, one thread, form auto.

A test holds this against the page.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rnn_lower.lowering.node import RecurrentNode

HIDDEN = (32, 128, 256, 512)

RATIOS: dict[str, dict[int, dict[int, tuple[float, ...]]]] = {
    "LSTM": {
        1: {1: (1.05, 0.84, 0.71, 0.58), 8: (0.96, 0.79, 0.64, 0.52), 32: (0.83, 0.67, 0.57, 0.54)},
        64: {1: (7.16, 1.78, 1.31, 1.06), 8: (2.45, 1.32, 1.11, 1.06), 32: (1.31, 1.15, 1.05, 1.03)},
    },
    "GRU": {
        1: {1: (1.04, 0.86, 0.70, 0.58), 8: (0.87, 0.68, 0.56, 0.54), 32: (0.69, 0.54, 0.51, 0.53)},
        64: {1: (5.60, 1.70, 1.27, 1.07), 8: (1.87, 1.14, 1.05, 1.01), 32: (0.98, 0.97, 1.00, 0.98)},
    },
    "RNN": {
        1: {1: (1.04, 0.95, 0.87, 0.80), 8: (0.86, 0.57, 0.45, 0.49), 32: (0.58, 0.33, 0.30, 0.44)},
        64: {1: (2.05, 0.75, 0.68, 0.72), 8: (0.42, 0.27, 0.33, 0.46), 32: (0.17, 0.24, 0.35, 0.48)},
    },
}  # fmt: skip
"""Time of the lowered node over that of the fused one, of forward nodes, by operator, seq_length, batch_size and, in a
row, HIDDEN. Both directions of a small row share a loop, and take 0.55 to 0.9 of that."""


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
