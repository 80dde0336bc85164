"""One-node models: a case is a plain description, `build` makes the model and its inputs of it.

What `rnn_lower.targeting.probe.onenode` has, and what a node may have around it: other element types, weights that are computed,
free sizes, branches, loops and functions.
"""

from __future__ import annotations

import dataclasses

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from rnn_lower.lowering.node import INPUTS, OPERATORS
from rnn_lower.options import OP_TYPES
from rnn_lower.targeting.probe import onenode

GATES = {op: operator.gates for op, operator in ((op, OPERATORS[op]) for op in OP_TYPES)}
OUTPUTS = {op: operator.outputs for op, operator in ((op, OPERATORS[op]) for op in OP_TYPES)}
OPTIONAL = {op: operator.inputs[3:] for op, operator in ((op, OPERATORS[op]) for op in OP_TYPES)}
DTYPES = {
    "float": (TensorProto.FLOAT, np.float32),
    "double": (TensorProto.DOUBLE, np.float64),
    "float16": (TensorProto.FLOAT16, np.float16),
    "bfloat16": (TensorProto.BFLOAT16, ml_dtypes.bfloat16),
}


@dataclasses.dataclass(frozen=True)
class Case(onenode.Case):
    """One node and its surroundings."""

    dtype: str = "float"
    hidden_size: bool = True
    weights: str = "initializer"  # initializer, input, constant, computed, moved
    dynamic: bool = False
    place: str = "main"  # main, if, loop, function
    output_sequence: int | None = None


def arrays(case: Case) -> dict[str, np.ndarray]:
    """Values of all present inputs."""
    return onenode.arrays(case, DTYPES[case.dtype][1])


def attributes(case: Case) -> dict[str, object]:
    given = onenode.attributes(case)
    if not case.hidden_size:
        del given["hidden_size"]
    return given if case.output_sequence is None else {**given, "output_sequence": case.output_sequence}


def recurrent_node(case: Case, names: dict[str, str], suffix: str = "") -> onnx.NodeProto:
    return onenode.recurrent_node(case, names, attributes(case), suffix)


def build(case: Case) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """The model and its feeds."""
    values = arrays(case)
    runtime = {"X", "initial_h", "initial_c"}
    if case.lengths_as == "input":
        runtime.add("sequence_lens")
    if case.weights == "input":
        runtime |= {"W", "R", "B", "P"}
    feeds = {name: value for name, value in values.items() if name in runtime}
    names = {name: name for name in values}
    nodes: list[onnx.NodeProto] = []
    initializers: list[onnx.TensorProto] = []
    for name, value in values.items():
        if name in feeds:
            continue
        tensor = numpy_helper.from_array(value, name)
        if case.weights == "constant" and name != "sequence_lens":
            nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        elif case.weights == "computed" and name != "sequence_lens":  # by halves, of which it is exactly the sum
            initializers.append(numpy_helper.from_array((value / 2).astype(value.dtype), f"{name}_half"))
            nodes.append(helper.make_node("Add", [f"{name}_half"] * 2, [name]))
        elif case.weights == "moved" and name != "sequence_lens":
            parts = [numpy_helper.from_array(value[d : d + 1], f"{name}_{d}") for d in range(len(value))]
            initializers.extend(parts)
            nodes.append(helper.make_node("Concat", [part.name for part in parts], [name], axis=0))
        else:
            initializers.append(tensor)
    inputs = [_declare(case, name, value) for name, value in feeds.items()]
    if case.ir_version < 4:
        inputs += [helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in initializers]
    body, functions, more_inputs, outputs = _place(case, names)
    model = helper.make_model(
        helper.make_graph([*nodes, *body], "graph", [*inputs, *more_inputs], outputs, initializers),
        opset_imports=[helper.make_opsetid("", case.opset)] + ([helper.make_opsetid("local", 1)] if functions else []),
        ir_version=case.ir_version,
        functions=functions,
    )
    if case.place == "if":
        feeds["condition"] = np.array(True)
    return model, feeds


