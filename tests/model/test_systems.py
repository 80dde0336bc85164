"""Writing on other systems: file systems without locks, Windows' rename, long names, and folders full of large files."""

from __future__ import annotations

import errno
import logging
import os
import time
from pathlib import Path
from typing import Any

import onnx
import pytest
from onenode import Case, build

import rnn_lower
from rnn_lower import cli
from rnn_lower.modelio import stale_files

CASE = Case("GRU", 17, H=32, I=32, optional=("B",))


def saved(path: Path, data: str | None) -> Path:
    if data is None:
        onnx.save(build(CASE)[0], path)
    else:
        onnx.save(build(CASE)[0], path, save_as_external_data=True, location=data, size_threshold=0)
    return path


@pytest.mark.parametrize("data", [None, "in.weights"])
@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK])
def test_a_file_system_that_cannot_lock_is_written_to(code, data, tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    source, out = saved(tmp_path / "in.onnx", data), tmp_path / "out.onnx"
    stranger = tmp_path / "out.onnx.0123456789abcdef.data"
    stranger.write_bytes(b"perhaps of a live run")
    for _ in range(2):
        rnn_lower.lower_file(source, out)
    assert rnn_lower.check(build(CASE)[0], out).ok
    assert stranger.exists()
    assert len(list(tmp_path.glob("out.onnx.*.data"))) == 1 + (data is not None)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are read from /proc")
@pytest.mark.parametrize("data", [None, "in.weights"])
@pytest.mark.parametrize("command", ["lower", "stream"])
def test_no_open_file_is_renamed(command, data, tmp_path, monkeypatch):
    """As Windows has it, which refuses."""
    replace = os.replace

    def refuse_open(source: Any, destination: Any) -> None:
        open_files = set()
        for name in os.listdir("/proc/self/fd"):
            try:
                open_files.add(os.readlink(f"/proc/self/fd/{name}"))
            except OSError:  # that of the listing itself
                continue
        if os.path.realpath(source) in open_files:
            raise PermissionError(errno.EACCES, "it is open")
        replace(source, destination)

    monkeypatch.setattr(os, "replace", refuse_open)
    model = build(CASE)[0]
    if command == "stream":
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "time"
    source = tmp_path / "in.onnx"
    onnx.save(model, source, save_as_external_data=data is not None, location=data or "", size_threshold=0)
    arguments = [command, str(source), "-o", str(tmp_path / "out.onnx"), "-q"]
    assert cli.main(arguments) == 0
    assert cli.main(arguments) == 0


@pytest.mark.parametrize("length", [220, 230, 249, 255])
def test_the_longest_names(length, tmp_path):
    source = saved(tmp_path / "in.onnx", "in.weights")
    out = tmp_path / f"{'ä' * ((length - 6) // 2)}{'b' * (length % 2)}x.onnx"
    assert len(os.fsencode(out.name)) in (length, length - 1)
    for _ in range(2):
        rnn_lower.lower_file(source, out)
    assert rnn_lower.check(build(CASE)[0], out).ok
    assert len(list(tmp_path.iterdir())) == 4


def test_long_names_that_begin_alike_share_no_data(tmp_path):
    source = saved(tmp_path / "in.onnx", "in.weights")
    outs = [tmp_path / f"{'b' * 245}{k}.onnx" for k in range(2)]
    assert stale_files.stem_of(outs[0]) != stale_files.stem_of(outs[1])
    for out in (*outs, *outs):
        rnn_lower.lower_file(source, out)
    for out in outs:
        assert rnn_lower.check(build(CASE)[0], out).ok


def test_files_beside_are_not_read(tmp_path):
    """A folder of 10 GB is no slower, in place or not."""
    source = saved(tmp_path / "in.onnx", "in.weights")
    for name in ("movie.mkv", "model.safetensors", "other.onnx.data", "a.bin"):
        with open(tmp_path / name, "wb") as file:
            file.truncate(10 << 30)
    with open(tmp_path / "large.onnx", "wb") as file:
        file.truncate(1 << 30)
    begin = time.process_time()
    for _ in range(2):
        rnn_lower.lower_file(source, tmp_path / "out.onnx")
    rnn_lower.lower_file(source, source)
    assert time.process_time() - begin < 3


def test_stale_data_stays_where_the_search_for_its_owner_would_be_long(tmp_path, caplog):
    source = saved(tmp_path / "in.onnx", "in.weights")
    with open(tmp_path / "large.onnx", "wb") as file:
        file.truncate(stale_files.SEARCHED + 1)
    with caplog.at_level(logging.WARNING, "rnn_lower"):
        for _ in range(2):
            rnn_lower.lower_file(source, tmp_path / "out.onnx")
    assert len(list(tmp_path.glob("out.onnx.*.data"))) == 2
    assert ", which may no longer be needed, because the other models" in caplog.text


def test_the_checksum_of_other_data_is_not_copied(tmp_path):
    source = saved(tmp_path / "in.onnx", "in.weights")
    model = onnx.load(source, load_external_data=False)
    model.graph.initializer.add(name="kept", data_type=1, dims=[4096], data_location=onnx.TensorProto.EXTERNAL)
    model.graph.node.add(op_type="Abs", input=["kept"], output=["absolute"])
    for key, text in (("location", "kept.bin"), ("checksum", "0" * 40)):
        model.graph.initializer[-1].external_data.add(key=key, value=text)
    (tmp_path / "kept.bin").write_bytes(bytes(4 * 4096))
    onnx.save(model, source)
    rnn_lower.lower_file(source, tmp_path / "out.onnx")
    lowered = onnx.load(tmp_path / "out.onnx", load_external_data=False)
    (kept,) = [tensor for tensor in lowered.graph.initializer if tensor.name == "kept"]
    assert {entry.key for entry in kept.external_data} == {"location", "offset", "length"}
