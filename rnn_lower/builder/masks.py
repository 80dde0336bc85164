"""Which rows of a batch are still within their sequence, and choosing by that.

A mask is of truth values where the runtime takes Where and a comparison. Else it is of ones and zeros: cast from a
comparison, or min(1, max(0, length - position)) where there is none. Of known lengths it can be a constant, and a step
in which all rows, or none, are within their sequence chooses nothing.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from rnn_lower.builder.constants import Constant, filled, fold
from rnn_lower.builder.primitives import Primitives
from rnn_lower.builder.versions import LESS_TAKES_INTEGERS, TABLE
from rnn_lower.builder.writer import Operand


class Emitter(Primitives):
    """All that is emitted: primitives and masks."""

    @property
    def compares(self) -> bool:
        """Whether positions and lengths can be compared, as integers where the opset lets them."""
        dtype = ir.DataType.INT32 if self.opset >= LESS_TAKES_INTEGERS else self.dtype
        return any(self.habits.rules.takes_type(op_type, dtype) for op_type in ("Less", "Greater"))

    @property
    def truth(self) -> bool:
        """Whether masks are truth values."""
        return self.has("Where") and self.compares

    @property
    def _prefers_constants(self) -> bool:
        """Whether what is known of masks is computed now; runtimes that take masks as they are get them so."""
        return self.habits.rules.static or not self.truth

    def less_outer(self, positions: Operand, limits: Operand, name: str = "within") -> Operand:
        """positions[t] < limits[n] as a condition [T, N]; positions int64 [T], limits int32 [N]."""
        if isinstance(positions, Constant) and isinstance(limits, Constant) and self._prefers_constants:
            truth = ir.DataType.BOOL
            return fold(("within",), lambda t, n: t[:, np.newaxis] < n, positions, limits, name=name, dtype=truth)
        if not self.compares:
            return self._within(positions, limits, name)
        if self.opset >= LESS_TAKES_INTEGERS:
            column = self.unsqueeze(self.cast(positions, ir.DataType.INT64, ir.DataType.INT32), [1], "column")
            return self._binary("Less", column, limits, name)
        numbers = self.cast(limits, ir.DataType.INT32, self.dtype, "limits")
        column = self.unsqueeze(self.cast(positions, ir.DataType.INT64, self.dtype), [1], "column")
        # Both sides in full size, by a product with ones: only a suffix could be broadcast.
        block = self.op("MatMul", column, self._ones_like(self.unsqueeze(numbers, [0], "row")), name="block")
        return self._binary("Less", block, numbers, name)

    def _within(self, positions: Operand, limits: Operand, name: str) -> Operand:
        """min(1, max(0, limit - position)), which is 1 or 0 for integers."""
        numbers = self.unsqueeze(self.cast(limits, ir.DataType.INT32, self.dtype, "limits"), [0], "row")
        column = self.unsqueeze(self.cast(positions, ir.DataType.INT64, self.dtype), [1], "column")
        return self.clip(self.sub(numbers, column, "left"), 0.0, 1.0, name)

    def mask_type(self, columns: int) -> tuple[ir.DataType, int]:
        """Element type and last axis of what `mask` makes."""
        if self.truth:
            return ir.DataType.BOOL, 1
        return self.dtype, 1 if self._masks_broadcast else columns

    @property
    def _masks_broadcast(self) -> bool:
        return self.opset >= TABLE["Where"].since

    def mask(self, condition: Operand, rank: int, columns: int, name: str = "mask") -> Operand:
        """A condition [..., N] made ready for `select` between [..., N, columns] values.

        With Where a trailing axis is enough. Before there was one, the mask is a block of ones and zeros of the full
        size, which no operator needs to broadcast.
        """
        if self.truth:
            return self.unsqueeze(condition, [rank], name)
        numbers = condition
        if self.compares or isinstance(condition, Constant):
            numbers = self.cast(condition, ir.DataType.BOOL, self.dtype, f"{name}_numbers")
        column = self.unsqueeze(numbers, [rank], name)
        if self._masks_broadcast:
            return column
        if isinstance(column, Constant):
            return fold(("widened", columns), lambda held: np.repeat(held, columns, -1), column, name=name)
        return self.op("MatMul", column, filled(1.0, (1, columns), self.dtype), name=name)

    def select(self, mask: Operand, a: Operand, b: Operand, name: str = "selected") -> Operand:
        """a where the mask holds, else b. Without Where: m * a + (1 - m) * b, so NaN and inf of the unselected leak."""
        decided = self._decided(mask)
        if decided is not None:
            chosen, other = (a, b) if decided else (b, a)
            chosen = self._zeros_like(other) if chosen is None else chosen
            if chosen is not None or other is None:
                return chosen
        if self.truth:
            zero = self.scalar(0.0)
            return self.op("Where", mask, zero if a is None else a, zero if b is None else b, name=name)
        rest = None if b is None else self.mul(self._rest(mask, name), b)
        return self.add(self.mul(mask, a), rest, name)

    def _rest(self, mask: Operand, name: str) -> Operand:
        if isinstance(mask, Constant):
            return fold(("rest",), lambda held: (1 - held).astype(held.dtype), mask, name="rest")
        return self.sub(self.scalar(1.0), mask, f"{name}_rest")

    def _decided(self, mask: Operand) -> bool | None:
        """What a constant mask is everywhere."""
        if not isinstance(mask, Constant) or mask.size == 0:
            return None
        held = mask.load().astype(bool)
        return bool(held.flat[0]) if held.all() or not held.any() else None

    def _zeros_like(self, other: Operand) -> Operand:
        """Zeros in the place of something, None where its size is not known."""
        outline = self.outline(other)
        sizes = None if outline is None else outline.sizes
        return None if sizes is None else filled(0.0, sizes, self.dtype)
