"""Imaginary runtimes: target files with random lists and limits, and what must hold of a lowering for one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from judge import close, expected, remaining, run_onnxruntime
from onenode import Case, build

import rnn_lower
from rnn_lower.builder.tensor_info import TensorInfo
from rnn_lower.ir.walk import NODE_MARK
from rnn_lower.legalize.conformance import ConstraintChecker
from rnn_lower.shapes.shape_info import ShapeInfo
from rnn_lower.targeting import find_target

COMMON = """
summary = "an imaginary runtime"
status = "documented"
source = "for a test"
"""

LISTED = (
    "Abs", "Add", "Cast", "Clip", "Concat", "Conv", "Div", "Elu", "Exp", "Gather", "Gemm", "Greater", "HardSigmoid",
    "Identity", "LeakyRelu", "Less", "Log", "MatMul", "Max", "Min", "Mul", "Neg", "Reciprocal", "Relu", "Reshape",
    "Sigmoid", "Slice", "Softplus", "Softsign", "Split", "Squeeze", "Sub", "Tanh", "ThresholdedRelu", "Transpose",
    "Unsqueeze", "Where",
)  # fmt: skip
LIMITS = (
    "limits.Concat.inputs = [2, 2]", "limits.Split.outputs = [1, 2]", "limits.Concat.axes = [-3, -2, -1]", "limits.MatMul.constant = [1]",
    "limits.MatMul.ranks = [2, 2]", "limits.Gemm.variable = 1", "limits.Clip.values = { min = [-inf, 0], max = [0, inf] }",
    "limits.Slice.steps = [1]", "limits.Slice.axes = [1, 2, 3]", "limits.Transpose.ranks = [3, 4]",
    "limits.Add.broadcast = true", 'limits.Add.types = ["FLOAT", "INT64"]', "limits.Sub.variable = 1",
    "limits.Conv.attributes = { kernel_shape = [[1, 1]] }",
)  # fmt: skip


def quoted(names: Iterable[str]) -> str:
    return str(sorted(names)).replace("'", '"')


def random_target(rng: np.random.Generator) -> str:
    """The text of a target: a list of what is taken, or of what is avoided, and some limits."""
    lines = [COMMON, 'forms = ["unroll"]', 'unroll_up_to = "always"', "static_batch = true"]
    if rng.random() < 0.5:
        missing = rng.choice(LISTED, size=int(rng.integers(1, 12)), replace=False)
        lines.append(f"takes = {quoted([one for one in LISTED if one not in missing])}")
    else:
        lines.append(
            f"avoid = {quoted(list(map(str, rng.choice(LISTED, size=int(rng.integers(1, 8)), replace=False))))}"
        )
    lines += [str(one) for one in rng.choice(LIMITS, size=int(rng.integers(0, 4)), replace=False)]
    lines += ["rank = 4"] if rng.random() < 0.5 else []
    lines += ["static = true"] if rng.random() < 0.5 else []
    return "\n".join(lines) + "\n"


def broken_by(model: onnx.ModelProto, path: str) -> list[str]:
    """The emitted nodes of a model that a target does not take, by shapes that onnx infers for the whole model."""
    target, graph = find_target(path), ir.from_proto(model)
    shape_info = ShapeInfo(graph)

    def told(value: ir.Value) -> TensorInfo | None:
        shape = shape_info.shape(value)
        if shape is None:
            return None
        return TensorInfo(tuple(size if isinstance(size, int) else None for size in shape), shape_info.dtype(value))

    opset = graph.opset_imports[""]
    found = ConstraintChecker(target.constraints, opset, told).violations(graph.graph)
    return [f"{one.node.op_type}: {one.rule}" for one in found if NODE_MARK in one.node.metadata_props]


def holds(case: Case, path: Path | str, prove: bool = True, **options: object) -> str | None:
    """Lower a case for a target: right, proved, and nothing that breaks a rule; or the refusal, by operator and rule."""
    model, feeds = build(case)
    try:
        lowered = rnn_lower.lower(model, target=str(path), **options)
    except rnn_lower.UnsupportedError as error:
        return str(error)
    assert not remaining(lowered)
    assert broken_by(lowered, str(path)) == []
    onnx.checker.check_model(lowered, full_check=True)
    close(run_onnxruntime(lowered, feeds), expected(case))
    if prove:
        proof = rnn_lower.prove(model, lowered)
        assert proof.ok, [node.reason for node in proof.nodes]
    return None
