"""What a run that was killed has left in a folder, and what a replaced model no longer needs: found, named, removed.

Files of a run are locked while it lives. A data file goes only when no file of its folder speaks of it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import signal
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import onnx

from rnn_lower.model import tensors

try:
    import fcntl
except ImportError:  # Windows: what a killed run has left is not told from what a live one writes, so it stays
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger("rnn_lower")

_OURS = re.compile(r"\.?.+\.[0-9a-f]{16}\.(data|tmp|old)")
"""OUT.onnx.TOKEN.data; until it is in place, .OUT.onnx.TOKEN.tmp; while old data is removed, .OUT.onnx.TOKEN.old."""


def create(path: Path) -> BinaryIO:
    """A new file, locked while this process has it open."""
    while True:
        file = open(path, "xb")  # noqa: SIM115
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # another run was faster to lock it, and tidied it away


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Interruptions wait, so that what is half done is done wholly."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def referred(path: Path) -> set[str]:
    """The data files that a model refers to, as names in its folder."""
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception:  # not a model: it refers to nothing
        return set()
    external = (tensor for tensor in tensors.tensors(model) if tensors.is_external(tensor))
    names = {entry.value for tensor in external for entry in tensor.external_data if entry.key == "location"}
    return {name for name in names if name and os.path.basename(name) == name}


def remove_unreferred(path: Path) -> bool:
    """Delete a data file, unless any file of its folder speaks of it, or it is a link, or has another name."""
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            return False
        name = path.name.encode()
        others = (other for other in path.parent.iterdir() if other != path and other.is_file())
        if any(_speaks_of(other, name) for other in others if not _is_data(other)):
            return False
        path.unlink()
    except OSError:
        return False
    return True


def _is_data(path: Path) -> bool:
    """What cannot be a model: what rnn_lower has written as such, and what is too large for protobuf."""
    return bool(_OURS.fullmatch(path.name) and path.suffix in (".data", ".old")) or path.stat().st_size >= 1 << 31


def _speaks_of(path: Path, name: bytes) -> bool:
    """Whether a file holds a name; that is cheaper than parsing it, and errs on the side of keeping."""
    overlap = b""
    with open(path, "rb") as file:
        while piece := file.read(1 << 22):
            if name in overlap + piece:
                return True
            overlap = piece[-len(name) :]
    return False


def finish(journal: Path) -> None:
    """Remove what a run that was killed right after putting its model in place had still to remove."""
    with contextlib.suppress(ValueError, TypeError, OSError):
        for name in json.loads(journal.read_bytes()):
            if os.path.basename(name) == name and remove_unreferred(journal.parent / name):
                _tell_of(journal.parent / name)
    journal.unlink(missing_ok=True)
    _tell_of(journal)


def _tell_of(path: Path) -> None:
    logger.warning("removed %s, which an interrupted run had left", path)


def remove_left_behind(folder: Path) -> None:
    """Remove, and name, what a killed run has left in a folder: files of ours that no live run holds."""
    # Sorted, since a model that was never put in place (.NAME) speaks of its data.
    for path in sorted(folder.iterdir()) if fcntl is not None and folder.is_dir() else ():
        if not _OURS.fullmatch(path.name) or path.is_symlink() or not path.is_file():
            continue
        try:
            with open(path, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if path.suffix == ".old":
                    finish(path)
                elif remove_unreferred(path):
                    _tell_of(path)
        except OSError:  # held by a run that lives, or gone
            continue
