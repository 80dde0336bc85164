"""Runners of the runtimes that are measured, the product's own and others that take more to set up."""

from __future__ import annotations

import base64
import ctypes
import functools
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx

from rnn_lower.checking import runtimes
from rnn_lower.checking.runtimes import Runner, file_of
from rnn_lower.checking.samples import Feeds
from rnn_lower.targeting.probe.writing import LIMIT

__all__ = ["RUNNERS", "here", "limit_of", "missing", "version"]


def emx(model: onnx.ModelProto, feeds: Feeds) -> list[np.ndarray]:
    """To C, compiled by gcc and called."""
    with file_of(model) as path:
        source, library = path.replace(".onnx", ".c"), path.replace(".onnx", ".so")
        command = [str(Path(sys.executable).parent / "emx-onnx-cgen"), "compile", path, source, "--model-name", "model"]
        command += ["--large-weight-threshold", "0"]  # none in a file of its own
        subprocess.run(command, check=True, capture_output=True)
        subprocess.run(
            ["gcc", "-O0", "-shared", "-fPIC", source, "-o", library, "-lm"], check=True, capture_output=True
        )
        (told,) = re.findall(r"^void model\((.*)\) \{", Path(source).read_text(), re.MULTILINE)
        outputs = []
        for value in model.graph.output:
            (sizes,) = re.findall(rf"float {value.name}\[restrict (\d+)\]((?:\[\d+\])*)", told)
            outputs.append(np.zeros([int(size) for size in re.findall(r"\d+", " ".join(sizes))], np.float32))
        given = [np.ascontiguousarray(feeds[value.name]) for value in model.graph.input]
        ctypes.CDLL(library).model(*(array.ctypes.data_as(ctypes.c_void_p) for array in [*given, *outputs]))
        return outputs


def qonnx(model: onnx.ModelProto, feeds: Feeds) -> list[np.ndarray]:
    """Node by node, as its own passes execute a graph."""
    from qonnx.core.modelwrapper import ModelWrapper
    from qonnx.core.onnx_exec import execute_onnx
    from qonnx.transformation.infer_shapes import InferShapes

    results = execute_onnx(ModelWrapper(model).transform(InferShapes()), dict(feeds))
    return [results[value.name] for value in model.graph.output]


def jaxonnxruntime(model: onnx.ModelProto, feeds: Feeds) -> list[np.ndarray]:
    from jaxonnxruntime import backend, config

    config.update("jaxort_only_allow_initializers_as_static_args", False)
    results = backend.Backend.prepare(model).run([feeds[value.name] for value in model.graph.input])
    return [np.asarray(value) for value in results]


def aidge(model: onnx.ModelProto, feeds: Feeds) -> list[np.ndarray]:
    import aidge_backend_cpu  # noqa: F401
    import aidge_core
    import aidge_onnx

    with file_of(model) as path:
        graph = aidge_onnx.load_onnx(path)
    graph.set_backend("cpu")
    graph.set_datatype(aidge_core.dtype.float32)
    scheduler = aidge_core.SequentialScheduler(graph)
    scheduler.forward(data=[aidge_core.Tensor(feeds[value.name]) for value in model.graph.input])
    return [np.array(node.get_operator().get_output(place)) for node, place in graph.get_ordered_outputs()]


