"""The semantics of recurrent nodes: reads nodes of any operator version as validated `RecurrentNode` objects."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Protocol, cast

import onnx_ir as ir

from rnn_lower.errors import InvalidNodeError, RnnLowerError, UnsupportedError
from rnn_lower.ir.schemas import schema_of, version_of
from rnn_lower.ir.walk import NODE_MARK, is_read
from rnn_lower.lowering.activations import Activation, assign
from rnn_lower.options import QUANTIZED

INPUTS = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
OUTPUTS = ("Y", "Y_h", "Y_c")
SCALES = ("W_scale", "W_zero_point", "R_scale", "R_zero_point")
"""Additional inputs of a quantized LSTM; W and R are [num_directions, input_size or hidden_size, 4 * hidden_size]."""


@dataclasses.dataclass(frozen=True)
class Operator:
    """The properties in which the operators differ, apart from their equations.

    gates: number of gates in W and R.  states: names of the carried states; each is an output Y_... and an input.
    activations: the default functions f, g, h.  versions: the supported operator versions.
    """

    gates: int
    states: tuple[str, ...]
    activations: tuple[str, ...]
    versions: tuple[int, ...]
    scales: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        return (*INPUTS, *self.scales) if "c" in self.states else INPUTS[:6]

    @property
    def outputs(self) -> tuple[str, ...]:
        return OUTPUTS[: 1 + len(self.states)]


OPERATORS: dict[str, Operator] = {
    "RNN": Operator(1, ("h",), ("Tanh",), (1, 7, 14, 22)),
    "GRU": Operator(3, ("h",), ("Sigmoid", "Tanh"), (1, 3, 7, 14, 22)),
    "LSTM": Operator(4, ("h", "c"), ("Sigmoid", "Tanh", "Tanh"), (1, 7, 14, 22)),
    QUANTIZED: Operator(4, ("h", "c"), ("Sigmoid", "Tanh", "Tanh"), (1,), SCALES),
}
DIRECTIONS: dict[str, tuple[bool, ...]] = {
    "forward": (False,),
    "foward": (False,),  # misspelled in the schema of GRU-1
    "reverse": (True,),
    "bidirectional": (False, True),
}

Dim = int | str | None
"""A size: known, symbolic, or unknown."""

LARGEST_SIZE = 2**31 - 1


class ShapeInfo(Protocol):
    """The interface of shape inference: shapes, element types, and whether an input is provided."""

    def shape(self, value: ir.Value) -> tuple[Dim, ...] | None: ...
    def dtype(self, value: ir.Value) -> ir.DataType | None: ...
    def is_provided(self, value: ir.Value) -> bool: ...


@dataclasses.dataclass(frozen=True)
class RecurrentNode:
    """One RNN, GRU or LSTM node of any version.

    inputs, outputs: by their names in the ONNX specification; only inputs that are present and outputs that are used.

    Shapes (layout 0): X [seq_length, batch_size, input_size], W [num_directions, gates * hidden_size, input_size], R
    [num_directions, gates * hidden_size, hidden_size], B [num_directions, 2 * gates * hidden_size], P [num_directions,
    3 * hidden_size], sequence_lens [batch_size], initial states and final states [num_directions, batch_size,
    hidden_size], Y [seq_length, num_directions, batch_size, hidden_size].

    seq_length, batch_size, input_size: an int if static, the name of a symbolic size, or None if nothing is known.
    declares_x: whether they are known from X itself, and not only from a state or a weight.
    activations: one tuple (f, g, h) per direction.  clip: None if disabled.  dtype: the element type of X.
    path: the location of the node, e.g. "main graph/then_branch of If 'x'".  notes: remarks for the user.
    in_scan: whether the node is in the body of a Scan, if the plan of lowering found this.
    """

    op_type: str
    version: int
    name: str
    path: str
    inputs: Mapping[str, ir.Value]
    outputs: Mapping[str, ir.Value]
    direction: str
    hidden_size: int
    input_size: Dim
    seq_length: Dim
    batch_size: Dim
    declares_x: bool
    dtype: ir.DataType
    activations: tuple[tuple[Activation, ...], ...]
    clip: float | None
    linear_before_reset: bool
    input_forget: bool
    layout: int
    notes: tuple[str, ...]
    node: ir.Node = dataclasses.field(repr=False)
    in_scan: bool = False

    @property
    def operator(self) -> Operator:
        return OPERATORS[self.op_type]

    @property
    def is_quantized(self) -> bool:
        """Whether the node is a DynamicQuantizeLSTM."""
        return self.op_type == QUANTIZED

    @property
    def directions(self) -> tuple[bool, ...]:
        """One entry per direction, True if it runs backward in time."""
        return DIRECTIONS[self.direction]

    @property
    def num_directions(self) -> int:
        return len(self.directions)

    @property
    def static_length(self) -> int | None:
        return self.seq_length if isinstance(self.seq_length, int) else None

    @property
    def static_batch(self) -> int | None:
        return self.batch_size if isinstance(self.batch_size, int) else None

    def known_shape(self, name: str) -> list[int | None]:
        """Return the shape of an input or output, as far as its sizes are known."""
        sizes = ((factor, getattr(self, size)) for factor, size in axes_of(name, self.operator.gates, self.layout))
        return [factor * size if isinstance(size, int) else None for factor, size in sizes]

    @property
    def origin(self) -> dict[str, str]:
        """The metadata by which emitted nodes refer to this node."""
        return {"rnn_lower.op": self.op_type, "rnn_lower.version": str(self.version), NODE_MARK: self.name}

    def describe(self) -> str:
        return f"{self.op_type} '{self.name}' in {self.path}"

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the node alone, with detached inputs and outputs, and not the model that contains it."""
        values: dict[str, dict[str, ir.Value]] = {}
        for what, named in (("inputs", self.inputs), ("outputs", self.outputs)):
            values[what] = {k: ir.Value(name=v.name, type=v.type, shape=v.shape) for k, v in named.items()}
        inputs = [values["inputs"].get(name) for name in self.operator.inputs]
        outputs = [values["outputs"].get(name) or ir.Value(name="") for name in self.operator.outputs]
        node = ir.Node(
            self.node.domain, self.op_type, inputs, self.node.attributes.values(), outputs=outputs, name=self.node.name
        )
        return {**self.__dict__, **values, "node": node}


