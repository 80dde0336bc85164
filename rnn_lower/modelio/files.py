"""Write models to files: one rename publishes a model, after its weights were written under a unique name."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import stat
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import onnx
import onnx.serialization
import onnx_ir as ir

from rnn_lower.errors import RnnLowerError, UnsupportedError, one_line
from rnn_lower.ir import protobuf
from rnn_lower.modelio import stale_files
from rnn_lower.modelio.document import Document
from rnn_lower.modelio.output_path import checked_destination, name_of, to_stdout
from rnn_lower.modelio.stale_files import Inode, inode_of
from rnn_lower.options import Dims
from rnn_lower.signals import signals_blocked

logger = logging.getLogger("rnn_lower")

EMBEDDED_UP_TO = 1_500_000_000
"""The maximum size, in bytes, of weights that stay in the .onnx file if they were there; protobuf ends at 2 GB."""

SMALL, SMALL_INTEGERS = 1024, 1 << 20
"""Weights of fewer bytes stay in the .onnx file in any case, and so do integers: runtimes read sizes when they infer
shapes, but not from a data file.
"""

ALIGNMENT = 4096
"""The alignment of weights in a data file, which allows memory mapping."""

LFS_POINTER = b"version https://git-lfs"

Progress = Callable[[str, int, int], None]
"""Called while weights are written: name, index, total."""


def load(path: str | os.PathLike[str]) -> Document:
    """Read a model; external data stays in its files. Raises RnnLowerError if there is no valid model."""
    if not isinstance(path, (str, os.PathLike)):
        raise RnnLowerError(f"the model file must be a path, not an object of type {type(path).__name__}")
    path = Path(path)
    try:
        if not path.is_file():
            raise RnnLowerError(f"{path}: no such file" if not path.exists() else f"{path}: not a file")
        proto = onnx.load(path, load_external_data=False)
    except OSError as error:
        raise RnnLowerError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (RnnLowerError, MemoryError):
        raise
    except Exception as error:  # the parsers of the formats may raise anything
        if _begins(path, LFS_POINTER):
            raise RnnLowerError(f"{path}: a Git LFS pointer instead of the model; run git lfs pull") from None
        raise RnnLowerError(f"{path}: not an ONNX model: {one_line(error)}") from None
    try:
        return Document(proto, path.parent.absolute())
    except RnnLowerError as error:
        raise type(error)(f"{path}: {error}") from None


def _begins(path: Path, prefix: bytes) -> bool:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read(len(prefix)) == prefix
    return False


def open_model(model: Any) -> tuple[Document, str | None]:
    """Open a path, an onnx.ModelProto, an onnx_ir.Model or a document; return the document and the path, if any.

    Raises RnnLowerError for anything else, and as `load`.
    """
    if isinstance(model, Document):
        return model, None
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
        raise RnnLowerError(f"the model cannot be serialized: {one_line(error)}") from None


# -- writing ----------------------------------------------------------------------------------------------------------


class Staged:
    """A complete model file under a temporary name, which `commit` puts in place.

    path: the temporary name; the model loads from there.  protected: data files of other models, which stay.
    Until `commit`, and after an error, the file at the output path is unchanged.
    """

    def __init__(self, destination: Path, folder: Path, token: str, protected: Collection[Inode] = ()) -> None:
        self.destination, self.folder, self._protected = destination, folder, protected
        name = f"{stale_files.stem_of(destination)}.{token}"
        self.path = folder / f".{name}{stale_files.TMP}"
        self.data = folder / f"{name}.data"
        self._open: list[BinaryIO] = []
        self._begun = False

    def open(self, path: Path) -> BinaryIO:
        """A new file, locked during this run, so that no other run considers it stale."""
        file = stale_files.create_locked(path)
        self._open.append(file)
        self._begun |= path == self.path
        return file

    def commit(self) -> None:
        """Put the model in place. Raises RnnLowerError if the output cannot be replaced."""
        try:
            self._commit()
        except OSError as error:
            raise _unwritable(os.fspath(self.destination), error) from None

    def _commit(self) -> None:
        exists = self.destination.exists()
        for path in (self.path, self.data):
            if exists and path.exists():
                os.chmod(path, stat.S_IMODE(self.destination.stat().st_mode))
        with stale_files.folder_lock(self.folder) as locked:
            unused = stale_files.unused_data(self.destination, self._protected) if exists else []
            # before signals are blocked
            stale = stale_files.stale_data(self.destination, self.path, locked, self._protected)
            self._close_files()  # Windows cannot rename an open file
            with signals_blocked():
                os.replace(self.path, self.destination)
                _sync_folder(self.folder)
                stale_files.remove(stale)
        if self.data.exists():
            logger.info("the weights were written to %s", self.data)
        for name in unused:
            logger.warning(
                "kept the data file %s, although %s no longer refers to it", self.folder / name, self.destination
            )

    def _close_files(self) -> None:
        for file in self._open:
            file.close()

    @property
    def committed(self) -> bool:
        """Whether the rename has happened; an interruption cannot come between the rename and this flag."""
        return self._begun and not self.path.exists()

    def close(self) -> None:
        """Remove uncommitted files."""
        if os.name == "nt":
            self._close_files()
        if not self.committed:
            self._begun = False
            for path in (self.path, self.data):
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
        self._close_files()


@contextlib.contextmanager
def staged(
    document: Document, destination: str | os.PathLike[str], progress: Progress | None = None,
    dims: Dims | None = None, protected: Collection[Inode] = (),
) -> Iterator[Staged]:  # fmt: skip
    """Write the lowered document next to its destination. Raises RnnLowerError if it cannot be written there.

    protected: the data files of the model from which this one was made; they are neither replaced nor removed.
    """
    text, result = name_of(destination), None
    try:
        with contextlib.ExitStack() as stack:
            try:
                result = stack.enter_context(_prepared(checked_destination(destination, protected), protected))
                _write(document, result, progress, dims)
            except OSError as error:
                raise _unwritable(text, error) from None
            path, streamed = result.destination, isinstance(result, _Stream)
            linked = not streamed and path.parent.resolve() != Path(destination).absolute().parent.resolve()
            if result.data.exists() and (streamed or linked):
                way_out = (
                    f"cannot be written through a symbolic link; write to {path}"
                    if linked
                    else "cannot be written to a stream; pass a file name"
                )
                raise UnsupportedError(f"{text}: the model has weights in another file, which {way_out}")
            yield result
    except KeyboardInterrupt:
        state = f"after {text} was written" if result is not None and result.committed else "nothing was written"
        raise KeyboardInterrupt(state) from None


@contextlib.contextmanager
def _prepared(path: Path, protected: Collection[Inode] = ()) -> Iterator[Staged]:
    """The staged output for a checked destination, after removing files of killed runs."""
    with contextlib.ExitStack() as stack:
        streamed = str(path) == "-" or (path.exists() and not path.is_file())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) if streamed else path.parent
        if not streamed:
            with stale_files.folder_lock(folder) as locked:
                if locked:
                    stale_files.remove_unfinished(path)
        result = (_Stream if streamed else Staged)(path, folder, secrets.token_hex(8), protected)
        stack.callback(result.close)
        yield result


def _unwritable(path: str, error: OSError) -> RnnLowerError:
    return RnnLowerError(f"{path}: cannot be written: {error.strerror or error}")


class _Stream(Staged):
    """A destination that is not a regular file (-, a device, a FIFO): it is written to, but never replaced."""

    def _commit(self) -> None:
        content = self.path.read_bytes()
        if str(self.destination) == "-":
            if not to_stdout(content):
                raise RnnLowerError("-: stdout does not accept bytes; pass a file name")
            return
        with open(self.destination, "wb") as stream:
            stream.write(content)


def data_of(document: Document) -> frozenset[Inode]:
    """The files that contain the weights of a document."""
    external = filter(protobuf.is_external, protobuf.tensors(document.proto))
    extents = (protobuf.locate(tensor, document.folder).path for tensor in external if document.folder is not None)
    return frozenset(inode for inode in map(inode_of, set(extents)) if inode is not None)


def write_text(text: str, destination: str | os.PathLike[str]) -> None:
    """Write a text file, like `write_bytes`; "-" means standard output."""
    if name_of(destination) != "-":
        write_bytes(text.encode("utf-8", "replace"), destination)
    elif not to_stdout(text.encode("utf-8", "replace")):
        sys.stdout.write(text)


def write_bytes(content: bytes, destination: str | os.PathLike[str]) -> None:
    """Write a file that is no model by one rename; devices and FIFOs are written to, links followed.

    Raises RnnLowerError when it cannot be written there.
    """
    message = name_of(destination)
    try:
        with _prepared(checked_destination(destination, text=True)) as result:
            file = result.open(result.path)
            file.write(content)
            sync(file)
            result.commit()
    except OSError as error:
        raise _unwritable(message, error) from None


def _write(document: Document, result: Staged, progress: Progress | None, dims: Dims | None) -> None:
    """Write the data file, if needed, and then the model that refers to it."""
    model = result.open(result.path)
    large = sum(len(tensor.raw_data) for tensor in protobuf.tensors(document.proto)) > EMBEDDED_UP_TO
    outside = large or any(map(protobuf.is_external, protobuf.tensors(document.proto)))
    data = _DataFile(result, progress) if outside else None
    proto = document.write_back(dims, None if data is None else data.keep)
    if data is not None and document.folder is not None:
        data.move(proto, document.folder, large)
    content = proto.SerializeToString()
    if data is not None and data.file is not None:
        sync(data.file)
    model.write(content)
    sync(model)


def _stays(dtype: int, size: int) -> bool:
    """Whether a tensor of this type and number of bytes stays in the .onnx file."""
    return size < SMALL or (dtype == onnx.TensorProto.INT64 and size < SMALL_INTEGERS)


class _DataFile:
    """A data file; weights are copied in pieces or computed one at a time."""

    def __init__(self, result: Staged, progress: Progress | None) -> None:
        self._made, self._progress, self._done = result, progress, 0
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
        """The tensor to write for a weight that lowering created."""
        tensor = value.const_value
        assert tensor is not None
        if _stays(tensor.dtype, tensor.nbytes):
            return tensor
        offset = self._begin(value.name or "")
        assert self.file is not None
        self.file.write(tensor.tobytes())
        location, shape = self._made.data.name, ir.Shape(tensor.shape.numpy())
        return ir.ExternalTensor(location, offset, tensor.nbytes, tensor.dtype, shape=shape, name=value.name or "")

    def move(self, model: onnx.ModelProto, folder: Path, inline_too: bool) -> None:
        """Copy the external data of the source."""
        todo = [
            t for t in protobuf.tensors(model)
            if protobuf.is_external(t) or (inline_too and not _stays(t.data_type, len(t.raw_data)))
        ]  # fmt: skip
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
            protobuf.remove_if(tensor.external_data, lambda entry: entry.key == "checksum")  # the other file's

    def _copy(self, tensor: onnx.TensorProto, folder: Path) -> int:
        assert self.file is not None
        if not protobuf.is_external(tensor):
            length = self.file.write(tensor.raw_data)
            tensor.ClearField("raw_data")
            tensor.data_location = protobuf.EXTERNAL
            return length
        extent = protobuf.locate(tensor, folder)
        with open(extent.path, "rb") as source:
            source.seek(extent.offset)
            remaining = extent.length
            while remaining:
                piece = source.read(min(remaining, 1 << 22))
                if not piece:
                    raise RnnLowerError(f"{extent.path} was truncated while it was being read")
                remaining -= self.file.write(piece)
        return extent.length


def sync(file: BinaryIO) -> None:
    """Flush a file to disk before another file refers to it."""
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Flush a folder, so that a rename survives a crash of the machine; not all systems support this."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
