"""Helper modules of the tests are imported by name from here and from runtimes/."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), *(str(HERE / name) for name in ("runtimes", "stream", "reporting"))]


@pytest.fixture(scope="session")
def shared() -> Path:
    from paths import SHARED

    if not SHARED.is_dir():
        pytest.skip("the folder ../shared is not there")
    return SHARED


@pytest.fixture(autouse=True)
def _one_child():
    """For all that a test lowers: forks of a process that has loaded every runtime are slow."""
    from rnn_lower.model.limited import one_child

    with one_child():
        yield
