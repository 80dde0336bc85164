"""Sizes that a model computes itself: what is said of them is so, whatever the free sizes are."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from judge import refused, run_onnxruntime, run_reference
from onenode import Case, build
from onnx import TensorProto, helper, numpy_helper

import rnn_lower
from rnn_lower.modelio.document import Document
from rnn_lower.shapes.shape_data import SHAPES, computed_shape
from rnn_lower.shapes.size_values import RULES

MODELS, OPSET = 60, 17


class Drawn:
    """A chain of values, of which each next one is another shape of the last, and what computes those shapes."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []
        self.sizes = {"time": int(self.rng.integers(1, 6)), "batch": int(self.rng.choice([1, 1, 2]))}
        self.shape = [self.sizes["time"], self.sizes["batch"], 4]

    def add(self, op: str, inputs: list[str], **attributes: object) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def given(self, numbers: list[int]) -> str:
        name = f"c{len(self.tensors)}"
        self.tensors.append(numpy_helper.from_array(np.array(numbers, np.int64), name))
        return name

    def part(self, x: str, start: int, end: int) -> str:
        if self.rng.random() < 0.3:
            return self.add("Shape", [x], start=start, end=end)
        whole = self.add("Shape", [x])
        axes = [self.given([0])] if self.rng.random() < 0.5 else []
        ends = end - len(self.shape) if end < len(self.shape) and self.rng.random() < 0.5 else end
        return self.add("Slice", [whole, self.given([start]), self.given([ends]), *axes])

    def size(self, x: str, axis: int) -> str:
        """One size as a vector, by Gather and idle arithmetic."""
        found = self.add("Gather", [self.add("Shape", [x]), self.given([axis - len(self.shape) * (axis % 2)])])
        two = self.given([2])
        found = self.add("Sub", [self.add("Add", [found, two]), two])
        found = self.add("Div", [self.add("Mul", [found, two]), two])
        found = self.add("Neg", [self.add("Neg", [found])])
        return self.add("Reshape", [self.chosen(found), self.given([-1])])

    def chosen(self, size: str) -> str:
        """The same by a choice between the size, as a number, and others."""
        number = self.add("Squeeze", [size, self.given([0])])
        idle, zero = self.add("Unsqueeze", [number, self.given([0])]), self.given([0])
        if self.rng.random() < 0.5:
            idle = self.add("Add", [idle, self.add("Mod", [self.given([8]), self.given([4])])])
        least = self.add("Min", [self.add("Max", [zero, self.given([3])]), self.given([5])])
        is_negative = self.add("Equal", [idle, self.given([-1])])
        several = self.add("ConstantOfShape", [self.given([1])], value=numpy_helper.from_array(np.array([7])))
        found = self.add("Where", [is_negative, self.add("Add", [least, several]), idle])
        return self.add("Identity", [self.add("Cast", [found], to=TensorProto.INT64)])

    def filled(self, x: str) -> str:
        """Zeros of the same shape, one axis of size 1 expanded again."""
        sizes = [self.size(x, axis) for axis in range(len(self.shape))]
        axis = int(self.rng.integers(len(sizes)))
        zeros = self.add(
            "ConstantOfShape", [self.add("Concat", [*sizes[:axis], self.given([1]), *sizes[axis + 1 :]], axis=0)]
        )
        return self.add("Expand", [zeros, self.add("Concat", sizes[axis:], axis=0)])

    def sorted(self, x: str) -> str:
        """Along one axis, by as many as it has, or with one fewer."""
        axis = int(self.rng.integers(len(self.shape)))
        count = self.part(x, axis, axis + 1)
        if isinstance(self.shape[axis], int) and self.shape[axis] > 1 and self.rng.random() < 0.5:
            count, self.shape[axis] = self.given([self.shape[axis] - 1]), self.shape[axis] - 1
        name = self.add("TopK", [x, count], axis=axis - len(self.shape) * int(self.rng.integers(2)))
        self.nodes[-1].output.append(f"{name}/at")
        return name

    def turned(self, x: str) -> str:
        perm = [int(axis) for axis in self.rng.permutation(len(self.shape))]
        self.shape = [self.shape[axis] for axis in perm]
        return self.add("Transpose", [x], perm=perm)

    def reshaped(self, x: str) -> str:
        """Two axes joined, an axis of size 1 put somewhere, or one left to be found."""
        rank, kind = len(self.shape), int(self.rng.integers(3))
        axis = int(self.rng.integers(rank - 1))
        if kind == 0 and rank > 3:
            one, other = (self.part(x, place, place + 1) for place in (axis, axis + 1))
            joined = self.add("Reshape", [self.add("Mul", [one, other]), self.given([-1])])
            parts = [self.part(x, 0, axis)] if axis else []
            parts += [joined, *([self.part(x, axis + 2, rank)] if axis + 2 < rank else [])]
            self.shape = [*self.shape[:axis], self.shape[axis] * self.shape[axis + 1], *self.shape[axis + 2 :]]
        elif kind == 1:
            front = [self.part(x, 0, axis)] if axis else []
            parts = [*front, self.given([1]), self.part(x, axis, rank)]
            self.shape = [*self.shape[:axis], 1, *self.shape[axis:]]
        else:
            front = [self.given([0] * axis)] if axis else []
            back = [self.part(x, axis + 1, rank)] if axis + 1 < rank else []
            parts = [*front, self.given([-1]), *back]
        sizes = self.add("Concat", parts, axis=0) if len(parts) > 1 else parts[0]
        return self.add("Reshape", [x, sizes], allowzero=int(kind == 1))

    def recurrent(self, x: str) -> str:
        rows = self.shape[-1]
        weights = [np.zeros((1, 3, rows), np.float32), np.zeros((1, 3, 1), np.float32)]
        names = [f"w{len(self.tensors) + k}" for k in range(2)]
        self.tensors += [numpy_helper.from_array(array, name) for array, name in zip(weights, names, strict=True)]
        self.shape = [self.shape[0], 1, self.shape[1], 1]
        return self.add("GRU", [x, *names], hidden_size=1)


