"""Basic validity of a model: data for all tensors, and a definition for every name."""

from __future__ import annotations

import collections
import graphlib
import math
from collections.abc import Iterable
from pathlib import Path

import onnx

from rnn_lower.errors import InvalidNodeError, RnnLowerError, UnsupportedError
from rnn_lower.ir import protobuf
from rnn_lower.ir.schemas import DEFAULT_DOMAINS, newest_opset, schema_of
from rnn_lower.ir.walk import content_key
from rnn_lower.options import OP_TYPES

_A = onnx.AttributeProto
_FIELDS = {
    _A.FLOAT: "f", _A.INT: "i", _A.STRING: "s", _A.TENSOR: "t", _A.GRAPH: "g", _A.SPARSE_TENSOR: "sparse_tensor",
    _A.TYPE_PROTO: "tp", _A.FLOATS: "floats", _A.INTS: "ints", _A.STRINGS: "strings", _A.TENSORS: "tensors",
    _A.GRAPHS: "graphs", _A.SPARSE_TENSORS: "sparse_tensors", _A.TYPE_PROTOS: "type_protos",
}  # fmt: skip
"""The field that holds the value of an attribute of each type."""
_MESSAGES = ("t", "g", "sparse_tensor", "tp")
_ELEMENT_TYPES = set(onnx.TensorProto.DataType.values())


MOST_EXPANDED = 1 << 22
"""The most nodes of a model whose functions are inlined; runtimes inline them, too."""

DEEPEST = 100
"""The most functions that call one another; the limit of onnxruntime."""

Around = collections.ChainMap[str, onnx.TensorProto | None]
"""Values that are visible in the bodies of a graph, with the tensor of an initializer, or LATER."""
LATER = onnx.TensorProto()
"""A placeholder for the outputs of nodes that have not been checked yet."""


def check(model: onnx.ModelProto, folder: Path | None) -> bool:
    """Check the validity of a model; return whether its nodes are in an executable order, which is not required.

    Raises RnnLowerError for tensors without data, InvalidNodeError for nodes that do not form a graph.
    """
    if not model.HasField("graph") or not model.opset_import:
        raise RnnLowerError(
            "not an ONNX model: it " + ("imports no opset" if model.HasField("graph") else "has no graph")
        )
    for holder in (model, *model.functions):
        for entry in holder.opset_import:
            if entry.domain in DEFAULT_DOMAINS and not 1 <= entry.version < 1 << 31:
                text = f"the model imports opset {entry.version} of the default domain, but the oldest opset is 1"
                raise UnsupportedError(text)
        check_imports((entry.domain, entry.version) for entry in holder.opset_import)
    for tensor in protobuf.tensors(model):
        protobuf.check_data(tensor, folder)
    check_functions(model)
    in_order = True
    functions = [(f"function {f.domain}.{f.name}", f, f.opset_import) for f in model.functions]
    for path, holder, imports in [("main graph", model.graph, model.opset_import), *functions]:
        _check_imports(path, holder, imports)
        in_order &= _graph(holder, path, Around(), folder)
    return in_order


def check_imports(imports: Iterable[tuple[str, int]]) -> None:
    """Raise RnnLowerError for two different opsets of the default domain; runtimes would use the last one."""
    versions = list(dict.fromkeys(version for domain, version in imports if domain in DEFAULT_DOMAINS))
    if len(versions) > 1:
        text = f"the model imports opsets {' and '.join(map(str, versions))} of the default domain"
        raise RnnLowerError(f"{text}, but runtimes use only the last entry of opset_import; remove the others")


