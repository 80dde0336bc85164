"""Every version difference of the emitted operators, as far as emitting them goes: the one table of opsets.

Source: the ONNX operator changelog, opsets 1 to 28. A new opset is a look at what changed and a number here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

BROADCASTS_BY_RULE = 7
"""From this opset on binary operators broadcast like numpy; before, only with broadcast=1 and B a suffix of A."""

CAST_TAKES_ENUM = 6
"""Before, the type that Cast goes to is a text."""

CLIP_TAKES_DOUBLE = 12
"""Before, onnxruntime's Clip takes float32 only."""

CONSTANT_TAKES_INTEGERS = 9
"""Before, Constant holds floating-point numbers only."""

LESS_TAKES_INTEGERS = 9
"""Before, Less compares floating-point numbers only."""

MAX_BROADCASTS = 8
"""Before, Max and Min take operands of one shape, and onnxruntime has them in float32 only."""

NEWEST_REVIEWED_OPSET = 28


@dataclasses.dataclass(frozen=True)
class Versions:
    """The version history of one emitted operator.

    since: first opset that has it.  reviewed: its newest version that this table was checked against.
    inputs: parameters that became inputs, and the opset when; before they were attributes.
    """

    since: int
    reviewed: int
    inputs: Mapping[str, int] = dataclasses.field(default_factory=dict)


TABLE: dict[str, Versions] = {
    "Abs": Versions(1, 13),
    "Add": Versions(1, 14),
    "Cast": Versions(1, 28),
    "Clip": Versions(1, 13, {"min": 11, "max": 11}),
    "Concat": Versions(1, 13),
    "Constant": Versions(1, 25),
    "ConstantOfShape": Versions(9, 25),
    "Conv": Versions(1, 22),
    "Div": Versions(1, 14),
    "Elu": Versions(1, 22),
    "Exp": Versions(1, 13),
    "Gather": Versions(1, 13),
    "Gemm": Versions(1, 13),
    "Greater": Versions(1, 13),
    "HardSigmoid": Versions(1, 22),
    "Identity": Versions(1, 25),
    "If": Versions(1, 25),
    "IsNaN": Versions(9, 20),
    "LeakyRelu": Versions(1, 16),
    "Less": Versions(1, 13),
    "Log": Versions(1, 13),
    "Loop": Versions(1, 25),
    "MatMul": Versions(1, 13),
    "Max": Versions(1, 13),
    "Min": Versions(1, 13),
    "Mul": Versions(1, 14),
    "Neg": Versions(1, 13),
    "NonZero": Versions(9, 13),
    "Range": Versions(11, 27),
    "Reciprocal": Versions(1, 13),
    "ReduceMax": Versions(1, 20),
    "ReduceSum": Versions(1, 13),
    "Relu": Versions(1, 14),
    "Reshape": Versions(1, 25, {"shape": 5}),
    "Scan": Versions(9, 25),  # Scan-8 has a batch dimension of its own and is not emitted
    "Shape": Versions(1, 25),
    "Sigmoid": Versions(1, 13),
    "Slice": Versions(1, 13, {"starts": 10, "ends": 10, "axes": 10}),
    "Softplus": Versions(1, 22),
    "Softsign": Versions(1, 22),
    "Split": Versions(1, 18, {"split": 13}),
    "Squeeze": Versions(1, 25, {"axes": 13}),
    "Sub": Versions(1, 14),
    "Tanh": Versions(1, 13),
    "ThresholdedRelu": Versions(10, 22),
    "Tile": Versions(6, 13),
    "Transpose": Versions(1, 25),
    "Unsqueeze": Versions(1, 25, {"axes": 13}),
    "Where": Versions(9, 16),
}


def said_alike(op_type: str, one: int, other: int) -> bool:
    """Whether what is emitted of an operator at one opset says the same at another."""
    first, last = sorted((one, other))
    changes = (BROADCASTS_BY_RULE, *TABLE[op_type].inputs.values())
    return TABLE[op_type].since <= first and not any(first < change <= last for change in changes)
