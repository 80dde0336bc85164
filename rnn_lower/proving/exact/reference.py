"""RNN, GRU and LSTM of every version for onnx's evaluator: the equations of the ONNX specification in float64.

If onnxruntime's result is well-defined, this computes the same; otherwise it follows the ONNX specification: for layout
1, double, bfloat16, and sequences without steps (final state = initial state).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.reference.op_run import OpRun

from rnn_lower.options import OP_TYPES, QUANTIZED
from rnn_lower.proving.exact import equations
from rnn_lower.transforms.reference_operators import attributes_of, operator

Array = np.ndarray

ACTIVATIONS: dict[str, Callable[..., Array]] = {
    "relu": lambda x, a, b: np.maximum(x, 0),
    "tanh": lambda x, a, b: np.tanh(x),
    "sigmoid": lambda x, a, b: np.where(x >= 0, 1.0, np.exp(-np.abs(x))) / (1.0 + np.exp(-np.abs(x))),
    "affine": lambda x, a, b: a * x + b,
    "leakyrelu": lambda x, a, b: np.where(x >= 0, x, a * x),
    "thresholdedrelu": lambda x, a, b: np.where(x > a, x, 0),
    "scaledtanh": lambda x, a, b: a * np.tanh(b * x),
    "hardsigmoid": lambda x, a, b: np.minimum(1, np.maximum(0, a * x + b)),
    "elu": lambda x, a, b: np.where(x >= 0, x, a * np.expm1(np.minimum(x, 0))),
    "softsign": lambda x, a, b: x / (1 + np.abs(x)),
    "softplus": lambda x, a, b: np.logaddexp(0, x),
}
"""By lower-case name, the function of x, alpha and beta."""


FLOATS = equations.Arithmetic(
    np.zeros, np.array, np.add, np.subtract, np.multiply, np.matmul, lambda x, limit: np.clip(x, -limit, limit),
    lambda name, x, alpha, beta: ACTIVATIONS[name](x, alpha, beta),
)  # fmt: skip
"""The arithmetic of float64 arrays."""


def run(op: str, inputs: Sequence[Array | None], attributes: Mapping[str, Any]) -> list[Array]:
    """Return the outputs of one node. inputs, attributes: as in the ONNX specification, None for omitted inputs.

    The outputs are Y [T, D, N, H], Y_h [D, N, H] and for LSTM Y_c [D, N, H] (layout 1: Y [N, T, D, H], Y_h and Y_c
    [N, D, H]), in X's element type, computed in float64.
    """
    arrays: dict[str, Any] = {
        name: array.astype(np.float64)
        for name, array in zip(equations.INPUTS, inputs, strict=False)
        if array is not None and name != "sequence_lens"
    }
    assert inputs[0] is not None
    dtype, lengths = inputs[0].dtype, inputs[4] if len(inputs) > 4 else None
    if "B" in arrays:
        arrays["B"] = equations.halves(FLOATS, arrays["B"])
    node = equations.recurrence(op, attributes, np.dtype(np.float64 if dtype == np.float64 else np.float32))
    with np.errstate(all="ignore"):
        results = equations.evaluate(FLOATS, node, arrays, lengths)
    names = equations.OUTPUTS if op == "LSTM" else equations.OUTPUTS[:2]
    return [np.ascontiguousarray(results[name]).astype(dtype) for name in names]


Record = Callable[[onnx.NodeProto, Array, Array | None], "tuple[int, int] | None"]
"""Called with a node, its X and its sequence_lens; returns which weights to change, if any: the index of W or R among
the inputs, and the direction."""

OTHER = 0.7310585786
"""The sum of the weights and the others: no weight stays as it is, or changes only its sign."""


def operators(record: Record = lambda *_: None) -> tuple[type[OpRun], ...]:
    """RNN, GRU, LSTM, and onnxruntime's DynamicQuantizeLSTM without rounded products. record: see `Record`."""

    def kernel(node: onnx.NodeProto, *inputs: Any) -> list[Array]:
        op, held = ("LSTM", _dequantized(inputs)) if node.op_type == QUANTIZED else (node.op_type, list(inputs))
        changed = record(node, inputs[0], inputs[4] if len(inputs) > 4 else None)
        if changed is not None:
            operand, direction = changed
            held[operand] = np.array(held[operand])
            held[operand][direction] = OTHER - held[operand][direction]
        return run(op, held, attributes_of(node))[: len(node.output)]

    return (*(operator(op, kernel) for op in OP_TYPES), operator(QUANTIZED, kernel, "com.microsoft"))


def _dequantized(inputs: Sequence[Any]) -> list[Any]:
    """The inputs of the LSTM that a DynamicQuantizeLSTM approximates."""
    held = list(inputs[:8])
    for index, scale in ((1, 8), (2, 10)):
        numbers, factor, zero = (np.asarray(inputs[k], np.float32) for k in (index, scale, scale + 1))
        factor, zero = (x.reshape(len(numbers), 1, -1) for x in (factor, zero))
        held[index] = np.swapaxes((numbers - zero) * factor, 1, 2)
    return held


OPERATORS: tuple[type[OpRun], ...] = operators()
"""For `onnx.reference.ReferenceEvaluator(model, new_ops=OPERATORS)`."""
