"""A kit: what is written is what a runtime needs, what came out is judged, and the proposed target is right."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import tomli_w
from features import FEATURES
from judge import close, expected, remaining, run_onnxruntime
from onenode import build
from paths import ROOT
from randomtargets import broken_by

import rnn_lower
from rnn_lower import cli
from rnn_lower.targeting import find_target
from rnn_lower.targeting.files import read_keys
from rnn_lower.targeting.probe.manifest import Manifest, read_manifest

sys.path.append(str(ROOT / "examples"))
import abacus

START = """
summary = "to begin with"
status = "documented"
source = "nobody knows"
forms = ["scan", "loop", "unroll"]
opsets = [13, 17]
limits.Clip.values = { min = [-inf, 0] }
"""


def feeds_of(folder: Path, case) -> dict[str, np.ndarray]:
    return {one.name: np.load(folder / one.file) for one in case.inputs}


def run_kit(folder: Path, results: Path, as_npz: bool = False) -> Manifest:
    """Abacus on every case, in this process."""
    manifest = read_manifest(folder)
    for case in manifest.cases:
        try:
            found = abacus.run(onnx.load(folder / case.model), feeds_of(folder, case))
        except SystemExit:
            continue
        place = results / case.case
        if as_npz:
            results.mkdir(exist_ok=True)
            np.savez(f"{place}.npz", **found)
            continue
        place.mkdir(parents=True)
        for name, array in found.items():
            np.save(place / f"{name}.npy", array)
    return manifest


@pytest.fixture(scope="module")
def kit(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("kits")
    (folder / "start.toml").write_text(START)
    rnn_lower.write_kit(folder / "kit", str(folder / "start.toml"))
    return folder / "kit"


def test_what_lies_in_a_kit(kit):
    """Inputs and results are those of the judge, in the order of the graph, whichever way they are read."""
    manifest = read_manifest(kit)
    assert set(manifest.features) == set(FEATURES)
    assert len(manifest.cases) == 4 * len(FEATURES)
    assert not manifest.refused
    for case in manifest.cases:
        model, feeds = build(FEATURES[case.feature])
        written = onnx.load(kit / case.model)
        assert [value.name for value in written.graph.input] == [one.name for one in case.inputs]
        assert [value.name for value in written.graph.output] == [one.name for one in case.outputs]
        assert [entry.version for entry in written.opset_import if entry.domain == ""] == [case.opset]
        assert (case.form == "fused") == bool(remaining(written))
        if case.form == "fused":
            assert written == model
        for one in (*case.inputs, *case.outputs):
            value = np.load(kit / one.file)
            assert (str(value.dtype), value.shape) == (one.dtype, one.shape)
            with np.load((kit / one.file).parent.with_suffix(".npz")) as archive:
                assert np.array_equal(archive[one.name], value)
        for name, value in feeds.items():
            assert np.array_equal(np.load(kit / "inputs" / case.feature.replace(" ", "_") / f"{name}.npy"), value)
    for feature in FEATURES:
        folder = kit / "expected" / feature.replace(" ", "_")
        wanted = expected(FEATURES[feature])
        close([np.load(folder / f"{name}.npy") for name in FEATURES[feature].wanted], wanted, 0, 0)


def test_a_target_is_proposed_and_right(kit, tmp_path):
    """No Scan, and Softsign silently wrong: the file says so, and with it everything comes out right."""
    run_kit(kit, tmp_path / "results")
    report = rnn_lower.report_kit(kit, tmp_path / "results")
    assert not report.ok
    assert report.forms == ("loop", "unroll")
    assert report.failing == ("Softsign",)
    assert report.unexplained == ()
    assert {found["scan"] for found in report.results.values()} == {("error", "no result")}
    wrong = {(name, form) for name, row in report.results.items() for form, one in row.items() if one[0] == "wrong"}
    assert wrong == {(name, form) for name in ("LSTM activations", "RNN Softsign") for form in ("loop", "unroll")}

    proposed = tmp_path / "mine.toml"
    proposed.write_text(report.proposal)
    keys = read_keys(proposed)
    assert (keys["forms"], keys["avoid"], keys["status"]) == (["loop", "unroll"], ["Softsign"], "measured")
    assert keys["opsets"] == [13, 17]
    assert keys["limits"] == {"Clip": {"values": {"min": [float("-inf"), 0]}}}
    assert "fused" not in keys
    rnn_lower.write_kit(tmp_path / "again", str(proposed))
    run_kit(tmp_path / "again", tmp_path / "better", as_npz=True)
    again = rnn_lower.report_kit(tmp_path / "again", tmp_path / "better")
    assert again.ok
    assert again.failing == again.unexplained == ()
    assert f"{2 * len(FEATURES)} of {2 * len(FEATURES)} lowered models returned the expected outputs" in again.proposal
    for case in FEATURES.values():
        model, feeds = build(case)
        lowered = rnn_lower.lower(model, target=str(proposed))
        assert broken_by(lowered, str(proposed)) == []
        close(list(abacus.run(onnx.ModelProto.FromString(lowered.SerializeToString()), feeds).values()), expected(case))


def results_of(kit: Path, folder: Path, spoiled: dict[str, object]) -> Path:
    """What onnxruntime makes of a kit, but for some cases."""
    for case in read_manifest(kit).cases:
        if case.feature == "LSTM layout 1" or case.form == "fused":
            continue
        (folder / case.case).mkdir(parents=True)
        for one, array in zip(
            case.outputs, run_onnxruntime(onnx.load(kit / case.model), feeds_of(kit, case)), strict=True
        ):
            np.save(folder / case.case / f"{one.name}.npy", array)
    for place, change in spoiled.items():
        change(folder / place)
    return folder


def test_what_is_no_right_result(tmp_path):
    """A NaN, another shape, no array, a pickle, one of two outputs: none of them passes, and none stops the report."""
    kit = tmp_path / "kit"
    rnn_lower.write_kit(
        kit, "portable", only=["GRU plain", "GRU no bias", "GRU reverse", "GRU clip", "GRU one step", "RNN plain"]
    )

    def spoil(array: object):
        return lambda path: np.save(path, np.asarray(array), allow_pickle=True)

    spoiled = {
        "GRU_plain.unroll/Y.npy": spoil(np.full((5, 1, 2, 4), np.nan, np.float32)),
        "GRU_no_bias.unroll/Y.npy": spoil(np.zeros((5, 2, 4), np.float32)),
        "GRU_reverse.unroll/Y_h.npy": lambda path: path.write_bytes(b"no array"),
        "GRU_clip.unroll/Y_h.npy": spoil(np.array([{}], object)),
        "GRU_one_step.unroll/Y_h.npy": lambda path: path.unlink(),
    }
    report = rnn_lower.report_kit(kit, results_of(kit, tmp_path / "results", spoiled))
    found = {name.removeprefix("GRU "): row["unroll"] for name, row in report.results.items()}
    assert found["plain"] == ("wrong", "nan")
    assert found["no bias"] == ("wrong", "shape")
    assert {found[name][0] for name in ("reverse", "clip", "one step")} == {"error"}
    assert found["RNN plain"] == ("right", "")
    assert not report.ok


def test_a_form_that_fails_without_a_reason_is_left_out(tmp_path):
    """An operator that is right elsewhere explains nothing; the other form remains."""
    kit = tmp_path / "kit"
    rnn_lower.write_kit(kit, "tract", only=["RNN plain", "RNN no bias", "RNN reverse"])
    spoiled = {"RNN_reverse.scan/Y.npy": lambda path: np.save(path, np.zeros((5, 1, 2, 4), np.float32))}
    report = rnn_lower.report_kit(kit, results_of(kit, tmp_path / "results", spoiled))
    assert report.unexplained == (("RNN reverse", "scan"),)
    (tmp_path / "mine.toml").write_text(report.proposal)
    keys = read_keys(tmp_path / "mine.toml")
    assert keys["forms"] == ["unroll"]
    assert keys["unroll_up_to"] == "always"
    assert keys["avoid"] == sorted(find_target("tract").constraints.avoid)  # the kit was written for it
    assert "slow" not in keys


RUNNER = """
import os, sys, time
model, inputs, outputs = sys.argv[1:]
name = os.path.basename(model)
if "plain" in name:
    os.abort()
