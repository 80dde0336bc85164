"""Limits of memory, so that an allocation fails instead of the system killing this process or another one."""

from __future__ import annotations

import contextlib
from pathlib import Path

try:
    import resource
except ImportError:  # on Windows, which cannot fork either
    resource = None  # type: ignore[assignment]

LEAST = 4 << 30
"""The least limit of runs, because runtimes reserve more than they use."""

CONTROL_GROUP = Path("/sys/fs/cgroup")
"""Where Linux reports how much memory a container may use."""


def limit_to_available() -> None:
    """Let allocations beyond the memory that is free now fail, unless the user has set a limit."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # not every system has this limit
        if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
            limit_memory(max(LEAST, _available()))


def limit_memory(size: int) -> None:
    """Let allocations of more than `size` bytes fail from now on. Raises OSError where there is no such limit."""
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    set_soft_limit(resource.RLIMIT_AS, in_use + size)


def set_soft_limit(kind: int, wanted: int) -> None:
    """Set a limit of this process, at most its hard limit. kind: as for `resource.setrlimit`."""
    most = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (wanted if most == resource.RLIM_INFINITY else min(wanted, most), most))


def _available() -> int:
    """The bytes that processes can still get. Raises OSError if the system does not say it."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable")), 0)
    with contextlib.suppress(OSError, ValueError):  # without a limit, memory.max is not a number
        most, used = (int((CONTROL_GROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        free = min(free, most - used)
    return free
