"""Constant inputs of a recurrent node: constants, and values that data-movement nodes compute from constants.

onnx's evaluator runs these nodes, so the result does not depend on how lowering folds them.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from rnn_lower.ir.schemas import DEFAULT_DOMAINS
from rnn_lower.ir.walk import constant
from rnn_lower.proving.exact.call import OutOfScopeError
from rnn_lower.proving.model_diff import WEIGHT_PATH
from rnn_lower.transforms.evaluate import evaluate_node

MOST_NODES = 64
"""The longest path from a constant to a value."""


def content(value: ir.Value | None, opset: int) -> np.ndarray | None:
    """The content of a value, or None if only known at run time. Raises OutOfScopeError if it cannot be evaluated."""
    return None if value is None else _content(value, opset, {}, MOST_NODES)


def _content(value: ir.Value, opset: int, known: dict[ir.Value, np.ndarray | None], most: int) -> np.ndarray | None:
    """The content of a value. known: the contents of other values.  most: the longest path to a constant."""
    if value in known:
        return known[value]
    known[value] = array = constant(value)
    node = None if array is not None or value.is_graph_input() else value.producer()
    if node is None or node.op_type not in WEIGHT_PATH or node.domain not in DEFAULT_DOMAINS or not most:
        return array
    sources = [source if source is not None and source.name else None for source in node.inputs]
    operands = [None if source is None else _content(source, opset, known, most - 1) for source in sources]
    if any(operand is None and source is not None for source, operand in zip(sources, operands, strict=True)):
        return None
    try:
        results = evaluate_node(node, operands, opset)
    except Exception as error:
        raise OutOfScopeError(f"{node.op_type} '{node.name}' cannot be evaluated ({type(error).__name__})") from None
    known.update(zip((output for output in node.outputs if output.name), results, strict=True))
    return known[value]
