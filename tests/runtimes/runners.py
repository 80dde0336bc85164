"""The runners of the product, and how far two results are apart."""

from __future__ import annotations

import numpy as np

from rnn_lower.proof.runtimes import RUNNERS, missing, version

__all__ = ["RUNNERS", "largest_difference", "missing", "version"]


def largest_difference(got: list, wanted: list[np.ndarray]) -> float:
    """Absolute; NaN when there is one."""
    pairs = zip(got, wanted, strict=True)
    return float(np.max([np.max(np.abs(np.asarray(a, np.float64) - b), initial=0.0) for a, b in pairs]))
