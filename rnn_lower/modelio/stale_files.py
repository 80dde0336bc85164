"""Find and delete stale files, which killed runs and replaced models leave next to an output path.

Only files with names of this module's form are deleted: DEST.<16 hex digits>.data, and the hidden file that becomes
DEST. A file is stale if neither DEST nor another file of the folder or model above it refers to it, and no live run has
locked it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import logging
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import onnx
import onnx.serialization

from rnn_lower.ir import protobuf

try:
    import fcntl
except ImportError:  # on Windows, files of live and killed runs look alike, so all stay
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger("rnn_lower")

TMP = ".rnn_lower.tmp"
"""The suffix of a file until it is renamed to its output path."""

NAME_BYTES = 255 - len(f"..{'0' * 16}{TMP}")
"""The maximum number of bytes of the output's name within the names of its temporary and data files."""

SEARCHED = 1 << 28
"""The maximum size of other models to search for the name of a stale file; beyond it, the file is kept."""

MOST_BYTES = 1 << 31
"""The maximum size of a protobuf message."""

_ODD = re.compile(r"[\\:]")
_OWN_DATA = re.compile(r"\.[0-9a-f]{16}\.data$")

Inode = tuple[int, int]
"""The identity of a file, independent of its names: device and inode number."""


def inode_of(path: Path) -> Inode | None:
    """The identity of a file, or None if it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def stem_of(path: Path) -> str:
    """The stem of an output for the names of its data files: valid on every system, and short."""
    name = _ODD.sub("_", path.name.encode("utf-8", "replace").decode())
    content = name.encode()
    if len(content) <= NAME_BYTES:
        return name
    mark = f"~{hashlib.blake2s(content, digest_size=4).hexdigest()}"
    return content[: NAME_BYTES - len(mark)].decode("utf-8", "ignore") + mark


def create_locked(path: Path) -> BinaryIO:
    """A new file, locked while this process has it open, if the file system supports locks."""
    while True:
        file = open(path, "xb")  # noqa: SIM115
        with contextlib.suppress(OSError):  # ENOSYS and similar errors: such a folder is never cleaned up
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX)
        if os.name == "nt" or os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # another run locked and removed it first


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[bool]:
    """Lock a folder, because concurrent commits could delete each other's data; yields whether locking works."""
    locked = False
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            if fcntl is not None:
                handle = os.open(folder, os.O_RDONLY)
                stack.callback(os.close, handle)
                fcntl.flock(handle, fcntl.LOCK_EX)
                locked = True
        yield locked


def remove_unfinished(path: Path) -> None:
    """Delete the temporary files of killed runs for this output, and log their names."""
    pattern = re.compile(rf"\.{re.escape(stem_of(path))}\.[0-9a-f]{{16}}{re.escape(TMP)}")
    remove(dict.fromkeys(_unlocked(path.parent, pattern), True))


def unused_data(path: Path, protected: Collection[Inode]) -> list[str]:
    """Data files under the user's own names that only the replaced model seems to need; they are kept."""
    pattern = _data_pattern(path)
    names = [name for name in data_names(path) if not pattern.fullmatch(name)]
    return [name for name in names if (path.parent / name).is_file() and inode_of(path.parent / name) not in protected]


def stale_data(path: Path, current: Path, locked: bool, protected: Collection[Inode]) -> dict[Path, bool]:
    """The data files that become unused when the model `current` takes the output path.

    Each comes with whether a killed run left it; the others belong to the replaced model.
    locked: whether this process has locked the folder; if not, a file may belong to a live run, unless it belongs to
    the replaced model.  protected: files of other models.
    """
    candidates = [
        candidate for candidate in _unlocked(path.parent, _data_pattern(path)) if inode_of(candidate) not in protected
    ]
    if not candidates:
        return {}
    in_use, replaced = data_names(current), data_names(path)
    candidates = [
        candidate for candidate in candidates if candidate.name not in in_use and (locked or candidate.name in replaced)
    ]
    return {candidate: candidate.name not in replaced for candidate in _unmentioned(candidates, [path, current])}


def _data_pattern(path: Path) -> re.Pattern[str]:
    return re.compile(rf"{re.escape(stem_of(path))}\.[0-9a-f]{{16}}\.data")


def remove(stale: Mapping[Path, bool]) -> None:
    """Delete stale files, and log those that a killed run left behind."""
    for path, interrupted in stale.items():
        with contextlib.suppress(OSError):
            path.unlink()
            if interrupted:
                logger.warning("removed %s, which an interrupted run had left behind", path)


