"""Declarations of inputs and outputs: in words, and whether two of them can describe one value."""

from __future__ import annotations

import onnx_ir as ir

from rnn_lower.shapes.shape_info import plain_dim


def declaration(value: ir.Value) -> str:
    """The type and shape of a value, for printing."""
    if not isinstance(value.type, ir.TensorType):
        return "not a tensor"
    dims = [plain_dim(dim) for dim in value.shape or ()]
    shape = f"[{', '.join('?' if dim is None else str(dim) for dim in dims)}]"
    return f"{value.type.dtype.name.lower()}{' of any shape' if value.shape is None else shape}"


def can_agree(a: ir.Value, b: ir.Value, one_model: bool = False) -> bool:
    """Whether two values can have the same type and shape.  one_model: whether a name of a size stands for one size."""
    if a.dtype is not None and b.dtype is not None and a.dtype != b.dtype:
        return False
    if a.shape is None or b.shape is None:
        return True
    if len(a.shape) != len(b.shape):
        return False
    numbers = dict[str, int]()
    for pair in zip(map(plain_dim, a.shape), map(plain_dim, b.shape), strict=True):
        for number in (dim for dim in pair if isinstance(dim, int)):
            for dim in pair:
                known = numbers.setdefault(dim, number) if isinstance(dim, str) and one_model else dim
                if isinstance(known, int) and known != number:
                    return False
    return True
