"""How large a straight line will be, told by one of two and one of three steps: all later steps are alike."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from rnn_lower.emit.constants import ConstantPool
from rnn_lower.emit.names import Names
from rnn_lower.emit.writer import Habits
from rnn_lower.errors import UnsupportedError
from rnn_lower.recurrent.lowering import given, is_full, lower_node
from rnn_lower.recurrent.node import RecurrentNode


@dataclasses.dataclass(frozen=True)
class Size:
    """nodes: that are emitted.  nbytes: of these nodes in a file, without weights."""

    nodes: int
    nbytes: int

    def __add__(self, other: Size) -> Size:
        return Size(self.nodes + other.nodes, self.nbytes + other.nbytes)


def unrolled(node: RecurrentNode, opset: int, habits: Habits) -> Size | None:
    """Of a node of known length, in the time that five steps take; None when the node cannot be unrolled.

    Where a target makes constants of the masks of known lengths, it is that of steps that are valid for all rows.
    """
    length = node.static_length
    assert length is not None
    try:
        two, three = (_measured(_of_steps(node, steps), opset, habits) for steps in (2, 3))
    except UnsupportedError:  # which lowering says, with where it happened
        return None
    more = max(length - 2, 0)
    return Size(two.nodes + more * (three.nodes - two.nodes), two.nbytes + more * (three.nbytes - two.nbytes))


def _of_steps(node: RecurrentNode, steps: int) -> RecurrentNode:
    """The same node over fewer steps; lengths that say nothing go, since for fewer steps they would say something."""
    lengths = node.inputs.get("sequence_lens")
    says_nothing = lengths is not None and is_full(given(lengths), node.seq_length)
    inputs = {name: value for name, value in node.inputs.items() if not (says_nothing and name == "sequence_lens")}
    return dataclasses.replace(node, seq_length=steps, inputs=inputs)


def _measured(node: RecurrentNode, opset: int, habits: Habits) -> Size:
    names = Names([])
    nodes = lower_node(node, "unroll", opset, names, ConstantPool(names, as_nodes=False), habits).nodes
    size = Size(len(nodes), int(np.sum([ir.serde.serialize_node(one).ByteSize() for one in nodes])))
    for one in nodes:  # or the values of the model would count them as users
        for place in range(len(one.inputs)):
            one.replace_input_with(place, None)
    return size