def _unlocked(folder: Path, pattern: re.Pattern[str]) -> list[Path]:
    """The writable regular files with these names in a folder that are unlocked and have no other link."""
    paths = []
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if not pattern.fullmatch(entry.name):
            continue
        status = entry.stat(follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1 or not status.st_mode & stat.S_IWUSR:
            continue
        with contextlib.suppress(OSError), open(entry.path, "rb") as file:
            if not _is_locked(file):
                paths.append(Path(entry.path))
    return paths


def _is_locked(file: BinaryIO) -> bool:
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # it cannot be locked
        pass
    return False


def _unmentioned(candidates: list[Path], own: Collection[Path]) -> list[Path]:
    """The files that no link, no model of the folder, and no small other file or model above it mentions.

    An empty list if the search would be too long.
    """
    if not candidates:
        return []
    folder, skipped = candidates[0].parent, {*candidates, *own}
    neighbours = [path for path in map(Path, sorted(map(os.fspath, folder.iterdir()))) if path not in skipped]
    links = {os.path.realpath(neighbour) for neighbour in neighbours if neighbour.is_symlink()}
    above = (_named_like_models(each, unnamed=False) for each in Path(os.path.realpath(folder)).parents)
    try:
        models = _sizes(path for path in neighbours if _is_of_model(path.suffix, unnamed=True))
        if sum(models.values()) > SEARCHED:
            logger.warning(
                "kept %s, which may no longer be needed, because the other models in %s are too large to search for "
                "references to it", candidates[0], folder,
            )  # fmt: skip
            return []
        named = _mentioned(candidates, models)
    except OSError:  # a model that cannot be read may refer to any other
        return []
    others = (path for path in neighbours if path not in models and not _OWN_DATA.search(path.name))
    smallest = sorted(_sizes(itertools.chain(others, *above)).items(), key=lambda pair: pair[1])
    totals = itertools.accumulate(size for _, size in smallest)  # large files hold weights, and refer to no others
    for (path, _), total in zip(smallest, totals, strict=True):
        with contextlib.suppress(OSError):
            named |= _mentioned(candidates, [path] if total <= SEARCHED else [])
    return [path for path in candidates if path not in named and os.path.realpath(path) not in links]


def _mentioned(candidates: Collection[Path], files: Iterable[Path]) -> set[Path]:
    """The candidates whose names some files contain."""
    spelled = {name: path for path in candidates for name in _spelled(path)}
    return {spelled[name] for file in files for name in _mentions(file, spelled)}


def _sizes(paths: Iterable[Path]) -> dict[Path, int]:
    """The sizes of those that are files and may be models."""
    sizes = {path: path.stat().st_size for path in paths if path.is_file()}
    return {path: size for path, size in sizes.items() if size < MOST_BYTES}


def _spelled(path: Path) -> set[bytes]:
    """The spellings of a file name in models, also in JSON."""
    return {os.fsencode(path.name), json.dumps(path.name)[1:-1].encode()}


def data_names(path: Path) -> dict[str, None]:
    """The data files that a model refers to, in order."""
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception:  # not a model: it refers to nothing
        return {}
    external = filter(protobuf.is_external, protobuf.tensors(model))
    return {entry.value: None for tensor in external for entry in tensor.external_data if entry.key == "location"}


def owners(path: Path) -> Iterator[Path]:
    """The models that have weights in a file: external data lies in the folder of its model or below it."""
    for folder in path.parents:
        for model in _named_like_models(folder, unnamed=folder == path.parent):
            with contextlib.suppress(OSError):  # it cannot be read
                searched = model != path and model.is_file() and model.stat().st_size < MOST_BYTES
                names = data_names(model) if searched and _mentions(model, _spelled(path)) else {}
                if os.fspath(path) in {os.path.realpath(folder / name) for name in names}:
                    yield model


def _named_like_models(folder: Path, unnamed: bool) -> list[Path]:
    """The entries of a folder with the extension of a model. unnamed: also those without any."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    return [folder / name for name in names if _is_of_model(os.path.splitext(name)[1], unnamed)]


@functools.cache  # a folder may have many entries
def _is_of_model(suffix: str, unnamed: bool) -> bool:
    format_of = onnx.serialization.registry.get_format_from_file_extension
    return unnamed if not suffix else suffix.lower() == ".ort" or format_of(suffix.lower()) is not None


def is_model(path: Path) -> bool:
    """Whether a file contains a model."""
    try:
        return bool(onnx.load(path, load_external_data=False).HasField("graph"))
    except Exception:  # the parsers of the formats may raise anything
        return False


def _mentions(path: Path, names: Collection[bytes]) -> set[bytes]:
    """The names that a file contains; cheaper than parsing, and errs on the side of keeping files."""
    overlap, found, longest = b"", set[bytes](), max(map(len, names), default=0)
    with open(path, "rb") as file:
        while piece := file.read(1 << 22):
            found.update(name for name in names if name in overlap + piece)
            overlap = piece[-longest:]
    return found
