"""Three tiers: what `pytest` runs, with `-m soak` more cases of the large grids, and with `-m grid` all the others.

Helper modules are imported by name: `support/` is for all tests, `soak/` has what runs for as long as one likes.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections import defaultdict
from pathlib import Path

import pytest

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # workers on all cores would wait for each other's threads
HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), *(str(HERE / name) for name in ("support", "soak", "runtimes", "stream", "reporting"))]


CASES, SOAK = 1, 2
"""Cases of one test function that run by default and in the soak tier. Which ones, their names decide."""

CHEAP = ("bad", "test_layout.py", "test_help.py", "test_json.py")
"""Files and folders whose cases take milliseconds: all of them run."""

FEWER = {
    **dict.fromkeys((
        "test_a_loop_that_does_not_end_is_out_of_scope", "test_as_good_as_floats", "test_as_many_runs_as_requested",
        "test_every_operator_that_is_listed_is_emitted", "test_folding_in_branches_that_never_run_is_proved",
        "test_lowered_is_as_precise_as_fused", "test_many_small_steps_are_out_of_scope", "test_models_of_others",
        "test_no_wrong_lowering_is_proved", "test_planted_faults_are_rejected", "test_random_nodes_for_every_target",
        "test_steps_of_outputs_with_a_time_axis", "test_what_a_child_may_not_do_is_seen",
        "test_wrong_lowerings_are_caught",
    ), (0, 1)),
    "test_an_empty_sequence_does_not_end_the_process": (1, 2), "test_any_size_is_lowered_or_advised_about": (2, 4),
    "test_examples": (5, 16), "test_killed_before_every_line_that_handles_files": (1, 1),
    "test_a_gru_is_raised_and_lowered_from_there": (1, 1), "test_models_of_the_project": (1, 2),
    "test_mutants": (1, 1), "test_nodes_anywhere": (1, 2), "test_other_commands_refuse_it_too": (60, 200),
    "test_random_nodes_come_back": (0, 1), "test_shared_models_agree": (1, 4),
    "test_states_that_count_otherwise_than_by_adding_are_not_proved": (6, 0), "test_there_and_back": (1, 2),
    "test_replaced_weights_are_seen_whatever_computes_the_lengths": (2, 16), "test_the_operators_own_cases": (1, 2),
}  # fmt: skip
"""By test function that takes long: as many of its cases in these tiers."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    cases: dict[tuple[Path, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("soak") is None and item.get_closest_marker("grid") is None:
            cases[item.path, getattr(item, "originalname", item.name)].append(item)
    for (path, name), group in cases.items():
        cheap = set(path.relative_to(HERE).parts) & set(CHEAP)
        count, soak = FEWER.get(name, (len(group), 0) if cheap else (CASES, SOAK))
        group.sort(key=lambda item: zlib.crc32(item.name.encode()))
        for item in group[count : count + soak]:
            item.add_marker(pytest.mark.soak)
        for item in group[count + soak :]:
            item.add_marker(pytest.mark.grid)


@pytest.fixture(scope="session")
def shared() -> Path:
    from paths import SHARED

    if not SHARED.is_dir():
        pytest.skip("the folder ../shared is not there")
    return SHARED


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """For each session of onnxruntime: the models are small, and as many tests as there are processors run at once."""
    import onnxruntime

    class Options(onnxruntime.SessionOptions):
        def __init__(self) -> None:
            super().__init__()
            self.intra_op_num_threads = 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnxruntime, "SessionOptions", Options)
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_child():
    """For all that is lowered in this process: a fork for each test, which has loaded every runtime, is slow."""
    from rnn_lower.sandbox.resource_limits import one_child

    with one_child():
        yield


@pytest.fixture(autouse=True)
def _as_it_was_forked(request):
    """A test that patches something gets a child that knows of it, and the next test one that does not."""
    from rnn_lower.sandbox import resource_limits

    patches = "monkeypatch" in request.fixturenames
    if patches:
        resource_limits.close()
    yield
    if patches:
        resource_limits.close()
