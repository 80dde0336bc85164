"""Arithmetic with sizes that are not known."""

from __future__ import annotations

from fractions import Fraction

from rnn_lower.shapes.sizes import ONE, TIME, Size, broadcast, product, size


def test_products_and_quotients():
    batch, time = size("N"), size(TIME)
    assert product([batch, time, size(6)]) == Size(Fraction(6), (TIME, "N"))
    assert (batch * time).over(batch) == time
    assert size(6).over(size(4)) is None
    assert batch.over(time) is None
    assert time.over(size(2)) == Size(Fraction(1, 2), (TIME,))
    assert size("N").over(size(2)) is None
    assert product([]) == ONE


def test_numbers():
    assert (size(3) * size(4)).number == 12
    assert size("N").number is None
    assert Size(Fraction(3), ("N",)).at({"N": 5}) == 15
    assert size(TIME).is_timed
    assert not size("N").is_timed


def test_broadcasting():
    assert broadcast([ONE, size("N")], "other") == size("N")
    assert broadcast([size("N"), size(3)], "other") == size(3)
    assert broadcast([size("N"), size("M")], "other") == size("other")
