"""What else than recurrent nodes may differ between a model and its lowered form, and what may not."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from judge import close, run_onnxruntime
from onenode import Case, build
from onnx import TensorProto, helper, numpy_helper

import rnn_lower
from rnn_lower import cli
from rnn_lower.targeting import TARGETS


def trained(external: bool, folder, read: str = "") -> onnx.ModelProto:
    """A model with training_info that holds a tensor, and reads a weight of the main graph."""
    model, _ = build(Case("LSTM", 17))
    tensor = numpy_helper.from_array(np.arange(4, dtype=np.float32), "rate")
    if external:
        (folder / "rate.bin").write_bytes(tensor.raw_data)
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="rate.bin")
    info = model.training_info.add()
    info.algorithm.name = "algorithm"
    info.algorithm.initializer.append(tensor)
    info.algorithm.node.append(helper.make_node("Identity", [read or "rate"], ["next"]))
    info.algorithm.output.append(helper.make_tensor_value_info("next", TensorProto.FLOAT, None))
    return model


@pytest.mark.parametrize("external", [False, True])
def test_training_is_compared_by_what_it_holds(external, tmp_path):
    source, out = tmp_path / "m.onnx", tmp_path / "lowered" / "o.onnx"
    out.parent.mkdir()
    onnx.save(trained(external, tmp_path), source)
    assert cli.main(["lower", str(source), "-o", str(out), "--prove"]) == cli.DONE
    assert rnn_lower.prove(str(source), str(out)).ok
    changed = onnx.load(str(out))
    changed.training_info[0].algorithm.initializer[0].CopyFrom(numpy_helper.from_array(np.ones(4, np.float32), "rate"))
    assert rnn_lower.prove(str(source), changed).changed


def test_a_weight_that_only_training_reads_does_not_vanish(tmp_path):
    model = trained(False, tmp_path, "W")
    lowered = rnn_lower.lower(model)
    assert rnn_lower.prove(model, lowered).ok
    kept = [tensor for tensor in lowered.graph.initializer if tensor.name != "W"]
    del lowered.graph.initializer[:]
    lowered.graph.initializer.extend(kept)
    assert rnn_lower.prove(model, lowered).changed


@pytest.mark.parametrize("name", ["W", "R", "B"])
def test_a_weight_that_training_sets_is_read_by_the_lowered_nodes(name, tmp_path):
    """So that training the lowered model has the same effect."""
    model, feeds = build(Case("GRU", 17, optional=("B",)))
    plain = rnn_lower.lower(model)
    info = model.training_info.add()
    info.algorithm.name = "algorithm"
    info.algorithm.node.append(helper.make_node("Neg", [name], ["next"]))
    info.algorithm.output.append(helper.make_tensor_value_info("next", TensorProto.FLOAT, None))
    info.update_binding.add(key=name, value="next")
    lowered = rnn_lower.lower(model)
    assert rnn_lower.prove(model, lowered).ok
    plain.training_info.extend(model.training_info)
    assert not rnn_lower.prove(model, plain).ok
    for each in (model, lowered):
        tensor = next(tensor for tensor in each.graph.initializer if tensor.name == name)
        tensor.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(tensor), name))
        del each.training_info[:]
    close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_weights_that_are_moved_with_value_info(target):
    """As exporters write: each gate's weights sliced, put together and given an axis for directions."""
    model, _ = build(Case("GRU", 17, T=4, N=2, direction="bidirectional"))
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    del model.graph.initializer[:]
    nodes, infos = [], []
    for name, array in arrays.items():
        for d, part in enumerate(array):
            H = part.shape[0] // 3
            model.graph.initializer.append(numpy_helper.from_array(np.concatenate([part[H:], part[:H]]), f"{name}{d}"))
            for index, (start, end) in enumerate(((2 * H, 3 * H), (0, 2 * H))):
                for what, value in (("s", start), ("e", end)):
                    model.graph.initializer.append(
                        numpy_helper.from_array(np.array([value]), f"{name}{d}{index}{what}")
                    )
                gate = f"{name}{d}{index}"
                nodes.append(helper.make_node("Slice", [f"{name}{d}", f"{gate}s", f"{gate}e", "axis"], [gate]))
                infos.append(helper.make_tensor_value_info(gate, TensorProto.FLOAT, [end - start, part.shape[1]]))
            nodes.append(helper.make_node("Concat", [f"{name}{d}0", f"{name}{d}1"], [f"{name}{d}c"], axis=0))
            nodes.append(helper.make_node("Unsqueeze", [f"{name}{d}c", "axis"], [f"{name}{d}u"]))
            infos.append(helper.make_tensor_value_info(f"{name}{d}c", TensorProto.FLOAT, part.shape))
            infos.append(helper.make_tensor_value_info(f"{name}{d}u", TensorProto.FLOAT, [1, *part.shape]))
        nodes.append(helper.make_node("Concat", [f"{name}0u", f"{name}1u"], [name], axis=0))
        infos.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape))
    model.graph.initializer.append(numpy_helper.from_array(np.array([0]), "axis"))
    old = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([*nodes, *old])
    model.graph.value_info.extend(infos)
    try:
        lowered = rnn_lower.lower(model, target=target)
    except rnn_lower.UnsupportedError:
        pytest.skip("the target does not take it")
    proof = rnn_lower.prove(model, lowered)
    assert proof.ok, (proof.changed, proof.nodes)
    assert rnn_lower.check(model, lowered).ok


def test_a_node_of_training_that_became_another_is_a_difference(tmp_path):
    model = trained(False, tmp_path)
    weights = {value.name for value in model.graph.initializer}
    recurrent = next(node for node in model.graph.node if node.op_type == "LSTM")
    node = model.training_info[0].algorithm.node.add()
    node.CopyFrom(recurrent)
    del node.output[1:]
    node.output[0] = "trained"
    assert weights & {*node.input}
    lowered = rnn_lower.lower(model)
    assert rnn_lower.prove(model, lowered).ok
    marked = next(node for node in lowered.graph.node if node.metadata_props)
    changed = lowered.training_info[0].algorithm.node[1]
    assert changed.op_type == "LSTM"
    changed.CopyFrom(helper.make_node("Neg", [changed.input[0]], ["trained"]))
    changed.metadata_props.extend(marked.metadata_props)
    assert rnn_lower.prove(model, lowered).changed
