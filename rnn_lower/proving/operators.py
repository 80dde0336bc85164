"""The operators of ONNX on field elements, integers and booleans, at every opset.

Floats are field elements (uint64), integers int64, truth values bool. Casts between float types are the identity,
because proofs ignore rounding. A comparison of floats returns a field element unless both sides represent small
integers: a random function of the difference, which Where and Cast use as a weight between 0 and 1. A pointwise
function that is not a polynomial is a random function keyed by its operator and attributes.

Sums and normalization are in `reductions`, convolutions and pooling in `windows`; `emitted` restricts the operators to
those that lowering may emit.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from rnn_lower.proving import scalar_functions
from rnn_lower.proving.field import Array, Field
from rnn_lower.transforms.evaluate import evaluate_node


class OutOfScopeError(Exception):
    """The proof does not support an operator or one of its uses."""


class UndefinedError(OutOfScopeError):
    """A result is undefined for these inputs, because a node divided an element by zero."""

    def __init__(self, node: ir.Node) -> None:
        super().__init__(f"{node.op_type} '{node.name}' divides by zero")
        self.node = node


class DivisionByZeroError(OutOfScopeError):
    """Elements were divided by zero. result: an unusable array with the shape of the quotient."""

    def __init__(self, result: Array) -> None:
        super().__init__("a node of the model divides by zero")
        self.result = result


class WrongError(Exception):
    """The graph cannot run, or does something that no lowering does."""


def element_type(array: Array) -> str:
    """The element type in the words of a model: field elements represent floats."""
    return {"u": "float", "i": "integer"}.get(array.dtype.kind, str(array.dtype))


@dataclasses.dataclass(frozen=True)
class Call:
    """One node with its operands; absent operands are None."""

    field: Field
    node: ir.Node
    inputs: Sequence[Array | None]
    opset: int
    read: set[str] = dataclasses.field(default_factory=set)
    """Names of the attributes that were read."""

    def __getitem__(self, index: int) -> Array:
        operand = self.optional(index)
        if operand is None:
            raise WrongError(f"input {index} of {self.label} is missing")
        return operand

    @property
    def label(self) -> str:
        """The operator and the name of the node, for messages."""
        return f"{self.node.op_type} '{self.node.name}'"

    def optional(self, index: int) -> Array | None:
        return self.inputs[index] if index < len(self.inputs) else None

    @property
    def operands(self) -> list[Array]:
        """The operands that are not omitted."""
        return [array for array in self.inputs if array is not None]

    def attribute(self, name: str, default: Any = None) -> Any:
        self.read.add(name)
        attribute = self.node.attributes.get(name)
        return default if attribute is None else attribute.value

    def parameter(self, name: str, index: int) -> list[int] | None:
        """Integers that some versions read from an attribute and others from an input."""
        value = self.attribute(name)
        if value is not None:
            return list(value) if isinstance(value, Sequence) else [int(value)]
        return None if self.optional(index) is None else self.integer_list(index)

    def integer_list(self, index: int) -> list[int]:
        """A list of integers, which an input must give with rank 1; numpy accepts other ranks, too."""
        operand = self.integers(index)
        if operand.ndim != 1 and (operand.ndim or self.node.op_type not in SCALAR_AXES):
            raise WrongError(f"input {index} of {self.label} has rank {operand.ndim} instead of 1")
        return [int(number) for number in operand.ravel()]

    def all_attributes(self) -> dict[str, Any]:
        """Return all attributes of the node, and mark them as read."""
        return {name: self.attribute(name) for name in self.node.attributes}

    def number(self, name: str, default: float) -> Array:
        """The exact image of a float attribute."""
        return self.field.number(float(np.float32(self.attribute(name, default))))

    def real(self, index: int) -> Array:
        operand = self[index]
        if operand.dtype != np.uint64:
            raise WrongError(f"{self.label} requires floats, but input {index} has type {element_type(operand)}")
        return operand

    def integers(self, index: int) -> Array:
        operand = self[index]
        if operand.dtype != np.int64:
            raise OutOfScopeError(
                f"input {index} of {self.label} has type {element_type(operand)}, but the proof supports "
                "only integers there"
            )
        return operand

    def elements(self) -> list[Array]:
        """Return the operands as field elements."""
        return [array if array.dtype == np.uint64 else self.field.integers(array) for array in self.operands]


SCALAR_AXES = ("Squeeze", "Unsqueeze")
"""Operators to which onnxruntime may be given one axis of rank 0."""

Operator = Callable[[Call], Any]
"""Returns an array, or a list of arrays for several outputs."""

BROADCASTS_BY_RULE, MAX_BROADCASTS = 7, 8
"""The first opsets at which binary and variadic operators broadcast without an attribute."""

OF_ANY_NUMBER = ("Max", "Mean", "Min", "Sum")

NO_EFFECT = {"broadcast", "consumed_inputs", "momentum", "ratio", "round_mode", "saturate", "seed", "stash_type"}
"""Attributes that have no effect, or affect only rounding or training."""


def check_attributes(call: Call) -> None:
    """Raise OutOfScopeError if the equation did not read an attribute that may have an effect."""
    if unread := call.node.attributes.keys() - call.read - NO_EFFECT:
        raise OutOfScopeError(f"the proof does not support attribute '{min(unread)}' of {call.label}")


# -- elementwise -------------------------------------------------------------------------------------------------------


def pointwise(call: Call) -> Array:
    """Return a random function of the elements at each position."""
    attributes = sorted((name, repr(value)) for name, value in call.all_attributes().items())
    name, (first, *rest) = f"{call.node.op_type} {attributes}", call.elements()
    result = call.field.function(name, first)
    for operand in rest:
        result = call.field.function(name, call.field.add(call.field.function("next", result), operand))
    return result


def _elementwise(real: Callable[[Field, Array, Array], Array] | None, whole: Callable[..., Any]) -> Operator:
    """A binary operator, applied from the left to any number of operands.

    real: the function over the field, or None for a random one.  whole: the function of integers and booleans.
    """

    def run(call: Call) -> Array:
        _check_broadcast(call)
        if all(array.dtype != np.uint64 for array in call.operands):
            return np.asarray(functools.reduce(whole, call.operands))
        if real is None:
            return pointwise(call)
        return functools.reduce(functools.partial(real, call.field), call.elements())

    return run


def _check_broadcast(call: Call) -> None:
    """Raise WrongError for shapes that this opset does not broadcast."""
    if call.opset >= (MAX_BROADCASTS if call.node.op_type in OF_ANY_NUMBER else BROADCASTS_BY_RULE):
        return
    shapes = [array.shape for array in call.operands]
    if all(shape == shapes[0] for shape in shapes):
        return
    on_request = len(shapes) == 2 and call.attribute("broadcast", 0) and call.attribute("axis") is None
    if not on_request or shapes[0][len(shapes[0]) - len(shapes[1]) :] != shapes[1]:
        text = f"{call.label} cannot broadcast the shapes {' and '.join(map(str, shapes))}"
        raise WrongError(f"{text} at opset {call.opset}")


def _unary(real: Callable[[Field, Array], Array], whole: Callable[..., Any]) -> Operator:
    """A unary operator on field elements, or on integers and booleans."""
    return lambda call: real(call.field, call[0]) if call[0].dtype == np.uint64 else np.asarray(whole(call[0]))


def _activation(name: str, alpha: float = 0.0, beta: float = 0.0) -> Operator:
    """Return an activation operator with the defaults of its attributes."""
    scalar = scalar_functions.SCALARS[name]
    return lambda call: scalar(call.field, call.real(0), call.number("alpha", alpha), call.number("beta", beta))


def _function(name: str) -> Operator:
    return lambda call: call.field.function(name, call.real(0))


def _log(call: Call) -> Array:
    x = call.real(0)
    if not np.all(x):
        raise DivisionByZeroError(x)  # 0 has no finite logarithm
    return call.field.function("log", x)


def _truncated(a: Array, b: Array) -> Array:
    if not np.all(b):
        raise WrongError("a Div divides an integer by zero")
    quotient = np.abs(a) // np.abs(b)
    return np.asarray(np.where((a < 0) == (b < 0), quotient, -quotient), np.int64)


def _inverse(field: Field, x: Array) -> Array:
    if not np.all(x):
        raise DivisionByZeroError(field.inverse(x))
    return field.inverse(x)


def _quotient(field: Field, a: Array, b: Array) -> Array:
    try:
        return field.multiply(a, _inverse(field, b))
    except DivisionByZeroError as error:
        raise DivisionByZeroError(field.multiply(a, error.result)) from None


def _or(field: Field, a: Array, b: Array) -> Array:
    return field.subtract(field.add(a, b), field.multiply(a, b))


def _not(field: Field, a: Array) -> Array:
    return field.subtract(scalar_functions.ONE, a)


def _less(field: Field, a: Array, b: Array) -> Array:
    return field.above_zero(field.subtract(b, a))


def _at_most(field: Field, a: Array, b: Array) -> Array:
    above = _less(field, b, a)
    return ~above if above.dtype == np.bool_ else _not(field, above)


def _mod(call: Call) -> Array:
    return _elementwise(None, np.fmod if call.attribute("fmod", 0) else np.mod)(call)  # type: ignore[no-any-return]


def _mean(call: Call) -> Array:
    _check_broadcast(call)
    total = functools.reduce(call.field.add, call.elements())
    return call.field.multiply(total, call.field.inverse(call.field.integers(np.array(len(call.inputs)))))


EXACT = {ir.DataType.FLOAT16: 1 << 11, ir.DataType.BFLOAT16: 1 << 8, ir.DataType.DOUBLE: 1 << 53}
"""The largest magnitude up to which a type represents every integer; 2^24 for FLOAT."""


def cast_type(to: int | str) -> ir.DataType:
    """The element type that a Cast names by a number or, before opset 6, by a word."""
    return ir.DataType[to] if isinstance(to, str) else ir.DataType(to)


def _cast(call: Call) -> Array:
    x, dtype = call[0], cast_type(call.attribute("to"))
    if dtype.is_floating_point():
        if x.dtype == np.uint64:
            return x
        if np.abs(x.astype(np.int64)).max(initial=0) > EXACT.get(dtype, 1 << 24):
            raise OutOfScopeError(f"{call.label} casts integers to {dtype.name}, which cannot represent them exactly")
        return call.field.integers(x)
    whole = call.field.small(x) if x.dtype == np.uint64 else x.astype(np.int64)
    if whole is None or not (dtype.is_integer() or dtype == ir.DataType.BOOL):
        raise OutOfScopeError(
            f"{call.label} casts computed floating-point values to {dtype.name}, which the proof does not support"
        )
    if not dtype.is_integer():
        return np.asarray(whole != 0)
    return np.asarray(whole.astype(dtype.numpy()).astype(np.int64))  # a narrow type wraps


def _cast_like(call: Call) -> Array:
    if call[0].dtype != call[1].dtype:
        raise OutOfScopeError(f"{call.label} casts {element_type(call[0])} to {element_type(call[1])}")
    return call[0]


def _where(call: Call) -> Array:
    condition, a, b = call[0], call[1], call[2]
    if a.dtype != b.dtype:
        raise WrongError(f"the values of {call.label} have different types, {element_type(a)} and {element_type(b)}")
    if condition.dtype == np.bool_:
        return np.where(condition, a, b)
    if condition.dtype != np.uint64 or a.dtype != np.uint64:
        why = "depends on floats" if condition.dtype == np.uint64 else f"has type {element_type(condition)}"
        raise OutOfScopeError(
            f"the condition of {call.label} {why}, but the values it selects have type {element_type(a)}"
        )
    return between(call.field, condition, a, b)


def between(field: Field, condition: Array, a: Array, b: Array) -> Array:
    """a if the condition is 1, b if it is 0, and a weighted mean for any other element."""
    return field.add(field.multiply(condition, a), field.multiply(_not(field, condition), b))


def bounds_of(call: Call) -> list[Array | None]:
    """Return the bounds of a Clip, which are attributes at some opsets and inputs at others."""
    return [
        call.optional(index) if call.attribute(name) is None else call.number(name, 0.0)
        for index, name in enumerate(("min", "max"), 1)
    ]


def _clip(call: Call) -> Array:
    """The clipped elements; a random function of x and two bounds, because the order matters if low > high."""
    x, (low, high) = call[0], bounds_of(call)
    if x.dtype == np.int64:
        return np.asarray(np.clip(x, low, high))
    if low is not None and high is not None:
        return pointwise(call)
    x = call.real(0) if low is None else scalar_functions.maximum(call.field, x, low)
    return x if high is None else scalar_functions.minimum(call.field, x, high)


# -- products ----------------------------------------------------------------------------------------------------------


def _matmul(call: Call) -> Array:
    """A MatMul of any ranks."""
    field, a, b = call.field, call.real(0), call.real(1)
    rows, columns = a.ndim == 1, b.ndim == 1
    a, b = a[None] if rows else a, b[:, None] if columns else b
    if a.shape[-1] != b.shape[-2]:
        raise WrongError(f"{call.label} has operands of incompatible shapes {a.shape} and {b.shape}")
    if b.ndim == 2:
        product = field.matmul(a, b)
    else:
        heads = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        a, b = np.broadcast_to(a, (*heads, *a.shape[-2:])), np.broadcast_to(b, (*heads, *b.shape[-2:]))
        parts = [field.matmul(a[index], b[index]) for index in np.ndindex(heads)]
        product = np.array(parts, np.uint64).reshape(*heads, a.shape[-2], b.shape[-1])
    product = product[..., 0, :] if rows else product
    return product[..., 0] if columns else product


def _gemm(call: Call) -> Array:
    a, b = (x.T if call.attribute(flag, 0) else x for x, flag in ((call.real(0), "transA"), (call.real(1), "transB")))
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise WrongError(f"{call.label} has operands of incompatible shapes {a.shape} and {b.shape}")
    field = call.field
    alpha, beta = call.number("alpha", 1.0), call.number("beta", 1.0)
    product = field.multiply(alpha, field.matmul(a, b))
    if call.optional(2) is None:
        return product
    result = field.add(product, field.multiply(beta, call.real(2)))
    if result.shape != product.shape:
        raise WrongError(f"{call.label} cannot broadcast C of shape {call[2].shape} to shape {product.shape}")
    return result


def _einsum(call: Call) -> Array:
    equation = call.attribute("equation")
    equation = (equation.decode() if isinstance(equation, bytes) else str(equation)).replace(" ", "")
    inputs, arrow, result = equation.partition("->")
    terms, labels = inputs.split(","), sorted(set(inputs) - {","})
    if "." in equation or any(len(set(term)) < len(term) for term in terms):
        raise OutOfScopeError(
            f"the equation of {call.label} contains an ellipsis or repeats an index within an "
            "operand, which the proof does not support"
        )
    if not arrow:
        result = "".join(label for label in labels if inputs.count(label) == 1)
    labels = [*result, *(label for label in labels if label not in result)]
    factors = []
    for index, term in enumerate(terms):
        x = call.real(index).transpose([term.index(label) for label in labels if label in term])
        factors.append(np.expand_dims(x, [axis for axis, label in enumerate(labels) if label not in term]))
    product = functools.reduce(call.field.multiply, factors)
    return call.field.total(product, tuple(range(len(result), len(labels))))


# -- moving elements ---------------------------------------------------------------------------------------------------


def _slice(call: Call) -> Array:
    x, starts, ends = call[0], call.parameter("starts", 1), call.parameter("ends", 2)
    axes, steps = call.parameter("axes", 3), call.parameter("steps", 4)
    if starts is None or ends is None:
        raise WrongError(f"the starts or ends of {call.label} are missing")
    for index, axis in enumerate(range(len(starts)) if axes is None else axes):
        step, end, size = 1 if steps is None else steps[index], ends[index], x.shape[axis]
        start, stop = starts[index], None if step < 0 and end < -size else end
        start = max(start, -size) if step < 0 else start  # a negative step starts at an existing element
        x = x[(slice(None),) * (axis % x.ndim) + (slice(start, stop, step),)]
    return x


def _split(call: Call) -> list[Array]:
    x, axis, sizes = call[0], call.attribute("axis", 0), call.parameter("split", 1)
    count = call.attribute("num_outputs")
    is_uneven = count is not None
    if is_uneven and (sizes is not None or count != len(call.node.outputs)):
        raise WrongError(
            f"num_outputs of {call.label} differs from its number of outputs, or input 'split' is also present"
        )
    if sizes is None:
        count = len(call.node.outputs)
        if x.shape[axis] % count and not is_uneven:
            raise WrongError(f"{call.label} cannot split an axis of size {x.shape[axis]} into {count} equal parts")
        each = -(-x.shape[axis] // count)
        sizes = [each] * (count - 1) + [x.shape[axis] - each * (count - 1)]
    if sum(sizes) != x.shape[axis] or min(sizes) < 0 or len(sizes) != len(call.node.outputs):
        text = f"{call.label} cannot split an axis of size {x.shape[axis]} into sizes {sizes}"
        raise WrongError(f"{text}, because it has {len(call.node.outputs)} outputs")
    return np.split(x, np.cumsum(sizes)[:-1], axis)


def _reshape(call: Call) -> Array:
    x, shape = call[0], call.parameter("shape", 1)
    if shape is None:
        raise WrongError(f"the shape input of {call.label} is missing")
    if any(size < -1 for size in shape):  # numpy treats these as -1
        raise WrongError(f"{call.label} has the invalid shape {[int(size) for size in shape]}")
    keeps = not call.attribute("allowzero", 0)
    return x.reshape([x.shape[k] if size == 0 and keeps else size for k, size in enumerate(shape)])


def _flatten(call: Call) -> Array:
    x, axis = call[0], call.attribute("axis", 1)
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


def _squeeze(call: Call) -> Array:
    axes = call.parameter("axes", 1)
    if axes is not None and not axes:
        raise OutOfScopeError(f"the axes of {call.label} are empty, which runtimes interpret differently")
    return np.squeeze(call[0], None if axes is None else tuple(axes))


def _unsqueeze(call: Call) -> Array:
    axes = call.parameter("axes", 1)
    if axes is None:
        raise WrongError(f"the axes of {call.label} are missing")
    return np.expand_dims(call[0], tuple(axes))


def _concat(call: Call) -> Array:
    parts = [call[index] for index in range(len(call.inputs))]
    if len({part.dtype for part in parts}) > 1:
        raise WrongError(f"the inputs of {call.label} have different types")
    return np.concatenate(parts, call.attribute("axis", 1))


def _expand(call: Call) -> Array:
    x, shape = call[0], tuple(call.integer_list(1))
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, shape))


def _constant_of_shape(call: Call) -> Array:
    tensor = call.attribute("value")
    fill = np.zeros(1, np.float32) if tensor is None else tensor.numpy()
    return np.broadcast_to(known(call.field, fill), call.integer_list(0))


def _shape(call: Call) -> Array:
    shape = np.array(call[0].shape, np.int64)
    return shape[call.attribute("start", 0) : call.attribute("end", len(shape))]


def _range(call: Call) -> Array:
    real, parts = call[0].dtype == np.uint64, [call[index] for index in range(3)]
    whole = [call.field.small(part) if real else part for part in parts]
    known = [int(part) for part in whole if part is not None and part.size == 1]
    if len(known) < len(parts) or len({part.dtype for part in parts}) > 1:
        raise OutOfScopeError(
            f"the bounds of {call.label} must be integers of the same type that do not depend on the inputs"
        )
    numbers = np.arange(*known)
    return call.field.integers(numbers) if real else numbers


def _pad(call: Call) -> Array:
    x, mode, pads = call[0], call.attribute("mode", "constant"), call.parameter("pads", 1) or call.attribute("paddings")
    axes = range(x.ndim) if (last := call.optional(3)) is None else [int(axis) % x.ndim for axis in last.ravel()]
    if pads is None or len(pads) != 2 * len(axes):
        raise WrongError(f"the pads of {call.label} must contain two values for each axis")
    fill = call.optional(2)
    if fill is None:
        fill = call.number("value", 0.0) if x.dtype == np.uint64 else np.zeros((), x.dtype)
    for axis, before, behind in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        x = np.take(x, range(max(0, -before), x.shape[axis] - max(0, -behind)), axis)
        sides = [(max(0, before), max(0, behind)) if k == axis else (0, 0) for k in range(x.ndim)]
        filled = {"constant_values": fill.ravel()[0]} if mode == "constant" else {}
        x = np.pad(x, sides, mode=mode, **filled)
    return x


def _gather(call: Call) -> Array:
    """Rows of a table; a random function of table and index if the index is computed from floats."""
    table, indices, axis = call[0], call[1], call.attribute("axis", 0)
    if indices.dtype == np.int64:
        return np.asarray(np.take(table, indices, axis))
    if table.dtype != np.uint64 or axis % table.ndim:
        raise OutOfScopeError(
            f"the indices of {call.label} are computed from floating-point values; the proof supports "
            "this only if the data is floating-point and the axis is 0"
        )
    name = f"row of {hashlib.blake2b(np.ascontiguousarray(table).tobytes()).hexdigest()} at"
    columns = [call.field.function(f"{name} {column}", indices) for column in range(table[:1].size)]
    return np.stack(columns, -1).reshape(*indices.shape, *table.shape[1:])


def _non_zero(call: Call) -> Array:
    if call[0].dtype == np.uint64:
        raise OutOfScopeError(
            f"the input of {call.label} is computed from floating-point values; the proof does not support this"
        )
    return np.array(np.nonzero(call[0]), np.int64)


def _dropout(call: Call) -> Array:
    training, always = call.optional(2), call.opset < 7 and not call.attribute("is_test", 0)
    if always or (training is not None and (training.dtype != np.bool_ or training.any())):
        raise OutOfScopeError(f"{call.label} is in training mode, so its output is random")
    if any(value.uses() or value.is_graph_output() for value in call.node.outputs[1:]):
        raise OutOfScopeError(f"the model uses the mask output of {call.label}, which the proof does not support")
    return call[0]


def _moved(call: Call) -> list[Array]:
    """Results of operators that only move elements, by onnx's evaluator."""
    if len(call.inputs) > 1 and call[1].dtype == np.uint64:
        raise OutOfScopeError(
            f"the sizes or indices of {call.label} are computed from floating-point values; the proof "
            "does not support this"
        )
    if call.attribute("reduction", "none") != "none":
        raise OutOfScopeError(f"{call.label} has the attribute 'reduction', which the proof does not support")
    try:
        call.all_attributes()  # marks them as read; the evaluator uses them
        return evaluate_node(call.node, call.inputs, call.opset)
    except (IndexError, ValueError):
        raise WrongError(f"{call.node.op_type} '{call.node.name}' reads beyond the end of its input") from None
    except Exception as error:  # the evaluator raises whatever it stumbles over
        raise OutOfScopeError(f"{call.label} cannot be evaluated ({type(error).__name__})") from None


