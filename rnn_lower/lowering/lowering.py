"""Lower one recurrent node to its subgraph: layout, directions, input projection, masks, optional outputs.

lower_node -> carry -> scan | loop | unroll -> rnn_cell | gru_cell | lstm_cell -> b.matmul
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from rnn_lower.builder.constant_operands import operand_of
from rnn_lower.builder.constants import Constant, ConstantPool, filled, fold
from rnn_lower.builder.graph_builder import Factor, GraphBuilder, Operand, as_value, declare
from rnn_lower.builder.names import Names
from rnn_lower.builder.versions import BROADCASTS_BY_RULE
from rnn_lower.lowering.cells import PRODUCTS, Cell
from rnn_lower.lowering.forms import Extent, Recurrence, Result, ScanInput, Step, carry
from rnn_lower.lowering.fuse_directions import can_fuse, carry_fused
from rnn_lower.lowering.node import RecurrentNode
from rnn_lower.lowering.sequence_lens import Masking, masked_step, read_masking, select

ARITHMETIC: Mapping[ir.DataType, ir.DataType] = {
    # onnxruntime computes float16 in float32 and rounds once at the end, and has no bfloat16 arithmetic.
    ir.DataType.FLOAT16: ir.DataType.FLOAT,
    ir.DataType.BFLOAT16: ir.DataType.FLOAT,
}


def builder_of(
    node: RecurrentNode, opset: int, names: Names, pool: ConstantPool, max_nodes: int | None = None
) -> GraphBuilder:
    """Return a builder for the subgraph of a node: its arithmetic type, its name as scope, its origin as metadata."""
    dtype = ARITHMETIC.get(node.dtype, node.dtype)
    return GraphBuilder(opset, dtype, names, pool, node.name, node.origin, max_nodes)


def lower_node(node: RecurrentNode, b: GraphBuilder, form: str, fuse_directions: bool = False) -> dict[str, ir.Value]:
    """Return the values that replace the outputs of a node, by name (Y, Y_h, Y_c); `b` collects the nodes.

    form: "scan", "loop" or "unroll".  fuse_directions: compute both directions in one block-diagonal cell if possible.
    The model is not changed. Raises UnsupportedError if the form needs an operator that the opset lacks, or more than
    b.max_nodes nodes.
    """
    if not node.outputs:
        return {}
    if node.batch_size == 0 and (node.static_length is not None or "Y" not in node.outputs):
        # An empty batch needs no computation, and some runtimes fail on it.
        return own_values(b, {name: _zeros(node, name) for name in node.outputs})
    x, extent = read_sequence(b, node)
    masking = read_masking(b, node, extent, form)
    if form == "unroll" and not node.declares_x and node.static_batch is not None:
        # without loops, whose states have this batch size, runtimes would not know it from here on
        x = b.reshape(x, [node.static_length or 0, node.static_batch, node.known_shape("X")[2] or 0], "X_sized")
    recurrences = [_direction(b, node, form, x, extent, masking, k) for k in range(node.num_directions)]
    if fuse_directions and masking is None and can_fuse(node, b.opset):
        cells = [_cell(b, node, k) for k in range(2)]
        results = carry_fused(b, form, node.op_type, recurrences, cells, extent)
    else:
        results = []
        for recurrence in recurrences:
            with b.scope(recurrence.name):
                results.append(carry(form, b, recurrence, extent))
    return own_values(b, outputs_of(b, node, masking, results))


def read_sequence(b: GraphBuilder, node: RecurrentNode) -> tuple[Operand, Extent]:
    """Return X [seq_length, batch_size, input_size] in the arithmetic type, and its extent."""
    x = to_arithmetic(b, operand_of(node.inputs["X"]), node.dtype, "X_cast")
    if node.layout:
        x = b.transpose(x, [1, 0, 2], "X_time_major")
    batch = node.batch_size
    if isinstance(batch, str) and batch in (node.seq_length, node.input_size):
        batch = None  # some exporters write "None" for every unknown size
    extent = Extent(
        lambda: b.size(x, 0, 3, "seq_length") if node.static_length is None else node.static_length,
        lambda: b.size(x, 1, 3, "batch_size") if node.static_batch is None else node.static_batch,
        batch,
        node.hidden_size,
    )
    return x, extent


def to_arithmetic(b: GraphBuilder, x: Operand, dtype: ir.DataType, name: str) -> Operand:
    """Convert x to the element type of the arithmetic.

    A single-input Concat precedes the Cast: onnxruntime 1.32 matches Transpose (float16), Cast and MatMul in its
    MatmulTransposeFusion and crashes while it loads such a model.
    """
    if not isinstance(x, ir.Value) or dtype == b.dtype:
        return b.cast(x, dtype, b.dtype, name)
    return b.cast(b.op("Concat", x, name=f"{name}_from", axis=0), dtype, b.dtype, name)


@dataclasses.dataclass(frozen=True)
class QuantizedMatrix(Factor):
    """A weight of DynamicQuantizeLSTM, whose kernel quantizes all rows of the left operand like DynamicQuantizeLinear.

    numbers: [rows, columns] of int8 or uint8.  scale, zero_point: [] or [columns].  kind: element type.
    """

    numbers: Operand
    scale: Operand
    zero_point: Operand
    kind: ir.DataType

    def product(self, b: GraphBuilder, x: Operand, name: str) -> Operand:
        """Return x [..., rows], dynamically quantized, times the matrix: float [..., columns]."""
        if x is None:
            return None
        parts = [f"{name}_quantized", f"{name}_scale", f"{name}_zero_point"]
        quantized, scale, zero_point = b.op_multi("DynamicQuantizeLinear", [x], parts)
        integers = b.op("MatMulInteger", quantized, self.numbers, zero_point, self.zero_point, name=f"{name}_integers")
        numbers = b.cast(integers, ir.DataType.INT32, ir.DataType.FLOAT, f"{name}_numbers")
        return b.mul(numbers, b.mul(scale, self.scale, f"{name}_factor"), name)

    def dequantized(self, b: GraphBuilder, name: str) -> Operand:
        """Return (numbers - zero_point) * scale as floats; a constant if all three are constants."""
        operands = (self.numbers, self.scale, self.zero_point)
        known = [operand for operand in operands if isinstance(operand, Constant)]
        if len(known) == len(operands):
            return fold(("dequantize",), _dequantize, *known, shape=known[0].shape, name=name, dtype=ir.DataType.FLOAT)
        numbers, zero = (b.cast(x, self.kind, ir.DataType.FLOAT, f"{name}_cast") for x in (operands[0], operands[2]))
        return b.mul(b.sub(numbers, zero, f"{name}_centered"), self.scale, name)


def _dequantize(numbers: np.ndarray, scale: np.ndarray, zero_point: np.ndarray) -> np.ndarray:
    return np.asarray((numbers.astype(np.int32) - zero_point.astype(np.int32)) * scale, np.float32)


# -- one direction ---------------------------------------------------------------------------------------------------


def _direction(
    b: GraphBuilder, node: RecurrentNode, form: str, x: Operand, extent: Extent, masking: Masking | None, k: int
) -> Recurrence:
    """Return the recurrence of direction k: its step, its scan inputs and its initial states."""
    reverse = node.directions[k]
    name = "reverse" if reverse else "forward"
    single = form == "unroll" and node.seq_length == 1
    with b.scope(name):
        cell = _cell(b, node, k)
        inputs = _projected(b, node, b.squeeze(x, [0], "X_step") if single else x, extent, single, k)
        initial = tuple(initial_state(b, node, f"initial_{state}", masking, k) for state in node.operator.states)
    step: Step = cell.step
    if masking is not None:
        step = functools.partial(masked_step, step)
        inputs.append(masking.steps)
    for state in initial:
        declare(state, b.dtype, [extent.batch, node.hidden_size])
    return Recurrence(name, step, inputs, initial, node.operator.states, reverse, "Y" in node.outputs)


def _weight(b: GraphBuilder, node: RecurrentNode, name: str, k: int) -> Operand:
    """Return W, R, B or P of direction k in the model's element type, without the num_directions axis."""
    if name not in node.inputs:
        return None
    picked = _of_direction(b, operand_of(node.inputs[name]), node.num_directions, k, 0, name)
    # Declare the sizes: at opset 10, shape inference gives every part of a split axis the same symbolic size, and
    # onnxruntime then assigns all parts one buffer.
    declare(picked, node.dtype, node.known_shape(name)[1:])
    return picked


