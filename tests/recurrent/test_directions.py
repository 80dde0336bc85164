"""Both directions in one Scan or Loop, where nodes are the cost: against the fused operator or the oracle."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from judge import close, expected, loops, lowered, run_onnxruntime
from onenode import OPTIONAL, OUTPUTS, Case, build

import rnn_lower
from rnn_lower.recurrent.directions import SIDE_BY_SIDE

SHARED = ("LSTM", "GRU")
FORMS = ("scan", "loop")
OPSETS = (7, 9, 11, 13, 14, 22, 24)
SMALL = Case(direction="bidirectional", N=1)


def variants(op: str) -> list[dict]:
    names = {"LSTM": ("Sigmoid", "Relu", "Softsign"), "GRU": ("HardSigmoid", "Elu")}[op]
    alike = {"LSTM": ("Tanh", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Sigmoid")}[op]
    extra = {"GRU": {"lbr": 1}, "LSTM": {"input_forget": 1}}[op]
    return [{}, extra, {"clip": 0.3}, {"activations": names * 2}, {"activations": alike * 2}, {"dtype": "double"}]


@pytest.fixture
def both_cells(monkeypatch):
    """GRU may go side by side as well; that it is left apart is a matter of speed."""
    monkeypatch.setitem(SIDE_BY_SIDE, "GRU", 128)


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.usefixtures("both_cells")
@pytest.mark.parametrize("op", SHARED)
def test_every_input_layout_variant_and_form(op, opset):
    """Of two opsets that follow each other each takes every second one."""
    layouts = (0, 1) if opset >= 14 else (0,)
    optional_sets = [(), ("B",), ("sequence_lens",), OPTIONAL[op]]
    all_of_them = list(itertools.product(layouts, optional_sets, variants(op)))
    for layout, optional, variant in all_of_them[OPSETS.index(opset) % 2 :: 2]:
        case = SMALL.replace(op=op, opset=opset, optional=optional, layout=layout, **variant)
        wanted = expected(case)
        for form in FORMS if opset >= 9 else ("loop",):
            model, feeds = lowered(case, form)
            assert loops(model) == 1
            close(run_onnxruntime(model, feeds), wanted)


@pytest.mark.parametrize("weights", ["input", "constant", "computed", "moved"])
@pytest.mark.parametrize("place", ["main", "if", "loop"])
@pytest.mark.usefixtures("both_cells")
@pytest.mark.parametrize("op", SHARED)
def test_wherever_weights_and_node_are(op, place, weights):
    case = SMALL.replace(op=op, optional=OPTIONAL[op], place=place, weights=weights)
    for form in FORMS:
        model, feeds = lowered(case, form)
        close(run_onnxruntime(model, feeds), expected(case))


@pytest.mark.parametrize("length", [0, 1, 3, 5])
@pytest.mark.parametrize("optional", [(), "all"], ids=["plain", "all inputs"])
@pytest.mark.usefixtures("both_cells")
@pytest.mark.parametrize("op", SHARED)
def test_an_unknown_length(op, optional, length):
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
        assert loops(result) == 1
        close(run_onnxruntime(result, feeds), wanted)


@pytest.mark.parametrize("outputs", [("Y",), ("Y_h",), ("Y", "Y_c")], ids=" ".join)
def test_only_wanted_outputs(outputs):
    case = SMALL.replace(outputs=outputs, optional=("sequence_lens",))
    for form in FORMS:
        model, feeds = lowered(case, form)
        close(run_onnxruntime(model, feeds), expected(case))


@pytest.mark.usefixtures("both_cells")
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


@pytest.mark.parametrize(
    "apart",
    [
        {"N": 2},
        {"dynamic": True},
        {"H": SIDE_BY_SIDE["LSTM"] + 1},
        {"activations": ("Sigmoid", "Tanh", "Tanh", "Sigmoid", "Relu", "Tanh")},
        {"op": "RNN"},
        {"op": "GRU"},
    ],
    ids=["two rows", "unknown batch", "large", "other activations", "RNN", "GRU"],
)
def test_directions_that_have_loops_of_their_own(apart):
    model, feeds = lowered(SMALL.replace(**apart), "scan")
    assert loops(model) == 2
    close(run_onnxruntime(model, feeds), expected(SMALL.replace(**apart)))


def test_only_onnxruntime_gets_shared_loops():
    model, _ = build(SMALL)
    assert loops(rnn_lower.lower(model)) == loops(rnn_lower.lower(model, target="onnxruntime")) == 1
    assert loops(rnn_lower.lower(model, form="scan", target="openvino")) == 2


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.usefixtures("both_cells")
@pytest.mark.parametrize("op", SHARED)
def test_they_are_proved(op, form):
    for optional in ((), OPTIONAL[op]):
        model, _ = build(SMALL.replace(op=op, optional=optional))
        proof = rnn_lower.prove(model, rnn_lower.lower(model, form=form))
        assert proof.ok, proof
