"""Read untrusted input: JSON in metadata, files in a folder, arguments."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

UNSOUND = (AttributeError, LookupError, TypeError, ValueError)
"""Exceptions of code that reads a value of unknown structure."""


def loads(text: str | bytes) -> Any:
    """Parse JSON. Raises ValueError for invalid or too deeply nested JSON."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def plain(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file of finite size. Raises OSError for a device or a FIFO, which may never end."""
    regular = Path(path)
    if regular.exists() and not regular.is_file() and not regular.is_dir():  # opening a folder fails anyway
        raise OSError(0, "not a file")
    return regular
