"""Corrections of operators that onnx's reference evaluator lacks or computes differently from the standard."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference.op_run import OpRun
from onnx.reference.ops import op_batch_normalization, op_dequantize_linear, op_loop

from rnn_lower.builder.constants import MOVES, ends_behind, sliced
from rnn_lower.transforms.reference_windows import WINDOWS


class Loop(op_loop.Loop):  # type: ignore[misc]  # onnx gives it no types
    """Loop: onnx 1.23 concatenates scan outputs instead of stacking them, and treats a missing condition as false.

    The number of a step and the condition have the rank that the body declares, as on onnxruntime.
    """

    def _run(
        self, trips: Any, going: Any, *carried: Any, context: Any = None, body: Any = None, attributes: Any = None,
        **newer: Any,
    ) -> tuple[Any, ...]:  # fmt: skip  # newer: `bindings`, since onnx 1.23
        states, stacked, trip = list(carried), [list[np.ndarray]() for _ in range(self.K)], 0
        shapes = [(1,) * len(kind.tensor_type.shape.dim) for kind in self.body.input_types[:2]]
        most = math.inf if trips is None else int(np.reshape(trips, ()))  # which may have shape [1]
        while (going is None or bool(going)) and trip < most:
            numbers = (np.array(trip, np.int64), np.array(True))
            arguments = (*(number.reshape(shape) for number, shape in zip(numbers, shapes, strict=True)), *states)
            feeds = {**(context or {}), **dict(zip(self.body.input_names, arguments, strict=True))}
            going, *values = self._run_body(feeds, attributes=attributes, **newer)
            states, trip = values[: self.N], trip + 1
            for results, result in zip(stacked, values[self.N :], strict=True):
                results.append(result)
        return (
            *states,
            *map(np.stack, stacked),
        )  # without trips, the sizes of results are unknown, and the evaluator raises


class Scan(OpRun):  # type: ignore[misc]
    """Scan since opset 9: onnx 1.23 supports only forward directions and axis 0."""

    def need_context(self) -> bool:
        """A body may read values of the outer graph."""
        return True

    def _run(
        self, *operands: Any, context: Any = None, body: Any = None, attributes: Any = None,
        num_scan_inputs: Any = None, scan_input_axes: Any = None, scan_input_directions: Any = None,
        scan_output_axes: Any = None, scan_output_directions: Any = None, **newer: Any,
    ) -> tuple[Any, ...]:  # fmt: skip
        count = len(operands) - num_scan_inputs
        states, sequences = list(operands[:count]), list(operands[count:])
        ways = itertools.zip_longest(sequences, scan_input_axes or (), scan_input_directions or ())
        sequences = [np.moveaxis(x, axis or 0, 0)[:: -1 if back else 1] for x, axis, back in ways]
        steps = []
        for elements in zip(*sequences, strict=True):
            feeds = dict(zip(self.body.input_names, (*states, *elements), strict=True))
            results = self._run_body({**(context or {}), **feeds}, **newer)
            states, row = list(results[:count]), results[count:]
            steps.append(row)
        if not steps and len(self.body.output_names) > count:
            raise ValueError("the sizes of the outputs of a Scan without steps are unknown")
        stacked = map(np.stack, zip(*steps, strict=True))
        ways = itertools.zip_longest(stacked, scan_output_axes or (), scan_output_directions or ())
        return *states, *(np.moveaxis(x[:: -1 if back else 1], 0, axis or 0) for x, axis, back in ways)


class Slice(OpRun):  # type: ignore[misc]
    """Slice: onnx 1.23 returns nothing for a negative step from before the first element, which ONNX clamps."""

    def _run(
        self, x: Any, starts: Any = None, ends: Any = None, axes: Any = None, steps: Any = None
    ) -> tuple[Any, ...]:  # fmt: skip
        lists: list[Any] = [None if each is None else np.ravel(each).tolist() for each in (starts, ends, axes, steps)]
        if ends_behind(x.shape, lists[1], lists[2], lists[3] or ()):
            raise ValueError("a backward Slice that ends behind the last element, which runtimes disagree about")
        return (sliced(x, *lists),)


class Squeeze(OpRun):  # type: ignore[misc]
    """Squeeze: onnx 1.23 refuses axes in another order than ascending."""

    def _run(self, x: Any, axes: Any = None) -> tuple[Any, ...]:
        return (np.squeeze(x) if axes is None else MOVES["Squeeze"](x, np.ravel(axes)),)


class Unsqueeze(OpRun):  # type: ignore[misc]
    """Unsqueeze: onnx 1.23 inserts axes one after another instead of at their places in the result."""

    def _run(self, x: Any, axes: Any = None) -> tuple[Any, ...]:
        return (MOVES["Unsqueeze"](x, np.ravel(axes)),)


class GatherElements(OpRun):  # type: ignore[misc]
    """GatherElements: onnx 1.23 wraps indices beyond the axis, slowly, and refuses axes of more than 32 elements."""

    def _run(self, x: Any, indices: Any, axis: Any = None) -> tuple[Any, ...]:
        axis = (axis or 0) % x.ndim
        rows = x[tuple(slice(None) if k == axis else slice(size) for k, size in enumerate(indices.shape))]
        return (np.take_along_axis(rows, indices, axis),)


def padded(x: Any, axes: Sequence[int], pads: Sequence[int], mode: Any, number: Any) -> Any:
    """x with elements added at the ends of axes, or removed by negative pads. number: of the mode "constant"."""
    for axis, before, behind in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        sides = [(max(0, before), max(0, behind)) if k == axis else (0, 0) for k in range(x.ndim)]
        if mode == "constant":  # which may remove the added elements again
            x = _cut(np.pad(x, sides, constant_values=number), axis, before, behind)
        else:
            x = np.pad(_cut(x, axis, before, behind), sides, mode)
    return x


def _cut(x: Any, axis: int, before: int, behind: int) -> Any:
    """x without as many elements at the ends of an axis as pads are below 0."""
    return np.take(x, range(max(0, -before), x.shape[axis] - max(0, -behind)), axis)


class Pad(OpRun):  # type: ignore[misc]
    """Pad, of every version: onnx 1.23 refuses negative pads, which remove elements."""

    def _run(
        self, x: Any, pads: Any = None, fill: Any = None, axes: Any = None, mode: Any = None, value: Any = None,
        paddings: Any = None,
    ) -> tuple[Any, ...]:  # fmt: skip
        chosen = range(x.ndim) if axes is None else [int(axis) % x.ndim for axis in np.ravel(axes)]
        number = value or 0 if fill is None else np.ravel(fill)[0]
        return (padded(x, chosen, np.ravel(paddings if pads is None else pads).tolist(), mode or "constant", number),)


class Dropout(OpRun):  # type: ignore[misc]
    """Dropout, which passes its input on; in training, it is random."""

    def _run(self, x: Any, ratio: Any = None, training_mode: Any = None, **attributes: Any) -> tuple[Any, ...]:
        if training_mode or attributes.get("is_test") == 0:
            raise NotImplementedError("Dropout in training")
        return (x, np.ones(x.shape, bool))[: len(self.onnx_node.output)]


class _Rows(OpRun):  # type: ignore[misc]
    """An operator on rows: onnx 1.23 has only the meaning since opset 13, where a row is one axis, the last by default.

    Before, a row consists of all axes from `axis` on, by default from axis 1. of_last: the results along the last axis.
    """

    of_last: Callable[[Any], Any]

    def _run(self, x: Any, axis: Any = None) -> tuple[Any, ...]:
        given = any(attribute.name == "axis" for attribute in self.onnx_node.attribute)
        if self.run_params["opsets"][""] >= 13:
            axis = axis if given else -1
            return (np.moveaxis(self.of_last(np.moveaxis(x, axis, -1)), -1, axis) if x.size else x,)
        first = (axis if given else 1) % max(x.ndim, 1)
        rows = x.reshape(math.prod(x.shape[:first]), math.prod(x.shape[first:]))
        return (self.of_last(rows).reshape(x.shape) if x.size else x,)


def _softmax(x: Any) -> Any:
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def _log_softmax(x: Any) -> Any:
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def _hardmax(x: Any) -> Any:
    return (np.arange(x.shape[-1]) == x.argmax(axis=-1)[..., None]).astype(x.dtype)


class Softmax(_Rows):
    """Softmax, of every version."""

    of_last = staticmethod(_softmax)


class LogSoftmax(_Rows):
    """LogSoftmax, of every version."""

    of_last = staticmethod(_log_softmax)


class Hardmax(_Rows):
    """Hardmax, of every version."""

    of_last = staticmethod(_hardmax)


def places_of(indices: Any, depth: int, axis: int) -> tuple[Any, Any]:
    """The indices and all places of a OneHot, to be compared by broadcasting. axis: of the places."""
    indices = np.expand_dims(indices, axis)
    places = np.arange(depth).reshape([-1 if k == axis % indices.ndim else 1 for k in range(indices.ndim)])
    return indices, places


class OneHot(OpRun):  # type: ignore[misc]
    """OneHot: onnx 1.23 multiplies with the difference of the two values, which loses a value beside a large one."""

    def _run(self, indices: Any, depth: Any, values: Any, axis: Any = None) -> tuple[Any, ...]:
        depth = int(np.ravel(depth)[0])
        indices, places = places_of(indices.astype(np.int64), depth, -1 if axis is None else axis)
        return (np.where((indices == places) | (indices + depth == places), values[1], values[0]),)


class BatchNormalization(OpRun):  # type: ignore[misc]
    """BatchNormalization: before opset 14, onnx 1.23 mixes the statistics of inference and training."""

    def _run(
        self, x: Any, scale: Any, bias: Any, mean: Any, var: Any, epsilon: Any = None, momentum: Any = None,
        training_mode: Any = None, spatial: Any = None, is_test: Any = None,
    ) -> tuple[Any, ...]:  # fmt: skip
        if training_mode:
            newest = op_batch_normalization.BatchNormalization_14._run
            return tuple(newest(self, x, scale, bias, mean, var, epsilon, momentum, training_mode))
        if spatial == 0 or len(self.onnx_node.output) > 1:
            raise NotImplementedError("BatchNormalization that is not spatial, or that trains")
        shape = (-1, *[1] * (x.ndim - 2))
        scale, bias, mean, var = (each.reshape(shape) for each in (scale, bias, mean, var))
        epsilon = 1e-5 if epsilon is None else epsilon
        return ((scale * (x - mean) / np.sqrt(var + epsilon) + bias).astype(x.dtype),)


class LpNormalization(OpRun):  # type: ignore[misc]
    """LpNormalization: onnx 1.23 sums signed numbers where ONNX sums their magnitudes."""

    def _run(self, x: Any, axis: Any = None, p: Any = None) -> tuple[Any, ...]:
        axis, p = -1 if axis is None else axis, 2 if p is None else p
        norm = np.linalg.norm(x, ord=p, axis=axis, keepdims=True)
        return (np.where(norm == 0, 0, x / np.where(norm == 0, 1, norm)).astype(x.dtype),)


class LRN(OpRun):  # type: ignore[misc]
    """LRN: onnx 1.23 counts the channels by the batch size."""

    def _run(
        self, x: Any, alpha: Any = None, beta: Any = None, bias: Any = None, size: Any = None
    ) -> tuple[Any, ...]:  # fmt: skip
        alpha, beta, bias = (
            default if value is None else value for value, default in ((alpha, 1e-4), (beta, 0.75), (bias, 1.0))
        )
        before, after = (size - 1) // 2, size // 2
        squares = np.zeros_like(x)
        for channel in range(x.shape[1]):
            squares[:, channel] = (x[:, max(0, channel - before) : channel + after + 1] ** 2).sum(axis=1)
        return ((x / (bias + alpha / size * squares) ** beta).astype(x.dtype),)


class DequantizeLinear(op_dequantize_linear.DequantizeLinear_25):  # type: ignore[misc]
    """DequantizeLinear, of every version: onnx 1.23 has none before opset 19."""

    def _run(self, *operands: Any, axis: Any = None, **newer: Any) -> tuple[Any, ...]:
        newer = {name: value for name, value in newer.items() if value is not None}
        return tuple(super()._run(*operands, axis=1 if axis is None else axis, **newer))


Kernel = Callable[..., Sequence[np.ndarray]]
"""(node, *inputs) -> outputs"""


def operator(op_type: str, kernel: Kernel, domain: str = "") -> type[OpRun]:
    """An operator for `onnx.reference.ReferenceEvaluator(model, new_ops=...)`."""

    class Operator(OpRun):  # type: ignore[misc]
        op_domain = domain

        def _run(self, *inputs: np.ndarray | None, **_: Any) -> tuple[np.ndarray, ...]:
            with np.errstate(all="ignore"):
                return tuple(kernel(self.onnx_node, *inputs))

    Operator.__name__ = op_type
    return Operator


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """The attributes by name, with bytes decoded."""
    return {attribute.name: ir.from_proto(attribute).value for attribute in node.attribute}


OPERATORS = (
    Loop, Scan, Slice, Squeeze, Unsqueeze, GatherElements, Pad, Dropout, Softmax, LogSoftmax, Hardmax, OneHot,
    BatchNormalization, LpNormalization, LRN, DequantizeLinear, *WINDOWS,
)  # fmt: skip
"""For `onnx.reference.ReferenceEvaluator(model, new_ops=OPERATORS)`."""
