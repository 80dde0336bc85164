"""JSON that somebody else may have written: metadata of a model, files in a folder, arguments."""

from __future__ import annotations

import json
from typing import Any

UNSOUND = (AttributeError, LookupError, TypeError, ValueError)
"""What reading values of any shape as those that were expected may raise."""


def loads(text: str | bytes) -> Any:
    """The value. Raises ValueError for whatever is no JSON, or nested too deeply to be read."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
