"""What files must survive: other models' weights, links, devices, two runs at once, and everything that can fail."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onenode import Case, build
from paths import ROOT

import rnn_lower
from rnn_lower import cli
from rnn_lower.modelio import stale_files

OPS = {"RNN", "GRU", "LSTM"}
CASE = Case("LSTM", 14, H=32, I=32, optional=("B",))
OTHER = Case("GRU", 14, H=32, I=32, seed=7)


def save(path: Path, data: str | None = None, case: Case = CASE, constants: bool = False) -> Path:
    """A model, its weights in the file `data` beside it if one is named."""
    model = build(case)[0]
    if data is None:
        onnx.save(model, path)
    else:
        onnx.save(model, path, save_as_external_data=True, location=data, size_threshold=0, convert_attribute=constants)
    return path


def right(path: Path, case: Case = CASE) -> None:
    """The file loads, has no recurrent node and computes what the original does."""
    original, feeds = build(case)
    lowered = onnx.load(path, load_external_data=False)
    assert not {node.op_type for node in lowered.graph.node} & OPS
    report = rnn_lower.check(original, os.fspath(path), inputs=feeds)
    assert report.ok, report


def entries(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def data_files(folder: Path, of: str) -> list[Path]:
    return [path for path in folder.iterdir() if path.name.startswith(f"{of}.") and path.suffix == ".data"]


@contextlib.contextmanager
def untouched(*paths: Path) -> Iterator[None]:
    """Byte for byte, and the same file."""

    def state() -> list[tuple[int, int, int, bytes]]:
        return [(s.st_ino, s.st_mode, s.st_mtime_ns, p.read_bytes()) for p in paths for s in [p.lstat()]]

    before = state()
    yield
    assert state() == before


def run(*arguments: object, **how: Any) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "rnn_lower", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **how}
    return subprocess.run(command, env=environment, check=False, timeout=120, **given)


# -- data files of others ----------------------------------------------------------------------------------------------


def test_a_third_model_keeps_its_data(tmp_path):
    source = save(tmp_path / "in.onnx", "in.weights")
    third = save(tmp_path / "third.onnx", "third.weights", OTHER)
    with untouched(third, tmp_path / "third.weights"):
        rnn_lower.lower_file(source, tmp_path / "out.onnx")
        rnn_lower.lower_file(source, source)
    right(tmp_path / "out.onnx")
    right(source)


def test_the_input_keeps_its_data(tmp_path):
    source = save(tmp_path / "in.onnx", "in.weights")
    with untouched(source, tmp_path / "in.weights"):
        rnn_lower.lower_file(source, tmp_path / "out.onnx")
        rnn_lower.lower_file(source, tmp_path / "out.onnx")
    right(tmp_path / "out.onnx")
    assert len(data_files(tmp_path, "out.onnx")) == 1


def test_the_input_keeps_data_that_is_named_after_the_output(tmp_path):
    source = save(tmp_path / "in.onnx", "out.onnx.data")
    with untouched(source, tmp_path / "out.onnx.data"):
        rnn_lower.lower_file(source, tmp_path / "out.onnx")
    right(tmp_path / "out.onnx")
    right_after = onnx.load(source)
    assert {node.op_type for node in right_after.graph.node} & OPS


@pytest.mark.parametrize("name", ["out.onnx.data", "out.data", ".out.onnx.tmp", "out.onnx.tmp", "out.onnx.0123.data"])
def test_a_foreign_file_of_a_likely_name_stays(name, tmp_path):
    source = save(tmp_path / "in.onnx", "in.weights")
    (tmp_path / name).write_bytes(b"the only copy of a thesis")
    with untouched(tmp_path / name):
        rnn_lower.lower_file(source, tmp_path / "out.onnx")
        rnn_lower.lower_file(source, tmp_path / "out.onnx")
    right(tmp_path / "out.onnx")


def test_two_models_share_one_data_file(tmp_path):
    source = save(tmp_path / "in.onnx", "shared.weights")
    copied = tmp_path / "copy.onnx"
    copied.write_bytes(source.read_bytes())
    with untouched(copied, tmp_path / "shared.weights"):
        rnn_lower.lower_file(source, source)
    right(source)
    original, feeds = build(CASE)
    assert rnn_lower.check(original, onnx.load(copied), inputs=feeds).ok


def test_a_copied_output_keeps_the_data_that_it_shares(tmp_path):
    """Lowering again gives OUT a new data file; the copy goes on with the old one."""
    source = save(tmp_path / "in.onnx", "in.weights")
    out, copied = tmp_path / "out.onnx", tmp_path / "copy.onnx"
    rnn_lower.lower_file(source, out)
    copied.write_bytes(out.read_bytes())
    (old,) = data_files(tmp_path, "out.onnx")
    with untouched(copied, old):
        rnn_lower.lower_file(source, out, form="loop")
    right(out)
    right(copied)


def test_a_model_in_another_folder_that_is_linked_keeps_its_data(tmp_path):
    """A second name of the data file, by a hard link, is someone's."""
    source = save(tmp_path / "in.onnx", "in.weights")
    (tmp_path / "elsewhere").mkdir()
    os.link(tmp_path / "in.weights", tmp_path / "elsewhere" / "in.weights")
    with untouched(tmp_path / "in.weights"):
        rnn_lower.lower_file(source, source)
    right(source)


