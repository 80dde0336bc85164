"""How far each activation, as it is emitted, is from the real function: over all float32 values, in ULP.

    python tests/soak/activations.py [--include NAME]... [--every 1]

Each activation is lowered for every target and at the opsets at which it is written in another way; the emitted nodes
run on onnxruntime and are compared with the same function in float64. An error in ULP is counted in steps of float32
at the exact result. Results below 2^-126 count in steps of 2^-149, as float32 has them. Prints rows for
docs/semantics.md. --every 4096 takes one value, at random, of each 4096 that lie side by side, and all around edges.
"""  # fmt: skip

from __future__ import annotations

import argparse
import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "support"))

import numpy as np
import onnx
from judge import every_node
from onenode import Case, build
from strategies import ACTIVATIONS, MEASURED

import rnn_lower
from rnn_lower.checking import runners
from rnn_lower.modelio.document import Document
from rnn_lower.proving.exact import equations, reference

PARAMETERS = {"Affine": (0.75, 0.1), "ScaledTanh": (1.7159, 0.6667), "ThresholdedRelu": (1.0, None)}
"""alpha and beta where the defaults would make the function constant, or hide its threshold."""

EDGES: dict[str, Callable[[float, float], tuple[float, ...]]] = {
    "relu": lambda a, b: (0.0,),
    "leakyrelu": lambda a, b: (0.0,),
    "thresholdedrelu": lambda a, b: (a,),
    "hardsigmoid": lambda a, b: tuple(sorted(((0 - b) / a, (1 - b) / a))) if a else (),
    "elu": lambda a, b: (0.0,),
}
"""Where an activation goes from one formula to another."""

CHUNK = 1 << 14
OPSETS = (9, 17)
NOT_ITSELF = {
    "Squeeze", "Unsqueeze", "MatMul", "Gemm", "Reshape", "Identity", "Concat", "Constant", "Shape", "Gather", "Transpose",
}  # fmt: skip


@dataclasses.dataclass
class Variant:
    """One way of writing an activation; worst: the largest error in ULP so far and the value where it is."""

    activation: str
    emitted: str
    targets: list[str]
    run: Callable[[np.ndarray], np.ndarray]
    worst: float = 0.0
    at: float = 0.0
    largest: float = 0.0

    def add(self, x: np.ndarray, exact: np.ndarray, units: np.ndarray) -> None:
        with np.errstate(all="ignore"):
            error = np.abs(self.run(x) - exact)
            error[np.isinf(exact) & np.isnan(error)] = 0.0  # inf where inf belongs
            ulps = error * units
        place = int(np.argmax(ulps))  # a NaN comes first
        if not ulps[place] <= self.worst:
            self.worst, self.at = float(ulps[place]), float(x[place])
        np.divide(error, np.maximum(1.0, np.abs(exact)), out=ulps)
        self.largest = max(self.largest, float(np.nanmax(ulps)))


_PER_UNIT = np.ldexp(1.0, 150 - np.maximum(np.arange(256), 1))
"""One over the unit in the last place of float32, by the bits of the exponent."""


def per_unit(exact: np.ndarray) -> np.ndarray:
    """One over the unit in the last place of float32 at each number."""
    return _PER_UNIT[exact.astype(np.float32).view(np.uint32) >> 23 & 255]


def case_of(name: str, opset: int) -> Case:
    """One step of one unit whose pre-activation is its input: W is 1 and there is no state."""
    alpha, beta = PARAMETERS.get(name, (None, None))
    return Case(
        op="RNN", T=1, N=1, I=1, H=1, opset=opset, activations=(name,), outputs=("Y_h",),
        alpha=None if alpha is None else (alpha,), beta=None if beta is None else (beta,),
    )  # fmt: skip


