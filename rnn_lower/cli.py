"""The command line: arguments in, tables out. The work is done elsewhere."""

from __future__ import annotations

import argparse
import fnmatch
import json
import logging
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rnn_lower.check import CheckReport
    from rnn_lower.node import RecurrentNode
    from rnn_lower.passes import Record

DONE, DIFFERENT, BAD = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run `rnn-lower`. Answers 0: done, 1: the check found a difference, 2: bad input or usage (one line on stderr)."""
    try:
        arguments = _parser().parse_args(argv)
    except SystemExit as end:  # argparse has printed why
        return int(end.code or 0)
    from rnn_lower.errors import RnnLowerError

    logging.basicConfig(format="rnn-lower: %(message)s", stream=sys.stderr, force=True, level=logging.INFO)
    for noisy in ("onnx_ir", "onnxscript"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    try:
        command: Callable[[argparse.Namespace], int] = arguments.command
        return command(arguments)
    except RnnLowerError as error:
        print(f"rnn-lower: error: {' '.join(str(error).split())}", file=sys.stderr)
        return BAD
    except KeyboardInterrupt:
        print("rnn-lower: interrupted, nothing written", file=sys.stderr)
        return BAD


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
    lower.add_argument("-o", "--output", metavar="OUT.onnx", required=True, help="may be IN.onnx")
    lower.add_argument("--form", choices=("auto", "scan", "loop", "unroll"), default="auto")
    lower.add_argument("--target", metavar="RUNTIME", help="keep to what a runtime takes; 'list' shows them")
    lower.add_argument("--op", action="append", metavar="LSTM", help="lower only this operator (repeatable)")
    lower.add_argument("--only", action="append", default=[], metavar="GLOB", help="lower only nodes of such names")
    lower.add_argument("--skip", action="append", default=[], metavar="GLOB", help="leave nodes of such names")
    lower.add_argument("--opset", type=int, metavar="N", help="convert the model to opset N")
    lower.add_argument("--dim", action="append", default=[], metavar="NAME=SIZE", help="fix a symbolic size")
    lower.add_argument("--max-nodes", type=int, default=200_000, metavar="N", help="limit of emitted nodes")
    lower.add_argument("--check", action="store_true", help="compare with the original before writing")
    _check_arguments(lower)

    check = commands.add_parser("check", help="compare two models")
    check.set_defaults(command=_check)
    check.add_argument("original", metavar="A.onnx")
    check.add_argument("lowered", metavar="B.onnx")
    _check_arguments(check)

    inspect = commands.add_parser("inspect", help="list recurrent nodes with their features")
    inspect.set_defaults(command=_inspect)
    inspect.add_argument("model", metavar="IN.onnx")
    inspect.add_argument("--json", action="store_true")
    return parser


def _check_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--inputs", metavar="X.npz", help="arrays by input name, instead of sampled ones")
    parser.add_argument("--runs", type=int, default=3, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--rtol", type=float, default=1e-3, metavar="R")
    parser.add_argument("--atol", type=float, default=1e-5, metavar="A")
    parser.add_argument("--json", action="store_true")


def _dims(texts: Sequence[str]) -> dict[str, int]:
    from rnn_lower.errors import RnnLowerError

    dims = {}
    for text in texts:
        name, equals, size = text.rpartition("=")
        if not equals or not name or not size.isdigit():
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
    from rnn_lower import api, files
    from rnn_lower.errors import RnnLowerError
    from rnn_lower.passes import Options
    from rnn_lower.targets import TARGETS

    if arguments.target == "list":
        for target in TARGETS.values():
            print(f"{target.name}: {target.summary}")
        return DONE
    if arguments.inputs is not None and not arguments.check:
        raise RnnLowerError("--inputs needs --check")
    op_types = tuple(op.upper() for op in arguments.op) if arguments.op else ("RNN", "GRU", "LSTM")
    selection = _selection(arguments.only, arguments.skip)
    options = Options(arguments.form, arguments.target, op_types, selection, arguments.max_nodes)
    dims = _dims(arguments.dim)
    model = files.load(arguments.model)
    external = files.has_external_data(model)
    try:
        records = api.apply(model, options, arguments.opset, dims)
    except RnnLowerError as error:
        raise type(error)(f"{arguments.model}: {error}") from None
    report = None
    if arguments.check:
        report = _run_check(arguments, files.load(arguments.model), model)
    if report is None or report.ok:
        with _progress() as progress:
            files.save(model, arguments.output, progress, external)
    if arguments.json:
        result: dict[str, Any] = {"output": arguments.output, "nodes": [_record_row(record) for record in records]}
        if report is not None:
            result["check"] = _report_data(report)
        print(json.dumps(result))
    else:
        _print_records(records, arguments.output if report is None or report.ok else None)
        if report is not None:
            _print_report(report)
    return DONE if report is None or report.ok else DIFFERENT


def _check(arguments: argparse.Namespace) -> int:
    report = _run_check(arguments, arguments.original, arguments.lowered)
    if arguments.json:
        print(json.dumps(_report_data(report)))
    else:
        _print_report(report)
    return DONE if report.ok else DIFFERENT


def _run_check(arguments: argparse.Namespace, original: Any, lowered: Any) -> CheckReport:
    from rnn_lower.check import check

    return check(
        original, lowered, inputs=arguments.inputs, runs=arguments.runs, seed=arguments.seed,
        rtol=arguments.rtol, atol=arguments.atol,
    )  # fmt: skip


def _inspect(arguments: argparse.Namespace) -> int:
    from rnn_lower import api, files
    from rnn_lower.errors import RnnLowerError

    model = files.load(arguments.model)
    try:
        nodes = api.inspect(model)
    except RnnLowerError as error:
        raise type(error)(f"{arguments.model}: {error}") from None
    rows = [_node_row(node) for node in nodes]
    if arguments.json:
        print(json.dumps(rows))
    elif not rows:
        print(f"{arguments.model}: no RNN, GRU or LSTM node")
    else:
        shown = [{**row, "notes": "; ".join(row["notes"])} for row in rows]
        _print_table(arguments.model, shown, ["node", "where", "op", "sizes", "type", "features", "notes"])
    return DONE


# -- tables -----------------------------------------------------------------------------------------------------------


def _sizes(node: RecurrentNode) -> str:
    sizes = (("T", node.seq_length), ("N", node.batch_size), ("I", node.input_size), ("H", node.hidden_size))
    return " ".join(f"{name}={'?' if size is None else size}" for name, size in sizes)


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
        "node": node.name, "where": node.path, "op": f"{node.op_type}-{node.version}", "sizes": _sizes(node),
        "type": node.dtype.name.lower(), "features": _features(node), "notes": list(node.notes),
    }  # fmt: skip


def _record_row(record: Record) -> dict[str, Any]:
    return {**_node_row(record.node), "form": record.form, "nodes": record.emitted}


def _print_records(records: Sequence[Record], output: str | None) -> None:
    if not records:
        print("no RNN, GRU or LSTM node to lower")
    else:
        rows = [_record_row(record) for record in records]
        _print_table("lowered", rows, ["node", "where", "op", "sizes", "form", "nodes"])
    print(f"wrote {output}" if output else "nothing written: the check found a difference")


def _report_data(report: CheckReport) -> dict[str, Any]:
    import dataclasses

    return {"ok": report.ok, "max_abs_error": report.max_abs_error, **dataclasses.asdict(report)}


def _print_report(report: CheckReport) -> None:
    rows = [
        {
            "output": output.name, "shape": "x".join(map(str, output.shape)), "max abs": f"{output.max_abs_error:.3g}",
            "max rel": f"{output.max_rel_error:.3g}", "": "ok" if output.ok else output.reason,
        }
        for output in report.outputs
    ]  # fmt: skip
    title = f"original on {report.judge}, lowered on {report.runner}, {report.runs} run(s)"
    _print_table(title, rows, ["output", "shape", "max abs", "max rel", ""])
    print(f"{'same' if report.ok else 'DIFFERENT'}: rtol {report.rtol:g}, atol {report.atol:g}")


def _print_table(title: str, rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table()
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(escape(str(row[column])) for column in columns))
    console = Console()
    if not console.is_terminal:  # pipes and logs keep whole lines
        console = Console(width=200)
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
