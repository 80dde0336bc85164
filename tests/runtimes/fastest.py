"""The section of docs/runtimes.md on how fast each form is, made of what benchmarks/runtimes.py measured."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from onenode import OPTIONAL, Case, build

import rnn_lower
from rnn_lower.targeting import TARGETS

ABOUT = """
## The fastest form

`benchmarks/runtimes.py` runs one layer (opset 17, as many inputs as units, with initial states) as it is and in every
form that the target takes, in turns, on one thread. A time is the least processor time of a run. Every result was right.

The table below has geometric means over N = 1, 8 and H = 64, 256: the time of a run by that of the fused operator, and in
brackets the seconds to load the model. "auto" is what `--target` chooses, and "kept" what it chooses with `--keep-native`.
Lowered is faster than the runtime's own operator where a number is below 1.
"""


def case_of(layer: str) -> Case:
    op, T, N, H = layer.split()
    states = tuple(name for name in OPTIONAL[op] if name.startswith("initial"))
    return Case(op, 17, T=int(T), N=int(N), I=int(H), H=int(H), optional=("B", *states))


def chosen(name: str, layer: str) -> tuple[str, str]:
    """The form of auto, and that with keep_native."""
    (node,) = rnn_lower.inspect(build(case_of(layer))[0])
    form = TARGETS[name].choose(node, 17)
    return form, "fused" if TARGETS[name].keeps(node) else form


def mean(values: Iterable[float]) -> float:
    return float(np.exp(np.mean(np.log(list(values)))))


def section(folder: Path) -> list[str]:
    """Lines of Markdown; none where nothing was measured."""
    path = folder / "forms.json"
    if not path.exists():
        return []
    data: dict[str, Any] = json.loads(path.read_text())
    machine = next(iter(data.values()))["machine"]
    versions = ", ".join(f"{name} {row['version']}" for name, row in data.items())
    header = ["runtime", "layer", "scan", "loop", "unrolled", "auto", "kept"]
    lines = [*ABOUT.splitlines(), "", f"Measured on {machine}; {versions}.", ""]
    lines += [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    for name, measured in data.items():
        rows = measured["rows"]
        for op, T in dict.fromkeys(tuple(layer.split()[:2]) for layer in rows):
            layers = [layer for layer in rows if layer.split()[:2] == [op, T]]
            lines.append(f"| {name} | {op}, T = {T} | {' | '.join(_means(name, rows, layers))} |")
        lines.append(f"| {name} | all | {' | '.join(_means(name, rows, list(rows)))} |")
    header = ["layer: operator, T, N, H", *("fused", "scan", "loop", "unrolled")]
    for name, measured in data.items():
        lines += ["", f"{name}: microseconds of a run, and seconds to load.", ""]
        lines += [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
        for layer, found in measured["rows"].items():
            cells = [_cell(found, form) for form in ("fused", "scan", "loop", "unroll")]
            lines.append(f"| {layer.replace(' ', ', ')} | {' | '.join(cells)} |")
    return [*lines, ""]


def _means(name: str, rows: dict[str, Any], layers: list[str]) -> list[str]:
    cells = []
    for form in ("scan", "loop", "unroll"):
        if any(form not in rows[layer] for layer in layers):
            cells.append("")
            continue
        run = mean(rows[layer][form][0] / rows[layer]["fused"][0] for layer in layers)
        load = mean(rows[layer][form][1] for layer in layers)
        cells.append(f"{run:.2f} ({load:.2f} s)")
    for kind in (0, 1):
        forms = [chosen(name, layer)[kind] for layer in layers]
        pairs = zip(layers, forms, strict=True)
        run = mean(rows[layer][form][0] / rows[layer]["fused"][0] for layer, form in pairs)
        names = dict.fromkeys(forms) if len(layers) < len(rows) else ()
        cells.append(f"{run:.2f} {', '.join(names)}".strip())
    return cells


def _cell(found: dict[str, Any], form: str) -> str:
    return f"{found[form][0]:.0f} ({found[form][1]:.2f} s)" if form in found else ""
