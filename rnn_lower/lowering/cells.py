"""One step: (projected input, state) -> new state, by the equations of the ONNX specification.

`x` is the projected input `Xt*(W^T) + Wb + Rb` of all gates, concatenated, computed before the loop. A state of None is
the zero state before the first step. A cell is independent of time, direction, opset and runtime.

In every sum the recurrent product is the first operand: with the input first, OpenVINO 2026.4.1 adds in place into the
buffer of the input, which overlaps the next state, and a lowered RNN in a Scan is silently wrong.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir

from rnn_lower.builder.graph_builder import GraphBuilder, Matrix, Operand
from rnn_lower.builder.scalar_functions import EQUATIONS, affine, scaled_tanh
from rnn_lower.builder.versions import exists
from rnn_lower.lowering.activations import Activation
from rnn_lower.options import QUANTIZED

State = tuple[Operand, ...]


@dataclasses.dataclass(frozen=True)
class Cell:
    """The equations of one direction of an operator with its weights (H = hidden_size).

    R: [H, gates * H], in the gates' order; for GRU the parts [H, 2 * H] of z and r, and [H, H] of h.
    Rbh: [H], of GRU's gate h if linear_before_reset is set.  P: P_i, P_o, P_f [H], or empty.
    bias: Wb + Rb [4 * H] of an LSTM whose x does not include it.
    """

    op_type: str
    hidden_size: int
    activations: Sequence[Activation]
    R: Sequence[Matrix]
    clip: float | None = None
    Rbh: Operand = None
    P: Sequence[Operand] = ()
    linear_before_reset: bool = False
    input_forget: bool = False
    bias: Operand = None

    def step(self, b: GraphBuilder, inputs: Sequence[Operand], state: State) -> State:
        """Emit one step: new states from the inputs of the step and the states."""
        return STEPS[self.op_type](b, self, *inputs, *state)

    def activate(self, b: GraphBuilder, activation: Activation, x: Operand, name: str) -> Operand:
        """f(clip(x))"""
        return activate(b, activation, x if self.clip is None else b.clip(x, -self.clip, self.clip), name)

    def split(self, b: GraphBuilder, x: Operand, names: Sequence[str]) -> list[Operand]:
        """Split x into parts of hidden_size columns, one for each name."""
        return b.split(x, 1, [self.hidden_size] * len(names), names)


def activate(b: GraphBuilder, activation: Activation, x: Operand, name: str) -> Operand:
    """Apply the activation: as an operator, or by its equation if the opset or the element type lacks the operator."""
    if activation.name in ("Sigmoid", "Tanh", "Relu"):
        return b.op(activation.name, x, name=name)
    alpha, beta = activation.alpha or 0.0, activation.beta or 0.0
    with b.scope(name):
        if activation.name in ("Affine", "ScaledTanh"):
            return (affine if activation.name == "Affine" else scaled_tanh)(b, x, alpha, beta)
        # Except for Sigmoid, Tanh and Relu, onnxruntime has these operators in float32 only.
        if b.dtype != ir.DataType.FLOAT or not exists(activation.name, b.opset):
            return EQUATIONS[activation.name](b, x, alpha, beta)
    parameters = {"alpha": activation.alpha, "beta": activation.beta}
    return b.op(activation.name, x, name=name, **{key: value for key, value in parameters.items() if value is not None})


def rnn_cell(b: GraphBuilder, cell: Cell, x: Operand, h: Operand) -> State:
    (f,), (R,) = cell.activations, cell.R
    # Ht = f(Xt*(Wi^T) + Ht-1*(Ri^T) + Wbi + Rbi)
    return (cell.activate(b, f, b.add(b.matmul(h, R), x), "H"),)


def gru_cell(b: GraphBuilder, cell: Cell, x_zr: Operand, x_h: Operand, h: Operand) -> State:
    (f, g), (R_zr, R_h) = cell.activations, cell.R
    # zt = f(Xt*(Wz^T) + Ht-1*(Rz^T) + Rbz + Wbz)
    # rt = f(Xt*(Wr^T) + Ht-1*(Rr^T) + Rbr + Wbr)
    z, r = cell.split(b, cell.activate(b, f, b.add(b.matmul(h, R_zr), x_zr), "zr"), ["z", "r"])
    if cell.linear_before_reset:
        # ht = g(Xt*(Wh^T) + (rt (.) (Ht-1*(Rh^T) + Rbh)) + Wbh)
        reset = b.mul(r, b.add(b.matmul(h, R_h), cell.Rbh), "reset")
    else:
        # ht = g(Xt*(Wh^T) + (rt (.) Ht-1)*(Rh^T) + Rbh + Wbh)
        reset = b.matmul(b.mul(r, h, "reset"), R_h)
    candidate = cell.activate(b, g, b.add(reset, x_h), "h")
    # Ht = (1 - zt) (.) ht + zt (.) Ht-1
    if h is not None and f.bounded and g.bounded:  # ht + zt (.) (Ht-1 - ht): one node less; no inf - inf possible
        return (b.add(candidate, b.mul(z, b.sub(h, candidate)), "H"),)
    return (b.add(b.mul(b.sub(b.scalar(1.0), z, "keep_new"), candidate), b.mul(z, h), "H"),)


def lstm_cell(b: GraphBuilder, cell: Cell, x: Operand, h: Operand, c: Operand) -> State:
    (f, g, activation_h), (R,) = cell.activations, cell.R
    gates, H = b.add(b.add(b.matmul(h, R), x, "gates"), cell.bias, "biased"), cell.hidden_size
    if not cell.P:
        # it = f(Xt*(Wi^T) + Ht-1*(Ri^T) + Wbi + Rbi), ot and ft alike; ct = g(Xt*(Wc^T) + Ht-1*(Rc^T) + Wbc + Rbc)
        iof, c_sum = b.split(gates, 1, [3 * H, H], ["iof_sum", "c_sum"])
        i, o, forget = cell.split(b, cell.activate(b, f, iof, "iof"), ["i", "o", "f"])
    else:
        P_i, P_o, P_f = cell.P
        i_sum, o_sum, f_sum, c_sum = cell.split(b, gates, ["i_sum", "o_sum", "f_sum", "c_sum"])
        # it = f(... + Pi (.) Ct-1),  ft = f(... + Pf (.) Ct-1)
        i = cell.activate(b, f, b.add(i_sum, b.mul(c, P_i)), "i")
        forget = None if cell.input_forget else cell.activate(b, f, b.add(f_sum, b.mul(c, P_f)), "f")
    candidate = cell.activate(b, g, c_sum, "c")
    if cell.input_forget:  # the gates are coupled; f's own weights are not used
        forget = b.sub(b.scalar(1.0), i, "f")
    # Ct = ft (.) Ct-1 + it (.) ct
    new_c = b.add(b.mul(forget, c, "kept"), b.mul(i, candidate, "entered"), "C")
    if cell.P:
        # ot = f(Xt*(Wo^T) + Ht-1*(Ro^T) + Po (.) Ct + Wbo + Rbo)
        o = cell.activate(b, f, b.add(o_sum, b.mul(new_c, P_o)), "o")
    # Ht = ot (.) h(Ct)
    return b.mul(o, activate(b, activation_h, new_c, "H_active"), "H"), new_c


STEPS: Mapping[str, Callable[..., State]] = {
    "RNN": rnn_cell, "GRU": gru_cell, "LSTM": lstm_cell, QUANTIZED: lstm_cell,
}  # fmt: skip

PRODUCTS: Mapping[str, tuple[int, ...]] = {"RNN": (1,), "GRU": (2, 1), "LSTM": (4,), QUANTIZED: (4,)}
"""The numbers of gates of the recurrent products; GRU needs r before the product of the candidate."""
