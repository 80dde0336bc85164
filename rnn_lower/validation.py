"""Validate numbers and strings from callers before any work starts."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from types import NoneType
from typing import Any

from rnn_lower.errors import COMMAND_LINE, RnnLowerError

LIMITS: Mapping[str, tuple[type, float, float]] = {
    "max_nodes": (int, 0, math.inf),
    "points": (int, 1, 1000),
    "runs": (int, 1, 1_000_000),
    "seed": (int, 0, math.inf),
    "rtol": (float, 0, math.inf),
    "atol": (float, 0, math.inf),
    "opset": (int, -math.inf, math.inf),
    "version": (int, -math.inf, math.inf),
    "seq_length": (int, 0, math.inf),
    "step": (int, -math.inf, 2**31 - 1),
}
"""The type and the range of each numeric argument; none may be infinite."""

LONGEST = {int: 10_000, float: 1000}
"""The maximum number of bits of an integer, by argument type: Python cannot print or convert longer ones."""


def check_numbers(**numbers: Any) -> None:
    """Raise RnnLowerError for an argument of the wrong type or out of its range."""
    for name, number in numbers.items():
        flag = f"--{name.replace('_', '-')}"
        check_number(flag if COMMAND_LINE.get() else name, number, *LIMITS[name])


def check_number(name: str, number: Any, kind: type = int, least: float = -math.inf, most: float = math.inf) -> None:
    if isinstance(number, bool) or not isinstance(number, int if kind is int else (int, float)):
        raise RnnLowerError(f"{name} is {number!r}; it must be {'an integer' if kind is int else 'a number'}")
    if isinstance(number, int) and number.bit_length() > LONGEST[kind]:
        raise RnnLowerError(f"{name} has {number.bit_length()} bits, but at most {LONGEST[kind]} bits are allowed")
    text = f"{name} is {number:g}" if isinstance(number, float) else f"{name} is {number}"
    if number == math.inf:
        raise RnnLowerError(f"{text}; it must be finite")
    if not number >= least:  # rejects NaN, too
        raise RnnLowerError(f"{text}; it must be {least} or more")
    if number > most:
        raise RnnLowerError(f"{text}; it must be at most {most}")


def check_texts(**strings: Any) -> None:
    """Raise RnnLowerError for an argument that is neither a string nor None, or contains a lone surrogate."""
    for name, text in strings.items():
        if not isinstance(text, (str, NoneType)) or re.search("[\ud800-\udfff]", text or ""):
            raise RnnLowerError(f"{name} is {text!r}; it must be a string")
