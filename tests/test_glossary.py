"""Names and printed texts use the words of the field; words of the former private vocabulary stay away."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from paths import ROOT

PACKAGE = ROOT / "rnn_lower"
FILES = sorted(PACKAGE.rglob("*.py"))

NAMES = {
    "advice", "asked", "beside", "carrying", "claims", "deferred", "emitter", "foreign", "habits", "idiom", "judging",
    "leftovers", "look", "making", "meaning", "meant", "nowhere", "nudge", "outliving", "ragged", "reached", "said",
    "says", "spare", "stopping", "surgery", "taken", "takes", "tell", "tells", "told", "track", "tracks", "undecided",
    "untaken", "untouched", "wish",
}  # fmt: skip
"""No module, class, function, parameter or variable has one of these names."""

TEXTS = {
    "told", "tell", "tells", "beside", "taken", "claims", "anew", "whatever", "mends", "mend", "nobody", "serves",
    "thing", "says", "asked",
}  # fmt: skip
"""No error, log entry, help text or printed line has one of these words."""

EXCEPTIONS = {
    ("legalize/constraints.py", "takes"): "the key of a target's file",
}
"""By file and name: why it stays."""

PRINTS = {"print", "_print", "info", "warning", "error", "debug", "refuse", "exit"}


def names(tree: ast.Module) -> Iterator[str]:
    """Names that a module defines."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def texts(tree: ast.Module) -> Iterator[str]:
    """Strings in `raise`, in calls that print or log, and in `help=`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and node.exc is not None:
            yield from strings(node.exc)
        elif isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in PRINTS or called == "_option":
                yield from strings(node)
            for keyword in node.keywords:
                if keyword.arg in ("help", "description"):
                    yield from strings(keyword.value)


def strings(node: ast.AST) -> Iterator[str]:
    """The literal texts in an expression."""
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_words_of_the_field(path: Path):
    where = str(path.relative_to(PACKAGE))
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = {name for name in (path.stem, *names(tree)) if name.strip("_").lower() in NAMES}
    found |= {word for text in texts(tree) for word in re.findall(r"[a-z]+", text.lower()) if word in TEXTS}
    assert {name for name in found if (where, name) not in EXCEPTIONS} == set()


def test_exceptions_are_needed():
    for where, name in EXCEPTIONS:
        tree = ast.parse((PACKAGE / where).read_text(encoding="utf-8"))
        assert name in {*names(tree), Path(where).stem} or any(name in text.lower() for text in texts(tree)), where
