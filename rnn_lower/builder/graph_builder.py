"""`GraphBuilder`: writes nodes that are valid at an opset, with names, scopes and bodies.

There are three kinds of operand:

* `ir.Value`: known at run time only;
* `Constant`: known at lowering time, evaluated lazily when the model is written; `slice`, `transpose` ... of a Constant
  is a Constant, and it becomes an initializer when a node uses it;
* `None`: a known zero, such as the state before the first step. `add(None, x)` is x, `mul(None, x)` is None.

Equal nodes are written once. The builder ignores what a runtime supports: see `legalize`.
"""

from __future__ import annotations

import contextlib
import math
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import onnx_ir as ir
from onnx_ir import convenience
from typing_extensions import Self

from rnn_lower.builder import constants
from rnn_lower.builder.constants import Constant, ConstantPool, constant, filled, fold, from_tensor, moved
from rnn_lower.builder.names import Names
from rnn_lower.builder.versions import (
    BROADCASTS_BY_RULE,
    CAST_TAKES_ENUM,
    CLIP_TAKES_DOUBLE,
    MAX_BROADCASTS,
    exists,
    input_index,
    takes_integers,
)
from rnn_lower.errors import UnsupportedError
from rnn_lower.ir.walk import known_tensor, with_bodies

Operand: TypeAlias = "ir.Value | Constant | None"
Size: TypeAlias = "int | ir.Value"
"""A number, or an int64 tensor [1] that contains it at run time."""

INT64 = ir.DataType.INT64

LARGE = 1 << 24
"""The maximum number of elements of constant zeros and positions."""

EXACT_IN_FLOAT = 1 << 24
"""Integers below this number are exact in float32."""


@runtime_checkable
class Factor(Protocol):
    """A matrix that is not stored as floats, and emits its own product."""

    def product(self, b: GraphBuilder, x: Operand, name: str) -> Operand: ...


Matrix: TypeAlias = "Operand | Factor"


