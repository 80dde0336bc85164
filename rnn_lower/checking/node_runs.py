"""Record how recurrent nodes ran: steps, rows, whether these had different lengths, and whether an output shows it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable

import numpy as np
import onnx

from rnn_lower.checking.model_pair import Agree
from rnn_lower.checking.runners import Run, open_reference
from rnn_lower.checking.samples import Feeds
from rnn_lower.ir.walk import recurrent_nodes, sources
from rnn_lower.lowering.node import RecurrentNode
from rnn_lower.modelio.document import Document
from rnn_lower.proving.exact import reference
from rnn_lower.proving.exact.equations import INPUTS

INDEX = "rnn_lower.index"
W, R = map(INPUTS.index, "WR")
"""The places of the weights among the inputs of a node."""

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

    Runtimes do not report the inputs of nodes. A run of a direction shows in the outputs if they no longer agree with
    other weights of it, either for the input or for the state. Nothing is observed if the evaluator cannot run the
    model. agree: whether two results are the same within the tolerance.
    """

    def __init__(self, document: Document, nodes: list[RecurrentNode], agree: Agree) -> None:
        self._document, self._nodes, self._agree = document, nodes, agree
        self._runs: dict[int, set[NodeRun]] = {}
        self._shown: dict[tuple[int, int, int], set[NodeRun]] = {}
        self._last: dict[int, set[NodeRun]] = {}
        self._changed: tuple[int, int, int] | None = None
        self._run: Run | None = None

    def observe(self, feeds: Feeds) -> None:
        """Run the model once, and again with other weights for each direction of a node that needs it."""
        self._last, self._changed = {}, None
        try:
            if self._run is None:
                self._run = open_reference(self._document, number_nodes, reference.operators(self._record))
            results = self._run(feeds)
            for weights in [each for index in self._last for each in self._lacking(index)]:
                self._changed = weights
                if not self._agree(results, self._run(feeds)):
                    self._shown.setdefault(weights, set()).update(self._last[weights[0]])
        except Exception:  # the evaluator raises exceptions of any type
            return

    def _record(self, node: onnx.NodeProto, x: np.ndarray, lengths: np.ndarray | None) -> tuple[int, int] | None:
        index = next(int(entry.value) for entry in node.metadata_props if entry.key == INDEX)
        if self._changed is not None:
            return self._changed[1:] if index == self._changed[0] else None
        batch_first = any(attribute.name == "layout" and attribute.i for attribute in node.attribute)
        steps, rows = x.shape[1 if batch_first else 0], x.shape[0 if batch_first else 1]
        some = (steps,) if lengths is None else tuple(sorted({int(length) for length in lengths}))
        for runs in (self._runs, self._last):
            runs.setdefault(index, set()).add(NodeRun(steps, rows, some))
        return None

    def describe(self, index: int) -> str:
        """The runs of a node, in words."""
        runs = self._runs.get(index, ())
        parts = sorted(
            {f"seq_length {run.steps}, batch_size {run.rows}, sequence_lens {list(run.lengths)}" for run in runs}
        )
        return "; ".join(parts[:3]) or "did not run"

    def is_enough(self, index: int) -> bool:
        """Whether runs of each direction with three steps and rows of different lengths, if sizes allow, show."""
        if self._weights(index):
            return not self._lacking(index)
        return self._tests(index, self._runs.get(index, ()))

    def _lacking(self, index: int) -> list[tuple[int, int, int]]:
        """The weights of a node that no such run shows."""
        return [each for each in self._weights(index) if not self._tests(index, self._shown.get(each, ()))]

    def _weights(self, index: int) -> list[tuple[int, int, int]]:
        """The weights of a node that have to show: the node's index, that of the weights, and the direction.

        W may count for nothing where no input reaches X, and R in the only step where none reaches the first state.
        """
        node = self._nodes[index]
        operands = [W] if sources(node.inputs["X"]) else []
        operands += [R] if node.seq_length != 1 or sources(node.inputs.get("initial_h")) else []
        return [*itertools.product([index], operands, range(node.num_directions))]

    def _tests(self, index: int, runs: Iterable[NodeRun]) -> bool:
        """Whether one of these runs has three steps and rows of different lengths, if sizes allow."""
        node = self._nodes[index]
        steps = min(STEPS, node.seq_length) if isinstance(node.seq_length, int) else STEPS
        lengths = node.inputs.get("sequence_lens")
        is_fixed = lengths is None or (lengths.const_value is not None and not lengths.is_graph_input())
        least = 1 if is_fixed or node.batch_size == 1 or node.seq_length == 1 else 2
        return any(run.steps >= steps and len(run.lengths) >= least for run in runs)


def number_nodes(model: onnx.ModelProto) -> None:
    """Store in each recurrent node its index, in the order of `rnn_lower.ir.walk`."""
    document = Document(model)
    for index, (node, _) in enumerate(recurrent_nodes(document.model)):
        document.message(node).metadata_props.add(key=INDEX, value=str(index))
