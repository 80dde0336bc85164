"""Prove that two models are the same function: nodes by exact arithmetic, everything else field by field."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import onnx
import onnx_ir as ir

from rnn_lower.driver.legalize_rest import LEGALIZED
from rnn_lower.driver.lower_pass import prepared
from rnn_lower.driver.plan import read_document
from rnn_lower.driver.suggestions import unlogged
from rnn_lower.errors import ConversionError, RnnLowerError
from rnn_lower.ir import protobuf
from rnn_lower.ir.walk import (
    NODE_MARK,
    Scope,
    known_tensor,
    nodes,
    opset_of,
    owner_of,
    recurrent_nodes,
    roots,
    subgraphs,
)
from rnn_lower.modelio import files
from rnn_lower.modelio.document import Document
from rnn_lower.opset.convert import converted
from rnn_lower.options import Dims, Options
from rnn_lower.proving import model_diff
from rnn_lower.proving.equations import INPUTS
from rnn_lower.proving.inline import CallError, without_made_calls
from rnn_lower.proving.model_inputs import fixed_sizes
from rnn_lower.proving.new_faults import new_faults
from rnn_lower.proving.node_proof import Task, prove_node
from rnn_lower.proving.program import read_by
from rnn_lower.proving.report import DIFFERENT, NodeProof, Proof
from rnn_lower.proving.whole import prove_whole, raises, rewrites_loops
from rnn_lower.sandbox.resource_limits import one_child
from rnn_lower.shapes.fixed_dims import axis_name
from rnn_lower.transforms.fold import is_folded
from rnn_lower.validation import check_numbers

Graph = ir.Graph | ir.Function


@one_child()
def prove_models(original: Any, lowered: Any, points: int, seed: int, seconds: float = math.inf) -> Proof:
    """The proof for two models; see `rnn_lower.prove`. seconds: after this time, the rest is out of scope."""
    deadline = time.thread_time() + seconds
    check_numbers(points=points, seed=seed)
    (source, path), (after, _) = map(files.open_model, (original, lowered))
    faults = new_faults(source, after)
    with _named(path):
        try:
            proof = _prove(source, after, points, seed, deadline)
        except RnnLowerError as error:
            if not faults and not isinstance(error, CallError):
                raise
            proof = Proof((), () if faults else (str(error),))
    return dataclasses.replace(proof, changed=(*proof.changed, *faults))


def _prove(source: Document, lowered: Document, points: int, seed: int, deadline: float) -> Proof:
    """The proof of each node, or of the whole models where lowering rewrote loops, folded or legalized other nodes."""
    before, after = _comparable(source, lowered)
    if rewrites_loops(before.model, after.model):
        return _prove_whole(before, after, points, seed, deadline)
    if is_folded(source.proto) and (proof := _prove_nodes(before, after, points, seed, deadline)).ok:
        return proof  # constants were folded before
    folded = _folded(source, after) if is_folded(after.proto) else before
    proof = _prove_nodes(folded, after, points, seed, deadline)
    if proof.changed and _is_legalized(after) and all(node.ok for node in proof.nodes):
        whole = _prove_whole(before, after, points, seed, deadline)
        proof = whole if whole.ok else proof
        folded = before
    if folded is before or _is_same(folded, before):
        return proof
    folding = prove_whole(before, folded, points, seed, deadline)
    unproved = tuple(f"the result of constant folding is not proved correct: {why}" for why in folding.reasons)
    return dataclasses.replace(proof, changed=(*proof.changed, *unproved), whole=True)


def _prove_whole(before: Document, after: Document, points: int, seed: int, deadline: float) -> Proof:
    """The proof that two models compute the same, and that nothing but their nodes and weights differs."""
    proof = prove_whole(before, after, points, seed, deadline, exact_sizes=raises(before.model, after.model))
    changed = model_diff.frame_changes((before.proto, before.folder), (after.proto, after.folder))
    return dataclasses.replace(proof, changed=(*proof.changed, *changed))


def _prove_nodes(before: Document, after: Document, points: int, seed: int, deadline: float) -> Proof:
    """The proof of each replaced node, and of everything else field by field."""
    changed = _changes_beside_nodes(before, after)
    proofs, tasks, graphs = _tasks(before, after, deadline)
    changed += _assign_unread(graphs, tasks)
    proofs += [prove_node(task, points, seed) for task in tasks]
    return Proof(tuple(proofs), tuple(changed))


@one_child()
def changes(original: Any, lowered: Any) -> list[str]:
    """The differences between two models apart from their recurrent nodes and loops."""
    (source, path), (lowered_document, _) = map(files.open_model, (original, lowered))
    with _named(path):
        before, after = _comparable(source, lowered_document)
        faults = new_faults(source, lowered_document)
        if rewrites_loops(before.model, after.model):  # which may change every node
            return [*model_diff.frame_changes((before.proto, before.folder), (after.proto, after.folder)), *faults]
        changed = _changes_beside_nodes(before, after)
        if changed and is_folded(after.proto):
            changed = _changes_beside_nodes(_folded(source, after), after)
        is_proved = changed and _is_legalized(after) and _prove_whole(before, after, 1, 0, math.inf).ok
        return [*([] if is_proved else changed), *faults]


def _changes_beside_nodes(before: Document, after: Document) -> list[str]:
    """The differences between two models outside their recurrent nodes."""
    return model_diff.only_recurrent_nodes_changed((before.proto, before.folder), (after.proto, after.folder))


def _is_same(folded: Document, before: Document) -> bool:
    """Whether folding changed nothing that computes."""
    a, b = folded.proto, before.proto
    return bool(a.graph == b.graph) and list(a.functions) == list(b.functions)


def _is_legalized(document: Document) -> bool:
    """Whether lowering also replaced nodes that are not recurrent."""
    return any(LEGALIZED in node.metadata_props for node, _ in nodes(document.model))


def _folded(original: Document, lowered: Document) -> Document:
    """The original with folded constants, at the sizes and the opset of the lowered model."""
    options = Options(fold=True, dims=_sizes_of(lowered, original))
    with unlogged():  # lowering logged this already
        return _at_opset_of(lowered, prepared(original.copied(), options)[0])


@contextlib.contextmanager
def _named(path: str | None) -> Iterator[None]:
    """Prefix errors with the file name of the original."""
    try:
        yield
    except RnnLowerError as error:
        raise type(error)(f"{path}: {error}" if path else str(error)) from None


def _comparable(before: Document, after: Document) -> tuple[Document, Document]:
    """Both models at the opset and sizes of the lowered one, with emitted function calls inlined."""
    for document in (before, after):
        document.check_data()
    read_document(before)  # only to reject invalid nodes
    plain = without_made_calls(after.proto, before.proto)
    after = after if plain is after.proto else Document(plain, after.folder)
    if sizes := _sizes_of(after, before):
        before = before.copied().fixed(sizes)
    try:
        return _at_opset_of(after, before), after
    except ConversionError:
        if not is_folded(after.proto):
            raise
        return before, after  # folding removed the node that cannot be converted


def _sizes_of(lowered: Document, original: Document) -> Dims | None:
    """The free sizes of the original's inputs that the lowered model fixes."""
    fixed = fixed_sizes(original.model, lowered.proto)
    return {axis_name(name, axis): size for (name, axis), size in fixed.items()} or None