def variants(name: str) -> list[Variant]:
    """The ways in which targets and opsets have an activation written."""
    found: dict[str, Variant] = {}
    for target, opset in ((target, opset) for opset in OPSETS for target in MEASURED):
        model, _ = build(case_of(name, opset))
        for tensor in model.graph.initializer:
            if tensor.name == "W":
                tensor.CopyFrom(onnx.numpy_helper.from_array(np.ones((1, 1, 1), np.float32), "W"))
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.shape.dim[1].dim_param = "N"
        model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "N"
        try:
            lowered = rnn_lower.lower(model, form="unroll", target=target, dims={"N": CHUNK})
        except rnn_lower.RnnLowerError:
            continue  # the target does not take this opset
        emitted = " ".join(node.op_type for node in every_node(lowered) if node.op_type not in NOT_ITSELF)
        if emitted not in found:
            found[emitted] = Variant(name, emitted, [], runner(lowered))
        if target not in found[emitted].targets:
            found[emitted].targets.append(target)
    return list(found.values())


def runner(model: onnx.ModelProto) -> Callable[[np.ndarray], np.ndarray]:
    run = runners.open_onnxruntime(Document(model))
    return lambda x: run({"X": x.reshape(1, -1, 1)})[0].reshape(-1)


def exact(name: str) -> Callable[[np.ndarray], np.ndarray]:
    """The function in float64, for float32 values."""
    given = PARAMETERS.get(name, (None, None))
    (alpha, beta), function = equations.PARAMETERS[name.lower()], reference.ACTIVATIONS[name.lower()]
    a, b = (
        float(np.float32((default or 0.0) if number is None else number))
        for number, default in zip(given, (alpha, beta), strict=True)
    )

    def sigmoid(x: np.ndarray, a: float, b: float) -> np.ndarray:
        small = np.exp(-np.abs(x))  # the reference subtracts from 1, which is not exact enough far out
        return np.where(x >= 0, 1.0, small) / (1.0 + small)

    chosen = sigmoid if name == "Sigmoid" else function

    def run(x: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return np.asarray(chosen(x.astype(np.float64), a, b))

    return run


def values(every: int, seed: int = 0) -> Iterator[np.ndarray]:
    """float32 values by their bit patterns, but for NaN and the infinities, in chunks of one size."""
    rng = np.random.default_rng(seed)
    for start in range(0, 1 << 32, CHUNK * every):
        bits = np.arange(start, start + CHUNK * every, every, dtype=np.uint64)
        bits = bits + rng.integers(0, every, bits.shape, np.uint64) if every > 1 else bits
        x = bits[bits < (1 << 32)].astype(np.uint32).view(np.float32)
        x = x[np.isfinite(x)]
        if x.size:
            yield np.resize(x, CHUNK)


def around(name: str) -> Iterator[np.ndarray]:
    """All values near those where an activation has an edge or is 0: there most digits cancel."""
    alpha, beta = equations.PARAMETERS[name.lower()]
    a, b = (
        (default or 0.0) if number is None else number
        for number, default in zip(PARAMETERS.get(name, (None, None)), (alpha, beta), strict=True)
    )
    edges = EDGES.get(name.lower(), lambda a, b: ())(a, b)
    for edge in {*edges, -b / a if name == "Affine" else 0.0}:
        bits = int(np.float32(edge).view(np.uint32)) + np.arange(-CHUNK // 2, CHUNK // 2)
        yield np.maximum(bits, 0).astype(np.uint32).view(np.float32)


def measure(name: str, every: int) -> list[Variant]:
    """The ways of writing an activation, measured."""
    found, function = variants(name), exact(name)
    for x in itertools.chain(values(every), around(name)):
        wanted = function(x)
        with np.errstate(over="ignore"):  # beyond float32, infinity is the nearest
            wanted[np.isinf(wanted.astype(np.float32))] *= np.inf
        units = per_unit(wanted)
        for variant in found:
            variant.add(x, wanted, units)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--include", action="append", choices=ACTIVATIONS)
    parser.add_argument("--every", type=int, default=1)
    arguments = parser.parse_args()
    for name in arguments.only or ACTIVATIONS:
        for variant in measure(name, arguments.every):
            error = f"{variant.worst:.3g} at {variant.at:.6g} | {variant.largest:.2g}"
            print(f"| {name} | `{variant.emitted}` | {error} |", ", ".join(variant.targets), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
