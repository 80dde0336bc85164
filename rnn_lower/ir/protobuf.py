"""Find all tensors of a protobuf model, and check that their data exists, in the model or in external files."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, TypeAlias

import onnx
import onnx_ir as ir

from rnn_lower.errors import RnnLowerError

Holder: TypeAlias = "onnx.GraphProto | onnx.FunctionProto"
EXTERNAL = onnx.TensorProto.EXTERNAL


@dataclasses.dataclass(frozen=True)
class Place:
    """A range of bytes in a file."""

    path: Path
    offset: int
    length: int


def graphs_of(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The bodies of a node."""
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            yield from [attribute.g] if attribute.HasField("g") else attribute.graphs


def graphs_in(holder: Holder) -> Iterator[Holder]:
    """A graph or function, and all nested bodies."""
    waiting: list[Holder] = [holder]
    while waiting:
        graph = waiting.pop()
        yield graph
        waiting += [body for node in graph.node if node.attribute for body in graphs_of(node)]


def holders(model: onnx.ModelProto) -> Iterator[Holder]:
    """The main graph, every function, and every body in them."""
    for root in (model.graph, *model.functions):
        yield from graphs_in(root)


def names_of(holder: Holder) -> set[str]:
    """All names in a graph, without those of its bodies."""
    found = {name for node in holder.node for name in (*node.input, *node.output)}
    if isinstance(holder, onnx.GraphProto):
        found |= {value.name for value in (*holder.input, *holder.output, *holder.initializer)}
    return found


def all_names_of(holder: Holder) -> set[str]:
    """All names in a graph and its bodies."""
    return set[str]().union(*map(names_of, graphs_in(holder)))


def names_read_by(node: onnx.NodeProto) -> set[str]:
    """The names that a node reads, also those that its bodies read from outside."""
    names = {*node.input}
    for body in graphs_of(node):
        inner = {value.name for value in body.output}.union(*map(names_read_by, body.node))
        own = {*(value.name for value in body.input), *(tensor.name for tensor in body.initializer)}
        own |= {tensor.values.name for tensor in body.sparse_initializer}
        names |= inner - own - {name for each in body.node for name in each.output}
    return names


def named_by_training(model: onnx.ModelProto) -> set[str]:
    """The names that training_info uses outside of its own graphs: weights that it sets, and values that it reads."""
    names = set[str]()
    for info in model.training_info:
        for entry in (*info.initialization_binding, *info.update_binding):
            names |= {entry.key, entry.value}
        for graph in (info.initialization, info.algorithm):
            names |= {value.name for value in graph.output}
            names |= {name for holder in graphs_in(graph) for node in holder.node for name in node.input}
    return names


def trained_weights(model: onnx.ModelProto) -> set[str]:
    """The names of the weights that training_info sets."""
    bindings = ((*info.initialization_binding, *info.update_binding) for info in model.training_info)
    return {entry.key for entries in bindings for entry in entries}


def rename(graph: onnx.GraphProto, names: Mapping[str, str], declared: bool = True) -> None:
    """Rename the values of nodes, also in bodies. declared: also rename graph inputs and outputs."""
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        for body in graphs_of(node):
            rename(body, names)
    for value in (*graph.input, *graph.output, *graph.value_info) if declared else ():
        value.name = names.get(value.name, value.name)


def remove_if(messages: MutableSequence[Any], unwanted: Callable[[Any], bool]) -> bool:
    """Delete messages from a repeated field without copying the others; returns whether any were deleted."""
    indices = [index for index, message in enumerate(messages) if unwanted(message)]
    for index in reversed(indices):
        del messages[index]
    return bool(indices)


def tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor: initializers, sparse ones, and those in attributes, of graphs, functions and training."""
    others = [graph for info in model.training_info for graph in (info.initialization, info.algorithm)]
    for attribute in (each for function in model.functions for each in function.attribute_proto):
        others += [attribute.g] if attribute.HasField("g") else attribute.graphs
    for holder in itertools.chain(holders(model), *map(graphs_in, others)):
        defaults: Iterable[onnx.AttributeProto] = ()
        if isinstance(holder, onnx.GraphProto):
            yield from holder.initializer
            yield from _parts(holder.sparse_initializer)
        else:
            defaults = holder.attribute_proto
        for attribute in itertools.chain((each for node in holder.node for each in node.attribute), defaults):
            yield from [attribute.t] if attribute.HasField("t") else attribute.tensors
            sparse = [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else attribute.sparse_tensors
            yield from _parts(sparse)


def _parts(tensors: Iterable[onnx.SparseTensorProto]) -> Iterator[onnx.TensorProto]:
    for sparse in tensors:
        yield from (sparse.values, sparse.indices)


def innermost(proto: onnx.TypeProto) -> onnx.TypeProto:
    """The type of the elements of a sequence or an optional, or the type itself."""
    kind = proto.WhichOneof("value")
    return innermost(getattr(proto, kind).elem_type) if kind in ("sequence_type", "optional_type") else proto


def dims_of(value: onnx.ValueInfoProto) -> list[int | str | None] | None:
    """The declared sizes: an int, a symbolic name, or None per axis; None without a shape.

    A negative size means an unknown size.
    """
    if not value.type.tensor_type.HasField("shape"):
        return None
    dims = value.type.tensor_type.shape.dim
    return [d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else d.dim_param or None for d in dims]


def is_external(tensor: onnx.TensorProto) -> bool:
    return bool(tensor.data_location == EXTERNAL)


def size_of(tensor: onnx.TensorProto) -> int | None:
    """The number of bytes for the shape and element type; None for strings. Raises RnnLowerError for unknown types."""
    if any(dim < 0 for dim in tensor.dims):
        raise RnnLowerError(f"tensor '{tensor.name}' has shape {list(tensor.dims)}; sizes must not be negative")
    if math.prod(filter(None, tensor.dims)) >> 59:  # which no array has, even if another size is 0
        raise RnnLowerError(f"tensor '{tensor.name}' has shape {list(tensor.dims)}, which is too large")
    try:
        dtype = ir.DataType(tensor.data_type)
        bits = None if dtype == ir.DataType.STRING else dtype.bitwidth
    except (ValueError, TypeError):
        raise RnnLowerError(f"tensor '{tensor.name}' has the unknown element type {tensor.data_type}") from None
    return None if bits is None else math.ceil(math.prod(tensor.dims) * bits / 8)


_VALUES = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")


def check_data(tensor: onnx.TensorProto, folder: Path | None) -> None:
    """Raise RnnLowerError if the data of a tensor does not match its shape and type."""
    if is_external(tensor):
        if folder is not None:
            locate(tensor, folder)
        return
    wanted, count = size_of(tensor), math.prod(tensor.dims)
    if wanted is not None and tensor.HasField("raw_data"):
        length, unit = len(tensor.raw_data), "bytes"
    else:
        dtype = ir.DataType(tensor.data_type)
        field = onnx.helper.tensor_dtype_to_field(tensor.data_type)
        stray = [name for name in _VALUES if name != field and len(getattr(tensor, name))]
        if stray or (wanted is None and tensor.HasField("raw_data")):
            raise RnnLowerError(
                f"tensor '{tensor.name}' of type {dtype.name} must not contain {', '.join(stray) or 'raw_data'}"
            )
        length, unit = len(getattr(tensor, field)), "values"
        packed = 8 // dtype.bitwidth if wanted is not None and dtype.bitwidth < 8 else 1
        wanted = math.ceil(count / packed) * (2 if dtype.name.startswith("COMPLEX") else 1)
    if length != wanted:
        raise RnnLowerError(
            f"tensor '{tensor.name}' of shape {list(tensor.dims)} has {length} {unit} of data, but needs {wanted}"
        )
    _check_range(tensor)


def _check_range(tensor: onnx.TensorProto) -> None:
    """Raise RnnLowerError if a number has more bits than the type: some runtimes drop these bits, others do not."""
    dtype, numbers = ir.DataType(tensor.data_type), tensor.int32_data or tensor.uint64_data
    if not numbers or dtype in (ir.DataType.INT32, ir.DataType.UINT64):
        return
    bits = 1 if dtype == ir.DataType.BOOL else max(8, dtype.bitwidth)
    signed = dtype.is_integer() and (dtype.is_signed() or dtype.bitwidth < 8)
    low, high = -(1 << bits - 1) if signed else 0, (1 << bits - (signed and dtype.bitwidth >= 8)) - 1
    for number in (min(numbers), max(numbers)):
        if not low <= number <= high:
            text = f"tensor '{tensor.name}' of type {dtype.name} contains {number}"
            raise RnnLowerError(f"{text}, which is not between {low} and {high}")


def locate(tensor: onnx.TensorProto, folder: Path) -> Place:
    """The location of the data of an external tensor, with links resolved.

    Raises RnnLowerError if the file name leads out of the folder, or the file is not regular or does not hold the data.
    """
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location, text = entries.get("location", ""), f"tensor '{tensor.name}'"
    parts = PurePosixPath(location).parts
    if len(entries) < len(tensor.external_data):
        raise RnnLowerError(f"{text}: its external data repeats a key; export the model again")
    if not location or "\0" in location:
        raise RnnLowerError(f"{text} has external data without a location; export the model again")
    if PurePosixPath(location).is_absolute() or PureWindowsPath(location).anchor or ".." in parts:
        raise RnnLowerError(
            f"{text}: its data is in '{location}', which is not in or below the model's folder; move "
            "the data file into that folder"
        )
    path = folder / location
    try:
        status = path.stat()
    except OSError as error:
        raise RnnLowerError(f"{text}: its data file {path} cannot be read: {error.strerror or error}") from None
    if not stat.S_ISREG(status.st_mode):
        raise RnnLowerError(f"{text}: its data file {path} is not a regular file")
    if not os.access(path, os.R_OK):
        raise RnnLowerError(f"{text}: its data file {path} cannot be read: permission denied")
    wanted = size_of(tensor)
    if wanted is None:
        raise RnnLowerError(f"{text} contains strings, which external data cannot represent")
    numbers = [entries.get("offset", "0"), entries.get("length", str(wanted))]
    if not all(number.isascii() and number.isdecimal() for number in numbers):  # int() also reads "1_0" and " 1"
        raise RnnLowerError(f"{text}: the offset and the length of its external data must be non-negative integers")
    offset, length = map(int, numbers)
    if length != wanted:
        raise RnnLowerError(
            f"{text} of shape {list(tensor.dims)} needs {wanted} bytes, but its external data has {length}"
            f" bytes at offset {offset}"
        )
    if offset + length > status.st_size:
        raise RnnLowerError(
            f"{text}: its data file {path} has only {status.st_size} bytes, too few for {length} bytes at"
            f" offset {offset}"
        )
    return Place(Path(os.path.realpath(path)), offset, length)


def as_ir(tensor: onnx.TensorProto, folder: Path | None) -> ir.TensorProtocol | None:
    """The tensor as onnx_ir's, without copying data; None if its file is in an unknown folder."""
    if not is_external(tensor):
        return ir.serde.TensorProtoTensor(tensor)
    if folder is None:
        return None
    dtype, shape, extent = ir.DataType(tensor.data_type), ir.Shape(list(tensor.dims)), locate(tensor, folder)
    return ir.ExternalTensor(str(extent.path), extent.offset, extent.length, dtype, shape=shape, name=tensor.name)


def read(tensor: onnx.TensorProto, folder: Path) -> bytes:
    """The data of an external tensor."""
    extent = locate(tensor, folder)
    with open(extent.path, "rb") as file:
        file.seek(extent.offset)
        return file.read(extent.length)


def embed(model: onnx.ModelProto, folder: Path) -> None:
    """Copy the data of external tensors into the model."""
    for tensor in tensors(model):
        if is_external(tensor):
            tensor.raw_data = read(tensor, folder)
            tensor.ClearField("data_location")
            tensor.ClearField("external_data")
