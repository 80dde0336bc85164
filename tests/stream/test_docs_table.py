"""docs/streaming.md lists each rule."""

from __future__ import annotations

import pytest
from onnx import defs
from paths import ROOT

from rnn_lower.streaming.rules import RULES, TABLE

PAGE = (ROOT / "docs" / "streaming.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("rule", TABLE, ids=lambda rule: rule.operators[0])
def test_each_rule_is_listed(rule):
    assert f"| {', '.join(rule.operators)} | {rule.accepted} | {rule.refused or 'nothing'} |" in PAGE


def test_no_other_rule_is_listed():
    table = PAGE[PAGE.index("| operators |") :].split("\n\n")[0].splitlines()[2:]
    assert len(table) == len(TABLE)


def test_each_operator_has_one_rule():
    assert sum(len(rule.operators) for rule in TABLE) == len(RULES)
    known = {schema.name for schema in defs.get_all_schemas() if not schema.domain}
    assert set(RULES) <= known
