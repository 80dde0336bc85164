"""What the command line prints: tables for people, JSON for programs."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx_ir as ir

    from rnn_lower.driver.lower_pass import Record
    from rnn_lower.lowering.node import RecurrentNode
    from rnn_lower.modelio.statistics import Count
    from rnn_lower.proving.report import CheckReport, Proof
    from rnn_lower.reporting.gathering import Report
    from rnn_lower.streaming.making import Made
    from rnn_lower.streaming.whole import Whole
    from rnn_lower.targets import Target
    from rnn_lower.targets.lint import LintReport
    from rnn_lower.targets.native_support import Verdict
    from rnn_lower.targets.probe.report import KitReport

SCHEMA = 1
"""Of what --json prints; a field that is removed, or means something else, makes another number."""


def print_inspected(
    as_json: bool, model: str, inputs: Sequence[ir.Value], nodes: Sequence[RecurrentNode],
    verdict: Callable[[RecurrentNode], Verdict] | None = None,
) -> None:  # fmt: skip
    """What `rnn-lower inspect` has found. verdict: whether a runtime runs a node right as it is."""
    rows = [_node_row(node) for node in nodes]
    if verdict is not None:
        rows = [
            {**row, "as it is": found.kind, "why": found.why}
            for row, found in zip(rows, map(verdict, nodes), strict=True)
        ]
    takes = [_input_row(value) for value in inputs]
    if as_json:
        print_json({"schema": SCHEMA, "inputs": takes, "nodes": rows})
        return
    shown = [{**row, "shape": _shown_shape(row["shape"])} for row in takes]
    _print_table(f"{model}: inputs", shown, ["input", "type", "shape"])
    if not rows:
        print(f"{model}: no RNN, GRU or LSTM node")
    else:
        shown = [
            {
                **row, "sizes": _shown_sizes(row["sizes"]), "notes": "; ".join(row["notes"]),
                **{name: "?" if row[name] is None else f"{row[name]:,}" for name in ("parameters", "macs_per_step")},
            }
            for row in rows
        ]  # fmt: skip
        columns = ["node", "where", "op", "sizes", "type", "parameters", "macs_per_step", "features", "notes"]
        _print_table("recurrent nodes", shown, columns if verdict is None else [*columns[:3], "as it is", "why"])


def print_linted(as_json: bool, model: str, report: LintReport) -> None:
    """What `rnn-lower lint` has found."""
    if as_json:
        print_json({"schema": SCHEMA, **report.data})
        return
    rows = [dataclasses.asdict(finding) for finding in report.findings]
    if rows:
        _print_table(f"{model}: not taken by {report.target}", rows, ["node", "where", "op", "rule", "mend"])
    mended = sum(finding.lowering_mends for finding in report.findings)
    told = f"{len(rows)} of {report.nodes} nodes are not taken by {report.target} ({report.status})"
    print(f"{told}, of which lowering mends {mended}" if rows else told)


def print_kit(as_json: bool, written: str | None, report: KitReport) -> None:
    """What `rnn-lower kit-report` has found: the table, the counts, and the target's file that follows."""
    if as_json:
        print_json({"schema": SCHEMA, "ok": report.ok, "output": written, **dataclasses.asdict(report)})
        return
    rows = [
        {"feature": feature, **{form: found[1] if found[0] == "wrong" else found[0] for form, found in row.items()}}
        for feature, row in report.results.items()
    ]
    columns = ["feature", *report.columns]
    blank = dict.fromkeys(columns, "")
    title = "a number is the largest absolute difference of a silently wrong result"
    _print_table(title, [{**blank, **row} for row in rows], columns)
    for form in report.columns:
        print(f"{form}: {report.count(form)}")
    for told in report.errors[:5]:
        print(f"error: {told}")
    if report.failing:
        print(f"only in models that failed: {', '.join(report.failing)}")
    for feature, form in report.unexplained:
        print(f"no operator explains why this failed: {feature} ({form})")
    if written:
        print(f"wrote {written}")
    else:
        nothing = "no target is proposed: nothing that was lowered came out right; try a kit for another target"
        print(f"proposed target:\n\n{report.proposal}" if report.proposal else nothing)


def print_lowered(
    as_json: bool, written: str | None, records: Sequence[Record], counts: Sequence[Count],
    reports: Sequence[CheckReport | Proof],
) -> None:  # fmt: skip
    """What `rnn-lower lower` has made. counts: of the model before and after."""
    before, after = counts
    if as_json:
        result: dict[str, Any] = {
            "schema": SCHEMA,
            "output": written,
            "nodes": [_record_row(record) for record in records],
            "before": dataclasses.asdict(before),
            "after": dataclasses.asdict(after),
        }
        result.update({report.kind: report_data(report) for report in reports})
        print_json(result)
    else:
        _print_records(records, written)
        told = [f"{count.nodes:,} nodes, {count.shown_size}" for count in counts]
        print(" -> ".join(told))
        for report in reports:
            print_report(report)


