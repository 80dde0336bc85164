"""Representations of values while a loop is unrolled, before any node computes them.

Known numbers (`np.ndarray`) fold. A step of a sequence (`Row`) is sliced only if a node reads it, and operations on a
single row are applied to all rows at once. A list that steps write into (`Table`) is represented by its rows: exporters
rewrite such a list at every step by ScatterND, ScatterElements, or Concat and Slice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from rnn_lower.builder.constants import Constant, from_tensor
from rnn_lower.builder.graph_builder import GraphBuilder
from rnn_lower.ir.walk import content_key, known_tensor
from rnn_lower.shapes.shape_info import ShapeInfo

FEW = 1 << 20
"""The maximum number of elements of a constant that is computed with."""


@dataclasses.dataclass(frozen=True)
class Row:
    """The row of a value at an index of axis 0; the value has `count` rows."""

    source: ir.Value
    index: int
    count: int


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """A value that consists of these rows along axis 0."""

    rows: tuple[Item, ...]


Item: TypeAlias = "ir.Value | np.ndarray | Row | Table | None"


class Items:
    """Converts items to values, each once. ranks: of the emitted values."""

    def __init__(self, b: GraphBuilder, shape_info: ShapeInfo) -> None:
        self.b, self._shape_info = b, shape_info
        self.ranks: dict[ir.Value, int] = {}
        self._values: dict[Any, ir.Value] = {}
        self._parts: dict[ir.Value, list[Any]] = {}

    # -- what is known -----------------------------------------------------------------------------------------------

    def array(self, item: Item) -> np.ndarray | None:
        """The numbers of an item if they are known and few, or None."""
        if isinstance(item, Table):
            rows = [self.array(row) for row in item.rows]
            return None if not rows or any(row is None for row in rows) else np.stack(rows)  # type: ignore[arg-type]
        if not isinstance(item, ir.Value):
            return item if isinstance(item, np.ndarray) else None
        tensor = known_tensor(item)
        return np.asarray(tensor.numpy()) if tensor is not None and tensor.size <= FEW else None

    def is_constant(self, item: Item) -> bool:
        return isinstance(item, np.ndarray) or (isinstance(item, ir.Value) and known_tensor(item) is not None)

    def sizes(self, item: Item) -> tuple[int | None, ...] | None:
        """The sizes of an item, as far as they are known."""
        if isinstance(item, np.ndarray):
            return item.shape
        if isinstance(item, Row):
            whole = self.sizes(item.source)
            return None if whole is None else whole[1:]
        if isinstance(item, Table):
            row = self.sizes(item.rows[0]) if item.rows else None
            return None if row is None else (len(item.rows), *row)
        if item in self.ranks:
            return (None,) * self.ranks[item]  # type: ignore[index]
        declared = self._shape_info.shape(item) if isinstance(item, ir.Value) else None
        return None if declared is None else tuple(size if isinstance(size, int) else None for size in declared)

    def rank(self, item: Item) -> int | None:
        sizes = self.sizes(item)
        return None if sizes is None else len(sizes)

    def shape(self, item: Item) -> tuple[int, ...] | None:
        """All sizes of an item if all are known, or None."""
        sizes = self.sizes(item)
        known = tuple(size for size in sizes or () if size is not None)
        return known if sizes is not None and len(known) == len(sizes) else None

    def count(self, item: Item) -> int | None:
        """The number of rows along axis 0, or None if unknown."""
        return len(item.rows) if isinstance(item, Table) else (self.sizes(item) or (None,))[0]

    def rows(self, item: Item) -> tuple[Item, ...] | None:
        """The rows of an item, each as an item."""
        if isinstance(item, Table):
            return item.rows
        if isinstance(item, np.ndarray) and item.ndim:
            return tuple(item)  # a numpy array for each row
        count = self.count(item)
        if not isinstance(item, ir.Value) or count is None:
            return None
        return tuple(Row(item, index, count) for index in range(count))

    # -- values ------------------------------------------------------------------------------------------------------

    def value(self, item: Item) -> ir.Value | None:
        """The value of an item, emitted at its first use."""
        if item is None or isinstance(item, ir.Value):
            return item
        key = key_of(item)
        if key not in self._values:
            write = self._row if isinstance(item, Row) else self._table if isinstance(item, Table) else self._constant
            self._values[key] = write(item)  # type: ignore[arg-type]
        return self._values[key]

    def _constant(self, numbers: np.ndarray) -> ir.Value:
        array = np.asarray(numbers)
        dtype = ir.DataType.from_numpy(array.dtype)
        return written(self.b.value(Constant(repr(key_of(array)).encode(), array.shape, dtype, lambda: array)))

    def _row(self, row: Row) -> ir.Value:
        """The row as a slice of the source; `simplify` later merges the slices into one Split."""
        if row.source not in self._parts:
            names = [f"{row.source.name}_{index}" for index in range(row.count)]
            self._parts[row.source] = self.b.split(row.source, 0, [1] * row.count, names)
        return written(self.b.squeeze(self._parts[row.source][row.index], [0], f"{row.source.name}_row"))

    def _table(self, table: Table) -> ir.Value:
        parts: list[ir.Value] = []
        for run in _runs(table.rows):
            first = run[0]
            if isinstance(first, Row) and len(run) == first.count:
                parts.append(first.source)
            elif isinstance(first, Row) and len(run) > 1:
                parts.append(written(self.b.slice(first.source, 0, first.index, first.index + len(run))))
            elif isinstance(first, np.ndarray):
                parts.append(self._constant(np.stack([np.asarray(row) for row in run])))
            else:
                parts += [written(self.b.unsqueeze(self.value(row), [0])) for row in run]
        return parts[0] if len(parts) == 1 else written(self.b.concat(parts, 0, "rows"))

    def weight(self, tensor: ir.TensorProtocol) -> Item:
        """The item for an initializer of a body: its numbers or, if they are many, an initializer of the model."""
        return np.asarray(tensor.numpy()) if tensor.size <= FEW else self.b.value(from_tensor(tensor))


def written(operand: Any) -> ir.Value:
    """The result of a builder as a value; it is one if an operand was."""
    assert isinstance(operand, ir.Value)
    return operand


def _runs(rows: Sequence[Item]) -> list[list[Item]]:
    """The rows in groups: consecutive rows of one source, and known rows."""
    runs: list[list[Item]] = []
    for row in rows:
        last = runs[-1][-1] if runs else None
        follows = isinstance(row, Row) and isinstance(last, Row) and row == Row(last.source, last.index + 1, row.count)
        known = isinstance(row, (np.ndarray, np.generic)) and isinstance(last, (np.ndarray, np.generic))
        if follows or known:
            runs[-1].append(row)
        else:
            runs.append([row])
    return runs


def key_of(item: Item) -> Any:
    """A key that equal items share."""
    if isinstance(item, (np.ndarray, np.generic)):
        return ("numbers", content_key(np.asarray(item)))
    return ("table", *map(key_of, item.rows)) if isinstance(item, Table) else item
