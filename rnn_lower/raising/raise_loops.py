"""Loops, and what lowering has emitted, as recurrent nodes, where it is proved that they are the same function."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Iterator, Sequence

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from rnn_lower.builder.graph_builder import detach
from rnn_lower.builder.names import Names
from rnn_lower.errors import UnsupportedError
from rnn_lower.ir.walk import default_opset, taken_names
from rnn_lower.loops.unrolling import behind_identity
from rnn_lower.modelio.document import Document
from rnn_lower.options import Dims
from rnn_lower.proving.algebraic_patterns import constant
from rnn_lower.proving.program import read_by
from rnn_lower.proving.report import PROVED
from rnn_lower.proving.whole import prove_whole
from rnn_lower.raising.algebra import NoGuessError
from rnn_lower.raising.proposals import (
    Direction,
    Region,
    arrays,
    directions_of_chain,
    directions_of_loop,
    inputs_of,
    regions,
)
from rnn_lower.shapes.shape_info import Facts
from rnn_lower.transforms.fold import fold

MOST_TRIES, SECONDS = 48, 60.0
"""Proposals that are compared for one loop, and the time for all of them."""


@dataclasses.dataclass(frozen=True)
class Raised:
    """A loop, or a chain of steps, and what has become of it. op_type: of the node; empty where it stays.

    bound: the chance that another function would have passed.  why: it stays.
    """

    name: str
    op_type: str = ""
    bound: float = 1.0
    why: str = ""


@dataclasses.dataclass(frozen=True)
class Proposal:
    """Nodes and constants that could take the place of a region, as messages. outputs: the values that they compute."""

    op_type: str
    nodes: Sequence[onnx.NodeProto]
    constants: Sequence[onnx.TensorProto]
    x: ir.Value
    inputs: Sequence[ir.Value]


def raise_document(document: Document, dims: Dims | None = None) -> tuple[Document, list[Raised]]:
    """A model with recurrent nodes in the place of loops, and what became of each; it stays where nothing is raised."""
    if document.proto.training_info:
        raise UnsupportedError("the model has training_info, which refers to what raising removes")
    if dims:
        document = document.copied().fixed(dims)
    results: list[Raised] = []
    made = document.changed(lambda model: results.extend(raise_loops(model)))
    return (made if any(one.op_type for one in results) else document), results


def raise_loops(model: ir.Model) -> list[Raised]:
    """Put recurrent nodes in the place of loops and chains of steps, in place; what is not proved stays as it is."""
    results: list[Raised] = []
    chosen = list(regions(model))
    twin = _folded(model) if chosen else None
    for region in chosen:
        assert twin is not None
        result = _raise_one(model, region, twin)
        if result is not None:
            results.append(result)
            if result.op_type:
                twin = _folded(model)
    if any(one.op_type for one in results):
        RemoveUnusedNodesPass()(model)
    return results


def _folded(model: ir.Model) -> ir.Model:
    """A copy to guess from: constants folded, and states that no step changes read from where they come."""
    twin = model.clone()
    for node in twin.graph:
        if node.op_type == "Loop" and node.domain == "":
            body = node.attributes["body"].as_graph()
            for before, after, start in zip(body.inputs[2:], body.outputs[1:], node.inputs[2:], strict=False):
                if behind_identity(after) is before and start is not None:
                    for user, index in list(before.uses()):
                        user.replace_input_with(index, start)
    fold(twin)
    return twin


def _raise_one(model: ir.Model, region: Region, twin: ir.Model) -> Raised | None:
    """What becomes of one region; None for nodes that lowering emitted and that are no recurrence."""
    facts = Facts(model).settled()
    names = Names(taken_names(model))
    if not region.results or (not region.loops and not region.op_type):
        return None
    deadline, why = time.thread_time() + SECONDS, "no recurrent node computes such a state"
    for proposal in itertools.islice(_proposals(model, region, twin, facts, names), MOST_TRIES):
        bound, why = _proved(model, region, proposal, facts, deadline)
        if bound is not None:
            _apply(model, region, proposal)
            return Raised(region.name, proposal.op_type, bound)
        if time.thread_time() > deadline:
            break
    return Raised(region.name, why=why)


# -- proposing -------------------------------------------------------------------------------------------------------


def _proposals(model: ir.Model, region: Region, twin: ir.Model, facts: Facts, names: Names) -> Iterator[Proposal]:
    names_of = [value.name for value in region.results]
    theirs = next((one for one in regions(twin) if [value.name for value in one.results] == names_of), None)
    if theirs is None:
        return
    twin_facts = Facts(twin).settled()
    values, opset = _values(model), default_opset(model.opset_imports) or 0
    try:
        if region.op_type:
            emitted = frozenset(theirs.nodes)
            ends = [list(directions_of_loop(loop, twin_facts, opset, emitted)) for loop in theirs.loops]
            ends = ends or directions_of_chain(theirs, twin_facts, opset)
        else:
            ends = [list(directions_of_loop(theirs.loops[0], twin_facts, opset))]
    except (NoGuessError, ValueError, KeyError, IndexError):  # a loop of another build than any that is known here
        return
    op_types = [region.op_type] if region.op_type else ["RNN", "GRU", "LSTM"]
    for op_type in op_types:
        chosen = [[one for one in each if one.cell.op_type == op_type] for each in ends]
        chosen = [each for each in chosen if each]
        for picked in itertools.product(*chosen):
            two = sorted(picked, key=lambda one: one.reverse)
            if not picked or len(picked) > 2 or (len(two) == 2 and two[0].reverse == two[1].reverse):
                continue
            yield from _nodes(region, two, values, facts, names, opset)


def _values(model: ir.Model) -> dict[str, ir.Value]:
    graph = model.graph
    made = (out for node in graph for out in node.outputs)
    return {str(value.name): value for value in (*graph.inputs, *graph.initializers.values(), *made) if value.name}


def _nodes(
    region: Region, directions: Sequence[Direction], values: dict[str, ir.Value], facts: Facts, names: Names, opset: int
) -> Iterator[Proposal]:
    """The nodes that directions could be, with every order of what they read and give."""
    cell = directions[0].cell
    read = {None if (atom := one.cell.x) is None else atom.value for one in directions}
    (source,) = read if len(read) == 1 else (None,)
    x = None if source is None else values.get(str(source.name))
    dtype = None if x is None else facts.dtype(x)
    if x is None or dtype is None:
        return
    held = arrays(directions, dtype.numpy())
    attributes = _attributes(directions, opset)
    if held is None or attributes is None:
        return
    constants = [
        onnx.numpy_helper.from_array(array, names.unique(f"{region.name}/{name}")) for name, array in held.items()
    ]
    weights = dict(zip(held, (tensor.name for tensor in constants), strict=True))
    if region.op_type:
        wirings = _own_wirings(region, x, cell.op_type, facts)
    else:
        wirings = _loop_wirings(region, directions[0], values, names)
    for wiring in wirings:
        inputs = [str(x.name), weights["W"], weights["R"], weights.get("B", ""), *wiring.inputs]
        inputs += [weights["P"]] if "P" in weights else []
        inputs = inputs[: next((k for k in range(len(inputs), 0, -1) if inputs[k - 1]), 0)]
        outputs = [wiring.outputs.get(name, "") for name in ("Y", "Y_h", *(["Y_c"] if cell.op_type == "LSTM" else []))]
        node = onnx.helper.make_node(cell.op_type, inputs, outputs, name=names.unique(region.name), **attributes)
        nodes = [*wiring.before, node, *wiring.after]
        yield Proposal(cell.op_type, nodes, [*constants, *wiring.constants], x, wiring.read)


def _attributes(directions: Sequence[Direction], opset: int) -> dict[str, object] | None:
    """The attributes of a node; None where the directions differ in what a node has once."""
    cell = directions[0].cell
    alike = {(one.cell.limit, one.cell.reset_after, one.cell.coupled, one.batch_first) for one in directions}
    if len(alike) > 1 or (directions[0].batch_first and opset < 14):
        return None
    kind = "bidirectional" if len(directions) == 2 else "reverse" if directions[0].reverse else "forward"
    functions = [function for one in directions for function in one.cell.functions]
    attributes: dict[str, object] = {"hidden_size": cell.hidden_size, "direction": kind}
    attributes["activations"] = [name for name, _, _ in functions]
    for key, place in (("activation_alpha", 1), ("activation_beta", 2)):
        numbers = [float(function[place]) for function in functions if function[place] is not None]  # type: ignore[arg-type]
        if numbers:
            attributes[key] = numbers
    attributes.update({"clip": cell.limit} if cell.limit is not None else {})
    attributes.update({"linear_before_reset": 1} if cell.reset_after else {})
    attributes.update({"input_forget": 1} if cell.coupled else {})
    attributes.update({"layout": 1} if directions[0].batch_first else {})
    return attributes


@dataclasses.dataclass(frozen=True)
class _Wiring:
    """How a node is connected: sequence_lens and states by name, outputs by role, nodes before and behind it."""

    inputs: Sequence[str]
    outputs: dict[str, str]
    before: Sequence[onnx.NodeProto] = ()
    after: Sequence[onnx.NodeProto] = ()
    constants: Sequence[onnx.TensorProto] = ()
    read: Sequence[ir.Value] = ()


def _own_wirings(region: Region, x: ir.Value, op_type: str, facts: Facts) -> Iterator[_Wiring]:
    """What lowering has emitted reads and gives what a node does; of two alike each may be either."""
    others = [value for value in inputs_of(region) if value is not x]
    lengths = [value for value in others if (dtype := facts.dtype(value)) is not None and dtype.is_integer()]
    states = [value for value in others if value not in lengths]
    kinds = ("Y", "Y_h", "Y_c") if op_type == "LSTM" else ("Y", "Y_h")
    if len(lengths) > 1 or len(region.results) > len(kinds) or len(states) > 2:
        return
    places = 2 if op_type == "LSTM" else 1
    starts = [list(chosen) for chosen in itertools.permutations([*states, None], places)
              if len([one for one in chosen if one is not None]) == len(states)]  # fmt: skip
    starts += [[states[0], states[0]]] if len(states) == 1 and places == 2 else []
    starts = starts if states else [[None] * places]
    ranks = [None if (shape := facts.shape(value)) is None else len(shape) for value in region.results]
    for roles in itertools.permutations(kinds, len(region.results)):
        if any(rank is not None and (rank == 4) != (role == "Y") for rank, role in zip(ranks, roles, strict=True)):
            continue
        outputs = {role: str(value.name) for role, value in zip(roles, region.results, strict=True)}
        for start in starts:
            names = ["" if value is None else str(value.name) for value in start]
            yield _Wiring([*(str(v.name) for v in lengths), *([] if lengths else [""]), *names], outputs, read=others)


def _loop_wirings(region: Region, one: Direction, values: dict[str, ir.Value], names: Names) -> Iterator[_Wiring]:
    """A loop carries its states without the axis of directions."""
    roles = {str(value.name): role for value, role in one.outputs}
    if not all(str(value.name) in roles for value in region.results):
        return
    axis = {
        k: onnx.numpy_helper.from_array(np.array([k], np.int64), names.unique(f"{region.name}/axis")) for k in (0, 1)
    }
    before, starts, read = [], [], []
    for value in one.initial:
        own = None if value is None else values.get(str(value.name))
        if own is None or _is_zero(own):
            starts.append("")
            continue
        starts.append(names.unique(f"{own.name}/direction"))
        before.append(onnx.helper.make_node("Unsqueeze", [str(own.name), axis[0].name], [starts[-1]], name=starts[-1]))
        read += [own] if constant(own) is None else []
    after, outputs = [], {}
    for value in region.results:
        role = roles[str(value.name)]
        if role == "Y_direction":
            outputs["Y"] = str(value.name)
            continue
        outputs[role] = names.unique(f"{region.name}/{role}")
        after.append(onnx.helper.make_node("Squeeze", [outputs[role], axis[int(role == "Y")].name], [str(value.name)],
                                           name=names.unique(f"{region.name}/{role}_squeezed")))  # fmt: skip
    yield _Wiring(["", *starts], outputs, before, after, list(axis.values()), read)


def _is_zero(value: ir.Value) -> bool:
    """Whether a value is zeros, whatever its sizes; the proof looks at it again."""
    array = constant(value)
    node = value.producer()
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
    model: ir.Model, region: Region, proposal: Proposal, facts: Facts, deadline: float
) -> tuple[float | None, str]:
    """The chance of an error of a proof that the region is the proposal; None and why where there is none.

    Both read X and initial states as what they are; where that loses too much, all is computed from the inputs.
    """
    if sum(math.prod(tensor.dims) for tensor in proposal.constants) > 1 << 24:
        return None, "its weights are too large to be compared"
    why = ""
    for cut in ({proposal.x, *proposal.inputs}, set[ir.Value]()):
        pair = _pair(model, region, proposal, cut, facts)
        if pair is None:
            continue
        proof = prove_whole(*pair, points=2, seed=1, deadline=deadline, exact_sizes=True)
        if proof.nodes and all(node.verdict == PROVED for node in proof.nodes):
            return proof.bound, ""
        why = proof.nodes[0].reason if proof.nodes else "; ".join(proof.changed)
    return None, f"it may be {proposal.op_type}, but the proof failed: {why}"


def _pair(
    model: ir.Model, region: Region, proposal: Proposal, cut: set[ir.Value], facts: Facts
) -> tuple[Document, Document] | None:
    """Two models of the values that the region gives: by its own nodes, and by those that are proposed."""
    order = {node: index for index, node in enumerate(model.graph)}
    read = [proposal.x, *proposal.inputs]
    ours, begins = _needed(region.results, cut)
    shared, more = _needed(read, cut)
    inputs = []
    for value in dict.fromkeys([*begins, *more]):
        shape, dtype = facts.shape(value), facts.dtype(value)
        if shape is None or dtype is None or not value.name:
            return None
        sizes = [dim if dim is not None else f"{value.name}/{axis}" for axis, dim in enumerate(shape)]
        inputs.append(onnx.helper.make_tensor_value_info(value.name, dtype.value, sizes))
    outputs = [onnx.ValueInfoProto(name=str(value.name)) for value in region.results]
    documents = []
    for nodes, extra in ((ours, ()), (shared, proposal.nodes)):
        messages = [*(ir.to_proto(node) for node in sorted(nodes, key=order.__getitem__)), *extra]
        weights = _weights(nodes, model, read)
        graph = onnx.helper.make_graph(
            messages, "one", inputs, outputs, [*weights, *(proposal.constants if extra else ())]
        )
        imports = [onnx.helper.make_opsetid(domain, version) for domain, version in model.opset_imports.items()]
        proto = onnx.helper.make_model(graph, opset_imports=imports, ir_version=max(8, model.ir_version or 8))
        documents.append(Document(proto))
    return documents[0], documents[1]


def _needed(wanted: Sequence[ir.Value], cut: set[ir.Value]) -> tuple[set[ir.Node], list[ir.Value]]:
    """The nodes that compute values, and the values at which that begins."""
    nodes, roots, waiting, seen = set[ir.Node](), [], list(wanted), set[ir.Value]()
    while waiting:
        value = waiting.pop()
        if value in seen or (constant(value) is not None and value.producer() is None):
            continue
        seen.add(value)
        node = value.producer()
        if value in cut or node is None:
            roots.append(value)
            continue
        if node not in nodes:
            nodes.add(node)
            waiting += [one for one in read_by(node) if one.name]
    return nodes, roots


def _weights(nodes: set[ir.Node], model: ir.Model, more: Sequence[ir.Value]) -> list[onnx.TensorProto]:
    read = dict.fromkeys([*more, *(value for node in nodes for value in read_by(node))])
    chosen = [
        value for value in read if value.is_initializer() and not value.is_graph_input() and value.graph is model.graph
    ]
    tensors = []
    for value in chosen:
        if value.const_value is not None:
            tensor = onnx.numpy_helper.from_array(value.const_value.numpy(), str(value.name))
            tensors.append(tensor)
    return tensors


def _apply(model: ir.Model, region: Region, proposal: Proposal) -> None:
    """Put the proposed nodes in the place of the region."""
    values = _values(model)
    for tensor in proposal.constants:
        value = ir.Value(name=tensor.name, const_value=ir.serde.deserialize_tensor(tensor))
        value.type, value.shape = ir.TensorType(value.const_value.dtype), ir.Shape(tensor.dims)  # type: ignore[union-attr]
        model.graph.register_initializer(value)
        values[tensor.name] = value
    results = {str(value.name): value for value in region.results}
    for message in proposal.nodes:
        made = [ir.Value(name=name) for name in message.output]
        inputs = [values[name] if name else None for name in message.input]
        attributes = [ir.serde.deserialize_attribute(attribute) for attribute in message.attribute]
        model.graph.append(ir.Node("", message.op_type, inputs, attributes, outputs=made, name=message.name))
        values.update({str(value.name): value for value in made if value.name})
    for name, old in results.items():
        new_value = values[name]
        new_value.type, new_value.shape = old.type, old.shape
        old.name = f"{name}/raised"
        old.replace_all_uses_with(new_value, replace_graph_outputs=True)
    detach(region.nodes)
    model.graph.remove(region.nodes)
    model.graph.sort()
