"""Sizes that users fix, and sizes that only folding finds out."""

from __future__ import annotations

import logging

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from dynamic import sizes, two_layers
from judge import close, run_onnxruntime
from onenode import Case, build
from onnx import TensorProto, helper, numpy_helper
from paths import ROOT

import rnn_lower
from rnn_lower import cli
from rnn_lower.driver.plan import read_nodes
from rnn_lower.modelio.document import Document

FLOAT = TensorProto.FLOAT
H = 4


def tensor(name: str, *shape: int) -> onnx.TensorProto:
    seed = sum(map(ord, name))
    return numpy_helper.from_array(np.random.default_rng(seed).normal(size=shape).astype(np.float32), name)


def numbers(name: str, *values: int) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.array(values)))


def model_of(
    nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], weights: list[onnx.TensorProto], opset: int = 17
) -> onnx.ModelProto:
    outputs = [helper.make_tensor_value_info(name, FLOAT, None) for name in nodes[-1].output if name]
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def dims_of(value: onnx.ValueInfoProto) -> list[int | str]:
    return [dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in value.type.tensor_type.shape.dim]


@pytest.mark.parametrize(
    "dims", [{"X": (5, 2, 3)}, {"X[0]": 5, "X[1]": 2}, {"T": 5, "X[1]": 2}, {"T": 5, "N": 2}, {"X[0]": 5, "N": 2}]
)
def test_an_axis_is_named_by_its_symbol_or_its_place(dims):
    """A symbol that tells what it stands for is that size wherever it stands."""
    model, feeds = build(Case("LSTM", 17, dynamic=True, optional=("sequence_lens", "initial_h")))
    lowered = rnn_lower.lower(model, form="unroll", dims=dims)
    declared = {value.name: dims_of(value) for value in (*lowered.graph.input, *lowered.graph.output)}
    assert (declared["X"][:2], declared["sequence_lens"], declared["initial_h"][1]) == ([5, 2], [2], 2)
    assert rnn_lower.check(model, lowered, inputs=feeds).ok


def test_one_name_for_two_axes_is_fixed_where_it_stands():
    model, feeds = build(Case("GRU", 17, dynamic=True))
    for dim in model.graph.input[0].type.tensor_type.shape.dim[:2]:
        dim.dim_param = "size"
    lowered = rnn_lower.lower(model, form="unroll", dims={"X[0]": 5, "X[1]": 2})
    assert dims_of(lowered.graph.input[0])[:2] == [5, 2]
    assert rnn_lower.check(model, lowered, inputs=feeds).ok
    assert rnn_lower.check(model, lowered).ok


@pytest.mark.parametrize("way", ["proto", "file", "ir"])
def test_all_axes_give_a_shape(way, tmp_path):
    import onnx_ir as ir

    model, feeds = build(Case("RNN", 17))
    model.graph.input[0].type.tensor_type.ClearField("shape")
    dims = {"X[0]": 5, "X[2]": 3, "X[1]": 2}
    if way == "proto":
        lowered = rnn_lower.lower(model, form="unroll", dims=dims)
    elif way == "ir":
        lowered = ir.to_proto(rnn_lower.lower(ir.from_proto(model), form="unroll", dims=dims))
    else:
        onnx.save(model, tmp_path / "m.onnx")
        arguments = ["--form", "unroll", "--input-shape", "X:5,2,3", "--check"]
        assert cli.main(["lower", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "o.onnx"), *arguments]) == 0
        lowered = onnx.load(tmp_path / "o.onnx")
    assert dims_of(lowered.graph.input[0]) == [5, 2, 3]
    assert rnn_lower.check(model, lowered, inputs=feeds).ok


def padded() -> onnx.ModelProto:
    """Sound [1, samples] -> padded by computed widths -> frames -> GRU, as exporters write it."""
    nodes = [
        helper.make_node("Shape", ["sound"], ["sizes"]), numbers("one", 1), numbers("minus", -1),
        helper.make_node("Gather", ["sizes", "one"], ["samples"]),
        helper.make_node("Concat", ["one", "one", "samples"], ["channels"], axis=0),
        helper.make_node("Reshape", ["sound", "channels"], ["with_channel"]),
        numbers("four", 4), helper.make_node("ConstantOfShape", ["four"], ["none"], value=numpy_helper.from_array(np.zeros(1, np.int64))),
        numbers("widths", 8, 8), helper.make_node("Concat", ["none", "widths"], ["ends"], axis=0),
        numbers("by_two", 3, 2), helper.make_node("Reshape", ["ends", "by_two"], ["pairs"]),
        helper.make_node("Transpose", ["pairs"], ["turned"], perm=[1, 0]),
        helper.make_node("Reshape", ["turned", "minus"], ["pads"]),
        helper.make_node("Pad", ["with_channel", "pads"], ["wide"], mode="reflect"),
        helper.make_node("Conv", ["wide", "kernel"], ["frames"], strides=[8]),
        helper.make_node("Transpose", ["frames"], ["x"], perm=[2, 0, 1]),
        helper.make_node("GRU", ["x", "W", "R"], ["", "Y_h"], name="gru", hidden_size=H),
    ]  # fmt: skip
    weights = [tensor("kernel", 3, 1, 16), tensor("W", 1, 3 * H, 3), tensor("R", 1, 3 * H, H)]
    return model_of(nodes, [helper.make_tensor_value_info("sound", FLOAT, [1, "samples"])], weights)


