"""The states before the first chunk, if the model defines them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lower.errors import UnsupportedError, one_line
from rnn_lower.ir.walk import known_tensor
from rnn_lower.modelio.document import Document
from rnn_lower.shapes.sizes import Size, size
from rnn_lower.streaming.axis_info import AxisInfo
from rnn_lower.streaming.data_flow import inputs_of, outputs_of
from rnn_lower.transforms.evaluate import KNOWN
from rnn_lower.transforms.evaluate import evaluate as evaluate_nodes

NUMBERS = (1, 2, 3, 7, 32)
"""Trial values for all symbols; the results must repeat the result for 1."""


class FromInput(UnsupportedError):
    """The requested value depends on an input, `source`, so the caller must provide it."""

    def __init__(self, source: str, owner: str = "") -> None:
        super().__init__(f"{owner}its initial state is computed from input '{source}'")
        self.source = source


def evaluate(
    document: Document, infos: Mapping[ir.Value, AxisInfo], value: ir.Value, shape: Sequence[Size]
) -> tuple[np.ndarray, tuple[Size, ...]]:  # fmt: skip
    """The value with size 1 along symbolic axes, if it only repeats along them; or a constant.

    Raises FromInput if it is computed from an input, UnsupportedError if it depends on sizes in any other way.
    """
    if sources := inputs_of(document.model, value):  # including inputs that reach it through branches
        raise FromInput(min(str(source.name) for source in sources))
    base, *larger = arrays = [_at(document, infos, value, number) for number in NUMBERS]
    if all(np.array_equal(base, array) for array in larger):
        return base, tuple(map(size, base.shape))
    if base.ndim == len(shape):  # rows of merged axes must be equal too
        base = base[tuple(slice(0, 1) if each.of else slice(None) for each in shape)]
    symbols = {symbol for axis in shape for symbol in axis.of}
    wanted = [tuple(axis.at(dict.fromkeys(symbols, number)) for axis in shape) for number in NUMBERS]
    if [each.shape for each in arrays] != wanted or any(
        not np.array_equal(np.broadcast_to(base, array.shape), array) for array in arrays
    ):
        raise UnsupportedError("its initial state differs between the rows of the batch")
    return base, tuple(shape)


def is_set_once(
    document: Document, infos: Mapping[ir.Value, AxisInfo], initial: ir.Value, final: ir.Value | None
) -> bool:
    """Whether a state that is computed from inputs is the same for all frames, and no caller carries it.

    final: the final state, which a model returns, by moves only, if the caller carries it.
    """
    info = infos.get(initial)
    if info is None or info.is_timed or initial.is_graph_input():
        return False
    return final is None or not outputs_of(document.model, final)


def is_computable(value: ir.Value) -> bool:
    """Whether `evaluate` trusts all operators that a value comes from, so that constant inputs would make it known."""
    waiting, seen = [value], set[ir.Value]()
    while waiting:
        node = (current := waiting.pop()).producer()
        if node is not None and current not in seen:
            if node.op_type not in KNOWN:
                return False
            waiting += [operand for operand in node.inputs if operand is not None]
        seen.add(current)
    return True


def _at(document: Document, infos: Mapping[ir.Value, AxisInfo], value: ir.Value, number: int) -> np.ndarray:
    """The value with this number for all symbols."""
    nodes: dict[ir.Node, onnx.NodeProto] = {}
    held: dict[str, np.ndarray] = {}

    def need(current: ir.Value) -> None:
        name, tensor, info = str(current.name), known_tensor(current), infos.get(current)
        if name in held or current.producer() in nodes:
            return
        if tensor is not None:
            held[name] = tensor.numpy()
        elif info is not None and info.content is not None:
            numbers = [axis.at(dict.fromkeys(axis.of, number)) for axis in info.content]
            held[name] = np.array(numbers if info.rank else numbers[0], np.int64)
        elif (node := current.producer()) is None:
            raise FromInput(name)
        else:
            for operand in node.inputs:
                if operand is not None:
                    need(operand)
            if any(attribute.type == ir.AttributeType.GRAPH for attribute in node.attributes.values()):
                raise UnsupportedError("its initial state is computed in the body of an If, Loop or Scan")
            nodes[node] = document.message(node)

    need(value)
    try:
        (array,) = evaluate_nodes(nodes.values(), held, [str(value.name)], document.proto.opset_import)
    except Exception as error:  # the evaluator raises exceptions of any type
        raise UnsupportedError(
            f"its initial state cannot be computed: {one_line(error)}; replace the state with a constant or an input"
        ) from None
    return array
