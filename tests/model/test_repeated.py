"""A weight that a body repeats under the name of one around it, each kept in its own way: the same, or refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onenode import Case, build
from onnx import numpy_helper

import rnn_lower
from rnn_lower.errors import InvalidNodeError
from rnn_lower.modelio import files

CASE = Case("GRU", 17, "bidirectional", H=16, I=16, place="if", weights="initializer", optional=("B",))
WAYS = ("raw", "values", "file")


def keep(tensor: onnx.TensorProto, way: str, path: Path) -> None:
    """Its data as bytes, as values, or at the end of the data file."""
    array = numpy_helper.to_array(tensor)
    tensor.ClearField("raw_data")
    if way == "raw":
        tensor.raw_data = array.tobytes()
    elif way == "values":
        tensor.float_data.extend(array.ravel().tolist())
    else:
        with open(path, "ab") as file:
            offset = file.tell()
            file.write(array.tobytes())
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", path.name), ("offset", offset), ("length", array.nbytes)):
            tensor.external_data.add(key=key, value=str(value))


def written(folder: Path, outer: str, inner: str, factor: float = 1) -> Path:
    model, _ = build(CASE)
    weight = next(tensor for tensor in model.graph.initializer if tensor.name == "W")
    values = numpy_helper.to_array(weight) * np.float32(factor)
    (branch,) = [a.g for node in model.graph.node for a in node.attribute if a.name == "then_branch"]
    branch.initializer.append(numpy_helper.from_array(values, "W"))
    keep(weight, outer, folder / "model.bin")
    keep(branch.initializer[-1], inner, folder / "model.bin")
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("inner", WAYS)
@pytest.mark.parametrize("outer", WAYS)
def test_of_the_same_data_is_lowered(outer, inner, large, tmp_path, monkeypatch):
    """What is written is read again: weights that lay in one place of a file come to lie in two."""
    if large:
        monkeypatch.setattr(files, "EMBEDDED_UP_TO", 0)
    source = written(tmp_path, outer, inner)
    for target in (tmp_path / "out.onnx", source):
        rnn_lower.lower_file(source, target)
        files.load(target)
        assert rnn_lower.check(build(CASE)[0], target).ok


@pytest.mark.parametrize("inner", WAYS)
@pytest.mark.parametrize("outer", WAYS)
def test_of_other_data_is_refused(outer, inner, tmp_path):
    source = written(tmp_path, outer, inner, factor=2)
    with pytest.raises(InvalidNodeError, match="body of If 'if': 'W' is defined twice, here and in an outer scope"):
        rnn_lower.lower_file(source, tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()


def test_one_place_of_a_file_comes_to_lie_in_two(tmp_path):
    source = written(tmp_path, "file", "file")
    model = onnx.load(source, load_external_data=False)
    (branch,) = [a.g for node in model.graph.node for a in node.attribute if a.name == "then_branch"]
    outer = next(tensor for tensor in model.graph.initializer if tensor.name == "W")
    branch.initializer[-1].CopyFrom(outer)
    source.write_bytes(model.SerializeToString())
    rnn_lower.lower_file(source, tmp_path / "out.onnx")
    assert rnn_lower.check(build(CASE)[0], tmp_path / "out.onnx").ok
