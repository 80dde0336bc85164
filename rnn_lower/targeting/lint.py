"""Find the nodes of a whole model that a runtime does not support, by the same constraints as in lowering."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from rnn_lower.errors import RnnLowerError
from rnn_lower.ir.schemas import DEFAULT_DOMAINS, LOOPS
from rnn_lower.ir.traits import MEASURING
from rnn_lower.ir.walk import SPARSE, Scope, comes_from, recurrent_functions, recurrent_nodes, scopes
from rnn_lower.legalize.conformance import ConstraintChecker
from rnn_lower.legalize.legalizer import can_legalize
from rnn_lower.lowering.node import RecurrentNode, display_name, read_node
from rnn_lower.shapes.fixed_dims import axis_name, declared_shapes
from rnn_lower.shapes.shape_info import NO_NAMES, ShapeInfo, declared_by
from rnn_lower.targeting import Target
from rnn_lower.targeting.native_support import RIGHT, UNKNOWN


@dataclasses.dataclass(frozen=True)
class Finding:
    """A node that a runtime does not support.

    node: its name, that of its first output, or that of an input of the model.  op: the operator, or INPUT.
    where: the graph that contains the node.
    rule: the violated rule, with its source if the target file names one.
    mend: for recurrent nodes the result of lowering, for others whether --legalize-all replaces the node, else empty.
    lowering_mends: whether lowering replaces the node with supported nodes.
    """

    node: str
    op: str
    where: str
    rule: str
    mend: str = ""
    lowering_mends: bool = False


@dataclasses.dataclass(frozen=True)
class LintReport:
    """The nodes of a model that a runtime does not support. status: of the target, "measured" or "documented"."""

    target: str
    status: str
    findings: tuple[Finding, ...]
    nodes: int

    @property
    def ok(self) -> bool:
        """Whether the runtime supports all nodes."""
        return not self.findings

    @property
    def data(self) -> dict[str, Any]:
        """The report as data for JSON."""
        return {"ok": self.ok, **dataclasses.asdict(self)}


INPUT = "input"
"""The `op` of findings about inputs of the model."""

LEGALIZES = "--legalize-all replaces this node"
INLINED = "lowering inlines the functions that contain recurrent nodes"

Lower = Callable[[RecurrentNode], object]
"""Lowers a copy of a recurrent node. Raises RnnLowerError if the node cannot be lowered."""


Mends = Callable[[], Mapping[str, tuple[str, bool]]]
"""Returns, by the name of each loop, its `mend` and `lowering_mends`."""


def lint(model: ir.Model, target: Target, shape_info: ShapeInfo, lower: Lower, mends: Mends = dict) -> LintReport:
    """Return all nodes of a model that a target does not support; recurrent nodes are checked against measurements."""
    count = sum(len(list(scope.graph)) for scope in scopes(model))
    findings = list(unsupported(model, target, shape_info, lower))
    loops = mends() if any(finding.op in LOOPS for finding in findings) else {}
    for index, finding in enumerate(findings):
        if finding.op in LOOPS and finding.node in loops:
            mend, serves = loops[finding.node]
            findings[index] = dataclasses.replace(finding, mend=mend, lowering_mends=serves)
    return LintReport(target.name, target.status, tuple(findings), count)


def unsupported(
    model: ir.Model, target: Target, shape_info: ShapeInfo, lower: Lower | None = None,
    known: Collection[ir.Node] = (),
) -> Iterator[Finding]:  # fmt: skip
    """Yield the nodes of a model that a target does not support.

    lower: tries to lower a recurrent node.  known: nodes that the target is known to support.
    """
    recurrent = {node for node, _ in recurrent_nodes(model)}
    others, inlined = recurrent | {*known}, recurrent_functions(model)
    calls = {name: name in inlined for name in model.functions}
    yield from _unnamed_sizes(model, target)
    yield from _lost_outputs(model, target, recurrent)
    for scope in scopes(model):
        yield from _plain(scope, target, shape_info, others, calls)
        for node in scope.graph:
            if node in recurrent:
                yield from _recurrent(node, scope, target, shape_info, lower)


def _unnamed_sizes(model: ir.Model, target: Target) -> Iterator[Finding]:
    """A finding for each input with a free size that has no name, if the target needs names."""
    for name, shape in declared_shapes(model).items() if target.named_sizes else ():
        open_axes = [axis for axis, size in enumerate(shape or ()) if size is None or size in NO_NAMES]
        if open_axes:
            why = f"{target.name} loads no model with an input that has a free size without a name"
            sizes = " ".join(f"{axis_name(name, axis)}=N" for axis in open_axes)
            yield Finding(name, INPUT, "main graph", why, f"name the sizes, or set them (--dim {sizes})")


def _lost_outputs(model: ir.Model, target: Target, recurrent: Collection[ir.Node]) -> Iterator[Finding]:
    """A finding for each output that the target does not return. recurrent: nodes that lowering replaces."""
    for value in model.graph.outputs:
        node, why = value.producer(), ""
        if target.own_outputs and (node is None or (len(node.outputs) > 1 and node not in recurrent)):
            why, mend = "does not come from a node with one output", "return an Identity of it"
        elif target.sizes_inside and _is_size(value):
            why, mend = "is int64 and computed from sizes", "return its Abs, int32 or floats"
        if why:
            name, op_type = (str(value.name), INPUT) if node is None else (display_name(node), node.op_type)
            rule = f"{target.name} does not return output '{value.name}', which {why}"
            yield Finding(name, op_type, "main graph", rule, mend)


def _is_size(value: ir.Value) -> bool:
    """Whether a value is int64 and computed from sizes; of an Abs, tract computes an ordinary integer."""
    node = value.producer()
    is_integer = node is not None and node.op_type != "Abs" and value.dtype == ir.DataType.INT64
    return is_integer and comes_from(value, MEASURING)


def summary(findings: Sequence[Finding], target: Target) -> str:
    """Return one line about the unsupported nodes of a lowered model, loops by name, or else about an input."""
    inputs, findings = ([one for one in findings if (one.op == INPUT) == is_input] for is_input in (True, False))
    if not findings:
        return f"input '{inputs[0].node}': {inputs[0].rule}; {inputs[0].mend}"
    names = [f"{one.op} '{one.node}'" for one in findings if one.op in LOOPS]
    counts = collections.Counter(one.op for one in findings if one.op not in LOOPS)
    text = [*names[:3], *([f"{len(names) - 3} more loops"] if len(names) > 3 else [])]
    text += [f"{count} {op}" for op, count in counts.most_common(6)]
    more = f" and {len(counts) - 6} more operators" if len(counts) > 6 else ""
    one, replaced = len(findings) == 1, sum(LEGALIZES in finding.mend for finding in findings)
    mend = f"; use --legalize-all to replace {'it' if one else f'{replaced} of them'}" if replaced else ""
    return (
        f"target {target.name} does not support {len(findings)} remaining "
        f"node{'' if one else 's'}: {', '.join(text)}{more}{mend}; run rnn-lower lint to see why"
    )


def _plain(
    scope: Scope, target: Target, shape_info: ShapeInfo, others: set[ir.Node],
    calls: Mapping[ir.OperatorIdentifier, bool],
) -> Iterator[Finding]:  # fmt: skip
    """The findings for the nodes of a graph but these others. calls: by function, whether lowering inlines it."""
    checker = ConstraintChecker(target.constraints, scope.opset, declared_by(shape_info))
    needs_shapes, in_body = target.output_shapes and isinstance(scope.graph, ir.Graph), scope.outer is not None
    for node in scope.graph:
        ends = [value for value in node.outputs if needs_shapes and value.is_graph_output() and value.shape is None]
        if bare := [value for value in ends if not in_body or value.type is not None]:
            why = f"{target.name} loads no model whose output '{bare[0].name}' declares no shape"
            yield Finding(display_name(node), node.op_type, scope.path, why, "declare the rank of the output")
        is_sparse = not target.sparse and any(value is not None and SPARSE in value.meta for value in node.inputs)
        if is_sparse:
            why = f"no test shows that {target.name} runs sparse initializers, of which this node reads one"
            yield Finding(display_name(node), node.op_type, scope.path, why, "store it as a dense tensor")
        if node in others:
            continue
        if node.op_identifier() in calls:  # whose nodes are looked at, too
            if not target.functions:
                why = f"no test shows that {target.name} runs calls of a model's functions"
                is_inlined = calls[node.op_identifier()]
                mend = INLINED if is_inlined else "onnx.inliner.inline_local_functions inlines it"
                yield Finding(display_name(node), node.op_type, scope.path, why, mend, is_inlined)
            continue
        rule: str | None
        if node.domain not in DEFAULT_DOMAINS:
            rule = target.constraints.unknown_operator(node.domain, node.op_type)
        else:
            rule = checker.violation(node)  # also for loops, because later nodes read their infos
            if node.op_type in LOOPS and node.op_type.lower() not in target.forms:
                rule = f"{node.op_type} is not supported"
        if rule is not None and not is_sparse:
            mends = node.domain in DEFAULT_DOMAINS and can_legalize(node, checker)
            mend = LEGALIZES if mends else ""
            yield Finding(display_name(node), node.op_type, scope.path, rule, mend)


def _recurrent(
    node: ir.Node, scope: Scope, target: Target, shape_info: ShapeInfo, lower: Lower | None
) -> Iterator[Finding]:
    read = read_node(node, scope.opset, scope.path, shape_info)
    verdict = target.verdict(read)
    if verdict.kind == RIGHT:
        return
    lowers, error = lower is not None, ""
    try:
        if lower is not None:
            lower(read)
    except RnnLowerError as failure:
        lowers, error = False, str(failure)
    if verdict.kind != UNKNOWN or error:  # an unmeasured node is reported only if lowering fails
        mend = "lowering replaces it" if lowers else error
        yield Finding(read.name, node.op_type, scope.path, verdict.why, mend, lowers)
