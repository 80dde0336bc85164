"""The table of causality rules, by operator. Operators that are not in the table are refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from rnn_lower.ir.traits import ELEMENTWISE
from rnn_lower.options import OP_TYPES
from rnn_lower.streaming.axis_info import AxisInfo, RuleContext
from rnn_lower.streaming.rules import pointwise, positions, recurrence, repetition, reshaping, windows


@dataclasses.dataclass(frozen=True)
class Rule:
    """The rule for a family of operators; docs/streaming.md lists what it accepts and refuses.

    operators: their names.  follow: returns the infos of the outputs, or raises UnsupportedError.
    lead: whether inputs may have left padding.
    """

    operators: tuple[str, ...]
    follow: Callable[[RuleContext], list[AxisInfo]]
    lead: bool = False


TABLE = (
    Rule(OP_TYPES, recurrence.recurrent),
    Rule(ELEMENTWISE, pointwise.elementwise, lead=True),
    Rule(("Dropout",), pointwise.dropout, lead=True),
    Rule(("Transpose",), reshaping.transpose, lead=True),
    Rule(("Reshape",), reshaping.reshape, lead=True),
    Rule(("Flatten",), reshaping.flatten, lead=True),
    Rule(("Squeeze",), reshaping.squeeze, lead=True),
    Rule(("Unsqueeze",), reshaping.unsqueeze, lead=True),
    Rule(("Split",), reshaping.split, lead=True),
    Rule(("Concat",), windows.concat, lead=True),
    Rule(("Slice",), positions.slice_, lead=True),
    Rule(("Range",), positions.range_),
    Rule(("Gather",), positions.gather, lead=True),
    Rule(("Expand",), repetition.expand),
    Rule(("ConstantOfShape",), repetition.constant_of_shape),
    Rule(("Tile",), repetition.tile),
    Rule(("MatMul",), pointwise.matmul, lead=True),
    Rule(("Gemm",), pointwise.gemm, lead=True),
    Rule(("Einsum",), pointwise.einsum, lead=True),
    Rule(("CumSum",), pointwise.cumulative_sum),
    Rule(("Resize",), pointwise.resize, lead=True),
    Rule(("BatchNormalization",), pointwise.not_channels, lead=True),
    Rule(("Softmax", "LogSoftmax", "Hardmax", "LpNormalization"), pointwise.other_axis, lead=True),
    Rule(("LayerNormalization", "RMSNormalization"), pointwise.later_axes, lead=True),
    Rule(("InstanceNormalization", "GroupNormalization"), pointwise.only_batch),
    Rule(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
          "ReduceLogSumExp", "ReduceSumSquare"), pointwise.reduce, lead=True),
    Rule(("ArgMax", "ArgMin"), pointwise.arg_reduce, lead=True),
    Rule(("TopK",), pointwise.top, lead=True),
    Rule(("OneHot",), pointwise.one_hot, lead=True),
    Rule(("QuantizeLinear", "DequantizeLinear"), pointwise.quantize, lead=True),
    Rule(("Conv",), windows.convolution, lead=True),
    Rule(("MaxPool", "AveragePool", "LpPool"), windows.pooling, lead=True),
    Rule(("GlobalAveragePool", "GlobalMaxPool"), windows.global_pooling),
    Rule(("ConvTranspose",), windows.transposed_convolution, lead=True),
    Rule(("Pad",), windows.pad, lead=True),
    Rule(("Scan",), recurrence.scan),
    Rule(("If",), recurrence.choice),
)  # fmt: skip

RULES = {operator: rule for rule in TABLE for operator in rule.operators}
