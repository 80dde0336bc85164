"""Soak: lowering a model in place, killed at a random moment; what is there afterwards must be all old or all new.

    python tests/soak/crash.py --count 200 --seed 1 [--size MB] [--folder FOLDER] [--lines]

The model has its weights in a file beside it. A child lowers it in place, as a new process or as a fork of this one,
and gets SIGKILL, SIGTERM or SIGINT. Then the model must load with every byte as before, or as after a lowering that
nobody disturbed. SIGTERM and SIGINT must leave no file behind; what SIGKILL leaves must be named and removed by the
next run in that folder. With --lines, a small model is killed once before every line of the module that handles files,
by each signal, instead of at random moments. Ends with `N kills, N mixed, N unloadable, N leftovers`; each fault is told on stderr.
"""  # fmt: skip

from __future__ import annotations

import argparse
import collections
import dataclasses
import gc
import hashlib
import linecache
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "support"))

import numpy as np
import onnx
from onenode import Case, build
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console
from rich.progress import Progress

import rnn_lower
from rnn_lower import cli
from rnn_lower.modelio import files, stale_files

MODEL, SMALL = "model.onnx", "small.onnx"
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
PATIENCE = 120
"""Seconds after which a child that does not end is taken for hung."""


# -- the model --------------------------------------------------------------------------------------------------------


