"""Prove random lowerings: nodes of the tests' strategy in every form and with fused directions, or for every target.

    python tests/soak/proofs.py --count 20000 --seed 1 [--targets]

Ends with `N lowerings proved, N not`, and exits 1 when one is not. Whatever is not proved is printed.
"""  # fmt: skip

from __future__ import annotations

import argparse
import collections
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "support"))

import numpy as np
from onenode import build
from strategies import FORMS, random_case

import rnn_lower
from rnn_lower.sandbox.resource_limits import one_child
from rnn_lower.targeting import TARGETS


def run(count: int, seed: int, targets: bool = False) -> collections.Counter[str]:
    """How many lowerings of random nodes came to each verdict; nodes that an If has twice count once."""
    found: collections.Counter[str] = collections.Counter()
    rng = np.random.default_rng(seed)
    while found.total() < count:
        case, _ = random_case(rng)
        fused = [{"fuse_directions": True}] if case.direction == "bidirectional" else []
        wishes = [{**more, "form": name} for name in FORMS for more in ({}, *fused)]
        if targets:
            wishes = [{"target": name, "opset": max(case.opset, 13)} for name in TARGETS]
        for wish in wishes:
            original, _ = build(case)
            try:
                lowered = rnn_lower.lower(original, **wish)
            except rnn_lower.UnsupportedError:
                continue  # no Scan below opset 9, no straight line of unknown length, what a target does not take
            proof = rnn_lower.prove(original, lowered)
            found["proved" if proof.ok and proof.nodes else "not proved"] += 1
            if not (proof.ok and proof.nodes):
                print([(node.verdict, node.reason) for node in proof.nodes], proof.changed, wish, case, flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--targets", action="store_true")
    arguments = parser.parse_args()
    with one_child():
        found = run(arguments.count, arguments.seed, arguments.targets)
    print(f"{found['proved']} lowerings proved, {found['not proved']} not")
    return 1 if found["not proved"] else 0


if __name__ == "__main__":
    sys.exit(main())
