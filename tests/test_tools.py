"""Tools that others run on their models, before lowering and after it: what comes out computes the same."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnxscript.optimizer
import pytest
from judge import close, remaining, run_onnxruntime
from onenode import Case, build

import rnn_lower

Tool = Callable[[onnx.ModelProto], onnx.ModelProto]


def slim(model: onnx.ModelProto) -> onnx.ModelProto:
    return pytest.importorskip("onnxslim").slim(model)


def simplify(model: onnx.ModelProto) -> onnx.ModelProto:
    """The optimizer in onnxsim 0.8 stops at the Loops here: an assertion about outputs that are still used."""
    optimized = not any(node.op_type == "Loop" for node in model.graph.node)
    simplified, same = pytest.importorskip("onnxsim").simplify(model, perform_optimization=optimized)
    assert same
    return simplified


def polygraphy(model: onnx.ModelProto) -> onnx.ModelProto:
    pytest.importorskip("onnx_graphsurgeon")
    return pytest.importorskip("polygraphy.backend.onnx").fold_constants(model)


def optimize(model: onnx.ModelProto) -> onnx.ModelProto:
    return onnxscript.optimizer.optimize(model)


CASES = [
    Case("LSTM", 17, T=5, N=2, optional=("B", "initial_h")),
    Case("GRU", 17, T=5, N=2, direction="bidirectional", optional=("B", "sequence_lens")),
    Case("RNN", 17, T=5, dynamic=True),
]


@pytest.mark.parametrize("form", ["scan", "loop", "unroll"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.op)
@pytest.mark.parametrize("tool", [slim, simplify, polygraphy, optimize], ids=lambda tool: tool.__name__)
def test_after_lowering(tool: Tool, case: Case, form: str):
    model, feeds = build(case.replace(dynamic=case.dynamic and form != "unroll"))
    changed = tool(rnn_lower.lower(model, form=form))
    assert not remaining(changed)
    close(run_onnxruntime(changed, feeds), run_onnxruntime(model, feeds))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.op)
@pytest.mark.parametrize("tool", [slim, simplify, polygraphy, optimize], ids=lambda tool: tool.__name__)
def test_before_lowering(tool: Tool, case: Case):
    model, feeds = build(case)
    wanted = run_onnxruntime(model, feeds)
    lowered = rnn_lower.lower(tool(model))
    assert not remaining(lowered)
    close(run_onnxruntime(lowered, feeds), wanted)
