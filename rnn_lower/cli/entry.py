"""The entry point: run a command; report the outcome by the exit code and, for errors, one line on stderr."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import gc
import io
import logging
import logging.handlers
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import BinaryIO, TextIO

from rnn_lower.cli.arguments import BAD, DIFFERENT, DONE, UNFORESEEN, make_parser, one_value_each, resolve_files
from rnn_lower.cli.commands import COMMANDS
from rnn_lower.cli.lazy_imports import defer
from rnn_lower.cli.printing import one_line
from rnn_lower.cli.stdin import stdin_as_file
from rnn_lower.errors import COMMAND_LINE, RnnLowerError, public
from rnn_lower.signals import stopped_as_by_ctrl_c, was_stopped

__all__ = ["BAD", "DIFFERENT", "DONE", "UNFORESEEN", "main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run `rnn-lower`.

    Returns 0: done, 1: a difference, a node that is not proved or (`lint`) not supported, 2: bad input or usage, or
    interrupted, 3: an error of rnn_lower itself; from 2 on with one line on stderr.
    """
    defer()
    _set_up_process()
    parser = make_parser(COMMANDS)
    _complete(parser)
    try:
        arguments = parser.parse_args(one_value_each(sys.argv[1:] if argv is None else argv))
    except SystemExit as end:  # argparse has printed why
        return int(end.code or 0)
    notes = _log_to_stderr(arguments)
    command: Callable[[argparse.Namespace], int] = arguments.command
    token = COMMAND_LINE.set(True)
    try:
        _check_folder()
        resolve_files(arguments)
        is_shown = sys.stdout and (not arguments.quiet or _prints_result(arguments))
        stdout = sys.stdout if is_shown else open(os.devnull, "w")  # noqa: SIM115
        output = _UntilClosed(stdout, before=notes.flush)
        with stopped_as_by_ctrl_c(), contextlib.redirect_stdout(output):
            with stdin_as_file(arguments):
                code = public(command)(arguments)
            sys.stdout.flush()
            notes.flush()
            return code
    except RnnLowerError as error:
        return _fail(BAD, f"error: {error}")
    except KeyboardInterrupt as error:
        exec("")  # CPython ends the process by SIGINT if one arrived while `exec` ran a text, until it runs another
        return _fail(BAD, ", ".join(filter(None, ["interrupted", str(error)])))
    except OSError as error:  # errors of files are handled where they occur, so one without a name is about stdout
        if error.filename is not None:
            return _fail(BAD, f"error: {error.filename}: {error.strerror}")
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # else Python fails again at exit
        return _fail(BAD, f"error: cannot print the result: {error.strerror or error}")
    except Exception as error:
        if was_stopped(error):
            exec("")
            return _fail(BAD, "interrupted")
        if os.environ.get("RNN_LOWER_TRACEBACK"):
            raise
        text = f"{type(error).__name__}: {error}"[:500]
        return _fail(
            UNFORESEEN,
            f"internal error: {text}; please report this bug, with the traceback that RNN_LOWER_TRACEBACK=1 prints",
        )
    finally:
        notes.buffer.clear()
        logging.basicConfig(handlers=[], force=True)  # removes ours, which write to the stderr of this call
        COMMAND_LINE.reset(token)


def _set_up_process() -> None:
    # A proof has many small products; on busy cores, threads that wait for each other take 20 times as long for them.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # From version 1.29 on, onnxruntime would send names and hashes of the models that it runs.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    atexit.register(gc.freeze)  # skips the final garbage collection, a quarter of the time for 1,000 nodes
    if sys.stderr is None:  # closed by the caller
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):  # stdout may be unable to encode names of nodes and files
        sys.stdout.reconfigure(errors="backslashreplace")


def _log_to_stderr(arguments: argparse.Namespace) -> logging.handlers.MemoryHandler:
    """The notes that wait for the first line of the result, because a command that fails prints one line only."""
    level = logging.ERROR if arguments.quiet else logging.DEBUG if arguments.verbose else logging.INFO
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine("rnn-lower: %(message)s"))
    notes = logging.handlers.MemoryHandler(10_000, logging.ERROR, handler)
    logging.basicConfig(handlers=[handler if arguments.verbose else notes], force=True, level=level)
    for noisy in ("onnx_ir", "onnxscript"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)
        warnings.filterwarnings("ignore", category=UserWarning, module=rf"{noisy}\b")
    return notes


def _check_folder() -> None:
    try:
        os.getcwd()
    except OSError:
        raise RnnLowerError("the current folder no longer exists; change to another folder") from None


def _complete(parser: argparse.ArgumentParser) -> None:
    """Answer a completion request of the shell with argcomplete, if it is installed, and exit."""
    if "_ARGCOMPLETE" in os.environ:
        with contextlib.suppress(ImportError):
            import argcomplete  # only a shell needs it

            from rnn_lower.targeting import TARGETS

            commands = next(action.choices for action in parser._actions if action.choices)
            for command in dict(commands).values():
                for action in command._actions:
                    if action.metavar == "RUNTIME":
                        action.completer = argcomplete.ChoicesCompleter(TARGETS)
            argcomplete.autocomplete(parser)


class _OneLine(logging.Formatter):
    """Format each message as one line without control characters, even if names in a model contain them."""

    def format(self, record: logging.LogRecord) -> str:
        return one_line(super().format(record))


class _UntilClosed(io.TextIOBase):
    """A text stream that drops what is written after its reader has closed the pipe, as with `| head`.

    before: called before each write.
    """

    def __init__(self, stream: TextIO, before: Callable[[], None]) -> None:
        self._stream, self._before = stream, before

    @property
    def buffer(self) -> BinaryIO | None:
        """The binary stream, for which a closed pipe is an error."""
        return getattr(self._stream, "buffer", None)

    def write(self, text: str) -> int:
        self._before()
        self._while_open(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._while_open(self._stream.flush)

    def _while_open(self, work: Callable[[], object]) -> None:
        try:
            work()
        except BrokenPipeError:
            null_stream = open(os.devnull, "w")  # noqa: SIM115
            with contextlib.suppress(OSError, ValueError):  # Python flushes the rest of the buffer at exit
                os.dup2(null_stream.fileno(), self._stream.fileno())
            self._stream = null_stream


def _prints_result(arguments: argparse.Namespace) -> bool:
    return getattr(arguments, "json", False) or getattr(arguments, "output", None) == "-"


def _fail(code: int, message: str) -> int:
    print(f"rnn-lower: {one_line(message)}", file=sys.stderr)
    return code
