"""All that a report tells of a model, found out by the other wings: what it becomes, is it right, what it costs."""

from __future__ import annotations

import dataclasses
import difflib
import logging
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from rnn_lower.asked import check_numbers, check_texts
from rnn_lower.checking import checker
from rnn_lower.checking.outliving import outlived
from rnn_lower.driver.lower_pass import Record, lower_document, lower_unadvised, prepared
from rnn_lower.driver.plan import read_nodes
from rnn_lower.errors import RnnLowerError
from rnn_lower.ir.walk import opset_of, subgraphs
from rnn_lower.lowering.node import RecurrentNode
from rnn_lower.modelio import files
from rnn_lower.modelio.document import Document
from rnn_lower.modelio.statistics import Count, count
from rnn_lower.options import Dims, Options
from rnn_lower.proving import prover
from rnn_lower.proving.report import CheckReport, NodeProof, Proof
from rnn_lower.reporting import drawing, page, steps, timing
from rnn_lower.targeting import TARGETS
from rnn_lower.targeting.native_support import features

Failed = str
"""Why something could not be found out, in words, in place of it."""

FOLDED = "not proved: folding constants changes all of the model"

P = ParamSpec("P")
T = TypeVar("T")
logger = logging.getLogger("rnn_lower")


@dataclasses.dataclass(frozen=True)
class Runtime:
    """A runtime and one node. as_it_is, why: the verdict.  lowered: what lowering for it takes, or why it is not."""

    name: str
    status: str
    as_it_is: str
    why: str
    lowered: str
    lowers: bool


@dataclasses.dataclass(frozen=True)
class One:
    """One recurrent node. proof: None where it was not proved.  steps: None where it lies in a body."""

    node: RecurrentNode
    proof: NodeProof | None
    steps: steps.Steps | None


