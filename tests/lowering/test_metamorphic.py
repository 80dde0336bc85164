"""Relations that hold without any oracle: each is checked on lowered models only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
import pytest
from judge import close, lowered, run_onnxruntime
from onenode import OPTIONAL, OUTPUTS, Case, build
from onnx import numpy_helper

import rnn_lower
from rnn_lower.ir import protobuf

OPS = ("RNN", "GRU", "LSTM")
FORMS = ("scan", "loop", "unroll")
EXACT = {"rtol": 0, "atol": 0}
CLOSE = {"rtol": 1e-5, "atol": 1e-6}

Values = dict[str, np.ndarray]


def run(case: Case, form: str, feeds: Values) -> Values:
    """Outputs by name, all weights being inputs."""
    model, names = lowered(case.replace(weights="input"), form)
    results = run_onnxruntime(model, {name: feeds[name] for name in names})
    return dict(zip([value.name for value in model.graph.output], results, strict=True))


def feeds_of(case: Case) -> Values:
    return lowered(case.replace(weights="input"))[1]


def same(a: Values, b: Values, rtol: float, atol: float) -> None:
    assert a.keys() == b.keys()
    close(list(a.values()), [b[name] for name in a], rtol, atol)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", OPS)
def test_layout_1_is_layout_0_transposed(op, form):
    case = Case(op, 14, "bidirectional", optional=OPTIONAL[op])
    feeds = feeds_of(case)
    turned = dict(feeds)
    for name in ("X", "initial_h", "initial_c"):
        if name in feeds:
            turned[name] = feeds[name].swapaxes(0, 1)
    plain, batch_first = run(case, form, feeds), run(case.replace(layout=1), form, turned)
    assert np.array_equal(plain["Y"].transpose(2, 0, 1, 3), batch_first["Y"])
    for name in OUTPUTS[op][1:]:
        assert np.array_equal(plain[name].swapaxes(0, 1), batch_first[name])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", OPS)
def test_reverse_is_forward_on_each_sequence_reversed(op, form):
    case = Case(op, 14, "forward", optional=OPTIONAL[op], T=6, N=3, lengths=(6, 2, 4))
    feeds = feeds_of(case)

    def backwards(x: np.ndarray) -> np.ndarray:
        result = x.copy()
        for n, length in enumerate((6, 2, 4)):
            result[:length, ..., n, :] = x[:length, ..., n, :][::-1]
        return result

    forward = run(case, form, {**feeds, "X": backwards(feeds["X"])})
    reverse = run(case.replace(direction="reverse"), form, feeds)
    same({**forward, "Y": backwards(forward["Y"])}, reverse, **CLOSE)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", OPS)
def test_bidirectional_is_both_directions(op, form):
    case = Case(op, 14, "bidirectional", optional=OPTIONAL[op])
    feeds = feeds_of(case)
    both = run(case, form, feeds)
    for d, direction in enumerate(("forward", "reverse")):
        own = {name: v if name in ("X", "sequence_lens") else v[d : d + 1] for name, v in feeds.items()}
        one = run(case.replace(direction=direction), form, own)
        assert np.array_equal(both["Y"][:, d : d + 1], one["Y"])
        for name in OUTPUTS[op][1:]:
            assert np.array_equal(both[name][d : d + 1], one[name])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", OPS)
def test_a_batch_is_its_rows(op, form):
    case = Case(op, 14, "bidirectional", optional=OPTIONAL[op], N=4)
    feeds = feeds_of(case)
    whole = run(case, form, feeds)
    axis = {"X": 1, "sequence_lens": 0, "initial_h": 1, "initial_c": 1}
    for n in range(4):
        row = {name: v.take([n], axis[name]) if name in axis else v for name, v in feeds.items()}
        same({name: v.take([n], v.ndim - 2) for name, v in whole.items()}, run(case.replace(N=1), form, row), **CLOSE)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", OPS)
def test_padding_never_matters(op, direction, form):
    case = Case(op, 14, direction, optional=OPTIONAL[op], T=6, N=3, lengths=(6, 0, 3))
    feeds = feeds_of(case)
    clean = run(case, form, feeds)
    for poison in (0.0, 1e30, np.nan, np.inf, -np.inf):
        x = feeds["X"].copy()
        x[:, 1] = poison
        x[3:, 2] = poison
        same(clean, run(case, form, {**feeds, "X": x}), **EXACT)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", OPS)
def test_two_chunks_are_one_run(op, form):
    states = tuple(name for name in ("initial_h", "initial_c") if name in OPTIONAL[op])
    case = Case(op, 14, optional=("B", *states), T=7)
    feeds = feeds_of(case)
    whole = run(case, form, feeds)
    first = run(case.replace(T=3), form, {**feeds, "X": feeds["X"][:3]})
    carried = {name: first[f"Y_{name[-1]}"] for name in states}
    second = run(case.replace(T=4), form, {**feeds, **carried, "X": feeds["X"][3:]})
    same({**second, "Y": np.concatenate([first["Y"], second["Y"]])}, whole, **CLOSE)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", OPS)
def test_all_forms_agree_bit_for_bit(op, direction):
    """With initial states all forms emit the same operators per step; onnxruntime must not fuse MatMul and Add apart."""
    for optional in (OPTIONAL[op], tuple(name for name in OPTIONAL[op] if name != "sequence_lens")):
        case = Case(op, 14, direction, optional=optional)
        feeds = feeds_of(case)
        results = [run(case, form, feeds) for form in FORMS]
        same(results[0], results[1], **EXACT)
        same(results[0], results[2], **CLOSE)


def parsed(text: str, opset: int = 17) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {text}')


RECURRENT = build(Case("LSTM", 17, "bidirectional", dynamic=True, optional=OPTIONAL["LSTM"]))[0]
EMITTING: dict[str, tuple[onnx.ModelProto, dict[str, Any]]] = {
    **{form: (RECURRENT, {"form": form}) for form in ("scan", "loop")},
    "unroll": (RECURRENT, {"form": "unroll", "dims": {"T": 3, "N": 2}}),
    "of a function": (RECURRENT, {"as_function": True}),
    "for a target": (RECURRENT, {"target": "openvino", "dims": {"T": 3, "N": 2}}),
    "another opset": (RECURRENT, {"opset": 8}),
    "a constant of an old opset": (
        parsed("g (float[2] x) => (float[2] y, int64[1] k) { k = Constant <value = int64[1] {2}> () y = Neg (x) }"),
        {"opset": 8},
    ),
    "parts of a sequence": (
        parsed("""g (float[6,4] x) => (float[u,4] y) <int64 one = {1}, int64 three = {3}> {
            s = SplitToSequence <axis = 0> (x, three) y = SequenceAt (s, one) }"""),
        {"target": "tract", "legalize_all": True},
    ),
    "an unrolled loop": (
        parsed("""g (float[2] x) => (float[2] y, float[3,2] z) <int64 most = {3}> {
            y, z = Loop (most, , x) <body = step (int64 i, bool on, float[2] s) => (bool go, float[2] t, float[2] u) {
                t = Tanh (s) u = Neg (s) go = Identity (on) }> }"""),
        {"loops": True},
    ),
    "a collected list": (
        parsed("""g (float[2] x) => (float[3,2] y) <int64 most = {3}> {
            none = SequenceEmpty () h, all = Loop (most, , x, none) <body = step (int64 i, bool on, float[2] s, seq(float[2]) l)
                => (bool go, float[2] t, seq(float[2]) m) { t = Tanh (s) m = SequenceInsert (l, t) go = Identity (on) }>
            y = ConcatFromSequence <axis = 0, new_axis = 1> (all) }"""),
        {"loops": True},
    ),
    "a Pad of an opset that lacks its axes": (
        parsed("g (float[4,3] x) => (u) <int64[2] p = {1, 1}, float v = {0}, int64[1] a = {1}> { u = Pad (x, p, v, a) }",
               18),
        {"target": "tract", "legalize_all": True, "opset": 17},
    ),
}  # fmt: skip
"""Models, and the options with which `lower` writes nodes into them."""


def names_in(model: onnx.ModelProto) -> set[str]:
    return {name for holder in protobuf.holders(model) for name in protobuf.names_of(holder) if name}


def with_weights_called(model: onnx.ModelProto, names: Iterable[str]) -> onnx.ModelProto:
    """A copy that also returns the sum of weights with these names."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    weights = [numpy_helper.from_array(np.array([number], np.float32), name) for number, name in enumerate(names)]
    copy.graph.initializer.extend(weights)
    copy.graph.node.append(onnx.helper.make_node("Sum", [tensor.name for tensor in weights], ["sum of weights"]))
    copy.graph.output.append(onnx.helper.make_tensor_value_info("sum of weights", onnx.TensorProto.FLOAT, [1]))
    return copy


