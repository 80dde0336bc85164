"""Lowered nodes that stay calls: the graph reads as before, and inlined it is the plain result."""

from __future__ import annotations

import copy

import numpy as np
import onnx
import onnx.inliner
import onnx_ir as ir
import pytest
from judge import close, every_node, expected, run_onnxruntime, run_reference
from onenode import OPTIONAL, Case, build
from onnx import helper
from paths import ROOT
from strategies import FORMS

import rnn_lower
from rnn_lower import cli
from rnn_lower.targeting import TARGETS

TAGGER = ROOT / "models" / "torch_lstm_tagger.onnx"


def called(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    names = {
        (function.domain, function.name) for function in model.functions if function.domain.startswith("rnn_lower")
    }
    return [node for node in every_node(model) if (node.domain, node.op_type) in names]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("place", ["main", "if", "loop", "function"])
@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_calls_compute_the_same(op, place, form):
    case = Case(op, optional=OPTIONAL[op], direction="bidirectional", place=place)
    model, feeds = build(case)
    lowered = rnn_lower.lower(model, form=form, as_function=True)
    onnx.checker.check_model(lowered, full_check=True)
    wanted = expected(case)
    close(run_onnxruntime(lowered, feeds), wanted)
    inlined = onnx.inliner.inline_local_functions(lowered)
    assert not {node.op_type for node in every_node(inlined)} & {"RNN", "GRU", "LSTM"}
    close(run_onnxruntime(inlined, feeds), wanted)
    close(run_onnxruntime(rnn_lower.lower(model, form=form), feeds), wanted)
    proof = rnn_lower.prove(model, lowered)
    assert proof.ok, (proof.changed, proof.nodes)
    assert len(proof.nodes) == (2 if place == "if" else 1)
    assert form != "scan" or rnn_lower.check(model, lowered, runs=1).ok


@pytest.mark.parametrize("opset", [6, 7, 9, 11, 13, 14, 18, 22])
def test_every_opset(opset):
    case = Case("LSTM", opset, optional=("B",), weights="initializer")
    model, feeds = build(case)
    lowered = rnn_lower.lower(model, form="loop" if opset < 9 else "scan", as_function=True)
    assert lowered.ir_version == max(8, model.ir_version)
    run = run_reference if opset < 7 else run_onnxruntime
    close(run(lowered, feeds), expected(case))
    assert rnn_lower.prove(model, lowered).ok


@pytest.mark.parametrize("dtype", ["double", "float16", "bfloat16"])
def test_element_types(dtype):
    case = Case("GRU", 22, dtype=dtype, optional=OPTIONAL["GRU"], lbr=1)
    model, feeds = build(case)
    close(run_onnxruntime(rnn_lower.lower(model, as_function=True), feeds), expected(case), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("weights", ["initializer", "input", "constant", "computed", "moved"])
def test_weights_are_inputs_of_the_call(weights):
    case = Case("LSTM", optional=("B", "P"), weights=weights)
    model, feeds = build(case)
    before = copy.deepcopy(model.graph)
    lowered = rnn_lower.lower(model, as_function=True)
    (call,) = called(lowered)
    node = next(node for node in before.node if node.op_type == "LSTM")
    assert list(call.input) == [name for name in node.input if name]
    assert list(call.output) == list(node.output)
    assert (call.name, len(call.attribute)) == (node.name, 0)
    assert [node for node in lowered.graph.node if node.name != call.name] == [n for n in before.node if n != node]
    assert list(lowered.graph.initializer) == list(before.initializer)
    close(run_onnxruntime(lowered, feeds), expected(case))


def stacked(*sizes: int) -> onnx.ModelProto:
    """LSTMs in a row, of these hidden sizes, each with weights of its own."""
    rng, nodes, weights, x, features = np.random.default_rng(3), [], [], "X", 3
    for index, hidden in enumerate(sizes):
        for name, shape in (("W", (1, 4 * hidden, features)), ("R", (1, 4 * hidden, hidden))):
            array = rng.uniform(-0.5, 0.5, shape).astype(np.float32)
            weights.append(onnx.numpy_helper.from_array(array, f"{name}{index}"))
        nodes.append(
            helper.make_node("LSTM", [x, f"W{index}", f"R{index}"], [f"Y{index}"], f"lstm{index}", hidden_size=hidden)
        )
        nodes.append(helper.make_node("Squeeze", [f"Y{index}", "axis"], [f"x{index}"]))
        x, features = f"x{index}", hidden
    weights.append(onnx.numpy_helper.from_array(np.array([1]), "axis"))
    graph = helper.make_graph(
        nodes, "stacked", [helper.make_tensor_value_info("X", 1, ["T", "N", 3])],
        [helper.make_tensor_value_info(x, 1, None)], weights,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("ir_version", [7, 8, 10])
@pytest.mark.parametrize("opset", [None, 18, 20, 21, 23])
def test_they_are_proved_at_another_opset(opset, ir_version):
    """Conversion raises the IR version, and functions do; neither is a change of the rest."""
    model, _ = build(Case("GRU", 12 if ir_version == 7 else 17))
    model.ir_version = ir_version
    proof = rnn_lower.prove(model, rnn_lower.lower(model, as_function=True, opset=opset))
    assert proof.ok, (proof.changed, proof.nodes)


def test_the_ir_version_is_raised_no_further_than_functions_need():
    model, _ = build(Case("GRU", 17))
    lowered = rnn_lower.lower(model, as_function=True)
    lowered.ir_version = 12
    assert rnn_lower.prove(model, lowered).changed == ("model: ir_version has changed",)


def test_nodes_alike_call_the_same_function():
    model = stacked(3, 3, 5, 3)
    lowered = rnn_lower.lower(model, as_function=True)
    assert [node.op_type for node in called(lowered)] == ["LSTM_scan", "LSTM_scan", "LSTM_scan_1", "LSTM_scan_2"]
    assert len(lowered.functions) == 3
    x = {"X": np.random.default_rng(0).uniform(-1, 1, (6, 2, 3)).astype(np.float32)}
    close(run_onnxruntime(lowered, x), run_onnxruntime(model, x))
    assert rnn_lower.prove(model, lowered).ok


def test_domain_is_nobody_else_s():
    model, feeds = build(Case("GRU"))
    model.functions.append(
        helper.make_function(
            "rnn_lower", "Mine", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], model.opset_import
        )
    )
    model.graph.node.append(helper.make_node("Mine", ["Y"], ["Z"], domain="rnn_lower"))
    model.graph.output.append(helper.make_tensor_value_info("Z", 1, None))
    model.opset_import.append(helper.make_opsetid("rnn_lower", 1))
    lowered = rnn_lower.lower(model, as_function=True)
    assert {function.domain for function in lowered.functions} == {"rnn_lower", "rnn_lower_1"}
    close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))
    assert rnn_lower.prove(model, lowered).ok


