"""What the primitive operators of ONNX compute, on field elements, integers and truth values, at every opset.

A float is a field element (uint64), an integer int64, a truth value bool. Casts between float types are the identity,
because rounding is not what a proof is about. A comparison of floats that stand for no small integers gives a field
element too: a random function of the difference, by which Where and Cast then go as by a number between 0 and 1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from rnn_lower.proving import scalar_functions
from rnn_lower.proving.field import Array, Field

BROADCASTS_BY_RULE, MAX_BROADCASTS = 7, 8
"""Opsets from which on binary operators, and Max and Min, broadcast without being asked to."""


class OutOfScopeError(Exception):
    """An operator, or a use of it, of which this page says nothing."""


class WrongError(Exception):
    """The graph does something that no lowering of the node can do, or cannot run."""


@dataclasses.dataclass(frozen=True)
class Call:
    """One node with its operands; None for those that are left out."""

    field: Field
    node: ir.Node
    inputs: Sequence[Array | None]
    opset: int

    def __getitem__(self, place: int) -> Array:
        operand = self.inputs[place] if place < len(self.inputs) else None
        if operand is None:
            raise WrongError(f"{self.node.op_type} lacks input {place}")
        return operand

    def attribute(self, name: str, default: Any = None) -> Any:
        attribute = self.node.attributes.get(name)
        return default if attribute is None else attribute.value

    def parameter(self, name: str, place: int) -> list[int] | None:
        """Integers that are an attribute at some versions and an input at others."""
        if name in self.node.attributes:
            value = self.attribute(name)
            return list(value) if isinstance(value, Sequence) else [int(value)]
        operand = self.inputs[place] if place < len(self.inputs) else None
        return None if operand is None else [int(number) for number in operand.ravel()]

    def number(self, name: str, default: float) -> Array:
        """A float attribute, exact."""
        return self.field.number(float(np.float32(self.attribute(name, default))))

    def real(self, place: int) -> Array:
        operand = self[place]
        if operand.dtype != np.uint64:
            raise WrongError(f"{self.node.op_type} of {operand.dtype}, where floats are required")
        return operand

    def pair(self) -> tuple[Array, Array]:
        """Two operands of one kind, the second of which the first one's opset can broadcast."""
        a, b = self[0], self[1]
        if a.dtype != b.dtype:
            raise WrongError(f"{self.node.op_type} of {a.dtype} and {b.dtype}")
        newest = MAX_BROADCASTS if self.node.op_type in ("Max", "Min") else BROADCASTS_BY_RULE
        if self.opset < newest and a.shape != b.shape:
            on_request = self.attribute("broadcast", 0) and "axis" not in self.node.attributes
            if not on_request or a.shape[a.ndim - b.ndim :] != b.shape:
                raise WrongError(f"{self.node.op_type} of shapes {a.shape} and {b.shape} at opset {self.opset}")
        return a, b


Operator = Callable[[Call], Any]
"""Answers an array, or a list of them for several outputs."""


def _binary(real: Callable[[Field, Array, Array], Array], whole: Callable[[Array, Array], Array] | None) -> Operator:
    def run(call: Call) -> Array:
        if len(call.node.inputs) != 2:
            raise OutOfScopeError(f"{call.node.op_type} of {len(call.node.inputs)} values")
        a, b = call.pair()
        if a.dtype == np.uint64:
            return real(call.field, a, b)
        if whole is None or a.dtype == np.bool_:
            raise OutOfScopeError(f"{call.node.op_type} of {a.dtype}")
        return whole(a, b)

    return run


def _scalar(name: str, alpha: float = 0.0, beta: float = 0.0) -> Operator:
    """An operator that is an activation, with the defaults of its attributes."""
    return lambda call: scalar_functions.SCALARS[name](
        call.field, call.real(0), call.number("alpha", alpha), call.number("beta", beta)
    )


