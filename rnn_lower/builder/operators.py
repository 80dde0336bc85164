"""Emitting one operator: its version at the opset and, where the runtime does not take it, another way to say it.

Which way serves is found by search: each row of `alternatives.ALTERNATIVES` is tried on a draft, with operands that
stand for the real ones, until one gets through with nodes that are all taken. What was found is kept, so that a
thousand steps that are alike are searched for once. Without rules there is no search.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from typing_extensions import Self

from rnn_lower.builder.constants import Constant, ConstantPool, constant
from rnn_lower.builder.constraints import Use, use_of
from rnn_lower.builder.names import Names
from rnn_lower.builder.tensor_info import Outline, answers, outline_of
from rnn_lower.builder.versions import CAST_TAKES_ENUM, CONSTANT_TAKES_INTEGERS, TABLE
from rnn_lower.builder.writer import NodeWriter, Operand
from rnn_lower.errors import UnsupportedError, UntakenError
from rnn_lower.legalize.alternatives import ALTERNATIVES
from rnn_lower.legalize.call import Call, Way

Known = tuple[Any, ...]
"""A call by what the search goes by: operator, outlines, parameters."""


@dataclasses.dataclass
class Search:
    """What the writers of one node have in common.

    outlines: of emitted and given values.  ways: what was found, None for the operator itself.  path: calls that are
    being said otherwise just now. None of them may be among its own parts, and no operator there three times: then
    what a kept way needs was kept before it, and following ways comes to an end.
    """

    outlines: dict[ir.Value, Outline] = dataclasses.field(default_factory=dict)
    ways: dict[Known, Way | None] = dataclasses.field(default_factory=dict)
    path: tuple[Known, ...] = ()


class OperatorWriter(NodeWriter):
    """Writes operators, valid at `opset` and taken by the runtime, or raises UntakenError."""

    def __init__(self, *arguments: Any, **details: Any) -> None:
        super().__init__(*arguments, **details)
        self.search = Search()

    def body(self, own_constants: bool = False) -> Self:
        inner = super().body(own_constants)
        inner.search = self.search
        return inner

    def has(self, op_type: str) -> bool:
        """Whether `op_type` exists at this opset and the target takes it."""
        return self.habits.rules.has(op_type, self.opset)

    def outline(self, operand: Operand) -> Outline | None:
        if operand is None:
            return None
        if isinstance(operand, Constant):
            return outline_of(operand)
        return self.search.outlines.get(operand) or outline_of(operand)

    def op(self, op_type: str, *inputs: Operand, name: str, **parameters: Any) -> ir.Value:
        """Emit one node with one output. Parameters become attributes or inputs, as TABLE says for this opset."""
        return self.op_multi(op_type, inputs, [name], **parameters)[0]

    def op_multi(
        self, op_type: str, inputs: Sequence[Operand], names: Sequence[str], **parameters: Any
    ) -> list[ir.Value]:
        """As `op`, with one output for each of `names`; by other operators where the runtime does not take this one."""
        call = Call(op_type, tuple(inputs), tuple(names), parameters)
        return self._written(call) if self.habits.rules.silent else self._said(call)

    def op_direct(self, op_type: str, *inputs: Operand, name: str, **parameters: Any) -> ir.Value:
        """As `op`, but by no other operators."""
        call = Call(op_type, inputs, (name,), parameters)
        if not self.has(op_type) or (not self.habits.rules.silent and self._broken(call) is not None):
            raise UntakenError(op_type, "it is not taken as it is")
        return self._written(call)[0]

    def _written(self, call: Call) -> list[ir.Value]:
        operands, attributes = self._arguments(call)
        results = self.write(call.op_type, [self.value(operand) for operand in operands], attributes, call.names)
        if not self.habits.rules.silent:
            self.search.outlines.update(zip(results, self.use(call).outputs, strict=True))
        return results

    def _arguments(self, call: Call) -> tuple[list[Operand], dict[str, Any]]:
        """The inputs and attributes of the operator's version at this opset."""
        row = TABLE[call.op_type]
        if row.since > self.opset:
            raise UnsupportedError(
                f"{call.op_type} exists from opset {row.since} on, the model is at opset {self.opset}"
            )
        operands, attributes = list(call.inputs), {}
        for parameter, content in call.parameters.items():
            if self.opset >= row.inputs.get(parameter, self.opset + 1):
                # Parameters that became inputs are integers (axes, sizes) or, for Clip, of the type of the data.
                dtype = self.dtype if call.op_type == "Clip" else ir.DataType.INT64
                operands.append(None if content is None else constant(content, dtype, parameter))
            elif content is not None:
                attributes[parameter] = content
        while operands and operands[-1] is None:
            operands.pop()
        return operands, attributes

    # -- what the runtime takes ------------------------------------------------------------------------------------

    def use(self, call: Call) -> Use:
        """The node that the call would write, as rules see it."""
        operands, attributes = self._arguments(call)
        inputs = tuple(self.outline(operand) for operand in operands)
        bodies = [held for held in attributes.values() if isinstance(held, ir.Graph)]
        plain = {name: held for name, held in attributes.items() if not isinstance(held, ir.Graph)}
        inner = answers(call.op_type, bodies, lambda value: self.outline(value) or Outline())
        return use_of(call.op_type, self.opset, inputs, plain, inner, len(call.names))

    def _broken(self, call: Call) -> str | None:
        return self.habits.rules.broken(self.use(call))

    def _said(self, call: Call) -> list[ir.Value]:
        key = self._key(call)
        if any(isinstance(held, ir.Graph) for held in call.parameters.values()):  # no two bodies are alike
            rule = self._broken(call)
            if rule is not None:
                raise UntakenError(call.op_type, rule)
            return self._written(call)
        if key not in self.search.ways:
            self.search.ways[key] = self._found(call, key)
        way = self.search.ways[key]
        if way is None:
            return self._written(call)
        return [self._as_value(one, call) for one in way(self, call) or ()]  # type: ignore[arg-type]

    def _as_value(self, operand: Operand, call: Call) -> ir.Value:
        value = self.value(operand)
        assert value is not None, call.op_type
        return value

    def _key(self, call: Call) -> Known:
        shown = tuple((name, repr(held)) for name, held in sorted(call.parameters.items()))
        kinds = tuple(isinstance(operand, Constant) for operand in call.inputs)
        return (call.op_type, tuple(map(self.outline, call.inputs)), kinds, len(call.names), shown)

    def _found(self, call: Call, key: Known) -> Way | None:
        """The first way that gets through; None for the operator itself. Raises UntakenError when none does."""
        rule = self._broken(call)
        if rule is None:
            return None
        path = self.search.path
        if key not in path and [one[0] for one in path].count(call.op_type) < 2:
            for way in ALTERNATIVES.get(call.op_type, ()):
                draft, standing = self._draft(call, key)
                try:
                    if way(draft, standing) is not None:  # type: ignore[arg-type]
                        return way
                except UnsupportedError:  # not taken either, or not at this opset
                    continue
        raise UntakenError(call.op_type, rule)

    def _draft(self, call: Call, key: Known) -> tuple[Self, Call]:
        """A writer whose nodes nobody needs, and the call with values that stand for those it reads."""
        names = Names(())
        draft = type(self)(self.opset, self.dtype, names, ConstantPool(names, False), "draft", {}, self.habits)
        draft.search = Search({}, self.search.ways, (*self.search.path, key))
        stand_ins: dict[ir.Value, ir.Value] = {}
        for operand in call.inputs:
            if isinstance(operand, ir.Value):
                stand_in = stand_ins.setdefault(operand, ir.Value(name="operand"))
                draft.search.outlines[stand_in] = self.outline(operand) or Outline()
        inputs = tuple(stand_ins[one] if isinstance(one, ir.Value) else one for one in call.inputs)
        return draft, dataclasses.replace(call, inputs=inputs)

    # -- constants -------------------------------------------------------------------------------------------------

    def value(self, operand: Operand) -> ir.Value | None:
        """The graph value of an operand; a constant is materialized."""
        if not isinstance(operand, Constant):
            return operand
        name = f"{self._constants_scope or self._scope}/{operand.name}"
        return self._pool.value(operand, name, self._outermost.write_constant)  # type: ignore[attr-defined,no-any-return]

    def write_constant(self, tensor: ir.TensorProtocol, name: str) -> ir.Value:
        """A Constant node of that very name, for graphs that take no initializers."""
        floats = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16)
        if self.opset >= CONSTANT_TAKES_INTEGERS or tensor.dtype in floats:
            value = ir.Value(name=name)
            self.add_node(ir.Node("", "Constant", (), (ir.AttrTensor("value", tensor),), outputs=(value,), name=name))
            return value
        shape = tuple(int(size) for size in tensor.numpy().shape)
        held, made = Outline(shape, ir.DataType.DOUBLE), Outline(shape, tensor.dtype)
        rule = self.habits.rules.broken(Use("Cast", self.opset, (held,), (("to", int(tensor.dtype)),), (made,)))
        if rule is not None:
            raise UntakenError("Cast", rule)
        # The integers that are used here are exact in double.
        wide = ir.tensor(tensor.numpy().astype(np.float64), name=f"{name}/double")
        double = self.write_constant(wide, self._names.unique(f"{name}/double"))
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(wide.numpy().shape))
        self.add_node(ir.Node("", "Cast", (double,), (self.to(tensor.dtype),), outputs=(value,), name=name))
        return value

    def to(self, dtype: ir.DataType) -> ir.Attr:
        """Where Cast goes to."""
        return ir.AttrInt64("to", int(dtype)) if self.opset >= CAST_TAKES_ENUM else ir.AttrString("to", dtype.name)
