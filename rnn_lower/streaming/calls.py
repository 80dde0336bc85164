"""Models of which each run is one step of their recurrent nodes: the stream is one run after another."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from rnn_lower.driver.plan import read_nodes
from rnn_lower.errors import RnnLowerError, UnsupportedError
from rnn_lower.lowering.node import RecurrentNode
from rnn_lower.modelio.document import Document
from rnn_lower.shapes.sizes import ONE, size
from rnn_lower.streaming.causality import CausalityAnalysis
from rnn_lower.streaming.data_flow import is_part_of_input
from rnn_lower.streaming.graph_editor import GraphEditor
from rnn_lower.streaming.plan import FIXED, Plan
from rnn_lower.streaming.recurrent_states import Recurrence


def with_states(
    document: Document, symbols: Mapping[str, tuple[str, int]], step: int | None, reset: bool
) -> GraphEditor:
    """A copy whose recurrent nodes take their states from inputs and give them back; step: as it was requested."""
    if step not in (None, 1):
        raise RnnLowerError(f"--step {step}: each run of the model is one step of its recurrent nodes; use --step 1")
    work = document.copied()
    analysis = CausalityAnalysis(work.model, work.facts, {})
    analysis.run()
    editor = GraphEditor(work, analysis.infos, symbols, reset)
    for node in read_nodes(work.model, work.facts):
        if node.direction != "forward" or "sequence_lens" in node.inputs:
            raise UnsupportedError(f"{node.describe()}: it has no state from which the next run could continue")
        shape = work.facts.shape(node.inputs["X"])
        batch = None if shape is None else shape[0 if node.layout else 1]
        if batch is None and not _starts_from_inputs(work, node):
            raise UnsupportedError(f"{node.describe()}: its batch size is unknown; fix it (--dim NAME=SIZE)")
        Recurrence(node, ONE if batch is None else size(batch), Fraction(1), 0)(editor)
    return editor


def _starts_from_inputs(document: Document, node: RecurrentNode) -> bool:
    """Whether all first states come from inputs, whose shapes stay what they are."""
    first = [node.inputs.get(f"initial_{letter}") for letter in node.operator.states]
    return all(value is not None and is_part_of_input(document.model, value) for value in first)


def plan_of(editor: GraphEditor) -> Plan:
    """What the model says of itself."""
    outputs = {str(value.name): FIXED for value in editor.document.model.graph.outputs}
    left, states = tuple(sorted(editor.left)), tuple({state.input: state for state in editor.states}.values())
    return Plan({}, outputs, states, symbols=editor.symbols, reset=editor.reset, left=left)