def _reverse_sequence(call: Call) -> list[Array]:
    axis, lengths = call.attribute("time_axis", 0), call.integers(1)
    if not np.all((lengths >= 0) & (lengths <= call[0].shape[axis])):
        raise WrongError(f"{call.label} has a length below 0 or above the size of its time axis")
    return _moved(call)


def known(field: Field, numbers: Any) -> Array:
    """The numbers of a tensor as field elements, integers or booleans."""
    array = np.asarray(numbers)
    if array.dtype == np.bool_:
        return array
    if array.dtype.kind not in "fViu":  # kind V: narrow types that numpy does not know
        raise WrongError(f"a constant has the unsupported element type {array.dtype}")
    return array.astype(np.int64) if array.dtype.kind in "iu" else field.embed(array)


POINTWISE = (
    "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr",
    "BitwiseXor", "Ceil", "Celu", "Cos", "Cosh", "Erf", "Floor", "Gelu", "HardSwish", "IsInf", "Mish", "Pow", "PRelu",
    "Round", "Selu", "Shrink", "Sign", "Sin", "Sinh", "Sqrt", "Swish", "Tan", "Xor",
)  # fmt: skip
MOVED_BY_ONNX = (
    "Compress", "DepthToSpace", "GatherElements", "GatherND", "ReverseSequence", "ScatterElements", "ScatterND",
    "SpaceToDepth", "Trilu",
)  # fmt: skip

