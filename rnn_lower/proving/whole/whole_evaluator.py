"""Evaluating a whole model on known numbers and, for everything else, on field elements.

An operator without an equation is a random function of its attributes and operands. Two models that agree then agree
whatever the operator computes, provided that both apply it to the same operands.
"""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lower.ir.schemas import DEFAULT_DOMAINS
from rnn_lower.ir.traits import DATA_MOVEMENT, MEASURING, RANDOM
from rnn_lower.ir.walk import subgraphs
from rnn_lower.modelio.document import Document
from rnn_lower.options import OP_TYPES
from rnn_lower.proving.exact.call import OutOfScopeError, WrongError, attributes_key
from rnn_lower.proving.exact.field import Array, Field
from rnn_lower.proving.exact.interpreter import check_size
from rnn_lower.proving.exact.movement import MOVED_BY_ONNX
from rnn_lower.proving.exact.windows import SmallInputError
from rnn_lower.proving.whole.integer_flow import IntegerFlow
from rnn_lower.proving.whole.whole_model import CASTS, ModelInterpreter
from rnn_lower.transforms import certainty
from rnn_lower.transforms.evaluate import KNOWN, evaluate_node
from rnn_lower.transforms.strip_weights import sizes_of

MOVES = (*MOVED_BY_ONNX, *DATA_MOVEMENT, "Pad", "Tile")
"""Operators that only move elements, of any type; they are never random functions."""

KINDS = {"u": onnx.TensorProto.FLOAT, "i": onnx.TensorProto.INT64, "b": onnx.TensorProto.BOOL}
"""The element types of field elements, integers and booleans, by numpy kind."""

RINGS = ("Add", "Identity", "Mul", "Neg", "Sub", "Sum", "Where")
"""Operators that obey the same laws for wrapping integers as for real numbers."""

FEW = 1 << 20
"""The most elements of an array of known numbers."""

MOST_HELD = (1 << 26) - 1
"""The most elements of a value: some operators take a multiple of its memory."""

STEP = 1 << 10
"""The largest change of a float by which it may count steps; random elements rarely differ by so little."""

COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
"""Operators that compare numbers."""

COMPARE = (*COMPARISONS, "Clip", "Max", "Min", "Mod", "Pow")
"""Operators whose behavior changes at a certain number."""


class NotRunError(OutOfScopeError):
    """An operator does not run on these numbers, for example a Squeeze of a size that is not 1."""


