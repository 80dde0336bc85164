"""Which of a model's recurrent nodes share a loop: the layers of a stack, and nodes that read nothing of each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import onnx_ir as ir

from rnn_lower.model.facts import RESHAPES, Facts
from rnn_lower.model.scopes import subgraphs, with_bodies
from rnn_lower.recurrent import parallel, stack
from rnn_lower.recurrent.node import RecurrentNode
from rnn_lower.recurrent.shared import LoweredGroup, Paying

KEEPS_ORDER = (*RESHAPES, "Identity", "Transpose")
"""What exporters put between layers. A Transpose is one of them as long as it moves axes of size 1 only."""


Lower = Callable[..., LoweredGroup]


@dataclasses.dataclass(frozen=True)
class Group:
    """Recurrent nodes that share a loop, in the order of the graph; all can be where the last one is.

    between: nodes that go with them.  ordered: whether nothing between needs what they give.
    """

    nodes: tuple[RecurrentNode, ...]
    lower: Lower
    between: tuple[ir.Node, ...] = ()
    ordered: bool = True

    @property
    def why(self) -> str:
        """Of its form, for people."""
        others = len(self.nodes) - 1
        return f"one loop with the {others} layers below" if self.ordered else f"one loop with {others} others alike"


Pays = Callable[[Sequence[RecurrentNode], "Mapping[str, Paying]"], bool]
"""Whether one loop for these nodes is faster, by what was measured for each operator."""


def groups(nodes: Sequence[RecurrentNode], facts: Facts, pays: Pays) -> list[Group]:
    """Every node is in one group at most."""
    found = [group for group in stacks(nodes, facts) if pays(group.nodes, stack.PAYS)]
    taken = {id(node) for group in found for node in group.nodes}
    return [*found, *_parallel([node for node in nodes if id(node) not in taken], found, pays)]


# -- each reads what the one before gives, and nobody else does -------------------------------------------------------


def stacks(nodes: Sequence[RecurrentNode], facts: Facts) -> Iterator[Group]:
    """All stacks of two and more layers. Nothing else depends on the lower ones."""
    given = {node.outputs["Y"]: node for node in nodes if list(node.outputs) == ["Y"]}
    below = {id(node): found for node in nodes if (found := _below(node, given, facts)) is not None}
    lower = {id(layer) for layer, _ in below.values()}
    for node in nodes:
        if id(node) in lower or id(node) not in below:
            continue
        layers, between = [node], list[ir.Node]()
        while id(layers[0]) in below:
            layer, passed = below[id(layers[0])]
            layers.insert(0, layer)
            between += passed
        yield Group(tuple(layers), stack.lower_stack, tuple(between))


def _below(
    node: RecurrentNode, given: Mapping[ir.Value, RecurrentNode], facts: Facts
) -> tuple[RecurrentNode, list[ir.Node]] | None:
    """The layer that a node reads, and what lies between."""
    value, between = node.inputs["X"], list[ir.Node]()
    while value not in given:
        producer = value.producer()
        source = None if producer is None or not _is_private(value) else _in_order(producer, facts)
        if producer is None or source is None:
            return None
        between.append(producer)
        value = source
    layer = given[value]
    if not _is_private(value) or layer.node.graph is not node.node.graph or not stack.fits(layer, node):
        return None
    return layer, between


def _is_private(value: ir.Value) -> bool:
    return len(value.uses()) == 1 and not value.is_graph_output()


def _in_order(node: ir.Node, facts: Facts) -> ir.Value | None:
    """The input whose elements a node gives in their order."""
    if node.domain != "" or node.op_type not in KEEPS_ORDER or node.inputs[0] is None:
        return None
    if node.op_type != "Transpose":
        return node.inputs[0]
    shape = facts.shape(node.inputs[0])
    if shape is None:
        return None
    perm = node.attributes["perm"].as_ints() if "perm" in node.attributes else reversed(range(len(shape)))
    kept = [axis for axis in perm if shape[axis] != 1]
    return node.inputs[0] if kept == sorted(kept) else None


# -- none reads anything of another -----------------------------------------------------------------------------------


def _parallel(nodes: Sequence[RecurrentNode], others: Sequence[Group], pays: Pays) -> list[Group]:
    """Groups of two and more. others: of nodes that share a loop already, so that what one needs all need."""
    found: list[list[RecurrentNode]] = []
    for node in nodes:
        for members in found:
            if _joins(node, members, [*(group.nodes for group in others), *found]):
                members.append(node)
                break
        else:
            found.append([node])
    together = (tuple(members) for members in found if len(members) > 1)
    return [
        Group(members, parallel.lower_parallel, ordered=False) for members in together if pays(members, parallel.PAYS)
    ]


def _joins(
    node: RecurrentNode, members: Sequence[RecurrentNode], all_groups: Sequence[Sequence[RecurrentNode]]
) -> bool:
    if node.node.graph is not members[0].node.graph or not parallel.fits(members[0], node):
        return False
    together = [*members, node]
    return not _needed(together, [together if group is members else group for group in all_groups]) & {
        member.node for member in together
    }


def _needed(members: Sequence[RecurrentNode], all_groups: Sequence[Sequence[RecurrentNode]]) -> set[ir.Node]:
    """The nodes of their graph that have to run before they can, all members of a group being one."""
    group_of = {member.node: group for group in all_groups for member in group}
    graph, found = members[0].node.graph, set[ir.Node]()
    waiting = [member.node for member in members]
    while waiting:
        for value in _taken(waiting.pop()):
            producer = value.producer()
            if producer is None or producer.graph is not graph or producer in found:
                continue
            mates = [mate.node for mate in group_of.get(producer, ())] or [producer]
            found.update(mates)
            waiting += mates
    return found


def _taken(node: ir.Node) -> Iterator[ir.Value]:
    """What a node takes, and its bodies from around them."""
    for one in with_bodies([node]):
        yield from (value for value in one.inputs if value is not None)
        for _, body in subgraphs(one):
            yield from body.outputs
