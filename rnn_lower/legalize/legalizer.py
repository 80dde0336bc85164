"""Legalization: replace every unsupported node with other nodes until the target supports all of them.

For each unsupported node the patterns of its operator are tried in order, and what a pattern writes is legalized
recursively. This terminates: on a path of replacements no call occurs twice, and no operator three times. The pattern
that worked for a call is cached, so that a thousand equal steps need one search.

An unsupported comparison may stay until its readers are legalized, because their patterns may not need it.

Before legalization, the operands of operators that overflow on the target are clipped. Afterward, equal nodes are
merged and unread nodes are removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import onnx_ir as ir

from rnn_lower.builder.constants import ConstantPool
from rnn_lower.builder.graph_builder import GraphBuilder, Operand, detach, node_key
from rnn_lower.builder.names import Names
from rnn_lower.builder.tensor_info import TensorInfo
from rnn_lower.errors import UnsupportedError, UnsupportedOpError
from rnn_lower.ir.walk import subgraphs, with_bodies
from rnn_lower.legalize.call import MOVES_NOTHING, Call, Pattern, PatternBuilder, call_of
from rnn_lower.legalize.conformance import ConstraintChecker
from rnn_lower.legalize.patterns import PATTERNS

Key = tuple[Any, ...]
COMPARISONS = ("Less", "Greater")
Path = tuple[Key, ...]


def legalize(
    nodes: Sequence[ir.Node], b: GraphBuilder, checker: ConstraintChecker, results: Sequence[ir.Value]
) -> tuple[list[ir.Node], list[ir.Value]]:
    """Return supported nodes that compute the same, and the values that replace `results`.

    nodes: detached, in topological order; they are consumed.  b: supplies element type, names and constants.
    Raises UnsupportedOpError for an operator that no pattern can replace.
    """
    legalizer = _Legalizer(b, checker)
    legal = legalizer.run(_constants_first(nodes), (), {})
    values = list(map(legalizer.latest, results))
    read = drop_unread([*legalizer.constants, *legal], values)
    legalizer.check_pending(read)
    return read, values


def legalize_copy(node: ir.Node, b: GraphBuilder, checker: ConstraintChecker) -> tuple[list[ir.Node], list[ir.Value]]:
    """Return supported nodes that compute the same as a node of a model, and their results; the node is not changed.

    Raises UnsupportedOpError like `legalize`, and for a node with bodies, which a copy would share with it.
    """
    if any(subgraphs(node)):
        raise UnsupportedOpError(node.op_type, "a node with bodies cannot be copied")
    outputs = [ir.Value(name=value.name, type=value.type, shape=value.shape) for value in node.outputs]
    twin = ir.Node("", node.op_type, node.inputs, list(node.attributes.values()), outputs=outputs, name=node.name)
    infos = {new: checker.declared(old) for new, old in zip(outputs, node.outputs, strict=True)}
    own = ConstraintChecker(checker.constraints, b.opset, lambda value: infos.get(value) or checker.declared(value))
    try:
        return legalize([twin], b, own, outputs)
    except UnsupportedError:
        detach([twin])
        raise


def can_legalize(node: ir.Node, checker: ConstraintChecker) -> bool:
    """Whether legalization of an unsupported node of a model succeeds."""
    names = Names(())
    b = GraphBuilder(checker.opset, ir.DataType.FLOAT, names, ConstantPool(names, False), "draft")
    try:
        emitted, _ = legalize_copy(node, b, checker)
    except UnsupportedError:
        return False
    detach(emitted)
    return True


def _constants_first(nodes: Sequence[ir.Node]) -> list[ir.Node]:
    """Move Constant nodes and their Casts to the front, because a pattern may read them earlier than before."""
    constants = {node for node in nodes if node.op_type == "Constant"}
    values = {value for node in constants for value in node.outputs}
    constants |= {node for node in nodes if node.op_type == "Cast" and node.inputs[0] in values}
    return [node for node in nodes if node in constants] + [node for node in nodes if node not in constants]


class _Legalizer:
    def __init__(self, b: GraphBuilder, checker: ConstraintChecker) -> None:
        self._b, self._checker, self._constraints = b, checker, checker.constraints
        self._patterns: dict[Key, Pattern | None] = {}
        self._clipped: set[ir.Node] = set()
        self._pending: dict[ir.Node, UnsupportedOpError] = {}
        self._replaced: dict[ir.Value, ir.Value] = {}
        self.constants: list[ir.Node] = []

    def run(self, nodes: Iterable[ir.Node], path: Path, written: dict[Key, ir.Node]) -> list[ir.Node]:
        """Return the supported nodes that replace `nodes`; `latest` returns the values that replace theirs.

        written: nodes of this graph and of the enclosing graphs, by their key.
        """
        legal: list[ir.Node] = []
        try:
            for node in nodes:
                for _, body in subgraphs(node):
                    self._legalize_body(body, path, dict(written))
                new, values = self._legalized(node, path, written)
                legal += new
                self._replace(node, values)
        except UnsupportedError:
            detach(legal)
            raise
        return legal

    def check_pending(self, nodes: Iterable[ir.Node]) -> None:
        """Raise UnsupportedOpError if an unsupported comparison is still read."""
        for node in with_bodies(nodes):
            if node in self._pending:
                raise self._pending[node]

    def latest(self, value: ir.Value) -> ir.Value:
        """Return the value after all replacements."""
        while value in self._replaced:
            value = self._replaced[value]
        return value

    def _legalize_body(self, body: ir.Graph, path: Path, written: dict[Key, ir.Node]) -> None:
        nodes = list(body)
        body.remove(nodes)
        legal = self.run(nodes, path, written)
        body.extend(drop_unread(legal, list(body.outputs)))

    def _legalized(
        self, node: ir.Node, path: Path, written: dict[Key, ir.Node]
    ) -> tuple[list[ir.Node], Sequence[ir.Value]]:
        """Return the supported nodes that replace a node, and the values of its outputs."""
        limit = self._constraints.saturates.get(node.op_type)
        if limit is not None and node not in self._clipped and self._constraints.listed(node.op_type):
            return self._clip_operand(node, limit, path, written)
        view = self._checker.view(node)
        rule = self._constraints.broken(view)
        pending = [self._pending[producer] for value in node.inputs if value is not None
                   if (producer := value.producer()) in self._pending]  # fmt: skip
        if rule is None and not pending:
            return self._simplified(node, view.outputs, written) or self._written(node, written)
        b = self._pattern_builder(node, view.outputs)
        call = call_of(node, b, view.outputs)
        key = (
            node.op_type, tuple(None if x is None else b.info(x) for x in call.inputs), len(call.names), call.computed,
            repr(sorted((name, repr(x)) for name, x in call.parameters.items() if not isinstance(x, ir.Graph))),
        )  # fmt: skip
        if key not in path and [step[0] for step in path].count(node.op_type) < 2:
            known = self._patterns.get(key)
            patterns = () if call.computed else PATTERNS.get(node.op_type, ())
            for pattern in patterns if known is None else (known,):
                replacement = self._attempt(pattern, node, call, view.outputs, (*path, key), written)
                if replacement is not None:
                    self._patterns[key] = pattern
                    return replacement
        error = pending[0] if rule is None else UnsupportedOpError(node.op_type, rule)
        if node.op_type in COMPARISONS:
            self._pending[node] = error
            return [node], node.outputs
        raise error

    def _simplified(
        self, node: ir.Node, results: Sequence[TensorInfo], written: dict[Key, ir.Node]
    ) -> tuple[list[ir.Node], Sequence[ir.Value]] | None:
        """Replace a Reshape of a reshaped value with one Reshape; return None for any other node."""
        sizes, x = results[0].sizes if results else None, node.inputs[0] if node.inputs else None
        before = None if x is None else x.producer()
        if node.op_type != "Reshape" or sizes is None or before is None or before.op_type not in MOVES_NOTHING:
            return None
        b = self._pattern_builder(node, results)
        value = b.reshape(x, list(sizes), str(node.outputs[0].name).rpartition("/")[2])
        if not isinstance(value, ir.Value) or (b.nodes and b.nodes[-1].inputs[0] is x):
            detach(b.nodes)
            return None
        if not b.nodes:
            return [], [value]
        new, values = self._written(b.nodes[-1], written)
        if not new:  # an equal node exists, so the unused one must be disconnected
            detach(b.nodes)
        return new, values

    def _attempt(
        self, pattern: Pattern, node: ir.Node, call: Call, results: Sequence[TensorInfo], path: Path,
        written: dict[Key, ir.Node],
    ) -> tuple[list[ir.Node], Sequence[ir.Value]] | None:  # fmt: skip
        """Return the legalized result of a pattern; None if it does not match or needs an unsupported operator."""
        b = self._pattern_builder(node, results)
        tried = {} if node.op_type == "Identity" else dict(written)  # two results must not become one value
        try:
            operands: Sequence[Operand] | None = pattern(b, call)
            values = [] if operands is None else [b.value(operand) for operand in operands]
            if operands is None or None in values:
                detach(b.nodes)
                return None
            if node in self._clipped:
                self._clipped.update(clip for clip in b.nodes if clip.op_type == node.op_type)
            legal = self.run(b.nodes, path, tried)
        except UnsupportedError:  # the pattern needs an operator that is unsupported, or absent at this opset
            detach(b.nodes)
            return None
        if node.op_type != "Identity":
            written.update(tried)
        return legal, [self.latest(value) for value in values if value is not None]

    def _pattern_builder(self, node: ir.Node, results: Sequence[TensorInfo]) -> PatternBuilder:
        floats = [info.dtype for info in results if info.dtype is not None and info.dtype.is_floating_point()]
        scope = str(node.outputs[0].name).rpartition("/")[0] or node.name or node.op_type.lower()
        outer = self._b
        dtype = floats[0] if floats else outer.dtype
        b = PatternBuilder(outer.opset, dtype, outer.names, outer.pool, scope, dict(node.metadata_props))
        b.checker, b.constants = self._checker, self.constants
        return b

    def _clip_operand(
        self, node: ir.Node, limit: float, path: Path, written: dict[Key, ir.Node]
    ) -> tuple[list[ir.Node], Sequence[ir.Value]]:
        """Legalize the node with its operand clipped to the limit."""
        self._clipped.add(node)
        b = self._pattern_builder(node, self._checker.view(node).outputs)
        clipped = b.value(b.clip(node.inputs[0], -limit, limit, "limited"))
        node.replace_input_with(0, clipped)
        try:
            legal = self.run([*b.nodes, node], path, written)
        except UnsupportedError:
            detach(b.nodes)
            raise
        return legal, list(map(self.latest, node.outputs))

    def _written(self, node: ir.Node, written: dict[Key, ir.Node]) -> tuple[list[ir.Node], Sequence[ir.Value]]:
        """Return the node, or an equal one written before."""
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        key = node_key(node.op_type, node.inputs, attributes)
        if key is not None and key in written and len(written[key].outputs) == len(node.outputs):
            return [], written[key].outputs
        if key is not None:
            written[key] = node
        return [node], node.outputs

    def _replace(self, node: ir.Node, values: Sequence[ir.Value]) -> None:
        """Replace all uses of the outputs of a node with `values`."""
        if tuple(values) == tuple(node.outputs):
            return
        for old, new in zip(node.outputs, values, strict=True):
            old.replace_all_uses_with(new, replace_graph_outputs=True)
            self._replaced[old] = new
            if new.graph is not None:  # a value of the model keeps its own declaration
                continue
            if new.type is None:
                new.type = old.type
            if new.shape is None:
                new.shape = old.shape
        detach([node])


def drop_unread(nodes: Sequence[ir.Node], results: Sequence[ir.Value]) -> list[ir.Node]:
    """Remove the nodes that nothing reads, except the producers of results."""
    read: list[ir.Node] = []
    wanted = set(results)
    for node in reversed(nodes):
        if any(value in wanted or value.uses() for value in node.outputs):
            read.append(node)
        else:
            detach([node])
    return read[::-1]