if "reverse" in name:
    time.sleep(60)
if "clip" in name:
    sys.exit("no clip here")
import shutil
shutil.copyfile(inputs.replace("inputs", "expected") + ".npz", outputs + ".npz")
"""


def test_a_command_for_each_case(tmp_path, capsys):
    """A crash, an exit code and a process that hangs are errors of one case; no shell reads the words."""
    kit = tmp_path / "a kit"
    assert cli.main(["kit", "-o", str(kit), "--target", "portable", *(
        word for name in ("plain", "reverse", "clip", "no bias") for word in ("--include", f"RNN {name}")
    )]) == cli.DONE  # fmt: skip
    assert "8 test models for 4 features" in capsys.readouterr().out
    (tmp_path / "run.py").write_text(RUNNER)
    command = f"'{sys.executable}' '{tmp_path}/run.py' {{model}} {{inputs}} {{outputs}}"
    done = cli.main(
        ["kit-report", str(kit), "--run", command, "--timeout", "2", "--json", "-o", str(tmp_path / "t.toml")]
    )
    assert done == cli.DIFFERENT
    told = json.loads(capsys.readouterr().out)
    rows = {name: row["unroll"] for name, row in told["results"].items()}
    assert rows["RNN no bias"] == ["right", ""]
    assert rows["RNN reverse"] == ["error", "took longer than 2 s"]
    assert rows["RNN clip"] == ["error", "ended with exit code 1: no clip here"]
    assert rows["RNN plain"][0] == "error"
    assert told["output"] == str(tmp_path / "t.toml")
    assert read_keys(tmp_path / "t.toml")["fused"] == {"RNN": {"right": ["no bias"]}}
    assert cli.main(["targets", str(tmp_path / "t.toml")]) == cli.DONE


def test_nothing_right_proposes_nothing(tmp_path, capsys):
    kit = tmp_path / "kit"
    rnn_lower.write_kit(kit, "portable", only=["RNN plain"], limit=0.01)
    assert {case.limit for case in read_manifest(kit).cases} == {0.01}
    command = ["kit-report", str(kit), "--run", "false {model} {outputs}", "-o", str(tmp_path / "t.toml")]
    assert cli.main(command) == cli.DIFFERENT
    assert (
        "no target was proposed, because no lowered test model returned the expected outputs" in capsys.readouterr().out
    )
    assert not (tmp_path / "t.toml").exists()


def test_a_target_of_a_batch_of_1_gets_such_models(tmp_path):
    """And what its rules rule out is left out of the kit, with the rule."""
    manifest = rnn_lower.write_kit(
        tmp_path / "kit", "tidl", only=["LSTM plain", "LSTM layout 1", "LSTM sequence_lens input"]
    )
    assert {
        one.shape[1]
        for case in manifest.cases
        for one in case.inputs
        if one.name == "X" and case.feature == "LSTM plain"
    } == {1}
    assert {one.feature for one in manifest.refused} >= {"LSTM sequence_lens input"}
    assert all("target tidl" in one.why for one in manifest.refused)


def test_toml_says_what_it_is_told(tmp_path):
    """Every target's file, read, written and read again."""
    for path in sorted((ROOT / "rnn_lower" / "targeting").glob("*.toml")):
        keys = read_keys(path)
        (tmp_path / "again.toml").write_text(tomli_w.dumps(keys))
        assert read_keys(tmp_path / "again.toml") == keys


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m["cases"][0].update(model="../../etc/passwd"),
        lambda m: m["cases"][0].update(model="/etc/passwd"),
        lambda m: m["cases"][0].update(case="../evil"),
        lambda m: m["cases"][0].update(limit="x"),
        lambda m: m["cases"][0].update(outputs=[]),
        lambda m: m["cases"][0]["outputs"][0].update(file="..\\..\\secret"),
        lambda m: m["cases"][0]["inputs"][0].update(shape=["a"]),
        lambda m: m["cases"][0].pop("form"),
        lambda m: m.update(cases=5),
    ],
)
def test_a_manifest_is_not_trusted(tmp_path, capsys, change):
    rnn_lower.write_kit(tmp_path / "kit", "portable", only=["GRU plain"])
    manifest = json.loads((tmp_path / "kit" / "manifest.json").read_text())
    change(manifest)
    (tmp_path / "kit" / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "results").mkdir()
    assert cli.main(["kit-report", str(tmp_path / "kit"), "--results", str(tmp_path / "results")]) == cli.BAD
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "manifest" in err


