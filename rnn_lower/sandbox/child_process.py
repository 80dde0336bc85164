"""Run models in a child process, because they may end the process.

A child is a fork, which shares the parent's modules and data without a copy. If the system cannot fork, or a fork could
hang, the work runs in this process. `resource_limits` handles frequent small tasks with limits.
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
from rnn_lower.sandbox import memory
from rnn_lower.signals import signals_blocked, unblock_signals

P = ParamSpec("P")
R = TypeVar("R")

_DONE = b"/done"
_DIE_WITH_PARENT = 1
"""The number of PR_SET_PDEATHSIG in Linux."""

STOP = signal.SIGUSR2 if hasattr(signal, "SIGUSR2") else signal.SIGTERM
"""The signal that stops a child; a child may ignore any other signal, for example under nohup."""

TIDYING = 200
"""The time, in hundredths of a second, for a stopping child to remove the files that it has written."""


class Ended(Exception):
    """A child process ended before its work was done. The text names the cause: "SIGSEGV", or "code 1"."""


class InChild(Exception):
    """The traceback of an error in a child, used as the cause of the error."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def run_in_subprocess(function: Callable[P, R], *arguments: P.args, **keywords: P.kwargs) -> R:
    """The result of a function that runs in a child process with all free memory; its error is raised here.

    The child ends with its parent, and its changes to objects are lost. Raises Ended if the child dies.
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
    """Whether a fork is safe: no other thread may hold a lock, which nobody would release in the child.

    Daemon threads that draw progress hold none. The system libraries of macOS do not support a fork."""
    threads = set(threading.enumerate()) - {threading.current_thread()}
    return hasattr(os, "fork") and sys.platform != "darwin" and all(thread.daemon for thread in threads)


def forked(work: Callable[[], object]) -> int:
    """The process id of a child that runs a function and exits, or dies with its parent.

    All signals are blocked in the child until it has set its own handlers."""
    # Python's own hooks around a fork hold locks, and keep them if a signal handler raises.
    with signals_blocked(signal.valid_signals()), warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # about forks in a process with threads; the child uses none
        parent, child = os.getpid(), os.fork()
        if child:
            return child
        status = 1
        try:
            _end_with(parent)
            gc.freeze()  # or the child could destroy objects of the parent, such as a session with threads
            work()
            status = 0
        finally:
            os._exit(status)


def _end_with(parent: int) -> None:
    with contextlib.suppress(AttributeError, OSError):  # without it, the child ends after its work
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before
        os._exit(1)


def _in_child(work: Callable[[], bytes]) -> bytes:
    reader, writer = os.pipe()
    child, code = 0, 0
    _flush()  # or the child would print buffered text again
    try:
        with signals_blocked(signal.valid_signals()):  # or an interruption would lose the child
            child = forked(lambda: _work(work, reader, writer))
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            content = pipe.read()
    except BaseException:
        _stop(child)
        raise
    with contextlib.suppress(ChildProcessError):  # with SIGCHLD ignored, there is nothing to wait for
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not content.endswith(_DONE):
        raise Ended(signal.Signals(-code).name if code < 0 else f"code {code}")
    return content.removesuffix(_DONE)


def _work(work: Callable[[], bytes], reader: int, writer: int) -> None:
    """The main function of a child."""
    os.close(reader)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # a failed assertion prints to stderr before it aborts
    signal.signal(STOP, signal.default_int_handler)
    memory.limit_to_available()
    unblock_signals(signal.valid_signals())
    _disable_telemetry()
    with os.fdopen(writer, "wb") as pipe:
        pipe.write(work() + _DONE)
    _flush()


def _disable_telemetry() -> None:
    """Turn off onnxruntime's telemetry: its thread, which a child lacks, may have held a lock during the fork."""
    onnxruntime = sys.modules.get("onnxruntime.capi._pybind_state")  # absent while the import is only deferred
    if onnxruntime is not None:
        onnxruntime.disable_telemetry_events()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # it is closed, or nobody reads it
            stream.flush()


def _stop(child: int) -> None:
    """End a child whose parent was told to stop: by a signal that lets it clean up, and later by SIGKILL."""
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
    """The error if it can be pickled, or else a substitute."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # its class may raise anything
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
