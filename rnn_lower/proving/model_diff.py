"""Compare two models message by message: only recurrent nodes and weights that only they used may change."""

from __future__ import annotations

import functools
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.unknown_fields import UnknownFieldSet

from rnn_lower.driver.legalize_rest import LEGALIZED
from rnn_lower.ir import protobuf
from rnn_lower.ir.schemas import DEFAULT_DOMAINS
from rnn_lower.ir.walk import is_emitted, is_quantized, values
from rnn_lower.modelio.document import Document
from rnn_lower.options import OP_TYPES
from rnn_lower.proving.inline import without_made_calls
from rnn_lower.proving.new_faults import read_early
from rnn_lower.shapes.shape_info import RESHAPES
from rnn_lower.transforms.fold import FOLDED
from rnn_lower.transforms.strip_weights import sizes_of

WEIGHT_PATH = ("Cast", "Concat", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze")
"""Operators between a weight and a recurrent node, which lowering may remove together with the node."""

OWN_KEYS = (FOLDED, LEGALIZED)
"""The metadata keys with which rewritings of a whole model are recorded."""

_A = onnx.AttributeProto
_PLAIN = (_A.FLOAT, _A.FLOATS, _A.INT, _A.INTS, _A.STRING, _A.STRINGS)
_OF_GRAPHS = ("node", "initializer", "sparse_initializer", "value_info", "input", "output")
_DATA = ("raw_data", "data_location", "external_data")

Model = tuple[onnx.ModelProto, Path | None]
"""A model and the folder of its external data."""


def only_recurrent_nodes_changed(before: Model, after: Model) -> list[str]:
    """The differences between a model and its lowered form, apart from the recurrent nodes.

    Emitted nodes are recognized by their metadata, new weights by their users. External data is compared by content,
    not by location.
    """
    (old, old_folder), (new, new_folder) = before, after
    return list(_Diff((old_folder, new_folder), old).messages("", old, without_made_calls(new, old)))


def frame_changes(before: Model, after: Model) -> list[str]:
    """The differences between two models apart from their nodes, weights and the values between nodes."""
    (old, old_folder), (new, new_folder) = before, after
    return list(_Diff((old_folder, new_folder), old).frames(old, new))


class _Diff:
    def __init__(self, folders: tuple[Path | None, Path | None], before: onnx.ModelProto) -> None:
        self._folders, self._before = folders, before

    def messages(self, path: str, old: Any, new: Any, skipped: Sequence[str] = ()) -> Iterator[str]:
        """The differences between two messages of one type; unknown fields are compared as bytes."""
        if isinstance(old, onnx.NodeProto) and all(map(_is_plain, old.attribute)) and _in_bytes(old) == _in_bytes(new):
            return
        if isinstance(old, onnx.TensorProto) and not skipped:
            if not self._same_tensor(old, new):
                yield f"{path}: tensor '{old.name}' has changed"
            return
        in_training = path.startswith("training_info")  # lowering leaves its nodes, and no proof follows them
        if isinstance(old, (onnx.GraphProto, onnx.FunctionProto)) and not skipped and not in_training:
            yield from self.graphs(path, old, new)
            return
        if _unknown_fields(old) != _unknown_fields(new):
            yield f"{path or 'model'}: unknown protobuf fields have changed"
        for field in old.DESCRIPTOR.fields:
            if field.name in skipped:
                continue
            a, b = getattr(old, field.name), getattr(new, field.name)
            field_path = f"{path}/{field.name}" if path else field.name
            if field.has_presence and old.HasField(field.name) != new.HasField(field.name):
                yield f"{path or 'model'}: {field.name} has changed"
            elif field.message_type is None:
                if not _equal(a, b):
                    yield f"{path or 'model'}: {field.name} has changed"
            elif not hasattr(a, "__len__"):
                yield from self.messages(field_path, a, b) if old.HasField(field.name) else ()
            elif len(a) != len(b):
                yield f"{field_path}: the number of entries has changed"
            else:
                for index, pair in enumerate(zip(a, b, strict=True)):
                    yield from self.messages(f"{field_path}[{index}]", *pair)

    def frames(self, old: onnx.ModelProto, new: onnx.ModelProto) -> Iterator[str]:
        """The differences between two models whose graphs may compute the same in other ways with the same weights."""
        yield from self.messages("", old, new, ["graph", "functions", "metadata_props"])
        if old.training_info:
            yield "model: it has training_info, which refers to values that may have changed"
        if not _equal(*([each for each in m.metadata_props if each.key not in OWN_KEYS] for m in (old, new))):
            yield "model: metadata_props has changed"
        yield from self.messages("graph", old.graph, new.graph, _OF_GRAPHS)
        tensors = {tensor.name: tensor for tensor in new.graph.initializer}
        for tensor in old.graph.initializer:
            if any(self.messages("", tensor, tensors.get(tensor.name, tensor))):
                yield f"graph: initializer '{tensor.name}' has changed"
        for name in ("input", "output"):
            infos, there = getattr(old.graph, name), {info.name: info for info in getattr(new.graph, name)}
            pairs = [(info, there.get(info.name, info)) for info in infos]
            kept = [_common_sizes(a, a if name == "input" else b) for a, b in pairs]
            new_kept = [_common_sizes(b, b if name == "input" else a) for a, b in pairs]
            if list(there) != [info.name for info in infos] or not _equal(kept, new_kept):
                yield f"graph: {name} has changed"
        known = {(function.domain, function.name, function.overload): function for function in old.functions}
        for function in new.functions:  # lowering may have inlined the others
            before = known.get((function.domain, function.name, function.overload))
            if before is None:
                yield f"model: function '{function.name}' is new"
            else:
                yield from self.messages(f"function '{function.name}'", before, function, ["node", "value_info"])

    def graphs(self, path: str, old: protobuf.Holder, new: protobuf.Holder) -> Iterator[str]:
        """The differences between two graphs or functions, apart from recurrent nodes and their weights."""
        yield from self.nodes(path, old, new)
        if isinstance(old, onnx.FunctionProto) or isinstance(new, onnx.FunctionProto):
            yield from self.messages(path, old, new, ["node"])
            return
        yield from self.messages(path, old, new, _OF_GRAPHS)
        yield from self.weights(path, old, new)
        emitted = {name for node in new.node if is_emitted(node) for name in node.output}
        known = {value.name for value in old.value_info}
        weights = {tensor.name: tensor for tensor in new.initializer}
        own = emitted - {name for node in old.node for name in node.output if is_emitted(node)}
        own -= {value.name for value in new.output}  # whose declaration there counts
        infos = [
            value for value in new.value_info
            if value.name in known or not (value.name in own or _repeats(value, weights.get(value.name)))
        ]  # fmt: skip
        gone = _defined(old) - _defined(new)
        gone -= {value.name for value in infos}
        old_infos = [value for value in old.value_info if value.name not in gone]
        near = emitted | _upstream(new) | _reshaped(new, emitted)
        in_body = old is not self._before.graph
        inputs, outputs = ({value.name for value in ends if in_body} for ends in (old.input, old.output))
        for name, before, after, free in (
            ("value_info", old_infos, infos, near), ("output", old.output, new.output, outputs),
            ("input", old.input, new.input, inputs),
        ):  # fmt: skip
            if not _equal(self._verified_infos(before, after, free), list(after)):
                yield f"{path}: {name} has changed"

    def _verified_infos(
        self, old: Sequence[onnx.ValueInfoProto], new: Sequence[onnx.ValueInfoProto], near: Container[str]
    ) -> list[onnx.ValueInfoProto]:
        """The old declarations, without sizes that lowering had reason to drop: near emitted nodes, or unverified."""
        text = {info.name: info for info in new}
        names = [[info.name for info in infos] for infos in (old, new)]  # of which a body may return one twice
        pairs = zip(old, new if names[0] == names[1] else [text.get(info.name, info) for info in old], strict=True)
        return [
            a if a == b or not (a.name in near or a.name in self._unverified) else _without_sizes(a, b)
            for a, b in pairs
        ]

    @functools.cached_property
    def _unverified(self) -> set[str]:
        """The values whose declared sizes inference does not find."""
        before = Document(self._before, self._folders[0])
        return {str(v.name) for v in values(before.model) if not before.shape_info.is_verified(v)}

    def _trained(self, graph: protobuf.Holder) -> set[str]:
        """The names of a graph that training_info reads."""
        return protobuf.named_by_training(self._before) if graph is self._before.graph else set()

    def weights(self, path: str, old: onnx.GraphProto, new: onnx.GraphProto) -> Iterator[str]:
        """The differences between initializers; those that only recurrent nodes read may be replaced.

        The proofs of emitted nodes compare the data of those that only such nodes read in the lowered model, unless
        they were emitted before.
        """
        there, here = _initializers(old), _initializers(new)
        trained = self._trained(old)
        used = {*_used(new), *trained}
        inputs, replaceable = {value.name for value in new.input}, _read_by_recurrent(old)
        used_by_others = {*_used(new, emitted=False), *_read_by_emitted(old)}
        protected = used_by_others | inputs | trained
        for key, tensor in there.items():
            name, counterpart = key[1], here.get(key)
            if counterpart is None and name in used:
                yield f"{path}: initializer '{name}' is missing, although it is used"
            elif counterpart is None and name not in replaceable:
                yield f"{path}: initializer '{name}' is missing"
            elif counterpart is not None:
                is_own = name in (used & replaceable) - protected
                if any(self.messages("", tensor, counterpart, _DATA if is_own else ())):
                    yield f"{path}: initializer '{name}' has changed"
        for _, name in sorted(here.keys() - there.keys()):
            if name in inputs:
                yield f"{path}: initializer '{name}' is new and has the name of an input"
            elif name in used_by_others or name not in used:
                yield (
                    f"{path}: the new initializer '{name}' is unused, or is also used by nodes that lowering "
                    "did not add"
                )
        if [key for key in there if key in here] != [key for key in here if key in there]:
            yield f"{path}: the order of the initializers has changed"

    def nodes(self, path: str, old: protobuf.Holder, new: protobuf.Holder) -> Iterator[str]:
        """The differences between nodes that are neither replaced nor emitted."""
        by_outputs = {tuple(node.output): node for node in new.node}
        needed, weights = {*_used(new), *self._trained(old)}, _read_by_recurrent(old)
        before = [node for node in old.node if not _replaced(node, by_outputs, needed, weights)]
        there = {tuple(node.output) for node in before}
        after = [node for node in new.node if not is_emitted(node) or tuple(node.output) in there]
        if len(before) != len(after):
            yield (
                f"{path}: the number of nodes that lowering must keep has changed from {len(before)} to {len(after)}"
            )
        if read_early(old):  # lowering sorts such a graph
            places = {tuple(node.output): place for place, node in enumerate(before)}
            after.sort(key=lambda node: places.get(tuple(node.output), len(places)))
        emitted = (body for node in new.node if is_emitted(node) for body in protobuf.graphs_of(node))
        for body in (inner for outer in emitted for inner in protobuf.graphs_in(outer)):
            if getattr(body, "sparse_initializer", ()):
                yield f"{path}: a body of an emitted node has sparse initializers"
        old_outputs, read_names = {name for node in old.node for name in node.output}, set(_used(new, emitted=False))
        for name in sorted(
            {name for node in new.node if is_emitted(node) for name in node.output if name} - old_outputs
        ):
            if name in read_names:
                yield f"{path}: an emitted node redefines '{name}', which other nodes read"
        for a, b in zip(before, after, strict=False):
            yield from self.messages(f"{path}/{a.op_type} '{a.name or next(iter(a.output), '')}'", a, b)

    def _same_tensor(self, old: onnx.TensorProto, new: onnx.TensorProto) -> bool:
        if not protobuf.is_external(old) and not protobuf.is_external(new):
            return _equal(old, new)
        if any(self.messages("", old, new, _DATA)):
            return False
        return all(a == b for a, b in zip(*map(_pieces, (old, new), self._folders), strict=True))


def _replaced(
    node: onnx.NodeProto, after: Mapping[Any, onnx.NodeProto], needed: set[str], weights: set[str]
) -> bool:  # fmt: skip
    """The nodes that lowering replaced. needed: names used afterwards.  weights: names that recurrent nodes read."""
    there = after.get(tuple(node.output))
    if is_recurrent(node):
        return there is None or there.op_type != node.op_type
    if there is not None or needed & set(node.output):
        return False
    return node.op_type == "Constant" or (_moves(node) and bool(weights & set(node.output)))


def _initializers(graph: onnx.GraphProto) -> dict[tuple[str, str], Any]:
    """The initializers by kind and name."""
    dense = {("dense", tensor.name): tensor for tensor in graph.initializer}
    return {**dense, **{("sparse", sparse.values.name): sparse for sparse in graph.sparse_initializer}}


def _pieces(tensor: onnx.TensorProto, folder: Path | None) -> Iterator[bytes]:
    """The data of a tensor, in pieces of a few megabytes."""
    size = 1 << 22
    if not protobuf.is_external(tensor):
        data = tensor.raw_data
        yield from (data[start : start + size] for start in range(0, len(data), size))
    elif folder is None:
        yield str(sorted((entry.key, entry.value) for entry in tensor.external_data)).encode()
    else:
        location = protobuf.locate(tensor, folder)
        with open(location.path, "rb") as file:
            file.seek(location.offset)
            for start in range(0, location.length, size):
                yield file.read(min(size, location.length - start))


def _unknown_fields(message: Any) -> list[tuple[int, int, str]]:
    """The number, wire type and data of each field that the installed onnx does not know."""
    return [(field.field_number, field.wire_type, repr(field.data)) for field in UnknownFieldSet(message)]


def _equal(a: Any, b: Any) -> bool:
    """Whether two messages are equal; NaN equals NaN, and 0 differs from -0."""
    if hasattr(a, "SerializeToString"):
        return bool(a == b or _in_bytes(a) == _in_bytes(b))
    if hasattr(a, "__len__") and not isinstance(a, (str, bytes)):
        return len(a) == len(b) and all(map(_equal, a, b))
    return repr(a) == repr(b)


def _is_plain(attribute: onnx.AttributeProto) -> bool:
    """Whether an attribute contains neither bodies nor tensors, whose equal bytes may refer to different data."""
    return attribute.type in _PLAIN


def _in_bytes(message: Any) -> bytes:
    return bytes(message.SerializeToString(deterministic=True))


def _upstream(graph: protobuf.Holder) -> set[str]:
    """The values that the emitted nodes of a graph and its bodies are computed from."""
    sources: set[str] = set()
    for node in reversed(graph.node):
        inner = set().union(*map(_upstream, protobuf.graphs_of(node)))
        if inner or is_emitted(node) or not sources.isdisjoint(node.output):
            sources |= {*node.input, *inner}
    return sources


def _reshaped(graph: onnx.GraphProto, emitted: set[str]) -> set[str]:
    """The values that the nodes of a graph derive from emitted values by reshaping only."""
    reshaped: set[str] = set()
    for node in graph.node:
        if node.op_type in RESHAPES and node.input and node.input[0] in emitted | reshaped:
            reshaped.update(node.output)
    return reshaped


def _repeats(info: onnx.ValueInfoProto, tensor: onnx.TensorProto | None) -> bool:
    """Whether a declaration repeats the type and shape of a weight."""
    kind = info.type.tensor_type
    return tensor is not None and kind.elem_type == tensor.data_type and sizes_of(info) == list(tensor.dims)


def _without_sizes(old: onnx.ValueInfoProto, new: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    """The old declaration, without sizes that the new one lacks."""
    copy = onnx.ValueInfoProto()
    copy.CopyFrom(old)
    dims, new_type = copy.type.tensor_type.shape.dim, new.type.tensor_type
    for dim, new_dim in zip(dims, new_type.shape.dim, strict=False):
        kind = dim.WhichOneof("value")
        if kind is not None and new_dim.WhichOneof("value") is None:
            dim.ClearField(kind)
    if not new_type.HasField("shape"):
        copy.type.tensor_type.ClearField("shape")
    return copy


def _common_sizes(info: onnx.ValueInfoProto, other: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    """A declaration with only the type and sizes that both have; the proof of whole models compares actual shapes."""
    copy = onnx.ValueInfoProto()
    copy.CopyFrom(info)
    if other is not info:
        copy.ClearField("metadata_props")  # in which optimizers record what they folded
    if not other.HasField("type"):
        copy.ClearField("type")
    elif info.type.HasField("tensor_type") and not other.type.tensor_type.HasField("shape"):
        copy.type.tensor_type.ClearField("shape")
    for dim, its_dim in zip(copy.type.tensor_type.shape.dim, other.type.tensor_type.shape.dim, strict=False):
        if not (dim.HasField("dim_value") and its_dim.HasField("dim_value")):
            dim.Clear()
    return copy


def _defined(graph: onnx.GraphProto) -> set[str]:
    """The names of the values that nodes compute or initializers hold."""
    return {name for node in graph.node for name in node.output} | {tensor.name for tensor in graph.initializer}


def _used(graph: protobuf.Holder, emitted: bool = True) -> Iterator[str]:
    """The names that a graph, its nodes and bodies use. emitted=False: without names that only emitted nodes use."""
    yield from (value if isinstance(value, str) else value.name for value in graph.output)
    for node in graph.node:
        if emitted or not is_emitted(node):
            yield from node.input
        for body in protobuf.graphs_of(node):
            yield from _used(body, emitted) if emitted or not is_emitted(node) else ()


def _read_by_emitted(graph: protobuf.Holder) -> Iterator[str]:
    """The names that emitted nodes read, also in bodies."""
    for node in graph.node:
        yield from node.input if is_emitted(node) else ()
        for body in protobuf.graphs_of(node):
            yield from _used(body) if is_emitted(node) else _read_by_emitted(body)


def _read_by_recurrent(graph: protobuf.Holder) -> set[str]:
    """The names that recurrent nodes read, also in bodies and through nodes that move data."""
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
    """Whether a node is an RNN, GRU or LSTM of the default domain."""
    own = node.op_type in OP_TYPES and node.domain in DEFAULT_DOMAINS
    return own or is_quantized(node)


def _moves(node: onnx.NodeProto) -> bool:
    """Whether a node only moves data."""
    return node.op_type in WEIGHT_PATH and node.domain in DEFAULT_DOMAINS
