"""What counts as a difference between chunks and whole sequences."""

from __future__ import annotations

import numpy as np
import pytest

from rnn_lower.checking.compare import Comparison
from rnn_lower.streaming.comparison.checking import OTHERS, compare

SAME, NEAR, FAR = [5.0, 0.1], [5.0, 0.1003], [5.0, 0.2]
"""The second is as near as the rounding of 5 * cos(x) where the cosine is small, but beyond the tolerance."""


@pytest.mark.parametrize(
    ("found", "others", "is_ok"),
    [(SAME, FAR, True), (NEAR, SAME, True), (NEAR, NEAR, False), (NEAR, FAR, False), (FAR, SAME, False)],
)
def test_a_difference_that_may_be_rounding_counts_if_other_inputs_confirm_it(found, others, is_ok):
    comparison, wanted = Comparison(1e-3, 1e-5), np.array(SAME, np.float32)
    runs = {3: found, 3 + OTHERS: others}
    compare(lambda number: [(["y"], [wanted], [np.array(runs[number], np.float32)])], 3, comparison)
    assert comparison.ok == is_ok


@pytest.mark.parametrize("other", [np.array([3, 4]), np.array([1, 2, 0]), np.array([1.0, 2.0])], ids=str)
def test_other_integers_shapes_and_types_count_at_once(other):
    comparison = Comparison(1e-3, 1e-5)
    compare(lambda number: [(["y"], [np.array([1, 2])], [other if number == 0 else np.array([1, 2])])], 0, comparison)
    assert not comparison.ok
