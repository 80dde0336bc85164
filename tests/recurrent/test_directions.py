"""Both directions in one Scan or Loop, where nodes are the cost: against the fused operator or the oracle."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from judge import close, expected, loops, lowered, run_onnxruntime
from onenode import OPTIONAL, OUTPUTS, Case, build
from onnx import numpy_helper
from paths import ROOT

import rnn_lower
from rnn_lower.lowering.both import KEEP_NAN, NEEDED, SIDE_BY_SIDE_UP_TO
from rnn_lower.lowering.wide import UNITS

SHARED = ("LSTM", "GRU", "RNN")
WAYS = ("side by side", "end to end")
FORMS = ("scan", "loop")
OPSETS = (7, 9, 11, 13, 14, 22, 24)
SMALL = Case(direction="bidirectional", N=1)


def variants(op: str) -> list[dict]:
    names = {"LSTM": ("Sigmoid", "Relu", "Softsign"), "GRU": ("HardSigmoid", "Elu"), "RNN": ("Relu",)}[op]
    alike = {"LSTM": ("Tanh", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Sigmoid"), "RNN": ("Sigmoid",)}[op]
    extra = {"GRU": {"lbr": 1}, "LSTM": {"input_forget": 1}, "RNN": {"I": 1}}[op]
    return [{}, extra, {"clip": 0.3}, {"activations": names * 2}, {"activations": alike * 2}, {"dtype": "double"}]


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    """All may go side by side; that some are left apart, or go end to end, is a matter of speed."""
    for op in SHARED:
        monkeypatch.setitem(SIDE_BY_SIDE_UP_TO, op, 128)
        if request.param == WAYS[0]:
            monkeypatch.setitem(UNITS, op, 0)
    return request.param


def loops_of(way: str, case: Case) -> int:
    """End to end there is a second loop, for NaN; not where NaN may get lost on its way to the last state."""
    keeps = set(case.activations or ()) <= set(KEEP_NAN) and not case.clip
    known = case.weights not in ("input", "computed")
    return 2 if way == WAYS[1] and keeps and known and case.opset >= 9 else 1


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("op", SHARED)
def test_every_input_layout_variant_and_form(op, opset, way):
    """Of two opsets that follow each other each takes every second one."""
    layouts = (0, 1) if opset >= 14 else (0,)
    optional_sets = [(), ("B",), ("sequence_lens",), OPTIONAL[op]]
    all_of_them = list(itertools.product(layouts, optional_sets, variants(op)))
    for layout, optional, variant in all_of_them[OPSETS.index(opset) % 2 :: 2]:
        case = SMALL.replace(op=op, opset=opset, optional=optional, layout=layout, **variant)
        wanted = expected(case)
        for form in FORMS if opset >= 9 else ("loop",):
            model, feeds = lowered(case, form)
            assert loops(model) == loops_of(way, case)
            close(run_onnxruntime(model, feeds), wanted)


@pytest.mark.parametrize("weights", ["input", "constant", "computed", "moved"])
@pytest.mark.parametrize("place", ["main", "if", "loop"])
@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("op", SHARED)
def test_wherever_weights_and_node_are(op, place, weights):
    case = SMALL.replace(op=op, optional=OPTIONAL[op], place=place, weights=weights)
    for form in FORMS:
        model, feeds = lowered(case, form)
        close(run_onnxruntime(model, feeds), expected(case))


@pytest.mark.parametrize("length", [0, 1, 3, 5])
@pytest.mark.parametrize("optional", [(), "all"], ids=["plain", "all inputs"])
@pytest.mark.parametrize("op", SHARED)
def test_an_unknown_length(op, optional, length, way):
    """Lengths of sequences up to seq_length, which is known at run time only, and may be 0."""
    case = SMALL.replace(op=op, optional=OPTIONAL[op] if optional else ())
    model, feeds = build(case)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "T"
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    if length:
        short = case.replace(T=length, lengths=(length,) if optional else None)
        _, feeds = build(short)
        wanted = expected(short)
    else:  # the fused node does not answer: no steps leave the initial states, and with sequence_lens zeros
        feeds = {**feeds, "X": feeds["X"][:0]}
        if optional:
            feeds["sequence_lens"] = np.zeros(1, np.int32)
        zeros = np.zeros((2, 1, case.H), np.float32)
        wanted = [np.zeros((0, 2, 1, case.H), np.float32), *[zeros] * (len(OUTPUTS[op]) - 1)]
    for form in FORMS:
        result = rnn_lower.lower(model, form=form)
        assert loops(result) == loops_of(way, case)
        close(run_onnxruntime(result, feeds), wanted)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("outputs", [("Y",), ("Y_h",), ("Y_c",), ("Y", "Y_c"), ("Y_h", "Y_c")], ids=" ".join)
@pytest.mark.parametrize("optional", [(), ("sequence_lens",)], ids=["whole", "ends early"])
def test_only_wanted_outputs(outputs, optional):
    case = SMALL.replace(outputs=outputs, optional=optional)
    for form in FORMS:
        model, feeds = lowered(case, form)
        close(run_onnxruntime(model, feeds), expected(case))


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("op", SHARED)
def test_what_is_not_a_number_in_one_direction_stays_there(op):
    case = SMALL.replace(op=op, T=6)
    model, feeds = build(case)
    feeds["X"][2] = np.nan
    for form in FORMS:
        y = run_onnxruntime(rnn_lower.lower(model, form=form), feeds)[0]
        spoilt = np.isnan(y).any((2, 3))
        assert spoilt[:, 0].tolist() == [False, False, True, True, True, True]
        assert spoilt[:, 1].tolist() == [True, True, True, False, False, False]


SPOILS = {"nan": np.nan, "inf": np.inf, "minus inf": -np.inf, "overflow": 3e38}


@pytest.mark.parametrize("spoil", SPOILS)
@pytest.mark.parametrize("length", [1, 2, 5, None])
@pytest.mark.parametrize("dtype", ["float", "double"])
@pytest.mark.parametrize("op", SHARED)
def test_what_is_spoilt_is_what_loops_of_their_own_spoil(op, dtype, length, spoil):
    """Whatever X or a first state holds, and wherever; with and without lengths, and of a length that is not known."""
    optional = OPTIONAL[op] if length else tuple(name for name in OPTIONAL[op] if name != "sequence_lens")
    model, feeds = build(SMALL.replace(op=op, T=5, H=4, optional=optional, dtype=dtype))
    if length is None:
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "T"
    else:
        feeds["sequence_lens"][:] = length
    places = [("X", (t, 0, 0)) for t in range(5)]
    places += [(name, (d, 0, 0)) for name in ("initial_h", "initial_c") if name in feeds for d in (0, 1)]
    together, own = (rnn_lower.lower(model, form="scan", **given) for given in ({}, {"target": "openvino"}))
    assert loops(together) == loops(own) == 2
    assert any(node.op_type == "IsNaN" for node in together.graph.node)
    for name, place in places:
        given = {key: value.copy() for key, value in feeds.items()}
        given[name][place] = SPOILS[spoil]
        close(run_onnxruntime(together, given), run_onnxruntime(own, given))


@pytest.mark.parametrize("spoil", ["nan", "inf", "minus inf"])
@pytest.mark.parametrize("op", SHARED)
def test_weights_that_are_spoilt_spoil_what_they_do_in_loops_of_their_own(op, spoil):
    optional = tuple(name for name in OPTIONAL[op] if name != "sequence_lens")
    model, feeds = build(SMALL.replace(op=op, T=4, optional=optional))
    for tensor in model.graph.initializer:
        weights = numpy_helper.to_array(tensor).copy()
        if weights.dtype != np.float32:
            continue
        weights[1].flat[0] = SPOILS[spoil]
        mutant = onnx.ModelProto()
        mutant.CopyFrom(model)
        (place,) = (place for place, one in enumerate(mutant.graph.initializer) if one.name == tensor.name)
        mutant.graph.initializer[place].CopyFrom(numpy_helper.from_array(weights, tensor.name))
        together, own = (rnn_lower.lower(mutant, form="scan", **given) for given in ({}, {"target": "openvino"}))
        assert any(node.op_type == "IsNaN" for node in together.graph.node)
        close(run_onnxruntime(together, feeds), run_onnxruntime(own, feeds))


@pytest.mark.parametrize(
    "apart",
    [
        {"N": 2},
        {"dynamic": True},
        {"H": SIDE_BY_SIDE_UP_TO["LSTM"] + 1},
        {"activations": ("Sigmoid", "Tanh", "Tanh", "Sigmoid", "Relu", "Tanh")},
        {"op": "RNN", "H": UNITS["RNN"] // 2 + 1},
        {"op": "GRU", "clip": 0.3},
        {"op": "GRU", "activations": ("HardSigmoid", "Tanh") * 2},
        {"op": "GRU", "weights": "input"},
        {"op": "RNN", "weights": "computed"},
        {"op": "RNN", "opset": 8},
        {"op": "GRU", "opset": 7, "optional": ("sequence_lens",)},
    ],
    ids=str,
)
def test_directions_that_have_loops_of_their_own(apart):
    case = SMALL.replace(**apart)
    for form in FORMS if case.opset >= 9 else ("loop",):
        model, feeds = lowered(case, form)
        assert loops(model) == 2
        assert not any(node.op_type == "IsNaN" for node in model.graph.node)
        close(run_onnxruntime(model, feeds), expected(case))


@pytest.mark.parametrize("missing", NEEDED)
@pytest.mark.parametrize("op", SHARED)
def test_where_nan_cannot_be_seen(op, missing, tmp_path):
    text = (ROOT / "rnn_lower" / "targets" / "onnxruntime.toml").read_text(encoding="utf-8")
    (tmp_path / "mine.toml").write_text(f'avoid = ["{missing}"]\n{text}', encoding="utf-8")
    case = SMALL.replace(op=op, optional=("sequence_lens",))
    model, feeds = lowered(case, "scan", target=str(tmp_path / "mine.toml"))
    assert loops(model) == (1 if op == "LSTM" else 2)
    close(run_onnxruntime(model, feeds), expected(case))


def test_only_onnxruntime_gets_shared_loops():
    model, _ = build(SMALL)
    for one in (rnn_lower.lower(model), rnn_lower.lower(model, target="onnxruntime")):
        assert any(node.op_type == "IsNaN" for node in one.graph.node)
    own = rnn_lower.lower(model, form="scan", target="openvino")
    assert loops(own) == 2
    assert not any(node.op_type == "If" for node in own.graph.node)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("op", SHARED)
def test_they_are_proved(op, form):
    for optional in ((), OPTIONAL[op]):
        model, _ = build(SMALL.replace(op=op, optional=optional))
        proof = rnn_lower.prove(model, rnn_lower.lower(model, form=form))
        assert proof.ok, proof