def _of_direction(b: GraphBuilder, x: Operand, count: int, k: int, axis: int, name: str) -> Operand:
    """Return direction k of `count` along an axis, and remove the axis."""
    parts = b.split(x, axis, [1] * count, [f"{name}_{direction}" for direction in ("forward", "reverse")[:count]])
    return b.squeeze(parts[k], [axis], name)


def _matrix(b: GraphBuilder, node: RecurrentNode, name: str, k: int) -> Operand:
    """Return W or R of direction k, transposed for MatMul; the stored constant keeps the model's element type."""
    if node.is_quantized:
        return quantized_matrix(b, node, name, k).dequantized(b, name)
    rows = _weight(b, node, name, k)
    if isinstance(rows, Constant):
        stored = b.transpose(rows, [1, 0], f"{name}_transposed")
        return stored if node.dtype == b.dtype else b.cast(b.value(stored), node.dtype, b.dtype, f"{name}_cast")
    return b.transpose(to_arithmetic(b, rows, node.dtype, f"{name}_cast"), [1, 0], f"{name}_transposed")


def quantized_matrix(b: GraphBuilder, node: RecurrentNode, name: str, k: int) -> QuantizedMatrix:
    """Return W or R of direction k of a quantized node, which stores them transposed already."""
    names = (name, f"{name}_scale", f"{name}_zero_point")
    D = node.num_directions
    numbers, scale, zero_point = (_of_direction(b, operand_of(node.inputs[what]), D, k, 0, what) for what in names)
    return QuantizedMatrix(numbers, scale, zero_point, node.inputs[name].dtype or ir.DataType.INT8)


