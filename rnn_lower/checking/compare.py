"""Compare outputs over several runs: floating-point numbers within a tolerance, everything else exactly."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from rnn_lower.ir.walk import content_key
from rnn_lower.proving.float_run import ROUNDED
from rnn_lower.proving.report import OutputReport

AMPLIFIED = 100
"""How many times what one unit in the last place of the inputs changes may be the rounding of all steps."""

SATURATED = 1e-7
"""The least absolute tolerance for rounding: near their limits, runtimes compute functions only to so many digits."""


LABELS = 400
"""The number of integers to compare if a model has no other outputs, because few of them show a difference."""

MORE_OFTEN = 4
"""How many times as many integers as rounding of the inputs changes may differ."""


class Comparison:
    """The largest differences of each output over several runs.

    rounding: whether all nodes are proved, so that only rounding can make the outputs differ. Integers, booleans and
    strings may be other ones then, and small numbers may come from the cancellation of large ones.
    """

    def __init__(self, rtol: float, atol: float, rounding: bool = False) -> None:
        self._rtol, self._atol, self._rounding = rtol, atol, rounding
        self._reports: dict[str, OutputReport] = {}
        self._first: dict[str, Any] = {}
        self._filled: set[str] = set()
        self._varied: set[str] = set()
        self._labels: dict[str, float] = {}
        self._small: list[tuple[str, Any, Any]] = []

    def nothing_compared(self, touched: set[str], varied: bool) -> str:
        """The reason why agreement would be meaningless, or nothing.

        touched: outputs that depend on recurrent nodes.  varied: outputs may be the same in all runs.
        """
        names = touched & self._reports.keys() or self._reports.keys()
        text = "every output" if names == self._reports.keys() else "every output of a recurrent node"
        if names and not self._filled & names:
            return f"{text} is empty or contains no finite numbers"
        if names and not varied and not self._varied & names:
            return f"{text} is the same in all runs, although the inputs differ"
        return ""

    def shows_differences(self, touched: set[str]) -> bool:
        """Whether the runs show ordinary differences of these outputs: some are floats, or there are many integers."""
        counts = [count for name, count in self._labels.items() if name in touched]
        return not counts or max(counts) >= LABELS

    def add(
        self, names: Sequence[str], expected: Sequence[Any], actual: Sequence[Any], moved: Sequence[Sequence[Any]] = ()
    ) -> None:
        """Add one run. moved: the expected results if all inputs are rounded differently, in several ways."""
        for index, (name, wanted, result) in enumerate(zip(names, expected, actual, strict=True)):
            new = self._compared(name, wanted, result)
            others = [each[index] for each in moved]
            if not new.ok and self._rounding and _is_discrete(wanted, result, others):
                new = dataclasses.replace(new, ok=True, reason=f"{new.reason}, possibly because of rounding")
            elif not new.ok and self._rounding and _is_amplified(wanted, result, others):
                text = f"{new.reason}, because the model amplifies rounding, also that of its inputs"
                new = dataclasses.replace(new, ok=True, reason=text)
            elif not new.ok and self._compared(name, wanted, result, 1.0).ok:
                self._small.append((name, wanted, result))
                new = dataclasses.replace(new, ok=True, reason="")
            self._filled |= {name} if has_content(wanted) else set()
            count = math.inf if isinstance(wanted, list) or np.asarray(wanted).dtype.kind in "fcV" else np.size(wanted)
            self._labels[name] = self._labels.get(name, 0) + count
            first = self._first.setdefault(name, wanted)
            self._varied |= set() if _identical(first, wanted) or _is_uniform(first, wanted) else {name}
            self._reports[name] = _worst(self._reports.get(name, new), new)

    def _compared(self, name: str, wanted: Any, result: Any, largest: float = 0.0) -> OutputReport:
        return compare(name, wanted, result, self._rtol, self._atol, self._rounding, largest)

    def agrees(self, names: Sequence[str], expected: Sequence[Any], actual: Sequence[Any]) -> bool:
        """Whether one run, which is not added, agrees."""
        once = Comparison(self._rtol, self._atol, self._rounding)
        once.add(names, expected, actual)
        return once.ok

    @property
    def ok(self) -> bool:
        """Whether all outputs agree so far."""
        return all(report.ok for report in self.reports())

    def reports(self) -> tuple[OutputReport, ...]:
        """The largest differences of each output so far; a run of small numbers counts with the largest of all runs."""
        reports, waiting = dict(self._reports), self._small
        self._small = []
        for name, wanted, result in waiting:
            new = self._compared(name, wanted, result, self._reports[name].max_abs_value)
            reports[name] = _worst(reports[name], new)
            if new.ok:  # and stays so, as the largest number only grows
                self._reports[name] = _worst(self._reports[name], new)
            else:
                self._small.append((name, wanted, result))
        return tuple(reports.values())


def _worst(old: OutputReport, new: OutputReport) -> OutputReport:
    """The larger of two differences of one output, with the largest numbers of both."""
    worst = old if (old.ok, -old.max_abs_error) < (new.ok, -new.max_abs_error) else new
    return dataclasses.replace(
        worst,
        max_abs_error=max(old.max_abs_error, new.max_abs_error),
        max_rel_error=max(old.max_rel_error, new.max_rel_error),
        max_ulp_error=max(old.max_ulp_error, new.max_ulp_error),
        max_abs_value=max(old.max_abs_value, new.max_abs_value),
    )


def _is_discrete(wanted: Any, result: Any, moved: Sequence[Any]) -> bool:
    """Whether both are integers, booleans or strings of one shape that differ no more than by rounding.

    moved: the expected results if the inputs are rounded differently.
    """
    if any(isinstance(each, list) for each in (wanted, result, *moved)):
        return False
    a, b, *others = (np.asarray(each) for each in (wanted, result, *moved))
    if a.dtype != b.dtype or a.shape != b.shape or a.dtype.kind in "fcV":
        return False
    changed = max((np.mean(a != other) for other in others if other.shape == a.shape), default=0.0)
    return bool(np.sum(a != b) <= max(1, ROUNDED * a.size, MORE_OFTEN * changed * a.size))


def _is_amplified(wanted: Any, result: Any, moved: Sequence[Any]) -> bool:
    """Whether a result is as near to the expected one as rounding may move it, at each index of the last axis."""
    if not moved or any(isinstance(each, list) for each in (wanted, result, *moved)):
        return False
    a, *others = (np.asarray(each) for each in (wanted, result, *moved))
    same = a.dtype == others[0].dtype and {each.shape for each in others} == {a.shape}
    if not same or a.dtype.kind not in "fV" or not a.ndim:
        return False
    x, *others = (each.astype(np.float64) for each in (a, *others))
    with np.errstate(all="ignore"):
        error, *effects = (np.where(x == y, 0.0, np.abs(y - x)).max(tuple(range(x.ndim - 1))) for y in others)
        finite = [effect for effect in effects if np.isfinite(effect).all()]
        return bool(finite) and bool(np.all((error <= AMPLIFIED * np.max(finite, axis=0)) & (error < np.inf)))


def _identical(a: Any, b: Any) -> bool:
    if isinstance(a, list):
        return len(a) == len(b) and all(map(_identical, a, b))
    return content_key(np.asarray(a)) == content_key(np.asarray(b))


def _is_uniform(a: Any, b: Any) -> bool:
    """Whether all elements of both arrays are the same value."""
    if isinstance(a, list):
        return False
    values = np.concatenate([np.ravel(a), np.ravel(b)])
    return bool(values.size) and bool(np.all(values == values[0]))


def has_content(value: Any) -> bool:
    """Whether a result, or one of a list, has an element that is a finite number."""
    if isinstance(value, list):
        return any(map(has_content, value))
    array = np.asarray(value)
    return array.size > 0 and (array.dtype.kind not in "fcV" or bool(np.any(np.isfinite(array.astype(np.complex128)))))


def compare(
    name: str, expected: Any, actual: Any, rtol: float, atol: float, rounding: bool = False, largest: float = 0.0
) -> OutputReport:  # fmt: skip
    """The comparison of one output in one run: floats within tolerance, everything else equal.

    rounding: see `Comparison`.  largest: of the numbers of the output in other runs.
    """
    if isinstance(expected, list) and isinstance(actual, list):  # sequences
        parts = [compare(name, e, a, rtol, atol, rounding, largest) for e, a in zip(expected, actual, strict=False)]
        same = len(expected) == len(actual) and all(part.ok for part in parts)
        worst = max((part.max_abs_error for part in parts), default=0.0)
        return OutputReport(name, (len(expected),), worst, 0.0, same, "" if same else "sequences differ")
    a, b = np.asarray(expected), np.asarray(actual)
    infinite, why = float("inf"), ""
    if isinstance(expected, list) or isinstance(actual, list):
        why = "only one of the two values is a sequence"
    elif (a.shape != b.shape and not _both_empty(a, b)) or a.dtype != b.dtype:
        why = f"{a.dtype}{list(a.shape)} expected, {b.dtype}{list(b.shape)} found"
    elif a.dtype.kind in "OSU" and not np.array_equal(a, b):
        why = "strings differ"
    if why or a.size == 0 or a.dtype.kind in "OSU":
        return OutputReport(name, b.shape, infinite if why else 0.0, infinite if why else 0.0, not why, why)
    if a.dtype.kind in "fcV":  # kind V: narrow types that numpy does not know
        eps = float(ml_dtypes.finfo(a.dtype).eps) if a.dtype.kind != "c" else 0.0
        rtol, atol = max(rtol, eps), max(atol, eps if rounding else 0.0)
    else:
        rtol = atol = 0.0
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    x, y = a.astype(wide), b.astype(wide)
    with np.errstate(all="ignore"):
        same_special = (np.isnan(x) & np.isnan(y)) | (a == b)
        difference = np.where(same_special, 0.0, np.abs(x - y))
        difference = np.where(np.isnan(difference), np.inf, difference)
        relative = np.where(difference == 0, 0.0, difference / np.maximum(np.abs(x), np.finfo(np.float32).tiny))
        least = np.maximum(atol * _sizes(x, rounding, largest), min(atol, SATURATED) if rounding else 0.0)
        near = (difference <= least + rtol * np.abs(x)) & (difference < np.inf)
    within = same_special | near if rtol else same_special
    ok = bool(np.all(within))
    reason = "" if ok else f"{int(np.sum(~within))} of {x.size} values differ"
    ulp = _in_ulp(difference, x, a.dtype)
    size = float(np.max(np.abs(x), where=np.isfinite(x), initial=0.0))
    return OutputReport(name, b.shape, float(difference.max()), float(relative.max()), ok, reason, ulp, size)


def _sizes(x: np.ndarray, rounding: bool, largest: float) -> np.ndarray:
    """The scale of the absolute tolerance: the largest number of the row and of the index of the last axis, or 1.

    Large numbers hide no difference in other units and rows. If all numbers are less than 1, the largest of all runs
    is the least scale, because functions such as Sigmoid have a constant absolute error.

    largest: of other runs.  rounding: the scale is the largest number of the index of the last axis, and at least the
    median of all of these, because small numbers may come from cancellation.
    """
    if not x.ndim:
        return np.asarray(np.maximum(np.abs(np.where(np.isfinite(x), x, 0.0)), min(largest, 1.0)))
    numbers = np.where(np.isfinite(x), np.abs(x), 0.0)
    units = numbers.max(axis=tuple(range(x.ndim - 1)), keepdims=True)
    least = max(float(np.median(units)), 1.0) if rounding else 1.0
    sizes = units if rounding else np.minimum(units, numbers.max(axis=-1, keepdims=True))
    return np.asarray(np.maximum(sizes, min(max(float(units.max()), largest), least)))


def _both_empty(expected: np.ndarray, actual: np.ndarray) -> bool:
    """Whether both are empty and the shapes are equal, except that onnxruntime reports unknown sizes of a Loop without
    trips as 0.
    """
    text = zip(expected.shape, actual.shape, strict=False)
    return expected.ndim == actual.ndim and expected.size == actual.size == 0 and all(a in (0, b) for a, b in text)


def _in_ulp(difference: np.ndarray, x: np.ndarray, dtype: np.dtype[Any]) -> float:
    """The largest difference in units in the last place of the expected values; 0 for non-finite ones."""
    if dtype.kind not in "fV":
        return 0.0
    limits = ml_dtypes.finfo(dtype)
    _, exponents = np.frexp(np.where(np.isfinite(x), x, float(limits.max)))
    units = np.maximum(np.ldexp(float(limits.eps), exponents - 1), float(limits.smallest_subnormal))
    with np.errstate(all="ignore"):
        return float(np.max(difference / units))
