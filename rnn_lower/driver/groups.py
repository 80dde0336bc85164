"""Which of a model's recurrent nodes share a loop: the layers of a stack, and nodes that read nothing of each other."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from rnn_lower.builder.moved import MOVES
from rnn_lower.ir.schemas import DEFAULT_DOMAINS
from rnn_lower.ir.walk import said, taken_by
from rnn_lower.lowering import parallel, stack
from rnn_lower.lowering.node import RecurrentNode
from rnn_lower.lowering.shared import COUNTS, LoweredGroup
from rnn_lower.shapes.fixed_dims import declared_shapes, free_dims
from rnn_lower.shapes.shape_info import RESHAPES, Facts

KEEPS_ORDER = (*RESHAPES, "Identity", "Transpose")
"""What exporters put between layers. A Transpose is one of them as long as it moves axes of size 1 only."""


FEW = 32
"""Nodes that may compute the shape that a Reshape between layers gives."""


@dataclasses.dataclass(frozen=True)
class Group:
    """Recurrent nodes that share a loop, in the order of the graph; all can be where the last one is.

    lower: emits it.  between: nodes that go with them.  why: of its form, for people.
    """

    nodes: tuple[RecurrentNode, ...]
    lower: Callable[..., LoweredGroup]
    why: str
    between: tuple[ir.Node, ...] = ()


May = Callable[[RecurrentNode], Hashable]
"""What nodes that may share a loop have in common; None where it never pays."""


def groups(nodes: Sequence[RecurrentNode], facts: Facts, may: May) -> list[Group]:
    """Every node is in one group at most."""
    found: list[Group] = []
    for group in stacks(nodes, facts):
        if _pays(group.nodes, may) and _can_be_one(group.nodes, [other.nodes for other in found], nodes):
            found.append(group)
    taken = {id(node) for group in found for node in group.nodes}
    left = [node for node in nodes if id(node) not in taken]
    return [*found, *_parallel(left, [group.nodes for group in found], may)]


def _pays(layers: Sequence[RecurrentNode], may: May) -> bool:
    keys = {may(node) for node in layers}
    return stack.PAYS.pays(layers) and len(keys) == 1 and None not in keys


def size_hint(nodes: Sequence[RecurrentNode], model: ir.Model, folded: bool) -> str:
    """What to add where nodes stay apart because sizes are not known, or states begin with what is computed of them."""
    unknown = [node for node in nodes if node.static_batch is None]
    if not unknown:
        return "" if folded else "; --fold may help, where first states are computed from the shape of what lies below"
    ways = {way for *_, way in free_dims(declared_shapes(model))}
    named = next((node.batch_size for node in unknown if node.batch_size in ways), None)
    way = f"add --dim {named}=1" if named else "--dim for the inputs, or --fold, may tell it"
    return f"; the batch size of '{unknown[0].name}' is not known: {way}"


# -- each reads what the one before gives, and nobody else does -------------------------------------------------------


def stacks(nodes: Sequence[RecurrentNode], facts: Facts) -> Iterator[Group]:
    """All stacks; a high one is cut into several."""
    given = {node.outputs["Y"]: node for node in nodes if "Y" in node.outputs}
    below = {id(node): found for node in nodes if (found := _below(node, given, facts)) is not None}
    lower = {id(layer) for layer, _ in below.values()}
    for node in nodes:
        if id(node) in lower or id(node) not in below:
            continue
        chain: list[tuple[RecurrentNode, list[ir.Node]]] = [(node, [])]
        while (found := below.get(id(chain[0][0]))) is not None:
            chain.insert(0, found)
        for run in _runs(chain, max(1, stack.PAYS.units // node.hidden_size)):
            layers, between = zip(*run, strict=True)
            why = f"one loop with the {len(layers) - 1} layers below"
            yield Group(layers, stack.lower_stack, why, tuple(itertools.chain(*between[:-1])))


def _can_be_one(
    layers: Sequence[RecurrentNode], stacks: Sequence[Sequence[RecurrentNode]], nodes: Sequence[RecurrentNode]
) -> bool:
    """Whether no layer needs what another gives but by X, be it by way of other stacks."""
    if all(list(node.outputs) == ["Y"] for node in layers[:-1]):
        return True  # nobody else reads Y, so that nothing can come back to a layer but by X
    apart = {node.node for stack in (*stacks, layers) for node in stack[1:]}
    return _are_independent(layers[-1], layers[:-1], stacks, _needs(nodes, apart))


def _runs(chain: Sequence[Any], most: int) -> Iterator[Sequence[Any]]:
    """Parts of it as even as may be, none longer than `most`."""
    count = -(-len(chain) // most)
    cuts = [place * len(chain) // count for place in range(count + 1)]
    yield from (chain[start:end] for start, end in itertools.pairwise(cuts))


def _below(
    node: RecurrentNode, given: Mapping[ir.Value, RecurrentNode], facts: Facts
) -> tuple[RecurrentNode, list[ir.Node]] | None:
    """The layer that a node reads, and what lies between."""
    value, between = node.inputs["X"], list[ir.Node]()
    while value not in given:
        producer = value.producer()
        source = None if producer is None else _in_order(producer, facts)
        if producer is None or source is None:
            return None
        between.append(producer)
        value = source
    layer = given[value]
    if layer.node.graph is not node.node.graph or not stack.fits(layer, node):
        return None
    others = _private(value, between, node.node)
    return None if others is None else (layer, [*between, *others])


def _private(y: ir.Value, between: Sequence[ir.Node], reader: ir.Node) -> list[ir.Node] | None:
    """What reads Y, or what lies between, beside the next of these nodes: nothing, or what says the shape of another.

    None where it is of use to anybody else.
    """
    path = [*between, reader]
    first = {(before, 0) for before in path}
    waiting, others = [y, *(node.outputs[0] for node in between)], dict[ir.Node, None]()
    while waiting:
        value = waiting.pop()
        if value.is_graph_output() or len(others) > FEW:
            return None
        for node, place in value.uses():
            if (node, place) in first:
                continue
            counts = node.domain in DEFAULT_DOMAINS and node.op_type in (*COUNTS, *MOVES)
            if node is reader or node.graph is not reader.graph or not counts:
                return None
            if node not in between and node not in others:
                others[node] = None
                waiting += node.outputs
    return list(others)


def _in_order(node: ir.Node, facts: Facts) -> ir.Value | None:
    """The input whose elements a node gives in their order."""
    if node.domain != "" or node.op_type not in KEEPS_ORDER or not node.inputs or node.inputs[0] is None:
        return None
    if node.op_type != "Transpose":
        return node.inputs[0]
    shape = facts.shape(node.inputs[0])
    if shape is None:
        return None
    perm = said(node, "perm", ir.AttributeType.INTS, range(len(shape))[::-1])
    if perm is None or sorted(perm) != list(range(len(shape))):
        return None
    kept = [axis for axis in perm if shape[axis] != 1]
    return node.inputs[0] if kept == sorted(kept) else None


# -- none reads anything of another -----------------------------------------------------------------------------------


def _parallel(nodes: Sequence[RecurrentNode], stacked: Sequence[Sequence[RecurrentNode]], may: May) -> Iterator[Group]:
    """Groups of two nodes and more. stacked: nodes that share a loop already, so that what one needs all need."""
    keys = {id(node): may(node) for node in nodes if node.outputs}
    candidates = [node for node in nodes if keys.get(id(node)) is not None]
    needs = _needs([*candidates, *itertools.chain.from_iterable(stacked)])
    found: list[list[RecurrentNode]] = []
    for node in candidates:
        for members in found:
            alike = keys[id(node)] == keys[id(members[0])] and node.node.graph is members[0].node.graph
            if alike and parallel.fits(members[0], node) and _are_independent(node, members, [*stacked, *found], needs):
                members.append(node)
                break
        else:
            found += [[node]] if parallel.fits(node, node) else []
    for paying in itertools.chain.from_iterable(map(_paying, found)):
        yield Group(tuple(paying), parallel.lower_parallel, f"one loop with {len(paying) - 1} others alike")


def _paying(members: Sequence[RecurrentNode]) -> Iterator[Sequence[RecurrentNode]]:
    """All of them, or else the largest parts, that are faster in one loop."""
    pays = parallel.PAYS[members[0].op_type].pays
    while members:
        most = max((count for count in range(2, len(members) + 1) if pays(members[:count])), default=0)
        if most:
            yield members[:most]
        members = members[most or 1 :]


Needs = Mapping[ir.Node, frozenset[ir.Node]]


def _needs(nodes: Sequence[RecurrentNode], upper: Collection[ir.Node] = ()) -> Needs:
    """Which of these nodes each of them needs, in its own graph, be it by way of others.

    upper: layers of stacks, whose X is no need.
    """
    found: dict[ir.Node, frozenset[ir.Node]] = {}
    recurrent = {node.node for node in nodes}
    for graph in {node.node.graph: None for node in nodes}:
        assert graph is not None
        for node in graph:
            taken = node.inputs[1:] if node in upper else taken_by(node)
            above = {value.producer() for value in taken if value is not None} & found.keys()
            sets = {found[one] | {one} if one in recurrent else found[one] for one in above if one is not None}
            found[node] = next(iter(sets)) if len(sets) == 1 else frozenset().union(*sets)
    return {node: found[node] for node in recurrent}


def _are_independent(
    node: RecurrentNode, members: Sequence[RecurrentNode], groups: Sequence[Sequence[RecurrentNode]], needs: Needs
) -> bool:
    """Whether a node and the members of a group need none of each other; what one of a group needs, all need."""
    together = {node.node, *(member.node for member in members)}
    if needs[node.node] & together:
        return False
    mates = {one.node: [other.node for other in group] for group in groups for one in group}
    waiting, seen = list(together), set[ir.Node]()
    while waiting:
        for needed in needs[waiting.pop()] - seen:
            if needed in together:
                return False
            own = mates.get(needed, [needed])
            seen.update(own)
            waiting += own
    return True
