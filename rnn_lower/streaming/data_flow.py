"""Dependencies between the values of a model."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable

import onnx_ir as ir

from rnn_lower.ir.traits import DATA_MOVEMENT
from rnn_lower.ir.walk import constant, integers, nodes, subgraphs
from rnn_lower.lowering.node import RecurrentNode
from rnn_lower.shapes.shape_info import plain_dim


def _closure(value: ir.Value, step: Callable[[ir.Value], Iterable[ir.Value]]) -> set[ir.Value]:
    waiting, seen = [value], {value}
    while waiting:
        more = set(step(waiting.pop())) - seen
        seen |= more
        waiting += more
    return seen


PASSES_ON = (*DATA_MOVEMENT, "Cast")
"""Operators that only move data or cast it."""


def outputs_of(model: ir.Model, value: ir.Value, computed: bool = False) -> set[ir.Value]:
    """The model outputs that a value reaches by moves only. computed: by any operators."""
    owners = {id(body): node for node, _ in nodes(model) for _, body in subgraphs(node)}

    def step(current: ir.Value) -> Iterable[ir.Value]:
        users = [
            user
            for user, index in current.uses()
            if computed or (user.op_type in PASSES_ON and (not index or user.op_type == "Concat"))
        ]
        results = [out for user in users for out in user.outputs]
        owner = owners.get(id(current.graph)) if current.is_graph_output() else None
        if owner is not None and computed:
            results += owner.outputs
        elif owner is not None and owner.op_type == "If" and current.graph is not None:
            results += [owner.outputs[index] for index, out in enumerate(current.graph.outputs) if out is current]
        return results

    return _closure(value, step) & set(model.graph.outputs)


def inputs_of(model: ir.Model, value: ir.Value) -> set[ir.Value]:
    """The required inputs that reach a value by moves only."""

    def step(current: ir.Value) -> Iterable[ir.Value]:
        node = current.producer()
        if node is None:
            return ()
        bodies = [body for _, body in subgraphs(node)]
        if node.op_type == "If":
            return [body.outputs[current.index() or 0] for body in bodies]
        moved = node.inputs if node.op_type == "Concat" else node.inputs[:1]
        return [operand for operand in moved if operand is not None] if node.op_type in PASSES_ON else ()

    required = {source for source in model.graph.inputs if not source.is_initializer()}
    return _closure(value, step) & required


def makers_of(value: ir.Value) -> set[ir.Node]:
    """The nodes that a value is computed by, without those in bodies."""

    def step(current: ir.Value) -> Iterable[ir.Value]:
        node = current.producer()
        return () if node is None else [operand for operand in node.inputs if operand is not None]

    return {node for each in _closure(value, step) if (node := each.producer()) is not None}


def has_one_step(node: RecurrentNode) -> bool:
    """Whether a recurrent node has one step in each run, for all input sizes."""
    maker = node.inputs["X"].producer()
    if node.static_length == 1 or maker is None or maker.op_type != "Unsqueeze":
        return node.static_length == 1
    axes = integers(maker, "axes", 1, constant) or ()
    time = 1 if node.layout else 0
    return time in axes or time - 3 in axes


def may_feed(output: ir.Value, initial: ir.Value) -> bool:
    """Whether an output may have the shape of an input that takes it, by their declarations."""
    if output.shape is None or initial.shape is None:
        return True
    ours, theirs = ([plain_dim(dim) for dim in shape] for shape in (output.shape, initial.shape))
    sized = all(a == b for a, b in zip(ours, theirs, strict=False) if isinstance(a, int) and isinstance(b, int))
    moved = ours != theirs and None not in ours and collections.Counter(ours) == collections.Counter(theirs)
    return sized and not moved and len(ours) == len(theirs)
