"""Every mistake of the corpus: exit 2, one line that names what is wrong and where, and nothing else happens."""

from __future__ import annotations

import os
import re
import zlib
from pathlib import Path

import corpus
import pytest
from corpus import ASKING, CALLING, READING, Bad, BadCall
from paths import ROOT

import rnn_lower
from rnn_lower import cli

ALL = (*READING, *ASKING)

JARGON = ("Errno", "context manager", "allow_pickle", "keyword argument", "_deserialize", "object has no attribute")
"""Words of libraries that tell a user nothing, or the wrong thing to do."""


OTHERS = ("inspect", "check", "prove", "lint", "report")


def by_name(rows: tuple[Bad, ...] | tuple[BadCall, ...]) -> list:
    return [pytest.param(row, id=row.name.replace(" ", "-")) for row in rows]


def contents(folder: Path) -> dict[str, tuple[object, ...]]:
    """Everything in a folder: mode, identity and time of each entry, and what a file holds."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        readable = path.is_file() and not path.is_symlink() and os.access(path, os.R_OK)
        held = path.read_bytes() if readable else os.readlink(path) if path.is_symlink() else b""
        time = 0 if path.is_dir() else status.st_mtime_ns  # that of a folder tells of files that are gone again
        found[str(path)] = (status.st_mode, time, status.st_ino, held)
    return found


def permissions_count(folder: Path) -> bool:
    """Whether a file that nobody may read is one that this user, who may be root, cannot read."""
    (folder / "probe").touch(0)
    return not os.access(folder / "probe", os.R_OK)


def says(text: str, words: str) -> bool:
    """Whether a text holds the words, where … stands for anything."""
    return re.search(".*".join(map(re.escape, words.split("…"))), text) is not None


def refused(arguments: list[str], bad: Bad, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(folder)
    code = cli.main(arguments)
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    assert code == 2, err
    assert out == ""
    assert (err.count("\n"), err[-1:]) == (1, "\n"), err
    assert says(err, bad.words), f"{bad.words} expected in: {err}"
    assert bad.about in err, "what it is about is not named"
    assert [word for word in JARGON if word in err] == [], err
    assert contents(folder) == before


@pytest.mark.parametrize("bad", by_name(ALL))
def test_is_refused(bad, tmp_path, tmp_path_factory, capsys, monkeypatch):
    if not bad.as_root and not permissions_count(tmp_path_factory.mktemp("probe")):
        pytest.skip("permissions do not stop this user")
    monkeypatch.chdir(tmp_path)  # what is written where the command runs would be seen too
    refused(bad.build(tmp_path), bad, tmp_path, capsys)


@pytest.mark.parametrize("bad", by_name(READING))
def test_other_commands_refuse_it_too(bad, tmp_path, tmp_path_factory, capsys, monkeypatch):
    if not bad.as_root and not permissions_count(tmp_path_factory.mktemp("probe")):
        pytest.skip("permissions do not stop this user")
    monkeypatch.chdir(tmp_path)
    model = bad.build(tmp_path)[1]
    command = OTHERS[zlib.crc32(bad.name.encode()) % len(OTHERS)]  # each mistake meets one, each command many
    more = {"inspect": [], "lint": ["--target", "opencv"], "report": ["--svg"]}.get(command, [model])
    if bad.runs and command in ("check", "lint", "prove"):
        assert cli.main([command, model, *more]) == 0
    else:
        refused([command, model, *more], bad, tmp_path, capsys)


@pytest.mark.parametrize("bad", by_name(CALLING))
def test_calls_are_refused(bad):
    with pytest.raises(rnn_lower.RnnLowerError) as caught:
        bad.call()
    assert says(str(caught.value), bad.words)


def test_names_are_unique():
    for rows_of in (ALL, CALLING):
        names = [bad.name for bad in rows_of]
        assert len(names) == len(set(names))
    assert len(ALL) >= 120


# -- the page --------------------------------------------------------------------------------------------------------


def test_every_family_of_messages_stands_on_the_page():
    """The site lists the messages of each, see docs/pages.py."""
    families = re.findall(r"<!-- messages: (.+?) -->", (ROOT / "docs" / "errors.md").read_text(encoding="utf-8"))
    listed = [bad.words for family in families for name in family.split() for bad in getattr(corpus, name)()]
    assert sorted(listed) == sorted(bad.words for bad in (*ALL, *CALLING))
