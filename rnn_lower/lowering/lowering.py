"""One recurrent node -> its subgraph: layout, directions, hoisted projection, masks, optional outputs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir
from typing_extensions import Self

from rnn_lower.builder.constants import Constant, ConstantPool, filled
from rnn_lower.builder.masks import Emitter
from rnn_lower.builder.moved import operand_of
from rnn_lower.builder.names import Names
from rnn_lower.builder.tensor_info import Outline, outline_of
from rnn_lower.builder.writer import Habits, Operand, declare
from rnn_lower.errors import UntakenError
from rnn_lower.lowering.both import END_TO_END, SIDE_BY_SIDE, end_to_end, way_of
from rnn_lower.lowering.cells import CELLS, Cell, Parts, Weights
from rnn_lower.lowering.directions import Carried, Direction, apart, side_by_side
from rnn_lower.lowering.forms import Size, Span, Stream, carry
from rnn_lower.lowering.node import RecurrentNode, axes_of
from rnn_lower.lowering.sequence_lens import Lengths, Once, Order, is_whole, read_lengths

ARITHMETIC: Mapping[ir.DataType, ir.DataType] = {
    # onnxruntime computes float16 in float32 and rounds once at the end, and has no bfloat16 arithmetic.
    ir.DataType.FLOAT16: ir.DataType.FLOAT,
    ir.DataType.BFLOAT16: ir.DataType.FLOAT,
}


@dataclasses.dataclass
class Lowered:
    """The nodes that replace a recurrent node; by name (Y, Y_h, Y_c) the values that replace its outputs."""

    nodes: list[ir.Node]
    outputs: dict[str, ir.Value]


def lower_node(
    node: RecurrentNode,
    form: str,
    opset: int,
    names: Names,
    pool: ConstantPool,
    habits: Habits = Habits(),
    max_nodes: int | None = None,
) -> Lowered:
    """Emit the subgraph of one node in a form ("scan", "loop", "unroll") at an opset; the model is not touched.

    Raises UnsupportedError when the form needs an operator that the opset lacks, or more than max_nodes nodes.
    """
    if not node.outputs:
        return Lowered([], {})
    e = Emitter(opset, ARITHMETIC.get(node.dtype, node.dtype), names, pool, node.name, node.origin, habits, max_nodes)
    if node.batch_size == 0 and (
        node.static_length is not None or "Y" not in node.outputs
    ):  # nothing to compute, and some runtimes stumble over it
        return Lowered(e.nodes, {name: own_value(e, _empty(node, name), name) for name in node.outputs})
    e.search.outlines.update(given_outlines(node))
    sequence = read_sequence(e, node, form)
    way = None if form == "unroll" else way_of(node, opset, habits, masked=sequence.lengths.choice is not None)
    directions = [
        direction_of(e, node, sequence, place, parts_of(e, node, place, way == SIDE_BY_SIDE, in_line=form == "unroll"))
        for place in range(node.num_directions)
    ]
    if way == END_TO_END:
        results = [end_to_end(e, node, form, directions, sequence.span)]
    else:
        tracks = [side_by_side(e, directions, sequence.span)] if way == SIDE_BY_SIDE else directions
        results = [_carried(e, node, form, direction, sequence) for direction in tracks]
    outputs = outputs_of(e, node, sequence, results)
    return Lowered(e.nodes, {name: own_value(e, value, name) for name, value in outputs.items()})


def given_outlines(node: RecurrentNode) -> dict[ir.Value, Outline]:
    """What the node's own sizes say of what it is given."""
    found = {}
    for name, value in node.inputs.items():
        axes = axes_of(name, node.operator.gates, node.num_directions, node.layout)
        sizes = [(factor, getattr(node, size)) for factor, size in axes]
        shape = tuple(factor * size if isinstance(size, int) else None for factor, size in sizes)
        own = outline_of(value)
        dtype = ir.DataType.INT32 if name == "sequence_lens" else node.dtype
        found[value] = own if own.constant else Outline(shape, dtype)
    return found


@dataclasses.dataclass(frozen=True)
class InputSequence:
    """X in layout 0 and its lengths, shared by the directions of one node.

    x: [seq_length, batch_size, input_size].  single: one step in a straight line, x and choice have no time axis.
    """

    x: Operand
    span: Span
    single: bool
    lengths: Lengths = Lengths()


