"""The emitted nodes that compute some values, checked statically: schemas, names and element types."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import onnx_ir as ir

from rnn_lower.ir.schemas import schema_of, unfit
from rnn_lower.ir.walk import NODE_MARK, known_tensor, owner_of, subgraphs
from rnn_lower.proving.exact.call import OutOfScopeError, WrongError
from rnn_lower.proving.exact.element_types import DType, ElementTypes
from rnn_lower.proving.exact.interpreter import Graph
from rnn_lower.proving.nodes.emitted_uses import EMITTED
from rnn_lower.transforms.evaluate import computed_constants
from rnn_lower.transforms.strip_weights import UNSEEN


class Program(Graph):
    """The nodes that compute some values of a graph, in order, from the inputs of the replaced node.

    wanted: the values that replace the node's outputs.  unread: other values, computed only to check them.
    inputs: the non-constant values that the replaced node reads, with their element types.  dtype: of the node.
    visible: names in the enclosing scopes, which no body may redefine.
    constants: the values that constants alone compute.  dtypes: the element types of inputs and computed values.
    has_loop: whether a Loop may run no steps, and so leave sizes unknown.
    Raises WrongError if the nodes read any other value, OutOfScopeError for operators that lowering does not emit.
    """

    def __init__(
        self, wanted: Sequence[ir.Value], inputs: Mapping[ir.Value, DType], opset: int, dtype: DType = None,
        visible: Collection[str] = (), unread: Sequence[ir.Value] = (),
    ) -> None:  # fmt: skip
        nodes: list[ir.Node] = []
        super().__init__(nodes, wanted, opset)
        self.inputs = inputs
        done: set[ir.Node] = set()
        waiting: list[tuple[ir.Value, bool]] = [(value, True) for value in reversed([*unread, *wanted])]
        while waiting:
            value, first = waiting.pop()
            node = self._producer(value)
            if node is None or node in done:
                continue
            if first:
                self._check(node, frozenset(visible))
                waiting.append((value, False))
                waiting += [(needed, True) for needed in read_by(node)]
            else:
                done.add(node)
                nodes.append(node)
        self.has_loop = any(node.op_type == "Loop" for node in nodes)
        types = ElementTypes(inputs, dtype, opset)
        types.follow(nodes)
        for value in wanted:
            types.expect(value, dtype)
        self.dtypes = types.types
        self.constants = computed_constants((node, self.opset) for node in self.all_nodes)
        self.folded = self.constants.keys()

    def _producer(self, value: ir.Value) -> ir.Node | None:
        """Return the emitted node that computes a value, or None for inputs and constants."""
        if value in self.inputs or known_tensor(value) is not None:
            return None
        node = value.producer()
        if node is not None and NODE_MARK not in node.metadata_props and value in self.wanted:
            raise OutOfScopeError(
                f"the node that computes '{value.name}' has no rnn_lower metadata, so another tool must have"
                " rewritten it"
            )
        if node is None or NODE_MARK not in node.metadata_props:
            raise WrongError(f"the lowered node reads '{value.name}', which is not an input of the original node")
        if self.wanted and node.graph is not owner_of(self.wanted[0]):  # it would also run where the original does not
            raise WrongError(f"{node.op_type} '{node.name}' is in another graph than the node that it replaces")
        return node

    def _check(self, node: ir.Node, visible: frozenset[str]) -> None:
        """Check a node against its schema at this opset, and the names in its bodies against the enclosing scopes."""
        if node.domain != "" or node.op_type not in EMITTED:
            raise OutOfScopeError(
                f"the proof does not support operator {node.domain and node.domain + '.'}{node.op_type}"
            )
        if schema_of(node.op_type, self.opset) is None:
            raise WrongError(f"opset {self.opset} does not have operator {node.op_type}")
        wrong = unfit(node, self.opset)
        if any(attribute.is_ref() for attribute in node.attributes.values()):
            wrong = "it has an attribute that refers to an attribute of its function"
        elif not all(value.name for value in node.outputs):  # of a Split or a loop, onnxruntime crashes
            wrong = "it has an output without a name"
        elif node.inputs and node.inputs[-1] is None:  # which some runtimes do not accept
            wrong = "its last input is empty instead of omitted"
        elif UNSEEN in node.metadata_props:
            wrong = "it has an attribute of a type that the nodes written by lowering never have"
        if wrong:
            raise WrongError(f"{node.op_type} '{node.name}': {wrong}")
        for _, body in subgraphs(node):
            inputs = body.inputs[:1] if node.op_type == "Loop" else body.inputs  # onnxruntime overwrites these
            if passed := next((value for value in body.outputs if value in inputs), None):
                raise WrongError(
                    f"{node.op_type} '{node.name}' returns '{passed.name}', an input of its body, unchanged"
                )
            self._check_body(body, visible)

    def _check_body(self, body: ir.Graph, visible: frozenset[str]) -> None:
        values = (*body.inputs, *(out for node in body for out in node.outputs))
        own = [str(value.name) for value in values if value.name]
        again = next((name for name in own if name in visible), None)
        listed = next((value for value in body.initializers.values() if value in body.inputs), None)
        if again is not None or listed is not None:
            raise WrongError(f"a body defines '{again or listed.name}' again")  # type: ignore[union-attr]
        inside = visible | set(own) | body.initializers.keys()
        for node in body:
            self._check(node, inside)


def read_by(node: ir.Node) -> Iterator[ir.Value]:
    """The outer values that a node and its bodies read."""
    yield from (value for value in node.inputs if value is not None)
    for _, body in subgraphs(node):
        inside = {*body.inputs, *body.initializers.values(), *(out for inner in body for out in inner.outputs)}
        yield from (value for inner in body for value in read_by(inner) if value not in inside)
        yield from (value for value in body.outputs if value not in inside)
