"""Whole models in exact arithmetic: for loops that were unrolled, or that have become recurrent nodes, where no node of
one model stands for a node of the other.

Both are evaluated from their inputs to their outputs. An operator of which the proof knows no equation is a random
function of all that it reads: two models that agree then agree whatever it computes, as long as both ask it the same.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lower.ir.schemas import DEFAULT_DOMAINS
from rnn_lower.ir.traits import DATA_MOVEMENT, RANDOM
from rnn_lower.ir.walk import NODE_MARK, Scope, constant, count_nodes, nodes, recurrent_nodes, subgraphs
from rnn_lower.loops.unrolling import LOOPS
from rnn_lower.modelio.document import Document
from rnn_lower.options import OP_TYPES
from rnn_lower.proving.field import Array, Field
from rnn_lower.proving.interpreter import NoStepsError, check_time
from rnn_lower.proving.model_inputs import overridable_inputs, overrides, required_inputs, symbol
from rnn_lower.proving.node_proof import FAILURE
from rnn_lower.proving.operators import MOVED_BY_ONNX, OutOfScopeError, WrongError
from rnn_lower.proving.report import DIFFERENT, OUT_OF_SCOPE, PROVED, NodeProof, Proof
from rnn_lower.proving.whole_model import ModelInterpreter, limits_of
from rnn_lower.proving.windows import SmallInputError
from rnn_lower.transforms.evaluate import evaluate_node
from rnn_lower.transforms.inline import inlined
from rnn_lower.transforms.strip_weights import misdeclared, sizes_of

MOVES = (*MOVED_BY_ONNX, *DATA_MOVEMENT, "Pad", "Tile")
"""Operators that put elements elsewhere, whatever they are: no random functions."""

KINDS = {"u": onnx.TensorProto.FLOAT, "i": onnx.TensorProto.INT64, "b": onnx.TensorProto.BOOL}
"""The element types of field elements, integers and truth values."""

WIDE = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)
"""Element types to which a Cast of computed numbers is the identity."""

CASTS = ("Cast", "CastLike")

RINGS = ("Add", "Identity", "Mul", "Neg", "Sub", "Sum", "Where")
"""Operators that go by the same laws for integers that wrap as for numbers."""

FEW = 1 << 20
"""Elements of numbers that are computed with."""

SIZES = (3, 1, 2, 4, 7, 13, 0)
"""What free sizes of the inputs are, each some more than the one before it; the model may not run with all."""

LONG_SIZES = (64, 640)
"""What the last free sizes of inputs are where the model runs with none of these: many frames, or samples of sound."""

SHAPES = ("Concat", "ConstantOfShape", "Expand", "Reshape", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze")
COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
"""Operators of which both outcomes must have been seen, where integers that the caller gives decide."""

BENDS = ("Clip", "Max", "Min", "Mod", "Pow")
"""Operators that do otherwise from some number on; a constant that no integer reaches must be in both models."""

COMPARE = (*COMPARISONS, *BENDS)
MOST_COUNTED = 2000
"""Of integers that any operator but the first reads, and of floats that the others read, a graph may behave otherwise
from some size on; the last is the largest such size that is looked at."""

TRIED_NUMBERS = 256
"""How many integers that something is compared with are tried as inputs."""

TABLES = ("Gather", "GatherElements", "GatherND")
"""Operators in whose first input a step may look up what it does, by its number."""

INTEGER_DRAWS, INTEGERS = 12, 4
"""How often integers and truth values are drawn for the same sizes, and below what: below the sizes in most models."""


def rewrites_loops(before: ir.Model, after: ir.Model) -> bool:
    """Whether loops of one model's own, or recurrent nodes that the other does not have, are gone or new."""
    old_keys, new_keys = _repeating(before), _repeating(after)
    gone = any(key[0] in LOOPS for key in old_keys - new_keys)
    return gone or any(key[0] in OP_TYPES for key in new_keys - old_keys)


