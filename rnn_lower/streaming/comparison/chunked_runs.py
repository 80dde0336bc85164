"""Runs of a streaming model in chunks, for comparison with runs of the original on whole sequences."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np

from rnn_lower.checking import samples
from rnn_lower.errors import RnnLowerError, one_line
from rnn_lower.ir.walk import constant, recurrent_nodes
from rnn_lower.lowering.node import RecurrentNode
from rnn_lower.modelio.document import Document
from rnn_lower.proving.exact.equations import INPUTS
from rnn_lower.proving.model_inputs import fixed_sizes
from rnn_lower.proving.whole.thresholds import MOST_COUNTED, check_counted, counted_numbers
from rnn_lower.proving.whole.whole_inputs import TOGETHER
from rnn_lower.shapes.fixed_dims import declared_shapes, free_dims
from rnn_lower.streaming.comparison.change_points import ChangePoints
from rnn_lower.streaming.plan import LAST, Plan, fixed_step
from rnn_lower.streaming.session import Feeds, StreamingSession

T = TypeVar("T")

LONGEST = 600
"""The maximum number of remembered steps that a run covers, and of steps that an output may be late."""

CHUNKS = (1, 2, 3)
"""The lengths of equal chunks that are always tried."""

SHORT = (1, 2, 4)
"""The numbers of frames of short trials."""

LONG, LARGEST = (64, 128, 384), 10_000_000
"""Two runs have as many frames, drawn between these numbers, in few chunks; and the most frames of any run."""

MOST_SHARED = 4
"""The most numbers to try that the original compares with sizes, too."""

SET_SIZES = "set the sizes of its inputs (--dim NAME=SIZE)"
"""The remedy if a model does not run with any sampled sizes."""

CALLS = 6
"""The number of consecutive runs of a model that computes one step per run."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """One sampled sequence and the chunks that it is divided into.

    steps: its length.  sizes: in equal chunks of each of these lengths.  mixed: the number of divisions into random
    lengths.  is_long: whether the original may refuse the inputs.  others: sizes of other axes of inputs.
    numbers: by input, a number that all its elements have.
    """

    steps: int
    sizes: Sequence[int]
    mixed: int
    is_long: bool = False
    others: Mapping[tuple[str, int], int] = dataclasses.field(default_factory=dict)
    numbers: Mapping[str, int] = dataclasses.field(default_factory=dict)


class ChunkedRuns:
    """Sampling and chunking for runs of the original and of a streaming model.

    step: chunk lengths are multiples of it.  fixed_step: the only chunk length, None if it is free.
    remembered: the number of earlier steps that affect an output; shorter runs would compare only initial states.
    rows: by output, the rows of a frame along its stream axis in the last run.  emitted: by output and number of input
    frames so far, the numbers of frames so far.  wholes: by output and number of input frames, the frames of the
    original.  missing: by output, how many of these only come when the stream goes on.
    """

    def __init__(
        self, original: Document, streaming: Document, plan: Plan, seed: int, changes: ChangePoints | None = None
    ) -> None:  # fmt: skip
        self.original, self.made, self.plan, self.seed = original, streaming, plan, seed
        self.fixed_step = fixed_step(streaming.proto, plan)
        self.step = self.fixed_step or plan.every
        self.changes = changes or ChangePoints()
        self.remembered = min(-(-plan.reach // self.step), LONGEST)
        self.chunks = self.borders = 0
        self.rows: dict[str, int] = {}
        self.emitted: dict[str, dict[int, set[Fraction]]] = defaultdict(lambda: defaultdict(set))
        self.wholes: dict[str, dict[int, Fraction]] = defaultdict(dict)
        self.missing: dict[str, int] = {}

    @functools.cached_property
    def _longest(self) -> int:
        """The largest constant `sequence_lens` of the original, with which it refuses shorter sequences."""
        index, longest = INPUTS.index("sequence_lens"), 0
        for node, _ in recurrent_nodes(self.original.model):
            array = constant(node.inputs[index]) if len(node.inputs) > index else None
            longest = max(longest, int(array.max(initial=0)) if array is not None else 0)
        return longest

    def long_trials(self) -> list[Trial]:
        """The trials with longer chunks than the others; none if the original has one length."""
        if fixed_step(self.original.proto, self.plan) is not None:
            return []
        rng = np.random.default_rng([self.seed, *LONG])
        lengths = [int(rng.integers(*ends)) for ends in itertools.pairwise(LONG)]
        chosen = lengths if self.fixed_step is None else lengths[:1]
        steps = (self.remembered - (-length // self.step) for length in chosen)
        return [Trial(each, (LONG[0] + 1,), mixed=0, is_long=True) for each in steps]

    def short_trials(self) -> list[Trial]:
        """The trials of fewer frames than the others, if the last frame is an output; none if there is one length."""
        if LAST not in self.plan.outputs.values() or fixed_step(self.original.proto, self.plan) is not None:
            return []
        return [Trial(steps, CHUNKS[:1], mixed=0, is_long=True) for steps in SHORT]

    def trials_beyond(self) -> Iterator[Trial]:
        """Yield trials with chunks and other sizes beyond the numbers at which the streaming model may change.

        A number that the original has, too, counts only where sizes alone are compared with it.

        Other sizes of 1 and 2 are always tried, because a size of 1 may be repeated.
        Raises OutOfScopeError if a number is too large.
        """
        changes, models = self.changes, (self.original.model, self.made.model)
        of_sizes = counted_numbers(models[1], changes.constants[1], changes.sizes.values, whole=True)
        old, new = (counted_numbers(*each) for each in zip(models, changes.constants, strict=True))
        shared = sorted(number for number in of_sizes if number <= MOST_COUNTED)[-MOST_SHARED:]
        numbers = {*(new - old), *shared, *changes.sizes.swept, *changes.sizes.quotients, *changes.begins}
        is_free = fixed_step(self.original.proto, self.plan) is None
        others = defaultdict[str, list[tuple[str, int]]](list)
        for name, axis, label in free_dims(declared_shapes(self.original.model)):
            if self.plan.inputs.get(name) != axis:
                others[label].append((name, axis))
        sizes = sorted({1, 2, *(number + more for number in numbers if number > 0 for more in (0, 1))})
        for size in sizes:
            check_counted([size - 1])  # only now, because smaller sizes may show a difference
            if size > max(CHUNKS) and is_free:
                yield Trial(self.remembered + size + max(CHUNKS), (size,), mixed=0, is_long=True)  # one starts there
            for axes in others.values():
                fixed = dict.fromkeys(axes, size)
                yield Trial(self.remembered + max(CHUNKS), CHUNKS[:1], mixed=0, is_long=True, others=fixed)
        size = max(size for size in sizes if size ** (1 + len(others)) <= TOGETHER)
        if size > max(CHUNKS) and is_free:
            all_axes = dict.fromkeys(itertools.chain(*others.values()), size)
            yield Trial(self.remembered + size + max(CHUNKS), (size,), mixed=0, is_long=True, others=all_axes)

    def trials_of_numbers(self) -> Iterator[Trial]:
        """Yield trials with the integers and booleans of the caller that may matter to a model."""
        for name, numbers in self.changes.numbers.items():
            for number in sorted(numbers):
                steps = self.remembered + max(CHUNKS)
                yield Trial(steps, CHUNKS[:1], mixed=0, is_long=True, numbers={name: number})

    def samples(
        self, index: int, steps: int, nodes: Sequence[RecurrentNode] | None = None,
        others: Mapping[tuple[str, int], int] = {},
    ) -> Iterator[Feeds]:  # fmt: skip
        """Inputs over `steps` steps after the delay, of which the original accepts some.

        steps: 0 for a model whose runs are single steps.  nodes: recurrent nodes for whose lengths values are tried.
        others: sizes of other axes than those of time.
        """
        late = max([*self.plan.late.values(), *self.plan.warm_up.values()], default=0)
        frames = (-(-late // self.step) + max(steps, -(-self._longest // self.step) if steps else 0)) * self.step
        if late > LONGEST * self.step or frames > LARGEST:
            raise RnnLowerError(
                f"the metadata declares outputs that are {late} frames late and a chunk length of {self.step} frames, "
                f"so a comparison needs {frames} frames; at most {LARGEST} frames, {LONGEST} chunks late, are supported"
            )
        fixed = fixed_step(self.original.proto, self.plan)
        if fixed is not None and fixed % self.step:
            raise RnnLowerError(
                f"the model has a fixed length of {fixed} frames, which is not a multiple of the chunk "
                f"length {self.step}"
            )
        sizes = {**others, **fixed_sizes(self.original.model, self.made.proto)}
        sizes |= dict.fromkeys(self.plan.inputs.items(), fixed or frames)
        return samples.Samples(self.original.model, self.seed, sizes, nodes).candidates(index)

    def chunkings(self, feeds: Feeds, index: int, trial: Trial) -> Iterator[list[int]]:
        """The chunk lengths to try: equal ones, mixed ones, and the whole sequence."""
        name, axis = next(iter(self.plan.inputs.items()))
        frames, step = feeds[name].shape[axis], self.step
        count, rng = frames // step, np.random.default_rng([self.seed, index])
        for size in trial.sizes if self.fixed_step is None else (1,):
            yield [step * n for n in [size] * (count // size) + [count % size] * (count % size > 0)]
        if self.fixed_step is not None:
            return
        for _ in range(trial.mixed):
            cuts = np.flatnonzero(rng.integers(0, 2, count - 1) == 0) + 1
            edges = [0, *(int(cut) for cut in cuts), count]
            yield [step * (b - a) for a, b in itertools.pairwise(edges)]
        yield [frames]

    def stream_through(self, session: StreamingSession, feeds: Feeds, lengths: Sequence[int]) -> list[Any]:
        """The outputs of a run chunk by chunk, concatenated."""
        plan, parts, end = session.plan, list[Feeds](), 0
        axes = {name: what for name, what in plan.outputs.items() if isinstance(what, int)}
        totals = dict.fromkeys(axes, Fraction(0))
        sites = {name: [plan.symbols[symbol] for symbol in plan.merged.get(name, ())] for name in axes}
        self.rows = {name: max(1, math.prod(feeds[x].shape[axis] for x, axis in of)) for name, of in sites.items()}
        self.chunks, self.borders = self.chunks + len(lengths), self.borders + len(lengths) - 1
        for length, chunk in zip(lengths, self.pieces(feeds, lengths), strict=True):
            parts.append(session.run(chunk))
            end += length
            for name, axis in axes.items():
                totals[name] += Fraction(parts[-1][name].shape[axis], self.rows[name])
                self.emitted[name][end].add(totals[name])
        outputs = []
        for name, what in plan.outputs.items():
            pieces = [part[name] for part in parts]
            try:
                if isinstance(what, str):  # of a constant output, a piece that differs from the first one
                    others = (piece for piece in pieces if what != LAST and not np.array_equal(piece, pieces[0]))
                    outputs.append(pieces[-1] if what == LAST else next(others, pieces[0]))
                else:
                    outputs.append(np.concatenate(pieces, what))
            except ValueError as error:
                raise RnnLowerError(f"the chunks of output '{name}' do not fit together: {one_line(error)}") from None
        return outputs

    def pieces(self, feeds: Feeds, lengths: Sequence[int]) -> Iterator[Feeds]:
        """The inputs of each chunk; only the first has the caller's states."""
        from_caller, begin = {state.input for state in self.plan.states if state.first is None}, 0
        for length in lengths:
            chunk = {name: array for name, array in feeds.items() if begin == 0 or name not in from_caller}
            for name, axis in self.plan.inputs.items():
                chunk[name] = np.take(feeds[name], range(begin, begin + length), axis)
            yield chunk
            begin += length

    def begun(self, name: str, frames: int, whole: Any, result: Any) -> Any:
        """An output over this number of input frames, without the frames that a stream would only emit later.

        Their number is the same for all runs, and found in the first one.
        """
        axis = self.plan.outputs[name]
        if not isinstance(axis, int) or axis >= min(whole.ndim, result.ndim):
            return whole
        count, rows = whole.shape[axis], self.rows[name]
        self.wholes[name][frames] = Fraction(count, rows)
        missing = (count - result.shape[axis]) // rows if name in self.plan.cut else 0
        missing = max(0, self.missing.setdefault(name, missing))
        return np.take(whole, range(max(0, count - missing * rows)), axis)

    def uneven(self) -> str:
        """How the number of frames of an output after a chunk differs from the original's, or ""."""
        if empty := self.empty():
            return empty
        for name, counts in self.emitted.items():
            wholes = sorted(self.wholes[name].items())[-2:]
            if len(wholes) < 2:
                continue
            (short, few), (long, many) = wholes
            rate = (many - few) / (long - short)
            for frames, found in counts.items():
                wanted = max(0, many - (long - frames) * rate - self.missing[name])
                if wrong := found - {wanted}:
                    return f"output '{name}' has {min(wrong)} instead of {wanted} frames after {frames} input frames"
        return ""

    def empty(self) -> str:
        """An output that never had a frame, although the original's had some, or ""."""
        names = (name for name, counts in self.emitted.items() if not any(map(any, counts.values())))
        return next((f"output '{name}' is always empty" for name in names if any(self.wholes[name].values())), "")

    def reset_results(self, make: Callable[[], StreamingSession], feeds: Feeds) -> Iterator[tuple[Feeds, Feeds]]:
        """Yield the outputs and states after two chunks: between them, the session or input `reset` resets rows.

        These are every other row, the others, and all, in short chunks and long ones; nothing if the inputs are too
        short for two chunks.
        """
        name, axis = next(iter(self.plan.inputs.items()))
        frames = feeds[name].shape[axis]
        if frames < 2 * self.step:
            return
        lengths = {self.step, self.fixed_step or frames // self.step // 2 * self.step}
        for length, chosen in itertools.product(sorted(lengths), ({0}, {1}, {0, 1})):
            chunks = [*self.pieces(feeds, [length, length])]
            by_session, by_input = make(), make()
            for session in (by_session, by_input):
                session.run(chunks[0])
            rows = np.isin(np.arange(by_session.row_count(by_session.state)) % 2, [*chosen])
            try:
                by_session.reset(rows)
            except RnnLowerError:  # the session can only reset all rows
                if len(chosen) == 1:
                    continue
                by_session.reset()
            wanted, results = by_session.run(chunks[1]), by_input.run({**chunks[1], str(self.plan.reset): rows})
            yield wanted | by_session.state, results | by_input.state

    def calls(self, feeds: Feeds, index: int) -> Iterator[Feeds]:
        """Inputs in the shapes of `feeds` for consecutive runs; the first also has the caller's states."""
        rng = np.random.default_rng([self.seed, index])
        theirs = {state.input for state in self.plan.states if state.first is None}
        for number in range(CALLS):
            yield {name: array for name, array in feeds.items() if not number or name not in theirs}
            feeds = {
                name: rng.uniform(-1, 1, array.shape).astype(array.dtype) if array.dtype.kind in "fV" else array
                for name, array in feeds.items()
            }
