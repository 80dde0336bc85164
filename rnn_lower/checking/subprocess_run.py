"""Run models in a child process, because a runtime may end its process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from rnn_lower.checking import runtimes
from rnn_lower.checking.runners import ORT
from rnn_lower.errors import RnnLowerError
from rnn_lower.sandbox import child_process

P = ParamSpec("P")
R = TypeVar("R")


def run_guarded(model: Any, on: str | None, function: Callable[P, R], *arguments: P.args, **keywords: P.kwargs) -> R:
    """The result of a function that runs models, in a child process if one can be started.

    model: the model, which error messages name if it is a path.  on: as for `rnn_lower.check`.
    Raises what the function raises, and RnnLowerError if the child has died.
    """
    if on is not None and runtimes.WITH_THREADS & sys.modules.keys():
        return function(*arguments, **keywords)
    try:
        return child_process.run_in_subprocess(function, *arguments, **keywords)
    except child_process.Ended as end:
        name = f"{os.fspath(model)}: " if isinstance(model, (str, os.PathLike)) else ""
        text = f"the process that ran the original or the lowered model on {on or ORT} crashed ({end})"
        raise RnnLowerError(f"{name}{text}; --prove without --check, and rnn-lower prove, need no runtime") from None
