"""The small models in ../shared/cases/streaming, which have what public code exports."""

from __future__ import annotations

import onnx
import pytest
from paths import ROOT

import rnn_lower
from rnn_lower import cli

FOLDER = ROOT.parent / "shared"
CASES = FOLDER / "cases" / "streaming"
OPTIONS = {
    "advice_for_an_if_that_depends_on_a_size": ["--time", "T", "--dim", "C=1"],
    "chomp_tcn_residual": ["--time", "T"], "einsum_grouped_linear": ["--time", "T"],
    "length_baked_in_by_the_exporter": ["--time", "x[1]"], "look_ahead_conv_padded_by_a_pad": ["--delay"],
    "overlap_add_by_a_transposed_conv": ["--time", "F", "--delay"], "policy_that_forgets_its_state": ["--step", "1"],
    "zeros_of_the_batch_joined_in_front": ["--time", "T"],
}  # fmt: skip
LATE = {
    "late_frames_lowered_for_a_target_with_a_bare_scan": 2, "look_ahead_conv_padded_by_a_pad": 4,
    "valid_convs_step_by_step": 4,
}  # fmt: skip
NAMES = sorted(path.stem for path in CASES.glob("*.onnx"))


@pytest.mark.skipif(not NAMES, reason="the folder ../shared is not there")
@pytest.mark.parametrize("step", [[], ["--step", "1"]], ids=["free", "step"])
@pytest.mark.parametrize("name", NAMES)
def test_streams_without_an_edit(name, step, tmp_path, capsys):
    output = tmp_path / "out.onnx"
    command = ["stream", str(CASES / f"{name}.onnx"), "-o", str(output), "--check", "--prove", "--runs", "2"]
    assert cli.main([*command, *OPTIONS.get(name, []), *step]) == 0, capsys.readouterr()
    plan = rnn_lower.StreamingSession(output).plan
    assert max(plan.late.values(), default=0) == LATE.get(name, 0)


@pytest.mark.skipif(not NAMES, reason="the folder ../shared is not there")
@pytest.mark.parametrize("target", ["tract", "onnx-reference"])
def test_late_frames_for_a_target(target, tmp_path, capsys):
    """Refused in a line where chunks may be empty; step by step they are not."""
    source = CASES / "late_frames_lowered_for_a_target_with_a_bare_scan.onnx"
    command = ["stream", str(source), "-o", str(tmp_path / "out.onnx"), "--target", target]
    assert cli.main(command) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert cli.main([*command, "--step", "2", "--check", "--prove"]) == 0
    assert not rnn_lower.lint(onnx.load(tmp_path / "out.onnx"), target).findings
