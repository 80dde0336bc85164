"""The command line: arguments in, tables out. The work is done elsewhere."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fnmatch
import json
import logging
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rnn_lower.errors import RnnLowerError
from rnn_lower.options import FORMS, Options

if TYPE_CHECKING:
    from rnn_lower.model.passes import Record
    from rnn_lower.proof.report import CheckReport, Proof
    from rnn_lower.recurrent.node import RecurrentNode

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
    lower.add_argument("model", metavar="IN.onnx")
    lower.add_argument("-o", "--output", metavar="OUT.onnx", required=True, help="may be IN.onnx; - writes to stdout")
    lower.add_argument("--force", action="store_true", help="replace OUT.onnx even if it is read-only")
    _option(lower, "--form", "form", choices=FORMS)
    _option(lower, "--target", "target", metavar="RUNTIME", action=_Target)
    _option(lower, "--op", "op_types", metavar="LSTM", action="append", type=str.upper)
    lower.add_argument("--only", action="append", default=[], metavar="GLOB", help="lower only nodes of such names")
    lower.add_argument("--skip", action="append", default=[], metavar="GLOB", help="leave nodes of such names")
    _option(lower, "--opset", "opset", metavar="N", type=int)
    _option(lower, "--dim", "dims", metavar="NAME=SIZE", action="append")
    _option(lower, "--max-nodes", "max_nodes", metavar="N", type=int)
    lower.add_argument("--check", action="store_true", help="compare with the original before writing")
    lower.add_argument("--prove", action="store_true", help="write only what is proved to be the same function")
    _check_arguments(lower)

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

    targets = commands.add_parser("targets", help="list the runtimes that --target knows")
    targets.set_defaults(command=_targets)
    return parser


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
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="how many sets of inputs are sampled")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the sampled inputs")
    parser.add_argument("--rtol", type=float, default=1e-3, metavar="R", help="relative tolerance")
    parser.add_argument("--atol", type=float, default=1e-5, metavar="A", help="absolute tolerance")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _dims(texts: Sequence[str]) -> dict[str, int]:
    dims = {}
    for text in texts:
        name, equals, size = text.rpartition("=")
        if not equals or not name or not (size.isascii() and size.isdecimal()):
            raise RnnLowerError(f"--dim {text}: write NAME=SIZE, e.g. --dim T=100")
        dims[name] = int(size)
    return dims


def _selection(only: Sequence[str], skip: Sequence[str]) -> Callable[[RecurrentNode], bool] | None:
    def chosen(node: RecurrentNode) -> bool:
        def matches(patterns: Sequence[str]) -> bool:
            return any(fnmatch.fnmatchcase(node.name, pattern) for pattern in patterns)

        return (not only or matches(only)) and not matches(skip)

    return chosen if only or skip else None


# -- commands ---------------------------------------------------------------------------------------------------------


def _lower(arguments: argparse.Namespace) -> int:
    from rnn_lower import api

    if arguments.output == "-" and sys.__stdout__ is None:
        raise RnnLowerError("-o -: stdout is closed; name a file")
    if arguments.inputs is not None and not arguments.check:
        raise RnnLowerError("--inputs needs --check")
    given = {field.name: getattr(arguments, field.name, None) for field in dataclasses.fields(Options)}
    given.update(dims=_dims(arguments.dims or []), select=_selection(arguments.only, arguments.skip))
    reports: list[CheckReport | Proof] = []

    def accept(lowered: Any) -> bool:
        from rnn_lower.proof import untouched

        if arguments.prove:
            reports.append(api.prove(arguments.model, lowered))
        if arguments.check:
            changed = untouched.changed_files(arguments.model, lowered, opset=arguments.opset, dims=given["dims"])
            report = _run_check(arguments, arguments.model, lowered)
            reports.append(dataclasses.replace(report, changed=tuple(changed)))
        return all(report.ok for report in reports)

    with _progress() as progress:
        records = api.lower_file(
            arguments.model, arguments.output, progress=progress, force=arguments.force,
            accept=accept if arguments.check or arguments.prove else None,
            **{name: value for name, value in given.items() if value is not None},
        )  # fmt: skip
    written = arguments.output if all(report.ok for report in reports) else None
    with contextlib.redirect_stdout(sys.stderr if written == "-" else sys.stdout):
        _print_lowered(arguments.json, written, records, reports)
    return DONE if written else DIFFERENT


def _print_lowered(
    as_json: bool, written: str | None, records: Sequence[Record], reports: Sequence[CheckReport | Proof]
) -> None:
    if as_json:
        result: dict[str, Any] = {"output": written, "nodes": [_record_row(record) for record in records]}
        result.update({report.kind: _report_data(report) for report in reports})
        _print_json(result)
    else:
        _print_records(records, written)
        for report in reports:
            _print_report(report)


def _check(arguments: argparse.Namespace) -> int:
    report = _run_check(arguments, arguments.original, arguments.lowered)
    return _told(report, arguments.json)


def _prove(arguments: argparse.Namespace) -> int:
    from rnn_lower import api

    proof = api.prove(arguments.original, arguments.lowered, points=arguments.points, seed=arguments.seed)
    return _told(proof, arguments.json)


def _told(report: CheckReport | Proof, as_json: bool) -> int:
    _print_json(_report_data(report)) if as_json else _print_report(report)
    return DONE if report.ok else DIFFERENT


def _run_check(arguments: argparse.Namespace, original: Any, lowered: Any) -> CheckReport:
    from rnn_lower import api

    return api.check(
        original, lowered, inputs=arguments.inputs, runs=arguments.runs, seed=arguments.seed,
        rtol=arguments.rtol, atol=arguments.atol,
    )  # fmt: skip


def _inspect(arguments: argparse.Namespace) -> int:
    from rnn_lower import api

    rows = [_node_row(node) for node in api.inspect(arguments.model)]
    if arguments.json:
        _print_json(rows)
    elif not rows:
        print(f"{arguments.model}: no RNN, GRU or LSTM node")
    else:
        shown = [{**row, "sizes": _shown_sizes(row["sizes"]), "notes": "; ".join(row["notes"])} for row in rows]
        _print_table(arguments.model, shown, ["node", "where", "op", "sizes", "type", "features", "notes"])
    return DONE


def _targets(_: argparse.Namespace) -> int:
    from rnn_lower.targets import TARGETS

    for target in TARGETS.values():
        print(f"{target.name}: {target.summary}")
    return DONE


# -- tables -----------------------------------------------------------------------------------------------------------


def _print_json(data: Any) -> None:
    print(json.dumps(_finite(data), allow_nan=False))


def _finite(data: Any) -> Any:
    """JSON has no infinity and no NaN; null stands for a number that is none."""
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def _shown_sizes(sizes: Mapping[str, int | str | None]) -> str:
    letters = {"seq_length": "T", "batch_size": "N", "input_size": "I", "hidden_size": "H"}
    return " ".join(f"{letters[name]}={'?' if size is None else size}" for name, size in sizes.items())


def _features(node: RecurrentNode) -> str:
    words = [node.direction]
    words += [name for name in node.inputs if name not in ("X", "W", "R")]
    words += [f"layout {node.layout}"] if node.layout else []
    words += ["linear_before_reset"] if node.linear_before_reset else []
    words += ["input_forget"] if node.input_forget else []
    words += [f"clip {node.clip:g}"] if node.clip is not None else []
    words.append("/".join("-".join(a.name for a in functions) for functions in node.activations))
    return f"{', '.join(words)} -> {', '.join(node.outputs) or 'nothing'}"


def _node_row(node: RecurrentNode) -> dict[str, Any]:
    return {
        "node": node.name, "where": node.path, "op": f"{node.op_type}-{node.version}",
        "sizes": {name: getattr(node, name) for name in ("seq_length", "batch_size", "input_size", "hidden_size")},
        "type": node.dtype.name.lower(), "features": _features(node), "notes": list(node.notes),
    }  # fmt: skip


def _record_row(record: Record) -> dict[str, Any]:
    return {**_node_row(record.node), "form": record.form, "nodes": record.emitted}


def _print_records(records: Sequence[Record], output: str | None) -> None:
    if not records:
        print("no RNN, GRU or LSTM node to lower")
    else:
        rows = [{**row, "sizes": _shown_sizes(row["sizes"])} for row in map(_record_row, records)]
        _print_table("lowered", rows, ["node", "where", "op", "sizes", "form", "nodes"])
    print(f"wrote {output}" if output else "nothing written: it is not shown to be the same")


def _report_data(report: CheckReport | Proof) -> dict[str, Any]:
    return {"ok": report.ok, **report.summary, **dataclasses.asdict(report)}


def _print_report(report: CheckReport | Proof) -> None:
    rows = report.rows
    if rows:
        _print_table(report.title, rows, list(rows[0]))
    print(*report.remarks, report.verdict, sep="\n")


def _print_table(title: str, rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    class Printer(Console):
        def on_broken_pipe(self) -> None:
            raise  # told like every other failure to print

    table = Table()
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(escape(str(row[column])) for column in columns))
    console = Printer()
    if not console.is_terminal:  # pipes and logs keep whole lines
        console = Printer(width=200)
    console.print(escape(title), highlight=False)
    console.print(table)


class _progress:
    """A progress bar on stderr while weights are written, when someone is looking."""

    def __enter__(self) -> Callable[[str, int, int], None] | None:
        self._bar: Any = None
        if not sys.stderr.isatty():
            return None
        from rich.console import Console
        from rich.progress import Progress

        self._bar = Progress(console=Console(stderr=True), transient=True)
        self._bar.start()
        self._task = self._bar.add_task("writing weights", total=None)
        return self._advance

    def _advance(self, name: str, index: int, total: int) -> None:
        self._bar.update(self._task, completed=index, total=total or None)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
