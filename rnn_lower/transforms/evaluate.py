"""The evaluator of onnx, adapted to support every model; its recurrent nodes are not a reference."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lower.ir import protobuf
from rnn_lower.ir.schemas import FIRST_TODAY
from rnn_lower.ir.traits import DATA_MOVEMENT, ELEMENTWISE, MEASURING
from rnn_lower.ir.walk import computes_with_infinity, known_tensor, opset_of, subgraphs
from rnn_lower.transforms.certainty import is_certain, jumps, passes_rounding, rounds

if TYPE_CHECKING:
    from onnx.reference import ReferenceEvaluator

TRUSTED = frozenset((
    *ELEMENTWISE, *DATA_MOVEMENT, "ArgMax", "ArgMin", "Compress", "Constant", "ConstantOfShape", "CumSum",
    "DepthToSpace", "DequantizeLinear", "Einsum", "EyeLike", "GatherND", "Gemm", "MatMul",
    "MatMulInteger", "NonZero", "Pad", "QuantizeLinear", "Range", "ReduceL1", "ReduceL2", "ReduceLogSum",
    "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
    "ReverseSequence", "ScatterElements", "ScatterND", "Shape", "Size", "SpaceToDepth", "Tile", "TopK", "Trilu",
))  # fmt: skip
"""Operators that onnx's evaluator computes as onnxruntime does; others are not compared, or wrong in some uses."""

CORRECTED = frozenset((
    "BatchNormalization", "Dropout", "GatherElements", "Hardmax", "LRN", "LogSoftmax", "LpNormalization", "OneHot",
    "Softmax",
))  # fmt: skip
"""Operators that `reference_operators` corrects; `fold` leaves them alone, because onnxscript has its own evaluator."""

KNOWN = TRUSTED | CORRECTED
"""Operators with which constants are computed."""

MOST_ELEMENTS = 1 << 20
"""The most elements of a constant of floats from which others are computed, and of one that is computed."""

GROWING = {"ConstantOfShape": 0, "Expand": 1, "OneHot": 1, "Pad": 1, "Range": 0, "Resize": 2, "Tile": 1, "Upsample": 1}
"""Operators whose operands, from the one with this index on, decide how many elements they compute."""


def evaluate(
    nodes: Iterable[onnx.NodeProto], feeds: Mapping[str, np.ndarray], wanted: Sequence[str],
    imports: Iterable[onnx.OperatorSetIdProto], also: Collection[str] = (),
) -> list[np.ndarray]:  # fmt: skip
    """The wanted values. feeds: all values that the nodes read, by name.  also: other operators to trust.

    Raises ValueError for an operator that is not trusted, and the errors of the evaluator.
    """
    nodes = list(nodes)
    doubtful = [node.op_type for node in nodes if node.op_type not in KNOWN and node.op_type not in also]
    if doubtful:
        raise ValueError(f"onnx's evaluator is not trusted to compute {doubtful[0]}")
    inputs, outputs = ([onnx.ValueInfoProto(name=name) for name in names] for names in (feeds, wanted))
    graph = onnx.helper.make_graph(nodes, "evaluated", inputs, outputs)
    model = onnx.helper.make_model(graph, opset_imports=list(imports))
    with np.errstate(all="ignore"):  # numpy would warn on stderr
        return [np.asarray(value) for value in evaluator(model).run(None, dict(feeds))]


def divides_by_zero(node: ir.Node, operands: Sequence[np.ndarray | None]) -> bool:
    """Whether a node divides an integer by zero."""
    divisor = operands[1] if node.op_type in ("Div", "Mod") and len(operands) == 2 else None
    return divisor is not None and divisor.dtype.kind in "iu" and not divisor.all()


def evaluate_node(
    node: ir.Node, operands: Sequence[np.ndarray | None], opset: int, certain: bool = True
) -> list[np.ndarray]:
    """The named outputs of one node. operands: in input order, None for absent ones.

    certain: compute only what all runtimes compute alike.
    Raises ZeroDivisionError for integers, with which numpy continues, ValueError for results that depend on the
    runtime, and the errors of `evaluate`.
    """
    if divides_by_zero(node, operands):
        raise ZeroDivisionError
    if computes_with_infinity(node):
        raise ValueError(f"an attribute of {node.op_type} is infinite or NaN")
    if certain and not is_certain(node, operands):
        raise ValueError(f"runtimes do not agree on {node.op_type} of these operands")
    names = [f"in{index}" if operand is not None else "" for index, operand in enumerate(operands)]
    proto = ir.to_proto(node)
    proto.input[:] = names
    feeds = {name: operand for name, operand in zip(names, operands, strict=True) if operand is not None}
    wanted = [str(value.name) for value in node.outputs if value.name]
    return evaluate([proto], feeds, wanted, [onnx.helper.make_opsetid("", opset)])


