"""Tables that are printed as they are made and written to a Markdown page at the end."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table


class Report:
    """Collects tables under headings; `write` makes the page."""

    def __init__(self, title: str, about: str) -> None:
        self._console = Console(width=160)
        self._lines = [f"# {title}", "", about, "", f"Measured on {machine()}."]

    def table(
        self, heading: str, header: Sequence[str], rows: Sequence[Sequence[str]], about: str = "", remarks: str = ""
    ) -> None:
        shown = Table(*header, title=heading)
        for row in rows:
            shown.add_row(*row)
        self._console.print(shown)
        self._lines += ["", f"## {heading}", "", *([about, ""] if about else [])]
        self._lines += [f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows)]
        self._lines += ["", remarks] if remarks else []

    def replace_last(self, path: Path, heading: str) -> None:
        """Put the one table of this report in place of the last section of a page."""
        kept = path.read_text().partition(f"## {heading}\n")[0].rstrip("\n").splitlines()
        section = self._lines[self._lines.index(f"## {heading}") :]
        path.write_text("\n".join([*kept, "", *section]) + "\n")

    def write(self, path: Path) -> None:
        path.write_text("\n".join(self._lines) + "\n")


def machine() -> str:
    model = "an unknown CPU"
    if Path("/proc/cpuinfo").exists():
        info = Path("/proc/cpuinfo").read_text().splitlines()
        fields = {line.partition(":")[0].strip(): line.partition(":")[2].strip() for line in info}
        wide = (
            "AVX-512" if "avx512f" in fields.get("flags", "") else "AVX2" if "avx2" in fields.get("flags", "") else ""
        )
        model = f"{fields.get('model name', model)} {wide}".strip()
    return f"{model}, onnxruntime {version('onnxruntime')}, Python {platform.python_version()}"
