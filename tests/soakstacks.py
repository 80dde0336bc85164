"""Soak: random stacks, and nodes beside each other, in one loop (fuse_stacks), against the fused operators on onnxruntime, or the oracle.

    python tests/soakstacks.py [--count 20000] [--minutes 10] [--seed 5] [--failures FOLDER]

Ends with counts by feature and `N passed, N failed`; each failure is written as a .onnx with the case (.txt).
"""  # fmt: skip

from __future__ import annotations

import collections
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from beside import beside
from judge import close, every_node, judged, run_onnxruntime, run_reference
from soaking import soak_parser
from stacks import BETWEEN, GATES, TYPES, WIDTHS, any_size, chain

import rnn_lower
from rnn_lower.lowering import shared
from rnn_lower.lowering.node import OPERATORS

BOUNDED = ("Tanh", "Sigmoid", "Softsign", "HardSigmoid")
FUNCTIONS = ("Relu", "Elu", *BOUNDED)


def drawn(rng: np.random.Generator, functions: Sequence[str] = BOUNDED) -> tuple[dict[str, Any], str]:
    """What `chain` takes, and a form."""
    op = str(rng.choice(list(GATES)))
    layers, names = int(rng.integers(2, 7)), ["Y", "Y_h", "Y_c"][: 2 + (op == "LSTM")]
    case: dict[str, Any] = {
        "op": op, "layers": layers, "T": int(rng.integers(1, 9)), "N": int(rng.integers(1, 4)),
        "dynamic": bool(rng.integers(2)), "states": tuple(k for k in range(layers) if rng.random() < 0.3),
        "B": bool(rng.integers(4)), "between": str(rng.choice(list(BETWEEN))),
        "dtype": str(rng.choice(list(TYPES), p=[0.8, 0.1, 0.1])), "I": int(rng.integers(1, 6)),
        "outputs": tuple(n for n in names if rng.random() < 0.6) or ("Y",), "opset": int(rng.integers(13, 23)),
    }  # fmt: skip
    if rng.random() < 0.3:
        case["finals"] = tuple(k for k in range(layers - 1) if rng.random() < 0.5)
    if rng.random() < 0.3:
        case["clip"] = float(rng.choice([0.05, 0.3, 2.0]))
    if rng.random() < 0.4:
        case["activations"] = [str(name) for name in rng.choice(functions, len(OPERATORS[op].activations))]
    if op == "GRU" and rng.random() < 0.5:
        case["linear_before_reset"] = 1
    if op == "LSTM" and rng.random() < 0.3:
        case["input_forget"] = 1
    if case["N"] > 1 and case["between"] == "turned":
        case["between"] = "squeeze"  # joins the rows, and is no stack
    return case, str(rng.choice(["scan", "loop"]))


def drawn_beside(rng: np.random.Generator) -> tuple[dict[str, Any], str]:
    """What `beside` takes, and a form."""
    case, form = drawn(rng, FUNCTIONS)
    for name in ("layers", "between", "dynamic", "finals"):
        case.pop(name, None)
    nodes = int(rng.integers(2, 5))
    directions = [str(name) for name in rng.choice(["forward", "reverse", "bidirectional"], int(rng.integers(1, 4)))]
    case |= {"nodes": nodes, "blocks": int(rng.integers(1, 4)), "directions": tuple(directions)}
    if rng.random() < 0.3:
        case |= {"one_x": True, "dynamic": bool(rng.integers(2)), "blocks": 1}
    if len(set(case.get("activations", []))) > 1 and case["op"] != "RNN":
        case["directions"] = tuple(directions[:1])
    if "activations" in case:
        case["blocks"] = 1  # what is not bounded overflows from block to block
    return case, form


def built(case: dict[str, Any]) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    return chain(**case) if "layers" in case else beside(**case)


def compare(case: dict[str, Any], form: str) -> bool:
    """Raises when the lowered model and the judge differ; answers whether nodes share a loop."""
    model, feeds = built(case)
    lowered = rnn_lower.lower(model, form=form, fuse_stacks=True)
    wanted = judged(model, feeds)
    loose = {"rtol": 1e-2, "atol": 1e-2} if case["dtype"] == "float16" else {}  # the layers apart round between them
    try:
        close(run_onnxruntime(lowered, feeds), wanted, **loose)
    except AssertionError:  # gates that are not bounded have led where float32 overflows or cancels
        model, feeds = built({**case, "dtype": "double"})
        wide = rnn_lower.lower(model, form=form, fuse_stacks=True)
        close(run_onnxruntime(wide, feeds), run_reference(model, feeds))
    return any(entry.key == shared.MEMBERS for node in every_node(lowered) for entry in node.metadata_props)


def features(case: dict[str, Any], together: bool) -> Iterator[str]:
    yield "together" if together else "apart"
    names = ("op", "layers", "dtype", "between", "nodes", "blocks", "directions")
    yield from (f"{name} {case[name]}" for name in names if name in case)
    yield from (
        name for name in ("clip", "activations", "linear_before_reset", "input_forget", "finals") if case.get(name)
    )


def main() -> int:
    arguments = soak_parser(__doc__).parse_args()
    rng, end = np.random.default_rng(arguments.seed), time.monotonic() + 60 * arguments.minutes
    counts: collections.Counter[str] = collections.Counter()
    passed = failed = 0
    while passed + failed < arguments.count and time.monotonic() < end:
        case, form = drawn(rng) if rng.integers(2) else drawn_beside(rng)
        width = str(rng.choice(list(WIDTHS)))
        try:
            with any_size(WIDTHS[width]):
                counts.update([*features(case, compare(case, form)), width])
            passed += 1
        except Exception as error:  # whatever goes wrong is a finding
            failed += 1
            arguments.failures.mkdir(parents=True, exist_ok=True)
            onnx.save(built(case)[0], arguments.failures / f"stack_{failed}.onnx")
            (arguments.failures / f"stack_{failed}.txt").write_text(
                f"{case}\n{form}, {width}\n{type(error).__name__}: {error}\n"
            )
    for name, count in sorted(counts.items()):
        print(f"{name}: {count}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