def computed_constants(nodes: Iterable[tuple[ir.Node, int]]) -> dict[ir.Value | None, np.ndarray]:
    """The values that nodes compute from constants alone, as all runtimes do. nodes: in order, with their opsets."""
    listed = [*nodes]
    computed, delicate = _computed(listed, ())
    return _computed(listed, delicate)[0] if delicate else computed


def delicate_nodes(nodes: Sequence[tuple[ir.Node, int]]) -> set[ir.Node]:
    """The nodes that compute floats from constants alone on whose last digit another node of constants depends.

    Runtimes round Exp(Log(3)) in several ways, so that Floor of it may be 2 or 3. nodes: in order, with their opsets.
    """
    return _computed(nodes, ())[1] if any(jumps(node) for node, _ in nodes) else set()


def _computed(
    nodes: Iterable[tuple[ir.Node, int]], left_out: Collection[ir.Node]
) -> tuple[dict[ir.Value | None, np.ndarray], set[ir.Node]]:  # fmt: skip
    """The values that nodes compute from constants alone, and the nodes among these that are delicate."""
    computed: dict[ir.Value | None, np.ndarray] = {}
    rounding: dict[ir.Value | None, set[ir.Node]] = {}
    delicate = set[ir.Node]()
    for node, opset in nodes:
        held = [value for value in node.inputs if value is not None]
        is_known = all(value in computed or _is_read(known_tensor(value), node) for value in held)
        if not is_known or not held or node in left_out or any(subgraphs(node)):
            continue
        operands = [computed[value] if value in computed else content_of(value, node) for value in node.inputs]
        if most_elements(node.op_type, operands) > MOST_ELEMENTS:
            continue
        sources = set[ir.Node]().union(*(rounding.get(value, ()) for value in held))
        delicate |= sources if jumps(node) else set()
        with contextlib.suppress(Exception), np.errstate(all="ignore"):  # an invalid node, which a run reports
            results = evaluate_node(node, operands, opset)
            computed.update(zip((value for value in node.outputs if value.name), results, strict=True))
            if passes_rounding(node):
                rounding.update(dict.fromkeys(node.outputs, sources | ({node} if rounds(node, operands) else set())))
    return computed, delicate


def most_elements(op_type: str, inputs: Iterable[np.ndarray | None]) -> int:
    """An upper bound on the elements that a node computes."""
    operands = [array for array in inputs if array is not None]
    sizes = [array.size for array in operands]
    if op_type in GROWING:
        repeated = sizes[0] if op_type in ("Expand", "Tile") else 1
        return max(1, repeated) * math.prod(
            abs(int(number)) + 1
            for array in operands[GROWING[op_type] :]
            if array.dtype.kind in "iuf"
            for number in array.ravel()[:64]
            if np.isfinite(number)
        )
    if op_type == "Concat":
        return sum(sizes)
    if op_type in ("Gemm", "MatMul", "MatMulInteger"):
        rows, columns = (math.prod(array.shape) // max(1, min(array.shape[-2:], default=1)) for array in operands[:2])
        return max(1, rows) * max(1, columns)
    try:
        return math.prod(np.broadcast_shapes(*(array.shape for array in operands)))
    except (RuntimeError, ValueError):  # such as a Gather, which computes fewer elements than this
        return math.prod(sizes) >> 6


def _is_read(tensor: ir.TensorProtocol | None, node: ir.Node) -> bool:
    """Whether to evaluate a node that reads this constant: any but many floats, unless it reads only their shape."""
    if tensor is None:
        return False
    return node.op_type in MEASURING or tensor.dtype.is_integer() or tensor.size <= MOST_ELEMENTS


def content_of(value: ir.Value | None, node: ir.Node) -> np.ndarray | None:
    """The numbers of a constant, or zeros for a node that reads only its shape."""
    tensor = known_tensor(value)
    if tensor is None:
        return None
    return np.broadcast_to(0, tensor.shape.numpy()) if node.op_type in MEASURING else np.asarray(tensor.numpy())


def evaluator(model: onnx.ModelProto, operators: Iterable[type] = ()) -> ReferenceEvaluator:
    """An evaluator for a model; names unnamed outputs in place.

    onnx 1.23 would pass an unnamed output to every later node that omits an optional input. model: without functions.
    operators: replacements for onnx's own.
    """
    # Most models need no evaluation, and these imports take a tenth of the time to lower a small one.
    from onnx.reference import ReferenceEvaluator

    from rnn_lower.transforms.old_operators import OLD_OPERATORS
    from rnn_lower.transforms.reference_operators import OPERATORS

    count = itertools.count()
    for holder in protobuf.holders(model):
        for node in holder.node:
            node.output[:] = [name or f"rnn_lower/unwanted/{next(count)}" for name in node.output]
    old = OLD_OPERATORS if (opset_of(model) or 0) < FIRST_TODAY else ()
    return ReferenceEvaluator(model, new_ops=[*OPERATORS, *old, *operators])
