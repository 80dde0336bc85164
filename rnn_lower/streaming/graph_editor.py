"""Rewrite the fused model into its streaming form: states become inputs and outputs, everything else stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from rnn_lower.builder.names import Names
from rnn_lower.errors import UnsupportedError
from rnn_lower.ir import protobuf
from rnn_lower.ir.walk import opset_of, taken_names
from rnn_lower.modelio.document import Document
from rnn_lower.streaming.axis_info import AxisInfo
from rnn_lower.streaming.initial_states import FromInput, evaluate
from rnn_lower.streaming.plan import State
from rnn_lower.streaming.sizes import ONE, Size

MADE = "stream/"
"""With which the names of nodes begin that carry what the stream remembers."""


class GraphEditor:
    """Changes the protobuf of a document, which is good for nothing else afterwards.

    states, notes: what is carried, and what a user should know.
    left: inputs whose state is left to the caller.  back: by these, the outputs that give it back, and of which node.
     lengths: by value, what counts it.
    seen: the state that counts the frames before a chunk, where there is one.
    replaced: values that nodes no longer take.  symbols: where sizes can be read off.  step: the only length of chunks.
    """

    def __init__(
        self, document: Document, infos: Mapping[ir.Value, AxisInfo], symbols: Mapping[str, tuple[str, int]],
        reset: bool, step: int | None = None,
    ) -> None:  # fmt: skip
        self.document, self.infos, self.symbols, self.step = document, infos, symbols, step
        self.graph = document.proto.graph
        self._theirs = set(taken_names(document.model))
        self.names = Names(self._theirs)
        self.reset = self.names.unique("reset") if reset else None
        self._rows: Size | None = None
        self._chains: dict[int, list[tuple[onnx.NodeProto, onnx.GraphProto]]] = {}
        self._find_chains(self.graph, [])
        self._before: dict[int, list[onnx.NodeProto]] = {}
        self._behind: dict[int, list[onnx.NodeProto]] = {}
        self._kept: dict[tuple[str, int], onnx.NodeProto] = {}
        self._bodies: list[onnx.GraphProto] = []  # alive, so that they keep their identities
        self.lengths: dict[str, tuple[str, str]] = {}
        self.replaced: dict[tuple[ir.Node, int], ir.Value] = {}
        self.states: list[State] = []
        self.notes: list[str] = []
        self.left: set[str] = set()
        self.back: dict[str, tuple[set[str], str]] = {}
        self.seen: str | None = None

    def pair_left(self) -> None:
        """Make a state of each input that is left to the caller and that one output gives back."""
        for name in sorted(self.left):
            value, back, node = (
                next(v for v in self.document.model.graph.inputs if v.name == name),
                self.back[name][0],
                self.back[name][1],
            )
            if len(back) == 1 and value.dtype is not None:
                self.left.remove(name)
                self.states.append(State(name, min(back), (), value.dtype.name, node, None))

    def finish(self) -> None:
        """Put everything in place."""
        if self.reset is not None:
            if theirs := [state.input for state in self.states if state.first is None]:
                raise UnsupportedError(f"reset: '{theirs[0]}' comes from the caller, and only the caller can reset it")
            if self._rows is None:
                raise UnsupportedError("reset: the model has no state of its own to reset")
            self.graph.input.append(self.declared(self.reset, onnx.TensorProto.BOOL, (self._rows,)))
        self._forget_lengths()
        self._insert(self.graph, self._dead())

    def _forget_lengths(self) -> None:
        """Take back numbers that are declared as the length of the stream: those of the example of an export."""
        timed = {str(value.name): info for value, info in self.infos.items() if info.axis is not None}
        for declared in (*self.graph.value_info, *self.graph.output):
            dims, info = declared.type.tensor_type.shape.dim, timed.get(declared.name)
            if info is not None and info.axis is not None and info.axis < len(dims):
                dims[info.axis].ClearField("dim_value")
                if info.late:  # of another size than others of this name, which runtimes would reuse the memory of
                    dims[info.axis].ClearField("dim_param")

    @property
    def opset(self) -> int:
        return opset_of(self.document.proto) or 0

    def first(
        self, owner: str, value: ir.Value | None, shape: tuple[Size, ...], dtype: ir.DataType
    ) -> tuple[np.ndarray, tuple[Size, ...]]:
        """The value of a state before the first chunk, and its shape. Raises FromInput when the caller gives it."""
        self.check_sizes(owner, shape)
        if value is None:
            return np.zeros([one.number or 1 for one in shape], dtype.numpy()), shape
        try:
            found, known = evaluate(self.document, self.infos, value, shape)
        except FromInput:
            raise
        except UnsupportedError as error:
            raise UnsupportedError(f"{owner}: {error}") from None
        return found.astype(dtype.numpy()), known

    def check_sizes(self, owner: str, shape: Sequence[Size]) -> None:
        if any(symbol not in self.symbols for one in shape for symbol in one.of):
            raise UnsupportedError(
                f"{owner}: the size of its state does not follow from the inputs' sizes; fix them (--dim NAME=SIZE)"
            )

    def add_input(self, name: str, dtype: ir.DataType, shape: tuple[Size, ...]) -> None:
        self.graph.input.append(self.declared(name, int(dtype), shape))

    def declared(self, name: str, dtype: int, shape: tuple[Size, ...]) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, dtype, [declared_size(one) for one in shape])

    def resettable(
        self, message: onnx.NodeProto, source: str, first: np.ndarray, shape: tuple[Size, ...], axis: int | None
    ) -> str:  # fmt: skip
        """The state, or its first value in the rows that are set back."""
        if self.reset is None:
            return source
        if self.opset < 9:
            raise UnsupportedError(f"reset needs opset 9, the model is at opset {self.opset}")
        if axis is None:
            raise UnsupportedError(f"reset: the batch axis of state '{source}' is unknown")
        rows = shape[axis]
        if self._rows not in (None, rows) or len(rows.of) > 1 or (rows.of and rows.times != 1):
            raise UnsupportedError(f"reset: the rows of state '{source}' are not those of the batch")
        self._rows = rows
        form = self.constant(message, np.array([-1 if k == axis else 1 for k in range(len(shape))]), f"{source}/form")
        start = self.constant(message, first, f"{source}/first")
        mask, current = self.names.unique(f"{source}/mask"), self.names.unique(f"{source}/now")
        self.ahead(message, helper.make_node("Reshape", [self.reset, form], [mask]))
        self.ahead(message, helper.make_node("Where", [mask, start, source], [current]))
        return current

    def take_state(self, message: onnx.NodeProto, state: State) -> str:
        """What a node reads as its state: a new input of the model, or its first value in rows that are reset."""
        assert state.first is not None
        self.add_input(state.input, ir.DataType[state.dtype], state.shape)
        return self.resettable(message, state.input, state.first, state.shape, state.rows)

    def hand_on(self, message: onnx.NodeProto, value: str, state: State) -> None:
        """Make a value the output that the next chunk is given as the state."""
        self.surface(message, value, state.output, state.input, ir.DataType[state.dtype], state.shape)
        self.states.append(state)

    def surface(
        self, message: onnx.NodeProto, value: str, name: str, source: str, dtype: ir.DataType, shape: tuple[Size, ...]
    ) -> None:  # fmt: skip
        """Make a value an output of the main graph; a branch that is not taken hands the state on as it was."""
        for node, body in reversed(self._chains[id(message)]):
            if (source, id(body)) in self._kept:  # the other branch has it too, which made an output of it
                self._kept[source, id(body)].input[0] = value
                return
            for other in protobuf.graphs_of(node):
                held = value
                if other is not body or value in {out.name for out in body.output}:
                    held = self.names.unique(f"{name}/kept")
                    other.node.append(helper.make_node("Identity", [source if other is not body else value], [held]))
                if other is not body:
                    self._kept[source, id(other)] = other.node[-1]
                    self._bodies.append(other)
                other.output.append(helper.make_tensor_value_info(held, int(dtype), None))
            message, value = node, self.names.unique(f"{name}/taken")
            node.output.append(value)
        if value != name and not self._renamed(message, value, name):
            self.after(message, helper.make_node("Identity", [value], [name]))
        self.graph.output.append(self.declared(name, int(dtype), shape))

    def _renamed(self, message: onnx.NodeProto, value: str, name: str) -> bool:
        """Whether a new node makes the value that no other reads, which has the name now."""
        new = [*self._before.get(id(message), ()), *self._behind.get(id(message), ())]
        makers = [node for node in new if value in node.output]
        if len(makers) != 1 or value in self._theirs or any(value in node.input for node in (*new, message)):
            return False
        makers[0].output[:] = [name if output == value else output for output in makers[0].output]
        return True

    def warm_up(self, message: onnx.NodeProto) -> str:
        """The state that counts the frames before the chunk."""
        if self.seen is None:
            assert self.step is not None
            self.seen, result = (self.names.unique(f"warm_up/frames_{end}") for end in ("in", "out"))
            self.add_input(self.seen, ir.DataType.INT64, (ONE,))
            outermost = self._chains[id(message)][0][0] if self._chains[id(message)] else message
            step = self.constant(outermost, np.array([self.step], np.int64), "warm_up/step")
            self.ahead(outermost, helper.make_node("Add", [self.seen, step], [result]))
            self.graph.output.append(self.declared(result, onnx.TensorProto.INT64, (ONE,)))
            first = np.zeros(1, np.int64)
            self.states.append(State(self.seen, result, (ONE,), "INT64", "the frames before this chunk", None, first))
        return self.seen

    def is_before(
        self, message: onnx.NodeProto, late: int, every: Fraction, frames: np.ndarray | None = None
    ) -> str:  # fmt: skip
        """Whether a chunk, or each of some frames of it, comes before the first that means something."""
        if self.opset < 9:
            raise UnsupportedError(f"delayed frames with --step need opset 9; the model is at {self.opset}")
        seen = self.warm_up(message)
        limit = late * every.numerator - (0 if frames is None else frames * every.numerator)
        text, scaled = self.names.unique("warm_up/early"), self.names.unique("warm_up/scaled")
        parts = self.constant(message, np.array([every.denominator], np.int64), "warm_up/parts")
        end = self.constant(message, np.array(limit, np.int64), "warm_up/limit")
        self.ahead(message, helper.make_node("Mul", [seen, parts], [scaled]))
        self.ahead(message, helper.make_node("Less", [scaled, end], [text]))
        return text

    def constant(self, message: onnx.NodeProto, array: np.ndarray, name: str) -> str:
        made = self.names.unique(name)
        self.ahead(message, helper.make_node("Constant", [], [made], value=numpy_helper.from_array(array)))
        return made

    def ahead(self, message: onnx.NodeProto, node: onnx.NodeProto) -> None:
        self._before.setdefault(id(message), []).append(node)

    def after(self, message: onnx.NodeProto, node: onnx.NodeProto) -> None:
        self._behind.setdefault(id(message), []).append(node)

    def are_alternatives(self, one: onnx.NodeProto, other: onnx.NodeProto) -> bool:
        """Whether two nodes lie in different branches of the same If, so that one of them runs at most."""
        a, b = self._chains[id(one)], self._chains[id(other)]
        return bool(a) and len(a) == len(b) and a[-1][0] is b[-1][0] and a[-1][1] is not b[-1][1]

    def is_nested(self, message: onnx.NodeProto) -> bool:
        """Whether a node lies in the body of another."""
        return bool(self._chains[id(message)])

    def _find_chains(self, graph: onnx.GraphProto, chain: list[tuple[onnx.NodeProto, onnx.GraphProto]]) -> None:
        """The nodes, outermost first, in whose bodies each node lies."""
        for node in graph.node:
            self._chains[id(node)] = chain
            for body in protobuf.graphs_of(node):
                self._find_chains(body, [*chain, (node, body)])

    def _dead(self) -> set[int]:
        """Nodes that computed initial states and have no other use; initializers of that kind go at once."""
        gone: set[ir.Node] = set()
        unused: set[str | None] = set()
        new = (node for nodes in (*self._before.values(), *self._behind.values()) for node in nodes)
        fed = {one.input for one in self.states} | {name for node in new for name in node.input}
        waiting = list(self.replaced.values())
        while waiting:
            value = waiting.pop()
            if value.name in fed:
                continue
            node = value.producer()
            left = [user for user, place in value.uses() if user not in gone and (user, place) not in self.replaced]
            if left or value.is_graph_output() or value.is_graph_input():
                continue
            if node is None:
                unused.add(value.name)
            elif len(node.outputs) == 1:
                gone.add(node)
                waiting += [given for given in node.inputs if given is not None]
        protobuf.remove_if(self.graph.initializer, lambda tensor: tensor.name in unused)
        return {id(self.document.message(node)) for node in gone}

    def _insert(self, graph: onnx.GraphProto, dead: set[int]) -> None:
        """Put the new nodes where they belong, bodies before the graphs that they lie in."""
        nodes = []
        for node in graph.node:
            for body in protobuf.graphs_of(node):
                self._insert(body, dead)
            for new in (*self._before.get(id(node), ()), *self._behind.get(id(node), ())):
                new.name = self.names.unique(f"{MADE}{new.output[0]}")
            if id(node) not in dead:
                nodes += [*self._before.get(id(node), ()), node, *self._behind.get(id(node), ())]
        if len(nodes) != len(graph.node) or any(a is not b for a, b in zip(nodes, graph.node, strict=True)):
            del graph.node[:]
            graph.node.extend(nodes)


def put(names: Any, place: int, name: str) -> None:
    """Set an input or output of a node, which may have fewer."""
    names.extend([""] * (place + 1 - len(names)))
    names[place] = name


def declared_size(one: Size) -> int | str | None:
    if one.number is not None:
        return one.number
    return one.of[0] if len(one.of) == 1 and one.times == 1 and "#" not in one.of[0] else None
