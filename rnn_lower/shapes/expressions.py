"""Sizes that are declared as expressions of other sizes, such as 4*s26, as torch.export writes them."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

import onnx_ir as ir

LONGEST, MOST_WORDS, MOST_TRIED = 256, 10, 4096
"""The most characters of an expression, the most words in it, and the size below which one is solved."""

ERRORS = (ValueError, ArithmeticError, RecursionError, TypeError, AttributeError)
"""What onnx_ir and sympy raise for text that is no expression, such as `mod(T)`."""


def names_in(symbol: int | str) -> frozenset[str]:
    """The names in an expression; empty for a name alone. A name such as batch-size may also be read as one."""
    parsed = _parsed(symbol)
    return frozenset() if parsed is None else frozenset(parsed.free_symbols())


def evaluated(symbol: str, sizes: Mapping[str, int]) -> int | None:
    """The number of an expression of these sizes, or None if it is no size."""
    parsed = _parsed(symbol)
    return _number(parsed, sizes) if parsed is not None and parsed.free_symbols() <= sizes.keys() else None


def solution(symbol: str, name: str, number: int) -> int | None:
    """The least size with this name for which an expression of it alone has this value, or None."""
    parsed = _parsed(symbol)
    if parsed is None or parsed.free_symbols() != {name}:
        return None
    return next((size for size in range(MOST_TRIED) if _number(parsed, {name: size}) == number), None)


@functools.cache
def _parsed(symbol: int | str) -> ir.SymbolicDim | None:
    """The expression, or None for a name alone, and for text that is none or may take long to evaluate."""
    if not isinstance(symbol, str) or len(symbol) > LONGEST or "**" in symbol:
        return None
    if len(re.findall(r"[^\W\d]\w*", symbol)) > MOST_WORDS and "(" in symbol:
        return None
    try:
        dim = ir.SymbolicDim(symbol)
        return None if symbol in dim.free_symbols() or not dim.free_symbols() else dim
    except ERRORS:
        return None


def _number(dim: ir.SymbolicDim, sizes: Mapping[str, int]) -> int | None:
    try:
        number = dim.evaluate(dict(sizes))
    except ERRORS:  # such as a division by zero
        return None
    return number if isinstance(number, int) and number >= 0 else None
