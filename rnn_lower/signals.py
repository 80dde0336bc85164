"""Handle SIGTERM and SIGHUP like Ctrl-C, so that a run cleans up after itself."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Collection, Iterator

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
"""Ctrl-C, kill, and a closed terminal."""

UNDISTURBED = 5.0
"""Seconds after a signal during which others are ignored, so that cleanup can finish."""


def was_stopped(error: BaseException) -> bool:
    """Whether a signal caused an error; Python wraps a KeyboardInterrupt that arrives while a class is created."""
    return isinstance(error, KeyboardInterrupt) or isinstance(error.__cause__, KeyboardInterrupt)


@contextlib.contextmanager
def stopped_as_by_ctrl_c() -> Iterator[None]:
    """Raise KeyboardInterrupt for each of the signals; does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard = -UNDISTURBED

    def stop(*_: object) -> None:
        nonlocal heard
        if time.monotonic() - heard > UNDISTURBED:
            heard = time.monotonic()
            raise KeyboardInterrupt

    numbers = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    for number, handler in before.items():
        if handler != signal.SIG_IGN:  # as under nohup
            signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


@contextlib.contextmanager
def signals_blocked(numbers: Collection[int] | None = None) -> Iterator[None]:
    """Block signals, interruptions by default, so that an operation completes."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    interruptions = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, interruptions if numbers is None else numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unblock_signals(numbers: Collection[int]) -> None:
    """Let a child that was forked while signals were blocked receive them."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