def _at_opset_of(lowered: Document, original: Document) -> Document:
    """The original at the opset of the lowered model, so that conversion does not count as a change."""
    opset = opset_of(lowered.proto)
    return original if opset in (None, opset_of(original.proto)) else converted(original, opset)


def quick_proof(original: Document, lowered: Document, seconds: float) -> Proof | None:
    """The proof as far as it gets in `seconds`, or None if the models cannot be proved at all."""
    try:
        return prove_models(original, _without_unread_weights(lowered, original), 1, 0, seconds)
    except RnnLowerError:
        return None


def _without_unread_weights(lowered: Document, original: Document) -> Document:
    """The lowered model without unread weights that the original lacks."""
    graphs = [holder for holder in protobuf.holders(lowered.proto) if isinstance(holder, onnx.GraphProto)]
    read = {name for holder in protobuf.holders(lowered.proto) for node in holder.node for name in node.input}
    read |= {value.name for graph in graphs for value in graph.output}
    read |= {tensor.name for tensor in original.proto.graph.initializer}

    def change(copy: onnx.ModelProto) -> None:
        protobuf.remove_if(copy.graph.initializer, lambda tensor: tensor.name not in read)

    unread = any(tensor.name not in read for tensor in lowered.proto.graph.initializer)
    return lowered.copied(change) if unread else lowered


def _tasks(
    before: Document, after: Document, deadline: float
) -> tuple[list[NodeProof], list[Task], list[tuple[Graph, Graph]]]:  # fmt: skip
    """Verdicts for nodes whose outputs are missing, tasks for the other replaced nodes, and all pairs of graphs."""
    missing, tasks = list[NodeProof](), list[Task]()
    paired = {old.graph: new for old, new in _pairs(before.model, after.model)}
    outputs = {
        scope.graph: {out.name: out for node in scope.graph for out in node.outputs} for scope in paired.values()
    }
    names = {scope.graph: _by_name(scope.graph) for scope in paired.values()}
    for node, scope in recurrent_nodes(before.model):
        there = paired.get(scope.graph)
        wanted = [out for out in node.outputs if out.name and (out.uses() or out.is_graph_output())]
        replaced = [None if there is None else outputs[there.graph].get(out.name) for out in wanted]
        if not wanted or _is_unchanged(node, replaced):
            continue
        name = node.name or wanted[0].name or node.op_type
        if there is None or None in replaced:
            reason = f"no lowered node computes '{wanted[replaced.index(None)].name}'"
            missing.append(NodeProof(name, node.op_type, scope.path, DIFFERENT, reason=reason))
            continue
        visible = frozenset().union(*(names.get(graph, ()) for graph in there.up_to(None)))
        tasks.append(Task(
            node, name, scope.path, before.shape_info, _counterparts(node, paired, names),
            [value for value in replaced if value is not None], there.opset, visible, deadline=deadline,
        ))  # fmt: skip
    return missing, tasks, [(old, scope.graph) for old, scope in paired.items()]


