"""Corrections of operators for which onnx's reference evaluator contradicts the standard."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops import op_loop


class Loop(op_loop.Loop):  # type: ignore[misc]  # onnx gives it no types
    """Loop: onnx 1.23 concatenates scan outputs instead of stacking them, and treats a missing condition as false."""

    def _run(
        self, trips: Any, going: Any, *carried: Any, context: Any = None, body: Any = None, attributes: Any = None,
        **newer: Any,
    ) -> tuple[Any, ...]:  # fmt: skip  # newer: `bindings`, since onnx 1.23
        states, stacked, trip = list(carried), [list[np.ndarray]() for _ in range(self.K)], 0
        while (going is None or bool(going)) and (trips is None or trip < int(trips)):
            arguments = (np.array(trip, np.int64), np.array(True), *states)
            feeds = {**(context or {}), **dict(zip(self.body.input_names, arguments, strict=True))}
            going, *values = self._run_body(feeds, attributes=attributes, **newer)
            states, trip = values[: self.N], trip + 1
            for results, result in zip(stacked, values[self.N :], strict=True):
                results.append(result)
        return (
            *states,
            *map(np.stack, stacked),
        )  # without trips, the sizes of results are unknown, and the evaluator raises


class Scan(OpRun):  # type: ignore[misc]
    """Scan since opset 9: onnx 1.23 supports only forward directions and axis 0."""

    def need_context(self) -> bool:
        """A body may read values of the outer graph."""
        return True

    def _run(
        self, *operands: Any, context: Any = None, body: Any = None, attributes: Any = None,
        num_scan_inputs: Any = None, scan_input_axes: Any = None, scan_input_directions: Any = None,
        scan_output_axes: Any = None, scan_output_directions: Any = None, **newer: Any,
    ) -> tuple[Any, ...]:  # fmt: skip
        count = len(operands) - num_scan_inputs
        states, sequences = list(operands[:count]), list(operands[count:])
        ways = itertools.zip_longest(sequences, scan_input_axes or (), scan_input_directions or ())
        sequences = [np.moveaxis(x, axis or 0, 0)[:: -1 if back else 1] for x, axis, back in ways]
        steps = []
        for elements in zip(*sequences, strict=True):
            feeds = dict(zip(self.body.input_names, (*states, *elements), strict=True))
            results = self._run_body({**(context or {}), **feeds}, **newer)
            states, row = list(results[:count]), results[count:]
            steps.append(row)
        if not steps and len(self.body.output_names) > count:
            raise ValueError("the sizes of the outputs of a Scan without steps are unknown")
        stacked = map(np.stack, zip(*steps, strict=True))
        ways = itertools.zip_longest(stacked, scan_output_axes or (), scan_output_directions or ())
        return *states, *(np.moveaxis(x[:: -1 if back else 1], 0, axis or 0) for x, axis, back in ways)


class Slice(OpRun):  # type: ignore[misc]
    """Slice: onnx 1.23 returns nothing for a negative step from before the first element, which ONNX clamps."""

    def _run(
        self, x: Any, starts: Any = None, ends: Any = None, axes: Any = None, steps: Any = None
    ) -> tuple[Any, ...]:  # fmt: skip
        starts, ends = np.ravel(starts), np.ravel(ends)
        axes = range(len(starts)) if axes is None else np.ravel(axes)
        steps = np.ones(len(starts), int) if steps is None else np.ravel(steps)
        cut = [slice(None)] * x.ndim
        for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
            start, end, size = int(start), int(end), x.shape[axis]
            start = max(start, -size) if step < 0 else start
            cut[axis] = slice(start, None if step < 0 and end < -size else end, int(step))
        return (x[tuple(cut)],)
