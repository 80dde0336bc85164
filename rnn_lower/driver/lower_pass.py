"""The lowering pass: select nodes, replace them, and leave the rest of the model unchanged."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import onnx
import onnx_ir as ir
from typing_extensions import Unpack

from rnn_lower.driver.inline_functions import inline_functions, inline_recurrent
from rnn_lower.driver.legalize_rest import legalize_rest, needs_legalization
from rnn_lower.driver.plan import Plan, remove_unused
from rnn_lower.driver.suggestions import advised
from rnn_lower.errors import RnnLowerError, UnsupportedError, public
from rnn_lower.ir import protobuf
from rnn_lower.ir.replacing import substitute
from rnn_lower.ir.schemas import DEFAULT_DOMAINS, newest_opset
from rnn_lower.ir.uncollected import uncollected
from rnn_lower.ir.walk import default_opset, nodes, output_names, recurrent_functions, recurrent_nodes, with_bodies
from rnn_lower.loops.model import MARK, loops, unroll_loops
from rnn_lower.lowering.node import RecurrentNode
from rnn_lower.modelio import validate
from rnn_lower.modelio.document import Document
from rnn_lower.opset import convert
from rnn_lower.options import Keywords, Options, takes_options
from rnn_lower.sandbox.resource_limits import one_child
from rnn_lower.shapes import fixed_dims
from rnn_lower.shapes.shape_info import ShapeInfo
from rnn_lower.shapes.stale_shapes import verified_fixed_shapes, warn_of_output
from rnn_lower.targeting import find_target, lint
from rnn_lower.transforms.fold import fold
from rnn_lower.transforms.strip_weights import misdeclared

logger = logging.getLogger("rnn_lower")


@dataclasses.dataclass(frozen=True)
class Record:
    """The result for one recurrent node: the form and the number of emitted nodes, including those in bodies.

    why: a text that explains the choice of the form.  warning: a note about a large unrolled graph, otherwise empty.
    nodes: the emitted nodes; they are not available after pickling.
    """

    node: RecurrentNode
    form: str
    emitted: int
    why: str = ""
    warning: str = ""
    nodes: Sequence[ir.Node] = dataclasses.field(default=(), repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """The state to pickle, without the nodes, which belong to the model."""
        return {**self.__dict__, "nodes": ()}


class LowerRecurrentPass(ir.passes.InPlacePass):
    """Replace RNN, GRU and LSTM nodes with primitive operators, as an onnx_ir pass.

    The pass requires a valid model of opset 1 or newer. It changes the chosen nodes in the main graph, in subgraphs and
    in functions, and removes weights that are no longer used. Everything else stays unchanged, including the opset
    import, unless the options request a change. `modified` of the result states whether anything was replaced or
    rewritten; `records` of the pass lists the recurrent nodes. The options are those of `rnn_lower.lower`.

    Raises InvalidNodeError or UnsupportedError, before it changes anything, if a node cannot be lowered as requested.
    """

    @takes_options
    def __init__(self, **options: Unpack[Keywords]) -> None:
        super().__init__()
        self.options = Options(**options)
        find_target(self.options.target)
        self.records: list[Record] = []

    @public
    def call(self, model: ir.Model) -> ir.passes.PassResult:
        before = _frame(model)
        self.records = lower_in_place(model, self.options)
        return ir.passes.PassResult(model, bool(self.records) or _frame(model) != before)


def _frame(model: ir.Model) -> object:
    """What steps on a whole model change: its nodes, opset imports, metadata, and the shapes of its inputs."""
    shapes = [(value.name, str(value.shape)) for value in model.graph.inputs]
    parts = [(node.op_identifier(), output_names(node)) for node, _ in nodes(model)]
    return dict(model.opset_imports), dict(model.metadata_props), shapes, parts


def lower_in_place(model: ir.Model, options: Options) -> list[Record]:
    """Lower a model that the caller holds; an error leaves it unchanged."""

    for imports in (model.opset_imports, *(function.opset_imports for function in model.functions.values())):
        validate.check_imports(imports.items())

    def work() -> list[Record]:
        chosen = at_opset_of_target(model, options)
        changes_all = options.dims or any(_folds_and_unrolls(model, options)) or needs_legalization(model, options)
        if chosen.opset is None and not changes_all:
            return replace_nodes(model, options)
        copy = model.clone()  # weights are shared, not copied
        records = lower_model(copy, chosen)
        convert.take_over(model, copy)
        _log_conversion(options, chosen)
        return records

    def attempt(changed: Options) -> None:
        lower_model(model.clone(), at_opset_of_target(model, changed))

    return advised(work, options, model.clone, attempt)


def prepared(document: Document, options: Options, keep_loops: bool = False) -> tuple[Document, Options]:
    """Return the document to lower, and the options that remain.

    Folding and unrolling the model's own loops change all of a model, so they come first.
    keep_loops: leave loops that cannot be unrolled, although `options.loops` asks for it.
    """
    if not any(_folds_and_unrolls(document.model, options)):
        return document, options
    requested = options.fold or options.loops
    if lost := _would_lose(document.proto):
        if not requested:
            return document, options
        raise UnsupportedError(
            f"the model has {lost}, which can refer to nodes and values that folding may remove; drop "
            "--fold and --loops"
        )
    changed, notes = False, list[str]()

    def change(model: ir.Model) -> None:
        nonlocal changed, notes
        declared: dict[str | None, ir.Shape] = {}
        if options.dims:
            fixed_dims.fix_dims(model, options.dims)
            for value, shape in verified_fixed_shapes(model, ShapeInfo(model)).items():
                if value.is_graph_output():
                    declared[value.name] = value.shape or shape
                value.shape = shape
        changed, notes = _change_all(model, options, keep_loops)
        if not declared:
            return
        shape_info = ShapeInfo(model)  # folding and unrolling find more sizes
        for value in (value for value in model.graph.outputs if value.name in declared):
            value.shape = ir.Shape(shape_info.verified_dims(value))
            warn_of_output(value, declared[value.name], value.shape)

    remaining = dataclasses.replace(options, fold=False, loops=False)
    try:
        rewritten = document.changed(change)
    except RnnLowerError:
        if requested:
            raise
        return document, remaining  # nobody asked for it, and lowering says what the target lacks then
    if not changed:
        document.notes += notes
        return document, remaining
    if options.dims:
        _check_branches(rewritten.model, document.outline, rewritten.outline)
    rewritten.notes += notes
    return rewritten, dataclasses.replace(remaining, dims=None if options.dims is None else {})  # they are fixed now


def _would_lose(proto: onnx.ModelProto) -> str:
    """The parts of a model that refer to nodes that folding may remove, and that onnx_ir does not model."""
    graphs = [holder for holder in protobuf.holders(proto) if isinstance(holder, onnx.GraphProto)]
    if proto.training_info:
        return "training_info"
    return "quantization_annotation" if any(graph.quantization_annotation for graph in graphs) else ""


def _folds_and_unrolls(model: ir.Model, options: Options) -> tuple[bool, bool]:
    """Whether to fold constants, and whether to unroll loops of the original model: on request or for the target."""
    target = find_target(options.target)
    lacks_loops = options.target is not None and not {"scan", "loop"} & {*target.forms}
    unrolls = (options.loops or lacks_loops) and any(loops(model))
    return options.fold or any(_reasons_to_fold(model, options)), unrolls


def _reasons_to_fold(model: ir.Model, options: Options) -> Iterator[str]:
    """What was folded for the target, and why, in words; nothing if the target needs no folding."""
    target = find_target(options.target)
    lacks_calls = options.target is not None and not target.functions
    if not lacks_calls and not target.constraints.static:
        return
    in_functions = recurrent_functions(model, options.op_types)
    if in_functions and lacks_calls:
        why = f"no test shows that target {options.target} runs calls of functions"
        yield f"inlined functions and folded constants, because {why}"
    elif target.constraints.static and (in_functions or any(node.op_type == "Shape" for node, _ in nodes(model))):
        why = f"target {options.target} needs static sizes, but the model computes some sizes at run time"
        yield f"folded constants, because {why}"


def _change_all(model: ir.Model, options: Options, keep_loops: bool = False) -> tuple[bool, list[str]]:
    """Fold constants and unroll loops; returns whether the model changed, and why loops stay."""
    folded, unrolls = _folds_and_unrolls(model, options)
    notes = [] if options.fold else [*_reasons_to_fold(model, options)]
    if folded:
        _require_import(model)
        inline_recurrent(model)
        fold(model)
    if not unrolls:
        return True, notes
    with_loops = {scope.root.identifier() for _, scope in loops(model) if isinstance(scope.root, ir.Function)}
    if with_loops:
        inline_functions(model, with_loops)
    done, refusals = unroll_loops(model, options.max_nodes)
    if refusals and options.loops and not keep_loops:
        more = f" (and {len(refusals) - 1} more loop{'s' * (len(refusals) > 2)})" if len(refusals) > 1 else ""
        raise UnsupportedError(f"{refusals[0]}{more}")
    if done:
        shape_info = ShapeInfo(model)
        for value in model.graph.outputs:
            shape = shape_info.shape(value)
            value.shape = value.shape if shape is None else ir.Shape(shape)
    for name in done:
        logger.info("unrolled %s", name)
    return folded or bool(done), [*notes, *(str(refusal) for refusal in refusals[:3])]


@uncollected()
def lower_document(document: Document, options: Options) -> list[Record]:
    """Lower the view of a document, like `lower_model`."""

    def attempt(changed: Options) -> None:
        again = document.again()
        lower_model(again.model, at_opset_of_target(again.model, changed), again.outline)
        again.check_nesting()

    work = functools.partial(lower_unadvised, document, options)
    records = advised(work, options, lambda: document.again().model, attempt)
    for note in document.notes:
        logger.warning("%s", note)
    return records


def lower_unadvised(document: Document, options: Options) -> list[Record]:
    """Lower like `lower_document`, but without suggestions in errors, which take time to find."""
    chosen = at_opset_of_target(document.model, options)
    records = lower_model(document.model, chosen, document.outline, rewrites=False)
    _log_conversion(options, chosen)
    return records


def at_opset_of_target(model: ir.Model, options: Options) -> Options:
    """Options with the nearest opset that the target supports, unless the model's opset is supported or one is set."""
    target = find_target(options.target)
    (first, last), newest = target.opsets, newest_opset()
    sites = recurrent_nodes(model, options.op_types)
    others = [  # emitted for loops, or to be legalized
        (node, scope) for node, scope in nodes(model)
        if MARK in node.metadata_props or (options.legalize_all and node.domain in DEFAULT_DOMAINS)
    ]  # fmt: skip
    beyond = [scope.opset for _, scope in (*sites, *others) if not first <= scope.opset <= last]
    if options.opset is not None or not beyond or first > newest:
        return options
    return dataclasses.replace(options, opset=first if beyond[0] < first else last)


