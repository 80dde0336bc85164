"""Find loops and chains of steps in a model, and propose equivalent recurrent nodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import onnx_ir as ir

from rnn_lower.ir.schemas import LOOPS
from rnn_lower.ir.traits import MEASURING
from rnn_lower.ir.walk import NODE_MARK, constant, get_attribute, known_tensor
from rnn_lower.options import QUANTIZED
from rnn_lower.proving.nodes.program import read_by
from rnn_lower.raising.algebra import FUNCTIONS, Algebra, NoGuessError, Sum, same
from rnn_lower.raising.guess import Cell, cells, masks, unmasked
from rnn_lower.shapes.shape_info import ShapeInfo

SHAPING = ("Concat", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze", "Where")
"""Operators between the states of the steps and the outputs of a chain."""


@dataclasses.dataclass(frozen=True)
class Region:
    """Nodes that may be one recurrent node. results: their values that the rest of the model reads.

    op_type: the operator from which they were lowered, if their metadata names it.
    """

    name: str
    nodes: tuple[ir.Node, ...]
    results: tuple[ir.Value, ...]
    op_type: str = ""

    @property
    def loops(self) -> list[ir.Node]:
        return [node for node in self.nodes if node.op_type in LOOPS]


@dataclasses.dataclass(frozen=True)
class Direction:
    """A cell with its direction. initial: its initial states.  outputs: the name of the node's output, by result."""

    cell: Cell
    reverse: bool
    batch_first: bool = False
    initial: tuple[ir.Value | None, ...] = ()
    outputs: tuple[tuple[ir.Value, str], ...] = ()


def regions(model: ir.Model) -> Iterator[Region]:
    """The loops of the main graph, and the groups of emitted nodes."""
    groups: dict[str, list[ir.Node]] = {}
    for node in model.graph:
        if NODE_MARK in node.metadata_props:
            groups.setdefault(node.metadata_props[NODE_MARK], []).append(node)
        elif node.op_type in LOOPS and node.domain == "" and "body" in node.attributes:
            yield Region(node.name or str(node.outputs[0].name), (node,), _results(model.graph, [node]))
    for name, nodes in groups.items():
        op_type = nodes[0].metadata_props.get("rnn_lower.op", "")
        op_type = "LSTM" if op_type == QUANTIZED else op_type  # if it was dequantized
        yield Region(name, tuple(nodes), _results(model.graph, nodes), op_type)


def _results(graph: ir.Graph, nodes: Sequence[ir.Node]) -> tuple[ir.Value, ...]:
    """The outputs of some nodes that the rest of the graph reads."""
    inside = set(nodes)
    read = {value for node in graph if node not in inside for value in read_by(node)} | {*graph.outputs}
    return tuple(value for node in nodes if node.op_type != "Constant" for value in node.outputs if value in read)


def inputs_of(region: Region) -> list[ir.Value]:
    """The run-time values that a region reads."""
    computed = {value for node in region.nodes for value in node.outputs}
    read = dict.fromkeys(value for node in region.nodes for value in read_by(node))
    return [value for value in read if value not in computed and constant(value) is None and value.name]


def directions_of_loop(
    loop: ir.Node, shape_info: ShapeInfo, opset: int, emitted: frozenset[ir.Node] = frozenset()
) -> Iterator[Direction]:
    """The directions that a loop may compute."""
    body = loop.attributes["body"].as_graph()
    algebra = Algebra(shape_info, opset, frozenset(), emitted)
    first = 2 if loop.op_type == "Loop" else 0
    count = len(loop.inputs) - (2 if loop.op_type == "Loop" else loop.attributes["num_scan_inputs"].as_int())
    states, initial = body.inputs[first : first + count], loop.inputs[first : first + count]
    reverse = False
    bound: dict[ir.Value, Sum] = {}
    for state, start in zip(states, initial, strict=True):
        shape = None if start is None else shape_info.shape(start)
        widths = [sizes[-1] for sizes in (shape, state.shape) if sizes]  # the body may know what its node does not
        columns = next((width for width in widths if isinstance(width, int)), 0)
        if columns > 0:
            bound[state] = algebra.atom(state, columns, len(shape or state.shape or (0, 0)))
    if loop.op_type == "Scan":
        axes = get_attribute(loop, "scan_input_axes", ir.AttributeType.INTS, None) or (0,)
        if len(set(axes)) > 1 or axes[0] not in (0, 1):
            return
        reverse = all(get_attribute(loop, "scan_input_directions", ir.AttributeType.INTS, (0,)))
        for value, sequence in zip(body.inputs[count:], loop.inputs[count:], strict=True):
            try:
                x = algebra.sum_of(sequence)
            except NoGuessError:
                continue
            bound[value] = dataclasses.replace(x, rank=x.rank - 1, batch_first=x.batch_first != (axes[0] == 1))
    algebra.enter(body, bound)
    after = body.outputs[first - (first > 0) :]
    sums = [_sum(algebra, value) for value in after]
    for index, (state, new) in enumerate(zip(states, sums, strict=False)):
        if new is None or new.rank < 2 or state not in bound:
            continue
        if not emitted and not all(_reads_elements(loop, mask) for mask in masks(new)):
            continue  # at some length, the mask may end all sequences
        for cell in cells(new, frozenset(states)):
            yield _direction(cell, loop, initial, sums, index, reverse)