def write_model(folder: Path, megabytes: float) -> None:
    """An LSTM with a fifth of the weights, and tables that no lowering touches, all in one file beside the model."""
    rng = np.random.default_rng(0)
    hidden = max(8, int((megabytes * 1e6 / 5 / 4 / 8) ** 0.5) // 8 * 8)
    tables = max(1, min(24, int(megabytes)))
    rows = max(16, int(megabytes * 1e6 * 4 / 5 / tables / hidden / 4))
    shapes = {"W": (1, 4 * hidden, hidden), "R": (1, 4 * hidden, hidden)}
    shapes |= {f"table_{number}": (rows, hidden) for number in range(tables)}
    weights = [numpy_helper.from_array(rng.random(shape, np.float32), name) for name, shape in shapes.items()]
    nodes = [helper.make_node("LSTM", ["X", "W", "R"], ["Y", "Y_h"], "lstm", hidden_size=hidden)]
    nodes += [helper.make_node("Gather", [f"table_{k}", "index"], [f"row_{k}"], f"gather_{k}") for k in range(tables)]
    nodes.append(helper.make_node("Sum", [f"row_{k}" for k in range(tables)], ["rows"], "sum"))
    model = helper.make_model(
        helper.make_graph(
            nodes, "graph",
            [helper.make_tensor_value_info("X", TensorProto.FLOAT, ["T", 1, hidden]),
             helper.make_tensor_value_info("index", TensorProto.INT64, [1])],
            [helper.make_tensor_value_info("Y_h", TensorProto.FLOAT, None),
             helper.make_tensor_value_info("rows", TensorProto.FLOAT, None)],
            weights,
        ),
        opset_imports=[helper.make_opsetid("", 17)], ir_version=8,
    )  # fmt: skip
    onnx.save_model(
        model, folder / MODEL, save_as_external_data=True, location="model.onnx.0123456789abcdef.data", size_threshold=0
    )
    onnx.save(build(Case("GRU", 17))[0], folder / SMALL)


def digest(path: Path) -> str:
    """Everything that a model holds, its weights wherever they are, in one number. Raises when it does not load."""
    model = onnx.load(path)
    whole = hashlib.sha256()
    for tensor in model.graph.initializer:
        whole.update(tensor.raw_data)
        tensor.ClearField("raw_data")
        tensor.ClearField("data_location")
        tensor.ClearField("external_data")
    whole.update(model.SerializeToString(deterministic=True))
    return whole.hexdigest()


def referred(path: Path) -> set[str]:
    """The data files of a model."""
    tensors = onnx.load(path, load_external_data=False).graph.initializer
    return {entry.value for tensor in tensors for entry in tensor.external_data if entry.key == "location"}


# -- one run ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class End:
    """How a child ended, and what it said on stderr. killed: whether it was still there to be killed."""

    code: int
    errors: str
    killed: bool


def run(
    arguments: list[str], forked: bool, errors: Path, delay: float | None = None, number: int = 0,
    first: Callable[[], None] = lambda: None,
) -> End:  # fmt: skip
    """`rnn-lower` in a child, which gets the signal of that number after so many seconds. first: done in a fork."""
    errors.unlink(missing_ok=True)
    child = _fork(arguments, errors, first) if forked else _start(arguments, errors)
    handle = os.pidfd_open(child)
    killed = False
    try:
        if delay is not None and not select.select([handle], [], [], delay)[0]:
            os.kill(child, number)
            killed = True
        if not select.select([handle], [], [], PATIENCE)[0]:
            os.kill(child, signal.SIGKILL)
    finally:
        os.close(handle)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return End(code, errors.read_text(errors="replace") if errors.exists() else "", killed)


def _fork(arguments: list[str], errors: Path, first: Callable[[], None] = lambda: None) -> int:
    """A fork of this process: the imports are done, so that the moment of the kill lies in the work."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return child
    code = 99
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in (signal.SIGTERM, signal.SIGHUP):  # which nohup ignores, and so does all that it starts
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), 2)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        first()
        code = cli.main(arguments)
        sys.settrace(None)
        sys.stdout.flush()
        sys.stderr.flush()
    except KeyboardInterrupt:  # before main had begun, or when it had ended
        code = 130
    finally:
        os._exit(code)


def at_lines(act: Callable[[int], None]) -> None:
    """From here on, call with 1, 2, 3 ... before each line of the module that handles files.

    Not before a `try:`, since Python looks for signals where something is called or repeated.
    """
    count = 0

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal count
        if frame.f_code.co_filename not in (files.__file__, stale_files.__file__):
            return None
        if event == "line" and linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip() != "try:":
            count += 1
            act(count)
        return trace

    sys.settrace(trace)


def _start(arguments: list[str], errors: Path) -> int:
    """A process of its own."""
    with open(errors, "w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "rnn_lower", *arguments], stdout=subprocess.DEVNULL, stderr=file,
            stdin=subprocess.DEVNULL, preexec_fn=_heed_interrupts,
        )  # fmt: skip
    process.returncode = 0  # it is waited for by number, elsewhere
    return process.pid


def _heed_interrupts() -> None:
    """What is started in the background of a shell ignores SIGINT, and so would its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


# -- many kills -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Tally:
    """Counts: kills; states that were found; faults by kind; and what a kill is allowed to do, for the record."""

    counts: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    faults: list[str] = dataclasses.field(default_factory=list)

    def fault(self, kind: str, told: str) -> None:
        self.counts[kind] += 1
        self.faults.append(f"{kind}: {told}")
        print(f"FAULT {kind}: {told}", file=sys.stderr)

    def __str__(self) -> str:
        names = ("kills", "mixed", "unloadable", "leftovers")
        return ", ".join(f"{self.counts[name]} {name}" for name in names)


@dataclasses.dataclass(frozen=True)
class Moments:
    """When the first file of a run appears, and when the run ends, in seconds after its start."""

    first_file: float
    end: float

    def choose(self, rng: np.random.Generator) -> float:
        """Sometimes anywhere, else while files are there, or towards the end, where they change places."""
        if rng.random() < 0.25:
            return float(rng.uniform(0, self.end))
        if rng.random() < 0.5:
            return float(rng.uniform(0.9 * self.first_file, self.end))
        return float(rng.uniform(0.85, 1) * self.end)

    def learned(self, killed: bool) -> Moments:
        """Runs take longer or shorter as the machine is busy; the end is where a third of the late kills miss it."""
        factor = 1.005 if killed else 0.985
        return Moments(self.first_file * factor, self.end * factor)


class Ground:
    """The folder where models are lowered, and an untouched copy of what it began with."""

    def __init__(self, home: Path, megabytes: float) -> None:
        self.pristine, self.folder, self.errors = home / "pristine", home / "work", home / "errors"
        self.pristine.mkdir()
        write_model(self.pristine, megabytes)
        self.model = self.folder / MODEL
        self.old = digest(self.pristine / MODEL)
        self.command = ["lower", str(self.model), "-o", str(self.model)]
        self.restore()
        end = run(self.command, False, self.errors)
        assert end.code == 0, end.errors
        self.new = digest(self.model)
        assert self.new != self.old

    def restore(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.pristine, self.folder)

    def strangers(self) -> set[str]:
        """Files that belong to nobody."""
        there = {path.name for path in self.folder.iterdir()}
        return there - {MODEL, SMALL} - referred(self.model)

    def moments(self, forked: bool) -> Moments:
        """Of undisturbed runs, the shortest of three."""
        return min((self._moments(forked) for _ in range(3)), key=lambda found: found.end)

    def _moments(self, forked: bool) -> Moments:
        self.restore()
        before = len(list(self.folder.iterdir()))
        start = time.monotonic()
        child = (_fork if forked else _start)(self.command, self.errors)
        first = 0.0
        handle = os.pidfd_open(child)
        while not select.select([handle], [], [], 0.002)[0]:
            if not first and len(list(self.folder.iterdir())) > before:
                first = time.monotonic() - start
        os.close(handle)
        os.waitpid(child, 0)
        end = time.monotonic() - start
        return Moments(first or end / 2, end)


def soak(
    count: int, seed: int, megabytes: float, folder: Path | None = None, forked_share: float = 0.75,
    progress: Callable[[str], None] = lambda told: None,
) -> Tally:  # fmt: skip
    """Kill until there have been enough kills. Where in its work a child is hit is up to the machine."""
    tally, rng = Tally(), np.random.default_rng(seed)
    with tempfile.TemporaryDirectory(prefix="crash", dir=folder) as home:
        ground = Ground(Path(home), megabytes)
        rnn_lower.inspect(ground.pristine / SMALL)
        rnn_lower.lower(ground.pristine / SMALL)  # so that forks need not import
        gc.freeze()
        when = {forked: ground.moments(forked) for forked in ([True] if forked_share == 1 else [True, False])}
        ground.restore()
        for attempt in range(4 * count):
            if tally.counts["kills"] >= count:
                break
            number, forked = SIGNALS[attempt % len(SIGNALS)], bool(rng.random() < forked_share)
            delay = when[forked].choose(rng)
            end = run(ground.command, forked, ground.errors, delay, number)
            when[forked] = when[forked].learned(end.killed)
            tally.counts["kills" if end.killed else "too late"] += 1
            how = f"{signal.Signals(number).name} after {delay:.3f} s of {when[forked].end:.3f} s, exit {end.code}"
            _examine(ground, tally, end, number, f"{how} ({'fork' if forked else 'process'})")
            progress(str(tally))
    return tally


def every_line(megabytes: float, number: int, folder: Path | None = None, stride: int = 1) -> Tally:
    """Kill before each line of the module that handles files, as far as an undisturbed run executes it."""
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="crash", dir=folder) as home:
        ground = Ground(Path(home), megabytes)
        counted = Path(home) / "lines"
        ground.restore()
        run(ground.command, True, ground.errors, first=lambda: at_lines(lambda count: _note(counted, count)))
        lines = int(counted.read_text())
        ground.restore()
        for line in sorted({*range(1, lines + 1, stride), lines - 4, lines}):  # the last ones are behind the change

            def strike(count: int, line: int = line) -> None:
                if count == line:
                    os.kill(os.getpid(), number)

            end = run(ground.command, True, ground.errors, first=lambda strike=strike: at_lines(strike))
            tally.counts["kills"] += 1
            how = f"{signal.Signals(number).name} before line {line} of {lines}, exit {end.code}"
            _examine(ground, tally, dataclasses.replace(end, killed=True), number, how)
    return tally


