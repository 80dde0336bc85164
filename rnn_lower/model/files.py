"""Load and save: weights stay in their files, and a file appears whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google.protobuf.message
import onnx
import onnx_ir as ir

from rnn_lower.errors import RnnLowerError
from rnn_lower.model.scopes import scopes

EXTERNAL_FROM = 1_500_000_000
"""Bytes of initializers from which an output keeps its weights beside it; protobuf ends at 2 GB."""

SMALL = 1024
"""Tensors below this size stay in the .onnx file even when the others go beside it."""

Progress = Callable[[str, int, int], None]
"""Called while weights are written: name, index, total."""


def load(path: str | os.PathLike[str]) -> ir.Model:
    """Read a model; external data is mapped, not read. Raises RnnLowerError when there is no readable model."""
    path = Path(path)
    try:
        if not path.is_file():
            raise RnnLowerError(f"{path}: no such file" if not path.exists() else f"{path}: not a file")
        model = ir.load(path)
    except OSError as error:
        raise RnnLowerError(f"{path}: cannot be read: {error.strerror or error}") from None
    except RnnLowerError:
        raise
    except (
        google.protobuf.message.DecodeError,
        RuntimeError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
    ) as error:
        raise RnnLowerError(f"{path}: not an ONNX model: {_one_line(error)}") from None
    if not model.opset_imports:
        raise RnnLowerError(f"{path}: not an ONNX model: it imports no opset")
    return model


def open_model(model: Any) -> tuple[ir.Model, str | None]:
    """The model behind a path, an onnx.ModelProto or an onnx_ir.Model; the path where there is one.

    Raises RnnLowerError for anything else, and as `load`.
    """
    if isinstance(model, (str, os.PathLike)):
        return load(model), os.fspath(model)
    if isinstance(model, onnx.ModelProto):
        return ir.from_proto(model), None
    if isinstance(model, ir.Model):
        return model, None
    raise RnnLowerError(f"a model must be a path, an onnx.ModelProto or an onnx_ir.Model, not {type(model).__name__}")


def save(
    model: ir.Model, path: str | os.PathLike[str], progress: Progress | None = None, external: bool = False
) -> None:
    """Write a model beside its destination and then put it in place, so that a failure leaves what was there.

    Weights that were external (external=True, or still are) go to one file `NAME.data`, as do weights that would not
    fit into one protobuf file.
    The destination may be the file the model was loaded from. Raises RnnLowerError when it cannot be written.
    """
    path = Path(path)
    data_name = f"{path.name}.data"
    external = external or has_external_data(model) or bytes_of_initializers(model) > EXTERNAL_FROM
    try:
        beside = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent or Path(".")))
    except OSError as error:
        raise RnnLowerError(f"{path}: cannot be written: {error.strerror or error}") from None
    try:
        if external:
            _save_external(model, beside, path.name, data_name, progress)
        else:
            ir.save(model, beside / path.name)
        for name in (data_name, path.name):  # the model last: until then the old one is whole
            if (beside / name).exists():
                _keep_mode(path.parent / name, beside / name)
                os.replace(beside / name, path.parent / name)
    except OSError as error:
        raise RnnLowerError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _save_external(model: ir.Model, folder: Path, name: str, data_name: str, progress: Progress | None) -> None:
    done = 0

    def report(tensor: ir.TensorProtocol, info: object) -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(tensor.name or "", done, getattr(info, "total", 0))

    ir.save(model, folder / name, external_data=data_name, size_threshold_bytes=SMALL, callback=report)


def has_external_data(model: ir.Model) -> bool:
    return any(isinstance(value.const_value, ir.ExternalTensor) for value in _initializers(model))


def bytes_of_initializers(model: ir.Model) -> int:
    return sum(value.const_value.nbytes for value in _initializers(model) if value.const_value is not None)


def _initializers(model: ir.Model) -> list[ir.Value]:
    graphs = [scope.graph for scope in scopes(model)]
    return [value for graph in graphs if isinstance(graph, ir.Graph) for value in graph.initializers.values()]


def _keep_mode(old: Path, new: Path) -> None:
    """A new file gets the usual permissions, a replaced one those it had."""
    if old.exists():
        shutil.copymode(old, new)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
