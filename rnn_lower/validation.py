"""What callers ask for by numbers and names, looked at before any work is done with it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from types import NoneType
from typing import Any

from rnn_lower.errors import RnnLowerError

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
    "step": (int, -math.inf, math.inf),
}
"""Numbers that can be asked for: whole ones or not, the least and the most; nothing may be infinite."""

LONGEST = {int: 10_000, float: 1000}
"""Bits of whole numbers where such are asked for, or any: longer ones Python does not print, or makes no float of."""


def check_numbers(**asked: Any) -> None:
    """Raises RnnLowerError for what is no number of its kind or out of its limits."""
    for name, number in asked.items():
        check_number(name, number, *LIMITS[name])


def check_number(name: str, number: Any, kind: type = int, least: float = -math.inf, most: float = math.inf) -> None:
    if isinstance(number, bool) or not isinstance(number, int if kind is int else (int, float)):
        raise RnnLowerError(f"{name} is {number!r}; it must be a {'whole ' if kind is int else ''}number")
    if isinstance(number, int) and number.bit_length() > LONGEST[kind]:
        raise RnnLowerError(f"{name} is a number of {number.bit_length()} bits; it must be of {LONGEST[kind]} at most")
    text = f"{name} is {number:g}" if isinstance(number, float) else f"{name} is {number}"
    if number == math.inf:
        raise RnnLowerError(f"{text}; it must be a number that is not infinite")
    if not number >= least:  # nor NaN
        raise RnnLowerError(f"{text}; it must be {least} or more")
    if number > most:
        raise RnnLowerError(f"{text}; it must be {most} at most")


def check_texts(**asked: Any) -> None:
    """Raises RnnLowerError for what is neither a text nor None, or holds half a character."""
    for name, text in asked.items():
        if not isinstance(text, (str, NoneType)) or re.search("[\ud800-\udfff]", text or ""):
            raise RnnLowerError(f"{name} is {text!r}; it must be a text")
