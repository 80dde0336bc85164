"""The Python interface: functions, the pass, the rule set."""

from __future__ import annotations

import json
import pickle

import onnx
import onnx_ir as ir
import pytest
from judge import close, expected, remaining, run_onnxruntime
from onenode import OPTIONAL, Case, build
from onnxscript import rewriter
from paths import own_models

import rnn_lower
from rnn_lower import cli


def test_ir_model_is_lowered_in_place():
    model = ir.from_proto(build(Case("GRU"))[0])
    assert rnn_lower.lower(model) is model
    assert not remaining(ir.to_proto(model))


def test_a_model_is_a_path_or_an_object(tmp_path):
    path = tmp_path / "gru.onnx"
    model, _ = build(Case("GRU"))
    onnx.save(model, path)
    assert rnn_lower.lower(path) == rnn_lower.lower(str(path)) == rnn_lower.lower(model)
    assert [node.op_type for node in rnn_lower.inspect(path)] == ["GRU"]
    assert rnn_lower.check(path, model).ok
    for function in (rnn_lower.lower, rnn_lower.inspect, lambda wrong: rnn_lower.check(path, wrong)):
        with pytest.raises(rnn_lower.RnnLowerError, match=r"must be a path, .* not int"):
            function(3)
        with pytest.raises(rnn_lower.RnnLowerError, match=r"absent\.onnx: no such file"):
            function("absent.onnx")


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
    for dims, words in (({"T": -1}, "must not be negative"), ({"Q": 3}, "symbolic sizes of the inputs: T, N")):
        with pytest.raises(rnn_lower.RnnLowerError, match=words):
            rnn_lower.lower(model, dims=dims)


def test_sizes_computed_in_the_graph():
    """The batch comes out of TopK: onnx's inference does not tell it, and no made-up name is left."""
    model = onnx.load(next(path for path in own_models() if path.stem == "torch_lstm_tagger"))
    dims = {"time": 3, "batch": 2}
    with pytest.raises(rnn_lower.UnsupportedError, match=r"the batch size of this node is 'batch' .* dims=.*batch.*1"):
        rnn_lower.lower(model, target="opencv", dims={"time": 3})
    assert rnn_lower.check(model, rnn_lower.lower(model, target="opencv", dims=dims)).ok
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
    ]
    assert rnn_lower.inspect(build(Case("LSTM", 18, place="function"))[0])[0].path == "function local.Recurrent"


def test_thresholded_relu_default_is_noted(caplog):
    model, _ = build(Case("RNN", activations=("ThresholdedRelu",)))
    with caplog.at_level("INFO", "rnn_lower"):
        rnn_lower.lower(model)
    assert "RNN 'node'" in caplog.text
    assert "implies 1.0" in caplog.text


def test_the_element_type_in_a_function_comes_from_its_call():
    model, _ = build(Case("RNN", 18, place="function", weights="input", dtype="float16"))
    (node,) = rnn_lower.inspect(model)
    assert node.dtype == ir.DataType.FLOAT16
    assert not node.notes


def test_unknown_element_type_is_noted():
    model, _ = build(Case("RNN", 18, place="function", weights="input"))
    model.graph.ClearField("node")  # nobody calls the function
    model.graph.ClearField("output")
    (node,) = rnn_lower.inspect(model)
    assert node.dtype == ir.DataType.FLOAT
    assert "assuming FLOAT" in node.notes[0]


def test_own_models_are_small_and_varied():
    paths = own_models()
    assert len(paths) >= 4
    assert sum(path.stat().st_size for path in paths) < 500_000
    assert {node.op_type for path in paths for node in rnn_lower.inspect(onnx.load(path))} == {"RNN", "GRU", "LSTM"}


def test_records_and_nodes_can_be_pickled(tmp_path):
    model, _ = build(Case("GRU", optional=("B", "initial_h")))
    onnx.save(model, tmp_path / "in.onnx")
    (record,) = rnn_lower.lower_file(tmp_path / "in.onnx", tmp_path / "out.onnx")
    (node,) = rnn_lower.inspect(model)
    for kept, lost in (
        (record.node, pickle.loads(pickle.dumps(record)).node),
        (node, pickle.loads(pickle.dumps(node))),
    ):
        assert lost.describe() == kept.describe()
        assert {name: value.name for name, value in lost.inputs.items()} == {
            name: value.name for name, value in kept.inputs.items()
        }
        assert lost.node.attributes["hidden_size"].as_int() == kept.hidden_size
        assert all(value.producer() is None for value in lost.inputs.values())  # nothing of the model comes along


def test_one_operator_as_text():
    model, _ = build(Case("GRU"))
    assert remaining(rnn_lower.lower(model, op_types="LSTM")) == ["GRU"]
    assert remaining(rnn_lower.lower(model, op_types="GRU")) == []


