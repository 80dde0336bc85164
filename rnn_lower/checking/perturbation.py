"""What a rounding decides: which of two nearly equal values is the larger one, and so an index or a flag.

Everything that a recurrent node gives is multiplied by random numbers next to 1, as if it had been rounded otherwise.
An integer that the original itself gives then, where the lowered model gave it, is no difference. Values of float16
stay as they are: the next number to 1 is too far from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from rnn_lower.checking.wrap_node import put_around

NAME = "rnn_lower/nudge"

SIZE, TRIES = 1e-6, 200
"""How far from 1, and how often at most, which is enough for the argmax of 16 states that are all saturated."""


def differing(expected: Sequence[Any], actual: Sequence[Any]) -> list[int]:
    """The places of outputs of whole numbers or flags that differ in nothing but their values."""
    return [place for place, pair in enumerate(zip(expected, actual, strict=True)) if _differ(*pair)]


def _differ(expected: Any, actual: Any) -> bool:
    if isinstance(expected, list) or isinstance(actual, list):
        return False
    a, b = np.asarray(expected), np.asarray(actual)
    return a.dtype == b.dtype and a.shape == b.shape and a.dtype.kind in "iub" and not np.array_equal(a, b)


def undecided(
    run: Callable[[], Sequence[Any]], places: Sequence[int], expected: Sequence[Any], actual: Sequence[Any]
) -> dict[int, np.ndarray]:
    """By the place of an output: where it differs, and what the nudged original gives by `run` is the same at times."""
    differs = {place: expected[place] != actual[place] for place in places}
    found = {place: np.zeros_like(one) for place, one in differs.items()}
    for _ in range(TRIES):
        results = run()
        for place, one in differs.items():
            if np.shape(results[place]) == one.shape:
                found[place] |= one & (results[place] == actual[place])
        if all(np.array_equal(found[place], one) for place, one in differs.items()):
            break
    return found


def add(model: onnx.ModelProto) -> None:
    """Nudge what every recurrent node of a model gives, in place, wherever it is."""
    put_around(model, _nudged)


def _nudged(node: onnx.NodeProto, number: int) -> list[onnx.NodeProto]:
    made = [node]
    for place, name in enumerate(node.output):
        if name:
            exact = node.output[place] = f"{NAME}/{number}/{place}"
            noise, seed = f"{exact}/noise", float(10 * number + place)
            limits = {"low": 1 - SIZE, "high": 1 + SIZE}
            made.append(helper.make_node("RandomUniformLike", [exact], [noise], noise, seed=seed, **limits))
            made.append(helper.make_node("Mul", [exact, noise], [name], exact))
    return made
