"""Random Loops and Scans: states, trip counts, conditions, captures, loops in loops, outputs of rank 0 to 4."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import onnx
from onnx import TensorProto, helper

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


@dataclasses.dataclass
class Random:
    """A model, and whether its loops can be counted; why not, else."""

    model: onnx.ModelProto
    refused: str = ""


class _Body:
    """Random nodes on values of one shape."""

    def __init__(self, r: random.Random, prefix: str, shape: tuple[int, ...]) -> None:
        self.r, self.prefix, self.shape = r, prefix, shape
        self.nodes: list[onnx.NodeProto] = []
        self.inits: list[onnx.TensorProto] = []
        self.count = 0

    def name(self, what: str) -> str:
        self.count += 1
        return f"{self.prefix}{what}{self.count}"

    def const(self, array: np.ndarray) -> str:
        name = self.name("c")
        self.inits.append(onnx.numpy_helper.from_array(array, name))
        return name

    def op(self, op_type: str, *inputs: str, **attributes: object) -> str:
        name = self.name(op_type.lower())
        self.nodes.append(helper.make_node(op_type, list(inputs), [name], name=name, **attributes))
        return name

    def step(self, values: list[str], rng: np.random.Generator) -> str:
        """One more value of the shape, of some of these."""
        pick = lambda: self.r.choice(values)  # noqa: E731
        kind = self.r.randrange(7)
        if kind == 0:
            return self.op(self.r.choice(["Tanh", "Sigmoid", "Relu", "Neg", "Abs"]), pick())
        if kind == 1 and len(self.shape) >= 2:
            return self.op("MatMul", pick(), self.const(rng.normal(size=(self.shape[-1],) * 2).astype("f4") * 0.4))
        if kind == 2:
            return self.op("Mul", pick(), self.const(rng.normal(size=self.shape[-1:]).astype("f4") * 0.7))
        if kind == 3 and self.shape and self.shape[-1] % 2 == 0:
            halves = [self.name("half"), self.name("half")]
            axis = len(self.shape) - 1
            self.nodes.append(helper.make_node("Split", [pick()], halves, axis=axis, name=halves[0]))
            return self.op("Concat", *halves[::-1], axis=axis)
        if kind == 4:
            return self.op("Where", self.op("Greater", pick(), self.const(np.zeros((), "f4"))), pick(), pick())
        return self.op(self.r.choice(["Add", "Sub", "Mul"]), pick(), pick())


def _info(name: str, kind: int = FLOAT, shape: tuple[int, ...] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def random_model(seed: int) -> Random:
    r, rng = random.Random(seed), np.random.default_rng(seed)
    rank = r.choice([1, 2, 2, 2, 3, 3])
    shape = tuple(r.choice([1, 2, 3, 4]) for _ in range(rank))
    steps = r.choice([0, 1, 2, 3, 5, 8]) if r.random() < 0.3 else r.choice([2, 3, 4, 6])
    main = _Body(r, "m_", shape)
    inputs = [_info("x", FLOAT, (max(steps, 1), *shape)), _info("a", FLOAT, shape)]
    if r.random() < 0.4:
        refused, outs = _scan(main, r, rng, shape, max(steps, 1))
    else:
        refused, outs = _loop(main, r, rng, shape, steps, inputs)
    graph = helper.make_graph(main.nodes, "g", inputs, [_info(name) for name in outs], main.inits)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", r.choice([13, 16, 17, 18]))], ir_version=8)
    return Random(model, refused)


def _scan(main: _Body, r: random.Random, rng: np.random.Generator, shape: tuple[int, ...], steps: int):
    body = _Body(r, "b_", shape)
    states = [f"s{k}" for k in range(r.choice([0, 1, 1, 2]))]
    sequences = [f"q{k}" for k in range(r.choice([1, 1, 2]))]
    values = [*states, *sequences, "a"]
    for _ in range(r.randrange(1, 6)):
        values.append(body.step(values, rng))
    finals = [body.op("Identity", r.choice(values)) for _ in states]
    stacked = [body.op("Identity", r.choice(values)) for _ in range(r.choice([0, 1, 2]) or (0 if states else 1))]
    graph = helper.make_graph(body.nodes, "body", [_info(n, FLOAT, shape) for n in (*states, *sequences)],
                              [_info(n, FLOAT, shape) for n in (*finals, *stacked)], body.inits)  # fmt: skip
    attributes: dict[str, object] = {"num_scan_inputs": len(sequences)}
    ins = ["x" for _ in sequences]
    if r.random() < 0.5:
        attributes["scan_input_directions"] = [r.choice([0, 1]) for _ in sequences]
        if stacked:
            attributes["scan_output_directions"] = [r.choice([0, 1]) for _ in stacked]
    if r.random() < 0.5:
        axes = [r.randrange(len(shape) + 1) for _ in sequences]
        for k, axis in enumerate(axes):
            perm = [*range(1, axis + 1), 0, *range(axis + 1, len(shape) + 1)]
            ins[k] = main.op("Transpose", "x", perm=perm)
        attributes["scan_input_axes"] = [axis if r.random() < 0.7 else axis - len(shape) - 1 for axis in axes]
        if stacked:
            attributes["scan_output_axes"] = [r.randrange(len(shape) + 1) for _ in stacked]
    outs = [main.name("out") for _ in (*finals, *stacked)]
    main.nodes.append(helper.make_node("Scan", ["a"] * len(states) + ins, outs, name="scan", body=graph, **attributes))
    return "", outs


def _loop(main: _Body, r: random.Random, rng: np.random.Generator, shape: tuple[int, ...], steps: int, inputs: list):
    body, refused = _Body(r, "b_", shape), ""
    states = [f"s{k}" for k in range(r.choice([1, 1, 2]))]
    row = body.op("Gather", "x", "i", axis=0) if steps else "a"
    values = [*states, "a", row]
    for _ in range(r.randrange(1, 6)):
        values.append(body.step(values, rng))
    extra, extra_inits, extra_outs, extra_infos = [], [], [], []
    if r.random() < 0.25:  # a list of rows, written into at each step
        main.inits.append(onnx.numpy_helper.from_array(np.zeros((max(steps, 1), *shape), "f4"), "list0"))
        index = body.op("Unsqueeze", "i", body.const(np.array([0], "i8")))
        if r.random() < 0.5:
            place = body.op("Unsqueeze", index, body.const(np.array([0], "i8")))
            written = body.op(
                "ScatterND", "lst", place, body.op("Unsqueeze", r.choice(values), body.const(np.array([0], "i8")))
            )
        else:
            zero, one, most = (body.const(np.array([k], "i8")) for k in (0, 1, 2**31 - 1))
            before = body.op("Slice", "lst", zero, index, zero)
            after = body.op("Slice", "lst", body.op("Add", index, one), most, zero)
            written = body.op("Concat", before, body.op("Unsqueeze", r.choice(values), zero), after, axis=0)
        extra, extra_inits, extra_outs = ["lst"], ["list0"], [written]
        extra_infos = [_info("lst", FLOAT, (max(steps, 1), *shape))]
    if r.random() < 0.25:
        values.append(_inner(body, r, rng, shape, values))
    if r.random() < 0.25:
        values.append(_branch(body, r, rng, shape, values))
    finals = [body.op("Identity", r.choice(values)) for _ in states]
    stacked = [body.op("Identity", r.choice(values)) for _ in range(r.choice([0, 1, 2]))]
    if r.random() < 0.2:
        stacked.append(body.op("Cast", "i", to=FLOAT))
    kind, trips, first = r.randrange(6), "trips", "yes"
    if kind <= 2:
        going = body.op("Identity", "go")
        main.inits.append(onnx.numpy_helper.from_array(np.array(steps, "i8"), "trips"))
    elif kind == 3:  # i + 1 < T
        going = body.op("Less", body.op("Add", "i", body.const(np.array(1, "i8"))), body.const(np.array(steps, "i8")))
        main.inits.append(onnx.numpy_helper.from_array(np.array(r.choice([steps, 1000]), "i8"), "trips"))
    elif kind == 4:  # from a size
        going = body.op("Identity", "go")
        trips = main.op("Gather", main.op("Shape", "x"), main.const(np.array(0, "i8")), axis=0)
        steps = max(steps, 1)
    else:
        going = body.op("Identity", "go")
        if r.random() < 0.5:
            refused = "its trip count is unknown"
            inputs.append(_info("trips", INT64, ()))
        else:
            refused = "its condition depends on input values and may end the loop"
            total = body.op("ReduceSum", r.choice(values), keepdims=0)
            going = body.op("Less", total, body.const(np.array(1e9, "f4")))
            main.inits.append(onnx.numpy_helper.from_array(np.array(steps, "i8"), "trips"))
            refused = refused if steps > 1 else ""
    main.inits.append(onnx.numpy_helper.from_array(np.array(True), "yes"))
    if kind == 3:
        main.inits.append(onnx.numpy_helper.from_array(np.array(steps > 0), "maybe"))
        first = "maybe"
    graph = helper.make_graph(
        body.nodes, "body",
        [_info("i", INT64, ()), _info("go", BOOL, ()), *(_info(n, FLOAT, shape) for n in states), *extra_infos],
        [_info(going, BOOL, ()), *(_info(n, FLOAT, shape) for n in finals), *(_info(n) for n in extra_outs), *(_info(n) for n in stacked)],
        body.inits,
    )  # fmt: skip
    if steps == 0:
        stacked_used = 0
        del graph.output[1 + len(finals) + len(extra_outs) :]
    else:
        stacked_used = len(stacked)
    outs = [main.name("out") for _ in range(len(finals) + len(extra) + stacked_used)]
    main.nodes.append(
        helper.make_node("Loop", [trips, first, *(["a"] * len(states)), *extra_inits], outs, name="loop", body=graph)
    )
    return refused, outs


def _inner(body: _Body, r: random.Random, rng: np.random.Generator, shape: tuple[int, ...], values: list[str]) -> str:
    """A loop in the loop, of a known number of trips or of that of the outer one."""
    inner = _Body(r, "n_", shape)
    own = ["t", r.choice(values)]
    for _ in range(2):
        own.append(inner.step(own, rng))
    out, going = inner.op("Identity", own[-1]), inner.op("Identity", "inner_go")
    graph = helper.make_graph(
        inner.nodes, "inner", [_info("inner_i", INT64, ()), _info("inner_go", BOOL, ()), _info("t", FLOAT, shape)],
        [_info(going, BOOL, ()), _info(out, FLOAT, shape)], inner.inits,
    )  # fmt: skip
    trips = "i" if r.random() < 0.4 else body.const(np.array(r.choice([1, 2, 3]), "i8"))
    name = body.name("inner")
    body.nodes.append(helper.make_node("Loop", [trips, "", r.choice(values)], [name], name=name, body=graph))
    return name


def _branch(body: _Body, r: random.Random, rng: np.random.Generator, shape: tuple[int, ...], values: list[str]) -> str:
    """An If on the step, or on data."""
    branches = {}
    for which in ("then_branch", "else_branch"):
        inner = _Body(r, f"{which[0]}{body.count}_", shape)
        out = inner.step(list(values), rng)
        branches[which] = helper.make_graph(inner.nodes, which, [], [_info(out, FLOAT, shape)], inner.inits)
    if r.random() < 0.6:
        condition = body.op("Less", "i", body.const(np.array(2, "i8")))
    else:
        condition = body.op("Less", body.op("ReduceSum", r.choice(values), keepdims=0), body.const(np.array(0, "f4")))
    name = body.name("if")
    body.nodes.append(helper.make_node("If", [condition], [name], name=name, **branches))
    return name
