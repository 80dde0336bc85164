"""Properties that groups of operators share, for all uses."""

from __future__ import annotations

ELEMENTWISE = (
    "Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitShift", "BitwiseAnd", "BitwiseNot",
    "BitwiseOr", "BitwiseXor", "Cast", "CastLike", "Ceil", "Celu", "Clip", "Cos", "Cosh", "Div", "Elu",
    "Equal", "Erf", "Exp", "Floor", "Gelu", "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity",
    "IsInf", "IsNaN", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Mean", "Min", "Mish", "Mod", "Mul", "Neg",
    "Not", "Or", "PRelu", "Pow", "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh",
    "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Swish", "Tan", "Tanh", "ThresholdedRelu", "Where", "Xor",
)  # fmt: skip
"""Operators that compute each element independently, after broadcasting the inputs."""

DATA_MOVEMENT = (
    "Concat", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose",
    "Unsqueeze",
)  # fmt: skip
"""Operators whose outputs contain only elements of their first input; for Concat, of all inputs."""

MEASURING = ("Shape", "Size")
"""Operators that read only the sizes of their operand."""

SIZED_BY = {
    "AffineGrid": (1,), "BlackmanWindow": (0,), "CenterCropPad": (1,), "Col2Im": (1, 2), "Compress": (1,),
    "ConstantOfShape": (0,), "DFT": (1,), "Expand": (1,), "HammingWindow": (0,), "HannWindow": (0,), "If": (0,),
    "Loop": (0, 1), "MaxUnpool": (2,), "MelWeightMatrix": (0, 1), "NonMaxSuppression": (0, 1, 2, 3, 4),
    "NonZero": (0,), "OneHot": (1,), "Pad": (1,), "Range": (0, 1, 2), "Reshape": (1,), "Resize": (1, 2, 3),
    "SequenceAt": (1,), "Slice": (1, 2, 3, 4), "Split": (1,), "SplitToSequence": (1,), "Squeeze": (1,), "STFT": (1, 3),
    "StringSplit": (0,), "Tile": (1,), "TopK": (1,), "Unique": (0,), "Unsqueeze": (1,), "Upsample": (1,),
    **{f"Reduce{name}": (1,) for name in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum")},
    "ReduceSumSquare": (1,),
}  # fmt: skip
"""The operands whose elements decide the sizes of an operator's outputs; other operators compute sizes from sizes."""

RANDOM = ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli")
"""Operators whose output is random."""

PARTIAL = (
    "Acos", "Acosh", "Asin", "Atanh", "Cosh", "Div", "Exp", "Log", "Mod", "Pow", "Reciprocal", "ReduceLogSum", "Sinh",
    "Sqrt", "Tan",
)  # fmt: skip
"""Operators that make NaN or infinity of some finite numbers."""

FILLING = ("Clip", "Constant", "ConstantOfShape", "Pad")
"""Operators that only copy or compare the numbers of their attributes, also infinite ones."""

FINITE = frozenset({
    *ELEMENTWISE, *DATA_MOVEMENT, *MEASURING, "AveragePool", "BatchNormalization", "Constant", "ConstantOfShape",
    "Conv", "ConvTranspose", "CumSum", "DepthToSpace", "DequantizeLinear", "Dropout", "Einsum", "GatherElements",
    "GatherND", "Gemm", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "GRU", "Hardmax", "If",
    "InstanceNormalization", "LayerNormalization", "LogSoftmax", "Loop", "LpPool", "LRN", "LSTM", "MatMul",
    "MaxPool", "OneHot", "Pad", "Range", "ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin",
    "ReduceSum", "ReduceSumSquare", "Resize", "RNN", "Scan", "ScatterElements", "ScatterND", "Softmax",
    "SpaceToDepth", "Tile", "TopK", "Trilu",
}) - {*PARTIAL, "CastLike"}  # fmt: skip
"""Operators that make finite numbers of finite numbers, if sums and products do not overflow."""
