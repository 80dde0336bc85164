"""One step: (projected input, state) -> new state. No time, no direction, no layout, no opset.

Each cell is written as the equations of the ONNX text; `X_i` stands for the hoisted part `Xt*(W_i^T) + Wb_i + Rb_i`,
which the lowering computes for all steps at once. A state of None is the zero state before the first step.

Of the last equation, that of Ht, a step gives the terms. `CellKind.last` makes Ht of them: of those of one step, which
is the state, and of those of all steps at once, which is Y. No value can be both of a body, and onnxruntime stacks two
terms in less time than it copies a state.

In a sum of a recurrent product and a projected input the product stands first: with the input first, OpenVINO 2026.4.1
adds in the memory of the input, where the next state lies, and a lowered RNN in a Scan is silently wrong.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from rnn_lower.builder.masks import Emitter
from rnn_lower.builder.writer import Operand
from rnn_lower.lowering.activations import Activation

State = tuple[Operand, ...]

Terms = tuple[Operand, ...]
"""What the equation of Ht, the last one of a step, makes it of."""


@dataclasses.dataclass(frozen=True)
class Weights:
    """The weights of one direction as the cells use them, outside of the loop (H = hidden_size).

    recurrent: [H, columns] per product of the step.  reset_bias: [H], Rb of the gate whose recurrent sum r scales.
    peepholes: P_i, P_o, P_f [H] or None.
    """

    recurrent: Sequence[Operand]
    reset_bias: Operand = None
    peepholes: Sequence[Operand] = (None, None, None)


@dataclasses.dataclass(frozen=True)
class Cell:
    """One direction's step with its weights bound.

    Projected inputs and states are [..., batch_size, columns], columns a multiple of hidden_size on axis `gate_axis`.
    """

    hidden_size: int
    activations: tuple[Activation, ...]
    clip: float | None
    weights: Weights
    linear_before_reset: bool = False
    input_forget: bool = False
    gate_axis: int = 1

    def clipped(self, e: Emitter, x: Operand) -> Operand:
        return x if self.clip is None else e.clip(x, -self.clip, self.clip)

    def gates(self, e: Emitter, activation: Activation, x: Operand, names: Sequence[str]) -> list[Operand]:
        """Gates that lie side by side and share an activation take one call."""
        active = activation.emit(e, self.clipped(e, x), "".join(names))
        return self.split(e, active, names)

    def split(self, e: Emitter, x: Operand, names: Sequence[str]) -> list[Operand]:
        """One part of hidden_size for each name."""
        return e.split(x, self.gate_axis, [self.hidden_size] * len(names), names)


def rnn_step(cell: Cell, e: Emitter, projected: Sequence[Operand], state: State) -> tuple[Terms, State]:
    (h,), (x,), (f,) = state, projected, cell.activations
    # Ht = f(Xt*(Wi^T) + Ht-1*(Ri^T) + Wbi + Rbi)
    return (f.emit(e, cell.clipped(e, e.add(e.matmul(h, cell.weights.recurrent[0]), x)), "H"),), ()


def gru_step(cell: Cell, e: Emitter, projected: Sequence[Operand], state: State) -> tuple[Terms, State]:
    (h,), (*x_zr, x_h), (f, g) = state, projected, cell.activations
    *recurrent_zr, recurrent_h = cell.weights.recurrent
    # zt = f(Xt*(Wz^T) + Ht-1*(Rz^T) + Rbz + Wbz)
    # rt = f(Xt*(Wr^T) + Ht-1*(Rr^T) + Rbr + Wbr)
    zr = [e.add(e.matmul(h, R), x) for R, x in zip(recurrent_zr, x_zr, strict=True)]
    held = [["z", "r"]] if len(zr) == 1 else [["z"], ["r"]]
    z, r = [gate for x, names in zip(zr, held, strict=True) for gate in cell.gates(e, f, x, names)]
    if cell.linear_before_reset:  # one product could serve all gates; two need no Split, 4 to 12 % less at N = 1
        # ht = g(Xt*(Wh^T) + (rt (.) (Ht-1*(Rh^T) + Rbh)) + Wbh)
        reset = e.mul(r, e.add(e.matmul(h, recurrent_h), cell.weights.reset_bias), "reset")
    else:
        # ht = g(Xt*(Wh^T) + (rt (.) Ht-1)*(Rh^T) + Rbh + Wbh)
        reset = e.matmul(e.mul(r, h, "reset"), recurrent_h)
    candidate = e.add(reset, x_h)
    n = g.emit(e, cell.clipped(e, candidate), "h")
    # Ht = (1 - zt) (.) ht + zt (.) Ht-1
    if h is not None and f.bounded and g.bounded:  # one node less; inf - inf cannot arise
        return (n, e.mul(z, e.sub(h, n))), ()
    return (e.mul(e.sub(e.scalar(1.0), z, "keep_new"), n), e.mul(z, h)), ()


def lstm_step(cell: Cell, e: Emitter, projected: Sequence[Operand], state: State) -> tuple[Terms, State]:
    (h, c), (f, g, activation_h) = state, cell.activations
    p_i, p_o, p_f = cell.weights.peepholes
    sums = [e.add(e.matmul(h, R), x, "gates") for R, x in zip(cell.weights.recurrent, projected, strict=True)]
    if p_i is None:
        # it = f(Xt*(Wi^T) + Ht-1*(Ri^T) + Wbi + Rbi), ot and ft alike; ct = g(Xt*(Wc^T) + Ht-1*(Rc^T) + Wbc + Rbc)
        if len(sums) == 1 and f == g:
            i, o, forget, candidate = cell.gates(e, f, sums[0], ["i", "o", "f", "c"])
        else:
            H, axis = cell.hidden_size, cell.gate_axis
            x_iof, x_c = sums if len(sums) == 2 else e.split(sums[0], axis, [3 * H, H], ["iof_sum", "c_sum"])
            i, o, forget = cell.gates(e, f, x_iof, ["i", "o", "f"])
            candidate = g.emit(e, cell.clipped(e, x_c), "c")
    else:
        x_i, x_o, x_f, x_c = cell.split(e, sums[0], ["i_sum", "o_sum", "f_sum", "c_sum"])
        # it = f(... + Pi (.) Ct-1),  ft = f(... + Pf (.) Ct-1); the gate o waits for the new C
        i = f.emit(e, cell.clipped(e, e.add(x_i, e.mul(c, p_i))), "i")
        forget = None if cell.input_forget else f.emit(e, cell.clipped(e, e.add(x_f, e.mul(c, p_f))), "f")
        candidate = g.emit(e, cell.clipped(e, x_c), "c")
    if cell.input_forget:  # the gates are coupled; f's own weights do not matter
        forget = e.sub(e.scalar(1.0), i, "f")
    # Ct = ft (.) Ct-1 + it (.) ct
    new_c = e.add(e.mul(forget, c, "kept"), e.mul(i, candidate, "entered"), "C")
    if p_i is not None:
        # ot = f(Xt*(Wo^T) + Ht-1*(Ro^T) + Po (.) Ct + Wbo + Rbo)
        o = f.emit(e, cell.clipped(e, e.add(x_o, e.mul(new_c, p_o))), "o")
    # Ht = ot (.) h(Ct)
    return (o, activation_h.emit(e, new_c, "H_active")), (new_c,)


Step = Callable[[Cell, Emitter, Sequence[Operand], State], tuple[Terms, State]]
"""To the terms of the new first state, and the other new states."""

Last = Callable[[Emitter, Terms, str], Operand]
"""The last equation, of the terms of one step or of all, stacked; with a name for what it gives."""


def only(e: Emitter, terms: Terms, name: str) -> Operand:
    return terms[0]


def total(e: Emitter, terms: Terms, name: str) -> Operand:
    one, other = terms
    return e.add(one, other, name)


def product(e: Emitter, terms: Terms, name: str) -> Operand:
    one, other = terms
    return e.mul(one, other, name)


Parts = tuple[tuple[int, int], ...]
"""Gates that are multiplied together, as (first gate, end gate)."""


@dataclasses.dataclass(frozen=True)
class CellKind:
    """An operator's step, what its last equation does, and how its weights are cut for it.

    fewest: the gates of each product, in as few products as the equations allow.  by_activation: a product for each
    activation, which onnxruntime computes in one kernel with the sum and the activation: LSTM 13 % less time at N = 1,
    H = 32, and 1 to 7 % where products are the cost.  by_gate: a product for each gate, so that nothing is split, where
    that is faster still: GRU 1 to 4 % up to 128 units, but four products of an LSTM take 1 to 4 % longer than two and
    a Split.
    reset_gate: the gate whose recurrent sum r scales, Rb included, when linear_before_reset is set.
    """

    step: Step
    last: Last
    fewest: Parts
    by_activation: Parts
    by_gate: Parts | None = None
    reset_gate: int | None = None

    def advance(self, cell: Cell, e: Emitter, projected: Sequence[Operand], state: State) -> tuple[State, Terms]:
        """All new states, and the terms of the first of them."""
        terms, others = self.step(cell, e, projected, state)
        return (self.last(e, terms, "H"), *others), terms


CELLS: dict[str, CellKind] = {
    "RNN": CellKind(rnn_step, only, fewest=((0, 1),), by_activation=((0, 1),)),
    # The gates z and r first: r must be known before the product of the candidate.
    "GRU": CellKind(
        gru_step,
        total,
        fewest=((0, 2), (2, 3)),
        by_activation=((0, 2), (2, 3)),
        by_gate=((0, 1), (1, 2), (2, 3)),
        reset_gate=2,
    ),
    "LSTM": CellKind(lstm_step, product, fewest=((0, 4),), by_activation=((0, 3), (3, 4))),
}
