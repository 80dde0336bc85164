"""Legalize the other nodes: replace those that the target does not support and the patterns can express.

This comes before lowering, so that `prove` can do the same with the original.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence

import onnx_ir as ir

from rnn_lower.builder.constants import ModelConstants
from rnn_lower.builder.graph_builder import GraphBuilder, detach
from rnn_lower.builder.names import Names
from rnn_lower.driver.plan import remove_unused
from rnn_lower.errors import UnsupportedError
from rnn_lower.ir.replacing import substitute
from rnn_lower.ir.schemas import DEFAULT_DOMAINS
from rnn_lower.ir.walk import Scope, computes_with_infinity, nodes, used_names
from rnn_lower.legalize.conformance import ConstraintChecker
from rnn_lower.legalize.legalizer import legalize_copy
from rnn_lower.loops.model import MARK
from rnn_lower.lowering.node import OPERATORS
from rnn_lower.options import Options
from rnn_lower.shapes.fixed_dims import FIXED
from rnn_lower.shapes.shape_info import ShapeInfo, declared_by
from rnn_lower.targeting import find_target, recorded, recorded_target
from rnn_lower.targeting.profile import Target
from rnn_lower.transforms.split_sequences import SEQUENCES, without_sequences

logger = logging.getLogger("rnn_lower")

LEGALIZED = "rnn_lower.legalized"
"""The metadata key of a model in which nodes other than recurrent ones were replaced. The metadata value has a line for
each time: the target, and ALL if not only nodes of rnn_lower were chosen."""

ALL = " --legalize-all"

STREAM, MADE = "rnn_lower.stream", "stream/"
"""The metadata key of a streaming model, and the start of the names of nodes that `stream` adds to it."""


def needs_legalization(model: ir.Model, options: Options) -> bool:
    """Whether there may be nodes for `legalize_rest`."""
    silent = find_target(options.target).constraints.silent
    return not silent and (options.legalize_all or any(_is_own(node, model) for node, _ in nodes(model)))


def _is_own(node: ir.Node, model: ir.Model) -> bool:
    """Whether unrolling or streaming added this node."""
    is_made = STREAM in model.metadata_props and (node.name or "").startswith(MADE)
    return MARK in node.metadata_props or is_made


def legalize_rest(model: ir.Model, options: Options) -> int:
    """Replace nodes with ones that the target supports, as far as possible: all nodes on request, else own ones.

    Returns the number of replaced nodes.
    """
    count = _legalize(model, target := find_target(options.target), options.legalize_all)
    if count:
        _record(model, f"{recorded(str(options.target))}{ALL if options.legalize_all else ''}")
        logger.info(
            "replaced %d other node%s with nodes that target %s supports", count, "s" * (count != 1), target.name
        )
    return count


def legalize_as(model: ir.Model, lines: Iterable[str]) -> None:
    """Replace nodes of a model in place as these lines of the metadata value state."""
    for line in lines:
        text = line.removesuffix(ALL)
        if _legalize(model, recorded_target(text), text != line):
            _record(model, line)


def _record(model: ir.Model, line: str) -> None:
    model.metadata_props[LEGALIZED] = "\n".join(filter(None, (model.metadata_props.get(LEGALIZED), line)))


def _legalize(model: ir.Model, target: Target, everything: bool) -> int:
    """Replace nodes, and return their number. everything: also those that rnn_lower did not make."""
    count, unsupported = 0, list(_unsupported(model, target, ShapeInfo(model)))
    if everything and any(node.op_type in SEQUENCES for node, *_ in unsupported):
        count = without_sequences(model)
        unsupported = list(_unsupported(model, target, ShapeInfo(model)))
    names = Names(used_names(model))
    constants = ModelConstants(model, names)
    fixed, read = model.meta.get(FIXED, {}), list[ir.Value | None]()
    for node, scope, checker in unsupported:
        if not (everything or _is_own(node, model)) or computes_with_infinity(node):
            continue
        name = node.name or node.op_type.lower()
        b = GraphBuilder(scope.opset, ir.DataType.FLOAT, names, constants.pool(scope), name)
        read += node.inputs
        count += _replace(node, checker, b, fixed)
    constants.register()
    remove_unused(value for value in read if value is not None)
    return count


def _unsupported(
    model: ir.Model, target: Target, shape_info: ShapeInfo
) -> Iterator[tuple[ir.Node, Scope, ConstraintChecker]]:
    """The nodes that the target does not support and that lowering did not emit."""
    checkers: dict[int, ConstraintChecker] = {}
    for node, scope in nodes(model):
        checker = checkers.setdefault(
            scope.opset, ConstraintChecker(target.constraints, scope.opset, declared_by(shape_info))
        )
        own = node.domain in DEFAULT_DOMAINS and node.op_type not in OPERATORS
        if own and checker.violation(node) is not None:
            yield node, scope, checker


def _replace(node: ir.Node, checker: ConstraintChecker, b: GraphBuilder, fixed: dict[ir.Value, None]) -> bool:
    """Replace a node if its patterns can express it; returns whether they can. fixed: see FIXED."""
    try:
        emitted, results = legalize_copy(node, b, checker)
    except UnsupportedError:
        return False
    results = _own_results(node, emitted, results)
    if any(checker.violation(new) is not None for new in emitted if new.op_type == "Identity"):
        detach(emitted)
        return False
    computed, renamed = {value for new in emitted for value in new.outputs}, {}
    for old, new in zip(node.outputs, results, strict=True):
        if new in computed and new not in renamed:
            renamed[new] = old
        else:  # a constant, or what the node reads, keeps its name
            old.replace_all_uses_with(new)
    fixed.update({new: fixed.pop(old) for new, old in renamed.items() if old in fixed})
    substitute([node], emitted, list(renamed.values()), list(renamed))
    return True


def _own_results(node: ir.Node, emitted: list[ir.Node], results: Sequence[ir.Value]) -> list[ir.Value]:
    """The results, with an Identity for a graph output that is also an input or another result."""
    computed, own = {value for new in emitted for value in new.outputs}, []
    for old, new in zip(node.outputs, results, strict=True):
        if old.is_graph_output() and (new not in computed or new in own):
            copy = ir.Node("", "Identity", [new], outputs=[ir.Value(type=old.type, shape=old.shape)])
            emitted.append(copy)
            own.append(copy.outputs[0])
        else:
            own.append(new)
    return own
