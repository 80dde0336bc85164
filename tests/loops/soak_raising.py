"""Random recurrent nodes, lowered and raised back, and near misses, of which none may be raised.

`python FILE [COUNT] [FIRST]` prints how many came back as one node, and each that was raised to something else.
"""

from __future__ import annotations

import random
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from tallying import tally

import rnn_lower

FUNCTIONS = {
    "RNN": [["Tanh"], ["Relu"], ["Sigmoid"], ["HardSigmoid"], ["Softsign"], ["Elu"]],
    "GRU": [["Sigmoid", "Tanh"], ["HardSigmoid", "Tanh"], ["Sigmoid", "Relu"], ["Sigmoid", "Softsign"]],
    "LSTM": [["Sigmoid", "Tanh", "Tanh"], ["HardSigmoid", "Tanh", "Tanh"], ["Sigmoid", "Softsign", "Relu"]],
}
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def node_model(seed: int, small: bool = False) -> tuple[onnx.ModelProto, str]:
    """A model of one recurrent node, and the form that it is lowered to."""
    r, rng = random.Random(seed), np.random.default_rng(seed)
    op_type, form = r.choice(list(GATES)), r.choice(["scan", "loop", "unroll"])
    steps = r.randint(2, 12) if form == "unroll" or r.random() < 0.3 else "T"
    batch = r.randint(1, 3) if r.random() < 0.5 else "N"
    features, hidden = r.randint(1, 5), r.randint(2, 6)
    direction = "forward" if small else r.choice(["forward", "forward", "reverse", "bidirectional"])
    D, G = 2 if direction == "bidirectional" else 1, GATES[op_type]
    layout = int(not small and r.random() < 0.1)
    lengths = not small and r.random() < 0.25
    initial = not small and r.random() < 0.4
    arrays = {"W": (D, G * hidden, features), "R": (D, G * hidden, hidden)}
    arrays |= {"B": (D, 2 * G * hidden)} if r.random() < 0.8 else {}
    arrays |= {"P": (D, 3 * hidden)} if op_type == "LSTM" and not small and r.random() < 0.15 else {}
    x = [batch, steps, features] if layout else [steps, batch, features]
    state = [batch, D, hidden] if layout else [D, batch, hidden]
    inputs = [helper.make_tensor_value_info("X", TensorProto.FLOAT, x)]
    inputs += [helper.make_tensor_value_info("lens", TensorProto.INT32, [batch])] if lengths else []
    names = ["h0", "c0"] if op_type == "LSTM" else ["h0"]
    inputs += [helper.make_tensor_value_info(name, TensorProto.FLOAT, state) for name in names] if initial else []
    outputs = [name for name in ("Y", "Y_h", "Y_c")[: 3 if op_type == "LSTM" else 2] if r.random() < 0.7] or ["Y"]
    reads = [
        "X",
        "W",
        "R",
        "B" if "B" in arrays else "",
        "lens" if lengths else "",
        *(names if initial else [""] * len(names)),
    ]
    reads += ["P"] if "P" in arrays else []
    every = ("Y", "Y_h", "Y_c")[: 3 if op_type == "LSTM" else 2]
    attributes = {"hidden_size": hidden, "direction": direction, "activations": r.choice(FUNCTIONS[op_type]) * D}
    attributes |= {"layout": 1} if layout else {}
    attributes |= {"clip": round(r.uniform(0.5, 4), 2)} if r.random() < 0.15 else {}
    attributes |= {"linear_before_reset": r.choice([0, 1])} if op_type == "GRU" else {}
    attributes |= {"input_forget": 1} if op_type == "LSTM" and r.random() < 0.1 else {}
    node = helper.make_node(
        op_type, reads, [name if name in outputs else "" for name in every], name="node", **attributes
    )
    weights = [
        onnx.numpy_helper.from_array(rng.normal(0, 0.5, shape).astype("f4"), name) for name, shape in arrays.items()
    ]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph([node], "g", inputs, results, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), form


def back(seed: int) -> str:
    """What became of one: back, or why not."""
    model, form = node_model(seed)
    lowered = rnn_lower.lower(model, form=form)
    raised = rnn_lower.raise_loops(lowered)
    (before,) = model.graph.node
    if [node.op_type for node in raised.graph.node] != [before.op_type]:
        return f"not back: {form} {before.op_type} {[n.op_type for n in raised.graph.node][:4]}"
    if not agrees(model, raised, seed):
        return "WRONG"
    return "back" if rnn_lower.prove(lowered, raised).ok else "back, NOT PROVED again"


