"""Determine the axis of the stream, and whether callers already carry the states along it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from rnn_lower.driver.plan import read_nodes
from rnn_lower.errors import RnnLowerError, UnsupportedError
from rnn_lower.lowering.node import Dim, display_name
from rnn_lower.modelio.document import Document
from rnn_lower.shapes.fixed_dims import Shapes, axis_name, declared_shapes, free_dims, free_proto_dim, join_proto_dims
from rnn_lower.shapes.shape_info import NO_NAMES, plain_dim
from rnn_lower.streaming.causality import CausalityAnalysis
from rnn_lower.streaming.data_flow import has_one_step, inputs_of, outputs_of
from rnn_lower.streaming.states.recurrent_states import Recurrence
from rnn_lower.streaming.states.state_caches import Carried, Joined

CALLS = ""
"""The axis of a model that computes one step of the stream per run."""


def opened(document: Document, time: str) -> tuple[Document, str, int | None]:
    """The document with one free size for the stream, its name, and the number if the export fixed it.

    time: the name of a size, or INPUT[AXIS], with commas between those of several inputs.
    """
    fixed = {
        axis_name(str(value.name), axis): (str(value.name), axis, size)
        for value in document.model.graph.inputs
        for axis, dim in enumerate(value.shape or ())
        if isinstance(size := plain_dim(dim), int)
    }
    axes = [fixed[name] for name in time.split(",") if name in fixed]
    if not axes:
        return *_joined(document, time), None
    if len(axes) < len(time.split(",")) or len({size for *_, size in axes}) > 1:
        raise RnnLowerError(f"--time {time}: all axes of the stream must have the same fixed size")
    symbol = ""
    for name, axis, _ in axes:
        symbol = free_proto_dim(document.proto, name, axis, symbol)
    return document.again(), symbol, axes[0][2]


def _joined(document: Document, time: str) -> tuple[Document, str]:
    """The document with one symbol for free axes that `time` names one by one, and the name of the stream's size."""
    parts = time.split(",")
    if len(parts) < 2 or time in _free(document):
        return document, time
    symbol = join_proto_dims(document.proto, [place for part in parts for place in _places(document, part)])
    return document.again(), symbol


def outside(document: Document) -> str | None:
    """The axis over which the caller already carries all states, or CALLS if each run of the model is one step.

    Returns None if there are more states to carry along the only free axis. Raises RnnLowerError if they run along an
    axis of fixed size, and UnsupportedError if the analysis failed, so that it is unknown whether there are more.
    """
    theirs, candidates, refused = set(external(document)), list[str](), None
    free = _free(document)
    for candidate in (*_fixed_axes(document), *free):
        work, axis, size = opened(document.copied(), candidate)
        try:
            carried = _carried(work, axis, size)
        except UnsupportedError as error:
            if not all(has_one_step(node) for node in read_nodes(work.model, work.shape_info)):
                refused = refused or error
            continue
        over = {edit.read.describe() for edit in carried if isinstance(edit, Recurrence)}
        more = _more_carried(work, carried, theirs)
        if more and (candidate in free or over & theirs):
            if candidate in free:
                return None
            raise RnnLowerError(
                f"the recurrent state is already an input, but {more[0].op_type} '{display_name(more[0])}' also needs"
                f" state; pass --time {candidate} to stream along this axis"
            )
        candidates += [candidate] if theirs <= over else []
    if candidates:
        return candidates[0]
    if refused is not None:
        raise UnsupportedError(
            f"{refused}; if only the recurrent nodes need state, and the model already has this state "
            "as inputs, lower the model instead (rnn-lower lower)"
        )
    return CALLS


def one_step(document: Document) -> str | None:
    """The axis of size 1 over which recurrent nodes run, CALLS if each run is one step, or None."""
    nodes = read_nodes(document.model, document.shape_info)
    if not nodes or not all(map(has_one_step, nodes)):
        return None
    shapes = [(node.layout, document.shape_info.shape(node.inputs["X"])) for node in nodes]
    batches = {shape[0 if layout else 1] for layout, shape in shapes if shape is not None}
    if any(symbol not in batches for symbol in _free(document)):
        return None  # a free axis that is not the batch may be the stream
    for name, axis, dim in _axes(document):
        if dim == 1:
            work, *_ = opened(document.copied(), axis_name(name, axis))
            if not all(has_one_step(node) for node in read_nodes(work.model, work.shape_info)):
                return axis_name(name, axis)
    return CALLS


def _runs_over(document: Document, axis: str) -> tuple[bool, str]:
    """Whether recurrent nodes run over an axis, and why the model is not causal along it, or ""."""
    try:
        return any(isinstance(edit, Recurrence) for edit in _carried(*opened(document.copied(), axis))), ""
    except UnsupportedError as error:
        return False, str(error)


def _carried(document: Document, axis: str, baked: int | None) -> list[Any]:
    analysis = CausalityAnalysis(document.model, document.shape_info, axes_of(document, axis), baked=baked)
    analysis.run()
    return analysis.carried


