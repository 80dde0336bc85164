"""sequence_lens over chunks: the remaining steps of each row are a state, and a finished row keeps its final state."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from rnn_lower.builder.constants import constant
from rnn_lower.builder.graph_builder import Operand
from rnn_lower.errors import UnsupportedError
from rnn_lower.lowering.node import RecurrentNode, display_name
from rnn_lower.options import OP_TYPES
from rnn_lower.shapes.sizes import Size
from rnn_lower.streaming.axis_info import old_opset
from rnn_lower.streaming.plan import State
from rnn_lower.streaming.states.graph_editor import INT64, GraphEditor, Site
from rnn_lower.streaming.states.initial_states import FromInput

INT32, DOUBLE, BOOL = ir.DataType.INT32, ir.DataType.DOUBLE, ir.DataType.BOOL


def count_down(work: GraphEditor, read: RecurrentNode, batch: Size) -> ir.Value:
    """Emit the remaining lengths; returns the mask of rows that ended before this chunk, broadcast to a state.

    The remaining length of an ended row is -1: only a row that has 0 at the start must get a final state of zeros.
    """
    site, where = work.at(read.node), read.describe()
    lengths = read.inputs["sequence_lens"]
    if work.is_nested(site):
        raise UnsupportedError(
            f"{where}: the node is in a branch of an If, where streaming cannot reduce the "
            "sequence_lens of the node from chunk to chunk"
        )
    if work.opset < 9:
        raise UnsupportedError(f"{where}: {old_opset('streaming with sequence_lens', 9, work.opset)}")
    name = str(lengths.name)
    if name not in work.lengths:
        work.lengths[name] = _count(work, site, read, batch)
    used, mask = work.lengths[name]
    work.replace_input(site, 4, used)
    rows = site.before.reshape(mask, [-1, 1, 1] if read.layout else [-1, 1], "rows")
    assert isinstance(rows, ir.Value)
    return rows


def _count(work: GraphEditor, site: Site, read: RecurrentNode, batch: Size) -> tuple[ir.Value, ir.Value]:
    """The frames of each row in this chunk, and whether the row ended before."""
    lengths = read.inputs["sequence_lens"]
    shape: tuple[Size, ...] = (batch,)
    root, b = _root(work, lengths, read.describe()), site.before
    if root.is_graph_input() and not root.is_initializer():
        assert root.dtype is not None
        result, remaining_steps = work.names.unique(f"{site.name}/lengths_out"), ir.Value(name=lengths.name)
        state = State(str(root.name), result, shape, root.dtype.name, site.owner, 0)
    else:
        try:
            first, shape = work.first(f"{read.describe()}: sequence_lens", lengths, shape, INT32)
        except FromInput as error:
            raise UnsupportedError(
                f"{read.describe()}: its sequence_lens is computed from input '{error.source}', but streaming needs "
                "an input or a constant as sequence_lens; in PyTorch, sort the sequences by length outside the model, "
                "and export pack_padded_sequence with enforce_sorted=True"
            ) from None
        state, remaining_steps = work.take_state(site, "lengths", first, shape, 0)

    def above_zero(value: Operand, name: str) -> Operand:
        relu = b.op("Relu", b.cast(value, INT32, DOUBLE, f"{name}_wide"), name=f"{name}_above")
        return b.cast(relu, DOUBLE, INT32, name)

    frames = b.cast(b.size(ir.Value(name=read.inputs["X"].name), 1 if read.layout else 0, 3), INT64, INT32, "frames")
    beyond = above_zero(b.sub(remaining_steps, frames, "rest"), "beyond")
    used = b.sub(above_zero(remaining_steps, "not_ended"), beyond, "now")
    more = b.cast(b.cast(beyond, INT32, BOOL, "more"), BOOL, INT32, "one_more")
    rest = b.sub(b.add(beyond, more, "counted"), constant(1, INT32), "left")
    mask = b.less(b.cast(remaining_steps, INT32, DOUBLE, "wide"), constant(0, DOUBLE), "ended")
    remaining = b.op("Cast", rest, name="out", to=int(ir.DataType[state.dtype]))
    work.hand_on(site, remaining, dataclasses.replace(state, node=read.describe()))
    assert isinstance(used, ir.Value)
    return used, mask


def _root(work: GraphEditor, value: ir.Value, owner: str) -> ir.Value:
    """The input that provides the lengths, which must have no other use, because it becomes a state."""
    node = value.producer()
    while node is not None and node.op_type in ("Cast", "Identity") and node.inputs[0] is not None:
        value = node.inputs[0]
        node = value.producer()
    if node is None and value.is_graph_input():
        _check_uses(work, value, owner)
    return value


def _check_uses(work: GraphEditor, value: ir.Value, owner: str) -> None:
    if value.is_graph_output():
        raise UnsupportedError(
            f"{owner}: streaming replaces its sequence_lens '{value.name}' with the number of "
            "remaining steps, so this value cannot also be an output of the model"
        )
    for user, index in value.uses():
        if user.op_type in ("Cast", "Identity"):
            _check_uses(work, user.outputs[0], owner)
            continue
        x = work.infos.get(user.inputs[0]) if user.op_type in OP_TYPES and user.inputs[0] is not None else None
        if index != 4 or x is None or x.axis is None:
            what = f"{user.op_type} '{display_name(user)}'"
            raise UnsupportedError(
                f"{owner}: streaming replaces its sequence_lens '{value.name}' with the number of "
                f"remaining steps, so {what} cannot also read this value"
            )
