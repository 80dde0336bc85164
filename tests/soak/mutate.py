"""Soak: broken models on the command line, which must lower them or refuse them in one line, and never anything else.

    python tests/soak/mutate.py --minutes 10 --seed 1 [--count N] [--failures FOLDER]

Seed models are mutated, in their bytes (flipped, deleted, inserted, repeated, cut off) or in their protobuf messages
(any field cleared, repeated, swapped, exchanged or set to something odd), and lowered in a forked child. It must either
succeed, with a model that reads, and computes the same wherever onnxruntime runs the mutant; or end with code 2, one
line on stderr, and a folder as it was. It must not raise, hang, take more than 1 GB, die, or leave a file.
Ends with `N mutants, N refused, N lowered (N compared), N violations`; each violation is a folder with the mutant and
what.txt: the command and what was wrong.
"""  # fmt: skip

from __future__ import annotations

import collections
import contextlib
import dataclasses
import gc
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "support"))

import numpy as np
import onnx
import onnxruntime
from children import End, Workshop, in_child
from fullmodel import full_model
from google.protobuf.message import DecodeError, Message
from judge import refused
from onenode import OPTIONAL, Case, build
from onnx import helper
from paths import SHARED, own_models
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from soaking import soak_parser
from strategies import FORMS, random_case

import rnn_lower
from rnn_lower import cli
from rnn_lower.checking import compare, guard, runners, samples
from rnn_lower.ir.walk import default_opset, known_tensor, values
from rnn_lower.modelio import files
from rnn_lower.modelio.document import Document

SECONDS = 10
"""How long one lowering may compute."""

KILOBYTES = 1 << 20
"""How much memory one lowering may take beyond what the imports take."""

MOST_SECONDS = 2
"""How long a mutant may run to be compared: a Loop of half a million small nodes, lowered, takes ten times as long."""

MOST_ELEMENTS = 10_000_000
"""How much a mutant may give to be compared: judging more takes more memory than a child has."""

HUGE = 1e6
"""Among values of this size float32 leaves no digits to compare."""

MODEL, DATA = "model.onnx", "weights.bin"


# -- seeds ------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Seed:
    """A valid model: the file, and the data files beside it. share: how often it is drawn."""

    name: str
    files: Mapping[str, bytes]
    share: float = 1.0


def seeds(rng: np.random.Generator, shared: bool = True) -> list[Seed]:
    """Small models of every kind, since those are mutated fastest, and a few real ones."""
    found = []
    for number in range(60):
        model, _ = build(random_case(rng)[0])
        while number % 4 and refused(model):  # what onnxruntime does not run cannot be compared
            model, _ = build(random_case(rng)[0])
        found.append(_seed(f"random {number}", model, outside=number % 3 == 0))
    for place in ("main", "if", "loop", "function"):
        for op in ("RNN", "GRU", "LSTM"):
            model, _ = build(Case(op, 17, optional=OPTIONAL[op], place=place, direction="bidirectional"))
            found.append(_seed(f"{op} in {place}", model, outside=op == "GRU"))
    found += [_seed(f"full {place}", full_model(place=place), share=2) for place in ("main", "if", "function")]
    paths = own_models() + (sorted((SHARED / "models").glob("*.onnx")) if shared and SHARED.is_dir() else [])
    for path in paths:
        share = min(1.0, 20_000 / path.stat().st_size)
        found.append(_seed(path.name, onnx.load(path), share=share))
        found.append(_seed(f"{path.name} with data", onnx.load(path), outside=True, share=share))
    return found


def _seed(name: str, model: onnx.ModelProto, outside: bool = False, share: float = 1.0) -> Seed:
    beside = {}
    if outside:
        content = _move_outside(model)
        beside = {DATA: content} if content else {}
    return Seed(name, {MODEL: model.SerializeToString(), **beside}, share)


def _move_outside(model: onnx.ModelProto) -> bytes:
    """Weights into one data file, as exporters write them."""
    content = b""
    for tensor in model.graph.initializer:
        if tensor.HasField("raw_data") and tensor.raw_data:
            places = {"location": DATA, "offset": str(len(content)), "length": str(len(tensor.raw_data))}
            content += tensor.raw_data
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
            for key, value in places.items():
                tensor.external_data.add(key=key, value=value)
    return content


