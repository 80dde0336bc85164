"""Unique names."""

from __future__ import annotations

from collections.abc import Iterable


class Names:
    """Hands out names that are not taken yet, in a deterministic order."""

    def __init__(self, used: Iterable[str]) -> None:
        self._used = set(used)
        self._next: dict[str, int] = {}

    def unique(self, wanted: str) -> str:
        """`wanted` itself when it is free, else `wanted_1`, `wanted_2` ..."""
        name = wanted
        while name in self._used:
            count = self._next.get(wanted, 1)
            self._next[wanted] = count + 1
            name = f"{wanted}_{count}"
        self._used.add(name)
        return name
