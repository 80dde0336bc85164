"""What runs in a child gives what it would give here, and its death is told."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import onnxruntime
import pytest
from onenode import Case, build

import rnn_lower
from rnn_lower import cli
from rnn_lower.checking import runners
from rnn_lower.errors import UnsupportedError
from rnn_lower.sandbox import child_process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is no child elsewhere")
alone = pytest.mark.usefixtures("whatever_runs")


@pytest.fixture
def whatever_runs(monkeypatch):
    """A child even where other tests have left a thread, or what ends it would end the tests."""
    monkeypatch.setattr(child_process, "may_fork", lambda: True)


class Unwilling(Exception):
    """One that cannot be handed over."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


def die(*_: object, **__: object) -> None:
    faulthandler.disable()  # which pytest has turned on, and which would say so here
    os.abort()


def _raise(error: Exception) -> None:
    raise error


@alone
def test_results_and_errors_are_those_of_the_function():
    before = os.getpid()
    assert child_process.run_in_subprocess(os.getpid) != before == os.getpid()
    assert child_process.run_in_subprocess(lambda a, *, b: (a, b), 1, b="two") == (1, "two")
    with pytest.raises(UnsupportedError, match="as it was") as told:
        child_process.run_in_subprocess(_raise, UnsupportedError("as it was"))
    assert told.value.__cause__ is None
    with pytest.raises(KeyError) as unforeseen:
        child_process.run_in_subprocess(_raise, KeyError("lost"))
    assert "in _raise" in str(unforeseen.value.__cause__)
    with pytest.raises(RuntimeError, match="Unwilling: to go"):
        child_process.run_in_subprocess(_raise, Unwilling("to", "go"))


@alone
def test_what_is_changed_in_a_child_stays_there():
    kept: list[int] = []
    assert child_process.run_in_subprocess(lambda: kept.append(1) or len(kept)) == 1
    assert kept == []


@alone
@pytest.mark.parametrize(
    ("end", "told"),
    [(die, "SIGABRT"), (lambda: os.kill(os.getpid(), signal.SIGKILL), "SIGKILL"), (lambda: os._exit(7), "code 7")],
)
def test_a_death_is_told(end, told):
    with pytest.raises(child_process.Ended, match=f"^{told}$"):
        child_process.run_in_subprocess(end)


def test_what_is_printed_is_printed_once(tmp_path):
    script = "from rnn_lower.sandbox import child_process\nprint('before')\nchild_process.run_in_subprocess(print, 'inside' * 4000)\nprint('after')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["before", "inside" * 4000, "after"]


def test_no_child_beside_threads_that_work():
    stop = threading.Event()
    other = threading.Thread(target=stop.wait)
    other.start()
    try:
        assert child_process.run_in_subprocess(os.getpid) == os.getpid()
    finally:
        stop.set()
        other.join()


@alone
def test_sessions_of_the_parent_are_left_alone():
    """A child that ended one would wait for threads that it does not have."""
    model, feeds = build(Case("LSTM", 14, T=40))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    dropped = [onnxruntime.InferenceSession(model.SerializeToString(), options)]
    dropped[0].run(None, feeds)
    dropped.append(dropped)  # for the collector, which may come to it in the child
    del dropped
    child_process.run_in_subprocess(gc.collect)
    assert rnn_lower.check(model, rnn_lower.lower(model)).ok


@alone
def test_children_send_no_events_of_onnxruntime(monkeypatch):
    """A lock of the thread that sends them would never be free in a child."""
    calls: list[str] = []
    monkeypatch.setattr(onnxruntime.capi._pybind_state, "disable_telemetry_events", lambda: calls.append("off"))
    assert child_process.run_in_subprocess(lambda: calls) == ["off"]
    assert calls == []


def test_the_command_line_keeps_no_events_of_onnxruntime(tmp_path):
    """onnxruntime keeps the events that it will send in a folder of the user's cache."""
    model, _ = build(Case("GRU", 14, T=5))
    path = tmp_path / "a.onnx"
    path.write_bytes(model.SerializeToString())
    switches = ("CI", "ORT_DISABLE_TELEMETRY", "ORT_RUNNING_UNIT_TESTS", "GITHUB_ACTIONS")
    folders = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    environment = {name: value for name, value in os.environ.items() if name not in switches} | folders
    command = [sys.executable, "-m", "rnn_lower", "lower", str(path), "-o", str(tmp_path / "b.onnx"), "--check"]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    assert sorted(found.name for found in tmp_path.iterdir()) == ["a.onnx", "b.onnx"]


