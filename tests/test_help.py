"""What --help shows can be typed, and what the shell completes is there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from paths import ROOT

from rnn_lower import cli
from rnn_lower.cli.arguments import EXAMPLES, make_parser
from rnn_lower.cli.commands import COMMANDS
from rnn_lower.targeting import TARGETS


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with models of the names in the examples, and a command of the name rnn-lower."""
    path = tmp_path_factory.mktemp("help")
    shutil.copy(ROOT / "models" / "torch_denoiser.onnx", path / "in.onnx")
    shutil.copy(ROOT / "models" / "torch_gru_streaming.onnx", path / "other.onnx")
    assert cli.main(["lower", str(path / "in.onnx"), "-o", str(path / "out.onnx"), "-q"]) == cli.DONE
    shutil.copy(path / "out.onnx", path / "loops.onnx")
    time = ["--time", "time", "--step", "1", "-q"]
    assert cli.main(["stream", str(path / "in.onnx"), "-o", str(path / "chunks.onnx"), *time]) == cli.DONE
    onnx.save(one_step(), path / "step.onnx")
    command = path / "bin" / "rnn-lower"
    command.parent.mkdir()
    command.write_text(
        f'#!{sys.executable}\n# PYTHON_ARGCOMPLETE_OK\nfrom rnn_lower.cli import main\nif __name__ == "__main__":\n    raise SystemExit(main())\n'
    )
    command.chmod(0o755)
    assert cli.main(["kit", "-o", str(path / "kit"), "--target", "portable", "--include", "GRU last*"]) == cli.DONE
    (path / "mine.py").write_text(RUNTIME)
    run = f"{sys.executable} {path / 'mine.py'} {{model}} {{inputs}} {{outputs}}"
    assert cli.main(["kit-report", str(path / "kit"), "--run", run, "--results", str(path / "results")]) == cli.DONE
    return path


def one_step() -> onnx.ModelProto:
    """A GRU of one frame whose state goes in and out."""
    sizes = {"x": [1, 1, 3], "h": [1, 1, 2], "y": [1, 1, 1, 2], "hn": [1, 1, 2]}
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, size) for name, size in sizes.items()]
    weights = [numpy_helper.from_array(np.ones((1, 6, n), np.float32), name) for name, n in (("W", 3), ("R", 2))]
    node = helper.make_node("GRU", ["x", "W", "R", "", "", "h"], ["y", "hn"], hidden_size=2, layout=1)
    for value in values[2:3]:
        value.type.tensor_type.shape.dim[2].dim_value = 1
    graph = helper.make_graph([node], "step", values[:2], values[2:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


RUNTIME = """
import sys
from pathlib import Path
import numpy, onnxruntime

session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
feeds = {one.name: numpy.load(Path(sys.argv[2], f"{one.name}.npy")) for one in session.get_inputs()}
for one, array in zip(session.get_outputs(), session.run(None, feeds)):
    numpy.save(Path(sys.argv[3], f"{one.name}.npy"), array)
"""
"""Of one's own, for kit-report."""


def surroundings(folder) -> dict[str, str]:
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": paths}


def test_every_command_has_examples():
    assert EXAMPLES.keys() == COMMANDS.keys()


@pytest.mark.parametrize(("name", "example"), [(name, example) for name in EXAMPLES for example in EXAMPLES[name]])
def test_examples(name, example, folder, capsys):
    assert cli.main([name, "--help"]) == cli.DONE
    line = f"rnn-lower {name} {example}".rstrip()
    assert line in capsys.readouterr().out
    work = folder / f"{name}{EXAMPLES[name].index(example)}"
    work.mkdir()
    for model in folder.glob("*.onnx"):
        shutil.copy(model, work)
    if name == "kit-report":
        shutil.copy(folder / "mine.py", work)
        for one in ("kit", "results"):
            shutil.copytree(folder / one, work / one)
    done = subprocess.run(
        line, shell=True, cwd=work, env=surroundings(folder), capture_output=True, text=True, check=False
    )
    assert done.returncode == cli.DONE, done.stderr


def test_help_fits_and_names_every_option(capsys):
    for name in COMMANDS:
        assert cli.main([name, "--help"]) == cli.DONE
        shown = capsys.readouterr().out
        assert "examples:" in shown
    parser = make_parser(COMMANDS)
    commands = next(action for action in parser._actions if action.choices).choices
    for command in commands.values():
        assert not [action for action in command._actions if not action.help and action.option_strings]


def completions(line: str, folder) -> list[str]:
    """What a shell would be told, as argcomplete hands it over."""
    pytest.importorskip("argcomplete")
    answer = folder / "completions"
    environment = {
        **surroundings(folder), "_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "COMP_LINE": line, "COMP_POINT": str(len(line)),
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer), "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
    }  # fmt: skip
    answer.unlink(missing_ok=True)
    subprocess.run(["rnn-lower"], env=environment, capture_output=True, check=False, cwd=folder)
    return [word.strip() for word in answer.read_text().split("\n")]


def test_shell_completes_commands_options_and_targets(folder):
    assert set(completions("rnn-lower ", folder)) >= COMMANDS.keys()
    assert "--form" in completions("rnn-lower lower in.onnx --fo", folder)
    assert set(completions("rnn-lower lower in.onnx --form ", folder)) >= {"scan", "loop", "unroll"}
    assert set(completions("rnn-lower lint in.onnx --target ", folder)) >= TARGETS.keys()
    assert "openvino" in completions("rnn-lower targets open", folder)