def display_name(node: ir.Node) -> str:
    """The name of the node, or of its first output; used in messages and new names."""
    return node.name or next((out.name for out in node.outputs if out.name), "") or node.op_type.lower()


def read_node(node: ir.Node, opset: int, path: str, shape_info: ShapeInfo) -> RecurrentNode:
    """Return a validated node.

    opset: of the default domain in the graph of the node.
    Raises InvalidNodeError if the node contradicts the ONNX specification of its version, UnsupportedError if its
    version or one of its attributes is not supported.
    """
    try:
        return _read(node, opset, path, shape_info)
    except RnnLowerError as error:
        raise type(error)(f"{node.op_type} '{display_name(node)}' in {path}: {error}") from None


def _read(node: ir.Node, opset: int, path: str, shape_info: ShapeInfo) -> RecurrentNode:
    op = node.op_type
    version = version_at(op, node.version or opset)  # onnx_ir stores an opset as the version of a node
    attributes = _attributes(node, version)
    inputs = _named(node.inputs, OPERATORS[op].inputs, "inputs")
    inputs = {name: value for name, value in inputs.items() if shape_info.is_provided(value)}
    outputs = _named(node.outputs, OPERATORS[op].outputs, "outputs")
    required = ("X", "W", "R", *OPERATORS[op].scales)
    for name in required:
        if name not in inputs:
            raise InvalidNodeError(
                f"input {name} is missing; {', '.join(required[:-1])} and {required[-1]} are required"
            )

    direction = attributes.get("direction", "forward")
    if direction not in DIRECTIONS:
        raise InvalidNodeError(f"unknown direction '{direction}'; known directions: forward, reverse, bidirectional")
    layout = attributes.get("layout", 0)
    if layout not in (0, 1):
        raise InvalidNodeError(f"attribute 'layout' is {layout}; it must be 0 or 1")
    notes: list[str] = []
    activations = _activations(op, len(DIRECTIONS[direction]), attributes, notes)
    sizes = _sizes(op, inputs, attributes.get("hidden_size"), len(DIRECTIONS[direction]), layout, shape_info)
    _check_outputs(outputs, {**sizes, "num_directions": len(DIRECTIONS[direction])}, layout)
    if not attributes.get("output_sequence", 1) and "Y" in outputs and outputs["Y"].uses():
        notes.append("output_sequence is 0, but another node uses output Y, so Y is computed anyway")
    return RecurrentNode(
        op_type=op,
        version=version,
        name=display_name(node),
        path=path,
        inputs=inputs,
        outputs={name: value for name, value in outputs.items() if is_read(value)},
        direction="forward" if direction == "foward" else direction,
        dtype=_dtype(inputs, outputs, shape_info, notes, op == QUANTIZED),
        activations=activations,
        clip=_clip(op, attributes.get("clip"), notes),
        linear_before_reset=bool(attributes.get("linear_before_reset", 0)),
        input_forget=bool(attributes.get("input_forget", 0)),
        layout=layout,
        node=node,
        notes=tuple(notes),
        hidden_size=cast(int, sizes["hidden_size"]),
        input_size=sizes["input_size"],
        seq_length=sizes["seq_length"],
        batch_size=sizes["batch_size"],
        declares_x=all(isinstance(size, int) for size in shape_info.shape(inputs["X"]) or (None,)),
    )


