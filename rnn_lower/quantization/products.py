"""Products with constant weights, cell states, and values that share a scale because they are one value over time."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import onnx_ir as ir

from rnn_lower.builder.constant_operands import known
from rnn_lower.ir.walk import NODE_MARK, Scope, nodes, scopes
from rnn_lower.loops.model import MARK as LOOP_MARK
from rnn_lower.quantization.ranges import Ranges, bounded_values, convex

PRODUCTS = ("MatMul", "Gemm")
LOOPS = {"Scan": 0, "Loop": 2}
"""Operators that carry states, with the index of the first state among the inputs of the body."""


@dataclasses.dataclass(frozen=True)
class Product:
    """A product with a constant float32 matrix. x, weight: its operands.  axis: of the weight, that of the channels."""

    node: ir.Node
    scope: Scope
    x: ir.Value
    weight: ir.Value
    axis: int


def products(model: ir.Model) -> Iterator[Product]:
    """The products of a model, also in bodies."""
    for node, scope in nodes(model):
        if node.op_type not in PRODUCTS or node.domain != "":
            continue
        x, weight = node.inputs[:2]
        constant = known(weight)
        if x is None or weight is None or constant is None or known(x) is not None:
            continue
        if constant.dtype == ir.DataType.FLOAT and len(constant.shape) == 2:
            turned = node.op_type == "Gemm" and node.attributes.get_int("transB", 0) == 1
            yield Product(node, scope, x, weight, 0 if turned else 1)


def states(node: ir.Node) -> list[tuple[ir.Value, ir.Value]]:
    """The float states of a Scan or Loop: body input and output of each."""
    body = node.attributes["body"].as_graph()
    first = LOOPS[node.op_type]
    if node.op_type == "Scan":
        count = len(node.inputs) - node.attributes.get_int("num_scan_inputs", 0)
        pairs = list(zip(body.inputs[:count], body.outputs[:count], strict=True))
    else:
        pairs = list(zip(body.inputs[first:], body.outputs[1:], strict=False))
    return [(a, b) for a, b in pairs if a.dtype == ir.DataType.FLOAT]


class Ties:
    """Sets of values that are one state over time. leader: the representative of a value's set."""

    def __init__(self) -> None:
        self._above: dict[ir.Value, ir.Value] = {}

    def leader(self, value: ir.Value) -> ir.Value:
        while value in self._above:
            value = self._above[value]
        return value

    def tie(self, one: ir.Value, other: ir.Value) -> None:
        one, other = self.leader(one), self.leader(other)
        if one is not other:
            self._above[other] = one


@dataclasses.dataclass(frozen=True)
class Findings:
    """The values to quantize. bounds: ranges that follow from equations.  cells: cell states.  ties: see `Ties`."""

    products: list[Product]
    cells: list[ir.Value]
    ties: Ties
    bounds: Ranges

    def values(self) -> list[ir.Value]:
        """The values that need a range: operands and results of products, and cell states."""
        each = [value for product in self.products for value in (product.x, product.node.outputs[0])]
        return list(dict.fromkeys([*each, *self.cells]))


def find_products(model: ir.Model, fed_back: list[tuple[str, str]]) -> Findings:
    """The findings of a model. fed_back: the outputs that callers feed back, by input name."""
    ties, cells, bounds = Ties(), list[ir.Value](), Ranges()
    inputs, outputs = ({value.name: value for value in side} for side in (model.graph.inputs, model.graph.outputs))
    pairs = {model.graph: [(inputs[a], outputs[b]) for a, b in fed_back if a in inputs and b in outputs]}
    all_products = list(products(model))
    operands = {product.x for product in all_products}
    for node, _ in nodes(model):
        if node.op_type in LOOPS and node.domain == "" and "body" in node.attributes:
            body = node.attributes["body"].as_graph()
            pairs[body] = states(node)
            if node.metadata_props.get("rnn_lower.op") == "LSTM" and NODE_MARK in node.metadata_props:
                cells += [a for a, _ in pairs[body] if a not in operands]
    for scope in scopes(model):
        if isinstance(scope.graph, ir.Graph):
            both = pairs.get(scope.graph, [])
            bounded = bounded_values(scope.graph, both)
            bounds.update(bounded)
            if scope.holder not in LOOPS:  # in the body, the state is an input
                cells += _cells(scope.graph, bounded, ties)
            for a, b in both:
                ties.tie(a, b)
    first: dict[tuple[ir.Value, str | None], Product] = {}
    for product in all_products:  # of unrolled steps, which one node or loop became
        step = next((mark for key in (NODE_MARK, LOOP_MARK) if (mark := product.node.metadata_props.get(key))), None)
        twin = first.setdefault((product.weight, step), product)
        if step is None:
            continue
        ties.tie(twin.x, product.x)
        ties.tie(twin.node.outputs[0], product.node.outputs[0])
    return Findings(all_products, list(dict.fromkeys(cells)), ties, bounds)


def _cells(graph: ir.Graph, bounds: Ranges, ties: Ties) -> list[ir.Value]:
    """The cell states of unrolled LSTMs, Ct = ft (.) Ct-1 + it (.) ct, also behind masks."""
    cells: dict[ir.Value, None] = {}

    def of(value: ir.Value | None) -> tuple[float, float] | None:
        if value is not None and value not in bounds and (constant := known(value)) and constant.size == 1:
            return (float(constant.load().flat[0]),) * 2
        return None if value is None else bounds.get(value)

    for node in graph:
        if node.metadata_props.get("rnn_lower.op") != "LSTM" or node.op_type not in ("Add", "Where"):
            continue
        terms = [value and value.producer() for value in node.inputs]
        before: ir.Value | None = None
        if node.op_type == "Where" and node.inputs[1] in cells:
            before = node.inputs[2]
        elif node.op_type == "Add" and all(term and term.op_type == "Mul" for term in terms) and not convex(node, of):
            before = terms[0].inputs[1] if terms[0] else None
        if before is not None:
            cells[node.outputs[0]] = None
            for value in (node.inputs[1] if node.op_type == "Where" else None, before):
                if value is not None and known(value) is None:
                    cells[value] = None
                    ties.tie(node.outputs[0], value)
    return list(cells)
