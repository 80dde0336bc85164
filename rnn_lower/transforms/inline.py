"""Replace function calls with the bodies of the functions."""

from __future__ import annotations

from collections.abc import Iterable

import onnx
import onnx.inliner

from rnn_lower.builder.names import Names
from rnn_lower.errors import UnsupportedError, one_line
from rnn_lower.ir import protobuf
from rnn_lower.ir.schemas import DEFAULT_DOMAINS
from rnn_lower.ir.walk import plain_imports
from rnn_lower.lowering.node import OPERATORS

Name = tuple[str, str]
"""The domain and the name of a function; all overloads share this key."""


def inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of the model without functions.

    Functions with another opset than the model stay, and so do the functions that they call. onnx's inliner ignores
    default attributes of functions, so they are first set at the calls. A call within a function may pass on an
    attribute that its caller omits, so the outermost functions are inlined first. The inliner also loses outputs
    that are inputs, which therefore get a node. Raises UnsupportedError if a recurrent node would remain in a function.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    for function in result.functions:
        _own_outputs(function)
    names = _staying(result)
    staying = [function for function in result.functions if _key(function) in names]
    _remove(result, names)
    while names := _outermost(result):
        _say_defaults(result, names)
        try:
            result = onnx.inliner.inline_selected_functions(result, sorted(names), exclude=False)
        except Exception as error:  # the inliner raises C++ exceptions
            text = f"calls of function {'.'.join(min(names))} cannot be inlined: {one_line(error)}"
            raise UnsupportedError(text) from None
        _remove(result, names)
    result.functions.extend(staying)
    _check(result)
    return result


def _key(function: onnx.FunctionProto) -> Name:
    return function.domain, function.name


def _own_outputs(function: onnx.FunctionProto) -> None:
    seen_names, names = set(function.input), Names(protobuf.all_names_of(function))
    for index, name in enumerate(function.output):
        if name in seen_names:
            function.output[index] = names.unique(f"{name}/as_output_{index}")
            function.node.add(op_type="Identity", input=[name], output=[function.output[index]])
        seen_names.add(function.output[index])


def _calls(functions: Iterable[onnx.FunctionProto]) -> dict[Name, set[Name]]:
    """The operators and functions that each function calls."""
    called: dict[Name, set[Name]] = {}
    for function in functions:
        nodes = (node for body in protobuf.graphs_in(function) for node in body.node)
        called.setdefault(_key(function), set()).update((node.domain, node.op_type) for node in nodes)
    return called


def _staying(model: onnx.ModelProto) -> set[Name]:
    """The functions with another opset than the model, and all functions that they call."""
    imports, calls, staying = _imports(model), _calls(model.functions), set()
    for function in model.functions:
        if any(imports.get(domain, version) != version for domain, version in _imports(function).items()):
            staying.add(_key(function))
    while further := {name for caller in staying for name in calls[caller] if name in calls} - staying:
        staying |= further
    return staying


def _imports(holder: onnx.ModelProto | onnx.FunctionProto) -> dict[str, int]:
    return plain_imports({entry.domain: entry.version for entry in holder.opset_import})


def _remove(model: onnx.ModelProto, names: set[Name]) -> None:
    protobuf.remove_if(model.functions, lambda function: _key(function) in names)


def _outermost(model: onnx.ModelProto) -> set[Name]:
    """Functions that no other function calls."""
    calls = _calls(model.functions)
    return calls.keys() - {called for inner in calls.values() for called in inner}


def _say_defaults(model: onnx.ModelProto, names: set[Name]) -> None:
    """Set the default attributes at the calls of these functions, outside of other functions."""
    defaults = {(*_key(f), f.overload): [*f.attribute_proto] for f in model.functions if _key(f) in names}
    for node in (node for body in protobuf.graphs_in(model.graph) for node in body.node):
        present = {attribute.name for attribute in node.attribute}
        missing = defaults.get((node.domain, node.op_type, node.overload), ())
        node.attribute.extend(attribute for attribute in missing if attribute.name not in present)
    for function in model.functions:
        if _key(function) in names:
            function.attribute.extend(attribute.name for attribute in function.attribute_proto)
            del function.attribute_proto[:]


def _check(result: onnx.ModelProto) -> None:
    nodes = {node for called in _calls(result.functions).values() for node in called}
    if any(domain in DEFAULT_DOMAINS and op_type in OPERATORS for domain, op_type in nodes):
        names = [f"{domain}.{name}" for domain, name in map(_key, result.functions)]
        subject = f"function {names[0]} imports" if len(names) == 1 else f"functions {', '.join(names)} import"
        raise UnsupportedError(
            f"{subject} a different opset than the model, and this difference prevents inlining; "
            "convert the model first (rnn-lower lower --opset N)"
        )
