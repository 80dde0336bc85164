"""Stacks of recurrent nodes as exporters write them: what lies between the layers, and where initial states come from."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
STATES = ("none", "constant", "input", "computed")


class _Stack:
    def __init__(self, op: str, bidirectional: bool, states: str, batch_first: bool, H: int) -> None:
        self.op, self.D, self.states, self.batch_first, self.H = op, 1 + bidirectional, states, batch_first, H
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: dict[str, onnx.TensorProto] = {}
        self.rng = np.random.default_rng(0)

    def tensor(self, name: str, values: object) -> str:
        self.tensors.setdefault(name, numpy_helper.from_array(np.asarray(values), name))
        return name

    def weight(self, name: str, *shape: int) -> str:
        return self.tensor(name, (self.rng.uniform(-1, 1, size=shape) / 4).astype(np.float32))

    def add(self, op_type: str, inputs: list[str], output: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(op_type, inputs, [output], name=f"{output}_node", **attributes))
        return output

    def initial(self, name: str, layer: int) -> str:
        """An initial state [D, N, H]: a constant, a part of an input, or zeros as large as X tells (as torch does)."""
        if self.states == "constant":
            return self.weight(f"{name}{layer}", self.D, 1, self.H)
        if self.states == "input":
            first = self.tensor(f"first{layer}", [layer * self.D])
            end = self.tensor(f"end{layer}", [(layer + 1) * self.D])
            return self.add("Slice", [name, first, end, self.tensor("axis0", [0])], f"{name}{layer}")
        own = f"{name}{layer}"
        place = self.tensor("batch_axis", np.array(0 if self.batch_first else 1))
        size = self.add("Gather", [self.add("Shape", ["X"], f"{own}_shape"), place], f"{own}_size")
        size = self.add("Unsqueeze", [size, self.tensor("axis0", [0])], f"{own}_sizes")
        parts = [self.tensor("directions", [self.D]), size, self.tensor("hidden", [self.H])]
        zero = self.tensor("zero", np.zeros((1, 1, 1), np.float32))
        return self.add("Expand", [zero, self.add("Concat", parts, f"{own}_dims", axis=0)], own)

    def layer(self, k: int, x: str, width: int) -> str:
        gates, D, H = GATES[self.op], self.D, self.H
        if self.batch_first:
            x = self.add("Transpose", [x], f"time_major{k}", perm=[1, 0, 2])
        inputs = [x, self.weight(f"W{k}", D, gates * H, width), self.weight(f"R{k}", D, gates * H, H)]
        inputs.append(self.weight(f"B{k}", D, 2 * gates * H))
        if self.states != "none":
            inputs += ["", *(self.initial(name, k) for name in ("h", "c")[: 1 + (self.op == "LSTM")])]
        attributes = {"linear_before_reset": 1} if self.op == "GRU" else {}
        direction = "bidirectional" if D == 2 else "forward"
        y = self.add(self.op, inputs, f"y{k}", hidden_size=H, direction=direction, **attributes)
        if D == 2:
            y = self.add("Transpose", [y], f"directions_last{k}", perm=[0, 2, 1, 3])
            y = self.add("Reshape", [y, self.tensor("joined", [0, 0, -1])], f"joined{k}")
        else:
            y = self.add("Squeeze", [y, self.tensor("axis1", [1])], f"squeezed{k}")
        return self.add("Transpose", [y], f"batch_major{k}", perm=[1, 0, 2]) if self.batch_first else y


def stack(
    op: str, T: int, layers: int = 6, bidirectional: bool = True, states: str = "none",
    batch: int | str | None = 1, batch_first: bool = False, H: int = 16,
) -> onnx.ModelProto:  # fmt: skip
    """`layers` nodes of T steps, one on the other."""
    made = _Stack(op, bidirectional, states, batch_first, H)
    last = "X"
    for k in range(layers):
        last = made.layer(k, last, H if k == 0 else made.D * H)
    inputs = [helper.make_tensor_value_info("X", TensorProto.FLOAT, [batch, T, H] if batch_first else [T, batch, H])]
    if states == "input":
        for name in ("h", "c")[: 1 + (op == "LSTM")]:
            inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [layers * made.D, batch, H]))
    outputs = [helper.make_tensor_value_info(last, TensorProto.FLOAT, [None] * 3)]
    graph = helper.make_graph(made.nodes, "g", inputs, outputs, list(made.tensors.values()))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
