"""Run a model on other runtimes, if their packages are installed.

A runner accepts a model and its inputs; it returns the outputs in order. Most runners need a model whose sizes are all
known; those of `FREE` also run others.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from rnn_lower.checking import runners
from rnn_lower.checking.samples import Feeds
from rnn_lower.errors import RnnLowerError, one_line
from rnn_lower.ir import protobuf
from rnn_lower.modelio.document import Document
from rnn_lower.shapes.fixed_dims import axis_name, declared_shapes, fix_proto_dims, free_dims
from rnn_lower.targeting import TARGETS

Runner = Callable[[onnx.ModelProto, Feeds], list[Any]]


@contextlib.contextmanager
def file_of(model: onnx.ModelProto) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(model, path)
        yield str(path)


def openvino(model: onnx.ModelProto, feeds: Feeds) -> list[Any]:
    import openvino as ov

    core = ov.Core()
    with file_of(model) as path:
        compiled = core.compile_model(core.read_model(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        results = compiled(dict(feeds))
        arrays = [np.array(results[place]) for place in range(len(compiled.outputs))]
    is_bfloat16 = [output.get_element_type() == ov.Type.bf16 for output in compiled.outputs]  # returned as float16
    return [a.view(ml_dtypes.bfloat16) if is_other else a for a, is_other in zip(arrays, is_bfloat16, strict=True)]


def tract(model: onnx.ModelProto, feeds: Feeds) -> list[Any]:
    import tract as library

    with file_of(model) as path:
        names = [value.name for value in model.graph.input]
        runnable = library.onnx().load(path).into_model().into_runnable()
        return [value.to_numpy() for value in runnable.run([feeds[name] for name in names])]


def opencv(model: onnx.ModelProto, feeds: Feeds, *, classic: bool = False) -> list[Any]:
    """A runner on OpenCV. classic: use the engine of 4.x, which 5.0 still contains."""
    import cv2

    with file_of(model) as path:
        net = cv2.dnn.readNetFromONNX(path, *([cv2.dnn.ENGINE_CLASSIC] if classic else []))
    for name, value in feeds.items():
        net.setInput(cv2.Mat(value), name)  # before 4.11, the last axis of a rank-3 array would become channels
    names = [value.name for value in model.graph.output]
    results = net.forward(names)
    return [np.array(value) for value in results]


def onnx2torch(model: onnx.ModelProto, feeds: Feeds) -> list[Any]:
    from unittest import mock

    import torch

    # onnx2torch imports torchvision for two operators of object detection; its wheels do not load with a CPU-only torch
    for name in ("torchvision", "torchvision.ops"):
        sys.modules.setdefault(name, mock.MagicMock())
    from onnx2torch import convert

    module = convert(model).eval()
    with torch.no_grad():
        results = module(*[torch.from_numpy(feeds[value.name].copy()) for value in model.graph.input])
    results = results if isinstance(results, (list, tuple)) else [results]
    return [value.numpy() for value in results]


def tinygrad(model: onnx.ModelProto, feeds: Feeds) -> list[Any]:
    os.environ.setdefault("DEV", "CPU")
    from tinygrad import Tensor
    from tinygrad.nn.onnx import OnnxRunner

    with file_of(model) as path:
        runner = OnnxRunner(path)
        results = runner({name: Tensor(value) for name, value in feeds.items()})
        return [results[value.name].numpy() for value in model.graph.output]


def tvm(model: onnx.ModelProto, feeds: Feeds) -> list[Any]:
    import tvm as library
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    module = from_onnx(model, keep_params_in_input=False)
    module = relax.transform.LegalizeOps()(module)
    with library.transform.PassContext(opt_level=1):
        built = relax.build(module, target="llvm")
    machine = relax.VirtualMachine(built, library.cpu())
    arguments = [library.runtime.tensor(feeds[value.name]) for value in model.graph.input]
    results = machine["main"](*arguments)
    results = [results] if hasattr(results, "numpy") else list(results)
    return [value.numpy() for value in results]


def iree(model: onnx.ModelProto, feeds: Feeds) -> list[Any]:
    import iree.compiler.tools as tools
    import iree.runtime as runtime

    with file_of(model) as path:
        text, cpu = path.replace(".onnx", ".mlir"), ["--iree-llvmcpu-target-cpu=host"]
        imported = [sys.executable, "-m", "iree.compiler.tools.import_onnx", path, "-o", text]
        subprocess.run(imported, check=True, capture_output=True)
        binary = tools.compile_file(text, target_backends=["llvm-cpu"], extra_args=cpu, input_type="onnx")
    config = runtime.Config("local-task")
    module = runtime.load_vm_module(runtime.VmModule.copy_buffer(config.vm_instance, binary), config)
    names = module.vm_module.function_names
    name = next(name for name in names if not name.startswith("__") and not name.endswith("$async"))
    results = module[name](*[feeds[value.name] for value in model.graph.input])
    results = [results] if hasattr(results, "to_host") else list(results)
    return [np.array(value.to_host()) for value in results]


def onnx_reference(model: onnx.ModelProto, feeds: Feeds) -> list[Any]:
    """Run onnx's own operators, without those of `rnn_lower.proving.exact.reference`."""
    return list(ReferenceEvaluator(model).run(None, feeds))


