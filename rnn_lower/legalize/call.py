"""An operator that is to be emitted, before it is decided how."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rnn_lower.builder.masks import Emitter
    from rnn_lower.builder.writer import Operand


@dataclasses.dataclass(frozen=True)
class Call:
    """An operator that is to be emitted. parameters: by name, whether they are attributes or inputs at the opset."""

    op_type: str
    inputs: tuple[Operand, ...]
    names: tuple[str, ...]
    parameters: Mapping[str, Any]

    @property
    def x(self) -> Operand:
        return self.inputs[0]

    @property
    def name(self) -> str:
        return self.names[0]


Results = Sequence["Operand"] | None
Way = Callable[["Emitter", Call], Results]


def sizes_of(e: Emitter, operand: Operand) -> tuple[int, ...] | None:
    outline = e.outline(operand)
    return None if outline is None else outline.sizes


def result_sizes(e: Emitter, call: Call) -> list[int] | None:
    """The sizes of the result; one that is not known is left to Reshape, as -1."""
    shape = e.use(call).outputs[0].shape
    if shape is None or sum(size is None for size in shape) > 1:
        return None
    return [-1 if size is None else size for size in shape]


def is_float(e: Emitter, operand: Operand) -> bool:
    outline = e.outline(operand)
    return outline is not None and outline.dtype == e.dtype
