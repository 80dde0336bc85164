"""The node as legalization patterns read it, and the builder that they write with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import onnx_ir as ir

from rnn_lower.builder.graph_builder import GraphBuilder, Operand
from rnn_lower.builder.tensor_info import UNKNOWN, TensorInfo
from rnn_lower.builder.versions import input_names
from rnn_lower.errors import UnsupportedOpError
from rnn_lower.ir.walk import NODE_MARK, known_tensor
from rnn_lower.legalize.conformance import ConstraintChecker
from rnn_lower.legalize.constraints import PARAMETERS


@dataclasses.dataclass(frozen=True)
class Call:
    """A node: its data inputs, its parameters by name (attributes or inputs), and its outputs.

    computed: whether a parameter is known at run time only, so that no pattern can read it.
    """

    op_type: str
    inputs: tuple[Operand, ...]
    names: tuple[str, ...]
    parameters: Mapping[str, Any]
    results: tuple[TensorInfo, ...]
    node: ir.Node
    computed: bool = False

    @property
    def x(self) -> Operand:
        return self.inputs[0] if self.inputs else None

    @property
    def name(self) -> str:
        return self.names[0]


Results: TypeAlias = Sequence[Operand] | None


class PatternBuilder(GraphBuilder):
    """Writes the nodes of one pattern, and tracks the type and shape of every value. Merges consecutive reshapes."""

    checker: ConstraintChecker
    constants: list[ir.Node]
    """Constant nodes, which precede all other nodes; the constants of a failed pattern remain unused."""

    def info(self, operand: Operand) -> TensorInfo:
        return UNKNOWN if operand is None else self.checker.info(operand)

    def is_float(self, operand: Operand) -> bool:
        return self.info(operand).dtype == self.dtype

    def limits_ranks(self, *op_types: str) -> bool:
        """Whether the target limits the ranks of one of the operators."""
        return any("ranks" in self.checker.constraints.limits.get(op_type, {}) for op_type in op_types)

    def append(self, node: ir.Node) -> None:
        super().append(node)
        self.checker.violation(node)  # infers the infos of its outputs

    def _write_constant(self, tensor: ir.TensorProtocol, name: str) -> ir.Value:
        nodes, self.nodes = self.nodes, self.constants
        try:
            value = super()._write_constant(tensor, name)
        finally:
            self.nodes = nodes
        return self._supported("Cast", value)

    def op_direct(self, op_type: str, *inputs: Operand, name: str, **parameters: Any) -> ir.Value:
        """Emit this operator without legalization. Raises UnsupportedOpError if the target does not support it."""
        if not self.checker.constraints.listed(op_type):
            raise UnsupportedOpError(op_type, "the target file does not list this operator as supported")
        return self._supported(op_type, self.op(op_type, *inputs, name=name, **parameters))

    def _supported(self, op_type: str, value: ir.Value) -> ir.Value:
        node = value.producer()
        rule = None if node is None else self.checker.violation(node)
        if rule is not None:
            raise UnsupportedOpError(op_type, rule)
        return value

    def reshape(self, x: Operand, shape: Sequence[int], name: str = "reshaped") -> Operand:
        """Return x in a static shape; if x is itself a reshape of a static shape, reshape its input instead."""
        while isinstance(x, ir.Value):
            if self.info(x).sizes == tuple(shape):
                return x
            node = x.producer()
            emitted = node is not None and (node.graph is None or NODE_MARK in node.metadata_props)
            if node is None or not emitted or node.op_type not in MOVES_NOTHING or 0 in shape:
                break
            if self.info(node.inputs[0]).sizes is None:
                break
            x = node.inputs[0]
        return super().reshape(x, shape, name)


MOVES_NOTHING = ("Reshape", "Squeeze", "Unsqueeze")
"""Operators that keep the order of the elements: in a chain, only the last one matters."""

Pattern: TypeAlias = Callable[[PatternBuilder, Call], Results]


def call_of(node: ir.Node, b: PatternBuilder, results: Sequence[TensorInfo]) -> Call:
    """Return a node as a call: constant inputs become Constants, parameter inputs become numbers."""
    names = input_names(node.op_type, b.opset)
    inputs: list[Operand] = []
    parameters: dict[str, Any] = {"min": None, "max": None} if node.op_type == "Clip" else {}
    computed = False
    for name, attribute in node.attributes.items():
        value = attribute.value
        parameters[name] = list(value) if isinstance(value, (tuple, list)) else value
    for index, value in enumerate(node.inputs):
        name = names[index] if index < len(names) else ""
        tensor = known_tensor(value)
        is_parameter = name in PARAMETERS and name != "indices" and index > 0
        computed |= is_parameter and name != "shape" and value is not None and tensor is None
        if is_parameter and tensor is not None:
            numbers = tensor.numpy().ravel().tolist()
            is_number = name in ("min", "max") and len(numbers) == 1  # exporters write either with rank 0 or 1
            parameters[name] = numbers[0] if is_number else numbers
        elif value is not None or not is_parameter:
            inputs.append(b.operand(value))
    outputs = tuple(str(value.name).rpartition("/")[2] for value in node.outputs)
    return _explicit(b, Call(node.op_type, tuple(inputs), outputs, parameters, tuple(results), node, computed))


def _explicit(b: PatternBuilder, call: Call) -> Call:
    """Return the call with defaults filled in: non-negative axes, Split sizes, and a single Slice axis if possible."""
    shape, params = b.info(call.x).shape, dict(call.parameters)
    if call.op_type in ("Split", "Gather"):
        params.setdefault("axis", 0)
    if call.op_type == "Transpose" and shape is not None:
        params.setdefault("perm", list(range(len(shape)))[::-1])
    if shape is not None:
        rank = len(shape) + (len(params.get("axes") or ()) if call.op_type == "Unsqueeze" else 0)
        if isinstance(params.get("axis"), int) and -rank <= params["axis"] < 0:
            params["axis"] += rank
        if call.op_type == "Slice" and not call.computed:
            params.setdefault("axes", list(range(len(params["starts"]))))
        if params.get("axes") and all(-rank <= axis < rank for axis in params["axes"]):
            params["axes"] = [axis % rank for axis in params["axes"]]
    if call.op_type == "Split" and "split" not in params and not call.computed:
        size = None if shape is None or params["axis"] >= len(shape) else shape[params["axis"]]
        if size is not None:
            each, others = -(-size // len(call.names)), len(call.names) - 1
            params["split"] = [each] * others + [size - each * others]
    if call.op_type == "Slice" and shape is not None and not call.computed:
        _one_axis(params, shape)
    return dataclasses.replace(call, parameters=params)


def _one_axis(params: dict[str, Any], shape: Sequence[int | None]) -> None:
    """Drop the axes that a Slice keeps whole, and make bounds non-negative."""
    if set(params.get("steps") or [1]) != {1} or not all(
        axis < len(shape) for axis in params.get("axes") or [len(shape)]
    ):
        return
    cuts = []
    for axis, start, end in zip(params["axes"], params["starts"], params["ends"], strict=True):
        size = shape[axis]
        low, high, _ = (start, end, 1) if size is None else slice(start, end).indices(size)
        cuts.append((axis, low, high if size is None else max(low, high)))
    some = [cut for cut in cuts if cut[1:] != (0, shape[cut[0]])]
    params["axes"], params["starts"], params["ends"] = map(list, zip(*(some or cuts[:1]), strict=True))
    params.pop("steps", None)


def result_sizes(call: Call) -> list[int] | None:
    """Return the result sizes for Reshape, with at most one -1; None if more are unknown, or if a size is 0."""
    shape = call.results[0].shape
    if shape is None or 0 in shape or sum(size is None for size in shape) > 1:
        return None
    return [-1 if size is None else size for size in shape]
