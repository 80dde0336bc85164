"""The canonical graph: how many nodes of which operators, no If, nothing unread, few calls."""

from __future__ import annotations

import inspect
import sys

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from judge import close, every_node, expected, run_onnxruntime
from onenode import OPTIONAL, Case, build

import rnn_lower
from rnn_lower.builder import graph_builder
from rnn_lower.lowering import lowering
from rnn_lower.targeting import TARGETS

MOST = {
    ("LSTM", "forward", True, False): 24, ("LSTM", "forward", False, False): 17,
    ("LSTM", "bidirectional", True, False): 41, ("LSTM", "bidirectional", True, True): 57,
    ("GRU", "forward", True, False): 24, ("GRU", "forward", False, False): 17,
    ("GRU", "bidirectional", True, False): 41, ("GRU", "bidirectional", True, True): 57,
    ("RNN", "forward", True, False): 12, ("RNN", "forward", False, False): 8,
    ("RNN", "bidirectional", True, False): 22, ("RNN", "bidirectional", True, True): 33,
}  # fmt: skip
"""By operator, direction, whether sizes are free and whether there are lengths."""

PLAIN = {
    "Add", "Concat", "ConstantOfShape", "Loop", "MatMul", "Mul", "Scan", "Shape", "Sigmoid", "Split", "Squeeze", "Sub",
    "Tanh", "Unsqueeze",
}  # fmt: skip
FOR_LENGTHS = {"Cast", "Less", "Range", "Where"}


@pytest.mark.parametrize("opset", [13, 17, 22])
@pytest.mark.parametrize("row", MOST, ids=lambda row: "-".join(map(str, row)))
def test_how_many_nodes_of_which_operators(row, opset):
    op, direction, free, lengths = row
    optional = ("B", "sequence_lens") if lengths else ("B",)
    model, _ = build(Case(op, opset, direction, dynamic=free, optional=optional))
    nodes = [node for node in every_node(rnn_lower.lower(model)) if node.op_type != "Constant"]
    assert len(nodes) <= MOST[row]
    assert {node.op_type for node in nodes} <= PLAIN | (FOR_LENGTHS if lengths else set())


def test_the_way_from_a_node_to_the_recurrent_product_is_short(monkeypatch):
    depths = []

    def matmul(self: graph_builder.GraphBuilder, a: object, b: object, name: str = "product") -> object:
        frames = [frame.function for frame in inspect.stack(0)]
        depths.append(frames.index("lower_node"))
        return original(self, a, b, name)

    original = graph_builder.GraphBuilder.matmul
    monkeypatch.setattr(graph_builder.GraphBuilder, "matmul", matmul)
    rnn_lower.lower(build(Case("LSTM"))[0], form="scan")
    assert max(depths) <= 8
    assert lowering.lower_node.__module__ in sys.modules


@pytest.mark.parametrize("target", [None, *TARGETS])
@pytest.mark.parametrize("op", OPTIONAL)
def test_no_emitted_node_is_unread(op, target):
    """In any form that a target takes; of an output that nobody wants nothing is left either."""
    for outputs in (("Y",), ("Y_h",)):
        for dynamic in (False, True):
            case = Case(op, 17, "bidirectional", N=1, dynamic=dynamic, outputs=outputs)
            try:
                lowered = ir.from_proto(rnn_lower.lower(build(case)[0], target=target))
            except rnn_lower.UnsupportedError:
                continue
            for node in ir.traversal.RecursiveGraphIterator(lowered.graph):
                assert any(out.uses() or out.is_graph_output() for out in node.outputs), node


@pytest.mark.parametrize("form", ["scan", "loop"])
def test_a_name_left_behind_by_an_error_changes_nothing(form, monkeypatch):
    b = graph_builder.GraphBuilder(
        17, ir.DataType.FLOAT, lowering.Names(()), lowering.ConstantPool(lowering.Names(()), False), "a"
    )
    with pytest.raises(KeyError), b.scope("b"):
        raise KeyError
    assert b.unique_name("x") == "a/x"


