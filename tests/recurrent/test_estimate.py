"""How large a straight line will be is told before it is made, right, and at no price."""

from __future__ import annotations

import json
import logging

import onnx
import pytest
from onenode import OPTIONAL, Case, build
from stacks import stack

import rnn_lower
from rnn_lower import cli
from rnn_lower.lowering import estimate
from rnn_lower.targets import find_target

LENGTHS = {"full": (40, 40), "some": (40, 25)}


@pytest.mark.parametrize("lengths", [None, "full", "some"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("target", ["onnxruntime", "portable", "opencv@4"])
def test_the_estimate_is_what_comes_out(target, op, direction, lengths):
    optional = ("B",) if lengths is None else OPTIONAL[op]
    case = Case(
        op, 17, direction, T=40, optional=optional, lengths=LENGTHS.get(lengths or ""), lengths_as="initializer"
    )
    model = build(case)[0]
    (node,) = rnn_lower.inspect(model)
    told = estimate.unrolled(node, 17, find_target(target).habits)
    assert told is not None
    lowered = rnn_lower.lower(model, target=target, form="unroll")
    nbytes = sum(one.ByteSize() for one in lowered.graph.node)
    if target == "opencv@4" and lengths == "some":  # where lengths are known, only the steps behind the shortest choose
        assert 0.75 * len(lowered.graph.node) < told.nodes < len(lowered.graph.node)
        return
    assert told.nodes == pytest.approx(len(lowered.graph.node), rel=0.02)
    assert told.nbytes == pytest.approx(nbytes, rel=0.05)


def test_a_short_line_is_not_estimated_nor_warned_about(caplog):
    with caplog.at_level("WARNING", "rnn_lower"):
        rnn_lower.lower(build(Case("LSTM", 17, T=16))[0], target="tinygrad")
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("target", "T", "words"),
    [
        ("tvm", 120, ["unrolling 120 steps makes about", "tvm was measured to load an LSTM of 400 steps in 30 s; cut the sequence"]),
        ("tract", 120, ["tract was measured to load an LSTM of 400 steps in 31 s; cut the sequence or use --form scan"]),
    ],
)  # fmt: skip
def test_long_lines_are_warned_about(target, T, words, tmp_path, capsys):
    """One line on stderr, and in the record; the rest of the advice is only what the target has."""
    onnx.save(build(Case("RNN", 17, T=T))[0], tmp_path / "in.onnx")
    command = ["lower", str(tmp_path / "in.onnx"), "-o", str(tmp_path / "out.onnx"), "--target", target, "--json"]
    assert cli.main([*command, "--form", "unroll"]) == cli.DONE
    out, err = capsys.readouterr()
    (line,) = [line for line in err.splitlines() if "unrolling" in line]
    (row,) = json.loads(out)["nodes"]
    assert row["warning"] in line
    assert [one for one in words if one not in line] == []
    if target == "tvm":
        assert "--form" not in line
        return
    assert cli.main([*command[:-1], "--form", "scan"]) == cli.DONE  # the advice, followed
    assert "unrolling" not in capsys.readouterr().err


@pytest.mark.parametrize("command", [["lower", "--form", "unroll", "--dim", "T=90000"], ["stream", "--step", "90000"]])
def test_a_line_that_is_refused_is_not_warned_about(command, tmp_path, capsys):
    onnx.save(build(Case("GRU", 17, dynamic=True))[0], tmp_path / "in.onnx")
    name, *options = command
    more = ["--time", "T"] if name == "stream" else []
    assert cli.main([name, str(tmp_path / "in.onnx"), "-o", str(tmp_path / "out.onnx"), *options, *more]) == cli.BAD
    err = capsys.readouterr().err
    assert err.count("\n") == 1, err
    assert "are left of the limit" in err


def test_many_lines_are_warned_about_together(caplog):
    """Each is short for the target; together they are large."""
    model = stack("LSTM", 390, 3, True, "none", 1)
    with caplog.at_level(logging.WARNING, "rnn_lower"):
        rnn_lower.lower(model, form="unroll")
    (line,) = caplog.messages
    assert "(and 2 more nodes)" in line
    assert " in all)" in line
