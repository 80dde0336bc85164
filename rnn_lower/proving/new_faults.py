"""Find faults of a lowered model that its original does not have, and that keep runtimes from loading it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import onnx

from rnn_lower.driver.plan import read_document
from rnn_lower.errors import RnnLowerError
from rnn_lower.ir import protobuf
from rnn_lower.ir.schemas import DEFAULT_DOMAINS, newest_opset, unfit
from rnn_lower.ir.walk import is_emitted, nodes
from rnn_lower.lowering.activations import ACTIVATIONS
from rnn_lower.lowering.node import display_name
from rnn_lower.modelio.document import Document
from rnn_lower.options import OP_TYPES
from rnn_lower.transforms.strip_weights import malformed, misdeclared, without_annotations

LOCATION = "location"

INLINED = "_inlfunc_"
"""How the names begin that onnxruntime gives when it inlines functions."""

IN_MEMORY = ("_ORT_MEM_ADDR_", "_ORT_NATIVE_ENDIAN_MEM_ADDR_")
"""The marks of data that onnxruntime holds in memory, instead of a file."""

FEW = 128
"""An INT64 tensor with fewer elements may contain sizes."""

EXTERNAL_KEYS = (LOCATION, "offset", "length", "checksum")
"""The keys of external data that onnxruntime accepts."""


def new_faults(old: Document, new: Document) -> list[str]:
    """Faults that keep some runtimes from loading the new model, and that the old one does not have as often."""
    faults = [
        text.format(name)
        for text, find in _FAULTS.items() for name in sorted(Counter(find(new.proto)) - Counter(find(old.proto)))
    ]  # fmt: skip
    escaping = sorted(_escaping_files(new) - _escaping_files(old))
    faults += [f"the data file of tensor '{name}' is a link that leads out of the model's folder" for name in escaping]
    error = _malformed(new)
    if error and _malformed(old):
        for document in (old, new):
            _ = document.model  # which sorts the outline: onnxruntime accepts any order, the checker does not
        error = _malformed(new)
        if _malformed(old):
            error = min(_unfit_nodes(new) - _unfit_nodes(old), default="")
    if error:
        return [*faults, f"onnx's checker reports that the new model is invalid: {error}"]
    if not faults and (invalid := _invalid_node(new)) and not _invalid_node(old):
        return [f"the new model is invalid: {invalid}"]
    error = "" if faults else new_misdeclaration(old.outline, new.outline)
    return [*faults, f"onnx's inference reports that the new model is invalid: {error}"] if error else faults


def _malformed(document: Document) -> str:
    """The first error that onnx's checker finds, or ""; that shapes are missing, which the checker refuses, is none."""
    outline = onnx.ModelProto.FromString(document.outline.SerializeToString())
    for graph in protobuf.graphs_in(outline.graph):
        for value in (*graph.input, *graph.output):
            if value.type.HasField("tensor_type"):
                value.type.tensor_type.shape.SetInParent()
    return malformed(outline)


def new_misdeclaration(old: onnx.ModelProto, new: onnx.ModelProto) -> str:
    """An error that strict inference finds only in the new outline, or ""; without declarations if both have errors."""
    wrong = misdeclared(new)
    if not wrong or not misdeclared(old):
        return wrong
    wrong = misdeclared(without_annotations(new))
    return "" if misdeclared(without_annotations(old)) else wrong


def _unfit_nodes(document: Document) -> set[str]:
    """The nodes of a model that do not fit the schemas of their operators, in words."""
    faults = ((node, unfit(node, scope.opset)) for node, scope in nodes(document.model))
    return {f"{node.op_type} '{display_name(node)}': {why}" for node, why in faults if why}


def _invalid_node(document: Document) -> str:
    """Why a recurrent node of a model is invalid or unknown, or ""."""
    try:
        read_document(document)
    except RnnLowerError as error:
        return str(error)
    return ""


def _refused_nodes(model: onnx.ModelProto) -> set[str]:
    """Recurrent nodes that onnxruntime refuses for an attribute, although ONNX does not, by output."""
    own = (node for holder in protobuf.holders(model) for node in holder.node if node.domain in DEFAULT_DOMAINS)
    refused = (node for node in own if node.op_type in OP_TYPES and _is_refused(node))
    return {name for node in refused for name in node.output if name}


def _is_refused(node: onnx.NodeProto) -> bool:
    attributes = {attribute.name: attribute for attribute in node.attribute}
    if node.op_type == "RNN":
        names = attributes["activations"].strings if "activations" in attributes else ()
        return "hidden_size" not in attributes or any(
            name.decode(errors="replace") not in ACTIVATIONS for name in names
        )
    return "hidden_size" not in attributes or ("clip" in attributes and attributes["clip"].f == 0)