def _repeating(model: ir.Model) -> set[tuple[str, tuple[str | None, ...]]]:
    """The recurrent nodes, and the loops of the model's own, by operator and outputs."""
    chosen = (node for node, _ in nodes(model) if node.domain in DEFAULT_DOMAINS)
    return {
        (node.op_type, tuple(value.name for value in node.outputs)) for node in chosen
        if node.op_type in OP_TYPES or (node.op_type in LOOPS and NODE_MARK not in node.metadata_props)
    }  # fmt: skip


class _NotRunError(OutOfScopeError):
    """An operator does not run on numbers, as where a size that it drops is not 1."""


class _Evaluator(ModelInterpreter):
    """Runs a whole model: known numbers are computed as floats, and an operator without an equation is a random
    function.

    narrow: types of recurrent nodes of either model, which emitted nodes compute in float32 and cast back.
    """

    narrow: Collection[int] = ()

    def __init__(
        self, field: Field, document: Document, folded: bool, limits: Collection[float], deadline: float
    ) -> None:  # fmt: skip
        super().__init__(field, document, folded, limits, deadline)
        self._shape_info = document.shape_info
        self._floats: dict[int, tuple[Array, np.ndarray]] = {}
        self._fed: dict[int, Array] = {}
        self._symbols: dict[int, set[str]] = {}
        self.outcomes: dict[ir.Node, set[bool]] = {}

    def outputs(self, feeds: Mapping[str, Array]) -> list[Array]:
        """See `ModelInterpreter.outputs`."""
        self._fed = {id(array): array for array in feeds.values()}
        results = super().outputs(feeds)
        self._use(results)
        return results

    def _known(self, numbers: np.ndarray | None) -> Array:
        """Numbers that are known, which an operator of nothing else rounds, as a runtime and folding do."""
        before = set(self.field.symbols)
        array = super()._known(numbers)
        if array.dtype == np.uint64 and numbers is not None and numbers.size <= FEW:
            self._floats[id(array)] = array, numbers  # with the array, so that nothing else gets its identity
            wide = numbers.astype(np.float64)
            if not np.isfinite(wide).all():
                self._symbols[id(array)] = {str(number) for number in np.unique(wide[~np.isfinite(wide)])}
                self.field.symbols = before
        return array

    def _content(self, value: ir.Value | None, array: Array) -> np.ndarray | None:
        return self._number(array)

    def _number(self, array: Array | None) -> np.ndarray | None:
        """The numbers that an array stands for, where they are known."""
        is_element = array is not None and array.dtype == np.uint64
        return self._floats.get(id(array), (array, None))[1] if is_element else array

    def _operands(self, node: ir.Node) -> list[Array | None]:
        """The operands; of a Where without the NaN and infinities of a branch that its condition never chooses."""
        operands = super()._operands(node)
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
        """Count the NaN and infinities of arrays as used from here on."""
        for array in arrays:
            if array is not None and id(array) in self._symbols:
                self.field.symbols |= self._symbols[id(array)]

    def _body(self, body: ir.Graph, arguments: Sequence[Array]) -> list[Array]:
        results = super()._body(body, arguments)
        self._use(results)  # which may be stacked
        return results

    def _results(self, node: ir.Node) -> Sequence[Array]:
        own = node.domain in DEFAULT_DOMAINS
        if own and node.op_type in RANDOM:
            raise OutOfScopeError(f"{node.op_type}, whose output is random")
        if own and node.op_type == "Dropout":  # random in training only, and no case for onnx's evaluator
            return super()._results(node)
        operands = self._operands(node)
        if own and node.op_type == "Cast" and operands[0] is not None and self._keeps_type(node):
            return [operands[0]]
        if (own and node.op_type in (*OP_TYPES, "Constant")) or any(subgraphs(node)):
            self._use(operands)
            return super()._results(node)
        if self._is_undefined(operands):
            return super()._results(node)
        numbers = [self._number(operand) for operand in operands]
        is_fed = any(id(operand) in self._fed for operand in operands)
        is_real = any(operand is not None and operand.dtype == np.uint64 for operand in operands)
        rounds = is_fed and is_real and node.op_type not in (*MOVES, *COMPARE, "Cast")
        if own and not rounds and all(a is None or b is not None for a, b in zip(operands, numbers, strict=True)):
            results = self._computed(node, numbers)
            if is_fed and node.op_type not in ("Shape", "Size"):
                self._fed |= {id(array): array for array in results}
                self._watch(node, operands, numbers, results[0])
            return results
        self._use(operands)
        if own and node.op_type not in (*MOVES, *RINGS) and any(map(self._is_whole, node.inputs, operands)):
            return self._unknown(node, operands)
        is_cast = own and node.op_type in CASTS and operands[0] is not None and operands[0].dtype == np.uint64
        goals = (*WIDE, *self.narrow) if NODE_MARK in node.metadata_props else WIDE
        narrows = is_cast and self._goal(node) not in goals
        try:
            if not narrows:  # which rounds
                return super()._results(node)
        except SmallInputError as error:
            raise _NotRunError(f"{node.op_type} '{node.name}': {error}") from None
        except (OutOfScopeError, WrongError) as error:  # a use of it that has no equation
            if own and node.op_type in MOVES:
                raise OutOfScopeError(str(error)) from None
        if is_cast and operands[0] is not None:
            return [self.field.function(f"Cast to {self._goal(node)} {_attributes(node)}", operands[0])]
        return self._unknown(node, operands)

    def _watch(
        self, node: ir.Node, operands: Sequence[Array | None], numbers: Sequence[np.ndarray | None], result: Array
    ) -> None:
        """Note what integers that the caller gives have decided; and, as symbols, constants that they may not reach."""
        pairs = [(array, id(a) in self._fed) for a, array in zip(operands, numbers, strict=True) if array is not None]
        constants = [array for array, is_fed in pairs if not is_fed]
        if node.op_type in COMPARISONS:
            self.outcomes.setdefault(node, set()).update(map(bool, np.unique(result)))
        elif node.op_type in TABLES and not pairs[0][1]:
            digest = hashlib.blake2b(np.ascontiguousarray(constants[0]).tobytes(), digest_size=8).hexdigest()
            self.field.symbols.add(f"a table of shape {list(constants[0].shape)} ({digest})")
        elif node.op_type in (*BENDS, "BitShift", "Div"):
            reach = max(np.abs(array.astype(np.float64)).max(initial=0) for array, is_fed in pairs if is_fed)
            beyond = {number for array in constants for number in np.unique(array) if np.abs(number) > reach}
            self.field.symbols |= {f"{node.op_type} with {number}" for number in beyond}

    def _goal(self, node: ir.Node) -> int | None:
        """The element type that a Cast or CastLike makes, where it is known."""
        if node.op_type == "Cast":
            return node.attributes["to"].as_int()
        dtype = None if node.inputs[1] is None else self._shape_info.dtype(node.inputs[1])
        return None if dtype is None else dtype.value

    def _keeps_type(self, node: ir.Node) -> bool:
        """Whether a Cast is to the type that there is, as of a comparison to truth values."""
        to, x = node.attributes["to"], node.inputs[0]
        return to.type == ir.AttributeType.INT and x is not None and self._shape_info.dtype(x) == to.as_int()

    def _is_whole(self, value: ir.Value | None, operand: Array | None) -> bool:
        """Whether integers are computed from floats: field elements, which know no division and no order."""
        dtype = (
            None if value is None or operand is None or operand.dtype != np.uint64 else self._shape_info.dtype(value)
        )
        return dtype is not None and dtype.is_integer()

    def _bind(self, value: ir.Value, array: Array) -> None:
        """Narrow integers wrap."""
        if array.dtype == np.int64 and (dtype := self._shape_info.dtype(value)) is not None and dtype.is_integer():
            if dtype == ir.DataType.UINT64 and array.min(initial=0) < 0:
                raise OutOfScopeError(f"unsigned integers in '{value.name}' wrap around")
            wrapped = array.astype(dtype.numpy()).astype(np.int64)
            if id(array) in self._fed:
                self._fed[id(wrapped)] = wrapped
            array = wrapped
        super()._bind(value, array)

    def _computed(self, node: ir.Node, numbers: Sequence[np.ndarray | None]) -> Sequence[Array]:
        """What an operator makes of numbers, by onnx's evaluator."""
        self._limit_size(node, numbers)
        try:
            results = evaluate_node(node, numbers, self._graph.opset)
        except Exception as error:
            raise _NotRunError(f"{node.op_type} '{node.name}': {type(error).__name__}") from None
        return [self._known(array) for array in results]

    def _unknown(self, node: ir.Node, operands: Sequence[Array | None]) -> list[Array]:
        """Random elements that all operands decide, in the shapes that inference finds."""
        digest = hashlib.blake2b(f"{node.domain} {node.op_type} {_attributes(node)}".encode())
        for array in operands:
            kind = "none" if array is None else f"{array.dtype} {array.shape}"
            digest.update(kind.encode() + (b"" if array is None else np.ascontiguousarray(array).tobytes()))
        seed = int.from_bytes(digest.digest()[:7], "little")
        return [
            self.field.function(f"unknown {seed} {index}", np.arange(math.prod(shape), dtype=np.uint64)).reshape(shape)
            for index, shape in enumerate(self._shapes(node, operands))
        ]

    def _shapes(self, node: ir.Node, operands: Sequence[Array | None]) -> list[tuple[int, ...]]:
        """Shapes of the outputs by inference of the node alone."""
        inputs, constants = {}, []
        for value, array in zip(node.inputs, operands, strict=True):
            if value is None or array is None or value.name in inputs:
                continue
            name, kind = str(value.name), value.dtype.value if value.dtype else KINDS[array.dtype.kind]
            inputs[name] = onnx.helper.make_tensor_value_info(name, kind, array.shape)
            if array.dtype == np.int64 and array.size < 64:
                constants.append(onnx.numpy_helper.from_array(array, name))
        outputs = [onnx.ValueInfoProto(name=value.name) for value in node.outputs if value.name]
        graph = onnx.helper.make_graph([ir.to_proto(node)], "one", list(inputs.values()), outputs, constants)
        domains = {"": self._graph.opset} | ({} if node.domain in DEFAULT_DOMAINS else {node.domain: 1})
        model = onnx.helper.make_model(
            graph, opset_imports=[onnx.helper.make_opsetid(*opset) for opset in domains.items()]
        )
        try:
            inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
        except Exception as error:
            raise OutOfScopeError(f"{node.op_type} '{node.name}': {type(error).__name__}") from None
        shapes = [sizes_of(info) for info in inferred.graph.output]
        if any(shape is None or None in shape for shape in shapes):
            raise OutOfScopeError(f"{node.op_type} '{node.name}', whose shape is unknown")
        return [tuple(size for size in shape or () if size is not None) for shape in shapes]