# -- mutations --------------------------------------------------------------------------------------------------------

INTEGERS = (0, 1, 2, 3, 4, 7, 8, 16, -1, -2, 5, 100, 10**6, 2**31 - 1, 2**31, -(2**31), 2**32, 2**40, 2**62, 2**63 - 1, -(2**63))  # fmt: skip
REALS = (0.0, 1.0, -1.0, 0.5, 1e-30, 1e30, float("inf"), float("-inf"), float("nan"))
TEXTS = (
    "", " ", "a\nb", "\0", "é\u202e", "x" * 300, "[b]x[/b]", "%s", "..", "/", "../weights.bin", "weights.bin", "model.onnx", "./weights.bin",
    ".", "/etc/passwd", "location", "offset", "length", "checksum", "0", "-1", "1_0", " 4", "1e3", "4096",
    "99999999999999999999", "forward", "reverse", "bidirectional", "Relu", "Tanh", "Sigmoid", "Softplus", "Elu", "Affine",
    "RNN", "GRU", "LSTM", "Identity", "If", "Loop", "Scan", "Constant", "Cast", "Transpose", "ai.onnx", "local", "odd",
    "com.microsoft", "hidden_size", "direction", "activations", "clip", "layout", "linear_before_reset", "value",
    "output_sequence", "sequence_lens", "X", "W", "R", "Y", "Y_h", "N", "T",
)  # fmt: skip


def mutated(seed: Seed, rng: np.random.Generator) -> dict[str, bytes]:
    """The files of a seed with one or a few mutations."""
    found = dict(seed.files)
    kind = rng.random()
    if kind < 0.85:
        with contextlib.suppress(ValueError, DecodeError):  # what Python's protobuf refuses to hold
            found[MODEL] = _other_structure(found[MODEL], rng)
    if kind >= 0.85 or kind < 0.05:
        for _ in range(_few(rng)):
            found[MODEL] = _other_bytes(found[MODEL], rng)
    if DATA in found and rng.random() < 0.2:
        if rng.random() < 0.3:
            del found[DATA]
        else:
            found[DATA] = _other_bytes(found[DATA], rng)
    return found


def _few(rng: np.random.Generator) -> int:
    return int(min(rng.geometric(0.6), 6))


def _other_bytes(content: bytes, rng: np.random.Generator) -> bytes:
    if not content:
        return bytes(rng.integers(0, 256, 3, np.uint8))
    start = int(rng.integers(len(content)))
    end = min(len(content), start + int(rng.choice([1, 2, 4, 8, 64, 1000])))
    middle = bytearray(content[start:end])
    kind = int(rng.integers(7))
    if kind == 0:
        middle[0] ^= 1 << int(rng.integers(8))
    elif kind == 1:
        middle[0] = int(rng.integers(256))
    elif kind == 2:
        middle = bytearray()
    elif kind == 3:
        middle = bytearray(rng.integers(0, 256, int(rng.choice([1, 2, 8, 100])), np.uint8)) + middle
    elif kind == 4:
        middle *= 2
    elif kind == 5:
        return content[:start]
    else:
        other = int(rng.integers(len(content)))
        middle = bytearray(content[other : other + len(middle)])
    return content[:start] + bytes(middle) + content[end:]


def _other_structure(content: bytes, rng: np.random.Generator) -> bytes:
    model = onnx.ModelProto.FromString(content)
    for _ in range(_few(rng)):
        if rng.random() < 0.04:
            _nest(model.graph, int(rng.choice([1, 2, 5, 26, 28, 29, 30, 31, 32])))
        else:
            _change_field(model, rng)
    return model.SerializeToString()


def _nest(graph: onnx.GraphProto, depth: int) -> None:
    """Put the last node into bodies within bodies."""
    if not graph.node:
        return
    node = onnx.NodeProto()
    node.CopyFrom(graph.node[-1])
    names = list(node.output)
    for level in range(depth):
        inner = [f"{name}_{level}" if name else "" for name in names]
        for place, name in enumerate(inner):
            node.output[place] = name
        outputs = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in inner if name]
        body = helper.make_graph([node], f"body {level}", [], outputs)
        node = helper.make_node("If", ["condition"], [name for name in names if name], f"if {level}")
        names = list(node.output)
        for branch in ("then_branch", "else_branch")[: 2 if level < 3 else 1]:
            node.attribute.append(helper.make_attribute(branch, body))
    graph.node[-1].CopyFrom(node)
    if all(value.name != "condition" for value in graph.input):
        graph.input.append(helper.make_tensor_value_info("condition", onnx.TensorProto.BOOL, []))