def _require_import(model: ir.Model) -> None:
    """Raise UnsupportedError if only functions import the operators of ONNX, so that the main graph may use none."""
    in_functions = any(default_opset(function.opset_imports) for function in model.functions.values())
    if in_functions and not default_opset(model.opset_imports):
        raise UnsupportedError(
            "only functions of the model import the operators of ONNX, but folding, conversion and new functions need "
            "the opset of the model; add an entry with the domain '' and this opset to its opset_import"
        )


def _log_conversion(requested: Options, chosen: Options) -> None:
    if requested.opset != chosen.opset:
        logger.info(
            "converted the model to opset %d, the nearest opset that target %s supports", chosen.opset, requested.target
        )


def _fix_dims(model: ir.Model, options: Options, outline: onnx.ModelProto | None) -> None:
    """Fix sizes. Raises UnsupportedError if a branch becomes invalid."""
    dims = options.dims or {}
    fixed_dims.fix_dims(model, dims)
    if outline is not None:
        before = onnx.ModelProto()
        before.CopyFrom(outline)
        fixed_dims.fix_proto_dims(outline, dims)
        _check_branches(model, before, outline)


def _check_branches(model: ir.Model, before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    """Raise UnsupportedError if fixed sizes make a branch invalid, with which runtimes do not load the model.

    before, after: the outlines of the model with free and with fixed sizes.
    """
    has_branches = any(node.op_type == "If" for node, _ in nodes(model))
    if has_branches and (wrong := misdeclared(after)) and not misdeclared(before):
        text = "the model is invalid with these sizes, perhaps in a branch of an If that they exclude"
        advice = "--fold removes such a branch if these sizes alone decide the condition"
        raise UnsupportedError(f"{text}: {wrong}; {advice}")


@one_child()
def lower_model(
    model: ir.Model, options: Options, outline: onnx.ModelProto | None = None, rewrites: bool = True
) -> list[Record]:
    """Fix sizes, fold and unroll loops, convert and lower; after an error the model is unusable.

    outline: as in `ShapeInfo`.  rewrites: False for a model that is folded and unrolled already.
    """
    if options.dims:
        _fix_dims(model, options, outline)
    notes = list[str]()
    if rewrites and any(_folds_and_unrolls(model, options)):
        _, notes = _change_all(model, options)
        outline = None
    if options.opset is not None or options.as_function:
        _require_import(model)
    if options.opset is not None:  # first, so that nodes are lowered with the operators of that opset
        convert.convert_opset(model, options.opset, outline)
    records = replace_nodes(model, options, outline)
    if options.opset is not None:
        convert.restamp_rest(model)
    for note in notes:
        logger.warning("%s", note)
    return records


def replace_nodes(model: ir.Model, options: Options, outline: onnx.ModelProto | None = None) -> list[Record]:
    """Replace all chosen recurrent nodes, or none of them; legalize other nodes first."""
    if needs_legalization(model, options) and legalize_rest(model, options):
        outline = None
    shape_info = ShapeInfo(model, outline)
    plan = Plan(model, options, shape_info)
    read = [value for new in plan.replacements for value in new.site.node.node.inputs if value is not None]
    for new in plan.replacements:
        old = new.site.node.node
        substitute([old], new.nodes, new.old_values, new.new_values)
    remove_unused(read)
    target = find_target(options.target)
    if count := sum((node.domain, node.op_type) == ("com.microsoft", "AttnLSTM") for node, _ in nodes(model)):
        text = "the only operator of onnxruntime that rnn_lower lowers is DynamicQuantizeLSTM"
        logger.warning("%d AttnLSTM (com.microsoft) were not lowered; %s", count, text)
    if options.target is not None:
        emitted = (node for new in plan.replacements for node in with_bodies(new.nodes))
        checked = {node for node in emitted if node.op_identifier() not in model.functions}  # by Plan
        if findings := list(lint.unsupported(model, target, shape_info, known=checked)):
            logger.warning("%s", lint.summary(findings, target))
    warnings = plan.warnings
    return [
        Record(node, new.site.form, new.count, new.why, warnings.get(node.node, ""), tuple(new.emitted))
        for new, node in ((new, new.site.node) for new in plan.replacements)
    ]
