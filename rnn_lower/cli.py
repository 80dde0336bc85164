"""The command line: arguments in, tables out. The work is done elsewhere."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import difflib
import fnmatch
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rnn_lower import tables
from rnn_lower.errors import RnnLowerError
from rnn_lower.options import FORMS, Options

if TYPE_CHECKING:
    from rnn_lower.proof.report import CheckReport, Proof
    from rnn_lower.recurrent.node import RecurrentNode
    from rnn_lower.streaming.making import Made

DONE, DIFFERENT, BAD, UNFORESEEN = 0, 1, 2, 3


def main(argv: Sequence[str] | None = None) -> int:
    """Run `rnn-lower`.

    Answers 0: done, 1: the check found a difference or a node is not proved, 2: bad input or usage, or interrupted,
    3: an error of rnn_lower itself; from 2 on with one line on stderr.
    """
    try:
        arguments = _parser().parse_args(argv)
    except SystemExit as end:  # argparse has printed why
        return int(end.code or 0)
    logging.basicConfig(format="rnn-lower: %(message)s", stream=sys.stderr, force=True, level=logging.INFO)
    for noisy in ("onnx_ir", "onnxscript"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)
    command: Callable[[argparse.Namespace], int] = arguments.command
    try:
        with _stopped_by_sigterm(), contextlib.redirect_stdout(sys.stdout or open(os.devnull, "w")):
            code = command(arguments)
            sys.stdout.flush()
            return code
    except RnnLowerError as error:
        return _fail(BAD, f"error: {error}")
    except KeyboardInterrupt as error:
        return _fail(BAD, ", ".join(filter(None, ["interrupted", str(error)])))
    except MemoryError:
        return _fail(BAD, "error: there is not enough memory for this model")
    except OSError as error:  # files are looked after where they are read and written, so this is stdout
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # or Python complains again when it flushes at its end
        return _fail(BAD, f"error: the result cannot be printed: {error.strerror or error}")
    except Exception as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # Python wraps one that comes while a class is made
            return _fail(BAD, "interrupted")
        if os.environ.get("RNN_LOWER_TRACEBACK"):
            raise
        told = f"{type(error).__name__}: {error}"[:500]
        return _fail(UNFORESEEN, f"internal error: {told}; set RNN_LOWER_TRACEBACK=1 to see where, and report it")


def _fail(code: int, message: str) -> int:
    print(f"rnn-lower: {' '.join(message.split())}", file=sys.stderr)
    return code


@contextlib.contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """SIGTERM ends a run as Ctrl-C does, so that it tidies up. Only the main thread may ask for that."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# -- arguments --------------------------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        self.exit(BAD, f"{self.prog}: error: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="rnn-lower", description="Rewrite RNN, GRU and LSTM nodes of ONNX models as primitive operators."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)

    lower = commands.add_parser("lower", help="write a model without recurrent nodes")
    lower.set_defaults(command=_lower)
    _files_and_form(lower)
    _option(lower, "--op", "op_types", metavar="LSTM", action="append", type=str.upper)
    lower.add_argument("--only", action="append", default=[], metavar="GLOB", help="lower only nodes of such names")
    lower.add_argument("--skip", action="append", default=[], metavar="GLOB", help="leave nodes of such names")
    _sizes_and_limits(lower)
    lower.add_argument("--check", action="store_true", help="compare with the original before writing")
    lower.add_argument("--prove", action="store_true", help="write only what is proved to be the same function")
    _check_arguments(lower)

    _stream_arguments(
        commands.add_parser("stream", help="write a model that runs chunk by chunk, its state in and out")
    )

    check = commands.add_parser("check", help="compare two models")
    check.set_defaults(command=_check)
    check.add_argument("original", metavar="A.onnx")
    check.add_argument("lowered", metavar="B.onnx")
    _check_arguments(check)

    prove = commands.add_parser("prove", help="show without inputs and tolerance that two models are the same function")
    prove.set_defaults(command=_prove)
    prove.add_argument("original", metavar="A.onnx")
    prove.add_argument("lowered", metavar="B.onnx")
    prove.add_argument("--points", type=int, default=2, metavar="N", help="how many random points are compared")
    prove.add_argument("--seed", type=int, default=0, metavar="N", help="of the points")
    prove.add_argument("--json", action="store_true", help="print JSON")

    inspect = commands.add_parser("inspect", help="list recurrent nodes with their features")
    inspect.set_defaults(command=_inspect)
    inspect.add_argument("model", metavar="IN.onnx")
    inspect.add_argument("--json", action="store_true", help="print JSON")

    targets = commands.add_parser("targets", help="list the runtimes that --target knows, or explain one")
    targets.add_argument("target", nargs="?", metavar="RUNTIME", help="a name, or the path of a .toml file")
    targets.set_defaults(command=_targets)
    return parser


