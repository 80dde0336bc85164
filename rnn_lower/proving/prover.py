"""Prove that a lowered model is the function that the original is: node by node in a field, all else field by field."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from typing import Any

import onnx
import onnx_ir as ir

from rnn_lower import foreign
from rnn_lower.asked import check_numbers
from rnn_lower.checking import samples
from rnn_lower.driver.plan import read_nodes
from rnn_lower.errors import RnnLowerError
from rnn_lower.ir.walk import Scope, default_opset, nodes, opset_of, recurrent_nodes, subgraphs
from rnn_lower.lowering.node import display_name
from rnn_lower.modelio import external_data, files
from rnn_lower.modelio.document import Document
from rnn_lower.opset import convert
from rnn_lower.proving import model_diff
from rnn_lower.proving.evaluator import MARK
from rnn_lower.proving.inline import without_made_calls
from rnn_lower.proving.model_diff import MEMBERS
from rnn_lower.proving.node_proof import Question, answer
from rnn_lower.proving.report import DIFFERENT, OUT_OF_SCOPE, NodeProof, Proof
from rnn_lower.shapes.fixed_dims import place

Graphs = dict[ir.Graph | ir.Function, ir.Graph | ir.Function]


def prove_models(original: Any, lowered: Any, points: int, seed: int, most_cases: int | None = None) -> Proof:
    """See `rnn_lower.prove`. most_cases: per node, for a first look."""
    check_numbers(points=points, seed=seed)
    before, path = files.open_model(original)
    after, _ = files.open_model(lowered)
    for document in (before, after):
        if document.folder is None and any(map(external_data.is_external, external_data.tensors(document.proto))):
            raise RnnLowerError("the weights are in files, and the folder is unknown; give the path of the model")
    try:
        read_nodes(before.model, before.facts)  # only to refuse what is no valid node
        plain = without_made_calls(after.proto, before.proto)
        after = after if plain is after.proto else Document(plain, after.folder)
        before = _with_sizes_of(after, before)
        opsets = [opset_of(document.proto) for document in (before, after)]
        if opsets[0] != opsets[1] and opsets[1] is not None:
            before = _converted(before, opsets[1])
        changed = model_diff.only_recurrent_nodes_changed((before.proto, before.folder), (after.proto, after.folder))
        return Proof(tuple(_proofs(_with_inputs_of(after, before), after, points, seed, most_cases)), tuple(changed))
    except RnnLowerError as error:
        raise type(error)(f"{path}: {error}" if path else str(error)) from None


CHEAP, FEW = 2_000_000, 3
"""Bytes of weights, and sizes per node, up to which a proof takes little time beside a comparison."""


def is_cheap(document: Document) -> bool:
    return external_data.total_size(document.proto) <= CHEAP


def located(original: Document, lowered: Document, fresh: bool = False) -> tuple[str, ...]:
    """Which nodes of a lowered model are not the same function, and where they part; nothing of other models.

    fresh: only of a model in which nothing else has changed either, weights aside that nothing reads. Others may have
    worked on the rest of it, and what they do to emitted nodes need not be exact.
    """
    try:
        if not any(MARK in node.metadata_props for node, _ in nodes(lowered.model)):
            return ()
        if fresh:
            lowered = _without_unread(lowered, original)
        proof = prove_models(original, lowered, 1, 0, FEW if fresh else None)
    except RnnLowerError:
        return ()
    if fresh and proof.changed:
        return ()
    return tuple(f"{node.name}: {node.reason}" for node in proof.nodes if node.verdict == DIFFERENT)


def _without_unread(lowered: Document, original: Document) -> Document:
    """The lowered model without the weights that nothing reads and that the original does not have."""
    graphs = [holder for holder in external_data.holders(lowered.proto) if isinstance(holder, onnx.GraphProto)]
    read = {name for holder in external_data.holders(lowered.proto) for node in holder.node for name in node.input}
    read |= {value.name for graph in graphs for value in graph.output}
    read |= {tensor.name for tensor in original.proto.graph.initializer}

    def change(copy: onnx.ModelProto) -> None:
        external_data.remove_if(copy.graph.initializer, lambda tensor: tensor.name not in read)

    unread = any(tensor.name not in read for tensor in lowered.proto.graph.initializer)
    return lowered.copied(change) if unread else lowered


def _with_sizes_of(lowered: Document, original: Document) -> Document:
    """The original with the sizes of its inputs fixed as they were for the lowered model."""
    fixed = samples.fixed_sizes(original.model, lowered.proto)
    dims = {place(name, axis): size for (name, axis), size in fixed.items()}
    return original.copied().fixed(dims) if dims else original


def _with_inputs_of(lowered: Document, original: Document) -> Document:
    """The original without the weights among its inputs that conversion to another IR version has made constants."""
    weights = {tensor.name for tensor in original.proto.graph.initializer}
    weights -= {value.name for value in lowered.proto.graph.input}

    def change(copy: onnx.ModelProto) -> None:
        copy.ir_version = lowered.proto.ir_version
        external_data.remove_if(copy.graph.input, lambda value: value.name in weights)

    listed = weights & {value.name for value in original.proto.graph.input}
    return original.copied(change) if listed else original


def _converted(document: Document, opset: int) -> Document:
    """The original at the opset of the lowered model: what conversion makes of the other nodes is no change."""
    copy = document.copied()
    convert.convert_opset(copy.model, opset, copy.outline)
    convert.restamp_rest(copy.model)
    return Document(copy.write_back(), document.folder)


def _proofs(before: Document, after: Document, points: int, seed: int, most_cases: int | None) -> Iterator[NodeProof]:
    facts, graphs = before.facts, _same_graphs(before.model, after.model)
    together = _together(after.model)
    outputs = {graph: {out.name: out for node in graph for out in node.outputs} for graph in graphs.values()}
    for node, scope in recurrent_nodes(before.model):
        there = outputs.get(graphs.get(scope.graph), {})  # type: ignore[arg-type]
        wanted = [out for out in node.outputs if out.name and (out.uses() or out.is_graph_output())]
        replaced = [there.get(out.name) for out in wanted]
        if not wanted or _is_kept(node, replaced):
            continue
        name = node.name or wanted[0].name or node.op_type
        if display_name(node) in together:
            told = "it shares a loop with other nodes; check compares these"
            yield NodeProof(name, node.op_type, scope.path, OUT_OF_SCOPE, reason=told)
            continue
        if None in replaced:
            told = f"nothing computes '{wanted[replaced.index(None)].name}'"
            yield NodeProof(name, node.op_type, scope.path, DIFFERENT, reason=told)
            continue
        opset = _opset_of(after.model, graphs[scope.graph], scope)
        question = Question(
            node, name, scope.path, facts, [value for value in replaced if value is not None], opset, most_cases
        )
        yield answer(question, points, seed)


def _together(model: ir.Model) -> set[str]:
    """The names of nodes that share a loop with others."""
    found = {node.metadata_props[MEMBERS] for node, _ in nodes(model) if MEMBERS in node.metadata_props}
    try:
        return {str(name) for names in found for name in foreign.loads(names)}
    except foreign.UNSOUND:
        raise RnnLowerError(f"the metadata '{MEMBERS}' of a node is damaged; lower the model again") from None


def _is_kept(node: ir.Node, there: Sequence[ir.Value | None]) -> bool:
    """Whether it is still there, as `untouched` sees it: the same operator with the same outputs, not marked."""
    found = {None if value is None else value.producer() for value in there}
    kept = next(iter(found))
    if len(found) > 1 or kept is None or MARK in kept.metadata_props:
        return False
    same = [value.name for value in kept.outputs] == [value.name for value in node.outputs]
    return same and kept.op_type == node.op_type and kept.domain == node.domain


def _opset_of(model: ir.Model, graph: ir.Graph | ir.Function, scope: Scope) -> int:
    """The opset that holds in a graph of the lowered model, whose counterpart is in `scope`."""
    if scope.in_function:
        root = next(f for f in model.functions.values() if f.name == scope.root.name and f.domain == _domain(scope))
        return default_opset(root.opset_imports) or default_opset(model.opset_imports) or 0
    return default_opset(model.opset_imports) or 0


def _domain(scope: Scope) -> str:
    return scope.root.domain if isinstance(scope.root, ir.Function) else ""


def _same_graphs(before: ir.Model, after: ir.Model) -> Graphs:
    """Each graph of the original and what it has become: nodes with bodies are known by their outputs."""
    pairs: Graphs = {before.graph: after.graph}
    pairs.update({f: after.functions[key] for key, f in before.functions.items() if key in after.functions})
    waiting = collections.deque(pairs.items())
    while waiting:
        ours, theirs = waiting.popleft()
        there = {tuple(out.name for out in node.outputs): node for node in theirs}
        for node in ours:
            bodies = dict(subgraphs(node))
            other = there.get(tuple(out.name for out in node.outputs)) if bodies else None
            if other is None or other.op_type != node.op_type:
                continue
            found = dict(subgraphs(other))
            for attribute, body in bodies.items():
                if attribute in found:
                    pairs[body] = found[attribute]
                    waiting.append((body, found[attribute]))
    return pairs