def check_functions(model: onnx.ModelProto) -> None:
    """Raise RnnLowerError for functions that are no valid functions, or call each other too deeply."""
    keys = [(f.domain, f.name, f.overload) for f in model.functions]
    for domain, name, _ in keys:
        if domain in DEFAULT_DOMAINS and onnx.defs.has(name):
            raise RnnLowerError(
                f"function '{name}' of the default domain has the name of an operator, and runtimes differ in which of "
                "them they use; rename the function"
            )
    for (domain, name, _), count in collections.Counter(keys).items():
        if count > 1:
            raise RnnLowerError(f"function {domain}.{name} is defined {count} times")
    named = dict(zip(keys, model.functions, strict=True))
    for node in (node for holder in protobuf.holders(model) for node in holder.node if keys):
        called = named.get((node.domain, node.op_type, node.overload))
        for what in ("input", "output") if called is not None else ():
            given, known = len(getattr(node, what)), len(getattr(called, what))
            if given > known:
                text = f"a call of function {node.domain}.{node.op_type} has {given} {what}s"
                raise InvalidNodeError(f"{text}, but the function has {known}")
    calls = {key: _called(function) for key, function in named.items()}
    try:
        order = [
            *graphlib.TopologicalSorter({key: called.keys() & calls for key, called in calls.items()}).static_order()
        ]
    except graphlib.CycleError as error:
        domain, name, _ = min(error.args[1])
        raise RnnLowerError(f"function {domain}.{name} calls itself, directly or indirectly") from None
    sizes, depths = dict.fromkeys(order, 1), dict.fromkeys(order, 1)
    for key in order:
        sizes[key] = sum(count * sizes.get(called, 1) for called, count in calls[key].items())
        depths[key] = 1 + max((depths.get(called, 0) for called in calls[key]), default=0)
    if max(depths.values(), default=0) > DEEPEST:
        raise RnnLowerError(
            f"its functions call each other to a depth of {max(depths.values())}; the limit is {DEEPEST}"
        )
    expanded = sum(count * sizes.get(called, 1) for called, count in _called(model.graph).items())
    if expanded > MOST_EXPANDED:
        raise RnnLowerError(f"its functions expand to more than {MOST_EXPANDED:,} nodes, which is the limit")


def _called(holder: protobuf.Holder) -> collections.Counter[tuple[str, str, str]]:
    """How often a graph calls each operator and function."""
    nodes = (node for graph in protobuf.graphs_in(holder) for node in graph.node)
    return collections.Counter((node.domain, node.op_type, node.overload) for node in nodes)


def _check_imports(path: str, holder: protobuf.Holder, imports: Iterable[onnx.OperatorSetIdProto]) -> None:
    missing = all(entry.domain not in DEFAULT_DOMAINS for entry in imports)
    if missing and any(domain in DEFAULT_DOMAINS for domain, *_ in _called(holder)):
        raise RnnLowerError(
            f"{path} has nodes of the default domain, but imports no opset for it; add an entry to opset_import"
        )


def _check_values(graph: onnx.GraphProto, path: str) -> None:
    for kind, values in (("input", graph.input), ("output", graph.output), ("value", graph.value_info)):
        for value in values:
            dtype = value.type.tensor_type.elem_type if value.type.HasField("tensor_type") else 0
            if dtype not in _ELEMENT_TYPES:
                raise RnnLowerError(f"{path}: {kind} '{value.name}' has the unknown element type {dtype}")
    weights = [*(tensor.name for tensor in graph.initializer), *(s.values.name for s in graph.sparse_initializer)]
    for names in ([value.name for value in graph.input], weights):
        if "" in names:
            raise InvalidNodeError(f"{path}: an input or initializer has no name")
        if any(isinstance(name, bytes) for name in names):
            raise RnnLowerError(f"not an ONNX model: a name in {path} is not valid UTF-8")
        twice = [name for name, count in collections.Counter(names).items() if count > 1]
        if twice:
            raise InvalidNodeError(f"{path}: '{twice[0]}' is defined twice")


def _graph(graph: protobuf.Holder, path: str, around: Around, folder: Path | None) -> bool:
    """Whether the nodes of a graph or function are in order, also those of its bodies.

    around: the values of the enclosing graphs; empty for a main graph or function.
    """
    held = dict[str, onnx.TensorProto]()
    if isinstance(graph, onnx.FunctionProto):
        provided, outputs = set(graph.input), set(graph.output)
    else:
        _check_values(graph, path)
        held = {tensor.name: tensor for tensor in graph.initializer}
        sparse = [tensor.values.name for tensor in graph.sparse_initializer]
        provided, outputs = {*(value.name for value in graph.input), *held, *sparse}, {v.name for v in graph.output}
    for name, tensor in held.items():  # if two differ, either may be the one that onnxruntime uses
        if name in around and not _is_same(tensor, around[name], folder):
            raise InvalidNodeError(f"{path}: '{name}' is defined twice, here and in an outer scope")
    made = {name for node in graph.node for name in node.output if name}
    seen = around.new_child(dict.fromkeys(made, LATER) | {name: held.get(name) for name in provided})
    in_order = _nodes(graph.node, provided, path, seen, folder)
    outside = outputs - provided - made
    if outside and around:
        raise InvalidNodeError(f"{path} does not compute its output '{min(outside)}'")
    if not around and (free := outside.union(*map(protobuf.names_read_by, graph.node)) - provided - made - {""}):
        raise InvalidNodeError(f"{path} uses '{min(free)}', which is not defined")
    return in_order


