"""onnxruntime's target with other habits, to compare with."""

from __future__ import annotations

from pathlib import Path

import rnn_lower


def with_habits(path: Path, **habits: bool) -> str:
    """Write a target's file, which must have had the opposite, and answer its path."""
    text = (Path(rnn_lower.__file__).parent / "targets" / "onnxruntime.toml").read_text()
    for name, value in habits.items():
        line = f"{name} = {str(not value).lower()}"
        assert line in text
        text = text.replace(line, f"{name} = {str(value).lower()}")
    path.write_text(text)
    return str(path)