def _reads_elements(loop: ir.Node, value: ir.Value) -> bool:
    """Whether a value of a step depends on elements of an input, such as lengths, not only on sizes and the step."""
    body, first = loop.attributes["body"].as_graph(), 2 if loop.op_type == "Loop" else 0
    sources: dict[ir.Value, list[ir.Value | None]] = {inner: [] for inner in body.inputs[:first]}
    sources |= {inner: [outer] for inner, outer in zip(body.inputs[first:], loop.inputs[first:], strict=True)}
    states = len(loop.inputs) - get_attribute(loop, "num_scan_inputs", ir.AttributeType.INT, 0)
    for inner, new in zip(body.inputs[first:states], body.outputs[first // 2 :], strict=False):
        sources[inner].append(new)
    waiting, seen = [value], set[ir.Value | None]()
    while waiting:
        value = waiting.pop()
        if value in seen or known_tensor(value) is not None:
            continue
        seen.add(value)
        node = value.producer()
        if value in sources:
            waiting += [source for source in sources[value] if source is not None]
        elif node is None:
            return True
        elif node.op_type not in MEASURING:
            waiting += read_by(node)
    return False


def _sum(algebra: Algebra, value: ir.Value) -> Sum | None:
    try:
        return algebra.sum_of(value)
    except NoGuessError:
        return None


def _direction(
    cell: Cell, loop: ir.Node, initial: Sequence[ir.Value | None], sums: Sequence[Sum | None], h: int, reverse: bool
) -> Direction:
    new, outputs = sums[h], []
    assert new is not None
    axes = get_attribute(loop, "scan_output_axes", ir.AttributeType.INTS, None) or (0,) * len(loop.outputs)
    c = next((k for k, total in enumerate(sums[: len(initial)]) if total is not None and cell.state_c is not None
              and same(unmasked(total), cell.state_c)), None)  # fmt: skip
    for k, (value, total) in enumerate(zip(loop.outputs, sums, strict=True)):
        if k == h:
            outputs.append((value, "Y_h"))
        elif k == c:
            outputs.append((value, "Y_c"))
        elif total is not None and k >= len(initial) and same(unmasked(total), unmasked(new)):
            kinds = {(2, 0): "Y", (2, 1): "Y_turned", (3, 0): "Y_direction"}
            if kind := kinds.get((total.rank, axes[k - len(initial)])):
                outputs.append((value, kind))
    source = cell.source
    flipped, batch_first = (False, False) if source is None else (source.flipped, source.batch_first)
    starts = (initial[h], *([] if c is None else [initial[c]]))
    return Direction(cell, reverse != flipped, batch_first, starts, tuple(outputs))


def directions_of_chain(region: Region, shape_info: ShapeInfo, opset: int) -> list[list[Direction]]:
    """The directions that a chain of steps may compute, for each final state."""
    multiplied = {
        node.inputs[0] for node in region.nodes
        if node.op_type in ("MatMul", "Gemm") and constant(node.inputs[1]) is not None and node.inputs[0] is not None
    }  # fmt: skip
    inside = {value for node in region.nodes for value in node.outputs}
    emitted = frozenset(region.nodes)
    algebra = Algebra(shape_info, opset, frozenset(), emitted)
    states = frozenset(value for value in multiplied & inside if not _is_row(algebra, value))
    states |= {cell_state for state in states for cell_state in _cell_states(state)}
    chain = Algebra(shape_info, opset, states, emitted)
    last = [new for leaf in _leaves(region, states) if (new := _sum(chain, leaf)) is not None]
    ends = [_directions(new, [new], region.op_type, states) for new in last]
    # The last cell state does not reveal the output gate; the step before it does.
    return ends if any(ends) else [_directions(new, _definitions(new), region.op_type, states) for new in last]


def _directions(last: Sum, news: Iterable[Sum], op_type: str, states: frozenset[ir.Value]) -> list[Direction]:
    """The directions by the first new state that belongs to a cell. last: the final state."""
    for new in news:
        found = [(cell, cell.source) for cell in cells(new, states) if cell.op_type == op_type]
        if found:
            return [Direction(cell, last.row == 0, x is not None and x.batch_first) for cell, x in found]
    return []


def _cell_states(state: ir.Value) -> Iterator[ir.Value]:
    """The factors of a function of a state that the next step also reads."""
    product = state.producer()
    for factor in product.inputs if product is not None and product.op_type == "Mul" else ():
        function = None if factor is None else factor.producer()
        argument = None if function is None or function.op_type not in FUNCTIONS else function.inputs[0]
        if argument is not None and len(argument.uses()) > 1:
            yield argument


def _definitions(total: Sum) -> Iterator[Sum]:
    """The definitions of the states in a sum."""
    for atom in total.terms:
        if atom.definition is not None:
            yield atom.definition
        for argument in atom.arguments:
            yield from _definitions(argument)


def _is_row(algebra: Algebra, value: ir.Value) -> bool:
    """Whether a value depends on one step of X alone."""
    new = _sum(algebra, value)
    return new is not None and new.is_linear() and all(atom.define is None for atom in new.terms)


def _leaves(region: Region, states: frozenset[ir.Value]) -> list[ir.Value]:
    """The values that the results consist of, without states that further steps read."""
    leaves: dict[ir.Value, None] = {}
    waiting, seen = list(region.results), set[ir.Value]()
    while waiting:
        value = waiting.pop(0)
        node = value.producer()
        if value in seen or value in states:
            continue
        seen.add(value)
        if node is None or node not in region.nodes:
            continue
        if node.op_type in SHAPING:
            inputs = node.inputs[1:2] if node.op_type == "Where" else node.inputs
            waiting += [operand for operand in inputs if operand is not None and constant(operand) is None]
        else:
            leaves[value] = None
    return list(leaves)


def arrays(directions: Sequence[Direction], dtype: np.dtype) -> dict[str, np.ndarray] | None:  # type: ignore[type-arg]
    """W, R, B and P of a node with these directions; None if they do not match."""
    stacked: dict[str, list[np.ndarray]] = {"W": [], "R": [], "B": [], "P": []}
    sizes = {len(gate.W) for direction in directions for gate in direction.cell.gates if len(gate.W)}
    if len(sizes) != 1:
        return None
    (features,) = sizes
    for direction in directions:
        gates, hidden = direction.cell.gates, direction.cell.hidden_size
        stacked["W"].append(np.concatenate([g.W.T if len(g.W) else np.zeros((hidden, features)) for g in gates]))
        stacked["R"].append(np.concatenate([g.R.T for g in gates]))
        biases = [_two_biases(g.b, g.Rb, dtype) for g in gates]
        stacked["B"].append(np.concatenate([*(w for w, _ in biases), *(r for _, r in biases)]))
        stacked["P"].append(np.concatenate([g.P for g in gates[:3]]) if len(gates) == 4 else np.zeros(0))
    if len({each.shape for each in stacked["R"]}) > 1:
        return None
    weights = {name: np.stack(parts).astype(dtype) for name, parts in stacked.items()}
    return {name: array for name, array in weights.items() if name in ("W", "R") or array.any()}


def _two_biases(b: np.ndarray, Rb: np.ndarray, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    """Wb and Rb, whose sum in the node is the unrounded bias."""
    if Rb.any():
        return b, Rb
    rounded = b.astype(dtype).astype(np.float64)
    return rounded, b - rounded