def test_folding_finds_sizes_that_inference_does_not():
    model = padded()
    with pytest.raises(
        rnn_lower.UnsupportedError,
        match=r"length, but the sequence length of this node is unknown; use .*, or add dims=.*samples.*512",
    ):
        rnn_lower.lower(model, form="unroll")
    lowered = rnn_lower.lower(model, form="unroll", dims={"samples": 100})
    assert not [node for node in lowered.graph.node if node.op_type in ("GRU", "Scan", "Loop")]
    kept = [node.op_type for node in lowered.graph.node if "rnn_lower.node" not in str(node.metadata_props)]
    assert kept == [node.op_type for node in model.graph.node if node.op_type != "GRU"], "only the copy was folded"
    assert rnn_lower.check(model, lowered).ok


def computed_weights() -> onnx.ModelProto:
    """Rows put in another order and a direction axis, as torch's newer exporter does, and something to compute."""
    nodes = []
    for name in ("W", "R"):
        parts = [numbers(f"{name}_{k}", k * H) for k in range(4)] + [numbers("axis", 0)] * (name == "W")
        gates = ((0, 1), (1, 2), (2, 3))
        slices = [
            helper.make_node("Slice", [f"{name}0", f"{name}_{a}", f"{name}_{b}", "axis"], [f"{name}_gate{a}"])
            for a, b in gates
        ]
        joined = helper.make_node("Concat", [f"{name}_gate{k}" for k in (1, 0, 2)], [f"{name}_rows"], axis=0)
        nodes += [*parts, *slices, joined, helper.make_node("Unsqueeze", [f"{name}_rows", "axis"], [f"{name}_minus"])]
        nodes.append(helper.make_node("Neg", [f"{name}_minus"], [name]))
    nodes.append(helper.make_node("GRU", ["X", "W", "R"], ["Y", "Y_h"], name="gru", hidden_size=H))
    inputs = [helper.make_tensor_value_info("X", FLOAT, ["T", 2, 3])]
    return model_of(nodes, inputs, [tensor("W0", 3 * H, 3), tensor("R0", 3 * H, H)])


@pytest.mark.parametrize("way", ["proto", "file", "ir"])
def test_fold(way, tmp_path):
    """Everything that depends on no input becomes a weight; files keep large weights beside them."""
    import onnx_ir as ir

    model = computed_weights()
    path, out = tmp_path / "m.onnx", tmp_path / "o.onnx"
    if way == "proto":
        lowered = rnn_lower.lower(model, fold=True)
    elif way == "ir":
        lowered = ir.to_proto(rnn_lower.lower(ir.from_proto(model), fold=True))
    else:
        onnx.save(model, path, save_as_external_data=True, size_threshold=0, location="weights.bin")
        before = (tmp_path / "weights.bin").read_bytes()
        assert cli.main(["lower", str(path), "-o", str(out), "--fold", "--check"]) == 0
        assert (tmp_path / "weights.bin").read_bytes() == before
        lowered = onnx.load(out)
        model = onnx.load(path)
    assert not {"Neg", "GRU"} & {node.op_type for node in lowered.graph.node}
    assert "Neg" in {node.op_type for node in rnn_lower.lower(model).graph.node}
    assert rnn_lower.check(model, lowered).ok


def test_operators_that_are_left_are_named(caplog):
    model, _ = build(Case("LSTM", 17))
    model.opset_import.add(domain="com.microsoft", version=1)
    for name in ("a", "b"):
        model.graph.node.append(helper.make_node("AttnLSTM", ["X"], [name], domain="com.microsoft"))
    with caplog.at_level(logging.WARNING, logger="rnn_lower"):
        rnn_lower.lower(model)
    assert "2 AttnLSTM (com.microsoft) were not lowered" in caplog.text


