"""A count of what a soak found."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable


def tally(examine: Callable[[int], str], seeds: Iterable[int], fine: Callable[[str], bool]) -> dict[str, int]:
    """How often each thing was found, by its first words; what is not fine is printed, exceptions included."""
    counts: collections.Counter[str] = collections.Counter()
    for seed in seeds:
        try:
            found = examine(seed)
        except Exception as error:  # all of them are reported
            found = f"ERROR {type(error).__name__} {str(error)[:150]}"
        counts[found.split(":")[0].split("[")[0][:40]] += 1
        if not fine(found):
            print(seed, found, flush=True)
    return dict(counts)
