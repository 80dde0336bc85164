"""Y out of the terms of the last equation, stacked, instead of a copy of each state; and a product for each gate."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from habits import with_habits
from judge import close, every_node, expected, lowered, run_onnxruntime
from onenode import OPTIONAL, Case

FORMS = ("scan", "loop")
TERMS = {"LSTM": 2, "GRU": 2, "RNN": 1}
STATES = {"LSTM": 2, "GRU": 1, "RNN": 1}


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> str:
    """onnxruntime's target without the two habits."""
    return with_habits(tmp_path_factory.mktemp("targets") / "plain.toml", stack_terms=False, product_per_gate=False)


def body(model: onnx.ModelProto) -> onnx.GraphProto:
    (loop,) = (node for node in every_node(model) if node.op_type in ("Scan", "Loop"))
    return next(attribute.g for attribute in loop.attribute if attribute.name == "body")


def variants(op: str) -> list[dict[str, object]]:
    other = {"LSTM": ("Sigmoid", "Tanh", "Relu"), "GRU": ("Sigmoid", "Elu"), "RNN": ("Softsign",)}[op]
    extra = {"LSTM": {"input_forget": 1}, "GRU": {"lbr": 1}, "RNN": {"clip": 0.4}}[op]
    return [{}, extra, {"activations": other}, {"direction": "reverse"}, {"dtype": "float16"}, {"layout": 1}, {"N": 1}]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", TERMS)
def test_numbers_are_to_the_last_bit_those_of_copied_states(op, form, plain):
    """What is multiplied or added is the same, in each step or for all at once."""
    for variant, optional, dynamic in itertools.product(variants(op), ((), OPTIONAL[op]), (False, True)):
        case = Case(op, T=4, N=3, H=5, optional=optional, dynamic=dynamic).replace(**variant)
        model, feeds = lowered(case, form)
        copied, _ = lowered(case, form, target=plain)
        for one, other in zip(run_onnxruntime(model, feeds), run_onnxruntime(copied, feeds), strict=True):
            np.testing.assert_array_equal(one, other)
        close(run_onnxruntime(model, feeds), expected(case))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", TERMS)
def test_a_body_gives_its_states_and_the_terms_and_copies_nothing(op, form):
    inside = body(lowered(Case(op, optional=("B",)), form)[0])
    condition = form == "loop"
    assert len(inside.output) == condition + STATES[op] + TERMS[op]
    copies = [node for node in inside.node if node.op_type == "Identity"]
    assert len(copies) == (op == "RNN")  # whose last equation is its only one


@pytest.mark.parametrize("op", TERMS)
def test_nothing_is_stacked_that_nobody_wants(op):
    inside = body(lowered(Case(op, outputs=("Y_h",)), "scan")[0])
    assert len(inside.output) == STATES[op]


@pytest.mark.parametrize("form", FORMS)
def test_a_term_that_is_a_state_is_not_given_twice(form):
    """h(Ct) = 1 Ct + 0 is Ct itself, which the body gives as a state."""
    case = Case("LSTM", activations=("Sigmoid", "Tanh", "Affine"), alpha=(1.0,), beta=(0.0,))
    model, feeds = lowered(case, form)
    outputs = [value.name for value in body(model).output]
    assert len(set(outputs)) == len(outputs)
    close(run_onnxruntime(model, feeds), expected(case))


@pytest.mark.parametrize("form", FORMS)
def test_no_steps_at_all(form):
    for op in TERMS:
        case = Case(op, dynamic=True)
        model, feeds = lowered(case, form)
        empty = {name: value[:0] if name == "X" else value for name, value in feeds.items()}
        assert run_onnxruntime(model, empty)[0].shape == (0, 1, case.N, case.H)


def test_a_gru_has_a_product_for_each_gate_in_a_body_only(plain):
    """A straight line would multiply for the gate r of a zero state, which nobody reads."""
    case = Case("GRU", T=2, optional=("B",))
    for options, products in (({}, 3), ({"target": plain}, 2)):
        inside = body(lowered(case, "scan", **options)[0])
        assert [node.op_type for node in inside.node].count("MatMul") == products
    line, _ = lowered(case.replace(T=1), "unroll")
    assert [node.op_type for node in line.graph.node].count("MatMul") == 2


def test_other_runtimes_keep_what_was_measured_there():
    inside = body(lowered(Case("GRU", T=4), "scan", target="openvino")[0])
    assert [node.op_type for node in inside.node].count("MatMul") == 2
