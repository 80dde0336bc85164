"""Who owns a data file: what else refers to it, by whatever name and from wherever, and what is more than weights."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onenode import Case, build
from onnx import helper, numpy_helper
from paths import ROOT

import rnn_lower
from rnn_lower import cli
from rnn_lower.modelio import stale_files

CASE = Case("GRU", 17, H=16, I=16, optional=("B",))


def saved(path: Path, data: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(build(CASE)[0], path, save_as_external_data=True, location=data, size_threshold=0)
    return path


def pointing(source: Path, destination: Path, location: str) -> Path:
    """A copy whose weights are said to be elsewhere."""
    model = onnx.load(source, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    onnx.save(model, destination)
    return destination


def lower(source: Path, destination: Path) -> int:
    return cli.main(["lower", os.fspath(source), "-o", os.fspath(destination), "-q"])


def test_data_of_the_input_from_far_above(tmp_path):
    out = saved(tmp_path / "a" / "b" / "c" / "out.onnx", "w.data")
    source = pointing(out, tmp_path / "in.onnx", "a/b/c/w.data")
    assert lower(source, out) == 0
    assert lower(source, tmp_path / "again.onnx") == 0


def test_data_of_the_input_through_a_link(tmp_path):
    out = saved(tmp_path / "p" / "m.onnx", "w.data")
    (tmp_path / "q").mkdir()
    source = pointing(out, tmp_path / "q" / "m.onnx", "w.data")
    (tmp_path / "q" / "w.data").symlink_to("../p/w.data")
    assert lower(source, out) == 0
    assert (tmp_path / "p" / "w.data").exists()


def test_another_model_reads_it_through_a_link(tmp_path):
    source = saved(tmp_path / "a.onnx", "w.data")
    (tmp_path / "alias.bin").symlink_to("w.data")
    other = pointing(source, tmp_path / "b.onnx", "alias.bin")
    assert lower(source, source) == 0
    assert lower(other, tmp_path / "c.onnx") == 0


def test_a_name_that_is_escaped(tmp_path):
    source = saved(tmp_path / "a.onnx", "gewé.data")
    onnx.save(onnx.load(source, load_external_data=False), tmp_path / "b.onnxjson")
    assert lower(source, source) == 0
    assert (tmp_path / "gewé.data").exists()


def test_what_holds_more_than_the_weights(tmp_path):
    source = saved(tmp_path / "a.onnx", "w.data")
    with open(tmp_path / "w.data", "ab") as file:
        file.write(b"and a text")
    assert lower(source, source) == 0
    assert (tmp_path / "w.data").exists()


def test_read_only_data(tmp_path):
    source = saved(tmp_path / "a.onnx", "w.data")
    (tmp_path / "w.data").chmod(0o444)
    assert lower(source, source) == 0
    assert (tmp_path / "w.data").exists()


def test_runs_that_replace_one_model_at_once_leave_one_data_file(tmp_path):
    source = saved(tmp_path / "a.onnx", "w.data")
    command = [sys.executable, "-m", "rnn_lower", "lower", os.fspath(source), "-o", os.fspath(source), "-q"]
    for _ in range(2):
        runs = [subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL) for _ in range(3)]
        assert 0 in [run.wait() for run in runs]
        assert len([path for path in tmp_path.iterdir() if path.name not in ("a.onnx", "w.data")]) == 1
    rnn_lower.inspect(onnx.load(source))


@pytest.mark.parametrize(
    "name", ["v:2.onnx", "\\x.onnx", os.fsdecode(b"m\xff.onnx")], ids=["colon", "backslash", "no text"]
)
def test_names_that_are_odd_as_the_name_of_data(name, tmp_path):
    source = saved(tmp_path / "a.onnx", "w.data")
    out = tmp_path / name
    assert lower(source, out) == 0
    assert lower(out, out) == 0
    assert rnn_lower.check(source, out).ok


def test_training_keeps_the_weights_that_it_changes(tmp_path):
    model = build(CASE)[0]
    info = model.training_info.add()
    info.algorithm.CopyFrom(
        helper.make_graph([helper.make_node("Mul", ["R", "scale"], ["R_new"])], "step", [], [],
                          [numpy_helper.from_array(np.float32(0.5), "scale")])
    )  # fmt: skip
    entry = info.update_binding.add()
    entry.key, entry.value = "R", "R_new"
    lowered = rnn_lower.lower(model)
    assert "R" in {tensor.name for tensor in lowered.graph.initializer}
    assert lowered.training_info == model.training_info
    assert rnn_lower.check(model, lowered).ok


def test_results_that_only_training_reads_are_kept():
    model = build(Case("LSTM", 17, dynamic=True))[0]
    inputs = model.graph.node[0].input[:3]
    model.graph.node.append(helper.make_node("LSTM", inputs, ["trained"], "second", hidden_size=4))
    loss = helper.make_node("ReduceMean", ["trained"], ["loss"])
    model.training_info.add().algorithm.CopyFrom(
        helper.make_graph([loss], "step", [], [helper.make_empty_tensor_value_info("loss")])
    )
    lowered = rnn_lower.lower(model)
    assert "trained" in {name for node in lowered.graph.node for name in node.output}
    assert [node.name for node in rnn_lower.prove(model, lowered).nodes if node.ok] == ["node", "second"]
    model.training_info[0].algorithm.node[0].input[0] = "constant"
    model.graph.node.append(helper.make_node("Constant", [], ["constant"], value_float=1.0))
    lowered = rnn_lower.lower(model)
    assert rnn_lower.prove(model, lowered).ok
    lowered.graph.node.remove(next(node for node in lowered.graph.node if "constant" in node.output))
    assert not rnn_lower.prove(model, lowered).ok
    model.training_info[0].algorithm.node[0].input[0] = "trained"
    del model.graph.node[-2:]
    without = rnn_lower.lower(model)
    model.graph.node.append(helper.make_node("LSTM", inputs, ["trained"], "second", hidden_size=4))
    assert not rnn_lower.prove(model, without).ok


def test_a_report_of_a_model_with_external_data(tmp_path):
    source = saved(tmp_path / "a.onnx", "w.data")
    assert cli.main(["report", os.fspath(source), "-o", os.fspath(tmp_path / "r.html"), "-q"]) == 0


def test_the_proposed_target_goes_where_a_link_leads(tmp_path):
    from rnn_lower.modelio.files import write_text

    (tmp_path / "there.toml").write_text("old")
    (tmp_path / "link.toml").symlink_to("there.toml")
    write_text("new", tmp_path / "link.toml")
    assert (tmp_path / "link.toml").is_symlink()
    assert (tmp_path / "there.toml").read_text() == "new"


@pytest.mark.parametrize(
    ("model", "location", "output"),
    [
        ("other.pb", "w.bin", "w.bin"),
        ("par.onnx", "sub/w.bin", "sub/w.bin"),
        ("wo.onnx", "weights.onnx", "weights.onnx"),
        ("up.ONNX", "up.data", "up.data"),
        ("deep.onnx", "a/b/c/w.bin", "a/b/c/w.bin"),
    ],
)
def test_weights_of_another_model_are_not_replaced(model, location, output, tmp_path, capsys):
    (tmp_path / output).parent.mkdir(parents=True, exist_ok=True)
    owner = saved(tmp_path / model, location)
    before = (tmp_path / output).read_bytes()
    onnx.save(build(CASE)[0], tmp_path / "in.onnx")
    assert lower(tmp_path / "in.onnx", tmp_path / output) == 2
    assert f"contains the weights of {owner}" in capsys.readouterr().err
    assert cli.main(["report", str(tmp_path / "in.onnx"), "-o", str(tmp_path / output), "--runs", "1"]) == 2
    assert (tmp_path / output).read_bytes() == before


def test_a_report_replaces_no_model(tmp_path, capsys):
    model = tmp_path / "m.pb"
    model.write_bytes(build(CASE)[0].SerializeToString())
    before = model.read_bytes()
    assert cli.main(["report", str(model), "-o", str(model), "--runs", "1"]) == 2
    assert "not a report" in capsys.readouterr().err
    assert model.read_bytes() == before


def test_links_in_circles_beside_stale_data(tmp_path):
    source = saved(tmp_path / "m.onnx", "w.data")
    assert lower(source, source) == 0
    (tmp_path / "loop.onnx").symlink_to("loop.onnx")
    assert lower(source, source) == 0
    assert len(list(tmp_path.glob("m.onnx.*.data"))) == 1


@pytest.mark.parametrize("user", ["sub/m.onnx.bak", "sub/m.v1", "main.onnx"])
def test_data_that_a_backup_or_a_model_above_needs_stays(user, tmp_path):
    out, source = tmp_path / "sub" / "m.onnx", saved(tmp_path / "a.onnx", "a.data")
    out.parent.mkdir()
    assert lower(source, out) == 0
    (data,) = out.parent.glob("m.onnx.*.data")
    pointing(out, tmp_path / user, os.path.relpath(data, (tmp_path / user).parent))
    assert lower(source, out) == 0
    assert data.exists()
    (tmp_path / user).unlink()
    assert lower(source, out) == 0
    assert not data.exists()


def test_a_neighbour_that_cannot_be_read_may_need_the_data(tmp_path, monkeypatch):
    source = saved(tmp_path / "m.onnx", "w.data")
    assert lower(source, source) == 0
    secret = tmp_path / "secret.onnx"
    secret.write_bytes(b"")
    search = stale_files._mentions

    def refuse(path, names):
        if path == secret:
            raise PermissionError(13, "Permission denied", str(path))
        return search(path, names)

    monkeypatch.setattr(stale_files, "_mentions", refuse)
    assert lower(source, source) == 0
    assert len(list(tmp_path.glob("m.onnx.*.data"))) == 2
