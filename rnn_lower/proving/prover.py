"""Prove that two models are the same function: nodes by exact arithmetic, everything else field by field."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import onnx
import onnx_ir as ir

from rnn_lower.driver.plan import read_document
from rnn_lower.errors import RnnLowerError
from rnn_lower.ir import protobuf
from rnn_lower.ir.schemas import LOOPS
from rnn_lower.ir.walk import (
    NODE_MARK,
    TRAINED,
    Scope,
    is_read,
    known_tensor,
    output_names,
    owner_of,
    recurrent_nodes,
    roots,
    subgraphs,
)
from rnn_lower.lowering.node import display_name
from rnn_lower.modelio import files
from rnn_lower.modelio.document import Document
from rnn_lower.proving import model_diff
from rnn_lower.proving.exact.equations import INPUTS
from rnn_lower.proving.inline import CallError, without_made_calls
from rnn_lower.proving.model_inputs import fixed_sizes
from rnn_lower.proving.new_faults import new_faults
from rnn_lower.proving.nodes.node_proof import Task, prove_node
from rnn_lower.proving.nodes.program import read_by
from rnn_lower.proving.report import DIFFERENT, NodeProof, Proof
from rnn_lower.proving.rewriting import FOLDING, RAISING, Raise, Step, StepError, rewritings
from rnn_lower.proving.whole.whole_proof import prove_whole
from rnn_lower.sandbox.resource_limits import one_child
from rnn_lower.shapes.fixed_dims import axis_name, declared_shapes, free_dims
from rnn_lower.validation import check_numbers

Graph = ir.Graph | ir.Function


@one_child()
def prove_models(
    original: Any, lowered: Any, points: int, seed: int, seconds: float = math.inf, raised: Raise | None = None
) -> Proof:  # fmt: skip
    """The proof for two models; see `rnn_lower.prove`. seconds: after this time, the rest is out of scope."""
    deadline = time.thread_time() + seconds
    check_numbers(points=points, seed=seed)
    (source, path), (after, _) = map(files.open_model, (original, lowered))
    faults = new_faults(source, after)
    with _named(path):
        fixed = _fixed(source, after)
        try:
            proof = _prove(source, after, points, seed, deadline, raised)
        except RnnLowerError as error:
            if not faults and not isinstance(error, (CallError, StepError)):
                raise
            proof = Proof((), () if faults else (str(error),))
    return dataclasses.replace(proof, changed=(*proof.changed, *faults), fixed=fixed)


def _fixed(source: Document, lowered: Document) -> tuple[str, ...]:
    """The free sizes of the source that the lowered model fixes, as --dim takes them."""
    labels = {(name, axis): label for name, axis, label in free_dims(declared_shapes(source.model))}
    sizes = fixed_sizes(source.model, lowered.proto)
    named = {labels.get(place, axis_name(*place)): size for place, size in sizes.items()}
    return tuple(f"{label}={size}" for label, size in named.items())


def _prove(
    source: Document, lowered: Document, points: int, seed: int, deadline: float, raised: Raise | None
) -> Proof:  # fmt: skip
    """The proof of each node, and of each step that changed the whole model before."""
    after, best = _comparable(source, lowered), None
    for before, steps in rewritings(source, after, raised):
        proof = _prove_nodes(before, after, points, seed, deadline)
        if proof.ok:
            return functools.reduce(lambda proof, step: _with_step(proof, step, points, seed, deadline), steps, proof)
        if best is None or _faults(proof) < _faults(best):
            best = proof
        if time.thread_time() > deadline:
            break
    assert best is not None
    return best


def _faults(proof: Proof) -> int:
    return len(proof.changed) + sum(not node.ok for node in proof.nodes)


def _with_step(proof: Proof, step: Step, points: int, seed: int, deadline: float) -> Proof:
    """The proof of nodes with that of a step, and of the loops that it replaced."""
    is_raised = step.what == RAISING
    whole = prove_whole(step.before, step.after, points, seed, deadline, exact_sizes=is_raised)
    rows = tuple(node for node in whole.nodes if is_raised or node.op_type in LOOPS)
    bound = max(0.0, whole.bound - sum(node.bound for node in rows))
    steps = (dataclasses.replace(whole.steps[0], name=step.what, bound=bound), *proof.steps)
    changed = proof.changed
    if step.what != FOLDING:  # which may lose parts that compute nothing
        models = ((document.proto, document.folder) for document in (step.before, step.after))
        changed = (*changed, *model_diff.frame_changes(*models))
    return Proof((*rows, *proof.nodes), changed, steps=steps)


def _prove_nodes(before: Document, after: Document, points: int, seed: int, deadline: float) -> Proof:
    """The proof of each replaced node, and of everything else field by field."""
    changed = _changes_beside_nodes(before, after)
    proofs, tasks, graphs = _tasks(before, after, deadline, may_vanish=not changed)
    changed += _assign_unread(graphs, tasks)
    proofs += [prove_node(task, points, seed) for task in tasks]
    return Proof(tuple(proofs), tuple(changed))


@one_child()
def changes(original: Any, lowered: Any) -> list[str]:
    """The differences between two models apart from their recurrent nodes, and from what lowering rewrote before."""
    (source, path), (lowered_document, _) = map(files.open_model, (original, lowered))
    with _named(path):
        after = _comparable(source, lowered_document)
        found = [_changes_beside_nodes(before, after) for before, _ in rewritings(source, after)]
        return [*min(found, key=len), *new_faults(source, lowered_document)]


def _changes_beside_nodes(before: Document, after: Document) -> list[str]:
    """The differences between two models outside their recurrent nodes."""
    messages = model_diff.only_recurrent_nodes_changed((before.proto, before.folder), (after.proto, after.folder))
    return [*messages, *dict.fromkeys(_rebound_names(before.model, after.model))]


def _rebound_names(before: ir.Model, after: ir.Model) -> Iterator[str]:
    """The names that nodes of both models read, but that refer to values of graphs which do not correspond."""
    pairs = list(_pairs(before, after))
    paired = {_graph_of(old.graph): _graph_of(new.graph) for old, new in pairs}
    for old, new in pairs:
        twins = {output_names(node): node.inputs for node in new.graph}
        reads = [(node.inputs, twins.get(output_names(node), ())) for node in old.graph]
        reads.append((old.graph.outputs, new.graph.outputs))
        for a, b in itertools.chain.from_iterable(zip(*values, strict=False) for values in reads):
            if a is None or b is None or a.name != b.name:
                continue
            if paired.get(_graph_of(owner_of(a))) is not _graph_of(owner_of(b)):
                yield f"{new.path}: '{a.name}' now refers to a value of another graph"


def _graph_of(graph: Graph | None) -> ir.Graph | None:
    """The graph of a function, which its inputs have as their owner, or the graph itself."""
    return graph.graph if isinstance(graph, ir.Function) else graph


@contextlib.contextmanager
def _named(path: str | None) -> Iterator[None]:
    """Prefix errors with the file name of the original."""
    try:
        yield
    except RnnLowerError as error:
        raise type(error)(f"{path}: {error}" if path else str(error)) from None


def _comparable(before: Document, after: Document) -> Document:
    """The lowered model with emitted function calls inlined. Raises RnnLowerError for invalid models."""
    for document in (before, after):
        document.check_data()
    read_document(before)  # only to reject invalid nodes
    plain = without_made_calls(after.proto, before.proto)
    return after if plain is after.proto else Document(plain, after.folder)


def quick_proof(
    original: Document, lowered: Document, seconds: float, raised: Raise | None = None
) -> Proof | None:  # fmt: skip
    """The proof as far as it gets in `seconds`, or None if the models cannot be proved at all."""
    try:
        return prove_models(original, _without_unread_weights(lowered, original), 1, 0, seconds, raised)
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
    before: Document, after: Document, deadline: float, may_vanish: bool
) -> tuple[list[NodeProof], list[Task], list[tuple[Graph, Graph]]]:  # fmt: skip
    """Verdicts for nodes whose outputs are missing, tasks for the other replaced nodes, and all pairs of graphs.

    may_vanish: no other node has changed, so only recurrent nodes that ignore them read the missing outputs.
    """
    missing, tasks = list[NodeProof](), list[Task]()
    declared_sizes = dict[str, ir.Node]()
    paired = {old.graph: new for old, new in _pairs(before.model, after.model)}
    outputs = {
        scope.graph: {out.name: out for node in scope.graph for out in node.outputs} for scope in paired.values()
    }
    names = {scope.graph: _by_name(scope.graph) for scope in paired.values()}
    for node, scope in recurrent_nodes(before.model):
        there = paired.get(scope.graph)
        wanted = [out for out in node.outputs if out.name and is_read(out)]
        if there is not None and may_vanish:
            ends = {out for out in wanted if out.is_graph_output() or TRAINED in out.meta}
            wanted = [out for out in wanted if out in ends or out.name in names[there.graph]]
        replaced = [None if there is None else outputs[there.graph].get(out.name) for out in wanted]
        if not wanted or _is_unchanged(node, replaced):
            continue
        name = display_name(node)
        if there is None or None in replaced:
            reason = f"no lowered node computes '{wanted[replaced.index(None)].name}'"
            missing.append(NodeProof(
                name, node.op_type, scope.path, DIFFERENT, reason=reason, outputs=output_names(node)
            ))  # fmt: skip
            continue
        visible = frozenset().union(*(names.get(graph, ()) for graph in there.up_to(None)))
        tasks.append(Task(
            node, name, scope.path, before.shape_info, _counterparts(node, paired, names),
            [value for value in replaced if value is not None], there.opset, visible, deadline=deadline,
            declared_sizes=declared_sizes,
        ))  # fmt: skip
    return missing, tasks, [(old, scope.graph) for old, scope in paired.items()]


def _assign_unread(graphs: Iterable[tuple[Graph, Graph]], tasks: list[Task]) -> Iterator[str]:
    """Assign unread emitted nodes to tasks that can compute them, and describe the others.

    graphs: of the original and the lowered model. Nodes that the original has as well were emitted before.
    """
    checked = [_needed(task.replaced, task)[0] for task in tasks]
    done = set[ir.Node]().union(*checked)
    for original, graph in graphs:
        earlier = {output_names(node) for node in original if NODE_MARK in node.metadata_props}
        for node in reversed([*graph]):
            if NODE_MARK not in node.metadata_props or node in done or known_tensor(node.outputs[0]) is not None:
                continue
            if output_names(node) in earlier:  # the model diff compares it
                continue
            own = (index for index, task in enumerate(tasks) if owner_of(task.replaced[0]) is node.graph)
            needed = ((index, *_needed(node.outputs, tasks[index], checked[index])) for index in own)
            fitting = next(((index, new) for index, new, reads_outside in needed if not reads_outside), None)
            if fitting is None:
                yield (
                    f"node '{node.name or node.outputs[0].name}', which lowering added, does not belong to "
                    "any recurrent node"
                )
            else:
                index, new = fitting
                checked[index] |= new
                done |= new
                tasks[index] = dataclasses.replace(tasks[index], unread=[*tasks[index].unread, *node.outputs])


def _needed(
    values: Iterable[ir.Value], task: Task, known: Collection[ir.Node] = ()
) -> tuple[set[ir.Node], bool]:  # fmt: skip
    """The emitted nodes that compute these values, and whether they read more than the inputs of the task.

    known: nodes that do not, and that are left out.
    """
    nodes, reads_outside, inputs = set[ir.Node](), False, set(task.counterparts.values())
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        node = value.producer()
        if value in inputs or known_tensor(value) is not None or node in nodes or node in known:
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
    same = output_names(producer) == output_names(node)
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
        there = {output_names(node): node for node in pair[1].graph}
        for node in pair[0].graph:
            twin = there.get(output_names(node))
            if twin is None or twin.op_type != node.op_type or NODE_MARK in twin.metadata_props:
                continue
            bodies, its_bodies = (
                dict(zip((name for name, _ in subgraphs(owner)), scope.bodies_of(owner), strict=True))
                for scope, owner in zip(pair, (node, twin), strict=True)
            )
            waiting += [(body, its_bodies[name]) for name, body in bodies.items() if name in its_bodies]


def _identity(root: Graph) -> object:
    return root.identifier() if isinstance(root, ir.Function) else None