def read_sequence(e: Emitter, node: RecurrentNode, form: str) -> InputSequence:
    # Casts stand outside of transpositions: onnxruntime 1.31 crashes on some float16 graphs that do it inside.
    x = e.cast(operand_of(node.inputs["X"]), node.dtype, e.dtype, "X_cast")
    if node.layout:
        x = e.transpose(x, [1, 0, 2], "X_time_major")
    span = Span(
        _once(node.static_length, functools.partial(e.dim, x, 0, "seq_length")),
        _once(node.static_batch, functools.partial(e.dim, x, 1, "batch_size")),
        _batch(e, node),
        node.hidden_size,
    )
    single = form == "unroll" and node.seq_length == 1
    lengths = Lengths() if is_whole(node) else read_lengths(e, node, span, form)
    if lengths.cut is not None:
        x, span = lengths.cut.steps_of(e, x), lengths.cut.span
    return InputSequence(e.squeeze(x, [0], "X_step") if single else x, span, single, lengths)


def _batch(e: Emitter, node: RecurrentNode) -> int | str | None:
    """The batch size, or its name where it stands for nothing else."""
    batch = node.batch_size
    if isinstance(batch, str) and batch in (node.seq_length, node.input_size):
        batch = None  # some exporters write "None" for every unknown size
    return e.unique_name("batch") if batch is None and e.habits.name_batch else batch


def _once(known: int | None, emit: Callable[[], ir.Value]) -> Callable[[], Size]:
    return functools.cache(lambda: emit() if known is None else known)


# -- one direction ---------------------------------------------------------------------------------------------------


def direction_of(e: Emitter, node: RecurrentNode, sequence: InputSequence, direction: int, parts: Parts) -> Direction:
    """All that one direction takes, outside of its loop. parts: the gates of each product."""
    reverse, lengths, batch = node.directions[direction], sequence.lengths, sequence.span.batch
    name = "reverse" if reverse else "forward"
    with e.scope(name):
        parameters = Parameters.read(e, node, direction)
        order = lengths.order if reverse else None
        streams = _project(e, node, parts, sequence, parameters, order)
        initial = tuple(
            initial_state(e, node, f"initial_{state}", direction, lengths.nonempty) for state in node.operator.states
        )
        cell = cell_of(e, node, direction, parts, parameters)
    if lengths.choice is not None:
        streams.append(lengths.choice)
    for stream in streams:
        time = [] if stream.single else [node.static_length if lengths.cut is None else None]
        declare(stream.values, stream.dtype, [*time, batch, stream.shape[-1]])
    for state in initial:
        declare(state, e.dtype, [batch, node.hidden_size])
    return Direction(name, reverse and order is None, cell, streams, initial, lengths.choice is not None)


GATE_ALONE = 128
"""Up to this hidden size a gate may have a product of its own. Two threads that share each of larger ones take longer:
2 to 5 % of 256 units with one row."""


def parts_of(e: Emitter, node: RecurrentNode, direction: int, together: bool, in_line: bool = False) -> Parts:
    """The gates of each product: one for each activation where it comes right after the product.

    One for each gate of a small node where that is the habit, but not of weights that would have to be cut in each run,
    nor in_line, in a straight line, whose first step needs no gate r of a zero state.
    """
    kind, first_two = CELLS[node.op_type], node.activations[direction][:2]
    if together or len(set(first_two)) == 1 or "P" in node.inputs:
        return kind.fewest
    small = node.hidden_size <= GATE_ALONE and not in_line and isinstance(operand_of(node.inputs["R"]), Constant)
    return kind.by_gate if kind.by_gate and small and e.habits.product_per_gate else kind.by_activation


def _carried(e: Emitter, node: RecurrentNode, form: str, direction: Direction, sequence: InputSequence) -> Carried:
    """Final states and Y, or the one and the other as far as they are wanted."""
    states, order = node.operator.states, sequence.lengths.order
    ends = () if order is None else tuple(k for k, name in enumerate(states) if f"Y_{name}" in node.outputs)
    first = (0,) if "Y" in node.outputs and not sequence.single else ()
    stacked = tuple(sorted({*first, *ends}))
    track = direction.track(CELLS[node.op_type], states, stacked)
    with e.scope(direction.name):
        finals, every = carry(form, e, track, sequence.span)
        of_step = dict(zip(stacked, every, strict=True))
        if order is not None:
            finals = tuple(
                sequence.lengths.last(e, direction.initial[k], of_step[k], f"last_{name}") if k in ends else None
                for k, name in enumerate(states)
            )
    return Carried(finals, of_step.get(0), bool(direction.lead))


