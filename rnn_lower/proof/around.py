"""Put nodes around every recurrent node of a model, wherever it is: to guard it, or to change what it gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import onnx

from rnn_lower.model import tensors
from rnn_lower.model.scopes import DEFAULT_DOMAINS
from rnn_lower.options import OP_TYPES


def is_recurrent(node: onnx.NodeProto) -> bool:
    """Whether it is an RNN, GRU or LSTM of ONNX."""
    return node.op_type in OP_TYPES and node.domain in DEFAULT_DOMAINS


def put_around(model: onnx.ModelProto, change: Callable[[onnx.NodeProto, int], Iterable[onnx.NodeProto]]) -> None:
    """In place. change: called with a recurrent node, its own to alter, and its number; what stands in its place."""
    count = 0
    for holder in tensors.holders(model):
        made: list[onnx.NodeProto] = []
        for node in holder.node:
            copy = onnx.NodeProto.FromString(node.SerializeToString())
            if is_recurrent(node):
                count += 1
                made += change(copy, count)
            else:
                made.append(copy)
        if len(made) > len(holder.node):
            del holder.node[:]
            holder.node.extend(made)
