"""Compute both directions of a small node in one Scan: their states, inputs and weights are stacked on a new axis.

    [h_1]  *  [R_1]  =  [h_1 * R_1]
    [h_2]     [R_2]     [h_2 * R_2]

Each step then calls half as many kernels. The reverse direction reads its inputs flipped. This saves 17 to 25 % of the
time of an LSTM and 9 to 12 % of a GRU, with a batch size of 1 and up to 64 units; beyond that it costs more than it
saves, because onnxruntime does not prepack matrices of rank 3.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import onnx_ir as ir

from rnn_lower.builder.constants import Constant
from rnn_lower.builder.graph_builder import GraphBuilder, Operand, as_value, declare, detach
from rnn_lower.builder.versions import input_index
from rnn_lower.ir.traits import ELEMENTWISE
from rnn_lower.tune.scan_step import dims_of, is_short, state_count

LARGEST_STATE = 64
"""The largest state (batch size * hidden size) for which one Scan was faster than two."""

USUAL_ROWS = 2
"""The batch size that is assumed if it is unknown."""


def batch_directions(b: GraphBuilder, nodes: Sequence[ir.Node]) -> dict[ir.Value, ir.Value]:
    """Replace the Scans of both directions of a node by one, if they differ only in their weights."""
    scans = [node for node in nodes if node.op_type == "Scan"]
    has_steps = input_index("Slice", b.opset, "steps") is not None
    if len(scans) != 2 or not has_steps or is_short(scans[0]) or not _is_small(scans[0]):
        return {}
    pairs = list(zip(scans[0].outputs, scans[1].outputs, strict=False))
    joined = [_joining_concat(*pair) for pair in pairs]
    if any(concat is None and pair[0].uses() for concat, pair in zip(joined, pairs, strict=True)):
        return {}
    outer = b.body()
    inner = outer.body()
    with outer.scope("both"):
        body = _BatchedBody(outer, inner, scans).graph()
        if body is None:
            detach([*outer.nodes, *inner.nodes])  # or the constants that they read would be written
            return {}
        states = state_count(scans[0])
        inputs = [_stacked(outer, scans, k, 0 if k < states else 1) for k in range(len(scans[0].inputs))]
        results = outer.op_multi(
            "Scan", inputs, [_base_name(value) for value in scans[0].outputs], body=body,
            num_scan_inputs=len(inputs) - states,
        )  # fmt: skip
        for k, y in enumerate(results[states:], states):
            forward, reverse = outer.split(y, 1, [1, 1], ["Y_forward", "Y_reverse"])
            parts = [_in_order(outer, part, scan) for part, scan in zip((forward, reverse), scans, strict=True)]
            results[k] = as_value(outer.concat(parts, 1, "Y"))
    replaced = {}
    for concat, value in zip(joined, results, strict=True):
        if concat is not None:
            concat.outputs[0].replace_all_uses_with(value)
            replaced[concat.outputs[0]] = value
    position = b.nodes.index(scans[1])
    b.nodes[position:position] = outer.nodes
    unread = {*scans, *(concat for concat in joined if concat is not None)}
    b.nodes[:] = [node for node in b.nodes if node not in unread]
    detach([*unread])
    return replaced


def _is_small(scan: ir.Node) -> bool:
    rows, columns = scan.attributes["body"].as_graph().inputs[0].shape or (None, None)
    return isinstance(columns, int) and (rows if isinstance(rows, int) else USUAL_ROWS) * columns <= LARGEST_STATE


def _joining_concat(first: ir.Value, second: ir.Value) -> ir.Node | None:
    """Return the Concat of the results of two directions, behind an Unsqueeze of each for final states."""
    users = [[node for node, _ in value.uses()] for value in (first, second)]
    if any(len(nodes) != 1 for nodes in users):
        return None
    (one,), (two,) = users
    if one is two:
        return one if one.op_type == "Concat" and list(one.inputs) == [first, second] else None
    return _joining_concat(one.outputs[0], two.outputs[0]) if one.op_type == two.op_type == "Unsqueeze" else None


def _stacked(outer: GraphBuilder, scans: Sequence[ir.Node], k: int, axis: int) -> ir.Value:
    """Return input k of both Scans, stacked on a new axis; sequences in the order in which the Scans read them."""
    values = [as_value(scan.inputs[k]) for scan in scans]
    parts = values if axis == 0 else [_in_order(outer, v, scan) for v, scan in zip(values, scans, strict=True)]
    name = _base_name(values[0])
    stacked = as_value(outer.concat([outer.unsqueeze(part, [axis], name) for part in parts], axis, name))
    if values[0].shape is not None:
        dims = dims_of(values[0])
        declare(stacked, values[0].dtype or outer.dtype, [*dims[:axis], 2, *dims[axis:]])
    return stacked


def _in_order(outer: GraphBuilder, x: Operand, scan: ir.Node) -> Operand:
    """Flip time (axis 0) if the Scan runs backwards."""
    directions = scan.attributes.get("scan_input_directions")
    if directions is None or not any(directions.as_ints()):
        return x
    return outer.op("Slice", x, name="flipped", starts=[-1], ends=[-(1 << 31)], axes=[0], steps=[-1])


class _BatchedBody:
    """Applies the nodes of two equal bodies to stacked values; weights are stacked by nodes of `outer`."""

    def __init__(self, outer: GraphBuilder, inner: GraphBuilder, scans: Sequence[ir.Node]) -> None:
        self.outer, self.inner, self.scans = outer, inner, scans
        self.stacked: dict[tuple[ir.Value | None, ir.Value | None], Operand] = {(None, None): None}

    def graph(self) -> ir.Graph | None:
        """Return the body of the one Scan, or None if the bodies differ in more than their weights."""
        first, second = (scan.attributes["body"].as_graph() for scan in self.scans)
        if len(first) != len(second) or len(first.inputs) != len(second.inputs):
            return None
        inputs, inner = [], self.inner
        for pair in zip(first.inputs, second.inputs, strict=True):
            inputs.append(inner.new_value(_base_name(pair[0]), pair[0].dtype, [2, *dims_of(pair[0])]))
            self.stacked[pair] = inputs[-1]
        for nodes in zip(first, second, strict=True):
            if not self._apply(*nodes):
                return None
        outputs = [self.stacked.get(pair) for pair in zip(first.outputs, second.outputs, strict=True)]
        if not all(isinstance(output, ir.Value) for output in outputs):
            return None
        for old, output in zip(first.outputs, outputs, strict=True):
            declare(output, old.dtype or inner.dtype, [2, *dims_of(old)[-2:]])
        return inner.graph(inputs, [as_value(output) for output in outputs], "body")

    def _apply(self, one: ir.Node, two: ir.Node) -> bool:
        """Apply a node of both bodies to stacked operands; False if the nodes differ, or the operator is unknown."""
        values = [{name: attribute.value for name, attribute in node.attributes.items()} for node in (one, two)]
        if one.op_type != two.op_type or values[0] != values[1]:
            return False
        pairs = list(itertools.zip_longest(one.inputs, two.inputs))
        if one.op_type == "Unsqueeze" and one.outputs[0].is_graph_output():  # stacks a state over time
            self.stacked[one.outputs[0], two.outputs[0]] = self.inner.op(
                "Identity", self.stacked.get(pairs[0]), name="Y"
            )
            return pairs[0] in self.stacked
        splits_columns = one.op_type == "Split" and values[0].get("axis") == 1
        if not splits_columns and one.op_type not in (*ELEMENTWISE, "MatMul"):
            return False
        for pair in pairs:
            if pair not in self.stacked:
                operand = self._weights(*pair, is_matrix=one.op_type == "MatMul")
                if operand is None:
                    return False
                self.stacked[pair] = operand
        inputs = [self.inner.value(self.stacked[pair]) for pair in pairs]
        outputs = [self.inner.new_value(_base_name(value)) for value in one.outputs]
        node = ir.Node("", one.op_type, inputs, list(one.attributes.values()), outputs=outputs, name=outputs[0].name)
        if splits_columns:
            node.attributes.add(ir.AttrInt64("axis", 2))
        self.inner.append(node)
        self.stacked.update(zip(zip(one.outputs, two.outputs, strict=True), outputs, strict=True))
        return True

    def _weights(self, one: ir.Value | None, two: ir.Value | None, is_matrix: bool) -> Operand:
        """Return weights of both directions as [2, 1, columns] or [2, rows, columns], or the one value of both."""
        if one is two or one is None or two is None:
            return one if one is two else None
        parts = [self.outer.operand(value) for value in (one, two)]
        if is_matrix:
            return self.outer.concat([self.outer.unsqueeze(part, [0]) for part in parts], 0, "R_of_both")
        known = [part for part in parts if isinstance(part, Constant) and len(part.shape) < 2]
        if len(known) < 2:
            return None
        rows = [self.outer.unsqueeze(part, range(3 - len(part.shape))) for part in known]
        return self.outer.concat(rows, 0, "of_both")


def _base_name(value: ir.Value) -> str:
    return (value.name or "value").rsplit("/", 1)[-1]
