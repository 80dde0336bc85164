"""The lowering as a rule set for the rewriter of onnxscript."""

from __future__ import annotations

import weakref
from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import MatchResult, RewriteRuleSet, pattern
from onnxscript.rewriter._rewrite_rule import ReplacementSubgraph  # not exported elsewhere
from typing_extensions import Unpack

from rnn_lower.driver.lower_pass import lower_model
from rnn_lower.driver.plan import Plan, Replacement
from rnn_lower.driver.suggestions import advised
from rnn_lower.errors import RnnLowerError, public
from rnn_lower.ir.walk import recurrent_nodes
from rnn_lower.options import Keywords, Options, takes_options
from rnn_lower.targeting import find_target


class LowerRecurrentRule(pattern.RewriteRule):  # type: ignore[misc]
    """Return the lowered nodes of a session for each matched node.

    A recurrent node has up to eight inputs and three outputs, each of which may be absent; the rule takes the node
    itself instead of listing all these patterns. The whole model is lowered at the first node that is met.
    """

    def __init__(self, options: Options) -> None:
        super().__init__(lambda op, x: op.LSTM(x), lambda op, x: op.Identity(x), name="LowerRecurrent")
        self.options = options
        self._replacements: weakref.WeakKeyDictionary[ir.Model, dict[ir.Node, Replacement | None]]
        self._replacements = weakref.WeakKeyDictionary()  # None: not chosen

    @public
    def try_rewrite(
        self, model: ir.Model, graph_or_function: ir.Graph | ir.Function, node: ir.Node, **_: Any
    ) -> ReplacementSubgraph | None:
        """The replacement of `node`, if the options select it."""
        if node.op_type not in self.options.op_types or node.domain != "":
            return None
        if node not in self._replacements.get(model, {}):
            self._replacements[model] = dict.fromkeys(node for node, _ in recurrent_nodes(model))
            replacements = advised(
                lambda: Plan(model, self.options).replacements, self.options, model.clone,
                lambda changed: lower_model(model.clone(), changed),
            )  # fmt: skip
            self._replacements[model].update((new.site.node.node, new) for new in replacements)
        new = self._replacements[model].get(node)
        if new is None:
            return None
        match = MatchResult()
        match.add_node(node)
        match.outputs.extend(new.old_values)
        return ReplacementSubgraph(match, new.new_values, new.nodes, [], [])


@takes_options
def rewrite_rules(**options: Unpack[Keywords]) -> RewriteRuleSet:
    """Return rules that lower RNN, GRU and LSTM nodes, for `onnxscript.rewriter.rewrite(..., pattern_rewrite_rules=)`.

    The options are those of `rnn_lower.lower` except `opset`, `dims` and `as_function`, because no rule changes a
    model. The rewriter does more than `rnn_lower.lower`: it propagates constants and renames clashing values
    everywhere.

    Raises the errors of `rnn_lower.lower`.
    """
    chosen = Options(**options)
    if chosen.opset is not None or chosen.dims or chosen.as_function:
        text = "for opset, dims and as_function, use rnn_lower.lower"
        raise RnnLowerError(f"rewrite rules replace only individual nodes; {text}")
    find_target(chosen.target)
    return RewriteRuleSet([LowerRecurrentRule(chosen)])