def test_a_lack_of_memory_is_an_error_of_ours_too(tmp_path, monkeypatch):
    """Whatever a caller can call; within, it stays Python's own, which nobody takes for a statement about the model."""
    model, feeds = build(Case("GRU", dynamic=True))
    lowered, held = rnn_lower.lower(model), ir.from_proto(model)
    onnx.save(model, tmp_path / "m.onnx")
    streaming = rnn_lower.StreamingSession(rnn_lower.stream(model, axis="T"))

    def lack(*_: object, **__: object) -> None:
        raise MemoryError

    calls = {
        "modelio.document.Document.__init__": [
            lambda: rnn_lower.lower(model),
            lambda: rnn_lower.lower_file(tmp_path / "m.onnx", tmp_path / "out.onnx"),
            lambda: rnn_lower.stream(model, axis="T"),
            lambda: rnn_lower.stream_file(tmp_path / "m.onnx", tmp_path / "out.onnx"),
            lambda: rnn_lower.StreamingSession(model),
            lambda: rnn_lower.inspect(model),
            lambda: rnn_lower.lint(model, "tract"),
            lambda: rnn_lower.check(model, lowered, inputs=feeds),
            lambda: rnn_lower.prove(model, lowered),
            lambda: rnn_lower.report(model),
            lambda: rnn_lower.draw(model),
        ],
        "driver.plan.read_node": [
            lambda: rnn_lower.lower(held),
            lambda: rnn_lower.LowerRecurrentPass()(held),
            lambda: rewriter.rewrite(held, pattern_rewrite_rules=rnn_lower.rewrite_rules()),
            lambda: rnn_lower.inspect(held),
        ],
        "builder.names.Names.__init__": [
            lambda: rnn_lower.function_body("GRU", 22, hidden_size=2),
            lambda: rnn_lower.write_kit(tmp_path / "kit", "tract", only=["GRU plain"]),
        ],
    }
    for place, functions in calls.items():
        with monkeypatch.context() as patch:
            patch.setattr(f"rnn_lower.{place}", lack)
            for function in functions:
                with pytest.raises((rnn_lower.RnnLowerError, ir.passes.PassError)) as caught:
                    function()
                told: BaseException | None = caught.value
                while isinstance(told, ir.passes.PassError):  # as onnx_ir wraps what a pass raises
                    told = told.__cause__
                assert isinstance(told, rnn_lower.RnnLowerError)
                assert isinstance(told, MemoryError)
                assert "not enough memory" in str(told)
    monkeypatch.setattr(streaming, "_run", lack)
    with pytest.raises(rnn_lower.RnnLowerError, match="not enough memory"):
        streaming.run(feeds["x"] if "x" in feeds else next(iter(feeds.values())))
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again)) == (type(caught.value), str(caught.value))


def test_messages_for_python_name_arguments_and_those_of_the_command_line_flags(tmp_path, capsys):
    model = build(Case("GRU", dynamic=True))[0]
    with pytest.raises(rnn_lower.UnsupportedError, match=r'use form="scan" or form="loop"'):
        rnn_lower.lower(model, form="unroll")
    with pytest.raises(rnn_lower.UnsupportedError, match=r'add dims=\{"N": 1, "T": 16\}|add dims=\{"T": 16, "N": 1\}'):
        rnn_lower.lower(model, target="opencv")
    onnx.save(model, tmp_path / "m.onnx")
    assert cli.main(["lower", str(tmp_path / "m.onnx"), str(tmp_path / "o.onnx"), "--form", "unroll"]) == cli.BAD
    assert "use --form scan or --form loop" in capsys.readouterr().err


@pytest.mark.parametrize(
    "size",
    ["mod(T)", "floor(T, 2)", "max(a,b,c,d,e,f,g,h,i,j,k,l,m,n)", "mod((a+b)*(c+d)*(e+f)*(g+h)*(i+j)*(k+l),a+c)"],
)
def test_a_size_whose_name_is_no_expression_is_a_name(size):
    """Or one that takes long to evaluate."""
    model, _ = build(Case("GRU", 17))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = size
    lowered = rnn_lower.lower(model)
    assert rnn_lower.check(model, lowered).ok
    assert rnn_lower.lower(model, dims={size: 3}).graph.input[0].type.tensor_type.shape.dim[0].dim_value == 3


def test_a_target_in_the_metadata_that_is_no_text():
    """With half of a character, as JSON may contain it."""
    model, _ = build(Case("GRU", 17))
    lowered = rnn_lower.lower(model)
    keys = {"summary": "a", "status": "measured", "source": "b", "forms": ["scan"]}
    keys["limits"] = {"\ud800": {"inputs": [1, 2]}}
    lowered.metadata_props.add(key="rnn_lower.legalized", value=f"x.toml{json.dumps(keys)}")
    assert not rnn_lower.prove(model, lowered).ok
