"""Values known at lowering time: folded lazily, deduplicated by content, evaluated when the model is written."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from rnn_lower.builder.names import Names
from rnn_lower.ir.walk import Scope

EAGER_BYTES = 1024
"""Constants up to this size are evaluated at once; larger constants stay lazy, so that weights do not occupy memory."""


@dataclasses.dataclass(frozen=True, eq=False)
class Constant:
    """A tensor known at lowering time.

    key: a digest of its derivation; equal keys mean equal values, so that nodes share one weight.
    load: computes the array at each call and caches nothing.
    name: the suggested name of its value.  sources: identities of the tensors that it is computed from.
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
    """Return a small literal: a number or a list of numbers."""
    array = np.asarray(value).astype(dtype.numpy())
    return Constant(_key("literal", dtype, array.shape, array.tobytes()), array.shape, dtype, lambda: array, name)


def largest_at_most(number: float, dtype: ir.DataType) -> np.ndarray:
    """The largest number of an element type that is not larger than this one."""
    nearest: np.ndarray = np.asarray(number).astype(dtype.numpy())
    return nearest if float(nearest) <= number else np.nextafter(nearest, nearest.dtype.type(-np.inf))


def from_tensor(tensor: ir.TensorProtocol) -> Constant:
    """Return the constant of an initializer or a Constant node; its data stays in memory or in its file."""
    key, shape = _key("tensor", id(tensor)), tuple(tensor.shape.numpy())
    return Constant(key, shape, tensor.dtype, tensor.numpy, sources=frozenset((id(tensor),)))


def filled(value: float, shape: tuple[int, ...], dtype: ir.DataType) -> Constant:
    """Return a constant whose elements are all equal."""
    return Constant(
        _key("filled", value, shape, dtype), shape, dtype, lambda: np.full(shape, value, dtype.numpy()), "filled"
    )


def fold(
    what: tuple[Any, ...], compute: Callable[..., np.ndarray], *operands: Constant, name: str,
    shape: Sequence[int] | None = None, dtype: ir.DataType | None = None,
) -> Constant:  # fmt: skip
    """Return the constant that a numpy function computes from constants when the model is written.

    what: the function and its parameters, to identify equal constants.
    shape: of the result; None if `compute` only moves elements, so that its shape is known without data.
    """

    def load() -> np.ndarray:
        with np.errstate(all="ignore"):  # weights may contain any value; inf - inf is NaN at run time as well
            arrays = {key: operand.load() for key, operand in {x.key: x for x in operands}.items()}
            return compute(*(arrays[operand.key] for operand in operands))

    if shape is None:
        shape = compute(*(np.empty(operand.shape, "V0") for operand in operands)).shape  # elements of no bytes
    key = _key(what, *(operand.key for operand in operands))
    sources = frozenset().union(*(operand.sources for operand in operands))
    return Constant(key, tuple(shape), dtype or operands[0].dtype, load, name, sources)


def negate(x: Constant, name: str) -> Constant:
    return fold(("negate",), np.negative, x, name=name, shape=x.shape)


def cast(x: Constant, dtype: ir.DataType, name: str) -> Constant:
    return fold(("cast", dtype), lambda array: array.astype(dtype.numpy()), x, name=name, shape=x.shape, dtype=dtype)


def sliced(
    x: np.ndarray, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
) -> np.ndarray:  # fmt: skip
    """Return what ONNX's Slice computes: unlike numpy, a negative step begins at an existing element."""
    axes, steps = range(len(starts)) if axes is None else axes, [1] * len(starts) if steps is None else steps
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        first = max(start, -x.shape[axis]) if step < 0 else start
        x = x[(slice(None),) * (axis % x.ndim) + (slice(first, end, step),)]
    return x


def ends_behind(shape: Sequence[int], ends: Sequence[int], axes: Sequence[int] | None, steps: Sequence[int]) -> bool:
    """Whether a backward Slice ends behind the last element, where onnxruntime does not follow ONNX."""
    bounds = zip(range(len(ends)) if axes is None else axes, ends, steps, strict=False)
    return any(step < 0 and end >= shape[axis] for axis, end, step in bounds)


