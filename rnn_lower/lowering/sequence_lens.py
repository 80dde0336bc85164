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

from rnn_lower.builder.constants import Constant, constant
from rnn_lower.builder.masks import Emitter
from rnn_lower.builder.moved import operand_of
from rnn_lower.builder.writer import Operand, declare
from rnn_lower.lowering.forms import Size, Span, Stream, as_operand, known_size
from rnn_lower.lowering.node import RecurrentNode

INT64 = ir.DataType.INT64

Once = Callable[[], Operand]
"""Emits when it is first called, so that nothing is emitted that nobody reads."""

AROUND_LOOP = ("ConstantOfShape", "ReduceMax")
"""Operators that a loop without choices needs beside those of every other."""


@dataclasses.dataclass(frozen=True)
class Lengths:
    """What sequence_lens comes to, and the ways that serve; nothing of it where all sequences are as long as X.

    nonempty: emits once where 0 < length [batch_size, 1].
    choice: where time < length [seq_length, batch_size, 1], which every step reads.
    spare: whether the loop may make a step of which its only row has none.
    """

    nonempty: Once | None = None
    choice: Stream | None = None
    cut: Cut | None = None
    order: Order | None = None
    spare: bool = False

    def zeroed(self, e: Emitter, y: Operand) -> Operand:
        """Y of one direction, [seq_length, 1, batch_size, hidden_size], with zeros after the end of each row."""
        mask = None if self.choice is None else self.choice.values
        if self.order is not None:
            mask = self.order.mask()
        if mask is not None:
            y = e.select(e.unsqueeze(mask, [1], "mask_direction"), y, None, "Y_valid")
        y = self.settled(e, y, "Y_valid")
        return y if self.cut is None else self.cut.padded(e, y)

    def settled(self, e: Emitter, states: Operand, name: str) -> Operand:
        """States [..., batch_size, hidden_size], zeros if the loop made a step that it only had to spare."""
        return self._where_nonempty(e, states, name) if self.spare else states

    def last(self, e: Emitter, first: Operand, every: Operand, name: str) -> Operand:
        """The state [batch_size, hidden_size] after the last step, where rows are in the order of their steps.

        first: the one before all steps, None for zeros.  every: those after each step, [seq_length, 1, batch_size,
        hidden_size]. If there may be none, both together are as many as there are numbers of steps, 0 included.
        """
        assert self.order is not None
        span, end = self.order.span, self.order.end
        if span.certain:
            found = e.gather(e.reshape(every, [-1, span.hidden_size], "rows"), end, name)
            return self._where_nonempty(e, found, f"{name}_valid")
        start = e.zeros([span.batch_size(), span.hidden_size]) if first is None else first
        before = e.unsqueeze(start, [0, 1], "before")
        return e.gather(e.reshape(e.concat([before, every], 0, "states"), [-1, span.hidden_size], "rows"), end, name)

    def _where_nonempty(self, e: Emitter, states: Operand, name: str) -> Operand:
        assert self.nonempty is not None
        return e.select(self.nonempty(), states, None, name)


@dataclasses.dataclass(frozen=True)
class Cut:
    """The steps of the longest row: so many, up to seq_length, and at least one if X has one: no loop is then empty.

    whole, span: of X before and after it is cut.
    """

    steps: Size
    whole: Span

    @property
    def span(self) -> Span:
        return dataclasses.replace(self.whole, seq_length=lambda: self.steps, has_steps=self.whole.certain)

    def steps_of(self, e: Emitter, x: Operand) -> Operand:
        if isinstance(self.steps, int):
            return e.slice(x, 0, 0, self.steps, "X_cut")
        return e.gather(x, e.iota(self.steps), "X_cut")

    def padded(self, e: Emitter, y: Operand) -> Operand:
        length = self.whole.seq_length()
        if isinstance(length, int) and isinstance(self.steps, int):
            left: Size = length - self.steps
        else:
            left = e.op("Sub", as_operand(length), as_operand(self.steps), name="steps_left")
        dims = [left, 1, self.whole.batch_size(), self.whole.hidden_size]
        padded = e.concat([y, e.zeros(dims, "nothing", kept=False)], 0, "Y_padded")
        declare(padded, e.dtype, [known_size(length), 1, self.whole.batch, self.whole.hidden_size])
        return padded


@dataclasses.dataclass(frozen=True)
class Order:
    """What serves around a loop in which no step chooses. Rows are those of [seq_length * batch_size, columns].

    mask: emits once what `Lengths.choice` holds.
    row: which one each step of a row that goes backwards is [seq_length, batch_size]; None where no direction does.
    end: which one, of the states of all steps, the last state is [batch_size]; of states that begin with the first
        where there may be no step; None where no last state is wanted.
    span: of X, as far as the loop goes.
    """

    mask: Once
    row: Operand
    end: Operand
    span: Span

    def reordered(self, e: Emitter, values: Operand, columns: int, name: str) -> Operand:
        """[seq_length, batch_size, columns] of as many values, each row in the order of its steps, or back from it.

        columns: above 0.
        """
        ordered = e.gather(e.reshape(values, [-1, columns], "rows"), self.row, name)
        declare(ordered, e.dtype, [known_size(self.span.seq_length()), self.span.batch, columns])
        return ordered

    def back_in_order(self, e: Emitter, y: Operand) -> Operand:
        """Y of a direction that goes backwards, [seq_length, 1, batch_size, hidden_size], as its steps gave it."""
        return e.unsqueeze(self.reordered(e, y, self.span.hidden_size, "Y_in_order"), [1], "Y_direction")


