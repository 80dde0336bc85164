"""Share the common parts of unrolled steps: one Split instead of slices, one Reshape instead of stacked rows."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Sequence

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from rnn_lower.builder.constants import ConstantPool
from rnn_lower.builder.graph_builder import GraphBuilder
from rnn_lower.builder.names import Names
from rnn_lower.ir.replacing import substitute
from rnn_lower.ir.walk import Scope, constant, integers, scopes, used_names
from rnn_lower.lowering.node import Dim
from rnn_lower.shapes.shape_info import ShapeInfo


def simplify(model: ir.Model) -> None:
    """Rewrite the nodes of a model, in place."""
    shape_info, names = ShapeInfo(model).inferred_now(), Names(used_names(model))
    pool = ConstantPool(names, model.ir_version < 4)
    for scope in scopes(model):
        _drop_identities(scope.graph)
        rewriter = _Rewriter(scope, shape_info, names, pool)
        rewriter.merge_slices()
        for node in list(scope.graph):
            if node.op_type == "Split":
                rewriter.cut_rows(node)
            elif node.op_type == "Concat":
                rewriter.stack_rows(node)
            elif node.op_type == "Where":
                rewriter.choose(node)
    for value in pool.initializers:
        model.graph.register_initializer(value)
    RemoveUnusedNodesPass()(model)


def _drop_identities(graph: ir.Graph | ir.Function) -> None:
    """Remove Identity nodes, except those that name a graph output."""
    for node in list(graph):
        if node.op_type == "Identity" and node.domain == "" and not node.outputs[0].is_graph_output():
            source = node.inputs[0]
            if source is not None:
                node.outputs[0].replace_all_uses_with(source)
                graph.remove(node, safe=True)


class _Rewriter:
    """Rewrites the nodes of one graph."""

    def __init__(self, scope: Scope, shape_info: ShapeInfo, names: Names, pool: ConstantPool) -> None:
        self._scope, self._shape_info, self._names, self._pool = scope, shape_info, names, pool

    def _builder(self, node: ir.Node) -> GraphBuilder:
        return GraphBuilder(
            self._scope.opset, ir.DataType.FLOAT, self._names, self._pool, node.name or node.op_type,
            dict(node.metadata_props),
        )  # fmt: skip

    def _replace(
        self, at: ir.Node, gone: Sequence[ir.Node], b: GraphBuilder, old: Sequence[ir.Value], new: Sequence[ir.Value]
    ) -> None:
        substitute(gone, b.nodes, old, new, at)

    def merge_slices(self) -> None:
        """Replace adjacent Slices that cover a whole value with one Split."""
        groups: dict[tuple[ir.Value, int], dict[tuple[int, int], list[ir.Node]]] = collections.defaultdict(dict)
        for node in self._scope.graph:
            cut = self._cut(node) if node.op_type == "Slice" and node.domain == "" else None
            if cut is not None:
                value, axis, start, end = cut
                groups[value, axis].setdefault((start, end), []).append(node)
        for (value, axis), cuts in groups.items():
            ranges = sorted(cuts)
            shape = self._shape_info.shape(value) or ()
            whole = ranges[0][0] == 0 and ranges[-1][1] == shape[axis]
            if len(ranges) < 2 or not whole or any(a[1] != b[0] for a, b in itertools.pairwise(ranges)):
                continue
            nodes = [node for each in ranges for node in cuts[each]]
            first = next(node for node in self._scope.graph if node in nodes)
            b = self._builder(first)
            parts = b.split(
                value, axis, [end - start for start, end in ranges], [f"part_{k}" for k in range(len(ranges))]
            )
            pairs = [(node.outputs[0], part) for each, part in zip(ranges, parts, strict=True) for node in cuts[each]]
            if any(old.is_graph_output() for old, _ in pairs):
                continue
            self._scope.graph.insert_before(first, b.nodes)  # type: ignore[union-attr]
            for old, new in pairs:
                assert isinstance(new, ir.Value)
                old.replace_all_uses_with(new)
            self._scope.graph.remove(nodes, safe=True)

    def _cut(self, node: ir.Node) -> tuple[ir.Value, int, int, int] | None:
        """The value, axis, start and end of a Slice along one axis."""
        value, shape = node.inputs[0], None if node.inputs[0] is None else self._shape_info.shape(node.inputs[0])
        starts, ends, axes, steps = (
            integers(node, name, k, constant) for k, name in enumerate(("starts", "ends", "axes", "steps"), 1)
        )
        computed = [operand for operand in node.inputs[1:] if operand is not None and constant(operand) is None]
        if value is None or shape is None or starts is None or ends is None or computed or set(steps or [1]) != {1}:
            return None
        cuts = []
        for axis, start, end in zip(range(len(starts)) if axes is None else axes, starts, ends, strict=True):
            size = shape[axis]
            if isinstance(size, int):
                low, high, _ = slice(start, end).indices(size)
                if (low, high) != (0, size):
                    cuts.append((axis % len(shape), low, high))
            elif start != 0 or end < 2**31 - 1:
                return None
        return (value, *cuts[0]) if len(cuts) == 1 and cuts[0][1] < cuts[0][2] else None

    def cut_rows(self, node: ir.Node) -> None:
        """Cut rows [N, K] of [T, N, K] from [T * N, K], which saves a Squeeze per row."""
        value, parts = node.inputs[0], node.outputs
        shape = None if value is None else self._shape_info.shape(value)
        axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
        users = [user for part in parts for user, _ in part.uses()]
        if shape is None or len(shape) < 2 or axis or shape[0] != len(parts) or len(parts) < 2:
            return
        plain = all(user.op_type == "Squeeze" and integers(user, "axes", 1, constant) == [0] for user in users)
        rest = _sizes(shape[2:])
        if not plain or not users or not isinstance(shape[1], int) or not shape[1] or rest is None:
            return
        b = self._builder(node)
        rows = b.reshape(value, [shape[0] * shape[1], *rest], "rows")
        new = b.split(rows, 0, [shape[1]] * len(parts), [f"t{k}" for k in range(len(parts))])
        if any(user.outputs[0].is_graph_output() for user in users):
            return
        self._scope.graph.insert_before(node, b.nodes)  # type: ignore[union-attr]
        for part, row in zip(parts, new, strict=True):
            for user, _ in list(part.uses()):
                assert isinstance(row, ir.Value)
                user.outputs[0].replace_all_uses_with(row)
                self._scope.graph.remove(user, safe=True)
        self._scope.graph.remove(node, safe=True)

    def choose(self, node: ir.Node) -> None:
        """The value that a known condition selects, unless the result broadcasts."""
        condition, output = constant(node.inputs[0]), node.outputs[0]
        if (
            condition is None
            or not condition.size
            or (condition != condition.flat[0]).any()
            or output.is_graph_output()
        ):
            return
        chosen = node.inputs[1 if condition.flat[0] else 2]
        shape = self._shape_info.shape(output)
        if chosen is not None and shape is not None and None not in shape and self._shape_info.shape(chosen) == shape:
            output.replace_all_uses_with(chosen)
            self._scope.graph.remove(node, safe=True)

    def stack_rows(self, node: ir.Node) -> None:
        """Concatenate rows [N, K] to [T * N, K] and reshape once, which saves an Unsqueeze per row."""
        makers = [None if value is None else value.producer() for value in node.inputs]
        if node.attributes["axis"].as_int() != 0 or len(makers) < 2:
            return
        rows = [maker.inputs[0] for maker in makers if maker is not None and maker.op_type == "Unsqueeze"
                and integers(maker, "axes", 1, constant) == [0]]  # fmt: skip
        shapes = {self._shape_info.shape(row) for row in rows if row is not None}
        (shape,) = shapes if len(shapes) == 1 else (None,)
        sizes = None if not shape else _sizes(shape)
        if len(rows) < len(makers) or sizes is None:
            return
        b = self._builder(node)
        stacked = b.reshape(b.concat(rows, 0, "rows"), [len(rows), *sizes], "stacked")
        assert isinstance(stacked, ir.Value)
        stacked.type = node.outputs[0].type
        self._replace(node, [node], b, node.outputs, [stacked])


def _sizes(shape: Sequence[Dim]) -> list[int] | None:
    """The sizes for a Reshape, at most one of them -1."""
    sizes = [size if isinstance(size, int) else -1 for size in shape]
    return sizes if sizes.count(-1) < 2 and 0 not in sizes else None
