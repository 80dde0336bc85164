"""Sizes as users bring them, and advice that is followed to the letter."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onenode import Case, build
from onnx import TensorProto, helper, numpy_helper
from paths import SHARED, own_models
from strategies import MEASURED

import rnn_lower
from rnn_lower import cli

H, I = 4, 3
DIMS: dict[str, list[int | str | None] | None] = {
    # what the first two axes of X declare
    "negative": [-1, -1], "negative length": [-1, 2], "negative batch": [5, -1], "unnamed": [None, None],
    "question marks": ["?", "?"], "None": ["None", "None"], "one name for both": ["S", "S"], "empty name": ["", ""],
    "names": ["T", "N"], "no shape": None, "large negative": [-(1 << 40), -2],
}  # fmt: skip
WAYS: list[tuple[str, str | None]] = [
    ("auto", None),
    ("scan", None),
    ("loop", None),
    ("unroll", None),
    *(("auto", name) for name in MEASURED if "@" not in name),  # versions of a target take much the same
]
ROUNDS = 2


def model_of(dims: list[int | str | None] | None, lengths: bool, initial: bool) -> onnx.ModelProto:
    """An LSTM whose X declares these sizes; the batch of its other inputs says what X says, or nothing."""
    rng = np.random.default_rng(1)
    weights = {"W": rng.normal(size=(1, 4 * H, I)), "R": rng.normal(size=(1, 4 * H, H))}
    batch = dims[1] if dims and isinstance(dims[1], str) else None
    inputs = [value("X", TensorProto.FLOAT, None if dims is None else [*dims, I])]
    inputs += [value("sequence_lens", TensorProto.INT32, [batch])] if lengths else []
    inputs += [value("initial_h", TensorProto.FLOAT, [1, batch, H])] if initial else []
    given = {v.name for v in inputs} | set(weights)
    names = [name if name in given else "" for name in ("X", "W", "R", "B", "sequence_lens", "initial_h")]
    outputs = [value(name, TensorProto.FLOAT, None) for name in ("Y", "Y_h", "Y_c")]
    node = helper.make_node("LSTM", names, ["Y", "Y_h", "Y_c"], name="node", hidden_size=H)
    constants = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()]
    graph = helper.make_graph([node], "g", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def value(name: str, dtype: int, shape: list[int | str | None] | None) -> onnx.ValueInfoProto:
    if shape is None:
        return helper.make_tensor_value_info(name, dtype, None)
    found = helper.make_tensor_value_info(name, dtype, [None] * len(shape))
    for dim, size in zip(found.type.tensor_type.shape.dim, shape, strict=True):
        if isinstance(size, int):
            dim.dim_value = size
        elif size is not None:
            dim.dim_param = size
    return found


def options_in(message: str) -> list[list[str]]:
    """The ways that a refusal offers: what stands after `use`, `add` and each `or`."""
    advice = message.rsplit("; ", 1)[-1]
    return [shlex.split(way) for way in re.findall(r"--\w[^,]*?(?=,| or |$)", advice)]


def follow(
    path: Path, options: list[str], capsys: pytest.CaptureFixture[str], check: bool = True, rounds: int = ROUNDS
) -> None:
    """Lower and check; where that is refused, every way that the message offers has to work, or it is final."""
    checked = ["--check", "--runs", "1"] if check else []
    code = cli.main(["lower", str(path), "-o", str(path.with_name("out.onnx")), *checked, *options])
    told = capsys.readouterr().err.strip()
    if code == 0:
        return
    assert code == 2, (options, told)
    assert len(told.splitlines()) == 1
    ways = options_in(told)
    if not ways:
        assert re.search("the last attempt failed with: .{10}", told), told
        return
    assert rounds > 0, told
    for way in ways:
        follow(path, replaced(options, way), capsys, check, rounds - 1)


def replaced(options: list[str], way: list[str]) -> list[str]:
    """The options with others added; an option that is given once takes the new value."""
    once = [flag for flag in way if flag in ("--form", "--opset", "--max-nodes")]
    kept = [pair for pair in zip(options[::2], options[1::2], strict=True) if pair[0] not in once]
    return [*itertools.chain.from_iterable(kept), *way]


def crossed(things: Sequence[Any], share: int) -> list[Any]:
    """Each as it is lowered unasked, and unrolled, and each other way with one in so many of them."""
    pairs = itertools.product(enumerate(things), enumerate(WAYS))
    always = [("auto", None), ("unroll", None)]
    return [(one, *way) for (i, one), (k, way) in pairs if way in always or (i + k) % share == 0]


@pytest.mark.parametrize(("dims", "form", "target"), crossed(list(DIMS), 4))
def test_any_size_is_lowered_or_advised_about(dims, form, target, tmp_path, capsys):
    for lengths, initial in ((False, False), (True, True)):
        path = tmp_path / "model.onnx"
        path.write_bytes(model_of(DIMS[dims], lengths, initial).SerializeToString())
        follow(path, ["--form", form, *(["--target", target] if target else [])], capsys)


def test_a_size_of_0_is_empty(tmp_path, capsys):
    """Nothing runs that could be compared, and the proof holds without a run."""
    path = tmp_path / "model.onnx"
    path.write_bytes(model_of([0, 2], False, False).SerializeToString())
    assert cli.main(["lower", str(path), "-o", str(tmp_path / "out.onnx"), "--check"]) == cli.DONE
    assert "1 of 1 replaced node proved" in " ".join(capsys.readouterr().out.split())


MODELS = [*own_models(), *sorted(SHARED.glob("models/*.onnx"))]


@pytest.mark.parametrize(
    ("source", "form", "target"), crossed(MODELS, 7), ids=lambda one: one.stem if isinstance(one, Path) else None
)
def test_advice_on_real_models(source, form, target, tmp_path, capsys):
    path = tmp_path / "model.onnx"
    path.write_bytes(source.read_bytes())
    check = form == "unroll" or target == "portable"  # the others load as slowly, and are the same where they overlap
    check = check and not source.stem.startswith("opset_")  # all operators of an opset, which no runtime has
    follow(path, ["--form", form, *(["--target", target] if target else [])], capsys, check)


def test_a_size_that_the_node_knows_is_advised():
    """The first axis of W is the number of directions, whatever the model calls it."""
    model, _ = build(Case("GRU", 17, "bidirectional", dynamic=True, weights="input"))
    weight = next(value for value in model.graph.input if value.name == "W")
    weight.type.tensor_type.shape.dim[0].dim_param = "D"
    with pytest.raises(rnn_lower.UnsupportedError, match=r"add dims=.*D.*2.*T.*16.*N.*1"):
        rnn_lower.lower(model, target="tvm")


def test_operators_that_hide_sizes_are_named():
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[4,2,3] x) => (float[4,1,2,3] y) <float[3] b = {{1, 2, 3}}, float[1,3,3] W = {{{",".join("123456789")}}}> {{
        h = com.microsoft.BiasGelu (x, b) y = RNN <hidden_size = 3> (h, W, W) }}""")
    with pytest.raises(rnn_lower.UnsupportedError) as error:
        rnn_lower.lower(model, target="opencv")
    why = "because shape inference does not know the results of BiasGelu of domain com.microsoft"
    assert str(error.value).endswith(f"{why}; export the model without such operators")
    model.graph.node[0].CopyFrom(helper.make_node("NonZero", ["x"], ["i"]))
    model.graph.node.insert(1, helper.make_node("GatherND", ["big", "i"], ["h"]))
    model.graph.input.append(helper.make_tensor_value_info("big", TensorProto.FLOAT, [9, 9, 9, 2, 3]))
    model.graph.node.append(helper.make_node("BiasGelu", ["x", "b"], ["z"], domain="com.microsoft"))
    with pytest.raises(rnn_lower.RnnLowerError) as error:
        rnn_lower.lower(model, target="opencv")
    assert "BiasGelu" not in str(error.value)
