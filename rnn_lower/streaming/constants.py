"""What small tensors hold that are computed from constants alone, as exporters write pads and shapes."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lower.builder.constants import known_tensor
from rnn_lower.ir.walk import subgraphs
from rnn_lower.streaming.axis_info import AxisInfo
from rnn_lower.streaming.contents import LONGEST
from rnn_lower.streaming.rules import RANDOM
from rnn_lower.transforms.evaluate import evaluate


class Constants:
    """The constants of a model, those included that nodes compute from others."""

    def __init__(self) -> None:
        self._found: dict[ir.Value, np.ndarray] = {}

    def get(self, value: ir.Value | None) -> np.ndarray | None:
        """What a value holds where that is known."""
        if value in self._found:
            return self._found[value]  # type: ignore[index]
        tensor = known_tensor(value)
        return None if tensor is None else tensor.numpy()

    def put(self, value: ir.Value, info: AxisInfo) -> None:
        """Keep the sizes that a value holds, where all of them are known."""
        numbers = [one.number for one in info.content or ()]
        if info.content is not None and None not in numbers and value.dtype in (ir.DataType.INT64, None):
            self._found[value] = np.array(numbers if info.rank else numbers[0], np.int64)

    def compute(self, node: ir.Node, opset: int) -> None:
        """Compute the results of a node whose inputs are all small and known."""
        if node.op_type in ("Constant", *RANDOM) or any(True for _ in subgraphs(node)) or not node.inputs:
            return
        known: dict[str, np.ndarray] = {}
        for value in node.inputs:
            tensor = self._found.get(value) if value in self._found else known_tensor(value)  # type: ignore[arg-type]
            if value is None or tensor is None or tensor.size > LONGEST:
                return
            known[str(value.name)] = tensor if isinstance(tensor, np.ndarray) else tensor.numpy()
        names = [str(value.name) for value in node.outputs]
        try:
            imports = [onnx.helper.make_opsetid("", opset)]
            results = evaluate([ir.serde.serialize_node(node)], known, names, imports)
        except Exception:  # what the evaluator cannot do is not known
            return
        pairs = zip(node.outputs, results, strict=True)
        self._found.update((value, found) for value, found in pairs if found.size <= LONGEST)
