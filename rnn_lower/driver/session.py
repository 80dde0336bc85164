"""One lowering of one model: everything is read, decided and emitted before anything is changed."""

from __future__ import annotations

import collections
import dataclasses
import functools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from rnn_lower.builder.constants import ConstantPool
from rnn_lower.builder.moved import known
from rnn_lower.builder.names import Names
from rnn_lower.builder.versions import TABLE, said_alike
from rnn_lower.builder.writer import Habits
from rnn_lower.driver.function_calls import Calls, check_target
from rnn_lower.driver.groups import Group, groups, size_hint
from rnn_lower.errors import InvalidNodeError, Lack, UnmetError, UnsupportedError, UntakenError
from rnn_lower.ir.schemas import newest_opset, version_of
from rnn_lower.ir.walk import (
    Scope,
    count_nodes,
    default_opset,
    recurrent_nodes,
    taken_names,
    with_bodies,
)
from rnn_lower.lowering import estimate
from rnn_lower.lowering.lowering import Lowered, given_outlines, lower_node
from rnn_lower.lowering.node import LARGEST_SIZE, RecurrentNode, read_node
from rnn_lower.lowering.shared import LoweredGroup, may_pay
from rnn_lower.options import Options
from rnn_lower.shapes.restore_ranks import with_ranks
from rnn_lower.shapes.shape_data import counted_sizes
from rnn_lower.shapes.shape_info import UNSAID, Facts
from rnn_lower.shapes.stale_shapes import (
    claims_of_bodies,
    declared_in,
    doubtful,
    of_fixed_sizes,
    reshaped,
    warn_of_output,
)
from rnn_lower.targets import find_target
from rnn_lower.targets.conformance import Holder

logger = logging.getLogger("rnn_lower")

SHORT = 16
"""Steps that make no large graph, whatever the node and the target."""


@dataclasses.dataclass(frozen=True)
class Place:
    """A recurrent node as read, with where it is."""

    node: RecurrentNode
    scope: Scope


@dataclasses.dataclass(frozen=True)
class Replacement:
    """What takes the place of a recurrent node: nodes, and a new value for each output that is used.

    group: where it is the last one of several that share a loop.
    called: where that is a call, the nodes of its function.  why: of the form.
    """

    place: Place
    form: str
    nodes: list[ir.Node]
    old_values: list[ir.Value]
    new_values: list[ir.Value]
    called: Sequence[ir.Node] = ()
    why: str = ""
    group: Group | None = None

    @property
    def gone(self) -> list[ir.Node]:
        """What it replaces."""
        if self.group is None:
            return [self.place.node.node]
        return [*(node.node for node in self.group.nodes), *self.group.between]

    @property
    def emitted(self) -> Sequence[ir.Node]:
        """The nodes that compute it: in a function that is called, or in its place."""
        return self.called or self.nodes

    @property
    def count(self) -> int:
        """Emitted nodes, bodies included."""
        return count_nodes(self.emitted)


