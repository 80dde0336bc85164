"""How long onnxruntime takes to load unrolled models, by the number of steps: one section of docs/scale.md."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from stacks import stack

import rnn_lower

HEADING = "Loading unrolled models on onnxruntime"
STEPS = (25, 50, 100, 200)
OPERATORS = ("RNN", "LSTM", "GRU")
STARTS: tuple[tuple[str, int | str], ...] = (("none", "N"), ("constant", 1), ("input", 1), ("computed", "N"))
ABOUT = """Seconds of processor time for an `InferenceSession` with default options, one thread: six layers of 16 units,
forward as keras writes them (Transpose, Squeeze) and bidirectional as torch does (Transpose, Reshape). Initial states
are left out, constant, a graph input, or zeros made by Shape and Expand; the batch size is 1 or symbolic. The last two
columns are for the most steps: without optimization, and without reuse of memory as well. The rows "chain" are the
yardstick: MatMul, Add, Tanh one after the other on known shapes, as many nodes as six layers of one direction have."""

REMARKS = """The time grows by more than proportion, and so does that of the chain, which holds no recurrence, no Split and
no Concat: what grows is onnxruntime's own work of fusing nodes and planning memory. Splitting and joining the steps in
trees, or giving each step weights of its own, made no difference (LSTM, T = 200 to 800). What did make one was the batch
size: a straight line over a symbolic batch loaded in 2.8 s when nothing was stated and each step was a Gather (GRU,
forward, 4 layers, T = 50, on a busy machine), in 0.3 s now that the lowered model names the batch of the projected inputs,
the initial states and the results, and splits the steps. If the rest matters, save the optimized model once
(`SessionOptions.optimized_model_filepath`) and load it without optimization (`graph_optimization_level`) and reuse
(`enable_mem_reuse = False`, which takes memory in each run), or use form scan, whose graph does not grow with the steps."""


def models() -> Iterator[tuple[tuple[str, str, str, str], dict[str, Any]]]:
    for op in OPERATORS:
        for bidirectional in (False, True):
            for states, batch in STARTS:
                row = (op, "bidirectional" if bidirectional else "forward", states, str(batch))
                given = {"op": op, "bidirectional": bidirectional, "states": states, "batch": batch}
                yield row, {**given, "batch_first": not bidirectional}


def seconds(data: bytes, optimized: bool = True, reuse: bool = True) -> float:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.enable_mem_reuse = 1, reuse
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    start = time.process_time()
    onnxruntime.InferenceSession(data, options, ["CPUExecutionProvider"])
    return time.process_time() - start


def chain(nodes: int) -> bytes:
    """A model of nothing but MatMul, Add and Tanh in turn, of one row and 16 units."""
    weights = {name: np.full(shape, 0.1, np.float32) for name, shape in (("W", (16, 16)), ("b", (16,)))}
    names = ["X", *(f"v{k}" for k in range(nodes))]
    second = (["W"], ["b"], [])
    made = [
        helper.make_node(("MatMul", "Add", "Tanh")[k % 3], [names[k], *second[k % 3]], [names[k + 1]])
        for k in range(nodes)
    ]
    ends = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 16]) for name in (names[0], names[-1]))
    graph = helper.make_graph(
        made, "chain", [next(ends)], [next(ends)], [numpy_helper.from_array(w, name) for name, w in weights.items()]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def unrolled(T: int, given: dict[str, Any]) -> onnx.ModelProto:
    return rnn_lower.lower(stack(T=T, **given), form="unroll")


def rows() -> Iterator[list[str]]:
    for row, given in models():
        yield [*row, *_measured([unrolled(T, given).SerializeToString() for T in STEPS])]
    for op in OPERATORS:
        plain = {"op": op, "bidirectional": False, "states": "none", "batch": 1, "batch_first": True}
        yield ["chain", f"as {op}", "", "1", *_measured([chain(len(unrolled(T, plain).graph.node)) for T in STEPS])]


def _measured(models: list[bytes]) -> list[str]:
    found = [seconds(data) for data in models]
    found += [seconds(models[-1], optimized=False), seconds(models[-1], optimized=False, reuse=False)]
    return [f"{value:.2f}" for value in found]


HEADER = (
    "operator", "direction", "initial states", "batch", *(f"T = {T}" for T in STEPS), "not optimized", "no reuse",
)  # fmt: skip
