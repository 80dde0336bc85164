"""Rewrites of the canonical graph that were measured to save time on a runtime; the runtime's target file names them.

A rewrite knows Scan, If and elementwise nodes; it knows no gate, no direction and no cell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import onnx_ir as ir

from rnn_lower.builder.graph_builder import GraphBuilder
from rnn_lower.tune.empty_scan import guard_empty_scan
from rnn_lower.tune.named_batch import name_batch
from rnn_lower.tune.scan_step import last_operation_outside, product_per_activation
from rnn_lower.tune.weights import weights_in_body

Rewrite: TypeAlias = Callable[[GraphBuilder, Sequence[ir.Node]], dict[ir.Value, ir.Value]]
"""Changes what a builder has written; returns what took the place of which value."""

REWRITES: Mapping[str, Rewrite | None] = {
    "product_per_activation": product_per_activation,
    "last_operation_outside": last_operation_outside,
    "name_batch": name_batch,
    "guard_empty_scan": guard_empty_scan,
    "weights_in_body": None,
}
"""By name, in the order in which they apply. The last one looks at all nodes of a model, see `weights_in_body`."""


def tune(b: GraphBuilder, names: Sequence[str], results: Sequence[ir.Value]) -> list[ir.Value]:
    """Rewrite what `b` has written by the rewrites of these names; returns what takes the place of `results`."""
    values = list(results)
    for name, rewrite in REWRITES.items():
        if name in names and rewrite is not None:
            replaced = rewrite(b, list(b.nodes))
            values = [replaced.get(value, value) for value in values]
    return values


__all__ = ["REWRITES", "tune", "weights_in_body"]
