"""Rewrites for onnxruntime, the same numbers with fewer kernels per step, and for OpenVINO; nothing for other targets."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest
from judge import agrees, close, every_node, expected, run_onnxruntime
from onenode import OPTIONAL, Case, build
from onnx import TensorProto, helper, numpy_helper
from runners import RUNNERS, missing

import rnn_lower
from rnn_lower.targeting import TARGETS
from rnn_lower.tune import REWRITES

FILE = Path(rnn_lower.__file__).parent / "targeting" / "onnxruntime.toml"


def with_rewrites(path: Path, names: list[str]) -> str:
    """A target that asks for these rewrites and is otherwise as onnxruntime's; returns its path."""
    lines = [
        "tune = " + str(names).replace("'", '"') if line.startswith("tune = ") else line
        for line in FILE.read_text().splitlines()
    ]
    path.write_text("\n".join(lines))
    return str(path)


def body_of(model: onnx.ModelProto) -> onnx.GraphProto:
    (scan,) = [node for node in every_node(model) if node.op_type == "Scan"]
    return next(attribute.g for attribute in scan.attribute if attribute.name == "body")


@pytest.mark.parametrize("rewrite", [*REWRITES, "all"])
@pytest.mark.parametrize("op", OPTIONAL)
@pytest.mark.parametrize("dynamic", [False, True])
def test_each_alone_and_all_together(rewrite, op, dynamic, tmp_path):
    target = with_rewrites(tmp_path / "mine.toml", [*REWRITES] if rewrite == "all" else [rewrite])
    for direction in ("forward", "reverse", "bidirectional"):
        for optional in (("B",), OPTIONAL[op]):
            for outputs in (("Y",), ("Y", "Y_h")):
                case = Case(op, 17, direction, dynamic=dynamic, optional=optional, outputs=outputs)
                agrees(case, "scan", target=target)
    proof = rnn_lower.prove(build(case)[0], rnn_lower.lower(build(case)[0], form="scan", target=target))
    assert proof.ok, [node.reason for node in proof.nodes]


