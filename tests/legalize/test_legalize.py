"""Legalization as a pass over nodes: it ends, cleans up after itself, and takes any node."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from judge import close, every_node, run_onnxruntime
from onenode import Case, build
from onnx import TensorProto, helper, numpy_helper

import rnn_lower
from rnn_lower.legalize.patterns import PATTERNS
from rnn_lower.targeting import TARGETS

COMMON = (
    'summary = "for a test"\nstatus = "documented"\nsource = "nowhere"\nforms = ["unroll"]\nunroll_up_to = "always"\n'
)


def written(folder, text: str) -> str:
    path = folder / "mine.toml"
    path.write_text(COMMON + text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("target", ["dla", "horizon-rdk", "tidl"])
def test_no_reshape_of_a_reshape_is_left(op, target):
    lowered = rnn_lower.lower(build(Case(op, 13, T=4, N=1))[0], target=target)
    reshaped = {node.output[0] for node in lowered.graph.node if node.op_type == "Reshape"}
    assert not [node for node in lowered.graph.node if node.op_type == "Reshape" and node.input[0] in reshaped]


@pytest.mark.parametrize("target", TARGETS)
def test_no_weight_is_left_that_nobody_reads(target):
    """Of constants too that legalization has put in and needs no more, which the proof would call a change."""
    for op in ("RNN", "GRU", "LSTM"):
        for direction in ("forward", "bidirectional"):
            model, _ = build(Case(op, 17, direction, T=5, N=1, optional=("B", "initial_h")))
            proof = rnn_lower.prove(model, rnn_lower.lower(model, target=target))
            assert proof.ok, proof.lines()


@pytest.mark.parametrize("op_type", PATTERNS)
def test_it_ends_where_nothing_is_supported(op_type, tmp_path):
    """Every pattern of every operator is tried, none serves, and the model is as it was."""
    model, _ = build(Case("LSTM", 13, optional=("B",)))
    before = model.SerializeToString(deterministic=True)
    with pytest.raises(rnn_lower.UnsupportedError, match="does not support"):
        rnn_lower.lower(model, target=written(tmp_path, f'takes = ["{op_type}"]\n'))
    assert model.SerializeToString(deterministic=True) == before


def test_a_mask_without_comparison_or_where(tmp_path):
    """A comparison that the target lacks may stay until what reads it does without it."""
    for avoid in (["Less", "Greater"], ["Where"], ["Less", "Greater", "Where"]):
        case = Case("GRU", 17, "bidirectional", optional=("sequence_lens", "initial_h"))
        model, feeds = build(case)
        lowered = rnn_lower.lower(model, target=written(tmp_path, f"avoid = {avoid}\n".replace("'", '"')))
        assert not {node.op_type for node in every_node(lowered)} & set(avoid)
        close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))


def test_a_constant_state_that_tract_cannot_load_is_refused_in_a_line():
    model, _ = build(Case("RNN", 17, dynamic=True, activations=("Affine",), alpha=(0.0,), beta=(0.5,)))
    with pytest.raises(rnn_lower.UnsupportedError, match=r"target tract does not support Scan: .* states"):
        rnn_lower.lower(model, target="tract")
    assert rnn_lower.lower(model)


def other_nodes() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A GRU between nodes that have equivalents."""
    model, feeds = build(Case("GRU", 17))
    name = model.graph.input[0].name
    gru = next(node for node in model.graph.node if node.op_type == "GRU")
    gru.input[0] = "x1"
    nodes = [
        helper.make_node("Softsign", [name], ["x0"], name="soft"),
        helper.make_node("Clip", ["x0", "low", "high"], ["x1"], name="clip"),
    ]
    for node in reversed(nodes):
        model.graph.node.insert(0, node)
    model.graph.initializer.extend(
        [numpy_helper.from_array(np.float32(-0.5), "low"), numpy_helper.from_array(np.float32(0.5), "high")]
    )
    model.graph.node.append(helper.make_node("Elu", [gru.output[0]], ["z"], name="elu", alpha=0.5))
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, None))
    return model, feeds


