"""Inputs for a model: sampled to cover everything that recurrent nodes compute, or read from a file.

The first set is short, with numbers in [-1, 1]; later ones are longer, with numbers from small ones to those that
saturate every gate, clip and threshold. Integers cover the range that their consumers distinguish.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np
import onnx_ir as ir

from rnn_lower.checking.integers import ranges
from rnn_lower.driver.plan import read_nodes
from rnn_lower.errors import RnnLowerError
from rnn_lower.ir.traits import DATA_MOVEMENT
from rnn_lower.ir.walk import get_attribute, sources
from rnn_lower.lowering.node import RecurrentNode, axes_of
from rnn_lower.proving.model_inputs import has_rank, overridable_inputs, required_inputs
from rnn_lower.shapes.expressions import evaluated, names_in
from rnn_lower.shapes.required_sizes import exported_sizes, required_sizes
from rnn_lower.shapes.shape_info import Symbol, symbol

Feeds = dict[str, np.ndarray]

S = TypeVar("S")
T = TypeVar("T")

SIZES = (3, 1, 2, 5, 4, 7, 8, 16, 32, 64)
"""Sizes for symbolic dimensions, the likely ones first."""

LENGTHS = (5, 40, 1, 19)
"""Sequence lengths by run. One step may reveal a lost axis; many steps with large numbers mostly test rounding."""

SCALES = ((1.0,), (0.1, 1.0, 10.0), (1.0, 10.0, 100.0, 1e4))
"""Factors for numbers in [-1, 1], by run; one is drawn for each step or element."""

EMPTY = 1 / 8
"""The share of frames of zeros, in some runs."""

LARGEST_STATE = 100.0
"""The largest factor for initial states: a closed gate passes on its rounding error, 6e-8, times the state."""

MOST_COUNTED = 500
"""The largest number that a model counts to or slices at for which a longer sequence is sampled."""

LARGEST_DEFAULTS = 1 << 24
"""The maximum size, in bytes, of default values that samples override."""

GROWN = (16, 64, 256, 512, 576, 1024, 1536, 4000, 16000)
"""Sizes for the last free axis of inputs, if small ones do not work, such as frames and audio samples."""

MOST_ELEMENTS = 1 << 30
"""The most elements of a sampled input."""

RANKS = (3, 2, 1, 4, 0)
"""Ranks for inputs that declare no shape."""

INTEGERS = ((0, 2), (0, 1), (-9, 10), (0, 6), (0, 100))
"""Ranges of integers, from the first number to below the second. Each run begins with another range; models take most
integers for indices or choices, so that the others follow if a model does not run with the first."""

LARGEST_FLOAT16 = 6e4
_FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def _defaults(model: ir.Model) -> dict[str, np.ndarray]:
    """The default values of optional inputs."""
    defaults: dict[str, np.ndarray] = {}
    budget = LARGEST_DEFAULTS
    for value in overridable_inputs(model):
        tensor = value.const_value
        if tensor is None or tensor.dtype == ir.DataType.STRING or tensor.nbytes > budget:
            continue
        if any(user.op_type == "Dropout" for user, _ in value.uses()):  # training mode is random
            continue
        array = tensor.numpy()
        if tensor.dtype not in _FLOATS or np.all(np.isfinite(array.astype(np.float64))):
            defaults[str(value.name)] = array
            budget -= tensor.nbytes
    return defaults


@dataclasses.dataclass(frozen=True)
class _Plan:
    """How to choose sizes. known: given sizes.  common: one size for all.  last: for last free axes; others are 1.
    positive: no negative floats, as a Log or Sqrt in the model may need.
    """

    known: Mapping[Symbol, int] = dataclasses.field(default_factory=dict)
    common: int | None = None
    last: int | None = None
    positive: bool = False


class NoInputsError(Exception):
    """A model runs with none of the sampled inputs; the text is its first error."""


def first_result(
    candidates: Iterable[S], run: Callable[[S], T], failure: type[Exception],
    is_useful: Callable[[T], bool] = lambda _: True,
) -> T:  # fmt: skip
    """The first useful result of `run`, otherwise the first one.

    failure: the exception that it raises for inputs that the model does not accept.
    Raises NoInputsError if it fails with all candidates.
    """
    why, useless = "", list[T]()
    for feeds in candidates:
        try:
            result = run(feeds)
        except failure as error:
            why = why or str(error)
            continue
        if is_useful(result):
            return result
        useless = useless or [result]
    if not useless:
        raise NoInputsError(why)
    return useless[0]


class Samples:
    """Sets of inputs for a model.

    fixed: sizes by input and axis.  nodes: the model's recurrent nodes, or None to read them.  named: inputs of the
    other model, whose symbols may tie further sizes: a loop may broadcast a batch size that is fixed for a node.
    """

    def __init__(
        self, model: ir.Model, seed: int = 0, fixed: Mapping[tuple[str, int], int] = {},
        nodes: Sequence[RecurrentNode] | None = None, named: Sequence[ir.Value] = (),
    ) -> None:  # fmt: skip
        self.seed, self.inputs, self.fixed = seed, required_inputs(model), fixed
        nodes = read_nodes(model) if nodes is None else nodes
        self.ties, self.defaults, self.ranges = _ties(nodes), _defaults(model), ranges(model, model.graph.inputs)
        self.required = required_sizes(model)
        for name, sizes in self.required.items():
            if len(sizes) == 1:
                self.ties.tie(name, sizes[0])
        self.ranks = {str(v.name): rank for v in self.inputs if (rank := _rank(v, nodes, fixed)) is not None}
        inputs = {str(value.name): value for value in self.inputs}
        for value in named:
            rank = len(value.shape or ())
            if (same := inputs.get(str(value.name))) is not None and has_rank(same, rank):
                for axis in range(rank):
                    self.ties.tie(f"named/{symbol(value, axis)}", symbol(same, axis))
        self.narrow = {str(value.name): kind for value in self.inputs if (kind := _narrow_type(value)) is not None}
        self.known = {self.ties.find(symbol(inputs[name], axis)): size for (name, axis), size in fixed.items()}
        self.limits = _length_limits(nodes)
        read = [(name, value) for node in nodes for name, value in node.inputs.items() if value.is_graph_input()]
        # Other inputs from which lengths are computed need not be lengths.
        self.direct = {str(value.name) for _, value in read}
        # Large weights amplify rounding until the outputs of the native node are arbitrary.
        self.weights = {str(value.name) for name, value in read if name in ("W", "R", "B", "P")}
        initial = (node.inputs.get(name) for node in nodes for name in ("initial_h", "initial_c"))
        self.states = {str(value.name) for state in initial for value in sources(state, DATA_MOVEMENT)}
        times = (limit for limit in (*self.limits.values(), *map(_time, nodes)))
        self.times = {self.ties.find(limit) for limit in times if not isinstance(limit, int)}
        axes = [(value, axis) for value in self.inputs for axis in range(len(value.shape or ()))]
        names = {size for size in (symbol(value, axis) for value, axis in axes) if isinstance(size, str)}
        self.expressions = {name: parts for name in names if (parts := names_in(name)) and parts <= names}
        self.grown, self.lengths = self._grown_axes(), [*LENGTHS]
        self._accepted_sizes: dict[Symbol, int] = {}
        self.exported = {self.ties.find(name): size for name, size in exported_sizes(model).items()}

    def reach_beyond(self, numbers: Iterable[int]) -> None:
        """Sample sequences that are longer than these numbers, unless they are large."""
        longest = max(self.lengths)
        beyond = max([longest, *(abs(number) + 3 for number in numbers if abs(number) <= MOST_COUNTED)])
        self.lengths[self.lengths.index(longest)] = beyond

    def _grown_axes(self) -> dict[str, int]:
        """The axis of each input that may need to be long: a free last axis, else the last free one."""
        last = dict[str, int]()
        for value in self.inputs:
            for axis in range(self.ranks.get(str(value.name), 0)):
                name = self.ties.find(symbol(value, axis))
                if value.name not in self.states and not isinstance(name, int) and name not in self.expressions:
                    last[str(value.name)] = axis
        ends = {name: axis for name, axis in last.items() if axis == self.ranks[name] - 1}
        return ends or {name: axis for name, axis in last.items() if axis}

    def candidates(self, index: int) -> Iterator[Feeds]:
        """The sets of inputs to try for run number `index`, until the model runs with one.

        After independent sizes come those that worked before, then equal ones, for models that tie dimensions without
        declaring it or divide them, then, until a run has worked, the sizes of the export, and longer and longer last
        axes, for models of audio.
        """
        known, commons = self._accepted_sizes, [SIZES[(index + step) % len(SIZES)] for step in (1, 3)]
        plans = [_Plan(), _Plan(known=known) if known else _Plan(common=commons[0]), _Plan(known=known, positive=True)]
        plans += [_Plan(common=commons[0] if known else 8), _Plan(), _Plan(common=commons[1])]
        plans += [_Plan(known=self.exported)] if self.exported and not known else []
        plans += [_Plan(last=size) for size in (() if known else GROWN)]  # which may take all memory
        plans += [_Plan(), _Plan(common=1), _Plan(common=8), _Plan(known=known)]
        for attempt, plan in enumerate(plans):
            draw = _Draw(self, index, attempt, plan)
            feeds = {str(value.name): draw.sample(value) for value in self.inputs}
            defaults = self.defaults if index % 3 == 1 and attempt < 6 else {}
            yield feeds | {name: draw.non_default(name, default) for name, default in defaults.items()}

    def keep(self, feeds: Feeds) -> None:
        """Remember the sizes of inputs with which the model ran."""
        for value in self.inputs:
            for axis, size in enumerate(feeds[str(value.name)].shape):
                name = self.ties.find(symbol(value, axis))
                if not isinstance(name, int):
                    self._accepted_sizes[name] = size


class _Draw:
    """One set of inputs. sizes: one for each symbol."""

    def __init__(self, samples: Samples, index: int, attempt: int, plan: _Plan) -> None:
        self.samples, self.index, self.attempt, self.plan = samples, index, attempt, plan
        self.rng = np.random.default_rng([samples.seed, index, attempt])
        self.sizes = {**plan.known, **samples.known}
        # Later attempts use small values, in case the model rejected the large ones.
        self.scales = SCALES[index % len(SCALES)] if attempt < 6 or plan.known else SCALES[0]

    def size(self, name: Symbol, is_last: bool = False) -> int:
        symbol = self.samples.ties.find(name)
        if isinstance(symbol, int):
            return symbol
        parts = self.samples.expressions.get(symbol, ())
        if symbol not in self.sizes and parts:
            number = evaluated(symbol, {each: self.size(each) for each in parts})
            self.sizes |= {} if number is None else {symbol: number}
        if symbol not in self.sizes:
            drawn = int(self.rng.choice(self.samples.required.get(symbol, SIZES[: 6 + min(self.index, 4)])))
            lengths = self.samples.lengths
            length = lengths[self.index % len(lengths)] if symbol in self.samples.times else drawn
            if self.plan.last is not None:
                length = self.plan.last if is_last else 1
            self.sizes[symbol] = self.plan.common or length
        return self.sizes[symbol]

    def sample(self, value: ir.Value) -> np.ndarray:
        name, samples = str(value.name), self.samples
        if value.type is not None and not isinstance(value.type, ir.TensorType):
            text = f"input '{name}' is not a tensor, so the models cannot be run on sampled inputs"
            raise RnnLowerError(f"{text}; use --prove, which runs neither model")
        if value.dtype is None:
            raise RnnLowerError(f"the type of input '{name}' is unknown; provide inputs (--inputs X.npz)")
        rank = samples.ranks.get(name, RANKS[self.attempt % len(RANKS)])
        fixed = [samples.fixed.get((name, axis)) for axis in range(rank)]
        sizes = [samples.ties.find(symbol(value, axis)) if n is None else n for axis, n in enumerate(fixed)]
        shape = [self.size(size, axis == samples.grown.get(name)) for axis, size in enumerate(sizes)]
        if math.prod(shape) > MOST_ELEMENTS:
            raise RnnLowerError(
                f"input '{name}' has {math.prod(shape)} elements, too many to sample; fix its sizes (--dim)"
            )
        if name in samples.limits and (self.attempt % 2 == 0 or name in samples.direct):
            return self.lengths(name, shape).astype(value.dtype.numpy())
        choices: Sequence[int] | np.ndarray | None = (False, True) if value.dtype == ir.DataType.BOOL else None
        if value.dtype.is_integer() and self.attempt % 2 == 0:
            choices = samples.ranges.get(name)
        if choices is not None:
            return self.chosen(name, choices, shape).astype(value.dtype.numpy())
        largest = 1.0 if name in samples.weights else LARGEST_STATE if name in samples.states else math.inf
        scales = [scale for scale in self.scales if scale <= largest] or (1.0,)
        return self.array(samples.narrow.get(name, value.dtype), shape, scales).astype(value.dtype.numpy())

    def chosen(self, name: str, choices: Sequence[int] | np.ndarray, shape: list[int]) -> np.ndarray:
        """Random choices; a single number, which may select a branch, takes another one in each run."""
        if math.prod(shape) != 1:
            return np.asarray(self.rng.choice(choices, shape))
        order = np.random.default_rng([self.samples.seed, *name.encode()]).permutation(len(choices))
        return np.full(shape, choices[order[self.index % len(choices)]])

    def non_default(self, name: str, default: np.ndarray) -> np.ndarray:
        """Another value than the default, of its kind; the default if no other value is known to be valid."""
        if name in self.samples.limits:
            return self.lengths(name, list(default.shape)).astype(default.dtype)
        if default.dtype == bool:
            return self.rng.integers(0, 2, default.shape).astype(bool)
        if default.dtype.kind in "iu":
            numbers = self.samples.ranges.get(name)
            return default if numbers is None else self.rng.choice(numbers, default.shape).astype(default.dtype)
        # Weights keep their magnitude; zeros become small numbers.
        size = np.abs(default.astype(np.float64)) if np.any(default) else 1.0
        return np.asarray(default + (0.1 * size * self.rng.uniform(-1, 1, default.shape)).astype(default.dtype))

    def lengths(self, name: str, shape: list[int]) -> np.ndarray:
        longest = self.samples.limits[name]
        return _lengths(self.rng, shape, longest if isinstance(longest, int) else self.size(longest), self.index)

    def array(self, dtype: ir.DataType, shape: list[int], scales: Sequence[float]) -> np.ndarray:
        if dtype == ir.DataType.STRING:
            raise RnnLowerError("the model has string inputs; provide inputs (--inputs X.npz)")
        if dtype.is_integer():
            low, high = INTEGERS[(2 * self.index + self.attempt) % len(INTEGERS)]
            return self.rng.integers(low if dtype.is_signed() else 0, high, shape).astype(dtype.numpy())
        # Most steps share one scale, so that a large element does not hide small ones everywhere.
        together = [*shape[:-1], 1] if shape and self.rng.integers(4) else shape
        numbers = self.rng.uniform(0 if self.plan.positive else -1, 1, shape) * self.rng.choice(scales, together)
        kept = self.rng.random([*shape[:-1], 1] if shape else ()) > EMPTY
        if self.index % 3 == 1 and not self.plan.positive and kept.any():  # frames of zeros may end a sequence
            numbers = numbers * kept
        largest = LARGEST_FLOAT16 if dtype == ir.DataType.FLOAT16 else math.inf
        return np.asarray(np.clip(numbers, -largest, largest).astype(dtype.numpy()))


def _narrow_type(value: ir.Value) -> ir.DataType | None:
    """The type to which all readers of an input of floats cast it, as in half-precision models, or None.

    onnxruntime drops such a Cast in front of a recurrent node, which it computes in float32.
    """
    casts = {node.attributes.get_int("to", 0) if node.op_type == "Cast" else 0 for node, _ in value.uses()}
    kind = casts.pop() if len(casts) == 1 else 0
    is_float = value.dtype is not None and value.dtype.is_floating_point()
    return ir.DataType(kind) if is_float and kind in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16) else None


class _Ties:
    """Equalities between sizes: a symbol equals another symbol or a number."""

    def __init__(self) -> None:
        self._stands_for: dict[Symbol, Symbol] = {}

    def find(self, size: Symbol) -> Symbol:
        while size in self._stands_for:
            size = self._stands_for[size]
        return size

    def tie(self, first: Symbol, second: Symbol) -> None:
        first, second = self.find(first), self.find(second)
        if first == second or (isinstance(first, int) and isinstance(second, int)):
            return
        source, goal = (second, first) if isinstance(first, int) else (first, second)
        self._stands_for[source] = goal


def _ties(nodes: Sequence[RecurrentNode]) -> _Ties:
    """The equalities that recurrent nodes imply for the sizes of model inputs that they read."""
    ties = _Ties()
    for number, node in enumerate(nodes):
        for size in ("seq_length", "batch_size", "input_size", "hidden_size", "num_directions"):
            if getattr(node, size) is not None:
                ties.tie(f"{number}/{size}", getattr(node, size))
        for name, value in node.inputs.items():
            axes = axes_of(name, node.operator.gates, node.layout)
            for axis, (factor, size) in enumerate(axes if value.is_graph_input() else []):
                known = ties.find(f"{number}/{size}")
                if isinstance(known, int) or factor == 1:
                    ties.tie(symbol(value, axis), factor * known if isinstance(known, int) else known)
    return ties


def _rank(value: ir.Value, nodes: Sequence[RecurrentNode], fixed: Mapping[tuple[str, int], int]) -> int | None:
    """The rank of an input: declared, fixed, or implied by its reader."""
    if value.shape is not None:
        return len(value.shape)
    if axes := sum(1 for name, _ in fixed if name == value.name):
        return axes
    for node in nodes:
        for name, read in node.inputs.items():
            if read is value:
                return len(axes_of(name, 1, node.layout))
    users = (user for user, _ in value.uses() if user.op_type == "Transpose")
    orders = (get_attribute(user, "perm", ir.AttributeType.INTS, None) for user in users)
    return next((len(order) for order in orders if order), None)


def _lengths(rng: np.random.Generator, shape: list[int], length: int, index: int) -> np.ndarray:
    """Random sequence lengths, with the full length and 0 in some row or run.

    For two axes, return a mask instead, with as many ones in each row as its length.
    """
    if len(shape) == 2 and length in shape:
        time = 1 if shape[1] == length else 0
        rows = _lengths(rng, [shape[1 - time]], length, index)
        mask = (np.arange(length) < rows[:, None]).astype(np.int32)
        return mask if time == 1 else mask.T
    result = rng.integers(0, length + 1, shape).astype(np.int32)
    for position, special in enumerate((length, 0, max(0, length - 1))):
        row = (position + index) % 3 if result.size < 3 else position
        if row < result.size:
            result.flat[row] = special
    return result


def _time(node: RecurrentNode) -> Symbol:
    """The sequence length of a node: its size, its symbol, or its input axis."""
    if node.seq_length is not None:
        return node.seq_length
    x = node.inputs["X"]
    return symbol(x, node.layout) if x.is_graph_input() else f"{x.name}/{node.layout}"


def _length_limits(nodes: Sequence[RecurrentNode]) -> dict[str, Symbol]:
    """The sequence length, by input that determines sequence_lens."""
    limits: dict[str, Symbol] = {}
    for node in nodes:
        for value in sources(node.inputs.get("sequence_lens")):
            is_whole = value.dtype is not None and (value.dtype.is_integer() or value.dtype == ir.DataType.BOOL)
            if is_whole or value.shape is None or len(value.shape) == 2:
                limits.setdefault(str(value.name), _time(node))
    return limits