def agrees(original: onnx.ModelProto, other: onnx.ModelProto, seed: int) -> bool:
    """Whether both compute the same; layout 1 runs on the lowered form, since onnxruntime has no such node."""
    rng, sizes = np.random.default_rng(seed), {"T": 7, "N": 3}
    feeds: dict[str, np.ndarray] = {}
    for value in original.graph.input:
        shape = [dim.dim_value or sizes[dim.dim_param] for dim in value.type.tensor_type.shape.dim]
        if value.name == "lens":
            steps = original.graph.input[0].type.tensor_type.shape.dim
            layout = any(a.name == "layout" for a in original.graph.node[0].attribute)
            feeds[value.name] = rng.integers(0, (steps[int(layout)].dim_value or 7) + 1, shape).astype("i4")
        else:
            feeds[value.name] = rng.normal(size=shape).astype("f4")
    one, two = (_run(rnn_lower.lower(model), feeds) for model in (original, other))
    return all(np.allclose(a, b, atol=1e-5) for a, b in zip(one, two, strict=True))


def _run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feeds)


def near_miss(seed: int) -> str:
    """A lowered node with one thing changed: raised to nothing, or only to what it is now, by running it."""
    model, form = node_model(seed, small=True)
    lowered = rnn_lower.lower(model, form="loop" if form == "unroll" else form)
    r = random.Random(seed)
    (loop,) = [node for node in lowered.graph.node if node.op_type in ("Loop", "Scan")]
    body = next(attribute.g for attribute in loop.attribute if attribute.name == "body")
    change = r.choice(["sub", "twice", "operand", "function"])
    if change == "sub" and any(node.op_type == "Sub" for node in body.node):
        node = next(node for node in body.node if node.op_type == "Sub")
        node.input[:] = [node.input[1], node.input[0]]
    elif change == "twice":  # a sum once more
        node = r.choice([node for node in body.node if node.op_type == "Add"])
        extra = helper.make_node("Add", [node.output[0], node.input[1]], [f"{node.output[0]}/again"], name="again")
        _behind(body, node, extra)
    elif change == "function":
        node = r.choice(
            [
                node
                for node in body.node
                if node.op_type in ("Tanh", "Sigmoid", "Relu", "Softsign", "Elu", "HardSigmoid")
            ]
        )
        extra = helper.make_node("Mul", [node.output[0], node.output[0]], [f"{node.output[0]}/again"], name="again")
        _behind(body, node, extra)
    else:
        node = r.choice([node for node in body.node if node.op_type in ("Add", "MatMul", "Mul")])
        extra = helper.make_node("Neg", [node.output[0]], [f"{node.output[0]}/again"], name="again")
        _behind(body, node, extra)
    for node in lowered.graph.node:  # as somebody else's
        del node.metadata_props[:]
    raised = rnn_lower.raise_loops(lowered)
    if any(node.op_type in GATES for node in raised.graph.node):
        return "raised, and the same" if agrees_here(lowered, raised, seed) else "WRONG"
    return "stays"


def agrees_here(original: onnx.ModelProto, other: onnx.ModelProto, seed: int) -> bool:
    rng, sizes = np.random.default_rng(seed), {"T": 7, "N": 3}
    feeds = {
        value.name: rng.normal(
            size=[d.dim_value or sizes[d.dim_param] for d in value.type.tensor_type.shape.dim]
        ).astype("f4")
        for value in original.graph.input
    }
    return all(np.allclose(a, b, atol=1e-6) for a, b in zip(_run(original, feeds), _run(other, feeds), strict=True))


def _behind(body: onnx.GraphProto, node: onnx.NodeProto, extra: onnx.NodeProto) -> None:
    """Let what reads a node read another one behind it."""
    old, new = node.output[0], extra.output[0]
    for other in body.node:
        other.input[:] = [new if name == old else name for name in other.input]
    for value in body.output:
        value.name = new if value.name == old else value.name
    index = list(body.node).index(node)
    nodes = [*list(body.node)[: index + 1], extra, *list(body.node)[index + 1 :]]
    copies = [onnx.NodeProto.FromString(one.SerializeToString()) for one in nodes]
    del body.node[:]
    body.node.extend(copies)


if __name__ == "__main__":
    count, first = (int(sys.argv[k]) if len(sys.argv) > k else default for k, default in ((1, 2000), (2, 0)))
    for examine, number in ((back, count), (near_miss, max(1, count // 10))):
        counts = tally(examine, range(first, first + number), lambda found: found in ("back", "stays"))
        print(examine.__name__, counts)
