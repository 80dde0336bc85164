"""The commands: each calls the library function of the same name and prints the result."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import difflib
import fnmatch
import io
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from rnn_lower.cli import printing
from rnn_lower.cli.arguments import (
    COMPARISON,
    DIFFERENT,
    DONE,
    Command,
    comparison,
    fixed_inputs,
    named_states,
    require,
    sizes,
)
from rnn_lower.errors import RnnLowerError
from rnn_lower.options import OP_TYPES, Dims, Options

if TYPE_CHECKING:
    from rnn_lower.lowering.node import RecurrentNode
    from rnn_lower.modelio.statistics import Count
    from rnn_lower.proving.report import CheckReport, Proof
    from rnn_lower.streaming.stream_model import StreamResult
    from rnn_lower.streaming.unstream import Whole

logger = logging.getLogger("rnn_lower")


class _Selection:
    """The nodes that --include and --exclude select by name or operator; each pattern must match at least one node."""

    def __init__(self, include: Sequence[str], exclude: Sequence[str]) -> None:
        self._include, self._exclude = include, exclude
        self._nodes: list[tuple[str, str]] = []

    def __call__(self, node: RecurrentNode) -> bool:
        names = (node.name, node.op_type)
        self._nodes.append(names)
        return (not self._include or _matches(names, self._include)) and not _matches(names, self._exclude)

    def check(self) -> None:
        """Raise RnnLowerError for a pattern that matches no node, since it is probably a typing error."""
        for flag, patterns in (("--include", self._include), ("--exclude", self._exclude)):
            for pattern in patterns:
                if pattern not in OP_TYPES and not any(_matches(names, [pattern]) for names in self._nodes):
                    known = [name for name, _ in self._nodes]
                    near = difflib.get_close_matches(pattern, known, 3, 0.4) or known[:3]
                    names = f"; names in the model include {', '.join(map(repr, near))}" if near else ""
                    raise RnnLowerError(f"{flag} {pattern}: no RNN, GRU or LSTM node matches this pattern{names}")


def _matches(names: Iterable[str], patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in patterns)


def _lower(arguments: argparse.Namespace) -> int:
    require(arguments, "check", COMPARISON)
    if arguments.out_dir is not None:
        from rnn_lower.cli.several import on_several

        return on_several(_lower_one, arguments)
    _keep_recurrent_model(arguments)
    for flag in ("inputs", "counterexample"):
        if (path := getattr(arguments, flag)) and os.path.realpath(path) == os.path.realpath(arguments.output):
            raise RnnLowerError(f"{arguments.output}: --{flag} names the same file as the output; choose another file")
    return _lower_one(arguments)


def _keep_recurrent_model(arguments: argparse.Namespace) -> None:
    """Raise RnnLowerError if OUT of `IN OUT` may be meant as a second input, such as from `*.onnx` in a shell."""
    from rnn_lower.cli.several import holds_recurrent_nodes

    model, output = arguments.model, arguments.output
    if not arguments.is_positional or not os.path.exists(output) or not os.path.exists(model):
        return
    if not os.path.samefile(model, output) and holds_recurrent_nodes(output):
        several = "; to lower several models, pass --out-dir FOLDER" if hasattr(arguments, "out_dir") else ""
        raise RnnLowerError(
            f"{output} already exists and contains recurrent nodes; to overwrite it, pass -o {output}{several}"
        )


def _lower_one(arguments: argparse.Namespace) -> int:
    from rnn_lower import api
    from rnn_lower.modelio.statistics import count_file
    from rnn_lower.targeting import find_target

    options = _options(arguments)
    selection = _Selection(arguments.include, arguments.exclude)
    options["select"] = selection
    reports: list[CheckReport | Proof] = []
    counts: list[Count] = []

    def accept(lowered: str) -> bool:
        selection.check()
        counts.extend(count_file(path) for path in (arguments.model, lowered))
        proof: Proof | None = None
        before = arguments.model
        with _unnamed(lowered):
            if arguments.raise_loops and (arguments.prove or arguments.check):
                before = api.raise_loops(before, dims=options.get("dims"))  # which proves it; only lowering remains
            if arguments.prove:
                proof = api.prove(before, lowered)
                reports.append(proof)
            if arguments.check:
                from rnn_lower.proving import prover

                held = None if arguments.raise_loops else proof
                report = api.check(arguments.model, lowered, proof=held, **comparison(arguments))
                changed = tuple(prover.changes(before, lowered))
                reports.append(dataclasses.replace(report, changed=changed, unseen=()))
                if arguments.dequantize and not report.ok:
                    text = "the original rounds products to 8 bits, and with --dequantize the result does not, so they"
                    logger.warning("%s may differ; check with a tolerance for this difference (--rtol)", text)
        return all(report.ok for report in reports)

    with printing.progress(arguments.quiet) as advance:
        records = api.lower_file(arguments.model, arguments.output, progress=advance, accept=accept, **options)
    written = _written(arguments, reports)
    with _stdout_for_text(written, arguments):
        printing.print_lowered(arguments, written, records, counts, reports)
        if arguments.target is not None and not arguments.json:
            printing.print_native(find_target(arguments.target), records)
    return DONE if written else DIFFERENT


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The fields of `Options` that were set."""
    if arguments.output == "-" and sys.__stdout__ is None:
        raise RnnLowerError("-o -: stdout is closed; pass the name of an output file")
    options = {field.name: getattr(arguments, field.name, None) for field in dataclasses.fields(Options)}
    options["dims"] = _dims(arguments)
    return {name: value for name, value in options.items() if value is not None}


