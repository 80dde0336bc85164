"""Every code block of README and docs runs as it stands, in a copy of the checkout."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT

import rnn_lower

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SETS_UP = ("pip install", "pytest", "benchmarks/", "matrix.py")
"""Blocks with one of these install, measure or test for minutes; CI runs the first two, nothing of the rest is hidden."""


def blocks() -> list[tuple[str, str, str]]:
    found = []
    for page in PAGES:
        for language, text in re.findall(r"^```(python|sh)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            found.append((page.name, language, text))
    return found


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("models", "tests", "examples", "docs"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.mark.parametrize("page", [
    pytest.param(page, marks=() if page == "README.md" else pytest.mark.soak)
    for page in sorted({page for page, *_ in blocks()})
])  # fmt: skip
def test_code_blocks(page, checkout):
    """All of a page, one after the other: they build on each other. Of what sets up, measures or tests, the syntax."""
    for language, text in (block for there, *block in blocks() if there == page):
        if language == "sh" and any(words in text for words in SETS_UP):
            assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0, text
            continue
        command = [sys.executable, "-c", text] if language == "python" else ["bash", "-euc", text]
        done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{text}\n{done.stderr}"


def test_there_are_blocks():
    assert {language for _, language, _ in blocks()} == {"python", "sh"}


def test_links_lead_somewhere():
    for page in PAGES:
        for link in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
            assert "://" in link or (page.parent / link).exists(), f"{page.name}: {link}"


def test_generated_tables_are_up_to_date():
    sys.path[:0] = [str(ROOT / "docs")]
    import tables

    for page in tables.PAGES:
        text = page.read_text(encoding="utf-8")
        assert tables.updated(text) == text, "run python docs/tables.py"


def test_the_page_about_python_has_every_public_name():
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    listed = {line.rpartition(".")[2] for line in page.splitlines() if line.startswith("::: ")}
    assert listed == set(rnn_lower.__all__)
