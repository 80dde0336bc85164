"""The error family: every message is one line that says where, what was found and what would work."""

from __future__ import annotations


class RnnLowerError(ValueError):
    """Base of all errors that rnn_lower raises on purpose."""


class InvalidNodeError(RnnLowerError):
    """A recurrent node contradicts the ONNX text of its version (attributes, shapes, inputs)."""


class UnsupportedError(RnnLowerError):
    """What was asked for is valid but cannot be done; the message names what would work."""


def one_line(error: BaseException) -> str:
    """What somebody else's error says, for a message of ours."""
    return " ".join(str(error).split())[:300] or type(error).__name__
