"""Run native code that may end the process on hostile input in a child that may end instead."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rnn_lower.errors import RnnLowerError
from rnn_lower.model.leftovers import undisturbed

try:
    import resource
except ImportError:  # Windows, which has no fork either
    resource = None  # type: ignore[assignment]

_DONE = b"/done"

SECONDS, BYTES = 60, 4 << 30
"""What a child may compute, and take beyond what it starts with: some hostile input is never done, and ever larger."""


def isolated(function: Callable[..., Any], *arguments: Any, seconds: int = SECONDS, size: int = BYTES) -> bytes:
    """What `function(*arguments)` gives, serialized, computed in a forked child; where there is no fork, here.

    seconds: of processor time.  size: bytes of memory.
    Raises RnnLowerError when the function raises, or the child dies or comes to one of its limits.
    """
    if not hasattr(os, "fork"):
        return _bytes(function(*arguments))
    reader, writer = os.pipe()
    with undisturbed(), warnings.catch_warnings():  # Python's own handlers around a fork bear no interruption
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads; the child touches none
        child = os.fork()
    if child == 0:
        status = 1
        try:
            _limit(seconds, size)
            os.close(reader)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # an assertion says so on stderr before it aborts
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(_bytes(function(*arguments)) + _DONE)
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        content = pipe.read()
    with contextlib.suppress(ChildProcessError):  # whoever ignores SIGCHLD has nothing to wait for
        os.waitpid(child, 0)
    if not content.endswith(_DONE):
        raise RnnLowerError(f"{function.__name__} failed")
    return content.removesuffix(_DONE)


def _limit(seconds: int, size: int) -> None:
    with contextlib.suppress(AttributeError, OSError, ValueError):  # not every system knows them
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + size,) * 2)


def _bytes(result: Any) -> bytes:
    return result if isinstance(result, bytes) else result.SerializeToString()
