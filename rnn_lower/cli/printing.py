"""Print results: lines for people, JSON for programs."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx_ir as ir

    from rnn_lower.driver.lower_pass import Record
    from rnn_lower.lowering.node import RecurrentNode
    from rnn_lower.modelio.statistics import Count
    from rnn_lower.proving.report import CheckReport, Proof
    from rnn_lower.raising.inspecting import LoopInfo
    from rnn_lower.raising.raise_loops import Raised
    from rnn_lower.reporting.gathering import Report
    from rnn_lower.streaming.stream_model import StreamResult
    from rnn_lower.streaming.unstream import Whole
    from rnn_lower.targeting import Target
    from rnn_lower.targeting.lint import Finding, LintReport
    from rnn_lower.targeting.probe.manifest import Manifest
    from rnn_lower.targeting.probe.report import KitReport

SCHEMA = 1
"""The schema version of the --json output; it increases when a field is removed or its meaning changes."""

NAMES = 4
"""The maximum number of nodes that a line lists for one reason."""


def print_inspected(
    arguments: argparse.Namespace, inputs: Sequence[ir.Value], nodes: Sequence[RecurrentNode], target: Target | None,
    loops: Sequence[LoopInfo],
) -> None:  # fmt: skip
    """Print inputs, recurrent nodes and loops of a model, and whether the target runs each node correctly."""
    verdicts = [None if target is None else target.verdict(node) for node in nodes]
    if arguments.json:
        rows = [
            {**_node_row(node), **({} if verdict is None else {"native": verdict.kind, "why": verdict.why})}
            for node, verdict in zip(nodes, verdicts, strict=True)
        ]
        input_rows = [_input_row(value) for value in inputs]
        print_json({"inputs": input_rows, "nodes": rows, "loops": [dataclasses.asdict(loop) for loop in loops]})
        return
    for row in map(_input_row, inputs):
        _print(f"input {row['input']}: {row['type'] or 'any type'} {_format_shape(row['shape'])}")
    for node, verdict in zip(nodes, verdicts, strict=True):
        _print(f"{_format_node(node)}, {node.dtype.name.lower()}, {_features(node)}")
        costs = _costs(node)
        if arguments.verbose and costs["parameters"] is not None:
            _print(f"    {costs['parameters']:,} parameters, {costs['macs_per_step']:,} multiplications per step")
        for note in node.notes:
            _print(f"    {note}")
        if verdict is not None and target is not None:
            _print(f"    native on {target.name}: {verdict.kind} ({verdict.why})")
    if not nodes:
        _print(f"{arguments.model}: no RNN, GRU or LSTM node found")
    for loop in loops:
        graph = "" if loop.where == "main graph" else f" ({loop.where})"
        trips = "unknown trip count" if loop.trips is None else f"trip count {loop.trips}"
        is_node = f"; {loop.recognized}" if loop.recognized else ""
        _print(f"{loop.node}{graph}: {loop.op}, {trips}, states {', '.join(loop.states) or 'none'}{is_node}")
        if loop.mend:
            _print(f"    {loop.mend}")


def print_raised(arguments: argparse.Namespace, written: str | None, loops: Sequence[Raised]) -> None:
    """Print the result for each loop."""
    if arguments.json:
        print_json({"output": written, "loops": [dataclasses.asdict(loop) for loop in loops]})
        return
    for loop in loops:
        _print(f"{loop.name}: {loop.op_type or 'not replaced'}{f' ({loop.why})' if loop.why else ''}")
    count = sum(bool(loop.op_type) for loop in loops)
    text = (
        f"{count} of {_count(len(loops), 'loop')} proved equivalent to recurrent nodes"
        if loops
        else "the model contains no loops"
    )
    _print(f"wrote {written}: {text}" if written else f"nothing was written: {text}")


def print_linted(arguments: argparse.Namespace, report: LintReport) -> None:
    """Print the nodes that a target does not support, grouped by reason."""
    if arguments.json:
        print_json(report.data)
        return
    groups: dict[tuple[str, str], list[Finding]] = collections.defaultdict(list)
    for finding in report.findings:
        groups[finding.rule, finding.mend].append(finding)
    for (rule, mend), findings in groups.items():
        ops = {finding.op for finding in findings}
        _print(f"{', '.join(sorted(ops))}: {rule}{f'; {mend}' if mend else ''}")
        nodes = [f.node if f.where == "main graph" else f"{f.node} ({f.where})" for f in findings]
        shown = nodes if arguments.verbose else nodes[:NAMES]
        _print(f"    {_count(len(nodes), 'node')}: {', '.join(shown)}{', ...' if len(shown) < len(nodes) else ''}")
    target = f"{report.target} ({report.status})"
    if not report.findings:
        _print(f"{target} supports all {_count(report.nodes, 'node')}")
        return
    mended = sum(finding.lowering_mends for finding in report.findings)
    more = f"; lowering replaces {mended} of these nodes" if mended else ""
    _print(f"{target} does not support {len(report.findings)} of {_count(report.nodes, 'node')}{more}")


def print_kit(arguments: argparse.Namespace, kit: Manifest) -> None:
    """Print the contents of a kit."""
    if arguments.json:
        print_json({"output": arguments.output, **dataclasses.asdict(kit)})
        return
    for refused in kit.refused:
        _print(f"skipped {refused.feature} ({refused.form}): {refused.why}")
    _print(
        f"wrote {arguments.output}: {_count(len(kit.cases), 'test model')} for {_count(len(kit.features), 'feature')}"
    )


def print_kit_report(arguments: argparse.Namespace, written: str | None, report: KitReport) -> None:
    """Print the results of a runtime for a kit: each feature, the counts, and the proposed target file."""
    if arguments.json:
        print_json({"ok": report.ok, "output": written, **dataclasses.asdict(report)})
        return
    for feature, row in report.results.items():
        cells = [
            f"{form} wrong by {detail}" if state == "wrong" else f"{form} {state}"
            for form, (state, detail) in row.items()
        ]
        _print(f"{feature}: {', '.join(cells)}")
    for form in report.columns:
        _print(f"{form}: {report.count(form)}")
    for error in report.errors[:5]:
        _print(f"error: {error}")
    if report.failing:
        _print(f"operators that occur only in test models with wrong or missing outputs: {', '.join(report.failing)}")
    for feature, form in report.unexplained:
        _print(
            f"a test model of {feature} ({form}) did not return the expected outputs, although each of its "
            "operators also occurs in a test model that did"
        )
    if written:
        _print(f"wrote {written}")
    elif report.proposal:
        print(f"proposed target:\n\n{report.proposal}")
    else:
        _print(
            "no target was proposed, because no lowered test model returned the expected outputs; "
            "run rnn-lower kit with another --target"
        )


def print_lowered(
    arguments: argparse.Namespace, written: str | None, records: Sequence[Record], counts: Sequence[Count],
    reports: Sequence[CheckReport | Proof],
) -> None:  # fmt: skip
    """Print the result for each recurrent node and for the file. counts: of the model before and after lowering."""
    before, after = counts
    if arguments.json:
        rows = [_record_row(record) for record in records]
        sizes = {"before": dataclasses.asdict(before), "after": dataclasses.asdict(after)}
        print_json({"output": written, "nodes": rows, **sizes, **_report_data(reports)})
        return
    _print_records(arguments, records)
    _print_reports(arguments, reports)
    change = f"{before.nodes:,} -> {after.nodes:,} nodes, {before.shown_size} -> {after.shown_size}"
    _print(f"wrote {written}: {change}" if written else NOTHING_WRITTEN)


def print_native(target: Target, records: Sequence[Record]) -> None:
    """Print a hint if the target runs some of the lowered nodes correctly and no more slowly without lowering."""
    count = sum(target.keeps(record.node) for record in records)
    if count:
        nodes = f"{count} of {_count(len(records), 'node')}"
        kept = "it" if count == 1 else "them"
        _print(f"in tests, {target.name} ran {nodes} correctly without lowering; to keep {kept}, pass --keep-native")


NOTHING_WRITTEN = "nothing was written, because the comparison failed"


def print_streamed(
    arguments: argparse.Namespace, written: str | None, result: StreamResult, reports: Sequence[CheckReport]
) -> None:
    """Print the states of a streaming model, the chunks that it accepts, and the result for each recurrent node."""
    plan = result.plan
    states = [
        {"input": s.input, "output": s.output, "of": s.node, "first": "from the caller" if s.first is None else "known"}
        for s in plan.states
    ]
    if arguments.json:
        chunks = {
            "every": plan.every,
            "length": result.length,
            "inputs": dict(plan.inputs),
            "outputs": dict(plan.outputs),
        }
        rows = [_record_row(record) for record in result.records]
        print_json({"output": written, "states": states, **chunks, "nodes": rows, **_report_data(reports)})
        return
    for state in states:
        _print(f"state {state['input']} -> {state['output']} of {state['of']}, initial value {state['first']}")
    if states and plan.inputs:
        _print(f"chunk length: {_chunk_length(result)}")
    if result.kept:
        _print(f"{_count(result.kept, 'recurrent node')} kept")
    if result.records or not result.kept:
        _print_records(arguments, result.records)
    _print_reports(arguments, reports)
    _print(f"wrote {written}" if written else NOTHING_WRITTEN)


def _chunk_length(result: StreamResult) -> str:
    if result.length is not None:
        return _count(result.length, "frame")
    return "any" if result.plan.every == 1 else f"any multiple of {result.plan.every} frames"


def print_whole(
    arguments: argparse.Namespace, written: str | None, result: Whole, reports: Sequence[CheckReport]
) -> None:
    """Print the states that `rnn-lower unstream` moved into the model."""
    if arguments.json:
        states = [{"input": state.input, "output": state.output, "of": state.node} for state in result.plan.states]
        chunks = {"inputs": dict(result.plan.inputs), "chunk": result.chunk or None}
        print_json({"output": written, "states": states, **chunks, **_report_data(reports)})
        return
    for state in result.plan.states:
        _print(f"state {state.input} -> {state.output} is now inside the model")
    if result.chunk:
        text = "the results are not proved to be the same for other lengths"
        _print(f"the model runs in chunks of {_count(result.chunk, 'frame')}, because {text}")
    _print_reports(arguments, reports)
    _print(f"wrote {written}" if written else NOTHING_WRITTEN)


def print_reported(arguments: argparse.Namespace, written: str, report: Report | None) -> None:
    """Print the verdicts of a report; None means a drawing, which has no verdict."""
    parts = [] if report is None else [report.check, report.proof]
    if arguments.json:
        data = _report_data([part for part in parts if not isinstance(part, str)])
        print_json({"output": written, **({} if report is None else report.data), **data})
        return
    for part in parts:
        _print(part if isinstance(part, str) else part.verdict)
    _print(f"wrote {written}")


def print_targets(arguments: argparse.Namespace, targets: Sequence[Target]) -> None:
    """Print one line for each target."""
    if arguments.json:
        print_json({"targets": [_target_row(target) for target in targets]})
        return
    for target in targets:
        _print(f"{target.name}: {target.summary}")


def print_target(arguments: argparse.Namespace, target: Target) -> None:
    """Print the capabilities of one target, rule by rule."""
    if arguments.json:
        print_json({"targets": [{**_target_row(target), "rules": list(target.explained())}]})
        return
    for subject, rule in target.explained():
        _print(f"{subject}: {rule}")


def print_report(arguments: argparse.Namespace, report: CheckReport | Proof) -> None:
    """Print the result of a check or a proof; the verdict is the last line."""
    if arguments.json:
        print_json(_data(report))
        return
    _print_reports(arguments, [report])


def print_json(data: dict[str, Any]) -> None:
    print(json.dumps(_finite({"schema": SCHEMA, **data}), allow_nan=False))


def one_line(text: str) -> str:
    """Return the text as one line with control characters escaped; names in a model may contain both."""
    return escape_controls(" ".join(text.split()))


def escape_controls(text: str) -> str:
    """Escape each control character, so that no name can control a terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def _print(text: str) -> None:
    print(escape_controls(text.replace("\n", "\\n")))


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _finite(data: Any) -> Any:
    """Replace infinity and NaN, which JSON does not have, with null."""
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def _format_node(node: RecurrentNode) -> str:
    """Format name, operator and sizes of a recurrent node."""
    sizes = (("T", node.seq_length), ("N", node.batch_size), ("I", node.input_size), ("H", node.hidden_size))
    graph = "" if node.path == "main graph" else f" ({node.path})"
    known = " ".join(f"{letter}={'?' if size is None else size}" for letter, size in sizes)
    return f"{node.name}{graph}: {node.op_type}-{node.version}, {known}"


