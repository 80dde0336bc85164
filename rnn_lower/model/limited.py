"""Run native code on hostile input within limits, in a child that may end instead of the process.

The child is a fork, so that it has loaded what its parent has. It is kept open for what comes next, since a fork takes
longer than inference of most models, and leaves when nothing has come for a while.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import select
import signal
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rnn_lower.errors import RnnLowerError
from rnn_lower.model.isolated import forked
from rnn_lower.model.leftovers import disturbed

try:
    import fcntl
    import resource
except ImportError:  # Windows, which has no fork either
    fcntl = resource = None  # type: ignore[assignment]

SECONDS, BYTES = 60, 4 << 30
"""What a child may compute, and take beyond what it starts with: some hostile input is never done, and ever larger."""

IDLE = 1.0
"""Seconds after which a child leaves that nobody asks: it holds the memory that its parent had."""

LARGE = 1 << 20
"""Bytes of work after which a child is not kept: what it leaves in memory is more than a fork costs."""

ATTEMPTS = 10
"""Each child may leave just when it is asked, but not all of them."""

MOST_FILES = 1 << 20
"""More than a process has open."""

_LENGTH = struct.Struct("<q")
_LEFT = -1
"""In place of the length of an answer: the child has left, and has not looked at what it was asked."""


class _Gone(Exception):
    """A child that was idle has left meanwhile."""


def limited(function: Callable[..., Any], *arguments: Any, seconds: int = SECONDS, size: int = BYTES) -> bytes:
    """What `function(*arguments)` gives, serialized, computed in a child; where there is no fork, here.

    function: one of a module, which the child finds by its name.  seconds: of processor time.  size: bytes of memory.
    Raises RnnLowerError when the function raises, or the child dies or comes to one of its limits.
    """
    if not hasattr(os, "fork"):
        return _bytes(function(*arguments))
    try:
        return _answer(pickle.dumps((function, arguments, seconds, size)))
    except Exception:  # of a child that died, a message too large, a system with no more processes or files to give
        raise RnnLowerError(f"{function.__name__} failed") from None


def _answer(work: bytes) -> bytes:
    for _ in range(ATTEMPTS):
        child = _taken() or _Child()
        try:
            answer = child.answer(work)
        except _Gone:
            continue
        if _IDLE or len(work) > LARGE:  # one is enough
            child.close()
        else:
            _IDLE.append(child)
        return answer
    raise EOFError


class _Child:
    """A process that does one thing after the other. It ends by itself when its parent does."""

    def __init__(self) -> None:
        self._socket, theirs = _pair()
        with theirs:
            self._process = forked(lambda: _serve(theirs))

    def answer(self, work: bytes) -> bytes:
        """What comes of the work. Raises EOFError where the child has died of it, and _Gone where it had left before.

        After any error the child is no more.
        """
        try:
            try:
                _send(self._socket, work)
            except OSError:
                raise _Gone from None
            return _received(self._socket)
        except BaseException:
            self.kill()
            raise

    def close(self) -> None:
        """Let it leave, and wait until it has."""
        self.disown()
        with contextlib.suppress(ChildProcessError):  # whoever ignores SIGCHLD has nothing to wait for
            os.waitpid(self._process, 0)

    def disown(self) -> None:
        self._socket.close()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process, signal.SIGKILL)
        self.close()


_IDLE: list[_Child] = []
"""Children that wait for work: one, but for a moment when several threads have asked at once."""


def close() -> None:
    """Let children leave that wait for work; the next one has what is loaded and registered then."""
    while child := _taken():
        child.close()


def _taken() -> _Child | None:
    try:
        return _IDLE.pop()
    except IndexError:
        return None


def _disown() -> None:
    """In a child of this process, which is not the one that they are children of."""
    while child := _taken():
        child.disown()


atexit.register(close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown)


def _serve(asked: socket.socket) -> None:
    """All that a child does."""
    _let_go_of_all_but(asked.fileno())
    while select.select([asked], [], [], IDLE)[0]:
        function, arguments, seconds, size = pickle.loads(_received(asked))
        _limit(seconds, size)
        _send(asked, _bytes(function(*arguments)))
    asked.sendall(_LENGTH.pack(_LEFT))


def _let_go_of_all_but(number: int) -> None:
    """Of what is the parent's: signals, which it hears itself, and open files, for whose end others may wait."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    disturbed()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nowhere, stream)
    os.closerange(3, number)
    os.closerange(number + 1, MOST_FILES)


def _limit(seconds: int, size: int) -> None:
    """Counted from now on."""
    with contextlib.suppress(AttributeError, OSError):  # not every system knows them
        spent = int(sum(resource.getrusage(resource.RUSAGE_SELF)[:2])) + 1
        _at_most(resource.RLIMIT_CPU, spent + seconds)
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        _at_most(resource.RLIMIT_AS, taken + size)


def _at_most(kind: int, wanted: int) -> None:
    most = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (wanted if most == resource.RLIM_INFINITY else min(wanted, most), most))


def _pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of a line, none in the place of a stream that is closed: others print there."""
    first, second = socket.socketpair()
    with first, second:
        return _moved(first), _moved(second)


def _moved(end: socket.socket) -> socket.socket:
    return socket.socket(fileno=fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 3))


def _send(to: socket.socket, content: bytes) -> None:
    to.sendall(_LENGTH.pack(len(content)))
    to.sendall(content)


def _received(of: socket.socket) -> bytes:
    (length,) = _LENGTH.unpack(_exactly(of, _LENGTH.size))
    if length == _LEFT:
        raise _Gone
    return _exactly(of, length)


def _exactly(of: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        try:
            part = of.recv(min(count - len(parts), 1 << 20))
        except ConnectionError:
            part = b""
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


def _bytes(result: Any) -> bytes:
    return result if isinstance(result, bytes) else result.SerializeToString()
