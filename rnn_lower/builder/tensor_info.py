"""Static information about operands: shape, element type, and the contents of small constants."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lower.builder.constants import Constant
from rnn_lower.ir.schemas import newest_opset, schema_of
from rnn_lower.ir.walk import known_tensor

Shape = tuple[int | None, ...]
MOST = 1024
"""The maximum number of elements of a constant whose values are read: axes, sizes, bounds."""


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    """shape: None if the rank is unknown.  constant: whether the value is constant.  content: its numbers, if few."""

    shape: Shape | None = None
    dtype: ir.DataType | None = None
    constant: bool = False
    content: tuple[Any, ...] | None = None

    @property
    def sizes(self) -> tuple[int, ...] | None:
        """The shape if it is fully static, else None."""
        known = tuple(size for size in self.shape or () if size is not None)
        return None if self.shape is None or len(known) < len(self.shape) else known


UNKNOWN = TensorInfo()


def info_of(operand: ir.Value | Constant) -> TensorInfo:
    """Return the information that an operand declares."""
    if isinstance(operand, Constant):
        return TensorInfo(operand.shape, operand.dtype, True, _content(operand.shape, operand.dtype, operand.load))
    cast = _cast_to_integers(operand)
    tensor = known_tensor(operand if cast is None else cast)
    if tensor is not None:
        shape, dtype = tuple(tensor.shape.numpy()), tensor.dtype if cast is None else ir.DataType.INT64
        return TensorInfo(shape, dtype, True, _content(shape, dtype, lambda: tensor.numpy().astype(dtype.numpy())))
    if operand.shape is None:
        return TensorInfo(dtype=operand.dtype)
    sizes = (size if isinstance(size, int) and size >= 0 else None for size in operand.shape)
    return TensorInfo(tuple(sizes), operand.dtype)


def _cast_to_integers(value: ir.Value) -> ir.Value | None:
    """Return the operand of a Cast to INT64: before opset 9 integers are cast from floats or doubles."""
    node = value.producer()
    to = None if node is None or node.op_type != "Cast" else node.attributes.get("to")
    is_cast = to is not None and to.value in (int(ir.DataType.INT64), "INT64")
    return node.inputs[0] if is_cast and node is not None and node.inputs else None


def _content(shape: Shape, dtype: ir.DataType, load: Any) -> tuple[Any, ...] | None:
    """Return the content of INT64 tensors (possible axes and sizes) and of single numbers (bounds), not of weights."""
    count = math.prod(size or 0 for size in shape)
    if count > (MOST if dtype == ir.DataType.INT64 else 1):
        return None
    return tuple(np.asarray(load()).ravel().tolist())


@functools.lru_cache(maxsize=4096)
def inferred(
    op_type: str, opset: int, inputs: Sequence[TensorInfo | None], attributes: tuple[tuple[str, Any], ...], count: int
) -> tuple[TensorInfo, ...]:
    """Return the infos of the outputs of a node without a body, by onnx's inference; unknown if inference fails."""
    schema = schema_of(op_type, opset)
    if schema is None:
        return (UNKNOWN,) * count
    names = [f"x{index}" if operand is not None else "" for index, operand in enumerate(inputs)]
    outputs = [f"y{index}" for index in range(count)]
    types, data = {}, {}
    for name, operand in zip(names, inputs, strict=True):
        if operand is None or operand.dtype is None:
            continue
        sizes = None if operand.shape is None else [f"s{k}" if n is None else n for k, n in enumerate(operand.shape)]
        types[name] = onnx.helper.make_tensor_type_proto(int(operand.dtype), sizes)
        if operand.content is not None and operand.sizes is not None:
            array = np.asarray(operand.content, operand.dtype.numpy()).reshape(operand.sizes)
            data[name] = onnx.numpy_helper.from_array(array, name)
    try:
        node = onnx.helper.make_node(op_type, names, outputs, **dict(attributes))
        version = min(opset, newest_opset())
        known_types = onnx.shape_inference.infer_node_outputs(
            schema, node, types, data, opset_imports=[onnx.helper.make_opsetid("", version)], ir_version=10
        )
    except Exception:  # inference may raise any exception
        return (UNKNOWN,) * count
    return tuple(_info(known_types[name]) if name in known_types else UNKNOWN for name in outputs)


def _info(proto: onnx.TypeProto) -> TensorInfo:
    tensor = proto.tensor_type
    dtype = ir.DataType(tensor.elem_type) if tensor.elem_type else None
    if not tensor.HasField("shape"):
        return TensorInfo(dtype=dtype)
    return TensorInfo(tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim), dtype)


def answers(
    op_type: str, bodies: Sequence[ir.Graph], info: Callable[[ir.Value], TensorInfo]
) -> list[TensorInfo] | None:
    """Return the infos of the outputs of a node's bodies, for two branches what both agree on; None without bodies.

    The condition of a Loop counts as true if its body forwards it; the node's inputs determine the initial condition.
    """
    if not bodies:
        return None
    operand = [body.outputs for body in bodies]
    results = [functools.reduce(_common, map(info, values)) for values in zip(*operand, strict=False)]
    if op_type == "Loop" and results and _hands_on(bodies[0]):
        results[0] = TensorInfo((), ir.DataType.BOOL, True, (True,))
    return results


def _common(one: TensorInfo, other: TensorInfo) -> TensorInfo:
    if one == other:
        return one
    shape = None
    if one.shape is not None and other.shape is not None and len(one.shape) == len(other.shape):
        shape = tuple(a if a == b else None for a, b in zip(one.shape, other.shape, strict=True))
    return TensorInfo(shape, one.dtype if one.dtype == other.dtype else None)


def _hands_on(body: ir.Graph) -> bool:
    """Whether the body of a Loop returns its input condition unchanged."""
    node = body.outputs[0].producer()
    handed = node.inputs[0] if node is not None and node.op_type == "Identity" else body.outputs[0]
    return len(body.inputs) > 1 and handed is body.inputs[1]


def of_body(
    op_type: str, inputs: Sequence[TensorInfo | None], body: Sequence[TensorInfo], scanned: int
) -> list[TensorInfo]:
    """Return the infos of the outputs of If, Loop or Scan from those of its body.

    inputs: of the node.  body: of the outputs of the body.  scanned: the number of scan inputs.
    """
    if op_type == "If":
        return list(body)
    length: int | None = None
    if op_type == "Loop":
        stays, body, states = body[:1], body[1:], len(inputs) - 2
        trips, condition = (inputs[index] if index < len(inputs) else None for index in (0, 1))
        goes_on = stays and stays[0].content == (True,) and (condition is None or condition.content == (True,))
        if goes_on and trips is not None and trips.content and trips.dtype == ir.DataType.INT64:
            length = max(0, int(trips.content[0]))
    else:
        states = len(inputs) - scanned if isinstance(scanned, int) else 0
        first = inputs[states] if 0 <= states < len(inputs) else None
        length = None if first is None or not first.shape else first.shape[0]
    stacked = [
        dataclasses.replace(info, shape=None if info.shape is None else (length, *info.shape)) for info in body[states:]
    ]
    return [*body[:states], *stacked]


def frozen(attributes: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return attributes in hashable form: lists as tuples, sorted by name."""
    return tuple(
        sorted((name, tuple(held) if isinstance(held, (list, tuple)) else held) for name, held in attributes.items())
    )
