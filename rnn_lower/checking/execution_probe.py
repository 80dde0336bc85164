"""Which recurrent nodes run: each that lies in a body or a function raises a flag, a further output of the model.

A flag is a float, 1 where the node has run. It comes out of an If by both branches, out of a Loop or Scan as one more
state, and out of a function as one more output:

    If:    then_branch -> flag, else_branch -> 0        Loop, Scan:  state' = Max(state, flag), from 0 on
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, MutableSequence

import numpy as np
import onnx
from onnx import helper

from rnn_lower.checking.wrap_node import is_recurrent
from rnn_lower.ir.schemas import DEFAULT_DOMAINS
from rnn_lower.modelio.external_data import graphs_of

NAME = "rnn_lower/reached"
INDEX = "rnn_lower.index"

Nodes = MutableSequence[onnx.NodeProto]
Flags = dict[int, list[str]]
"""By the index of a recurrent node: values of one graph that are 1 where the node has run."""


def nested(model: onnx.ModelProto) -> bool:
    """Whether any recurrent node may be left out: it lies in a body or a function."""
    bodies = (body for node in model.graph.node for body in graphs_of(node))
    return any(map(_holds, [*(body.node for body in bodies), *(function.node for function in model.functions)]))


def _holds(nodes: Nodes) -> bool:
    return any(is_recurrent(node) or any(_holds(body.node) for body in graphs_of(node)) for node in nodes)


def add(model: onnx.ModelProto) -> dict[int, str]:
    """Add the flags to a model, in place: index of a node, in the order of `inspect`, -> the output that tells of it.

    Nodes that nothing keeps from running, and those in bodies of other operators, have no flag.
    """
    roots: list[Nodes] = [model.graph.node, *(function.node for function in model.functions)]
    for index, node in enumerate(itertools.chain.from_iterable(map(_recurrent, roots))):
        node.metadata_props.add(key=INDEX, value=str(index))
    probe = _Probe(model)
    found = {index: names for index, names in probe.flags(model.graph.node).items() if names != [_TRUE]}
    joined = {index: probe.one(model.graph.node, names) for index, names in found.items()}
    model.graph.output.extend(map(_declared, joined.values()))
    probe.define(model.graph.node)
    return joined


def _recurrent(nodes: Nodes) -> Iterator[onnx.NodeProto]:
    """In the order in which `rnn_lower.ir.walk` walks."""
    for node in nodes:
        if is_recurrent(node):
            yield node
        for body in graphs_of(node):
            yield from _recurrent(body.node)


_TRUE, _FALSE = f"{NAME}/true", f"{NAME}/false"
"""Constants of the main graph, which its bodies see as well; functions have their own."""


def _declared(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1])


class _Probe:
    """Names that are given once, and the functions that are done."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._functions = {(f.domain, f.name, f.overload): f for f in model.functions}
        self._done: dict[tuple[str, str, str], tuple[int, dict[int, str]]] = {}
        self._count = itertools.count()

    def name(self) -> str:
        return f"{NAME}/{next(self._count)}"

    def flags(self, nodes: Nodes) -> Flags:
        """The flags of the nodes of a graph and of all below it, as values of the graph."""
        found: Flags = {}
        for node in list(nodes):
            own = next((entry.value for entry in node.metadata_props if entry.key == INDEX), None)
            if own is not None:
                found.setdefault(int(own), []).append(_TRUE)
            through = _THROUGH.get(node.op_type) if node.domain in DEFAULT_DOMAINS else None
            key = (node.domain, node.op_type, node.overload)
            if key in self._functions:
                through = _through_call
            for index, name in (through(self, node) if through else {}).items():
                found.setdefault(index, []).append(name)
        return found

    def one(self, nodes: Nodes, names: list[str]) -> str:
        """A new value: the largest of some."""
        made = self.name()
        nodes.append(helper.make_node("Max", names, [made]))
        return made

    def define(self, nodes: Nodes) -> None:
        """The constants, before everything else."""
        constants = [
            helper.make_node("Constant", [], [name], value=onnx.numpy_helper.from_array(np.full(1, number, np.float32)))
            for name, number in ((_TRUE, 1), (_FALSE, 0))
        ]
        for constant in reversed(constants):
            nodes.insert(0, constant)

    def function(self, key: tuple[str, str, str]) -> tuple[int, dict[int, str]]:
        """How many outputs a function had, and the outputs that it has now for the flags in it."""
        if key not in self._done:
            function = self._functions[key]
            before = len(function.output)
            made = {index: self.one(function.node, names) for index, names in self.flags(function.node).items()}
            if made:
                function.output.extend(made.values())
                self.define(function.node)
            self._done[key] = before, made
        return self._done[key]


def _through_if(probe: _Probe, node: onnx.NodeProto) -> dict[int, str]:
    bodies = list(graphs_of(node))
    inside = [probe.flags(body.node) for body in bodies]
    results = {index: probe.name() for flags in inside for index in flags}
    for body, flags in zip(bodies, inside, strict=True):
        if results:
            made = [probe.one(body.node, flags.get(index, [_FALSE])) for index in results]
            body.output.extend(map(_declared, made))
    node.output.extend(results.values())
    return results


def _through_loop(probe: _Probe, node: onnx.NodeProto) -> dict[int, str]:
    (body,) = graphs_of(node)
    node.input.extend([""] * (2 - len(node.input)))
    return _carried(probe, node, body, len(node.input), len(body.input), len(node.input) - 2, 1)


def _through_scan(probe: _Probe, node: onnx.NodeProto) -> dict[int, str]:
    (body,) = graphs_of(node)
    count = next(a.i for a in node.attribute if a.name == "num_scan_inputs")
    states = len(node.input) - count
    if len(body.input) != len(node.input):  # opset 8 has lengths in front, and a batch axis
        return {}
    return _carried(probe, node, body, states, states, states, 0)


def _carried(
    probe: _Probe, node: onnx.NodeProto, body: onnx.GraphProto, given: int, taken: int, states: int, first: int
) -> dict[int, str]:
    """One more state per flag, after the others.

    given, taken: where it stands among the inputs of node and body.  states: among the outputs of the node; among
    those of the body `first` others precede it.
    """
    flags = probe.flags(body.node)
    node.output.extend([""] * (states - len(node.output)) if flags else [])
    results = {}
    for place, (index, names) in enumerate(flags.items()):
        before, results[index] = probe.name(), probe.name()
        after = probe.one(body.node, [before, *names])
        node.input.insert(given + place, _FALSE)
        body.input.insert(taken + place, _declared(before))
        body.output.insert(first + states + place, _declared(after))
        node.output.insert(states + place, results[index])
    return results


def _through_call(probe: _Probe, node: onnx.NodeProto) -> dict[int, str]:
    before, made = probe.function((node.domain, node.op_type, node.overload))
    results = {index: probe.name() for index in made}
    if results:
        node.output.extend([""] * (before - len(node.output)))
        node.output.extend(results.values())
    return results


_THROUGH: dict[str, Callable[[_Probe, onnx.NodeProto], dict[int, str]]] = {
    "If": _through_if, "Loop": _through_loop, "Scan": _through_scan,
}  # fmt: skip
