"""Sizes of axes, as far as they are known: a number times symbols, one of which may be the length of the stream."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping
from fractions import Fraction

TIME = "\0time"
"""The symbol for the stream's length in input frames; any other symbol with this prefix depends on that length in
some other way."""

UNKNOWN = f"{TIME}?"
"""The prefix of symbols for numbers that depend on the length of the stream and may be negative."""

CUT = " cut"
"""The suffix of symbols for numbers of frames that differ from those of a run over the whole sequence."""

GROWS = "#grows"
"""The symbol of a size that changes after each chunk: the number of frames held back."""


@dataclasses.dataclass(frozen=True)
class Size:
    """times * the product of the symbols `of`, which are sorted."""

    times: Fraction
    of: tuple[str, ...] = ()

    @property
    def number(self) -> int | None:
        """The number, if known."""
        return int(self.times) if not self.of and self.times.denominator == 1 else None

    @property
    def is_timed(self) -> bool:
        """Whether the size depends on the stream length."""
        return any(symbol.startswith(TIME) for symbol in self.of)

    @property
    def is_cut(self) -> bool:
        """Whether the size counts fewer frames than a run over the whole sequence has."""
        return any(symbol.startswith(TIME) and symbol.endswith(CUT) for symbol in self.of)

    def __mul__(self, factor: Size) -> Size:
        return Size(self.times * factor.times, tuple(sorted((*self.of, *factor.of))))

    def over(self, divisor: Size) -> Size | None:
        """The quotient, if it is a whole number times the remaining symbols."""
        symbols = list(self.of)
        for symbol in divisor.of:
            if symbol not in symbols:
                return None
            symbols.remove(symbol)
        if not divisor.times:
            return None
        quotient = Size(self.times / divisor.times, tuple(symbols))
        return quotient if quotient.is_timed or quotient.times.denominator == 1 else None

    def at(self, symbols: Mapping[str, int]) -> int:
        """The number for these values of the symbols."""
        return int(self.times * math.prod(symbols[symbol] for symbol in self.of))


def size(value: int | str) -> Size:
    """A number, or a symbol."""
    return Size(Fraction(value)) if isinstance(value, int) else Size(Fraction(1), (value,))


ONE = size(1)

_FRAMES = re.compile(rf"{TIME}(?:\?(-?\d+(?:/\d+)?)([+-]\d+)|([+-]\d+) of (\d+(?:/\d+)?))({CUT})?")


def frames(times: Fraction, more: int = 0, cut: bool = False) -> Size:
    """The size times * TIME + more, as a product or as a symbol.

    cut: the stream has no more, but a run over the whole has, so that nothing is known of their number there.
    """
    return size(f"{TIME}{more:+d} of {times}{CUT * cut}") if more or cut else Size(times, (TIME,))


def computed(times: Fraction, more: int, cut: bool = False) -> Size:
    """The size marked as computed, so that chunks need not have this many frames."""
    return size(f"{UNKNOWN}{times}{more:+d}{CUT * cut}") if times else size(more)


def linear(dim: Size, in_stream: bool = False) -> tuple[Fraction, int] | None:
    """The pair (times, more) of a size times * TIME + more over the whole sequence; else None.

    in_stream: of the frames that a stream has, which may be fewer.
    """
    if not dim.of:
        return None if dim.number is None else (Fraction(0), dim.number)
    if len(dim.of) > 1 or dim.of[0] == TIME:
        return (dim.times, 0) if dim.of == (TIME,) else None
    parts = _FRAMES.fullmatch(dim.of[0])
    if parts is None or (parts[5] and not in_stream):
        return None
    times, more = Fraction(parts[1] or parts[4]) * dim.times, int(parts[2] or parts[3]) * dim.times
    return (times, int(more)) if more.denominator == 1 else None


def product(sizes: Iterable[Size]) -> Size:
    return math.prod(sizes, start=ONE)


def broadcast(sizes: Iterable[Size], otherwise: str) -> Size:
    """The broadcast of sizes of one axis, or a new symbol."""
    wide = {dim for dim in sizes if dim != ONE}
    if len(wide) <= 1:
        return next(iter(wide), ONE)
    numbers = {dim for dim in wide if dim.number is not None}
    return next(iter(numbers)) if len(numbers) == 1 else size(otherwise)
