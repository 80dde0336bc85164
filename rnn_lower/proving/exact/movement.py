"""Operators that move or count elements, of any type, at every opset."""

from __future__ import annotations

import hashlib
import math

import numpy as np

from rnn_lower.builder.constants import ends_behind, sliced
from rnn_lower.ir.walk import constant, is_read
from rnn_lower.proving.exact.call import Call, Operator, OutOfScopeError, WrongError, known
from rnn_lower.proving.exact.elementwise import between
from rnn_lower.proving.exact.field import Array
from rnn_lower.transforms.evaluate import evaluate_node
from rnn_lower.transforms.reference_operators import padded, places_of


def _tile(call: Call) -> Array:
    repeats = call.integer_list(1)
    if len(repeats) != call[0].ndim:
        raise WrongError(f"{call.label} has {len(repeats)} repeats for an input of rank {call[0].ndim}")
    return np.tile(call[0], repeats)


def _slice(call: Call) -> Array:
    x, starts, ends = call[0], call.parameter("starts", 1), call.parameter("ends", 2)
    axes, steps = call.parameter("axes", 3), call.parameter("steps", 4)
    if starts is None or ends is None:
        raise WrongError(f"the starts or ends of {call.label} are missing")
    if ends_behind(x.shape, ends, axes, steps or ()):
        raise OutOfScopeError(f"{call.label} runs backward and ends behind the last element; runtimes disagree there")
    count = len(starts) if axes is None else len(axes)
    return sliced(x, starts[:count], ends[:count], axes, None if steps is None else steps[:count])


def _split(call: Call) -> list[Array]:
    x, axis, sizes = call[0], call.attribute("axis", 0), call.parameter("split", 1)
    count = call.attribute("num_outputs")
    is_uneven = count is not None
    if is_uneven and (sizes is not None or count != len(call.node.outputs)):
        raise WrongError(
            f"num_outputs of {call.label} differs from its number of outputs, or input 'split' is also present"
        )
    if sizes is None and not is_uneven and call.opset >= 18:
        raise WrongError(
            f"{call.label} has neither input 'split' nor attribute 'num_outputs', but opset 18 requires one"
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
    if mode not in ("constant", "edge", "reflect", *(("wrap",) if call.opset >= 19 else ())):
        raise WrongError(f"{call.label} has the unknown mode '{mode}'")
    if mode == "reflect" and any(
        pad >= x.shape[axis] for axis, pad in zip((*axes, *axes), pads, strict=True) if pad > 0
    ):
        raise WrongError(f"{call.label} reflects more elements than an axis has")
    fill = call.optional(2)
    if fill is None:
        fill = call.number("value", 0.0) if x.dtype == np.uint64 else np.zeros((), x.dtype)
    return np.asarray(padded(x, axes, pads, mode, fill.ravel()[0]))


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
    name = f"row of {table.shape} {hashlib.blake2b(np.ascontiguousarray(table).tobytes()).hexdigest()} at"
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
    ratio = constant(call.node.inputs[1]) if call.optional(1) is not None else call.attribute("ratio", 0.5)
    if ratio is not None and not 0 <= float(ratio) < 1:
        raise WrongError(f"the ratio of {call.label} is {float(ratio)}, which is not below 1")
    if any(map(is_read, call.node.outputs[1:])):
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


def _one_hot(call: Call) -> Array:
    """The vectors of a OneHot; indices that are floats choose by a random function of the index and the place."""
    field, numbers, (off, on) = call.field, constant(call.node.inputs[1]), call[2]
    depth = int((call.integers(1) if numbers is None else numbers).ravel()[0])
    indices, places = places_of(call[0], depth, call.attribute("axis", -1))
    if indices.dtype == np.uint64:
        mixed = field.add(field.function("next", indices), field.integers(places))
        chosen = field.function(f"one hot of {depth}", mixed)
        on, off = (each if each.dtype == np.uint64 else field.integers(each) for each in (on, off))
        return between(field, chosen, on, off)
    return np.asarray(np.where((indices == places) | (indices + depth == places), on, off))


def _reverse_sequence(call: Call) -> list[Array]:
    axis, lengths = call.attribute("time_axis", 0), call.integers(1)
    if {axis, call.attribute("batch_axis", 1)} != {0, 1}:
        raise WrongError(f"the axes of {call.label} are not 0 and 1")
    if not np.all((lengths >= 0) & (lengths <= call[0].shape[axis])):
        raise WrongError(f"{call.label} has a length below 0 or above the size of its time axis")
    return _moved(call)


MOVED_BY_ONNX = (
    "Compress", "DepthToSpace", "GatherElements", "GatherND", "ReverseSequence", "ScatterElements", "ScatterND",
    "SpaceToDepth", "Trilu",
)  # fmt: skip

MOVEMENT: dict[str, Operator] = {
    **dict.fromkeys(MOVED_BY_ONNX, _moved), "Concat": _concat, "ConstantOfShape": _constant_of_shape,
    "Dropout": _dropout, "Expand": _expand, "Flatten": _flatten, "Gather": _gather, "Identity": lambda call: call[0],
    "NonZero": _non_zero, "OneHot": _one_hot, "Pad": _pad, "Range": _range, "Reshape": _reshape,
    "ReverseSequence": _reverse_sequence, "Shape": _shape, "Size": lambda call: np.array(call[0].size, np.int64),
    "Slice": _slice, "Split": _split, "Squeeze": _squeeze, "Tile": _tile,
    "Transpose": lambda call: np.transpose(call[0], call.attribute("perm")), "Unsqueeze": _unsqueeze,
}  # fmt: skip
