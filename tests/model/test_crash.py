"""A model that is lowered in place is all old or all new, whenever it is killed; tests/soak/crash.py does more of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from crash import every_line, soak

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="children are watched as Linux offers it")


def test_killed_at_random_moments(tmp_path):
    tally = soak(15, 0, 4, tmp_path, forked_share=1)
    assert tally.faults == []
    assert tally.counts["kills"] == 15


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("stride", [12, pytest.param(5, marks=pytest.mark.grid)])
def test_killed_before_every_line_that_handles_files(number, stride, tmp_path):
    tally = every_line(0.1, number, tmp_path, stride=stride)
    assert tally.faults == []
    assert tally.counts["kills"] > 200 // stride
    assert tally.counts["old"]
    assert tally.counts["new"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_while_python_runs_a_text(number, tmp_path):
    """As dataclasses do, which read the text of their methods; CPython then ends the process by SIGINT."""
    script = f"""
import signal, sys
from rnn_lower import api, cli
signal.signal({int(number)}, signal.SIG_DFL)  # shells let background jobs ignore SIGINT
api.inspect_file = lambda *_, **__: exec("import os, time; os.kill(os.getpid(), {int(number)}); time.sleep(9)")
sys.exit(cli.main(["inspect", "m.onnx"]))
"""
    (tmp_path / "interrupted.py").write_text(script)
    (tmp_path / "m.onnx").touch()
    done = subprocess.run([sys.executable, "-m", "interrupted"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "rnn-lower: interrupted\n")
