"""What is stated of emitted values: enough that every shape is known, and nothing that is not so."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
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
@pytest.mark.parametrize(("states", "batch"), BATCHES)
def test_every_shape_of_a_straight_line_is_known(op: str, bidirectional: bool, states: str, batch: int | str | None):
    """onnxruntime takes quadratic time to load values whose sizes it cannot tell to be the same."""
    model = stack(op, 5, 3, bidirectional, states, batch, batch_first=not bidirectional)
    lowered = rnn_lower.lower(model, form="unroll")
    inferred = onnx.shape_inference.infer_shapes(lowered, strict_mode=True, data_prop=True)
    shapes = {info.name: dims_of(info) for info in (*inferred.graph.value_info, *inferred.graph.output)}
    names = emitted(lowered) - {value.name for value in lowered.graph.output}
    assert len(names) > 50
    names -= {name for name in names if name.rstrip("_12").endswith("/rows")}  # T * N has no name
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
