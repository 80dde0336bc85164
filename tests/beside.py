"""Recurrent nodes that read nothing of each other, as exporters write grouped layers: each with its own moves around it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from stacks import GATES, TYPES


def beside(
    op: str, nodes: int, T: int = 5, N: int = 1, blocks: int = 1, directions: tuple[str, ...] = ("forward",),
    states: tuple[int, ...] = (), B: bool = True, one_x: bool = False, dynamic: bool = False, dtype: str = "float",
    outputs: tuple[str, ...] = ("Y",), opset: int = 17, I: int = 3, H: int = 4, **attributes: Any,
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:  # fmt: skip
    """`blocks` times `nodes` nodes of hidden size H; node k goes directions[k % n], and those of `states` have first states.

    A block reads the sum of what the one before gives. Every node gives `outputs`, or the first of them it has.
    """
    rng, numpy, kind = np.random.default_rng(0), TYPES[dtype], getattr(TensorProto, dtype.upper())
    made, tensors, infos, G = [], [], [], GATES[op]

    def weight(name: str, *shape: int) -> str:
        tensors.append(numpy_helper.from_array(rng.uniform(-0.7, 0.7, shape).astype(numpy), name))
        return name

    source = ["X"] * nodes if one_x else [f"part{k}" for k in range(nodes)]
    if not one_x:
        tensors.append(numpy_helper.from_array(np.full(nodes, I), "sizes"))
        made.append(helper.make_node("Split", ["X", "sizes"], source, axis=2))
    for block in range(blocks):
        sums = []
        for k in range(nodes):
            own, direction = f"{block}_{k}", directions[k % len(directions)]
            D, width = 1 + (direction == "bidirectional"), H if block else I
            x = source[k]
            if not one_x:
                x = f"x{own}"
                made.append(helper.make_node("Identity", [source[k]], [x]))
            inputs = [x, weight(f"W{own}", D, G * H, width), weight(f"R{own}", D, G * H, H)]
            inputs += [weight(f"B{own}", D, 2 * G * H) if B else ""]
            if k in states:
                inputs += ["", *(weight(f"{name}{own}", D, N, H) for name in "hc"[: 1 + (op == "LSTM")])]
            names = ("Y", "Y_h", "Y_c")[: 2 + (op == "LSTM")]
            last = block == blocks - 1
            there = [f"{name}{own}" if name in outputs or (name == "Y" and not last) else "" for name in names]
            said = {"hidden_size": H, "direction": direction, **attributes}
            if "activations" in attributes:
                said["activations"] = attributes["activations"] * D
            made.append(helper.make_node(op, inputs, there, name=f"node{own}", **said))
            infos += [helper.make_tensor_value_info(name, kind, None) for name in there if name and last]
            if not last:  # [T, D, N, H] -> [T, N, H], before the next node, as exporters write it
                tensors.append(numpy_helper.from_array(np.array([1]), f"axis{own}"))
                made.append(helper.make_node("ReduceSum", [there[0], f"axis{own}"], [f"sum{own}"], keepdims=0))
                sums.append(f"sum{own}")
        if sums:
            made.append(helper.make_node("Sum", sums, [f"all{block}"]))
            source = [f"all{block}"] * nodes
    width = I if one_x else nodes * I
    given = helper.make_tensor_value_info("X", kind, ["frames" if dynamic else T, N, width])
    model = helper.make_model(
        helper.make_graph(made, "g", [given], infos, tensors),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=8,
    )
    return model, {"X": rng.standard_normal((T, N, width)).astype(numpy)}
