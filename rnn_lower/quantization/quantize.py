"""Insert Q/DQ nodes around products everywhere, including the bodies of Scan and Loop."""

from __future__ import annotations

import dataclasses
import os

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from rnn_lower.builder.constant_operands import known
from rnn_lower.builder.names import Names
from rnn_lower.errors import UnsupportedError, public
from rnn_lower.ir import protobuf
from rnn_lower.ir.walk import default_opset, owner_of, used_names
from rnn_lower.modelio import files
from rnn_lower.quantization.calibration import Calibration, observed_ranges
from rnn_lower.quantization.overrides import check_types, fed_back_in, tied_ranges
from rnn_lower.quantization.products import find_products
from rnn_lower.quantization.ranges import Range

FIRST_OPSET, FIRST_OF_CHANNELS, FIRST_OF_16_BITS = 10, 13, 21


@public
def quantize(
    model: onnx.ModelProto | ir.Model | str | os.PathLike[str], calibration: Calibration, weights: str = "int8",
    activations: str = "uint8", cell: str | None = "uint16", *, per_channel: bool = False,
) -> onnx.ModelProto:  # fmt: skip
    """Quantize the products of a lowered model in any form (QDQ), including those in bodies of Scan and Loop.

    calibration: samples as for `calibration_reader`, or such a reader. The ranges are observed in runs with these
    samples, or follow from the equations, such as [-1, 1] for a state between bounded activations. A state has one
    range for all steps.
    weights: "int8" or "uint8", with one scale for each matrix, or for each of its columns with `per_channel` (opset
    13).
    activations: the type of the left operands.  cell: the type of the cell state of an LSTM, None for float32. Both are
    "uint8", "int8", or, from opset 21 on, "uint16" or "int16". The sums and activations of the cell stay in float32.

    Raises UnsupportedError for features that the opset lacks, and for products in functions or in branches of an If.
    """
    check_types(weights=weights, activations=activations, cell=cell)
    document, _ = files.open_model(model)
    if document.proto.training_info:
        raise UnsupportedError("the model has training_info, whose products cannot be quantized; remove it")
    fed_back = fed_back_in(document)
    findings = find_products(document.model, fed_back)
    types = {"weights": weights, "activations": activations, **({"cell": cell} if findings.cells and cell else {})}
    _check_opset(default_opset(document.model.opset_imports) or 0, types, per_channel)
    if any(product.scope.in_function for product in findings.products):
        raise UnsupportedError("matrix products in functions cannot be quantized; lower the model without as_function")
    observed = observed_ranges(document, calibration, fed_back)
    for value, product in zip(findings.values(), observed, strict=True):
        if product is None:
            raise UnsupportedError(
                f"the range of '{value.name}' cannot be measured, because this value is in a branch of an "
                "If; lower the model with fixed sizes and fold=True"
            )

    def change(model: ir.Model) -> None:
        findings = find_products(model, fed_back)
        ranges = tied_ranges(findings, observed, cell)
        writer = _Writer(model, Names(used_names(model)), {})
        cells = findings.cells if cell is not None else []
        for product in findings.products:
            if product.x not in cells:
                x = writer.rounded(
                    product.x, ranges[product.x], activations, findings.ties.leader(product.x), product.node
                )
                product.node.replace_input_with(0, x)
            product.node.replace_input_with(
                1, writer.weight(product.weight, weights, product.axis if per_channel else None, product.node)
            )
        for value in cells:
            writer.round_everywhere(value, ranges[value], str(cell), findings.ties.leader(value))
        RemoveUnusedNodesPass()(model)

    result = document.changed(change)
    if result.folder is not None:
        protobuf.embed(result.proto, result.folder)
    return result.proto


def _check_opset(opset: int, types: dict[str, str], per_channel: bool) -> None:
    if opset < FIRST_OPSET or (per_channel and opset < FIRST_OF_CHANNELS):
        first = FIRST_OF_CHANNELS if per_channel else FIRST_OPSET
        what = "a scale per channel" if per_channel else "QuantizeLinear"
        raise UnsupportedError(
            f"the model has opset {opset}, but {what} needs opset {first}; lower the model with opset={first} or later"
        )
    wide = [f"{name}='{value}'" for name, value in types.items() if value.endswith("16")]
    if wide and opset < FIRST_OF_16_BITS:
        raise UnsupportedError(
            f"the model has opset {opset}, but {' and '.join(wide)} "
            f"{'needs' if len(wide) == 1 else 'need'} opset {FIRST_OF_16_BITS}; lower the model with "
            f"opset={FIRST_OF_16_BITS}, use 8-bit types, or pass cell=None"
        )
    if opset >= FIRST_OF_16_BITS and types["activations"] == "int8":  # its optimizer makes the model invalid
        raise UnsupportedError(
            "onnxruntime 1.32 does not support matrix products with int8 activations at opset "
            f"{opset}; choose 'uint8' activations, or lower the model with "
            f"opset={FIRST_OF_16_BITS - 1}"
        )


