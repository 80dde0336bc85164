"""Decide where a file may be written, and which files are never overwritten."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Collection
from pathlib import Path

import onnx.serialization

from rnn_lower.errors import RnnLowerError
from rnn_lower.modelio import stale_files
from rnn_lower.modelio.stale_files import Inode, inode_of


def checked_destination(
    destination: str | os.PathLike[str], protected: Collection[Inode] = (), text: bool = False
) -> Path:
    """The final path, with links followed. Raises RnnLowerError if it cannot be written.

    protected: files that are not replaced.  text: not a model, so any extension is valid.
    """
    path = Path(name_of(destination))
    if os.path.basename(destination) in ("", ".", ".."):  # also a name that ends with a slash
        raise RnnLowerError(f"{os.fspath(destination) or path}: cannot be written: it is a folder; name a file")
    if str(path) == "-" or (path.exists() and not path.is_file() and not path.is_dir()):
        return path
    real = Path(os.path.realpath(path))
    if real.is_symlink():
        raise RnnLowerError(f"{path}: cannot be written: it is a link to itself; choose another file")
    if not text and not is_binary(real):
        raise RnnLowerError(f"{path}: cannot be written: this extension is for a text format; use the extension .onnx")
    if not real.parent.exists():
        raise RnnLowerError(f"{path}: cannot be written: there is no folder {real.parent}; create the folder")
    if real.is_dir():
        raise RnnLowerError(f"{path}: cannot be written: it is a folder; name a file")
    if real.is_file() and not os.stat(real).st_mode & stat.S_IWUSR:
        raise RnnLowerError(f"{path}: cannot be written: it is read-only; make it writable, or choose another file")
    owner = _owner(real, protected) if real.is_file() else None
    if owner is not None:
        raise RnnLowerError(
            f"{path}: cannot be written: this file contains the weights of {owner}; choose another file"
        )
    return real


def name_of(destination: str | os.PathLike[str]) -> str:
    """The path as a string. Raises RnnLowerError if it is not a path."""
    name = os.fspath(destination) if isinstance(destination, (str, os.PathLike)) else None
    if not isinstance(name, str) or "\0" in name:
        raise RnnLowerError(f"the output must be a path, not {destination!r}")
    return name


def is_binary(path: Path) -> bool:
    """Whether the name of a model means binary protobuf instead of one of the text formats of `onnx`."""
    return onnx.serialization.registry.get_format_from_file_extension(path.suffix) in (None, "protobuf")


def _owner(path: Path, protected: Collection[Inode]) -> str | None:
    """The model that has weights in a file: the model being read, or another one."""
    if inode_of(path) in protected:
        return "the model being read"
    if path.suffix == ".onnx" and stale_files.is_model(path):  # the usual case, in which the search would take time
        return None
    return next(map(str, stale_files.owners(path)), None)


def to_stdout(content: bytes) -> bool:
    """Write bytes to stdout, whatever its encoding; return whether it accepts bytes."""
    stream = getattr(sys.stdout, "buffer", None)
    if stream is not None:
        sys.stdout.flush()
        stream.write(content)
        stream.flush()
    return stream is not None
