"""What a runtime takes, and what follows for a node that is to run on it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rnn_lower.builder.constraints import CHECKS, Rules
from rnn_lower.builder.moved import known
from rnn_lower.builder.versions import TABLE
from rnn_lower.builder.writer import Habits
from rnn_lower.errors import Lack
from rnn_lower.lowering.lowering import ARITHMETIC
from rnn_lower.targets.native_support import RIGHT, Measured, Verdict, verdict
from rnn_lower.targets.unroll_policy import Row, steps_for

if TYPE_CHECKING:
    from rnn_lower.lowering.estimate import Size
    from rnn_lower.lowering.node import RecurrentNode

LARGE = 20_000
"""Nodes of straight lines, in a whole model, from which on loading them takes long on most runtimes."""


@dataclasses.dataclass(frozen=True)
class Target:
    """How to lower for one runtime, as its file says.

    status: "measured" on the runtime, or "documented" only.  source: where what the file says is from.
    forms: those it runs right, the one for long or unknown sequences first.
    unroll_up_to: a known length up to this is unrolled in form auto, when "unroll" is among the forms.
    unroll: rows that say another number for some nodes; the first that fits counts.
    static_batch: whether it needs a known batch size.  single_batch: whether that must be 1.
    scan_captures: whether a Scan body may read what nodes outside of it compute.
    versions: release lines that the newest file of a runtime stands for, as in opencv@5.
    fused: by recurrent operator, which features are right as they are, and which silently wrong.
    unmeasured: whether it has the recurrent operators, and nobody here knows which features are right.
    faster_lowered: by recurrent operator, from which batch size on it was measured to run faster lowered.
    path: of its file.
    slow: from how many unrolled steps loading is slow, and the measured seconds for an LSTM at T = 400.
    """

    name: str
    summary: str
    status: str
    source: str
    forms: tuple[str, ...]
    habits: Habits = Habits()
    unroll_up_to: int = 1
    static_batch: bool = False
    single_batch: bool = False
    slow: tuple[int, float] | None = None
    scan_captures: bool = True
    versions: tuple[str, ...] = ()
    fused: Mapping[str, Measured] = dataclasses.field(default_factory=dict)
    unmeasured: bool = False
    faster_lowered: Mapping[str, int] = dataclasses.field(default_factory=dict)
    unroll: tuple[Row, ...] = ()
    path: Path = Path()

    @property
    def rules(self) -> Rules:
        """What it says of nodes."""
        return self.habits.rules

    @property
    def opsets(self) -> tuple[int, int]:
        """First and last opset it takes."""
        return self.rules.opsets

    @property
    def _known_batch(self) -> bool:
        return self.static_batch or self.single_batch or self.rules.static

    def verdict(self, node: RecurrentNode) -> Verdict:
        """Whether it runs a recurrent node right as it is."""
        listed = self.unmeasured or (self.rules.takes is not None and node.op_type in self.rules.takes)
        found = verdict(node, self.fused, listed, f"{self.name} ({self.source.partition(';')[0]})")
        if found.kind == RIGHT and not self._as_fast(node):
            return dataclasses.replace(found, why=f"{found.why}; lowered it was measured to be faster")
        return found

    def keeps(self, node: RecurrentNode) -> bool:
        """Whether a node is best left as it is: it is right so, and not slower than lowered."""
        return self.verdict(node).kind == RIGHT and self._as_fast(node)

    def _as_fast(self, node: RecurrentNode) -> bool:
        least = self.faster_lowered.get(node.op_type)
        return least is None or (node.static_batch or 0) < least

    def explained(self) -> Iterator[tuple[str, str]]:
        """Line by line, for people: what it takes, and where that is from."""
        first, last = self.opsets
        yield self.name, self.summary
        yield self.status, self.source
        yield "forms", ", ".join(self.forms)
        numbers = sorted({self.unroll_up_to, *(row["steps"] for row in self.unroll)})
        if "unroll" in self.forms and max(numbers) > 1:
            several = ", by what a node has" if len(numbers) > 1 else ""
            few = f"up to {' or '.join(map(str, numbers))} steps{several}"
            yield "unrolled", "always" if self.forms == ("unroll",) else few
        yield "opsets", f"{first} and up" if last >= 99 else f"{first} to {last}"
        batch = "1" if self.single_batch else "known" if self._known_batch else None
        yield "batch size", f"must be {batch}" if batch else "may be unknown"
        if self.rules.static:
            yield "sizes", "must all be known"
        if self.rules.rank is not None:
            yield "ranks", f"up to {self.rules.rank}"
        if self.rules.takes is not None:
            yield "operators that it takes", ", ".join(sorted(self.rules.takes))
        if self.rules.avoid:
            yield "operators that it is spared", ", ".join(sorted(self.rules.avoid))
        for op_type, limits in self.rules.limits.items():
            words = "; ".join(CHECKS[name][0].format(told) for name, told in limits.items())
            yield op_type, f"only with {words}"
        for op_type, measured in self.fused.items():
            yield f"{op_type} as it is", f"right: {', '.join(sorted(measured.right)) or 'nothing'}"
            if measured.wrong:
                yield f"{op_type} as it is", f"silently wrong: {', '.join(sorted(measured.wrong))}"
        for op_type, least in self.faster_lowered.items():
            yield f"{op_type} lowered", f"faster{'' if least <= 1 else f' from a batch of {least} on'}"
        for what, source in self.rules.sources.items():
            yield f"source of {what}", source
        if self.slow is not None:
            steps, seconds = self.slow
            yield "loading", f"slow above {steps} unrolled steps: {seconds:g} s for an LSTM of 400"

    def choose(self, node: RecurrentNode, opset: int) -> str:
        """The form for a node that nobody asked a form for."""
        length = node.static_length
        few = steps_for(node, opset, self.habits, self.unroll, self.unroll_up_to)
        if "unroll" in self.forms and length is not None and length <= few:
            return "unroll"
        return next(iter(self.forms_for(node, opset)), "loop")

    def among_others(self, node: RecurrentNode, form: str, opset: int) -> str:
        """The form of a node in a group: a line that beats a loop of its own gives way to one that all share."""
        if form != "unroll" or (node.static_length or 0) <= self.unroll_up_to:
            return form
        return next((one for one in self.forms_for(node, opset) if one != "unroll"), form)

    def why(self, node: RecurrentNode, form: str) -> str:
        """Why `choose` took this form, for people."""
        if form == "unroll":
            if self.forms == ("unroll",):
                return f"{self.name} takes no other"
            return "one step" if node.static_length == 1 else f"{node.static_length} steps, few for {self.name}"
        return f"the fastest on {self.name}" if form == self.forms[0] else f"{self.forms[0]} does not serve here"

    def forms_for(self, node: RecurrentNode, opset: int) -> list[str]:
        """The forms that a node at this opset can take, given that its length serves."""
        scan = opset >= TABLE["Scan"].since and (self.scan_captures or not _captures(node))
        taken = {"scan": scan and self.rules.listed("Scan"), "loop": self.rules.listed("Loop"), "unroll": True}
        return [form for form in self.forms if taken[form]]

    def lacks(self, node: RecurrentNode, form: str, opset: int) -> list[Lack]:
        """What keeps the runtime from taking the node in this form."""
        found, told = [], f"target {self.name}"
        first, last = self.opsets
        if not first <= opset <= last:
            found.append(Lack(f"{told} takes opsets {first} to {last}, not {opset}", opsets=self.opsets))
        forms = tuple(self.forms_for(node, opset))
        if form not in self.forms:
            found.append(Lack(f"{told} does not run form {form}", forms=forms or self.forms))
        elif form == "scan" and not self.scan_captures and _captures(node):
            what = f"{told} takes no weights that are computed outside of a Scan (or cast there)"
            found.append(Lack(what, forms=forms))
        if self.rules.static and node.static_length is None:
            what = f"{told} needs a known sequence length, here it is {node.told('seq_length')}"
            found.append(Lack(what, sizes=("seq_length",)))
        if self._known_batch and node.static_batch is None:
            what = f"{told} needs a known batch size, here it is {node.told('batch_size')}"
            found.append(Lack(what, sizes=("batch_size",)))
        elif self.single_batch and node.static_batch != 1:
            found.append(Lack(f"{told} takes a batch of 1 only, here it is {node.static_batch}"))
        return found

    def warning(self, node: RecurrentNode, opset: int, own: Size, all_of_them: Size) -> str:
        """What to know of a node that is unrolled: how large it will be and how slowly such loads; empty if it is not.

        own: the size of the node.  all_of_them: that of all nodes of the model which are unrolled.
        """
        length = node.static_length or 0
        if all_of_them.nodes <= LARGE and (self.slow is None or length <= self.slow[0]):
            return ""
        told = f"unrolling {length} steps makes about {own.nodes:,} nodes, {_megabytes(own)} without weights"
        if all_of_them != own:
            told += f" ({all_of_them.nodes:,} and {_megabytes(all_of_them)} in all)"
        if self.slow is not None:
            told += f"; {self.name} was measured to load an LSTM of 400 steps in {self.slow[1]:g} s"
        forms = [f"--form {form}" for form in self.forms_for(node, opset) if form != "unroll"]
        return f"{told}; {' or '.join(['cut the sequence', *([f'use {forms[0]}'] if forms else [])])}"


def _megabytes(size: Size) -> str:
    return f"{size.nbytes / 1e6:.1f} MB"


def _captures(node: RecurrentNode) -> bool:
    """Whether the weights in a body come from nodes: they are known at run time only, or are cast."""
    weights = (node.inputs.get(name) for name in ("R", "B", "P"))
    return node.dtype in ARITHMETIC or any(weight is not None and known(weight) is None for weight in weights)
