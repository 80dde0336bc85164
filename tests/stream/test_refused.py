"""What is not causal over the stream is refused, with the node's name, and nothing is written."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from noncausal import CULPRITS, model_of
from onnx import TensorProto, helper, numpy_helper

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


def test_a_dilated_pool_with_automatic_padding_is_refused(tmp_path, capsys):
    (tmp_path / "in.onnx").write_bytes(model_of("dilated pool")[0].SerializeToString())
    command = ["stream", str(tmp_path / "in.onnx"), "-o", str(tmp_path / "out.onnx"), "--time", "T", "--delay"]
    assert cli.main(command) == 2
    assert "runtimes disagree on the padding of a pool with dilations" in capsys.readouterr().err


def test_a_table_of_one_row_is_refused(tmp_path, capsys):
    initializers = {"one": np.array([1]), "zero": np.array([0]), "table": np.ones((1, 4), np.float32)}
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "one"], ["length"], axis=0),
        helper.make_node("Slice", ["table", "zero", "length", "zero"], ["rows"], name="rows"),
        helper.make_node("Add", ["x", "rows"], ["y"]),
    ]
    ends = ([helper.make_tensor_value_info(name, TensorProto.FLOAT, ["B", "T", 4])] for name in ("x", "y"))
    tensors = [numpy_helper.from_array(array, name) for name, array in initializers.items()]
    graph = helper.make_graph(nodes, "g", *ends, tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), tmp_path / "in.onnx")
    code = cli.main(["stream", str(tmp_path / "in.onnx"), "-o", str(tmp_path / "out.onnx"), "--time", "T"])
    assert code == 2
    assert "'rows' in main graph cannot run chunk by chunk: its table has only one row" in capsys.readouterr().err
