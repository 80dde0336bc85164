"""Soak: faults planted in streaming models. The proof rejects all of them, the check nearly all.

    python tests/soak/streamfaults.py --minutes 10 --seed 1 [--count N]

Random stacks of layers are streamed, and one thing is made wrong in what came out: frames that are remembered are one
too few or those before, a state is not handed on, not read, or handed to another node, a delay is missing. Ends with
`N faults: N rejected by the proof, N by the check`.
"""  # fmt: skip

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "support"))

import numpy as np
import onnx
from layers import random_stack
from onnx import helper, numpy_helper
from soaking import soak_parser

import rnn_lower
from rnn_lower import api
from rnn_lower.modelio.document import Document
from rnn_lower.options import Options
from rnn_lower.streaming import stream_model
from rnn_lower.streaming.plan import State

Fault = Callable[[onnx.GraphProto, State], bool]
"""Changes a graph; False where this state has nothing of the kind."""


def _maker(graph: onnx.GraphProto, name: str) -> onnx.NodeProto | None:
    """The node that computes a value, Identities passed over."""
    made = {out: node for node in graph.node for out in node.output}
    node = made.get(name)
    while node is not None and node.op_type == "Identity":
        node = made.get(node.input[0])
    return node


def _constant(graph: onnx.GraphProto, name: str) -> np.ndarray | None:
    for tensor in graph.initializer:
        if tensor.name == name:
            return numpy_helper.to_array(tensor)
    node = _maker(graph, name)
    return numpy_helper.to_array(node.attribute[0].t) if node is not None and node.op_type == "Constant" else None


def _put(graph: onnx.GraphProto, before: onnx.NodeProto, *nodes: onnx.NodeProto) -> None:
    place = next(k for k, node in enumerate(graph.node) if node is before)
    for node in reversed(nodes):
        graph.node.insert(place, node)


def _tail(graph: onnx.GraphProto, state: State) -> tuple[onnx.NodeProto, int, int] | None:
    """The Slice that keeps the last frames, how many, and along which axis."""
    node = _maker(graph, state.output)
    if node is None or node.op_type != "Slice":
        return None
    start, axis = (_constant(graph, name) for name in (node.input[1], node.input[3]))
    return None if start is None or axis is None or start[0] >= 0 else (node, -int(start[0]), int(axis[0]))


def one_frame_short(graph: onnx.GraphProto, state: State) -> bool:
    """The oldest frame that is remembered is zero."""
    if (found := _tail(graph, state)) is None:
        return False
    node, length, axis = found
    pads = [0] * len(state.shape) * 2
    pads[axis] = 1
    parts = {"short/start": [1 - length], "short/pads": pads}
    graph.initializer.extend(numpy_helper.from_array(np.array(n, np.int64), name) for name, n in parts.items())
    output, node.output[0] = node.output[0], "short/frames"
    if length == 1:
        node.output[0] = output
        graph.initializer[-2].CopyFrom(numpy_helper.from_array(np.array([-1], np.int64), "short/start"))
        node.output[0] = "short/one"
        _after(graph, node, helper.make_node("Sub", ["short/one", "short/one"], [output]))
        return True
    node.input[1] = "short/start"
    _after(graph, node, helper.make_node("Pad", ["short/frames", "short/pads"], [output]))
    return True


def _after(graph: onnx.GraphProto, node: onnx.NodeProto, new: onnx.NodeProto) -> None:
    graph.node.insert(next(k for k, one in enumerate(graph.node) if one is node) + 1, new)


def border_off_by_one(graph: onnx.GraphProto, state: State) -> bool:
    """The frames that are remembered are those one earlier."""
    if (found := _tail(graph, state)) is None:
        return False
    node, length, _ = found
    ends = {"off/start": -length - 1, "off/end": -1}
    graph.initializer.extend(numpy_helper.from_array(np.array([n], np.int64), name) for name, n in ends.items())
    node.input[1], node.input[2] = "off/start", "off/end"
    return True


def not_handed_on(graph: onnx.GraphProto, state: State) -> bool:
    """The state stays what it is."""
    for node in graph.node:
        for place, name in enumerate(node.output):
            if name == state.output:
                node.output[place] = "dropped"
                for user in graph.node:
                    user.input[:] = ["dropped" if one == state.output else one for one in user.input]
                graph.node.append(helper.make_node("Identity", [state.input], [state.output]))
                return True
    return False


def not_read(graph: onnx.GraphProto, state: State) -> bool:
    """Whoever reads the state gets zeros."""
    users = [node for node in graph.node if state.input in node.input]
    if not users:
        return False
    for user in users:
        user.input[:] = ["zeros" if one == state.input else one for one in user.input]
    _put(graph, graph.node[0], helper.make_node("Sub", [state.input, state.input], ["zeros"]))
    return True


