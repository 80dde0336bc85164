"""The evaluator of onnx, adapted to support every model; its recurrent nodes are not a reference."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops import op_loop

from rnn_lower.ir import protobuf


class Loop(op_loop.Loop):  # type: ignore[misc]  # onnx gives it no types
    """That of onnx 1.23 strings results together, which the text stacks, and takes an absent condition for false."""

    def _run(
        self, trips: Any, going: Any, *carried: Any, context: Any = None, body: Any = None, attributes: Any = None,
        bindings: Any = None,
    ) -> tuple[Any, ...]:  # fmt: skip
        states, stacked, trip = list(carried), [list[np.ndarray]() for _ in range(self.K)], 0
        while (going is None or bool(going)) and (trips is None or trip < int(trips)):
            arguments = (np.array(trip, np.int64), np.array(True), *states)
            feeds = {**(context or {}), **dict(zip(self.body.input_names, arguments, strict=True))}
            going, *values = self._run_body(feeds, attributes=attributes, bindings=bindings)
            states, trip = values[: self.N], trip + 1
            for results, result in zip(stacked, values[self.N :], strict=True):
                results.append(result)
        return (*states, *map(np.stack, stacked))  # of no trips nobody says how large a result is; it raises


class Slice(OpRun):  # type: ignore[misc]
    """That of onnx 1.23 gives nothing for a start before the first element going backwards, which the text clamps."""

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


def evaluate(
    nodes: Iterable[onnx.NodeProto], feeds: Mapping[str, np.ndarray], wanted: Sequence[str],
    imports: Iterable[onnx.OperatorSetIdProto],
) -> list[np.ndarray]:  # fmt: skip
    """The wanted values. given: by name, all that the nodes read. Raises whatever the evaluator stumbles over."""
    inputs, outputs = ([onnx.ValueInfoProto(name=name) for name in names] for names in (feeds, wanted))
    graph = onnx.helper.make_graph(list(nodes), "evaluated", inputs, outputs)
    model = onnx.helper.make_model(graph, opset_imports=list(imports))
    return [np.asarray(value) for value in evaluator(model).run(None, dict(feeds))]


def evaluate_node(node: ir.Node, operands: Sequence[np.ndarray | None], opset: int) -> list[np.ndarray]:
    """The outputs of one node that have names. operands: in the order of its inputs, None for one that is absent."""
    names = [f"in{index}" if operand is not None else "" for index, operand in enumerate(operands)]
    proto = ir.to_proto(node)
    proto.input[:] = names
    feeds = {name: operand for name, operand in zip(names, operands, strict=True) if operand is not None}
    wanted = [str(value.name) for value in node.outputs if value.name]
    return evaluate([proto], feeds, wanted, [onnx.helper.make_opsetid("", opset)])


def evaluator(model: onnx.ModelProto, operators: Iterable[type] = ()) -> ReferenceEvaluator:
    """For a model, which is changed: an output that nobody wants gets a name.

    Without one, onnx 1.23 passes it to every later node that is not given some optional input. operators: in place of
    onnx's own.
    """
    count = itertools.count()
    for holder in protobuf.holders(model):
        for node in holder.node:
            node.output[:] = [name or f"rnn_lower/unwanted/{next(count)}" for name in node.output]
    return ReferenceEvaluator(model, new_ops=[Loop, Slice, *operators])
