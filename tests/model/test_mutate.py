"""Broken models are lowered or refused in one line: a few hundred mutants; tests/soak/mutate.py makes as many as one likes."""

from __future__ import annotations

import contextlib
import os

import numpy as np
import onnx
import pytest
from children import Workshop, in_child
from mutate import KILOBYTES, MODEL, SECONDS, judge, mutated, seeds, soak

from rnn_lower import cli

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="children are watched as Linux offers it")


@pytest.mark.parametrize("seed", [0, 1])
def test_mutants(seed, tmp_path):
    tally = soak(90, seed, tmp_path / "violations", shared=False)
    told = [path.read_text()[:2000] for path in sorted((tmp_path / "violations").glob("*/what.txt"))]
    assert told == []
    assert tally.outcomes["refused"] > 18
    assert tally.outcomes["compared"] > 9


def test_the_same_seed_makes_the_same_mutants():
    first, second = (
        [
            mutated(seed, np.random.default_rng(number))
            for number, seed in enumerate(seeds(np.random.default_rng(3), False))
        ]
        for _ in range(2)
    )
    assert first == second


def test_what_a_child_may_not_do_is_seen(tmp_path, monkeypatch):
    """A soak that cannot see a fault finds none."""
    seed = next(seed for seed in seeds(np.random.default_rng(0), shared=False) if seed.name == "LSTM in main")

    def verdict(command: object, in_place: bool = False) -> str:
        monkeypatch.setattr(cli, "main", command)
        found = judge(seed.files, in_place, [], tmp_path)
        with contextlib.closing(Workshop(tmp_path, SECONDS, KILOBYTES)) as workshop:
            again = [judge(seed.files, in_place, [], tmp_path, workshop) for _ in range(2)]
        assert [each.outcome for each in again] == [found.outcome] * 2
        return f"{found.outcome} {found.told.splitlines()[0] if found.told else ''}"

    real, source = cli.main, tmp_path / "work" / MODEL

    def other_numbers(arguments: list[str]) -> int:
        code = real(arguments)
        model = onnx.load(arguments[3])
        for tensor in model.graph.initializer:
            if len(tensor.raw_data) > 100:
                tensor.raw_data = bytes(len(tensor.raw_data))
        onnx.save(model, arguments[3])
        return code

    assert verdict(real).startswith("compared")
    assert verdict(real, in_place=True).startswith("compared")
    assert verdict(lambda _: 1 / 0).startswith("violation exit 3: ZeroDivisionError")
    assert verdict(lambda _: os.abort()) == "violation died: SIGABRT"
    assert verdict(lambda _: 2) == "violation stderr: 0 lines of errors"
    assert verdict(lambda _: os.write(2, b"rnn-lower: error: a\nb\n") and 2) == "violation stderr: b"
    assert verdict(lambda _: os.write(2, b"rnn-lower: error: a\n") and 2).startswith("refused")
    assert verdict(lambda _: 0) == "violation files: nothing written"
    assert verdict(lambda a: source.write_bytes(b"") or real(a)).startswith("violation")
    assert verdict(other_numbers).startswith("violation different")

    def leaves_a_file(arguments: list[str]) -> int:
        code = real(arguments)  # which would remove it
        (tmp_path / "work" / ".out.onnx.0123456789abcdef.tmp").touch()
        return code

    assert verdict(leaves_a_file) == "violation files: .out.onnx.0123456789abcdef.tmp left"
    assert verdict(lambda a: len(bytearray(3 << 29)) and real(a)).startswith("violation memory")


def test_a_child_that_hangs_is_ended(tmp_path):
    def hang(_: object) -> int:
        while True:
            pass

    end = in_child(hang, tmp_path, 0.3)
    assert end.code is None
    assert end.seconds < 60