@dataclasses.dataclass(frozen=True)
class Kind:
    """Nodes alike: of one operator and version, with the same sizes and features, lowered in the same way.

    operators: what each of them becomes.  drawings: SVG of the first, before and after.
    """

    record: Record
    ones: tuple[One, ...]
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
    def data(self) -> dict[str, Any]:
        """What `--json` prints of it."""
        return {
            "op": f"{self.node.op_type}-{self.node.version}", "form": self.record.form, "nodes": self.record.emitted,
            "operators": dict(self.operators), "runtimes": [dataclasses.asdict(one) for one in self.runtimes],
            "alike": [
                {
                    "node": one.node.name, "where": one.node.path, "proof": one.proof and one.proof.verdict,
                    "errors": one.steps and list(one.steps.errors),
                }
                for one in self.ones
            ],
        }  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Report:
    """What `rnn_lower.report` has found out. html: the page.

    What could not be found out is a text that says why. kept: recurrent nodes that were left as they are.
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
    times: tuple[timing.Timing, timing.Timing] | Failed

    @property
    def count(self) -> int:
        """Lowered nodes."""
        return sum(len(kind.ones) for kind in self.kinds)

    @property
    def proved(self) -> int:
        """Nodes that are proved."""
        return 0 if isinstance(self.proof, str) else sum(node.ok for node in self.proof.nodes)

    @property
    def ok(self) -> bool:
        """Whether no difference was found, and no node that is another function."""
        return all(isinstance(found, str) or found.ok for found in (self.check, self.proof))

    @property
    def data(self) -> dict[str, Any]:
        """What `--json` prints of it."""
        times = None if isinstance(self.times, str) else [dataclasses.asdict(one) for one in self.times]
        return {
            "ok": self.ok, "opset": self.opset, "target": self.target,
            "before": dataclasses.asdict(self.before), "after": dataclasses.asdict(self.after), "times": times,
            "kinds": [kind.data for kind in self.kinds], "kept": [node.describe() for node in self.kept],
            "outputs": [dataclasses.asdict(one) for one in self.outputs],
        }  # fmt: skip

    @property
    def html(self) -> str:
        """One self-contained page."""
        return page.render(self)


@dataclasses.dataclass(frozen=True)
class Ask:
    """How the models are compared; as for `rnn_lower.check`."""

    inputs: Any = None
    runs: int = 3
    seed: int = 0
    rtol: float = 1e-3
    atol: float = 1e-5
    allow_unreached: bool = False

    def __post_init__(self) -> None:
        check_numbers(seed=self.seed, runs=self.runs, rtol=self.rtol, atol=self.atol)


def gather(model: Any, options: Options, ask: Ask) -> Report:
    """See `rnn_lower.report`."""
    document, path = files.open_model(model)
    with tempfile.TemporaryDirectory(prefix="rnn_lower_") as made:
        folder = Path(made)
        lowered = folder / "lowered.onnx"
        original = Path(path) if path else _written(document.copied(), folder / "original.onnx")
        as_it_is = {(node.name, node.path): node for node in read_nodes(document.model, document.facts)}
        ready, left = prepared(document.copied(), options)
        records = lower_document(ready, left)
        drawings = [_drawings(group[0]) for group in _alike(records)]
        _written(ready, lowered, left.dims)
        check = _outlived(
            path, checker.compare_models, original, lowered, ask.inputs, ask.runs, ask.seed, ask.rtol, ask.atol,
            ask.allow_unreached, exact=True,
        )  # fmt: skip
        proof = FOLDED if options.fold else _or_why(lambda: prover.prove_models(original, lowered, 2, ask.seed))
        over_time = _outlived(path, steps.by_time_step, original, lowered, ask.inputs, ask.seed)
        times = over_time if isinstance(over_time, str) else _outlived(path, _times, original, lowered, over_time)
        after = files.load(lowered)
        kept, size = tuple(read_nodes(after.model, after.facts)), count(after.proto)  # while its data is there
    proofs = {} if isinstance(proof, str) else {(node.name, node.path): node for node in proof.nodes}
    of_nodes = {} if isinstance(over_time, str) else over_time.nodes
    trials = {name: _trial(document, options, name) for name in TARGETS}
    kinds = []
    for group, drawn in zip(_alike(records), drawings, strict=True):
        places = [(record.node.name, record.node.path) for record in group]
        ones = tuple(One(as_it_is[place], proofs.get(place), of_nodes.get(place)) for place in places)
        runtimes = tuple(_runtime(name, ones, trials[name]) for name in TARGETS)
        kinds.append(Kind(group[0], ones, _operators(group[0]), drawn, runtimes))
    return Report(
        name=Path(path).name if path else document.model.graph.name or "model",
        opset=opset_of(document.proto) or 0, target=options.target, kinds=tuple(kinds),
        kept=kept, before=count(document.proto), after=size,
        check=check, proof=proof, outputs=() if isinstance(over_time, str) else over_time.outputs, times=times,
    )  # fmt: skip


def draw(model: Any, name: str | None, options: Options) -> str:
    """See `rnn_lower.draw`."""
    check_texts(node=name)
    document, _ = files.open_model(model)
    names = [node.name for node in read_nodes(document.model, document.facts)]
    if name is None and len(names) != 1:
        told = f"one of {', '.join(map(repr, names[:5]))}" if names else "but there is no RNN, GRU or LSTM node"
        raise RnnLowerError(f"a drawing is of one node; name it with --node, {told}")
    if name is not None and name not in names:
        near = difflib.get_close_matches(name, names, 3, 0.4) or names[:3]
        told = f"; there are {', '.join(map(repr, near))}" if near else ""
        raise RnnLowerError(f"--node {name}: no RNN, GRU or LSTM node is called so{told}")
    wanted = dataclasses.replace(options, select=lambda node: node.name == (name or names[0]))
    record = lower_document(*prepared(document.copied(), wanted))[0]
    return drawing.standalone(drawing.picture(record.node, record.nodes))


def _written(document: Document, path: Path, dims: Dims | None = None) -> Path:
    with files.staged(document, path, dims=dims) as made:
        made.commit()
    return path


def _drawings(record: Record) -> tuple[str, ...]:
    return tuple(drawing.picture(record.node, record.nodes, [side]) for side in drawing.SIDES)


def _or_why(work: Callable[[], T]) -> T | Failed:
    try:
        return work()
    except RnnLowerError as error:
        return str(error)


def _outlived(model: Any, work: Callable[P, T], *given: P.args, **named: P.kwargs) -> T | Failed:
    return _or_why(lambda: outlived(model, None, work, *given, **named))


def _times(original: Path, lowered: Path, over_time: steps.OverTime) -> tuple[timing.Timing, timing.Timing]:
    folder = lowered.parent
    return timing.time_model(original, over_time.inputs, folder), timing.time_model(lowered, over_time.inputs, folder)


def _alike(records: Sequence[Record]) -> list[list[Record]]:
    """Records in groups of nodes of which one tells what all of them are."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        node = record.node
        sizes = (node.seq_length, node.batch_size, node.input_size, node.hidden_size)
        says = (node.op_type, node.version, node.direction, node.dtype, node.activations, node.clip, node.layout)
        flags = (node.linear_before_reset, node.input_forget, node.notes, record.form, record.emitted)
        groups.setdefault((sizes, says, flags, *node.inputs, "->", *node.outputs), []).append(record)
    return list(groups.values())


def _operators(record: Record) -> dict[str, int]:
    found: Counter[str] = Counter()
    waiting = list(record.nodes)
    while waiting:
        node = waiting.pop()
        found[node.op_type] += 1
        waiting += [inner for _, body in subgraphs(node) for inner in body]
    return dict(found.most_common())


def _trial(document: Document, options: Options, target: str) -> dict[tuple[str, str], Record] | Failed:
    """The model lowered for a runtime, by node, or why it is not."""
    asked = dataclasses.replace(options, form="auto", target=target, opset=None, keep_native=False)
    logger.disabled = True  # what would be said of a lowering that nobody asked for
    try:
        ready, left = prepared(document.again(), asked)
        return {(record.node.name, record.node.path): record for record in lower_unadvised(ready, left)}
    except RnnLowerError as error:
        return str(error)
    finally:
        logger.disabled = False


def _runtime(name: str, ones: Sequence[One], trial: dict[tuple[str, str], Record] | Failed) -> Runtime:
    target, node = TARGETS[name], ones[0].node
    verdict = target.verdict(node)
    if isinstance(trial, str):
        told = trial
        for one in ones:
            told = told.removeprefix(f"{one.node.describe()}: ")
        return Runtime(name, target.status, verdict.kind, verdict.why, told, False)
    record = trial[node.name, node.path]
    told = f"{record.emitted:,} nodes, {record.form}"
    return Runtime(name, target.status, verdict.kind, verdict.why, told, True)
