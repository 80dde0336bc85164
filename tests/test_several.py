"""Several models by one command, pipes, and how much is told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from judge import remaining
from onenode import Case, build
from paths import ROOT

import rnn_lower
from rnn_lower import cli


@pytest.fixture
def models(tmp_path) -> list[Path]:
    paths = [tmp_path / f"{op}.onnx" for op in ("LSTM", "GRU", "RNN")]
    for path in paths:
        onnx.save(build(Case(path.stem))[0], path)
    return paths


@pytest.mark.parametrize("jobs", [1, 2])
def test_each_goes_into_the_folder_under_its_name(models, jobs, tmp_path, capfd):
    folder = tmp_path / "new" / "lowered"
    assert cli.main(["lower", *map(str, models), "--out-dir", str(folder), "--jobs", str(jobs), "--check"]) == cli.DONE
    assert capfd.readouterr().out.count("wrote ") == 3
    assert sorted(path.name for path in folder.iterdir()) == ["GRU.onnx", "LSTM.onnx", "RNN.onnx"]
    assert not any(remaining(onnx.load(path)) for path in folder.iterdir())


@pytest.mark.parametrize("jobs", [1, 2])
def test_one_that_is_bad_does_not_keep_the_others(models, jobs, tmp_path, capfd):
    models[1].write_bytes(b"no model")
    command = ["lower", *map(str, models), "--out-dir", str(tmp_path / "out"), "--jobs", str(jobs)]
    assert cli.main(command) == cli.BAD
    assert "GRU.onnx: not an ONNX model" in capfd.readouterr().err
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["LSTM.onnx", "RNN.onnx"]
    assert cli.main([*command, "--json"]) == cli.BAD
    told = json.loads(capfd.readouterr().out)
    assert told["schema"] == 1
    assert [(Path(file["input"]).stem, file["exit"]) for file in told["files"]] == [("LSTM", 0), ("GRU", 2), ("RNN", 0)]
    assert "not an ONNX model" in told["files"][1]["error"]
    assert told["files"][0]["nodes"][0]["form"] == "scan"


@pytest.mark.parametrize("link", ["symbolic", "hard", "folder"])
def test_a_result_that_is_a_later_input_is_refused(link, tmp_path, capfd):
    folder, out = tmp_path / "q", tmp_path / "out"
    for name in ("a", "q"):
        (tmp_path / name).mkdir()
    onnx.save(build(Case("GRU"))[0], tmp_path / "a" / "x.onnx")
    onnx.save(build(Case("LSTM"))[0], folder / ("x.onnx" if link == "folder" else "m.onnx"))
    if link == "folder":
        out.symlink_to(folder)
        models = [tmp_path / "a" / "x.onnx", folder / "x.onnx"]
        (tmp_path / "a" / "x.onnx").rename(tmp_path / "a" / "y.onnx")
        models = [tmp_path / "a" / "y.onnx", tmp_path / "b.onnx"]
        models[1].symlink_to(folder / "y.onnx")
        onnx.save(build(Case("LSTM"))[0], folder / "y.onnx")
    else:
        out.mkdir()
        models = [tmp_path / "a" / "x.onnx", folder / "m.onnx"]
        if link == "symbolic":
            (out / "x.onnx").symlink_to(folder / "m.onnx")
        else:
            os.link(folder / "m.onnx", out / "x.onnx")
    before = [path.read_bytes() for path in models]
    assert cli.main(["lower", *map(str, models), "--out-dir", str(out)]) == cli.BAD
    assert "is the same file as" in capfd.readouterr().err
    assert [path.read_bytes() for path in models] == before


def test_results_that_are_one_file_are_refused(models, tmp_path, capfd):
    out = tmp_path / "out"
    out.mkdir()
    (out / "GRU.onnx").symlink_to("LSTM.onnx")
    assert cli.main(["lower", *map(str, models), "--out-dir", str(out)]) == cli.BAD
    assert "which are one file" in capfd.readouterr().err
    assert [path.name for path in out.iterdir()] == ["GRU.onnx"]


def test_models_are_lowered_in_place(models, tmp_path):
    assert cli.main(["lower", *map(str, models), "--out-dir", str(tmp_path)]) == cli.DONE
    assert not any(remaining(onnx.load(path)) for path in models)


def run(*arguments: object, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "rnn_lower", *map(str, arguments)]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        command, input=given, capture_output=True, check=False, env={**os.environ, "PYTHONPATH": path}
    )


def test_through_pipes(models):
    data = models[0].read_bytes()
    end = run("lower", "-", "-o", "-", "--check", given=data)
    assert end.returncode == 0
    assert not remaining(onnx.ModelProto.FromString(end.stdout))
    assert b"same" in end.stderr
    quiet = run("lower", "-", "-o", "-", "-q", given=data)
    assert (quiet.returncode, quiet.stderr) == (0, b"")
    assert run("check", models[0], "-", given=end.stdout).returncode == 0
    assert b"LSTM" in run("inspect", "-", given=data).stdout
    onnx.save_model(onnx.load(models[1]), models[1], save_as_external_data=True, location="w.bin", size_threshold=0)
    outside = run("inspect", "-", given=models[1].read_bytes())
    assert outside.returncode == 2
    assert b"-: the model has weights in a file beside it, which a stream cannot carry" in outside.stderr
    bad = run("inspect", "-", given=b"no model")
    assert bad.returncode == 2
    assert bad.stderr.startswith(b"rnn-lower: error: -: not an ONNX model")


def test_more_or_less_is_told(models, tmp_path, capfd):
    command = ["lower", str(models[0]), "-o", str(tmp_path / "out.onnx")]
    assert cli.main([*command, "--quiet"]) == cli.DONE
    assert capfd.readouterr() == ("", "")
    assert cli.main([*command, "--verbose"]) == cli.DONE
    assert "form scan, " in capfd.readouterr().err
    assert cli.main([*command, "--quiet", "--json"]) == cli.DONE
    assert json.loads(capfd.readouterr().out)["nodes"]
    assert cli.main(["inspect", str(tmp_path / "no.onnx"), "--quiet"]) == cli.BAD
    assert "no such file" in capfd.readouterr().err
    assert cli.main(["--version"]) == cli.DONE
    assert capfd.readouterr().out == f"rnn-lower {rnn_lower.__version__}\n"


@pytest.mark.parametrize("way", [["cli.py"], ["-m", "rnn_lower"]], ids=" ".join)
def test_jobs_however_it_was_started(way, tmp_path):
    """A process of its own imports the file that the first one runs."""
    models = [str(ROOT / "models" / f"{name}.onnx") for name in ("torch_denoiser", "torch_gru_streaming")]
    command = [sys.executable, *way, "lower", *models, "--out-dir", str(tmp_path), "--jobs", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("*.onnx"))) == 2


def of_many_nodes() -> onnx.ModelProto:
    model = build(Case("GRU", 17))[0]
    model.graph.node.extend([onnx.helper.make_node("Relu", ["X"], [f"relu{i}"]) for i in range(20_000)])
    return model


def two_jobs(folder: Path, names: str, model: onnx.ModelProto) -> list[str]:
    """The command that lowers copies of a model, two at once."""
    paths = [folder / f"{name}.onnx" for name in names]
    for path in paths:
        onnx.save(model, path)
    command = [sys.executable, "-m", "rnn_lower", "lower", *map(str, paths)]
    return [*command, "--out-dir", str(folder / "out"), "--jobs", "2"]


def started(parent: subprocess.Popen) -> list[int]:
    """Its processes, as soon as all are there: two workers, and what tidies up after them."""
    while len(found := _children(parent.pid)) < 3:
        assert parent.poll() is None, "it ended before its workers were seen"
        time.sleep(0.02)
    return found


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="how processes are found needs /proc")
def test_jobs_end_with_the_process_that_started_them(tmp_path):
    with subprocess.Popen(two_jobs(tmp_path, "abcd", of_many_nodes())) as parent:
        workers = started(parent)
        parent.kill()
    ends = time.monotonic() + 60
    while any(_runs(pid) for pid in workers):
        assert time.monotonic() < ends, "workers wait for work that nobody will give them"
        time.sleep(0.1)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="how processes are found needs /proc")
def test_a_job_that_is_killed_is_told(tmp_path):
    with subprocess.Popen(two_jobs(tmp_path, "ab", of_many_nodes()), stderr=subprocess.PIPE, text=True) as parent:
        workers = started(parent)
        os.kill(workers[-1], signal.SIGKILL)
        told = parent.communicate(timeout=60)[1]
    assert parent.returncode == 2
    assert "a process was ended from outside" in told
    assert told.count("\n") == 1


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="there are no terminals that close")
def test_jobs_whose_terminal_closes_leave_whole_models_alone(tmp_path):
    big = build(Case("GRU", 17))[0]
    big.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(1 << 24, np.float32), "weights"))
    big.graph.node.append(onnx.helper.make_node("Identity", ["weights"], ["same"]))
    command, out = two_jobs(tmp_path, "ab", big), tmp_path / "out"
    with subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL) as parent:
        while not (out.is_dir() and any(out.iterdir())):  # one of them is being written
            assert parent.poll() is None, "it ended before it wrote"
        os.killpg(parent.pid, signal.SIGHUP)
    ends = time.monotonic() + 60
    while left := [path.name for path in out.iterdir() if path.name not in ("a.onnx", "b.onnx")]:
        assert time.monotonic() < ends, f"left behind: {left}"
        time.sleep(0.1)
    for path in out.iterdir():
        onnx.load(path)


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _runs(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
