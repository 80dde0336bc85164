"""The table of causality rules, by operator. An operator that is not in it is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from rnn_lower.options import OP_TYPES
from rnn_lower.streaming import pointwise, positions, recurrence, shapes, windows
from rnn_lower.streaming.axis_info import AxisInfo, RuleContext


@dataclasses.dataclass(frozen=True)
class Rule:
    """A family of operators.

    operators: their names.  follow: returns the axis info of the outputs, or raises UnsupportedError.
    accepted, refused: for docs/streaming.md.  lead: whether left padding may come before the stream.
    """

    operators: tuple[str, ...]
    follow: Callable[[RuleContext], list[AxisInfo]]
    accepted: str
    refused: str
    lead: bool = False


ELEMENTWISE = (
    "Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitShift", "BitwiseAnd", "BitwiseNot",
    "BitwiseOr", "BitwiseXor", "Cast", "CastLike", "Ceil", "Celu", "Clip", "Cos", "Cosh", "Div", "Elu",
    "Equal", "Erf", "Exp", "Floor", "Gelu", "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity",
    "IsInf", "IsNaN", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Mean", "Min", "Mish", "Mod", "Mul", "Neg",
    "Not", "Or", "PRelu", "Pow", "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh",
    "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Swish", "Tan", "Tanh", "ThresholdedRelu", "Where", "Xor",
)  # fmt: skip

TABLE = (
    Rule(OP_TYPES, recurrence.recurrent,
         "forward over time: the state is carried; over another axis in any direction, with the frames in the batch",
         "reverse and bidirectional over time; an initial state that depends on the stream"),
    Rule(ELEMENTWISE, pointwise.elementwise, "inputs that broadcast along time, or have the stream along the same axis",
         "a constant with different values for each frame, such as a positional encoding", lead=True),
    Rule(("Dropout",), pointwise.dropout, "as in inference", "training mode; the mask", lead=True),
    Rule(("Transpose",), shapes.transpose, "any order", "", lead=True),
    Rule(("Reshape",), shapes.reshape,
         "shapes computed from sizes: frames in an axis of their own, in the batch, or several merged into one",
         "shapes that are unknown, or mix frames"),
    Rule(("Flatten",), shapes.flatten, "as Reshape", "as Reshape"),
    Rule(("Squeeze",), shapes.squeeze, "other axes, listed in `axes`", "the stream's axis; without `axes`"),
    Rule(("Unsqueeze",), shapes.unsqueeze, "any axes", "", lead=True),
    Rule(("Split",), shapes.split, "other axes", "over time", lead=True),
    Rule(("Concat",), windows.concat,
         "along other axes, if all inputs have the stream; over time, a constant before the stream, as left padding",
         "anything else over time; a constant along other axes", lead=True),
    Rule(("Slice",), positions.slice_,
         "other axes; over time, removing padding, the last frame, [-1:], all but the first or (`--delay`) the last"
         " frames, every k-th frame; the first rows of a table, one for each frame",
         "any other frames", lead=True),
    Rule(("Range",), positions.range_, "the indices of the frames: the position of the chunk is carried",
         "any other range"),
    Rule(("Gather",), positions.gather,
         "rows of a table (Embedding); other axes; the last frame, -1; each frame by its index, as unfolding over other"
         " axes does", "any other frames"),
    Rule(("Expand",), shapes.expand, "other axes; one row for all frames", "over time"),
    Rule(("ConstantOfShape",), shapes.constant_of_shape, "one value for all frames, as for initial states",
         "shapes that are unknown"),
    Rule(("Tile",), shapes.tile, "other axes; one row for all frames", "over time"),
    Rule(("MatMul",), pointwise.matmul, "frames as rows, columns or matrices",
         "products of frames with each other (attention); sums over frames"),
    Rule(("Gemm",), pointwise.gemm, "frames as rows", "sums over frames"),
    Rule(("Einsum",), pointwise.einsum, "the stream as one label of the output", "sums over the stream; an ellipsis",
         lead=True),
    Rule(("CumSum",), pointwise.cumulative_sum, "over time: the sum is carried; over other axes", "reverse over time"),
    Rule(("Resize",), pointwise.resize, "other axes", "over time; crops of a region; antialias", lead=True),
    Rule(("BatchNormalization",), pointwise.not_channels, "known statistics, one for each channel",
         "training mode; statistics for each frame", lead=True),
    Rule(("Softmax", "LogSoftmax", "Hardmax", "LpNormalization"), pointwise.other_axis, "over other axes", "over time"),
    Rule(("LayerNormalization", "RMSNormalization"), pointwise.later_axes, "over axes after time",
         "over time; a scale for each frame"),
    Rule(("InstanceNormalization", "GroupNormalization"), pointwise.only_batch, "with the frames in the batch",
         "over time"),
    Rule(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
          "ReduceLogSumExp", "ReduceSumSquare"), pointwise.reduce, "over other axes", "over time, or over all axes"),
    Rule(("ArgMax", "ArgMin"), pointwise.arg_reduce, "over other axes", "over time"),
    Rule(("QuantizeLinear", "DequantizeLinear"), pointwise.quantize, "known scales", "a scale for each frame"),
    Rule(("Conv",), windows.convolution,
         "over time, dilated or strided: the frames that it looks back at are carried; outputs are delayed where the"
         " left padding is less than the window, and where there is right padding (`--delay`)",
         "right padding without `--delay`; padding that depends on the length", lead=True),
    Rule(("MaxPool", "AveragePool", "LpPool"), windows.pooling, "as Conv",
         "as Conv; averages that exclude the padding", lead=True),
    Rule(("GlobalAveragePool", "GlobalMaxPool"), windows.global_pooling, "frames in the batch", "over time"),
    Rule(("ConvTranspose",), windows.transposed_convolution,
         "over time: the frames that it looks back at are carried, or with strides the outputs beyond the chunk;"
         " outputs beyond the end are cut off, or left out (`--delay`)",
         "strides over time that are larger than the window", lead=True),
    Rule(("Pad",), windows.pad,
         "constant left padding: these frames are carried, and a later node may cut frames off at the end; right"
         " padding that a later node cuts off, or with `--delay`; other axes",
         "right padding without `--delay`; reflection over time", lead=True),
    Rule(("If",), recurrence.choice,
         "a condition that is the same for the whole stream; states in a branch are carried",
         "a condition that depends on the stream"),
)  # fmt: skip

RULES = {operator: rule for rule in TABLE for operator in rule.operators}

RANDOM = ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli")
"""Operators whose output is random."""
