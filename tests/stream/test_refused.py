"""What is not causal over the stream is refused, with the node's name, and nothing is written."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from noncausal import CULPRITS, model_of
from onnx import TensorProto, helper, numpy_helper

import rnn_lower
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


ADVISED = {
    "sorted lengths": (
        "main (float[T, N, 3] x, int64[N] n) => (float[T, 1, N, 3] y) {"
        " c = Cast <to = 1> (n) a = Shape (n) s, o = TopK (c, a) l = Cast <to = 6> (s)"
        " y = GRU <hidden_size = 3> (x, W, R, , l) }",
        "its sequence_lens is computed from input 'n', .* enforce_sorted=True$",
    ),
    "a cache": (
        "main (float[N, T, 3] x, float[N, 2, 3] cache) => (float[N, U, 3] y, float[N, 2, 3] new)"
        " <int64[1] z = {0}, int64[1] i = {1}, int64[1] m = {-2}, int64[1] e = {9223372036854775807}> {"
        " c = Concat <axis = 1> (cache, x) new = Slice (c, m, e, i) y = Slice (c, z, m, i) }",
        r"these frames come from input 'cache'; .* \(rnn-lower lower\)$",
    ),
    "a loop": (
        "main (float[T, N, 3] x) => (float[T, N, 3] y) <int64 n = {3}, bool c = {1}> {"
        " y = Loop (n, c, x) <body = body (int64 k, bool go, float[T, N, 3] a) => (bool on, float[T, N, 3] b)"
        " { on = Identity (go) b = Tanh (a) }> }",
        "does not support this operator; only loops that compute an RNN, GRU or LSTM can be streamed",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", ADVISED)
def test_what_is_not_supported_is_told_with_what_is(kind):
    text, message = ADVISED[kind]
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
    model.graph.initializer.extend(numpy_helper.from_array(np.ones((1, 9, 3), np.float32), name) for name in "WR")
    with pytest.raises(rnn_lower.UnsupportedError, match=message):
        rnn_lower.stream(model, axis="T")
