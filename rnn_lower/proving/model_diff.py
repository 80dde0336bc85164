"""Field by field: nothing in a model has changed but its recurrent nodes and the weights that they alone used."""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.unknown_fields import UnknownFieldSet

from rnn_lower.errors import RnnLowerError
from rnn_lower.ir import protobuf
from rnn_lower.ir.schemas import DEFAULT_DOMAINS, version_of
from rnn_lower.ir.walk import is_quantized
from rnn_lower.modelio.document import Document
from rnn_lower.options import OP_TYPES, Dims
from rnn_lower.proving.inline import without_made_calls
from rnn_lower.shapes.shape_info import RESHAPES
from rnn_lower.transforms.strip_weights import inferred, sizes_of

MOVES = ("Cast", "Concat", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze")
"""What may be on the way from a weight to a recurrent node, and goes with it."""

_A = onnx.AttributeProto
_PARTS = ("g", "graphs", "t", "tensors", "sparse_tensor", "sparse_tensors")
_PLAIN = (_A.FLOAT, _A.FLOATS, _A.INT, _A.INTS, _A.STRING, _A.STRINGS)

Model = tuple[onnx.ModelProto, Path | None]
"""A model, with the folder that its external data is in."""


def only_recurrent_nodes_changed(
    before: Model, after: Model, *, opset: int | None = None, dims: Dims | None = None
) -> list[str]:
    """What differs between a model and its lowered form beyond what lowering is for; empty when nothing does.

    Emitted nodes are known by their metadata, new weights by being used by those alone. External data is compared by
    content, wherever it lies. opset, dims: what was asked for; with `opset` nodes of operators that have another
    version there may differ, and so may the order around them.
    """
    (old, old_folder), (new, new_folder) = before, after
    new = without_made_calls(new, old)
    fixed = set[str]()
    if dims:
        copy = onnx.ModelProto()
        copy.CopyFrom(old)
        copy = Document(copy, old_folder).fixed(dims).proto
        fixed = {one.name for one, other in zip(_declarations(old), _declarations(copy), strict=True) if one != other}
        old = copy
    versions = None if opset is None else (_default_opset(old), opset)
    context = _Context((old_folder, new_folder), versions, old, fixed)
    return list(context.models(old, new))


def _declarations(model: onnx.ModelProto) -> Iterator[onnx.ValueInfoProto]:
    """What is declared of values that are no inputs of the model."""
    for graph in protobuf.graphs_in(model.graph):
        yield from (*graph.value_info, *graph.output, *(graph.input if graph is not model.graph else ()))


def changed_files(
    before: str, after: str, *, opset: int | None = None, dims: Dims | None = None, converted: bool = False
) -> list[str]:
    """The same for two files. converted: the opset may be whatever a target has asked for."""
    pair = [(onnx.load(path, load_external_data=False), Path(path).absolute().parent) for path in (before, after)]
    old, new = (_default_opset(proto) for proto, _ in pair)
    if converted and opset is None and old != new:
        opset = new
    return only_recurrent_nodes_changed(pair[0], pair[1], opset=opset, dims=dims)


class _Context:
    """fixed: values of which a size has become a number, so that others may go that nothing confirms."""

    def __init__(
        self, folders: tuple[Path | None, Path | None], versions: tuple[int, int] | None, before: onnx.ModelProto,
        fixed: Set[str] = frozenset(),
    ) -> None:  # fmt: skip
        self._folders, self._versions, self._before, self._fixed = folders, versions, before, fixed

    def models(self, old: onnx.ModelProto, new: onnx.ModelProto) -> Iterator[str]:
        skipped = ["graph", "functions", "training_info"] + (["opset_import", "ir_version"] if self._versions else [])
        yield from _fields("model", old, new, skipped)
        yield from self.graphs("graph", old.graph, new.graph)
        if len(old.training_info) != len(new.training_info):
            yield "model: training_info has changed"
        for index, (a, b) in enumerate(zip(old.training_info, new.training_info, strict=False)):
            yield from _fields(f"training_info[{index}]", a, b, ["initialization", "algorithm"])
            for name in ("initialization", "algorithm"):
                yield from self.graphs(f"training_info[{index}].{name}", getattr(a, name), getattr(b, name))
        if len(old.functions) != len(new.functions):
            yield f"model: {len(old.functions)} functions before, {len(new.functions)} after"
        for a, b in zip(old.functions, new.functions, strict=False):
            inside = (
                self if self._versions is None else _Context(self._folders, (_default_opset(a), self._versions[1]), old)
            )
            path = f"function {a.domain}.{a.name}"
            yield from _fields(path, a, b, ["node", "attribute_proto"] + (["opset_import"] if self._versions else []))
            yield from inside.attributes(path, a.attribute_proto, b.attribute_proto)
            yield from inside.nodes(path, a, b)

    def graphs(self, path: str, old: onnx.GraphProto, new: onnx.GraphProto) -> Iterator[str]:
        listed = [tensor.name for tensor in old.initializer] if self._versions else []
        skipped = ["node", "initializer", "sparse_initializer", "value_info", "input", "output"]
        yield from _fields(path, old, new, skipped)
        yield from self.weights(path, old, new)
        yield from self.nodes(path, old, new)
        emitted = {name for node in new.node if _emitted(node) for name in node.output}
        known = {value.name for value in old.value_info}
        infos = [value for value in new.value_info if value.name in known or value.name not in emitted]
        infos_by_name = {value.name for value in infos}
        near = emitted | _above(new) | _reshaped(new, emitted) | self._fixed
        if self._versions is None:
            gone = {name for node in old.node for name in node.output} - {
                name for node in new.node for name in node.output
            }
            kept_infos = [value for value in old.value_info if value.name not in gone or value.name in infos_by_name]
            yield from _same(f"{path}: value_info", self._without_unsaid(kept_infos, infos, near), infos)
        bodies = {value.name for value in old.output} if old is not self._before.graph else set()
        yield from _same(f"{path}: output", self._without_unsaid(old.output, new.output, bodies or near), new.output)
        # From IR version 4 on an initializer that is an input too may be overridden, so conversion ends the listing.
        kept = [value for value in old.input if value.name not in listed or value.name in {v.name for v in new.input}]
        outer_names = {value.name for value in old.input} if bodies else set()
        yield from _same(f"{path}: input", self._without_unsaid(kept, new.input, outer_names), new.input)

    def _without_unsaid(
        self, old: Sequence[onnx.ValueInfoProto], new: Iterable[onnx.ValueInfoProto], near: Container[str]
    ) -> list[onnx.ValueInfoProto]:
        text = {info.name: info for info in new}
        return [
            info if text.get(info.name, info) == info else self._unsaid(info, text[info.name], near) for info in old
        ]

    def _unsaid(self, old: onnx.ValueInfoProto, new: onnx.ValueInfoProto, near: Container[str]) -> onnx.ValueInfoProto:
        """What is declared of a value, without sizes that were rightly taken back.

        Of those that emitted nodes take or give sizes may go that nothing confirms, and of others where one cannot be.
        """
        before, after = (info.type.tensor_type.shape.dim for info in (old, new))
        known = None if old.name in near else self._inferred.get(old.name)
        pairs = zip(before, known or (), strict=False)
        doubted = old.name in near or any(a.HasField("dim_value") and k not in (None, a.dim_value) for a, k in pairs)
        copy = onnx.ValueInfoProto()
        copy.CopyFrom(old)
        if not new.type.tensor_type.HasField("shape"):
            if old.name in near or (known is not None and len(known) != len(before)):
                copy.type.tensor_type.ClearField("shape")
            return copy
        for axis, (a, b) in enumerate(zip(before, after, strict=False)):
            if a.HasField("dim_value") and not b.HasField("dim_value") and doubted:
                copy.type.tensor_type.shape.dim[axis].ClearField("dim_value")
        return copy

    @functools.cached_property
    def _inferred(self) -> dict[str, list[int | None]]:
        """Shapes by name, as inference finds them without any annotation."""
        try:
            graphs = protobuf.graphs_in(inferred(self._before, follow=True).graph)
        except RnnLowerError:  # then nothing was taken back for what it would have found
            return {}
        found = {info.name: sizes_of(info) for graph in graphs for info in graph.value_info}
        return {name: sizes for name, sizes in found.items() if sizes is not None}

    def weights(self, path: str, old: onnx.GraphProto, new: onnx.GraphProto) -> Iterator[str]:
        pairs: list[tuple[dict[str, Any], dict[str, Any], Callable[[Any], list[onnx.TensorProto]]]] = [
            ({t.name: t for t in old.initializer}, {t.name: t for t in new.initializer}, lambda t: [t]),
            (
                {s.values.name: s for s in old.sparse_initializer},
                {s.values.name: s for s in new.sparse_initializer},
                lambda s: [s.values, s.indices],
            ),
        ]
        named = _named_by_training(self._before) if old is self._before.graph else set()
        used = set(_used(new)) | named
        inputs = {value.name for value in new.input}
        replaceable = _read_by_recurrent(old)
        used_by_others = set(_used(new, emitted=False))
        for there, here, parts in pairs:
            for name, tensor in there.items():
                if name not in here and name in used:
                    yield f"{path}: initializer '{name}' is missing, and used"
                elif name not in here and name not in replaceable:
                    yield f"{path}: initializer '{name}' is missing"
                elif name in here and not (
                    list(tensor.dims) == list(here[name].dims)
                    and all(map(self._same_tensor, parts(tensor), parts(here[name])))
                ):
                    yield f"{path}: initializer '{name}' has changed"
            for name in sorted(here.keys() - there.keys()):
                if name in inputs:
                    yield f"{path}: initializer '{name}' is new, and has the name of an input"
                elif name in used_by_others or name not in used:
                    yield f"{path}: initializer '{name}' is new, and no emitted node uses it"
            kept = [name for name in there if name in here]
            if kept != [name for name in here if name in there]:
                yield f"{path}: the order of the initializers has changed"

    def nodes(self, path: str, old: protobuf.Holder, new: protobuf.Holder) -> Iterator[str]:
        by_outputs = {tuple(node.output): node for node in new.node}
        needed, weights = set(_used(new)), _read_by_recurrent(old)
        by_others = set(_used(new, emitted=False))
        before = [node for node in old.node if not self._replaced(node, by_outputs, needed, weights)]
        there = {tuple(node.output) for node in before}
        after = [node for node in new.node if not _emitted(node) or tuple(node.output) in there]
        if self._versions is not None:
            before = [node for node in before if not self._converted(node)]
            names = {tuple(node.output) for node in before}
            after = [node for node in after if tuple(node.output) in names]
        if len(before) != len(after):
            yield f"{path}: {len(before)} other nodes before, {len(after)} after"
        emitted = (body for node in new.node if _emitted(node) for body in protobuf.graphs_of(node))
        for body in (inner for outer in emitted for inner in protobuf.graphs_in(outer)):
            if getattr(body, "sparse_initializer", ()):
                yield f"{path}: a body of an emitted node has sparse initializers"
        made = {name for node in old.node for name in node.output}
        for name in sorted({name for node in new.node if _emitted(node) for name in node.output if name} - made):
            if name in by_others:
                yield f"{path}: '{name}' has changed"
        for a, b in zip(before, after, strict=False):
            yield from self._node(f"{path}/{a.op_type} '{a.name or next(iter(a.output), '')}'", a, b)

    def _node(self, path: str, old: onnx.NodeProto, new: onnx.NodeProto) -> Iterator[str]:
        if all(map(_is_plain, old.attribute)) and _in_bytes(old) == _in_bytes(new):  # as most are
            return
        yield from _fields(path, old, new, ["attribute"])
        yield from self.attributes(path, old.attribute, new.attribute)

    def attributes(
        self, path: str, old: Sequence[onnx.AttributeProto], new: Sequence[onnx.AttributeProto]
    ) -> Iterator[str]:
        if [a.name for a in old] != [a.name for a in new]:
            yield f"{path}: the attributes differ"
        for a, b in zip(old, new, strict=False):
            yield from _fields(f"{path}.{a.name}", a, b, _PARTS)
            yield from self._parts(f"{path}.{a.name}", a, b)

    def _parts(self, path: str, a: onnx.AttributeProto, b: onnx.AttributeProto) -> Iterator[str]:
        if a.HasField("g") or b.HasField("g"):
            yield from self.graphs(path, a.g, b.g)
        sparse = [[p.sparse_tensor, *p.sparse_tensors] for p in (a, b)]
        if any(len(getattr(a, name)) != len(getattr(b, name)) for name in ("graphs", "tensors", "sparse_tensors")):
            yield f"{path}: the number of values differs"
            return
        for old, new in zip(a.graphs, b.graphs, strict=True):
            yield from self.graphs(path, old, new)
        if any(list(old.dims) != list(new.dims) for old, new in zip(*sparse, strict=True)):
            yield f"{path}: the shape differs"
        held = [[p.t, *p.tensors, *(part for one in own for part in (one.values, one.indices))]
                for p, own in zip((a, b), sparse, strict=True)]  # fmt: skip
        for old, new in zip(*held, strict=True):
            if not self._same_tensor(old, new):
                yield f"{path}: tensor '{old.name}' has changed"

    def _replaced(
        self, node: onnx.NodeProto, after: Mapping[Any, onnx.NodeProto], needed: set[str], weights: set[str]
    ) -> bool:
        """needed: names that are used afterwards.  weights: those that recurrent nodes read, or what moves them."""
        there = after.get(tuple(node.output))
        if is_recurrent(node):
            return there is None or there.op_type != node.op_type
        if there is not None or needed & set(node.output):
            return False
        return node.op_type == "Constant" or (_moves(node) and bool(weights & set(node.output)))

    def _converted(self, node: onnx.NodeProto) -> bool:
        """Whether the operator has another version at the other opset."""
        assert self._versions is not None
        if node.domain not in DEFAULT_DOMAINS:
            return False
        found = {version_of(node.op_type, opset) for opset in self._versions}
        return 0 not in found and len(found) > 1

    def _same_tensor(self, old: onnx.TensorProto, new: onnx.TensorProto) -> bool:
        inside = ["raw_data", "data_location", "external_data"]
        if not protobuf.is_external(old) and not protobuf.is_external(new):
            return _equal(old, new)
        if list(_fields("", old, new, inside)):
            return False
        return all(a == b for a, b in zip(*map(_pieces, (old, new), self._folders), strict=True))


def _pieces(tensor: onnx.TensorProto, folder: Path | None) -> Iterator[bytes]:
    """The data of a tensor, a few megabytes at a time."""
    size = 1 << 22
    if not protobuf.is_external(tensor):
        data = tensor.raw_data
        yield from (data[start : start + size] for start in range(0, len(data), size))
    elif folder is None:
        yield str(sorted((entry.key, entry.value) for entry in tensor.external_data)).encode()
    else:
        place = protobuf.locate(tensor, folder)
        with open(place.path, "rb") as file:
            file.seek(place.offset)
            for start in range(0, place.length, size):
                yield file.read(min(size, place.length - start))


def _fields(path: str, old: Any, new: Any, skipped: Iterable[str]) -> Iterator[str]:
    """The fields of two messages that differ, but for some; unknown fields are compared as bytes."""
    if _unknown_fields(old) != _unknown_fields(new):
        yield f"{path}: unknown fields have changed"
    for field in old.DESCRIPTOR.fields:
        if field.name in skipped:
            continue
        a, b = getattr(old, field.name), getattr(new, field.name)
        if (field.has_presence and old.HasField(field.name) != new.HasField(field.name)) or not _equal(a, b):
            yield f"{path}: {field.name} has changed"


def _unknown_fields(message: Any) -> list[tuple[int, int, str]]:
    """Number, wire type and data of the fields that this version of onnx does not know."""
    return [(field.field_number, field.wire_type, repr(field.data)) for field in UnknownFieldSet(message)]


def _equal(a: Any, b: Any) -> bool:
    """As messages are, but NaN is NaN, and 0 is not -0."""
    if hasattr(a, "SerializeToString"):
        return bool(a == b or _in_bytes(a) == _in_bytes(b))
    if hasattr(a, "__len__") and not isinstance(a, (str, bytes)):
        return len(a) == len(b) and all(map(_equal, a, b))
    return repr(a) == repr(b)


def _is_plain(attribute: onnx.AttributeProto) -> bool:
    """Whether it has neither bodies nor tensors, of which the same words may mean other data."""
    return attribute.type in _PLAIN


def _in_bytes(message: Any) -> bytes:
    return bytes(message.SerializeToString(deterministic=True))


def _same(subject: str, old: Iterable[Any], new: Iterable[Any]) -> Iterator[str]:
    if not _equal(list(old), list(new)):
        yield f"{subject} has changed"


def _above(graph: protobuf.Holder) -> set[str]:
    """What the emitted nodes of a graph and of its bodies are computed from, its nodes being in their order."""
    found: set[str] = set()
    for node in reversed(graph.node):
        inner = set().union(*map(_above, protobuf.graphs_of(node)))
        if inner or _emitted(node) or not found.isdisjoint(node.output):
            found |= {*node.input, *inner}
    return found


def _reshaped(graph: onnx.GraphProto, emitted: set[str]) -> set[str]:
    """What the nodes of a graph, in their order, make of emitted values by changing the shape alone."""
    found: set[str] = set()
    for node in graph.node:
        if node.op_type in RESHAPES and node.input and node.input[0] in emitted | found:
            found.update(node.output)
    return found


def _emitted(node: onnx.NodeProto) -> bool:
    return any(entry.key == "rnn_lower.node" for entry in node.metadata_props)


def _used(graph: protobuf.Holder, emitted: bool = True) -> Iterator[str]:
    """Names that nodes of a graph and its bodies take, or that it gives; emitted=False: those of other nodes only."""
    yield from (value if isinstance(value, str) else value.name for value in graph.output)
    for node in graph.node:
        if emitted or not _emitted(node):
            yield from node.input
        for body in protobuf.graphs_of(node):
            yield from _used(body, emitted) if emitted or not _emitted(node) else ()


def _read_by_recurrent(graph: protobuf.Holder) -> set[str]:
    """Names that recurrent nodes read, here and in bodies, and those of what moves them on the way."""
    names: set[str] = set()
    for node in graph.node:
        if is_recurrent(node):
            names.update(node.input)
        for body in protobuf.graphs_of(node):
            names |= _read_by_recurrent(body)
    for node in reversed(graph.node):
        if _moves(node) and names & set(node.output):
            names.update(node.input)
    return names


def is_recurrent(node: onnx.NodeProto) -> bool:
    """Whether it is an RNN, GRU or LSTM of ONNX."""
    own = node.op_type in OP_TYPES and node.domain in DEFAULT_DOMAINS
    return own or is_quantized(node)


def _moves(node: onnx.NodeProto) -> bool:
    """Whether a node only moves data."""
    return node.op_type in MOVES and node.domain in DEFAULT_DOMAINS


def _named_by_training(model: onnx.ModelProto) -> set[str]:
    """What training_info names of the main graph: the weights that it sets, and what its own graphs read."""
    names: set[str] = set()
    for info in model.training_info:
        for entry in (*info.initialization_binding, *info.update_binding):
            names |= {entry.key, entry.value}
        for graph in (info.initialization, info.algorithm):
            names.update(_used(graph))
    return names


def _default_opset(holder: onnx.ModelProto | onnx.FunctionProto) -> int:
    return next((entry.version for entry in holder.opset_import if entry.domain in DEFAULT_DOMAINS), 0)
