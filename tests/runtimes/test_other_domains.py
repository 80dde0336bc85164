"""Operators of other domains that target files list: the runtime computes what onnxruntime computes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from judge import close, run_onnxruntime
from runners import RUNNERS, here

import rnn_lower
from rnn_lower.targeting import TARGETS

MODELS = {
    "com.microsoft.BiasGelu": "y = com.microsoft.BiasGelu (x, b)",
    "com.microsoft.FastGelu": "y = com.microsoft.FastGelu (x)",
    "com.microsoft.FusedGemm": 'y = com.microsoft.FusedGemm <activation = "Relu"> (x, w)',
    "com.microsoft.FusedMatMul": "y = com.microsoft.FusedMatMul <alpha = 0.5, transB = 1> (x, w)",
    "com.microsoft.Gelu": "y = com.microsoft.Gelu (x)",
    "com.microsoft.QuickGelu": "y = com.microsoft.QuickGelu (x)",
    "com.microsoft.SkipLayerNormalization": "y = com.microsoft.SkipLayerNormalization (x, x, b, b)",
    "com.microsoft.SkipSimplifiedLayerNormalization": "y = com.microsoft.SkipSimplifiedLayerNormalization (x, x, b)",
    "com.microsoft.QuantizeLinear": "q = com.microsoft.QuantizeLinear (x, s, z) y = DequantizeLinear (q, s, z)",
    "com.microsoft.DequantizeLinear": "q = QuantizeLinear (x, s, z) y = com.microsoft.DequantizeLinear (q, s, z)",
    "com.microsoft.MatMulIntegerToFloat": "q = QuantizeLinear (x, s, z) y = com.microsoft.MatMulIntegerToFloat (q, w8, s, s, z, z)",
    **{
        f"com.microsoft.{op}": f"q = QuantizeLinear (x, s, z) r = com.microsoft.{op} {inputs} y = DequantizeLinear (r, s, z)"
        for op, inputs in (
            ("QLinearAdd", "(q, s, z, q, s, z, s, z)"),
            ("QLinearMul", "(q, s, z, q, s, z, s, z)"), ("QLinearConcat", "<axis = 1> (s, z, q, s, z, q, s, z)"),
            ("QLinearLeakyRelu", "<alpha = 0.1> (q, s, z, s, z)"), ("QLinearSigmoid", "(q, s, z, s, z)"),
            ("QLinearSoftmax", "<axis = 1, opset = 17> (q, s, z, s, z)"),
        )
    },
    "ai.onnx.ml.LinearClassifier": "l, y = ai.onnx.ml.LinearClassifier <classlabels_ints = [0, 1], coefficients = "
    "[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8], intercepts = [0.1, 0.2]> (x)",
    "ai.onnx.ml.LinearRegressor": "y = ai.onnx.ml.LinearRegressor <coefficients = [0.1, 0.2, 0.3, 0.4], intercepts = [0.5], targets = 1> (x)",
}  # fmt: skip
COLUMNS = {"QLinearConcat": 8, "LinearClassifier": 2, "LinearRegressor": 1}


def one_node(name: str) -> onnx.ModelProto:
    numbers = ",".join(str(index % 5 - 2) for index in range(16))
    return onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1, "ai.onnx.ml" : 3]>
        g (float[2,4] x) => (float[2,{COLUMNS.get(name.rpartition(".")[2], 4)}] y)
        <float[4] b = {{1, 2, 3, 4}}, float[4,4] w = {{{numbers}}}, float s = {{0.05}}, uint8 z = {{128}},
         uint8[4,4] w8 = {{{",".join(str(120 + index) for index in range(16))}}}> {{ {MODELS[name]} }}""")


@pytest.mark.parametrize(
    ("target", "name"),
    [(target, name) for target in TARGETS for name in sorted(TARGETS[target].constraints.other_domains or ())],
)
def test_listed_operators_run(target, name):
    model, feeds = one_node(name), {"x": np.array([[1, -2, 0.5, 3], [0.1, 0.2, -0.3, -4]], np.float32)}
    close(RUNNERS[here(target)][1](model, feeds), run_onnxruntime(model, feeds))
    assert rnn_lower.lint(model, target=target).ok


def test_others_are_named():
    model = one_node("com.microsoft.FusedMatMul")
    (finding,) = rnn_lower.lint(model, target="tract").findings
    assert finding.rule == "no test shows that the target runs FusedMatMul of domain com.microsoft"
    assert rnn_lower.lint(model, target="onnxruntime").ok
