"""Inline functions, for what depends on their call sites."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass, NameFixPass, OutputFixPass

from rnn_lower.errors import RnnLowerError, first_cause, one_line
from rnn_lower.ir.walk import plain_imports, recurrent_functions, with_callers


def inline_recurrent(model: ir.Model) -> None:
    """Inline functions with recurrent nodes, in place: only their calls tell sizes, element types and attributes.

    Raises RnnLowerError for functions that cannot be inlined.
    """
    if functions := recurrent_functions(model):
        inline_functions(model, functions)


def inline_functions(model: ir.Model, chosen: Collection[ir.OperatorIdentifier]) -> None:
    """Inline functions and all that call them, because only the outermost call shows which inputs are absent.

    Raises RnnLowerError for functions that cannot be inlined.
    """
    inlined = with_callers(model, chosen)
    try:
        _check_imports(model, inlined)
        functions = [model.functions[identifier] for identifier in inlined]
        empty = ir.Graph((), (), nodes=())  # the pass would rename inputs of the model
        OutputFixPass()(ir.Model(empty, ir_version=model.ir_version, functions=functions))
        InlinePass(lambda function: function.identifier() in inlined)(model)
        NameFixPass()(model)  # or a name in a body could hide the new one of what the body reads
    except MemoryError:
        raise
    except Exception as error:  # whatever stands in the way
        raise RnnLowerError(f"inlining functions failed ({one_line(first_cause(error))}); drop --fold") from None
    for identifier in inlined & model.functions.keys():  # which nobody calls
        del model.functions[identifier]


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
