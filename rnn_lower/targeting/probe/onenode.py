"""Build models with one recurrent node, including weights and inputs, from a description."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import DTypeLike
from onnx import TensorProto, helper, numpy_helper
from typing_extensions import Self

from rnn_lower.lowering.node import DIRECTIONS, INPUTS, OPERATORS


@dataclasses.dataclass(frozen=True)
class Case:
    """One node with static sizes and weights as initializers.

    op: operator.  T, N, I, H: steps, batch, inputs, units.  optional: the inputs beside X, W and R.
    outputs: names, None for all.  lbr: linear_before_reset.  lengths: sequence_lens, random where there are none.
    lengths_as: "input" or "initializer".  scale: of X, which is else in [-1, 1].
    """

    op: str = "LSTM"
    opset: int = 14
    direction: str | None = None
    T: int = 5
    N: int = 2
    I: int = 3  # noqa: E741
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
    lengths: tuple[int, ...] | None = None
    lengths_as: str = "input"
    scale: float = 1.0
    seed: int = 0

    @property
    def num_directions(self) -> int:
        return len(DIRECTIONS[self.direction or "forward"])

    @property
    def wanted(self) -> tuple[str, ...]:
        return OPERATORS[self.op].outputs if self.outputs is None else self.outputs

    @property
    def ir_version(self) -> int:
        # onnxruntime reads up to IR version 13, also at opsets for which onnx would write 14.
        if self.opset < 9:
            return 3
        needed: int = helper.find_min_ir_version_for([helper.make_opsetid("", self.opset)])
        return min(13, max(8, needed))

    def replace(self, **changes: Any) -> Self:
        return dataclasses.replace(self, **changes)


def arrays(case: Case, dtype: DTypeLike = np.float32) -> dict[str, np.ndarray]:
    """Return all present inputs. Weights are about 1/sqrt(H), where fused and lowered arithmetic agree."""
    rng = np.random.default_rng(case.seed)
    D, G, T, N, I, H = case.num_directions, OPERATORS[case.op].gates, case.T, case.N, case.I, case.H  # noqa: E741
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
    result = {
        name: value.astype(dtype) for name, value in values.items() if name in ("X", "W", "R") or name in case.optional
    }
    if "sequence_lens" in case.optional:
        lengths = rng.integers(0, T + 1, N) if case.lengths is None else np.resize(case.lengths, N)
        result["sequence_lens"] = lengths.astype(np.int32)
    return result


def attributes(case: Case) -> dict[str, Any]:
    """Return the attributes of the node that are set."""
    arguments = {
        "direction": case.direction,
        "activations": case.activations and list(case.activations),
        "activation_alpha": None if case.alpha is None else list(case.alpha),
        "activation_beta": None if case.beta is None else list(case.beta),
        "clip": case.clip,
        "linear_before_reset": case.lbr,
        "input_forget": case.input_forget,
        "layout": case.layout or None,
        "hidden_size": case.H,
    }
    return {name: value for name, value in arguments.items() if value is not None}


def recurrent_node(
    case: Case, names: Mapping[str, str], arguments: Mapping[str, Any], suffix: str = ""
) -> onnx.NodeProto:
    """Return the node. names: by ONNX input name.  arguments: the attributes.  suffix: appended to output names."""
    inputs = [names.get(name, "") for name in INPUTS]
    outputs = [name + suffix if name in case.wanted else "" for name in OPERATORS[case.op].outputs]
    while inputs and not inputs[-1]:
        inputs.pop()
    while outputs and not outputs[-1]:
        outputs.pop()
    if not outputs:  # a node needs an output, even if it is unused
        outputs = [f"unused{suffix}"]
    node = helper.make_node(case.op, inputs, outputs, name=f"node{suffix}")
    node.attribute.extend(_attribute(name, value) for name, value in arguments.items())
    return node


def _attribute(name: str, value: Any) -> onnx.AttributeProto:
    if name in ("activation_alpha", "activation_beta"):  # the type of an empty list cannot be inferred
        return onnx.AttributeProto(name=name, type=onnx.AttributeProto.FLOATS, floats=value)
    if name == "clip":
        return onnx.AttributeProto(name=name, type=onnx.AttributeProto.FLOAT, f=value)
    return helper.make_attribute(name, value)


def build(case: Case) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return the model and its inputs."""
    values = arrays(case)
    arguments = {"X", "initial_h", "initial_c"} | ({"sequence_lens"} if case.lengths_as == "input" else set())
    feeds = {name: value for name, value in values.items() if name in arguments}
    initializers = [numpy_helper.from_array(value, name) for name, value in values.items() if name not in feeds]
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in feeds.items()
    ]
    if case.ir_version < 4:
        inputs += [helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims) for tensor in initializers]
    ranks = {"Y": 4, "Y_h": 3, "Y_c": 3}
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * ranks[name]) for name in case.wanted]
    node = recurrent_node(case, {name: name for name in values}, attributes(case))
    graph = helper.make_graph([node], "graph", inputs, outputs, initializers)
    opsets = [helper.make_opsetid("", case.opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=case.ir_version), feeds
