"""The metadata of a streaming model: its states, and the axes of chunks in its inputs and outputs."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import onnx

from rnn_lower import untrusted
from rnn_lower.driver.legalize_rest import STREAM
from rnn_lower.errors import RnnLowerError
from rnn_lower.ir import protobuf
from rnn_lower.shapes.sizes import GROWS, Size

KEY = STREAM
SCHEMA = 1

MOST = 1 << 30
"""The largest number of frames in a plan, and of elements of an initial state."""

LAST, FIXED = "last", "fixed"
"""Kinds of outputs: they summarize all frames so far, or are the same for every chunk."""


@dataclasses.dataclass(frozen=True)
class State:
    """A state between chunks: an output that becomes an input of the next run.

    shape: sizes with the symbols of `Plan.symbols`.  first: the value before the first chunk, of size 1 along symbolic
    axes; None if the caller provides it, because it was an input of the original model.
    parts: for a packed state, the states that it contains.
    node: a description for messages.  rows: the batch axis, or None if it is unknown.
    """

    input: str
    output: str
    shape: tuple[Size, ...]
    dtype: str
    node: str
    rows: int | None
    first: np.ndarray | None = None
    parts: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Plan:
    """The metadata. inputs: the stream's axis by input.  outputs: by output, the stream's axis, "last" or "fixed".

    every: chunk lengths must be multiples of it.  symbols: by symbolic size, an input and axis that have it.
    reset: the input that resets rows, or None.  left: inputs whose states the caller feeds back.
    late: by delayed output, the delay in input frames.  cut: outputs without the last frames of a whole run, which come
    when the stream goes on.
    warm_up: by output, the number of invalid first frames, if chunks have one length.
    merged: by output whose stream axis has several rows for each frame, the symbols of their number.
    seen: the state that counts the frames before the chunk, if there is a warm-up.
    reach: the most input frames that an output looks back at, except through recurrent nodes.
    """

    inputs: Mapping[str, int]
    outputs: Mapping[str, int | str]
    states: tuple[State, ...]
    every: int = 1
    symbols: Mapping[str, tuple[str, int]] = dataclasses.field(default_factory=dict)
    reset: str | None = None
    left: tuple[str, ...] = ()
    late: Mapping[str, int] = dataclasses.field(default_factory=dict)
    cut: tuple[str, ...] = ()
    warm_up: Mapping[str, int] = dataclasses.field(default_factory=dict)
    merged: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    seen: str | None = None
    reach: int = 0

    def first(self, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
        """The initial values of the states, by input. sizes: numbers for the symbols."""
        values = {}
        for state in self.states:
            if state.first is not None:
                pairs = zip(state.shape, state.first.shape, strict=True)
                shape = [have if GROWS in dim.of else dim.at(sizes) for dim, have in pairs]
                values[state.input] = np.broadcast_to(state.first, shape).copy()
        return values

    def write(self, model: onnx.ModelProto) -> None:
        data = dataclasses.asdict(self) | {"schema": SCHEMA, "states": [_packed(state) for state in self.states]}
        entry = next((prop for prop in model.metadata_props if prop.key == KEY), None) or model.metadata_props.add(
            key=KEY
        )
        entry.value = json.dumps(data)


def read_plan(model: onnx.ModelProto) -> Plan | None:
    """The plan in the metadata of a streaming model, or None. Raises RnnLowerError for a newer format."""
    text = next((prop.value for prop in model.metadata_props if prop.key == KEY), None)
    if text is None:
        return None
    try:
        data = untrusted.loads(text)
        if data.pop("schema") != SCHEMA:
            raise RnnLowerError(
                "the streaming model was created by another version of rnn_lower; create it again (rnn-lower stream)"
            )
        data["left"], data["cut"] = tuple(data.get("left", ())), tuple(data.get("cut", ()))
        data["merged"] = {name: tuple(symbols) for name, symbols in data.get("merged", {}).items()}
        data["states"] = tuple(map(_unpacked, data["states"]))
        data["symbols"] = {name: (site[0], site[1]) for name, site in data["symbols"].items()}
        plan = Plan(**data)
        if not _is_of(plan, model):
            raise ValueError
    except (*untrusted.UNSOUND, ArithmeticError) as error:
        if isinstance(error, RnnLowerError):
            raise
        raise RnnLowerError(
            f"the metadata entry '{KEY}' of the model is damaged; create the model again (rnn-lower stream)"
        ) from None
    return plan


def batch_size(graph: onnx.GraphProto, streams: Mapping[str, int]) -> int | str | None:
    """The declared size of the first axis of the stream's first input that does not count frames, or None.

    streams: by input, the axis that counts frames.
    """
    declared = {value.name: protobuf.dims_of(value) for value in graph.input}
    name, axis = next(iter(streams.items()), ("", 0))
    return next((dim for k, dim in enumerate(declared.get(name) or ()) if k != axis), None)


def fixed_step(model: onnx.ModelProto, plan: Plan) -> int | None:
    """The fixed length of a chunk, or None."""
    for name, axis in plan.inputs.items():
        dims = protobuf.dims_of(next(value for value in model.graph.input if value.name == name))
        dim = None if dims is None else dims[axis]
        return dim if isinstance(dim, int) else None
    return None


def is_batch(rows: Size, batch: int | str | None) -> bool:
    """Whether a state with this number of rows can have one for each row of the batch. batch: its size, if declared.

    A stream without a batch axis has states of one row.
    """
    if rows.of:
        return rows.times == 1 and len(rows.of) == 1
    return batch is None or rows.number in (1, batch)


def _is_of(plan: Plan, model: onnx.ModelProto) -> bool:
    """Whether a plan is one of this model: its names exist, its axes are within the ranks, its numbers are bounded."""
    inputs, outputs = ({value.name: value for value in side} for side in (model.graph.input, model.graph.output))
    fed = {state.output for state in plan.states}
    axes = [*plan.inputs.items(), *plan.symbols.values()]
    axes += [(state.input, state.rows) for state in plan.states if state.rows is not None]
    output_axes = [(name, what) for name, what in plan.outputs.items() if what not in (LAST, FIXED)]
    numbers = [plan.every, plan.reach, *plan.late.values(), *plan.warm_up.values()]
    input_names = {*plan.left, *(name for name, _ in axes), *(state.input for state in plan.states)}
    input_names |= {name for name in (plan.reset, plan.seen) if name is not None}
    sites = {name for name, _ in plan.symbols.values()}
    return (
        input_names <= inputs.keys()
        and {*plan.outputs, *plan.late, *plan.cut, *plan.warm_up, *plan.merged, *fed} <= outputs.keys()
        and {symbol for symbols in plan.merged.values() for symbol in symbols} <= plan.symbols.keys()
        and all(has_axis(inputs[name], axis) for name, axis in axes)
        and all(has_axis(outputs[name], axis) for name, axis in output_axes)
        and all(type(number) is int and 0 <= number <= MOST for number in numbers)
        and plan.every > 0
        and (plan.seen is not None or not plan.warm_up)
        and (bool(plan.inputs) or not output_axes)
        and not any(state.first is not None and state.input in sites for state in plan.states)
        and plan.reset not in {*plan.inputs, *(state.input for state in plan.states)}
        and len(fed) == len({state.input for state in plan.states}) == len(plan.states)
        and all(_is_state(state, plan, inputs[state.input], outputs[state.output]) for state in plan.states)
    )


def has_axis(value: onnx.ValueInfoProto, axis: object) -> bool:
    """Whether an input or output has an axis, as far as its rank is declared."""
    dims = protobuf.dims_of(value)
    return type(axis) is int and 0 <= axis < (MOST if dims is None else len(dims))


def _is_state(state: State, plan: Plan, *ends: onnx.ValueInfoProto) -> bool:
    """Whether a state has the type and the rank of its input and output, and known sizes."""
    types = {value.type.tensor_type.elem_type for value in ends} - {onnx.TensorProto.UNDEFINED}  # outputs need no type
    if state.first is None:
        return len(types) == 1
    ranks = {len(dims) for value in ends if (dims := protobuf.dims_of(value)) is not None}
    return (
        types == {onnx.TensorProto.DataType.Value(state.dtype)}
        and {state.first.ndim, *ranks} == {len(state.shape)}
        and all({*dim.of} <= {GROWS, *plan.symbols} for dim in state.shape)
        and all(0 <= dim.times <= MOST for dim in state.shape)
        and all(
            GROWS in dim.of or have == (1 if dim.of else dim.number)
            for dim, have in zip(state.shape, state.first.shape, strict=True)
        )
    )


def _packed(state: State) -> dict[str, Any]:
    first: Any = None
    if state.first is not None:
        first = {"shape": state.first.shape, "npy": _text(state.first) if state.first.any() else None}
    shape = [[str(dim.times), list(dim.of)] for dim in state.shape]
    return {**dataclasses.asdict(dataclasses.replace(state, first=None)), "shape": shape, "first": first}


def _unpacked(data: dict[str, Any]) -> State:
    first = data["first"]
    if first is not None:
        if not 0 <= math.prod(first["shape"]) <= MOST:
            raise ValueError
        zeros = np.zeros(
            first["shape"], onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.DataType.Value(data["dtype"]))
        )
        first = zeros if first["npy"] is None else _array(first["npy"], zeros)
    if any("e" in str(times).lower() for times, _ in data["shape"]):  # a power of ten of any size
        raise ValueError
    shape = tuple(Size(Fraction(times), tuple(symbols)) for times, symbols in data["shape"])
    return State(**{**data, "shape": shape, "first": first, "parts": tuple(data["parts"])})


def _text(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def _array(text: str, like: np.ndarray) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), like.dtype).reshape(like.shape)