@pytest.mark.parametrize("what", EMITTING)
def test_names_that_lowering_would_choose_may_be_those_of_the_model(what):
    model, options = EMITTING[what]
    new = names_in(rnn_lower.lower(model, **options)) - names_in(model)
    assert new
    model = with_weights_called(model, sorted(new))
    lowered = rnn_lower.lower(model, **options)
    assert {tensor.name for tensor in model.graph.initializer} >= new
    assert rnn_lower.check(model, lowered, runs=1)


STREAMED = {
    "a recurrent node": build(Case("LSTM", 17, dynamic=True))[0],
    "a window": parsed("""g (float[1,2,T] x) => (float[1,1,u] y) <float[1,2,3] w = {1, 2, 3, 4, 5, 6}> {
        y = Conv <pads = [2, 0]> (x, w) }"""),
    "frames that a Pad crops": parsed("""g (float[1,2,T] x) => (float[1,2,u] y) <int64[6] p = {0, 0, 2, 0, 0, -2}> {
        y = Pad (x, p) }"""),
    "frames that a ConvTranspose crops": parsed("""g (float[1,2,T] x) => (float[1,1,u] y)
        <float[2,1,4] w = {1, 2, 3, 4, 5, 6, 7, 8}> { y = ConvTranspose <strides = [2], pads = [0, 2]> (x, w) }"""),
}  # fmt: skip


@pytest.mark.parametrize("what", STREAMED)
def test_names_that_a_stream_would_choose_may_be_those_of_the_model(what):
    model = STREAMED[what]
    new = names_in(rnn_lower.stream(model, axis="T")) - names_in(model)
    assert new
    model = with_weights_called(model, sorted(new))
    assert rnn_lower.prove_streaming(model, rnn_lower.stream(model, axis="T")).ok