def _files_and_form(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="IN.onnx")
    parser.add_argument("-o", "--output", metavar="OUT.onnx", required=True, help="may be IN.onnx; - writes to stdout")
    parser.add_argument("--force", action="store_true", help="replace OUT.onnx even if it is read-only")
    _option(parser, "--form", "form", choices=FORMS)
    _option(parser, "--target", "target", metavar="RUNTIME", action=_Target)


def _sizes_and_limits(parser: argparse.ArgumentParser) -> None:
    _option(parser, "--opset", "opset", metavar="N", type=int)
    _option(parser, "--dim", "dims", metavar="NAME=SIZE", action="append")
    parser.add_argument(
        "--input-shape", dest="shapes", action="append", metavar="INPUT:SIZE,SIZE...", help="the same for all axes"
    )
    _option(parser, "--fold", "fold", action="store_true")
    _option(parser, "--max-nodes", "max_nodes", metavar="N", type=int)


def _stream_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command=_stream)
    _files_and_form(parser)
    parser.add_argument("--time", metavar="NAME", help="the symbolic size that is the stream, or INPUT[AXIS]")
    parser.add_argument("--step", type=int, metavar="K", help="chunks of K frames only, unrolled; 1 is a straight line")
    parser.add_argument("--keep-fused", action="store_true", help="leave the recurrent nodes, only give them states")
    parser.add_argument("--set", dest="fixed", metavar="INPUT=VALUE", action="append", help="make an input a constant")
    parser.add_argument("--reset", action="store_true", help="add an input `reset` that sets rows back")
    _sizes_and_limits(parser)
    parser.add_argument("--check", action="store_true", help="compare random chunks with whole runs before writing")
    _runs_and_tolerance(parser)


def _runs_and_tolerance(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="how many sets of inputs are sampled")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the sampled inputs")
    parser.add_argument("--rtol", type=float, default=1e-3, metavar="R", help="relative tolerance")
    parser.add_argument("--atol", type=float, default=1e-5, metavar="A", help="absolute tolerance")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _option(parser: argparse.ArgumentParser, flag: str, name: str, **details: Any) -> None:
    """A flag for a field of `Options`, with the default and the help that are said there."""
    field = next(field for field in dataclasses.fields(Options) if field.name == name)
    default = None if details.get("action") == "append" else field.default
    parser.add_argument(flag, dest=name, default=default, help=field.metadata["help"], **details)


class _Target(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, value: Any, *_: Any) -> None:
        if value == "list":  # as it was spelled before there was a command for it
            raise SystemExit(_targets(namespace))
        setattr(namespace, self.dest, value)


def _check_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--inputs", metavar="X.npz", help="arrays by input name, instead of sampled ones")
    _runs_and_tolerance(parser)
    parser.add_argument("--allow-unreached", action="store_true", help="agree even if some node has run with no inputs")
    parser.add_argument(
        "--exact", action=argparse.BooleanOptionalAction, default=True,
        help="small models: look as well, in exact arithmetic, for what no input shows",
    )  # fmt: skip


