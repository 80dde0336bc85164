"""The error family: every message is one line that says where, what was found and what would work."""

from __future__ import annotations

import contextvars
import dataclasses
import functools
import re
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class RnnLowerError(ValueError):
    """Base of all errors that rnn_lower raises on purpose."""


class OutOfMemoryError(RnnLowerError, MemoryError):
    """There is not enough memory for a model."""

    def __init__(self, message: str = "there is not enough memory for this model") -> None:
        super().__init__(message)


class InvalidNodeError(RnnLowerError):
    """A recurrent node contradicts the ONNX text of its version (attributes, shapes, inputs)."""


class UnsupportedError(RnnLowerError):
    """What was asked for is valid but cannot be done; the message names what would work."""


class ConversionError(UnsupportedError):
    """A node that no converter brings to the opset asked for."""


class UnsupportedOpError(UnsupportedError):
    """A runtime does not support an operator, and no equivalent is known. rule: what rules it out."""

    def __init__(self, op_type: str, rule: str) -> None:
        super().__init__(f"does not support {op_type}: {rule}, and no equivalent is known")
        self.op_type, self.rule = op_type, rule

    def __reduce__(self) -> tuple[type[UnsupportedOpError], tuple[str, str]]:
        return type(self), (self.op_type, self.rule)


@dataclasses.dataclass(frozen=True)
class Requirement:
    """One thing that is missing for a node to be lowered as asked.

    what: a sentence.  forms: those that would do without it.  opsets: first and last that would serve.
    sizes: "seq_length", "batch_size": those that must be known.  nodes: whether it is the limit of emitted nodes.
    export: what the exporter would have to do, where no option serves.
    """

    what: str
    forms: tuple[str, ...] = ()
    opsets: tuple[int, int] | None = None
    sizes: tuple[str, ...] = ()
    nodes: bool = False
    export: str = ""


class UnmetRequirementError(UnsupportedError):
    """What is missing, all of it; `rnn_lower.driver.suggestions` finds out what would mend it."""

    def __init__(self, message: str, requirements: Sequence[Requirement] = ()) -> None:
        super().__init__(message)
        self.requirements = tuple(requirements)


COMMAND_LINE = contextvars.ContextVar("rnn_lower.command_line", default=False)
"""Whether the caller is the command line, which writes options as flags."""

_NAMES = {"dim": "dims", "input-shape": "dims", "time": "axis", "set": "set_inputs", "exclude": "select"}
_VALUED = "form|opset|max-nodes|step|target|inputs|time|states|state-names"
_DIM = r"--dim (\S+?)=(\d+|SIZE|N)\b"


def for_python(text: str) -> str:
    """The text with options as keyword arguments instead of flags: form="scan", dims={"T": 5}, fold."""

    def dims(found: re.Match[str]) -> str:
        pairs = (f'"{name.strip(chr(39))}": {size}' for name, size in re.findall(_DIM, found[0]))
        return f"dims={{{', '.join(pairs)}}}"

    def valued(found: re.Match[str]) -> str:
        is_number = found[2].isdecimal() or found[1] in ("max-nodes", "opset", "step")
        value = found[2] if is_number else f'"{found[2]}"'
        return f"{_name(found[1])}={value}"

    text = re.sub(rf"{_DIM}(?: {_DIM})*", dims, text)
    text = re.sub(r"--state (\w+)=(\w+)", r'states={"\1": "\2"}', text)
    text = re.sub(rf"--({_VALUED}) ([\w.@/\[\]']+)", valued, text)
    return re.sub(r"(?<![\w-])--([a-z]+(?:-[a-z]+)*)", lambda found: _name(found[1]), text)


def _name(flag: str) -> str:
    return _NAMES.get(flag, flag.replace("-", "_"))


def public(function: Callable[P, R]) -> Callable[P, R]:
    """For what callers call: a lack of memory is an RnnLowerError, too, and messages are for Python."""

    @functools.wraps(function)
    def guarded(*arguments: P.args, **keywords: P.kwargs) -> R:
        try:
            return function(*arguments, **keywords)
        except OutOfMemoryError:
            raise
        except MemoryError as error:
            raise OutOfMemoryError from error
        except RnnLowerError as error:
            if not COMMAND_LINE.get():
                error.args = tuple(for_python(part) if isinstance(part, str) else part for part in error.args)
            raise

    return guarded


def one_line(error: BaseException) -> str:
    """What somebody else's error says, for a message of ours."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def first_cause(error: BaseException) -> BaseException:
    """What an error was raised from, and that from, where onnx_ir has wrapped it."""
    return error if error.__cause__ is None else first_cause(error.__cause__)