def _change_field(model: onnx.ModelProto, rng: np.random.Generator) -> None:
    """One field of one message; every kind of message is equally likely, however many there are of it."""
    by_type: dict[str, list[Message]] = collections.defaultdict(list)
    for message in _messages(model):
        by_type[message.DESCRIPTOR.full_name].append(message)
    alike = by_type[_one(rng, sorted(by_type))]
    message = _one(rng, alike)
    present = [field.name for field, _ in message.ListFields()]
    every = [field.name for field in message.DESCRIPTOR.fields]
    name = _one(rng, present if present and rng.random() < 0.8 else every)
    field = message.DESCRIPTOR.fields_by_name[name]
    value = getattr(message, name)
    others = [other for other in alike if other is not message]
    if hasattr(value, "extend"):
        of_type = by_type[field.message_type.full_name] if field.message_type else []
        _change_repeated(model, message, field, of_type, rng)
    elif rng.random() < 0.15:
        message.ClearField(name)
    elif isinstance(value, Message):
        known = by_type[value.DESCRIPTOR.full_name]
        value.CopyFrom(_copy(_one(rng, known)) if known else type(value)())
        value.SetInParent()
    elif others and rng.random() < 0.4:
        setattr(message, name, getattr(_one(rng, others), name))
    else:
        setattr(message, name, _odd(model, field, value, rng))


def _change_repeated(model: Message, message: Message, field: Any, known: Sequence[Message], rng: Any) -> None:
    """Elements of a list left out, repeated, exchanged, added or changed."""
    old = list(getattr(message, field.name))
    new = [_copy(element) if isinstance(element, Message) else element for element in old]
    kind = int(rng.integers(7))
    at = int(rng.integers(len(new))) if new else 0
    if kind == 0:
        new = []
    elif kind == 1:
        del new[at : at + 1]
    elif kind == 2:
        new[at:at] = new[at : at + 1]
    elif kind == 3:
        new = [new[place] for place in rng.permutation(len(new))]
    elif kind == 4 and new:
        other = int(rng.integers(len(new)))
        new[at], new[other] = new[other], new[at]
    else:
        if field.message_type is None:
            element = _odd(model, field, old[at] if old else None, rng)
        else:
            element = _copy(_one(rng, known)) if known else None
        if element is not None:
            new[at : at + kind % 2] = [element]
    message.ClearField(field.name)
    getattr(message, field.name).extend(new)


def _odd(model: onnx.ModelProto, field: Any, value: Any, rng: np.random.Generator) -> Any:
    """Another value for a field: close by, at a limit, or one that stands elsewhere in the model."""
    if field.enum_type is not None:
        return _one(rng, [number.number for number in field.enum_type.values])
    if field.type == field.TYPE_BYTES:
        if value and rng.random() < 0.6:
            return _other_bytes(value, rng)
        return _one(rng, TEXTS).encode() if rng.random() < 0.8 else b"\xff\xfe"
    if field.type == field.TYPE_STRING:
        names = [name for node in model.graph.node for name in (*node.input, *node.output, node.name, node.op_type)]
        return _one(rng, names) if names and rng.random() < 0.5 else _one(rng, TEXTS)
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return _one(rng, REALS)
    near = [value - 1, value + 1, 2 * value] if isinstance(value, int) else []
    number = _one(rng, near) if near and rng.random() < 0.4 else _one(rng, INTEGERS)
    bits = 32 if field.type in (field.TYPE_INT32, field.TYPE_UINT32) else 64
    low = 0 if field.type in (field.TYPE_UINT64, field.TYPE_UINT32) else -(2 ** (bits - 1))
    return max(low, min(number, 2 ** (bits - 1) - 1))


def _messages(root: Message) -> Iterator[Message]:
    waiting = [root]
    while waiting:
        message = waiting.pop()
        yield message
        for _, value in message.ListFields():
            if isinstance(value, Message):
                waiting.append(value)
            elif len(value) and isinstance(value[0], Message) if hasattr(value, "extend") else False:
                waiting.extend(value)


