"""The runtimes for comparisons: onnxruntime, and onnx.reference with the operators of this project."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime

from rnn_lower.builder.names import Names
from rnn_lower.checking.samples import Feeds
from rnn_lower.errors import RnnLowerError, one_line
from rnn_lower.ir import protobuf
from rnn_lower.modelio.document import Document
from rnn_lower.modelio.output_path import is_binary
from rnn_lower.options import QUANTIZED
from rnn_lower.proving.exact import reference
from rnn_lower.transforms.evaluate import evaluator
from rnn_lower.transforms.inline import inlined

ORT = f"onnxruntime {onnxruntime.__version__}"
REFERENCE = "onnx.reference with rnn_lower.proving.exact.reference"

SECONDS = 600
"""The time limit of one run, because a Loop may never end."""

Run = Callable[[Feeds], list[Any]]
Change = Callable[[onnx.ModelProto], object]


def load_onnxruntime(document: Document, path: str | None = None) -> Run:
    """As `open_onnxruntime`. Raises RnnLowerError for a model that onnxruntime does not load."""
    try:
        return open_onnxruntime(document, path)
    except (RnnLowerError, MemoryError):
        raise
    except Exception as error:  # onnxruntime raises exceptions of its own types
        raise RnnLowerError(f"onnxruntime cannot load the model: {one_line(error)}") from None


def open_onnxruntime(document: Document, path: str | None = None, change: Change | None = None) -> Run:
    """A runner on onnxruntime's CPU. change: applied to a copy of the model first."""
    external = any(map(protobuf.is_external, protobuf.tensors(document.proto)))
    values = (*document.proto.graph.input, *document.proto.graph.output)
    plain = change is None and all(value.type.tensor_type.elem_type != onnx.TensorProto.BFLOAT16 for value in values)
    # With several threads, a DynamicQuantizeLSTM quantizes each part of a batch separately; 0 means all cores.
    operators = {node.op_type for holder in protobuf.holders(document.proto) for node in holder.node}
    threads = 1 if QUANTIZED in operators else 0
    # onnxruntime accepts only printable paths, and only binary files.
    if path is not None and external and plain and path.isprintable() and is_binary(Path(path)):
        session = _session(path, threads=threads)
    else:
        proto = onnx.ModelProto()
        proto.CopyFrom(document.proto)
        folder = _data_folder(proto, document.folder) if external else None
        if change is not None:
            change(proto)
        session = _session(_bridged(proto).SerializeToString(), folder, threads)
    names = {value.name for value in (*session.get_inputs(), *session.get_overridable_initializers())}
    wanted = [value.type.tensor_type.elem_type for value in document.proto.graph.output]

    def run(feeds: Feeds) -> list[Any]:
        passed = {f"{k}/float": v.astype(np.float32) if _is_bfloat16(v) else v for k, v in feeds.items()}
        passed = {name: value for name, value in {**feeds, **passed}.items() if name in names}
        typed = itertools.zip_longest(_limited_run(session, passed), wanted)  # a change may have added outputs
        return [r.astype(ml_dtypes.bfloat16) if dtype == onnx.TensorProto.BFLOAT16 else r for r, dtype in typed]

    return run


def _limited_run(session: Any, feeds: Feeds) -> list[Any]:
    """The outputs of a session. Raises RnnLowerError after SECONDS."""
    options, ended = onnxruntime.RunOptions(), threading.Event()

    def stop() -> None:
        ended.set()
        options.terminate = True

    timer = threading.Timer(SECONDS, stop)
    timer.daemon = True
    timer.start()
    try:
        results: list[Any] = session.run(None, feeds, options)
    except Exception:
        if ended.is_set():
            raise RnnLowerError(f"onnxruntime was stopped after {SECONDS} seconds") from None
        raise
    finally:
        timer.cancel()
    return results


def _data_folder(model: onnx.ModelProto, folder: Path | None) -> Path:
    """Resolve links in the data paths of a copy, because onnxruntime checks the resolved path."""
    assert folder is not None
    folders = set()
    for tensor in filter(protobuf.is_external, protobuf.tensors(model)):
        location = protobuf.locate(tensor, folder)
        folders.add(location.path.parent)
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location.path.name
    if len(folders) > 1:
        raise RnnLowerError(f"the weights are in {len(folders)} folders; move them to one folder to compare the models")
    return folders.pop()


def open_reference(
    document: Document, change: Change | None = None, operators: Iterable[type] = reference.OPERATORS
) -> Run:
    """A runner on onnx.reference. change: as above.  operators: replacements for onnx's own."""
    proto = document.embedded()
    if change is not None:
        change(proto)
    if proto.functions:  # the evaluator does not use `operators` in functions
        proto = inlined(proto)
    ready = evaluator(proto, operators)
    return lambda feeds: list(ready.run(None, feeds))


def _session(model: bytes | str, folder: str | os.PathLike[str] | None = None, threads: int = 0) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    if folder is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", os.fspath(folder))
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _is_bfloat16(array: Any) -> bool:
    return bool(getattr(array, "dtype", None) == ml_dtypes.bfloat16)


def _bridged(model: onnx.ModelProto) -> onnx.ModelProto:
    """Pass bfloat16 inputs and outputs as float32 through Casts, because onnxruntime's Python API has no bfloat16."""
    graph, unused = model.graph, Names(protobuf.all_names_of(model.graph))
    casts = dict[str, list[onnx.NodeProto]](input=[], output=[])
    defaults = {tensor.name: tensor for tensor in graph.initializer}
    for side, nodes in casts.items():
        for value in getattr(graph, side):
            if value.type.tensor_type.elem_type == onnx.TensorProto.BFLOAT16:
                value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
                inner = unused.unique(f"{value.name}/float")
                names, to = [inner, value.name], onnx.TensorProto.BFLOAT16
                if side == "output":
                    names, to = names[::-1], onnx.TensorProto.FLOAT
                elif value.name in defaults:
                    numbers = onnx.numpy_helper.to_array(defaults[value.name]).astype(np.float32)
                    defaults[value.name].CopyFrom(onnx.numpy_helper.from_array(numbers, inner))
                nodes.append(onnx.helper.make_node("Cast", names[:1], names[1:], to=to))
                value.name = inner
    if any(casts.values()):
        nodes = [*casts["input"], *graph.node, *casts["output"]]
        del graph.node[:]
        graph.node.extend(nodes)
    return model
