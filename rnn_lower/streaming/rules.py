"""The table: how each operator passes the stream on. What is not in it is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from rnn_lower.options import OP_TYPES
from rnn_lower.streaming import pointwise, positions, recurrence, shapes, windows
from rnn_lower.streaming.axis_info import AxisInfo, RuleContext


@dataclasses.dataclass(frozen=True)
class Rule:
    """A family of operators.

    operators: their names.  follow: answers what is known of the outputs, or raises UnsupportedError.
    accepted, refused: for people, as docs/streaming.md has them.  lead: whether padded frames may come first.
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
         "forward over time: the state is carried; any direction over another axis, with the frames in the batch",
         "reverse and bidirectional over time; an initial state that depends on the stream"),
    Rule(ELEMENTWISE, pointwise.elementwise, "inputs that broadcast along time, or carry the stream alike",
         "a constant with values of its own for each frame, such as a positional encoding", lead=True),
    Rule(("Dropout",), pointwise.dropout, "as in inference", "training mode; the mask", lead=True),
    Rule(("Transpose",), shapes.transpose, "any order", "", lead=True),
    Rule(("Reshape",), shapes.reshape,
         "shapes that follow from sizes: frames in an axis of their own, in the batch, or several of them in one",
         "shapes that are not known, or mix frames"),
    Rule(("Flatten",), shapes.flatten, "as Reshape", "as Reshape"),
    Rule(("Squeeze",), shapes.squeeze, "other axes, by name", "the stream's axis; no axes named"),
    Rule(("Unsqueeze",), shapes.unsqueeze, "any axes", "", lead=True),
    Rule(("Split",), shapes.split, "other axes", "over time", lead=True),
    Rule(("Concat",), windows.concat,
         "along other axes, all inputs with the stream; a constant in front of the stream, as Pad has it",
         "over time; with a constant elsewhere", lead=True),
    Rule(("Slice",), positions.slice_,
         "other axes; frames that are padded in front or behind; the last frame, [-1:]; all but the first ones, or the"
         " last ones (`--delay`); every k-th frame; the first rows of a table, one for each frame",
         "any other frames", lead=True),
    Rule(("Range",), positions.range_, "the numbers of the frames: where a chunk begins is carried",
         "any other count"),
    Rule(("Gather",), positions.gather,
         "rows of a table (Embedding); other axes; the last frame, -1; each frame by its number, as an unfolding over"
         " other axes has it", "any other frames"),
    Rule(("Expand",), shapes.expand, "other axes; one row for all frames", "over time"),
    Rule(("ConstantOfShape",), shapes.constant_of_shape, "one number for all frames, as initial states have it",
         "shapes that are not known"),
    Rule(("Tile",), shapes.tile, "other axes; one row for all frames", "over time"),
    Rule(("MatMul",), pointwise.matmul, "frames as rows, columns or matrices",
         "products of frames with each other (attention); sums over frames"),
    Rule(("Gemm",), pointwise.gemm, "frames as rows", "sums over frames"),
    Rule(("Einsum",), pointwise.einsum, "the stream as one label of the output", "sums over the stream; an ellipsis",
         lead=True),
    Rule(("CumSum",), pointwise.cumulative_sum, "over time: the sum is carried; over other axes", "reverse over time"),
    Rule(("Resize",), pointwise.resize, "other axes", "over time; crops of a region; antialias", lead=True),
    Rule(("BatchNormalization",), pointwise.not_channels, "statistics that are known, one for each channel",
         "training mode; statistics for each frame", lead=True),
    Rule(("Softmax", "LogSoftmax", "Hardmax", "LpNormalization"), pointwise.other_axis, "over other axes", "over time"),
    Rule(("LayerNormalization", "RMSNormalization"), pointwise.later_axes, "over axes behind time",
         "over time; a scale for each frame"),
    Rule(("InstanceNormalization", "GroupNormalization"), pointwise.only_batch, "with the frames in the batch",
         "over time"),
    Rule(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
          "ReduceLogSumExp", "ReduceSumSquare"), pointwise.reduce, "over other axes", "over time, or over all axes"),
    Rule(("ArgMax", "ArgMin"), pointwise.arg_reduce, "over other axes", "over time"),
    Rule(("QuantizeLinear", "DequantizeLinear"), pointwise.quantize, "known scales", "a scale for each frame"),
    Rule(("Conv",), windows.convolution,
         "over time, dilated or strided: the frames that it looks back at are carried; with less padding in front than"
         " its window its frames come late, so too with padding behind (`--delay`)",
         "padding behind without `--delay`; padding that depends on the length", lead=True),
    Rule(("MaxPool", "AveragePool", "LpPool"), windows.pooling, "as Conv",
         "as Conv; averages that leave the padding out", lead=True),
    Rule(("GlobalAveragePool", "GlobalMaxPool"), windows.global_pooling, "frames in the batch", "over time"),
    Rule(("ConvTranspose",), windows.transposed_convolution,
         "over time: the frames that it looks back at are carried, or with strides what it makes beyond the chunk; what"
         " it makes behind the stream is cut off, or left out (`--delay`)",
         "strides that are larger than the window over time", lead=True),
    Rule(("Pad",), windows.pad,
         "a constant in front: these frames are carried, and may be cut off behind; behind where it is cut off, or with"
         " `--delay`; other axes", "behind without `--delay`; reflection over time", lead=True),
    Rule(("If",), recurrence.choice,
         "a condition that is the same for the whole stream; states in a branch are carried",
         "a condition that depends on the stream"),
)  # fmt: skip

RULES = {operator: rule for rule in TABLE for operator in rule.operators}

RANDOM = ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli")
"""Whose results are others at each run."""
