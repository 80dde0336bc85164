"""The one table of other ways to say an operator, for runtimes that do not take it or not so.

A way gets a writer and the call, and emits through the same writer, so that what it uses may be said otherwise in turn.
It answers the results, or None where it does not fit the call. Ways stand in the order in which they are tried: the
exact ones first. Those that round, or differ for numbers that are not finite, say so.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from rnn_lower.builder.constants import Constant, filled, fold
from rnn_lower.builder.versions import BROADCASTS_BY_RULE, CLIP_TAKES_DOUBLE, MAX_BROADCASTS
from rnn_lower.legalize import reshaping
from rnn_lower.legalize.call import Call, Results, Way, is_float, result_sizes, sizes_of

if TYPE_CHECKING:
    from rnn_lower.builder.masks import Emitter
    from rnn_lower.builder.writer import Operand

NEAR = 128.0
"""How wide a Clip by Relu may be: it rounds to the unit in the last place of its width."""


# -- arithmetic -------------------------------------------------------------------------------------------------------


def _minus_one(e: Emitter, operand: Operand) -> bool:
    outline = e.outline(operand)
    return outline is not None and outline.constant and outline.content == (-1.0,)


def _identity_by_sum(e: Emitter, call: Call) -> Results:
    """x + 0; -0 becomes 0. A node even where x is a constant: a result of the model must not be an initializer."""
    broadcast = {"broadcast": 1} if e.opset < BROADCASTS_BY_RULE else {}
    return [e.op("Add", call.x, e.scalar(0.0), name=call.name, **broadcast)] if is_float(e, call.x) else None


def _sub_by_add(e: Emitter, call: Call) -> Results:
    a, b = call.inputs
    if not is_float(e, a):
        return None
    return [e.add(e.mul(b, e.scalar(-1.0), f"minus_{call.name}"), a, call.name)]


def _add_by_sub(e: Emitter, call: Call) -> Results:
    a, b = call.inputs
    if not is_float(e, a) or e.opset < BROADCASTS_BY_RULE:
        return None
    if isinstance(b, Constant):
        return [e.op("Sub", a, fold(("negate",), np.negative, b, name="minus"), name=call.name)]
    return [e.op("Sub", a, e.mul(b, e.scalar(-1.0), "minus"), name=call.name)]


def _minus_by_neg(e: Emitter, call: Call) -> Results:
    a, b = call.inputs
    return [e.op("Neg", a, name=call.name)] if _minus_one(e, b) else None


def _minus_by_sub(e: Emitter, call: Call) -> Results:
    """0 - x; 0 stays 0 where its sign would change."""
    a, b = call.inputs
    return [e.op("Sub", e.scalar(0.0), a, name=call.name)] if _minus_one(e, b) and e.opset >= 7 else None


def _div_by_reciprocal(e: Emitter, call: Call) -> Results:
    """Rounds once more."""
    a, b = call.inputs
    return [e.mul(a, e.op("Reciprocal", b, name="inverse"), call.name)]


def _reciprocal_by_div(e: Emitter, call: Call) -> Results:
    if e.opset < BROADCASTS_BY_RULE:
        return None
    return [e.op("Div", e.scalar(1.0), call.x, name=call.name)]


def _abs_by_relu(e: Emitter, call: Call) -> Results:
    below = e.op("Relu", e.mul(call.x, e.scalar(-1.0), "minus_x"), name="below_zero")
    return [e.add(e.op("Relu", call.x, name="above_zero"), below, call.name)]


def _relu_by_max(e: Emitter, call: Call) -> Results:
    return [e.op("Max", call.x, e.scalar(0.0), name=call.name)] if e.opset >= MAX_BROADCASTS else None


def _relu_by_clip(e: Emitter, call: Call) -> Results:
    double = e.dtype != ir.DataType.FLOAT and e.opset < CLIP_TAKES_DOUBLE
    return None if double else [e.op_direct("Clip", call.x, name=call.name, min=0.0, max=None)]


def _clip_by_min_max(e: Emitter, call: Call) -> Results:
    low, high = call.parameters["min"], call.parameters["max"]
    if high is None or e.opset < MAX_BROADCASTS:
        return None
    above = e.op_direct("Max", call.x, _number_like(e, low, call.x), name=f"{call.name}_below")
    return [e.op_direct("Min", above, _number_like(e, high, call.x), name=call.name)]


def _number_like(e: Emitter, number: float, x: Operand) -> Operand:
    """A number, of the rank of x where a runtime cares about ranks."""
    outline = e.outline(x)
    ranked = any("ranks" in e.habits.rules.limits.get(one, {}) for one in ("Max", "Min"))
    rank = len(outline.shape) if ranked and outline is not None and outline.shape is not None else 0
    return e.reshape(e.scalar(number), [1] * rank)


def _clip_in_rank_four(e: Emitter, call: Call) -> Results:
    """All of a Clip of several nodes between two Reshapes, not each of them, where a runtime takes rank 4 only."""
    sizes, limits = sizes_of(e, call.x), e.habits.rules.limits
    if sizes is None or len(sizes) > 3 or not any("ranks" in limits.get(one, {}) for one in ("Max", "Min", "Relu")):
        return None
    x = e.reshape(call.x, [1] * (4 - len(sizes)) + list(sizes), "of_rank_4")
    inner = e.op("Clip", x, name=f"{call.name}_of_rank_4", **call.parameters)
    return [e.reshape(inner, list(sizes), call.name)]


def _clip_by_relu(e: Emitter, call: Call) -> Results:
    """high - max(0, width - max(0, x - low)); rounds to the last place of the width, so that must be small."""
    low, high = call.parameters["min"], call.parameters["max"]
    if high is None or not 0 < high - low <= NEAR:
        return None
    from_low = e.op("Relu", e.add(call.x, e.scalar(-low), "from_low") if low else call.x, name="above_low")
    to_high = e.add(e.mul(from_low, e.scalar(-1.0), "minus"), e.scalar(high - low), "to_high")
    below = e.mul(e.op("Relu", to_high, name="below_high"), e.scalar(-1.0), "minus_rest")
    return [e.add(below, e.scalar(high), call.name)]


def _clip_by_reciprocal(e: Emitter, call: Call) -> Results:
    """min(x, high) as 1 / max(1 / x, 1 / high) on both sides of zero; rounds relatively, for a Clip that is wide."""
    low, high = call.parameters["min"], call.parameters["max"]
    return None if high is None else [e.clip_by_reciprocal(call.x, low, high, call.name)]


def _less_by_greater(e: Emitter, call: Call) -> Results:
    a, b = call.inputs
    return [e.op("Greater", b, a, name=call.name)] if e.opset >= BROADCASTS_BY_RULE else None


def _where_by_sum(e: Emitter, call: Call) -> Results:
    """m a + (1 - m) b: NaN and infinity of what is not selected come through."""
    mask, a, b = call.inputs
    if not is_float(e, a):
        return None
    numbers = e.cast(mask, ir.DataType.BOOL, e.dtype, "mask")
    rest = e.sub(e.scalar(1.0), numbers, "rest")
    return [e.add(e.mul(numbers, a), e.mul(rest, b), call.name)]


def _cast_by_where(e: Emitter, call: Call) -> Results:
    """Truth values to numbers."""
    outline = e.outline(call.x)
    if outline is None or outline.dtype != ir.DataType.BOOL or call.parameters["to"] != int(e.dtype):
        return None
    return [e.op_direct("Where", call.x, e.scalar(1.0), e.scalar(0.0), name=call.name)]


# -- activations ------------------------------------------------------------------------------------------------------


def _sigmoid_by_tanh(e: Emitter, call: Call) -> Results:
    """(tanh(x / 2) + 1) / 2; rounds to the last place of 1."""
    half = e.scalar(0.5)
    bent = e.mul(e.unary("Tanh", e.mul(call.x, half, "half")), half, "bent")
    return [e.add(bent, half, call.name)]


def _tanh_by_sigmoid(e: Emitter, call: Call) -> Results:
    """2 sigmoid(2 x) - 1; rounds to the last place of 1."""
    two = e.scalar(2.0)
    bent = e.mul(e.unary("Sigmoid", e.mul(call.x, two, "twice")), two, "bent")
    return [e.add(bent, e.scalar(-1.0), call.name)]


def _sigmoid_by_exp(e: Emitter, call: Call) -> Results:
    """1 / (1 + e^-x), where an infinite e^-x gives 0."""
    grown = e.op("Exp", e.mul(call.x, e.scalar(-1.0), "minus_x"), name="grown")
    return [e.op("Reciprocal", e.add(grown, e.scalar(1.0)), name=call.name)]


# -- products ---------------------------------------------------------------------------------------------------------


def _columns(e: Emitter, b: Operand) -> tuple[int, int] | None:
    sizes = sizes_of(e, b)
    return (sizes[0], sizes[1]) if sizes is not None and len(sizes) == 2 else None


def _matmul_by_rows(e: Emitter, call: Call) -> Results:
    """A stack of matrices as one matrix."""
    (a, b), (before, after) = call.inputs, (sizes_of(e, call.inputs[0]), result_sizes(e, call))
    if before is None or after is None or len(before) < 3 or _columns(e, b) is None:
        return None
    rows = e.reshape(a, [math.prod(before[:-1]), before[-1]], "rows")
    return [e.reshape(e.matmul(rows, b), after, call.name)]


def _matmul_by_gemm(e: Emitter, call: Call) -> Results:
    (a, b), columns = call.inputs, _columns(e, call.inputs[1])
    before = e.outline(a)
    if columns is None or before is None or before.shape is None or len(before.shape) != 2:
        return None
    more = [] if e.opset >= 11 else [filled(0.0, (columns[1],), e.dtype)]  # before, C must be there
    return None if e.opset < BROADCASTS_BY_RULE else [e.op("Gemm", a, b, *more, name=call.name)]


def _matmul_by_conv(e: Emitter, call: Call) -> Results:
    """A Conv of 1 x 1 over [1, K, rows, 1]: channels are the columns, places the rows."""
    (a, b), (before, after) = call.inputs, (sizes_of(e, call.inputs[0]), result_sizes(e, call))
    columns = _columns(e, b)
    if before is None or after is None or columns is None or len(before) < 2 or e.dtype != ir.DataType.FLOAT:
        return None  # onnxruntime, which judges, has Conv in float32 only
    (K, M), rows = columns, math.prod(before[:-1])
    kernel = e.transpose(b, [1, 0], "kernel_rows")
    if isinstance(kernel, Constant):
        kernel = fold(("kernel",), lambda held: held[:, :, np.newaxis, np.newaxis], kernel, name="kernel")
    else:
        kernel = e.reshape(kernel, [M, K, 1, 1], "kernel")
    if rows == 1:
        x = e.reshape(a, [1, K, 1, 1], "channels")
        return [e.reshape(e.op("Conv", x, kernel, name="conv", kernel_shape=[1, 1]), after, call.name)]
    x = e.transpose(e.reshape(a, [1, rows, K, 1], "places"), [0, 2, 1, 3], "channels")
    y = e.op("Conv", x, kernel, name="conv", kernel_shape=[1, 1])
    return [e.reshape(e.transpose(y, [0, 2, 1, 3], "rows"), after, call.name)]


_OF_CONCATS = tuple(functools.partial(reshaping.concat_of_concats, most) for most in (7, 4, 2))
"""7 and the result are the 8 buffers that a WebGPU shader has."""

_WAYS: dict[str, tuple[Way, ...]] = {
    "Abs": (_abs_by_relu,),
    "Add": (_add_by_sub,),
    "Cast": (_cast_by_where,),
    "Clip": (_clip_by_min_max, _clip_in_rank_four, _clip_by_relu, _clip_by_reciprocal),
    "Concat": (*_OF_CONCATS, reshaping.in_block, reshaping.as_channels),
    "Div": (_div_by_reciprocal,),
    "Gather": (reshaping.gather_by_slices,),
    "Identity": (reshaping.by_reshape, _identity_by_sum),
    "Less": (_less_by_greater,),
    "MatMul": (_matmul_by_rows, _matmul_by_gemm, _matmul_by_conv),
    "Mul": (_minus_by_neg, _minus_by_sub),
    "Reciprocal": (_reciprocal_by_div,),
    "Relu": (_relu_by_max, _relu_by_clip),
    "Reshape": (reshaping.reshape_by_ones, reshaping.reshape_by_parts),
    "Sigmoid": (_sigmoid_by_tanh, _sigmoid_by_exp),
    "Slice": (
        reshaping.slice_by_split, reshaping.slice_by_gather, reshaping.slice_of_all_axes, reshaping.in_block,
    ),
    "Split": (reshaping.split_by_slices, reshaping.in_block),
    "Squeeze": (reshaping.by_reshape, reshaping.squeeze_by_gather),
    "Sub": (_sub_by_add,),
    "Tanh": (_tanh_by_sigmoid,),
    "Transpose": (reshaping.by_reshape, reshaping.transpose_by_parts),
    "Unsqueeze": (reshaping.by_reshape,),
    "Where": (_where_by_sum,),
}  # fmt: skip

_RANKED = (
    "Abs", "Add", "Clip", "Div", "Elu", "Exp", "HardSigmoid", "LeakyRelu", "Log", "Max", "Min", "Mul", "Neg",
    "Reciprocal", "Relu", "Sigmoid", "Softplus", "Softsign", "Sub", "Tanh", "Transpose",
)  # fmt: skip
"""What some runtimes take in rank 4 only."""

ALTERNATIVES: Mapping[str, tuple[Way, ...]] = {
    op_type: (*((reshaping.in_rank_four,) if op_type in _RANKED else ()), *_WAYS.get(op_type, ()))
    for op_type in sorted({*_WAYS, *_RANKED})
}