@dataclasses.dataclass(frozen=True)
class Parameters:
    """The weights of one direction: W [gates * H, input_size], R [gates * H, H], B [2 * gates * H], P [3 * H].

    W and R are of the model's element type, B and P, which are added to what is computed, of the arithmetic's.
    """

    node: RecurrentNode
    W: Operand
    R: Operand
    B: Operand
    P: Operand

    @classmethod
    def read(cls, e: Emitter, node: RecurrentNode, direction: int) -> Self:
        """What is computed gets its sizes stated: inference at opset 10 calls every part of an axis by that axis' name,
        and onnxruntime then gives all parts one buffer."""
        gates, H = node.operator.gates * node.hidden_size, node.hidden_size
        sizes = {"W": (gates, node.input_size), "R": (gates, H), "B": (2 * gates,), "P": (3 * H,)}

        def of_direction(name: str) -> Operand:
            if name not in node.inputs:
                return None
            picked = e.pick(operand_of(node.inputs[name]), direction, 0, node.num_directions, name)
            if isinstance(picked, ir.Value):
                picked.type, picked.shape = ir.TensorType(node.dtype), ir.Shape(sizes[name])
            return picked

        B, P = (e.cast(of_direction(name), node.dtype, e.dtype, f"{name}_cast") for name in ("B", "P"))
        return cls(node, of_direction("W"), of_direction("R"), B, P)

    def matrix(self, e: Emitter, name: str, first: int, end: int) -> Operand:
        """Gates of W or R, transposed to be multiplied with; in the file they keep the model's element type."""
        H, dtype, rows = self.node.hidden_size, self.node.dtype, {"W": self.W, "R": self.R}[name]
        if end - first < self.node.operator.gates:
            rows = e.slice(rows, 0, first * H, end * H, f"{name}_part")
        if isinstance(rows, Constant):
            stored = e.transpose(rows, [1, 0], f"{name}_transposed")
            if not e.has("Cast"):
                return e.cast(stored, dtype, e.dtype, f"{name}_cast")
            return stored if dtype == e.dtype else e.cast(e.value(stored), dtype, e.dtype, f"{name}_cast")
        return e.transpose(e.cast(rows, dtype, e.dtype, f"{name}_cast"), [1, 0], f"{name}_transposed")

    def bias(self, e: Emitter, half: str, first: int, end: int, name: str = "") -> Operand:
        """Gates of Wb or Rb, the halves of B."""
        H = self.node.hidden_size
        start = {"Wb": 0, "Rb": self.node.operator.gates * H}[half]
        return e.slice(self.B, 0, start + first * H, start + end * H, name or half)


def _project(
    e: Emitter, node: RecurrentNode, parts: Parts, sequence: InputSequence, parameters: Parameters, order: Order | None
) -> list[Stream]:
    """Xt*(W^T) + Wb + Rb of all steps, in the parts that the cell takes and, if there is one, in this order.

    X is put in order where its rows are known not to be empty, since they are mostly shorter than what is projected.
    """
    streams, x, columns = [], sequence.x, node.input_size
    if order is not None and isinstance(columns, int) and columns > 0:
        x, order = order.reordered(e, x, columns, "X_by_step"), None
    for first, end in parts:
        product = e.matmul(x, parameters.matrix(e, "W", first, end), "X_W")
        projected = e.add(product, input_bias(e, node, parameters, first, end), "projected")
        width = (end - first) * node.hidden_size
        if order is not None:
            projected = order.reordered(e, projected, width, "by_step")
        streams.append(Stream(projected, e.dtype, (sequence.span.static_batch, width), sequence.single))
    return streams


def input_bias(e: Emitter, node: RecurrentNode, parameters: Parameters, first: int, end: int) -> Operand:
    """Wb + Rb of some gates, as far as it can be added before the step."""
    bias = parameters.bias(e, "Wb", first, end)
    if node.linear_before_reset and first == CELLS[node.op_type].reset_gate:  # there r scales Rb too, in the step
        return bias
    return e.add(bias, parameters.bias(e, "Rb", first, end), "bias")


