"""What is not causal over the stream is refused, with the node's name, and nothing is written."""

from __future__ import annotations

import onnx
import pytest
from noncausal import CULPRITS, model_of

from rnn_lower import cli


@pytest.mark.parametrize("name", CULPRITS)
@pytest.mark.parametrize("how", [[], ["--keep-native"], ["--step", "1"]], ids=["lowered", "fused", "step"])
def test_is_refused(name, how, tmp_path, capsys):
    model, culprit = model_of(name)
    (tmp_path / "in.onnx").write_bytes(model.SerializeToString())
    code = cli.main(["stream", str(tmp_path / "in.onnx"), "-o", str(tmp_path / "out.onnx"), "--time", "T", *how])
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert f"'{culprit}'" in err
    assert [path.name for path in tmp_path.iterdir()] == ["in.onnx"]


def test_there_are_many():
    assert len(CULPRITS) >= 40
    for name in CULPRITS:
        onnx.checker.check_model(model_of(name)[0])


def test_the_look_ahead_is_told(tmp_path, capsys):
    (tmp_path / "in.onnx").write_bytes(model_of("symmetric conv")[0].SerializeToString())
    cli.main(["stream", str(tmp_path / "in.onnx"), "-o", str(tmp_path / "out.onnx"), "--time", "T"])
    assert "needs 1 future frame, because" in capsys.readouterr().err
