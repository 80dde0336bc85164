"""How the states of a finished streaming model go in and out: packed into one tensor, under names of a template."""

from __future__ import annotations

import collections
import dataclasses
import math
import string
from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper

from rnn_lower.builder.names import Names
from rnn_lower.errors import RnnLowerError, UnsupportedError
from rnn_lower.ir import protobuf
from rnn_lower.streaming.graph_editor import declared_size
from rnn_lower.streaming.plan import Plan, State
from rnn_lower.streaming.sizes import GROWS, ONE, Size, size

FIELDS = ("node", "state", "end", "index")
"""What a template may name: the node, what its state is, "in" or "out", and the number of the state."""

END = 2**63 - 1


def renamed(model: onnx.ModelProto, plan: Plan, template: str) -> Plan:
    """The plan with states named by a template, in the model too."""
    names: dict[str, str] = {}
    for index, state in enumerate(state for state in plan.states if state.first is not None):
        node, _, last = state.input.rpartition("/")
        what = last.removesuffix("_in")
        for end, name in (("in", state.input), ("out", state.output)):
            names[name] = _formatted(template, {"node": node, "state": what, "end": end, "index": index})
    used_names = {name for holder in protobuf.holders(model) for name in names_of(holder)} - names.keys()
    twice = [name for name, count in collections.Counter(names.values()).items() if count > 1 or name in used_names]
    if twice:
        raise RnnLowerError(f"--state-names {template}: '{twice[0]}' would name several states; add {{node}} to it")
    rename(model.graph, names)
    states = tuple(
        dataclasses.replace(one, input=names.get(one.input, one.input), output=names.get(one.output, one.output))
        for one in plan.states
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
        raise RnnLowerError(f"--state-names {template}: it must contain {{end}}, and may contain {known}") from None


def names_of(holder: onnx.GraphProto | onnx.FunctionProto) -> set[str]:
    """All names in a graph but those of its bodies."""
    found = {name for node in holder.node for name in (*node.input, *node.output)}
    if isinstance(holder, onnx.GraphProto):
        found |= {value.name for value in (*holder.input, *holder.output, *holder.initializer)}
    return found


def rename(graph: onnx.GraphProto, names: Mapping[str, str], declared: bool = True) -> None:
    """Rename values that nodes read and make, in bodies too; declared: those that the graph takes and gives, too."""
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        for body in protobuf.graphs_of(node):
            rename(body, names)
    for value in (*graph.input, *graph.output, *graph.value_info) if declared else ():
        value.name = names.get(value.name, value.name)


def packed(model: onnx.ModelProto, plan: Plan) -> Plan:
    """The plan with all states of an element type in one tensor, [batch, elements] where there is a free batch.

    The states of callers stay as they are. Raises UnsupportedError for states that grow, or are of several batches.
    """
    graph = model.graph
    names = Names(name for holder in protobuf.holders(model) for name in names_of(holder))
    kinds: dict[tuple[str, Size], list[State]] = {}
    for state in plan.states:
        if state.first is not None:
            kinds.setdefault((state.dtype, _rows(state)), []).append(state)
    made = []
    for (dtype, rows), states in kinds.items():
        label = f"states/{np.dtype(states[0].first.dtype).name if states[0].first is not None else dtype}"
        source, result = names.unique(f"{label}_in"), names.unique(f"{label}_out")
        made.append(_pack(graph, names, states, rows, (source, result)))
    gone = {name for states in kinds.values() for one in states for name in (one.input, one.output)}
    for side in (graph.input, graph.output):
        protobuf.remove_if(side, lambda value: value.name in gone)
    for state in made:
        kind, dims = onnx.TensorProto.DataType.Value(state.dtype), [declared_size(each) for each in state.shape]
        graph.input.append(helper.make_tensor_value_info(state.input, kind, dims))
        graph.output.append(helper.make_tensor_value_info(state.output, kind, dims))
    seen = next((one for one in made if plan.seen is not None and plan.seen in one.parts), None)
    theirs = tuple(state for state in plan.states if state.first is None)
    return dataclasses.replace(plan, states=(*made, *theirs), seen=plan.seen if seen is None else seen.input)


def _rows(state: State) -> Size:
    """The free batch of a state, or one."""
    free = [each for each in state.shape if each.of]
    if any(GROWS in each.of for each in free):
        raise UnsupportedError(f"{state.node}: its state '{state.input}' grows, so it cannot be packed (--states)")
    if len(free) > 1 or (free and free[0].times != 1):
        raise UnsupportedError(
            f"{state.node}: its state has free sizes other than the batch; fix them (--dim NAME=SIZE)"
        )
    return free[0] if free else ONE


def _pack(graph: onnx.GraphProto, names: Names, states: list[State], rows: Size, ends: tuple[str, str]) -> State:
    """One state for several, of which each is some of the columns of a row."""
    source, result = ends
    columns = [math.prod(each.number or 1 for each in state.shape) for state in states]
    ahead: list[onnx.NodeProto] = []
    behind: list[onnx.NodeProto] = []

    def number(*numbers: int) -> str:
        name = names.unique("states/number")
        graph.initializer.append(numpy_helper.from_array(np.array(numbers, np.int64), name))
        return name

    def step(nodes: list[onnx.NodeProto], op: str, *inputs: str, to: str = "", **attributes: object) -> str:
        name = to or names.unique("states/part")
        nodes.append(helper.make_node(op, inputs, [name], name=names.unique("states/node"), **attributes))
        return name

    firsts, start, parts = [], 0, []
    for state, count in zip(states, columns, strict=True):
        place = state.shape.index(rows) if rows.of else None
        order = list(range(len(state.shape)))
        if place is not None:
            order = [place, *(axis for axis in order if axis != place)]
        shape = [-1 if axis == place else state.shape[axis].number or 1 for axis in order]
        part = step(ahead, "Slice", source, number(start), number(start + count), number(1))
        part = step(ahead, "Reshape", part, number(*shape))
        step(ahead, "Transpose", part, to=state.input, perm=[order.index(axis) for axis in range(len(order))])
        last = step(behind, "Transpose", state.output, perm=order)
        parts.append(step(behind, "Reshape", last, number(-1 if rows.of else 1, count)))
        assert state.first is not None
        firsts.append(state.first.transpose(order).reshape(1, count))
        start += count
    step(behind, "Concat", *parts, to=result, axis=1)
    nodes = [*ahead, *graph.node, *behind]
    del graph.node[:]
    graph.node.extend(nodes)
    text = ", ".join(dict.fromkeys(state.node for state in states))
    inside = tuple(state.input for state in states)
    first = np.concatenate(firsts, 1)
    return State(source, result, (rows, size(start)), states[0].dtype, text, 0 if rows.of else None, first, inside)
