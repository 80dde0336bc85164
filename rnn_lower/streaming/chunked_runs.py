"""Runs of a streaming model in chunks, for comparison with runs of the original on whole sequences."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from rnn_lower.checking import samples
from rnn_lower.errors import RnnLowerError
from rnn_lower.lowering.node import RecurrentNode
from rnn_lower.modelio.document import Document
from rnn_lower.proving.model_inputs import fixed_sizes
from rnn_lower.streaming.plan import LAST, Plan
from rnn_lower.streaming.session import Feeds, StreamingSession

T = TypeVar("T")

LONGEST = 600
"""The maximum number of remembered steps that a run covers."""

CALLS = 6
"""The number of consecutive runs of a model that computes one step per run."""


class ChunkedRuns:
    """Sampling and chunking for runs of the original and of a streaming model.

    step: chunk lengths are multiples of it.  fixed_step: the only chunk length, None if it is free.
    remembered: the number of earlier steps that affect an output; shorter runs would compare only initial states.
    """

    def __init__(self, original: Document, streaming: Document, plan: Plan, seed: int) -> None:
        self.original, self.made, self.plan, self.seed = original, streaming, plan, seed
        self.fixed_step = fixed_step(streaming, plan)
        self.step = self.fixed_step or plan.every
        self.remembered = min(-(-plan.reach // self.step), LONGEST)
        self.chunks = self.borders = 0

    def sampled(
        self, index: int, steps: int, run: Callable[[Feeds], T], failure: type[Exception],
        nodes: Sequence[RecurrentNode] | None = None,
    ) -> T | str:  # fmt: skip
        """The results of the original over so many steps after the delay, for sampled inputs; or why no sample ran.

        failure: the exception that `run` raises for inputs that the original does not accept.
        """
        late = max([*self.plan.late.values(), *self.plan.warm_up.values()], default=0)
        frames = (-(-late // self.step) + steps) * self.step
        fixed = fixed_step(self.original, self.plan)
        if fixed is not None and fixed % self.step:
            raise RnnLowerError(
                f"the model has a fixed length of {fixed} frames, which is not a multiple of the chunk "
                f"length {self.step}"
            )
        sizes = fixed_sizes(self.original.model, self.made.proto) | dict.fromkeys(
            self.plan.inputs.items(), fixed or frames
        )
        why = ""
        for feeds in samples.Samples(self.original.model, self.seed, sizes, nodes).candidates(index):
            try:
                return run(feeds)
            except failure as error:
                why = why or str(error)
        return why

    def chunkings(self, feeds: Feeds, index: int, sizes: Sequence[int], mixed: int) -> Iterator[list[int]]:
        """The chunk lengths to try: equal ones, mixed ones, and the whole sequence."""
        name, axis = next(iter(self.plan.inputs.items()))
        frames, step = feeds[name].shape[axis], self.step
        count, rng = frames // step, np.random.default_rng([self.seed, index])
        for size in sizes if self.fixed_step is None else (1,):
            yield [step * n for n in [size] * (count // size) + [count % size] * (count % size > 0)]
        if self.fixed_step is not None:
            return
        for _ in range(mixed):
            cuts = np.flatnonzero(rng.integers(0, 2, count - 1) == 0) + 1
            edges = [0, *(int(cut) for cut in cuts), count]
            yield [step * (b - a) for a, b in itertools.pairwise(edges)]
        yield [frames]

    def stream_through(self, session: StreamingSession, feeds: Feeds, lengths: Sequence[int]) -> list[Any]:
        """The outputs of a run chunk by chunk, concatenated."""
        plan, begin, parts = session.plan, 0, []
        self.chunks, self.borders = self.chunks + len(lengths), self.borders + len(lengths) - 1
        from_caller = {state.input for state in plan.states if state.first is None}
        for length in lengths:
            chunk = {name: array for name, array in feeds.items() if begin == 0 or name not in from_caller}
            for name, axis in plan.inputs.items():
                chunk[name] = np.take(feeds[name], range(begin, begin + length), axis)
            parts.append(session.run(chunk))
            begin += length
        outputs = []
        for name, what in plan.outputs.items():
            pieces = [part[name] for part in parts]
            outputs.append(
                pieces[-1] if what == LAST else pieces[0] if isinstance(what, str) else np.concatenate(pieces, what)
            )
        return outputs

    def begun(self, name: str, whole: Any, result: Any) -> Any:
        """An output over the whole sequence, without the frames that a stream would only emit later."""
        axis = self.plan.outputs[name]
        if name not in self.plan.cut or not isinstance(axis, int):
            return whole
        return np.take(whole, range(min(whole.shape[axis], result.shape[axis])), axis)

    def calls(self, index: int) -> Iterator[Feeds]:
        """Inputs of equal shapes for consecutive runs; the first also has the caller's states."""
        fixed, rng = fixed_sizes(self.original.model, self.made.proto), np.random.default_rng([self.seed, index])
        feeds = next(samples.Samples(self.original.model, self.seed, fixed).candidates(index))
        theirs = {state.input for state in self.plan.states if state.first is None}
        for number in range(CALLS):
            yield {name: array for name, array in feeds.items() if not number or name not in theirs}
            feeds = {
                name: rng.uniform(-1, 1, array.shape).astype(array.dtype) if array.dtype.kind in "fV" else array
                for name, array in feeds.items()
            }


def fixed_step(document: Document, plan: Plan) -> int | None:
    """The fixed length of a chunk, or None."""
    for name, axis in plan.inputs.items():
        value = next(value for value in document.proto.graph.input if value.name == name)
        dim = value.type.tensor_type.shape.dim[axis]
        return dim.dim_value if dim.HasField("dim_value") else None
    return None
