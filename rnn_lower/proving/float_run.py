"""Run emitted nodes in floats: exact arithmetic shows no overflow, no cancellation and no NaN.

The result is compared with the equations of the ONNX specification in float64. The tolerance is wide, because a proof
has excluded all other differences, and grows with the difference between the equations in float32 and in float64.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir

from rnn_lower.ir import protobuf
from rnn_lower.ir.walk import constant, subgraphs
from rnn_lower.proving.exact import equations
from rnn_lower.proving.exact.field import Array
from rnn_lower.proving.exact.reference import FLOATS, OPERATORS
from rnn_lower.proving.nodes.program import Program, read_by
from rnn_lower.transforms.evaluate import evaluator

TOLERANCE, LEAST, AMPLIFIED = 1e-3, 1e-6, 1000
"""The tolerated shares of the largest value of a unit, of the largest of all values or of 1, whichever is smaller, and
of the difference between float32 and float64."""

TINY = 1e-30
"""Below this, functions in float32 lose digits, because they divide by numbers near the largest float."""

ROUNDED = 0.01
"""The share of the integers of an output that may differ because a float was rounded the other way."""

NOT_FINITE, OTHER_INTEGERS = "contains NaN or infinity", "contains other integers"

FLOAT32 = dataclasses.replace(
    FLOATS, zeros=lambda shape: np.zeros(shape, np.float32), number=lambda x: np.array(x, np.float32),
    activation=lambda name, x, a, b: np.where(np.isfinite(x), FLOATS.activation(name, x, a, b), np.nan),
)  # fmt: skip
"""The arithmetic of float32 arrays; what follows from an overflow is NaN, and so not compared."""


Run = Callable[[Mapping[ir.Value, Array]], list[Array]]


def runner(program: Program, inputs: Collection[ir.Value]) -> Run:
    """Compute the wanted values of a program, by onnx's evaluator, whose errors are raised here or later.

    inputs: the values that are only known at run time; the runner expects them in their element types.
    """
    made = {*inputs, *(value for node in program.nodes for value in node.outputs)}
    read = {*program.wanted, *(value for node in program.nodes for value in read_by(node))} - made
    constants = {str(value.name): array for value in read if (array := constant(value)) is not None}
    names = [str(value.name) for value in inputs], [str(value.name) for value in program.wanted]
    ends = ([onnx.ValueInfoProto(name=name) for name in each] for each in ((*names[0], *constants), names[1]))
    graph = onnx.helper.make_graph(list(map(_message, program.nodes)), "emitted", *ends)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", program.opset)])
    ready = evaluator(model, OPERATORS)

    def run(arrays: Mapping[ir.Value, Array]) -> list[Array]:
        feeds = {**constants, **{str(value.name): array for value, array in arrays.items()}}
        with np.errstate(all="ignore"):
            return [np.asarray(result) for result in ready.run(None, feeds)]

    return run


def outputs(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> list[Array]:
    """The outputs of a model without functions, computed by onnx's evaluator. Raises its errors."""
    with np.errstate(all="ignore"):
        return [np.asarray(each) for each in evaluator(model, OPERATORS).run(None, dict(inputs))]


def _message(node: ir.Node) -> onnx.NodeProto:
    """The message of a node, with the data of its bodies' initializers, which may be in a file."""
    message: onnx.NodeProto = ir.to_proto(node)
    for body, (_, graph) in zip(protobuf.graphs_of(message), subgraphs(node), strict=True):
        held = [(name, constant(value)) for name, value in graph.initializers.items()]
        nodes = list(map(_message, graph))
        del body.initializer[:], body.node[:]
        body.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in held if array is not None)
        body.node.extend(nodes)
    return message


def expected(
    node: equations.Recurrence, inputs: Mapping[str, Array], lengths: Array | None
) -> tuple[dict[str, Array], dict[str, Array]]:
    """The outputs of a node, computed in float64 and in float32."""

    def outputs_in(arithmetic: equations.Arithmetic) -> dict[str, Array]:
        dtype = arithmetic.zeros((0,)).dtype
        arrays: dict[str, Any] = {name: array.astype(dtype, copy=False) for name, array in inputs.items()}
        if "B" in arrays:
            arrays["B"] = equations.halves(arithmetic, arrays["B"])
        with np.errstate(all="ignore"):
            return equations.evaluate(arithmetic, node, arrays, lengths)

    return outputs_in(FLOATS), outputs_in(FLOAT32)


def confirmed(differ: Callable[[], str]) -> str:
    """The difference that `differ` finds with random inputs, or "" if it finds none with the next ones.

    Some operators jump, so that rounding may cause one difference, but neither NaN nor many other integers.
    """
    first = differ()
    return first if first.endswith((NOT_FINITE, OTHER_INTEGERS)) or (first and differ()) else ""


def difference(actual: Array, exact: Array, rounded: Array, by_unit: bool = False) -> str:
    """What keeps an array from being a rounding of the exact values, or "". rounded: one such rounding.

    The tolerance is relative to the largest value of each index of the last axis, so that a few large units hide no
    difference in the others.  by_unit: no other unit counts; otherwise, the scale is at least that of most of them.
    """
    with np.errstate(all="ignore"):
        is_finite = np.isfinite(exact.astype(actual.dtype)) & np.isfinite(rounded.astype(actual.dtype))
    exact, rounded, found = (np.where(is_finite, array.astype(np.float64), 0) for array in (exact, rounded, actual))
    if not np.isfinite(found).all():
        return NOT_FINITE
    kind = ml_dtypes.finfo(actual.dtype)
    sizes, amplified, error = (
        np.abs(array).max(axis=tuple(range(exact.ndim - 1)), initial=0)
        for array in (exact, rounded - exact, found - exact)
    )
    median = 0.0 if by_unit or not sizes.size else float(np.median(sizes))
    usual = min(float(sizes.max(initial=0)), max(1.0, median))
    coarser = float(kind.eps) / float(np.finfo(np.float32).eps)  # than the rounding that was measured
    least = max(2 * float(kind.smallest_subnormal), TINY) + LEAST * usual + max(AMPLIFIED, coarser) * amplified
    least += max(TOLERANCE, 8 * float(kind.eps)) * (sizes if by_unit else np.maximum(sizes, usual))
    return "" if np.all(error <= least) else f"differs by {float(error.max()):.2g}"


def difference_of_outputs(actual: Array, wanted: Array) -> str:
    """What keeps an output from being a rounding of the same output of another model, or ""."""
    if actual.shape != wanted.shape:
        return f"has shape {list(actual.shape)} instead of {list(wanted.shape)}"
    if wanted.dtype.kind in "fV":
        return difference(actual, wanted, wanted)
    is_rounding = not wanted.size or np.mean(actual != wanted) <= ROUNDED
    return "" if is_rounding else OTHER_INTEGERS
