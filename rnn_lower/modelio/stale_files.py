"""What a run that was killed has left in a folder, and what a replaced model no longer needs: found, named, removed.

Files of a run are locked while it lives. A data file goes only when no file of its folder speaks of it, and never when
it is a model, or holds more than weights: what a model names as the place of its weights may be any file, its own not
excepted.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import signal
import stat
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO

import onnx

from rnn_lower import foreign
from rnn_lower.modelio import external_data

try:
    import fcntl
except ImportError:  # Windows: what a killed run has left is not told from what a live one writes, so it stays
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger("rnn_lower")

TMP, OLD = ".rnn_lower.tmp", ".rnn_lower.old"
"""Endings of a model until it is in place, which stands there before its data does, and of a journal."""

_OURS = re.compile(rf"\.(.+\.[0-9a-f]{{16}})({re.escape(TMP)}|{re.escape(OLD)})")


_NUMBER, _LENGTH = 0, 2
_FIELDS = {
    field.number: _NUMBER if field.type == field.TYPE_INT64 else _LENGTH for field in onnx.ModelProto.DESCRIPTOR.fields
}
"""How protobuf writes each field of a model: a number, or a length and as many bytes."""


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
def undisturbed(by: Collection[int] | None = None) -> Iterator[None]:
    """Interruptions, or what signals are given, wait, so that what is half done is done wholly."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _interruptions() if by is None else by)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def disturbed(by: Collection[int]) -> None:
    """In a child that was forked while signals waited: they do so no longer."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, by)


def _interruptions() -> set[signal.Signals]:
    return {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One run at a time: of two that replace one model each removes what the other has replaced."""
    handle = None
    with contextlib.suppress(OSError):  # not every file system locks folders
        if fcntl is not None:
            handle = os.open(folder, os.O_RDONLY)
            fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


def spans(path: Path) -> dict[str, tuple[int, int]]:
    """The files that a model names for its weights: where the first weight begins, and where the last one ends."""
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception:  # not a model: it refers to nothing
        return {}
    found: dict[str, tuple[int, int]] = {}
    for tensor in filter(external_data.is_external, external_data.tensors(model)):
        location = {entry.key: entry.value for entry in tensor.external_data}.get("location", "")
        with contextlib.suppress(ValueError):
            begin, length = external_data.extent(tensor, external_data.size_of(tensor) or 0)
            first, last = found.get(location, (begin, begin + length))
            found[location] = (min(first, begin), max(last, begin + length))
    return found


def referred(path: Path) -> set[str]:
    """The data files that a model refers to, as names in its folder.

    They are weights from the first byte to the last: what has a header, as .safetensors or .npz do, or something behind
    the weights, is more than the data of a model.
    """
    return {
        name for name, (begin, end) in spans(path).items()
        if name and os.path.basename(name) == name and begin == 0 and _size(path.parent / name) == end
    }  # fmt: skip


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def remove_unreferred(path: Path) -> bool:
    """Delete a file, unless it is a link, a model or read-only, or has another name, or another file speaks of it.

    That is any file of its folder, and any .onnx file in the two folders above.
    """
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1 or not status.st_mode & stat.S_IWUSR:
            return False
        if _is_model(path):
            return False
        others = [*path.parent.iterdir()]
        for above in path.absolute().parents[1:3]:
            with contextlib.suppress(OSError):
                others += above.glob("*.onnx")
        others = [other for other in others if other != path]
        if any(other.is_symlink() and other.resolve() == path.resolve() for other in others):
            return False
        names = {os.fsencode(path.name), json.dumps(path.name)[1:-1].encode()}  # in a model that is JSON, too
        if any(speaks_of(other, name) for other in others if _may_be_a_model(other) for name in names):
            return False
        path.unlink()
    except OSError:
        return False
    return True


def _is_model(path: Path) -> bool:
    """Whether a file is made of the fields of a ModelProto, a graph among them; told without reading what they hold."""
    found, size = set(), path.stat().st_size
    with open(path, "rb") as file, contextlib.suppress(EOFError):
        while file.tell() < size:
            field, written_as = divmod(_varint(file), 8)
            if _FIELDS.get(field) != written_as:
                return False
            number = _varint(file)
            if written_as == _LENGTH:
                file.seek(number, os.SEEK_CUR)
            found.add(field)
        return file.tell() == size and onnx.ModelProto.GRAPH_FIELD_NUMBER in found
    return False


def _varint(file: BinaryIO) -> int:
    """A number as protobuf writes it: seven bits in each byte, the lowest first. Raises EOFError."""
    number = 0
    for place in range(10):
        byte = file.read(1)
        if not byte:
            raise EOFError
        number |= (byte[0] & 0x7F) << (7 * place)
        if byte[0] < 0x80:
            break
    return number


def _may_be_a_model(path: Path) -> bool:
    """What is not a journal, nor too large for protobuf."""
    return path.is_file() and not path.name.endswith(OLD) and path.stat().st_size < 1 << 31


def speaks_of(path: Path, name: bytes) -> bool:
    """Whether a file holds a name; that is cheaper than parsing it, and errs on the side of keeping."""
    overlap = b""
    with open(path, "rb") as file:
        while piece := file.read(1 << 22):
            if name in overlap + piece:
                return True
            overlap = piece[-len(name) :]
    return False


def mark_of(path: Path) -> list[int]:
    """What tells a file from another of its name: a journal that came with a folder from elsewhere removes nothing."""
    status = path.lstat()
    return [status.st_dev, status.st_ino, status.st_mtime_ns]


def finish(journal: Path) -> None:
    """Remove what a run that was killed right after putting its model in place had still to remove."""
    with contextlib.suppress(*foreign.UNSOUND, OSError):
        for name, mark in foreign.loads(journal.read_bytes()).items():
            path = journal.parent / name
            if os.path.basename(name) == name and mark_of(path) == mark and remove_unreferred(path):
                _tell_of(path)
    journal.unlink(missing_ok=True)
    _tell_of(journal)


def _tell_of(path: Path) -> None:
    logger.warning("removed %s, which an interrupted run had left", path)


def remove_left_behind(folder: Path) -> None:
    """Remove, and name, what a killed run has left in a folder: files of ours that no live run holds."""
    for path in sorted(folder.iterdir()) if fcntl is not None and folder.is_dir() else ():
        ours = _OURS.fullmatch(path.name)
        if ours is None or path.is_symlink() or not path.is_file():
            continue
        with contextlib.suppress(OSError), open(path, "rb") as file:  # gone, or held by a run that lives
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.name.endswith(OLD):
                finish(path)
                continue
            path.unlink()  # first, since it speaks of its data
            _tell_of(path)
            if remove_unreferred(folder / f"{ours[1]}.data"):
                _tell_of(folder / f"{ours[1]}.data")