def version_at(op_type: str, opset: int) -> int:
    """The version of the operator in an opset. Raises UnsupportedError for an unknown version."""
    if op_type == QUANTIZED:
        return 1
    if opset < 1:
        raise UnsupportedError(
            f"the model imports opset {opset} of the default domain, but the oldest opset is 1; set "
            "the right opset in the model"
        )
    version = version_of(op_type, opset)
    if version not in OPERATORS[op_type].versions:
        known = ", ".join(map(str, OPERATORS[op_type].versions))
        raise UnsupportedError(
            f"version {version} of {op_type} is unknown; known versions: {known}; convert the model to opset 22"
        )
    return version


def _attributes(node: ir.Node, version: int) -> dict[str, Any]:
    values: dict[str, Any] = {}
    # The quantized operator, whose schema onnx does not have, has the attributes of LSTM-7.
    schema = schema_of(*(("LSTM", 7) if node.op_type == QUANTIZED else (node.op_type, version)))
    assert schema is not None
    for name, attribute in node.attributes.items():
        if name not in schema.attributes:
            raise InvalidNodeError(f"{node.op_type} version {version} has no attribute '{name}'")
        if attribute.is_ref():
            raise UnsupportedError(
                f"attribute '{name}' refers to attribute '{attribute.ref_attr_name}' of the function; "
                "lower the model with --fold, which inlines the function"
            )
        if attribute.type != (kind := ir.AttributeType(schema.attributes[name].type.value)):
            raise InvalidNodeError(f"attribute '{name}' has type {attribute.type.name}; its type must be {kind.name}")
        values[name] = attribute.value
    return values


def _named(values: Any, names: tuple[str, ...], what: str) -> dict[str, ir.Value]:
    if len(values) > len(names):
        raise InvalidNodeError(f"the node has {len(values)} {what}, but the operator allows only {len(names)}")
    return {name: value for name, value in zip(names, values, strict=False) if value is not None and value.name}


