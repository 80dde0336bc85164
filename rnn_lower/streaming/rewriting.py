"""From a model of whole sequences to its streaming form: prove, then rewrite."""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import onnx_ir as ir

from rnn_lower.driver.plan import read_nodes
from rnn_lower.errors import RnnLowerError, UnsupportedError
from rnn_lower.ir.walk import recurrent_nodes
from rnn_lower.modelio.document import Document
from rnn_lower.options import Dims
from rnn_lower.shapes.fixed_dims import Shapes, declared_shapes, free_dims, free_proto_dim, place
from rnn_lower.shapes.shape_info import NO_NAMES, plain_dim
from rnn_lower.streaming.carrying import (
    carry_cache,
    carry_held,
    carry_joined,
    carry_overlap,
    carry_recurrence,
    carry_sum,
    change_attributes,
    keep_reduced,
    mask,
    replace_arguments,
    tell_length,
    tell_sizes,
)  # fmt: skip
from rnn_lower.streaming.follow import Walk
from rnn_lower.streaming.late import Accumulated, Arguments, Changed, Held, Masked, Reduced, Sizes
from rnn_lower.streaming.plan import FIXED, LAST, Plan, State, read_plan
from rnn_lower.streaming.reach import gives_back, has_one_step, inputs_of, is_part_of_input, reaches_output
from rnn_lower.streaming.recurrence import Length, Recurrence
from rnn_lower.streaming.surgery import Surgery
from rnn_lower.streaming.track import Track
from rnn_lower.streaming.windows import Cache, Joined, Overlap, PaddedError, cut_behind
from rnn_lower.transforms.fold import fold
from rnn_lower.transforms.inline import inlined

CARRY: Mapping[type, Callable[[Surgery, Any], None]] = {
    Recurrence: carry_recurrence, Length: tell_length, Cache: carry_cache, Held: carry_held, Sizes: tell_sizes,
    Reduced: keep_reduced, Accumulated: carry_sum, Arguments: replace_arguments, Joined: carry_joined,
    Changed: change_attributes, Masked: mask, Overlap: carry_overlap,
}  # fmt: skip
"""How what nodes have to remember is carried."""

logger = logging.getLogger("rnn_lower")


@dataclasses.dataclass(frozen=True)
class Streamed:
    """The streaming form of a model, its recurrent nodes as they were.

    document: of it.  original: the model that was followed, inputs being set and functions inlined.
    time: what to call the size of the stream when it is fixed; None where the model had its states outside already.
    late: recurrent nodes that get no frames at first.
    """

    document: Document
    original: Document
    plan: Plan
    time: str | None
    late: tuple[str, ...] = ()