def test_the_page_about_new_targets_shows_what_is_printed(tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs" / "new-target.md").read_text()
    (tmp_path / "start.toml").write_text(page.split("<<'END'\n")[1].split("END\n")[0])
    monkeypatch.chdir(tmp_path)
    assert cli.main(["kit", "-o", "kit", "--target", "./start.toml", "--include", "RNN S*"]) == 0
    capsys.readouterr()
    command = f"{sys.executable} {ROOT / 'examples' / 'abacus.py'} {{model}} {{inputs}} {{outputs}}"
    assert cli.main(["kit-report", "kit", "--run", command, "-o", "round1.toml"]) == 1
    assert capsys.readouterr().out.endswith(page.split("```text\n")[1].split("```")[0])


@pytest.mark.parametrize("limit", ["inf", "nan", "0", "-1"])
def test_a_limit_that_limits_nothing(limit, tmp_path, capsys):
    assert cli.main(["kit", "-o", str(tmp_path / "kit"), "--target", "portable", f"--limit={limit}"]) == 2
    assert "must be a number above 0" in capsys.readouterr().err


def test_a_kit_where_a_link_leads(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "later").symlink_to("made")
    for name in ("link", "later"):
        rnn_lower.write_kit(tmp_path / name, "portable", only=["RNN plain"])
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / name / "manifest.json").is_file()
