"""Small slices of the soaks: random loops unrolled, random nodes raised back, near misses."""

from __future__ import annotations

import pytest
import soak_raising
import soak_unrolling


@pytest.mark.parametrize("seed", range(60))
def test_a_random_loop_is_unrolled_or_refused(seed):
    found = soak_unrolling.examine(seed)
    assert found in ("proved", "refused") or found.startswith("no model")


@pytest.mark.parametrize("first", [0, 8])
def test_random_nodes_come_back(first):
    results = [soak_raising.back(seed) for seed in range(first, first + 8)]
    assert results.count("back") >= 7
    assert not [result for result in results if result.startswith("WRONG")]


@pytest.mark.parametrize("seed", [3147, 3159], ids=["an LSTM whose forget gate is 1 - i", "only Y_c is read"])
def test_an_unrolled_lstm_comes_back(seed):
    assert soak_raising.back(seed) == "back"


@pytest.mark.parametrize("seed", [3019, 3282])
def test_a_loop_of_layout_1_comes_back(seed):
    assert soak_raising.back(seed) == "back"


@pytest.mark.parametrize("seed", range(30))
def test_a_near_miss_is_raised_to_nothing_wrong(seed):
    assert soak_raising.near_miss(seed) in ("stays", "raised, and the same")