def test_on_an_ir_model_in_place_and_as_a_pass():
    proto, feeds = build(Case("GRU", optional=("B",)))
    model = ir.from_proto(proto)
    rnn_lower.lower(model, as_function=True)
    other = ir.from_proto(proto)
    result = rnn_lower.LowerRecurrentPass(as_function=True, opset=18)(other)
    assert result.modified
    for one in (model, other):
        assert [function.domain for function in one.functions.values()] == ["rnn_lower"]
        close(run_onnxruntime(ir.to_proto(one), feeds), run_onnxruntime(proto, feeds))


def test_an_error_leaves_the_model_as_it_was():
    proto = stacked(3, 4)
    model = ir.from_proto(proto)
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    with pytest.raises(rnn_lower.UnsupportedError):
        rnn_lower.lower(model, as_function=True, form="unroll")
    with pytest.raises(rnn_lower.UnsupportedError, match="would exceed the limit of 30 nodes by 20"):
        rnn_lower.lower(model, as_function=True, max_nodes=30)
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


def test_a_function_counts_once_for_the_limit():
    once = rnn_lower.lower(stacked(3, 3), as_function=True)
    rnn_lower.lower(
        stacked(3, 3, 3, 3, 3, 3), as_function=True, max_nodes=2 * sum(len(f.node) for f in once.functions) + 60
    )