def _more_carried(document: Document, carried: Sequence[Any], theirs: set[str]) -> list[ir.Node]:
    """The nodes that need a state that the caller does not carry yet."""
    return [
        edit.read.node if isinstance(edit, Recurrence) else edit.node
        for edit in carried
        if (isinstance(edit, Carried) and not (isinstance(edit, Joined) and inputs_of(document.model, edit.front)))
        or (isinstance(edit, Recurrence) and edit.read.describe() not in theirs)
    ]


def _fixed_axes(document: Document) -> list[str]:
    """The axes of fixed size, except those of states that the caller provides."""
    initial = [
        node.inputs.get(f"initial_{letter}")
        for node in read_nodes(document.model, document.shape_info)
        for letter in node.operator.states
    ]
    states = {source.name for value in initial if value is not None for source in inputs_of(document.model, value)}
    return [axis_name(name, axis) for name, axis, dim in _axes(document) if name not in states and isinstance(dim, int)]


def stream_axis(document: Document, step: int | None) -> str:
    """Return the default axis of the stream: the only free axis, that of the recurrent nodes, or CALLS."""
    if external(document) and (axis := outside(document)) is not None:
        return axis
    if step == 1 and (axis := one_step(document)) is not None:
        return axis
    free = _free(document)
    trials = {name: _runs_over(document, name) for name in free} if len(free) > 1 else {}
    over = [name for name, (runs, _) in trials.items() if runs]
    if len(over) == 1:
        return over[0]
    if len(free) != 1:
        text = (
            "no input has a symbolic size"
            if not free
            else f"the inputs have several symbolic sizes ({', '.join(free)})"
        )
        if one_step(document) is not None:
            raise RnnLowerError(f"{text}, and each run is one step of the recurrent nodes; use --step 1")
        choices = " or ".join(f"--time {name}" for name in free or ("INPUT[AXIS]",))
        refused = [(name, why) for name, (_, why) in trials.items() if why and step is None]
        reasons = "".join(f"; along {name}, {why}" for name, why in refused)
        raise RnnLowerError(f"{text}; choose the axis of the stream ({choices}){reasons}")
    return free[0]


def _shapes(document: Document) -> Shapes:
    """The shapes of the required inputs."""
    model = document.model
    return {name: shape for name, shape in declared_shapes(model).items() if name not in model.graph.initializers}


def _axes(document: Document) -> list[tuple[str, int, Dim]]:
    """Each axis of the required inputs, with its size."""
    return [(name, axis, dim) for name, dims in _shapes(document).items() for axis, dim in enumerate(dims or ())]


def _free(document: Document) -> list[str]:
    """The names of the free sizes."""
    return list(dict.fromkeys(name for *_, name in free_dims(_shapes(document))))


def _symbol(dim: Dim) -> str | None:
    """The name of a symbolic size, if it tells which sizes are equal."""
    return dim if isinstance(dim, str) and dim not in NO_NAMES else None


def _places(document: Document, time: str) -> list[tuple[str, int]]:
    """Each input and axis whose size has this name, or that of the axis INPUT[AXIS]."""
    axes = _axes(document)
    named = (symbol for name, axis, dim in axes if axis_name(name, axis) == time and (symbol := _symbol(dim)))
    wanted = next(named, time)
    places = [(name, axis) for name, axis, dim in axes if wanted == (_symbol(dim) or axis_name(name, axis))]
    if not places:
        raise RnnLowerError(
            f"--time {time}: no input has a symbolic size or an axis of this name; symbolic sizes: "
            f"{', '.join(_free(document)) or 'none'}"
        )
    return places


def axes_of(document: Document, time: str) -> dict[str, int]:
    """The inputs and axes whose size has this name, or that INPUT[AXIS] names."""
    streams = _places(document, time)
    if len({name for name, _ in streams}) < len(streams):
        raise RnnLowerError(
            f"--time {time}: more than one axis of input '{streams[0][0]}' has this size; pass --time "
            f"with the axis of the stream, as '{streams[0][0]}[AXIS]'"
        )
    return dict(streams)


def called(model: ir.Model, streams: Mapping[str, int]) -> str:
    """The key of the stream's size in `dims`."""
    return next(symbol for name, axis, symbol in free_dims(declared_shapes(model)) if streams.get(name) == axis)


def external(document: Document) -> list[str]:
    """The recurrent nodes whose state the caller carries: initial state from an input, final state as an output.

    A model without free sizes may compute the output from the state in any way, because it runs one chunk at a time.
    """
    model = document.model
    has_one_size = not any(True for _ in free_dims(declared_shapes(model)))
    held = []
    for node in read_nodes(model, document.shape_info):
        state = node.inputs.get("initial_h")
        initial = state is not None and inputs_of(model, state)
        back = any(outputs_of(model, value, has_one_size) for value in node.outputs.values())
        held += [node.describe()] if initial and back else []
    return held
