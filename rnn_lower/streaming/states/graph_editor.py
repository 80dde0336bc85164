"""Rewrite a model with fused nodes into its streaming form: states become inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

from rnn_lower.builder.constants import ConstantPool, constant
from rnn_lower.builder.graph_builder import GraphBuilder, Operand
from rnn_lower.builder.names import Names
from rnn_lower.driver.legalize_rest import MADE
from rnn_lower.errors import UnsupportedError
from rnn_lower.ir import protobuf
from rnn_lower.ir.walk import opset_of, used_names
from rnn_lower.lowering.node import display_name
from rnn_lower.modelio.document import Document
from rnn_lower.shapes.sizes import ONE, Size
from rnn_lower.streaming.axis_info import AxisInfo, old_opset
from rnn_lower.streaming.data_flow import may_feed
from rnn_lower.streaming.plan import State, is_batch
from rnn_lower.streaming.states.initial_states import FromInput, evaluate

INT64 = ir.DataType.INT64
YES = constant(1, INT64, "yes")

_NAMED = "rnn_lower.named"
"""The metadata key of a value that already has one of the model's names."""


class Site:
    """A node to rewrite, with builders for the nodes before and after it.

    name: of the node, the scope for emitted values.  owner: the node, for messages.
    """

    def __init__(self, node: ir.Node, message: onnx.NodeProto, before: GraphBuilder, behind: GraphBuilder) -> None:
        self.node, self.message, self.before, self.behind = node, message, before, behind
        self.name = display_name(node)
        self.owner = f"{node.op_type} '{self.name}'"

    def input(self, index: int = 0) -> ir.Value:
        return ir.Value(name=self.message.input[index])

    def feed(self, index: int, operand: Operand) -> None:
        """Set an input of the node to an operand, and extend the inputs if needed."""
        value = self.before.value(operand)
        put(self.message.input, index, "" if value is None else str(value.name))

    def output(self, index: int = 0) -> ir.Value:
        return ir.Value(name=self.message.output[index])

    def divert(self, name: str = "chunk", index: int = 0) -> ir.Value:
        """Rename the node's output, so that another value can take its name."""
        value = self.behind.new_value(name)
        put(self.message.output, index, str(value.name))
        return value

    def rename(self, operand: Operand, name: str) -> None:
        """Rename an emitted value to a name of the model; an Identity copies any other value to this name."""
        assert isinstance(operand, ir.Value)
        old = operand.name
        if name_value(self.behind, operand, name):
            self.message.input[:] = [name if source == old else source for source in self.message.input]

    def change(self, attributes: Mapping[str, Any]) -> None:
        for key, content in attributes.items():
            there = next((attribute for attribute in self.message.attribute if attribute.name == key), None)
            (there or self.message.attribute.add()).CopyFrom(helper.make_attribute(key, content))

    def replace(self, op_type: str) -> None:
        """Turn the node into another operator of its first input, without attributes."""
        self.message.op_type = op_type
        del self.message.input[1:]
        del self.message.attribute[:]


