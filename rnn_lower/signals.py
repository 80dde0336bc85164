"""How a run is stopped: whatever asks it to end does so as Ctrl-C does, so that it tidies up."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Collection, Iterator

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
"""Ctrl-C, kill, and a terminal that closes."""

UNDISTURBED = 5.0
"""Seconds for tidying up after the first of them, in which others are not heard: several come at once."""


def was_stopped(error: BaseException) -> bool:
    """Whether an error is such a stop; Python wraps one that comes while a class is made."""
    return isinstance(error, KeyboardInterrupt) or isinstance(error.__cause__, KeyboardInterrupt)


@contextlib.contextmanager
def stopped_as_by_ctrl_c() -> Iterator[None]:
    """Raise KeyboardInterrupt for each of the signals. For the main thread only."""
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
        if handler != signal.SIG_IGN:  # nohup has it ignored
            signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


@contextlib.contextmanager
def signals_blocked(numbers: Collection[int] | None = None) -> Iterator[None]:
    """Hold signals back, interruptions unless others are listed, so that what is half done is done wholly."""
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
