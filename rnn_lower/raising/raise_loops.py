"""Replace loops and emitted subgraphs with recurrent nodes if they are proved to be the same function."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir import convenience
from onnx_ir.passes.common import RemoveUnusedNodesPass

from rnn_lower.builder.constants import Constant, ConstantPool, from_tensor
from rnn_lower.builder.graph_builder import GraphBuilder, detach
from rnn_lower.builder.names import Names
from rnn_lower.driver.plan import document_without_sequences
from rnn_lower.errors import UnsupportedError
from rnn_lower.ir.schemas import LOOPS
from rnn_lower.ir.walk import constant, default_opset, used_names, with_bodies
from rnn_lower.loops.unrolling import behind_identity
from rnn_lower.lowering.node import Dim
from rnn_lower.modelio.document import Document
from rnn_lower.options import OP_TYPES, Dims
from rnn_lower.proving.exact.equations import OUTPUTS
from rnn_lower.proving.model_inputs import chosen_inputs
from rnn_lower.proving.whole.whole_proof import prove_whole
from rnn_lower.raising import proposals
from rnn_lower.raising.algebra import NoGuessError
from rnn_lower.raising.proposals import Direction, Region
from rnn_lower.shapes.shape_info import ShapeInfo, plain_dim
from rnn_lower.transforms.fold import fold

MOST_TRIES, SECONDS = 48, 60.0
"""The maximum number of proposals to compare for one loop, and the time limit for all of them."""


@dataclasses.dataclass(frozen=True)
class Raised:
    """The result for a loop or chain. op_type: the operator of the new node; empty if the loop stays.

    bound: the probability that another function would have passed the proof.  why: the reason why the loop stays.
    """

    name: str
    op_type: str = ""
    bound: float = 1.0
    why: str = ""


@dataclasses.dataclass(frozen=True)
class Proposal:
    """Nodes and constants that may replace a region. results: in the order of the region's.

    read: the run-time values that they read.  batches: the batch sizes of X and of the states; they are equal in a
    node, but a loop may broadcast them.  repeats: whether it may repeat the only row of a state.
    """

    op_type: str
    nodes: Sequence[ir.Node]
    constants: Sequence[ir.Value]
    results: Sequence[ir.Value]
    read: Sequence[ir.Value]
    batches: Sequence[Dim]
    repeats: bool


def raise_document(document: Document, dims: Dims | None = None) -> tuple[Document, list[Raised]]:
    """The model with loops replaced by recurrent nodes, and the result for each loop."""
    if document.proto.training_info:
        raise UnsupportedError(
            "the model has training_info, which can refer to nodes of the loops that would be "
            "replaced; remove training_info"
        )
    if dims:
        document = document.copied().fixed(dims)
    results: list[Raised] = []
    raised = document_without_sequences(document).changed(lambda model: results.extend(raise_loops(model)))
    return (raised if any(result.op_type for result in results) else document), results


def raised_document(document: Document, dims: Dims | None) -> Document:
    """The model with loops replaced by recurrent nodes, for the prover."""
    return raise_document(document, dims)[0]


def raise_loops(model: ir.Model) -> list[Raised]:
    """Replace loops and chains of steps with recurrent nodes, in place, if the proof succeeds."""
    results: list[Raised] = []
    chosen = list(proposals.regions(model))
    twin = _folded(model) if chosen else None
    for region in chosen:
        assert twin is not None
        result = _raise_region(model, region, twin)
        if result is not None:
            results.append(result)
            if result.op_type:
                twin = _folded(model)
    if any(raised.op_type for raised in results):
        RemoveUnusedNodesPass()(model)
    return results


def _folded(model: ir.Model) -> ir.Model:
    """A copy to guess from, with constants folded and unchanged states replaced by their initial values."""
    twin = model.clone()
    for node in twin.graph:
        if node.op_type == "Loop" and node.domain == "" and "body" in node.attributes:
            body = node.attributes["body"].as_graph()
            for before, after, start in zip(body.inputs[2:], body.outputs[1:], node.inputs[2:], strict=False):
                if behind_identity(after) is before and start is not None:
                    for user, index in list(before.uses()):
                        user.replace_input_with(index, start)
    fold(twin)
    loops = {node.name: node for node in model.graph if node.name and node.op_type in LOOPS}
    for node in twin.graph:  # an Identity that folding removes has left its name to a result of the loop
        for value, old in zip(node.outputs, loops[node.name].outputs if node.name in loops else (), strict=False):
            value.name = old.name
    return twin


def _raise_region(model: ir.Model, region: Region, twin: ir.Model) -> Raised | None:
    """The result for one region; None for emitted nodes without a recurrence."""
    if not region.results or (not region.loops and not region.op_type):
        return None
    shape_info = ShapeInfo(model).inferred_now()
    deadline, why = time.thread_time() + SECONDS, "raise recognizes no RNN, GRU or LSTM in its steps"
    if not region.op_type and any(_reads_number(loop) for loop in region.loops if loop.op_type == "Loop"):
        return Raised(region.name, why="its steps use their number for more than selecting their inputs")
    if not region.op_type and any(node.op_type == "Softplus" for node in with_bodies(region.loops)):
        return Raised(region.name, why="onnxruntime computes infinity for the activation Softplus above 88.7")
    if held := next((node.op_type for node in with_bodies(region.loops) if node.op_type in OP_TYPES), ""):
        text = f"its steps contain a node {held}; lower the model first (rnn-lower lower), and try again"
        return Raised(region.name, why=text)
    if any(_is_choice(node, shape_info) for loop in region.loops for node in loop.attributes["body"].as_graph()):
        why = (
            "its steps select values by a boolean condition (for example, a mask that skips steps in "
            "mid-sequence), which no recurrent node can do"
        )
    for proposal in itertools.islice(_proposals(model, region, twin, shape_info), MOST_TRIES):
        if proposal.repeats:
            text = "an initial state has one row, which the loop may repeat for each row of the batch"
            why = f"{text}; if the batch size is 1, set it (--dim)"
            continue
        model.graph.extend(proposal.nodes)
        for value in proposal.constants:
            model.graph.register_initializer(value)
        bound, why = _proved(model, region, proposal, shape_info, deadline)
        if bound is not None:
            _replace(model.graph, region, proposal)
            for value in model.graph.inputs:
                value.shape = _with_one_batch(value.shape, proposal.batches)
            return Raised(region.name, proposal.op_type, bound)
        detach(proposal.nodes)
        model.graph.remove(proposal.nodes)
        for value in proposal.constants:
            del model.graph.initializers[str(value.name)]
        if time.thread_time() > deadline:
            break
    return Raised(region.name, why=why)


def _is_choice(node: ir.Node, shape_info: ShapeInfo) -> bool:
    """Whether booleans select values in a step; tf2onnx multiplies by them."""
    x = node.inputs[0] if node.inputs else None
    return node.op_type == "Where" or (
        node.op_type == "Cast" and x is not None and shape_info.dtype(x) == ir.DataType.BOOL
    )


def _reads_number(loop: ir.Node) -> bool:
    """Whether the number of a step reaches a state or a result of a Loop other than as the position of an input."""
    body = loop.attributes["body"].as_graph()
    waiting, seen = [body.inputs[0]], set[ir.Value]()
    while waiting:
        value = waiting.pop()
        seen.add(value)
        for node, index in value.uses():
            selects = node.op_type in ("Gather", "Slice") and index > 0
            waiting += [] if selects else [out for out in node.outputs if out not in seen]
    return any(value in seen for value in body.outputs[1:])


def _replace(graph: ir.Graph, region: Region, proposal: Proposal) -> None:
    for old, new in zip(region.results, proposal.results, strict=True):
        old.name, new.name, new.type, new.shape = f"{old.name}/raised", old.name, old.type, old.shape
        old.replace_all_uses_with(new, replace_graph_outputs=True)
    detach(region.nodes)
    graph.remove(region.nodes)
    graph.sort()


# -- proposing -------------------------------------------------------------------------------------------------------


def _proposals(model: ir.Model, region: Region, twin: ir.Model, shape_info: ShapeInfo) -> Iterator[Proposal]:
    """The nodes that may equal a region, according to its copy with folded constants."""
    names = [value.name for value in region.results]
    twin_region = next(
        (candidate for candidate in proposals.regions(twin) if [value.name for value in candidate.results] == names),
        None,
    )
    if twin_region is None:
        return
    twin_facts, opset = ShapeInfo(twin).inferred_now(), default_opset(model.opset_imports) or 0
    emitted = frozenset(twin_region.nodes if region.op_type else ())
    try:
        ends = [list(proposals.directions_of_loop(loop, twin_facts, opset, emitted)) for loop in twin_region.loops]
        ends = ends or proposals.directions_of_chain(twin_region, twin_facts, opset)
    except (NoGuessError, ValueError, KeyError, IndexError):  # the loop has an unknown structure
        return
    for op_type in [region.op_type] if region.op_type else ["RNN", "GRU", "LSTM"]:
        chosen = [[direction for direction in each if direction.cell.op_type == op_type] for each in ends]
        for picked in itertools.product(*(each for each in chosen if each)):
            two = sorted(picked, key=lambda direction: direction.reverse)
            if picked and [direction.reverse for direction in two] in ([False], [True], [False, True]):
                yield from _nodes(model, region, two, shape_info)


def _nodes(
    model: ir.Model, region: Region, directions: Sequence[Direction], shape_info: ShapeInfo
) -> Iterator[Proposal]:
    """The nodes that may compute these directions, with every wiring of inputs and outputs."""
    cell, opset = directions[0].cell, default_opset(model.opset_imports) or 0
    transposed = directions[0].batch_first and not region.op_type  # onnxruntime does not support layout 1
    directions = [dataclasses.replace(one, batch_first=one.batch_first and not transposed) for one in directions]
    values = convenience.create_value_mapping(model.graph, include_subgraphs=False)
    read = {None if (atom := direction.cell.x) is None else atom.value for direction in directions}
    (source,) = read if len(read) == 1 else (None,)
    x = None if source is None else values.get(str(source.name))
    dtype = None if x is None else shape_info.dtype(x)
    shape = None if x is None else shape_info.shape(x)
    if x is None or dtype is None or (shape is not None and len(shape) != 3):
        return
    held, attributes = proposals.arrays(directions, dtype.numpy()), _attributes(directions, opset)
    if held is None or attributes is None:
        return
    weights = {name: dataclasses.replace(from_tensor(ir.tensor(array)), name=name) for name, array in held.items()}
    own = (
        _own_wirings(region, x, directions, shape_info)
        if region.op_type
        else _loop_wirings(region, directions[0], values)
    )
    for wiring in own:
        names = Names(used_names(model))
        b = GraphBuilder(opset, dtype, names, ConstantPool(names, model.ir_version < 4), region.name)
        states = [b.unsqueeze(state, [0], "state") if wiring.bare and state else state for state in wiring.states]
        inputs = [
            b.transpose(x, [1, 0, 2], "steps_first") if transposed else x,
            *(weights.get(name) for name in "WRB"),
            wiring.lengths,
            *states,
        ]  # type: ignore[list-item]
        inputs += [weights["P"]] if "P" in weights else []
        count = max(index for index, operand in enumerate(inputs) if operand is not None) + 1
        kinds = OUTPUTS[: 3 if cell.op_type == "LSTM" else 2]
        outputs = {kind: b.new_value(kind if kind in wiring.roles else "unused") for kind in kinds}
        for kind in kinds:
            outputs[kind].name = outputs[kind].name if kind in wiring.roles else ""
        b.append(ir.Node(
            "", cell.op_type, [b.value(operand) for operand in inputs[:count]],  # type: ignore[arg-type]
            convenience.convert_attributes(attributes), outputs=list(outputs.values()), name=names.unique(region.name),
        ))  # fmt: skip
        results = [
            outputs[role] if axis is None else b.op("Squeeze", outputs[role], name=f"{role}_squeezed", axes=[axis])
            for role, axis in zip(wiring.roles, wiring.axes, strict=True)
        ]
        for index in wiring.turned:
            results[index] = b.op("Transpose", results[index], name="batch_first", perm=[1, 0, 2])
        known = [
            _moved(value)
            for value in (x, wiring.lengths, *wiring.states)
            if isinstance(value, ir.Value) and constant(value) is None
        ]
        axis = 0 if transposed or "layout" in attributes else 1
        read_states = [state for state in wiring.states if isinstance(state, ir.Value)]
        batch_axes = [(x, axis), *((state, 0 if wiring.bare else axis) for state in read_states)]
        batches = _batches(batch_axes, shape_info)
        yield Proposal(cell.op_type, b.nodes, b.pool.initializers, results, known, *batches)


def _batches(axes: Sequence[tuple[ir.Value, int]], shape_info: ShapeInfo) -> tuple[list[Dim], bool]:
    """The known batch sizes, a number first if there is one, and whether a loop may repeat the only row of a state.

    axes: of X and of the states.
    """
    shapes = [(shape_info.shape(value), axis) for value, axis in axes]
    rows, *of_states = [shape[axis] if shape is not None and len(shape) > axis else None for shape, axis in shapes]
    sizes = (size for size in dict.fromkeys((rows, *of_states)) if size is not None)
    return sorted(sizes, key=lambda size: isinstance(size, str)), rows != 1 and 1 in of_states


def _with_one_batch(shape: ir.Shape | None, batches: Sequence[Dim]) -> ir.Shape | None:
    """A shape in which equal sizes have one name."""
    tied = [dim for dim in shape or () if plain_dim(dim) in batches[1:]]
    if shape is None or len(tied) != 1:  # two axes of one name: one of them is time
        return shape
    return ir.Shape([batches[0] if plain_dim(dim) in batches[1:] else dim for dim in shape])


def _moved(value: ir.Value) -> ir.Value:
    """The value before a Transpose, because a loop may read the sizes of either."""
    while (node := value.producer()) is not None and node.op_type in ("Identity", "Transpose") and node.domain == "":
        if node.inputs[0] is None:
            break
        value = node.inputs[0]
    return value


def _attributes(directions: Sequence[Direction], opset: int) -> dict[str, Any] | None:
    """The attributes of a node; None if the directions disagree."""
    cell = directions[0].cell
    settings = {
        (direction.cell.limit, direction.cell.reset_after, direction.cell.coupled, direction.batch_first)
        for direction in directions
    }
    if len(settings) > 1 or (directions[0].batch_first and opset < 14):
        return None
    kind = "bidirectional" if len(directions) == 2 else "reverse" if directions[0].reverse else "forward"
    functions = [function for direction in directions for function in direction.cell.functions]
    attributes: dict[str, Any] = {"hidden_size": cell.hidden_size, "direction": kind}
    attributes["activations"] = [name for name, _, _ in functions]
    for key, index in (("activation_alpha", 1), ("activation_beta", 2)):
        attributes[key] = [float(function[index]) for function in functions if function[index] is not None]  # type: ignore[arg-type]
    attributes |= {"clip": cell.limit, "linear_before_reset": int(cell.reset_after), "input_forget": int(cell.coupled)}
    attributes["layout"] = int(directions[0].batch_first)
    return {name: value for name, value in attributes.items() if value not in (None, 0, [])}


@dataclasses.dataclass(frozen=True)
class _Wiring:
    """The wiring of a node: sequence_lens, initial states, and the node's output for each result of the region.

    axes: the direction axis, which the results lack.  bare: whether the states lack it, too.
    turned: results that have the batch first.
    """

    lengths: ir.Value | None
    states: Sequence[ir.Value | Constant | None]
    roles: Sequence[str]
    axes: Sequence[int | None]
    bare: bool = False
    turned: Sequence[int] = ()


def _own_wirings(
    region: Region, x: ir.Value, directions: Sequence[Direction], shape_info: ShapeInfo
) -> Iterator[_Wiring]:  # fmt: skip
    """The wirings of emitted nodes; equal candidates are tried in each order."""
    operands = [value for value in proposals.inputs_of(region) if value is not x]
    lengths = [value for value in operands if (dtype := shape_info.dtype(value)) is not None and dtype.is_integer()]
    states = [value for value in operands if value not in lengths]
    count = 2 if directions[0].cell.op_type == "LSTM" else 1
    kinds = OUTPUTS[: count + 1]
    if len(lengths) > 1 or len(region.results) > len(kinds) or len(states) > 2:
        return
    starts: list[tuple[ir.Value | Constant | None, ...]]
    starts = [chosen for chosen in itertools.permutations([*states, None], count)
              if len([state for state in chosen if state is not None]) == len(states)]  # fmt: skip
    starts += [(states[0], states[0])] if len(states) == 1 and count == 2 else []
    starts = starts if states else [_constant_states(directions) or (None,) * count]
    ranks = [None if (shape := shape_info.shape(value)) is None else len(shape) for value in region.results]
    for roles in itertools.permutations(kinds, len(region.results)):
        if all(rank is None or (rank == 4) == (role == "Y") for rank, role in zip(ranks, roles, strict=True)):
            for start in starts:
                yield _Wiring(lengths[0] if lengths else None, start, roles, [None] * len(roles))


def _constant_states(directions: Sequence[Direction]) -> tuple[Constant, ...]:
    """The initial states of all directions, if they are constants other than 0."""
    axis, states = 1 if directions[0].batch_first else 0, list[np.ndarray]()
    for kind in zip(*(direction.initial for direction in directions), strict=True):
        arrays = [array for value in kind if (array := constant(value)) is not None]
        if len(arrays) < len(kind) or len({array.shape for array in arrays}) > 1:
            return ()
        states.append(np.stack(arrays, axis))
    is_zero = not any(state.any() for state in states)
    return () if is_zero else tuple(from_tensor(ir.tensor(state, name="initial_state")) for state in states)


def _loop_wirings(region: Region, direction: Direction, values: Mapping[str, ir.Value]) -> Iterator[_Wiring]:
    """The wirings of a loop, whose states lack the direction axis."""
    roles = {str(value.name): role for value, role in direction.outputs}
    wanted = [roles.get(str(value.name)) for value in region.results]
    starts = [None if value is None else values.get(str(value.name)) for value in direction.initial]
    states = [None if value is None or _is_zero(value) else value for value in starts]
    axes = {"Y": 1, "Y_turned": 1, "Y_h": 0, "Y_c": 0, "Y_direction": None}
    if None not in wanted:
        names = [str(role) for role in wanted]
        kinds = [name.removesuffix("_direction").removesuffix("_turned") for name in names]
        turned = [index for index, name in enumerate(names) if name == "Y_turned"]
        yield _Wiring(None, states, kinds, [axes[name] for name in names], True, turned)


def _is_zero(value: ir.Value) -> bool:
    """Whether a value is all zeros; the proof checks this again."""
    array, node = constant(value), value.producer()
    if array is not None:
        return not np.asarray(array, np.float64).any()
    if node is None or node.op_type not in ("Expand", "ConstantOfShape", "Identity", "Reshape", "Tile"):
        return False
    if node.op_type == "ConstantOfShape":
        fill = node.attributes.get("value")
        return fill is None or not np.asarray(fill.as_tensor().numpy(), np.float64).any()
    return node.inputs[0] is not None and _is_zero(node.inputs[0])


# -- proving ---------------------------------------------------------------------------------------------------------


def _proved(
    model: ir.Model, region: Region, proposal: Proposal, shape_info: ShapeInfo, deadline: float
) -> tuple[float | None, str]:
    """The error bound of the proof that a region equals a proposal, or None and the reason.

    Both read X and the initial states as inputs; if this loses too much, both compute them from the model's inputs.
    """
    if sum(math.prod(value.shape.numpy()) for value in proposal.constants if value.shape is not None) > 1 << 24:
        return None, "its weights are too large for the proof"
    why = ""
    for cut in (proposal.read, ()):
        pair = _pair(model, region, proposal, cut, shape_info)
        if pair is None:
            continue
        proof = prove_whole(*pair, points=2, seed=1, deadline=deadline, exact_sizes=True)
        if proof.nodes and proof.ok:
            return proof.bound, ""
        why = "; ".join(proof.reasons)
    return None, f"it may be equivalent to {proposal.op_type}, but the proof failed: {why}"


def _pair(
    model: ir.Model, region: Region, proposal: Proposal, cut: Sequence[ir.Value], shape_info: ShapeInfo
) -> tuple[Document, Document] | None:
    """Two models that compute the results of the region: with its own nodes, and with the proposed ones."""
    inputs = list(dict.fromkeys([*cut, *chosen_inputs(model)]))
    graphs = [convenience.extract(model.graph, inputs, list(ends)) for ends in (region.results, proposal.results)]
    for name, *outputs in zip(
        (value.name for value in region.results), *(graph.outputs for graph in graphs), strict=True
    ):
        for value in outputs:
            value.name = name
    documents = []
    for index, value in reversed(list(enumerate(inputs))):
        copies = [graph.inputs[index] for graph in graphs]
        shape, dtype = shape_info.shape(value), shape_info.dtype(value)
        if not any(copy.uses() or copy.is_graph_output() for copy in copies):
            for graph in graphs:
                del graph.inputs[index]
        elif shape is None or dtype is None:
            return None
        for copy in copies:
            copy.shape = None if shape is None else _with_one_batch(ir.Shape(
                [f"{value.name}/{axis}" if size is None else size for axis, size in enumerate(shape)]
            ), proposal.batches)  # fmt: skip
            copy.type = None if dtype is None else ir.TensorType(dtype)
    for graph in graphs:
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = ir.tensor(value.const_value.numpy(), name=value.name)
        documents.append(Document(ir.to_proto(ir.Model(graph, ir_version=max(8, model.ir_version or 8)))))
    return documents[0], documents[1]
