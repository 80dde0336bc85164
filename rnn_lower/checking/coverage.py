"""Which formulas and branches of a model its inputs reach: agreement says nothing of those that they do not."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping

import numpy as np
from onnx.reference import ReferenceEvaluator

from rnn_lower.checking import reference
from rnn_lower.checking.runners import reference_evaluator
from rnn_lower.ir.walk import recurrent_nodes
from rnn_lower.modelio import external_data
from rnn_lower.modelio.document import Document

SECONDS, WEIGHTS = 0.5, 50_000_000
"""The reference evaluator is slow: it stops after so long, and does not run models with so many bytes of weights."""

Piece = tuple[str, str, tuple[float, ...]]
"""Node, clip or activation, edges."""


class Coverage:
    """Collects, over runs of the original, which pieces of activations and which branches of Ifs were reached."""

    def __init__(self, document: Document) -> None:
        self._reached: dict[Piece, set[int]] = {}
        self._ifs = {node.name or node.output[0]: node for node in document.proto.graph.node if node.op_type == "If"}
        self._branches: dict[str, set[bool]] = {name: set() for name in self._ifs}
        self._left = SECONDS
        self._evaluator: ReferenceEvaluator | None = None
        if self._has_pieces(document) and external_data.total_size(document.proto) <= WEIGHTS:
            self._open(document)

    def _has_pieces(self, document: Document) -> bool:
        for node, _ in recurrent_nodes(document.model):
            names = node.attributes["activations"].value if "activations" in node.attributes else ()
            if "clip" in node.attributes or any(name.lower() in reference.EDGES for name in names):
                return True
        return bool(self._ifs)

    def _open(self, document: Document) -> None:
        with contextlib.suppress(Exception):  # what it does not take is not looked at
            self._evaluator = reference_evaluator(document, reference.operators(self._watch))

    def _watch(self, node: str, what: str, x: np.ndarray, edges: tuple[float, ...]) -> None:
        self._reached.setdefault((node, what, edges), set()).update(np.searchsorted(edges, np.unique(x)).tolist())

    def add(self, feeds: Mapping[str, np.ndarray]) -> None:
        """Look at one run; nothing happens where that would tell no more, or take too long."""
        if self._evaluator is None or self._left <= 0 or (self._left < SECONDS and not self.missed()):
            return
        start = time.monotonic()
        try:
            results = self._evaluator.run(None, dict(feeds), intermediate=True)
        except Exception:
            self._evaluator = None
            return
        for name, node in self._ifs.items():
            if node.input[0] in results:
                self._branches[name].add(bool(np.all(results[node.input[0]])))
        self._left -= time.monotonic() - start

    def missed(self) -> tuple[str, ...]:
        """What no run has reached, for people; empty also where nobody could look."""
        if self._evaluator is None:
            return ()
        told = [
            f"{node}: no input is {_told(piece, edges)} in {what}"
            for (node, what, edges), reached in self._reached.items()
            for piece in range(len(edges) + 1)
            if piece not in reached
        ]
        told += [
            f"If '{name}': only its {'then' if True in branches else 'else'}_branch ran"
            for name, branches in self._branches.items()
            if len(branches) == 1
        ]
        return tuple(told)


def _told(piece: int, edges: tuple[float, ...]) -> str:
    if piece == 0:
        return f"below {edges[0]:g}"
    return f"above {edges[-1]:g}" if piece == len(edges) else f"between {edges[0]:g} and {edges[-1]:g}"
