"""Differences between two models over time: the largest one at each time step, for nodes and outputs."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from rnn_lower.checking import input_files, samples
from rnn_lower.checking.model_pair import ModelPair
from rnn_lower.checking.samples import Feeds
from rnn_lower.errors import RnnLowerError
from rnn_lower.lowering.node import RecurrentNode
from rnn_lower.modelio import files
from rnn_lower.modelio.document import Document
from rnn_lower.proving.model_inputs import fixed_sizes

LONG_RUN = 1
"""The run with sequences that are long enough to show how an error grows (`samples.LENGTHS`)."""


@dataclasses.dataclass(frozen=True)
class Steps:
    """The largest absolute difference of one value per time step; inf if only one side is finite.

    largest: the largest absolute expected value over all steps.
    """

    value: str
    errors: tuple[float, ...]
    largest: float

    @property
    def worst(self) -> float:
        return max(self.errors, default=0.0)


@dataclasses.dataclass(frozen=True)
class OverTime:
    """nodes: recurrent nodes of the main graph, by name and path.  outputs: model outputs with a time axis."""

    nodes: Mapping[tuple[str, str], Steps]
    outputs: tuple[Steps, ...]


def by_time_step(original: Path, lowered: Path, inputs: Any = None, seed: int = 0) -> OverTime:
    """Run both models once. inputs: as for `rnn_lower.check`. Raises RnnLowerError if the models do not run."""
    before, after = files.load(original), files.load(lowered)
    nodes = [node for node in ModelPair(before, after).nodes if node.path == "main graph" and "Y" in node.outputs]
    pair = ModelPair(_with_outputs(before, nodes), _with_outputs(after, nodes))
    _, expected, actual = pair.run(_candidates(pair, after, inputs, seed))
    compared = {
        name: (wanted, got) for name, wanted, got in zip(pair.output_names, expected, actual, strict=True)
        if isinstance(wanted, np.ndarray)
    }  # fmt: skip
    of_nodes = {
        (node.name, node.path): _steps(f"{node.name}: Y", *compared[name], axis=1 if node.layout else 0)
        for node in nodes if (name := node.outputs["Y"].name or "") in compared
    }  # fmt: skip
    outputs = (
        _steps(name, *compared[name], axis) for name, axis in _time_axes(before, nodes).items() if name in compared
    )
    return OverTime(of_nodes, tuple(outputs))


def _candidates(pair: ModelPair, lowered: Document, inputs: Any, seed: int) -> Iterator[Feeds]:
    model = pair.original.model
    if inputs is not None:
        return iter([input_files.load_inputs(inputs, model)])
    sampled = samples.Samples(model, seed, fixed_sizes(model, lowered.proto), pair.nodes)
    return itertools.chain(sampled.candidates(LONG_RUN), sampled.candidates(0))


def _with_outputs(document: Document, nodes: Sequence[RecurrentNode]) -> Document:
    """The model with the per-step results of each node as additional outputs."""

    def change(proto: onnx.ModelProto) -> None:
        there = {value.name for value in proto.graph.output}
        for node in nodes:
            name = node.outputs["Y"].name or ""
            if name not in there:
                proto.graph.output.append(onnx.helper.make_tensor_value_info(name, node.dtype.value, None))

    return document.copied(change)


def _time_axes(document: Document, nodes: Sequence[RecurrentNode]) -> Mapping[str, int]:
    """The time axis of each output that declares a recurrent node's symbolic sequence length."""
    names = {node.seq_length for node in nodes if isinstance(node.seq_length, str)}
    axes_of_outputs = {}
    for value in document.proto.graph.output:
        dims = [dim.dim_param for dim in value.type.tensor_type.shape.dim]
        axes = [axis for axis, name in enumerate(dims) if name in names]
        if len(axes) == 1:
            axes_of_outputs[value.name] = axes[0]
    return axes_of_outputs


def _steps(name: str, expected: np.ndarray, actual: np.ndarray, axis: int) -> Steps:
    if expected.shape != actual.shape:
        raise RnnLowerError(
            f"'{name}' has shape {expected.shape} in the original model, but shape {actual.shape} in the lowered model"
        )
    wide = np.float64 if expected.dtype.kind not in "c" else np.complex128
    a, b = (np.moveaxis(array, axis, 0).astype(wide).reshape(array.shape[axis], -1) for array in (expected, actual))
    with np.errstate(all="ignore"):
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        difference = np.where(same, 0.0, np.abs(a - b))
    difference = np.where(np.isnan(difference), np.inf, difference)
    finite = np.abs(a[np.isfinite(a)])
    return Steps(name, tuple(map(float, difference.max(axis=1, initial=0.0))), float(finite.max(initial=0.0)))
