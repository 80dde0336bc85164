"""Constant folding: sizes that inference does not find, branches that are never taken, and the folded model."""

from __future__ import annotations

import contextlib
import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import onnx
import onnx_ir as ir
import onnx_ir.passes.common

from rnn_lower.builder.constants import ConstantPool, constant
from rnn_lower.builder.graph_builder import GraphBuilder, as_value
from rnn_lower.builder.names import Names
from rnn_lower.errors import RnnLowerError
from rnn_lower.ir.schemas import DEFAULT_DOMAINS, literal_of, schema_of, unfit
from rnn_lower.ir.walk import (
    computes_with_infinity,
    get_attribute,
    known_tensor,
    nodes,
    recurrent_nodes,
    scopes,
    subgraphs,
    used_names,
    values,
)
from rnn_lower.sandbox import child_process
from rnn_lower.sandbox.child_process import Ended, run_in_subprocess
from rnn_lower.sandbox.resource_limits import run_with_limits
from rnn_lower.transforms.certainty import is_certain
from rnn_lower.transforms.evaluate import TRUSTED, content_of, delicate_nodes, divides_by_zero, most_elements
from rnn_lower.transforms.inline import inlined
from rnn_lower.transforms.split_sequences import SEQUENCES, without_sequences
from rnn_lower.transforms.strip_weights import outline_of, unverified_values, without_annotations
from rnn_lower.transforms.unverified_shapes import may_be_unverified

HIDDEN = "rnn_lower.hidden"
"""The domain of nodes that onnxscript must not see while it folds."""

MARK = "rnn_lower.index"
"""The metadata key that identifies a node of the copy after inlining and folding."""

SMALL = ("ConstantOfShape", "Transpose", "Expand", "Tile")
"""Operators that onnxscript does not fold, so that constants do not grow; constants of shapes are small."""


FEW = 1 << 20
"""The maximum number of elements of a folded result that is larger than its operands."""

VARIADIC = onnx.defs.OpSchema.FormalParameterOption.Variadic

LIMIT = 1 << 28
"""The maximum number of elements of a weight that is folded on request."""

FOLDED = "rnn_lower.folded"
"""The metadata key of a model in which `fold` changed other nodes, too; it is compared with the folded original."""


def fold(model: ir.Model) -> None:
    """Fold the constants of a model in place, for `fold=True`: shapes, and computed weights.

    Everything that does not depend on an input becomes an initializer; initializers that a caller may override stay.
    Raises RnnLowerError if the optimizer fails or ends the process, as inference does for some sizes. A child folds
    first, to find out; folding twice is faster than sending a large model back.
    """
    _optimizer()  # imported once, before the child is forked
    try:
        if child_process.may_fork():
            run_in_subprocess(_fold_here, model)
        _fold_here(model)
    except Ended as end:
        raise RnnLowerError(f"the process that folds constants crashed ({end}); drop --fold") from None
    except (RnnLowerError, MemoryError):
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
        raise RnnLowerError(f"folding constants failed ({text}); drop --fold") from error
    model.metadata_props[FOLDED] = "constants"


def is_folded(model: onnx.ModelProto) -> bool:
    """Whether `fold` has changed a model."""
    return any(entry.key == FOLDED for entry in model.metadata_props)


def _fold_here(model: ir.Model) -> None:
    before = {node: len(node.inputs) for node, _ in nodes(model)}
    with _without_declared_shapes(model), _silent(logging.getLogger("onnxscript.optimizer._constant_folding")):
        _fold_constants(model, _is_small, input_size_limit=LIMIT, output_size_limit=LIMIT)
        ir.passes.common.RemoveUnusedNodesPass()(model)
    _complete(model, before)


def _fold_constants(model: ir.Model, should_fold: Callable[[ir.Node], bool | None], **limits: int) -> None:
    """Fold with onnxscript, except for nodes that it must not see: sequences, and those of unverified sizes.

    At every opset, it replaces sequences with nodes of opset 18.
    """
    without_sequences(model)
    is_sure = not any(may_be_unverified(node) for node, _ in nodes(model))
    unverified = set[str]() if is_sure else unverified_values(outline_of(model))
    hidden = [
        node for node, _ in nodes(model) if node.domain in DEFAULT_DOMAINS
        and (node.op_type in SEQUENCES or (may_be_unverified(node) and node.outputs[0].name in unverified))
    ]  # fmt: skip
    for node in hidden:
        node.domain = HIDDEN
    delicate = {node.outputs[0].name for node in delicate_nodes([(node, scope.opset) for node, scope in nodes(model)])}

    def is_chosen(node: ir.Node) -> bool | None:
        if computes_with_infinity(node):  # with which evaluators compute NaN
            return False
        return False if node.outputs and node.outputs[0].name in delicate else should_fold(node)

    try:
        _optimizer().fold_constants(model, onnx_shape_inference=True, should_fold=is_chosen, **limits)
    finally:
        for node in hidden:
            node.domain = ""


