"""Soak: random models lowered for targets: nothing that a target's file rules out, right on onnxruntime, or refused by rule.

    python tests/soak/soaktargets.py [TARGET ...] [--count 2000] [--minutes 10] [--seed 5] [--failures FOLDER]

Every form that a target promises. Minutes and count are for each target. Ends with one line for each of them.
"""  # fmt: skip

from __future__ import annotations

import collections
import logging
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "support"))

import numpy as np
from fuzz import HUGE
from judge import expected
from onenode import Case, build
from randomtargets import holds
from soaking import soak_parser
from strategies import random_case

import rnn_lower
from rnn_lower.targeting import TARGETS
from rnn_lower.targeting.probe.features import suited

RIGHT, REFUSED, LARGE = "right", "refused by rule", "proved, beyond float32"


def drawn(rng: np.random.Generator, name: str) -> tuple[Case, str]:
    """A case with nothing but its features between it and the target, and one of the target's forms."""
    while True:
        case, _ = random_case(rng)
        case = suited(case.replace(dynamic=False, place="main"), TARGETS[name])
        form = str(rng.choice(TARGETS[name].forms))
        if case is not None and not (form == "scan" and case.opset < 9):
            return case, form


def outcome(name: str, case: Case, form: str) -> str:
    """Raises AssertionError for anything else than what must hold."""
    try:
        refusal = holds(case, name, prove=False, form=form)
    except AssertionError:
        # Among huge values float32 leaves no digits to compare; there the proof is the judge.
        if all(np.all(np.abs(one.astype(np.float64)) < HUGE) for one in expected(case)):
            raise
        model, _ = build(case)
        assert rnn_lower.prove(model, rnn_lower.lower(model, target=name, form=form)).ok
        return LARGE
    assert refusal is None or f"target {name} " in refusal, refusal
    return RIGHT if refusal is None else REFUSED


def main() -> int:
    parser = soak_parser(__doc__)
    parser.add_argument("targets", nargs="*", help="all without any")
    arguments = parser.parse_args()
    logging.getLogger("rnn_lower").disabled = True
    failed = 0
    for name in arguments.targets or TARGETS:
        counts: collections.Counter[str] = collections.Counter()
        rng = np.random.default_rng(arguments.seed)
        end = time.monotonic() + 60 * arguments.minutes
        while time.monotonic() < end and sum(counts.values()) < arguments.count:
            case, form = drawn(rng, name)
            try:
                counts[outcome(name, case, form)] += 1
            except Exception as error:  # whatever goes wrong is a finding
                counts["failed"] += 1
                print(f"FAILED {name} {form} {case}: {type(error).__name__}: {' '.join(str(error).split())[:400]}")
        failed += counts["failed"]
        print(f"{name}: {', '.join(f'{count} {told}' for told, count in counts.items())}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
