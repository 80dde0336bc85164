"""Pages of the site that are made from elsewhere: the start from the README, the command line from its parser."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT)]

from rnn_lower.cli.arguments import make_parser  # noqa: E402
from rnn_lower.cli.commands import COMMANDS  # noqa: E402


def start() -> str:
    """The README, whose links are from one folder further up."""
    return re.sub(r"\]\(docs/", "](", (ROOT / "README.md").read_text(encoding="utf-8"))


def command_line() -> str:
    """One section for each command, as `--help` has it."""
    parser = make_parser(COMMANDS)
    (kinds,) = (action for action in parser._actions if isinstance(action.choices, dict))
    lines = ["# Command line", "", "```text", _help(parser), "```"]
    for name, command in (kinds.choices or {}).items():
        lines += ["", f"## rnn-lower {name}", "", "```text", _help(command), "```"]
    return "\n".join(lines) + "\n"


def _help(parser: argparse.ArgumentParser) -> str:
    parser.formatter_class = lambda prog: argparse.HelpFormatter(prog, width=100, max_help_position=32)  # type: ignore[assignment]
    return parser.format_help().rstrip()


def messages(names: str) -> str:
    """The messages of some families as a list, of which tests provoke every one."""
    sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "tests" / "bad"), str(ROOT / "tests" / "stream")]
    import corpus

    words = sorted({bad.words for name in names.split() for bad in getattr(corpus, name)()})
    return '??? note "Messages"\n\n' + "\n".join(f"    - ``` {one} ```" for one in words)


def on_page_markdown(markdown: str, **_: Any) -> str:
    return re.sub(r"<!-- messages: (.+?) -->", lambda found: messages(found[1]), markdown)


def on_files(files: Files, config: Any) -> Files:
    for name, content in (("index.md", start()), ("command-line.md", command_line())):
        files.append(File.generated(config, name, content=content))
    return files
