"""sequence_lens around the loop: one row is cut, several go in the order of their own steps; no step chooses."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from habits import with_habits
from judge import close, every_node, expected, lowered, run_onnxruntime
from onenode import OPTIONAL, OUTPUTS, Case, build
from onnx import numpy_helper
from paths import ROOT

import rnn_lower
from rnn_lower.lowering.wide import UNITS
from rnn_lower.modelio import external_data

LOOPS = ("scan", "loop")
DIRECTIONS = (None, "reverse", "bidirectional")


@pytest.fixture(scope="module")
def choosing(tmp_path_factory) -> str:
    """onnxruntime's target, where each step chooses."""
    return with_habits(tmp_path_factory.mktemp("targets") / "choosing.toml", lengths_around_loop=False)


def bodies(model: onnx.ModelProto) -> list[onnx.GraphProto]:
    loops = (node for node in every_node(model) if node.op_type in ("Scan", "Loop"))
    return [attribute.g for loop in loops for attribute in loop.attribute if attribute.name == "body"]


def cases(op: str) -> list[Case]:
    extra = {"LSTM": {"input_forget": 1}, "GRU": {"lbr": 1}, "RNN": {"clip": 0.4}}[op]
    variants = [
        {},
        {"T": 1, "lengths": (0, 1, 0)},
        {"T": 1, "lengths": (0, 1, 0), "lengths_as": "initializer"},
        extra,
        {"dtype": "float16"},
        {"layout": 1},
        {"lengths_as": "initializer"},
        {"lengths_as": "initializer", "lengths": (0, 4, 2)},
        {"lengths_as": "initializer", "lengths": (0, 2, 1)},
        {"lengths": (1, 2, 0)},
        {"opset": 9},
        {"place": "if"},
    ]
    every = itertools.product(variants, DIRECTIONS, (1, 3), (False, True))
    return [
        Case(op, T=4, N=N, H=5, direction=direction, dynamic=dynamic, optional=OPTIONAL[op])
        .replace(**variant)
        for variant, direction, N, dynamic in every
    ]  # fmt: skip


@pytest.mark.parametrize("form", LOOPS)
@pytest.mark.parametrize("op", OUTPUTS)
def test_numbers_are_to_the_last_bit_those_of_steps_that_choose(op, form, choosing, monkeypatch):
    monkeypatch.setitem(UNITS, op, 0)  # steps that choose have each direction in a cell of its own
    for case in cases(op):
        model, feeds = lowered(case, form)
        other, _ = lowered(case, form, target=choosing)
        for one, two in zip(run_onnxruntime(model, feeds), run_onnxruntime(other, feeds), strict=True):
            np.testing.assert_array_equal(one, two)
        close(run_onnxruntime(model, feeds), expected(case))


@pytest.mark.parametrize("form", LOOPS)
@pytest.mark.parametrize("op", OUTPUTS)
def test_any_of_the_outputs_may_be_wanted(op, form):
    for count in range(1, 1 << len(OUTPUTS[op])):
        wanted = tuple(name for place, name in enumerate(OUTPUTS[op]) if count >> place & 1)
        for direction, N, optional in itertools.product(DIRECTIONS, (1, 3), (("sequence_lens",), OPTIONAL[op])):
            case = Case(op, T=5, N=N, direction=direction, optional=optional, outputs=wanted)
            model, feeds = lowered(case, form)
            close(run_onnxruntime(model, feeds), expected(case))


@pytest.mark.parametrize("form", LOOPS)
@pytest.mark.parametrize("op", OUTPUTS)
def test_no_step_chooses(op, form):
    for case in cases(op):
        model, _ = lowered(case, form)
        assert bodies(model)
        assert not [node for body in bodies(model) for node in body.node if node.op_type == "Where"]


@pytest.mark.parametrize("form", LOOPS)
@pytest.mark.parametrize("N", [1, 3])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_lengths_beyond_the_limits_are_the_limits(direction, dynamic, N, form):
    case = Case("LSTM", 14, optional=OPTIONAL["LSTM"], N=N, direction=direction, dynamic=dynamic)
    model, feeds = lowered(case, form)
    for beyond, within in ((-3, 0), (9, 5), (np.iinfo(np.int32).max, 5), (np.iinfo(np.int32).min, 0)):
        found = []
        for first in (beyond, within):
            feeds["sequence_lens"] = np.array([first, 9, 2][:N], np.int32)
            found.append(run_onnxruntime(model, feeds))
        for one, two in zip(*found, strict=True):
            np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("form", LOOPS)