def _inlined_names(model: onnx.ModelProto) -> set[str]:
    """Names that begin like those that onnxruntime gives when it inlines the functions of a model."""
    nodes = (node for holder in (protobuf.holders(model) if model.functions else ()) for node in holder.node)
    return {name for node in nodes for name in (node.name, *node.output) if name.startswith(INLINED)}


def _unknown_opsets(model: onnx.ModelProto) -> set[str]:
    """The imported opsets that onnx does not define."""
    versions = {each.version for each in model.opset_import if each.domain in DEFAULT_DOMAINS}
    return {str(version) for version in versions if not 1 <= version <= newest_opset()}


def _repeated_names(model: onnx.ModelProto) -> set[str]:
    """Names that several nodes of one graph have."""
    repeated = set[str]()
    for holder in protobuf.holders(model):
        names = Counter(node.name for node in holder.node if node.name)
        repeated.update(name for name, count in names.items() if count > 1)
    return repeated


def _declarations(model: onnx.ModelProto) -> Iterator[onnx.ValueInfoProto]:
    """The values that graphs and functions declare."""
    for holder in protobuf.holders(model):
        yield from holder.value_info
        yield from [] if isinstance(holder, onnx.FunctionProto) else [*holder.input, *holder.output]


def _untyped_values(model: onnx.ModelProto) -> list[str]:
    """Values that are declared without an element type, or as sequences although lowering emitted their node."""
    nodes = (node for holder in protobuf.holders(model) for node in holder.node if not is_emitted(node))
    unmarked = {name for node in nodes for name in node.output}
    declared = [(info.name, info.type) for info in _declarations(model) if info.HasField("type")]
    untyped = [name for name, kind in declared if not protobuf.innermost(kind).tensor_type.elem_type]
    return untyped + [name for name, kind in declared if not kind.HasField("tensor_type") and name not in unmarked]


def _negative_sizes(model: onnx.ModelProto) -> list[str]:
    """Values that are declared with a negative size."""
    shapes = ((info.name, info.type.tensor_type.shape.dim) for info in _declarations(model))
    return [name for name, dims in shapes if any(dim.dim_value < 0 for dim in dims)]


def _redeclared_values(model: onnx.ModelProto) -> list[str]:
    """Values that a body declares although an outer scope computes them; runtimes believe either declaration."""
    return [
        info.name for body in _bodies(model) for info in body.value_info
        if info.name not in {*(v.name for v in body.input), *(t.name for t in body.initializer),
                             *(name for node in body.node for name in node.output)}
    ]  # fmt: skip


def _read_too_early(model: onnx.ModelProto) -> list[str]:
    """Values that a node reads before another one computes them; of the main graph, runtimes sort the nodes."""
    return [name for holder in (*model.functions, *_bodies(model)) for name in read_early(holder)]


def read_early(graph: protobuf.Holder) -> set[str]:
    """The values that a node of a graph reads, also in its bodies, before another one computes them."""
    early, later = set[str](), {name for node in graph.node for name in node.output if name}
    for node in graph.node:
        early |= later & protobuf.names_read_by(node)
        later.difference_update(node.output)
    return early


def _redefined_values(model: onnx.ModelProto) -> set[str]:
    """Values of bodies in functions whose name the function also gives to a value of its own; onnxruntime refuses."""
    redefined = set[str]()
    for function in model.functions:
        own = {*function.input, *(name for node in function.node for name in node.output if name)}
        bodies = [
            inner for node in function.node for body in protobuf.graphs_of(node) for inner in protobuf.graphs_in(body)
        ]
        for body in bodies:
            redefined |= own & {
                *(value.name for value in body.input),
                *(name for node in body.node for name in node.output),
            }
    return redefined


def _unshaped_loop_inputs(model: onnx.ModelProto) -> list[str]:
    """Iteration numbers and conditions of Loops that do not declare their rank, which onnxruntime requires."""
    loops = (node for holder in protobuf.holders(model) for node in holder.node if node.op_type == "Loop")
    inputs = (info for node in loops for body in protobuf.graphs_of(node) for info in body.input[:2])
    return [info.name for info in inputs if not info.type.tensor_type.HasField("shape")]


def _ambiguous_tensors(model: onnx.ModelProto) -> set[str]:
    """Tensors with data in several fields, which the checker does not see in outlines."""
    fields = ("float_data", "int32_data", "int64_data", "uint64_data", "double_data", "string_data")
    counts = (
        (t.name, t.HasField("raw_data") + sum(len(getattr(t, f)) > 0 for f in fields)) for t in protobuf.tensors(model)
    )
    return {name for name, count in counts if count > 1}


