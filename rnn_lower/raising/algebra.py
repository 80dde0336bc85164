"""Express the values of a step as sums of matrices times atoms: inputs, scalar functions and products.

Only columns (the last axis) are followed; the proof covers all other axes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from rnn_lower.ir.schemas import DEFAULT_DOMAINS
from rnn_lower.ir.walk import get_attribute, integers
from rnn_lower.proving.exact.call import OutOfScopeError
from rnn_lower.proving.nodes.constant_inputs import content
from rnn_lower.shapes.shape_info import ShapeInfo

FUNCTIONS: dict[str, tuple[float | None, float | None]] = {
    "Sigmoid": (None, None), "Tanh": (None, None), "Relu": (None, None), "Softsign": (None, None),
    "Softplus": (None, None), "HardSigmoid": (0.2, 0.5), "Elu": (1.0, None), "LeakyRelu": (0.01, None),
    "ThresholdedRelu": (1.0, None),
}  # fmt: skip
"""Operators that are activations, with the defaults of their attributes alpha and beta."""

MOST_COLUMNS = 4096


class NoGuessError(Exception):
    """A value has no form from which a recurrent node can be guessed."""


@dataclasses.dataclass(frozen=True, eq=False)
class Atom:
    """kind: value, function, product, clip or where.  value: of a value, or the condition of where.

    parameters: name, alpha and beta of a function; the limit of a clip.  define: returns the sum that defines a value.
    """

    kind: str
    columns: int
    value: ir.Value | None = None
    parameters: tuple[Any, ...] = ()
    arguments: tuple[Sum, ...] = ()
    define: Callable[[], Sum | None] | None = None

    @functools.cached_property
    def definition(self) -> Sum | None:
        return None if self.define is None else self.define()


@dataclasses.dataclass(frozen=True, eq=False)
class Sum:
    """A sum of atoms times matrices [columns of the atom, columns], or times vectors for elementwise atoms.

    row: the index in time, if known.  flipped: time runs backwards.  batch_first: the axes are exchanged.
    """

    terms: Mapping[Atom, np.ndarray]
    number: np.ndarray
    rank: int
    row: int | None = None
    flipped: bool = False
    batch_first: bool = False

    @property
    def columns(self) -> int:
        return len(self.number)

    def atom(self) -> Atom | None:
        """The single atom of this sum, or None."""
        if len(self.terms) != 1 or self.number.any():
            return None
        ((atom, matrix),) = self.terms.items()
        same = np.all(matrix == 1) if matrix.ndim == 1 else np.array_equal(matrix, np.eye(atom.columns))
        return atom if same and atom.columns == self.columns else None

    def plus(self, addend: Sum, sign: float = 1.0) -> Sum:
        """The sum or difference."""
        a, b = _broadcast(self, addend)
        terms = dict(a.terms)
        for atom, matrix in b.terms.items():
            terms[atom] = terms[atom] + sign * matrix if atom in terms else sign * matrix
        return _make_sum(terms, a.number + sign * b.number, a, b)

    def times(self, factors: np.ndarray) -> Sum:
        """The sum with each column multiplied by a number."""
        terms = {atom: matrix * factors for atom, matrix in self.terms.items()}
        return dataclasses.replace(self, terms=terms, number=self.number * factors)

    def is_linear(self) -> bool:
        return all(atom.kind == "value" for atom in self.terms)

    def is_number(self) -> bool:
        return not self.terms


def same(a: Sum, b: Sum) -> bool:
    """Whether two sums have the same atoms and coefficients."""
    return a is b or (
        a.terms.keys() == b.terms.keys()
        and np.array_equal(a.number, b.number)
        and all(np.array_equal(matrix, b.terms[atom]) for atom, matrix in a.terms.items())
    )


def _broadcast(a: Sum, b: Sum) -> tuple[Sum, Sum]:
    """Both sums with equal columns; a scalar broadcasts."""
    if a.columns == b.columns:
        return a, b
    if not (a.columns == 1 and a.is_number()) and not (b.columns == 1 and b.is_number()):
        raise NoGuessError
    columns = max(a.columns, b.columns)
    a, b = (dataclasses.replace(operand, number=np.broadcast_to(operand.number, columns)) for operand in (a, b))
    return a, b


def _make_sum(terms: Mapping[Atom, np.ndarray], number: np.ndarray, *sources: Sum) -> Sum:
    """A sum with the time attributes of its sources."""
    rows = [source.row for source in sources if source.row is not None]
    return Sum(
        terms, number, max(source.rank for source in sources), rows[0] if rows else None,
        any(source.flipped for source in sources), any(source.batch_first for source in sources),
    )  # fmt: skip


class Algebra:
    """Computes the `Sum` of each value.

    bound: the sums of body inputs.  states: values that are atoms even if a node computes them.
    emitted: the nodes that lowering emitted. Between X and these nodes, time may be flipped and the batch may come
    first; between X and other loops, there may only be a projection.
    """

    def __init__(
        self, shape_info: ShapeInfo, opset: int, states: frozenset[ir.Value], emitted: frozenset[ir.Node] = frozenset()
    ) -> None:
        self._shape_info, self._opset, self._states, self._emitted = shape_info, opset, states, emitted
        self._constants: dict[ir.Value, np.ndarray | None] = {}
        self.own = bool(emitted)
        self._body: ir.Graph | None = None
        self._known: dict[ir.Value, Sum] = {}
        self._atoms: dict[ir.Value, Atom] = {}
        self._selected: dict[tuple[Atom, bytes], Atom] = {}

    def constant(self, value: ir.Value | None) -> np.ndarray | None:
        """The content of a constant, or of a value that nodes move from constants; else None."""
        if value is not None and value not in self._constants:
            self._constants[value] = None
            with contextlib.suppress(OutOfScopeError):
                self._constants[value] = content(value, self._opset)
        return None if value is None else self._constants[value]

    def enter(self, body: ir.Graph, bound: Mapping[ir.Value, Sum]) -> None:
        """Enter a body with these sums for its inputs."""
        self._body = body
        self._known.update(bound)

    def is_step(self, node: ir.Node) -> bool:
        """Whether a node runs once for each step."""
        return self._body is not None and node.graph is self._body

    def sum_of(self, value: ir.Value | None) -> Sum:
        """The sum of a value. Raises NoGuessError if its columns are unknown."""
        if value is None:
            raise NoGuessError
        if value not in self._known:
            as_it_is = value in self._states or not self._is_followed(value)
            self._known[value] = self.read(value) if as_it_is else self.definition(value)
        return self._known[value]

    def _is_followed(self, value: ir.Value) -> bool:
        """Whether to follow the producer of a value: in the step, or a projection before it."""
        node = value.producer()
        if node is None or self.is_step(node) or node in self._emitted:
            return True
        if self.own or node.op_type not in ("MatMul", "Gemm", "Add", "Split", "Slice", "Identity"):
            return False
        if node.op_type in ("MatMul", "Gemm"):
            if node.inputs[0] is not None:
                self._known.setdefault(node.inputs[0], self.read(node.inputs[0]))
            return self.constant(node.inputs[1]) is not None
        parts = [operand for operand in node.inputs if operand is not None and self.constant(operand) is None]
        return len(parts) == 1 and parts[0].producer() is not None and self._is_followed(parts[0])

    def definition(self, value: ir.Value) -> Sum:
        """The sum that the producer of a value computes."""
        array = self.constant(value)
        if array is not None:
            rows = array.reshape(-1, *array.shape[-1:]) if array.size else array
            if array.dtype.kind not in "fV" or not array.size or (array.ndim > 1 and (rows != rows[:1]).any()):
                raise NoGuessError
            return Sum({}, np.atleast_1d(rows[0] if array.ndim else array).astype(np.float64), array.ndim)
        result = self._defined(value)
        return self.read(value) if result is None else result

    def read(self, value: ir.Value) -> Sum:
        """A value as an atom."""
        shape = self._shape_info.shape(value)
        columns = shape[-1] if shape else None
        if not isinstance(columns, int) or not 0 < columns <= MOST_COLUMNS:
            raise NoGuessError
        define = functools.partial(self._defined, value) if value in self._states else None
        return self.atom(value, columns, len(shape or ()), define)

    def rank(self, value: ir.Value | None) -> int | None:
        """The rank of an integer value, such as a counter or positions."""
        shape = None if value is None else self._shape_info.shape(value)
        return (None if value is None or value.shape is None else len(value.shape)) if shape is None else len(shape)

    def _defined(self, value: ir.Value) -> Sum | None:
        node = value.producer()
        rule = None if node is None or node.domain not in DEFAULT_DOMAINS else RULES.get(node.op_type)
        return None if rule is None or node is None else rule(self, node, value.index() or 0)

    def refer(self, value: ir.Value, definition: Sum) -> Sum:
        """A value as an atom with a known definition."""
        result = self.atom(value, definition.columns, definition.rank, lambda: definition)
        return dataclasses.replace(
            result, row=definition.row, flipped=definition.flipped, batch_first=definition.batch_first
        )

    def atom(self, value: ir.Value, columns: int, rank: int, define: Callable[[], Sum | None] | None = None) -> Sum:
        """The sum of one atom for a value."""
        if value not in self._atoms:
            self._atoms[value] = Atom("value", columns, value, define=define)
        return Sum({self._atoms[value]: np.eye(columns)}, np.zeros(columns), rank)

    def select(self, x: Sum, columns: np.ndarray) -> Sum:
        """Some columns of a sum."""
        terms: dict[Atom, np.ndarray] = {}
        for atom, matrix in x.terms.items():
            if matrix.ndim == 2:
                terms[atom] = matrix[:, columns]
                continue
            key = (atom, columns.tobytes())
            if key not in self._selected:
                arguments = tuple(self.select(argument, columns) for argument in atom.arguments)
                self._selected[key] = dataclasses.replace(atom, columns=len(columns), arguments=arguments)
            terms[self._selected[key]] = matrix[columns]
        return dataclasses.replace(x, terms=terms, number=x.number[columns])

    def pointwise(
        self, kind: str, arguments: Sequence[Sum], parameters: tuple[Any, ...] = (), value: ir.Value | None = None
    ) -> Sum:
        """A sum of one elementwise atom."""
        columns = max(argument.columns for argument in arguments)
        wide = tuple(argument.plus(Sum({}, np.zeros(columns), 0)) for argument in arguments)
        atom = Atom(kind, columns, value, parameters, wide)
        return _make_sum({atom: np.ones(columns)}, np.zeros(columns), *wide)


Rule = Callable[[Algebra, ir.Node, int], "Sum | None"]


def _matmul(algebra: Algebra, node: ir.Node, _: int) -> Sum | None:
    """A product with a constant matrix; operands other than inputs or parts of inputs count as one atom."""
    operand, weights = node.inputs[0], algebra.constant(node.inputs[1])
    if operand is None or weights is None or weights.ndim < 2 or weights.size != weights.shape[-1] * weights.shape[-2]:
        return None
    matrix = weights.reshape(weights.shape[-2:]).astype(np.float64)
    alpha, beta = (get_attribute(node, name, ir.AttributeType.FLOAT, 1.0) for name in ("alpha", "beta"))
    if node.op_type == "Gemm":
        if alpha != 1 or beta not in (0, 1) or get_attribute(node, "transA", ir.AttributeType.INT, 0):
            return None
        matrix = matrix.T if get_attribute(node, "transB", ir.AttributeType.INT, 0) else matrix
    x = algebra.sum_of(operand)
    parts = x.is_linear() and not x.number.any() and all(np.isin(factor, (0, 1)).all() for factor in x.terms.values())
    x = x if parts else algebra.refer(operand, x)
    if x.columns != len(matrix):
        return None
    terms = {atom: factor @ matrix for atom, factor in x.terms.items()}
    result = dataclasses.replace(x, terms=terms, number=np.zeros(len(matrix.T)))
    alone = len(node.inputs) < 3 or node.inputs[2] is None or beta == 0
    return result if alone else result.plus(algebra.sum_of(node.inputs[2]))


def _mul(algebra: Algebra, node: ir.Node, _: int) -> Sum | None:
    x, y = (algebra.sum_of(value) for value in node.inputs)
    for a, b, value in ((x, y, node.inputs[0]), (y, x, node.inputs[1])):
        if b.is_number():
            a, b = _broadcast(a, b)
            vector = b.columns > 1 and len(set(b.number.tolist())) > 1
            if vector and not a.is_linear() and value is not None:
                a = algebra.refer(value, a)
            return a.times(b.number)
    return algebra.pointwise("product", (x, y))


def _div(algebra: Algebra, node: ir.Node, _: int) -> Sum | None:
    x, y = (algebra.sum_of(value) for value in node.inputs)
    if not y.is_number() or not y.number.all():
        return None
    x, y = _broadcast(x, y)
    return x.times(1 / y.number)


def _function(algebra: Algebra, node: ir.Node, _: int) -> Sum | None:
    alpha, beta = FUNCTIONS[node.op_type]
    parameters = [None if default is None else float(get_attribute(node, name, ir.AttributeType.FLOAT, default))
             for name, default in (("alpha", alpha), ("beta", beta))]  # fmt: skip
    return algebra.pointwise("function", (algebra.sum_of(node.inputs[0]),), (node.op_type, *parameters))


def _clip(algebra: Algebra, node: ir.Node, _: int) -> Sum | None:
    bounds = [get_attribute(node, name, ir.AttributeType.FLOAT, None) for name in ("min", "max")]
    for index, value in enumerate(node.inputs[1:3]):
        array = algebra.constant(value)
        bounds[index] = None if array is None else float(array.reshape(()))
    low, high = bounds
    if low is None or high is None or low != -high:
        return None
    return algebra.pointwise("clip", (algebra.sum_of(node.inputs[0]),), (high,))


def _where(algebra: Algebra, node: ir.Node, _: int) -> Sum | None:
    return algebra.pointwise("where", [algebra.sum_of(value) for value in node.inputs[1:]], value=node.inputs[0])


def _integers(algebra: Algebra, node: ir.Node, name: str, index: int) -> list[int] | None:
    return integers(node, name, index, algebra.constant)


def _split(algebra: Algebra, node: ir.Node, index: int) -> Sum | None:
    """A Split into columns or steps."""
    x, axis = algebra.sum_of(node.inputs[0]), get_attribute(node, "axis", ir.AttributeType.INT, 0)
    sizes = _integers(algebra, node, "split", 1)
    if axis not in (-1, x.rank - 1):
        equal_parts = sizes is None or len(set(sizes)) == 1
        return dataclasses.replace(x, row=index) if axis == 0 and equal_parts else None
    sizes = sizes or [x.columns // len(node.outputs)] * len(node.outputs)
    start = sum(sizes[:index])
    return algebra.select(x, np.arange(start, start + sizes[index])) if sum(sizes) == x.columns else None


def _slice(algebra: Algebra, node: ir.Node, _: int) -> Sum | None:
    x = algebra.sum_of(node.inputs[0])
    starts, ends, axes, steps = (
        _integers(algebra, node, name, k) for k, name in enumerate(("starts", "ends", "axes", "steps"), 1)
    )
    if starts is None and axes == [0] and algebra.is_step(node):
        return x
    if starts is None or ends is None or (steps is not None and set(steps) != {1}):
        return None
    for axis, start, end in zip(range(len(starts)) if axes is None else axes, starts, ends, strict=True):
        if axis in (-1, x.rank - 1):
            x = algebra.select(x, np.arange(x.columns)[start:end])
        elif axis == 0 and end == start + 1:
            x = dataclasses.replace(x, row=start)
        elif start != 0 or end < 2**31 - 1:
            return None
    return x


def _concat(algebra: Algebra, node: ir.Node, _: int) -> Sum | None:
    """Columns of several sums; one that is not linear, such as r * h, counts as one atom."""
    sums = [(value, algebra.sum_of(value)) for value in node.inputs if value is not None]
    parts = [each if each.is_linear() else algebra.refer(value, each) for value, each in sums]
    axis = get_attribute(node, "axis", ir.AttributeType.INT, 1)
    if axis not in (-1, max(part.rank for part in parts) - 1):
        return None
    columns, start, total = sum(part.columns for part in parts), 0, None
    for part in parts:
        block = np.eye(columns)[start : start + part.columns]
        start += part.columns
        wide = dataclasses.replace(
            part, terms={atom: factor @ block for atom, factor in part.terms.items()}, number=part.number @ block
        )
        total = wide if total is None else total.plus(wide)
    return total


def _gather(algebra: Algebra, node: ir.Node, _: int) -> Sum | None:
    """A Gather of one step or, in emitted nodes, of all steps in reverse."""
    axis = get_attribute(node, "axis", ir.AttributeType.INT, 0)
    x, index = algebra.sum_of(node.inputs[0]), algebra.constant(node.inputs[1])
    if index is None and algebra.is_step(node) and (axis == 0 or (axis, x.rank) == (1, 3)):
        return dataclasses.replace(
            x, rank=x.rank - (algebra.rank(node.inputs[1]) == 0), batch_first=x.batch_first != (axis == 1)
        )
    if axis != 0:
        return None
    ranks = algebra.rank(node.inputs[1]) if index is None else index.ndim
    if ranks == 0:
        row = None if index is None else int(index)
        return dataclasses.replace(x, rank=x.rank - 1, row=row)
    return dataclasses.replace(x, flipped=not x.flipped) if algebra.own and ranks == 1 else None


def _same_columns(algebra: Algebra, node: ir.Node, _: int) -> Sum | None:
    """An operator that keeps the columns and may change the rank."""
    x = algebra.sum_of(node.inputs[0])
    if node.op_type == "Reshape":
        shape = _integers(algebra, node, "shape", 1)
        return dataclasses.replace(x, rank=len(shape)) if shape and shape[-1] in (x.columns, -1) else None
    if node.op_type in ("Squeeze", "Unsqueeze"):
        axes = _integers(algebra, node, "axes", 1)
        if axes is None:
            return None
        rank = x.rank + len(axes) * (1 if node.op_type == "Unsqueeze" else -1)
        return None if {-1, max(rank, x.rank) - 1} & set(axes) else dataclasses.replace(x, rank=rank)
    return x


def _transpose(algebra: Algebra, node: ir.Node, _: int) -> Sum | None:
    x = algebra.sum_of(node.inputs[0])
    exchanged = algebra.own and list(get_attribute(node, "perm", ir.AttributeType.INTS, ())) == [1, 0, 2]
    return dataclasses.replace(x, batch_first=not x.batch_first) if exchanged else None


RULES: dict[str, Rule] = {
    "Add": lambda algebra, node, _: algebra.sum_of(node.inputs[0]).plus(algebra.sum_of(node.inputs[1])),
    "Sub": lambda algebra, node, _: algebra.sum_of(node.inputs[0]).plus(algebra.sum_of(node.inputs[1]), -1.0),
    "Neg": lambda algebra, node, _: algebra.sum_of(node.inputs[0]).times(np.array(-1.0)),
    "Mul": _mul, "Div": _div, "MatMul": _matmul, "Gemm": _matmul, "Clip": _clip, "Where": _where,
    "Split": _split, "Slice": _slice, "Concat": _concat, "Gather": _gather, "Transpose": _transpose,
    **dict.fromkeys(("Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape"), _same_columns),
    **dict.fromkeys(FUNCTIONS, _function),
}  # fmt: skip
"""None if an operator, or a use of an operator, stays unchanged."""
