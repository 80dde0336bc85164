"""Inline functions, for what depends on their call sites."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass, NameFixPass

from rnn_lower.errors import RnnLowerError, first_cause, one_line
from rnn_lower.ir.walk import plain_imports, recurrent_nodes, with_bodies


def inline_recurrent(model: ir.Model) -> None:
    """Inline functions with recurrent nodes, in place: only their calls tell sizes, element types and attributes.

    Raises RnnLowerError for functions that cannot be inlined.
    """
    roots = (scope.root for _, scope in recurrent_nodes(model))
    if functions := {root.identifier() for root in roots if isinstance(root, ir.Function)}:
        inline_functions(model, functions)


def inline_functions(model: ir.Model, chosen: Collection[ir.OperatorIdentifier]) -> None:
    """Inline functions and all functions that call them.

    Raises RnnLowerError for functions that cannot be inlined.
    """
    inlined = _with_callers(model, chosen)
    try:
        _check_imports(model, inlined)
        for identifier in inlined:
            _own_outputs(model.functions[identifier])
        InlinePass(lambda function: function.identifier() in inlined)(model)
        NameFixPass()(model)  # or a name in a body could hide the new one of what the body reads
    except MemoryError:
        raise
    except Exception as error:  # whatever stands in the way
        raise RnnLowerError(f"inlining functions failed ({one_line(first_cause(error))}); drop --fold") from None
    for identifier in inlined & model.functions.keys():  # which nobody calls
        del model.functions[identifier]


def _with_callers(model: ir.Model, chosen: Collection[ir.OperatorIdentifier]) -> set[ir.OperatorIdentifier]:
    """These functions and all their callers, because only the outermost call shows which inputs are absent."""
    reaching = set(chosen)
    calls = {name: {node.op_identifier() for node in with_bodies(f)} for name, f in model.functions.items()}
    while callers := {name for name, called in calls.items() if called & reaching} - reaching:
        reaching |= callers
    return reaching


def _check_imports(model: ir.Model, identifiers: Collection[ir.OperatorIdentifier]) -> None:
    """Raise RnnLowerError if inlining would change the opset of nodes; InlinePass does not know the name ai.onnx."""
    imports = plain_imports(model.opset_imports)
    for identifier in identifiers:
        for domain, version in plain_imports(model.functions[identifier].opset_imports).items():
            if imports.get(domain, version) != version:
                name = f"{identifier[0]}.{identifier[1]}"
                text = (
                    f"function {name} imports opset {version} of '{domain}', but the model imports opset "
                    f"{imports[domain]}; convert the function to opset {imports[domain]}"
                )
                raise RnnLowerError(text)


def _own_outputs(function: ir.Function) -> None:
    """Make the outputs of a function distinct and different from its inputs, because its caller renames them."""
    seen_values = set(function.inputs)
    for index, value in enumerate(function.outputs):
        if value in seen_values:
            name = f"{value.name}/as_output_{index}"
            function.append(ir.Node("", "Identity", [value], name=name, outputs=[ir.Value(name=name, type=value.type)]))
            function.outputs[index] = function[-1].outputs[0]
        seen_values.add(function.outputs[index])
