"""Work within limits: one child does it, its death or leave harms nobody, and it holds nothing of its parent's."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import onnx
import onnx_ir
import pytest
from judge import close, run_onnxruntime
from onenode import Case, build

import rnn_lower
from rnn_lower.errors import RnnLowerError
from rnn_lower.sandbox import resource_limits

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is no child elsewhere")

STATE = ["loaded"]
OTHERS: list[int] = []


@pytest.fixture(autouse=True)
def _no_child(monkeypatch):
    """But those that a test asks for, in place of that of all tests."""
    monkeypatch.setattr(resource_limits._HERE, "depth", 0)
    resource_limits.close()
    OTHERS.clear()
    OTHERS.extend(_children())
    yield
    resource_limits.close()


@pytest.fixture
def kept():
    with resource_limits.one_child():
        yield


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


def test_a_child_ends_with_what_asked_for_it():
    first = resource_limits.run_with_limits(who)
    assert first != who()
    assert not _children()
    with resource_limits.one_child():
        second = resource_limits.run_with_limits(who)
        with resource_limits.one_child():
            assert resource_limits.run_with_limits(who) == second
        assert resource_limits.run_with_limits(who) == second
    assert not _children()
    assert second != first
    with contextlib.suppress(KeyError), resource_limits.one_child():
        resource_limits.run_with_limits(who)
        raise KeyError
    assert not _children()


def test_a_call_of_the_library_leaves_none():
    model, _ = build(Case("LSTM", 14, T=5))
    lowered = rnn_lower.lower(model)
    rnn_lower.inspect(model)
    rnn_lower.check(model, lowered)
    rnn_lower.lower(onnx_ir.from_proto(model), opset=17)
    with pytest.raises(RnnLowerError):
        rnn_lower.lower(onnx.ModelProto())
    assert not _children()


def test_the_parts_of_a_call_share_one(monkeypatch, tmp_path):
    """One conversion after the other as well."""
    forks = []
    real = os.fork
    monkeypatch.setattr(os, "fork", lambda: forks.append(1) or real())
    model, _ = build(Case("LSTM", 14, T=5))
    model.graph.node.extend(
        onnx.helper.make_node("Softmax", ["X"], [f"soft{place}"], axis=2, name=f"soft{place}") for place in range(5)
    )
    model.opset_import[0].version = 12
    rnn_lower.lower(model, opset=14)
    assert len(forks) == 1


def test_a_message_is_serialized():
    model, _ = build(Case("LSTM", 14, T=5))
    assert resource_limits.run_with_limits(onnx.shape_inference.infer_shapes, model.SerializeToString())


@pytest.mark.parametrize("length", [0, 1, 1 << 16, resource_limits.LARGE, 40 << 20])
def test_work_and_answers_of_all_lengths(length):
    content = os.urandom(length)
    assert resource_limits.run_with_limits(echo, content) == content


def test_no_child_is_kept_after_large_work(kept):
    resource_limits.run_with_limits(echo, bytes(resource_limits.LARGE + 1))
    assert not _children()


@pytest.mark.parametrize(
    ("function", "arguments", "limits"),
    [
        (die, (signal.SIGKILL,), {}),
        (die, (signal.SIGABRT,), {}),
        (spin, (), {"seconds": 1}),
        (swell, (400 << 20,), {"size": 200 << 20}),
    ],
    ids=["SIGKILL", "SIGABRT", "time", "memory"],
)
def test_the_end_of_a_child_is_an_error_and_the_next_thing_is_done(function, arguments, limits, kept):
    resource_limits.run_with_limits(who)
    with pytest.raises(RnnLowerError, match=f"^{function.__name__} failed$"):
        resource_limits.run_with_limits(function, *arguments, **limits)
    assert not _children()
    assert resource_limits.run_with_limits(swell, 400 << 20) == str(400 << 20).encode()


def test_an_error_is_told_and_the_child_goes_on(kept):
    child = resource_limits.run_with_limits(who)
    with pytest.raises(RnnLowerError, match=r"^fail failed: no such thing$"):
        resource_limits.run_with_limits(fail)
    assert resource_limits.run_with_limits(who) == child
    assert resource_limits.run_with_limits(echo, b"-as it is") == b"-as it is"


def test_limits_are_counted_anew(kept):
    for _ in range(3):
        assert resource_limits.run_with_limits(_busy, 0.6, seconds=1) == b"done"
        assert resource_limits.run_with_limits(swell, 200 << 20, size=300 << 20) == str(200 << 20).encode()


def _busy(seconds: float) -> bytes:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    return b"done"


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_to_all_is_for_the_parent_to_hear(by, kept):
    child = int(resource_limits.run_with_limits(who))
    os.kill(child, by)
    assert resource_limits.run_with_limits(who) == str(child).encode()


def test_a_child_that_was_killed_meanwhile_is_an_error_once(kept):
    first = int(resource_limits.run_with_limits(who))
    os.kill(first, signal.SIGKILL)
    _until(lambda: _state(first) == "Z")
    with pytest.raises(RnnLowerError, match="who failed"):
        resource_limits.run_with_limits(who)
    assert int(resource_limits.run_with_limits(who)) != first


def test_a_child_that_stands_still_is_ended():
    with resource_limits.one_child():
        os.kill(int(resource_limits.run_with_limits(who)), signal.SIGSTOP)
    assert not _children()


def test_none_is_waited_for_or_killed_that_others_have_waited_for(monkeypatch):
    """Its number may be that of a stranger by then."""
    with resource_limits.one_child():
        child = int(resource_limits.run_with_limits(who))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        monkeypatch.setattr(os, "kill", _no)


@pytest.mark.parametrize("part", ["_send", "_exactly"])
@pytest.mark.parametrize("place", [1, 2])
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interruption_leaves_no_answer_to_the_next_question(part, place, when, monkeypatch, kept):
    """What a caller's handler raises comes through, and the child that would answer is gone."""
    real, calls = getattr(resource_limits, part), []

    def interrupted(*arguments: object) -> object:
        calls.append(1)
        if len(calls) == place and when == "before":
            raise TimeoutError
        result = real(*arguments)
        if len(calls) == place:
            raise TimeoutError
        return result

    first = resource_limits.run_with_limits(who)
    monkeypatch.setattr(resource_limits, part, interrupted)
    with contextlib.suppress(TimeoutError):
        resource_limits.run_with_limits(echo, b"first")
        resource_limits.run_with_limits(echo, b"second")
    assert len(calls) == place
    monkeypatch.undo()
    assert resource_limits.run_with_limits(echo, b"third") == b"third"
    assert resource_limits.run_with_limits(who) != first


