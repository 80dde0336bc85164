"""Samples for calibration, and the ranges of values, including those in bodies, over runs with these samples."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir
from onnxruntime.quantization import CalibrationDataReader

from rnn_lower.checking.input_files import load_inputs
from rnn_lower.checking.runners import load_onnxruntime
from rnn_lower.checking.samples import Feeds
from rnn_lower.errors import RnnLowerError, UnsupportedError, one_line, public
from rnn_lower.ir.walk import Scope, owner_of, scopes
from rnn_lower.modelio import files
from rnn_lower.modelio.document import Document
from rnn_lower.quantization.products import LOOPS, find_products
from rnn_lower.quantization.ranges import Range, hull

Samples: TypeAlias = "Mapping[str, Any] | str | os.PathLike[str] | Sequence[Mapping[str, Any]]"
Calibration: TypeAlias = "Samples | CalibrationDataReader"


class _Reader(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime gives it no types
    def __init__(self, feeds: Sequence[Feeds]) -> None:
        self._feeds, self._next = feeds, iter(feeds)

    def get_next(self) -> Feeds | None:
        return next(self._next, None)

    def rewind(self) -> None:
        self._next = iter(self._feeds)

    def __len__(self) -> int:
        return len(self._feeds)


@public
def calibration_reader(
    model: onnx.ModelProto | ir.Model | str | os.PathLike[str], inputs: Samples
) -> CalibrationDataReader:
    """Return a CalibrationDataReader for the quantizers of onnxruntime.

    inputs: arrays by input name, or the path of an .npz file. Each array is one sample with the rank of its input, or
    several samples stacked along an additional leading axis. An array with one sample is combined with all samples of
    the other inputs. A list of such mappings is also accepted; its samples may differ in length.

    Raises RnnLowerError if an input is missing or the numbers of samples differ.
    """
    document, _ = files.open_model(model)
    return _Reader(_samples(document.model, inputs))


def _samples(model: ir.Model, inputs: Samples) -> list[Feeds]:
    several: Sequence[Any] = inputs if isinstance(inputs, (list, tuple)) else [inputs]
    return [feeds for each in several for feeds in split_samples(model, load_inputs(each, model))]


def split_samples(model: ir.Model, feeds: Feeds) -> list[Feeds]:
    """One set of inputs for each sample."""
    counts: dict[str, int] = {}
    for value in model.graph.inputs:
        name, shape = str(value.name), value.shape
        if name not in feeds or shape is None or feeds[name].ndim == len(shape):
            continue
        if feeds[name].ndim != len(shape) + 1:
            raise RnnLowerError(
                f"input '{name}' has {len(shape)} axes, but its samples have {feeds[name].ndim}; provide one sample, or"
                " several samples stacked along an extra leading axis"
            )
        counts[name] = len(feeds[name])
    if len(set(counts.values())) > 1 or 0 in counts.values():
        listed = ", ".join(f"{count} of '{name}'" for name, count in counts.items())
        raise RnnLowerError(
            f"the inputs have different numbers of samples ({listed}); provide at least one sample, "
            "and the same number for every input"
        )
    names = {str(value.name) for value in model.graph.inputs} & feeds.keys()
    total = next(iter(counts.values()), 1)
    return [
        {name: np.asarray(feeds[name][i]) if name in counts else feeds[name] for name in sorted(names)}
        for i in range(total)
    ]


def observed_ranges(
    document: Document, calibration: Calibration, fed_back: list[tuple[str, str]]
) -> list[Range | None]:
    """The range of each of `find_products(...).values()` in runs on onnxruntime; None if not observable."""
    seen: list[int | None] = []

    def expose(model: ir.Model) -> None:
        findings, before = find_products(model, fed_back), len(model.graph.outputs)
        scope_of = {scope.graph: scope for scope in scopes(model)}
        for value in findings.values():
            owner = owner_of(value)
            outer = None if owner is None else scope_of.get(owner)
            shown = value if owner is model.graph else None if outer is None else _through_bodies(value, outer)
            seen.append(None if shown is None else len(model.graph.outputs) - before)
            if shown is not None:
                model.graph.outputs.append(_copy(shown, model.graph))

    exposed = document.changed(expose)
    run, results = load_onnxruntime(exposed), list[list[np.ndarray]]()
    for feeds in _sets(document.model, calibration):
        try:
            results.append(run(feeds)[-sum(observed is not None for observed in seen) :])
        except Exception as error:  # onnxruntime raises its own
            raise RnnLowerError(f"the model does not run on a calibration sample: {one_line(error)}") from None
    if not results:
        raise RnnLowerError(
            "there are no calibration samples; provide at least one, or rewind the calibration data reader"
        )
    return [None if observed is None else _range([result[observed] for result in results]) for observed in seen]


def _sets(model: ir.Model, calibration: Calibration) -> Iterator[Feeds]:
    if isinstance(calibration, CalibrationDataReader):
        return iter(calibration.get_next, None)
    return iter(_samples(model, calibration))


def _range(arrays: Sequence[np.ndarray]) -> Range:
    """The minimum and maximum; 0 for no elements."""
    if not all(np.all(np.isfinite(array)) for array in arrays):
        raise UnsupportedError(
            "a calibration sample produces an infinite or NaN value, which quantized integers cannot represent"
        )
    return hull([(0.0, 0.0), *((float(a.min()), float(a.max())) for a in arrays if a.size)])


def _copy(value: ir.Value, graph: ir.Graph) -> ir.Value:
    """A copy under another name, because a value must not be two outputs."""
    node = ir.node("Identity", [value])
    graph.append(node)
    (copy,) = node.outputs
    copy.name, copy.type = f"{value.name}/observed/{id(node)}", value.type or ir.TensorType(ir.DataType.FLOAT)
    return copy


def _through_bodies(value: ir.Value, scope: Scope) -> ir.Value | None:
    """The value of all steps of the enclosing loops, stacked; None if it is in another kind of body."""
    while scope.outer is not None:
        node = next(n for n in scope.outer.graph if any(a.value is scope.graph for a in n.attributes.values()))
        if node.op_type not in LOOPS or not isinstance(scope.graph, ir.Graph):
            return None
        scope.graph.outputs.append(_copy(value, scope.graph))
        for key in ("scan_output_axes", "scan_output_directions"):
            if key in node.attributes:
                node.attributes[key] = ir.AttrInt64s(key, [*node.attributes[key].as_ints(), 0])
        node.resize_outputs(len(node.outputs) + 1)
        value = node.outputs[-1]
        value.name, scope = f"{value.name or 'value'}/observed/{id(value)}", scope.outer
        value.type = ir.TensorType(ir.DataType.FLOAT)
    return None if scope.in_function else value
