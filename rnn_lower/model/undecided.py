"""Functions with recurrent nodes of which only each call tells what they compute."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass, NameFixPass

from rnn_lower.errors import RnnLowerError, UnsupportedError, one_line
from rnn_lower.model.facts import Facts
from rnn_lower.model.scopes import recurrent_nodes
from rnn_lower.recurrent.node import read_node


def inline_undecided(model: ir.Model) -> None:
    """Inline them, in place, where folding is asked for.

    They refer to attributes of the function, or are called with several element types, or with an input and without.
    Raises RnnLowerError for functions that cannot be inlined.
    """
    while found := _undecided(model):
        try:
            InlinePass(lambda function: function.identifier() in found)(model)
            NameFixPass()(model)  # or a name in a body could hide the new one of what the body reads
        except MemoryError:
            raise
        except Exception as error:  # whatever stands in the way
            while error.__cause__ is not None:
                error = error.__cause__  # type: ignore[assignment]
            raise RnnLowerError(f"inlining functions failed ({one_line(error)}); leave --fold out") from None
        for identifier in found & model.functions.keys():  # which nobody calls
            del model.functions[identifier]


def _undecided(model: ir.Model) -> set[ir.OperatorIdentifier]:
    facts, found = Facts(model), set()
    for node, scope in recurrent_nodes(model):
        if isinstance(scope.root, ir.Function):
            try:
                read_node(node, scope.opset, scope.path, facts)
            except UnsupportedError:
                found.add(scope.root.identifier())
    return found