def test_close_lets_the_next_one_know_what_is_new(monkeypatch, kept):
    assert resource_limits.run_with_limits(state) == b"loaded"
    monkeypatch.setitem(globals(), "STATE", ["changed"])
    assert resource_limits.run_with_limits(state) == b"loaded"
    resource_limits.close()
    assert resource_limits.run_with_limits(state) == b"changed"


def test_threads_have_children_of_their_own():
    found: set[bytes] = set()
    threads = [
        threading.Thread(target=lambda: found.add(resource_limits.run_with_limits(sleep, 0.3))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert not _children()


def test_nothing_of_the_parents_is_held(tmp_path):
    """A pipe whose other end waits for its end, a lock on a folder, what is printed; however many are open."""
    with contextlib.ExitStack() as stack:
        for number in range(1100):
            stack.enter_context((tmp_path / str(number)).open("w"))
        held = resource_limits.run_with_limits(files).decode().split()
    assert {name.split(":")[0] for name in held} == {"/dev/null", "socket"}


def test_a_fork_of_the_parent_has_a_child_of_its_own(kept):
    first = resource_limits.run_with_limits(who)
    reader, writer = os.pipe()
    fork = os.fork()
    if fork == 0:
        os.write(writer, resource_limits.run_with_limits(who))
        os._exit(0)
    os.waitpid(fork, 0)
    assert os.read(reader, 100) not in (first, b"")
    assert resource_limits.run_with_limits(who) == first
    os.close(reader)
    os.close(writer)


def test_a_system_without_processes_or_files_is_an_error(monkeypatch):
    monkeypatch.setattr(os, "fork", _no)
    with pytest.raises(RnnLowerError, match="who failed"):
        resource_limits.run_with_limits(who)
    monkeypatch.undo()
    monkeypatch.setattr(resource_limits.socket, "socketpair", _no)
    with pytest.raises(RnnLowerError, match="who failed"):
        resource_limits.run_with_limits(who)
    monkeypatch.undo()
    model, feeds = build(Case("GRU", 14, T=5))
    monkeypatch.setattr(os, "fork", _no)
    lowered = rnn_lower.lower(model)
    monkeypatch.undo()
    close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))


