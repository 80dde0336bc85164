"""Ranges of values that follow from the equations: a gate is in [0, 1], a GRU state between bounded values."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from rnn_lower.ir.traits import DATA_MOVEMENT
from rnn_lower.ir.walk import known_tensor

Range = tuple[float, float]
Ranges = dict[ir.Value, Range]

UNIT, SIGNED = (0.0, 1.0), (-1.0, 1.0)
ACTIVATIONS: Mapping[str, Range] = {"Sigmoid": UNIT, "HardSigmoid": UNIT, "Tanh": SIGNED, "Softsign": SIGNED}
LARGEST = 1 << 20
"""The maximum number of elements of a constant that is read to find its range."""


def hull(ranges: Iterable[Range]) -> Range:
    """The smallest range that contains all of these."""
    lows, highs = zip(*ranges, strict=True)
    return min(lows), max(highs)


def bounded_values(graph: ir.Graph, states: Sequence[tuple[ir.Value, ir.Value]] = ()) -> Ranges:
    """The values of a graph whose ranges follow from equations, with the ranges.

    states: pairs of a state that a step reads and the new state that it computes. If the new state is in [-1, 1]
    whenever the old one is, so are all states; the caller must ensure that the initial state is.
    """
    while True:
        ranges = _forward(graph, {value: SIGNED for value, _ in states})
        stay = [(a, b) for a, b in states if (r := ranges.get(b)) is not None and r[0] >= -1 and r[1] <= 1]
        if len(stay) == len(states):
            return ranges
        states = stay


def _forward(graph: ir.Graph, assumed: Mapping[ir.Value, Range]) -> Ranges:
    ranges: Ranges = dict(assumed)

    def of(value: ir.Value | None) -> Range | None:
        tensor = None if value is None or value in ranges else known_tensor(value)
        if value is not None and tensor is not None and tensor.dtype.is_floating_point() and 0 < tensor.size <= LARGEST:
            array = tensor.numpy().astype(np.float64)
            if np.all(np.isfinite(array)):
                ranges[value] = float(array.min()), float(array.max())
        return None if value is None else ranges.get(value)

    for node in graph:
        if node.domain == "" and (range_ := _of_node(node, of)) is not None:
            ranges.update(dict.fromkeys(node.outputs, range_))
    return ranges


def _of_node(node: ir.Node, of: Callable[[ir.Value | None], Range | None]) -> Range | None:
    op, inputs = node.op_type, list(node.inputs)
    if op in ACTIVATIONS:
        return ACTIVATIONS[op]
    if op == "Add" and (ends := convex(node, of)):
        inputs, op = ends, "Concat"
    used = inputs[1:] if op == "Where" else inputs[:1] if op in DATA_MOVEMENT and op != "Concat" else inputs
    ranges = [range_ for range_ in map(of, used) if range_ is not None]
    if not used or len(ranges) < len(used):
        return None
    if op in ("Where", *DATA_MOVEMENT):
        return hull(ranges)
    if len(ranges) == 2 and op in ("Add", "Sub", "Mul"):
        ends_of = {"Add": lambda a, b: a + b, "Sub": lambda a, b: a - b, "Mul": lambda a, b: a * b}[op]
        return hull((e, e) for e in itertools.starmap(ends_of, itertools.product(*ranges)))
    return None


def convex(node: ir.Node, of: Callable[[ir.Value | None], Range | None]) -> list[ir.Value | None]:
    """a and b if an Add is a + z * (b - a) or (1 - z) * a + z * b with z in [0, 1]; else nothing."""

    def factors(value: ir.Value | None, op: str) -> list[tuple[ir.Value | None, ir.Value | None]]:
        producer = None if value is None else value.producer()
        if producer is None or producer.op_type != op or producer.domain:
            return []
        a, b = producer.inputs
        return [(a, b)] if op == "Sub" else [(a, b), (b, a)]

    def is_gate(value: ir.Value | None) -> bool:
        range_ = of(value)
        return range_ is not None and range_[0] >= 0 and range_[1] <= 1

    for a, product in (tuple(node.inputs), tuple(reversed(node.inputs))):
        for z, other in factors(product, "Mul"):
            if not is_gate(z):
                continue
            if any(end is a for _, end in factors(other, "Sub")):
                return [a, next(iter(factors(other, "Sub")))[0]]
            for keep, start in factors(a, "Mul"):
                if any(of(range_) == (1.0, 1.0) and gate is z for range_, gate in factors(keep, "Sub")):
                    return [start, other]
    return []
