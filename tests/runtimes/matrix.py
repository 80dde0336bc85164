"""Run every feature, fused and lowered, on every installed runtime; write docs/runtimes.md and docs/runtimes.png.

    python tests/runtimes/matrix.py [RUNTIME ...] [--docs FOLDER]

Each runtime works in its own process, which may crash: the model it was running then counts as an error.
Results are kept in docs/runtimes.json, so that runtimes can be measured one at a time.
"""  # fmt: skip

from __future__ import annotations

import argparse
import csv
import json
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

NOTES = """
"Right" means that all shapes are equal and that no value differs from the expected one by more than 1e-4, in float32. "Error" means an
exception or a crash, and "silently wrong" is any other result. The expected values come from the native operators of onnxruntime or, where
their result is not well defined, from the project's reference implementation.

## Repeating the measurement

These commands install the runtimes and measure two of them:

    pip install torch==2.13.0 && pip install -e '.[test,runtimes]' && pip install --no-deps onnx2torch
    python tests/runtimes/matrix.py openvino tract

Without arguments, the script measures every installed runtime. The CPU device of tinygrad needs `clang` (version 19 works, version 14 does
not).

Other runtimes are on PyPI: emx-onnx-cgen (which needs `gcc`), qonnx, jaxonnxruntime (with absl-py), aidge_core with aidge_onnx and
aidge_backend_cpu, and onnx2tf with tensorflow and ai-edge-litert. These packages cannot all share one environment, because qonnx 1.0.0
needs onnx 1.20. For onnxruntime-web, set `NODE_MODULES` to a folder of npm packages with onnxruntime-web and puppeteer-core, and `CHROMIUM`
to the browser. Install rknn-toolkit2 (which requires an older onnx), ncnn (with pnnx) and onnxruntime-openvino (which replaces onnxruntime)
in separate Python environments. Set `RKNN_PYTHON`, `NCNN_PYTHON` and `ORT_OPENVINO_PYTHON` to the interpreters of these environments.

## Notes on the rows

- emx-onnx-cgen generates C code, which the script compiles with gcc and runs. Models in Scan form keep this code short.
- onnxruntime-web and onnxruntime-webgpu are one npm package, which the script runs in headless Chromium. onnxruntime-web uses WebAssembly
  with one thread, and onnxruntime-webgpu uses a software adapter. On WebGPU, a **Scan is silently wrong** for 17 of the 60 features, so the
  target does not use Scan.
- onnx2tf writes a TensorFlow Lite model, which LiteRT runs. The option `-kat` keeps the axes of the inputs.
- rknn is the RK3588 simulator of rknn-toolkit2, **not a chip**. The simulator computes in float16, so differences of up to 0.01 count as
  right, or of up to 0.01 times the largest expected value if that value is above 1.
- ncnn runs the model that pnnx converts, in float32. ncnn has no comparisons and no integers, so `sequence_lens` must be a constant. The
  converter supports no recurrent operator.
- onnxruntime-openvino is onnxruntime with its OpenVINO provider, which ends the session if the model contains a Loop.
- opencv@classic is the engine of OpenCV 4, which 5.0 still contains (`cv2.dnn.ENGINE_CLASSIC`).
- qonnx runs a graph node by node through onnxruntime, and cannot run Scan or Loop.

The table does not include two runtimes that were tried:

- MNN runs Loop and unrolled graphs (target `mnn`). MNN was tested by hand in isolation, because importing its converter installs packages
  and contacts the vendor.
- hls4ml refuses Slice, and was not tested further.

Any other runtime can be measured with [a kit](new-target.md).

## Random models

`python tests/soak/fuzz.py --runtime NAME` lowers random models in every form that the target accepts, and compares the results. Of 7,500
models on 21 runtimes, 7,460 were right. One model was wrong on rknn, and the rknn target now refuses this model. The others failed to load
on tract, OpenCV 4 or onnx2tf. `python tests/soak/soaktargets.py` lowers random models for every target and runs them on onnxruntime. All
1,207 results were right.

## How runtimes shaped the lowered graph

These rules apply to every target:

- In every sum, the recurrent product is the first operand, because OpenVINO 2026.4.1 computes Add in place and overwrites its first
  operand. If the projected input came first, OpenVINO would silently return wrong results for an RNN in a Scan of known length.
- If the lowering composes Softplus from simpler operators, it uses a formula that does not overflow.

These rules apply to individual targets:

- The body of a Scan on OpenVINO can read only constants from outside, so a node with computed weights becomes a Loop, whose body can read
  any value.
- The Tanh of OpenCV 5.0 returns NaN above 44, and a real speech enhancer (GTCRN) reaches such values. The targets `opencv` and `portable`
  limit the input of Tanh to [-20, 20].
- OpenCV 4 treats a computed vector as a column and silently broadcasts it along the wrong axis. The target `opencv@4` computes no tensors
  of rank 1.
- A WebGPU shader can bind at most 8 buffers, so a Concat or Split of more than 7 parts silently returns zeros. For the targets
  `onnxruntime-webgpu` and `portable`, no Concat or Split has more than 7 parts.
- The Softplus of OpenCV and tract returns infinity above 88.7. The targets of OpenCV and tract, and `portable`, do not use this operator.

## Real models

`test_real_models` runs DTLN and GTCRN.

- DTLN, a Keras export with two LSTM nodes, runs correctly on every runtime when lowered for that runtime, with two exceptions:
  jaxonnxruntime reads a Slice end of 2^63 - 1 as -1, and onnx2tf transposes an output.
- GTCRN, a speech enhancer with fourteen GRU nodes, also runs correctly on most runtimes. The ReferenceEvaluator, tinygrad, IREE, aidge,
  jaxonnxruntime, onnx2tf and ncnn refuse some of its other operators (Conv with groups, Gather, ConvTranspose, Pad and Slice). On WebGPU,
  and in the ConvTranspose of OpenCV's classic engine, the results are wrong even with native nodes. GTCRN was not tested on rknn, whose
  simulator takes minutes.
- Silero, a voice detector with LSTM nodes in If branches, runs correctly on onnxruntime and on the ReferenceEvaluator. OpenVINO 2026.4.1
  refuses Silero, native or lowered, because of a Conv and a ReduceMean of unknown rank or type.
"""


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
    lines = [
        "# Runtimes", "",
        f"`tests/runtimes/matrix.py` generates this page. The {len(FEATURES)} models have one node each (opset 17, T = 5, N = 2, I = 3, H = 4) and cover the",
        "features of RNN, GRU and LSTM. Each runtime runs the model with the native operator, and then the models lowered for its target, in every",
        "form that the target supports.", "",
        "![Every feature on every runtime, native and lowered](runtimes.png)", "",
        "[A CSV file](runtimes.csv) contains the same results, with the largest difference of each silently wrong result.", "",
        "| runtime | version | native | lowered |", "|---|---|---|---|",
    ]  # fmt: skip
    for name, row in data.items():
        counts = [count_outcomes(row[kind].values()) if row[kind] else "not measured" for kind in ("fused", "lowered")]
        lines.append(f"| {name} | {row['version']} | {' | '.join(counts)} |")
    (folder / "runtimes.md").write_text("\n".join([*lines, NOTES]) + "\n")
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