def test_file_to_file(tmp_path, capsys):
    path = tmp_path / "out.onnx"
    command = ["lower", str(TAGGER), "-o", str(path), "--as-function", "--check", "--prove", "--runs", "1"]
    assert cli.main(command) == cli.DONE, capsys.readouterr()
    lowered = onnx.load(path)
    assert [node.name for node in called(lowered)] == ["/rnn/LSTM", "/rnn/LSTM_1"]
    assert lowered.graph.initializer == onnx.load(TAGGER).graph.initializer


def test_converted_on_the_way(tmp_path, capsys):
    path = tmp_path / "out.onnx"
    source = ROOT / "models" / "torch_rnn_bidirectional.onnx"
    assert cli.main(["lower", str(source), "-o", str(path), "--as-function", "--opset", "17", "--check"]) == cli.DONE
    lowered = onnx.load(path)
    assert {entry.version for entry in lowered.functions[0].opset_import} == {17}


@pytest.mark.parametrize(("own", "of_model"), [(14, 17), (17, 14), (12, 17), (17, 18)])
def test_a_function_that_imports_another_opset(own, of_model, tmp_path, capsys):
    """The lowered model is valid and proved, or --opset makes it so; onnx's checker looks only outside of bodies."""
    model, _ = build(Case("LSTM", own, place="function", dynamic=True))
    for entry in model.opset_import:
        entry.version = of_model if entry.domain == "" else entry.version
    source, path = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(model, source)
    command = ["lower", str(source), "-o", str(path), "--prove"]
    wanted = cli.DONE if (own, of_model) == (17, 18) else cli.BAD
    assert cli.main(command) == wanted
    assert (f"; add --opset {of_model}" in capsys.readouterr().err) == (wanted == cli.BAD)
    assert cli.main([*command, "--as-function"]) == cli.BAD
    assert f"; add --opset {of_model}" in capsys.readouterr().err
    for more in ([], ["--as-function"]):
        assert cli.main([*command, "--opset", str(of_model), *more]) == cli.DONE, capsys.readouterr()
        onnx.checker.check_model(path, full_check=True)


def test_report_draws_what_is_called():
    model, _ = build(Case("GRU"))
    report = rnn_lower.report(model, as_function=True, form="scan", runs=1)
    assert report.ok
    assert "Scan, once per step" in report.html
    assert report.kinds[0].record.emitted > 10


@pytest.mark.parametrize("target", TARGETS)
def test_targets(target):
    """Those that were seen to run calls take them; the others say that they were not."""
    case = Case("GRU", 17, N=1)
    model, feeds = build(case)
    if TARGETS[target].functions:
        close(run_onnxruntime(rnn_lower.lower(model, target=target, as_function=True), feeds), expected(case))
    else:
        with pytest.raises(rnn_lower.RnnLowerError, match=r"no test shows that target .* runs function calls"):
            rnn_lower.lower(model, target=target, as_function=True)


def test_what_it_is_not_for():
    with pytest.raises(rnn_lower.RnnLowerError, match="without as_function"):
        rnn_lower.stream(ROOT / "models" / "torch_denoiser.onnx", as_function=True)
    with pytest.raises(rnn_lower.RnnLowerError, match="for opset, dims and as_function, use rnn_lower"):
        rnn_lower.rewrite_rules(as_function=True)


