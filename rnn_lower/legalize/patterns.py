"""The table of legalization patterns: from an operator that a target lacks to nodes that it supports.

A pattern receives a builder and the call, and writes nodes that compute the same; it returns their results, or None if
it does not match the call. Patterns are tried in the listed order: exact ones first. The docstring of a pattern states
whether it rounds, or differs for numbers that are not finite.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import onnx_ir as ir

from rnn_lower.builder.constants import Constant, filled, negate
from rnn_lower.builder.graph_builder import Operand
from rnn_lower.builder.scalar_functions import EQUATIONS
from rnn_lower.builder.versions import BROADCASTS_BY_RULE, CLIP_TAKES_DOUBLE, MAX_BROADCASTS
from rnn_lower.ir.padding import pads_of
from rnn_lower.ir.schemas import DEFAULT_DOMAINS, schema_of
from rnn_lower.ir.traits import FINITE
from rnn_lower.ir.walk import NODE_MARK, constant, consumed_values, has_infinite_attribute, upstream
from rnn_lower.legalize import data_movement
from rnn_lower.legalize.call import Call, Pattern, PatternBuilder, Results, result_sizes

NEAR = 128.0
"""The maximum width of a Clip that becomes Relu nodes, which round to the last place of the width."""


# -- arithmetic -------------------------------------------------------------------------------------------------------


def _is_number(b: PatternBuilder, operand: Operand, number: float, other: Operand) -> bool:
    """Whether an operand is the constant `number` and adds no axis to the other one."""
    info, shape = b.info(operand), b.info(other).shape
    return info.constant and info.content == (number,) and len(info.shape or ()) <= len(shape or ())


def _identity_by_sum(b: PatternBuilder, call: Call) -> Results:
    """x + 0; -0 becomes 0. Emits a node even if x is a constant: a result of the model must not be an initializer."""
    return [b.binary("Add", call.x, b.scalar(0.0), call.name)] if b.is_float(call.x) else None


def _sub_by_add(b: PatternBuilder, call: Call) -> Results:
    left, right = call.inputs
    return [b.add(b.mul(right, b.scalar(-1.0), f"minus_{call.name}"), left, call.name)]


def _add_by_sub(b: PatternBuilder, call: Call) -> Results:
    left, right = call.inputs
    if b.opset < BROADCASTS_BY_RULE:
        return None
    minus = negate(right, "minus") if isinstance(right, Constant) else b.mul(right, b.scalar(-1.0), "minus")
    return [b.op("Sub", left, minus, name=call.name)]


def _minus_by_neg(b: PatternBuilder, call: Call) -> Results:
    left, right = call.inputs
    return [b.op("Neg", left, name=call.name)] if _is_number(b, right, -1.0, left) else None


def _minus_by_sub(b: PatternBuilder, call: Call) -> Results:
    """0 - x; for x = 0 the result is 0 instead of -0."""
    left, right = call.inputs
    is_minus = b.opset >= BROADCASTS_BY_RULE and _is_number(b, right, -1.0, left)
    return [b.op("Sub", b.scalar(0.0), left, name=call.name)] if is_minus else None


def _div_by_reciprocal(b: PatternBuilder, call: Call) -> Results:
    """x * (1 / y); rounds twice."""
    left, right = call.inputs
    return [b.mul(left, b.op("Reciprocal", right, name="inverse"), call.name)]


def _reciprocal_by_div(b: PatternBuilder, call: Call) -> Results:
    if b.opset < BROADCASTS_BY_RULE:
        return None
    return [b.op("Div", b.scalar(1.0), call.x, name=call.name)]


def _abs_by_relu(b: PatternBuilder, call: Call) -> Results:
    below = b.op("Relu", b.mul(call.x, b.scalar(-1.0), "minus_x"), name="below_zero")
    return [b.add(b.op("Relu", call.x, name="above_zero"), below, call.name)]


def _relu_by_max(b: PatternBuilder, call: Call) -> Results:
    return [b.op("Max", call.x, b.scalar(0.0), name=call.name)] if b.opset >= MAX_BROADCASTS else None


def _relu_by_clip(b: PatternBuilder, call: Call) -> Results:
    double = b.dtype != ir.DataType.FLOAT and b.opset < CLIP_TAKES_DOUBLE
    return None if double else [b.op_direct("Clip", call.x, name=call.name, min=0.0, max=None)]


def _clip_by_min_max(b: PatternBuilder, call: Call) -> Results:
    low, high = call.parameters["min"], call.parameters["max"]
    is_nan = any(bound is not None and math.isnan(bound) for bound in (low, high))  # onnxruntime's Clip ignores it
    if b.opset < MAX_BROADCASTS or (low is None and high is None) or is_nan:
        return None
    if high is None:
        return [b.op_direct("Max", call.x, _number_like(b, low, call.x), name=call.name)]
    x = call.x if low is None else b.op_direct(
        "Max", call.x, _number_like(b, low, call.x), name=f"{call.name}_below"
    )  # fmt: skip
    return [b.op_direct("Min", x, _number_like(b, high, call.x), name=call.name)]


def _number_like(b: PatternBuilder, number: float, x: Operand) -> Operand:
    """Return a number, with the rank of x if the target limits ranks."""
    shape = b.info(x).shape if b.limits_ranks("Max", "Min") else None
    return b.reshape(b.scalar(number), [1] * len(shape or ()))


def _clip_in_rank_four(b: PatternBuilder, call: Call) -> Results:
    """Wrap the whole Clip, not each of its nodes, in Reshapes if the target limits ranks."""
    return data_movement.in_rank_four(b, call, direct=False) if b.limits_ranks("Max", "Min", "Relu") else None


def _clip_by_relu(b: PatternBuilder, call: Call) -> Results:
    """high - max(0, width - max(0, x - low)); rounds to the last place of the width, which must be small."""
    low, high = call.parameters["min"], call.parameters["max"]
    if None in (low, high) or not 0 < high - low <= NEAR:
        return None
    from_low = b.op("Relu", b.add(call.x, b.scalar(-low), "from_low") if low else call.x, name="above_low")
    to_high = b.add(b.mul(from_low, b.scalar(-1.0), "minus"), b.scalar(high - low), "to_high")
    below = b.mul(b.op("Relu", to_high, name="below_high"), b.scalar(-1.0), "minus_rest")
    return [b.add(below, b.scalar(high), call.name)]


def _clip_by_reciprocal(b: PatternBuilder, call: Call) -> Results:
    """min(x, high) as 1 / max(1 / x, 1 / high) on both sides of 0; rounding is relative, so the range may be wide."""
    low, high = call.parameters["min"], call.parameters["max"]
    if None in (low, high) or not low <= 0 <= high:
        return None
    return [b.clip_by_reciprocal(call.x, low, high, call.name)]


def _less_by_greater(b: PatternBuilder, call: Call) -> Results:
    left, right = call.inputs
    return [b.op("Greater", right, left, name=call.name)] if b.opset >= BROADCASTS_BY_RULE else None


def _less_of_floats(b: PatternBuilder, call: Call) -> Results:
    """Compare positions and lengths as floating-point numbers, which are exact up to 2^24."""
    left, right = call.inputs
    dtype = b.info(left).dtype
    if dtype is None or not dtype.is_integer():
        return None
    if NODE_MARK not in call.node.metadata_props:  # integers of the model may be larger
        return None
    numbers = [b.cast(operand, dtype, b.dtype, "number") for operand in (left, right)]
    return [b.op_direct("Less", *numbers, name=call.name)]


def _where_by_sum(b: PatternBuilder, call: Call) -> Results:
    """m x + (1 - m) y; NaN and infinity of the operand that is not selected reach the result."""
    mask, chosen, otherwise = call.inputs
    is_own = NODE_MARK in call.node.metadata_props
    if not b.is_float(chosen) or not all(_is_finite(b, operand, is_own) for operand in (chosen, otherwise)):
        return None
    numbers = b.cast(mask, ir.DataType.BOOL, b.dtype, "mask")
    selected = None if _is_number(b, chosen, 0.0, otherwise) else b.mul(numbers, chosen)
    rest = None if _is_number(b, otherwise, 0.0, chosen) else b.mul(b.sub(b.scalar(1.0), numbers, "rest"), otherwise)
    return None if selected is None and rest is None else [b.add(selected, rest, call.name)]


def _is_finite(b: PatternBuilder, operand: Operand, is_own: bool) -> bool:
    """Whether an operand has no NaN or infinity, such as masked scores, if the inputs of the model have none.

    is_own: whether lowering emitted the node; then it reads only activations and states.
    """
    if isinstance(operand, Constant):
        return bool(np.isfinite(operand.load().astype(np.float64)).all())

    def floats(values: Iterable[ir.Value | None]) -> list[ir.Value]:
        read = [value for value in values if value is not None]
        return [value for value in read if (dtype := b.info(value).dtype) is None or dtype.is_floating_point()]

    for value in upstream(floats([] if is_own else [operand]), lambda node, _: floats(consumed_values(node))):
        array, node = constant(value), value.producer()
        if array is not None and not np.isfinite(array.astype(np.float64)).all():
            return False
        if array is None and node is not None and not _keeps_finite(b, node):
            return False
    return True


def _keeps_finite(b: PatternBuilder, node: ir.Node) -> bool:
    """Whether a node makes finite numbers of finite numbers, if sums and products do not overflow."""
    if node.op_type == "Cast":
        source, goal = (b.info(value).dtype for value in (node.inputs[0], node.outputs[0]))
        if source is None or goal is None or source == goal:
            return source is not None
        return goal.bitwidth >= 32 and not (source.is_floating_point() and source.bitwidth > goal.bitwidth)
    if node.attributes.get_float("epsilon", 1.0) == 0.0:  # a variance of 0 would be a divisor
        return False
    if node.op_type != "Clip" and has_infinite_attribute(node):  # such as the value of a ConstantOfShape
        return False
    return node.domain in DEFAULT_DOMAINS and node.op_type in FINITE


def _explicit_value(b: PatternBuilder, call: Call) -> Results:
    """Write the default value of ConstantOfShape, 0 of float32, which some runtimes do not know."""
    if "value" in call.parameters:
        return None
    zero = ir.tensor(np.zeros(1, np.float32))
    return [b.op("ConstantOfShape", call.x, name=call.name, value=zero)]


def _cast_by_where(b: PatternBuilder, call: Call) -> Results:
    """Replace Cast of booleans to numbers with Where."""
    if b.info(call.x).dtype != ir.DataType.BOOL or call.parameters["to"] != int(b.dtype):
        return None
    return [b.op_direct("Where", call.x, b.scalar(1.0), b.scalar(0.0), name=call.name)]


def _cast_of_less(b: PatternBuilder, call: Call) -> Results:
    """Cast of (position < length) as min(1, max(0, length - position)), for integers."""
    node = call.x.producer() if isinstance(call.x, ir.Value) else None
    if node is None or node.op_type not in ("Less", "Greater") or call.parameters["to"] != int(b.dtype):
        return None
    if NODE_MARK not in call.node.metadata_props:  # integers of the model may be larger
        return None
    low, high = node.inputs if node.op_type == "Less" else node.inputs[::-1]
    dtype = b.info(low).dtype
    if dtype is None or not dtype.is_integer():
        return None
    position, length = (b.cast(b.operand(value), dtype, b.dtype, "number") for value in (low, high))
    return [b.clip(b.sub(length, position, "left"), 0.0, 1.0, call.name)]


# -- activations ------------------------------------------------------------------------------------------------------


def _sigmoid_by_tanh(b: PatternBuilder, call: Call) -> Results:
    """(tanh(x / 2) + 1) / 2; rounds to the last place of 1."""
    half = b.scalar(0.5)
    bent = b.mul(b.op("Tanh", b.mul(call.x, half, "half")), half, "bent")
    return [b.add(bent, half, call.name)]


def _tanh_by_sigmoid(b: PatternBuilder, call: Call) -> Results:
    """2 sigmoid(2 x) - 1; rounds to the last place of 1."""
    two = b.scalar(2.0)
    bent = b.mul(b.op("Sigmoid", b.mul(call.x, two, "twice")), two, "bent")
    return [b.add(bent, b.scalar(-1.0), call.name)]


def _sigmoid_by_exp(b: PatternBuilder, call: Call) -> Results:
    """1 / (1 + e^-x); if e^-x overflows to infinity, the result is 0."""
    grown = b.op("Exp", b.mul(call.x, b.scalar(-1.0), "minus_x"), name="grown")
    return [b.op("Reciprocal", b.add(grown, b.scalar(1.0)), name=call.name)]


def _by_equation(b: PatternBuilder, call: Call) -> Results:
    """Replace an activation with its equation."""
    schema = schema_of(call.op_type, b.opset)
    defaults = {} if schema is None else {name: held.default_value.f for name, held in schema.attributes.items()}
    alpha, beta = ({"alpha": 0.0, "beta": 0.0, **defaults, **call.parameters}[name] for name in ("alpha", "beta"))
    with b.scope(call.name):
        return [EQUATIONS[call.op_type](b, call.x, alpha, beta)]


# -- products ---------------------------------------------------------------------------------------------------------


def _columns(b: PatternBuilder, matrix: Operand) -> tuple[int, int] | None:
    sizes = b.info(matrix).sizes
    return (sizes[0], sizes[1]) if sizes is not None and len(sizes) == 2 else None


def _matmul_by_rows(b: PatternBuilder, call: Call) -> Results:
    """Replace MatMul of a batch of matrices with MatMul of one matrix."""
    (left, right), (before, after) = call.inputs, (b.info(call.inputs[0]).sizes, result_sizes(call))
    if before is None or after is None or len(before) < 3 or _columns(b, right) is None:
        return None
    rows = b.reshape(left, [math.prod(before[:-1]), before[-1]], "rows")
    return [b.reshape(b.matmul(rows, right), after, call.name)]


def _matmul_by_gemm(b: PatternBuilder, call: Call) -> Results:
    (left, right), columns = call.inputs, _columns(b, call.inputs[1])
    before = b.info(left).shape
    if columns is None or before is None or len(before) != 2:
        return None
    more = [] if b.opset >= 11 else [filled(0.0, (columns[1],), b.dtype)]  # older versions require C
    return None if b.opset < BROADCASTS_BY_RULE else [b.op("Gemm", left, right, *more, name=call.name)]


def _gemm_by_matmul(b: PatternBuilder, call: Call) -> Results:
    """alpha A B + beta C, in which A and B may be transposed."""
    if b.opset < BROADCASTS_BY_RULE:
        return None
    held = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0, **call.parameters}
    left, right = (
        b.transpose(x, [1, 0]) if held[f"trans{name}"] else x for name, x in zip("AB", call.inputs, strict=False)
    )
    product = b.matmul(left, right)
    if held["alpha"] != 1:
        product = b.mul(product, b.scalar(held["alpha"]))
    if len(call.inputs) < 3 or call.inputs[2] is None or not held["beta"]:
        return [product]
    addend = call.inputs[2] if held["beta"] == 1 else b.mul(call.inputs[2], b.scalar(held["beta"]))
    return [b.add(product, addend, call.name)]


def _matmul_by_conv(b: PatternBuilder, call: Call) -> Results:
    """A 1 x 1 Conv over [1, K, rows, 1]: channels are the columns, spatial positions the rows."""
    (left, right), (before, after) = call.inputs, (b.info(call.inputs[0]).sizes, result_sizes(call))
    columns = _columns(b, right)
    if before is None or after is None or columns is None or len(before) < 2 or b.dtype != ir.DataType.FLOAT:
        return None  # onnxruntime, which checks the result, has Conv in float32 only
    (K, M), rows = columns, math.prod(before[:-1])
    kernel = b.reshape(b.transpose(right, [1, 0], "kernel_rows"), [M, K, 1, 1], "kernel")
    if rows == 1:
        x = b.reshape(left, [1, K, 1, 1], "channels")
        return [b.reshape(b.op("Conv", x, kernel, name="conv", kernel_shape=[1, 1]), after, call.name)]
    x = b.transpose(b.reshape(left, [1, rows, K, 1], "places"), [0, 2, 1, 3], "channels")
    y = b.op("Conv", x, kernel, name="conv", kernel_shape=[1, 1])
    return [b.reshape(b.transpose(y, [0, 2, 1, 3], "rows"), after, call.name)]


def _explicit_pads(b: PatternBuilder, call: Call) -> Results:
    """The pads that auto_pad SAME_UPPER or SAME_LOWER stands for, if the sizes are known; not with dilations."""
    held, sizes = dict(call.parameters), b.info(call.x).sizes
    mode, weights = held.pop("auto_pad", ""), call.inputs[1] if len(call.inputs) > 1 else None
    kernel = held.get("kernel_shape") or (b.info(weights).sizes or ())[2:]
    if not mode.startswith("SAME") or sizes is None or not kernel or held.get("ceil_mode") or len(call.names) > 1:
        return None
    steps = held.get("strides", [1] * len(kernel))
    if not len(kernel) == len(steps) == len(sizes) - 2 or max(held.get("dilations", [1])) > 1:
        return None
    pads = pads_of(sizes[2:], kernel, steps, None, mode)
    if min(map(sum, pads)) < 0:  # on which runtimes differ
        return None
    held["pads"] = [count for side in zip(*pads, strict=True) for count in side]
    return [b.op(call.op_type, *call.inputs, name=call.name, **held)]


# -- bodies -----------------------------------------------------------------------------------------------------------


def _scan_between_flips(b: PatternBuilder, call: Call) -> Results:
    """Replace a Scan that runs backward along first axes with a forward Scan between flips."""
    axes = ("scan_input_axes", "scan_output_axes")
    if any(any(call.parameters.get(name) or ()) for name in axes):
        return None
    count, body = call.parameters["num_scan_inputs"], call.parameters["body"]
    states = len(call.inputs) - count
    inputs = list(call.inputs)
    backwards = call.parameters.get("scan_input_directions") or [0] * count
    sequence, shape = inputs[states], b.info(inputs[states]).shape
    if not shape:
        return None
    length = b.size(sequence, 0, len(shape), "length") if shape[0] is None else shape[0]
    for k, backward in enumerate(backwards):
        if backward:
            inputs[states + k] = b.flip(inputs[states + k], length)
    # A graph can belong to one node only, so detach the body first.
    call.node.attributes.pop("body")
    results: list[Operand] = list(b.op_multi("Scan", inputs, call.names, body=body, num_scan_inputs=count))
    for k, backward in enumerate(call.parameters.get("scan_output_directions") or ()):
        if backward:
            results[states + k] = b.flip(results[states + k], length, call.names[states + k])
    return results


_OF_CONCATS = tuple(functools.partial(data_movement.concat_of_concats, most) for most in (7, 4, 2))
"""A WebGPU shader has 8 buffers: 7 inputs and the result."""

_AS_CHANNELS = functools.partial(data_movement.in_block, channels=True)

_BY_OPERATOR: dict[str, tuple[Pattern, ...]] = {
    "Abs": (_abs_by_relu,),
    "Add": (_add_by_sub,),
    **dict.fromkeys(("AveragePool", "Conv", "MaxPool"), (_explicit_pads,)),
    "Cast": (_cast_by_where, _cast_of_less),
    "Clip": (_clip_by_min_max, _clip_in_rank_four, _clip_by_relu, _clip_by_reciprocal),
    "Concat": (data_movement.concat_of_one, *_OF_CONCATS, data_movement.in_block, _AS_CHANNELS),
    "ConstantOfShape": (_explicit_value,),
    "Div": (_div_by_reciprocal,),
    "Gather": (data_movement.gather_by_slices,),
    "Gemm": (_gemm_by_matmul,),
    "Identity": (data_movement.by_reshape, _identity_by_sum),
    "Less": (_less_by_greater, _less_of_floats),
    "MatMul": (_matmul_by_rows, _matmul_by_gemm, _matmul_by_conv),
    "Mul": (_minus_by_neg, _minus_by_sub),
    "Reciprocal": (_reciprocal_by_div,),
    "Relu": (_relu_by_max, _relu_by_clip),
    "Reshape": (data_movement.reshape_without_zero, data_movement.reshape_by_ones, data_movement.reshape_by_parts),
    "Scan": (_scan_between_flips,),
    "Sigmoid": (_sigmoid_by_tanh, _sigmoid_by_exp),
    "Slice": (
        data_movement.slice_by_split, data_movement.slice_by_gather, data_movement.slice_of_all_axes,
        data_movement.in_block,
    ),
    "Split": (data_movement.split_by_slices, data_movement.in_block),
    "Squeeze": (data_movement.by_reshape, data_movement.squeeze_by_gather),
    "Sub": (_sub_by_add,),
    "Tanh": (_tanh_by_sigmoid,),
    "Transpose": (data_movement.by_reshape, data_movement.transpose_by_parts),
    "Unsqueeze": (data_movement.by_reshape,),
    "Where": (_where_by_sum,),
    **dict.fromkeys(EQUATIONS, (_by_equation,)),
}  # fmt: skip

_RANKED = (
    "Abs", "Add", "Clip", "Div", "Elu", "Exp", "HardSigmoid", "LeakyRelu", "Log", "Max", "Min", "Mul", "Neg",
    "Reciprocal", "Relu", "Sigmoid", "Softplus", "Softsign", "Sub", "Tanh", "Transpose",
)  # fmt: skip
"""Operators that some runtimes support only in rank 4."""

_OF_FLOATS = (
    *EQUATIONS,
    "Abs",
    "Add",
    "Clip",
    "Div",
    "Gemm",
    "MatMul",
    "Mul",
    "Reciprocal",
    "Relu",
    "Sigmoid",
    "Sub",
    "Tanh",
)
"""Operators whose patterns are valid for floats only; nodes of the model may compute integers."""


def _of_floats(pattern: Pattern, b: PatternBuilder, call: Call) -> Results:
    return pattern(b, call) if b.is_float(call.x) else None


def _patterns(op_type: str) -> Iterator[Pattern]:
    """Yield the patterns of an operator in the order in which they are tried."""
    if op_type in _RANKED:
        yield data_movement.in_rank_four
    for pattern in _BY_OPERATOR.get(op_type, ()):
        yield functools.partial(_of_floats, pattern) if op_type in _OF_FLOATS else pattern


PATTERNS: Mapping[str, tuple[Pattern, ...]] = {
    op_type: tuple(_patterns(op_type)) for op_type in sorted({*_BY_OPERATOR, *_RANKED})
}
