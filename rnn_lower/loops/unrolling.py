"""Unroll a Loop or Scan with a known number of steps: one copy of its body for each step."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from rnn_lower.builder.graph_builder import GraphBuilder, detach
from rnn_lower.errors import UnsupportedError
from rnn_lower.ir.schemas import DEFAULT_DOMAINS, LOOPS
from rnn_lower.ir.traits import RANDOM
from rnn_lower.ir.walk import get_attribute, in_declared_rank, known_tensor, subgraphs, with_bodies
from rnn_lower.loops.items import FEW, Item, Items, Row, Table, key_of, written
from rnn_lower.loops.rules import RULES, Call, of_all_rows
from rnn_lower.shapes.shape_info import ShapeInfo
from rnn_lower.transforms.evaluate import evaluate_node

NONDETERMINISTIC = ("Dropout", *RANDOM)
"""Operators of which two equal nodes compute different values."""

SCAN_WITHOUT_BATCH = 9

UNLIMITED = 2**31 - 1
"""The smallest trip count with which exporters express that only the condition ends a loop."""

Env = Mapping[ir.Value, Item]


class NotCountedError(UnsupportedError):
    """A loop cannot be unrolled: its trip count is unknown, or its steps depend on data; the message says which."""


class Unroller:
    """Emits the steps of one loop into `b`. After NotCountedError, drop the emitted nodes.

    max_nodes: the maximum number of emitted nodes.
    """

    def __init__(self, b: GraphBuilder, shape_info: ShapeInfo, max_nodes: int) -> None:
        self.b, self._shape_info, self._max_nodes = b, shape_info, max_nodes
        self.items = Items(b, shape_info)
        self._written: dict[Any, list[Item]] = {}
        self._steps = 1
        self._varying: set[ir.Value] = set()
        self._parts: dict[ir.Node, list[ir.Node]] = {}

    def forget(self) -> None:
        """Disconnect the emitted nodes that belong to no graph from the values that they read."""
        for parts in self._parts.values():
            detach(parts)

    def results(self, node: ir.Node, env: Env) -> list[Item]:
        """The items of the outputs of a Loop or Scan."""
        for value in (*node.inputs, *node.outputs):
            if value is not None and value.type is not None and not isinstance(value.type, ir.TensorType):
                raise NotCountedError(
                    "one of its states is an ONNX sequence instead of a tensor, so the node cannot be "
                    "unrolled; export the model with tensors as states"
                )
        results = self._loop(node, env) if node.op_type == "Loop" else self._scan(node, env)
        if len(results) != len(node.outputs):
            raise NotCountedError(
                f"the body of the node returns {len(results)} values, but the node has {len(node.outputs)} outputs"
            )
        return results

    # -- counting ------------------------------------------------------------------------------------------------------

    def _loop(self, node: ir.Node, env: Env) -> list[Item]:
        trips, going, *states = self._inputs(node, env)
        body = node.attributes["body"].as_graph()
        limit = None if trips is None else self.items.array(trips)
        if trips is not None and limit is None:
            raise NotCountedError("its trip count is unknown")
        if limit is not None and (limit.dtype.kind not in "iu" or limit.size != 1):
            raise NotCountedError("its trip count is not an integer")
        count = None if limit is None else max(0, int(limit.item()))
        if count is not None and count >= UNLIMITED and not _is_always_true(body):
            count = None
        self._varying |= {body.inputs[0], *_changed(body.inputs[2:], body.outputs[1:])}
        if len(body.outputs) <= len(states):
            raise NotCountedError(
                f"its body returns {len(body.outputs)} values, too few for a condition and {len(states)} states"
            )
        last, steps = self._run(body, env, states, count, going=going)
        outputs = body.outputs[1 + len(states) :]
        return [*last, *(self._stack([step[k] for step in steps], 0, out) for k, out in enumerate(outputs))]

    def _scan(self, node: ir.Node, env: Env) -> list[Item]:
        if self.b.opset < SCAN_WITHOUT_BATCH or "directions" in node.attributes:
            raise NotCountedError("it is a Scan of version 8; convert the model to opset 9 or newer first (--opset N)")
        inputs, body = self._inputs(node, env), node.attributes["body"].as_graph()
        first = len(inputs) - node.attributes["num_scan_inputs"].as_int()
        states, outputs = inputs[:first], body.outputs[first:]

        def integers(name: str, count: int) -> Sequence[int]:
            return get_attribute(node, f"scan_{name}", ir.AttributeType.INTS, None) or [0] * count

        sequences = []
        axes, backwards = (integers(f"input_{what}", len(inputs) - first) for what in ("axes", "directions"))
        for item, axis, back in zip(inputs[first:], axes, backwards, strict=True):
            sequences.append(self._sequence(item, axis)[:: -1 if back else 1])
        counts = {len(rows) for rows in sequences}
        if len(counts) != 1:
            raise NotCountedError(f"its scan inputs have different lengths, {sorted(counts)}")
        self._varying |= {*_changed(body.inputs[:first], body.outputs)}
        (count,) = counts
        last, steps = self._run(body, env, states, count, sequences)
        axes, backwards = (integers(f"output_{what}", len(outputs)) for what in ("axes", "directions"))
        stacked = [
            self._stack([step[k] for step in steps[:: -1 if backwards[k] else 1]], axes[k], output)
            for k, output in enumerate(outputs)
        ]
        return [*last, *stacked]

    def _run(
        self, body: ir.Graph, env: Env, states: Sequence[Item], count: int | None,
        sequences: Sequence[Sequence[Item]] | None = None, going: Item = None,
    ) -> tuple[Sequence[Item], list[Sequence[Item]]]:  # fmt: skip
        """The states after the last step, and the outputs of each step to stack.

        sequences: the inputs that a Scan reads step by step.  going: the condition of a Loop; a Scan has none.
        """
        steps: list[Sequence[Item]] = []
        before = len(self.b.nodes)
        while (count is None or len(steps) < count) and (sequences is not None or self._goes_on(going, steps, count)):
            step = len(steps)
            self._check(step, count, before)
            self._steps = count or step + 1
            if sequences is None:
                pair = zip((np.array(step, np.int64), np.array(True)), body.inputs, strict=False)
                going, *results = self._step(body, [*itertools.starmap(in_declared_rank, pair), *states], env, step)
            else:
                results = self._step(body, [*states, *(rows[step] for rows in sequences)], env, step)
            states = results[: len(states)]
            steps.append(results[len(states) :])
        return states, steps

    def _goes_on(self, going: Item, steps: Sequence[Any], count: int | None) -> bool:
        """Whether the condition of a Loop allows another step."""
        known = np.array(True) if going is None else self.items.array(going)
        if known is None and (not steps or count is None):
            raise NotCountedError("its condition depends on input values or on unknown sizes")
        if known is None:
            raise NotCountedError(f"its condition depends on input values and may end the loop at step {len(steps)}")
        return bool(np.all(known))

    def _sequence(self, item: Item, axis: int) -> Sequence[Item]:
        """The rows of a sequence along an axis."""
        rank = self.items.rank(item)
        if axis and rank is None:
            raise NotCountedError("the rank of a sequence is unknown")
        if not axis or axis % (rank or 1) == 0:
            rows = self.items.rows(item)
            if rows is None:
                raise NotCountedError("the length of its sequences is unknown")
            return rows
        order = [axis % rank, *(k for k in range(rank) if k != axis % rank)]  # type: ignore[operator, arg-type]
        known = self.items.array(item)
        if known is not None:
            return tuple(np.transpose(known, order))
        length = (self.items.sizes(item) or {axis: None})[axis]
        if length is None:
            raise NotCountedError("the length of its sequences is unknown")
        first = written(self.b.transpose(self.items.value(item), order, "steps_first"))
        self.items.ranks[first] = len(order)
        return tuple(Row(first, index, length) for index in range(length))

    def _stack(self, rows: Sequence[Item], axis: int, output: ir.Value) -> Item:
        """The outputs of all steps, stacked on an axis. output: of the body."""
        if not rows:
            shape, dtype = self._shape_info.verified_shape(output), self._shape_info.dtype(output)
            sizes = [size for size in shape or () if isinstance(size, int)]
            if axis or dtype is None or shape is None or len(sizes) < len(shape):
                raise NotCountedError(f"it has zero iterations, and the shape of '{output.name}' is unknown")
            return np.zeros((0, *sizes), dtype.numpy())
        if not axis:
            return Table(tuple(rows))
        rank = self.items.rank(rows[0])
        shape = self._shape_info.shape(output) if rank is None else None
        rank = rank if shape is None else len(shape)
        if axis < 0 and rank is None:
            raise NotCountedError(f"it stacks '{output.name}' along axis {axis}, but the rank of this value is unknown")
        axis = axis if axis >= 0 else axis + (rank or 0) + 1
        parts = [self.b.unsqueeze(self.items.value(row), [axis]) for row in rows]
        return written(self.b.concat(parts, axis, "stacked"))

    def _check(self, step: int, count: int | None, before: int) -> None:
        """Raise if the steps need too many nodes, estimated from the first two."""
        written = len(self.b.nodes) - before
        estimate = written if step < 2 or count is None else written * count // step
        if max(estimate, len(self.b.nodes), (count or step) if step < 2 or count is None else 0) > self._max_nodes:
            steps = f"{count} steps" if count is not None else f"more than {step} steps"
            raise NotCountedError(
                f"unrolling {steps} emits about {max(estimate, count or step)} nodes, but only"
                f" {self._max_nodes} more nodes are allowed; raise the limit (--max-nodes N)"
            )

    # -- one step ------------------------------------------------------------------------------------------------------

    def _inputs(self, node: ir.Node, env: Env) -> list[Item]:
        return [None if value is None else env.get(value, value) for value in node.inputs]

    def _step(self, body: ir.Graph, arguments: Sequence[Item], env: Env, step: int) -> list[Item]:
        if len(arguments) != len(body.inputs):
            raise NotCountedError(
                f"its body has {len(body.inputs)} inputs, but the node passes {len(arguments)} values"
            )
        with self.b.scope(f"t{step}"):
            return self._body(body, {**env, **dict(zip(body.inputs, arguments, strict=True))})

    def _body(self, body: ir.Graph, env: Env) -> list[Item]:
        inner = dict(env)
        for value in body.initializers.values():
            if value not in inner and value.const_value is not None:
                inner[value] = self.items.weight(value.const_value)
        for node in body:
            if node not in self._parts:
                self._parts[node] = _gemm_parts(node)
            parts = self._parts[node] or [node]
            for part in parts:
                results = self._node(part, inner)
                if self._varies(part) or any(subgraphs(part)):
                    self._varying.update((*part.outputs, *node.outputs))
                inner.update(zip(part.outputs, results, strict=False))
            if parts[-1] is not node:
                inner[node.outputs[0]] = inner[parts[-1].outputs[0]]
        return [inner.get(value, value) for value in body.outputs]

    def _node(self, node: ir.Node, env: Env) -> Sequence[Item]:
        own = node.domain in DEFAULT_DOMAINS
        inputs = self._inputs(node, env)
        if own and node.op_type in LOOPS and self._is_counted(node, inputs):
            return self.results(node, env)
        if own and node.op_type == "If":
            condition = self.items.array(inputs[0])
            if condition is not None:
                branch = "then_branch" if np.all(condition) else "else_branch"
                return self._body(node.attributes[branch].as_graph(), env)
        if any(subgraphs(node)):
            return self._copied(node, inputs, env)
        key = None if node.op_type in NONDETERMINISTIC else (node, *map(key_of, inputs))
        if own and key is not None:
            if key in self._written:
                return self._written[key]
            call = Call(node, inputs, self.items)
            results = self._evaluated(node, inputs)
            if results is None and node.op_type in RULES and (item := RULES[node.op_type](call)) is not None:
                results = [item]
            if results is None and not self._varies(node):
                results = of_all_rows(call, self._steps, self.b.opset)
            if results is not None:
                self._written[key] = results
                return results
        copied = self._copied(node, inputs, env)
        if key is not None:
            self._written[key] = copied
        return copied

    def _varies(self, node: ir.Node) -> bool:
        """Whether a node depends on the states, except through the index of a row."""
        read = node.inputs[:1] if node.op_type in ("Gather", "Slice") else node.inputs
        return any(value in self._varying for value in read)

    def _is_counted(self, node: ir.Node, inputs: Sequence[Item]) -> bool:
        """Whether the trip count of a nested loop is known in this step, or is a size."""
        if node.op_type == "Scan":
            return self.items.count(inputs[-1]) is not None
        limit, going = inputs[:2]
        counted = limit is not None and self.items.array(limit) is not None
        return counted and (going is None or self.items.array(going) is not None)

    def _evaluated(self, node: ir.Node, inputs: Sequence[Item]) -> list[Item] | None:
        """The results if all inputs are known and small."""
        if node.op_type == "Constant":
            tensor = known_tensor(node.outputs[0])
            return None if tensor is None else [self.items.weight(tensor)]
        arrays = [None if item is None else self.items.array(item) for item in inputs]
        if not inputs or any(array is None and item is not None for array, item in zip(arrays, inputs, strict=True)):
            return None
        try:
            computed = evaluate_node(node, arrays, self.b.opset)
        except Exception:  # onnx's evaluator may raise anything; the runtime then computes the node
            return None
        if sum(array.size for array in computed) > FEW or any(array.dtype.kind not in "biuf" for array in computed):
            return None
        outputs = iter(computed)
        return [np.asarray(next(outputs)) if value.name else None for value in node.outputs]

    def _copied(self, node: ir.Node, inputs: Sequence[Item], env: Env) -> list[Item]:
        """A copy of a node and its bodies, with outer values replaced by those of the step."""
        outputs: list[ir.Value] = []
        for value in node.outputs:
            outputs.append(self.b.new_value(str(value.name)) if value.name else ir.Value(name=""))
            outputs[-1].type = value.type
        copy = ir.Node(
            node.domain, node.op_type, [self.items.value(item) for item in inputs],
            [self._attribute(attribute, env) for attribute in node.attributes.values()],
            overload=node.overload, outputs=outputs, name=self.b.unique_name(node.name or node.op_type),
            metadata_props=dict(node.metadata_props),
        )  # fmt: skip
        self.b.append(copy)
        return list(outputs)

    def _attribute(self, attribute: ir.Attr, env: Env) -> ir.Attr:
        if attribute.type != ir.AttributeType.GRAPH or attribute.is_ref():
            return attribute
        graph = attribute.as_graph().clone(allow_outer_scope_values=True)
        for inner in with_bodies(graph):
            for index, value in enumerate(inner.inputs):
                if value is not None and value in env:
                    inner.replace_input_with(index, self.items.value(env[value]))
        _pass_on(graph, env, self.items)
        self._rename(graph)
        return ir.AttrGraph(attribute.name, graph)

    def _rename(self, graph: ir.Graph) -> None:
        """Give the values of a copied body new names, because branches may be folded into one graph later."""
        for value in list(graph.initializers.values()):
            del graph.initializers[str(value.name)]
            value.name = self.b.unique_name(str(value.name))
            graph.initializers[value.name] = value
        for value in (*graph.inputs, *(out for node in graph for out in node.outputs)):
            if value.name:
                value.name = self.b.unique_name(value.name)
        for node in graph:
            for _, body in subgraphs(node):
                self._rename(body)


def _pass_on(graph: ir.Graph, env: Env, items: Items) -> None:
    """Replace outer values among the outputs of a body and its nested bodies with those of the step."""
    for index, value in enumerate(graph.outputs):
        if value in env:
            graph.outputs[index] = items.value(env[value])  # type: ignore[assignment]
    for node in graph:
        for _, body in subgraphs(node):
            _pass_on(body, env, items)


def _changed(inputs: Sequence[ir.Value], outputs: Sequence[ir.Value]) -> Iterator[ir.Value]:
    """The states that a step changes, by index."""
    for before, after in zip(inputs, outputs, strict=False):
        if behind_identity(after) is not before:
            yield before


def behind_identity(value: ir.Value) -> ir.Value:
    """The value behind Identity nodes."""
    while (node := value.producer()) is not None and node.op_type == "Identity" and node.inputs[0] is not None:
        value = node.inputs[0]
    return value


def _gemm_parts(node: ir.Node) -> list[ir.Node]:
    """A MatMul and an Add that replace a Gemm, so that all steps share the product of X; [] for other nodes."""
    alpha, beta = (get_attribute(node, name, ir.AttributeType.FLOAT, 1.0) for name in ("alpha", "beta"))
    if node.op_type != "Gemm" or node.domain != "" or alpha != 1 or beta not in (0, 1):
        return []
    factors, parts = list(node.inputs[:2]), list[ir.Node]()
    for index, flag in enumerate(("transA", "transB")):
        if get_attribute(node, flag, ir.AttributeType.INT, 0):
            parts.append(ir.Node("", "Transpose", [factors[index]], [ir.AttrInt64s("perm", [1, 0])]))
            factors[index] = parts[-1].outputs[0]
    parts.append(ir.Node("", "MatMul", factors))
    if len(node.inputs) > 2 and node.inputs[2] is not None and beta == 1:
        parts.append(ir.Node("", "Add", [parts[-1].outputs[0], node.inputs[2]]))
    for index, part in enumerate(parts):
        last = part is parts[-1]
        part.outputs[0].name = f"{node.outputs[0].name}{'' if last else f'/part_{index}'}"
        part.outputs[0].type = node.outputs[0].type
    return parts


def _is_always_true(body: ir.Graph) -> bool:
    """Whether the condition output of a body is its condition input or true."""
    value = behind_identity(body.outputs[0])
    return value is body.inputs[1] or known_tensor(value) is not None
