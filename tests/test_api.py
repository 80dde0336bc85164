"""The Python interface: the pass, the rule set, check and its judges."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from judge import close, expected, remaining, run_onnxruntime, run_reference
from onenode import OPTIONAL, Case, build
from onnxscript import rewriter
from paths import own_models

import rnn_lower
from rnn_lower import samples


def test_ir_model_is_lowered_in_place():
    model = ir.from_proto(build(Case("GRU"))[0])
    assert rnn_lower.lower(model) is model
    assert not remaining(ir.to_proto(model))
    with pytest.raises(rnn_lower.RnnLowerError, match=r"must be an onnx\.ModelProto"):
        rnn_lower.lower("model.onnx")


def test_pass():
    model = ir.from_proto(build(Case("LSTM"))[0])
    lowering = rnn_lower.LowerRecurrentPass(form="loop")
    result = ir.passes.Sequential(lowering)(model)
    assert result.modified
    assert [(record.node.op_type, record.form) for record in lowering.records] == [("LSTM", "loop")]
    assert not rnn_lower.LowerRecurrentPass()(model).modified
    for wrong in ({"form": "spiral"}, {"op_types": ["SRU"]}, {"target": "abacus"}):
        with pytest.raises(rnn_lower.RnnLowerError, match="unknown"):
            rnn_lower.LowerRecurrentPass(**wrong)


def test_dims():
    model, feeds = build(Case("GRU", 14, dynamic=True))
    result = rnn_lower.lower(model, form="unroll", dims={"T": 5, "N": 2})
    assert [dim.dim_value for dim in result.graph.input[0].type.tensor_type.shape.dim][:2] == [5, 2]
    assert rnn_lower.check(model, result, inputs=feeds).ok
    for dims, words in (({"T": -1}, "must not be negative"), ({"Q": 3}, "symbolic sizes of the inputs: N, T")):
        with pytest.raises(rnn_lower.RnnLowerError, match=words):
            rnn_lower.lower(model, dims=dims)


def test_sizes_computed_in_the_graph():
    """The batch comes out of TopK: fixing the inputs does not tell it, and no made-up name is left or advised."""
    model = onnx.load(next(path for path in own_models() if path.stem == "torch_lstm_tagger"))
    dims = {"time": 3, "batch": 2}
    with pytest.raises(rnn_lower.UnsupportedError, match=r"needs a known batch size; .*fold the constants"):
        rnn_lower.lower(model, target="opencv", dims=dims)
    result = rnn_lower.lower(model, dims=dims)
    assert not [info.name for info in result.graph.value_info if "unk__" in str(info)]
    assert rnn_lower.check(model, result).ok


def test_all_or_nothing():
    """A node that cannot be lowered leaves the whole model as it was."""
    model, _ = build(Case("LSTM", 14))
    bad = onnx.helper.make_node("GRU", ["X", "W", "R"], ["bad"], name="bad", hidden_size=4)
    model.graph.node.append(bad)
    graph = ir.from_proto(model)
    before = ir.to_proto(graph).SerializeToString(deterministic=True)
    with pytest.raises(rnn_lower.InvalidNodeError, match="GRU 'bad' in main graph"):
        rnn_lower.lower(graph)
    assert ir.to_proto(graph).SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("place", ["main", "if", "loop", "function"])
@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_rewrite_rules(op, place):
    for outputs in (None, ("Y_h",)):
        case = Case(op, 18, "bidirectional", optional=OPTIONAL[op], place=place, outputs=outputs)
        model, feeds = build(case)
        graph = rewriter.rewrite(ir.from_proto(model), pattern_rewrite_rules=rnn_lower.rewrite_rules())
        result = ir.to_proto(graph)
        assert not remaining(result)
        close(run_onnxruntime(result, feeds), expected(case))


def test_inspect():
    (node,) = rnn_lower.inspect(build(Case("LSTM", 22, "reverse", dynamic=True, optional=("P",), clip=2.0))[0])
    assert (node.op_type, node.version, node.direction, node.clip) == ("LSTM", 22, "reverse", 2.0)
    assert (node.seq_length, node.batch_size, node.input_size, node.hidden_size) == ("T", "N", 3, 4)
    assert list(node.inputs) == ["X", "W", "R", "P"]
    assert [activation.name for activation in node.activations[0]] == ["Sigmoid", "Tanh", "Tanh"]


def test_paths_of_nodes_in_bodies():
    nodes = rnn_lower.inspect(build(Case("LSTM", 18, place="if"))[0])
    assert [node.path for node in nodes] == [
        "main graph/else_branch of If 'if'",
        "main graph/then_branch of If 'if'",
    ] or len(nodes) == 2
    assert rnn_lower.inspect(build(Case("LSTM", 18, place="function"))[0])[0].path == "function local.Recurrent"


def test_thresholded_relu_default_is_noted(caplog):
    model, _ = build(Case("RNN", activations=("ThresholdedRelu",)))
    with caplog.at_level("INFO", "rnn_lower"):
        rnn_lower.lower(model)
    assert "RNN 'node'" in caplog.text
    assert "implies 1.0" in caplog.text


def test_unknown_element_type_is_noted():
    model, feeds = build(Case("RNN", 18, place="function", weights="input"))
    model.graph.node[0].input[0] = model.graph.node[0].input[0]
    (node,) = rnn_lower.inspect(model)
    assert node.dtype == ir.DataType.FLOAT
    assert not node.notes  # found at the call
    assert "X" in feeds


# -- check ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "judge"),
    [
        (Case("LSTM", 14, dynamic=True, optional=OPTIONAL["LSTM"]), "onnxruntime"),
        (Case("GRU", 14, layout=1, dynamic=True, optional=OPTIONAL["GRU"]), "layout 1"),
        (Case("LSTM", 14, dtype="double"), "double"),
        (Case("GRU", 22, dtype="bfloat16", optional=("B",)), "bfloat16"),
        (Case("GRU", 14, dtype="float16", optional=("B",)), "onnxruntime"),
        (Case("GRU", 14, T=0), "empty"),
        (Case("LSTM", 14, N=0), "empty"),
        (Case("RNN", 14, hidden_size=False), "hidden_size missing"),
        (Case("GRU", 14, clip=0.0), "clip 0"),
        (Case("GRU", 3, output_sequence=1), "GRU version 3"),
    ],
)
def test_judges(case, judge):
    model, _ = build(case)
    if case.opset < 7:
        report = rnn_lower.check(model, rnn_lower.lower(model, opset=17))
    else:
        report = rnn_lower.check(model, rnn_lower.lower(model))
    assert report.ok
    assert bool(report)
    assert judge in report.judge
    assert report.runner.startswith("onnxruntime")
    assert report.max_abs_error < 1e-2


def test_check_samples_lengths_and_sizes():
    model, _ = build(Case("LSTM", dynamic=True, optional=OPTIONAL["LSTM"], N=2))
    shapes = set()
    for index in range(6):
        feeds = next(samples.candidates(ir.from_proto(model), 0, index))
        T, N = feeds["X"].shape[:2]
        shapes.add((T, N))
        assert feeds["sequence_lens"].shape == (N,)
        assert feeds["sequence_lens"].max() <= T
        assert feeds["initial_h"].shape[1] == N
    assert len(shapes) > 2


def test_check_never_hands_an_empty_sequence_to_the_fused_operator():
    """A Slice that leaves no steps: onnxruntime would end the process on the fused GRU."""
    model, _ = build(Case("GRU", 14, dynamic=True, outputs=("Y_h",)))
    model.graph.node[0].input[0] = "cut"
    model.graph.node.insert(0, onnx.helper.make_node("Slice", ["X", "zero", "zero", "zero"], ["cut"]))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0]), "zero"))
    report = rnn_lower.check(model, rnn_lower.lower(model))
    assert report.ok
    assert "empty" in report.judge


def test_check_reports_what_differs():
    a = build(Case("RNN", outputs=("Y_h",)))[0]
    b = build(Case("RNN", outputs=("Y_h",), seed=1))[0]
    report = rnn_lower.check(a, b)
    assert not report.ok
    assert report.max_abs_error > 1e-3
    assert "values differ" in report.outputs[0].reason
    b = build(Case("RNN", outputs=("Y_h",), H=5))[0]
    assert "expected" in rnn_lower.check(a, b).outputs[0].reason
    with pytest.raises(rnn_lower.RnnLowerError, match="different outputs"):
        rnn_lower.check(a, build(Case("LSTM"))[0])


def test_check_asks_for_inputs_when_none_work():
    nodes = [onnx.helper.make_node("Split", ["x", "s"], ["y", "z"])]
    graph = onnx.helper.make_graph(
        nodes, "g", [onnx.helper.make_tensor_value_info("x", 1, [977]), onnx.helper.make_tensor_value_info("s", 7, [2])],
        [onnx.helper.make_tensor_value_info("y", 1, None)],
    )  # fmt: skip
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 14)], ir_version=8)
    with pytest.raises(rnn_lower.RnnLowerError, match="--inputs"):
        rnn_lower.check(model, model)
    assert rnn_lower.check(model, model, inputs={"x": np.zeros(977, np.float32), "s": np.array([970, 7])}).ok


def test_check_of_texts_sequences_and_integers():
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("SplitToSequence", ["x"], ["parts"]),
            onnx.helper.make_node("Identity", ["t"], ["u"]),
            onnx.helper.make_node("Identity", ["b"], ["c"]),
        ],
        "g",
        [onnx.helper.make_tensor_value_info(n, e, [2]) for n, e in (("x", 1), ("t", 8), ("b", 9))],
        [
            onnx.helper.make_tensor_sequence_value_info("parts", 1, None),
            onnx.helper.make_tensor_value_info("u", 8, [2]),
            onnx.helper.make_tensor_value_info("c", 9, [2]),
        ],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 14)], ir_version=8)
    feeds = {"x": np.ones(2, np.float32), "t": np.array(["a", "b"], object), "b": np.array([True, False])}
    assert rnn_lower.check(model, model, inputs=feeds).ok
    with pytest.raises(rnn_lower.RnnLowerError, match="string inputs"):
        rnn_lower.check(model, model)


def test_own_models_are_small_and_varied():
    paths = own_models()
    assert len(paths) >= 4
    assert sum(path.stat().st_size for path in paths) < 500_000
    assert {node.op_type for path in paths for node in rnn_lower.inspect(onnx.load(path))} == {"RNN", "GRU", "LSTM"}


# -- the oracle agrees with others ------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_oracle_agrees_with_the_fused_operator(op):
    for direction in ("forward", "reverse", "bidirectional"):
        for variant in (
            {},
            {"clip": 0.2},
            {"lbr": 1} if op == "GRU" else {"clip": 0.1},
            {"input_forget": 1} if op == "LSTM" else {},
        ):
            model, feeds = build(Case(op, 14, direction, optional=OPTIONAL[op], **variant))
            close(run_reference(model, feeds), run_onnxruntime(model, feeds))
