"""What is stated of emitted values: enough that every shape is known, and nothing that is not so."""

from __future__ import annotations

import copy
import re

import numpy as np
import onnx
import onnxruntime
import pytest
from judge import close, run_onnxruntime
from onenode import Case, build
from stacks import STATES, stack

import rnn_lower

BATCHES = [(states, batch) for states in STATES for batch in (1, "N", None) if states != "constant" or batch == 1]


def emitted(model: onnx.ModelProto) -> set[str]:
    nodes = (node for node in model.graph.node if any(entry.key == "rnn_lower.op" for entry in node.metadata_props))
    return {name for node in nodes for name in node.output if node.op_type != "Constant"}


def dims_of(info: onnx.ValueInfoProto) -> list[int | str | None] | None:
    if not info.type.tensor_type.HasField("shape"):
        return None
    return [
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in info.type.tensor_type.shape.dim
    ]


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("states", "batch"), [row for row in BATCHES if row[1] is not None])
def test_every_shape_of_a_straight_line_is_known(op: str, bidirectional: bool, states: str, batch: int | str | None):
    """onnxruntime takes quadratic time to load values whose sizes it cannot tell to be the same."""
    model = stack(op, 5, 3, bidirectional, states, batch, batch_first=not bidirectional)
    lowered = rnn_lower.lower(model, form="unroll")
    inferred = onnx.shape_inference.infer_shapes(lowered, strict_mode=True, data_prop=True)
    shapes = {info.name: dims_of(info) for info in (*inferred.graph.value_info, *inferred.graph.output)}
    names = {name for name in emitted(lowered) if re.search(r"/t\d+/|/projected|/Y$", name)}
    assert len(names) > 50
    for name in names:
        unknown = [dim for dim in shapes[name] or [None] if dim is None or str(dim).startswith("unk__")]
        assert not unknown, (name, shapes[name])
    per_node = {name.split("/")[0]: set() for name in names}
    for name in names:
        per_node[name.split("/")[0]] |= {dim for dim in shapes[name] or () if isinstance(dim, str)}
    assert all(len(found) <= 1 for found in per_node.values()), per_node


@pytest.mark.parametrize("form", ["scan", "loop", "unroll"])
@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize(("states", "batch"), BATCHES)
def test_what_is_stated_is_so(form: str, op: str, states: str, batch: int | str | None):
    lowered = rnn_lower.lower(stack(op, 5, 2, True, states, batch), form=form)
    stated = {info.name: dims for info in lowered.graph.value_info if (dims := dims_of(info)) is not None}
    types = {info.name: info.type.tensor_type.elem_type for info in lowered.graph.value_info}
    assert stated
    del lowered.graph.output[:]
    lowered.graph.output.extend(onnx.ValueInfoProto(name=name) for name in stated)
    del lowered.graph.value_info[:]
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(lowered.SerializeToString(), options, ["CPUExecutionProvider"])
    fed = {
        value.name: np.ones([size if isinstance(size, int) else 3 for size in value.shape], np.float32)
        for value in session.get_inputs()
    }
    sizes: dict[str, int] = {}
    for name, found in zip(stated, session.run(list(stated), fed), strict=True):
        assert onnx.helper.np_dtype_to_tensor_dtype(found.dtype) == types[name]
        assert len(found.shape) == len(stated[name]), name
        for size, told in zip(found.shape, stated[name], strict=True):
            if told is not None:
                assert size == (sizes.setdefault(told, size) if isinstance(told, str) else told), (name, stated[name])


@pytest.mark.parametrize("T", [1, 3])
@pytest.mark.parametrize("layout", [0, 1])
def test_a_batch_size_that_only_a_state_declares(T, layout):
    """As in models of one stream: without it, a Squeeze behind the node has an unknown rank, which OpenVINO refuses."""
    model, feeds = build(Case("GRU", 14, T=T, N=1, optional=("initial_h",), layout=layout))
    model.graph.input[0].type.tensor_type.shape.dim[1 - layout].dim_param = "N"
    lowered = rnn_lower.lower(model, form="unroll")
    open_ = copy.deepcopy(lowered)
    for value in open_.graph.output:
        value.type.tensor_type.ClearField("shape")
    inferred = onnx.shape_inference.infer_shapes(open_, strict_mode=True)
    assert all(None not in (dims_of(value) or [None]) for value in inferred.graph.output)
    assert not any("N" in (dims_of(value) or []) for value in inferred.graph.output)
    if not layout:  # which onnxruntime lacks
        close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))
    assert rnn_lower.prove(model, lowered).ok


