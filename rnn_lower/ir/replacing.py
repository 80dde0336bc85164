"""Replace nodes in a graph, and keep what the model says of their values."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
from onnx_ir import convenience


def substitute(
    old: Sequence[ir.Node], new: Sequence[ir.Node], old_values: Sequence[ir.Value], new_values: Sequence[ir.Value],
    at: ir.Node | None = None,
) -> None:  # fmt: skip
    """Replace nodes of one graph; the new values get the names, types, shapes and metadata of the old ones.

    at: the old node behind which the new ones are inserted, by default the first one.
    """
    at = at or old[0]
    assert at.graph is not None
    convenience.replace_nodes_and_values(at.graph, at, old, new, old_values, new_values)
    for before, after in zip(old_values, new_values, strict=True):
        after.metadata_props.update(before.metadata_props)
        after.doc_string = after.doc_string or before.doc_string
