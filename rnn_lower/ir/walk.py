"""Traverse a model: main graph, functions and the bodies in them, each with its opset."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lower.ir.schemas import DEFAULT_DOMAINS, literal_of
from rnn_lower.ir.traits import DATA_MOVEMENT, ELEMENTWISE, FILLING, MEASURING
from rnn_lower.options import OP_TYPES, QUANTIZED

_HOLD_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
_HOLD_FLOATS = (ir.AttributeType.FLOAT, ir.AttributeType.FLOATS, ir.AttributeType.TENSOR)


def output_names(node: ir.Node) -> tuple[str, ...]:
    """The names of the outputs of a node, which identify it in its graph."""
    return tuple(value.name or "" for value in node.outputs)


@dataclasses.dataclass(frozen=True)
class Scope:
    """A graph or function, with its opset, path and outer scope.

    root: the main graph or the function that it lies in.  opset: of the default domain.
    path: for people, e.g. "main graph/then_branch of If 'x'".  outer: the scope of the node whose body it is.
    holder: that node's operator.
    """

    graph: ir.Graph | ir.Function
    root: ir.Graph | ir.Function
    opset: int
    path: str
    outer: Scope | None = dataclasses.field(default=None, repr=False, compare=False)
    holder: str = dataclasses.field(default="", repr=False, compare=False)

    @property
    def in_function(self) -> bool:
        return isinstance(self.root, ir.Function)

    def up_to(self, graph: ir.Graph | ir.Function | None) -> Iterator[ir.Graph | ir.Function]:
        """The graphs from this one outwards, up to the given one."""
        yield self.graph
        if self.outer is not None and self.graph is not graph:
            yield from self.outer.up_to(graph)

    def lies_in(self, op_type: str) -> bool:
        """Whether the scope is in a body of such a node."""
        return self.holder == op_type or (self.outer is not None and self.outer.lies_in(op_type))

    def bodies(self) -> Iterator[Scope]:
        """The scopes directly below this one."""
        for node in self.graph:
            yield from self.bodies_of(node)

    def bodies_of(self, node: ir.Node) -> Iterator[Scope]:
        """The scopes of the bodies of one node, in the order of `subgraphs`."""
        for attribute, body in subgraphs(node):
            text = f"{attribute} of {node.op_type} '{node.name or node.outputs[0].name}'"
            yield dataclasses.replace(self, graph=body, path=f"{self.path}/{text}", outer=self, holder=node.op_type)

    def walk(self) -> Iterator[tuple[ir.Node, Scope]]:
        """Every node in and below this scope; a node precedes those of its bodies."""
        for node in self.graph:
            yield node, self
            for body in self.bodies_of(node):
                yield from body.walk()


def roots(model: ir.Model) -> list[Scope]:
    """The main graph and the functions."""
    opset = default_opset(model.opset_imports) or 0
    functions = model.functions.values()
    return [
        Scope(model.graph, model.graph, opset, "main graph"),
        *(Scope(f, f, default_opset(f.opset_imports) or opset, f"function {f.domain}.{f.name}") for f in functions),
    ]


def scopes(model: ir.Model) -> Iterator[Scope]:
    """The main graph, the functions, and all nested bodies."""
    waiting = roots(model)
    while waiting:
        scope = waiting.pop()
        yield scope
        waiting += scope.bodies()


def nodes(model: ir.Model) -> Iterator[tuple[ir.Node, Scope]]:
    """Every node of a model with its scope."""
    for root in roots(model):
        yield from root.walk()


def recurrent_nodes(model: ir.Model, op_types: Sequence[str] = OP_TYPES) -> Iterator[tuple[ir.Node, Scope]]:
    """The RNN, GRU and LSTM nodes of the default domain, and quantized LSTMs."""
    quantized = "LSTM" in op_types
    for node, scope in nodes(model):
        is_recurrent = (node.op_type in op_types and node.domain == "") or (quantized and is_quantized(node))
        if is_recurrent and node.op_identifier() not in model.functions:
            yield node, scope


def is_quantized(node: ir.Node | onnx.NodeProto) -> bool:
    """Whether a node is onnxruntime's DynamicQuantizeLSTM."""
    return bool(node.op_type == QUANTIZED and node.domain == "com.microsoft")


def owner_of(value: ir.Value) -> ir.Graph | ir.Function | None:
    """The graph or function that contains the definition of a value."""
    producer = value.producer()
    return value.graph if producer is None else producer.graph


