"""Run every feature, fused and lowered, on every installed runtime and write docs/runtimes.md with a picture of it.

    python tests/runtimes/matrix.py [RUNTIME ...] [--docs FOLDER]

Each runtime works in a process of its own, which may crash: the model it was at then counts as an error.
Results are kept in docs/runtimes.json, so that runtimes can be measured one by one.
"""  # fmt: skip

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import onnx

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent.parent)]

from features import FEATURES  # noqa: E402
from judge import expected  # noqa: E402
from onenode import build  # noqa: E402
from runners import RUNNERS, largest_difference, missing, version  # noqa: E402

import rnn_lower  # noqa: E402
from rnn_lower.targets import TARGETS  # noqa: E402

LIMIT = 1e-4
NOTES = """
Tried and not in the table:

- onnxruntime-web 1.30.0 (wasm, one thread, in node; target `onnxruntime`, forms scan and loop), measured by hand with the
  same models: fused 50 right, 1 silently wrong, 3 error (layout 1); lowered 54 right. A browser page was not tried.
- MNN takes Loop and unrolled graphs (target `mnn`), but its converter installs packages and reports home when it is
  imported. It is tried by hand in a throw-away environment only, never by this script.
- jaxonnxruntime 0.3.0 (jax 0.10.2; it needs absl-py besides), measured by hand in an environment of its own with target
  `portable`: lowered 54 right.
- ncnn and onnx2tf were not tried; target `portable` is the form they are closest to.

Random models of opset 13 to 17 in every form (`tests/fuzz.py --runtime NAME --seed 11`), all right: OpenVINO 1,793, OpenCV
1,000, onnx2torch 1,000, ReferenceEvaluator 600, TVM 150, tinygrad 100, IREE 60. Of 2,000 for OpenVINO 207 were not compared:
the target refuses a Scan with computed weights, and one model has values beyond 1e30. tract: 988 of 1,000 right; the others it
refuses with "inconsistent fact", because a state is constant (Affine or ScaledTanh with a factor of 0).

What other runtimes forced on the emitted graph, besides what `--target` does: OpenVINO 2026.4.1 computes Add in the memory of
its first operand. With the projected input first, an RNN in a Scan of known length comes out silently wrong there; so the
recurrent product stands first in all sums. Its Scan takes only constants from outside of the body, its Loop anything.
OpenCV 5.0's Tanh is NaN above 44 (a speech enhancer, GTCRN, has such values) and its Softplus, as tract's, infinite above 88.7:
targets `opencv` and `portable` limit the input of Tanh to 20 in size, and Softplus is computed in a way that does not overflow.

Real models (`test_real_models`): a Keras export with two LSTM (DTLN) runs right on every runtime of the table when lowered
with its target; a speech enhancer with fourteen GRU (GTCRN) does too, but on the ReferenceEvaluator, tinygrad and IREE, which
refuse it, fused or lowered, for other operators: Conv with groups, Gather and ConvTranspose. A voice detector whose LSTM lie in If branches (Silero) runs right on onnxruntime and on the ReferenceEvaluator;
OpenVINO 2026.4.1 refuses it, fused or lowered, for other operators: Conv and ReduceMean of unknown rank or type.

How to read it: "right" is a largest absolute difference to onnxruntime of at most 1e-4 in float32 with equal shapes; a
number is that difference where it is larger, which is a silent wrong result; "error" is an exception or a crash.
"""


def measure(name: str, kind: str, feature: str) -> tuple[str, str]:
    """("right", ""), ("wrong", by how much) or ("error", why); lowered is right when every form of the target is."""
    case = FEATURES[feature]
    model, feeds = build(case)
    models = [model]
    if kind == "lowered":
        models = [rnn_lower.lower(model, target=name, form=form) for form in TARGETS[name].forms]
    wanted = expected(case)
    found = (judge(name, model, feeds, wanted) for model in models)
    return next((result for result in found if result[0] != "right"), ("right", ""))