def quantized(case: Case, axis: int | None) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model that quantizes X and reads W and R from int8, with one scale or one along an axis; X is on the grid."""
    model, feeds = build(case)
    graph, scale = model.graph, np.float32(0.02)
    graph.initializer.extend([numpy_helper.from_array(scale, "X_s"), numpy_helper.from_array(np.uint8(128), "X_z")])
    nodes = [
        helper.make_node("QuantizeLinear", ["X", "X_s", "X_z"], ["X_q"]),
        helper.make_node("DequantizeLinear", ["X_q", "X_s", "X_z"], ["X_d"]),
    ]
    for name in ("W", "R"):
        (tensor,) = [tensor for tensor in graph.initializer if tensor.name == name]
        graph.initializer.remove(tensor)
        numbers, rest = numpy_helper.to_array(tensor), {}
        others = None if axis is None else tuple(k for k in range(3) if k != axis)
        scales = (np.abs(numbers).max(axis=others, keepdims=axis is not None) / 127).astype(np.float32)
        whole = np.round(numbers / scales).astype(np.int8)
        if axis is not None:
            scales, rest = scales.ravel(), {"axis": axis}
        graph.initializer.extend(
            [numpy_helper.from_array(whole, f"{name}_q"), numpy_helper.from_array(scales, f"{name}_s")]
        )
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", f"{name}_s"], [name], **rest))
    for index, node in enumerate(nodes):
        graph.node.insert(index, node)
    graph.node[-1].input[0] = "X_d"
    feeds["X"] = np.clip(np.round(feeds["X"] / scale), -128, 127).astype(np.float32) * scale
    return model, feeds


@pytest.mark.parametrize("form", ["loop", "unroll"])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("axis", [None, 0, 1, 2])
@pytest.mark.parametrize("op", OPTIONAL)
def test_openvino_runs_dequantized_weights(op, axis, direction, form):
    model, feeds = quantized(Case(op, 13, direction, N=2, I=5, H=6, optional=("B",), outputs=("Y",)), axis)
    lowered = rnn_lower.lower(model, target="openvino", form=form)
    assert rnn_lower.prove(model, lowered).ok
    if not missing("openvino"):
        close(RUNNERS["openvino"][1](lowered, feeds), run_onnxruntime(model, feeds))


def test_the_rewrites_do_what_they_are_named_after(tmp_path):
    model, _ = build(Case("LSTM", 17, dynamic=True, optional=("B",)))
    plain = rnn_lower.lower(model, form="scan", target=with_rewrites(tmp_path / "a.toml", []))
    assert [node.op_type for node in body_of(plain).node].count("MatMul") == 1
    assert not body_of(plain).initializer

    def body(name: str) -> onnx.GraphProto:
        return body_of(rnn_lower.lower(model, form="scan", target=with_rewrites(tmp_path / "b.toml", [name])))

    assert [node.op_type for node in body("product_per_activation").node].count("MatMul") == 2
    assert "Unsqueeze" not in {node.op_type for node in body("last_operation_outside").node}
    assert len(body("weights_in_body").initializer) >= 1
    guarded = rnn_lower.lower(model, form="scan", target=with_rewrites(tmp_path / "c.toml", ["guard_empty_scan"]))
    assert [node.op_type for node in every_node(guarded)].count("If") == 1
    count = len(every_node(guarded)) - len(every_node(plain))
    assert count <= 8


@pytest.mark.parametrize("op", ["GRU", "LSTM"])
def test_no_steps_under_the_guard(op):
    for optional in ((), OPTIONAL[op]):
        agrees(Case(op, 17, "bidirectional", T=0, dynamic=True, optional=optional), "scan", target="onnxruntime")


def test_only_targets_that_ask_get_them():
    assert {name for name, target in TARGETS.items() if target.tune} == {
        "onnxruntime", "onnxruntime@1.17", "onnxruntime@1.20", "onnxruntime-web", "onnxruntime-webgpu",
        "openvino", "tract",
    }  # fmt: skip


BATCHED = Case("LSTM", 17, "bidirectional", N=1, H=8, dynamic=False, optional=("B",))


@pytest.mark.parametrize("op", ["GRU", "LSTM"])
@pytest.mark.parametrize("opset", [9, 10, 13, 17, 21])
@pytest.mark.parametrize("layout", [0, 1])
def test_both_directions_in_one_scan(op, opset, layout):
    for dynamic in (False, True):
        for optional in ((), OPTIONAL[op]):
            case = Case(op, opset, "bidirectional", N=3, H=8, dynamic=dynamic, optional=optional,
                        layout=layout if opset >= 14 else 0)  # fmt: skip
            agrees(case, "scan", target="onnxruntime")
            model, _ = build(case)
            lowered = rnn_lower.lower(model, form="scan", target="onnxruntime")
            scans = [node.op_type for node in every_node(lowered)].count("Scan")
            assert scans == (1 if opset >= 10 else 2)
            assert rnn_lower.prove(model, lowered).ok


@pytest.mark.parametrize("changes", [{"H": 40, "N": 2}, {"op": "RNN", "N": 1}, {"direction": "forward", "N": 1}])
def test_large_and_short_steps_stay_apart(changes):
    case = dataclasses.replace(BATCHED, **changes)
    nodes = every_node(rnn_lower.lower(build(case)[0], form="scan", target="onnxruntime"))
    assert "both" not in " ".join(node.name for node in nodes)


def test_a_step_with_other_activations_stays_apart():
    activations = ("Sigmoid", "Tanh", "Tanh", "Sigmoid", "Relu", "Tanh")
    case = dataclasses.replace(BATCHED, activations=activations)
    lowered = agrees(case, "scan", target="onnxruntime") or rnn_lower.lower(build(case)[0], target="onnxruntime")
    assert [node.op_type for node in every_node(lowered)].count("Scan") == 2
    read = {name for node in every_node(lowered) for name in node.input}
    assert {tensor.name for tensor in lowered.graph.initializer} <= read
    assert rnn_lower.prove(build(case)[0], lowered).ok


def test_nan_of_one_direction_stays_there():
    model, feeds = build(dataclasses.replace(BATCHED, optional=("B", "initial_h"), outputs=("Y", "Y_h")))
    name = next(name for name, value in feeds.items() if value.shape == (2, 1, 8))
    feeds[name][0, 0, 0] = np.nan
    y, y_h = run_onnxruntime(rnn_lower.lower(model, form="scan", target="onnxruntime"), feeds)
    assert np.isnan(y[:, 0]).all()
    assert np.isfinite(y[:, 1]).all()
    assert np.isfinite(y_h[1]).all()


@pytest.mark.parametrize("op", OPTIONAL)
@pytest.mark.parametrize("opset", [9, 13, 17])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_nodes_stay_sorted_where_constants_are_nodes(op, opset, direction):
    """Before IR version 4, rewrites and the canonical graph share Constant nodes."""
    model, feeds = build(Case(op, opset, direction, N=2, H=8, dynamic=True, optional=OPTIONAL[op], weights="constant"))
    model.ir_version = 3
    lowered = rnn_lower.lower(model, form="scan", target="onnxruntime")
    onnx.checker.check_model(lowered)
    close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))


def test_weights_that_two_nodes_share_stay_outside():
    model, feeds = build(Case("LSTM", 17))
    second = onnx.NodeProto()
    second.CopyFrom(model.graph.node[0])
    second.name, second.output[:] = "second", ["Y2", "Y2_h", "Y2_c"]
    model.graph.node.append(second)
    model.graph.output.append(onnx.helper.make_tensor_value_info("Y2", 1, None))
    lowered = rnn_lower.lower(model, form="scan", target="onnxruntime")
    results = run_onnxruntime(lowered, feeds)
    close(results[:1], expected(Case("LSTM", 17))[:1])
    close(results[-1:], results[:1])


@pytest.mark.parametrize("opset", [9, 10, 11, 17])
@pytest.mark.parametrize("op", ["GRU", "LSTM"])
def test_a_guard_does_not_hide_the_steps_from_the_next_node(op, opset):
    """Below opset 11, onnxruntime takes a known size of one branch of an If for that of both."""
    model, feeds = build(Case(op, opset, T=5, N=2, dynamic=True, outputs=("Y",)))
    for value in (model.graph.input[0], model.graph.output[0]):
        dims = value.type.tensor_type.shape.dim
        dims[len(dims) - 2].dim_value = 2  # the batch size is known
    model.graph.node.append(helper.make_node("Shape", ["Y"], ["size"]))
    model.graph.output.append(helper.make_tensor_value_info("size", TensorProto.INT64, [4]))
    lowered = rnn_lower.lower(model, target="onnxruntime")
    assert "If" in {node.op_type for node in every_node(lowered)}
    close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))
    feeds["X"] = feeds["X"][:0]
    assert run_onnxruntime(lowered, feeds)[1].tolist() == [0, 1, 2, 4]


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_guarded_graphs_of_free_sizes_are_proved(op, direction):
    for outputs in (("Y",), ("Y", "Y_h")):
        model, _ = build(Case(op, 17, direction, dynamic=True, outputs=outputs))
        assert rnn_lower.prove(model, rnn_lower.lower(model, target="onnxruntime")).ok
