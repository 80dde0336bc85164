"""Many steps: repeat a step over time as Scan, Loop or unrolled nodes. Independent of gates, weights and runtimes.

A form accepts a `Recurrence`, one direction of a node, and returns its final states and, if requested, the first state
of every step stacked over time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from rnn_lower.builder.constants import Constant, constant
from rnn_lower.builder.graph_builder import INT64, GraphBuilder, Operand, Size, as_value, declare
from rnn_lower.builder.versions import exists
from rnn_lower.errors import Requirement, UnmetRequirementError
from rnn_lower.lowering.cells import State


@dataclasses.dataclass(frozen=True)
class ScanInput:
    """An input of the step, with shape [seq_length, *shape] over all steps.

    values: emits the values of all steps.  single: the time axis (of length 1) is already removed.
    step: emits the input of the step at a static time without slicing `values`, or None.
    """

    values: Callable[[], Operand]
    dtype: ir.DataType
    shape: tuple[int | None, ...]
    single: bool = False
    step: Callable[[int], Operand] | None = None


@dataclasses.dataclass(frozen=True)
class Extent:
    """seq_length and batch_size; a form that needs a dynamic size emits the nodes that compute it.

    batch: the batch size if static, its name if symbolic, else None.
    """

    seq_length: Callable[[], Size]
    batch_size: Callable[[], Size]
    batch: int | str | None
    hidden_size: int

    @property
    def static_batch(self) -> int | None:
        return self.batch if isinstance(self.batch, int) else None

    @property
    def state_shape(self) -> tuple[int | None, int]:
        """The shape in a body: static sizes or None, since tract fails to unify names of symbolic dimensions."""
        return (self.static_batch, self.hidden_size)

    def materialize(self, b: GraphBuilder, state: Operand) -> Operand:
        """Return the state, or zeros if it is None."""
        if state is not None:
            return state
        zeros = b.zeros([self.batch_size(), self.hidden_size])
        # With the symbolic name, onnxruntime infers that the product and the input of a step in a Scan have one shape,
        # and fuses them with the activation. This saves 2 % of the time for LSTM, 3 to 15 % for GRU and 5 to 50 % for
        # RNN; the smaller the model, the more.
        declare(zeros, b.dtype, [self.batch, self.hidden_size])
        return zeros


Step = Callable[[GraphBuilder, Sequence[Operand], State], State]
"""(builder, inputs of the step, states) -> new states."""


@dataclasses.dataclass(frozen=True)
class Recurrence:
    """One direction: `step` maps its inputs at one time and its states to its new states.

    initial: [batch_size, hidden_size] per state; None is the zero state.  reverse: time runs from seq_length - 1 to 0;
    results stay at the index of their time.  every: whether the first state of every step is an output.
    """

    name: str
    step: Step
    inputs: Sequence[ScanInput]
    initial: State
    state_names: Sequence[str]
    reverse: bool
    every: bool


Result = tuple[State, Operand]
"""Final states [batch_size, hidden_size], and the first state of all steps [seq_length, 1, batch_size, hidden_size]."""

Form = Callable[[GraphBuilder, Recurrence, Extent], Result]


def scan(b: GraphBuilder, recurrence: Recurrence, extent: Extent) -> Result:
    """Emit a Scan (opset 9 or newer); a reverse direction sets the scan directions."""
    body = b.body()
    steps = [body.new_value("step", scanned.dtype, scanned.shape) for scanned in recurrence.inputs]
    states, outputs = _run(body, recurrence, steps, extent)
    if recurrence.every:  # unsqueezed, because one value must not be two outputs of a graph
        outputs.append(_declared(body.unsqueeze(outputs[0], [0], "Y"), body, [1, *extent.state_shape]))
    directions = {}
    if recurrence.reverse:
        directions["scan_input_directions"] = [1] * len(steps)
        if recurrence.every:
            directions["scan_output_directions"] = [1]
    initial = [extent.materialize(b, state) for state in recurrence.initial]
    inputs = [*initial, *(scanned.values() for scanned in recurrence.inputs)]
    graph = body.graph([*states, *steps], outputs, "body")
    return _emit(b, "Scan", inputs, recurrence, graph, num_scan_inputs=len(steps), **directions)


def loop(b: GraphBuilder, recurrence: Recurrence, extent: Extent) -> Result:
    """Emit a Loop (any opset); a reverse direction reads its inputs flipped."""
    length = extent.seq_length()
    sources = [
        b.flip(scanned.values(), length) if recurrence.reverse else scanned.values() for scanned in recurrence.inputs
    ]
    body = b.body()
    trip, condition = body.new_value("trip", INT64, []), body.new_value("condition", ir.DataType.BOOL, [])
    steps = [body.gather(values, trip, "step") for values in sources]
    states, outputs = _run(body, recurrence, steps, extent)
    if recurrence.every:
        outputs.append(_declared(body.op("Identity", outputs[0], name="Y"), body, extent.state_shape))
    still = body.op("Identity", condition, name="still_true")
    still.type, still.shape = condition.type, condition.shape
    initial = [extent.materialize(b, state) for state in recurrence.initial]
    inputs = [b.as_scalar(length), constant(True, ir.DataType.BOOL), *initial]
    graph = body.graph([trip, condition, *states], [still, *outputs], "body")
    finals, every = _emit(b, "Loop", inputs, recurrence, graph)
    if every is None:
        return finals, None
    every = _with_sizes(b, every, extent)
    return finals, b.flip(every, length) if recurrence.reverse else every


def unroll(b: GraphBuilder, recurrence: Recurrence, extent: Extent) -> Result:
    """Emit one copy of the step for each time; the first step of a zero state needs no recurrent product."""
    seq_length = extent.seq_length()
    assert isinstance(seq_length, int)
    _check_count(b, seq_length, seq_length, "more than ")
    state, states, counts = recurrence.initial, [], []
    with b.shared_constants():
        steps = [_each_step(b, scanned, seq_length, extent) for scanned in recurrence.inputs]
        for t in reversed(range(seq_length)) if recurrence.reverse else range(seq_length):
            with b.scope(f"t{t}"):
                state = recurrence.step(b, [at(t) for at in steps], state)
                states.append(state[0])
            counts.append(len(b.nodes))
            if len(counts) == 2:  # all steps but the first emit the same nodes
                _check_count(b, seq_length, counts[1] + (seq_length - 2) * (counts[1] - counts[0]))
    finals = tuple(extent.materialize(b, final) for final in state)
    if not recurrence.every:
        return finals, None
    return finals, _stacked(b, states[::-1] if recurrence.reverse else states, extent)


def _stacked(b: GraphBuilder, states: Sequence[Operand], extent: Extent) -> Operand:
    """Stack the states [batch_size, hidden_size] of all steps to [seq_length, 1, batch_size, hidden_size]."""
    rows = [extent.materialize(b, state) for state in states]
    if len(rows) == 1:
        return b.unsqueeze(rows[0], [0, 1], "Y")
    batch_size = -1 if extent.static_batch is None else extent.static_batch
    every = b.reshape(b.concat(rows, 0, "rows"), [len(rows), 1, batch_size, extent.hidden_size], "Y")
    declare(every, b.dtype, [len(rows), 1, extent.batch, extent.hidden_size])
    return every


def _each_step(b: GraphBuilder, scanned: ScanInput, seq_length: int, extent: Extent) -> Callable[[int], Operand]:
    """Return a function that emits the input of the step at time t [batch_size, columns].

    With a static batch size, one Split of rows serves all steps; otherwise each part is squeezed.
    """
    if scanned.step is not None:
        return scanned.step
    values = scanned.values()
    if scanned.single:
        return lambda t: values
    if isinstance(values, Constant):
        return lambda t: b.squeeze(b.slice(values, 0, t, t + 1, "slab"), [0], "step")
    if not extent.static_batch:
        slabs = b.split(values, 0, [1] * seq_length, [f"t{t}/slab" for t in range(seq_length)])
        return lambda t: b.squeeze(slabs[t], [0], "step")
    rows = b.reshape(values, [seq_length * extent.static_batch, -1], "rows")
    parts = b.split(rows, 0, [extent.static_batch] * seq_length, [f"t{t}/step" for t in range(seq_length)])
    return lambda t: parts[t]


def no_steps(b: GraphBuilder, recurrence: Recurrence, extent: Extent) -> Result:
    """Return the initial states, and a Y with no steps."""
    finals = tuple(extent.materialize(b, state) for state in recurrence.initial)
    if not recurrence.every:
        return finals, None
    if extent.static_batch is not None or exists("ConstantOfShape", b.opset):
        return finals, b.zeros([0, 1, extent.batch_size(), extent.hidden_size], "Y")
    rows = b.zeros([extent.batch_size(), extent.hidden_size])
    return finals, b.slice(b.unsqueeze(rows, [0, 1], "no_steps"), 0, 0, 0, "Y")


def _check_count(b: GraphBuilder, seq_length: int, nodes: int, about: str = "") -> None:
    if b.max_nodes is not None and nodes > b.max_nodes:
        what = (
            f"unrolling {seq_length} steps emits {about}{nodes} nodes, but at most {b.max_nodes} more nodes are allowed"
        )
        raise UnmetRequirementError(what, [Requirement(what, forms=("scan", "loop"), nodes=True)])


FORMS: Mapping[str, Form] = {"scan": scan, "loop": loop, "unroll": unroll}


def carry(form: str, b: GraphBuilder, recurrence: Recurrence, extent: Extent) -> Result:
    """Emit all steps of one direction in a form of FORMS; an empty sequence (static length 0) needs no steps."""
    return (no_steps if extent.seq_length() == 0 else FORMS[form])(b, recurrence, extent)


def _run(
    body: GraphBuilder, recurrence: Recurrence, steps: Sequence[Operand], extent: Extent
) -> tuple[list[ir.Value], list[ir.Value]]:
    """Emit the step in a body; return the states before and after it."""
    names = (f"previous_{name}" for name in recurrence.state_names)
    states = [body.new_value(name, body.dtype, extent.state_shape) for name in names]
    new = recurrence.step(body, steps, tuple(states))
    return states, [_declared(state, body, extent.state_shape) for state in new]


def _declared(value: Operand, body: GraphBuilder, shape: Sequence[int | None]) -> ir.Value:
    declare(value, body.dtype, shape)
    return as_value(value)


def _emit(
    b: GraphBuilder, op_type: str, inputs: Sequence[Operand], recurrence: Recurrence, body: ir.Graph, **attributes: Any
) -> Result:
    """Emit a Scan or Loop; return its final states and stacked output."""
    names, count = [f"final_{name}" for name in recurrence.state_names], len(recurrence.state_names)
    names += ["Y"] if recurrence.every else []
    results = b.op_multi(op_type, inputs, names, body=body, **attributes)
    return tuple(results[:count]), results[count] if recurrence.every else None


def _with_sizes(b: GraphBuilder, y: Operand, extent: Extent) -> Operand:
    """Reshape the stacked output of a Loop to [seq_length, 1, batch_size, hidden_size].

    After zero trips, every dynamic size is 0; and onnx's ReferenceEvaluator concatenates steps along axis 0 instead of
    stacking them. The elements and their order are the same, so one Reshape corrects both. A second Reshape is avoided:
    onnxruntime merges two in a row and trusts the declared output shape, even if it is wrong.
    """
    seq_length, batch_size, hidden_size = extent.seq_length(), extent.static_batch, extent.hidden_size
    if batch_size is None and not isinstance(seq_length, int):
        if b.opset >= 5:  # since opset 5 sizes may be computed; 0 copies the input's size, so no axis can be inserted
            y = b.op("Reshape", y, b.shape_vector([seq_length, extent.batch_size(), hidden_size]), name="Y_shaped")
        return b.unsqueeze(y, [1], "Y_direction")
    steps, rows = seq_length if isinstance(seq_length, int) else -1, -1 if batch_size is None else batch_size
    return b.reshape(y, [steps, 1, rows, hidden_size], "Y_shaped")
