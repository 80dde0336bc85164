"""Names that are unique in the whole model: main graph, subgraphs and functions together."""

from __future__ import annotations

import onnx_ir as ir


class Names:
    """Hands out names that nothing in the model carries yet, in a deterministic order."""

    def __init__(self, model: ir.Model) -> None:
        self._taken: set[str] = set()
        self._next: dict[str, int] = {}
        self._take(model.graph)
        for function in model.functions.values():
            self._take(function)

    def _take(self, graph: ir.Graph | ir.Function) -> None:
        self._taken.update(value.name for value in graph.inputs if value.name)
        if isinstance(graph, ir.Graph):
            self._taken.update(graph.initializers)
        for node in graph:
            if node.name:
                self._taken.add(node.name)
            self._taken.update(value.name for value in node.outputs if value.name)
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
                    self._take(attribute.as_graph())
                elif attribute.type == ir.AttributeType.GRAPHS and not attribute.is_ref():
                    for body in attribute.as_graphs():
                        self._take(body)

    def unique(self, wanted: str) -> str:
        """`wanted` itself when it is free, else `wanted_1`, `wanted_2` ..."""
        name = wanted
        while name in self._taken:
            count = self._next.get(wanted, 1)
            self._next[wanted] = count + 1
            name = f"{wanted}_{count}"
        self._taken.add(name)
        return name
