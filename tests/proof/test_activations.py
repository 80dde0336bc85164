"""Activations as they are emitted, in floats: a million values of every size stay within what the page says of all."""

from __future__ import annotations

import re

import activations
import numpy as np
import pytest
from paths import ROOT
from strategies import ACTIVATIONS

PAGE = (ROOT / "docs" / "semantics.md").read_text(encoding="utf-8")


def documented() -> dict[tuple[str, str], tuple[float, float]]:
    """By activation and emitted operators: the largest error in ULP, and beside max(1, |f(x)|)."""
    rows = re.findall(r"^\| (\w+) \| `([\w ]+)` \| ([\d.e+-]+)[^|]* \| ([\d.e+-]+) \|", PAGE, re.MULTILINE)
    return {(name, emitted): (float(ulps), float(largest)) for name, emitted, ulps, largest in rows}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_errors_are_those_that_are_documented(name):
    found = activations.measure(name, every=4096)
    rows = {emitted for activation, emitted in documented() if activation == name}
    assert {variant.emitted for variant in found} == rows
    for variant in found:
        ulps, largest = documented()[name, variant.emitted]
        assert variant.worst <= ulps * 1.01  # the page has three digits
        assert variant.largest <= largest * 1.1
        assert variant.largest < 5e-7


def test_a_million_values_are_of_every_size_and_sign():
    x = np.concatenate(list(activations.values(4096)))
    exponents = np.frexp(x)[1]
    assert x.size >= 1 << 20
    assert set(range(-125, 129)) <= set(exponents.tolist())
    assert abs(np.signbit(x).mean() - 0.5) < 0.01


def test_errors_are_counted_in_steps_of_float32():
    variant = activations.Variant("Relu", "Relu", [], lambda x: x.astype(np.float32))
    exact = np.array([1.0, 1.0 + 2**-23, 3.0 + 2**-22, 2.0**-149, -1.5 * 2.0**-140])
    found = np.array([1.0, 1.0, 3.0, 0.0, -1.5 * 2.0**-140 + 2.0**-148])
    for x, wanted, steps in zip(found, exact, (0, 1, 1, 1, 2), strict=True):
        variant.worst = 0.0
        units = activations.per_unit(np.array([wanted]))
        variant.add(np.array([x]), np.array([wanted]), units)
        assert variant.worst == steps