def _note(path: Path, count: int) -> None:
    path.write_text(str(count))


def _examine(ground: Ground, tally: Tally, end: End, number: int, how: str) -> None:
    """What is there after one kill; the folder is as at the beginning afterwards."""
    try:
        found = digest(ground.model)
    except Exception as error:  # whatever stands in the way of loading it
        tally.fault("unloadable", f"{how}: {error}; folder: {sorted(os.listdir(ground.folder))}")
        return ground.restore()
    state = {ground.old: "old", ground.new: "new"}.get(found, "mixed")
    tally.counts[state] += 1
    if state == "mixed":
        tally.fault("mixed", f"{how}: {sorted(os.listdir(ground.folder))}")
        return ground.restore()
    for told, promised in _promises(end):
        if promised != state:
            tally.fault("untrue", f"{how}: {told!r}, but the model is {state}")
    if "Traceback" in end.errors or end.code == cli.UNFORESEEN:
        tally.counts["tracebacks"] += 1
        print(f"traceback, {how}:\n{end.errors}", file=sys.stderr)
    strangers = ground.strangers()
    if strangers and (number != signal.SIGKILL or not end.killed):
        tally.fault("leftovers", f"{how}: model {state}, {sorted(strangers)}; stderr: {end.errors.strip()[-300:]}")
    elif strangers:
        tally.counts["orphans"] += 1
        _swept(ground, tally, strangers, how, state)
    if state == "new" or strangers:
        ground.restore()
    return None