def streamed(
    document: Document, time: str | None, set_inputs: Mapping[str, Any] | None, reset: bool,
    dims: Dims | None, step: int | None = None, delay: bool = False,
) -> Streamed:  # fmt: skip
    """The streaming form of a model. Raises UnsupportedError where it is not proved to be causal, naming the node."""
    if read_plan(document.proto) is not None:
        raise RnnLowerError(
            "it is a streaming model already: take it as it is, lower it (rnn-lower lower), or stream the one that it"
            " was made of"
        )
    ready = _ready(document, set_inputs or {}, dims)
    original, time, baked = _opened(ready.copied(), time)
    streams = _streams(original, time)
    if not streams:
        if step is not None:
            raise RnnLowerError("--step: the states are outside already, and no axis of the inputs is the stream")
        logger.info("the state comes from an input already, and is left as it is: %s", ", ".join(_external(original)))
        plan = Plan({}, {str(value.name): FIXED for value in original.model.graph.outputs}, ())
        return Streamed(original.copied(), original, plan, None)
    work, walk = _followed(original, streams, delay, step, baked)
    recurrent = [(node.describe(), node.inputs["X"]) for node in read_nodes(work.model, work.facts)]
    if time is None and _nothing_runs(walk, work):
        raise RnnLowerError(
            f"no recurrent node runs over '{_called(original.model, streams)}', the only size that is symbolic: is it"
            " the batch? Say which axis is the stream (--time INPUT[AXIS])"
        )
    every = math.lcm(*(track.every.numerator for track in walk.tracks.values()))
    if step is not None and step < 1:
        raise RnnLowerError(f"--step {step}: a chunk has at least one frame")
    if step is not None and step % every:
        raise UnsupportedError(f"--step {step}: the strides of the model over time take multiples of {every} frames")
    surgery = Surgery(work, walk.tracks, _symbols(work.model, streams), reset, step)
    for one in walk.carried:
        CARRY[type(one)](surgery, one)
    outputs = {str(value.name): _kind(walk, value) for value in work.model.graph.outputs}
    surgery.finish()
    states = tuple(_in_order(surgery.states))
    last = [(str(value.name), walk.tracks[value]) for value in work.model.graph.outputs]
    plan = Plan(
        streams, outputs, states, every, surgery.symbols, surgery.reset, tuple(sorted(surgery.left)),
        {name: _waits(track) for name, track in last if _waits(track)},
        tuple(name for name, track in last if track.cut),
        {name: track.late for name, track in last if track.late and step is not None}, surgery.seen, _reach(walk),
    )  # fmt: skip
    plan.write(work.proto)
    for note in surgery.notes:
        logger.info("%s", note)
    if not states and not plan.left:
        logger.info("no node carries anything over the stream; the model takes chunks as it is")
    called = _called(original.model, streams)
    late = tuple(told for told, x in recurrent if walk.tracks[x].late)
    return Streamed(Document(work.proto, work.folder), ready, plan, called, late)


def _followed(
    document: Document, streams: dict[str, int], delay: bool, step: int | None = None, baked: int | None = None
) -> tuple[Document, Walk]:  # fmt: skip
    """A copy of a document, and what is known of its values."""
    work = document.copied()
    while True:
        walk = Walk(work.model, work.facts, streams, delay, step, baked)
        try:
            walk.run()
        except PaddedError as error:
            work = work.changed(functools.partial(cut_behind, name=str(error.node.outputs[0].name), axis=error.axis))
            continue
        return work, walk


def _ready(document: Document, values: Mapping[str, Any], dims: Dims | None) -> Document:
    """A document of one's own, with inputs set and their branches folded away, sizes fixed and functions inlined."""
    ready = document.copied()
    if ready.proto.functions:
        ready = Document(inlined(ready.proto), document.folder)
    if dims:
        ready = ready.fixed(dims)
    return ready.changed(lambda model: _set(model, values)) if values else ready


def _set(model: ir.Model, values: Mapping[str, Any]) -> None:
    """Make inputs constants, and fold what follows from them."""
    for name, given in values.items():
        value = next((one for one in model.graph.inputs if one.name == name), None)
        if value is None:
            known = ", ".join(str(one.name) for one in model.graph.inputs) or "none"
            raise RnnLowerError(f"no input is called '{name}' (--set); inputs: {known}")
        array = _as_declared(value, given)
        model.graph.inputs.remove(value)
        value.const_value = ir.tensor(array, name=name)
        value.shape = ir.Shape(array.shape)
        model.graph.register_initializer(value)
    fold(model)


def _as_declared(value: ir.Value, given: Any) -> np.ndarray:
    """A value in the type and shape that the input declares."""
    if value.dtype is None:
        raise RnnLowerError(f"input '{value.name}' declares no element type, so that it cannot be set")
    try:
        array = np.asarray(given).astype(value.dtype.numpy())
    except (TypeError, ValueError):
        raise RnnLowerError(f"{given!r} is no value for input '{value.name}' of type {value.dtype.name}") from None
    shape = array.shape if value.shape is None else tuple(map(plain_dim, value.shape))
    if len(shape) > array.ndim and array.size == 1 and all(isinstance(n, int) for n in shape):
        array = np.full([n for n in shape if isinstance(n, int)], array.reshape(()), array.dtype)
    fits = zip(shape, array.shape, strict=False)
    if len(shape) != array.ndim or any(isinstance(n, int) and n != m for n, m in fits):
        raise RnnLowerError(f"input '{value.name}' is of shape {list(shape)}; the value set is of {list(array.shape)}")
    return array


