"""What the soaks that run for some minutes are asked."""

from __future__ import annotations

import argparse
from pathlib import Path


def soak_parser(doc: str | None, failures: str = "soak") -> argparse.ArgumentParser:
    """failures: the folder for what failed."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--count", type=int, default=10**9)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--failures", type=Path, default=Path(failures))
    return parser
