"""Values known at lowering time: folded lazily, shared by content, evaluated when the model is written."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from rnn_lower.builder.names import Names

EAGER_BYTES = 1024
"""Constants up to this size are evaluated at once; larger ones stay lazy, so that weights are not held in memory."""


@dataclasses.dataclass(frozen=True, eq=False)
class Constant:
    """A tensor known now.

    key: a digest of how it was made; equal keys mean equal values, which is how one weight serves several nodes.
    load: computes the array anew at each call and keeps nothing.
    name: what it holds, for the value that it may become.  sources: identities of the tensors that it is made of.
    """

    key: bytes
    shape: tuple[int, ...]
    dtype: ir.DataType
    load: Callable[[], np.ndarray]
    name: str = "constant"
    sources: frozenset[int] = frozenset()

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def _key(*parts: Any) -> bytes:
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).digest()


def constant(value: Any, dtype: ir.DataType, name: str = "constant") -> Constant:
    """A small literal: a number or a list of numbers."""
    array = np.asarray(value).astype(dtype.numpy())
    return Constant(_key("literal", dtype, array.shape, array.tobytes()), array.shape, dtype, lambda: array, name)


def from_tensor(tensor: ir.TensorProtocol) -> Constant:
    """The constant behind an initializer or a Constant node; its data stays where it is (memory, file)."""
    key, shape = _key("tensor", id(tensor)), tuple(tensor.shape.numpy())
    return Constant(key, shape, tensor.dtype, tensor.numpy, sources=frozenset((id(tensor),)))


def filled(value: float, shape: tuple[int, ...], dtype: ir.DataType) -> Constant:
    """A constant with one value everywhere."""
    return Constant(
        _key("filled", value, shape, dtype), shape, dtype, lambda: np.full(shape, value, dtype.numpy()), "filled"
    )


def fold(
    what: tuple[Any, ...], compute: Callable[..., np.ndarray], *operands: Constant, shape: Sequence[int],
    name: str, dtype: ir.DataType | None = None,
) -> Constant:  # fmt: skip
    """The constant that a numpy function makes of constants, computed when the model is written.

    what: the function and its parameters, by which equal constants are found.  shape: that of the result.
    """

    def load() -> np.ndarray:
        with np.errstate(all="ignore"):  # weights may hold anything; inf - inf is NaN at run time as well
            arrays = {
                operand.key: operand.load()
                for operand in {operand_of_key.key: operand_of_key for operand_of_key in operands}.values()
            }
            return compute(*(arrays[operand.key] for operand in operands))

    key = _key(what, *(operand.key for operand in operands))
    sources = frozenset().union(*(operand.sources for operand in operands))
    return Constant(key, tuple(shape), dtype or operands[0].dtype, load, name, sources)


WriteConstant = Callable[[ir.TensorProtocol, str], ir.Value]
"""Writes a Constant node of a name."""


class ConstantPool:
    """Turns constants into values of one graph, each content once.

    They become initializers of the main graph. Where that is impossible (as_nodes) they become Constant nodes beside
    the recurrent node: functions have no initializers, and before IR version 4 every initializer must also be a graph
    input, but the inputs of the model are not ours to change.
    """

    def __init__(self, names: Names, as_nodes: bool) -> None:
        self._names, self.as_nodes = names, as_nodes
        # The constant is kept with its value: keys hold the identity of tensors, which must not be used again.
        self._values: dict[bytes, tuple[ir.Value, Constant]] = {}

    def value(self, constant: Constant, name: str, write: WriteConstant) -> ir.Value:
        """The value that holds `constant`; `name`, and `write` for a Constant node, serve when it is not there yet."""
        if constant.key not in self._values:
            name = self._names.unique(name)
            tensor = _tensor(constant, name)
            if self.as_nodes:
                value = write(tensor, name)
            else:
                shape = ir.Shape(constant.shape)
                value = ir.Value(name=name, const_value=tensor, type=ir.TensorType(tensor.dtype), shape=shape)
            self._values[constant.key] = value, constant
        return self._values[constant.key][0]

    def adopt(self, constant: Constant, value: ir.Value) -> None:
        """Represent the constant by this existing value of the model from now on."""
        self._values.setdefault(constant.key, (value, constant))

    @property
    def initializers(self) -> list[ir.Value]:
        """The values that are to become initializers of the main graph: those that a node reads."""
        return [value for value in self.all_initializers if value.uses() and value.graph is None]

    @property
    def all_initializers(self) -> list[ir.Value]:
        """The same with those that no node of onnx_ir reads."""
        return [value for value, _ in self._values.values() if value.producer() is None]


def _tensor(constant: Constant, name: str) -> ir.TensorProtocol:
    if constant.size * constant.dtype.itemsize <= EAGER_BYTES:
        return ir.tensor(np.ascontiguousarray(constant.load()).reshape(constant.shape), dtype=constant.dtype, name=name)
    return ir.LazyTensor(
        lambda: ir.Tensor(np.ascontiguousarray(constant.load()), dtype=constant.dtype, name=name),
        dtype=constant.dtype,
        shape=ir.Shape(constant.shape),
        name=name,
    )
