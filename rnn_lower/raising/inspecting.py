"""Descriptions of loops for `inspect` and `lint`: trip counts, states, and the command that replaces each loop."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from rnn_lower.errors import RnnLowerError
from rnn_lower.ir.walk import NODE_MARK, constant, get_attribute
from rnn_lower.loops.model import describe, loops, unroll_loops
from rnn_lower.modelio.document import Document
from rnn_lower.raising.raise_loops import raise_loops
from rnn_lower.shapes.shape_info import ShapeInfo

TRIAL_NODES = 50_000
"""The maximum number of nodes for a trial of unrolling."""


@dataclasses.dataclass(frozen=True)
class LoopInfo:
    """A Loop or Scan node of the original model.

    trips: the number of trips, or None if it is unknown.  states: the carried values, by name and shape.
    recognized: the recurrent operator to which the loop is proved equal, or empty.  unrolls: whether the loop can be
    unrolled.  mend: the command that replaces the loop for a runtime without loops, or the reason why none does.
    """

    node: str
    op: str
    where: str
    trips: int | None
    states: tuple[str, ...]
    recognized: str
    unrolls: bool
    mend: str


def inspect_loops(document: Document) -> list[LoopInfo]:
    """The loops of a model that lowering did not emit, with the results of trials on copies."""
    own = [(node, scope) for node, scope in loops(document.model) if NODE_MARK not in node.metadata_props]
    if not own:
        return []
    recognized, reasons = dict[str, str](), dict[str, str]()

    def attempt(model: ir.Model) -> None:
        recognized.update({loop.name: loop.op_type for loop in raise_loops(model.clone())})
        _, remaining = unroll_loops(model.clone(), TRIAL_NODES)
        reasons.update({describe(loop.node): loop.why for loop in remaining})

    failed = ""
    try:
        document.again().changed(attempt)
    except RnnLowerError as error:
        failed = str(error)
    infos = []
    for node, scope in own:
        name, why = node.name or str(node.outputs[0].name), failed or reasons.get(describe(node), "")
        mend = why or "rnn-lower lower --loops unrolls this loop"
        if op_type := recognized.get(name, ""):
            mend = f"rnn-lower raise replaces this loop with one {op_type} node, which is proved equivalent to the loop"
        trips = _trips(node, document.shape_info)
        infos.append(LoopInfo(name, node.op_type, scope.path, trips, _states(node), op_type, not why, mend))
    return infos


def _states(node: ir.Node) -> tuple[str, ...]:
    """The states of a loop that are known only at run time, by name and shape."""
    first, last = 2, len(node.inputs)
    if node.op_type == "Scan":
        first, last = 0, last - (get_attribute(node, "num_scan_inputs", ir.AttributeType.INT, 0) or 0)
    states = (value for value in node.inputs[first:last] if value is not None and constant(value) is None)
    return tuple(f"{state.name}{_sizes(state)}" for state in states)


def _sizes(value: ir.Value) -> str:
    if value.shape is None:
        return ""
    return f" [{', '.join(str(dim) if isinstance(dim, int) else dim.value or '?' for dim in value.shape)}]"


def _trips(node: ir.Node, shape_info: ShapeInfo) -> int | None:
    if node.op_type == "Scan":
        shape = None if node.inputs[-1] is None else shape_info.shape(node.inputs[-1])
        axes = get_attribute(node, "scan_input_axes", ir.AttributeType.INTS, None) or [0]
        size = shape[axes[-1]] if shape else None
        return size if isinstance(size, int) else None
    limit = constant(node.inputs[0])
    if limit is None or limit.dtype.kind not in "iu" or limit.size != 1:
        return None
    return int(limit.item()) if limit.item() <= 2**31 else None