def is_whole(node: RecurrentNode) -> bool:
    """Whether all sequences are as long as X."""
    lengths = node.inputs.get("sequence_lens")
    return lengths is None or _is_full(operand_of(lengths), node.seq_length)


def _is_full(lengths: Operand, seq_length: object) -> bool:
    """Whether sequence_lens is known to say what the shape of X says anyway."""
    if not isinstance(lengths, Constant) or not isinstance(seq_length, int) or seq_length == 0:
        return False
    return bool(np.all(lengths.load() == seq_length))


def read_lengths(e: Emitter, node: RecurrentNode, span: Span, form: str) -> Lengths:
    """How sequence_lens of a node, whose sequences are not whole, is honoured in a form.

    In a straight line by a choice in each step, as it has few; in a loop as the target wants it.
    """
    H, lengths = span.hidden_size, operand_of(node.inputs["sequence_lens"])
    dtype, width = e.mask_type(H)
    with e.scope("sequence_lens"):
        some = functools.cache(
            lambda: e.squeeze(e.less_outer(constant([0], INT64), lengths, "has_steps"), [0], "nonempty")
        )
        nonempty = functools.cache(lambda: e.mask(some(), 1, H, "nonempty_mask"))
        if form == "unroll" and node.seq_length == 1:
            return Lengths(nonempty, choice=Stream(nonempty(), dtype, (span.static_batch, width), single=True))
        if form != "unroll" and e.habits.lengths_around_loop and e.truth and all(map(e.has, AROUND_LOOP)):
            return _around(e, node, lengths, some, nonempty, span)
        mask = e.mask(e.less_outer(e.iota(span.seq_length()), lengths), 2, H)
        return Lengths(nonempty, choice=Stream(mask, dtype, (span.static_batch, width)))


def _around(
    e: Emitter, node: RecurrentNode, lengths: Operand, some: Once, nonempty: Once, span: Span
) -> Lengths:  # fmt: skip
    """By a cut, by order, or both.  lengths: int32 [batch_size].  some: where they are above 0."""
    if span.seq_length() == 0:
        return Lengths(nonempty)
    whole = span
    steps = functools.cache(lambda: _steps(e, lengths, some(), whole))
    cut = None
    if span.static_batch == 1 or span.certain:
        longest = _longest(e, lengths, steps, span)
        cut = None if longest == span.seq_length() else Cut(longest, span)
    if span.static_batch == 1:
        full = isinstance(lengths, Constant) and bool(np.all(lengths.load() > 0))
        return Lengths(nonempty, cut=cut, spare=span.certain and not full)
    span = span if cut is None else cut.span
    times = functools.cache(lambda: e.iota(span.seq_length()))
    within = functools.cache(lambda: e.less_outer(times(), lengths))
    mask = functools.cache(lambda: e.mask(within(), 2, span.hidden_size))
    row, end = _rows(e, node, steps, some, times, within, span)
    return Lengths(nonempty, cut=cut, order=Order(mask, row, end, span))


def _longest(e: Emitter, lengths: Operand, steps: Once, span: Span) -> Size:
    """The steps of the longest row; at least 1 if X is certain to have one."""
    length = span.seq_length()
    if length == 1:
        return length
    if isinstance(lengths, Constant) and isinstance(length, int):
        return int(np.clip(lengths.load(), 1, length).max(initial=1))
    at_least = e.concat([constant([int(span.certain)], INT64), steps()], 0, "at_least")
    return e.op("ReduceMax", at_least, keepdims=0, name="longest")


def _steps(e: Emitter, lengths: Operand, some: Operand, span: Span) -> Operand:
    """The lengths, int64 [batch_size], from 0 to seq_length."""
    count, length = e.cast(lengths, ir.DataType.INT32, INT64, "lengths"), as_operand(span.seq_length())
    at_most = e.select(e.less(length, count, "beyond"), length, count, "at_most")
    return e.select(some, at_most, constant(0, INT64), "steps")


def _rows(
    e: Emitter, node: RecurrentNode, steps: Once, some: Once, times: Once, within: Once, span: Span
) -> tuple[Operand, Operand]:
    """`Order.row` and `Order.end`, each where the node needs it."""
    backwards, finals = any(node.directions), bool(set(node.outputs) - {"Y"})
    if not backwards and not finals:
        return None, None
    batch_size, row, end = span.batch_size(), None, None
    places = e.iota(batch_size, "places")
    last_time = e.sub(steps(), constant(1, INT64), "last_time") if backwards or span.certain else None

    def of(time: Operand, name: str) -> Operand:
        return e.add(e.mul(time, as_operand(batch_size), "before"), places, name)

    if backwards:
        column = e.unsqueeze(times(), [1], "times")
        row = of(e.select(within(), e.sub(last_time, column, "backwards"), column, "time"), "row")
    if finals:
        end = of(e.select(some(), last_time, constant(0, INT64), "end_time") if span.certain else steps(), "end")
    return row, end
