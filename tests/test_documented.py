"""Targets that are made from documents: whatever is lowered for one keeps to its file, and is right on onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from features import FEATURES
from onenode import Case
from randomtargets import holds
from strategies import random_case

from rnn_lower import cli
from rnn_lower.targeting import TARGETS
from rnn_lower.targeting.probe.features import suited

DOCUMENTED = [name for name, target in TARGETS.items() if target.status == "documented"]


def taken(case: Case, name: str) -> Case | None:
    """A case made such that nothing but its features is between it and the target; None where there is no such."""
    return suited(case.replace(dynamic=False), TARGETS[name])


NEEDS = {
    "dla": {"sequence_lens input", "everything", "ThresholdedRelu", "Elu", "Softplus", "Softplus saturated"},
    "tidl": {"sequence_lens input", "everything", "ThresholdedRelu"},
    "qualcomm-htp": set(),
    "axera": set(),
    "k230": {"ThresholdedRelu"},
    "horizon-rdk": {"sequence_lens input", "everything", "ThresholdedRelu"},
    "ethos-u": {"sequence_lens input", "everything", "ThresholdedRelu", "Softsign", "activations", "Softplus", "Softplus saturated"},
    "furiosa": {"sequence_lens input", "everything", "ThresholdedRelu", "Softsign", "activations"},
}  # fmt: skip
"""Features for which a target lacks an operator (Cast, Less, Div, Exp, Log) that nothing else says."""


@pytest.mark.parametrize(
    ("name", "feature"),
    [(name, feature) for name in DOCUMENTED for feature in FEATURES if taken(FEATURES[feature], name) is not None],
)
def test_feature(name, feature):
    case = taken(FEATURES[feature], name)
    refusal = holds(case, name, prove=feature.endswith(("plain", "activations", "clip")))
    kind = feature.partition(" ")[2]
    lacks = kind in NEEDS[name] and (kind != "activations" or feature == "LSTM activations")
    assert (refusal is not None) == lacks, refusal
    assert refusal is None or f"target {name} does not support " in refusal


@pytest.mark.parametrize("name", DOCUMENTED)
def test_every_rule_has_a_source(name):
    """Who says so, or that it is assumed: of each rule by its own name, and of the list by the file's source."""
    target = TARGETS[name]
    rules = target.constraints
    told = {"opsets", "forms", *rules.limits}
    told |= {
        what
        for what, said in (("rank", rules.rank), ("static", rules.static), ("single_batch", target.single_batch))
        if said
    }
    assert told <= set(rules.sources)
    assert target.source
    assert target.forms == ("unroll",)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_it_is_never_said_to_work(name, capsys):
    assert cli.main(["targets", name]) == cli.DONE
    told = capsys.readouterr().out
    assert "documented: " in told
    assert not {"works", "measured", "runs right"} & set(told.lower().replace(",", " ").split())


@pytest.mark.parametrize("name", DOCUMENTED)
def test_random_models(name):
    rng, done = np.random.default_rng(5), 0
    while done < 8:
        case, _ = random_case(rng)
        taken_case = None if case.place != "main" else taken(case, name)
        if taken_case is None:
            continue
        done += 1
        refusal = holds(taken_case, name, prove=False, form="unroll")
        assert refusal is None or "does not support " in refusal, (taken_case, refusal)
