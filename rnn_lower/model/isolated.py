"""Run native code that may end the process on hostile input in a child that may end instead."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from rnn_lower.errors import RnnLowerError
from rnn_lower.model.leftovers import undisturbed


def isolated(function: Callable[[Any], Any], argument: Any) -> bytes:
    """What `function(argument)` gives, serialized, computed in a forked child; where there is no fork, here.

    Raises RnnLowerError when the function raises or the child dies.
    """
    if not hasattr(os, "fork"):
        return _bytes(function(argument))
    reader, writer = os.pipe()
    with undisturbed():  # Python's own handlers around a fork do not bear an interruption
        child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reader)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # an assertion says so on stderr before it aborts
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(_bytes(function(argument)))
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        content = pipe.read()
    if os.waitpid(child, 0)[1] != 0:
        raise RnnLowerError(f"{function.__name__} failed")
    return content


def _bytes(result: Any) -> bytes:
    return result if isinstance(result, bytes) else result.SerializeToString()
