"""rnn-lower stream: what it prints and writes, whole or not at all."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import onnx
import pytest
from judge import close, run_onnxruntime
from onenode import Case, build
from paths import ROOT

import rnn_lower
from rnn_lower import api, cli

DENOISER = str(ROOT / "models" / "torch_denoiser.onnx")


def test_what_is_written(tmp_path, capsys):
    assert cli.main(["stream", DENOISER, "-o", str(tmp_path / "out.onnx"), "--time", "time", "--check"]) == 0
    out = capsys.readouterr().out
    assert "/rnn/GRU/h_in" in out
    assert "same: largest difference" in out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.onnx", "out.state.npz"]
    session = rnn_lower.StreamingSession(tmp_path / "out.onnx")
    with np.load(tmp_path / "out.state.npz") as first:
        assert set(first.files) == {state.input for state in session.plan.states}
        assert {name: first[name].shape[0 if "cache" in name else 1] for name in first.files} == dict.fromkeys(
            first.files, 1
        )
    x = np.random.default_rng(0).uniform(-1, 1, (1, 9, 16)).astype(np.float32)
    got = [session.run(x[:, :4])["y"], session.run(x[:, 4:])["y"]]
    close([np.concatenate(got, 1)], run_onnxruntime(onnx.load(DENOISER), {"x": x}))


def test_first_states_that_are_no_zeros_are_in_the_model_and_the_file(tmp_path):
    model, feeds = build(Case("GRU", T=4, N=2, dynamic=True, optional=("initial_h",)))
    model.graph.initializer.append(onnx.numpy_helper.from_array(feeds.pop("initial_h"), "initial_h"))
    del model.graph.input[1]
    onnx.save(model, tmp_path / "in.onnx")
    api.stream_file(tmp_path / "in.onnx", tmp_path / "out.onnx", axis="T")
    with np.load(tmp_path / "out.state.npz") as first:
        np.testing.assert_array_equal(first["node/h_in"], onnx.numpy_helper.to_array(model.graph.initializer[-1]))
    session = rnn_lower.StreamingSession(tmp_path / "out.onnx")
    got = [session.run(feeds["X"][:1])["Y"], session.run(feeds["X"][1:])["Y"]]
    close([np.concatenate(got)], run_onnxruntime(model, feeds)[:1])


def test_json(tmp_path, capsys):
    assert (
        cli.main(
            ["stream", DENOISER, "-o", str(tmp_path / "out.onnx"), "--time", "time", "--json", "--check", "--runs", "1"]
        )
        == 0
    )
    told = json.loads(capsys.readouterr().out)
    assert [state["input"] for state in told["states"]][-1] == "/rnn/GRU/h_in"
    assert (told["inputs"], told["outputs"], told["every"], told["check"]["ok"]) == ({"x": 1}, {"y": 1}, 1, True)


def test_nothing_is_written_when_the_check_fails(tmp_path, monkeypatch, capsys):
    command = ["stream", DENOISER, "-o", str(tmp_path / "out.onnx"), "--time", "time"]
    assert cli.main(command) == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert len(before) == 2
    assert cli.main([*command, "--check", "--rtol", "0", "--atol", "0"]) == 1
    assert "nothing was written" in capsys.readouterr().out
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_read_only_states_are_kept(tmp_path, capsys):
    command = ["stream", DENOISER, "-o", str(tmp_path / "out.onnx"), "--time", "time"]
    assert cli.main(command) == 0
    (tmp_path / "out.state.npz").chmod(0o444)
    assert cli.main(command) == 2
    assert "out.state.npz: cannot be written: it is read-only; make it writable" in capsys.readouterr().err


def test_an_interruption_leaves_what_was_there(tmp_path, monkeypatch):
    (tmp_path / "out.onnx").write_bytes(b"old")

    def stop(*_: object) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        api.stream_file(DENOISER, tmp_path / "out.onnx", axis="time", accept=stop)
    assert [path.name for path in tmp_path.iterdir()] == ["out.onnx"]


def begun_with(number: float) -> onnx.ModelProto:
    """A GRU whose first state is this number throughout."""
    model, feeds = build(Case("GRU", T=4, N=2, dynamic=True, optional=("initial_h",)))
    first = np.full_like(feeds["initial_h"], number)
    model.graph.initializer.append(onnx.numpy_helper.from_array(first, "initial_h"))
    del model.graph.input[1]
    return model


KILLED = """
import os, sys
from rnn_lower import api
count, replace = int(sys.argv[3]), os.replace
def until(*names):
    global count
    count -= 1
    if count < 0:
        os._exit(9)
    replace(*names)
