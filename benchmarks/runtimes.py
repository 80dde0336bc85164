"""Which form is the fastest that is right on each runtime: fused and every form side by side, on one thread.

    python benchmarks/runtimes.py [RUNTIME ...] [--seconds 0.4] [--docs docs]

Runs of all forms of one layer take turns. A time is the shortest processor time of a run, because other processes only
add to it. Every result is compared with the expected one. Writes docs/forms.json, from which docs/tables.py makes a
table of docs/speed.md; runtimes can be measured one at a time.
"""  # fmt: skip

from __future__ import annotations

import argparse
import itertools
import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support"), str(ROOT / "tests" / "runtimes"), str(ROOT / "benchmarks")]

from judge import expected  # noqa: E402
from onenode import OPTIONAL, Case, build  # noqa: E402
from runners import version  # noqa: E402
from timing import session  # noqa: E402

import rnn_lower  # noqa: E402
from rnn_lower.targeting import TARGETS  # noqa: E402
from rnn_lower.targeting.probe.results import largest_difference  # noqa: E402

Feeds = Mapping[str, np.ndarray]
Opened = Callable[[], list[np.ndarray]]
LAYERS = [" ".join(map(str, one)) for one in itertools.product(("LSTM", "GRU"), (16, 64), (1, 8), (64, 256))]
"""Operator, T, N and H of each; as many inputs as units."""


def case_of(layer: str) -> Case:
    op, T, N, H = layer.split()
    states = tuple(name for name in OPTIONAL[op] if name.startswith("initial"))
    return Case(op, 17, T=int(T), N=int(N), I=int(H), H=int(H), optional=("B", *states))


def machine() -> str:
    """The processor and the versions that times depend on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    processor = names[0] if names else platform.machine()
    return f"{processor}, onnxruntime {ort.__version__}, Python {platform.python_version()}"


def onnxruntime(path: str, feeds: Feeds) -> Opened:
    opened = session(onnx.load(path), 1)
    return lambda: opened.run(None, dict(feeds))


def openvino(path: str, feeds: Feeds) -> Opened:
    import openvino as ov

    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1}
    core = ov.Core()
    compiled = core.compile_model(core.read_model(path), "CPU", settings)
    count = len(compiled.outputs)

    def run() -> list[np.ndarray]:
        results = compiled(dict(feeds))
        return [results[k] for k in range(count)]

    return run


def tract(path: str, feeds: Feeds) -> Opened:
    import tract as library

    runnable = library.onnx().load(path).into_model().into_runnable()
    given = list(feeds.values())
    return lambda: [value.to_numpy() for value in runnable.run(given)]


def opencv(path: str, feeds: Feeds) -> Opened:
    import cv2

    cv2.setNumThreads(1)
    net = cv2.dnn.readNetFromONNX(path)
    names = [value.name for value in onnx.load(path).graph.output]

    def run() -> list[np.ndarray]:
        for name, value in feeds.items():
            net.setInput(cv2.Mat(value), name)
        return list(net.forward(names))

    return run


RUNTIMES = {"onnxruntime": onnxruntime, "openvino": openvino, "tract": tract, "opencv": opencv}


def measure(name: str, layer: str, seconds: float) -> dict[str, list[float]]:
    """By form, microseconds of a run and seconds of loading; what fails or is wrong is left out."""
    case = case_of(layer)
    model, feeds = build(case)
    wanted = expected(case)
    opened: dict[str, Opened] = {}
    loading: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for form in ("fused", *TARGETS[name].forms):
            path = f"{folder}/{form}.onnx"
            onnx.save(model if form == "fused" else rnn_lower.lower(model, target=name, form=form), path)
            try:
                start = time.process_time()
                run = RUNTIMES[name](path, feeds)
                got = run()
                loading[form] = time.process_time() - start
                assert largest_difference(got, wanted) < 1e-3
            except Exception as error:  # whatever a runtime raises
                print(f"{name} {layer} {form}: {type(error).__name__} {str(error)[:80]}", flush=True)
                continue
            opened[form] = run
        times = interleaved(opened, seconds)
    return {form: [round(1e6 * times[form], 1), round(loading[form], 3)] for form in opened}


def interleaved(opened: Mapping[str, Opened], seconds: float) -> dict[str, float]:
    """The least processor time of a run of each, in turns."""
    best = dict.fromkeys(opened, float("inf"))
    repeat = {}
    for name, run in opened.items():  # a clock of processor time is coarse
        start = time.process_time()
        run()
        repeat[name] = max(1, int(2e-3 / max(time.process_time() - start, 1e-5)))
    end = time.perf_counter() + seconds
    rounds = 0
    while rounds < 4 or time.perf_counter() < end:
        for name, run in opened.items():
            start = time.process_time()
            for _ in range(repeat[name]):
                run()
            best[name] = min(best[name], (time.process_time() - start) / repeat[name])
        rounds += 1
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runtimes", nargs="*", default=list(RUNTIMES))
    parser.add_argument("--seconds", type=float, default=0.4, help="for each layer")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs")
    arguments = parser.parse_args()
    kept = arguments.docs / "forms.json"
    data = json.loads(kept.read_text()) if kept.exists() else {}
    for name in arguments.runtimes:
        rows = {}
        for layer in LAYERS:
            rows[layer] = found = measure(name, layer, arguments.seconds)
            told = " ".join(f"{form} {run:.0f}us/{load:.2f}s" for form, (run, load) in found.items())
            print(f"{name} {layer}: {told}", flush=True)
        data[name] = {"version": version(name), "machine": machine(), "rows": rows}
        kept.write_text(json.dumps(data, indent=0))


if __name__ == "__main__":
    main()