EXACT = {ir.DataType.FLOAT16: 1 << 11, ir.DataType.BFLOAT16: 1 << 8, ir.DataType.DOUBLE: 1 << 53}
"""Up to where these types hold every integer; FLOAT does up to 2^24."""


def _cast(call: Call) -> Array:
    x, to = call[0], call.attribute("to")
    dtype = ir.DataType[to] if isinstance(to, str) else ir.DataType(to)
    if dtype.is_floating_point():
        if x.dtype == np.uint64:
            return x
        if np.abs(x.astype(np.int64)).max(initial=0) > EXACT.get(dtype, 1 << 24):
            raise OutOfScopeError(f"Cast of integers to {dtype.name}, which cannot represent them")
        return call.field.integers(x)
    whole = call.field.small(x) if x.dtype == np.uint64 else x.astype(np.int64)
    if whole is None or not (dtype.is_integer() or dtype == ir.DataType.BOOL):
        raise OutOfScopeError(f"Cast of computed floats to {dtype.name}")
    if not dtype.is_integer():
        return np.asarray(whole != 0)
    return np.asarray(whole.astype(dtype.numpy()).astype(np.int64))  # a narrow type wraps


def _where(call: Call) -> Array:
    condition, a, b = call[0], call[1], call[2]
    if a.dtype != b.dtype:
        raise WrongError(f"Where of {a.dtype} and {b.dtype}")
    if condition.dtype == np.bool_:
        return np.where(condition, a, b)
    field = call.field
    if condition.dtype != np.uint64 or a.dtype != np.uint64:
        raise OutOfScopeError(f"Where on {condition.dtype} between {a.dtype}")
    rest = field.subtract(scalar_functions.ONE, condition)
    return field.add(field.multiply(condition, a), field.multiply(rest, b))


def _clip(call: Call) -> Array:
    bounds = []
    for place, name in enumerate(("min", "max"), 1):
        bound = call.inputs[place] if place < len(call.inputs) else None
        bounds.append(call.number(name, 0.0) if name in call.node.attributes else bound)
    x, (low, high) = call.real(0), bounds
    if low is not None and high is not None:  # constants in order are a pattern of `algebraic_patterns`
        raise WrongError("Clip with computed bounds, or min above max")
    x = x if low is None else scalar_functions.maximum(call.field, x, low)
    return x if high is None else scalar_functions.minimum(call.field, x, high)


def _matmul(call: Call) -> Array:
    a, b = call.real(0), call.real(1)
    if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-2]:
        raise WrongError(f"MatMul of shapes {a.shape} and {b.shape}")
    if b.ndim == 2:
        return call.field.matmul(a, b)
    if a.shape[:-2] != b.shape[:-2]:
        raise OutOfScopeError(f"MatMul of stacks of {a.shape[:-2]} and {b.shape[:-2]} matrices")
    pairs = [(a[place], b[place]) for place in np.ndindex(a.shape[:-2])]
    return np.array([call.field.matmul(x, y) for x, y in pairs], np.uint64).reshape(*a.shape[:-1], b.shape[-1])


def _gemm(call: Call) -> Array:
    a, b = (x.T if call.attribute(flag, 0) else x for x, flag in ((call.real(0), "transA"), (call.real(1), "transB")))
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise WrongError(f"Gemm of shapes {a.shape} and {b.shape}")
    field = call.field
    product = field.multiply(call.number("alpha", 1.0), field.matmul(a, b))
    has_sum = len(call.inputs) > 2 and call.inputs[2] is not None
    return field.add(product, field.multiply(call.number("beta", 1.0), call.real(2))) if has_sum else product


