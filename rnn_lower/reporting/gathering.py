"""The content of a report on a model: how it is lowered, whether the result is correct, and where it runs."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from rnn_lower.checking import checker
from rnn_lower.checking.subprocess_run import run_guarded
from rnn_lower.driver.lower_pass import Record, lower_document, lower_unadvised, prepared
from rnn_lower.driver.plan import read_nodes
from rnn_lower.driver.suggestions import unlogged
from rnn_lower.errors import RnnLowerError
from rnn_lower.ir.walk import opset_of, output_names, with_bodies
from rnn_lower.lowering.node import RecurrentNode
from rnn_lower.modelio import files
from rnn_lower.modelio.document import Document
from rnn_lower.modelio.statistics import Count, count
from rnn_lower.options import ATOL, RTOL, Dims, Options
from rnn_lower.proving import prover
from rnn_lower.proving.report import CheckReport, NodeProof, Proof
from rnn_lower.raising.raise_loops import raised_document
from rnn_lower.reporting import drawing, page, steps
from rnn_lower.targeting import TARGETS
from rnn_lower.targeting.native_support import features
from rnn_lower.validation import check_numbers, check_texts

Failed = str
"""The reason why there is no result; it takes the place of the result."""

MOST_SECONDS = 10
"""The time to look for options that make refused lowerings work; each trial lowers the model many times."""

P = ParamSpec("P")
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Runtime:
    """One runtime and one node. native, why: whether it runs the node correctly without lowering.  lowers: whether
    lowering for it succeeds.  lowered: the result of lowering, or why it fails and the remedy.
    """

    name: str
    status: str
    native: str
    why: str
    lowered: str
    lowers: bool


@dataclasses.dataclass(frozen=True)
class NodeResult:
    """One recurrent node. proof: None if it was not proved.  steps: None if the node is in a body."""

    node: RecurrentNode
    proof: NodeProof | None
    steps: steps.Steps | None


@dataclasses.dataclass(frozen=True)
class Kind:
    """Equal nodes: with the same operator, version, sizes and features, lowered in the same way.

    operators: counts of the emitted operators.  drawings: SVG of the first node, before and after.
    """

    record: Record
    ones: tuple[NodeResult, ...]
    operators: Mapping[str, int]
    drawings: tuple[str, ...]
    runtimes: tuple[Runtime, ...]

    @property
    def node(self) -> RecurrentNode:
        return self.record.node

    @property
    def features(self) -> list[str]:
        return features(self.node)

    @property
    def native(self) -> dict[str, list[str]]:
        """The runtimes, grouped by whether they run the node natively."""
        return _grouped((runtime.native, runtime.name) for runtime in self.runtimes)

    @property
    def lowered(self) -> dict[str, list[str]]:
        """The runtimes for which lowering succeeds, grouped by the result."""
        return _grouped((runtime.lowered, runtime.name) for runtime in self.runtimes if runtime.lowers)

    @property
    def refused(self) -> dict[str, list[str]]:
        """The runtimes for which lowering fails, grouped by the reason."""
        return _grouped((runtime.lowered, runtime.name) for runtime in self.runtimes if not runtime.lowers)

    @property
    def data(self) -> dict[str, Any]:
        """The JSON output."""
        return {
            "op": f"{self.node.op_type}-{self.node.version}", "form": self.record.form, "nodes": self.record.emitted,
            "operators": dict(self.operators), "runtimes": [dataclasses.asdict(item) for item in self.runtimes],
            "alike": [
                {
                    "node": item.node.name, "where": item.node.path, "proof": item.proof and item.proof.verdict,
                    "errors": item.steps and list(item.steps.errors),
                }
                for item in self.ones
            ],
        }  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Report:
    """The results of `rnn_lower.report`. html: the page.

    If a result could not be determined, a text with the reason takes its place. kept: recurrent nodes that were not
    lowered.
    """

    name: str
    opset: int
    target: str | None
    kinds: tuple[Kind, ...]
    kept: tuple[RecurrentNode, ...]
    before: Count
    after: Count
    check: CheckReport | Failed
    proof: Proof | Failed
    outputs: tuple[steps.Steps, ...]

    @property
    def count(self) -> int:
        """The number of lowered nodes."""
        return sum(len(kind.ones) for kind in self.kinds)

    @property
    def proved(self) -> int:
        """The number of proved nodes."""
        return 0 if isinstance(self.proof, str) else sum(node.ok for node in self.proof.nodes)

    @property
    def ok(self) -> bool:
        """Whether no difference was found and no node is a different function."""
        return all(isinstance(result, str) or result.ok for result in (self.check, self.proof))

    @property
    def data(self) -> dict[str, Any]:
        """The JSON output."""
        return {
            "ok": self.ok, "opset": self.opset, "target": self.target,
            "before": dataclasses.asdict(self.before), "after": dataclasses.asdict(self.after),
            "kinds": [kind.data for kind in self.kinds], "kept": [node.describe() for node in self.kept],
            "outputs": [dataclasses.asdict(output) for output in self.outputs],
        }  # fmt: skip

    @property
    def html(self) -> str:
        """One self-contained page."""
        return page.render(self)


@dataclasses.dataclass(frozen=True)
class CheckOptions:
    """The options of the comparison, as for `rnn_lower.check`."""

    inputs: Any = None
    runs: int = 3
    seed: int = 0
    rtol: float = RTOL
    atol: float = ATOL

    def __post_init__(self) -> None:
        check_numbers(seed=self.seed, runs=self.runs, rtol=self.rtol, atol=self.atol)


def gather(model: Any, options: Options, ask: CheckOptions) -> Report:
    """See `rnn_lower.report`."""
    document, path = files.open_model(model)
    with tempfile.TemporaryDirectory(prefix="rnn_lower_") as scratch:
        folder = Path(scratch)
        lowered = folder / "lowered.onnx"
        original = Path(path) if path else _written(document.copied(), folder / "original.onnx")
        ready, remaining = prepared(document.copied(), options)
        before = ready.copied()
        original_nodes = {(node.name, node.path): node for node in read_nodes(before.model, before.shape_info)}
        records = lower_document(ready, remaining)
        drawings = [_drawings(group[0]) for group in _equal_records(records)]
        _written(ready, lowered, remaining.dims)
        over_time = _run_guarded(path, steps.by_time_step, original, lowered, ask.inputs, ask.seed)
        check = _run_guarded(
            path, checker.compare_models, original, lowered, ask.inputs, ask.runs, ask.seed, ask.rtol, ask.atol,
            exact=True,
        )  # fmt: skip
        proof = _or_reason(lambda: prover.prove_models(original, lowered, 2, ask.seed, raised=raised_document))
        after = files.load(lowered)
        native, size = tuple(read_nodes(after.model, after.shape_info)), count(after.proto)  # its data is temporary
    proofs = {} if isinstance(proof, str) else {(node.path, node.outputs): node for node in proof.nodes}
    of_nodes = {} if isinstance(over_time, str) else over_time.nodes
    trials = {name: _trial(document, options, name) for name in TARGETS}
    mends = _mends(document, options, trials)
    kinds = []
    for group, drawn in zip(_equal_records(records), drawings, strict=True):
        sites = [(record.node.name, record.node.path) for record in group]
        originals = [original_nodes[site] for site in sites]
        held = [proofs.get((node.path, output_names(node.node))) for node in originals]
        ones = tuple(map(NodeResult, originals, held, map(of_nodes.get, sites)))
        runtimes = tuple(_runtime(name, ones, trials[name], mends.get(name, "")) for name in TARGETS)
        kinds.append(Kind(group[0], ones, _operators(group[0]), drawn, runtimes))
    return Report(
        name=Path(path).name if path else document.model.graph.name or "model",
        opset=opset_of(document.proto) or 0, target=options.target, kinds=tuple(kinds),
        kept=native, before=count(document.proto), after=size,
        check=check, proof=proof, outputs=() if isinstance(over_time, str) else over_time.outputs,
    )  # fmt: skip


def draw(model: Any, name: str | None, options: Options) -> str:
    """See `rnn_lower.draw`."""
    check_texts(node=name)
    document, _ = files.open_model(model)
    names = [node.name for node in read_nodes(document.model, document.shape_info)]
    if name is None and len(names) != 1:
        choice = f"a drawing shows only one node; pass --node NAME with one of {', '.join(map(repr, names[:5]))}"
        raise RnnLowerError(choice if names else "there is no RNN, GRU or LSTM node to draw")
    if name is not None and name not in names:
        near = difflib.get_close_matches(name, names, 3, 0.4) or names[:3]
        text = f"; names in the model include {', '.join(map(repr, near))}" if near else ""
        raise RnnLowerError(f"--node {name}: no RNN, GRU or LSTM node has this name{text}")
    wanted = dataclasses.replace(options, select=lambda node: node.name == (name or names[0]))
    record = lower_document(*prepared(document.copied(), wanted))[0]
    return drawing.standalone(drawing.picture(record.node, record.nodes))


def _written(document: Document, path: Path, dims: Dims | None = None) -> Path:
    with files.staged(document, path, dims=dims) as staged:
        staged.commit()
    return path


def _drawings(record: Record) -> tuple[str, ...]:
    return tuple(drawing.picture(record.node, record.nodes, [side]) for side in drawing.SIDES)


def _or_reason(work: Callable[[], T]) -> T | Failed:
    try:
        return work()
    except RnnLowerError as error:
        return str(error)


def _run_guarded(model: Any, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T | Failed:
    return _or_reason(lambda: run_guarded(model, None, work, *arguments, **named))


def _grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Pairs grouped by their first item, the largest group first."""
    groups: dict[str, list[str]] = {}
    for reason, name in pairs:
        groups.setdefault(reason, []).append(name)
    return dict(sorted(groups.items(), key=lambda group: -len(group[1])))


