"""The pass and the rewrite rules: one session for both, all or nothing, limits, shared weights."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
from judge import close, every_node, expected, remaining, run_onnxruntime
from onenode import OPTIONAL, Case, build
from onnxscript import rewriter

import rnn_lower


def two_nodes(case: Case, **changes: object) -> onnx.ModelProto:
    """The node of a case and a second one, named "other", that reads the same weights."""
    model, _ = build(case)
    other = onnx.NodeProto()
    other.CopyFrom(model.graph.node[0])
    other.name, other.output[:] = "other", [f"other_{name}" for name in other.output]
    other.op_type = str(changes.get("op_type", other.op_type))
    model.graph.node.append(other)
    for output in list(model.graph.output):
        model.graph.output.append(output)
        model.graph.output[-1].name = f"other_{output.name}"
    return model


def through_rules(model: onnx.ModelProto, **options: object) -> onnx.ModelProto:
    graph, rules = ir.from_proto(model), rnn_lower.rewrite_rules(**options)
    rules.apply_to_model(graph)
    return ir.to_proto(rewriter.rewrite(graph, pattern_rewrite_rules=rules))  # which also removes what is unused now


def test_a_conversion_that_fails_late_leaves_the_model_as_it_was():
    """Layout cannot be said at opset 13; the node that stays is found only after the other one was lowered."""
    graph = ir.from_proto(two_nodes(Case("LSTM", 14, layout=1)))
    before = ir.to_proto(graph).SerializeToString(deterministic=True)
    for lower in (rnn_lower.lower, lambda model, **options: rnn_lower.LowerRecurrentPass(**options)(model)):
        with pytest.raises(rnn_lower.UnsupportedError, match="'other' in main graph has the attribute 'layout'"):
            lower(graph, opset=13, select=lambda node: node.name != "other")
        assert ir.to_proto(graph).SerializeToString(deterministic=True) == before
    assert rnn_lower.lower(graph, opset=13) is graph
    assert not remaining(ir.to_proto(graph))


def test_max_nodes_bounds_every_form():
    model, _ = build(Case("LSTM", 14, optional=("B",)))
    for form in ("scan", "loop", "unroll"):
        count = len(every_node(rnn_lower.lower(model, form=form)))
        assert rnn_lower.lower(model, form=form, max_nodes=count)
        with pytest.raises(rnn_lower.UnsupportedError, match="max_nodes"):
            rnn_lower.lower(model, form=form, max_nodes=count - 1)
    both = two_nodes(Case("LSTM", 14, optional=("B",)))
    for lower in (rnn_lower.lower, through_rules):  # the limit is the model's, not each node's
        with pytest.raises(rnn_lower.UnsupportedError, match=r"'other'.*max_nodes"):
            lower(both, form="scan", max_nodes=30)


def test_rules_keep_to_the_options():
    model = two_nodes(Case("GRU", 14, optional=("B",)))
    assert remaining(through_rules(model, op_types=("LSTM",))) == ["GRU", "GRU"]
    assert remaining(through_rules(model, select=lambda node: node.name == "other")) == ["GRU"]
    assert {"Loop"} <= {node.op_type for node in every_node(through_rules(model, form="loop"))}
    with pytest.raises(rnn_lower.RnnLowerError, match="opset, dims and as_function"):
        rnn_lower.rewrite_rules(opset=17)
    with pytest.raises(rnn_lower.RnnLowerError, match="unknown target"):
        rnn_lower.rewrite_rules(target="abacus")


def test_rules_and_pass_emit_the_same():
    """Weights stored once, sizes from inference, doc strings and metadata of outputs."""
    model = two_nodes(Case("LSTM", 14, H=16, I=16, optional=OPTIONAL["LSTM"], weights="initializer"))
    info = onnx.helper.make_tensor_value_info("Y", 1, [5, 1, 2, 16], "about Y")
    info.metadata_props.add(key="kept", value="yes")
    model.graph.output.remove(next(value for value in model.graph.output if value.name == "Y"))
    model.graph.node.append(onnx.helper.make_node("Identity", ["Y"], ["copy"]))
    model.graph.output.append(onnx.helper.make_tensor_value_info("copy", 1, [5, 1, 2, 16]))
    model.graph.value_info.append(info)
    by_pass, by_rules = rnn_lower.lower(model), through_rules(model)
    assert not remaining(by_rules)
    ops = [sorted(node.op_type for node in every_node(result)) for result in (by_pass, by_rules)]
    assert ops[0] == ops[1]
    sizes = [sum(len(t.raw_data) for t in result.graph.initializer) for result in (by_pass, by_rules)]
    assert sizes[0] == sizes[1]
    for result in (by_pass, by_rules):
        (value,) = [value for value in result.graph.value_info if value.name == "Y"]
        assert (value.doc_string, value.metadata_props[0].value) == ("about Y", "yes")


def test_rules_infer_sizes():
    """The length is known to shape inference only; form unroll needs it."""
    case = Case("GRU", 14, optional=("B",))
    model, feeds = build(case)
    model.graph.node[0].input[0] = "computed"
    model.graph.node.insert(0, onnx.helper.make_node("Identity", ["X"], ["computed"]))
    close(run_onnxruntime(through_rules(model, form="unroll"), feeds), expected(case))


@pytest.mark.parametrize("weights", ["input", "initializer"])
@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_no_node_is_emitted_for_nobody(op, weights):
    """Every emitted value is used, above all sizes of states that are given and gates of a bias known at run time."""
    states = tuple(name for name in OPTIONAL[op] if name.startswith("initial"))
    for form, lbr, optional in (
        ("scan", 0, states),
        ("loop", 1, (*states, "B")),
        ("unroll", 1, ("B",)),
        ("scan", 1, ("B",)),
    ):
        case = Case(
            op, 14, dynamic=form != "unroll", lbr=lbr if op == "GRU" else None, optional=optional, weights=weights
        )
        result = rnn_lower.lower(build(case)[0], form=form)
        used = {name for node in every_node(result) for name in node.input}
        for graph in graphs(result.graph):
            used |= {value.name for value in graph.output}
        assert [name for node in every_node(result) for name in node.output if not used & set(node.output)] == []


def graphs(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
    bodies = [a.g for node in graph.node for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]
    return [graph, *(inner for body in bodies for inner in graphs(body))]


def test_a_version_that_was_stamped_on_a_node_is_an_opset():
    model = ir.from_proto(build(Case("LSTM", 18))[0])
    model.graph[0].version = 18
    (node,) = rnn_lower.inspect(model)
    assert node.version == 14
    assert not remaining(ir.to_proto(rnn_lower.lower(model)))


@pytest.mark.parametrize("options", [{}, {"as_function": True}, {"form": "unroll"}])
def test_what_a_pass_made_is_proved_from_a_file(options, tmp_path):
    """onnx_ir declares the values of functions in the main graph."""
    model, _ = build(Case("LSTM", 17, T=3, N=2, optional=("B",)))
    result = rnn_lower.LowerRecurrentPass(**options)(ir.from_proto(model))
    assert result.modified
    ir.save(result.model, tmp_path / "lowered.onnx")
    assert rnn_lower.prove(model, str(tmp_path / "lowered.onnx")).ok


def test_a_pass_tells_that_it_legalized_other_nodes():
    model, _ = build(Case("LSTM", 17, T=3, N=2, outputs=("Y",)))
    model.graph.node[0].op_type = "Softplus"
    del model.graph.node[0].input[1:], model.graph.node[0].attribute[:], model.graph.initializer[:]
    for target, modified in (("onnx2torch", True), ("onnxruntime", False)):
        result = rnn_lower.LowerRecurrentPass(target=target, legalize_all=True)(ir.from_proto(model))
        assert result.modified == modified