def _activations(
    op: str, num_directions: int, attributes: Mapping[str, Any], notes: list[str]
) -> tuple[tuple[Activation, ...], ...]:
    defaults = OPERATORS[op].activations
    per_direction = len(defaults)
    names = list(attributes.get("activations", ()))
    if not names:
        names = list(defaults) * num_directions
    elif op == "RNN" and num_directions == 1 and len(names) == 2:
        names = names[:1]  # some exporters always list two; onnxruntime uses the first
    if len(names) != per_direction * num_directions:
        raise InvalidNodeError(
            f"the number of activations is {len(names)}, but {op} needs {per_direction} per direction, "
            f"{per_direction * num_directions} in all"
        )
    alphas, betas = (attributes.get(name, ()) for name in ("activation_alpha", "activation_beta"))
    for number in (*alphas, *betas):
        if not math.isfinite(number):  # times 0, it would be NaN
            raise InvalidNodeError(f"an activation has the parameter {number:g}; it must be finite")
    flat, surprises = assign(names, alphas, betas)
    notes.extend(surprises)
    return tuple(flat[start : start + per_direction] for start in range(0, len(flat), per_direction))


def _clip(op: str, clip: float | None, notes: list[str]) -> float | None:
    """Return the clip threshold, or None if clipping is off: negative for RNN; 0 for GRU and LSTM, as exporters write
    it.
    """
    if clip is None or clip == float("inf") or (op == "RNN" and clip < 0):
        return None
    if clip != clip:
        raise InvalidNodeError("attribute 'clip' is NaN; it must be a number")
    if op != "RNN" and clip < 0:
        raise InvalidNodeError(f"attribute 'clip' is {clip:g}; it must be positive")
    if op != "RNN" and clip == 0:
        notes.append("attribute 'clip' is 0, which disables clipping; onnxruntime does not accept 0")
        return None
    return float(clip)


def _sizes(
    op: str,
    inputs: Mapping[str, ir.Value],
    hidden_size: int | None,
    num_directions: int,
    layout: int,
    shape_info: ShapeInfo,
) -> dict[str, Dim]:
    """Infer hidden_size, input_size, seq_length, batch_size from all inputs. Raises InvalidNodeError on a conflict."""
    if hidden_size is not None and hidden_size < 1:
        raise InvalidNodeError(f"hidden_size is {hidden_size}; it must be positive")
    sizes: dict[str, Dim] = {"hidden_size": hidden_size, "input_size": None, "seq_length": None, "batch_size": None}
    source = {} if hidden_size is None else {"hidden_size": "the attribute"}
    # R first: it supplies a missing hidden_size, and a contradiction is best reported against R.
    for name in ("R", *(name for name in INPUTS if name != "R")):
        shape = shape_info.shape(inputs[name]) if name in inputs else None
        if shape is None:
            continue
        axes = axes_of(name, OPERATORS[op].gates, layout)
        if op == QUANTIZED and name in ("W", "R"):
            axes = [axes[0], axes[2], axes[1]]
        if len(shape) != len(axes):
            raise InvalidNodeError(
                f"{name} has shape {_shown(shape)} of rank {len(shape)}; its rank must be {len(axes)}"
            )
        if any(isinstance(dim, int) and dim > LARGEST_SIZE for dim in shape):
            raise InvalidNodeError(f"{name} has shape {_shown(shape)}; the maximum size of an axis is {LARGEST_SIZE}")
        for dim, (factor, size) in zip(shape, axes, strict=True):
            known = num_directions if size == "num_directions" else sizes[size]
            if not isinstance(dim, int):
                if known is None and factor == 1:
                    sizes[size] = dim
            elif isinstance(known, int) and dim != factor * known:
                times = "" if factor == 1 else f"{factor} * "
                by = f" according to {source[size]}" if size in source else ""
                raise InvalidNodeError(
                    f"{name} has shape {_shown(shape)}, but size {dim} must be {times}{size}, and {size} is {known}{by}"
                )
            elif dim % factor:
                text = f"size {dim} must be a multiple of {factor}, the number of gates"
                raise InvalidNodeError(f"{name} has shape {_shown(shape)}, but {text}")
            elif size != "num_directions":
                sizes[size] = dim // factor
                source.setdefault(size, name)
    if not isinstance(sizes["hidden_size"], int):
        raise InvalidNodeError("hidden_size is missing and the shape of R is unknown; add the attribute hidden_size")
    if sizes["hidden_size"] > LARGEST_SIZE:
        raise InvalidNodeError(f"hidden_size is {hidden_size}; the maximum is {LARGEST_SIZE}")
    return sizes


