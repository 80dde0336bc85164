"""Every feature on every target, on the real runtime; the judge is onnxruntime's fused operator or the oracle."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from features import FEATURES, REFUSED_FEATURES
from judge import expected, remaining, run_onnxruntime
from layers import Stack
from onenode import OPTIONAL, Case, build
from runners import RUNNERS, limit_of, missing
from stacks import GATES
from strategies import MEASURED

import rnn_lower
from rnn_lower.targeting import TARGETS
from rnn_lower.targeting.probe.results import largest_difference

SLOW = {"tinygrad", "tvm", "iree", "emx-onnx-cgen", "rknn", "ncnn", "onnxruntime-openvino"}
"""Compile every graph: seconds a model, so that the default run takes a few features; the matrix takes all."""

ABSENT = {name: reason for name in RUNNERS if (reason := missing(name))}
HERE = [name for name in RUNNERS if name not in ABSENT]
FORMS = [(name, form) for name in HERE for form in TARGETS[name].forms]
"""Each form that a target promises, for auto unrolls the short sequences of the features on most."""

FEW = ("LSTM everything", "GRU everything", "RNN sequence_lens", "LSTM activations", "GRU one step", "RNN Elu")


def close(got: list, wanted: list[np.ndarray], limit: float = 1e-4) -> None:
    assert [np.shape(a) for a in got] == [b.shape for b in wanted]
    assert largest_difference(got, wanted) <= limit


def needs(name: str) -> None:
    reason = missing(name)
    if reason:
        pytest.skip(reason)


@pytest.mark.skipif(bool(ABSENT), reason=f"not installed: {', '.join(ABSENT)}")
def test_every_runtime_is_installed():
    """The tests of those that are not are not collected."""


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize(("name", "form"), FORMS)
def test_feature(name, form, feature):
    if name in SLOW and feature not in (*FEW, *REFUSED_FEATURES.get(name, ())):
        pytest.skip(f"{name} takes seconds a model; tests/runtimes/matrix.py runs all of them")
    case = FEATURES[feature]
    model, feeds = build(case)
    if feature in REFUSED_FEATURES.get(name, ()):
        with pytest.raises(rnn_lower.UnsupportedError, match=f"target {name} does not support"):
            rnn_lower.lower(model, target=name, form=form)
        return
    needs(name)
    wanted = expected(case)
    close(RUNNERS[name][1](rnn_lower.lower(model, target=name, form=form), feeds), wanted, limit_of(name, wanted))


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("name", ["onnxruntime", "onnx-reference", "openvino", "tract", "opencv", "onnx2torch"])
def test_portable_runs_everywhere(name, feature):
    needs(name)
    case = FEATURES[feature]
    model, feeds = build(case)
    close(RUNNERS[name][1](rnn_lower.lower(model, target="portable"), feeds), expected(case))


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_tract_with_a_symbolic_batch(op):
    """Scan over a known length that is too long to unroll."""
    needs("tract")
    case = Case(op, 17, "bidirectional", T=40, optional=("B",))
    model, feeds = build(case)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "N"
    lowered = rnn_lower.lower(model, target="tract")
    assert "Scan" in [node.op_type for node in lowered.graph.node]
    close(RUNNERS["tract"][1](lowered, feeds), expected(case))


@pytest.mark.parametrize("form", ["scan", "unroll"])
@pytest.mark.parametrize("op", ["Tile", "Expand"])
@pytest.mark.parametrize("after", ["Tanh (turned)", "Mul (turned, turned)", "Concat <axis = 0> (turned)"])
def test_tract_multiplies_what_was_repeated(op, form, after):
    """It forgets to repeat the product of an LSTM autoencoder's decoder, and returns wrong numbers."""
    needs("tract")
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]> g (float[2,3] code) => (float[5,1,2,2] y)
        <int64[1] first = {{0}}, int64[3] times = {{5,1,1}}, float[1,2,3] W = {{0.1, 0.2, 0.3, 0.4, -0.5, 0.6}},
         float[1,2,2] R = {{0.5, -0.6, 0.7, 0.8}}> {{ step = Unsqueeze (code, first) many = {op} (step, times)
        turned = Transpose <perm = [0, 1, 2]> (many) x = {after} y = RNN <hidden_size = 2> (x, W, R) }}""")
    lowered = rnn_lower.lower(model, target="tract", form=form)
    assert rnn_lower.prove(model, lowered)
    feeds = {"code": np.array([[0.1, 0.2, 0.3], [-0.4, 0.5, -0.6]], np.float32)}
    close(RUNNERS["tract"][1](lowered, feeds), run_onnxruntime(model, feeds))


def test_tract_with_a_computed_batch():
    """Its Scan fails if the batch size is a product of two sizes, so that few steps are unrolled."""
    needs("tract")
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[batch,time,9,2] x) => (float[9,1,M,2] y) <int64[3] shape = {-1, 9, 2},
         float[1,2,2] W = {0.1, 0.2, 0.3, 0.4}, float[1,2,2] R = {0.5, -0.6, 0.7, 0.8}> {
        rows = Reshape (x, shape) bands = Transpose <perm = [1, 0, 2]> (rows) y = RNN <hidden_size = 2> (bands, W, R) }""")
    lowered = rnn_lower.lower(model, target="tract")
    feeds = {"x": np.linspace(-1, 1, 2 * 5 * 9 * 2, dtype=np.float32).reshape(2, 5, 9, 2)}
    close(RUNNERS["tract"][1](lowered, feeds), run_onnxruntime(model, feeds))
    assert "Scan" in {node.op_type for node in rnn_lower.lower(model, target="tract", form="scan").graph.node}


