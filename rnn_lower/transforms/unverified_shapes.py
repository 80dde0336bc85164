"""Nodes for which onnx infers sizes that onnxruntime does not compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lower.ir import protobuf
from rnn_lower.ir.schemas import DEFAULT_DOMAINS

Sizes = Sequence["int | str | None"]
Attributes = Mapping[str, Any]

UNKNOWN = "rnn_lower.unknown"
"""A domain of operators that shape inference does not know."""


def hide_unverified(model: onnx.ModelProto, inferred: onnx.ModelProto) -> set[str]:
    """Hide nodes of a model from shape inference if the sizes inferred for them are unverified; returns their outputs.

    Afterwards, only the rank and the first two sizes of these are known.
    """
    hidden: set[str] = set()
    for graph, there in zip(protobuf.graphs_in(model.graph), protobuf.graphs_in(inferred.graph), strict=True):
        infos = {info.name: info for info in (*there.value_info, *there.input, *there.output)}
        outputs = {value.name: value for value in graph.output}
        for node in filter(may_be_unverified, graph.node):
            x, y = infos.get(node.input[0]), infos.get(node.output[0])
            if x is None or y is None or not _is_unverified(node, graph, protobuf.dims_of(x), protobuf.dims_of(y)):
                continue
            node.domain = UNKNOWN
            rank = len(protobuf.dims_of(x) or ())
            sizes = [*(protobuf.dims_of(y) or ())[:2], *[None] * (rank - 2)]
            for name in (name for name in node.output if name in infos):
                info = onnx.helper.make_tensor_value_info(name, infos[name].type.tensor_type.elem_type, sizes)
                outputs[name].CopyFrom(info) if name in outputs else graph.value_info.append(info)
                hidden.add(name)
    if hidden and all(entry.domain != UNKNOWN for entry in model.opset_import):
        model.opset_import.append(onnx.helper.make_opsetid(UNKNOWN, 1))
    return hidden


def may_be_unverified(node: onnx.NodeProto | ir.Node) -> bool:
    """Whether inference may find other sizes for a node than runtimes, by its operator."""
    return node.op_type in CHECKS and node.domain in DEFAULT_DOMAINS


def _is_unverified(node: onnx.NodeProto, graph: onnx.GraphProto, x: Sizes | None, y: Sizes | None) -> bool:
    if x is None or y is None:
        return False
    attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    tensors |= {
        inner.output[0]: each.t for inner in graph.node if inner.op_type == "Constant"
        for each in inner.attribute if each.HasField("t")
    }  # fmt: skip
    operands = [
        onnx.numpy_helper.to_array(tensors[name])
        for name in node.input[1:]
        if name in tensors and _is_here(tensors[name])
    ]
    return CHECKS[node.op_type](attributes, operands, x, y)


def _is_here(tensor: onnx.TensorProto) -> bool:
    return not protobuf.is_external(tensor)


def _pool(attributes: Attributes, operands: Sequence[np.ndarray], x: Sizes, y: Sizes) -> bool:
    """A pool that rounds its sizes up, or dilates a padded kernel."""
    is_dilated, rounds_up = any(step != 1 for step in attributes.get("dilations", ())), attributes.get("ceil_mode")
    if _is_same(attributes):
        return is_dilated or bool(rounds_up)
    strides, pads = (attributes.get(name, [default] * len(x)) for name, default in (("strides", 1), ("pads", 0)))
    # The last window of onnxruntime starts within the input or its first padding.
    windows = zip(x[2:], y[2:], strides, pads, strict=False)
    return bool(rounds_up) and any(
        isinstance(size, int) and isinstance(count, int) and (count - 1) * stride - pad >= size
        for size, count, stride, pad in windows
    )


def _scaled(attributes: Attributes, operands: Sequence[np.ndarray], x: Sizes, y: Sizes) -> bool:
    """A Resize or an Upsample by factors that floats round differently, depending on their precision."""
    if attributes.get("keep_aspect_ratio_policy", b"stretch") != b"stretch":
        return True
    scales = [array for array in operands if array.dtype == np.float32 and array.size == len(x)]
    factors = np.asarray(attributes.get("scales", scales[-1] if scales else ()), np.float32)
    return any(
        isinstance(size, int) and np.floor(np.float32(size) * factor) != np.floor(float(size) * float(factor))
        for size, factor in zip(x, factors, strict=False)
    )


def _transposed(attributes: Attributes, operands: Sequence[np.ndarray], x: Sizes, y: Sizes) -> bool:
    """A ConvTranspose whose sizes are given, or padded twice."""
    return "output_shape" in attributes or (_is_same(attributes) and "output_padding" in attributes)


def _is_same(attributes: Attributes) -> bool:
    return attributes.get("auto_pad", b"NOTSET") in (b"SAME_UPPER", b"SAME_LOWER")


Check = Callable[[Attributes, Sequence[np.ndarray], Sizes, Sizes], bool]
"""Whether runtimes may compute other sizes: by attributes, constant operands, and the sizes of the input and output."""

CHECKS: Mapping[str, Check] = {
    **dict.fromkeys(("AveragePool", "LpPool", "MaxPool"), _pool),
    **dict.fromkeys(("Resize", "Upsample"), _scaled),
    "ConvTranspose": _transposed,
}
