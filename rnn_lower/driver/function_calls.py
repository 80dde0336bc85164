"""Lowered nodes as function calls: equal nodes call the same function of the model.

So the graph reads as before. Weights are inputs of the call, and stay what they are.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

import onnx_ir as ir

from rnn_lower.builder.names import Names
from rnn_lower.errors import RnnLowerError, UnsupportedError
from rnn_lower.ir.walk import Scope, nodes
from rnn_lower.lowering.function_body import Finish, function_of
from rnn_lower.lowering.node import RecurrentNode
from rnn_lower.opset.convert import raise_ir_version
from rnn_lower.targeting import TARGETS
from rnn_lower.targeting.profile import Target

logger = logging.getLogger("rnn_lower")

IR_VERSION = 8
"""The first IR version with functions."""

FIRST_OPSET = 6
"""The first opset that infers the element types of sums and products."""


def check_target(target: Target) -> None:
    """Raise RnnLowerError unless a runtime is known to run function calls."""
    if not target.functions:
        text = (
            f"no test shows that target {target.name} runs function calls; drop --as-function, or choose "
            "one of these targets"
        )
        raise RnnLowerError(f"{text}: {', '.join(name for name, other in TARGETS.items() if other.functions)}")


class Calls:
    """The functions that replace the nodes of one model; only `register` changes the model."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self.domain = Names(_domains(model)).unique("rnn_lower")
        self._names = Names(())
        self._functions: dict[tuple[Any, ...], ir.Function] = {}
        self._callers: list[Scope] = []

    def call(
        self, node: RecurrentNode, scope: Scope, form: str, max_nodes: int | None, finish: Finish
    ) -> tuple[ir.Node, list[ir.Node], bool]:
        """A call that replaces a recurrent node, the nodes of its function, and whether the function is new.

        Raises UnsupportedError as `lower_node`.
        """
        if scope.lies_in("SequenceMap"):
            text = "the node is in the body of a SequenceMap, where onnxruntime does not support function calls"
            raise UnsupportedError(f"{text}; drop --as-function, or keep the node with --exclude")
        if scope.opset < FIRST_OPSET:
            text = f"at opset {scope.opset}, runtimes cannot infer the element types in a function, which declares none"
            raise UnsupportedError(f"{text}; add --opset {FIRST_OPSET} or a later one, or drop --as-function")
        key = (form, scope.opset, *_shape_of(node))
        new = key not in self._functions
        if new:
            name = self._names.unique(f"{node.op_type}_{form}")
            self._functions[key] = function_of(node, form, scope.opset, self.domain, name, max_nodes, finish=finish)
        self._callers.append(scope)
        function = self._functions[key]
        outputs = [ir.Value(name=f"{node.name}/{name}") for name in node.outputs]
        own = node.node.name or self._node_names.unique(node.name)  # which onnxruntime requires
        call = ir.Node(self.domain, function.name, list(node.inputs.values()), outputs=outputs, name=own)
        call.metadata_props.update(node.origin)
        return call, list(function), new

    @functools.cached_property
    def _node_names(self) -> Names:
        return Names(str(node.name) for node, _ in nodes(self._model) if node.name)

    def register(self) -> None:
        """Add the functions to the model, and raise its IR version if necessary."""
        if not self._functions:
            return
        if self._model.ir_version < IR_VERSION:
            text = "raised the IR version from %d to %d, the first version that allows functions in a model"
            logger.info(text, self._model.ir_version, IR_VERSION)
            raise_ir_version(self._model, IR_VERSION)
        for function in self._functions.values():
            self._model.functions[function.identifier()] = function
        self._model.opset_imports[self.domain] = 1
        for scope in self._callers:
            if scope.in_function:
                scope.root.opset_imports[self.domain] = 1


def _domains(model: ir.Model) -> set[str]:
    """All names that the model uses as a domain."""
    imports = (model.opset_imports, *(function.opset_imports for function in model.functions.values()))
    imported = {domain for table in imports for domain in table} | {domain for domain, _, _ in model.functions}
    return imported | {node.domain for node, _ in nodes(model)}


def _shape_of(node: RecurrentNode) -> tuple[Any, ...]:
    """The key by which two nodes share a function."""
    sizes = (node.static_length, node.static_batch, node.input_size if isinstance(node.input_size, int) else None)
    kind = (node.op_type, node.version, node.direction, node.dtype, node.activations, node.clip, node.layout)
    flags = (node.linear_before_reset, node.input_forget, node.hidden_size)
    return (sizes, kind, flags, tuple(node.inputs), tuple(node.outputs))