@contextlib.contextmanager
def _silent(logger: logging.Logger) -> Iterator[None]:
    """Suppress the optimizer's warnings about nodes that it does not fold."""
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


@contextlib.contextmanager
def _without_declared_shapes(model: ir.Model) -> Iterator[None]:
    """Hide what the optimizer trusts although it may be false: defaults of inputs, and declared sizes of values.

    Before IR version 4, callers cannot override a default, so it is a constant.
    """
    graph, inputs = model.graph, set(model.graph.inputs)
    weights = list(graph.initializers.values())
    defaults = {value: value.const_value for value in weights if value in inputs}
    declared_shapes = {
        value: value.shape for value in values(model) if value not in inputs and not value.is_initializer()
    }
    results = [(scope.graph, [value.shape for value in scope.graph.outputs]) for scope in scopes(model)]
    for value in declared_shapes:
        value.shape = None
    for value in inputs:
        if value.shape is not None and any(isinstance(dim, int) and dim < 0 for dim in value.shape):
            declared_shapes[value] = value.shape  # -1 is not a size, and inference aborts if a Slice cuts such an axis
            value.shape = ir.Shape([None if isinstance(dim, int) and dim < 0 else dim for dim in value.shape])
    for value in defaults if (model.ir_version or 0) >= 4 else ():
        del graph.initializers[str(value.name)]
        value.const_value = None
    try:
        yield
    finally:
        for value, shape in declared_shapes.items():
            value.shape = value.shape if shape is None else shape
        for (
            folded,
            shapes,
        ) in results:  # a body's output may now be another value; without steps, nothing else declares its type
            for value, shape in zip(folded.outputs, shapes, strict=False):  # fewer if a branch was removed
                value.shape = shape if value.shape is None else value.shape
        for value, default in defaults.items():
            value.const_value = default
        remaining = {*graph.initializers.values(), *defaults}
        order = [value for value in dict.fromkeys((*weights, *graph.initializers.values())) if value in remaining]
        graph.initializers.clear()
        graph.initializers.update({str(value.name): value for value in order})


def _is_small(node: ir.Node) -> bool | None:
    """Whether to fold a node that onnxscript skips: one that computes few elements from constants.

    False where its evaluator may be wrong.
    """
    if _is_doubtful(node):
        return False
    constants = [known_tensor(value) for value in node.inputs if value is not None]
    if node.domain not in DEFAULT_DOMAINS or not constants or any(tensor is None for tensor in constants):
        return None
    if most_elements(node.op_type, [content_of(value, node) for value in node.inputs]) > LIMIT:
        return False
    if node.op_type not in SMALL:
        return None
    sizes = constants[-1]
    if node.op_type == "Transpose" or sizes is None or not sizes.dtype.is_integer():
        return None
    repeated = constants[0].size if node.op_type == "Tile" and constants[0] is not None else 1
    return repeated * math.prod(abs(int(size)) for size in sizes.numpy().ravel()) <= FEW or None


def _makes_size(node: ir.Node) -> bool | None:
    """Whether to fold a node of a model without weights, whose values are all small."""
    return False if _is_doubtful(node) else True if node.op_type in SMALL else None


def _is_doubtful(node: ir.Node) -> bool:
    """Whether onnx's evaluator, with which onnxscript folds, may compute another result than runtimes."""
    if node.domain not in DEFAULT_DOMAINS or any(subgraphs(node)):
        return False
    if node.op_type not in TRUSTED:
        return True
    if {"axis", "broadcast"} <= node.attributes.keys():  # before opset 7; onnxscript ignores the axis
        return True
    if any(known_tensor(value) is None for value in node.inputs if value is not None):
        return False
    operands = [content_of(value, node) for value in node.inputs]
    return divides_by_zero(node, operands) or not is_certain(node, operands)