def _declare(case: Case, name: str, value: np.ndarray) -> onnx.ValueInfoProto:
    elem = TensorProto.INT32 if name == "sequence_lens" else DTYPES[case.dtype][0]
    shape: list[int | str] = list(value.shape)
    if case.dynamic:
        batch_first = case.layout == 1
        places = {
            "X": {"N": 0 if batch_first else 1, "T": 1 if batch_first else 0},
            "sequence_lens": {"N": 0},
            "initial_h": {"N": 0 if batch_first else 1},
            "initial_c": {"N": 0 if batch_first else 1},
        }
        for symbol, axis in places.get(name, {}).items():
            shape[axis] = symbol
    return helper.make_tensor_value_info(name, elem, shape)


def _outputs(case: Case, prefix: str = "", shaped: bool = True) -> list[onnx.ValueInfoProto]:
    elem = DTYPES[case.dtype][0]
    ranks = {"Y": 4, "Y_h": 3, "Y_c": 3}
    return [
        helper.make_tensor_value_info(prefix + name, elem, [None] * ranks[name] if shaped else None)
        for name in case.wanted
    ]


def _place(case: Case, names: dict[str, str]) -> tuple[list, list, list, list]:
    """The node in the main graph, in both branches of an If, in a Loop body or in a function."""
    if case.place == "main" or not case.wanted:
        node = recurrent_node(case, names)
        outputs = _outputs(case)
        if not case.wanted:  # something else has to come out
            return [node, helper.make_node("Identity", ["X"], ["copy"])], [], [], [
                helper.make_tensor_value_info("copy", DTYPES[case.dtype][0], [None] * 3)
            ]  # fmt: skip
        return [node], [], [], outputs
    if case.place == "if":
        branches = {}
        for branch in ("then_branch", "else_branch"):
            inner = recurrent_node(case, names, f"_{branch}")
            outs = [
                helper.make_tensor_value_info(f"{o.name}_{branch}", o.type.tensor_type.elem_type, None)
                for o in _outputs(case)
            ]
            branches[branch] = helper.make_graph([inner], branch, [], outs)
        node = helper.make_node("If", ["condition"], list(case.wanted), name="if", **branches)
        return [node], [], [helper.make_tensor_value_info("condition", TensorProto.BOOL, [])], _outputs(case)
    if case.place == "loop":
        inner = recurrent_node(case, names, "_inner")
        elem = DTYPES[case.dtype][0]
        body = helper.make_graph(
            [helper.make_node("Identity", ["going"], ["still"]), inner],
            "body",
            [
                helper.make_tensor_value_info("trip", TensorProto.INT64, []),
                helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            ],
            [
                helper.make_tensor_value_info("still", TensorProto.BOOL, []),
                *(helper.make_tensor_value_info(f"{name}_inner", elem, None) for name in case.wanted),
            ],
        )
        count = helper.make_node("Constant", [], ["count"], value=numpy_helper.from_array(np.array(2, np.int64)))
        true = helper.make_node("Constant", [], ["true"], value=numpy_helper.from_array(np.array(True)))
        node = helper.make_node("Loop", ["count", "true"], list(case.wanted), name="loop", body=body)
        ranks = {"Y": 5, "Y_h": 4, "Y_c": 4}
        outputs = [helper.make_tensor_value_info(n, elem, [None] * ranks[n]) for n in case.wanted]
        return [count, true, node], [], [], outputs
    present = [name for name in INPUTS if name in names]
    inner = recurrent_node(case, names)
    function = helper.make_function(
        "local", "Recurrent", present, list(case.wanted), [inner], [helper.make_opsetid("", case.opset)]
    )
    node = helper.make_node("Recurrent", [names[n] for n in present], list(case.wanted), domain="local", name="call")
    return [node], [function], [], _outputs(case)
