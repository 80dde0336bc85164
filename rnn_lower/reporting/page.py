"""The page of a report: one self-contained HTML file for light and dark mode and for large and small screens."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rnn_lower.errors import RnnLowerError
from rnn_lower.reporting import drawing
from rnn_lower.reporting.steps import Steps
from rnn_lower.targeting.native_support import NOT_TAKEN, RIGHT, UNKNOWN, WRONG

if TYPE_CHECKING:
    from rnn_lower.reporting.gathering import Report

HEIGHT = 40
"""The height of a plot; its width is the number of steps, and the page scales it."""

SMALLEST = 0.8
"""The minimum number of pixels per point of a drawing; larger drawings scroll. The smallest font has 9 points."""

BADGES = {RIGHT: "good", WRONG: "bad", NOT_TAKEN: "plain", UNKNOWN: "open"}
LETTERS = {"seq_length": "T", "batch_size": "N", "input_size": "I", "hidden_size": "H"}


def render(report: Report) -> str:
    """The page. Raises RnnLowerError if the packages of the extra `report` are not installed."""
    try:
        import jinja2  # optional package
    except ImportError:
        raise RnnLowerError(drawing.MISSING) from None
    template = (Path(__file__).parent / "page.html").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {
        "bars": _bars, "least_width": _least_width,
        "sizes": _sizes, "number": _number, "failed": lambda value: isinstance(value, str),
    }  # fmt: skip
    page: str = environment.from_string(template).render(report=report, style=drawing.STYLE, badges=BADGES)
    return page


@dataclasses.dataclass(frozen=True)
class Bar:
    """One step of a plot, in the plot's coordinates."""

    x: float
    y: float
    height: float
    bad: bool


def _bars(steps: Steps) -> list[Bar]:
    finite = [error for error in steps.errors if math.isfinite(error)]
    top = max(finite, default=0.0) or 1.0
    heights = [HEIGHT * (error / top if math.isfinite(error) else 1.0) for error in steps.errors]
    return [
        Bar(index + 0.1, HEIGHT - height, height, not math.isfinite(error))
        for index, (height, error) in enumerate(zip(heights, steps.errors, strict=True)) if error
    ]  # fmt: skip


def _sizes(node: Any) -> str:
    text = ((letter, getattr(node, name)) for name, letter in LETTERS.items())
    return ", ".join(f"{letter} = {'?' if size is None else size}" for letter, size in text)


def _least_width(svg: str) -> int:
    return round(SMALLEST * drawing.width(svg))


def _number(value: float) -> str:
    return "0" if value == 0 else f"{value:.2g}" if math.isfinite(value) else "not finite"
