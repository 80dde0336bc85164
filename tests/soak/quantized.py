"""Random DynamicQuantizeLSTM nodes, compared with onnxruntime's own kernel on one thread.

    python tests/soak/quantized.py [--count N] [--seed N]
"""  # fmt: skip

from __future__ import annotations

import argparse
import dataclasses

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import rnn_lower

FORMS = ("scan", "loop", "unroll")


@dataclasses.dataclass(frozen=True)
class Quantized:
    """One random node. per_channel: a scale for each column.  kind: element type of the weights."""

    seed: int
    T: int = 6
    N: int = 2
    I: int = 5
    H: int = 7
    direction: str = "forward"
    kind: str = "int8"
    per_channel: bool = False
    optional: tuple[str, ...] = ("B", "initial_h", "initial_c")
    outputs: tuple[str, ...] = ("Y", "Y_h", "Y_c")
    lengths: bool = False
    clip: float | None = None
    input_forget: int = 0
    opset: int = 17
    dynamic: bool = False


def random_case(seed: int) -> Quantized:
    rng = np.random.default_rng(seed)
    names = ["B", "initial_h", "initial_c", "P"]
    optional = tuple(name for name in names if rng.random() < 0.6)
    outputs = tuple(name for name in ("Y", "Y_h", "Y_c") if rng.random() < 0.7) or ("Y",)
    return Quantized(
        seed, T=int(rng.integers(1, 9)), N=int(rng.integers(1, 5)), I=int(rng.integers(1, 12)), H=int(rng.integers(1, 20)),
        direction=str(rng.choice(["forward", "reverse", "bidirectional"])), kind=str(rng.choice(["int8", "uint8"])),
        per_channel=bool(rng.random() < 0.5), optional=optional, outputs=outputs, lengths=bool(rng.random() < 0.4),
        clip=float(rng.uniform(0.2, 3)) if rng.random() < 0.3 else None, input_forget=int(rng.random() < 0.2),
        opset=int(rng.choice([11, 13, 17, 21])), dynamic=bool(rng.random() < 0.5),
    )  # fmt: skip


def build(case: Quantized) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model of one node, and inputs for it."""
    rng = np.random.default_rng(case.seed)
    D, H = 2 if case.direction == "bidirectional" else 1, case.H
    limits = (-127, 128) if case.kind == "int8" else (0, 256)
    scales = (D, 4 * H) if case.per_channel else (D,)
    zero = 0 if case.kind == "int8" else int(rng.integers(100, 150))
    if case.kind == "int8" and not case.per_channel:
        zero = int(rng.integers(-10, 10))
    held: dict[str, np.ndarray] = {}
    for name, rows in (("W", case.I), ("R", H)):
        held[name] = rng.integers(*limits, (D, rows, 4 * H)).astype(case.kind)
        held[f"{name}_scale"] = rng.uniform(0.002, 0.01, scales).astype(np.float32)
        held[f"{name}_zero_point"] = np.full(scales, zero, case.kind)
    shapes = {"B": (D, 8 * H), "initial_h": (D, case.N, H), "initial_c": (D, case.N, H), "P": (D, 3 * H)}
    held.update({name: rng.normal(0, 0.4, shapes[name]).astype(np.float32) for name in case.optional})
    if case.lengths:
        # Without Y the kernel reads memory that nothing has written where a row is empty: no two runs are alike.
        held["sequence_lens"] = rng.integers("Y" not in case.outputs, case.T + 1, case.N).astype(np.int32)
        held["sequence_lens"][rng.integers(case.N)] = rng.integers(1, case.T + 1)
    feeds = {"X": rng.normal(0, 1, (case.T, case.N, case.I)).astype(np.float32)}
    names = ["X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P"]
    names += [f"{name}_{what}" for name in "WR" for what in ("scale", "zero_point")]
    moving = [name for name in ("sequence_lens", "initial_h", "initial_c") if case.dynamic and name in held]
    feeds.update({name: held.pop(name) for name in moving})
    attributes = {} if case.clip is None else {"clip": case.clip}
    node = helper.make_node(
        "DynamicQuantizeLSTM", [name if name in held or name in feeds else "" for name in names],
        [name if name in case.outputs else "" for name in ("Y", "Y_h", "Y_c")], name="lstm", domain="com.microsoft",
        hidden_size=H, direction=case.direction, input_forget=case.input_forget, **attributes,
    )  # fmt: skip
    free = {"X": ("T", "N", case.I), "sequence_lens": ("N",)} if case.dynamic else {}
    inputs = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype),
            free.get(name, (D, "N", H) if case.dynamic else array.shape),
        )
        for name, array in feeds.items()
    ]  # fmt: skip
    graph = helper.make_graph(
        [node], "quantized", inputs,
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in case.outputs],
        [numpy_helper.from_array(array, name) for name, array in held.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", case.opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), feeds


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Outputs on onnxruntime, on one thread: on several the kernel quantizes parts of a batch by themselves."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def difference(case: Quantized, form: str) -> float:
    """The largest difference of the lowered model from the kernel."""
    model, feeds = build(case)
    lowered = rnn_lower.lower(model, form=form, dims={"X": feeds["X"].shape} if form == "unroll" else None)
    assert not any(node.domain for node in lowered.graph.node)
    pairs = zip(run(model, feeds), run(lowered, feeds), strict=True)
    return max(float(np.max(np.abs(a - b), initial=0.0)) for a, b in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    worst = []
    for index in range(arguments.count):
        case = random_case(arguments.seed + index)
        worst.append((difference(case, FORMS[index % 3]), FORMS[index % 3], case))
    worst.sort(key=lambda row: -row[0])
    for value, form, case in worst[:8]:
        print(f"{value:.2e} {form} {case}")
    print(f"{sum(value > 1e-5 for value, *_ in worst)} of {len(worst)} differ by more than 1e-5")


if __name__ == "__main__":
    main()