def _assign_unread(graphs: Iterable[tuple[Graph, Graph]], tasks: list[Task]) -> Iterator[str]:
    """Assign unread emitted nodes to tasks that can compute them, and describe the others.

    graphs: of the original and the lowered model. Nodes that the original has as well were emitted before.
    """
    read = {node for task in tasks for node in _needed(task.replaced, task)[0]}
    for original, graph in graphs:
        earlier = {_output_names(node) for node in original if NODE_MARK in node.metadata_props}
        for node in graph:
            if NODE_MARK not in node.metadata_props or node in read or known_tensor(node.outputs[0]) is not None:
                continue
            if _output_names(node) in earlier:  # the model diff compares it
                continue
            own = (index for index, task in enumerate(tasks) if owner_of(task.replaced[0]) is node.graph)
            fitting = next((index for index in own if not _needed(node.outputs, tasks[index])[1]), None)
            if fitting is None:
                yield (
                    f"node '{node.name or node.outputs[0].name}', which lowering added, does not belong to "
                    "any recurrent node"
                )
            else:
                task = tasks[fitting]
                tasks[fitting] = dataclasses.replace(task, unread=[*task.unread, *node.outputs])


def _output_names(node: ir.Node) -> tuple[str | None, ...]:
    return tuple(value.name for value in node.outputs)


def _needed(values: Iterable[ir.Value], task: Task) -> tuple[set[ir.Node], bool]:
    """The emitted nodes that compute these values, and whether they read more than the inputs of the task."""
    nodes, reads_outside, inputs = set[ir.Node](), False, set(task.counterparts.values())
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        node = value.producer()
        if value in inputs or known_tensor(value) is not None or node in nodes:
            continue
        if node is None or NODE_MARK not in node.metadata_props:
            reads_outside = True
            continue
        nodes.add(node)
        waiting += read_by(node)
    return nodes, reads_outside


def _is_unchanged(node: ir.Node, there: Sequence[ir.Value | None]) -> bool:
    """Whether the lowered graph still contains this node, unmarked and with the same outputs."""
    producers = {None if value is None else value.producer() for value in there}
    producer = next(iter(producers))
    if len(producers) > 1 or producer is None or NODE_MARK in producer.metadata_props:
        return False
    same = _output_names(producer) == _output_names(node)
    return same and producer.op_type == node.op_type and producer.domain == node.domain


def _counterparts(
    node: ir.Node, paired: Mapping[Graph, Scope], names: Mapping[Graph, Mapping[str, ir.Value]]
) -> dict[str, ir.Value]:  # fmt: skip
    """The node's inputs as values of the lowered model, by their ONNX parameter names.

    A value is looked up by name in the graph that corresponds to its own graph, since bodies may reuse the name.
    """
    functions = {old.graph: new for old, new in paired.items() if isinstance(old, ir.Function)}
    counterparts = {}
    for name, value in zip(INPUTS, node.inputs, strict=False):
        owner = None if value is None else owner_of(value)  # for the input of a function, the function's graph
        scope = None if owner is None else functions.get(owner, paired.get(owner))  # type: ignore[arg-type]
        if value is not None and scope is not None:
            counterparts[name] = names[scope.graph].get(str(value.name))
    return {name: value for name, value in counterparts.items() if value is not None}


def _by_name(graph: Graph) -> dict[str, ir.Value]:
    """Return the values that a graph defines, by name."""
    initializers = graph.initializers.values() if isinstance(graph, ir.Graph) else ()
    values = [*graph.inputs, *initializers, *(out for node in graph for out in node.outputs)]
    return {value.name: value for value in reversed(values) if value.name}


def _pairs(before: ir.Model, after: ir.Model) -> Iterator[tuple[Scope, Scope]]:
    """Each scope of the original with its counterpart; outputs identify nodes with bodies."""
    new_roots = {_identity(scope.root): scope for scope in roots(after)}
    waiting = [
        (scope, new_roots[_identity(scope.root)]) for scope in roots(before) if _identity(scope.root) in new_roots
    ]
    while waiting:
        pair = waiting.pop(0)
        yield pair
        there = {_output_names(node): node for node in pair[1].graph}
        for node in pair[0].graph:
            twin = there.get(_output_names(node))
            if twin is None or twin.op_type != node.op_type or NODE_MARK in twin.metadata_props:
                continue
            bodies, its_bodies = (
                dict(zip((name for name, _ in subgraphs(owner)), scope.bodies_of(owner), strict=True))
                for scope, owner in zip(pair, (node, twin), strict=True)
            )
            waiting += [(body, its_bodies[name]) for name, body in bodies.items() if name in its_bodies]


def _identity(root: Graph) -> object:
    return root.identifier() if isinstance(root, ir.Function) else None