def _check_outputs(outputs: Mapping[str, ir.Value], sizes: Mapping[str, Dim], layout: int) -> None:
    """Raise InvalidNodeError if a graph output, to which runtimes reshape the result, declares another shape."""
    for name, value in outputs.items():
        if value.shape is None or not value.is_graph_output():
            continue
        declared = tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)
        real = tuple(sizes[size] for _, size in axes_of(name, 0, layout))
        pairs = [(a, b) for a, b in zip(declared, real, strict=False) if isinstance(a, int) and isinstance(b, int)]
        if len(declared) != len(real) or any(a >= 0 and a != b for a, b in pairs):
            raise InvalidNodeError(
                f"output {name} is declared with shape {_shown(declared)}, but its actual shape is {_shown(real)}"
            )


def axes_of(name: str, gates: int, layout: int) -> list[tuple[int, str]]:
    """Return the axes of an input or output as (factor, name of a size); the axis has factor * size elements."""
    directions, batch, time = (1, "num_directions"), (1, "batch_size"), (1, "seq_length")
    hidden, features = (1, "hidden_size"), (1, "input_size")
    axes = {
        "X": [batch, time, features] if layout else [time, batch, features],
        "W": [directions, (gates, "hidden_size"), features],
        "R": [directions, (gates, "hidden_size"), hidden],
        "B": [directions, (2 * gates, "hidden_size")],
        "P": [directions, (3, "hidden_size")],
        "sequence_lens": [batch],
        "Y": [batch, time, directions, hidden] if layout else [time, directions, batch, hidden],
    }
    if name in SCALES:
        return []
    return axes.get(name, [batch, directions, hidden] if layout else [directions, batch, hidden])


def _shown(shape: tuple[Dim, ...]) -> str:
    return "[" + ", ".join("?" if dim is None else str(dim) for dim in shape) + "]"


INTEGERS = ("W", "R", "W_zero_point", "R_zero_point")
FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def _dtype(
    inputs: Mapping[str, ir.Value],
    outputs: Mapping[str, ir.Value],
    shape_info: ShapeInfo,
    notes: list[str],
    quantized: bool,
) -> ir.DataType:
    dtypes: dict[ir.DataType, str] = {}
    for name, value in (*inputs.items(), *outputs.items()):
        dtype = shape_info.dtype(value)
        if dtype is None:
            continue
        if quantized and name in INTEGERS:
            if dtype not in (ir.DataType.INT8, ir.DataType.UINT8):
                raise InvalidNodeError(f"{name} has type {dtype.name}; it must be INT8 or UINT8")
            continue
        if name == "sequence_lens":
            if dtype != ir.DataType.INT32:
                raise InvalidNodeError(f"sequence_lens has type {dtype.name}; it must be INT32")
        elif dtype not in FLOATS:
            known = ", ".join(known.name for known in FLOATS)
            raise InvalidNodeError(f"{name} has type {dtype.name}; it must be one of {known}")
        else:
            dtypes.setdefault(dtype, name)
    if len(dtypes) > 1:
        text = ", ".join(f"{name} is {dtype.name}" for dtype, name in dtypes.items())
        raise InvalidNodeError(f"element types differ: {text}")
    if not dtypes:
        notes.append("the element type of the inputs is unknown; assuming FLOAT")
    return next(iter(dtypes), ir.DataType.FLOAT)