def _attributes(node: ir.Node) -> str:
    held = {name: attribute.value for name, attribute in node.attributes.items()}
    return repr(
        sorted((name, value.tobytes() if hasattr(value, "tobytes") else repr(value)) for name, value in held.items())
    )


def prove_whole(
    before: Document, after: Document, points: int, seed: int, deadline: float, exact_sizes: bool = False
) -> Proof:
    """Whether two models of one opset compute the same outputs of the same inputs.

    exact_sizes: beyond every number that the nodes count to or compare with, too; out of scope where that is large.
    """
    documents = [Document(inlined(source.embedded())) for source in (before, after)]
    models = [document.model for document in documents]
    changed = list(_interface(*models))
    if changed:
        return Proof((), tuple(changed), whole=True)
    wrong = misdeclared(documents[1].outline)
    if wrong and misdeclared(documents[0].outline):
        wrong = ""
    verdict, reason, evaluations = DIFFERENT if wrong else OUT_OF_SCOPE, wrong, 0
    for folded in () if wrong else (True, False):
        try:
            comparison = _Comparison(documents, points, seed, deadline, folded, exact_sizes)
            reason, evaluations = comparison.difference(), comparison.count
            verdict = OUT_OF_SCOPE if reason else PROVED  # a sum of constants may have been rounded, too
        except OutOfScopeError as error:
            verdict, reason, evaluations = OUT_OF_SCOPE, str(error), 0
            break
        except WrongError as error:
            verdict, reason = DIFFERENT, str(error)
        if verdict == PROVED:
            break
    bound = min(1.0, FAILURE * max(1, count_nodes(models[1].graph))) ** points if verdict == PROVED else 1.0
    rows = _rows(*models)
    share = bound / max(1, len(rows))
    proofs = tuple(NodeProof(name, op, "", verdict, share, evaluations, reason) for name, op in rows)
    unproved = (f"the whole model is {verdict}: {reason}",) if not rows and verdict != PROVED else ()
    return Proof(proofs, unproved, whole=True)


