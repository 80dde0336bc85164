"""The error classes: every message is one line that names the place, the problem and the way out."""

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
    """Base class of all errors that rnn_lower raises deliberately."""


class OutOfMemoryError(RnnLowerError, MemoryError):
    """The memory is not sufficient for a model."""

    def __init__(self, message: str = "there is not enough memory for this model") -> None:
        super().__init__(message)


class InvalidNodeError(RnnLowerError):
    """A recurrent node contradicts the ONNX specification of its version (attributes, shapes, inputs)."""


class UnsupportedError(RnnLowerError):
    """A valid request cannot be fulfilled; the message names options that work."""


class ConversionError(UnsupportedError):
    """No converter can convert a node to the requested opset."""


class UnsupportedOpError(UnsupportedError):
    """A runtime does not support an operator, and no equivalent is known. rule: the violated constraint."""

    def __init__(self, op_type: str, rule: str) -> None:
        super().__init__(f"does not support {op_type}: {rule}; rnn_lower has no equivalent for it")
        self.op_type, self.rule = op_type, rule

    def __reduce__(self) -> tuple[type[UnsupportedOpError], tuple[str, str]]:
        return type(self), (self.op_type, self.rule)


@dataclasses.dataclass(frozen=True)
class Requirement:
    """A requirement for lowering a node that is not met.

    what: a sentence.  forms: those that do not have the requirement.  opsets: the first and last that meet it.
    sizes: those of "seq_length" and "batch_size" that must be known.  nodes: whether it is the limit of emitted nodes.
    export: how to export the model differently, if no option helps.  resizable: whether other sizes may meet it.
    """

    what: str
    forms: tuple[str, ...] = ()
    opsets: tuple[int, int] | None = None
    sizes: tuple[str, ...] = ()
    nodes: bool = False
    export: str = ""
    resizable: bool = False


class UnmetRequirementError(UnsupportedError):
    """Requirements for lowering a node are not met; `rnn_lower.driver.suggestions` finds options that meet them."""

    def __init__(self, message: str, requirements: Sequence[Requirement] = ()) -> None:
        super().__init__(message)
        self.requirements = tuple(requirements)


COMMAND_LINE = contextvars.ContextVar("rnn_lower.command_line", default=False)
"""Whether the caller is the command line, which writes options as flags."""

_NAMES = {"dim": "dims", "input-shape": "dims", "time": "axis", "set": "set_inputs", "exclude": "select"}
_VALUED = "form|opset|max-nodes|step|target|inputs|time|states|state-names"
_DIM = r"--dim (\S+?)=(\d+|SIZE|N)\b"


def for_python(text: str) -> str:
    """Return the text with options as keyword arguments instead of flags: form="scan", dims={"T": 5}, fold."""

    def dims(found: re.Match[str]) -> str:
        pairs = (f'"{name.strip(chr(39))}": {size}' for name, size in re.findall(_DIM, found[0]))
        return f"dims={{{', '.join(pairs)}}}"

    def valued(found: re.Match[str]) -> str:
        is_number = found[2].isdecimal() or found[1] in ("max-nodes", "opset", "step")
        value = found[2] if is_number else f'"{found[2]}"'
        return f"{_name(found[1])}={value}"

    text = re.sub(rf"{_DIM}(?: {_DIM})*", dims, text)
    text = re.sub(r"--state ([^\s=]+)=([\w./:]*\w)", r'states={"\1": "\2"}', text)
    text = re.sub(r"--set ([^\s=]+)=(\w+)", r'set_inputs={"\1": \2}', text)
    text = re.sub(rf"--({_VALUED}) ([\w.@/\[\]']+)", valued, text)
    return re.sub(r"(?<![\w-])--([a-z]+(?:-[a-z]+)*)", lambda found: _name(found[1]), text)


def _name(flag: str) -> str:
    return _NAMES.get(flag, flag.replace("-", "_"))


def public(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a public function: a lack of memory and damaged names become an RnnLowerError; messages name arguments."""

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
        except Exception as error:
            if isinstance(first_cause(error), UnicodeDecodeError):
                raise RnnLowerError("a name in the model is not valid UTF-8; export the model again") from None
            raise

    return guarded


def one_line(error: BaseException) -> str:
    """Return the text of another library's error in one line, for use in a message, without places in C++ code."""
    text = re.sub(r"/onnxruntime_src/\S+:\d+ [\w:~<>]+(\([^()]*\))? ", "", " ".join(str(error).split()))
    return text[:300] or type(error).__name__


def first_cause(error: BaseException) -> BaseException:
    """Return the original error behind an error that onnx_ir has wrapped, possibly several times."""
    return error if error.__cause__ is None else first_cause(error.__cause__)