@dataclasses.dataclass
class _Writer:
    """Writes QuantizeLinear and DequantizeLinear nodes; shares equal ones within a graph."""

    model: ir.Model
    names: Names
    cache: dict[tuple[object, ...], ir.Value]

    def _initializer(self, name: str, array: np.ndarray) -> ir.Value:
        name = self.names.unique(name)
        value = ir.Value(name=name, const_value=ir.tensor(array, name=name), type=ir.TensorType(_dtype(array)))
        value.shape = ir.Shape(array.shape)
        self.model.graph.register_initializer(value)
        return value

    def _scale(self, leader: ir.Value, scale: np.ndarray, zero: np.ndarray) -> tuple[ir.Value, ir.Value]:
        """The scale, equal for all values of a tie."""
        for what, array in (("scale", scale), ("zero_point", zero)):
            if (leader, what) not in self.cache:
                self.cache[leader, what] = self._initializer(f"{leader.name}/{what}", array)
        return self.cache[leader, "scale"], self.cache[leader, "zero_point"]

    def _node(
        self, op: str, value: ir.Value, parameters: tuple[ir.Value, ir.Value], before: ir.Node, **more: int
    ) -> ir.Value:
        node = ir.node(op, [value, *parameters], attributes=more, name=self.names.unique(f"{value.name}/{op}"))
        (output,) = node.outputs
        output.name = node.name
        if before.graph is not None:
            before.graph.insert_before(before, node)
        return output

    def rounded(self, value: ir.Value, reach: Range, dtype: str, leader: ir.Value, before: ir.Node) -> ir.Value:
        """The quantized-dequantized copy of a value, in the graph of the node."""
        key = (value, before.graph)
        if key not in self.cache:
            limits = np.iinfo(dtype)
            scale = np.float32((reach[1] - reach[0]) / (int(limits.max) - int(limits.min)) or 1.0)
            zero = np.clip(np.rint(limits.min - reach[0] / scale), limits.min, limits.max).astype(dtype)
            parameters = self._scale(leader, np.asarray(scale), np.asarray(zero))
            quantized = self._node("QuantizeLinear", value, parameters, before)
            self.cache[key] = self._node("DequantizeLinear", quantized, parameters, before)
        return self.cache[key]

    def round_everywhere(self, value: ir.Value, reach: Range, dtype: str, leader: ir.Value) -> None:
        """Make every node that reads a value read its quantized-dequantized copy; graph outputs are unchanged."""
        users = [(node, index) for node, index in value.uses()]
        owner = owner_of(value)
        producer = value.producer()
        if not isinstance(owner, ir.Graph) or not users:
            return
        nodes = list(owner)
        before = nodes[0] if producer is None else nodes[nodes.index(producer) + 1]
        new = self.rounded(value, reach, dtype, leader, before)
        for node, index in users:
            node.replace_input_with(index, new)

    def weight(self, value: ir.Value, dtype: str, axis: int | None, before: ir.Node) -> ir.Value:
        """The dequantized copy of an integer initializer, in the graph of the node. axis: of the scales, if any."""
        key = (value, axis)
        if (*key, "integers") not in self.cache:
            constant = known(value)
            assert constant is not None
            array = constant.load().astype(np.float64)
            middle, most = (0, 127) if dtype == "int8" else (128, 127)
            largest = np.abs(array).max(axis=None if axis is None else 1 - axis, initial=0.0, keepdims=True)
            scale = (np.where(largest > 0, largest, most) / most).astype(np.float32)
            integers = (np.clip(np.rint(array / scale), -most, most) + middle).astype(dtype)
            scale = scale.reshape(() if axis is None else -1)
            arrays = {"integers": integers, "scale": scale, "zero_point": np.full(scale.shape, middle, dtype)}
            for what, content in arrays.items():
                self.cache[(*key, what)] = self._initializer(f"{value.name}/{what}", content)
        if (*key, before.graph) not in self.cache:
            integers_value, *parameters = (self.cache[(*key, what)] for what in ("integers", "scale", "zero_point"))
            more = {} if axis is None else {"axis": axis}
            self.cache[(*key, before.graph)] = self._node(
                "DequantizeLinear", integers_value, (parameters[0], parameters[1]), before, **more
            )
        return self.cache[(*key, before.graph)]


def _dtype(array: np.ndarray) -> ir.DataType:
    return ir.DataType.from_numpy(array.dtype)
