"""Bodies of the operators: put in the place of a node, each computes what the fused operator does, at every opset."""

from __future__ import annotations

import copy

import numpy as np
import onnx
import onnx.inliner
import pytest
from judge import close, expected, run_onnxruntime
from onenode import DTYPES, OPTIONAL, OUTPUTS, Case, attributes, build

import rnn_lower
from rnn_lower.lowering.node import OPERATORS

OPS = ("RNN", "GRU", "LSTM")
OPSETS = tuple(range(9, min(onnx.defs.onnx_opset_version(), 26) + 1))  # the newest that onnxruntime has
WHOLE = {op: ("X", "W", "R", *OPTIONAL[op]) for op in OPS}


def body_of(case: Case, **more: object) -> onnx.FunctionProto:
    """What the text of a node asks for."""
    version = onnx.defs.get_schema(case.op, case.opset, "").since_version
    inputs = ("X", "W", "R", *(name for name in OPTIONAL[case.op] if name in case.optional))
    return rnn_lower.function_body(
        case.op, version, opset=case.opset, inputs=inputs, outputs=case.wanted, dtype=case.dtype, domain="standard",
        **{"hidden_size": case.H, **attributes(case)}, **more,
    )  # fmt: skip


def in_place(model: onnx.ModelProto, body: onnx.FunctionProto) -> onnx.ModelProto:
    """The model with a call of the body where its node was."""
    called = copy.deepcopy(model)
    node = called.graph.node[0]
    node.domain = body.domain
    del node.attribute[:]
    called.functions.append(body)
    called.opset_import.add(domain=body.domain, version=1)
    called.ir_version = max(8, called.ir_version)
    return called


def holds(case: Case, **more: object) -> None:
    model, feeds = build(case)
    called = in_place(model, body_of(case, **more))
    onnx.checker.check_model(called)
    inlined = onnx.inliner.inline_local_functions(called)
    assert not inlined.functions
    assert case.op not in {node.op_type for node in inlined.graph.node}
    close(run_onnxruntime(inlined, feeds), expected(case))
    if case.opset >= 14:  # before, onnxruntime infers wrong types for some calls
        close(run_onnxruntime(called, feeds), expected(case))


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("op", OPS)
def test_every_opset(op, opset):
    holds(Case(op, opset, optional=OPTIONAL[op], direction="bidirectional", clip=0.4))


