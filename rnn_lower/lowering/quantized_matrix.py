"""A weight of DynamicQuantizeLSTM: 8-bit integers with scale and zero point, and the product with a quantized input.

onnxruntime's kernel quantizes the left operand of each product like DynamicQuantizeLinear, over all of its rows.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from rnn_lower.builder.constants import Constant, fold
from rnn_lower.builder.graph_builder import Factor, GraphBuilder, Operand


@dataclasses.dataclass(frozen=True)
class QuantizedMatrix(Factor):
    """numbers: [rows, columns] of int8 or uint8.  scale, zero_point: [] or [columns].  kind: element type."""

    numbers: Operand
    scale: Operand
    zero_point: Operand
    kind: ir.DataType

    def product(self, b: GraphBuilder, x: Operand, name: str) -> Operand:
        """Return x [..., rows], dynamically quantized, times the matrix: float [..., columns]."""
        if x is None:
            return None
        parts = [f"{name}_quantized", f"{name}_scale", f"{name}_zero_point"]
        quantized, scale, zero_point = b.op_multi("DynamicQuantizeLinear", [x], parts)
        integers = b.op("MatMulInteger", quantized, self.numbers, zero_point, self.zero_point, name=f"{name}_integers")
        numbers = b.cast(integers, ir.DataType.INT32, ir.DataType.FLOAT, f"{name}_numbers")
        return b.mul(numbers, b.mul(scale, self.scale, f"{name}_factor"), name)

    def dequantized(self, b: GraphBuilder, name: str) -> Operand:
        """Return (numbers - zero_point) * scale as floats; a constant if all three are constants."""
        operands = (self.numbers, self.scale, self.zero_point)
        known = [operand for operand in operands if isinstance(operand, Constant)]
        if len(known) == len(operands):
            return fold(("dequantize",), _dequantize, *known, shape=known[0].shape, name=name, dtype=ir.DataType.FLOAT)
        numbers, zero = (b.cast(x, self.kind, ir.DataType.FLOAT, f"{name}_cast") for x in (operands[0], operands[2]))
        return b.mul(b.sub(numbers, zero, f"{name}_centered"), self.scale, name)


def _dequantize(numbers: np.ndarray, scale: np.ndarray, zero_point: np.ndarray) -> np.ndarray:
    return np.asarray((numbers.astype(np.int32) - zero_point.astype(np.int32)) * scale, np.float32)
