"""Sizes of axes as far as they are known: a number times symbols, one of which may be the length of the stream."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from fractions import Fraction

TIME = "\0time"
"""The symbol of the stream's length in frames of the input; symbols that begin so depend on it in another way."""

UNKNOWN = f"{TIME}?"
"""With which symbols begin that are some number that depends on the length of the stream, perhaps below zero."""

GROWS = "#grows"
"""The symbol of a size that is another after each chunk: how many frames are held back."""


@dataclasses.dataclass(frozen=True)
class Size:
    """times * the product of the symbols `of`, which are sorted."""

    times: Fraction
    of: tuple[str, ...] = ()

    @property
    def number(self) -> int | None:
        """The size where it is known."""
        return int(self.times) if not self.of and self.times.denominator == 1 else None

    @property
    def is_timed(self) -> bool:
        """Whether it depends on the length of the stream."""
        return any(symbol.startswith(TIME) for symbol in self.of)

    def __mul__(self, other: Size) -> Size:
        return Size(self.times * other.times, tuple(sorted((*self.of, *other.of))))

    def over(self, other: Size) -> Size | None:
        """The quotient where it is a size again: a whole number of what is left of the symbols."""
        left = list(self.of)
        for symbol in other.of:
            if symbol not in left:
                return None
            left.remove(symbol)
        if not other.times:
            return None
        found = Size(self.times / other.times, tuple(left))
        return found if found.is_timed or found.times.denominator == 1 else None

    def at(self, symbols: Mapping[str, int]) -> int:
        """The number when its symbols are these."""
        return int(self.times * math.prod(symbols[symbol] for symbol in self.of))


def size(value: int | str) -> Size:
    """A number, or a symbol."""
    return Size(Fraction(value)) if isinstance(value, int) else Size(Fraction(1), (value,))


ONE = size(1)


def product(sizes: Iterable[Size]) -> Size:
    return math.prod(sizes, start=ONE)


def total(sizes: Iterable[Size], otherwise: str) -> Size:
    """The sum of numbers, else a symbol of its own."""
    numbers = [one.number for one in sizes]
    known = [number for number in numbers if number is not None]
    return size(sum(known)) if len(known) == len(numbers) else size(otherwise)


def broadcast(sizes: Iterable[Size], otherwise: str) -> Size:
    """What sizes of one axis come to when they are broadcast, else a symbol of its own."""
    wide = {one for one in sizes if one != ONE}
    if len(wide) <= 1:
        return next(iter(wide), ONE)
    numbers = {one for one in wide if one.number is not None}
    return next(iter(numbers)) if len(numbers) == 1 else size(otherwise)