def judge(name: str, model: onnx.ModelProto, feeds: dict, wanted: list[np.ndarray]) -> tuple[str, str]:
    try:
        got = RUNNERS[name][1](model, feeds)
        if [np.shape(a) for a in got] != [b.shape for b in wanted]:
            return "wrong", "shape"
        error = largest_difference(got, wanted)
    except Exception as failure:  # whatever a runtime raises
        return "error", type(failure).__name__
    return ("right", "") if error <= LIMIT else ("wrong", f"{error:.2g}")


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


def summary(results: dict[str, list[str]]) -> str:
    states = [state for state, _ in results.values()]
    return f"{states.count('right')} right, {states.count('wrong')} silently wrong, {states.count('error')} error"


def write_page(data: dict, folder: Path) -> None:
    lines = [
        "# Runtimes, measured", "",
        f"Written by `tests/runtimes/matrix.py`: {len(FEATURES)} one-node models (opset 17, T = 5, N = 2, I = 3, H = 4),",
        "the fused operator beside the graph lowered with that target, in every form that the target takes.", "",
        "![lowered and fused](runtimes.png)", "", "| runtime | version | fused | lowered |", "|---|---|---|---|",
    ]  # fmt: skip
    for name, row in data.items():
        lines.append(f"| {name} | {row['version']} | {summary(row['fused'])} | {summary(row['lowered'])} |")
    lines += [
        NOTES,
        "## By feature: fused / lowered",
        "",
        "| feature | " + " | ".join(data) + " |",
        "|---" * (len(data) + 1) + "|",
    ]
    for feature in FEATURES:
        cells = []
        for row in data.values():
            pair = [row[kind].get(feature, ["error", "not measured"]) for kind in ("fused", "lowered")]
            cells.append(" / ".join(detail if state == "wrong" else state for state, detail in pair))
        lines.append(f"| {feature} | " + " | ".join(cells) + " |")
    (folder / "runtimes.md").write_text("\n".join(lines) + "\n")


def draw(data: dict, folder: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.colors import ListedColormap

    levels = {"right": 0, "error": 1, "wrong": 2}
    grid = [
        [levels[row[kind].get(feature, ["error"])[0]] for row in data.values() for kind in ("fused", "lowered")]
        for feature in FEATURES
    ]
    figure, axes = plt.subplots(figsize=(1.5 + 0.75 * len(data), 2 + 0.19 * len(FEATURES)), layout="constrained")
    axes.imshow(grid, cmap=ListedColormap(["#5aa469", "#d9d9d9", "#d35d6e"]), vmin=0, vmax=2, aspect="auto")
    axes.set_yticks(range(len(FEATURES)), list(FEATURES), fontsize=7)
    axes.set_xticks(range(2 * len(data)), ["fused", "lowered"] * len(data), rotation=90, fontsize=7)
    for column, name in enumerate(data):
        axes.text(2 * column + 0.5, -0.8, name, ha="left", va="bottom", rotation=45, fontsize=8)
        axes.axvline(2 * column + 1.5, color="white", linewidth=3)
    axes.set_title("green: right   grey: error   red: silently wrong", fontsize=9, pad=64)
    figure.savefig(folder / "runtimes.png", dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runtimes", nargs="*")
    parser.add_argument("--docs", type=Path, default=HERE.parent.parent / "docs")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--start", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.runtimes[0], arguments.work, arguments.start)
        return
    kept = arguments.docs / "runtimes.json"
    data = json.loads(kept.read_text()) if kept.exists() else {}
    for name in arguments.runtimes or [name for name in RUNNERS if not missing(name)]:
        data[name] = {"version": version(name), **{kind: collect(name, kind) for kind in ("fused", "lowered")}}
        print(
            f"{name} {version(name)}: fused {summary(data[name]['fused'])}; lowered {summary(data[name]['lowered'])}",
            flush=True,
        )
        kept.write_text(json.dumps(data, indent=0))
    write_page(data, arguments.docs)
    draw(data, arguments.docs)


if __name__ == "__main__":
    main()
