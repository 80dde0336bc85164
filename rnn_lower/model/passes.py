"""Walk a model, choose nodes and forms, put the lowered subgraphs in place; everything else stays as it is."""

from __future__ import annotations

import collections
import dataclasses
import logging
from collections.abc import Callable, Iterator, Sequence

import onnx
import onnx_ir as ir
from onnx_ir import convenience

from rnn_lower.constants import ConstantPool, known_tensor
from rnn_lower.errors import RnnLowerError, UnsupportedError
from rnn_lower.facts import Facts, subgraphs
from rnn_lower.lowering import Lowered, lower_node
from rnn_lower.names import Names
from rnn_lower.node import OP_TYPES, RecurrentNode, read_node
from rnn_lower.primitives import TABLE
from rnn_lower.targets import Target, find_target, how_to_fix

logger = logging.getLogger("rnn_lower")

Select = Callable[[RecurrentNode], bool]
FORM_NAMES = ("auto", "scan", "loop", "unroll")
MAX_NODES = 200_000


@dataclasses.dataclass(frozen=True)
class Options:
    """What to lower and how; see `rnn_lower.lower` for the meaning of each."""

    form: str = "auto"
    target: str | None = None
    op_types: tuple[str, ...] = OP_TYPES
    select: Select | None = None
    max_nodes: int = MAX_NODES

    def __post_init__(self) -> None:
        if self.form not in FORM_NAMES:
            raise RnnLowerError(f"unknown form '{self.form}'; known are {', '.join(FORM_NAMES)}")
        for op_type in self.op_types:
            if op_type not in OP_TYPES:
                raise RnnLowerError(f"unknown operator '{op_type}'; known are {', '.join(OP_TYPES)}")
        find_target(self.target)


@dataclasses.dataclass(frozen=True)
class Place:
    """A recurrent node as read, with where it is."""

    node: RecurrentNode
    scope: ir.Graph | ir.Function
    opset: int


@dataclasses.dataclass(frozen=True)
class Record:
    """What became of one recurrent node: the form and the number of nodes emitted, bodies included."""

    node: RecurrentNode
    form: str
    emitted: int


class LowerRecurrentPass(ir.passes.InPlacePass):
    """Replace RNN, GRU and LSTM nodes by primitive operators.

    Requires: a valid model of opset 1 or newer. Changes: the chosen nodes, wherever they are (main graph, subgraphs,
    functions), and weights that nobody uses any more, which are removed. Everything else, the opset import included,
    stays. The result's `modified` tells whether any node was replaced; `records` of the pass tells which.

    Raises InvalidNodeError or UnsupportedError before anything is changed when a node cannot be lowered as asked.
    """

    def __init__(
        self, form: str = "auto", target: str | None = None, op_types: Sequence[str] = OP_TYPES,
        select: Select | None = None, *, max_nodes: int = MAX_NODES,
    ) -> None:  # fmt: skip
        super().__init__()
        self.options = Options(form, target, tuple(op_types), select, max_nodes)
        self.records: list[Record] = []

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        self.records = lower_model(model, self.options)
        return ir.passes.PassResult(model, bool(self.records))


def lower_model(model: ir.Model, options: Options) -> list[Record]:
    """Lower the chosen nodes of a model in place, all or none of them."""
    target = find_target(options.target)
    facts = Facts(model)
    places = find_places(model, options, facts)
    forms = [choose_form(place, options.form, target) for place in places]
    if not places:
        return []
    _check_opset(places)
    lowered = _emit(model, places, forms, target, options.max_nodes)
    for place, new in zip(places, lowered, strict=True):
        for note in place.node.notes:
            logger.info("%s: %s", place.node.describe(), note)
        _put_in_place(place, new)
    _remove_unused(places)
    return [
        Record(place.node, form, count_nodes(new.nodes))
        for place, form, new in zip(places, forms, lowered, strict=True)
    ]


# -- finding ---------------------------------------------------------------------------------------------------------


def find_places(model: ir.Model, options: Options, facts: Facts) -> list[Place]:
    """All recurrent nodes that the options choose, in the order of the model."""
    needs_length = options.form == "unroll" or options.target is not None
    places = []
    for node, scope, opset, path in recurrent_nodes(model, options.op_types):
        x = node.inputs[0] if node.inputs else None
        shape = None if x is None else facts.shape(x)
        if shape is None or (needs_length and not all(isinstance(dim, int) for dim in shape[:2])):
            facts.infer = True  # costs a copy of the graph, so only where it can tell something
        read = read_node(node, opset, path, facts.shape, facts.dtype)
        if options.select is None or options.select(read):
            places.append(Place(read, scope, opset))
    return places


def recurrent_nodes(
    model: ir.Model, op_types: Sequence[str] = OP_TYPES
) -> Iterator[tuple[ir.Node, ir.Graph | ir.Function, int, str]]:
    """Nodes of the given types with the graph they are in, its opset and its path."""
    scopes: list[tuple[ir.Graph | ir.Function, str]] = [(model.graph, "main graph")]
    scopes += [(f, f"function {f.domain}.{f.name}") for f in model.functions.values()]
    for root, path in scopes:
        own = root.opset_imports.get("", root.opset_imports.get("ai.onnx"))
        opset = own if own is not None else model.opset_imports.get("", 0)
        for node, scope, inner_path in _walk(root, path):
            if node.op_type in op_types and node.domain == "" and node.op_identifier() not in model.functions:
                yield node, scope, opset, inner_path