def onnx2tf(model: onnx.ModelProto, feeds: Feeds) -> list[np.ndarray]:
    """To TensorFlow Lite, run by LiteRT; inputs keep the axes that they have in ONNX."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import onnx2tf as library
    from ai_edge_litert.interpreter import Interpreter

    with file_of(model) as path:
        library.convert(
            input_onnx_file_path=path, output_folder_path=f"{path}.tf", non_verbose=True,
            keep_shape_absolutely_input_names=list(feeds),
        )  # fmt: skip
        interpreter = Interpreter(f"{path}.tf/model_float32.tflite")
    interpreter.allocate_tensors()
    for told in interpreter.get_input_details():
        name = next(name for name in sorted(feeds, key=len, reverse=True) if name in told["name"])
        interpreter.set_tensor(told["index"], feeds[name])
    interpreter.invoke()
    results = sorted(interpreter.get_output_details(), key=lambda told: (len(told["name"]), told["name"]))
    return [interpreter.get_tensor(told["index"]) for told in results]


ELSEWHERE = {
    "rknn-toolkit2": ("RKNN_PYTHON", "rknn_simulator.py"),
    "ncnn": ("NCNN_PYTHON", "ncnn_net.py"),
    "onnxruntime-openvino": ("ORT_OPENVINO_PYTHON", "openvino_provider.py"),
}
"""Distributions that want a Python of their own: the variable that names it, and the program that runs one model."""


def elsewhere(distribution: str) -> Runner:
    variable, program = ELSEWHERE[distribution]

    def run(model: onnx.ModelProto, feeds: Feeds) -> list[np.ndarray]:
        with file_of(model) as path:
            np.savez(f"{path}.npz", **{value.name: feeds[value.name] for value in model.graph.input})
            command = [os.environ[variable], str(Path(__file__).parent / "elsewhere" / program), path]
            subprocess.run(command, check=True, capture_output=True, timeout=120)
            with np.load(f"{path}.out.npz") as archive:
                return [archive[name] for name in archive.files]

    return run


@functools.cache
def browser(provider: str) -> subprocess.Popen[str]:
    """onnxruntime-web in a page of a headless Chromium, for as long as this process lives."""
    command = ["node", str(Path(__file__).parent / "web.mjs"), provider]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def web(provider: str) -> Runner:
    def run(model: onnx.ModelProto, feeds: Feeds) -> list[np.ndarray]:
        inputs = {
            name: {"type": str(array.dtype), "shape": array.shape, "data": base64.b64encode(array.tobytes()).decode()}
            for name, array in feeds.items()
        }
        names = [value.name for value in model.graph.output]
        job = {"model": base64.b64encode(model.SerializeToString()).decode(), "inputs": inputs, "outputs": names}
        page = browser(provider)
        assert page.stdin is not None and page.stdout is not None  # noqa: PT018
        page.stdin.write(json.dumps(job) + "\n")
        page.stdin.flush()
        told = json.loads(page.stdout.readline())
        if "error" in told:
            raise RuntimeError(told["error"])
        return [
            np.frombuffer(base64.b64decode(one["data"]), np.float32).reshape(one["shape"]) for one in told["outputs"]
        ]

    return run


RUNNERS: dict[str, tuple[str, Runner]] = {
    **runtimes.RUNNERS,
    "emx-onnx-cgen": ("emx-onnx-cgen", emx),
    "qonnx": ("qonnx", qonnx),
    "jaxonnxruntime": ("jaxonnxruntime", jaxonnxruntime),
    "aidge": ("aidge_core", aidge),
    "onnx2tf": ("onnx2tf", onnx2tf),
    "rknn": ("rknn-toolkit2", elsewhere("rknn-toolkit2")),
    "ncnn": ("ncnn", elsewhere("ncnn")),
    "onnxruntime-openvino": ("onnxruntime-openvino", elsewhere("onnxruntime-openvino")),
    "onnxruntime-web": ("onnxruntime-web", web("wasm")),
    "onnxruntime-webgpu": ("onnxruntime-web", web("webgpu")),
}
"""By target: the distribution, and the runner."""


FLOAT16 = ("rknn",)
"""Runtimes that compute in float16."""


def limit_of(name: str, wanted: list[np.ndarray]) -> float:
    """The largest absolute difference that counts as right; in float16 it grows with the values."""
    if name not in FLOAT16:
        return LIMIT
    return 1e-2 * max(1.0, *(float(np.max(np.abs(one), initial=0.0)) for one in wanted))


def missing(name: str) -> str | None:
    """Why a runtime cannot be run here, or None."""
    if name in runtimes.RUNNERS:
        return runtimes.missing(name)
    distribution = RUNNERS[name][0]
    try:
        version(name)
    except (importlib.metadata.PackageNotFoundError, OSError, KeyError):
        where = {name: f"{variable} is no Python that has it" for name, (variable, _) in ELSEWHERE.items()}
        where["onnxruntime-web"] = "NODE_MODULES has it not"
        return f"{distribution} is not installed{f' ({where[distribution]})' if distribution in where else ''}"
    if name == "emx-onnx-cgen" and shutil.which("gcc") is None:
        return "gcc, which emx-onnx-cgen needs, is not installed"
    return None


def here(name: str) -> str:
    """The name of a runtime; skips the test if it cannot be run here."""
    import pytest  # which benchmarks do without

    if (why := missing(name)) is not None:
        pytest.skip(why)
    return name


@functools.cache
def version(name: str) -> str:
    """Raises PackageNotFoundError, OSError or KeyError where it is not installed."""
    distribution = RUNNERS[name][0]
    if distribution == "onnxruntime-web":
        told = Path(os.environ["NODE_MODULES"], distribution, "package.json").read_text()
        return str(json.loads(told)["version"])
    if distribution in ELSEWHERE:
        asked = f"import importlib.metadata; print(importlib.metadata.version('{distribution}'))"
        python = os.environ[ELSEWHERE[distribution][0]]
        done = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=False)
        if done.returncode:
            raise importlib.metadata.PackageNotFoundError(distribution)
        return done.stdout.strip()
    return importlib.metadata.version(distribution)
