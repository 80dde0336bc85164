"""Measure how the time and memory of lowering grow with the model; both should grow in proportion to it.

    python benchmarks/scale.py [--docs docs] [--gigabytes 0.3 1.0 2.4 3.0]

Each measurement runs in its own process and reports its peak memory. Writes docs/scale.csv.
"""  # fmt: skip

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]


def graph_of(nodes: int, recurrent: int, T: int = 8, H: int = 8) -> onnx.ModelProto:
    """A chain of `nodes` Relu nodes, `recurrent` LSTM nodes among them, each with its own weights."""
    rng = np.random.default_rng(0)
    made, tensors, last = [], [], "X"
    every = max(1, nodes // max(1, recurrent))
    for k in range(nodes):
        if recurrent and k % every == 0 and k // every < recurrent:
            for name, shape in (("W", (1, 4 * H, H)), ("R", (1, 4 * H, H)), ("B", (1, 8 * H))):
                tensors.append(numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), f"{name}{k}"))
            made.append(
                helper.make_node("LSTM", [last, f"W{k}", f"R{k}", f"B{k}"], [f"y{k}"], name=f"lstm{k}", hidden_size=H)
            )
            made.append(helper.make_node("Squeeze", [f"y{k}", "axis"], [f"v{k}"]))
        else:
            made.append(helper.make_node("Relu", [last], [f"v{k}"], name=f"relu{k}"))
        last = f"v{k}"
    tensors.append(numpy_helper.from_array(np.array([1]), "axis"))
    infos = [helper.make_tensor_value_info(f"v{k}", TensorProto.FLOAT, [T, 1, H]) for k in range(nodes - 1)]
    graph = helper.make_graph(
        made, "g", [helper.make_tensor_value_info("X", TensorProto.FLOAT, [T, 1, H])],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, [T, 1, H])], tensors, value_info=infos,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def big_model(path: Path, gigabytes: float) -> None:
    """4 LSTM nodes among 300 MatMul nodes, the weights in an external file that is written piece by piece."""
    H, lstm = 512, 4
    size = int((gigabytes * 1e9 / 4 / 300) ** 0.5)
    offset, tensors, made, last = 0, [], [], "x"
    data = path.with_name(path.name + ".data")
    with open(data, "wb") as file:

        def tensor(name: str, shape: tuple[int, ...]) -> None:
            nonlocal offset
            values = np.full(shape, 1e-3, np.float32)
            file.write(values.tobytes())
            proto = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
            for key, value in (("location", data.name), ("offset", str(offset)), ("length", str(values.nbytes))):
                proto.external_data.add(key=key, value=value)
            tensors.append(proto)
            offset += values.nbytes

        for k in range(300):
            tensor(f"M{k}", (size, size))
            made.append(helper.make_node("MatMul", [last, f"M{k}"], [f"m{k}"], name=f"matmul{k}"))
            last = f"m{k}"
        for k in range(lstm):
            tensor(f"W{k}", (1, 4 * H, size if k == 0 else H))
            tensor(f"R{k}", (1, 4 * H, H))
            made.append(helper.make_node("LSTM", [last, f"W{k}", f"R{k}"], [f"y{k}"], name=f"lstm{k}", hidden_size=H))
            made.append(helper.make_node("Squeeze", [f"y{k}", "axis"], [f"s{k}"]))
            last = f"s{k}"
    tensors.append(numpy_helper.from_array(np.array([1]), "axis"))
    graph = helper.make_graph(
        made, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 1, size])],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, [8, 1, H])], tensors,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())


def peak_of(stop: threading.Event, found: list[int]) -> None:
    """Anonymous memory: pages of mapped weight files belong to the page cache, not to the process."""
    while not stop.is_set():
        with open("/proc/self/status") as status:
            found[0] = max(found[0], *(int(line.split()[1]) for line in status if line.startswith("RssAnon")))
        stop.wait(0.005)


def work(kind: str, source: str, destination: str, form: str) -> None:
    import rnn_lower

    rnn_lower.lower  # noqa: B018  imported before the clock starts
    found, stop = [0], threading.Event()
    watcher = threading.Thread(target=peak_of, args=(stop, found))
    watcher.start()
    start = time.perf_counter()
    if kind == "lower":
        rnn_lower.lower_file(source, destination, form=form)
    elif kind == "load+save":
        model = ir.load(source)
        ir.save(model, destination)
    else:
        shutil.copyfile(source + ".data", destination + ".data")
    seconds = time.perf_counter() - start
    stop.set()
    watcher.join()
    with open("/proc/self/status") as status:
        resident = next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024
    print(json.dumps({"seconds": seconds, "anonymous_mb": found[0] / 1024, "resident_mb": resident}))


def measure(kind: str, source: Path, form: str = "auto", runs: int = 1) -> dict[str, float]:
    """The fastest of some runs, each in its own process, with nothing left for the disk to write from the one before."""
    found = []
    for _ in range(runs):
        os.sync()
        with tempfile.TemporaryDirectory(dir=source.parent) as folder:
            command = [sys.executable, __file__, "--work", kind, str(source), str(Path(folder) / "out.onnx"), form]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    return min(found, key=lambda row: row["seconds"])


def graphs() -> Iterator[tuple[str, int, str, onnx.ModelProto]]:
    """What grows, how large it is, the form, the model."""
    for nodes in (1_000, 10_000, 100_000):
        yield "nodes, 10 of them LSTM", nodes, "auto", graph_of(nodes, 10)
    for recurrent in (10, 100, 1_000):
        yield "LSTM", recurrent, "auto", graph_of(2 * recurrent, recurrent)
    for T in (10, 100, 1_000, 2_000):
        yield "unrolled steps", T, "unroll", graph_of(1, 1, T=T)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", type=Path, default=ROOT / "docs")
    parser.add_argument("--gigabytes", type=float, nargs="*", default=[0.3, 1.0, 2.4, 3.0])
    parser.add_argument("--work", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(*arguments.work)
        return
    rows = [["what", "size", "lower (s)", "copy (s)", "peak anonymous (MB)", "peak resident (MB)"]]

    def row(what: str, size: float, mine: dict[str, float], other: dict[str, float] | None) -> None:
        copied = "" if other is None else f"{other['seconds']:.2f}"
        memory = [f"{mine['anonymous_mb']:.0f}", f"{mine['resident_mb']:.0f}"]
        rows.append([what, f"{size:.0f}", f"{mine['seconds']:.2f}", copied, *memory])
        print(*rows[-1], sep=", ", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        for what, size, form, model in graphs():
            onnx.save(model, path)
            row(what, size, measure("lower", path, form), None if form == "unroll" else measure("load+save", path))
        for gigabytes in arguments.gigabytes:
            big_model(path, gigabytes)
            row("external MB", 1000 * gigabytes, measure("lower", path, runs=3), measure("copy", path, runs=3))
    with (arguments.docs / "scale.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


if __name__ == "__main__":
    main()
