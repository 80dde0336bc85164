"""Constant inputs of a recurrent node: constants, and values that data-movement nodes compute from constants.

onnx's evaluator runs these nodes, so the result does not depend on how lowering folds them.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lower.ir.schemas import DEFAULT_DOMAINS
from rnn_lower.ir.walk import constant, known_tensor
from rnn_lower.proving.model_diff import WEIGHT_PATH
from rnn_lower.proving.operators import OutOfScopeError
from rnn_lower.transforms.evaluate import evaluate

MOST_NODES = 64


def content(value: ir.Value | None, opset: int) -> np.ndarray | None:
    """The content of a value, or None if only known at run time. Raises OutOfScopeError if it cannot be evaluated."""
    known_value = constant(value)
    chain = [] if value is None or known_value is not None else _chain(value)
    if value is None or not chain:
        return known_value
    outside = {name.name: name for node in chain for name in node.inputs if name is not None and name.name}
    computed = {out.name for node in chain for out in node.outputs}
    feeds = {str(name): constant(source) for name, source in outside.items() if name not in computed}
    known = {name: array for name, array in feeds.items() if array is not None}
    try:
        nodes = [ir.to_proto(node) for node in chain]
        return evaluate(nodes, known, [str(value.name)], [onnx.helper.make_opsetid("", opset)])[0]
    except Exception as error:
        raise OutOfScopeError(f"{chain[-1].op_type} of constants: {type(error).__name__}") from None


def _chain(value: ir.Value) -> list[ir.Node]:
    """The nodes that move constants to a value, in order; empty if any node does more than move them."""
    chain: dict[ir.Node, None] = {}
    waiting = [value]
    while waiting:
        source = waiting.pop()
        if known_tensor(source) is not None:
            continue
        node = None if source.is_graph_input() else source.producer()
        if (
            node is None
            or node.op_type not in WEIGHT_PATH
            or node.domain not in DEFAULT_DOMAINS
            or len(chain) == MOST_NODES
        ):
            return []
        chain.pop(node, None)  # re-insert: producers must precede all their users after the reversal
        chain[node] = None
        waiting += [needed for needed in node.inputs if needed is not None and needed.name]
    return list(reversed(chain))
