"""The states of a finished streaming model: pack them into one tensor, and name them by a template."""

from __future__ import annotations

import collections
import dataclasses
import string
from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lower.builder.graph_builder import GraphBuilder, Operand
from rnn_lower.errors import RnnLowerError, UnsupportedError
from rnn_lower.ir import protobuf
from rnn_lower.shapes.sizes import GROWS, ONE, Size, size
from rnn_lower.streaming.plan import Plan, State
from rnn_lower.streaming.states.graph_editor import declared, graph_builder, name_value, put_around

FIELDS = ("node", "state", "end", "index")
"""The fields of a template: the node, the kind of state, "in" or "out", and the number of the state."""


def renamed(model: onnx.ModelProto, plan: Plan, template: str) -> Plan:
    """Rename the states by a template, in the plan and in the model."""
    names: dict[str, str] = {}
    for index, state in enumerate(state for state in plan.states if state.first is not None):
        node, _, last = state.input.rpartition("/")
        what = last.removesuffix("_in")
        for end, name in (("in", state.input), ("out", state.output)):
            names[name] = _formatted(template, {"node": node, "state": what, "end": end, "index": index})
    used_names = {name for holder in protobuf.holders(model) for name in protobuf.names_of(holder)} - names.keys()
    twice = [name for name, count in collections.Counter(names.values()).items() if count > 1 or name in used_names]
    if twice:
        raise RnnLowerError(
            f"--state-names {template}: several states would be named '{twice[0]}'; add {{node}} to the template"
        )
    protobuf.rename(model.graph, names)
    states = tuple(
        dataclasses.replace(
            state, input=names.get(state.input, state.input), output=names.get(state.output, state.output)
        )
        for state in plan.states
    )
    return dataclasses.replace(plan, states=states, seen=names.get(plan.seen or "", plan.seen))


def _formatted(template: str, fields: Mapping[str, object]) -> str:
    try:
        unknown = [name for _, name, _, _ in string.Formatter().parse(template) if name not in (None, *FIELDS)]
        if unknown or "{end}" not in template:
            raise ValueError
        return template.format(**fields)
    except (ValueError, KeyError, IndexError):
        known = ", ".join(f"{{{name}}}" for name in FIELDS)
        raise RnnLowerError(
            f"--state-names {template}: the template must contain {{end}}, and may contain {known}"
        ) from None


def packed(model: onnx.ModelProto, plan: Plan) -> Plan:
    """Pack all states of one element type into one tensor, [batch, elements] if the batch size is free.

    The states of callers are not packed. Raises UnsupportedError for states that grow, or that have different batches.
    """
    graph, kinds = model.graph, dict[tuple[str, Size], list[State]]()
    for state in plan.states:
        if state.first is not None:
            kinds.setdefault((state.dtype, _rows(state)), []).append(state)
    b = graph_builder(model, "states")
    behind = b.body()
    packed_states = [_pack(b, behind, states, rows) for (_, rows), states in kinds.items()]
    gone = {name for states in kinds.values() for state in states for name in (state.input, state.output)}
    for side in (graph.input, graph.output):
        protobuf.remove_if(side, lambda value: value.name in gone)
    for state in packed_states:
        graph.input.append(declared(state.input, ir.DataType[state.dtype], state.shape))
        graph.output.append(declared(state.output, ir.DataType[state.dtype], state.shape))
    put_around(graph, b, behind.nodes)
    seen = next((state for state in packed_states if plan.seen is not None and plan.seen in state.parts), None)
    theirs = tuple(state for state in plan.states if state.first is None)
    return dataclasses.replace(plan, states=(*packed_states, *theirs), seen=plan.seen if seen is None else seen.input)


def _rows(state: State) -> Size:
    """The free batch size of a state, or 1."""
    free = [each for each in state.shape if each.of]
    if any(GROWS in each.of for each in free):
        raise UnsupportedError(
            f"{state.node}: the size of state '{state.input}' changes from chunk to chunk, so the "
            "state cannot be packed; drop --states packed"
        )
    if len(free) > 1 or (free and free[0].times != 1):
        raise UnsupportedError(
            f"{state.node}: to be packed, its state must have no symbolic sizes except the batch "
            "size; set the other sizes (--dim NAME=SIZE)"
        )
    return free[0] if free else ONE


def _pack(ahead: GraphBuilder, behind: GraphBuilder, states: list[State], rows: Size) -> State:
    """One state that contains several, each in some columns of its rows."""
    dtype, firsts, parts, start = ir.DataType[states[0].dtype], list[np.ndarray](), list[Operand](), 0
    source, result = (ahead.unique_name(f"{np.dtype(dtype.numpy()).name}_{end}") for end in ("in", "out"))
    packed_state = ir.Value(name=source)
    for state in states:
        assert state.first is not None
        batch = [state.shape.index(rows)] if rows.of else []
        order = [*batch, *(axis for axis in range(len(state.shape)) if axis not in batch)]
        first = state.first.transpose(order)
        shape = [-1 if axis in batch else state.shape[axis].number or 1 for axis in order]
        firsts.append(first.reshape(1, -1))
        count = firsts[-1].size
        columns = ahead.reshape(ahead.slice(packed_state, 1, start, start + count), shape)
        name_value(ahead, ahead.op("Transpose", columns, name="part", perm=np.argsort(order).tolist()), state.input)
        last = behind.op("Transpose", ir.Value(name=state.output), name="part", perm=order)
        parts.append(behind.reshape(last, [-1 if rows.of else 1, count]))
        start += count
    name_value(behind, behind.op("Concat", *parts, name="packed", axis=1), result)
    node = ", ".join(dict.fromkeys(state.node for state in states))
    inside = tuple(state.input for state in states)
    first = np.concatenate(firsts, 1)
    return State(source, result, (rows, size(start)), dtype.name, node, 0 if rows.of else None, first, inside)
