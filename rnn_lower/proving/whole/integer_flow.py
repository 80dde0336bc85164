"""The values of a model whose elements or sizes depend on its integer and boolean inputs."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from rnn_lower.ir.traits import MEASURING, SIZED_BY
from rnn_lower.ir.walk import consumed_values, subgraphs


class IntegerFlow:
    """A forward data-flow analysis. elements: values whose elements depend on the inputs; sizes: whose shape does."""

    def __init__(self, model: ir.Model) -> None:
        inputs = model.graph.inputs
        self.elements = {value for value in inputs if value.dtype is not None and not value.dtype.is_floating_point()}
        self.sizes: set[ir.Value] = set()
        count = -1
        while count != (count := len(self.elements) + len(self.sizes)):  # until stable: loops carry states back
            self._graph(model.graph)

    def _graph(self, graph: Iterable[ir.Node]) -> None:
        for node in graph:
            bodies = [body for _, body in subgraphs(node)]
            for body in bodies:
                self._enter(node, body)
                self._graph(body)
            self._leave(node, bodies)

    def _enter(self, node: ir.Node, body: ir.Graph) -> None:
        """Propagate dependences of a node's operands, or of carried states, to the inputs of its body."""
        operands = node.inputs[1:] if node.op_type == "Loop" else node.inputs
        inputs = body.inputs[1:] if node.op_type == "Loop" else body.inputs
        for flow in (self.elements, self.sizes):
            flow |= {inner for inner, outer in zip(inputs, operands, strict=False) if outer in flow}
        first = 1 if node.op_type == "Loop" else 0  # the first body output is the condition
        states = zip(body.inputs[first:], body.outputs, strict=False) if node.op_type in ("Loop", "Scan") else ()
        for state, result in states:
            for flow in (self.elements, self.sizes):
                flow |= {state} if result in flow else set()

    def _leave(self, node: ir.Node, bodies: list[ir.Graph]) -> None:
        """Propagate dependences of a node's operands, or of its bodies' outputs, to its outputs."""
        sized = any(node.inputs[k] in self.elements for k in SIZED_BY.get(node.op_type, ()) if k < len(node.inputs))
        if not bodies:
            read = {*consumed_values(node)}
            if read & (self.sizes if node.op_type in MEASURING else self.elements):
                self.elements |= {*node.outputs}
            if (sized or read & self.sizes) and node.op_type not in MEASURING:
                self.sizes |= {*node.outputs}
            return
        first = 1 if node.op_type == "Loop" else 0
        for body in bodies:
            for outer, inner in zip(node.outputs, body.outputs[first:], strict=False):
                self.elements |= {outer} if sized or inner in self.elements else set()
                self.sizes |= {outer} if sized or inner in self.sizes else set()
