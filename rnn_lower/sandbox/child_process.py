"""Run models in a child process, because they may end the process.

A child is a fork, so that it has what its parent has loaded and holds without a copy; where there is no fork, or where
it could hang, all is done here. What has limits, and comes many times in a call, is in `resource_limits`.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import pickle
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from rnn_lower.errors import RnnLowerError
from rnn_lower.signals import signals_blocked, unblock_signals

P = ParamSpec("P")
R = TypeVar("R")

_DONE = b"/done"
_DIE_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of Linux."""

STOP = signal.SIGUSR2 if hasattr(signal, "SIGUSR2") else signal.SIGTERM
"""The signal that stops a child; a child may ignore any other signal, for example under nohup."""

TIDYING = 200
"""The time, in hundredths of a second, for a stopping child to remove the files that it has written."""


class Ended(Exception):
    """A child process ended before its work was done. The text names the cause: "SIGSEGV", or "code 1"."""


class InChild(Exception):
    """The traceback of an error that was raised in a child; it is the cause of the error."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def run_in_subprocess(function: Callable[P, R], *arguments: P.args, **keywords: P.kwargs) -> R:
    """Run a function in a child process without limits, which ends with its parent; return or raise its result.

    What it changes stays in the child, where one may be forked. Raises Ended when the child does not live to tell.
    """
    if not may_fork():
        return function(*arguments, **keywords)

    def work() -> bytes:
        try:
            return pickle.dumps((function(*arguments, **keywords), None, ""))
        except Exception as error:
            return pickle.dumps((None, _picklable(error), traceback.format_exc()))

    result, error, trace = pickle.loads(_in_child(work))
    if error is not None:
        raise error from (None if isinstance(error, RnnLowerError) else InChild(trace))
    return result  # type: ignore[no-any-return]


def may_fork() -> bool:
    """Whether no lock can be held that nobody would release in a child: none of the threads works (those that draw
    progress, which are daemons, do not), and the system's own libraries bear a fork, as those of macOS do not."""
    threads = set(threading.enumerate()) - {threading.current_thread()}
    return hasattr(os, "fork") and sys.platform != "darwin" and all(thread.daemon for thread in threads)


def forked(work: Callable[[], object]) -> int:
    """The number of a child that does this and ends, at once where its parent does. All signals wait in it until it
    has seen to them."""
    # Python's own hooks around a fork hold locks, and do not release them where a handler raises.
    with signals_blocked(signal.valid_signals()), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads; the child touches none
        parent, child = os.getpid(), os.fork()
        if child:
            return child
        status = 1
        try:
            _end_with(parent)
            gc.freeze()  # what the parent has dropped, a session with its threads perhaps, is not for the child to end
            work()
            status = 0
        finally:
            os._exit(status)


def _end_with(parent: int) -> None:
    with contextlib.suppress(AttributeError, OSError):  # where it cannot, it ends when it has done its work
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended before that
        os._exit(1)


def _in_child(work: Callable[[], bytes]) -> bytes:
    reader, writer = os.pipe()
    child, code = 0, 0
    _flush()  # or what waits to be printed would come from the child as well
    try:
        with signals_blocked(signal.valid_signals()):  # or an interruption would lose it
            child = forked(lambda: _work(work, reader, writer))
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            content = pipe.read()
    except BaseException:
        _stop(child)
        raise
    with contextlib.suppress(ChildProcessError):  # whoever ignores SIGCHLD has nothing to wait for
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not content.endswith(_DONE):
        raise Ended(signal.Signals(-code).name if code < 0 else f"code {code}")
    return content.removesuffix(_DONE)


def _work(work: Callable[[], bytes], reader: int, writer: int) -> None:
    """The main function of a child."""
    os.close(reader)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # an assertion says so on stderr before it aborts
    signal.signal(STOP, signal.default_int_handler)
    unblock_signals(signal.valid_signals())
    with os.fdopen(writer, "wb") as pipe:
        pipe.write(work() + _DONE)
    _flush()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # closed, or nobody reads
            stream.flush()


def _stop(child: int) -> None:
    """End a child whose parent was told to stop: by a signal on which it cleans up, or, after a while, by SIGKILL."""
    if not child:
        return
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(child, STOP)
        for _ in range(TIDYING):
            if os.waitpid(child, os.WNOHANG)[0]:
                return
            time.sleep(0.01)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _picklable(error: Exception) -> Exception:
    """The error if it can be pickled, else a substitute."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever its class makes of it
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