def _walk(scope: ir.Graph | ir.Function, path: str) -> Iterator[tuple[ir.Node, ir.Graph | ir.Function, str]]:
    for node in scope:
        yield node, scope, path
        for name, body in subgraphs(node):
            yield from _walk(body, f"{path}/{name} of {node.op_type} '{node.name or node.outputs[0].name}'")


# -- choosing --------------------------------------------------------------------------------------------------------


def choose_form(place: Place, form: str, target: Target) -> str:
    """The form for one node: what was asked for, else the target's, else the fastest that serves.

    Raises UnsupportedError when the form is impossible, naming one that would work.
    """
    node, length = place.node, place.node.static_length
    if form == "auto":
        form = target.choose(node, place.opset)
    if form == "scan" and place.opset < TABLE["Scan"].since:
        raise UnsupportedError(
            f"{node.describe()}: form scan needs opset {TABLE['Scan'].since}, the model is at opset {place.opset};"
            " use form loop, or raise the opset (--opset)"
        )
    if form == "unroll" and length is None:
        known = f"'{node.seq_length}'" if node.seq_length else "unknown"
        others = [other for other in target.forms_for(node, place.opset) if other != "unroll"]
        use = f"use form {' or '.join(others)}, or " if others else ""
        raise UnsupportedError(
            f"{node.describe()}: form unroll needs a known sequence length, here it is {known};"
            f" {use}{how_to_fix(node.seq_length, 100)}"
        )
    target.check(node, form, place.opset)
    return form


def _check_opset(places: Sequence[Place]) -> None:
    """A newer opset than this program was written for is taken as long as no emitted operator has changed in it."""
    opset = max(place.opset for place in places)
    newest = onnx.defs.onnx_opset_version()
    for op_type, row in TABLE.items():
        version = onnx.defs.get_schema(op_type, min(opset, newest), "").since_version if opset >= row.since else 0
        if version > row.reviewed:
            raise UnsupportedError(
                f"{op_type} has a version {version} at opset {opset}, the newest known here is {row.reviewed};"
                f" convert the model to opset {row.reviewed} first, or update rnn_lower"
            )
    if opset > newest:
        logger.warning(
            "opset %d is newer than the installed onnx knows (%d); taken as if nothing changed", opset, newest
        )


# -- replacing -------------------------------------------------------------------------------------------------------


def _emit(
    model: ir.Model, places: Sequence[Place], forms: Sequence[str], target: Target, max_nodes: int
) -> list[Lowered]:
    names = Names(model)
    pools: dict[int, ConstantPool] = {}
    budget = max_nodes
    shared = _shared_tensors(places)
    result = []
    for place, form in zip(places, forms, strict=True):
        pool = _pool(model, place, names, pools, shared)
        try:
            lowered = lower_node(place.node, form, place.opset, names, pool, target.habits, budget)
        except UnsupportedError as error:
            raise UnsupportedError(f"{place.node.describe()}: {error}") from None
        budget -= count_nodes(lowered.nodes)
        result.append(lowered)
    for pool in pools.values():
        for value in pool.initializers:
            model.graph.register_initializer(value)
    return result


def _shared_tensors(places: Sequence[Place]) -> frozenset[int]:
    """Identities of the tensors that more than one of the nodes uses."""
    used = (known_tensor(value) for place in places for value in place.node.inputs.values())
    counts = collections.Counter(id(tensor) for tensor in used if tensor is not None)
    return frozenset(identity for identity, count in counts.items() if count > 1)


def _pool(
    model: ir.Model, place: Place, names: Names, pools: dict[int, ConstantPool], shared: frozenset[int]
) -> ConstantPool:
    """Initializers of the main graph serve all; else Constant nodes, shared within the graph they are in."""
    in_function = place.node.path.startswith("function ")
    as_nodes = model.ir_version < 4 or in_function
    key = id(place.scope if as_nodes else model.graph)
    if key not in pools:
        pools[key] = ConstantPool(names, place.opset, as_nodes, shared)
    return pools[key]


def _put_in_place(place: Place, lowered: Lowered) -> None:
    node = place.node.node
    old, new = [], []
    for name, value in lowered.outputs.items():
        replaced = place.node.outputs[name]
        value.doc_string = replaced.doc_string
        value.metadata_props.update(replaced.metadata_props)
        old.append(replaced)
        new.append(value)
    convenience.replace_nodes_and_values(place.scope, node, [node], lowered.nodes, old, new)


def _remove_unused(places: Sequence[Place]) -> None:
    """Drop weights (initializers, Constant nodes) that only the replaced nodes used."""
    for place in places:
        for value in place.node.inputs.values():
            if value.uses() or value.is_graph_output() or value.is_graph_input():
                continue
            producer = value.producer()
            if value.is_initializer() and value.graph is not None:
                value.graph.initializers.pop(value.name or "")
            elif producer is not None and producer.op_type == "Constant" and producer.graph is not None:
                producer.graph.remove(producer, safe=True)


def count_nodes(nodes: Sequence[ir.Node]) -> int:
    """Nodes, those of bodies included."""
    return len(nodes) + sum(count_nodes(list(body)) for node in nodes for _, body in subgraphs(node))