def _dims(arguments: argparse.Namespace) -> Dims | None:
    return sizes(arguments.dims or [], arguments.shapes or []) or None


@contextlib.contextmanager
def _unnamed(path: str) -> Iterator[None]:
    """Remove the path of a temporary file from errors, because the file has its final name only after the rename."""
    try:
        yield
    except RnnLowerError as error:
        raise type(error)(str(error).replace(f"{path}: ", "")) from None


def _written(arguments: argparse.Namespace, reports: Sequence[Any]) -> str | None:
    """The output, or None if a comparison failed, which --quiet prints as an error."""
    failed = [report for report in reports if not report.ok]
    for report in failed if arguments.quiet and not arguments.json else ():
        logger.error("error: %s; nothing was written", report.verdict)
    return None if failed else arguments.output


def _stdout_for_text(written: str | None, arguments: argparse.Namespace) -> contextlib.redirect_stdout[TextIO]:
    """The stream for text: not stdout if a model is written there, and none with --quiet."""
    if arguments.quiet and not arguments.json:
        return contextlib.redirect_stdout(io.StringIO())
    return contextlib.redirect_stdout(sys.stderr if written == "-" else sys.stdout)


def _stream(arguments: argparse.Namespace) -> int:
    from rnn_lower import api

    _require_comparison(arguments)
    _keep_recurrent_model(arguments)
    options = _options(arguments)
    reports: list[Any] = []

    def accept(path: str, result: StreamResult) -> bool:
        if arguments.check:
            with _unnamed(path):
                reports.append(api.check_streaming(result, path, **comparison(arguments)))
        if arguments.prove:
            seed = {} if arguments.seed is None else {"seed": arguments.seed}
            with _unnamed(path):
                reports.append(api.prove_streaming(result.streamed.original, path, **seed))
        return all(report.ok for report in reports)

    with printing.progress(arguments.quiet) as advance:
        result = api.stream_file(
            arguments.model, arguments.output, axis=arguments.time, step=arguments.step, reset=arguments.reset,
            delay=arguments.delay, states=arguments.states, state_names=arguments.state_names,
            set_inputs=fixed_inputs(arguments.fixed or []), accept=accept, progress=advance, **options,
        )  # fmt: skip
    written = _written(arguments, reports)
    with _stdout_for_text(written, arguments):
        printing.print_streamed(arguments, written, result, reports)
    return DONE if written else DIFFERENT


def _raise(arguments: argparse.Namespace) -> int:
    from rnn_lower import api

    _keep_recurrent_model(arguments)
    loops = api.raise_file(arguments.model, arguments.output, dims=_dims(arguments))
    written = arguments.output if any(one.op_type for one in loops) else None
    with _stdout_for_text(written, arguments):
        printing.print_raised(arguments, written, loops)
    return DONE if written else DIFFERENT


def _unstream(arguments: argparse.Namespace) -> int:
    from rnn_lower import api

    _require_comparison(arguments)
    _keep_recurrent_model(arguments)
    reports: list[Any] = []

    def accept(path: str, result: Whole) -> bool:
        with _unnamed(path):
            reports.extend(api.compare_whole(result, path, arguments.check, arguments.prove, **comparison(arguments)))
        return all(report.ok for report in reports)

    states = named_states(arguments.states or ()) or None
    result = api.unstream_file(arguments.model, arguments.output, states=states, axis=arguments.time, accept=accept)
    written = _written(arguments, reports)
    with _stdout_for_text(written, arguments):
        printing.print_whole(arguments, written, result, reports)
    return DONE if written else DIFFERENT


def _require_comparison(arguments: argparse.Namespace) -> None:
    """Raise RnnLowerError for arguments of a comparison if none is requested; a proof also has a seed."""
    require(arguments, "check", ("runs", "rtol", "atol") if arguments.prove else ("runs", "seed", "rtol", "atol"))


