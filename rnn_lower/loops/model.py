"""Unroll all loops of a model in place; inner trip counts follow from outer steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import onnx_ir as ir

from rnn_lower.builder.constants import ConstantPool
from rnn_lower.builder.graph_builder import GraphBuilder, detach
from rnn_lower.builder.names import Names
from rnn_lower.ir.replacing import substitute
from rnn_lower.ir.schemas import DEFAULT_DOMAINS, LOOPS
from rnn_lower.ir.walk import Scope, nodes, sources, used_names, with_bodies
from rnn_lower.loops.collected_sequences import as_scan_outputs, collects
from rnn_lower.loops.items import written
from rnn_lower.loops.simplify import simplify
from rnn_lower.loops.unrolling import NotCountedError, Unroller
from rnn_lower.shapes.fixed_dims import declared_shapes, free_dims
from rnn_lower.shapes.shape_info import ShapeInfo
from rnn_lower.transforms.fold import fold

MARK = "rnn_lower.loop"
"""The metadata key of an emitted node; the value names the loop that the node was unrolled from."""

SIZES = (None, ir.DataType.INT32, ir.DataType.INT64)
"""The possible element types of sizes; None if undeclared."""

ROUNDS = 8
"""The maximum number of rounds: unrolling may reveal trip counts of more loops, one nesting level per round."""


@dataclasses.dataclass(frozen=True)
class RemainingLoop:
    """A loop that is not unrolled, and the reason."""

    node: ir.Node
    path: str
    why: str

    def __str__(self) -> str:
        return f"{describe(self.node)} in the {self.path}: {self.why}"


def describe(node: ir.Node) -> str:
    return f"{node.op_type} '{node.name or next((value.name for value in node.outputs if value.name), '')}'"


def loops(model: ir.Model) -> Iterator[tuple[ir.Node, Scope]]:
    """All Loop and Scan nodes of a model, also in bodies and functions."""
    for node, scope in nodes(model):
        if node.op_type in LOOPS and node.domain in DEFAULT_DOMAINS and node.op_identifier() not in model.functions:
            yield node, scope


def unroll_loops(model: ir.Model, max_nodes: int) -> tuple[list[str], list[RemainingLoop]]:
    """Unroll loops in place; returns those that were unrolled, and those that stay. Also folds constants.

    max_nodes: the maximum number of emitted nodes.
    """
    if collects(model):
        as_scan_outputs(model)
    _fold(model)
    done, remaining = list[str](), list[RemainingLoop]()
    for _ in range(ROUNDS):
        shape_info, names, count = ShapeInfo(model).inferred_now(), Names(used_names(model)), len(done)
        pool, gone, remaining = ConstantPool(names, model.ir_version < 4), set[ir.Node](), []
        for node, scope in list(loops(model)):
            if node in gone:
                continue
            try:
                if scope.in_function:
                    raise NotCountedError(
                        "it is in a function whose opset differs from the model's; convert the model first (--opset N)"
                    )
                inside = list(with_bodies([node]))
                max_nodes -= _unroll(node, GraphBuilder(
                    scope.opset, ir.DataType.FLOAT, names, pool, node.name or node.op_type,
                    {MARK: describe(node)}), shape_info, max_nodes)  # fmt: skip
                gone.update(inside)
                done.append(describe(node))
            except NotCountedError as error:
                remaining.append(RemainingLoop(node, scope.path, _with_advice(str(error), node, model)))
        for value in pool.initializers:
            model.graph.register_initializer(value)
        if len(done) == count:
            break
        _fold(model)
        simplify(model)
    return done, remaining


def _fold(model: ir.Model) -> None:
    """Fold constants; converts a Split of sizes to Slices first, because nodes with several outputs are not folded."""
    splits = [(node, scope) for node, scope in nodes(model) if node.op_type == "Split" and node.domain == ""
              and (value := node.inputs[0]) is not None and value.dtype in SIZES]  # fmt: skip
    shape_info, names = ShapeInfo(model).inferred_now() if splits else None, Names(used_names(model))
    pool = ConstantPool(names, model.ir_version < 4)
    for node, scope in splits:
        value = node.inputs[0]
        if shape_info is None or value is None or shape_info.shape(value) != (len(node.outputs),):
            continue
        b = GraphBuilder(scope.opset, ir.DataType.FLOAT, names, pool, node.name or node.op_type)
        parts = [written(b.slice(value, 0, k, k + 1)) for k in range(len(node.outputs))]
        substitute([node], b.nodes, node.outputs, parts)
    for value in pool.initializers:
        model.graph.register_initializer(value)
    fold(model)


def _with_advice(why: str, node: ir.Node, model: ir.Model) -> str:
    """The reason why a loop stays, with what may help: the `--dim` options, or a constant instead of an input."""
    free = list(dict.fromkeys(name for *_, name in free_dims(declared_shapes(model))))
    if "--" in why or "an ONNX sequence" in why:
        return why
    if "trip count" in why and (source := _input_behind(node.inputs[0], model)) is not None:
        return f"{why}, because it depends on the value of input '{source}'; make this input a constant in the export"
    return f"{why}; set the input sizes ({', '.join(f'--dim {name}=N' for name in free[:4])})" if free else why


def _input_behind(value: ir.Value | None, model: ir.Model) -> str | None:
    """An input of the model whose content, not only its shape, determines a value."""
    return next((source.name for source in sources(value) if source in model.graph.inputs), None)


def _unroll(node: ir.Node, b: GraphBuilder, shape_info: ShapeInfo, max_nodes: int) -> int:
    """Replace a loop with its steps; returns the number of nodes."""
    unroller = Unroller(b, shape_info, max_nodes)
    try:
        results = unroller.results(node, {})
        pairs = [(old, unroller.items.value(item)) for old, item in zip(node.outputs, results, strict=True)
                 if old.uses() or old.is_graph_output()]  # fmt: skip
    except NotCountedError:
        detach(b.nodes)
        raise
    finally:
        unroller.forget()
    written = {value for new in b.nodes for value in new.outputs}
    olds, news = [], []
    for old, new in pairs:
        if new not in written or new in news:
            new = b.op("Identity", new, name=str(old.name))
        new.type = old.type or (None if new is None else new.type)
        olds.append(old)
        news.append(new)
    substitute([node], b.nodes, olds, news)
    return len(b.nodes)
