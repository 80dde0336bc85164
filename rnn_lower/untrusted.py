"""Read untrusted input: JSON in metadata, files in a folder, arguments."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

UNSOUND = (AttributeError, LookupError, TypeError, ValueError)
"""Exceptions of code that reads a value which may have any structure."""


def loads(text: str | bytes) -> Any:
    """The value. Raises ValueError for anything that is not JSON, or is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def plain(path: str | os.PathLike[str]) -> Path:
    """The path of a finite file. Raises OSError for a device or a FIFO, which may never end."""
    regular = Path(path)
    if regular.exists() and not regular.is_file() and not regular.is_dir():  # opening a folder raises by itself
        raise OSError(0, "not a file")
    return regular