def _check(arguments: argparse.Namespace) -> int:
    from rnn_lower import api

    return _verdict(api.check(arguments.original, arguments.lowered, **comparison(arguments)), arguments)


def _prove(arguments: argparse.Namespace) -> int:
    from rnn_lower import api

    proof = api.prove(
        arguments.original, arguments.lowered, points=arguments.points, seed=arguments.seed,
        counterexample=arguments.counterexample,
    )  # fmt: skip
    return _verdict(proof, arguments)


def _verdict(report: CheckReport | Proof, arguments: argparse.Namespace) -> int:
    printing.print_report(arguments, report)
    return DONE if report.ok else DIFFERENT


def _inspect(arguments: argparse.Namespace) -> int:
    from rnn_lower import api
    from rnn_lower.targeting import find_target

    target = find_target(arguments.target) if arguments.target else None
    inputs, nodes = api.inspect_file(arguments.model, dims=_dims(arguments))
    loops = api.inspect_loops(arguments.model, dims=_dims(arguments))
    printing.print_inspected(arguments, inputs, nodes, target, loops)
    return DONE


def _report(arguments: argparse.Namespace) -> int:
    from rnn_lower import api
    from rnn_lower.modelio.files import write_text

    output = arguments.output or ("node.svg" if arguments.svg else "report.html")
    if output.endswith(".onnx"):
        raise RnnLowerError(f"-o {output}: a report is not an ONNX model; use the extension .html, or .svg with --svg")
    if os.path.isfile(output) and not _is_markup(output):
        raise RnnLowerError(f"-o {output}: this file is not a report, so it is not replaced; choose another file")
    options = _options(arguments)
    require(arguments, "svg", ("node",))
    if arguments.svg:
        if unused := next(iter(comparison(arguments)), None):
            raise RnnLowerError(
                f"--{unused} has no effect with --svg, because drawing a node does not compare models; "
                f"drop --{unused} or --svg"
            )
        text, report = api.draw(arguments.model, arguments.node, **options), None
    else:
        report = api.report(arguments.model, **comparison(arguments), **options)
        text = report.html
    write_text(text, output)
    with _stdout_for_text(output, arguments):
        printing.print_reported(arguments, output, report)
    return DONE if report is None or report.ok else DIFFERENT


def _is_markup(path: str) -> bool:
    """Whether a file is empty or seems to be HTML or SVG."""
    try:
        with open(path, "rb") as file:
            return file.read(1) in (b"", b"<")
    except OSError as error:
        raise RnnLowerError(f"-o {path}: cannot be read: {error.strerror}") from None


def _lint(arguments: argparse.Namespace) -> int:
    from rnn_lower import api

    report = api.lint(arguments.model, arguments.target, dims=_dims(arguments))
    printing.print_linted(arguments, report)
    return DONE if report.ok else DIFFERENT


def _targets(arguments: argparse.Namespace) -> int:
    from rnn_lower import api
    from rnn_lower.targeting import find_target

    if arguments.target is None:
        printing.print_targets(arguments, api.targets())
    else:
        printing.print_target(arguments, find_target(arguments.target))
    return DONE


def _kit(arguments: argparse.Namespace) -> int:
    from rnn_lower.targeting.probe.writing import write_kit

    manifest = write_kit(arguments.output, arguments.target, only=arguments.include, limit=arguments.limit)
    printing.print_kit(arguments, manifest)
    return DONE


def _kit_report(arguments: argparse.Namespace) -> int:
    from rnn_lower.modelio.files import write_text
    from rnn_lower.targeting.probe.report import report_kit

    require(arguments, "run", ("timeout",))
    if arguments.output is not None and not arguments.output.endswith(".toml"):
        raise RnnLowerError(f"-o {arguments.output}: a target file needs the extension .toml; use -o NAME.toml")
    limit = {} if arguments.timeout is None else {"timeout": arguments.timeout}
    with printing.progress(arguments.quiet, "cases") as advance:
        report = report_kit(arguments.folder, arguments.results, run=arguments.run, progress=advance, **limit)
    written = arguments.output if report.proposal else None
    if written is not None:
        write_text(report.proposal, written)
    printing.print_kit_report(arguments, written, report)
    return DONE if report.ok else DIFFERENT


COMMANDS: dict[str, Command] = {
    "lower": _lower, "stream": _stream, "unstream": _unstream, "check": _check, "prove": _prove, "raise": _raise,
    "inspect": _inspect,
    "lint": _lint, "targets": _targets, "report": _report, "kit": _kit, "kit-report": _kit_report,
}  # fmt: skip