def _conv(call: Call) -> Array:
    """A kernel of one point: at each place a product of the channels with it."""
    x, kernel = call.real(0), call.real(1)
    unusual = {name: call.attribute(name) for name in call.node.attributes if name not in ("kernel_shape", "group")}
    if x.ndim != 4 or kernel.ndim != 4 or kernel.shape[2:] != (1, 1) or unusual or call.attribute("group", 1) != 1:
        raise OutOfScopeError("a Conv that is not 1 x 1")
    if x.shape[1] != kernel.shape[1] or len(call.inputs) > 2:
        raise WrongError(f"Conv of shapes {x.shape} and {kernel.shape}")
    rows = np.moveaxis(x, 1, 3)
    return np.moveaxis(call.field.matmul(rows, kernel[:, :, 0, 0].T), 3, 1)


def _slice(call: Call) -> Array:
    x, starts, ends = call[0], call.parameter("starts", 1), call.parameter("ends", 2)
    axes, steps = call.parameter("axes", 3), call.parameter("steps", 4)
    # A part that ends beyond the end is another part of a longer sequence, and that is not looked at.
    if starts is None or ends is None:
        raise WrongError("Slice without starts or ends")
    index = [slice(None)] * x.ndim
    for place, axis in enumerate(range(len(starts)) if axes is None else axes):
        size, start, end = x.shape[axis], starts[place], ends[place]
        if not (-size <= start <= size and -size <= end <= size) or steps is not None:
            raise OutOfScopeError(f"a Slice of {size} from {start} to {end}, or with steps")
        index[axis] = slice(start, end)
    return x[tuple(index)]


