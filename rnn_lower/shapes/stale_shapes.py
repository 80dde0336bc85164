"""Values whose declared sizes may be wrong, although runtimes would trust them for emitted values."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence

import onnx_ir as ir

from rnn_lower.ir.walk import Scope, consumed_values, owner_of, subgraphs, upstream
from rnn_lower.shapes.fixed_dims import FIXED
from rnn_lower.shapes.shape_info import RESHAPES, ShapeInfo

logger = logging.getLogger("rnn_lower")


def unverified_values(consumed: Sequence[ir.Value], shape_info: ShapeInfo) -> dict[ir.Value, None]:
    """The values, and those that values of unknown size depend on, because inference propagates false sizes."""
    waiting, seen = list(consumed), dict[ir.Value, None]()
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen[value] = None
        producer, shape = value.producer(), shape_info.shape(value)
        if producer is None:
            continue
        if shape is None or not all(isinstance(size, int) for size in shape):
            waiting += consumed_values(producer)
    return seen


def verified_fixed_shapes(model: ir.Model, shape_info: ShapeInfo) -> dict[ir.Value, ir.Shape]:
    """The verified shapes of values whose symbolic sizes became numbers through `dims`."""
    return {value: ir.Shape(shape_info.verified_dims(value)) for value in model.meta.get(FIXED, ())}


def warn_of_output(value: ir.Value, declared_shape: ir.Shape, shape: ir.Shape) -> None:
    """Warn that sizes of an output were dropped, if they were."""
    pairs = zip(declared_shape, shape, strict=False)
    if len(declared_shape) != len(shape) or any(
        isinstance(declared, int) and declared != new for declared, new in pairs
    ):
        text = "the declared shape of output '%s' was wrong or could not be verified: %s; it is now %s"
        logger.warning(text, value.name, *(str(sizes).replace("None", "?") for sizes in (declared_shape, shape)))


def declared_in(value: ir.Value, scopes: Sequence[Scope]) -> Iterator[ir.Graph | ir.Function | None]:
    """The graphs that may declare sizes of a value: its own, and inner ones that capture it."""
    owner, users = owner_of(value), {user.graph for user, _ in value.uses()}
    yield owner
    for scope in scopes if users - {owner} else ():
        around = list(scope.up_to(owner))
        yield from around if users & set(around) else ()


def reshaped(values: Iterable[ir.Value]) -> Iterator[ir.Value]:
    """The reshaped copies of values; onnxruntime merges consecutive Reshapes and trusts the declared shape."""
    waiting = list(values)
    while waiting:
        for user, index in waiting.pop().uses():
            if user.op_type in RESHAPES and index == 0:
                yield from user.outputs
                waiting += user.outputs


def shapes_of_bodies(consumed: Iterable[ir.Value]) -> Iterator[tuple[ir.Value, ir.Graph]]:
    """The inputs and outputs of bodies that values depend on, because runtimes trust their declared shapes."""

    def read(node: ir.Node, _: int) -> list[ir.Value | None]:
        return [*node.inputs, *(output for _, body in subgraphs(node) for output in body.outputs)]

    for producer in dict.fromkeys(value.producer() for value in upstream(consumed, read)):
        for _, body in () if producer is None else subgraphs(producer):
            yield from ((value, body) for value in (*body.inputs, *body.outputs))
