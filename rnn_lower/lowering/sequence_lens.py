"""Handle sequence_lens: a mask of the valid steps of each row, and selection by this mask.

A step updates a state if time < length and keeps it otherwise: a row that has ended keeps its final state, and a row of
a reverse direction keeps its initial state until its sequence begins. Y is zero after the end of a row.

The mask is boolean. Without Where (opset 8 and below) it contains ones and zeros; without numpy broadcasting (opset 6
and below) it is as wide as the tensor that it is multiplied with.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from rnn_lower.builder.constant_operands import operand_of
from rnn_lower.builder.constants import Constant, constant, filled, fold
from rnn_lower.builder.graph_builder import GraphBuilder, Operand
from rnn_lower.builder.versions import BROADCASTS_BY_RULE, exists, takes_integers
from rnn_lower.lowering.cells import State
from rnn_lower.lowering.forms import Extent, ScanInput, Step
from rnn_lower.lowering.node import RecurrentNode

INT32, INT64, BOOL = ir.DataType.INT32, ir.DataType.INT64, ir.DataType.BOOL

LARGEST_MASK = 1 << 24
"""The maximum number of elements of a constant mask that is stored in the model."""


@dataclasses.dataclass(frozen=True)
class Masking:
    """The effect of sequence_lens.

    steps: the mask [batch_size, columns] of each step; the columns are 1 if masks broadcast.
    of_y: emits the mask of all steps, [seq_length, 1, batch_size, columns].
    nonempty: emits 0 < length, [batch_size, 1].
    """

    steps: ScanInput
    of_y: Callable[[], Operand]
    nonempty: Callable[[], Operand]


def masked_step(step: Step, b: GraphBuilder, inputs: Sequence[Operand], state: State) -> State:
    """Compute the step, and keep the old state of rows outside their sequence."""
    *projected, mask = inputs
    new = step(b, projected, state)
    names = ("H_kept", "C_kept")
    return tuple(select(b, mask, value, old, name) for value, old, name in zip(new, state, names, strict=False))


def is_whole(node: RecurrentNode) -> bool:
    """Whether all sequences are known to be as long as X."""
    lengths = node.inputs.get("sequence_lens")
    if lengths is None:
        return True
    known = operand_of(lengths)
    if not isinstance(known, Constant) or not isinstance(node.seq_length, int) or node.seq_length == 0:
        return False
    return bool(np.all(known.load() == node.seq_length))


def read_masking(b: GraphBuilder, node: RecurrentNode, extent: Extent, form: str) -> Masking | None:
    """Return the masks of a node with sequence_lens, or None if all sequences are known to be as long as X."""
    if is_whole(node):
        return None
    lengths = operand_of(node.inputs["sequence_lens"])
    truth = exists("Where", b.opset)
    columns = 1 if b.opset >= BROADCASTS_BY_RULE else node.hidden_size
    shape = (extent.static_batch, columns)
    if isinstance(lengths, Constant) and node.static_length is not None:
        steps = node.static_length
        if steps * lengths.size * columns <= LARGEST_MASK:
            known = _known_mask(b, lengths, steps, columns, truth)
            first = b.squeeze(_known_mask(b, lengths, 1, columns, truth), [0])
            all_y = b.unsqueeze(known, [1], "Y_mask")
            return Masking(ScanInput(lambda: known, known.dtype, shape), lambda: all_y, lambda: first)

    def within(times: Operand, rank: int, axes: Sequence[int] = (1, 2)) -> Operand:
        """Return the mask times < lengths; times: int64, [seq_length] with rank 1, a scalar with rank 0.

        axes: the axes that `unsqueeze` adds to times.
        """
        if not takes_integers("Less", b.opset):
            return _mask_of_numbers(b, times, lengths, rank, columns)
        column = b.unsqueeze(lengths, [1], "lengths_column")
        steps = b.cast(times, INT64, INT32, "positions_int32")
        return b.less(b.unsqueeze(steps, axes, "positions_column") if rank else steps, column, "within")

    def step(t: int) -> Operand:
        return within(constant(t, INT64), 0)

    def whole() -> Operand:
        return within(b.positions(extent.seq_length()), 1)

    def of_y() -> Operand:
        if by_step is not None:  # no step reads the whole mask
            return within(b.positions(extent.seq_length()), 1, (1, 2, 3))
        return b.unsqueeze(whole(), [1], "Y_mask")

    by_step = step if form == "unroll" and truth else None
    return Masking(ScanInput(whole, BOOL if truth else b.dtype, shape, step=by_step), of_y, lambda: step(0))


def _known_mask(b: GraphBuilder, lengths: Constant, steps: int, columns: int, truth: bool) -> Constant:
    dtype = BOOL if truth else b.dtype

    def compute(held: np.ndarray) -> np.ndarray:
        mask = np.arange(steps)[:, np.newaxis] < held[np.newaxis, :]
        return np.repeat(mask[:, :, np.newaxis], columns, 2).astype(dtype.numpy())

    shape = (steps, *lengths.shape, columns)
    return fold(("mask", steps, columns), compute, lengths, shape=shape, name="within", dtype=dtype)


def _mask_of_numbers(b: GraphBuilder, times: Operand, lengths: Operand, rank: int, columns: int) -> Operand:
    """Return ones and zeros [seq_length, batch_size, columns] or [batch_size, columns], for opsets 1 to 8."""
    numbers = b.cast(lengths, INT32, b.dtype, "lengths_numbers")
    steps = b.cast(times, INT64, b.dtype, "positions_numbers")
    if b.opset >= BROADCASTS_BY_RULE:
        if rank:
            steps = b.unsqueeze(steps, [1], "positions_column")
        mask = b.cast(b.less(steps, numbers, "within"), BOOL, b.dtype, "mask_numbers")
        return b.unsqueeze(mask, [1 + rank], "mask")
    # A product with ones expands both sides to full size: only a suffix could be broadcast.
    column = b.unsqueeze(steps, [1] if rank else [0, 1], "positions_column")
    block = b.op("MatMul", column, b.ones_like(b.unsqueeze(numbers, [0], "row")), name="block")
    mask = b.cast(b.binary("Less", block, numbers, "within"), BOOL, b.dtype, "mask_numbers")
    if not rank:
        mask = b.squeeze(mask, [0], "mask_row")
    return b.op("MatMul", b.unsqueeze(mask, [1 + rank], "mask"), filled(1.0, (1, columns), b.dtype), name="mask_block")


def select(b: GraphBuilder, mask: Operand, chosen: Operand, other: Operand, name: str) -> Operand:
    """Return chosen if the mask is true, else other; None is zeros. A numeric mask: m * chosen + (1 - m) * other."""
    decided = _decided(mask)
    if decided is not None:
        return chosen if decided else other
    if exists("Where", b.opset):
        zero = b.scalar(0.0)
        return b.op("Where", mask, zero if chosen is None else chosen, zero if other is None else other, name=name)
    if other is None:
        return b.mul(chosen, mask, name)
    if isinstance(mask, Constant):
        rest: Operand = fold(("rest",), lambda m: (1 - m).astype(m.dtype), mask, shape=mask.shape, name="rest")
    else:
        rest = b.sub(b.scalar(1.0), mask, f"{name}_rest")
    return b.add(b.mul(chosen, mask), b.mul(other, rest), name)


def _decided(mask: Operand) -> bool | None:
    """Return the truth value of a constant mask if all its elements agree, else None."""
    if not isinstance(mask, Constant) or mask.size == 0:
        return None
    held = mask.load().astype(bool)
    return bool(held.flat[0]) if held.all() or not held.any() else None