def onnxruntime(model: onnx.ModelProto, feeds: Feeds) -> list[Any]:
    return runners.open_onnxruntime(Document(model))(feeds)


RUNNERS: dict[str, tuple[str, Runner]] = {
    "onnxruntime": ("onnxruntime", onnxruntime),
    "onnxruntime@1.20": ("onnxruntime", onnxruntime),
    "onnxruntime@1.17": ("onnxruntime", onnxruntime),
    "onnx-reference": ("onnx", onnx_reference),
    "openvino": ("openvino", openvino),
    "tract": ("tract", tract),
    "opencv": ("opencv-python-headless", opencv),
    "opencv@4": ("opencv-python-headless", opencv),
    "opencv@classic": ("opencv-python-headless", functools.partial(opencv, classic=True)),
    "onnx2torch": ("onnx2torch", onnx2torch),
    "tinygrad": ("tinygrad", tinygrad),
    "tvm": ("apache-tvm", tvm),
    "iree": ("iree-base-compiler", iree),
}
"""By target: the package on PyPI, and the runner."""

FREE = ("onnxruntime", "onnx-reference", "openvino", "tract", "onnx2torch")
"""Runtimes that run models with free sizes."""

WITH_THREADS = {"openvino", "torch", "cv2", "tvm", "iree.runtime"}
"""Modules that start threads: a forked child lacks them and would wait for them."""


def _lines(name: str) -> tuple[str, ...]:
    """The release lines of a runtime that a target is for; none if it is for all."""
    return TARGETS[name].versions or tuple(filter(None, [name.partition("@")[2]]))


def missing(name: str) -> str | None:
    """The reason why a runtime cannot run here, or None."""
    distribution = RUNNERS[name][0]
    try:
        installed = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return f"{distribution} is not installed"
    lines = _lines(name)
    if lines and not installed.startswith(tuple(f"{line}." for line in lines)):
        return f"{distribution} {installed} is installed, but the target needs {distribution} {' or '.join(lines)}"
    if name == "tinygrad" and shutil.which("clang") is None:
        return "tinygrad's CPU device needs clang, which is not installed"
    return None


def version(name: str) -> str:
    return importlib.metadata.version(RUNNERS[name][0])


def open_runtime(name: str, document: Document) -> Runtime:
    """A runner for one model. Raises RnnLowerError for an unknown or missing runtime."""
    if name not in RUNNERS:
        raise RnnLowerError(f"--on {name}: models can be run only on {', '.join(RUNNERS)}")
    why = missing(name)
    if why is not None:
        package, line = RUNNERS[name][0], next(iter(_lines(name)), "")
        wanted = f"'{package}=={line}.*'" if line[:1].isdigit() else package
        raise RnnLowerError(f"--on {name}: {why}; pip install {wanted}")

    return Runtime(name, document)


class Runtime:
    """Runs one model with its free sizes, or, if the runtime cannot, with those of the inputs.

    refusal: why it cannot, or "".
    """

    def __init__(self, name: str, document: Document) -> None:
        self._runner, self._document, self.refusal = RUNNERS[name][1], document, ""
        has_free_sizes = any(free_dims(declared_shapes(document.model)))
        self._fixes = not has_free_sizes or name.partition("@")[0] not in FREE

    def __call__(self, feeds: Feeds) -> list[Any]:
        if self._fixes:
            return self._run(feeds, fixed=True)
        try:
            return self._run(feeds, fixed=False)
        except Exception as error:  # runtimes raise exceptions of any type
            results = self._run(feeds, fixed=True)
            self._fixes, self.refusal = True, one_line(error)
            return results

    def _run(self, feeds: Feeds, fixed: bool) -> list[Any]:
        model = self._document.embedded()
        names = {tensor.name for tensor in model.graph.initializer}
        protobuf.remove_if(model.graph.input, lambda value: value.name in names)  # keep only the defaults
        inputs = {value.name: feeds[value.name] for value in model.graph.input}
        if fixed:
            axes = ((name, axis, size) for name, array in inputs.items() for axis, size in enumerate(array.shape))
            fix_proto_dims(model, {axis_name(name, axis): size for name, axis, size in axes})
        return self._runner(model, inputs)
