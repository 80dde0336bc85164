"""docs/streaming.md lists each rule."""

from __future__ import annotations

from onnx import defs
from paths import ROOT

from rnn_lower.streaming.rules.table import RULES, TABLE

PAGE = (ROOT / "docs" / "streaming.md").read_text(encoding="utf-8")


def test_each_rule_is_listed_once():
    """With what it accepts and refuses."""
    table = PAGE[PAGE.index("| operators |") :].split("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in table]
    assert [row[0] for row in rows] == [", ".join(rule.operators) for rule in TABLE]
    assert all(len(row) == 3 and all(row) for row in rows)


def test_each_operator_has_one_rule():
    assert sum(len(rule.operators) for rule in TABLE) == len(RULES)
    known = {schema.name for schema in defs.get_all_schemas() if not schema.domain}
    assert set(RULES) <= known