class GraphBuilder:
    """Appends nodes to `nodes`, valid at `opset`. dtype: the arithmetic type, also of scalars and zeros.

    names: those used in the model.  pool: turns constants into values.  scope: the prefix of names.
    origin: metadata of every node.  max_nodes: the limit on emitted nodes, None if unlimited.
    """

    def __init__(
        self, opset: int, dtype: ir.DataType, names: Names, pool: ConstantPool, scope: str,
        origin: Mapping[str, str] | None = None, max_nodes: int | None = None,
    ) -> None:  # fmt: skip
        self.opset, self.dtype, self.max_nodes = opset, dtype, max_nodes
        self.nodes: list[ir.Node] = []
        self.pool, self.names = pool, names
        self._scope, self._origin = scope, origin or {}
        self._outermost: GraphBuilder = self
        self._written: ChainMap[tuple[Any, ...], list[ir.Value]] = ChainMap()
        self._constants_scope = ""

    # -- nodes, names and constants --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Add `name` to the prefix of the values that the block writes."""
        outer, self._scope = self._scope, f"{self._scope}/{name}"
        try:
            yield
        finally:
            self._scope = outer

    @contextlib.contextmanager
    def shared_constants(self) -> Iterator[None]:
        """Name the constants of the block after the current scope, whichever step needs them first."""
        self._constants_scope = self._scope
        try:
            yield
        finally:
            self._constants_scope = ""

    def body(self) -> Self:
        """Return a builder for a body; it shares names and constants, but not nodes."""
        inner = type(self)(self.opset, self.dtype, self.names, self.pool, self._scope, self._origin)
        inner._outermost, inner._written = self._outermost, self._written.new_child()
        return inner

    def unique_name(self, name: str) -> str:
        return self.names.unique(f"{self._scope}/{name}")

    def new_value(
        self, name: str, dtype: ir.DataType | None = None, shape: Sequence[int | str | None] | None = None
    ) -> ir.Value:
        """Return a value with a unique name; only an input of a body needs a type and shape."""
        return ir.Value(
            name=self.unique_name(name),
            type=None if dtype is None else ir.TensorType(dtype),
            shape=None if shape is None else ir.Shape(shape),
        )

    def graph(self, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value], name: str) -> ir.Graph:
        """Return the graph of the nodes that this builder, of a body, has written."""
        return ir.Graph(inputs, outputs, nodes=self.nodes, name=self.names.unique(f"{self._scope}/{name}"))

    def op(self, op_type: str, *inputs: Operand, name: str = "", **parameters: Any) -> ir.Value:
        """Return the output of a new node. Parameters become attributes or inputs, depending on the opset."""
        return self.op_multi(op_type, inputs, [name or op_type.lower()], **parameters)[0]

    def op_multi(
        self, op_type: str, inputs: Sequence[Operand], names: Sequence[str], **parameters: Any
    ) -> list[ir.Value]:
        """Return the outputs, one for each of `names`, of a new node or of an equal node written before."""
        operands, attributes = self._arguments(op_type, inputs, parameters)
        values = [self.value(operand) for operand in operands]
        key = node_key(op_type, values, attributes)
        written = None if key is None else self._written.get(key)
        if written is not None and len(written) == len(names):
            return written
        outputs = [self.new_value(name) for name in names]
        attrs = [convenience.convert_attribute(name, content) for name, content in attributes.items()]
        name = str(outputs[0].name) if len(outputs) == 1 else self.unique_name(op_type.lower())
        self.append(ir.Node("", op_type, values, attrs, outputs=outputs, name=name))
        if key is not None:
            self._written[key] = outputs
        return outputs

    def append(self, node: ir.Node) -> None:
        """Append an existing node."""
        node.metadata_props.update(self._origin)
        self.nodes.append(node)

    def _arguments(
        self, op_type: str, inputs: Sequence[Operand], parameters: Mapping[str, Any]
    ) -> tuple[list[Operand], dict[str, Any]]:
        """Return the inputs and attributes of the operator's version at this opset."""
        operands, attributes = list(inputs), {}
        input_index(op_type, self.opset, "")  # raises if the opset lacks the operator
        for parameter, content in parameters.items():
            index = input_index(op_type, self.opset, parameter)
            if index is None:
                if content is not None:
                    attributes[parameter] = content
                continue
            # Parameters that are inputs are integers (axes, sizes) or, for Clip, of the type of the data.
            dtype = self.dtype if op_type == "Clip" else INT64
            operands += [None] * (index + 1 - len(operands))
            operands[index] = None if content is None else constant(content, dtype, parameter)
        while operands and operands[-1] is None:
            operands.pop()
        return operands, attributes

    def value(self, operand: Operand) -> ir.Value | None:
        """Return the graph value of an operand; a constant is materialized."""
        if not isinstance(operand, Constant):
            return operand
        name = f"{self._constants_scope or self._scope}/{operand.name}"
        return self.pool.value(operand, name, self._outermost._write_constant)

    def operand(self, value: ir.Value | None) -> Operand:
        """Return a value as a constant, whose value it stays, if its content is known; else the value itself."""
        tensor = known_tensor(value)
        if value is None or tensor is None:
            return value
        self.pool.adopt(known := from_tensor(tensor), value)
        return known

    def _write_constant(self, tensor: ir.TensorProtocol, name: str) -> ir.Value:
        """Write a Constant node with exactly this name, for graphs without initializers."""
        floats = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16)
        if takes_integers("Constant", self.opset) or tensor.dtype in floats:
            value = ir.Value(name=name)
            self.append(ir.Node("", "Constant", (), (ir.AttrTensor("value", tensor),), outputs=(value,), name=name))
            return value
        numbers = tensor.numpy().astype(np.float64)  # in which the integers that rnn_lower emits are exact
        if np.abs(numbers).max(initial=0) < EXACT_IN_FLOAT:  # some runtimes have no double
            numbers = numbers.astype(np.float32)
        source = self.names.unique(f"{name}/{numbers.dtype}")
        floating = self._write_constant(ir.tensor(numbers, name=source), source)
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(numbers.shape))
        to = convenience.convert_attribute("to", self._cast_to(tensor.dtype))
        self.append(ir.Node("", "Cast", (floating,), (to,), outputs=(value,), name=name))
        return value

    # -- arithmetic ------------------------------------------------------------------------------------------------

    def scalar(self, number: float) -> Constant:
        """Return a constant of rank 0 in the arithmetic type."""
        return constant(number, self.dtype)

    def binary(self, op_type: str, a: Operand, b: Operand, name: str) -> ir.Value:
        # Before opset 7 broadcasting is an attribute, and b must be the smaller operand; callers ensure this.
        broadcast = {"broadcast": 1} if self.opset < BROADCASTS_BY_RULE else {}
        return self.op(op_type, a, b, name=name, **broadcast)

    def add(self, a: Operand, b: Operand, name: str = "sum") -> Operand:
        if a is None or b is None:
            return b if a is None else a
        if isinstance(a, Constant) and isinstance(b, Constant):
            return fold(("add",), np.add, a, b, name=name, shape=np.broadcast_shapes(a.shape, b.shape))
        return self.binary("Add", a, b, name)

    def mul(self, a: Operand, b: Operand, name: str = "product") -> Operand:
        return None if a is None or b is None else self.binary("Mul", a, b, name)

    def sub(self, a: Operand, b: Operand, name: str = "difference") -> Operand:
        if b is None:
            return a
        if a is None or (isinstance(a, Constant) and self.opset < BROADCASTS_BY_RULE):
            return self.add(self.mul(b, self.scalar(-1.0), f"minus_{name}"), a, name)
        return self.binary("Sub", a, b, name)

    def div(self, a: Operand, b: Operand, name: str = "quotient") -> Operand:
        return None if a is None else self.binary("Div", a, b, name)

    def matmul(self, a: Operand, b: Matrix, name: str = "product") -> Operand:
        if isinstance(b, Factor):
            return b.product(self, a, name)
        return None if a is None or b is None else self.op("MatMul", a, b, name=name)

    def clip(self, x: Operand, low: float, high: float, name: str = "clipped") -> Operand:
        """low <= x <= high, with low <= 0 <= high; emits both bounds, which every runtime supports."""
        double = self.dtype != ir.DataType.FLOAT and self.opset < CLIP_TAKES_DOUBLE
        if double and self.opset < MAX_BROADCASTS:
            return self.clip_by_reciprocal(x, low, high, name)
        if not double:
            return self.op("Clip", x, name=name, min=low, max=high)
        above = self.op("Max", x, self.scalar(low), name=f"{name}_below")
        return self.op("Min", above, self.scalar(high), name=name)

    def clip_by_reciprocal(self, x: Operand, low: float, high: float, name: str) -> Operand:
        """low <= x <= high with neither comparison nor Max."""
        above = self._at_most(self._positive(x, "above_zero"), high)
        below = self._at_most(self._positive(self.mul(x, self.scalar(-1.0), "minus"), "below_zero"), -low)
        return self.sub(above, below, name)

    def _positive(self, x: Operand, name: str) -> Operand:
        """max(0, x); Relu alone keeps -0, whose reciprocal is -infinity."""
        return self.op("Abs", self.op("Relu", x), name=name)

    def _at_most(self, x: Operand, limit: float) -> Operand:
        """min(x, limit) for x >= 0, as 1 / max(1 / x, 1 / limit); the subtraction in the Relu cannot round x away."""
        if limit == 0:
            return self.op("Relu", self.mul(x, self.scalar(-1.0)), name="at_most")
        inverse = 1.0 / limit
        beyond = self.op("Relu", self.add(self.op("Reciprocal", x), self.scalar(-inverse)))
        return self.op("Reciprocal", self.add(beyond, self.scalar(inverse)), name="at_most")

    def less(self, a: Operand, b: Operand, name: str = "less") -> ir.Value:
        if isinstance(a, Constant) and self.opset < BROADCASTS_BY_RULE:  # -b < -a: the constant must come second
            minus = self.mul(b, self.scalar(-1.0), f"minus_{name}")
            return self.binary("Less", minus, constants.negate(a, "minus_constant"), name)
        return self.binary("Less", a, b, name)

    def cast(self, x: Operand, source: ir.DataType, target: ir.DataType, name: str = "cast") -> Operand:
        if x is None or source == target:
            return x
        if isinstance(x, Constant):
            return constants.cast(x, target, name)
        result = self.op("Cast", x, name=name, to=self._cast_to(target))
        if self.opset < CAST_TAKES_ENUM:  # shape inference cannot parse the type name
            result.type = ir.TensorType(target)
        return result

    def _cast_to(self, dtype: ir.DataType) -> int | str:
        return int(dtype) if self.opset >= CAST_TAKES_ENUM else dtype.name

    # -- shape and position ----------------------------------------------------------------------------------------

    def _move(self, op_type: str, x: Operand, name: str, **parameters: list[int]) -> Operand:
        """Move the elements of x; a constant when the model is written."""
        if isinstance(x, Constant):
            return moved(op_type, x, name=name, **parameters)
        return None if x is None else self.op(op_type, x, name=name, **parameters)

    def transpose(self, x: Operand, perm: Sequence[int], name: str = "transposed") -> Operand:
        return self._move("Transpose", x, name, perm=list(perm))

    def squeeze(self, x: Operand, axes: Sequence[int], name: str = "squeezed") -> Operand:
        return self._move("Squeeze", x, name, axes=list(axes))

    def unsqueeze(self, x: Operand, axes: Sequence[int], name: str = "unsqueezed") -> Operand:
        return self._move("Unsqueeze", x, name, axes=list(axes))

    def reshape(self, x: Operand, shape: Sequence[int], name: str = "reshaped") -> Operand:
        """Reshape to static sizes; 0 copies the size of that axis."""
        return self._move("Reshape", x, name, shape=list(shape))

    def slice(self, x: Operand, axis: int, start: int, end: int, name: str = "slice") -> Operand:
        return self._move("Slice", x, name, starts=[start], ends=[end], axes=[axis])

    def split(self, x: Operand, axis: int, sizes: Sequence[int], names: Sequence[str]) -> list[Operand]:
        """Split x into consecutive parts; sizes are explicit, because runtimes disagree about the default."""
        if len(sizes) == 1:
            return [x]
        if isinstance(x, ir.Value):
            return list(self.op_multi("Split", [x], names, axis=axis, split=list(sizes)))
        ends = np.cumsum(sizes).tolist()
        return [self.slice(x, axis, end - size, end, name) for end, size, name in zip(ends, sizes, names, strict=True)]

    def concat(self, parts: Sequence[Operand], axis: int, name: str = "joined") -> Operand:
        if len(parts) == 1:
            return parts[0]
        known = [part for part in parts if isinstance(part, Constant)]
        if len(known) == len(parts):
            return moved("Concat", *known, name=name, axis=axis)
        return self.op("Concat", *parts, name=name, axis=axis)

    def gather(self, x: Operand, index: Operand, name: str = "gathered") -> ir.Value:
        """x[index] on axis 0."""
        return self.op("Gather", x, index, name=name, axis=0)

    def size(self, x: Operand, axis: int, rank: int, name: str = "size") -> ir.Value:
        """Return the size of an axis of x, which has this rank, at run time: int64 [1]."""
        if self.opset >= 15:  # the first one at which Shape has a range
            return self.op("Shape", x, name=name, start=axis, end=axis + 1)
        shape = self.op("Shape", x, name="shape")
        if not takes_integers("Split", self.opset):
            return self.op("Slice", shape, name=name, starts=[axis], ends=[axis + 1], axes=[0])
        return as_value(self.split(shape, 0, [1] * rank, [f"size_{k}" for k in range(rank)])[axis])

    def shape_vector(self, sizes: Sequence[Size]) -> Operand:
        """Return sizes as one int64 vector."""
        return self.concat([constant([size], INT64) if isinstance(size, int) else size for size in sizes], 0, "shape")

    def as_scalar(self, size: Size) -> Operand:
        """Return a size as int64 scalar."""
        return constant(size, INT64) if isinstance(size, int) else self.squeeze(size, [0], "scalar")

    def zeros(self, sizes: Sequence[Size], name: str = "zeros") -> Operand:
        """Return zeros of these sizes; without ConstantOfShape, [rows, columns] tiles a row of zeros."""
        known = [size for size in sizes if isinstance(size, int)]
        if len(known) == len(sizes) and (math.prod(known) <= LARGE or not exists("ConstantOfShape", self.opset)):
            return filled(0.0, tuple(known), self.dtype)
        if exists("ConstantOfShape", self.opset):
            zero = ir.tensor(np.zeros(1, self.dtype.numpy()))
            return self.op("ConstantOfShape", self.shape_vector(sizes), name=name, value=zero)
        rows, columns = sizes
        assert isinstance(rows, ir.Value)
        assert isinstance(columns, int)
        row = filled(0.0, (1, columns), self.dtype)
        if exists("Tile", self.opset):
            return self.op("Tile", row, self.shape_vector([rows, 1]), name=name)
        # Without Tile: a column of ones (0 * position + 1) times the row of zeros.
        positions = self.cast(self.positions(rows), INT64, self.dtype, "rows")
        return self.matmul(self.ones_like(self.unsqueeze(positions, [1], "column")), row, name)

    def ones_like(self, x: Operand) -> Operand:
        """Return 1 for each finite element of x."""
        return self.add(self.mul(x, self.scalar(0.0), "none"), self.scalar(1.0), "ones")

    def positions(self, length: Size) -> Operand:
        """Return 0, 1 ... length - 1 as int64 [length]."""
        if isinstance(length, int):
            return constant(_positions(length), INT64)
        if exists("Range", self.opset):
            zero, one = (constant(number, INT64) for number in (0, 1))
            return self.op("Range", zero, self.as_scalar(length), one, name="positions")
        if exists("NonZero", self.opset):
            one_tensor = ir.tensor(np.ones(1, np.int64))
            ones = self.op("ConstantOfShape", length, name="positions_ones", value=one_tensor)
            return self.squeeze(self.op("NonZero", ones, name="positions_row"), [0], "positions")
        return self._counting_loop(length)

    def _counting_loop(self, length: ir.Value) -> ir.Value:
        body = self.body()
        with body.scope("positions"):
            # At these opsets a Loop needs a carried value, so it carries the condition a second time.
            inputs = [body.new_value("trip", INT64, [])]
            inputs += [body.new_value(what, ir.DataType.BOOL, []) for what in ("condition", "carried")]
            outputs = [body.op("Identity", inputs[index], name="passed_on") for index in (1, 2, 0)]
            for output, dtype in zip(outputs, (ir.DataType.BOOL, ir.DataType.BOOL, INT64), strict=True):
                output.type, output.shape = ir.TensorType(dtype), ir.Shape([])
        graph = body.graph(inputs, outputs, "positions_body")
        true = constant(True, ir.DataType.BOOL)
        trips = self.as_scalar(length)
        return self.op_multi("Loop", [trips, true, true], ["positions_carried", "positions"], body=graph)[1]

    def backward_positions(self, length: Size) -> Operand:
        """Return length - 1 ... 1, 0 as int64 [length]."""
        if isinstance(length, int):
            return constant(_positions(length)[::-1], INT64)
        positions = self.positions(length)
        if self.opset >= BROADCASTS_BY_RULE:
            last_position = self.op("Sub", length, constant(1, INT64), name="last")
            return self.op("Sub", last_position, positions, name="backward_positions")
        # Sub does not support integers yet, and its second operand must be the smaller one.
        last = self.sub(self.cast(self.as_scalar(length), INT64, self.dtype), self.scalar(1.0), "last")
        minus = self.mul(self.cast(positions, INT64, self.dtype), self.scalar(-1.0), "minus_positions")
        return self.cast(self.add(minus, last, "backward"), self.dtype, INT64, "backward_positions")

    def flip(self, x: Operand, length: Size, name: str = "flipped") -> Operand:
        """Reverse axis 0 of x, of this length, by Gather, which every opset and runtime supports."""
        return self.gather(x, self.backward_positions(length), name)