def _features(node: RecurrentNode) -> str:
    words = [node.direction]
    words += [name for name in node.inputs if name not in ("X", "W", "R")]
    words += [f"layout {node.layout}"] if node.layout else []
    words += ["linear_before_reset"] if node.linear_before_reset else []
    words += ["input_forget"] if node.input_forget else []
    words += [f"clip {node.clip:g}"] if node.clip is not None else []
    words.append("/".join("-".join(a.name for a in functions) for functions in node.activations))
    return f"{', '.join(words)} -> {', '.join(node.outputs) or 'nothing'}"


def _input_row(value: ir.Value) -> dict[str, Any]:
    shape = None if value.shape is None else [dim if isinstance(dim, int) else dim.value for dim in value.shape]
    dtype = None if value.dtype is None else value.dtype.name.lower()
    return {"input": value.name, "type": dtype, "shape": shape}


def _format_shape(shape: Sequence[int | str | None] | None) -> str:
    return "of any shape" if shape is None else f"[{', '.join('?' if dim is None else str(dim) for dim in shape)}]"


def _node_row(node: RecurrentNode) -> dict[str, Any]:
    return {
        "node": node.name, "where": node.path, "op": f"{node.op_type}-{node.version}",
        "sizes": {name: getattr(node, name) for name in ("seq_length", "batch_size", "input_size", "hidden_size")},
        "type": node.dtype.name.lower(), "features": _features(node), "notes": list(node.notes), **_costs(node),
    }  # fmt: skip


