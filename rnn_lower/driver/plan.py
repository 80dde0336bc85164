"""The plan of a lowering: the nodes, their forms and their subgraphs, before anything is changed."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from rnn_lower.builder.constant_operands import known
from rnn_lower.builder.constants import ModelConstants
from rnn_lower.builder.graph_builder import GraphBuilder, as_value
from rnn_lower.builder.names import Names
from rnn_lower.builder.tensor_info import TensorInfo, info_of
from rnn_lower.builder.versions import check_reviewed, exists, same_signature
from rnn_lower.driver.function_calls import Calls, check_target
from rnn_lower.errors import (
    InvalidNodeError,
    Requirement,
    UnmetRequirementError,
    UnsupportedError,
    UnsupportedOpError,
)
from rnn_lower.ir.schemas import version_of
from rnn_lower.ir.walk import (
    Scope,
    count_nodes,
    default_opset,
    is_read,
    recurrent_nodes,
    used_names,
    values,
    with_bodies,
)
from rnn_lower.legalize.conformance import ConstraintChecker
from rnn_lower.legalize.legalizer import drop_unread, legalize
from rnn_lower.loops.collected_sequences import as_scan_outputs, collects
from rnn_lower.lowering.lowering import builder_of, lower_node
from rnn_lower.lowering.node import LARGEST_SIZE, RecurrentNode, read_node
from rnn_lower.lowering.quantized_lstm import lower_quantized
from rnn_lower.modelio.document import Document
from rnn_lower.options import Options
from rnn_lower.shapes.shape_info import VERIFIED_SHAPES, ShapeInfo
from rnn_lower.shapes.stale_shapes import (
    declared_in,
    reshaped,
    shapes_of_bodies,
    unverified_values,
    verified_fixed_shapes,
    warn_of_output,
)
from rnn_lower.targeting import find_target
from rnn_lower.transforms.inline import inlined
from rnn_lower.transforms.split_sequences import has_sequences, without_sequences
from rnn_lower.tune import tune, weights_in_body

logger = logging.getLogger("rnn_lower")

MASKING = ("Where", "Less", "Greater", "Range")
"""Operators that are needed only if sequence_lens is unknown before run time."""

QUANTIZING = ("DynamicQuantizeLinear", "MatMulInteger", "QuantizeLinear")
"""Operators that only a quantized node needs."""


@dataclasses.dataclass(frozen=True)
class Site:
    """A recurrent node with its location, and the form that is planned for it."""

    node: RecurrentNode
    scope: Scope
    form: str = ""


@dataclasses.dataclass(frozen=True)
class Replacement:
    """The replacement of a recurrent node: nodes, and a new value for each used output.

    called: where that is a call, the nodes of its function.  why: the reason for the form, for printing.
    """

    site: Site
    nodes: list[ir.Node]
    old_values: list[ir.Value]
    new_values: list[ir.Value]
    called: Sequence[ir.Node] = ()
    why: str = ""

    @property
    def emitted(self) -> Sequence[ir.Node]:
        """The nodes that compute the replacement: those of the called function, or those in its place."""
        return self.called or self.nodes

    @property
    def count(self) -> int:
        """The number of emitted nodes, including those in bodies."""
        return count_nodes(self.emitted)


class Plan:
    """The common data of one lowering, and the replacement of each node.

    That is the target, what is known of shapes, the names in use, the constants (stored once for all nodes) and the
    limit of emitted nodes. Raises InvalidNodeError or UnsupportedError; the model is left as it is until `replacements`
    has succeeded, which adds the new weights to the main graph.
    """

    def __init__(self, model: ir.Model, options: Options, shape_info: ShapeInfo | None = None) -> None:
        if options.raise_loops:
            what = "only `lower` and `lower_file` of a file or an onnx.ModelProto replace loops with recurrent nodes"
            raise UnsupportedError(f"{what}; call `raise_loops` on the model first")
        self._model, self._options = model, options
        self._target = find_target(options.target)
        self._left = options.max_nodes
        self._shape_info = shape_info or ShapeInfo(model)
        self._names = Names([*used_names(model), *self._shape_info.symbols])
        self._constants = ModelConstants(model, self._names)
        self._calls = Calls(model)
        if options.as_function and options.target is not None:
            check_target(self._target)

    @functools.cached_property
    def sites(self) -> list[Site]:
        """The recurrent nodes that the options select, in model order."""
        shape_info, chosen = self._shape_info, []
        for node, scope in recurrent_nodes(self._model, self._options.op_types):
            read = read_node(node, scope.opset, scope.path, shape_info)
            read = dataclasses.replace(read, in_scan=scope.lies_in("Scan"))
            selected = self._options.select is None or self._options.select(read)
            if selected and not (self._options.keep_native and self._target.keeps(read)):
                chosen.append(Site(read, scope))
        return chosen

    @functools.cached_property
    def replacements(self) -> list[Replacement]:
        """The replacement of each node."""
        planned = self._planned()
        for opset in {site.scope.opset for site in self.sites}:
            check_reviewed(opset)
        replacements = [self._replacement(site) for site in planned]
        if "weights_in_body" in self._target.tune:
            emitted = with_bodies(node for new in replacements for node in new.nodes)
            weights_in_body(self._constants.initializers, emitted)
        self._constants.register()
        self._calls.register()
        self._drop_stale_shapes()
        for new in replacements:
            message, opset = new.site.node.describe(), new.site.scope.opset
            logger.debug("%s: form %s, %d nodes of opset %d", message, new.site.form, new.count, opset)
        for site in self.sites:
            if self._options.keep_native:
                why = self._target.verdict(site.node).why
                logger.info("%s: not kept as a native node: %s", site.node.describe(), why)
            for note in site.node.notes:
                logger.info("%s: %s", site.node.describe(), note)
        return replacements

    @functools.cached_property
    def warnings(self) -> dict[ir.Node, str]:
        """For each node, a note if its graph loads slowly, or if its Scan may fail; the first one is logged."""
        together = sum(new.count for new in self.replacements if new.site.form == "unroll")
        sites = [(new.site.node, new.site.form, new.count) for new in self.replacements]
        messages = [(node, self._target.warning(node, form, count, together)) for node, form, count in sites]
        warnings = [(node, message) for node, message in messages if message]
        for node, message in warnings[:1]:
            more = f" (and {len(warnings) - 1} more node{'s' * (len(warnings) > 2)})" if len(warnings) > 1 else ""
            logger.warning("%s%s: %s", node.describe(), more, message)
        return {node.node: message for node, message in warnings}

    def _drop_stale_shapes(self) -> None:
        """Drop declared sizes of the nodes' inputs and outputs that inference cannot verify or that conflict with it.

        Runtimes believe them: they reshape products and states by them, and refuse bodies that declare other ones. So
        those of the model's own outputs are dropped too where they are near, with a warning. A target that refuses
        wrong sizes gets none that are unverified, near or not.
        """
        fixed = verified_fixed_shapes(self._model, self._shape_info)
        if not self.sites and not fixed:
            return
        consumed = [value for site in self.sites for value in site.node.node.inputs if value is not None]
        node_outputs = [value for site in self.sites for value in site.node.node.outputs]
        bodies = dict(shapes_of_bodies(consumed))
        near = dict.fromkeys((*unverified_values(consumed, self._shape_info), *node_outputs, *reshaped(node_outputs)))
        main, ends = self._model.graph, set(self._model.graph.outputs)
        stale, is_strict = dict.fromkeys(self._stale_values()), self._target.true_shapes
        firm = {*main.inputs, *(ends - near.keys() - fixed.keys() - (stale.keys() if is_strict else set()))}
        scopes = list({site.scope.graph: site.scope for site in self.sites}.values())
        for value in dict.fromkeys((*near, *bodies, *stale, *fixed)):
            if value in fixed and value not in near:
                shape = fixed[value]
            elif is_strict and value.shape is not None:
                shape = ir.Shape(self._shape_info.verified_shape(value) or [None] * len(value.shape))
            else:
                shape = ir.Shape(self._shape_info.shape(value) or ())
            for graph in (bodies.get(value), *declared_in(value, scopes)):
                if isinstance(graph, ir.Graph) and (graph is not main or value not in firm):
                    graph.meta.setdefault(VERIFIED_SHAPES, {})[value.name] = shape
            if value.shape is None or value in firm or value.is_initializer():
                continue
            if value not in fixed and len(shape) == len(value.shape):  # as in a file, no size is added
                shape = ir.Shape([old if old == new else None for old, new in zip(value.shape, shape, strict=True)])
            declared_shape, value.shape = value.shape, shape
            if value in ends:
                warn_of_output(value, declared_shape, shape)

    def _stale_values(self) -> Iterable[ir.Value]:
        """The values whose declared sizes are dropped wherever they are."""
        if self._target.true_shapes:
            return (value for value in values(self._model) if not self._shape_info.is_verified(value))
        return self._shape_info.conflicting_values()

    def _planned(self) -> list[Site]:
        """The sites with their forms. Raises UnmetRequirementError with the requirements of all nodes."""
        planned: list[Site] = []
        unmet: list[tuple[Site, list[Requirement]]] = []
        for selected in self.sites:
            site, requirements = self._with_form(selected)
            if any(requirement.sizes for requirement in requirements):
                site, requirements = self._with_form(self._with_sizes(site))
            planned.append(site)
            unmet += [(site, requirements)] if requirements else []
        if unmet:
            (first, requirements), more_nodes = unmet[0], len(unmet) - 1
            more = f" (and {more_nodes} more node{'s' * (more_nodes > 1)})" if more_nodes else ""
            message = "; ".join(requirement.what for requirement in requirements) + more
            everything = [requirement for _, requirements in unmet for requirement in requirements]
            raise UnmetRequirementError(f"{first.node.describe()}: {message}", everything)
        return planned

    def _with_form(self, site: Site) -> tuple[Site, list[Requirement]]:
        """The site with the form that the options request or the target prefers, and what the node lacks for it."""
        node, opset, form = site.node, site.scope.opset, self._options.form
        form = self._target.choose_form(node, opset) if form == "auto" else form
        return dataclasses.replace(site, form=form), self._target.lacks(node, form, opset)

    def _with_sizes(self, site: Site) -> Site:
        """The site with sizes that only constant folding finds."""
        node = site.node
        sizes = self._shape_info.folded_sizes(node.node, node.layout)
        known: dict[str, Any] = {name: n for name, n in sizes.items() if not isinstance(getattr(node, name), int)}
        for name, size in known.items():
            if not 0 <= size <= LARGEST_SIZE:
                why = (
                    f"the maximum is {LARGEST_SIZE}"
                    if size > 0
                    else "an input of the node is smaller than the attributes of the node require"
                )
                raise InvalidNodeError(f"{node.describe()}: {name} is {size}; {why}")
        return dataclasses.replace(site, node=dataclasses.replace(node, **known)) if known else site

    def _replacement(self, site: Site) -> Replacement:
        node, as_function, called, is_new = site.node, self._options.as_function, list[ir.Node](), True
        try:
            if as_function and node.is_quantized:
                raise UnsupportedError(f"--as-function does not support {node.op_type}; drop --as-function")
            if as_function and node.outputs:
                call, called, is_new = self._calls.call(node, site.scope, site.form, max(0, self._left), self._legal)
                nodes, results = [call], dict(zip(node.outputs, call.outputs, strict=True))
                outputs = self._with_ranks(site, nodes, results)
            else:
                nodes, outputs = self._lowered(site)
            if is_new:
                self._check_import(site, called or nodes, bool(called))
                self._spend(count_nodes(called or nodes))
        except UnsupportedOpError as error:
            raise self._unsupported(site, error) from None
        except UnsupportedError as error:
            error.args = (f"{node.describe()}: {error}",)
            raise
        for name, new in outputs.items():
            old = node.outputs[name]
            new.doc_string = old.doc_string
            new.metadata_props.update(old.metadata_props)
        olds = [node.outputs[name] for name in outputs]
        why = self._target.why(node, site.form) if self._options.form == "auto" else "requested"
        return Replacement(site, nodes, olds, [*outputs.values()], called, why)

    def _lowered(self, site: Site) -> tuple[list[ir.Node], dict[str, ir.Value]]:
        """The nodes that replace a node, and its outputs by name: canonical, tuned, legalized, checked."""
        node, scope, target = site.node, site.scope, self._target
        b = self._builder(site)
        if node.is_quantized and not self._options.dequantize:
            outputs = lower_quantized(node, b, site.form)
        else:
            outputs = lower_node(node, b, site.form, self._options.fuse_directions)
        rewrites = [name for name in target.tune if name != "name_batch" or scope.graph is self._model.graph]
        results = tune(b, rewrites, [*outputs.values()])
        nodes = drop_unread(b.nodes, results)
        if site.form == "loop":
            outputs = self._with_ranks(site, nodes, dict(zip(outputs, results, strict=True)))
            results = [*outputs.values()]
        nodes, results = self._legal(node, b, nodes, results)
        self._constants.pool(scope).forget({*b.nodes} - {*nodes})
        return nodes, dict(zip(outputs, results, strict=True))

    def _builder(self, site: Site) -> GraphBuilder:
        pool = self._constants.pool(site.scope)
        return builder_of(site.node, site.scope.opset, self._names, pool, max(0, self._left))

    def _with_ranks(self, site: Site, emitted: list[ir.Node], results: Mapping[str, ir.Value]) -> dict[str, ir.Value]:
        """The results by name, with ranks and sizes that inference does not find, such as those of a Loop or a call.

        onnxruntime takes no body of a Scan that gives something of unknown rank, and what a Loop of no trips gives has
        the shape that was inferred. A function declares no shapes, and may be called in such a body; there a Reshape
        to the same sizes tells the rank. The nodes needed for this are added to `emitted`.
        """
        node, scope, b, values = site.node, site.scope, self._builder(site), {}
        for name, new in results.items():
            old, sizes, new_name = node.outputs[name], node.known_shape(name), f"{name}/of_known_rank"
            values[name] = new
            if scope.in_function and exists("Scan", scope.opset):
                values[name] = as_value(b.reshape(new, [0] * len(sizes), new_name))  # 0 keeps the size at its axis
            elif old.shape is None:
                new.type, new.shape = ir.TensorType(node.dtype), ir.Shape(sizes)
                inside = scope.graph is not scope.root or bool(old.uses())
                if old.is_graph_output() and inside and not scope.in_function:  # which is declared without a shape
                    values[name] = b.op("Identity", new, name=new_name)
        emitted += b.nodes
        return values

    def _spend(self, count: int) -> None:
        """Raise UnmetRequirementError if the number of emitted nodes exceeds the limit."""
        self._left -= count
        if self._left < 0:
            limit = self._options.max_nodes
            what = (
                f"lowering this node emits {count} nodes, so the model would exceed the limit of {limit} "
                f"nodes by {-self._left}"
            )
            raise UnmetRequirementError(what, [Requirement(what, nodes=True)])

    def _unsupported(self, site: Site, error: UnsupportedOpError) -> UnsupportedError:
        """The requirements for operators that the target lacks; another form may not need them."""
        message = f"{site.node.describe()}: target {self._target.name} {error}"
        lengths = site.node.inputs.get("sequence_lens")
        if error.op_type in MASKING and lengths is not None and known(lengths) is None:
            message += "; make sequence_lens a constant, or remove it if every sequence has full length"
        if error.op_type in QUANTIZING and site.node.is_quantized:
            return UnsupportedError(f"{message}; add --dequantize, which computes with the weights as floats")
        forms = tuple(name for name in self._target.forms_for(site.node, site.scope.opset) if name != site.form)
        if not forms:
            return UnsupportedError(message)
        return UnmetRequirementError(message, [Requirement(message, forms=forms)])

    def _legal(
        self, node: RecurrentNode, b: GraphBuilder, nodes: list[ir.Node], results: list[ir.Value]
    ) -> tuple[list[ir.Node], list[ir.Value]]:
        """The legalized nodes and results of a node, checked against the target's constraints.

        A violation that is left is a mistake of ours, and no output.
        """
        if self._target.constraints.silent:
            return nodes, results
        checker = ConstraintChecker(self._target.constraints, b.opset, declared_infos(node).get)
        nodes, results = legalize(nodes, b, checker, results)
        for violation in checker.violations(nodes):
            raise AssertionError(
                f"{node.describe()}: the lowered form contains {violation.node.op_type} '{violation.node.name}', which "
                f"target {self._target.name} does not support: {violation.rule}"
            )
        return nodes, results

    def _check_import(self, site: Site, emitted: Sequence[ir.Node], calls: bool) -> None:
        """Raise UnmetRequirementError if a function imports another opset than its model, and operators differ.

        Within bodies they may have other versions that mean the same; outside of them, onnx's checker refuses that.
        calls: whether a new function computes the nodes.
        """
        own, of_model = site.scope.opset, default_opset(self._model.opset_imports)
        if not site.scope.in_function or of_model in (None, own):
            return
        differing = {
            node.op_type for node in emitted if version_of(node.op_type, own) != version_of(node.op_type, of_model)
        }
        in_bodies = {node.op_type for node in with_bodies(emitted)}
        differing |= {op_type for op_type in in_bodies if not same_signature(op_type, own, of_model)}
        why = f"{min(differing)} differs between these opsets" if differing else "--as-function needs the same opset"
        if differing or calls:
            what = f"the function imports opset {own}, but the model imports opset {of_model}, and {why}"
            raise UnmetRequirementError(what, [Requirement(what, opsets=(of_model, of_model))])


def declared_infos(node: RecurrentNode) -> dict[ir.Value, TensorInfo]:
    """The declarations of a node's inputs that follow from its sizes."""
    infos = {}
    for name, value in node.inputs.items():
        own, dtype = info_of(value), ir.DataType.INT32 if name == "sequence_lens" else node.dtype
        infos[value] = own if own.constant else TensorInfo(tuple(node.known_shape(name)), dtype)
    return infos


