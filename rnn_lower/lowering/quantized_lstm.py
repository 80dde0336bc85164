"""Lower DynamicQuantizeLSTM of onnxruntime to DynamicQuantizeLinear, MatMulInteger and the cell of an LSTM.

The kernel quantizes all rows of a batch with one scale, so the state of a row after its end matters: it is zero if Y is
an output. The kernel reverses each row within its own length. The lowering does both alike; else the scales would
differ. With several threads the kernel splits the batch and quantizes the parts separately; the lowering matches one
thread.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from rnn_lower.builder.constant_operands import operand_of
from rnn_lower.builder.constants import constant
from rnn_lower.builder.graph_builder import GraphBuilder, Operand
from rnn_lower.errors import Requirement, UnmetRequirementError
from rnn_lower.ir.schemas import newest_opset
from rnn_lower.lowering.cells import Cell, State
from rnn_lower.lowering.forms import Extent, Recurrence, Result, ScanInput, Step, carry
from rnn_lower.lowering.lowering import (
    bias_of,
    initial_state,
    outputs_of,
    own_values,
    peepholes_of,
    quantized_matrix,
    read_sequence,
)
from rnn_lower.lowering.node import RecurrentNode
from rnn_lower.lowering.sequence_lens import Masking, read_masking, select

FIRST_OPSET = 11
"""The first opset with DynamicQuantizeLinear and GatherElements."""

INT32, INT64 = ir.DataType.INT32, ir.DataType.INT64


def lower_quantized(node: RecurrentNode, b: GraphBuilder, form: str) -> dict[str, ir.Value]:
    """Return the values that replace the outputs of a quantized node, like `lower_node`."""
    if not node.outputs:
        return {}
    if b.opset < FIRST_OPSET:
        text = (
            f"opset {b.opset} has no DynamicQuantizeLinear; convert the model to opset {FIRST_OPSET} or newer,"
            " or pass --dequantize"
        )
        raise UnmetRequirementError(text, (Requirement(text, opsets=(FIRST_OPSET, newest_opset())),))
    x, extent = read_sequence(b, node)
    masking = read_masking(b, node, extent, form)
    results = [_direction(b, node, form, x, extent, masking, k) for k in range(node.num_directions)]
    return own_values(b, outputs_of(b, node, masking, results))


def _direction(
    b: GraphBuilder, node: RecurrentNode, form: str, x: Operand, extent: Extent, masking: Masking | None, k: int
) -> Result:
    """Return the results of direction k. With sequence_lens, a reverse direction runs forward over reversed rows."""
    reverse, H = node.directions[k], node.hidden_size
    by_row = reverse and masking is not None
    with b.scope("reverse" if reverse else "forward"):
        positions = _reversed_positions(b, node, extent) if by_row else None
        if by_row:
            x = _gather_rows(b, x, positions, "X_reversed")
        if masking is not None:
            x = select(b, _within_longest(b, node, extent), x, None, "X_within")
        projected = quantized_matrix(b, node, "W", k).product(b, x, "X_W")
        inputs = [ScanInput(lambda: projected, b.dtype, (extent.static_batch, 4 * H))]
        cell = Cell(
            "LSTM", H, node.activations[k], [quantized_matrix(b, node, "R", k)], node.clip, P=peepholes_of(b, node, k),
            input_forget=node.input_forget, bias=bias_of(b, node, k)[0],
        )  # fmt: skip
        initial, names, step = _states(b, node, cell, masking, k)
        if masking is not None:
            inputs.append(masking.steps)
        name = "reverse" if reverse else "forward"
        recurrence = Recurrence(name, step, inputs, initial, names, reverse and not by_row, "Y" in node.outputs)
        finals, y = carry(form, b, recurrence, extent)
        if by_row and y is not None:
            y = _gather_rows(b, y, b.unsqueeze(positions, [1], "positions_of_Y"), "Y_reversed")
        return (finals[-1], finals[1]) if len(finals) == 3 else finals, y


def _states(
    b: GraphBuilder, node: RecurrentNode, cell: Cell, masking: Masking | None, k: int
) -> tuple[State, tuple[str, ...], Step]:
    """Return the initial states, their names, and the step. With sequence_lens, a third state carries the last h, and h
    is the value that the kernel quantizes: after the end of a row zero if Y is an output, else the last h.
    """
    h, c = (initial_state(b, node, f"initial_{name}", None, k) for name in ("h", "c"))
    if masking is None:
        return (h, c), ("h", "c"), cell.step
    last, c = (initial_state(b, node, f"initial_{name}", masking, k) for name in ("h", "c"))
    has_y = "Y" in node.outputs

    def step(b: GraphBuilder, inputs: Sequence[Operand], state: State) -> State:
        x, mask = inputs
        old_h, old_c, old_last = state
        new_h, new_c = cell.step(b, [x], (old_h, old_c))
        final_h = select(b, mask, new_h, old_last, "H_last")
        h = select(b, mask, new_h, None, "H_kept") if has_y else b.op("Identity", final_h, name="H_kept")
        return h, select(b, mask, new_c, old_c, "C_kept"), final_h

    return (h, c, last), ("h", "c", "last_h"), step


def _reversed_positions(b: GraphBuilder, node: RecurrentNode, extent: Extent) -> Operand:
    """Return the index to read for each time and row, [seq_length, batch_size, 1]: length - 1 - t in the row, or t."""
    lengths = b.cast(operand_of(node.inputs["sequence_lens"]), INT32, INT64, "lengths_int64")
    column = b.unsqueeze(b.positions(extent.seq_length()), [1], "positions_column")
    mirrored = b.op("Sub", b.op("Sub", lengths, constant(1, INT64), name="last"), column, name="mirrored")
    within = b.less(column, lengths, "in_row")
    return b.unsqueeze(b.op("Where", within, mirrored, column, name="row_positions"), [2], "reversed_positions")


def _gather_rows(b: GraphBuilder, x: Operand, positions: Operand, name: str) -> Operand:
    """Reorder the times of each row of x."""
    everywhere = b.op("Expand", positions, b.op("Shape", x, name=f"{name}_shape"), name=f"{name}_positions")
    return b.op("GatherElements", x, everywhere, name=name, axis=0)


def _within_longest(b: GraphBuilder, node: RecurrentNode, extent: Extent) -> Operand:
    """Return whether each time lies in the longest row, [seq_length, 1, 1]; the kernel reads no X after it."""
    lengths = b.cast(operand_of(node.inputs["sequence_lens"]), INT32, INT64, "lengths_int64")
    longest = b.op("ReduceMax", lengths, name="longest", keepdims=0)
    within = b.less(b.positions(extent.seq_length()), longest, "before_end")
    return b.unsqueeze(within, [1, 2], "before_end_column")