def _positions(length: int) -> np.ndarray:
    if length > LARGE:
        raise UnsupportedError(
            f"a sequence of {length} steps needs a constant with {length} elements, but at most "
            f"{LARGE} are allowed; declare the sequence length as a symbolic dimension"
        )
    return np.arange(length)


def as_value(operand: Operand) -> ir.Value:
    """Return an operand that is known to be a value."""
    assert isinstance(operand, ir.Value)
    return operand


def declare(operand: Operand, dtype: ir.DataType, shape: Sequence[int | str | None]) -> None:
    """Declare type and shape of an emitted value; a constant already has them."""
    if isinstance(operand, ir.Value):
        operand.type, operand.shape = ir.TensorType(dtype), ir.Shape(shape)


def detach(nodes: Sequence[ir.Node]) -> None:
    """Disconnect unused nodes, bodies included, from their inputs."""
    for node in with_bodies(nodes):
        for index in range(len(node.inputs)):
            node.replace_input_with(index, None)


def node_key(op_type: str, inputs: Sequence[ir.Value | None], attributes: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Return a key that equal nodes share, or None for nodes that must not be merged."""
    if op_type == "Identity" or any(isinstance(content, ir.Graph) for content in attributes.values()):
        return None
    contents = tuple(sorted((name, _comparable(content)) for name, content in attributes.items()))
    return (op_type, tuple(inputs), contents)


def _comparable(content: Any) -> str:
    if hasattr(content, "tobytes") and hasattr(content, "dtype"):
        return f"{content.dtype} {content.tobytes()!r} {content.shape}"
    return repr(content)
