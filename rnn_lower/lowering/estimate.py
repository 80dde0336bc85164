"""How large a straight line will be, told by two short ones: all later steps are alike."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from rnn_lower.builder.constants import ConstantPool
from rnn_lower.builder.names import Names
from rnn_lower.builder.writer import Habits
from rnn_lower.errors import UnsupportedError
from rnn_lower.lowering.lowering import lower_node
from rnn_lower.lowering.node import RecurrentNode
from rnn_lower.lowering.sequence_lens import is_whole


@dataclasses.dataclass(frozen=True)
class Size:
    """nodes: that are emitted.  nbytes: of these nodes in a file, without weights."""

    nodes: int
    nbytes: int

    def __add__(self, other: Size) -> Size:
        return Size(self.nodes + other.nodes, self.nbytes + other.nbytes)


FEW, MORE = 8, 15
"""Steps of the short lines. Seven further ones make one Concat more where a target takes only seven parts."""


def unrolled(node: RecurrentNode, opset: int, habits: Habits) -> Size | None:
    """Of a node of known length, in the time that these steps take; None when the node cannot be unrolled.

    Where a target makes constants of the masks of known lengths, it is that of steps that are valid for all rows.
    """
    length = node.static_length
    assert length is not None
    try:
        few, more = (_measured(_of_steps(node, steps), opset, habits) for steps in (FEW, MORE))
    except UnsupportedError:  # which lowering says, with where it happened
        return None
    share = max(length - FEW, 0) / (MORE - FEW)
    return Size(
        few.nodes + round(share * (more.nodes - few.nodes)), few.nbytes + round(share * (more.nbytes - few.nbytes))
    )


def _of_steps(node: RecurrentNode, steps: int) -> RecurrentNode:
    """The same node over fewer steps; lengths that say nothing go, since for fewer steps they would say something."""
    inputs = {name: value for name, value in node.inputs.items() if name != "sequence_lens" or not is_whole(node)}
    return dataclasses.replace(node, seq_length=steps, inputs=inputs)


def _measured(node: RecurrentNode, opset: int, habits: Habits) -> Size:
    names = Names([])
    nodes = lower_node(node, "unroll", opset, names, ConstantPool(names, as_nodes=False), habits).nodes
    size = Size(len(nodes), int(np.sum([ir.serde.serialize_node(one).ByteSize() for one in nodes])))
    for one in nodes:  # or the values of the model would count them as users
        for place in range(len(one.inputs)):
            one.replace_input_with(place, None)
    return size
