"""Several models by one command, pipes, and how much is printed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from judge import remaining
from onenode import Case, build
from paths import ROOT

import rnn_lower
from rnn_lower import cli


@pytest.fixture
def models(tmp_path) -> list[Path]:
    paths = [tmp_path / f"{op}.onnx" for op in ("LSTM", "GRU", "RNN")]
    for path in paths:
        onnx.save(build(Case(path.stem))[0], path)
    return paths


def test_each_goes_into_the_folder_under_its_name(models, tmp_path, capfd):
    folder = tmp_path / "new" / "lowered"
    assert cli.main(["lower", *map(str, models), "--out-dir", str(folder), "--check"]) == cli.DONE
    assert capfd.readouterr().out.count("wrote ") == 3
    assert sorted(path.name for path in folder.iterdir()) == ["GRU.onnx", "LSTM.onnx", "RNN.onnx"]
    assert not any(remaining(onnx.load(path)) for path in folder.iterdir())


def test_one_that_is_bad_does_not_keep_the_others(models, tmp_path, capfd):
    models[1].write_bytes(b"no model")
    command = ["lower", *map(str, models), "--out-dir", str(tmp_path / "out")]
    assert cli.main(command) == cli.BAD
    assert "GRU.onnx: not an ONNX model" in capfd.readouterr().err
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["LSTM.onnx", "RNN.onnx"]
    assert cli.main([*command, "--json"]) == cli.BAD
    told = json.loads(capfd.readouterr().out)
    assert told["schema"] == 1
    assert [(Path(file["input"]).stem, file["exit"]) for file in told["files"]] == [("LSTM", 0), ("GRU", 2), ("RNN", 0)]
    assert "not an ONNX model" in told["files"][1]["error"]
    assert told["files"][0]["nodes"][0]["form"] == "scan"


@pytest.mark.parametrize("link", ["symbolic", "hard", "folder"])
def test_a_result_that_is_a_later_input_is_refused(link, tmp_path, capfd):
    folder, out = tmp_path / "q", tmp_path / "out"
    for name in ("a", "q"):
        (tmp_path / name).mkdir()
    onnx.save(build(Case("GRU"))[0], tmp_path / "a" / "x.onnx")
    onnx.save(build(Case("LSTM"))[0], folder / ("x.onnx" if link == "folder" else "m.onnx"))
    if link == "folder":
        out.symlink_to(folder)
        models = [tmp_path / "a" / "x.onnx", folder / "x.onnx"]
        (tmp_path / "a" / "x.onnx").rename(tmp_path / "a" / "y.onnx")
        models = [tmp_path / "a" / "y.onnx", tmp_path / "b.onnx"]
        models[1].symlink_to(folder / "y.onnx")
        onnx.save(build(Case("LSTM"))[0], folder / "y.onnx")
    else:
        out.mkdir()
        models = [tmp_path / "a" / "x.onnx", folder / "m.onnx"]
        if link == "symbolic":
            (out / "x.onnx").symlink_to(folder / "m.onnx")
        else:
            os.link(folder / "m.onnx", out / "x.onnx")
    before = [path.read_bytes() for path in models]
    assert cli.main(["lower", *map(str, models), "--out-dir", str(out)]) == cli.BAD
    assert " would overwrite the input " in capfd.readouterr().err
    assert [path.read_bytes() for path in models] == before


def test_results_that_are_one_file_are_refused(models, tmp_path, capfd):
    out = tmp_path / "out"
    out.mkdir()
    (out / "GRU.onnx").symlink_to("LSTM.onnx")
    assert cli.main(["lower", *map(str, models), "--out-dir", str(out)]) == cli.BAD
    assert " would both be written to the same file, " in capfd.readouterr().err
    assert [path.name for path in out.iterdir()] == ["GRU.onnx"]


def test_models_that_were_not_lowered_are_kept(models, tmp_path, capfd):
    """Neither the inputs nor others of the same name are overwritten; outputs of an earlier run are."""
    before = [path.read_bytes() for path in models]
    assert cli.main(["lower", *map(str, models), "--out-dir", str(tmp_path)]) == cli.BAD
    other = tmp_path / "other"
    other.mkdir()
    (other / models[-1].name).write_bytes(before[-1])
    assert cli.main(["lower", *map(str, models), "--out-dir", str(other)]) == cli.BAD
    assert "would overwrite a model with recurrent nodes" in capfd.readouterr().err
    assert [path.name for path in other.iterdir()] == [models[-1].name]
    assert [path.read_bytes() for path in (*models, other / models[-1].name)] == [*before, before[-1]]
    for _ in range(2):
        assert cli.main(["lower", *map(str, models), "--out-dir", str(tmp_path / "new")]) == cli.DONE


def test_outputs_in_which_nodes_stayed_are_overwritten_again(tmp_path):
    model, other = (build(Case(op, 17))[0] for op in ("LSTM", "GRU"))
    prefixed = onnx.compose.add_prefix(other, "second_")
    onnx.save(onnx.compose.merge_models(model, prefixed, io_map=[]), tmp_path / "two.onnx")
    for _ in range(2):
        assert (
            cli.main(["lower", str(tmp_path / "two.onnx"), "--include", "GRU", "--out-dir", str(tmp_path / "out")])
            == cli.DONE
        )
    assert remaining(onnx.load(tmp_path / "out" / "two.onnx"))


def run(*arguments: object, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "rnn_lower", *map(str, arguments)]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        command, input=given, capture_output=True, check=False, env={**os.environ, "PYTHONPATH": path}
    )


def test_through_pipes(models):
    data = models[0].read_bytes()
    end = run("lower", "-", "-", "--check", given=data)
    assert end.returncode == 0
    assert not remaining(onnx.ModelProto.FromString(end.stdout))
    assert b"same" in end.stderr
    quiet = run("lower", "-", "-o", "-", "-q", given=data)
    assert (quiet.returncode, quiet.stderr) == (0, b"")
    assert run("check", models[0], "-", given=end.stdout).returncode == 0
    assert b"LSTM" in run("inspect", "-", given=data).stdout
    onnx.save_model(onnx.load(models[1]), models[1], save_as_external_data=True, location="w.bin", size_threshold=0)
    outside = run("inspect", "-", given=models[1].read_bytes())
    assert outside.returncode == 2
    assert b"-: the model has external weights, which cannot be read from a pipe" in outside.stderr
    outside = run("lower", "-", models[0], "--out-dir", models[0].parent / "out", given=models[1].read_bytes())
    assert outside.returncode == 2
    assert outside.stderr.count(b"error: -: the model has external weights") == 1
    assert not remaining(onnx.load(models[0].parent / "out" / models[0].name))
    piped = run("lower", "-", models[0], "--out-dir", models[0].parent / "out", "--json", given=data)
    assert [end["input"] for end in json.loads(piped.stdout)["files"]] == ["-", str(models[0])]
    assert not remaining(onnx.load(models[0].parent / "out" / "stdin.onnx"))
    bad = run("inspect", "-", given=b"no model")
    assert bad.returncode == 2
    assert bad.stderr.startswith(b"rnn-lower: error: -: not an ONNX model")


def test_more_or_less_is_told(models, tmp_path, capfd):
    command = ["lower", str(models[0]), "-o", str(tmp_path / "out.onnx")]
    assert cli.main([*command, "--quiet"]) == cli.DONE
    assert capfd.readouterr() == ("", "")
    assert cli.main([*command, "--verbose"]) == cli.DONE
    assert "form scan, " in capfd.readouterr().err
    assert cli.main([*command, "--quiet", "--json"]) == cli.DONE
    assert json.loads(capfd.readouterr().out)["nodes"]
    assert cli.main(["inspect", str(tmp_path / "no.onnx"), "--quiet"]) == cli.BAD
    assert "no such file" in capfd.readouterr().err
    assert cli.main(["--version"]) == cli.DONE
    assert capfd.readouterr().out == f"rnn-lower {rnn_lower.__version__}\n"