def _equal_records(records: Sequence[Record]) -> list[list[Record]]:
    """The records grouped by equal kinds of nodes."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        node = record.node
        sizes = (node.seq_length, node.batch_size, node.input_size, node.hidden_size)
        config = (node.op_type, node.version, node.direction, node.dtype, node.activations, node.clip, node.layout)
        flags = (node.linear_before_reset, node.input_forget, node.notes, record.form, record.emitted)
        groups.setdefault((sizes, config, flags, *node.inputs, "->", *node.outputs), []).append(record)
    return list(groups.values())


def _operators(record: Record) -> dict[str, int]:
    return dict(Counter(node.op_type for node in with_bodies(record.nodes)).most_common())


def _trial(document: Document, options: Options, target: str) -> dict[tuple[str, str], Record] | Failed:
    """The records of lowering for a runtime, or the reason why it fails."""
    try:
        with unlogged():
            ready, remaining = prepared(document.again(), _for_target(options, target))
            return {(record.node.name, record.node.path): record for record in lower_unadvised(ready, remaining)}
    except RnnLowerError as error:
        return str(error)


def _lowered(document: Document, options: Options) -> list[Record]:
    return lower_document(*prepared(document.again(), options))


def _for_target(options: Options, target: str) -> Options:
    return dataclasses.replace(options, form="auto", target=target, opset=None, keep_native=False)


def _mends(document: Document, options: Options, trials: Mapping[str, object]) -> dict[str, str]:
    """The options that would make a refused lowering work, by runtime; equal reasons share a trial.

    After MOST_SECONDS, the texts name the command that looks for such options.
    """
    answers: dict[str, str] = {}
    deadline = time.monotonic() + MOST_SECONDS
    mends: dict[str, str] = {}
    for target, refusal in trials.items():
        if isinstance(refusal, str):
            reason = refusal.replace(f"target {target}", "it")
            if reason not in answers and time.monotonic() > deadline:
                mends[target] = f"run rnn-lower lower --target {target} to find options that work"
                continue
            if reason not in answers:
                text = _or_reason(functools.partial(_lowered, document, _for_target(options, target)))
                answers[reason] = str(text).removeprefix(f"{refusal}; ")
            mends[target] = answers[reason]
    return mends


def _runtime(
    name: str, ones: Sequence[NodeResult], trial: dict[tuple[str, str], Record] | Failed, mend: str
) -> Runtime:
    target, node = TARGETS[name], ones[0].node
    verdict = target.verdict(node)
    native = (name, target.status, verdict.kind, verdict.why)
    if isinstance(trial, str):
        for one in ones:
            trial = trial.replace(f"{one.node.describe()}: ", "")
        return Runtime(*native, f"{trial.replace(f'target {name}', 'the target')}; {mend}", False)
    record = trial.get((node.name, node.path))
    if record is None:
        return Runtime(*native, "the loop of this node is unrolled", True)
    return Runtime(*native, f"{record.emitted:,} nodes, {record.form}", True)