def _unknown_keys(model: onnx.ModelProto) -> set[str]:
    """Tensors whose external data has a key of unknown meaning."""
    external = filter(protobuf.is_external, protobuf.tensors(model))
    return {tensor.name for tensor in external if not {entry.key for entry in tensor.external_data} <= {*EXTERNAL_KEYS}}


def _unnormal_paths(model: onnx.ModelProto) -> set[str]:
    """Tensors whose data file has a path with empty parts or dots, which onnxruntime may refuse."""
    external = filter(protobuf.is_external, protobuf.tensors(model))
    paths = ((t.name, entry.value) for t in external for entry in t.external_data if entry.key == LOCATION)
    return {name for name, path in paths if {"", ".", ".."} & {*path.split("/")[1:]}}


INFERRED: Mapping[str, Sequence[int]] = {
    **dict.fromkeys((f"Reduce{name}" for name in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod",
                                                  "Sum", "SumSquare")), (1,)),
    "ConstantOfShape": (0,), "Expand": (1,), "Pad": (1, 3), "Range": (0, 1, 2), "Reshape": (1,),
    "Resize": (2, 3), "Slice": (1, 2, 3, 4), "Split": (1,), "Squeeze": (1,), "Tile": (1,), "TopK": (1,),
    "Unsqueeze": (1,), "Upsample": (1,),
}  # fmt: skip
"""Operands of any type that runtimes read when they infer shapes."""


def _in_memory(model: onnx.ModelProto) -> set[str]:
    """Tensors whose data file has the name by which onnxruntime marks addresses of memory."""
    external = filter(protobuf.is_external, protobuf.tensors(model))
    entries = ((tensor.name, entry.value) for tensor in external for entry in tensor.external_data)
    return {name for name, text in entries if any(mark in text for mark in IN_MEMORY)}


def _external_sizes(model: onnx.ModelProto) -> list[str]:
    """Few integers, or operands of INFERRED, in a data file, which runtimes do not read when they infer shapes."""
    external = [tensor for tensor in protobuf.tensors(model) if protobuf.is_external(tensor)]
    nodes = (node for holder in (protobuf.holders(model) if external else ()) for node in holder.node)
    read = Counter(name for node in nodes for k in INFERRED.get(node.op_type, ()) for name in node.input[k : k + 1])
    few = [t.name for t in external if t.data_type == onnx.TensorProto.INT64 and math.prod(t.dims) < FEW]
    return few + [tensor.name for tensor in external for _ in range(read[tensor.name])]


def _escaping_files(document: Document) -> set[str]:
    """Tensors whose data file is a link out of the model's folder, which onnxruntime refuses."""
    folder = document.folder
    if folder is None:
        return set()
    external = filter(protobuf.is_external, protobuf.tensors(document.proto))
    files = [(t.name, folder / entry.value) for t in external for entry in t.external_data if entry.key == LOCATION]
    return {name for name, file in files if not file.resolve().is_relative_to(folder.resolve())}


def _bodies(model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    return (graph for holder in protobuf.holders(model) for node in holder.node for graph in protobuf.graphs_of(node))


def _unnamed_bodies(model: onnx.ModelProto) -> set[str]:
    """Nodes with a body that has no name, which onnxruntime requires, by output."""
    nodes = (node for holder in protobuf.holders(model) for node in holder.node)
    return {next(iter(node.output), "") for node in nodes if any(not body.name for body in protobuf.graphs_of(node))}


_FAULTS: Mapping[str, Callable[[onnx.ModelProto], Iterable[str]]] = {
    "onnxruntime refuses the attributes of the recurrent node that computes '{}'": _refused_nodes,
    "the model imports opset {}, which the installed onnx does not define": _unknown_opsets,
    "a body contains a declaration of '{}', but does not compute this value": _redeclared_values,
    "the declaration of '{}' has no tensor element type": _untyped_values,
    "the declaration of '{}' has a negative size": _negative_sizes,
    "tensor '{}' has data in several fields": _ambiguous_tensors,
    "a body in a function redefines '{}', a value of the function": _redefined_values,
    "the external data of tensor '{}' has an unknown key": _unknown_keys,
    "the path of the data file of tensor '{}' has empty parts or dots": _unnormal_paths,
    "onnxruntime takes the data file of tensor '{}' for an address in memory": _in_memory,
    "the data of tensor '{}', which may be sizes, is not in the file of the model": _external_sizes,
    "body input '{}' of a Loop declares no shape": _unshaped_loop_inputs,
    "a node of a body or a function reads '{}' before it is computed": _read_too_early,
    "a body of the node that computes '{}' has no name": _unnamed_bodies,
    "'{}' may be a name that onnxruntime gives when it inlines functions": _inlined_names,
    "several nodes have the name '{}'": _repeated_names,
}
