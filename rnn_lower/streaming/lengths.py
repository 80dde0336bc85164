"""sequence_lens over chunks: what is left of each row is a state, and a row that has ended keeps its final state."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

from rnn_lower.errors import UnsupportedError
from rnn_lower.lowering.node import display_name
from rnn_lower.options import OP_TYPES
from rnn_lower.streaming.graph_editor import GraphEditor, put
from rnn_lower.streaming.initial_states import FromInput
from rnn_lower.streaming.plan import State
from rnn_lower.streaming.recurrence import Recurrence
from rnn_lower.streaming.sizes import Size


def count_down(work: GraphEditor, one: Recurrence, message: onnx.NodeProto) -> str:
    """Count the lengths down; answers the mask of rows that had ended before this chunk, broadcast to a state.

    What is left of a row is its length, then -1: a row of no frames at all has a final state of zeros, which one
    that has ended before must not get.
    """
    read, where = one.read, one.read.describe()
    lengths = read.inputs["sequence_lens"]
    if work.is_nested(message):
        raise UnsupportedError(f"{where}: sequence_lens in a branch cannot be counted over chunks")
    if work.opset < 9:
        raise UnsupportedError(f"{where}: sequence_lens over chunks need opset 9, the model is at opset {work.opset}")
    name = str(lengths.name)
    if name not in work.lengths:
        work.lengths[name] = _count(work, one, message, lengths)
    used, mask = work.lengths[name]
    work.replaced[read.node, 4] = lengths
    put(message.input, 4, used)
    form = work.names.unique(f"{mask}/rows")
    rows = work.constant(message, np.array([-1, 1, 1] if read.layout else [-1, 1], np.int64), f"{form}/shape")
    work.ahead(message, helper.make_node("Reshape", [mask, rows], [form]))
    return form


def _count(work: GraphEditor, one: Recurrence, message: onnx.NodeProto, lengths: ir.Value) -> tuple[str, str]:
    read = one.read
    shape: tuple[Size, ...] = (one.batch,)
    root = _root(work, lengths, read.describe())
    if root.is_graph_input() and not root.is_initializer():
        source, dtype, first, left = str(root.name), root.dtype, None, str(lengths.name)
    else:
        try:
            first, shape = work.first(read.describe(), lengths, (one.batch,), ir.DataType.INT32)
        except FromInput as error:
            raise UnsupportedError(f"{read.describe()}: sequence_lens: {error}") from None
        source, dtype = work.names.unique(f"{read.name}/lengths_in"), ir.DataType.INT32
        work.add_input(source, dtype, shape)
        left = work.resettable(message, source, first, shape, 0)
    assert dtype is not None
    name = work.names.unique(f"{read.name}/lengths")
    int32, double = onnx.TensorProto.INT32, onnx.TensorProto.DOUBLE
    axis = work.constant(message, np.array([1 if read.layout else 0], np.int64), f"{name}/axis")
    zero = work.constant(message, np.array(0, np.float64), f"{name}/zero")
    less = work.constant(message, np.array(1, np.int32), f"{name}/one")

    def step(op: str, inputs: list[str], what: str, **attributes: Any) -> str:
        made = work.names.unique(f"{name}/{what}")
        work.ahead(message, helper.make_node(op, inputs, [made], **attributes))
        return made

    def above_zero(value: str, what: str) -> str:
        wide = step("Cast", [value], f"{what}_wide", to=double)
        return step("Cast", [step("Relu", [wide], f"{what}_above")], what, to=int32)

    frames = step("Gather", [step("Shape", [str(read.inputs["X"].name)], "shape"), axis], "frames")
    beyond = above_zero(step("Sub", [left, step("Cast", [frames], "frames32", to=int32)], "rest"), "beyond")
    used = step("Sub", [above_zero(left, "not_ended"), beyond], "now")
    more = step("Cast", [step("Cast", [beyond], "more", to=onnx.TensorProto.BOOL)], "more32", to=int32)
    rest = step("Sub", [step("Add", [beyond, more], "counted"), less], "left")
    mask = step("Less", [step("Cast", [left], "wide", to=double), zero], "ended")
    cast = step("Cast", [rest], "out", to=int(dtype))
    result = work.names.unique(f"{read.name}/lengths_out")
    work.hand_on(message, cast, State(source, result, shape, dtype.name, read.describe(), 0, first))
    return used, mask


def _root(work: GraphEditor, value: ir.Value, owner: str) -> ir.Value:
    """The input behind lengths, which must serve nothing else: it becomes what is left of them."""
    node = value.producer()
    while node is not None and node.op_type in ("Cast", "Identity") and node.inputs[0] is not None:
        value = node.inputs[0]
        node = value.producer()
    if node is None and value.is_graph_input():
        _check_uses(work, value, owner)
    return value


def _check_uses(work: GraphEditor, value: ir.Value, owner: str) -> None:
    reason = f"{owner}: its sequence_lens '{value.name}' serve"
    if value.is_graph_output():
        raise UnsupportedError(f"{reason} as an output too, where the remaining steps would be wrong")
    for user, place in value.uses():
        if user.op_type in ("Cast", "Identity"):
            _check_uses(work, user.outputs[0], owner)
            continue
        x = work.infos.get(user.inputs[0]) if user.op_type in OP_TYPES and user.inputs[0] is not None else None
        if place != 4 or x is None or x.axis is None:
            what = f"{user.op_type} '{display_name(user)}'"
            raise UnsupportedError(f"{reason} {what} too, where the remaining steps would be wrong")