def bias_of(b: GraphBuilder, node: RecurrentNode, k: int) -> tuple[Operand, Operand]:
    """Return the bias [gates * H] added before the loop, Wb + Rb, and Rbh if linear_before_reset needs it separate."""
    B = to_arithmetic(b, _weight(b, node, "B", k), node.dtype, "B_cast")
    if B is None:
        return None, None
    gates, H = node.operator.gates, node.hidden_size
    W_b, R_b = b.split(B, 0, [gates * H] * 2, ["Wb", "Rb"])
    if not (node.op_type == "GRU" and node.linear_before_reset):
        return b.add(W_b, R_b, "bias"), None
    W_zr, W_h = b.split(W_b, 0, [2 * H, H], ["Wb_zr", "Wbh"])
    R_zr, R_h = b.split(R_b, 0, [2 * H, H], ["Rb_zr", "Rbh"])
    return b.concat([b.add(W_zr, R_zr, "bias_zr"), W_h], 0, "bias"), R_h


def _projected(
    b: GraphBuilder, node: RecurrentNode, x: Operand, extent: Extent, single: bool, k: int
) -> list[ScanInput]:
    """Return Xt*(W^T) + Wb + Rb of all steps, split into the operands of the cell."""
    gates = PRODUCTS[node.op_type]
    product = b.matmul(x, _matrix(b, node, "W", k), "X_W")
    projected = b.add(product, bias_of(b, node, k)[0], "projected")
    widths = [count * node.hidden_size for count in gates]
    names = [f"projected_{sum(gates[:k])}" for k in range(len(gates))]

    def scanned(part: Operand, width: int) -> ScanInput:
        declare(part, b.dtype, [*([] if single else [node.static_length]), extent.batch, width])
        return ScanInput(lambda: part, b.dtype, (extent.static_batch, width), single)

    return [scanned(*pair) for pair in zip(b.split(projected, 1 if single else 2, widths, names), widths, strict=True)]


