"""Targets are files: what is wrong with one is told in a line, and what one rules out is never emitted."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onenode import OPTIONAL, Case, build
from paths import ROOT

import rnn_lower
from rnn_lower import cli
from rnn_lower.emit.versions import TABLE
from rnn_lower.targets import TARGETS, find_target

GOOD = """
summary = "for a test"
status = "documented"
source = "nowhere"
forms = ["unroll"]
unroll_up_to = "always"
static_batch = true
opsets = [13, 17]
"""


def written(folder, text: str) -> str:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def emitted(model: onnx.ModelProto) -> set[str]:
    found, waiting = set(), [model.graph]
    while waiting:
        for node in waiting.pop().node:
            found.add(node.op_type)
            waiting += [attribute.g for attribute in node.attribute if attribute.HasField("g")]
    return found


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("forms = 3", "forms is 3; it must be a list of"),
        ("forms = []", "forms is []; it must be a list of"),
        ('forms = ["spiral"]', "forms is ['spiral']; it must be a list of"),
        ('status = "guessed"', """status is 'guessed'; it must be "measured" or "documented\""""),
        ("opsets = [17, 13]", "opsets is [17, 13]; it must be the first and the last opset"),
        ("opsets = [13]", "opsets is [13]; it must be the first and the last opset"),
        ("static_batch = 1", "static_batch is 1; it must be true or false"),
        ('unroll_up_to = "never"', "unroll_up_to is 'never'; it must be a number of steps"),
        ('avoid = ["Attention"]', "avoid is ['Attention']; it must be a list of operators that rnn_lower emits"),
        ('takes = "MatMul"', "takes is 'MatMul'; it must be a list of operators"),
        ("slow = { steps = 3 }", "slow is {'steps': 3}; it must be { steps = NUMBER, seconds = NUMBER }"),
        ("saturates = { Tanh = -1 }", "saturates is {'Tanh': -1}; it must be a table of operators"),
        ("habits = { jump = true }", "habits is {'jump': True}; it must be a table of true or false for"),
        ("colour = 3", "unknown key 'colour'; known are summary, status"),
        ("summary", "not a target: "),
        ("forms = [", "not a target: "),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(line, words, tmp_path, capsys):
    name = line.split(" ")[0]
    rest = "\n".join(one for one in GOOD.splitlines() if not one.startswith(f"{name} "))
    path = written(tmp_path, f"{rest}\n{line}\n")
    with pytest.raises(rnn_lower.RnnLowerError) as caught:
        find_target(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert cli.main(["targets", path]) == cli.BAD
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


@pytest.mark.parametrize("name", ["summary", "status", "source", "forms"])
def test_what_must_be_said(name, tmp_path):
    rest = "\n".join(line for line in GOOD.splitlines() if not line.startswith(f"{name} "))
    with pytest.raises(rnn_lower.RnnLowerError, match=f"{name} is missing; it must be"):
        find_target(written(tmp_path, rest))
    with pytest.raises(rnn_lower.RnnLowerError, match="cannot be read: No such file"):
        find_target(str(tmp_path / "other.toml"))


def test_every_target_is_a_file_and_explained(capsys):
    assert {path.stem for path in (ROOT / "rnn_lower" / "targets").glob("*.toml")} == set(TARGETS)
    for name, target in TARGETS.items():
        assert find_target(name.upper()) is target
        assert cli.main(["targets", name]) == cli.DONE
        told = capsys.readouterr().out
        assert told.startswith(f"{name}: {target.summary}\n")
        assert target.source in told


CASES = [
    Case("LSTM", 17, "bidirectional", optional=OPTIONAL["LSTM"], clip=2.0, activations=("HardSigmoid", "Softsign", "Elu") * 2),
    Case("GRU", 17, "reverse", optional=OPTIONAL["GRU"], lbr=1, activations=("LeakyRelu", "ThresholdedRelu")),
    Case("RNN", 13, "bidirectional", optional=OPTIONAL["RNN"], activations=("Softplus", "ScaledTanh"), layout=0),
]  # fmt: skip


NEEDED = {"Abs", "Add", "Cast", "Concat", "Div", "Exp", "Less", "Log", "MatMul", "Max", "Min", "Mul", "Relu", "Reshape",
          "Sigmoid", "Slice", "Squeeze", "Tanh", "Transpose", "Unsqueeze"}  # fmt: skip
"""Operators that have no other way of being said yet, where they are emitted."""


@pytest.mark.parametrize("op_type", sorted(TABLE))
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.op)
def test_what_a_target_avoids_is_said_otherwise_or_refused(case, op_type, tmp_path):
    model, feeds = build(case)
    plain = emitted(rnn_lower.lower(model, target=written(tmp_path, GOOD)))
    if op_type in plain & NEEDED:
        with pytest.raises(
            rnn_lower.UnsupportedError, match=f"does not take {op_type}, and rnn_lower has no other way"
        ):
            rnn_lower.lower(model, target=written(tmp_path, GOOD + f'avoid = ["{op_type}"]\n'))
        return
    lowered = rnn_lower.lower(model, target=written(tmp_path, GOOD + f'avoid = ["{op_type}"]\n'))
    assert op_type not in emitted(lowered)
    expected, found = (
        onnxruntime.InferenceSession(each.SerializeToString()).run(None, feeds) for each in (model, lowered)
    )
    assert all(np.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(expected, found, strict=True))
    assert rnn_lower.prove(model, lowered).ok


def test_a_list_of_what_is_taken_is_kept_to(tmp_path):
    """The operators that were emitted are enough; without one of them the node is refused by name."""
    model, _ = build(Case("LSTM", 17, optional=("B",)))
    taken = emitted(rnn_lower.lower(model, target=written(tmp_path, GOOD)))
    again = rnn_lower.lower(model, target=written(tmp_path, GOOD + f"takes = {sorted(taken)}\n".replace("'", '"')))
    assert emitted(again) <= taken
    for path in (tmp_path / "less.toml",):
        path.write_text(GOOD + f"takes = {sorted(taken - {'MatMul'})}\n".replace("'", '"'))
        with pytest.raises(rnn_lower.UnsupportedError, match="target less does not take MatMul"):
            rnn_lower.lower(model, target=str(path))
