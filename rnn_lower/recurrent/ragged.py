"""Sequences that end before X does, as sequence_lens says: what a step may change, and which states are the last ones.

By choice: in each step a state becomes the new one where time < length, else it stays. A reverse direction begins in
the padding, and keeps its first state until its sequence begins.

A choice costs some runtimes several times what a product of elements does; there a loop makes none:

By cut: the longest row ends the loop, if there is one row alone, or if X may be padded, being of a fixed length.

By order: what a shorter row comes to after its end reaches nothing that counts, for Y is zeroed there, and the last
state is looked up among those of every step. A row that goes backwards is put in the order of its own steps before the
loop, and its Y back in order after it:

    step     0           1           ...  length - 1   length  ...  seq_length - 1
    time     length - 1  length - 2  ...  0            length  ...  seq_length - 1
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from rnn_lower.emit.constants import Constant, constant
from rnn_lower.emit.masks import Emitter
from rnn_lower.emit.moved import given
from rnn_lower.emit.writer import Operand, declare
from rnn_lower.recurrent.forms import Size, Span, Stream, known_size
from rnn_lower.recurrent.node import RecurrentNode

INT64 = ir.DataType.INT64


@dataclasses.dataclass(frozen=True)
class Lengths:
    """What sequence_lens comes to: nonempty, where 0 < length [batch_size, 1], and the ways that serve.

    choice: where time < length [seq_length, batch_size, 1], which every step reads.
    """

    nonempty: Operand = None
    choice: Stream | None = None
    cut: Cut | None = None
    order: Order | None = None

    def zeroed(self, e: Emitter, y: Operand) -> Operand:
        """Y of one direction, [seq_length, 1, batch_size, hidden_size], with zeros after the end of each row."""
        mask = self.choice if self.order is None else self.order.mask
        if mask is not None:
            y = e.select(e.unsqueeze(mask.values, [1], "mask_direction"), y, None, "Y_valid")
        return y if self.cut is None else self.cut.padded(e, self.settled(e, y, "Y_valid"))

    def settled(self, e: Emitter, states: Operand, name: str) -> Operand:
        """States [..., batch_size, hidden_size], zeros if the loop made a step although its only row has none."""
        made = self.cut is not None and self.cut.least > 0 and self.order is None
        return e.select(self.nonempty, states, None, name) if made else states


@dataclasses.dataclass(frozen=True)
class Cut:
    """The steps of the longest row: so many, up to seq_length, and at least one if X has one: no loop is then empty.

    whole, span: of X before and after it is cut.
    """

    steps: Size
    whole: Span

    @property
    def least(self) -> int:
        return _least(self.whole)

    @property
    def span(self) -> Span:
        return dataclasses.replace(self.whole, seq_length=lambda: self.steps, has_steps=self.least > 0)

    def steps_of(self, e: Emitter, x: Operand) -> Operand:
        if isinstance(self.steps, int):
            return e.slice(x, 0, 0, self.steps, "X_cut")
        return e.gather(x, e.iota(self.steps), "X_cut")

    def padded(self, e: Emitter, y: Operand) -> Operand:
        length = self.whole.seq_length()
        if isinstance(length, int) and isinstance(self.steps, int):
            left: Size = length - self.steps
        else:
            left = e.op("Sub", _scalar(length), _scalar(self.steps), name="steps_left")
        nothing = e.zeros([left, 1, self.whole.batch_size(), self.whole.hidden_size], "nothing")
        padded = e.concat([y, nothing], 0, "Y_padded")
        declare(padded, e.dtype, [known_size(length), 1, self.whole.batch, self.whole.hidden_size])
        return padded


@dataclasses.dataclass(frozen=True)
class Order:
    """What serves around a loop in which no step chooses. Rows are those of [seq_length * batch_size, columns].

    mask: as `Lengths.choice`.  row: which one each step of a row that goes backwards is [seq_length, batch_size].
    end: which one, of states that begin with the first, the last state is [batch_size].  span: of X.
    """

    mask: Stream
    row: Operand
    end: Operand
    span: Span

    def reordered(self, e: Emitter, values: Operand, columns: Size, name: str) -> Operand:
        """[seq_length, batch_size, columns] of as many values, each row in the order of its steps, or back from it."""
        if columns == 0:
            return values
        ordered = e.gather(e.reshape_to(values, [-1, columns], "rows"), self.row, name)
        declare(ordered, e.dtype, [known_size(self.span.seq_length()), self.span.batch, known_size(columns)])
        return ordered

    def back_in_order(self, e: Emitter, y: Operand) -> Operand:
        """Y of a direction that goes backwards, [seq_length, 1, batch_size, hidden_size], as its steps gave it."""
        return e.unsqueeze(self.reordered(e, y, self.span.hidden_size, "Y_in_order"), [1], "Y_direction")

    def last(self, e: Emitter, first: Operand, every: Operand, name: str) -> Operand:
        """The state [batch_size, hidden_size] after the last step.

        first: the one before all steps, None for zeros.  every: those after each step, [seq_length, 1, batch_size,
        hidden_size]. Together they are as many as there are numbers of steps, 0 included.
        """
        H = self.span.hidden_size
        before = e.unsqueeze(e.zeros([self.span.batch_size(), H]) if first is None else first, [0, 1], "before")
        return e.gather(e.reshape(e.concat([before, every], 0, "states"), [-1, H], "rows"), self.end, name)


def is_whole(node: RecurrentNode) -> bool:
    """Whether all sequences are as long as X."""
    lengths = node.inputs.get("sequence_lens")
    return lengths is None or is_full(given(lengths), node.seq_length)


def is_full(lengths: Operand, seq_length: object) -> bool:
    """Whether sequence_lens is known to say what the shape of X says anyway."""
    if not isinstance(lengths, Constant) or not isinstance(seq_length, int) or seq_length == 0:
        return False
    return bool(np.all(lengths.load() == seq_length))


def read_lengths(e: Emitter, node: RecurrentNode, lengths: Operand, span: Span, form: str) -> Lengths:
    """Of a node in a form, which in a straight line is the choice: it has few steps.  lengths: int32 [batch_size]."""
    H = span.hidden_size
    dtype, width = e.mask_type(H)
    with e.scope("sequence_lens"):
        some = e.squeeze(e.less_outer(constant([0], INT64), lengths, "has_steps"), [0], "nonempty")
        nonempty = e.mask(some, 1, H, "nonempty_mask")
        if form == "unroll" and node.seq_length == 1:
            return Lengths(nonempty, choice=Stream(nonempty, dtype, (span.static_batch, width), single=True))
        if form != "unroll" and e.habits.lengths_around_loop and e.truth:
            return _around(e, node, lengths, some, nonempty, span)
        within = e.less_outer(e.iota(span.seq_length()), lengths)
        return Lengths(nonempty, choice=Stream(e.mask(within, 2, H), dtype, (span.static_batch, width)))


def _around(
    e: Emitter, node: RecurrentNode, lengths: Operand, some: Operand, nonempty: Operand, span: Span
) -> Lengths:  # fmt: skip
    """some: where a length is above 0."""
    steps = functools.cache(functools.partial(_steps, e, lengths, some, span))
    cut, length = None, span.seq_length()
    if span.static_batch == 1 or isinstance(length, int):
        longest = _longest(e, lengths, steps, span)
        cut = Cut(longest, span) if longest != length else None
    if span.static_batch == 1:
        return Lengths(nonempty, cut=cut)
    span = span if cut is None else cut.span
    times = e.iota(span.seq_length())
    within = e.less_outer(times, lengths)
    dtype, width = e.mask_type(span.hidden_size)
    mask = Stream(e.mask(within, 2, span.hidden_size), dtype, (span.static_batch, width))
    row, end = _rows(e, node, steps, times, within, span)
    return Lengths(nonempty, cut=cut, order=Order(mask, row, end, span))


def _longest(e: Emitter, lengths: Operand, steps: Callable[[], Operand], span: Span) -> Size:
    length = span.seq_length()
    if isinstance(lengths, Constant) and isinstance(length, int):
        return int(np.clip(lengths.load(), 0, length).max(initial=_least(span)))
    at_least = e.concat([constant([_least(span)], INT64), steps()], 0, "at_least")
    return e.op("ReduceMax", at_least, keepdims=0, name="longest")


def _least(span: Span) -> int:
    """Of steps that X is known to have, 1 at the most."""
    length = span.seq_length()
    return min(length, 1) if isinstance(length, int) else 0


def _steps(e: Emitter, lengths: Operand, some: Operand, span: Span) -> Operand:
    """The lengths, int64 [batch_size], from 0 to seq_length. some: where they are above 0."""
    count, length = e.cast(lengths, ir.DataType.INT32, INT64, "lengths"), _scalar(span.seq_length())
    at_most = e.select(e.less(length, count, "beyond"), length, count, "at_most")
    return e.select(some, at_most, constant(0, INT64), "steps")


def _rows(
    e: Emitter, node: RecurrentNode, steps_of: Callable[[], Operand], times: Operand, within: Operand, span: Span
) -> tuple[Operand, Operand]:
    """`Order.row` and `Order.end`, each where the node needs it."""
    backwards, finals = any(node.directions), set(node.outputs) - {"Y"}
    if not backwards and not finals:
        return None, None
    batch_size, steps = span.batch_size(), steps_of()
    places = e.iota(batch_size, "places")

    def row(time: Operand, name: str) -> Operand:
        return e.add(e.mul(time, _scalar(batch_size), "before"), places, name)

    end = row(steps, "end") if finals else None
    if not backwards:
        return None, end
    column = e.unsqueeze(times, [1], "times")
    back = e.sub(e.sub(steps, constant(1, INT64), "last_time"), column, "backwards")
    return row(e.select(within, back, column, "time"), "row"), end


def _scalar(size: Size) -> Operand:
    return constant(size, INT64) if isinstance(size, int) else size