def _cell(b: GraphBuilder, node: RecurrentNode, k: int) -> Cell:
    """Return the cell of direction k with its weights."""
    H, gates = node.hidden_size, PRODUCTS[node.op_type]
    R = b.split(_matrix(b, node, "R", k), 1, [count * H for count in gates], ["R_zr", "R_h"][: len(gates)])
    flags = (node.linear_before_reset, node.input_forget)
    weights = (R, node.clip, bias_of(b, node, k)[1], peepholes_of(b, node, k))
    return Cell(node.op_type, H, node.activations[k], *weights, *flags)


def peepholes_of(b: GraphBuilder, node: RecurrentNode, k: int) -> list[Operand]:
    """Return P_i, P_o and P_f [hidden_size] of direction k, or an empty list."""
    P = to_arithmetic(b, _weight(b, node, "P", k), node.dtype, "P_cast")
    return [] if P is None else b.split(P, 0, [node.hidden_size] * 3, ["P_i", "P_o", "P_f"])


def initial_state(b: GraphBuilder, node: RecurrentNode, name: str, masking: Masking | None, k: int) -> Operand:
    if name not in node.inputs:
        return None
    states = to_arithmetic(b, operand_of(node.inputs[name]), node.dtype, f"{name}_cast")
    # The final state of a sequence of length 0 is zero, so its initial state is dropped.
    of_both = node.layout == 0 and b.opset >= BROADCASTS_BY_RULE
    if masking is not None and of_both:
        states = select(b, masking.nonempty(), states, None, f"{name}_valid")
    if states is None:
        return None
    state = _of_direction(b, states, node.num_directions, k, node.layout, name)
    if masking is None or of_both:
        return state
    return select(b, masking.nonempty(), state, None, f"{name}_valid")


# -- the outputs -----------------------------------------------------------------------------------------------------


def outputs_of(
    b: GraphBuilder, node: RecurrentNode, masking: Masking | None, results: Sequence[Result]
) -> dict[str, Operand]:
    """Return the outputs by name, from the results of the directions."""
    outputs: dict[str, Operand] = {}
    for name in node.outputs:
        if name == "Y":
            parts = [y for _, y in results]
            if masking is not None and b.opset < BROADCASTS_BY_RULE:  # the mask has one axis of directions only
                parts = [select(b, masking.of_y(), y, None, "Y_valid") for y in parts]
            value = b.concat(parts, 1, "Y_all")
            if masking is not None and b.opset >= BROADCASTS_BY_RULE:  # zero after the end of a row
                value = select(b, masking.of_y(), value, None, "Y_valid")
            if value is None:  # all rows are empty
                outputs[name] = _zeros(node, name)
                continue
        else:
            index = node.operator.states.index(name[2:])
            finals = [b.unsqueeze(final[index], [0], f"{name}_direction") for final, _ in results]
            value = b.concat(finals, 0, name)
        if node.layout:
            value = b.transpose(value, [2, 0, 1, 3] if name == "Y" else [1, 0, 2], f"{name}_batch_major")
        outputs[name] = b.cast(value, b.dtype, node.dtype, f"{name}_cast")
    return outputs


def _zeros(node: RecurrentNode, name: str) -> Constant:
    """Return an output of zeros; a size that is unknown is irrelevant, because no element exists."""
    return filled(0.0, tuple(size or 0 for size in node.known_shape(name)), node.dtype)


def own_values(b: GraphBuilder, outputs: Mapping[str, Operand]) -> dict[str, ir.Value]:
    """Return a value for each output; an Identity copies an input, a constant, or a value used for two outputs."""
    own: dict[str, ir.Value] = {}
    for name, operand in outputs.items():
        is_new = isinstance(operand, ir.Value) and any(node is operand.producer() for node in reversed(b.nodes))
        if is_new and operand not in own.values():
            own[name] = as_value(operand)
        else:
            own[name] = b.op("Identity", operand, name=name)
    return own
