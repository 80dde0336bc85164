"""One node with its operands, as the operator definitions read it, and the reasons why one cannot be evaluated.

Floats are field elements (uint64), integers int64, truth values bool.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from rnn_lower.builder.constants import largest_at_most
from rnn_lower.ir.walk import subgraphs
from rnn_lower.proving.exact.field import Array, Field


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
    dtype: ir.DataType = ir.DataType.FLOAT
    """The element type of the operands, as far as it is known."""

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
        if operand.ndim != 1 and (operand.ndim or self.node.op_type != "Unsqueeze"):  # onnxruntime takes one axis
            raise WrongError(f"input {index} of {self.label} has rank {operand.ndim} instead of 1")
        return [int(number) for number in operand.ravel()]

    def all_attributes(self) -> dict[str, Any]:
        """Return all attributes of the node, and mark them as read."""
        return {name: self.attribute(name) for name in self.node.attributes}

    def number(self, name: str, default: float) -> Array:
        """The exact image of a float attribute."""
        return self.field.number(float(np.float32(self.attribute(name, default))))

    def factor(self, name: str, default: float) -> Array:
        """The image of a float attribute as a constant of the element type, as which a graph may compute with it."""
        exact, is_limit = np.float32(self.attribute(name, default)), self.node.op_type == "ThresholdedRelu"
        if not np.isfinite(exact):  # an infinite factor of 0 is NaN
            raise OutOfScopeError(f"attribute '{name}' of {self.label} is {exact}")
        number = largest_at_most(float(exact), self.dtype) if is_limit else exact.astype(self.dtype.numpy())
        return self.field.number(float(number))

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


Operator = Callable[[Call], Any]
"""Returns an array, or a list of arrays for several outputs."""

NO_EFFECT = {"broadcast", "consumed_inputs", "momentum", "ratio", "seed", "stash_type"}
"""Attributes that have no effect, or affect only rounding or training."""

DEFAULTS: Mapping[str, object] = {"round_mode": "up", "saturate": 1}
"""Attributes that must have their default, with which they have no effect; onnxruntime refuses or misreads others."""


def attributes_key(node: ir.Node) -> str:
    """A text that is the same only for nodes with the same attributes, except for bodies."""

    def key(value: Any) -> Any:
        if isinstance(value, ir.TensorProtocol):
            return value.dtype, tuple(value.shape), value.tobytes()
        return [*map(key, value)] if isinstance(value, (list, tuple)) else value

    bodies = {name for name, _ in subgraphs(node)}
    return repr(sorted((name, key(each.value)) for name, each in node.attributes.items() if name not in bodies))


def check_attributes(call: Call) -> None:
    """Raise OutOfScopeError if the equation did not read an attribute that may have an effect."""
    unread = call.node.attributes.keys() - call.read - NO_EFFECT
    unread -= {name for name in unread & DEFAULTS.keys() if call.node.attributes[name].value == DEFAULTS[name]}
    if unread:
        raise OutOfScopeError(f"the proof does not support attribute '{min(unread)}' of {call.label}")


def cast_type(to: int | str) -> ir.DataType:
    """The element type that a Cast names by a number or, before opset 6, by a word."""
    try:
        return ir.DataType[to] if isinstance(to, str) else ir.DataType(to)
    except (KeyError, ValueError):
        raise WrongError(f"a Cast names the unknown element type {to!r}") from None


def known(field: Field, numbers: Any) -> Array:
    """The numbers of a tensor as field elements, integers or booleans."""
    array = np.asarray(numbers)
    if array.dtype == np.bool_:
        return array
    if array.dtype.kind not in "fViu":  # kind V: narrow types that numpy does not know
        raise WrongError(f"a constant has the unsupported element type {array.dtype}")
    return array.astype(np.int64) if array.dtype.kind in "iu" else field.embed(array)