def _complete(model: ir.Model, before: Mapping[ir.Node, int]) -> None:
    """Make the result valid at the model's opset: constants of old opsets, and optional inputs and outputs that the
    optimizer dropped but ONNX requires, of Loops and function calls.

    before: the nodes before folding, with their numbers of inputs.
    Raises RnnLowerError if another new node is invalid.
    """
    names = Names(used_names(model))
    for node, scope in [*nodes(model)]:
        if node.op_identifier() in model.functions:
            for value in node.outputs:  # an unnamed value would not be written
                value.name = value.name or names.unique("unwanted")
        elif node.domain in DEFAULT_DOMAINS and (schema := schema_of(node.op_type, scope.opset)) is not None:
            single = [formal for formal in schema.inputs if formal.option != VARIADIC]
            needed = min(schema.min_input, len(single), before.get(node, schema.min_input))
            node.resize_inputs(max(needed, len(node.inputs)))
            if node.op_type == "Constant" and node not in before and _rewritten(node, scope.opset, names):
                continue
            if node not in before and (why := unfit(node, scope.opset)):
                raise RnnLowerError(f"folding made an invalid {node.op_type} ({why}); drop --fold")


def _rewritten(node: ir.Node, opset: int, names: Names) -> bool:
    """Whether a new Constant is a literal that its opset does not have, which is replaced with nodes that it has."""
    (attribute,) = node.attributes.values()
    array, graph, old = literal_of(attribute), node.graph, node.outputs[0]
    if array is None or graph is None or not unfit(node, opset):
        return False
    b = GraphBuilder(opset, ir.DataType.FLOAT, names, ConstantPool(names, as_nodes=True), str(old.name))
    new = as_value(b.value(constant(array, ir.DataType.from_numpy(array.dtype))))
    old.name, new.name = None, old.name
    new.type, new.shape = old.type, old.shape
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    graph.insert_before(node, b.nodes)
    graph.remove(node, safe=True)
    return True


def folded_shapes(outline: onnx.ModelProto) -> list[tuple[int | None, ...] | None]:
    """The shape of X of each recurrent node, in the order of `recurrent_nodes`, from constant folding.

    outline: not changed.  A node in a function has the shape in which all its calls agree.
    """
    return [_agreed(shapes) for shapes in _folded(outline)]


def dead_nodes(outline: onnx.ModelProto) -> set[int]:
    """Indices in `recurrent_nodes` of nodes that can never run; folding removes their branch."""
    return {index for index, shapes in enumerate(_folded(outline)) if not shapes}


def _folded(outline: onnx.ModelProto) -> list[list[list[int | None] | None]]:
    _optimizer()  # imported once, before children are forked
    try:
        shapes: list[list[list[int | None] | None]] = json.loads(
            run_with_limits(_constant_folding, outline.SerializeToString())
        )
    except RnnLowerError:  # folding may raise anything; the shapes then stay unknown
        return []
    return shapes


def _constant_folding(content: bytes) -> bytes:
    outline = onnx.ModelProto.FromString(content)
    # Below opset 14, `without_annotations` replaces nodes with a layout, so that X has another shape.
    before = recurrent_nodes(ir.serde.deserialize_model(outline))
    layouts = ((get_attribute(node, "layout", ir.AttributeType.INT, 0), scope.opset or 14) for node, scope in before)
    turned = [bool(layout) and opset < 14 for layout, opset in layouts]
    model = ir.serde.deserialize_model(without_annotations(outline))
    for count, (node, _) in enumerate(recurrent_nodes(model)):
        node.metadata_props[MARK] = str(count)
    if model.functions:
        model = ir.serde.deserialize_model(inlined(ir.serde.serialize_model(model)))
    for name, value in list(model.graph.initializers.items()):
        if isinstance(value.const_value, ir.ExternalTensor):  # its data was stripped, so the optimizer must not read it
            value.const_value = None
            del model.graph.initializers[name]
            model.graph.inputs.append(value)
    _fold_constants(model, _makes_size)
    shapes: list[list[list[int | None] | None]] = [[] for _ in turned]
    for node, _ in recurrent_nodes(model):
        x, index = node.inputs[0] if node.inputs else None, int(node.metadata_props[MARK])
        shape = None if x is None or x.shape is None else [d if isinstance(d, int) else None for d in x.shape]
        shapes[index].append([shape[1], shape[0], *shape[2:]] if shape and turned[index] else shape)
    return json.dumps(shapes).encode()


def _optimizer() -> Any:
    from onnxscript import optimizer  # takes half a second

    return optimizer


def _agreed(shapes: Sequence[Sequence[int | None] | None]) -> tuple[int | None, ...] | None:
    if not shapes or any(shape is None or len(shape) != 3 for shape in shapes):
        return None
    columns = zip(*(shape for shape in shapes if shape is not None), strict=True)
    return tuple(column[0] if len(set(column)) == 1 else None for column in columns)
