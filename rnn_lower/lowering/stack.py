"""A stack of nodes, each of which reads what the one before gives, as one loop instead of one after the other.

    for step in range(seq_length + layers - 1):                  # layer l is at time step - l
        below = [X[step] * W_0, h[0] * W_1 ... h[layers - 2] * W_(layers - 1)]
        h, c = step_of_the_cell(below + biases, h, c)            # for the layers that have begun
        Y[step - (layers - 1)] = h[layers - 1]

All layers are one wide cell (`wide.py`): W of each stands in the block between that of the layer below and its own, so
that one product does what the steps of all layers multiply. Only the first layer's product with X is computed for all
steps at once.

The first layers - 1 steps, in which not all layers have begun, are a loop of their own: a mask in every step would cost
a fifth of the time. A layer that is done goes on with whatever comes; what it gives then reaches nobody in time. Where
the last states of lower layers are wanted too, the last layers - 1 steps are a loop of their own as well, which keeps
the states of those that are done.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from rnn_lower.builder.constants import ConstantPool, constant, filled
from rnn_lower.builder.masks import Emitter
from rnn_lower.builder.names import Names
from rnn_lower.builder.writer import Habits, Operand
from rnn_lower.lowering.cells import CELLS, Parts, State, Terms
from rnn_lower.lowering.directions import Step, masked
from rnn_lower.lowering.forms import Size, Span, Stream, Track, carry
from rnn_lower.lowering.lowering import (
    InputSequence,
    Parameters,
    cell_of,
    initial_state,
    input_bias,
    own_value,
    parts_of,
    read_sequence,
)
from rnn_lower.lowering.node import RecurrentNode
from rnn_lower.lowering.sequence_lens import is_whole
from rnn_lower.lowering.shared import LoweredGroup, Paying, emitter_of, kind_of
from rnn_lower.lowering.wide import blocks, by_gates, gate_by_gate, wide_cell, wide_initial

END = int(np.iinfo(np.int32).max)

PAYS = Paying(192)
"""Time over that of the layers apart, T = 64, N = 1, one thread, three layers of 8 to 64 units: RNN 0.42 to 0.91, GRU
0.41 to 0.87, LSTM 0.39 to 0.83."""


def fits(below: RecurrentNode, node: RecurrentNode) -> bool:
    """Whether a node can share the loop of the one that it reads, which is another of the same kind and size."""
    return (
        kind_of(below) == kind_of(node)
        and below.direction == node.direction == "forward"
        and node.layout == 0
        and (below.layout == 0 or below.static_batch == 1)  # else Y has its rows first
        and node.static_batch is not None
        and node.input_size == below.hidden_size
        and is_whole(below)
        and is_whole(node)
    )


def lower_stack(
    layers: Sequence[RecurrentNode], form: str, opset: int, names: Names, pool: ConstantPool, habits: Habits,
    max_nodes: int | None = None,
) -> LoweredGroup:  # fmt: skip
    """Emit one loop for layers that fit, at an opset; all give their last states, the last one Y.

    Raises UnsupportedError as `lower_node`.
    """
    H, top = layers[0].hidden_size, len(layers) - 1
    e = emitter_of(layers, "stack", opset, names, pool, habits, max_nodes)
    finals, y = _carried(e, layers, form)
    outputs: list[dict[str, ir.Value]] = []
    for place, layer in enumerate(layers):
        wanted = dict(zip(layer.operator.outputs, (y if place == top else None, *finals), strict=True))
        outputs.append({})
        for name in (name for name in wanted if name in layer.outputs and wanted[name] is not None):
            own = e.slice(wanted[name], 3 if name == "Y" else 1, place * H, (place + 1) * H, name)
            own = own if name == "Y" else e.unsqueeze(own, [0], f"{name}_direction")
            outputs[-1][name] = own_value(e, e.cast(own, e.dtype, layer.dtype, f"{name}_cast"), name)
    return LoweredGroup(e.nodes, outputs)


def _carried(e: Emitter, layers: Sequence[RecurrentNode], form: str) -> tuple[State, Operand]:
    """Final states [batch_size, layers * hidden_size] and, where it is wanted, Y of as many columns, of all layers."""
    first, count = layers[0], len(layers)
    batch, units, sequence = first.static_batch or 0, count * first.hidden_size, read_sequence(e, first, form)
    joined, length = _joined(e, layers, sequence), sequence.span.seq_length()
    stacked, kept = "Y" in layers[-1].outputs, any(set(layer.outputs) - {"Y"} for layer in layers[:-1])
    state, ys = joined.initial, list[Operand]()
    for phase in _phases(e, joined.streams, length, np.repeat(np.arange(count), first.hidden_size), kept):
        streams, step = phase.streams, joined.step
        if phase.mask is not None:
            streams, step = [*streams, Stream(phase.mask, ir.DataType.BOOL, (1, units))], masked(step)
        wanted = stacked and phase.name != "begin"
        with e.scope(phase.name):
            last = CELLS[first.op_type].last
            track = Track("stack", step, last, streams, state, first.operator.states, False, (0,) if wanted else ())
            state, every = carry(form, e, track, Span(phase.seq_length, lambda: batch, batch, units))
        ys += every
    return state, e.concat(ys, 0, "Y_of_all") if ys else None


@dataclasses.dataclass(frozen=True)
class _Phase:
    """Some of the steps, which are a loop. mask: in which units a step counts [steps, 1, units]; None for all."""

    name: str
    streams: Sequence[Stream]
    mask: Operand
    seq_length: Callable[[], Size]


def _phases(e: Emitter, streams: Sequence[Stream], length: Size, layer: np.ndarray, kept: bool) -> list[_Phase]:
    """The steps until all layers have begun, and those of all layers; then, for states to be kept, until all are done.

    layer: of each unit.
    """
    above = int(layer[-1])

    def cut(parts: Sequence[Stream], start: int, end: int) -> list[Stream]:
        return [dataclasses.replace(one, values=e.slice(one.values, 0, start, end, "steps")) for one in parts]

    def steps_of(parts: Sequence[Stream]) -> Callable[[], Size]:
        return functools.cache(lambda: e.dim(parts[0].values, 0, "steps"))

    begin, rest = cut(streams, 0, above), cut(streams, above, END)
    if not kept:
        begun = constant(_first(above) >= layer, ir.DataType.BOOL)
        return [_Phase("begin", begin, begun, lambda: above), _Phase("all", rest, None, lambda: length)]
    middle, end = cut(rest, 0, -above), cut(rest, -above, END)
    counts = [steps_of(middle), steps_of(end)]
    if isinstance(length, int):
        last = min(above, length)
        counts = [lambda: length - last, lambda: last]
    begins, ends = _masks(e, length, layer)
    return [
        _Phase("begin", begin, begins, lambda: above),
        _Phase("all", middle, None, counts[0]),
        _Phase("end", end, ends, counts[1]),
    ]


def _masks(e: Emitter, length: Size, layer: np.ndarray) -> tuple[Operand, Operand]:
    """Of the first layers - 1 steps, and of as many last ones, or length: where layer <= step < layer + length."""
    above = int(layer[-1])
    steps = _first(above)
    going_on = constant(steps < layer, ir.DataType.BOOL)  # in step length + k those above layer k
    if isinstance(length, int):
        begun = constant((steps >= layer) & (steps < layer + length), ir.DataType.BOOL)
        return begun, e.slice(going_on, 0, max(0, above - length), above)
    since = constant(np.where(steps >= layer, steps - layer, END), ir.DataType.INT32)
    count = e.cast(length, ir.DataType.INT64, ir.DataType.INT32, "length")
    every = e.iota(e.op("Add", length, constant(above, ir.DataType.INT64), name="all_steps"))
    last = e.slice(e.slice(every, 0, above, END), 0, -above, END, "last_steps")
    rows = e.op("Sub", last, length, name="beyond_the_first_layer")
    return e.op("Less", since, count, name="begun"), e.gather(going_on, rows, "going_on")


def _first(count: int) -> np.ndarray:
    """So many steps [count, 1, 1]."""
    return np.arange(count)[:, np.newaxis, np.newaxis]


@dataclasses.dataclass(frozen=True)
class _Joined:
    """All layers as one wide cell. streams: of all seq_length + layers - 1 steps.  initial: its first states."""

    step: Step
    streams: Sequence[Stream]
    initial: State


def _joined(e: Emitter, layers: Sequence[RecurrentNode], sequence: InputSequence) -> _Joined:
    first, kind, count, H = layers[0], CELLS[layers[0].op_type], len(layers), layers[0].hidden_size
    batch, parts = first.static_batch or 0, parts_of(e, first, 0, together=False)
    parameters, cells, initial = [], [], []
    for place, layer in enumerate(layers):
        with e.scope(f"layer{place}"):
            parameters.append(Parameters.read(e, layer, 0))
            cells.append(cell_of(e, layer, 0, parts, parameters[-1]))
            initial.append([initial_state(e, layer, f"initial_{name}", 0, None) for name in layer.operator.states])
    recurrent, upper = [], dict[int, Operand]()
    for place, (start, end) in enumerate(parts):
        own = {(k, k): cell.weights.recurrent[place] for k, cell in enumerate(cells)}
        below = {(k - 1, k): one.matrix(e, "W", start, end) for k, one in enumerate(parameters) if k}
        if start == kind.reset_gate:  # what r scales is the layer's own alone
            upper[place], below = blocks(e, below, count, end - start, H, "W"), {}
        recurrent.append(blocks(e, own | below, count, end - start, H, "R"))
    cell = wide_cell(e, cells, recurrent)

    def step(e: Emitter, inputs: Sequence[Operand], state: State) -> tuple[State, Terms]:
        more = {place: e.add(e.matmul(state[0], W), inputs[place], "projected") for place, W in upper.items()}
        return kind.advance(cell, e, [more.get(place, x) for place, x in enumerate(inputs)], state)

    return _Joined(step, _streams(e, layers, parts, parameters, sequence), wide_initial(e, initial, (batch, H)))


def _streams(
    e: Emitter, layers: Sequence[RecurrentNode], parts: Parts, parameters: Sequence[Parameters], sequence: InputSequence
) -> list[Stream]:
    """X * W of the first layer, nothing for the others, and the biases of all.

    Zeros are put beside the product, not into W: an infinity in X times zero would be a NaN in every layer.
    """
    first, count, length = layers[0], len(layers), sequence.span.seq_length()
    H, batch = first.hidden_size, first.static_batch or 0
    none = e.concat([e.unsqueeze(e.zeros([length, H]), [1], "nothing")] * batch, 1, "nothing")
    nothing = e.concat([none, filled(0.0, (count - 1, batch, H), e.dtype)], 0, "nothing")
    streams = []
    for start, end in parts:
        gates = end - start
        rest = filled(0.0, (count - 1, batch, gates * H), e.dtype)  # what the first layer reads when it is done
        product = e.concat(
            [e.matmul(sequence.x, parameters[0].matrix(e, "W", start, end), "X_W"), rest], 0, "X_W_and_rest"
        )
        own = e.split(product, 2, [H] * gates, ["first_layer_gate"] * gates)
        values = e.concat(gate_by_gate([own, *[[nothing] * gates] * (count - 1)]), 2, "first_layer")
        biases = [input_bias(e, layer, one, start, end) for layer, one in zip(layers, parameters, strict=True)]
        values = e.add(values, by_gates(e, biases, gates, H, 0, "bias"), "projected")
        streams.append(Stream(values, e.dtype, (batch, count * gates * H)))
    return streams
