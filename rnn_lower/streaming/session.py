"""Run a streaming model chunk by chunk, and keep its state between the chunks."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lower.checking.runners import load_onnxruntime
from rnn_lower.errors import RnnLowerError, one_line, public
from rnn_lower.ir import protobuf
from rnn_lower.ir.walk import nodes
from rnn_lower.modelio import files
from rnn_lower.modelio.document import Document
from rnn_lower.options import OP_TYPES, QUANTIZED
from rnn_lower.shapes.declared import can_agree, declaration
from rnn_lower.shapes.sizes import GROWS
from rnn_lower.streaming.plan import LAST, Plan, State, batch_size, is_batch, read_plan

Feeds = dict[str, np.ndarray]

NEED_FRAMES = {*OP_TYPES, QUANTIZED, "Scan", "Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool"}
"""onnxruntime fails on an empty chunk, or a pool makes a frame of its state alone."""


class StreamingSession:
    """Run a streaming model on onnxruntime, and keep its state.

    model: the result of `rnn_lower.stream` or `rnn-lower stream`, or any model whose states already are inputs and
        outputs. For such a model, name the states, e.g. states={"h": "new_h"}.
    run: a function that computes the outputs, in the order of the model, from the inputs by name; the default is
        onnxruntime.

    Raises RnnLowerError for a model that is not a streaming model.
    """

    @public
    def __init__(
        self, model: str | os.PathLike[str] | onnx.ModelProto | ir.Model, *,
        states: Mapping[str, str] | None = None, run: Callable[[Feeds], Sequence[Any]] | None = None,
    ) -> None:  # fmt: skip
        document, path = files.open_model(model)
        self.plan = plan_with(document, states)
        self._outputs = [value.name for value in document.proto.graph.output]
        self._inputs = [str(value.name) for value in document.model.graph.inputs if not value.is_initializer()]
        self._batch = batch_size(document.proto.graph, self.plan.inputs)
        self._known = {str(value.name) for value in document.model.graph.inputs}
        self._needs_frames = LAST in self.plan.outputs.values()
        self._needs_frames |= any(node.op_type in NEED_FRAMES for node, _ in nodes(document.model))
        self._run = run or _with_errors(load_onnxruntime(document, path))
        declared = {value.name: protobuf.dims_of(value) for value in document.proto.graph.input}
        self._resettable = next(iter(declared.get(str(self.plan.reset)) or ()), None)
        self._begin: Feeds = {}
        self._state: Feeds = {}

    @public
    def run(self, chunk: Any) -> Feeds:
        """Return the outputs for the next frames, by name, without the states.

        chunk: arrays by input name, or a single array if the model has one input apart from its states. The first chunk
        must also contain the states that the caller has to provide.

        Raises RnnLowerError if inputs are missing, if the number of frames is not a multiple of the strides, or if the
        chunk is empty and the model returns the last frame or contains Scans, windows or recurrent operators.
        """
        feeds = {name: np.asarray(array) for name, array in self._named(chunk).items()}
        begins = not self._state.keys() & {state.input for state in self.plan.states}
        self._check(feeds, begins)
        began = self._started(feeds) if begins else self._begin
        held = began if begins else self._state
        inputs = {**feeds, **{name: array for name, array in held.items() if name not in feeds}}
        self._check_rows(inputs)
        if self.plan.reset is not None and self.plan.reset not in inputs:
            inputs[self.plan.reset] = np.zeros(self.row_count(inputs), bool)
        results = dict(zip(self._outputs, self._run(inputs), strict=True))
        self._begin = began
        self._state = {state.input: np.asarray(results[state.output]) for state in self.plan.states}
        return {name: self._without_warm_up(name, results[name], inputs) for name in self.plan.outputs}

    def _without_warm_up(self, name: str, result: Any, chunk: Feeds) -> Any:
        """An output without its warm-up frames."""
        axis, first = self.plan.outputs[name], self.plan.warm_up.get(name)
        if first is None or self.plan.seen is None or not isinstance(axis, int):
            return result
        source, frame_axis = next(iter(self.plan.inputs.items()))
        before = int(np.ravel(chunk[self.plan.seen])[0]) // chunk[source].shape[frame_axis] * result.shape[axis]
        return np.take(result, range(min(result.shape[axis], max(0, first - before)), result.shape[axis]), axis)

    def reset(self, rows: Any = None) -> None:
        """Forget the state; rows: reset only these rows of the batch, as indices or a mask."""
        if rows is None:
            self._state = {}
            return
        after: Feeds = {}
        for state in self.plan.states:
            if state.input not in self._state:
                continue
            if any(GROWS in dim.of for dim in state.shape):
                raise RnnLowerError(
                    f"state '{state.input}' holds delayed frames, and the delay is the same for all batch "
                    "rows, so individual rows cannot be reset; reset all rows"
                )
            if state.rows is None:
                raise RnnLowerError(f"the batch axis of state '{state.input}' is unknown; reset all rows")
            rows_of_state = state.shape[state.rows] if state.shape else None
            if rows_of_state is not None and not is_batch(rows_of_state, self._batch):
                raise RnnLowerError(
                    f"the batch axis of state '{state.input}' is merged with other axes, so individual rows cannot be"
                    " reset; reset all rows"
                )
            first = self._begin.get(state.input) if state.first is None else state.first
            if first is None:
                raise RnnLowerError(f"the initial value of state '{state.input}' is unknown; reset all rows")
            now = np.array(self._state[state.input])
            index = (slice(None),) * state.rows + (np.asarray(rows, None if np.size(rows) else np.int64),)
            try:
                now[index] = np.broadcast_to(first, now.shape)[index]
            except IndexError as error:
                raise RnnLowerError(f"rows {rows!r} of state '{state.input}': {error}") from None
            after[state.input] = now
        self._state |= after

    @property
    def state(self) -> Feeds:
        """The states by input name, for example to save them; empty before the first chunk."""
        return {name: array.copy() for name, array in self._state.items()}

    @state.setter
    def state(self, arrays: Mapping[str, Any]) -> None:
        wanted = {state.input for state in self.plan.states}
        if not isinstance(arrays, Mapping):
            raise RnnLowerError(
                f"the state is of type {type(arrays).__name__}; it must map the names of state inputs to arrays"
            )
        if arrays and set(arrays) != wanted:
            raise RnnLowerError(
                f"the states of the model are {', '.join(sorted(wanted)) or 'none'}, not {', '.join(sorted(arrays))}"
            )
        self._state = {name: np.array(array) for name, array in arrays.items()}

    def _named(self, chunk: Any) -> Mapping[str, Any]:
        if isinstance(chunk, Mapping):
            return chunk
        carried = {state.input for state in self.plan.states}
        free = [name for name in self._inputs if name not in carried and name != self.plan.reset]
        if len(free) != 1:
            raise RnnLowerError(
                f"the model has {len(free)} inputs; pass a dict of arrays with the names {', '.join(free)}"
            )
        return {free[0]: chunk}

    def _check(self, feeds: Feeds, begins: bool) -> None:
        """Raise RnnLowerError for inputs of the wrong type or shape, which could broadcast without an error."""
        held = {state.input for state in self.plan.states if not begins or state.first is not None}
        lacking = [name for name in self._inputs if name not in feeds and name not in held and name != self.plan.reset]
        if lacking:
            raise RnnLowerError(f"the chunk has no array for {', '.join(lacking)}; pass an array for every input")
        if unknown := [name for name in feeds if name not in self._known]:
            raise RnnLowerError(f"the model has no input '{unknown[0]}'; inputs: {', '.join(self._inputs)}")
        for name, axis in (*self.plan.symbols.values(), *self.plan.inputs.items()):
            if name in feeds and feeds[name].ndim <= axis:
                raise RnnLowerError(f"input '{name}' has shape {list(feeds[name].shape)}, which has no axis {axis}")
        frames = {name: feeds[name].shape[axis] for name, axis in self.plan.inputs.items()}
        if len(set(frames.values())) > 1:
            raise RnnLowerError(
                f"the inputs of a chunk must all have the same number of frames, but they have {frames}"
            )
        if any(count % self.plan.every for count in frames.values()):
            raise RnnLowerError(
                f"the number of frames in a chunk must be a multiple of {self.plan.every}, not {frames}"
            )
        if self._needs_frames and 0 in frames.values():
            raise RnnLowerError("the chunk is empty; pass at least one frame, or skip this call")

    def _check_rows(self, chunk: Feeds) -> None:
        """Raise RnnLowerError if the batch sizes of states and chunk differ, which could broadcast without an error."""
        sizes = self._sizes(chunk)
        for state in self.plan.states:
            if not state.shape or not all(symbol in sizes for dim in state.shape for symbol in dim.of):
                continue
            wanted, shape = [dim.at(sizes) for dim in state.shape], list(np.shape(chunk[state.input]))
            if shape != wanted:
                raise RnnLowerError(
                    f"state '{state.input}' has shape {shape}, but this chunk needs shape {wanted}; call"
                    " reset() to start over"
                )

    def _started(self, feeds: Feeds) -> Feeds:
        """The initial states: those of the model, and those that the caller provides."""
        theirs = {state.input: feeds[state.input] for state in self.plan.states if state.input in feeds}
        return {**self.plan.first(self._sizes(feeds)), **theirs}

    def _sizes(self, feeds: Feeds) -> dict[str, int]:
        sites = self.plan.symbols.items()
        return {symbol: feeds[name].shape[axis] for symbol, (name, axis) in sites if name in feeds}

    def row_count(self, chunk: Feeds) -> int:
        """The number of rows that can be reset; packed states do not tell it."""
        if isinstance(self._resettable, int):
            return self._resettable
        counts = (
            np.shape(chunk[state.input])[state.rows]
            for state in self.plan.states
            if state.first is not None and state.rows is not None
        )
        return int(next(counts))


def _with_errors(run: Callable[[Feeds], Sequence[Any]]) -> Callable[[Feeds], Sequence[Any]]:
    """Convert the errors of a runtime to RnnLowerError."""

    def guarded(feeds: Feeds) -> Sequence[Any]:
        try:
            return run(feeds)
        except MemoryError:
            raise
        except Exception as error:
            raise RnnLowerError(f"the model does not run with this chunk: {one_line(error)}") from None

    return guarded


def plan_with(document: Document, states: Mapping[str, str] | None) -> Plan:
    """The plan in a model's metadata, or one made from the given state names."""
    if states is not None and not isinstance(states, Mapping):
        raise RnnLowerError(
            f"the argument 'states' is {states!r}, but it must be a dict that maps input names to output names"
        )
    plan = read_plan(document.proto)
    if plan is not None and (unnamed := set(plan.left) - set(states or ())):
        name = min(unnamed)
        raise RnnLowerError(
            f"input '{name}' is a state; name the output that returns the new state (--state {name}=OUTPUT)"
        )
    if plan is not None and states is None:
        return plan
    if states is None:
        raise RnnLowerError(
            "the model is not a streaming model; create a streaming model with rnn-lower stream, or "
            "name the states of this model (--state INPUT=OUTPUT)"
        )
    graph = document.model.graph
    inputs, outputs = ({str(value.name): value for value in side} for side in (graph.inputs, graph.outputs))
    for chunk, back in states.items():
        pair = f"--state {chunk}={back}"
        if chunk not in inputs or back not in outputs:
            raise RnnLowerError(f"{pair}: the model has no input '{chunk}' or no output '{back}'")
        if not can_agree(inputs[chunk], outputs[back], one_model=True):
            types = declaration(inputs[chunk]), declaration(outputs[back])
            raise RnnLowerError(f"{pair}: input '{chunk}' is {types[0]}, but output '{back}' is {types[1]}")
    held = tuple(State(chunk, back, (), "", chunk, 0) for chunk, back in states.items())
    known = plan or Plan({}, dict.fromkeys(outputs, LAST), ())
    own_outputs = {name: what for name, what in known.outputs.items() if name not in states.values()}
    return dataclasses.replace(known, outputs=own_outputs, states=(*known.states, *held))
