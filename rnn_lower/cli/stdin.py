"""Read a model from stdin."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator

from rnn_lower.errors import RnnLowerError


@contextlib.contextmanager
def stdin_as_file(arguments: argparse.Namespace) -> Iterator[None]:
    """Copy a model from stdin to a temporary file if its name is "-", because a model is read more than once."""
    values = vars(arguments)
    names = [name for name in ("model", "original", "lowered") if values.get(name) == "-"]
    if not names:
        yield
        return
    if len(names) > 1:
        raise RnnLowerError("-: only one model can be read from stdin; pass a file name for the other model")
    with tempfile.TemporaryDirectory(prefix="rnn_lower_") as folder:
        path = os.path.join(folder, "stdin.onnx")
        with open(path, "wb") as file, contextlib.suppress(OSError):
            if sys.stdin is not None and not sys.stdin.isatty():
                shutil.copyfileobj(sys.stdin.buffer, file)
        if not os.path.getsize(path):
            raise RnnLowerError("-: nothing is piped into stdin; pass a file name")
        values.update(dict.fromkeys(names, path))
        try:
            yield
        except RnnLowerError as error:
            text = str(error).replace(path, "-")
            if f"{folder}{os.sep}" in text:  # the temporary folder contains only the model
                text = "-: the model has external weights, which cannot be read from a pipe; pass a file name"
            raise type(error)(text) from None
