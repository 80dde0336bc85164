"""Where a streaming model may change its behaviour: sizes, numbers of frames, tables and integers of the caller.

A proof tries the numbers on both sides of each. What it cannot try is out of scope.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence

import ml_dtypes
import numpy as np
import onnx_ir as ir

from rnn_lower.ir.schemas import LOOPS
from rnn_lower.ir.walk import constant, known_tensor, nodes, recurrent_nodes, subgraphs, upstream
from rnn_lower.modelio.document import Document
from rnn_lower.proving.exact.call import OutOfScopeError
from rnn_lower.proving.exact.equations import INPUTS
from rnn_lower.proving.model_inputs import SMALL_INTEGERS, chosen_inputs
from rnn_lower.proving.whole.counting_states import check_counting, counting, is_smooth, parts
from rnn_lower.proving.whole.integer_flow import IntegerFlow
from rnn_lower.proving.whole.size_functions import NO_SIZES, Sizes, sizes_in
from rnn_lower.proving.whole.thresholds import (
    MOST_COUNTED,
    TABLE_READERS,
    TRIED_NUMBERS,
    Known,
    check_bodies,
    compared_lists,
    compared_numbers,
    known_sizes,
    known_values,
)
from rnn_lower.proving.whole.whole_evaluator import COMPARISONS
from rnn_lower.streaming.plan import Plan, fixed_step

FEW_ROWS = 64
"""The most rows of a table that need not be one of the original."""


@dataclasses.dataclass(frozen=True)
class ChangePoints:
    """Where a streaming model may change its behaviour.

    sizes: what it computes from sizes.  begins: numbers with which its counters begin, as magnitudes.
    constants: of the original and of the streaming model, what constants and fixed sizes determine.
    numbers: by input of integers or booleans, those that may matter to a model.
    functions: the values of both models that are random functions of sizes.  known: those that constants determine.
    """

    sizes: Sizes = NO_SIZES
    begins: Collection[int] = ()
    constants: Sequence[Known] = ({}, {})
    numbers: Mapping[str, Collection[int]] = dataclasses.field(default_factory=dict)
    functions: Mapping[ir.Value, str] = dataclasses.field(default_factory=dict)
    known: Known = dataclasses.field(default_factory=dict)


def change_points_of(original: Document, streaming: Document, plan: Plan) -> ChangePoints:
    """Where a streaming model may change its behaviour. Raises OutOfScopeError if runs cannot show it."""
    known = [known_values(document.model) for document in (original, streaming)]
    fixed = [{**known_sizes(*pair), **pair[1]} for pair in zip((original, streaming), known, strict=True)]
    counters = _counters(original, streaming, plan)
    tables = _new_tables(original, streaming, known)
    sizes = sizes_in(streaming, known[1], counters, one_length=fixed_step(streaming.proto, plan) is not None)
    old = sizes_in(original, known[0], ())
    if new := sizes.relating.keys() - old.relating.keys():
        node = sizes.relating[min(new)]
        raise OutOfScopeError(f"{node.op_type} '{node.name}' computes an integer that may change at any size")
    sizes = dataclasses.replace(sizes, quotients=sizes.quotients - old.quotients)
    return ChangePoints(
        sizes, [*counters.values()], fixed, _numbers_to_try(original, streaming, known, tables),
        functions={**old.functions, **sizes.functions}, known={**known[0], **known[1]},
    )  # fmt: skip


def _counters(original: Document, streaming: Document, plan: Plan) -> dict[str, int]:
    """The inputs that count frames, and the magnitude of the numbers with which they begin.

    These are integer states of one element, all others that no data and no input but `reset` decides, and `reset`.
    """
    graph = streaming.model.graph
    values = {value.name: value for value in (*graph.inputs, *graph.outputs)}
    firsts = {state.input: state.first for state in plan.states if state.first is not None}
    held = {state.input: parts(values[state.input], values[state.output]) for state in plan.states}
    states = {
        before: after for name in firsts for before, after in held[name].items() if not is_smooth(graph, before, after)
    }
    known = {*firsts, plan.reset, *graph.initializers}
    alone = counting(graph, states, [value for value in graph.inputs if value.name not in known])
    check_counting(graph, alone)
    old = {_text(node) for node, _ in nodes(original.model) if node.op_type in LOOPS}
    check_bodies(node for node, _ in nodes(streaming.model) if node.op_type in LOOPS and _text(node) not in old)
    counters = dict[str, int]() if plan.reset is None else {plan.reset: 0}
    for name, first in firsts.items():
        is_whole, is_alone = first.dtype.kind in "iu", held[name].keys() <= alone.keys()
        largest = int(np.abs(first.astype(np.int64)).max(initial=0)) if is_whole and is_alone else 0
        if is_alone or (is_whole and first.size == 1):
            counters[name] = largest if largest <= MOST_COUNTED else 0
    return counters


def _new_tables(original: Document, streaming: Document, known: Sequence[Known]) -> dict[ir.Node, int]:
    """The nodes that look up a small table which the original does not have, and the rows of the table.

    known: what constants determine in the original and in the streaming model.
    Raises OutOfScopeError if a table is large, as no run reads all rows.
    """
    old, small = dict[tuple[int, ...], list[np.ndarray]](), dict[ir.Node, int]()
    for node, _ in nodes(streaming.model):
        if node.op_type not in TABLE_READERS:
            continue
        array, *_ = arrays = [known[1].get(value, constant(value)) for value in node.inputs]
        if array is None or all(each is not None for each in arrays):
            continue
        if array.shape not in old:
            old[array.shape] = list(_constants_of(original.model, known[0], array.shape))
        if any(array.dtype == other.dtype and array.tobytes() == other.tobytes() for other in old[array.shape]):
            continue
        small[node] = max(array.shape, default=0)
        if small[node] > FEW_ROWS:
            text = f"looks up a table of shape {list(array.shape)} that the original does not have"
            raise OutOfScopeError(f"{node.op_type} '{node.name}' {text}")
    return small


def _numbers_to_try(
    original: Document, streaming: Document, known: Sequence[Known], tables: Mapping[ir.Node, int]
) -> dict[str, set[int]]:
    """By input of integers or booleans, the numbers at which the streaming model may change.

    known: what constants determine in the original and in the streaming model.  tables: the rows of tables that the
    original does not have, by node.  Raises OutOfScopeError if there are too many.
    """
    old = compared_lists((node for node, _ in nodes(original.model) if node.op_type in COMPARISONS), known[0])
    dependent = IntegerFlow(streaming.model).elements
    reading = [node for node, _ in nodes(streaming.model) if not dependent.isdisjoint(node.inputs)]
    numbers = set(compared_numbers([node for node in reading if node.op_type in COMPARISONS], known[1], old))
    numbers.update(*(range(rows) for node, rows in tables.items() if node in reading))
    if len(numbers) > TRIED_NUMBERS:
        raise OutOfScopeError(f"the streaming model compares integers with constants that make {len(numbers)} trials")
    recurrent = (node for node, _ in recurrent_nodes(original.model))
    index = INPUTS.index("sequence_lens")
    lengths = [value for node in recurrent for value in node.inputs[index : index + 1]]
    deciding = {*upstream(lengths, lambda node, _: node.inputs)}  # sampled in other ways, as few lengths are valid
    there, tried = {value.name for value in streaming.model.graph.inputs}, dict[str, set[int]]()
    for value in chosen_inputs(original.model):
        if value in deciding or value.name not in there:
            continue
        if value.dtype == ir.DataType.BOOL:
            tried[str(value.name)] = {0, 1}
        elif value.dtype is not None and value.dtype.is_integer():
            limits = ml_dtypes.iinfo(value.dtype.numpy())
            few = range(SMALL_INTEGERS) if value.is_initializer() else ()
            tried[str(value.name)] = {number for number in numbers.union(few) if limits.min <= number <= limits.max}
    return tried


def _constants_of(model: ir.Model, known: Known, shape: tuple[int, ...]) -> Iterator[np.ndarray]:
    """The constants of a model with a shape, and what constants compute."""
    yield from (array for array in known.values() if array.shape == shape)
    tensors = {value: known_tensor(value) for node, _ in nodes(model) for value in node.inputs}
    yield from (tensor.numpy() for tensor in tensors.values() if tensor is not None and tuple(tensor.shape) == shape)


def _text(loop: ir.Node) -> bytes:
    """What the body of a Loop or a Scan contains."""
    return b"".join(ir.to_proto(body).SerializeToString() for _, body in subgraphs(loop))
