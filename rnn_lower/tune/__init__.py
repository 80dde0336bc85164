"""Rewrites of the canonical graph that save time on a runtime, or without which it fails; its target file lists them.

A rewrite matches Scan, If, Transpose and elementwise nodes; it is independent of gates, directions and cells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import onnx_ir as ir

from rnn_lower.builder.graph_builder import GraphBuilder
from rnn_lower.tune.batched_directions import batch_directions
from rnn_lower.tune.broadcast_operands import copy_broadcast
from rnn_lower.tune.empty_scan import guard_empty_scan
from rnn_lower.tune.scan_step import (
    directions_outside,
    last_operation_outside,
    name_batch,
    product_per_activation,
    weights_in_body,
)
from rnn_lower.tune.transposed_weights import separate_dequantized, transpose_before_squeeze

Rewrite: TypeAlias = Callable[[GraphBuilder, Sequence[ir.Node]], dict[ir.Value, ir.Value]]
"""Rewrites the nodes of a builder; returns the new value for each replaced value."""

REWRITES: Mapping[str, Rewrite | None] = {
    "batch_directions": batch_directions,
    "product_per_activation": product_per_activation,
    "last_operation_outside": last_operation_outside,
    "directions_outside": directions_outside,
    "name_batch": name_batch,
    "guard_empty_scan": guard_empty_scan,
    "transpose_before_squeeze": transpose_before_squeeze,
    "separate_dequantized": separate_dequantized,
    "copy_broadcast": copy_broadcast,
    "weights_in_body": None,
}
"""The rewrites by name, in the order of application. The last one needs all nodes of a model (`weights_in_body`)."""


def tune(b: GraphBuilder, names: Sequence[str], results: Sequence[ir.Value]) -> list[ir.Value]:
    """Apply the named rewrites to the nodes of `b`; return the values that replace `results`."""
    values = list(results)
    for name, rewrite in REWRITES.items():
        if name in names and rewrite is not None:
            replaced = rewrite(b, list(b.nodes))
            values = [replaced.get(value, value) for value in values]
    if names:
        _sort(b)
    return values


def _sort(b: GraphBuilder) -> None:
    """Sort the nodes of `b`: rewrites insert nodes that read equal nodes or Constant nodes written later."""
    graph = ir.Graph((), (), nodes=b.nodes)
    graph.sort()
    b.nodes[:] = graph
    graph.remove(b.nodes)


__all__ = ["REWRITES", "tune", "weights_in_body"]
