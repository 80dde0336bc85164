"""What a rounding decides: which of two nearly equal values is the larger one, and so an index, an integer or a flag.

Everything that a recurrent node gives is multiplied by random numbers next to 1, as if it had been rounded otherwise.
Where integers come out otherwise then, the original itself does not decide them, and no lowered model can.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from rnn_lower.model import tensors
from rnn_lower.model.document import Document
from rnn_lower.model.scopes import DEFAULT_DOMAINS
from rnn_lower.options import OP_TYPES
from rnn_lower.proof.runners import open_onnxruntime
from rnn_lower.proof.samples import Feeds

NAME = "rnn_lower/nudge"

SIZE, TRIES = 1e-6, 16
"""How far from 1, and how often: right models that give an argmax of saturated states pass, and what is wrong by a
fiftieth of a few weights does not."""


def undecided(
    document: Document, feeds: Feeds, expected: Sequence[Any], actual: Sequence[Any]
) -> dict[int, np.ndarray]:
    """By the place of an output: which of its integers come out otherwise when recurrent nodes round otherwise.

    Only outputs that differ are looked at; nothing is told where the nudged model does not run.
    """
    places = [place for place, pair in enumerate(zip(expected, actual, strict=True)) if _differ(*pair)]
    found = {place: np.zeros(np.shape(expected[place]), bool) for place in places}
    try:
        run = open_onnxruntime(document, change=add) if places else None
        for _ in range(TRIES if run else 0):
            results = run(feeds)  # type: ignore[misc]
            for place in places:
                if np.shape(results[place]) == np.shape(expected[place]):
                    found[place] |= results[place] != expected[place]
    except Exception:  # runtimes raise whatever they raise
        return {}
    return found


def _differ(expected: Any, actual: Any) -> bool:
    a, b = np.asarray(expected), np.asarray(actual)
    return a.dtype == b.dtype and a.shape == b.shape and a.dtype.kind in "iub" and not np.array_equal(a, b)


def add(model: onnx.ModelProto) -> None:
    """Nudge what every recurrent node of a model gives, in place, wherever it is."""
    count = 0
    for root in (model.graph, *model.functions):
        for holder in tensors.graphs_in(root):
            made: list[onnx.NodeProto] = []
            for node in holder.node:
                copy = onnx.NodeProto.FromString(node.SerializeToString())
                made.append(copy)
                if node.op_type not in OP_TYPES or node.domain not in DEFAULT_DOMAINS:
                    continue
                for place, name in enumerate(node.output):
                    if name:
                        count += 1
                        exact, noise = f"{NAME}/{count}", f"{NAME}/{count}/noise"
                        copy.output[place] = exact
                        limits = {"low": 1 - SIZE, "high": 1 + SIZE}
                        made.append(helper.make_node("RandomUniformLike", [exact], [noise], noise, **limits))
                        made.append(helper.make_node("Mul", [exact, noise], [name], exact))
            del holder.node[:]
            holder.node.extend(made)
