"""Shared paths. `shared` is a folder beside the checkout with models and cases of others; tests skip without it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))
SHARED = ROOT.parent / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    if not SHARED.is_dir():
        pytest.skip("the folder ../shared is not there")
    return SHARED


def own_models() -> list[Path]:
    return sorted((ROOT / "models").glob("*.onnx"))