def _no(*_: object) -> None:
    raise BlockingIOError("Resource temporarily unavailable")


def test_closed_streams_are_not_where_it_talks():
    """What others print there would be taken for an answer."""
    script = (
        "import os\n[os.close(stream) for stream in range(3)]\nfrom rnn_lower.sandbox import resource_limits\nimport test_resource_limits\n"
        "resource_limits.one_child().__enter__()\nresource_limits.run_with_limits(test_resource_limits.who)\n"
        "try:\n    os.write(2, b'a warning')\nexcept OSError:\n    pass\n"
        "os._exit(0 if resource_limits.run_with_limits(test_resource_limits.echo, b'content') == b'content' else 1)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    assert subprocess.run([sys.executable, "-c", script], env=environment, timeout=60).returncode == 0


KILLED_AT_WORK = (
    "os.system(f'(sleep 0.5; kill -9 {os.getpid()}) &'); resource_limits.run_with_limits(test_resource_limits.spin)"
)
"""Nobody is there to hear the answer."""

SCRIPT = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
import test_resource_limits
from rnn_lower.sandbox import resource_limits
with resource_limits.one_child():
    print(resource_limits.run_with_limits(test_resource_limits.who).decode(), flush=True)
    {then}
"""


@pytest.mark.parametrize("then", ["pass", "os._exit(0)", "os.kill(os.getpid(), 9)", "sys.exit(1)", KILLED_AT_WORK])
def test_it_ends_with_its_parent(then):
    """And does not keep open what its parent printed to."""
    command = [sys.executable, "-c", SCRIPT.format(then=then), str(Path(__file__).parent)]
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, env=_environment())
    assert done.stderr == ""
    _until(lambda: _state(int(done.stdout)) in ("", "Z"))
    assert time.monotonic() - start < 60


@pytest.mark.parametrize("handler", ["signal.SIG_IGN", "lambda *_: None"])
def test_time_is_limited_whatever_the_parent_does_about_it(handler, tmp_path):
    """And no core is dumped."""
    script = (
        f"import signal, resource\nsignal.signal(signal.SIGXCPU, {handler})\nimport test_resource_limits\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2)\n"
        "from rnn_lower.sandbox import resource_limits\n"
        "try:\n    resource_limits.run_with_limits(test_resource_limits.spin, seconds=1)\nexcept resource_limits.RnnLowerError as error:\n    print(error)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environment, timeout=60, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == "spin failed\n"
    assert not list(tmp_path.iterdir())


def test_a_broken_pipe_is_not_the_parents(tmp_path):
    script = (
        "import os, signal\nsignal.signal(signal.SIGPIPE, signal.SIG_DFL)\nimport test_resource_limits\n"
        "from rnn_lower.sandbox import resource_limits\nwith resource_limits.one_child():\n"
        "    child = int(resource_limits.run_with_limits(test_resource_limits.who))\n    os.kill(child, 9)\n"
        "    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)\n"
        "    try:\n        resource_limits.run_with_limits(test_resource_limits.who)\n    except resource_limits.RnnLowerError as error:\n        print(error)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    done = subprocess.run([sys.executable, "-c", script], env=environment, timeout=60, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "who failed\n")


def test_an_interruption_ends_it(tmp_path):
    command = [
        sys.executable,
        "-c",
        SCRIPT.format(then="resource_limits.run_with_limits(test_resource_limits.sleep, 60)"),
    ]
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


def test_the_clock_ends_a_child_that_computes_nothing(kept, monkeypatch):
    """Processor time does not pass for what sleeps, or waits for a lock that was held when it was forked."""
    monkeypatch.setattr(resource_limits, "PATIENCE", 1)
    begin = time.monotonic()
    with pytest.raises(rnn_lower.RnnLowerError, match="sleep failed"):
        resource_limits.run_with_limits(time.sleep, 60, seconds=1)
    assert time.monotonic() - begin < 20
    assert resource_limits.run_with_limits(bytes, 3) == bytes(3)
