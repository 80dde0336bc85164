"""Each node of a whole model that a runtime does not take, by the same rules that lowering keeps to."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from rnn_lower.builder.tensor_info import TensorInfo
from rnn_lower.errors import RnnLowerError
from rnn_lower.ir.schemas import DEFAULT_DOMAINS
from rnn_lower.ir.walk import Scope, recurrent_nodes, scopes
from rnn_lower.legalize.conformance import ConstraintChecker
from rnn_lower.lowering.node import RecurrentNode, read_node
from rnn_lower.shapes.shape_info import Facts
from rnn_lower.targets import Target
from rnn_lower.targets.native_support import RIGHT, UNKNOWN


@dataclasses.dataclass(frozen=True)
class Finding:
    """A node that a runtime does not take.

    node: its name, or that of its first output.  op: operator.  where: the graph it lies in.
    rule: what it breaks, with the source where the target's file tells one.
    mend: for recurrent nodes what lowering comes to, else empty.
    lowering_mends: whether it replaces the node by nodes that are taken.
    """

    node: str
    op: str
    where: str
    rule: str
    mend: str = ""
    lowering_mends: bool = False


@dataclasses.dataclass(frozen=True)
class LintReport:
    """What a runtime does not take of a model. status: of the target, "measured" or "documented"."""

    target: str
    status: str
    findings: tuple[Finding, ...]
    nodes: int

    @property
    def ok(self) -> bool:
        """Whether the runtime takes all of it."""
        return not self.findings

    @property
    def data(self) -> dict[str, Any]:
        """For JSON."""
        return {"ok": self.ok, **dataclasses.asdict(self)}


Try = Callable[[RecurrentNode], str | None]
"""Lowers a recurrent node on a copy, for nothing but the error."""


def lint(model: ir.Model, target: Target, facts: Facts, attempt: Try) -> LintReport:
    """Hold every node of a model against a target's rules, and its recurrent nodes against what was measured."""
    recurrent = {node for node, _ in recurrent_nodes(model)}
    found: list[Finding] = []
    count = 0
    for scope in scopes(model):
        count += len(list(scope.graph))
        found += _plain(scope, target, facts, recurrent, model)
        for node in scope.graph:
            if node in recurrent:
                found += _recurrent(node, scope, target, facts, attempt)
    return LintReport(target.name, target.status, tuple(found), count)


def _plain(scope: Scope, target: Target, facts: Facts, recurrent: set[ir.Node], model: ir.Model) -> list[Finding]:
    def told(value: ir.Value) -> TensorInfo | None:
        shape = facts.shape(value)
        if shape is None:
            return None
        return TensorInfo(tuple(size if isinstance(size, int) else None for size in shape), facts.dtype(value))

    holder = ConstraintChecker(target.constraints, scope.opset, told)
    found = []
    for node in scope.graph:
        if node in recurrent or node.op_identifier() in model.functions:  # the nodes of a function are looked at
            continue
        if node.domain not in DEFAULT_DOMAINS:
            if target.constraints.takes is not None:
                rule = f"it takes operators of ONNX only, here one of {node.domain}"
                found.append(Finding(_name(node), node.op_type, scope.path, rule))
            continue
        rule_broken = holder.violation(node)
        if rule_broken is not None:
            found.append(Finding(_name(node), node.op_type, scope.path, rule_broken))
    return found


def _recurrent(node: ir.Node, scope: Scope, target: Target, facts: Facts, attempt: Try) -> list[Finding]:
    read = read_node(node, scope.opset, scope.path, facts)
    verdict = target.verdict(read)
    if verdict.kind in (RIGHT, UNKNOWN):  # what nobody has measured nobody knows to be refused
        return []
    error = attempt(read)
    mend = "lowering mends it" if error is None else error
    return [Finding(read.name, node.op_type, scope.path, verdict.why, mend, error is None)]


def _name(node: ir.Node) -> str:
    return node.name or next((value.name or "" for value in node.outputs), "")


def trial(lower: Callable[[RecurrentNode], object]) -> Try:
    """A lowering of one node, as what `lint` asks for."""

    def attempt(node: RecurrentNode) -> str | None:
        try:
            lower(node)
        except RnnLowerError as error:
            return str(error)
        return None

    return attempt