def _fixed(texts: Sequence[str]) -> dict[str, Any]:
    fixed: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        try:
            fixed[name] = json.loads(value)
        except ValueError:
            equals = ""
        if not equals or not name:
            raise RnnLowerError(f"--set {text}: write INPUT=VALUE, e.g. --set sr=16000 or --set speed=[0.5,1]")
    return fixed


def _dims(texts: Sequence[str], shapes: Sequence[str]) -> dict[str, int]:
    dims: dict[str, int] = {}
    for text in texts:
        name, equals, size = text.rpartition("=")
        if not equals or not name or not _is_size(size):
            raise RnnLowerError(f"--dim {text}: write NAME=SIZE or INPUT[AXIS]=SIZE, e.g. --dim T=100")
        _set(dims, name, int(size))
    for text in shapes:
        name, colon, sizes = text.rpartition(":")
        if not colon or not name or not all(map(_is_size, sizes.split(","))):
            raise RnnLowerError(f"--input-shape {text}: write INPUT:SIZE,SIZE..., e.g. --input-shape x:100,1,16")
        for axis, size in enumerate(sizes.split(",")):
            _set(dims, f"{name}[{axis}]", int(size))
    return dims


def _set(dims: dict[str, int], name: str, size: int) -> None:
    if dims.setdefault(name, size) != size:
        raise RnnLowerError(f"'{name}' is given twice, as {dims[name]} and as {size}")


def _is_size(text: str) -> bool:
    return text.isascii() and text.isdecimal()


class _Selection:
    """What --only and --skip choose. Every pattern has to match some node: one that does not is a slip."""

    def __init__(self, only: Sequence[str], skip: Sequence[str]) -> None:
        self._only, self._skip = only, skip
        self._names: list[str] = []

    def __call__(self, node: RecurrentNode) -> bool:
        self._names.append(node.name)
        return (not self._only or self._matches(node.name, self._only)) and not self._matches(node.name, self._skip)

    @staticmethod
    def _matches(name: str, patterns: Sequence[str]) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)

    def check(self) -> None:
        """Raise for a pattern that no node matches."""
        for flag, patterns in (("--only", self._only), ("--skip", self._skip)):
            for pattern in patterns:
                if not any(self._matches(name, [pattern]) for name in self._names):
                    near = difflib.get_close_matches(pattern, self._names, 3, 0.4) or self._names[:3]
                    told = f"; there are {', '.join(repr(name) for name in near)}" if near else ""
                    raise RnnLowerError(f"{flag} {pattern}: no RNN, GRU or LSTM node is called so{told}")


# -- commands ---------------------------------------------------------------------------------------------------------


def _lower(arguments: argparse.Namespace) -> int:
    from rnn_lower import api

    if arguments.output == "-" and sys.__stdout__ is None:
        raise RnnLowerError("-o -: stdout is closed; name a file")
    if arguments.inputs is not None and not arguments.check:
        raise RnnLowerError("--inputs needs --check")
    if arguments.fold and arguments.prove:
        raise RnnLowerError("--prove compares all of a file, and --fold changes all of it; use --check")
    selection = _Selection(arguments.only, arguments.skip)
    given = {field.name: getattr(arguments, field.name, None) for field in dataclasses.fields(Options)}
    given.update(dims=_dims(arguments.dims or [], arguments.shapes or []), select=selection)
    reports: list[CheckReport | Proof] = []

    def changed(lowered: str) -> Sequence[str]:
        from rnn_lower.proof import untouched

        if arguments.fold:  # which changes all of it
            return ()
        return untouched.changed_files(arguments.model, lowered, opset=arguments.opset, dims=given["dims"])

    def accept(lowered: str) -> bool:
        selection.check()
        try:
            if arguments.prove:
                reports.append(api.prove(arguments.model, lowered))
            if arguments.check:
                reports.append(_run_check(arguments, arguments.model, lowered, changed(lowered)))
        except RnnLowerError as error:  # the file has its name only when it is put in place
            raise type(error)(str(error).replace(f"{lowered}: ", "")) from None
        return all(report.ok for report in reports)

    with tables.progress() as advance:
        records = api.lower_file(
            arguments.model, arguments.output, progress=advance, force=arguments.force,
            accept=accept,
            **{name: value for name, value in given.items() if value is not None},
        )  # fmt: skip
    written = arguments.output if all(report.ok for report in reports) else None
    with contextlib.redirect_stdout(sys.stderr if written == "-" else sys.stdout):
        tables.print_lowered(arguments.json, written, records, reports)
    return DONE if written else DIFFERENT


