"""Run one command on several models, one after another."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rnn_lower import api
from rnn_lower.cli import printing
from rnn_lower.cli.arguments import BAD, Command
from rnn_lower.cli.stdin import stdin_as_file
from rnn_lower.errors import RnnLowerError
from rnn_lower.ir.walk import NODE_MARK, nodes
from rnn_lower.modelio import files


@dataclasses.dataclass(frozen=True)
class End:
    """The result for one model: exit code, printed text and error."""

    model: str
    code: int
    printed: str
    error: str


def on_several(work: Command, arguments: argparse.Namespace) -> int:
    """Run `work` for each of arguments.models, with outputs in arguments.out_dir; return the worst exit code.

    An error in one model does not stop the others. Raises RnnLowerError before the first one if two outputs would be
    the same file, if an output would overwrite a model that was not lowered, or if the folder cannot be created.
    """
    each = [
        argparse.Namespace(**{**vars(arguments), "model": model, "output": output})
        for model, output in zip(arguments.models, _outputs(arguments), strict=True)
    ]
    ends = []
    with printing.progress(arguments.quiet, "models") as advance:
        for path in each:
            end = _run_one(work, path)
            ends.append(end)
            if advance:
                advance(end.model, len(ends), len(each))
            if not arguments.json:
                sys.stdout.write(end.printed)
            if end.error:
                print(f"rnn-lower: error: {printing.one_line(end.error)}", file=sys.stderr)
    if arguments.json:
        printing.print_json({"files": [_data(end) for end in ends]})
    return max(end.code for end in ends)


def _data(end: End) -> dict[str, object]:
    printed = json.loads(end.printed) if end.printed else {"error": end.error}
    return {"input": end.model, "exit": end.code, **printed}


def _outputs(arguments: argparse.Namespace) -> list[str]:
    folder = Path(arguments.out_dir)
    used: dict[str, str] = {}
    for model in arguments.models:
        output = str(folder / ("stdin.onnx" if model == "-" else Path(model).name))
        if output in used:
            both = f"{used[output]} and {model} would both be written to {output}"
            raise RnnLowerError(f"{both}; lower one of them separately with -o OUT.onnx")
        used[output] = model
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RnnLowerError(f"--out-dir {folder}: {error.strerror or error}; choose another folder") from None
    _check_files(arguments.models, list(used))
    return list(used)


def _check_files(models: Sequence[str], outputs: Sequence[str]) -> None:
    """Raise if two outputs are one file, by links or by spelling, or would overwrite a model that was not lowered."""
    inputs = {_identity(model): model for model in reversed(models)}
    written: dict[object, str] = {}
    for model, output in zip(models, outputs, strict=True):
        file = _identity(output)
        if file in written:
            both = f"{written[file]} and {model} would both be written to the same file, {output}"
            raise RnnLowerError(f"{both}; lower one of them separately with -o OUT.onnx")
        if file in inputs or (holds_recurrent_nodes(output) and not _is_result(output)):
            lost = f"the input {inputs[file]}" if file in inputs else "a model with recurrent nodes"
            where = "choose another folder with --out-dir, or lower this model separately with -o OUT.onnx"
            raise RnnLowerError(f"writing {model} to {output} would overwrite {lost}; {where}")
        written[file] = model


def holds_recurrent_nodes(path: str) -> bool:
    """Whether a file is a model with recurrent nodes, so that it may be someone's input."""
    with contextlib.suppress(RnnLowerError):  # not a model
        return os.path.isfile(path) and bool(api.inspect(path))
    return False


def _is_result(path: str) -> bool:
    """Whether lowering wrote a model, in which some recurrent nodes may have stayed."""
    return any(NODE_MARK in node.metadata_props for node, _ in nodes(files.load(path).model))


def _identity(path: str) -> object:
    """Return a key that is equal for paths of one file: device and inode, or folder and name if it does not exist."""
    real = os.path.realpath(path)
    try:
        status = os.stat(real)
    except OSError:
        with contextlib.suppress(OSError):
            status = os.stat(os.path.dirname(real))
            return status.st_dev, status.st_ino, os.path.basename(real)
        return real
    return (status.st_dev, status.st_ino) if os.path.isfile(real) else real


def _run_one(work: Command, arguments: argparse.Namespace) -> End:
    printed, model = io.StringIO(), arguments.model
    try:
        with stdin_as_file(arguments), contextlib.redirect_stdout(printed):
            return End(model, work(arguments), printed.getvalue(), "")
    except RnnLowerError as error:
        return End(model, BAD, "", str(error))