@pytest.mark.parametrize("T", [1, 4])
@pytest.mark.parametrize("N", [1, 3])
@pytest.mark.parametrize("op", OUTPUTS)
def test_known_lengths_beyond_the_limits_are_the_limits(op, N, T, form):
    for direction, lengths, within in itertools.product(DIRECTIONS, ((-2, 9, 0), (0, -1, -1)), (True, False)):
        limits = tuple(min(max(length, 0), T) for length in lengths)
        case = Case(op, T=T, N=N, direction=direction, optional=OPTIONAL[op], lengths_as="initializer")
        model, feeds = lowered(case.replace(lengths=limits if within else lengths), form)
        close(run_onnxruntime(model, feeds), expected(case.replace(lengths=limits)))


@pytest.mark.parametrize("opset", [7, 8])
@pytest.mark.parametrize("op", OUTPUTS)
def test_known_lengths_before_there_was_a_where(op, opset):
    for direction, N in itertools.product(DIRECTIONS, (1, 3)):
        case = Case(op, opset, direction, T=4, N=N, H=5, optional=OPTIONAL[op], lengths=(2, 4, 0))
        model, feeds = build(case.replace(lengths_as="initializer"))
        (lengths,) = (tensor for tensor in model.graph.initializer if tensor.name == "sequence_lens")
        known = onnx.helper.make_node("Constant", [], ["sequence_lens"], value=lengths)
        for listed in (model.graph.initializer, model.graph.input):
            external_data.remove_if(listed, lambda value: value.name == "sequence_lens")
        model.graph.node.insert(0, known)
        result = rnn_lower.lower(model, form="loop")
        onnx.checker.check_model(result, full_check=True)
        close(run_onnxruntime(result, feeds), expected(case))


