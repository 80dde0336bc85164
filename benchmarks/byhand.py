"""Graphs that nobody lowers: what one would write by hand, and what no lowering can beat."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from onenode import Case, build


def naive(case: Case) -> onnx.ModelProto:
    """What one would write by hand: a Scan with one MatMul per gate and input, nothing hoisted (LSTM, forward)."""
    model, _ = build(case)
    weights = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    H, nodes, tensors = case.H, [], []
    for k, gate in enumerate("iofc"):
        rows = slice(k * H, (k + 1) * H)
        bias = weights["B"][0, rows] + weights["B"][0, 4 * H + k * H : 4 * H + (k + 1) * H]
        for name, value in (("W", weights["W"][0, rows].T), ("R", weights["R"][0, rows].T), ("B", bias)):
            tensors.append(numpy_helper.from_array(np.ascontiguousarray(value), name + gate))
        nodes += [
            helper.make_node("MatMul", ["x", f"W{gate}"], [f"x{gate}"]),
            helper.make_node("MatMul", ["h", f"R{gate}"], [f"h{gate}"]),
            helper.make_node("Add", [f"x{gate}", f"h{gate}"], [f"s{gate}"]),
            helper.make_node("Add", [f"s{gate}", f"B{gate}"], [f"b{gate}"]),
            helper.make_node("Tanh" if gate == "c" else "Sigmoid", [f"b{gate}"], [gate]),
        ]
    nodes += [
        helper.make_node("Mul", ["f", "C"], ["fC"]), helper.make_node("Mul", ["i", "c"], ["ic"]),
        helper.make_node("Add", ["fC", "ic"], ["newC"]), helper.make_node("Tanh", ["newC"], ["tC"]),
        helper.make_node("Mul", ["o", "tC"], ["newh"]), helper.make_node("Identity", ["newh"], ["y"]),
    ]  # fmt: skip
    info = lambda name, size: helper.make_tensor_value_info(name, TensorProto.FLOAT, [case.N, size])  # noqa: E731
    body = helper.make_graph(
        nodes, "body", [info("h", H), info("C", H), info("x", case.I)], [info("newh", H), info("newC", H), info("y", H)]
    )
    zeros = numpy_helper.from_array(np.zeros((case.N, H), np.float32), "zeros")
    graph = helper.make_graph(
        [helper.make_node("Scan", ["zeros", "zeros", "X"], ["Yh", "Yc", "Ys"], body=body, num_scan_inputs=1)], "g",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, [case.T, case.N, case.I])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("Ys", "Yh", "Yc")], [zeros, *tensors],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def floor(case: Case) -> onnx.ModelProto:
    """What no Scan can beat: the projection of all steps and a Scan of the recurrent products alone, for each direction.

    Each step multiplies the state by R and takes the first hidden_size columns for the next state.
    """
    model, _ = build(case)
    weights = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer if t.name in "WR"}
    H, width = case.H, weights["R"].shape[1]
    parts = {"RNN": [(0, H)], "LSTM": [(0, 4 * H)], "GRU": [(0, 3 * H)] if case.lbr else [(0, 2 * H), (2 * H, 3 * H)]}
    constants = {"start": np.array([0]), "end": np.array([H]), "axis": np.array([1])}
    outer = {"zeros": np.zeros((case.N, H), np.float32)}
    info = lambda name, size: helper.make_tensor_value_info(name, TensorProto.FLOAT, [case.N, size])  # noqa: E731
    nodes, results = [], []
    for d in range(len(weights["R"])):
        body, value, inner = [], f"h{d}", dict(constants)
        for k, (first, end) in enumerate(parts[case.op]):
            inner[f"R{k}"] = weights["R"][d].T[:, first:end]
            body.append(helper.make_node("MatMul", [value, f"R{k}"], [f"p{d}{k}"]))
            value = f"p{d}{k}"
            if end - first > H:
                body.append(helper.make_node("Slice", [value, "start", "end", "axis"], [f"h{d}{k}"]))
                value = f"h{d}{k}"
        outer[f"X_W{d}"] = weights["W"][d].T
        step = helper.make_graph(
            body, "body", [info(f"h{d}", H), info(f"x{d}", width)], [info(value, H)], _tensors(inner)
        )
        nodes += [
            helper.make_node("MatMul", ["X", f"X_W{d}"], [f"projected{d}"]),
            helper.make_node("Scan", ["zeros", f"projected{d}"], [f"Y_h{d}"], body=step, num_scan_inputs=1),
        ]
        results.append(helper.make_tensor_value_info(f"Y_h{d}", TensorProto.FLOAT, None))
    X = helper.make_tensor_value_info("X", TensorProto.FLOAT, [case.T, case.N, case.I])
    graph = helper.make_graph(nodes, "g", [X], results, _tensors(outer))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _tensors(arrays: dict[str, np.ndarray]) -> list[TensorProto]:
    return [numpy_helper.from_array(np.ascontiguousarray(array), name) for name, array in arrays.items()]
