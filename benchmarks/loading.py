"""How long onnxruntime takes to load unrolled models, by the number of steps: one section of docs/scale.md."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import onnxruntime
from stacks import stack

import rnn_lower

HEADING = "Loading unrolled models on onnxruntime"
STEPS = (25, 50, 100, 200)
OPERATORS = ("RNN", "LSTM", "GRU")
STARTS: tuple[tuple[str, int | str], ...] = (("none", "N"), ("constant", 1), ("input", 1), ("computed", "N"))
ABOUT = """Seconds of processor time for an `InferenceSession` with default options, one thread: six layers of 16 units,
forward as keras writes them (Transpose, Squeeze) and bidirectional as torch does (Transpose, Reshape). Initial states
are left out, constant, a graph input, or zeros made by Shape and Expand; the batch size is 1 or symbolic. The last two
columns are for the most steps: without optimization, and without reuse of memory as well."""

REMARKS = """The time grows by more than proportion: 2.5 to 3.6 times for twice the steps. What made the difference was the
batch size: a straight line over a symbolic batch loaded in 2.8 s when nothing was stated and each step was a Gather (GRU,
forward, 4 layers, T = 50, on a busy machine), in 0.3 s now that the lowered model names the batch of the projected inputs,
the initial states and the results, and splits the steps. Where the rest of the growth comes from was not looked into; without
optimization and reuse of memory a fifth to a sixth of the time was left at T = 200. If it matters, save the optimized model once
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


def rows() -> Iterator[list[str]]:
    for row, given in models():
        found = []
        for T in STEPS:
            data = rnn_lower.lower(stack(T=T, **given), form="unroll").SerializeToString()
            found.append(seconds(data))
        found += [seconds(data, optimized=False), seconds(data, optimized=False, reuse=False)]
        yield [*row, *(f"{value:.2f}" for value in found)]


HEADER = (
    "operator", "direction", "initial states", "batch", *(f"T = {T}" for T in STEPS), "not optimized", "no reuse",
)  # fmt: skip
