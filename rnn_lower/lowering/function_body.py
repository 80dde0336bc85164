"""A recurrent operator as a function: its lowering with all inputs of the node, including weights, as inputs.

The same body serves a call in a model (`driver/function_calls.py`) and the operator itself, as the ONNX standard could
define it: attributes are compiled into it, dynamic sizes are computed at run time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import Any

import onnx_ir as ir
from onnx_ir import convenience

from rnn_lower.builder.constants import ConstantPool
from rnn_lower.builder.graph_builder import GraphBuilder
from rnn_lower.builder.names import Names
from rnn_lower.errors import InvalidNodeError, RnnLowerError, UnmetRequirementError, UnsupportedError
from rnn_lower.ir.schemas import newest_opset
from rnn_lower.legalize.legalizer import drop_unread
from rnn_lower.lowering.lowering import builder_of, lower_node
from rnn_lower.lowering.node import (
    FLOATS,
    INPUTS,
    OPERATORS,
    OUTPUTS,
    Dim,
    RecurrentNode,
    axes_of,
    read_node,
    version_at,
)
from rnn_lower.validation import check_number, check_numbers, check_texts

Finish = Callable[[RecurrentNode, GraphBuilder, list[ir.Node], list[ir.Value]], tuple[list[ir.Node], list[ir.Value]]]
"""(node, builder, nodes, results) -> the nodes and results that replace them."""

FIRST_OPSET = 9
"""The first opset with the current versions of Scan and Loop."""


def function_of(
    node: RecurrentNode, form: str, opset: int, domain: str, name: str, max_nodes: int | None = None,
    formal: Sequence[str] | None = None, finish: Finish | None = None,
) -> ir.Function:  # fmt: skip
    """Build the function that computes the same as a node.

    Its inputs and outputs have their names in the ONNX specification. The inputs are those of the node, or `formal`,
    where inputs that the node lacks are unused. Symbolic sizes of the node are unknown in the function.
    finish: rewrites the lowered nodes for a target.  Raises UnsupportedError like `lower_node`.
    """
    inputs = {key: ir.Value(name=key, type=value.type, shape=_plain(value.shape)) for key, value in node.inputs.items()}
    outputs = {key: ir.Value(name=key) for key in node.outputs}
    sizes = ("seq_length", "batch_size", "input_size")
    known: dict[str, Any] = {size: dim if isinstance(dim := getattr(node, size), int) else None for size in sizes}
    bare = dataclasses.replace(
        node, name=node.op_type.lower(), path="function", inputs=inputs, outputs=outputs, **known
    )
    names = Names([*INPUTS, *OUTPUTS])
    b = builder_of(bare, opset, names, ConstantPool(names, as_nodes=True), max_nodes)
    results = lower_node(bare, b, form)
    nodes = drop_unread(b.nodes, [*results.values()])
    if finish is not None:
        nodes, values = finish(bare, b, nodes, [*results.values()])
        results = dict(zip(results, values, strict=True))
    for key, value in results.items():
        value.name = key
    formal_input = [inputs.get(key) or ir.Value(name=key) for key in (formal or inputs)]
    graph = ir.Graph(formal_input, list(results.values()), nodes=nodes, opset_imports={"": opset}, name=name)
    return ir.Function(domain, name, graph=graph, attributes=[])


def _plain(shape: ir.Shape | None) -> ir.Shape | None:
    """Return the shape without symbols, which are undefined in a function."""
    return None if shape is None else ir.Shape([dim if isinstance(dim, int) else None for dim in shape])


class _Declared:
    """Shape information of a standalone node: the declarations of its values."""

    def shape(self, value: ir.Value) -> tuple[Dim, ...] | None:
        return None if value.shape is None else tuple(dim if isinstance(dim, int) else None for dim in value.shape)

    def dtype(self, value: ir.Value) -> ir.DataType | None:
        return value.dtype

    def is_provided(self, value: ir.Value) -> bool:
        return True


def body(
    op_type: str, version: int, opset: int | None, attributes: Mapping[str, Any], inputs: Sequence[str],
    outputs: Sequence[str] | None, dtype: str, seq_length: int | None, form: str, domain: str, max_nodes: int,
) -> ir.Function:  # fmt: skip
    """Return the operator as a function; the parameters and errors are those of `rnn_lower.function_body`."""
    if isinstance(attributes["hidden_size"], float):
        check_number("hidden_size", attributes["hidden_size"])
    if dtype is None:
        raise RnnLowerError("dtype is None; it must be a string, the name of an element type")
    check_texts(op_type=op_type, dtype=dtype, domain=domain)
    numbers = {"version": version, "opset": opset, "seq_length": seq_length}
    check_numbers(**{name: number for name, number in numbers.items() if number is not None})
    for what, names in (("inputs", inputs), ("outputs", outputs)):
        if not isinstance(names, (list, tuple, NoneType)):
            raise RnnLowerError(f"{what} is {names!r}; it must be a list or tuple of names")
    opset = _opset_of_body(op_type, version, opset)
    node = _node(op_type, opset, attributes, inputs, outputs, dtype, seq_length)
    if form == "unroll" and node.static_length is None:
        raise UnsupportedError("form unroll needs a known sequence length; set seq_length, or use form scan or loop")
    chosen = {"auto": "unroll" if node.seq_length == 1 else "scan"}.get(form, form)
    try:
        return function_of(node, chosen, opset, domain, op_type, max_nodes, node.operator.inputs)
    except UnmetRequirementError as error:
        raise UnsupportedError(f"{error}; use form scan or loop") from None


def _opset_of_body(op_type: str, version: int, requested: int | None) -> int:
    """Return the requested opset, or the first one with this version. Raises UnsupportedError if there is none."""
    opset, versions = max(version, FIRST_OPSET) if requested is None else requested, OPERATORS[op_type].versions
    if version not in versions:
        known = ", ".join(map(str, versions))
        raise UnsupportedError(f"version {version} of {op_type} is unknown; known versions: {known}")
    if opset < FIRST_OPSET:
        raise UnsupportedError(
            f"a function body needs opset {FIRST_OPSET} or newer, not {opset}, because it uses "
            "versions of Scan and Loop that older opsets do not have"
        )
    if opset > newest_opset():
        raise UnsupportedError(f"opset {opset} is unknown; the installed onnx supports opsets up to {newest_opset()}")
    if (there := version_at(op_type, opset)) != version:
        raise UnsupportedError(f"{op_type} has version {there} at opset {opset}, not version {version}")
    return opset


def _node(
    op_type: str, opset: int, attributes: Mapping[str, Any], inputs: Sequence[str], outputs: Sequence[str] | None,
    dtype: str, seq_length: int | None,
) -> RecurrentNode:  # fmt: skip
    """Return a node without a model; only hidden_size and seq_length are known sizes."""
    operator = OPERATORS[op_type]
    wanted = operator.outputs if outputs is None else outputs
    if not wanted:
        raise RnnLowerError(f"'outputs' is empty; choose from the outputs of {op_type}: {', '.join(operator.outputs)}")
    for what, names, known in (("input", inputs, operator.inputs), ("output", wanted, operator.outputs)):
        for name in names:
            if name not in known:
                raise RnnLowerError(f"{op_type} has no {what} '{name}'; it has {', '.join(known)}")
    if dtype.upper() not in {known.name for known in FLOATS}:
        raise RnnLowerError(f"unknown dtype '{dtype}'; known dtypes: {', '.join(d.name.lower() for d in FLOATS)}")
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    sizes = {"hidden_size": attributes["hidden_size"], "num_directions": directions, "seq_length": seq_length}
    values: list[ir.Value | None] = []
    for name in operator.inputs:
        axes = axes_of(name, operator.gates, attributes.get("layout", 0))
        shape = [None if (size := sizes.get(axis)) is None else factor * size for factor, axis in axes]
        kind = ir.DataType.INT32 if name == "sequence_lens" else ir.DataType[dtype.upper()]
        formal_input = ir.Value(name=name, type=ir.TensorType(kind), shape=ir.Shape(shape))
        values.append(formal_input if name in inputs else None)
    last = max(operator.outputs.index(name) for name in wanted)
    results = [ir.Value(name=name) for name in operator.outputs[: last + 1]]
    held = [_attribute(name, value) for name, value in attributes.items()]
    node = ir.Node("", op_type, values, held, outputs=results, name=op_type.lower())
    ir.Graph([], results, nodes=[node])  # so that the outputs count as used
    return read_node(node, opset, "function", _Declared())


def _attribute(name: str, value: Any) -> ir.Attr:
    try:
        return convenience.convert_attribute(name, value)
    except (TypeError, ValueError):
        raise InvalidNodeError(f"attribute '{name}' is {value!r}, which is not a valid attribute value") from None