def _stream(arguments: argparse.Namespace) -> int:
    from rnn_lower import api

    if arguments.output == "-" and sys.__stdout__ is None:
        raise RnnLowerError("-o -: stdout is closed; name a file")
    given = {field.name: getattr(arguments, field.name, None) for field in dataclasses.fields(Options)}
    given["dims"] = _dims(arguments.dims or [], arguments.shapes or []) or None
    reports: list[CheckReport] = []

    def accept(path: str, made: Made) -> bool:
        if arguments.check:
            try:
                tolerances = {name: getattr(arguments, name) for name in ("runs", "seed", "rtol", "atol")}
                reports.append(api.check_streaming(made, path, **tolerances))
            except RnnLowerError as error:  # the file has its name only when it is put in place
                raise type(error)(str(error).replace(f"{path}: ", "")) from None
        return all(report.ok for report in reports)

    with tables.progress() as advance:
        made = api.stream_file(
            arguments.model, arguments.output, axis=arguments.time, step=arguments.step, reset=arguments.reset,
            keep_fused=arguments.keep_fused, set_inputs=_fixed(arguments.fixed or []), accept=accept,
            progress=advance, force=arguments.force,
            **{name: value for name, value in given.items() if value is not None},
        )  # fmt: skip
    written = arguments.output if all(report.ok for report in reports) else None
    with contextlib.redirect_stdout(sys.stderr if written == "-" else sys.stdout):
        tables.print_streamed(arguments.json, written, made, reports)
    return DONE if written else DIFFERENT


def _check(arguments: argparse.Namespace) -> int:
    return _told(_run_check(arguments, arguments.original, arguments.lowered), arguments.json)


def _prove(arguments: argparse.Namespace) -> int:
    from rnn_lower import api

    proof = api.prove(arguments.original, arguments.lowered, points=arguments.points, seed=arguments.seed)
    return _told(proof, arguments.json)


def _told(report: CheckReport | Proof, as_json: bool) -> int:
    tables.print_json(tables.report_data(report)) if as_json else tables.print_report(report)
    return DONE if report.ok else DIFFERENT


def _run_check(arguments: argparse.Namespace, original: str, lowered: str, changed: Sequence[str] = ()) -> CheckReport:
    from rnn_lower import api

    report = api.check(
        original, lowered, inputs=arguments.inputs, runs=arguments.runs, seed=arguments.seed,
        rtol=arguments.rtol, atol=arguments.atol, allow_unreached=arguments.allow_unreached,
        exact=arguments.exact,
    )  # fmt: skip
    return dataclasses.replace(report, changed=tuple(changed))


def _inspect(arguments: argparse.Namespace) -> int:
    from rnn_lower import api

    inputs, nodes = api.inspect_file(arguments.model)
    tables.print_inspected(arguments.json, arguments.model, inputs, nodes)
    return DONE


def _targets(arguments: argparse.Namespace) -> int:
    from rnn_lower.targets import TARGETS, find_target

    name = getattr(arguments, "target", None)
    if name in (None, "list"):  # --target list, as it was spelled before there was a command for it
        for target in TARGETS.values():
            print(f"{target.name}: {target.summary}")
    else:
        for told, what in find_target(name).explained():
            print(f"{told}: {what}")
    return DONE
