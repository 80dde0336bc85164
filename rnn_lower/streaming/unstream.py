"""Convert a streaming model back to a model on whole sequences, which contains its states.

A model with one chunk length becomes the body of a Scan over chunks. If only recurrent nodes carry states, and these
are inputs and outputs of the model, the stream's axis becomes free instead. A model that `stream` created for chunks of
any length processes the whole sequence as one chunk. Known initial states are built in; others stay inputs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from rnn_lower.builder.constants import constant
from rnn_lower.builder.graph_builder import GraphBuilder, Operand
from rnn_lower.builder.names import Names
from rnn_lower.errors import RnnLowerError, UnsupportedError
from rnn_lower.ir import protobuf
from rnn_lower.ir.walk import opset_of
from rnn_lower.modelio.document import Document
from rnn_lower.shapes.fixed_dims import axis_name, free_proto_dim
from rnn_lower.shapes.sizes import GROWS
from rnn_lower.streaming.axes import axes_of, opened
from rnn_lower.streaming.causality import CausalityAnalysis
from rnn_lower.streaming.comparison.proof import prove_streaming
from rnn_lower.streaming.plan import KEY, LAST, Plan, fixed_step, has_axis
from rnn_lower.streaming.session import plan_with
from rnn_lower.streaming.states.graph_editor import INT64, computed_size, graph_builder, name_value, put_around
from rnn_lower.streaming.states.recurrent_states import Recurrence

TIME, PROOF_SECONDS = "time", 60.0


@dataclasses.dataclass(frozen=True)
class Whole:
    """The result. document: the model on whole sequences.  source: the streaming model.  plan: its plan.

    chunk: the frames of a chunk, if other lengths are not proved to give the same results; 0 otherwise.
    """

    document: Document
    source: Document
    plan: Plan
    chunk: int = 0


def unstreamed(document: Document, states: Mapping[str, str] | None, time: str | None) -> Whole:
    """The model over whole sequences.

    states: by input, the output that is fed back to it, for a model that `stream` did not create.  time: the frame axis
    of such a model, INPUT[AXIS]; if it has none, each run is one step, and a new first axis is added.
    """
    plan = plan_with(document, states)
    if plan.reset is not None:
        raise UnsupportedError(
            f"a model for whole sequences cannot have the input '{plan.reset}', which resets batch "
            "rows; create the streaming model without --reset"
        )
    if not plan.states:
        raise RnnLowerError("the model has no state; declare its states with --state INPUT=OUTPUT")
    source = document.copied()
    if time is not None and plan.inputs:
        work, name, _ = opened(source.copied(), time)
        if axes_of(work, name) != plan.inputs:
            known = ", ".join(axis_name(*each) for each in plan.inputs.items())
            raise RnnLowerError(f"--time {time}: the metadata of the model names other time axes, {known}; drop --time")
    elif time is not None:
        plan = _with_axes(source, plan, time)
    elif not plan.inputs:
        source, plan = _with_new_axis(source, plan)
    plan.write(source.proto)
    source = Document(source.proto, source.folder)
    step, work = fixed_step(source.proto, plan), _unwritten(source)
    if step is None:
        _in_one_chunk(work, plan)
        whole = Document(work, source.folder)
        if not states or _is_free(source, plan) or _is_proved(whole, source, plan):
            return Whole(whole, source, plan)
        source = source.copied().fixed({axis_name(name, axis): plan.every for name, axis in plan.inputs.items()})
        work = _unwritten(source)
    elif _is_free(source, plan):
        for name, axis in plan.inputs.items():
            free_proto_dim(work, name, axis)
        return Whole(Document(work, source.folder), source, plan)
    _scanned(work, plan, step or plan.every, source)
    return Whole(Document(work, source.folder), source, plan, 0 if step else plan.every)


def _unwritten(document: Document) -> onnx.ModelProto:
    """A copy without the plan in its metadata."""
    work = document.copied().proto
    protobuf.remove_if(work.metadata_props, lambda prop: prop.key == KEY)
    return work


def _is_proved(whole: Document, source: Document, plan: Plan) -> bool:
    """Whether a model is proved to compute from one chunk what it computes from several."""
    try:
        return prove_streaming(whole, source, plan, points=1, seconds=PROOF_SECONDS, whole_is_new=True).ok
    except RnnLowerError:
        return False


def _with_axes(document: Document, plan: Plan, time: str) -> Plan:
    """The plan with the stream axis of each input and output."""
    work, name, size = opened(document.copied(), time)
    inputs = axes_of(work, name)
    analysis = CausalityAnalysis(work.model, work.shape_info, inputs, True)
    fed, outputs, every = {state.output for state in plan.states}, dict(plan.outputs), plan.every
    try:
        analysis.run()
    except UnsupportedError as error:  # then use declared sizes
        axis = next(iter(inputs.values()))
        for value in document.proto.graph.output:
            dims = value.type.tensor_type.shape.dim
            if value.name in outputs and value.name not in fed:
                unknown = f"output '{value.name}': the time axis is unknown"
                if size is not None and not dims:
                    raise UnsupportedError(f"{unknown}; declare the sizes of the output in the model") from None
                if size is None or axis >= len(dims) or dims[axis].dim_value != size:
                    way = "to make each run of the model one step, omit --time"
                    raise UnsupportedError(f"{unknown}, because {error}; {way}") from None
                outputs[value.name] = axis
    else:
        every = analysis.every if size is None else every
        for value in work.model.graph.outputs:
            info = analysis.infos[value]
            if value.name in outputs and info.axis is not None:
                outputs[str(value.name)] = info.axis
    for value in document.proto.graph.output:
        if isinstance(place := outputs.get(value.name), int) and not has_axis(value, place):
            text = f"output '{value.name}' is declared with a rank of {len(protobuf.dims_of(value) or ())}"
            raise RnnLowerError(f"{text}, but its time axis is {place}; correct its declaration in the model")
    return dataclasses.replace(plan, inputs=inputs, outputs=outputs, every=every)


def _with_new_axis(document: Document, plan: Plan) -> tuple[Document, Plan]:
    """The model with a new leading stream axis of size 1, if each run is one step."""
    work, fed = document.proto, {name for state in plan.states for name in (state.input, state.output)}
    graph = work.graph
    b = graph_builder(work, "whole")
    constants = {tensor.name for tensor in graph.initializer}
    inputs = [
        message for message in graph.input if message.name not in fed | constants and message.type.tensor_type.shape.dim
    ]
    outputs = [message for message in graph.output if message.name not in fed]
    changed = {message.name: b.names.unique(f"{message.name}/frame") for message in (*inputs, *outputs)}
    protobuf.rename(graph, changed, declared=False)
    behind = b.body()
    for message in inputs:
        name_value(b, b.squeeze(ir.Value(name=message.name), [0]), changed[message.name])
    for message in outputs:
        name_value(behind, behind.unsqueeze(ir.Value(name=changed[message.name]), [0]), message.name)
    put_around(graph, b, behind.nodes)
    for value in (*inputs, *outputs):
        dims = value.type.tensor_type.shape.dim
        if value.type.tensor_type.HasField("shape"):
            dims.insert(0, onnx.TensorShapeProto.Dimension(dim_value=1))
    symbols = {name: (where, at + (where in changed)) for name, (where, at) in plan.symbols.items()}
    kinds = dict.fromkeys((message.name for message in outputs), 0)
    last = {name: LAST for name in plan.outputs if name not in kinds}
    plan = dataclasses.replace(
        plan, inputs=dict.fromkeys((message.name for message in inputs), 0), outputs={**kinds, **last}, symbols=symbols
    )
    if not inputs:
        raise RnnLowerError("the model has no inputs except its states")
    return Document(work, document.folder), plan


def _is_free(document: Document, plan: Plan) -> bool:
    """Whether recurrent nodes have all states of the model, which are inputs and outputs that nothing else reads.

    If so, the results do not depend on the chunks.
    """
    (name, axis), *_ = plan.inputs.items()
    work, symbol, _ = opened(document.copied(), axis_name(name, axis))
    try:
        analysis = CausalityAnalysis(work.model, work.shape_info, axes_of(work, symbol))
        analysis.run()
    except UnsupportedError:
        return False
    if axes_of(work, symbol) != dict(plan.inputs):
        return False
    fed = {state.input: state.output for state in plan.states}
    for edit in analysis.carried:
        if not isinstance(edit, Recurrence) or "sequence_lens" in edit.read.inputs:  # lengths end in each chunk
            return False
        for letter in edit.read.operator.states:
            first, last = edit.read.inputs.get(f"initial_{letter}"), edit.read.outputs.get(f"Y_{letter}")
            if first is None or last is None or fed.pop(str(first.name), None) != last.name:
                return False
            if not first.is_graph_input() or first.is_initializer() or first.is_graph_output() or len(first.uses()) > 1:
                return False
    return not fed and all(state.first is None for state in plan.states)


def _in_one_chunk(model: onnx.ModelProto, plan: Plan) -> None:
    """Make the model run the whole sequence as one chunk, without state outputs."""
    graph = model.graph
    own = {state.input: state for state in plan.states if state.first is not None}
    gone = {state.output for state in own.values()} - plan.outputs.keys()
    protobuf.remove_if(graph.input, lambda value: value.name in own)
    protobuf.remove_if(graph.output, lambda value: value.name in gone)
    b = graph_builder(model, "whole")
    _write_first_values(graph, b, plan)
    put_around(graph, b, ())


def _write_first_values(graph: onnx.GraphProto, b: GraphBuilder, plan: Plan) -> None:
    """Emit the initial values of the states, with the batch size of the inputs."""
    for state in plan.states:
        if state.first is None:
            continue
        if not any(each.of for each in state.shape):
            graph.initializer.append(numpy_helper.from_array(state.first, state.input))
            continue
        sizes = (
            constant([number], INT64) if GROWS in each.of else computed_size(b, each, plan.symbols)
            for each, number in zip(state.shape, state.first.shape, strict=True)
        )
        shape = b.concat([*sizes], 0, "shape")
        first = constant(state.first, ir.DataType[state.dtype], "first")
        name_value(b, b.op("Expand", first, shape, name="state"), state.input)


def _scanned(model: onnx.ModelProto, plan: Plan, step: int, source: Document) -> None:
    """Make the model the body of a Scan over chunks."""
    if (opset_of(model) or 0) < 9:
        text = f"a Scan over the chunks needs opset 9 or newer, but the model has opset {opset_of(model)}"
        raise UnsupportedError(f"{text}; convert the model first (rnn-lower lower --opset 17)")
    if grown := next((state for state in plan.states if any(GROWS in each.of for each in state.shape)), None):
        raise UnsupportedError(
            f"{grown.node}: the size of its state '{grown.input}' changes after each chunk, which "
            "rnn-lower unstream does not support"
        )
    graph = model.graph
    b = graph_builder(model, "whole")
    names, behind = b.names, b.body()
    declared = {value.name: value for value in graph.input}
    results = {value.name: value for value in graph.output}
    inside = {name: names.unique(f"{name}/chunk") for name in (*plan.inputs, *results, *(s.input for s in plan.states))}
    body = helper.make_graph(graph.node, "chunk", [], [])
    protobuf.rename(body, inside)
    fed = [state.output for state in plan.states]
    again = {name: names.unique(f"{name}/again") for name in plan.outputs if name in fed}
    body.node.extend(helper.make_node("Identity", [inside[name]], [copy]) for name, copy in again.items())
    shapes = {str(value.name): source.shape_info.shape(value) for value in source.model.graph.outputs}
    body.input.extend(_typed(declared[state.input], inside[state.input], shapes) for state in plan.states)
    body.input.extend(_typed(declared[name], inside[name], shapes) for name in plan.inputs)
    body.output.extend(_typed(results[name], inside[name], shapes) for name in fed)
    body.output.extend(_typed(results[name], again.get(name, inside[name]), shapes) for name in plan.outputs)
    del graph.node[:]
    own = {state.input for state in plan.states if state.first is not None}
    _write_first_values(graph, b, plan)
    chunks = [b.value(_split(b, name, axis, step)) for name, axis in plan.inputs.items()]
    stacked = {name: names.unique(f"{name}/chunks") for name in plan.outputs}
    last = {state.output: names.unique(f"{state.output}/last") for state in plan.states}
    axes = [axis if isinstance(axis, int) else 0 for axis in plan.outputs.values()]
    graph.node.append(helper.make_node(
        "Scan", [*(state.input for state in plan.states), *(str(chunk.name) for chunk in chunks if chunk)],
        [*(last[name] for name in fed), *stacked.values()],
        name=names.unique("whole/scan"), body=body, num_scan_inputs=len(chunks),
        scan_input_axes=list(plan.inputs.values()), **({"scan_output_axes": axes} if axes else {}),
    ))  # fmt: skip
    for name, axis in plan.outputs.items():
        chunked = ir.Value(name=stacked[name])
        if isinstance(axis, int):
            name_value(behind, _merge(behind, chunked, axis, plan.warm_up.get(name)), name)
        else:
            name_value(behind, behind.gather(chunked, constant(-1, INT64)), name)
    theirs = {state.output for state in plan.states if state.first is None} - plan.outputs.keys()
    time = Names(source.shape_info.symbols).unique(TIME)
    for name in theirs:
        name_value(behind, behind.op("Identity", ir.Value(name=last[name]), name="last"), name)
    put_around(graph, b, behind.nodes)
    protobuf.remove_if(graph.input, lambda value: value.name in own)
    protobuf.remove_if(graph.output, lambda value: value.name not in plan.outputs and value.name not in theirs)
    del graph.value_info[:]
    for name, axis in [*plan.inputs.items(), *plan.outputs.items()]:
        dims = (declared.get(name) or results[name]).type.tensor_type.shape.dim
        if isinstance(axis, int) and axis < len(dims):
            dims[axis].Clear()
            if name in declared:
                dims[axis].dim_param = time if step == 1 else f"{step}*{time}"


def _typed(
    value: onnx.ValueInfoProto, name: str, shapes: Mapping[str, Sequence[int | str | None] | None]
) -> onnx.ValueInfoProto:  # fmt: skip
    """A value of the body, with known sizes only, because runtimes fail to unify symbolic ones."""
    kind, shape = value.type.tensor_type, shapes.get(value.name)
    if shape is None and kind.HasField("shape"):
        shape = [dim.dim_value if dim.HasField("dim_value") else None for dim in kind.shape.dim]
    known = None if shape is None else [size if isinstance(size, int) else None for size in shape]
    return helper.make_tensor_value_info(name, kind.elem_type, known)


def _around(b: GraphBuilder, value: ir.Value, end: int, start: int, middle: list[int]) -> Operand:
    """The shape of a value before an axis, then numbers, then the shape from an axis on."""
    shape = b.op("Shape", value, name="shape")
    before, behind = b.slice(shape, 0, 0, end, "before"), b.slice(shape, 0, start, 2**31 - 1, "behind")
    return b.concat([before, constant(middle, INT64), behind], 0, "shape")


def _split(b: GraphBuilder, name: str, axis: int, step: int) -> Operand:
    """Split the frames into chunks of this size."""
    value = ir.Value(name=name)
    return b.op("Reshape", value, _around(b, value, axis, axis + 1, [-1, step]), name="chunks")


def _merge(b: GraphBuilder, value: ir.Value, axis: int, warm_up: int | None) -> Operand:
    """Concatenate chunks, without the meaningless frames."""
    whole = b.op("Reshape", value, _around(b, value, axis, axis + 2, [-1]), name="frames")
    return b.slice(whole, axis, warm_up, 2**31 - 1) if warm_up else whole