def _costs(node: RecurrentNode) -> dict[str, int | None]:
    """Return the parameters of a node and its products per step of one row, over all directions; None if unknown."""
    D, G, H, I = node.num_directions, node.operator.gates, node.hidden_size, node.input_size  # noqa: E741
    if not isinstance(I, int):
        return {"parameters": None, "macs_per_step": None}
    products, rest = D * G * H * (I + H), 2 * G * ("B" in node.inputs) + 3 * ("P" in node.inputs)
    return {"parameters": products + D * H * rest, "macs_per_step": products}


def _record_row(record: Record) -> dict[str, Any]:
    row = {**_node_row(record.node), "form": record.form, "nodes": record.emitted, "why": record.why}
    return {**row, "warning": record.warning} if record.warning else row


def _print_records(arguments: argparse.Namespace, records: Sequence[Record]) -> None:
    if not records:
        kept = arguments.keep_native or getattr(arguments, "include", ()) or getattr(arguments, "exclude", ())
        _print("no RNN, GRU or LSTM node was lowered" if kept else "there is no RNN, GRU or LSTM node to lower")
    for record in records:
        why = f" ({record.why})" if arguments.verbose and record.why else ""
        _print(f"{_format_node(record.node)} -> {record.form}{why}, {_count(record.emitted, 'node')}")


