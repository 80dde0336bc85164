"""Choose the sizes and lengths at which a node is compared with the subgraph that replaces it."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

from rnn_lower.proving.exact.call import OutOfScopeError
from rnn_lower.proving.exact.field import Array

LENGTHS, FEW_LENGTHS, MOST_LENGTHS, MOST_STEPS = 6, 4, 70, 10_000
LONGER, FEW_LONGER = 9, 5
"""Lengths to compare if the model leaves the length open: all below LENGTHS, and LONGER; with over LARGE weights, all
below FEW_LENGTHS, and FEW_LONGER; up to MOST_LENGTHS if the graph compares values with a constant, beyond which it may
behave differently. MOST_STEPS limits known lengths.
"""

ALL_VECTORS, LARGE, SHORT, MOST_VECTORS = 36, 300_000, 12, 64
"""Up to ALL_VECTORS vectors of sequence_lens are all compared. Of more, or with over LARGE weights, some are chosen:
each row has each length, or, beyond SHORT steps, some row has each length; at most MOST_VECTORS, fewer of long ones.
"""

MOST_ROWS = 64
"""The largest batch in which each row has another length."""

MORE_FEATURES = 9
"""The additional features of X in one case, if their number is free."""

MOST_PRODUCTS, FEW_PRODUCTS = 1 << 28, 1 << 24
"""The most multiplications to compare a large batch: if the graph compares integers with constants, and otherwise."""


@dataclasses.dataclass(frozen=True)
class Case:
    """The sizes and lengths of one comparison.

    lengths: sequence_lens, or None if the node has none.  more: additional features of X, if their number is free.
    """

    T: int
    N: int
    lengths: tuple[int, ...] | None
    point: int
    more: int = 0

    @property
    def vector(self) -> Array | None:
        return None if self.lengths is None else np.array(self.lengths, np.int64)

    def __str__(self) -> str:
        text = "" if self.lengths is None else f" and sequence_lens {list(self.lengths)}"
        return f"with seq_length {self.T}, batch_size {self.N}{text}"


@dataclasses.dataclass(frozen=True)
class Known:
    """What is known of a node before run time.

    T, N: seq_length and batch_size, or None if unknown.  lengths: the content of sequence_lens, or None if unknown.
    weights: the number of elements of R.  compared: the largest integer with which the subgraph compares.
    has_features: whether the number of features of X is known.
    """

    T: int | None
    N: int | None
    has_lengths: bool
    lengths: Array | None
    weights: int
    compared: int
    has_features: bool = True

    @property
    def is_open(self) -> bool:
        """Whether some length or batch size is not compared."""
        return self.T is None or self.N is None

    @property
    def is_large(self) -> bool:
        """Whether steps take so long that fewer are compared."""
        return self.weights > LARGE

    @property
    def longer(self) -> int:
        """A length beyond those that are all compared."""
        return FEW_LONGER if self.is_large else LONGER


Sizes = tuple[int, int, tuple[int, ...] | None]
"""T, N and lengths."""


def choose_cases(known: Known, points: int) -> tuple[list[Case], set[str]]:
    """The cases to compare, small sizes first, and what they omit; the last one is compared at every point.

    Raises OutOfScopeError if there would be too many, or none.
    """
    left_out = set[str]()
    sizes = [size for steps in _steps(known) for size in _at_length(known, steps, left_out)]
    if not sizes:
        raise OutOfScopeError("the constant sequence_lens contains a length greater than 0, but the sequence is empty")
    if known.N is None and known.lengths is None:
        sizes[-1:-1] = _large_batch(known, max(rows for _, rows, _ in sizes), left_out)
    cases = [Case(*size, point=index % points) for index, size in enumerate(sizes)]
    cases += [dataclasses.replace(cases[-1], point=point) for point in range(points) if point != cases[-1].point]
    if not known.has_features:
        cases.insert(-1, dataclasses.replace(cases[-1], more=MORE_FEATURES))
    return cases, left_out


def _steps(known: Known) -> list[int]:
    """The lengths of the sequence to compare."""
    most = max(FEW_LENGTHS if known.is_large else LENGTHS, known.compared + 2)
    if known.T is None and most > MOST_LENGTHS:
        raise OutOfScopeError(
            f"an emitted node compares integers with the constant {most - 2}; the proof supports constants "
            f"up to {MOST_LENGTHS - 2}"
        )
    if known.T is not None and known.T > MOST_STEPS:
        raise OutOfScopeError(f"the sequence has {known.T} steps, but the proof supports at most {MOST_STEPS}")
    return [known.T] if known.T is not None else [*range(most)] if most > known.longer else [*range(most), known.longer]


def _at_length(known: Known, steps: int, left_out: set[str]) -> list[Sizes]:
    """The sizes to compare at one length of the sequence."""
    T, N, lengths = known.T, known.N, known.lengths
    if not known.has_lengths:
        return [(steps, count, None) for count in _rows(known, steps)]
    if lengths is not None:
        if not steps and lengths.max(initial=0) > 0:  # a length beyond an empty sequence has no steps to read
            return []
        return [(steps, lengths.size, tuple(int(length) for length in lengths))]
    vectors = _vectors(steps, N, 0 if known.is_large else ALL_VECTORS)
    if T is None and steps == known.longer:
        vectors = vectors[:: -(-len(vectors) // 2)]
    most = max(4, min(MOST_VECTORS, MOST_STEPS // max(1, steps)))
    if len(vectors) > most:
        is_partial, vectors = True, vectors[:: -(-len(vectors) // most)]
    else:
        is_partial = N is not None and len({*vectors}) < len({*itertools.chain(*vectors)}) ** N
    if is_partial:
        left_out.add(f"the nodes are compared only for {len(vectors)} values of sequence_lens")
    return [(steps, len(vector), vector) for vector in vectors]


def _rows(known: Known, steps: int) -> tuple[int, ...]:
    """The batch sizes to compare at one length of a sequence without sequence_lens."""
    if known.N is not None:
        return (known.N,)
    if known.T is None and steps == known.longer:
        return (2,) if known.is_large else (5,)
    is_few = known.is_large and known.T is None and known.compared <= 1
    return (1 + 2 * (steps % 2),) if is_few else (1, 3)


def _large_batch(known: Known, largest: int, left_out: set[str]) -> list[Sizes]:
    """A batch with more rows than any integer that the subgraph compares. largest: the batch size so far."""
    steps, rows = 3 if known.T is None else known.T, max(known.compared, LONGER) + 2
    if steps * rows * known.weights > (MOST_PRODUCTS if known.compared else FEW_PRODUCTS):
        if known.compared:
            left_out.add(f"the nodes are compared only for batch sizes up to {largest}")
        return []
    cycle = itertools.cycle(range(-1, steps + 2) if steps else (-1, 0))
    return [(steps, rows, tuple(itertools.islice(cycle, rows)) if known.has_lengths else None)]


def _vectors(T: int, N: int | None, all_up_to: int) -> list[tuple[int, ...]]:
    """The vectors of sequence_lens to compare, also with lengths below 0 and above T."""
    lengths = list(range(-1, T + 2 if T else 1))
    rows = 2 if N is None else N
    alone = [(length,) for length in lengths] if N is None else []
    if len(lengths) ** rows <= all_up_to:
        return [*alone, *itertools.product(lengths, repeat=rows)]
    if N is None:
        rotated = [tuple(lengths[start:] + lengths[:start]) for start in range(len(lengths))]
        long = [*(rotated if all_up_to and T <= SHORT else rotated[:1]), tuple(lengths[::-1])]
        parts = [each[k : k + MOST_ROWS] for each in long for k in range(0, len(each), MOST_ROWS)]
        return [*(alone[-2:] if all_up_to else [(T,)]), *parts]
    uniform = [(length,) * rows for length in lengths] if rows > 1 else []
    distance = 1 if T <= SHORT else rows  # each row has each length, or some row has each length
    return uniform + [
        tuple(lengths[(start + 3 * row if distance == 1 else start + row) % len(lengths)] for row in range(rows))
        for start in range(0, len(lengths), max(1, distance))
    ]