def _rows(before: ir.Model, after: ir.Model) -> list[tuple[str, str]]:
    """What is proved: the loops and recurrent nodes that are in one model only, by name and operator."""
    old_keys, new_keys = _repeating(before), _repeating(after)
    chosen = sorted(old_keys - new_keys) if old_keys - new_keys else sorted(new_keys - old_keys)
    names = {tuple(v.name for v in n.outputs): n.name for model in (before, after) for n, _ in nodes(model)}
    return [(names.get(outs) or next((output for output in outs if output), "") or op, op) for op, outs in chosen]


def _interface(before: ir.Model, after: ir.Model) -> Iterator[str]:
    """What differs of inputs and outputs."""
    for what, old_values, new_values in (
        ("inputs", required_inputs(before), required_inputs(after)),
        ("inputs with defaults", overridable_inputs(before), overridable_inputs(after)),
        ("outputs", before.graph.outputs, after.graph.outputs),
    ):
        typed = all(
            None in (a.dtype, b.dtype) or a.dtype == b.dtype for a, b in zip(old_values, new_values, strict=False)
        )
        if [value.name for value in old_values] != [value.name for value in new_values] or not typed:
            yield f"graph: the {what} differ"


class _Comparison:
    """Two models, evaluated side by side. count: how often both ran.  outcomes: those seen of each comparison that
    integers of the caller's decide.  kept: inputs that never had another value than their default.  unsized: outputs
    that were empty, and not of one shape; sized: outputs that were not empty."""

    def __init__(
        self, documents: Sequence[Document], points: int, seed: int, deadline: float, folded: bool, exact_sizes: bool
    ) -> None:  # fmt: skip
        self.documents, self.models = documents, [document.model for document in documents]
        self.points, self.seed, self.deadline, self.folded, self.exact = points, seed, deadline, folded, exact_sizes
        self.limits = set().union(*map(limits_of, documents))
        recurrent = [node for model in self.models for node, _ in recurrent_nodes(model)]
        self.narrow = {value.dtype.value for node in recurrent if (value := node.inputs[0]) and value.dtype}
        self.count, self.outcomes = 0, dict[ir.Node, set[bool]]()
        self.sized, self.unsized = set[str](), set[str]()
        self.kept = {str(value.name) for value in overridable_inputs(self.models[1])}

    def difference(self) -> str:
        """Where they part, or nothing. Raises OutOfScopeError."""
        for trial in self._trials():
            if reason := self._differ(*trial):
                return reason
        if not self.count:
            raise OutOfScopeError("found no sizes with which both models run")
        if never := self.unsized - self.sized:
            raise OutOfScopeError(f"output '{min(never)}' is empty and has different shapes in the two models")
        if self.kept:
            raise OutOfScopeError(f"both models run only with the default value of input '{min(self.kept)}'")
        if left := self._one_sided():
            raise OutOfScopeError(f"only one outcome of {left[0].op_type} '{left[0].name}' was seen")
        return ""

    def _one_sided(self) -> list[ir.Node]:
        return [node for node, seen in self.outcomes.items() if len(seen) == 1]

    def _trials(self) -> Iterator[tuple[int, Mapping[str, int], int, Mapping[str, int]]]:
        """Number, sizes and draw of each, and the integers of some inputs."""
        model = self.models[1]
        cases, longer = list(_sizes(model)), [] if self.exact else list(_long_sizes(model))
        if self.exact and len(cases) > 1:
            cases += _beyond(self.models, cases[0])
        real = all(value.dtype is None or value.dtype.is_floating_point() for value in model.graph.inputs)
        draws = INTEGER_DRAWS if not real else 2 if self.kept else 1
        for index, sizes in enumerate(cases):
            for draw in range(max(self.points, draws)) if index == 0 else range(index, index + draws):
                yield index, sizes, draw, {}
        for sizes in () if self.count else longer:
            yield from ((len(cases), sizes, draw, {}) for draw in range(max(self.points, draws)))
        integers = [str(v.name) for v in required_inputs(model) if v.dtype is not None and v.dtype.is_integer()]
        compared = sorted(set(_compared(self._one_sided())))[:TRIED_NUMBERS]
        for number, name, sizes in itertools.product(compared, integers, (*cases[:1], *longer)):
            if self._one_sided():
                yield len(cases), sizes, 0, {name: number}

    def _differ(self, index: int, sizes: Mapping[str, int], draw: int, numbers: Mapping[str, int]) -> str:
        """Where the models part with some inputs; nothing, too, where the original does not run with them."""
        field = Field(self.seed * 1000 + draw % self.points)
        rng = np.random.default_rng((self.seed, draw, index))
        inputs = _draw(field, self.models[1], sizes, rng, self.exact or draw % 2 == 1)
        inputs |= {name: np.full(inputs[name].shape, number) for name, number in numbers.items()}
        overridden = {} if draw % 2 == 0 else overrides(field, self.models[1], rng)
        inputs |= overridden
        results, symbols = list[list[Array]](), list[set[str]]()
        for document in self.documents:
            field.symbols.clear()
            evaluator = _Evaluator(field, document, self.folded, self.limits, self.deadline)
            evaluator.narrow = self.narrow
            try:
                results.append(evaluator.outputs(inputs))
            except NoStepsError:
                return ""
            except (WrongError, _NotRunError):
                if results:
                    raise
                return ""
            symbols.append(set(field.symbols))
            for node, seen in evaluator.outcomes.items():
                self.outcomes.setdefault(node, set()).update(seen)
        self.count += 1
        self.kept -= overridden.keys()
        if symbols[0] != symbols[1]:
            raise OutOfScopeError(f"the constant {min(symbols[0] ^ symbols[1])} occurs in only one of the models")
        for value, a, b in zip(self.models[0].graph.outputs, *results, strict=True):
            empty = a.size == b.size == 0 and a.ndim == b.ndim  # a Loop of no trips knows no sizes of its steps
            if empty and a.shape != b.shape:
                self.unsized.add(str(value.name))
            elif not empty:
                self.sized.add(str(value.name))
            if not empty and (a.shape != b.shape or a.dtype != b.dtype or not np.array_equal(a, b)):
                shapes = {name: array.shape for name, array in inputs.items()}
                return f"output '{value.name}' differs in exact arithmetic for inputs of shapes {shapes}"
        check_time(self.deadline)
        return ""