@pytest.mark.parametrize("form", ["scan", "loop"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", OPS)
def test_directions_and_forms(op, direction, form):
    for optional in ((), ("B",), OPTIONAL[op]):
        holds(Case(op, 17, direction=direction, optional=optional), form=form)


@pytest.mark.parametrize("op", OPS)
def test_unrolled_for_a_known_length(op):
    holds(Case(op, 17, optional=OPTIONAL[op]), form="unroll", seq_length=5)
    holds(Case(op, 17, T=1), seq_length=1)


@pytest.mark.parametrize(
    "case",
    [
        Case("LSTM", 17, input_forget=1),
        Case("LSTM", 17, activations=("HardSigmoid", "Relu", "Softsign"), alpha=(0.3,), beta=(0.4,)),
        Case("GRU", 17, lbr=1, optional=("B",)),
        Case("GRU", 17, lbr=1, layout=1, optional=("B", "initial_h")),
        Case("RNN", 17, activations=("LeakyRelu",), alpha=(0.2,)),
        Case("LSTM", 22, dtype="float16", optional=("B",)),
        Case("LSTM", 22, dtype="double", optional=OPTIONAL["LSTM"]),
        Case("LSTM", 17, outputs=("Y_c",)),
        Case("GRU", 17, outputs=("Y",)),
    ],
    ids=str,
)
def test_attributes(case):
    holds(case)


@pytest.mark.parametrize("T", [1, 7])
@pytest.mark.parametrize("N", [1, 4])
def test_one_body_for_all_sizes(T, N):
    """It knows hidden_size, and finds out time, batch and features when it runs."""
    body = body_of(Case("LSTM", 17, optional=OPTIONAL["LSTM"]))
    case = Case("LSTM", 17, optional=OPTIONAL["LSTM"], T=T, N=N, I=6)
    model, feeds = build(case)
    close(run_onnxruntime(onnx.inliner.inline_local_functions(in_place(model, body)), feeds), expected(case))


@pytest.mark.parametrize("op", OPS)
def test_it_is_the_lowering(op):
    """Bit by bit, of a node of which as little is known."""
    case = Case(op, 17, optional=OPTIONAL[op], weights="input", dynamic=True)
    model, feeds = build(case)
    inlined = onnx.inliner.inline_local_functions(in_place(model, body_of(case)))
    lowered = rnn_lower.lower(model, form="scan")
    for a, b in zip(run_onnxruntime(inlined, feeds), run_onnxruntime(lowered, feeds), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("op", OPS)
def test_formal_inputs_are_the_operator_s(op):
    body = rnn_lower.function_body(op, 14, hidden_size=4)
    assert tuple(body.input) == OPERATORS[op].inputs == WHOLE[op]
    assert tuple(body.output) == OUTPUTS[op]
    assert (body.name, body.domain, list(body.attribute)) == (op, "", [])
    assert [(entry.domain, entry.version) for entry in body.opset_import] == [("", 14)]
    assert rnn_lower.function_body(op, 7, hidden_size=4).opset_import[0].version == 9


def test_nothing_of_any_model_is_in_it():
    """No symbol, which would mean something else where it is inlined, and no size but hidden_size."""
    text = onnx.printer.to_text(body_of(Case("LSTM", 17, optional=OPTIONAL["LSTM"], H=37)))
    assert "seq_length" in text
    assert DTYPES["float"][0] == 1
    sizes = {
        dim.dim_param
        for node in body_of(Case("LSTM", 17)).node
        for a in node.attribute
        for v in a.g.input
        for dim in v.type.tensor_type.shape.dim
    }
    assert sizes <= {""}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("LSTM", 1), "LSTM has version 7 at opset 9, not version 1"),
        (("LSTM", 2), "version 2 of LSTM is unknown; known versions: 1, 7, 14, 22"),
        (("GRU", 7, {"opset": 8}), "a function body needs opset 9 or newer, not 8"),
        (("GRU", 7, {"opset": 14}), "GRU has version 14 at opset 14, not version 7"),
        (("GRU", 22, {"opset": 99}), "opset 99 is unknown; the installed onnx supports opsets up to"),
        (("GRU", 14, {"inputs": ("X", "W", "R", "P")}), "GRU has no input 'P'; it has X, W, R, B"),
        (("GRU", 14, {"outputs": ("Y_c",)}), "GRU has no output 'Y_c'; it has Y, Y_h"),
        (("GRU", 14, {"outputs": ()}), "'outputs' is empty; choose from the outputs of GRU: Y, Y_h"),
        (("GRU", 14, {"dtype": "int32"}), "unknown dtype 'int32'; known dtypes: float, double, float16, bfloat16"),
        (("GRU", 14, {"form": "unroll"}), "form unroll needs a known sequence length; set seq_length"),
        (("GRU", 14, {"form": "spiral"}), "unknown form 'spiral'"),
        (("Elman", 14), "unknown operator 'Elman'"),
        (("GRU", 14, {"input_forget": 1}), "GRU version 14 has no attribute 'input_forget'"),
        (("GRU", 14, {"hidden_size": 0}), "hidden_size is 0; it must be positive"),
        (("GRU", 14, {"inputs": ("X", "W")}), "input R is missing"),
    ],
    ids=str,
)  # fmt: skip
def test_refused(arguments, words):
    *first, options = arguments if isinstance(arguments[-1], dict) else (*arguments, {})
    with pytest.raises(rnn_lower.RnnLowerError) as caught:
        rnn_lower.function_body(*first, **{"hidden_size": 4, **options})
    assert words in str(caught.value)
