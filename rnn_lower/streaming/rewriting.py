"""Convert a model to its streaming form: first prove that it is causal, then rewrite it."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
from collections.abc import Container, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import onnx_ir as ir

from rnn_lower.driver.plan import document_without_sequences, read_nodes
from rnn_lower.errors import RnnLowerError, UnsupportedError
from rnn_lower.ir.walk import nodes, recurrent_nodes, subgraphs
from rnn_lower.lowering.node import RecurrentNode
from rnn_lower.modelio.document import Document
from rnn_lower.opset.convert import converted
from rnn_lower.options import Dims
from rnn_lower.shapes.fixed_dims import axis_name
from rnn_lower.shapes.shape_info import NO_NAMES, plain_dim
from rnn_lower.shapes.sizes import ONE, TIME, size
from rnn_lower.streaming.axes import CALLS, axes_of, called, external, opened, stream_axis
from rnn_lower.streaming.axis_info import AxisInfo
from rnn_lower.streaming.causality import CausalityAnalysis
from rnn_lower.streaming.data_flow import inputs_of
from rnn_lower.streaming.plan import FIXED, LAST, Plan, batch_size, is_batch, read_plan
from rnn_lower.streaming.rules.reshaping import FixedLengthError
from rnn_lower.streaming.rules.windows import PaddedError
from rnn_lower.streaming.states.delay_buffer import DelayBuffer
from rnn_lower.streaming.states.graph_editor import GraphEditor
from rnn_lower.streaming.states.recurrent_states import Recurrence
from rnn_lower.streaming.states.state_caches import Cache, Carried, Joined
from rnn_lower.transforms.fold import fold
from rnn_lower.transforms.inline import inlined

logger = logging.getLogger("rnn_lower")


@dataclasses.dataclass(frozen=True)
class StreamOptions:
    """The options of streaming; see `rnn_lower.stream`."""

    axis: str | None = None
    step: int | None = None
    keep_native: bool = False
    set_inputs: Mapping[str, Any] | None = None
    reset: bool = False
    delay: bool = False
    states: str = "each"
    state_names: str | None = None
    opset: int | None = None
    """The opset to convert the model to before streaming, because rules need newer operators."""


@dataclasses.dataclass(frozen=True)
class StreamedModel:
    """The streaming form of a model before its recurrent nodes are lowered.

    document: the streaming model.  original: the analyzed model, with inputs set and functions inlined.
    time: the name of the stream's size for `dims`; None if the model already had its states as inputs.
    late: recurrent nodes that get no frames at first.  length: the only chunk length if the export fixed it.
    """

    document: Document
    original: Document
    plan: Plan
    time: str | None
    late: tuple[str, ...] = ()
    length: int | None = None


def streamed(document: Document, requested: StreamOptions, dims: Dims | None) -> StreamedModel:
    """Create the streaming form of a model. Raises UnsupportedError, naming the node, if causality is not proved."""
    if read_plan(document.proto) is not None:
        raise RnnLowerError(
            "the model is already a streaming model; use it unchanged, lower it (rnn-lower lower), or stream"
            " the original model"
        )
    time, step = requested.axis, requested.step
    ready = _ready(document, requested.set_inputs or {}, dims)
    axis = stream_axis(ready, step) if time is None else time
    if axis == CALLS:
        return _call_by_call(ready, requested)
    original, symbol, baked = opened(ready.copied(), axis)
    streams = axes_of(original, symbol)
    left_outside = time is None and bool(external(ready)) and step is None
    judged = original
    try:
        work, analysis = _analyzed(original, streams, requested)
    except UnsupportedError as error:
        if baked is None and isinstance(error, FixedLengthError):
            logger.info(
                "made the sequence length, which the export had hard-coded as %d, variable: %s", error.length, error
            )
            axes = [axis_name(*each) for each in streams.items()]
            fixed = dataclasses.replace(requested, axis=",".join(axes))
            return streamed(document, fixed, {**(dims or {}), **dict.fromkeys(axes, error.length)})
        if baked is None:
            raise
        work, analysis = _analyzed(original, streams, requested, baked)
        judged = ready  # it runs only at its own length
    recurrent = [(node.describe(), node.inputs["X"]) for node in read_nodes(work.model, work.shape_info)]
    if time is None and _nothing_runs(analysis, work) and not left_outside:
        raise RnnLowerError(
            f"no recurrent node runs along '{called(original.model, streams)}', the only symbolic "
            "size; it may be the batch size, so specify the axis of the stream (--time INPUT[AXIS])"
        )
    every = analysis.every
    _check_step(step, every)
    editor = GraphEditor(work, analysis.infos, _symbols(work.model, streams), requested.reset, step)
    editor.batch = batch_size(editor.graph, streams)
    for edit in analysis.carried:
        edit(editor)
    last = [(str(value.name), analysis.infos[value]) for value in work.model.graph.outputs]
    plan = _written(
        editor, streams, {name: _kind(info) for name, info in last}, every=every, reach=_reach(analysis),
        late={name: _waits(info) for name, info in last if _waits(info)},
        cut=tuple(name for name, info in last if info.cut),
        warm_up={name: info.late for name, info in last if info.late and step is not None},
        merged={name: symbols for name, info in last if (symbols := _merged_with(info, editor.symbols))},
    )  # fmt: skip
    name = called(original.model, streams)
    if not plan.states and not plan.left:
        doubt = f"; '{name}' may be the batch size instead of the length of the stream"
        text = doubt if time is None or _nothing_runs(analysis, work) else ""
        logger.info("no node needs a state, so the original model already works chunk by chunk%s", text)
    late = tuple(text for text, x in recurrent if x in analysis.infos and analysis.infos[x].late)
    return StreamedModel(Document(work.proto, work.folder), judged, plan, name, late, baked if left_outside else None)


def _check_step(step: int | None, every: int) -> None:
    if step is not None and step < 1:
        raise RnnLowerError(f"--step {step}: a chunk must have at least one frame")
    if step is not None and step % every:
        raise UnsupportedError(
            f"--step {step}: operators of the model have strides along the time axis, so the length "
            f"of a chunk must be a multiple of {every} frames"
        )


def _written(
    editor: GraphEditor, inputs: Mapping[str, int], outputs: Mapping[str, int | str], **properties: Any
) -> Plan:
    """The plan of a rewritten model, which is also stored in its metadata."""
    if editor.rows is not None and not is_batch(editor.rows, editor.batch):
        raise UnsupportedError(
            f"--reset: the states have {editor.rows.number} rows, but the batch size is {editor.batch}, because the "
            "batch is merged with other axes; drop --reset"
        )
    editor.finish()
    editor.pair_left()
    states = tuple({state.input: state for state in editor.states}.values())  # several nodes may share lengths
    plan = Plan(
        inputs, outputs, states, symbols=editor.symbols, reset=editor.reset, left=tuple(sorted(editor.left)),
        seen=editor.seen, **properties,
    )  # fmt: skip
    plan.write(editor.document.proto)
    for note in dict.fromkeys(editor.notes):
        logger.info("%s", note)
    return plan


def _call_by_call(document: Document, requested: StreamOptions) -> StreamedModel:
    """The streaming form of a model whose runs are single steps of its recurrent nodes."""
    if requested.step not in (None, 1):
        raise RnnLowerError(
            f"--step {requested.step}: each run of the model is one step of its recurrent nodes; use --step 1"
        )
    work, analysis = _analyzed(document, {}, dataclasses.replace(requested, step=None, delay=False))
    editor = GraphEditor(work, analysis.infos, _symbols(document.model, {}), requested.reset)
    for node in read_nodes(work.model, work.shape_info):
        if node.direction != "forward" or "sequence_lens" in node.inputs:
            why = "it has sequence_lens, which is not supported if each run of the model is one step"
            if node.direction != "forward":
                why = f"its direction is {node.direction}, so its state cannot be carried to the next run"
            raise UnsupportedError(f"{node.describe()}: {why}")
        shape = work.shape_info.shape(node.inputs["X"])
        batch = None if shape is None else shape[0 if node.layout else 1]
        initial = [node.inputs.get(f"initial_{letter}") for letter in node.operator.states]
        if batch is None and not all(value and inputs_of(work.model, value) for value in initial):
            raise UnsupportedError(f"{node.describe()}: its batch size is unknown; {_size_advice(work.model, node)}")
        Recurrence(node, ONE if batch is None else size(batch), Fraction(1), 0)(editor)
    plan = _written(editor, {}, {str(value.name): FIXED for value in work.model.graph.outputs})
    return StreamedModel(Document(work.proto, work.folder), document, plan, None)


def _size_advice(model: ir.Model, node: RecurrentNode) -> str:
    """How to make the batch size of a node known: its branch may depend on an input that selects it."""
    owners = {body: owner for owner, _ in nodes(model) for _, body in subgraphs(owner)}
    graph, waiting, seen = node.node.graph, list[ir.Value | None](), set[ir.Value]()
    while isinstance(graph, ir.Graph) and graph in owners:
        waiting += owners[graph].inputs[:1] if owners[graph].op_type == "If" else []
        graph = owners[graph].graph
    while waiting:
        value = waiting.pop()
        if value is not None and value not in seen:
            seen.add(value)
            waiting += [] if (maker := value.producer()) is None else maker.inputs
    selects = sorted(str(v.name) for v in seen if v.is_graph_input() and v.shape is not None and not v.shape.dims)
    choice = f", or the input that selects the branch (--set {selects[0]}=VALUE)" if selects else ""
    return f"set the batch size (--dim NAME=SIZE){choice}"


def _analyzed(
    document: Document, streams: dict[str, int], requested: StreamOptions, baked: int | None = None
) -> tuple[Document, CausalityAnalysis]:
    """A copy of the document at the requested opset, and its causality analysis."""
    work = document.copied() if requested.opset is None else converted(document, requested.opset)
    while True:
        analysis = CausalityAnalysis(work.model, work.shape_info, streams, requested.delay, requested.step, baked)
        try:
            analysis.run()
        except PaddedError as error:
            work = work.changed(error.split)
            continue
        except UnsupportedError as error:
            if requested.step is not None and (smaller := _smaller_step(work, streams, requested, baked)):
                raise UnsupportedError(f"{error}; try a smaller step (--step {smaller})") from None
            if requested.delay or "--delay" not in str(error):
                raise
            try:
                _analyzed(document, streams, dataclasses.replace(requested, delay=True), baked)
            except UnsupportedError as other:
                if "--" not in str(other):  # no option helps
                    raise other from None
                if str(other) != str(error):
                    raise UnsupportedError(f"{error}; after that, {other}") from None
            raise
        return work, analysis


def _smaller_step(
    document: Document, streams: dict[str, int], requested: StreamOptions, baked: int | None
) -> int | None:  # fmt: skip
    """The largest divisor of the requested step, at least a 16th of it, with which the analysis succeeds, or None."""
    step = requested.step
    assert step is not None
    for divisor in (step // count for count in range(2, min(step, 16) + 1) if step % count == 0):
        with contextlib.suppress(UnsupportedError):
            CausalityAnalysis(document.model, document.shape_info, streams, requested.delay, divisor, baked).run()
            return divisor
    return None


def _ready(document: Document, values: Mapping[str, Any], dims: Dims | None) -> Document:
    """A copy of the document with inputs set, sizes fixed, branches folded and functions inlined."""
    ready = document.copied()
    if ready.proto.functions:
        ready = Document(inlined(ready.proto), document.folder)
    ready = document_without_sequences(ready)
    if dims:
        ready = ready.fixed(dims)
    return ready.changed(lambda model: _set(model, values)) if values else ready


def _set(model: ir.Model, values: Mapping[str, Any]) -> None:
    """Turn inputs into constants, and fold the nodes that depend on them."""
    for name, content in values.items():
        value = next((source for source in model.graph.inputs if source.name == name), None)
        if value is None:
            known = ", ".join(str(source.name) for source in model.graph.inputs) or "none"
            raise RnnLowerError(f"--set {name}: the model has no input of this name; inputs: {known}")
        array = _as_declared(value, content)
        model.graph.inputs.remove(value)
        value.const_value = ir.tensor(array, name=name)
        value.shape = ir.Shape(array.shape)
        model.graph.register_initializer(value)
    fold(model)


def _as_declared(value: ir.Value, content: Any) -> np.ndarray:
    """A value in the declared type and shape of the input."""
    if value.dtype is None:
        raise RnnLowerError(f"the model declares no element type for input '{value.name}', so the input cannot be set")
    try:
        given = np.asarray(content)
        array = given.astype(value.dtype.numpy())
        is_valid = value.dtype.is_floating_point() or np.array_equal(array, given)  # neither wrapped nor truncated
    except (OverflowError, TypeError, ValueError):
        is_valid = False
    if not is_valid:
        raise RnnLowerError(f"{content!r} is not a valid value for input '{value.name}' of type {value.dtype.name}")
    shape = array.shape if value.shape is None else tuple(map(plain_dim, value.shape))
    if len(shape) > array.ndim and array.size == 1 and all(isinstance(n, int) for n in shape):
        array = np.full([n for n in shape if isinstance(n, int)], array.reshape(()), array.dtype)
    fits = zip(shape, array.shape, strict=False)
    if len(shape) != array.ndim or any(isinstance(n, int) and n != m for n, m in fits):
        raise RnnLowerError(
            f"input '{value.name}' has shape {list(shape)}, but the value has shape {list(array.shape)}"
        )
    return array


def _nothing_runs(analysis: CausalityAnalysis, document: Document) -> bool:
    carried = any(isinstance(edit, (Recurrence, Carried)) for edit in analysis.carried)
    return not carried and any(True for _ in recurrent_nodes(document.model))


def _symbols(model: ir.Model, streams: Mapping[str, int]) -> dict[str, tuple[str, int]]:
    """An input and an axis for each symbolic size, to read the sizes of states from."""
    symbols: dict[str, tuple[str, int]] = {}
    for value in sorted(model.graph.inputs, key=lambda source: source.name not in streams):
        for axis, dim in enumerate(value.shape or ()):
            known = plain_dim(dim)
            if not isinstance(known, int) and streams.get(str(value.name)) != axis:
                vague = known is None or known in NO_NAMES
                symbols.setdefault(f"{value.name}#{axis}" if vague else str(known), (str(value.name), axis))
    return symbols


def _waits(info: AxisInfo) -> int:
    """The number of input frames that a value needs before its first frame."""
    return math.ceil((info.late - info.dropped) * info.every)


def _merged_with(info: AxisInfo, known: Container[str]) -> tuple[str, ...]:
    """The symbols of the sizes that are merged with the stream axis; none unless all are known."""
    sizes = () if info.axis is None else info.sizes[info.axis].of
    symbols = tuple(symbol for symbol in sizes if not symbol.startswith(TIME))
    return symbols if all(symbol in known for symbol in symbols) else ()


def _reach(analysis: CausalityAnalysis) -> int:
    """The receptive field of an output in input frames, without the states of recurrent nodes."""
    frames = Fraction(0)
    for edit in analysis.carried:
        if isinstance(edit, (Cache, DelayBuffer, Joined)):
            value = next(
                value for value in edit.node.inputs if value is not None and analysis.infos[value].axis is not None
            )
            frames += analysis.infos[value].every * edit.length
    return math.ceil(frames)


def with_reach(plan: Plan, original: Document) -> Plan:
    """The plan with the receptive field that analysis finds, if it is larger than what the streaming model states."""
    reach = plan.reach
    if plan.inputs:
        with contextlib.suppress(RnnLowerError):  # as of a length that the export fixed
            reach = max(reach, _reach(_analyzed(original, dict(plan.inputs), StreamOptions(delay=True))[1]))
    return dataclasses.replace(plan, reach=reach)


def _kind(info: AxisInfo) -> int | str:
    return info.axis if info.axis is not None else LAST if info.last else FIXED