def _compared(comparisons: Iterable[ir.Node]) -> Iterator[int]:
    """Integers that something is compared with, and those next to them."""
    for array in (constant(value) for node in comparisons for value in node.inputs):
        if array is not None and array.size <= 4:
            yield from (int(n) + more for n in array.ravel() if abs(n) < 2**31 for more in (-1, 0, 1))


def _free(value: ir.Value) -> list[str]:
    """The free sizes of an input."""
    symbols = (symbol(value, axis) for axis in range(len(value.shape or ())))
    return [name for name in symbols if not isinstance(name, int)]


def _sizes(model: ir.Model) -> Iterator[dict[str, int]]:
    """Numbers for the free sizes of the inputs."""
    free = list(dict.fromkeys(name for value in model.graph.inputs for name in _free(value)))
    for size in SIZES if free else SIZES[:1]:
        yield {name: size + index if size else 0 for index, name in enumerate(free)}


def _long_sizes(model: ir.Model) -> Iterator[dict[str, int]]:
    """Those for models that need many frames or samples, which are the last free sizes of inputs."""
    free = [names for value in model.graph.inputs if (names := _free(value))]
    for size in LONG_SIZES if free else ():
        yield {name: 2 for names in free for name in names} | {names[-1]: size for names in free if len(names) > 1}


