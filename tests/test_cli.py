"""The command line as a user meets it, and what happens to files when something is wrong."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from judge import remaining
from onenode import OPTIONAL, Case, build
from paths import ROOT, own_models

import rnn_lower
from rnn_lower import cli, errors
from rnn_lower.cli.arguments import make_parser
from rnn_lower.cli.commands import COMMANDS
from rnn_lower.lowering.node import OPERATORS
from rnn_lower.options import Keywords, Options
from rnn_lower.targeting import TARGETS


@pytest.fixture
def lstm(tmp_path) -> Path:
    path = tmp_path / "lstm.onnx"
    onnx.save(build(Case("LSTM", 14, "bidirectional", optional=OPTIONAL["LSTM"]))[0], path)
    return path


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    code = cli.main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_lower_with_check(lstm, tmp_path, capsys):
    out = tmp_path / "out.onnx"
    code, text, _ = run(capsys, "lower", lstm, "-o", out, "--check")
    assert code == 0
    for word in ("LSTM-14", "T=5 N=2 I=3 H=4 -> scan, ", "same: largest difference", str(out)):
        assert word in text
    assert not remaining(onnx.load(out))


@pytest.mark.parametrize("form", ["auto", "scan", "loop"])
def test_models_of_the_project(form, tmp_path, capsys):
    for path in own_models():
        assert run(capsys, "lower", path, "-o", tmp_path / "o.onnx", "--form", form, "--check")[0] == 0


def test_json(lstm, tmp_path, capsys):
    code, text, _ = run(capsys, "lower", lstm, "-o", tmp_path / "o.onnx", "--check", "--json")
    data = json.loads(text)
    assert code == 0
    assert data["nodes"][0]["form"] == "scan"
    assert data["check"]["ok"] is True
    code, text, _ = run(capsys, "inspect", lstm, "--json")
    assert json.loads(text)["nodes"][0]["op"] == "LSTM-14"
    assert json.loads(text)["inputs"][0] == {"input": "X", "type": "float", "shape": [5, 2, 3]}
    code, text, _ = run(capsys, "check", lstm, tmp_path / "o.onnx", "--json")
    assert (code, json.loads(text)["ok"]) == (0, True)


def test_inspect(lstm, capsys, tmp_path):
    code, text, _ = run(capsys, "inspect", lstm)
    assert code == 0
    for word in ("bidirectional", "T=5 N=2 I=3 H=4", "sequence_lens", "Sigmoid-Tanh-Tanh", "float"):
        assert word in text
    assert run(capsys, "lower", lstm, "-o", tmp_path / "o.onnx")[0] == 0
    assert "no RNN, GRU or LSTM" in run(capsys, "inspect", tmp_path / "o.onnx")[1]


def test_check_finds_a_difference(lstm, tmp_path, capsys):
    out = tmp_path / "o.onnx"
    rnn_lower.lower_file(lstm, out)
    model = onnx.load(out)
    tensor = next(t for t in model.graph.initializer if "W" in t.name)
    tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor) * np.float32(1.5), tensor.name))
    onnx.save(model, out)
    code, text, _ = run(capsys, "check", lstm, out)
    assert code == 1
    assert "DIFFERENT" in text
    assert "values differ" in text


def test_failed_check_writes_nothing(lstm, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(rnn_lower.CheckReport, "ok", False)
    code, text, _ = run(capsys, "lower", lstm, "-o", tmp_path / "o.onnx", "--check")
    assert code == 1
    assert "nothing was written" in text
    assert not (tmp_path / "o.onnx").exists()


def test_prove_and_lower_with_a_proof(lstm, tmp_path, capsys):
    out = tmp_path / "o.onnx"
    code, text, _ = run(capsys, "lower", lstm, "-o", out, "--prove")
    assert (code, out.exists()) == (0, True)
    assert "proved: 1 node, with a probability of error below 1e-09, and nothing else has changed" in text
    code, text, _ = run(capsys, "prove", lstm, out)
    assert code == 0
    assert "proved: 1 node" in text
    code, text, _ = run(capsys, "prove", lstm, out, "--points", "3", "--seed", "5", "--json")
    data = strict_json(text)
    assert (code, data["ok"], data["nodes"][0]["verdict"]) == (0, True, "proved")
    assert 0 < data["bound"] < 1e-13


def test_proof_and_check_may_both_be_asked_for(lstm, tmp_path, capsys):
    code, text, _ = run(capsys, "lower", lstm, "-o", tmp_path / "o.onnx", "--prove", "--check", "--json")
    data = strict_json(text)
    assert (code, data["prove"]["ok"], data["check"]["ok"]) == (0, True, True)


def test_what_is_not_proved_is_not_written(lstm, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(rnn_lower.NodeProof, "ok", False)
    code, text, _ = run(capsys, "lower", lstm, "-o", tmp_path / "o.onnx", "--prove")
    assert code == 1
    assert "nothing was written" in text
    assert "NOT PROVED: 0 of 1 node proved" in text
    assert not (tmp_path / "o.onnx").exists()
    code, text, err = run(capsys, "lower", lstm, "-o", tmp_path / "o.onnx", "--prove", "--quiet")
    assert (code, text, err.count("\n")) == (1, "", 1)
    assert "error: NOT PROVED: 0 of 1 node proved; nothing was written" in err


def test_prove_tells_where_models_part(lstm, tmp_path, capsys):
    out = tmp_path / "o.onnx"
    rnn_lower.lower_file(lstm, out)
    model = onnx.load(out)
    tensor = next(t for t in model.graph.initializer if "W" in t.name)
    array = onnx.numpy_helper.to_array(tensor)
    tensor.CopyFrom(onnx.numpy_helper.from_array(np.nextafter(array, np.float32(9)), tensor.name))
    onnx.save(model, out)
    code, text, _ = run(capsys, "prove", lstm, out)
    assert code == 1
    assert "not equal" in text
    assert "first differs in gate i at step 0 of the forward direction" in text


def test_include_and_exclude(lstm, tmp_path, capsys):
    out = tmp_path / "o.onnx"
    for arguments, left in (
        (["--exclude", "no*"], 1),
        (["--include", "GRU"], 1),
        (["--include", "n*"], 0),
    ):
        assert run(capsys, "lower", lstm, "-o", out, *arguments)[0] == 0
        assert len(remaining(onnx.load(out))) == left
    for flag in ("--include", "--exclude"):
        code, _, err = run(capsys, "lower", lstm, "-o", tmp_path / "none.onnx", flag, "nods")
        assert (code, not (tmp_path / "none.onnx").exists()) == (2, True)
        assert f"{flag} nods: no RNN, GRU or LSTM node matches this pattern; names in the model include 'node'" in err


def test_model_without_recurrent_nodes(tmp_path, capsys, lstm):
    out = tmp_path / "o.onnx"
    run(capsys, "lower", lstm, "-o", out)
    code, text, _ = run(capsys, "lower", out, "-o", tmp_path / "again.onnx")
    assert code == 0
    assert "no RNN, GRU or LSTM node" in text
    assert (tmp_path / "again.onnx").read_bytes() == out.read_bytes()


def test_same_file_in_and_out(lstm, capsys):
    assert run(capsys, "lower", lstm, "-o", lstm, "--check")[0] == 0
    assert not remaining(onnx.load(lstm))
    assert os.listdir(lstm.parent) == ["lstm.onnx"]


def test_inputs_file(lstm, tmp_path, capsys):
    feeds = build(Case("LSTM", 14, "bidirectional", optional=OPTIONAL["LSTM"]))[1]
    np.savez(tmp_path / "x.npz", **feeds)
    assert run(capsys, "lower", lstm, "-o", tmp_path / "o.onnx", "--check", "--inputs", tmp_path / "x.npz")[0] == 0
    feeds.pop("X")
    np.savez(tmp_path / "x.npz", **feeds)
    code, _, err = run(capsys, "lower", lstm, "-o", tmp_path / "p.onnx", "--check", "--inputs", tmp_path / "x.npz")
    assert code == 2
    assert "but none for X" in err


# -- bad input: one line, exit 2, nothing written ---------------------------------------------------------------------


def bad_models() -> dict[str, tuple[Case, dict, str]]:
    """name -> case, attribute changes (None removes), words of the message"""
    make = onnx.helper.make_attribute
    return {
        "clip as an int": (Case("LSTM"), {"clip": make("clip", 3)}, "attribute 'clip' has type INT; its type must be FLOAT"),
        "unknown activation": (Case("GRU"), {"activations": make("activations", ["Sigmoid", "Gelu"])}, "unknown activation 'Gelu'"),
        "count of activations": (Case("LSTM"), {"activations": make("activations", ["Tanh"])}, "the number of activations is 1, but LSTM needs 3 per direction"),
        "hidden_size": (Case("RNN"), {"hidden_size": make("hidden_size", 7)}, "hidden_size is 7 according to the attribute"),
        "hidden_size zero": (Case("RNN"), {"hidden_size": make("hidden_size", 0)}, "hidden_size is 0"),
        "direction": (Case("GRU"), {"direction": make("direction", "sideways")}, "unknown direction 'sideways'"),
        "unknown attribute": (Case("GRU"), {"foo": make("foo", 1)}, "no attribute 'foo'"),
        "layout too early": (Case("GRU", 13), {"layout": make("layout", 1)}, "GRU version 7 has no attribute 'layout'"),
        "layout 2": (Case("GRU"), {"layout": make("layout", 2)}, "attribute 'layout' is 2"),
        "negative clip": (Case("LSTM"), {"clip": make("clip", -1.0)}, "attribute 'clip' is -1"),
        "nan clip": (Case("RNN"), {"clip": make("clip", float("nan"))}, "attribute 'clip' is NaN"),
    }  # fmt: skip


@pytest.mark.parametrize("what", bad_models())
def test_bad_attributes(what, tmp_path, capsys):
    case, changes, words = bad_models()[what]
    model, _ = build(case)
    node = model.graph.node[0]
    for name, attribute in changes.items():
        for old in [a for a in node.attribute if a.name == name]:
            node.attribute.remove(old)
        node.attribute.append(attribute)
    path, out = tmp_path / "bad.onnx", tmp_path / "out.onnx"
    onnx.save(model, path)
    code, text, err = run(capsys, "lower", path, "-o", out)
    assert (code, text) == (2, "")
    assert err.count("\n") == 1
    assert str(path) in err
    assert "'node'" in err
    assert words in err
    assert not out.exists()
    with pytest.raises(rnn_lower.InvalidNodeError):
        rnn_lower.lower(model)
    with pytest.raises(rnn_lower.InvalidNodeError):
        rnn_lower.inspect(model)


def contradicting() -> dict[str, tuple[str, tuple[int, ...], str]]:
    return {
        "R": ("R", (1, 16, 5), "must be hidden_size, and hidden_size is 4"),
        "W": ("W", (1, 20, 3), "W has shape [1, 20, 3], but size 20 must be 4 * hidden_size, and hidden_size is 4"),
        "B": ("B", (1, 30), "B has shape [1, 30]"),
        "P": ("P", (2, 12), "must be num_directions, and num_directions is 1"),
        "rank": ("B", (32,), "its rank must be 2"),
        "input_size": ("W", (1, 16, 9), "input_size"),
    }


@pytest.mark.parametrize("what", contradicting())
def test_contradicting_shapes(what, tmp_path, capsys):
    name, shape, words = contradicting()[what]
    model, _ = build(Case("LSTM", optional=("B", "P")))
    tensor = next(t for t in model.graph.initializer if t.name == name)
    tensor.CopyFrom(onnx.numpy_helper.from_array(np.zeros(shape, np.float32), name))
    path = tmp_path / "bad.onnx"
    onnx.save(model, path)
    code, _, err = run(capsys, "lower", path, "-o", tmp_path / "out.onnx")
    assert code == 2
    assert words in err
    assert os.listdir(tmp_path) == ["bad.onnx"]


def test_missing_required_input_and_too_many():
    model, _ = build(Case("RNN"))
    model.graph.node[0].input[2] = ""
    with pytest.raises(rnn_lower.InvalidNodeError, match="input R is missing"):
        rnn_lower.lower(model)
    model, _ = build(Case("RNN", optional=("B", "sequence_lens", "initial_h")))
    model.graph.node[0].input.append("X")
    with pytest.raises(rnn_lower.InvalidNodeError, match="the node has 7 inputs, but the operator allows only 6"):
        rnn_lower.lower(model)


def test_wrong_element_types():
    model, _ = build(Case("RNN", optional=("sequence_lens",)))
    next(v for v in model.graph.input if v.name == "sequence_lens").type.tensor_type.elem_type = 7
    with pytest.raises(rnn_lower.InvalidNodeError, match="sequence_lens has type INT64; it must be INT32"):
        rnn_lower.lower(model)
    model, _ = build(Case("RNN"))
    model.graph.input[0].type.tensor_type.elem_type = 11
    with pytest.raises(rnn_lower.InvalidNodeError, match="element types differ"):
        rnn_lower.lower(model)


def test_unknown_version(monkeypatch):
    monkeypatch.setitem(OPERATORS, "RNN", dataclasses.replace(OPERATORS["RNN"], versions=(1, 7, 14)))
    with pytest.raises(rnn_lower.UnsupportedError, match="version 22 of RNN is unknown; known versions: 1, 7, 14"):
        rnn_lower.lower(build(Case("RNN", 22))[0])


def test_attribute_of_a_function(tmp_path):
    model, _ = build(Case("GRU", 18, place="function"))
    attribute = next(a for a in model.functions[0].node[0].attribute if a.name == "hidden_size")
    attribute.ClearField("i")
    attribute.ref_attr_name = "size"
    model.functions[0].attribute.append("size")
    with pytest.raises(rnn_lower.UnsupportedError, match="lower the model with fold, which inlines the function"):
        rnn_lower.lower(model)


@pytest.mark.parametrize("content", [None, b"", b"not a model at all", "truncated", "folder"])
def test_unreadable_files(content, lstm, tmp_path, capsys):
    path, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    if content == "truncated":
        path.write_bytes(lstm.read_bytes()[:200])
    elif content == "folder":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    for arguments in (("lower", path, "-o", out), ("inspect", path), ("check", path, lstm), ("check", lstm, path)):
        code, _, err = run(capsys, *arguments)
        assert code == 2
        assert err.count("\n") == 1
        assert str(path) in err
    assert not out.exists()


def test_unwritable_output_keeps_the_input(lstm, tmp_path, capsys):
    before = lstm.read_bytes()
    code, _, err = run(capsys, "lower", lstm, "-o", tmp_path / "no" / "such" / "folder.onnx")
    assert code == 2
    assert "cannot be written" in err
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "x").touch()
    assert run(capsys, "lower", lstm, "-o", folder)[0] == 2
    assert lstm.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["folder", "lstm.onnx"]


def test_failure_while_writing_keeps_the_model(lstm, capsys, monkeypatch):
    before = lstm.read_bytes()

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    code, _, err = run(capsys, "lower", lstm, "-o", lstm)
    assert code == 2
    assert "No space left" in err
    assert lstm.read_bytes() == before
    assert os.listdir(lstm.parent) == ["lstm.onnx"]


def test_a_failure_prints_one_line_without_the_notes_before_it(tmp_path, capsys, monkeypatch):
    path = tmp_path / "m.onnx"
    onnx.save(build(Case("LSTM", activations=("ThresholdedRelu", "Tanh", "Tanh")))[0], path)
    code, _, err = run(capsys, "lower", path, "-o", tmp_path / "o.onnx")
    assert (code, err.count("ThresholdedRelu has no alpha")) == (0, 1)
    monkeypatch.setattr("os.fsync", lambda *_: os.read(-1, 1))
    code, _, err = run(capsys, "lower", path, "-o", tmp_path / "o2.onnx")
    assert code == 2
    assert err.startswith("rnn-lower: error: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--form", "spiral"], "invalid choice"),
        (["--target", "abacus"], "unknown target 'abacus'; run `rnn-lower targets` for a list"),
        (["--include", "SRU"], "no RNN, GRU or LSTM node matches this pattern"),
        (["--dim", "T"], "write NAME=SIZE"),
        (["--dim", "Q=3"], "no input has a symbolic size 'Q'"),
        (["--dim", "T=-1"], "write NAME=SIZE"),
        (["--inputs", "x.npz"], "--inputs needs --check"),
        (["--check", "--inputs", "absent.npz"], "absent.npz"),
        (["--opset", "3000"], "opset 3000 is unknown"),
    ],
)
def test_bad_usage(arguments, words, lstm, tmp_path, capsys):
    code, _, err = run(capsys, "lower", lstm, "-o", tmp_path / "o.onnx", *arguments)
    assert code == 2
    assert words in err
    assert err.count("\n") == 1
    assert not (tmp_path / "o.onnx").exists()


def test_impossible_forms(tmp_path, capsys):
    path = tmp_path / "m.onnx"
    onnx.save(build(Case("LSTM", 8))[0], path)
    code, _, err = run(capsys, "lower", path, "-o", tmp_path / "o.onnx", "--form", "scan")
    assert code == 2
    assert "LSTM 'node'" in err
    assert (
        "needs opset 9 or newer, but the model has opset 8; use --form loop or --form unroll, or add --opset 17" in err
    )
    onnx.save(build(Case("LSTM", 14, dynamic=True))[0], path)
    code, _, err = run(capsys, "lower", path, "-o", tmp_path / "o.onnx", "--form", "unroll")
    assert code == 2
    assert (
        "known sequence length, but the sequence length of this node is 'T'; use --form scan or --form loop, or add --dim T=16"
        in err
    )
    assert run(capsys, "lower", path, "-o", tmp_path / "o.onnx", "--form", "unroll", "--dim", "T=5")[0] == 0
    assert run(capsys, "lower", path, "-o", tmp_path / "o.onnx", "--dim", "T=5", "--check")[0] == 0  # with T = 5 too


def test_unrolling_too_much(tmp_path, capsys):
    path = tmp_path / "m.onnx"
    onnx.save(build(Case("LSTM", 14, T=2000))[0], path)
    code, _, err = run(capsys, "lower", path, "-o", tmp_path / "o.onnx", "--form", "unroll", "--max-nodes", "5000")
    assert code == 2
    assert "unrolling 2000 steps emits" in err
    assert "use --form scan or --form loop, or add --max-nodes 50000" in err
    model = rnn_lower.lower(build(Case("LSTM", 14, T=40))[0], form="unroll")
    last = max(place for place, node in enumerate(model.graph.node) if "/t39/" in node.name)
    assert int(_count_message(40, 100).split("emits ")[1].split()[0]) == last + 1
    assert "unrolling 40 steps emits more than 40 nodes" in _count_message(40, 10)


def _count_message(length: int, limit: int) -> str:
    with pytest.raises(rnn_lower.UnsupportedError) as caught:
        rnn_lower.lower(build(Case("LSTM", 14, T=length))[0], form="unroll", max_nodes=limit)
    return str(caught.value)


def test_external_data(tmp_path, capsys):
    """Weights beside the model stay beside it, the touched ones transposed."""
    model, feeds = build(Case("LSTM", 14, H=64, I=64, optional=("B",)))
    extra = onnx.numpy_helper.from_array(np.random.default_rng(0).normal(size=(128, 128)).astype(np.float32), "extra")
    model.graph.initializer.append(extra)
    model.graph.node.append(onnx.helper.make_node("Identity", ["extra"], ["copy"]))
    model.graph.output.append(onnx.helper.make_tensor_value_info("copy", 1, [128, 128]))
    path = tmp_path / "in.onnx"
    whole = copy.deepcopy(model)  # saving with external data takes the data out of the model
    onnx.save(whole, path, save_as_external_data=True, location="in.weights", size_threshold=0)
    for out in (tmp_path / "out.onnx", path):
        code, _, err = run(capsys, "lower", path, "-o", out, "--check")
        assert code == 0
        result = onnx.load(out)
        (data,) = tmp_path.glob(f"{out.name}.*.data")
        lines = [f"the weights were written to {data}"]
        lines += ["in.weights, although"] * (out.name == "in.onnx")
        assert [line in row for line, row in zip(lines, err.splitlines(), strict=True)] == [True] * len(lines)
        assert data.stat().st_size > 2 * 64 * 256 * 4
        assert np.array_equal(
            onnx.numpy_helper.to_array(next(t for t in result.graph.initializer if t.name == "extra")),
            onnx.numpy_helper.to_array(extra),
        )
        assert rnn_lower.check(model, result, inputs=feeds).ok
        path = out if out != path else path


def test_external_data_in_place_twice(tmp_path):
    model, _ = build(Case("GRU", 14, H=64, I=64))
    path = tmp_path / "m.onnx"
    onnx.save(copy.deepcopy(model), path, save_as_external_data=True, location="m.onnx.data", size_threshold=0)
    rnn_lower.lower_file(path, path)
    first = onnx.load(path)
    rnn_lower.lower_file(path, path)
    assert onnx.load(path) == first
    assert rnn_lower.check(model, first).ok


def test_progress_is_reported(tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(build(Case("GRU", 14, H=64, I=64))[0], path, save_as_external_data=True, size_threshold=0)
    seen = []
    rnn_lower.lower_file(path, tmp_path / "o.onnx", progress=lambda name, index, total: seen.append((name, index)))
    assert len(seen) >= 3


@pytest.mark.parametrize(
    "encoding", ["ascii", *(pytest.param(e, marks=pytest.mark.soak) for e in ("cp1252", "utf-16"))]
)
def test_names_that_the_terminal_has_no_letters_for(encoding, tmp_path):
    """What is printed of them is escaped; what is written stays as it is."""
    model, _ = build(Case("GRU"))
    model.graph.node[0].name = "名前"
    onnx.save(model, tmp_path / "é名.onnx")
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    for command in (
        ["inspect", "é名.onnx"],
        ["inspect", "é名.onnx", "--json"],
        ["lower", "é名.onnx", "-o", "ö名.onnx", "--check", "--prove"],
        ["check", "é名.onnx", "ö名.onnx"],
        ["prove", "é名.onnx", "ö名.onnx"],
        ["lint", "é名.onnx", "--target", "opencv"],
        ["report", "é名.onnx", "--svg", "-o", "名.svg"],
        ["lower", "é名.onnx", "-o", "-"],
    ):
        arguments = [sys.executable, "-m", "rnn_lower", *command]
        done = subprocess.run(arguments, capture_output=True, check=False, cwd=tmp_path, env=environment)
        assert done.returncode in (cli.DONE, cli.DIFFERENT), done.stderr
        assert b"rror" not in done.stderr
    assert onnx.load_from_string(done.stdout).graph.node
    assert (tmp_path / "ö名.onnx").exists()
    assert "名前" in (tmp_path / "名.svg").read_text(encoding="utf-8")


def test_from_the_checkout_and_as_a_module_without_runtimes(lstm, tmp_path):
    done = subprocess.run(
        [sys.executable, str(ROOT / "cli.py"), "lower", str(lstm), "-o", str(tmp_path / "o.onnx")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    code = (
        "import sys, rnn_lower, onnx; m = onnx.load(sys.argv[1]); rnn_lower.lower(m); rnn_lower.inspect(m);"
        "bad = [n for n in ('onnxruntime', 'onnxscript', 'onnx.reference', 'rich', 'torch') if n in sys.modules]; sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(lstm)], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr


def test_a_command_defers_what_it_seldom_needs(lstm, tmp_path):
    """sympy is there as soon as somebody asks for it."""
    code = (
        "import sys; from rnn_lower import cli; code = cli.main(['lower', sys.argv[1], '-o', sys.argv[2], '--check']);"
        "assert code == 0 and 'sympy.core' not in sys.modules;"
        "import onnx_ir as ir; assert (ir.SymbolicDim('n') + 1) + 1 == ir.SymbolicDim('n + 2');"
        "import sympy.core; from sympy import Max; assert Max(1, 2) == 2"
    )
    arguments = [sys.executable, "-c", code, lstm, tmp_path / "o.onnx"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_help(capsys):
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert "lower" in out
    assert run(capsys)[0] == 2


def test_inspect_tells_what_a_node_costs(tmp_path, capsys):
    """GRU of both directions, I = 3, H = 4: W and R of 3 gates, B twice, P none."""
    onnx.save(build(Case("GRU", 14, "bidirectional", optional=("B",)))[0], tmp_path / "gru.onnx")
    _, text, _ = run(capsys, "inspect", tmp_path / "gru.onnx", "--json")
    (node,) = json.loads(text)["nodes"]
    assert node["macs_per_step"] == 2 * 3 * 4 * (3 + 4)
    assert node["parameters"] == node["macs_per_step"] + 2 * 2 * 3 * 4


def test_notes_are_one_line_whatever_names_a_model_has(tmp_path, capsys):
    model, _ = build(Case("RNN", activations=("ThresholdedRelu",)))
    model.graph.node[0].name = "two\nlines"
    onnx.save(model, tmp_path / "in.onnx")
    code, _, err = run(capsys, "lower", tmp_path / "in.onnx", "-o", tmp_path / "out.onnx")
    assert code == 0
    assert "two lines" in err
    assert all(line.startswith("rnn-lower: ") for line in err.splitlines())


def test_targets_are_listed(capsys):
    code, out, _ = run(capsys, "targets")
    assert code == 0
    assert out.count("\n") == len(TARGETS) == len(rnn_lower.targets())
    assert all(f"{name}: " in out for name in TARGETS)


def test_the_output_may_follow_the_input(lstm, tmp_path, capsys):
    out = tmp_path / "o.onnx"
    assert run(capsys, "lower", lstm, out)[0] == 0
    assert run(capsys, "lower", lstm, out)[0] == 0, "a lowered model is replaced"
    assert run(capsys, "lower", lstm)[0] == 2
    assert run(capsys, "lower", lstm, out, "-o", out)[0] == 2
    assert run(capsys, "lower", lstm, out, out)[0] == 2


def test_a_second_input_is_not_taken_for_the_output(lstm, tmp_path, capsys):
    """As where a shell makes two names of *.onnx."""
    other = tmp_path / "other.onnx"
    onnx.save(build(Case("GRU"))[0], other)
    before = other.read_bytes()
    code, _, err = run(capsys, "lower", lstm, other)
    assert (code, other.read_bytes()) == (2, before)
    assert f"to overwrite it, pass -o {other}" in err
    assert run(capsys, "lower", lstm, "-o", other)[0] == 0
    assert run(capsys, "lower", lstm, lstm)[0] == 0, "in place"


def test_several_sizes_follow_one_flag(tmp_path, capsys):
    path = tmp_path / "m.onnx"
    onnx.save(build(Case("GRU", T=4, dynamic=True))[0], path)
    code, out, _ = run(capsys, "inspect", path, "--dim", "T=7", "N=3", "--target", "rknn")
    assert code == 0
    assert "T=7 N=3" in out
    assert run(capsys, "lower", "--input-shape", "X:7,3,3", path, tmp_path / "o.onnx")[0] == 0
    assert run(capsys, "lower", "--dim", "T=7", "N=3", path, tmp_path / "o.onnx")[0] == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["lower", "in.onnx", "o.onnx", "--runs", "3"],
        ["lower", "in.onnx", "o.onnx", "--counterexample", "x.npz"],
        ["stream", "in.onnx", "o.onnx", "--seed", "0"],
        ["report", "in.onnx", "--node", "node"],
        ["report", "in.onnx", "--svg", "--rtol", "1e-3"],
        ["kit-report", "kit", "--results", "r", "--timeout", "60"],
    ],
    ids=" ".join,
)
def test_options_that_need_another_are_refused_without_it(arguments, lstm, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lstm.rename("in.onnx")
    code, _, err = run(capsys, *arguments)
    assert (code, os.listdir()) == (2, ["in.onnx"])
    assert "--" in err


def test_a_closed_pipe_ends_in_silence(lstm):
    command = f"{sys.executable} -m rnn_lower targets openvino | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == "0"


def test_names_command_no_terminal(tmp_path, capsys):
    model, _ = build(Case("GRU"))
    model.graph.node[0].name = "\x1b[2Jgone"
    onnx.save(model, tmp_path / "m.onnx")
    for command in (["inspect"], ["lint", "--target", "dla"]):
        _, out, err = run(capsys, command[0], tmp_path / "m.onnx", *command[1:])
        assert "\x1b" not in out + err
        assert "\\x1b[2Jgone" in out
    _, out, err = run(capsys, "lower", tmp_path / "m.onnx", tmp_path / "o.onnx", "-v")
    assert "\x1b" not in out + err


def test_every_option_has_a_help():
    parser = make_parser(COMMANDS)
    (commands,) = (action for action in parser._actions if isinstance(action.choices, dict))
    for command in commands.choices.values():
        assert [action.dest for action in command._actions if not action.help and action.option_strings] == []


def test_options_are_said_once():
    assert list(Keywords.__annotations__) == [field.name for field in dataclasses.fields(Options)]
    for function in (rnn_lower.lower, rnn_lower.lower_file, rnn_lower.LowerRecurrentPass, rnn_lower.rewrite_rules):
        parameters = inspect.signature(function).parameters
        for field in dataclasses.fields(Options):
            assert parameters[field.name].default == field.default
    arguments = make_parser(COMMANDS).parse_args(["lower", "a", "-o", "b"])
    assert (arguments.form, arguments.max_nodes) == (Options.form, Options.max_nodes)


def strict_json(text: str) -> object:
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_json_of_a_failed_check(lstm, tmp_path, capsys, monkeypatch):
    other = tmp_path / "other.onnx"
    model, _ = build(Case("LSTM", 14, "bidirectional", optional=OPTIONAL["LSTM"]))
    model.graph.node.append(onnx.helper.make_node("Concat", ["Y", "Y"], ["twice"], axis=0))
    model.graph.node[0].output[0], model.graph.node[1].input[:], model.graph.node[1].output[0] = (
        "once",
        ["once"] * 2,
        "Y",
    )
    onnx.save(model, other)
    code, text, _ = run(capsys, "check", lstm, other, "--json")
    assert (code, strict_json(text)["max_abs_error"]) == (1, None)
    monkeypatch.setattr(rnn_lower.CheckReport, "ok", False)
    code, text, _ = run(capsys, "lower", lstm, "-o", tmp_path / "o.onnx", "--check", "--json")
    data = strict_json(text)
    assert (code, data["output"], data["check"]["ok"]) == (1, None, False)
    assert data["nodes"][0]["sizes"] == {"seq_length": 5, "batch_size": 2, "input_size": 3, "hidden_size": 4}


@pytest.mark.parametrize(
    ("size", "shown"),
    [(999, "999 bytes"), (999_499, "999 kB"), (999_600, "1 MB"), (999_999_999, "1 GB"), (2 * 10**12, "2000 GB")],
)
def test_sizes_for_people(size, shown):
    from rnn_lower.modelio.statistics import Count

    assert Count({}, size).shown_size == shown


def test_a_working_folder_that_is_gone_is_named(tmp_path):
    (tmp_path / "gone").mkdir()
    command = f"cd gone && rmdir ../gone && {sys.executable} -m rnn_lower lower x.onnx y.onnx"
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 2
    assert "the current folder no longer exists" in done.stderr


def test_a_target_file_of_5000_brackets_is_refused(lstm, tmp_path, capsys):
    (tmp_path / "deep.toml").write_text(f"x = {'[' * 5000}{']' * 5000}")
    code, _, err = run(capsys, "lower", lstm, tmp_path / "o.onnx", "--target", tmp_path / "deep.toml")
    assert (code, err.count("\n")) == (2, 1)
    assert "not a target" in err


@pytest.mark.parametrize(
    "error",
    [
        errors.UnsupportedOpError("Add", "no rule"),
        errors.UnmetRequirementError("text", (errors.Requirement("what"),)),
        errors.OutOfMemoryError(),
        errors.InvalidNodeError("text"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_can_be_pickled(error):
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