def cell_of(e: Emitter, node: RecurrentNode, direction: int, parts: Parts, parameters: Parameters) -> Cell:
    """The step of one direction with its weights."""
    reset_bias: Operand = None
    reset_gate = CELLS[node.op_type].reset_gate
    if node.linear_before_reset and reset_gate is not None:
        reset_bias = parameters.bias(e, "Rb", reset_gate, reset_gate + 1, "Rbh")
    H = node.hidden_size
    peepholes = [None] * 3 if parameters.P is None else e.split(parameters.P, 0, [H] * 3, ["P_i", "P_o", "P_f"])
    weights = Weights([parameters.matrix(e, "R", *part) for part in parts], reset_bias, peepholes)
    flags = (node.linear_before_reset, node.input_forget)
    return Cell(H, node.activations[direction], node.clip, weights, *flags)


def initial_state(e: Emitter, node: RecurrentNode, name: str, direction: int, nonempty: Once | None) -> Operand:
    if name not in node.inputs:
        return None
    state = e.pick(operand_of(node.inputs[name]), direction, node.layout, node.num_directions, name)
    state = e.cast(state, node.dtype, e.dtype, f"{name}_cast")
    # A sequence of length 0 ends in zeros: its initial state is dropped.
    return state if nonempty is None else e.select(nonempty(), state, None, f"{name}_valid")


# -- the outputs -----------------------------------------------------------------------------------------------------


def outputs_of(
    e: Emitter, node: RecurrentNode, sequence: InputSequence, results: Sequence[Carried]
) -> dict[str, Operand]:
    """What the node gives, by name, from what its directions, or the track that they share, came to."""
    outputs: dict[str, Operand] = {}
    states = node.operator.states
    for name in node.outputs:
        if name == "Y":
            value = _every_step(e, node, sequence, results)
        else:
            final = _final(e, results, states.index(name[2:]), name)
            value = sequence.lengths.settled(e, final, f"{name}_valid")
        if node.layout:
            value = e.transpose(value, [2, 0, 1, 3] if name == "Y" else [1, 0, 2], f"{name}_batch_major")
        outputs[name] = e.cast(value, e.dtype, node.dtype, f"{name}_cast")
    return outputs


def _empty(node: RecurrentNode, name: str) -> Constant:
    """An output of no rows; its other sizes are known or, without rows, do not matter."""
    D, H = node.num_directions, node.hidden_size
    time = (node.static_length or 0,) if name == "Y" else ()
    shape = (0, *time, D, H) if node.layout else (*time, D, 0, H)
    return filled(0.0, shape, node.dtype)


def _every_step(e: Emitter, node: RecurrentNode, sequence: InputSequence, results: Sequence[Carried]) -> Operand:
    """Y [seq_length, num_directions, batch_size, hidden_size], 0 where a sequence is over."""
    if sequence.single:  # the one step's state is the final state
        return e.unsqueeze(_final(e, results, 0, "Y_step"), [0], "Y")
    parts: list[Operand] = []
    order = sequence.lengths.order
    for one in results:
        parts += apart(e, one.y, node.directions, sequence.span) if one.of_all else [one.y]
    if order is not None:
        parts = [
            order.back_in_order(e, part) if backwards else part
            for part, backwards in zip(parts, node.directions, strict=True)
        ]
    parts = [sequence.lengths.zeroed(e, part) for part in parts]
    return e.concat(parts, 1, "Y")


def _final(e: Emitter, results: Sequence[Carried], state: int, name: str) -> Operand:
    """A final state [num_directions, batch_size, hidden_size]."""
    parts = [
        one.finals[state] if one.of_all else e.unsqueeze(one.finals[state], [0], f"{name}_direction") for one in results
    ]
    return e.concat(parts, 0, name)


def own_value(e: Emitter, operand: Operand, name: str) -> ir.Value:
    """A value made by an emitted node; an input or a constant that came through as it is gets a node."""
    if isinstance(operand, ir.Value) and any(node is operand.producer() for node in reversed(e.nodes)):
        return operand
    made = e.op("Identity", operand, name=name)
    if made.producer() is None:  # known beforehand and moved only: a result must not be an initializer
        raise UntakenError("Identity", "it is not taken, and a result is known beforehand")
    return made