def delay_missing(graph: onnx.GraphProto, state: State) -> bool:
    """Nothing is held back: the frames go on as they came, and the state stays empty."""
    if not state.input.endswith("held_in"):
        return False
    join = next(node for node in graph.node if state.input in node.input)
    made = join.output[0]
    users = [node for node in graph.node if made in node.input]
    part = next((node for node in users if node.op_type == "Slice" and node.output[0] != state.output), None)
    if part is None:
        return False
    part.op_type = "Identity"
    part.input[:] = [join.input[1]]
    del part.attribute[:]
    return not_handed_on(graph, state)


FAULTS: tuple[Fault, ...] = (one_frame_short, border_off_by_one, not_handed_on, not_read, delay_missing)


def planted(
    rng: np.random.Generator,
) -> Iterator[tuple[str, onnx.ModelProto, stream_model.StreamResult, onnx.ModelProto]]:
    """What is wrong, the model, how it was streamed, and the streaming model with the fault."""
    stack, _, told = random_stack(rng)
    if "thinned" in told:  # where frames are left out, what they rest on may be anything
        return
    model = stack.model()
    options = Options(form="loop") if rng.integers(2) else Options()
    try:
        made = stream_model.make(Document(model), stream_model.StreamOptions("T", delay=stack.cut), options)
    except rnn_lower.RnnLowerError:
        return
    lowered = made.document.write_back(made.dims)
    wanted = _outputs(model, made, lowered)
    for state in made.plan.states:
        for fault in FAULTS:
            copy = onnx.ModelProto()
            copy.CopyFrom(lowered)
            if fault(copy.graph, state) and not _are_equal(wanted, _outputs(model, made, copy)):
                yield f"{fault.__name__} of {state.input} in {told}", model, made, copy


def _outputs(
    model: onnx.ModelProto, made: stream_model.StreamResult, stream: onnx.ModelProto
) -> list[np.ndarray] | None:
    """What comes of single frames; None if it does not run."""
    rng, every = np.random.default_rng(0), made.plan.every
    sizes = {"T": 12 * every, "N": 2}
    feeds = {
        value.name: rng.uniform(-1, 1, [d.dim_value or sizes[d.dim_param] for d in value.type.tensor_type.shape.dim])
        for value in model.graph.input
    }
    try:
        session, outputs = rnn_lower.StreamingSession(stream), list[np.ndarray]()
        for k in range(12):
            axes = made.plan.inputs.items()
            chunk = {name: np.take(feeds[name], range(k * every, (k + 1) * every), axis) for name, axis in axes}
            outputs += session.run({name: x.astype(np.float32) for name, x in chunk.items()}).values()
    except rnn_lower.RnnLowerError:
        return None
    return outputs


def _are_equal(a: list[np.ndarray] | None, b: list[np.ndarray] | None) -> bool:
    """Whether a fault makes no difference, such as in a state that holds nothing, or that is read only at first."""
    if a is None or b is None:
        return False
    return all(x.shape == y.shape and np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def is_rejected(answer: Callable[[], object]) -> bool:
    """Whether a proof or check says no, or the model does not run."""
    try:
        return not answer()
    except rnn_lower.RnnLowerError:
        return True


def one_fault(rng: np.random.Generator) -> tuple[str, bool, bool] | None:
    """What was planted, whether the proof and the check reject it; None where there was nothing to plant."""
    found = list(planted(rng))
    if not found:
        return None
    told, model, made, wrong = found[int(rng.integers(len(found)))]
    proved = is_rejected(lambda: rnn_lower.prove_streaming(model, wrong))
    return told, proved, is_rejected(lambda: api.check_streaming(made, wrong))


def main() -> int:
    arguments = soak_parser(__doc__).parse_args()
    end, number, planted_faults, proved, checked = time.monotonic() + 60 * arguments.minutes, 0, 0, 0, 0
    while time.monotonic() < end and planted_faults < arguments.count:
        found = one_fault(np.random.default_rng([arguments.seed, number]))
        number += 1
        if found is None:
            continue
        told, by_proof, by_check = found
        planted_faults, proved, checked = planted_faults + 1, proved + by_proof, checked + by_check
        if not (by_proof and by_check):
            missed = " and ".join(name for name, seen in (("proof", by_proof), ("check", by_check)) if not seen)
            print(f"number {number - 1}, missed by the {missed}: {told}", file=sys.stderr)
    print(f"{planted_faults} faults: {proved} rejected by the proof, {checked} by the check")
    return 0 if proved == planted_faults and checked >= 0.95 * planted_faults else 1


if __name__ == "__main__":
    sys.exit(main())
