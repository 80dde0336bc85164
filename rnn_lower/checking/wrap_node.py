"""Put nodes around every recurrent node of a model, wherever it is: to guard it, or to change what it gives."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import onnx

from rnn_lower.ir import protobuf
from rnn_lower.proving.model_diff import is_recurrent


def put_around(model: onnx.ModelProto, change: Callable[[onnx.NodeProto, int], Iterable[onnx.NodeProto]]) -> None:
    """In place. change: called with a recurrent node, its own to alter, and its number; what stands in its place."""
    numbers = itertools.count(1)
    for holder in protobuf.holders(model):
        if any(map(is_recurrent, holder.node)):
            copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in holder.node]
            made = [change(node, next(numbers)) if is_recurrent(node) else [node] for node in copies]
            del holder.node[:]
            holder.node.extend(itertools.chain.from_iterable(made))