def _is_same(tensor: onnx.TensorProto, twin: onnx.TensorProto | None, folder: Path | None) -> bool:
    """Whether two initializers have the same contents, in any field or file."""
    ours, theirs = (None if held is None else protobuf.as_ir(held, folder) for held in (tensor, twin))
    if ours is None or theirs is None:
        return bool(tensor == twin)
    return ours.dtype == theirs.dtype and content_key(ours.numpy()) == content_key(theirs.numpy())


def _check_results(node: onnx.NodeProto, body: onnx.GraphProto, path: str) -> None:
    """Raise InvalidNodeError for an If or Scan body that returns one value twice: undefined on onnxruntime 1.31."""
    names = [value.name for value in body.output]
    if node.op_type in ("If", "Scan") and len(set(names)) < len(names):
        twice = max(names, key=names.count)
        text = (
            f"its body returns '{twice}' twice, and onnxruntime may then return wrong results; return "
            "the output of an Identity node the second time"
        )
        raise InvalidNodeError(f"{_described(node, path)}: {text}")


def _check_loop(node: onnx.NodeProto, body: onnx.GraphProto, path: str) -> None:
    """Raise InvalidNodeError for a Loop that declares its counter or condition with several elements."""
    if node.op_type != "Loop" or node.domain not in DEFAULT_DOMAINS:
        return
    for value in (*body.input[:2], *body.output[:1]):
        sizes = [dim.dim_value if dim.HasField("dim_value") else 1 for dim in value.type.tensor_type.shape.dim]
        if math.prod(sizes) != 1:
            text = f"its body declares '{value.name}', the counter or condition, with shape {sizes} instead of []"
            raise InvalidNodeError(f"{_described(node, path)}: {text}")


def _described(node: onnx.NodeProto, path: str) -> str:
    return f"{node.op_type} '{node.name or next(iter(node.output), '')}' in {path}"


def _nodes(nodes: Iterable[onnx.NodeProto], provided: set[str], path: str, around: Around, folder: Path | None) -> bool:
    """Whether nodes are in order, also those of their bodies."""
    late: set[str] = set()
    computed: set[str] = set()
    in_order = True
    for node in nodes:
        _check_node(node, path)
        for body in protobuf.graphs_of(node):
            _check_results(node, body, path)
            _check_loop(node, body, path)
            in_order &= _graph(body, f"{path}/body of {node.op_type} '{node.name}'", around, folder)
        late |= protobuf.names_read_by(node) - provided - computed
        for name in node.output:
            if name and (name in computed or name in provided):
                raise InvalidNodeError(f"{node.op_type} '{node.name}' in {path}: '{name}' is defined twice")
            if name and around.parents.get(name, LATER) is not LATER:
                raise InvalidNodeError(
                    f"{_described(node, path)}: '{name}' is defined twice, here and in an outer scope"
                )
            if name:
                computed.add(name)
                around[name] = None
    return in_order and not late & computed


def _check_node(node: onnx.NodeProto, path: str) -> None:
    if bytes in map(type, (node.op_type, node.name, *node.input, *node.output)):
        raise RnnLowerError(f"not an ONNX model: a name in {path} is not valid UTF-8")
    text = _described(node, path)
    names = [attribute.name for attribute in node.attribute]
    if len(set(names)) < len(names):
        raise InvalidNodeError(f"{text}: attribute '{max(names, key=names.count)}' is set twice")
    is_whole = (node.input and node.output) or node.domain not in DEFAULT_DOMAINS
    schema = None if is_whole else schema_of(node.op_type, newest_opset())
    if schema is not None and not node.output and schema.min_output > 0:
        raise InvalidNodeError(f"{text} has no outputs")
    if schema is not None and not node.input and schema.min_input > 0 and node.op_type not in OP_TYPES:
        raise InvalidNodeError(f"{text} has no inputs")
    for attribute in node.attribute:
        own = _FIELDS.get(attribute.type)
        held = [field.name for field, _ in attribute.ListFields() if field.name in _FIELDS.values()]
        if attribute.ref_attr_name and held:
            contents = f"refers to '{attribute.ref_attr_name}' but also contains {', '.join(held)}"
            raise InvalidNodeError(f"{text}: attribute '{attribute.name}' {contents}")
        if attribute.ref_attr_name:
            continue
        if own is None or any(name != own for name in held) or (own in _MESSAGES and not held):
            kind = _A.AttributeType.Name(attribute.type)
            contents = ", ".join(held) or "nothing"
            raise InvalidNodeError(f"{text}: attribute '{attribute.name}' has type {kind} but contains {contents}")
    if node.op_type == "Constant" and node.domain in DEFAULT_DOMAINS and len(node.attribute) != 1:
        raise InvalidNodeError(f"{text} has {len(node.attribute)} attributes; a Constant must have exactly one")