def _target_row(target: Target) -> dict[str, Any]:
    return {"name": target.name, "summary": target.summary, "status": target.status, "source": target.source}


def _report_data(reports: Iterable[CheckReport | Proof]) -> Mapping[str, Any]:
    return {report.kind: {"schema": SCHEMA, **_data(report)} for report in reports}


def _data(report: CheckReport | Proof) -> dict[str, Any]:
    return {"ok": report.ok, **report.summary, **dataclasses.asdict(report)}


def _print_reports(arguments: argparse.Namespace, reports: Sequence[CheckReport | Proof]) -> None:
    wanted = getattr(arguments, "counterexample", None)
    is_lacking = wanted and not all(report.ok for report in reports)
    is_lacking = is_lacking and not any(getattr(report, "counterexample", "") for report in reports)
    for number, report in enumerate(reports, 1):
        for line in report.lines(arguments.verbose):
            _print(line)
        if is_lacking and number == len(reports):
            _print(f"no inputs were found for which the outputs differ, so {wanted} was not written")
        _print(report.verdict)


class progress:
    """A progress bar on stderr, if stderr is a terminal and the bar is wanted."""

    def __init__(self, quiet: bool = False, what: str = "writing weights") -> None:
        self._quiet, self._what = quiet, what

    def __enter__(self) -> Callable[[str, int, int], None] | None:
        self._bar: Any = None
        if self._quiet or not sys.stderr.isatty():
            return None
        from rich.console import Console
        from rich.progress import Progress

        self._bar = Progress(console=Console(stderr=True), transient=True)
        self._bar.start()
        self._task = self._bar.add_task(self._what, total=None)
        return self._advance

    def _advance(self, name: str, index: int, total: int) -> None:
        self._bar.update(self._task, completed=index, total=total or None)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
