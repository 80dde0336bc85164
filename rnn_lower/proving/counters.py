"""Floats that count: sizes and positions that a graph casts to floats, as below opset 9, where Less takes only floats.

A sum or a bound of such floats may be another one at lengths that the proof does not compare. So only comparisons,
moves and sums with 0 and 1 may read them. If they are 0 and 1, they are masks: everything may read them, except
products of matrices, which would count them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Sequence

import numpy as np
import onnx_ir as ir

from rnn_lower.ir.schemas import WITH_BODIES
from rnn_lower.ir.walk import constant, owner_of, subgraphs
from rnn_lower.proving.call import OutOfScopeError
from rnn_lower.proving.field import Array, Field

COMPARED = ("Clip", "Greater", "Less", "Max", "Min")
"""Operators that compare with numbers."""

SUMMED, SUMS = ("Add", "Sub"), ("Conv", "Gemm", "MatMul")
MAKERS = ("Cast", "ConstantOfShape", "Tile")
"""Operators that may make floats that count."""

MOVED = (
    "Cast", "Concat", "Gather", "Identity", "Neg", "Relu", "Reshape", "Slice", "Split", "Squeeze", "Tile", "Transpose",
    "Unsqueeze", "Where",
)  # fmt: skip


class FloatCounters:
    """The values of a graph that count, found while it runs once.

    is_constant: whether constants alone compute a value.
    compared: None, or, if the length is known, the inputs of the node: all lengths are compared, so only sizes count.
    marked: values that count, or are masks of 0 and 1.  shifted: those to which a number was added.
    carried: by input of a loop body, what the next step reads there.
    """

    def __init__(
        self, field: Field, is_constant: Callable[[ir.Value | None], bool], compared: Collection[ir.Value] | None
    ) -> None:  # fmt: skip
        self._field, self._is_constant, self._compared = field, is_constant, compared
        self._marked: set[ir.Value] = set()
        self._shifted: set[ir.Value] = set()
        self._carried: dict[ir.Value, ir.Value] = {}

    def enter(self, node: ir.Node, operands: Sequence[Array | None]) -> None:
        """Note which inputs of the body of a Loop or Scan count."""
        skipped = 2 if node.op_type == "Loop" else 0
        (body,) = (body for _, body in subgraphs(node))
        for inner, outer, array in zip(body.inputs[skipped:], node.inputs[skipped:], operands[skipped:], strict=False):
            if self._is_marked(outer) and array is not None and array.any():
                self._mark([inner], outer in self._shifted)
        self._carried.update(zip(body.inputs[skipped:], body.outputs[skipped // 2 :], strict=False))

    def concerns(self, node: ir.Node) -> bool:
        """Whether a node may make or read what counts; most do not, so that `follow` need not be called."""
        return node.op_type in (*MAKERS, *WITH_BODIES) or any(map(self._is_marked, node.inputs))

    def follow(self, node: ir.Node, operands: Sequence[Array | None]) -> None:
        """Note which results of a node count. Raises OutOfScopeError if the node must not read what counts."""
        if any(subgraphs(node)):
            self._leave(node)
            return
        floats = [
            (value, array) for value, array in zip(node.inputs, operands, strict=True)
            if value is not None and array is not None and array.dtype == np.uint64
        ]  # fmt: skip
        marked = [(value, array) for value, array in floats if self._is_marked(value) and array.any()]
        counting = [(value, array) for value, array in marked if (array > 1).any()]
        others = [pair for pair in floats if all(pair[0] is not value for value, _ in counting)]
        if marked and node.op_type in SUMS and not (node.op_type == "MatMul" and floats[0][1].shape[-1:] == (1,)):
            raise OutOfScopeError(f"{node.op_type} '{node.name}' sums masks, sizes or positions in floats")
        is_shift = bool(counting) and node.op_type in SUMMED and len(counting) == 1 and any(a.any() for _, a in others)
        if counting:
            self._check(node, [value for value, _ in counting], others)
            if is_shift and any(value in self._shifted for value, _ in counting):
                raise OutOfScopeError(f"{node.op_type} '{node.name}' adds to a size or a position in floats again")
        keeps = node.op_type in (*MOVED, *SUMMED) or all(self._is_constant(value) for value, _ in others)
        if counting or self._makes(node, operands) or (marked and keeps):
            self._mark(node.outputs, is_shift or any(value in self._shifted for value, _ in counting))

    def _leave(self, node: ir.Node) -> None:
        """Note which results of bodies count."""
        for _, body in subgraphs(node):
            for outer, inner in zip(node.outputs, body.outputs[node.op_type == "Loop" :], strict=False):
                if self._is_marked(inner):
                    self._mark([outer], inner in self._shifted)

    def _mark(self, values: Sequence[ir.Value], is_shifted: bool) -> None:
        self._marked.update(values)
        self._shifted.update(values if is_shifted else ())

    def _is_marked(self, value: ir.Value | None) -> bool:
        return value in self._marked or (value is not None and self._carried.get(value) in self._marked)

    def _makes(self, node: ir.Node, operands: Sequence[Array | None]) -> bool:
        """Whether a node makes floats of integers, or as many equal ones as an integer says."""
        if node.op_type == "Cast":
            is_integer = operands[0] is not None and operands[0].dtype == np.int64
            known = self._is_constant(node.inputs[0]) or not self._may_count(node.inputs[0])
            return is_integer and not known
        return node.op_type in MAKERS and not self._is_constant(node.inputs[-1])

    def _may_count(self, value: ir.Value | None) -> bool:
        """Whether an integer may be one that the proof does not compare, by the nodes that compute it."""
        if self._compared is None:
            return True
        node = None if value is None else value.producer()
        if node is not None:
            return node.op_type in ("Shape", "Size") or any(map(self._may_count, node.inputs))
        if value is None or value in self._compared or self._is_constant(value):
            return False
        graph = owner_of(value)
        return not isinstance(graph, ir.Graph) or value is not graph.inputs[0]  # of a Loop, the number of the step

    def _check(self, node: ir.Node, counting: Sequence[ir.Value], others: Sequence[tuple[ir.Value, Array]]) -> None:
        label = f"{node.op_type} '{node.name}'"
        if node.op_type not in (*COMPARED, *SUMMED, *MOVED, "Mul", "MatMul"):
            raise OutOfScopeError(f"{label} computes with a size or a position in floats")
        if node.op_type in MOVED:
            return
        if any(np.any(array > 1) for value, array in others if not self._is_constant(value)):
            raise OutOfScopeError(f"{label} combines a size or a position in floats with other floats")
        constants = [(value, array) for value, array in others if self._is_constant(value)]
        numbers = [*itertools.chain(*itertools.starmap(self._numbers, constants))]
        numbers += [abs(bound.as_float()) for name, bound in node.attributes.items() if name in ("min", "max")]
        if not {*numbers} <= {0.0, 1.0} or (node.op_type == "Mul" and len(counting) > 1):
            text = f"{label} combines a size or a position in floats with the number {max(numbers, default=0.0):g}"
            raise OutOfScopeError(f"{text}; the proof supports only 0 and 1")

    def _numbers(self, value: ir.Value | None, array: Array) -> list[float]:
        """The absolute numbers of a constant."""
        known = constant(value)
        numbers = self._field.small(array) if known is None else known
        return [math.inf] if numbers is None else np.abs(numbers).astype(float).ravel().tolist()
