"""The same lowering as a rule set for onnxscript's rewriter."""

from __future__ import annotations

import weakref
from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import MatchResult, RewriteRuleSet, pattern
from onnxscript.rewriter._rewrite_rule import ReplacementSubgraph

from rnn_lower.constants import ConstantPool
from rnn_lower.facts import Facts
from rnn_lower.lowering import lower_node
from rnn_lower.names import Names
from rnn_lower.node import OP_TYPES, read_node
from rnn_lower.passes import Options, Place, choose_form
from rnn_lower.targets import find_target


class LowerRecurrentRule(pattern.RewriteRule):  # type: ignore[misc]
    """Rewrites one operator.

    A recurrent node has up to eight inputs and three outputs, each of which may be absent; the rule reads the node
    itself instead of listing all these patterns.
    """

    def __init__(self, op_type: str, options: Options) -> None:
        super().__init__(lambda op, x: getattr(op, op_type)(x), lambda op, x: op.Identity(x), name=f"Lower{op_type}")
        self.op_type, self.options = op_type, options
        self._names: weakref.WeakKeyDictionary[ir.Model, Names] = weakref.WeakKeyDictionary()

    def try_rewrite(
        self, model: ir.Model, graph_or_function: ir.Graph | ir.Function, node: ir.Node, **_: Any
    ) -> ReplacementSubgraph | None:
        """What replaces `node`, when it is of this rule's operator."""
        if node.op_type != self.op_type or node.domain != "":
            return None
        in_function = isinstance(graph_or_function, ir.Function)
        opset = graph_or_function.opset_imports.get("", model.opset_imports.get("", 0))
        facts, target = Facts(model), find_target(self.options.target)
        read = read_node(node, opset, "function" if in_function else "graph", facts.shape, facts.dtype)
        if self.options.select is not None and not self.options.select(read):
            return None
        form = choose_form(Place(read, graph_or_function, opset), self.options.form, target)
        if model not in self._names:
            self._names[model] = Names(model)
        names = self._names[model]
        pool = ConstantPool(names, opset, as_nodes=in_function or model.ir_version < 4)
        lowered = lower_node(read, form, opset, names, pool, target.habits, self.options.max_nodes)
        match = MatchResult()
        match.add_node(node)
        match.outputs.extend(read.outputs[name] for name in lowered.outputs)
        return ReplacementSubgraph(match, list(lowered.outputs.values()), lowered.nodes, pool.initializers, [])


def rewrite_rules(options: Options | None = None) -> RewriteRuleSet:
    """A rule set that lowers RNN, GRU and LSTM nodes, for `onnxscript.rewriter.rewrite(..., pattern_rewrite_rules=)`.

    The rewriter does more than `rnn_lower.lower`: it propagates constants and renames clashing values everywhere.
    Raises as `rnn_lower.lower` does.
    """
    options = options or Options()
    return RewriteRuleSet([LowerRecurrentRule(op_type, options) for op_type in OP_TYPES])