class GraphEditor:
    """Edits the protobuf of a document in place; do not use the document's onnx_ir view afterwards.

    states: the states to carry.  notes: messages for the user.  step: the only chunk length, or None.
    left: inputs whose state the caller carries.  back: by such an input, the outputs that return the state, and a node.
    lengths: by sequence_lens, the steps in this chunk and the mask of ended rows.  seen: the state that counts frames.
    delayed: by value, axis, length and crop, a delayed value that several nodes read.
    replaced: values that nodes no longer read.  symbols: by symbolic size, an input and axis to read it from.
    batch: the size or the name of the batch axis of the stream; None if it has none.
    """

    def __init__(
        self, document: Document, infos: Mapping[ir.Value, AxisInfo], symbols: Mapping[str, tuple[str, int]],
        reset: bool, step: int | None = None,
    ) -> None:  # fmt: skip
        self.document, self.infos, self.symbols, self.step = document, infos, symbols, step
        self.graph, self.opset = document.proto.graph, opset_of(document.proto) or 0
        self.names = Names(used_names(document.model))
        self.reset = self.names.unique("reset") if reset else None
        self.rows: Size | None = None
        self.batch: int | str | None = None
        self._chains: dict[int, list[tuple[onnx.NodeProto, onnx.GraphProto]]] = {}
        self._find_chains(self.graph, [])
        self._first = graph_builder(document.proto, MADE.rstrip("/"), self.names)
        self._sites: dict[int, Site] = {}
        self._state_nodes: dict[str, int] = {}
        self._kept: dict[tuple[str, int], onnx.NodeProto] = {}
        self._bodies: list[onnx.GraphProto] = []  # alive, because their ids are keys
        self.lengths: dict[str, tuple[ir.Value, ir.Value]] = {}
        self.delayed: dict[tuple[str, int, int, int | None], ir.Value] = {}
        self.replaced: dict[tuple[ir.Node, int], ir.Value] = {}
        self.states: list[State] = []
        self.notes: list[str] = []
        self.left: set[str] = set()
        self.back: dict[str, tuple[set[str], str]] = {}
        self.seen: str | None = None
        self._begun: dict[tuple[int, tuple[Size, ...]], ir.Value] = {}

    def at(self, node: ir.Node) -> Site:
        """The `Site` of a node."""
        message = self.document.message(node)
        if id(message) not in self._sites:
            with self._first.scope(display_name(node)):
                self._sites[id(message)] = Site(node, message, self._first.body(), self._first.body())
        return self._sites[id(message)]

    def pair_left(self) -> None:
        """Make a state of each input that the caller provides and that one output returns."""
        graph = self.document.model.graph
        inputs, outputs = ({value.name: value for value in values} for values in (graph.inputs, graph.outputs))
        for name in sorted(self.left):
            value, (back, node) = inputs[name], self.back[name]
            if len(back) == 1 and value.dtype is not None and may_feed(outputs[min(back)], value):
                self.left.remove(name)
                self.states.append(State(name, min(back), (), value.dtype.name, node, None))

    def finish(self) -> None:
        """Apply all edits."""
        if self.reset is not None:
            if theirs := [state.input for state in self.states if state.first is None]:
                raise UnsupportedError(
                    f"--reset: the caller provides state '{theirs[0]}', so only the caller can reset it; drop --reset"
                )
            if self.rows is None:
                raise UnsupportedError("--reset: the model has no internal state to reset; drop --reset")
            self.graph.input.append(declared(self.reset, ir.DataType.BOOL, (self.rows,)))
        self._forget_lengths()
        dead = self._dead()
        self._drop_states(dead)
        self._insert(self.graph, dead)
        put_around(self.graph, self._first, ())

    def _forget_lengths(self) -> None:
        """Drop declared numbers that were the stream length of the export's example."""
        timed = {str(value.name): info for value, info in self.infos.items() if info.axis is not None}
        for message in (*self.graph.value_info, *self.graph.output):
            dims, info = message.type.tensor_type.shape.dim, timed.get(message.name)
            if info is not None and info.axis is not None and info.axis < len(dims):
                dims[info.axis].ClearField("dim_value")
                if info.late:  # else runtimes would reuse memory of values of another size
                    dims[info.axis].ClearField("dim_param")

    # -- states ----------------------------------------------------------------------------------------------------

    def first(
        self, owner: str, value: ir.Value | None, shape: tuple[Size, ...], dtype: ir.DataType
    ) -> tuple[np.ndarray, tuple[Size, ...]]:
        """The initial value of a state, and its shape. Raises FromInput if an input determines it."""
        self.check_sizes(owner, shape)
        if value is None:
            return filled(shape, 0, dtype), shape
        try:
            array, known = evaluate(self.document, self.infos, value, shape)
        except FromInput as error:
            raise FromInput(error.source, f"{owner}: ") from None
        except UnsupportedError as error:
            raise UnsupportedError(f"{owner}: {error}") from None
        return array.astype(dtype.numpy()), known

    def check_sizes(self, owner: str, shape: Sequence[Size]) -> None:
        if any(symbol not in self.symbols for dim in shape for symbol in dim.of):
            raise UnsupportedError(
                f"{owner}: the size of its state cannot be computed from the sizes of the inputs; set the input"
                " sizes (--dim NAME=SIZE)"
            )

    def add_input(self, name: str, dtype: ir.DataType, shape: tuple[Size, ...]) -> ir.Value:
        self.graph.input.append(declared(name, dtype, shape))
        return ir.Value(name=name)

    def resettable(
        self, site: Site, source: str, first: np.ndarray, shape: tuple[Size, ...], axis: int | None
    ) -> ir.Value:  # fmt: skip
        """The state, with its initial value in the rows that are reset."""
        value = ir.Value(name=source)
        if self.reset is None:
            return value
        if self.opset < 9:
            raise UnsupportedError(old_opset("--reset", 9, self.opset))
        if axis is None:
            raise UnsupportedError(f"--reset: the batch axis of state '{source}' is unknown; drop --reset")
        rows = shape[axis]
        if self.rows not in (None, rows) or not is_batch(rows, None):
            raise UnsupportedError(
                f"--reset: state '{source}' does not have one row for each row of the batch; set the batch size "
                "(--dim), or drop --reset"
            )
        self.rows = rows
        rank = [-1 if k == axis else 1 for k in range(len(shape))]
        mask = site.before.reshape(ir.Value(name=self.reset), rank, "mask")
        start = constant(first, ir.DataType.from_numpy(first.dtype), "first")
        return site.before.op("Where", mask, start, value, name="now")

    def take_state(
        self, site: Site, what: str, first: np.ndarray, shape: tuple[Size, ...], rows: int | None
    ) -> tuple[State, ir.Value]:
        """A new state, and its current value: a new model input, or the initial value in rows that are reset.

        what: the kind of state, part of its name.  first: the value before the first chunk, of the state's dtype.
        """
        source, result = (self.names.unique(f"{site.name}/{what}_{end}") for end in ("in", "out"))
        dtype = ir.DataType.from_numpy(first.dtype)
        state = State(source, result, shape, dtype.name, site.owner, rows, first)
        self.add_input(source, dtype, shape)
        return state, self.resettable(site, source, first, shape, rows)

    def take_computed_state(
        self, site: Site, what: str, index: int, shape: tuple[Size, ...], dtype: ir.DataType, rows: int | None
    ) -> tuple[State, ir.Value]:  # fmt: skip
        """A new state, and its current value: in the first chunk, the one that the model computes for this input."""
        state, held = self.take_state(site, what, filled(shape, 0, dtype), shape, rows)
        begun = self.has_begun(site, site.before, shape, rows)
        return state, site.before.op("Where", begun, held, site.input(index), name=f"{what}_now")

    def has_begun(
        self, site: Site, b: GraphBuilder, shape: Sequence[Size], rows: int | None, begins: Operand = YES
    ) -> ir.Value:
        """Whether the stream began before this chunk, for each row of the states of a node.

        b: of the nodes before or behind the node.  shape: of a state.  begins: what is handed on if it did not: 1 if it
        begins with this chunk, or else 0.
        """
        if self.opset < 9:
            raise UnsupportedError(f"{site.owner}: {old_opset('a state that begins with the stream', 9, self.opset)}")
        shape = tuple(dim if axis == rows else ONE for axis, dim in enumerate(shape))
        if (id(site.message), shape) not in self._begun:
            state, begun = self.take_state(site, "begun", filled(shape, 0, INT64), shape, rows)
            has_begun = self._begun[id(site.message), shape] = b.less(constant(0, INT64, "no"), begun)
            self.hand_on(site, b.op("Where", has_begun, begun, begins, name="begun"), state)
        return self._begun[id(site.message), shape]

    def hand_on(self, site: Site, operand: Operand, state: State) -> None:
        """Make a value the state output for the next chunk."""
        self.surface(site, operand, state)
        self.states.append(state)
        self._state_nodes[state.input] = id(site.message)

    def surface(self, site: Site, operand: Operand, state: State) -> None:
        """Make a value of a branch an output of the main graph; the other branch passes the state on unchanged."""
        assert isinstance(operand, ir.Value)
        value, name, source, dtype = str(operand.name), state.output, state.input, ir.DataType[state.dtype]
        chain = self._chains[id(site.message)]
        for node, body in reversed(chain):
            if (source, id(body)) in self._kept:  # the other branch also computes it, and made it an output
                self._kept[source, id(body)].input[0] = value
                return
            for branch in protobuf.graphs_of(node):
                held = value
                if branch is not body or value in {out.name for out in body.output}:
                    held = self.names.unique(f"{name}/kept")
                    branch.node.append(helper.make_node("Identity", [source if branch is not body else value], [held]))
                if branch is not body:
                    self._kept[source, id(branch)] = branch.node[-1]
                    self._bodies.append(branch)
                branch.output.append(helper.make_tensor_value_info(held, int(dtype), None))
            value = name if node is chain[0][0] else self.names.unique(f"{name}/taken")
            node.output.append(value)
        if value != name:
            site.rename(operand, name)
        self.graph.output.append(declared(name, dtype, state.shape))

    # -- chunks of one length --------------------------------------------------------------------------------------

    def warm_up(self) -> ir.Value:
        """The state that counts the frames before the chunk, up to the warm-up."""
        if self.seen is None:
            self.seen, result = (self.names.unique(f"warm_up/frames_{end}") for end in ("in", "out"))
            seen, first = self.add_input(self.seen, INT64, (ONE,)), np.zeros(1, np.int64)
            after = self._first.op("Add", seen, constant([self.step], INT64, "step"), name="frames")
            after.name = result
            self.graph.output.append(declared(result, INT64, (ONE,)))
            self.states.append(State(self.seen, result, (ONE,), "INT64", "the frames before this chunk", None, first))
        return ir.Value(name=self.seen)

    def is_before(self, site: Site, late: int, every: Fraction, frames: np.ndarray | None = None) -> ir.Value:
        """Whether a chunk, or each of its frames, precedes the first meaningful frame."""
        if self.opset < 9:
            what = "delaying frames in a model with a fixed chunk length (--step)"
            raise UnsupportedError(old_opset(what, 9, self.opset))
        limit = late * every.numerator - (0 if frames is None else frames * every.numerator)
        scaled = site.before.op("Mul", self.warm_up(), constant([every.denominator], INT64, "parts"), name="scaled")
        return site.before.op("Less", scaled, constant(limit, INT64, "limit"), name="early")

    def are_early(self, site: Site, x: AxisInfo) -> ir.Value:
        """A mask along the stream axis: whether each frame precedes the first meaningful frame."""
        assert self.step is not None
        assert x.axis is not None
        frames = np.arange(int(self.step / x.every)).reshape(-1, *[1] * (x.rank - 1 - x.axis))
        return self.is_before(site, x.late, x.every, frames)

    # -- the graph -------------------------------------------------------------------------------------------------

    def are_alternatives(self, first: ir.Node, second: ir.Node) -> bool:
        """Whether two nodes are in different branches of the same If, so that at most one of them runs."""
        a, b = (self._chains[id(self.document.message(node))] for node in (first, second))
        return bool(a) and len(a) == len(b) and a[-1][0] is b[-1][0] and a[-1][1] is not b[-1][1]

    def is_nested(self, site: Site) -> bool:
        """Whether a node is in the body of another node."""
        return bool(self._chains[id(site.message)])

    def replace_input(self, site: Site, index: int, operand: Operand) -> None:
        """Replace an input of a node, and delete the nodes that only computed the old one."""
        old = site.node.inputs[index] if index < len(site.node.inputs) else None
        if old is not None:
            self.replaced[site.node, index] = old
        site.feed(index, operand)

    def _find_chains(self, graph: onnx.GraphProto, chain: list[tuple[onnx.NodeProto, onnx.GraphProto]]) -> None:
        """The enclosing nodes of each node, outermost first."""
        for node in graph.node:
            self._chains[id(node)] = chain
            for body in protobuf.graphs_of(node):
                self._find_chains(body, [*chain, (node, body)])

    def _dead(self) -> set[int]:
        """The nodes that only computed initial states; unused initializers are deleted at once."""
        gone: set[ir.Node] = set()
        unused: set[str | None] = set()
        written = (node for site in self._sites.values() for b in (site.before, site.behind) for node in b.nodes)
        fed = {state.input for state in self.states} | {
            value.name for node in written for value in node.inputs if value
        }

        def is_used(value: ir.Value) -> bool:
            users = (user for user, index in value.uses() if user not in gone and (user, index) not in self.replaced)
            return value.name in fed or value.is_graph_output() or value.is_graph_input() or any(True for _ in users)

        waiting = list(self.replaced.values())
        while waiting:
            value = waiting.pop()
            node = value.producer()
            if is_used(value):
                continue
            if node is None:
                unused.add(value.name)
            elif not any(map(is_used, node.outputs)) and not self._carries_in_body(node):
                gone.add(node)
                waiting += [operand for operand in node.inputs if operand is not None]
        protobuf.remove_if(self.graph.initializer, lambda tensor: tensor.name in unused)
        return {id(self.document.message(node)) for node in gone}

    def _carries_in_body(self, node: ir.Node) -> bool:
        """Whether a node has a state that the nodes around its body return."""
        message = self.document.message(node)
        return bool(self._chains[id(message)]) and id(message) in self._state_nodes.values()

    def _drop_states(self, dead: set[int]) -> None:
        """Drop the states of nodes that are deleted."""
        inputs = {name for name, node in self._state_nodes.items() if node in dead}
        outputs = {state.output for state in self.states if state.input in inputs}
        self.states = [state for state in self.states if state.input not in inputs]
        protobuf.remove_if(self.graph.input, lambda value: value.name in inputs)
        protobuf.remove_if(self.graph.output, lambda value: value.name in outputs)

    def _insert(self, graph: onnx.GraphProto, dead: set[int]) -> None:
        """Insert the new nodes, bodies before the graphs that contain them."""
        nodes: list[onnx.NodeProto] = []
        for node in graph.node:
            for body in protobuf.graphs_of(node):
                self._insert(body, dead)
            site = self._sites.get(id(node))
            if id(node) not in dead:
                nodes += [*_messages(site.before if site else None), node, *_messages(site.behind if site else None)]
        _replace(graph, nodes)