class Session:
    """Owns what the nodes of one model have in common while they are lowered.

    That is the target, the facts, the names that are taken, the constants (stored once for all nodes), the limit of
    emitted nodes and the review of the opset. Raises InvalidNodeError or UnsupportedError; the model is left as it is
    until `replacements` has succeeded, which adds the new weights to the main graph.
    """

    def __init__(self, model: ir.Model, options: Options, facts: Facts | None = None) -> None:
        self._model, self._options = model, options
        self._target = find_target(options.target)
        self._pools: dict[ir.Graph | ir.Function, ConstantPool] = {}
        self._left = options.max_nodes
        self.warnings: dict[ir.Node, str] = {}
        self._facts = facts or Facts(model)
        self._names = Names([*taken_names(model), *self._facts.symbols])
        self._calls = Calls(model)
        if options.as_function and options.target is not None:
            check_target(self._target.name)

    @functools.cached_property
    def places(self) -> list[Place]:
        """The recurrent nodes that the options choose, in the order of the model."""
        facts, found = self._facts, []
        for node, scope in recurrent_nodes(self._model, self._options.op_types):
            read = read_node(node, scope.opset, scope.path, facts)
            chosen = self._options.select is None or self._options.select(read)
            if chosen and not (self._options.keep_native and self._target.keeps(read)):
                found.append(Place(read, scope))
        return found

    @functools.cached_property
    def replacements(self) -> list[Replacement]:
        """What takes the place of each node."""
        planned = self._plan()
        for opset in {place.scope.opset for place in self.places}:
            review(opset)
        found = [self._emit(place, form, group) for place, form, group in self._grouped(planned)]
        for pool in self._pools.values():
            for value in pool.initializers:
                self._model.graph.register_initializer(value)
        self._calls.register()
        self._unsay()
        for new in found:
            told, opset = new.place.node.describe(), new.place.scope.opset
            logger.debug("%s: form %s, %d nodes of opset %d", told, new.form, new.count, opset)
        for place in self.places:
            for note in place.node.notes:
                logger.info("%s: %s", place.node.describe(), note)
        return found

    def _unsay(self) -> None:
        """Take back sizes that nothing confirms of what the nodes take and give, and those that inference contradicts.

        Runtimes believe them: they reshape products and states by them, and refuse bodies that say something else. So
        those of the model's own outputs are taken back too where they are near, and only there, with a warning.
        """
        fixed = of_fixed_sizes(self._model, self._facts)
        if not self.places and not fixed:
            return
        taken = [value for place in self.places for value in place.node.node.inputs if value is not None]
        given = [value for place in self.places for value in place.node.node.outputs]
        bodies = dict(claims_of_bodies(taken))
        near = dict.fromkeys((*doubtful(taken, self._facts), *given, *reshaped(given)))
        main, ends = self._model.graph, set(self._model.graph.outputs)
        kept = {*main.inputs, *(ends - near.keys() - fixed.keys())}
        scopes = list({place.scope.graph: place.scope for place in self.places}.values())
        for value in dict.fromkeys((*near, *bodies, *self._facts.contradicted(), *fixed)):
            doubted = value in near or value not in fixed
            shape = ir.Shape(self._facts.shape(value) or ()) if doubted else fixed[value]
            for graph in (bodies.get(value), *declared_in(value, scopes)):
                if isinstance(graph, ir.Graph) and (graph is not main or value not in kept):
                    graph.meta.setdefault(UNSAID, {})[value.name] = shape
            if value.shape is None or value in kept or value.is_initializer():
                continue
            said, value.shape = value.shape, shape
            if value in ends:
                warn_of_output(value, said, shape)

    def _plan(self) -> list[tuple[Place, str]]:
        """The form of each node. Raises UnmetError with all that any of them lacks."""
        planned: list[tuple[Place, str]] = []
        missing: list[tuple[Place, list[Lack]]] = []
        for place in self.places:
            form, lacks = self._form(place), self._lacks(place)
            if self._options.fuse_stacks and place.node.static_batch is None:
                place = self._with_sizes(place, counted_sizes(place.node, self._facts))
            shares = self._options.fuse_stacks and place.node.static_batch is None
            if shares or any(lack.sizes for lack in lacks):
                place = self._with_sizes(place, self._facts.folded_sizes(place.node.node, place.node.layout))
                form, lacks = self._form(place), self._lacks(place)
            planned.append((place, form))
            missing += [(place, lacks)] if lacks else []
        if missing:
            (first, lacks), others = missing[0], len(missing) - 1
            more = f" (and {others} more nodes lack something)" if others else ""
            told = "; ".join(lack.what for lack in lacks) + more
            raise UnmetError(f"{first.node.describe()}: {told}", [lack for _, lacks in missing for lack in lacks])
        self.warnings = self._warnings(planned)
        return planned

    def _warnings(self, planned: Sequence[tuple[Place, str]]) -> dict[ir.Node, str]:
        """By node, what to know before much is unrolled; the first is said at once, unless all that is refused."""
        sizes: list[tuple[Place, estimate.Size]] = []
        for place, form in planned:
            if form == "unroll" and (place.node.static_length or 0) > SHORT:
                size = estimate.unrolled(place.node, place.scope.opset, self._target.habits)
                sizes += [] if size is None else [(place, size)]
        together = sum((size for _, size in sizes), estimate.Size(0, 0))
        found = ((one, self._target.warning(one.node, one.scope.opset, size, together)) for one, size in sizes)
        told = [(place, warning) for place, warning in found if warning]
        for place, warning in told[:1] if together.nodes <= self._options.max_nodes else ():
            more = f" (and {len(told) - 1} more nodes)" if len(told) > 1 else ""
            logger.warning("%s%s: %s", place.node.describe(), more, warning)
        return {place.node.node: warning for place, warning in told}

    def _form(self, place: Place) -> str:
        """What was asked for, else the target's, else the fastest that serves."""
        form = self._options.form
        return self._target.choose(place.node, place.scope.opset) if form == "auto" else form

    def _lacks(self, place: Place) -> list[Lack]:
        node, opset, form, found = place.node, place.scope.opset, self._form(place), []
        if form == "scan" and opset < TABLE["Scan"].since:
            what = f"form scan needs opset {TABLE['Scan'].since}, the model is at opset {opset}"
            others = tuple(other for other in self._target.forms if other != "scan")
            found.append(Lack(what, forms=others, opsets=(TABLE["Scan"].since, self._target.opsets[1])))
        if form == "unroll" and node.static_length is None:
            what = f"form unroll needs a known sequence length, here it is {node.told('seq_length')}"
            others = tuple(other for other in self._target.forms_for(node, opset) if other != "unroll")
            found.append(Lack(what, forms=others, sizes=("seq_length",)))
        return [*found, *self._target.lacks(node, form, opset)]

    def _with_sizes(self, place: Place, sizes: Mapping[str, int]) -> Place:
        """With sizes that were found by looking further, where nothing else tells them."""
        node = place.node
        known: dict[str, Any] = {name: n for name, n in sizes.items() if not isinstance(getattr(node, name), int)}
        for name, size in known.items():
            if size > LARGEST_SIZE:
                raise InvalidNodeError(f"{node.describe()}: {name} is {size}; no axis is longer than {LARGEST_SIZE}")
        return dataclasses.replace(place, node=dataclasses.replace(node, **known)) if known else place

    def _grouped(self, planned: Sequence[tuple[Place, str]]) -> Iterator[tuple[Place, str, Group | None]]:
        """Where nodes are replaced, and in which form; those that share a loop are where the last one is."""
        if not self._options.fuse_stacks:
            yield from ((place, form, None) for place, form in planned)
            return
        among = self._target.among_others if self._options.form == "auto" else lambda node, form, opset: form
        forms = {id(at.node): (among(at.node, form, at.scope.opset), at.scope.opset) for at, form in planned}

        def may(node: RecurrentNode) -> tuple[str, int] | None:
            return forms[id(node)] if may_pay(node, *forms[id(node)], self._target.habits) else None

        nodes = [place.node for place, _ in planned]
        found = groups(nodes, self._facts, may)
        if not found:
            told = "none are a stack or independent and alike, or it would not be faster"
            hint = size_hint(nodes, self._model, self._options.fold)
            logger.warning("fuse_stacks: no nodes share a loop, since %s%s", told, hint)
        last = {id(group.nodes[-1]): group for group in found}
        others = {id(node) for group in found for node in group.nodes[:-1]}
        for place, form in planned:
            group = last.get(id(place.node))
            if id(place.node) not in others:
                yield place, form if group is None else forms[id(place.node)][0], group

    def _emit(self, place: Place, form: str, group: Group | None) -> Replacement:
        node, habits = place.node, self._target.habits
        members = (node,) if group is None else group.nodes
        if place.scope.graph is not self._model.graph:  # what runs many times is of many sizes
            habits = dataclasses.replace(habits, name_batch=False)
        try:
            if self._options.as_function and node.outputs:
                return self._call(place, form, habits)
            common = (form, place.scope.opset, self._names, self._pool(place.scope), habits, max(0, self._left))
            lowered = _alone(lower_node(node, *common)) if group is None else group.lower(members, *common)
            if form == "loop":
                lowered = with_ranks(lowered, members, place.scope, self._names)
            self._check_import(place, lowered.nodes)
        except UnmetError as error:
            raise UnmetError(f"{node.describe()}: {error}", error.lacks) from None
        except UntakenError as error:
            raise self._untaken(place, form, error) from None
        except UnsupportedError as error:
            raise UnsupportedError(f"{node.describe()}: {error}") from None
        self._hold(place, lowered.nodes, members)
        self._spend(node, count_nodes(lowered.nodes))
        made = self._replacement(place, form, lowered, members)
        return made if group is None else dataclasses.replace(made, group=group, why=group.why)

    def _call(self, place: Place, form: str, habits: Habits) -> Replacement:
        call, inside, new = self._calls.call(place.node, place.scope, form, habits, max(0, self._left))
        if new:
            self._hold(place, inside, (place.node,))
            self._check_import(place, inside)
            self._spend(place.node, count_nodes(inside))
        own = LoweredGroup([call], [dict(zip(place.node.outputs, call.outputs, strict=True))])
        made = with_ranks(own, (place.node,), place.scope, self._names)
        return dataclasses.replace(self._replacement(place, form, made, (place.node,)), called=inside)

    def _spend(self, node: RecurrentNode, count: int) -> None:
        """Raises UnmetError when more nodes are emitted than may be."""
        self._left -= count
        if self._left < 0:
            what = f"it takes {count} nodes, {-self._left} more than are left of the limit of {self._options.max_nodes}"
            raise UnmetError(f"{node.describe()}: {what}", [Lack(what, nodes=True)])

    def _replacement(
        self, place: Place, form: str, lowered: LoweredGroup, members: Sequence[RecurrentNode]
    ) -> Replacement:
        outputs = {
            old.outputs[name]: new
            for old, own in zip(members, lowered.outputs, strict=True)
            for name, new in own.items()
        }
        for old, new in outputs.items():
            new.doc_string = old.doc_string
            new.metadata_props.update(old.metadata_props)
        return Replacement(place, form, lowered.nodes, [*outputs], [*outputs.values()], why=self._why(place, form))

    def _why(self, place: Place, form: str) -> str:
        """Why it has this form, for people."""
        return self._target.why(place.node, form) if self._options.form == "auto" else "asked for"

    def _untaken(self, place: Place, form: str, error: UntakenError) -> UnsupportedError:
        """What the target does not take; perhaps another form does without it."""
        told = f"{place.node.describe()}: target {self._target.name} {error}"
        others = tuple(other for other in self._target.forms_for(place.node, place.scope.opset) if other != form)
        return UnmetError(told, [Lack(told, forms=others)]) if others else UnsupportedError(told)

    def _hold(self, place: Place, emitted: Sequence[ir.Node], lowered: Sequence[RecurrentNode]) -> None:
        """Hold every emitted node against the target's rules. What breaks one is a mistake of ours, and no output.

        lowered: the nodes that they replace.
        """
        rules = self._target.rules
        if rules.silent:
            return
        sizes = {value: one for node in lowered for value, one in given_outlines(node).items()}
        for found in Holder(rules, place.scope.opset, sizes.get).violations(emitted):
            raise AssertionError(
                f"{place.node.describe()}: emitted {found.node.op_type} '{found.node.name}', which target"
                f" {self._target.name} does not take: {found.rule}"
            )

    def _check_import(self, place: Place, emitted: Sequence[ir.Node]) -> None:
        """A function may import another opset than its model as long as its operators are the same at both."""
        own, of_model = place.scope.opset, default_opset(self._model.opset_imports)
        if not place.scope.in_function or of_model in (None, own):
            return
        for op_type in sorted({node.op_type for node in with_bodies(emitted)}):
            if not said_alike(op_type, own, of_model):
                told = f"the function imports opset {own} and the model {of_model}, between which {op_type} changed"
                raise UnmetError(told, [Lack(told, opsets=(of_model, of_model))])

    def _pool(self, scope: Scope) -> ConstantPool:
        """Initializers of the main graph serve all; else Constant nodes, shared within the graph they are in."""
        as_nodes = self._model.ir_version < 4 or scope.in_function
        owner = scope.graph if as_nodes else self._model.graph
        if owner not in self._pools:
            self._pools[owner] = ConstantPool(self._names, as_nodes, self._shared)
        return self._pools[owner]

    @functools.cached_property
    def _shared(self) -> frozenset[int]:
        """Identities of the tensors that more than one of the nodes uses."""
        used = (known(value) for place in self.places for value in place.node.inputs.values())
        counts = collections.Counter(source for one in used if one is not None for source in one.sources)
        return frozenset(identity for identity, count in counts.items() if count > 1)


