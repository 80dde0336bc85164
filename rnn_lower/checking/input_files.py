"""Read the inputs of a check from an .npz file, and write those of a counterexample."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from rnn_lower import untrusted
from rnn_lower.checking.samples import Feeds
from rnn_lower.errors import RnnLowerError
from rnn_lower.modelio.arrays import read_arrays, write_arrays
from rnn_lower.modelio.files import write_bytes
from rnn_lower.proving.model_inputs import required_inputs


def load_inputs(source: Mapping[str, Any] | str | os.PathLike[str], model: ir.Model) -> Feeds:
    """The arrays of a file by input name; required inputs must be present."""
    if not isinstance(source, (Mapping, str, os.PathLike)):
        kind = type(source).__name__
        raise RnnLowerError(f"inputs must map names to arrays, or be the path of an .npz file, not {kind}")
    if isinstance(source, Mapping):
        try:
            feeds = {name: np.asarray(array) for name, array in source.items()}
        except ValueError as error:  # rows of different lengths
            raise RnnLowerError(f"inputs must map names to arrays; {error}") from None
    else:
        try:
            feeds = read_arrays(untrusted.plain(source))
        except OSError as error:
            raise RnnLowerError(f"{os.fspath(source)}: cannot be read as .npz: {error.strerror or error}") from None
        except Exception:  # zip, pickle and numpy raise different exceptions
            text = "the file is not an .npz archive of numeric or string arrays; create it with np.savez"
            raise RnnLowerError(f"{os.fspath(source)}: cannot be read as .npz: {text}") from None
    missing = [value.name for value in required_inputs(model) if value.name not in feeds]
    if missing:
        names, held = ", ".join(map(str, missing)), ", ".join(map(str, feeds)) or "nothing"
        raise RnnLowerError(f"the inputs contain arrays for {held}, but none for {names}; add the missing arrays")
    types = {str(value.name): value.dtype for value in model.graph.inputs}
    return {name: _typed(array, types.get(name)) for name, array in feeds.items()}


def _typed(array: np.ndarray, dtype: ir.DataType | None) -> np.ndarray:
    """An array whose type numpy does not know, such as bfloat16, in the type of its input."""
    is_raw = array.dtype.kind == "V" and dtype is not None and array.dtype.itemsize == dtype.numpy().itemsize
    return array.view(dtype.numpy()) if is_raw and dtype is not None else array


def check_counterexample(path: str | os.PathLike[str], inputs: Any) -> None:
    """Raise RnnLowerError for a path that is not .npz, or that is the file of the given inputs."""
    name = os.fspath(path)
    if not name.endswith(".npz"):
        raise RnnLowerError(f"{name}: the counterexample file must have the extension .npz (--counterexample X.npz)")
    if isinstance(inputs, (str, os.PathLike)) and os.path.realpath(inputs) == os.path.realpath(name):
        raise RnnLowerError(f"{name}: the counterexample would overwrite the inputs; choose another file")


def save_inputs(path: str | os.PathLike[str], feeds: Mapping[str, np.ndarray]) -> None:
    """Write inputs as an .npz file. Raises RnnLowerError if it cannot be written."""
    content = io.BytesIO()
    write_arrays(content, feeds)
    write_bytes(content.getvalue(), path)
