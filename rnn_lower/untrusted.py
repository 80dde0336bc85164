"""What somebody else may have written: JSON in metadata of a model, files in a folder, arguments."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

UNSOUND = (AttributeError, LookupError, TypeError, ValueError)
"""What reading values of any shape as those that were expected may raise."""


def loads(text: str | bytes) -> Any:
    """The value. Raises ValueError for whatever is no JSON, or nested too deeply to be read."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def plain(path: str | os.PathLike[str]) -> Path:
    """The path of what can be read to its end. Raises OSError for what may have none: a device, or a FIFO."""
    found = Path(path)
    if found.exists() and not found.is_file() and not found.is_dir():  # which says by itself that it is none
        raise OSError(0, "not a file")
    return found