@pytest.mark.parametrize("form", FORMS)
def test_bodies_of_a_sequence_map_take_nodes(form):
    """Not calls, which end in an error (tests/bad)."""
    case = Case("GRU", 17, optional=OPTIONAL["GRU"], direction="bidirectional")
    model, feeds = build(case)
    graph, x = model.graph, model.graph.input[0]
    names = [value.name for value in graph.output]
    body = helper.make_graph(list(graph.node), "body", [x], list(graph.output))
    found = [f"{name}_of_one" for name in names]
    nodes = [
        helper.make_node("SequenceConstruct", ["X"], ["all"]),
        helper.make_node("SequenceMap", ["all"], [f"{name}_of_all" for name in names], body=body),
        helper.make_node("Constant", [], ["first"], value_int=0),
        *(helper.make_node("SequenceAt", [f"{name}_of_all", "first"], [one]) for name, one in zip(names, found, strict=True)),
    ]  # fmt: skip
    outputs = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in found]
    mapped = helper.make_model(
        helper.make_graph(nodes, "mapped", list(graph.input), outputs, graph.initializer),
        opset_imports=model.opset_import, ir_version=model.ir_version,
    )  # fmt: skip
    lowered = rnn_lower.lower(mapped, form=form)
    assert not {node.op_type for node in every_node(lowered)} & {"RNN", "GRU", "LSTM"}
    close(run_onnxruntime(lowered, feeds), expected(case))


def test_weights_that_an_old_model_lists_as_inputs_are_none_of_a_newer_one():
    """From IR version 4 on a caller may override them, which nobody could before."""
    model, feeds = build(Case("LSTM", 11, optional=("B",)))
    given = {value.name for value in model.graph.input}
    for tensor in model.graph.initializer:
        if tensor.name not in given:
            model.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    model.ir_version = 3
    lowered = rnn_lower.lower(model, as_function=True)
    assert lowered.ir_version >= 8
    assert not {value.name for value in lowered.graph.input} & {tensor.name for tensor in lowered.graph.initializer}
    assert rnn_lower.check(model, lowered, inputs=feeds).ok
    assert rnn_lower.prove(model, lowered).ok


def test_functions_that_expand_without_end_are_refused():
    """Forty levels that call the next one twice are a terabyte of nodes."""
    model, _ = build(Case("GRU", 17))
    model.opset_import.append(helper.make_opsetid("own", 1))
    imports = [*model.opset_import]
    for level in range(40):
        op = ("", "Identity") if not level else ("own", f"level_{level - 1}")
        calls = [helper.make_node(op[1], [a], [b], domain=op[0]) for a, b in (("x", "t"), ("t", "y"))]
        model.functions.append(helper.make_function("own", f"level_{level}", ["x"], ["y"], calls, imports))
    model.graph.node.append(helper.make_node("level_39", ["X"], ["unread"], domain="own"))
    with pytest.raises(rnn_lower.RnnLowerError, match="expand to"):
        rnn_lower.lower(model)


@pytest.mark.parametrize("depth", [99, 100])
def test_a_function_for_a_node_may_be_one_level_too_deep(depth):
    """onnxruntime runs functions that call each other to a depth of 100."""
    model, feeds = build(Case("GRU", 17, place="function"))
    inner = model.functions[0]
    for index in range(1, depth):
        outer = copy.deepcopy(inner)
        del outer.node[:]
        outer.name = f"F{index}"
        name = inner.name if index == 1 else f"F{index - 1}"
        outer.node.append(helper.make_node(name, list(inner.input), list(inner.output), domain=inner.domain))
        outer.opset_import.append(helper.make_opsetid(inner.domain, 1))
        model.functions.append(outer)
    next(node for node in model.graph.node if node.domain == inner.domain).op_type = f"F{depth - 1}"
    wanted = run_onnxruntime(model, feeds)
    if depth == 100:
        with pytest.raises(rnn_lower.UnsupportedError, match="to a depth of 101; the limit is 100; drop as_function"):
            rnn_lower.lower(model, as_function=True)
    close(run_onnxruntime(rnn_lower.lower(model, as_function=depth < 100), feeds), wanted)