def graph_builder(model: onnx.ModelProto, scope: str, names: Names | None = None) -> GraphBuilder:
    """A builder for nodes of the main graph of a protobuf model; `put_around` inserts them."""
    names = names or Names(name for root in (model.graph, *model.functions) for name in protobuf.all_names_of(root))
    pool = ConstantPool(names, model.ir_version < 4)
    return GraphBuilder(opset_of(model) or 0, ir.DataType.FLOAT, names, pool, scope)


def put_around(graph: onnx.GraphProto, first: GraphBuilder, last: Iterable[ir.Node]) -> None:
    """Insert the nodes of a builder before or after all others, and its constants as initializers."""
    _replace(graph, [*_messages(first), *graph.node, *map(ir.serde.serialize_node, last)])
    for value in first.pool.all_initializers:
        assert value.const_value is not None
        graph.initializer.append(ir.serde.serialize_tensor(value.const_value))


def name_value(b: GraphBuilder, operand: Operand, name: str) -> bool:
    """Give an emitted value a name of the model; return False if an Identity copies it instead.

    Builders merge equal nodes, so a value may be named more than once.
    """
    assert isinstance(operand, ir.Value)
    is_new = operand.producer() is not None and _NAMED not in operand.meta
    value = operand if is_new else ir.Value()
    if not is_new:
        b.append(ir.Node("", "Identity", [operand], outputs=[value], name=b.unique_name("same")))
    value.name, value.meta[_NAMED] = name, True
    return is_new