# -- which axis is the stream -----------------------------------------------------------------------------------------


def _opened(document: Document, time: str | None) -> tuple[Document, str | None, int | None]:
    """The same with a symbol for the axis of the stream, where that is named by its place and has a fixed size."""
    for value in document.model.graph.inputs:
        for axis, dim in enumerate(value.shape or ()):
            size = plain_dim(dim)
            if time == place(str(value.name), axis) and isinstance(size, int):
                symbol = free_proto_dim(document.proto, str(value.name), axis)
                return document.again(), symbol, size
    return document, time, None


def _nothing_runs(walk: Walk, document: Document) -> bool:
    carried = any(isinstance(one, (Recurrence, Cache, Joined, Held, Accumulated, Overlap)) for one in walk.carried)
    return not carried and any(True for _ in recurrent_nodes(document.model))


def _is_complete(document: Document, ways: Sequence[str]) -> bool:
    """Whether the callers carry all that there is to carry, whichever free axis is the stream.

    Raises RnnLowerError where that is an axis of a fixed size, and UnsupportedError where it is not known: no analysis
    finished of an axis that their nodes run over, and one of another axis was refused.
    """
    theirs = set(_external(document))
    for way in _fixed_places(document):
        if _carries(document, way, theirs):
            raise RnnLowerError(
                f"the state is an input already, but something else is carried over {way}: say that it is the stream"
                f" (--time {way})"
            )
    refused, over = None, False
    for way in ways:
        try:
            carried = _carried(document, way)
        except UnsupportedError as error:
            refused = refused or error
            continue
        if _is_more(document, carried, theirs):
            return False
        over |= theirs <= {one.read.describe() for one in carried if isinstance(one, Recurrence)}
    steps_once = all(has_one_step(node) for node in read_nodes(document.model, document.facts))
    if refused is not None and not over and not steps_once:
        raise UnsupportedError(
            f"{refused}; the state is an input already, but what else has to be carried is not known: if nothing has,"
            " lower the model instead (rnn-lower lower)"
        )
    return True


def _carried(document: Document, way: str) -> list[Any]:
    walk = Walk(document.model, document.facts, _places(document, way))
    walk.run()
    return walk.carried


def _is_more(document: Document, carried: Sequence[Any], theirs: set[str]) -> bool:
    """Whether something is to be carried that the callers do not carry already."""
    return any(
        isinstance(one, (Cache, Held, Accumulated, Overlap))
        or (isinstance(one, Joined) and not is_part_of_input(document.model, one.front))
        or (isinstance(one, Recurrence) and one.read.describe() not in theirs)
        for one in carried
    )


def _carries(document: Document, axis: str, theirs: set[str]) -> bool:
    """Whether an axis of a fixed size is one that the callers' nodes run over, and there is more to carry over it."""
    opened, way, _ = _opened(document.copied(), axis)
    try:
        carried = _carried(opened, str(way))
    except UnsupportedError:
        return False
    over = {one.read.describe() for one in carried if isinstance(one, Recurrence)}
    return bool(over & theirs) and _is_more(opened, carried, theirs)


def _fixed_places(document: Document) -> list[str]:
    """The axes of a fixed size, but for those of the states that the callers give."""
    model = document.model
    states: set[ir.Value] = set()
    for node in read_nodes(model, document.facts):
        for letter in node.operator.states:
            if (given := node.inputs.get(f"initial_{letter}")) is not None:
                states |= inputs_of(model, given)
    names = {str(one.name) for one in states}
    return [
        place(name, axis)
        for name, dims in _shapes(document).items()
        for axis, dim in enumerate(dims or ())
        if name not in names and isinstance(dim, int)
    ]


