"""Bring a model to another opset, and fix symbolic sizes: what happens to the rest of a model on request."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
import onnx_ir as ir

from rnn_lower.errors import RnnLowerError, UnsupportedError
from rnn_lower.facts import infer_shapes, plain_dim, values_of
from rnn_lower.node import version_at
from rnn_lower.passes import recurrent_nodes

HELD = "rnn_lower.held.v"
"""Domain under which recurrent nodes wait while converters work: they pass over domains they do not know."""

SCRIPT_CONVERTER = range(18, 26)
"""Opsets between which onnxscript's converter works; onnx's own serves the others."""

KEEP_IN_PROTO = 4096
"""Initializers up to this many bytes go through onnx's converter, whose adapters read axes and shapes from them."""


def fix_dims(model: ir.Model, dims: Mapping[str, int]) -> None:
    """Give symbolic sizes fixed values everywhere in the model, in place.

    Raises RnnLowerError for a name that no graph input carries.
    """
    sizes = (plain_dim(dim) for value in model.graph.inputs for dim in value.shape or ())
    symbols = {size for size in sizes if isinstance(size, str)}
    for name, size in dims.items():
        if name not in symbols:
            known = ", ".join(sorted(symbols)) or "none"
            raise RnnLowerError(f"no input has a symbolic size '{name}'; symbolic sizes of the inputs: {known}")
        if size < 0:
            raise RnnLowerError(f"size {size} of '{name}' must not be negative")
    for value in values_of(model):
        if value.shape is not None:
            names = map(plain_dim, value.shape)
            value.shape = ir.Shape([dims.get(name, name) if isinstance(name, str) else name for name in names])
    infer_shapes(model)


def convert_opset(model: ir.Model, opset: int) -> None:
    """Convert a model to an opset, in place; its recurrent nodes are restamped, not converted.

    onnx's converter has no adapter for RNN, GRU and LSTM below version 7, and not every converter reaches into Loop
    and Scan bodies. So the recurrent nodes stay aside while onnxscript's converter, or onnx's where that one does not
    serve, converts the rest; they are lowered afterwards at the new opset.
    Raises UnsupportedError when the converter gives up.
    """
    current = model.opset_imports.get("", 0)
    newest = onnx.defs.onnx_opset_version()
    if not 1 <= opset <= newest:
        raise UnsupportedError(f"opset {opset} is unknown; the installed onnx knows 1 to {newest}")
    if opset == current:
        return
    if current < 14 <= opset or current < 7 <= opset:
        infer_shapes(model)  # adapters ask for shapes behind held nodes
    held = [node for node, *_ in recurrent_nodes(model)]
    for node in held:  # the name of the domain keeps the version, and with it the meaning
        node.domain = f"{HELD}{version_at(node.op_type, current)}"
        model.opset_imports[node.domain] = 1
    try:
        if current in SCRIPT_CONVERTER and opset in SCRIPT_CONVERTER:
            _with_onnxscript(model, opset)
        else:
            _with_onnx(model, opset)
    except Exception as error:  # converters raise whatever their adapters raise
        raise UnsupportedError(f"opset {current} -> {opset}: {' '.join(str(error).split())}") from None
    finally:
        for graph in model.graphs():
            for node in graph:
                if node.domain.startswith(HELD):
                    model.opset_imports.pop(node.domain, None)
                    _release(node, opset)
    if model.opset_imports.get("") != opset:
        raise UnsupportedError(f"opset {current} -> {opset}: the converter left the model at {model.opset_imports}")


def restamp_rest(model: ir.Model) -> None:
    """Recurrent nodes that were not lowered are of the model's opset from now on. Raises when they cannot be."""
    for node, _, opset, path in recurrent_nodes(model):
        node.version = None
        allowed = version_at(node.op_type, opset)
        if allowed < 14 and "layout" in node.attributes:
            raise UnsupportedError(
                f"{node.op_type} '{node.name}' in {path} has a layout, which opset {opset} cannot say"
            )


def _release(node: ir.Node, opset: int) -> None:
    """Back to the default domain; what older versions said otherwise is restated."""
    node.version, node.domain = int(node.domain.removeprefix(HELD)), ""
    if opset >= 7 and node.version < 7:
        node.attributes.pop("output_sequence", None)
        node.version = 7
    direction = node.attributes.get("direction")
    if direction is not None and direction.value == "foward":
        node.attributes["direction"] = ir.AttrString("direction", "forward")


def _with_onnxscript(model: ir.Model, opset: int) -> None:
    from onnxscript import version_converter

    version_converter.convert_version(model, target_version=opset)


def _with_onnx(model: ir.Model, opset: int) -> None:
    """onnx's converter works on protobuf; large weights stay outside and are put back."""
    large = {
        name: value
        for name, value in model.graph.initializers.items()
        if value.const_value is not None and value.const_value.nbytes > KEEP_IN_PROTO and not value.is_graph_input()
    }
    for name, value in large.items():
        model.graph.inputs.append(value)
        model.graph.initializers.pop(name)
    try:
        converted = onnx.version_converter.convert_version(_newer_ir(ir.to_proto(model), opset), opset)
        new = ir.from_proto(converted)
    finally:
        for value in large.values():
            model.graph.inputs.remove(value)
            model.graph.register_initializer(value)
    for value in [value for value in new.graph.inputs if value.name in large]:
        new.graph.inputs.remove(value)
        value.const_value = large[value.name].const_value
        new.graph.register_initializer(value)
    notes = {_outputs(node): node.metadata_props for node in model.graph.all_nodes() if node.metadata_props}
    for node in new.graph.all_nodes() if notes else ():  # the converter drops them
        node.metadata_props.update(notes.get(_outputs(node), {}))
    new.graph.metadata_props.update(model.graph.metadata_props)
    model.graph = new.graph
    model.ir_version = new.ir_version
    model.functions.clear()
    model.functions.update(new.functions)


def _outputs(node: ir.Node) -> tuple[str | None, ...]:
    return tuple(value.name for value in node.outputs)


def _newer_ir(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """Raise the IR version to what the opset asks for.

    Before IR version 4 every initializer had to be listed as an input too, which made it no less a constant; later
    that means that the caller may override it. So the listing ends here.
    """
    if model.ir_version < 4:
        initializers = {tensor.name for tensor in model.graph.initializer}
        inputs = [value for value in model.graph.input if value.name not in initializers]
        del model.graph.input[:]
        model.graph.input.extend(inputs)
    wanted = onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", opset)])
    model.ir_version = max(model.ir_version, wanted, 4)
    return model
