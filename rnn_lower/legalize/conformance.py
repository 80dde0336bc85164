"""Check nodes against the constraints of a target: after every lowering, and for whole models."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence

import onnx_ir as ir

from rnn_lower.builder.constants import Constant
from rnn_lower.builder.tensor_info import UNKNOWN, TensorInfo, answers, frozen, inferred, info_of, of_body
from rnn_lower.ir.schemas import WITH_BODIES
from rnn_lower.ir.traits import ELEMENTWISE
from rnn_lower.ir.walk import NODE_MARK, subgraphs, upstream, with_bodies
from rnn_lower.legalize.constraints import NodeView, OpConstraints

COMMUTATIVE = ("Add", "Max", "Mean", "Min", "Mul", "Sum")
"""Operators that a runtime may compute in place of their first operand."""

WINDOWS = ("AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "LpPool", "MaxPool")
"""Operators whose results OpenCV keeps in a layout of its own."""

FUNCTIONS = frozenset(ELEMENTWISE) - {"Identity"}
"""Operators whose results OpenCV keeps in the layout of their operand, if it is the only one."""

LIST = (ir.SequenceType, ir.OptionalType)
"""The types of lists."""

Declared = Callable[[ir.Value], TensorInfo | None]
"""Returns the declared info of a value, or None to use the inferred one."""


@dataclasses.dataclass(frozen=True)
class Violation:
    """A node that a runtime does not support, and the constraint, with its source if the target's file has one."""

    node: ir.Node
    rule: str


class ConstraintChecker:
    """Checks nodes of one opset against constraints, in topological order, bodies included."""

    def __init__(self, constraints: OpConstraints, opset: int, declared: Declared) -> None:
        self.constraints, self.opset, self.declared = constraints, opset, declared
        self._infos: dict[ir.Value, TensorInfo] = {}

    def violation(self, node: ir.Node) -> str | None:
        """Return the constraint that a node, without its bodies, violates, or None. Call in topological order."""
        return self.constraints.broken(self.view(node))

    def violations(self, nodes: Iterable[ir.Node]) -> Iterator[Violation]:
        """Yield the nodes that violate a constraint."""
        for node in nodes:
            for _, body in subgraphs(node):
                yield from self.violations(body)
            rule = self.violation(node)
            if rule is not None:
                yield Violation(node, rule)

    def view(self, node: ir.Node) -> NodeView:
        """Return the view of a node that constraints check, and record the infos of its outputs."""
        bodies = [body for _, body in subgraphs(node)]
        inputs = tuple(None if value is None else self.info(value) for value in node.inputs)
        plain = {
            name: held.value for name, held in node.attributes.items()
            if held.type not in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) and not held.is_ref()
        }  # fmt: skip
        attributes, results = frozen(plain), answers(node.op_type, bodies, self.info)
        infos: Sequence[TensorInfo]
        if results is not None and node.op_type in WITH_BODIES:
            infos = of_body(node.op_type, inputs, results, plain.get("num_scan_inputs", 0))
        else:
            numbers = tuple((name, held) for name, held in attributes if not isinstance(held, ir.TensorProtocol))
            infos = inferred(node.op_type, self.opset, inputs, numbers, len(node.outputs))
        for value, info in zip(node.outputs, [*infos, *[UNKNOWN] * len(node.outputs)], strict=False):
            self._infos[value] = _fuller(self.declared(value), _fuller(info_of(value), info))
        outputs = tuple(map(self._infos.__getitem__, node.outputs))
        wrong = frozenset(name for name, is_in in BODIES.items() if any(is_in(node, body) for body in bodies))
        return NodeView(node.op_type, self.opset, inputs, attributes, outputs, wrong)

    def info(self, operand: ir.Value | Constant) -> TensorInfo:
        """Return the info of an operand: from its constant content, else declared, else inferred."""
        own = info_of(operand)
        if own.constant or isinstance(operand, Constant):
            return own
        declared = self.declared(operand)
        if operand in self._infos:
            return _fuller(declared, self._infos[operand])
        return own if declared is None else declared  # what is only declared, as of the states of a Loop, may be false


def _fuller(declared: TensorInfo | None, inferred: TensorInfo) -> TensorInfo:
    """Return the declared info, unless only the inferred one has a complete shape."""
    if declared is None or declared.shape is None or (declared.sizes is None and inferred.sizes is not None):
        return inferred
    return declared


def _is_zero(node: ir.Node) -> bool:
    """Whether a node multiplies by the number 0, which compilers fold."""
    return node.op_type == "Mul" and any(
        value is not None and info_of(value).content in ((0.0,), (0,)) for value in node.inputs
    )


def _overwrites(node: ir.Node, body: ir.Graph) -> bool:
    """Whether a Scan of the model has a sum or product whose first operand is an element of a scanned input.

    Also other elementwise operators of two of these. Emitted Scans have none: their recurrent products come first.
    """
    if node.op_type != "Scan" or NODE_MARK in node.metadata_props or not body.inputs:
        return False
    elements = set(body.inputs[len(node.inputs) - node.attributes["num_scan_inputs"].as_int() :])
    for inner in body:
        first, *others = inner.inputs or (None,)
        if first not in elements:
            continue
        if inner.op_type == "Identity":
            elements.update(inner.outputs)
        elif inner.op_type in COMMUTATIVE or (inner.op_type in ELEMENTWISE and not elements.isdisjoint(others)):
            return True
    return False


def _constant_state(node: ir.Node, body: ir.Graph) -> bool:
    """Whether a Scan carries a state that is independent of the inputs of its body."""
    if node.op_type != "Scan" or not body.outputs:
        return False
    scanned = node.attributes["num_scan_inputs"].as_int()
    scanned_values = set(body.inputs)
    for inner in body:
        if any(value in scanned_values for value in inner.inputs) and not _is_zero(inner):
            scanned_values.update(inner.outputs)
    return any(value not in scanned_values for value in body.outputs[: len(node.inputs) - scanned])


def _ends_with_window(node: ir.Node, branch: ir.Graph) -> bool:
    """Whether a branch of an If returns what a convolution or a pooling computes, or a function of its elements."""

    def operand(inner: ir.Node, _: int) -> Sequence[ir.Value | None]:
        return inner.inputs if inner.op_type in FUNCTIONS and len(inner.inputs) == 1 else ()

    makers = [value.producer() for value in upstream(branch.outputs, operand)]
    return node.op_type == "If" and any(maker is not None and maker.op_type in WINDOWS for maker in makers)


def _grows_list(node: ir.Node, body: ir.Graph) -> bool:
    """Whether a Loop adds elements to a list that is not empty at first."""
    lists = [first for first, state in zip(node.inputs, body.inputs, strict=False) if isinstance(state.type, LIST)]
    makers = [None if first is None else first.producer() for first in lists]
    return node.op_type == "Loop" and any(maker is None or maker.op_type != "SequenceEmpty" for maker in makers)


def _contains_scan(node: ir.Node, body: ir.Graph) -> bool:
    """Whether the body of a Scan contains another one."""
    return node.op_type == "Scan" and any(inner.op_type == "Scan" for inner in with_bodies(body))


BODIES = {
    "states": _constant_state, "in_place": _overwrites, "windows_last": _ends_with_window, "lists": _grows_list,
    "nested": _contains_scan,
}  # fmt: skip
"""By the key of a limit: whether a body contains what it refuses. (node, body) -> bool"""
