"""The results of comparing two models."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar


def number_of(count: int, noun: str = "node") -> str:
    """Return a count with its noun in the singular or plural."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


@dataclasses.dataclass(frozen=True)
class OutputReport:
    """The comparison of one output over all runs: the shape in the worst run, and the largest differences.

    ok: whether the differences are tolerable.  max_ulp_error: in units in the last place of the expected value.
    max_abs_value: the largest finite expected value.
    """

    name: str
    shape: tuple[int, ...]
    max_abs_error: float
    max_rel_error: float
    ok: bool
    reason: str = ""
    max_ulp_error: float = 0.0
    max_abs_value: float = 0.0

    @property
    def difference(self) -> str:
        """The largest difference, with the magnitude of the expected values."""
        return f"{self.max_abs_error:.2g} (largest output {self.max_abs_value:.2g})"

    def describe(self) -> str:
        """Return one line about this output."""
        shape = "x".join(map(str, self.shape)) or "scalar"
        units = f"largest difference {self.difference}, {self.max_ulp_error:.2g} units in the last place"
        return f"output {self.name} ({shape}): {self.reason or 'ok'}, {units}"


@dataclasses.dataclass(frozen=True)
class CheckReport:
    """The result of a check.

    judge, runner: the runtimes of the original and of the lowered model.  runs: the number of runs.
    nothing_compared: why equal outputs prove nothing; empty if they do prove something.
    changed: other differences between the files; set only if one file was lowered from the other.
    unreached: recurrent nodes without a proof whose runs of three steps, with rows of different length, no output
    shows.
    located: nodes that a proof found to be different functions, with the step and the gate of the first difference.
    unseen: differences between the files that the proof found, but no run shows.
    proved: names of the nodes that were proved before.  runs_of_unproved: how the other replaced nodes ran.
    counterexample: the file with inputs for which the outputs differ.
    needs_sizes: why the runner runs the lowered model only with fixed input sizes.
    chunks, borders: for a streaming model, the number of chunks that were compared with whole runs, and of borders
    between them.
    """

    outputs: tuple[OutputReport, ...]
    judge: str
    runner: str
    runs: int
    rtol: float
    atol: float
    nothing_compared: str = ""
    changed: tuple[str, ...] = ()
    unreached: tuple[str, ...] = ()
    located: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    proved: tuple[str, ...] = ()
    runs_of_unproved: tuple[str, ...] = ()
    counterexample: str = ""
    needs_sizes: str = ""
    chunks: int = 0
    borders: int = 0

    @property
    def ok(self) -> bool:
        """Whether all outputs agree, the comparison is meaningful, no node is known to differ, nothing else changed."""
        is_compared = not self.nothing_compared and not self.unreached
        return is_compared and not self.changed and not self.located and all(output.ok for output in self.outputs)

    @property
    def max_abs_error(self) -> float:
        """The largest absolute difference of any output; inf if shapes, types or non-finite values differ."""
        return max((output.max_abs_error for output in self.outputs), default=0.0)

    kind: ClassVar[str] = "check"

    @property
    def summary(self) -> dict[str, Any]:
        """The entries that precede the dataclass fields in the JSON output."""
        return {"max_abs_error": self.max_abs_error}

    def lines(self, verbose: bool = False) -> list[str]:
        """The lines before the verdict: all differences; if verbose, also each output and how the nodes ran."""
        ran = (
            f"{number_of(self.runs, 'run')}, with the original model on {self.judge} and the lowered "
            f"model on {self.runner}"
        )
        lines = [ran] if verbose else []
        lines += [output.describe() for output in self.outputs if verbose or output.reason]
        lines += [f"unexpected change: {change}" for change in self.changed]
        lines += _listed("the files differ, but no run shows it", self.unseen, verbose)
        lines += [f"not proved and not tested enough: {node}" for node in self.unreached]
        lines += [f"not proved, but tested: {node}" for node in self.runs_of_unproved] if verbose else []
        if self.needs_sizes:
            lines.append(
                f"{self.runner} runs the lowered model only with fixed input sizes (--dim): {self.needs_sizes}"
            )
        return [*lines, *self.located, *_counterexample(self.counterexample)]

    @property
    def verdict(self) -> str:
        """The final line."""
        failed = "DIFFERENT"
        if self.nothing_compared:
            failed = f"NOTHING COMPARED ({self.nothing_compared})"
        elif dataclasses.replace(self, unreached=()).ok:
            failed = (
                f"NOTHING COMPARED for {number_of(len(self.unreached))} without a proof, because no output shows "
                "other weights in a run with three steps, and with batch rows of different lengths if it has "
                "sequence_lens; provide such inputs (--inputs X.npz) or a smaller tolerance (--rtol)"
            )
        nodes = len(self.proved) + len(self.runs_of_unproved)
        counts = f"{len(self.proved)} of {number_of(nodes, 'replaced node')} proved, {number_of(self.runs, 'run')}"
        if self.chunks:
            counts = (
                f"{number_of(self.runs, 'run')}, divided into {self.chunks} chunks with {self.borders} chunk boundaries"
            )
        worst = max(self.outputs, key=lambda output: output.max_abs_error, default=None)
        difference = "" if worst is None else f"largest difference {worst.difference}; "
        return f"{'same' if self.ok else failed}: {difference}{counts}"

    def __bool__(self) -> bool:
        return self.ok


