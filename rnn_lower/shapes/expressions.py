"""Sizes that are declared as expressions of other sizes, such as 4*s26, as torch.export writes them."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

MOST_TRIED = 4096
"""The largest value of an expression for which sizes are tried."""


def names_in(symbol: int | str) -> frozenset[str]:
    """The names in an expression; empty for a name alone. A name such as batch-size may also be read as one."""
    try:
        names = ir.SymbolicDim(symbol).free_symbols() if isinstance(symbol, str) else frozenset()
    except ValueError:  # with spaces, for example
        return frozenset()
    return frozenset() if symbol in names else frozenset(names)


def evaluated(symbol: str, sizes: Mapping[str, int]) -> int | None:
    """The number of an expression of these sizes, or None if it is none."""
    names = names_in(symbol)
    number = ir.SymbolicDim(symbol).evaluate(dict(sizes)) if names and names <= sizes.keys() else None
    return number if isinstance(number, int) and number >= 0 else None


def solution(symbol: str, name: str, number: int) -> int | None:
    """The least size with this name for which an expression of it alone has this value, or None."""
    alone = number <= MOST_TRIED and names_in(symbol) == {name}
    return next((each for each in range(MOST_TRIED if alone else 0) if evaluated(symbol, {name: each}) == number), None)
