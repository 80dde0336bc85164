"""What the CPU of this machine computes exactly."""

from __future__ import annotations

import functools

import numpy as np
import onnx
import pytest
from judge import run_onnxruntime
from onnx import helper, numpy_helper


@functools.cache
def saturates() -> bool:
    """Whether onnxruntime's products of uint8 and int8 saturate here, as on x86 without VNNI: 2 * 255 * 127 > 2^15."""
    x, w = np.full((1, 4), 255, np.uint8), np.full((4, 16), 127, np.int8)
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["x", "w"], ["y"])], "product",
        [helper.make_tensor_value_info("x", onnx.TensorProto.UINT8, [1, 4])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.INT32, [1, 16])],
        [numpy_helper.from_array(w, "w")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (y,) = run_onnxruntime(model, {"x": x})
    return bool((y != 4 * 255 * 127).any())


exact_products = pytest.mark.skipif(saturates(), reason="onnxruntime's products of uint8 and int8 saturate on this CPU")
