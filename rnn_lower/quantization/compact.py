"""Reduce the size of a model: names and metadata are more than half of an unrolled model in 8 bits."""

from __future__ import annotations

import collections
import os

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lower.builder.names import Names
from rnn_lower.errors import UnsupportedError, public
from rnn_lower.ir import protobuf
from rnn_lower.ir.walk import content_key
from rnn_lower.modelio import files


@public
def compact(model: onnx.ModelProto | ir.Model | str | os.PathLike[str]) -> onnx.ModelProto:
    """Return the same model with short inner names and without duplicate initializers, node metadata and inner types.

    The names of inputs and outputs stay. Raises UnsupportedError if a name is used for two values, or by training_info.
    """
    document, _ = files.open_model(model)
    if document.proto.training_info:
        raise UnsupportedError("the model has training_info, which refers to names of weights; remove it")
    proto = document.copied().proto
    if document.folder is not None:
        protobuf.embed(proto, document.folder)
    graphs = list(protobuf.graphs_in(proto.graph))
    outer = {value.name for value in (*proto.graph.input, *proto.graph.output)}
    held = [tensor.name for graph in graphs for tensor in graph.initializer if tensor.name not in outer]
    written = [name for graph in graphs for node in graph.node for name in node.output]
    inputs = [value.name for graph in graphs for value in graph.input]
    twice = [name for name, n in collections.Counter(filter(None, [*held, *written, *inputs])).items() if n > 1]
    if twice or any(graph.sparse_initializer for graph in graphs):
        raise UnsupportedError(
            f"two values have the name '{twice[0]}'; rename one of them"
            if twice
            else "the model has a sparse initializer"
        )
    names, short, first = Names(outer), {"": "", **{name: name for name in outer}}, dict[tuple[object, ...], str]()
    twins = dict[str, str]()
    for tensor in proto.graph.initializer:
        key = (tensor.data_type, content_key(onnx.numpy_helper.to_array(tensor)))
        if tensor.name not in outer and first.setdefault(key, tensor.name) != tensor.name:
            twins[tensor.name] = first[key]
    protobuf.remove_if(proto.graph.initializer, lambda tensor: tensor.name in twins)
    for name in (*held, *inputs, *written):
        if name not in short and name not in twins:
            short[name] = names.unique(np.base_repr(len(short), 36).lower())
    short |= {name: short[twin] for name, twin in twins.items()}
    for graph in graphs:
        _rename(graph, short)
    return proto


def _rename(graph: onnx.GraphProto, short: dict[str, str]) -> None:
    """Rename the values of a graph, and drop everything that it does not need to run."""
    del graph.value_info[:], graph.quantization_annotation[:]
    for message in (*graph.initializer, *graph.input, *graph.output):
        message.name = short[message.name]
    for node in graph.node:
        node.input[:], node.output[:] = [short[name] for name in node.input], [short[name] for name in node.output]
        del node.metadata_props[:]
        node.name = node.doc_string = ""