def test_constants_are_folded_without_touching_data():
    def load() -> np.ndarray:
        raise AssertionError("the data was read")

    from rnn_lower.builder.constants import Constant

    large = Constant(b"key", (40_000, 10_000), ir.DataType.FLOAT, load)
    names = lowering.Names(())
    b = graph_builder.GraphBuilder(17, ir.DataType.FLOAT, names, lowering.ConstantPool(names, False), "a")
    joined = b.concat([large, large], 0)
    assert joined.shape == (80_000, 10_000)
    assert b.transpose(b.slice(joined, 0, 0, 5), [1, 0]).shape == (10_000, 5)
    assert b.reshape(b.cast(b.add(large, large), ir.DataType.FLOAT, ir.DataType.DOUBLE), [-1]).shape == (400_000_000,)


def test_a_weight_that_many_nodes_move_is_looked_at_once():
    """R through four times a Concat of 20 copies and a Slice."""
    model, _ = build(Case("RNN", 17))
    graph = model.graph
    node = next(node for node in graph.node if node.op_type == "RNN")
    first = node.input[2]
    rows = next(tensor for tensor in graph.initializer if tensor.name == first).dims[1]
    for name, value in (("zero", 0), ("rows", rows), ("axis", 1)):
        graph.initializer.append(onnx.numpy_helper.from_array(np.array([value]), name))
    source = first
    for k in range(4):
        moved = [
            onnx.helper.make_node("Concat", [source] * 20, [f"joined{k}"], axis=1),
            onnx.helper.make_node("Slice", [f"joined{k}", "zero", "rows", "axis"], [f"cut{k}"]),
        ]
        for one in moved:
            graph.node.insert(len(graph.node) - 1, one)
        source = f"cut{k}"
    node.input[2] = source
    lowered = rnn_lower.lower(model)
    assert not {one.op_type for one in every_node(lowered)} & {"Slice", "Transpose"}
    feeds = build(Case("RNN", 17))[1]
    close(run_onnxruntime(lowered, feeds), expected(Case("RNN", 17)))


def half(op: str, before: str, dtype: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A node in half precision whose X comes out of another operator."""
    model, feeds = build(Case(op, 22, dtype=dtype, dynamic=True))
    graph = model.graph
    node = next(node for node in graph.node if node.op_type == op)
    (info,) = [one for one in graph.input if one.name == node.input[0]]
    x = feeds[info.name]
    node.input[0] = "moved"
    if before == "Transpose":
        feeds[info.name], moves = (
            x.transpose(1, 0, 2).copy(),
            onnx.helper.make_node("Transpose", [info.name], ["moved"], perm=[1, 0, 2]),
        )
    elif before == "Squeeze":
        feeds[info.name], moves = x[:, None].copy(), onnx.helper.make_node("Squeeze", [info.name, "axis"], ["moved"])
        graph.initializer.append(onnx.numpy_helper.from_array(np.array([1]), "axis"))
    elif before == "Reshape":
        moves = onnx.helper.make_node("Reshape", [info.name, "shape"], ["moved"])
        graph.initializer.append(onnx.numpy_helper.from_array(np.array([0, 0, -1]), "shape"))
    else:
        feeds[info.name], moves = (
            x.astype(np.float32),
            onnx.helper.make_node("Cast", [info.name], ["moved"], to=info.type.tensor_type.elem_type),
        )
    graph.node.insert(0, moves)
    kind = onnx.helper.np_dtype_to_tensor_dtype(feeds[info.name].dtype)
    info.CopyFrom(onnx.helper.make_tensor_value_info(info.name, kind, [None] * feeds[info.name].ndim))
    return model, feeds


@pytest.mark.parametrize("before", ["Transpose", "Squeeze", "Reshape", "Cast"])
@pytest.mark.parametrize("op", OPTIONAL)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_behind_what_moves_x(op, before, dtype):
    """onnxruntime 1.32 ends the process where a MatMul reads a Cast of a Transpose; here it would end the tests."""
    model, feeds = half(op, before, dtype)
    for form in ("scan", "loop", "unroll"):
        sizes = {
            "dims": {
                f"{model.graph.input[0].name}[{k}]": n for k, n in enumerate(feeds[model.graph.input[0].name].shape)
            }
        }
        lowered = rnn_lower.lower(model, form=form, **(sizes if form == "unroll" else {}))
        casts = {node.output[0]: node.input[0] for node in every_node(lowered) if node.op_type == "Cast"}
        moved = {node.output[0] for node in every_node(lowered) if node.op_type == "Transpose"}
        products = [node for node in every_node(lowered) if node.op_type == "MatMul"]
        assert products
        assert not [node for node in products for name in node.input if casts.get(name) in moved]
        if dtype == "float16":
            assert run_onnxruntime(lowered, feeds)
