"""What docs/errors.md advises works: the bad model or command, mended as the page says, is taken."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from corpus import ASKING, READING
from onnx_ir.passes.common import InlinePass
from paths import ROOT

from rnn_lower import cli

PAGE = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
ALL = {bad.name: bad for bad in (*READING, *ASKING)}

OPTIONS: tuple[tuple[str, str, list[str]], ...] = (
    # mistake, what the page advises, the options instead of those that were refused
    ("form scan at opset 8", "--form loop", ["--form", "loop"]),
    ("form scan at opset 8", "--opset 17", ["--form", "scan", "--opset", "17"]),
    ("unroll without a length", "--dim T=16", ["--form", "unroll", "--dim", "T=16"]),
    ("unroll without a length", "--form scan", ["--form", "scan"]),
    ("unroll too long", "--form scan", ["--form", "scan", "--max-nodes", "1000"]),
    ("unroll too long", "--max-nodes 1000000", ["--form", "unroll", "--max-nodes", "1000000"]),
    ("more nodes than allowed", "Leave `--max-nodes` out", ["--form", "loop"]),
    ("target unknown", "--target portable", ["--target", "portable"]),
    ("target without the form", "Leave `--form` out: the target picks one that works", ["--target", "opencv"]),
    ("target without the opset", "--opset 17", ["--target", "onnx2torch", "--opset", "17"]),
    ("target without a batch size", "--dim N=1", ["--target", "opencv", "--dim", "T=5", "--dim", "N=1"]),
    ("target without captured weights", "--form loop", ["--target", "openvino", "--form", "loop"]),
    ("op unknown", "--op LSTM", ["--op", "LSTM"]),
    ("opset 3000 asked for", "--opset 17", ["--opset", "17"]),
    ("operator too new", "leave `--opset` out", []),
    ("Scan of opset 8", "Leave `--opset` out", []),
    ("operator that no converter takes", "leave `--opset` out", []),
    ("layout kept at opset 13", "--opset 14", ["--skip", "*", "--opset", "14"]),
    ("layout kept at opset 13", "lower that node too", ["--opset", "13"]),
    ("too deep to write", "--form unroll", ["--form", "unroll"]),
    ("output read-only", "add `--force`", ["--force"]),
    ("function with two element types", "`--fold`, which inlines such functions", ["--fold"]),
    ("hidden_size of the function", "`--fold`, which inlines such functions", ["--fold"]),
    ("direction of the function", "`--fold`, which inlines such functions", ["--fold", "--check"]),
    ("clip of the function", "`--fold`, which inlines such functions", ["--fold", "--check"]),
    ("seed negative", "--seed 0", ["--check", "--seed", "0"]),
)  # fmt: skip


def inline(folder: Path) -> None:
    path = folder / "bad.onnx"
    ir.save(InlinePass()(ir.load(path)).model, path)


def add_opset(folder: Path) -> None:
    model = onnx.load(folder / "bad.onnx")
    model.opset_import.add(domain="", version=17)
    onnx.save(model, folder / "bad.onnx")


def set_opset(folder: Path) -> None:
    model = onnx.load(folder / "bad.onnx")
    model.opset_import[0].version = 17
    onnx.save(model, folder / "bad.onnx")


def bare_location(folder: Path) -> None:
    model = onnx.load(folder / "bad.onnx", load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "bad.weights"
    (folder / "bad.onnx").write_bytes(model.SerializeToString())


def cast_lengths(folder: Path) -> None:
    model = onnx.load(folder / "bad.onnx")
    model.graph.node.insert(0, onnx.helper.make_node("Cast", ["sequence_lens"], ["lens"], to=onnx.TensorProto.INT32))
    model.graph.node[1].input[4] = "lens"
    onnx.save(model, folder / "bad.onnx")


def right_type(folder: Path) -> None:
    model = onnx.load(folder / "bad.onnx")
    attributes = model.graph.node[0].attribute
    attributes.remove(next(a for a in attributes if a.name == "clip"))
    attributes.append(onnx.helper.make_attribute("clip", 3.0))
    onnx.save(model, folder / "bad.onnx")


def readable(folder: Path) -> None:
    for path in folder.iterdir():
        path.chmod(0o600)


def weights_inside(folder: Path) -> None:
    onnx.save(onnx.load(folder / "bad.onnx"), folder / "whole.onnx")
    os.replace(folder / "whole.onnx", folder / "bad.onnx")


def plain_arrays(folder: Path) -> None:
    np.savez(folder / "X.npz", X=np.zeros((5, 2, 3), np.float32))


def make_folder(folder: Path) -> None:
    (folder / "no" / "such").mkdir(parents=True)


CHANGES: tuple[tuple[str, str, Callable[[Path], None]], ...] = (
    ("no opset", 'model.opset_import.add(domain="", version=17)', add_opset),
    ("opset of another domain only", 'model.opset_import.add(domain="", version=17)', add_opset),
    ("opset 0", "model.opset_import[0].version = 17", set_opset),
    ("RNN clip is of type INT", 'onnx.helper.make_attribute("clip", 3.0)', right_type),
    ("sequence_lens INT64 as input", "Put a `Cast` to INT32 before it", cast_lengths),
    ("attribute of the function converted", "onnx_ir.passes.common.InlinePass()(model)", inline),
    ("location absolute", "to its bare name", bare_location),
    ("location outside", "to its bare name", bare_location),
    ("file unreadable", "chmod u+r FILE", readable),
    ("data file unreadable", "`chmod u+r` the data file", readable),
    ("weights to stdout", 'onnx.save(onnx.load(FILE), "whole.onnx")', weights_inside),
    ("inputs not npz", 'np.savez("X.npz", X=array)', plain_arrays),
    ("inputs a lone array", 'np.savez("X.npz", X=array)', plain_arrays),
    ("inputs of another name", 'np.savez("X.npz", X=', plain_arrays),
    ("output in a missing folder", "`mkdir -p` the folder", make_folder),
)


@pytest.mark.parametrize(("name", "advice", "options"), OPTIONS)
def test_options_that_work(name, advice, options, tmp_path, capsys):
    assert advice in PAGE
    arguments = ALL[name].build(tmp_path)[:4]
    assert cli.main([*arguments, *options]) == 0, capsys.readouterr().err
    assert (tmp_path / "out.onnx").stat().st_size > 100


@pytest.mark.parametrize(("name", "advice", "change"), CHANGES)
def test_changes_that_work(name, advice, change, tmp_path, capsysbinary):
    assert advice in PAGE
    arguments = ALL[name].build(tmp_path)
    change(tmp_path)
    assert cli.main(arguments) == 0, capsysbinary.readouterr().err


def test_writing_to_the_path_in_the_message_works(tmp_path, capsys):
    arguments = ALL["weights through a link"].build(tmp_path)
    assert cli.main(arguments) == 2
    arguments[3] = capsys.readouterr().err.split("write to ")[1].strip()
    assert cli.main(arguments) == 0
