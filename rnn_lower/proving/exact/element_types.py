"""Infer the element types of all values that emitted nodes compute, from the type constraints of the schemas.

A field has no element types, so a cast is the identity in it. On a runtime only some casts are (`is_exact`); any other
cast between floats is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import onnx
import onnx_ir as ir

from rnn_lower.ir.schemas import LITERALS, schema_of
from rnn_lower.ir.traits import DATA_MOVEMENT
from rnn_lower.ir.walk import subgraphs
from rnn_lower.proving.exact.call import OutOfScopeError, WrongError, cast_type

DType = ir.DataType | None
"""An element type, or None if nothing declares it."""

_F = ir.DataType
WIDENINGS = {
    (_F.FLOAT16, _F.FLOAT), (_F.BFLOAT16, _F.FLOAT), (_F.FLOAT, _F.DOUBLE), (_F.FLOAT16, _F.DOUBLE),
    (_F.BFLOAT16, _F.DOUBLE),
}  # fmt: skip

HALVES = (_F.FLOAT16, _F.BFLOAT16)

WITHOUT_ARITHMETIC = (*DATA_MOVEMENT, "Cast", "ConstantOfShape", "Shape")
"""Operators that compute no floats, and that onnxruntime has for both 16-bit types."""

OF_FLOATS = ("Gemm", "Relu")
"""Operators that onnxruntime lacks for integers, although their schemas allow them."""

WIDE_INTEGERS = (_F.INT32, _F.INT64)
"""Integers that sizes do not let wrap around; the proof computes without limits."""

COMPUTED = (*WIDE_INTEGERS, _F.BOOL, _F.FLOAT, _F.DOUBLE, None)
"""The types of values that lowering computes, besides that of the node."""


def is_exact(source: DType, goal: DType, narrow: Collection[DType] = ()) -> bool:
    """Whether a cast to floats computes the identity: if it widens, or returns to the 16-bit type of a node.

    narrow: the types of the nodes that the cast may belong to, whose results lowering computes in float32.  A source
    of unknown type counts as float32; truth values are 0 and 1 in every type.
    """
    if source == _F.BOOL:
        return True
    source = source if source is not None and source.is_floating_point() else _F.FLOAT
    back = source == _F.FLOAT and goal in HALVES and goal in narrow
    return source == goal or (source, goal) in WIDENINGS or back


class ElementTypes:
    """Infers element types node by node. Raises WrongError if an operator does not accept a type.

    inputs: the types of the values that the replaced node reads.  dtype: the type of the replaced node.
    types: those of values that were looked up or inferred.
    """

    def __init__(self, inputs: Mapping[ir.Value, DType], dtype: DType, opset: int) -> None:
        self.types: dict[ir.Value, DType] = dict(inputs)
        self._dtype, self._opset, self._loops = dtype, opset, 0
        self._rounded: set[ir.Value | None] = set()

    def dtype_of(self, value: ir.Value | None) -> DType:
        """The element type of a constant or of a value that was inferred before."""
        if value is None:
            return None
        if value not in self.types:
            node = value.producer()
            if value.const_value is not None:
                self.types[value] = value.const_value.dtype
            elif node is not None and node.op_type == "Constant":
                self.types[value] = _literal_dtype(node)
        return self.types.get(value)

    def follow(self, nodes: Iterable[ir.Node]) -> None:
        """Infer the element types of the outputs of nodes, and compare them with the declared ones."""
        for node in nodes:
            types = self._results(node)
            for value, dtype in zip(node.outputs, types, strict=False):
                if dtype not in (*COMPUTED, self._dtype):
                    text = f"{node.op_type} '{node.name}' computes values of type {_name(dtype)}"
                    raise OutOfScopeError(f"{text}, which the proof does not support")
                self.declare(value, dtype)
            results = (value for _, body in subgraphs(node) for value in body.outputs)
            if not self._rounded.isdisjoint((*node.inputs, *results)):
                self._rounded.update(node.outputs)

    def declare(self, value: ir.Value, dtype: DType) -> None:
        """Set the type of a value. Raises WrongError if the model declares another type."""
        _agree(
            dtype, value.dtype, f"'{value.name}' has type {_name(dtype)}, but its declared type is {_name(value.dtype)}"
        )
        self.types[value] = dtype

    def expect(self, value: ir.Value, dtype: DType) -> None:
        """Compare the type of a value with that of the node's output. Raises WrongError if they differ."""
        actual = self.dtype_of(value)
        _agree(actual, dtype, f"'{value.name}' has type {_name(actual)} instead of {_name(dtype)}")

    def _results(self, node: ir.Node) -> Sequence[DType]:
        operands = [self.dtype_of(value) for value in node.inputs]
        if node.op_type == "Constant":
            return [_literal_dtype(node)]
        if node.op_type == "If":
            return self._if(node)
        if node.op_type == "Loop":
            index = [ir.DataType.INT64, ir.DataType.BOOL]
            for actual, dtype in zip(operands, index, strict=False):
                _agree(
                    actual, dtype, f"Loop '{node.name}' has an input of type {_name(actual)} instead of {_name(dtype)}"
                )
            return self._carried(node, [*index, *operands[2:]], len(operands) - 2, 1)
        if node.op_type == "Scan":
            return self._carried(node, operands, len(operands) - node.attributes["num_scan_inputs"].as_int(), 0)
        results = self._by_schema(node, operands)
        if node.op_type == "ConstantOfShape":
            value = node.attributes.get("value")
            return [ir.DataType.FLOAT if value is None else value.as_tensor().dtype]
        return [self._cast(node, operands[0])] if node.op_type == "Cast" else results

    def _by_schema(self, node: ir.Node, operands: Sequence[DType]) -> Sequence[DType]:
        schema = schema_of(node.op_type, self._opset)
        assert schema is not None
        variables: dict[str, ir.DataType] = {}
        for index, dtype in enumerate(operands):
            formal = schema.inputs[min(index, len(schema.inputs) - 1)]
            if dtype is None:
                continue
            if dtype.is_integer() and (dtype not in WIDE_INTEGERS or node.op_type in OF_FLOATS):
                text = f"{node.op_type} '{node.name}' has an input of type {_name(dtype)}"
                raise OutOfScopeError(f"{text}, which the proof does not support")
            if dtype == _F.DOUBLE and self._dtype not in (dtype, None) and node.op_type != "Cast":
                text = f"{node.op_type} '{node.name}' computes in double, but the node in {_name(self._dtype)}"
                raise WrongError(f"{text}; runtimes lack some of the kernels")
            if dtype in HALVES and node.op_type not in WITHOUT_ARITHMETIC:
                raise WrongError(
                    f"{node.op_type} '{node.name}' rounds to {_name(dtype)}, but lowered nodes compute in float"
                )
            if f"tensor({_name(dtype)})" not in formal.types:
                text = f"{node.op_type} '{node.name}' has an input of type {_name(dtype)}"
                raise WrongError(f"{text}, which opset {self._opset} does not allow")
            if variables.setdefault(formal.type_str, dtype) != dtype:
                types = f"{_name(variables[formal.type_str])} and {_name(dtype)}"
                raise WrongError(f"the inputs of {node.op_type} '{node.name}' have different types, {types}")
        outputs = (schema.outputs[min(index, len(schema.outputs) - 1)] for index in range(len(node.outputs)))
        return [_formal_dtype(output, variables) for output in outputs]

    def _cast(self, node: ir.Node, source: DType) -> ir.DataType:
        goal = cast_type(node.attributes["to"].value)
        if source is None or not (source.is_floating_point() and goal.is_floating_point()):
            return goal
        if goal not in HALVES and node.inputs[0] in self._rounded:
            raise WrongError(f"Cast '{node.name}' continues with a value that was rounded to {_name(source)}")
        if goal in HALVES and source != goal:
            if self._loops:
                raise WrongError(f"Cast '{node.name}' rounds to {_name(goal)} in each step")
            self._rounded.add(node.outputs[0])
        if not is_exact(source, goal, (self._dtype,)):
            raise WrongError(f"Cast '{node.name}' rounds from {_name(source)} to {_name(goal)}")
        return goal

    def _if(self, node: ir.Node) -> Sequence[DType]:
        branches = []
        for name in ("then_branch", "else_branch"):
            body = node.attributes[name].as_graph()
            self.follow(body)
            branches.append([self._declared(value) for value in body.outputs])
        pairs = list(zip(*branches, strict=False))
        for then, orelse in pairs:
            text = f"the branches of If '{node.name}' have outputs of different types"
            _agree(then, orelse, f"{text}, {_name(then)} and {_name(orelse)}")
        return [then or orelse for then, orelse in pairs]

    def _carried(self, node: ir.Node, operands: Sequence[DType], states: int, first: int) -> Sequence[DType]:
        """The types of the outputs of a loop. first: the number of body outputs before the states."""
        body = node.attributes["body"].as_graph()
        for value, dtype in zip(body.inputs, operands, strict=False):
            self.declare(value, dtype or value.dtype)
        self._rounded.update(
            inner for inner, outer in zip(body.inputs, node.inputs, strict=False) if outer in self._rounded
        )
        self._loops += 1
        self.follow(body)
        self._loops -= 1
        results = [self._declared(value) for value in body.outputs][first:]
        starts = operands[len(operands) - len(body.inputs) :][2 * first :]
        for before, after in zip(starts, results[:states], strict=False):
            text = f"the element type of a state of {node.op_type} '{node.name}' changes between iterations,"
            _agree(before, after, f"{text} from {_name(before)} to {_name(after)}")
        pairs = zip(body.inputs[2 * first :], body.outputs[first:], results[:states], strict=False)
        for carried, result, dtype in pairs:
            if dtype is not None and not dtype.is_floating_point() and _source(result) is not carried:
                text = f"{node.op_type} '{node.name}' changes a state of type {_name(dtype)}"
                raise OutOfScopeError(f"{text}, which may matter at lengths that the proof does not compare")
        return results

    def _declared(self, value: ir.Value) -> DType:
        self.declare(value, dtype := self.dtype_of(value))
        return dtype or value.dtype


def _source(value: ir.Value) -> ir.Value:
    """The value that Identity nodes copy to this value."""
    while (node := value.producer()) is not None and node.op_type == "Identity" and node.inputs[0] is not None:
        value = node.inputs[0]
    return value


def _agree(first: DType, second: DType, text: str) -> None:
    """Raise WrongError if two known types differ."""
    if None not in (first, second) and first != second:
        raise WrongError(text)


def _formal_dtype(formal: onnx.defs.OpSchema.FormalParameter, variables: Mapping[str, ir.DataType]) -> DType:
    if formal.type_str in variables:
        return variables[formal.type_str]
    if len(formal.types) != 1:
        return None
    (only,) = formal.types
    return next((dtype for dtype in ir.DataType if only == f"tensor({_name(dtype)})"), None)


def _literal_dtype(node: ir.Node) -> DType:
    """The element type of a Constant node."""
    attribute = next(iter(node.attributes.values()), None)
    if attribute is None:
        return None
    if attribute.type == ir.AttributeType.TENSOR:
        return attribute.as_tensor().dtype
    return LITERALS[attribute.name][1] if attribute.name in LITERALS else None


def _name(dtype: DType) -> str:
    return "unknown" if dtype is None else dtype.name.lower()
