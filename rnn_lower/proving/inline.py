"""Inline the function calls of a lowered model."""

from __future__ import annotations

import re

import onnx
import onnx.inliner

from rnn_lower.driver.function_calls import IR_VERSION
from rnn_lower.errors import RnnLowerError
from rnn_lower.ir import protobuf
from rnn_lower.ir.walk import is_emitted, opset_of
from rnn_lower.opset.convert import ir_version_of


class CallError(RnnLowerError):
    """A function that lowering emitted was changed so that the model cannot call it."""


def without_made_calls(after: onnx.ModelProto, before: onnx.ModelProto) -> onnx.ModelProto:
    """The lowered model with emitted function calls inlined, and without the domain and IR version that they needed.

    before: the original. A model without such calls is returned unchanged.
    """
    there = {(function.domain, function.name) for function in before.functions}
    called = {(node.domain, node.op_type) for node in _marked(after) if _is_emitted(node.domain)}
    new_functions = [f for f in after.functions if (f.domain, f.name) in called - there]
    if not new_functions:
        return after
    opset = opset_of(after)
    for function in new_functions:
        name = f"{function.domain}.{function.name}"
        if [(entry.domain, entry.version) for entry in function.opset_import] != [("", opset)]:  # not "ai.onnx"
            raise CallError(f"function {name} imports a different opset than the model")
        if function.attribute or function.attribute_proto:
            raise CallError(f"function {name} has attributes, but the functions that lowering creates have none")
    names = [(function.domain, function.name) for function in new_functions]
    try:
        result: onnx.ModelProto = onnx.inliner.inline_selected_functions(after, names, exclude=False)
    except Exception as error:  # the inliner raises C++ exceptions
        raise CallError(f"function {'.'.join(names[0])} cannot be inlined: {error}") from None
    protobuf.remove_if(result.functions, lambda function: (function.domain, function.name) in names)
    text = {(f.domain, f.name): f.value_info for f in after.functions}
    for function in result.functions:  # the inliner adds value_info for the values that it moved
        del function.value_info[:]
        function.value_info.extend(text[function.domain, function.name])
    prefixes = tuple(f"{domain}::{name}/" for domain, name in names)  # with which onnx_ir declares values of functions
    computed = {name for node in after.graph.node for name in node.output}
    protobuf.remove_if(
        result.graph.value_info, lambda info: info.name.startswith(prefixes) and info.name not in computed
    )
    domains = {domain for domain, _ in names}
    for holder in (result, *result.functions):
        protobuf.remove_if(holder.opset_import, lambda entry: entry.domain in domains)
    least = before.ir_version
    if opset is not None and opset != opset_of(before):  # conversion to this opset may need a newer IR version
        least = max(least, ir_version_of(opset))
    if after.ir_version <= max(least, IR_VERSION):  # functions may need a newer one, too
        result.ir_version = min(after.ir_version, least)
    if result.ir_version < 4:  # IR version 3 requires weights among the inputs, IR version 4 does not
        own, weights = {value.name: value for value in after.graph.input}, {t.name for t in after.graph.initializer}
        known = [value for value in before.graph.input if value.name in own or value.name in weights]
        if [value.name for value in known if value.name in own] == list(own):
            inputs = [own.get(value.name, value) for value in known]
            del result.graph.input[:]
            result.graph.input.extend(inputs)
    return result


def _is_emitted(domain: str) -> bool:
    """Whether lowering gives this domain to functions; runtimes have their own operators in other domains."""
    return re.fullmatch(r"rnn_lower(_\d+)?", domain) is not None


def _marked(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """All emitted nodes, also those in bodies and functions."""
    holders = protobuf.holders(model)
    nodes = (node for holder in holders for node in holder.node)
    return [*filter(is_emitted, nodes)]
