"""What exact arithmetic does not show of a stream: rounding by casts, overflow, cancellation and element types."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from rnn_lower.checking.samples import first_result
from rnn_lower.errors import one_line
from rnn_lower.ir.schemas import DEFAULT_DOMAINS
from rnn_lower.ir.walk import constant, subgraphs
from rnn_lower.modelio.document import Document
from rnn_lower.proving import float_run
from rnn_lower.proving.exact.call import OutOfScopeError
from rnn_lower.proving.exact.element_types import WIDE_INTEGERS
from rnn_lower.proving.exact.field import Array
from rnn_lower.proving.exact.reference import OPERATORS
from rnn_lower.proving.whole.whole_evaluator import MOVES
from rnn_lower.proving.whole.whole_model import CASTS, ModelInterpreter
from rnn_lower.streaming.comparison.chunked_runs import ChunkedRuns
from rnn_lower.streaming.session import Feeds, StreamingSession
from rnn_lower.transforms.evaluate import evaluator

OF_INTEGERS = ("DequantizeLinear", "QuantizeLinear")
"""Operators of integers that have an equation for those to which floats were rounded."""

RUNS, FIRST, SECOND = 3, 8, 4
"""The number of runs in floats, and the steps of their two chunks, in addition to remembered and late ones."""


class Rounding(ModelInterpreter):
    """A ModelInterpreter for which a cast of computed floats to a type with fewer digits is a random function.

    rounded: values that constants alone determine, as folding computes them; all others are computed exactly.
    """

    rounded: Mapping[ir.Value | None, np.ndarray] = {}

    @functools.cached_property
    def _delicate(self) -> dict[ir.Node, list[ir.Value]]:
        """By node, the operands that must not be integers to which floats were rounded."""
        return {}

    def _results(self, node: ir.Node) -> Sequence[Array]:
        self._check_integers(node)
        if node.outputs[0] in self.rounded and self.rounded.keys() >= {*node.outputs}:
            return [*map(self._constant, node.outputs)]
        if node.domain in DEFAULT_DOMAINS and node.op_type in CASTS and constant(node.inputs[0]) is None:
            operand, goal = self._operands(node)[0], self._goal(node)
            is_float = goal is not None and goal.is_floating_point()
            if is_float and operand is not None and self._rounds(node, operand):
                return [self.field.function(f"Cast to {goal}", operand)]
        return super()._results(node)

    def _check_integers(self, node: ir.Node) -> None:
        """Raise OutOfScopeError if a node wraps or truncates integers that floats were rounded to."""
        if node not in self._delicate:
            exempt = node.op_type in (*MOVES, *CASTS, *OF_INTEGERS) or any(subgraphs(node))
            typed = [(value, self._document.dtype_of(value)) for value in node.inputs if value is not None]
            self._delicate[node] = [
                value for value, dtype in typed if not exempt and dtype is not None and dtype.is_integer()
                and (dtype not in WIDE_INTEGERS or node.op_type in ("Div", "Mod"))
            ]  # fmt: skip
        for value in self._delicate[node]:
            if value in self._values and self._values[value].dtype == np.uint64:
                text = f"{node.op_type} '{node.name}' computes with integers that floats were rounded to"
                raise OutOfScopeError(f"{text}, which the proof does not support")

    def _constant(self, value: ir.Value) -> Array:
        if value in self.rounded and value not in self._constants:
            self._constants[value] = self._known(self.rounded[value])
        return super()._constant(value)

    def _content(self, value: ir.Value | None, array: Array) -> np.ndarray | None:
        return self.rounded[value] if value in self.rounded else super()._content(value, array)


def difference_in_floats(runs: ChunkedRuns) -> tuple[str, str]:
    """The first difference between chunks and the whole sequence in floats, and why none was sought; or "".

    Raises OutOfScopeError if onnx's evaluator runs the original, but not the streaming model.
    """
    whole, made = (_evaluator(document) for document in (runs.original, runs.made))
    numbers, left_out = itertools.count(), ""

    def run(feeds: Feeds) -> tuple[Feeds, list[Array]]:
        return feeds, whole(feeds)

    def differ() -> str:
        nonlocal left_out
        number, steps = next(numbers), runs.remembered + FIRST + SECOND
        try:
            sampled = first_result(runs.samples(number, steps), run, Exception)
        except Exception as error:  # the evaluator raises exceptions of any type
            left_out = f"not compared in floats, because onnx's evaluator does not run the original: {one_line(error)}"
            return ""
        return _difference(runs, StreamingSession(runs.made.proto, run=made), *sampled)

    for _ in range(RUNS):
        if why := float_run.confirmed(differ):
            return f"{why} in floating-point arithmetic", ""
    return "", left_out


def _evaluator(document: Document) -> Callable[[Feeds], list[Array]]:
    opened = functools.cache(lambda: evaluator(document.embedded(), OPERATORS))

    def run(feeds: Feeds) -> list[Array]:
        with np.errstate(all="ignore"):
            return [np.asarray(each) for each in opened().run(None, feeds)]

    return run


def _difference(runs: ChunkedRuns, session: StreamingSession, feeds: Feeds, results: Sequence[Array]) -> str:
    """The first difference of an output from the results of the original, or ""."""
    names = [str(value.name) for value in runs.original.model.graph.outputs]
    lengths = list[int]()
    for name, axis in runs.plan.inputs.items():
        frames, step = feeds[name].shape[axis], runs.step
        second = min(SECOND, frames // step - 1) * step  # fewer if the model fixes the length
        two = [frames - second, second] if second > 0 else [frames]
        lengths = two if runs.fixed_step is None else [step] * (frames // step)
    try:
        if lengths:
            found = dict(zip(runs.plan.outputs, runs.stream_through(session, feeds, lengths), strict=True))
        else:
            found = session.run(feeds)
    except Exception as error:  # the evaluator raises exceptions of any type
        raise OutOfScopeError(f"onnx's evaluator does not run the streaming model: {one_line(error)}") from None
    for name, wanted in zip(names, results, strict=True):
        if name in found and (why := difference(runs.begun(name, sum(lengths), wanted, found[name]), found[name])):
            return f"output '{name}' {why}"
    return ""


def difference(wanted: Array, found: Array) -> str:
    """What keeps an output from being a rounding of the wanted one, or ""."""
    if wanted.dtype != found.dtype or wanted.shape != found.shape:
        return f"is {found.dtype}{list(found.shape)} instead of {wanted.dtype}{list(wanted.shape)}"
    return float_run.difference_of_outputs(found, wanted)
