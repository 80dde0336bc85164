"""Information about a value: whether it carries the stream, along which axis, and its sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from rnn_lower.builder.tensor_info import UNKNOWN, TensorInfo, frozen, inferred
from rnn_lower.errors import UnsupportedError
from rnn_lower.ir.walk import Scope
from rnn_lower.lowering.node import display_name
from rnn_lower.shapes.size_values import SizeValue
from rnn_lower.shapes.sizes import ONE, Size, frames, linear, size

if TYPE_CHECKING:
    from rnn_lower.streaming.causality import CausalityAnalysis


class UnknownShapeError(Exception):
    """A rule needs a shape that is unknown; the node is then refused."""


@dataclasses.dataclass(frozen=True)
class AxisInfo:
    """The known facts about a value: constant over chunks (axis None), or with the frames of the stream along an axis.

    shape: sizes, or None if even the rank is unknown, which is possible only for values without the stream.
    every: input frames per frame of this value; a fraction if an input frame makes several.
    outer: sizes merged into the axis before the frames, which then has size outer * frames * inner.
    lead: frames at the front of each chunk that precede the chunk.
    trail: last frames of a whole run that come from padding and are in no chunk; if negative, frames only in chunks.
    blame: why a value with a trail looks ahead, unless the trail is cut off.
    late: frames that are still missing after each chunk, because they depend on later frames.
    dropped: how many of the late frames were cut off at the front, so that their delay does not reach the outputs.
    cut: whether it has fewer frames than in a whole run, where padding follows the end.
    last: whether it summarizes the frames up to the end of the chunk, like a final state.
    opening: whether it is computed from the first frame of the stream, and so is the same for every chunk.
    offsets: for integers that are frame indices plus constants: these constants, with size 1 along the stream.
    content: for integers of rank 0 or 1, the sizes that the tensor contains, if known.
    """

    shape: tuple[Size, ...] | None
    axis: int | None = None
    every: Fraction = Fraction(1)
    outer: Size = ONE
    lead: int = 0
    trail: int = 0
    blame: str = dataclasses.field(default="", compare=False)
    late: int = 0
    dropped: int = dataclasses.field(default=0, compare=False)
    cut: bool = False
    last: bool = False
    opening: bool = False
    offsets: np.ndarray | None = dataclasses.field(default=None, compare=False)
    content: tuple[Size, ...] | None = None

    @property
    def is_timed(self) -> bool:
        """Whether the value varies with the chunk: it carries the stream or sizes of the stream."""
        return self.axis is not None or any(element.is_timed for element in self.content or ())

    @property
    def size_value(self) -> SizeValue | None:
        """The sizes that the value contains, if known."""
        return None if self.content is None else SizeValue(self.rank, self.content)

    @property
    def rank(self) -> int:
        """The rank of a value with known shape."""
        return len(self.sizes)

    @property
    def sizes(self) -> tuple[Size, ...]:
        """The shape. Raises UnknownShapeError if it is unknown."""
        if self.shape is None:
            raise UnknownShapeError
        return self.shape

    @property
    def frames(self) -> Size:
        """The number of frames."""
        return frames(1 / self.every, -self.late, cut=self.cut)

    @property
    def length(self) -> Size:
        """The size of the stream axis: the frames and the left padding."""
        return frames(1 / self.every, self.lead - self.late, cut=self.cut)

    @property
    def is_plain(self) -> bool:
        """Whether no other axis was merged into the stream axis."""
        return self.axis is not None and not (self.lead or self.trail) and self.sizes[self.axis] == self.frames

    @property
    def is_unmerged(self) -> bool:
        """Like `is_plain`, but left padding may precede the frames."""
        return self.axis is not None and self.outer == ONE and self.sizes[self.axis] == self.length

    def sized(self, length: Size) -> tuple[Size, ...]:
        """The shape with another size of the stream axis."""
        return tuple(length if axis == self.axis else dim for axis, dim in enumerate(self.sizes))

    def moved(self, axis: int, shape: Sequence[Size], **changes: Any) -> AxisInfo:
        """The info of a value with the same frames in another shape."""
        return dataclasses.replace(self, axis=axis, shape=tuple(shape), content=None, **changes)

    def changed(self, shape: Sequence[Size] | None = None, **changes: Any) -> AxisInfo:
        """The info with another number of frames, and perhaps other sizes of the other axes."""
        info = dataclasses.replace(self, shape=tuple(shape or self.sizes), content=None, **changes)
        return dataclasses.replace(info, shape=info.sized(info.length))

    def ended(self, shape: Sequence[Size]) -> AxisInfo:
        """The info of a value that is computed from all frames so far."""
        return AxisInfo(tuple(shape), last=True, cut=self.cut)


FIXED = AxisInfo(None)


def old_opset(what: str, least: int, opset: int) -> str:
    """The reason to refuse what an opset lacks, with the way out."""
    return f"{what} needs opset {least} or newer, but the model has opset {opset}; add --opset 17"


@dataclasses.dataclass
class RuleContext:
    """The view of a rule on its node: the `AxisInfo` of each input, None for absent ones, and the analysis."""

    node: ir.Node
    scope: Scope
    inputs: list[AxisInfo | None]
    analysis: CausalityAnalysis

    @property
    def opset(self) -> int:
        return self.scope.opset

    def carry(self, edit: Callable[[Any], None]) -> None:
        """Register a function that will write the node's state."""
        self.analysis.carried.append(edit)

    def edit(self, function: Callable[..., None], *arguments: Any) -> None:
        """Register a rewrite of the node: function(editor, site, *arguments)."""
        self.carry(lambda work: function(work, work.at(self.node), *arguments))

    def refuse(self, reason: str) -> UnsupportedError:
        """An UnsupportedError that names the node."""
        text = f"{self.node.op_type} '{display_name(self.node)}' in {self.scope.path}"
        return UnsupportedError(f"{text} cannot run chunk by chunk: {reason}")

    def require_opset(self, least: int, what: str = "streaming this operator") -> None:
        """Raise UnsupportedError if the model has an older opset."""
        if self.opset < least:
            raise self.refuse(old_opset(what, least, self.opset))

    def input(self, index: int) -> AxisInfo:
        """A required input."""
        info = self.optional(index)
        if info is None:
            raise self.refuse(f"input {index} is missing")
        return info

    def optional(self, index: int) -> AxisInfo | None:
        """Return the info of an input, or None if it is omitted."""
        return self.inputs[index] if index < len(self.inputs) else None

    def content(self, index: int) -> tuple[Size, ...] | None:
        """The sizes that an input contains, if it is present and they are known."""
        info = self.optional(index)
        return None if info is None else info.content

    def x(self) -> AxisInfo:
        """Return the first input, which must be the only one that carries the stream."""
        for index, info in enumerate(self.inputs):
            if index and info is not None and info.is_timed:
                raise self.refuse(f"input {index} depends on the stream, but must be independent of it")
        return self.input(0)

    def known(self, index: int) -> np.ndarray | None:
        """The content of a constant input, else None."""
        return self.analysis.constants.get(self.node.inputs[index]) if index < len(self.node.inputs) else None

    def integers(self, index: int, attribute: str, until: int) -> list[int] | None:
        """Integers that are an input from some opset on and an attribute before; None if absent."""
        if self.opset < until:
            value = self.attribute(attribute)
            return None if value is None else [int(number) for number in np.atleast_1d(value)]
        if self.optional(index) is None:
            return None
        array = self.known(index)
        if array is None:
            raise self.refuse(f"its input '{attribute}' must be constant")
        if array.dtype.kind not in "iu" or array.ndim > 1:
            raise self.refuse(f"its {attribute} must be a list of integers")
        return [int(number) for number in np.atleast_1d(array)]

    def dtype(self, index: int) -> ir.DataType:
        value = self.node.inputs[index]
        dtype = None if value is None else self.analysis.shape_info.dtype(value)
        if dtype is None:
            raise self.refuse("the element type of its input is unknown")
        return dtype

    def selected_dtype(self, index: int) -> ir.DataType:
        """The element type of an input. Raises UnsupportedError if onnxruntime has no Where for it."""
        dtype = self.dtype(index)
        if dtype in (ir.DataType.BOOL, ir.DataType.INT16, ir.DataType.UINT16, ir.DataType.STRING):
            raise self.refuse(
                "its first frames must be masked with a Where, but onnxruntime does not implement Where "
                f"for {dtype.name}"
            )
        return dtype

    def may_lack_frames(self, info: AxisInfo) -> bool:
        """Whether a chunk of this value may have no frames because of a delay."""
        return bool(info.late) and self.analysis.step is None

    def exported(self, dim: Size) -> int | None:
        """The number that a size had in the example of an export with a fixed stream length."""
        line = None if self.analysis.baked is None else linear(dim)
        number = line[0] * (self.analysis.baked or 0) + line[1] if line else Fraction(0)
        return number.numerator if number and number.denominator == 1 else None

    def attribute(self, name: str, default: Any = None) -> Any:
        attribute = self.node.attributes.get(name)
        if attribute is not None and attribute.is_ref():
            raise self.refuse(
                f"attribute '{name}' refers to an attribute of the enclosing function; inline the function first"
            )
        return default if attribute is None else attribute.value

    def axis(self, default: int, rank: int) -> int:
        """Return the attribute `axis`, counted from the front."""
        return int(self.attribute("axis", default)) % max(rank, 1)

    def fresh(self, axis: int) -> str:
        """A symbol for an unknown size of the first output."""
        return f"{self.node.outputs[0].name}#{axis}"

    def sizes(self, rank: int, index: int = 0) -> list[Size]:
        """The inferred sizes of an output, with a new symbol for each unknown one."""
        value = self.node.outputs[index]
        shape = self.analysis.shape_info.shape(value)
        if shape is None or len(shape) != rank:
            shape = (None,) * rank
        found = [size(self.analysis.known_size(value, k, dim)) for k, dim in enumerate(shape)]
        numbers = self._alone(index) if any(dim.number is None for dim in found) else []
        if len(numbers) != rank:
            return found
        return [dim if n is None or dim.number is not None else size(n) for dim, n in zip(found, numbers, strict=True)]

    def resized(self, x: AxisInfo, axes: Collection[int], index: int = 0) -> list[Size]:
        """The sizes of an output: inferred along these axes, and those of a value along the others."""
        inferred = self.sizes(x.rank, index)
        return [inferred[axis] if axis in axes else dim for axis, dim in enumerate(x.sizes)]

    def _alone(self, index: int) -> list[int | None]:
        """The sizes of an output that onnx infers for this node alone from the known sizes of its inputs."""
        infos: list[TensorInfo | None] = []
        for position, (value, info) in enumerate(zip(self.node.inputs, self.inputs, strict=True)):
            if value is None or info is None or info.shape is None:
                infos.append(None if value is None else UNKNOWN)
                continue
            array = None if info.content is None else self.known(position)
            content = None if array is None else tuple(array.ravel().tolist())
            dtype = self.analysis.shape_info.dtype(value) or ir.DataType.FLOAT
            infos.append(TensorInfo(tuple(dim.number for dim in info.shape), dtype, content=content))
        attributes = frozen({name: attribute.value for name, attribute in self.node.attributes.items()})
        results = inferred(self.node.op_type, self.opset, tuple(infos), attributes, len(self.node.outputs))
        return [size if size is None or size >= 0 else None for size in results[index].shape or ()]


def along(ctx: RuleContext, info: AxisInfo) -> int:
    """The stream axis of a value that carries the stream."""
    if info.axis is None:
        raise ctx.refuse("its result depends on the length of the stream")
    return info.axis
