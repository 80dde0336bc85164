"""Run every feature, fused and lowered, on every installed runtime; update docs/runtimes.md and docs/runtimes.png.

    python tests/runtimes/matrix.py [RUNTIME ...] [--docs FOLDER]

Each runtime works in its own process, which may crash: the model it was running then counts as an error.
Results are kept in docs/runtimes.json, so that runtimes can be measured one at a time.
"""  # fmt: skip

from __future__ import annotations

import argparse
import csv
import json
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import onnx
import tomli_w

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support"), str(HERE.parent.parent)]

from features import FEATURES  # noqa: E402
from judge import expected  # noqa: E402
from onenode import build  # noqa: E402
from runners import RUNNERS, limit_of, missing, version  # noqa: E402

import rnn_lower  # noqa: E402
from rnn_lower.targeting import TARGETS  # noqa: E402
from rnn_lower.targeting.probe import results as judging  # noqa: E402
from rnn_lower.targeting.probe.report import REFUSED, count_outcomes, fused_tables  # noqa: E402


def measure(name: str, kind: str, feature: str) -> tuple[str, str]:
    """What came out, and by how much it is wrong or why; lowered is right when every form of the target is."""
    case = FEATURES[feature]
    model, feeds = build(case)
    models = [model]
    if kind == "lowered":
        try:
            models = [rnn_lower.lower(model, target=name, form=form) for form in TARGETS[name].forms]
        except rnn_lower.UnsupportedError as refusal:
            assert f"target {name} does not support" in str(refusal), refusal  # noqa: PT017
            return REFUSED, ""
    wanted = expected(case)
    found = (judge(name, model, feeds, wanted) for model in models)
    return next((result for result in found if result[0] != "right"), ("right", ""))


def judge(name: str, model: onnx.ModelProto, feeds: dict, wanted: list[np.ndarray]) -> judging.Outcome:
    try:
        return judging.outcome(RUNNERS[name][1](model, feeds), wanted, limit_of(name, wanted))
    except Exception as failure:  # whatever a runtime raises
        return judging.ERROR, type(failure).__name__


def work(name: str, kind: str, start: int) -> None:
    """Print one JSON line before and one after each feature."""
    warnings.simplefilter("ignore")
    for index, feature in list(enumerate(FEATURES))[start:]:
        print(json.dumps({"index": index}), flush=True)
        print(json.dumps({"index": index, "feature": feature, "result": measure(name, kind, feature)}), flush=True)


def collect(name: str, kind: str) -> dict[str, list[str]]:
    results: dict[str, list[str]] = {}
    start, features = 0, list(FEATURES)
    while start < len(features):
        done = subprocess.run(
            [sys.executable, __file__, name, "--work", kind, "--start", str(start)],
            capture_output=True,
            text=True,
            check=False,
        )
        at = start
        for line in done.stdout.splitlines():
            if line.startswith('{"index"'):
                row = json.loads(line)
                at = row["index"]
                if "feature" in row:
                    results[row["feature"]] = row["result"]
                    at += 1
        if at < len(features):
            results[features[at]] = ["error", f"the process ended with {done.returncode}"]
        start = at + 1
    return results


def write_page(data: dict, folder: Path) -> None:
    page = folder / "runtimes.md"
    before, after = re.split(r"(?:^\|.*\n)+", page.read_text(), maxsplit=1, flags=re.MULTILINE)
    lines = [
        "| runtime | version | native right | native silently wrong | native error | lowered right |",
        "|---" * 6 + "|",
    ]
    for name, row in data.items():
        native, lowered = ([state for state, _ in row[kind].values()] for kind in ("fused", "lowered"))
        counts = [*map(native.count, ("right", "wrong", "error")), lowered.count("right")]
        lines.append(f"| {name} | {row['version']} | {' | '.join(map(str, counts))} |")
    page.write_text("\n".join([before + lines[0], *lines[1:], after]))
    with (folder / "runtimes.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["feature", *(f"{name} {kind}" for name in data for kind in ("fused", "lowered"))])
        for feature in FEATURES:
            cells = [
                row[kind].get(feature, ["not measured", ""]) for row in data.values() for kind in ("fused", "lowered")
            ]
            rows.writerow([feature, *(detail if state == "wrong" else state for state, detail in cells)])


def write_fused(name: str, rows: dict[str, list[str]]) -> None:
    """What was measured of the fused operators, as the last tables of the target's file."""
    path = HERE.parent.parent / "rnn_lower" / "targeting" / f"{name}.toml"
    text = path.read_text(encoding="utf-8").split("\n[fused.")[0].rstrip() + "\n"
    path.write_text(text + tomli_w.dumps({"fused": fused_tables(rows)}), encoding="utf-8")


def draw(data: dict, folder: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.colors import ListedColormap

    levels = {"right": 0, "error": 1, "wrong": 2, "not measured": 3, REFUSED: 4}
    grid = [
        [levels[row[kind].get(feature, ["not measured"])[0]] for row in data.values() for kind in ("fused", "lowered")]
        for feature in FEATURES
    ]
    figure, axes = plt.subplots(figsize=(1.5 + 0.75 * len(data), 2 + 0.19 * len(FEATURES)), layout="constrained")
    axes.imshow(
        grid,
        cmap=ListedColormap(["#5aa469", "#d9d9d9", "#d35d6e", "#ffffff", "#8fb8de"]),
        vmin=0,
        vmax=4,
        aspect="auto",
    )
    axes.set_yticks(range(len(FEATURES)), list(FEATURES), fontsize=7)
    axes.set_xticks(range(2 * len(data)), ["fused", "lowered"] * len(data), rotation=90, fontsize=7)
    for column, name in enumerate(data):
        axes.text(2 * column + 0.5, -0.8, name, ha="left", va="bottom", rotation=45, fontsize=8)
        axes.axvline(2 * column + 1.5, color="white", linewidth=3)
    axes.set_title(
        "green: right   grey: error   red: silently wrong   blue: refused by a rule of the target", fontsize=9, pad=64
    )
    figure.savefig(folder / "runtimes.png", dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runtimes", nargs="*")
    parser.add_argument("--docs", type=Path, default=HERE.parent.parent / "docs")
    parser.add_argument("--pages", action="store_true", help="only write the pages again")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--start", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.runtimes[0], arguments.work, arguments.start)
        return
    kept = arguments.docs / "runtimes.json"
    data = json.loads(kept.read_text()) if kept.exists() else {}
    for name in () if arguments.pages else arguments.runtimes or [name for name in RUNNERS if not missing(name)]:
        data[name] = {"version": version(name), **{kind: collect(name, kind) for kind in ("fused", "lowered")}}
        print(
            f"{name} {version(name)}: fused {count_outcomes(data[name]['fused'].values())}; lowered {count_outcomes(data[name]['lowered'].values())}",
            flush=True,
        )
        kept.write_text(json.dumps(data, indent=0))
        write_fused(name, data[name]["fused"])
    write_page(data, arguments.docs)
    draw(data, arguments.docs)


if __name__ == "__main__":
    main()