Operands = Callable[[ir.Node, int], Iterable[ir.Value | None]]
"""The values to go on with from an output of a node, given by its index."""


def upstream(values: Iterable[ir.Value | None], operands: Operands) -> Iterator[ir.Value]:
    """Yield values and what they are computed from, each once."""
    waiting, seen = list(values), set[ir.Value | None]([None])
    while waiting:
        value = waiting.pop()
        if value is None or value in seen:
            continue
        seen.add(value)
        yield value
        if (node := value.producer()) is not None:
            waiting += operands(node, value.index() or 0)


def comes_from(value: ir.Value | None, op_types: Container[str]) -> bool:
    """Whether such an operator computes a value, or what other nodes only move, join or change element by element."""

    def kept(node: ir.Node, _: int) -> Iterable[ir.Value | None]:
        joins = node.op_type == "Concat" or node.op_type in ELEMENTWISE
        return node.inputs if joins else node.inputs[:1] if node.op_type in DATA_MOVEMENT else ()

    producers = (each.producer() for each in upstream([value], kept))
    return any(node is not None and node.op_type in op_types for node in producers)


def get_attribute(node: ir.Node, name: str, kind: ir.AttributeType, default: Any) -> Any:
    """The value of an attribute, or the default; None if it is a reference or has another type."""
    attribute = node.attributes.get(name)
    if attribute is None:
        return default
    return attribute.value if attribute.type == kind and not attribute.is_ref() else None


