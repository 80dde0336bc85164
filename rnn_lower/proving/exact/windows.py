"""Convolutions, pooling and Resize on field elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx import helper

from rnn_lower.ir.walk import constant
from rnn_lower.proving.exact.call import Call, Operator, OutOfScopeError, WrongError
from rnn_lower.proving.exact.field import Array, Field
from rnn_lower.proving.exact.reductions import average, largest
from rnn_lower.proving.exact.scalar_functions import absolute
from rnn_lower.transforms.evaluate import evaluate
from rnn_lower.transforms.reference_windows import EVERYTHING, extents_of, sliding, windows_of

ZERO = np.zeros((), np.uint64)


class SmallInputError(WrongError):
    """A window does not fit its input or its padding."""


def _numbers(call: Call, name: str, default: int, count: int) -> list[int]:
    return list(call.attribute(name, None) or [default] * count)


def _windows(call: Call, x: Array, kernel: Sequence[int], fill: Any, behind: Any = None) -> Array:
    """Return the windows of an input [N, C, positions ..., kernel ...]; see `windows_of`."""
    auto = call.attribute("auto_pad", "NOTSET") or "NOTSET"
    if auto not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise WrongError(f"{call.label} has the unknown auto_pad '{auto}'")
    strides, dilations = (_numbers(call, name, 1, x.ndim - 2) for name in ("strides", "dilations"))
    is_wide = any(s > r for s, r in zip(strides, extents_of(kernel, dilations), strict=True))
    if "SAME" in auto and (is_wide or (max(dilations, default=1) > 1 and "Pool" in call.node.op_type)):
        raise OutOfScopeError(f"{call.label} has an auto_pad for dilations or strides, where runtimes pad differently")
    pads = call.attribute("pads")
    sides = zip(pads or (), (*kernel, *kernel), strict=False)
    if "Pool" in call.node.op_type and any(pad >= size for pad, size in sides):
        raise SmallInputError("the pads are not smaller than the kernel")
    try:
        return np.asarray(windows_of(
            x, kernel, fill, behind, strides=strides, dilations=dilations, pads=pads, auto_pad=auto,
            ceil_mode=call.attribute("ceil_mode", 0),
        ))  # fmt: skip
    except ValueError:
        raise SmallInputError("the window of a pooling or convolution operator is larger than its input") from None


def _with_bias(call: Call, y: Array) -> Array:
    return y if call.optional(2) is None else call.field.add(y, call.real(2).reshape(-1, *[1] * (y.ndim - 2)))


def _weights(call: Call) -> Array:
    weights = call.real(1)
    if tuple(call.attribute("kernel_shape", weights.shape[2:])) != weights.shape[2:]:
        raise WrongError(f"the kernel_shape of {call.label} does not match its weights")
    return weights


def _conv(call: Call) -> Array:
    x, weights = call.real(0), _weights(call)
    windows = _windows(call, x, weights.shape[2:], ZERO)
    return _with_bias(call, _convolved(call.field, windows, weights, call.attribute("group", 1)))


def _convolved(field: Field, windows: Array, weights: Array, group: int) -> Array:
    count = weights.ndim - 2
    if windows.shape[1] != weights.shape[1] * group or len(weights) % group:
        raise WrongError(
            f"a convolution has {windows.shape[1]} input channels, but its weights of shape "
            f"{list(weights.shape)} need a different number"
        )
    positions, parts = windows.shape[2 : 2 + count], []
    for inputs, kernels in zip(np.split(windows, group, 1), np.split(weights, group), strict=True):
        rows = np.moveaxis(inputs, 1, 1 + count).reshape(len(inputs), *positions, kernels[0].size)
        parts.append(field.matmul(rows, kernels.reshape(len(kernels), -1).T))
    return np.moveaxis(np.concatenate(parts, -1), -1, 1)


def _conv_transpose(call: Call) -> Array:
    """A transposed convolution: a convolution of x with zeros between its elements."""
    x, weights, group = call.real(0), _weights(call), call.attribute("group", 1)
    count = x.ndim - 2
    strides, dilations, extra = (
        _numbers(call, *attribute, count) for attribute in (("strides", 1), ("dilations", 1), ("output_padding", 0))
    )
    if call.attribute("output_shape") or call.attribute("auto_pad", "NOTSET") not in ("NOTSET", "VALID", ""):
        raise OutOfScopeError(
            f"{call.label} sets the attribute 'output_shape' or 'auto_pad', which the proof does not support"
        )
    pads, extent = _numbers(call, "pads", 0, 2 * count), extents_of(weights.shape[2:], dilations)
    sizes = (max(0, (n - 1) * s + 1) for n, s in zip(x.shape[2:], strides, strict=True))
    wide = np.zeros((*x.shape[:2], *sizes), np.uint64)
    wide[(*EVERYTHING, *(slice(None, None, s) for s in strides))] = x
    wide = np.pad(wide, [(0, 0), (0, 0), *((r - 1, r - 1 + e) for r, e in zip(extent, extra, strict=True))])
    flipped = np.flip(weights, tuple(range(2, weights.ndim)))
    kernels = np.concatenate([part.swapaxes(0, 1) for part in np.split(flipped, group)])
    y = _convolved(call.field, sliding(wide, extent, [1] * count, dilations), kernels, group)
    crops = [slice(pads[k], y.shape[2 + k] - pads[k + count]) for k in range(count)]
    return _with_bias(call, y[(*EVERYTHING, *crops)])


def _max_pool(call: Call) -> Array:
    call.attribute("storage_order")  # which only affects the output 'Indices'
    if len(call.node.outputs) > 1:
        raise OutOfScopeError(f"the model uses the output 'Indices' of {call.label}, which the proof does not support")
    windows = _windows(call, call.real(0), call.attribute("kernel_shape"), call.field.symbol(-np.inf))
    return largest(call.field, windows, tuple(range(call[0].ndim, windows.ndim)), False)


def _average_pool(call: Call) -> Array:
    x, field, kernel = call.real(0), call.field, call.attribute("kernel_shape")
    windows = _windows(call, x, kernel, ZERO)
    axes, there = tuple(range(x.ndim, windows.ndim)), np.ones((1, 1, *x.shape[2:]), bool)
    counts = _windows(call, there, kernel, bool(call.attribute("count_include_pad", 0)), False).sum(axes)
    return field.multiply(field.total(windows, axes), field.inverse(field.integers(counts)))


def _lp_pool(call: Call) -> Array:
    """The p-th root of the sum of the p-th powers of magnitudes."""
    x, field, p, is_global = call.real(0), call.field, call.attribute("p", 2), call.node.op_type == "GlobalLpPool"
    windows = x if is_global else _windows(call, x, call.attribute("kernel_shape"), ZERO)
    axes = tuple(range(2 if is_global else x.ndim, windows.ndim))
    if p == 1:
        return field.total(absolute(field, windows), axes, is_global)
    powers = field.multiply(windows, windows) if p == 2 else field.function(f"power {p}", windows)
    return field.function("sqrt" if p == 2 else f"root {p}", field.total(powers, axes, is_global))


def _global(reduce: Callable[..., Array]) -> Operator:
    return lambda call: reduce(call.field, call.real(0), tuple(range(2, call[0].ndim)), True)


def _resize(call: Call) -> Array:
    """A Resize, as one matrix product per axis."""
    x, sizes, scales = call.real(0), call.optional(3), call.optional(2)
    attributes = call.all_attributes()  # marks them as read; `_resized_units` passes them on
    axes = [axis % x.ndim for axis in attributes.get("axes") or range(x.ndim)]
    if call.opset < 11 or call.attribute("coordinate_transformation_mode", "") == "tf_crop_and_resize":
        raise OutOfScopeError(
            f"{call.label} is a Resize from before opset 11, or resizes only a region; the proof supports neither"
        )
    if call.attribute("keep_aspect_ratio_policy", "stretch") != "stretch" or call.attribute("antialias", 0):
        raise OutOfScopeError(f"{call.label} keeps the aspect ratio or uses antialiasing; the proof supports neither")
    factors = None
    if sizes is None and scales is not None and scales.size:
        factors = constant(call.node.inputs[2])
        if factors is None:
            raise OutOfScopeError(f"the scales of {call.label} are not constant, which the proof does not support")
    for index, axis in enumerate(axes):
        size, to = x.shape[axis], None
        if sizes is not None and int(sizes[index]) != size:
            to = np.array([size, sizes[index]], np.int64)
        elif factors is not None and factors[index] != 1:
            to = np.array([1, factors[index]], np.float32)
        if to is not None:
            if to[1] % to[0]:  # onnx's evaluator and runtimes place the elements differently
                raise OutOfScopeError(f"{call.label} resizes an axis from {to[0]} to {to[1]}")
            matrix = call.field.embed(_resized_units(call, size, to))
            x = np.moveaxis(call.field.matmul(np.moveaxis(x, axis, -1), matrix), -1, axis)
    return x


def _resized_units(call: Call, size: int, to: Array) -> Array:
    """The Resize of unit vectors. to: sizes if integers, else scales."""
    inputs = ["x", "", "to"] if to.dtype == np.float32 else ["x", "", "", "to"]
    node = helper.make_node("Resize", inputs, ["y"])
    attributes = (each for key, each in call.node.attributes.items() if key not in ("axes", "extrapolation_value"))
    node.attribute.extend(ir.to_proto(attribute) for attribute in attributes)
    feeds: dict[str, Any] = {"x": np.eye(size, dtype=np.float32), "to": to}
    return evaluate([node], feeds, ["y"], [helper.make_opsetid("", call.opset)], also=["Resize"])[0]


WINDOWS: dict[str, Operator] = {
    "AveragePool": _average_pool, "Conv": _conv, "ConvTranspose": _conv_transpose,
    "GlobalAveragePool": _global(average), "GlobalLpPool": _lp_pool, "GlobalMaxPool": _global(largest),
    "LpPool": _lp_pool, "MaxPool": _max_pool, "Resize": _resize,
}  # fmt: skip
