"""A stack of nodes, each of which reads what the one before gives, as one loop instead of one after the other.

    for step in range(seq_length + layers - 1):                  # layer l is at time step - l
        below = [X[step] * W_0, h[0] * W_1 ... h[layers - 2] * W_(layers - 1)]
        h, c = step_of_the_cell(below + biases, h, c)            # for the layers that have begun
        Y[step - (layers - 1)] = h[layers - 1]

States are [layers, batch_size, hidden_size]: each elementwise node of the step serves all layers, each product is of a
batch of matrices. Only the first layer's product with X is computed for all steps at once.

The first layers - 1 steps, in which not all layers have begun, are a loop of their own: a mask in every step would cost
a fifth of the time. A layer that is done goes on with whatever comes; what it gives then reaches nobody in time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from rnn_lower.emit.constants import ConstantPool, constant, filled
from rnn_lower.emit.masks import Emitter
from rnn_lower.emit.names import Names
from rnn_lower.emit.writer import Habits, Operand
from rnn_lower.recurrent.cells import CELLS, Cell, CellKind
from rnn_lower.recurrent.directions import Step, beside, masked, on_new_axis
from rnn_lower.recurrent.forms import Result, Size, Span, State, Stream, Track, carry
from rnn_lower.recurrent.lowering import (
    Parameters,
    cell_of,
    initial_state,
    input_bias,
    own_value,
    read_sequence,
)
from rnn_lower.recurrent.node import RecurrentNode
from rnn_lower.recurrent.shared import LoweredGroup, Paying, emitter_of, is_whole, kind_of

END = int(np.iinfo(np.int32).max)


PAYS = {"LSTM": Paying(3, 64), "GRU": Paying(3, 64)}
"""Time over that of the layers apart, T = 64, N = 1, H = 8 to 64: three LSTM 0.72 to 0.92, three GRU 0.79 to 0.96."""


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
    """Emit one loop for layers that fit, at an opset; only the last layer's outputs are there.

    Raises UnsupportedError as `lower_node`.
    """
    last = layers[-1]
    e = emitter_of(layers, "stack", opset, names, pool, habits, max_nodes)
    finals, y = _carried(e, layers, form)
    found: dict[str, Operand] = {"Y": y}
    for name, state in zip(last.operator.outputs[1:], finals, strict=True):
        if name in last.outputs:
            found[name] = e.slice(state, 0, len(layers) - 1, len(layers), name)
    values = {name: e.cast(found[name], e.dtype, last.dtype, f"{name}_cast") for name in last.outputs}
    outputs = {name: own_value(e, value, name) for name, value in values.items()}
    return LoweredGroup(e.nodes, [*({} for _ in layers[1:]), outputs])


@dataclasses.dataclass(frozen=True)
class _Joined:
    """All layers as one step. W, b: of the first one, which are used before the steps.  initial: its first states."""

    step: Step
    W: Operand
    b: Operand
    initial: State


def _joined(e: Emitter, layers: Sequence[RecurrentNode]) -> _Joined:
    kind, zeros = CELLS[layers[0].op_type], filled(0.0, (layers[0].static_batch or 0, layers[0].hidden_size), e.dtype)
    cells, W, b, states = [], [], [], []
    for place, layer in enumerate(layers):
        with e.scope(f"layer{place}"):
            parameters = Parameters.read(e, layer, 0)
            cells.append(cell_of(e, layer, 0, kind.fewest, parameters))
            W.append(parameters.matrix(e, "W", 0, layer.operator.gates))
            b.append(_bias(e, layer, parameters))
            initial = (initial_state(e, layer, f"initial_{name}", 0, None) for name in layer.operator.states)
            states.append([zeros if state is None else state for state in initial])
    joined = tuple(on_new_axis(e, of_layers, [0], "initial") for of_layers in zip(*states, strict=True))
    upper_W, upper_b = on_new_axis(e, W[1:], [0], "W"), on_new_axis(e, b[1:], [0, 1], "b")
    return _Joined(_step(kind, beside(e, cells), upper_W, upper_b, len(layers) - 1), W[0], b[0], joined)


def _carried(e: Emitter, layers: Sequence[RecurrentNode], form: str) -> tuple[State, Operand]:
    """Final states [layers, batch_size, hidden_size], of which the last are true, and Y of the last layer."""
    first, count, above = layers[0], len(layers), len(layers) - 1
    batch, columns = first.static_batch or 0, first.operator.gates * first.hidden_size
    sequence, joined = read_sequence(e, first, single=False), _joined(e, layers)
    projected = e.add(e.matmul(sequence.x, joined.W, "X_W"), joined.b, "projected")
    rest = filled(0.0, (above, batch, columns), e.dtype)  # what the first layer reads when it is done
    x = e.unsqueeze(e.concat([projected, rest], 0), [1], "first_layer")

    def carried(
        step: Step, streams: Sequence[Stream], states: State, stacked: bool, length: Callable[[], Size]
    ) -> Result:
        names, span = first.operator.states, Span(length, lambda: batch, batch, first.hidden_size)
        return carry(form, e, Track("stack", step, streams, states, names, False, stacked, (count,), top=True), span)

    def steps(start: int, end: int) -> Stream:
        return Stream(e.slice(x, 0, start, end, "steps"), e.dtype, (1, batch, columns))

    begun = constant(np.tri(above, count)[:, :, np.newaxis, np.newaxis], ir.DataType.BOOL)
    with e.scope("begin"):
        streams = [steps(0, above), Stream(begun, ir.DataType.BOOL, (count, 1, 1))]
        ready, _ = carried(masked(joined.step), streams, joined.initial, False, lambda: above)
    return carried(joined.step, [steps(above, END)], ready, "Y" in layers[-1].outputs, sequence.span.seq_length)


def _bias(e: Emitter, layer: RecurrentNode, parameters: Parameters) -> Operand:
    """What is added before the step, of all gates; None where nothing is."""
    parts = [input_bias(e, layer, parameters, *part) for part in CELLS[layer.op_type].fewest]
    return None if parts[0] is None else e.concat(parts, 0, "bias")


def _step(kind: CellKind, cell: Cell, W: Operand, b: Operand, above: int) -> Step:
    """The step of a cell whose layers but the first, so many, read what the layers below gave in the step before."""

    def stacked_step(e: Emitter, inputs: Sequence[Operand], state: State) -> State:
        below = e.slice(state[0], 0, 0, above, "below")
        projected = e.concat([inputs[0], e.add(e.matmul(below, W), b)], 0, "projected")
        sizes = [(end - start) * cell.hidden_size for start, end in kind.fewest]
        return kind.step(cell, e, e.split(projected, cell.gate_axis, sizes, ["projected"] * len(sizes)), state)

    return stacked_step