def test_weights_and_constants_are_not_annotated():
    """quantize_dynamic takes an annotated weight for something that it may not replace."""
    lowered = rnn_lower.lower(stack("GRU", 5, 2, True, "computed", "N"), form="unroll")
    weights = {tensor.name for tensor in lowered.graph.initializer}
    assert not weights & {info.name for info in lowered.graph.value_info}


def test_names_say_what_is_held():
    lowered = rnn_lower.lower(stack("GRU", 5, 2, True), form="unroll")
    assert not [tensor.name for tensor in lowered.graph.initializer if "/t0/" in tensor.name]
    assert {
        node.name.rpartition("/")[2].rstrip("_0123456789") for node in lowered.graph.node if len(node.output) > 1
    } == {"split"}


def test_a_fresh_name_is_no_symbol_of_the_model():
    model = stack("GRU", 3, 1, True, "none", None)
    model.graph.value_info.append(
        onnx.helper.make_tensor_value_info("directions_last0", 1, [3, "y0_node/batch", 2, 16])
    )
    lowered = rnn_lower.lower(model, form="scan", target="onnxruntime")
    named = {dim for info in lowered.graph.value_info for dim in dims_of(info) or ()}
    assert {"y0_node/batch", "y0_node/batch_1"} <= named


def looped(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model in a Loop over the first 1, 2 ... rows of a batch."""
    info, node, inner = onnx.helper.make_tensor_value_info, onnx.helper.make_node, model.graph
    nodes = [
        node("Unsqueeze", ["trip", "axis"], ["size"]),
        node("Add", ["size", "one"], ["end"]),
        node("Slice", ["whole", "axis", "end", "one"], ["X"]),
        *inner.node,
        node("ReduceSum", [inner.output[0].name], ["total"], keepdims=0),
        node("Identity", ["going_on"], ["on"]),
    ]
    constants = [onnx.numpy_helper.from_array(np.array([k]), name) for k, name in enumerate(("axis", "one"))]
    body = onnx.helper.make_graph(
        nodes, "body", [info("trip", 7, []), info("going_on", 9, [])], [info("on", 9, []), info("total", 1, [])],
        [*inner.initializer, *constants],
    )  # fmt: skip
    graph = onnx.helper.make_graph(
        [node("Loop", ["count", ""], ["totals"], body=body)], "g",
        [info("whole", 1, [3, None, 16]), info("count", 7, [])], [info("totals", 1, [None])],
    )  # fmt: skip
    return onnx.helper.make_model(graph, opset_imports=model.opset_import, ir_version=8)


def test_a_body_gets_no_fresh_name():
    """It runs many times, and the batch may be another each time."""
    model = looped(stack("GRU", 3, 1, True, "none", None))
    lowered = rnn_lower.lower(model, form="scan")
    inside = onnx.helper.get_node_attr_value(
        next(node for node in lowered.graph.node if node.op_type == "Loop"), "body"
    )
    assert not [dim for info in inside.value_info for dim in dims_of(info) or () if isinstance(dim, str)]
    fed = {"whole": np.ones((3, 4, 16), np.float32), "count": np.array(4)}
    found = [
        onnxruntime.InferenceSession(it.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, fed)[0]
        for it in (model, lowered)
    ]
    np.testing.assert_allclose(*found, rtol=1e-4)


@pytest.mark.parametrize("form", ["loop", "unroll"])
@pytest.mark.parametrize("op", ["RNN", "LSTM"])
def test_a_false_size_that_the_model_declares_for_its_output(op, form):
    """The fused node runs whatever is declared; so does what replaces it, though onnxruntime fuses Reshapes to it."""
    model, feeds = build(Case(op))
    x, y = model.graph.input[0].type.tensor_type.shape.dim, model.graph.output[0].type.tensor_type.shape.dim
    x[0 if form == "loop" else 1].dim_param = "unknown"
    y[0 if form == "loop" else 2].dim_value = 7
    close(run_onnxruntime(rnn_lower.lower(model, form=form), feeds), run_onnxruntime(model, feeds))


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize(
    ("form", "opset"), [("loop", 7), *((form, opset) for form in ("scan", "loop") for opset in (9, 10, 11, 13))]
)
def test_weights_whose_sizes_have_names(op, form, opset):
    """At opset 10 inference calls all parts of such an axis the same, and onnxruntime gives them one buffer."""
    case = Case(
        op, opset, T=1, N=2 * {"LSTM": 4, "GRU": 3, "RNN": 1}[op], H=2, optional=("B", "initial_h"), weights="input"
    )
    model, feeds = build(case)
    for value in model.graph.input:
        if value.name in ("X", "W"):
            for dim, name in zip(value.type.tensor_type.shape.dim, "TN", strict=False):
                dim.dim_param = name
    close(run_onnxruntime(rnn_lower.lower(model, form=form), feeds), run_onnxruntime(model, feeds))
