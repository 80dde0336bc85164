"""Decide which recurrent nodes onnxruntime cannot run, or not correctly, as they are."""

from __future__ import annotations

import onnx_ir as ir
import onnxruntime

from rnn_lower.lowering.activations import ACTIVATIONS
from rnn_lower.lowering.node import RecurrentNode


def refused_by_onnxruntime(node: RecurrentNode) -> str | None:
    """The reason why onnxruntime cannot run the fused node, or None; some nodes crash the process."""
    if node.version < 7 and not node.is_quantized:
        return f"{node.op_type} version {node.version}"
    if node.layout:
        return "layout 1"
    if node.dtype in (ir.DataType.DOUBLE, ir.DataType.BFLOAT16):
        return node.dtype.name.lower()
    if 0 in (node.seq_length, node.batch_size, node.input_size):
        return "an empty sequence, batch or input"
    attributes = node.node.attributes
    if node.op_type == "RNN" and "sequence_lens" in node.inputs and _before(1, 26):
        return "an RNN with sequence_lens, for which onnxruntime before version 1.26 returns wrong results at length 0"
    if node.op_type == "RNN" and _before(1, 29) and _needs_defaults(node):
        text = "an RNN activation whose alpha or beta is not set"
        return f"{text}, for which onnxruntime before version 1.29 uses wrong defaults"
    if node.op_type == "RNN" and not _names(node) <= ACTIVATIONS.keys():
        return "an RNN activation that is not written as in ONNX"
    if "hidden_size" not in attributes:
        return "hidden_size missing"
    if node.op_type != "RNN" and "clip" in attributes and node.clip is None:
        return "clip 0"
    return None


def _before(*version: int) -> bool:
    """Whether the installed onnxruntime is older than this version; Python 3.10 has only older ones."""
    return tuple(map(int, onnxruntime.__version__.split(".")[:2])) < version


def _needs_defaults(node: RecurrentNode) -> bool:
    """Whether an activation of an RNN lacks its alpha or beta."""
    attributes, names = node.node.attributes, {name.lower() for name in _names(node)}
    alpha = names & {"elu", "hardsigmoid", "leakyrelu"} and "activation_alpha" not in attributes
    return bool(alpha or (names & {"hardsigmoid"} and "activation_beta" not in attributes))


def _names(node: RecurrentNode) -> set[str]:
    """The activations that a node names, as it writes them."""
    attributes = node.node.attributes
    return {*attributes["activations"].value} if "activations" in attributes else set()
