"""Record how recurrent nodes ran: the numbers of steps and rows, and whether the rows had different lengths."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx

from rnn_lower.checking.runners import Run, open_reference
from rnn_lower.checking.samples import Feeds
from rnn_lower.ir.walk import recurrent_nodes
from rnn_lower.lowering.node import RecurrentNode
from rnn_lower.modelio.document import Document
from rnn_lower.proving import reference

INDEX = "rnn_lower.index"
STEPS = 3
"""The fewest steps that test a recurrence: a wrong state shows in the third step."""


@dataclasses.dataclass(frozen=True)
class NodeRun:
    """One run of one node. lengths: the distinct lengths of its rows."""

    steps: int
    rows: int
    lengths: tuple[int, ...]


class NodeRuns:
    """Observes the recurrent nodes of a model, in the order of `inspect`, on the reference evaluator.

    Runtimes do not report the inputs of nodes. Nothing is observed if the evaluator cannot run the model.
    """

    def __init__(self, document: Document, nodes: list[RecurrentNode]) -> None:
        self._document, self._nodes = document, nodes
        self._runs: dict[int, set[NodeRun]] = {}
        self._run: Run | None = None

    def observe(self, feeds: Feeds) -> None:
        """Run the model once."""
        try:
            if self._run is None:
                self._run = open_reference(self._document, number_nodes, reference.operators(self._record))
            self._run(feeds)
        except Exception:  # the evaluator raises exceptions of any type
            return

    def _record(self, node: onnx.NodeProto, x: np.ndarray, lengths: np.ndarray | None) -> None:
        index = next(int(entry.value) for entry in node.metadata_props if entry.key == INDEX)
        batch_first = any(attribute.name == "layout" and attribute.i for attribute in node.attribute)
        steps, rows = x.shape[1 if batch_first else 0], x.shape[0 if batch_first else 1]
        some = (steps,) if lengths is None else tuple(sorted({int(length) for length in lengths}))
        self._runs.setdefault(index, set()).add(NodeRun(steps, rows, some))

    def describe(self, index: int) -> str:
        """The runs of a node, in words."""
        runs = self._runs.get(index, ())
        parts = sorted(
            {f"seq_length {run.steps}, batch_size {run.rows}, sequence_lens {list(run.lengths)}" for run in runs}
        )
        return "; ".join(parts[:3]) or "did not run"

    def is_enough(self, index: int) -> bool:
        """Whether a node ran with three steps and rows of different lengths, as far as its sizes allow."""
        node = self._nodes[index]
        steps = min(STEPS, node.seq_length) if isinstance(node.seq_length, int) else STEPS
        lengths = node.inputs.get("sequence_lens")
        is_fixed = lengths is None or (lengths.const_value is not None and not lengths.is_graph_input())
        least = 1 if is_fixed or node.batch_size == 1 or node.seq_length == 1 else 2
        return any(run.steps >= steps and len(run.lengths) >= least for run in self._runs.get(index, ()))


def number_nodes(model: onnx.ModelProto) -> None:
    """Store in each recurrent node its index, in the order of `rnn_lower.ir.walk`."""
    document = Document(model)
    for index, (node, _) in enumerate(recurrent_nodes(document.model)):
        document.message(node).metadata_props.add(key=INDEX, value=str(index))
