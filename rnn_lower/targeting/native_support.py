"""Whether a runtime runs a recurrent node correctly without lowering, by measurements of each feature.

The feature names are those of targeting/probe/features.py, which has a small model for each feature. A node with
several features is right if each of them was measured as right, and the model with many at once ("everything"), too. A
property that was not measured, such as another element type or operator version, is unknown, and unknown is not right.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

import onnx_ir as ir

from rnn_lower.ir.walk import known_tensor

if TYPE_CHECKING:
    from rnn_lower.lowering.node import RecurrentNode

RIGHT, WRONG, NOT_TAKEN, UNKNOWN = "right", "silently wrong", "not supported", "not measured"

MEASURED_VERSION = 14
ACTIVATIONS = {"LSTM": ("HardSigmoid", "Relu", "Softsign"), "GRU": ("HardSigmoid", "LeakyRelu")}
"""The activations of the feature "activations"."""

LATER = ("sequence only", "named activations")
"""Features that were added later: a runtime that does not list one as right may not have been measured with it."""

SIZE_UNKNOWN = "an unknown size"
"""A property that no measured model has; --dim removes it."""


@dataclasses.dataclass(frozen=True)
class Measured:
    """For one operator: features that are right, and features that are wrong without an error. Others are refused."""

    right: frozenset[str]
    wrong: frozenset[str]


@dataclasses.dataclass(frozen=True)
class Verdict:
    """kind: RIGHT, WRONG, NOT_TAKEN or UNKNOWN.  why: the reason."""

    kind: str
    why: str


def verdict(node: RecurrentNode, table: Mapping[str, Measured], listed: bool, runtime: str) -> Verdict:
    """Return the verdict for a node without lowering. table: by operator.  listed: whether `takes` has the operator."""
    if node.is_quantized and runtime.startswith("onnxruntime"):
        return Verdict(RIGHT, f"{node.op_type} is an operator that only onnxruntime has")
    measured = table.get(node.op_type)
    if measured is None:
        if listed:
            return Verdict(
                UNKNOWN,
                (
                    f"the target file of {runtime} lists {node.op_type} as supported, but the features of "
                    "this node were not tested"
                ),
            )
        return Verdict(NOT_TAKEN, f"{runtime} does not support operator {node.op_type}")
    own = features(node)
    needed = ["plain", *own, "saturated", *(["everything"] if len(own) > 1 else [])]
    needed += ["Softplus saturated"] if "Softplus" in own else []
    for feature in needed:
        if feature in measured.wrong and feature != "everything":
            return Verdict(WRONG, f"{runtime} silently returns wrong results for feature '{feature}' of {node.op_type}")
    unknown = _unmeasured(node)
    if unknown is not None:
        works = "; set the sizes with --dim" if unknown == SIZE_UNKNOWN else ""
        return Verdict(UNKNOWN, f"{runtime} was not tested with {unknown}{works}")
    refused = [feature for feature in needed if feature not in measured.right]
    if refused and refused[0] in LATER:
        return Verdict(
            UNKNOWN, f"no test shows that {runtime} runs {node.op_type} with feature '{refused[0]}' correctly"
        )
    if refused == ["everything"]:
        return Verdict(
            UNKNOWN,
            f"no test shows that {runtime} runs {node.op_type} correctly with the combination of {' and '.join(own)}",
        )
    if refused:
        return Verdict(NOT_TAKEN, f"{runtime} does not support feature '{refused[0]}' of {node.op_type}")
    return Verdict(RIGHT, f"{', '.join(own) or 'no special features'}: ran correctly on {runtime} in tests")


def features(node: RecurrentNode) -> list[str]:
    """Return the features of a node in addition to "plain"."""
    lengths = node.inputs.get("sequence_lens")
    listed, names, defaults = _listed(node), _names(node), node.operator.activations
    named = "activations" in node.node.attributes and names == {defaults}
    has = {
        "no bias": "B" not in node.inputs,
        "initial states": any(name.startswith("initial") for name in node.inputs),
        "reverse": node.direction == "reverse",
        "bidirectional": node.direction == "bidirectional",
        "sequence_lens": lengths is not None and known_tensor(lengths) is not None,
        "sequence_lens input": lengths is not None and known_tensor(lengths) is None,
        "clip": node.clip is not None,
        "layout 1": node.layout == 1,
        "last state only": "Y" not in listed,
        "sequence only": listed == ["Y"],
        "one step": node.seq_length == 1,
        "peepholes": "P" in node.inputs,
        "input_forget": node.input_forget,
        "linear_before_reset": node.linear_before_reset,
        "named activations": named,
        "activations": node.op_type != "RNN" and names != {defaults},
    }
    other_functions = sorted(names - {defaults}) if node.op_type == "RNN" else []
    return [name for name, present in has.items() if present] + [name for (name,) in other_functions]


def _names(node: RecurrentNode) -> set[tuple[str, ...]]:
    """Return the distinct tuples of activations of the directions."""
    return {tuple(function.name for function in functions) for functions in node.activations}


def _listed(node: RecurrentNode) -> list[str]:
    """Return the outputs that the node names, including unused ones."""
    names = zip(node.operator.outputs, node.node.outputs, strict=False)
    return [name for name, value in names if value.name]


def _unmeasured(node: RecurrentNode) -> str | None:
    """Return a property of the node that no measured model has, or None.

    Attributes count, because runtimes treat missing and redundant attributes differently.
    """
    attributes, names = node.node.attributes, _names(node)
    weights = [node.inputs[name] for name in ("W", "R", "B", "P") if name in node.inputs]
    measured = {node.operator.activations, ACTIVATIONS.get(node.op_type, node.operator.activations)}
    spelled = attributes["activations"].as_strings() if "activations" in attributes else ()
    has_numbers = bool({"activation_alpha", "activation_beta"} & attributes.keys())
    used_numbers = any(f.alpha is not None or f.beta is not None for functions in node.activations for f in functions)
    has = {
        f"element type {node.dtype.name}": node.dtype != ir.DataType.FLOAT,
        f"version {node.version} of {node.op_type}": node.version != MEASURED_VERSION,
        SIZE_UNKNOWN: node.static_length is None or node.static_batch is None,
        "an empty sequence, batch or input": 0 in (node.seq_length, node.batch_size, node.input_size),
        "a computed weight": any(known_tensor(weight) is None for weight in weights),
        "a weight in a Constant node": any(weight.producer() is not None for weight in weights),
        "a node without hidden_size": "hidden_size" not in attributes,
        "clip 0": "clip" in attributes and node.clip is None,
        "an LSTM with only one of initial_h and initial_c": (
            node.op_type == "LSTM" and len({"initial_h", "initial_c"} & node.inputs.keys()) == 1
        ),
        "hidden_size 1": node.hidden_size == 1,
        "Y_c as the only output": _listed(node) == ["Y_c"],
        "the combination of activations of this node": len(names) > 1
        or (node.op_type != "RNN" and not names <= measured),
        "the spelling of an activation name of this node": not {name for group in names for name in group}.issuperset(
            spelled
        ),
        "an activation that omits its alpha or beta": used_numbers and not has_numbers,
        "an unused alpha or beta": has_numbers and not used_numbers,
    }
    return next((what for what, applies in has.items() if applies), None)