def _alone(lowered: Lowered) -> LoweredGroup:
    return LoweredGroup(lowered.nodes, [lowered.outputs])


def read_nodes(model: ir.Model, facts: Facts | None = None) -> list[RecurrentNode]:
    """All recurrent nodes of a model. facts: about it, where there are some already."""
    return [place.node for place in Session(model, Options(), facts).places]


def review(opset: int) -> None:
    """A newer opset than this program was written for is taken as long as no emitted operator has changed in it."""
    newest = newest_opset()
    for op_type, row in TABLE.items():
        if (version := version_of(op_type, opset)) > row.reviewed:
            raise UnsupportedError(
                f"{op_type} has a version {version} at opset {opset}, the newest known here is {row.reviewed};"
                f" convert the model to opset {row.reviewed} first, or update rnn_lower"
            )
    if opset > newest:
        logger.warning(
            "opset %d is newer than the installed onnx knows (%d); taken as if nothing changed", opset, newest
        )


def remove_unused(values: Iterable[ir.Value]) -> None:
    """Drop weights (initializers, Constant nodes, and what moves them) of these that nothing uses any more."""
    waiting = [value for value in values if known(value) is not None]
    while waiting:
        value = waiting.pop()
        producer, owner = value.producer(), value.graph
        if producer is not None:
            if producer.graph is not None and not any(out.uses() or out.is_graph_output() for out in producer.outputs):
                waiting += [one for one in producer.inputs if one is not None]
                producer.graph.remove(producer, safe=True)
        elif value.is_initializer() and owner is not None and not (
            value.uses() or value.is_graph_output() or value.is_graph_input()
        ):  # fmt: skip
            owner.initializers.pop(value.name or "", None)
