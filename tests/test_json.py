"""What every command prints with --json is what docs/schema.json says, and says nothing beside."""

from __future__ import annotations

import copy
import json
import shutil

import numpy as np
import onnx
import pytest
from onenode import Case, build
from paths import ROOT

from rnn_lower import cli
from rnn_lower.cli import printing

jsonschema = pytest.importorskip("jsonschema")

SCHEMA = json.loads((ROOT / "docs" / "schema.json").read_text(encoding="utf-8"))
MODELS = ROOT / "models"
STREAMING, FED_BACK = str(MODELS / "torch_gru_streaming.onnx"), ("--state", "h=new_h", "--time", "x[1]")
DENOISER, SPOTTER = str(MODELS / "torch_denoiser.onnx"), str(MODELS / "torch_keyword_spotter.onnx")
STREAMING, FED_BACK = str(MODELS / "torch_gru_streaming.onnx"), ("--state", "h=new_h", "--time", "x[1]")


def valid(text: str, name: str) -> dict:
    assert text.count("\n") == 1
    told = json.loads(text)
    jsonschema.Draft202012Validator({"$defs": SCHEMA["$defs"], "$ref": f"#/$defs/{name}"}).validate(told)
    jsonschema.Draft202012Validator(SCHEMA).validate(told)
    return told


@pytest.fixture(scope="module")
def lowered(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("json") / "lowered.onnx"
    assert cli.main(["lower", DENOISER, "-o", str(path), "-q"]) == cli.DONE
    return str(path)


@pytest.fixture(scope="module")
def kit(tmp_path_factory) -> str:
    """One whose results are what is expected, feature by feature."""
    path = tmp_path_factory.mktemp("json") / "kit"
    assert cli.main(["kit", "-o", str(path), "--target", "portable", "--include", "GRU last*"]) == cli.DONE
    for case in json.loads((path / "manifest.json").read_text())["cases"]:
        shutil.copytree((path / case["outputs"][0]["file"]).parent, path / "results" / case["case"])
    return str(path)


COMMANDS: dict[str, tuple[str, list[str], int]] = {
    "lower": ("lower", ["lower", SPOTTER, "-o", "OUT"], 0),
    "lower checked": ("lower", ["lower", DENOISER, "-o", "OUT", "--check", "--prove", "--runs", "1"], 0),
    "lower folded": ("lower", ["lower", SPOTTER, "-o", "OUT", "--fold", "--prove"], 0),
    "lower as functions": ("lower", ["lower", SPOTTER, "-o", "OUT", "--as-function"], 0),
    "lower quietly": ("lower", ["lower", SPOTTER, "-o", "OUT", "-q"], 0),
    "lower, which differs": ("lower", ["lower", DENOISER, "-o", "OUT", "--check", "--rtol", "0", "--atol", "0"], 1),
    "several": ("several", ["lower", DENOISER, SPOTTER, "no.onnx", "--out-dir", "OUT"], 2),
    "several checked": ("several", ["lower", DENOISER, SPOTTER, "--out-dir", "OUT", "--check", "--runs", "1"], 0),
    "stream": ("stream", ["stream", DENOISER, "-o", "OUT", "--time", "time", "--check", "--prove", "--runs", "1"], 0),
    "unstream": ("unstream", ["unstream", STREAMING, "-o", "OUT", *FED_BACK, "--check", "--prove", "--runs", "1"], 0),
    "check": ("check", ["check", DENOISER, "LOWERED"], 0),
    "check, which differs": ("check", ["check", DENOISER, "LOWERED", "--rtol", "0", "--atol", "0"], 1),
    "prove": ("prove", ["prove", DENOISER, "LOWERED"], 0),
    "inspect": ("inspect", ["inspect", SPOTTER], 0),
    "inspect a target": ("inspect", ["inspect", SPOTTER, "--target", "opencv"], 0),
    "raise": ("raise", ["raise", "LOWERED", "-o", "OUT"], 0),
    "inspect nothing": ("inspect", ["inspect", "LOWERED"], 0),
    "lint": ("lint", ["lint", SPOTTER, "--target", "dla"], 1),
    "targets": ("targets", ["targets"], 0),
    "one target": ("targets", ["targets", "dla"], 0),
    "kit": ("kit", ["kit", "-o", "OUT", "--target", "onnx-reference", "--include", "RNN Elu"], 0),
    "kit report": ("kit-report", ["kit-report", "KIT", "--results", "RESULTS"], 0),
    "report": ("report", ["report", SPOTTER, "-o", "OUT", "--runs", "1"], 0),
    "drawing": ("drawing", ["report", DENOISER, "-o", "OUT", "--svg"], 0),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command(name, lowered, kit, tmp_path, capsys):
    definition, command, code = COMMANDS[name]
    places = {"OUT": str(tmp_path / "out"), "LOWERED": lowered, "KIT": kit, "RESULTS": f"{kit}/results"}
    assert cli.main([places.get(word, word) for word in command] + ["--json"]) == code
    told = valid(capsys.readouterr().out, definition)
    assert told["schema"] == printing.SCHEMA


def test_numbers_that_are_none(tmp_path, capsys):
    """Infinity, where shapes differ, is null."""
    for name, case in (("a", Case("GRU", T=3)), ("b", Case("GRU", T=4))):
        onnx.save(build(case.replace(weights="initializer", dynamic=True, N=1))[0], tmp_path / f"{name}.onnx")
    model = onnx.load(tmp_path / "b.onnx")
    model.graph.node.append(onnx.helper.make_node("Unsqueeze", ["Y", "zero"], ["Y2"]))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0]), "zero"))
    model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("Y2", 1, None))
    other = copy.deepcopy(onnx.load(tmp_path / "a.onnx"))
    other.graph.node[0].output[0] = other.graph.output[0].name = "Y2"
    onnx.save(model, tmp_path / "b.onnx")
    onnx.save(other, tmp_path / "a.onnx")
    assert cli.main(["check", str(tmp_path / "a.onnx"), str(tmp_path / "b.onnx"), "--json"]) == cli.DIFFERENT
    assert valid(capsys.readouterr().out, "check")["max_abs_error"] is None


def test_every_definition_is_of_some_command():
    used = {definition for definition, _, _ in COMMANDS.values()}
    assert used == {entry["$ref"].rsplit("/", 1)[1] for entry in SCHEMA["anyOf"]}


def test_what_is_not_documented_is_refused(lowered, capsys):
    assert cli.main(["inspect", DENOISER, "--json"]) == cli.DONE
    told = json.loads(capsys.readouterr().out)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(SCHEMA).validate({**told, "more": 1})
    del told["nodes"][0]["parameters"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(SCHEMA).validate(told)
