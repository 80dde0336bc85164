"""Files: a model appears by one rename, and its weights before it under a name that nothing else has."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import onnx
import onnx_ir as ir

from rnn_lower.errors import RnnLowerError, UnsupportedError
from rnn_lower.model import tensors
from rnn_lower.model.document import Document

try:
    import fcntl
except ImportError:  # Windows: what a killed run has left is not told from what a live one writes, so it stays
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger("rnn_lower")

EMBEDDED_UP_TO = 1_500_000_000
"""Bytes of weights up to which they stay in the .onnx file if they were there; protobuf ends at 2 GB."""

SMALL = 1024
"""Weights below this size stay in the .onnx file in any case."""

ALIGNMENT = 4096
"""Where weights begin in a data file, so that they can be mapped."""

Progress = Callable[[str, int, int], None]
"""Called while weights are written: name, index, total."""

_OURS = re.compile(r"\.?.+\.[0-9a-f]{16}\.(data|tmp)")
"""Names that this module gives: OUT.onnx.TOKEN.data, and .OUT.onnx.TOKEN.tmp until it is in place."""


def load(path: str | os.PathLike[str]) -> Document:
    """Read a model; external data stays where it is. Raises RnnLowerError when there is no valid model."""
    path = Path(path)
    try:
        if not path.is_file():
            raise RnnLowerError(f"{path}: no such file" if not path.exists() else f"{path}: not a file")
        proto = onnx.load(path, load_external_data=False)
    except OSError as error:
        raise RnnLowerError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (RnnLowerError, MemoryError):
        raise
    except Exception as error:  # whatever the parsers of the formats raise
        raise RnnLowerError(f"{path}: not an ONNX model: {_one_line(error)}") from None
    try:
        return Document(proto, path.parent.absolute())
    except RnnLowerError as error:
        raise type(error)(f"{path}: {error}") from None


def open_model(model: Any) -> tuple[Document, str | None]:
    """The model behind a path, an onnx.ModelProto or an onnx_ir.Model; the path where there is one.

    Raises RnnLowerError for anything else, and as `load`.
    """
    if isinstance(model, (str, os.PathLike)):
        return load(model), os.fspath(model)
    if isinstance(model, ir.Model):
        model = _serialized(model)
    if isinstance(model, onnx.ModelProto):
        return Document(model), None
    raise RnnLowerError(f"a model must be a path, an onnx.ModelProto or an onnx_ir.Model, not {type(model).__name__}")


def _serialized(model: ir.Model) -> onnx.ModelProto:
    try:
        return ir.serde.serialize_model(model)
    except Exception as error:
        raise RnnLowerError(f"the model cannot be serialized: {_one_line(error)}") from None


# -- writing ----------------------------------------------------------------------------------------------------------


class Staged:
    """A model that is written but not yet in place.

    path: a complete model file that loads as it stands.  commit: put it in place by one rename; until then, and after
    an error, whatever was at the destination is whole and as it was.
    """

    def __init__(self, destination: Path, folder: Path, token: str) -> None:
        self._destination, self.folder = destination, folder
        self.path = folder / f".{destination.name}.{token}.tmp"
        self.data = folder / f"{destination.name}.{token}.data"
        self._locked: list[BinaryIO] = []
        self._complete = False

    def open(self, path: Path) -> BinaryIO:
        """A new file, locked while this run lives, so that no other takes it for left behind."""
        while True:
            file = open(path, "xb")  # noqa: SIM115
            self._complete = path == self.path  # the model comes last
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file.fileno()).st_nlink:
                self._locked.append(file)
                return file
            file.close()  # another run was faster to lock it, and tidied it away

    def commit(self) -> None:
        old = _referred(self._destination) if self._destination.exists() else set()
        if self._destination.exists():
            mode = stat.S_IMODE(self._destination.stat().st_mode)
            for path in (self.path, self.data):
                if path.exists():
                    os.chmod(path, mode)
        os.replace(self.path, self._destination)
        _sync_folder(self.folder)
        for name in old:
            _remove_unreferred(self.folder / name)

    @property
    def committed(self) -> bool:
        """The rename itself tells, so that no interruption can come between it and a note of it."""
        return self._complete and not self.path.exists()

    def close(self) -> None:
        """Remove what was not committed."""
        if not self.committed:
            for path in (self.path, self.data):
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
        for file in self._locked:
            file.close()


@contextlib.contextmanager
def staged(
    document: Document, destination: str | os.PathLike[str], progress: Progress | None = None,
    dims: Any = None, force: bool = False,
) -> Iterator[Staged]:  # fmt: skip
    """Write the lowered document beside its destination. Raises RnnLowerError when it cannot be written there."""
    told = os.fspath(destination)
    with contextlib.ExitStack() as stack:
        try:
            path = _checked_destination(Path(destination), force)
            streamed = str(path) == "-" or (path.exists() and not path.is_file())
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) if streamed else path.parent
            if not streamed:
                remove_left_behind(folder)
            made = (_Stream if streamed else Staged)(path, folder, secrets.token_hex(8))
            stack.callback(made.close)
            _write(document, made, progress, dims)
        except OSError as error:
            raise RnnLowerError(f"{told}: cannot be written: {error.strerror or error}") from None
        if made.data.exists() and (streamed or path.parent.resolve() != Path(destination).absolute().parent.resolve()):
            raise UnsupportedError(
                f"{told}: the model has weights in a file beside it, which "
                + ("a stream cannot carry; name a file" if streamed else f"a link cannot carry along; write to {path}")
            )
        try:
            yield made
        except OSError as error:
            raise RnnLowerError(f"{told}: cannot be written: {error.strerror or error}") from None
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"{told} was written" if made.committed else "") from None


class _Stream(Staged):
    """A destination that is no file (-, a device, a FIFO): it is written to, never replaced."""

    def commit(self) -> None:
        content = self.path.read_bytes()
        if str(self._destination) == "-":
            sys.stdout.buffer.write(content)
            sys.stdout.buffer.flush()
            return
        with open(self._destination, "wb") as stream:
            stream.write(content)


def _checked_destination(path: Path, force: bool) -> Path:
    """Where the file really goes, links followed."""
    if str(path) == "-" or (path.exists() and not path.is_file() and not path.is_dir()):
        return path
    real = Path(os.path.realpath(path))
    if real.is_dir():
        raise RnnLowerError(f"{path}: cannot be written: it is a folder")
    if real.is_file() and not os.stat(real).st_mode & stat.S_IWUSR and not force:
        raise RnnLowerError(f"{path}: cannot be written: it is read-only; --force replaces it all the same")
    return real


def _write(document: Document, made: Staged, progress: Progress | None, dims: Any) -> None:
    """The data file, if there is need for one, then the model that refers to it."""
    large = sum(len(tensor.raw_data) for tensor in tensors.tensors(document.proto)) > EMBEDDED_UP_TO
    outside = large or any(map(tensors.is_external, tensors.tensors(document.proto)))
    data = _DataFile(made, progress) if outside else None
    proto = document.write_back(dims, None if data is None else data.keep)
    if data is not None and document.folder is not None:
        data.move(proto, document.folder, large)
    content = proto.SerializeToString()
    if data is not None and data.file is not None:
        data.file.flush()
        os.fsync(data.file.fileno())
    model = made.open(made.path)
    model.write(content)
    model.flush()
    os.fsync(model.fileno())


class _DataFile:
    """Weights go here one by one, copied in pieces or computed one at a time."""

    def __init__(self, made: Staged, progress: Progress | None) -> None:
        self._made, self._progress, self._done = made, progress, 0
        self.file: BinaryIO | None = None

    def _begin(self, name: str, total: int = 0) -> int:
        if self.file is None:
            self.file = self._made.open(self._made.data)
        self.file.seek(-(-self.file.tell() // ALIGNMENT) * ALIGNMENT)
        self._done += 1
        if self._progress is not None:
            self._progress(name, self._done, total)
        return self.file.tell()

    def keep(self, value: ir.Value) -> ir.TensorProtocol:
        """A weight that lowering has made, as it is to be written in the model."""
        tensor = value.const_value
        assert tensor is not None
        if tensor.nbytes < SMALL:
            return tensor
        offset = self._begin(value.name or "")
        assert self.file is not None
        self.file.write(tensor.tobytes())
        return ir.ExternalTensor(
            self._made.data.name,
            offset,
            tensor.nbytes,
            tensor.dtype,
            shape=ir.Shape(tensor.shape.numpy()),
            name=value.name or "",
        )

    def move(self, model: onnx.ModelProto, folder: Path, inline_too: bool) -> None:
        """Take along what lies in the files of the source."""
        todo = [
            t for t in tensors.tensors(model) if tensors.is_external(t) or (inline_too and len(t.raw_data) >= SMALL)
        ]
        for tensor in todo:
            entries = {entry.key: entry for entry in tensor.external_data}
            if "location" in entries and entries["location"].value == self._made.data.name:
                continue
            offset = self._begin(tensor.name, len(todo))
            length = self._copy(tensor, folder)
            for key, text in (("location", self._made.data.name), ("offset", str(offset)), ("length", str(length))):
                if key in entries:
                    entries[key].value = text
                else:
                    tensor.external_data.add(key=key, value=text)

    def _copy(self, tensor: onnx.TensorProto, folder: Path) -> int:
        assert self.file is not None
        if not tensors.is_external(tensor):
            length = self.file.write(tensor.raw_data)
            tensor.ClearField("raw_data")
            tensor.data_location = tensors.EXTERNAL
            return length
        place = tensors.locate(tensor, folder)
        with open(place.path, "rb") as source:
            source.seek(place.offset)
            left = place.length
            while left:
                piece = source.read(min(left, 1 << 22))
                if not piece:
                    raise RnnLowerError(f"{place.path} ended while it was read")
                left -= self.file.write(piece)
        return place.length


# -- what is no longer needed -----------------------------------------------------------------------------------------


def _referred(path: Path) -> set[str]:
    """The data files that a model refers to, as names in its folder."""
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception:  # not a model: it refers to nothing
        return set()
    external = (tensor for tensor in tensors.tensors(model) if tensors.is_external(tensor))
    names = {entry.value for tensor in external for entry in tensor.external_data if entry.key == "location"}
    return {name for name in names if name and os.path.basename(name) == name}


def _remove_unreferred(path: Path) -> bool:
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
    """What cannot be a model: weights that this module has written, and what is too large for protobuf."""
    return bool(_OURS.fullmatch(path.name) and path.suffix == ".data") or path.stat().st_size >= 1 << 31


def _speaks_of(path: Path, name: bytes) -> bool:
    """Whether a file holds a name; that is cheaper than parsing it, and errs on the side of keeping."""
    overlap = b""
    with open(path, "rb") as file:
        while piece := file.read(1 << 22):
            if name in overlap + piece:
                return True
            overlap = piece[-len(name) :]
    return False


def remove_left_behind(folder: Path) -> None:
    """Remove, and name, what a killed run has left in a folder: files of ours that no live run holds."""
    # Sorted, since a model that was never put in place (.NAME) speaks of its data.
    for path in sorted(folder.iterdir()) if fcntl is not None and folder.is_dir() else ():
        if not _OURS.fullmatch(path.name) or path.is_symlink() or not path.is_file():
            continue
        try:
            with open(path, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _remove_unreferred(path):
                    logger.warning("removed %s, which an interrupted run had left", path)
        except OSError:  # held by a run that lives, or gone
            continue


def _sync_folder(folder: Path) -> None:
    """So that the rename outlives a crash of the machine; not every system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