def _streams(document: Document, time: str | None) -> dict[str, int]:
    """The axis of the stream in each input that has it; none where the model has its states outside already."""
    ways = list(dict.fromkeys(way for *_, way in free_dims(_shapes(document))))
    if time is None:
        if _external(document) and _is_complete(document, ways):
            return {}
        if len(ways) != 1:
            told = "no input has a symbolic size" if not ways else f"the inputs have several sizes, {', '.join(ways)}"
            raise RnnLowerError(f"{told}: say which axis is the stream (--time {ways[0] if ways else 'INPUT[AXIS]'})")
        time = ways[0]
    return _places(document, time)


def _shapes(document: Document) -> Shapes:
    """Of the inputs that have to be given."""
    model = document.model
    return {name: shape for name, shape in declared_shapes(model).items() if name not in model.graph.initializers}


def _places(document: Document, time: str) -> dict[str, int]:
    """Input and axis that have a size of this name, or are named by their place."""
    shapes = _shapes(document)
    ways = list(dict.fromkeys(way for *_, way in free_dims(shapes)))
    places = {
        place(name, axis): (name, axis, dim) for name, dims in shapes.items() for axis, dim in enumerate(dims or ())
    }
    if time in places and places[time][2] not in (None, *NO_NAMES):  # given by its place although it has a name
        time = str(places[time][2])
    found = [
        (name, axis)
        for there, (name, axis, dim) in places.items()
        if time == (there if dim in (None, *NO_NAMES) else dim)
    ]
    if not found:
        raise RnnLowerError(
            f"--time {time}: no input has a symbolic size of this name; there are {', '.join(ways) or 'none'}"
        )
    if len({name for name, _ in found}) < len(found):
        raise RnnLowerError(f"--time {time}: more than one axis of input '{found[0][0]}' is called so")
    return dict(found)


def _called(model: ir.Model, streams: Mapping[str, int]) -> str:
    """What `dims` calls the size of the stream."""
    return next(way for name, axis, way in free_dims(declared_shapes(model)) if streams.get(name) == axis)


def _external(document: Document) -> list[str]:
    """Recurrent nodes that start from an input and give their state back, so that the caller carries it.

    A model of one fixed size may give it back in whatever way it likes: it is for one chunk at a time anyway.
    """
    model = document.model
    returned = gives_back if any(True for _ in free_dims(declared_shapes(model))) else reaches_output
    held = []
    for node in read_nodes(model, document.facts):
        state = node.inputs.get("initial_h")
        given = state is not None and is_part_of_input(model, state)
        back = any(returned(model, value) for value in node.outputs.values())
        held += [node.describe()] if given and back else []
    return held


def _symbols(model: ir.Model, streams: Mapping[str, int]) -> dict[str, tuple[str, int]]:
    """Where the sizes of states can be read off: an input and an axis for each symbol."""
    found: dict[str, tuple[str, int]] = {}
    for value in sorted(model.graph.inputs, key=lambda one: one.name not in streams):
        for axis, dim in enumerate(value.shape or ()):
            known = plain_dim(dim)
            if not isinstance(known, int) and streams.get(str(value.name)) != axis:
                vague = known is None or known in NO_NAMES
                found.setdefault(f"{value.name}#{axis}" if vague else str(known), (str(value.name), axis))
    return found


def _waits(track: Track) -> int:
    """How many frames of the input a value waits for before its first one comes."""
    return math.ceil((track.late - track.dropped) * track.every)


def _reach(walk: Walk) -> int:
    """Frames of the input that an output looks back at, at most, states of recurrent nodes aside."""
    frames = Fraction(0)
    for one in walk.carried:
        if isinstance(one, (Cache, Held, Joined)):
            value = next(
                value for value in one.node.inputs if value is not None and walk.tracks[value].axis is not None
            )
            frames += walk.tracks[value].every * (one.reach if isinstance(one, Held) else one.length)
    return math.ceil(frames)


def _kind(walk: Walk, value: ir.Value) -> int | str:
    track = walk.tracks[value]
    return track.axis if track.axis is not None else LAST if track.last else FIXED


def _in_order(states: Sequence[State]) -> Iterator[State]:
    """Each once: several nodes may count the same lengths."""
    yield from {state.input: state for state in states}.values()