def drawn(seed: int) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    made = Drawn(seed)
    x, values, shape = "x", list[str](), list(made.shape)
    for _ in range(int(made.rng.integers(2, 7))):
        if len(made.shape) == 3 and made.rng.random() < 0.2:
            x = made.recurrent(x)
        else:
            x = made.rng.choice([made.turned, made.reshaped, made.reshaped, made.filled, made.sorted])(x)
        values.append(x)
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in values]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["time", 1 if shape[1] == 1 else "batch", 4])]
    graph = helper.make_graph(made.nodes, "g", inputs, outputs, made.tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    return model, {"x": np.ones(shape, np.float32)}


@pytest.mark.parametrize("part", range(4))
def test_what_is_counted_is_so(part):
    certain = 0
    for seed in range(part * MODELS, (part + 1) * MODELS):
        model, feeds = drawn(seed)
        document = Document(model)
        sizes = dict(zip(["time", "batch", ""], feeds["x"].shape, strict=True))
        for value, result in zip(document.model.graph.outputs, run_onnxruntime(model, feeds), strict=True):
            found = computed_shape(value, document.shape_info)
            assert found is None or len(found) == result.ndim, (seed, value.name)
            for size, actual in zip(found or (), result.shape, strict=False):
                assert size is None or sizes.get(str(size), size) == actual, (seed, value.name, found, result.shape)
                certain += size is not None
    assert certain > 5 * MODELS


def test_every_row_is_drawn():
    nodes = {node.op_type for seed in range(MODELS) for node in drawn(seed)[0].graph.node}
    assert nodes >= {*RULES, *SHAPES} - {"RNN", "LSTM"}


@pytest.mark.parametrize("what", ["other values", "allowzero"])
def test_what_is_not_counted(what):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["time", 1, 4])
    tensors = {"s": [0], "e": [3], "step": [2], "axes": [0], "rest": [-1], "none": [0, 1, 4]}
    nodes = [helper.make_node("Shape", ["x"], ["shape"])]
    if what == "other values":
        nodes.append(helper.make_node("Neg", ["shape"], ["minus"]))
        nodes.append(helper.make_node("Abs", ["minus"], ["sizes"]))
    else:
        nodes = [helper.make_node("Identity", ["none"], ["sizes"])]
    allow = {"allowzero": 1} if what == "allowzero" else {}
    nodes.append(helper.make_node("Reshape", ["x", "sizes"], ["y"], **allow))
    weights = [numpy_helper.from_array(np.array(value, np.int64), name) for name, value in tensors.items()]
    graph = helper.make_graph(nodes, "g", [x], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    document = Document(model)
    assert set(computed_shape(document.model.graph.outputs[0], document.shape_info) or [None]) <= {None}


@pytest.mark.parametrize(
    ("op", "opset", "layout"), [("LSTM", 1, 0), ("GRU", 3, 0), ("RNN", 6, 0), ("LSTM", 14, 0), ("LSTM", 14, 1)]
)
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_results_of_recurrent_nodes(op, opset, layout, direction):
    """onnx infers them from opset 7 on; layout came with opset 14."""
    case = Case(op, opset, T=5, N=2, H=4, direction=direction, layout=layout)
    model, feeds = build(case)
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    document = Document(model)
    found = [computed_shape(value, document.shape_info) for value in document.model.graph.outputs]
    assert found == [
        list(array.shape) for array in (run_reference if refused(model) else run_onnxruntime)(model, feeds)
    ]
    for value, sizes in zip(model.graph.output, found, strict=True):
        value.CopyFrom(helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, sizes))
    lowered = rnn_lower.lower(model)
    assert lowered.graph.output == model.graph.output
    assert rnn_lower.prove(model, lowered)
