"""Unique names."""

from __future__ import annotations

from collections.abc import Iterable


class Names:
    """Returns unused names in a deterministic order."""

    def __init__(self, used: Iterable[str]) -> None:
        self._used = set(used)
        self._next: dict[str, int] = {}

    def unique(self, wanted: str) -> str:
        """Return `wanted` if it is unused, else `wanted_1`, `wanted_2` ..."""
        name = wanted
        while name in self._used:
            count = self._next.get(wanted, 1)
            self._next[wanted] = count + 1
            name = f"{wanted}_{count}"
        self._used.add(name)
        return name
