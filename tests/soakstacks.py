"""Soak: random stacks in one loop (fuse_stacks), against the fused operators on onnxruntime, or the oracle.

    python tests/soakstacks.py [--count 20000] [--minutes 10] [--seed 5] [--failures FOLDER]

Ends with counts by feature and `N passed, N failed`; each failure is written as a .onnx with the case (.txt).
"""  # fmt: skip

from __future__ import annotations

import collections
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from judge import close, every_node, judged, run_onnxruntime, run_reference
from soaking import soak_parser
from stacks import BETWEEN, GATES, TYPES, chain

import rnn_lower
from rnn_lower.recurrent import stack as stacking
from rnn_lower.recurrent.node import OPERATORS

FUNCTIONS = ("Relu", "Tanh", "Sigmoid", "Softsign", "HardSigmoid", "Elu")


def drawn(rng: np.random.Generator) -> tuple[dict[str, Any], str]:
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
        case["clip"] = float(rng.choice([0.05, 0.3, 2.0]))
    if rng.random() < 0.4:
        case["activations"] = [str(name) for name in rng.choice(FUNCTIONS, len(OPERATORS[op].activations))]
    if op == "GRU" and rng.random() < 0.5:
        case["linear_before_reset"] = 1
    if op == "LSTM" and rng.random() < 0.3:
        case["input_forget"] = 1
    if case["N"] > 1 and case["between"] == "turned":
        case["between"] = "squeeze"  # joins the rows, and is no stack
    return case, str(rng.choice(["scan", "loop"]))


def compare(case: dict[str, Any], form: str) -> bool:
    """Raises when the stack and the judge differ; answers whether its layers share a loop."""
    model, feeds = chain(**case)
    lowered = rnn_lower.lower(model, form=form, fuse_stacks=True)
    wanted = judged(model, feeds)
    loose = {"rtol": 1e-2, "atol": 1e-2} if case["dtype"] == "float16" else {}  # the layers apart round between them
    try:
        close(run_onnxruntime(lowered, feeds), wanted, **loose)
    except AssertionError:  # gates that are not bounded have led where float32 overflows or cancels
        model, feeds = chain(**{**case, "dtype": "double"})
        wide = rnn_lower.lower(model, form=form, fuse_stacks=True)
        close(run_onnxruntime(wide, feeds), run_reference(model, feeds))
    return any(entry.key == stacking.MEMBERS for node in every_node(lowered) for entry in node.metadata_props)


def features(case: dict[str, Any], together: bool) -> Iterator[str]:
    yield "together" if together else "apart"
    yield from (f"{name} {case[name]}" for name in ("op", "layers", "dtype", "between"))
    yield from (name for name in ("clip", "activations", "linear_before_reset", "input_forget") if name in case)


def main() -> int:
    arguments = soak_parser(__doc__).parse_args()
    for op in GATES:
        stacking.PAYS[op] = stacking.Paying(2, 64, 8)  # where it pays is a matter of speed
    rng, end = np.random.default_rng(arguments.seed), time.monotonic() + 60 * arguments.minutes
    counts: collections.Counter[str] = collections.Counter()
    passed = failed = 0
    while passed + failed < arguments.count and time.monotonic() < end:
        case, form = drawn(rng)
        try:
            counts.update(features(case, compare(case, form)))
            passed += 1
        except Exception as error:  # whatever goes wrong is a finding
            failed += 1
            arguments.failures.mkdir(parents=True, exist_ok=True)
            onnx.save(chain(**case)[0], arguments.failures / f"stack_{failed}.onnx")
            (arguments.failures / f"stack_{failed}.txt").write_text(
                f"{case}\n{form}\n{type(error).__name__}: {error}\n"
            )
    for name, count in sorted(counts.items()):
        print(f"{name}: {count}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