def print_streamed(as_json: bool, written: str | None, made: Made, reports: Sequence[CheckReport]) -> None:
    """What `rnn-lower stream` has made: the states, the chunks that it takes, and what became of recurrent nodes."""
    states = [
        {"input": s.input, "output": s.output, "of": s.node, "first": "the caller's" if s.first is None else "known"}
        for s in made.plan.states
    ]
    if as_json:
        result: dict[str, Any] = {"schema": SCHEMA, "output": written, "states": states, "every": made.plan.every}
        result |= {"inputs": dict(made.plan.inputs), "outputs": dict(made.plan.outputs)}
        result |= {"nodes": [_record_row(record) for record in made.records]}
        print_json({**result, **{report.kind: report_data(report) for report in reports}})
        return
    if states:
        _print_table(f"states; chunks of a multiple of {made.plan.every} frames", states, list(states[0]))
    if made.kept:
        print(f"{made.kept} recurrent node(s) stay as they are")
    _print_records(made.records, written, quiet=bool(made.kept))
    for report in reports:
        print_report(report)


def print_whole(as_json: bool, written: str | None, made: Whole, reports: Sequence[CheckReport]) -> None:
    """What `rnn-lower unstream` has made."""
    states = [{"input": state.input, "output": state.output, "of": state.node} for state in made.plan.states]
    if as_json:
        result = {"schema": SCHEMA, "output": written, "states": states, "inputs": dict(made.plan.inputs)}
        print_json({**result, **{report.kind: report_data(report) for report in reports}})
        return
    _print_table("states that are inside now", states, list(states[0]))
    print(f"wrote {written}" if written else "nothing written: the models were not seen to be the same")
    for report in reports:
        print_report(report)


def print_reported(as_json: bool, written: str, report: Report | None) -> None:
    """What `rnn-lower report` has written; of a drawing there is nothing more to tell."""
    if as_json:
        reports = [] if report is None else [one for one in (report.check, report.proof) if not isinstance(one, str)]
        found = {} if report is None else {**report.data, **{one.kind: report_data(one) for one in reports}}
        print_json({"schema": SCHEMA, "output": written, **found})
        return
    for one in () if report is None else (report.check, report.proof):
        print(one if isinstance(one, str) else one.verdict)
    print(f"wrote {written}")


def print_targets(as_json: bool, targets: Sequence[Target], explained: bool) -> None:
    """What the runtimes take, in a line each, or one of them in full."""
    lines = {target.name: list(target.explained()) if explained else [] for target in targets}
    if as_json:
        rows = [
            {
                "name": one.name,
                "summary": one.summary,
                "status": one.status,
                "source": one.source,
                "told": lines[one.name],
            }
            for one in targets
        ]
        print_json({"schema": SCHEMA, "targets": rows})
        return
    for target in targets:
        for told, what in lines[target.name] or [(target.name, target.summary)]:
            print(f"{told}: {what}")


def print_json(data: Any) -> None:
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


def _input_row(value: ir.Value) -> dict[str, Any]:
    shape = None if value.shape is None else [dim if isinstance(dim, int) else dim.value for dim in value.shape]
    dtype = None if value.dtype is None else value.dtype.name.lower()
    return {"input": value.name, "type": dtype, "shape": shape}


def _shown_shape(shape: Sequence[int | str | None] | None) -> str:
    return "any" if shape is None else f"[{', '.join('?' if dim is None else str(dim) for dim in shape)}]"


def _node_row(node: RecurrentNode) -> dict[str, Any]:
    return {
        "node": node.name, "where": node.path, "op": f"{node.op_type}-{node.version}",
        "sizes": {name: getattr(node, name) for name in ("seq_length", "batch_size", "input_size", "hidden_size")},
        "type": node.dtype.name.lower(), "features": _features(node), "notes": list(node.notes), **_costs(node),
    }  # fmt: skip


def _costs(node: RecurrentNode) -> dict[str, int | None]:
    """Numbers that the node is made of, and products of a step of one row, of all directions; None: size unknown."""
    D, G, H, I = node.num_directions, node.operator.gates, node.hidden_size, node.input_size  # noqa: E741
    if not isinstance(I, int):
        return {"parameters": None, "macs_per_step": None}
    products, rest = D * G * H * (I + H), 2 * G * ("B" in node.inputs) + 3 * ("P" in node.inputs)
    return {"parameters": products + D * H * rest, "macs_per_step": products}


def _record_row(record: Record) -> dict[str, Any]:
    row = {**_node_row(record.node), "form": record.form, "nodes": record.emitted, "why": record.why}
    return {**row, "warning": record.warning} if record.warning else row


def _print_records(records: Sequence[Record], output: str | None, quiet: bool = False) -> None:
    """quiet: that there is nothing to lower was said."""
    if not records and not quiet:
        print("no RNN, GRU or LSTM node to lower")
    elif records:
        rows = [{**row, "sizes": _shown_sizes(row["sizes"])} for row in map(_record_row, records)]
        _print_table("lowered", rows, ["node", "where", "op", "sizes", "form", "why", "nodes"])
    print(f"wrote {output}" if output else "nothing written: the models were not seen to be the same")


def report_data(report: CheckReport | Proof) -> dict[str, Any]:
    return {"schema": SCHEMA, "ok": report.ok, **report.summary, **dataclasses.asdict(report)}


def print_report(report: CheckReport | Proof) -> None:
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


class progress:
    """A progress bar on stderr, when someone is looking and wants it."""

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