def _counted(node: ir.Node, scope: Scope) -> Iterator[int]:
    """The numbers that a node compares with, counts with, or cuts at; not where a step cuts columns."""
    arrays = [constant(value) for value in node.inputs]
    if node.op_type in TABLES and scope.outer is not None and arrays and arrays[0] is not None:
        yield from arrays[0].shape  # a step that looks its number up does so in a table of this size
    axes = arrays[3] if node.op_type == "Slice" and len(arrays) > 3 else None
    for index, array in enumerate(arrays):
        kinds = "" if node.op_type in SHAPES else "iuf" if node.op_type in COMPARE else "iu"
        if array is None or array.size > 4 or array.dtype.kind not in kinds or not kinds:
            continue
        if axes is not None and scope.outer is not None and index in (1, 2):
            array = array[np.ravel(axes)[: array.size] == 0]
        yield from (int(number) for number in np.ravel(array) if np.isfinite(number) and abs(number) < 2**31 - 1)


def _beyond(models: Sequence[ir.Model], sizes: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Sizes beyond the numbers that anything is compared with, or that a loop counts to."""
    numbers = {number for model in models for node, scope in nodes(model) for number in _counted(node, scope)}
    large = sorted(number for number in numbers if number > max(SIZES))
    if large and large[-1] > MOST_COUNTED:
        raise OutOfScopeError(f"the models compare sizes with {large[-1]}")
    near = {number + more for number in numbers if 0 < number <= max(SIZES) for more in (0, 1)} - {*SIZES}
    for number in (*sorted(near), *(number + more for number in large[-4:] for more in (0, 2))):
        for name in sizes:
            yield {**dict.fromkeys(sizes, 2), name: number}


def _sized(value: ir.Value, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of an input, free sizes by their names."""
    symbols = [symbol(value, axis) for axis in range(len(value.shape or ()))]
    return tuple(name if isinstance(name, int) else sizes[name] for name in symbols)


def _draw(
    field: Field, model: ir.Model, sizes: Mapping[str, int], rng: np.random.Generator, lengths: bool
) -> dict[str, Array]:
    """Random inputs. lengths: integers count steps, from one too few to one too many."""
    feeds: dict[str, Array] = {}
    steps = [size for value in model.graph.inputs for size in _sized(value, sizes)]
    most = max(steps, default=0) + 2 if all(steps) else 1  # beyond an empty sequence is nowhere
    low, high = (-1, most) if lengths else (0, 1 if most == 1 else INTEGERS)
    for value in required_inputs(model):
        if value.shape is None or value.dtype is None:
            raise OutOfScopeError(f"input '{value.name}' declares no shape")
        shape = _sized(value, sizes)
        if value.dtype.is_floating_point():
            feeds[str(value.name)] = field.random(shape)
        elif value.dtype == ir.DataType.BOOL:
            feeds[str(value.name)] = rng.integers(0, 2, shape).astype(bool)
        elif value.dtype.is_integer():
            feeds[str(value.name)] = rng.integers(low, high, shape).astype(np.int64)
        else:
            raise OutOfScopeError(f"input '{value.name}' has element type {value.dtype.name}")
    return feeds