def _messages(builder: GraphBuilder | None) -> Iterator[onnx.NodeProto]:
    yield from map(ir.serde.serialize_node, builder.nodes if builder else ())


def _replace(graph: onnx.GraphProto, nodes: list[onnx.NodeProto]) -> None:
    if len(nodes) != len(graph.node) or any(a is not b for a, b in zip(nodes, graph.node, strict=True)):
        del graph.node[:]
        graph.node.extend(nodes)


def put(names: Any, index: int, name: str) -> None:
    """Set an input or output of a node, and extend the list if needed; some runtimes count empty names at its end."""
    names.extend([""] * (index + 1 - len(names)))
    names[index] = name
    while not name and names and not names[-1]:
        del names[-1]


def filled(shape: Sequence[Size], fill: Any, dtype: ir.DataType) -> np.ndarray:
    """An array filled with one value; unknown sizes become 1."""
    if fill == -np.inf and dtype.is_integer():  # pooling: nothing may be larger than what was not there
        fill = np.iinfo(dtype.numpy()).min
    return np.full([1 if dim.number is None else dim.number for dim in shape], fill, dtype.numpy())


def declared(name: str, dtype: ir.DataType, shape: Sequence[Size]) -> onnx.ValueInfoProto:
    """The declaration of an input or output; sizes without a name stay open."""
    sizes = [
        dim.number if dim.number is not None
        else dim.of[0] if len(dim.of) == 1 and dim.times == 1 and "#" not in dim.of[0] else None
        for dim in shape
    ]  # fmt: skip
    return helper.make_tensor_value_info(name, int(dtype), sizes)


def computed_size(b: GraphBuilder, dim: Size, symbols: Mapping[str, tuple[str, int]]) -> Operand:
    """A size, read from the inputs, as int64 [1]."""
    result: Operand = constant([dim.times.numerator], INT64, "number")
    for symbol in dim.of:
        source, axis = symbols[symbol]
        shape = b.op("Shape", ir.Value(name=source), name="shape")
        result = b.mul(result, b.slice(shape, 0, axis, axis + 1, "size"), "product")
    if dim.times.denominator > 1:
        result = b.div(result, constant([dim.times.denominator], INT64, "number"), "quotient")
    return result