def _promises(end: End) -> Iterator[tuple[str, str]]:
    """What the child said about the state of the model."""
    if end.code == cli.DONE:
        yield "exit 0", "new"
    if "interrupted, nothing was written" in end.errors:
        yield "nothing written", "old"
    elif "was written" in end.errors:
        yield "was written", "new"


def _swept(ground: Ground, tally: Tally, strangers: set[str], how: str, state: str) -> None:
    """The next run with the same output names what it finds left behind, and removes it."""
    end = run(["lower", str(ground.folder / SMALL), "-o", str(ground.model)], True, ground.errors)
    left = ground.strangers()
    unnamed = {name for name in strangers if name not in end.errors}
    if end.code != cli.DONE or left or unnamed:
        tally.fault(
            "leftovers", f"{how}: model {state}, of {sorted(strangers)} the next run (exit {end.code}) left"
            f" {sorted(left)} and did not name {sorted(unnamed)}",
        )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--size", type=float, default=250, metavar="MB")
    parser.add_argument("--folder", type=Path, help="on which disk; default: that of temporary files")
    parser.add_argument("--lines", action="store_true", help="kill before every line that handles files")
    arguments = parser.parse_args()
    if arguments.lines:
        tallies = [every_line(1, number, arguments.folder) for number in SIGNALS]
        for number, tally in zip(SIGNALS, tallies, strict=True):
            print(f"{number.name}: {tally}, {tally.counts['orphans']} orphans, {tally.counts['untrue']} untrue")
        print(sum((tally.counts for tally in tallies), collections.Counter()))
        return 1 if any(tally.faults for tally in tallies) else 0
    with Progress(console=Console(stderr=True)) as progress:
        task: Any = progress.add_task("kills", total=arguments.count)
        tally = soak(
            arguments.count, arguments.seed, arguments.size, arguments.folder,
            progress=lambda told: progress.update(task, description=told, completed=int(told.split()[0])),
        )  # fmt: skip
    names = ("too late", "old", "new", "orphans", "tracebacks", "untrue")
    print(", ".join(f"{tally.counts[name]} {name}" for name in names))
    print(tally)
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