def known_tensor(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The tensor of an initializer or Constant node, without reading its data; None for run-time values.

    A caller may override an initializer that is also a graph input, and training may update one, so they are unknown.
    """
    if value is None or value.is_graph_input():
        return None
    if value.const_value is not None:
        return None if TRAINED in value.meta else value.const_value
    node = value.producer()
    if node is None or node.op_type != "Constant" or node.domain != "" or len(node.attributes) != 1:
        return None
    (attribute,) = node.attributes.values()
    if attribute.name == "value" and attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
        return attribute.value  # type: ignore[no-any-return]  # as_tensor() checks a protocol, which is slow
    literal = literal_of(attribute)
    return None if literal is None else ir.tensor(literal)


def constant(value: ir.Value | None) -> np.ndarray | None:
    """The content of an initializer or Constant node, or None for computed values and inputs."""
    tensor = known_tensor(value)
    return None if tensor is None else np.asarray(tensor.numpy())


def content_key(array: np.ndarray) -> tuple[Any, ...]:
    """A key that arrays of one type, shape and content share; strings count by their text, not by their address."""
    return str(array.dtype), array.shape, tuple(array.ravel()) if array.dtype == object else array.tobytes()


def integers(
    node: ir.Node, name: str, index: int, array_of: Callable[[ir.Value], np.ndarray | None]
) -> list[int] | None:  # fmt: skip
    """Integers that are an attribute at some versions and an input at others; None if unknown."""
    if name in node.attributes:
        return list(node.attributes[name].value)
    value = node.inputs[index] if index < len(node.inputs) else None
    array = None if value is None else array_of(value)
    return None if array is None or array.dtype.kind not in "iu" else [int(number) for number in np.ravel(array)]


def has_infinite_attribute(node: ir.Node) -> bool:
    """Whether an attribute contains NaN or infinity."""
    return any(not _is_finite(attribute) for attribute in node.attributes.data.values())


def computes_with_infinity(node: ir.Node) -> bool:
    """Whether a node computes with NaN or infinity that an attribute contains, and not only copies it."""
    return node.op_type not in FILLING and has_infinite_attribute(node)


def _is_finite(attribute: ir.Attr) -> bool:
    if attribute.is_ref() or attribute.type not in _HOLD_FLOATS:
        return True
    array = np.asarray(attribute.value.numpy() if attribute.type == ir.AttributeType.TENSOR else attribute.value)
    return array.dtype.kind not in "fV" or bool(np.isfinite(array.astype(np.float64)).all())


def subgraphs(node: ir.Node) -> Iterator[tuple[str, ir.Graph]]:
    """The bodies of a node with the names of their attributes."""
    for attribute in node.attributes.data.values():  # the plain dict, because this runs many times for every node
        if attribute.type not in _HOLD_GRAPHS or attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.name, attribute.as_graph()
        else:
            for index, graph in enumerate(attribute.as_graphs()):
                yield f"{attribute.name}[{index}]", graph


def default_opset(imports: Mapping[str, int]) -> int | None:
    """The opset of the default domain, which has two names."""
    return imports.get("", imports.get("ai.onnx"))


def opset_of(holder: onnx.ModelProto | onnx.FunctionProto) -> int | None:
    """The opset of the default domain that a model or function imports."""
    return default_opset({entry.domain: entry.version for entry in holder.opset_import})


def plain_imports(imports: Mapping[str, int]) -> dict[str, int]:
    """The imports with one name for the default domain."""
    names = sorted(imports, reverse=True)  # the empty name comes last, and wins
    return {"" if name in DEFAULT_DOMAINS else name: imports[name] for name in names}


TRAINED = "rnn_lower.trained"
"""The key in the `meta` of a result that training_info reads, or weight that it sets, which onnx_ir does not model."""


def is_read(value: ir.Value) -> bool:
    """Whether a node, the caller or training_info reads a value."""
    return bool(value.uses()) or value.is_graph_output() or TRAINED in value.meta


NODE_MARK = "rnn_lower.node"
"""The metadata key of an emitted node; the value names the recurrent node that it partly replaces."""

SPARSE = "rnn_lower.sparse"
"""The key, in `meta`, of the value of a sparse initializer, whose content onnx_ir does not represent."""


def is_emitted(node: onnx.NodeProto) -> bool:
    """Whether lowering has emitted a node."""
    return any(entry.key == NODE_MARK for entry in node.metadata_props)


def recurrent_functions(model: ir.Model, op_types: Sequence[str] = OP_TYPES) -> set[ir.OperatorIdentifier]:
    """The functions that contain recurrent nodes, and all their callers."""
    found = (scope.root for _, scope in recurrent_nodes(model, op_types))
    return with_callers(model, {root.identifier() for root in found if isinstance(root, ir.Function)})


def with_callers(model: ir.Model, chosen: Collection[ir.OperatorIdentifier]) -> set[ir.OperatorIdentifier]:
    """These functions and all that call them, directly or not."""
    reaching = set(chosen)
    calls = {name: {node.op_identifier() for node in with_bodies(f)} for name, f in model.functions.items()}
    while callers := {name for name, called in calls.items() if called & reaching} - reaching:
        reaching |= callers
    return reaching


def with_bodies(nodes: Iterable[ir.Node]) -> Iterator[ir.Node]:
    """Yield each node, then, recursively, the nodes in its bodies."""
    for node in nodes:
        yield node
        for _, body in subgraphs(node):
            yield from with_bodies(body)


def consumed_values(node: ir.Node) -> Iterator[ir.Value]:
    """All values that a node and its bodies read."""
    for inner in with_bodies([node]):
        yield from (value for value in inner.inputs if value is not None)
        for _, body in subgraphs(inner):
            yield from body.outputs


def in_declared_rank(number: np.ndarray, value: ir.Value) -> np.ndarray:
    """A step's number or condition in the rank that the body of a Loop declares, as onnxruntime passes it."""
    return number.reshape((1,) * len(value.shape or ()))


def sources(result: ir.Value | None, through: Collection[str] | None = None) -> list[ir.Value]:
    """The graph inputs that a value depends on, perhaps through certain operators only, but not through shapes."""

    def read(node: ir.Node, index: int) -> Iterable[ir.Value | None]:
        if node.op_type in MEASURING:
            return ()
        branches = [body.outputs[index] for _, body in subgraphs(node)] if node.op_type == "If" else []
        return [*(node.inputs if through is None or node.op_type in through else ()), *branches]

    ends = upstream([result], read)
    return [value for value in ends if value.is_graph_input() and isinstance(value.type, ir.TensorType)]


def count_nodes(nodes: Iterable[ir.Node]) -> int:
    """The number of nodes, including those in bodies."""
    return sum(1 for _ in with_bodies(nodes))


def values(model: ir.Model) -> Iterator[ir.Value]:
    """All values of a model: graph inputs, initializers and node outputs, also in bodies."""
    for scope in scopes(model):
        yield from scope.graph.inputs
        if isinstance(scope.graph, ir.Graph):
            yield from scope.graph.initializers.values()
        for node in scope.graph:
            yield from node.outputs


def used_names(model: ir.Model) -> Iterator[str]:
    """The names of all values and nodes."""
    names = itertools.chain((value.name for value in values(model)), (node.name for node, _ in nodes(model)))
    return (name for name in names if name)
