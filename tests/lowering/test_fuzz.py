"""Differential tests on random models; every failure that a soak has found is a named test below."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import onnx.backend.test
import pytest
from fuzz import compare, exact, largest_error
from hypothesis import HealthCheck, given, settings
from judge import agrees, close, expected, lowered, remaining, run_onnxruntime
from onenode import OPTIONAL, Case
from strategies import cases, random_case

import rnn_lower
from rnn_lower.proving.model_diff import only_recurrent_nodes_changed


@pytest.mark.parametrize("count", [100, pytest.param(250, marks=pytest.mark.soak)])
def test_random_models(count):
    @settings(max_examples=count, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(cases())
    def compares(drawn):
        case, form = drawn
        compare(case, form)

    compares()


@settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases())
def test_nothing_else_changes_in_random_models(drawn):
    from onenode import build

    case, form = drawn
    model, _ = build(case)
    result = rnn_lower.lower(model, form=form)
    assert only_recurrent_nodes_changed((model, None), (result, None)) == []
    again = rnn_lower.lower(result, form="auto")
    assert again.SerializeToString(deterministic=True) == result.SerializeToString(deterministic=True)
    twice = rnn_lower.lower(model, form=form)
    assert twice.SerializeToString(deterministic=True) == result.SerializeToString(deterministic=True)


@pytest.mark.parametrize("count", [25, pytest.param(60, marks=pytest.mark.soak)])
def test_lowered_is_as_precise_as_fused(count):
    """Error against float64, median over a corpus: at most 1.2 times that of the fused operator, per operator and type."""
    rng = np.random.default_rng(0)
    ratios: dict[tuple[str, str], list[float]] = {}
    while min((len(found) for found in ratios.values()), default=0) < count or len(ratios) < 6:
        case, form = random_case(rng)
        case = case.replace(place="main", layout=0, dtype=str(rng.choice(["float", "float16"])))
        model, feeds = lowered(case, form)
        truth = exact(case)
        ours, theirs = largest_error(run_onnxruntime(model, feeds), truth), largest_error(expected(case), truth)
        if theirs > 0:
            ratios.setdefault((case.op, case.dtype), []).append(ours / theirs)
    assert {key: float(np.median(found)) for key, found in ratios.items() if np.median(found) > 1.2} == {}


with warnings.catch_warnings(), np.errstate(all="ignore"):  # it makes the cases of all operators
    warnings.simplefilter("ignore")
    BACKEND = [
        case
        for case in onnx.backend.test.loader.load_model_tests(kind="node")
        if case.name.startswith(("test_lstm", "test_gru", "test_rnn", "test_simple_rnn"))
    ]


@pytest.mark.parametrize("form", ["scan", "loop", "unroll"])
@pytest.mark.parametrize("case", BACKEND, ids=lambda case: case.name)
def test_backend_node_tests_of_onnx(case, form):
    model = case.model
    result = rnn_lower.lower(model, form=form)
    assert not remaining(result)
    result.ir_version = min(result.ir_version, 10)  # they carry the newest, which onnxruntime may not read yet
    for inputs, outputs in case.data_sets:
        feeds = dict(zip([value.name for value in model.graph.input], inputs, strict=True))
        close(run_onnxruntime(result, feeds), outputs, rtol=1e-3, atol=1e-5)


def test_backend_has_cases():
    assert len(BACKEND) >= 10


# -- found by the soak ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["scan", "loop", "unroll"])
@pytest.mark.parametrize("weights", ["initializer", "input"])
def test_float16_in_layout_1_does_not_crash_onnxruntime(form, weights):
    """Transpose before Cast ended the process while the session was made; Cast comes first since."""
    for op in ("RNN", "GRU", "LSTM"):
        for optional in ((), OPTIONAL[op]):
            agrees(Case(op, 17, layout=1, dtype="float16", weights=weights, optional=optional), form)
