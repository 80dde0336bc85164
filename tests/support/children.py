"""Commands in children of the tests: forks, in which all is imported, and which may hang, swell, raise or die."""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import io
import json
import math
import os
import re
import resource
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rnn_lower import cli
from rnn_lower.sandbox import resource_limits

PATIENCE = 30
"""How many times as long it may take beside whatever else the machine does."""

IN_TURN = 25
"""How many commands one child runs, one after the other."""

HEADROOM = 4 << 30
"""Address space beyond that of the imports; what asks for more fails rather than harms the machine."""


@dataclasses.dataclass(frozen=True)
class End:
    """How a child ended. code: negative for a signal, None for one that took too long. kilobytes: beyond its start."""

    code: int | None
    errors: str
    notes: str
    kilobytes: int
    seconds: float


def in_child(work: Callable[[Any], int], folder: Path, seconds: float) -> End:
    """Do some work in a fork of this process, where everything is imported; it may write notes to its argument."""
    errors, notes = folder / "errors", folder / "notes"
    start = time.monotonic()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        code = 99
        try:
            os.setpgid(0, 0)
            _prepare(errors, seconds)
            with open(notes, "w") as file:
                code = _guarded(work, file)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)
    handle = os.pidfd_open(child)
    try:
        in_time = bool(select.select([handle], [], [], PATIENCE * seconds)[0])
        if not in_time:
            _kill(child)
        _, status, usage = os.wait4(child, 0)
        with contextlib.suppress(ProcessLookupError):  # a child of its own that outlived it
            os.killpg(child, signal.SIGKILL)
    finally:
        os.close(handle)
    in_time = in_time and usage.ru_utime + usage.ru_stime <= seconds
    code = os.waitstatus_to_exitcode(status) if in_time else None
    grown = usage.ru_maxrss - _resident()
    texts = [path.read_text(errors="replace") if path.exists() else "" for path in (errors, notes)]
    for path in (errors, notes):
        path.unlink(missing_ok=True)
    return End(code, *texts, kilobytes=grown, seconds=time.monotonic() - start)


def _kill(child: int) -> None:
    """And its own children."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            kill(child, signal.SIGKILL)


class Workshop:
    """A child that runs one command after the other, since a fork of this process takes longer than most of them.

    folder: an empty one.  seconds: for each command.  kilobytes: beyond what it begins with.
    """

    def __init__(self, folder: Path, seconds: float, kilobytes: int) -> None:
        self._errors, self._seconds, self._kilobytes = folder / "workshop", seconds, kilobytes
        self._child, self._done = 0, 0

    def end(self, command: Sequence[str]) -> End | None:
        """How a command ended; None where it was anything but an end that a command may have. A child of its own shall
        judge then, which nothing went before."""
        if not self._child or self._done == IN_TURN:
            self.close()
            self._open()
        self._done += 1
        with contextlib.suppress(BrokenPipeError):  # it died of what went before
            os.write(self._orders, f"{json.dumps(command)}\n".encode())
        in_time = bool(select.select([self._answers], [], [], 3 * self._seconds)[0])
        answer = os.read(self._answers, 1 << 12) if in_time else b""
        code, kilobytes, seconds = json.loads(answer or "[null, 0, 0]")
        if code not in (cli.DONE, cli.BAD) or kilobytes > self._kilobytes or seconds > self._seconds:
            self.close()
            return None
        return End(code, self._errors.read_text(errors="replace"), "", kilobytes, seconds)

    def close(self) -> None:
        if not self._child:
            return
        _kill(self._child)
        os.waitpid(self._child, 0)
        os.close(self._orders)
        os.close(self._answers)
        self._child = 0

    def _open(self) -> None:
        (orders, self._orders), (self._answers, answers) = os.pipe(), os.pipe()
        self._child, self._done = os.fork(), 0
        if self._child == 0:
            try:
                os.setpgid(0, 0)
                os.close(self._orders)
                os.close(self._answers)
                _prepare(self._errors, IN_TURN * self._seconds)
                with os.fdopen(orders) as lines, resource_limits.one_child():
                    for line in lines:
                        os.write(answers, json.dumps(_in_turn(json.loads(line))).encode())
            finally:
                os._exit(0)
        os.close(orders)
        os.close(answers)


def _in_turn(command: list[str]) -> tuple[int, int, float]:
    """Exit code of one of several commands in one process, kilobytes beyond what it began with, and seconds."""
    os.ftruncate(2, 0)
    os.lseek(2, 0, os.SEEK_SET)
    for process in _family():
        (process / "clear_refs").write_text("5")  # the peak of memory begins anew
    before, start = _resident(), _time_of_family()
    code = _guarded(lambda _: cli.main(command), io.StringIO())
    sys.stdout.flush()
    sys.stderr.flush()
    peaks = [int(re.findall(r"VmHWM:\s+(\d+)", (one / "status").read_text())[0]) for one in _family()]
    peak = max(*peaks, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
    return code, peak - before, _time_of_family() - start


def _family() -> list[Path]:
    """This process, and the child of its own that it keeps for all commands."""
    own = Path("/proc/self")
    children = (own / "task" / str(os.getpid()) / "children").read_text().split()
    return [own, *(Path("/proc", child) for child in children)]


def _time_of_family() -> float:
    """Seconds of processor time, of children that have ended as well."""
    ticks = [
        int(one) for process in _family() for one in (process / "stat").read_text().rsplit(") ")[-1].split()[11:15]
    ]
    return sum(ticks) / os.sysconf("SC_CLK_TCK")


def _prepare(errors: Path, seconds: float) -> None:
    """Make the fork what a new process would be."""
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    faulthandler.disable()  # which pytest has turned on
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds),) * 2)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + HEADROOM,) * 2)
    warnings.resetwarnings()
    for ignored in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
        warnings.simplefilter("ignore", ignored)
    os.environ["RNN_LOWER_TRACEBACK"] = "1"


def _guarded(work: Callable[[Any], int], notes: Any) -> int:
    try:
        return work(notes)
    except BaseException:
        notes.write(traceback.format_exc())
        return cli.UNFORESEEN


def _resident() -> int:
    """Kilobytes of this process, which a fork of it starts with."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() // 1024
