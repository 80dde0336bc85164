"""A model that is lowered in place is all old or all new, whenever it is killed; tests/soak/crash.py does more of it."""

from __future__ import annotations

import os
import signal

import pytest
from crash import every_line, soak

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="children are watched as Linux offers it")


def test_killed_at_random_moments(tmp_path):
    tally = soak(15, 0, 4, tmp_path, forked_share=1)
    assert tally.faults == []
    assert tally.counts["kills"] == 15


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("stride", [12, pytest.param(5, marks=pytest.mark.soak)])
def test_killed_before_every_line_that_handles_files(number, stride, tmp_path):
    tally = every_line(0.1, number, tmp_path, stride=stride)
    assert tally.faults == []
    assert tally.counts["kills"] > 200 // stride
    assert tally.counts["old"]
    assert tally.counts["new"]
