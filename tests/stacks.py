"""Stacks of recurrent nodes as exporters write them: what lies between the layers, and where initial states come from."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from rnn_lower.lowering import parallel, shared
from rnn_lower.lowering import stack as stacking

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


VARIANTS: dict[str, list[dict[str, Any]]] = {
    "RNN": [{}, {"activations": ["Relu"]}, {"clip": 0.3}],
    "GRU": [{}, {"linear_before_reset": 1}, {"linear_before_reset": 1, "B": False}, {"clip": 0.3}],
    "LSTM": [{}, {"input_forget": 1}, {"clip": 0.3}, {"activations": ["HardSigmoid", "Relu", "Softsign"]}],
}
"""Attributes by operator, and without B, with which layers or nodes may share a loop."""

TYPES = {"float": np.float32, "double": np.float64, "float16": np.float16}
BETWEEN: dict[str, list[tuple[str, dict[str, Any], list[int] | None]]] = {
    "squeeze": [("Squeeze", {}, [1])],
    "reshape": [("Reshape", {}, [0, -1, 4])],
    "turned": [("Transpose", {"perm": [0, 2, 1, 3]}, None), ("Reshape", {}, [0, 0, -1])],
    "squeezed twice": [("Squeeze", {}, [1]), ("Identity", {}, None), ("Unsqueeze", {}, [1]), ("Squeeze", {}, [1])],
}


def chain(
    op: str, layers: int, T: int = 5, N: int = 1, dynamic: bool = False, states: tuple[int, ...] = (), B: bool = True,
    between: str = "squeeze", dtype: str = "float", outputs: tuple[str, ...] = ("Y",), opset: int = 17,
    I: int = 3, H: int = 4, finals: tuple[int, ...] = (), **attributes: Any,
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:  # fmt: skip
    """Layers of hidden size H, one on the other, of which `states` have first states; the last gives `outputs`.

    finals: lower layers whose last states are outputs as well.
    """
    rng, numpy, kind = np.random.default_rng(0), TYPES[dtype], getattr(TensorProto, dtype.upper())
    nodes, tensors, G = [], [], GATES[op]

    def weight(name: str, *shape: int) -> str:
        tensors.append(numpy_helper.from_array(rng.uniform(-0.7, 0.7, shape).astype(numpy), name))
        return name

    def given(name: str, places: list[int]) -> str:
        tensors.append(numpy_helper.from_array(np.array(places), name))
        return name

    x = "X"
    for k in range(layers):
        last, inputs = k == layers - 1, [x, weight(f"W{k}", 1, G * H, H if k else I), weight(f"R{k}", 1, G * H, H)]
        inputs += [weight(f"B{k}", 1, 2 * G * H) if B else ""]
        if k in states:
            inputs += ["", *(weight(f"{name}{k}", 1, N, H) for name in "hc"[: 1 + (op == "LSTM")])]
        names = ("Y", "Y_h", "Y_c")[: 2 + (op == "LSTM")]
        ends = [f"{name}{k}" for name in names[1:]] if k in finals else []
        there = [name if name in outputs else "" for name in names] if last else [f"y{k}", *ends]
        nodes.append(helper.make_node(op, inputs, there, name=f"layer{k}", hidden_size=H, **attributes))
        x = f"y{k}"
        for step, (op_type, said, places) in enumerate([] if last else BETWEEN[between]):
            extra = [] if places is None else [given(f"places{k}_{step}", places)]
            nodes.append(helper.make_node(op_type, [x, *extra], [f"x{k}_{step}"], **said))
            x = f"x{k}_{step}"
    ends = [name for node in nodes[:-1] if node.op_type == op for name in node.output[1:]]
    infos = [helper.make_tensor_value_info(name, kind, None) for name in (*outputs, *ends)]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("X", kind, ["frames" if dynamic else T, N, I])], infos, tensors
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return model, {"X": rng.standard_normal((T, N, I)).astype(numpy)}


def given_weights(
    model: onnx.ModelProto, feeds: dict[str, np.ndarray]
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """With the weights of recurrent nodes as inputs of the model."""
    taken = {name for node in model.graph.node if node.op_type in GATES for name in node.input[1:4]}
    weights = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer if t.name in taken}
    for name, value in weights.items():
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        model.graph.input.append(helper.make_tensor_value_info(name, kind, value.shape))
    tensors = [t for t in model.graph.initializer if t.name not in weights]
    del model.graph.initializer[:]
    model.graph.initializer.extend(tensors)
    return model, feeds | weights


@contextlib.contextmanager
def any_size(units: int = 0) -> Iterator[None]:
    """Nodes of all sizes share a loop, be it faster or not; those beside each other as one wide cell up to so many units."""
    with contextlib.ExitStack() as patches:
        for name in ("HIDDEN_SIZE", "BATCH_SIZE"):
            patches.enter_context(mock.patch.object(shared, name, 1000))
        patches.enter_context(mock.patch.object(stacking, "PAYS", shared.Paying(10**6)))
        patches.enter_context(mock.patch.dict(parallel.PAYS, dict.fromkeys(GATES, shared.Paying(units, 2))))
        yield


WIDTHS = {"end to end": 10**6, "side by side": 0}
"""Units up to which cells are one wide one: always, and never."""
