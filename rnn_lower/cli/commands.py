"""The commands: each calls the function of the library that it is named after, and prints what came of it."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import difflib
import fnmatch
import io
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from rnn_lower.cli import tables
from rnn_lower.cli.arguments import DIFFERENT, DONE, Command, fixed_inputs, of_check_only, sizes
from rnn_lower.errors import RnnLowerError
from rnn_lower.options import Options

if TYPE_CHECKING:
    from rnn_lower.lowering.node import RecurrentNode
    from rnn_lower.modelio.statistics import Count
    from rnn_lower.proving.report import CheckReport, Proof
    from rnn_lower.streaming.making import Made
    from rnn_lower.streaming.whole import Whole


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


def _lower(arguments: argparse.Namespace) -> int:
    if arguments.out_dir is not None:
        from rnn_lower.cli.several import on_several  # multiprocessing is for those who have several models

        return on_several(_lower_one, arguments)
    if len(arguments.models) > 1:
        raise RnnLowerError(f"{len(arguments.models)} models and one -o; use --out-dir FOLDER")
    (arguments.model,) = arguments.models
    return _lower_one(arguments)


def _lower_one(arguments: argparse.Namespace) -> int:
    from rnn_lower import api
    from rnn_lower.modelio.statistics import count_file

    given = _asked(arguments)
    if not arguments.check and (unused := next(of_check_only(arguments), None)):
        raise RnnLowerError(f"{unused} needs --check")
    if arguments.fold and arguments.prove:
        raise RnnLowerError("--prove compares all of a file, and --fold changes all of it; use --check")
    selection = _Selection(arguments.only, arguments.skip)
    given["select"] = selection
    reports: list[CheckReport | Proof] = []
    counts: list[Count] = []

    def changed(lowered: str) -> Sequence[str]:
        from rnn_lower.proving import model_diff

        if arguments.fold:  # which changes all of it
            return ()
        asked = {"opset": arguments.opset, "dims": given.get("dims"), "converted": arguments.target is not None}
        return model_diff.changed_files(arguments.model, lowered, **asked)

    def accept(lowered: str) -> bool:
        selection.check()
        counts.extend(count_file(path) for path in (arguments.model, lowered))
        with _unnamed(lowered):
            if arguments.prove:
                reports.append(api.prove(arguments.model, lowered))
            if arguments.check:
                reports.append(_run_check(arguments, arguments.model, lowered, changed(lowered)))
        return all(report.ok for report in reports)

    with tables.progress(arguments.quiet) as advance:
        records = api.lower_file(
            arguments.model, arguments.output, progress=advance, force=arguments.force,
            accept=accept, **given,
        )  # fmt: skip
    written = arguments.output if all(report.ok for report in reports) else None
    with _beside(written, arguments):
        tables.print_lowered(arguments.json, written, records, counts, reports)
    return DONE if written else DIFFERENT


def _asked(arguments: argparse.Namespace) -> dict[str, Any]:
    """The fields of `Options` that were given."""
    if arguments.output == "-" and sys.__stdout__ is None:
        raise RnnLowerError("-o -: stdout is closed; name a file")
    given = {field.name: getattr(arguments, field.name, None) for field in dataclasses.fields(Options)}
    given["dims"] = sizes(arguments.dims or [], arguments.shapes or []) or None
    return {name: value for name, value in given.items() if value is not None}


@contextlib.contextmanager
def _unnamed(path: str) -> Iterator[None]:
    """Errors without the path of a file that has its name only when it is put in place."""
    try:
        yield
    except RnnLowerError as error:
        raise type(error)(str(error).replace(f"{path}: ", "")) from None


def _beside(written: str | None, arguments: argparse.Namespace) -> contextlib.redirect_stdout[TextIO]:
    """Where tables go: not among the bytes of a model, and nowhere if nobody wants them."""
    if arguments.quiet and not arguments.json:
        return contextlib.redirect_stdout(io.StringIO())
    return contextlib.redirect_stdout(sys.stderr if written == "-" else sys.stdout)


def _stream(arguments: argparse.Namespace) -> int:
    from rnn_lower import api

    given = _asked(arguments)
    reports: list[Any] = []

    def accept(path: str, made: Made) -> bool:
        if arguments.check:
            tolerances = {name: getattr(arguments, name) for name in ("runs", "seed", "rtol", "atol")}
            with _unnamed(path):
                reports.append(api.check_streaming(made, path, **tolerances))
        if arguments.prove:
            with _unnamed(path):
                reports.append(api.prove_streaming(made.streamed.original, path, seed=arguments.seed))
        return all(report.ok for report in reports)

    with tables.progress(arguments.quiet) as advance:
        made = api.stream_file(
            arguments.model, arguments.output, axis=arguments.time, step=arguments.step, reset=arguments.reset,
            delay=arguments.delay, states=arguments.states, state_names=arguments.state_names,
            set_inputs=fixed_inputs(arguments.fixed or []), accept=accept, progress=advance, force=arguments.force,
            **given,
        )  # fmt: skip
    written = arguments.output if all(report.ok for report in reports) else None
    with _beside(written, arguments):
        tables.print_streamed(arguments.json, written, made, reports)
    return DONE if written else DIFFERENT


def _unstream(arguments: argparse.Namespace) -> int:
    from rnn_lower import api

    reports: list[Any] = []

    def accept(path: str, made: Whole) -> bool:
        with _unnamed(path):
            tolerances = {name: getattr(arguments, name) for name in ("runs", "seed", "rtol", "atol")}
            reports.extend(api.compare_whole(made, path, arguments.check, arguments.prove, **tolerances))
        return all(report.ok for report in reports)

    states = dict(text.partition("=")[::2] for text in arguments.states or ())
    made = api.unstream_file(
        arguments.model, arguments.output, states=states or None, axis=arguments.time, accept=accept,
        force=arguments.force,
    )  # fmt: skip
    written = arguments.output if all(report.ok for report in reports) else None
    with _beside(written, arguments):
        tables.print_whole(arguments.json, written, made, reports)
    return DONE if written else DIFFERENT


def _check(arguments: argparse.Namespace) -> int:
    return _told(_run_check(arguments, arguments.original, arguments.lowered), arguments.json)


def _prove(arguments: argparse.Namespace) -> int:
    from rnn_lower import api

    proof = api.prove(
        arguments.original, arguments.lowered, points=arguments.points, seed=arguments.seed,
        counterexample=arguments.counterexample,
    )  # fmt: skip
    return _told(proof, arguments.json)


def _told(report: CheckReport | Proof, as_json: bool) -> int:
    tables.print_json(tables.report_data(report)) if as_json else tables.print_report(report)
    return DONE if report.ok else DIFFERENT


def _run_check(arguments: argparse.Namespace, original: str, lowered: str, changed: Sequence[str] = ()) -> CheckReport:
    from rnn_lower import api

    report = api.check(
        original, lowered, inputs=arguments.inputs, runs=arguments.runs, seed=arguments.seed,
        rtol=arguments.rtol, atol=arguments.atol, allow_unreached=arguments.allow_unreached,
        exact=arguments.exact, on=arguments.on, counterexample=arguments.counterexample,
    )  # fmt: skip
    return dataclasses.replace(report, changed=tuple(changed))


def _inspect(arguments: argparse.Namespace) -> int:
    from rnn_lower import api
    from rnn_lower.targets import find_target

    verdict = find_target(arguments.target).verdict if arguments.target else None
    inputs, nodes = api.inspect_file(arguments.model)
    tables.print_inspected(arguments.json, arguments.model, inputs, nodes, verdict)
    return DONE


def _report(arguments: argparse.Namespace) -> int:
    from rnn_lower import api
    from rnn_lower.modelio.files import write_text

    output = arguments.output or ("node.svg" if arguments.svg else "report.html")
    if output.endswith(".onnx"):
        raise RnnLowerError(f"-o {output}: a report is no model; name it .html, or .svg with --svg")
    given = _asked(arguments)
    if arguments.node is not None and not arguments.svg:
        raise RnnLowerError("--node needs --svg: a page tells of all nodes")
    if arguments.svg:
        text, told, ok = api.draw(arguments.model, arguments.node, **given), None, True
    else:
        ask = ("inputs", "runs", "seed", "rtol", "atol", "allow_unreached")
        told = api.report(arguments.model, **{name: getattr(arguments, name) for name in ask}, **given)
        text, ok = told.html, told.ok
    write_text(text, output, arguments.force)
    with _beside(output, arguments):
        tables.print_reported(arguments.json, output, told)
    return DONE if ok else DIFFERENT


def _lint(arguments: argparse.Namespace) -> int:
    from rnn_lower import api

    dims = sizes(arguments.dims or [], arguments.shapes or []) or None
    report = api.lint(arguments.model, arguments.target, dims=dims)
    tables.print_linted(arguments.json, arguments.model, report)
    return DONE if report.ok else DIFFERENT


def _targets(arguments: argparse.Namespace) -> int:
    from rnn_lower.targets import TARGETS, find_target

    name = getattr(arguments, "target", None)
    one = None if name in (None, "list") else find_target(name)  # --target list, as it was spelled before the command
    tables.print_targets(arguments.json, list(TARGETS.values()) if one is None else [one], explained=one is not None)
    return DONE


def _kit(arguments: argparse.Namespace) -> int:
    from rnn_lower.targets.probe import kits

    made = kits.write_kit(arguments.output, arguments.target, only=arguments.only, limit=arguments.limit)
    for one in made.refused:
        print(f"{one.feature} ({one.form}) is left out: {one.why}")
    print(f"wrote {arguments.output}: {len(made.cases)} models of {len(made.features)} features")
    return DONE


def _kit_report(arguments: argparse.Namespace) -> int:
    from rnn_lower.modelio.files import write_text
    from rnn_lower.targets.probe import kits

    if arguments.output is not None and not arguments.output.endswith(".toml"):
        raise RnnLowerError(f"-o {arguments.output}: --target takes files called NAME.toml only; name it so")
    with tables.progress(arguments.quiet, "cases") as advance:
        report = kits.report_kit(
            arguments.folder, arguments.results, run=arguments.run, timeout=arguments.timeout, progress=advance
        )
    written = arguments.output if report.proposal else None
    if written is not None:
        write_text(report.proposal, written, arguments.force)
    tables.print_kit(arguments.json, written, report)
    return DONE if report.ok else DIFFERENT


COMMANDS: dict[str, Command] = {
    "lower": _lower, "stream": _stream, "unstream": _unstream, "check": _check, "prove": _prove, "inspect": _inspect,
    "lint": _lint, "targets": _targets, "report": _report, "kit": _kit, "kit-report": _kit_report,
}  # fmt: skip