OPERATORS: dict[str, Operator] = {
    **dict.fromkeys(POINTWISE, pointwise), **dict.fromkeys(MOVED_BY_ONNX, _moved),
    "Abs": _unary(scalar_functions.absolute, np.abs), "Add": _elementwise(Field.add, np.add),
    "And": _elementwise(Field.multiply, np.logical_and), "Cast": _cast, "CastLike": _cast_like, "Clip": _clip,
    "Concat": _concat, "ConstantOfShape": _constant_of_shape,
    "Div": _elementwise(_quotient, _truncated), "Dropout": _dropout,
    "Einsum": _einsum, "Elu": _activation("elu", 1.0),
    "Equal": _elementwise(None, np.equal), "Exp": _function("exp"), "Expand": _expand, "Flatten": _flatten,
    "Gather": _gather, "Gemm": _gemm,
    "Greater": _elementwise(lambda field, a, b: _less(field, b, a), np.greater),
    "GreaterOrEqual": _elementwise(lambda field, a, b: _at_most(field, b, a), np.greater_equal),
    "HardSigmoid": _activation("hardsigmoid", 0.2, 0.5), "Identity": lambda call: call[0],
    "IsNaN": _function("is nan"), "LeakyRelu": _activation("leakyrelu", 0.01), "Less": _elementwise(_less, np.less),
    "LessOrEqual": _elementwise(_at_most, np.less_equal), "Log": _log,
    "MatMul": _matmul,
    "Max": _elementwise(scalar_functions.maximum, np.maximum), "Mean": _mean,
    "Min": _elementwise(scalar_functions.minimum, np.minimum), "Mod": _mod,
    "Mul": _elementwise(Field.multiply, np.multiply), "Neg": _unary(Field.negative, np.negative),
    "NonZero": _non_zero, "Not": _unary(_not, np.logical_not),
    "Or": _elementwise(_or, np.logical_or), "Pad": _pad,
    "Range": _range,
    "Reciprocal": lambda call: _inverse(call.field, call.real(0)), "Relu": _activation("relu"), "Reshape": _reshape,
    "ReverseSequence": _reverse_sequence,
    "Shape": _shape, "Sigmoid": _activation("sigmoid"), "Size": lambda call: np.array(call[0].size, np.int64),
    "Slice": _slice, "Softplus": _activation("softplus"), "Softsign": _activation("softsign"), "Split": _split,
    "Squeeze": _squeeze, "Sub": _elementwise(Field.subtract, np.subtract), "Sum": _elementwise(Field.add, np.add),
    "Tanh": _activation("tanh"), "ThresholdedRelu": _activation("thresholdedrelu", 1.0),
    "Tile": lambda call: np.tile(call[0], call.integer_list(1)),
    "Transpose": lambda call: np.transpose(call[0], call.attribute("perm")), "Unsqueeze": _unsqueeze, "Where": _where,
}  # fmt: skip
"""All supported operators except Constant, reductions, windows, recurrent operators, and operators with bodies."""