class WholeEvaluator(ModelInterpreter):
    """Evaluate a whole model: known numbers as floats, an operator without an equation as a random function.

    flow: the values that depend on input integers.  opaque: recurrent nodes are random functions, too.  filled: the
    values that were not empty.  refuses_counters: whether no state may count steps otherwise than in integers.
    """

    opaque = refuses_counters = False

    def __init__(
        self, field: Field, document: Document, folded: bool, limits: Collection[float], deadline: float,
        flow: IntegerFlow,
    ) -> None:  # fmt: skip
        super().__init__(field, document, folded, limits, deadline)
        self._floats: dict[int, tuple[Array, np.ndarray]] = {}
        self._flow = flow
        self._symbols: dict[int, set[str]] = {}
        self._rounded: dict[int, Array] = {}
        self._latest: dict[ir.Node, tuple[Sequence[Array | None], Sequence[Array]]] = {}
        self._changed: dict[tuple[ir.Node, int], Array] = {}
        self.filled: set[ir.Value] = set()

    def outputs(self, feeds: Mapping[str, Array]) -> list[Array]:
        """See `ModelInterpreter.outputs`."""
        results = super().outputs(feeds)
        self._use(results)
        return results

    def _known(self, numbers: np.ndarray | None) -> Array:
        """Return the array for known numbers. Operators on these alone round, as runtimes and constant folding do."""
        before = set(self.field.symbols)
        array = super()._known(numbers)
        if array.dtype == np.uint64 and numbers is not None and numbers.size <= FEW:
            self._floats[id(array)] = array, numbers  # keeps the array alive, because its id is the key
            wide = numbers.astype(np.float64)
            if not np.isfinite(wide).all():
                self._symbols[id(array)] = {str(number) for number in np.unique(wide[~np.isfinite(wide)])}
                self.field.symbols = before
        return array

    def _content(self, value: ir.Value | None, array: Array) -> np.ndarray | None:
        return self._number(array)

    def _number(self, array: Array | None) -> np.ndarray | None:
        """Return the numbers that an array represents, if they are known."""
        is_element = array is not None and array.dtype == np.uint64
        return self._floats.get(id(array), (array, None))[1] if is_element else array

    def _operands(self, node: ir.Node) -> list[Array | None]:
        """Return the operands; those of a Where without NaN and infinities that its condition never selects.

        Where other operands are integers computed from floats, known integers are field elements, too.
        """
        operands = super()._operands(node)
        kinds = {operand.dtype.kind for operand in operands if operand is not None}
        if node.op_type in (*RINGS, "Concat") and node.domain in DEFAULT_DOMAINS and {"u", "i"} <= kinds:
            operands = [self._as_element(a) if a is not None and a.dtype.kind == "i" else a for a in operands]
        if node.op_type != "Where" or node.domain not in DEFAULT_DOMAINS:
            return operands
        condition, *branches = operands
        if condition is None or condition.dtype != np.bool_:
            return operands
        for index, (array, chosen) in enumerate(zip(branches, (condition, ~condition), strict=True), 1):
            numbers = self._number(array)
            if array is not None and numbers is not None and id(array) in self._symbols:
                wide = numbers.astype(np.float64)
                if not (chosen & ~np.isfinite(wide)).any():
                    operands[index] = self._known(np.where(np.isfinite(wide), numbers, 0).astype(numbers.dtype))
        return operands

    def _use(self, arrays: Sequence[Array | None]) -> None:
        """Record that a result depends on the NaN and infinities of these arrays."""
        for array in arrays:
            if array is not None and id(array) in self._symbols:
                self.field.symbols |= self._symbols[id(array)]

    def _body(self, body: ir.Graph, arguments: Sequence[Array]) -> list[Array]:
        if not self._folded:  # no runtime computes a step of a loop before it knows the inputs
            arguments = [array.copy() for array in arguments]  # which are not known numbers
        results = super()._body(body, arguments)
        self._use(results)  # stacking them would lose their symbols
        return results

    def _slices(self, sequence: Array, axis: int) -> list[Array]:
        numbers = self._number(sequence)
        if numbers is None or sequence.dtype != np.uint64:
            return super()._slices(sequence, axis)
        return [self._known(part) for part in np.moveaxis(numbers, axis, 0)]

    def _initial(self, node: ir.Node, states: Sequence[Array]) -> Sequence[Array]:
        self._changed = {key: mask for key, mask in self._changed.items() if key[0] is not node}
        return states

    def _check_state(self, node: ir.Node, index: int, before: Array, after: Array) -> None:
        """Raise OutOfScopeError for floats that change twice by known numbers, and so may count to any number."""
        if not self.refuses_counters or after.dtype != np.uint64 or before.shape != after.shape:
            return
        change = self.field.signed(self.field.subtract(after, self._as_element(before)))
        is_known = self._number(after) is not None
        changed = (change != 0) & (is_known | (np.abs(change) < STEP))
        if (changed & self._changed.get((node, index), False)).any():
            raise OutOfScopeError(f"state {index} of {node.op_type} '{node.name}' may count steps, but is no integer")
        self._changed[node, index] = changed

    def _results(self, node: ir.Node) -> Sequence[Array]:
        own = node.domain in DEFAULT_DOMAINS
        if own and node.op_type in RANDOM:
            raise OutOfScopeError(f"the output of {node.op_type} '{node.name}' is random")
        if own and node.op_type == "Dropout":  # random in training only, and no case for onnx's evaluator
            return super()._results(node)
        operands = self._operands(node)
        x = node.inputs[0] if own and node.op_type == "Cast" else None
        if x is not None and operands[0] is not None and self._document.dtype_of(x) == self._goal(node):
            return [operands[0]]  # such as a comparison that is cast to booleans
        if own and self.opaque and node.op_type in OP_TYPES:
            self._use(self._defined(operands))
            return self._unknown(node, operands)
        if (own and node.op_type in (*OP_TYPES, "Constant")) or any(subgraphs(node)):
            self._use(operands)
            return super()._results(node)
        if self._divisor_of(operands):
            return super()._results(node)
        return self._applied(node, operands, own)

    def _applied(self, node: ir.Node, operands: Sequence[Array | None], own: bool) -> Sequence[Array]:
        """Return the results of an operator without bodies."""
        latest, results = self._latest.get(node, ((), ()))  # the known operands of a loop's step rarely change
        if latest and all(map(operator.is_, latest, operands)):
            return results
        numbers = [self._number(operand) for operand in operands]
        flows = any(value in self._flow.elements for value in node.inputs)
        is_real = any(operand is not None and operand.dtype == np.uint64 for operand in operands)
        rounds = flows and is_real and node.op_type not in (*MOVES, *COMPARE, "Cast")
        if own and not rounds and all(a is None or b is not None for a, b in zip(operands, numbers, strict=True)):
            is_known = node.op_type in KNOWN
            results = self._computed(node, numbers) if is_known else self._unknown(node, operands)
            self._follow_rounding(node, operands, numbers, results)
            self._latest[node] = operands, results
            return results
        if own and node.op_type in MEASURING:
            return super()._results(node)
        self._use(operands)
        if own and node.op_type not in (*MOVES, *RINGS) and any(map(self._is_whole, node.inputs, operands)):
            return self._unknown(node, operands)
        if own and node.op_type in CASTS and self._rounds(node, operands[0]) and operands[0] is not None:
            return [self.field.function(f"Cast to {self._goal(node)} {attributes_key(node)}", operands[0])]
        try:
            return super()._results(node)
        except SmallInputError as error:
            raise NotRunError(f"{node.op_type} '{node.name}': {error}") from None
        except (OutOfScopeError, WrongError) as error:  # this use has no equation
            if own and node.op_type in MOVES:
                raise (NotRunError if isinstance(error, WrongError) else OutOfScopeError)(str(error)) from None
        return self._unknown(node, operands)

    def _follow_rounding(
        self, node: ir.Node, operands: Sequence[Array | None], numbers: Sequence[np.ndarray | None],
        results: Sequence[Array],
    ) -> None:  # fmt: skip
        """Record that a node jumps at numbers that runtimes may round differently; both models must have it."""
        is_rounded = any(id(operand) in self._rounded for operand in operands)
        if is_rounded and certainty.jumps(node):
            self.field.symbols.add(f"{node.op_type} of rounded numbers ({digest(attributes_key(node), operands)})")
        if certainty.passes_rounding(node) and (is_rounded or certainty.rounds(node, numbers)):
            self._rounded.update({id(array): array for array in results})

    def _is_whole(self, value: ir.Value | None, operand: Array | None) -> bool:
        """Whether integers were computed from floats: they are field elements, without integer division or order."""
        if value is None or operand is None or operand.dtype != np.uint64:
            return False
        dtype = self._document.dtype_of(value)
        return dtype is not None and dtype.is_integer()

    def _bind(self, value: ir.Value, array: Array) -> None:
        """Bind a value; narrow integers wrap."""
        dtype = self._document.dtype_of(value) if array.dtype == np.int64 else None
        if dtype is not None and dtype.is_integer() and dtype != ir.DataType.INT64:
            if dtype == ir.DataType.UINT64 and array.min(initial=0) < 0:
                raise OutOfScopeError(f"unsigned integers in '{value.name}' wrap around")
            array = array.astype(dtype.numpy()).astype(np.int64)
        if array.size:
            self.filled.add(value)
        if (node := value.producer()) is not None:
            check_size(node, array.size, MOST_HELD)
        super()._bind(value, array)

    def _computed(self, node: ir.Node, numbers: Sequence[np.ndarray | None]) -> Sequence[Array]:
        """Run an operator on known numbers with onnx's evaluator."""
        self._limit_size(node, numbers)
        typed = [self._typed(value, array) for value, array in zip(node.inputs, numbers, strict=True)]
        try:
            results = evaluate_node(node, typed, self._graph.opset, certain=False)
        except Exception as error:
            raise NotRunError(f"{node.op_type} '{node.name}' cannot be evaluated ({type(error).__name__})") from None
        return [self._known(array) for array in results]

    def _typed(self, value: ir.Value | None, numbers: np.ndarray | None) -> np.ndarray | None:
        """Known integers in the type that the model gives them, which evaluation widens."""
        dtype = None if value is None else self._document.dtype_of(value)
        if numbers is None or numbers.dtype != np.int64 or dtype is None or not dtype.is_integer():
            return numbers
        return numbers.astype(dtype.numpy())

    def _unknown(self, node: ir.Node, operands: Sequence[Array | None]) -> list[Array]:
        """Return random elements, keyed by all operands, in the inferred shapes."""
        dtypes = [None if value is None else self._document.dtype_of(value) for value in node.inputs]
        integers = [dtype for dtype in dtypes if dtype is not None and dtype.is_integer()]  # they differ in their range
        seed = digest(f"{node.domain} {node.op_type} {attributes_key(node)} {integers}", operands)
        shapes = self._shapes(node, operands)
        check_size(node, max(map(math.prod, shapes), default=0), MOST_HELD)
        return [
            self.field.function(f"unknown {seed} {index}", np.arange(math.prod(shape), dtype=np.uint64)).reshape(shape)
            for index, shape in enumerate(shapes)
        ]

    def _shapes(self, node: ir.Node, operands: Sequence[Array | None]) -> list[tuple[int, ...]]:
        """Return the shapes of the outputs, inferred from the node alone."""
        inputs, constants = {}, []
        for value, array in zip(node.inputs, operands, strict=True):
            if value is None or array is None or value.name in inputs:
                continue
            name, dtype = str(value.name), self._document.dtype_of(value)
            kind = KINDS[array.dtype.kind] if dtype is None else dtype.value
            inputs[name] = onnx.helper.make_tensor_value_info(name, kind, array.shape)
            numbers = self._number(array) if array.size < 64 else None
            if numbers is not None and (typed := self._typed(value, numbers)) is not None:
                constants.append(onnx.numpy_helper.from_array(typed, name))
        outputs = [onnx.ValueInfoProto(name=value.name) for value in node.outputs if value.name]
        graph = onnx.helper.make_graph([ir.to_proto(node)], "one", list(inputs.values()), outputs, constants)
        domains = {"": self._graph.opset} | ({} if node.domain in DEFAULT_DOMAINS else {node.domain: 1})
        imports = [onnx.helper.make_opsetid(*opset) for opset in domains.items()]
        model = onnx.helper.make_model(graph, opset_imports=imports)
        try:
            inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
        except Exception as error:
            text = f"shape inference fails for {node.op_type} '{node.name}'"
            raise OutOfScopeError(f"{text} ({type(error).__name__})") from None
        shapes = [sizes_of(info) for info in inferred.graph.output]
        if any(shape is None or None in shape for shape in shapes):
            raise OutOfScopeError(f"the output shape of {node.op_type} '{node.name}' is unknown")
        return [tuple(size for size in shape or () if size is not None) for shape in shapes]


def digest(text: str, arrays: Iterable[Array | None]) -> str:
    """A text that only equal texts and arrays share."""
    digest = hashlib.blake2b(text.encode(), digest_size=8)
    for array in arrays:
        if array is not None:
            digest.update(f"{array.dtype} {array.shape}".encode() + np.ascontiguousarray(array).tobytes())
        else:
            digest.update(b"none")
    return digest.hexdigest()