@pytest.mark.parametrize("form", LOOPS)
@pytest.mark.parametrize("N", [1, 2])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_what_lies_in_the_padding_reaches_nothing(direction, N, form):
    case = Case("GRU", 14, optional=("B", "sequence_lens"), T=6, N=N, direction=direction)
    model, feeds = lowered(case, form)
    feeds["sequence_lens"] = np.array([2, 0][:N], np.int32)
    clean = run_onnxruntime(model, feeds)
    feeds["X"][2:, 0], feeds["X"][:, 1:] = np.nan, np.inf
    for one, two in zip(clean, run_onnxruntime(model, feeds), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("form", LOOPS)
@pytest.mark.parametrize("N", [1, 2])
@pytest.mark.parametrize("op", OUTPUTS)
def test_other_lengths_of_one_model(op, N, form):
    """Its sizes are free, and a sequence may have no steps at all."""
    case = Case(op, T=6, N=N, direction="bidirectional", dynamic=True, optional=OPTIONAL[op])
    model, _ = lowered(case, form)
    for T, rows in ((0, N), (1, N), (3, 1), (7, 4)):
        close(run_onnxruntime(model, build(case.replace(T=T, N=rows))[1]), expected(case.replace(T=T, N=rows)))


@pytest.mark.parametrize("sizes", [{"X[0]": 5}, {"X[1]": 3}, {}], ids=["T known", "N known", "none known"])
@pytest.mark.parametrize("form", LOOPS)
@pytest.mark.parametrize("op", OUTPUTS)
def test_some_sizes_are_known(op, form, sizes):
    case = Case(op, T=5, N=3, direction="bidirectional", dynamic=True, optional=OPTIONAL[op])
    model, feeds = lowered(case, form, dims=sizes)
    close(run_onnxruntime(model, feeds), expected(case))
    feeds["sequence_lens"] = np.array([0, -1, 3], np.int32)
    close(run_onnxruntime(model, feeds), expected(case.replace(lengths=(0, 0, 3))))


@pytest.mark.parametrize("form", LOOPS)
@pytest.mark.parametrize("N", [1, 3])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_without_features(direction, N, form):
    """X has no columns, so what is left are biases and states; and as many as anybody likes."""
    for columns in (0, 2):
        case = Case("GRU", T=4, N=N, I=columns, direction=direction, optional=OPTIONAL["GRU"], weights="input")
        model, feeds = build(case)
        if columns:
            for value in (value for value in model.graph.input if value.name in "XW"):
                value.type.tensor_type.shape.dim[2].dim_param = "features"
        close(run_onnxruntime(rnn_lower.lower(model, form=form), feeds), expected(case))


@pytest.mark.parametrize("N", [1, 3])
@pytest.mark.parametrize("op", OUTPUTS)
def test_a_sequence_that_is_known_to_be_empty_has_no_loop(op, N):
    case = Case(op, T=0, N=N, direction="bidirectional", optional=OPTIONAL[op])
    for form in LOOPS:
        model, _ = lowered(case, form)
        assert bodies(model) == []
        assert not any(node.op_type in ("If", "ReduceMax") for node in model.graph.node)


def test_zeros_are_not_kept_in_the_file():
    model, _ = build(Case("LSTM", T=4096, N=8, H=16, optional=("sequence_lens",), lengths_as="initializer"))
    assert rnn_lower.lower(model, form="scan").ByteSize() < model.ByteSize() + 200_000


@pytest.mark.parametrize("missing", ["ConstantOfShape", "ReduceMax", "If"])
def test_where_an_operator_is_missing(missing, tmp_path):
    text = (ROOT / "rnn_lower" / "targets" / "onnxruntime.toml").read_text(encoding="utf-8")
    (tmp_path / "mine.toml").write_text(f'avoid = ["{missing}"]\n{text}', encoding="utf-8")
    for N in (1, 3):
        case = Case("LSTM", T=5, N=N, direction="bidirectional", optional=OPTIONAL["LSTM"])
        model, feeds = lowered(case, "scan", target=str(tmp_path / "mine.toml"))
        assert not any(node.op_type == missing for node in every_node(model))
        close(run_onnxruntime(model, feeds), expected(case))


@pytest.mark.parametrize("form", LOOPS)
@pytest.mark.parametrize("op", OUTPUTS)
def test_nothing_is_emitted_that_nobody_reads(op, form):
    for case in cases(op):
        for outputs in ((), ("Y",), ("Y_h",)):
            model, _ = lowered(case.replace(outputs=outputs or case.outputs), form)
            nodes = every_node(model)
            bodies_of = [attribute.g for node in nodes for attribute in node.attribute if attribute.HasField("g")]
            read = {name for node in nodes for name in node.input}
            read |= {value.name for graph in (model.graph, *bodies_of) for value in graph.output}
            assert [node.name for node in nodes if not read & set(node.output)] == [], case


@pytest.mark.parametrize("lengths_as", ["input", "initializer"])
@pytest.mark.parametrize(("N", "dynamic", "steps"), [(1, False, 3), (3, False, 4), (3, True, 9)])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_longest_row_ends_the_loop(direction, N, dynamic, steps, lengths_as):
    """Where X may be padded; a length that is free is taken for that of the longest row."""
    case = Case("LSTM", T=9, N=N, lengths=(3, 4, 0), optional=("sequence_lens",), direction=direction, dynamic=dynamic)
    model, feeds = lowered(case.replace(lengths_as=lengths_as), "scan")
    (scan, *_) = (node for node in every_node(model) if node.op_type == "Scan")
    projected = onnx.helper.make_tensor_value_info(scan.input[-1], onnx.TensorProto.FLOAT, None)
    model.graph.output.append(projected)
    *found, read = run_onnxruntime(model, feeds)
    assert len(read) == steps
    close(found, expected(case))


@pytest.mark.parametrize("N", [1, 3])
@pytest.mark.parametrize("op", OUTPUTS)
def test_it_is_proved(op, N):
    for direction, form, dynamic in itertools.product(DIRECTIONS, LOOPS, (False, True)):
        model, _ = build(Case(op, T=5, N=N, H=2, direction=direction, optional=OPTIONAL[op], dynamic=dynamic))
        report = rnn_lower.prove(model, rnn_lower.lower(model, form=form))
        assert report.ok, report.nodes


@pytest.mark.parametrize("N", [1, 3])
@pytest.mark.parametrize("direction", DIRECTIONS[:2])
def test_integers_that_are_off_by_one_are_no_proof(direction, N):
    """Each constant: limits, last times, places, axes."""
    model, _ = build(Case("RNN", T=5, N=N, direction=direction, optional=("sequence_lens", "initial_h")))
    result = rnn_lower.lower(model, form="scan")
    seen = 0
    for place, tensor in enumerate(result.graph.initializer):
        if tensor.data_type not in (onnx.TensorProto.INT64, onnx.TensorProto.INT32):
            continue
        mutant = onnx.ModelProto()
        mutant.CopyFrom(result)
        array = numpy_helper.to_array(tensor).copy()
        array.flat[0] += 1
        mutant.graph.initializer[place].CopyFrom(numpy_helper.from_array(array, tensor.name))
        assert rnn_lower.prove(model, mutant).nodes[0].verdict != "equal", tensor.name
        seen += 1
    assert seen >= (1 if N == 1 else 2)