def test_in_place_leaves_one_model_and_one_data_file(tmp_path):
    source = save(tmp_path / "m.onnx", "m.onnx.data")
    for _ in range(2):
        rnn_lower.lower_file(source, source)
        right(source)
        (data,) = [path for path in data_files(tmp_path, "m.onnx") if path.name != "m.onnx.data"]
        assert entries(tmp_path) == {"m.onnx", data.name, "m.onnx.data"}


def test_data_under_a_name_of_the_users_stays_and_is_named(tmp_path, caplog):
    source = save(tmp_path / "in.onnx")
    save(tmp_path / "out.onnx", "old.weights", OTHER)
    with caplog.at_level(logging.WARNING, "rnn_lower"):
        rnn_lower.lower_file(source, tmp_path / "out.onnx")
    right(tmp_path / "out.onnx")
    assert entries(tmp_path) == {"in.onnx", "out.onnx", "old.weights"}
    assert "old.weights, although" in caplog.text


def test_replacing_an_output_of_ours_removes_its_data(tmp_path):
    rnn_lower.lower_file(save(tmp_path / "in.onnx", "in.weights"), tmp_path / "out.onnx")
    rnn_lower.lower_file(save(tmp_path / "other.onnx"), tmp_path / "out.onnx")
    assert entries(tmp_path) == {"in.onnx", "in.weights", "other.onnx", "out.onnx"}


@pytest.mark.parametrize("owner", ["model.onnx", "other.onnx", "weights"])
def test_a_model_that_is_named_as_data_stays(owner, tmp_path):
    """Whatever a model says of where its weights are, no model is deleted as data, its own file least of all."""
    path, named = save(tmp_path / "model.onnx", data="weights.bin"), tmp_path / owner
    if not named.exists():
        save(named, case=OTHER)
    model = onnx.load(path, load_external_data=False)
    odd = model.graph.initializer.add(name="odd", data_type=1, dims=[1], data_location=onnx.TensorProto.EXTERNAL)
    for key, text in (("location", owner), ("offset", "0"), ("length", "4")):
        odd.external_data.add(key=key, value=text)
    model.graph.node.add(op_type="Abs", input=["odd"], output=["odder"])
    path.write_bytes(model.SerializeToString())
    before = None if named == path else named.read_bytes()
    assert cli.main(["lower", str(path), "-o", str(path)]) == 0
    right(path)
    assert before is None or named.read_bytes() == before
    assert entries(tmp_path) == {
        "model.onnx",
        "weights.bin",
        owner,
        *(data.name for data in data_files(tmp_path, "model.onnx")),
    }


