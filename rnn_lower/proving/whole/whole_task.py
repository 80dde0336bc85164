"""The question whether two whole models compute the same, with what is known of them before they run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence, Set

import numpy as np
import onnx_ir as ir

from rnn_lower.driver.plan import document_without_sequences
from rnn_lower.ir.schemas import DEFAULT_DOMAINS
from rnn_lower.ir.walk import nodes, subgraphs
from rnn_lower.modelio.document import Document
from rnn_lower.proving.model_inputs import chosen_inputs
from rnn_lower.proving.whole.congruence import named_outside_loops
from rnn_lower.proving.whole.integer_flow import IntegerFlow
from rnn_lower.proving.whole.size_functions import sizes_in
from rnn_lower.proving.whole.thresholds import Known, known_values
from rnn_lower.proving.whole.whole_model import limits_of, shapes_of, types_of


@dataclasses.dataclass(frozen=True)
class WholeTask:
    """What is known of two models before they run, and how often and how long to compare them.

    sources, documents: with their sequences of tensors for the comparison in floats, and without for the exact one.
    points, seed, deadline, exact_sizes: as in `prove_whole`.
    models: of the documents.  flows: by model.  known: by model, what constants alone determine.
    types: of the inputs.  integers: the inputs of integers.  declared: the shapes in the first model.
    limits: the clips of all recurrent nodes.  narrow: the element type of all of them, if it is the same.
    of_sizes: random functions of sizes, if `exact_sizes`.  shared: names of values that both may compute once.
    """

    sources: Sequence[Document]
    documents: Sequence[Document]
    points: int
    seed: int
    deadline: float
    exact_sizes: bool
    models: Sequence[ir.Model]
    flows: Sequence[IntegerFlow]
    known: Sequence[Known]
    types: Mapping[str, np.dtype]
    integers: Sequence[str]
    declared: Mapping[str, ir.Shape]
    limits: Set[float]
    narrow: Set[ir.DataType]
    of_sizes: Mapping[ir.Value, str]
    shared: Set[str]


def task_of(sources: Sequence[Document], points: int, seed: int, deadline: float, exact_sizes: bool) -> WholeTask:
    """The task for two models. Raises OutOfScopeError."""
    documents = [*map(document_without_sequences, sources)]
    models = [document.model for document in documents]
    for document in documents:
        _write_casts(document)
    known = [known_values(model) for model in models]
    sizes = [sizes_in(*pair) for pair in zip(documents, known, strict=True)] if exact_sizes else []
    for each in known:
        _note_numbers(each)
    inputs = chosen_inputs(models[0])
    kinds = set[ir.DataType]().union(*map(types_of, documents))
    has_bodies = any(any(subgraphs(node)) for node, _ in nodes(models[1]))
    return WholeTask(
        sources, documents, points, seed, deadline, exact_sizes, models,
        flows=[IntegerFlow(model) for model in models],
        known=known,
        types={str(value.name): (value.dtype or ir.DataType.FLOAT).numpy() for value in inputs},
        integers=[str(value.name) for value in inputs if value.dtype is not None and value.dtype.is_integer()],
        declared=shapes_of(documents[0]),
        limits=set[float]().union(*map(limits_of, documents)),
        narrow=kinds if len(kinds) == 1 else set(),
        of_sizes={value: name for each in sizes for value, name in each.functions.items()},
        shared=set.intersection(*map(named_outside_loops, models)) if has_bodies else set(),
    )  # fmt: skip


def _note_numbers(known: Known) -> None:
    """Make each single float that constants compute a constant, as patterns of nodes require of their bounds."""
    for value, array in known.items():
        if value is not None and array.size == 1 and array.dtype.kind == "f":
            value.const_value = ir.tensor(array)


def _write_casts(document: Document) -> None:
    """Make each CastLike to a known type a Cast, as folding does: nothing of its second operand but the type counts."""
    for node, _ in nodes(document.model):
        if node.op_type == "CastLike" and node.domain in DEFAULT_DOMAINS and node.inputs[1] is not None:
            goal = document.dtype_of(node.inputs[1])
            if goal is not None:
                node.op_type, node.attributes["to"] = "Cast", ir.AttrInt64("to", goal)
                node.resize_inputs(1)