def test_tract_returns_positions(tmp_path):
    """What is only a sum of sizes and inputs, it returns as a symbol; with a known length, there is none."""
    needs("tract")
    import tract

    s = Stack(np.random.default_rng(0))
    frames = s.add("Gather", s.add("Shape", "x"), s.const(np.array(1)), axis=0)
    s.add("Range", s.const(np.array(0)), frames, s.const(np.array(1)))
    s.add("Unsqueeze", s.add("Cast", s.value, to=onnx.TensorProto.FLOAT), s.ints(1))
    s.add("Add", "x", s.value)
    model = rnn_lower.stream(s.model(), axis="T", target="tract")
    onnx.save(model, tmp_path / "stream.onnx")
    runnable = tract.onnx().load(tmp_path / "stream.onnx").into_model().into_runnable()
    x, position = np.ones((2, 3, 6), np.float32), np.zeros(1, np.int64)
    for _ in range(2):
        results = runnable.run([x, position])
        y, position = (result.to_numpy() for result in results)
    close([y, position], [1 + np.broadcast_to(np.arange(3, 6)[:, np.newaxis], (2, 3, 6)), np.array([6])])


def test_tract_gets_no_untrue_sizes():
    """torch.export declares the length of its example, although the length is free; tract refuses such a model."""
    needs("tract")
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[T,N,2] x) => (float[N,6,2] out) <float[N,6,2] turned, int64[1] one = {1},
         float[1,2,2] W = {0.1, 0.2, 0.3, 0.4}, float[1,2,2] R = {0.5, -0.6, 0.7, 0.8}> {
        y = RNN <hidden_size = 2> (x, W, R) rows = Squeeze (y, one) turned = Transpose <perm = [1, 0, 2]> (rows)
        out = Tanh (turned) }""")
    lowered = rnn_lower.lower(model, target="tract")
    feeds = {"x": np.linspace(-1, 1, 4 * 3 * 2, dtype=np.float32).reshape(4, 3, 2)}
    close(RUNNERS["tract"][1](lowered, feeds), run_onnxruntime(model, feeds))
    assert rnn_lower.prove(model, lowered)


@pytest.mark.parametrize("name", ["openvino", "tract", "onnxruntime", "onnx-reference"])
@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_symbolic_length_and_batch(op, name):
    needs(name)
    for optional in (("B",), OPTIONAL[op]):
        case = Case(op, 17, "bidirectional", optional=optional, dynamic=True)
        lowered = rnn_lower.lower(build(case)[0], target=name)
        for T, N in ((5, 2), (9, 3)):
            other = case.replace(T=T, N=N)
            close(RUNNERS[name][1](lowered, build(other)[1]), expected(other))


@pytest.mark.parametrize("weights", ["input", "computed", "initializer"])
@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_openvino_takes_computed_and_cast_weights_in_a_loop(op, weights):
    """Its Scan sees nothing from outside but constants."""
    needs("openvino")
    dtype = "float16" if weights == "initializer" else "float"
    case = Case(op, 17, "bidirectional", T=20, optional=OPTIONAL[op], weights=weights, dtype=dtype)
    model, feeds = build(case)
    lowered = rnn_lower.lower(model, target="openvino")
    assert "Loop" in [node.op_type for node in lowered.graph.node]
    close(RUNNERS["openvino"][1](lowered, feeds), expected(case), limit=2e-3 if dtype == "float16" else 1e-4)
    with pytest.raises(rnn_lower.UnsupportedError, match=r"use form=.loop. or form=.unroll."):
        rnn_lower.lower(model, target="openvino", form="scan")


@pytest.mark.parametrize("name", [name for name in HERE if name not in SLOW])
@pytest.mark.parametrize("weights", ["input", "computed"])
@pytest.mark.parametrize("op", GATES)
def test_weights_that_are_computed(op, weights, name):
    """Then a bias is a vector that some node computes, which OpenCV 4 takes for a column."""
    needs(name)
    optional = ("B", "P") if op == "LSTM" else ("B",)
    case = Case(op, 17, T=3, optional=optional, weights=weights, lbr=1 if op == "GRU" else None)
    model, feeds = build(case)
    for form in TARGETS[name].forms:
        try:
            lowered = rnn_lower.lower(model, target=name, form=form)
        except rnn_lower.UnsupportedError as refusal:
            assert (name, form) == ("openvino", "scan"), refusal  # noqa: PT017
        else:
            close(RUNNERS[name][1](lowered, feeds), expected(case))


REFUSED = {
    ("gtcrn_stream", "onnx-reference"): "its Conv knows no such groups",
    ("gtcrn_stream", "tinygrad"): "its Gather fails on the model's own indices",
    ("gtcrn_stream", "aidge"): "its Pad takes sizes of another type",
    ("dtln_model_1", "jaxonnxruntime"): "its Slice takes an end of 2^63 - 1 for -1",
    ("gtcrn_stream", "jaxonnxruntime"): "its Slice takes an end of 2^63 - 1 for -1",
    ("gtcrn_stream", "iree"): "it does not compile the model's ConvTranspose",
    ("gtcrn_stream", "opencv@classic"): "its ConvTranspose gives other numbers",
    ("gtcrn_stream", "ncnn"): "pnnx finds no layer for the model's Pad",
    ("gtcrn_stream", "onnxruntime-webgpu"): "other nodes of it give other numbers there, with the fused nodes too",
    ("gtcrn_stream", "onnx2tf"): "it converts no MatMul behind the model's Reshape, with the fused nodes too",
    ("dtln_model_1", "onnx2tf"): "it turns the axes of a result of rank 4",
    ("gtcrn_stream", "rknn"): "the simulator takes minutes",
}
"""Runtimes that fail on other nodes of a model, fused or lowered."""


@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize("stem", ["dtln_model_1", "gtcrn_stream"])
def test_real_models(stem, name, shared):
    """Speech enhancers, whole, on each runtime: two LSTM, and fourteen GRU of which some saturate."""
    if (stem, name) in REFUSED:
        pytest.skip(f"{name}: {REFUSED[stem, name]}")
    needs(name)
    model = onnx.load(shared / "models" / f"{stem}.onnx")
    with np.load(shared / "models" / f"{stem}.inputs.npz") as archive:
        feeds = dict(archive)
    (opset,) = (entry.version for entry in model.opset_import if entry.domain == "")
    first, last = TARGETS[name].opsets
    lowered = rnn_lower.lower(model, target=name, opset=None if first <= opset <= last else 17)
    assert not remaining(lowered)
    wanted = run_onnxruntime(model, feeds)
    close(RUNNERS[name][1](lowered, feeds), wanted, limit_of(name, wanted))


def test_targets_say_what_to_fix():
    symbolic = build(Case("LSTM", 14, dynamic=True))[0]
    for name in ("opencv", "tinygrad", "tvm", "iree", "onnx2torch", "portable"):
        with pytest.raises(rnn_lower.UnsupportedError, match=r"dims=.*T.*16"):
            rnn_lower.lower(symbolic, target=name)
        with pytest.raises(rnn_lower.UnsupportedError, match=r"dims=.*N.*1"):
            rnn_lower.lower(symbolic, target=name, dims={"T": 3})
        assert not remaining(rnn_lower.lower(symbolic, target=name, dims={"T": 3, "N": 2}))
    with pytest.raises(rnn_lower.UnsupportedError, match="opset=17"):
        rnn_lower.lower(build(Case("GRU", 14))[0], target="portable", opset=18)
    assert not remaining(rnn_lower.lower(build(Case("GRU", 22))[0], target="portable", opset=17))
    with pytest.raises(
        rnn_lower.UnsupportedError, match=r"does not support form loop; use form=.scan. or form=.unroll."
    ):
        rnn_lower.lower(build(Case("GRU", 17))[0], target="tract", form="loop")


def test_portable_emits_the_smallest_set_of_operators():
    used = set()
    for case in FEATURES.values():
        used |= {node.op_type for node in rnn_lower.lower(build(case)[0], target="portable").graph.node}
    assert used <= {
        "MatMul", "Add", "Sub", "Mul", "Div", "Sigmoid", "Tanh", "Relu", "Exp", "Log", "Abs", "Min", "Max", "Less", "Where",
        "Slice", "Gather", "Squeeze", "Unsqueeze", "Concat", "Reshape", "Transpose", "Identity",
    }  # fmt: skip


@pytest.mark.parametrize("target", [name for name in MEASURED if name != "onnxruntime"])
def test_every_target_is_right_on_onnxruntime_too(target):
    forms = TARGETS[target].forms
    for (i, (feature, case)), (k, form) in itertools.product(enumerate(FEATURES.items()), enumerate(forms)):
        if feature not in REFUSED_FEATURES.get(target, ()) and (len(forms) == 1 or (i + k) % 2):
            model, feeds = build(case)
            close(run_onnxruntime(rnn_lower.lower(model, target=target, form=form), feeds), expected(case))