def test_data_in_a_file_with_a_header_stays(tmp_path):
    """A model may take its weights from a .safetensors file, which others read without any model."""
    path = save(tmp_path / "model.onnx", data="weights.bin")
    header = (2).to_bytes(8, "little") + b"{}"
    named = tmp_path / "model.safetensors"
    named.write_bytes(header + (tmp_path / "weights.bin").read_bytes())
    (tmp_path / "weights.bin").unlink()
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = named.name
            elif entry.key == "offset":
                entry.value = str(int(entry.value) + len(header))
    path.write_bytes(model.SerializeToString())
    with untouched(named):
        assert cli.main(["lower", str(path), "-o", str(path)]) == 0
    right(path)


def test_left_behind_files_of_a_dead_run_are_removed_and_named(tmp_path, capsys):
    source = save(tmp_path / "in.onnx", "in.weights")
    token = "0123456789abcdef"
    (tmp_path / f".out.onnx.{token}.rnn_lower.tmp").write_bytes(b"half a model")
    (tmp_path / f"out.onnx.{token}.data").write_bytes(b"half of its weights")
    assert cli.main(["lower", str(source), "-o", str(tmp_path / "out.onnx")]) == 0
    err = capsys.readouterr().err
    assert f".out.onnx.{token}.rnn_lower.tmp" in err
    (data,) = data_files(tmp_path, "out.onnx")
    assert entries(tmp_path) == {"in.onnx", "in.weights", "out.onnx", data.name}


# -- links -------------------------------------------------------------------------------------------------------------


def hub_cache(root: Path) -> Path:
    """As a hub's cache lays it out: every file of a snapshot is a link to a blob of another name."""
    blobs, snapshot = root / "blobs", root / "snapshots" / "1f2e3d"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    save(blobs / "model.onnx", "model.onnx_data")
    for name, blob in (("model.onnx", "aa01"), ("model.onnx_data", "bb02")):
        (blobs / name).rename(blobs / blob)
        (snapshot / name).symlink_to(f"../../blobs/{blob}")
    return snapshot / "model.onnx"


def test_a_hub_cache_is_read(tmp_path, capsys):
    source = hub_cache(tmp_path / "hub")
    out = tmp_path / "out.onnx"
    blobs = sorted((tmp_path / "hub" / "blobs").iterdir())
    with untouched(*blobs):
        assert cli.main(["lower", str(source), "-o", str(out), "--check"]) == 0, capsys.readouterr().err
    right(out)
    assert cli.main(["check", str(source), str(out)]) == 0
    assert len(rnn_lower.inspect(source)) == 1


def test_a_hub_cache_with_symbolic_sizes_is_checked_on_onnxruntime(tmp_path, capsys):
    source = hub_cache(tmp_path / "hub")
    model = onnx.load(source.resolve(), load_external_data=False)
    for axis, name in enumerate(("T", "N")):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
    source.resolve().write_bytes(model.SerializeToString())
    assert cli.main(["lower", str(source), "-o", str(tmp_path / "out.onnx"), "--check", "-v"]) == 0
    assert "the original model on onnxruntime" in capsys.readouterr().out