def _copy(message: Message) -> Message:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def _one(rng: np.random.Generator, choices: Sequence[Any]) -> Any:
    return choices[int(rng.integers(len(choices)))]


# -- one mutant -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Verdict:
    """outcome: refused, lowered, compared, oracle (compared with the reference instead) or violation. told: why.

    in_turn: what was wrong where other mutants went before.
    """

    outcome: str
    told: str = ""
    in_turn: str = ""


def options(rng: np.random.Generator) -> list[str]:
    found = ["--form", str(rng.choice([*FORMS, "auto", "auto"]))]
    if rng.random() < 0.2:
        found += ["--opset", str(rng.integers(1, 27))]
    return found


def judge(
    found: Mapping[str, bytes], in_place: bool, chosen: Sequence[str], home: Path, workshop: Workshop | None = None
) -> Verdict:
    """Lower one mutant, given as its files, and look at what has become of it. home: an empty folder for that.

    workshop: where it is lowered; what goes wrong there is done again in a child of its own, which decides.
    """
    folder, before = home / "work", home / "before"
    for place in (folder, before):
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        for name, content in found.items():
            (place / name).write_bytes(content)
    source = folder / MODEL
    target = source if in_place else folder / "out.onnx"
    command = ["lower", str(source), "-o", str(target), *chosen]
    end = workshop.end(command) if workshop else in_child(lambda _: cli.main(command), home, SECONDS)
    wrong = "another end" if end is None else _wrong_end(end) or _wrong_files(end, folder, found, target)
    if wrong and workshop:
        return dataclasses.replace(judge(found, in_place, chosen, home), in_turn=wrong)
    assert end is not None
    if wrong:
        return Verdict("violation", f"{wrong}\n{end.errors}\n{end.notes}")
    if end.code == cli.BAD:
        return Verdict("refused", end.errors)
    return _compared(before / MODEL, target, home)


def _wrong_end(end: End) -> str:
    """What is wrong with the way the command ended, if anything."""
    lines = end.errors.splitlines()
    strange = [line for line in lines if not line.startswith("rnn-lower: ")]
    told = [line for line in lines if line.startswith("rnn-lower: error: ")]
    if end.code is None:
        return f"hang: more than {SECONDS} s"
    if end.code < 0:
        return f"died: {signal.Signals(-end.code).name}"
    if end.code not in (cli.DONE, cli.BAD):
        return f"exit {end.code}: {_raised(end.notes)}"
    if end.kilobytes > KILOBYTES:
        return f"memory: {end.kilobytes // 1024} MB"
    if "not enough memory" in end.errors:
        return "memory: refused for want of it"
    if strange:
        return f"stderr: {strange[0][:200]}"
    if end.code == cli.BAD and len(told) != 1:
        return f"stderr: {len(told)} lines of errors"
    if end.code == cli.DONE and told:
        return "stderr: an error, and exit 0"
    return ""


def _raised(notes: str) -> str:
    """The error that a traceback began with, and the last function of this project in it."""
    errors = re.findall(r"^[A-Za-z_][\w.]*(?:Error|Exception|Interrupt)\b.*$", notes, re.M)
    frames = re.findall(r'rnn_lower/(\S+)\.py", line \d+, in (\w+)', notes)
    return f"{errors[0][:150] if errors else notes[-150:]} in {' '.join(frames[-1]) if frames else '?'}"


def _wrong_files(end: End, folder: Path, found: Mapping[str, bytes], target: Path) -> str:
    """What is wrong with the files in the folder, if anything."""
    there = {path.name: path for path in folder.iterdir()}
    may_go = {DATA} if end.code == cli.DONE and target.name in found else set()
    for name, content in found.items():
        if name == target.name and end.code == cli.DONE:
            continue
        if name not in there and name not in may_go:
            return f"files: {name} is gone"
        if name in there and there[name].read_bytes() != content:
            return f"files: {name} has changed"
    new = sorted(set(there) - set(found))
    if end.code == cli.BAD:
        return f"files: {', '.join(new)} left" if new else ""
    if target.name not in there:
        return "files: nothing written"
    data = [name for name in new if re.fullmatch(re.escape(target.name) + r"\.[0-9a-f]{16}\.data", name)]
    left = set(new) - {target.name, *data}
    if left or len(data) > 1:
        return f"files: {', '.join(sorted(left) or data)} left"
    return ""


