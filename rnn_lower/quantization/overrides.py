"""Information that the static quantizer of onnxruntime needs about unrolled models and one-step streaming models."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnxruntime.quantization import QuantType

from rnn_lower.errors import RnnLowerError, UnsupportedError, public
from rnn_lower.ir.walk import owner_of
from rnn_lower.modelio import files
from rnn_lower.modelio.document import Document
from rnn_lower.quantization.calibration import Calibration, observed_ranges
from rnn_lower.quantization.products import Findings, find_products
from rnn_lower.quantization.ranges import SIGNED, Range, Ranges, hull
from rnn_lower.streaming.plan import read_plan

TYPES = {"int8": QuantType.QInt8, "uint8": QuantType.QUInt8, "int16": QuantType.QInt16, "uint16": QuantType.QUInt16}


@public
def quantization_overrides(
    model: onnx.ModelProto | ir.Model | str | os.PathLike[str], per_channel: bool = False, *,
    cell: str | None = "uint16", calibration: Calibration | None = None,
) -> dict[str, list[dict[str, Any]]]:  # fmt: skip
    """Return tensor overrides for quantize_static of onnxruntime: extra_options={"TensorQuantOverrides": ...}.

    They are for unrolled models and streaming models. A state has one range over all steps: [-1, 1] if the activations
    imply this range, otherwise the range that follows from the equations.

    per_channel: use one scale for each column of a weight.
    cell: "uint16", "int16", "uint8" or "int8" for the cell state of an LSTM, or None to leave it to the quantizer. For
    16 bits, onnxruntime 1.32 converts a model below opset 21 to opset 21; older versions use operators of
    com.microsoft.
    calibration: as for `calibration_reader`. With it, all tensors that are one value over time have one observed range.

    Raises UnsupportedError if the model has no product with constant float32 weights.
    """
    check_types(cell=cell)
    document, _ = files.open_model(model)
    fed_back = fed_back_in(document)
    findings = find_products(document.model, fed_back)
    for product in findings.products:
        if product.scope.lies_in("Scan") or product.scope.lies_in("Loop"):
            raise UnsupportedError(
                f"{product.node.op_type} '{product.node.name}' is in {product.scope.path}, which static "
                "quantizers do not process; lower the model with form='unroll', or use rnn_lower.quantize"
            )
    observed = [] if calibration is None else observed_ranges(document, calibration, fed_back)
    ranges = tied_ranges(findings, observed, cell)
    overrides: dict[str, list[dict[str, Any]]] = {}
    for value in (product for product in findings.values() if owner_of(product) is document.model.graph):
        entry: dict[str, Any] = {"quant_type": TYPES[cell]} if cell is not None and value in findings.cells else {}
        if value in ranges:
            entry |= dict(zip(("rmin", "rmax"), map(np.float32, ranges[value]), strict=True))
        if entry:
            overrides[str(value.name)] = [entry]
    if per_channel:
        for product in findings.products:
            if product.weight in document.model.graph.initializers.values():
                overrides[str(product.weight.name)] = [{"axis": product.axis, "symmetric": True}]
    return overrides


def check_types(**requested: str | None) -> None:
    """Raise RnnLowerError for invalid types; only the cell state may stay float, and weights have 8 bits."""
    for name, value in requested.items():
        types = [kind for kind in TYPES if name != "weights" or kind.endswith("8")]
        if value not in types and not (name == "cell" and value is None):
            raise RnnLowerError(f"{name} must be one of {', '.join(types)}, not {value!r}")


def fed_back_in(document: Document) -> list[tuple[str, str]]:
    """The states of a streaming model, as input and output, that start in [-1, 1] or at the caller's values."""
    plan = read_plan(document.proto)
    states = () if plan is None else plan.states
    return [(state.input, state.output) for state in states if state.first is None or np.all(np.abs(state.first) <= 1)]


def tied_ranges(findings: Findings, observed: Sequence[Range | None], cell: str | None) -> Ranges:
    """The range of each value; tied values share one. Raises if there is nothing to quantize."""
    if not findings.products:
        raise UnsupportedError(
            "no MatMul or Gemm has a constant float32 weight; lower the float32 model first, without "
            "as_function, and with fold=True if nodes compute the weights"
        )
    values = findings.values()
    seen = dict(zip(values, observed or [None] * len(values), strict=True))
    groups: dict[ir.Value, list[Range]] = {}
    for value in values:
        groups.setdefault(findings.ties.leader(value), []).extend(_of_value(value, findings, seen[value], cell))
    # without the states of callers
    known = [value for value in values if seen[value] is not None or value in findings.bounds]
    return {value: hull(some) for value in known if (some := groups[findings.ties.leader(value)])}


def _of_value(value: ir.Value, findings: Findings, observed: Range | None, cell: str | None) -> Iterator[Range]:
    """A bound within [-1, 1] or the observed range; a wider bound only without observations."""
    bound = findings.bounds.get(value)
    if bound is not None and (observed is None or hull([bound, SIGNED]) == SIGNED):
        yield hull([bound, (0.0, 0.0)])
    if observed is not None:
        room = 2.0 if value in findings.cells and str(cell).endswith("16") else 1.0  # 16-bit types need it
        yield observed[0] * room, observed[1] * room
