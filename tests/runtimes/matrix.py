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
"Right" means that all shapes are equal and that no value differs from the expected one by more than 1e-4, in float32. The native operators
of onnxruntime compute the expected values, or the project's reference implementation if the native result is not well defined. "Silently
wrong" is any other result, and "error" is an exception or a crash.

## Repeating the measurement

These commands install the runtimes and measure two of them:

    pip install torch==2.13.0 && pip install -e '.[test,runtimes]' && pip install --no-deps onnx2torch
    python tests/runtimes/matrix.py openvino tract

Without names, the script measures every installed runtime. The CPU device of tinygrad needs `clang` (version 19 works, version 14 does
not).

PyPI provides emx-onnx-cgen (which needs `gcc`), qonnx, jaxonnxruntime (with absl-py), aidge_core with aidge_onnx and aidge_backend_cpu, and
onnx2tf with tensorflow and ai-edge-litert. These packages do not all fit into one environment: qonnx 1.0.0 needs onnx 1.20. For
onnxruntime-web, set `NODE_MODULES` to a folder of npm packages with onnxruntime-web and puppeteer-core, and `CHROMIUM` to the browser.
Install rknn-toolkit2, ncnn (with pnnx) and onnxruntime-openvino in separate Python environments. rknn-toolkit2 requires an older onnx, and
onnxruntime-openvino replaces onnxruntime. Set `RKNN_PYTHON`, `NCNN_PYTHON` and `ORT_OPENVINO_PYTHON` to the interpreters of these
environments.

## Notes on the rows

- emx-onnx-cgen: the script compiles the generated C code with gcc and runs it. A Scan keeps the C code short.
- onnxruntime-web and onnxruntime-webgpu: one package, which the script runs in headless Chromium. onnxruntime-web uses WebAssembly with one
  thread, and onnxruntime-webgpu uses a software adapter. On WebGPU a **Scan is silently wrong** in 17 of the 60 features, so the target has
  no Scan.
- onnx2tf: LiteRT runs the TensorFlow Lite model that onnx2tf writes. The option `-kat` keeps the axes of the inputs.
- rknn: the simulator of rknn-toolkit2 for an RK3588, **not a chip**. The simulator computes in float16, so the limit for differences is
  0.01, or 0.01 times the largest expected value if this value is above 1.
- ncnn: the script runs the model that pnnx converts, in float32. ncnn has no comparisons and no integers, so `sequence_lens` must be a
  constant. The converter supports no recurrent operator.
- onnxruntime-openvino: onnxruntime with its OpenVINO provider. The provider ends the session if the model contains a Loop.
- opencv@classic: the engine of OpenCV 4, which 5.0 still contains (`cv2.dnn.ENGINE_CLASSIC`).
- qonnx: this package runs a graph node by node through onnxruntime. A Scan or Loop fails on qonnx.

The table does not include these runtimes:

- MNN runs Loop and unrolled graphs (target `mnn`). Importing its converter installs packages and contacts the vendor, so the script
  never runs it. MNN was tested by hand in an isolated environment.
- hls4ml refuses Slice, and was not tested further.

For any other runtime, use [a kit](new-target.md).

## Random models

`python tests/soak/fuzz.py --runtime NAME` compares random models in every form that the target accepts. Of 7,500 models on 21 runtimes,
7,460 were right. One model was wrong on rknn, and the rknn target now refuses it. The runtimes tract, OpenCV 4 and onnx2tf refused to load
the others. `python tests/soak/soaktargets.py` lowers random models for every target and runs them on onnxruntime. None of 1,207 results was
wrong.

## How runtimes shaped the lowered graph

These rules apply to every target:

- In every sum, the recurrent product is the first operand. OpenVINO 2026.4.1 computes Add in place, overwriting its first operand. If
  the projected input came first, OpenVINO would silently compute a wrong RNN in a Scan of known length.
- When the lowering builds Softplus from simpler operators, it uses a formula that does not overflow.

These rules apply to individual targets:

- OpenVINO's Scan reads only constants from outside its body. Computed weights therefore need a Loop, which reads any value.
- OpenCV 5.0's Tanh is NaN above 44, and a real speech enhancer (GTCRN) reaches this value. The targets `opencv` and `portable` limit the
  input of Tanh to [-20, 20].
- OpenCV 4 treats a computed vector as a column and silently broadcasts it along the wrong axis. The target `opencv@4` computes no tensors
  of rank 1.
- A WebGPU shader can bind at most 8 buffers, so a Concat or Split of more than 7 parts silently returns zeros. The targets
  `onnxruntime-webgpu` and `portable` emit none with more than 7 parts.
- The Softplus of OpenCV and tract is infinite above 88.7. The targets of OpenCV and tract, and `portable`, do not use this operator.

## Real models

`test_real_models` runs DTLN and GTCRN.

- DTLN, a Keras export with two LSTM nodes, runs correctly on each runtime when lowered for it, with two exceptions: jaxonnxruntime reads
  the end 2^63 - 1 of a Slice as -1, and onnx2tf transposes an output.
- GTCRN, a speech enhancer with fourteen GRU nodes, also runs correctly on most runtimes. The ReferenceEvaluator, tinygrad, IREE, aidge,
  jaxonnxruntime, onnx2tf and ncnn refuse some of the other operators of GTCRN (Conv with groups, Gather, ConvTranspose, Pad and Slice).
  Even with native nodes, the results differ on WebGPU, and in the ConvTranspose of OpenCV's classic engine. GTCRN was not tested on rknn,
  whose simulator takes minutes.
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
        f"`tests/runtimes/matrix.py` generates this page. The script runs {len(FEATURES)} models with one node each (opset 17, T = 5, N = 2, I = 3, H = 4), which",
        "cover the features of RNN, GRU and LSTM. Each runtime runs the native operator, and then the models lowered for its target, in every form",
        "that the target supports.", "",
        "![Every feature on every runtime, native and lowered](runtimes.png)", "",
        "[Another table](runtimes.csv) shows the same results, with the largest difference of each silently wrong result.", "",
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
