"""The tables and plots of README and docs that are generated: from the measurements, and from the parser.

    python docs/tables.py [--plots]    writes them anew; a test holds that the tables are up to date
"""  # fmt: skip

from __future__ import annotations

import argparse
import csv
import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", DOCS / "speed.md")
SIZES = (16, 64, 128, 256)


def runtimes() -> Iterator[str]:
    """One row a runtime: its version, and how many of the features are right natively and lowered."""
    measured = json.loads((DOCS / "runtimes.json").read_text(encoding="utf-8"))
    yield "| runtime | version | native correct | native silently wrong | lowered correct |"
    yield "|---|---|---|---|---|"
    for name, row in measured.items():
        native, lowered = ([state for state, _ in row[kind].values()] for kind in ("fused", "lowered"))
        right = f"{lowered.count('right')} of {len(lowered)}"
        yield f"| {name} | {row['version']} | {native.count('right')} | {native.count('wrong')} | {right} |"


def rows_of(name: str) -> list[dict[str, str]]:
    with (DOCS / name).open(newline="") as file:
        return list(csv.DictReader(file))


def speed() -> Iterator[str]:
    """One row an operator, by hidden size."""
    tuned = {(row["operator"], row["direction"], row["N"], row["H"]): row["tuned"] for row in rows_of("speed.csv")}
    yield f"| operator | {' | '.join(f'H = {size}' for size in SIZES)} |"
    yield "|---" * (len(SIZES) + 1) + "|"
    for operator in ("LSTM", "GRU", "RNN"):
        yield f"| {operator} | {' | '.join(tuned[operator, 'forward', '1', str(size)] for size in SIZES)} |"


def forms() -> Iterator[str]:
    """One row a runtime: time of the fastest form over the native operator's, the mean of all layers measured."""
    yield "| runtime | LSTM | GRU |"
    yield "|---|---|---|"
    for name, runtime in json.loads((DOCS / "forms.json").read_text(encoding="utf-8")).items():
        cells = []
        for operator in ("LSTM", "GRU"):
            logs = [
                math.log(min(time for form, (time, _) in row.items() if form != "fused") / row["fused"][0])
                for layer, row in runtime["rows"].items()
                if layer.split()[0] == operator and len(row) > 1 and "fused" in row
            ]
            cells.append(f"{math.exp(sum(logs) / len(logs)):.2f}")
        yield f"| {name} {runtime['version']} | {' | '.join(cells)} |"


def scale() -> Iterator[str]:
    """One row a model: seconds to lower it, and the peak of memory."""
    yield "| model | size | lower, s | peak MB |"
    yield "|---|---|---|---|"
    for row in rows_of("scale.csv"):
        yield f"| {row['what']} | {int(row['size']):,} | {row['lower (s)']} | {row['peak anonymous (MB)']} |"


def options() -> Iterator[str]:
    """One row an option of `rnn-lower lower`, as its parser has it."""
    sys.path[:0] = [str(ROOT)]
    from rnn_lower.cli.arguments import make_parser
    from rnn_lower.cli.commands import COMMANDS

    parser = make_parser(COMMANDS)
    (kinds,) = (action.choices for action in parser._actions if isinstance(action.choices, dict))
    yield "| option of `lower` | meaning |"
    yield "|---|---|"
    for action in kinds["lower"]._actions:
        if action.option_strings and not isinstance(action, argparse._HelpAction):
            value = action.metavar or "\\|".join(action.choices or ())
            yield f"| `{', '.join(action.option_strings)}{f' {value}' if value else ''}` | {action.help} |"


TABLES: Mapping[str, Callable[[], Iterator[str]]] = {
    "runtimes": runtimes, "speed": speed, "options": options, "forms": forms, "scale": scale,
}  # fmt: skip


def updated(text: str) -> str:
    """The page with its tables written anew."""

    def table(found: re.Match[str]) -> str:
        return "\n".join([f"<!-- table {found[1]} -->", *TABLES[found[1]](), "<!-- end -->"])

    return re.sub(r"<!-- table (\w+) -->\n.*?<!-- end -->", table, text, flags=re.DOTALL)


def plots() -> None:
    """One picture a question: what lowering costs on onnxruntime by hidden size, and how lowering grows."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    for operator, style in (("LSTM", "-"), ("GRU", "--"), ("RNN", ":")):
        for column, color in (("canonical", "tab:gray"), ("tuned", "tab:blue")):
            rows = [
                r for r in rows_of("speed.csv") if (r["operator"], r["direction"], r["N"]) == (operator, "forward", "1")
            ]
            points = [(int(row["H"]), float(row[column])) for row in rows]
            axes.plot(*zip(*points, strict=True), style, color=color, marker="o", label=f"{operator}, {column}")
    axes.set(xscale="log", yscale="log", xlabel="hidden size", ylabel="time over the fused operator's")
    axes.set_xticks(SIZES, SIZES)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.legend(fontsize=8)
    figure.savefig(DOCS / "speed.png", dpi=110)
    figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    for what in dict.fromkeys(row["what"] for row in rows_of("scale.csv")):
        points = [(int(row["size"]), float(row["lower (s)"])) for row in rows_of("scale.csv") if row["what"] == what]
        axes.loglog(*zip(*points, strict=True), marker="o", label=what)
    axes.set(xlabel="size", ylabel="seconds to lower")
    axes.legend(fontsize=8)
    figure.savefig(DOCS / "scale.png", dpi=110)


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(updated(path.read_text(encoding="utf-8")), encoding="utf-8")
    if "--plots" in sys.argv:
        plots()
