"""What the operators of whole models compute on field elements: windows, sums, normalization, and pointwise functions.

`operators` has what a lowering emits, as strictly as a lowering needs it; here stands the rest of what ONNX says of
operators that streaming knows. A pointwise function that is no polynomial is a random one, named by its operator and
attributes; the same stands for ArgMax and its like, which go by the order of the elements as numbers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx import helper

from rnn_lower.proving import algebraic_patterns, scalar_functions
from rnn_lower.proving.field import Array, Field
from rnn_lower.proving.operators import OPERATORS, Call, Operator, OutOfScopeError, WrongError
from rnn_lower.transforms.evaluate import evaluate

ZERO = np.zeros((), np.uint64)


def _elements(call: Call) -> list[Array]:
    """The operands as field elements."""
    arrays = [array for array in call.inputs if array is not None]
    return [array if array.dtype == np.uint64 else call.field.integers(array) for array in arrays]


def _named(node: ir.Node) -> str:
    attributes = sorted((name, repr(attribute.value)) for name, attribute in node.attributes.items())
    return f"{node.op_type} {attributes}"


def _pointwise(call: Call) -> Array:
    """A random function of the elements at each place."""
    name, (first, *others) = _named(call.node), _elements(call)
    result = call.field.function(name, first)
    for other in others:
        result = call.field.function(name, call.field.add(call.field.function("next", result), other))
    return result


def _folded(real: Callable[[Field, Array, Array], Array], whole: Callable[[Array, Array], Array]) -> Operator:
    """A function of two operands, which takes any number of them from the left."""

    def run(call: Call) -> Array:
        arrays = [call[place] for place in range(len(call.inputs))]
        if all(array.dtype != np.uint64 for array in arrays):
            return np.asarray(functools.reduce(whole, arrays))
        return functools.reduce(functools.partial(real, call.field), _elements(call))

    return run


def _truncated(a: Array, b: Array) -> Array:
    if not np.all(b):
        raise WrongError("Div of integers by zero")
    quotient = np.abs(a) // np.abs(b)
    return np.asarray(np.where((a < 0) == (b < 0), quotient, -quotient), np.int64)


def _both(field: Field, a: Array, b: Array) -> Array:
    return field.multiply(a, b)


def _either(field: Field, a: Array, b: Array) -> Array:
    return field.subtract(field.add(a, b), field.multiply(a, b))


def _mean(call: Call) -> Array:
    total = functools.reduce(call.field.add, _elements(call))
    return call.field.multiply(total, call.field.inverse(call.field.integers(np.array(len(call.inputs)))))


def _equal(call: Call) -> Array:
    a, b = call[0], call[1]
    return np.asarray(a == b) if a.dtype != np.uint64 else _pointwise(call)


def _mod(call: Call) -> Array:
    if call[0].dtype != np.int64:
        return _pointwise(call)
    return np.asarray((np.fmod if call.attribute("fmod", 0) else np.mod)(call[0], call[1]))


def _abs(call: Call) -> Array:
    return np.abs(call[0]) if call[0].dtype == np.int64 else scalar_functions.absolute(call.field, call.real(0))


def _neg(call: Call) -> Array:
    return -call[0] if call[0].dtype == np.int64 else call.field.negative(call.real(0))


def _clip(call: Call) -> Array:
    if call[0].dtype == np.int64:
        low, high = (call.inputs[place] if place < len(call.inputs) else None for place in (1, 2))
        return np.asarray(np.clip(call[0], low, high))
    return OPERATORS["Clip"](call) if len(call.inputs) < 3 else _pointwise(call)


# -- products ----------------------------------------------------------------------------------------------------------


def _matmul(call: Call) -> Array:
    return stacked_product(call.field, call.real(0), call.real(1))


def stacked_product(field: Field, a: Array, b: Array) -> Array:
    """MatMul of any ranks."""
    rows, columns = a.ndim == 1, b.ndim == 1
    a, b = a[None] if rows else a, b[:, None] if columns else b
    if a.shape[-1] != b.shape[-2]:
        raise WrongError(f"MatMul of shapes {a.shape} and {b.shape}")
    if b.ndim == 2:
        found = field.matmul(a, b)
    else:
        heads = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        a, b = np.broadcast_to(a, (*heads, *a.shape[-2:])), np.broadcast_to(b, (*heads, *b.shape[-2:]))
        made = [field.matmul(a[place], b[place]) for place in np.ndindex(heads)]
        found = np.array(made, np.uint64).reshape(*heads, a.shape[-2], b.shape[-1])
    found = found[..., 0, :] if rows else found
    return found[..., 0] if columns else found


def _gemm(call: Call) -> Array:
    a, b = (
        call.real(place).T if call.attribute(name, 0) else call.real(place)
        for place, name in ((0, "transA"), (1, "transB"))
    )
    product = call.field.multiply(stacked_product(call.field, a, b), call.number("alpha", 1.0))
    if len(call.inputs) < 3 or call.inputs[2] is None:
        return product
    return call.field.add(product, call.field.multiply(call.real(2), call.number("beta", 1.0)))


def _einsum(call: Call) -> Array:
    equation = call.attribute("equation")
    equation = (equation.decode() if isinstance(equation, bytes) else str(equation)).replace(" ", "")
    left, arrow, made = equation.partition("->")
    terms = left.split(",")
    if "." in equation or any(len(set(term)) < len(term) for term in terms):
        raise OutOfScopeError("Einsum with an ellipsis or a diagonal")
    if not arrow:
        made = "".join(sorted(label for label in set(left) - {","} if left.count(label) == 1))
    labels = made + "".join(sorted(set(left) - {","} - set(made)))
    spread = []
    for place, term in enumerate(terms):
        x = call.real(place).transpose([term.index(label) for label in labels if label in term])
        spread.append(
            x.reshape(
                [x.shape[[k for k in labels if k in term].index(label)] if label in term else 1 for label in labels]
            )
        )
    return _total(
        call.field, functools.reduce(call.field.multiply, spread), tuple(range(len(made), len(labels))), False
    )


# -- windows -----------------------------------------------------------------------------------------------------------


def _pads(call: Call, sizes: Sequence[int], reach: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    auto = call.attribute("auto_pad", "NOTSET") or "NOTSET"
    count = len(sizes)
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        sums = [max((-(-n // s) - 1) * s + r - n, 0) for n, r, s in zip(sizes, reach, strides, strict=True)]
        return [(n // 2, n - n // 2) if auto == "SAME_UPPER" else (n - n // 2, n // 2) for n in sums]
    pads = call.attribute("pads", None) if auto == "NOTSET" else None
    return list(zip(pads[:count], pads[count:], strict=True)) if pads else [(0, 0)] * count


def _windows(call: Call, x: Array, kernel: Sequence[int], fill: Array) -> Array:
    """[N, C, places ..., kernel ...]"""
    count = x.ndim - 2
    strides, dilations = (call.attribute(name, None) or [1] * count for name in ("strides", "dilations"))
    if call.attribute("ceil_mode", 0):
        raise OutOfScopeError(f"{call.node.op_type} with ceil_mode")
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    pads = _pads(call, x.shape[2:], reach, strides)
    x = np.pad(x, [(0, 0), (0, 0), *pads], constant_values=fill)
    return _sliding(x, reach, strides, dilations)


def _sliding(x: Array, reach: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> Array:
    if any(n < r for n, r in zip(x.shape[2:], reach, strict=True)):
        raise WrongError("a window that is larger than its input")
    found = np.lib.stride_tricks.sliding_window_view(x, reach, tuple(range(2, x.ndim)))
    steps = [slice(None, None, step) for step in (*strides, *dilations)]
    return np.asarray(found[(slice(None), slice(None), *steps)])


def _with_bias(call: Call, y: Array) -> Array:
    if len(call.inputs) < 3 or call.inputs[2] is None:
        return y
    return call.field.add(y, call.real(2).reshape(-1, *[1] * (y.ndim - 2)))


def _conv(call: Call) -> Array:
    x, weights = call.real(0), call.real(1)
    return _with_bias(
        call, _convolved(call.field, _windows(call, x, weights.shape[2:], ZERO), weights, call.attribute("group", 1))
    )


def _convolved(field: Field, windows: Array, weights: Array, group: int) -> Array:
    count = weights.ndim - 2
    if windows.shape[1] != weights.shape[1] * group or len(weights) % group:
        raise WrongError(f"Conv of {windows.shape[1]} channels with weights of shape {list(weights.shape)}")
    places, parts = windows.shape[2 : 2 + count], []
    for inputs, kernels in zip(np.split(windows, group, 1), np.split(weights, group), strict=True):
        rows = np.moveaxis(inputs, 1, 1 + count).reshape(len(inputs), *places, kernels[0].size)
        parts.append(field.matmul(rows, kernels.reshape(len(kernels), -1).T))
    return np.moveaxis(np.concatenate(parts, -1), -1, 1)


def _conv_transpose(call: Call) -> Array:
    x, weights, group = call.real(0), call.real(1), call.attribute("group", 1)
    count = x.ndim - 2
    strides, dilations, extra = (
        call.attribute(name, None) or [default] * count
        for name, default in (("strides", 1), ("dilations", 1), ("output_padding", 0))
    )
    if call.attribute("output_shape") or call.attribute("auto_pad", "NOTSET") not in ("NOTSET", "VALID", ""):
        raise OutOfScopeError("ConvTranspose with output_shape or auto_pad")
    pads = call.attribute("pads", None) or [0] * 2 * count
    reach = [(k - 1) * d + 1 for k, d in zip(weights.shape[2:], dilations, strict=True)]
    wide = np.zeros(
        (*x.shape[:2], *(max(0, (n - 1) * s + 1) for n, s in zip(x.shape[2:], strides, strict=True))), np.uint64
    )
    wide[(slice(None), slice(None), *(slice(None, None, s) for s in strides))] = x
    wide = np.pad(wide, [(0, 0), (0, 0), *((r - 1, r - 1 + e) for r, e in zip(reach, extra, strict=True))])
    flipped = np.flip(weights, tuple(range(2, weights.ndim)))
    kernels = np.concatenate([part.swapaxes(0, 1) for part in np.split(flipped, group)])
    y = _convolved(call.field, _sliding(wide, reach, [1] * count, dilations), kernels, group)
    crops = [slice(pads[k], y.shape[2 + k] - pads[k + count]) for k in range(count)]
    return _with_bias(call, y[(slice(None), slice(None), *crops)])


def _max_pool(call: Call) -> Array:
    if len(call.node.outputs) > 1:
        raise OutOfScopeError("MaxPool with indices")
    nothing = call.field.embed(np.float32(-np.inf))
    windows = _windows(call, call.real(0), call.attribute("kernel_shape"), nothing)
    return _largest(call.field, windows.reshape(*windows.shape[: call[0].ndim], -1))


def _largest(field: Field, x: Array) -> Array:
    """Of the last axis, without what stands for minus infinity."""
    nothing = field.embed(np.float32(-np.inf))

    def larger(a: Array, b: Array) -> Array:
        return np.where(b == nothing, a, np.where(a == nothing, b, scalar_functions.maximum(field, a, b)))

    return functools.reduce(larger, np.moveaxis(x, -1, 0))


def _average_pool(call: Call) -> Array:
    x, kernel = call.real(0), call.attribute("kernel_shape")
    windows = _windows(call, x, kernel, ZERO)
    axes = tuple(range(x.ndim, windows.ndim))
    total = _total(call.field, windows, axes, False)
    counts = np.full(total.shape, math.prod(kernel))
    if not call.attribute("count_include_pad", 0):
        counts = _windows(call, np.ones_like(x), kernel, ZERO).sum(axes)
    return call.field.multiply(total, call.field.inverse(call.field.integers(counts)))


def _global(reduce: Callable[[Field, Array, tuple[int, ...], bool], Array]) -> Operator:
    return lambda call: reduce(call.field, call.real(0), tuple(range(2, call[0].ndim)), True)


# -- reductions and normalization --------------------------------------------------------------------------------------


def _total(field: Field, x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    return np.asarray(x.sum(axis=axes, dtype=np.uint64, keepdims=keepdims) % np.uint64(field.prime))


def _average(field: Field, x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    count = math.prod(x.shape[axis] for axis in axes)
    return field.multiply(_total(field, x, axes, keepdims), field.inverse(field.integers(np.array(count))))


def _along(function: Callable[[Field, Array], Array]) -> Callable[[Field, Array, tuple[int, ...], bool], Array]:
    """A reduction of the last axis, along others."""

    def reduce(field: Field, x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
        rest = [axis for axis in range(x.ndim) if axis not in axes]
        found = function(field, x.transpose([*rest, *axes]).reshape(*(x.shape[axis] for axis in rest), -1))
        return np.expand_dims(found, axes) if keepdims else found

    return reduce


def _product(field: Field, x: Array) -> Array:
    return functools.reduce(field.multiply, np.moveaxis(x, -1, 0))


def _squares(field: Field, x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    return _total(field, field.multiply(x, x), axes, keepdims)


def _magnitudes(field: Field, x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    return _total(field, scalar_functions.absolute(field, x), axes, keepdims)


def _exponentials(field: Field, x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    return _total(field, field.function("exp", x), axes, keepdims)


def _smallest(field: Field, x: Array) -> Array:
    return functools.reduce(functools.partial(scalar_functions.minimum, field), np.moveaxis(x, -1, 0))


REDUCTIONS: dict[str, tuple[Callable[[Field, Array, tuple[int, ...], bool], Array], str, Any]] = {
    "ReduceSum": (_total, "", np.sum), "ReduceMean": (_average, "", None), "ReduceMax": (_along(_largest), "", np.max),
    "ReduceMin": (_along(_smallest), "", np.min), "ReduceProd": (_along(_product), "", np.prod),
    "ReduceL1": (_magnitudes, "", None), "ReduceL2": (_squares, "sqrt", None), "ReduceLogSum": (_total, "log", None),
    "ReduceLogSumExp": (_exponentials, "log", None), "ReduceSumSquare": (_squares, "", None),
}  # fmt: skip
"""How field elements are reduced, a function of the result, and how integers are."""


def _reduction(call: Call) -> Array:
    reduce, after, whole = REDUCTIONS[call.node.op_type]
    x, axes = call[0], call.parameter("axes", 1)
    if not axes:
        if call.attribute("noop_with_empty_axes", 0):
            return x
        axes = list(range(x.ndim))
    places, keepdims = tuple(axis % x.ndim for axis in axes), bool(call.attribute("keepdims", 1))
    if x.dtype != np.uint64:
        if whole is None:
            raise OutOfScopeError(f"{call.node.op_type} of {x.dtype}")
        return np.asarray(whole(x, axis=places, keepdims=keepdims))
    found = reduce(call.field, x, places, keepdims)
    return call.field.function(after, found) if after else found


def _scaled(field: Field, x: Array, axes: tuple[int, ...], epsilon: Array, centred: bool = True) -> Array:
    """x of mean 0 and variance 1 along axes."""
    if centred:
        x = field.subtract(x, _average(field, x, axes, True))
    variance = _average(field, field.multiply(x, x), axes, True)
    return field.multiply(x, field.inverse(field.function("sqrt", field.add(variance, epsilon))))


def _affine(call: Call, x: Array, shape: Sequence[int] | None = None) -> Array:
    """x times input 1 plus input 2."""
    for place, function in ((1, call.field.multiply), (2, call.field.add)):
        given = call.inputs[place] if place < len(call.inputs) else None
        if given is not None:
            x = function(x, given if shape is None else given.reshape(shape))
    return x


def _layer_norm(call: Call) -> Array:
    x = call.real(0)
    axes = tuple(range(call.attribute("axis", -1) % x.ndim, x.ndim))
    centred = call.node.op_type == "LayerNormalization"
    return _affine(call, _scaled(call.field, x, axes, call.number("epsilon", 1e-5), centred))


def _batch_norm(call: Call) -> Array:
    x, field = call.real(0), call.field
    if call.attribute("training_mode", 0):
        raise OutOfScopeError("BatchNormalization in training mode")
    each = (-1, *[1] * (x.ndim - 2))
    scale, shift, mean, variance = (call.real(place).reshape(each) for place in range(1, 5))
    root = field.function("sqrt", field.add(variance, call.number("epsilon", 1e-5)))
    return field.add(field.multiply(field.multiply(field.subtract(x, mean), field.inverse(root)), scale), shift)


def _instance_norm(call: Call) -> Array:
    x = call.real(0)
    scaled = _scaled(call.field, x, tuple(range(2, x.ndim)), call.number("epsilon", 1e-5))
    return _affine(call, scaled, (-1, *[1] * (x.ndim - 2)))


def _group_norm(call: Call) -> Array:
    x, groups = call.real(0), call.attribute("num_groups")
    if call[1].shape != (x.shape[1],):
        raise OutOfScopeError("GroupNormalization with a scale for each group")
    parts = x.reshape(len(x), groups, -1)
    scaled = _scaled(call.field, parts, (2,), call.number("epsilon", 1e-5)).reshape(x.shape)
    return _affine(call, scaled, (-1, *[1] * (x.ndim - 2)))


def _axes_of_softmax(call: Call) -> tuple[int, ...]:
    rank = call[0].ndim
    if call.opset >= 13:
        return (call.attribute("axis", -1) % rank,)
    return tuple(range(call.attribute("axis", 1) % max(rank, 1), rank))


def _softmax(call: Call) -> Array:
    x, axes = call.real(0), _axes_of_softmax(call)
    grown = call.field.function("exp", x)
    found = call.field.multiply(grown, call.field.inverse(_total(call.field, grown, axes, True)))
    return found if call.node.op_type == "Softmax" else call.field.function("log", found)


def _lp_norm(call: Call) -> Array:
    x, axes = call.real(0), (call.attribute("axis", -1) % call[0].ndim,)
    if call.attribute("p", 2) == 1:
        size = _magnitudes(call.field, x, axes, True)
    else:
        size = call.field.function("sqrt", _squares(call.field, x, axes, True))
    return call.field.multiply(x, call.field.inverse(size))


def _arg(call: Call) -> Array:
    """The place of the largest element, as a number: one of many functions of all of them."""
    x, axis = call[0], call.attribute("axis", 0)
    if call.attribute("select_last_index", 0):
        raise OutOfScopeError(f"{call.node.op_type} with select_last_index")
    found = (np.argmax if call.node.op_type == "ArgMax" else np.argmin)(x, axis)
    return np.expand_dims(found, axis) if call.attribute("keepdims", 1) else np.asarray(found)


def _hardmax(call: Call) -> Array:
    (axis,) = _axes_of_softmax(call) if call.opset >= 13 else (call[0].ndim - 1,)
    best = np.expand_dims(np.argmax(call.real(0), axis), axis)
    places = np.arange(call[0].shape[axis]).reshape([-1 if k == axis else 1 for k in range(call[0].ndim)])
    return call.field.integers(places == best)


def _cumulative_sum(call: Call) -> Array:
    x, axis = call[0], int(call[1].ravel()[0])
    x = np.flip(x, axis) if call.attribute("reverse", 0) else x
    found = np.cumsum(x, axis, dtype=x.dtype)
    found = found - x if call.attribute("exclusive", 0) else found
    found = found % np.uint64(call.field.prime) if x.dtype == np.uint64 else found
    return np.flip(found, axis) if call.attribute("reverse", 0) else found


# -- moving elements ---------------------------------------------------------------------------------------------------


def _pad(call: Call) -> Array:
    x, mode = call[0], call.attribute("mode", "constant")
    pads = call.parameter("pads", 1) or call.attribute("paddings")
    axes = (
        [int(axis) % x.ndim for axis in call[3].ravel()]
        if len(call.inputs) > 3 and call.inputs[3] is not None
        else None
    )
    axes = list(range(x.ndim)) if axes is None else axes
    if pads is None or len(pads) != 2 * len(axes):
        raise WrongError("Pad without pads for each axis")
    fill = call[2] if len(call.inputs) > 2 and call.inputs[2] is not None else call.number("value", 0.0)
    fill = fill if x.dtype == np.uint64 or len(call.inputs) > 2 else np.zeros((), x.dtype)
    for axis, before, behind in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        x = np.take(x, range(max(0, -before), x.shape[axis] - max(0, -behind)), axis)
        sides = [(max(0, before), max(0, behind)) if k == axis else (0, 0) for k in range(x.ndim)]
        if mode == "constant":
            x = np.pad(x, sides, constant_values=fill.ravel()[0])
        else:
            x = np.pad(x, sides, mode={"reflect": "reflect", "edge": "edge", "wrap": "wrap"}[mode])  # type: ignore[call-overload]
    return x


def _slice(call: Call) -> Array:
    x, starts, ends = call[0], call.parameter("starts", 1), call.parameter("ends", 2)
    axes, steps = call.parameter("axes", 3), call.parameter("steps", 4)
    if starts is None or ends is None:
        raise WrongError("Slice without starts or ends")
    for place, axis in enumerate(range(len(starts)) if axes is None else axes):
        step, end, size = 1 if steps is None else steps[place], ends[place], x.shape[axis]
        stop = None if step < 0 and end < -size else end
        x = x[(slice(None),) * (axis % x.ndim) + (slice(starts[place], stop, step),)]
    return x


def _split(call: Call) -> list[Array]:
    if call.parameter("split", 1) is not None or call.attribute("num_outputs") is not None:
        return OPERATORS["Split"](call)  # type: ignore[no-any-return]
    return np.split(call[0], len(call.node.outputs), call.attribute("axis", 0))


def _flatten(call: Call) -> Array:
    x, axis = call[0], call.attribute("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    return (
        x.reshape(math.prod(x.shape[:axis]), -1)
        if x.size
        else x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))
    )


def _scatter_nd(call: Call) -> Array:
    if call.attribute("reduction", "none") != "none":
        raise OutOfScopeError("ScatterND with a reduction")
    result = np.array(call[0])
    result[tuple(np.moveaxis(call[1], -1, 0))] = call[2]
    return result


def _gather_nd(call: Call) -> Array:
    if call.attribute("batch_dims", 0):
        raise OutOfScopeError("GatherND with batch_dims")
    return np.asarray(call[0][tuple(np.moveaxis(call[1], -1, 0))])


def _expand(call: Call) -> Array:
    x, shape = call[0], [int(size) for size in call[1]]
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(shape)))


def _resize(call: Call) -> Array:
    """Each axis is a product with a matrix of its own."""
    x = call.real(0)
    sizes, scales = ([*call.inputs, None, None, None, None][place] for place in (3, 2))
    axes = [axis % x.ndim for axis in call.attribute("axes", None) or range(x.ndim)]
    if call.opset < 11 or call.attribute("coordinate_transformation_mode", "") == "tf_crop_and_resize":
        raise OutOfScopeError("Resize before opset 11, or of a region")
    if call.attribute("keep_aspect_ratio_policy", "stretch") != "stretch" or call.attribute("antialias", 0):
        raise OutOfScopeError("Resize that keeps the aspect ratio, or with antialias")
    factors = None if scales is None or not scales.size else _constant_floats(call, 2)
    for place, axis in enumerate(axes):
        size = x.shape[axis]
        if sizes is not None and int(sizes[place]) != size:
            matrix = _resizing(call, size, "sizes", np.array([size, sizes[place]], np.int64))
        elif sizes is None and factors is not None and factors[place] != 1:
            matrix = _resizing(call, size, "scales", np.array([1, factors[place]], np.float32))
        else:
            continue
        x = np.moveaxis(call.field.matmul(np.moveaxis(x, axis, -1), call.field.embed(matrix)), -1, axis)
    return x


def _resizing(call: Call, size: int, name: str, to: Array) -> Array:
    """What a Resize makes of unit vectors."""
    inputs = ["x", "", name] if name == "scales" else ["x", "", "", name]
    node = helper.make_node("Resize", inputs, ["y"])
    left = (each for key, each in call.node.attributes.items() if key not in ("axes", "extrapolation_value"))
    node.attribute.extend(ir.to_proto(attribute) for attribute in left)
    given = {"x": np.eye(size, dtype=np.float32), name: to}
    return evaluate([node], given, ["y"], [helper.make_opsetid("", call.opset)])[0]


def _constant_floats(call: Call, place: int) -> Array:
    """The numbers of an operand, which has to be a constant."""
    found = algebraic_patterns.constant(call.node.inputs[place])
    if found is None:
        raise OutOfScopeError(f"{call.node.op_type} by computed numbers")
    return found


def _cast_like(call: Call) -> Array:
    if call[0].dtype != call[1].dtype:
        raise OutOfScopeError(f"CastLike of {call[0].dtype} to {call[1].dtype}")
    return call[0]


def _where(call: Call) -> Array:
    if call[0].dtype == np.bool_ and call[1].dtype == call[2].dtype:
        return np.where(call[0], call[1], call[2])
    return OPERATORS["Where"](call)  # type: ignore[no-any-return]


def _comparison(call: Call) -> Array:
    """LessOrEqual and GreaterOrEqual."""
    a, b = call[0], call[1]
    below = call.node.op_type == "LessOrEqual"
    if a.dtype != np.uint64:
        return np.asarray(a <= b if below else a >= b)
    more = call.field.above_zero(call.field.subtract(a, b) if below else call.field.subtract(b, a))
    return ~more if more.dtype == np.bool_ else call.field.subtract(scalar_functions.ONE, more)


POINTWISE = (
    "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr",
    "BitwiseXor", "Ceil", "Celu", "Cos", "Cosh", "Erf", "Floor", "Gelu", "HardSwish", "IsInf", "Mish", "Pow", "PRelu",
    "Round", "Selu", "Shrink", "Sign", "Sin", "Sinh", "Sqrt", "Swish", "Tan", "Xor",
)  # fmt: skip

MODEL_OPERATORS: Mapping[str, Operator] = {
    **OPERATORS, **dict.fromkeys(POINTWISE, _pointwise), **dict.fromkeys(REDUCTIONS, _reduction),
    "Abs": _abs, "Add": _folded(Field.add, np.add), "And": _folded(_both, np.logical_and),
    "ArgMax": _arg, "ArgMin": _arg, "AveragePool": _average_pool, "BatchNormalization": _batch_norm,
    "CastLike": _cast_like, "Clip": _clip,
    "Conv": _conv, "ConvTranspose": _conv_transpose, "CumSum": _cumulative_sum,
    "Div": _folded(lambda field, a, b: field.multiply(a, field.inverse(b)), _truncated),
    "Dropout": lambda call: call[0], "Einsum": _einsum, "Equal": _equal, "Expand": _expand, "Flatten": _flatten,
    "GatherElements": lambda call: np.take_along_axis(call[0], call[1], call.attribute("axis", 0)),
    "GatherND": _gather_nd, "Gemm": _gemm, "GlobalAveragePool": _global(_average),
    "GlobalMaxPool": _global(_along(_largest)),
    "GreaterOrEqual": _comparison, "GroupNormalization": _group_norm, "Hardmax": _hardmax,
    "InstanceNormalization": _instance_norm, "LayerNormalization": _layer_norm, "LessOrEqual": _comparison,
    "LogSoftmax": _softmax, "LpNormalization": _lp_norm, "MatMul": _matmul,
    "Max": _folded(scalar_functions.maximum, np.maximum), "MaxPool": _max_pool, "Mean": _mean,
    "Min": _folded(scalar_functions.minimum, np.minimum), "Mod": _mod, "Mul": _folded(Field.multiply, np.multiply),
    "Neg": _neg, "Or": _folded(_either, np.logical_or), "Pad": _pad, "Resize": _resize,
    "RMSNormalization": _layer_norm, "ScatterND": _scatter_nd, "Slice": _slice,
    "Size": lambda call: np.array(call[0].size, np.int64), "Softmax": _softmax, "Split": _split,
    "Sub": _folded(Field.subtract, np.subtract), "Sum": _folded(Field.add, np.add), "Where": _where,
}  # fmt: skip
"""All but Constant, the recurrent operators and those with bodies."""
