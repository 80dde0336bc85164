"""Run a streaming model chunk by chunk: the state is held here."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lower.errors import RnnLowerError
from rnn_lower.model import files
from rnn_lower.model.document import Document
from rnn_lower.model.scopes import recurrent_nodes
from rnn_lower.proof.runners import open_onnxruntime
from rnn_lower.streaming.plan import LAST, Plan, State, read_plan

Feeds = dict[str, np.ndarray]


class StreamingSession:
    """A streaming model on onnxruntime, with its state.

    model: what `rnn_lower.stream` or `rnn-lower stream` has made, or any model whose states are inputs and outputs
    already; these are named then, e.g. states={"h": "new_h"}.  run: computes outputs, in the order of the model, from
    inputs by name; onnxruntime does when it is not given.
    Raises RnnLowerError for a model that is no streaming model.
    """

    def __init__(
        self, model: str | os.PathLike[str] | onnx.ModelProto | ir.Model, *,
        states: Mapping[str, str] | None = None, run: Callable[[Feeds], Sequence[Any]] | None = None,
    ) -> None:  # fmt: skip
        document, path = files.open_model(model)
        self.plan = _plan(document, states)
        self._outputs = [value.name for value in document.proto.graph.output]
        self._inputs = [str(value.name) for value in document.model.graph.inputs if not value.is_initializer()]
        self._fused = next(recurrent_nodes(document.model), None) is not None
        self._run = run or open_onnxruntime(document, path)
        self._begin: Feeds = {}
        self._state: Feeds = {}

    def run(self, chunk: Any) -> Feeds:
        """The outputs for the next frames, by name, the states aside.

        chunk: arrays by input name, or one array where the model has one input beside its states. The first chunk
        brings the states that the model takes from its caller, too.
        Raises RnnLowerError when inputs lack, or for a number of frames that strides do not divide.
        """
        feeds = {name: np.asarray(array) for name, array in self._named(chunk).items()}
        frames = {name: feeds[name].shape[axis] for name, axis in self.plan.inputs.items() if name in feeds}
        if any(count % self.plan.every for count in frames.values()):
            raise RnnLowerError(f"a chunk must be of a multiple of {self.plan.every} frames, not of {frames}")
        if self._fused and 0 in frames.values():
            raise RnnLowerError("a chunk of no frames: the fused operators of onnxruntime need at least one")
        if not self._state.keys() & {state.input for state in self.plan.states}:
            self._start(feeds)
        held = {name: array for name, array in self._state.items() if name not in feeds}
        given = {**feeds, **held}
        if missing := [name for name in self._inputs if name not in given and name != self.plan.reset]:
            raise RnnLowerError(f"the chunk lacks {', '.join(missing)}")
        if self.plan.reset is not None and self.plan.reset not in given:
            given[self.plan.reset] = np.zeros(self._rows(feeds), bool)
        results = dict(zip(self._outputs, self._run(given), strict=True))
        self._state = {state.input: np.asarray(results[state.output]) for state in self.plan.states}
        return {name: results[name] for name in self.plan.outputs}

    def reset(self, rows: Any = None) -> None:
        """Forget what came before; rows: only in these rows of the batch, as indices or a mask."""
        if rows is None:
            self._state = {}
            return
        for state in self.plan.states:
            if state.input not in self._state:
                continue
            if state.shape and (size := state.shape[state.rows]).of and (size.times != 1 or len(size.of) > 1):
                raise RnnLowerError(f"state '{state.input}' has rows of the batch merged with others; reset all of it")
            now = np.array(self._state[state.input])
            place = (slice(None),) * state.rows + (np.asarray(rows),)
            now[place] = self._begin[state.input][place]
            self._state[state.input] = now

    @property
    def state(self) -> Feeds:
        """The states by the inputs that take them, to be saved; empty before the first chunk."""
        return {name: array.copy() for name, array in self._state.items()}

    @state.setter
    def state(self, arrays: Mapping[str, Any]) -> None:
        wanted = {state.input for state in self.plan.states}
        if arrays and set(arrays) != wanted:
            raise RnnLowerError(
                f"the states are {', '.join(sorted(wanted)) or 'none'}, not {', '.join(sorted(arrays))}"
            )
        self._state = {name: np.array(array) for name, array in arrays.items()}

    def _named(self, chunk: Any) -> Mapping[str, Any]:
        if isinstance(chunk, Mapping):
            return chunk
        carried = {state.input for state in self.plan.states}
        free = [name for name in self._inputs if name not in carried and name != self.plan.reset]
        if len(free) != 1:
            raise RnnLowerError(f"the model has {len(free)} inputs; give arrays by name: {', '.join(free)}")
        return {free[0]: chunk}

    def _start(self, feeds: Feeds) -> None:
        """The states before the first chunk: those of the model, and those that the caller gives."""
        theirs = {state.input: feeds[state.input] for state in self.plan.states if state.input in feeds}
        self._begin = {**self.plan.first(self._sizes(feeds)), **theirs}
        self._state = {name: array for name, array in self._begin.items() if name not in theirs}

    def _sizes(self, feeds: Feeds) -> dict[str, int]:
        places = self.plan.symbols.items()
        return {symbol: feeds[name].shape[axis] for symbol, (name, axis) in places if name in feeds}

    def _rows(self, feeds: Feeds) -> int:
        state: State = next(state for state in self.plan.states if state.first is not None)
        return int(self._state[state.input].shape[state.rows])


def _plan(document: Document, states: Mapping[str, str] | None) -> Plan:
    plan = read_plan(document.proto)
    if plan is not None and states is None:
        return plan
    if states is None:
        raise RnnLowerError(
            "it is no streaming model: make one (rnn-lower stream), or name its states (states={INPUT: OUTPUT})"
        )
    outputs = [value.name for value in document.proto.graph.output]
    inputs = [value.name for value in document.proto.graph.input]
    for given, back in states.items():
        if given not in inputs or back not in outputs:
            raise RnnLowerError(f"states: there is no input '{given}' with an output '{back}'")
    held = tuple(State(given, back, (), "", given, 0) for given, back in states.items())
    known = plan or Plan({}, dict.fromkeys(outputs, LAST), ())
    left = {name: what for name, what in known.outputs.items() if name not in states.values()}
    return dataclasses.replace(known, outputs=left, states=(*known.states, *held))
