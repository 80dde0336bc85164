"""Work within limits: one child does it, its death or leave harms nobody, and it holds nothing of its parent's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from judge import close, run_onnxruntime
from onenode import Case, build

import rnn_lower
from rnn_lower.errors import RnnLowerError
from rnn_lower.model import limited

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is no child elsewhere")

STATE = ["loaded"]
OTHERS: list[int] = []


@pytest.fixture(autouse=True)
def anew():
    """No child from another test, and none for the next."""
    limited.close()
    OTHERS[:] = _children()
    yield
    limited.close()


def who() -> bytes:
    return str(os.getpid()).encode()


def state() -> bytes:
    return STATE[0].encode()


def die(by: int) -> bytes:
    os.kill(os.getpid(), by)
    return b"alive"


def fail() -> bytes:
    raise ValueError("no such thing")


def spin() -> bytes:
    while True:
        pass


def swell(size: int) -> bytes:
    return str(len(bytearray(size))).encode()


def echo(content: bytes) -> bytes:
    return content


def files() -> bytes:
    return " ".join(str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()).encode()


def sleep(seconds: float) -> bytes:
    time.sleep(seconds)
    return who()


def test_one_child_does_one_thing_after_the_other():
    first = limited.limited(who)
    assert first != who()
    assert limited.limited(who) == first
    model, _ = build(Case("LSTM", 14, T=5))
    rnn_lower.lower(model)
    assert limited.limited(who) == first


def test_a_message_is_serialized():
    model, _ = build(Case("LSTM", 14, T=5))
    assert limited.limited(onnx.shape_inference.infer_shapes, model.SerializeToString())


@pytest.mark.parametrize("length", [0, 1, 1 << 16, limited.LARGE, 40 << 20])
def test_work_and_answers_of_all_lengths(length):
    content = os.urandom(length)
    assert limited.limited(echo, content) == content


def test_no_child_is_kept_after_large_work():
    limited.limited(echo, bytes(limited.LARGE + 1))
    assert not _children()


@pytest.mark.parametrize(
    ("function", "arguments", "limits"),
    [
        (die, (signal.SIGKILL,), {}),
        (die, (signal.SIGABRT,), {}),
        (fail, (), {}),
        (spin, (), {"seconds": 1}),
        (swell, (400 << 20,), {"size": 200 << 20}),
    ],
    ids=["SIGKILL", "SIGABRT", "an error", "time", "memory"],
)
def test_the_end_of_a_child_is_an_error_and_the_next_thing_is_done(function, arguments, limits):
    limited.limited(who)
    with pytest.raises(RnnLowerError, match=f"^{function.__name__} failed$"):
        limited.limited(function, *arguments, **limits)
    assert not _children()
    assert limited.limited(swell, 400 << 20) == str(400 << 20).encode()


def test_limits_are_counted_anew():
    for _ in range(3):
        assert limited.limited(_busy, 0.6, seconds=1) == b"done"
        assert limited.limited(swell, 200 << 20, size=300 << 20) == str(200 << 20).encode()


def _busy(seconds: float) -> bytes:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    return b"done"


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_all_is_for_the_parent_to_hear(by):
    child = int(limited.limited(who))
    os.kill(child, by)
    assert limited.limited(who) == str(child).encode()


def test_a_child_that_was_killed_while_idle_is_replaced():
    first = int(limited.limited(who))
    os.kill(first, signal.SIGKILL)
    _until(lambda: _state(first) == "Z")
    assert int(limited.limited(who)) != first


def test_a_child_that_is_not_asked_leaves(monkeypatch):
    monkeypatch.setattr(limited, "IDLE", 0.05)
    first = int(limited.limited(who))
    _until(lambda: _state(first) == "Z")
    second = int(limited.limited(who))
    assert second != first
    assert _children() == [second]


def test_a_system_without_processes_or_files_is_an_error(monkeypatch):
    monkeypatch.setattr(os, "fork", _no)
    with pytest.raises(RnnLowerError, match="who failed"):
        limited.limited(who)
    monkeypatch.undo()
    monkeypatch.setattr(limited.socket, "socketpair", _no)
    with pytest.raises(RnnLowerError, match="who failed"):
        limited.limited(who)
    monkeypatch.undo()
    model, feeds = build(Case("GRU", 14, T=5))
    monkeypatch.setattr(os, "fork", _no)
    lowered = rnn_lower.lower(model)
    monkeypatch.undo()
    close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))


def _no(*_: object) -> None:
    raise BlockingIOError("Resource temporarily unavailable")


def test_children_that_die_at_once_are_not_replaced_for_ever(monkeypatch):
    monkeypatch.setattr(limited, "_serve", lambda _: os._exit(1))
    with pytest.raises(RnnLowerError, match="who failed"):
        limited.limited(who)
    assert not _children()


def test_one_that_leaves_while_it_is_asked_is_replaced(monkeypatch):
    """Asked at about the moment when it leaves, again and again."""
    monkeypatch.setattr(limited, "IDLE", 0.002)
    for wait in range(200):
        assert limited.limited(echo, b"content") == b"content"
        time.sleep(0.0015 + wait * 0.000005)


def test_close_lets_the_next_one_know_what_is_new(monkeypatch):
    assert limited.limited(state) == b"loaded"
    monkeypatch.setitem(globals(), "STATE", ["changed"])
    assert limited.limited(state) == b"loaded"
    limited.close()
    assert not _children()
    assert limited.limited(state) == b"changed"


def test_threads_have_children_of_their_own():
    found: set[bytes] = set()
    threads = [threading.Thread(target=lambda: found.add(limited.limited(sleep, 0.3))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert len(_children()) == 1


def test_nothing_of_the_parents_is_held(tmp_path):
    """A pipe whose other end waits for its end, a lock on a folder, what is printed."""
    with (tmp_path / "held").open("w"):
        held = limited.limited(files).decode().split()
    assert {name.split(":")[0] for name in held} == {"/dev/null", "socket"}


def test_a_fork_of_the_parent_has_a_child_of_its_own():
    first = limited.limited(who)
    reader, writer = os.pipe()
    fork = os.fork()
    if fork == 0:
        os.write(writer, limited.limited(who))
        os._exit(0)
    os.waitpid(fork, 0)
    assert os.read(reader, 100) not in (first, b"")
    assert limited.limited(who) == first
    os.close(reader)
    os.close(writer)


def test_closed_streams_are_not_where_it_talks():
    """What others print there would be taken for an answer."""
    script = (
        "import os\n[os.close(stream) for stream in range(3)]\nfrom rnn_lower.model import limited\nimport test_limited\n"
        "limited.limited(test_limited.who)\n"
        "try:\n    os.write(2, b'a warning')\nexcept OSError:\n    pass\n"
        "os._exit(0 if limited.limited(test_limited.echo, b'content') == b'content' else 1)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    assert subprocess.run([sys.executable, "-c", script], env=environment, timeout=60).returncode == 0


SCRIPT = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
import test_limited
from rnn_lower.model import limited
print(limited.limited(test_limited.who).decode(), flush=True)
{then}
"""


@pytest.mark.parametrize(
    "then", ["", "os._exit(0)", "os.kill(os.getpid(), 9)", "sys.exit(1)", "limited.limited(test_limited.sleep, 0.2)"]
)
def test_it_ends_with_its_parent(then):
    """And does not keep open what its parent printed to."""
    command = [sys.executable, "-c", SCRIPT.format(then=then), str(Path(__file__).parent)]
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, env=_environment())
    assert done.stderr == ""
    _until(lambda: _state(int(done.stdout)) in ("", "Z"))
    assert time.monotonic() - start < 60


def test_an_interruption_ends_it(tmp_path):
    command = [sys.executable, "-c", SCRIPT.format(then="limited.limited(test_limited.sleep, 60)")]
    with subprocess.Popen(
        [*command, str(Path(__file__).parent)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=_environment(),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        time.sleep(0.3)
        parent.send_signal(signal.SIGINT)
        parent.wait(20)
        _until(lambda: _state(child) in ("", "Z"))


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def _children() -> list[int]:
    numbers = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return [int(number) for number in numbers if int(number) not in OTHERS]


def _state(process: int) -> str:
    path = Path(f"/proc/{process}/stat")
    return path.read_text().split()[2] if path.exists() else ""


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