def _counterexample(path: str) -> list[str]:
    return [f"the outputs differ for the inputs in {path}"] if path else []


def _listed(what: str, changes: Sequence[str], verbose: bool) -> list[str]:
    """One line about each change, but about no more than MOST_CHANGES unless verbose."""
    shown = changes if verbose else changes[:MOST_CHANGES]
    rest = number_of(len(changes) - len(shown), "more change")
    more = [f"and {rest}; pass -v to list all changes"] if len(shown) < len(changes) else []
    return [*(f"{what}: {change}" for change in shown), *more]


MOST_CHANGES = 20
"""The number of changes that are listed without -v."""

PROVED, DIFFERENT, OUT_OF_SCOPE = "proved", "not equal", "out of scope"


@dataclasses.dataclass(frozen=True)
class NodeProof:
    """The result of the proof for one recurrent node of the original, or for a step that rewrote the whole model.

    verdict: "proved", "not equal" or "out of scope".  evaluations: how often both sides were computed.
    bound: the probability that another function would have passed the proof; 1 if nothing is proved.
    reason: the first difference, or what is out of scope; for a proved node, what the proof leaves out, usually
    nothing.  outputs: the names of the outputs of the node, which with the path identify it.
    """

    name: str
    op_type: str
    path: str
    verdict: str
    bound: float = 1.0
    evaluations: int = 0
    reason: str = ""
    outputs: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the node is proved."""
        return self.verdict == PROVED

    def describe(self) -> str:
        """Return one line about this node."""
        graph = "" if self.path in ("", "main graph") else f" ({self.path})"
        what = ", ".join(filter(None, (self.op_type, self.verdict)))
        return f"{self.name}{graph}: {what}{f': {self.reason}' if self.reason else ''}"


@dataclasses.dataclass(frozen=True)
class Proof:
    """The result of a proof for two models: each replaced node, and the other differences between the files.

    steps: if more than the recurrent nodes was rewritten, such as folded constants, the comparisons of whole models
    before and after each step. Their bounds exclude those of the loops, which are among the nodes.
    fixed: sizes of inputs that the first model leaves open and the second one fixes, as AXIS=SIZE.
    """

    nodes: tuple[NodeProof, ...]
    changed: tuple[str, ...] = ()
    counterexample: str = ""
    steps: tuple[NodeProof, ...] = ()
    fixed: tuple[str, ...] = ()

    @property
    def counted(self) -> tuple[NodeProof, ...]:
        """The nodes that are proved; none if the models differ elsewhere, because what the nodes read may differ."""
        return () if self.changed else tuple(node for node in self.nodes if node.ok)

    @property
    def ok(self) -> bool:
        """Whether every replaced node and every step is proved, and nothing else has changed."""
        return not self.changed and all(each.ok for each in (*self.steps, *self.nodes))

    @property
    def proved(self) -> tuple[str, ...]:
        """The names of the nodes that are proved."""
        return tuple(node.name for node in self.nodes if node.ok)

    def differing(self, computed: bool) -> tuple[str, ...]:
        """The nodes that compute another function, and where the values first differ.

        computed: only nodes that both sides computed, not those whose place in the lowered model is unclear.
        """
        nodes = [node for node in self.nodes if node.verdict == DIFFERENT and (node.evaluations or not computed)]
        return tuple(f"{node.name}: {node.reason}" for node in nodes)

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons why the models are not proved equal, each once."""
        unproved = (each.reason for each in (*self.steps, *self.nodes) if not each.ok)
        return tuple(dict.fromkeys((*self.changed, *unproved)))

    @property
    def bound(self) -> float:
        """The probability that a model with a different function would pass."""
        return min(1.0, sum(each.bound for each in (*self.steps, *self.nodes)))

    kind: ClassVar[str] = "prove"

    @property
    def summary(self) -> dict[str, Any]:
        """The keys that precede the fields in JSON."""
        return {"bound": self.bound}

    def lines(self, verbose: bool = False) -> list[str]:
        """The lines before the verdict: each node that is not proved; if verbose, every node."""
        lines = [each.describe() for each in (*self.steps, *self.nodes) if verbose or not each.ok or each.reason]
        lines += _listed("unexpected change", self.changed, verbose)
        return [*lines, *_counterexample(self.counterexample)]

    @property
    def verdict(self) -> str:
        """The final line."""
        count = sum(node.ok for node in self.nodes)
        rest = "the models as a whole compute the same function" if self.steps else "nothing else has changed"
        rest += f", for the sizes that the new model fixes ({', '.join(self.fixed)})" if self.fixed else ""
        chance = f"with a probability of error below {self.bound:.1g}"
        if self.ok and not self.nodes:
            return f"no recurrent node was replaced, and {rest}{f', {chance}' if self.steps else ''}"
        if self.ok:
            return f"proved: {number_of(count)}, {chance}, and {rest}"
        reason = ", but the models differ elsewhere" if count == len(self.nodes) and self.changed else ""
        return f"NOT PROVED: {count} of {number_of(len(self.nodes))} proved{reason}"

    def __bool__(self) -> bool:
        return self.ok
