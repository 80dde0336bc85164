"""Calls of functions, with the bodies of these in their place."""

from __future__ import annotations

import onnx
import onnx.inliner

from rnn_lower.errors import UnsupportedError
from rnn_lower.model import tensors
from rnn_lower.recurrent.node import OPERATORS


def inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without functions; it stays as it is itself.

    Functions of another opset than the model's stay where they are. onnx's inliner forgets the defaults that a function
    has for its attributes, so every call says them first, and outputs that are inputs, which get a node.
    Raises UnsupportedError where a recurrent node, or the call of a function that is gone, would be left.
    """
    said = onnx.ModelProto()
    said.CopyFrom(model)
    defaults = {_key(f): [*f.attribute_proto] for f in said.functions if f.attribute_proto}
    for node in (node for holder in tensors.holders(said) for node in holder.node) if defaults else ():
        given = {attribute.name for attribute in node.attribute}
        node.attribute.extend(attribute for attribute in defaults.get(_called(node), ()) if attribute.name not in given)
    for function in said.functions:
        function.attribute.extend(attribute.name for attribute in function.attribute_proto)
        del function.attribute_proto[:]
        _own_outputs(function)
    result: onnx.ModelProto = onnx.inliner.inline_local_functions(said)
    _check(result, {_key(function) for function in model.functions})
    return result


def _key(function: onnx.FunctionProto) -> tuple[str, str, str]:
    return function.domain, function.name, function.overload


def _called(node: onnx.NodeProto) -> tuple[str, str, str]:
    return node.domain, node.op_type, node.overload


def _own_outputs(function: onnx.FunctionProto) -> None:
    taken = set(function.input)
    for place, name in enumerate(function.output):
        if name in taken:
            function.output[place] = f"{name}/as_output_{place}"
            function.node.add(op_type="Identity", input=[name], output=[function.output[place]])
        taken.add(function.output[place])


def _check(result: onnx.ModelProto, functions: set[tuple[str, str, str]]) -> None:
    left = {_key(function): function for function in result.functions}
    bodies = (body for function in result.functions for body in tensors.graphs_in(function))
    inside = {node.op_type for body in bodies for node in body.node if not node.domain}
    gone = [
        node for holder in tensors.holders(result) for node in holder.node if _called(node) in functions - left.keys()
    ]
    if gone or inside & OPERATORS.keys():
        name = (
            f"{gone[0].domain}.{gone[0].op_type}"
            if gone
            else ", ".join(f"{f.domain}.{f.name}" for f in result.functions)
        )
        raise UnsupportedError(
            f"function {name} is not of the model's opset, so that it cannot be inlined; convert the model first"
            " (rnn-lower lower --opset N)"
        )
