"""Which operator version: one method per primitive, valid at the graph's own opset.

Where versions differ only in how they take their parameters, `Emitter.op` reads that off `versions.TABLE`; the few
primitives that old opsets lack (Where, Range ...) are expressed by older ones in the method of that name. Outside of
this wing the opset decides what is possible at all (a form, a conversion), never how something is written.

Three kinds of operand meet here:

* `ir.Value`: known at run time only;
* `Constant`: known now, evaluated lazily when the model is written; primitives fold it (`slice`, `transpose` ... of a
  Constant is a Constant) and it becomes an initializer at the moment an emitted node uses it;
* `None`: a known zero, e.g. the state before the first step. `add(None, x)` is x, `mul(None, x)` is None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from typing_extensions import Self

from rnn_lower.builder.constants import Constant, constant, filled, fold
from rnn_lower.builder.operators import OperatorWriter
from rnn_lower.builder.versions import (
    BROADCASTS_BY_RULE,
    CAST_TAKES_ENUM,
    CLIP_TAKES_DOUBLE,
    MAX_BROADCASTS,
    TABLE,
)
from rnn_lower.builder.writer import Operand
from rnn_lower.errors import UnsupportedError

LARGE = 1 << 24
"""Elements up to which zeros and positions of known sizes are constants of the model."""


def _positions(length: int) -> np.ndarray:
    if length > LARGE:
        raise UnsupportedError(
            f"{length} steps would take a constant of as many positions, and {LARGE} is the limit;"
            " declare the length as a symbol"
        )
    return np.arange(length)


class Primitives(OperatorWriter):
    """One method per primitive, each valid at `opset`."""

    def scalar(self, number: float) -> Constant:
        """A rank-0 constant of the arithmetic's type."""
        return constant(number, self.dtype)

    # -- arithmetic ------------------------------------------------------------------------------------------------

    def _binary(self, op_type: str, a: Operand, b: Operand, name: str) -> ir.Value:
        # Before opset 7 broadcasting is asked for, and b must be the smaller; callers order their operands so.
        broadcast = {"broadcast": 1} if self.opset < BROADCASTS_BY_RULE else {}
        return self.op(op_type, a, b, name=name, **broadcast)

    def add(self, a: Operand, b: Operand, name: str = "sum") -> Operand:
        if a is None or b is None:
            return b if a is None else a
        if isinstance(a, Constant) and isinstance(b, Constant):
            return fold(("add",), np.add, a, b, name=name)
        return self._binary("Add", a, b, name)

    def mul(self, a: Operand, b: Operand, name: str = "product") -> Operand:
        return None if a is None or b is None else self._binary("Mul", a, b, name)

    def sub(self, a: Operand, b: Operand, name: str = "difference") -> Operand:
        if b is None:
            return a
        if a is None or (isinstance(a, Constant) and self.opset < BROADCASTS_BY_RULE):
            return self.add(self.mul(b, self.scalar(-1.0), f"minus_{name}"), a, name)
        return self._binary("Sub", a, b, name)

    def div(self, a: Operand, b: Operand, name: str = "quotient") -> Operand:
        return None if a is None else self._binary("Div", a, b, name)

    def matmul(self, a: Operand, b: Operand, name: str = "product") -> Operand:
        return None if a is None or b is None else self.op("MatMul", a, b, name=name)

    def unary(self, op_type: str, x: Operand, name: str | None = None, **attributes: Any) -> ir.Value:
        limit = self.habits.saturates.get(op_type) if self.has(op_type) else None
        if limit is not None:
            x = self.clip(x, -limit, limit, "limited")
        return self.op(op_type, x, name=name or op_type.lower(), **attributes)

    def clip(self, x: Operand, low: float, high: float, name: str = "clipped") -> Operand:
        """low <= x <= high, with low <= 0 <= high; both bounds are always given, which every runtime understands."""
        double = self.dtype != ir.DataType.FLOAT and self.opset < CLIP_TAKES_DOUBLE
        if double and self.opset < MAX_BROADCASTS:
            return self.clip_by_reciprocal(x, low, high, name)
        if not double:
            return self.op("Clip", x, name=name, min=low, max=high)
        above = self.op("Max", x, self.scalar(low), name=f"{name}_below")
        return self.op("Min", above, self.scalar(high), name=name)

    def clip_by_reciprocal(self, x: Operand, low: float, high: float, name: str) -> Operand:
        """low <= x <= high with neither comparison nor Max."""
        above = self._at_most(self.unary("Relu", x, "above_zero"), high)
        below = self._at_most(self.unary("Relu", self.mul(x, self.scalar(-1.0), "minus"), "below_zero"), -low)
        return self.sub(above, below, name)

    def _at_most(self, x: Operand, limit: float) -> Operand:
        """min(x, limit) for x >= 0: 1 / max(1 / x, 1 / limit), whose Relu subtracts nothing that would round x away"""
        if limit == 0:
            return self.unary("Relu", self.mul(x, self.scalar(-1.0)), "at_most")
        inverse = 1.0 / limit
        beyond = self.unary("Relu", self.add(self.unary("Reciprocal", x), self.scalar(-inverse)))
        return self.unary("Reciprocal", self.add(beyond, self.scalar(inverse)), "at_most")

    def less(self, a: Operand, b: Operand, name: str = "less") -> ir.Value:
        if isinstance(a, Constant) and self.opset < BROADCASTS_BY_RULE:  # -b < -a: the constant must come second
            minus = self.scalar(-1.0)
            return self._binary(
                "Less",
                self.mul(b, minus, f"minus_{name}"),
                fold(("negate",), np.negative, a, name="minus_constant"),
                name,
            )
        return self._binary("Less", a, b, name)

    # -- shape and position ----------------------------------------------------------------------------------------

    def cast(self, x: Operand, source: ir.DataType, target: ir.DataType, name: str = "cast") -> Operand:
        if x is None or source == target:
            return x
        if isinstance(x, Constant):
            return fold(("cast", target), lambda array: array.astype(target.numpy()), x, name=name, dtype=target)
        result = self.op("Cast", x, name=name, to=self.to(target).value)
        if self.opset < CAST_TAKES_ENUM:  # shape inference cannot read the type from a text
            result.type = ir.TensorType(target)
        return result

    def transpose(self, x: Operand, perm: Sequence[int], name: str = "transposed") -> Operand:
        if x is None:
            return None
        if isinstance(x, Constant):
            return fold(("transpose", *perm), lambda array: np.transpose(array, perm), x, name=name)
        return self.op("Transpose", x, name=name, perm=list(perm))

    def squeeze(self, x: Operand, axes: Sequence[int], name: str = "squeezed") -> Operand:
        if x is None:
            return None
        if isinstance(x, Constant):
            return fold(("squeeze", *axes), lambda array: np.squeeze(array, tuple(axes)), x, name=name)
        return self.op("Squeeze", x, name=name, axes=list(axes))

    def unsqueeze(self, x: Operand, axes: Sequence[int], name: str = "unsqueezed") -> Operand:
        if isinstance(x, Constant):
            return fold(("unsqueeze", *axes), lambda array: np.expand_dims(array, tuple(axes)), x, name=name)
        return self.op("Unsqueeze", x, name=name, axes=list(axes))

    def slice(self, x: Operand, axis: int, start: int, end: int, name: str = "slice") -> Operand:
        if x is None:
            return None
        if isinstance(x, Constant):
            index = (slice(None),) * axis + (slice(start, end),)
            return fold(("slice", axis, start, end), lambda array: array[index], x, name=name)
        return self.op("Slice", x, name=name, starts=[start], ends=[end], axes=[axis])

    def pick(self, x: Operand, index: int, axis: int, size: int, name: str = "slice") -> Operand:
        """x at one index of an axis of known size; the axis goes away."""
        if size > 1:
            x = self.slice(x, axis, index, index + 1, name)
        return self.squeeze(x, [axis], name)

    def split(self, x: Operand, axis: int, sizes: Sequence[int], names: Sequence[str]) -> list[Operand]:
        """Consecutive parts of x; sizes are always given, runtimes disagree about the default."""
        if len(sizes) == 1:
            return [x]
        if isinstance(x, ir.Value):
            return list(self.op_multi("Split", [x], names, axis=axis, split=list(sizes)))
        ends = np.cumsum(sizes).tolist()
        return [self.slice(x, axis, end - size, end, name) for end, size, name in zip(ends, sizes, names, strict=True)]

    def concat(self, parts: Sequence[Operand], axis: int, name: str = "joined") -> Operand:
        if len(parts) == 1:
            return parts[0]
        if all(isinstance(part, Constant) for part in parts):
            constants = [part for part in parts if isinstance(part, Constant)]
            return fold(("concat", axis), lambda *arrays: np.concatenate(arrays, axis), *constants, name=name)
        return self.op("Concat", *parts, name=name, axis=axis)

    def reshape(self, x: Operand, shape: Sequence[int], name: str = "reshaped") -> Operand:
        if isinstance(x, Constant):
            return fold(("reshape", *shape), lambda array: array.reshape(shape), x, name=name)
        return self.op("Reshape", x, name=name, shape=list(shape))

    def reshape_to(self, x: Operand, dims: Sequence[int | ir.Value], name: str = "reshaped") -> Operand:
        """Reshape to sizes of which some are run-time scalars; 0 keeps the size at that place."""
        if all(isinstance(dim, int) for dim in dims):
            return self.reshape(x, [dim for dim in dims if isinstance(dim, int)], name)
        return self.op("Reshape", x, self._shape_vector(dims), name=name)

    def gather(self, x: Operand, index: Operand, name: str = "gathered") -> ir.Value:
        """x[index] on axis 0."""
        return self.op("Gather", x, index, name=name, axis=0)

    def dim(self, x: Operand, axis: int, name: str = "dim") -> ir.Value:
        """The run-time size of an axis, an int64 scalar."""
        shape = self.op("Shape", x, name=f"{name}_shape")
        return self.gather(shape, constant(axis, ir.DataType.INT64), name)

    def _shape_vector(self, dims: Sequence[int | ir.Value], name: str = "shape") -> Operand:
        parts: list[Operand] = [
            constant([dim], ir.DataType.INT64) if isinstance(dim, int) else self.unsqueeze(dim, [0], name)
            for dim in dims
        ]
        return self.concat(parts, 0, name)

    # -- what old opsets lack --------------------------------------------------------------------------------------

    @property
    def broadcasts(self) -> bool:
        """Whether the operands of arithmetic may differ in any axis, by numpy's rule."""
        return self.opset >= BROADCASTS_BY_RULE

    @property
    def takes_runtime_shapes(self) -> bool:
        """Whether Reshape takes sizes that are computed at run time."""
        return self.opset >= TABLE["Reshape"].inputs["shape"]

    def zeros(self, dims: Sequence[int | ir.Value], name: str = "zeros", kept: bool = True) -> Operand:
        """A block of zeros; before ConstantOfShape, where it is of rows and columns, a row of zeros is tiled.

        kept: whether it may lie in the file, where all sizes are known.
        """
        known = [dim for dim in dims if isinstance(dim, int)]
        small = kept and math.prod(known) <= LARGE
        if len(known) == len(dims) and (small or not self.has("ConstantOfShape")):
            return filled(0.0, tuple(known), self.dtype)
        if self.has("ConstantOfShape"):
            zero = ir.tensor(np.zeros(1, self.dtype.numpy()))
            return self.op("ConstantOfShape", self._shape_vector(dims), name=name, value=zero)
        rows, columns = dims
        assert not isinstance(rows, int)
        assert isinstance(columns, int)
        row = filled(0.0, (1, columns), self.dtype)
        if self.has("Tile"):
            return self.op("Tile", row, self._shape_vector([rows, 1]), name=name)
        # Before Tile counts from an input: a column of ones (0 * position + 1) times the row of zeros.
        positions = self.cast(self.iota(rows), ir.DataType.INT64, self.dtype, "rows")
        return self.matmul(self._ones_like(self.unsqueeze(positions, [1], "column")), row, name)

    def _ones_like(self, x: Operand) -> Operand:
        """1 wherever x is finite"""
        return self.add(self.mul(x, self.scalar(0.0), "none"), self.scalar(1.0), "ones")

    def iota(self, length: int | ir.Value, name: str = "positions") -> Operand:
        """0, 1 ... length - 1 as int64 [length]."""
        if isinstance(length, int):
            return constant(_positions(length), ir.DataType.INT64)
        if self.has("Range"):
            zero, one = (constant(number, ir.DataType.INT64) for number in (0, 1))
            return self.op("Range", zero, length, one, name=name)
        if self.has("NonZero"):
            one_tensor = ir.tensor(np.ones(1, np.int64))
            ones = self.op("ConstantOfShape", self._shape_vector([length]), name=f"{name}_ones", value=one_tensor)
            return self.squeeze(self.op("NonZero", ones, name=f"{name}_row"), [0], name)
        return self._counting_loop(length, name)

    def _counting_loop(self, length: ir.Value, name: str) -> ir.Value:
        body = self.body()
        with body.scope(name):
            # Loop must carry something at these opsets, so it carries the condition once more.
            inputs = [body.new_value("trip", ir.DataType.INT64, [])]
            inputs += [body.new_value(what, ir.DataType.BOOL, []) for what in ("going_on", "carried")]
            outputs = [body.op("Identity", inputs[place], name="passed_on") for place in (1, 2, 0)]
            for output, dtype in zip(outputs, (ir.DataType.BOOL, ir.DataType.BOOL, ir.DataType.INT64), strict=True):
                output.type, output.shape = ir.TensorType(dtype), ir.Shape([])
        graph = self.graph(inputs, outputs, body, f"{name}_body")
        true = constant(True, ir.DataType.BOOL)
        return self.op_multi("Loop", [length, true, true], [f"{name}_carried", name], body=graph)[1]

    def when(
        self, condition: ir.Value, chosen: Callable[[Self], Sequence[Operand]],
        otherwise: Callable[[Self], Sequence[Operand]], names: Sequence[str],
    ) -> list[ir.Value]:  # fmt: skip
        """If: only the nodes of one of the two branches run."""
        branches = {}
        for attribute, emit in (("then_branch", chosen), ("else_branch", otherwise)):
            body = self.body()
            with body.scope(attribute):
                outputs = [
                    body.op("Identity", operand, name=name) for operand, name in zip(emit(body), names, strict=True)
                ]
            for output in outputs:
                output.type = ir.TensorType(self.dtype)
            branches[attribute] = self.graph((), outputs, body, attribute)
        return self.op_multi("If", [condition], names, **branches)

    def backward_iota(self, length: int | ir.Value) -> Operand:
        """length - 1 ... 1, 0 as int64 [length]."""
        if isinstance(length, int):
            return constant(_positions(length)[::-1], ir.DataType.INT64)
        positions = self.iota(length)
        if self.opset >= BROADCASTS_BY_RULE:
            last_position = self.op("Sub", length, constant(1, ir.DataType.INT64), name="last")
            return self.op("Sub", last_position, positions, name="backward_positions")
        # Sub knows no integers yet, and its second operand must be the smaller.
        last = self.sub(self.cast(length, ir.DataType.INT64, self.dtype), self.scalar(1.0), "last")
        minus = self.mul(self.cast(positions, ir.DataType.INT64, self.dtype), self.scalar(-1.0), "minus_positions")
        return self.cast(self.add(minus, last, "backward"), self.dtype, ir.DataType.INT64, "backward_positions")

    def flip(self, x: Operand, length: int | ir.Value, name: str = "flipped") -> Operand:
        """x with axis 0, of the given length, reversed; Gather does it at every opset and on every runtime."""
        return self.gather(x, self.backward_iota(length), name)
