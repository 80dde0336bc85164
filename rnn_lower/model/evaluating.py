"""onnx's own evaluator, made fit for every model; its recurrent nodes are no judge."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from rnn_lower.model import tensors


def evaluate(
    nodes: Iterable[onnx.NodeProto], given: Mapping[str, np.ndarray], wanted: Sequence[str],
    imports: Iterable[onnx.OperatorSetIdProto],
) -> list[np.ndarray]:  # fmt: skip
    """The wanted values. given: by name, all that the nodes read. Raises whatever the evaluator stumbles over."""
    inputs, outputs = ([onnx.ValueInfoProto(name=name) for name in names] for names in (given, wanted))
    graph = onnx.helper.make_graph(list(nodes), "evaluated", inputs, outputs)
    model = onnx.helper.make_model(graph, opset_imports=list(imports))
    return [np.asarray(found) for found in evaluator(model).run(None, dict(given))]


def evaluator(model: onnx.ModelProto, operators: Iterable[type] = ()) -> ReferenceEvaluator:
    """For a model, which is changed: an output that nobody wants gets a name.

    Without one, onnx 1.23 passes it to every later node that is not given some optional input.
    """
    count = itertools.count()
    for holder in tensors.holders(model):
        for node in holder.node:
            node.output[:] = [name or f"rnn_lower/unwanted/{next(count)}" for name in node.output]
    return ReferenceEvaluator(model, new_ops=list(operators))