def test_other_nodes_are_legalized_where_asked(tmp_path):
    model, feeds = other_nodes()
    path = written(tmp_path, 'avoid = ["Softsign", "Clip", "Elu"]\n')
    untouched = rnn_lower.lower(model, target=path)
    assert {"Softsign", "Clip", "Elu"} <= {node.op_type for node in untouched.graph.node}
    lowered = rnn_lower.lower(model, target=path, legalize_all=True)
    assert not {"Softsign", "Clip", "Elu"} & {node.op_type for node in lowered.graph.node}
    close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))
    assert [value.name for value in lowered.graph.output] == [value.name for value in model.graph.output]


def test_what_has_no_equivalent_stays(tmp_path):
    model, feeds = other_nodes()
    path = written(tmp_path, 'avoid = ["Softsign", "Abs", "Elu"]\n')
    lowered = rnn_lower.lower(model, target=path, legalize_all=True)
    kept = {node.op_type for node in lowered.graph.node}
    assert "Softsign" in kept or "Relu" in kept
    close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))


def test_legalize_all_needs_a_target():
    with pytest.raises(rnn_lower.RnnLowerError, match='add target="RUNTIME"'):
        rnn_lower.lower(build(Case("GRU"))[0], legalize_all=True)


def test_lint_says_which_other_nodes_could_be_mended(tmp_path):
    model, _ = other_nodes()
    path = written(tmp_path, 'avoid = ["Softsign", "Exp"]\nlimits.Elu.types = ["DOUBLE"]\n')
    mends = {finding.op: finding.mend for finding in rnn_lower.lint(model, path).findings}
    assert mends["Softsign"] == "--legalize-all replaces this node"
    assert mends["Elu"] == ""  # its equation needs Exp


@pytest.mark.parametrize("target", ["ethos-u", "tidl"])
@pytest.mark.parametrize("lengths", [[5], [3], None])
def test_a_target_without_masks_takes_constant_lengths(target, lengths):
    """The refusal of lengths that are an input says so, and none where all steps count serves too."""
    case = Case("LSTM", 17, T=5, N=1, optional=("sequence_lens",), lengths_as="initializer")
    model, feeds = build(case)
    refused, _ = build(case.replace(lengths_as="input"))
    with pytest.raises(rnn_lower.UnsupportedError, match=r"; make sequence_lens a constant, or remove it if every"):
        rnn_lower.lower(refused, target=target)
    if lengths is None:
        model.graph.node[0].input[4] = ""
    else:
        (held,) = (tensor for tensor in model.graph.initializer if tensor.name == model.graph.node[0].input[4])
        held.CopyFrom(numpy_helper.from_array(np.array(lengths, np.int32), held.name))
    lowered = rnn_lower.lower(model, target=target)
    assert rnn_lower.prove(model, lowered).ok
    close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))


@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
@pytest.mark.parametrize("steps", [2, 3])
def test_a_length_that_only_the_body_of_a_loop_declares(direction, steps):
    """A state of a Loop may have another size than its declaration; onnxruntime runs the node at any length."""
    directions = 2 if direction == "bidirectional" else 1
    weights = "".join(
        f", float[{directions},2,2] {name} = {{{', '.join(map(str, np.linspace(-1, 1, 4 * directions)))}}}"
        for name in "WR"
    )
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]> g (float[T,1,2] x) => (float[T,1,2] y)
        <int64 trips = {{2}}, bool yes = {{1}}, int64[1] one = {{1}}, int64[1] zero = {{0}}{weights}> {{
        y = Loop (trips, yes, x) <body = b (int64 i, bool go, float[2,1,2] s) => (bool on, float[2,1,2] r) {{
            on = Identity (go) h = RNN <hidden_size = 2, direction = "{direction}"> (s, W, R)
            r = ReduceSum <keepdims = 0> (h, one) }}> }}""")
    lowered = rnn_lower.lower(model, target="onnx-reference")
    feeds = {"x": np.random.default_rng(0).normal(size=(steps, 1, 2)).astype(np.float32)}
    close(run_onnxruntime(lowered, feeds), run_onnxruntime(model, feeds))
    assert rnn_lower.prove(model, lowered)
