"""Kernels of operators before opset 7 for onnx's evaluator, which treats many of them like later versions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

from rnn_lower.transforms.reference_operators import attributes_of, operator

Array = np.ndarray


def _binary(function: Callable[[Array, Array], Array]) -> Callable[..., Array]:
    def run(a: Array, b: Array, axis: int | None = None, broadcast: int = 0, **_: Any) -> Array:
        if broadcast and axis is not None:
            b = b.reshape(b.shape + (1,) * (a.ndim - (axis % a.ndim) - b.ndim))
        elif not broadcast and a.shape != b.shape:
            raise ValueError(f"the shapes {a.shape} and {b.shape} differ, but attribute broadcast is not set")
        result = function(a, b)
        return result if result.dtype == bool else result.astype(a.dtype)

    return run


def _unary(function: Callable[[Array], Array]) -> Callable[..., Array]:
    return lambda x, **_: np.asarray(function(x)).astype(x.dtype)


def _divide(a: Array, b: Array) -> Array:
    return np.asarray(a / b if a.dtype.kind == "f" else (a - np.fmod(a, b)) // b)


def _cast(x: Array, to: Any = None, **_: Any) -> Array:
    dtype = onnx.TensorProto.DataType.Value(to.upper()) if isinstance(to, str) else to
    return x.astype(onnx.helper.tensor_dtype_to_np_dtype(dtype))


def _reshape(x: Array, shape_input: Array | None = None, shape: Any = None, **_: Any) -> Array:
    sizes = [int(size) for size in (shape if shape_input is None else shape_input)]
    return x.reshape([x.shape[index] if size == 0 else size for index, size in enumerate(sizes)])


def _clip(x: Array, min: float | None = None, max: float | None = None, **_: Any) -> Array:
    return np.asarray(np.clip(x, -np.inf if min is None else min, np.inf if max is None else max), x.dtype)


def _split(x: Array, sizes: Array | None = None, axis: int = 0, split: Any = None, outputs: int = 1) -> list[Array]:
    each = sizes if sizes is not None else split
    return np.split(x, outputs if not len(each if each is not None else ()) else np.cumsum(each)[:-1], axis or 0)


KERNELS: dict[str, Callable[..., Any]] = {
    "Add": _binary(np.add), "Sub": _binary(np.subtract), "Mul": _binary(np.multiply), "Div": _binary(_divide),
    "Pow": _binary(np.power), "Less": _binary(np.less), "Greater": _binary(np.greater), "Equal": _binary(np.equal),
    "And": _binary(np.logical_and), "Or": _binary(np.logical_or),
    "Abs": _unary(np.abs), "Ceil": _unary(np.ceil), "Exp": _unary(np.exp), "Floor": _unary(np.floor),
    "Log": _unary(np.log), "Neg": _unary(np.negative), "Reciprocal": _unary(np.reciprocal), "Sqrt": _unary(np.sqrt),
    "Relu": _unary(lambda x: np.maximum(x, 0)), "Sigmoid": _unary(lambda x: 1 / (1 + np.exp(-x.astype(np.float64)))),
    "Tanh": _unary(np.tanh),
    "Max": lambda *values, **_: np.maximum.reduce(values), "Min": lambda *values, **_: np.minimum.reduce(values),
    "Sum": lambda *values, **_: np.add.reduce(values),
    "Concat": lambda *values, axis=None, **_: np.concatenate(values, 1 if axis is None else axis),
    "Cast": _cast, "Clip": _clip, "Reshape": _reshape, "Split": _split,
    "Dropout": lambda x, **_: x,
}  # fmt: skip


def _run(node: onnx.NodeProto, *inputs: Array | None) -> list[Array]:
    attributes = attributes_of(node)
    if node.op_type == "Split":
        attributes["outputs"] = len(node.output)
    results = KERNELS[node.op_type](*inputs, **attributes)
    return results if isinstance(results, list) else [results]


OLD_OPERATORS = tuple(operator(op_type, _run) for op_type in KERNELS)