def test_hard_links_are_read(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    save(tmp_path / "a" / "m.onnx", "m.weights")
    for name in ("m.onnx", "m.weights"):
        os.link(tmp_path / "a" / name, tmp_path / "b" / name)
    with untouched(tmp_path / "a" / "m.onnx", tmp_path / "a" / "m.weights"):
        rnn_lower.lower_file(tmp_path / "b" / "m.onnx", tmp_path / "out.onnx")
    right(tmp_path / "out.onnx")


def test_in_place_through_a_hard_link_leaves_the_other_name_alone(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    save(tmp_path / "a" / "m.onnx", "m.weights")
    for name in ("m.onnx", "m.weights"):
        os.link(tmp_path / "a" / name, tmp_path / "b" / name)
    before = (tmp_path / "a" / "m.onnx").read_bytes(), (tmp_path / "a" / "m.weights").read_bytes()
    rnn_lower.lower_file(tmp_path / "b" / "m.onnx", tmp_path / "b" / "m.onnx")
    right(tmp_path / "b" / "m.onnx")
    assert ((tmp_path / "a" / "m.onnx").read_bytes(), (tmp_path / "a" / "m.weights").read_bytes()) == before


def test_an_output_link_stays_and_its_target_is_replaced(tmp_path):
    source = save(tmp_path / "in.onnx")
    (tmp_path / "real").mkdir()
    target, link = tmp_path / "real" / "m.onnx", tmp_path / "out.onnx"
    target.write_bytes(b"old")
    link.symlink_to("real/m.onnx")
    rnn_lower.lower_file(source, link)
    assert os.readlink(link) == "real/m.onnx"
    assert not target.is_symlink()
    right(target)
    assert entries(tmp_path) == {"in.onnx", "real", "real/m.onnx", "out.onnx"}


def test_an_output_link_to_what_is_not_there_yet(tmp_path):
    source = save(tmp_path / "in.onnx")
    (tmp_path / "out.onnx").symlink_to("new.onnx")
    rnn_lower.lower_file(source, tmp_path / "out.onnx")
    assert os.readlink(tmp_path / "out.onnx") == "new.onnx"
    right(tmp_path / "new.onnx")


def test_in_place_through_a_link(tmp_path):
    target = save(tmp_path / "m.onnx", "m.weights")
    link = tmp_path / "link.onnx"
    link.symlink_to("m.onnx")
    rnn_lower.lower_file(link, link)
    assert os.readlink(link) == "m.onnx"
    right(target)
    (data,) = data_files(tmp_path, "m.onnx")
    assert entries(tmp_path) == {"m.onnx", "m.weights", "link.onnx", data.name}


# -- where weights may lie ------------------------------------------------------------------------------------------------


def test_data_of_constants(tmp_path):
    case = CASE.replace(weights="constant")
    source = save(tmp_path / "in.onnx", "in.weights", case, constants=True)
    held = onnx.load(source, load_external_data=False)
    assert any(a.t.external_data for node in held.graph.node for a in node.attribute), "the case is not what it says"
    with untouched(source, tmp_path / "in.weights"):
        rnn_lower.lower_file(source, tmp_path / "out.onnx")
    right(tmp_path / "out.onnx", case)


def test_data_of_constants_in_place(tmp_path):
    case = CASE.replace(weights="constant")
    source = save(tmp_path / "m.onnx", "m.weights", case, constants=True)
    for _ in range(2):
        rnn_lower.lower_file(source, source)
        right(source, case)
        (data,) = data_files(tmp_path, "m.onnx")
        assert entries(tmp_path) == {"m.onnx", "m.weights", data.name}


def test_data_in_a_folder_below(tmp_path):
    (tmp_path / "weights").mkdir()
    source = save(tmp_path / "in.onnx", "weights/in.bin")
    with untouched(tmp_path / "weights" / "in.bin"):
        rnn_lower.lower_file(source, tmp_path / "out.onnx")
        rnn_lower.lower_file(source, source)
    right(tmp_path / "out.onnx")
    right(source)


def test_opset_with_a_file_of_the_same_name_in_the_working_directory(tmp_path, monkeypatch):
    """Data is looked for beside the model, never where the command happens to run."""
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    here.mkdir()
    case = CASE.replace(opset=11)
    source = save(there / "in.onnx", "in.weights", case)
    size = (there / "in.weights").stat().st_size
    (here / "in.weights").write_bytes(np.full(size // 4, 1e3, np.float32).tobytes())
    monkeypatch.chdir(here)
    rnn_lower.lower_file(source, tmp_path / "out.onnx", opset=17)
    right(tmp_path / "out.onnx", case)
    result = onnx.load(tmp_path / "out.onnx", load_external_data=False)
    assert result.opset_import[0].version == 17
    lowered = rnn_lower.lower(source, opset=17)
    original, feeds = build(case)
    assert rnn_lower.check(original, lowered, inputs=feeds).ok
    assert entries(here) == {"in.weights"}


def test_lower_of_a_path_is_self_contained(tmp_path, monkeypatch):
    source = save(tmp_path / "in.onnx", "in.weights")
    with untouched(source, tmp_path / "in.weights"):
        lowered = rnn_lower.lower(source)
    assert isinstance(lowered, onnx.ModelProto)
    assert not [t.name for t in lowered.graph.initializer if t.external_data or t.data_location]
    (tmp_path / "in.weights").unlink()
    monkeypatch.chdir(tmp_path)
    original, feeds = build(CASE)
    assert rnn_lower.check(original, onnx.ModelProto.FromString(lowered.SerializeToString()), inputs=feeds).ok
    assert entries(tmp_path) == {"in.onnx"}


# -- what is no file ----------------------------------------------------------------------------------------------------


def test_to_the_null_device(tmp_path):
    source = save(tmp_path / "in.onnx")
    before = os.stat("/dev/null")
    rnn_lower.lower_file(source, "/dev/null")
    after = os.stat("/dev/null")
    assert stat.S_ISCHR(after.st_mode)
    assert (after.st_rdev, after.st_mode, after.st_ino) == (before.st_rdev, before.st_mode, before.st_ino)
    assert not [name for name in os.listdir("/dev") if "null." in name]


def test_to_a_fifo(tmp_path):
    source, fifo = save(tmp_path / "in.onnx"), tmp_path / "fifo"
    os.mkfifo(fifo)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(fifo.read_bytes()), daemon=True)
    reader.start()
    rnn_lower.lower_file(source, fifo)
    reader.join(30)
    (tmp_path / "received.onnx").write_bytes(received[0])
    right(tmp_path / "received.onnx")
    assert stat.S_ISFIFO(fifo.lstat().st_mode)
    assert entries(tmp_path) == {"in.onnx", "fifo", "received.onnx"}


def test_to_stdout(tmp_path):
    source = save(tmp_path / "in.onnx")
    done = run("lower", source, "-o", "-", "--check", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert b"wrote -" in done.stderr
    assert b"same: " in done.stderr
    assert entries(tmp_path) == {"in.onnx"}
    (tmp_path / "out.onnx").write_bytes(done.stdout)
    right(tmp_path / "out.onnx")


def test_to_stdout_as_json(tmp_path):
    source = save(tmp_path / "in.onnx")
    done = run("lower", source, "-o", "-", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert b'"output": "-"' in done.stderr
    onnx.checker.check_model(onnx.ModelProto.FromString(done.stdout))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("command", ["lower", "lower -", "check", "inspect", "targets"])
def test_full_stdout(command, tmp_path):
    source = save(tmp_path / "in.onnx")
    arguments = {
        "lower": ("lower", source, "-o", tmp_path / "out.onnx"),
        "lower -": ("lower", source, "-o", "-"),
        "check": ("check", source, source),
        "inspect": ("inspect", source, "--json"),
        "targets": ("targets",),
    }[command]
    with open("/dev/full", "wb") as full:
        done = run(*arguments, stdout=full, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert b"No space left on device" in done.stderr
    assert b"Traceback" not in done.stderr
    assert done.stderr.count(b"\n") == 1, done.stderr
    assert entries(tmp_path) <= {"in.onnx", "out.onnx"}


@pytest.mark.parametrize(
    "command", ["lower in.onnx -o out.onnx", "inspect in.onnx", "targets", "check in.onnx in.onnx"]
)
def test_closed_stdout(command, tmp_path):
    save(tmp_path / "in.onnx")
    line = f'exec "{sys.executable}" -m rnn_lower {command} >&-'
    done = subprocess.run(
        ["sh", "-c", line], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False, timeout=120,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    assert done.returncode in (0, 2), done.stderr
    assert b"Traceback" not in done.stderr
    assert b"Exception" not in done.stderr
    assert done.stderr.count(b"\n") == (done.returncode == 2), done.stderr
    if command.startswith("lower"):
        right(tmp_path / "out.onnx")


def test_a_model_to_closed_stdout(tmp_path):
    """There is nowhere to write to, so this cannot be a success."""
    save(tmp_path / "in.onnx")
    done = subprocess.run(
        ["sh", "-c", f'exec "{sys.executable}" -m rnn_lower lower in.onnx -o - >&-'], cwd=tmp_path, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=120, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert done.stderr.count(b"\n") == 1, done.stderr
    assert b"Traceback" not in done.stderr


def test_a_reader_that_leaves(tmp_path):
    """As `rnn-lower inspect ... | head -0`."""
    save(tmp_path / "in.onnx")
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as gone:
        done = run("inspect", tmp_path / "in.onnx", stdout=gone)
    assert done.returncode in (0, 2), done.stderr
    assert b"Traceback" not in done.stderr
    assert done.stderr.count(b"\n") <= 1, done.stderr


# -- two runs, and modes --------------------------------------------------------------------------------------------------


def test_two_runs_into_one_output(tmp_path):
    """Whichever is last, the result is whole: never the model of one with the weights of the other."""
    sources = [save(tmp_path / f"in{i}.onnx", f"in{i}.weights", CASE.replace(seed=i)) for i in range(2)]
    out = tmp_path / "out.onnx"
    for _ in range(2):
        started = [
            subprocess.Popen(
                [sys.executable, "-m", "rnn_lower", "lower", str(source), "-o", str(out)], stderr=subprocess.PIPE,
                stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
            for source in sources
        ]  # fmt: skip
        ended = [(process.communicate(timeout=120)[1], process.returncode) for process in started]
        assert [code for _, code in ended] == [0, 0], ended
        reports = []
        for seed in range(2):
            original, feeds = build(CASE.replace(seed=seed))
            reports.append(rnn_lower.check(original, os.fspath(out), inputs=feeds).ok)
        assert sorted(reports) == [False, True]
        referred = {e.value for t in onnx.load(out, load_external_data=False).graph.initializer for e in t.external_data if e.key == "location"}  # fmt: skip
        assert referred <= {path.name for path in data_files(tmp_path, "out.onnx")}
        assert not [name for name in entries(tmp_path) if name.endswith(".tmp")]
    rnn_lower.lower_file(sources[0], out)
    right(out, CASE.replace(seed=0))


@pytest.mark.parametrize("data", [None, "in.weights"])
def test_a_file_that_is_not_yet_locked_is_not_lost(data, tmp_path, monkeypatch):
    """Another run tidies up between the moment when a file is made and the moment when it is locked."""
    fcntl = pytest.importorskip("fcntl")
    source, lock, times = save(tmp_path / "in.onnx", data), fcntl.flock, []

    def late(file: Any, flags: int) -> None:
        if (
            not isinstance(file, int) and flags == fcntl.LOCK_EX and len(times) < 2
        ):  # once for the data, once for the model
            times.append(file.name)
            stale_files.remove_unfinished(tmp_path / "out.onnx")
        lock(file, flags)

    monkeypatch.setattr(stale_files.fcntl, "flock", late)
    rnn_lower.lower_file(source, tmp_path / "out.onnx")
    monkeypatch.undo()
    assert times
    right(tmp_path / "out.onnx")
    kept = data_files(tmp_path, "out.onnx")
    assert len(kept) == (data is not None)
    assert entries(tmp_path) == {"in.onnx", "out.onnx", *([data] if data else []), *(path.name for path in kept)}


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o755])
def test_modes_are_kept(mode, tmp_path):
    source = save(tmp_path / "m.onnx", "m.weights")
    source.chmod(mode)
    rnn_lower.lower_file(source, source)
    (data,) = data_files(tmp_path, "m.onnx")
    assert stat.S_IMODE(source.stat().st_mode) == mode
    assert stat.S_IMODE(data.stat().st_mode) == mode


def test_a_new_file_has_the_mode_of_the_umask(tmp_path):
    source = save(tmp_path / "in.onnx", "in.weights")
    before = os.umask(0o027)
    try:
        rnn_lower.lower_file(source, tmp_path / "out.onnx")
    finally:
        os.umask(before)
    (data,) = data_files(tmp_path, "out.onnx")
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "out.onnx", data)} == {0o640}


def test_a_read_only_file_is_never_replaced(tmp_path):
    source = save(tmp_path / "m.onnx")
    source.chmod(0o444)
    with untouched(source), pytest.raises(rnn_lower.RnnLowerError, match="read-only"):
        rnn_lower.lower_file(source, source)


# -- what fails --------------------------------------------------------------------------------------------------------

DATA = (None, "m.weights")
"""A model with its weights inside, and one with its weights beside it."""


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("call", ["fsync", "replace", "chmod"])
@pytest.mark.parametrize("in_place", [True, False])
def test_a_failing_disk_leaves_everything_as_it_was(call, data, in_place, tmp_path, monkeypatch, capsys):
    source = save(tmp_path / "m.onnx", data)
    out = source if in_place else tmp_path / "out.onnx"
    if not in_place:
        save(out, data and "out.weights", OTHER)

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    there = sorted(path for path in tmp_path.iterdir())
    with untouched(*there):
        with monkeypatch.context() as patched:
            patched.setattr(os, call, fail)
            code = cli.main(["lower", str(source), "-o", str(out)])
        text, err = capsys.readouterr()
        assert code == 2
        assert text == ""
        assert err.count("\n") == 1
        assert f"{out}: cannot be written: No space left on device" in err
    assert sorted(tmp_path.iterdir()) == there


@pytest.mark.parametrize("after", [1, 2])
def test_a_disk_that_is_full_after_some_weights(after, tmp_path, monkeypatch, capsys):
    """The file system says no in the middle of the data."""
    source = save(tmp_path / "m.onnx", "m.weights")
    seen: list[str] = []

    def full(name: str, *_: int) -> None:
        seen.append(name)
        if len(seen) == after:
            raise OSError(28, "No space left on device")

    with untouched(source, tmp_path / "m.weights"), pytest.raises(rnn_lower.RnnLowerError, match="No space left"):
        rnn_lower.lower_file(source, source, progress=full)
    assert entries(tmp_path) == {"m.onnx", "m.weights"}


@pytest.mark.parametrize("after", [1, 2])
@pytest.mark.parametrize("out", ["m.onnx", "out.onnx"])
def test_interrupted_while_weights_are_written(after, out, tmp_path):
    source = save(tmp_path / "m.onnx", "m.weights")
    seen: list[str] = []

    def interrupt(name: str, *_: int) -> None:
        seen.append(name)
        if len(seen) == after:
            raise KeyboardInterrupt

    with untouched(source, tmp_path / "m.weights"), pytest.raises(KeyboardInterrupt):
        rnn_lower.lower_file(source, tmp_path / out, progress=interrupt)
    assert entries(tmp_path) == {"m.onnx", "m.weights"}


def test_interrupted_on_the_command_line(tmp_path, monkeypatch, capsys):
    source = save(tmp_path / "m.onnx", "m.weights")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with untouched(source, tmp_path / "m.weights"):
        assert cli.main(["lower", str(source), "-o", str(source)]) == 2
    text, err = capsys.readouterr()
    assert (text, err) == ("", "rnn-lower: interrupted, nothing was written\n")
    assert entries(tmp_path) == {"m.onnx", "m.weights"}


def test_a_check_that_raises_leaves_nothing(tmp_path):
    source = save(tmp_path / "m.onnx", "m.weights")

    def accept(path: str) -> bool:
        right(Path(path))  # what is shown is a complete model
        raise RuntimeError("of the caller")

    with untouched(source, tmp_path / "m.weights"), pytest.raises(RuntimeError, match="of the caller"):
        rnn_lower.lower_file(source, source, accept=accept)
    assert entries(tmp_path) == {"m.onnx", "m.weights"}


def test_what_is_not_accepted_leaves_nothing(tmp_path):
    source = save(tmp_path / "m.onnx", "m.weights")
    with untouched(source, tmp_path / "m.weights"):
        rnn_lower.lower_file(source, source, accept=lambda path: False)
    assert entries(tmp_path) == {"m.onnx", "m.weights"}


@pytest.mark.parametrize(
    "where", ["rnn_lower.driver.plan.lower_node", "rnn_lower.modelio.files._write", "rnn_lower.api.files.load"]
)
def test_an_unforeseen_error(where, tmp_path, monkeypatch, capsys):
    """It is ours, so it says so, in one line, and how to see more."""
    source = save(tmp_path / "m.onnx", "m.weights")

    def fail(*_: object, **__: object) -> None:
        raise TypeError("unsupported operand\ntype(s)")

    monkeypatch.delenv("RNN_LOWER_TRACEBACK", raising=False)
    monkeypatch.setattr(where, fail)
    with untouched(source, tmp_path / "m.weights"):
        code = cli.main(["lower", str(source), "-o", str(source)])
    text, err = capsys.readouterr()
    assert (code, text) == (3, "")
    assert err.count("\n") == 1
    assert "internal error: TypeError: unsupported operand type(s)" in err
    assert "RNN_LOWER_TRACEBACK=1" in err
    assert entries(tmp_path) == {"m.onnx", "m.weights"}
    monkeypatch.setenv("RNN_LOWER_TRACEBACK", "1")
    with pytest.raises(TypeError):
        cli.main(["lower", str(source), "-o", str(source)])


@pytest.mark.parametrize("where", ["onnx.load", "rnn_lower.driver.plan.lower_node", "rnn_lower.modelio.files._write"])
def test_a_lack_of_memory(where, tmp_path, monkeypatch, capsys):
    source = save(tmp_path / "m.onnx")

    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(where, fail)
    with untouched(source):
        assert cli.main(["lower", str(source), "-o", str(source)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "there is not enough memory" in err
    assert entries(tmp_path) == {"m.onnx"}


def test_data_that_shrinks_while_it_is_read(tmp_path):
    """Whoever else writes there: this is found out, and the output stays."""
    extra = copy.deepcopy(build(CASE)[0])
    extra.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((64, 64), np.float32), "extra"))
    extra.graph.node.append(onnx.helper.make_node("Identity", ["extra"], ["copied"]))
    extra.graph.output.append(onnx.helper.make_tensor_value_info("copied", 1, [64, 64]))
    source, out = tmp_path / "m.onnx", tmp_path / "out.onnx"
    onnx.save(extra, source, save_as_external_data=True, location="m.weights", size_threshold=0)

    def shrink(name: str, *_: int) -> None:
        if name == "extra":
            os.truncate(tmp_path / "m.weights", (tmp_path / "m.weights").stat().st_size - 64 * 64 * 4 + 100)

    with pytest.raises(rnn_lower.RnnLowerError, match=r"m\.weights"):
        rnn_lower.lower_file(source, out, progress=shrink)
    assert entries(tmp_path) == {"m.onnx", "m.weights"}


def test_files_that_only_look_like_ours_stay(tmp_path):
    """Nothing is removed but what a run of this program with the same output can have left."""
    source = save(tmp_path / "in.onnx", "in.weights")
    token = "0123456789abcdef"
    foreign = [f"thesis.{token}.old", f".photo.{token}.tmp", f"w.{token}.data"]
    for name in foreign:
        (tmp_path / name).write_bytes(b"precious")
    rnn_lower.lower_file(source, tmp_path / "out.onnx")
    rnn_lower.lower_file(source, source)
    assert [(tmp_path / name).read_bytes() for name in foreign] == [b"precious"] * 3


def test_data_that_a_model_in_the_folder_above_refers_to_stays(tmp_path):
    inner = tmp_path / "sub"
    inner.mkdir()
    source = save(inner / "a.onnx", "w.bin")
    above = onnx.load(source, load_external_data=False)
    for tensor in above.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "sub/w.bin"
    onnx.save(above, tmp_path / "b.onnx")
    before = onnx.load(tmp_path / "b.onnx")
    rnn_lower.lower_file(source, source)
    assert onnx.load(tmp_path / "b.onnx") == before


@pytest.mark.parametrize("ending", ["json", "textproto", "onnxtxt"])
def test_text_formats_are_not_written_in_binary(ending, tmp_path):
    source = save(tmp_path / "in.onnx")
    with pytest.raises(rnn_lower.RnnLowerError, match="text format"):
        rnn_lower.lower_file(source, tmp_path / f"out.{ending}")
    assert entries(tmp_path) == {"in.onnx"}