os.replace = until
api.stream_file(sys.argv[1], sys.argv[2], axis="T")
"""


@pytest.mark.parametrize("renames", range(4))
def test_a_kill_leaves_no_states_beside_another_model(renames, tmp_path):
    """Whichever rename it comes before: there are the states of the model that is there, or none."""
    for name, number in (("one", 0.25), ("two", 0.5)):
        onnx.save(begun_with(number), tmp_path / f"{name}.onnx")
    api.stream_file(tmp_path / "one.onnx", tmp_path / "out.onnx", axis="T")
    command = [sys.executable, "-c", KILLED, tmp_path / "two.onnx", tmp_path / "out.onnx", str(renames)]
    done = subprocess.run(command, cwd=ROOT, check=False)
    assert done.returncode == (9 if renames < 3 else 0)
    (held,) = rnn_lower.StreamingSession(tmp_path / "out.onnx").plan.states
    assert held.first[0, 0, 0] == (0.25 if renames < 2 else 0.5)
    if (path := tmp_path / "out.state.npz").exists():
        with np.load(path) as first:
            np.testing.assert_array_equal(first[held.input], held.first)
    assert (tmp_path / "out.state.npz").exists() == (renames in (0, 3))
    api.stream_file(tmp_path / "two.onnx", tmp_path / "out.onnx", axis="T")  # tidies up
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.onnx", "out.onnx", "out.state.npz", "two.onnx"]


def test_states_of_the_model_before_go_with_it(tmp_path):
    model = begun_with(0.25)
    onnx.save(model, tmp_path / "in.onnx")
    api.stream_file(tmp_path / "in.onnx", tmp_path / "out.onnx", axis="T")
    model.graph.input.append(onnx.helper.make_tensor_value_info("initial_h", onnx.TensorProto.FLOAT, [1, 2, 4]))
    del model.graph.initializer[-1]
    onnx.save(model, tmp_path / "in.onnx")
    api.stream_file(tmp_path / "in.onnx", tmp_path / "out.onnx", axis="T")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.onnx", "out.onnx"]
    (tmp_path / "out.state.npz").write_bytes(b"of somebody else")  # the model there has none
    api.stream_file(tmp_path / "in.onnx", tmp_path / "out.onnx", axis="T")
    assert (tmp_path / "out.state.npz").read_bytes() == b"of somebody else"


def test_names_with_dots(tmp_path):
    for name in ("gru.v1", "gru.v2"):
        api.stream_file(DENOISER, tmp_path / name, axis="time")
    names = ["gru.v1", "gru.v1.state.npz", "gru.v2", "gru.v2.state.npz"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_a_folder_in_the_way_of_the_states(tmp_path):
    (tmp_path / "out.state.npz").mkdir()
    with pytest.raises(rnn_lower.RnnLowerError, match=r"out\.state\.npz: cannot be written"):
        api.stream_file(DENOISER, tmp_path / "out.onnx", axis="time")
    assert [path.name for path in tmp_path.iterdir()] == ["out.state.npz"]


def test_external_weights(tmp_path):
    model = onnx.load(DENOISER)
    onnx.save(model, tmp_path / "in.onnx", save_as_external_data=True, size_threshold=100, location="in.data")
    made = rnn_lower.stream(tmp_path / "in.onnx", axis="time")
    api.stream_file(tmp_path / "in.onnx", tmp_path / "out.onnx", axis="time")
    x = np.random.default_rng(0).uniform(-1, 1, (1, 9, 16)).astype(np.float32)
    wanted = run_onnxruntime(onnx.load(DENOISER), {"x": x})
    for streaming in (made, tmp_path / "out.onnx"):
        close([rnn_lower.StreamingSession(streaming).run(x)["y"]], wanted)


def test_a_folded_step_is_checked_and_proved(tmp_path):
    """Folding drops outputs of the recurrent node that nothing reads, so that it is not looked at alone."""
    command = ["stream", DENOISER, str(tmp_path / "out.onnx"), "--time", "time", "--step", "1", "--dim", "batch=1"]
    assert cli.main([*command, "--fold", "--check", "--prove"]) == cli.DONE


@pytest.mark.parametrize("names", [("m.onnx", "m"), ("m", "m.onnx")])
def test_states_of_another_model_are_not_replaced(names, tmp_path, capsys):
    first, second = names
    assert cli.main(["stream", DENOISER, "-o", str(tmp_path / first), "--time", "time", "-q"]) == 0
    before = (tmp_path / "m.state.npz").read_bytes()
    spotter = str(ROOT / "models" / "torch_keyword_spotter.onnx")
    assert cli.main(["stream", spotter, "-o", str(tmp_path / second), "--time", "time", "-q"]) == 2
    assert f"contains the initial states of {tmp_path / first}" in capsys.readouterr().err
    assert (tmp_path / "m.state.npz").read_bytes() == before
    assert not (tmp_path / second).exists()
    assert cli.main(["stream", spotter, "-o", str(tmp_path / first), "--time", "time", "-q"]) == 0
