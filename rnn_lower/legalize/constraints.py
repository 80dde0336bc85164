"""The constraints of a runtime on single nodes. Independent of particular targets; emits nothing."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rnn_lower.builder.tensor_info import TensorInfo
from rnn_lower.builder.versions import input_names

FREE = ("Constant",)
"""Operators that every runtime supports: they contain the weights of graphs without initializers."""

FIRST_ONE_AXIS = 13
"""The first opset in which Softmax, LogSoftmax and Hardmax compute over one axis."""

PARAMETERS = frozenset({"axes", "starts", "ends", "steps", "shape", "split", "repeats", "min", "max", "indices"})
"""Names of inputs that are parameters, not data."""


@dataclasses.dataclass(frozen=True)
class NodeView:
    """A node as constraints see it."""

    op_type: str
    opset: int
    inputs: tuple[TensorInfo | None, ...]
    attributes: tuple[tuple[str, Any], ...]
    outputs: tuple[TensorInfo, ...]
    bodies: frozenset[str] = frozenset()
    """What runtimes compute wrongly in its bodies, by keys of `limits` (`conformance.BODIES`)."""

    @property
    def operands(self) -> list[TensorInfo]:
        return [operand for operand in self.inputs if operand is not None]

    def attribute(self, name: str) -> Any:
        return dict(self.attributes).get(name)

    def parameter(self, name: str) -> tuple[Any, ...] | None:
        """Return numbers from an attribute or an input; None if they are absent or not constant."""
        attribute = self.attribute(name)
        if attribute is not None:
            return attribute if isinstance(attribute, tuple) else (attribute,)
        operand = dict(self._named).get(name)
        return None if operand is None else operand.content

    @property
    def parameters(self) -> list[TensorInfo]:
        """The operands that are axes, sizes, bounds and the like."""
        return [info for name, info in self._named if name in PARAMETERS and info is not None]

    @property
    def data(self) -> list[TensorInfo]:
        """The other operands, and the results."""
        operands = (info for name, info in self._named if name not in PARAMETERS and info is not None)
        return [*operands, *self.outputs]

    @property
    def _named(self) -> list[tuple[str, TensorInfo | None]]:
        """The inputs with their names, without a name for the further inputs of variadic operators."""
        names = input_names(self.op_type, self.opset)
        return [(names[index] if index < len(names) else "", info) for index, info in enumerate(self.inputs)]


Check = Callable[[Any, NodeView], Iterator[str]]
"""(limit, node) -> how the node violates the limit, if it does"""


def _within(limit: Sequence[int], count: int) -> Iterator[str]:
    if not limit[0] <= count <= limit[1]:
        yield f"this node has {count}"


def _constant(limit: Sequence[int], use: NodeView) -> Iterator[str]:
    for index, operand in enumerate(use.inputs):
        if index in limit and operand is not None and not operand.constant:
            yield f"input {index} is computed"


def _ranks(limit: Sequence[int], use: NodeView) -> Iterator[str]:
    for info in use.data:
        if info.shape is None:
            yield "an input or output has an unknown rank"
        elif not limit[0] <= len(info.shape) <= limit[1]:
            yield f"an input or output has rank {len(info.shape)}"


def _axes(limit: Sequence[int], use: NodeView) -> Iterator[str]:
    shape = use.inputs[0].shape if use.inputs and use.inputs[0] is not None else None
    axes = use.parameter("axis") if use.attribute("axis") is not None else use.parameter("axes")
    if axes is None and use.op_type == "Slice":
        axes = tuple(range(len(use.parameter("starts") or ())))
    if axes is None and use.op_type in ("Split", "Gather"):
        axes = (0,)
    if axes is None or shape is None:
        yield "an axis of this node is not a constant"
        return
    rank, whole = len(shape) + (len(axes) if use.op_type == "Unsqueeze" else 0), set()
    positions = [axis % rank if rank else axis for axis in axes]
    if use.op_type == "Slice":  # ignore axes that are not sliced
        for axis, start, end in zip(
            positions, use.parameter("starts") or (), use.parameter("ends") or (), strict=False
        ):
            size = shape[axis]
            if start == 0 and size is not None and end >= size:
                whole.add(axis)
    for axis in positions:
        if axis not in whole and axis not in limit and axis - rank not in limit:
            yield f"this node uses axis {axis} of a tensor of rank {rank}"


def _steps(limit: Sequence[int], use: NodeView) -> Iterator[str]:
    for step in use.parameter("steps") or (1,):
        if step not in limit:
            yield f"a slice of this node has step {step}"


def _elements(limit: int, use: NodeView) -> Iterator[str]:
    counts = [None if operand.sizes is None else math.prod(operand.sizes) for operand in use.parameters]
    counts += [len(held) for name, held in use.attributes if name in PARAMETERS and isinstance(held, tuple)]
    for count in counts:
        if count is None:
            yield "the number of elements in a parameter of this node is unknown"
        elif count != limit:
            yield f"a parameter has {count}"


def _values(limit: Mapping[str, Sequence[float]], use: NodeView) -> Iterator[str]:
    for name, (low, high) in limit.items():
        for number in use.parameter(name) or ():
            if not low <= number <= high:
                yield f"{name} is {number:g}"


def _attributes(limit: Mapping[str, Sequence[Any]], use: NodeView) -> Iterator[str]:
    for name, allowed in limit.items():
        value = use.attribute(name)
        plain = list(value) if isinstance(value, tuple) else value
        if value is not None and plain not in allowed:
            yield f"{name} is {plain}"


def _kernels(limit: Sequence[Sequence[int]], use: NodeView) -> Iterator[str]:
    weight = use.inputs[1].shape if len(use.inputs) > 1 and use.inputs[1] is not None else None
    shape = use.parameter("kernel_shape") or (None if weight is None else weight[2:])
    is_depthwise = weight is not None and weight[:2] == (use.attribute("group") or 1, 1)
    if shape is not None and [*shape] in [[*each] for each in limit] and not is_depthwise:
        yield f"its kernel is {[*shape]}"


def _explicit(limit: Sequence[str], use: NodeView) -> Iterator[str]:
    for name in limit:
        if use.attribute(name) is None:
            yield f"this node omits {name}"


def _types(limit: Sequence[str], use: NodeView) -> Iterator[str]:
    for info in use.data:
        if info.dtype is not None and info.dtype.name not in limit:
            yield f"an input or output has element type {info.dtype.name}"


def _broadcast(limit: bool, use: NodeView) -> Iterator[str]:
    shapes = {operand.shape for operand in use.operands}
    if not limit and len(shapes) > 1:
        yield f"the operands have shapes {' and '.join(sorted(str(list(shape or ())) for shape in shapes))}"


def _matrix_ranks(limit: bool, use: NodeView) -> Iterator[str]:
    ranks = {len(operand.shape) for operand in use.operands if operand.shape is not None}
    if limit and (ranks & {0, 1} or len(ranks - {2}) > 1):
        yield f"the operands have ranks {' and '.join(sorted(map(str, ranks)))}"


def _last_axis(limit: bool, use: NodeView) -> Iterator[str]:
    shape, axis = use.inputs[0].shape if use.inputs and use.inputs[0] else None, use.attribute("axis")
    first = 1 if axis is None else axis
    others = [None] if shape is None else shape[first % len(shape) + 1 :] if shape else []
    if limit and use.opset < FIRST_ONE_AXIS and first != -1 and any(size != 1 for size in others):
        yield f"at opset {use.opset}, this node may compute over several axes; convert the model (--opset 13)"


def _strided_padding(limit: bool, use: NodeView) -> Iterator[str]:
    padding, strides = use.attribute("auto_pad") or "NOTSET", use.attribute("strides") or ()
    if not limit and padding.startswith("SAME") and any(stride != 1 for stride in strides):
        yield f"auto_pad is {padding}, and strides is {list(strides)}"


def _constant_zero_point(limit: bool, use: NodeView) -> Iterator[str]:
    x, zero_point = [*use.inputs, None, None, None][:3:2]
    is_zero = zero_point is None or (zero_point.content is not None and not any(zero_point.content))
    if not limit and x is not None and x.constant and not is_zero:
        yield "this node reads a constant and has another zero point; quantize weights symmetrically"


def _forward(limit: bool, use: NodeView) -> Iterator[str]:
    directions = [use.attribute(f"scan_{what}_directions") or () for what in ("input", "output")]
    if limit and any(map(any, directions)):
        yield "this node runs backward"


def _in_bodies(name: str, refused: Any, text: str) -> Check:
    """The check of a limit on bodies. refused: the setting that does not allow what `text` says of a node."""

    def check(limit: Any, use: NodeView) -> Iterator[str]:
        if limit == refused and name in use.bodies:
            yield text

    return check


def _range(limit: Sequence[int], noun: str = "") -> str:
    text = str(limit[0]) if limit[0] == limit[1] else f"{limit[0]} to {limit[1]}"
    return f"{text} {noun}{'' if text == '1' else 's'}" if noun else text


def _listed(limit: Sequence[Any], one: str, many: str) -> str:
    return f"{one if len(limit) == 1 else many} {', '.join(map(str, limit))}"


def _bounds(limit: Mapping[str, Sequence[float]]) -> str:
    return " and ".join(f"{name} from {low:g} to {high:g}" for name, (low, high) in limit.items())


def _allowed(limit: Mapping[str, Sequence[Any]]) -> str:
    words = (
        f"{name} {' or '.join(map(str, values))}" if values else f"{name} left out" for name, values in limit.items()
    )
    return " and ".join(words)


CHECKS: Mapping[str, tuple[Callable[[Any], str], Check]] = {
    "inputs": (lambda limit: f"with {_range(limit, 'input')}", lambda limit, use: _within(limit, len(use.operands))),
    "outputs": (lambda limit: f"with {_range(limit, 'output')}", lambda limit, use: _within(limit, len(use.outputs))),
    "constant": (lambda limit: f"with constants for {_listed(limit, 'input', 'inputs')}", _constant),
    "variable": (
        lambda limit: f"with at most {_range((limit, limit), 'computed input')}",
        lambda limit, use: _within((0, limit), sum(not operand.constant for operand in use.operands)),
    ),
    "ranks": (lambda limit: f"with {'rank' if limit[0] == limit[1] else 'ranks'} {_range(limit)}", _ranks),
    "axes": (lambda limit: f"with {_listed(limit, 'axis', 'axes')}", _axes),
    "steps": (lambda limit: f"with {_listed(limit, 'step', 'steps')}", _steps),
    "elements": (lambda limit: f"with parameters of {_range((limit, limit), 'element')}", _elements),
    "values": (lambda limit: f"with {_bounds(limit)}", _values),
    "attributes": (lambda limit: f"with {_allowed(limit)}", _attributes),
    "avoid_kernels": (lambda limit: f"with other kernels than {_listed(limit, '', '').strip()}", _kernels),
    "explicit": (lambda limit: f"with explicit {_listed(limit, 'attribute', 'attributes')}", _explicit),
    "types": (lambda limit: f"with {_listed(limit, 'element type', 'element types')}", _types),
    "broadcast": (lambda _: "with operands of the same shape", _broadcast),
    "matrix_ranks": (lambda _: "with operands of rank 2 or of one higher rank", _matrix_ranks),
    "last_axis": (lambda _: "over the last axis", _last_axis),
    "strided_padding": (lambda _: "with explicit pads if it has strides", _strided_padding),
    "constant_zero_point": (lambda _: "with zero point 0 if it reads a constant", _constant_zero_point),
    "forward": (lambda _: "in the forward direction", _forward),
    "states": (
        lambda _: "with non-constant initial states",
        _in_bodies("states", "computed", "an initial state is constant"),
    ),
    "in_place": (
        lambda _: "without sums and products that begin with an element of a scanned input",
        _in_bodies("in_place", False, "its body has one"),
    ),
    "windows_last": (
        lambda _: "with branches that do not end with a convolution, a pooling or a function of these",
        _in_bodies("windows_last", False, "one of its branches does; let it end with an Identity"),
    ),
    "nested": (lambda _: "without another one in its body", _in_bodies("nested", False, "its body has one")),
    "lists": (
        lambda _: "with lists that begin empty",
        _in_bodies("lists", "empty", "it adds elements to a list that already has some"),
    ),
}
"""By the key of a limit: its wording and its check."""


@dataclasses.dataclass(frozen=True)
class OpConstraints:
    """The nodes that a runtime supports; by default every node.

    takes: the supported operators, None for all.  avoid: operators that are not supported.
    avoid_types: names of element types that are not supported.
    other_domains: the operators of other domains that are known to run, with their domain, or None if none was tested.
    rank: the maximum.  static: whether every size must be known.  opsets: first and last.
    limits: by operator, keys of CHECKS.  sources: the source of a rule, by operator or by the name of another rule.
    saturates: operators that overflow for large operands, with the magnitude from which the result is constant.
    """

    takes: frozenset[str] | None = None
    avoid: frozenset[str] = frozenset()
    avoid_types: frozenset[str] = frozenset()
    other_domains: frozenset[str] | None = None
    rank: int | None = None
    static: bool = False
    opsets: tuple[int, int] = (1, 99)
    limits: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict)
    saturates: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @functools.cached_property  # read twice for each node
    def silent(self) -> bool:
        """Whether the constraints allow every node."""
        return self == dataclasses.replace(OpConstraints(), opsets=self.opsets, sources=self.sources)

    def listed(self, op_type: str) -> bool:
        """Whether the target lists the operator."""
        listed = self.takes is None or op_type in self.takes
        return op_type in FREE or (listed and op_type not in self.avoid)

    def unknown_operator(self, domain: str, op_type: str) -> str | None:
        """Why an operator of another domain is not known to run, or None."""
        if f"{domain}.{op_type}" in (self.other_domains or ()):
            return None
        if self.takes is not None:
            return f"the target supports only operators of the ONNX standard, not operators of domain {domain}"
        text = f"no test shows that the target runs {op_type} of domain {domain}"
        return None if self.other_domains is None else text

    def broken(self, use: NodeView) -> str | None:
        """Return the violated constraint, in words with its source, or None."""
        op_type = use.op_type
        if op_type in FREE:
            return None
        if not self.listed(op_type):
            return self._message(op_type, "the target file does not list this operator as supported")
        first, last = self.opsets
        if not first <= use.opset <= last:
            return self._message(
                "opsets", f"the target supports opsets {first} to {last}, but the model has opset {use.opset}"
            )
        for info in (*use.operands, *use.outputs):
            if info.dtype is not None and info.dtype.name in self.avoid_types:
                return self._message(
                    "avoid_types", f"the target does not support the element type {info.dtype.name} of this node"
                )
            if self.rank is not None and info.shape is not None and len(info.shape) > self.rank:
                high = f"an input or output has rank {len(info.shape)}"
                return self._message("rank", f"the target supports tensors of rank {self.rank} or lower, but {high}")
            if self.static and info.sizes is None:
                return self._message("static", "all sizes must be known, but this node has an unknown size")
        for name, text in self.limits.get(op_type, {}).items():
            words, check = CHECKS[name]
            if (instead := next(check(text, use), None)) is not None:
                return self._message(op_type, f"{op_type} is supported only {words(text)}, but {instead}")
        return None

    def _message(self, what: str, rule: str) -> str:
        source = self.sources.get(what)
        return rule if source is None else f"{rule} ({source})"
