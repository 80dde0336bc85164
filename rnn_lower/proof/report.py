"""What a comparison of two models found."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class OutputReport:
    """One output over all runs: shape of the last run, largest differences, whether all were within tolerance."""

    name: str
    shape: tuple[int, ...]
    max_abs_error: float
    max_rel_error: float
    ok: bool
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class CheckReport:
    """The verdict.

    judge, runner: what ran the original and the lowered model; runs: how often.
    nothing_compared: why agreement says nothing here, empty when it does.
    changed: what else differs between the files; filled where a file was lowered from the other.
    unreached: recurrent nodes of the original that no inputs made run, so that nothing is known of them.
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
    allow_unreached: bool = False

    @property
    def ok(self) -> bool:
        """Whether all outputs of all runs agree, there was something to compare, and nothing else has changed.

        Nodes that no inputs made run leave it open, unless that was allowed.
        """
        seen = not self.nothing_compared and (self.allow_unreached or not self.unreached)
        return seen and not self.changed and all(output.ok for output in self.outputs)

    @property
    def max_abs_error(self) -> float:
        """The largest absolute difference of any output; inf where shapes, types or non-finite values differ."""
        return max((output.max_abs_error for output in self.outputs), default=0.0)

    def __bool__(self) -> bool:
        return self.ok
