"""The public functions: lower a model, a file, list its recurrent nodes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TypeVar

import onnx
import onnx_ir as ir

from rnn_lower import convert, files
from rnn_lower.errors import RnnLowerError
from rnn_lower.facts import Facts
from rnn_lower.node import OP_TYPES, RecurrentNode
from rnn_lower.passes import MAX_NODES, Options, Record, Select, find_places, lower_model

M = TypeVar("M", onnx.ModelProto, ir.Model)


def lower(
    model: M,
    *,
    form: str = "auto",
    target: str | None = None,
    op_types: Sequence[str] = OP_TYPES,
    select: Select | None = None,
    opset: int | None = None,
    dims: Mapping[str, int] | None = None,
    max_nodes: int = MAX_NODES,
) -> M:
    """Replace the RNN, GRU and LSTM nodes of a model by primitive operators that compute the same values.

    model: an onnx.ModelProto, which is left as it is and answered by a new one, or an onnx_ir.Model, which is lowered
        in place and returned. Any opset from 1 on; nodes in subgraphs and functions are lowered too.
    form: "scan" (opset 9 and up), "loop" or "unroll" (known sequence length); "auto" takes a straight line for one
        step, else Scan, or Loop below opset 9.
    target: name of a runtime (see rnn_lower.targets) whose limits the result keeps to; with "auto" it gives the form.
    op_types: which of "RNN", "GRU", "LSTM" to lower.  select: called with each RecurrentNode, False leaves it.
    opset: convert the whole model to this opset, the recurrent nodes being lowered at it.
    dims: sizes for symbolic dimensions of the inputs, e.g. {"batch": 4}, fixed before lowering.
    max_nodes: limit of emitted nodes, against unrolling by mistake.

    Raises InvalidNodeError when a node contradicts the ONNX text of its version, UnsupportedError when what was asked
    for is impossible, RnnLowerError for an unknown form, target, operator or dimension. A model that raised is only
    changed by `opset` and `dims`, never half lowered.
    """
    options = Options(form, target, tuple(op_types), select, max_nodes)
    if isinstance(model, ir.Model):
        apply(model, options, opset, dims)
        return model
    if not isinstance(model, onnx.ModelProto):
        raise RnnLowerError(f"a model must be an onnx.ModelProto or an onnx_ir.Model, not {type(model).__name__}")
    graph = ir.from_proto(model)
    apply(graph, options, opset, dims)
    return ir.to_proto(graph)


def apply(
    model: ir.Model, options: Options, opset: int | None = None, dims: Mapping[str, int] | None = None
) -> list[Record]:
    """`lower` in place, answering what was done to each node."""
    if dims:
        convert.fix_dims(model, dims)
    if opset is None:
        return lower_model(model, options)
    convert.convert_opset(model, opset)  # first, so that nodes are lowered with the operators of the new opset
    records = lower_model(model, options)
    convert.restamp_rest(model)
    return records


def lower_file(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    form: str = "auto",
    target: str | None = None,
    op_types: Sequence[str] = OP_TYPES,
    select: Select | None = None,
    opset: int | None = None,
    dims: Mapping[str, int] | None = None,
    max_nodes: int = MAX_NODES,
    progress: files.Progress | None = None,
) -> list[Record]:
    """`lower` from file to file, for models of any size; the answer has one Record per lowered node.

    External data is mapped, not loaded, and is written to `DESTINATION.data`. Source and destination may be the same
    file. The destination appears whole or not at all. progress: called with (name, index, total) per written weight.
    Raises as `lower`, with the file in the message, and RnnLowerError when a file cannot be read or written.
    """
    options = Options(form, target, tuple(op_types), select, max_nodes)
    model = files.load(source)
    external = files.has_external_data(model)
    try:
        records = apply(model, options, opset, dims)
    except RnnLowerError as error:
        raise type(error)(f"{os.fspath(source)}: {error}") from None
    files.save(model, destination, progress, external)
    return records


def inspect(model: onnx.ModelProto | ir.Model) -> list[RecurrentNode]:
    """All recurrent nodes of a model, wherever they are, as read and checked. Raises InvalidNodeError for a bad one."""
    graph = ir.from_proto(model) if isinstance(model, onnx.ModelProto) else model
    return [place.node for place in find_places(graph, Options(), Facts(graph))]
