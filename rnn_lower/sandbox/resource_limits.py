"""Process untrusted input (inference, folding, conversion) in a child process with resource limits.

A child is a fork, which has the parent's modules. Because a fork takes longer than inference of most models, one child
handles all tasks of a call of the library, and ends with the call.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from rnn_lower.errors import RnnLowerError
from rnn_lower.sandbox.child_process import forked
from rnn_lower.sandbox.memory import limit_memory, set_soft_limit
from rnn_lower.signals import signals_blocked

try:
    import fcntl
    import resource
except ImportError:  # on Windows, which cannot fork either
    fcntl = resource = None  # type: ignore[assignment]

SECONDS, BYTES = 60, 4 << 30
"""The limits of processor time and memory for a task: some malicious inputs take forever, or ever more memory."""

PATIENCE = 10
"""The limit of wall-clock time, as a multiple of the limit of processor time: a child may hang, for example if it was
forked while another thread had a lock. So this child may be forked beside threads, which `run_in_subprocess` avoids."""

LARGE = 1 << 16
"""The size of work, in bytes, after which a child is not reused: its memory costs more than a new fork."""

HEARD = ("SIGXCPU", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV", "SIGSYS", "SIGTRAP")
"""The signals that the work of a child may cause; the child blocks all others."""

_LENGTH = struct.Struct("<Q")
_DONE, _ERROR = b"+", b"-"


def run_with_limits(function: Callable[..., Any], *arguments: Any, seconds: int = SECONDS, size: int = BYTES) -> bytes:
    """The serialized result of `function(*arguments)`, which runs with limits in a child, or here without forks.

    function: of a module, so that the child finds it by name.  seconds: of processor time.  size: bytes of memory.
    Raises RnnLowerError with the message of the function's error, or if the child dies or reaches a limit.
    """
    forks = hasattr(os, "fork") and sys.platform != "darwin"  # the system libraries of macOS do not support a fork
    answer = _ask_child(function, arguments, seconds, size) if forks else _answer_of(function, arguments)
    if answer.startswith(_ERROR):
        raise RnnLowerError(answer.removeprefix(_ERROR).decode(errors="replace"))
    return answer.removeprefix(_DONE)


def _ask_child(function: Callable[..., Any], arguments: tuple[Any, ...], seconds: int, size: int) -> bytes:
    with one_child():
        try:
            work = pickle.dumps((function, arguments, seconds, size))
            answer = _child().answer(work, time.monotonic() + PATIENCE * seconds)
        except BaseException as error:
            close()  # the next task must not get this answer
            if isinstance(error, (EOFError, OSError)) and not isinstance(error, TimeoutError):  # raised by the caller
                raise RnnLowerError(
                    f"{function.__name__} failed"
                ) from None  # the child died, or there are too many processes
            raise
        if len(work) > LARGE:
            close()
        return answer


@contextlib.contextmanager
def one_child() -> Iterator[None]:
    """Reuse one child for all limited tasks of this thread until the outermost block ends."""
    _HERE.depth += 1
    try:
        yield
    finally:
        _HERE.depth -= 1
        if not _HERE.depth:
            close()


def close() -> None:
    """End the child of this thread, if there is one."""
    with signals_blocked(signal.valid_signals()):
        child, _HERE.child = _HERE.child, None
        if child is not None:
            child.end()


class _Here(threading.local):
    """The child of each thread and process; a fork must not use the child of its parent."""

    def __init__(self) -> None:
        self.child: _Child | None = None
        self.depth = 0

    def disown(self) -> None:
        if self.child is not None:
            self.child.line.close()
            self.child = None


class _Child:
    """A child process that runs one task after another."""

    def __init__(self) -> None:
        self.line, theirs = _line()
        try:
            with theirs:
                self._process = forked(lambda: _serve(theirs))
        except BaseException:
            self.line.close()
            raise

    def answer(self, work: bytes, deadline: float) -> bytes:
        """The answer of the child. Raises EOFError if the child dies or misses the deadline."""
        try:
            _send(self.line, work)
            return _received(self.line, deadline)
        except ConnectionError:
            raise EOFError from None

    def end(self) -> None:
        """Kill the child at once; it has nothing to clean up."""
        self.line.close()
        with contextlib.suppress(
            ChildProcessError
        ):  # with SIGCHLD ignored, or if another call has waited, there is none
            if not os.waitpid(self._process, os.WNOHANG)[0]:
                os.kill(self._process, signal.SIGKILL)
                os.waitpid(self._process, 0)


_HERE = _Here()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_HERE.disown)


def _child() -> _Child:
    with signals_blocked(signal.valid_signals()):  # or an interruption would lose the child
        child = _HERE.child = _HERE.child or _Child()
    return child


def _serve(line: socket.socket) -> None:
    """The main function of a child."""
    _let_go(line.fileno())
    while True:  # until the parent closes its end
        function, arguments, seconds, size = pickle.loads(_received(line))
        _limit(seconds, size)
        _send(line, _answer_of(function, arguments))


def _answer_of(function: Callable[..., Any], arguments: tuple[Any, ...]) -> bytes:
    try:
        result = function(*arguments)
        return _DONE + (result if isinstance(result, bytes) else result.SerializeToString())
    except MemoryError:  # the child cannot continue from this state
        raise
    except Exception as error:
        name = function.__name__.strip("_").replace("_", " ")
        return _ERROR + f"{name} failed: {error}".encode(errors="replace")


def _let_go(line: int) -> None:
    """Reset the parent's signal handlers and close its files, since readers may wait for their end."""
    signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals() - {getattr(signal, name) for name in HEARD})
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    os.closerange(3, line)
    os.closerange(line + 1, 1 << 20 if most == resource.RLIM_INFINITY else most)


def _limit(seconds: int, size: int) -> None:
    """Set the limits, counted from now on."""
    with contextlib.suppress(OSError, ValueError):  # not every system has them
        spent = int(sum(resource.getrusage(resource.RUSAGE_SELF)[:2])) + 1
        set_soft_limit(resource.RLIMIT_CPU, spent + seconds)
        limit_memory(size)


def _line() -> tuple[socket.socket, socket.socket]:
    """Both ends of a pipe, not at the numbers of closed standard streams."""
    first, second = socket.socketpair()
    with first, second:
        return _moved(first), _moved(second)


def _moved(end: socket.socket) -> socket.socket:
    return socket.socket(fileno=fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 3))


def _send(line: socket.socket, content: bytes) -> None:
    """Send bytes without raising SIGPIPE, which would end the process."""
    waiting = memoryview(_LENGTH.pack(len(content)) + content)
    while waiting:
        waiting = waiting[line.send(waiting, getattr(socket, "MSG_NOSIGNAL", 0)) :]


def _received(line: socket.socket, deadline: float | None = None) -> bytes:
    (length,) = _LENGTH.unpack(_exactly(line, _LENGTH.size, deadline))
    return _exactly(line, length, deadline)


def _exactly(line: socket.socket, count: int, deadline: float | None) -> bytes:
    content = bytearray()
    while len(content) < count:
        if deadline is not None and not _is_ready(line, deadline):
            raise EOFError
        part = line.recv(min(count - len(content), 1 << 20))
        if not part:
            raise EOFError
        content += part
    return bytes(content)


def _is_ready(line: socket.socket, deadline: float) -> bool:
    """Whether data arrives before the deadline."""
    poll = select.poll()
    poll.register(line, select.POLLIN)
    return bool(poll.poll(max(0, 1000 * (deadline - time.monotonic()))))