def _compared(mutant: Path, target: Path, home: Path) -> Verdict:
    """Read the lowered model, and run both where onnxruntime runs the mutant."""
    end = in_child(lambda notes: _compare(mutant, target, notes), home, 3 * SECONDS)
    stage = (re.findall(r"^stage (\w+)$", end.notes, re.M) or ["none"])[-1]
    if stage in ("mutant", "oracle") and end.code != 0:  # it does not run, or the runtime died of it
        return Verdict("lowered", stage)
    if stage in ("same", "undecided", "oracle_same", "huge", "too_old", "heavy"):
        return Verdict({"same": "compared", "oracle_same": "oracle"}.get(stage, "lowered"), stage)
    kind = {"read": "unreadable", "lowered": "does not run", "different": "different"}.get(stage, stage)
    how = "too slow" if end.code is None else f"signal {-end.code}" if end.code < 0 else ""
    told = end.notes.strip().splitlines()
    return Verdict("violation", f"{kind}: {how or told[-1][:200]}\n{end.errors[-2000:]}\n{end.notes}")


def _compare(mutant: Path, target: Path, notes: Any) -> int:
    """Write down each stage as it begins, since any of them may end the process."""

    def stage(name: str) -> int:
        notes.write(f"stage {name}\n")
        notes.flush()
        return 0

    _one_thread()
    stage("read")
    lowered = files.load(target)
    stage("mutant")
    original = files.load(mutant)
    run = runners.open_onnxruntime(original, str(mutant), guard.add)
    start = time.monotonic()
    feeds, wanted = _first_results(original, run)
    if time.monotonic() - start > MOST_SECONDS or sum(np.size(one) for one in wanted) > MOST_ELEMENTS:
        return stage("heavy")
    stage("lowered")
    if (default_opset(lowered.model.opset_imports) or 0) < 7:
        return stage("too_old")  # no runtime executes what --opset has asked for
    got = runners.open_onnxruntime(lowered, str(target))(feeds)
    names = [value.name for value in original.proto.graph.output]
    difference = _difference(names, wanted, got)
    if not difference:
        stage("same")
    elif _difference(names, wanted, run(feeds)):
        stage("undecided")  # the mutant is not of one mind either
    elif _is_huge(wanted) or _is_huge(got) or _is_huge(_weights(original)):  # sums of these depend on their order
        stage("huge")
    else:
        stage("oracle")
        oracle = runners.open_reference(original)(feeds)
        if not _difference(names, oracle, got):
            stage("oracle_same")
        else:
            stage("different")
            notes.write(difference + "\n")
    return 0


def _one_thread() -> None:
    """Sessions of this process start no threads, which takes longer than these models do."""
    make = onnxruntime.SessionOptions

    def made() -> Any:
        found = make()
        found.intra_op_num_threads = 1
        return found

    onnxruntime.SessionOptions = made


def _first_results(document: Document, run: runners.Run) -> tuple[samples.Feeds, list[Any]]:
    """The first inputs that the model takes. Raises when it takes none."""
    failure: Exception | None = None
    for feeds in samples.Samples(document.model).candidates(0):
        try:
            return feeds, run(feeds)
        except Exception as error:  # runtimes raise whatever they raise
            failure = error
    raise RuntimeError(f"the mutant does not run: {failure}")


def _difference(names: Sequence[str], wanted: Sequence[Any], got: Sequence[Any]) -> str:
    pairs = zip(names, wanted, got, strict=True)
    reports = [compare.compare(name, expected, actual, 1e-3, 1e-4) for name, expected, actual in pairs]
    return "; ".join(f"{report.name}: {report.reason}" for report in reports if not report.ok)


def _weights(document: Document) -> list[Any]:
    found = [value.const_value or known_tensor(value) for value in values(document.model)]
    return [tensor.numpy() for tensor in found if tensor is not None and tensor.dtype.is_floating_point()]