def loop_without_values() -> onnx.ModelProto:
    """A Loop that carries nothing says that it has no condition, which takes an empty name."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["going"], ["still"]), helper.make_node("Relu", ["x"], ["r"])], "b",
        [helper.make_tensor_value_info("i", TensorProto.INT64, []), helper.make_tensor_value_info("going", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("still", TensorProto.BOOL, []), helper.make_tensor_value_info("r", TensorProto.FLOAT, None)],
    )  # fmt: skip
    model, _ = build(Case("GRU", 17))
    model.graph.node.append(helper.make_node("Identity", ["X"], ["x"]))
    model.graph.node.append(helper.make_node("Loop", ["twice", ""], ["all"], body=body))
    model.graph.initializer.append(numpy_helper.from_array(np.array(2), "twice"))
    model.graph.output.append(helper.make_tensor_value_info("all", TensorProto.FLOAT, None))
    return model


def call_of_which_one_result_is_not_wanted() -> onnx.ModelProto:
    model, _ = build(Case("GRU", 17))
    body = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Abs", ["x"], ["b"])]
    model.functions.append(helper.make_function("own", "Both", ["x"], ["a", "b"], body, [helper.make_opsetid("", 17)]))
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.graph.node.append(helper.make_node("Both", ["X"], ["relu", ""], domain="own"))
    model.graph.output.append(helper.make_tensor_value_info("relu", TensorProto.FLOAT, None))
    return model


@pytest.mark.parametrize("made", [loop_without_values, call_of_which_one_result_is_not_wanted])
def test_folding_says_what_is_not_there(made):
    model = made()
    for lowered in (rnn_lower.lower(model, fold=True), ir.to_proto(rnn_lower.lower(ir.from_proto(model), fold=True))):
        assert rnn_lower.check(model, lowered).ok


@pytest.mark.parametrize("way", ["plain", "fold", "nothing lowered", "stream"])
def test_a_stale_size_beside_one_that_is_fixed(way, tmp_path):
    """The exporter wrote [batch, 9, ...] of values of any length. With batch = 1, onnxruntime would reshape by that."""
    path = ROOT / "models" / "torch_language_model.onnx"
    model = onnx.load(path)
    if way == "stream":
        assert cli.main(["stream", str(path), "-o", str(tmp_path / "s.onnx"), "--dim", "batch=1", "--check", "-q"]) == 0
        return
    options = {"plain": {}, "fold": {"fold": True}, "nothing lowered": {"select": lambda node: False}}[way]
    lowered = rnn_lower.lower(model, dims={"batch": 1}, **options)
    x = np.arange(5)[np.newaxis] % 7
    close(run_onnxruntime(lowered, {"x": x}), run_onnxruntime(model, {"x": x}))
    assert way == "fold" or rnn_lower.prove(model, lowered).changed == ()


@pytest.mark.parametrize("held", [onnx.ModelProto, ir.Model])
@pytest.mark.parametrize(("dims", "batch"), [({"time": 19}, "batch"), ({"time": 19, "batch": 2}, 2)])
def test_fixed_sizes_reach_every_declared_one(dims, batch, held, caplog):
    model = two_layers()
    with caplog.at_level("WARNING", "rnn_lower"):
        lowered = rnn_lower.lower(model, dims=dims, target="rknn" if batch == 2 else None)
        if held is ir.Model:
            lowered = ir.to_proto(rnn_lower.lower(ir.from_proto(model), dims=dims))
    assert sizes(lowered, "x") == [batch, 19, 4]
    assert sizes(lowered, "x1") == [19, batch, 6]
    assert sizes(lowered, "y1s") == [19, batch, 6]
    assert sizes(lowered, "out") == [batch, 19, 6]
    assert "the declared shape of output 'out' was wrong or could not be verified: [" in caplog.text
    proof = rnn_lower.prove(model, lowered)
    assert proof.ok or held is ir.Model, proof  # onnx_ir declares sizes of weights by the way
    assert rnn_lower.check(model, lowered).ok


def test_declared_sizes_stay_where_none_is_fixed():
    lowered = rnn_lower.lower(two_layers())
    assert sizes(lowered, "out") == ["batch", 10, 6]
    assert sizes(lowered, "xt") == ["time", "batch", 4]


def test_the_second_layer_is_read_with_its_sizes():
    document = Document(two_layers()).fixed({"time": 19, "batch": 2})
    second = read_nodes(document.model, document.shape_info)[1]
    assert (second.static_length, second.static_batch) == (19, 2)


def test_folding_at_fixed_sizes_keeps_the_sizes_of_outputs(caplog):
    """What nodes compute of sizes is known once it is folded, and not before."""
    model = onnx.load(ROOT / "models" / "torch_denoiser.onnx")
    with caplog.at_level(logging.WARNING, logger="rnn_lower"):
        lowered = rnn_lower.lower(model, target="ethos-u", dims={"batch": 1, "time": 20}, fold=True, legalize_all=True)
    assert [dim.dim_value for dim in lowered.graph.output[0].type.tensor_type.shape.dim] == [1, 20, 16]
    assert "declared shape" not in caplog.text
    assert rnn_lower.lint(lowered, "ethos-u").ok


@pytest.mark.parametrize("opset", [11, 13, 17])
@pytest.mark.parametrize("through", ["lower", "lower_file", "pass"])
def test_outputs_of_converted_nodes_have_verified_sizes(opset, through, tmp_path):
    """A strided Conv shortens the time, although the export gives it one name before and after."""
    nodes = [
        helper.make_node("Conv", ["x", "K"], ["c"], kernel_shape=[3], strides=[2]),
        helper.make_node("Transpose", ["c"], ["ct"], perm=[2, 0, 1]),
        helper.make_node("GRU", ["ct", "W", "R"], ["y4"], hidden_size=H),
        helper.make_node("Squeeze", ["y4"], ["y"], axes=[1]),
        helper.make_node("Softmax", ["y"], ["z"], axis=2),
    ]
    model = model_of(
        nodes, [helper.make_tensor_value_info("x", FLOAT, ["batch", 3, "time"])],
        [tensor("K", H, 3, 3), tensor("W", 1, 3 * H, H), tensor("R", 1, 3 * H, H)], 11,
    )  # fmt: skip
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("z", FLOAT, ["time", "batch", H]))
    onnx.checker.check_model(model, full_check=True)
    options = {"opset": opset, "dims": {"batch": 1, "time": 11}}
    if through == "lower_file":
        onnx.save(model, tmp_path / "in.onnx")
        rnn_lower.lower_file(tmp_path / "in.onnx", tmp_path / "out.onnx", **options)
        lowered = onnx.load(tmp_path / "out.onnx")
    elif through == "pass":
        lowered = ir.to_proto(rnn_lower.lower(ir.from_proto(model), **options))
    else:
        lowered = rnn_lower.lower(model, **options)
    onnx.checker.check_model(lowered, full_check=True)
    assert [dim.dim_value for dim in lowered.graph.output[0].type.tensor_type.shape.dim] == [5, 1, H]
    x = np.random.default_rng(0).standard_normal((1, 3, 11)).astype(np.float32)
    close(run_onnxruntime(lowered, {"x": x}), run_onnxruntime(model, {"x": x}))
    assert rnn_lower.prove(model, lowered)


@pytest.mark.parametrize("axes", ["k", "place"])
def test_a_branch_that_a_size_makes_invalid_must_be_folded(axes):
    """As scripted code has: if there is one row, its axis is dropped. The axes also come from the main graph."""
    model = one_row(axes)
    with pytest.raises(rnn_lower.UnsupportedError, match=r"with these sizes.*; fold removes such"):
        rnn_lower.lower(model, dims={"T": 5, "N": 2})
    lowered = rnn_lower.lower(model, dims={"T": 5, "N": 2}, fold=True)
    x = np.random.default_rng(0).standard_normal((5, 2, 3)).astype(np.float32)
    close(run_onnxruntime(lowered, {"x": x}), run_onnxruntime(model, {"x": x}))
    assert rnn_lower.prove(model, lowered)


def test_a_branch_that_folding_leaves_and_a_size_makes_invalid_is_refused():
    model = one_row("place")
    next(node for node in model.graph.node if node.output[0] == "n").input[1] = "zero"  # the number of steps
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0]), "zero"))
    for fold in (False, True):
        with pytest.raises(rnn_lower.UnsupportedError, match="with these sizes"):
            rnn_lower.lower(model, dims={"N": 2}, fold=fold)


def one_row(axes: str) -> onnx.ModelProto:
    """A GRU, behind which an If squeezes the axis of the batch and adds it again, if there is one row."""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]> g (float[T,N,3] x) => (float[r0,r1,r2] z)
        <int64[1] place = {{1}}, int64[1] first = {{1}}> {{
        y4 = GRU <hidden_size = 4> (x, W, R) y = Squeeze (y4, first) shape = Shape (y) n = Gather (shape, place)
        one = Equal (n, place)
        z = If (one) <then_branch = t () => (float[a,1,4] a) {{ k = Constant <value_ints = [1]> () b = Squeeze (y, {axes})
                          a = Unsqueeze (b, place) }}, else_branch = e () => (float[c,d,4] c) {{ c = Identity (y) }}> }}""")
    model.graph.initializer.extend([tensor("W", 1, 12, 3), tensor("R", 1, 12, 4)])
    return model
