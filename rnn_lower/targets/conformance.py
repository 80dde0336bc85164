"""Holding nodes against the rules of a runtime, one by one: after every lowering, and for whole models."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator

import onnx_ir as ir

from rnn_lower.builder.constraints import Rules, Use, use_of
from rnn_lower.builder.tensor_info import UNKNOWN, Outline, answers, outline_of

Told = Callable[[ir.Value], Outline | None]
"""What is known of a value from elsewhere; None for what its node has to tell."""


@dataclasses.dataclass(frozen=True)
class Violation:
    """A node that a runtime does not take, and the rule, with its source where the target's file tells it."""

    node: ir.Node
    rule: str


class Holder:
    """Holds nodes of one opset against rules, in their order, bodies included."""

    def __init__(self, rules: Rules, opset: int, told: Told) -> None:
        self._rules, self._opset, self._told = rules, opset, told
        self._outlines: dict[ir.Value, Outline] = {}

    def broken(self, node: ir.Node) -> str | None:
        """The rule that a node, without its bodies, breaks. Nodes are asked about in the order in which they run."""
        bodies = [held.as_graph() for held in node.attributes.values() if held.type == ir.AttributeType.GRAPH]
        use = self._use(node, bodies)
        self._outlines.update(zip(node.outputs, use.outputs, strict=False))
        return self._rules.broken(use)

    def violations(self, nodes: Iterable[ir.Node]) -> Iterator[Violation]:
        """The nodes that break a rule."""
        for node in nodes:
            for held in node.attributes.values():
                if held.type == ir.AttributeType.GRAPH:
                    yield from self.violations(held.as_graph())
            rule = self.broken(node)
            if rule is not None:
                yield Violation(node, rule)

    def _use(self, node: ir.Node, bodies: list[ir.Graph]) -> Use:
        inputs = tuple(None if value is None else self._outline(value) for value in node.inputs)
        plain = {
            name: held.value for name, held in node.attributes.items()
            if held.type not in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) and not held.is_ref()
        }  # fmt: skip
        answered = answers(node.op_type, bodies, self._outline)
        use = use_of(node.op_type, self._opset, inputs, plain, answered, len(node.outputs))
        found = [*use.outputs, *[UNKNOWN] * (len(node.outputs) - len(use.outputs))]
        outputs = tuple(_fuller(self._told(value), one) for value, one in zip(node.outputs, found, strict=False))
        return dataclasses.replace(use, outputs=outputs)

    def _outline(self, value: ir.Value) -> Outline:
        own = outline_of(value)
        if own.constant:
            return own
        return _fuller(self._told(value), self._outlines.get(value) or own)


def _fuller(told: Outline | None, found: Outline) -> Outline:
    """What was told from elsewhere, unless it leaves sizes open that are found."""
    return found if told is None or (told.sizes is None and found.sizes is not None) else told
