"""Whole models around one recurrent node: the building block of the tests, the fuzzer and the runtime matrix."""

from __future__ import annotations

import dataclasses
import math

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
OUTPUTS = {"RNN": ("Y", "Y_h"), "GRU": ("Y", "Y_h"), "LSTM": ("Y", "Y_h", "Y_c")}
OPTIONAL = {
    "RNN": ("B", "sequence_lens", "initial_h"),
    "GRU": ("B", "sequence_lens", "initial_h"),
    "LSTM": ("B", "sequence_lens", "initial_h", "initial_c", "P"),
}
INPUTS = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
DTYPES = {
    "float": (TensorProto.FLOAT, np.float32),
    "double": (TensorProto.DOUBLE, np.float64),
    "float16": (TensorProto.FLOAT16, np.float16),
    "bfloat16": (TensorProto.BFLOAT16, ml_dtypes.bfloat16),
}


@dataclasses.dataclass(frozen=True)
class Case:
    """One node and its surroundings. lengths: explicit sequence_lens. extra: further attributes as they are."""

    op: str = "LSTM"
    opset: int = 14
    direction: str | None = None
    T: int = 5
    N: int = 2
    I: int = 3
    H: int = 4
    optional: tuple[str, ...] = ()
    outputs: tuple[str, ...] | None = None
    activations: tuple[str, ...] | None = None
    alpha: tuple[float, ...] | None = None
    beta: tuple[float, ...] | None = None
    clip: float | None = None
    lbr: int | None = None
    input_forget: int | None = None
    layout: int = 0
    dtype: str = "float"
    lengths: tuple[int, ...] | None = None
    hidden_size: bool = True
    weights: str = "initializer"  # initializer, input, constant, computed, moved
    lengths_as: str = "input"  # input, initializer
    dynamic: bool = False
    place: str = "main"  # main, if, loop, function
    output_sequence: int | None = None
    scale: float = 1.0  # of X
    seed: int = 0

    @property
    def num_directions(self) -> int:
        return 2 if self.direction == "bidirectional" else 1

    @property
    def wanted(self) -> tuple[str, ...]:
        return OUTPUTS[self.op] if self.outputs is None else self.outputs

    @property
    def ir_version(self) -> int:
        # onnxruntime reads up to IR 13, also at opsets for which onnx would write 14
        if self.opset < 9:
            return 3
        return min(13, max(8, helper.find_min_ir_version_for([helper.make_opsetid("", self.opset)])))

    def replace(self, **changes: object) -> Case:
        return dataclasses.replace(self, **changes)


def arrays(case: Case) -> dict[str, np.ndarray]:
    """Values of all present inputs. Weights are about 1/sqrt(H), where fused and primitive arithmetic agree."""
    rng = np.random.default_rng(case.seed)
    D, G, T, N, I, H = case.num_directions, GATES[case.op], case.T, case.N, case.I, case.H
    k = 1 / math.sqrt(H)
    batch_first = case.layout == 1
    state = (N, D, H) if batch_first else (D, N, H)
    values = {  # weights first: they do not depend on T and N
        "W": rng.uniform(-k, k, (D, G * H, I)),
        "R": rng.uniform(-k, k, (D, G * H, H)),
        "B": rng.uniform(-k, k, (D, 2 * G * H)),
        "P": rng.uniform(-k, k, (D, 3 * H)),
        "X": case.scale * rng.uniform(-1, 1, (N, T, I) if batch_first else (T, N, I)),
        "initial_h": rng.uniform(-1, 1, state),
        "initial_c": rng.uniform(-1, 1, state),
    }
    dtype = DTYPES[case.dtype][1]
    result = {
        name: value.astype(dtype) for name, value in values.items() if name in ("X", "W", "R") or name in case.optional
    }
    if "sequence_lens" in case.optional:
        lengths = rng.integers(0, T + 1, N) if case.lengths is None else np.resize(case.lengths, N)
        result["sequence_lens"] = lengths.astype(np.int32)
    return result


def attributes(case: Case) -> dict[str, object]:
    given = {
        "direction": case.direction,
        "activations": case.activations and list(case.activations),
        "activation_alpha": None if case.alpha is None else list(case.alpha),
        "activation_beta": None if case.beta is None else list(case.beta),
        "clip": case.clip,
        "linear_before_reset": case.lbr,
        "input_forget": case.input_forget,
        "layout": case.layout or None,
        "hidden_size": case.H if case.hidden_size else None,
        "output_sequence": case.output_sequence,
    }
    return {name: value for name, value in given.items() if value is not None}


def _attribute(name: str, value: object) -> onnx.AttributeProto:
    if name in ("activation_alpha", "activation_beta"):  # an empty list has no type of its own
        return onnx.AttributeProto(name=name, type=onnx.AttributeProto.FLOATS, floats=value)
    if name == "clip":
        return onnx.AttributeProto(name=name, type=onnx.AttributeProto.FLOAT, f=value)
    return helper.make_attribute(name, value)


def recurrent_node(case: Case, names: dict[str, str], suffix: str = "") -> onnx.NodeProto:
    inputs = [names.get(name, "") for name in INPUTS]
    outputs = [name + suffix if name in case.wanted else "" for name in OUTPUTS[case.op]]
    while inputs and not inputs[-1]:
        inputs.pop()
    while outputs and not outputs[-1]:
        outputs.pop()
    if not outputs:  # a node must have one, even when nobody uses it
        outputs = [f"unused{suffix}"]
    node = helper.make_node(case.op, inputs, outputs, name=f"node{suffix}")
    node.attribute.extend(_attribute(name, value) for name, value in attributes(case).items())
    return node


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
