"""Keys of values and bodies: two with one key compute the same, so that they need no run to be compared.

The key of a value consists of its operator, attributes and operands, or of its numbers if constants alone compute it.
So a node has the same key before and after constant folding. The key of a body contains that of its node, since bodies
are the same only if they run under the same condition.
"""

from __future__ import annotations

import collections
import hashlib
from collections.abc import Collection
from typing import NamedTuple

import onnx_ir as ir

from rnn_lower.ir.schemas import DEFAULT_DOMAINS
from rnn_lower.ir.traits import RANDOM
from rnn_lower.ir.walk import constant, content_key, nodes, output_names, subgraphs
from rnn_lower.proving.exact.call import OutOfScopeError, attributes_key
from rnn_lower.transforms.evaluate import computed_constants

Key = bytes

COLLISION = 2.0**-128
"""An upper bound on the probability that different values of two models have the same key."""


COUNTING = ("BatchNormalization", "Split")
"""Operators that compute something else if they have fewer outputs: without training, or of other sizes."""


class Keys(NamedTuple):
    """The keys of the outputs of a model, in order, of its bodies, of values that no node reads, and of all values."""

    outputs: list[Key]
    bodies: dict[ir.Graph, Key]
    unread: set[Key]
    values: set[Key]


def congruence_keys(model: ir.Model, equal: Collection[str | None] = ()) -> Keys:
    """The keys of a model without functions, whose nodes are in order.

    equal: the names of values that are known to be equal in the models that are compared.

    Raises OutOfScopeError for values of sparse initializers.
    """
    computed = computed_constants((node, scope.opset) for node, scope in nodes(model))
    keys: dict[ir.Value, Key] = {value: _key("input", value.name) for value in model.graph.inputs}
    found: dict[ir.Graph, Key] = {}

    def of_value(value: ir.Value | None) -> Key:
        if value is None or not value.name:
            return _key("absent")
        if value not in keys:
            array = computed.get(value, constant(value))
            if array is None:
                raise OutOfScopeError(f"the origin of value '{value.name}' is unknown")
            keys[value] = _key("constant", content_key(array))
        return keys[value]

    def of_body(body: ir.Graph, place: Key) -> Key:
        keys.update({value: _key("argument", place, index) for index, value in enumerate(body.inputs)})
        follow(body)
        declared = [(value.dtype, str(value.shape)) for value in (*body.inputs, *body.outputs)]
        return _key(declared, [of_value(value) for value in body.outputs])

    def follow(graph: ir.Graph) -> None:
        for node in graph:
            own = output_names(node) if node.op_type in RANDOM else ()
            inputs = [*node.inputs]
            while inputs and (inputs[-1] is None or not inputs[-1].name):  # folding may leave it out
                inputs.pop()
            is_same = node.domain in DEFAULT_DOMAINS and node.op_type not in COUNTING
            count = 0 if is_same else len(node.outputs)
            key = _key(node.op_identifier(), own, [*map(of_value, inputs)], count, attributes_key(node))
            inner = [(name, body, of_body(body, _key(key, name))) for name, body in subgraphs(node)]
            key = _key(key, [(name, body_key) for name, _, body_key in inner])
            found.update({body: _key(key, name) for name, body, _ in inner})
            for index, value in enumerate(node.outputs):
                if value not in computed and constant(value) is None:
                    keys[value] = _key("equal", value.name) if value.name in equal else _key(key, index)

    follow(model.graph)
    outputs = [of_value(value) for value in model.graph.outputs]
    unread = {value for node, _ in nodes(model) for value in node.outputs if value.name and not value.uses()}
    return Keys(outputs, found, {of_value(value) for value in unread}, {*keys.values()})


def incongruent_outputs(before: ir.Model, after: ir.Model) -> list[int]:
    """The indices of the outputs of two models that have different keys, so that only a run can compare them.

    All outputs, if only the second model has a node that no other node reads, and that may fail.
    """
    try:
        old, new = map(congruence_keys, (before, after))
    except OutOfScopeError:
        return [*range(len(before.graph.outputs))]
    has_new_ends = bool(new.unread - old.values - {*new.outputs})
    return [index for index, (a, b) in enumerate(zip(old.outputs, new.outputs, strict=True)) if has_new_ends or a != b]


def named_outside_loops(model: ir.Model) -> set[str]:
    """The names that one node computes, in no body that may run more than once."""
    places = [(value.name, scope) for node, scope in nodes(model) for value in node.outputs if value.name]
    count = collections.Counter(name for name, _ in places)
    repeating = {scope.graph for _, scope in places if any(map(scope.lies_in, ("Loop", "Scan", "SequenceMap")))}
    return {name for name, scope in places if count[name] == 1 and scope.graph not in repeating}


def _key(*parts: object) -> Key:
    return hashlib.sha256(repr(parts).encode()).digest()