SCRIPT = """
import pathlib, signal, sys, tempfile, time
from rnn_lower.sandbox import child_process
from rnn_lower.signals import stopped_as_by_ctrl_c

def work():
    with tempfile.TemporaryDirectory(dir=sys.argv[1]) as made:
        pathlib.Path(sys.argv[1], "begun").touch()
        time.sleep(60)

for ignored in sys.argv[2:]:
    signal.signal(int(ignored), signal.SIG_IGN)
for heard in {signal.SIGINT, signal.SIGTERM, signal.SIGHUP} - {int(ignored) for ignored in sys.argv[2:]}:
    signal.signal(heard, signal.default_int_handler)  # whatever the tests were started by
with stopped_as_by_ctrl_c():
    child_process.run_in_subprocess(work)
"""


@pytest.mark.parametrize("ignored", [[], [signal.SIGINT], [signal.SIGHUP]], ids=str)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_child_tidies_up_when_its_parent_is_told_to_stop(number, ignored, tmp_path):
    if number in ignored:
        pytest.skip("nobody hears it")
    parent = _begun(tmp_path, ignored)
    parent.send_signal(number)
    parent.wait(20)
    assert [path.name for path in tmp_path.iterdir()] == ["begun"]


def test_a_child_ends_with_its_parent(tmp_path):
    parent = _begun(tmp_path)
    (child,) = (int(n) for n in Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split())
    parent.kill()
    parent.wait(20)
    end = time.monotonic() + 20
    while Path(f"/proc/{child}/stat").exists() and Path(f"/proc/{child}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() < end
        time.sleep(0.01)


def _begun(folder: Path, ignored: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", SCRIPT, str(folder), *(str(int(number)) for number in ignored)]
    parent = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 60
    while not (folder / "begun").exists():
        assert parent.poll() is None
        assert time.monotonic() < end
        time.sleep(0.01)
    return parent


@alone
@pytest.mark.parametrize("command", ["check", "lower"])
def test_a_runtime_that_dies_is_one_line(command, tmp_path, monkeypatch, capsys):
    model, _ = build(Case("GRU", 14, T=5))
    path, lowered = tmp_path / "a.onnx", tmp_path / "b.onnx"
    path.write_bytes(model.SerializeToString())
    lowered.write_bytes(rnn_lower.lower(model).SerializeToString())
    monkeypatch.setattr(runners.onnxruntime, "InferenceSession", die)
    before = {one.name: one.read_bytes() for one in tmp_path.iterdir()}
    given = [str(path), str(lowered)] if command == "check" else [str(path), "-o", str(lowered), "--check"]
    assert cli.main([command, *given]) == cli.BAD
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        f"rnn-lower: error: {path}: the process that ran the original or the lowered model on onnxruntime "
    )
    assert "crashed (SIGABRT)" in line
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir()} == before


@alone
def test_a_report_outlives_a_runtime_that_dies(tmp_path, monkeypatch):
    model, _ = build(Case("GRU", 14, T=5))
    monkeypatch.setattr(runners.onnxruntime, "InferenceSession", die)
    report = rnn_lower.report(model)
    assert "SIGABRT" in str(report.check)
    assert report.proved == 1


def limited(count: int) -> tuple[int, int]:
    """The size of an array that a child makes, and its limit of memory."""
    resource = pytest.importorskip("resource")
    return len(bytearray(count)), resource.getrlimit(resource.RLIMIT_AS)[0]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the limit is read from /proc/meminfo")
def test_an_allocation_of_more_memory_than_there_is_fails(monkeypatch):
    """Instead of the system, which would kill the child or another process."""
    with pytest.raises(MemoryError):
        child_process.run_in_subprocess(limited, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") + (8 << 30))
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (3 << 40, resource.RLIM_INFINITY))
    assert child_process.run_in_subprocess(limited, 1) == (1, 3 << 40)