def read_nodes(model: ir.Model, shape_info: ShapeInfo | None = None) -> list[RecurrentNode]:
    """All recurrent nodes of a model. shape_info: of the model, if it exists already."""
    shape_info = shape_info or ShapeInfo(model)
    return [read_node(node, scope.opset, scope.path, shape_info) for node, scope in recurrent_nodes(model)]


def inlined_document(document: Document) -> Document:
    """The document with all functions inlined."""
    return Document(inlined(document.proto), document.folder) if document.proto.functions else document


def document_without_sequences(document: Document) -> Document:
    """The document with tensors instead of sequences that a node splits or that a Loop collects, as far as possible."""
    document = document.changed(without_sequences) if has_sequences(document.model) else document
    return document.changed(as_scan_outputs) if collects(document.model) else document


def read_document(document: Document) -> tuple[Document, list[RecurrentNode]]:
    """A document and its recurrent nodes; functions that depend on the call site are inlined in it."""
    try:
        return document, read_nodes(document.model, document.shape_info)
    except UnsupportedError:
        if not document.proto.functions:
            raise
    document = inlined_document(document)
    return document, read_nodes(document.model, document.shape_info)


def remove_unused(values: Iterable[ir.Value]) -> None:
    """Drop unused weights among these: initializers, Constant nodes, and nodes that move them."""
    waiting = [value for value in values if known(value) is not None]
    while waiting:
        value = waiting.pop()
        producer, owner = value.producer(), value.graph
        if producer is not None:
            if producer.graph is not None and not any(map(is_read, producer.outputs)):
                waiting += [operand for operand in producer.inputs if operand is not None]
                producer.graph.remove(producer, safe=True)
        elif value.is_initializer() and owner is not None and not (
            value.uses() or value.is_graph_output() or value.is_graph_input()
        ):  # fmt: skip
            owner.initializers.pop(value.name or "", None)