def _split(call: Call) -> list[Array]:
    x, axis, sizes = call[0], call.attribute("axis", 0), call.parameter("split", 1)
    if sizes is None:
        count = len(call.node.outputs)
        each = -(-x.shape[axis] // count)
        sizes = [each] * (count - 1) + [x.shape[axis] - each * (count - 1)]
    if sum(sizes) != x.shape[axis] or min(sizes) < 0 or len(sizes) != len(call.node.outputs):
        raise WrongError(f"Split of {x.shape[axis]} into {sizes}, {len(call.node.outputs)} outputs")
    return np.split(x, np.cumsum(sizes)[:-1], axis)


def _reshape(call: Call) -> Array:
    x, shape = call[0], call.parameter("shape", 1)
    if shape is None:
        raise WrongError("Reshape without a shape")
    if any(size < -1 for size in shape):  # numpy takes these for -1
        raise WrongError(f"Reshape to {[int(size) for size in shape]}")
    keeps = not call.attribute("allowzero", 0)
    return x.reshape([x.shape[k] if size == 0 and keeps else size for k, size in enumerate(shape)])


def _squeeze(call: Call) -> Array:
    axes = call.parameter("axes", 1)
    return np.squeeze(call[0], None if axes is None else tuple(axes))


def _unsqueeze(call: Call) -> Array:
    axes = call.parameter("axes", 1)
    if axes is None:
        raise WrongError("Unsqueeze without axes")
    return np.expand_dims(call[0], tuple(axes))


def _concat(call: Call) -> Array:
    parts = [call[place] for place in range(len(call.inputs))]
    if len({part.dtype for part in parts}) > 1:
        raise WrongError("Concat of several types")
    return np.concatenate(parts, call.attribute("axis", 1))


def _constant_of_shape(call: Call) -> Array:
    tensor = call.attribute("value")
    fill = np.zeros(1, np.float32) if tensor is None else tensor.numpy()
    return np.broadcast_to(known(call.field, fill), [int(size) for size in call[0]])


def _shape(call: Call) -> Array:
    shape = np.array(call[0].shape, np.int64)
    return shape[call.attribute("start", 0) : call.attribute("end", len(shape))]


def _transpose(call: Call) -> Array:
    return np.transpose(call[0], call.attribute("perm"))


def _integer(call: Call, place: int) -> Array:
    operand = call[place]
    if operand.dtype != np.int64:
        raise OutOfScopeError(f"{call.node.op_type} of {operand.dtype}")
    return operand


def _greatest(call: Call) -> Array:
    """Of all integers of a value."""
    numbers, keepdims = _integer(call, 0), _keeps_all(call)
    if not numbers.size:
        raise OutOfScopeError(f"{call.node.op_type} of nothing")
    return np.asarray(np.max(numbers, keepdims=keepdims))


def _total(call: Call) -> Array:
    """Of all floats of a value."""
    return call.field.total(call.real(0), _keeps_all(call))


def _keeps_all(call: Call) -> bool:
    """What keepdims says of a reduction along all axes."""
    if len(call.node.inputs) > 1 or {"axes", "noop_with_empty_axes"} & call.node.attributes.keys():
        raise OutOfScopeError(f"{call.node.op_type} along some axes")
    return bool(call.attribute("keepdims", 1))


def _not(call: Call) -> Array:
    return call.field.subtract(scalar_functions.ONE, call[0]) if call[0].dtype == np.uint64 else ~call[0]


def known(field: Field, numbers: Any) -> Array:
    """Numbers of a tensor as what computing goes on with."""
    array = np.asarray(numbers)
    if array.dtype == np.bool_:
        return array
    if array.dtype.kind not in "fViu":  # V: the narrow types that numpy does not know
        raise WrongError(f"a constant of {array.dtype}")
    return array.astype(np.int64) if array.dtype.kind in "iu" else field.embed(array)


OPERATORS: dict[str, Operator] = {
    "Abs": lambda call: scalar_functions.absolute(call.field, call.real(0)),
    "Add": _binary(lambda field, a, b: field.add(a, b), np.add),
    "Cast": _cast,
    "Clip": _clip,
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "Conv": _conv,
    "Div": _binary(lambda field, a, b: field.multiply(a, field.inverse(b)), None),
    "Elu": _scalar("elu", 1.0),
    "Exp": lambda call: call.field.function("exp", call.real(0)),
    "Gather": lambda call: np.take(call[0], _integer(call, 1), axis=call.attribute("axis", 0)),
    "Gemm": _gemm,
    "Greater": _binary(lambda field, a, b: field.above_zero(field.subtract(a, b)), np.greater),
    "HardSigmoid": _scalar("hardsigmoid", 0.2, 0.5),
    "Identity": lambda call: call[0],
    "IsNaN": lambda call: call.field.function("is nan", call.real(0)),
    "LeakyRelu": _scalar("leakyrelu", 0.01),
    "Less": _binary(lambda field, a, b: field.above_zero(field.subtract(b, a)), np.less),
    "Log": lambda call: call.field.function("log", call.real(0)),
    "MatMul": _matmul,
    "Max": _binary(scalar_functions.maximum, np.maximum),
    "Min": _binary(scalar_functions.minimum, np.minimum),
    "Mul": _binary(lambda field, a, b: field.multiply(a, b), np.multiply),
    "Neg": lambda call: call.field.negative(call.real(0)),
    "NonZero": lambda call: np.array(np.nonzero(call[0]), np.int64),
    "Not": _not,
    "Range": lambda call: np.arange(*(int(_integer(call, place)) for place in range(3))),
    "Reciprocal": lambda call: call.field.inverse(call.real(0)),
    "ReduceMax": _greatest,
    "ReduceSum": _total,
    "Relu": _scalar("relu"),
    "Reshape": _reshape,
    "Shape": _shape,
    "Sigmoid": _scalar("sigmoid"),
    "Slice": _slice,
    "Softplus": _scalar("softplus"),
    "Softsign": _scalar("softsign"),
    "Split": _split,
    "Squeeze": _squeeze,
    "Sub": _binary(lambda field, a, b: field.subtract(a, b), np.subtract),
    "Tanh": _scalar("tanh"),
    "ThresholdedRelu": _scalar("thresholdedrelu", 1.0),
    "Tile": lambda call: np.tile(call[0], _integer(call, 1)),
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Where": _where,
}
"""All but Constant and the operators with bodies."""