def _is_huge(results: Sequence[Any]) -> bool:
    numbers = [np.asarray(result) for result in results if isinstance(result, np.ndarray)]
    return any(n.dtype.kind == "f" and not np.all(np.abs(n.astype(np.float64)) < HUGE) for n in numbers)


# -- many mutants -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Tally:
    """Counts by outcome, violations by kind, refusals by what they say; what was wrong in turn, and right alone."""

    outcomes: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    kinds: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    refusals: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    in_turn: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def __str__(self) -> str:
        count = self.outcomes
        compared = count["compared"] + count["oracle"]
        return (
            f"{count.total()} mutants, {count['refused']} refused, {count['lowered'] + compared} lowered"
            f" ({compared} compared), {count['violation']} violations"
        )


def soak(
    count: int, seed: int, failures: Path, minutes: float = 1e9, shared: bool = True,
    progress: Callable[[str], None] = lambda told: None,
) -> Tally:  # fmt: skip
    """Judge mutants until there have been enough. The mutant of a number and a seed is always the same."""
    pool = seeds(np.random.default_rng(seed), shared)
    shares = np.array([each.share for each in pool])
    tally, end = Tally(), time.monotonic() + 60 * minutes
    _warm_up()
    gc.collect()
    gc.freeze()  # so that forks do not copy what nobody changes
    with (
        tempfile.TemporaryDirectory(prefix="mutate") as home,
        contextlib.closing(Workshop(Path(home), SECONDS, KILOBYTES)) as workshop,
    ):
        for number in range(count):
            if time.monotonic() > end:
                break
            rng = np.random.default_rng([seed, number])
            chosen = pool[int(rng.choice(len(pool), p=shares / shares.sum()))]
            found, in_place, flags = mutated(chosen, rng), bool(rng.random() < 0.25), options(rng)
            verdict = judge(found, in_place, flags, Path(home), workshop)
            tally.outcomes[verdict.outcome] += 1
            if verdict.in_turn and verdict.outcome != "violation":
                tally.in_turn[_kind(verdict.in_turn)] += 1
            if verdict.outcome == "refused":
                tally.refusals[_kind(verdict.told)] += 1
            if verdict.outcome == "violation":
                tally.kinds[_kind(verdict.told.splitlines()[0])] += 1
                target = MODEL if in_place else "out.onnx"
                command = f"rnn-lower lower {MODEL} -o {target} {' '.join(flags)}"
                _keep(failures / f"{seed}_{number}", found, f"{command}\nfrom: {chosen.name}\n{verdict.told}")
            progress(str(tally))
    return tally


def _warm_up() -> None:
    """Import what is imported when it is first used, here rather than in every fork."""
    import onnxscript.version_converter  # noqa: F401
    import rich.markup  # noqa: F401

    for form in FORMS:
        rnn_lower.lower(build(Case())[0], form=form)


def _kind(told: str) -> str:
    """What a message says, without the names and numbers in it."""
    told = re.sub(r"\S*/\S*|'[^']*'|\[[^]]*\]|-?\d[\d.e+]*", "_", " ".join(told.split()))
    return told.removeprefix("rnn-lower: error: ")[:110]


def _keep(folder: Path, found: Mapping[str, bytes], told: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in found.items():
        (folder / name).write_bytes(content)
    (folder / "what.txt").write_text(told, errors="replace")
    print(f"VIOLATION {folder}: {told.splitlines()[2]}", file=sys.stderr)


def main() -> int:
    arguments = soak_parser(__doc__, "mutants").parse_args()
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("mutants", total=None)
        tally = soak(
            arguments.count, arguments.seed, arguments.failures, arguments.minutes,
            progress=lambda told: progress.update(task, description=told, advance=1),
        )  # fmt: skip
    _report(tally)
    print(tally)
    return 1 if tally.outcomes["violation"] else 0


def _report(tally: Tally) -> None:
    console = Console(width=140)
    found = (("refusal", tally.refusals), ("violation", tally.kinds), ("wrong in turn, right alone", tally.in_turn))
    for title, counts in found:
        table = Table(title, "mutants")
        for told, count in counts.most_common(60):
            table.add_row(re.sub(r"\[", r"\[", told), str(count))
        console.print(table)
    print(f"{tally.outcomes['oracle']} agree with the oracle where the fused node on onnxruntime does not")


if __name__ == "__main__":
    sys.exit(main())
