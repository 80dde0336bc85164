"""Versions read off the schemas: none unreviewed, and nothing listed as emitted that never is."""

from __future__ import annotations

import itertools

import onnx
import pytest
import quantized
from features import FEATURES, REFUSED_FEATURES
from judge import every_node, remaining
from onenode import OPTIONAL, Case, build
from strategies import ACTIVATIONS, MEASURED

import rnn_lower
from rnn_lower.builder import versions
from rnn_lower.builder.versions import EMITTED, NEWEST_REVIEWED_OPSET, exists, input_index, same_signature
from rnn_lower.lowering.node import OPERATORS
from rnn_lower.options import OP_TYPES
from rnn_lower.targeting import TARGETS

NEVER_EMITTED = (
    "Bernoulli", "CenterCropPad", "Col2Im", "ConcatFromSequence", "CumProd", "Det", "GlobalLpPool", "LpPool",
    "MaxRoiPool", "MaxUnpool", "MeanVarianceNormalization", "MelWeightMatrix", "NegativeLogLikelihoodLoss",
    "Optional", "OptionalGetElement", "OptionalHasElement", "ReverseSequence", "RoiAlign", "RotaryEmbedding", "STFT",
    "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceLength",
    "SequenceMap", "SoftmaxCrossEntropyLoss", "SplitToSequence", "StringNormalizer", "TfIdfVectorizer", "Unique",
)  # fmt: skip
"""Operators of other nodes that targets avoid; lowering never emits them."""


@pytest.mark.parametrize("op_type", EMITTED)
def test_no_emitted_operator_has_an_unreviewed_version(op_type):
    """Fails when the installed onnx brings a new version: read its changelog, then raise NEWEST_REVIEWED_OPSET."""
    newest = onnx.defs.get_schema(op_type, onnx.defs.onnx_opset_version(), "").since_version
    assert newest <= NEWEST_REVIEWED_OPSET


@pytest.mark.parametrize(
    ("op_type", "parameter", "since", "index"),
    [
        ("Clip", "min", 11, 1), ("Clip", "max", 11, 2), ("Reshape", "shape", 5, 1), ("Slice", "starts", 10, 1),
        ("Slice", "axes", 10, 3), ("Split", "split", 13, 1), ("Squeeze", "axes", 13, 1), ("Unsqueeze", "axes", 13, 1),
    ],
)  # fmt: skip
def test_when_an_attribute_became_an_input(op_type, parameter, since, index):
    assert input_index(op_type, since - 1, parameter) is None
    assert input_index(op_type, since, parameter) == index


@pytest.mark.parametrize(("op_type", "since"), [("Scan", 9), ("Tile", 6), ("Where", 9), ("Range", 11), ("Add", 1)])
def test_the_first_opset_of_an_operator(op_type, since):
    assert not exists(op_type, since - 1)
    assert exists(op_type, since)


@pytest.mark.parametrize(
    ("op_type", "one", "other", "same"),
    [
        ("Squeeze", 11, 13, False),
        ("Add", 6, 7, False),
        ("Add", 7, 14, True),
        ("Clip", 12, 13, True),
        ("Scan", 8, 9, False),
    ],
)
def test_whether_a_node_means_the_same_at_two_opsets(op_type, one, other, same):
    assert same_signature(op_type, one, other) == same_signature(op_type, other, one) == same


def test_no_recurrent_version_is_unknown():
    for op, operator in ((op, OPERATORS[op]) for op in OP_TYPES):
        found = {s.since_version for s in onnx.defs.get_all_schemas_with_history() if (s.name, s.domain) == (op, "")}
        assert found == set(operator.versions)


def test_an_opset_of_tomorrow(monkeypatch, caplog):
    model, _ = build(Case("LSTM", 22))
    model.opset_import[0].version = onnx.defs.onnx_opset_version() + 1
    with caplog.at_level("WARNING", "rnn_lower"):
        assert not remaining(rnn_lower.lower(model))
    assert "newer than the newest opset of the installed onnx" in caplog.text
    assert onnx.defs.onnx_opset_version() >= NEWEST_REVIEWED_OPSET
    monkeypatch.setattr(versions, "NEWEST_REVIEWED_OPSET", 12)  # as if 13 had appeared since
    with pytest.raises(rnn_lower.UnsupportedError, match=r"Abs has version 13 .* convert the model"):
        rnn_lower.lower(build(Case("LSTM", 22))[0])


UNROLLED = """
summary = "a straight line"
status = "documented"
source = "for a test"
forms = ["unroll"]
static_batch = true
"""


def emitted_without(folder) -> set[str]:
    """Operators that take the place of others where a target does not take those."""
    found, path = set(), folder / "mine.toml"
    gru = Case("GRU", 13, optional=("sequence_lens",), activations=("Tanh", "LeakyRelu"))
    rnn = Case("RNN", 13, activations=("Softsign",))
    for case, missing in (
        (gru, ["MatMul"]), (gru, ["MatMul", "Gemm"]), (gru, ["Less", "Where"]), (rnn, ["Softsign", "Abs", "Mul"]),
    ):  # fmt: skip
        path.write_text(f"{UNROLLED}avoid = {missing}", encoding="utf-8")
        found |= {node.op_type for node in every_node(rnn_lower.lower(build(case)[0], target=str(path)))}
    return found


def test_every_operator_that_is_listed_is_emitted(tmp_path):
    """And nothing else is."""
    rows = quantized.Quantized(0, direction="reverse", lengths=True, dynamic=True)
    found = {node.op_type for node in every_node(rnn_lower.lower(quantized.build(rows)[0]))}
    for opset in (1, 6, 7, 8, 9, 10, 11, 13, 18):
        old = {"output_sequence": 1} if opset < 7 else {}
        for op, names in zip(itertools.cycle(OP_TYPES), ACTIVATIONS):
            count = len(OPERATORS[op].activations)
            case = Case(
                op, opset, "reverse", dynamic=True, activations=(names,) * count, clip=2.0, optional=OPTIONAL[op], **old
            )
            plain = Case(
                op, opset, "bidirectional", dynamic=True, optional=("sequence_lens",), dtype="double", clip=2.0, **old
            )
            fixed = case.replace(dynamic=False)
            small = case.replace(N=1, dynamic=False, direction="bidirectional", activations=None, clip=None)
            guarded = [(plain, {"target": "onnxruntime"})] if opset >= 9 else []
            for one, options in (
                (case, {}),
                (small, {}),
                *guarded,
                *((one, {"form": "loop"}) for one in (case, plain, fixed)),
            ):
                found |= {node.op_type for node in every_node(rnn_lower.lower(build(one)[0], **options))}
            if opset == 13:
                found |= {node.op_type for node in every_node(rnn_lower.lower(build(fixed)[0], target="portable"))}
    found |= emitted_without(tmp_path)
    assert found == set(EMITTED)


@pytest.mark.parametrize("name", MEASURED)
def test_what_a_target_avoids_is_not_emitted(name):
    """The other operators that it avoids are for `lint`."""
    target = TARGETS[name]
    assert target.constraints.avoid <= {*EMITTED, *NEVER_EMITTED}
    for feature, case in FEATURES.items():
        if feature in REFUSED_FEATURES.get(name, ()):
            continue
        found = {node.op_type for node in every_node(rnn_lower.lower(build(case)[0], target=name))}
        assert not found & target.constraints.avoid
