"""Loops as `inspect` and `lint` list them: how often they run, what they carry, and which command mends them."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from rnn_lower.errors import RnnLowerError
from rnn_lower.ir.walk import Scope
from rnn_lower.loops.model import describe, loops, unroll_loops
from rnn_lower.modelio.document import Document
from rnn_lower.proving.algebraic_patterns import constant
from rnn_lower.proving.program import MARK
from rnn_lower.raising.raise_loops import Raised, raise_loops
from rnn_lower.shapes.shape_info import Facts

TRIAL_NODES = 50_000
"""Nodes up to which unrolling is tried."""


@dataclasses.dataclass(frozen=True)
class LoopInfo:
    """A Loop or Scan of the model's own.

    trips: how often it runs, None where that is not known.  states: what it carries, by name and shape.
    recognized: the recurrent operator that it is proved to be, or empty.  unrolls: whether its steps can be counted.
    mend: the command that serves a runtime without loops, or why none does.
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
    """The loops of a model that lowering has not emitted, found out by trying on copies."""
    own = [(node, scope) for node, scope in loops(document.model) if MARK not in node.metadata_props]
    if not own:
        return []
    raised, kept = dict[str, Raised](), dict[str, str]()

    def attempt(model: ir.Model) -> None:
        raised.update({one.name: one for one in raise_loops(model.clone())})
        unrolled = model.clone()
        _, left = unroll_loops(unrolled, TRIAL_NODES)
        kept.update({describe(one.node): one.why for one in left})

    try:
        document.again().changed(attempt)
        failed = ""
    except RnnLowerError as error:
        failed = str(error)
    facts = document.facts
    return [_info(node, scope, _trips(node, facts), raised.get(_name(node)), kept, failed) for node, scope in own]


def _info(
    node: ir.Node, scope: Scope, trips: int | None, raised: Raised | None, kept: dict[str, str], failed: str
) -> LoopInfo:
    first, last = (2, len(node.inputs)) if node.op_type == "Loop" else (0, _states_of_scan(node))
    states = tuple(_shown(value) for value in node.inputs[first:last] if value is not None and constant(value) is None)
    recognized = "" if raised is None else raised.op_type
    unrolls = not failed and describe(node) not in kept
    if recognized:
        mend = f"rnn-lower raise replaces it by one {recognized}, proved"
    elif unrolls:
        mend = "rnn-lower lower --loops unrolls it"
    else:
        mend = failed or kept.get(describe(node), "")
    return LoopInfo(_name(node), node.op_type, scope.path, trips, states, recognized, unrolls, mend)


def _name(node: ir.Node) -> str:
    return node.name or str(node.outputs[0].name)


def _states_of_scan(node: ir.Node) -> int:
    count = node.attributes.get("num_scan_inputs")
    return len(node.inputs) - (0 if count is None else count.as_int())


def _shown(value: ir.Value) -> str:
    return f"{value.name} {list(value.shape)}" if value.shape is not None else str(value.name)


def _trips(node: ir.Node, facts: Facts) -> int | None:
    if node.op_type == "Scan":
        shape = None if node.inputs[-1] is None else facts.shape(node.inputs[-1])
        axes = node.attributes.get("scan_input_axes")
        size = shape[axes.as_ints()[-1] if axes is not None else 0] if shape else None
        return size if isinstance(size, int) else None
    limit = constant(node.inputs[0])
    if limit is None or limit.dtype.kind not in "iu" or limit.size != 1:
        return None
    return int(limit.item()) if limit.item() <= 2**31 else None