MOVES: Mapping[str, Callable[..., np.ndarray]] = {
    "Concat": lambda *parts, axis: np.concatenate(parts, axis),
    "Identity": lambda x: x,
    "Reshape": lambda x, shape: np.reshape(x, [x.shape[k] if size == 0 else size for k, size in enumerate(shape)]),
    "Slice": sliced,
    "Squeeze": lambda x, axes: np.squeeze(x, tuple(axes)),
    "Transpose": lambda x, perm=None: np.transpose(x, perm),
    "Unsqueeze": lambda x, axes: np.expand_dims(x, tuple(axes)),
}
"""The operators that only move elements, with the parameters of ONNX."""


def moved(op_type: str, *operands: Constant, name: str, **parameters: Any) -> Constant:
    """Return the result of an operator of MOVES."""
    what = (op_type, sorted(parameters.items()))
    return fold(what, functools.partial(MOVES[op_type], **parameters), *operands, name=name)


class ConstantPool:
    """Turns constants into values of one graph, each content once.

    They become initializers of the main graph, or Constant nodes next to the recurrent node (as_nodes): functions have
    no initializers, and before IR version 4 every initializer must also be a graph input, but the inputs of the model
    must not change.
    """

    def __init__(self, names: Names, as_nodes: bool) -> None:
        self._names, self.as_nodes = names, as_nodes
        # Keep the constant alive with its value: keys contain the `id` of tensors, which Python could reuse.
        self._values: dict[bytes, tuple[ir.Value, Constant]] = {}

    def value(
        self, constant: Constant, name: str, write: Callable[[ir.TensorProtocol, str], ir.Value]
    ) -> ir.Value:  # fmt: skip
        """Return the value of `constant`, and create it on first use from `name` and, for a Constant node, `write`."""
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

    def forget(self, nodes: Collection[ir.Node]) -> None:
        """Forget the values of Constant nodes that were dropped."""
        self._values = {key: held for key, held in self._values.items() if held[0].producer() not in nodes}

    @property
    def initializers(self) -> list[ir.Value]:
        """The new initializers that a node reads and that are in no graph yet."""
        return [value for value in self.all_initializers if value.uses() and value.graph is None]

    @property
    def all_initializers(self) -> list[ir.Value]:
        """All new initializers, including those that no node of onnx_ir reads."""
        return [value for value, _ in self._values.values() if value.producer() is None]


class ModelConstants:
    """The constant pools of one model: one for its main graph, or one for each graph that needs Constant nodes."""

    def __init__(self, model: ir.Model, names: Names) -> None:
        self._model, self._names = model, names
        self._pools: dict[ir.Graph | ir.Function, ConstantPool] = {}

    def pool(self, scope: Scope) -> ConstantPool:
        """Return the pool for the nodes of a scope."""
        as_nodes = self._model.ir_version < 4 or scope.in_function
        owner = scope.graph if as_nodes else self._model.graph
        return self._pools.setdefault(owner, ConstantPool(self._names, as_nodes))

    @property
    def initializers(self) -> list[ir.Value]:
        """The new initializers that a node reads and that are in no graph yet."""
        return [value for pool in self._pools.values() for value in pool.initializers]

    def register(self) -> None:
        """Add the new initializers to the main graph."""
        for value in self.initializers:
            self._model.graph.register_initializer(value)


def _tensor(constant: Constant, name: str) -> ir.TensorProtocol:
    if constant.size * constant.dtype.itemsize <= EAGER_BYTES:
        return ir.tensor(np.ascontiguousarray(constant.load()).reshape(constant.shape), dtype=constant.dtype, name=name)
    return ir.LazyTensor(
        lambda: ir.Tensor(np.ascontiguousarray(constant.load()), dtype=constant.dtype, name=name),
        dtype=constant.dtype,
        shape=ir.Shape(constant.shape),
        name=name,
    )
