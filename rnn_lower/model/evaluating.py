"""What nodes make of arrays that are known, by onnx's own evaluator; recurrent nodes are not for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator


def evaluate(
    nodes: Iterable[onnx.NodeProto], given: Mapping[str, np.ndarray], wanted: Sequence[str],
    imports: Iterable[onnx.OperatorSetIdProto],
) -> list[np.ndarray]:  # fmt: skip
    """The wanted values. given: by name, all that the nodes read. Raises whatever the evaluator stumbles over."""
    inputs, outputs = ([onnx.ValueInfoProto(name=name) for name in names] for names in (given, wanted))
    graph = onnx.helper.make_graph(list(nodes), "evaluated", inputs, outputs)
    model = onnx.helper.make_model(graph, opset_imports=list(imports))
    return [np.asarray(found) for found in ReferenceEvaluator(model).run(None, dict(given))]
