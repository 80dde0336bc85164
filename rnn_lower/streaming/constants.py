"""The contents of small tensors that depend only on constants and sizes, such as pads and shapes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from rnn_lower.ir.traits import RANDOM
from rnn_lower.ir.walk import Scope, known_tensor, subgraphs
from rnn_lower.shapes.size_values import LONGEST, SizeValue, computed_sizes, constant_sizes, shape_sizes
from rnn_lower.shapes.sizes import TIME, UNKNOWN, Size, computed, linear, size
from rnn_lower.streaming.axis_info import AxisInfo, RuleContext
from rnn_lower.streaming.data_flow import makers_of
from rnn_lower.transforms.evaluate import MOST_ELEMENTS, computed_constants, evaluate_node, most_elements


def content_of(ctx: RuleContext) -> AxisInfo | None:
    """The sizes that a node computes from sizes, if known."""
    node, x = ctx.node, ctx.inputs[0] if ctx.inputs else None
    if node.op_type == "Shape":
        content = None if x is None or x.shape is None else shape_sizes(node, _whole_shape(x))
    elif node.op_type == "Cast" and _is_for_ranges(node):  # floats are rounded, so only Ranges may read them
        content = None if x is None else x.size_value
    else:
        operands = [None if info is None else info.size_value for info in ctx.inputs]
        content = computed_sizes(node, operands) or _divided(ctx, operands)
        if content is None and any(info is not None and info.is_timed for info in ctx.inputs):
            # a size that depends on the stream's length in an unknown way; a Reshape may resolve it
            content = computed_sizes(node, operands, lambda index: size(f"{UNKNOWN}{ctx.fresh(index)}"))
    if content is None:
        return None
    inferred = ctx.analysis.shape_info.shape(node.outputs[0])
    return _info(content) if inferred is None or len(inferred) == content.rank else None


def _whole_shape(x: AxisInfo) -> tuple[Size, ...]:
    """The shape in a run over the whole sequence, if frames follow the stream."""
    return x.sized(computed(1 / x.every, x.lead - x.late + x.trail)) if x.trail and not x.cut else x.sizes


def _is_for_ranges(node: ir.Node) -> bool:
    """Whether only Range nodes read the output of a node."""
    users = node.outputs[0].uses()
    return bool(users) and all(user.op_type == "Range" for user, _ in users) and not node.outputs[0].is_graph_output()


def _divided(ctx: RuleContext, operands: list[SizeValue | None]) -> SizeValue | None:
    """The quotient of the number of frames, exact for chunks of a multiple of the divisor."""
    known = [operand.elements[0] for operand in operands if operand is not None and len(operand.elements) == 1]
    line, divisor = (linear(known[0]), known[1].number) if len(known) == 2 else (None, None)
    if ctx.node.op_type != "Div" or line is None or not line[0] or divisor is None or divisor < 1:
        return None
    share, more = line[0] / divisor, line[1] // divisor
    ctx.analysis.divisors.add(share.denominator)
    part = Size(share, (TIME,)) if known[0].of == (TIME,) else computed(share, more)
    return SizeValue(max(operand.rank for operand in operands if operand is not None), (part,))


def _info(value: SizeValue) -> AxisInfo:
    return AxisInfo((size(len(value.elements)),) if value.rank else (), content=value.elements)


def constant_content(array: np.ndarray) -> AxisInfo:
    """The info of a constant; integers of rank 0 or 1 may be sizes."""
    held = constant_sizes(array)
    return AxisInfo(tuple(map(size, array.shape)), content=None if held is None else held.elements)


class Constants:
    """The constants of a model, including those that nodes compute from constants."""

    def __init__(self) -> None:
        self._found: dict[ir.Value, np.ndarray] = {}

    def get(self, value: ir.Value | None) -> np.ndarray | None:
        """The content of a value, if known."""
        if value in self._found:
            return self._found[value]  # type: ignore[index]
        tensor = known_tensor(value)
        return None if tensor is None else tensor.numpy()

    def computed(self, value: ir.Value | None, scope: Scope) -> np.ndarray | None:
        """The content of a value that nodes of this graph compute from constants with any number of elements."""
        known = self.get(value)
        if value is None or known is not None:
            return known
        makers = makers_of(value)
        return computed_constants((node, scope.opset) for node in scope.graph if node in makers).get(value)

    def put(self, value: ir.Value, info: AxisInfo, dtype: ir.DataType | None) -> None:
        """Store the sizes that a value contains, if all are known."""
        held = info.size_value
        if held is not None and held.numbers is not None and dtype is not None and dtype.is_integer():
            self._found[value] = np.array(held.numbers, dtype.numpy()).reshape((-1,) if held.rank else ())

    def compute(self, node: ir.Node, opset: int) -> None:
        """Evaluate a node whose inputs are all small and constant."""
        if node.op_type in ("Constant", *RANDOM) or any(True for _ in subgraphs(node)) or not node.inputs:
            return
        if any(not self._is_small(value) for value in node.inputs):
            return
        arrays = [self.get(value) for value in node.inputs]
        try:
            if most_elements(node.op_type, arrays) > MOST_ELEMENTS:
                return
            results = evaluate_node(node, arrays, opset)
        except Exception:  # then the result stays unknown
            return
        pairs = zip([value for value in node.outputs if value.name], results, strict=True)
        self._found.update((value, array) for value, array in pairs if array.size <= LONGEST)

    def _is_small(self, value: ir.Value | None) -> bool:
        held = self._found.get(value) if value is not None and value in self._found else known_tensor(value)
        return held is not None and held.size <= LONGEST
